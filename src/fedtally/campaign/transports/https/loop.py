"""The server's side of a campaign over HTTPS: it only carries frames, and the driver decides.

`SocketLoop` connects to each agent; here each client sends requests. The status of a response tells
the client what to do:

- 200: the body is the next frame;
- 204: there is no frame yet. After the wait in `retry-after`, send a request without an answer;
- 401: the token is not valid: stop for good;
- 410: the campaign is over: stop for good;
- 404: the server has no such campaign;
- 411, 413: the request has no length, or is longer than any answer of the campaign;
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

# At the end, the time in which clients may still get the frame that says how their session ended. A
# client whose connection broke sends a new request after 30 seconds at the latest.
FAREWELL_SECONDS = 60.0
MOST_WAITING = 2_000  # requests that wait at once; other clients send a new request a little later
# All pairs are bounds, in seconds, between which a wait is drawn at random. So clients that came
# together do not all come back at once. SOON and CROWDED: until a client sends its next request.
SOON, CROWDED = (1, 2), (5, 15)
WAIT = 10, int(WAIT_SECONDS)  # how long a request waits for a frame
IDLE = 15, 45  # as SOON, for a client in no session; shorter if a phase is shorter than a minute


class Names(Protocol):
    """The tokens of the campaign, by which the server knows which client sends a request."""

    def name_of(self, token: str, /) -> str | None:
        """Return the name of the client that has a token; None: the token is not valid."""

    def reload(self) -> None:
        """Read the tokens again; if that fails, keep the old tokens."""


class Observer:
    """The interface of a counter of requests, answers and steps; this class counts nothing."""

    def answered(self, status: int, size: int) -> None:
        """Count a response with a status and a body of `size` bytes."""

    def received(self, client: ClientId, receipt: Receipt, size: int) -> None:
        """Count an answer of `size` bytes from a client, and the driver's verdict on it."""

    def stepped(self, seconds: float) -> None:
        """Count a step of the driver, and the seconds that it took."""


class Standing(Enum):
    """The state of this process towards clients; requests are served only in OPEN."""

    STARTING = "starting"  # the driver has done no step yet
    OPEN = "open"
    LEAVING = "leaving"  # the run has ended: another process serves the campaign from now on


@dataclass(eq=False)
class _Turn:
    """The latest request of a client. Older requests of the client do not wait any more.

    Attributes:
        waiting: the future for which the request waits. It is resolved when there may be a frame,
            or when the client sends a newer request. None: the request has not waited yet.
    """

    waiting: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)


@dataclass
class HttpsLoop:
    """Carry the frames of one campaign between its driver and the clients that send requests.

    Args:
        driver: the driver of the campaign.
        names: the tokens of the campaign.
        phase: the seconds that a phase of a session lasts. A client in no session is told to send
            its next request within one phase.
        clock: returns the time, Unix seconds.
        steady: returns the seconds of a monotonic clock, for the engine's own waits.
        report: called after each step of the driver, and about once a second.
        warn: called with a text about a problem after which the engine goes on.
        draw: returns a random whole number between two bounds, both included.
        observer: counts requests, answers and steps.
        most_waiting: the largest number of requests that may wait at once.
        room: limits the bytes of request bodies that are in memory.

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
        # This engine never gives up, however long no client comes.
        self._pace = Pace(self.driver, self.clock, float("inf"), self.warn, self.steady)
        self._turns: dict[str, _Turn] = {}  # by the client's name
        self._wake = asyncio.Event()
        # A client that was drawn for a session must get its Invite well within the first phase.
        least, most = (max(1, min(each, int(self.phase * each / 60))) for each in IDLE)
        self._idle = least, most

    # ---- what the process asks ----

    async def run(self) -> Ending:
        """Carry frames until the campaign is complete or drained.

        Raises:
            OvertakenError: another process runs the campaign, or it was cancelled.
            OverspentError: the population has too little privacy budget left; no client was
                invited.
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
        """Open no further session; `run` returns when the last one has ended."""
        if not self.drains:
            self._pace.stop()
            self._wake.set()

    @property
    def is_ready(self) -> bool:
        """Whether the driver runs and the store takes writes, for a readiness probe.

        If the store can be read but takes no writes, this is False, but requests are still served:
        the answers of clients wait in memory.
        """
        return self.standing is Standing.OPEN and self._pace.takes_writes

    def ask_store(self) -> None:
        """Let a later step test whether the store takes writes, if no session runs then."""
        self._pace.is_asked = True

    @property
    def drains(self) -> bool:
        """Whether `stop` was called."""
        return self._pace.drains

    @property
    def num_waiting(self) -> int:
        """The number of clients with a request that waits for a frame."""
        return len(self._turns)

    async def _tick(self) -> Ending:
        """Call the driver whenever it is due; return why the campaign ended."""
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
        """Wake all requests that wait: there may be frames, or they are refused from now on."""
        for turn in self._turns.values():
            turn.wake()

    async def _say_farewell(self) -> None:
        """Wait until clients have got the last frame, which says how their session ended.

        After `stop`, do not wait: clients that send a request later get the response 410.
        """
        self._tell()
        end = self.steady() + FAREWELL_SECONDS
        while self.driver.owes_farewells and self.steady() < end and not self.drains:
            await asyncio.sleep(0.05)

    # ---- what a client asks ----

    async def step(self, request: Request) -> Response:
        """Give the answer in a client's request to the driver, and return the response.

        The response has the client's next frame, or says when to send the next request.

        Raises:
            Refused: the request is refused. The answer may have reached the driver already; the
                client may send it again, since the driver counts it once.
        """
        self._check_ready()
        # The token and the length, which are in the head, are checked before the body is read.
        name = self._name(request)
        answer = await self._body(request)
        self._check_ready()  # the state may have changed while the body came
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
        """Note the latest request of a client; an older request that waits gets a 204 at once.

        The connection of the older request may be dead. If the next frame went there, it would be
        lost.
        """
        older, turn = self._turns.get(name), _Turn()
        self._turns[name] = turn
        if older is not None:
            older.wake()
        return turn

    async def _next(self, name: str, turn: _Turn, handled: bytes) -> Response:
        """Return a response with the client's next frame, or a 204 if none comes in time.

        Args:
            name: the name of the client.
            turn: the request; if it is not the client's latest any more, it gets a 204.
            handled: the digest of the last frame that the client handled; empty: it handled none.
        """
        end = self.steady() + self.draw(*WAIT)
        while True:
            self._check_ready()
            frame = self.driver.next(name, self.clock(), handled=handled)
            if frame is not None:
                return Response(frame, media_type=FRAME_TYPE)
            # A request does not show that the last frame arrived. `handled` shows it.
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
    """Return the ASGI application that serves the clients of a campaign that runs."""

    async def step(request: Request) -> Response:
        if request.path_params["campaign"] != loop.driver.plan.fingerprint:
            raise Refused(404, "no such campaign")
        return await loop.step(request)

    return _application(step, loop.draw, loop.observer)


def ended(fingerprint: str, draw: Callable[[int, int], int]) -> Starlette:
    """Return the ASGI application that tells clients, by a 410, that their campaign is over.

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
