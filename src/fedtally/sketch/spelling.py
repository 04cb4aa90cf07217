"""The spelling: the part of a client's vector from which the names of items are read.

If nobody has a list of the items, the first sketch of a vector counts hashes of items. A hash does
not tell the name. Therefore the vector holds more, smaller sketches. Each belongs to one position t
of the names and counts the integers hash * 256 + symbol_t. Here symbol_t is the name's symbol at
position t: a byte, the end mark or a parity symbol. docs/protocol.md gives the layout.
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

# The most bytes of a name; a longer text is a document. With the end mark it has 193 symbols.
MAX_LENGTH = 192
# The code that gives the parity symbols has 255 points, one for each symbol of a name. A name of p
# symbols, its end mark included, has at most 2 p - 1 symbols with parity, and at most as many as
# there are positions.
_POINTS = 255


@dataclass(frozen=True)
class Spelling:
    """The size of the sketches that spell names.

    Args:
        rows: the number of rows of each position's sketch, 1 .. 1024.
        width: the number of counters in a row of each position's sketch, 1 .. 2^24.
        max_length: the most bytes of a name that can be spelled, 1 .. 192.

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
        """Return how many positions of a name each client's vector spells.

        The positions are dealt to the batches (runs of rounds with the same signs).
        docs/protocol.md calls the result G.

        Args:
            batches: the number of batches.
        """
        return -(-(self.max_length + 1) // batches)

    def positions(self, batches: int) -> int:
        """Return how many positions of a name all batches together spell.

        It is `batches * blocks(batches)`. A batch is a run of rounds with the same signs.
        """
        return batches * self.blocks(batches)

    def check_batches(self, batches: int) -> None:
        """Raise InvalidInputError if a name could have more than 255 symbols with parity.

        A name could if these batches spell more than 255 positions, and `max_length` is above 127.
        """
        positions = self.positions(batches)
        if positions > _POINTS and 2 * self.max_length + 1 > _POINTS:
            raise InvalidInputError(
                f"spelling.max_length must be at most {_POINTS // 2} where {batches} batches of"
                f" rounds spell {positions} positions, more than {_POINTS}, got {self.max_length};"
                " use fewer rounds, or shorter names"
            )


@lru_cache(maxsize=64)
def slots(seed: bytes, positions: int) -> npt.NDArray[np.int64]:
    """Return the slot of each position of a name: int64 [positions], a permutation, read-only.

    The slot says which batch of rounds spells the position (`positions_of`). The symbols of a short
    name are repeated at later positions. Slots are shuffled, so that these copies are spread over
    the batches. Everybody can compute the slots. Each position gets a word of 64 bits, and its slot
    is the rank of this word, from 0. Equal words rank by position. The words are read,
    little-endian, from SHAKE-256("fedtally/1/positions" || 0x00 || seed).

    >>> sorted(slots(bytes(32), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    stream = hashlib.shake_256(b"fedtally/1/positions\x00" + seed).digest(8 * positions)
    found = np.empty(positions, np.int64)
    found[np.argsort(np.frombuffer(stream, "<u8"), kind="stable")] = np.arange(positions)
    found.flags.writeable = False  # all callers get the same cached array
    return found


@lru_cache(maxsize=4096)
def positions_of(seed: bytes, positions: int, batch: int, batches: int) -> tuple[int, ...]:
    """Return the positions of names that the vectors of a batch spell, one for each block.

    A block is the sketch of one position. Block b of batch `batch` spells the position with the
    slot b * batches + batch (see `slots`).

    >>> sorted(positions_of(bytes(32), 6, 0, 2) + positions_of(bytes(32), 6, 1, 2))
    [0, 1, 2, 3, 4, 5]
    """
    of_slot = np.argsort(slots(seed, positions))
    return tuple(of_slot[batch::batches].tolist())
