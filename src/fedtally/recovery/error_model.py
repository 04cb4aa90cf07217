"""Predicts the error of a plan before it runs, from the frequencies, the sketch and the noise.

`Sums` describes the sizes and the noise of the sums. Each decoder has its own error model
(`DecoderKind.predict`). The formulas have no constant that was fitted to simulations.
docs/accuracy.md derives the models, states their assumptions, and says where they fail.
`python -m experiments error_model` compares them with simulations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.kind import DecoderKind
from fedtally.recovery.decoders.median import median_error
from fedtally.recovery.sums import F64, Prediction, Sums, heterogeneity_of_batches

__all__ = [
    "Prediction",
    "Sums",
    "exceedance",
    "failure",
    "heterogeneity_of_batches",
    "predict",
    "rising",
]


def predict(
    frequencies: npt.ArrayLike, *, recovery: str = "joint", probability: float = 0.5, **given: Any
) -> Prediction:
    """Return the predicted error of a campaign.

    Args:
        frequencies: the expected frequencies of items, [d], in any order, in [0, 1]. Their sum is
            at most `max_items`; in this sum each frequency counts as often as `numbers` says.
        recovery: the name of a decoder. "joint" and "belief" need 3 rows.
        probability: the probability, in (0, 1), that the largest error exceeds the result's `linf`.
        given: the arguments of `Sums.of`, and the arguments `numbers` and `max_items` of `rising`.
            `candidates` may be left out if `frequencies` has an entry for every candidate.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> distribution = np.arange(1, 100_001.0) ** -1.1
    >>> distribution /= distribution.sum()
    >>> plan = {"rows": 5, "width": 1000, "schedule": "hybrid", "num_rounds": 10}
    >>> for recovery in ("joint", "median"):
    ...     found = predict(distribution, **plan, num_clients=1_000_000, recovery=recovery)
    ...     print(f"{found.linf:.1e}")
    4.6e-05
    1.7e-03
    """
    known, number, sums, kind = _checked(frequencies, recovery, **given)
    if not 0.0 < validate.real(probability=probability) < 1.0:
        raise InvalidInputError(f"probability must be above 0 and below 1, got {probability}")
    return kind.predict(known, sums, number, probability)


def failure(
    frequencies: npt.ArrayLike, tau: float, *, recovery: str = "joint", **given: Any
) -> float:
    """Return the predicted probability that the largest error of a campaign exceeds `tau`.

    Args:
        frequencies: the frequencies, as in `predict`.
        tau: the size of an error, as a frequency, above 0.
        recovery: the name of a decoder, as in `predict`.
        given: more arguments, as in `predict`, without `probability`.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> law = np.arange(1, 10_001.0) ** -1.1
    >>> plan = {"rows": 15, "schedule": "shared", "num_rounds": 1, "num_clients": 10_000}
    >>> [round(failure(law / law.sum(), 0.01, width=width, recovery="median", **plan), 2)
    ...  for width in (50, 75, 100)]
    [0.69, 0.07, 0.01]
    """
    known, number, sums, kind = _checked(frequencies, recovery, **given)
    if validate.real(0.0, tau=tau) == 0.0:
        raise InvalidInputError(f"tau must be above 0, got {tau}")
    return kind.failure(known, sums, number, tau)


def exceedance(frequencies: npt.ArrayLike, size: float, **given: Any) -> float:
    """Return the predicted share of rare items whose error under median recovery exceeds `size`.

    Args:
        frequencies: the frequencies, as in `predict`.
        size: the size of an error, as a frequency, above 0.
        given: more arguments, as in `predict`, without `probability` and `recovery`.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> law = np.arange(1, 10_001.0) ** -1.1
    >>> plan = {"rows": 5, "width": 100, "schedule": "shared", "num_rounds": 1}
    >>> [round(exceedance(law / law.sum(), size, **plan, num_clients=10_000), 4)
    ...  for size in (0.002, 0.01, 0.05)]
    [0.1376, 0.0032, 0.0]
    """
    known, number, sums, _ = _checked(frequencies, Recovery.MEDIAN, **given)
    if validate.real(0.0, size=size) == 0.0:
        raise InvalidInputError(f"size must be above 0, got {size}")
    return median_error.exceedance(known, sums, number, size)


def _checked(
    frequencies: npt.ArrayLike,
    recovery: str,
    *,
    numbers: npt.ArrayLike | None = None,
    max_items: int = 1,
    candidates: int | None = None,
    **given: Any,
) -> tuple[F64, F64, Sums, DecoderKind]:
    """Check the arguments of an error model.

    Returns:
        The frequencies above 0, ascending; the number of items of each frequency; the sizes of the
        sums; and the kind of the decoder, which has the error model.
    """
    known, number = _known(frequencies, numbers, validate.integer(1, max_items=max_items))
    sums = Sums.of(candidates=_candidates(number, candidates), **given)
    decoder = Recovery.parse(recovery)
    decoder.check_rows(sums.rows)
    return known[known > 0], number[known > 0], sums, decoder.kind


def rising(
    frequencies: npt.ArrayLike, numbers: npt.ArrayLike | None = None, max_items: int = 1
) -> tuple[F64, F64]:
    """Return the frequencies above 0, ascending, and the number of items of each: float64 [k] each.

    Error models take them in this form.

    Args:
        frequencies: the frequencies, as in `predict`.
        numbers: [d], how many items have each frequency; None: one each.
        max_items: the most items of one client.

    Raises:
        InvalidInputError: a value is out of its range.
    """
    known, number = _known(frequencies, numbers, max_items)
    return known[known > 0], number[known > 0]


def _candidates(number: F64, candidates: int | None) -> int:
    """Return the number of candidates, checked.

    Args:
        number: float64 [d], how many items have each frequency.
        candidates: the number of candidates; None: the number of items. At least 1 and at least the
            number of items.
    """
    items = math.ceil(float(number.sum()) * (1 - 1e-9))
    size = items if candidates is None else validate.integer(candidates=candidates)
    if size < max(items, 1):
        raise InvalidInputError(
            f"candidates must be at least 1 and the number of frequencies, {items}, got {size}"
        )
    return size


def _known(
    frequencies: npt.ArrayLike, numbers: npt.ArrayLike | None, max_items: int
) -> tuple[F64, F64]:
    """Return the frequencies, checked and ascending, and how many items have each: float64 [d].

    Raises:
        InvalidInputError: a value is out of its range.
    """
    known = _numbers(frequencies=frequencies)
    each = np.ones_like(known) if numbers is None else _numbers(numbers=numbers)
    if len(each) != len(known):
        raise InvalidInputError(
            f"numbers must be {len(known)}, one of each frequency, got {len(each)}"
        )
    total = float(known @ each)
    if total > max_items * (1 + 1e-9):
        way_out = (
            "divide them by their sum"
            if max_items == 1
            else "divide counts by the number of clients"
        )
        raise InvalidInputError(
            f"frequencies must sum to at most {max_items}, got {total:.6g}: {way_out}"
        )
    if known.max(initial=0.0) > 1 + 1e-9:
        raise InvalidInputError(f"frequencies must each be at most 1, got {known.max():.6g}")
    order = np.argsort(known)
    return known[order], each[order]


def _numbers(**named: npt.ArrayLike) -> F64:
    """Return the one keyword argument as float64 [n], checked to be finite and at least 0."""
    [(name, values)] = named.items()
    try:
        known = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be numbers in one dimension") from None
    if known.ndim != 1:
        raise InvalidInputError(f"{name} must be in one dimension, got {known.ndim}")
    if not np.isfinite(known).all() or (known < 0).any():
        raise InvalidInputError(f"{name} must be finite and at least 0")
    return known
