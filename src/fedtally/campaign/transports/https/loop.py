"""The server's side of a campaign over HTTPS.

The driver (`campaign.driver.Driver`) decides what clients must do. This module only passes its
frames to clients, and the clients' answers to the driver. Each client sends requests: the body of a
request is the answer to the last frame, or is empty. The status of the response tells the client
what to do:

- 200: the body is the next frame; handle it, and send the answer in the next request;
- 204: there is no frame for this client yet. After the wait in `retry-after`, send a request with
  an empty body;
- 401: the token is not valid: stop for good;
- 410: the campaign is over: stop for good;
- 404: the server has no such campaign: ask again, but rarely;
- 411: the request does not state its length;
- 413: the request is longer than any answer of the campaign: do not send this answer again;
- 408, 429, 503, and any other 5xx: send the same request again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedtally.campaign.driver import Driver, Receipt
from fedtally.campaign.transports.event_loop import set_within
from fedtally.campaign.transports.https.resource import (
    FRAME_TYPE,
    HANDLED,
    WAIT_SECONDS,
    read_digest,
    step_path,
)
from fedtally.campaign.transports.https.web import (
    BUSY,
    MOST_BODIES,
    Refused,
    Room,
    body_of,
    draw,
    length_of,
)
from fedtally.campaign.transports.pace import Ending, Pace, longest_answer
from fedtally.secagg.server import ClientId

# After the campaign is complete, the time in which clients may still get their last frame, which
# says how their session ended. A client whose connection broke sends a new request after 30 seconds
# at the latest.
FAREWELL_SECONDS = 60.0
MOST_WAITING = 2_000  # the most requests that wait for a frame at once; more get a 204 (CROWDED)
# Each pair gives the bounds, in seconds, of a wait that is drawn at random. Otherwise clients that
# came at the same time would come back at the same time.
# SOON, CROWDED and IDLE: how long a client waits after a 204 before its next request. SOON: the
# client may be in a session. CROWDED: too many requests wait. IDLE: the client is in no session;
# these bounds are for a phase of a minute or longer, and shrink with a shorter phase.
SOON, CROWDED = (1, 2), (5, 15)
WAIT = 10, int(WAIT_SECONDS)  # how long a request waits for a frame before it gets a 204
IDLE = 15, 45


class Names(Protocol):
    """The interface of the campaign's tokens, which tell which client sends a request."""

    def name_of(self, token: str, /) -> str | None:
        """Return the name of the client that has this token; None: the token is not valid."""

    def reload(self) -> None:
        """Read the tokens from their file again; if that fails, keep the old tokens."""


class Observer:
    """The interface of an object that counts requests, answers and steps.

    This class itself counts nothing.
    """

    def answered(self, status: int, size: int) -> None:
        """Count a response with an HTTP status and a body of `size` bytes."""

    def received(self, client: ClientId, receipt: Receipt, size: int) -> None:
        """Count a client's answer to a frame.

        Args:
            client: the name of the client.
            receipt: the driver's verdict on the answer.
            size: the number of bytes of the answer.
        """

    def stepped(self, seconds: float) -> None:
        """Count a step of the driver, and the seconds that it took."""


class Standing(Enum):
    """The state of this process towards clients. It serves requests only in the state OPEN."""

    STARTING = "starting"  # the driver has done no step yet
    OPEN = "open"
    LEAVING = "leaving"  # the run has ended; another process may continue the campaign


@dataclass(eq=False)
class _Turn:
    """A request that waits for a frame: only the latest request of a client may wait.

    Attributes:
        waiting: the future for which the request waits; None: it has not waited yet. The future is
            resolved when there may be a frame, or when the client sends a newer request.
    """

    waiting: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)


@dataclass
class HttpsLoop:
    """The loop that passes frames between the driver of a campaign and its clients.

    Args:
        driver: the driver of the campaign.
        names: the tokens of the campaign.
        phase: the seconds that a phase of a session lasts. A client that is in no session is told
            to send its next request within one phase.
        clock: returns the time, Unix seconds.
        steady: returns the seconds of a monotonic clock, for waits inside this process.
        report: called after each step of the driver, which is at least about once a second.
        warn: called with a text about a problem after which the run continues.
        draw: returns a random whole number between two bounds, both included.
        observer: counts requests, answers and steps.
        most_waiting: the largest number of requests that may wait for a frame at once.
        room: limits the bytes of request bodies that are in memory at once.

    Attributes:
        standing: the state of this process towards clients.
    """

    driver: Driver
    names: Names
    phase: float
    clock: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    report: Callable[[], None] = lambda: None
    warn: Callable[[str], None] = lambda _: None
    draw: Callable[[int, int], int] = draw
    observer: Observer = field(default_factory=Observer)
    most_waiting: int = MOST_WAITING
    room: Room = field(default_factory=lambda: Room(MOST_BODIES))
    standing: Standing = field(default=Standing.STARTING, init=False)

    def __post_init__(self) -> None:
        self._most = longest_answer(self.driver.plan)
        # The run waits for clients without end: infinity is the argument `wait`.
        self._pace = Pace(self.driver, self.clock, float("inf"), self.warn, self.steady)
        self._turns: dict[str, _Turn] = {}  # a client's name -> its latest request
        self._wake = asyncio.Event()
        # With a short phase, clients must ask more often. A client that was drawn for a session
        # must get its invitation and answer it within the first phase.
        least, most = (max(1, min(each, int(self.phase * each / 60))) for each in IDLE)
        self._idle = least, most

    # ---- for the process that runs the loop ----

    async def run(self) -> Ending:
        """Serve clients until the campaign is complete or drained; return why the run ended.

        Drained means that `stop` was called and no session is open any more. In a campaign with a
        calendar, the run also ends if the clock jumped past the calendar's end.

        Raises:
            OvertakenError: another process runs the campaign, or the campaign was cancelled.
            OverspentError: the population has too little privacy budget left; no client was
                invited.
            FedtallyError: another error of the driver, see `Pace.step`.
        """
        try:
            ending = await self._tick()
            if ending is Ending.COMPLETE:
                await self._say_farewell()
            return ending
        finally:
            self.standing = Standing.LEAVING
            self._tell()

    def stop(self) -> None:
        """Let the driver open no further session; `run` returns when no session is open."""
        if not self.drains:
            self._pace.stop()
            self._wake.set()

    @property
    def is_ready(self) -> bool:
        """Whether the driver runs and the store can be written, for a readiness probe.

        If the store can be read but not written, this is False, but requests are still served: the
        answers of clients wait in memory.
        """
        return self.standing is Standing.OPEN and self._pace.takes_writes

    def ask_store(self) -> None:
        """Let a later step test whether the store can be written, if no session runs then."""
        self._pace.is_asked = True

    @property
    def drains(self) -> bool:
        """Whether `stop` was called."""
        return self._pace.drains

    @property
    def num_waiting(self) -> int:
        """The number of clients that have a request which waits for a frame."""
        return len(self._turns)

    async def _tick(self) -> Ending:
        """Call the driver whenever it is due, until the run ends; return why it ended."""
        while True:
            self._wake.clear()
            was_broken, began = self._pace.is_broken, self.steady()
            ending = self._pace.step()
            self.observer.stepped(self.steady() - began)
            is_new, self.standing = self.standing is not Standing.OPEN, Standing.OPEN
            self.report()
            if self._pace.has_news or is_new or was_broken != self._pace.is_broken:
                self._tell()
            if ending is not None:
                return ending
            await set_within(self._wake, max(0.0, self._pace.due - self.steady()))

    def _tell(self) -> None:
        """Wake all requests that wait. Each one looks for its frame, or is refused."""
        for turn in self._turns.values():
            turn.wake()

    async def _say_farewell(self) -> None:
        """Wait until clients have their last frames, at most `FAREWELL_SECONDS`.

        The last frame says how the client's session ended. After `stop` there is no wait: the
        process that continues the campaign sends clients their last frames.
        """
        self._tell()
        end = self.steady() + FAREWELL_SECONDS
        while self.driver.owes_farewells and self.steady() < end and not self.drains:
            await asyncio.sleep(0.05)

    # ---- for the requests of clients ----

    async def step(self, request: Request) -> Response:
        """Handle one request of a client.

        If the request has a body, it is the client's answer to a frame, which is passed to the
        driver. If the client may be in a session, the request then waits a while for its next
        frame. The header `resource.HANDLED` has the digest of the last frame that the client
        handled.

        Returns:
            A 200 with the next frame, or a 204 that says when to send the next request.

        Raises:
            Refused: the request is refused. The client may send the same answer again. Even if the
                driver has got the answer already, it counts the answer once.
        """
        self._check_ready()
        # The token and the length are checked before the body is read. Otherwise anybody could fill
        # the memory.
        name = self._name(request)
        answer = await self._body(request)
        self._check_ready()  # once more: the state may have changed while the body was read
        if answer:
            receipt = self.driver.receive(name, answer, self.clock())
            self.observer.received(name, receipt, len(answer))
            if receipt is Receipt.TAKEN:
                self._wake.set()
            del answer
        turn = self._take_turn(name)
        try:
            return await self._next(name, turn, read_digest(request.headers.get(HANDLED, "")))
        finally:
            if self._turns.get(name) is turn:
                del self._turns[name]

    def _check_ready(self) -> None:
        if self.standing is Standing.STARTING:
            raise Refused(503, "the server starts: send the same again", BUSY)
        if self.standing is Standing.LEAVING:
            raise Refused(503, "another process goes on: send the same again", BUSY)
        if self._pace.is_broken:
            raise Refused(503, "the store does not answer: send the same again", BUSY)

    def _name(self, request: Request) -> str:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        name = self.names.name_of(secret.strip()) if scheme.lower() == "bearer" else None
        if name is None:
            raise Refused(401, "no token, or none that counts here")
        return name

    async def _body(self, request: Request) -> bytes:
        too_long = f"no answer of this campaign has more than {self._most} bytes"
        with self.room.of(length_of(request, self._most, too_long)):
            return await body_of(request)

    def _take_turn(self, name: str) -> _Turn:
        """Make this request the client's latest one; wake an older request, which then ends.

        An older request must not get the next frame: its connection may be dead, and the frame
        would be lost.

        Args:
            name: the name of the client.
        """
        older, turn = self._turns.get(name), _Turn()
        self._turns[name] = turn
        if older is not None:
            older.wake()
        return turn

    async def _next(self, name: str, turn: _Turn, handled: bytes) -> Response:
        """Wait for the client's next frame; return a 200 with it, or a 204 without a frame.

        Args:
            name: the name of the client.
            turn: the request. When it is not the client's latest one any more, it gets a 204.
            handled: the digest of the last frame that the client handled; empty: there is no such
                frame.

        Raises:
            Refused: this process stops serving clients, or the store does not answer.
        """
        end = self.steady() + self.draw(*WAIT)
        while True:
            self._check_ready()
            frame = self.driver.next(name, self.clock(), handled=handled)
            if frame is not None:
                return Response(frame, media_type=FRAME_TYPE)
            # `has_heard` is False: a request alone does not show that the last frame arrived. Only
            # `handled` shows it, and `next` has it.
            if self.driver.check_in(name, self.clock(), has_heard=False):
                self._wake.set()
            if not self.driver.holds(name):
                return self._later(self._idle)
            left = end - self.steady()
            if left <= 0 or self._turns.get(name) is not turn:
                return self._later(SOON)
            if len(self._turns) > self.most_waiting:
                return self._later(CROWDED)
            turn.waiting = asyncio.get_running_loop().create_future()
            await asyncio.wait({turn.waiting}, timeout=left)

    def _later(self, bounds: tuple[int, int]) -> Response:
        return Response(status_code=204, headers={"retry-after": str(self.draw(*bounds))})


# ---- the application ----


def serving(loop: HttpsLoop) -> Starlette:
    """Return the ASGI application that serves clients while a loop runs.

    A request for another campaign gets a 404.
    """

    async def step(request: Request) -> Response:
        if request.path_params["campaign"] != loop.driver.plan.fingerprint:
            raise Refused(404, "no such campaign")
        return await loop.step(request)

    return _application(step, loop.draw, loop.observer)


def ended(fingerprint: str, draw: Callable[[int, int], int]) -> Starlette:
    """Return the ASGI application that tells clients, by a 410, that their campaign is over.

    A request for another campaign gets a 404.

    Args:
        fingerprint: the fingerprint of the campaign's plan.
        draw: returns a random whole number between two bounds, both included.
    """

    async def step(request: Request) -> Response:
        if request.path_params["campaign"] != fingerprint:
            raise Refused(404, "no such campaign")
        raise Refused(410, "this campaign is over")

    return _application(step, draw, Observer())


def _application(
    step: Callable[[Request], Awaitable[Response]],
    draw: Callable[[int, int], int],
    observer: Observer,
) -> Starlette:
    async def observed(request: Request) -> Response:
        try:
            response = await step(request)
        except Refused as error:
            response = error.response(draw)
        observer.answered(response.status_code, len(response.body))
        return response

    return Starlette(routes=[Route(step_path("{campaign}"), observed, methods=["POST"])])
