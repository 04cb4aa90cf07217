"""`Domain`: the methods that sketches, decoders and results expect from every domain."""

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
from fedtally.domain.plain import Texts, check_column
from fedtally.errors import InvalidInputError, OutsideDomainError

ID_MODULUS = 1 << 64


class Domain(ABC):
    """An immutable, finite set of candidate items at positions 0 to ``size - 1``, with 64-bit ids.

    Attributes:
        kind: the name of the domain's class in descriptions, plans and saved results.
        noun: what messages call one item of the domain.
        holds_integers: True if the items are integers. False if they are text, also
            "latitude,longitude" text.
        public: Whether everybody may know the candidates. False if they were collected from private
            data.
        size: the number of candidates, 1 to 2^63.
        first_id: the id of position 0, if the ids are known to be consecutive: position i has the
            id ``first_id + i`` (mod 2^64). Otherwise None.
    """

    kind: ClassVar[str]
    noun: ClassVar[str] = "item"
    holds_integers: ClassVar[bool] = False
    _way_out: ClassVar[str]  # the last words of the error about items outside: what users can do
    # A regular expression that the text of each item must match; None: any text may be an item.
    _form: ClassVar[str | None] = None
    public: bool
    size: int
    first_id: int | None

    @property
    def collision_probability(self) -> float:
        """An upper bound on the probability, over a random seed, that two candidates share an id.

        It is 0.0 in all domains except `Strings`. It is 0.0 in open domains, too: their candidates
        are the hashes, not the strings.
        """
        return 0.0

    @property
    def num_spaced(self) -> int:
        """How many candidates begin or end with white space; 0 if candidates are no text."""
        return 0

    @property
    def oddities(self) -> Oddities:
        """What people may overlook in text candidates, such as invisible characters.

        If candidates are no text, the value is ``Oddities()``, which names nothing.
        """
        return Oddities()

    @abstractmethod
    def _find(self, items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the position of each item, int64[n], and whether it is a candidate, bool[n].

        An item that is no candidate may get any position.
        """

    @abstractmethod
    def _ids_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Return the ids of positions, uint64[n]; their range is not checked."""

    @abstractmethod
    def _labels(self, positions: npt.NDArray[np.int64]) -> list[Any]:
        """Return the labels of positions; the caller has checked their range."""

    @abstractmethod
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that `load` needs besides ``describe()``, none of dtype object.

        They may hold private items: whoever stores them must restrict who can read them.
        """

    @classmethod
    @abstractmethod
    def rebuild(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild the domain from its description and arrays.

        Call `load` instead, which calls this function and checks the result.
        """

    def with_seed(self, seed: bytes) -> Domain:
        """Return this domain for a campaign with this seed.

        An open domain returns a copy that hashes with this seed. All other domains return
        themselves. `Strings` keeps the seed of its constructor.

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
        """Return the id of the candidate at each position, uint64[n].

        Positions must be in 0 to ``size - 1``. This is not checked.
        """
        return self._ids_at(positions)

    def encode(self, items: Any) -> npt.NDArray[np.uint64]:
        """Return the id of each item, uint64[n].

        `Strings` and open domains accept every string.

        Raises:
            OutsideDomainError: Some items are no candidates. The message gives their number and the
                first of them.
        """
        return self._ids_at(self.locate(items))

    def inside(self, items: Any) -> npt.NDArray[np.bool_]:
        """Return whether each item is a candidate, bool[n]; False for items of the wrong kind.

        Unlike this method, `contains` raises an error for an item of the wrong kind.

        Raises:
            InvalidInputError: `items` is no column, such as a single text or a set.

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
        # A single bad item is enough for an error of this package, a codec or Arrow.
        except arrow.errors(ValueError, OverflowError):
            check_column(items)
            # Try each half, down to single items. This is fast if few items are bad.
            middle = len(items) // 2
            if isinstance(items, str | bytes):
                raise
            if not middle:
                return np.zeros(len(items), np.bool_)
            return np.concatenate([self.inside(items[:middle]), self.inside(items[middle:])])

    def _has_form(self, items: Any) -> npt.NDArray[np.bool_] | None:
        """Return whether each text of a column matches `_form`, bool[n].

        Returns None in two cases: `_form` is None, or the column is neither an Arrow array of text
        nor a `Texts`.
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
        """Return a number for each item, uint64[n], which tells a client's items apart.

        The number is the item's id, except in an open domain. There several strings may share a
        short id, so the number is a longer hash of 61 bits (`OpenStrings.fingerprints`).
        """
        return self.encode(items)

    def contains(self, items: Any) -> npt.NDArray[np.bool_]:
        """Return whether each item is a candidate, bool[n].

        Raises:
            InvalidInputError: Items are of the wrong kind.
        """
        return self._find(items)[1]

    def locate(self, items: Any) -> npt.NDArray[np.int64]:
        """Return the position of each item, int64[n].

        Raises:
            OutsideDomainError: Some items are no candidates. The message gives their number and the
                first of them.
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
        """Return the label of each position, for people: an int if items are integers, else a str.

        Raises:
            InvalidInputError: A position is not in 0 to ``size - 1``, or the positions are no
                one-dimensional array of integers.
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
        """Return the domain's parameters, for JSON: kind, size, public, and more for some kinds.

        All parameters may be published. A public list of candidates has ``sha256``, the digest of
        the list. A private list has no ``sha256``: anybody could use the digest to check a guess of
        the list.
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
        # Items are left out, as they may be many: unequal domains may have equal hashes.
        return hash((self.kind, self.size, self.first_id))

    def __str__(self) -> str:
        return f"{self.kind} ({self.size:,} item{'s' * (self.size > 1)})"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, public={self.public})"
