"""How far bounds of Skellam noise lie above exact values: clipped sketches, and a ledger.

Run `python tools/accountant_gap.py`. The first table is about clips. A client's clipped sketch is
some integer vector of at most the clip's squared length. Which one costs most is not known; the
exact value of one is, by convolution. Printed is how far the bound lies above the most expensive of
these vectors: all entries 1; or as many entries 2 as fit, and the rest 1; and so on. So the true
distance from the worst vector is at most what is printed.

The second table is about several campaigns in one ledger, each a histogram of one row whose noise
makes one of them cost an epsilon. Printed is what they cost as Gaussians; the least grant that lets
them begin; what the ledger says of them under one and a half times that grant; and the exact value
for a fixed list of them.

The convolution shares no code with `fedtally.privacy.accounting`: distributions from their
logarithms, losses split between the
points of a fine grid so that the mass of both worlds stays what it is, tilted so that the tail is
computed where most of the mass is, then one Fourier transform.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ive, log_ndtr

from fedtally.privacy.accounting import (
    Composition,
    Method,
    calibrate,
    epsilon,
    noise_multiplier,
)
from fedtally.privacy.events import Event, default_clip_norm

F64 = npt.NDArray[np.float64]
EPSILONS = (0.1, 1.0, 2.0, 4.0, 8.0)
CASES = ((1, 2), (3, 2), (5, 2), (16, 2), (5, 5), (16, 5), (5, 20))  # rows, items
CAMPAIGNS = ((1.0, 2), (1.0, 4), (2.0, 2), (2.0, 4), (2.0, 8), (3.0, 2), (3.0, 4), (4.0, 2))
DELTA = 1e-6
WIDTH = 1000


def skellam(variance: float) -> F64:
    """Return log-probabilities of the integers around 0, of a Skellam distribution."""
    k = np.arange(math.ceil(37 * math.sqrt(variance)) + 200)
    half = ive(k, variance)
    half = np.log(half[: int(np.argmin(half > 1e-300)) if (half <= 1e-300).any() else len(half)])
    return np.concatenate([half[:0:-1], half])


def rounded_gaussian(variance: float) -> F64:
    """Return log-probabilities of the integers around 0, of a rounded Gaussian distribution."""
    k = np.arange(math.ceil(36 * math.sqrt(variance)) + 40)
    above, beyond = (log_ndtr(-(k + side) / math.sqrt(variance)) for side in (-0.5, 0.5))
    half = above + np.log1p(-np.exp(beyond - above))
    half = half[half > -690]
    return np.concatenate([half[:0:-1], half])


def exact_epsilon(distribution: F64, shifts: Mapping[int, int], delta: float) -> float:
    """Return epsilon at delta of independent counters, shifted as {shift: number} says."""
    pairs = [
        (distribution[: len(distribution) - shift], distribution[shift:], number)
        for shift, number in shifts.items()
        if number
    ]
    lost = sum(
        number * np.exp(distribution[len(distribution) - shift :]).sum()
        for shift, number in shifts.items()
    )
    stddev = math.sqrt(sum(n * np.exp(p) @ (p - q) ** 2 for p, q, n in pairs))
    step, tilt = stddev / 8000, 4.0 / stddev
    size = 1 << 19  # 65 standard deviations
    spectrum, scale = np.ones(size // 2 + 1, complex), 0.0
    for p, q, number in pairs:
        loss = p - q
        low = np.floor(loss / step)
        # to the upper point: keeps both worlds' masses
        share = -np.expm1(low * step - loss) / -math.expm1(-step)
        places = np.concatenate([low, low + 1]).astype(np.int64)
        weights = (
            np.concatenate([p + np.log1p(-share), p + np.log(np.maximum(share, 1e-300))])
            + tilt * places * step
        )
        most = weights.max()
        kept = np.abs(places) < size // 2
        lost += number * np.exp((weights - tilt * places * step)[~kept]).sum()
        tilted = np.bincount(places[kept] % size, np.exp(weights[kept] - most), size)
        total = tilted.sum()
        spectrum *= np.fft.rfft(tilted / total) ** number
        scale += number * (most + math.log(total))
    mass = np.maximum(np.fft.irfft(spectrum, size), 0.0)
    mean = round(sum(_tilted_mean(p, q, tilt) * n for p, q, n in pairs) / step)
    place = np.arange(mean - size // 2, mean + size // 2)
    losses, logs = place * step, scale - tilt * place * step
    mass = mass[place % size]

    def excess(at: float) -> float:
        above = losses > at
        return (
            float((mass[above] * np.exp(logs[above]) * -np.expm1(at - losses[above])).sum())
            + lost
            - delta
        )

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, losses[-1], xtol=1e-10))


def _tilted_mean(p: F64, q: F64, tilt: float) -> float:
    weights = p + tilt * (p - q)
    weights = np.exp(weights - weights.max())
    return float(weights @ (p - q) / weights.sum())


def concentrated(square: int, entry: int) -> dict[int, int]:
    """Return a vector of this squared length, {entry: number}: one entry as often as it fits."""
    number = square // entry**2
    ones = square - number * entry**2
    return {1: number + ones} if entry == 1 else {entry: number, 1: ones}


def gap(rows: int, items: int, target: float) -> float:
    """Return how far the bound lies above the most expensive vector, as a share.

    The noise is that for about this epsilon.
    """
    clip = default_clip_norm(rows, WIDTH, items)
    event = Event(
        "skellam",
        rows,
        "zero-out",
        max_items=items,
        clip_norm=clip,
        honest_survivors=1,
        variance=1.0,
    )
    variance = (noise_multiplier(target, DELTA) * event.l2_sensitivity) ** 2
    found = epsilon(Event.from_dict(event.to_dict() | {"variance": variance}), DELTA)
    assert found.method is Method.DOMINATING_GAUSSIAN
    square, distribution = round(event.round_square), skellam(variance)
    vectors = [concentrated(square, entry) for entry in range(1, math.isqrt(square) + 1)]
    return (
        found.epsilon
        / max(exact_epsilon(distribution, vector, DELTA - 2.0**-40) for vector in vectors)
        - 1
    )


class Ledger(NamedTuple):
    """What several campaigns cost: as Gaussians, the least grant, under a larger one, exactly."""

    gaussians: float
    least: float
    larger: float
    exact: float


def ledger(target: float, number: int) -> Ledger:
    """Return what so many campaigns cost, each a histogram with Skellam noise of this epsilon."""
    event = Event("skellam", 1, "zero-out", honest_survivors=300)
    event = replace(event, variance=calibrate(event, target, DELTA))

    def spent(granted: float | None) -> float:
        return Composition.of([event] * number, DELTA, granted).guarantee.epsilon

    gaussians = spent(None)
    low, high = target, gaussians
    while high > low * (1 + 1e-4):
        middle = (low + high) / 2
        low, high = (low, middle) if spent(middle) <= middle else (middle, high)
    exact = exact_epsilon(skellam(event.noise_variance), {1: number}, DELTA - number * 2.0**-40)
    return Ledger(gaussians, high, spent(1.5 * high), exact)


def main() -> None:
    """Print both tables."""
    print("rows items " + " ".join(f"{f'eps {target:g}':>8}" for target in EPSILONS))
    for rows, items in CASES:
        print(
            f"{rows:4} {items:5} "
            + " ".join(f"{100 * gap(rows, items, target):7.3f}%" for target in EPSILONS)
        )
    print("\nepsilon x campaigns  Gaussians  least grant  under 1.5 times it    exact")
    for target, number in CAMPAIGNS:
        of = ledger(target, number)
        print(
            f"{target:7g} x {number:<9} {of.gaussians:9.2f} {of.least:12.2f} {of.larger:19.2f}"
            f" {of.exact:8.2f}"
        )


if __name__ == "__main__":
    main()
