"""The contract of all domains, on which sketches, decoders and results rely."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedtally.base import arrow, validate
from fedtally.base.text import in_number
from fedtally.domain.columns import shown
from fedtally.domain.look_alikes import Oddities
from fedtally.domain.plain import Texts
from fedtally.errors import InvalidInputError, OutsideDomainError

ID_MODULUS = 1 << 64


class Domain(ABC):
    """An immutable, finite set of candidate items at positions 0 to ``size - 1``, with 64-bit ids.

    Attributes:
        kind: the name of the domain's class in descriptions, plans and saved results.
        noun: the word for one item of the domain.
        holds_integers: whether the items are integers, and not text.
        public: Whether the items may be known to everybody; False for the distinct items of an
            input.
        size: Number of candidates, 1 to 2^63.
        first_id: The id of position 0, if the id of position i is ``first_id + i`` (mod 2^64) for
            all positions; otherwise None.
    """

    kind: ClassVar[str]
    noun: ClassVar[str] = "item"
    holds_integers: ClassVar[bool] = False
    _way_out: ClassVar[str]
    _form: ClassVar[str | None] = None
    public: bool
    size: int
    first_id: int | None

    @property
    def collision_probability(self) -> float:
        """A bound on the probability, over the seed, that two candidates share an id.

        It is 0.0 except for `Strings`.
        """
        return 0.0

    @property
    def num_spaced(self) -> int:
        """The number of candidates that begin or end with white space; 0 if they are no text."""
        return 0

    @property
    def oddities(self) -> Oddities:
        """Properties of text candidates that people may not see, such as invisible characters."""
        return Oddities()

    @abstractmethod
    def _find(self, items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the position of each item, and whether the item is in the domain.

        The position of an item that is not in the domain may be any number.
        """

    @abstractmethod
    def _ids_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the ids of positions, which the caller has checked, uint64[n]."""

    @abstractmethod
    def _labels(self, positions: npt.NDArray[np.int64]) -> list[Any]:
        """Return the labels of positions, which the caller has checked."""

    @abstractmethod
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that `load` needs beside ``describe()``, without Python objects.

        They may hold private items. The code that stores them must decide who may read them.
        """

    @classmethod
    @abstractmethod
    def rebuild(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild the domain from its description and arrays; use `load`, which checks them."""

    def with_seed(self, seed: bytes) -> Domain:
        """Return this domain for the seed of a campaign; the same domain if ids need no seed.

        Args:
            seed: the seed of the campaign's hashes, 32 bytes.
        """
        return self

    def ids(self, start: int, stop: int) -> npt.NDArray[np.uint64]:
        """Return the ids of the positions ``start`` to ``stop - 1``, uint64[stop - start]."""
        start = validate.integer(0, self.size, start=start)
        stop = validate.integer(start, self.size, stop=stop)
        return self._ids_at(np.arange(start, stop, dtype=np.int64))

    def ids_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the ids of the candidates at positions in 0 to ``size - 1``, uint64[n]."""
        return self._ids_at(positions)

    def encode(self, items: Any) -> npt.NDArray[np.uint64]:
        """Return the id of each item, uint64[n].

        Raises:
            OutsideDomainError: Some items are not candidates. The message says how many, and names
                the first.
        """
        return self._ids_at(self.locate(items))

    def inside(self, items: Any) -> npt.NDArray[np.bool_]:
        """Return whether each item is a candidate, bool[n], without an error for unreadable items.

        Unlike `contains`, it answers False for an item that cannot be read as one of this kind.

        >>> from fedtally.domain import IntegerRange
        >>> IntegerRange(1, 9).inside(["7", "tea", None, 8.5, "12"]).tolist()
        [True, False, False, False, False]
        """
        form = self._has_form(items)
        if form is not None and not form.all():
            found = np.zeros(len(items), np.bool_)
            found[form] = self.inside(items.filter(form))
            return found
        try:
            return self.contains(items)
        # The column was refused, by this package, by a codec or by Arrow.
        except arrow.errors(ValueError, OverflowError):
            # Each half is tried, down to single items. This is fast if there are few bad items.
            middle = len(items) // 2
            if isinstance(items, str | bytes):
                raise
            if not middle:
                return np.zeros(len(items), np.bool_)
            return np.concatenate([self.inside(items[:middle]), self.inside(items[middle:])])

    def _has_form(self, items: Any) -> npt.NDArray[np.bool_] | None:
        """Return which texts of a column can be items of this kind by their form, bool[n].

        None: it is no column of text, or items of this kind may be any text.
        """
        if self._form is None:
            return None
        if isinstance(items, Texts):
            return items.holds(self._form)
        if not arrow.is_installed():
            return None
        import pyarrow as pa
        import pyarrow.compute as pc

        if not isinstance(items, pa.Array) or items.type not in (pa.string(), pa.large_string()):
            return None
        matched = pc.fill_null(pc.match_substring_regex(items, self._form), False)
        form: npt.NDArray[np.bool_] = matched.to_numpy(zero_copy_only=False)
        return form

    def fingerprints(self, items: Any) -> npt.NDArray[np.uint64]:
        """Return a number for each item that differs between a client's items, uint64[n].

        It is the item's id, except in an open domain, where several strings may share an id.
        """
        return self.encode(items)

    def contains(self, items: Any) -> npt.NDArray[np.bool_]:
        """Return whether each item is a candidate, bool[n]."""
        return self._find(items)[1]

    def locate(self, items: Any) -> npt.NDArray[np.int64]:
        """Return the position of each item, int64[n].

        Raises:
            OutsideDomainError: Some items are not candidates. The message says how many, and names
                the first.
        """
        positions, found = self._find(items)
        if not found.all():
            rows = np.flatnonzero(~found)
            verb = in_number(rows.size, "is", "are")
            raise OutsideDomainError(
                f"{rows.size:,} of {found.size:,} items {verb} outside the domain {self}, "
                f"the first is {shown(items, rows[0])}; {self._way_out}"
            )
        return positions

    def labels(self, positions: npt.ArrayLike) -> list[Any]:
        """Return the label of each position for people: an int for integers, otherwise a str.

        Raises:
            InvalidInputError: A position is not in 0 to ``size - 1``.
        """
        where = np.asarray(positions)
        if where.size == 0:
            return []
        if where.ndim != 1 or where.dtype.kind not in "iu":
            raise InvalidInputError(
                f"positions must be a one-dimensional array of integers, got {where.dtype}"
                f" {where.shape}"
            )
        validate.integer(0, self.size - 1, position=where.min())
        validate.integer(0, self.size - 1, position=where.max())
        return self._labels(where.astype(np.int64, copy=False))

    def describe(self) -> dict[str, Any]:
        """Return the public parameters for JSON: kind, size, public, and more for some kinds.

        A public domain of listed items adds the SHA-256 of its items. One that is not public adds
        nothing, since guesses of its items could be checked with the digest.
        """
        return {"kind": self.kind, "size": self.size, "public": self.public}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Domain) or type(self) is not type(other):
            return NotImplemented
        mine, others = self.arrays(), other.arrays()
        return self.describe() == other.describe() and all(
            np.array_equal(mine[name], others[name]) for name in mine
        )

    def __hash__(self) -> int:
        # Without the items, which may be many: domains that differ only in items share a hash.
        return hash((self.kind, self.size, self.first_id))

    def __str__(self) -> str:
        return f"{self.kind} ({self.size:,} item{'s' * (self.size > 1)})"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, public={self.public})"
