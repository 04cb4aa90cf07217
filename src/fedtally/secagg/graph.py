"""Find each client's neighbours: in a ring whose order nobody can choose, or all other clients.

Neighbours have a mask in common. A client, the owner, splits its secrets into shares at the points
x = 1 .. k + 1. The shares at x = 1 .. k are for its k neighbours, the holders, and the owner keeps
the share at k + 1. The neighbour at point x has slot x - 1. A message to or from a client lists the
neighbours in the order of this client's slots.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedtally.crypto.keys import ring_order_key
from fedtally.crypto.prg import expand
from fedtally.secagg.messages import Bits
from fedtally.secagg.params import Parameters, is_whole_ring

I64 = npt.NDArray[np.int64]
# The size of the blocks that clients are sorted by, in bytes. With a probability of 2^-89 two of
# 2^20 clients have equal blocks.
_BLOCK = 16


class Neighbourhood:
    """Map each client to its neighbours, and to the slots that two neighbours have for each other.

    Ring: the clients are sorted by 128-bit blocks of a public stream. A client's neighbours are the
    next k/2 clients (point x is the distance, 1 .. k/2) and the previous k/2 clients (x is k/2 plus
    the distance). Complete graph: all other clients are neighbours, and x = (holder - owner) mod n.

    Args:
        parameters: the parameters of the session.
        n: the number of clients in the roster.
        ctx2: the context of the roster, a digest of its clients (`wire.roster_context`), 32 bytes.

    Attributes:
        n: the number of clients in the roster.
        neighbours: k, the number of neighbours of each client.
        threshold: t, the number of shares that give a secret.
        mirror: int64 [k]. If client v is at slot s of client u, then u is at slot mirror[s] of v.

    >>> from fedtally.secagg.proposal import propose
    >>> few = propose(5, length=1, bits=8, corrupt=1, max_dropout=0.2)
    >>> Neighbourhood(few, 5, bytes(32)).of(3).tolist()
    [4, 0, 1, 2]
    """

    def __init__(self, parameters: Parameters, n: int, ctx2: bytes) -> None:
        self.n = n
        self.neighbours, self.threshold = k, _ = parameters.graph(n)
        self._corrupt = parameters.corrupt
        # Two neighbours are at different slots of each other. Without `mirror` the server would
        # look up a share at the wrong slot, and combine it at the point of another holder.
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
        """Return the roster indexes of one client's neighbours, in order of slots: int64 [k].

        Slot s is the neighbour that holds this client's share at point s + 1.
        """
        found: I64 = self._order[(self._position[index] + self._offsets) % self.n]
        return found

    def at_slot(self, slot: int) -> I64:
        """Return for every client its neighbour at one slot: int64 [n].

        Entry i of the result is the index in the roster of the neighbour of client i. The slot is 0
        .. k - 1.
        """
        found: I64 = self._order[(self._position + self._offsets[slot]) % self.n]
        return found

    def is_whole(self, alive: Bits) -> bool:
        """Return whether the honest survivors stay connected, except with a probability of 2^-41.

        Honest survivors are connected if masks in common link all of them. If they were not, a
        server could unmask the sum of each part alone. The probability is over the draw of the
        ring. It is at most 2^-41 if at most C clients are corrupt, and who is corrupt was fixed
        before the draw. This holds however the survivors were chosen (docs/protocol.md, "Claim of
        `semi-honest`"). In the complete graph the result is True.

        Args:
            alive: bool [n], by index in the roster; the survivors.
        """
        cut = self.weakest_cut(alive)
        return cut is None or is_whole_ring(self.n, self._corrupt, self.neighbours, cut)

    def weakest_cut(self, alive: Bits) -> int | None:
        """Return the fewest survivors whose removal cuts the other survivors into two parts.

        The result is None if no removal cuts them. A ring is cut where two gaps have no survivor,
        and each of the two arcs between the gaps has a survivor. A gap is k/2 successive places.
        For the complete graph the result means nothing: that graph cannot be cut.

        It is enough to try gaps that follow a survivor, each with the best second gap. The reason:
        a gap that does not follow a survivor can be moved back over places without a survivor until
        it does. The moved gap has no more survivors than before, and the arcs have no fewer. The
        method takes O(n log n) time.

        Args:
            alive: bool [n], by index in the roster; the survivors.
        """
        n, half = self.n, self.neighbours // 2
        # Between two gaps there is at least one place on each side. So the second gap begins half +
        # 1 .. n - half - 1 places after the first one begins.
        num_partners = n - 2 * half - 1
        if num_partners < 1:
            return None
        places = alive[self._order].astype(np.int64)
        before = np.concatenate([[0], np.cumsum(np.concatenate([places, places[:half]]))])
        no_gap = 2 * n  # more survivors than any two gaps have
        gaps = np.where(np.roll(places, 1) == 1, before[half : half + n] - before[:n], no_gap)
        # `least[i]` is the fewest survivors in any of the `width` gaps from place i on. `width`
        # becomes the largest power of two that is at most `num_partners`. Then two runs of `width`
        # gaps, which may overlap, cover all possible second gaps.
        least, width = np.concatenate([gaps, gaps]), 1
        while 2 * width <= num_partners:
            least, width = np.minimum(least[:-width], least[width:]), 2 * width
        first, last = half + 1, half + 1 + num_partners - width
        cut = int((gaps + np.minimum(least[first : first + n], least[last : last + n])).min())
        return cut if cut < no_gap else None


def _ring_order(n: int, ctx2: bytes) -> tuple[I64, I64]:
    """Return the order of the ring (place -> index) and its inverse (index -> place): int64 [n].

    Clients are sorted by their blocks as 128-bit integers, and clients with equal blocks by index.
    """
    # The key depends on ctx2, and ctx2 on every advert. So the server cannot choose a client's
    # place: any change to the roster gives all clients new places.
    blocks = np.frombuffer(expand(ring_order_key(ctx2), _BLOCK * n), "<u8").reshape(n, 2)
    order = np.lexsort((blocks[:, 0], blocks[:, 1]))  # the upper half counts first
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    return order, position
