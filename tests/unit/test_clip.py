"""The clip in sketch space: no input gets past it, what is dropped is drawn, and it hardly ever
binds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from clip_norms import exceeding, squared_norm
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedtally import kernels
from fedtally.errors import InvalidInputError
from fedtally.privacy.events import default_clip_norm
from fedtally.sketch import CountSketch, Schedule, SketchSpec, clip

SEED = bytes(range(32))
SCHEDULES = ("shared", "fresh", "hybrid", "batched:2")
U64 = npt.NDArray[np.uint64]


def spec_of(
    rows: int, width: int, schedule: str = "hybrid", num_rounds: int = 10, seed: bytes = SEED
) -> SketchSpec:
    return SketchSpec(rows, width, Schedule.parse(schedule), num_rounds, seed)


def array(ids: Sequence[int]) -> U64:
    return np.array(ids, np.uint64)


def plain_square(spec: SketchSpec, round: int, ids: Sequence[int]) -> int:
    """Return the squared norm of the counters, in Python's integers."""
    sketch = CountSketch(spec, round)
    sketch.add(array(ids), num_clients=1)
    return sum(counter * counter for counter in sketch.counters.reshape(-1).tolist())


@cache
def colliding(rows: int, width: int) -> Any:
    """Return 40 ids, 0 the first, that share cells and signs with 0 in as many rows as could be
    found, in round 3."""
    location, sign, bit = spec_of(rows, width).round_hash(3)
    ids = np.arange(100_000, dtype=np.uint64)
    cells = kernels.locations(kernels.hash_words(location, ids), width)
    signs = kernels.signs(kernels.hash_words(sign, ids), bit)
    alike = ((cells == cells[:, :1]) & (signs == signs[:, :1])).sum(axis=0)
    return np.argsort(-alike, kind="stable")[:40].tolist()


def words_for(order: Sequence[int]) -> Callable[[int], bytes]:
    """Return the source of random words that makes the clip use this order."""
    words = np.empty(len(order), "<u8")
    words[list(order)] = np.arange(1, len(order) + 1) * 10**6
    return lambda _: words.tobytes()


def clipped(
    spec: SketchSpec, round: int, ids: U64, clip_norm: float, random: Callable[[int], bytes]
) -> U64:
    """Return what the clip alone leaves: as many items as there are may stay."""
    return clip.bound_items(ids, len(ids), random, clip.Clip(spec, round, clip_norm))


def by_dropping(
    spec: SketchSpec, round: int, ids: Sequence[int], order: Sequence[int], clip_norm: float
) -> list[int]:
    """Return what is left when items are dropped one by one from the end of the order: as it is
    defined."""
    left = [ids[i] for i in order]
    while plain_square(spec, round, left) > Fraction(clip_norm) ** 2:
        left.pop()
    return left


SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 4))
IDS = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1)), max_size=30, unique=True)
NORMS = st.one_of(
    st.floats(0, 60),
    # at the boundary: the square of the float is above or below the integer
    st.integers(0, 400).map(math.sqrt),
    st.integers(1, 400).map(lambda square: math.nextafter(math.sqrt(square), 0)),
    st.integers(1, 400).map(lambda square: math.nextafter(math.sqrt(square), 99)),
    st.sampled_from([5e-324, 1e9, 1e308]),
)


# ---- the norm ----


@given(SHAPES, st.integers(1, 100), IDS, st.sampled_from(SCHEDULES), st.integers(0, 9))
def test_the_norm_is_that_of_the_counters(
    backend: str, shape: tuple[int, int], wider: int, ids: list[int], schedule: str, round: int
) -> None:
    spec = spec_of(shape[0], shape[1] * wider, schedule)
    square = squared_norm(spec, round, array(ids))
    assert square == plain_square(spec, round, ids) and type(square) is int
    assert square <= spec.rows * len(ids) ** 2


def test_the_norm_of_many_items() -> None:
    """A square far beyond 2^32, and the most items that there may be."""
    spec, ids = spec_of(2, 1), np.arange(clip.MAX_ITEMS, dtype=np.uint64)
    sketch = CountSketch(spec, 0)
    sketch.add(ids)
    assert squared_norm(spec, 0, ids) == sum(int(c) ** 2 for c in sketch.counters.reshape(-1))
    alike = np.zeros(clip.MAX_ITEMS, np.uint64)
    assert squared_norm(spec, 0, alike) == 2 * clip.MAX_ITEMS**2


# ---- never exceeded ----


@given(SHAPES, IDS, NORMS, st.sampled_from(SCHEDULES), st.integers(0, 9), st.integers(0, 2**32))
def test_no_items_exceed_it(
    shape: tuple[int, int], ids: list[int], clip_norm: float, schedule: str, round: int, seed: int
) -> None:
    spec = spec_of(*shape, schedule)
    kept = clipped(spec, round, array(ids), clip_norm, np.random.default_rng(seed).bytes).tolist()
    assert plain_square(spec, round, kept) <= Fraction(clip_norm) ** 2
    assert kept == [id_ for id_ in ids if id_ in set(kept)]  # some of them, in their order
    if plain_square(spec, round, ids) <= Fraction(clip_norm) ** 2:
        assert kept == ids


@given(st.sampled_from([(1, 1), (3, 2), (4, 3), (5, 2)]), st.data(), NORMS)
def test_no_colliding_items_exceed_it(
    shape: tuple[int, int], data: st.DataObject, clip_norm: float
) -> None:
    """An adversary chooses ids that add up: the norm comes near k sqrt(rows), the worst case."""
    spec, pool = spec_of(*shape), colliding(*shape)
    assert pool[0] == 0 and plain_square(spec, 3, pool[:20]) == 20**2 * spec.rows
    ids = data.draw(st.lists(st.sampled_from(pool), unique=True))
    order = data.draw(st.permutations(range(len(ids))))
    kept = clipped(spec, 3, array(ids), clip_norm, words_for(order)).tolist()
    assert plain_square(spec, 3, kept) <= Fraction(clip_norm) ** 2
    assert sorted(kept) == sorted(by_dropping(spec, 3, ids, order, clip_norm))


@pytest.mark.parametrize("count", [2, 10, 40])
def test_colliding_items_are_dropped_until_they_fit(count: int) -> None:
    spec, ids = spec_of(3, 2), colliding(3, 2)[:count]
    assert plain_square(spec, 3, ids) > 1.5 * 3 * count  # items that do not meet: 3 count
    kept = clipped(spec, 3, array(ids), math.sqrt(3 * count), np.random.default_rng(1).bytes)
    assert 0 < len(kept) < count


def test_a_square_is_compared_exactly() -> None:
    """sqrt(3) as a float has a square below 3, sqrt(5) one above 5: one item of 3 rows is dropped,
    one of 5 stays."""
    assert Fraction(math.sqrt(3)) ** 2 < 3 and Fraction(math.sqrt(5)) ** 2 > 5
    for rows, kept in ((3, 0), (5, 1)):
        found = clipped(
            spec_of(rows, 8), 0, array([1]), math.sqrt(rows), np.random.default_rng(0).bytes
        )
        assert len(found) == kept
        found = clipped(
            spec_of(rows, 8), 0, array([1]), math.nextafter(math.sqrt(rows), 9), refused
        )
        assert len(found) == 1


# ---- what is dropped ----


def refused(size: int) -> bytes:
    raise AssertionError(f"{size} random bytes were asked for")


@given(SHAPES, IDS, NORMS, st.data())
def test_items_are_dropped_from_the_end_of_the_order(
    backend: str, shape: tuple[int, int], ids: list[int], clip_norm: float, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(ids))))
    spec, asked = spec_of(*shape), []

    def random(size: int) -> bytes:
        asked.append(size)
        return words_for(order)(size)

    kept = clipped(spec, 3, array(ids), clip_norm, random).tolist()
    assert sorted(kept) == sorted(by_dropping(spec, 3, ids, order, clip_norm))
    assert asked == ([8 * len(ids)] if len(kept) < len(ids) else [])


def test_each_order_is_as_likely() -> None:
    """Distinct uniform words come in any order, as likely: each order of the words makes one of the
    items."""

    orders = list(permutations(range(5)))
    assert [
        tuple(np.argsort(clip.draw_words(5, words_for(order))).tolist()) for order in orders
    ] == orders


def test_equal_words_are_drawn_again() -> None:
    """Else the order of equal words would be that of the items."""
    draws = [array([3, 3, 1]), array([7, 1, 7]), array([5, 2, 9])]
    words = clip.draw_words(3, lambda size: draws.pop(0).tobytes())
    assert words.tolist() == [5, 2, 9] and not draws


def test_each_item_is_dropped_as_often() -> None:
    """Of 12 items, 500 clients drop as many of each: Pearson's chi-square below its 1 - 2e-7
    quantile.

    The items that a client drops differ, so that counts spread a little less than multinomial ones.
    A clip that drops the last items of the given order fails.
    """
    spec, rng = spec_of(5, 8), np.random.default_rng(3)
    clients = rng.integers(0, 2**64, (500, 12), dtype=np.uint64)

    def chi_square(random: Callable[[int], bytes]) -> float:
        counts = np.sum(
            [~np.isin(ids, clipped(spec, 3, ids, 7.0, random)) for ids in clients], axis=0
        )
        assert counts.sum() > 1000
        return float(((counts - counts.mean()) ** 2).sum() / counts.mean())

    assert chi_square(rng.bytes) < stats.chi2.isf(2e-7, 11) < chi_square(words_for(range(12)))


def test_items_are_drawn_as_likely() -> None:
    """The first of the order, so that each choice is made by as many orders; in the order of the
    ids."""
    ids, choices = array([70, 50, 60, 90]), Counter[tuple[int, ...]]()
    for order in permutations(range(4)):
        choices[tuple(clip.bound_items(ids, 2, words_for(order)).tolist())] += 1
    assert choices == {(ids[a], ids[b]): 4 for a, b in combinations(range(4), 2)}
    for most in (4, 9):
        assert clip.bound_items(ids, most, refused).tolist() == ids.tolist()
    assert clip.bound_items(ids, 0, np.random.default_rng(0).bytes).tolist() == []


@pytest.mark.parametrize("clip_norm", [0.0, 1e-9, 2.2])
def test_less_than_one_item_is_none(clip_norm: float) -> None:
    kept = clipped(spec_of(5, 100), 0, array([1, 2, 3]), clip_norm, np.random.default_rng(0).bytes)
    assert kept.tolist() == [] and kept.dtype == np.uint64


def test_no_item_is_no_sketch() -> None:
    assert squared_norm(spec_of(5, 100), 0, array([])) == 0
    assert clipped(spec_of(5, 100), 0, array([]), 0.0, refused).tolist() == []


# ---- many clients ----


@given(
    SHAPES,
    st.integers(1, 50),
    st.lists(IDS, max_size=8),
    NORMS,
    st.sampled_from(SCHEDULES),
    st.sampled_from([1, 7, 99]),
)
def test_who_exceeds_it(
    shape: tuple[int, int],
    wider: int,
    clients: list[list[int]],
    clip_norm: float,
    schedule: str,
    block: int,
) -> None:
    """As the norms of the clients, one by one, whatever is computed together."""
    spec = spec_of(shape[0], shape[1] * wider, schedule)
    starts = np.cumsum([0, *map(len, clients)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip, "_BLOCK", block)
        found = exceeding(
            clip.Clip(spec, 3, clip_norm), array([id_ for ids in clients for id_ in ids]), starts
        )
    expected = [
        i for i, ids in enumerate(clients) if plain_square(spec, 3, ids) > Fraction(clip_norm) ** 2
    ]
    assert found.tolist() == expected and found.dtype == np.int64


def test_clients_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part begins within so many items; who cannot exceed it is not computed at all."""
    sizes, computed = [], clip._increments

    def increments(spec: SketchSpec, round: int, ids: U64, owners: Any) -> Any:
        sizes.append(len(ids))
        return computed(spec, round, ids, owners)

    monkeypatch.setattr(clip, "_increments", increments)
    monkeypatch.setattr(clip, "_BLOCK", 100)
    starts = np.cumsum([0, *[3] * 50, *[1] * 1000, 300, 3])
    # 2 sqrt(5) < 5
    exceeding(clip.Clip(spec_of(5, 50), 0, 5.0), np.arange(starts[-1], dtype=np.uint64), starts)
    assert sizes == [102, 48 + 300, 3]


def test_no_clients_exceed_nothing() -> None:
    nobody = np.zeros(1, np.int64)
    assert exceeding(clip.Clip(spec_of(5, 50), 0, 1.0), array([]), nobody).tolist() == []


@pytest.mark.promise
@given(
    SHAPES,
    st.integers(1, 20),
    st.lists(IDS, max_size=8),
    st.integers(0, 30),
    st.one_of(st.none(), NORMS),
    st.sampled_from([1, 7, 99]),
    st.data(),
)
def test_many_clients_keep_the_same_items_as_each_one_by_itself(
    shape: tuple[int, int],
    wider: int,
    clients: list[list[int]],
    max_items: int,
    clip_norm: float | None,
    block: int,
    data: st.DataObject,
) -> None:
    """Given the same words, of which a client is asked exactly where it drops something; in
    whatever parts."""
    spec = spec_of(shape[0], shape[1] * wider)
    bound = None if clip_norm is None else clip.Clip(spec, 3, clip_norm)
    orders = [data.draw(st.permutations(range(len(ids)))) for ids in clients]
    asked: list[list[int]] = [[], []]

    def words(some: npt.NDArray[np.int64]) -> U64:
        asked[0] += some.tolist()
        return np.concatenate(
            [np.frombuffer(words_for(orders[i])(0), np.uint64) for i in some.tolist()]
        )

    def random_of(client: int) -> Callable[[int], bytes]:
        def random(size: int) -> bytes:
            asked[1].append(client)
            return words_for(orders[client])(size)

        return random

    held = [array(ids) for ids in clients]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip, "_BLOCK", block)
        starts = np.cumsum([0, *map(len, clients)])
        stays = clip.bound_items_of_each(
            array([id_ for ids in clients for id_ in ids]), starts, max_items, words, bound
        )
    parts = [
        ids[stays[start:end]].tolist()
        for ids, start, end in zip(held, starts, starts[1:], strict=False)
    ]
    alone = [
        clip.bound_items(ids, max_items, random_of(i), bound).tolist() for i, ids in enumerate(held)
    ]
    assert parts == alone and asked[0] == asked[1] and len(stays) == starts[-1]
    for ids, kept, order in zip(clients, alone, orders, strict=True):  # both as the rule is defined
        first = [ids[i] for i in order[:max_items]]
        if bound is not None:
            first = by_dropping(spec, 3, first, range(len(first)), bound.norm)
        assert sorted(kept) == sorted(first)


def test_who_has_too_many_items_is_bounded_before_its_norm_is_taken() -> None:
    """Of more items than a norm is computed of, some are drawn first: then it is."""
    number = clip.MAX_ITEMS + 1
    ids, bound = np.arange(number, dtype=np.uint64), clip.Clip(spec_of(2, 50), 0, 3.0)
    words = np.random.default_rng(0).permutation(number).astype(np.uint64)
    kept = clip.bound_items(ids, 9, lambda _: words.tobytes(), bound)
    assert 0 < len(kept) < 9
    stays = clip.bound_items_of_each(ids, np.array([0, number]), 9, lambda _: words, bound)
    assert ids[stays].tolist() == kept.tolist()


# ---- refused ----


@pytest.mark.parametrize("clip_norm", [-1.0, math.inf, math.nan, "2", True])
def test_norms_that_are_none(clip_norm: Any) -> None:
    with pytest.raises(InvalidInputError, match="clip_norm must be"):
        clipped(spec_of(3, 8), 0, array([1]), clip_norm, refused)
    with pytest.raises(InvalidInputError, match="clip_norm must be"):
        exceeding(clip.Clip(spec_of(3, 8), 0, clip_norm), array([1]), np.array([0, 1]))


def test_clients_of_too_many_items() -> None:
    most = clip.MAX_ITEMS
    ids, more = np.zeros(most + 1, np.uint64), np.zeros(most + 2, np.uint64)
    bound = clip.Clip(spec_of(3, 8), 0, 1.0)

    def of_each(ids: Any, max_items: int, words: Any = refused) -> object:
        starts = np.array([0, 0, len(ids)])
        return clip.bound_items_of_each(ids, starts, max_items, words, bound)

    calls: list[Callable[[], object]] = [
        lambda: squared_norm(spec_of(3, 8), 0, ids),
        lambda: clipped(spec_of(3, 8), 0, ids, 1.0, refused),
        lambda: of_each(ids, most + 1),
        # The first bound drops an item, and leaves too many for the second one.
        lambda: of_each(more, most + 1),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError, match="items must be at most 1048576, got 1048577"):
            call()
    with pytest.raises(InvalidInputError, match="round must be at most 9"):
        squared_norm(spec_of(3, 8), 10, array([1]))


# ---- how often it binds ----


@pytest.mark.parametrize(("rows", "width"), [(5, 200), (5, 1000), (16, 500)])
@pytest.mark.parametrize("max_items", [5, 20, 100])
def test_the_default_hardly_ever_binds(rows: int, width: int, max_items: int) -> None:
    """Less than 2e-3 of clients; 4e-5 to 6e-4 were measured over 12 seeds (100,000s of clients
    each).

    It is four standard deviations above the mean of the squared norm; one above it, more than 2 %
    of clients exceed it.
    """
    rng = np.random.default_rng(max_items)
    num_clients = 200_000 // max_items
    ids = rng.integers(0, 2**64, max_items * num_clients, dtype=np.uint64)
    starts = max_items * np.arange(num_clients + 1)
    spec = spec_of(rows, width, seed=rng.bytes(32))
    default = default_clip_norm(rows, width, max_items)
    one_above = math.sqrt((default**2 + 3 * max_items * rows) / 4)
    found = [
        len(exceeding(clip.Clip(spec, 3, norm), ids, starts)) / num_clients
        for norm in (default, one_above)
    ]
    assert found[0] < 2e-3 and found[1] > 2e-2


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]),
            st.integers(0, 2**64 - 1),
        ),
        max_size=40,
    )
)
def test_rows_are_sorted_by_their_columns(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, np.uint64).reshape(-1, 3).T
    order = clip.sort_order(columns)
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert [rows[place] for place in order.tolist()] == sorted(rows)


def test_rows_of_many_groups_that_differ_in_the_last_bit_are_sorted() -> None:
    # 2^12 groups leave 52 bits of the second column, so that its last bits are not in one integer
    group = np.repeat(np.arange(1 << 12), 2)
    own = np.tile(np.array([2**64 - 1, 2**64 - 2], np.uint64), 1 << 12)
    own[0] = 0
    order = clip.sort_order([group, own])
    assert np.array_equal(order, np.lexsort((own, group)))
