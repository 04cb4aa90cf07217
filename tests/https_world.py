"""A campaign over HTTPS in one process: the real server and clients, a network that breaks, and a
clock that jumps to the next thing that is due.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import numpy as np
from campaign_world import START, Crash, Person, World

from fedtally.campaign.transports.https.join import Over, join
from fedtally.campaign.transports.https.loop import HttpsLoop, ended, serving
from fedtally.campaign.transports.https.resource import FRAME_TYPE, HANDLED, digest, step_path
from fedtally.campaign.transports.pace import Ending
from fedtally.errors import OvertakenError
from fedtally.secagg import wire

_T = TypeVar("_T")
AWAY_SECONDS = 4.0  # between the death of a process and the start of the next one


class _Jumping(selectors.SelectSelector):
    """Wait for nothing: what would take time moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        assert found or timeout is not None, "nothing will ever happen"
        if not found:
            self.now += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes at once."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(running: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in no time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(running)


def rolls(seed: int) -> Callable[[int, int], int]:
    """Return what draws whole numbers between two bounds, both included."""
    drawn = np.random.default_rng(seed)
    return lambda least, most: int(drawn.integers(least, most, endpoint=True))


class Book:
    """Tokens that are the names of their clients, after a letter."""

    def __init__(self, people: int) -> None:
        self.known = {f"t{number}": number for number in range(people)}

    def name_of(self, secret: str) -> Any:
        return self.known.get(secret)

    def reload(self) -> None:
        self.known = {}


class Network(httpx.AsyncBaseTransport):
    """What carries requests to the process that runs, if one does.

    Attributes:
        lose: whether the response to a request gets lost; it was answered.
        sent: the number of requests, by the status of the response; 0: none came.
    """

    def __init__(self) -> None:
        self.app: Any = None
        self.died: asyncio.Future[None] | None = None
        self.lose: Callable[[httpx.Request, httpx.Response], bool] = lambda request, response: False
        self.sent: Counter[int] = Counter()

    def begin(self, app: Any) -> None:
        self.app, self.died = app, asyncio.get_running_loop().create_future()

    def die(self) -> None:
        self.app = None
        if self.died is not None and not self.died.done():
            self.died.set_result(None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.app is None or self.died is None:
            self.sent[0] += 1
            if sum(self.sent.values()) % 2:
                return httpx.Response(502, stream=httpx.ByteStream(b"nginx"))
            raise httpx.ConnectError("nobody listens")
        answering = asyncio.ensure_future(
            httpx.ASGITransport(self.app).handle_async_request(request)
        )
        await asyncio.wait({answering, self.died}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            answering.cancel()
            self.sent[0] += 1
            raise httpx.ReadError("the process died")
        response = answering.result()
        await response.aread()
        self.sent[response.status_code] += 1
        if self.lose(request, response):
            raise httpx.ReadError("the response got lost")
        body = httpx.ByteStream(response.content)
        return httpx.Response(response.status_code, headers=response.headers, stream=body)


@dataclass
class HttpsWorld:
    """A campaign of `campaign_world` whose frames go over HTTPS.

    Args:
        world: the campaign.
        answer: returns what a person answers to a frame.
    """

    world: World
    answer: Callable[[Person, bytes, int], bytes] = lambda person, frame, now: (
        person.answer(frame, now) or b""
    )
    options: dict[str, Any] = field(default_factory=dict)
    away: float = AWAY_SECONDS

    def __post_init__(self) -> None:
        self.network = Network()
        self.book = Book(self.world.people)
        self.told: list[str] = []
        self.warned: list[str] = []
        self.starts = 0
        self.loop: HttpsLoop | None = None
        self.on_frame: Callable[[Person, bytes], None] = lambda person, frame: None

    @property
    def url(self) -> str:
        return "https://server" + step_path(self.world.plan.fingerprint).removesuffix("/step")

    def clock(self) -> float:
        now = START + asyncio.get_running_loop().time()
        self.world.now = int(now)
        return now

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self.network)

    def start(self) -> HttpsLoop:
        """Return the loop of a new process with the driver of the world."""
        self.starts += 1
        events = asyncio.get_running_loop()
        self.loop = HttpsLoop(
            self.world.driver,
            self.book,
            self.world.deadlines.phase,
            **{
                "clock": self.clock,
                "steady": events.time,
                "warn": self.warned.append,
                "draw": rolls(self.starts),
            }
            | self.options,
        )
        self.network.begin(serving(self.loop))
        return self.loop

    async def serve(self) -> Ending:
        """Serve until the campaign is over; a process that ends is followed by another one."""
        while True:
            driver = self.world.driver
            try:
                ending = await self.start().run()
            except OvertakenError:
                assert self.world.driver is not driver  # that of the process that took over
                continue
            except Crash:
                ending = None
            if ending is not Ending.COMPLETE:
                self.network.die()
                await asyncio.sleep(self.away)
                self.clock()
                self.world.driver = self.world.start()
                continue
            self.network.begin(ended(self.world.plan.fingerprint, rolls(0)))
            return ending

    async def join(self, person: Person, **changed: Any) -> Over:
        """Let a person take part."""
        rolls = np.random.default_rng(person.number)

        async def answer(frame: bytes) -> bytes:
            message = wire.parse(frame)
            self.on_frame(person, frame)
            if message is not None:
                self.world.note(message, person.number)
            self.clock()
            return self.answer(person, frame, self.world.now)

        async with self.http() as http:
            return await join(
                http,
                self.url,
                f"t{person.number}",
                **{
                    "answer": answer,
                    "clock": self.clock,
                    "sleep": asyncio.sleep,
                    "random": rolls.random,
                    "tell": self.told.append,
                }
                | changed,
            )

    async def run(self) -> None:
        """Run the campaign; all people must hear that it is over."""
        async with asyncio.timeout(100_000):
            ending, *overs = await asyncio.gather(
                self.serve(), *(self.join(person) for person in self.world.persons)
            )
        assert ending is Ending.COMPLETE and set(overs) == {Over.CAMPAIGN}


@dataclass
class Client:
    """A client by hand, which names what it handled."""

    cloud: HttpsWorld
    number: int
    handled: bytes | str = b""  # as text: of another client, which says something else
    frame: bytes = b""

    async def post(self, body: bytes = b"", **headers: str) -> httpx.Response:
        """Send a request, and take the frame of its response as handled."""
        handled = self.handled if isinstance(self.handled, str) else self.handled.hex()
        named = {"authorization": f"Bearer t{self.number}", HANDLED: handled} | headers
        async with self.cloud.http() as http:
            got = await http.post(f"{self.cloud.url}/step", content=body, headers=named)
        if got.status_code == 200:
            assert got.headers["content-type"] == FRAME_TYPE
            self.handled = digest(got.content)
        return got
