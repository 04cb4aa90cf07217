"""Does a whole list of population limits hold, and what do two tables flag where nothing changed?

The limits of the share in a population are made for an item that is named beforehand. A union bound
makes them hold for a whole list, if each is of the confidence 1 - P / (2 d) for d candidates in
each of two tables. But limits that are made of two errors, of noise and of who was sampled, may
miss up to 1.25 times as often as they say. So the rule that docs/tables.md gives divides P / 1.25.

The first table is exact: the probability that the population limits of one item of a histogram
miss its share, as a multiple of what their confidence says. It is the largest over shares up to a
half, over the noise and over numbers of clients. It must be at most 1.25.

The second table runs campaigns. Two tables are drawn from one law, so that nothing changed; it
counts comparisons in which the two limits of any item do not overlap, and in which any item's share
is outside its limits in either table. A client types one word, or eight of which it may type some
again; both tables count all. It misses if so many have a probability below .001 at a rate of P.

The third table is about shares that did change: how far the two estimates of a word must be apart,
and which rise is nearly always seen, for a word that is named beforehand and for a whole list.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt
from scipy import stats

import fedtally
from experiments import options, output
from experiments.coverage import in_turn
from experiments.recovery import law
from fedtally.answer.estimates import clip_limits, uncertainty
from fedtally.domain import IntegerRange
from fedtally.privacy.events import Mechanism
from fedtally.recovery.intervals import Limits, sampling_error
from fedtally.recovery.noise_law import NONE, NoiseLaw

F64 = npt.NDArray[np.float64]
CHANCE = 0.05  # that anything is wrong in both tables together
MOST = 1.25  # limits of one item miss its share at most so many times as often as they say
RARE = 0.001  # so many misses are no chance
SHARES = 150  # of an item, for the exact table
ONE_ITEM = 1.0 - CHANCE / 2  # the confidence of two limits for an item that is named beforehand
NEARLY_ALWAYS = 0.95
DRAWS = 40_000  # pairs of tables, for each rise
POINT = 0.01  # of a share
RISEN = 400_000, 0.012  # the clients of each table that is compared, and the share in the first one
LISTED = 40_000  # candidates of its list
# of a table: what is counted of a person, and the noise in a count (fedtally plan --details)
NOISES = {
    "one word, epsilon 1": NoiseLaw.of_draws(Mechanism.GEOMETRIC, 1.357**2, 1),
    "20 words, epsilon 0.20": NoiseLaw.of_draws(Mechanism.ROUNDED_GAUSSIAN, 92.0**2, 1),
}
MECHANISMS = ("none", "geometric", "rounded-gaussian")
STDDEVS = (1, 2, 4, 6, 8, 10, 12, 15, 18, 22, 28, 40, 60, 85, 100, 150, 300, 1000)  # of the noise
CLIENTS = (1000, 2000, 20_000)  # of a table; with fewer the limits may hold less often


def confidence(candidates: int) -> float:
    """Return the confidence of one item's limits with which two tables hold as a whole.

    >>> round(confidence(500), 9)
    0.99996
    """
    return 1.0 - CHANCE / MOST / (2 * candidates)


def missed(noise: NoiseLaw, clients: int, level: float) -> tuple[float, float]:
    """Return the largest probability that an item's population limits miss, and where.

    Args:
        noise: the noise in each count.
        clients: the clients, a sample of the population.
        level: the probability that each of the limits may miss, one minus their confidence.

    Returns:
        the probability, as a multiple of `level`, and the clients that hold the item on average.

    >>> times, held = missed(NONE, 1000, 0.05)
    >>> 0.9 < times < 1.1
    True
    """
    half = noise.half(level) if noise.stddev else 0
    reach = 4 * half + 10
    seen = np.arange(-reach, clients + reach + 1) / clients
    slack = half / clients
    limits = clip_limits(Limits(seen - slack, seen + slack))
    low, high = uncertainty(seen, limits, sampling_error(seen, clients, 1.0 - level)).limits
    worst, where = 0.0, 0.0
    for held in np.geomspace(0.01, clients / 2, SHARES):
        share = held / clients
        wide = 12 * np.sqrt(held) + 60
        counts = np.arange(max(0, int(held - wide)), min(clients, int(held + wide)) + 1)
        # what is seen and leaves the share outside: at most `below`, at least `above`
        below, above = np.flatnonzero(high < share) - reach, np.flatnonzero(low > share) - reach
        outside = np.zeros(len(counts))
        if len(below):
            outside += noise.at_least(np.asarray(counts - below[-1], np.float64))
        if len(above):
            outside += noise.at_least(np.asarray(above[0] - counts, np.float64))
        found = float(stats.binom.pmf(counts, clients, share) @ outside) / level
        if found > worst:
            worst, where = found, float(held)
    return worst, where


def exact_row(mechanism: str, candidates: int) -> dict[str, object]:
    """Return a row of the first table: the worst of all noise and numbers of clients."""
    level = 1.0 - confidence(candidates)
    worst = (0.0, 0.0, 0.0)
    for stddev in STDDEVS if mechanism != "none" else (0.0,):
        noise = NoiseLaw.of_draws(Mechanism(mechanism), stddev**2, 1) if stddev else NONE
        for clients in CLIENTS:
            worst = max(worst, (*missed(noise, clients, level), stddev))
    times, held, stddev = worst
    return {
        "noise": mechanism,
        "candidates": candidates,
        "times the level": times,
        "clients that hold the item": held,
        "standard deviation": stddev,
    }


class Case(NamedTuple):
    """Comparisons of two tables of one law; epsilon 0 and no mechanism: no noise."""

    law: str
    items: int
    mechanism: str
    epsilon: float


class Seen(NamedTuple):
    """Of one comparison: whether any item is so, among its candidates."""

    flagged_here: bool  # the limits among the clients do not overlap
    flagged: bool  # those of the population do not
    outside: bool  # an item's share is outside its population limits, in either table


LAWS: dict[str, Callable[[int], F64]] = {
    "zipf": lambda size: law("1.1", size),
    "flat": lambda size: np.full(size, 1.0 / size),
}


def compare(case: Case, clients: int, candidates: int, seed: int, repeat: int) -> Seen:
    """Draw two tables of one law, count both, and compare them."""
    rng = np.random.default_rng([seed, repeat, *map(ord, repr(case))])
    shares = LAWS[case.law](candidates)
    held = 1.0 - (1.0 - shares) ** case.items  # the share of the people who type it at all
    tables = []
    for _ in range(2):
        typed = rng.choice(candidates, (clients, case.items), p=shares)
        result = fedtally.estimate(
            typed.ravel(),
            clients=np.repeat(np.arange(clients), case.items),
            max_items=case.items,
            domain=IntegerRange(0, candidates),
            encoding="histogram",
            mechanism=case.mechanism if case.epsilon else None,
            epsilon=case.epsilon or None,
            not_private=case.epsilon > 0,
            confidence=confidence(candidates),
            seed=rng.bytes(32),
        )
        found = result.estimates(range(candidates))
        names = ("low", "high", "population_low", "population_high")
        tables.append([np.array([getattr(one, name) for one in found]) for name in names])
    (low, high, least, most), (other_low, other_high, other_least, other_most) = tables
    return Seen(
        bool(((low > other_high) | (other_low > high)).any()),
        bool(((least > other_most) | (other_least > most)).any()),
        any(bool(((a > held) | (held > b)).any()) for a, b in ((least, most), tables[1][2:])),
    )


def repeated(case: Case, clients: int, candidates: int, seed: int, repeats: int) -> list[Seen]:
    """Make the comparisons of one case."""
    return [compare(case, clients, candidates, seed, repeat) for repeat in range(repeats)]


def apart(noise: NoiseLaw, level: float, clients: int, share: float, rise: float) -> float:
    """Return how often the population limits of two tables show that a share rose.

    Args:
        noise: the noise in each count.
        level: one minus the confidence of the limits.
        clients: the clients of each table, a sample of the population.
        share: of the clients that hold the item in the first table.
        rise: how much larger the share is in the second table.

    >>> apart(NONE, 0.025, 1000, 0.1, 0.0) < 0.01 < 0.99 < apart(NONE, 0.025, 1000, 0.1, 0.1)
    True
    """
    rng = np.random.default_rng(0)
    reach = int(12 * noise.stddev) + 1 if noise.stddev else 0
    values = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = noise.at_least(values) - noise.at_least(values + 1) if noise.stddev else np.ones(1)
    half = noise.half(level) / clients if noise.stddev else 0.0

    def limits(held: float) -> Limits:
        counts = rng.binomial(clients, held, DRAWS)
        seen = (counts + rng.choice(values, DRAWS, p=weights / weights.sum())) / clients
        near = clip_limits(Limits(seen - half, seen + half))
        return uncertainty(seen, near, sampling_error(seen, clients, 1.0 - level)).limits

    _, before = limits(share)
    after, _ = limits(share + rise)
    return float((after > before).mean())


def rise_row(noise: str, clients: int, share: float, candidates: int | None) -> dict[str, object]:
    """Return a row of the third table: of an item named beforehand, or of so many candidates."""
    level = 1.0 - (ONE_ITEM if candidates is None else confidence(candidates))

    law = NOISES[noise]

    def least(often: float) -> float:  # in points, rounded up to two digits after the dot
        steps = itertools.count(1)
        while apart(law, level, clients, share, (step := next(steps)) / 100 * POINT) < often:
            pass
        return step / 100

    return {
        "noise": noise,
        "clients": clients,
        "of": "an item named beforehand" if candidates is None else f"{candidates:,} candidates",
        "a rise seen in half": least(0.5),
        f"in {NEARLY_ALWAYS:.0%}": least(NEARLY_ALWAYS),
        "seen without a change": 2 * apart(law, level, clients, share, 0.0),  # up or down
    }


def is_rare(number: int, of: int) -> bool:
    """Return whether so many of the comparisons are hardly chance at a rate of P.

    >>> is_rare(18, 200), is_rare(25, 200)
    (False, True)
    """
    return bool(stats.binom.sf(number - 1, of, CHANCE) < RARE)


def case_row(case: Case, seen: list[Seen]) -> dict[str, object]:
    """Return a row of the second table."""
    here, flagged, outside = (sum(column) for column in zip(*seen, strict=True))
    return case._asdict() | {
        "comparisons": len(seen),
        "low and high flag": here,
        "population limits flag": flagged,
        "a share outside": outside,
        "verdict": "MISS" if is_rare(flagged, len(seen)) or is_rare(outside, len(seen)) else "PASS",
    }


@click.command("changed")
@options.quick(repeats=2, sizes=(500,), clients=2000)
@options.clients(20_000, help="Of each table of the second experiment.")
@options.domain_size(500, help="Candidates of the second experiment.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    type=click.IntRange(1),
    default=(8, 500, 40_000, 100_000),
    help="Candidates of the first table.",
)
@options.repeats(200, help="Comparisons of each case.")
@options.seed
@options.jobs
@options.table
def command(
    clients: int,
    domain_size: int,
    sizes: tuple[int, ...],
    repeats: int,
    seed: int,
    jobs: int,
    path: Path | None,
) -> None:
    """Compare tables in which nothing changed, item by item; fail where too many seem to."""
    output.check_path(path)
    exact = [exact_row(mechanism, size) for mechanism in MECHANISMS for size in sizes]
    output.show(exact)
    worst = max(float(str(row["times the level"])) for row in exact)
    kept = worst <= MOST
    click.echo(
        f"{'PASS' if kept else 'MISS'}  the limits of one item miss its share at most {MOST}"
        f" times as often as they say: {worst:.3g}\n"
    )
    cases = [
        Case(name, items, mechanism, epsilon)
        for name in LAWS
        for items in (1, 8)
        for mechanism, epsilon in (
            ("none", 0.0),
            ("auto", 1.0),
            ("rounded-gaussian", 1.0),
            ("rounded-gaussian", 0.23),
        )
    ]
    work = functools.partial(
        repeated, clients=clients, candidates=domain_size, seed=seed, repeats=repeats
    )
    rows = [case_row(case, seen) for case, seen in in_turn(cases, work, jobs)]
    output.show(rows)
    output.save(rows, path)
    click.echo(f"\nRises from a share of {RISEN[1]:.1%}, in points:\n")
    output.show([rise_row(noise, *RISEN, of) for noise in NOISES for of in (None, LISTED)])
    if not kept or any(row["verdict"] == "MISS" for row in rows):
        sys.exit(1)
