"""Integer count sketches: encode, accumulate, merge, save.

An item of id x adds sign_l(x) * weight to the cell (l, location_l(x)) of every row l. A histogram
is a sketch of one row without hashes: each item has its own counter, and adds weight to it. A
sketch is linear: the sum of the clients' sketches is the sketch of all their items. Secure
summation reveals that sum alone. All arithmetic is exact, on int64.
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
from fedtally.sketch import hashing
from fedtally.sketch.schedule import Schedule, ScheduleKind
from fedtally.sketch.spelling import Spelling, positions_of

SCHEMA = "fedtally-sketch/1"
MAX_ROUNDS = 1 << 20
# The members of `privacy.events.NoiseBy`, which this package must not import.
NOISED_BY = ("aggregator", "clients", "servers")
_MAX_WEIGHT = 2**62  # the bound on counters: two sums below it can be added without overflow
_FINGERPRINT = re.compile("[0-9a-f]{64}")


class NoiseMark(NamedTuple):
    """The mark of a sum whose counters hold the differential privacy noise of a plan.

    Attributes:
        by: the party that adds the noise, one of NOISED_BY.
        plan: the fingerprint of the plan, which says how much noise.
    """

    by: str
    plan: str

    def __str__(self) -> str:
        return f"the {self.by} under plan {self.plan[:16]}"


class RoundHash(NamedTuple):
    """The hashes of one round.

    Attributes:
        location: uint32 [rows, 8, 256], hash tables. The word of an id in a row is the XOR of
            eight entries, one for each byte of the id (`kernels.hash_words`); it gives the cell.
        sign: uint32 [rows, 8, 256], hash tables whose words give the signs.
        sign_bit: the index of the bit in a word of `sign` that gives the sign.
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
        """Add items to counters, int64 [rows, width], in place; see `CountSketch.add`."""
        kernels.accumulate(counters, *self, ids, counts)

    def add_range(
        self, counters: npt.NDArray[np.int64], first_id: int, counts: npt.NDArray[np.int64]
    ) -> None:
        """Add counts[i] items of the id first_id + i, for each i; see `CountSketch.add_range`."""
        kernels.accumulate_range(counters, *self, first_id, counts)

    def cells(
        self, ids: npt.NDArray[np.uint64], width: int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Return the cell of each id in each row, and its sign there: integers [rows, n] each."""
        cells = kernels.locations(kernels.hash_words(self.location, ids), width)
        return cells, kernels.signs(kernels.hash_words(self.sign, ids), self.sign_bit)


class Identity(NamedTuple):
    """The cells of a histogram: the counter of an id has the index id - first_id, and no sign.

    Attributes:
        first_id: the id of the first counter; the ids of the others follow it (mod 2^64).
    """

    first_id: int

    def add(
        self,
        counters: npt.NDArray[np.int64],
        ids: npt.NDArray[np.uint64],
        counts: npt.NDArray[np.int64] | None,
    ) -> None:
        """Add items to counters, int64 [1, width], in place; see `CountSketch.add`."""
        np.add.at(counters[0], self.places(ids, counters.shape[1]), 1 if counts is None else counts)

    def add_range(
        self, counters: npt.NDArray[np.int64], first_id: int, counts: npt.NDArray[np.int64]
    ) -> None:
        """Add counts[i] items of the id first_id + i, for each i; see `CountSketch.add_range`."""
        self.add(counters, kernels.range_ids(first_id, len(counts)), counts)

    def cells(
        self, ids: npt.NDArray[np.uint64], width: int
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Return the cell of each id, and its sign, 1: integers [1, n] each."""
        return self.places(ids, width)[None], np.ones((1, len(ids)), np.int64)

    def places(self, ids: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.intp]:
        """Return the index of each id's counter: intp [n].

        Raises:
            InvalidInputError: an id belongs to no candidate.

        >>> Identity(7).places(np.array([7, 9], np.uint64), width=3).tolist()
        [0, 2]
        """
        if not isinstance(ids, np.ndarray) or ids.dtype != np.uint64:
            raise InvalidInputError("ids must be an array of uint64")
        places = ids - np.uint64(self.first_id)  # mod 2^64: an id below first_id becomes huge
        if len(places) and places.max() >= width:
            raise InvalidInputError(
                f"a histogram counts {width:,} candidates, and"
                f" {np.count_nonzero(places >= width):,} of the given ids belong to none"
            )
        return places.astype(np.intp)


class Part(NamedTuple):
    """A part of a vector that is a sketch of its own, with hashes of its own.

    Attributes:
        start: the index of its first counter in the vector.
        rows: its number of rows.
        width: its number of counters per row. Counters come row by row.
        hashes: the map from its ids to its cells.
        column: with a spelling (see `SketchSpec`), an item is a row of ids, and this is the column
            whose ids this part counts. Without a spelling it is 0.
    """

    start: int
    rows: int
    width: int
    hashes: RoundHash | Identity
    column: int

    def of(self, vector: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the counters of this part: a view, int64 [rows, width]."""
        end = self.start + self.rows * self.width
        return vector[self.start : end].reshape(self.rows, self.width)

    def ids(self, items: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the ids that this part counts, one for each item: uint64 [n]."""
        return items[:, self.column] if np.ndim(items) == 2 else items


@dataclass(frozen=True)
class SketchSpec:
    """The values that two sketches must share to be added or decoded together.

    Args:
        rows: 1 .. 1024. An odd number has a true median; for an even number the two middle rows are
            averaged.
        width: counters per row, 1 .. 2^24.
        schedule: the schedule, or its name: it says which hashes each round has.
        num_rounds: the number of planned rounds; they are counted from 0.
        seed: 32 bytes, public. It must be fixed after the rules of who takes part: nobody may
            choose the clients in view of the hashes.
        spelling: the size of the sketches that spell names, where nobody has the list of items;
            None: no names are spelled. With a spelling an item is not an id, but a row of ids:
            first the hash of the item, and then, for each position, the hash times 256 plus the
            item's symbol there.
        first_id: the id of the first counter of a histogram; None: a sketch, with hashes.

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
        batches = self.schedule.num_batches(self.num_rounds)  # at most as many as rounds, or raises
        hashing.check_seed(self.seed)
        if self.spelling is not None:
            self.spelling.check_batches(batches)
        if self.first_id is not None:
            validate.integer(0, 2**64 - 1, first_id=self.first_id)
            _check_histogram(self.rows, self.schedule, self.spelling)

    @property
    def encoding(self) -> Encoding:
        """How items become counters."""
        return Encoding.SKETCH if self.first_id is None else Encoding.HISTOGRAM

    @property
    def num_batches(self) -> int:
        """The number of batches: the rounds of one batch share their signs."""
        return self.schedule.num_batches(self.num_rounds)

    @property
    def num_positions(self) -> int:
        """The number of positions that all rounds together spell; 0 without a spelling."""
        return 0 if self.spelling is None else self.spelling.positions(self.num_batches)

    @property
    def _spelled(self) -> tuple[int, int]:
        """The number of rows, and of counters, that spell names in the vector of one client."""
        if self.spelling is None:
            return 0, 0
        rows = self.spelling.rows * self.spelling.blocks(self.num_batches)
        return rows, rows * self.spelling.width

    @property
    def touched(self) -> int:
        """The number of counters that one item changes by 1: one in each row of each part."""
        return self.rows + self._spelled[0]

    @property
    def row_widths(self) -> tuple[int, ...]:
        """The number of counters in each row of all parts, in the order of a vector.

        >>> SketchSpec(2, 200, "shared", 1, bytes(32), Spelling(1, 32, max_length=2)).row_widths
        (200, 200, 32, 32, 32)
        """
        spelled = () if self.spelling is None else (self.spelling.width,) * self._spelled[0]
        return (self.width,) * self.rows + spelled

    @property
    def mean_width(self) -> int:
        """The mean number of counters per row: the harmonic mean over all parts, rounded down.

        The mean is harmonic, as two items share a cell of a row of W counters with probability 1/W.
        """
        if self.spelling is None:
            return self.width
        spelled = self._spelled[0]
        meetings = Fraction(self.rows, self.width) + Fraction(spelled, self.spelling.width)
        return math.floor((self.rows + spelled) / meetings)

    @property
    def vector_length(self) -> int:
        """The number of counters of all parts together."""
        return self.rows * self.width + self._spelled[1]

    def positions_of(self, round: int) -> tuple[int, ...]:
        """Return the positions of names that a round's vectors spell, each by its own sketch."""
        batch = self.schedule.batch_of(round, self.num_rounds)
        return positions_of(self.seed, self.num_positions, batch, self.num_batches)

    def parts(self, round: int) -> list[Part]:
        """Return the parts of a round's vectors: the sketch of ids, then one for each position.

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
        """Return the hashes of a position's sketch, the same in every round that spells it."""
        assert self.spelling is not None
        rows = self.spelling.rows
        tables = hashing.tabulation_tables(
            self.seed, self.num_positions * rows, 0, hashing.SPELLING
        )[position * rows : (position + 1) * rows]
        return RoundHash(tables, tables, 0)

    def hashes(self, round: int) -> RoundHash | Identity:
        """Return the map from ids to cells in a round: its hashes, or the places of a histogram."""
        return self.round_hash(round) if self.first_id is None else Identity(self.first_id)

    def round_hash(self, round: int) -> RoundHash:
        """Return the hashes of a round, counted from 0.

        Raises:
            InvalidInputError: the spec is of a histogram, which has no hashes.
        """
        validate.integer(0, self.num_rounds - 1, round=round)
        if self.first_id is not None:
            raise InvalidInputError(
                "a histogram has no hashes: its counters are the counts (recovery direct)"
            )
        # Under `fresh` each round has tables of its own and needs one sign only: the words of its
        # location tables give the sign, too, in bit 0.
        if self.schedule.kind is ScheduleKind.FRESH:
            own = hashing.tabulation_tables(hashing.round_seed(self.seed, round), self.rows)
            return RoundHash(own, own, 0)
        group, bit = divmod(self.schedule.batch_of(round, self.num_rounds), hashing.SIGNS_PER_GROUP)
        location = hashing.tabulation_tables(self.seed, self.rows, 0)
        return RoundHash(location, hashing.tabulation_tables(self.seed, self.rows, group), bit)


class CountSketch:
    """The counters of one round: one client's contribution, or the sum of many.

    Attributes:
        spec: the spec; only sketches of the same spec can be combined.
        round: the round, counted from 0.
        vector: int64 [spec.vector_length], all counters, part by part (`SketchSpec.parts`) and row
            by row.
        counters: int64 [rows, width], the first part of the vector: a view.
        num_clients: the number of clients whose contributions are in the sum. If clients are silos
            it is the number of their people. This number can carry noise, and then may be 0 or
            negative if there are few people.
        num_silos: the number of silos in the sum; 0 if clients are persons.
        noise: the mark of the noise of differential privacy that is in the counters; None: they are
            exact. Only code that adds noise sets the mark. It protects from mistakes, not from
            forgers: anybody can write a file of a sketch.
    """

    def __init__(self, spec: SketchSpec, round: int) -> None:
        self.spec = spec
        self.round = validate.integer(0, spec.num_rounds - 1, round=round)
        self.vector = np.zeros(spec.vector_length, np.int64)
        self.num_clients = 0
        self.num_silos = 0
        self.noise: NoiseMark | None = None

    @property
    def num_vectors(self) -> int:
        """The number of vectors that were summed: one for each silo, or else for each client."""
        return self.num_silos or self.num_clients

    @property
    def counters(self) -> npt.NDArray[np.int64]:
        """The counters of the ids: a view of the vector, int64 [rows, width]."""
        spec = self.spec
        return self.vector[: spec.rows * spec.width].reshape(spec.rows, spec.width)

    @counters.setter
    def counters(self, values: npt.NDArray[np.int64]) -> None:
        self.counters[...] = values

    def all_rows(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the rows of all parts: views, int64 [width of the part]."""
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
        """Add items, each `counts` times, or once if `counts` is absent.

        Args:
            ids: uint64 [n]; ids may repeat. With a spelling, uint64 [n, 1 + positions], a row of
                ids for each item.
            counts: int64 [n], not negative: the number of clients that hold each item.
            num_clients: the number of clients that these items come from. If absent, it is the sum
                of `counts`, or the number of ids without `counts`.

        Raises:
            InvalidInputError: a count is negative, a dtype or a shape is wrong, the total weight
                would reach 2^62, or noise is in the counters already. The sketch is then unchanged.
        """
        whole = None if counts is None else _clients_per_item(counts)
        given = None if num_clients is None else validate.integer(0, num_clients=num_clients)
        self._accumulate(ids, whole)  # refuses weights that could overflow before it adds
        self.num_clients += (
            (len(ids) if whole is None else int(whole.sum())) if given is None else given
        )

    def add_range(
        self, first_id: int, counts: npt.NDArray[np.int64], num_clients: int | None = None
    ) -> None:
        """Add counts[i] items of the id first_id + i (mod 2^64), for each i, as `add` does.

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
        """Add a vector of signed integer weights, so that decoding recovers the clients' sum.

        The weights need not be counts, as the paper remarks on vector recovery. The caller must
        scale real-valued vectors to integers, since sums must be exact under secure summation.

        Args:
            weights: int64 [n].
            ids: uint64 [n], the coordinates; 0 .. n-1 if absent.
            num_clients: the number of clients whose vectors are summed in `weights`.

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
        """Add another sketch of the same spec and round.

        Raises:
            IncompatibleError: the specs, the rounds or the marks of noise differ.
            InvalidInputError: a counter could reach 2^62. After each error this sketch is
                unchanged.
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
        # This check uses the largest counter: the total weight cannot be read from a sum any more.
        self._check_total(_largest(other.vector))
        self.vector += other.vector
        self.num_clients += other.num_clients
        self.num_silos += other.num_silos

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sketch to one file, whole or not at all; only its owner may read a new file."""
        archive.write(path, SCHEMA, self._meta(), self._arrays(), private=True)

    def to_bytes(self) -> bytes:
        """Return the bytes of a file such as `save` writes, for example for a database."""
        # A server packs each sum. Compression level 1 takes half the time of the default level.
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
        """Read a sketch that `save` wrote.

        Raises:
            UnreadableFileError: the file is missing, damaged, or of another kind.
        """
        _, meta, arrays = archive.read(path, SCHEMA, _limits)
        return cls._of(meta, arrays, os.fspath(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "this sketch") -> CountSketch:
        """Return the sketch that `to_bytes` packed.

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
            # Only after these checks: the sketch takes as much memory as its spec says.
            sketch = cls(spec, meta["round"])
            sketch.vector = np.concatenate([counters.reshape(-1), spelled])
            if _largest(sketch.vector) >= _MAX_WEIGHT:
                raise InvalidInputError("a counter is beyond 2^62")
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
        for part in self.spec.parts(self.round):
            part.hashes.add(part.of(self.vector), part.ids(ids), counts)

    def _check_exact(self) -> None:
        """Refuse to add clients to a sum with noise.

        The difference between the sums before and after would show the added items without noise.
        """
        if self.noise is not None:
            raise InvalidInputError(
                f"the counters hold the noise of {self.noise} already: add all clients first, and"
                " then noise"
            )

    def _check_total(self, added: float) -> None:
        """Refuse weights that could overflow int64, before a counter is touched.

        `added` is the largest absolute change of any counter, or a bound on it.
        """
        total = _largest(self.vector) + added
        if total >= _MAX_WEIGHT:
            raise InvalidInputError(
                f"the total weight of a sketch must stay below 2^62, got about {total:.3g}; scale"
                " the weights down"
            )


def _integers(**named: Any) -> npt.NDArray[np.int64]:
    """Return the keyword argument as an array, int64 [n]; errors name it by its keyword."""
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
    # In floating point: the sum of int64 could overflow, and the absolute value of -2^63 does.
    return float(np.abs(counts.astype(np.float64)).sum())


def _largest(counters: npt.NDArray[np.int64]) -> float:
    # Not through np.abs, which would copy all counters and overflow at -2^63.
    return float(max(int(counters.max()), -int(counters.min())))


def checked_number(number: Any, sketch: CountSketch) -> int:
    """Return the number of clients that a file states for a sketch, once it is checked.

    It must be at least 0, unless the sketch is a sum of silos with noise (see `CountSketch`).

    >>> spec = SketchSpec(rows=3, width=64, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> checked_number(7, CountSketch(spec, round=0))
    7
    """
    is_noised = sketch.num_silos > 0 and sketch.noise is not None
    return validate.integer(None if is_noised else 0, num_clients=number)


def noise_mark(values: Any) -> NoiseMark | None:
    """Return the mark of noise from its value in a saved file; None: the sum is exact.

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
    """Refuse what a histogram cannot have: several rows, another schedule, or a spelling."""
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
    """Return one sum for each round, in the order in which the rounds first come.

    If a round has only one sketch, its sum is this sketch itself, not a copy. No given sketch is
    changed.
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
    """Raise IncompatibleError, with the problem and the differences, if the specs differ."""
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
    """Return the spec as JSON-able values, the seed in hex."""
    return {
        "rows": spec.rows,
        "width": spec.width,
        "schedule": str(spec.schedule),
        "num_rounds": spec.num_rounds,
        "seed": spec.seed.hex(),
        # Without a spelling the key is left out: the fingerprint stays that of earlier versions.
        **({} if spec.spelling is None else {"spelling": asdict(spec.spelling)}),
        **({} if spec.first_id is None else {"first_id": spec.first_id}),
    }


def _limits(meta: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int | None]:
    """Return the most bytes of each array of a saved sketch: `archive.Limits`."""
    spec = spec_from_dict(meta)
    return {"counters": 8 * spec.rows * spec.width, "spelled": 8 * spec.vector_length}


def spec_from_dict(values: Mapping[str, Any]) -> SketchSpec:
    """Return the spec from the values that `spec_to_dict` returned."""
    return SketchSpec(
        rows=values["rows"],
        width=values["width"],
        schedule=Schedule.parse(values["schedule"]),
        num_rounds=values["num_rounds"],
        seed=bytes.fromhex(values["seed"]),
        spelling=Spelling(**values["spelling"]) if "spelling" in values else None,
        first_id=values.get("first_id"),
    )
