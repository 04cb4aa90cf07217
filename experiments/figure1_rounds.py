"""The paper's Figure 1 c, f and i: the largest error of the schedules against the width.

A campaign has ten rounds of n clients, drawn from the population's law, items in random order; its
sums are decoded by the paper's medians and jointly. Errors are those of the frequencies among the
clients that were drawn. What campaigns of the same clients and hashes differ by is compared as the
ratio of their mean errors; over widths, as the geometric mean of the ratios. An error below half a
client, which joint recovery may reach, counts as that much there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import populations, recovery, rounds
from experiments.populations import Population
from experiments.study import Row, describe
from experiments.tradeoff import LOOKS
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import paper
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import Schedule, SketchSpec
from fedtally.sources import synthetic

P = 0.1
PART = "ten rounds"
PANELS = {"gowalla": "abc", "c4": "def", "sentiment140": "ghi"}
DECODERS = {"median": (0, (4, 2)), "joint": "-"}  # lines
FAVOURED = 2.326  # standard errors: the 99 % quantile of the normal distribution, of one side
SIMILAR = 1.25  # factor within which errors are called similar
CHUNK = 10  # campaigns of a task
SIMILARLY = "hybrid and fresh perform similarly, and both are better than shared"
CONSISTENT = 'said only to be "consistent with our prior understandings"'
ADVANTAGE = "hybrid has the advantage over fresh and shared"
_CLAIMS = {
    "gowalla": (SIMILARLY, "section 3, Figure 1 c"),
    "c4": (ADVANTAGE, "section 3, Figure 1 f"),
    "sentiment140": (SIMILARLY, f"section 3, Figure 1 i: {CONSISTENT}; held to Gowalla's"),
}


class Task(NamedTuple):
    """Campaigns `first` to `last` - 1 of ten rounds at one width; `law` is a digest."""

    population: str
    title: str
    data: str | None
    law: str
    clients: int
    rows: int
    width: int
    decoder: str
    first: int
    last: int
    seed: int


class Ratio(NamedTuple):
    """A ratio and its standard error."""

    value: float
    error: float

    def below(self, bound: float) -> bool:
        """Say whether it is below at the level of 99 %.

        >>> Ratio(0.5, 0.1).below(1), Ratio(0.9, 0.1).below(1)
        (True, False)
        """
        return self.value + FAVOURED * self.error < bound

    def above(self, bound: float) -> bool:
        """Say whether it is above at the level of 99 %."""
        return self.value - FAVOURED * self.error > bound

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.1g}"


@functools.cache
def load(name: str, data: str | None) -> Population:
    """Return a population of the paper, or a synthetic one with n = d / 10 clients.

    >>> load("zipf:d=1000", None)[3:5]
    (100, 10)
    """
    if not synthetic.is_synthetic(name):
        return populations.load(name, Path(data) if data else None)
    law = synthetic.frequencies(name)
    if len(law) < 500:
        raise InvalidInputError(
            f"a synthetic population must have at least 500 items, got {len(law)}"
        )
    return Population(
        name, f"{name} (synthetic)", law, len(law) // 10, paper.rows_for(len(law), P), False
    )


def whole(*numbers: int) -> int:
    """Return the seed of one campaign: a whole number from the experiment's seed and its place."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def largest_error(
    held: rounds.I64, rows: int, width: int, schedule: str, decoder: str, seed: bytes
) -> float:
    """Return the l_inf error of the frequencies of one campaign; held: int64 [rounds, d]."""
    sketches, size = recovery.land(held, rows, width, schedule, seed), held.shape[1]
    by = (
        JointDecoder(sketches, IntegerRange(rounds.FIRST_ID, size))
        if decoder == "joint"
        else MedianDecoder(sketches)
    )
    return float(np.abs(by.range(rounds.FIRST_ID, size) - held.sum(axis=0)).max() / held.sum())


def tasks(
    population: Population,
    data: str | None,
    widths: Iterable[int],
    repeats: dict[str, int],
    seed: int,
) -> Iterator[Task]:
    """Yield the tasks of a population; repeats: campaigns of each decoder."""
    law = populations.digest(population.law)
    for width in widths:
        for decoder, most in repeats.items():
            for first in range(0, most, CHUNK):
                last = min(first + CHUNK, most)
                common = (
                    population.name,
                    population.title,
                    data,
                    law,
                    population.num_clients,
                    population.rows,
                )
                yield Task(*common, width, decoder, first, last, seed)


def measure(task: Task) -> list[Row]:
    """Return a row for every campaign and schedule."""
    found = []
    law, clients = load(task.population, task.data).law, recovery.ROUNDS * task.clients
    for repeat in range(task.first, task.last):
        seed = whole(task.seed, int(task.law, 16), task.width, repeat)
        rng = np.random.default_rng(seed)
        held, hashes = recovery.draw(law, clients, "alike", rng), rng.bytes(32)
        for schedule in recovery.SCHEDULES:
            spec = SketchSpec(
                task.rows, task.width, Schedule.parse(schedule), recovery.ROUNDS, hashes
            )
            linf = largest_error(held, task.rows, task.width, schedule, task.decoder, hashes)
            row: Row = {
                "part": PART,
                "population": task.population,
                "title": task.title,
                "law": task.law,
            }
            row |= {
                "domain_size": len(law),
                "clients": clients,
                "experiment_seed": task.seed,
                "tau": None,
            }
            row |= {"method": schedule, "decoder": task.decoder, "pilot": None, "repeat": repeat}
            row |= {
                "rows": task.rows,
                "width": task.width,
                "sizing": None,
                "warned": None,
                "linf": linf,
                "kept": None,
            }
            found.append(row | {"seed": seed, "plan": describe(spec, clients)})
    return found


def errors(rows: Iterable[Row], method: str, decoder: str) -> dict[int, rounds.F64]:
    """Return the errors at each width, by repeat: float64 [repeats]."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        if (row["part"], row["method"], row["decoder"]) == (PART, method, decoder):
            found.setdefault(row["width"], []).append(
                (row["repeat"], max(row["linf"], 0.5 / row["clients"]))
            )
    return {
        width: np.array([linf for _, linf in sorted(pairs)])
        for width, pairs in sorted(found.items())
    }


def ratio(ours: rounds.F64, others: rounds.F64) -> Ratio:
    """Return mean(ours) / mean(others) of paired campaigns, with the standard error.

    >>> ratio(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    Ratio(value=0.5, error=0.0)
    >>> ratio(np.array([1.0]), np.array([2.0]))  # which could be anything
    Ratio(value=0.5, error=inf)
    """
    count = min(len(ours), len(others))
    ours, others = ours[:count], others[:count]
    value = float(ours.mean() / others.mean())
    rest = ours - value * others
    error = np.sqrt(rest @ rest / (count - 1) / count) / others.mean() if count > 1 else np.inf
    return Ratio(value, float(error))


def overall(ratios: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of independent ratios.

    >>> overall([Ratio(0.5, 0.0), Ratio(2.0, 0.0)])
    Ratio(value=1.0, error=0.0)
    """
    value = float(np.exp(np.mean([np.log(one.value) for one in ratios])))
    return Ratio(
        value,
        value * float(np.sqrt(sum((one.error / one.value) ** 2 for one in ratios))) / len(ratios),
    )


def between(rows: Sequence[Row], ours: tuple[str, str], others: tuple[str, str]) -> list[Ratio]:
    """Return the ratio at every width of one (schedule, decoder) to another."""
    first, second = errors(rows, *ours), errors(rows, *others)
    return [ratio(first[width], second[width]) for width in first]


def summary(rows: Sequence[Row], title: str) -> Row:
    """Return a row of the table: the ratios over widths, and their range."""
    table: Row = {"population": title}
    for decoder in DECODERS:
        for ours, others in (("fresh", "shared"), ("hybrid", "shared"), ("hybrid", "fresh")):
            table[f"{ours} / {others}, {decoder}"] = _said(
                between(rows, (ours, decoder), (others, decoder))
            )
    table["hybrid, joint / median"] = _said(
        between(rows, ("hybrid", "joint"), ("hybrid", "median"))
    )
    return table


def claim(rows: Sequence[Row], name: str, title: str) -> Row:
    """Return the row of the paper's claim about a population, with the paper's decoder.

    Other populations are held to Gowalla's claim.

    Hybrid and fresh similarly, and both better than shared: reproduced if both are below shared and
    hybrid / fresh is within 1.25 and its inverse, all at 99 % over all widths; with a caveat if
    both are below shared and hybrid is, by ratio, nearer to fresh than to shared. Hybrid's
    advantage: reproduced if it is below both at 99 % over all widths, and above fresh at no width;
    with a caveat if it is below both over all, or at some widths.
    """
    ratios = {
        pair: between(rows, (pair[0], "median"), (pair[1], "median"))
        for pair in (("hybrid", "fresh"), ("hybrid", "shared"), ("fresh", "shared"))
    }
    fresh, shared, other = (overall(found) for found in ratios.values())
    said, place = _CLAIMS.get(name, (SIMILARLY, "no claim of the paper, held to Gowalla's"))
    if said == SIMILARLY:
        better = shared.below(1.0) and other.below(1.0)
        similar = fresh.below(SIMILAR) and fresh.above(1 / SIMILAR)
        nearer = abs(np.log(fresh.value)) < abs(np.log(shared.value))
        verdict = verdict_of(better and similar, bool(better and nearer))
    else:
        pairs = list(zip(ratios["hybrid", "fresh"], ratios["hybrid", "shared"], strict=True))
        over_all = fresh.below(1.0) and shared.below(1.0)
        somewhere = any(one.below(1.0) and two.below(1.0) for one, two in pairs)
        behind = any(one.above(1.0) or two.above(1.0) for one, two in pairs)
        verdict = verdict_of(over_all and not behind, over_all or somewhere)
    ahead = sum(one.below(1.0) for one in ratios["hybrid", "fresh"])
    late = sum(one.above(1.0) for one in ratios["hybrid", "fresh"])
    ours = (
        f"hybrid / fresh {fresh} (below 1 at {ahead}, above at {late} of"
        f" {len(ratios['hybrid', 'fresh'])} widths)"
    )
    ours += f", hybrid / shared {shared}, fresh / shared {other}"
    return {"population": title, "claim": said, "place": place, "ours": ours, "verdict": verdict}


def verdict_of(reproduced: bool, partly: bool) -> str:
    """Return the verdict in words."""
    return (
        "reproduced" if reproduced else "reproduced with a caveat" if partly else "not reproduced"
    )


def draw(axes: Any, rows: Sequence[Row]) -> None:
    """Draw the mean error over the width, with its standard error."""
    for schedule, (colour, marker) in LOOKS.items():
        for decoder, line in DECODERS.items():
            found = errors(rows, schedule, decoder)
            axes.errorbar(
                list(found),
                [values.mean() for values in found.values()],
                [
                    values.std(ddof=len(values) > 1) / np.sqrt(len(values))
                    for values in found.values()
                ],
                color=colour,
                marker=marker,
                linestyle=line,
                markersize=4,
                label=f"{schedule}, {'joint recovery' if decoder == 'joint' else 'median'}",
            )
    axes.set(xscale="log", yscale="log", xlabel="width W")
    label(axes)


def label(axes: Any) -> None:
    """Write 1, 2 and 5 of every decade below a logarithmic axis."""
    from matplotlib import ticker

    low, high = axes.get_xlim()
    # a quick run has few: LogLocator would then choose others by itself, which overlap
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    places = [leading * 10.0**power for power in decades for leading in (1, 2, 5)]
    few = sum(low <= place <= high for place in places) < 2
    axes.xaxis.set_major_locator(
        ticker.MaxNLocator(3) if few else ticker.LogLocator(subs=(1, 2, 5))
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _said(ratios: Sequence[Ratio]) -> str:
    values = [one.value for one in ratios]
    return f"{overall(ratios)} ({min(values):.2g} to {max(values):.2g})"
