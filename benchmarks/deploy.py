"""A deployment's server: the driver and its store over the bare state machines of the protocol.

The clients are simulated in the same process, and their time does not count. A round takes turns
with and without the driver; the least CPU time of some turns counts. The store lies in a temporary
folder: the wall time of a checkpoint is that of its disk.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.measure import Goal, Report, machine
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import CohortRun, drive
from fedtally.campaign.driver import Driver, ServerKeys
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.secagg.client import Client, MemoryJournal
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.params import Adversary, ClientPolicy
from fedtally.secagg.proposal import propose
from fedtally.sketch import Schedule
from fedtally.store import Campaigns, SavedSession

NOW = 1_800_000_000
ROWS, WIDTH = 5, 4096
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


def plan_of(clients: int) -> Plan:
    """Return a plan of one semi-honest cohort, without privacy."""
    parameters = propose(
        clients, length=ROWS * WIDTH, bits=16, corrupt=clients // 20, max_dropout=0.1
    )
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule=Schedule.parse("shared"),
        num_rounds=1,
        num_clients=clients,
        max_round_clients=clients,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        secure_sum=SecAggConfig(parameters=parameters, server_key=KEY.public, allow_list=None),
    )


def stream(seed: int) -> Callable[[int], bytes]:
    """Return bytes that are uniform and the same in each run."""
    return np.random.default_rng(seed).bytes


def joined(plan: Plan, clients: int) -> list[Client]:
    """Return the clients of a round."""
    return [
        FrequencyClient(plan, DOMAIN, [1 + number]).join(
            0,
            ClientPolicy(adversary=Adversary.SEMI_HONEST, min_honest=2),
            journal=MemoryJournal(),
            random=stream(number),
        )
        for number in range(clients)
    ]


def bare(plan: Plan, clients: int) -> float:
    """Return the server's CPU seconds of a round without driver and store."""
    people, meter = joined(plan, clients), Meter()
    with meter():
        run = CohortRun.begin(
            FrequencyServer(plan),
            0,
            range(clients),
            signing_key=KEY,
            random=stream(1 << 20),
            now=NOW,
        )
    drive(run, lambda client, frame: people[int(client)].receive(frame, NOW), NOW, meter=meter)
    return meter.seconds


def driven(plan: Plan, clients: int, folder: Path) -> float:
    """Return the server's CPU seconds of a round with a driver and a store on disk."""
    people, meter, now = joined(plan, clients), Meter(), NOW
    driver = Driver(plan, claimed(plan, folder), ServerKeys(KEY), random=stream(1 << 20))
    while not driver.is_complete:
        for number in range(clients):
            with meter():
                driver.check_in(number, now)
                frame = driver.next(number, now)
            answer = None if frame is None else people[number].receive(frame, now)
            if answer is not None:
                with meter():
                    driver.receive(number, answer, now)
        with meter():
            driver.tick(now)
        now += 1
    return meter.seconds


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


def driver_part(report: Report, clients: int, turns: int, sizes: Sequence[int]) -> None:
    """Measure the driver and the store."""
    plan = plan_of(clients)
    ours, least = [], []
    for _ in range(turns):
        least.append(bare(plan, clients))
        with tempfile.TemporaryDirectory() as place:
            ours.append(driven(plan, clients, Path(place)))
    name = f"server's CPU, a round of {clients} clients, V={ROWS * WIDTH:,}: driver / bare"
    report.goals.append(Goal(name, min(ours) / min(least), 1.5, "x", at_most=True))
    report.notes.append(
        f"CPU of a round: {min(ours):.3f} s with driver and store, {min(least):.3f} s without"
    )
    for size in sizes:
        rate, seconds = checkpoints(plan, size, 10)
        report.notes.append(
            f"checkpoints of {size / 1e6:g} MB: {rate:.1f} a second, {seconds:.2f} s to resume from"
        )


@click.command("deploy")
@click.option(
    "--part",
    type=click.Choice(["driver"]),
    default="driver",
    help="The server's driver and its store.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="A small round, to see that it runs.")
def command(part: str, as_json: bool, quick: bool) -> None:
    """Measure what a deployment's server adds to the protocol."""
    report = Report(machine())
    sizes = (20_000,) if quick else (2_000_000, 56_000_000)
    driver_part(report, 20 if quick else 200, 1 if quick else 3, sizes)
    report.emit(as_json)
