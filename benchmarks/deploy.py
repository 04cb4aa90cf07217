"""A deployment: driver, store and agents over the bare state machines of the protocol.

The clients are simulated in the same process, in a first turn that does not count. Later turns have
their answers from memory: else the clients' work would empty the caches between two calls of the
server, and cost it more than the driver does. A round takes turns with and without the driver; the
median of the ratios counts. The store lies in a temporary folder: the wall time of a checkpoint is
that of its disk.
"""

from __future__ import annotations

import gc
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import processes
from benchmarks.durable import floor
from benchmarks.measure import Goal, Report, machine
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import CohortRun, drive
from fedtally.campaign.driver import Driver, ServerKeys
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.client import Client, MemoryJournal, read_invite
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.params import Adversary, ClientPolicy
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import ClientId
from fedtally.sketch import Schedule
from fedtally.store import Campaigns, SavedSession

NOW = 1_800_000_000
ROWS, WIDTH = 5, 4096
ROUNDS = 4  # of a campaign, at once
WRITES = 5  # of a session: four phases, and the end with its sum
CHECKPOINT = 77_000  # bytes: the mean of these writes, of 200 clients
DOMAIN = IntegerRange(1, 100_000)
KEY = SigningKey(Secret(bytes(range(32))))


@dataclass
class Meter:
    """CPU seconds of the server."""

    seconds: float = 0.0
    _start: float = field(default=0.0, repr=False)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Add what happens inside."""
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds += time.process_time() - start


def plan_of(
    clients: int, rounds: int = ROUNDS, n_min: int | None = None, max_dropout: float = 0.1
) -> Plan:
    """Return a plan of rounds of one semi-honest cohort each, without privacy.

    Args:
        clients: the clients of a round.
        rounds: how many.
        n_min: the fewest clients of a cohort; None: all must come.
        max_dropout: the largest share of them that may drop out.
    """
    parameters = propose(
        clients,
        length=ROWS * WIDTH,
        bits=16,
        corrupt=max(1, clients // 20),
        max_dropout=max_dropout,
        n_min=n_min,
    )
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule=Schedule.parse("shared"),
        num_rounds=rounds,
        num_clients=rounds * clients,
        max_round_clients=clients,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        secure_sum=SecAggConfig(parameters=parameters, server_key=KEY.public, allow_list=None),
    )


def stream(seed: int) -> Callable[[int], bytes]:
    """Return bytes that are uniform and the same in each run."""
    return np.random.default_rng(seed).bytes


def joined(plan: Plan, number: int, round: int) -> Client:
    """Return a client of a round."""
    return FrequencyClient(plan, DOMAIN, [1 + number]).join(
        round,
        ClientPolicy(adversary=Adversary.SEMI_HONEST, min_honest=2),
        journal=MemoryJournal(),
        random=stream(number),
    )


class Clients:
    """Simulated clients, each of which works out an answer once.

    A turn draws from the same stream at the same times as the one before, so that its sessions send
    the same frames: from the second turn on the server alone works.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._people = dict[tuple[ClientId, bytes], Client]()  # by number and session
        self._answers = dict[tuple[ClientId, bytes], bytes | None]()

    def __call__(self, number: ClientId, frame: bytes) -> bytes | None:
        """Return what a client answers to a frame."""
        key = number, frame
        if key not in self._answers:
            self._answers[key] = self._of_session(number, frame).receive(frame, NOW)
        return self._answers[key]

    def leave(self) -> None:
        """Drop the clients: their answers stay."""
        self._people.clear()

    def _of_session(self, number: ClientId, frame: bytes) -> Client:
        message = wire.parse(frame)
        assert message is not None
        key = number, message.session
        if key not in self._people:
            found = read_invite(
                frame, server_key=KEY.public, fingerprint=bytes.fromhex(self._plan.fingerprint)
            )
            assert found is not None
            self._people[key] = joined(self._plan, int(number), found.round)
        return self._people[key]


def bare(plan: Plan, clients: int, ask: Clients) -> float:
    """Return the server's CPU seconds of a round without driver and store."""
    meter, random = Meter(), stream(1 << 20)
    with meter():
        server = FrequencyServer(plan)
    for round in range(plan.num_rounds):
        with meter():
            run = CohortRun.begin(
                server,
                round,
                range(round * clients, (round + 1) * clients),
                signing_key=KEY,
                random=random,
                now=NOW,
            )
        drive(run, ask, NOW, batch=clients, meter=meter)
        with meter():
            list(run.outgoing())  # the Results, which `drive` leaves to its caller
    return meter.seconds / plan.num_rounds


def driven(plan: Plan, ask: Clients, folder: Path) -> tuple[float, float]:
    """Return the server's CPU seconds of a round with a driver and a store on disk.

    The second number is the CPU seconds to make and claim the store, which is no price of a round:
    a process does so once. The driver is called as `docs/operations.md` says: `tick` after each
    frame too.
    """
    opening, meter, now = Meter(), Meter(), NOW
    with opening():
        store = claimed(plan, folder)
    with meter():
        driver = Driver(plan, store, ServerKeys(KEY), random=stream(1 << 20))
    while not driver.is_complete:
        asked = []
        with meter():
            for number in range(plan.num_clients):
                driver.check_in(number, now)
                driver.tick(now)
                frame = driver.next(number, now)
                if frame is not None:
                    asked.append((number, frame))
        answers = [(number, ask(number, frame)) for number, frame in asked]
        with meter():
            for number, answer in answers:
                if answer is not None:
                    driver.receive(number, answer, now)
                    driver.tick(now)
        now += 1
    return meter.seconds / plan.num_rounds, opening.seconds


def crowd(plan: Plan, clients: int) -> tuple[float, float]:
    """Return the CPU microseconds of a check-in, with its tick, and of a poll in a crowd.

    All are there before the sessions open, and most wait while these run.
    """
    check_ins, polls = Meter(), Meter()
    with tempfile.TemporaryDirectory() as place:
        driver = Driver(plan, claimed(plan, Path(place)), ServerKeys(KEY), random=stream(1))
        with check_ins():
            for number in range(clients):
                driver.check_in(number, NOW)
        driver.tick(NOW)
        with check_ins():
            for number in range(clients):
                driver.check_in(number, NOW)
                driver.tick(NOW)
        with polls():
            for number in range(clients):
                driver.next(number, NOW)
    return check_ins.seconds / (2 * clients) * 1e6, polls.seconds / clients * 1e6


def claimed(plan: Plan, folder: Path) -> Any:
    """Return the store of a campaign in a folder."""
    campaigns = Campaigns.open(folder / "campaign.db", create=True)
    return campaigns.claim(plan, mark=folder / "mark", clock=lambda: NOW, owner="benchmark")


def checkpoints(plan: Plan, size: int, times: int) -> tuple[float, float]:
    """Return checkpoints of so many bytes a second, written, and the seconds to read one back."""
    data = np.random.default_rng(0).bytes(size)
    with tempfile.TemporaryDirectory() as place:
        store = claimed(plan, Path(place))
        start = time.perf_counter()
        for version in range(1, times + 1):
            saved = SavedSession(
                bytes(32), 0, (1, 2), data, (NOW, NOW), NOW + 3600, version=version
            )
            store.save(plan, saved, ())
        rate = times / (time.perf_counter() - start)
        start = time.perf_counter()
        again = claimed(plan, Path(place)).sessions(plan)
        seconds = time.perf_counter() - start
    assert again[0].checkpoint == data
    return rate, seconds


@dataclass
class Turns:
    """CPU seconds of a round with the driver and without, and of the store's opening, by turn.

    And the size of the store's file after all rounds of a turn, whose sessions run at once.
    """

    driven: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    opening: list[float] = field(default_factory=list)
    size: str = ""

    @property
    def ratios(self) -> list[float]:
        """How many times the CPU of a round the driver makes it, by turn."""
        return [one / other for one, other in zip(self.driven, self.bare, strict=True)]


def size_of(file: Path) -> str:
    """Return the size of a file of SQLite, and how much of it holds anything, as a text."""
    with closing(sqlite3.connect(file)) as connection:
        [pages], [free], [size] = (
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("page_count", "freelist_count", "page_size")
        )
    return f"{pages * size / 1e6:.1f} MB, {(pages - free) * size / 1e6:.1f} MB of it in use"


def take_turns(plan: Plan, clients: int, turns: int) -> Turns:
    """Run a plan with the driver and without, in turns, after one that does not count."""
    # One each: both draw the same names of sessions, and go on differently.
    of_bare, of_driven, found = Clients(plan), Clients(plan), Turns()
    for turn in range(1 + turns):
        gc.collect()  # what a turn leaves behind is not the price of the next
        alone = bare(plan, clients, of_bare)
        gc.collect()
        with tempfile.TemporaryDirectory() as place:
            seconds, opening = driven(plan, of_driven, Path(place))
            found.size = size_of(Path(place) / "campaign.db")
        if turn == 0:  # the clients worked in it
            of_bare.leave()
            of_driven.leave()
            continue
        found.bare.append(alone)
        found.driven.append(seconds)
        found.opening.append(opening)
    return found


def driver_part(report: Report, quick: bool) -> None:
    """Measure the driver and the store."""
    clients, turns = (20, 1) if quick else (200, 15)
    sizes = (20_000,) if quick else (2_000_000, 56_000_000)
    plan = plan_of(clients)
    found = take_turns(plan, clients, turns)
    name = f"server's CPU, a round of {clients} clients, V={ROWS * WIDTH:,}: driver / bare"
    report.goals.append(Goal(name, statistics.median(found.ratios), 1.5, "x", at_most=True))
    report.notes.append(
        f"the median of {turns} turns, which are between {min(found.ratios):.2f} and"
        f" {max(found.ratios):.2f}"
    )
    report.notes.append(
        f"CPU of a round: {min(found.driven):.4f} s with driver and store, {min(found.bare):.4f} s"
        f" without; once, to make and claim the store: {min(found.opening):.3f} s;"
        f" the durable writes alone, of {WRITES}: {floor(WRITES, CHECKPOINT):.4f} s"
    )
    files = [f"{plan.num_rounds} of {clients} clients: {found.size}"]
    many, few = (40, 1) if quick else (1_000, 5)
    found = take_turns(plan_of(many, 1), many, few)
    files.append(f"1 of {many:,}: {found.size}")
    report.notes.append(
        f"a round of {many:,} clients: {statistics.median(found.ratios):.2f} times, the median of"
        f" {few} turns; {min(found.driven):.4f} s with driver and store, {min(found.bare):.4f} s"
        " without"
    )
    report.notes.append(f"campaign.db after sessions at once: {'; '.join(files)}")
    present = 1_000 if quick else 100_000
    check_in, poll = crowd(plan, present)
    report.notes.append(
        f"with {present:,} clients present: {check_in:.1f} us of CPU a check-in with its tick,"
        f" {poll:.1f} us a poll"
    )
    for size in sizes:
        rate, seconds = checkpoints(plan, size, 10)
        report.notes.append(
            f"checkpoints of {size / 1e6:g} MB: {rate:.1f} a second, {seconds:.2f} s to resume from"
        )


def flower_part(report: Report, quick: bool) -> None:
    """Measure a secure round on Flower over the bare echo of its messages."""
    from benchmarks import deploy_flower

    deploy_flower.flower_part(report, quick)


def room_part(report: Report, quick: bool) -> None:
    """Measure the disk and the memory of sessions by the neighbours of their clients."""
    from benchmarks import deploy_room

    deploy_room.room_part(report, quick)


PARTS = {
    "driver": driver_part,
    "processes": processes.part,
    "room": room_part,
    "flower": flower_part,
}


@click.command("deploy")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="This part; may be repeated (driver).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="A small round, to see that it runs.")
def command(parts: tuple[str, ...], as_json: bool, quick: bool) -> None:
    """Measure what a deployment adds to the protocol."""
    report = Report(machine())
    # Flower takes minutes and an extra: only who asks for it gets it.
    for part in parts or ("driver", "processes"):
        PARTS[part](report, quick)
    report.emit(as_json)
