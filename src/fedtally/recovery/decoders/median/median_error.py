"""Predicts the error of the paper's decoder, the median over rows.

docs/accuracy.md derives the characteristic function of the error in one row. This module inverts it
on a lattice: equally spaced sizes of errors.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import betainc, gammaln

from fedtally.recovery.sums import F64, Prediction, Sums, grouped

_WIDE_GROUP = 1.1  # items are treated as equal only if their counts are within this ratio
_ALONE = 60  # this number of heaviest items is never grouped
# Batches are treated as equal only if their sizes are within a ratio: at least _ALIKE, and so
# large that only about _SIZES different sizes remain.
_ALIKE = 1.01
_SIZES = 12
_LATTICE = 4096  # the number of points
_STEPS = 48  # lattice steps from 0 to the size of interest
_BLUR = 1.2  # in steps: if steps are larger than one count, errors are blurred by this to be smooth
_NORMAL_95 = 1.959964  # the .95 quantile of |x| for a standard normal x


def predict(frequencies: F64, plan: Sums, number: F64, probability: float) -> Prediction:
    """Return the predicted error of the median over rows; see `DecoderKind.predict`."""
    drawn = _expected(frequencies, plan, number)
    any_item = _exceeded_with(0.05, *drawn, plan)
    largest = _exceeded_with(-math.expm1(math.log1p(-probability) / plan.candidates), *drawn, plan)
    return Prediction(any_item / _NORMAL_95 / plan.clients, 0.0, largest / plan.clients)


def failure(frequencies: F64, plan: Sums, number: F64, tau: float) -> float:
    """Return the probability that the error of at least one candidate exceeds tau, a frequency."""
    exceeds = exceedance(frequencies, plan, number, tau)
    return -math.expm1(plan.candidates * math.log1p(-min(exceeds, 1 - 1e-15)))


def exceedance(frequencies: F64, plan: Sums, number: F64, tau: float) -> float:
    """Return the probability that the error of one rare item exceeds tau, a frequency."""
    counts = tau * plan.clients
    step = max(1.0, counts / _STEPS)
    sizes, tails = _tails(step, *_expected(frequencies, plan, number), plan)
    if step == 1.0:
        return float(tails[np.searchsorted(sizes, counts * (1 + 1e-9), side="right") - 1])
    # Errors are multiples of one count, or of half a count if the number of rows is even. So the
    # tail is read half a unit above the largest error that does not exceed tau.
    unit = 1.0 if plan.rows % 2 else 0.5
    between = (math.floor(counts / unit * (1 + 1e-9)) + 0.5) * unit
    return math.exp(
        float(np.interp(between, sizes + sizes[1] / 2, np.log(np.maximum(tails, 1e-300))))
    )


def _expected(frequencies: F64, plan: Sums, number: F64) -> tuple[F64, F64]:
    """Return the expected counts, and how many items have each; light items are grouped."""
    # Under schedule "fresh", a batch with heterogeneity h is modelled with 1/h of the items, each h
    # times as frequent.
    if plan.fresh:
        frequencies, number = frequencies * plan.heterogeneity, number / plan.heterogeneity
    light, numbers = grouped(frequencies[:-_ALONE] * plan.clients, number[:-_ALONE], _WIDE_GROUP)
    return np.append(light, frequencies[-_ALONE:] * plan.clients), np.append(
        numbers, number[-_ALONE:]
    )


def _alike(plan: Sums) -> list[tuple[float, int]]:
    """Group batches of similar size.

    Returns:
        A pair for each group: the number of clients in all batches, divided by the number of
        clients in one batch of the group; and the number of batches in the group.
    """
    cancelling = plan.cancelling
    if plan.heterogeneity > 1.0 and not plan.fresh:
        # An item occurs in fewer batches: all of these have equal sizes except the last one, such
        # that their effective number is M' (`Sums.cancelling`).
        many = math.ceil(cancelling - 1e-9)
        if many == 1:
            return [(1.0, 1)]
        more = math.sqrt(max(1 / cancelling - 1 / many, 0.0) / (many * (many - 1)))
        last = 1 / many - (many - 1) * more
        return [(1 / (1 / many + more), many - 1)] + ([(1 / last, 1)] if last > 1e-9 else [])
    sizes = np.sort(plan.sizes)
    ratio = max(_ALIKE, (sizes[-1] / sizes[0]) ** (1 / _SIZES))
    return [
        (float(sizes.sum() / size), int(many))
        for size, many in zip(*grouped(sizes, np.ones_like(sizes), ratio), strict=True)
    ]


def _exceeded_with(probability: float, expected: F64, numbers: F64, plan: Sums) -> float:
    """Return the size, in counts, that the error of a rare item exceeds with a given probability.

    The first lattice is wide enough for nearly all errors. Then the steps get smaller until the
    result is many steps long, or a step is one count.
    """
    reach = (
        float(expected.max(initial=0.0)) + float((numbers * expected**2).sum() + plan.noise) ** 0.5
    )
    step = max(1.0, 8 * reach / _LATTICE)
    while True:
        sizes, tails = _tails(step, expected, numbers, plan)
        found = float(sizes[np.argmax(np.append(tails[:-1], 0.0) <= probability)])
        if step == 1.0:
            return found  # all possible errors lie on this lattice, so it is exact
        if found >= _STEPS / 2 * step:
            return float(
                np.interp(
                    -np.log(probability), -np.log(np.maximum(tails, 1e-300)), sizes + sizes[1] / 2
                )
            )
        step = max(1.0, max(found, step) / _STEPS)


def _tails(step: float, expected: F64, numbers: F64, plan: Sums) -> tuple[F64, F64]:
    """Return sizes of errors, in counts, and the probability that |error| exceeds each size.

    The error is of the median over rows, for a rare item. The sizes start at 0. They are `step`
    apart, or half a step if the number of rows is even. With a step above 1 errors are blurred
    (`_BLUR`).

    Args:
        step: the step of the lattice on which a row's error is computed, in counts.
        expected: expected counts of items.
        numbers: how many items have each count.
        plan: the sums: their rows, width, batches of rounds, and noise.
    """
    t = _angles(step)
    blur = 0.0 if step == 1.0 else (_BLUR * step) ** 2
    items = tuple(expected.tolist())

    def median(noise: float, groups: list[tuple[float, int]]) -> tuple[F64, float]:
        """Return the distribution of the median over rows, and the step of its lattice.

        The batches of `groups` (from `_alike`) share their locations. `noise` is the variance of
        the noise in a counter, in squared counts.
        """
        less: F64 = np.minimum(_less(step, items, tuple(groups)) / plan.width, 1 - 1e-12)
        log = -(noise + blur) * t * t / 2
        log += np.log1p(-less).T @ numbers
        row = np.fft.fftshift(np.maximum(np.fft.irfft(np.exp(log), _LATTICE), 0.0))
        return _law_of_median(row / row.sum(), plan.rows, step)

    groups = _alike(plan)
    if plan.fresh and len(plan.sizes) > 1:
        waves = []
        for all, many in groups:
            distribution, found = median(plan.noise / len(plan.sizes), [(all, 1)])
            waves.append(np.fft.rfft(np.fft.ifftshift(distribution)) ** many)
        distribution = np.fft.fftshift(
            np.maximum(np.fft.irfft(math.prod(waves), len(distribution)), 0.0)
        )
    else:
        distribution, found = median(plan.noise, groups)
    step = found
    half = len(distribution) // 2
    above = np.append(
        np.cumsum(distribution[:half:-1])[::-1], 0.0
    )  # above each size from 0 on; the distribution is symmetric
    tails: F64 = np.minimum(2 * above[:half], 1.0)
    return step * np.arange(float(half)), tails


def _angles(step: float) -> F64:
    t: F64 = np.arange(_LATTICE / 2 + 1) * (2 * np.pi / (_LATTICE * step))
    return t


@lru_cache(maxsize=8)
def _less(step: float, expected: tuple[float, ...], groups: tuple[tuple[float, int], ...]) -> F64:
    """Return 1 - c(t) for each item and angle t: float64 [items, angles].

    Here c is the characteristic function of the item's contribution to a cell that it is in. The
    angles are its arguments t, from `_angles`. The result depends neither on the number of rows nor
    on the width.

    Args:
        step: the step of the lattice.
        expected: the counts of items.
        groups: the groups of batches, from `_alike`.
    """
    t = _angles(step)
    less, phase = 2 * np.sin(t / 2) ** 2, np.sin(t)
    found = np.ones((len(expected), len(t)))
    for all, many in groups:
        means = np.array(expected)[:, None] / all
        found *= _power(np.exp(-means * less) * np.cos(means * phase), many)
    return 1 - found


def _power(base: F64, exponent: int) -> F64:
    """Return base**exponent, for an exponent of at least 1.

    It squares repeatedly, which is much faster than NumPy's power.
    """
    found = base if exponent % 2 else np.ones_like(base)
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            found = found * base
    return found


def _law_of_median(row: F64, rows: int, step: float) -> tuple[F64, float]:
    """Return the distribution of the median of independent rows, and the step of its lattice.

    If the number of rows is even, the median is the mean of the two middle rows, so the step is
    halved.

    Args:
        row: float64 [n], the distribution of one row on a lattice; index n // 2 is the value 0.
        rows: the number of rows.
        step: the step of the lattice.
    """
    below = np.clip(np.append(0.0, np.cumsum(row)), 0.0, 1.0)
    k = (rows + 1) // 2
    of_kth: F64 = np.diff(betainc(k, rows + 1 - k, below))  # the k-th smallest
    if rows % 2:
        return of_kth, step
    # Let the k-th smallest value be a and the next one b > a. With F the distribution function of a
    # row, and G = 1 - F, this has the probability
    # (number of ways) * (F(a)^k - F(a-)^k) (G(b-)^k - G(b)^k).
    above = np.clip(np.append(np.cumsum(row[::-1])[::-1], 0.0), 0.0, 1.0)
    ways = np.exp((gammaln(rows + 1) - 2 * gammaln(k + 1)) / 2)
    low, high = ways * np.diff(below**k), ways * -np.diff(above**k)
    distribution = _pairs(low, high)
    distribution[::2] += np.maximum(of_kth - low * ways * above[1:] ** k, 0.0)
    return np.append(distribution, 0.0), step / 2


def _pairs(low: F64, high: F64) -> F64:
    """Return for each s the sum of low[a] * high[b] over all a < b with a + b = s: [2 n - 1]."""
    size = len(low)
    if size <= 64:
        index = np.add.outer(np.arange(size), np.arange(size))
        weights = np.triu(np.outer(low, high), 1).reshape(-1)
        few: F64 = np.bincount(index.reshape(-1), weights, 2 * size - 1).astype(np.float64)
        return few
    half = size // 2
    distribution = np.zeros(2 * size - 1)
    distribution[: 2 * half - 1] += _pairs(low[:half], high[:half])
    distribution[2 * half :] += _pairs(low[half:], high[half:])
    distribution[half : half + size - 1] += np.maximum(_convolved(low[:half], high[half:]), 0.0)
    return distribution


def _convolved(first: F64, second: F64) -> F64:
    """Return the convolution of two sequences, by Fourier transforms.

    `scipy.signal` has this function, too, but importing it takes a second of CPU time.
    """
    size = len(first) + len(second) - 1
    padded = 1 << (size - 1).bit_length()  # transforms are fastest for powers of two
    waves = np.fft.rfft(first, padded) * np.fft.rfft(second, padded)
    found: F64 = np.fft.irfft(waves, padded)[:size]
    return found
