"""The HTTPS resources by which one of two servers receives reports from clients.

- `GET /v1/plans/{fingerprint}/releases/{release}` returns the state of the release.
- `PUT .../reports` below the same path sends a report. The server writes reports to the disk in
  groups, and answers 201 when the report is on the disk.

These responses are final for a client: 201; 400, 403, 409 or 410 with a problem document; and 410
with the state of the release, from a server that has destroyed its key and cannot read reports.
After any other response the client sends the same report again.

A report of a client that is not in the allow-list gets the same response as a report with a wrong
signature. Otherwise a sender could learn who is in the list.
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

GROUP = 256  # the most reports in a group: one transaction of the store
MOST_WAITING = 4096  # the most reports that may wait for their group at once
FULL = 60, 300  # bounds, in seconds, of the wait before a client tries a full server again
_T = TypeVar("_T")
_Answer = Callable[[Request], Awaitable[Response]]
UNCACHED = {"cache-control": "no-store"}


class _Said(NamedTuple):
    """The response for a report that was not accepted: the arguments of `Refused`.

    Attributes:
        status: the HTTP status of the response.
        title: the text of the response.
        after: bounds, in seconds, of the wait before the client sends the report again; None: the
            response is final.
    """

    status: int
    title: str
    after: tuple[int, int] | None = None


_UNREADABLE = _Said(400, "no report of this plan and version")
# The response for two outcomes. With two responses a sender could learn who is in the allow-list.
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
    """Return an executor with one thread, for the blocking calls of all releases of a server.

    More threads would not be faster, since all calls wait for the same lock. They would need more
    memory: the allocator keeps tens of megabytes for each thread that has verified reports. Also,
    the thread runs calls in the order in which they came, so a group of new reports never waits for
    a call that came later.
    """
    return ThreadPoolExecutor(1, "fedtally-batch")


class Watcher:
    """The interface of an object that counts requests and reports; this class counts nothing."""

    def answered(self, status: int, size: int) -> None:
        """Count a response with an HTTP status and a body of `size` bytes."""

    def took(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Count the reports of a group by outcome, and the seconds that the group took."""

    def judged(self, number: int, seconds: float) -> None:
        """Count `number` judged (verified) reports, and the seconds that it took to judge them."""


@dataclass
class Collecting:
    """The object that receives the reports of one release.

    Args:
        side: the role of this server: "leader" or "helper".
        batch: the leader or helper of the release, with its store.
        clock: returns the time, Unix seconds.
        steady: returns the seconds of a monotonic clock.
        watcher: counts requests and reports.
        note: shows a message to the operator.
        leaves_out: True: a report that the disk has lost is left out of the sum. False: `ask` then
            raises `LostReportError`.
        thread: the executor from `one_thread`, the same for all releases.

    Attributes:
        is_closing: whether clients must not begin a report any more; reports that they have begun
            are still accepted. `closing.Tending` sets it at a leader; at a helper it stays False.
        is_lost: whether the release will have no sum. `closing.Tending` sets it at a leader; at a
            helper it stays False.
        overtaken: set when another process uses the store; then this process must end.
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
        # Properties of `self.server` are read without the lock of the batch, so they may be a
        # moment old. Otherwise requests would wait while a group is stored or a sum is opened.
        with self.batch.server() as server:
            self.server = server
        self._waiting: list[tuple[bytes, asyncio.Future[Outcome | Exception]]] = []
        self._taking: asyncio.Task[None] | None = None
        self._why, self._failed_until = "", -math.inf

    @property
    def store_fails(self) -> bool:
        """Whether the last group failed by an error of the store, less than a minute ago.

        After the minute this is False, although the store may still fail. Otherwise a load balancer
        would send no more reports to this server. Without reports, no group could show that the
        store works again.
        """
        return self.steady() < self._failed_until

    @property
    def standing(self) -> Release:
        """The state of the release towards clients: open, closing or closed."""
        if self.is_lost or self.server.state is not BatchState.COLLECTING:
            return Release.CLOSED
        return Release.CLOSING if self.is_closing else Release.OPEN

    @property
    def is_full(self) -> bool:
        """Whether the release has as many reports as the plan allows."""
        return bool(len(self.server) >= self.server.parameters.n_max)

    async def take(self, frame: bytes) -> Outcome | Exception:
        """Check and store a report, in one transaction with other reports: a group.

        While a group is being stored, new reports wait for a next group. A group has at most
        `GROUP` reports.

        Args:
            frame: the bytes of the report.

        Returns:
            The outcome of the report, or the error by which its group or the report failed.

        Raises:
            Refused: `MOST_WAITING` reports wait already.
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
        """Set `store_fails` from the errors of a group; tell the operator about new errors.

        Args:
            faults: the errors of the reports of the group.
        """
        now = self.steady()
        is_broken = any(isinstance(one, StoreError) for one in faults)
        self._failed_until = now + FULL[0] if is_broken else now
        # Of other errors only the type is shown: their text could name a client.
        found = {str(one) if isinstance(one, StoreError) else type(one).__name__ for one in faults}
        why = "; ".join(sorted(found))
        if why and why != self._why:
            self.note(f"reports could not be taken: {why}")
        self._why = why

    async def ask(self, call: Callable[[Any], _T]) -> _T:
        """Call a function with the leader or helper, while no group is being stored.

        It returns what the function returns.

        If the disk has lost a report and `leaves_out` is True, the report is left out of the sum,
        and the call is repeated.

        Args:
            call: a function whose argument is the leader or helper of the release.

        Raises:
            LostReportError: the disk has lost a report, and `leaves_out` is False.
            StoreError: the disk has lost a report whose numbers are in the sum already. The
                operator must restart the process, which then computes the sum without this report.
            FedtallyError: another error that the call raised.
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
                    except LocalProtocolError:  # the report is in the sum, and is not subtracted
                        raise StoreError(f"{error}; it was added before: restart") from None
                    self.note(f"report {error.id.hex()} is left out: the disk has lost it")

    async def apart(self, call: Callable[[], _T]) -> _T:
        """Run a blocking call in `self.thread`, which runs calls one by one; return its result."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, call)

    async def idle(self) -> None:
        """Wait until no report waits and no group is being stored."""
        while self._taking is not None:
            await asyncio.wait({self._taking})


@dataclass
class Intake:
    """The HTTPS resources by which clients send reports of all releases of a plan.

    Args:
        fingerprint: the fingerprint of the plan.
        releases: the releases of the plan, in order.
        has_room: tells whether the disk has room for more reports.
        origins: the origins (scheme, host and port) of web pages that may send reports.
        draw: returns a random whole number between two bounds, both included.
        room: limits the bytes of request bodies that are in memory at once.

    Attributes:
        is_leaving: whether this process is about to end. Then it answers all requests for a release
            of the plan with 503.
    """

    fingerprint: str
    releases: Sequence[Collecting]
    has_room: Callable[[], bool] = lambda: True
    origins: Sequence[str] = ()
    draw: Callable[[int, int], int] = draw
    room: Room = field(default_factory=lambda: Room(MOST_BODIES))
    is_leaving: bool = field(default=False, init=False)

    def application(self) -> Starlette:
        """Return the ASGI application that serves clients."""
        answers = self._answering(self._state), self._answering(self._put)
        return _application(*answers, self.origins)

    @property
    def is_ready(self) -> bool:
        """Whether the process can accept reports, for a readiness probe.

        False if the process is about to end, the disk is full, or `Collecting.store_fails`.
        """
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
            Refused: there is no such release, this process is about to end, or another process
                uses the store.
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

        If an open release is full, or the disk is full and the release is not closed, the answer is
        503. Otherwise a client would make a report that this server then refuses.
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
        # Checked before the body is read, so that nobody can fill the memory.
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
    """Return an ASGI application with the two resources of each release.

    Args:
        state: answers a request for the state of a release.
        put: answers a report.
        origins: the origins of web pages that may send requests.
    """
    path = release_path("{plan}", 0).removesuffix("0") + "{release}"
    return Starlette(
        routes=[
            route_of_pages(path, "GET", state, origins),
            route_of_pages(f"{path}/reports", "PUT", put, origins),
        ]
    )


def over(side: Side, fingerprint: str, releases: int, origins: Sequence[str] = ()) -> Starlette:
    """Return the ASGI application of a server whose key was destroyed: all releases are over.

    Such a server cannot read a report, so it does not know whether the sum contains the report. A
    problem document would say that the sum does not contain it. So the answer to a report is 410
    with the state of the release.

    Args:
        side: the role of the server: "leader" or "helper".
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
