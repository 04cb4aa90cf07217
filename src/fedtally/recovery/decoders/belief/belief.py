"""Belief propagation: every item tells each of its cells what its other cells say of its count.

A cell's sum, less the believed counts of all other items of the cell, is a noisy value of an item's
count. An item has a cell in each row. Its values from several rows are joined, weighted by their
precision. The belief that an item sends to a cell is the mean of the item's count given the values
from the item's *other* rows, under a distribution of all counts that is learned at the same time
(`prior.py`). So no noise is counted twice, and no threshold says which items are heavy.

With several batches of rounds, a message has a value for each batch: the batch's share of the
count, plus the item's deviation from that share. The deviation is shrunk towards 0: much if its
expected size is small beside the noise, and little if it is large. The expected size is that of
Poisson noise, or the spread between the item's batches if that is clearly larger.

This is relaxed belief propagation (Guo and Wang 2006; Rangan 2010), of which approximate message
passing (Donoho, Maleki and Montanari 2009) is the limit for dense matrices. docs/accuracy.md has
the steps, the measured errors, and the conditions under which joint recovery answers instead.
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

ITERATIONS = 200  # the most; twelve are usual
# Close to exact recovery the noise may fall slowly for hundreds of iterations. So there are fewer
# iterations of many messages: about this number is sent in all, which takes some ten seconds.
_SENT_IN_ALL = 1 << 28
# Where most items lie just below the noise, messages may move little for a long time, and meanwhile
# the noise falls to a half or a third. So messages are settled only if the variance of the noise
# fell by less than 1 % in four iterations. From iteration 40 on, iterations also end if it fell by
# less than 2 % in twenty.
STILL_OVER, STILL_RATIO = 4, 0.99
_PATIENCE, _SLOW_OVER, _SLOW_RATIO = 40, 20, 0.98
DAMPING = 0.8  # the share of a message that is new; messages that all move at once overshoot
SLOWER = 0.7  # factor on the damping where messages move more than before
LEAST_DAMPING = 0.3
SETTLED = 0.1  # of the messages' standard deviation: a smaller move is hardly seen in the estimates
# Steps of learning the prior: before the first iteration and after the last one; in an iteration.
_FIRST_STEPS, _STEPS = 40, 4
_FEW_PHANTOMS = 4096  # of NUM_PHANTOMS, which are enough within an iteration
# From Poisson noise and the cells' noise alone, the squared deviations of an item's batches have a
# known distribution. The batches count as different if noise alone would reach the observed sum of
# squares with a probability below _CLEARLY. A limit in standard deviations would not do: with few
# batches, noise alone exceeds such a limit too often.
_CLEARLY = 1e-4
_BYTES = 12  # of a message, at most: its value, and shares of its variance and its place
# The most messages that are kept, at 5 to 12 bytes each. If all candidates would need more, only
# those that stand out of the noise send messages.
MOST_MESSAGES = 1 << 24
# The first threshold is one that fills this share of the room if nobody holds any candidate.
_FILLED = 0.8
# An item sends a message to a row if its *other* rows make it stand out, even with a value in this
# row that lies this many standard deviations below 0. So the values of a row do not decide which
# messages the row gets.
_UNLIKELY = 2.0
_FEWEST = 1000  # items beside those of joint recovery that there must be room for
_AT_ONCE = 1 << 13  # items whose messages are copied at once, to bound the memory
# Cells of all batches. The noise and the prior are learned from the cells. With one or two hundred
# they are so uncertain that intervals hold too seldom (docs/accuracy.md).
FEWEST_CELLS = 400
# With fewer than five rows the values say little of the distribution of counts, and maximum
# likelihood gathers it at chance counts. So messages are sent a second time, under a prior that is
# smoothed by this, and those that end with less noise are kept. Smoothing helps where counts differ
# by degrees, and harms where many are alike.
_SMOOTH = 0.15
_EXACT = 0.05  # clients: with less noise joint recovery leaves nothing to gain
# Belief propagation is not trusted in three cases. First: messages still move by this number of
# standard deviations.
_RESTLESS = 0.5
# Second: the squared errors of rows, measured against the item's other rows, are larger or smaller
# than their prediction by this factor. A kind of items is judged if it has at least this number of
# items.
_MISFIT = 1.5
_JUDGED = 20
# Third: the median standard deviation of the beliefs is more than this share of joint recovery's.
GAIN = 0.95
MANY_ROWS = 5


def message_bytes(candidates: int, rows: int, batches: int) -> int:
    """Return the bytes that messages take at most, while they are rearranged.

    With few rows they are sent twice, and the first ones are kept meanwhile.

    >>> message_bytes(10_000, 5, 10), message_bytes(10**9, 5, 10), message_bytes(10_000, 3, 10)
    (6000000, 402653184, 7200000)
    """
    number = candidates * rows * batches
    times = 1 + (number > MOST_MESSAGES) + (rows < MANY_ROWS)
    return times * _BYTES * min(number, MOST_MESSAGES)


def clearly_different(freedom: float) -> float:
    """Return by what share the squared deviations of batches must exceed their expectation.

    Args:
        freedom: degrees of freedom of the deviations.
    """
    return float(chdtri(freedom, _CLEARLY)) / freedom - 1.0


class Beliefs(NamedTuple):
    """Values of items from all of their rows: counts, float64 [n].

    The message of an item to a cell leaves out the cell's own value. These values leave out
    nothing, and the prior is not applied yet.

    Attributes:
        value: the item's count plus an error that is nearly normal.
        stddev: standard deviation of the error.
    """

    value: F64
    stddev: F64


class Sent:
    """The messages of items, in the blocks that `kernels.propagation` reads.

    Args:
        landed: the sums.
        ids: uint64 [n], the items. All send nothing at first.

    Attributes:
        size: the number of items.
        words: uint32 [blocks, groups, rows, LANES]: the places of the items in the sketch, packed
            as `kernels.propagation.pack_words` says.
        beliefs: float32 [blocks, rows, batches, LANES], in clients.
        unsure: float32 [blocks, rows, kinds, LANES], variances in squared clients: one for each
            batch under schedule "fresh", else one for all.
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
        """Let some items send their counts to all rows.

        Args:
            places: int64 [k], the places of the items among those that send.
            counts: float64 [k, batches].
        """
        # NumPy moves the two indexed axes to the front: the left side is [k, rows, batches].
        self.beliefs[places // LANES, :, :, places % LANES] = counts[:, None, :]

    def window(self, landed: Landed, ids: U64, chosen: Bools) -> Sent:
        """Return the messages of some batches alone.

        Args:
            landed: the sums of these batches.
            ids: uint64 [n], the items.
            chosen: batches of the window, bool [all batches].
        """
        other = copy.copy(self)
        other.words = pack_words(landed.words(ids))
        places = np.flatnonzero(chosen)  # `take` copies whole lanes; an index of booleans does not
        other.beliefs = np.take(self.beliefs, places, axis=2)
        if landed.fresh:
            other.unsure = np.take(self.unsure, places, axis=2)
        return other

    def take(self, other: Sent, theirs: I64, mine: I64) -> None:
        """Copy the messages of items from `other`.

        Args:
            other: the messages so far, which may be of other items.
            theirs: int64 [k], the places of the items in `other`.
            mine: int64 [k], their places here.
        """
        for start in range(0, len(mine), _AT_ONCE):
            to, of = mine[start : start + _AT_ONCE], theirs[start : start + _AT_ONCE]
            for new, old in ((self.beliefs, other.beliefs), (self.unsure, other.unsure)):
                new[to // LANES, :, :, to % LANES] = old[of // LANES, :, :, of % LANES]


class Messages:
    """Beliefs of items about their counts, one for every cell and batch, and the cells' residuals.

    Args:
        landed: the sums.
        candidates: the items.
        rng: draws phantoms.
        start: positions among the candidates, and counts by batch, float64 [n, batches], from which
            messages start; all others start from 0.
        prior: the distribution of counts from which learning starts, which is changed in place
            unless its counts are `known`; None: one that knows nothing.
        smooth: the smoothness of the prior.

    Attributes:
        residual: float64 like `Landed.frequencies`, in clients: sums less all messages.
        variance: the variance of each cell's residual, in squared clients: float64 [rows, width,
            batches] under schedule "fresh"; else [rows, width, 1], for the sum over batches.
        inflation: the factor on all variances that makes phantoms' errors as large as expected.
        prior: the distribution of counts.
        iterations: the number of iterations that were done.
        settled: whether messages stopped moving.
        moved: how far messages moved in the last iteration, in their standard deviations.
        fits: the mean of rows' squared errors, each divided by its prediction: one for each kind of
            items of `kernels.propagation`. `numbers` has the number of errors in each mean.
        positions: int64 [n], rising: the candidates that send messages.
        sent: their messages.
        beliefs: the values of these candidates, from all of their rows.
        whole: whether all candidates send messages.
        phantoms: uint64 [NUM_PHANTOMS], ids that nobody holds.
        null: float64, the values of phantoms in standard deviations, as the last calibration saw
            them.
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
            # The first candidate always sends, so that arrays are never empty.
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
            # The prior allows counts up to the largest of joint recovery, with room for an error,
            # and all that may hide in the noise.
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
            # If only some candidates send messages, a look at all of them takes longer than the
            # messages. Then only the iterations 1, 2, 4, 8 and so on look at all candidates.
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
        """Return the messages of some batches, with the items' values in these batches.

        The messages stay those of all batches, and so does the noise in them. The residuals of the
        other batches are left out, and phantoms show how large the errors are.

        Args:
            chosen: batches of the window, bool [batches].
            learned: whether to learn the prior of these counts.
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
        """Note the values, learn the prior from all candidates, and choose which send messages.

        Args:
            read: the values of the candidates that send messages.
            steps: steps of expectation-maximization.
            looked: whether all candidates are looked at; else the prior stays as it is.
            final: whether the choice of candidates that send messages stays as it is.
        """
        self.beliefs = Beliefs(read.value, read.stddev)
        if self.whole or not looked:
            # If not all candidates are looked at, no step is done: only the prior's table is made
            # anew, for these scales.
            self.prior.learn(*self.beliefs, steps if looked else 0, read.scales)
            return
        found = _StandingOut(self._least)
        self.prior.learn(*self.beliefs, steps, read.scales, self._others(found))
        if not final:
            self._admit(found, read.value / read.stddev)

    def _others(self, found: _StandingOut) -> Iterator[Beliefs]:
        """Yield the values of all candidates that send no messages, block by block.

        `found` gets those that stand out. It is complete when the last block was taken.
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
        """Let candidates that stand out send messages; if there are too many, the largest do."""
        positions = np.concatenate([self.positions, *found.positions])
        z = np.concatenate([own, *found.z])
        if len(positions) > self._room:
            kept = np.argpartition(-z, self._room - 1)[: self._room]
            # `_least` never falls, so later looks hardly let in more than there is room for.
            self._least = max(self._least, float(z[kept].min()))
            positions = positions[kept]
        # With r rows of equal precision, z = z_others sqrt(1 - 1/r) + z_own / sqrt(r). The gate is
        # the z_others for which z is `_least` and z_own is -_UNLIKELY.
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
        """Compute the residuals anew, and the variance that the messages leave unexplained."""
        fresh = self.landed.fresh
        self.residual = self._sums - explained
        square = np.mean(self.residual**2, axis=(0, 1))
        self._shares = np.ones(len(square)) if fresh else square / max(square.sum(), TINY)
        # The mean square of the residuals, less the variance of the messages, is other noise (such
        # as that of differential privacy), which lies on all cells alike.
        noise = (square if fresh else square.sum()) - unknown.mean(axis=(0, 1))
        self.variance = unknown + np.maximum(noise, 0.0) + TINY

    def _cells(self) -> Cells:
        return Cells(self.residual, self.variance, self.landed.fresh, self.inflation)

    def _calibrate(self, number: int) -> None:
        """Scale the variances so that phantoms' |z| has the .95 quantile of a normal variable."""
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
        """Return each item's value from all its cells, and move messages by the share `update`."""
        weights = self.landed.weights
        # The batches count as 1 / |weights|^2 batches of equal weight, and their mean takes one
        # degree of freedom away.
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
        """Keep the candidates that stand out, by position and value over standard deviation."""
        z = beliefs.value / beliefs.stddev
        out = np.flatnonzero(z > self._least)
        self.positions.append(positions[out])
        self.z.append(z[out])


def _rank(messages: Messages, fallback: str) -> tuple[bool, float]:
    """Return a sort key of messages: trusted ones come first, then those with less noise."""
    return bool(fallback), float(np.median(messages.beliefs.stddev))


class BeliefDecoder(FittedDecoder):
    """Decodes the landed sums of a campaign by belief propagation.

    Estimates are posterior means, so that both the largest error and the sum of squared errors are
    small. Joint recovery is done first, and messages start from its items. Where belief propagation
    does not fit the sums, or has nothing to gain, joint recovery answers. The same sums always give
    the same estimates.

    Args:
        sketches: landed sums, all of one spec, at most one per round.
        domain: the candidate items; only these can hold anything.
        progress: callback as for `JointDecoder`.

    Attributes:
        spec: the spec of the sketches.
        num_clients: the clients of all landed rounds.
        joint: joint recovery of the same sums.
        messages: the messages; None where none were sent.
        fallback: why joint recovery answers; "" where belief propagation does.

    Raises:
        InvalidInputError: as for `JointDecoder`.

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
        # Without any sketch, `JointDecoder` raises the error.
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
        """Return why no messages are sent, or "" if they are."""
        landed = self.joint.fit.landed
        room = MOST_MESSAGES // (self.spec.rows * len(landed.clients))
        heavy = len(self.joint.fit.support.positions)
        cells = self.spec.rows * self.spec.width * len(landed.clients)
        if cells < FEWEST_CELLS:
            return f"{cells} cells say too little: messages need {FEWEST_CELLS}"
        if self.joint.fallback is not None:  # the paper's decoder answers instead
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
        """Return why joint recovery answers although messages were sent, or "" if it does not."""
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
        """Return the estimated counts of chosen ids, candidates or not: float64 [n]."""
        if self.fallback:
            return self.joint.at(ids)
        return self._posterior(ids).mean

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimated counts of the ids from `first_id` on (mod 2^64): float64 [count]."""
        if self.fallback:
            return self.joint.range(first_id, count)
        return self._posterior(range(first_id, first_id + count)).mean

    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the values that objective l2 shrinks, and their noise.

        If joint recovery answers, they are its values. Posterior means are not shrunk again: their
        noise is given as 0.
        """
        if self.fallback:
            return self.joint.noisy(candidates)
        return Noisy(0.0, NORMAL, lambda ids: (ask(self, ids), 1.0))

    @property
    def instead(self) -> CampaignDecoder:
        """Joint recovery if belief propagation fell back to it, else this decoder."""
        return self.joint if self.fallback else self

    @property
    def has_fit(self) -> bool:
        """Whether messages answer, or a joint fit."""
        return not self.fallback or self.joint.has_fit

    def measured(self, ids: Ids) -> Measured:
        """Return the values of any ids, and the standard deviations of their errors."""
        return self.joint.measured(ids) if self.fallback else Measured(*self.beliefs(ids))

    def window(self, chosen: Bools, learned: bool = True) -> FittedDecoder:
        """Return a decoder of the counts in some batches, from the messages of all batches."""
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
        """Yield why joint recovery, or the paper's decoder, answered instead, if it did."""
        if self.fallback:
            yield f"joint recovery answered instead of belief propagation: {self.fallback}"
        yield from self.joint.notes()

    def beliefs(self, ids: Ids) -> Beliefs:
        """Return values of any ids and the standard deviations of their errors, in clients.

        Only for sums for which `messages` is not None.
        """
        messages = self.messages
        assert messages is not None
        places = self.candidates.positions(ids)
        index = np.minimum(np.searchsorted(messages.positions, places), len(messages.positions) - 1)
        known = messages.positions[index] == places
        if known.all():
            return Beliefs(*(whole[index] for whole in messages.beliefs))
        if isinstance(ids, range):  # consecutive ids are read faster than listed ones
            # Senders get wrong values here, without their own messages; they are replaced below.
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
