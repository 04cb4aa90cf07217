"""Hash tables for simple tabulation, derived from a seed.

Simple tabulation hashes an id to the XOR of eight table entries, one for each byte of the id. It is
exactly 3-wise independent (Patrascu and Thorup 2012; see docs/protocol.md). In each row, an id is
hashed to a word of 32 bits. The upper 24 bits give the location, that is the counter. Each of the
low 8 bits gives the sign in one batch of rounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError

SEED_BYTES = 32
SPELLING = 1  # the `purpose` of tables that spell names
SIGNS_PER_GROUP = 8  # the low 8 bits of a word; its upper 24 give the location
_TABLE_BYTES = 8 * 256 * 4  # bytes of one row's tables: a uint32 for each value of 8 id bytes


def check_seed(seed: bytes) -> bytes:
    """Return the seed unchanged if it is 32 bytes.

    Raises:
        InvalidInputError: the seed is not 32 bytes.
    """
    if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
        raise InvalidInputError(f"seed must be {SEED_BYTES} bytes, got {validate.form_of(seed)}")
    return seed


@lru_cache(maxsize=64)
def tabulation_tables(
    seed: bytes, rows: int, group: int = 0, purpose: int = 0
) -> npt.NDArray[np.uint32]:
    """Return the hash tables of `rows` rows: uint32 [rows, 8, 256], read-only and cached.

    Args:
        seed: 32 bytes.
        rows: the number of rows, at least 1.
        group: for which 8 batches of rounds the tables give signs, 0 .. 2^32 - 1: group g is for
            the batches 8 g .. 8 g + 7. The words of group 0 give the location, too.
        purpose: 0 for sketches, 1 for the spelling of names. Each purpose gives independent tables
            from the same seed.

    >>> tabulation_tables(bytes(32), 2).shape
    (2, 8, 256)
    """
    check_seed(seed)
    validate.integer(1, rows=rows)
    validate.integer(0, 2**32 - 1, group=group)
    validate.integer(0, 255, purpose=purpose)
    prefix = b"fedtally/1/tabulation\x00" + seed + bytes([purpose])
    raw = b"".join(
        hashlib.shake_256(prefix + row.to_bytes(4, "little") + group.to_bytes(4, "little")).digest(
            _TABLE_BYTES
        )
        for row in range(rows)
    )
    tables = np.frombuffer(raw, "<u4").astype(np.uint32).reshape(rows, 8, 256)
    tables.flags.writeable = False  # all callers get the same cached array
    return tables


def tables_of_batches(seed: bytes, rows: int, batches: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Return hash tables whose words hold the signs of the given batches, in adjacent bits.

    A batch is a group of rounds with the same signs. A word is the XOR of table entries. Therefore
    a bit that is moved in all entries is moved in the same way in all words.

    Args:
        seed: 32 bytes.
        rows: the number of rows, at least 1.
        batches: the numbers of the batches, ascending, at least one. The schedule must give all
            batches the same locations.

    Returns:
        uint32 [groups, rows, 8, 256], with 8 batches in a group. In the words of group i // 8, bit
        i % 8 is the sign of batches[i]. In all groups the upper 24 bits give the location.

    >>> all_of_them = tables_of_batches(bytes(32), 2, range(16))
    >>> chosen = tables_of_batches(bytes(32), 2, [1, 9])
    >>> bool(np.all(chosen[0] >> 1 & 1 == all_of_them[1] >> 1 & 1))
    True
    """
    locations = tabulation_tables(seed, rows) & ~np.uint32(2**SIGNS_PER_GROUP - 1)
    packed = np.repeat(locations[None], -(-len(batches) // SIGNS_PER_GROUP), axis=0)
    for place, batch in enumerate(batches):
        group, bit = divmod(batch, SIGNS_PER_GROUP)
        sign = tabulation_tables(seed, rows, group) >> np.uint32(bit) & np.uint32(1)
        packed[place // SIGNS_PER_GROUP] |= sign << np.uint32(place % SIGNS_PER_GROUP)
    return packed


def round_seed(seed: bytes, round: int) -> bytes:
    """Derive the seed of one round of the schedule `fresh`: 32 bytes.

    >>> round_seed(bytes(32), 0).hex()[:16]
    '6a1ff13836f9a20c'
    """
    check_seed(seed)
    validate.integer(0, 2**32 - 1, round=round)
    return hashlib.shake_256(b"fedtally/1/round\x00" + seed + round.to_bytes(4, "little")).digest(
        SEED_BYTES
    )
