"""Predict which names will be read, if the domain is open: nobody has the list of strings.

Each position of a name has a small sketch, and there are T positions. A name has p symbols, its end
mark included, so there are T / p positions for each symbol: copies, and parity. A symbol is read
from the mean over the rows of the sketch of its position. With R rows of W counters, and n clients
that spell the position, the variance of that mean is

    s^2 = (energy / W + mass / (n W) + noise / n^2) / R.

Energy (the sum of f^2) and mass (the sum of f) are taken over the strings that are rarer than the
name, since more frequent ones are subtracted. `noise` is the variance of the noise in a counter.
The number of the name's holders at a position is random, and its share has the variance f / n. So a
name of frequency f stands out by z standard errors, with

    z^2 = (T / p) f^2 / (s^2 + SAMPLED f / n),

and it is predicted to be read if z is at least CLEAR. The constants SAMPLED and CLEAR are on the
safe side: docs/evidence.md has the figures, and the command that measures them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedtally.domain import OpenStrings
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import Plan
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.predictor import Predictor
from fedtally.recovery.decoders import OPEN
from fedtally.recovery.names import MOST_NAMES

NAME_LENGTH = 16  # the default length in bytes that 9 of 10 frequent names do not exceed
NAMED_SHARE = 0.95  # the least share of the strings above `theta_name` that are named
STRINGS = 1_000_000  # the number of different strings that are assumed; frequencies are like i^-1.1
CLEAR, SAMPLED = 4.5, 0.25
SPARE = 2.5  # the number of hashes that must be found, as a multiple of expected frequent strings
_LOAD = 1.0  # the most frequent names, per counter of a position, that can be subtracted
_FOUND = 6.0  # the standard errors from which a hash stands out among 2^26 hashes
_SECONDS = 0.02  # about the CPU seconds to read the name of one hash
_LENGTHS = (8, 16, 32, 64, 128)  # the lengths in bytes for which frequencies are reported


class Names(NamedTuple):
    """The names that a campaign is predicted to read.

    Attributes:
        length: the length, in bytes, of the names to which `theta_name` applies.
        theta_name: the frequency from which names of this length are read; infinite if none is.
        by_length: pairs of a length in bytes and its `theta_name`, up to the longest name that the
            plan can read.
        theta_find: the frequency from which the hashes of strings are found.
        threshold: twice the target error of the plan, a frequency.
        named: the expected share of the strings above the threshold that are named.
        seconds: the CPU seconds for reading the names, once the hashes are found.
    """

    length: int
    theta_name: float
    by_length: tuple[tuple[int, float], ...]
    theta_find: float
    threshold: float
    named: float
    seconds: float

    @property
    def least(self) -> float:
        """The frequency from which the hash of a string is found and its name is read."""
        return max(self.theta_name, self.theta_find)

    def to_dict(self) -> dict[str, Any]:
        """Return the predictions as JSON-able values; None stands for an infinite frequency."""
        return {
            "name_length": self.length,
            "theta_name": _known(self.theta_name),
            "theta_find": self.theta_find,
            "by_length": [
                {"bytes": size, "theta_name": _known(theta)} for size, theta in self.by_length
            ],
            "threshold": self.threshold,
            "named": self.named,
            "reading_seconds": self.seconds,
        }


def _known(frequency: float) -> float | None:
    return None if math.isinf(frequency) else frequency


def assumed(domain: OpenStrings, max_items: int = 1) -> Frequencies:
    """Return the frequencies that are assumed for an open domain if nothing is known.

    >>> law = assumed(OpenStrings())
    >>> round(float(law.numbers.sum())), law.domain_size
    (1000000, 67108864)
    """
    law = Frequencies.assumed(min(STRINGS, domain.size), max_items=max_items)
    return replace(law, domain_size=domain.size)


@dataclass(frozen=True)
class Speller:
    """The sketches that spell names, without their width.

    Args:
        law: the known frequencies of the strings.
        rows: the number of rows of the sketch of a position.
        positions: T, the number of positions that all rounds together spell.
        clients: the number of clients that spell a position.
        noise: the variance of the noise in a counter of the sum of a position, in squared counts.

    >>> speller = Speller(Frequencies.assumed(10**6), 4, 66, 3000, 0.0)
    >>> width = speller.width(0.002, 8)
    >>> speller.theta(width, 8) <= 0.002 < speller.theta(width, 16) < speller.theta(width, 64)
    True
    """

    law: Frequencies
    rows: int
    positions: int
    clients: float
    noise: float

    @classmethod
    def of(cls, plan: Plan, law: Frequencies, expected: int) -> Speller:
        """Return the speller of a plan whose frequencies are shares of `expected` clients."""
        assert plan.spelling is not None
        batches = plan.schedule.num_batches(plan.num_rounds)
        each = Predictor.from_plan(plan, OPEN).noise_of(plan.rows)
        positions = plan.spec.num_positions
        noise = each**2 * plan.num_rounds / batches
        return cls(law, plan.spelling.rows, positions, expected / batches, noise)

    def theta(self, width: int, length: int) -> float:
        """Return the frequency from which names of `length` bytes are read; infinite if none is."""
        low, high = 0.5 / self.clients, 1.0
        if not self._reads(high, width, length):
            return math.inf
        while high > low * 1.001:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._reads(middle, width, length) else (middle, high)
        return high

    def width(
        self, theta: float, length: int, rarer: tuple[float, float] | None = None
    ) -> int | None:
        """Return the least width with which names are read; None: no width is large enough.

        Args:
            theta: the frequency of the names.
            length: the length of the names in bytes.
            rarer: the result of `rarer(theta)`, if the caller has it; None: it is computed.
        """
        most = self._most_variance(theta, length)
        variance, load = rarer or self.rarer(theta)
        gain = self.rows * most - self.noise / self.clients**2
        if most <= 0 or gain <= 0:
            return None
        found = max(variance / gain, load / (self.rows * _LOAD), 1.0)
        return math.ceil(found) if found < MAX_WIDTH else None

    def _reads(self, theta: float, width: int, length: int) -> bool:
        rarer, load = self.rarer(theta)
        variance = (rarer / width + self.noise / self.clients**2) / self.rows
        is_clear = variance <= self._most_variance(theta, length) * (1 + 1e-9)
        return is_clear and load <= _LOAD * self.rows * width

    def _most_variance(self, theta: float, length: int) -> float:
        """Return the largest variance s^2 with which names of frequency `theta` are read."""
        copies = self.positions / (length + 1)
        return copies * (theta / CLEAR) ** 2 - SAMPLED * theta / self.clients

    def rarer(self, theta: float) -> tuple[float, float]:
        """Return two numbers about the strings; neither depends on rows or noise.

        The first is W times the variance, in squared frequencies, that strings rarer than `theta`
        cause in a row of W counters. The second is the number of the other strings.
        """
        f, number = self.law.frequencies, self.law.numbers
        rare = f < theta
        variance = number[rare] @ (f[rare] ** 2 + f[rare] / self.clients)
        return float(variance), float(number[~rare].sum())


def predict(
    plan: Plan,
    law: Frequencies,
    threshold: float,
    name_length: int,
    expected: int | None = None,
    *,
    spare: float = SPARE,
) -> Names:
    """Return the names that a plan is predicted to read.

    Args:
        plan: a plan with an open domain.
        law: the known frequencies.
        threshold: twice the target error of the plan, a frequency.
        name_length: the length in bytes that 9 of 10 frequent names do not exceed.
        expected: the number that frequencies are shares of; None: the clients of the plan.
        spare: a safety factor: hashes must be found even if there are this many times as many
            frequent strings as `law` has; 1 if `law` is certain.
    """
    assert plan.spelling is not None
    clients, spelling = expected or plan.num_clients, plan.spelling
    speller, longest = Speller.of(plan, law, clients), spelling.max_length
    lengths = sorted({longest, *(size for size in _LENGTHS if size < longest)})
    length = min(name_length, longest)
    theta, found = speller.theta(spelling.width, length), _theta_find(plan, law, clients, spare)
    return Names(
        length,
        theta,
        tuple((size, speller.theta(spelling.width, size)) for size in lengths),
        found,
        threshold,
        _share_above(law, max(theta, found), threshold),
        _SECONDS * min(MOST_NAMES, _above(law, found)),
    )


def _theta_find(plan: Plan, law: Frequencies, clients: int, spare: float) -> float:
    """Return the frequency from which the hashes of strings are found."""
    predictor = replace(Predictor.from_plan(plan, OPEN), num_clients=clients)
    scale = predictor.predicted(law, plan.rows, plan.width).scale
    # Only the most frequent items are fitted, at most a share of the counters. No other hash is
    # found, and the number of frequent strings is the least certain assumption.
    several = plan.schedule.num_batches(plan.num_rounds) > 1
    most = OPEN.kind.largest_support[several] * plan.rows * plan.width / spare
    order = np.argsort(-law.frequencies)
    beyond = np.flatnonzero(np.cumsum(law.numbers[order]) > most)
    full = float(law.frequencies[order][beyond[0]]) if len(beyond) else 0.0
    return max(_FOUND * scale, full, 0.5 / clients)


def _above(law: Frequencies, frequency: float) -> float:
    return float(law.numbers[law.frequencies > frequency].sum())


def _share_above(law: Frequencies, frequency: float, threshold: float) -> float:
    """Return the share of the strings above `threshold` that are also above `frequency`.

    If no string is above `threshold`, return 1 if `frequency` is at most `threshold`, else 0.
    """
    above = _above(law, threshold)
    if not above:
        return float(frequency <= threshold)
    return _above(law, max(frequency, threshold)) / above
