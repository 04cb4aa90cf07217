"""The resources of DAP over HTTPS, of one task at one server (draft 18, section 4).

Below the path of the server's address in the task:

- `GET hpke_config`: what clients seal to;
- `POST tasks/{task}/reports`: at the leader, reports of clients, who need no token; `PUT` in a
  task of draft 09;
- `POST tasks/{task}/collection_jobs`: at the leader, for the collector; 202 until it has an answer;
- `POST tasks/{task}/aggregation_jobs`, `aggregate_shares`: at the helper, for the leader.

What a POST makes has an address of its own, which follows from the request. GET returns it again,
and DELETE forgets it. The leader shows a bearer token, which follows from the secret of the task.
The collector shows one of its own, which the helper cannot know. Refused requests get a problem
document, with the draft's type where it has one.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedtally.campaign.transports.https.collecting import UNCACHED, Watcher, one_thread
from fedtally.campaign.transports.https.resource import MOST_JOB, MOST_UPLOAD, PROBLEM_TYPE
from fedtally.campaign.transports.https.web import (
    BUSY,
    MOST_BODIES,
    Refused,
    Room,
    body_of,
    draw,
    length_of,
    route_of_pages,
)
from fedtally.dap import Helper, Keyring, Leader, Problem, ProblemType, UnknownResourceError
from fedtally.dap.aggregator import RESOURCE_BYTES, Resource
from fedtally.dap.draft18 import (
    AggregateShare,
    AggregateShareReq,
    AggregationJobContinueReq,
    AggregationJobInitReq,
    AggregationJobResp,
    CollectionJobReq,
    CollectionJobResp,
    UploadErrors,
    is_media_type,
    media_type,
)
from fedtally.dap.leader import CollectionState
from fedtally.dap.presentation import Message
from fedtally.dap.task import Task, from_text, to_text, token_digest
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.privacy.budget import AlreadySpentError, OverspentError
from fedtally.store import StoreError

KEPT_SECONDS = 86_400  # for which a client may keep the keys of a server
MOST_REQUEST = 64 << 10  # bytes of any other request
_AGAIN = 1, 2  # bounds of the seconds until a collection job is asked for again
_FULL = 60, 300  # the same where the disk is full
_T = TypeVar("_T")
_Answer = Callable[[Request], Awaitable[Response]]


@dataclass
class DapServer:
    """What both servers of a task do over HTTPS.

    Args:
        server: the server of the task.
        keys: what clients seal to.
        token: the digest of the token of who may make jobs: the collector at a leader, else the
            leader.
        clock: returns the time, Unix seconds.
        origins: the origins of web pages that may report.
        has_room: tells whether the disk has room for more.
        note: takes what the operator should know, in words.
        watcher: counts responses.
        draw: returns a whole number between two bounds, both included, at random.
        thread: runs what the server is asked; one thread.

    Attributes:
        is_leaving: whether this process takes nothing any more.
        overtaken: set once another process has the store.
    """

    server: Leader | Helper
    keys: Keyring
    token: bytes
    clock: Callable[[], float]
    origins: Sequence[str] = ()
    has_room: Callable[[], bool] = lambda: True
    note: Callable[[str], None] = lambda _: None
    watcher: Watcher = field(default_factory=Watcher)
    draw: Callable[[int, int], int] = draw
    thread: Executor = field(default_factory=one_thread)
    is_leaving: bool = field(default=False, init=False)
    overtaken: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._room = Room(MOST_BODIES)
        self._configs = self.keys.configs.encode()
        self._why = ""

    @property
    def task(self) -> Task:
        """The task."""
        return self.server.task

    @property
    def is_ready(self) -> bool:
        """Whether requests are served."""
        return not self.is_leaving and self.has_room() and not self._why

    def application(self) -> Starlette:
        """Return the application that serves clients and whoever has the token."""
        return Starlette(
            routes=[
                self._public("hpke_config", "GET", self._hpke_config),
                *self._routes(),
            ]
        )

    def _routes(self) -> list[Route]:
        """Return the resources of this server alone."""
        raise NotImplementedError

    # ---- routes ----

    @property
    def _base(self) -> str:
        """The path of the server's address."""
        of = self.task.configuration
        url = of.leader if isinstance(self.server, Leader) else of.helper
        return urlsplit(url.decode()).path.rstrip("/")

    def _public(self, path: str, method: str, answer: _Answer) -> Route:
        """Return what clients ask, also from web pages of the origins."""
        return route_of_pages(f"{self._base}/{path}", method, self._answering(answer), self.origins)

    def _owned(self, path: str, **answers: _Answer) -> list[Route]:
        """Return a resource of whoever has the token, a route a method."""
        return [
            Route(
                f"{self._base}/tasks/{{task}}/{path}",
                self._answering(answer, needs_token=True),
                methods=[method.upper()],
            )
            for method, answer in answers.items()
        ]

    def _answering(
        self, answer: _Answer, *, needs_token: bool = False
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            try:
                self._check(request, needs_token)
                response = await answer(request)
            except Refused as error:
                response = error.response(self.draw)
            except UnknownResourceError as error:
                response = Refused(404, str(error)).response(self.draw)
            except Problem as error:
                document = error.document(self.task.id)
                response = JSONResponse(document, error.status, media_type=PROBLEM_TYPE)
            for name, value in UNCACHED.items():
                response.headers.setdefault(name, value)
            self.watcher.answered(response.status_code, len(response.body))
            return response

        return answered

    def _check(self, request: Request, needs_token: bool) -> None:
        """Refuse what the head of a request shows to be wrong."""
        if self.is_leaving or self.overtaken.is_set():
            raise Refused(503, "another process goes on: send the same again", BUSY)
        if request.path_params.get("task", to_text(self.task.id)) != to_text(self.task.id):
            raise Problem(ProblemType.UNRECOGNIZED_TASK, "this server has another task")
        if needs_token and not self._has_token(request):
            raise Refused(401, "this needs the token of the task")

    def _has_token(self, request: Request) -> bool:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        digest = token_digest(token.strip())
        return kind.lower() == "bearer" and hmac.compare_digest(digest, self.token)

    # ---- answers ----

    async def _hpke_config(self, _: Request) -> Response:
        kept = {"cache-control": f"max-age={KEPT_SECONDS}"}
        return Response(self._configs, headers=kept, media_type=self.task.version.keys_media)

    async def _read(self, request: Request, message: type[Message], most: int) -> bytes:
        """Return the body of a request, which must be of a message."""
        if not is_media_type(request.headers.get("content-type", ""), message):
            raise Refused(415, f"send {media_type(message)}")
        return await self._body(request, most)

    async def _body(self, request: Request, most: int) -> bytes:
        size = length_of(request, most, f"at most {most} bytes at once")
        if not self.has_room():
            raise Refused(503, "the disk is full: nothing was taken", _FULL)
        with self._room.of(size):
            return await body_of(request)

    async def ask(self, call: Callable[[], _T]) -> _T:
        """Return what the server says to a call; calls run one after the other.

        Raises:
            Refused: the store does not answer, another process has it, or the ledger does not pay.
        """
        try:
            found = await asyncio.get_running_loop().run_in_executor(self.thread, call)
        except OvertakenError:
            self.overtaken.set()
            raise Refused(503, "another process goes on: send the same again", BUSY) from None
        except StoreError as error:
            if str(error) != self._why:
                self.note(f"a request was not served: {error}")
            self._why = str(error)
            raise Refused(503, "the store does not answer: send the same again", BUSY) from None
        except (AlreadySpentError, OverspentError) as error:
            self.note(f"a batch waits, whose noise is not paid: {error}")
            raise Refused(503, "the budget of this server does not pay for it", _FULL) from None
        self._why = ""
        return found

    def _made(self, kind: str, resource: Resource, message: type[Message]) -> Response:
        """Return the response to a request that made a resource."""
        headers = {"location": self._place(kind, resource.id)}
        return Response(resource.answer, headers=headers, media_type=media_type(message))

    def _place(self, kind: str, id: bytes) -> str:
        return f"{self._base}/tasks/{to_text(self.task.id)}/{kind}/{to_text(id)}"


class DapLeader(DapServer):
    """The leader of a task over HTTPS.

    Attributes:
        collections: the collection jobs that have no answer yet; whoever asks the helper empties
            it.
        wake: set when there is something to ask the helper for.
    """

    server: Leader

    def __post_init__(self) -> None:
        super().__post_init__()
        self.collections = set(self.server.open_collections())
        self.wake = asyncio.Event()

    def _routes(self) -> list[Route]:
        return [
            self._public("tasks/{task}/reports", self.task.version.method, self._upload),
            *self._owned("collection_jobs", post=self._collect),
            *self._owned("collection_jobs/{id}", get=self._collection, delete=self._forget),
        ]

    async def _upload(self, request: Request) -> Response:
        version = self.task.version
        if not version.is_upload(request.headers.get("content-type", "")):
            raise Refused(415, f"send {version.upload_media}")
        body = await self._body(request, MOST_UPLOAD)
        errors = await self.ask(lambda: self.server.upload(body, self.clock()))
        return Response(errors, media_type=media_type(UploadErrors)) if errors else Response()

    async def _collect(self, request: Request) -> Response:
        body = await self._read(request, CollectionJobReq, MOST_REQUEST)

        def begun() -> CollectionState:
            # what is in no job is not in the batch, and was taken from its clients
            while not self.server.is_idle:
                self.server.make_job()
            return self.server.collect(body)

        return self._state(await self.ask(begun))

    async def _collection(self, request: Request) -> Response:
        id = _id(request)
        return self._state(await self.ask(lambda: self.server.collection(id)))

    def _state(self, state: CollectionState) -> Response:
        if state.answer:
            resource = Resource(state.id, state.answer)
            return self._made("collection_jobs", resource, CollectionJobResp)
        self.collections.add(state.id)
        self.wake.set()
        headers = {
            "location": self._place("collection_jobs", state.id),
            "retry-after": str(self.draw(*_AGAIN)),
        }
        return Response(status_code=202, headers=headers)

    async def _forget(self, request: Request) -> Response:
        id = _id(request)
        await self.ask(lambda: self.server.forget_collection(id))
        self.collections.discard(id)
        return Response()


class DapHelper(DapServer):
    """The helper of a task over HTTPS."""

    server: Helper

    def _routes(self) -> list[Route]:
        return [
            *self._owned("aggregation_jobs", post=self._aggregate),
            *self._owned(
                "aggregation_jobs/{id}",
                get=self._job,
                post=self._proceed,
                delete=self._forget_job,
            ),
            *self._owned("aggregate_shares", post=self._share),
            *self._owned("aggregate_shares/{id}", get=self._kept_share, delete=self._forget_share),
        ]

    async def _aggregate(self, request: Request) -> Response:
        body = await self._read(request, AggregationJobInitReq, MOST_JOB)
        made = await self.ask(lambda: self.server.aggregate(body, self.clock()))
        return self._made("aggregation_jobs", made, AggregationJobResp)

    async def _job(self, request: Request) -> Response:
        answer = await self.ask(lambda: self.server.aggregation_job(_job_id(request)))
        step = request.query_params.get("step", "0")
        if step != "0":
            raise Problem(ProblemType.STEP_MISMATCH, f"the job has no step {step[:8]}")
        return Response(answer, media_type=media_type(AggregationJobResp))

    async def _proceed(self, request: Request) -> Response:
        body = await self._read(request, AggregationJobContinueReq, MOST_JOB)
        return Response(await self.ask(lambda: self.server.proceed(_job_id(request), body)))

    async def _forget_job(self, request: Request) -> Response:
        await self.ask(lambda: self.server.forget_aggregation_job(_job_id(request)))
        return Response()

    async def _share(self, request: Request) -> Response:
        body = await self._read(request, AggregateShareReq, MOST_REQUEST)
        made = await self.ask(lambda: self.server.share(body))
        return self._made("aggregate_shares", made, AggregateShare)

    async def _kept_share(self, request: Request) -> Response:
        id = _id(request)
        answer = await self.ask(lambda: self.server.aggregate_share(id))
        return Response(answer, media_type=media_type(AggregateShare))

    async def _forget_share(self, request: Request) -> Response:
        id = _id(request)
        await self.ask(lambda: self.server.forget_aggregate_share(id))
        return Response()


def _id(request: Request) -> bytes:
    """Return the id in a path."""
    try:
        return from_text(request.path_params["id"], RESOURCE_BYTES)
    except InvalidInputError:
        raise UnknownResourceError("there is nothing of this id") from None


def _job_id(request: Request) -> bytes:
    try:
        return _id(request)
    except UnknownResourceError:
        raise Problem(ProblemType.UNRECOGNIZED_AGGREGATION_JOB, "there is no such job") from None
