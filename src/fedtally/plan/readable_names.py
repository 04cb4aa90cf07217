"""The prediction of which names are read in an open domain, for which there is no list of strings.

Clients spell the names of their strings. Each position of a name has a small sketch of its own, and
there are T positions. A name has p symbols, with the mark of its end. So there are T / p positions
for each symbol: copies, and parity (symbols of an error-correcting code). A symbol is read from the
mean over the rows of its position's sketch. Let this sketch have R rows of W counters, and let n
clients spell the position. Then the variance of the mean is

    s^2 = (energy / W + mass / (n W) + noise / n^2) / R.

`noise` is the variance of the noise in a counter. Energy (the sum of f^2) and mass (the sum of f)
are sums over the frequencies f of the strings that are rarer than the name; more frequent strings
are subtracted before the name is read. It is random how many holders of the name spell the
position: their share has the variance f / n. So a name of frequency f stands out by z standard
errors, where

    z^2 = (T / p) f^2 / (s^2 + SAMPLED f / n).

The name is predicted to be read if z is at least CLEAR. The constants SAMPLED and CLEAR are on the
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

NAME_LENGTH = 16  # bytes; by default 9 of 10 frequent names are assumed to be no longer
NAMED_SHARE = 0.95  # at least this share of the strings above `theta_name` gets a name
STRINGS = 1_000_000  # the assumed number of different strings, with frequencies like i^-1.1
CLEAR, SAMPLED = 4.5, 0.25
SPARE = 2.5  # room is left for this many times the expected number of frequent strings
_LOAD = 1.0  # for each counter of a position, at most this many frequent names can be subtracted
_FOUND = 6.0  # a hash stands out among 2^26 hashes from this many standard errors on
_SECONDS = 0.02  # about the CPU seconds to read the name of one hash
_LENGTHS = (8, 16, 32, 64, 128)  # the lengths in bytes for which frequencies are reported


class Names(NamedTuple):
    """The names that a campaign is predicted to read.

    Attributes:
        length: the length of names, in bytes, to which `theta_name` applies.
        theta_name: the frequency from which names of this length are read; infinite if no name of
            this length is read.
        by_length: pairs of a length in bytes and the `theta_name` for this length; the longest
            length is that of the longest name that the plan spells.
        theta_find: the frequency from which the hashes of strings are found.
        threshold: the frequency from which names should be read: twice the target error of the
            plan.
        named: the expected share of the strings above `threshold` whose names are read.
        seconds: the predicted CPU seconds to read the names, once the hashes are found.
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
        """The frequency from which strings are found and their names are read."""
        return max(self.theta_name, self.theta_find)

    def to_dict(self) -> dict[str, Any]:
        """Return the predictions as values for JSON; an infinite frequency becomes None."""
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
    """Return the frequencies that are assumed for an open domain: a power law over 10^6 strings.

    If there are fewer possible hashes than 10^6, there are as many strings as hashes.

    >>> law = assumed(OpenStrings())
    >>> round(float(law.numbers.sum())), law.domain_size
    (1000000, 67108864)
    """
    law = Frequencies.assumed(min(STRINGS, domain.size), max_items=max_items)
    return replace(law, domain_size=domain.size)


@dataclass(frozen=True)
class Speller:
    """The sketches from which names are read, without their width.

    Args:
        law: the frequencies of the strings.
        rows: the number of rows of the sketch of one position.
        positions: T, the number of positions of a name that all rounds together spell.
        clients: the number of clients that spell one position.
        noise: the variance of the noise in a counter of one position's sum, in squared counts.

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
        """Return the speller of a plan.

        Args:
            plan: a plan with an open domain.
            law: the frequencies of the strings.
            expected: the number by which counts are divided to get frequencies.
        """
        assert plan.spelling is not None
        batches = plan.schedule.num_batches(plan.num_rounds)
        each = Predictor.from_plan(plan, OPEN).noise_of(plan.rows)
        positions = plan.spec.num_positions
        noise = each**2 * plan.num_rounds / batches
        return cls(law, plan.spelling.rows, positions, expected / batches, noise)

    def theta(self, width: int, length: int) -> float:
        """Return the frequency from which names of `length` bytes are read.

        The result is infinite if not even a name that all clients hold is read.

        Args:
            width: the number of counters in a row of a position's sketch.
            length: the length of the names, in bytes.
        """
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
        """Return the smallest width with which names are read; None if no width is large enough.

        Args:
            theta: the frequency of the names.
            length: the length of the names, in bytes.
            rarer: what `rarer(theta)` returns, if the caller has it; None: it is computed here.
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
        """Return the largest variance s^2 with which names of frequency `theta` are read.

        The result is negative if these names cannot be read at any variance.
        """
        copies = self.positions / (length + 1)
        return copies * (theta / CLEAR) ** 2 - SAMPLED * theta / self.clients

    def rarer(self, theta: float) -> tuple[float, float]:
        """Return two numbers about the strings; neither depends on the rows or on the noise.

        Strings rarer than `theta` cause a variance in each counter. The first number is this
        variance, in squared frequencies, times the width W. The second number is the number of the
        strings that are not rarer than `theta`.
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
    """Return the names that are predicted to be read with a plan.

    Args:
        plan: a plan with an open domain.
        law: the frequencies of the strings.
        threshold: the frequency from which names should be read: twice the target error of the
            plan.
        name_length: the length in bytes for which the prediction is made: 9 of 10 frequent names
            have at most this length.
        expected: the number by which counts are divided to get frequencies; None: the clients of
            the plan.
        spare: a safety factor: the hashes must be found even if there are this many times as many
            frequent strings as in `law`; 1 if `law` is certain.
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
    """Return the frequency from which the hashes of strings are found.

    `spare` is the safety factor of `predict`.
    """
    predictor = replace(Predictor.from_plan(plan, OPEN), num_clients=clients)
    scale = predictor.predicted(law, plan.rows, plan.width).scale
    # Only the most frequent items are fitted: their number is at most a share of the number of
    # counters. Other hashes are not found. Since the number of frequent strings is the least
    # certain assumption, room is left for `spare` times as many.
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

    If there are no strings above `threshold`, the result is 1 if `frequency` is at most
    `threshold`, and otherwise 0.
    """
    above = _above(law, threshold)
    if not above:
        return float(frequency <= threshold)
    return _above(law, max(frequency, threshold)) / above
