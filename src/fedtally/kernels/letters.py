"""Compiled loops over the symbols of names; `recovery.names` defines them in NumPy.

The arguments are not checked. Do not call these functions if `backends.backend()` is "numpy".
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
    """Return the probability of each byte at each place of each name, given all places of the name.

    Args:
        every: the likelihoods of the bytes of each name, float64 [places, 256] each.
        pairs: float64 [257, 256], the number of times that a byte (column) follows another one
            (row); the last row counts the first bytes of names.
        single: the share of each byte in all bytes, float64 [256].
        weight: the weight of `single`, as a number of pairs.
        end: the symbol after the last byte of a name.

    Returns:
        For each name float64 [places, 256].
    """
    own = np.ascontiguousarray(np.concatenate([*every, np.empty((0, 256))]))
    starts = np.cumsum([0, *map(len, every)])
    found = np.empty_like(own)
    native.posteriors(pairs, pairs.sum(axis=1), single, weight, end, own, starts, found)
    return [found[low:high] for low, high in pairwise(starts)]


def likeliest(copies: F64, posterior: F64, prior: F64, branches: int, most: int) -> U8:
    """Return the words with the largest scores: uint8 [n, places].

    Args:
        copies: the log likelihoods of the bytes at each place, float64 [places, 256].
        posterior: the probabilities of the bytes at each place, float64 [places, 256]; the most
            probable bytes are tried.
        prior: the log probability of a byte (column) after another one (row), float64 [257, 256].
        branches: the number of bytes to try at each place.
        most: the most words to keep at each place; at least `branches`.
    """
    words = np.empty((most, len(copies)), np.uint8)
    found = native.likeliest(
        np.ascontiguousarray(copies), np.ascontiguousarray(posterior), prior, branches, words
    )
    return words[:found]


def interpolated(
    posterior: F64, parity: F64, replaced: int, by_flips: I64, end: int, unused: int
) -> U8:
    """Return words that are interpolated from the surest places: uint8 [words, size - 1].

    The surest places of the name and of its parity symbols are chosen, as many as the name has
    symbols (size).

    Args:
        posterior: the log probabilities of the symbols before the end mark, float64 [size - 1,
            256].
        parity: the log probabilities of the parity symbols, float64 [parity symbols, 256].
        replaced: the number of chosen places to replace, one at a time, by the surest place that
            was not chosen.
        by_flips: the combinations of second-best symbols in the order to try, int64 [2^flips].
        end: the end mark's symbol.
        unused: the smallest byte that no name has.
    """
    words = np.empty(((1 + replaced) * len(by_flips), len(posterior)), np.uint8)
    flips = len(by_flips).bit_length() - 1
    logs = np.ascontiguousarray(posterior), np.ascontiguousarray(parity)
    found = native.interpolated(*logs, replaced, flips, by_flips, end, unused, words)
    return words[:found]
