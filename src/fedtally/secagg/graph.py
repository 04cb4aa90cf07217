"""The neighbours in a roster: a ring in an order that nobody chooses, or the complete graph.

A client deals its shares to the holders at the points x = 1 .. k, which are its neighbours, and
keeps the share at x = k + 1. In every message neighbours come in the order of x, as seen from the
client whose message it is: slot x - 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedtally.crypto.keys import ring_order_key
from fedtally.crypto.prg import expand
from fedtally.secagg.messages import Bits
from fedtally.secagg.params import Parameters, is_whole_ring

I64 = npt.NDArray[np.int64]
_BLOCK = 16  # bytes by which a client is placed: of 2^20 clients two tie with a chance of 2^-88


class Neighbourhood:
    """The neighbours in a roster of n clients.

    Ring: the clients in the order of 128-bit blocks of a public stream; neighbours are at the
    offsets 1 .. k/2 (x is the offset) and -1 .. -k/2 (x is k/2 more than its absolute value).
    Complete graph: x = (holder - owner) mod n.

    Args:
        parameters: the parameters of the session.
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
        self._corrupt = parameters.corrupt
        # The two ends of an edge have different slots for it, and `mirror` translates. With a wrong
        # slot a share would be combined at another holder's point.
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

    def is_whole(self, alive: Bits) -> bool:
        """Tell whether the honest clients among these survivors, [n], are surely connected.

        C corrupt clients, fixed before the ring is drawn, part them with a probability of at most
        2^-41, however the survivors were chosen (docs/protocol.md, "Claim of `semi-honest`").
        """
        cut = self.weakest_cut(alive)
        return cut is None or is_whole_ring(self.n, self._corrupt, self.neighbours, cut)

    def weakest_cut(self, alive: Bits) -> int | None:
        """Return the fewest survivors, of [n], without which the others are in two parts.

        It is None if nothing parts them. A ring is in two parts where two gaps, of k/2 successive
        places each, have no survivor, and both sides between them have one. A gap that does not
        follow a survivor can be moved back over dead places until it does: no survivor comes into
        it, and none leaves the sides. So only gaps that follow a survivor are tried, each with the
        best of its partners: O(n log n).
        """
        n, half = self.n, self.neighbours // 2
        # the first place of the other gap: half + 1 .. n - half - 1 places further
        num_partners = n - 2 * half - 1
        if num_partners < 1:
            return None
        places = alive[self._order].astype(np.int64)
        before = np.concatenate([[0], np.cumsum(np.concatenate([places, places[:half]]))])
        no_gap = 2 * n  # more than any two gaps hold
        gaps = np.where(np.roll(places, 1) == 1, before[half : half + n] - before[:n], no_gap)
        # The least of `width` successive gaps, by doubling; two such windows, which overlap, cover
        # all partners.
        least, width = np.concatenate([gaps, gaps]), 1
        while 2 * width <= num_partners:
            least, width = np.minimum(least[:-width], least[width:]), 2 * width
        first, last = half + 1, half + 1 + num_partners - width
        cut = int((gaps + np.minimum(least[first : first + n], least[last : last + n])).min())
        return cut if cut < no_gap else None


def _ring_order(n: int, ctx2: bytes) -> tuple[I64, I64]:
    """Return the order (place -> index) and the places (index -> place) of the ring.

    Clients are sorted by their blocks as 128-bit integers, ties by index.
    """
    # The key follows from ctx2, hence from every advert: the server cannot place a client, since
    # any change to the roster draws all places anew.
    blocks = np.frombuffer(expand(ring_order_key(ctx2), _BLOCK * n), "<u8").reshape(n, 2)
    order = np.lexsort((blocks[:, 0], blocks[:, 1]))  # the last key is the most significant half
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    return order, position
