"""Keep the allow-list: the Ed25519 public keys of the clients that may take part.

All parties have the same list.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable

from fedtally.base import validate
from fedtally.crypto.keys import RejectedError, check_identity
from fedtally.errors import InvalidInputError

MAX_KEYS = 2**20  # a bitmap with a bit for each key then has 128 KiB


class AllowList:
    """List Ed25519 public keys in strictly ascending order of their bytes.

    The rank of a key is its position in this order, from 0. A client gets the list from the party
    that registered the identities, never from the server that sums: a server that lies could add
    keys of its own.

    Args:
        keys: 1 .. 2^20 keys of 32 bytes each, ascending, none twice. `sorted(set(keys))` gives this
            order.

    Attributes:
        digest: the SHA-256 of all keys, joined in this order; 32 bytes.

    Raises:
        InvalidInputError: there are no keys or too many, a key is not 32 bytes, not canonical or of
            low order, or the keys are not in strictly ascending order.

    >>> people = AllowList([bytes([rank]) * 32 for rank in (7, 8, 9)])
    >>> len(people), people.rank(bytes([9]) * 32), people.digest.hex()[:8]
    (3, 2, '5c695d1d')
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = list(keys)
        validate.integer(1, MAX_KEYS, keys_in_the_allow_list=len(self._keys))
        for place, key in enumerate(self._keys):
            # Without this check the list could have a key of low order. Under such a key anybody
            # can make valid signatures, and so could sign as the client of this key.
            try:
                check_identity(key)
            except RejectedError as error:
                raise InvalidInputError(
                    f"key {place} of the allow-list is not valid: {error}"
                ) from error
            # Without this check a key that is listed twice would count as two clients.
            if place and key <= self._keys[place - 1]:
                raise InvalidInputError(
                    f"the allow-list must be in strictly ascending order, and key {place} is not"
                    " above the one before it; sort the keys and leave out repeated ones"
                )
        self.digest = hashlib.sha256(b"".join(self._keys)).digest()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        place = bisect_left(self._keys, key)
        return place < len(self._keys) and self._keys[place] == key

    def key(self, rank: int) -> bytes:
        """Return the key, 32 bytes, at a rank 0 .. len - 1.

        Raises:
            InvalidInputError: the rank is not in 0 .. len - 1.
        """
        return self._keys[validate.integer(0, len(self._keys) - 1, rank=rank)]

    def rank(self, key: bytes) -> int:
        """Return the rank of a key: its position in the list, from 0.

        Raises:
            InvalidInputError: the key is not in the list.
        """
        if key not in self:
            raise InvalidInputError(
                "this identity is not in the allow-list; have its public key registered first"
            )
        return bisect_left(self._keys, key)
