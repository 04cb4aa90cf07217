"""Lying clients under one server: what screening the sums of cohorts finds, and its false alarms.

A round has 20 cohorts of 1,000 clients, which hold 100,000 items of a Zipf law, in a sketch of 5 x
1000. Screening is that of `campaign.screening`. Before it, `campaign.server` refuses a cohort whose
sum no honest clients can have. Hashes are new every 20 rounds. In an honest round every alarm is a
false one; some have noise, some are histograms, and some have few items in a narrow sketch, where
frequent ones cancel each other. In the others a share of the clients lies:

- lie: each votes once for a rare item, as an honest client might;
- boost: each adds so many votes for a rare item;
- negative: each takes so many votes from item 4;
- random: each sends a random vector;
- scattered: each adds or subtracts 1 in ten counters of every row;
- botnet: as boost, but in each cohort the same, by agreement;
- swap: as botnet, and the votes are taken from item 4.

`shift` is how far all liars together move their item's frequency, by the median over the rows: if
all cohorts are used, and under `--screen refuse`, where a refused round moves nothing.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
from scipy import stats

from experiments import options, output
from fedtally import kernels
from fedtally.campaign.screening import (
    ALPHA,
    FEWEST,
    Consistency,
    consistency,
    keep_cohorts,
    most_lost,
)
from fedtally.campaign.server import RejectedSumError, check_plausible
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.privacy.accounting import rounded_up
from fedtally.sketch import CountSketch, Schedule, SketchSpec

I64 = npt.NDArray[np.int64]
ITEMS, ROWS, WIDTH, BITS = 100_000, 5, 1000, 16
RARE, HEAVY = 50_000, 3  # the items that liars vote for, and take votes from
SAME_HASHES = 20  # rounds
_QUANTILES = 1 << 16  # of a law: draws from a table are fast, and the table is a law as well
LIARS = (0.00005, 0.01, 0.02, 0.05)


class Shape(NamedTuple):
    """An honest round: its law, cohorts, clients of each, and the variance of a client's noise.

    With one row it is a histogram. With a width of its own its hashes are new in each round, since
    few items cancel seldom.
    """

    law: str
    cohorts: int = 20
    clients: int = 1000
    noise: float = 0.0
    rows: int = ROWS
    width: int = WIDTH


SHAPES = (
    *(Shape(law) for law in ("i^-1.1", "(i+2.7)^-1.07", "i^-2", "uniform")),
    Shape("i^-1.1", 8, 50),
    Shape("i^-2", 8, 50),
    Shape("i^-1.1", noise=0.01),
    Shape("i^-2", 8, 200, 0.1),
    Shape("i^-1.1", rows=1),
    Shape("i^-2", 8, 50, rows=1),
    Shape("few", 100, 200, width=50),
    Shape("few", rows=3, width=200),
    Shape("two", 100, 200, rows=3, width=30),
    Shape("plateau", 100, 50, width=400),
)
ATTACKS = (
    ("lie", (1,)),
    ("boost", (3, 5, 9, 51, 101)),
    ("negative", (3, 5, 9, 101)),
    ("random", (1,)),
    ("scattered", (1,)),
    ("botnet", (5, 10, 20)),
    ("swap", (2, 5)),
)


def law(name: str) -> I64:
    """Return 2^16 items that are as frequent as a law says: places 0 .. ITEMS - 1, rising.

    >>> int(np.bincount(law("i^-2"))[0]) / _QUANTILES > 0.6
    True
    """
    few = {"few": [0.4, 0.25, 0.15, 0.1, 0.1], "two": [0.5, 0.5], "plateau": [1 / 66] * 66}
    places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    if name in few:
        return np.searchsorted(np.cumsum(few[name]), places).clip(max=len(few[name]) - 1)
    exponent, offset = {
        "i^-1.1": (1.1, 0.0),
        "(i+2.7)^-1.07": (1.07, 2.7),
        "i^-2": (2.0, 0.0),
        "uniform": (0.0, 0.0),
    }[name]
    shares = (np.arange(1, ITEMS + 1) + offset) ** -exponent
    return np.searchsorted(np.cumsum(shares / shares.sum()), places).clip(max=ITEMS - 1)


class Hashes(NamedTuple):
    """Where and with which sign an item counts in each row: both int64 [rows, items]."""

    cells: I64
    signs: I64

    @classmethod
    def of(cls, seed: int, rows: int = ROWS, width: int = WIDTH, items: int = ITEMS) -> Hashes:
        """Return the hashes of a sketch, of its first items."""
        spec = SketchSpec(rows, width, Schedule.parse("shared"), 1, seed.to_bytes(32, "little"))
        location, sign, bit = spec.round_hash(0)
        ids = np.arange(items, dtype=np.uint64)
        cells, signs = np.empty((2, rows, items), np.int64)
        for row in range(rows):
            words = [kernels.hash_words(each[row : row + 1], ids)[0] for each in (location, sign)]
            cells[row] = kernels.locations(words[0], width)
            signs[row] = kernels.signs(words[1], bit)
        return cls(cells, signs)

    def codes(self, items: I64) -> I64:
        """Return twice the cell of each item, and 1 more if its sign is +: int64 [rows, items]."""
        found: I64 = 2 * self.cells[:, items] + (self.signs[:, items] > 0)
        return found

    @classmethod
    def of_histogram(cls) -> Hashes:
        """Return the counters of a histogram of 1,000 items: one row, without signs."""
        return cls(np.arange(ITEMS)[None] % WIDTH, np.ones((1, ITEMS), np.int64))


def honest(
    rng: np.random.Generator, codes: I64, sizes: I64, noise: float = 0.0, width: int = WIDTH
) -> I64:
    """Return the sums of cohorts of honest clients: int64 [cohorts, rows, width]."""
    held = rng.integers(0, _QUANTILES, sizes.sum(), dtype=np.uint16)
    start = np.repeat(np.arange(len(sizes)) * 2 * width, sizes)
    sums = np.empty((len(sizes), len(codes), width), np.int64)
    for row, own in enumerate(codes):
        # of the two signs apart: counting is several times as fast as adding weights
        counted = np.bincount(start + own[held], minlength=2 * len(sizes) * width).reshape(-1, 2)
        sums[:, row] = (counted[:, 1] - counted[:, 0]).reshape(-1, width)
    for cohort, size in zip(sums, sizes.tolist(), strict=True):
        if noise:
            drawn = rng.integers(0, _QUANTILES, cohort.shape, dtype=np.uint16)
            cohort += skellam_quantiles(noise * size)[drawn]
    return sums


@functools.cache
def skellam_quantiles(variance: float) -> I64:
    """Return 2^16 quantiles of Skellam noise.

    >>> round(float(skellam_quantiles(10.0).var()), 2)
    10.0
    """
    reach = math.ceil(12 * math.sqrt(variance) + 12)
    values = np.arange(-reach, reach + 1)
    below = np.cumsum(stats.skellam.pmf(values, variance / 2, variance / 2))
    places = np.searchsorted(below, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    return values[places]


def poison(
    rng: np.random.Generator, attack: str, times: int, sums: I64, hashes: Hashes, liars: I64
) -> None:
    """Add what the liars of each cohort send to the sums of the others."""
    rows = np.arange(ROWS)
    place = HEAVY if attack == "negative" else RARE

    def add(cohort: int, item: int, votes: int) -> None:
        sums[cohort, rows, hashes.cells[:, item]] += votes * hashes.signs[:, item]

    together = int(times * liars.mean())  # votes that liars agree on, the same in each cohort
    for cohort, number in enumerate(liars.tolist()):
        if attack in ("lie", "boost", "negative"):
            add(cohort, place, times * number * (-1 if attack == "negative" else 1))
        elif attack == "botnet" and number:
            add(cohort, place, together + (together - number) % 2)  # of the right parity
        elif attack == "swap" and number:
            add(cohort, place, together)
            add(cohort, HEAVY, number - together)
        elif attack == "random":
            largest = 1 << (BITS - 1)
            for _ in range(number):
                sums[cohort] += rng.integers(-largest, largest, (ROWS, WIDTH))
            sums[cohort] = (sums[cohort] + largest) % (2 * largest) - largest
        elif attack == "scattered":
            for row in range(ROWS):
                for _ in range(number):
                    cells = rng.choice(WIDTH, 10, replace=False)
                    sums[cohort, row, cells] += rng.choice([-1, 1], 10)


def _plan(clients: int) -> Plan:
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule=Schedule.parse("shared"),
        num_rounds=1,
        num_clients=clients,
        max_round_clients=clients,
        domain=IntegerRange(0, ITEMS - 1).describe(),
        max_items=1,
        seed=bytes(32),
    )


def possible(sums: I64, sizes: I64) -> list[int]:
    """Return the cohorts that land: those whose sum honest clients can have."""
    plan, found = _plan(int(sizes.sum())), []
    for cohort, (counters, size) in enumerate(zip(sums, sizes.tolist(), strict=True)):
        sketch = CountSketch(plan.spec, 0)
        sketch.counters, sketch.num_clients = counters, size
        try:
            check_plausible(sketch, plan)
            found.append(cohort)
        except RejectedSumError:
            pass
    return found


def false_alarms(shape: Shape, rounds: int, seed: int) -> dict[str, Any]:
    """Return how many honest rounds raise an alarm, and the figures beside their limits."""
    rng, items = np.random.default_rng([seed, SHAPES.index(shape)]), law(shape.law)
    sizes, alarms, found = np.full(shape.cohorts, shape.clients), 0, []
    held = int(items.max()) + 1
    for round in range(rounds):
        if shape.rows == 1:
            codes = Hashes.of_histogram().codes(items)
        elif round % SAME_HASHES == 0 or shape.width != WIDTH:
            seed = int(rng.integers(1 << 62))
            codes = Hashes.of(seed, shape.rows, shape.width, held).codes(items)
        sums = honest(rng, codes, sizes, shape.noise, shape.width)
        told = consistency(sums, sizes, noise=shape.noise, may_be_empty=shape.noise > 0)
        alarms += not told.is_consistent
        found.append((told.votes, told.votes_limit, told.squares, told.squares_limit))
    figures = np.array(found)
    mean, sd = figures.mean(axis=0), figures.std(axis=0)
    return {
        "law": shape.law,
        "rows": shape.rows,
        "width": shape.width,
        "cohorts": f"{shape.cohorts} x {shape.clients}",
        "noise": shape.noise * shape.clients,
        "rounds": rounds,
        "alarms": alarms,
        "votes": f"{mean[0]:.3f} +- {sd[0]:.3f}",
        "limit": float(mean[1]),
        "mean square": f"{mean[2]:.3f} +- {sd[2]:.3f}",
        "limit of it": float(mean[3]),
    }


def upper_bound(alarms: int, rounds: int, confidence: float = 0.95) -> float:
    """Return the largest rate that so few alarms leave possible (Clopper and Pearson 1934).

    >>> round(upper_bound(0, 100_000), 7)
    3e-05
    """
    if alarms >= rounds:
        return 1.0
    return float(stats.beta.ppf(confidence, alarms + 1, rounds - alarms))


class _Seen(NamedTuple):
    refused: bool
    left_out: int
    told: Consistency
    shift: float
    shift_left: float


def attacked(
    attack: str, times: int, liars: float, repeats: int, seed: int, noise: float = 0.0
) -> dict[str, Any]:
    """Return what screening says of rounds in which a share of the clients lies."""
    name = [kind for kind, _ in ATTACKS].index(attack)
    rng = np.random.default_rng([seed, name, times, round(liars * 1e6), round(noise * 1e6)])
    items, sizes = law("i^-1.1"), np.full(20, 1000)
    item = HEAVY if attack == "negative" else RARE
    true_share = float((items == item).mean())
    found = []
    for repeat in range(repeats):
        if repeat % 5 == 0:
            hashes = Hashes.of(int(rng.integers(1 << 62)))
        who = rng.permutation(sizes.sum())[: max(1, round(liars * sizes.sum()))]
        bad = np.bincount(who // 1000, minlength=len(sizes))
        sums = honest(rng, hashes.codes(items), sizes - bad, noise)
        poison(rng, attack, times, sums, hashes, bad)
        landed = list(range(len(sizes))) if noise else possible(sums, sizes)
        told = consistency(sums, sizes, noise=noise, may_be_empty=noise > 0)
        kept: list[int] = []
        rejected = len(sizes) - len(landed)
        if len(landed) >= FEWEST and rejected <= most_lost(len(sizes)):
            places, last = keep_cohorts(
                sums[landed], sizes[landed], noise, may_be_empty=noise > 0, rejected=rejected
            )
            kept = [landed[place] for place in places] if last.is_consistent else []
        found.append(
            _Seen(
                not kept,
                len(sizes) - len(kept) if kept else 0,
                told,
                _shift(sums, hashes, item, list(range(len(sizes)))) - true_share,
                _shift(sums, hashes, item, kept) - true_share if kept else 0.0,
            )
        )
    return {
        "attack": attack,
        "times": times,
        "liars": f"{liars:.3%}",
        "noise": 1000 * noise,
        "rounds": repeats,
        "refused": float(np.mean([one.refused for one in found])),
        "cohorts left out": float(np.mean([one.left_out for one in found])),
        "votes": float(np.median([one.told.votes for one in found])),
        "limit": float(np.median([one.told.votes_limit for one in found])),
        "mean square": float(np.median([one.told.squares for one in found])),
        "limit of it": float(np.median([one.told.squares_limit for one in found])),
        "shift": round(float(np.median([one.shift for one in found])), 5),
        "shift under refuse": round(float(np.median([one.shift_left for one in found])), 5),
    }


def _shift(sums: I64, hashes: Hashes, item: int, cohorts: list[int]) -> float:
    """Return the median estimate of an item's frequency from some cohorts of 1,000 clients."""
    rows = np.arange(ROWS)
    total = sums[cohorts][:, rows, hashes.cells[:, item]].sum(axis=0) * hashes.signs[:, item]
    return float(np.median(total)) / (1000 * len(cohorts))


def attack_cases() -> Iterator[tuple[str, int, float]]:
    """Yield each attack with its votes and the share of liars."""
    for attack, strengths in ATTACKS:
        for liars in LIARS:
            for times in strengths:
                yield attack, times, liars


@click.command("poisoning")
@click.option(
    "--honest",
    "rounds",
    type=click.IntRange(1),
    default=10_000,
    help="Honest rounds of each shape.",
)
@options.repeats(20, help="Rounds of each attack.")
@options.seed
@options.table
@options.quick(rounds=20, repeats=2)
def command(rounds: int, repeats: int, seed: int, path: Path | None) -> None:
    """Screen rounds with lying clients, and honest ones: what is found, and false alarms."""
    output.check_path(path)
    table = [attacked(*case, repeats, seed) for case in attack_cases()]
    table += [
        attacked("boost", times, 0.05, repeats, seed, noise)
        for noise in (0.01, 0.1, 1.0)
        for times in (9, 101)
    ]
    output.show(table)
    output.save(table, path)
    click.echo("\nhonest rounds")
    alarms = [false_alarms(shape, rounds, seed) for shape in SHAPES]
    output.show(alarms)
    number, all_rounds = sum(row["alarms"] for row in alarms), rounds * len(SHAPES)
    most = upper_bound(number, all_rounds)
    click.echo(
        f"{number} false alarms in {all_rounds:,} honest rounds: at 95 % confidence the rate is at"
        f" most {rounded_up(most):g}, and screening aims at {ALPHA:g}"
    )
    if number / all_rounds > ALPHA:
        sys.exit(1)
