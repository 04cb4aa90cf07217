"""The landed sums of a campaign as one linear system.

It says which cells an item touches, with which signs, in which round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.quantiles import median
from fedtally.sketch import CountSketch, ScheduleKind, SketchSpec, check_compatible
from fedtally.sketch.hashing import SIGNS_PER_GROUP, tables_of_batches

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I8 = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Ids = U64 | range  # a range counts mod 2^64
# [256, 1]: the signs of the lowest 8 bits of a word, all in one number. So one look-up gives them.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_SIGNS = (1 - 2 * _BITS.view(np.int8)).view(np.uint64)
BLOCK = 1 << 18  # candidates that are decoded at once, to bound the memory: 2 MiB a float64 array


class Decoder(Protocol):
    """Gives every id a number: a decoder of `kernels`, or a sum of several."""

    def at(self, ids: U64) -> F64:
        """Return the numbers of chosen ids: float64 [n]."""

    def range(self, first_id: int, count: int) -> F64:
        """Return the numbers of the ids first_id, first_id + 1, ... (mod 2^64): float64 [count]."""


def ask(decoder: Decoder, ids: Ids) -> F64:
    """Return the numbers that a decoder gives to ids: float64 [n]."""
    return decoder.range(ids.start % 2**64, len(ids)) if isinstance(ids, range) else decoder.at(ids)


def ask_above(decoder: Decoder, ids: Ids, floor: float) -> tuple[I64, F64]:
    """Return which ids get a number above `floor`, as indexes into `ids`, and these numbers."""
    if isinstance(ids, range) and isinstance(decoder, kernels.Decoder):
        found = decoder.above(ids.start % 2**64, len(ids), floor)
        if found is not None:
            return found
    numbers = ask(decoder, ids)
    places = np.flatnonzero(numbers > floor)
    return places, numbers[places]


def ids_between(domain: Domain, start: int, stop: int) -> Ids:
    """Return the ids of the candidates at the positions start .. stop - 1.

    In a domain of consecutive integers the ids are a Python range: no array is made of them.

    >>> from fedtally.domain import IntegerRange
    >>> ids_between(IntegerRange(5, 9), 1, 3)
    range(6, 8)
    """
    first = domain.first_id
    return domain.ids(start, stop) if first is None else range(first + start, first + stop)


def as_array(ids: Ids) -> U64:
    """Return ids as uint64 [n]; a range counts mod 2^64.

    >>> as_array(range(2**64 - 1, 2**64 + 1)).tolist()
    [18446744073709551615, 0]
    """
    if not isinstance(ids, range):
        return ids
    return np.arange(len(ids), dtype=np.uint64) + np.uint64(ids.start % 2**64)


def check_landed(sketches: Sequence[CountSketch]) -> SketchSpec:
    """Return the spec of landed sums that belong together: all of one spec, at most one per round.

    Raises:
        InvalidInputError: no sketch, or two of one round.
        IncompatibleError: the specs differ.

    >>> check_landed([])
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: no round has landed: there is nothing to decode
    """
    if not sketches:
        raise InvalidInputError("no round has landed: there is nothing to decode")
    rounds = set()
    for sketch in sketches:
        check_compatible(sketches[0].spec, sketch.spec)
        if sketch.round in rounds:
            raise InvalidInputError(
                f"each round may be given once, got round {sketch.round} several times; merge its"
                " sketches first"
            )
        rounds.add(sketch.round)
    return sketches[0].spec


def landed_batches(spec: SketchSpec, sketches: Sequence[CountSketch]) -> list[int]:
    """Return the batches that have a landed sum, rising.

    >>> spec = SketchSpec(rows=1, width=2, schedule="hybrid", num_rounds=2**20, seed=bytes(32))
    >>> landed_batches(spec, [CountSketch(spec, 70_000), CountSketch(spec, 3)])
    [3, 70000]
    """
    return sorted({spec.schedule.batch_of(s.round, spec.num_rounds) for s in sketches})


class Summed:
    """A decoder that adds the numbers of several decoders."""

    def __init__(self, parts: Sequence[Decoder]) -> None:
        self._parts = list(parts)

    def at(self, ids: U64) -> F64:
        """Return the sums at chosen ids: float64 [n]."""
        total = self._parts[0].at(ids)
        for part in self._parts[1:]:
            total += part.at(ids)
        return total

    def range(self, first_id: int, count: int) -> F64:
        """Return the sums at the ids first_id, first_id + 1, ... (mod 2^64): float64 [count]."""
        total = self._parts[0].range(first_id, count)
        for part in self._parts[1:]:
            total += part.range(first_id, count)
        return total


class Landed:
    """The landed sums, by batches of rounds with equal hashes.

    Batches without a landed sum are left out, so they cost no memory.

    Attributes:
        spec: the spec of all sketches.
        fresh: whether every batch has locations of its own.
        batches: the batches that landed, rising.
        clients: float64 [batches], the clients of each batch.
        weights: float64 [batches], each batch's share of all clients.
        num_clients: the number of all clients.
        frequencies: float64 [rows, width, batches], sums divided by clients. The batches of one
            cell lie together in memory.
    """

    def __init__(self, spec: SketchSpec, sketches: Sequence[CountSketch]) -> None:
        self.spec = spec
        self.fresh = spec.schedule.kind is ScheduleKind.FRESH
        self.batches = landed_batches(spec, sketches)
        place = {batch: index for index, batch in enumerate(self.batches)}
        self.clients = np.zeros(len(place))
        self.frequencies = np.zeros((spec.rows, spec.width, len(place)))
        for sketch in sketches:
            own = place[spec.schedule.batch_of(sketch.round, spec.num_rounds)]
            self.frequencies[..., own] += sketch.counters
            self.clients[own] += sketch.num_clients
        if not self.clients.any():
            raise InvalidInputError(
                "no client took part in any landed round: there is nothing to decode"
            )
        self.num_clients = int(self.clients.sum())
        self.weights = self.clients / self.clients.sum()
        # Batches without clients are all 0: dividing them by 1 leaves them so.
        self.frequencies /= np.maximum(self.clients, 1.0)
        if self.fresh:
            self._tables = [spec.round_hash(batch).location[None] for batch in self.batches]
        else:
            self._tables = [tables_of_batches(spec.seed, spec.rows, self.batches)]
        self._halves: dict[tuple[int, int], kernels.Halves] = {}

    @property
    def several(self) -> bool:
        """Whether the clients are spread over several batches, not nearly all in one."""
        return self.effective > 1.5

    @property
    def effective(self) -> float:
        """The effective number of batches: 1 over the sum of the squared weights."""
        return 1.0 / float(self.weights @ self.weights)

    @property
    def half_a_client(self) -> float:
        """Half a client, as a frequency."""
        return 0.5 / self.num_clients

    @property
    def cells(self) -> int:
        """The number of counters of one sketch."""
        return self.spec.rows * self.spec.width

    def places(self, ids: U64) -> tuple[I64, I8]:
        """Return where items lie: their cells and signs.

        A cell is an index into `frequencies` seen as one dimension. Where the batches share
        locations, it is the index of the first batch.

        Returns:
            Cells int64 [n, rows, batches or 1] and signs int8 [n, rows, batches].
        """
        rows, width, batches = self.frequencies.shape
        base = np.arange(rows) * width
        signs = np.empty((len(ids), rows, batches), np.int8)
        cells = np.empty((len(ids), rows, batches if self.fresh else 1), np.int64)
        if not self.fresh:
            for group, tables in enumerate(self._tables[0]):
                words = np.ascontiguousarray(kernels.hash_words(tables, ids).T)
                if group == 0:
                    cells[..., 0] = (base + kernels.locations(words, width)) * batches
                first = SIGNS_PER_GROUP * group
                own = signs[..., first : first + SIGNS_PER_GROUP]
                own[:] = _SIGNS[words.astype(np.uint8)].view(np.int8)[..., : own.shape[2]]
        else:
            for b, tables in enumerate(self._tables):
                words = np.ascontiguousarray(kernels.hash_words(tables[0], ids).T)
                cells[..., b] = (base + kernels.locations(words, width)) * batches + b
                signs[..., b] = kernels.signs(words, 0)
        return cells, signs

    def words(self, ids: U64) -> U32:
        """Return the hash words of items: uint32 [groups, rows, n].

        Under schedule "fresh" each batch has a group, and bit 0 of a word is the sign. Under the
        other schedules the words of group 0 give the cells, and the lowest 8 bits of a word of
        group g give the signs of the batches 8 g .. 8 g + 7.
        """
        groups = [one for tables in self._tables for one in tables]
        return np.stack([kernels.hash_words(tables, ids) for tables in groups])

    def add(self, frequencies: F64, cells: I64, signs: I8, values: F64) -> None:
        """Add the signed values of items, float64 [n, batches], to their `places`, in place."""
        offsets = np.arange(signs.shape[2]) if cells.shape[2] == 1 else 0
        np.add.at(frequencies.reshape(-1), cells + offsets, signs * values[:, None, :])

    def with_items(self, ids: U64, values: F64) -> Self:
        """Return these sums with further items in them.

        Args:
            ids: uint64 [n].
            values: float64 [n, batches], counts divided by the clients of the batch.
        """
        # A copy that shares the tables: making them anew would take longer than the rest.
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.frequencies = self.frequencies.copy()
        other.add(other.frequencies, *self.places(ids), values)
        return other

    def weighted(self, chosen: Bools) -> Self:
        """Return these sums, weighted as if only the chosen batches had clients.

        Args:
            chosen: bool [batches], at least one with clients.
        """
        other = copy.copy(self)
        other.num_clients = int(self.clients[chosen].sum())
        other.weights = self.clients * chosen / other.num_clients
        return other

    def only(self, chosen: Bools) -> Self:
        """Return the sums of the `chosen` batches: bool [batches], at least one with clients."""
        other = copy.copy(self)
        other.batches = [one for one, taken in zip(self.batches, chosen, strict=True) if taken]
        other.clients = self.clients[chosen]
        other.frequencies = self.frequencies[..., chosen]
        other.num_clients = int(other.clients.sum())
        other.weights = other.clients / other.num_clients
        other._halves = {}
        if self.fresh:
            other._tables = [self._tables[place] for place in np.flatnonzero(chosen)]
        else:
            spec = self.spec
            other._tables = [tables_of_batches(spec.seed, spec.rows, other.batches)]
        return other

    def decoder(self, residual: F64, fold: Literal["median", "mean"], expected: int) -> Decoder:
        """Return a decoder that estimates frequencies from a residual.

        The decoder takes the paper's medians or the mean over all rows. It works in single
        precision: the rounding error, 1e-7 of the residual in an item's cells, is small beside this
        residual.

        Args:
            residual: residual of the sums, float64 [rows, width, batches].
            fold: "median" or "mean".
            expected: about how many ids will be asked for.
        """
        sums = np.empty(residual.shape, np.float32)
        np.multiply(residual, self.weights, out=sums, casting="same_kind")
        sums = np.moveaxis(sums, 2, 0)
        if self.fresh:
            pairs = zip(sums, self._tables, strict=True)
            return Summed(
                [kernels.Decoder(one[None], tables, expected, fold) for one, tables in pairs]
            )
        return kernels.Decoder(sums, self._tables[0], expected, fold)

    def halves(self, first_id: int, count: int) -> kernels.Halves:
        """Return the prepared search by cells among the ids first_id, first_id + 1, ...

        It is prepared at the first call, and kept. Copies of these sums with the same batches share
        it.
        """
        asked = first_id, count
        if asked not in self._halves:
            tables = self._tables[0][0]  # of the first eight batches
            width, batches = self.spec.width, len(self.weights)
            self._halves[asked] = kernels.Halves(tables, width, batches, first_id, count)
        return self._halves[asked]

    def largest_median(self, residual: F64) -> float:
        """Return a value that no id's median over rows exceeds.

        It is the median over rows of the largest value that a cell of the row can give.

        Args:
            residual: residual of the sums, float64 [rows, width, batches].
        """
        sizes = np.abs(residual)
        # The batches of a cell lie together, unless each batch has locations of its own.
        largest = (
            sizes.max(axis=1) @ self.weights if self.fresh else (sizes @ self.weights).max(axis=1)
        )
        return median(largest)

    def cell_mean(self, values: F64) -> Decoder:
        """Return a decoder that gives the mean of `values` over an item's cells.

        Batches are weighted by their clients.

        Args:
            values: float64 [rows, width], or [rows, width, batches] under schedule "fresh".
        """
        if self.fresh:
            weighted = np.ascontiguousarray(np.moveaxis(values * self.weights, 2, 0), np.float32)
            pairs = zip(weighted, self._tables, strict=True)
            return Summed(
                [
                    kernels.Decoder(one[None], tables, fold="mean", signed=False)
                    for one, tables in pairs
                ]
            )
        return kernels.Decoder(
            values[None].astype(np.float32), self._tables[0][:1], fold="mean", signed=False
        )

    def joiners(self, sums: F64, precision: F64, expected: int) -> list[tuple[Decoder, Decoder]]:
        """Return pairs of decoders that give precision-weighted means of sums.

        The first decoder of a pair gives the mean over rows of precision * sum, the second gives
        the mean over rows of the precision. Under schedule "fresh" each batch has a pair; else
        there is one pair.

        Args:
            sums: sums of cells, float64 [rows, width, batches].
            precision: float64 [rows, width, 1], or [rows, width, batches] under schedule "fresh".
            expected: about how many ids will be asked for.
        """
        weighted = np.ascontiguousarray(np.moveaxis(sums * precision, 2, 0), np.float32)
        weights = np.ascontiguousarray(np.moveaxis(precision, 2, 0), np.float32)
        if not self.fresh:
            weighted = weighted[None]
        return [
            (
                kernels.Decoder(one if one.ndim == 3 else one[None], tables, expected, "mean"),
                kernels.Decoder(weight[None], tables[:1], expected, "mean", signed=False),
            )
            for one, weight, tables in zip(weighted, weights, self._tables, strict=True)
        ]


class Candidates:
    """The ids that may be heavy, each with a position.

    First come the *listed* ids: the ids of a domain, or some of them. *Extra* ids may follow.

    Args:
        domain: the candidate items.
    """

    def __init__(self, domain: Domain) -> None:
        self._first, self._listed = domain.first_id or 0, domain.size
        self._ids = None if domain.first_id is not None else domain.ids(0, domain.size)
        self._extra = np.empty(0, np.uint64)
        self._order: I64 | None = None  # sorts the listed ids; made when it is needed
        self._test: Callable[[U64], Bools] | None = None

    @property
    def listed_range(self) -> tuple[int, int]:
        """The first id and the number of the listed ids; the number is 0 if they are no range."""
        return self._first, self._listed if self._ids is None else 0

    @property
    def size(self) -> int:
        """The number of candidates."""
        return self._listed + len(self._extra)

    def with_extra(self, extra: U64, only: U64 | None = None) -> Candidates:
        """Return the listed ids, or `only` in place of them, followed by the ids `extra`.

        The extra ids of these candidates are left out.
        """
        other = copy.copy(self)
        other._extra = extra
        if only is not None:
            other._ids, other._listed, other._order = only, len(only), None
        return other

    def passing(self, test: Callable[[U64], Bools]) -> Candidates:
        """Return these candidates, marked such that only those that pass a test may be heavy.

        The other candidates keep their positions, and `may_be_heavy` leaves them out. Extra ids
        need no test.
        """
        other = copy.copy(self)
        other._test = test
        return other

    def may_be_heavy(self, positions: I64) -> I64:
        """Return the given positions without those of candidates that may not be heavy."""
        if self._test is None or not len(positions):
            return positions
        return positions[(positions >= self._listed) | self._test(self.ids(positions))]

    def ids(self, positions: I64) -> U64:
        """Return the ids at positions: uint64 [n]."""
        if self._ids is None:
            found = positions.astype(np.uint64) + np.uint64(self._first)
        elif not len(self._extra):
            return self._ids[positions]
        elif self._listed:
            found = self._ids[np.minimum(positions, self._listed - 1)]
        else:
            found = np.empty(len(positions), np.uint64)
        if len(self._extra):
            further = np.flatnonzero(positions >= self._listed)
            found[further] = self._extra[positions[further] - self._listed]
        return found

    def positions(self, ids: Ids) -> I64:
        """Return the positions of ids among the listed ids: int64 [n], -1 for all other ids.

        >>> from fedtally.domain import IntegerRange
        >>> Candidates(IntegerRange(5, 7)).positions(range(4, 9)).tolist()
        [-1, 0, 1, 2, -1]
        """
        asked = as_array(ids)
        if self._ids is None:
            # The difference wraps mod 2^64, so that one comparison is enough.
            offsets = asked - np.uint64(self._first)
            return np.where(
                offsets < np.uint64(self._listed), offsets, np.uint64(2**64 - 1)
            ).astype(np.int64)
        if self._order is None:
            self._order = np.argsort(self._ids)
        order = self._order
        place = order[np.minimum(np.searchsorted(self._ids, asked, sorter=order), self._listed - 1)]
        return np.where(self._ids[place] == asked, place, -1)

    def above(self, positions: I64, decoder: Decoder, floor: float) -> I64:
        """Return the positions of candidates whose values are above a floor.

        Candidates that may not be heavy are left out.

        Args:
            positions: int64 [n], the listed ids to look at; all extra ids are looked at, too.
            decoder: gives the values.
            floor: a value.
        """
        if len(self._extra):
            positions = np.append(positions, np.arange(self._listed, self.size))
        return self.may_be_heavy(positions[decoder.at(self.ids(positions)) > floor])

    def blocks(self) -> Iterator[tuple[int, Ids]]:
        """Yield (first position, ids from there on) in blocks that cover all candidates."""
        for start in range(0, self._listed, BLOCK):
            stop = min(start + BLOCK, self._listed)
            yield (
                start,
                (
                    range(self._first + start, self._first + stop)
                    if self._ids is None
                    else self._ids[start:stop]
                ),
            )
        if len(self._extra):
            yield self._listed, self._extra

    def decoded(self, decoder: Decoder) -> Iterator[tuple[int, F64]]:
        """Yield (first position, numbers of the candidates from there on), block by block."""
        for start, ids in self.blocks():
            yield start, ask(decoder, ids)

    def decoded_above(self, decoder: Decoder, floor: float) -> Iterator[tuple[int, I64, F64]]:
        """Yield the candidates whose numbers are above a floor, block by block.

        Each block gives the number of candidates that were looked at, the positions of those above
        the floor, and their numbers.
        """
        for start, ids in self.blocks():
            places, numbers = ask_above(decoder, ids, floor)
            yield len(ids), places + start, numbers

    def fresh_ids(self, rng: np.random.Generator, count: int) -> U64:
        """Return random ids that are no candidates, all different: uint64 [count]."""
        found = np.empty(0, np.uint64)
        # `np.isin` would hash all taken ids, which takes a minute for the contenders of 2^26
        # candidates. The contenders are rising, so they need no sort.
        taken = [
            ids if (ids[1:] > ids[:-1]).all() else np.sort(ids)
            for ids in (self._extra, self._ids)
            if ids is not None and len(ids)
        ]
        while len(found) < count:
            drawn = rng.integers(0, 2**64, count, dtype=np.uint64)
            if self._ids is None:
                # The difference wraps mod 2^64, so that one comparison is enough.
                drawn = drawn[drawn - np.uint64(self._first) >= np.uint64(self._listed)]
            for ids in taken:
                place = np.minimum(np.searchsorted(ids, drawn), len(ids) - 1)
                drawn = drawn[ids[place] != drawn]
            # Sorted and without repetitions; `np.unique` takes five times as long.
            found = np.sort(np.concatenate([found, drawn]))
            found = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        # The first `count` of the sorted ids would be the smallest ones: shuffle before the cut.
        return rng.permutation(found)[:count]
