"""The distribution of the items' counts, learned from noisy values of these counts.

The distribution is a mixture of points. Steps of expectation-maximization bring its weights near
those of maximum likelihood (Kiefer and Wolfowitz 1956). A value far above its noise shows its count
without a prior. Therefore the distribution is learned only from values near the noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from fedtally.kernels import propagation
from fedtally.kernels.propagation import FAR, Table
from fedtally.recovery.linear_system import F64, I64

_Z = np.linspace(-FAR, FAR, propagation.COLUMNS)  # values in standard deviations: a table's columns
_RATIO = 0.08  # step of the logarithm of the standard deviation from one row of a table to the next
_MOST_SCALES = 32  # the most rows of a table
_POINTS = 170  # the number of points from 1 on, in geometric steps
_PSEUDO = 1e-3  # this part of an item is spread over all points, so that no point is impossible
_TINY = 1e-300  # replaces a density of 0


class Posterior(NamedTuple):
    """Means and variances of counts given their noisy values: float64, shaped like the values."""

    mean: F64
    variance: F64


class Prior:
    """A distribution of counts, learned by `learn`.

    Args:
        largest: the largest count that occurs, in clients; ignored if `known` is given.
        known: the counts, ascending, and their probabilities, float64 [k] each, if they need not be
            learned.
        smooth: 0, or a standard deviation of the logarithms of counts. After each step of learning,
            weights are spread over neighbouring points with this standard deviation. If they are
            not spread, and there are few values, the weights gather at random counts.

    Attributes:
        table: the posterior means and variances given values, computed by the last `learn`.
        points: float64 [k], ascending: the counts that items may have.
        weights: float64 [k], their probabilities.

    >>> rng = np.random.default_rng(0)
    >>> counts = np.where(rng.random(20_000) < 0.9, 0.0, 50.0)
    >>> prior = Prior(100.0)
    >>> prior.learn(counts + 10 * rng.normal(size=20_000), np.full(20_000, 10.0), 200)
    >>> [bool(abs(prior.weights[prior.points < 20].sum() - 0.9) < 0.02),
    ...  float(prior.posterior(np.array([-5.0]), np.array([10.0])).mean[0]) < 1.0]
    [True, True]
    """

    def __init__(
        self, largest: float, known: tuple[F64, F64] | None = None, smooth: float = 0.0
    ) -> None:
        self._is_known = known is not None
        self._memory = np.empty(0)
        if known is not None:
            self.points, self.weights = known
            return
        # Counts are integers, but a mixture with a point at 0.5 fits rare items better.
        self.points = np.concatenate(
            [[0.0, 0.5], np.geomspace(1.0, 1.2 * max(largest, 2.0), _POINTS)]
        )
        self.weights = np.full(len(self.points), 1.0 / len(self.points))
        self._spread = np.eye(len(self.points))
        if smooth > 0.0:
            at = np.log(self.points[2:]) / smooth
            near = np.exp(-0.5 * (at[:, None] - at) ** 2)
            self._spread[2:, 2:] = near / near.sum(axis=1, keepdims=True)

    def learn(
        self,
        values: F64,
        stddevs: F64,
        steps: int,
        scales: tuple[float, float] | None = None,
        further: Iterable[tuple[F64, F64]] = (),
    ) -> None:
        """Update the weights by steps of expectation-maximization, and compute `table`.

        If the counts are `known`, the weights stay. In any case `table` is computed, and the values
        are counted for `largest_error`.

        Args:
            values: float64 [n], counts with normal noise.
            stddevs: float64 [n], above 0, the standard deviations of the noise.
            steps: the number of steps; with 0 the weights stay.
            scales: the least and the largest standard deviation that `posterior` will be called
                with; None: the least and the largest of `stddevs`.
            further: blocks of more values, each with their standard deviations.
        """
        least, largest = scales or (float(stddevs.min()), float(stddevs.max()))
        number = int(np.clip(np.ceil(np.log(largest / least) / _RATIO) + 1, 2, _MOST_SCALES))
        self._first, self._scales = np.log(least), number
        self._ratio = max(np.log(largest / least) / (number - 1), 1e-9)
        scale = np.exp(self._first + self._ratio * np.arange(number))
        likelihood = self._likelihood(scale)
        seen, size = self._count(values, stddevs), len(values)
        for more, theirs in further:
            seen += self._count(more, theirs)
            size += len(more)
        self._seen = seen
        there = np.flatnonzero(seen)
        if steps and len(there) and not self._is_known:
            density, times = likelihood[there] + _TINY, seen[there] / seen.sum()
            for _ in range(steps):
                grown = self.weights * (density.T @ (times / (density @ self.weights)))
                grown += _PSEUDO / size / len(grown)
                grown = grown @ self._spread
                self.weights = grown / grown.sum()
        moments = self.weights[:, None] * self.points[:, None] ** np.arange(3)
        marginal, mean, square = (likelihood @ moments).T
        marginal = marginal + _TINY
        mean, square = mean / marginal, square / marginal
        shape = (number, len(_Z))
        # Entries are in standard deviations of the noise, since they then change little from one
        # entry to the next.
        entries = np.stack(
            [
                mean.reshape(shape) / scale[:, None],
                np.maximum(square - mean**2, 0.0).reshape(shape) / scale[:, None] ** 2,
            ],
            axis=2,
        )
        self.table = Table(self._first, self._ratio, entries)

    def _likelihood(self, scale: F64) -> F64:
        """Return the likelihood of a table's values given each point: float64 [entries, points].

        The next call overwrites the array: allocating a new one takes longer than filling it.

        Args:
            scale: float64 [scales], the standard deviation of each row of the table.
        """
        size = len(_Z) * len(self.points)
        if len(self._memory) < len(scale) * size:
            self._memory = np.empty(len(scale) * size)
        found = self._memory[: len(scale) * size].reshape(len(scale), len(_Z), -1)
        # One row of the table at a time, since it fits into the cache.
        for one, points in zip(found, self.points / scale[:, None], strict=True):
            np.subtract(_Z[:, None], points, out=one)
            np.square(one, out=one)
            one *= -0.5
            np.exp(one, out=one)
        return found.reshape(-1, len(self.points))

    def posterior(self, values: F64, stddevs: F64) -> Posterior:
        """Return the means and variances of counts given their values, interpolated in `table`.

        Args:
            values: float64, counts with normal noise.
            stddevs: float64, above 0, shaped like `values`: the standard deviations of the noise.
        """
        return Posterior(*propagation.posterior(self.table, values, stddevs))

    def value_of(self, means: F64 | float, stddevs: F64) -> F64:
        """Return the values at which the means of `posterior` reach these means.

        A mean that is exceeded at every value gets a value far below 0.

        Args:
            means: the means, in clients.
            stddevs: float64, above 0: the standard deviations of the noise of the values.

        Returns:
            float64, shaped like `stddevs`.
        """
        low, high = means - 3 * FAR * stddevs, means + 3 * FAR * stddevs
        for _ in range(60):
            middle = (low + high) / 2
            below = self.posterior(middle, stddevs).mean < means
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        found: F64 = (low + high) / 2
        return found

    def largest_error(self, values: F64, stddevs: F64) -> float:
        """Return the median of the largest error of all posterior means, in clients.

        The number of errors above a size is nearly a Poisson variable. If its mean is ln 2, it is 0
        with probability 1/2. So the result is the size above which ln 2 errors are expected.

        Args:
            values: all values of FAR standard deviations or more that the last `learn` got, in its
                arguments `values` and `further`. Smaller values are ignored: `learn` counted them.
            stddevs: the standard deviations of the noise in `values`.
        """
        seen = self._seen
        there = np.flatnonzero(seen)
        scale = np.exp(self._first + self._ratio * (there // len(_Z)))
        away = _Z[there % len(_Z), None] - self.points / scale[:, None]
        chance = np.exp(-0.5 * away**2) * self.weights
        chance /= chance.sum(axis=1, keepdims=True) + _TINY
        error = np.abs(self.points - (chance @ self.points)[:, None]).reshape(-1)
        order = np.argsort(-error)
        error = error[order]
        # number[i]: the expected number of errors of at least error[i]
        number = np.cumsum((chance * seen[there, None]).reshape(-1)[order])
        far = stddevs[values >= FAR * stddevs]

        def expected(size: float) -> float:
            among = np.searchsorted(-error, -size, side="left")
            return float(number[among - 1] if among else 0.0) + 2 * float(ndtr(-size / far).sum())

        low, high = 0.0, 2 * FAR * float(stddevs.max()) + float(self.points[-1])
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if expected(middle) > np.log(2.0) else (low, middle)
        return high

    def _count(self, values: F64, stddevs: F64) -> I64:
        """Return how many values are closest to each entry of the table: int64 [entries].

        Values of FAR standard deviations or more are not counted. Learning uses only these numbers,
        so a step takes as long for many items as for few.
        """
        near = values < FAR * stddevs
        grid = Table(self._first, self._ratio, np.empty((self._scales, 0, 2)))
        row, column = propagation.place(grid, values[near], stddevs[near])
        places = np.rint(row).astype(np.intp) * len(_Z) + np.rint(column).astype(np.intp)
        return np.bincount(places, minlength=self._scales * len(_Z))
