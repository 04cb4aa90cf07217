"""The server's side of a campaign over HTTPS: it hands frames over, and the driver decides.

Where `SocketLoop` asks each agent, here each client asks. What a client is told by a status:

- 200: the next frame; 204: nothing yet, ask again with nothing;
- 401, 410: the client ends. 410 is said only once the campaign is over;
- 404: another campaign; 411, 413: no length, or longer than any answer;
- 408, 429, 503: send the same again. So does a client after any other 5xx.
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

# At the end, the time in which clients may still fetch how their session ended. A client whose
# connection broke asks again after 30 seconds at the latest.
FAREWELL_SECONDS = 60.0
MOST_WAITING = 2_000  # clients that wait at once; the others ask again a little later
# Seconds until a client asks again, drawn between two bounds: clients that start together spread.
SOON, CROWDED = (1, 2), (5, 15)
# Seconds that a request waits: else clients that came together would all come back in one second.
WAIT = 10, int(WAIT_SECONDS)
IDLE = 15, 45  # of a client in no session, where a phase lasts a minute or more


class Names(Protocol):
    """Whose token it is."""

    def name_of(self, token: str, /) -> str | None:
        """Return the client's name that a token stands for; None: the token does not count."""

    def reload(self) -> None:
        """Read the tokens again; those of before stay where the new ones cannot be read."""


class Observer:
    """Whoever counts what comes and goes; this one counts nothing."""

    def answered(self, status: int, size: int) -> None:
        """Note a response, and the bytes of its body."""

    def received(self, client: ClientId, receipt: Receipt, size: int) -> None:
        """Note what the driver said of a client's answer, and its bytes."""

    def stepped(self, seconds: float) -> None:
        """Note how long a step of the driver took."""


class Standing(Enum):
    """Whether the server takes requests now."""

    STARTING = "starting"  # the store was not read yet
    OPEN = "open"
    LEAVING = "leaving"  # drained or overtaken: another process goes on


@dataclass(eq=False)
class _Turn:
    """The latest request of a client: it alone may wait.

    Attributes:
        waiting: resolved by news, or by a newer request.
    """

    waiting: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)


@dataclass
class HttpsLoop:
    """Carry the frames of one campaign between its driver and the clients that ask for them.

    Args:
        driver: the campaign's driver.
        names: says which client a token stands for.
        phase: the seconds of a phase. Clients in no session ask at least once in it.
        clock: returns the time, Unix seconds.
        steady: returns seconds that nobody sets, for what the engine itself waits.
        report: called after each step of the driver, and about once a second.
        warn: called with a problem that the engine goes on after, in words.
        draw: returns a whole number between two bounds, both included, at random.
        observer: counts what comes and goes.
        most_waiting: the number of clients that may wait at once.
        room: for bodies.

    Attributes:
        standing: whether requests are taken.
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
        # A service waits for clients for as long as it takes.
        self._pace = Pace(self.driver, self.clock, float("inf"), self.warn, self.steady)
        self._turns: dict[str, _Turn] = {}
        self._wake = asyncio.Event()
        # A client that was drawn must hear of it well within the first phase.
        least, most = (max(1, min(each, int(self.phase * each / 60))) for each in IDLE)
        self._idle = least, most

    # ---- what the process asks ----

    async def run(self) -> Ending:
        """Carry frames until the campaign is complete or drained.

        Raises:
            OvertakenError: another process runs the campaign, or it was cancelled.
            OverspentError: the population has too little left; nobody was invited.
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
        """Whether the store takes writes, and nobody has told the process to go.

        Requests are taken also while the store only answers: what clients send waits in memory.
        Whoever asks here makes an idle store write, a little later.
        """
        self._pace.is_asked = True
        return self.standing is Standing.OPEN and self._pace.takes_writes

    @property
    def drains(self) -> bool:
        """Whether the process was told to go."""
        return self._pace.drains

    @property
    def num_waiting(self) -> int:
        """The number of clients whose request waits for a frame."""
        return len(self._turns)

    async def _tick(self) -> Ending:
        """Call the driver when it is due; return when there is nothing left to do."""
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
        """Wake all requests that wait: there is a frame for them, or no answer at all."""
        for turn in self._turns.values():
            turn.wake()

    async def _say_farewell(self) -> None:
        """Let clients fetch the last frame, which says how their session ended.

        One that is told to go does not wait: what is asked later is answered by 410.
        """
        self._tell()
        end = self.steady() + FAREWELL_SECONDS
        while self.driver.owes_farewells and self.steady() < end and not self.drains:
            await asyncio.sleep(0.05)

    # ---- what a client asks ----

    async def step(self, request: Request) -> Response:
        """Take a client's answer, and return its next frame, or when to ask again.

        Raises:
            Refused: the request is refused. What it brought may have counted: it can be repeated.
        """
        self._check_ready()
        # All that the head tells is checked before the first byte of the body is read.
        name = self._name(request)
        answer = await self._body(request)
        self._check_ready()  # it may have changed while the body came
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
        """Begin the latest request of a client, and send an older one away.

        The older one may be on a connection that is dead, and would take the next frame with it.
        """
        older, turn = self._turns.get(name), _Turn()
        self._turns[name] = turn
        if older is not None:
            older.wake()
        return turn

    async def _next(self, name: str, turn: _Turn, handled: bytes) -> Response:
        """Return the client's next frame as soon as there is one, or when to ask again."""
        end = self.steady() + self.draw(*WAIT)
        while True:
            self._check_ready()
            frame = self.driver.next(name, self.clock(), handled=handled)
            if frame is not None:
                return Response(frame, media_type=FRAME_TYPE)
            # What the client has heard, it names: no request says it of a frame that got lost.
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
    """Return the application of a campaign that runs."""

    async def step(request: Request) -> Response:
        if request.path_params["campaign"] != loop.driver.plan.fingerprint:
            raise Refused(404, "no such campaign")
        return await loop.step(request)

    return _application(step, loop.draw, loop.observer)


def ended(fingerprint: str, draw: Callable[[int, int], int]) -> Starlette:
    """Return the application of a campaign that is over: it says so, and nothing else."""

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
