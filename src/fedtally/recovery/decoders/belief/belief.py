"""Belief propagation: a decoder that estimates all items together from all cells.

A cell is a counter, and an item has one cell in each row. A cell's sum, minus the believed counts
of the cell's other items, is a noisy value of an item's count. The values from several rows are
combined, weighted by their precision. The belief that an item sends to a cell is the mean of its
count, given the values from its *other* rows. So no noise is used twice. The mean also needs a
distribution of the counts of all items, which is learned at the same time (`prior.py`). No
threshold says which items are heavy.

With several batches of rounds, a message has a value for each batch: the batch's share of the
count, plus the item's deviation from that share. The deviation is shrunk towards 0. It is shrunk
much if its expected size is small beside the noise, and little if it is large. The expected size
follows from Poisson noise, or from the spread between the item's batches if that is clearly larger.

This is relaxed belief propagation (Guo and Wang 2006; Rangan 2010). Approximate message passing
(Donoho, Maleki and Montanari 2009) is its limit for dense matrices. docs/accuracy.md has the steps,
the measured errors, and the conditions under which joint recovery answers instead.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtri

from fedtally.domain import Domain
from fedtally.kernels.propagation import (
    FAR,
    LANES,
    TINY,
    Cells,
    Read,
    Rule,
    exchange_messages,
    pack_words,
    read_messages,
)
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.belief.prior import Posterior, Prior
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.kind import (
    CampaignDecoder,
    FittedDecoder,
    Measured,
    Progress,
)
from fedtally.recovery.linear_system import (
    F64,
    I64,
    U64,
    Bools,
    Candidates,
    Decoder,
    Ids,
    Landed,
    ask,
)
from fedtally.recovery.phantoms import NUM_PHANTOMS, generator
from fedtally.recovery.quantiles import quantile
from fedtally.recovery.shrinkage import NORMAL, NORMAL_95, Noisy
from fedtally.sketch import CountSketch

F32 = npt.NDArray[np.float32]

ITERATIONS = 200  # the most iterations; twelve are usual
# Close to exact recovery the noise may fall slowly for hundreds of iterations. With many messages
# there are therefore fewer iterations (but at least _PATIENCE): about this number of messages is
# sent in all, which takes some ten seconds.
_SENT_IN_ALL = 1 << 28
# If most items lie just below the noise, messages may move little for a long time while the noise
# falls to a half or a third. So messages are settled only if the variance of the noise fell by less
# than 1 % in four iterations. From iteration 40 on, iterations also end if it fell by less than 2 %
# in twenty iterations.
STILL_OVER, STILL_RATIO = 4, 0.99
_PATIENCE, _SLOW_OVER, _SLOW_RATIO = 40, 20, 0.98
DAMPING = 0.8  # the share of a message that is replaced; replacing all of it would overshoot
SLOWER = 0.7  # the damping is multiplied by this if messages move more than in the step before
LEAST_DAMPING = 0.3
SETTLED = 0.1  # in standard deviations of messages: a smaller move hardly changes the estimates
# The prior is learned by _FIRST_STEPS steps before the first iteration, by as many after the last
# iteration, and by _STEPS steps in each iteration that looks at all candidates.
_FIRST_STEPS, _STEPS = 40, 4
# Phantoms are ids that nobody holds. An iteration uses this number of the NUM_PHANTOMS phantoms.
_FEW_PHANTOMS = 4096
# If an item's batches differ only by Poisson noise and the cells' noise, the sum of their squared
# deviations has a known distribution. The batches are considered different if that distribution
# gives a sum as large as the observed one with a probability below _CLEARLY. A limit in standard
# deviations would not do: with few batches, noise alone exceeds it too often.
_CLEARLY = 1e-4
# The most bytes of a message, without copies. The value takes 4 bytes. The variance and the hash
# word take 4 bytes each, but several batches may share them. So a message takes little more than
# 4.5 bytes with many batches under schedule "hybrid", and 12 bytes with one batch or under "fresh".
_BYTES = 12
# The most messages that are stored. If all candidates would need more, only candidates whose values
# stand out of the noise send messages: those that exceed a threshold, in standard deviations.
MOST_MESSAGES = 1 << 24
# The share of MOST_MESSAGES that would be stored with the first threshold if nobody held any
# candidate, so that only noise exceeds the threshold.
_FILLED = 0.8
# If only some candidates send messages, an item sends one to a row only if its value from the
# *other* rows exceeds a gate. Above the gate, the item's value from all rows would exceed the
# threshold even if its value in this row were this number of standard deviations below 0. So the
# row's own value hardly ever decides which messages the row gets.
_UNLIKELY = 2.0
# There must be room for the messages of joint recovery's items and of this number of other items.
_FEWEST = 1000
_AT_ONCE = 1 << 13  # items whose messages are copied at once, to bound the memory
# The fewest cells of all batches together. The noise and the prior are learned from the cells. With
# one or two hundred cells both are so uncertain that intervals are too often wrong
# (docs/accuracy.md).
FEWEST_CELLS = 400
# With fewer than five rows the values say little about the distribution of counts. Maximum
# likelihood then concentrates the distribution at a few random counts. So there is a second run,
# with this value of `Prior.smooth`. Of the trusted runs, the one with less noise is used. Smoothing
# helps if counts vary gradually, and harms if many counts are equal.
_SMOOTH = 0.15
_EXACT = 0.05  # clients; with less noise joint recovery cannot be improved
# Belief propagation is not trusted in three cases. First: messages still move by more than this
# number of standard deviations.
_RESTLESS = 0.5
# Second: the values in a row are predicted from the same items' other rows. The mean squared error
# of these predictions, divided by the expected one, is above _MISFIT or below 1 / _MISFIT. This is
# tested for three kinds of items (`Messages.fits`), each only if it has at least _JUDGED items.
_MISFIT = 1.5
_JUDGED = 20
# Third: the median standard deviation of the beliefs is more than this share of the standard
# deviation of joint recovery's estimates.
GAIN = 0.95
MANY_ROWS = 5


def message_bytes(candidates: int, rows: int, batches: int) -> int:
    """Return about the most memory, in bytes, that the messages of a campaign take.

    If only some candidates send messages, a copy while messages are rearranged is included. With
    fewer than five rows there are two runs, and the messages of both are included.

    >>> message_bytes(10_000, 5, 10), message_bytes(10**9, 5, 10), message_bytes(10_000, 3, 10)
    (6000000, 402653184, 7200000)
    """
    number = candidates * rows * batches
    times = 1 + (number > MOST_MESSAGES) + (rows < MANY_ROWS)
    return times * _BYTES * min(number, MOST_MESSAGES)


def clearly_different(freedom: float) -> float:
    """Return the share by which squared deviations between batches must exceed their expectation.

    If they exceed it by more, the batches are different: noise alone exceeds this limit only with
    probability `_CLEARLY`.

    Args:
        freedom: the degrees of freedom of the sum of squared deviations, above 0.
    """
    return float(chdtri(freedom, _CLEARLY)) / freedom - 1.0


class Beliefs(NamedTuple):
    """Values of items' counts from all of their rows, in clients: float64 [n] each.

    An item's message to a cell is made without the cell's own value. These values use all cells.
    The prior is not applied to them.

    Attributes:
        value: the item's count plus an error that is nearly normal.
        stddev: the standard deviation of this error.
    """

    value: F64
    stddev: F64


class Sent:
    """The messages of items, in the blocks that `kernels.propagation` describes.

    Args:
        landed: the sums.
        ids: uint64 [n], the items. At first all messages are 0.

    Attributes:
        size: the number of items.
        words: uint32 [blocks, groups, rows, LANES], the hash words of the items, which give their
            cells and signs.
        beliefs: float32 [blocks, rows, batches, LANES], the messages, in clients.
        unsure: float32 [blocks, rows, kinds, LANES], the variances of the messages, in squared
            clients. Under schedule "fresh" each batch has one (kinds = batches); otherwise it is
            the variance of the sum over batches (kinds = 1).
    """

    def __init__(self, landed: Landed, ids: U64) -> None:
        rows, _, batches = landed.frequencies.shape
        self.size = len(ids)
        self.words = pack_words(landed.words(ids))
        blocks = len(self.words)
        self.beliefs: F32 = np.zeros((blocks, rows, batches, LANES), np.float32)
        kinds = batches if landed.fresh else 1
        self.unsure: F32 = np.zeros((blocks, rows, kinds, LANES), np.float32)

    def start(self, places: I64, counts: F64) -> None:
        """Set the messages of some items to the same counts in all rows.

        Args:
            places: int64 [k], the indices of the items in `ids`.
            counts: float64 [k, batches], the counts.
        """
        # NumPy moves the two indexed axes to the front: the left side is [k, rows, batches].
        self.beliefs[places // LANES, :, :, places % LANES] = counts[:, None, :]

    def window(self, landed: Landed, ids: U64, chosen: Bools) -> Sent:
        """Return a copy with the messages of the chosen batches only.

        Args:
            landed: the sums of these batches.
            ids: uint64 [n], the items.
            chosen: bool [batches], which batches are in the window.
        """
        other = copy.copy(self)
        other.words = pack_words(landed.words(ids))
        places = np.flatnonzero(chosen)  # faster: `take` copies whole lanes
        other.beliefs = np.take(self.beliefs, places, axis=2)
        if landed.fresh:
            other.unsure = np.take(self.unsure, places, axis=2)
        return other

    def take(self, other: Sent, theirs: I64, mine: I64) -> None:
        """Copy the messages of some items from `other` to this object.

        Args:
            other: messages, possibly of other items as well.
            theirs: int64 [k], the indices of the items in `other`.
            mine: int64 [k], the indices of the same items here.
        """
        for start in range(0, len(mine), _AT_ONCE):
            to, of = mine[start : start + _AT_ONCE], theirs[start : start + _AT_ONCE]
            for new, old in ((self.beliefs, other.beliefs), (self.unsure, other.unsure)):
                new[to // LANES, :, :, to % LANES] = old[of // LANES, :, :, of % LANES]


class Messages:
    """The messages of items to cells. The constructor iterates them, usually until they settle.

    Args:
        landed: the sums.
        candidates: the candidate items.
        rng: draws the phantoms: ids that nobody holds, whose values show the noise.
        start: the positions of some candidates, int64 [n], and their counts by batch, float64
            [n, batches]. Their messages start from these counts, all others from 0.
        prior: the distribution of counts from which learning starts; it is changed in place. None:
            a new one with equal weights.
        smooth: the argument `smooth` of a new prior.

    Attributes:
        residual: the sums minus all messages, in clients: float64, shaped like
            `Landed.frequencies`.
        variance: the variance of each cell's residual, in squared clients. Under schedule "fresh"
            it is float64 [rows, width, batches]. Otherwise it is [rows, width, 1], for the sum over
            batches.
        inflation: the factor by which variances are multiplied, so that the phantoms' errors are as
            large as expected.
        prior: the learned distribution of counts.
        iterations: the number of iterations that were made.
        settled: whether the messages stopped moving before the iterations ended.
        moved: how far the messages moved in the last iteration, in their standard deviations.
        fits: how well rows predict each other, in the last iteration: the mean of squared error /
            expected squared error, for three kinds of items (`kernels.propagation.Exchanged`).
        numbers: the number of errors in each of these means.
        positions: int64 [n], ascending: the positions of the candidates that send messages.
        sent: their messages.
        beliefs: their values, from all of their rows.
        whole: whether all candidates send messages.
        phantoms: uint64 [NUM_PHANTOMS], ids that nobody holds.
        null: float64, the values of the phantoms in the last calibration, in calibrated standard
            deviations.
    """

    def __init__(
        self,
        landed: Landed,
        candidates: Candidates,
        rng: np.random.Generator,
        start: tuple[I64, F64],
        prior: Prior | None = None,
        smooth: float = 0.0,
    ) -> None:
        self.landed, self.candidates, self._smooth = landed, candidates, smooth
        self._sums = landed.frequencies * landed.clients
        self.phantoms = candidates.fresh_ids(rng, NUM_PHANTOMS)
        self._phantom_words = [
            pack_words(landed.words(self.phantoms[:number]))
            for number in (_FEW_PHANTOMS, NUM_PHANTOMS)
        ]
        positions, counts = start
        rows, _, batches = self._sums.shape
        self._room = MOST_MESSAGES // (rows * batches)
        self.whole = candidates.size <= self._room
        self._least = self._gate = -np.inf
        if self.whole:
            self.positions: I64 = np.arange(candidates.size)
        else:
            # The first candidate sends at first: otherwise the arrays could be empty. `_admit` may
            # drop it later.
            self.positions = np.union1d(positions, [0])
            self._least = float(ndtri(1.0 - _FILLED * self._room / candidates.size))
        self.sent = Sent(landed, candidates.ids(self.positions))
        self.sent.start(np.searchsorted(self.positions, positions), counts)
        self.inflation = 1.0
        explained = np.zeros(self._sums.shape)
        landed.add(explained, *landed.places(candidates.ids(positions)), counts)
        self._subtract(explained, np.zeros((*self._sums.shape[:2], self.sent.unsure.shape[2])))
        self._calibrate(_FEW_PHANTOMS)
        first = self._read()
        if prior is None:
            # The prior allows all counts that the noise may hide. It also allows counts up to 1.5
            # times the largest count of joint recovery, since that count has an error.
            largest = 1.5 * float(counts.sum(axis=1).max(initial=0.0))
            prior = Prior(max(largest, FAR * float(first.stddev.max())), smooth=smooth)
        self.prior = prior
        self._learn(first, _FIRST_STEPS)
        self._iterate()

    def _iterate(self) -> None:
        damping, before = DAMPING, np.inf
        self.settled = False
        noise = []
        rows, _, batches = self._sums.shape
        messages = min(self.candidates.size, self._room) * rows * batches
        most = min(ITERATIONS, max(_PATIENCE, _SENT_IN_ALL // messages))
        for iteration in range(1, most + 1):
            found = self._exchange(damping)
            self.iterations = iteration
            if self.moved > before:
                damping = max(LEAST_DAMPING, SLOWER * damping)
            before = self.moved
            self._calibrate(_FEW_PHANTOMS)
            # If only some candidates send messages, decoding all candidates takes longer than the
            # messages. So all candidates are decoded only in the iterations 1, 2, 4, 8 and so on.
            looked = self.whole or iteration & (iteration - 1) == 0
            self._learn(found, _STEPS, looked)
            noise.append(self.inflation * float(self.variance.mean()))
            still = iteration > STILL_OVER and noise[-1] > STILL_RATIO * noise[-1 - STILL_OVER]
            self.settled = self.moved < SETTLED and still
            slow = iteration >= _PATIENCE and noise[-1] > _SLOW_RATIO * noise[-1 - _SLOW_OVER]
            if self.settled or slow:
                break
        self._calibrate(NUM_PHANTOMS)
        self._learn(self._read(), _FIRST_STEPS, final=True)

    def window(self, chosen: Bools, learned: bool) -> Messages:
        """Return the same messages with the items' values in a window of some batches.

        The messages themselves stay those of all batches. The values come from the residuals of the
        window's batches. Phantoms calibrate the errors of these values again.

        Args:
            chosen: bool [batches], which batches are in the window.
            learned: whether to learn a prior for the window's counts, which estimates need.
        """
        other = copy.copy(self)
        landed = other.landed = self.landed.only(chosen)
        other.residual = np.ascontiguousarray(self.residual[..., chosen])
        other.sent = self.sent.window(landed, self.candidates.ids(self.positions), chosen)
        other._phantom_words = [pack_words(landed.words(self.phantoms))] * 2
        if landed.fresh:
            other.variance = np.ascontiguousarray(self.variance[..., chosen])
        else:
            other.inflation = self.inflation * max(float(self._shares @ chosen), TINY)
        other._calibrate(NUM_PHANTOMS)
        read = other._read()
        other.beliefs = Beliefs(read.value, read.stddev)
        if learned:
            largest = max(1.5 * float(read.value.max()), FAR * float(read.stddev.max()))
            other.prior = Prior(largest, smooth=self._smooth)
            other._learn(read, _FIRST_STEPS, final=True)
        return other

    def _learn(self, read: Read, steps: int, looked: bool = True, final: bool = False) -> None:
        """Store the items' values, learn the prior, and choose which candidates send messages.

        Args:
            read: the values of the candidates that send messages.
            steps: the number of steps of expectation-maximization.
            looked: whether the candidates that send no messages are decoded, too. False: the
                weights of the prior do not change. If all candidates send messages, it must be
                True.
            final: True: do not change which candidates send messages.
        """
        self.beliefs = Beliefs(read.value, read.stddev)
        if self.whole or not looked:
            # If not `looked`, no step is made: only the prior's table is computed again, for the
            # new standard deviations. If all candidates send messages, there are no others to
            # decode.
            self.prior.learn(*self.beliefs, steps if looked else 0, read.scales)
            return
        found = _StandingOut(self._least)
        self.prior.learn(*self.beliefs, steps, read.scales, self._others(found))
        if not final:
            self._admit(found, read.value / read.stddev)

    def _others(self, found: _StandingOut) -> Iterator[Beliefs]:
        """Yield the values of all candidates that send no messages, block by block.

        The candidates that stand out are added to `found`, which is complete after the last block.
        """
        joiners = self._joiners(self.candidates.size)
        for start, ids in self.candidates.blocks():
            joined = self._joined(joiners, ids)
            silent = np.ones(len(ids), bool)
            mine = np.searchsorted(self.positions, [start, start + len(ids)])
            silent[self.positions[slice(*mine)] - start] = False
            places = np.flatnonzero(silent)
            others = Beliefs(joined.value[places], joined.stddev[places])
            found.add(start + places, others)
            yield others

    def _admit(self, found: _StandingOut, own: F64) -> None:
        """Let the candidates that stand out send messages; if they are too many, only the largest.

        Args:
            found: the candidates that stand out and do not yet send messages.
            own: the values of the candidates that already send messages, in standard deviations.
        """
        positions = np.concatenate([self.positions, *found.positions])
        z = np.concatenate([own, *found.z])
        if len(positions) > self._room:
            kept = np.argpartition(-z, self._room - 1)[: self._room]
            # `_least` never falls, so a later call hardly finds more candidates than fit.
            self._least = max(self._least, float(z[kept].min()))
            positions = positions[kept]
        # With r rows of equal precision, z = z_others sqrt(1 - 1/r) + z_own / sqrt(r), where z_own
        # is the row's own value. The gate is z_others for z = _least and z_own = -_UNLIKELY.
        rows = self._sums.shape[0]
        self._gate = (self._least + _UNLIKELY * rows**-0.5) / (1.0 - 1.0 / rows) ** 0.5
        positions = np.sort(positions)
        stay = np.intersect1d(positions, self.positions, assume_unique=True)
        sent = Sent(self.landed, self.candidates.ids(positions))
        sent.take(
            self.sent, np.searchsorted(self.positions, stay), np.searchsorted(positions, stay)
        )
        self.sent, self.positions = sent, positions

    # ---- the cells ----

    def _subtract(self, explained: F64, unknown: F64) -> None:
        """Compute the residuals and their variances from the sums of the messages in each cell.

        Args:
            explained: the sums of the messages, float64 [rows, width, batches].
            unknown: the sums of their variances, float64 [rows, width, kinds].
        """
        fresh = self.landed.fresh
        self.residual = self._sums - explained
        square = np.mean(self.residual**2, axis=(0, 1))
        self._shares = np.ones(len(square)) if fresh else square / max(square.sum(), TINY)
        # Residuals vary more than the messages' variances explain. The rest is other noise, such as
        # that of differential privacy, which is equal in all cells.
        noise = (square if fresh else square.sum()) - unknown.mean(axis=(0, 1))
        self.variance = unknown + np.maximum(noise, 0.0) + TINY

    def _cells(self) -> Cells:
        return Cells(self.residual, self.variance, self.landed.fresh, self.inflation)

    def _calibrate(self, number: int) -> None:
        """Scale all variances so that the errors of phantoms have the expected size.

        Phantoms are ids that nobody holds. After the scaling, the .95 quantile of their absolute
        values, in standard deviations, is that of a normal variable.

        Args:
            number: how many phantoms to use, _FEW_PHANTOMS or NUM_PHANTOMS.
        """
        words = self._phantom_words[number == NUM_PHANTOMS]
        read = read_messages(self._cells(), words, number)
        self.null = read.value / read.stddev
        grown = max(quantile(np.abs(self.null), 0.95) / NORMAL_95, 1e-6)
        self.inflation *= grown**2
        self.null /= grown

    def _read(self) -> Read:
        """Return the value of each item that sends messages, from all of its cells."""
        sent = self.sent
        return read_messages(self._cells(), sent.words, sent.size, sent.beliefs, sent.unsure)

    def _exchange(self, update: float) -> Read:
        """Replace the share `update` of each message by its new value.

        Returns:
            The items' values from all of their cells, before the messages changed.
        """
        weights = self.landed.weights
        # Batches of unequal weights act like 1 / |weights|^2 batches of equal weight. One degree of
        # freedom is lost to their mean.
        freedom = max(1.0 / float(weights @ weights) - 1.0, 1e-3)
        clearly = clearly_different(freedom)
        rule = Rule(self.prior.table, weights, self._shares, clearly, update, self._gate)
        sent = self.sent
        found = exchange_messages(
            self._cells(), sent.words, sent.size, sent.beliefs, sent.unsure, rule
        )
        self.moved, self.fits, self.numbers = found.moved, found.fits, found.numbers
        self._subtract(found.explained, found.unknown)
        return found.read

    def of(self, ids: Ids) -> Beliefs:
        """Return the values, from all of their cells, of ids that send no messages."""
        return self._joined(self._joiners(len(ids)), ids)

    def _joiners(self, expected: int) -> list[tuple[Decoder, Decoder]]:
        precision = 1.0 / (self.inflation * self.variance)
        return self.landed.joiners(self.residual, precision, expected)

    def _joined(self, joiners: list[tuple[Decoder, Decoder]], ids: Ids) -> Beliefs:
        value, square = np.zeros(len(ids)), np.zeros(len(ids))
        for weighted, weight in joiners:
            precision = ask(weight, ids)
            value += ask(weighted, ids) / precision
            # `precision` is a mean over rows: over all rows the variance is 1 / (rows precision).
            square += 1.0 / precision
        return Beliefs(value, np.sqrt(square / len(self.residual)))


class _StandingOut:
    """Collects candidates whose value is more than `least` standard deviations above 0."""

    def __init__(self, least: float) -> None:
        self._least = least
        self.positions: list[I64] = []
        self.z: list[F64] = []

    def add(self, positions: I64, beliefs: Beliefs) -> None:
        """Add those candidates whose value exceeds `least` standard deviations."""
        z = beliefs.value / beliefs.stddev
        out = np.flatnonzero(z > self._least)
        self.positions.append(positions[out])
        self.z.append(z[out])


def _rank(messages: Messages, fallback: str) -> tuple[bool, float]:
    """Return a key for sorting runs: trusted messages first, then those with less noise.

    Args:
        messages: the messages of a run.
        fallback: why they are not trusted; "" if they are.
    """
    return bool(fallback), float(np.median(messages.beliefs.stddev))


class BeliefDecoder(FittedDecoder):
    """Decodes landed sums, the sums of rounds that took place, by belief propagation.

    Joint recovery is done first, and the messages start from its items. Joint recovery answers
    instead if there are too few cells or too many messages, or if belief propagation does not
    settle, does not fit the sums or cannot improve on it. Estimates are posterior means, which
    makes both the largest error and the sum of squared errors small. The decoder's random draws
    follow from the seed of the sketches, so the same sums give the same estimates.

    Args:
        sketches: landed sums, all of one spec, at most one per round.
        domain: the candidate items; nobody holds any other item.
        progress: a callback, as in `JointDecoder`.

    Attributes:
        spec: the spec of the sketches.
        num_clients: the number of clients in all landed rounds.
        joint: joint recovery of the same sums.
        messages: the messages; None if none were sent.
        fallback: why joint recovery answers; "" if belief propagation answers.

    Raises:
        InvalidInputError: the spec has too few rows, or as in `JointDecoder`.
        IncompatibleError: the specs differ.

    >>> from fedtally.domain import IntegerRange
    >>> from fedtally.sketch import SketchSpec
    >>> spec = SketchSpec(rows=5, width=80, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> sketch = CountSketch(spec, 0)
    >>> counts = np.append([900, 700], np.tile([0, 0, 0, 9], 400))
    >>> sketch.add(np.arange(1, 1603, dtype=np.uint64), counts)
    >>> domain = IntegerRange(1, 1602)
    >>> belief, joint = (make([sketch], domain) for make in (BeliefDecoder, JointDecoder))
    >>> errors = [float(np.sum((d.range(1, 1602) - counts) ** 2)) for d in (belief, joint)]
    >>> belief.fallback, errors[0] < errors[1] / 3
    ('', True)
    """

    recovery = Recovery.BELIEF

    def __init__(
        self, sketches: Sequence[CountSketch], domain: Domain, progress: Progress | None = None
    ) -> None:
        # Without sketches, the check must pass here: `JointDecoder` then raises the right error.
        self.recovery.check_rows(sketches[0].spec.rows if sketches else self.recovery.fewest_rows)
        self.joint = JointDecoder(sketches, domain, progress)
        self.spec, self.num_clients = self.joint.spec, self.joint.num_clients
        self.batches, self.clients = self.joint.batches, self.joint.clients
        self.candidates = Candidates(domain)
        self.messages: Messages | None = None
        self.fallback = self._why_not_begun()
        if self.fallback:
            return
        fit = self.joint.fit
        start = fit.support.positions, fit.support.values * fit.landed.clients
        for smooth in (0.0,) if self.spec.rows >= MANY_ROWS else (0.0, _SMOOTH):
            rng = generator(self.spec.seed, b"belief")
            messages = Messages(fit.landed, self.candidates, rng, start, smooth=smooth)
            fallback = self._why_not_trusted(messages)
            if self.messages is None or _rank(messages, fallback) < _rank(
                self.messages, self.fallback
            ):
                self.messages, self.fallback = messages, fallback

    def _why_not_begun(self) -> str:
        """Return why no messages are sent; "" if they are sent."""
        landed = self.joint.fit.landed
        room = MOST_MESSAGES // (self.spec.rows * len(landed.clients))
        heavy = len(self.joint.fit.support.positions)
        cells = self.spec.rows * self.spec.width * len(landed.clients)
        if cells < FEWEST_CELLS:
            return f"{cells} cells say too little: messages need {FEWEST_CELLS}"
        if self.joint.fallback is not None:  # joint recovery gave up: the median answers
            return "nothing stands out of the noise"
        if min(self.candidates.size, heavy + _FEWEST) > room:
            return (
                f"messages of {self.spec.rows} rows and {len(landed.clients)} batches leave room"
                f" for {room:,} items"
            )
        if self.joint.fit.scale * self.num_clients < _EXACT:
            return "recovery is exact, or nearly so"
        return ""

    def _why_not_trusted(self, messages: Messages) -> str:
        """Return why joint recovery answers although messages were sent; "" if messages answer."""
        fit = self.joint.fit
        if messages.moved > _RESTLESS:
            return "messages do not settle"
        judged = messages.numbers >= _JUDGED * self.spec.rows
        if np.any(np.abs(np.log(np.maximum(messages.fits[judged], TINY))) > np.log(_MISFIT)):
            return "errors differ from their prediction"
        # The standard deviation of joint recovery's estimates, in clients.
        usual = fit.scale * self.num_clients / float(np.sqrt(fit.share.mean()))
        if float(np.median(messages.beliefs.stddev)) > GAIN * usual:
            return "its errors are not smaller"
        return ""

    def at(self, ids: U64) -> F64:
        """Return the estimated count of each id, candidate or not: float64 [n]."""
        if self.fallback:
            return self.joint.at(ids)
        return self._posterior(ids).mean

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimated counts of the ids from `first_id` on (mod 2^64): float64 [count]."""
        if self.fallback:
            return self.joint.range(first_id, count)
        return self._posterior(range(first_id, first_id + count)).mean

    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the values that the objective l2 shrinks towards 0, and their noise.

        Beliefs are posterior means, which need no shrinking: their noise is given as 0. If joint
        recovery answers, its values are returned.
        """
        if self.fallback:
            return self.joint.noisy(candidates)
        return Noisy(0.0, NORMAL, lambda ids: (ask(self, ids), 1.0))

    @property
    def instead(self) -> CampaignDecoder:
        """The decoder that answers: joint recovery after a fallback, otherwise this decoder."""
        return self.joint if self.fallback else self

    @property
    def has_fit(self) -> bool:
        """Whether windows can be decoded: messages or a joint fit answer, not the median."""
        return not self.fallback or self.joint.has_fit

    def measured(self, ids: Ids) -> Measured:
        """Return a noisy value of each id's count, and the standard deviation of its error."""
        return self.joint.measured(ids) if self.fallback else Measured(*self.beliefs(ids))

    def window(self, chosen: Bools, learned: bool = True) -> FittedDecoder:
        """Return a decoder of the counts in some batches that uses the messages of all batches.

        The new decoder's `batches` and `clients` are those of the window. After a fallback, the new
        decoder is `JointDecoder.window`, whose `batches` and `clients` stay those of all batches.
        """
        if self.fallback:
            return self.joint.window(chosen, learned)
        assert self.messages is not None
        other = copy.copy(self)
        other.messages = self.messages.window(chosen, learned)
        landed = other.messages.landed
        other.batches, other.clients = landed.batches, landed.clients
        other.num_clients = landed.num_clients
        return other

    def notes(self) -> Iterator[str]:
        """Yield a note on which other decoder answered, and why; nothing if this one answered."""
        if self.joint.fallback is not None:  # then neither of the two answered, but the median
            yield from self.joint.notes()
        elif self.fallback:
            yield f"joint recovery answered instead of belief propagation: {self.fallback}"

    def beliefs(self, ids: Ids) -> Beliefs:
        """Return a noisy value of each id's count, and the standard deviation of its error.

        Both are in clients, and no prior is applied. `messages` must not be None.
        """
        messages = self.messages
        assert messages is not None
        places = self.candidates.positions(ids)
        index = np.minimum(np.searchsorted(messages.positions, places), len(messages.positions) - 1)
        known = messages.positions[index] == places
        if known.all():
            return Beliefs(*(whole[index] for whole in messages.beliefs))
        if isinstance(ids, range):  # consecutive ids are read faster than listed ones
            # For ids that send messages these values are wrong, because `of` does not allow for
            # their own messages. The last loop replaces these values.
            found = messages.of(ids)
        else:
            found = Beliefs(np.empty(len(places)), np.empty(len(places)))
            for mine, others in zip(found, messages.of(ids[~known]), strict=True):
                mine[~known] = others
        for mine, whole in zip(found, messages.beliefs, strict=True):
            mine[known] = whole[index[known]]
        return found

    def _posterior(self, ids: Ids) -> Posterior:
        assert self.messages is not None
        return self.messages.prior.posterior(*self.beliefs(ids))
