"""Joint recovery: undo collisions after the fact, by fitting all heavy items together, round by round.

The paper's decoders treat whatever shares a cell with an item as noise. But most of that noise is other heavy items,
which the same sums reveal. So: decode what is left over (the residual), take the items that stand out into a *support*,
fit the support's values in every round to all cells at once, and repeat with a falling threshold. What remains in the
residual is the light items' noise alone.

This is post-processing of released sums: it costs neither bytes nor privacy. It makes rare items recoverable that the
paper's decoders hide in noise; secure summation without differential privacy does not protect them.

Related: matching pursuit with refitting (CoSaMP), simultaneous sparse recovery, Counter Braids. Ours is the fit over
sign-fresh rounds with a value per round, each shrunk towards the item's mean over rounds as far as the rounds' own
noise explains the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.median import check_landed
from fedtally.sketch import CountSketch, ScheduleKind, SketchSpec
from fedtally.sketch.hashing import SIGNS_PER_GROUP, tabulation_tables

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

THRESHOLDS = (64.0, 32.0, 16.0, 12.0, 8.0, 6.0, 5.0, 4.5, 4.0, 4.0)  # in robust standard deviations of the estimates
SWEEPS = 6
BLOCK = 1 << 18
SAMPLE = 1 << 18  # candidates from which the noise level is read
_TO_SIGMA = 1.4826  # median of |x| -> standard deviation of a normal x


@dataclass
class _Support:
    """Fitted items: positions in the domain, ids, values [n, batches] as frequencies within each batch of rounds."""

    positions: I64
    ids: U64
    values: F64


class JointDecoder:
    """Decode the landed sums of a campaign jointly.

    Rounds of one batch (all rounds, for shared) count as one. Rounds may be missing and unequal: batch m with n_m of
    the N clients weighs n_m / N. Deterministic.

    Args:
        sketches: landed sums, all of one spec, at most one per round.
        domain: the candidate items; only these can be heavy.

    Raises:
        InvalidInputError: no sketch, two of one round, or no client in any.
        IncompatibleError: the specs differ.

    >>> from fedtally.domain import IntegerRange
    >>> spec = SketchSpec(rows=3, width=64, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> sketch = CountSketch(spec, 0)
    >>> sketch.add(np.arange(1, 9, dtype=np.uint64), np.array([900, 700, 500, 400, 300, 200, 100, 50]))
    >>> decoder = JointDecoder([sketch], IntegerRange(1, 1000))
    >>> np.rint(decoder.range(1, 8)).astype(int).tolist()
    [900, 700, 500, 400, 300, 200, 100, 50]
    """

    def __init__(self, sketches: Sequence[CountSketch], domain: Domain) -> None:
        self.spec = check_landed(sketches)
        self._domain = domain
        self._all_ids = None if domain.first_id is not None else domain.ids(0, domain.size)
        self._batches = _Batches(self.spec, sketches)
        self.num_clients = int(self._batches.clients.sum())
        self._residual = self._batches.frequencies.copy()
        self._support = _Support(
            np.empty(0, np.int64), np.empty(0, np.uint64), np.empty((0, len(self._batches.clients)))
        )
        for threshold in THRESHOLDS:
            self._step(threshold)
        self._remainder = self._row_decoders()

    @property
    def support_size(self) -> int:
        """How many items were fitted."""
        return len(self._support.positions)

    def at(self, ids: U64) -> F64:
        """Return the estimated counts of chosen ids, candidates or not: float64 [n]."""
        order = np.argsort(self._support.ids)
        known = self._support.ids[order]
        found = np.zeros(len(ids))
        for decoder in self._remainder:
            found += decoder.at(ids)
        found /= self.spec.rows
        if len(known):
            where = np.minimum(np.searchsorted(known, ids), len(known) - 1)
            fitted = (self._support.values @ self._batches.weights)[order]
            found += np.where(known[where] == ids, fitted[where], 0.0)
        return found * self.num_clients

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimated counts of the ids first_id, first_id + 1, ... (mod 2^64): float64 [count]."""
        found = np.zeros(count)
        for decoder in self._remainder:
            found += decoder.range(first_id, count)
        found /= self.spec.rows
        offsets = self._support.ids - np.uint64(first_id % 2**64)
        inside = offsets < np.uint64(count)
        found[offsets[inside].astype(np.int64)] += (self._support.values @ self._batches.weights)[inside]
        return found * self.num_clients

    def _step(self, threshold: float) -> None:
        """Choose the support anew at a threshold, and fit it."""
        decoders = self._median_decoders()
        sigma = _TO_SIGMA * float(np.median(np.abs(self._off_support_sample(decoders))))
        # Half a client: in the exact regime nothing is left, and every item would stand out of a noise of zero.
        positions, totals = self._standing_out(decoders, max(threshold * sigma, 0.5 / self.num_clients))
        order = np.lexsort((positions, -totals))[: self._most()]
        self._change_support(positions[order])
        cells, signs = self._batches.cells(self._support.ids)
        kernels.refit(cells, signs, self._batches.clients, self._residual, self._support.values, SWEEPS)

    def _most(self) -> int:
        """How many items a fit may hold without getting ill-conditioned, as a share of the cells of one batch."""
        cells = self.spec.rows * self.spec.width
        return max(1, int((0.2 if cells <= 1000 else 0.3) * cells))

    def _change_support(self, positions: I64) -> None:
        """Keep the values of items that stay, give those of others back to the residual, start newcomers at 0."""
        old = self._support
        order = np.argsort(old.positions)
        where = np.minimum(np.searchsorted(old.positions, positions, sorter=order), max(0, len(order) - 1))
        values = np.zeros((len(positions), old.values.shape[1]))
        if len(order):
            at = order[where]
            stays = old.positions[at] == positions
            values[stays] = old.values[at[stays]]
        leaving = ~np.isin(old.positions, positions)
        if leaving.any():
            cells, signs = self._batches.cells(old.ids[leaving])
            _add(self._residual, cells, signs, old.values[leaving])
        self._support = _Support(positions, self._ids(positions), values)

    def _standing_out(self, decoders: list[kernels.Decoder], floor: float) -> tuple[I64, F64]:
        """Return the candidates whose fitted value plus residual estimate exceeds `floor`, and these totals."""
        fitted = self._support.values @ self._batches.weights
        found: list[tuple[I64, F64]] = []
        for start in range(0, self._domain.size, BLOCK):
            stop = min(start + BLOCK, self._domain.size)
            totals = self._decoded(decoders, start, stop)
            mine = (self._support.positions >= start) & (self._support.positions < stop)
            totals[self._support.positions[mine] - start] += fitted[mine]
            hits = np.flatnonzero(totals > floor)
            found.append((hits + start, totals[hits]))
        return np.concatenate([p for p, _ in found]), np.concatenate([t for _, t in found])

    def _off_support_sample(self, decoders: list[kernels.Decoder]) -> F64:
        size = self._domain.size
        step = max(1, size // SAMPLE)
        positions = np.arange(0, size, step, dtype=np.int64)
        off = positions[~np.isin(positions, self._support.positions)]
        chosen = off if len(off) else positions
        estimates = np.zeros(len(chosen))
        for decoder in decoders:
            estimates += decoder.at(self._ids(chosen))
        return estimates

    def _decoded(self, decoders: list[kernels.Decoder], start: int, stop: int) -> F64:
        """Return the summed estimates of the candidates at positions start .. stop-1."""
        totals = np.zeros(stop - start)
        for decoder in decoders:
            if self._all_ids is not None:
                totals += decoder.at(self._all_ids[start:stop])
            else:
                totals += decoder.range(((self._domain.first_id or 0) + start) % 2**64, stop - start)
        return totals

    def _ids(self, positions: I64) -> U64:
        if self._all_ids is not None:
            return self._all_ids[positions]
        return positions.astype(np.uint64) + np.uint64(self._domain.first_id or 0)

    def _median_decoders(self) -> list[kernels.Decoder]:
        """Return the paper's decoders of the residual; their estimates add up."""
        sums = self._weighted()
        if self._batches.fresh:
            return [kernels.Decoder(one[None], tables) for one, tables in zip(sums, self._batches.tables, strict=True)]
        return [kernels.Decoder(sums, self._batches.tables[0])]

    def _row_decoders(self) -> list[kernels.Decoder]:
        """Return decoders of every row by itself; their estimates add up to rows times the mean over all cells."""
        sums = self._weighted()
        rows = range(self.spec.rows)
        if self._batches.fresh:
            pairs = zip(sums, self._batches.tables, strict=True)
            return [kernels.Decoder(one[None, [r]], tables[:, [r]]) for one, tables in pairs for r in rows]
        return [kernels.Decoder(sums[:, [r]], self._batches.tables[0][:, [r]]) for r in rows]

    def _weighted(self) -> F64:
        """Return the residual as [batches, rows, width], every batch by its share of the clients."""
        return np.ascontiguousarray(np.moveaxis(self._residual * self._batches.weights, 2, 0))


class _Batches:
    """The landed sums, by batches of rounds with equal hashes: what is fitted, and where its items lie.

    Attributes:
        clients: float64 [batches], clients of each; a batch that did not land has none.
        weights: float64 [batches], their shares of all clients.
        frequencies: float64 [rows, width, batches], sums divided by clients: the batches of one cell lie together.
        tables: hash tables uint32 [groups, rows, 8, 256]: one for each batch for fresh, otherwise one for all.
    """

    def __init__(self, spec: SketchSpec, sketches: Sequence[CountSketch]) -> None:
        batch_of = {s.round: spec.schedule.batch_of(s.round, spec.num_rounds) for s in sketches}
        self.fresh = spec.schedule.kind is ScheduleKind.FRESH
        # Elsewhere the place of a batch says which sign bit is its: batches that did not land keep theirs.
        kept = sorted(batch_of.values()) if self.fresh else range(spec.num_batches)
        place = {batch: index for index, batch in enumerate(kept)}
        self.clients = np.zeros(len(place))
        self.frequencies = np.zeros((spec.rows, spec.width, len(place)))
        for sketch in sketches:
            self.frequencies[..., place[batch_of[sketch.round]]] += sketch.counters
            self.clients[place[batch_of[sketch.round]]] += sketch.num_clients
        if not self.clients.any():
            raise InvalidInputError("no client took part in any landed round: there is nothing to decode")
        self.weights = self.clients / self.clients.sum()
        self.frequencies /= np.maximum(self.clients, 1.0)
        if self.fresh:
            self.tables = [spec.round_hash(batch).location[None] for batch in kept]
        else:
            groups = range(-(-spec.num_batches // SIGNS_PER_GROUP))
            self.tables = [np.stack([tabulation_tables(spec.seed, spec.rows, group) for group in groups])]

    def cells(self, ids: U64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]:
        """Return where items lie: cells int64 [n, rows, batches or 1] and signs int8 [n, rows, batches].

        A cell is an index into `frequencies` seen as one dimension, of its first batch where the batches share
        locations.
        """
        rows, width, batches = self.frequencies.shape
        base = np.arange(rows)[:, None] * width
        signs = np.empty((rows, len(ids), batches), np.int8)
        cells = np.empty((rows, len(ids), batches if self.fresh else 1), np.int64)
        if not self.fresh:
            for group, tables in enumerate(self.tables[0]):
                words = kernels.hash_words(tables, ids)
                if group == 0:
                    cells[..., 0] = (base + kernels.locations(words, width)) * batches
                for b in range(SIGNS_PER_GROUP * group, min(SIGNS_PER_GROUP * (group + 1), batches)):
                    signs[..., b] = kernels.signs(words, b % SIGNS_PER_GROUP)
        else:
            for b, tables in enumerate(self.tables):
                words = kernels.hash_words(tables[0], ids)
                cells[..., b] = (base + kernels.locations(words, width)) * batches + b
                signs[..., b] = kernels.signs(words, 0)
        return np.ascontiguousarray(cells.swapaxes(0, 1)), np.ascontiguousarray(signs.swapaxes(0, 1))


def _add(residual: F64, cells: npt.NDArray[np.int64], signs: npt.NDArray[np.int8], values: F64) -> None:
    """Add items' signed values to their cells."""
    offsets = np.arange(signs.shape[2]) if cells.shape[2] == 1 else 0
    np.add.at(residual.reshape(-1), cells + offsets, signs * values[:, None, :])
