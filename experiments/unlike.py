"""Cells unlike the grid of `limit`: whether belief propagation is ever worse than joint recovery.

`FEW` are sketches of few cells: there the decoder sends no messages, and here it does, which shows
why. `SMALL` are sketches of 700 to 1,500 cells, just above those, of laws with long flat tails.

A line is a law, how rounds differ, a schedule, a size, noise, candidates, clients and rounds.

Laws are those of `limit` and exponents (0: all alike), `geometric` (of .98), `half` (three items of
a sixth each, six hundred of a twelve-hundredth, nobody else), `cut` ((i + 8)^-.9, which falls off
exponentially from a fifth of the items on), plateaus of `coverage`, and tables.
Rounds are `alike`; or as in `coverage`: `gamma C`, `one round`, `1..K`, `missing`; or `silos`: six
silos of `experiments.silos`, whose people hold items by laws of their own; or `several`: clients
hold five items on average, each at most once; or `text`, alike, of items that are texts.
Noise is `off`; `on`, central trust; or `skellam`, distributed trust; each of epsilon 1 for one item
a client.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from experiments import coverage, limit, promises, rounds, silos, study
from fedtally.domain import Domain, IntegerRange, Strings
from fedtally.recovery.decoders.belief import belief
from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.shrinkage import ShrunkDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

TABLES = tuple(coverage.REAL)
_ITEMS = 5.0  # of a client, on average, where it holds several
CELLS = """
0            alike       shared    5x60    off      200    500     1
1.1          alike       shared    5x20    off      200    500     1
1.1          alike       shared    7x30    off      200    5000    1
1.1          alike       hybrid    5x20    off      200    500     10
2            alike       shared    5x20    off      200    5000    1
2            alike       hybrid    11x20   off      200    5000    10
geometric    alike       shared    5x30    off      200    5000    1
geometric    alike       hybrid    7x20    off      200    500     10
lognormal    alike       shared    11x20   off      200    5000    1
lognormal    alike       fresh     5x20    off      200    50000   10
plateaus     alike       shared    5x40    off      200    5000    1
plateaus     alike       batched:2 7x20    off      200    50000   10
1.1          alike       shared    16x30   on       200    50000   1
1.1          silos       shared    5x30    skellam  200    14500   1
0            alike       shared    5x200   off      2000   5000    1
0            alike       hybrid    5x100   off      2000   50000   10
1.1          alike       shared    5x50    off      2000   500     1
1.1          alike       shared    5x100   off      2000   5000    1
1.1          alike       shared    7x100   off      2000   50000   1
1.1          alike       shared    11x100  off      2000   50000   1
1.1          alike       shared    16x300  off      2000   50000   1
1.1          alike       hybrid    5x50    off      2000   5000    10
1.1          alike       hybrid    7x100   on       2000   50000   10
1.1          alike       hybrid    7x100   skellam  2000   50000   10
1.1          alike       hybrid    7x100   skellam  2000   500000  10
1.1          text        shared    5x100   off      2000   50000   1
1.1          silos       shared    7x400   off      2000   14500   1
1.1          silos       hybrid    7x100   off      2000   14500   6
1.1          silos       hybrid    5x100   skellam  2000   14500   6
1.1          several     shared    5x200   off      2000   20000   1
1.1          several     hybrid    7x100   off      2000   20000   10
1.1          several     hybrid    5x100   on       2000   200000  10
1.1          1..10       hybrid    5x100   off      2000   50000   10
1.1          1..100      hybrid    5x100   off      2000   50000   10
1.1          1..100      fresh     7x50    on       2000   500000  10
1.1          missing     hybrid    5x100   off      2000   50000   10
1.1          missing     batched:2 5x100   off      2000   50000   10
1.1          gamma 2     batched:2 5x100   off      2000   50000   10
1.1          one round   batched:5 5x100   off      2000   50000   10
1.1          one round   hybrid    7x50    off      2000   500000  10
2            alike       shared    5x30    off      2000   5000    1
2            alike       shared    7x30    off      2000   500000  1
2            alike       hybrid    5x100   on       2000   500000  10
2            silos       shared    5x60    off      2000   14500   1
geometric    alike       shared    5x60    off      2000   5000    1
geometric    alike       shared    7x30    off      2000   500000  1
geometric    alike       hybrid    7x30    on       2000   500000  10
half         alike       shared    5x100   off      2000   5000    1
half         alike       shared    7x100   off      2000   50000   1
half         alike       hybrid    5x60    off      2000   50000   10
half         gamma 2     hybrid    7x60    off      2000   50000   10
lognormal    alike       shared    5x100   off      2000   50000   1
lognormal    silos       shared    7x100   off      2000   14500   1
lognormal    alike       hybrid    16x50   skellam  2000   500000  10
plateaus     alike       shared    5x100   off      2000   5000    1
plateaus     alike       shared    7x100   off      2000   500000  1
plateaus     several     shared    7x200   off      2000   20000   1
plateaus     alike       hybrid    16x50   on       2000   500000  10
0.5          alike       shared    5x200   off      2000   50000   1
0.5          alike       hybrid    7x100   off      2000   50000   10
plateau:0.05:8  alike    shared    5x300   off      20000  200000  10
plateau:0.1:9   alike    shared    7x200   off      20000  200000  10
plateau:0.2:8   alike    batched:2 5x300   off      20000  200000  10
plateau:0.2:12  alike    shared    16x100  off      20000  200000  10
plateau:0.2:12  gamma 2  hybrid    5x200   off      20000  200000  10
plateau:0.1:9   alike    hybrid    5x200   on       20000  200000  10
0            alike       shared    7x1000  off      50000  200000  1
1.1          alike       shared    5x500   off      50000  50000   1
1.1          alike       shared    7x500   off      50000  1000000 1
1.1          alike       hybrid    7x200   off      50000  5000    10
zm           alike       shared    11x200  off      50000  1000000 1
zm           alike       hybrid    5x500   skellam  50000  1000000 10
lognormal    alike       shared    16x500  off      50000  1000000 1
geometric    alike       shared    5x100   off      50000  50000   1
2            alike       hybrid    7x100   off      50000  1000000 10
plateaus     alike       shared    5x1000  off      50000  1000000 1
1.1          alike       shared    5x1000  off      100000 1000000 1
1.1          alike       hybrid    5x1000  on       100000 1000000 10
1.1          alike       hybrid    7x100   off      100000 5000    10
1.1          alike       shared    7x2000  off      100000 100000  1
0.5          alike       shared    7x2000  off      100000 1000000 1
lognormal    alike       hybrid    7x500   off      100000 1000000 10
plateaus     alike       batched:2 7x500   off      100000 1000000 10
1.1          gamma 2     hybrid    7x500   off      100000 1000000 10
brightkite   alike       shared    5x500   off      0      0       10
brightkite   alike       hybrid    7x200   on       0      0       10
gowalla      alike       shared    7x500   off      0      0       10
gowalla      gamma 2     hybrid    5x500   off      0      0       10
c4           alike       shared    5x200   off      0      0       10
c4           alike       hybrid    7x100   off      0      0       10
sentiment140 alike       shared    7x1000  off      0      0       10
sentiment140 alike       hybrid    5x500   off      0      0       10
"""
FEW = """
1.1          alike       shared    5x20    off      200    5000    1
1.1          alike       shared    7x20    off      200    5000    1
2            alike       shared    5x20    off      200    5000    1
plateaus     alike       shared    5x20    off      200    5000    1
geometric    alike       shared    7x20    off      200    5000    1
1.1          alike       shared    5x40    off      200    5000    1
plateaus     alike       shared    5x40    off      200    5000    1
geometric    alike       shared    5x40    off      200    5000    1
1.1          alike       shared    5x40    off      2000   5000    1
0.5          alike       shared    5x40    off      2000   5000    1
1.1          alike       shared    7x60    off      2000   5000    1
1.1          alike       shared    11x40   off      2000   5000    1
plateaus     alike       shared    5x80    off      2000   5000    1
geometric    alike       shared    5x80    off      2000   5000    1
0.5          alike       shared    5x80    off      2000   5000    1
1.1          alike       shared    5x100   off      2000   5000    1
"""


SMALL = """
cut          alike       shared    7x120   off      30000  150000  1
cut          alike       shared    5x150   off      30000  150000  1
cut          alike       shared    5x300   off      30000  150000  1
cut          alike       shared    7x200   on       30000  1500000 1
cut          alike       hybrid    7x120   off      30000  150000  10
0.5          alike       shared    7x120   off      2000   50000   1
0.5          alike       shared    5x200   off      5000   50000   1
1.1          alike       shared    7x120   off      10000  100000  1
zm           alike       shared    7x200   off      10000  100000  1
lognormal    alike       shared    7x120   off      10000  100000  1
half         alike       shared    7x120   off      2000   50000   1
plateaus     alike       shared    7x200   off      10000  100000  1
"""
LISTS = {"unlike": CELLS, "rows": CELLS, "few": FEW, "small": SMALL}


class Task(NamedTuple):
    """One campaign: a line of one of `LISTS`, and what it is repeated with."""

    law: str
    kind: str
    schedule: str
    rows: int
    width: int
    noise: str
    size: int
    clients: int
    num_rounds: int
    data: str
    seed: int
    repeat: int
    few: bool = False

    @property
    def cell(self) -> str:
        """All but what tells its campaigns apart.

        >>> tasks(1, Path(), 0)[0].cell
        '0, shared 5x60, 200 items, 500 clients, 1 round'
        """
        kind = "" if self.kind == "alike" else f" {self.kind}"
        noise = "" if self.noise == "off" else f", noise {self.noise}"
        size = f", {self.size:,} items, {self.clients:,} clients" if self.size else ""
        number = "1 round" if self.num_rounds == 1 else f"{self.num_rounds} rounds"
        sketch = f"{self.schedule} {self.rows}x{self.width}"
        return f"{self.law}{kind}, {sketch}{size}, {number}{noise}"


def tasks(repeats: int, data: Path | None, seed: int, cells: str = "unlike") -> list[Task]:
    """Return the campaigns of all cells, a repeat of each after the other.

    Args:
        repeats: of each cell.
        data: folder of the tables; without one, their cells are left out.
        seed: of all draws.
        cells: "unlike", those of `CELLS`; "rows", these with three rows instead of five, four
            instead of more, and as many counters; "few", those of `FEW`; "small", of `SMALL`.

    >>> tasks(1, None, 0, "rows")[2].cell
    '1.1, shared 4x52, 200 items, 5,000 clients, 1 round'
    """
    found = []
    for repeat in range(repeats):
        for line in LISTS[cells].strip().splitlines():
            law, *kind, schedule, sketch, noise, size, clients, num_rounds = line.split()
            if law in TABLES and data is None:
                continue
            rows, width = map(int, sketch.split("x"))
            if cells == "rows":
                fewer = 3 if rows == 5 else 4
                rows, width = fewer, rows * width // fewer
            known = (law, " ".join(kind), schedule, rows, width, noise)
            numbers = (int(size), int(clients), int(num_rounds))
            found.append(Task(*known, *numbers, str(data), seed, repeat, cells == "few"))
    return found


def _population(task: Task, rng: np.random.Generator) -> tuple[rounds.F64, int]:
    """Return the frequencies, float64 [d], and the number of clients."""
    if task.law in TABLES:
        laws, clients = coverage.population(task.law, coverage.Scale(data=Path(task.data)))
        return laws[0], clients
    if task.law.startswith("plateau:"):
        case = coverage.Case(task.law, task.schedule, task.rows, task.width, task.noise)
        return coverage.plateau(case, coverage.Scale(task.size, task.clients))[0], task.clients
    if task.law == "geometric":
        weights = 0.98 ** np.arange(task.size)
        return weights / weights.sum(), task.clients
    if task.law == "cut":
        ranks = np.arange(1.0, task.size + 1)
        weights = (ranks + 8) ** -0.9 * np.exp(-5 * ranks / task.size)
        return weights / weights.sum(), task.clients
    if task.law == "half":
        return promises.law("half", task.size, None), task.clients
    return limit.population(task.law, task.size, rng), task.clients


def _held(task: Task, rng: np.random.Generator) -> tuple[rounds.I64, rounds.I64]:
    """Return what each round holds of each item, int64 [rounds, d], and its clients."""
    frequencies, clients = _population(task, rng)
    frequencies = rng.permutation(frequencies)
    if task.kind == "silos":
        held = np.zeros((task.num_rounds, len(frequencies)), np.int64)
        for people in silos.PEOPLE:
            own = frequencies * rng.gamma(2.0, 0.5, len(frequencies))
            parts = rng.multinomial(people, rng.dirichlet(np.full(task.num_rounds, 2.0)))
            for one, number in zip(held, parts, strict=True):
                tastes = own * rng.gamma(2.0, 0.5, len(own))
                one += rng.multinomial(number, tastes / tastes.sum())
        return held, held.sum(axis=1)
    if task.kind == "several":
        number = clients // task.num_rounds
        chance = np.minimum(1.0, _ITEMS * frequencies)
        held = rng.binomial(number, chance, (task.num_rounds, len(chance)))
        return held, np.full(task.num_rounds, number)
    if task.kind in ("alike", "text"):
        held = rounds.draw(frequencies, clients, task.num_rounds, rng)
    else:
        held = coverage.draw(frequencies[None], clients, task.kind, rng)
    return held, held.sum(axis=1)


def _domain(task: Task, size: int) -> tuple[Domain, npt.NDArray[np.uint64]]:
    """Return the candidates and their ids."""
    domain: Domain = IntegerRange(rounds.FIRST_ID, size)
    if task.kind == "text":
        domain = Strings([f"item {number}" for number in range(size)], bytes(32), public=True)
    return domain, domain.ids(0, size)


@contextmanager
def any_cells() -> Iterator[None]:
    """Let belief propagation send messages however few cells there are."""
    fewest, belief.FEWEST_CELLS = belief.FEWEST_CELLS, 0
    try:
        yield
    finally:
        belief.FEWEST_CELLS = fewest


def measure(task: Task) -> list[study.Row]:
    """Decode one campaign by both decoders, and measure their time."""
    rng = np.random.default_rng([task.seed, task.repeat, zlib.crc32(task.cell.encode())])
    held, people = _held(task, rng)
    domain, ids = _domain(task, held.shape[1])
    schedule = Schedule.parse(task.schedule)
    spec = SketchSpec(task.rows, task.width, schedule, task.num_rounds, rng.bytes(32))
    sketches = []
    for number, (counts, clients) in enumerate(zip(held, people, strict=True)):
        sketches.append(CountSketch(spec, number))
        sketches[-1].add(ids, counts, num_clients=int(clients))
    if task.kind == "missing":
        landed = np.sort(rng.permutation(len(held))[2:])
        held, sketches = held[landed], [sketches[m] for m in landed]
    coverage.protect(sketches, task.noise, rng)
    truth, clients = held.sum(axis=0), sum(sketch.num_clients for sketch in sketches)
    start = time.process_time()
    JointDecoder(sketches, domain).at(ids)
    middle = time.process_time()
    with any_cells() if task.few else nullcontext():
        decoder = BeliefDecoder(sketches, domain)
    decoder.at(ids)
    seconds = (middle - start, time.process_time() - middle)
    row: study.Row = {
        "seed": f"{task.seed}/{task.repeat}",
        "plan": study.describe(spec, clients),
        "cell": task.cell,
        "fallback": decoder.fallback,
        "joint_seconds": seconds[0],
        "belief_seconds": seconds[1],
        "planned_linf": None,
    }
    for name, one in (
        ("joint", decoder.joint),
        ("joint_shrunk", ShrunkDecoder(decoder.joint, domain)),
        ("belief", decoder),
        ("belief_shrunk", ShrunkDecoder(decoder, domain)),
    ):
        row[f"{name}_linf"], row[f"{name}_l2"] = limit.largest_and_l2(one.at(ids) - truth)
    row |= limit.intervals(decoder.joint, sketches, truth, domain, ids)
    row |= {"joint_held_0": row["held_0"], "joint_band_holds": row["band_holds"]}
    row |= limit.intervals(decoder, sketches, truth, domain, ids)
    for what in limit.ERRORS:
        row |= dict.fromkeys(f"{name}_{what}" for name in ("genie", "limit", "rows", "informed"))
    return [row]
