"""Campaigns over HTTPS, in one process and by a clock that jumps: nothing is lost on the way."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_world import (
    DEADLINES,
    START,
    STRINGS,
    N,
    Person,
    World,
    held_text,
    open_plan,
    plan_of,
    small_plan,
)

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from https_world import Client, HttpsWorld, run
from starlette.requests import Request

from fedtally.campaign.driver import Deadlines
from fedtally.campaign.transports.https import loop as server
from fedtally.campaign.transports.https import web
from fedtally.campaign.transports.https.join import Heard, Over, Pause, Talk
from fedtally.campaign.transports.https.resource import HANDLED, WAIT_SECONDS
from fedtally.campaign.transports.pace import Ending
from fedtally.errors import OvertakenError
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind
from fedtally.store import StoreError

pytestmark = pytest.mark.usefixtures("no_sync")
ASKED = [(a, t) for a in ("semi-honest", "active") for t in (None, "distributed")]
KINDS = [Kind.INVITE, Kind.ROSTER, Kind.INBOX, Kind.SURVIVORS, Kind.RESULT]


@pytest.mark.promise
@pytest.mark.parametrize(("adversary", "trust"), ASKED)
def test_a_campaign_lands(tmp_path: Path, adversary: str, trust: str | None) -> None:
    world = World(tmp_path, plan_of(adversary, trust))
    cloud = HttpsWorld(world)
    run(cloud.run())
    world.check()
    # a frame a phase, the farewell, and the word that it is over: hardly anybody asks in vain
    phases = 4 if adversary == "semi-honest" else 5
    assert cloud.network.sent[200] == (phases + 1) * N
    assert cloud.network.sent[410] == N and cloud.network.sent[204] <= 3 * N


@pytest.mark.parametrize("trust", [None, "distributed"])
def test_a_campaign_of_strings_that_nobody_listed_lands(tmp_path: Path, trust: str | None) -> None:
    world = World(tmp_path, open_plan(trust=trust), domain=STRINGS, hold=held_text)
    run(HttpsWorld(world).run())
    world.check()


# ---- servers that die ----


@pytest.mark.promise
@pytest.mark.parametrize(("adversary", "trust"), ASKED)
def test_a_server_that_dies_at_any_call_of_its_store_loses_nobody(
    tmp_path: Path, adversary: str, trust: str | None
) -> None:
    """Before and after each call: the next process lands all, and nobody stops asking."""
    plan = small_plan(adversary, trust)
    clients = plan.num_clients
    (tmp_path / "none").mkdir()
    whole = World(tmp_path / "none", plan, clients)
    run(HttpsWorld(whole).run())
    steps = len(whole.log)
    assert steps > 20
    for stop in range(1, steps + 1):
        place = tmp_path / str(stop)
        place.mkdir()
        world = World(place, plan, clients, stops=frozenset({stop}))
        run(HttpsWorld(world).run())
        assert world.processes > 1, stop
        world.check()
        shutil.rmtree(place)


def test_a_server_that_dies_again_and_again_loses_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of("active", "distributed"), stops=frozenset(range(12, 60, 7)))
    run(HttpsWorld(world).run())
    assert world.processes > 4
    world.check()


@pytest.mark.promise
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["drained", "overtaken"])
def test_a_process_that_is_drained_or_overtaken_is_followed_by_another(
    tmp_path: Path, way: str, kind: Kind
) -> None:
    world = World(tmp_path, plan_of(n_min=N - 1), deadlines=DEADLINES)
    cloud = HttpsWorld(world)
    seen: list[bytes] = []

    def on_frame(person: Person, frame: bytes) -> None:
        if wire.parse(frame).kind is kind and not seen:  # type: ignore[union-attr]
            seen.append(frame)
            assert cloud.loop is not None
            if way == "drained":
                cloud.loop.stop()
                cloud.loop.stop()  # the second one changes nothing
            else:
                world.driver = world.start()

    cloud.on_frame = on_frame
    run(cloud.run())
    assert seen and world.processes == (1 if way == "drained" and cloud.starts == 1 else 2)
    world.check()


def test_clients_are_told_to_come_again_while_a_server_is_not_there(tmp_path: Path) -> None:
    """Whoever is told 503 sends the same again; 410 would send all clients away for ever."""
    world = World(tmp_path, plan_of())
    cloud = HttpsWorld(world)

    async def told() -> list[int]:
        loop, client = cloud.start(), Client(cloud, 0)
        found = [await client.post()]  # it has not read the store yet
        running = asyncio.create_task(loop.run())
        await asyncio.sleep(0)
        found.append(await client.post())
        world.error, world.stops = StoreError, frozenset(range(world.steps + 1, 10_000))
        await asyncio.sleep(5)
        found.append(await client.post())
        world.stops = frozenset()
        await asyncio.sleep(5)
        found.append(await client.post())
        later = world.start()
        await asyncio.sleep(5)
        with pytest.raises(OvertakenError):
            await running
        found.append(await client.post())
        world.driver = later
        drained = cloud.start()
        running = asyncio.create_task(drained.run())
        await asyncio.sleep(1)
        drained.stop()
        assert await running is Ending.DRAINED
        found.append(await client.post())
        for one in found:
            assert int(one.headers["retry-after"]) >= 1
            if one.status_code == 503:
                assert one.headers["content-type"] == "application/problem+json"
        assert not drained.is_ready
        return [one.status_code for one in found]

    assert run(told()) == [503, 204, 503, 204, 503, 503]


def test_a_request_that_waits_hears_at_once_that_the_process_goes(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    cloud = HttpsWorld(world)

    async def check() -> None:
        waiting, others = await _one_that_waits(cloud)
        world.error, world.stops = StoreError, frozenset(range(world.steps + 1, 10_000))
        at = cloud.clock()
        told = await asyncio.gather(
            waiting, *(_answer(cloud, one, one.frame) for one in others), return_exceptions=True
        )
        assert {one.status_code for one in told} == {503} and cloud.clock() - at < 1.5

    run(check())


# ---- the way there and back ----


async def _invited(cloud: HttpsWorld) -> list[Client]:
    """Return clients of a session that have got its Invite, and not answered it."""
    asyncio.create_task(cloud.serve()).add_done_callback(lambda task: None)
    await asyncio.sleep(0)
    clients = [Client(cloud, number) for number in range(cloud.world.people)]
    for one in clients:
        await one.post()
    await asyncio.sleep(1)
    for one in clients:
        got = await one.post()
        assert wire.parse(got.content).kind is Kind.INVITE
        cloud.world.note(wire.parse(got.content), one.number)
        one.frame = got.content
    return clients


async def _answer(cloud: HttpsWorld, one: Client, frame: bytes, **more: Any) -> Any:
    person = cloud.world.persons[one.number]
    cloud.clock()
    return await one.post(person.answer(frame, cloud.world.now), **more)


async def _one_that_waits(cloud: HttpsWorld) -> Any:
    """Return the request of a client that answered its Invite, and the clients that did not."""
    first, *others = await _invited(cloud)
    waiting = asyncio.create_task(_answer(cloud, first, first.frame))
    await asyncio.sleep(0.1)
    assert not waiting.done() and cloud.loop.num_waiting == 1
    return waiting, others


def test_a_frame_that_got_lost_is_handed_out_at_once(tmp_path: Path) -> None:
    cloud = HttpsWorld(World(tmp_path, plan_of()))

    async def check() -> None:
        first, *_ = await _invited(cloud)
        invite, named, at = first.frame, first.handled, cloud.clock()
        for handled in (
            b"",
            bytes(32),
            b"short",
            "no digits",
        ):  # the response with the Invite got lost
            first.handled = handled
            again = await first.post()
            assert again.content == invite and cloud.clock() == at
        # what was handled is not handed out at once: the client would answer as fast as it asks
        first.handled = named
        # but when the request has waited, as ten seconds are over by then
        got = await first.post()
        assert got.content == invite and 10 <= cloud.clock() - at <= WAIT_SECONDS

    run(check())


class Losing:
    """Lose the response to one of the requests that get a frame.

    Attributes:
        lost, back: when it was lost, and when its client got a frame again.
    """

    def __init__(self, cloud: HttpsWorld, number: int) -> None:
        self._cloud, self._left, self._who = cloud, number, ""
        self.lost = self.back = 0.0

    def __call__(self, request: Any, response: Any) -> bool:
        if response.status_code != 200:
            return False
        self._left -= 1
        who = request.headers["authorization"]
        if self._left == -1:
            self._who, self.lost = who, self._cloud.clock()
            return True
        if self._who == who and not self.back:
            self.back = self._cloud.clock()
        return False


@pytest.mark.promise
def test_a_response_that_is_lost_at_any_step_costs_one_request_and_no_wait(tmp_path: Path) -> None:
    def cloud_of(name: str) -> HttpsWorld:
        (tmp_path / name).mkdir()
        return HttpsWorld(World(tmp_path / name, small_plan("active", None), 6))

    plain = cloud_of("none")
    run(plain.run())
    frames = plain.network.sent[200]
    assert frames == 36
    for number in range(frames):
        cloud = cloud_of(str(number))
        cloud.network.lose = losing = Losing(cloud, number)
        run(cloud.run())
        cloud.world.check()
        # the client itself waits up to a second before it sends the same again
        assert 0.5 <= losing.back - losing.lost <= 1.01, number
        assert cloud.network.sent[200] == frames + 1, number


def test_of_two_requests_of_a_client_the_older_is_sent_away(tmp_path: Path) -> None:
    """The older one may be on a dead connection, and would take the next frame with it."""
    cloud = HttpsWorld(World(tmp_path, plan_of()))

    async def check() -> None:
        first, *others = await _invited(cloud)
        person, at = cloud.world.persons[0], cloud.clock()
        answer = person.answer(first.frame, cloud.world.now)
        older = asyncio.create_task(first.post(answer))
        await asyncio.sleep(1)
        newer = asyncio.create_task(first.post(answer))
        sent_away = await older
        assert sent_away.status_code == 204 and cloud.clock() - at == pytest.approx(1)
        assert cloud.loop.num_waiting == 1
        asyncio.gather(*(_answer(cloud, one, one.frame) for one in others)).add_done_callback(
            lambda _: None
        )
        got = await newer
        assert wire.parse(got.content).kind is Kind.ROSTER and cloud.clock() - at < 2.5
        assert cloud.loop.num_waiting <= N - 1

    run(check())


def test_only_a_named_farewell_is_heard(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    cloud = HttpsWorld(world)
    farewells: Counter[str] = Counter()

    def lose(request: Any, response: Any) -> bool:
        message = wire.parse(response.content) if response.status_code == 200 else None
        if message is None or message.kind is not Kind.RESULT:
            return False
        farewells[request.headers["authorization"]] += 1
        return farewells[request.headers["authorization"]] < 4

    cloud.network.lose = lose
    run(cloud.run())
    world.check()
    assert set(farewells.values()) == {4}
    assert not world.driver.owes_farewells


def test_clients_that_never_come_back_do_not_keep_the_end_waiting(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    cloud = HttpsWorld(world)
    ended: list[float] = []

    async def answer_until_unmasked() -> None:
        serving = asyncio.create_task(cloud.serve())
        joining = [asyncio.create_task(cloud.join(person)) for person in world.persons]

        def on_frame(person: Person, frame: bytes) -> None:
            if wire.parse(frame).kind is Kind.RESULT:  # type: ignore[union-attr]
                joining[person.number].cancel()

        cloud.on_frame = on_frame
        await asyncio.wait({serving})
        ended.append(cloud.clock())

    run(answer_until_unmasked())
    assert world.driver.owes_farewells
    assert world.landed()[0][0] == N
    assert server.FAREWELL_SECONDS <= ended[0] - START < server.FAREWELL_SECONDS + 90


def test_a_process_that_is_told_to_go_waits_for_no_farewell(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    cloud = HttpsWorld(world)
    ended: list[float] = []

    async def told_to_go_at_the_first_farewell() -> None:
        serving = asyncio.create_task(cloud.serve())
        joining = [asyncio.create_task(cloud.join(person)) for person in world.persons]

        def on_frame(person: Person, frame: bytes) -> None:
            if wire.parse(frame).kind is Kind.RESULT:  # type: ignore[union-attr]
                joining[person.number].cancel()
                cloud.loop.stop()

        cloud.on_frame = on_frame
        await asyncio.wait({serving})
        ended.append(cloud.clock())

    run(told_to_go_at_the_first_farewell())
    assert world.driver.owes_farewells
    assert world.landed()[0][0] == N
    assert ended[0] - START < server.FAREWELL_SECONDS


def test_after_ten_minutes_of_outage_all_are_back_within_a_phase(tmp_path: Path) -> None:
    deadlines = Deadlines(gather=20, phase=60, session=3600, presence=60, bench=120)
    world = World(tmp_path, plan_of("active"), deadlines=deadlines)
    cloud = HttpsWorld(world, away=600)
    inboxes = 0
    back: list[float] = []

    def on_frame(person: Person, frame: bytes) -> None:
        nonlocal inboxes
        if wire.parse(frame).kind is Kind.INBOX:  # type: ignore[union-attr]
            inboxes += 1
            if inboxes == N // 2:  # some have answered, and some have not heard
                world.stops = frozenset(range(world.steps + 1, world.steps + 2))
        if cloud.starts == 2 and len(back) < N:
            back.append(cloud.clock())

    cloud.on_frame = on_frame
    run(cloud.run())
    world.check()
    assert cloud.starts == 2
    died = back[0] - 600
    assert max(back) - died < 600 + 60


# ---- what others send ----


@pytest.fixture
def cloud(tmp_path: Path) -> HttpsWorld:
    return HttpsWorld(World(tmp_path, plan_of()))


def test_what_is_wrong_with_a_request_is_said_before_its_body_is_read(cloud: HttpsWorld) -> None:
    most = cloud.world.plan.secure_sum.upload_bytes
    other = cloud.url.replace(cloud.world.plan.fingerprint, 64 * "0")

    async def status(url: str = cloud.url, body: Any = b"", **headers: Any) -> int:
        async with cloud.http() as http:
            got = await http.post(f"{url}/step", content=body, headers=headers)
        if got.status_code == 401:
            assert got.headers["www-authenticate"] == "Bearer"
        assert got.status_code < 300 or got.json()["status"] == got.status_code
        return int(got.status_code)

    async def never() -> Any:
        raise AssertionError("the body was read")
        yield b""

    async def check() -> None:
        serving = asyncio.create_task(cloud.serve())
        await asyncio.sleep(0)
        token = {"authorization": "Bearer t0"}
        for headers in (
            {},
            {"authorization": "Bearer t99"},  # nobody's, or of another campaign
            {"authorization": "Basic t0"},
            {"authorization": "Bearer"},
            {"authorization": "t0"},
        ):
            assert await status(body=never(), **headers, **{"content-length": "5"}) == 401
        assert await status(other, body=never(), **token, **{"content-length": "5"}) == 404
        assert await status(body=never(), **token) == 411
        for length in ("-1", "x", "1e3", b"\xb2"):
            assert await status(body=never(), **token, **{"content-length": length}) == 411
        for length in (str(most + 1), 40 * "9"):
            assert await status(body=never(), **token, **{"content-length": length}) == 413
        assert await status(body=bytes(most), **token) == 204
        assert await status(body=b"garbage", **token) == 204
        cloud.book.known.pop("t0")  # revoked
        assert await status(body=never(), **token, **{"content-length": "5"}) == 401
        assert cloud.world.driver.refusals.total() == 2
        serving.cancel()

    run(check())


def test_a_body_that_stops_ends_after_half_a_minute(cloud: HttpsWorld) -> None:
    async def check() -> None:
        serving = asyncio.create_task(cloud.serve())
        await asyncio.sleep(0)

        async def stops() -> Any:
            yield b"half"
            await asyncio.sleep(1000)

        at, named = cloud.clock(), {"authorization": "Bearer t0", "content-length": "8"}
        async with cloud.http() as http:
            got = await http.post(f"{cloud.url}/step", content=stops(), headers=named)
        assert got.status_code == 408 and cloud.clock() - at == pytest.approx(30)
        serving.cancel()

    run(check())


def test_bodies_have_room_together(cloud: HttpsWorld) -> None:
    cloud.options["room"] = web.Room(10)

    async def check() -> None:
        serving = asyncio.create_task(cloud.serve())
        await asyncio.sleep(0)

        async def slow() -> Any:
            await asyncio.sleep(5)
            yield b"12345678"

        async def post(number: int) -> Any:
            named = {"authorization": f"Bearer t{number}", "content-length": "8"}
            async with cloud.http() as http:
                return await http.post(f"{cloud.url}/step", content=slow(), headers=named)

        first = asyncio.create_task(post(0))
        await asyncio.sleep(1)
        assert (await post(1)).status_code == 503
        assert (await first).status_code == 204
        assert (await post(1)).status_code == 204  # the room is there again
        serving.cancel()

    run(check())


def test_an_answer_that_comes_while_the_store_goes_away_is_sent_again(cloud: HttpsWorld) -> None:
    """The driver would say that it is late, and the client would take it for heard."""

    async def slow() -> Any:
        world = cloud.world
        world.error, world.stops = StoreError, frozenset(range(world.steps + 1, 10_000))
        await asyncio.sleep(5)
        yield b"12345678"

    async def check() -> None:
        serving = asyncio.create_task(cloud.serve())
        await asyncio.sleep(0)
        named = {"authorization": "Bearer t0", "content-length": "8"}
        async with cloud.http() as http:
            got = await http.post(f"{cloud.url}/step", content=slow(), headers=named)
        assert got.status_code == 503 and not cloud.world.driver.refusals
        serving.cancel()

    run(check())


def test_frames_of_others_and_of_other_times_change_nothing(tmp_path: Path) -> None:
    """Each answer twice, all earlier ones in reverse order, after 20 s, and by other clients."""
    world = World(tmp_path, plan_of("active", "distributed"))
    cloud = HttpsWorld(world)
    sent: dict[str, list[bytes]] = {}
    strays: list[Any] = []

    async def stray(number: int, bodies: list[bytes], seconds: float) -> None:
        await asyncio.sleep(seconds)
        for body in bodies:
            if cloud.network.app is not None:
                await Client(cloud, number).post(body, **{HANDLED: "00"})

    def lose(request: Any, response: Any) -> bool:
        who = request.headers["authorization"].removeprefix("Bearer t")
        if request.content and request.headers[HANDLED] != "00":
            bodies = sent.setdefault(who, [])
            bodies.append(request.content)
            back = bodies[::-1]
            other = (int(who) + 1) % N
            strays.extend(
                asyncio.ensure_future(stray(number, back, seconds))
                for number, seconds in ((int(who), 0), (int(who), 20), (other, 0.5))
            )
        return False

    cloud.network.lose = lose
    run(cloud.run())
    world.check()
    assert sum(map(len, sent.values())) >= 5 * N and len(strays) >= 15 * N
    assert world.driver.refusals


def test_two_machines_with_one_token_are_one_client(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    cloud = HttpsWorld(world)

    async def check() -> None:
        ending, *overs = await asyncio.gather(
            cloud.serve(), *(cloud.join(person) for person in [*world.persons, world.persons[0]])
        )
        assert ending is Ending.COMPLETE and set(overs) == {Over.CAMPAIGN}

    run(check())
    world.check()
    # neither asks as fast as it can: each is sent away for a second at least
    assert cloud.network.sent[204] < 100


def test_a_thief_spoils_its_own_client_alone(tmp_path: Path) -> None:
    """A machine with a client's token that holds another item, and one that sends garbage."""
    world = World(tmp_path, plan_of(n_min=N - 1))
    cloud = HttpsWorld(world)
    impostor = Person(world, 0)

    async def steal() -> None:
        while cloud.network.app is not None:
            await Client(cloud, 1).post(b"garbage")
            await asyncio.sleep(0.2)

    async def check() -> None:
        thief = asyncio.create_task(steal())
        ending, *_ = await asyncio.gather(
            cloud.serve(), *(cloud.join(person) for person in [impostor, *world.persons])
        )
        assert ending is Ending.COMPLETE
        thief.cancel()

    run(check())
    assert world.landed()[0][0] >= N - 1


# ---- how often clients ask ----


class Crowd:
    """A driver all of whose clients are in a session in which nothing happens, or in none."""

    def __init__(self, plan: Any, holds: bool) -> None:
        self.plan, self._holds = plan, holds
        self.is_idle = self.owes_farewells = self.is_gathering = self.is_complete = False
        self.drain = lambda: None
        self.aside: dict[bytes, Any] = {}

    def holds(self, client: Any) -> bool:
        return self._holds

    def next(self, client: Any, now: float, *, handled: bytes) -> None:
        return None

    def check_in(self, client: Any, now: float, *, has_heard: bool) -> bool:
        return self._holds

    def running(self) -> list[Any]:
        return []

    def check_claim(self) -> None: ...

    def tick(self, now: float) -> float:
        return now + 1


def _asked(tmp_path: Path, holds: bool, people: int, seconds: int, **options: Any) -> Counter[int]:
    """Return how often a crowd asks, by the second; each client begins in the first one."""
    world = World(tmp_path, plan_of())
    cloud = HttpsWorld(world, options=options)
    cloud.book = type(cloud.book)(people)
    world.driver = Crowd(world.plan, holds)  # type: ignore[assignment]
    asked: Counter[int] = Counter()
    spread = np.random.default_rng(7)

    async def ask(loop: server.HttpsLoop, number: int) -> None:
        """Ask again and again, as `join` does: without httpx, which is most of the work."""
        talk = Talk(f"t{number}", spread.random, cloud.told.append, cloud.clock())
        await asyncio.sleep(spread.random())
        while True:
            asked[int(asyncio.get_running_loop().time())] += 1
            head = [(name.encode(), text.encode()) for name, text in talk.headers.items()]
            head.append((b"content-length", b"0"))
            got = await loop.step(Request({"type": "http", "headers": head}, _no_body))
            heard = Heard(got.status_code, retry_after=got.headers["retry-after"])
            pause = talk.heard(heard, cloud.clock())
            assert isinstance(pause, Pause)
            await asyncio.sleep(pause.seconds)

    async def check() -> None:
        loop = cloud.start()
        serving = asyncio.create_task(loop.run())
        await asyncio.sleep(0)
        crowd = [asyncio.create_task(ask(loop, number)) for number in range(people)]
        await asyncio.sleep(seconds)
        assert not any(task.done() for task in crowd)
        for task in (serving, *crowd):
            task.cancel()

    run(check())
    return asked


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


@pytest.mark.promise
def test_a_cohort_above_the_limit_of_waiting_clients_asks_seldom(tmp_path: Path) -> None:
    """3,000 clients of a session, of whom 2,000 may wait, come together, as after an outage.

    Later they ask at most 600 times in any second: those whose waits began together spread.
    """
    assert server.MOST_WAITING == 2_000
    asked = _asked(tmp_path, True, 3_000, 60)
    assert asked.pop(0) == 3_000
    assert max(asked.values()) <= 600
    # who waits asks every 17 seconds, and who may not every 11
    assert 150 < sum(asked[second] for second in range(20, 60)) / 40 < 300


def test_above_the_limit_a_client_of_a_session_is_told_to_come_later(cloud: HttpsWorld) -> None:
    cloud.options["most_waiting"] = 1
    cloud.world.driver = Crowd(cloud.world.plan, True)  # type: ignore[assignment]

    async def check() -> None:
        serving = asyncio.create_task(cloud.serve())
        await asyncio.sleep(0)
        first, second = Client(cloud, 0), Client(cloud, 1)
        waiting = asyncio.create_task(first.post())
        await asyncio.sleep(1)
        at = cloud.clock()
        crowded = await second.post()
        assert crowded.status_code == 204 and cloud.clock() == at
        assert 5 <= int(crowded.headers["retry-after"]) <= 15
        assert (await waiting).headers["retry-after"] in ("1", "2")
        assert server.WAIT[0] - 1 <= cloud.clock() - at <= WAIT_SECONDS - 1
        cloud.loop.stop()
        cloud.loop.stop()  # the second one changes nothing
        serving.cancel()

    run(check())


def test_a_server_of_a_campaign_that_is_over_says_so_of_it_alone(cloud: HttpsWorld) -> None:
    async def status(url: str) -> int:
        async with cloud.http() as http:
            return int((await http.post(f"{url}/step")).status_code)

    async def check() -> None:
        fingerprint = cloud.world.plan.fingerprint
        cloud.network.begin(server.ended(fingerprint, web.draw))
        assert await status(cloud.url) == 410
        assert await status(cloud.url.replace(fingerprint, 64 * "0")) == 404

    run(check())


def test_clients_in_no_session_ask_every_half_minute(tmp_path: Path) -> None:
    asked = _asked(tmp_path, False, 100, 300)
    # a phase of the world has 30 seconds: they ask every 7 to 22 seconds
    assert 100 * 300 / 24 < asked.total() < 100 * 300 / 12


def test_a_client_that_was_drawn_hears_of_it_within_the_phase() -> None:
    for phase, bounds in ((60, (15, 45)), (600, (15, 45)), (20, (5, 15)), (1, (1, 1))):
        driver = Crowd(plan_of(), True)
        loop = server.HttpsLoop(driver, None, phase)  # type: ignore[arg-type]
        assert loop._idle == bounds


def test_draws_are_within_their_bounds() -> None:
    assert {web.draw(3, 5) for _ in range(200)} == {3, 4, 5}
