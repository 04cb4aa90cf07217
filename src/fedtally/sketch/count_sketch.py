"""Integer count sketches: add items, merge sketches, save and load them.

A sketch has rows of counters. An item with the id x adds sign_l(x) * weight to the counter
location_l(x) of each row l. A histogram is a sketch with one row and no hashes: each item has a
counter of its own and adds its weight to it. Sketches are linear: the sum of the clients' sketches
is the sketch of all their items. Secure summation reveals only this sum. All arithmetic is exact,
on int64.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.base import archive, validate
from fedtally.base.encoding import Encoding
from fedtally.errors import (
    IncompatibleError,
    InvalidInputError,
    UnreadableFileError,
    arg,
    opt,
    reason,
)
from fedtally.kernels.arguments import check_counts
from fedtally.sketch import hashing
from fedtally.sketch.schedule import Schedule, ScheduleKind
from fedtally.sketch.spelling import Spelling, positions_of

SCHEMA = "fedtally-sketch/1"
MAX_ROUNDS = 1 << 20
# The members of `privacy.events.NoiseBy`, which this package must not import.
NOISED_BY = ("aggregator", "clients", "servers")
_MAX_WEIGHT = 2**62  # the bound on counters; two counters below it add up without overflow
_FINGERPRINT = re.compile("[0-9a-f]{64}")


class NoiseMark(NamedTuple):
    """Says that the counters of a sum hold differential privacy noise, and under which plan.

    Attributes:
        by: the party that added the noise, one of NOISED_BY.
        plan: the fingerprint of the plan, 64 hexadecimal digits. The plan says how much noise is
            added.
    """

    by: str
    plan: str

    def __str__(self) -> str:
        return f"the {self.by} under plan {self.plan[:16]}"


class RoundHash(NamedTuple):
    """The hash tables of one round: they give an id its counter and its sign in each row.

    Attributes:
        location: uint32 [rows, 8, 256], the tables of the counters. In each row, an id is hashed to
            a 32-bit word: the XOR of eight table entries, one for each byte of the id
            (`kernels.hash_words`). The word gives the index of the counter.
        sign: uint32 [rows, 8, 256], the tables of the signs, used in the same way.
        sign_bit: which bit of a word of `sign` gives the sign, 0 for the lowest bit.
    """

    location: npt.NDArray[np.uint32]
    sign: npt.NDArray[np.uint32]
    sign_bit: int

    def add(
        self,
        counters: npt.NDArray[np.int64],
        ids: npt.NDArray[np.uint64],
        counts: npt.NDArray[np.int64] | None,
    ) -> None:
        """Add items in place to `counters`, int64 [rows, width]; see `CountSketch.add`."""
        kernels.accumulate(counters, *self, ids, counts)

    def add_range(
        self, counters: npt.NDArray[np.int64], first_id: int, counts: npt.NDArray[np.int64]
    ) -> None:
        """Add counts[i] items with the id first_id + i for each i; see `CountSketch.add_range`."""
        kernels.accumulate_range(counters, *self, first_id, counts)

    def cells(
        self, ids: npt.NDArray[np.uint64], width: int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Return the index of each id's counter in each row, and the id's sign there.

        Returns:
            The indices in the row, 0 .. width - 1, intp [rows, n], and the signs, 1 or -1, int64
            [rows, n].
        """
        cells = kernels.locations(kernels.hash_words(self.location, ids), width)
        return cells, kernels.signs(kernels.hash_words(self.sign, ids), self.sign_bit)


class Identity(NamedTuple):
    """Gives the ids of a histogram their counters: id `first_id + i` has counter i and no sign.

    Attributes:
        first_id: the id of counter 0. Ids are counted mod 2^64.
    """

    first_id: int

    def add(
        self,
        counters: npt.NDArray[np.int64],
        ids: npt.NDArray[np.uint64],
        counts: npt.NDArray[np.int64] | None,
    ) -> None:
        """Add items in place to `counters`, int64 [1, width]; see `CountSketch.add`."""
        # Without this check NumPy would add a single count to all ids.
        added = 1 if counts is None else check_counts(counts, len(ids))
        np.add.at(counters[0], self.places(ids, counters.shape[1]), added)

    def add_range(
        self, counters: npt.NDArray[np.int64], first_id: int, counts: npt.NDArray[np.int64]
    ) -> None:
        """Add counts[i] items with the id first_id + i for each i; see `CountSketch.add_range`."""
        self.add(counters, kernels.range_ids(first_id, len(counts)), counts)

    def cells(
        self, ids: npt.NDArray[np.uint64], width: int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Return the index of each id's counter, intp [1, n], and the sign, always 1, int64 [1, n].

        Raises:
            InvalidInputError: an id has no counter.
        """
        return self.places(ids, width)[None], np.ones((1, len(ids)), np.int64)

    def places(self, ids: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.intp]:
        """Return the index of each id's counter: intp [n].

        Raises:
            InvalidInputError: an id has no counter, or `ids` is no array of uint64.

        >>> Identity(7).places(np.array([7, 9], np.uint64), width=3).tolist()
        [0, 2]
        """
        if not isinstance(ids, np.ndarray) or ids.dtype != np.uint64:
            raise InvalidInputError("ids must be an array of uint64")
        places = ids - np.uint64(self.first_id)  # mod 2^64: an id below first_id gets a huge index
        if len(places) and places.max() >= width:
            raise InvalidInputError(
                f"a histogram counts {width:,} candidates, and"
                f" {np.count_nonzero(places >= width):,} of the given ids belong to none"
            )
        return places.astype(np.intp)


class Part(NamedTuple):
    """One of the sketches that make up a client's vector, with its own counters and hashes.

    The first part counts items. With a spelling, further parts count the symbols of names.

    Attributes:
        start: the index in the vector of the part's first counter.
        rows: the part's number of rows.
        width: the number of counters in a row. The vector holds the counters row by row.
        hashes: the map from ids to counters.
        column: with a spelling an item is a row of ids (see `SketchSpec`), and the part counts the
            ids in this column. Without a spelling it is 0.
    """

    start: int
    rows: int
    width: int
    hashes: RoundHash | Identity
    column: int

    def of(self, vector: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return this part's counters in `vector`: a view, int64 [rows, width]."""
        end = self.start + self.rows * self.width
        return vector[self.start : end].reshape(self.rows, self.width)

    def ids(self, items: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the ids that this part counts: uint64 [n], one for each item.

        Args:
            items: uint64 [n], or with a spelling uint64 [n, 1 + positions].
        """
        return items[:, self.column] if np.ndim(items) == 2 else items


@dataclass(frozen=True)
class SketchSpec:
    """The size and the hashes of a sketch.

    Only sketches with equal specs can be added, or decoded together.

    Args:
        rows: the number of rows, 1 .. 1024. If the number is even, a median over rows is the mean
            of the two middle values.
        width: the number of counters in a row, 1 .. 2^24.
        schedule: says which rounds share hashes: a schedule or its name.
        num_rounds: the number of planned rounds. Rounds are numbered from 0.
        seed: 32 bytes, public: all hashes are derived from it. Draw it after the rules that say who
            takes part are fixed, so that nobody can choose clients to suit the hashes.
        spelling: the size of the sketches that spell names, for items that nobody has listed; None:
            no names are spelled. With a spelling an item is a row of ids. The first id is the hash
            of the item. For each position t of the name follows the id hash * 256 + symbol_t.
        first_id: for a histogram, the id of its first counter; None: a sketch with hashes.

    >>> spec = SketchSpec(rows=5, width=200, schedule="hybrid", num_rounds=10, seed=bytes(32))
    >>> sketch = CountSketch(spec, round=3)
    >>> sketch.add(np.array([7, 7, 9], np.uint64))
    >>> sketch.num_clients, int(np.abs(sketch.counters).sum())
    (3, 15)
    """

    rows: int
    width: int
    schedule: Schedule
    num_rounds: int
    seed: bytes
    spelling: Spelling | None = None
    first_id: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", Schedule.parse(self.schedule))
        for name, most in (
            ("rows", kernels.MAX_ROWS),
            ("width", kernels.MAX_WIDTH),
            ("num_rounds", MAX_ROUNDS),
        ):
            object.__setattr__(self, name, validate.integer(1, most, **{name: getattr(self, name)}))
        batches = self.schedule.num_batches(self.num_rounds)  # raises if there are fewer rounds
        hashing.check_seed(self.seed)
        if self.spelling is not None:
            self.spelling.check_batches(batches)
        if self.first_id is not None:
            validate.integer(0, 2**64 - 1, first_id=self.first_id)
            _check_histogram(self.rows, self.schedule, self.spelling)

    @property
    def encoding(self) -> Encoding:
        """Whether counters belong to hashes of items (SKETCH) or to single items (HISTOGRAM)."""
        return Encoding.SKETCH if self.first_id is None else Encoding.HISTOGRAM

    @property
    def num_batches(self) -> int:
        """The number of batches of rounds. A batch is a run of rounds with the same signs."""
        return self.schedule.num_batches(self.num_rounds)

    @property
    def num_positions(self) -> int:
        """The number of positions (letters) of names that all rounds together spell.

        It is 0 without a spelling.
        """
        return 0 if self.spelling is None else self.spelling.positions(self.num_batches)

    @property
    def _spelled(self) -> tuple[int, int]:
        """The numbers of rows and of counters that spell names in one vector: (0, 0) if none do."""
        if self.spelling is None:
            return 0, 0
        rows = self.spelling.rows * self.spelling.blocks(self.num_batches)
        return rows, rows * self.spelling.width

    @property
    def touched(self) -> int:
        """The number of counters that one item changes by 1 or -1.

        It changes one in each row of the sketch of ids. If a vector spells names, it also changes
        one in each row of the sketch of each position that the vector spells. The number is also
        the squared l2 norm of the vector of a client with one item.
        """
        return self.rows + self._spelled[0]

    @property
    def row_widths(self) -> tuple[int, ...]:
        """The width of each row of all parts, in the order in which a vector holds the rows.

        >>> SketchSpec(2, 200, "shared", 1, bytes(32), Spelling(1, 32, max_length=2)).row_widths
        (200, 200, 32, 32, 32)
        """
        spelled = () if self.spelling is None else (self.spelling.width,) * self._spelled[0]
        return (self.width,) * self.rows + spelled

    @property
    def mean_width(self) -> int:
        """The harmonic mean of the widths of all rows of all parts, rounded down to an integer.

        The harmonic mean is used because two items share a counter of a row of W counters with
        probability 1 / W.
        """
        if self.spelling is None:
            return self.width
        spelled = self._spelled[0]
        meetings = Fraction(self.rows, self.width) + Fraction(spelled, self.spelling.width)
        return math.floor((self.rows + spelled) / meetings)

    @property
    def vector_length(self) -> int:
        """The number of counters of all parts together: the length of a client's vector."""
        return self.rows * self.width + self._spelled[1]

    def positions_of(self, round: int) -> tuple[int, ...]:
        """Return which positions of names the vectors of a round spell, in the order of `parts`.

        Positions are numbered from 0. Without a spelling the tuple is empty.
        """
        batch = self.schedule.batch_of(round, self.num_rounds)
        return positions_of(self.seed, self.num_positions, batch, self.num_batches)

    def parts(self, round: int) -> list[Part]:
        """Return the parts of a round's vectors: the sketch of the ids, then one for each position.

        The positions are `positions_of(round)`, in this order.

        >>> spec = SketchSpec(5, 200, "shared", 1, bytes(32), Spelling(4, 32, max_length=2))
        >>> [(part.start, part.rows, part.width) for part in spec.parts(0)]
        [(0, 5, 200), (1000, 4, 32), (1128, 4, 32), (1256, 4, 32)]
        """
        parts = [Part(0, self.rows, self.width, self.hashes(round), 0)]
        if self.spelling is None:
            return parts
        rows, width = self.spelling.rows, self.spelling.width
        for block, position in enumerate(self.positions_of(round)):
            start = self.rows * self.width + block * rows * width
            parts.append(Part(start, rows, width, self.position_hash(position), 1 + position))
        return parts

    def position_hash(self, position: int) -> RoundHash:
        """Return the hashes of the sketch that spells a position of the names, counted from 0.

        They are the same in every round that spells the position. The spec must have a spelling.
        """
        assert self.spelling is not None
        rows = self.spelling.rows
        tables = hashing.tabulation_tables(
            self.seed, self.num_positions * rows, 0, hashing.SPELLING
        )[position * rows : (position + 1) * rows]
        return RoundHash(tables, tables, 0)

    def hashes(self, round: int) -> RoundHash | Identity:
        """Return the map from ids to counters in a round, counted from 0.

        It is an `Identity` for a histogram, and otherwise a `RoundHash`.
        """
        return self.round_hash(round) if self.first_id is None else Identity(self.first_id)

    def round_hash(self, round: int) -> RoundHash:
        """Return the hashes of a round, counted from 0.

        Raises:
            InvalidInputError: the spec describes a histogram, which has no hashes; or there is no
                such round.
        """
        validate.integer(0, self.num_rounds - 1, round=round)
        if self.first_id is not None:
            raise InvalidInputError(
                "a histogram has no hashes: its counters are the counts (recovery direct)"
            )
        # Under `fresh` each round has its own location tables. A round needs only one sign for each
        # id, and takes it from bit 0 of the same words. Other schedules need a sign table.
        if self.schedule.kind is ScheduleKind.FRESH:
            own = hashing.tabulation_tables(hashing.round_seed(self.seed, round), self.rows)
            return RoundHash(own, own, 0)
        group, bit = divmod(self.schedule.batch_of(round, self.num_rounds), hashing.SIGNS_PER_GROUP)
        location = hashing.tabulation_tables(self.seed, self.rows, 0)
        return RoundHash(location, hashing.tabulation_tables(self.seed, self.rows, group), bit)


class CountSketch:
    """The counters of one round: one client's contribution, or the sum of many.

    Attributes:
        spec: the size and the hashes; only sketches with equal specs can be combined.
        round: the number of the round, from 0.
        vector: int64 [spec.vector_length], all counters: the parts in the order of
            `SketchSpec.parts`, and each part row by row.
        counters: int64 [rows, width], the counters of the first part: a view of `vector`.
        num_clients: the number of clients whose contributions are in the sum. A client may be a
            silo, an organisation with the data of several people: then this is the number of people
            in all silos. Noise may have been added to the number. With silos it can then be 0 or
            negative.
        num_silos: the number of silos in the sum; 0 if clients are persons.
        noise: says which differential privacy noise the counters hold; None: no noise, the counters
            are exact. Only code that adds noise sets this mark. The mark prevents mistakes, not
            forgery, since anybody can write a file of a sketch.
    """

    def __init__(self, spec: SketchSpec, round: int) -> None:
        self.spec = spec
        self.round = validate.integer(0, spec.num_rounds - 1, round=round)
        self.vector = np.zeros(spec.vector_length, np.int64)
        self.num_clients = 0
        self.num_silos = 0
        self.noise: NoiseMark | None = None
        # No counter has a larger absolute value, unless `vector` was changed from outside. With
        # this bound, items can be added once each without looking at all counters.
        self._most = 0

    @property
    def num_vectors(self) -> int:
        """The number of vectors in the sum: one for each silo, or without silos for each client."""
        return self.num_silos or self.num_clients

    @property
    def counters(self) -> npt.NDArray[np.int64]:
        """The counters of the first part, which counts the ids: a view, int64 [rows, width]."""
        spec = self.spec
        return self.vector[: spec.rows * spec.width].reshape(spec.rows, spec.width)

    @counters.setter
    def counters(self, values: npt.NDArray[np.int64]) -> None:
        self.counters[...] = values

    def all_rows(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield each row of each part, in the order of the vector: views, int64 [row's width]."""
        for part in self.spec.parts(self.round):
            yield from part.of(self.vector)

    def __repr__(self) -> str:
        size = f"rows={self.spec.rows}, width={self.spec.width}"
        noised = "" if self.noise is None else f", noised by {self.noise}"
        return f"CountSketch(round={self.round}, {size}, num_clients={self.num_clients}{noised})"

    def add(
        self,
        ids: npt.NDArray[np.uint64],
        counts: npt.NDArray[np.int64] | None = None,
        num_clients: int | None = None,
    ) -> None:
        """Add items to the counters. Item ids[i] is added counts[i] times, or once without counts.

        Args:
            ids: uint64 [n]; ids may repeat. With a spelling, uint64 [n, 1 + positions], a row of
                ids for each item.
            counts: int64 [n], at least 0: the number of clients that hold each item; None: 1 each.
            num_clients: the number of clients that hold these items, added to `self.num_clients`.
                If absent, it is the sum of `counts`, or without `counts` the number of ids.

        Raises:
            InvalidInputError: a count is negative, a dtype or a shape is wrong, a counter could
                reach 2^62, an id has no counter in the histogram, or the counters already hold
                noise. The sketch is then unchanged.
        """
        whole = None if counts is None else _clients_per_item(counts)
        given = None if num_clients is None else validate.integer(0, num_clients=num_clients)
        self._accumulate(ids, whole)  # raises before it changes a counter
        self.num_clients += (
            (len(ids) if whole is None else int(whole.sum())) if given is None else given
        )

    def add_range(
        self, first_id: int, counts: npt.NDArray[np.int64], num_clients: int | None = None
    ) -> None:
        """Add counts[i] items with the id first_id + i (mod 2^64), for each i; see `add`.

        Raises:
            InvalidInputError: as in `add`, or if the spec has a spelling.

        >>> spec = SketchSpec(rows=3, width=64, schedule="shared", num_rounds=1, seed=bytes(32))
        >>> sketch = CountSketch(spec, round=0)
        >>> sketch.add_range(1, np.array([5, 0, 2]))
        >>> sketch.num_clients
        7
        """
        whole = _clients_per_item(counts)
        given = None if num_clients is None else validate.integer(0, num_clients=num_clients)
        self._check_exact()
        if self.spec.spelling is not None:
            raise InvalidInputError(
                "a sketch with a spelling holds names, and a range of ids has none: use add"
            )
        self._check_total(_weight(whole))
        self.spec.hashes(self.round).add_range(self.counters, first_id, whole)
        self.num_clients += int(whole.sum()) if given is None else given

    def encode_vector(
        self,
        weights: npt.NDArray[np.int64],
        ids: npt.NDArray[np.uint64] | None = None,
        num_clients: int = 1,
    ) -> None:
        """Add a vector of signed integer weights: ids[i] gets the weight weights[i].

        Decoding the sum of such sketches estimates the sum of the vectors. Weights must be
        integers, because secure summation needs exact sums: scale and round real numbers first.

        Args:
            weights: int64 [n].
            ids: uint64 [n], the coordinates; if absent, 0 .. n-1.
            num_clients: the number of clients whose vectors are summed in `weights`.

        Raises:
            InvalidInputError: as in `add`, but weights may be negative.

        >>> spec = SketchSpec(rows=5, width=64, schedule="shared", num_rounds=1, seed=bytes(32))
        >>> sketch = CountSketch(spec, round=0)
        >>> sketch.encode_vector(np.array([3, 0, -7]))
        >>> sketch.num_clients
        1
        """
        whole = _integers(weights=weights)
        clients = validate.integer(0, num_clients=num_clients)
        self._accumulate(kernels.range_ids(0, len(whole)) if ids is None else ids, whole)
        self.num_clients += clients

    def merge(self, other: CountSketch) -> None:
        """Add another sketch of the same spec and round to this one, in place.

        Raises:
            IncompatibleError: the specs, the rounds or the marks of noise differ.
            InvalidInputError: a counter could reach 2^62.
                After either error this sketch is unchanged.
        """
        check_compatible(self.spec, other.spec)
        if self.round != other.round:
            raise IncompatibleError(
                f"one sketch is of round {self.round} and the other of round {other.round}, and"
                " only sketches of one round are merged; decode them together instead"
            )
        if self.noise != other.noise:
            raise IncompatibleError(
                f"sums with noise of {self.noise or 'nobody'} and of {other.noise or 'nobody'} do"
                " not add up: nobody could say how private that is; add exact sums first, and then"
                " their noise"
            )
        # A sum does not tell its total weight, so its largest counter is checked.
        self._check_total(_largest(other.vector))
        self.vector += other.vector
        self.num_clients += other.num_clients
        self.num_silos += other.num_silos

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sketch to a file, atomically; a new file can be read by its owner only."""
        archive.write(path, SCHEMA, self._meta(), self._arrays(), private=True)

    def to_bytes(self) -> bytes:
        """Return the sketch as bytes, in the format that `save` writes, e.g. for a database."""
        # A server packs every sum. Compression level 1 takes half the time of the default level.
        return archive.pack(SCHEMA, self._meta(), self._arrays(), level=1)

    def _arrays(self) -> dict[str, npt.NDArray[np.int64]]:
        spelled = self.vector[self.counters.size :]
        return {"counters": self.counters} | ({"spelled": spelled} if spelled.size else {})

    def _meta(self) -> dict[str, Any]:
        own = {"round": self.round, "num_clients": self.num_clients, "noise": self.noise}
        silos = {"num_silos": self.num_silos} if self.num_silos else {}
        return spec_to_dict(self.spec) | own | silos

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CountSketch:
        """Read a sketch from a file that `save` wrote.

        Raises:
            UnreadableFileError: the file is missing, damaged, or of another kind.
        """
        _, meta, arrays = archive.read(path, SCHEMA, _limits)
        return cls._of(meta, arrays, os.fspath(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "this sketch") -> CountSketch:
        """Return the sketch that `to_bytes` packed.

        Args:
            data: the packed sketch.
            name: what error messages call the data.

        Raises:
            UnreadableFileError: the bytes are damaged, or do not hold a sketch.

        >>> spec = SketchSpec(rows=3, width=64, schedule="shared", num_rounds=1, seed=bytes(32))
        >>> sketch = CountSketch(spec, round=0)
        >>> sketch.add(np.array([7], np.uint64))
        >>> CountSketch.from_bytes(sketch.to_bytes())
        CountSketch(round=0, rows=3, width=64, num_clients=1)
        """
        return cls._of(*archive.unpack(data, name, SCHEMA, _limits), name)

    @classmethod
    def _of(
        cls, meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], name: str
    ) -> CountSketch:
        try:
            spec = spec_from_dict(meta)
            counters, spelled = arrays["counters"], arrays.get("spelled", np.zeros(0, np.int64))
            shapes = ((spec.rows, spec.width), (spec.vector_length - spec.rows * spec.width,))
            if (counters.shape, spelled.shape) != shapes or not (
                counters.dtype == spelled.dtype == np.int64
            ):
                raise InvalidInputError(
                    f"counters must be int64 with shape {shapes[0]}, and spelled with {shapes[1]}"
                )
            # Created only after these checks: it allocates as much memory as its spec asks for.
            sketch = cls(spec, meta["round"])
            sketch.vector = np.concatenate([counters.reshape(-1), spelled])
            if (most := _largest(sketch.vector)) >= _MAX_WEIGHT:
                raise InvalidInputError("a counter is beyond 2^62")
            sketch._most = int(most)
            sketch.noise = noise_mark(meta["noise"])
            sketch.num_silos = validate.integer(0, num_silos=meta.get("num_silos", 0))
            sketch.num_clients = checked_number(meta["num_clients"], sketch)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableFileError(f"{name} is damaged{reason(error)}") from error
        return sketch

    def _accumulate(
        self, ids: npt.NDArray[np.uint64], counts: npt.NDArray[np.int64] | None
    ) -> None:
        self._check_exact()
        is_rows = isinstance(ids, np.ndarray) and ids.ndim == 2
        columns = 1 + self.spec.num_positions
        if is_rows != (self.spec.spelling is not None) or (is_rows and ids.shape[1] != columns):
            got = getattr(ids, "shape", type(ids).__name__)
            form = f"[n, {columns}], rows that spell names" if self.spec.spelling else "[n]"
            raise InvalidInputError(f"ids must be uint64 {form}, got {got}")
        if counts is not None:
            self._check_total(_weight(counts))
        elif self._most + np.size(ids) > _MAX_WEIGHT // 2:  # half, as floats are not exact here
            self._check_total(np.size(ids))
        else:
            self._most += np.size(ids)
        for part in self.spec.parts(self.round):
            part.hashes.add(part.of(self.vector), part.ids(ids), counts)

    def _check_exact(self) -> None:
        """Raise InvalidInputError if the counters hold noise: no clients may then be added.

        Anybody who saw the sum before and after could subtract, and would get the added items
        without noise.
        """
        if self.noise is not None:
            raise InvalidInputError(
                f"the counters hold the noise of {self.noise} already: add all clients first, and"
                " then noise"
            )

    def _check_total(self, added: float) -> None:
        """Raise InvalidInputError if a counter could reach 2^62; no counter is changed.

        Args:
            added: an upper bound on the absolute change of each counter.
        """
        total = _largest(self.vector) + added
        if total >= _MAX_WEIGHT:
            raise InvalidInputError(
                f"the total weight of a sketch must stay below 2^62, got about {total:.3g}; scale"
                " the weights down"
            )
        self._most = int(total)


def _integers(**named: Any) -> npt.NDArray[np.int64]:
    """Return the value of the one keyword argument as int64 [n], such as `_integers(ids=ids)`.

    Raises:
        InvalidInputError: the value is no list of integers below 2^63. The message names the
            keyword.
    """
    [(name, values)] = named.items()
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidInputError(
            f"{name} must be integers in one dimension, got rows of unequal length"
        ) from None
    if array.size == 0 and array.ndim == 1:  # NumPy makes an empty list float64
        return array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInputError(
            f"{name} must be integers in one dimension, got {array.dtype} with shape {array.shape};"
            " scale and round real values first"
        )
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise InvalidInputError(f"{name} must be below 2^63, got {array.max()}")
    return array.astype(np.int64, copy=False)


def _clients_per_item(counts: npt.ArrayLike) -> npt.NDArray[np.int64]:
    whole = _integers(counts=counts)
    if np.min(whole, initial=0) < 0:
        raise InvalidInputError(
            f"{arg.counts} must be at least 0, got {np.min(whole)}; for signed weights use"
            " encode_vector"
        )
    return whole


def _weight(counts: npt.NDArray[np.int64]) -> float:
    # In floating point, because a sum of int64 can overflow and int64 has no absolute value of
    # -2^63.
    return float(np.abs(counts.astype(np.float64)).sum())


def _largest(counters: npt.NDArray[np.int64]) -> float:
    # np.abs would copy all counters, and overflow at -2^63.
    return float(max(int(counters.max()), -int(counters.min())))


def checked_number(number: Any, sketch: CountSketch) -> int:
    """Check the number of clients that a file states for a sketch, and return it.

    For a sum of silos with noise, any integer is allowed (see `CountSketch.num_clients`). For other
    sums the number must be an integer of at least 0.

    Raises:
        InvalidInputError: the number is not allowed.

    >>> spec = SketchSpec(rows=3, width=64, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> checked_number(7, CountSketch(spec, round=0))
    7
    """
    is_noised = sketch.num_silos > 0 and sketch.noise is not None
    return validate.integer(None if is_noised else 0, num_clients=number)


def noise_mark(values: Any) -> NoiseMark | None:
    """Return the mark of noise that a saved file states; None: the sum has no noise.

    Args:
        values: the pair of a name in NOISED_BY and the fingerprint of a plan; or None.

    Raises:
        InvalidInputError: the value is neither such a pair nor None.

    >>> noise_mark(["clients", "ab" * 32])
    NoiseMark(by='clients', plan='abababababababababababababababababababababababababababababababab')
    >>> noise_mark(None)
    """
    if values is None:
        return None
    match values:
        case [by, str(plan)] if by in NOISED_BY and _FINGERPRINT.fullmatch(plan):
            return NoiseMark(by, plan)
    raise InvalidInputError(
        f"noise must be null, or one of {', '.join(NOISED_BY)} and the fingerprint of a plan, got"
        f" {values!r}"
    )


def _check_histogram(rows: int, schedule: Schedule, spelling: Spelling | None) -> None:
    """Raise InvalidInputError if a histogram cannot have these values.

    A histogram has one row, the schedule `shared`, and no spelling.
    """
    if rows != 1:
        raise InvalidInputError(f"{arg.rows} must be 1 in a histogram, got {rows}")
    if schedule.kind is not ScheduleKind.SHARED:
        raise InvalidInputError(
            f"{arg.schedule} must be shared in a histogram, whose rounds have no hashes, got"
            f" {schedule}"
        )
    if spelling is not None:
        raise InvalidInputError(
            "a histogram needs a list of candidates, and an open domain has none: leave"
            f" {opt.encoding} out, or declare the candidates"
        )


def summed(sketches: Iterable[CountSketch]) -> list[CountSketch]:
    """Add up the sketches of each round, and return one sum for each round.

    The sums come in the order in which their rounds first occur in `sketches`. If a round has only
    one sketch, this sketch itself is returned, not a copy. No given sketch is changed. Sketches of
    one round that do not fit together raise an error, as in `CountSketch.merge`.
    """
    rounds: dict[int, CountSketch] = {}
    copied: set[int] = set()
    for sketch in sketches:
        if (first := rounds.get(sketch.round)) is None:
            rounds[sketch.round] = sketch
            continue
        if sketch.round not in copied:
            rounds[sketch.round] = first = copy_of(first)
            copied.add(sketch.round)
        first.merge(sketch)
    return list(rounds.values())


def copy_of(sketch: CountSketch) -> CountSketch:
    """Return an independent copy of a sketch."""
    other = CountSketch(sketch.spec, sketch.round)
    other.noise = sketch.noise
    other.merge(sketch)
    return other


def check_compatible(
    first: SketchSpec, second: SketchSpec, problem: str = "the sketches do not belong together"
) -> None:
    """Raise IncompatibleError if the specs differ.

    Args:
        first: a spec.
        second: the spec to compare with it.
        problem: the start of the error message; the names of the differing fields follow.
    """
    names = ("rows", "width", "schedule", "num_rounds", "seed", "spelling", "first_id")
    differing = [name for name in names if getattr(first, name) != getattr(second, name)]
    if differing:
        shown = [
            (
                name
                if name == "seed"
                else f"{name} ({getattr(first, name)} and {getattr(second, name)})"
            )
            for name in differing
        ]
        raise IncompatibleError(f"{problem}: they differ in {', '.join(shown)}")


def spec_to_dict(spec: SketchSpec) -> dict[str, Any]:
    """Return the fields of the spec as values for JSON: the schedule as its name, the seed in hex.

    A spelling or a `first_id` of None is left out.
    """
    return {
        "rows": spec.rows,
        "width": spec.width,
        "schedule": str(spec.schedule),
        "num_rounds": spec.num_rounds,
        "seed": spec.seed.hex(),
        # Left out if None: otherwise the fingerprints of older plans would change.
        **({} if spec.spelling is None else {"spelling": asdict(spec.spelling)}),
        **({} if spec.first_id is None else {"first_id": spec.first_id}),
    }


def _limits(meta: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int | None]:
    """Return by name the most bytes that each array of a saved sketch may have.

    `archive` refuses larger arrays before it reads them (`archive.Limits`).

    Args:
        meta: the header of the file.
        sizes: the sizes that the file states for its arrays; not used.
    """
    spec = spec_from_dict(meta)
    return {"counters": 8 * spec.rows * spec.width, "spelled": 8 * spec.vector_length}


def spec_from_dict(values: Mapping[str, Any]) -> SketchSpec:
    """Return the spec that `spec_to_dict` turned into `values`.

    Values that are missing or wrong raise KeyError, TypeError, ValueError or InvalidInputError.
    """
    return SketchSpec(
        rows=values["rows"],
        width=values["width"],
        schedule=Schedule.parse(values["schedule"]),
        num_rounds=values["num_rounds"],
        seed=bytes.fromhex(values["seed"]),
        spelling=Spelling(**values["spelling"]) if "spelling" in values else None,
        first_id=values.get("first_id"),
    )
