"""Encoders of items to ids, by a declared domain or by the distinct items of the input itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.domain import (
    Domain,
    IntegerSet,
    Names,
    OpenStrings,
    Strings,
    fingerprint_key,
    fingerprints,
)
from fedtally.domain.columns import as_integers, as_text, distinct, is_grouped
from fedtally.errors import InvalidInputError, OutsideDomainError
from fedtally.sketch import CountSketch

_BLOCK = 1 << 15  # items that are spelled at once, to bound the memory
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Encoder(ABC):
    """An encoder of items to ids."""

    def encode(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids, and a mask of the rows that they come from (None: all rows).

        Of a dictionary each value is encoded once, and errors tell of values and not of rows.
        """
        if not (is_grouped(items) or self._groups(items)):
            return self.encode_each(items)
        values, places = distinct(items)
        ids, inside = self.encode_each(values)
        if inside is None:
            return ids[places], None
        own = np.zeros(len(inside), np.uint64)
        own[inside] = ids
        rows = inside[places]
        return own[places][rows], rows

    @abstractmethod
    def encode_each(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Do the same for items that are no dictionary, and of which hardly any two are equal."""

    def _groups(self, items: Any) -> bool:
        """Return whether finding the distinct items takes less time than encoding all."""
        return False

    @abstractmethod
    def domain(self) -> Domain:
        """Return the domain."""


class Declared(Encoder):
    """The encoder of a declared domain.

    Args:
        domain: the domain.
        outside: the fate of items outside it: "error" or "drop".
        unreadable: count items that cannot be read as items outside, instead of an error. Under
            privacy an error would show that somebody holds such an item.
    """

    def __init__(self, domain: Domain, outside: str, unreadable: bool = False) -> None:
        self._domain = domain
        self._drop = outside == "drop"
        self._inside = domain.inside if unreadable else domain.contains

    def encode_each(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids of items of which hardly any two are equal; see `Encoder.encode`."""
        if not self._drop:
            try:
                return self._domain.encode(items), None
            except OutsideDomainError as error:
                raise OutsideDomainError(
                    f"{error}, or leave out what is outside (--outside drop)"
                ) from None
        inside = self._inside(items)
        if inside.all():
            return self._domain.encode(items), None
        return self._domain.encode(items.filter(inside)), inside

    def domain(self) -> Domain:
        """Return the domain."""
        return self._domain


class FromInput(Encoder):
    """The encoder of the items that the input holds, which remembers the distinct ones.

    The id of an integer is its value, that of a text its fingerprint.

    Args:
        seed: the seed of the campaign, which keys the fingerprints.
    """

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._integers: bool | None = None
        self._ids: list[U64] = []  # of the items so far, some of which may be there several times
        self._texts: list[Any] = []  # of the same items, where they are text
        self._known = self._waiting = 0

    def encode_each(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids of items of which hardly any two are equal; see `Encoder.encode`."""
        integers = is_integer(items)
        if self._integers not in (None, integers):
            raise InvalidInputError(
                "some batches of the input hold integers and some text; give the items one type, or"
                " declare a --domain"
            )
        self._integers = integers
        if integers:
            values, fits = as_integers(items)
            if not fits.all():
                raise InvalidInputError(
                    "an item is an integer beyond 64 bits with sign; write such items as text"
                )
            ids = values.view(np.uint64)
            self._remember(ids)
            return ids, None
        return self._encode_text(items), None

    def _groups(self, items: Any) -> bool:
        return not is_integer(items)

    def domain(self) -> Domain:
        """Return the distinct items so far as a domain that is not public, in order of id."""
        items = self.items()
        if self._integers:
            return IntegerSet(items.to_numpy())
        return Strings(items, self._seed)

    def items(self) -> Any:
        """Return the distinct items so far, in order of id: an Arrow array of text or int64."""
        import pyarrow as pa

        self._merge()
        if self._integers:
            return pa.array(np.sort(self._ids[0]).view(np.int64))
        return self._texts[0].take(pa.array(np.argsort(self._ids[0])))

    def _encode_text(self, items: Any) -> U64:
        texts = self._normal(as_text(items))
        ids = fingerprints(texts, fingerprint_key(self._seed))
        self._remember(ids, texts)
        return ids

    def _normal(self, texts: Any) -> Any:
        """Return texts in the form in which they are items."""
        return texts

    def _remember(self, ids: U64, texts: Any = None) -> None:
        self._ids.append(ids)
        if texts is not None:
            self._texts.append(texts)
        self._waiting += len(ids)
        # a million on top: looking for equal ones takes as long as there are items, new or not
        if self._waiting > self._known + (1 << 20):
            self._merge()

    def _merge(self) -> None:
        """Leave each item once, in the order in which they were met."""
        import pyarrow as pa

        ids = np.concatenate([np.empty(0, np.uint64), *self._ids])
        places = pa.array(ids).dictionary_encode().indices.to_numpy()
        # distinct values are numbered as they are met, so that a new one has the largest number yet
        first = np.flatnonzero(np.diff(np.maximum.accumulate(places), prepend=-1))
        self._ids, self._known, self._waiting = [ids[first]], len(first), 0
        if not self._integers:
            texts = pa.concat_arrays([*self._texts, pa.array([], pa.large_string())])
            self._texts = [texts.take(pa.array(first))]


class Spelled(FromInput):
    """The encoder of an open domain, which remembers the distinct strings: clients spell them.

    The id of a string is its fingerprint.

    Args:
        domain: the domain.
        seed: the seed of the campaign, which keys the fingerprints.
        unreadable: leave out items that cannot be read, instead of an error, as for `Declared`.
    """

    def __init__(self, domain: OpenStrings, seed: bytes, unreadable: bool = False) -> None:
        super().__init__(seed)
        self._domain, self._unreadable = domain.with_seed(seed), unreadable

    def encode_each(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids of items of which hardly any two are equal; see `Encoder.encode`."""
        inside = self._domain.inside(items) if self._unreadable else None
        if inside is not None and not inside.all():
            items = items.filter(inside)
        return self._encode_text(items), inside

    def _normal(self, texts: Any) -> Any:
        return as_text(self._domain.text(texts))

    def domain(self) -> Domain:
        """Return the domain."""
        return self._domain

    def names(self) -> Names:
        """Return the distinct strings so far."""
        self._merge()
        return Names(self._domain, self._texts[0])


def add_items(
    sketch: CountSketch, ids: U64, counts: I64, clients: int, names: Names | None
) -> None:
    """Add the counted items of a round to its sketch.

    Args:
        sketch: the sketch, which is changed.
        ids: uint64 [n].
        counts: int64 [n], how often each is held.
        clients: the number of clients that hold them.
        names: the strings of the ids, where the domain is open.
    """
    if names is None:
        sketch.add(ids, counts, clients)
        return
    for start in range(0, len(ids), _BLOCK):
        some = slice(start, start + _BLOCK)
        sketch.add(names.spell(ids[some], sketch.spec.num_positions), counts[some], 0)
    sketch.num_clients += clients


def is_integer(items: Any) -> bool:
    """Return whether an Arrow array holds integers."""
    import pyarrow as pa

    return bool(pa.types.is_integer(items.type))


def client_keys(clients: Any, key: bytes) -> U64:
    """Return 64 bits for each client: an integer itself, or the fingerprint of a text.

    Args:
        clients: the names of the clients, an Arrow array.
        key: the key of the fingerprints. Nobody must know it beforehand, or names could be chosen
            that collide, and two clients would count as one.
    """
    if is_integer(clients):
        keys: U64 = (
            clients.to_numpy(zero_copy_only=False).astype(np.int64, copy=False).view(np.uint64)
        )
        return keys
    return fingerprints(clients, fingerprint_key(key))
