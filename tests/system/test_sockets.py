"""The engine of Unix sockets: it carries frames, whatever agents do at the other end."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_world import DEADLINES, N, World, plan_of
from socket_agents import (
    Handler,
    Person,
    endless,
    garbled,
    hangs_up,
    listening,
    listening_in_a_thread,
    silent,
)

from fedtally.base.encoding import Encoding
from fedtally.campaign.driver import Deadlines
from fedtally.campaign.transports.event_loop import set_within
from fedtally.campaign.transports.pace import LONGEST_PAUSE, Ending, Pace
from fedtally.campaign.transports.sockets import SocketLoop
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind
from fedtally.store import StoreError

QUICK = Deadlines(gather=2, phase=4, session=60, presence=30, bench=60)


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaign_world.START", int(time.time()))


@pytest.fixture
def sockets(tmp_path: Path) -> Path:
    folder = tmp_path / "sockets"
    folder.mkdir()
    return folder


def engine(world: World, sockets: Path, **options: Any) -> SocketLoop:
    settings: dict[str, Any] = {"clock": time.time, "patience": 4.0, "wait": 6.0} | options
    return SocketLoop(world.driver, sockets, **settings)


def honest(persons: list[Person]) -> dict[int, Handler]:
    return {person.number: person.handle for person in persons}


def people(world: World, number: int) -> list[Person]:
    return [Person(world.plan, i) for i in range(number)]


def carry(world: World, sockets: Path, persons: list[Person], **options: Any) -> Ending:
    """Run a campaign with these clients."""

    async def run() -> Ending:
        async with listening(sockets, honest(persons)):
            return await engine(world, sockets, **options).run()

    return asyncio.run(run())


def test_the_sums_are_those_of_what_the_agents_hold(tmp_path: Path, sockets: Path) -> None:
    world = World(tmp_path, plan_of(rounds=2), people=2 * N, deadlines=QUICK)
    persons = people(world, 2 * N)
    assert carry(world, sockets, persons) is Ending.COMPLETE
    sums = world.landed()
    assert {round: clients for round, (clients, _) in sums.items()} == {0: N, 1: N}
    rounds = {one.session: one.round for one in world.campaigns().status(world.plan).ended}
    for round, (_, total) in sums.items():
        sent = [v for one in persons for name, v in one.sent.items() if rounds[name] == round]
        assert (total == np.sum(sent, axis=0)).all()


def test_a_histogram_holds_the_counts_of_the_items(tmp_path: Path, sockets: Path) -> None:
    world = World(tmp_path, plan_of(encoding=Encoding.HISTOGRAM), people=N, deadlines=QUICK)
    assert carry(world, sockets, people(world, N)) is Ending.COMPLETE
    [(clients, total)] = world.landed().values()
    # person i holds the item i + 1, whose counter is the i-th
    assert clients == N and total.tolist() == [1] * N + [0] * (world.plan.width - N)


def test_no_agent_stops_the_others(tmp_path: Path, sockets: Path) -> None:
    # A session bears one dropout, and each of these campaigns has one strange agent.
    strange = [silent, endless, garbled, hangs_up]

    async def run(number: int, handler: Handler) -> World:
        folder, place = tmp_path / str(number), sockets / str(number)
        folder.mkdir()
        place.mkdir()
        world = World(folder, plan_of(n_min=N - 1), people=N, deadlines=QUICK)
        async with listening(place, honest(people(world, N)) | {3: handler}):
            assert await engine(world, place).run() is Ending.COMPLETE, handler
        return world

    async def all_of_them() -> list[World]:
        return await asyncio.gather(*(run(*one) for one in enumerate(strange)))

    for world, handler in zip(asyncio.run(all_of_them()), strange, strict=True):
        assert world.landed()[0][0] == N - 1, handler


def test_sockets_that_come_and_go_leave_nothing_behind(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtally.campaign.transports.sockets.LOOK_SECONDS", 0.02)
    world = World(tmp_path, plan_of(), deadlines=QUICK)
    tried = engine(world, sockets)
    seen = 0

    async def run() -> None:
        nonlocal seen
        looking = asyncio.create_task(tried._look())
        for number in range(50):
            place = sockets / f"p{number}.sock"
            place.touch()
            await asyncio.sleep(0.03)
            seen = max(seen, len(tried._agents))
            place.unlink()
        await asyncio.sleep(0.2)
        looking.cancel()

    asyncio.run(run())
    assert 0 < seen < 25
    assert not tried._agents


def test_an_agent_that_comes_late_takes_part(tmp_path: Path, sockets: Path) -> None:
    world = World(tmp_path, plan_of(), people=N, deadlines=QUICK)
    persons = people(world, N)

    async def run() -> Ending:
        last = sockets / f"p{N - 1}.sock"
        async with listening(sockets, honest(persons[:-1])):
            running = asyncio.create_task(engine(world, sockets, wait=20).run())
            await asyncio.sleep(0.5)
            last.touch()  # a file that is no socket yet
            await asyncio.sleep(2.5)
            last.unlink()
            async with listening(sockets, honest(persons[-1:])):
                return await running

    assert asyncio.run(run()) is Ending.COMPLETE
    assert world.landed()[0][0] == N


def test_too_few_agents_end_the_run_and_nobody_is_asked(tmp_path: Path, sockets: Path) -> None:
    world = World(tmp_path, plan_of(), people=N - 1, deadlines=QUICK)
    persons = people(world, N - 1)
    assert carry(world, sockets, persons, wait=2.0) is Ending.STALLED
    assert not any(person.sent for person in persons)
    assert not world.landed()


def test_clients_that_wait_for_a_full_session_do_not_wait_in_vain(
    tmp_path: Path, sockets: Path
) -> None:
    world = World(tmp_path, plan_of(n_min=N - 1), people=N - 1, deadlines=QUICK)
    waits = QUICK.gather - 1.0
    assert carry(world, sockets, people(world, N - 1), wait=waits) is Ending.COMPLETE
    assert world.landed()[0][0] == N - 1


def test_an_error_of_the_store_does_not_end_a_run(tmp_path: Path, sockets: Path) -> None:
    world = World(tmp_path, plan_of(), people=N, deadlines=QUICK)
    world.error = StoreError

    def fails(what: str) -> None:
        # Once, after the Invites: the session is out of memory for longer than the run would wait.
        if what == "before save" and world.log.count(what) == 2:
            world.stops = frozenset([world.steps])

    world.on_step = fails
    assert carry(world, sockets, people(world, N), wait=3.0) is Ending.COMPLETE
    assert world.stops
    assert world.landed()[0][0] == N


def test_an_error_of_the_store_at_a_check_in_does_not_lose_the_agent(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, plan_of(), people=N, deadlines=QUICK)
    checks_in, failed = world.driver.check_in, list[object]()

    def fails_once(client: int | str, now: float) -> bool:
        # With a stopping rule, a check-in may read the sums from the store.
        if not failed:
            failed.append(client)
            raise StoreError("the store is away")
        return checks_in(client, now)

    monkeypatch.setattr(world.driver, "check_in", fails_once)
    assert carry(world, sockets, people(world, N)) is Ending.COMPLETE
    assert failed and world.landed()[0][0] == N


def test_too_many_open_files_do_not_end_the_search_for_agents(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, plan_of(), people=N, deadlines=QUICK)
    glob, calls = Path.glob, []

    def fails(self: Path, pattern: str) -> Iterator[Path]:
        calls.append(pattern)
        if len(calls) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", fails)
    assert carry(world, sockets, people(world, N)) is Ending.COMPLETE


def test_agents_beyond_the_open_files_wait_and_the_operator_is_told_once(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtally.campaign.transports.sockets.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("fedtally.campaign.transports.sockets._most_connections", lambda: 2)
    world = World(tmp_path, plan_of(), people=N, deadlines=QUICK)
    present, said = list[int](), list[str]()

    async def run() -> Ending:
        loop = engine(world, sockets, wait=1.0, warn=said.append)
        loop.report = lambda: present.append(len(loop.present))
        async with listening(sockets, honest(people(world, N))):
            return await loop.run()

    assert asyncio.run(run()) is Ending.STALLED
    assert max(present) == 2
    assert ["2 agents are connected" in line for line in said] == [True]


def test_agents_that_hang_up_or_are_silent_are_reached_anew(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs up while nothing is asked, and one that owes an answer for too long."""
    monkeypatch.setattr("fedtally.campaign.transports.sockets.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("fedtally.campaign.transports.sockets.POLL_SECONDS", 0.05)
    connections = Counter[str]()

    def counted(name: str, handler: Handler) -> Handler:
        async def handle(*pipe: Any) -> None:
            connections[name] += 1
            await handler(*pipe)

        return handle

    async def run(number: int, strange: dict[int, Handler], **options: Any) -> None:
        folder, place = tmp_path / str(number), sockets / str(number)
        folder.mkdir()
        place.mkdir()
        world = World(folder, plan_of(), people=N, deadlines=QUICK)
        async with listening(place, strange):
            assert await engine(world, place, wait=1.0, **options).run() is Ending.STALLED

    async def both() -> None:
        await asyncio.gather(
            run(0, {0: counted("gone", lambda *_: asyncio.sleep(0.1))}),
            run(1, {i: counted("silent", silent) for i in range(N)}, patience=0.2),
        )

    asyncio.run(both())
    assert connections["gone"] > 2
    assert connections["silent"] > N


def test_an_agent_that_this_user_may_not_reach_is_named_once(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the run would say only that nobody is connected."""
    world, said = World(tmp_path, plan_of()), []
    for number in range(2):
        (sockets / f"p{number}.sock").touch()

    async def forbidden(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(asyncio, "open_unix_connection", forbidden)
    assert asyncio.run(engine(world, sockets, wait=0.1, warn=said.append).run()) is Ending.STALLED
    assert [line.partition(" (")[0] for line in said] == [
        f"cannot reach the agent at {sockets}/p0.sock"
    ]


class SetClock:
    """A wall clock that somebody sets by so many seconds."""

    def __init__(self) -> None:
        self.by = 0.0

    def __call__(self) -> float:
        return time.time() + self.by


@pytest.mark.parametrize("by", [-3600.0, 3600.0])
def test_a_run_waits_as_long_as_it_should_whoever_sets_the_clock(
    tmp_path: Path, sockets: Path, by: float
) -> None:
    world = World(tmp_path, plan_of(), people=N - 1, deadlines=QUICK)
    clock, began = SetClock(), time.monotonic()

    async def run() -> Ending:
        async with listening(sockets, honest(people(world, N - 1))):
            running = asyncio.create_task(engine(world, sockets, clock=clock, wait=2.0).run())
            await asyncio.sleep(0.5)
            clock.by = by
            return await asyncio.wait_for(running, 20)

    assert asyncio.run(run()) is Ending.STALLED
    assert time.monotonic() - began > 2.0


def test_a_run_does_not_count_the_time_in_which_it_was_suspended(tmp_path: Path) -> None:
    """Nobody could come meanwhile."""
    world = World(tmp_path, plan_of(), people=N - 1)
    steady = [0.0]
    pace = Pace(world.driver, lambda: float(world.now), wait=10.0, steady=lambda: steady[0])
    endings = []
    for seconds in (0.0, 1.0, 1.0, 3600.0, *[1.0] * 8):
        steady[0] += seconds
        endings.append(pace.step())
    assert endings == [None] * 11 + [Ending.STALLED]


def test_a_run_goes_on_past_a_session_that_cannot_be_restored(tmp_path: Path) -> None:
    """It says which session that is and what to do, once, and waits for the end of its time."""
    world, said = World(tmp_path, plan_of()), list[str]()
    for person in world.persons:
        world.driver.check_in(person.number, world.now)
    world.driver.tick(world.now)
    store = world.claim()
    [saved] = store.sessions(world.plan)
    store.save(world.plan, replace(saved, checkpoint=b"damaged", version=2), ())
    world.driver = world.start()
    pace = Pace(world.driver, lambda: float(world.now), wait=10.0, warn=said.append)
    while world.now <= saved.not_after:
        assert pace.step() is None
        world.now += 1
    [warning] = said
    assert f"round 0, session {saved.session.hex()[:8]}: it cannot be restored" in warning
    assert "its digest is another one" in warning and "check the disk" in warning
    for _ in range(12):
        ending = pace.step()
        world.now += 1
    assert world.driver.rejected == [saved.session] and len(said) == 1
    assert ending is Ending.STALLED  # nobody is there for another session


def test_a_session_that_is_set_aside_is_told_although_its_clients_were_silent(
    tmp_path: Path,
) -> None:
    world, said = World(tmp_path, plan_of()), list[str]()
    pace = Pace(world.driver, lambda: float(world.now), wait=1000.0, warn=said.append)
    for person in world.persons:
        world.driver.check_in(person.number, world.now)
    while not said:  # nobody answers the Invite
        assert pace.step() is None
        world.now += 1
    assert "did not answer" in said[0]
    store = world.claim()
    [saved] = store.sessions(world.plan)
    store.save(world.plan, replace(saved, checkpoint=b"damaged", version=2), ())
    pace.driver = world.driver = world.start()
    assert pace.step() is None
    assert len(said) == 2 and "it cannot be restored" in said[1]


def test_a_store_that_failed_is_asked_whether_it_takes_writes_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that only read have no error meanwhile."""
    world = World(tmp_path, plan_of(), people=0)
    steady, said, asked = [0.0], list[str](), list[float]()
    pace = Pace(world.driver, lambda: float(world.now), 1000.0, said.append, lambda: steady[0])

    def fail(*_: object) -> None:
        raise StoreError("disk full")

    def probed() -> None:
        asked.append(steady[0])
        if len(asked) < 3:
            steady[0] += 10.0 * (len(asked) == 2)  # as a lock that is waited for
            fail()

    monkeypatch.setattr(world.driver, "check_writes", probed)
    with monkeypatch.context() as broken:
        broken.setattr(world.driver, "tick", fail)
        pace.step()
    assert pace.is_broken and not pace.takes_writes
    while not pace.takes_writes and steady[0] < 100:
        steady[0] += 1.0
        pace.step()
        assert not pace.is_broken
    assert asked == [1.0, 4.0, 34.0]  # three seconds later, then twice as long as it took
    assert said == [
        "the store does not answer, and is asked again: disk full",
        "the store answers again, and takes writes",
    ]


def test_an_idle_store_is_asked_for_room_once_a_minute_and_only_where_somebody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a session nothing is written, so that a full disk would not show."""
    world = World(tmp_path, plan_of(), people=0)
    steady, said, asked, is_full = [0.0], list[str](), list[float](), [False]
    pace = Pace(world.driver, lambda: float(world.now), 9000.0, said.append, lambda: steady[0])
    copy = (tmp_path / "campaign.db").read_bytes()

    def probed(*given: object) -> None:
        asked.append(steady[0])
        if is_full[0]:
            raise StoreError("disk full")

    monkeypatch.setattr("fedtally.store.campaigns.check_room", probed)

    def run(seconds: int, asks: bool) -> None:
        for _ in range(seconds):
            steady[0] += 1.0
            pace.is_asked |= asks
            pace.step()
            assert not pace.is_broken  # clients are served

    run(100, asks=False)
    assert asked == []
    run(125, asks=True)
    assert asked == [101.0, 161.0, 221.0] and pace.takes_writes
    # asking makes no copy an old one
    assert (tmp_path / "campaign.db").read_bytes() == copy
    is_full[0] = True
    run(60, asks=True)
    assert not pace.takes_writes and asked[3:5] == [281.0, 284.0]
    is_full[0] = False
    run(3, asks=True)
    assert pace.takes_writes
    assert said == [
        "the store does not answer, and is asked again: disk full",
        "the store answers again, and takes writes",
    ]


def test_a_store_that_fails_soon_after_it_was_well_is_asked_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, plan_of(), people=0)
    steady = [0.0]
    pace = Pace(world.driver, lambda: float(world.now), 9000.0, steady=lambda: steady[0])
    pace.is_asked = True
    pace.step()  # the next question to a store that is well is a minute away

    def fail(*_: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(world.driver, "tick", fail)
        pace.step()
    assert not pace.takes_writes
    steady[0] += 1.0
    pace.step()
    assert pace.takes_writes


def test_a_run_without_sessions_sees_that_its_campaign_is_cancelled(tmp_path: Path) -> None:
    """It writes nothing meanwhile, and no client comes whose session it would have to write."""
    world = World(tmp_path, plan_of(), people=0)
    steady = [0.0]
    pace = Pace(world.driver, lambda: float(world.now), wait=1000.0, steady=lambda: steady[0])
    assert pace.step() is None
    world.campaigns().give_up(world.plan, mark=tmp_path / "mark")
    steady[0] += 1.0
    with pytest.raises(OvertakenError):
        pace.step()
    assert world.driver.is_overtaken


def test_a_run_whose_invited_clients_do_not_answer_ends_and_says_how_many(
    tmp_path: Path, sockets: Path
) -> None:
    """They are there, and drop the Invite of a plan that nobody accepted."""
    lasting = Deadlines(gather=2, phase=60, session=300, presence=30, bench=60)
    world = World(tmp_path, plan_of(), people=N, deadlines=lasting)
    persons, said = people(world, N), list[str]()
    for person in persons:
        person.answer = lambda frame: None  # type: ignore[method-assign]
    began = time.monotonic()
    assert carry(world, sockets, persons, wait=2.0, warn=said.append) is Ending.STALLED
    assert time.monotonic() - began < 20  # neither one phase nor four
    assert [f"{N} of {N} invited clients did not answer" in line for line in said] == [True]
    assert "fedtally agent check" in said[0] and world.plan.fingerprint[:16] in said[0]
    assert world.driver.invited == world.driver.unanswered == N
    # no session is left open, so that another run begins at once
    assert world.driver.is_idle and not world.campaigns().status(world.plan).open


def test_an_operator_is_told_within_a_phase_and_once_a_session_who_did_not_answer(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, plan_of(n_min=N - 1), people=N)
    world.absent = lambda number, kind: number == 0
    said: list[tuple[int, str]] = []
    pace = Pace(
        world.driver,
        lambda: float(world.now),
        wait=1000.0,
        warn=lambda line: said.append((world.now, line)),
    )
    began = ending = None
    while ending is None:
        for person in world.persons:
            world.hand(person)
        ending = pace.step()
        began = world.now if began is None and world.driver.running() else began
        world.now += 1
    assert began is not None and ending is Ending.COMPLETE
    [(at, line)] = said  # in a later phase a client that is away is a dropout, and no news
    assert f"1 of {N} invited clients did not answer" in line
    assert at - began <= DEADLINES.phase
    assert (world.driver.invited, world.driver.unanswered) == (N, 1)


@pytest.mark.parametrize("is_silent", [True, False])
def test_silent_sessions_do_not_prolong_a_run_and_others_do(
    tmp_path: Path, is_silent: bool
) -> None:
    """Each session of silent clients would otherwise begin the time anew."""
    world = World(tmp_path, plan_of(rounds=2), people=3 * N)
    world.absent = lambda number, kind: is_silent or number == 0
    pace = Pace(world.driver, lambda: float(world.now), wait=200.0)
    ending, began = None, world.now
    while ending is None and world.now < began + 3600:
        for person in world.persons:
            world.hand(person)
        ending = pace.step()
        world.now += 1
    if is_silent:
        assert ending is Ending.STALLED and world.now - began < 250 and not world.landed()
    else:
        assert ending is Ending.COMPLETE and len(world.landed()) == 2


def test_a_store_that_does_not_answer_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, plan_of(), people=0)
    said: list[str] = []
    steady = [0.0]
    pace = Pace(world.driver, lambda: 0.0, 1000.0, said.append, lambda: steady[0])
    tick = world.driver.tick

    def fails(_: float) -> float:
        raise StoreError("the disk is full")

    for broken, number in ((True, 1), (True, 1), (False, 2), (False, 2), (True, 3)):
        monkeypatch.setattr(world.driver, "tick", fails if broken else tick)
        steady[0] += 1.0
        assert pace.step() is None
        assert len(said) == number


def test_answers_that_came_while_the_process_was_suspended_are_read(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All waits for agents are over when it wakes, and the phase is too short to ask them anew."""
    patience = 2.0
    quick = Deadlines(gather=2, phase=2, session=60, presence=30, bench=60)
    # A session that lacks a client in this phase could not go on.
    world = World(tmp_path, plan_of(), people=N, deadlines=quick)
    persons, connections, asked = people(world, N), Counter[int](), Counter[Kind]()
    handle, answer, is_suspended = Person.handle, Person.answer, False

    async def counted(self: Person, *pipe: Any) -> None:
        connections[self.number] += 1
        await handle(self, *pipe)

    def suspending(self: Person, frame: bytes) -> bytes | None:
        nonlocal is_suspended
        message = wire.parse(frame)
        assert message is not None
        asked[message.kind] += 1
        if message.kind is Kind.INBOX and not is_suspended:
            is_suspended = True
            # The engine's loop stands still, and nobody reads what its sockets hold.
            engine_loop[0].call_soon_threadsafe(time.sleep, patience + 2 * LONGEST_PAUSE)
            time.sleep(0.2)  # until it does
        return answer(self, frame)

    monkeypatch.setattr(Person, "handle", counted)
    monkeypatch.setattr(Person, "answer", suspending)
    engine_loop = []

    async def run() -> Ending:
        engine_loop.append(asyncio.get_running_loop())
        return await engine(world, sockets, patience=patience).run()

    with listening_in_a_thread(sockets, persons):
        assert asyncio.run(run()) is Ending.COMPLETE
    assert is_suspended
    assert world.landed()[0][0] == N
    assert set(connections.values()) == {1}
    assert asked[Kind.INBOX] == N


def test_a_clock_that_is_put_back_does_not_delay_the_end(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtally.campaign.transports.sockets.FAREWELL_SECONDS", 0.3)
    world = World(tmp_path, plan_of(), people=N, deadlines=QUICK)
    monkeypatch.setattr(type(world.driver), "owes_farewells", True)
    clock = SetClock()

    async def run() -> None:
        ending = engine(world, sockets, clock=clock)
        ending.present.add("p0")  # an agent that never fetches how its session ended
        farewell = asyncio.create_task(ending._say_farewell())
        await asyncio.sleep(0.1)
        clock.by = -3600.0
        await asyncio.wait_for(farewell, 20)

    asyncio.run(run())


def test_a_run_that_is_stopped_ends_its_session_and_opens_no_other(
    tmp_path: Path, sockets: Path
) -> None:
    world = World(tmp_path, plan_of(rounds=2), people=N, deadlines=QUICK)

    async def run() -> Ending:
        running = engine(world, sockets)
        running.report = lambda: running.stop() if world.driver.running() else None
        async with listening(sockets, honest(people(world, N))):
            return await running.run()

    assert asyncio.run(run()) is Ending.DRAINED
    assert list(world.landed()) == [0]


def test_a_later_process_silences_the_run(tmp_path: Path, sockets: Path) -> None:
    world = World(tmp_path, plan_of(), people=N - 1, deadlines=QUICK)
    persons = people(world, N)

    async def run() -> None:
        async with listening(sockets, honest(persons[:-1])):
            running = asyncio.create_task(engine(world, sockets, wait=30).run())
            await asyncio.sleep(0.5)
            world.claim()
            async with listening(sockets, honest(persons[-1:])):
                await running

    with pytest.raises(OvertakenError):
        asyncio.run(run())
    assert not any(person.sent for person in persons)


def test_a_folder_that_everybody_may_write_is_refused(tmp_path: Path, sockets: Path) -> None:
    world = World(tmp_path, plan_of())
    sockets.chmod(0o777)
    with pytest.raises(InvalidInputError, match="everybody may write"):
        engine(world, sockets)
    with pytest.raises(InvalidInputError, match="cannot read the folder"):
        engine(world, tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="is no folder"):
        engine(world, tmp_path / "file")


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_an_interruption_before_a_wait_is_heard(seconds: float) -> None:
    """Ctrl-C cancels the task while it computes; then it waits, for no time where it is due."""

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await set_within(asyncio.Event(), seconds)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


def test_a_wait_ends_with_its_event_or_its_time() -> None:
    async def run() -> None:
        event = asyncio.Event()
        await set_within(event, 0.01)
        assert not event.is_set()
        asyncio.get_running_loop().call_later(0.01, event.set)
        await asyncio.wait_for(set_within(event, 60.0), 30.0)

    asyncio.run(run())
