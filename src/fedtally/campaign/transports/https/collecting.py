"""One of two servers takes reports over HTTPS: what clients ask, and the groups on disk.

- `GET /v1/plans/{fingerprint}/releases/{release}` says how the release stands;
- `PUT .../reports` brings a report. 201 is said after its group is on disk.

Only these end a client's report: 201; 400, 403, 409 or 410 as a problem; and 410 with a state, of a
server that cannot look into reports any more. Everything else lets it send the same again. An
identity that is not in the list and a report that somebody changed get one answer: who sends knows
neither who is in the list.
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
MOST_WAITING = 4096  # reports that wait for their group at once
FULL = 60, 300  # bounds of the seconds after which a client asks a full server again
_T = TypeVar("_T")
_Answer = Callable[[Request], Awaitable[Response]]
UNCACHED = {"cache-control": "no-store"}


class _Said(NamedTuple):
    """What a client is told of a report that was not accepted."""

    status: int
    title: str
    after: tuple[int, int] | None = None


_UNREADABLE = _Said(400, "no report of this plan and version")
# one and the same, so that nobody learns who is in the list
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
    """Return a thread for all that the releases of a server are asked.

    It all waits for one lock, so that more threads would do no more. In one thread a group of
    reports waits for one page that is judged, and not for those after it. And what the allocator
    keeps for a page, tens of megabytes, it keeps for each thread that ever judged one.
    """
    return ThreadPoolExecutor(1, "fedtally-batch")


class Watcher:
    """Whoever counts what comes and goes; this one counts nothing."""

    def answered(self, status: int, size: int) -> None:
        """Note a response, and the bytes of its body."""

    def took(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Note a group of reports, and how long it took."""

    def judged(self, number: int, seconds: float) -> None:
        """Note how many reports were judged, and how long it took."""


@dataclass
class Collecting:
    """The reports of one release, as they come.

    Args:
        side: the server that takes them.
        batch: the server and its store.
        clock: returns the time, Unix seconds.
        steady: returns seconds that nobody sets.
        watcher: counts what comes.
        note: takes what the operator should know, in words.
        leaves_out: whether reports that the disk has lost are left out of the sum.
        thread: runs what the server is asked; of `one_thread`, and one for all releases.

    Attributes:
        is_closing: whether clients that have not begun must not begin.
        is_lost: whether there will be no sum.
        overtaken: set once another process has the store.
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
        # Read without the lock, for what may be a moment old: a group, or a sum, holds the lock.
        with self.batch.server() as server:
            self.server = server
        self._waiting: list[tuple[bytes, asyncio.Future[Outcome | Exception]]] = []
        self._taking: asyncio.Task[None] | None = None
        self._why, self._failed_until = "", -math.inf

    @property
    def store_fails(self) -> bool:
        """Whether the last group met an error of the store, less than a minute ago.

        Who sends nothing to a server that is not ready could not find out otherwise that it is.
        """
        return self.steady() < self._failed_until

    @property
    def standing(self) -> Release:
        """Whether reports are taken."""
        if self.is_lost or self.server.state is not BatchState.COLLECTING:
            return Release.CLOSED
        return Release.CLOSING if self.is_closing else Release.OPEN

    @property
    def is_full(self) -> bool:
        """Whether there is no place for another report."""
        return bool(len(self.server) >= self.server.parameters.n_max)

    async def take(self, frame: bytes) -> Outcome | Exception:
        """Take a report, in a group with those that come meanwhile; return what became of it.

        The first one is taken at once, and the next group is whatever waited for that.

        Raises:
            Refused: too many wait.
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
                    if not done.done():  # else its client went away
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
        """Note what kept reports of a group from being taken, and tell the operator once."""
        now = self.steady()
        is_broken = any(isinstance(one, StoreError) for one in faults)
        self._failed_until = now + FULL[0] if is_broken else now
        # what nobody expected may name a client
        found = {str(one) if isinstance(one, StoreError) else type(one).__name__ for one in faults}
        why = "; ".join(sorted(found))
        if why and why != self._why:
            self.note(f"reports could not be taken: {why}")
        self._why = why

    async def ask(self, call: Callable[[Any], _T]) -> _T:
        """Return what the server says to a call; no group is open meanwhile.

        Raises:
            LostReportError: the disk has lost a report, and it is not left out.
            StoreError: it is to be left out, and is in the sum: the process must start again.
            FedtallyError: what the call raised.
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
                    except LocalProtocolError:  # it is in the sum, which is made anew at a start
                        raise StoreError(f"{error}; it was added before: restart") from None
                    self.note(f"report {error.id.hex()} is left out: the disk has lost it")

    async def apart(self, call: Callable[[], _T]) -> _T:
        """Return what a call returns that waits for the disk; calls run one after the other."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, call)

    async def idle(self) -> None:
        """Wait until no group is open."""
        while self._taking is not None:
            await asyncio.wait({self._taking})


@dataclass
class Intake:
    """The reports of all releases of a plan, as clients bring them.

    Args:
        fingerprint: the fingerprint of the plan.
        releases: its releases, in their order.
        has_room: tells whether the disk has room for more.
        origins: the origins of web pages that may report.
        draw: returns a whole number between two bounds, both included, at random.
        room: for bodies.

    Attributes:
        is_leaving: whether this process takes nothing any more.
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
        """Whether reports are taken, of any release that is not over."""
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
        """Return the release that a path names, if this process serves it."""
        number, plan = request.path_params["release"], request.path_params["plan"]
        known = {str(index): one for index, one in enumerate(self.releases)}
        if plan != self.fingerprint or number not in known:
            raise Refused(404, "no such release")
        if self.is_leaving or known[number].overtaken.is_set():
            raise Refused(503, "another process goes on: send the same again", BUSY)
        return known[number]

    async def _state(self, request: Request) -> Response:
        """Say how a release stands. Where it cannot take a report, nobody begins one."""
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
        # All that the head tells is checked before the first byte of the body is read.
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
    """Return the two resources of a release."""
    path = release_path("{plan}", 0).removesuffix("0") + "{release}"
    return Starlette(
        routes=[
            route_of_pages(path, "GET", state, origins),
            route_of_pages(f"{path}/reports", "PUT", put, origins),
        ]
    )


def over(side: Side, fingerprint: str, releases: int, origins: Sequence[str] = ()) -> Starlette:
    """Return the application of a server whose key was destroyed: all releases are over.

    It cannot look into a report. So it says how the release stands, and does not refuse what may be
    in the sum.

    Args:
        side: the server.
        fingerprint: the fingerprint of the plan.
        releases: the number of its releases.
        origins: the origins of web pages that may ask.
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
