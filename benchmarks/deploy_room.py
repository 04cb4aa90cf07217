"""The disk and the memory of a server by the neighbours of its clients.

The clients are not real: they send random keys and shares of the true sizes, which a server cannot
tell from others. Each case runs in a process of its own, up to the phase whose checkpoint is the
largest: the server has all shares, and no client has sent its vector.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.deploy import KEY, NOW, claimed, plan_of, size_of, stream
from benchmarks.measure import Report, peak_memory
from fedtally.campaign.driver import Driver, ServerKeys
from fedtally.secagg import wire
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import Kind


class Room(NamedTuple):
    """What sessions at once take.

    Args:
        neighbours: of each client.
        file: the size of `campaign.db`, as a text.
        memory: MB over that of the process before the first client.
    """

    neighbours: int
    file: str
    memory: float


def taken(sessions: int, clients: int, n_min: int) -> Room:
    """Return what sessions take that are open at once, each with all shares of its clients.

    Args:
        sessions: how many.
        clients: the clients of each session.
        n_min: the fewest clients with which a session may begin.
    """
    plan = plan_of(clients, sessions, n_min, max_dropout=0.05)  # as `fedtally plan` does
    assert isinstance(plan.secure_sum, SecAggConfig)
    neighbours = plan.secure_sum.parameters.graph(clients).neighbours
    with tempfile.TemporaryDirectory() as place:
        store, random = claimed(plan, Path(place)), stream(1)
        driver = Driver(plan, store, ServerKeys(KEY), random=random)
        before = peak_memory()
        for step in range(4):
            for number in range(plan.num_clients):
                driver.check_in(number, NOW + step)
                driver.tick(NOW + step)
                frame = driver.next(number, NOW + step)
                if frame is not None and (said := _answer(frame, neighbours, random)) is not None:
                    driver.receive(number, said, NOW + step)
                    driver.tick(NOW + step)
        return Room(neighbours, size_of(Path(place) / "campaign.db"), peak_memory() - before)


def _answer(frame: bytes, neighbours: int, random: Callable[[int], bytes]) -> bytes | None:
    """Return the keys or the shares of a client, at random; None in later phases."""
    message = wire.parse(frame)
    assert message is not None
    if message.kind is Kind.INVITE:
        keys = b"".join(random(31) + b"\x01" for _ in range(2)) + random(48)
        return wire.frame(Kind.ADVERTISE, message.session, wire.UNLISTED, keys)
    if message.kind is Kind.ROSTER:
        place = int.from_bytes(message.body[4:8], "little")  # the client's index
        sealed = random(wire.SEALED_BYTES * neighbours)
        return wire.frame(Kind.SHARES, message.session, place, sealed)
    return None


def room_part(report: Report, quick: bool) -> None:
    """Measure the disk and the memory of sessions whose clients have few neighbours, and many."""
    clients = 40 if quick else 1_000
    for sessions in (1, 2) if quick else (1, 20):
        for n_min in (clients, 4 * clients // 5, 3 * clients // 10, clients // 5):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                found = pool.submit(taken, sessions, clients, n_min).result()
            report.notes.append(
                f"{sessions} of {clients:,} clients, at least {n_min:,}: {found.neighbours:,}"
                f" neighbours, campaign.db {found.file}, memory {found.memory:.0f} MB"
            )
