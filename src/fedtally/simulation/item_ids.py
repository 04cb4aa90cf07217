"""Encoders: they map items to 64-bit ids, by a declared domain or by the input's own items."""

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

_FEW = 1 << 17  # the most rows to count at once, to bound memory
_BLOCK = 1 << 15  # the most items to spell at once, to bound memory
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Encoded(NamedTuple):
    """The ids of some items, or of the distinct items of some rows.

    Attributes:
        ids: uint64, the ids of the items inside the domain, in the order of the items.
        inside: bool, a mask of all the items: whether each is inside the domain. None: all are.
        counts: int64, the number of rows with each distinct item; items outside the domain have an
            entry, too. None if the items are the rows' items, and not the distinct items.
        met: the ids that may be new, and their texts (None for integers), for `Encoder.remember`;
            None if the encoder remembers nothing.
    """

    ids: U64
    inside: npt.NDArray[np.bool_] | None
    counts: I64 | None = None
    met: tuple[U64, Any] | None = None


class Encoder(ABC):
    """A map from items to ids. Some encoders learn the candidates from the input."""

    def encode(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids of the rows inside the domain, and a mask of these rows (None: all rows).

        The items are an Arrow array, with one item for each row. If the array has a dictionary,
        each value in the dictionary is encoded once, and the numbers in errors are numbers of
        values, not of rows. Items are remembered (`remember`).
        """
        found = self.look_up(items)
        self.remember(found)
        return found.ids, found.inside

    @abstractmethod
    def look_up(self, items: Any, *, counted: bool = False) -> Encoded:
        """Return the ids of the rows' items; if `counted`, of the distinct items, with counts.

        Nothing is remembered, so that several threads may call this.

        Raises:
            OutsideDomainError: an item is outside the domain, and such items are an error.
            InvalidInputError: an item cannot be read, and such items are an error.
        """

    @abstractmethod
    def remember(self, found: Encoded) -> None:
        """Store items that `look_up` returned, if the encoder remembers items."""

    @abstractmethod
    def domain(self) -> Domain:
        """Return the domain, or the items remembered so far if they are the candidates."""

    def names(self) -> Names | None:
        """Return the strings of the ids if the domain is open (clients spell them); else None."""
        return None

    def items(self) -> Any:
        """Return the distinct items of the input if the encoder remembers any; else None."""
        return None


def _counted(items: Any) -> tuple[Any, I64]:
    """Return the distinct values of an Arrow array, and how many rows have each value.

    >>> import pyarrow as pa
    >>> items, counts = _counted(pa.array(["tea", "rice", "tea"]))
    >>> items.to_pylist(), counts.tolist()
    (['tea', 'rice'], [2, 1])
    """
    if not is_grouped(items):
        found = items.value_counts()
        return found.field("values"), numbers_of(found.field("counts"))
    places, counts = numbers_of(items.indices), np.zeros(len(items.dictionary), np.int64)
    for start in range(0, len(places), _FEW):  # in parts, since NumPy copies them
        counts += np.bincount(places[start : start + _FEW], minlength=len(counts))
    held = counts > 0  # a dictionary may hold values that no row has
    if held.all():  # the usual case, without a copy of the texts
        return items.dictionary, counts
    return items.dictionary.filter(held), counts[held]


def _of_rows(
    ids: U64, inside: npt.NDArray[np.bool_] | None, places: I64
) -> tuple[U64, npt.NDArray[np.bool_] | None]:
    """Return the ids of the rows inside the domain, and a mask of these rows (None: all rows).

    Args:
        ids: uint64, the ids of the distinct items inside the domain.
        inside: bool, a mask of the distinct items inside the domain; None: all are inside.
        places: int64 [rows], the index of each row's item among the distinct items.
    """
    if inside is None:
        return ids[places], None
    own = np.zeros(len(inside), np.uint64)
    own[inside] = ids
    rows = inside[places]
    return own[places][rows], rows


class Declared(Encoder):
    """The encoder for candidates that the caller declared.

    Args:
        domain: the domain.
        outside: what to do with items outside the domain: "error" or "drop".
        unreadable: whether items that cannot be read count as items outside, instead of raising an
            error; only with "drop". Under privacy an error would show that somebody holds such an
            item.
    """

    def __init__(self, domain: Domain, outside: str, unreadable: bool = False) -> None:
        self._domain = domain
        self._drop = outside == "drop"
        self._inside = domain.inside if unreadable else domain.contains

    def look_up(self, items: Any, *, counted: bool = False) -> Encoded:
        """Return the ids of the rows' items, or of the distinct items; see `Encoder.look_up`."""
        if counted:
            values, counts = _counted(items)
            return Encoded(*self.encode_each(values), counts)
        if not is_grouped(items):
            return Encoded(*self.encode_each(items))
        values, places = distinct(items)
        return Encoded(*_of_rows(*self.encode_each(values), places))

    def encode_each(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids of items in an Arrow array without dictionary, as `Encoder.encode` does.

        Raises:
            OutsideDomainError: an item is outside the domain, and such items are an error.
        """
        if not self._drop:
            try:
                return self._domain.encode(items), None
            except OutsideDomainError as error:
                # The ways out are added here, not in the domain, whose error is raised in other
                # places, too: there, these options would not help.
                every = "" if self._domain.kind == "grid" else f", use {opt.domain('input')}"
                raise OutsideDomainError(
                    f"{error.marked}{every}, or leave out what is outside ({opt.outside('drop')})"
                ) from None
        inside = self._inside(items)
        if inside.all():
            return self._domain.encode(items), None
        return self._domain.encode(items.filter(inside)), inside

    def remember(self, found: Encoded) -> None:
        """Do nothing, since the candidates are known."""

    def domain(self) -> Domain:
        """Return the domain."""
        return self._domain


class FromInput(Encoder):
    """The encoder for candidates that are the input's own items; it remembers the distinct items.

    The id of an integer is its value, plus 2^64 if the value is negative. The id of a text is its
    fingerprint.

    Args:
        seed: the seed of the campaign, from which the key of the fingerprints follows.
    """

    _groups_first = False  # whether equal items are merged before ids are made

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._integers: bool | None = None
        self._ids: list[U64] = []  # ids so far, with repetitions
        self._texts: list[Any] = []  # the texts of these ids, if the items are text
        self._known = self._waiting = 0

    def look_up(self, items: Any, *, counted: bool = False) -> Encoded:
        """Return the ids of the rows' items, or of the distinct items; see `Encoder.look_up`."""
        if is_grouped(items) or self._groups_first:
            values, rows = _counted(items) if counted else distinct(items)
            ids, inside, texts = self._read(values)
            met = ids, texts
            if counted:
                return Encoded(ids, inside, rows, met)
            return Encoded(*_of_rows(ids, inside, rows), None, met)
        # Equal items are found by their ids, which is much faster than comparing texts.
        ids, inside, texts = self._read(items)
        first, counts = group(ids)
        met = ids[first], None if texts is None else taken(texts, first)
        return Encoded(met[0], inside, counts, met) if counted else Encoded(ids, inside, None, met)

    def remember(self, found: Encoded) -> None:
        """Store the items that `look_up` returned.

        Raises:
            InvalidInputError: earlier items were integers and these items are text, or the reverse.
        """
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
        # A merge takes time in proportion to all items. So wait until there are a million more new
        # items than known items.
        if self._waiting > self._known + (1 << 20):
            self._merge()

    def _read(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None, Any]:
        """Return the ids of the items inside the domain, a mask of the items, and their texts.

        The mask is None if all items are inside. In this class they always are; `Spelled`, for an
        open domain, may leave items out. The texts are None if the items are integers.

        Raises:
            InvalidInputError: an item is an integer that needs more than 64 bits with sign.
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
        """Return the distinct items so far as a domain that is not public.

        Texts are in the order of their ids, integers in rising order.
        """
        items = self._all_items()
        if self._integers:
            return IntegerSet(items.to_numpy())
        return Strings(items, self._seed)

    def items(self) -> Any:
        """Return the distinct items so far, in order of id: an Arrow array of text or of int64.

        Returns None if there are no items, since their type is then unknown.
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
        """Keep each item once, in the order in which the items first came."""
        import pyarrow as pa

        ids = np.concatenate([np.empty(0, np.uint64), *self._ids])
        first, _ = group(ids)
        self._ids, self._known, self._waiting = [ids[first]], len(first), 0
        if not self._integers:
            texts = pa.concat_arrays([*self._texts, pa.nulls(0, pa.large_string())])
            self._texts = [taken(texts, first)]


class Spelled(FromInput):
    """The encoder for an open domain: it remembers the distinct strings, which clients spell.

    The id of a string is its fingerprint.

    Args:
        domain: the domain.
        seed: the seed of the campaign, from which the key of the fingerprints follows.
        unreadable: whether to leave out items that cannot be read, instead of raising an error.
    """

    _groups_first = True  # then each distinct text is brought into normal form once, which is slow

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
        """Return the open domain."""
        return self._domain

    def names(self) -> Names:
        """Return the distinct strings so far, as names of the domain."""
        self._merge()
        return Names(self._domain, self._texts[0])


def add_items(
    sketch: CountSketch, ids: U64, counts: I64, clients: int, names: Names | None
) -> None:
    """Add the items that a round's clients hold to the round's sketch.

    Args:
        sketch: the sketch, which is changed.
        ids: uint64 [n], the ids of the items.
        counts: int64 [n], the number of clients that hold each item.
        clients: the number of clients of the round, including clients that hold nothing.
        names: the strings of the ids if the domain is open; else None.
    """
    if names is None:
        sketch.add(ids, counts, clients)
        return
    for start in range(0, len(ids), _BLOCK):
        some = slice(start, start + _BLOCK)
        sketch.add(names.spell(ids[some], sketch.spec.num_positions), counts[some], 0)
    sketch.num_clients += clients


def fate_outside(asked: str | None, *, is_private: bool) -> str:
    """Return what to do with items outside the domain: "error" or "drop".

    Under privacy the default is "drop", since an error would tell what a client holds.

    Args:
        asked: "error" or "drop", as the caller asked; None: the default.
        is_private: whether the campaign is private.

    Raises:
        InvalidInputError: `asked` is another text.

    >>> fate_outside(None, is_private=True), fate_outside(None, is_private=False)
    ('drop', 'error')
    """
    if asked not in (None, "error", "drop"):
        raise InvalidInputError(f"{arg.outside} must be error or drop, got {asked!r}")
    return asked or ("drop" if is_private else "error")


def is_integer(items: Any) -> bool:
    """Return whether the values of an Arrow array are integers."""
    import pyarrow as pa

    return bool(pa.types.is_integer(items.type))


def client_keys(clients: Any, key: bytes) -> U64:
    """Return a 64-bit key for each client: an integer itself, or the fingerprint of a text.

    Args:
        clients: the names of the clients, an Arrow array.
        key: the key of the fingerprints. Nobody may know this key while names are chosen: otherwise
            somebody could choose names with equal fingerprints, and two clients would count as one.
    """
    if is_integer(clients):
        keys: U64 = (
            clients.to_numpy(zero_copy_only=False).astype(np.int64, copy=False).view(np.uint64)
        )
        return keys
    return fingerprints(clients, fingerprint_key(key))
