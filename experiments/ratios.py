"""Ratios of two samples' means or medians, their uncertainty by a bootstrap, and verdicts on bounds on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
FOLDS: dict[str, Callable[..., Any]] = {"means": np.mean, "medians": np.median}
_RESAMPLED = 200
_STANDARD_ERRORS = 2.0


class Claim(NamedTuple):
    """A bound on ratios of errors.

    Attributes:
        words: the claim, and where it stands.
        ratios: pairs of names of samples, one over the other.
        bound: on each ratio.
        strictly: whether the ratio must be below the bound by two standard errors, or not above it by as much.
    """

    words: str
    ratios: tuple[tuple[str, str], ...]
    bound: float
    strictly: bool = True


def ratio(over: F64, under: F64, fold: Callable[..., Any]) -> tuple[float, float]:
    """Return fold(over) / fold(under) of paired samples, float64 [n] each, and its standard error.

    Not numbers where it was divided by zero: a bound on them does not hold.

    >>> ratio(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]), np.mean)
    (0.5, 0.0)
    """
    drawn = resampled(len(over))
    with np.errstate(divide="ignore", invalid="ignore"):
        again = fold(over[drawn], axis=1) / fold(under[drawn], axis=1)
        return float(fold(over) / fold(under)), float(again.std())


def interval(values: F64) -> F64:
    """Return the ends of a 95 % interval of the mean: float64 [2]."""
    ends: F64 = np.quantile(values[resampled(len(values))].mean(axis=1), (0.025, 0.975))
    return ends


def judge(claim: Claim, samples: Mapping[str, Mapping[str, F64]]) -> dict[str, object]:
    """Return the row of a claim: its ratios, where the bound does not hold, and the verdict.

    Reproduced: the bound holds everywhere, for means, which the paper shows, and for medians. With a caveat: somewhere,
    for means. Not reproduced: nowhere.

    Args:
        claim: the bound.
        samples: place -> name -> float64 [n].
    """
    asked = f"{' and '.join('/'.join(pair) for pair in claim.ratios)}: {'below' if claim.strictly else 'at most'}"
    row: dict[str, object] = {"claim": claim.words, "asked of": f"{asked} {claim.bound:.3g}"}
    missed: dict[str, list[str]] = {}
    for name, fold in FOLDS.items():
        found = {at: [ratio(of[a], of[b], fold) for a, b in claim.ratios] for at, of in samples.items()}
        missed[name] = [at for at, all_ in found.items() if not all(_holds(claim, *one) for one in all_)]
        values = [r for all_ in found.values() for r, _ in all_] or [np.nan]
        row[name] = f"{min(values):.2f} to {max(values):.2f}" + _not_at(missed[name])
    return row | {"verdict": verdict(len(samples), missed["means"], missed["medians"])}


def _holds(claim: Claim, value: float, error: float) -> bool:
    slack = _STANDARD_ERRORS * error
    return value + slack < claim.bound if claim.strictly else value - slack <= claim.bound


def verdict(places: int, means: Sequence[str], medians: Sequence[str]) -> str:
    """Return the verdict on a claim asked at so many places, by the places where it does not hold."""
    if not places:
        return "not measured"
    if not means and not medians:
        return "reproduced"
    return "reproduced with a caveat" if len(means) < places else "not reproduced"


def _not_at(missed: Sequence[str]) -> str:
    """Return where, places of one first word together.

    >>> _not_at(["a=1.1 W=50", "a=1.1 W=100", "a=2 W=50"])
    '; not at a=1.1 W=50 W=100, a=2 W=50'
    >>> _not_at(["0.1/W", "0.1/200"])
    '; not at 0.1/W, 0.1/200'
    """
    grouped: dict[str, list[str]] = {}
    for place in missed:
        first, *rest = place.split(" ", 1)
        grouped.setdefault(first, []).extend(rest)
    return f"; not at {', '.join(' '.join([first, *rest]) for first, rest in grouped.items())}" if missed else ""


@cache
def resampled(count: int) -> npt.NDArray[np.int64]:
    """Return which of `count` values each sample of a bootstrap takes: int64 [200, count]."""
    return np.random.default_rng(0).integers(count, size=(_RESAMPLED, count))
