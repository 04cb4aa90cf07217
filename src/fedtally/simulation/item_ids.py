"""Encoders of items to ids, by a declared domain or by the distinct items of the input itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

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
from fedtally.domain.columns import as_integers, as_text, distinct, is_grouped, numbers_of, taken
from fedtally.errors import InvalidInputError, OutsideDomainError, arg, opt
from fedtally.kernels.rows import group
from fedtally.sketch import CountSketch

_FEW = 1 << 17  # rows that are counted at once, to bound the memory
_BLOCK = 1 << 15  # items that are spelled at once, to bound the memory
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Encoded(NamedTuple):
    """The ids of some items.

    Attributes:
        ids: uint64, the ids of the items inside the domain.
        inside: a mask of the items inside the domain; None: all are.
        counts: int64, the number of rows with each item; None where the items are the rows.
        met: what `Encoder.remember` takes: ids that may be new, and their items.
    """

    ids: U64
    inside: npt.NDArray[np.bool_] | None
    counts: I64 | None = None
    met: tuple[U64, Any] | None = None


class Encoder(ABC):
    """An encoder of items to ids."""

    def encode(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids, and a mask of the rows that they come from (None: all rows).

        The items are an Arrow array, one for each row. If the array has a dictionary, each value of
        it is encoded once, and errors count values and not rows.
        """
        found = self.look_up(items)
        self.remember(found)
        return found.ids, found.inside

    @abstractmethod
    def look_up(self, items: Any, *, counted: bool = False) -> Encoded:
        """Return the ids of rows; or, if `counted`, of their distinct items, with counts of rows.

        Nothing is remembered, so that several threads may look up.
        """

    @abstractmethod
    def remember(self, found: Encoded) -> None:
        """Keep the items that were looked up, if the candidates are the items of the input."""

    @abstractmethod
    def domain(self) -> Domain:
        """Return the domain."""

    def names(self) -> Names | None:
        """Return the strings of the ids, where clients spell them; else None."""
        return None

    def items(self) -> Any:
        """Return the distinct items of the input, where they are the candidates; else None."""
        return None


def _counted(items: Any) -> tuple[Any, I64]:
    """Return the distinct values of an Arrow array, and how many rows have each.

    >>> import pyarrow as pa
    >>> items, counts = _counted(pa.array(["tea", "rice", "tea"]))
    >>> items.to_pylist(), counts.tolist()
    (['tea', 'rice'], [2, 1])
    """
    if not is_grouped(items):
        found = items.value_counts()
        return found.field("values"), numbers_of(found.field("counts"))
    places, counts = numbers_of(items.indices), np.zeros(len(items.dictionary), np.int64)
    for start in range(0, len(places), _FEW):  # NumPy copies what it counts
        counts += np.bincount(places[start : start + _FEW], minlength=len(counts))
    held = counts > 0  # a dictionary may hold values that no row has
    if held.all():  # as most dictionaries: then no text is copied
        return items.dictionary, counts
    return items.dictionary.filter(held), counts[held]


def _of_rows(
    ids: U64, inside: npt.NDArray[np.bool_] | None, places: I64
) -> tuple[U64, npt.NDArray[np.bool_] | None]:
    """Return the ids of rows, and a mask of the rows inside the domain (None: all).

    Args:
        ids: uint64, the ids of the distinct items inside the domain.
        inside: bool, a mask of the distinct items inside the domain; None: all are.
        places: int64 [rows], the index of each row's item among the distinct items.
    """
    if inside is None:
        return ids[places], None
    own = np.zeros(len(inside), np.uint64)
    own[inside] = ids
    rows = inside[places]
    return own[places][rows], rows


class Declared(Encoder):
    """The encoder of a declared domain.

    Args:
        domain: the domain.
        outside: the fate of items outside it: "error" or "drop".
        unreadable: whether items that cannot be read count as items outside, in place of an error.
            Under privacy an error would show that somebody holds such an item.
    """

    def __init__(self, domain: Domain, outside: str, unreadable: bool = False) -> None:
        self._domain = domain
        self._drop = outside == "drop"
        self._inside = domain.inside if unreadable else domain.contains

    def look_up(self, items: Any, *, counted: bool = False) -> Encoded:
        """Return the ids of rows, or of their distinct items; see `Encoder.look_up`."""
        if counted:
            values, counts = _counted(items)
            return Encoded(*self.encode_each(values), counts)
        if not is_grouped(items):
            return Encoded(*self.encode_each(items))
        values, places = distinct(items)
        return Encoded(*_of_rows(*self.encode_each(values), places))

    def encode_each(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids of items that are no dictionary; see `Encoder.encode`."""
        if not self._drop:
            try:
                return self._domain.encode(items), None
            except OutsideDomainError as error:
                # The ways out are named only here. They would be no help in a private campaign, nor
                # for an item whose count a user asks for.
                every = "" if self._domain.kind == "grid" else f", use {opt.domain('input')}"
                raise OutsideDomainError(
                    f"{error.marked}{every}, or leave out what is outside ({opt.outside('drop')})"
                ) from None
        inside = self._inside(items)
        if inside.all():
            return self._domain.encode(items), None
        return self._domain.encode(items.filter(inside)), inside

    def remember(self, found: Encoded) -> None:
        """Keep nothing: the candidates are known."""

    def domain(self) -> Domain:
        """Return the domain."""
        return self._domain


class FromInput(Encoder):
    """The encoder of the items that the input holds, which remembers the distinct ones.

    The id of an integer is its value; the id of a text is its fingerprint.

    Args:
        seed: the seed of the campaign, which keys the fingerprints.
    """

    _groups_first = False  # whether equal items are found before they become ids

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._integers: bool | None = None
        self._ids: list[U64] = []  # ids of the items so far; an id may be there several times
        self._texts: list[Any] = []  # the texts of these ids, if the items are text
        self._known = self._waiting = 0

    def look_up(self, items: Any, *, counted: bool = False) -> Encoded:
        """Return the ids of rows, or of their distinct items; see `Encoder.look_up`."""
        if is_grouped(items) or self._groups_first:
            values, rows = _counted(items) if counted else distinct(items)
            ids, inside, texts = self._read(values)
            met = ids, texts
            if counted:
                return Encoded(ids, inside, rows, met)
            return Encoded(*_of_rows(ids, inside, rows), None, met)
        # Equal items are found by their ids, in a fraction of the time that comparing texts takes.
        ids, inside, texts = self._read(items)
        first, counts = group(ids)
        met = ids[first], None if texts is None else taken(texts, first)
        return Encoded(met[0], inside, counts, met) if counted else Encoded(ids, inside, None, met)

    def remember(self, found: Encoded) -> None:
        """Keep the items that were looked up."""
        assert found.met is not None
        ids, texts = found.met
        if self._integers not in (None, texts is None):
            raise InvalidInputError(
                "some batches of the input hold integers and some text; give the items one type, or"
                f" declare a {opt.domain}"
            )
        self._integers = texts is None
        self._ids.append(ids)
        if texts is not None:
            self._texts.append(texts)
        self._waiting += len(ids)
        # Wait for as many new items as are known, and a million more: a merge takes time in
        # proportion to all items, new or not.
        if self._waiting > self._known + (1 << 20):
            self._merge()

    def _read(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None, Any]:
        """Return the ids, a mask of the items inside the domain, and the texts of the ids.

        The mask is None if all items are inside. The texts are None if the items are integers.
        """
        if not is_integer(items):
            texts = as_text(items)
            return fingerprints(texts, fingerprint_key(self._seed)), None, texts
        values, fits = as_integers(items)
        if not fits.all():
            raise InvalidInputError(
                "an item is an integer beyond 64 bits with sign; write such items as text"
            )
        return values.view(np.uint64), None, None

    def domain(self) -> Domain:
        """Return the distinct items so far as a domain that is not public, in order of id."""
        items = self._all_items()
        if self._integers:
            return IntegerSet(items.to_numpy())
        return Strings(items, self._seed)

    def items(self) -> Any:
        """Return the distinct items so far, in order of id: an Arrow array of text or int64.

        The answer is None if there are no items, since nothing shows their type then.
        """
        items = self._all_items()
        return items if len(items) else None

    def _all_items(self) -> Any:
        import pyarrow as pa

        self._merge()
        if self._integers:
            return pa.array(np.sort(self._ids[0]).view(np.int64))
        return taken(self._texts[0], np.argsort(self._ids[0]))

    def _merge(self) -> None:
        """Leave each item once, in the order in which they were met."""
        import pyarrow as pa

        ids = np.concatenate([np.empty(0, np.uint64), *self._ids])
        first, _ = group(ids)
        self._ids, self._known, self._waiting = [ids[first]], len(first), 0
        if not self._integers:
            texts = pa.concat_arrays([*self._texts, pa.nulls(0, pa.large_string())])
            self._texts = [taken(texts, first)]


class Spelled(FromInput):
    """The encoder of an open domain, which remembers the distinct strings: clients spell them.

    The id of a string is its fingerprint.

    Args:
        domain: the domain.
        seed: the seed of the campaign, which keys the fingerprints.
        unreadable: leave out items that cannot be read, instead of an error, as for `Declared`.
    """

    _groups_first = True  # bringing a text into the normal form takes longest

    def __init__(self, domain: OpenStrings, seed: bytes, unreadable: bool = False) -> None:
        super().__init__(seed)
        self._domain, self._unreadable = domain.with_seed(seed), unreadable

    def _read(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None, Any]:
        inside = self._domain.inside(items) if self._unreadable else None
        if inside is not None and not inside.all():
            items = items.filter(inside)
        texts = as_text(self._domain.text(as_text(items)))
        return fingerprints(texts, fingerprint_key(self._seed)), inside, texts

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
        counts: int64 [n], the number of clients that hold each item.
        clients: the number of all clients of the round, also of those that hold nothing.
        names: the strings of the ids, where the domain is open.
    """
    if names is None:
        sketch.add(ids, counts, clients)
        return
    for start in range(0, len(ids), _BLOCK):
        some = slice(start, start + _BLOCK)
        sketch.add(names.spell(ids[some], sketch.spec.num_positions), counts[some], 0)
    sketch.num_clients += clients


def fate_outside(asked: str | None, *, is_private: bool) -> str:
    """Return what happens to items outside the domain, "error" or "drop".

    Under privacy items outside are dropped: an error would tell what a client holds.

    Args:
        asked: "error" or "drop", as the caller asks for; None: nothing was asked for.
        is_private: whether the campaign is private.

    >>> fate_outside(None, is_private=True), fate_outside(None, is_private=False)
    ('drop', 'error')
    """
    if asked not in (None, "error", "drop"):
        raise InvalidInputError(f"{arg.outside} must be error or drop, got {asked!r}")
    return asked or ("drop" if is_private else "error")


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
