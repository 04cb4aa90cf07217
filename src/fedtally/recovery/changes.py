"""Find the items whose frequencies changed over the rounds of a history.

Each batch of rounds has its own signs, so an item's values in two batches have independent errors.
After each round, an item's *e-value* compares two explanations of its values so far: its level
changed at one of these rounds, or it never changed. A large e-value speaks for a change. If nothing
changed, the mean of the e-value is at most 1. Then the probability that the e-value ever reaches
d / alpha, at any round, is at most alpha / d (Ville's inequality). With d items, the probability
that any item is ever flagged wrongly is therefore at most alpha.

The e-value is a weighted mean of Bayes factors, one for each round at which the level may have
changed and each size of the change. Sizes are in standard deviations of a round's value. The
weights are fixed in advance. The level before the change has a flat prior, so that it cancels.

The bound assumes independent normal errors with known standard deviations. Here the standard
deviations are estimated by a fit, and outliers are clipped around the median of all rounds. So the
error rate is also measured (`python -m experiments streams`).
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoders.kind import FittedDecoder, Measured
from fedtally.recovery.limits import check_confidence
from fedtally.recovery.linear_system import F64, I64, Bools, Ids

# How large changes may be: the standard deviations of the normal priors of a change, in standard
# deviations of a round's value (the root of the mean variance over rounds).
_SIZES = (0.5, 1.0, 2.0, 4.0)
_CLIPPED = 4.0  # values more than this number of standard deviations from the median are clipped
_MOST = 600.0  # the largest logarithm of a Bayes factor; its exponential must not overflow
# A round is a likely start of the change if its log-likelihood is at most this much below that of
# the likeliest round.
_SET = 3.84 / 2
_SEEN = 2.0  # standard deviations; an item with a smaller level is regarded as absent
_BLOCK = 1 << 12  # items that are processed at once, to bound the memory
_TINY = 1e-300
_JUMP = 1e5  # clients; in standard deviations far above `_CLIPPED`


class Kind(StrEnum):
    """How an item changed."""

    RISING = "rising"
    FALLING = "falling"
    NEW = "new"
    GONE = "gone"


class RoundValues(NamedTuple):
    """The values of items in each batch of rounds.

    Attributes:
        value: estimated counts, in clients, float64 [n, batches].
        stddev: the standard deviations of their errors, float64 [n, batches].
        clients: the number of clients in each batch, float64 [batches].
        batches: the batch numbers, ascending.
    """

    value: F64
    stddev: F64
    clients: F64
    batches: list[int]


class Changes(NamedTuple):
    """The evidence that each item's level (its mean frequency) changed, from all rounds so far.

    Attributes:
        log_e: the logarithm of each item's e-value after the last round, float64 [n].
        largest: the logarithm of the item's largest e-value after any round so far, float64 [n].
        since: the batch in which the new level most likely begins, int64 [n], as an index into
            `RoundValues.batches`.
        since_low, since_high: the first and the last batch in which the new level is almost as
            likely to begin (`_SET`), int64 [n]: indices like `since`.
        before, after: the item's levels in the batches before `since`, and from `since` on.
    """

    log_e: F64
    largest: F64
    since: I64
    since_low: I64
    since_high: I64
    before: Level
    after: Level


class Level(NamedTuple):
    """Mean frequencies of items over some rounds, and the standard deviations of their errors.

    Both are float64 [n].
    """

    frequency: F64
    stddev: F64


class Difference(NamedTuple):
    """Frequencies in one window of rounds minus those in another, with limits: float64 [n] each."""

    change: F64
    low: F64
    high: F64


def round_values(decoder: FittedDecoder, ids: Ids) -> RoundValues:
    """Return estimated counts of items in each batch, and the standard deviations of their errors.

    Batches without clients are left out. The decoder was fitted once, to all batches together; this
    fit is used to estimate the counts in each batch.

    Args:
        decoder: a decoder of all batches, with a fit (`has_fit`).
        ids: the ids of the items, n in all.
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
    """Return the evidence that the level of each item changed; without items all arrays are empty.

    Args:
        values: the items' values in at least 2 batches with clients.

    Raises:
        InvalidInputError: there are fewer than 2 batches.
    """
    if len(values.clients) < 2:
        raise InvalidInputError(
            f"changes need at least 2 rounds with clients, got {len(values.clients)}"
        )
    frequency, variance = _frequencies(values)
    found = [
        _of_block(frequency[start : start + _BLOCK], variance[start : start + _BLOCK])
        for start in range(0, max(1, len(frequency)), _BLOCK)  # one empty block without items
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


@cache
def fewest_batches(items: int, alpha: float) -> int:
    """Return the least number of batches in which a change can be listed, however large it is.

    It is for an item that alone changes, by any amount, in batches without error. Smaller changes
    need more batches; several changes at once may need fewer.

    Args:
        items: how many items are tested.
        alpha: above 0 and below 1.

    >>> [fewest_batches(items, 0.05) for items in (2, 100, 1_000_000)]
    [5, 7, 13]
    """
    needed = np.log(max(1, items) / _rate(alpha))
    number = 2
    while _largest_evidence(number) < needed:
        number += 1
    return number


def _largest_evidence(batches: int) -> float:
    """Return the largest logarithm of the e-value of an item that changes in one of the batches."""
    # one row for each batch at which the level may jump, by far more than counts
    jumps = np.triu(np.ones((batches, batches)), 1)[: batches - 1] * _JUMP
    clients = np.full(batches, 10 * _JUMP)
    values = RoundValues(jumps, np.ones_like(jumps), clients, list(range(batches)))
    return float(find_changes(values).log_e.max())


def flagged(changes: Changes, alpha: float) -> Bools:
    """Return which items changed, as a mask: bool [n].

    Under the assumptions of this module, with probability at least 1 - `alpha` no item in the mask
    is unchanged. This probability is for all items together, and for all masks together if the
    function is called after every round.

    Args:
        changes: the evidence for all items that are tested.
        alpha: above 0 and below 1.
    """
    found: Bools = changes.largest >= np.log(max(1, len(changes.largest)) / _rate(alpha))
    return found


def listed(changes: Changes, alpha: float) -> Bools:
    """Return which items changed, as a mask, bool [n], with a bound on the share of wrong ones.

    The expected share of items in the mask that did not change is at most `alpha`. This is the rule
    of Benjamini and Hochberg, for e-values (Wang and Ramdas 2022). The bound holds for one look at
    the data, not for a look after every round. The mask usually has more items than `flagged`.

    Args:
        changes: the evidence for all items that are tested.
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
    """Return how each item changed, in the order of the items; each is assumed to have changed.

    An item is NEW if it rose and was absent before, and GONE if it fell and is absent now. An item
    is absent if its level is below two standard deviations of the level's error (`_SEEN`).
    """
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
    """Return by how much the frequencies in one window exceed those in another, with limits.

    The windows must hold different rounds, so that their errors are independent. The limits are for
    the frequencies among the clients that took part. Each limit differs from the estimate by at
    least 1 / `clients` + 1 / `before`.

    Args:
        window: the counts in the window.
        clients: the number of clients in the window.
        against: the counts in the other window.
        before: the number of clients in the other window.
        confidence: the confidence of the limits, above 0 and below 1.
    """
    z = float(-ndtri((1.0 - check_confidence(confidence)) / 2))
    change = window.value / clients - against.value / before
    error = np.hypot(window.stddev / clients, against.stddev / before)
    half = np.maximum(z * error, 1.0 / clients + 1.0 / before)
    return Difference(change, change - half, change + half)


def _rate(alpha: float) -> float:
    """Return `alpha` if it is above 0 and below 1, or raise InvalidInputError."""
    rate = validate.real(alpha=alpha)
    if not 0 < rate < 1:
        raise InvalidInputError(f"alpha must be above 0 and below 1, got {rate}")
    return rate


def _frequencies(values: RoundValues) -> tuple[F64, F64]:
    """Return frequencies by batch, and their variances if nothing changed: [n, batches] each.

    The clients of a round are a random sample, so the variance of a count is its mean. The variance
    of the value's error is added to it. A mean below one client is raised to one client: otherwise
    a rare item that a few clients hold by chance would look like a change.

    Frequencies far from the item's median are clipped, since errors have heavier tails than a
    normal distribution. The median is used because an outlier would move the mean, and then the
    other rounds would be clipped on one side.
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
    """Return the weighted median of each item's frequencies: [n, 1].

    A round has the weight 1 / its standard deviation. Then many small rounds do not outvote a few
    large rounds, whose frequencies are known better.
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
    """Return each item's level before the batch `since`, and its level from `since` on.

    Args:
        frequency: float64 [n, batches].
        variance: float64 [n, batches].
        since: the index of a batch for each item, int64 [n].
    """
    later = np.arange(frequency.shape[1]) >= since[:, None]
    return (
        _level(frequency, np.where(later, np.inf, variance)),
        _level(frequency, np.where(later, variance, np.inf)),
    )


def weights_of_rounds(number: int) -> F64:
    """Return the prior weights of a change at round 1, 2, ...: float64 [number].

    They fall slowly. Their sum is below 1 for any number of rounds.

    >>> bool(0.75 < weights_of_rounds(10**6).sum() < 1.0)
    True
    """
    rounds = np.arange(1.0, number + 1)
    found: F64 = 1.0 / (2.6 * rounds * np.log(rounds + 1.7) ** 2)
    return found


def _of_block(frequency: F64, variance: F64) -> tuple[F64, I64, I64, I64]:
    """Return the log e-values of a block of items, and the likely rounds of a change.

    Args:
        frequency: float64 [n, rounds].
        variance: float64 [n, rounds].

    Returns:
        The log e-value after each round, float64 [n, rounds]; then the likeliest round of a change,
        the first and the last likely round, int64 [n] each.
    """
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
    """Return the evidence for a change at each of the rounds 1 .. t, and the change's variance.

    The change is the level from the round on, minus the level before it. The evidence is
    change^2 / (2 * variance). Both results are float64 [n, t].

    Args:
        so_far: the sums of the precisions of the rounds up to each round, float64 [n, t + 1].
        sums: the sums of precision * frequency up to each round, float64 [n, t + 1].
    """
    before, total = so_far[:, :-1], so_far[:, -1:]
    after = total - before
    square = 1.0 / before + 1.0 / after
    change = (sums[:, -1:] - sums[:, :-1]) / after - sums[:, :-1] / before
    evidence: npt.NDArray[np.float64] = change**2 / square / 2
    return evidence, square
