"""Which names will be read, where nobody has the list of strings.

The T positions have T / p symbols for each of the p symbols of a name, its end mark included:
copies, and parity. A symbol is read from the mean over the rows of the sketch of its position. With
R rows of W counters, and n clients that spell the position, the variance of that mean is

    s^2 = (energy / W + mass / (n W) + noise / n^2) / R.

Energy and mass are those of the strings that are rarer than the name, since more frequent ones are
taken out, and `noise` is the variance of the noise in a counter. The holders of the name at a
position are a sample of their own, whose variance is f / n. So a name of frequency f shows by

    z^2 = (T / p) f^2 / (s^2 + SAMPLED f / n),

and from z = CLEAR on it is taken to be read. Both numbers are on the safe side: docs/evidence.md
has the figures, and the command that measures them.
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

NAME_LENGTH = 16  # bytes that 9 of 10 frequent names do not exceed, where nothing is said
NAMED_SHARE = 0.95  # of the strings above `theta_name`, that are named at least
STRINGS = 1_000_000  # different ones that are assumed, with frequencies that fall like i^-1.1
CLEAR, SAMPLED = 4.5, 0.25
SPARE = 2.5  # times as many frequent strings as are expected: so many hashes must be found
_LOAD = 1.0  # frequent names for each counter of a position: more are not taken out
_FOUND = 6.0  # standard errors from which a hash stands out among 2^26
_SECONDS = 0.02  # CPU that the reading of a hash takes, about
_LENGTHS = (8, 16, 32, 64, 128)  # bytes: names whose frequencies are said


class Names(NamedTuple):
    """The names that a campaign is predicted to read.

    Attributes:
        length: bytes of the names that `theta_name` is about.
        theta_name: the frequency from which names of that length are read; infinite if none is.
        by_length: pairs of a length and its `theta_name`, up to the longest that the plan can read.
        theta_find: the frequency from which hashes stand out.
        threshold: twice the error that the plan is for.
        named: the expected share of the strings above the threshold that are named.
        seconds: CPU that the reading takes, once the hashes are found.
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
        """The frequency from which strings are found and named."""
        return max(self.theta_name, self.theta_find)

    def to_dict(self) -> dict[str, Any]:
        """Return the predictions as JSON-able values; a frequency that none reaches is None."""
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
    """Return the frequencies that are assumed where nothing is known.

    >>> law = assumed(OpenStrings())
    >>> round(float(law.numbers.sum())), law.domain_size
    (1000000, 67108864)
    """
    law = Frequencies.assumed(min(STRINGS, domain.size), max_items=max_items)
    return replace(law, domain_size=domain.size)


@dataclass(frozen=True)
class Speller:
    """What spells names, but for its width.

    Args:
        law: the known frequencies.
        rows: the rows of the sketch of a position.
        positions: T.
        clients: the clients that spell a position.
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
        """Return what spells names in a plan whose frequencies are shares of `expected`."""
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
        """Return the least width with which such names are read; None: none is large enough.

        Args:
            theta: the frequency of the names.
            length: their bytes.
            rarer: what `rarer(theta)` says, where many sizes share it.
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
        """Return the largest s^2 with which names of a frequency are read."""
        copies = self.positions / (length + 1)
        return copies * (theta / CLEAR) ** 2 - SAMPLED * theta / self.clients

    def rarer(self, theta: float) -> tuple[float, float]:
        """Return W times the variance by rarer strings, and how many strings are not rarer.

        Neither depends on rows or noise.
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
        threshold: twice the error that the plan is for.
        name_length: bytes that 9 of 10 frequent names do not exceed.
        expected: the number that frequencies are shares of; None: the clients of the plan.
        spare: times as many frequent strings as the law has, of which the hashes must be found; 1
            where it is known.
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
    """Return the frequency from which hashes stand out."""
    predictor = replace(Predictor.from_plan(plan, OPEN), num_clients=clients)
    scale = predictor.predicted(law, plan.rows, plan.width).scale
    # No more items are fitted than a share of the counters, the most frequent ones. Beyond that no
    # hash is found at all, and how many strings are frequent is known least.
    several = plan.schedule.num_batches(plan.num_rounds) > 1
    most = OPEN.kind.largest_support[several] * plan.rows * plan.width / spare
    order = np.argsort(-law.frequencies)
    beyond = np.flatnonzero(np.cumsum(law.numbers[order]) > most)
    full = float(law.frequencies[order][beyond[0]]) if len(beyond) else 0.0
    return max(_FOUND * scale, full, 0.5 / clients)


def _above(law: Frequencies, frequency: float) -> float:
    return float(law.numbers[law.frequencies > frequency].sum())


def _share_above(law: Frequencies, frequency: float, threshold: float) -> float:
    """Return the share of the strings above a threshold that are above a frequency, too."""
    above = _above(law, threshold)
    if not above:
        return float(frequency <= threshold)
    return _above(law, max(frequency, threshold)) / above
