"""The loops over the symbols of one name, compiled; `recovery.names` has the definitions, in NumPy.

The arguments are trusted. Nothing here may be called where `backends.backend()` is "numpy".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedtally.kernels.arguments import F64, I64
from fedtally.kernels.backends import native

U8 = npt.NDArray[np.uint8]


def posteriors(every: Sequence[F64], pairs: F64, single: F64, weight: float, end: int) -> list[F64]:
    """Return the probability of each byte at each place, given all places.

    Args:
        every: for each name the likelihoods of its bytes, float64 [places, 256].
        pairs: float64 [257, 256], how often a byte followed another one; the last row has the first
            bytes of names.
        single: float64 [256], the shares of bytes.
        weight: what `single` counts, in pairs.
        end: the symbol behind the last byte.

    Returns:
        For each name float64 [places, 256].
    """
    own = np.ascontiguousarray(np.concatenate([*every, np.empty((0, 256))]))
    starts = np.cumsum([0, *map(len, every)])
    found = np.empty_like(own)
    native.posteriors(pairs, pairs.sum(axis=1), single, weight, end, own, starts, found)
    return [found[low:high] for low, high in pairwise(starts)]


def likeliest(copies: F64, posterior: F64, prior: F64, branches: int, most: int) -> U8:
    """Return the words of the largest scores: uint8 [n, places].

    Args:
        copies: float64 [places, 256], log likelihoods of the bytes.
        posterior: float64 [places, 256], what is likely there: the largest are tried.
        prior: float64 [257, 256], log probabilities of a byte behind another one.
        branches: how many bytes of each place are tried.
        most: how many words are kept, at each place; at least the branches.
    """
    words = np.empty((most, len(copies)), np.uint8)
    found = native.likeliest(
        np.ascontiguousarray(copies), np.ascontiguousarray(posterior), prior, branches, words
    )
    return words[:found]


def interpolated(
    posterior: F64, parity: F64, replaced: int, by_flips: I64, end: int, unused: int
) -> U8:
    """Return words that are interpolated from the surest places: uint8 [n, size - 1].

    Args:
        posterior: float64 [size - 1, 256], log probabilities of the symbols before the end mark.
        parity: float64 [n, 256], those of the parity.
        replaced: how many chosen places are exchanged, one at a time.
        by_flips: int64 [2^flips], the combinations of second symbols, in their order.
        end: the end mark.
        unused: the least byte that no name has.
    """
    words = np.empty(((1 + replaced) * len(by_flips), len(posterior)), np.uint8)
    flips = len(by_flips).bit_length() - 1
    logs = np.ascontiguousarray(posterior), np.ascontiguousarray(parity)
    found = native.interpolated(*logs, replaced, flips, by_flips, end, unused, words)
    return words[:found]
