"""Frequencies that change from round to round: made by law, or of real tables.

Items weigh (i + 2.7)^-1.1 before they change. A stream is float64 [rounds, items], and each round
adds up to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from experiments import output, rounds
from fedtally.domain import IntegerRange
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Rng = np.random.Generator

_NEVER = 1e-12  # weight of an item before its birth and after its end
_PERIOD = 12  # rounds
_LAST_YEARS, _FEWEST_BIRTHS = 48, 60
_HOURLY, _NAMES = "brightkite_us_hourly.npz", "us_baby_names.parquet"


class Stream(NamedTuple):
    """A campaign whose frequencies change.

    Attributes:
        laws: float64 [rounds, items], the population of each round.
        counts: int64 [rounds, items], the clients that hold each item.
        sketches: the sums of all rounds.
        domain: the items.
    """

    laws: F64
    counts: I64
    sketches: list[CountSketch]
    domain: IntegerRange


def zipf(size: int) -> F64:
    """Return the weights of the items before they change, which add up to 1: float64 [size]."""
    weights: F64 = (np.arange(1.0, size + 1) + 2.7) ** -1.1
    weights /= weights.sum()
    return weights


def _none(base: F64, number: int, rng: Rng) -> F64:
    return np.repeat(base[None], number, axis=0)


def _step(base: F64, number: int, rng: Rng) -> F64:
    side = rng.choice([-1.0, 1.0], len(base))
    later = np.arange(number)[:, None] >= 2 * number // 3
    return base * np.where(later, 2.0**side, 1.0)


def _linear(base: F64, number: int, rng: Rng) -> F64:
    side = rng.choice([-1.0, 1.0], len(base))
    return base * 4.0 ** (side * (np.linspace(0.0, 1.0, number)[:, None] - 0.5))


def _periodic(base: F64, number: int, rng: Rng) -> F64:
    phase = rng.uniform(0.0, 2 * np.pi, len(base))
    return base * (1 + 0.8 * np.sin(2 * np.pi * np.arange(number)[:, None] / _PERIOD + phase))


def _births(base: F64, number: int, rng: Rng) -> F64:
    size = len(base)
    born = np.where(rng.random(size) < 0.25, rng.integers(0, number, size), 0)
    gone = np.where(rng.random(size) < 0.25, rng.integers(0, number, size) + 1, number)
    now = np.arange(number)[:, None]
    return base * ((now >= born) & (now < gone)) + _NEVER


def _spikes(base: F64, number: int, rng: Rng) -> F64:
    return base * np.where(rng.random((number, len(base))) < 0.1, 10.0, 0.1)


# none: nothing changes. step: each item doubles or halves after two thirds of the rounds. linear:
# each grows or falls by a factor of 4, steadily. periodic: each swings by .8 of itself in 12
# rounds, at a time of its own. births: a quarter is born, a quarter ends, at any round. spikes: in
# each round a tenth of the items is ten times as frequent, and the others a tenth.
KINDS: dict[str, Callable[[F64, int, Rng], F64]] = {
    "none": _none,
    "step": _step,
    "linear": _linear,
    "periodic": _periodic,
    "births": _births,
    "spikes": _spikes,
}


def _shares(counts: F64) -> F64:
    found: F64 = counts / counts.sum(axis=1, keepdims=True)
    return found


def laws(kind: str, num_rounds: int, size: int, rng: Rng) -> F64:
    """Return a stream of one of `KINDS`.

    >>> laws("linear", 48, 200, np.random.default_rng(0)).shape
    (48, 200)
    """
    return _shares(KINDS[kind](zipf(size), num_rounds, rng))


def _by(periods: npt.NDArray[np.generic], items: npt.NDArray[np.generic], counts: I64) -> F64:
    """Return the counts of items by period, without items of none."""
    _, line = np.unique(periods, return_inverse=True)
    names, column = np.unique(items, return_inverse=True)
    found = np.zeros((line.max() + 1, len(names)))
    np.add.at(found, (line, column), counts)
    return found


def _check_ins(folder: Path, period: str) -> F64:
    with np.load(_there(folder / _HOURLY)) as table:
        return _by(table[period], table[f"{period}_cell"], table[f"{period}_count"])


def _births_by_year(folder: Path) -> F64:
    from pyarrow import parquet

    table = parquet.read_table(_there(folder / _NAMES))
    year, name, count = (table[column].to_numpy() for column in ("year", "name", "count"))
    late = year > year.max() - _LAST_YEARS
    found = _by(year[late], name[late], count[late])
    return found[:, found.sum(axis=0) >= _FEWEST_BIRTHS]


def _there(path: Path) -> Path:
    if not path.is_file():
        raise output.MissingDataError(
            f"{path} does not exist: --data must name the folder of {path.name}"
        )
    return path


# Check-ins of Brightkite in cells of a map, by hour of the day and by month of the year; first
# names in the US by year of birth, in the last 48 years.
REAL: dict[str, Callable[[Path], F64]] = {
    "hours": lambda folder: _check_ins(folder, "hour"),
    "months": lambda folder: _check_ins(folder, "month"),
    "names": _births_by_year,
}


def real(name: str, folder: Path) -> F64:
    """Return a stream of one of `REAL`.

    Raises:
        MissingDataError: its table is not in the folder.
    """
    return _shares(REAL[name](folder))


def deal(stream: F64, clients: npt.ArrayLike, rng: Rng) -> I64:
    """Return how many clients of each round hold each item; `clients` is one number, or each."""
    people = np.broadcast_to(clients, len(stream))
    return np.stack([rng.multinomial(n, p) for n, p in zip(people, stream, strict=True)])


def land(laws: F64, counts: I64, shape: tuple[int, int], noise: float, rng: Rng) -> Stream:
    """Return a campaign of hybrid rounds, with rounded normal noise on each counter.

    Args:
        laws: float64 [rounds, items].
        counts: int64 [rounds, items].
        shape: rows and width of the sketch.
        noise: standard deviation of the noise of a round's counter; 0 for none.
        rng: draws hashes and noise.
    """
    number, size = counts.shape
    spec = SketchSpec(*shape, Schedule.parse("hybrid"), number, rng.bytes(32))
    sketches = [CountSketch(spec, m) for m in range(number)]
    for sketch, held in zip(sketches, counts, strict=True):
        sketch.add_range(rounds.FIRST_ID, held)
        if noise:
            drawn = rng.normal(0.0, noise, sketch.counters.shape)
            sketch.counters += np.rint(drawn).astype(np.int64)
    return Stream(laws, counts, sketches, IntegerRange(rounds.FIRST_ID, size))
