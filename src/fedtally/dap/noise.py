"""The noise that one server adds to its share of each batch, and the charge that comes before it.

Each of the two servers draws all the noise that a privacy guarantee needs, since the other server
may draw none. Clients and the collector need not know of it: both operators agree on it, and no
message mentions it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Noise(Protocol):
    """The noise of one server.

    Attributes:
        terms: the agreement of both operators about noise, encoded; the same bytes at each start of
            a server.
    """

    terms: bytes

    def charge(self, batch: int) -> None:
        """Charge a batch for privacy, before its noise is drawn.

        A server that crashed before it stored its share charges the same batch again.

        Args:
            batch: the time of the first report of the batch, counted from the start of the task in
                units of the precision.

        Raises:
            FedtallyError: the batch may not be released; no share was released, and the batch is
                unchanged.
        """

    def draw(self, counters: int) -> npt.NDArray[np.int64]:
        """Return new noise: int64 [counters]; each call draws again."""
