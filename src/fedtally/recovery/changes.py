"""Which items' frequencies changed over the rounds of a history, at a rate that any look keeps.

An item's values of single rounds have independent errors, since every batch of rounds has signs of
its own. Its *e-value* after t rounds says how much better a change of its level, at some earlier
round, explains them than no change does. If nothing changed, its mean is at most 1. So it ever
reaches d / alpha with a probability of at most alpha / d (Ville's inequality), however often one
looks, and all d items together are ever flagged wrongly with a probability of at most alpha.

The e-value is a mean of Bayes factors over the round of the change, with weights that are known in
advance, and over the size of the change in standard deviations of a round. The level before the
change has a flat prior, so that it cancels.

That holds for independent normal errors whose deviations are known. Here they are those that a fit
states, and outliers are cut about the median of all rounds: the rate is measured, too
(`python -m experiments streams`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoders.kind import FittedDecoder, Measured
from fedtally.recovery.limits import check_confidence
from fedtally.recovery.linear_system import F64, I64, Bools, Ids

# Sizes of changes, in standard deviations of a round's value.
_SIZES = (0.5, 1.0, 2.0, 4.0)
_CLIPPED = 4.0  # standard deviations from the item's median, beyond which a round says no more
_MOST = 600.0  # logarithm of a Bayes factor: larger ones would overflow
_SET = 3.84 / 2  # of the log-likelihood: rounds within it are in the set of likely rounds
_SEEN = 2.0  # standard deviations: an item with a smaller value does not show
_BLOCK = 1 << 12  # items at once, to bound the memory
_TINY = 1e-300


class Kind(StrEnum):
    """How an item changed."""

    RISING = "rising"
    FALLING = "falling"
    NEW = "new"
    GONE = "gone"


class RoundValues(NamedTuple):
    """Values of items in single batches of rounds.

    Attributes:
        value: values in clients, float64 [n, batches].
        stddev: standard deviations of their errors, float64 [n, batches].
        clients: clients of each batch, float64 [batches].
        batches: numbers of the batches, rising.
    """

    value: F64
    stddev: F64
    clients: F64
    batches: list[int]


class Changes(NamedTuple):
    """What the rounds so far say of each item's level.

    Attributes:
        log_e: logarithms of e-values after the last round, float64 [n].
        largest: largest logarithms after any round so far, float64 [n].
        since: places of the first rounds of the likeliest new levels, int64 [n].
        since_low, since_high: first and last places that are likely, too, int64 [n].
        before, after: levels in the rounds before `since`, and from `since` on.
    """

    log_e: F64
    largest: F64
    since: I64
    since_low: I64
    since_high: I64
    before: Level
    after: Level


class Level(NamedTuple):
    """Mean frequencies over some rounds, and the standard deviations of their errors."""

    frequency: F64
    stddev: F64


class Difference(NamedTuple):
    """Frequencies in one window less those in another, with limits: float64 [n] each."""

    change: F64
    low: F64
    high: F64


def round_values(decoder: FittedDecoder, ids: Ids) -> RoundValues:
    """Return the values of items in each batch that has clients, by one fit of all batches.

    Args:
        decoder: decoder of a history, whose fit answers.
        ids: the items.
    """
    there = np.flatnonzero(decoder.clients)
    found = []
    for place in there:
        chosen = np.arange(len(decoder.clients)) == place
        found.append(decoder.window(chosen, learned=False).measured(ids))
    return RoundValues(
        np.stack([one.value for one in found], axis=1),
        np.stack([one.stddev for one in found], axis=1),
        decoder.clients[there],
        [decoder.batches[place] for place in there],
    )


def find_changes(values: RoundValues) -> Changes:
    """Return what rounds say of changes of each item's level.

    Args:
        values: values of at least 2 batches.

    Raises:
        InvalidInputError: fewer batches.
    """
    if len(values.clients) < 2:
        raise InvalidInputError(
            f"changes need at least 2 rounds with clients, got {len(values.clients)}"
        )
    frequency, variance = _frequencies(values)
    found = [
        _of_block(frequency[start : start + _BLOCK], variance[start : start + _BLOCK])
        for start in range(0, len(frequency), _BLOCK)
    ]
    running, since, low, high = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Changes(
        running[:, -1],
        running.max(axis=1),
        since,
        low,
        high,
        *_levels(values.value / values.clients, variance, since),
    )


def flagged(changes: Changes, alpha: float) -> Bools:
    """Return which items changed: bool [n]; all items here are tested.

    An item that did not change is ever among them with a probability of at most `alpha`, for all
    items and all looks together.

    Args:
        changes: changes of all items that are tested.
        alpha: above 0 and below 1.
    """
    found: Bools = changes.largest >= np.log(len(changes.largest) / _rate(alpha))
    return found


def listed(changes: Changes, alpha: float) -> Bools:
    """Return the list of items that changed, of which a share of `alpha` is wrong on average.

    It is the rule of Benjamini and Hochberg for e-values (Wang and Ramdas 2022), at one look. It
    finds more items than `flagged`.

    Args:
        changes: changes of all items that are tested.
        alpha: above 0 and below 1.

    >>> one = np.array([9.0, 3.5, 0.0])
    >>> none = np.zeros(3)
    >>> level, place = Level(none, none), none.astype(int)
    >>> listed(Changes(one, one, place, place, place, level, level), 0.05).tolist()
    [True, True, False]
    """
    size = len(changes.log_e)
    order = np.argsort(-changes.log_e)
    needed = np.log(size / _rate(alpha) / np.arange(1, size + 1))
    enough = np.flatnonzero(changes.log_e[order] >= needed)
    found = np.zeros(size, bool)
    found[order[: enough[-1] + 1 if len(enough) else 0]] = True
    return found


def kinds(changes: Changes) -> list[Kind]:
    """Return how each item changed, if it did."""
    before, after = changes.before, changes.after
    up = after.frequency > before.frequency
    unseen = before.frequency < _SEEN * before.stddev
    left = after.frequency < _SEEN * after.stddev
    return [
        (Kind.NEW if new else Kind.RISING) if rose else (Kind.GONE if gone else Kind.FALLING)
        for rose, new, gone in zip(up, unseen, left, strict=True)
    ]


def difference(
    window: Measured, clients: float, against: Measured, before: float, confidence: float
) -> Difference:
    """Return by how much frequencies in one window exceed those in another.

    The windows hold different rounds, so that their errors are independent. The limits are of the
    frequencies among the clients that took part, and no limit is closer than one client of each.

    Args:
        window: values in the window.
        clients: number of clients in the window.
        against: values in the other one.
        before: number of clients in the other one.
        confidence: above 0 and below 1.
    """
    z = float(-ndtri((1.0 - check_confidence(confidence)) / 2))
    change = window.value / clients - against.value / before
    error = np.hypot(window.stddev / clients, against.stddev / before)
    half = np.maximum(z * error, 1.0 / clients + 1.0 / before)
    return Difference(change, change - half, change + half)


def _rate(alpha: float) -> float:
    """Return a rate above 0 and below 1."""
    rate = validate.real(alpha=alpha)
    if not 0 < rate < 1:
        raise InvalidInputError(f"alpha must be above 0 and below 1, got {rate}")
    return rate


def _frequencies(values: RoundValues) -> tuple[F64, F64]:
    """Return frequencies by round, and the variances that they have if nothing changes.

    Clients are drawn, so that a count has the variance of its mean; a mean below one client counts
    as one. Else a rare item that a few clients hold by chance would stand out of nothing. Outliers
    are cut, since the tails of errors are heavier than normal ones. A round that is far off would
    pull a mean along, and so all rounds would be cut on one side: the middle is a median.
    """
    clients = values.clients
    mean = np.maximum(values.value.sum(axis=1), 0.0) / clients.sum()
    count = np.maximum(mean[:, None] * clients, 1.0)
    variance = (values.stddev**2 + count) / clients**2
    frequency = values.value / clients
    middle = _middle(frequency, variance)
    most = _CLIPPED * np.sqrt(variance)
    return middle + np.clip(frequency - middle, -most, most), variance


def _middle(frequency: F64, variance: F64) -> F64:
    """Return each item's median, weighted by the inverse deviations of its rounds: [n, 1].

    Many small rounds therefore do not outvote a few large ones, whose frequencies are known better.
    """
    order = np.argsort(frequency, axis=1)
    weight = np.cumsum(np.take_along_axis(variance**-0.5, order, axis=1), axis=1)
    half = np.argmax(weight >= weight[:, -1:] / 2, axis=1)[:, None]
    return np.take_along_axis(frequency, np.take_along_axis(order, half, axis=1), axis=1)


def _level(frequency: F64, variance: F64) -> Level:
    precision = 1.0 / variance
    total = precision.sum(axis=1)
    return Level((frequency * precision).sum(axis=1) / total, total**-0.5)


def _levels(frequency: F64, variance: F64, since: I64) -> tuple[Level, Level]:
    """Return the levels before and from `since` on."""
    later = np.arange(frequency.shape[1]) >= since[:, None]
    return (
        _level(frequency, np.where(later, np.inf, variance)),
        _level(frequency, np.where(later, variance, np.inf)),
    )


def weights_of_rounds(number: int) -> F64:
    """Return the weights of changes at rounds 1, 2, ...: float64 [number], with a sum below 1.

    They fall slowly, and their sum over all rounds there may ever be is below 1, too.

    >>> bool(0.75 < weights_of_rounds(10**6).sum() < 1.0)
    True
    """
    rounds = np.arange(1.0, number + 1)
    found: F64 = 1.0 / (2.6 * rounds * np.log(rounds + 1.7) ** 2)
    return found


def _of_block(frequency: F64, variance: F64) -> tuple[F64, I64, I64, I64]:
    """Return running logarithms of e-values, likeliest rounds, and the ends of the likely ones."""
    size, rounds = frequency.shape
    precision = 1.0 / variance
    so_far = np.cumsum(precision, axis=1)
    sums = np.cumsum(precision * frequency, axis=1)
    weight = weights_of_rounds(rounds)
    scale = variance.mean(axis=1, keepdims=True)
    running = np.zeros((size, rounds))
    for t in range(1, rounds):
        evidence, square = _evidence(so_far[:, : t + 1], sums[:, : t + 1])
        factor = np.zeros_like(evidence)
        for one in _SIZES:
            spread = one**2 * scale
            share = square / (square + spread)
            factor += np.exp(np.minimum(evidence * (1.0 - share), _MOST)) * np.sqrt(share)
        factor *= weight[:t] / len(_SIZES)
        running[:, t] = np.log(factor.sum(axis=1) + 1.0 - weight[:t].sum() + _TINY)
    likely = evidence >= evidence.max(axis=1, keepdims=True) - _SET
    return (
        running,
        1 + np.argmax(evidence, axis=1),
        1 + np.argmax(likely, axis=1),
        rounds - 1 - np.argmax(likely[:, ::-1], axis=1),
    )


def _evidence(so_far: F64, sums: F64) -> tuple[F64, F64]:
    """Return half the squared differences of levels, in deviations, and the variances of these.

    Both are float64 [n, t], for a change at each of the rounds 1 .. t of t + 1.
    """
    before, total = so_far[:, :-1], so_far[:, -1:]
    after = total - before
    square = 1.0 / before + 1.0 / after
    change = (sums[:, -1:] - sums[:, :-1]) / after - sums[:, :-1] / before
    evidence: npt.NDArray[np.float64] = change**2 / square / 2
    return evidence, square
