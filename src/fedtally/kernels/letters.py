"""Compiled loops that guess the symbols of names; `recovery.names` has them in NumPy.

Arguments are not checked. Call these functions only if `backends.backend()` is not "numpy".
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
    """Return the probability of each byte at each place of a name, given all places of the name.

    This is the forward-backward algorithm, with a Markov chain as the prior of bytes.
    `recovery.names._posteriors` defines it.

    Args:
        every: for each name, the likelihoods of the bytes at each place, float64 [places, 256].
        pairs: how often a byte (column) follows another byte (row) in names, float64 [257, 256];
            row 256 counts the first bytes of names.
        single: the share of each byte among all bytes, float64 [256].
        weight: how much `single` counts beside `pairs`, as a number of pairs.
        end: the symbol that follows the last byte of a name.

    Returns:
        For each name its probabilities, float64 [places, 256].
    """
    own = np.ascontiguousarray(np.concatenate([*every, np.empty((0, 256))]))
    starts = np.cumsum([0, *map(len, every)])
    found = np.empty_like(own)
    native.posteriors(pairs, pairs.sum(axis=1), single, weight, end, own, starts, found)
    return [found[low:high] for low, high in pairwise(starts)]


def likeliest(copies: F64, posterior: F64, prior: F64, branches: int, most: int) -> U8:
    """Return guesses of a name's bytes, the largest score first: uint8 [n, places], n <= most.

    The score of a guess is its log likelihood plus its log probability under the prior. The search
    keeps the best beginnings of names, place by place, so it may miss a guess.
    `recovery.names._likeliest` defines the search.

    Args:
        copies: the log likelihoods of the bytes at each place, float64 [places, 256].
        posterior: the log probabilities of the bytes at each place, float64 [places, 256]; they
            select which bytes are tried.
        prior: the log probability that a byte (column) follows another byte (row), float64 [257,
            256]; row 256 is for the first byte of a name.
        branches: how many bytes are tried at each place.
        most: how many guesses are kept at each place, at most; at least `branches`.
    """
    words = np.empty((most, len(copies)), np.uint8)
    found = native.likeliest(
        np.ascontiguousarray(copies), np.ascontiguousarray(posterior), prior, branches, words
    )
    return words[:found]


def interpolated(
    posterior: F64, parity: F64, replaced: int, by_flips: I64, end: int, unused: int
) -> U8:
    """Return guesses of a name that are interpolated from its surest symbols: uint8 [n, size - 1].

    A name of `size` symbols (its bytes and the end mark) is determined by any `size` of its symbols
    and parity symbols. The places with the surest symbols are chosen. Guesses with impossible bytes
    are left out. The guesses are in the order in which to try them.
    `recovery.names._interpolated` defines the function.

    Args:
        posterior: the log probabilities of the bytes before the end mark, float64 [size - 1, 256].
        parity: the log probabilities of the parity symbols, float64 [parity symbols, 256].
        replaced: how many of the chosen places are replaced, one at a time, by the surest of the
            other places.
        by_flips: bit masks, int64 [2^flips], in the order in which they are tried. The `flips`
            chosen places with the least sure symbols may get their second-best symbol; a mask says
            which of them do.
        end: the symbol of the end mark.
        unused: the smallest byte that no name has.
    """
    words = np.empty(((1 + replaced) * len(by_flips), len(posterior)), np.uint8)
    flips = len(by_flips).bit_length() - 1
    logs = np.ascontiguousarray(posterior), np.ascontiguousarray(parity)
    found = native.interpolated(*logs, replaced, flips, by_flips, end, unused, words)
    return words[:found]
