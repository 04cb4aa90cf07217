"""Ratios of means or medians, their uncertainty by a bootstrap, and verdicts on bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import click
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
        strictly: whether the ratio must be below the bound by two standard errors, or not above it
            by as much.
    """

    words: str
    ratios: tuple[tuple[str, str], ...]
    bound: float
    strictly: bool = True


def ratio(over: F64, under: F64, fold: Callable[..., Any]) -> tuple[float, float]:
    """Return fold(over) / fold(under) of paired samples, float64 [n] each, and its standard error.

    Infinite and not a number where it was divided by zero: no bound holds. Not numbers where that
    was zero as well, of the samples or in the bootstrap: nothing is known of the ratio.

    >>> ratio(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]), np.mean)
    (0.5, 0.0)
    """
    drawn = resampled(len(over))
    with np.errstate(divide="ignore", invalid="ignore"):
        again = fold(over[drawn], axis=1) / fold(under[drawn], axis=1)
        return float(fold(over) / fold(under)), float(again.std())


def text(over: F64, under: F64, fold: Callable[..., Any]) -> str:
    """Return a ratio and its standard error in words.

    >>> [text(np.ones(2), np.full(2, by), np.mean) for by in (2.0, 0.0)]
    ['0.500 ± 0.000', 'inf']
    >>> text(np.zeros(2), np.zeros(2), np.mean)
    '-'
    """
    value, error = ratio(over, under, fold)
    if np.isfinite(error):
        return f"{value:.3f} ± {error:.3f}"
    return "-" if np.isnan(value) else f"{value:.3f}"


def _known(value: float, error: float) -> bool:
    return bool(np.isinf(value) or np.isfinite(error))


def interval(values: F64) -> F64:
    """Return the ends of a 95 % interval of the mean: float64 [2]."""
    ends: F64 = np.quantile(values[resampled(len(values))].mean(axis=1), (0.025, 0.975))
    return ends


def judge(claim: Claim, samples: Mapping[str, Mapping[str, F64]]) -> dict[str, object]:
    """Return the row of a claim: its ratios, where the bound does not hold, and the verdict.

    Reproduced: the bound holds everywhere, for means, which the paper shows, and for medians. With
    a caveat: somewhere, for means. Not reproduced: nowhere. A place with a ratio that is not known,
    0/0, is not asked, unless another of its ratios breaks the bound.

    Args:
        claim: the bound.
        samples: place -> name -> float64 [n].
    """
    asked = (
        f"{' and '.join('/'.join(pair) for pair in claim.ratios)}:"
        f" {'below' if claim.strictly else 'at most'}"
    )
    row: dict[str, object] = {"claim": claim.words, "asked of": f"{asked} {claim.bound:.3g}"}
    missed: dict[str, list[str]] = {}
    asked_at: dict[str, int] = {}
    for name, fold in FOLDS.items():
        found = {
            at: [ratio(of[a], of[b], fold) for a, b in claim.ratios] for at, of in samples.items()
        }
        known = {at: [one for one in all_ if _known(*one)] for at, all_ in found.items()}
        missed[name] = [
            at for at, all_ in known.items() if not all(_holds(claim, *one) for one in all_)
        ]
        unknown = [at for at in found if len(known[at]) < len(found[at]) and at not in missed[name]]
        asked_at[name] = len(found) - len(unknown)
        values = [value for all_ in known.values() for value, _ in all_]
        row[name] = f"{min(values):.2f} to {max(values):.2f}" if values else "-"
        row[name] = f"{row[name]}{_listed('not at', missed[name])}{_listed('0/0 at', unknown)}"
    return row | {"verdict": verdict(asked_at["means"], missed["means"], missed["medians"])}


def _holds(claim: Claim, value: float, error: float) -> bool:
    slack = _STANDARD_ERRORS * error
    return value + slack < claim.bound if claim.strictly else value - slack <= claim.bound


def verdict(places: int, means: Sequence[str], medians: Sequence[str]) -> str:
    """Return the verdict on a claim about so many places, by those where it does not hold."""
    if not places:
        return "not measured"
    if not means and not medians:
        return "reproduced"
    return "reproduced with a caveat" if len(means) < places else "not reproduced"


def _listed(words: str, places: Sequence[str]) -> str:
    """Return where, places of one first word together.

    >>> _listed("not at", ["a=1.1 W=50", "a=1.1 W=100", "a=2 W=50"])
    '; not at a=1.1 W=50 W=100, a=2 W=50'
    >>> _listed("not at", ["0.1/W", "0.1/200"])
    '; not at 0.1/W, 0.1/200'
    """
    grouped: dict[str, list[str]] = {}
    for place in places:
        first, *rest = place.split(" ", 1)
        grouped.setdefault(first, []).extend(rest)
    return (
        f"; {words} {', '.join(' '.join([first, *rest]) for first, rest in grouped.items())}"
        if places
        else ""
    )


def none_or_several(_context: click.Context, _option: click.Parameter, count: int) -> int:
    """Refuse an option's 1 repeat, of which no standard error can be taken."""
    if count == 1:
        raise click.BadParameter("must be 0 or at least 2: one campaign has no standard error")
    return count


@cache
def resampled(count: int) -> npt.NDArray[np.int64]:
    """Return which of `count` values each sample of a bootstrap takes: int64 [200, count]."""
    return np.random.default_rng(0).integers(count, size=(_RESAMPLED, count))
