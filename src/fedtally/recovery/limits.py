"""The common parts of all intervals: their shape, their kinds, and their slack for rounding."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fedtally import _validate
from fedtally.errors import InvalidInputError
from fedtally.recovery.linear_system import F64, U64, Ids

KINDS = ("auto", "pointwise", "simultaneous", "order")
# How far an exact answer may miss the truth: sums of frequencies are rounded in float64. Without
# this slack an interval of width 0 around an exact estimate could exclude the true frequency.
ROUNDING = 1e-12
# The share of a list's probability of error that goes to a limit which holds however the list was
# chosen. The rest goes to the tighter limit that takes the threshold of the list into account.
_ANYHOW = 0.1


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


def check_confidence(confidence: float) -> float:
    """Return a level above 0 and below 1.

    >>> check_confidence(0.95)
    0.95
    """
    confidence = _validate.real(confidence=confidence)
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


def or_none(error: float, num_clients: int) -> float:
    """Return an error, or 0 where it is below a thousandth of a client, which is only rounding."""
    return error if error * num_clients >= 1e-3 else 0.0
