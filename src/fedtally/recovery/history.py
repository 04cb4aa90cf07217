"""Estimates counts in a window of rounds from the window and from the rest of a history of rounds.

Sums are linear, so the sums of the window's rounds give each item a value, and the sums of the
other rounds give it another value. The two errors are independent, since each batch of rounds has
its own signs. If items change little, the other rounds tell in advance which counts are likely in
the window: they give a prior. How much items change is learned from all items together.

An item has a rate: the expected number of clients in the window that hold it. Its old rate is its
rate in the rest of the history, scaled to the number of clients in the window. Old rates have an
unknown distribution G. An item's rate in the window is of one of these kinds: the old rate, the old
rate times a log-normal factor, or a new draw from a distribution H. H is needed
because items that change suddenly may have rates that do not occur in G. G, H and the shares of the
kinds are those under which the values are most likely (expectation-maximization). Counts are
Poisson variables given rates. Values are counts with normal errors. The estimate is the mean of the
window's count given both values.

The shares of the kinds are learned for each class of old rates. Values of rare items hardly tell
which kind they are of. If all items had the same shares, the many rare items would keep the shares
near their initial values, whatever the frequent items show.

An item is light if its values in the window and in the rest are both below FAR of their standard
deviations. The values of light items are counted in a table. Its axes are the standard deviation of
the window's value, and the ratio of each of the two values to its own standard deviation. The
likelihood of two values given two rates is a product, so a step of learning multiplies small
matrices. For the other items (heavy), whose values show their counts without a prior, formulas for
normal variables are used instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, xlogy

from fedtally.recovery.linear_system import F64, Bools

# In standard deviations: an item with at least this value in the window or in the rest is heavy.
FAR = 12.0
_STEP = 0.25  # from one value of the table to the next, in standard deviations
_LOWEST = -6.0
_Z = np.arange(_LOWEST, FAR + _STEP / 2, _STEP)
_RATIO = 0.15  # step of the logarithm of the standard deviation along the table
_MOST_SCALES = 12
_RATES = 0.1  # step of the logarithm of the rate
_MOST_RATES = 160
_LEAST_RATE = 0.02  # clients; the smallest rate above 0, unless small errors allow a smaller one
_FACTORS = (0.3, 1.0)  # small and large changes: standard deviations of log(new rate / old rate)
_CHANGED = 0.05  # the initial share of items that change
# Borders between the classes of old rates, in standard deviations of the window's values. Each
# class of items has its own shares of the kinds.
_EDGES = np.array([0.5, 1.0, 2.0, 4.0])
_ALIKE = 2.0  # each class gets this number of imaginary items, which have the initial shares
_STEPS = 30  # steps of expectation-maximization for light items
# Below this rate a count in the window is treated as Poisson, otherwise as normal. With errors of
# _WIDE clients or more, Poisson and normal counts cannot be distinguished: all are treated as
# normal.
_POISSON = 30.0
_WIDE = 5.0
# Relative changes of heavy items, as standard deviations, and their initial shares.
_CHANGES = np.array([0.0, 0.03, 0.1, 0.3, 1.0, 3.0])
_SHARES = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
_HEAVY_STEPS = 30  # steps of expectation-maximization for heavy items
_TINY = 1e-300  # replaces a density of 0


class Part(NamedTuple):
    """The values of items in some rounds, with their errors.

    Attributes:
        value: the items' counts plus errors that are treated as independent and normal, float64
            [n].
        stddev: the standard deviations of the errors, above 0, float64 [n].
        clients: the number of clients in these rounds.
    """

    value: F64
    stddev: F64
    clients: float


class Rates(NamedTuple):
    """The learned distributions of light items' rates.

    Attributes:
        rates: the possible rates, in clients of the window, ascending from 0, float64 [k].
        old: G, the probability of each old rate, float64 [k].
        kinds: the shares of four kinds of items in each class of old rates, float64 [5, 4]. The
            classes are in ascending order. The kinds are: same rate, changed by a small factor,
            changed by a large factor, new rate.
        joint: the joint probabilities of the old rate (row) and the rate in the window (column),
            float64 [k, k].
    """

    rates: F64
    old: F64
    kinds: F64
    joint: F64


class History:
    """Estimates the counts in a window of rounds from the window and the rest of the history.

    Args:
        window: the values of all candidates in the window. Rates and shares are learned from
            `window` and `rest`.
        rest: the values of the same candidates in the rest of the history.

    Attributes:
        gain: how much the log-likelihood of the light items' values in the window grows if the rest
            of the history is used. A negative gain means that the rest is a bad prior, since items
            changed too much.
        rates: the learned distributions of light items' rates.
        shares: the learned share of heavy items with each change in `_CHANGES`, float64 [6].

    >>> rng = np.random.default_rng(0)
    >>> rates = np.where(rng.random(4000) < 0.2, 30.0, 0.5)
    >>> counts, before = rng.poisson(rates), rng.poisson(20 * rates)
    >>> window = Part(counts + 4 * rng.normal(size=4000), np.full(4000, 4.0), 1000)
    >>> rest = Part(before + 9 * rng.normal(size=4000), np.full(4000, 9.0), 20_000)
    >>> history = History(window, rest)
    >>> found = history.means(window, rest)
    >>> history.gain > 0, bool(np.mean((found - counts) ** 2) < 5)
    (True, True)
    """

    def __init__(self, window: Part, rest: Part) -> None:
        self._ratio = rest.clients / window.clients
        self._table = _Table(window, rest)
        light = _light(window, rest)
        seen = self._table.count(_of(window, light), _of(rest, light))
        self.rates, together = _learned(self._table, seen)
        self.gain = together - _alone(self._table, seen)
        self._means = self._table.means(self.rates)
        self.shares = _changes(_of(window, ~light), _of(rest, ~light), self._ratio)

    def means(self, window: Part, rest: Part) -> F64:
        """Return the expected counts of items in the window: float64 [n], at least 0.

        Args:
            window: the items' values in the window.
            rest: the values of the same items in the rest of the history.
        """
        light = _light(window, rest)
        found = np.empty(len(light))
        found[light] = self._table.read(self._means, _of(window, light), _of(rest, light))
        found[~light] = _heavy_means(
            _of(window, ~light), _of(rest, ~light), self._ratio, self.shares
        )
        return np.maximum(found, 0.0)


def _light(window: Part, rest: Part) -> Bools:
    return (window.value < FAR * window.stddev) & (rest.value < FAR * rest.stddev)


def _of(part: Part, chosen: Bools) -> Part:
    return Part(part.value[chosen], part.stddev[chosen], part.clients)


# ---- light items ----


class _Table:
    """The likelihoods of light items' values given rates.

    Values are in standard deviations. The tables have an axis of standard deviations (scales).

    Attributes:
        rates: the possible rates, in clients of the window, float64 [k].
        classes: the class of each rate, by `_EDGES`, int64 [k].
        now: the likelihood of each value in the window given each rate, as a density per standard
            deviation, float64 [scales, values, k].
        counts: the mean count in the window given the value and the rate, in clients, shaped like
            `now`.
        before: likelihoods like `now`, for values in the rest of the history.
    """

    def __init__(self, window: Part, rest: Part) -> None:
        least, most = float(window.stddev.min()), float(window.stddev.max())
        scales = int(np.clip(np.ceil(np.log(most / least) / _RATIO) + 1, 2, _MOST_SCALES))
        self._first = np.log(least)
        self._ratio = max(np.log(most / least) / (scales - 1), 1e-9)
        stddev = np.exp(self._first + self._ratio * np.arange(scales))
        # Both parts have nearly the same cells: the ratio of their deviations is nearly constant.
        theirs = stddev * float(np.median(rest.stddev / window.stddev))
        a = rest.clients / window.clients
        self.rates = _rates(stddev, theirs / a)
        self.classes = np.searchsorted(_EDGES * stddev.mean(), self.rates)
        self.now, self.counts = _window_likelihood(stddev, self.rates)
        values = _Z * theirs[:, None] / a
        square = theirs[:, None, None] ** 2 / a**2 + self.rates / a
        self.before = _normal(values[..., None] - self.rates, square) * (theirs / a)[:, None, None]

    def _places(self, window: Part, rest: Part) -> tuple[F64, F64, F64]:
        last = len(self.now) - 1.0
        scale = np.clip((np.log(window.stddev) - self._first) / self._ratio, 0.0, last)
        now, before = (
            np.clip((part.value / part.stddev - _LOWEST) / _STEP, 0.0, len(_Z) - 1.0)
            for part in (window, rest)
        )
        return scale, now, before

    def count(self, window: Part, rest: Part) -> F64:
        """Return how many items are closest to each entry: float64 [scales, values, values].

        The axes are the scale, the value in the window, and the value in the rest.
        """
        shape = (len(self.now), len(_Z), len(_Z))
        places = [np.rint(place).astype(np.intp) for place in self._places(window, rest)]
        flat = np.ravel_multi_index(tuple(places), shape)
        return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape).astype(np.float64)

    def means(self, learned: Rates) -> F64:
        """Return the mean count for each entry of `count`: float64 [scales, values, values].

        The counts are in standard deviations of the window's value.
        """
        total = self.now @ learned.joint.T @ np.swapaxes(self.before, 1, 2) + _TINY
        counts = (self.now * self.counts) @ learned.joint.T @ np.swapaxes(self.before, 1, 2)
        scale = np.exp(self._first + self._ratio * np.arange(len(self.now)))
        found: F64 = counts / total / scale[:, None, None]
        return found

    def read(self, table: F64, window: Part, rest: Part) -> F64:
        """Return the mean count of each item, interpolated in a table from `means`: float64 [n]."""
        found = np.zeros(len(window.value))
        places = self._places(window, rest)
        lows = [
            np.minimum(place.astype(np.intp), size - 2)
            for place, size in zip(places, table.shape, strict=True)
        ]
        for corner in np.ndindex(2, 2, 2):
            weight = np.ones(len(found))
            for place, low, side in zip(places, lows, corner, strict=True):
                weight *= 1 - np.abs(place - low - side)
            at = tuple(low + side for low, side in zip(lows, corner, strict=True))
            found += weight * table[at]
        found *= window.stddev
        return found


def _rates(stddev: F64, theirs: F64) -> F64:
    """Return the possible rates of light items: float64 [k], 0 and then geometric steps.

    Args:
        stddev: the standard deviations of the window's errors, float64 [scales].
        theirs: the standard deviations of the rest's errors, scaled to the number of clients in the
            window, float64 [scales].
    """
    largest = max(1.0, (FAR + 4) * max(float(stddev.max()), float(theirs.max())))
    least = min(_LEAST_RATE, float(np.median(theirs)) / 4)
    number = int(np.clip(np.log(largest / least) / _RATES + 2, 2, _MOST_RATES))
    return np.concatenate([[0.0], np.geomspace(least, largest, number)])


def _window_likelihood(stddev: F64, rates: F64) -> tuple[F64, F64]:
    """Return the likelihood of a window's values given rates, and mean counts given value and rate.

    Args:
        stddev: the standard deviations of the errors, float64 [scales].
        rates: the possible rates, float64 [k].

    Returns:
        The likelihood, as a density per standard deviation, and the mean count, in clients: both
        float64 [scales, values, k].
    """
    values = _Z * stddev[:, None]
    own = stddev[:, None, None] ** 2
    away = values[..., None] - rates
    likelihood = _normal(away, own + rates)
    counts = rates + rates / (rates + own) * away
    if np.median(stddev) < _WIDE:
        # With small errors, low counts must be treated as Poisson: the likelihood sums over counts.
        low = rates < _POISSON
        whole = np.arange(2 * _POISSON + 1)
        chance = np.exp(
            xlogy(whole[:, None], rates[low]) - rates[low] - gammaln(whole + 1)[:, None]
        )
        error = _normal(values[..., None] - whole, own)
        exact = error @ chance
        likelihood[..., low] = exact
        counts[..., low] = (error * whole) @ chance / (exact + _TINY)
    return likelihood * stddev[:, None, None], counts


def _normal(away: F64, square: F64) -> F64:
    found: F64 = np.exp(-0.5 * away**2 / square) / np.sqrt(2 * np.pi * square)
    return found


def _kernels(rates: F64) -> list[F64]:
    """Return distributions of the rate in the window given the old rate: float64 [k, k] each.

    There is one for each kind of item except the last: same rate, small change, large change. Row i
    is the distribution for old rate i.
    """
    found = [np.eye(len(rates))]
    logs = np.log(rates[1:])
    for factor in _FACTORS:
        moved = np.zeros((len(rates), len(rates)))
        moved[0, 0] = 1.0
        moved[1:, 1:] = np.exp(-0.5 * ((logs[:, None] - logs) / factor) ** 2)
        found.append(moved / moved.sum(axis=1, keepdims=True))
    return found


def _joint(old: F64, new: F64, kinds: F64, moves: list[F64]) -> list[F64]:
    """Return, for each kind of item, the joint probabilities of old and new rate: [k, k] each.

    Args:
        old: the probabilities of old rates, G, float64 [k].
        new: the probabilities of new rates, H, float64 [k].
        kinds: the shares of the kinds given each old rate, float64 [k, 4].
        moves: the distributions of the new rate given the old rate, for all kinds except the last.
    """
    shares = (kinds * old[:, None]).T[..., None]
    return [
        *(share * move for share, move in zip(shares[:-1], moves, strict=True)),
        shares[-1] * new,
    ]


def _learned(table: _Table, seen: F64) -> tuple[Rates, float]:
    """Learn the distributions of rates; return them, and a log-likelihood.

    It is the log-likelihood of the window's values if the values in the other rounds are known.
    Only light items count.

    Args:
        table: the likelihoods.
        seen: how many items have each pair of values, from `_Table.count`.
    """
    moves = _kernels(table.rates)
    size = len(table.rates)
    old = new = np.full(size, 1.0 / size)
    start = np.append(1.0 - _CHANGED, np.full(len(moves), _CHANGED / len(moves)))
    kinds = np.tile(start, (len(_EDGES) + 1, 1))
    before = np.swapaxes(table.before, 1, 2)
    for _ in range(_STEPS):
        parts = _joint(old, new, kinds[table.classes], moves)
        total = table.now @ np.sum(parts, axis=0).T @ before + _TINY
        # given[old rate, rate in the window] * probability of this pair = the expected number of
        # items with this pair.
        weighed = np.swapaxes(seen / total, 1, 2) @ table.now
        given = np.tensordot(table.before, weighed, axes=((0, 1), (0, 1)))
        by_kind = np.stack([np.einsum("km,km->k", part, given) for part in parts], axis=1)
        old = by_kind.sum(axis=1) + _TINY
        old /= old.sum()
        # One imaginary item, distributed like the old rates, so that unseen rates stay possible.
        new = np.einsum("km,km->m", parts[-1], given) + old
        new /= new.sum()
        kinds = np.tile(_ALIKE * start, (len(kinds), 1))
        np.add.at(kinds, table.classes, by_kind)
        kinds /= kinds.sum(axis=1, keepdims=True)
    joint: F64 = np.sum(_joint(old, new, kinds[table.classes], moves), axis=0)
    total = table.now @ joint.T @ before
    theirs = (table.before @ old)[:, None, :]
    gained = np.log(total + _TINY) - np.log(theirs + _TINY)
    return Rates(table.rates, old, kinds, joint), float((seen * gained).sum())


def _alone(table: _Table, seen: F64) -> float:
    """Return the log-likelihood of the window's values if the prior is learned from them alone."""
    mine = seen.sum(axis=2)
    weights = np.full(len(table.rates), 1.0 / len(table.rates))
    for _ in range(_STEPS):
        total = table.now @ weights + _TINY
        weights = weights * np.einsum("si,sik->k", mine / total, table.now)
        weights /= max(weights.sum(), _TINY)
    return float((mine * np.log(table.now @ weights + _TINY)).sum())


# ---- heavy items ----


def _heavy(window: Part, rest: Part, ratio: float) -> tuple[F64, F64, F64]:
    """Return the old rates, [n], and the variances of counts and of values, [n, 6] each.

    The variances are those of the count in the window and of its value, as far as the rest of the
    history predicts them. The 6 columns are the changes in `_CHANGES`. They are relative to the old
    rate. The last one is relative to the window's value if that is larger, since a new item changes
    by more than its old rate.

    Args:
        window: the values of the heavy items in the window.
        rest: the values of the same items in the rest of the history.
        ratio: the number of clients in the rest, divided by the number in the window.
    """
    old = np.maximum(rest.value / ratio, 0.1)
    size = np.repeat(old[:, None], len(_CHANGES), axis=1)
    size[:, -1] = np.maximum(old, np.abs(window.value))
    count = (rest.stddev / ratio)[:, None] ** 2 + (_CHANGES * size) ** 2 + size
    return old, count, count + window.stddev[:, None] ** 2


def _chances(window: Part, rest: Part, ratio: float, shares: F64) -> F64:
    """Return the probability of each change in `_CHANGES` given an item's values: float64 [n, 6].

    Args:
        window: the values of the heavy items in the window.
        rest: the values of the same items in the rest of the history.
        ratio: the ratio of clients, as in `_heavy`.
        shares: the share of items with each change, float64 [6].
    """
    old, _, square = _heavy(window, rest, ratio)
    found = shares * (_normal((window.value - old)[:, None], square) + _TINY)
    found /= found.sum(axis=1, keepdims=True)
    return found


def _changes(window: Part, rest: Part, ratio: float) -> F64:
    """Learn the share of heavy items with each change in `_CHANGES`: float64 [6]."""
    shares = _SHARES
    for _ in range(_HEAVY_STEPS):
        shares = _chances(window, rest, ratio, shares).sum(axis=0) + 1.0
        shares = shares / shares.sum()
    return shares


def _heavy_means(window: Part, rest: Part, ratio: float, shares: F64) -> F64:
    old, count, square = _heavy(window, rest, ratio)
    chance = _chances(window, rest, ratio, shares)
    away = (window.value - old)[:, None]
    found: F64 = (chance * (old[:, None] + count / square * away)).sum(axis=1)
    return found
