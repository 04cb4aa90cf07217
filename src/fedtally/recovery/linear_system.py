"""The landed sums of a campaign, the sums of rounds that took place, as one linear system.

A batch is a group of rounds with equal hashes. A cell is a counter. Each item has a cell and a sign
in each row and batch, and adds sign * frequency to the cell.
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
Ids = U64 | range  # numbers in a range are taken mod 2^64
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
# [256, 1]: for each byte, the 8 signs that its bits give, packed into one number. So one look-up
# gives 8 signs.
_SIGNS = (1 - 2 * _BITS.view(np.int8)).view(np.uint64)
BLOCK = 1 << 18  # candidates that are decoded at once, to bound the memory: 2 MiB of float64


class Decoder(Protocol):
    """Computes a number for each id, such as an estimate: a `kernels.Decoder`, or a sum of them."""

    def at(self, ids: U64) -> F64:
        """Return the number of each id: float64 [n]."""

    def range(self, first_id: int, count: int) -> F64:
        """Return the numbers of the ids first_id, first_id + 1, ... (mod 2^64): float64 [count]."""


def ask(decoder: Decoder, ids: Ids) -> F64:
    """Return the number that a decoder computes for each id: float64 [n]."""
    return decoder.range(ids.start % 2**64, len(ids)) if isinstance(ids, range) else decoder.at(ids)


def ask_above(decoder: Decoder, ids: Ids, floor: float) -> tuple[I64, F64]:
    """Return which ids have a number above `floor`, as indices into `ids`, and these numbers.

    Both have one entry for each such id, in the order of `ids`.
    """
    if isinstance(ids, range) and isinstance(decoder, kernels.Decoder):
        found = decoder.above(ids.start % 2**64, len(ids), floor)
        if found is not None:
            return found
    numbers = ask(decoder, ids)
    places = np.flatnonzero(numbers > floor)
    return places, numbers[places]


def ids_between(domain: Domain, start: int, stop: int) -> Ids:
    """Return the ids of the candidates at the positions start .. stop - 1.

    If the domain's ids are consecutive, they are returned as a Python range, which needs no memory.

    >>> from fedtally.domain import IntegerRange
    >>> ids_between(IntegerRange(5, 9), 1, 3)
    range(6, 8)
    """
    first = domain.first_id
    return domain.ids(start, stop) if first is None else range(first + start, first + stop)


def as_array(ids: Ids) -> U64:
    """Return ids as an array, uint64 [n]; numbers in a range are taken mod 2^64.

    >>> as_array(range(2**64 - 1, 2**64 + 1)).tolist()
    [18446744073709551615, 0]
    """
    if not isinstance(ids, range):
        return ids
    return np.arange(len(ids), dtype=np.uint64) + np.uint64(ids.start % 2**64)


def check_landed(sketches: Sequence[CountSketch]) -> SketchSpec:
    """Check that sums can be decoded together, and return their common spec.

    They must have one spec, and there must be at most one for each round.

    Raises:
        InvalidInputError: there is no sketch, or two sketches are of one round.
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
    """Return the numbers of the batches that have at least one landed sum, ascending.

    >>> spec = SketchSpec(rows=1, width=2, schedule="hybrid", num_rounds=2**20, seed=bytes(32))
    >>> landed_batches(spec, [CountSketch(spec, 70_000), CountSketch(spec, 3)])
    [3, 70000]
    """
    return sorted({spec.schedule.batch_of(s.round, spec.num_rounds) for s in sketches})


class Summed:
    """A decoder whose number for an id is the sum of the numbers of several decoders.

    Args:
        parts: the decoders, at least one.
    """

    def __init__(self, parts: Sequence[Decoder]) -> None:
        self._parts = list(parts)

    def at(self, ids: U64) -> F64:
        """Return the sum for each id: float64 [n]."""
        total = self._parts[0].at(ids)
        for part in self._parts[1:]:
            total += part.at(ids)
        return total

    def range(self, first_id: int, count: int) -> F64:
        """Return the sums for the ids first_id, first_id + 1, ... (mod 2^64): float64 [count]."""
        total = self._parts[0].range(first_id, count)
        for part in self._parts[1:]:
            total += part.range(first_id, count)
        return total


class Landed:
    """The landed sums, added up within each batch: the rounds with equal hashes.

    Batches without a landed sum are left out and need no memory.

    Attributes:
        spec: the spec of all sketches.
        fresh: whether each batch has its own locations (schedule "fresh").
        batches: the numbers of the landed batches, ascending.
        clients: float64 [batches], the number of clients in each batch.
        weights: float64 [batches], each batch's share of all clients.
        num_clients: the number of clients in all batches.
        frequencies: float64 [rows, width, batches], each batch's sums divided by the batch's number
            of clients. The batches of a cell are next to each other in memory.

    Raises:
        InvalidInputError: no client took part in any landed round.
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
        # A batch without clients has exact sums of 0, and dividing by 1 keeps them 0. A campaign
        # leaves out noised sums without clients (`released_sums`).
        self.frequencies /= np.maximum(self.clients, 1.0)
        if self.fresh:
            self._tables = [spec.round_hash(batch).location[None] for batch in self.batches]
        else:
            self._tables = [tables_of_batches(spec.seed, spec.rows, self.batches)]
        self._halves: dict[tuple[int, int], kernels.Halves] = {}

    @property
    def several(self) -> bool:
        """Whether the effective number of batches is above 1.5."""
        return self.effective > 1.5

    @property
    def effective(self) -> float:
        """The effective number of batches: 1 / the sum of the squared weights."""
        return 1.0 / float(self.weights @ self.weights)

    @property
    def half_a_client(self) -> float:
        """Half a client, as a frequency."""
        return 0.5 / self.num_clients

    @property
    def cells(self) -> int:
        """The number of cells in one batch."""
        return self.spec.rows * self.spec.width

    def places(self, ids: U64) -> tuple[I64, I8]:
        """Return the cells and signs of items.

        A cell is an index into the flattened `frequencies`. If all batches share their locations,
        only the index for batch 0 is returned; batch b adds b to it.

        Args:
            ids: uint64 [n].

        Returns:
            The cells, int64 [n, rows, batches or 1], and the signs, int8 [n, rows, batches].
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
        """Return the hash words of items, which give cells and signs: uint32 [groups, rows, n].

        Under schedule "fresh" there is a group for each batch, and bit 0 of a word is the sign.
        Otherwise the words of group 0 give the cells, and the lowest 8 bits of a word of group g
        give the signs in the batches 8 g .. 8 g + 7.
        """
        groups = [one for tables in self._tables for one in tables]
        return np.stack([kernels.hash_words(tables, ids) for tables in groups])

    def add(self, frequencies: F64, cells: I64, signs: I8, values: F64) -> None:
        """Add sign * value of each item to its cells, in place.

        Args:
            frequencies: float64 [rows, width, batches], C-contiguous; changed.
            cells: the items' cells, from `places`.
            signs: the items' signs, from `places`.
            values: the items' frequencies, float64 [n, batches].
        """
        offsets = np.arange(signs.shape[2]) if cells.shape[2] == 1 else 0
        np.add.at(frequencies.reshape(-1), cells + offsets, signs * values[:, None, :])

    def with_items(self, ids: U64, values: F64) -> Self:
        """Return a copy of these sums to which items are added.

        Args:
            ids: uint64 [n], the items.
            values: float64 [n, batches], their frequencies in each batch.
        """
        # The copy shares the hash tables, which depend only on the hashes of the batches. Under
        # schedule "fresh" with many rounds, computing them again would take longer than the rest.
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.frequencies = self.frequencies.copy()
        other.add(other.frequencies, *self.places(ids), values)
        return other

    def weighted(self, chosen: Bools) -> Self:
        """Return a copy of these sums in which the batches that are not chosen have weight 0.

        `num_clients` counts the chosen batches only; `batches` and `clients` stay.

        Args:
            chosen: bool [batches]; at least one chosen batch has clients.
        """
        other = copy.copy(self)
        other.num_clients = int(self.clients[chosen].sum())
        other.weights = self.clients * chosen / other.num_clients
        return other

    def only(self, chosen: Bools) -> Self:
        """Return the sums of some batches.

        Args:
            chosen: bool [batches]; at least one chosen batch has clients.
        """
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
        """Return a decoder whose number for an id is its estimated frequency in a residual.

        In each row, the signed cells of the id are added up over the batches, with the weights of
        the batches. Then the rows are folded into one number. Under schedule "fresh" the order is
        the other way round: the rows of each batch are folded, and the weighted results of the
        batches are added up.

        The decoder computes in single precision. The rounding error, about 1e-7 of the residual
        in an item's cells, is negligible.

        Args:
            residual: the sums minus what is already explained, as frequencies, float64 [rows,
                width, batches].
            fold: how rows are combined: "median", as in the paper, or "mean".
            expected: about how many ids will be estimated.
        """
        sums = np.empty(residual.shape, np.float32)
        np.multiply(residual, self.weights, out=sums, casting="same_kind")
        sums = np.moveaxis(sums, 2, 0)
        if self.fresh:
            return Summed(
                [
                    kernels.Decoder(sums[place][None], self._tables[place], expected, fold)
                    for place in np.flatnonzero(self.weights)
                ]
            )
        return kernels.Decoder(sums, self._tables[0], expected, fold)

    def halves(self, first_id: int, count: int) -> kernels.Halves:
        """Return the prepared search for heavy ids among first_id, first_id + 1, ...

        The search is prepared at the first call and then stored. Copies of these sums with the same
        batches share it. It is only for batches that share their locations, so not for schedule
        "fresh".
        """
        asked = first_id, count
        if asked not in self._halves:
            tables = self._tables[0][0]  # with the signs of 8 batches: a search has at most 8
            width, batches = self.spec.width, len(self.weights)
            self._halves[asked] = kernels.Halves(tables, width, batches, first_id, count)
        return self._halves[asked]

    def largest_median(self, residual: F64) -> float:
        """Return an upper bound on the size of every id's number from `decoder` with fold "median".

        The bound holds up to the rounding of single precision. It is the median over rows of the
        largest value that an id can get in the row. Under schedule "fresh", where the rows of each
        batch are folded by themselves, it is the weighted sum of the batches' medians.

        Args:
            residual: the sums minus what is already explained, float64 [rows, width, batches].
        """
        sizes = np.abs(residual)
        if self.fresh:
            return float(np.median(sizes.max(axis=1), axis=0) @ self.weights)
        # With shared locations an id has the same cell in all batches.
        return median((sizes @ self.weights).max(axis=1))

    def cell_mean(self, values: F64) -> Decoder:
        """Return a decoder whose number for an id is the mean of `values` over the id's cells.

        Batches are weighted by their clients.

        Args:
            values: float64 [rows, width]; under schedule "fresh" [rows, width, batches].
        """
        if self.fresh:
            weighted = np.ascontiguousarray(np.moveaxis(values * self.weights, 2, 0), np.float32)
            return Summed(
                [
                    kernels.Decoder(
                        weighted[place][None], self._tables[place], fold="mean", signed=False
                    )
                    for place in np.flatnonzero(self.weights)
                ]
            )
        return kernels.Decoder(
            values[None].astype(np.float32), self._tables[0][:1], fold="mean", signed=False
        )

    def joiners(self, sums: F64, precision: F64, expected: int) -> list[tuple[Decoder, Decoder]]:
        """Return pairs of decoders from which precision-weighted means of sums are computed.

        The first decoder of a pair gives the mean over rows of precision * sum. The second gives
        the mean over rows of the precision. Their quotient is the weighted mean. There is one pair,
        or under schedule "fresh" one for each batch.

        Args:
            sums: the sums of the cells, float64 [rows, width, batches].
            precision: float64 [rows, width, 1]; under schedule "fresh" [rows, width, batches].
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
    """The ids that may be heavy; each has a position, from 0.

    First come the *listed* ids: those of a domain, or some of them. Further ids, called *extra*,
    may follow.

    Args:
        domain: the candidate items.
    """

    def __init__(self, domain: Domain) -> None:
        self._first, self._listed = domain.first_id or 0, domain.size
        self._ids = None if domain.first_id is not None else domain.ids(0, domain.size)
        self._extra = np.empty(0, np.uint64)
        self._order: I64 | None = None  # the order that sorts the listed ids; computed if needed
        self._test: Callable[[U64], Bools] | None = None

    @property
    def listed_range(self) -> tuple[int, int]:
        """The first listed id and the number of listed ids, which is 0 if they are no range."""
        return self._first, self._listed if self._ids is None else 0

    @property
    def size(self) -> int:
        """The number of candidates."""
        return self._listed + len(self._extra)

    def with_extra(self, extra: U64, only: U64 | None = None) -> Candidates:
        """Return candidates with other extra ids, and with `only` as listed ids if it is given.

        The previous extra ids are left out. A test of `passing` is kept.
        """
        other = copy.copy(self)
        other._extra = extra
        if only is not None:
            other._ids, other._listed, other._order = only, len(only), None
        return other

    def passing(self, test: Callable[[U64], Bools]) -> Candidates:
        """Return these candidates with a test that an id must pass to be heavy.

        All candidates keep their positions. `may_be_heavy` and `above` leave out listed ids that
        fail the test. Extra ids are not tested.

        Args:
            test: returns for ids, uint64 [n], which of them pass, bool [n].
        """
        other = copy.copy(self)
        other._test = test
        return other

    def may_be_heavy(self, positions: I64) -> I64:
        """Return those of the positions whose candidates may be heavy (see `passing`)."""
        if self._test is None or not len(positions):
            return positions
        return positions[(positions >= self._listed) | self._test(self.ids(positions))]

    def ids(self, positions: I64) -> U64:
        """Return the ids at these positions: uint64 [n]."""
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
        """Return the position of each id among the listed ids: int64 [n]; -1 for any other id.

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
        """Return the positions of candidates whose number exceeds a floor.

        Listed candidates that fail the test of `passing` are left out.

        Args:
            positions: int64 [n], the positions of listed ids to test. All extra ids are tested too.
            decoder: computes the number of each id.
            floor: the number to exceed.
        """
        if len(self._extra):
            positions = np.append(positions, np.arange(self._listed, self.size))
        return self.may_be_heavy(positions[decoder.at(self.ids(positions)) > floor])

    def blocks(self) -> Iterator[tuple[int, Ids]]:
        """Yield pairs (first position, ids from it on) that cover all candidates in order."""
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
        """Yield pairs (first position, numbers of the candidates from it on) for all candidates."""
        for start, ids in self.blocks():
            yield start, ask(decoder, ids)

    def decoded_above(self, decoder: Decoder, floor: float) -> Iterator[tuple[int, I64, F64]]:
        """Yield the candidates whose numbers are above a floor, block by block.

        A block is a triple: how many candidates the block has, the positions of those above the
        floor, and their numbers.
        """
        for start, ids in self.blocks():
            places, numbers = ask_above(decoder, ids, floor)
            yield len(ids), places + start, numbers

    def fresh_ids(self, rng: np.random.Generator, count: int) -> U64:
        """Draw distinct random ids that are no candidates: uint64 [count], in random order."""
        found = np.empty(0, np.uint64)
        # `np.isin` would take a minute for the contenders of 2^26 candidates. Contenders are
        # ascending, so they need no sort.
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
            # Sort and drop duplicates; `np.unique` takes many times as long.
            found = np.sort(np.concatenate([found, drawn]))
            found = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        # Shuffled before the cut, since the first `count` sorted ids would be the smallest ones.
        return rng.permutation(found)[:count]
