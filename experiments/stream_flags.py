"""Flags of changed items: how often they are false in quiet streams, and how late they come.

An item is flagged where its e-value, after any round so far, reaches d / alpha. So all items of a
stream that does not change are ever flagged with a probability of at most alpha.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from experiments import drift, study
from experiments.drift import F64
from experiments.stream_windows import Scale, row
from fedtally.domain import IntegerRange
from fedtally.recovery import changes
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.kind import FittedDecoder
from fedtally.sketch import CountSketch

ALPHA = 0.05
QUIET = ("equal", "unequal", "missing", "noise")  # rounds of quiet streams
_FEWEST = 100  # clients of an unequal round
_LANDED = 5 / 6  # of the rounds, where some are missing
_NOISE = 5.0  # standard deviation of a counter
WATCHED_FROM = 6  # rounds
# Items that change, of each size: three double, three halve, and one that is half as large again
# goes, so that the others keep their frequencies.
SIZES = {"1 %": 0.01, ".4 %": 0.004}
_WEIGHTS = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5])
_FACTORS = np.array([2.0, 2.0, 2.0, 0.5, 0.5, 0.5, 0.0])
# Twenty items are born, and four go.
BORN, BORN_SIZE, GONE, GONE_SIZE = 20, 0.002, 4, 0.01
CHANGES = ("doubled or halved", "born")
WITHIN = 16  # rounds in which changes are looked for
NEVER = 999  # rounds, of an item that is not found


class Quiet(NamedTuple):
    """A stream in which nothing changes.

    Attributes:
        rounds: the kind of its rounds, one of `QUIET`.
        scale: its size.
        seed: the seed of all draws.
        watched: whether it is decoded anew after each round.
    """

    rounds: str
    scale: Scale
    seed: int
    watched: bool = False

    @property
    def noise(self) -> float:
        """The standard deviation of a counter of a round."""
        return _NOISE if self.rounds == "noise" else 0.0


class Changed(NamedTuple):
    """A stream that is decoded anew after each round, in which a few items change at one round.

    Attributes:
        change: the kind of its change, one of `CHANGES`.
        scale: its size.
        seed: the seed of all draws.
        noise: standard deviation of a counter of a round.
    """

    change: str
    scale: Scale
    seed: int
    noise: float


def _changes(sketches: list[CountSketch], domain: IntegerRange) -> changes.Changes | None:
    """Return what a fit of all these rounds says; None where no fit answers."""
    fit = Recovery.BELIEF.kind.make(sketches, domain)
    assert isinstance(fit, FittedDecoder)
    if not fit.has_fit:
        return None
    ids = range(domain.first, domain.first + domain.size)
    return changes.find_changes(changes.round_values(fit, ids))


def measure_quiet(task: Quiet) -> list[study.Row]:
    """Count the flags of a stream without changes, and whether two windows differ."""
    scale = task.scale
    rng = np.random.default_rng([task.seed, QUIET.index(task.rounds), task.watched])
    people = np.full(scale.num_rounds, scale.clients)
    if task.rounds == "unequal":
        drawn = rng.gamma(2.0, scale.clients / 2, scale.num_rounds)
        people = np.maximum(drawn.astype(np.int64), _FEWEST)
    laws = np.repeat(drift.zipf(scale.size)[None], scale.num_rounds, axis=0)
    counts = drift.deal(laws, people, rng)
    stream = drift.land(laws, counts, (scale.rows, scale.width), task.noise, rng)
    landed = stream.sketches
    if task.rounds == "missing":
        kept = np.sort(rng.permutation(len(landed))[: int(_LANDED * len(landed))])
        landed = [landed[m] for m in kept]
    looks = range(WATCHED_FROM, len(landed) + 1) if task.watched else [len(landed)]
    flags, largest = 0, -np.inf
    for number in looks:
        if (found := _changes(landed[:number], stream.domain)) is not None:
            flags += int(changes.flagged(found, ALPHA).sum())
            largest = max(largest, float(found.largest.max()))
    plan = study.describe(stream.sketches[0].spec, int(counts.sum()))
    name = f"quiet, {task.rounds}{', watched' if task.watched else ''}"
    return [
        row(task, plan, name, "", "false flags", float(flags)),
        row(task, plan, name, "", "largest log e", largest),
    ]


def _two_laws(task: Changed, rng: drift.Rng) -> tuple[F64, F64]:
    """Return the frequencies before and after the change, whose changed items come first."""
    if task.change == "born":
        before = np.repeat([0.0, GONE_SIZE], [BORN, GONE])
        after = np.repeat([BORN_SIZE, 0.0], [BORN, GONE])
    else:
        before = np.outer(list(SIZES.values()), _WEIGHTS).reshape(-1)
        after = before * np.tile(_FACTORS, len(SIZES))
    others = drift.zipf(task.scale.size - len(before)) * (1 - before.sum())
    return np.append(before, others), np.append(after, others)


def measure_changed(task: Changed) -> list[study.Row]:
    """Look after each round for the items that change at two thirds of the rounds."""
    scale = task.scale
    rng = np.random.default_rng([task.seed, len(task.change), int(task.noise)])
    first = 2 * scale.num_rounds // 3
    before, after = _two_laws(task, rng)
    laws = np.where(np.arange(scale.num_rounds)[:, None] < first, before, after)
    order = rng.permutation(scale.size)
    laws, moved = laws[:, order], np.argsort(order)[: int((before != after).sum())]
    counts = drift.deal(laws, scale.clients, rng)
    stream = drift.land(laws, counts, (scale.rows, scale.width), task.noise, rng)
    late = np.full((2, scale.size), np.inf)  # rounds until an item is flagged, and listed
    for number in range(first + 1, min(first + WITHIN, scale.num_rounds) + 1):
        if (found := _changes(stream.sketches[:number], stream.domain)) is None:
            continue
        for line, rule in zip(late, (changes.flagged, changes.listed), strict=True):
            line[rule(found, ALPHA) & np.isinf(line)] = number - first
    plan = study.describe(stream.sketches[0].spec, int(counts.sum()))
    return list(_said(task, plan, late, moved, before, after))


def _name(before: float, after: float) -> str:
    """Return what an item that changes is called."""
    if not before or not after:
        return "born" if after else "gone"
    [size] = [name for name, size in SIZES.items() if size == before]
    return f"{size} doubled" if after > before else f"{size} halved"


def _said(
    task: Changed, plan: str, late: F64, moved: npt.NDArray[np.intp], before: F64, after: F64
) -> list[study.Row]:
    quiet = np.ones(late.shape[1], bool)
    quiet[moved] = False
    found = [
        row(task, plan, task.change, "", f"false, {rule}", float(np.isfinite(line[quiet]).sum()))
        for rule, line in zip(("flagged", "listed"), late, strict=True)
    ]
    for place, item in enumerate(moved):
        name = _name(float(before[place]), float(after[place]))
        for rule, line in zip(("flagged", "listed"), late, strict=True):
            delay = float(line[item]) if np.isfinite(line[item]) else float(NEVER)
            found.append(row(task, plan, task.change, "", f"{name}, {rule} after", delay))
    return found
