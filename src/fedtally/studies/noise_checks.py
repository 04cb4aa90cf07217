"""Tests whether noise has the distribution that the plan says, with bounded false alarms.

A draw is compared with its distribution by its rank. A rank has two parts. The side says whether
the draw is above or below 0, the middle. The depth is the probability that another draw is at least
as far from 0 as this draw; ties are broken at random. If the distribution is right, sides are fair
coins, depths are uniform on (0, 1), and all sides and depths are independent. This holds for any
distribution, even if each draw has a distribution of its own.

Most tests count the draws for which something is true. This number is binomial with a known
probability, so the p-value needs no approximation. The p-values of the other tests are bounds. The
test of the whole distribution uses the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's
constant. The test for reordered values uses a bound on the probability of equal counts. The test
for unchanging noise adds up bounds over the counters. `weighted_tail` is Chernoff's bound.

Several tests of one kind are one check. Its p-value is the smallest p-value of the tests times
their number (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy import fft, special, stats

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
# The draws whose depth is below each of these values are counted. If the scale of the noise changes
# a little, the number below 0.12 changes the most, measured in its standard errors.
_TAILS = (0.9, 0.5, 0.12, 1e-3, 1e-6)
_SCALE_TAIL = 0.12
# Probabilities are computed up to so many standard deviations from 0: a Gaussian is farther from 0
# with a probability below 1e-32.
_REACH = 12
# Probabilities of geometric noise are computed from 0 up to where they have fallen by the factor e
# this many times. The noise is farther from 0 with a probability below 1e-32.
_GEOMETRIC_REACH = 75
_LINE = 1 << 20  # the most draws that are searched for repetitions; limits memory
# The most releases of all campaigns together that are compared in pairs; limits time.
_MOST_RELEASES = 2048
# In `_repeats`: the number of distances between two places of a sequence for which the p-value is
# computed. They are the distances at which the signs agree, or disagree, most.
_CANDIDATES = 64
_POWER = 0.99  # the share of audits that find noise that is too small by `detectable_scale`


class Check(NamedTuple):
    """The result of one check of noise.

    Attributes:
        name: the name of the check.
        probability: the p-value, a bound on the probability that correct noise has this result or a
            worse one. It may be above 1.
        failure: the sentence that describes the failure, if the check fails.
    """

    name: str
    probability: float
    failure: str


@dataclass(frozen=True, eq=False)
class Distribution:
    """A symmetric distribution on the integers.

    Attributes:
        pmf: the probabilities of 0, 1, ..., reach: float64 [reach + 1]. A negative integer has the
            probability of its absolute value. Integers beyond the reach are neglected.
        is_geometric: whether it is a two-sided geometric distribution. A sum of few draws of it is
            far from Gaussian, however large its variance is.
    """

    pmf: F64
    is_geometric: bool = False

    @classmethod
    @lru_cache(maxsize=64)
    def rounded_gaussian(cls, variance: float) -> Self:
        """Return the distribution of a Gaussian draw that is rounded to an integer.

        Args:
            variance: the variance before rounding.

        >>> round(Distribution.rounded_gaussian(4.0).variance, 4)
        4.0833
        """
        scale = math.sqrt(variance)
        k = np.arange(math.ceil(_REACH * scale) + 2)
        return cls(stats.norm.sf(k - 0.5, scale=scale) - stats.norm.sf(k + 0.5, scale=scale))

    @classmethod
    @lru_cache(maxsize=64)
    def skellam(cls, variance: float) -> Self:
        """Return the distribution of the difference of two independent, equal Poisson variables.

        The probability of k is e^-v I_k(v), where v is the variance and I_k the modified Bessel
        function.

        >>> round(Distribution.skellam(4.0).variance, 4)
        4.0
        """
        k = np.arange(math.ceil(_REACH * math.sqrt(variance)) + 40, dtype=np.float64)
        return cls(np.asarray(special.ive(k, variance), np.float64))

    @classmethod
    @lru_cache(maxsize=64)
    def discrete_laplace(cls, variance: float) -> Self:
        """Return the two-sided geometric distribution with a given variance.

        The probability of k is (1 - q) q^|k| / (1 + q). The variance is 2 q / (1 - q)^2, from which
        q, between 0 and 1, is computed.

        >>> round(Distribution.discrete_laplace(4.0).variance, 4)
        4.0
        """
        # the solution below 1 of 2 q / (1 - q)^2 = variance
        q = 1.0 + 1.0 / variance - math.sqrt((1.0 + 1.0 / variance) ** 2 - 1.0)
        k = np.arange(math.ceil(_GEOMETRIC_REACH / -math.log(q)) + 2, dtype=np.float64)
        return cls(np.asarray((1.0 - q) / (1.0 + q) * q**k, np.float64), is_geometric=True)

    @classmethod
    @lru_cache(maxsize=64)
    def of_sum(cls, distributions: tuple[Distribution, ...], number: int) -> Self:
        """Return the distribution of the sum of `number` independent draws of each of the
        distributions.

        It is computed by Fourier transforms, with errors of about 1e-16. So the small probabilities
        far in the tails are not exact.
        """
        variance = number * sum(distribution.variance for distribution in distributions)
        widest = number * sum(len(distribution.pmf) - 1 for distribution in distributions)
        reach = min(widest, math.ceil(_REACH * math.sqrt(variance)) + _REACH**2)
        size = fft.next_fast_len(
            2 * max(reach, *(len(distribution.pmf) for distribution in distributions)) + 1,
            real=True,
        )
        found = np.ones(size // 2 + 1)
        for distribution in distributions:
            around = np.zeros(size)
            around[: len(distribution.pmf)] = distribution.pmf
            around[-len(distribution.pmf) + 1 :] += distribution.pmf[:0:-1]
            # the transform of a symmetric distribution is real
            found = found * fft.rfft(around).real ** number
        return cls(np.maximum(fft.irfft(found, size)[: reach + 1], 0.0))

    def times(self, number: int) -> Distribution:
        """Return the distribution of the sum of `number` independent draws of this distribution."""
        return self if number == 1 else Distribution.of_sum((self,), number)

    @property
    def variance(self) -> float:
        """The variance of a draw."""
        return 2 * float((np.arange(len(self.pmf)) ** 2 * self.pmf).sum())

    def depths(self, draws: I64, uniform: F64) -> F64:
        """Return the depth of each draw, see the module's docstring; 0 for a draw beyond the reach.

        Args:
            draws: the draws, int64 of any shape.
            uniform: uniform random numbers in [0, 1) of the same shape, which break ties.
        """
        above = np.append(np.cumsum(self.pmf[:0:-1])[::-1], 0.0)  # P(draw > k)
        far = np.minimum(np.abs(draws), len(self.pmf))
        above, own = np.append(above, 0.0)[far], np.append(self.pmf, 0.0)[far]
        return np.where(far == 0, 1.0 - own * uniform, 2 * (above + own * uniform))


class Ranks(NamedTuple):
    """The ranks of draws, see the module's docstring.

    Attributes:
        side: +1 for a draw above 0, -1 for a draw below 0, and +1 or -1 at random for a draw of 0:
            int8 [campaigns, draws].
        depth: the depth of each draw, 0 to 1: float64 [campaigns, draws].
    """

    side: npt.NDArray[np.int8]
    depth: F64

    @classmethod
    def of(cls, draws: I64, distribution: Distribution, rng: np.random.Generator) -> Self:
        """Return the ranks of the draws of one campaign under their distribution: [1, draws]."""
        # A draw of 0 gets a random side. Otherwise sides would not be fair coins.
        lots = np.where(rng.integers(0, 2, draws.shape) == 1, 1, -1)
        side = np.where(draws == 0, lots, np.sign(draws)).astype(np.int8)
        return cls(side[None], distribution.depths(draws, rng.random(draws.shape))[None])

    @classmethod
    def joined(cls, parts: Sequence[Ranks]) -> Self:
        """Return the ranks of several campaigns together: [campaigns, draws]."""
        return cls(
            np.concatenate([part.side for part in parts]),
            np.concatenate([part.depth for part in parts]),
        )

    @property
    def big(self) -> npt.NDArray[np.int8]:
        """Whether each draw is in the outer half of its distribution: +1 for yes, -1 for no.

        The result is int8 [campaigns, draws].
        """
        return np.where(self.depth < 0.5, 1, -1).astype(np.int8)

    def some(self, which: npt.NDArray[np.bool_]) -> Ranks:
        """Return the ranks of the draws for which `which` is True: [1, number of these draws].

        Args:
            which: bool [campaigns, draws].
        """
        return Ranks(self.side[which][None], self.depth[which][None])

    def checks(self, where: str) -> list[Check]:
        """Check the sides, the numbers of draws at several depths, and the distribution as a whole.

        Args:
            where: which draws these are, for the sentences about failures.
        """
        n = self.side.size
        counts = [int((self.depth < tail).sum()) for tail in _TAILS]
        spread = min(
            (binomial(count, n, tail) for count, tail in zip(counts, _TAILS, strict=True)),
            default=1.0,
        )
        return [
            Check(
                "sign",
                binomial(int((self.side > 0).sum()), n, 0.5),
                f"{where}: more noise of one sign",
            ),
            Check("spread", len(_TAILS) * spread, f"{where}: the noise is too small or too large"),
            Check("law", self._distance(), f"{where}: the noise has another distribution"),
        ]

    def _distance(self) -> float:
        """Return a bound on the p-value of the largest distance of the ranks from a uniform
        distribution.

        The bound is the inequality of Dvoretzky, Kiefer and Wolfowitz with the constant of Massart
        (1990).
        """
        n = self.side.size
        if not n:
            return 1.0
        below = np.sort(np.where(self.side < 0, self.depth / 2, 1 - self.depth / 2), axis=None)
        steps = np.arange(n + 1) / n
        distance = max(float((steps[1:] - below).max()), float((below - steps[:-1]).max()))
        return min(1.0, 2 * math.exp(-2 * n * distance**2))


def checks_of(releases: Sequence[Ranks], exact: Sequence[I64], rows: int) -> list[Check]:
    """Check the noise of all releases of all campaigns, and return the checks.

    Some checks find noise that depends on the exact sum that it hides.

    Args:
        releases: the ranks of the noise of each release: [campaigns, rows * width].
        exact: the exact sums of each release, without noise: int64 [campaigns, rows * width].
        rows: the number of rows of the sketch.
    """
    found: list[Check] = []
    for k, (ranks, sums) in enumerate(zip(releases, exact, strict=True)):
        where = f"release {k + 1}"
        found += ranks.checks(where)
        for part, which in (
            ("counters that are 0", sums == 0),
            ("counters that are not 0", sums != 0),
        ):
            found.append(ranks.some(which).checks(f"{where}, {part}")[1])
        agree = int((ranks.side[sums != 0] == np.sign(sums[sums != 0])).sum())
        towards = binomial(agree, int((sums != 0).sum()), 0.5)
        found.append(
            Check(
                "shrinkage",
                towards,
                f"{where}: the noise has the sign of what it hides, or the opposite",
            )
        )
        found.append(
            _parts("rows", ranks, rows, f"{where}: the noise of a row is too small or too large")
        )
    sides, big = ([getattr(ranks, name) for ranks in releases] for name in ("side", "big"))
    everything = Ranks(np.concatenate(sides), np.concatenate([ranks.depth for ranks in releases]))
    found += everything.checks("all releases")
    found.append(
        _parts(
            "counters",
            everything,
            everything.side.shape[1],
            "the noise of a counter is too small or too large",
        )
    )
    for name, features in (("signs", sides), ("sizes", big)):
        found.append(_between(features, name))
        found.append(_pairs(np.concatenate(features), name))
        found.append(_repeats(np.stack(features, axis=1).reshape(-1)[:_LINE], name))
    return found


def _parts(name: str, ranks: Ranks, number: int, failure: str) -> Check:
    """Check the size of the noise in each part of a release alone, over all campaigns.

    The parts are its rows or its counters; `number` says how many parts there are.
    """
    depth = ranks.depth.reshape(len(ranks.depth), number, -1)
    n = depth.shape[0] * depth.shape[2]
    best = min(
        float(binomial((depth < tail).sum(axis=(0, 2)), n, tail).min())
        for tail in (0.5, _SCALE_TAIL)
    )
    return Check(name, 2 * number * best, failure)


def _between(features: Sequence[npt.NDArray[np.int8]], name: str) -> Check:
    """Check that no two releases of a campaign have correlated noise, over all campaigns together.

    Args:
        features: +1 or -1 for each draw of each release: int8 [campaigns, draws].
        name: what the features are, "signs" or "sizes".
    """
    flat = np.stack([feature.reshape(-1) for feature in features]).astype(np.float64)
    return of_products(
        flat, f"releases, {name}", "two releases of a campaign have correlated noise"
    )


def _pairs(features: npt.NDArray[np.int8], name: str) -> Check:
    """Check that no two releases have the same noise, as if a key had been used twice.

    The two releases may be of different campaigns.

    Args:
        features: +1 or -1 for each draw: int8 [releases of all campaigns, draws].
        name: what the features are, "signs" or "sizes".
    """
    some = features[:_MOST_RELEASES].astype(np.float64)
    return of_products(
        some, f"keys, {name}", "two releases have the same noise: a key was used twice"
    )


def of_products(vectors: npt.NDArray[Any], name: str, failure: str) -> Check:
    """Check that every two vectors of signs agree in about half of their entries.

    Args:
        vectors: the vectors, with entries +1 and -1: [vectors, n].
        name: the name of the check.
        failure: the sentence that describes the failure.
    """
    number, n = vectors.shape
    if number < 2:
        return Check(name, 1.0, failure)
    vectors = vectors.astype(np.float64)  # int8 would overflow
    products = np.abs((vectors @ vectors.T)[np.triu_indices(number, 1)])
    return Check(
        name, len(products) * binomial(round((n + float(products.max())) / 2), n, 0.5), failure
    )


def shared_with(sides: npt.NDArray[np.int8], releases: Sequence[Ranks], failure: str) -> Check:
    """Check that one more draw of each campaign is not correlated with the noise of any counter.

    Such a draw is, for instance, the noise on the number of clients.

    Args:
        sides: the sides of these draws (see `Ranks`), -1 or +1: int8 [campaigns].
        releases: the ranks of the noise of each release: [campaigns, rows * width].
        failure: the sentence that describes the failure.
    """
    counters = np.concatenate([ranks.side for ranks in releases], axis=1).astype(np.float64)
    n = len(sides)
    largest = float(np.abs(sides.astype(np.float64) @ counters).max())
    return Check("shared", counters.shape[1] * binomial(round((n + largest) / 2), n, 0.5), failure)


def reordered(noise: Sequence[I64], distribution: Distribution) -> Check:
    """Check that no two releases have the same noise in another order.

    This would happen if a key were used twice, with its draws assigned to other counters. Such
    releases have the same histogram: the same number of draws of each value. Two independent
    releases have the same histogram with at most the probability of the most likely histogram.

    Args:
        noise: the noise of each release of each campaign: int64 [rows * width] each.
        distribution: the distribution of all this noise, at least approximately.
    """
    n = len(noise[0])
    expected = n * np.concatenate([distribution.pmf[:0:-1], distribution.pmf])
    expected = expected[expected > 0]
    log = special.gammaln(n + 1) + float(
        (expected * np.log(expected / n) - special.gammaln(expected + 1)).sum()
    )
    pairs = len(noise) * (len(noise) - 1) / 2
    are_other = len({np.sort(draws).tobytes() for draws in noise}) == len(noise)
    failure = "two releases have the same noise in another order"
    return Check("orders", 1.0 if are_other else pairs * math.exp(min(0.0, log)), failure)


def unchanging(noise: Sequence[I64], distributions: Sequence[Sequence[Distribution]]) -> Check:
    """Check that no counter has the same noise in every campaign, as a counter without noise has.

    For one counter, the probability that independent draws are all equal is at most a product: the
    probability of the most likely value, for each draw but one. The p-value is the sum of these
    bounds over all counters.

    Args:
        noise: the noise of each release: int64 [campaigns, rows * width].
        distributions: the distribution of the noise of each release in each campaign.
    """
    probability, is_found = 0.0, False
    for draws, own in zip(noise, distributions, strict=True):
        likeliest = sorted(float(distribution.pmf.max()) for distribution in own)
        probability += draws.shape[1] * math.prod(likeliest[:-1])
        is_found |= bool((draws == draws[0]).all(axis=0).any())
    failure = "a counter has the same noise in every campaign"
    return Check("unchanging", probability if is_found else 1.0, failure)


def campaigns_to_see_unchanging(counters: int, distribution: Distribution, level: float) -> int:
    """Return how many campaigns are enough for `unchanging` to find any counter without noise.

    Args:
        counters: the number of counters in all releases of a campaign.
        distribution: the distribution of the noise; it must not be constant.
        level: the p-value below which a check fails.

    >>> campaigns_to_see_unchanging(1200, Distribution.rounded_gaussian(90.0), 1e-8)
    10
    """
    return 2 + math.floor(math.log(counters / level) / -math.log(float(distribution.pmf.max())))


def weighted_tail(excess: float, weights: I64, distributions: Sequence[Distribution]) -> float:
    """Return Chernoff's bound on the probability that a weighted sum of draws is at least `excess`.

    Chernoff's bound holds for any exponent. The smaller one of two bounds is returned. The first
    bound has the exponent that is best for a Gaussian sum and this excess, or for an excess of 7
    standard deviations of the sum if that is less. The second bound is like the first, with 1 in
    place of 7. It is for few draws of geometric noise, whose first bound is often 1. With these
    exponents it does not matter that `Distribution.pmf` ends at the reach.

    Args:
        excess: the value that the sum reaches.
        weights: the weights of the draws of each distribution, not all 0: int64 [n].
        distributions: the distributions; the sum has n independent draws of each.

    >>> distributions = [Distribution.rounded_gaussian(100.0)] * 4
    >>> round(weighted_tail(100.0, np.array([1, -2, 1]), distributions), 4)
    0.1247
    """
    sizes, numbers = np.unique(np.abs(weights[weights != 0]), return_counts=True)
    square = float((numbers * sizes**2).sum())
    variance = square * sum(distribution.variance for distribution in distributions)
    if excess <= 0 or not variance:
        return 1.0

    def bound(stddevs: float) -> float:
        """Return the logarithm of Chernoff's bound with one exponent.

        The exponent is best for a Gaussian sum and `excess`, or for an excess of `stddevs` standard
        deviations if that is less.
        """
        point = min(excess / variance, stddevs / math.sqrt(variance))
        logarithm = -point * excess
        for distribution in set(distributions):
            k = np.arange(1, len(distribution.pmf))
            moments = [
                distribution.pmf[0]
                + 2 * float((distribution.pmf[1:] * np.cosh(point * size * k)).sum())
                for size in sizes.tolist()
            ]
            times = distributions.count(distribution)
            logarithm += times * float((numbers * np.log(moments)).sum())
        return logarithm

    return math.exp(min(0.0, bound(7.0), bound(1.0)))


def _repeats(line: npt.NDArray[np.int8], name: str) -> Check:
    """Check that a sequence of signs does not repeat itself after any distance.

    The sequence consists of the releases of all campaigns, one after the other, up to 2^20 draws.
    If signs are fair and independent, the products of two signs at one distance are fair and
    independent, too.

    Args:
        line: the sequence, +1 or -1: int8 [n].
        name: what the signs are, "signs" or "sizes".
    """
    n = len(line)
    # the sums of the products at all distances, by one Fourier transform
    padded = np.zeros(2 * n)
    padded[:n] = line
    power = np.abs(np.fft.rfft(padded)) ** 2
    sums = np.rint(np.fft.irfft(power, 2 * n)[1:n])
    overlaps = n - np.arange(1, n)
    closest = np.argsort(-np.abs(sums) / np.sqrt(overlaps))[:_CANDIDATES]
    agree = (overlaps[closest] + sums[closest]) / 2
    best = float(binomial(agree, overlaps[closest], 0.5).min()) if len(closest) else 1.0
    return Check(f"repeats, {name}", len(overlaps) * best, "the noise repeats itself")


def binomial(count: Any, n: Any, p: float) -> Any:
    """Return the two-sided p-value of binomial counts: twice the smaller tail, at most 1.

    Args:
        count: the number of successes, or an array of such numbers.
        n: the number of trials, or an array.
        p: the probability of a success.
    """
    tail = np.minimum(stats.binom.cdf(count, n, p), stats.binom.sf(np.asarray(count) - 1, n, p))
    return np.minimum(1.0, 2 * tail)


def epsilon_bound(
    yes: npt.NDArray[np.bool_], no: npt.NDArray[np.bool_], delta: float, false_alarm: float
) -> float:
    """Return a lower bound on epsilon, from how often an event was seen in two worlds.

    The bound follows from bounds of Clopper and Pearson on the probability of the event in each
    world. Each of the two is wrong with a probability of at most half of `false_alarm`.

    Args:
        yes: whether the event was seen in each trial in the world in which it is expected.
        no: whether the event was seen in each trial in the other world.
        delta: the delta of the guarantee.
        false_alarm: the largest probability that the bound is above epsilon.

    >>> seen, not_seen = np.ones(100, bool), np.zeros(100, bool)
    >>> round(epsilon_bound(seen, not_seen, 1e-6, 1e-3), 2)
    2.54
    >>> epsilon_bound(seen, seen, 1e-6, 1e-3)
    0.0
    """
    if not (len(yes) and len(no) and yes.any()):
        return 0.0
    low = float(stats.beta.ppf(false_alarm / 2, yes.sum(), len(yes) - yes.sum() + 1))
    high = (
        1.0
        if no.all()
        else float(stats.beta.isf(false_alarm / 2, no.sum() + 1, len(no) - no.sum()))
    )
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def detectable_scale(counters: int, level: float) -> float | None:
    """Return by which share the noise must be too small so that 99 of 100 audits find it.

    The share is of the noise's standard deviation. It is computed for Gaussian noise, and is about
    right for other noise unless its variance is small. Returns None if there are too few counters
    to find any lack of noise.

    Args:
        counters: the number of counters of the release, over all campaigns.
        level: the p-value below which a check fails.
    """
    allowed = int(stats.binom.ppf(level / len(_TAILS) / 2, counters, _SCALE_TAIL)) - 1
    if allowed < 0:
        return None
    # the probability of a draw in the tail with which 99 of 100 audits see at most `allowed` such
    # draws
    probability = float(special.bdtri(allowed, counters, _POWER))
    scale = stats.norm.isf(_SCALE_TAIL / 2) / stats.norm.isf(probability / 2)
    return float(1 - scale)
