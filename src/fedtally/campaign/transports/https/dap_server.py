"""The HTTPS resources of one DAP task at one server (draft 18, section 4).

Below the path of the server's address in the task:

- `GET hpke_config`: the public keys to which clients seal reports;
- `POST tasks/{task}/reports`: at the leader, reports of clients, who need no token; `PUT` in a
  task of draft 09;
- `POST tasks/{task}/collection_jobs`: at the leader, for the collector; 202 until it has an answer;
- `POST tasks/{task}/aggregation_jobs`, `aggregate_shares`: at the helper, for the leader.

Each POST to `collection_jobs`, `aggregation_jobs` or `aggregate_shares` creates a resource. Its URL
follows from the request. GET returns the resource again, and DELETE deletes it. The leader has a
bearer token, which follows from the secret of the task. The collector has another token, which the
helper does not know. A refused request gets a problem document; its type is from the draft if the
draft has such a type.
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

KEPT_SECONDS = 86_400  # the time for which a client may cache the keys of a server
MOST_REQUEST = 64 << 10  # bytes of a request that brings no reports
_AGAIN = 1, 2  # bounds, in seconds, of the wait before a collection job is requested again
_FULL = 60, 300  # bounds, in seconds, of the wait if the disk is full or the budget is spent
_T = TypeVar("_T")
_Answer = Callable[[Request], Awaitable[Response]]


@dataclass
class DapServer:
    """The HTTPS resources that both servers of a task have.

    Args:
        server: the leader or the helper of the task.
        keys: the keys to which clients seal reports.
        token: the digest of the bearer token that jobs need: the collector's at a leader, the
            leader's at a helper.
        clock: returns the time, Unix seconds.
        origins: the origins of web pages that may report.
        has_room: says whether the disk has room for more reports.
        note: shows a message to the operator.
        watcher: counts responses.
        draw: returns a random whole number between two bounds, both included.
        thread: an executor with one thread, in which all calls of the server run.

    Attributes:
        is_leaving: whether this process is about to end, and so refuses all requests.
        overtaken: set once another process uses the store.
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
        """The DAP task that the server serves."""
        return self.server.task

    @property
    def is_ready(self) -> bool:
        """Whether the process can serve requests, for a readiness probe."""
        return not self.is_leaving and self.has_room() and not self._why

    def application(self) -> Starlette:
        """Return the application that serves clients, and the leader or the collector."""
        return Starlette(
            routes=[
                self._public("hpke_config", "GET", self._hpke_config),
                *self._routes(),
            ]
        )

    def _routes(self) -> list[Route]:
        """Return the routes that only the leader, or only the helper, has."""
        raise NotImplementedError

    # ---- routes ----

    @property
    def _base(self) -> str:
        """The path of the server's URL, without a slash at its end."""
        of = self.task.configuration
        url = of.leader if isinstance(self.server, Leader) else of.helper
        return urlsplit(url.decode()).path.rstrip("/")

    def _public(self, path: str, method: str, answer: _Answer) -> Route:
        """Return a route for clients, who may also be web pages of the origins."""
        return route_of_pages(f"{self._base}/{path}", method, self._answering(answer), self.origins)

    def _owned(self, path: str, **answers: _Answer) -> list[Route]:
        """Return the routes of a resource that needs the token, one route for each HTTP method."""
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
        """Refuse a request if its path or its token is wrong, or this process is about to end.

        Raises:
            Refused: the token is missing or wrong, or another process continues.
            Problem: the path names another task.
        """
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
        """Return the body of a request.

        Args:
            request: the request.
            message: the type of the message in the body; the media type must be this type's.
            most: the most bytes that the body may have.

        Raises:
            Refused: the media type or the length is wrong, there is no room, or the body is late.
        """
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
        """Run a call of the leader or helper, and return its result; calls run one by one.

        Raises:
            Refused: the store failed, another process uses it, or the ledger refuses the charge for
                noise.
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
        """Return the response to a request that created a resource."""
        headers = {"location": self._place(kind, resource.id)}
        return Response(resource.answer, headers=headers, media_type=media_type(message))

    def _place(self, kind: str, id: bytes) -> str:
        return f"{self._base}/tasks/{to_text(self.task.id)}/{kind}/{to_text(id)}"


class DapLeader(DapServer):
    """The leader of a task over HTTPS.

    Attributes:
        collections: the ids of the collection jobs that have no answer yet. `Driving` removes an
            id when the job has its answer or has failed.
        wake: set when the collector requests a batch that has no answer yet, so that `Driving`
            works on it at once.
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
            # Every accepted report must be in a job first, or it would be missing in the batch.
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
    """Return the id of a resource from the path of a request."""
    try:
        return from_text(request.path_params["id"], RESOURCE_BYTES)
    except InvalidInputError:
        raise UnknownResourceError("there is nothing of this id") from None


def _job_id(request: Request) -> bytes:
    try:
        return _id(request)
    except UnknownResourceError:
        raise Problem(ProblemType.UNRECOGNIZED_AGGREGATION_JOB, "there is no such job") from None
