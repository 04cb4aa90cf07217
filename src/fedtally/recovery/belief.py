"""Belief propagation: every item tells every cell what the item's other cells say of it.

A cell's sum, less what all other items of the cell are believed to hold, is a noisy value of an
item's count. Where an item lies in several rows, these values are joined, weighted by their
precision. The belief that an item sends to a cell is the mean of the item's count given the values
from the item's *other* rows, under a distribution of all counts that is learned at the same time
(`recovery.prior`). So no noise is counted twice, and no threshold says which items are heavy.

With several batches of rounds, a message has a value per batch: the batch's share of the count, and
a deviation that is kept as far as Poisson noise, or a clearly larger spread, exceeds the noise.

This is relaxed belief propagation (Guo and Wang 2006; Rangan 2010), of which approximate message
passing (Donoho, Maleki and Montanari 2009) is the limit for dense matrices. docs/recovery.md has
the steps, the measured errors, and the conditions under which joint recovery answers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri

from fedtally.domain import Domain
from fedtally.recovery.joint import JointDecoder, generator
from fedtally.recovery.linear_system import F64, I64, U64, Candidates, Ids, Landed, as_array
from fedtally.recovery.prior import FAR, Posterior, Prior
from fedtally.recovery.quantiles import quantile
from fedtally.sketch import CountSketch, Recovery

I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]

ITERATIONS = 40  # the most; twelve are usual
DAMPING = 0.8  # the share of a message that is new; messages that all move at once overshoot
SLOWER = 0.7  # factor on the damping where messages move more than before
LEAST_DAMPING = 0.3
SETTLED = 0.1  # of the messages' standard deviation: a smaller move is hardly seen in the estimates
_FIRST_STEPS, _STEPS = 40, 4  # of the prior, in the first iteration and in each further one
NUM_PHANTOMS = 20_000
_FEW_PHANTOMS = 4096  # enough within an iteration
_NORMAL_95 = 1.959964  # the .95 quantile of |x| for a standard normal x
_OWN = 0.05  # the least share of a cell's variance that is left without an item's own part
# Rounds of an item differ by more than Poisson noise where so large a sum of squares has a smaller
# probability. Of few rounds, a multiple of the standard deviation would be exceeded by chance.
_CLEARLY = 1e-4
_BLOCK = 1 << 19  # numbers of a block of messages: 4 MiB of float64
# Messages that are kept at most, at 5 bytes and more each. With more, which take minutes, joint
# recovery answers.
MOST_MESSAGES = 1 << 25
_EXACT = 0.05  # clients: with less noise joint recovery leaves nothing to gain
# Belief propagation is not trusted where messages still move by so many standard deviations, or
# where squared errors of rows, as the other rows see them, differ by such a factor from their
# prediction. This is judged where there are so many items of a kind.
_RESTLESS = 0.5
# A belief's standard deviation must not exceed this share of joint recovery's: with fewer than five
# rows, which tell less of each other's errors, and with more.
_GAIN = (0.85, 0.95)
_MANY_ROWS = 5
_MISFIT = 1.5
_JUDGED = 20
_TINY = 1e-9  # squared clients: stands for a variance of 0


class Beliefs(NamedTuple):
    """Values of items from all of their rows: counts, float64 [n].

    Attributes:
        value: the item's count plus an error that is nearly normal.
        stddev: of the error.
    """

    value: F64
    stddev: F64


class Messages:
    """Beliefs of items about their counts, one for every cell and batch, and the cells' residuals.

    Args:
        landed: the sums.
        candidates: the items.
        rng: draws phantoms.
        start: positions among the candidates, and counts by batch, float64 [n, batches], from which
            messages start; all others start from 0.
        prior: the distribution of counts; it is learned if absent.

    Attributes:
        residual: float64 like `Landed.frequencies`, in clients: sums less all messages.
        variance: of a cell's residual; float64 [rows, width, batches] under schedule "fresh", else
            [rows, width, 1], of the sum over batches.
        inflation: the factor on all variances that makes phantoms' errors as large as expected.
        prior: the distribution of counts.
        iterations: how many were done.
        settled: whether messages stopped moving.
    """

    def __init__(
        self,
        landed: Landed,
        candidates: Candidates,
        rng: np.random.Generator,
        start: tuple[I64, F64],
        prior: Prior | None = None,
    ) -> None:
        self.landed, self.candidates = landed, candidates
        self._sums = landed.frequencies * landed.clients
        self.phantoms = candidates.fresh_ids(rng, NUM_PHANTOMS)
        cells, signs = landed.places(self.phantoms)
        self._phantom_places = cells.astype(np.int32), signs
        rows, _, batches = self._sums.shape
        size = candidates.size
        shape = (size, rows, batches)
        self._block = max(1, _BLOCK // (rows * batches))
        self._cells = np.empty((size, rows, batches if landed.fresh else 1), np.int32)
        self._signs = np.empty(shape, np.int8)
        for some in self._blocks():
            ids = candidates.ids(np.arange(some.start, some.stop))
            self._cells[some], self._signs[some] = landed.places(ids)
        self._beliefs: F32 = np.zeros(shape, np.float32)
        positions, counts = start
        self._beliefs[positions] = counts[:, None, :]
        self._variances: F32 = np.zeros(self._cells.shape, np.float32)
        self.inflation = 1.0
        self._subtract()
        square = np.mean(self.residual**2, axis=(0, 1))
        self.variance = np.full(
            (*self._sums.shape[:2], self._cells.shape[2]), square if landed.fresh else square.sum()
        )
        if prior is None:
            prior = Prior(max(float(counts.sum(axis=1).max(initial=0.0)), 1.0) * 1.5)
        self.prior = prior
        self._calibrate(_FEW_PHANTOMS)
        self.beliefs = self._read(update=0.0)
        self.prior.learn(*self.beliefs, _FIRST_STEPS, self._scales)
        self._iterate()

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, self.candidates.size, self._block):
            yield slice(start, min(start + self._block, self.candidates.size))

    def _iterate(self) -> None:
        damping, before = DAMPING, np.inf
        self.settled = False
        for iteration in range(ITERATIONS):
            self.beliefs = self._read(update=damping)
            self.iterations = iteration + 1
            if self.moved > before:
                damping = max(LEAST_DAMPING, SLOWER * damping)
            before = self.moved
            self._subtract()
            self._calibrate(_FEW_PHANTOMS)
            self.prior.learn(*self.beliefs, _STEPS, self._scales)
            if self.moved < SETTLED:
                self.settled = True
                break
        self._calibrate(NUM_PHANTOMS)
        self.beliefs = self._read(update=0.0)
        self.prior.learn(*self.beliefs, _FIRST_STEPS, self._scales)

    # ---- the cells ----

    def _subtract(self) -> None:
        """Compute the residuals anew, and the variance of what the messages do not know."""
        landed = self.landed
        explained = np.zeros(self._sums.size)
        unknown = np.zeros(self._sums.shape[0] * self._sums.shape[1] * self._cells.shape[2])
        for some in self._blocks():
            places = self._places(self._cells[some])
            messages = self._signs[some] * self._beliefs[some]
            explained += np.bincount(places.ravel(), messages.ravel(), len(explained))
            owned = self._own_places(self._cells[some])
            unknown += np.bincount(owned.ravel(), self._variances[some].ravel(), len(unknown))
        self.residual = self._sums - explained.reshape(self._sums.shape)
        square = np.mean(self.residual**2, axis=(0, 1))
        self._shares = np.ones(1) if landed.fresh else square / max(square.sum(), _TINY)
        variance = unknown.reshape(*self._sums.shape[:2], -1)
        # What the messages do not explain is noise, of differential privacy for one, which lies on
        # all cells alike.
        noise = (square if landed.fresh else square.sum()) - variance.mean(axis=(0, 1))
        self.variance = variance + np.maximum(noise, 0.0) + _TINY

    def _places(self, cells: I32) -> I64:
        """Return the places of all batches among the sums."""
        batches = self._sums.shape[2]
        offsets = 0 if self.landed.fresh else np.arange(batches)
        places: I64 = cells.astype(np.int64) + offsets
        return places

    def _own_places(self, cells: I32) -> I32:
        """Return the places among the variances."""
        found = cells if self.landed.fresh else cells // np.int32(self._sums.shape[2])
        return found.astype(np.int32, copy=False)

    def _calibrate(self, number: int) -> None:
        """Make the .95 quantile of the phantoms' |z| that of a normal variable."""
        cells, signs = self._phantom_places
        joined = self._join(cells[:number], signs[:number], 0.0, 0.0)
        self.null = joined.value / joined.stddev
        grown = max(quantile(np.abs(self.null), 0.95) / _NORMAL_95, 1e-6)
        self.inflation *= grown**2
        self.null /= grown

    def _join(
        self, cells: I32, signs: I8, beliefs: F64 | F32 | float, own: F64 | F32 | float
    ) -> _Joined:
        heard = signs * self.residual.reshape(-1)[self._places(cells)] + beliefs
        variance = self.variance.reshape(-1)[self._own_places(cells)]
        variance = self.inflation * np.maximum(variance - own, _OWN * variance)
        precision = 1.0 / variance
        total = precision.sum(axis=1)
        weighted = precision * heard
        sums = weighted.sum(axis=1)
        value = (sums / total).sum(axis=-1)
        # Under "fresh" each batch has a variance of its own; the others have one for all batches.
        stddev = np.sqrt((1.0 / total).sum(axis=-1))
        return _Joined(value, stddev, heard, variance, precision, total, weighted, sums)

    def _read(self, update: float) -> Beliefs:
        """Return what all cells say of each item, and move the messages by the share `update`."""
        landed = self.landed
        weights = landed.weights
        concentration = float(weights @ weights)
        spread = 1.0 - concentration
        freedom = max(1.0 / concentration - 1.0, 1e-3)
        clearly = float(chdtri(freedom, _CLEARLY)) / freedom - 1.0
        value, stddev = np.empty(self.candidates.size), np.empty(self.candidates.size)
        least, largest, moves, unknown = np.inf, 0.0, 0.0, 0.0
        fits = np.zeros((2, 3))
        for some in self._blocks():
            beliefs, own = self._beliefs[some], self._variances[some]
            joined = self._join(self._cells[some], self._signs[some], beliefs, own)
            value[some], stddev[some] = joined.value, joined.stddev
            # What the item's other rows say of it.
            left = joined.total[:, None] - joined.precision
            each = (joined.sums[:, None] - joined.weighted) / left
            others, noise = each.sum(axis=-1), 1.0 / left
            square = noise.sum(axis=-1)
            scale = np.sqrt(square)
            least = min(least, float(scale.min()), float(joined.stddev.min()))
            largest = max(largest, float(scale.max()))
            if not update:
                continue
            mean, unsure = self.prior.posterior(others, scale)
            # How far each row is from what the others said of it.
            heard, known = joined.heard.sum(axis=-1), joined.variance.sum(axis=-1) + unsure
            z = others / scale
            kind = (z > 2.0).astype(np.intp) + (z > FAR)
            surprise = np.minimum((heard - mean) ** 2 / known, 25.0)
            fits += [np.bincount(kind.ravel(), w, 3) for w in (surprise.ravel(), np.ones(z.size))]
            sent = mean[..., None] * weights
            left_over = unsure[..., None] * weights**2
            if spread > 1e-9:
                noise = noise * self._shares
                deviation = each - weights * others[..., None]
                expected = square * (1.0 + concentration) - 2.0 * (noise @ weights)
                poisson = np.maximum(mean, 0.0)
                excess = (deviation**2).sum(axis=-1) - expected
                poisson = np.where(
                    excess > (poisson + clearly * (square + poisson)) * spread,
                    excess / spread,
                    poisson,
                )
                prior = poisson[..., None] * weights + _TINY
                kept = prior / (prior + noise)
                free = kept * noise
                part = free / free.sum(axis=-1, keepdims=True)
                deviation *= kept
                sent += deviation - part * deviation.sum(axis=-1, keepdims=True)
                left_over = left_over + free * (1.0 - part)
            if not landed.fresh:
                left_over = left_over.sum(axis=-1, keepdims=True)
            change = sent - beliefs
            moves += float((change.sum(axis=-1) ** 2).sum())
            unknown += float(unsure.sum())
            self._beliefs[some] += np.float32(update) * change.astype(np.float32)
            self._variances[some] += np.float32(update) * (left_over - own).astype(np.float32)
        self._scales = (least, largest)
        if update:
            self.moved = (moves / max(unknown, _TINY)) ** 0.5
            self.fits = fits[0] / np.maximum(fits[1], 1.0)
            self.numbers = fits[1]
        return Beliefs(value, stddev)

    def of(self, ids: U64) -> Beliefs:
        """Return what the cells say of ids that are no candidates, and so send no messages."""
        cells, signs = self.landed.places(ids)
        joined = self._join(cells.astype(np.int32), signs, 0.0, 0.0)
        return Beliefs(joined.value, joined.stddev)


class BeliefDecoder:
    """Decodes the landed sums of a campaign by belief propagation.

    Estimates are posterior means, so that both the largest error and the sum of squared errors are
    small. Joint recovery is done first, and messages start from its items. Where belief propagation
    does not fit the sums, or has nothing to gain, joint recovery answers. The same sums always give
    the same estimates.

    Args:
        sketches: landed sums, all of one spec, at most one per round.
        domain: the candidate items; only these can hold anything.
        progress: as for `JointDecoder`.

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
    >>> spec = SketchSpec(rows=5, width=50, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> sketch = CountSketch(spec, 0)
    >>> counts = np.append([900, 700], np.tile([0, 0, 0, 9], 250))
    >>> sketch.add(np.arange(1, 1003, dtype=np.uint64), counts)
    >>> domain = IntegerRange(1, 1002)
    >>> belief, joint = (make([sketch], domain) for make in (BeliefDecoder, JointDecoder))
    >>> errors = [float(np.sum((d.range(1, 1002) - counts) ** 2)) for d in (belief, joint)]
    >>> belief.fallback, errors[0] < errors[1] / 3
    ('', True)
    """

    def __init__(
        self, sketches: Sequence[CountSketch], domain: Domain, progress: Progress | None = None
    ) -> None:
        Recovery.BELIEF.check_rows(
            sketches[0].spec.rows if sketches else Recovery.BELIEF.fewest_rows
        )
        self.joint = JointDecoder(sketches, domain, progress)
        self.spec, self.num_clients = self.joint.spec, self.joint.num_clients
        self.candidates = Candidates(domain)
        self.messages = None
        self.fallback = self._not_begun()
        if self.fallback:
            return
        fit = self.joint.fit
        support = fit.support
        self.messages = Messages(
            fit.landed,
            self.candidates,
            generator(self.spec.seed, b"belief"),
            (support.positions, support.values * fit.landed.clients),
        )
        self.fallback = self._not_trusted()
        if not self.fallback:
            self._estimates = self.messages.prior.posterior(*self.messages.beliefs).mean

    def _not_begun(self) -> str:
        """Return why no messages are sent, or ""."""
        landed = self.joint.fit.landed
        number = self.candidates.size * self.spec.rows * len(landed.clients)
        if self.joint.fallback is not None:
            return "nothing stands out of the noise"
        if number > MOST_MESSAGES:
            return (
                f"{self.candidates.size:,} candidates in {self.spec.rows} rows and"
                f" {len(landed.clients)} batches need {number:,} messages, above the limit of"
                f" {MOST_MESSAGES:,}"
            )
        if self.joint.fit.scale * self.num_clients < _EXACT:
            return "recovery is exact, or nearly so"
        return ""

    def _not_trusted(self) -> str:
        """Return why the messages do not fit the sums, or ""."""
        messages, fit = self.messages, self.joint.fit
        assert messages is not None
        if messages.moved > _RESTLESS:
            return "messages do not settle"
        judged = messages.numbers >= _JUDGED * self.spec.rows
        if np.any(np.abs(np.log(np.maximum(messages.fits[judged], _TINY))) > np.log(_MISFIT)):
            return "errors differ from their prediction"
        usual = fit.scale * self.num_clients / float(np.sqrt(fit.share.mean()))
        gain = _GAIN[self.spec.rows >= _MANY_ROWS]
        if float(np.median(messages.beliefs.stddev)) > gain * usual:
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
        places = self.candidates.positions(range(first_id, first_id + count))
        if len(places) and places[0] >= 0 and places[-1] - places[0] == count - 1:
            return self._estimates[places[0] : places[-1] + 1].copy()
        return self._posterior(range(first_id, first_id + count)).mean

    def beliefs(self, ids: Ids) -> Beliefs:
        """Return values of any ids and the standard deviations of their errors, in clients."""
        assert self.messages is not None
        places = self.candidates.positions(ids)
        known = places >= 0
        found = Beliefs(np.empty(len(places)), np.empty(len(places)))
        for mine, others, whole in zip(
            found, self._foreign(ids, ~known), self.messages.beliefs, strict=True
        ):
            mine[known] = whole[places[known]]
            mine[~known] = others
        return found

    def _foreign(self, ids: Ids, which: npt.NDArray[np.bool_]) -> Beliefs:
        assert self.messages is not None
        return self.messages.of(as_array(ids)[which])

    def _posterior(self, ids: Ids) -> Posterior:
        assert self.messages is not None
        return self.messages.prior.posterior(*self.beliefs(ids))


class _Joined(NamedTuple):
    value: F64
    stddev: F64
    heard: F64
    variance: F64
    precision: F64
    total: F64
    weighted: F64
    sums: F64
