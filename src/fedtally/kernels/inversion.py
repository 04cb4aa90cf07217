"""`Inversion`: exact random draws of integers, by inversion of a table of the distribution."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.kernels.arguments import I64, U64, check_ids
from fedtally.kernels.backends import backend, native

MAX_ENTRIES = 1 << 21
_WORD = 2**64 - 1  # the largest 64-bit integer
# The least and the largest number of upper bits of a word that select its slot in the guide table.
# The guide table says where the search for a word begins. With up to 2^17 entries there are 8 or
# more slots for each entry, so that few slots hold two entries.
_GUIDE_BITS = 10, 20


class Inversion:
    """Draws integers from a distribution over consecutive integers, with exact probabilities.

    A draw needs a uniform integer u of 128 bits: u = 2^64 * word + low. The draw is `first` plus
    the number of entries of `cumulative` that are at most u. So the draw first + j has the
    probability (cumulative[j] - cumulative[j - 1]) / 2^128. Before the first entry, cumulative
    counts as 0, and after the last entry as 2^128. Nearly always the word alone decides; the low
    half is needed only if the word equals the upper 64 bits of an entry.

    Args:
        cumulative: 2^128 times the distribution function, without its final 1: 1 .. 2^21 integers
            in 0 .. 2^128 - 1 that do not fall.
        first: the draw if u is below every entry, -2^62 .. 2^62.

    >>> Inversion([2**127], 5).draw(np.array([2**63 - 1, 2**63 + 1], np.uint64)).tolist()
    [5, 6]
    """

    def __init__(self, cumulative: Sequence[int], first: int) -> None:
        validate.integer(1, MAX_ENTRIES, entries=len(cumulative))
        self._first = validate.integer(-(1 << 62), 1 << 62, first=first)
        if (
            cumulative[0] < 0
            or cumulative[-1] >= 1 << 128
            or any(a > b for a, b in pairwise(cumulative))
        ):
            raise InvalidInputError("cumulative must be integers 0 .. 2^128 - 1 that do not fall")
        upper = np.array([entry >> 64 for entry in cumulative], np.uint64)
        self._cumulative = upper, np.array([entry & _WORD for entry in cumulative], np.uint64)
        # With 0 and 2^64 - 1 added at the ends, the search needs no test for the ends of the table.
        # A word that equals one of them is then treated as undecided.
        inner = upper[(upper > 0) & (upper < _WORD)]
        self._bounds = np.concatenate(
            [np.array([0], np.uint64), inner, np.array([_WORD], np.uint64)]
        )
        # 1 is subtracted: the added 0 is below every decided word, but is no entry of the table.
        self._base = self._first + int(np.count_nonzero(upper == 0)) - 1
        bits = min(max(_GUIDE_BITS[0], len(inner).bit_length() + 3), _GUIDE_BITS[1])
        slots = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
        self._guide = np.searchsorted(self._bounds, slots).astype(np.uint32)

    def draw(self, words: U64, low: U64 | None = None, scan: bool = False) -> I64 | None:
        """Return a draw for each word: int64 [n]. It is None if the words alone do not decide.

        Args:
            words: the upper 64 random bits of each draw, uint64 [n], C-contiguous and writeable.
                The caller must not use this array afterwards: the result may be in its memory.
            low: the lower 64 random bits of each draw, uint64 [n], or None. If it is given, the
                slower NumPy implementation is used.
            scan: whether to compare each word with all entries, so that the time does not depend on
                the draws.

        Returns:
            The draws. None if `low` is None and some word equals the upper half of an entry; the
            compiled kernel also returns None for the words 0 and 2^64 - 1.
        """
        words = check_ids(words)
        if low is not None or backend() == "numpy":
            low = None if low is None else check_ids(low)
            return reference.invert(words, low, self._cumulative, self._first, scan)
        tied = native.invert(backend(), self._bounds, self._guide, self._base, scan, words)
        return None if tied else words.view(np.int64)
