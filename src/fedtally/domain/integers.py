"""Domains of integers: a range, or the distinct integers of a column. The id of v is v mod 2^64."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.domain.columns import INTEGER, as_integers
from fedtally.domain.contract import ID_MODULUS, Domain
from fedtally.errors import InvalidInputError

_MIN, _MAX = -(1 << 63), (1 << 63) - 1


class IntegerRange(Domain):
    """The public domain of all integers from ``first`` to ``last``, at most 2^63 of them.

    Items are integers, or text that writes them in decimal. The text ``7.0`` is accepted as 7,
    since tables write integers in this form in columns with missing values. Floats are refused.

    Args:
        first: The smallest integer of the range, at least -2^63.
        last: The largest integer of the range, at most 2^63 - 1.

    >>> years = IntegerRange(-50, 2026)
    >>> years.size, years.locate(["-50", "0"])
    (2077, array([ 0, 50]))
    >>> years.encode([1, -1])
    array([                   1, 18446744073709551615], dtype=uint64)
    """

    kind: ClassVar[str] = "range"
    noun: ClassVar[str] = "integer"
    holds_integers: ClassVar[bool] = True
    _way_out: ClassVar[str] = "widen the range"
    _form = INTEGER

    def __init__(self, first: int, last: int) -> None:
        self.first = validate.integer(_MIN, _MAX, first=first)
        self.last = validate.integer(self.first, _MAX, last=last)
        self.public = True
        self.size = self.last - self.first + 1
        self.first_id = self.first % ID_MODULUS
        if self.size > 1 << 63:  # positions are int64
            raise InvalidInputError(f"a range holds at most 2^63 integers, got {self}; narrow it")

    def _find(self, items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        values, fits = as_integers(items)
        # The difference may overflow for values outside the range. Their position is not used.
        return values - np.int64(self.first), fits & (values >= self.first) & (values <= self.last)

    def _ids_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return (positions + np.int64(self.first)).view(np.uint64)  # two's complement is mod 2^64

    def _labels(self, positions: npt.NDArray[np.int64]) -> list[int]:
        labels: list[int] = (positions + np.int64(self.first)).tolist()
        return labels

    def describe(self) -> dict[str, Any]:
        """Return kind, size, public, first and last.

        >>> IntegerRange(1, 100).describe()
        {'kind': 'range', 'size': 100, 'public': True, 'first': 1, 'last': 100}
        """
        return {**super().describe(), "first": self.first, "last": self.last}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return an empty dict: the description is enough to rebuild the range.

        >>> IntegerRange(1, 100).arrays()
        {}
        """
        return {}

    @classmethod
    def rebuild(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild the range from its description.

        >>> IntegerRange.rebuild({"first": 1, "last": 9}, {})
        IntegerRange(1, 9)
        """
        return cls(meta["first"], meta["last"])

    def __str__(self) -> str:
        return f"range:{self.first}..{self.last}"

    def __repr__(self) -> str:
        return f"IntegerRange({self.first}, {self.last})"


class IntegerSet(Domain):
    """The domain of the distinct integers of a column, in ascending order.

    Args:
        values: Integers from -2^63 to 2^63 - 1, or text that writes them; duplicates are ignored.
        public: Whether everybody may know the integers. Keep False if they come from private data.

    Raises:
        InvalidInputError: There are no values, a value is no integer, or it is out of bounds.

    >>> plates = IntegerSet([7, 42, 7])
    >>> plates, plates.locate([42]), plates.contains([7, 8])
    (IntegerSet(size=2, public=False), array([1]), array([ True, False]))
    """

    kind: ClassVar[str] = "integers"
    noun: ClassVar[str] = "integer"
    holds_integers: ClassVar[bool] = True
    _way_out: ClassVar[str] = "declare a domain that holds them"
    _form = INTEGER

    def __init__(self, values: Any, *, public: bool = False) -> None:
        found, fits = as_integers(values)
        if found.size == 0:
            raise InvalidInputError("a domain needs at least one item, got none")
        if not fits.all():
            raise InvalidInputError(
                f"integers must be within -2^63 and 2^63 - 1, got {(~fits).sum():,} outside of it"
            )
        self._values = np.unique(found)
        self.public = bool(public)
        self.size = self._values.size
        first, last = int(self._values[0]), int(self._values[-1])
        # Decoders enumerate consecutive ids as a range, which is faster than reading a list.
        self.first_id = first % ID_MODULUS if last - first + 1 == self.size else None

    def _find(self, items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        values, fits = as_integers(items)
        # For an item above all values of the set, `searchsorted` returns `size`, which is no
        # position. The last position is taken instead. Its value is not the item, so the item is
        # found to be outside.
        positions = np.minimum(np.searchsorted(self._values, values), self.size - 1)
        return positions.astype(np.int64, copy=False), fits & (self._values[positions] == values)

    def _ids_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return self._values[positions].view(np.uint64)  # two's complement is mod 2^64

    def _labels(self, positions: npt.NDArray[np.int64]) -> list[int]:
        labels: list[int] = self._values[positions].tolist()
        return labels

    def describe(self) -> dict[str, Any]:
        """Return kind, size and public, and for a public set ``sha256``.

        ``sha256`` is the digest of the values as little-endian int64, ascending. A private set has
        no ``sha256``: anybody could use the digest to check a guess of its integers.

        >>> IntegerSet([7, 42]).describe()
        {'kind': 'integers', 'size': 2, 'public': False}
        """
        described = super().describe()
        if self.public:
            described["sha256"] = hashlib.sha256(
                self._values.astype("<i8", copy=False).data
            ).hexdigest()
        return described

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the sorted ``values``, int64[size].

        >>> IntegerSet([42, 7]).arrays()
        {'values': array([ 7, 42])}
        """
        return {"values": self._values}

    @classmethod
    def rebuild(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild the set from its values.

        >>> IntegerSet.rebuild({"public": True}, {"values": np.array([7, 42])})
        IntegerSet(size=2, public=True)
        """
        return cls(arrays["values"], public=meta["public"])
