"""The common parts of all intervals: their shape, their kinds, and their slack for rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fedtally.base import validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.linear_system import F64, U64, Ids

KINDS = ("auto", "pointwise", "simultaneous")
# How far an exact answer may miss the truth: sums of frequencies are rounded in float64. Without
# this slack an interval of width 0 around an exact estimate could exclude the true frequency.
ROUNDING = 1e-12
# The share of a list's probability of error that goes to a limit which holds however the list was
# chosen. The rest goes to the tighter limit that takes the threshold of the list into account.
_ANYHOW = 0.1
_STEPS = 200  # lower limits that are tried for each item of a list
_AT_ONCE = 4096  # items whose limits are tried together, to bound the memory: x _STEPS x 8 bytes


class Limits(NamedTuple):
    """Lower and upper limits of frequencies: float64 [n] each."""

    low: F64
    high: F64


class Intervals(Protocol):
    """Gives every id an interval.

    Attributes:
        about: how the intervals were computed, in words; "" where recovery is exact, so that there
            is nothing to say.
    """

    about: str

    @property
    def predicted_range(self) -> tuple[float, float] | None:
        """The range in which the largest error of all candidates' frequencies mostly lies.

        None: `predicted_linf` is close enough.
        """

    @property
    def predicted_linf(self) -> float:
        """The median of the largest error of all candidates' frequencies."""

    def at(self, ids: Ids) -> Limits:
        """Return the limits, in frequencies, of ids that were named before the answer was seen."""

    def centres(self, ids: Ids) -> F64 | None:
        """Return the values, in frequencies, whose errors the limits bound.

        The answer is None where these errors are not normal. Normal errors of independent results
        can be added in squares, quantiles of other errors cannot.
        """

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies.

        Only intervals of kind "auto" allow for the choice of the items by their estimates.

        Args:
            ids: uint64 [n], the whole list.
            threshold: the frequency that an estimate had to reach for its item to be listed; None
                where it is not known.
        """

    def merged(
        self, others: Sequence[Intervals], domain: Domain, confidence: float, kind: str
    ) -> Intervals | None:
        """Return intervals of frequencies in several results together.

        The answer is None if the limits of the single results are enough, or if `others` are from
        another decoder.

        Args:
            others: the intervals of the other results, which have other hashes.
            domain: the candidates of all results.
            confidence: the confidence of all results.
            kind: the kind of all intervals.
        """


class UsualIntervals:
    """The defaults of most intervals: no range of the largest error, and no special merging."""

    predicted_range: tuple[float, float] | None = None

    def merged(
        self, others: Sequence[Intervals], domain: Domain, confidence: float, kind: str
    ) -> Intervals | None:
        """Return None: the limits of each result tell enough."""
        return None


def check_confidence(confidence: float) -> float:
    """Return the confidence, checked to be above 0 and below 1.

    >>> check_confidence(0.95)
    0.95
    """
    confidence = validate.real(confidence=confidence)
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence must be above 0 and below 1, got {confidence}")
    return confidence


def list_tails(tail: float, listed: int, size: int, threshold: float | None) -> tuple[float, float]:
    """Return the probabilities with which the two lower limits of a list's item may be too high.

    The first limit takes into account that the estimate reached the threshold. The second holds
    however the list was chosen: if each limit of a list of R out of d items is too high with
    probability `tail` R / d, the expected share of wrong limits is at most `tail` (Benjamini and
    Yekutieli 2005). Both probabilities together use up `tail`.

    >>> list_tails(0.025, 20, 1000, None)
    (0.0, 0.0005)
    >>> [f"{tail:.3g}" for tail in list_tails(0.025, 20, 1000, 0.1)]
    ['0.0225', '5e-05']
    """
    if threshold is None:
        return 0.0, tail * min(1.0, listed / size)
    return tail * (1.0 - _ANYHOW), tail * _ANYHOW * min(1.0, listed / size)


def listed_lows(
    values: F64,
    least: F64,
    low: F64,
    threshold: float,
    given: float,
    at_least: Callable[[F64], F64],
) -> F64:
    """Return lower limits of a list's items, given that their estimates reached a threshold.

    Frequencies are tried one by one, upwards from the limit that holds however the list was chosen.
    The lower limit is the first plausible frequency. Where errors have uneven tails, a frequency
    may be plausible although a higher one is not, so bisection would not do.

    Args:
        values: float64 [n], the estimates.
        least: float64 [n], limits that hold however the list was chosen.
        low: float64 [n], the limits of items named beforehand, at least as high as `least`.
        threshold: the frequency that an estimate had to reach.
        given: the probability that a limit is too high, where the estimates reached the threshold.
        at_least: returns the probability that an error is at least as large as each number.
    """
    found = np.empty(len(values))
    for part in (slice(start, start + _AT_ONCE) for start in range(0, len(values), _AT_ONCE)):
        tried = least[part, None] + (low - least)[part, None] * np.linspace(0.0, 1.0, _STEPS)
        # P(error >= value - f | error >= threshold - f) >= given, written without a division
        plausible = at_least(values[part, None] - tried) >= given * at_least(threshold - tried)
        plausible[:, -1] = True  # the limit of items named beforehand, if none below is plausible
        found[part] = np.take_along_axis(tried, plausible.argmax(axis=1)[:, None], axis=1)[:, 0]
    return found


def or_none(error: float, num_clients: int) -> float:
    """Return an error, or 0 where it is below a thousandth of a client, which is only rounding."""
    return error if error * num_clients >= 1e-3 else 0.0
