"""Limits one client's contribution to a round: the number of items, and the norm of their sketch.

A client that exceeds a bound drops some of its items at random. `bound_items` applies the bounds to
one client. `bound_items_of_each` applies them to many clients at once, for simulations, or to each
person of a silo.

The clip is the bound on the l2 norm of a client's sketch. The hashes are public, so each client
computes the norm of its sketch before it sends anything. Therefore the bound holds for every set of
items, even for items that someone chose to collide. Privacy depends on this
(docs/privacy-proofs/clip.md). The order in which items are dropped does not depend on the hashes.
At the default norm hardly any item is dropped.

Squared norms are integers. They are compared with the exact square of the clip's norm, so rounding
cannot let a larger sketch pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.base import validate
from fedtally.sketch.count_sketch import Identity, Part, RoundHash, SketchSpec

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
# The most items of one client. With this limit, squared norms and the sort keys of
# `_part_increments` stay below 2^63.
MAX_ITEMS = 1 << 20
_BLOCK = 1 << 17  # items that are processed at once, to bound the memory
_FEW = 16  # up to this number of items, comparing all pairs of them is faster than sorting


class Clip(NamedTuple):
    """The bound on the l2 norm of the sketch of one client's items in a round.

    Attributes:
        spec: the spec of the sketch.
        round: the round, 0 .. num_rounds - 1.
        norm: the bound, at least 0. A sketch of one item has the norm sqrt(spec.touched). With a
            smaller bound no client can contribute a single item; several items may fit if they
            cancel each other.
        spell: a function for a spec with a spelling (names are spelled in further counters). It
            turns item ids, uint64 [n], into rows as `CountSketch.add` takes them, uint64 [n, 1 +
            positions]. None: the spec has no spelling.
    """

    spec: SketchSpec
    round: int
    norm: float
    spell: Callable[[U64], U64] | None = None

    def increments(self, ids: U64, owners: I64) -> I64:
        """Return by how much each item changes the squared norm of its owner's sketch: int64 [n].

        The owner of an item is the client that holds it. The items of an owner are added one by
        one, in the order of `ids`, to an empty sketch.

        Args:
            ids: uint64 [n]; no owner holds an id twice.
            owners: int64 [n], the number of the client that holds each item, ascending.
        """
        items = ids if self.spell is None else self.spell(ids)
        return _increments(self.spec, self.round, items, owners)

    @property
    def largest_square(self) -> int:
        """The largest squared norm that the clip allows: norm^2, rounded down to an integer.

        Rounding down changes nothing, because squared norms are integers. The value is at most
        2^63 - 1.

        Raises:
            InvalidInputError: the norm is not a number of at least 0.
        """
        exact = math.floor(Fraction(validate.real(0.0, clip_norm=self.norm)) ** 2)
        return min(exact, np.iinfo(np.int64).max)


def bound_items(
    ids: U64, max_items: int, random: Callable[[int], bytes], clip: Clip | None = None
) -> U64:
    """Return the items that one client contributes to a round: a subset that keeps both bounds.

    If there are at most `max_items` items and their sketch is within the clip, all are returned.
    Otherwise the items are put in a random order, each order equally likely. Only the first
    `max_items` are kept. From these, items are removed one by one, the last one first, until the
    sketch of the remaining items is within the clip.

    Args:
        ids: uint64 [n], the client's items, distinct.
        max_items: the most items, at least 0. With a clip, this bound must leave at most 2^20
            items.
        random: takes a number of bytes, and returns as many uniform random bytes; called only if
            items are dropped.
        clip: the bound on the norm of the items' sketch; None: no bound.

    Returns:
        The ids of the kept items, uint64 [kept], in the order of `ids`.

    Raises:
        InvalidInputError: there is a clip, and `max_items` leaves more than 2^20 items.

    >>> spec = SketchSpec(rows=3, width=2, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> clip = Clip(spec, round=0, norm=3.0)
    >>> len(bound_items(np.array([4, 5], np.uint64), 2, np.random.default_rng(0).bytes, clip))
    1
    >>> len(bound_items(np.arange(9, dtype=np.uint64), 4, np.random.default_rng(0).bytes))
    4
    """
    if len(ids) <= max_items and (
        clip is None or clip.increments(ids, _nobody_else(ids)).sum() <= clip.largest_square
    ):
        return ids
    # Sorting distinct random words gives every order of the items the same probability.
    order = np.argsort(draw_words(len(ids), random))[:max_items]
    if clip is not None:
        squares = np.cumsum(clip.increments(ids[order], _nobody_else(order)))
        # Keep the longest prefix that is within the clip. The norm may fall again when items cancel
        # each other, so an item that exceeds the clip does not end the search.
        order = order[: np.max(np.flatnonzero(squares <= clip.largest_square), initial=-1) + 1]
    return ids[np.sort(order)]


def bound_items_of_each(
    ids: U64, starts: I64, max_items: int, words: Callable[[I64], U64], clip: Clip | None = None
) -> npt.NDArray[np.bool_]:
    """Return which items of many clients remain after both bounds, as a mask over `ids`.

    Each client's items are bounded as in `bound_items`. With the same random words for a client,
    both functions keep the same items.

    Args:
        ids: uint64 [items]; client i holds the distinct ids[starts[i] : starts[i + 1]].
        starts: int64 [clients + 1], from 0 to `items`, not falling.
        max_items: the most items of one client. With a clip, this bound must leave at most 2^20
            items of each client.
        words: a function that takes the indices of some clients, int64, ascending, and returns
            random words, uint64: one for each item of these clients, client by client. The words of
            one client must be distinct: its items are ordered by them. It is called only for
            clients that drop items.
        clip: the bound on the norm of each client's sketch; None: no bound.

    Returns:
        bool [items]: True for each item that is kept.

    Raises:
        InvalidInputError: there is a clip, and `max_items` leaves a client more than 2^20 items.

    >>> ids, starts = np.array([4, 5, 6, 4], np.uint64), np.array([0, 3, 4])
    >>> bound_items_of_each(ids, starts, 2, lambda clients: np.array([7, 9, 8], np.uint64)).tolist()
    [True, False, True, True]
    """
    sizes = np.diff(starts)
    drops = sizes > max_items
    if clip is not None:
        most_left = min(int(sizes.max(initial=0)), max_items)
        validate.integer(0, MAX_ITEMS, items=most_left)  # as in `bound_items`
        few = np.flatnonzero(~drops)  # clients with too many items drop some in any case
        drops[_exceeding(clip, ids, starts, few)] = True
    stays = np.ones(len(ids), np.bool_)
    dropping = np.flatnonzero(drops)
    if max_items == 1 and clip is None and len(dropping):  # keep the least word: faster than a sort
        of_each, held = words(dropping), sizes[dropping]
        least = np.minimum.reduceat(of_each, np.cumsum(held) - held)
        stays[np.repeat(drops, sizes)] = of_each == np.repeat(least, held)
        return stays
    for block in _blocks(dropping, sizes[dropping]):
        owners = np.repeat(np.arange(len(block)), sizes[block])
        places = places_of(block, starts)
        places = places[sort_order([owners, words(block)])]
        stays[places] = False
        # `places` is sorted by client. The rank of an item in its client's order is therefore its
        # distance from the client's first item.
        held = sizes[block]
        rank = np.arange(len(owners)) - np.repeat(np.cumsum(held) - held, held)
        places, owners, rank = (part[rank < max_items] for part in (places, owners, rank))
        if clip is not None:
            fits = _running_squares(clip, ids[places], owners) <= clip.largest_square
            kept = np.zeros(len(block), np.int64)
            np.maximum.at(kept, owners[fits], rank[fits] + 1)
            places = places[rank < kept[owners]]
        stays[places] = True
    return stays


def places_of(clients: I64, starts: I64) -> I64:
    """Return the indices of all items of some clients, client by client: int64.

    Args:
        clients: the numbers of the clients, int64.
        starts: int64 [clients + 1]; client i has the items starts[i] to starts[i + 1] - 1.

    >>> places_of(np.array([0, 2]), np.array([0, 3, 4, 6])).tolist()
    [0, 1, 2, 4, 5]
    """
    sizes = starts[clients + 1] - starts[clients]
    ends = np.cumsum(sizes)
    return np.repeat(starts[clients] - (ends - sizes), sizes) + np.arange(sizes.sum())


def sort_order(columns: Sequence[npt.NDArray[Any]]) -> I64:
    """Return the indices that sort n rows by several columns, the first column first: int64 [n].

    `numpy.lexsort` does the same, but keeps the order of rows that are equal in all columns. This
    function may change it. Therefore it can use NumPy's vectorised sort, which is several times as
    fast.

    Args:
        columns: integer arrays [n] with values from 0 to 2^64 - 1; n <= 2^32.

    >>> sort_order([np.array([7, 5, 7]), np.array([2**63, 9, 1], np.uint64)]).tolist()
    [1, 2, 0]
    """
    order = np.arange(len(columns[0]))
    if not len(order):
        return order
    # A group is a set of rows that are equal in all columns so far. Groups are numbered in order.
    group = np.zeros(len(order), np.uint64)
    for column in columns:
        least, most = column.min(), column.max()
        if least == most:
            continue
        own = column[order].astype(np.uint64, copy=False) - np.uint64(least)
        # Put the group and the column's value into one 64-bit integer. If they need more bits, the
        # lowest `surplus` bits of the value are left out. Rows that differ only in the bits that
        # were left out are sorted again below.
        room = np.uint64(64 - int(group[-1]).bit_length())
        surplus = np.uint64(max(0, (int(most) - int(least)).bit_length() - int(room)))
        # two shifts by about half of `room`: a single shift by 64 bits would be undefined
        whole = (
            group << (room >> np.uint64(1)) << (room - (room >> np.uint64(1)))
        ) | own >> surplus
        if np.any(whole[1:] < whole[:-1]):
            by_both = np.argsort(whole)
            whole, own, order = whole[by_both], own[by_both], order[by_both]
        is_new = whole[1:] != whole[:-1]
        if surplus and np.any(~is_new & (own[1:] != own[:-1])):
            by_both = np.lexsort((own, whole))  # `whole` starts with the group
            own, whole, order = own[by_both], whole[by_both], order[by_both]
            is_new = (whole[1:] != whole[:-1]) | (own[1:] != own[:-1])
        group = np.concatenate([np.zeros(1, np.uint64), np.cumsum(is_new, dtype=np.uint64)])
    return order


def by_owner(ids: U64, owners: npt.NDArray[Any]) -> tuple[U64, I64]:
    """Return the distinct ids of each owner, owner by owner, as `bound_items_of_each` takes them.

    Args:
        ids: uint64 [n], in any order; an owner may have an id several times.
        owners: [n], the owner of each id: values that can be sorted.

    Returns:
        ids: uint64 [m], the owners in ascending order, and the ids of each owner in ascending
            order.
        starts: int64 [owners + 1], the index of each owner's first id; the last entry is m.

    >>> found = by_owner(np.array([7, 5, 7, 7], np.uint64), np.array(["b", "a", "b", "a"]))
    >>> [part.tolist() for part in found]
    [[5, 7, 7], [0, 2, 3]]
    """
    key = _pair_keys(ids, owners)
    if key is not None:
        # sorting one column is several times as fast as sorting by two
        pairs, bits, least = key
        pairs.sort()
        pairs = pairs[np.append(np.ones(min(1, len(pairs)), np.bool_), pairs[1:] != pairs[:-1])]
        own = pairs >> bits
        ids = (pairs & ((np.uint64(1) << bits) - np.uint64(1))) + least
        starts = np.flatnonzero(np.diff(own)) + 1
        return ids, np.concatenate([np.zeros(min(1, len(ids)), np.int64), starts, [len(ids)]])
    order = np.lexsort((ids, owners))
    ids, owners = ids[order], owners[order]
    is_new = np.ones(len(ids), np.bool_)
    is_new[1:] = (owners[1:] != owners[:-1]) | (ids[1:] != ids[:-1])
    ids, owners = ids[is_new], owners[is_new]
    starts = np.flatnonzero(owners[1:] != owners[:-1]) + 1
    return ids, np.concatenate([np.zeros(min(1, len(ids)), np.int64), starts, [len(ids)]])


def _pair_keys(ids: U64, owners: npt.NDArray[Any]) -> tuple[U64, np.uint64, np.uint64] | None:
    """Pack each pair of an owner and an id into one integer, so that sorting it sorts the pairs.

    Returns:
        Three values. The keys, uint64 [n], are (owner - least owner) << bits | (id - least id).
        Then follow `bits`, the number of bits of the largest id - least id, at most 63, and the
        least id. Or None: a key does not fit into 64 bits, owners are not integers, or there are no
        ids.
    """
    if owners.dtype.kind not in "iu" or not len(ids):
        return None
    least, first = ids.min(), owners.min()
    bits = int(ids.max() - least).bit_length()
    if bits + (int(owners.max()) - int(first)).bit_length() > 64 or bits > 63:
        return None
    # unsigned arithmetic wraps around, so differences of negative owners are right as well
    own = owners.astype(np.uint64) - first.astype(np.uint64)
    return own << np.uint64(bits) | (ids - least), np.uint64(bits), least


def draw_words(count: int, random: Callable[[int], bytes]) -> U64:
    """Draw distinct random 64-bit integers, uint64 [count]; all their orders are equally likely.

    Args:
        count: how many integers to draw.
        random: takes a number of bytes, and returns as many uniform random bytes.
    """
    while True:
        # If two are equal, draw all again: to replace only one would make some orders likelier.
        words = np.frombuffer(random(8 * count), "<u8", count)
        if np.all(np.diff(np.sort(words))):
            return words


def _exceeding(clip: Clip, ids: U64, starts: I64, clients: I64) -> I64:
    """Return the numbers of the clients whose sketch has a norm above the clip: int64, ascending.

    Args:
        clip: the bound on the norm.
        ids: uint64 [items], the items of all clients, client by client.
        starts: int64 [all clients + 1]; client i holds ids[starts[i] : starts[i + 1]].
        clients: the numbers of the clients to examine, int64, ascending; each holds at most
            MAX_ITEMS items.
    """
    sizes, most = starts[clients + 1] - starts[clients], clip.largest_square
    # The squared norm of k items is at most k^2 * touched. Most clients are below the clip by this
    # bound alone, and need no hashing.
    is_suspect = clip.spec.touched * sizes**2 > most
    suspects = clients[is_suspect]
    found = [
        block[_squared_norms(clip, ids, starts, block) > most]
        for block in _blocks(suspects, sizes[is_suspect])
    ]
    return np.concatenate(found) if found else suspects


def _nobody_else(items: npt.NDArray[Any]) -> I64:
    """Return the owners of n items that all belong to one client: zeros, int64 [n].

    Raises:
        InvalidInputError: there are more than MAX_ITEMS items.
    """
    validate.integer(0, MAX_ITEMS, items=len(items))
    return np.zeros(len(items), np.int64)


def _blocks(clients: I64, sizes: I64) -> Iterator[I64]:
    """Split the clients, in order, into blocks of about 2^17 items; a client is never split.

    Args:
        clients: the numbers of the clients, int64 [n].
        sizes: the number of items of each of these clients, int64 [n].
    """
    if len(clients):
        block = (np.cumsum(sizes) - sizes) // _BLOCK
        yield from np.split(clients, np.flatnonzero(np.diff(block)) + 1)


def _squared_norms(clip: Clip, ids: U64, starts: I64, clients: I64) -> I64:
    """Return the squared norm of the sketch of each of `clients`: int64 [clients].

    `ids` and `starts` are about all clients, as in `_exceeding`. Each of `clients` must have at
    least one item.
    """
    sizes = starts[clients + 1] - starts[clients]
    own, owners = ids[places_of(clients, starts)], np.repeat(np.arange(len(sizes)), sizes)
    squares: I64 = np.add.reduceat(clip.increments(own, owners), np.cumsum(sizes) - sizes)
    return squares


def _running_squares(clip: Clip, ids: U64, owners: I64) -> I64:
    """Return the squared norm of the owner's sketch after each item was added: int64 [n].

    The owner of an item is the client that holds it. The items of an owner are added one by one, in
    the order of `ids`. `owners` must be ascending.
    """
    increments = clip.increments(ids, owners)
    squares = np.cumsum(increments)
    first = np.searchsorted(owners, owners)
    return squares - (squares - increments)[first]


def _increments(spec: SketchSpec, round: int, items: U64, owners: I64) -> I64:
    """Return by how much each item changes the squared norm of its owner's sketch: int64 [n].

    The owner of an item is the client that holds it. The items of an owner are added one by one, in
    the order of `items`. `owners` must be ascending. A sketch has several parts without common
    counters, so its squared norm is the sum of the squared norms of its parts.
    """
    parts = [_part_increments(part, part.ids(items), owners) for part in spec.parts(round)]
    return sum(parts[1:], start=parts[0])


def _part_increments(part: Part, ids: U64, owners: I64) -> I64:
    """Return by how much each item changes the squared norm of one part of a sketch: int64 [n].

    An item adds s = +1 or -1 to a counter with the value c. This changes the counter's square by
    1 + 2 s c. The value c is the sum of the signs of the owner's earlier items in the same cell. It
    is computed as a running sum over the items, sorted by owner, then cell, then position in `ids`.
    """
    if isinstance(part.hashes, Identity):  # no two items of a client share a counter
        return np.ones(len(ids), np.int64)
    longest = int(np.bincount(owners).max(initial=0))
    if longest <= _FEW:
        return _increments_of_few(part, part.hashes, ids, owners, longest)
    location, sign, bit = part.hashes
    shift = len(ids).bit_length()
    positions = np.arange(len(ids))
    increments = np.full(len(ids), part.rows)  # the 1 of 1 + 2 s c, in every row
    for row in range(part.rows):
        words = kernels.hash_words(location[row : row + 1], ids)[0]
        signs = kernels.signs(
            words if sign is location else kernels.hash_words(sign[row : row + 1], ids)[0], bit
        )
        # One integer holds cell and position: sorting it is faster than a stable sort by cell.
        keys = np.sort(
            (owners * part.width + kernels.locations(words, part.width)) << shift | positions
        )
        order, cells = keys & ((1 << shift) - 1), keys >> shift
        added = signs[order]
        before = np.cumsum(added) - added
        # The running sum continues across cells: subtract its value at the start of each cell.
        first = np.flatnonzero(np.diff(cells, prepend=-1))
        before -= np.repeat(before[first], np.diff(first, append=len(ids)))
        increments[order] += 2 * added * before
    return increments


def _increments_of_few(part: Part, hashes: RoundHash, ids: U64, owners: I64, longest: int) -> I64:
    """Return what `_part_increments` returns, by comparing all pairs of an owner's items.

    This is faster than sorting if owners have few items. Two items with the signs s and t in the
    same cell add 2 s t to the squared norm; this is counted for the later item. Few pairs share a
    cell, so signs are computed only for these pairs.

    Args:
        part: the part of the sketch.
        hashes: the hashes of the part.
        ids: uint64 [n], the ids that this part counts.
        owners: int64 [n], the client that holds each item, ascending.
        longest: the largest number of items of one owner.
    """
    location, sign, bit = hashes
    increments = np.full(len(ids), part.rows)
    # for each distance `step`: whether two items at this distance in `ids` have the same owner
    alike = [owners[step:] == owners[:-step] for step in range(1, longest)]
    for row in range(part.rows):
        cells = kernels.locations(kernels.hash_words(location[row : row + 1], ids)[0], part.width)
        for step, are_alike in enumerate(alike, start=1):
            later = np.flatnonzero(are_alike & (cells[step:] == cells[:-step])) + step
            met = np.concatenate([later, later - step])
            signs = kernels.signs(kernels.hash_words(sign[row : row + 1], ids[met])[0], bit)
            # no index occurs twice in `later`, so that += adds each product
            increments[later] += 2 * signs[: len(later)] * signs[len(later) :]
    return increments
