"""Hash tables from a seed, for simple tabulation, which is exactly 3-wise independent.

See docs/protocol.md, and Patrascu and Thorup (2012). One 32-bit word for each (row, id) gives the
location from its upper 24 bits, and up to 8 signs from its low 8 bits.
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
SPELLING = 1  # the purpose of the tables that spell names
SIGNS_PER_GROUP = 8  # the low 8 bits of a word; its upper 24 give the location
_TABLE_BYTES = 8 * 256 * 4  # of one row: a uint32 for each of an id's 8 bytes and its 256 values


def check_seed(seed: bytes) -> bytes:
    """Return the seed if it is 32 bytes.

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
    """Return the tables of `rows` rows for a hash group: uint32 [rows, 8, 256], read-only.

    Args:
        seed: 32 bytes.
        rows: at least 1.
        group: the group of 8 signs; group 0 also gives the location.
        purpose: 0 for sketches, 1 for the spelling of names. Other purposes give independent
            tables of the same seed.

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
    tables.flags.writeable = False  # the cache hands the same array to all callers
    return tables


def tables_of_batches(seed: bytes, rows: int, batches: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Return hash tables whose words hold the signs of the given batches, side by side.

    A word is the XOR of table entries, one for each byte of an id. So a bit that moves to another
    place in all entries moves to this place in all words.

    Args:
        seed: 32 bytes.
        rows: at least 1.
        batches: the numbers of the batches, rising, at least one. All batches of the schedule must
            share their locations.

    Returns:
        uint32 [groups, rows, 8, 256]. Bit i % 8 of group i // 8 is the sign of the i-th batch, and
        the upper 24 bits of every group give the location.

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
    """Return the seed of one round of the fresh schedule: 32 bytes.

    >>> round_seed(bytes(32), 0).hex()[:16]
    '6a1ff13836f9a20c'
    """
    check_seed(seed)
    validate.integer(0, 2**32 - 1, round=round)
    return hashlib.shake_256(b"fedtally/1/round\x00" + seed + round.to_bytes(4, "little")).digest(
        SEED_BYTES
    )
