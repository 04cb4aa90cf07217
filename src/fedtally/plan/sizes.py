"""How large a sketch must be: rows and width from the error that is asked for, or from bytes.

`size_by_model` searches for the smallest rows x width whose largest error exceeds tau with
probability at most p, `within` for the rows x width within a budget of bytes that have the smallest
largest error. Both ask `Predictor` what a size does. The paper's own sizes are in
`fedtally.plan.paper`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from scipy.special import ndtr

from fedtally.base import validate
from fedtally.errors import InvalidInputError, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import Size, linear, minimax, oracle, two_phase
from fedtally.plan.predictor import FALL, JUMP, TELLING, Predictor
from fedtally.plan.trials import MOST_CELLS, Trials
from fedtally.recovery.decoding import kind_of

__all__ = [
    "FALL",
    "FEW",
    "JUMP",
    "MARGIN",
    "RISK",
    "SHAPE",
    "TOO_UNCERTAIN",
    "Predictor",
    "Size",
    "UnreachableError",
    "linear",
    "minimax",
    "oracle",
    "size_by_model",
    "two_phase",
    "within",
]

MARGIN = 1.1  # by which the width exceeds the predicted one
# The share of p that is planned for: what a pilot gets wrong is to fit in the rest.
RISK = 0.5
TOO_UNCERTAIN = 0.5  # relative standard error of the hardness from which a pilot says too little
FEW = 3.0  # clients of a pilot: of items that so many hold, or fewer, little shows
SHAPE = 1.5  # times the hardness from which it is said that the shape of the tail is a guess
_FACTOR = 2.0  # by which a small sketch may be smaller than is predicted


class UnreachableError(InvalidInputError):
    """No sketch has the error that was asked for, or none that bytes can buy."""


def size_by_model(
    distribution: Frequencies,
    tau: float,
    predictor: Predictor,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    margin: float = MARGIN,
    risk: float = RISK,
    with_linf: bool = True,
) -> Size:
    """Return the smallest rows x width that are predicted to keep tau, and a margin.

    Args:
        distribution: the known frequencies.
        tau: the largest error that is asked for, in (0, 1).
        predictor: the predictor of errors, which knows clients, rounds, recovery and noise.
        p: probability, in (0, 1), with which the largest error may exceed tau.
        rows: the rows to search; 3..31 for the median, 7..16 for joint recovery if None.
        margin: the factor by which the width exceeds the predicted one, at least 1.
        risk: the share of p that is planned for, above 0, at most 1.
        with_linf: whether to say the size's largest error, which takes as long as the search; None
            if not.

    Raises:
        InvalidInputError: a value is out of its range.
        UnreachableError: no size reaches tau, since noise alone exceeds it.

    >>> distribution = Frequencies.from_frequencies([i**-1.5 / 2.6 for i in range(1, 10_001)])
    >>> predictor = Predictor(10_000, recovery="median")
    >>> size_by_model(distribution, 0.01, predictor, rows=15, margin=1.0, risk=1.0).width
    66
    """
    tau, p = validate.inside(tau=tau), validate.inside(p=p)
    margin, planned = validate.real(1.0, margin=margin), p * validate.real(1e-6, 1.0, risk=risk)
    searched = predictor.searched_rows(rows)
    if distribution.uncertainty(tau) > TOO_UNCERTAIN:
        return _worst_case(distribution, tau, predictor, p, searched)

    def fails(rows: int, width: int) -> bool:
        return any(one > planned for one in predictor.failures(distribution, tau, rows, width))

    found = _smallest(fails, searched)
    if found is None:
        raise UnreachableError(
            f"tau {tau:g} is not reached with a width of up to {MAX_WIDTH}: take a larger tau, more"
            " clients or less noise"
        )
    width = _tried(predictor, distribution, tau, planned, *found, margin)
    if width is None:
        width, most = min(math.ceil(found[1] * margin), MAX_WIDTH), min(2 * found[1] + 9, MAX_WIDTH)
        # Where a small width is predicted to do, one counter more may be predicted to fail: joint
        # recovery fits other items.
        while fails(found[0], width) and width < most:
            width += max(1, width // 50)
    linf = predictor.linf(distribution, planned, found[0], width) if with_linf else None
    return Size("model", found[0], width, linf, _guessed(distribution, tau, predictor))


def _worst_case(
    distribution: Frequencies, tau: float, predictor: Predictor, p: float, searched: Sequence[int]
) -> Size:
    """Return the paper's size for the worst frequencies, where a pilot does not tell the width.

    Args:
        distribution: the known frequencies.
        tau: the largest error that is asked for.
        predictor: the predictor of errors.
        p: the probability with which the largest error may exceed tau.
        searched: the rows to search.

    Raises:
        UnreachableError: noise alone exceeds tau.
    """
    uncertainty = distribution.uncertainty(tau)
    size = minimax(
        tau,
        num_clients=predictor.num_clients,
        domain_size=distribution.domain_size,
        p=p,
        rows=searched[0] if len(searched) == 1 else None,
    )
    if _noise_exceeds(predictor, tau, size.rows, distribution.domain_size) > p:
        raise UnreachableError(f"tau {tau:g} is below what noise alone leaves, whatever the width")
    why = (
        "its sketch is too small"
        if math.isinf(uncertainty)
        else f"it is known to {uncertainty:.0%} at best"
    )
    message = (
        f"the pilot does not tell the width for tau {tau:g} ({why}): the worst case is assumed;"
        " take more clients"
    )
    return replace(size, message=message)


def _tried(
    predictor: Predictor,
    distribution: Frequencies,
    tau: float,
    p: float,
    rows: int,
    width: int,
    margin: float,
) -> int | None:
    """Return the least width that keeps tau in trials, and a margin.

    None where the error model is relied on.

    Args:
        predictor: the predictor of errors.
        distribution: the known frequencies.
        tau: the largest error.
        p: the probability with which it may be exceeded.
        rows: the rows of the sketch.
        width: the width that is predicted to suffice.
        margin: the margin, as in `size_by_model`.
    """
    tried: list[Trials] = []

    def fails(width: int) -> bool:
        trials = predictor.trials(distribution, rows, width)
        assert trials is not None
        like = min(tried, key=lambda one: abs(one.width - width), default=None)
        tried.append(trials)
        return trials.exceeds(tau, max(p, TELLING / predictor.repeats), predictor.repeats, like)

    most = MOST_CELLS // rows
    if (
        width > _FACTOR * most
        or predictor.trials(distribution, rows, 2) is None
        or (width > most and fails(most))
    ):
        return None
    high = min(width, most)
    if width <= most and fails(width):
        high += max(1, high // 8)
        while high <= most and fails(high):
            high += max(1, high // 8)
    else:  # mostly it is little below what is predicted
        low, step = max(high - 1, 1), 2
        while low > 1 and not fails(low):
            low, high, step = max(low - step, 1), low, 2 * step
        while high - low > 1:
            middle = max(math.isqrt(low * high), low + 1)
            low, high = (middle, high) if fails(middle) else (low, middle)
    # One counter more a row is often more than the margin. What is wider than was tried is
    # predicted, perhaps to be worse.
    found = max(high, min(round(high * margin), most)) if high <= most else most + 1
    # Where failures are too rare to show, no smaller width than predicted.
    return found if p * predictor.repeats >= TELLING else max(found, math.ceil(width * margin))


def _noise_exceeds(predictor: Predictor, tau: float, rows: int, domain_size: int) -> float:
    """Return the probability that the mean over rows of noise alone exceeds tau for any item."""
    scale = (
        predictor.noise_of(rows) * math.sqrt(predictor.num_rounds / rows) / predictor.num_clients
    )
    return (
        0.0
        if scale == 0.0
        else -math.expm1(domain_size * math.log1p(-min(2 * float(ndtr(-tau / scale)), 0.999)))
    )


def _guessed(distribution: Frequencies, tau: float, predictor: Predictor) -> str:
    """Say so where the shape of the tail, which is a guess, decides."""
    if distribution.fit is None:
        return ""
    if tau * distribution.fit.clients < FEW:
        return (
            f"tau {tau:g} is {tau * distribution.fit.clients:.2g} of the pilot's"
            f" {distribution.fit.clients:,} clients: how many items are about as frequent hardly"
            " shows, and the width may be too small; take a larger pilot"
        )
    if kind_of(predictor.recovery).fits_items:
        if tau >= distribution.fit.resolved:
            return ""
        return (
            f"the pilot tells items below {distribution.fit.resolved:.2g} by their sum alone: "
            f"those below {min(tau, distribution.fit.resolved / 2):.2g} are taken to be alike, the "
            "hardest case for joint recovery; after a larger pilot fewer bytes may do"
        )
    if distribution.hardest(tau) <= SHAPE * distribution.hardness(tau):
        return ""
    return (
        f"the pilot does not show all items above tau {tau:g} one by one: were the tail no power"
        " law, the width could have to be up to"
        f" {distribution.hardest(tau) / distribution.hardness(tau):.1f} times larger; take more"
        " clients or a larger pilot"
    )


def _smallest(fails: Callable[[int, int], bool], rows: Sequence[int]) -> tuple[int, int] | None:
    """Return the rows and the width, from 2 on, with the fewest cells of those that do not fail.

    None, if all fail.
    """
    best: tuple[int, int] | None = None
    for one in rows:
        # Only a width that makes fewer cells is of interest: one look, where there is none.
        high = MAX_WIDTH if best is None else min((best[0] * best[1] - 1) // one, MAX_WIDTH)
        if high < 2 or fails(one, high):
            continue
        low = 1
        while best is None and 2 * low < high:
            if not fails(one, 2 * low):
                high = 2 * low
                break
            low *= 2
        step = max(high // 16, 1)
        while best is not None and high - step > low:  # mostly it is little below what others need
            if fails(one, high - step):
                low = high - step
                break
            high, step = high - step, 2 * step
        while high - low > 1:
            middle = max(math.isqrt(low * high), low + 1)
            low, high = (middle, high) if fails(one, middle) else (low, middle)
        best = one, high
    return best


def within(
    distribution: Frequencies,
    max_bytes: int,
    bytes_of: Callable[[int, int], int],
    predictor: Predictor,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    risk: float = RISK,
) -> Size:
    """Return the rows x width with the smallest predicted largest error within a budget.

    Args:
        distribution: the known frequencies.
        max_bytes: the budget.
        bytes_of: what rows and width cost; it must not fall with the width.
        predictor: the predictor of errors, which knows clients, rounds, recovery and noise.
        p: probability, in (0, 1), with which linf may be exceeded.
        rows: the rows to search; as for `size_by_model`.
        risk: the share of p that is planned for.

    Raises:
        InvalidInputError: a value is out of its range.
        UnreachableError: the budget buys no sketch.
    """
    planned = validate.inside(p=p) * validate.real(1e-6, 1.0, risk=risk)
    max_bytes = validate.integer(1, max_bytes=max_bytes)
    sizes = []
    for one in predictor.searched_rows(rows):
        most = bisect_right(
            range(1, MAX_WIDTH + 1), max_bytes, key=lambda width: bytes_of(one, width)
        )
        if most >= 2:
            sizes.append(
                (predictor.modelled_linf(distribution, planned, one, most), one * most, one, most)
            )
    if not sizes:
        least = min(bytes_of(one, 2) for one in predictor.searched_rows(rows))
        raise UnreachableError(
            f"{opt.max_bytes(max_bytes)} buys no sketch of width 2: give at least {least}"
        )
    _, _, one, width = min(sizes)
    linf = predictor.linf(distribution, planned, one, width)
    # Where recovery is predicted to be exact, one client more or less is in question.
    unknown = (
        distribution.uncertainty(min(max(linf, 1 / predictor.num_clients), 0.5)) > TOO_UNCERTAIN
    )
    message = (
        "the pilot is too small to predict so small an error: take more clients" if unknown else ""
    )
    return Size("budget", one, width, linf, message)
