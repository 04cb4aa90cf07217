"""The HTTPS resources by which one of two servers receives reports from clients.

- `GET /v1/plans/{fingerprint}/releases/{release}` returns the state of the release.
- `PUT .../reports` sends a report. Reports are written to the disk in groups. The response 201
  comes after the report's group is on the disk.

These responses are final for a client: 201; 400, 403, 409 or 410 with a problem document; and 410
with a state, from a server that has destroyed its key and cannot read reports. After any other
response the client sends the same report again. An identity that is not in the allow-list and a
report that was changed get the same response, so that the sender does not learn who is in the list.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from fedtally.campaign.transports.https.resource import (
    STATE_TYPE,
    Release,
    release_path,
    state_of,
)
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
from fedtally.errors import OvertakenError
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server import BatchState, LostReportError, Outcome, Side
from fedtally.store import Batch, StoreError

GROUP = 256  # reports in one transaction, at most
MOST_WAITING = 4096  # the most reports that may wait for a group
FULL = 60, 300  # bounds, in seconds, of the wait before a client tries a full server again
_T = TypeVar("_T")
_Answer = Callable[[Request], Awaitable[Response]]
UNCACHED = {"cache-control": "no-store"}


class _Said(NamedTuple):
    """The response for a report that was not accepted: `after` bounds the wait before a retry."""

    status: int
    title: str
    after: tuple[int, int] | None = None


_UNREADABLE = _Said(400, "no report of this plan and version")
# the same response for two outcomes, so that the sender does not learn who is in the allow-list
_UNKNOWN = _Said(403, "no report of a client that this server knows, or it was changed")
_SAID = {
    Outcome.CLOSED: _Said(410, "this release takes no more reports"),
    Outcome.MALFORMED: _UNREADABLE,
    Outcome.UNREADABLE: _UNREADABLE,
    Outcome.OTHER_ROUND: _Said(409, "a report of another round than those of this release"),
    Outcome.OTHER_TIME: _Said(409, "a report of another time: it is too old, or a clock is wrong"),
    Outcome.SECOND_REPORT: _Said(409, "another report of this client was taken"),
    Outcome.UNKNOWN_IDENTITY: _UNKNOWN,
    Outcome.FORGED: _UNKNOWN,
    Outcome.FULL: _Said(503, "full: nothing was taken", FULL),
}


def one_thread() -> ThreadPoolExecutor:
    """Return an executor with one thread, in which all calls of a server's releases run.

    All calls wait for one lock, so more threads would not be faster. With one thread, a group of
    reports waits for at most one page of reports that is being judged. Also, the memory allocator
    keeps tens of megabytes for each thread that has judged a page.
    """
    return ThreadPoolExecutor(1, "fedtally-batch")


class Watcher:
    """The interface of a counter of requests and reports; this class counts nothing."""

    def answered(self, status: int, size: int) -> None:
        """Count a response with a status and a body of `size` bytes."""

    def took(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Count the reports of a group by outcome, and the time that the group took."""

    def judged(self, number: int, seconds: float) -> None:
        """Count judged reports, and the time that it took to judge them."""


@dataclass
class Collecting:
    """The object that receives the reports of one release.

    Args:
        side: the server that receives the reports, leader or helper.
        batch: the leader or helper of the release, with its store.
        clock: returns the time, Unix seconds.
        steady: returns the seconds of a monotonic clock.
        watcher: counts requests and reports.
        note: shows a message to the operator.
        leaves_out: whether reports that the disk has lost are left out of the sum.
        thread: the executor from `one_thread`, the same for all releases.

    Attributes:
        is_closing: whether clients must not begin a report any more.
        is_lost: whether the release will have no sum.
        overtaken: set once another process uses the store.
    """

    side: Side
    batch: Batch[Any]
    clock: Callable[[], float]
    steady: Callable[[], float]
    watcher: Watcher = field(default_factory=Watcher)
    note: Callable[[str], None] = lambda _: None
    leaves_out: bool = False
    thread: Executor = field(default_factory=one_thread)
    is_closing: bool = field(default=False, init=False)
    is_lost: bool = field(default=False, init=False)
    overtaken: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        # `self.server` is read without the lock, since a group or a sum may hold the lock for long.
        # What is read in this way may be a moment old.
        with self.batch.server() as server:
            self.server = server
        self._waiting: list[tuple[bytes, asyncio.Future[Outcome | Exception]]] = []
        self._taking: asyncio.Task[None] | None = None
        self._why, self._failed_until = "", -math.inf

    @property
    def store_fails(self) -> bool:
        """Whether the last group failed by an error of the store, less than a minute ago.

        The minute matters: a load balancer sends nothing to a server that is not ready, so without
        new groups the server would never be ready again.
        """
        return self.steady() < self._failed_until

    @property
    def standing(self) -> Release:
        """The state of the release: whether it accepts reports."""
        if self.is_lost or self.server.state is not BatchState.COLLECTING:
            return Release.CLOSED
        return Release.CLOSING if self.is_closing else Release.OPEN

    @property
    def is_full(self) -> bool:
        """Whether the release has as many reports as the plan allows."""
        return bool(len(self.server) >= self.server.parameters.n_max)

    async def take(self, frame: bytes) -> Outcome | Exception:
        """Process a report together with others, as a group; return the report's outcome or error.

        If no group is being written, the report is processed at once. Otherwise it waits, and the
        reports that wait form the next group.

        Args:
            frame: the bytes of the report.

        Raises:
            Refused: too many reports wait.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise Refused(503, "busy: send the same again", BUSY)
        done: asyncio.Future[Outcome | Exception] = asyncio.get_running_loop().create_future()
        self._waiting.append((frame, done))
        if self._taking is None:
            self._taking = asyncio.create_task(self._take_all())
        return await done

    async def _take_all(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:GROUP], self._waiting[GROUP:]
                said = await self._group([frame for frame, _ in group])
                for (_, done), outcome in zip(group, said, strict=True):
                    if not done.done():  # otherwise the request was cancelled
                        done.set_result(outcome)
        finally:
            self._taking = None

    async def _group(self, frames: list[bytes]) -> list[Outcome | Exception]:
        began = self.steady()
        try:
            said = await self.apart(partial(self.batch.take, frames, int(self.clock())))
        except OvertakenError as error:
            self.overtaken.set()
            return [error] * len(frames)
        self._look_for_faults([one for one in said if isinstance(one, Exception)])
        self.watcher.took(said, self.steady() - began)
        return said

    def _look_for_faults(self, faults: Sequence[Exception]) -> None:
        """Note the errors of a group, and tell the operator if they are new."""
        now = self.steady()
        is_broken = any(isinstance(one, StoreError) for one in faults)
        self._failed_until = now + FULL[0] if is_broken else now
        # The text of an unexpected error may name a client, so only the error's type is shown.
        found = {str(one) if isinstance(one, StoreError) else type(one).__name__ for one in faults}
        why = "; ".join(sorted(found))
        if why and why != self._why:
            self.note(f"reports could not be taken: {why}")
        self._why = why

    async def ask(self, call: Callable[[Any], _T]) -> _T:
        """Return the result of a call of the leader or helper, made between two groups of reports.

        If the disk has lost a report and `leaves_out` is True, the report is left out, and the call
        is repeated.

        Args:
            call: a function with the leader or helper as its argument.

        Raises:
            LostReportError: the disk has lost a report, and `leaves_out` is False.
            StoreError: the disk has lost a report that is already added to the sum, so that it
                cannot be left out before a restart.
            FedtallyError: an error that the call raised.
        """
        return await self.apart(partial(self._ask, call))

    def _ask(self, call: Callable[[Any], _T]) -> _T:
        with self.batch.server() as server:
            while True:
                try:
                    return call(server)
                except LostReportError as error:
                    if not self.leaves_out:
                        raise
                    try:
                        server.withdraw([error.id])
                    except LocalProtocolError:  # it is in the sum, which a restart computes anew
                        raise StoreError(f"{error}; it was added before: restart") from None
                    self.note(f"report {error.id.hex()} is left out: the disk has lost it")

    async def apart(self, call: Callable[[], _T]) -> _T:
        """Run a blocking call in the thread, and return its result; calls run one by one."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, call)

    async def idle(self) -> None:
        """Wait until no group is being written."""
        while self._taking is not None:
            await asyncio.wait({self._taking})


@dataclass
class Intake:
    """The HTTPS resources by which clients send reports of all releases of a plan.

    Args:
        fingerprint: the fingerprint of the plan.
        releases: the releases of the plan, in order.
        has_room: says whether the disk has room for more reports.
        origins: the origins of web pages that may report.
        draw: returns a random whole number between two bounds, both included.
        room: limits the bytes of request bodies that are in memory.

    Attributes:
        is_leaving: whether this process is about to end, and so refuses all requests.
    """

    fingerprint: str
    releases: Sequence[Collecting]
    has_room: Callable[[], bool] = lambda: True
    origins: Sequence[str] = ()
    draw: Callable[[int, int], int] = draw
    room: Room = field(default_factory=lambda: Room(MOST_BODIES))
    is_leaving: bool = field(default=False, init=False)

    def application(self) -> Starlette:
        """Return the application that serves clients."""
        answers = self._answering(self._state), self._answering(self._put)
        return _application(*answers, self.origins)

    @property
    def is_ready(self) -> bool:
        """Whether the process can accept reports, for a readiness probe."""
        return not self.is_leaving and self.has_room() and not self._is_broken

    @property
    def _is_broken(self) -> bool:
        return any(one.store_fails for one in self.releases)

    def _answering(self, answer: Callable[..., Any]) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Response:
            try:
                response: Response = await answer(request)
            except Refused as error:
                response = error.response(self.draw)
            response.headers.update(UNCACHED)
            self.releases[0].watcher.answered(response.status_code, len(response.body))
            return response

        return answered

    def _found(self, request: Request) -> Collecting:
        """Return the release that the path of a request names.

        Raises:
            Refused: there is no such release, or this process serves no requests any more.
        """
        number, plan = request.path_params["release"], request.path_params["plan"]
        known = {str(index): one for index, one in enumerate(self.releases)}
        if plan != self.fingerprint or number not in known:
            raise Refused(404, "no such release")
        if self.is_leaving or known[number].overtaken.is_set():
            raise Refused(503, "another process goes on: send the same again", BUSY)
        return known[number]

    async def _state(self, request: Request) -> Response:
        """Answer a request for the state of a release.

        If the release is full or the disk is full, the answer is 503, so that no client begins a
        report.
        """
        found = self._found(request)
        standing = found.standing
        if standing is Release.OPEN and found.is_full:
            raise Refused(503, "full: no report is taken", FULL)
        if standing is not Release.CLOSED and not self.has_room():
            raise Refused(503, "the disk is full: no report is taken", FULL)
        return Response(state_of(found.side, standing), media_type=STATE_TYPE)

    async def _put(self, request: Request) -> Response:
        found = self._found(request)
        most = found.server.report_bytes
        # The length in the head is checked before the first byte of the body is read.
        size = length_of(request, most, f"no report of this plan has more than {most} bytes")
        if found.standing is not Release.CLOSED and not self.has_room():
            raise Refused(503, "the disk is full: nothing was taken", FULL)
        with self.room.of(size):
            outcome = await found.take(await body_of(request))
        if outcome is Outcome.ACCEPTED:
            return Response(state_of(found.side, found.standing), 201, media_type=STATE_TYPE)
        if isinstance(outcome, OvertakenError):
            raise Refused(503, "another process goes on: send the same again", BUSY)
        if isinstance(outcome, StoreError):
            raise Refused(503, "the store does not answer: send the same again", BUSY)
        if isinstance(outcome, Exception):
            raise Refused(500, "this report could not be taken", FULL)
        raise Refused(*_SAID[outcome])


def _application(state: _Answer, put: _Answer, origins: Sequence[str]) -> Starlette:
    """Return an application with the two resources of each release."""
    path = release_path("{plan}", 0).removesuffix("0") + "{release}"
    return Starlette(
        routes=[
            route_of_pages(path, "GET", state, origins),
            route_of_pages(f"{path}/reports", "PUT", put, origins),
        ]
    )


def over(side: Side, fingerprint: str, releases: int, origins: Sequence[str] = ()) -> Starlette:
    """Return the application of a server whose key was destroyed: all releases are over.

    Such a server cannot read a report, so it does not know whether the report is in the sum. It
    answers a report with 410 and the state of the release, and not with a refusal.

    Args:
        side: the server, leader or helper.
        fingerprint: the fingerprint of the plan.
        releases: the number of the plan's releases.
        origins: the origins of web pages that may send requests.
    """
    numbers = range(releases)

    def is_known(request: Request) -> bool:
        path = request.path_params
        return path["plan"] == fingerprint and path["release"] in map(str, numbers)

    def closed(request: Request, status: int) -> Response:
        response = Refused(404, "no such release").response(draw)
        if is_known(request):
            response = Response(state_of(side, Release.CLOSED), status, media_type=STATE_TYPE)
        response.headers.update(UNCACHED)
        return response

    async def state(request: Request) -> Response:
        return closed(request, 200)

    async def put(request: Request) -> Response:
        return closed(request, 410)

    return _application(state, put, origins)
