"""Synthetic populations: clients that draw their items independently from a known distribution.

A population is written ``family:name=value,...``. Its items are the integers 1..d. Item i is the
i-th most frequent item, and f_i is its frequency:

================ =================================================== =========================
``zipf``         f_i proportional to i^-a                            a=1.1, d=100000, n=150000
``geometric``    f_i proportional to q^i                             q=0.5, d=100000, n=150000
``zipf-log``     f_i proportional to 1 / (i log(i + 1)^b)            b=2, d=100000, n=150000
``uniform``      items 1..k equally likely, the others absent        k=d, d=100000, n=150000
``profile:NAME`` interpolated between ranks measured from real data  n=150000
================ =================================================== =========================

The last column has the parameters and their defaults. d is the number of items. n is the number of
clients, each of whom has one item. The first three families are the examples of Wu and others
(2023) for a sufficient width of a sketch. They write the third family as i^-1 log(i)^-b, which is
infinite at i = 1. So the logarithm of i + 1 is taken here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.sources.batches import Batch, Source

Floats = npt.NDArray[np.float64]

MAX_SIZE = 2**28  # the most items; a distribution over 2^28 items takes 2 GiB
MAX_CLIENTS = 10**15  # the most clients; float64 has counts up to this exactly
_CHUNK = 1 << 16  # the number of items of a block in `draw`
_SIZES = {"d": 100_000, "n": 150_000}

FAMILIES: dict[str, dict[str, float | None]] = {
    "zipf": {"a": 1.1, **_SIZES},
    "geometric": {"q": 0.5, **_SIZES},
    "zipf-log": {"b": 2.0, **_SIZES},
    "uniform": {"k": None, **_SIZES},
    "profile": {"n": 150_000},
}


@dataclass(frozen=True)
class Population:
    """A distribution over the items 1..size, and a number of clients.

    Args:
        size: the number of items.
        num_clients: the number of clients, each with one item.
        weight: maps ranks from 1 (float64) to frequencies, up to a common factor.
        about: a note on the real data from which the distribution was measured; None: the
            distribution is a formula.
    """

    size: int
    num_clients: int
    weight: Callable[[Floats], Floats]
    about: str | None = None

    @classmethod
    def parse(cls, text: str) -> Population:
        """Return the population that a text such as ``family:name=value,...`` describes.

        Raises:
            InvalidInputError: the family, a parameter or the profile is unknown (the message lists
                the known ones). Or a parameter is given twice, or its value is no number or out of
                bounds.

        >>> Population.parse("zipf:d=1e3").size
        1000
        """
        family, _, rest = text.partition(":")
        if family not in FAMILIES:
            raise InvalidInputError(
                f"unknown synthetic source {family!r}; known are {', '.join(FAMILIES)}"
            )
        words = [word.strip() for word in rest.split(",") if word.strip()]
        profile = ""
        if family == "profile" and words and "=" not in words[0]:
            profile = words.pop(0)
        values = FAMILIES[family] | _parameters(words, family)
        clients = _whole(values, "n", MAX_CLIENTS)
        if family == "profile":
            return cls(*_profile(profile, clients))
        size = _whole(values, "d", MAX_SIZE)
        return cls(size, clients, _distribution(family, values, size))


def _parameters(words: list[str], family: str) -> dict[str, float | None]:
    known = ", ".join(FAMILIES[family])
    values: dict[str, float | None] = {}
    for word in words:
        name, equals, number = (part.strip() for part in word.partition("="))
        if name not in FAMILIES[family] or not equals:
            raise InvalidInputError(
                f"{family}: unknown parameter {word!r}; write name=value with name among {known}"
                + validate.did_you_mean(name, FAMILIES[family])
            )
        if name in values:
            raise InvalidInputError(f"{family}: {name} is given twice")
        # int first: a float of 2^53 or more would not be exact.
        try:
            values[name] = int(number)
        except ValueError:
            try:
                values[name] = float(number)
            except ValueError:
                raise InvalidInputError(
                    f"{family}: {name} must be a number, got {number!r}"
                ) from None
    return values


def _whole(values: dict[str, float | None], name: str, maximum: int) -> int:
    value = values[name]
    if isinstance(value, float) and value.is_integer():  # 1e6 is a common way to write a million
        value = int(value)
    return validate.integer(1, maximum, **{name: value})


def _open(minimum: float, maximum: float, name: str, value: object) -> float:
    number = validate.real(minimum, maximum, **{name: value})
    if number in (minimum, maximum):
        raise InvalidInputError(
            f"{name} must lie strictly between {minimum} and {maximum}, got {number}"
        )
    return number


def _distribution(
    family: str, values: dict[str, float | None], size: int
) -> Callable[[Floats], Floats]:
    if family == "zipf":
        a = validate.real(0.0, 100.0, a=values["a"])
        return lambda rank: rank**-a
    if family == "geometric":
        q = _open(0.0, 1.0, "q", values["q"])
        return lambda rank: np.exp(np.log(q) * (rank - 1))
    if family == "zipf-log":
        b = validate.real(0.0, 100.0, b=values["b"])
        return lambda rank: 1.0 / (rank * np.log(rank + 1.0) ** b)
    k = size if values["k"] is None else _whole(values, "k", size)
    return lambda rank: (rank <= k).astype(np.float64)


@cache
def profiles() -> dict[str, dict[str, Any]]:
    """Return all profiles, which are distributions measured from real data, by their names.

    Each has the entries `measured_from` (the data), `support` (the number of items), `rank` and
    `frequency`. The last two are lists of the same length: some ranks and their frequencies.

    >>> profiles()["yahoo-passwords"]["support"]
    33895873
    """
    text = resources.files("fedtally.sources").joinpath("profiles.json").read_text(encoding="utf8")
    measured: dict[str, dict[str, Any]] = json.loads(text)
    return measured


def _profile(name: str, clients: int) -> tuple[int, int, Callable[[Floats], Floats], str]:
    measured = profiles()
    if name not in measured:
        raise InvalidInputError(
            f"unknown profile {name!r}; write profile:NAME with NAME among {', '.join(measured)}"
            + validate.did_you_mean(name, measured)
        )
    rank, frequency = np.log(measured[name]["rank"]), np.log(measured[name]["frequency"])
    about = f"synthetic clients; frequencies measured from {measured[name]['measured_from']}"
    # Between the measured ranks the curve is straight on two logarithmic axes, like a power law.
    return (
        measured[name]["support"],
        clients,
        lambda ranks: np.exp(np.interp(np.log(ranks), rank, frequency)),
        about,
    )


def is_synthetic(text: str) -> bool:
    """Return whether a text names a synthetic population, and not a file.

    >>> is_synthetic("zipf:"), is_synthetic("zipf.csv")
    (True, False)
    """
    family, colon, _ = text.partition(":")
    return bool(colon) and family in FAMILIES


def frequencies(text: str) -> Floats:
    """Return the distribution of a synthetic population: float64 [d], with the sum 1.

    The frequency of item i is at index i - 1.

    Args:
        text: the population, as `Population.parse` reads it.

    >>> frequencies("zipf:a=1,d=3").round(4).tolist()
    [0.5455, 0.2727, 0.1818]
    """
    return _frequencies(Population.parse(text))


def _frequencies(population: Population) -> Floats:
    distribution = np.empty(population.size)
    for start in range(0, population.size, _CHUNK):
        stop = min(start + _CHUNK, population.size)
        distribution[start:stop] = population.weight(
            np.arange(start + 1, stop + 1, dtype=np.float64)
        )
    distribution /= distribution.sum()
    return distribution


def draw(
    population: Population, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw the item of every client; return the items that occur, ascending, and their counts.

    Both arrays are int64, and have the same length. An item whose frequency is 0 never occurs.

    The counts follow a multinomial distribution. They are drawn in two steps: first the number of
    clients of each block of items, then the counts within each block. The result has the same
    distribution, but NumPy's rounding errors cannot add up beyond a block. The time and the
    memory are O(d).

    >>> items, counts = draw(Population.parse("geometric:n=1000"), np.random.default_rng(0))
    >>> int(items[0]), int(counts.sum())
    (1, 1000)
    """
    distribution = _frequencies(population)
    starts = np.arange(0, population.size, _CHUNK)
    in_block = rng.multinomial(
        population.num_clients, _normalised(np.add.reduceat(distribution, starts))
    )
    items, counts = [], []
    for start, total in zip(starts[in_block > 0], in_block[in_block > 0], strict=True):
        block = distribution[start : start + _CHUNK]
        # If rounding leaves clients over, NumPy assigns them to the last entry. So entries of
        # frequency 0 are left out before.
        possible = np.flatnonzero(block)
        drawn = rng.multinomial(total, _normalised(block[possible]))
        items.append(possible[drawn > 0] + start + 1)
        counts.append(drawn[drawn > 0])
    return np.concatenate(items).astype(np.int64), np.concatenate(counts).astype(np.int64)


def _normalised(weights: Floats) -> Floats:
    normalised: Floats = weights / weights.sum()
    return normalised


def synthetic_source(text: str, rng: np.random.Generator) -> Source:
    """Return the source of a synthetic population.

    It has one batch, which is drawn when the source is first read. Reading it again yields the same
    batch.

    >>> synthetic_source("profile:foursquare-us", np.random.default_rng(0)).synthetic_size
    646
    """
    population = Population.parse(text)

    @cache
    def drawn() -> Batch:
        import pyarrow as pa

        items, counts = draw(population, rng)
        return Batch(pa.array(items), counts=counts)

    def read(_private: bool) -> Iterator[Batch]:
        yield drawn()

    return Source(
        text, read, synthetic_size=population.size, about=population.about, rows_are_clients=True
    )
