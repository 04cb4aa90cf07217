"""The open domain, for strings that nobody has listed.

Each string has a hash, an integer of `bits` bits. All 2^bits hashes are the candidates, so the
domain can be public whatever strings the clients hold. Decoding finds frequent hashes. The name of
a hash is the string that has it. Names are then read from a part of the sums that spells strings
(`recovery.names`). docs/open-domain.md explains the whole method.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.base import arrow, validate
from fedtally.domain import symbols
from fedtally.domain.columns import as_text, taken, text_chunks, text_of_buffers, utf8_buffers
from fedtally.domain.contract import Domain
from fedtally.domain.plain import Texts
from fedtally.domain.strings import fingerprint_key, fingerprints
from fedtally.errors import InvalidInputError

U64 = npt.NDArray[np.uint64]
BITS = 26  # the default of `bits`; intervals are calibrated for 2^26 candidates
MOST_BITS = 28  # the largest `bits`: joint recovery estimates at most 2^28 candidates by default
USUAL_LENGTH = 64  # the default of `max_length`, in bytes
NFC = "nfc"  # the only normal form that `normalise` accepts
_MOST_LENGTH = 192  # the largest `max_length`; a copy of sketch.spelling.MAX_LENGTH
_BLOCK = 1 << 14  # names that are turned into symbols at once, to bound the memory


class Unread(str):
    """The label of a hash whose name is not known: "#" and the hash in hexadecimal.

    It is a str, so that people can read it. Its class tells it apart from a client's string with
    the same text.

    >>> Unread.of(0x3f09a1c), Unread.of(0x3f09a1c).hash
    ('#3f09a1c', 66099740)
    """

    __slots__ = ()

    @classmethod
    def of(cls, hash: int) -> Unread:
        """Return the label of a hash, with at least 7 hexadecimal digits."""
        return cls(f"#{hash:07x}")

    @staticmethod
    def is_like(text: str) -> bool:
        """Return whether a text has the form of an `Unread` label. A client's string may have it.

        >>> Unread.is_like("#3f09a1c"), Unread.is_like("#tea")
        (True, False)
        """
        return re.fullmatch("#[0-9a-f]{7}", text) is not None

    @property
    def hash(self) -> int:
        """The hash that the label shows."""
        return int(self[1:], 16)


def _nfc(text: str | None) -> str | None:
    return None if text is None else unicodedata.normalize("NFC", text)


class OpenStrings(Domain):
    """The domain of all strings. The id of a string is its hash; all hashes are candidates.

    Args:
        max_length: the most bytes of a name that can be read, 1 .. 192. The hash of a longer string
            can be found, but its name cannot be read.
        bits: the number of bits of a hash, 8 .. 28. Strings with equal hashes are counted together.
        seed: the seed of the campaign, 32 bytes, which keys the hashes; None: not known yet.
        normalise: "nfc": each client converts its strings to the Unicode normal form C before they
            are hashed, so that a text that can be written in two ways is one string. None: strings
            are hashed unchanged.

    Raises:
        InvalidInputError: `max_length` or `bits` is out of bounds, `normalise` is another text, or
            `seed` is not 32 bytes.

    >>> strings = OpenStrings(seed=bytes(32))
    >>> strings.labels(strings.encode(["tea"]).astype(np.int64))
    ['#3bf3403']
    >>> strings.size, strings.public
    (67108864, True)
    """

    kind: ClassVar[str] = "open"
    _way_out: ClassVar[str] = "every string is inside"
    public = True
    first_id = 0

    def __init__(
        self,
        max_length: int = USUAL_LENGTH,
        bits: int = BITS,
        seed: bytes | None = None,
        normalise: str | None = None,
    ) -> None:
        self.max_length = validate.integer(1, _MOST_LENGTH, max_length=max_length)
        self.bits = validate.integer(8, MOST_BITS, bits=bits)
        if normalise not in (None, NFC):
            raise InvalidInputError(
                f'normalise must be "nfc", got {normalise!r}; leave it out to hash strings as they'
                " are"
            )
        self.normalise = normalise
        self.size = 1 << self.bits
        self._seed = seed
        self._key = None if seed is None else fingerprint_key(seed)

    def __str__(self) -> str:
        return "open"

    def with_seed(self, seed: bytes) -> OpenStrings:
        """Return a copy of this domain with the seed of a campaign, 32 bytes."""
        return OpenStrings(self.max_length, self.bits, seed, self.normalise)

    @classmethod
    def of(cls, domain: Domain | str | None) -> OpenStrings:
        """Return `domain` itself, which must be an `OpenStrings`.

        Raises:
            InvalidInputError: `domain` is anything else: another domain, a text or None.

        >>> OpenStrings.of(OpenStrings(20)).max_length
        20
        """
        if isinstance(domain, cls):
            return domain
        raise InvalidInputError(f"the domain must be open, got {domain}")

    @property
    def key(self) -> tuple[int, int]:
        """The key of the fingerprints, derived from the seed (see `fingerprint_key`).

        Raises:
            InvalidInputError: the seed is not known.
        """
        if self._key is None:
            raise InvalidInputError(
                "the hashes of an open domain need the campaign's seed: OpenStrings.with_seed"
            )
        return self._key

    def collides(self, found: int) -> float:
        """Return an upper bound on the probability that any two of `found` strings share a hash.

        The bound is for hashes that are uniform and independent in pairs.

        >>> round(OpenStrings().collides(1000), 4)
        0.0074
        """
        return min(1.0, found * max(0, found - 1) / 2 / self.size)

    def hashes(self, fingerprints: U64) -> U64:
        """Return the hash of each string, the low `bits` bits of its fingerprint: uint64 [n]."""
        return fingerprints & np.uint64(self.size - 1)

    def encode(self, items: Any) -> U64:
        """Return the hash of each string: uint64 [n].

        An `Unread` label in a list gives the hash that it shows, without the seed.

        Raises:
            InvalidInputError: the seed is not known and not all items are `Unread` labels, or the
                items are no column of text.

        >>> strings = OpenStrings(seed=bytes(32))
        >>> strings.encode([Unread.of(7), "tea"]).tolist()
        [7, 62862339]
        """
        if isinstance(items, list) and any(isinstance(item, Unread) for item in items):
            return np.array(
                [
                    item.hash if isinstance(item, Unread) else int(self.encode([item])[0])
                    for item in items
                ],
                np.uint64,
            )
        return self.hashes(self.fingerprints(items))

    def contains(self, items: Any) -> npt.NDArray[np.bool_]:
        """Return True for each string: bool [n]. The seed need not be known.

        >>> OpenStrings().contains(["tea", "cola"]).tolist()
        [True, True]
        """
        return np.ones(sum(map(len, text_chunks(items))), np.bool_)

    def fingerprints(self, items: Any) -> U64:
        """Return the 61-bit fingerprint of each string, uint64 [n]; its low bits are the hash."""
        return fingerprints(self.text(items), self.key)

    def text(self, items: Any) -> Any:
        """Return a column of strings as they are hashed.

        If `normalise` is None, the result is `items` itself. Otherwise it is a column of the
        strings in normal form C: an Arrow chunked array, or a `Texts` where PyArrow is missing.

        >>> OpenStrings(normalise="nfc").text(["e" + chr(0x301)])[0].as_py() == chr(0xe9)
        True
        """
        if self.normalise is None:
            return items
        if not arrow.is_installed():
            return Texts(unicodedata.normalize("NFC", text) for text in as_text(items))
        import pyarrow as pa

        # Python normalises: some versions of PyArrow, such as 24, leave some texts unchanged, and
        # clients with different versions would then hash one text differently.
        chunks = [
            pa.array([_nfc(text) for text in chunk.to_pylist()], pa.large_string())
            for chunk in text_chunks(items)
        ]
        return pa.chunked_array(chunks, pa.large_string())

    def name(self, word: bytes) -> str | None:
        r"""Return the text that some bytes spell, or None if they cannot be a name.

        A name is UTF-8 without control characters (C0, DEL and C1), which people do not type. If
        `normalise` is set, a name must also be in normal form C. Invisible joiners and combining
        marks are allowed, because emoji, Persian and Hindi need them.

        >>> OpenStrings().name(b"caf\xc3\xa9"), OpenStrings().name(b"\x07")
        ('café', None)
        """
        try:
            text = word.decode()
        except UnicodeDecodeError:
            return None
        if any(letter < " " or "\x7f" <= letter <= "\x9f" for letter in text):
            return None
        return text if self.normalise is None or unicodedata.is_normalized("NFC", text) else None

    def _find(self, items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        positions = self.encode(items).astype(np.int64)
        return positions, np.ones(len(positions), np.bool_)

    def _ids_at(self, positions: npt.NDArray[np.int64]) -> U64:
        return positions.view(np.uint64)

    def _labels(self, positions: npt.NDArray[np.int64]) -> list[Any]:
        return [Unread.of(position) for position in positions.tolist()]

    def describe(self) -> dict[str, Any]:
        """Return kind, size, public, max_length and bits, and normalise if it is set.

        The seed is left out, because the plan states it.

        >>> OpenStrings(max_length=20).describe()
        {'kind': 'open', 'size': 67108864, 'public': True, 'max_length': 20, 'bits': 26}
        """
        own = {"max_length": self.max_length, "bits": self.bits}
        form = {} if self.normalise is None else {"normalise": self.normalise}
        return {**super().describe(), **own, **form}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the seed as uint8 [32]; the array is empty if the seed is not known."""
        return {"seed": np.frombuffer(self._seed or b"", np.uint8)}

    @classmethod
    def rebuild(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild the domain from its description, and its seed if the arrays hold one."""
        seed = arrays["seed"].tobytes() or None if "seed" in arrays else None
        return cls(meta["max_length"], meta["bits"], seed, meta.get("normalise"))


class Names:
    """The distinct strings of a client, with their fingerprints; `spell` makes rows for a sketch.

    Args:
        domain: the open domain, with its seed.
        items: strings, in any container; duplicates are ignored.

    Attributes:
        ids: uint64 [n], the fingerprints, ascending.

    >>> names = Names(OpenStrings(max_length=4, seed=bytes(32)), ["tea", "cola", "tea"])
    >>> len(names.ids), names.spell(names.ids, 10).shape
    (2, (2, 11))
    """

    def __init__(self, domain: OpenStrings, items: Any) -> None:
        text = as_text(items)
        ids, first = np.unique(domain.fingerprints(text), return_index=True)
        self.ids = ids
        self._domain = domain
        self._bytes, self._offsets = (
            part.copy() for part in utf8_buffers(as_text(domain.text(taken(text, first))))
        )

    def __repr__(self) -> str:
        return "Names(hidden)"  # the strings may be a client's items, which must not be logged

    def lengths(self, ids: U64) -> npt.NDArray[np.int64]:
        """Return the number of UTF-8 bytes of the strings with these fingerprints, int64 [n].

        Args:
            ids: uint64 [n], all from `self.ids`. This is not checked.
        """
        lengths: npt.NDArray[np.int64] = np.diff(self._offsets)[np.searchsorted(self.ids, ids)]
        return lengths

    def rekeyed(self, domain: OpenStrings) -> tuple[Names, U64]:
        """Return the same strings under another seed, and the new id of each string.

        The new ids are in the order of the old ids, `self.ids`.

        Args:
            domain: the open domain with the other seed.

        >>> first = Names(OpenStrings(seed=bytes(32)), ["tea", "cola"])
        >>> second, ids = first.rekeyed(OpenStrings(seed=bytes([1] * 32)))
        >>> sorted(ids.tolist()) == second.ids.tolist()
        True
        >>> second.lengths(ids).tolist() == first.lengths(first.ids).tolist()
        True
        """
        text = text_of_buffers(self._bytes, self._offsets)
        return Names(domain, text), domain.fingerprints(text)

    def spell(self, ids: U64, positions: int) -> U64:
        """Return one row for each string, the ids that a sketch counts for it.

        Column 0 is the hash of the string. Column 1 + t is hash * 256 + the string's symbol at
        position t (see `domain.symbols`). The result is uint64 [n, 1 + positions].

        Args:
            ids: uint64 [n], fingerprints from `self.ids`.
            positions: the number of positions, T.

        Raises:
            InvalidInputError: a value in `ids` is not in `self.ids`.
        """
        places = np.searchsorted(self.ids, ids)
        if (places >= len(self.ids)).any() or (self.ids[places] != ids).any():
            raise InvalidInputError("an id has no name here: only strings can be spelled")
        rows = np.empty((len(ids), 1 + positions), np.uint64)
        rows[:, 0] = self._domain.hashes(ids)
        rows[:, 1:] = rows[:, :1] << np.uint64(8)
        for start in range(0, len(ids), _BLOCK):
            some = slice(start, start + _BLOCK)
            starts, ends = self._offsets[places[some]], self._offsets[places[some] + 1]
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
            within = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, ends - starts)
            found = symbols.encode(self._bytes[within], offsets, self._domain.max_length, positions)
            rows[some, 1:] |= found
        return rows


def names_of(domain: Domain, items: Callable[[], Any]) -> Names | None:
    """Return a client's strings if the domain is open, and None for every other domain.

    In an open domain, clients must also spell their strings for the server (`Names.spell`): the
    server reads the letters of frequent strings from the sums.

    Args:
        domain: the domain; an open domain must have its seed.
        items: a function that returns the items as a column; called only if the domain is open.

    >>> from fedtally.domain import IntegerRange
    >>> names_of(IntegerRange(1, 9), lambda: [7]) is None
    True
    >>> len(names_of(OpenStrings(seed=bytes(32)), lambda: ["tea", "cola"]).ids)
    2
    """
    return Names(domain, items()) if isinstance(domain, OpenStrings) else None


def hashes_of(words: npt.NDArray[np.uint8], domain: OpenStrings) -> U64:
    """Return the hashes of byte strings that all have the same length: uint64 [n].

    Args:
        words: uint8 [n, length], the bytes of each string.
        domain: the open domain, with its seed.
    """
    number, length = words.shape
    offsets = np.arange(number + 1, dtype=np.int64) * length
    return domain.hashes(kernels.fingerprint(words.reshape(-1), offsets, *domain.key))
