"""What all intervals have in common: their interface, kinds, and tolerance for rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fedtally.base import validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.linear_system import F64, U64, Ids

KINDS = ("auto", "pointwise", "simultaneous")
# By how much rounding in float64 may change an exact frequency. Without this tolerance, an interval
# of width 0 around an exact estimate could exclude the true frequency.
ROUNDING = 1e-12
# A list's limit may be wrong with some probability. This share of it goes to a limit that holds
# however the list was chosen. The rest goes to a tighter limit that uses the list's threshold.
_ANYHOW = 0.1
_STEPS = 200  # lower limits that are tried for each item of a list
_AT_ONCE = 4096  # items that are tried at once, to bound the memory: x _STEPS x 8 bytes


class Limits(NamedTuple):
    """Lower and upper limits of frequencies: float64 [n] each."""

    low: F64
    high: F64


class Intervals(Protocol):
    """Gives each id an interval for its frequency.

    Attributes:
        about: how the intervals were computed, as a text; "" if there is nothing to explain, for
            instance if recovery is exact.
    """

    about: str

    @property
    def predicted_range(self) -> tuple[float, float] | None:
        """Two frequencies between which the largest error of all candidates mostly lies.

        None if `predicted_linf` is close enough.
        """

    @property
    def predicted_linf(self) -> float:
        """The predicted median of the largest error of all candidates' frequencies.

        It is 0 if recovery is exact. For the median over an even number of rows it is an upper
        bound.
        """

    def at(self, ids: Ids) -> Limits:
        """Return the limits, in frequencies, of ids that were named before any result was seen."""

    def centres(self, ids: Ids) -> F64 | None:
        """Return the frequencies around which the limits lie: float64 [n].

        For decoders other than the median, the squares of the half-widths in independent results
        can be added. Returns None for the median, whose errors are rare and large: the quantiles of
        such errors cannot be added.
        """

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits, in frequencies, of a list: items that were chosen by their estimates.

        Intervals of the kind "auto" allow for this choice. Intervals of the kinds "pointwise" and
        "simultaneous" return the same limits as `at`.

        Args:
            ids: uint64 [n], the whole list.
            threshold: the frequency that an estimate had to reach to get its item into the list;
                None: not known.
        """

    def merged(
        self, others: Sequence[Intervals], domain: Domain, confidence: float, kind: str
    ) -> Intervals | None:
        """Return intervals for the frequencies in several results together.

        Returns None if the limits of the single results are enough, or if one of `others` comes
        from another decoder.

        Args:
            others: the intervals of the other results, which have other hashes.
            domain: the candidates, the same for all results.
            confidence: the confidence of all intervals.
            kind: the kind of all intervals, as in `make_intervals`.
        """


class UsualIntervals:
    """A base class of `Intervals`, in which `predicted_range` is None, and `merged` returns None.

    A subclass may set `predicted_range` and overwrite `merged`.
    """

    predicted_range: tuple[float, float] | None = None

    def merged(
        self, others: Sequence[Intervals], domain: Domain, confidence: float, kind: str
    ) -> Intervals | None:
        """Return None: the limits of the single results are enough."""
        return None


def check_confidence(confidence: float) -> float:
    """Return the confidence as a float; raise InvalidInputError unless it is above 0 and below 1.

    >>> check_confidence(0.95)
    0.95
    """
    confidence = validate.real(confidence=confidence)
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence must be above 0 and below 1, got {confidence}")
    return confidence


def list_tails(tail: float, listed: int, size: int, threshold: float | None) -> tuple[float, float]:
    """Split the probability that a list's lower limit is too high between two limits of each item.

    The first limit takes into account that the estimate reached the list's threshold. The second
    holds however the list was chosen: if each limit in a list of R out of d items is too high with
    probability `tail` R / d, the expected share of wrong limits is at most `tail` (Benjamini and
    Yekutieli 2005).

    Args:
        tail: the probability that a lower limit may be too high.
        listed: R, the number of items in the list.
        size: d, the number of candidates.
        threshold: the frequency that estimates had to reach; None: not known.

    Returns:
        The probabilities for the first and the second limit; their sum is at most `tail`.

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
    """Return lower limits for a list's items, given that their estimates reached a threshold.

    Frequencies are tried upwards, from the limit that holds however the list was chosen. A
    frequency is plausible if, under it, an estimate that reached the threshold is as large as the
    item's with at least the probability `given`. The lower limit is the first plausible frequency,
    or `low` if no frequency below `low` is plausible. Bisection could miss the first plausible
    frequency: with uneven tails of errors, a frequency may be plausible while a higher one is not.

    Args:
        values: float64 [n], the estimates.
        least: float64 [n], limits that hold however the list was chosen.
        low: float64 [n], the limits for items named in advance, at least `least`.
        threshold: the frequency that an estimate had to reach.
        given: the probability that a limit is too high, given that the estimate reached the
            threshold.
        at_least: returns for each number the probability that an error is at least as large.
    """
    found = np.empty(len(values))
    for part in (slice(start, start + _AT_ONCE) for start in range(0, len(values), _AT_ONCE)):
        tried = least[part, None] + (low - least)[part, None] * np.linspace(0.0, 1.0, _STEPS)
        # P(error >= value - f | error >= threshold - f) >= given, written without a division
        plausible = at_least(values[part, None] - tried) >= given * at_least(threshold - tried)
        plausible[:, -1] = True  # if nothing below is plausible, the limit is `low`
        found[part] = np.take_along_axis(tried, plausible.argmax(axis=1)[:, None], axis=1)[:, 0]
    return found


def or_none(error: float, num_clients: int) -> float:
    """Return `error`, a frequency, or 0 if it is less than a thousandth of a client.

    Such a small error is only rounding.
    """
    return error if error * num_clients >= 1e-3 else 0.0
