"""The interface of the noise that one server adds to its share of each batch.

A batch is charged to a privacy budget before its noise is drawn. Each of the two servers draws all
the noise that the privacy guarantee needs, since the other server may add no noise. Both operators
agree on the noise. No message mentions it, so clients and the collector need not know about it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Noise(Protocol):
    """The noise of one server.

    Attributes:
        terms: what both operators agreed on about noise, encoded. A server with a store refuses to
            start if these bytes differ from the bytes at its first start.
    """

    terms: bytes

    def charge(self, batch: int) -> None:
        """Charge a batch to the privacy budget; a server calls this before it draws the noise.

        The same batch may be charged more than once: after a crash, a server that had not stored
        its share yet repeats both the charge and the draw. Such a repeated charge must be accepted,
        and must cost nothing more.

        Args:
            batch: the number of the batch: the start of the interval that the collector asked for
                minus the start of the task, in units of the task's precision. It is 0 if the
                interval begins before the task.

        Raises:
            FedtallyError: the budget does not allow this batch. The server then returns no share
                and leaves the batch open.
        """

    def draw(self, counters: int) -> npt.NDArray[np.int64]:
        """Draw noise, anew at each call, and return it.

        Args:
            counters: the number of counters of the batch's sum.

        Returns:
            int64 [counters]: the noise of each counter.
        """
