"""The clip in sketch space: a client of many items drops some until the norm of its sketch is at most `clip_norm`.

The hashes are public, so a client knows the sketch of its items before it sends anything. The bound holds for every
input, also for items chosen to collide: privacy rests on it (docs/privacy-proofs/clip.md). What is dropped is
drawn without looking at the hashes; at the default norm hardly anything is.

Norms are squared integers, compared with the exact square of `clip_norm`: no rounding lets a sketch pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedtally import _validate, kernels
from fedtally.sketch.count_sketch import SketchSpec

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
MAX_ITEMS = 1 << 20  # of one client: squared norms stay below 2^50, and what `_increments` sorts below 2^63
_BLOCK = 1 << 17


def squared_norm(spec: SketchSpec, round: int, ids: U64) -> int:
    """Return the squared l2 norm of the sketch that one client's items have in a round: exact.

    Args:
        spec: of the sketch.
        round: 0 .. num_rounds - 1.
        ids: uint64 [n], n <= 2^20.

    >>> spec = SketchSpec(rows=3, width=2, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> [squared_norm(spec, 0, np.array(ids, np.uint64)) for ids in ([], [5], [5, 4], [5, 3])]
    [0, 3, 12, 8]
    """
    return int(_increments(spec, round, ids, _nobody_else(ids)).sum())


def clipped(spec: SketchSpec, round: int, ids: U64, clip_norm: float, random: Callable[[int], bytes]) -> U64:
    """Return those of a client's items that it contributes to a round: their sketch has a norm of at most `clip_norm`.

    All of them where that holds; else as many as may stay, in an order drawn uniformly and without regard to the
    hashes, when items are dropped one by one from its end.

    Args:
        spec: of the sketch.
        round: 0 .. num_rounds - 1.
        ids: uint64 [n], distinct, n <= 2^20.
        clip_norm: at least 0; nothing is left below sqrt(rows).
        random: returns as many uniform bytes as it is asked for; asked only where items are dropped.

    Returns:
        uint64 [kept], in the order of `ids`.

    >>> spec = SketchSpec(rows=3, width=2, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> len(clipped(spec, 0, np.array([4, 5], np.uint64), 3.0, np.random.default_rng(0).bytes))
    1
    """
    most = _largest_square(clip_norm)
    if squared_norm(spec, round, ids) <= most:
        return ids
    order = _permutation(len(ids), random)
    squares = np.cumsum(_increments(spec, round, ids[order], _nobody_else(ids)))
    kept = np.max(np.flatnonzero(squares <= most), initial=-1) + 1
    return ids[np.sort(order[:kept])]


def drawn(ids: U64, most: int, random: Callable[[int], bytes]) -> U64:
    """Return at most so many of a client's items, each choice as likely: uint64, in the order of `ids`.

    >>> len(drawn(np.arange(9, dtype=np.uint64), 4, np.random.default_rng(0).bytes))
    4
    """
    return ids if len(ids) <= most else ids[np.sort(_permutation(len(ids), random)[:most])]


def exceeding(spec: SketchSpec, round: int, ids: U64, starts: I64, clip_norm: float) -> I64:
    """Return the clients of a round who must drop items: those whose sketch has a norm above `clip_norm`.

    Args:
        spec: of the sketches.
        round: 0 .. num_rounds - 1.
        ids: uint64 [items]; client i holds ids[starts[i] : starts[i + 1]], at most 2^20.
        starts: int64 [clients + 1], from 0 to `items`, not falling.
        clip_norm: at least 0.

    Returns:
        int64 [found], rising.

    >>> spec = SketchSpec(rows=3, width=2, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> exceeding(spec, 0, np.array([5, 4, 5, 3, 5], np.uint64), np.array([0, 1, 3, 5]), clip_norm=3.0).tolist()
    [1]
    """
    most = _largest_square(clip_norm)
    sizes = np.diff(starts)
    _validate.integer(0, MAX_ITEMS, items=np.max(sizes, initial=0))
    suspects = np.flatnonzero(spec.rows * sizes**2 > most)  # k items have a squared norm of at most k^2 rows
    found = [
        block[_squared_norms(spec, round, ids, starts[block], sizes[block]) > most]
        for block in _blocks(suspects, sizes[suspects])
    ]
    return np.concatenate(found) if found else suspects


def _largest_square(clip_norm: float) -> int:
    """Return the largest squared norm that is not above `clip_norm`: the floor of its square, of which none is lost."""
    exact = math.floor(Fraction(_validate.real(0.0, clip_norm=clip_norm)) ** 2)
    return min(exact, np.iinfo(np.int64).max)


def _permutation(count: int, random: Callable[[int], bytes]) -> npt.NDArray[np.intp]:
    """Return one of all orders, each as likely: that of random words. If two are equal, all are drawn again."""
    while True:
        words = np.frombuffer(random(8 * count), "<u8", count)
        order = np.argsort(words)
        if np.all(np.diff(words[order])):
            return order


def _nobody_else(ids: U64) -> I64:
    _validate.integer(0, MAX_ITEMS, items=len(ids))
    return np.zeros(len(ids), np.int64)


def _blocks(clients: npt.NDArray[np.intp], sizes: I64) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the clients, in order, in parts that begin within 2^17 items."""
    if len(clients):
        block = (np.cumsum(sizes) - sizes) // _BLOCK
        yield from np.split(clients, np.flatnonzero(np.diff(block)) + 1)


def _squared_norms(spec: SketchSpec, round: int, ids: U64, starts: I64, sizes: I64) -> I64:
    """Return the squared norms of clients of at least one item each: `sizes` of them, in `ids` from `starts` on."""
    ends = np.cumsum(sizes)
    own = ids[np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1])]
    squares: I64 = np.add.reduceat(_increments(spec, round, own, np.repeat(np.arange(len(sizes)), sizes)), ends - sizes)
    return squares


def _increments(spec: SketchSpec, round: int, ids: U64, owners: I64) -> I64:
    """Return by how much each item raises the squared norm of the sketch of its owner's items before it: int64 [n].

    A counter c that becomes c + s, s = +1 or -1, adds 1 + 2 s c to the sum of squares; c is the sum of the signs that
    came before in its cell. Sorted by owner, cell and position, these are running sums.
    """
    location, sign, bit = spec.round_hash(round)
    shift = len(ids).bit_length()
    positions = np.arange(len(ids))
    increments = np.full(len(ids), spec.rows)
    for row in range(spec.rows):
        words = kernels.hash_words(location[row : row + 1], ids)[0]
        signs = kernels.signs(words if sign is location else kernels.hash_words(sign[row : row + 1], ids)[0], bit)
        keys = np.sort((owners * spec.width + kernels.locations(words, spec.width)) << shift | positions)
        order, cells = keys & ((1 << shift) - 1), keys >> shift
        added = signs[order]
        before = np.cumsum(added) - added
        first = np.flatnonzero(np.diff(cells, prepend=-1))
        before -= np.repeat(before[first], np.diff(first, append=len(ids)))
        increments[order] += 2 * added * before
    return increments
