"""Estimates of small expected squared error: posterior means under the frequencies' own distribution.

Most candidates are rare, and the estimate of a rare item is mostly noise. How frequencies are
distributed can be read from all estimates together, since the distribution of the noise is known;
then each estimate is replaced by what the item's frequency is on average, given that estimate:
empirical Bayes (Robbins 1956), as Stephens (Biostatistics 2017) does it.
The l_2 error falls several times. In return estimates are biased towards zero near the noise, and
the largest single error may grow somewhat. Items far above the noise hardly change.

The distribution is a mixture of a point at zero and normal components with means rising
geometrically, their weights of maximum likelihood. docs/recovery.md has the reasons and the
figures.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.joint import NUM_PHANTOMS, JointDecoder, generator
from fedtally.recovery.linear_system import BLOCK, F64, U64, Candidates, Ids, ask
from fedtally.recovery.median import MedianDecoder

_GRID = (0.3, 0.3)  # means of the prior's components: first step and growth of the steps
_WIDTH = 0.35  # of a component, as a share of the step that ends at its mean
_BINS = (0.15, 0.08)  # of the values seen
# standard deviations of the components of the median's noise: the smallest, and their ratio
_SIZES = (0.2, 1.4)
# deviations; what lies further out are ghosts of the heaviest items, which do not see their own
_FURTHEST = 10.0
_STEPS = 500
_RISE = 0.01  # of the log-likelihood in one step, below which the weights are taken as found
_EXACT = 0.01  # clients: a noise below it leaves nothing to shrink
_NORMAL_95 = 1.959964  # .95 quantile of |x|, x normal
_TINY = 1e-300


class Noise(NamedTuple):
    """A symmetric distribution, as a mixture of centred normal distributions: float64 [k] each."""

    stddevs: F64
    shares: F64


NORMAL = Noise(np.ones(1), np.ones(1))


class ShrunkDecoder:
    """Shrink the estimates of another decoder to posterior means, of counts that are not negative.

    Behind `JointDecoder` the leave-one-out values are shrunk, whose noise is normal and of known
    scale for each item; behind `MedianDecoder` (or a joint decoder that fell back to it) the
    estimates, with the distribution of the noise learned
    from ids held by nobody. Larger values never give smaller results at equal scale. Deterministic.
    All candidates are decoded once in advance, in blocks.

    Attributes:
        spec: of the sketches.
        num_clients: of all landed rounds.
        noise: standard deviation of the noise, in clients; of an item that shares no cell with a
            fitted one.

    Args:
        decoder: whose estimates to shrink.
        domain: the candidate items, whose distribution counts; any id may be asked for.

    Raises:
        InvalidInputError: another kind of decoder.

    >>> from fedtally.domain import IntegerRange
    >>> from fedtally.sketch import CountSketch, SketchSpec
    >>> sketch = CountSketch(SketchSpec(rows=5, width=50, schedule="shared", num_rounds=1, seed=bytes(32)), 0)
    >>> counts = np.append([900, 700], np.ones(998, int))
    >>> sketch.add(np.arange(1, 1001, dtype=np.uint64), counts)
    >>> joint = JointDecoder([sketch], IntegerRange(1, 1000))
    >>> shrunk = ShrunkDecoder(joint, IntegerRange(1, 1000))
    >>> error, before = (float(np.sum((d.range(1, 1000) - counts) ** 2)) for d in (shrunk, joint))
    >>> error < before / 4
    True
    """

    def __init__(self, decoder: MedianDecoder | JointDecoder, domain: Domain) -> None:
        if not isinstance(decoder, MedianDecoder | JointDecoder):
            raise InvalidInputError(
                "only the estimates of a MedianDecoder or a JointDecoder can be shrunk, got"
                f" {type(decoder).__name__}"
            )
        self.spec, self.num_clients = decoder.spec, decoder.num_clients
        self._fit = None
        self._decoder = decoder
        candidates, distribution = Candidates(domain), NORMAL
        if isinstance(decoder, JointDecoder) and decoder.fallback is None:
            self._fit = decoder.fit
            self.noise = decoder.fit.scale * decoder.num_clients
        else:
            phantoms = decoder.at(
                candidates.fresh_ids(generator(self.spec.seed, b"shrinkage"), NUM_PHANTOMS)
            )
            self.noise = float(np.quantile(np.abs(phantoms), 0.95)) / _NORMAL_95
            if self.noise > _EXACT:
                distribution = noise_distribution(phantoms / self.noise)
        if self.noise > _EXACT:
            largest = 2.0 * self.num_clients / self.noise
            self._values = both_sides(_axis(largest, *_BINS))
            seen = np.zeros(len(self._values))
            for _, ids in candidates.blocks():
                seen += binned(self._standard(ids)[0], self._values)
            means = posterior_means(seen, self._values, distribution, _axis(largest, *_GRID))
            # Beyond the last bin a value moves as much as there: by next to nothing.
            self._moves = means - self._values

    def at(self, ids: U64) -> F64:
        """Return the posterior mean counts of chosen ids, candidates or not: float64 [n]."""
        return self._in_blocks(ids)

    def range(self, first_id: int, count: int) -> F64:
        """Return the posterior mean counts of the ids first_id, first_id + 1, ...
        (mod 2^64): float64 [count].
        """
        return self._in_blocks(range(first_id, first_id + _validate.integer(0, count=count)))

    def _in_blocks(self, ids: Ids) -> F64:
        if self.noise <= _EXACT:
            return ask(self._decoder, ids)
        found = np.empty(len(ids))
        for start in range(0, len(ids), BLOCK):
            z, stddev = self._standard(ids[start : start + BLOCK])
            moved = z + np.interp(z, self._values, self._moves)
            found[start : start + BLOCK] = np.maximum(moved, 0.0) * stddev
        return found

    def _standard(self, ids: Ids) -> tuple[F64, F64 | float]:
        """Return values in standard deviations of their noise, float64 [n], and those, in clients."""
        if self._fit is None:
            return ask(self._decoder, ids) / self.noise, self.noise
        items = self._fit.leave_one_out(ids)
        root = np.sqrt(items.share)
        return items.values * root / self._fit.scale, self.noise / root


def noise_distribution(phantoms: F64) -> Noise:
    """Return the distribution of the noise in what ids held by nobody are given, up to 10 standard deviations.

    Args:
        phantoms: float64 [n], in units of about their standard deviation.

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
    """Return the mean of what lies behind each value, which does not fall from one value to the next.

    Args:
        seen: float64 [n], how often each value was seen.
        values: float64 [n], rising.
        noise: added to the truth to give the value.
        grid: float64 [k], rising from 0: means of the truth's components, the first a point, the
            others normal with a deviation in proportion to the step that ends there.
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
    # One further item, spread over the components: what was not seen is rare, but not impossible.
    weights = mixing_weights(likelihood, seen, 1.0 / len(grid))
    marginal = np.maximum(likelihood @ weights, _TINY)
    rising: F64 = isotonic_regression(moments @ weights / marginal, weights=marginal).x
    return rising


def mixing_weights(likelihood: F64, seen: F64, pseudo: float = 0.0) -> F64:
    """Return the weights of maximum likelihood of a mixture's components: float64 [k], by expectation-maximization.

    Args:
        likelihood: float64 [n, k], of each value under each component.
        seen: float64 [n], how often each value was seen; some.
        pseudo: values that every component gets beyond those seen.

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
    """Return how many of x lie nearest to each value, of those at either side: float64 [len(values)].

    >>> binned(np.array([-9.0, 0.4, 0.6, 2.0]), np.array([0.0, 1.0])).tolist()
    [2.0, 2.0]
    """
    places = np.rint(np.interp(x, values, np.arange(len(values)))).astype(np.intp)
    return np.bincount(places, minlength=len(values)).astype(np.float64)


def both_sides(axis: F64) -> F64:
    """Return an axis from 0 and its mirror image: float64 [2 n - 1].

    >>> both_sides(np.array([0.0, 1.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    return np.concatenate([-axis[:0:-1], axis])


def _axis(largest: float, first: float, growth: float) -> npt.NDArray[np.float64]:
    """Return points from 0 past `largest`: steps of `first` near 0, further out of that share of the point."""
    steps = np.ceil(np.arcsinh(largest * growth / first) / growth)
    points: F64 = first / growth * np.sinh(growth * np.arange(steps + 2))
    return points
