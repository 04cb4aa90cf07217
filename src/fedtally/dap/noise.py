"""The noise of one server: what it adds to its share of each batch, and who is asked before.

Each of the two servers draws all of the noise that a guarantee needs, since the other one may draw
none. Clients and collector need not know of it: it is a matter of both operators, and no message
has a word of it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Noise(Protocol):
    """What a server adds.

    Attributes:
        terms: the agreement of both operators, the same bytes at each start of a server.
    """

    terms: bytes

    def charge(self, batch: int) -> None:
        """Charge a batch; its noise is drawn after this.

        A server that died before it kept its share charges the same batch again.

        Args:
            batch: the time of its first report, from the start of the task on.

        Raises:
            FedtallyError: it may not be given away, and nothing was; the batch stays as it was.
        """

    def draw(self, counters: int) -> npt.NDArray[np.int64]:
        """Return noise, one number a counter; each call returns other noise."""
