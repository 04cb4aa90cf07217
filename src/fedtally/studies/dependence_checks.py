"""Tests whether the noise of different counters is independent; false alarms are bounded.

Noise of the right distribution hides nothing if an attacker knows sums of it. For example, if the
noise of each row adds up to 0, the sum of each row is exact. So these numbers are compared with
what independent draws would give:

- The sums of the noise over a row, a release or a campaign. Two things are tested: the ranks of the
  sums under the distribution of a sum (see `Ranks`), and how many sums are even.
- How many draws of each size a row or a release has, whatever the order and the signs of the draws.
  Given the numbers of draws of smaller sizes, each number is binomial. So whether a number is large
  or small is a fair coin, and two rows or releases agree in half of their coins.
- How many pairs of counters have the same noise, or the opposite noise, in every campaign. The
  p-value is a union bound.
- The signs and sizes of the noise of every two counters over the campaigns, if there are enough
  campaigns to show something. At most 8192 counters, drawn at random, are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from fedtally.studies.noise_checks import Check, Distribution, Ranks, binomial, of_products

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
# The distribution of the noise, by release and campaign.
Distributions = Sequence[Sequence[Distribution]]
# For each of these values, the sums with a smaller depth (see `Ranks`) are counted. If a sum with a
# large variance is always 0, its depth is above the first value.
_TAILS = (0.995, 0.95, 0.12, 1e-3)
_CELLS = 64  # the most ranges of absolute values (cells) in which draws are counted
# The most rows, or releases, of all campaigns together that are compared in pairs; limits time.
_MOST_ROWS = 2048
_MOST_COUNTERS = 8192  # the most counters that are compared in pairs; limits time
_BLOCK = 512  # the counters in one matrix product; limits memory
# Pairs of counters are compared only if the probability that any two agree in all campaigns by
# chance is below this.
_USEFUL = 1e-9
_WIDE = 1e8  # the variance above which a sum is ranked as a continuous value; limits memory


def dependence_checks(
    noise: Sequence[I64], distributions: Distributions, rows: int, rng: np.random.Generator
) -> list[Check]:
    """Check that the noise of different counters is independent, and return the checks.

    Args:
        noise: the noise of each release: int64 [campaigns, rows * width].
        distributions: the distribution of the noise of each release in each campaign.
        rows: the number of rows of the sketch.
        rng: the random generator that breaks ties.
    """
    found = _sums(noise, distributions, rows, rng)
    for name, parts in (("row", rows), ("release", 1)):
        coins = _coins(noise, distributions, parts, rng)
        failure = f"two {name}s have noise of the same sizes, in whatever order"
        # Compares rows or releases of the same campaign.
        together = coins.swapaxes(0, 1).reshape(coins.shape[1], -1)
        found.append(of_products(together, f"orders, {name}s", failure))
        # Compares rows or releases of any campaigns.
        each = coins.reshape(-1, coins.shape[2])[:_MOST_ROWS]
        found.append(of_products(each, f"any orders, {name}s", failure))
    return [
        *found,
        _equal_pairs(noise, distributions),
        *_correlated_pairs(noise, distributions, rng),
    ]


def _sums(
    noise: Sequence[I64], distributions: Distributions, rows: int, rng: np.random.Generator
) -> list[Check]:
    """Check the sums of the noise over rows, releases and campaigns, two checks for each kind.

    The arguments are those of `dependence_checks`.
    """
    size = noise[0].shape[1]
    of_rows = [draws.reshape(len(draws), rows, -1).sum(axis=2) for draws in noise]
    of_releases = [draws.sum(axis=1)[:, None] for draws in noise]
    of_all = sum(of_releases[1:], of_releases[0])
    campaigns = list(zip(*distributions, strict=True))
    found: list[Check] = []
    for name, sums, addends in (
        ("row", of_rows, [[(distribution,) for distribution in own] for own in distributions]),
        (
            "release",
            of_releases,
            [[(distribution,) for distribution in own] for own in distributions],
        ),
        ("campaign", [of_all], [campaigns]),
    ):
        number = size // rows if name == "row" else size
        ranks, even = [], []
        for own, each in zip(sums, addends, strict=True):
            parts = [_ranked(one, group, number, rng) for one, group in zip(own, each, strict=True)]
            ranks.append(Ranks.joined([part for part, _ in parts]))
            even.append(own[[fair for _, fair in parts]].reshape(-1) % 2 == 0)
        side = np.concatenate([rank.side for rank in ranks], axis=1)
        depth = np.concatenate([rank.depth for rank in ranks], axis=1)
        failure = f"the noise of a {name} adds up to too little or too much"
        found.append(_of_sums(Ranks(side, depth), f"sums, {name}s", failure))
        fair = np.concatenate(even)
        probability = float(binomial(int(fair.sum()), len(fair), 0.5))
        failure = f"the noise of a {name} adds up to an even number, or to an odd one, too often"
        found.append(Check(f"parity, {name}s", probability, failure))
    return found


def _ranked(
    sums: I64, addends: Sequence[Distribution], number: int, rng: np.random.Generator
) -> tuple[Ranks, bool]:
    """Return the ranks of sums of draws, and whether a sum is even with probability 1/2.

    The probability counts as 1/2 if it is within 1e-9 of 1/2, or if the variance of a sum is above
    1e8.

    If the variance of a sum is above `_WIDE`, 1e8, the sum is ranked as a continuous value. For
    Gaussian and Skellam noise it is ranked as a Gaussian, and the error is small: the fourth
    cumulant of the sum is below 1e-8 of its squared variance. For geometric noise it is about 3 /
    (number of draws in the sum) of the squared variance. So such a sum is ranked by the sum of as
    many geometric draws, whose variance is smaller: their sum has the variance `_WIDE`. The two
    laws then have fourth cumulants that differ by 1e-8 of the squared variance, too.

    Args:
        sums: the sums: int64 [sums].
        addends: the distributions of the draws; each sum has `number` draws of each.
        number: the number of draws.
        rng: the random generator that breaks ties.
    """
    variance = number * sum(distribution.variance for distribution in addends)
    if variance > _WIDE:
        drawn = sums + rng.random(sums.shape) - 0.5
        if any(distribution.is_geometric for distribution in addends):
            depth = _geometric_depth(drawn, addends, number, variance)
        else:
            depth = special.erfc(np.abs(drawn) / math.sqrt(2 * variance))
        return Ranks(np.where(drawn < 0, -1, 1).astype(np.int8)[None], depth[None]), True
    distribution = Distribution.of_sum(tuple(addends), number)
    even = distribution.pmf[0] + 2 * distribution.pmf[2::2].sum()
    return Ranks.of(sums, distribution, rng), bool(abs(even - 0.5) < 1e-9)


def _geometric_depth(
    drawn: F64, addends: Sequence[Distribution], number: int, variance: float
) -> F64:
    """Return the depth of each sum of geometric noise, if the variance of a sum is above `_WIDE`.

    The depth is the probability that another such sum is at least as far from 0. `_ranked` says why
    these sums have a function of their own.

    Args:
        drawn: the sums, as continuous values: float64 [sums].
        addends: the distributions of the draws; each sum has `number` draws of each.
        number: the number of draws.
        variance: the variance of a sum.
    """
    share = _WIDE / variance
    narrow = tuple(
        Distribution.discrete_laplace(distribution.variance * share) for distribution in addends
    )
    far = np.abs(drawn) * math.sqrt(share)
    # a value within a cell of the narrow sum, which is an integer and half of 1 on both sides
    cell = np.floor(far + 0.5)
    left = np.where(cell == 0, 2 * far, cell + 0.5 - far)
    return Distribution.of_sum(narrow, number).depths(cell.astype(np.int64), left)


def _of_sums(ranks: Ranks, name: str, failure: str) -> Check:
    """Check the ranks of sums, [campaigns, parts]: all ranks together, and each part alone."""
    campaigns, parts = ranks.side.shape
    events = [(ranks.side > 0, 0.5), *((ranks.depth < tail, tail) for tail in _TAILS)]
    best = 1.0
    for event, p in events:
        each = parts * float(binomial(event.sum(axis=0), campaigns, p).min())
        best = min(best, each, float(binomial(int(event.sum()), event.size, p)))
    return Check(name, 2 * len(events) * best, failure)


def _coins(
    noise: Sequence[I64], distributions: Distributions, parts: int, rng: np.random.Generator
) -> npt.NDArray[np.int8]:
    """Return whether each part of a release has many or few draws of each size: +1 or -1.

    The result is int8 [campaigns, releases * parts, cells - 1]. A cell is a range of absolute
    values. Unless the noise is small, all cells have about the same probability. The number of
    draws in a cell, given the numbers in the cells before it, is binomial. Whether this number is
    in the upper half of its distribution is a fair coin, independent of all other coins. Ties are
    broken at random.

    Args:
        noise: the noise of each release: int64 [campaigns, rows * width].
        distributions: the distribution of the noise of each release in each campaign.
        parts: the number of parts of a release: its rows, or 1.
        rng: the random generator that breaks ties.
    """
    first = _folded(distributions[0][0])
    middles = np.cumsum(first) - first / 2
    cells = np.unique(
        np.minimum(middles * _CELLS, _CELLS - 1).astype(np.int64), return_inverse=True
    )[1]
    number, found = int(cells.max()) + 1, []
    for draws, own in zip(noise, distributions, strict=True):
        size = draws.shape[1] // parts
        where = cells[np.minimum(np.abs(draws), len(cells) - 1)].reshape(len(draws), parts, size)
        line = where + number * np.arange(len(draws) * parts).reshape(len(draws), parts, 1)
        counts = np.bincount(line.reshape(-1), minlength=number * len(draws) * parts)
        counts = counts.reshape(len(draws), parts, number)
        masses = np.stack([_masses(distribution, cells, number) for distribution in own])[:, None]
        left = size - np.cumsum(counts, axis=2) + counts
        share = masses / np.maximum(np.cumsum(masses[..., ::-1], axis=2)[..., ::-1], 1e-300)
        counts, left, share = counts[..., :-1], left[..., :-1], np.minimum(share[..., :-1], 1.0)
        below = stats.binom.cdf(counts - 1, left, share)
        rank = below + rng.random(counts.shape) * stats.binom.pmf(counts, left, share)
        found.append(np.where(rank > 0.5, 1, -1).astype(np.int8))
    return np.concatenate(found, axis=1)


def _masses(distribution: Distribution, cells: I64, number: int) -> F64:
    """Return the probability of each cell: float64 [number].

    Args:
        distribution: the distribution of a draw.
        cells: the cell of each absolute value 0, 1, ...; larger values are in the last cell.
        number: the number of cells.
    """
    own = _folded(distribution)
    places = cells[np.minimum(np.arange(len(own)), len(cells) - 1)]
    found = np.zeros(number)
    np.add.at(found, places, own)
    return found


def _folded(distribution: Distribution) -> F64:
    """Return the probabilities of the absolute values 0, 1, ... of a draw: float64 [reach + 1]."""
    return np.append(distribution.pmf[:1], 2 * distribution.pmf[1:])


def _equal_pairs(noise: Sequence[I64], distributions: Distributions) -> Check:
    """Check how many pairs of counters have the same noise, or the opposite noise, in every
    campaign.

    A pair is *equal* if its two counters have the same or the opposite noise in every campaign. Let
    N be the number of counters, and p the probability that one pair is equal. The probability that
    there are m equal pairs, no two of them with a common counter, is at most
    (N (N - 1) / 2 * p)^m / m!. The reason: there are at most (N (N - 1) / 2)^m / m! choices of m
    pairs without a common counter, and these pairs are independent.

    If the two counters have different distributions, then by the Cauchy-Schwarz inequality their
    draws agree with at most this probability: the larger one of the probabilities that two draws of
    one of these distributions agree.
    """
    absolute = np.ascontiguousarray(np.abs(np.concatenate(noise, axis=1)).T)
    log_p = sum(
        math.log(max(float((_folded(distribution) ** 2).sum()) for distribution in set(each)))
        for each in zip(*distributions, strict=True)
    )
    number = len(absolute)
    _, counts = np.unique(absolute, axis=0, return_counts=True)
    pairs = int((counts // 2).sum())
    log = pairs * (math.log(max(1, number * (number - 1) // 2)) + log_p) - math.lgamma(pairs + 1)
    failure = "counters have the same noise as others, or the opposite one, in every campaign"
    return Check("equal pairs", math.exp(min(0.0, log)), failure)


def _correlated_pairs(
    noise: Sequence[I64], distributions: Distributions, rng: np.random.Generator
) -> list[Check]:
    """Check that the noise of no two counters is correlated over the campaigns.

    There is one check for the signs and one for the sizes. If there is one counter, or there are
    too few campaigns to show anything, nothing is compared, and the checks pass.
    """
    parts = [
        Ranks.joined(
            [Ranks.of(one, distribution, rng) for one, distribution in zip(own, each, strict=True)]
        )
        for own, each in zip(noise, distributions, strict=True)
    ]
    found = []
    for name in ("side", "big"):
        vectors = np.concatenate([getattr(part, name) for part in parts], axis=1).T
        vectors = vectors[rng.permutation(len(vectors))[:_MOST_COUNTERS]]
        number, campaigns = vectors.shape
        pairs, largest = number * (number - 1) // 2, 0.0
        if pairs * 2.0 ** (1 - campaigns) < _USEFUL:
            vectors = vectors.astype(np.float32)  # exact, because the sums are far below 2^24
            for start in range(0, number, _BLOCK):
                products = np.abs(vectors[start : start + _BLOCK] @ vectors.T)
                products[np.arange(len(products)), start + np.arange(len(products))] = 0
                largest = max(largest, float(products.max()))
        agree = round((campaigns + largest) / 2)
        found.append(
            Check(
                f"counters, {name}",
                max(1, pairs) * float(binomial(agree, campaigns, 0.5)),
                "two counters have correlated noise over the campaigns",
            )
        )
    return found
