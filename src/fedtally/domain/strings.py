"""Domains of listed text: `Dictionary` uses positions as ids, `Strings` uses keyed fingerprints.

The fingerprint of n bytes under the key (k, k2) is computed modulo p = 2^61 - 1. Split the bytes
into chunks of 7 bytes; the last may be shorter. A chunk is a little-endian integer m. Start with
h = n + 1. For each chunk, set h = (h k + m) mod p. The fingerprint is h k2 mod p.

Two distinct strings of at most s bytes have equal fingerprints with a probability of at most
(s / 7 + 2) / 2^61 over the random key. The reason: they give two distinct polynomials in k of
degree at most ceil(s / 7) (polynomial hashing, Carter and Wegman 1981). The bound does not hold for
strings that are chosen by someone who knows the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.base import validate
from fedtally.domain.columns import (
    as_text,
    places_in,
    shown,
    taken,
    text_chunks,
    text_of_buffers,
    utf8_buffers,
)
from fedtally.domain.contract import Domain
from fedtally.domain.look_alikes import Oddities, oddities
from fedtally.errors import InvalidInputError

_PRIME = (1 << 61) - 1
_LABEL = b"fedtally/1/fingerprint"
_DIGEST_BLOCK = 1 << 16  # items that are hashed at once, to bound the memory


def fingerprint_key(seed: bytes) -> tuple[int, int]:
    """Derive the key (k, k2) of the string fingerprint from a seed; both are in 0 to 2^61 - 2.

    The 32 bytes SHAKE-256("fedtally/1/fingerprint" || 0x00 || seed) are read as two integers of 16
    bytes, little-endian. These integers mod 2^61 - 1 are k and k2.

    Raises:
        InvalidInputError: the seed is not 32 bytes.

    >>> fingerprint_key(bytes(32)) == fingerprint_key(bytes(32)) != fingerprint_key(bytes([1] * 32))
    True
    """
    if not isinstance(seed, bytes) or len(seed) != 32:
        raise InvalidInputError(f"seed must be 32 bytes, got {validate.form_of(seed)}")
    stream = hashlib.shake_256(_LABEL + b"\x00" + seed).digest(32)
    return (
        int.from_bytes(stream[:16], "little") % _PRIME,
        int.from_bytes(stream[16:], "little") % _PRIME,
    )


class Dictionary(Domain):
    """The domain of distinct strings in a given order; the id of an item is its position.

    Args:
        items: Text without duplicates, at most 2^31 - 1 items.
        public: Whether everybody may know the items, which is usual for a dictionary.

    Raises:
        InvalidInputError: There is no item, or an item is repeated.

    >>> drinks = Dictionary(["tea", "coffee"])
    >>> drinks.encode(["coffee", "tea", "coffee"]), drinks.labels([0])
    (array([1, 0, 1], dtype=uint64), ['tea'])
    >>> drinks.encode(["tea", "cola"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    fedtally.errors.OutsideDomainError: 1 of 2 items is outside the domain dictionary (2 items), ...
    """

    kind: ClassVar[str] = "dictionary"
    _way_out: ClassVar[str] = "add the missing items to the dictionary"

    def __init__(self, items: Any, *, public: bool = True) -> None:
        self._items = _some(as_text(items))
        repeated = _first_repeated(self._items)
        if repeated is not None:
            raise InvalidInputError(
                f"items of a dictionary must be distinct, {shown(self._items, repeated[1])} is at"
                f" positions {repeated[0]} and {repeated[1]}; remove one"
            )
        self.public = bool(public)
        self.size = len(self._items)
        self.first_id = 0

    @cached_property
    def num_spaced(self) -> int:
        """The number of candidates that begin or end with white space."""
        return _num_spaced(self._items)

    @cached_property
    def oddities(self) -> Oddities:
        """What people may overlook in the candidates, such as invisible characters."""
        return oddities(self._items)

    def _find(self, items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        positions = places_in(as_text(items), self._items)
        return positions, positions >= 0

    def _ids_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return positions.view(np.uint64)

    def _labels(self, positions: npt.NDArray[np.int64]) -> list[str]:
        return _taken(self._items, positions)

    def describe(self) -> dict[str, Any]:
        """Return kind, size and public, and for a public dictionary ``sha256``.

        ``sha256`` is the digest of the items in order. For each item, the number of its UTF-8 bytes
        is hashed (8 bytes, little-endian), then the bytes. Therefore different lists never give the
        same input to the hash.

        >>> Dictionary(["tea"], public=False).describe()
        {'kind': 'dictionary', 'size': 1, 'public': False}
        """
        return {**super().describe(), **({"sha256": self._digest} if self.public else {})}

    @cached_property
    def _digest(self) -> str:
        return _items_digest(self._items)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the UTF-8 bytes of all items, ``utf8``, uint8, and ``offsets``, int64[size + 1].

        Item i is utf8[offsets[i] : offsets[i + 1]].

        >>> Dictionary(["tea", "coffee"]).arrays()["offsets"]
        array([0, 3, 9])
        """
        data, offsets = utf8_buffers(self._items)
        return {"utf8": data, "offsets": offsets}

    @classmethod
    def rebuild(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild a dictionary from its description and the value of its `arrays()`.

        From the description it only reads `public`.

        >>> Dictionary.rebuild({"public": True}, Dictionary(["tea"]).arrays())
        Dictionary(size=1, public=True)
        """
        return cls(text_of_buffers(arrays["utf8"], arrays["offsets"]), public=meta["public"])


class Strings(Domain):
    """The domain of distinct strings in a given order; the id of a string is its keyed fingerprint.

    `encode` accepts every string, also one that is no candidate, so that its count can be estimated
    later. `contains` and `locate` compare ids. So they mistake a string that is no candidate for a
    candidate if both have the same id. The probability of this mistake is at most
    ``size * (len / 7 + 2) / 2^61`` over the seed. Here len is the largest number of bytes of this
    string and of all candidates. A sketch counts two strings with the same id together.

    Args:
        items: Text without duplicates.
        seed: 32 bytes, the argument of `fingerprint_key`. Choose it without knowledge of the items.
        public: Whether everybody may know the items. Keep False if they come from private data.

    Raises:
        InvalidInputError: There is no item, an item occurs twice, two items have the same
            fingerprint, or `seed` is not 32 bytes.

    >>> words = Strings(["tea", "coffee"], bytes(32))
    >>> words.locate(["coffee"]), words.contains(["cola"]), words.encode(["cola"]).shape
    (array([1]), array([False]), (1,))
    """

    kind: ClassVar[str] = "strings"
    noun: ClassVar[str] = "string"
    _way_out: ClassVar[str] = "name candidates only, or ask for the estimates of their ids"

    def __init__(self, items: Any, seed: bytes, public: bool = False) -> None:
        self._key = fingerprint_key(seed)
        self._seed = seed
        self._items = _some(as_text(items))
        self._ids = fingerprints(self._items, self._key)
        self._order = np.argsort(self._ids)
        self._sorted_ids = self._ids[self._order]
        self._refuse_collisions()  # otherwise two candidates could never be distinguished
        self.public = bool(public)
        self.size = len(self._items)
        self.first_id = None

    def _refuse_collisions(self) -> None:
        equal = np.flatnonzero(self._sorted_ids[1:] == self._sorted_ids[:-1])
        if equal.size == 0:
            return
        first, second = sorted(self._order[equal[0] : equal[0] + 2].tolist())
        if self._items[first] == self._items[second]:
            raise InvalidInputError(
                f"items must be distinct, {shown(self._items, first)} is at positions {first} and"
                f" {second}; remove one"
            )
        raise InvalidInputError(
            f"the items at positions {first} and {second} have one fingerprint under this seed;"
            " choose another seed"
        )

    @cached_property
    def collision_probability(self) -> float:
        """A bound on the probability, over the seed, that two candidates share a fingerprint.

        It is the sum of the bounds of all pairs of candidates, or 1 if the sum is more. A pair in
        which the longer string has s bytes has the bound (s / 7 + 2) / 2^61.

        >>> Strings(["tea", "coffee"], bytes(32)).collision_probability == (6 / 7 + 2) / 2**61
        True
        """
        lengths = np.sort(np.diff(utf8_buffers(self._items)[1]))
        # In order of length, string i (from 0) is the longer one in i pairs.
        shorter = np.arange(self.size, dtype=np.float64)
        return min(1.0, float(shorter @ (lengths / 7 + 2)) / 2.0**61)

    def encode(self, items: Any) -> npt.NDArray[np.uint64]:
        """Return the fingerprint of each item, whether it is a candidate or not, uint64[n].

        >>> bool((Strings(["tea"], bytes(32)).encode(["tea", "cola"]) < 2**61).all())
        True
        """
        return fingerprints(items, self._key)

    @cached_property
    def num_spaced(self) -> int:
        """The number of candidates that begin or end with white space."""
        return _num_spaced(self._items)

    @cached_property
    def oddities(self) -> Oddities:
        """What people may overlook in the candidates, such as invisible characters."""
        return oddities(self._items)

    def _find(self, items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        ids = fingerprints(items, self._key)
        # Searching for ascending ids is several times faster: neighbours share cache lines.
        ascending = np.argsort(ids)
        places = np.empty(ids.size, np.int64)
        places[ascending] = np.minimum(
            np.searchsorted(self._sorted_ids, ids[ascending]), self.size - 1
        )
        return self._order[places].astype(np.int64, copy=False), self._sorted_ids[places] == ids

    def _ids_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return self._ids[positions]

    def _labels(self, positions: npt.NDArray[np.int64]) -> list[str]:
        return _taken(self._items, positions)

    def describe(self) -> dict[str, Any]:
        """Return kind, size and public, and for public strings ``sha256``, as in `Dictionary`.

        >>> Strings(["tea"], bytes(32)).describe()
        {'kind': 'strings', 'size': 1, 'public': False}
        """
        return {**super().describe(), **({"sha256": self._digest} if self.public else {})}

    @cached_property
    def _digest(self) -> str:
        return _items_digest(self._items)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the items as in `Dictionary.arrays`, and the seed.

        They are ``utf8``, uint8, ``offsets``, int64[size + 1], and ``seed``, uint8[32].

        >>> sorted(Strings(["tea"], bytes(32)).arrays())
        ['offsets', 'seed', 'utf8']
        """
        data, offsets = utf8_buffers(self._items)
        return {"utf8": data, "offsets": offsets, "seed": np.frombuffer(self._seed, np.uint8)}

    @classmethod
    def rebuild(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild the domain from its items and its seed.

        >>> Strings.rebuild({"public": False}, Strings(["tea"], bytes(32)).arrays())
        Strings(size=1, public=False)
        """
        return cls(
            text_of_buffers(arrays["utf8"], arrays["offsets"]),
            arrays["seed"].tobytes(),
            meta["public"],
        )


def fingerprints(items: Any, key: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Return the keyed fingerprint of each string of a column, uint64 [n], below 2^61 - 1.

    >>> fingerprints(["tea", "cola"], fingerprint_key(bytes(32))).shape
    (2,)
    """
    ids = [
        kernels.fingerprint(*utf8_buffers(chunk), *key)
        for chunk in text_chunks(items)
        if len(chunk)
    ]
    # The chunks of text are not joined, because that would copy a possibly large text.
    return ids[0] if len(ids) == 1 else np.concatenate([np.empty(0, np.uint64), *ids])


def _some(text: Any) -> Any:
    if len(text) == 0:
        raise InvalidInputError("a domain needs at least one item, got none")
    return text


def _taken(text: Any, positions: npt.NDArray[np.int64]) -> list[str]:
    labels: list[str] = taken(text, positions).to_pylist()
    return labels


def _first_repeated(text: Any) -> tuple[int, int] | None:
    """Find the first item that repeats an earlier item.

    Returns:
        The positions of the earlier item and of the repetition; None if all items are distinct.
    """
    before = places_in(text, text)
    again = np.flatnonzero(before != np.arange(len(text)))
    return (int(before[again[0]]), int(again[0])) if again.size else None


def _num_spaced(text: Any) -> int:
    """Return how many items begin or end with white space.

    >>> _num_spaced(as_text(["tea", "tea ", " rice"]))
    2
    """
    import pyarrow.compute as pc

    return int(pc.sum(pc.not_equal(text, pc.utf8_trim_whitespace(text))).as_py() or 0)


def _items_digest(text: Any) -> str:
    """Return in hexadecimal the SHA-256 of all items in order.

    Before the bytes of each item, their number is hashed as 8 bytes, little-endian.
    """
    digest = hashlib.sha256()
    for start in range(0, len(text), _DIGEST_BLOCK):
        data, offsets = utf8_buffers(text.slice(start, _DIGEST_BLOCK))
        count = offsets.size - 1
        # Lengths and texts are put into one array, so that few large updates of the digest suffice.
        prefixes = (offsets[:-1] + 8 * np.arange(count))[:, None] + np.arange(8)
        block = np.empty(data.size + 8 * count, np.uint8)
        is_data = np.ones(block.size, np.bool_)
        is_data[prefixes] = False
        block[prefixes] = np.diff(offsets).astype("<i8").view(np.uint8).reshape(count, 8)
        block[is_data] = data
        digest.update(block.data)
    return digest.hexdigest()
