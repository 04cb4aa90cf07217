"""The HTTPS resources of one DAP task at one server (draft 18, section 4).

The resources are below the path of the server's URL in the task:

- `GET hpke_config`, at both servers: the public keys to which clients seal reports;
- `POST tasks/{task}/reports`, at the leader: clients send reports, without a token. In a task of
  draft 09 the method is `PUT`;
- `POST tasks/{task}/collection_jobs`, at the leader: the collector asks for a batch. The response
  is 202 until the leader has the answer;
- `POST tasks/{task}/aggregation_jobs` and `POST tasks/{task}/aggregate_shares`, at the helper: the
  leader sends reports to verify, and asks for the helper's share of a batch.

A POST to `collection_jobs`, `aggregation_jobs` or `aggregate_shares` creates a resource. Its URL is
computed from the request, so the same request gets the same URL. GET returns the resource again,
and DELETE deletes it. POST, GET and DELETE of these resources need a bearer token. The leader's
token is derived from the secret of the task. The collector has another token, which the helper does
not know.

A request that one of these resources refuses gets a problem document. If the draft has no type for
the problem, the type is "about:blank".
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

from fedtally.campaign.dap_noise import UnchargedError
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
from fedtally.dap.aggregator import RESOURCE_BYTES, Resource, resource_id
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
MOST_REQUEST = 64 << 10  # the most bytes of a request for a batch, or for the share of a batch
_AGAIN = 1, 2  # bounds, in seconds, of the wait before a collector asks for its batch again
# bounds, in seconds, of the wait after a request that was refused because the disk is full, or
# because the privacy budget does not suffice
_FULL = 60, 300
_T = TypeVar("_T")
_Answer = Callable[[Request], Awaitable[Response]]


@dataclass
class DapServer:
    """The base class of both servers of a task over HTTPS.

    Args:
        server: the leader or the helper of the task.
        keys: the keys to which clients seal reports.
        token: the SHA-256 of the bearer token that requests need, except uploads and requests for
            keys; 32 bytes. At a leader it is the collector's token, at a helper the leader's token.
        clock: returns the time, Unix seconds.
        origins: the origins (scheme, host and port) of web pages that may send reports.
        has_room: tells whether the disk has room for more reports.
        note: shows a message to the operator.
        watcher: counts responses.
        draw: returns a random whole number between two bounds, both included.
        thread: an executor with one thread, in which all calls of `server` run.

    Attributes:
        is_leaving: whether this process is about to end. Then its resources answer 503.
        overtaken: set when another process uses the store; then this process must end.
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
        self._unpaid: dict[bytes, str] = {}  # which batch waits to be paid -> what was noted

    @property
    def task(self) -> Task:
        """The DAP task that the server serves."""
        return self.server.task

    @property
    def is_ready(self) -> bool:
        """Whether the process can serve requests, for a readiness probe.

        False if the process is about to end, the disk is full, or the store failed and no call has
        succeeded since.
        """
        return not self.is_leaving and self.has_room() and not self._why

    def application(self) -> Starlette:
        """Return the ASGI application with all resources of this server."""
        return Starlette(
            routes=[
                self._public("hpke_config", "GET", self._hpke_config),
                *self._routes(),
            ]
        )

    def _routes(self) -> list[Route]:
        """Return the routes that the other server of the task does not have."""
        raise NotImplementedError

    # ---- routes ----

    @property
    def _base(self) -> str:
        """The path of the server's URL, without a slash at its end."""
        of = self.task.configuration
        url = of.leader if isinstance(self.server, Leader) else of.helper
        return urlsplit(url.decode()).path.rstrip("/")

    def _public(self, path: str, method: str, answer: _Answer) -> Route:
        """Return a route without a token, for clients and for web pages of the `origins`."""
        return route_of_pages(f"{self._base}/{path}", method, self._answering(answer), self.origins)

    def _owned(self, path: str, **answers: _Answer) -> list[Route]:
        """Return the routes of a resource that needs the bearer token.

        Args:
            path: the path below the path of the task.
            answers: for each HTTP method, in small letters, the function that answers a request.
        """
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
        """Raise an error if a request must be refused before its body is read.

        Args:
            request: the request.
            needs_token: whether the resource needs the bearer token.

        Raises:
            Refused: this process is about to end, another process uses the store, or the token is
                missing or wrong.
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
        """Read the body of a request.

        Args:
            request: the request.
            message: the class of the message that the body must encode.
            most: the most bytes that the body may have.

        Raises:
            Refused: the Content-Type is not the one of `message`, the length is missing or above
                `most`, the disk or the memory for bodies is full, or the body did not come in time.
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

    async def ask(self, call: Callable[[], _T], batch: bytes = b"") -> _T:
        """Run a call of the leader or helper in `self.thread`, which runs calls one by one.

        It returns what `call` returns. The collector and the leader try a batch that is not paid
        again and again. So the operator is told of it once, and again if the reason is another one.

        Args:
            call: the call.
            batch: the id of the resource for whose batch the call may charge the privacy budget;
                empty if it charges for none.

        Raises:
            Refused: the store failed, another process uses it, or the privacy budget does not pay
                for the noise of a batch.
            Exception: another error that the call raised, unchanged.
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
        except (AlreadySpentError, OverspentError, UnchargedError) as error:
            if self._unpaid.get(batch) != str(error):
                self.note(f"a batch waits, whose noise is not paid: {error}")
            self._unpaid[batch] = str(error)
            raise Refused(503, "the budget of this server does not pay for it", _FULL) from None
        self._why = ""
        self._unpaid.pop(batch, None)
        return found

    def _made(self, kind: str, resource: Resource, message: type[Message]) -> Response:
        """Return the response to a request that created a resource: its answer and its URL.

        Args:
            kind: the kind of the resource, as the URL names it.
            resource: the id and the answer of the resource.
            message: the class of the message that the answer encodes.
        """
        headers = {"location": self._place(kind, resource.id)}
        return Response(resource.answer, headers=headers, media_type=media_type(message))

    def _place(self, kind: str, id: bytes) -> str:
        return f"{self._base}/tasks/{to_text(self.task.id)}/{kind}/{to_text(id)}"


class DapLeader(DapServer):
    """The leader of a task over HTTPS.

    Attributes:
        collections: the ids of the collection jobs that `Driving` must continue (see
            `Driving._collect`).
        wake: set when the collector asks for a batch that has no answer yet, so that `Driving` does
            its next step at once.
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
            # `collect` waits only for reports that are in an aggregation job. Without this loop,
            # reports that the leader accepted a moment ago would be missing in the batch.
            while not self.server.is_idle:
                self.server.make_job()
            return self.server.collect(body)

        return self._state(await self.ask(begun, resource_id(body)))

    async def _collection(self, request: Request) -> Response:
        id = _id(request)
        return self._state(await self.ask(lambda: self.server.collection(id), id))

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
        made = await self.ask(lambda: self.server.share(body), resource_id(body))
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
    """Return the id of a resource, 16 bytes, from the path of a request.

    Raises:
        UnknownResourceError: the path has no valid id.
    """
    try:
        return from_text(request.path_params["id"], RESOURCE_BYTES)
    except InvalidInputError:
        raise UnknownResourceError("there is nothing of this id") from None


def _job_id(request: Request) -> bytes:
    try:
        return _id(request)
    except UnknownResourceError:
        raise Problem(ProblemType.UNRECOGNIZED_AGGREGATION_JOB, "there is no such job") from None
