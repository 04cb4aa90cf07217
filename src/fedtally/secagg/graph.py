"""Who is whose neighbour in a roster: a ring in an order that nobody chooses, or everybody.

A client deals its shares to the holders at the points x = 1 .. k, which are its neighbours, and keeps x = k + 1. In
every message neighbours come in the order of x, as seen from the client whose message it is: slot x - 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedtally.crypto.keys import ring_order_key
from fedtally.crypto.prg import expand
from fedtally.secagg.params import Parameters

I64 = npt.NDArray[np.int64]
_BLOCK = 16


class Neighbourhood:
    """The neighbours in a roster of n clients.

    Ring: the clients in the order of 128-bit blocks of a public stream; neighbours are at the offsets 1 .. k/2 (x is
    the offset) and -1 .. -k/2 (x is k/2 more than its absolute value). Complete graph: x = (holder - owner) mod n.

    Args:
        parameters: of the session.
        n: clients in the roster.
        ctx2: the context of the roster, 32 bytes.

    Attributes:
        n: clients in the roster.
        neighbours: k.
        threshold: t.
        mirror: int64 [k]; the slot of a client with its neighbour at slot s.

    >>> from fedtally.secagg.proposal import propose
    >>> few = propose(5, length=1, bits=8, corrupt=1, max_dropout=0.2)
    >>> Neighbourhood(few, 5, bytes(32)).of(3).tolist()
    [4, 0, 1, 2]
    """

    def __init__(self, parameters: Parameters, n: int, ctx2: bytes) -> None:
        self.n = n
        self.neighbours, self.threshold = k, _ = parameters.graph(n)
        if parameters.is_complete:
            self._order = self._position = np.arange(n)
            self._offsets = np.arange(1, n)
            self.mirror = np.arange(k)[::-1].copy()
        else:
            half = np.arange(1, k // 2 + 1)
            self._order, self._position = _ring_order(n, ctx2)
            self._offsets = np.concatenate([half, -half])
            self.mirror = np.roll(np.arange(k), k // 2)

    def of(self, index: int) -> I64:
        """Return a client's neighbours by x: int64 [k]."""
        found: I64 = self._order[(self._position[index] + self._offsets) % self.n]
        return found

    def at_slot(self, slot: int) -> I64:
        """Return every client's neighbour at one slot: int64 [n]."""
        found: I64 = self._order[(self._position + self._offsets[slot]) % self.n]
        return found


def _ring_order(n: int, ctx2: bytes) -> tuple[I64, I64]:
    """Return the order (place -> index) and the places (index -> place): by blocks as integers, ties by index."""
    blocks = np.frombuffer(expand(ring_order_key(ctx2), _BLOCK * n), "<u8").reshape(n, 2)
    order = np.lexsort((blocks[:, 0], blocks[:, 1]))
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    return order, position
