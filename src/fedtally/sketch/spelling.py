"""The spelling: the part of a client's vector from which the names of items are read.

If nobody has the list of items, the first sketch of a vector counts hashes of items, and a hash
does not tell the name. So the vector has one more small sketch for each position t of a name: it
counts the integer hash * 256 + symbol_t, where symbol_t is the name's symbol (its byte, the end
mark or a parity symbol) at t. docs/protocol.md gives the layout.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.base import validate
from fedtally.errors import InvalidInputError

# The most bytes of a name; a longer text is a document. The end mark makes one symbol more, 193.
MAX_LENGTH = 192
# The parity symbols of a name come from a code with 255 points, one for each symbol. A name of p
# symbols has at most 2 p - 1 symbols with its parity, and never more than there are positions.
_POINTS = 255


@dataclass(frozen=True)
class Spelling:
    """The size of the sketches that spell names.

    Args:
        rows: the rows of the sketch of one position, 1 .. 1024.
        width: the counters per row of this sketch, 1 .. 2^24.
        max_length: the bytes of the longest name that can be spelled, 1 .. 192.

    >>> spelling = Spelling(rows=4, width=32, max_length=64)
    >>> spelling.positions(8), spelling.blocks(8)
    (72, 9)
    """

    rows: int
    width: int
    max_length: int

    def __post_init__(self) -> None:
        for name, most in (
            ("rows", kernels.MAX_ROWS),
            ("width", kernels.MAX_WIDTH),
            ("max_length", MAX_LENGTH),
        ):
            value = validate.integer(1, most, **{f"spelling.{name}": getattr(self, name)})
            object.__setattr__(self, name, value)

    def blocks(self, batches: int) -> int:
        """Return the number of positions that one client spells (G in docs/protocol.md)."""
        return -(-(self.max_length + 1) // batches)

    def positions(self, batches: int) -> int:
        """Return the number of positions that all batches spell: `batches * blocks(batches)`."""
        return batches * self.blocks(batches)

    def check_batches(self, batches: int) -> None:
        """Refuse batches that spell more positions than the code of a long name has points."""
        positions = self.positions(batches)
        if positions > _POINTS and 2 * self.max_length + 1 > _POINTS:
            raise InvalidInputError(
                f"spelling.max_length must be at most {_POINTS // 2} where {batches} batches of"
                f" rounds spell {positions} positions, more than {_POINTS}, got {self.max_length};"
                " use fewer rounds, or shorter names"
            )


@lru_cache(maxsize=64)
def slots(seed: bytes, positions: int) -> npt.NDArray[np.int64]:
    """Return the slot of each position: int64 [positions], read-only, a public permutation.

    The slot says which batch of rounds spells the position (`positions_of`), so that the copies of
    a symbol come to different rounds. The slot of position t is the rank, from 0, of its word among
    the words of all positions; equal words rank by position. The words are 64 bits each,
    little-endian, of SHAKE-256("fedtally/1/positions" || 0x00 || seed).

    >>> sorted(slots(bytes(32), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    stream = hashlib.shake_256(b"fedtally/1/positions\x00" + seed).digest(8 * positions)
    found = np.empty(positions, np.int64)
    found[np.argsort(np.frombuffer(stream, "<u8"), kind="stable")] = np.arange(positions)
    found.flags.writeable = False  # the cache hands the same array to all callers
    return found


@lru_cache(maxsize=4096)
def positions_of(seed: bytes, positions: int, batch: int, batches: int) -> tuple[int, ...]:
    """Return the position that each block of a batch's vectors spells, by block.

    A block is the sketch of one position. Block b of a batch spells the position with the slot
    b * batches + batch.

    >>> sorted(positions_of(bytes(32), 6, 0, 2) + positions_of(bytes(32), 6, 1, 2))
    [0, 1, 2, 3, 4, 5]
    """
    of_slot = np.argsort(slots(seed, positions))
    return tuple(of_slot[batch::batches].tolist())
