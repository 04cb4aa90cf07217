"""A campaign by the calendar, under a simulated clock: days, kills, and what may be seen so far."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import AgentWorld
from campaign_world import DEADLINES, START, World, plan_of

from fedtally.campaign.driver import LAST_SECONDS
from fedtally.campaign.periods import Periods
from fedtally.campaign.server import FrequencyServer
from fedtally.campaign.transports.pace import JUMP, Ending, Pace
from fedtally.plan import Plan
from fedtally.plan.calendar import DAY, Calendar
from fedtally.privacy.config import propose as propose_privacy
from fedtally.secagg.params import modulus_bits

DAYS, WEEK, SECONDS, SIZE = 28, 7, 86_400, 4
NOON = 43_200
pytestmark = pytest.mark.usefixtures("no_sync")


def daily(
    trust: str | None,
    days: int = DAYS,
    clients: int = SIZE,
    n_min: int | None = None,
    in_a_row: int = WEEK,
    cohorts: int = 1,
) -> Plan:
    """Return a plan of a cohort a day, whose clients take part once in any seven days."""
    base = plan_of(clients=clients, rounds=days, n_min=n_min)
    assert base.secure_sum is not None
    parameters = base.secure_sum.parameters
    plan = dataclasses.replace(
        base,
        schedule="hybrid",
        secure_sum=None,
        num_clients=clients * cohorts * days,  # each counts in each of its rounds
        max_round_clients=clients * cohorts,
        calendar=Calendar(datetime.fromtimestamp(START, UTC), DAY, days),
    )
    if trust is not None:
        more: dict[str, Any] = {}
        if trust == "distributed":
            more = {"honest_survivors": parameters.honest_survivors, "most_clients": clients}
        privacy = propose_privacy(
            epsilon=8.0,
            delta=1e-6,
            rows=plan.spec.touched,
            width=plan.spec.mean_width,
            counters=plan.spec.vector_length,
            trust=trust,
            per_rounds=in_a_row,
            num_rounds=days,
            **more,
        )
        plan = dataclasses.replace(plan, privacy=privacy)
    bits = modulus_bits(parameters.n_max, plan.largest_entry, plan.noise_bound)
    agreed = dataclasses.replace(parameters, length=plan.vector_length, bits=bits)
    return dataclasses.replace(
        plan, secure_sum=dataclasses.replace(base.secure_sum, parameters=agreed)
    )


@dataclass
class Record:
    """What a client keeps: its rounds, of which no two are in one week, whoever asks."""

    world: World
    rounds: set[int] = field(default_factory=set)
    sessions: set[bytes] = field(default_factory=set)

    def begin(self, session: bytes, not_after: int) -> bool:
        new = session not in self.sessions
        self.sessions.add(session)
        return new

    def spend(self, session: bytes) -> bool:
        round = self.world.rounds[session]
        if round in self.rounds or not self.world.plan.protection.allows(self.rounds, round):
            return False
        self.rounds.add(round)
        return True


class Days(World):
    """A campaign whose people come on their day of the week, and once more the day after."""

    kills = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in self.persons:
            one.journal = Record(self)  # type: ignore[assignment]

    def day(self, number: int, kill: bool = False, passes: int = 16) -> None:
        """Let a day pass: who is due comes at noon, with those of the day before."""
        self.now = START + number * SECONDS + NOON
        everybody = self.persons
        self.persons = [one for one in everybody if (number - one.number) % WEEK < 1 + (number > 0)]
        if kill:
            # in the middle of the session: the next frame after a few of them
            self.stops = frozenset({self.steps + 20})
        before = self.processes
        self.run(passes=passes)
        self.kills += self.processes > before
        self.persons = everybody
        # midnight, when nobody is there
        self.now = START + (number + 1) * SECONDS
        self.driver.tick(self.now)

    def live(self, days: int, kills: tuple[int, ...] = ()) -> Days:
        for number in range(days):
            self.day(number, number in kills)
        return self

    def live_from(self, first: int, stop: int) -> None:
        for number in range(first, stop):
            self.day(number)

    def in_round(self, round: int) -> list[tuple[bytes, int]]:
        """Return the sessions and clients of a round."""
        sessions = [name for name, of in self.rounds.items() if of == round]
        return [(name, number) for name in sessions for number in self.contributed[name]]

    def so_far(self) -> list[Any]:
        """Return what `campaign result --so-far` shows, as (round, clients, counters)."""
        reader = self.campaigns().read(self.plan, self.ledger)
        return plain(FrequencyServer(self.plan, reader).so_far())

    def end(self) -> list[Any]:
        self.driver.drain()
        self.driver.tick(self.now)
        return plain(self.driver.release())


def plain(sums: list[Any]) -> list[Any]:
    return [(one.round, one.num_clients, one.vector.tolist()) for one in sums]


def world_of(folder: Path, trust: str | None, **more: Any) -> Days:
    folder.mkdir()
    return Days(folder, daily(trust), people=SIZE * WEEK, **more)


@pytest.mark.promise
def test_four_weeks_of_days_with_kills_are_those_of_a_run_without(tmp_path: Path) -> None:
    """Each client has at most one part in any seven days; the ledger has one charge of four."""
    world = world_of(tmp_path / "killed", "distributed").live(14, kills=(1, 5, 9))
    middle = world.so_far()
    assert [round for round, _, _ in middle] == list(range(14))
    assert world.so_far() == middle
    for number in range(14, DAYS):
        world.day(number, kill=number in (16, 25))
    assert world.kills == 5
    assert world.driver.is_complete
    for rounds in world.spent.values():
        assert len(rounds) == 4
        assert all(later - earlier >= WEEK for earlier, later in pairwise(sorted(rounds)))
    world.check(everybody=False)
    world.driver = world.start()  # the check has taken the campaign over
    [population] = world.ledger.export()["populations"]
    [charged] = population["campaigns"]
    assert charged["plan"] == world.plan.fingerprint
    assert world.plan.privacy.event.lifetime == 4
    end = world.end()
    # the other one is never killed, and a third one ends after two weeks
    whole = world_of(tmp_path / "whole", "distributed").live(DAYS)
    assert whole.kills == 0 and whole.end() == end
    short = world_of(tmp_path / "short", "distributed").live(14)
    assert short.end() == middle
    assert [round for round, _, _ in end] == list(range(DAYS))
    assert end[:14] == middle


class AgentDays(Days, AgentWorld):
    """The same with agents, each with its record on disk, whose items are new each week."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for seat in self.persons:
            seat.guarded.once = None  # type: ignore[attr-defined]
            seat.guarded.restart()  # type: ignore[attr-defined]


@pytest.mark.promise
def test_agents_with_their_records_outlive_servers_that_are_killed(tmp_path: Path) -> None:
    """Agents are started anew meanwhile; what their records say is what their servers got."""
    tmp_path.joinpath("days").mkdir()
    world = AgentDays(tmp_path / "days", daily("distributed", 15), people=SIZE * WEEK)
    seats: list[Any] = world.persons
    for number in range(15):
        world.day(number, kill=number in (1, 5, 9, 13))
        for seat in seats[number % 3 :: 3]:
            seat.guarded.restart()
    assert world.kills == 4
    rounds_of: dict[int, set[int]] = {seat.number: set() for seat in seats}
    for round in range(15):
        for _, number in world.in_round(round):
            rounds_of[number].add(round)
    for seat in seats:
        booked = seat.guarded.record.participations(world.plan.fingerprint)
        assert set(booked) == rounds_of[seat.number]
        assert len(booked) >= 2
        assert all(later - earlier >= WEEK for earlier, later in pairwise(booked))
        parts = seat.guarded.record.parts()
        assert [(one.time - START) // SECONDS for one in parts] == booked  # each in its own day
    [population] = world.ledger.export()["populations"]
    assert [one["plan"] for one in population["campaigns"]] == [world.plan.fingerprint]
    assert [round for round, _, _ in world.end()] == list(range(15))


def test_a_trusted_aggregator_draws_the_noise_of_a_day_once_when_it_is_closed(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path / "days", "central").live(3)
    # the third day is over, and sessions of it may run for an hour
    assert world.now < START + 3 * SECONDS + DEADLINES.session
    assert [round for round, _, _ in world.so_far()] == [0, 1]
    first = world.so_far()
    assert world.claim().sums(world.plan)[0].round == 2  # no exact sum of a closed day is kept
    world.driver = world.start()
    world.now = START + 3 * SECONDS + DEADLINES.session + 1
    world.driver.tick(world.now)
    assert [round for round, _, _ in world.so_far()] == [0, 1, 2]
    assert world.so_far()[:2] == first
    # another process goes on, and no noise is drawn anew
    world.driver = world.start()
    world.live_from(3, 7)
    late = world.so_far()
    assert late[:2] == first and [round for round, _, _ in late] == list(range(6))
    end = world.end()
    assert end[:6] == late and len(end) == 7
    assert [one.release for one in world.ledger.landings(world.plan.fingerprint)] == list(range(7))
    for sketch in end:
        exact = np.sum([world.contributed[s][n] for s, n in world.in_round(sketch[0])], axis=0)
        assert not (exact == np.array(sketch[2])).all()


def test_a_day_that_lands_before_the_last_one_is_closed_waits_for_its_own_end(
    tmp_path: Path,
) -> None:
    world = world_of(tmp_path / "days", "central").live(1)
    world.now = START + SECONDS + 5
    world.persons = [one for one in world.persons if one.number % WEEK == 1]
    world.run(passes=14)
    closes = START + SECONDS + DEADLINES.session + 1
    assert world.now < closes
    world.driver.tick(closes - 1)
    assert world.so_far() == [] and set(world.driver._landed) == {0, 1}
    world.driver.tick(closes)
    assert [round for round, _, _ in world.so_far()] == [0]


def test_a_day_that_was_released_too_early_takes_nobody_more(tmp_path: Path) -> None:
    """A clock that jumped ahead closed it, with room for another session."""
    tmp_path.joinpath("days").mkdir()
    plan = daily("central", cohorts=2)
    world = Days(tmp_path / "days", plan, people=SIZE * WEEK)
    world.now = START + NOON
    everybody, world.persons = world.persons, world.persons[:SIZE]
    world.run(passes=14)
    assert world.driver.wakes_at is None and world.so_far() == []
    world.driver.tick(world.now + SECONDS)
    [today] = world.so_far()
    world.driver.tick(world.now)
    assert world.driver.wakes_at == START + SECONDS
    world.persons = everybody[SIZE:]
    world.run(passes=14)
    assert world.driver.running() == [] and world.so_far() == [today]
    assert all(not world.spent[one.number] for one in world.persons)


def test_a_day_without_enough_clients_is_missing_and_never_made_up_for(tmp_path: Path) -> None:
    world = world_of(tmp_path / "days", "central")
    world.day(0)
    world.now = START + 5 * SECONDS  # the server was down for four days
    world.driver = world.start()
    world.live_from(5, 8)
    assert [round for round, _, _ in world.so_far()] == [0, 5, 6]
    assert [one.release for one in world.ledger.landings(world.plan.fingerprint)] == [0, 5, 6]
    assert [round for round, _, _ in world.end()] == [0, 5, 6, 7]


def test_a_clock_that_jumps_a_month_opens_and_counts_nothing_twice(tmp_path: Path) -> None:
    world = world_of(tmp_path / "days", "central").live(2)
    first = world.so_far()
    for jump in (30 * SECONDS, -30 * SECONDS, 5 * 3600, -5 * 3600):
        world.jump = lambda by=jump: by  # type: ignore[misc]
        world.run(passes=3)
        world.driver.tick(world.clock())
        world.jump = lambda: 0
        world.driver.tick(world.now)
    seen = world.so_far()
    assert seen[: len(first)] == first and [one[0] for one in seen] == [0, 1]
    world.live_from(2, 4)
    end = world.end()
    assert [one[0] for one in end] == [0, 1, 2, 3] and end[:2] == seen
    assert all(len(rounds) == 1 for rounds in world.spent.values())


def test_a_round_opens_and_ends_by_the_calendar_alone(tmp_path: Path) -> None:
    world = world_of(tmp_path / "days", None)
    world.now = START - 5
    for person in world.persons:
        assert not world.driver.check_in(person.number, world.now)
    assert world.driver.tick(world.now) == START
    assert world.driver.wakes_at == START and not world.driver.is_complete
    driver, late = world.driver, START + SECONDS - 10
    for person in world.persons[:SIZE]:
        assert driver.check_in(person.number, late)
    driver.tick(late)
    assert [one.round for one in driver.running()] == [0]
    assert driver.wakes_at is None
    # it belongs to its day, and what comes after midnight is of the next one
    world.now = START + SECONDS + 1
    for person in world.persons[SIZE : 2 * SIZE]:
        driver.check_in(person.number, world.now)
    driver.tick(world.now)
    assert [one.round for one in driver.running()] == [0, 1]
    world.now = START + DAYS * SECONDS
    assert world.driver.check_in(27, world.now) is False
    world.driver.tick(world.now)
    world.driver.tick(world.now + DEADLINES.session)
    assert world.driver.is_complete and world.driver.wakes_at is None


class Steps:
    """Two clocks of a machine: that of the day, and one that nobody sets."""

    def __init__(self, at: float) -> None:
        self.day, self.steady = float(at), 0.0

    def pass_(self, seconds: float) -> None:
        self.day, self.steady = self.day + seconds, self.steady + seconds


def pace_of(world: Days, clocks: Steps, said: list[str]) -> Pace:
    return Pace(world.driver, lambda: clocks.day, 5, said.append, steady=lambda: clocks.steady)


def test_a_run_sleeps_to_the_next_day_and_does_not_stall(tmp_path: Path) -> None:
    world = world_of(tmp_path / "days", None)
    clocks, said = Steps(START - 3600), []
    pace = pace_of(world, clocks, said)
    for _ in range(100):
        assert pace.step() is None
        assert pace.due - clocks.steady <= 1.0  # SIGTERM is heard at once
        clocks.pass_(1)
    for _ in range(60):  # two days, with nobody there
        clocks.pass_(3600)
        pace.due = clocks.steady
        assert pace.step() is None
    pace.stop()
    assert pace.step() is Ending.DRAINED
    assert said == []


def test_a_clock_that_jumps_is_told_once_and_ends_no_campaign(tmp_path: Path) -> None:
    world = world_of(tmp_path / "days", None)
    clocks, said = Steps(START + 100), []
    pace = pace_of(world, clocks, said)
    assert pace.step() is None
    clocks.day += JUMP  # as a clock that is set right
    assert pace.step() is None and said == []
    clocks.day -= 7 * SECONDS
    assert pace.step() is None and pace.step() is None
    assert len(said) == 1 and "the clock went from 1970-01-12" in said[0]
    clocks.day += 100 * SECONDS
    assert pace.step() is Ending.JUMPED  # the result waits for somebody
    assert len(said) == 2
    clocks.day -= 100 * SECONDS
    assert pace.step() is None  # it was set right
    # one that was started then has nothing to compare with, and the campaign is over
    clocks.day += 100 * SECONDS
    assert pace_of(world, clocks, said).step() is Ending.COMPLETE


def test_who_gathers_does_not_wait_beyond_the_day(tmp_path: Path) -> None:
    """Fewer than a full session are there shortly before midnight: it opens in the day's end."""
    tmp_path.joinpath("days").mkdir()
    plan = daily(None, n_min=SIZE, clients=SIZE + 1)
    world = Days(tmp_path / "days", plan, people=SIZE)
    midnight = START + SECONDS
    for person in world.persons:
        assert world.driver.check_in(person.number, midnight - 10)
    assert world.driver.tick(midnight - 10) == midnight - LAST_SECONDS
    assert world.driver.running() == [] and world.driver.is_gathering
    world.driver.tick(midnight - LAST_SECONDS)
    assert [one.round for one in world.driver.running()] == [0]


@pytest.mark.parametrize("session", [60, 3600])
def test_periods_agree_with_a_look_at_each_round(session: int) -> None:
    calendar = Calendar(datetime.fromtimestamp(START, UTC), DAY, 3)
    periods = Periods(calendar, 3, session)
    edges = [START + n * SECONDS + more for n in range(-1, 5) for more in (0, session)]
    for now in sorted(at + by for at in edges for by in (-1, 0, 1, 2)):
        opens = [START + n * SECONDS for n in range(3)]
        assert list(periods.open_at(now)) == [
            n for n, at in enumerate(opens) if at <= now < at + SECONDS
        ]
        assert list(periods.left_at(now)) == [n for n, at in enumerate(opens) if now < at + SECONDS]
        closed = [n for n, at in enumerate(opens) if now > at + SECONDS + session]
        assert list(range(periods.num_closed(now))) == closed
        later = periods.next_change(now)
        assert later > now
        # nothing changes before, and something does then
        states = [
            (periods.open_at(at), periods.num_closed(at))
            for at in (now, *([] if later == math.inf else [later - 0.5, later]))
        ]
        assert later == math.inf or (states[0] == states[1] != states[2])


def test_a_plan_of_4096_rounds_costs_no_time_for_each_pair(tmp_path: Path) -> None:
    """A driver asks for the releases of a plan a few times, whatever its number of rounds is."""
    asked: Counter[int] = Counter()
    releases = Plan.releases

    def counted(plan: Plan) -> list[range]:
        asked[plan.num_rounds] += 1
        return list(releases.fget(plan))  # type: ignore[attr-defined]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "releases", property(counted))
        for days in (8, 4096):
            folder = tmp_path / str(days)
            folder.mkdir()
            world = Days(folder, daily("central", days, in_a_row=days), people=SIZE * WEEK).live(2)
            world.now = START + 3 * SECONDS
            world.driver.tick(world.now)
            assert [round for round, _, _ in world.so_far()] == [0, 1]
            assert world.driver.wakes_at is None and not world.driver.is_complete
    assert asked[8] == asked[4096] > 0


def test_a_client_over_https_asks_no_more_often_while_the_server_sleeps(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("httpx")
    from https_world import HttpsWorld
    from https_world import run as run_virtually

    plan = daily(None)
    assert plan.calendar is not None
    later = dataclasses.replace(plan.calendar, start=plan.calendar.start + DAY)
    world = World(tmp_path, dataclasses.replace(plan, calendar=later), people=SIZE)
    cloud = HttpsWorld(world)
    found: list[tuple[int, int]] = []

    async def ask() -> None:
        import asyncio

        import httpx

        from fedtally.campaign.transports.https.loop import serving
        from fedtally.campaign.transports.https.resource import step_path

        loop = cloud.start()
        running = asyncio.create_task(loop.run())
        await asyncio.sleep(0)
        transport = httpx.ASGITransport(app=serving(loop))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            got = await client.post(
                step_path(world.plan.fingerprint),
                headers={"authorization": "Bearer t3", "content-length": "0"},
            )
        found.append((got.status_code, int(got.headers["retry-after"])))
        found.append(loop._idle)
        running.cancel()

    run_virtually(ask())
    (status, seconds), (least, most) = found
    assert status == 204 and least <= seconds <= most
