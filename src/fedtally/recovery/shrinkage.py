"""Estimates with a small expected squared error: posterior means, shrunk towards 0.

Most candidates are rare, and the estimate of a rare item is mostly noise. The distribution of the
noise is known. Therefore the distribution of the true frequencies can be learned from all estimates
together. Then each estimate is replaced by the mean frequency of the items with that estimate. This
is empirical Bayes (Robbins 1956) in the form of Stephens (Biostatistics 2017). The l2 error often
becomes several times smaller. But estimates near the noise are biased towards 0, and the largest
single error may grow a little. Items far above the noise hardly change.

The learned distribution is a mixture of a point at 0 and of normal components. The means of the
components rise geometrically, and their weights are near those of maximum likelihood.
docs/accuracy.md has the reasons and the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.linear_system import BLOCK, F64, U64, Candidates, Decoder, Ids, ask
from fedtally.sketch import SketchSpec

# Lengths are in standard deviations of the noise.
_GRID = (0.3, 0.3)  # means of the prior's components: the first step, and the growth of the steps
_WIDTH = 0.35  # the width of a component, as a share of the step that ends at its mean
_BINS = (0.15, 0.08)  # bins of the values: the first step, and the growth of the steps
# The median's noise is a mixture of normal components. These are the smallest of their standard
# deviations, and the ratio from one to the next.
_SIZES = (0.2, 1.4)
# A phantom (an id that nobody holds) beyond this mostly shares cells with one of the heaviest
# items. Such items cause no error in their own estimates, so these phantoms are left out.
_FURTHEST = 10.0
_STEPS = 500  # the most steps of expectation-maximization
_RISE = 0.01  # after a step that raises the log-likelihood by less, the weights are good enough
EXACT = 0.01  # in clients; if the noise is not larger, nothing is shrunk
NORMAL_95 = 1.959964  # the .95 quantile of |x| for a standard normal x
_TINY = 1e-300  # replaces a density of 0, which has no logarithm


class Noise(NamedTuple):
    """A symmetric distribution: a mixture of normal distributions with mean 0.

    Attributes:
        stddevs: the standard deviation of each component, float64 [k].
        shares: the weight of each component, float64 [k].
    """

    stddevs: F64
    shares: F64


NORMAL = Noise(np.ones(1), np.ones(1))


class Noisy(NamedTuple):
    """The values that `ShrunkDecoder` shrinks, and their noise, as a decoder reports them.

    Attributes:
        stddev: the standard deviation of the noise, in clients, for an item that shares no cell
            with a fitted item. If it is at most EXACT, the decoder's estimates are used as they
            are.
        law: the distribution of the noise, in units of its standard deviation.
        standard: a function of ids. It returns their values in standard deviations of their noise,
            float64 [n], and these standard deviations in clients: float64 [n], or one number for
            all.
    """

    stddev: float
    law: Noise
    standard: Callable[[Ids], tuple[F64, F64 | float]]


class Shrinkable(Decoder, Protocol):
    """A decoder of a campaign's sums that also reports the noise of its estimates."""

    spec: SketchSpec
    num_clients: int

    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the values that are shrunk, and their noise."""


class ShrunkDecoder:
    """Shrinks the estimates of another decoder to posterior means of nonnegative counts.

    The other decoder reports the values to shrink and their noise (`noisy`). If two values have
    noise of the same scale, the larger one never gets the smaller result. The same sums always give
    the same results. The constructor decodes all candidates once, in blocks, unless the noise is
    too small to shrink anything (`EXACT`).

    Attributes:
        spec: the spec of the sketches.
        num_clients: the number of clients in all rounds that took place.
        noise: the standard deviation of the noise, in clients, for an item that shares no cell with
            a fitted item.

    Args:
        decoder: the other decoder.
        domain: the candidate items, from which the distribution of the counts is learned. Any id
            may be decoded later, unless the sums are histograms: these hold only candidates.

    Raises:
        InvalidInputError: the decoder does not report its noise.

    >>> from fedtally import JointDecoder
    >>> from fedtally.domain import IntegerRange
    >>> from fedtally.sketch import CountSketch, SketchSpec
    >>> spec = SketchSpec(rows=5, width=50, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> sketch = CountSketch(spec, 0)
    >>> counts = np.append([900, 700], np.ones(998, int))
    >>> sketch.add(np.arange(1, 1001, dtype=np.uint64), counts)
    >>> joint = JointDecoder([sketch], IntegerRange(1, 1000))
    >>> shrunk = ShrunkDecoder(joint, IntegerRange(1, 1000))
    >>> error, before = (float(np.sum((d.range(1, 1000) - counts) ** 2)) for d in (shrunk, joint))
    >>> error < before / 4
    True
    """

    def __init__(self, decoder: Shrinkable, domain: Domain) -> None:
        noisy = getattr(decoder, "noisy", None)
        if noisy is None:
            raise InvalidInputError(
                "only the estimates of a decoder that knows their noise can be shrunk, got"
                f" {type(decoder).__name__}"
            )
        self.spec, self.num_clients = decoder.spec, decoder.num_clients
        self._decoder = decoder
        candidates = Candidates(domain)
        self.noise, distribution, self._standard = noisy(candidates)
        if self.noise > EXACT:
            largest = 2.0 * self.num_clients / self.noise
            self._values = both_sides(_axis(largest, *_BINS))
            seen = np.zeros(len(self._values))
            for _, ids in candidates.blocks():
                seen += binned(self._standard(ids)[0], self._values)
            means = posterior_means(seen, self._values, distribution, _axis(largest, *_GRID))
            # The differences are interpolated, not the means: then a value beyond the last bin
            # moves by as much as the last bin does, and this is nearly 0.
            self._moves = means - self._values

    def at(self, ids: U64) -> F64:
        """Return the posterior mean count of each id: float64 [n]."""
        return self._in_blocks(ids)

    def range(self, first_id: int, count: int) -> F64:
        """Return the posterior means of the ids from `first_id` on (mod 2^64): float64 [count]."""
        return self._in_blocks(range(first_id, first_id + validate.integer(0, count=count)))

    def _in_blocks(self, ids: Ids) -> F64:
        if self.noise <= EXACT:
            return ask(self._decoder, ids)
        found = np.empty(len(ids))
        for start in range(0, len(ids), BLOCK):
            z, stddev = self._standard(ids[start : start + BLOCK])
            moved = z + np.interp(z, self._values, self._moves)
            found[start : start + BLOCK] = np.maximum(moved, 0.0) * stddev
        return found


def noise_distribution(phantoms: F64) -> Noise:
    """Return the distribution of the noise, fitted to phantoms; values beyond 10 are left out.

    Args:
        phantoms: float64 [n], the estimates of ids that no client holds, divided by about their
            standard deviation.

    >>> distribution = noise_distribution(np.random.default_rng(0).normal(size=20_000))
    >>> bool(abs(np.sqrt(distribution.shares @ distribution.stddevs**2) - 1) < 0.02)
    True
    """
    sizes = np.abs(phantoms)
    sizes = sizes[sizes <= _FURTHEST]
    smallest, ratio = _SIZES
    steps = np.ceil(np.log(max(float(sizes.max()), 1.0) / smallest) / np.log(ratio))
    stddevs = smallest * ratio ** np.arange(steps + 1.0)
    values = _axis(float(sizes.max()), 0.05, 0.05)
    likelihood = np.exp(-0.5 * (values[:, None] / stddevs) ** 2) / stddevs
    shares = mixing_weights(likelihood, binned(sizes, values))
    used = shares > 1e-6
    return Noise(stddevs[used], shares[used] / shares[used].sum())


def posterior_means(seen: F64, values: F64, noise: Noise, grid: F64) -> F64:
    """Return the mean of the true values given each noisy value: float64 [n], never falling.

    The distribution of the true values is learned from `seen`.

    Args:
        seen: float64 [n], how many items have each value.
        values: float64 [n], the noisy values, ascending.
        noise: the distribution of value - true value.
        grid: float64 [k], ascending from 0: the means of the components of the true values'
            distribution. The first component is a point. The others are normal, with standard
            deviations proportional to the step that ends at their mean.
    """
    spread = _WIDTH * np.diff(grid, prepend=0.0)
    away = values[:, None] - grid
    likelihood = np.zeros(away.shape)
    moments = np.zeros(away.shape)
    for stddev, share in zip(*noise, strict=True):
        variance = spread**2 + stddev**2
        density = share / np.sqrt(variance) * np.exp(-0.5 * away**2 / variance)
        likelihood += density
        moments += density * np.maximum(grid + away * spread**2 / variance, 0.0)
    # One more item is spread over the components, so that unseen values stay possible.
    weights = mixing_weights(likelihood, seen, 1.0 / len(grid))
    marginal = np.maximum(likelihood @ weights, _TINY)
    # If the noise has several components, a larger value is more likely an outlier, and its mean
    # may be smaller. Shrinking would then change the order of the items, which users would not
    # understand. So the means are made ascending.
    # SciPy's module is imported here, since plans do not need it.
    from scipy.optimize import isotonic_regression

    rising: F64 = isotonic_regression(moments @ weights / marginal, weights=marginal).x
    return rising


def mixing_weights(likelihood: F64, seen: F64, pseudo: float = 0.0) -> F64:
    """Return weights of a mixture's components, near those of maximum likelihood: float64 [k].

    They are computed by at most `_STEPS` steps of expectation-maximization. The steps end when one
    raises the log-likelihood by less than `_RISE`.

    Args:
        likelihood: float64 [n, k], the density of each value under each component.
        seen: float64 [n], how often each value was observed; at least one value was.
        pseudo: this number of observed values is added to each component.

    >>> mixing_weights(np.eye(2), np.array([3.0, 1.0])).tolist()
    [0.75, 0.25]
    """
    there = seen > 0
    likelihood, seen = np.maximum(likelihood[there], _TINY), seen[there]
    weights = np.full(likelihood.shape[1], 1.0 / likelihood.shape[1])
    before = -np.inf
    for _ in range(_STEPS):
        marginal = likelihood @ weights
        reached = float(seen @ np.log(marginal))
        if reached - before < _RISE:
            break
        before = reached
        weights = weights * (likelihood.T @ (seen / marginal)) + pseudo
        weights /= weights.sum()
    return weights


def binned(x: F64, values: F64) -> F64:
    """Return how many entries of x are closest to each of `values`: float64, like `values`.

    An entry beyond either end is closest to the value at that end.

    Args:
        x: float64, in any order.
        values: float64, ascending.

    >>> binned(np.array([-9.0, 0.4, 0.6, 2.0]), np.array([0.0, 1.0])).tolist()
    [2.0, 2.0]
    """
    places = np.rint(np.interp(x, values, np.arange(len(values)))).astype(np.intp)
    return np.bincount(places, minlength=len(values)).astype(np.float64)


def both_sides(axis: F64) -> F64:
    """Return an axis that starts at 0, with its mirror image before it: float64 [2 n - 1].

    >>> both_sides(np.array([0.0, 1.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    return np.concatenate([-axis[:0:-1], axis])


def _axis(largest: float, first: float, growth: float) -> npt.NDArray[np.float64]:
    """Return ascending points from 0 to one or two steps above `largest`.

    Near 0 the step is `first`; further out it is `growth` times the point.
    """
    steps = np.ceil(np.arcsinh(largest * growth / first) / growth)
    points: F64 = first / growth * np.sinh(growth * np.arange(steps + 2))
    return points
