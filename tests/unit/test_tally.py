"""Rows into rounds: what is counted is what the clients would have sent."""

import re
import threading
from collections import Counter
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.domain import Dictionary, IntegerRange
from fedtally.errors import InvalidInputError, OutsideDomainError
from fedtally.kernels.reference import bucket_of
from fedtally.privacy.events import Event
from fedtally.simulation import item_ids
from fedtally.simulation.client_rows import ClientRows, bound_clients
from fedtally.simulation.counted_part import in_order
from fedtally.simulation.item_ids import Declared, FromInput
from fedtally.simulation.round_tally import Histogram
from fedtally.simulation.row_counts import Tally
from fedtally.sources import from_items

RANGE = IntegerRange(0, 99)


def tally_of(source, *, encoder=None, num_rounds=1, max_items=1, seed=0, memory=1 << 30):
    tally = Tally(
        encoder or Declared(RANGE, "error"),
        num_rounds,
        max_items,
        np.random.default_rng(seed),
        memory,
    )
    for batch in source.batches():
        tally.add(batch)
    return tally


def counts_of(rounds):
    return [dict(zip(r.ids.tolist(), r.counts.tolist(), strict=True)) for r in rounds]


@given(st.lists(st.lists(st.integers(0, 20)), max_size=6))
def test_histogram_counts(parts):
    histogram = Histogram()
    for part in parts:
        histogram.add(np.array(part, np.uint64), None)
    ids, counts = histogram.finish()
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == Counter(
        chain.from_iterable(parts)
    )
    assert np.all(ids[1:] > ids[:-1])


def test_histogram_merges_on_the_way():
    histogram = Histogram()
    expected = np.zeros(1000, np.int64)
    rng = np.random.default_rng(5)
    for _ in range(5):
        part = rng.integers(0, 1000, 700_000)
        expected += np.bincount(part, minlength=1000)
        histogram.add(part.astype(np.uint64), None)
    ids, counts = histogram.finish()
    assert ids.tolist() == list(range(1000))
    assert np.array_equal(counts, expected)


def test_each_row_is_a_client():
    [only] = tally_of(from_items([3, 3, 7])).finish()
    assert only.num_clients == 3
    assert counts_of([only]) == [{3: 2, 7: 1}]


def test_each_distinct_item_is_encoded_once():
    class Encoder(Declared):
        def encode_each(self, items):
            encoded.extend(items.to_pylist())
            return super().encode_each(items)

    encoded = []
    tally = tally_of(from_items([7, 3, 7, 7]), encoder=Encoder(RANGE, "error"))
    assert counts_of(tally.finish()) == [{3: 1, 7: 3}]
    assert sorted(encoded) == [3, 7]
    assert not tally.has_counts  # the rows are clients all the same


def test_counts_stand_for_clients():
    [only] = tally_of(from_items([3, 7, 3], counts=[2, 0, 5])).finish()
    assert only.num_clients == 7
    assert counts_of([only]) == [{3: 7}]


def test_random_rounds_partition_the_clients():
    items = np.random.default_rng(1).integers(0, 100, 20_000)
    rounds = tally_of(from_items(items), num_rounds=7).finish()
    total = Counter()
    for part in counts_of(rounds):
        total.update(part)
    assert total == Counter(items.tolist())
    # Each client draws its round uniformly: sizes are binomial(20,000, 1/7), standard deviation
    # 49.5; 6 of them fail with p < 1e-8.
    assert all(abs(r.num_clients - 20_000 / 7) < 6 * 49.5 for r in rounds)


def test_split_of_one_item_is_binomial():
    """400 splits of 60 clients over 3 rounds have multinomial variance; a stratified split would
    have none."""
    sizes = np.array(
        [
            [r.num_clients for r in tally_of(from_items([1] * 60), num_rounds=3, seed=s).finish()]
            for s in range(400)
        ]
    )
    # chi-square with 2 * 400 degrees of freedom: mean 800, sd 40
    chi2 = float(((sizes - 20) ** 2 / 20).sum())
    assert abs(chi2 - 800) < 6 * 40


def test_a_known_generator_lets_one_row_move_the_split_of_others():
    """The example of the threat model: over 400 of 800 counts change with one row, under one state.

    So without a column of clients the charge needs a generator that nobody can guess. Of clients
    with names, other clients stay in their rounds.
    """
    held = np.repeat(np.arange(200), 50)
    less = held.copy()
    less[0] = 200  # no candidate: this client takes part, and contributes nothing

    def changed(seed, clients):
        found = []
        for items in (held, less):
            domain, rng = IntegerRange(0, 199), np.random.default_rng(seed)
            tally = Tally(Declared(domain, "drop"), 4, 1, rng, 1 << 30, keep_itemless=True)
            for batch in from_items(items, clients=clients).batches():
                tally.add(batch)
            rounds = counts_of(tally.finish())
            found.append({(k, *pair) for k, counts in enumerate(rounds) for pair in counts.items()})
        return {place[:2] for place in found[0] ^ found[1]}

    for seed in range(10):
        assert len(changed(seed, None)) > 400
        assert len(changed(seed, np.arange(len(held)))) == 1


def test_natural_rounds_are_ordered_by_label():
    rounds = tally_of(
        from_items([1, 2, 3, 3], rounds=[2021, 2019, 2020, 2019]), num_rounds=None
    ).finish()
    assert counts_of(rounds) == [{2: 1, 3: 1}, {3: 1}, {1: 1}]
    named = tally_of(from_items([1, 2, 3], rounds=["w10", "a", "w9"]), num_rounds=None).finish()
    assert counts_of(named) == [{2: 1}, {3: 1}, {1: 1}]


@given(st.lists(st.from_regex(r"[w-]{0,2}[0-9]{0,25}[.m]?[0-9]{0,3}", fullmatch=True), max_size=9))
def test_labels_have_one_order(labels: list[str]) -> None:
    """It does not depend on the order given, and texts without numbers stand as texts do."""
    listed = in_order(labels)
    assert listed == in_order(labels[::-1]) and sorted(listed) == sorted(labels)
    words = [re.sub("[0-9]", "m", label) for label in labels]
    assert in_order(words) == sorted(words)


def test_a_client_contributes_a_set():
    source = from_items([5, 5, 5, 6], clients=["a", "a", "a", "b"])
    [only] = tally_of(source, max_items=10).finish()
    assert only.num_clients == 2
    assert counts_of([only]) == [{5: 1, 6: 1}]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_bound_on_a_client(rows, max_items, num_rounds):
    clients, items = zip(*rows, strict=True)
    num_rounds = min(num_rounds, len(rows))
    sets = {c: {i for k, i in rows if k == c} for c in clients}
    rounds = tally_of(
        from_items(list(items), clients=list(clients)), max_items=max_items, num_rounds=num_rounds
    ).finish()
    assert sum(r.num_clients for r in rounds) == len(sets)
    assert sum(int(r.counts.sum()) for r in rounds) == sum(
        min(max_items, len(s)) for s in sets.values()
    )
    assert all(r.counts.max(initial=0) <= r.num_clients for r in rounds)


def mixed(state, *values):
    """SplitMix64's finalizer after each value, in Python's integers."""
    for value in values:
        state = ((state ^ value) + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state


def bounded(rows, max_items, keys, num_rounds, max_rounds, rounds_each):
    """What `bound_clients` returns, by buckets, client by client and from sets."""
    found = ([], [], [], [], [])
    bucket = lambda client: client * 0x9E3779B97F4A7C15 % 2**64 >> 58  # noqa: E731
    for client in sorted({row[0] for row in rows}, key=lambda client: (bucket(client), client)):
        own = [row for row in rows if row[0] == client]
        groups = {row[1] // rounds_each for row in own}
        if max_rounds is not None:
            groups = sorted(groups, key=lambda group: mixed(keys[2], client, group))[:max_rounds]
        for place in sorted({row[1] for row in own if row[1] // rounds_each in groups}):
            held = {row[2] for row in own if row[1] == place and row[2] is not None}
            kept = sorted(held, key=lambda item: mixed(keys[0], client, place, item))[:max_items]
            drawn = place
            if num_rounds is not None:
                drawn = int((mixed(keys[1], client) >> 11) * (num_rounds / 2**53))
            found[0].extend(sorted(kept))
            for part, value in zip(found[1:], (len(kept), drawn, client, len(held)), strict=True):
                part.append(value)
    return found


HUGE = st.sampled_from([0, 1, 2, 2**61, 2**61 + 1, 2**64 - 1])


@settings(max_examples=150)
@given(
    st.lists(st.tuples(HUGE, st.integers(0, 5), st.none() | HUGE | st.integers(0, 9)), max_size=60),
    st.integers(0, 4),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
)
def test_draws_are_those_of_the_definition(
    rows, max_items, num_rounds, max_rounds, rounds_each, plain
):
    keys = np.random.default_rng(6).integers(0, 2**64, 3, np.uint64)
    if plain:  # every row has an item, and no round
        rows, max_rounds = [(client, 0, item or 0) for client, _, item in rows], None
    columns = [
        [client for client, _, _ in rows],
        [item or 0 for _, _, item in rows],
        [2 * place + (item is None) for _, place, item in rows],
    ]
    found = bound_clients(
        np.array(columns[: 2 if plain else 3], np.uint64),
        max_items,
        keys,
        num_rounds,
        max_rounds,
        rounds_each=rounds_each,
    )
    expected = bounded(rows, max_items, keys.tolist(), num_rounds, max_rounds, rounds_each)
    assert [part.tolist() for part in found] == list(expected)


@given(
    st.lists(st.sets(st.integers(0, 14), min_size=1), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_rounds_in_a_row_keep_the_rule_of_a_client_s_record(lives, most, more):
    """`Event.allows` is that rule. No round is left out that it would allow beside those taken, and
    a client's rounds do not depend on other clients."""
    rule = Event(
        "rounded-gaussian",
        rows=1,
        relation="zero-out",
        participations=most,
        per_rounds=most + more,
        num_rounds=15,
    )
    keys = np.random.default_rng(6).integers(0, 2**64, 3, np.uint64)

    def taken(own):
        rows = [(i, 7, 2 * round) for i, life in own.items() for round in sorted(life)]
        columns = np.array(rows, np.uint64).T.copy()
        found = bound_clients(columns, 1, keys, None, most, per_rounds=rule.per_rounds)
        return {i: set(found.rounds[found.clients == i].tolist()) for i in own}

    every = taken(dict(enumerate(lives)))
    for i, life in enumerate(lives):
        kept = every[i]
        assert kept <= life and {i: kept} == taken({i: life})
        assert all(rule.allows(kept - {round}, round) for round in kept)
        assert not any(rule.allows(kept, round) for round in life - kept)
        assert taken({i: kept}) == {i: kept}


def test_clients_of_all_rounds_are_spread_over_them():
    """3,000 clients are in one of any 5 of 15 rounds: each round has 600 (sd 21.9; 5 sd)."""
    rows = np.array([(i, 7, 2 * round) for i in range(3000) for round in range(15)], np.uint64).T
    keys = np.random.default_rng(6).integers(0, 2**64, 3, np.uint64)
    found = bound_clients(rows.copy(), 1, keys, None, 1, per_rounds=5)
    assert np.all(np.abs(np.bincount(found.rounds, minlength=15) - 600) < 5 * 21.9)


def test_the_draw_of_an_item_is_uniform():
    """3,000 clients with the items 0..4 keep one each: counts are binomial(3000, 1/5), sd 21.9; 5
    sd: p < 3e-6."""
    clients, items = np.repeat(np.arange(3000), 5), np.tile(np.arange(5), 3000)
    [only] = tally_of(from_items(items, clients=clients)).finish()
    assert only.num_clients == 3000
    assert np.all(np.abs(only.counts - 600) < 5 * 21.9)
    assert len(only.counts) == 5


def test_draws_depend_on_neither_order_nor_memory():
    rng = np.random.default_rng(3)
    clients, items = rng.integers(0, 500, 4000), rng.integers(0, 100, 4000)
    order = rng.permutation(4000)
    plain = tally_of(from_items(items, clients=clients), num_rounds=3, max_items=2).finish()
    shuffled = tally_of(
        from_items(items[order], clients=clients[order]), num_rounds=3, max_items=2
    ).finish()
    spilled = tally_of(
        from_items(items, clients=clients), num_rounds=3, max_items=2, memory=1
    ).finish()
    assert counts_of(plain) == counts_of(shuffled) == counts_of(spilled)


def test_few_rows_have_the_members_of_many_in_the_same_order():
    """Whoever draws among the members with a seed draws the same ones."""
    rng = np.random.default_rng(4)
    columns = {"clients": rng.integers(0, 200, 900), "rounds": rng.integers(0, 4, 900)}
    source = from_items(rng.integers(0, 100, 900), **columns)
    together, one_by_one = (
        tally_of(source, num_rounds=None, max_items=2, memory=memory).finish(individuals=True)
        for memory in (1 << 30, 1)
    )
    for few, many in zip(together, one_by_one, strict=True):
        assert few.members.ids.tolist() == many.members.ids.tolist()
        assert few.members.starts.tolist() == many.members.starts.tolist()
        assert few.names.tolist() == many.names.tolist() != sorted(few.names.tolist())


def test_spilled_rows_have_no_name_that_could_be_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tally = tally_of(from_items([1, 2, 3], clients=[1, 2, 3]), memory=1)
    assert tally._pairs._files
    assert not list(tmp_path.iterdir())
    assert tally.finish()[0].num_clients == 3


def test_rows_held_after_a_spill_are_counted_too():
    from fedtally.sources import Batch

    tally = Tally(Declared(RANGE, "error"), 1, 1, np.random.default_rng(0), memory=100 * 24)
    # the second batch spills, the third stays
    for clients in (range(100), range(100, 180), range(180, 230)):
        keys = pa.array(list(clients))
        tally.add(Batch(pa.array([7] * len(keys)), keys))
    assert tally._pairs._files
    assert any(tally._pairs._held)
    assert counts_of(tally.finish()) == [{7: 230}]


@settings(max_examples=8)
@given(st.lists(st.integers(0, 60), max_size=6), st.integers(1, 4000), st.integers(0, 2**32))
def test_rows_come_back_bucket_by_bucket_whatever_the_memory(sizes, memory, seed):
    """The reference sorts all rows by bucket. Those of a bucket are in any order."""
    rng = np.random.default_rng(seed)
    batches = [rng.integers(0, 2**64, (2, size), np.uint64) for size in sizes]
    rows = ClientRows(memory)
    for clients, ids in batches:
        rows.add(clients, ids, None)
        assert rows._bytes <= memory
    found = np.concatenate(list(rows.map_buckets(np.copy)), axis=1)
    whole = np.concatenate([np.empty((2, 0), np.uint64), *batches], axis=1)
    buckets = bucket_of(found[0])
    assert (np.diff(buckets.astype(int)) >= 0).all()
    expected = sorted(zip(bucket_of(whole[0]), *whole, strict=True))
    assert sorted(zip(buckets, *found, strict=True)) == expected


@pytest.mark.parametrize(("sixteenths", "most"), [(1, 1), (3, 2), (4, 3), (16, 4)])
def test_buckets_are_worked_on_together_as_far_as_they_fit(monkeypatch, sixteenths, most):
    """With sixteen times the rows' bytes for memory, all 64 buckets and their four copies fit; the
    bucket that waits for the caller takes its share."""
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "8")
    columns = np.arange(1 << 17, dtype=np.uint64), np.zeros(1 << 17, np.uint64)
    rows = ClientRows(memory=(2 << 20) * sixteenths // 16)
    rows.add(*columns, None)
    at_once, seen, all_here = 0, [], threading.Condition()

    def work(own):
        nonlocal at_once
        with all_here:
            at_once += 1
            seen.append(at_once)
            all_here.notify_all()
            # long enough for one more to begin, where it may
            while at_once < most > max(seen) and all_here.wait(timeout=5):
                pass
            all_here.wait(timeout=0.002)
            at_once -= 1
        return own.shape[1]

    assert sum(rows.map_buckets(work)) == 1 << 17
    assert max(seen) == most


@pytest.mark.parametrize("spilled", [True, False])
def test_a_bucket_that_does_not_fit_comes_in_pieces_of_whole_clients(monkeypatch, spilled):
    """One client has a quarter of all rows, which stay together."""
    monkeypatch.setattr("fedtally.simulation.client_rows._FEW_BYTES", 1 << 12)
    rng = np.random.default_rng(26)
    clients = rng.integers(0, 1 << 12, 1 << 17).astype(np.uint64)
    clients[rng.random(1 << 17) < 0.25] = 7
    ids = np.arange(1 << 17, dtype=np.uint64)
    rows = ClientRows(memory=1 << 18 if spilled else 1 << 22)
    for part in np.split(np.arange(1 << 17), 8):
        rows.add(clients[part], ids[part], None)
    assert bool(rows._files) == spilled
    rows._memory = 1 << 17  # a bucket has 2^15 bytes: an eighth of what it leaves is a piece
    pieces = list(rows.map_buckets(np.copy))
    sizes = np.array([piece.shape[1] for piece in pieces])
    assert sizes.max() >= (clients == 7).sum() and np.sort(sizes)[-2] * 16 < 2 * (12 << 10)
    found = np.concatenate(pieces, axis=1)
    assert np.array_equal(found[:, np.argsort(found[1])], [clients, ids])
    owners = [np.unique(piece[0]) for piece in pieces]
    assert sum(map(len, owners)) == len(np.unique(clients))
    order = np.concatenate(owners)
    assert np.array_equal(np.lexsort((order, bucket_of(order))), np.arange(len(order)))


def test_buckets_without_rows_have_no_pieces(monkeypatch):
    """Three clients fill three buckets of 64, each of which takes more than fits."""
    monkeypatch.setattr("fedtally.simulation.client_rows._FEW_BYTES", 1 << 10)
    rows = ClientRows(memory=1 << 12)
    clients = np.repeat(np.array([1, 2, 3], np.uint64), 1 << 13)
    rows.add(clients, np.arange(len(clients), dtype=np.uint64), None)
    held = [piece for piece in rows.map_buckets(np.copy) if piece.shape[1]]
    assert [np.unique(piece[0]).tolist() for piece in held] == [
        [client] for client in sorted((1, 2, 3), key=lambda one: bucket_of(np.uint64([one]))[0])
    ]
    assert {piece.shape[1] for piece in held} == {1 << 13}


def test_a_full_disk_is_said(monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedtally.simulation.client_rows._unnamed_file", full)
    with pytest.raises(
        InvalidInputError, match="No space left on device; free space there, point TMPDIR elsewhere"
    ):
        tally_of(from_items([1], clients=[1]), memory=1)


def test_the_round_of_a_client_is_uniform():
    """30,000 clients over 3 rounds: each size is binomial(30,000, 1/3), sd 81.6; 5 sd: p < 2e-6 for
    all three."""
    rounds = tally_of(
        from_items(np.zeros(30_000, int), clients=np.arange(30_000)), num_rounds=3
    ).finish()
    assert all(abs(r.num_clients - 10_000) < 5 * 81.6 for r in rounds)


def test_the_draw_of_two_of_four_items_is_uniform():
    """60,000 clients keep 2 of 4: each of the 6 pairs is binomial(60,000, 1/6), sd 91.3; items
    30,000, sd 122.5."""
    clients, items = np.repeat(np.arange(60_000), 4), np.tile(np.arange(4), 60_000)
    [only] = tally_of(from_items(items, clients=clients), max_items=2).finish()
    assert only.counts.sum() == 120_000
    assert np.all(np.abs(only.counts - 30_000) < 5 * 122.5)


def test_draws_with_natural_rounds_do_not_depend_on_the_order():
    rng = np.random.default_rng(9)
    clients, items, rounds = (
        rng.integers(0, 300, 3000),
        rng.integers(0, 100, 3000),
        rng.integers(5, 12, 3000),
    )
    order = rng.permutation(3000)
    plain = tally_of(
        from_items(items, clients=clients, rounds=rounds), num_rounds=None, max_items=2
    ).finish()
    columns = {"clients": clients[order], "rounds": rounds[order]}
    shuffled = tally_of(from_items(items[order], **columns), num_rounds=None, max_items=2).finish()
    assert counts_of(plain) == counts_of(shuffled)


@pytest.mark.parametrize(
    "counts", [[2**62, 2**62, 2**62, 100], [2**63 - 1, 2**63 - 1, 3, 5], [2**40, 1]]
)
@pytest.mark.parametrize("outside", ["error", "drop"])
def test_counts_that_could_overflow_are_refused(counts, outside):
    items = [1] * (len(counts) - 1) + [2]
    with pytest.raises(InvalidInputError, match="more than 1,099,511,627,776 clients"):
        tally_of(from_items(items, counts=counts), encoder=Declared(IntegerRange(1, 1), outside))


def test_more_rounds_than_clients():
    with pytest.raises(
        InvalidInputError,
        match="num_rounds must be at most the number of clients, 2 clients, got 3",
    ):
        tally_of(from_items([1, 2]), num_rounds=3).finish()


def test_natural_rounds_written_as_text_are_ordered_by_number():
    labels = [str(year) for year in range(1, 13)]
    rounds = tally_of(from_items(list(range(12)), rounds=labels[::-1]), num_rounds=None).finish()
    assert [r.ids.tolist() for r in rounds] == [[i] for i in reversed(range(12))]


def test_a_client_in_two_natural_rounds_takes_part_twice():
    rounds = tally_of(
        from_items([1, 2], clients=["a", "a"], rounds=[0, 1]), num_rounds=None
    ).finish()
    assert [r.num_clients for r in rounds] == [1, 1]


def test_outside_the_domain():
    with pytest.raises(
        OutsideDomainError, match="1 of 3 items is outside the domain range:0..99, the first is 100"
    ):
        tally_of(from_items([1, 100, 2]))
    tally = tally_of(from_items([1, 100, 2], counts=[1, 5, 1]), encoder=Declared(RANGE, "drop"))
    assert tally.dropped.outside == 5
    assert counts_of(tally.finish()) == [{1: 1, 2: 1}]
    by_client = tally_of(from_items([1, 100], clients=[1, 2]), encoder=Declared(RANGE, "drop"))
    assert by_client.finish()[0].num_clients == 1


def test_input_domain_of_text_keeps_every_distinct_item():
    encoder = FromInput(bytes(32))
    words = [f"w{i % 997}" for i in range(5000)]
    [only] = tally_of(from_items(words), encoder=encoder).finish()
    domain = encoder.domain()
    assert sorted(domain.labels(np.arange(domain.size))) == sorted(set(words))
    assert np.array_equal(domain.ids(0, domain.size), only.ids)
    assert not domain.public


@pytest.mark.parametrize("clients", [None, [1, 2, 2, None]])
def test_a_value_of_a_dictionary_that_no_row_has_is_no_candidate(clients):
    words = pa.DictionaryArray.from_arrays([3, 0, 3, 1], ["tea", "milk", "never", "rice"])
    encoder = FromInput(bytes(32))
    source = from_items(words, clients=clients) if clients else from_items(words[:3])
    [only] = tally_of(source, encoder=encoder, max_items=5).finish()
    domain = encoder.domain()
    found = dict(zip(domain.labels(np.arange(2)), only.counts.tolist(), strict=True))
    assert (domain.size, found) == (2, {"rice": 2, "tea": 1})


@pytest.mark.parametrize("private", [False, True])
def test_a_dictionary_is_encoded_as_its_rows_are(private):
    words = ["tea", "gin", "tea", "milk", "rum"]
    drinks = Dictionary(["milk", "tea"])
    for outside in ("drop", "error"):
        encoder = Declared(drinks, outside, private)
        if outside == "error":
            with pytest.raises(OutsideDomainError, match="3 of 6 items are outside"):
                tally_of(from_items(pa.array([*words, "rum"]).dictionary_encode()), encoder=encoder)
            continue
        plain, inside = encoder.encode(pa.array(words))
        ids, mask = encoder.encode(pa.array(words).dictionary_encode())
        assert ids.tolist() == plain.tolist() == [1, 1, 0]
        assert mask.tolist() == inside.tolist() == [True, False, True, True, False]


def test_input_domain_over_many_batches():
    import pyarrow as pa

    from fedtally.sources import Batch

    encoder = FromInput(bytes(32))
    rng = np.random.default_rng(2)
    seen = set()
    for _ in range(6):
        words = [f"w{i}" for i in rng.integers(0, 200_000, 50_000)]
        seen.update(words)
        Tally(encoder, 1, 1, rng, 1 << 30).add(Batch(pa.array(words)))
    domain = encoder.domain()
    assert set(domain.labels(np.arange(domain.size))) == seen


def test_input_domain_of_integers():
    encoder = FromInput(bytes(32))
    tally_of(from_items([5, -3, 5]), encoder=encoder)
    domain = encoder.domain()
    assert domain.labels(np.arange(domain.size)) == [-3, 5]


def test_dictionary_encoder_drops_what_it_lacks():
    tally = tally_of(
        from_items(["tea", "gin", "tea"]), encoder=Declared(Dictionary(["tea", "milk"]), "drop")
    )
    assert counts_of(tally.finish()) == [{0: 2}]
    assert tally.dropped.outside == 1


def test_too_many_natural_rounds(monkeypatch):
    monkeypatch.setattr("fedtally.simulation.row_counts.MAX_NATURAL_ROUNDS", 3)
    with pytest.raises(InvalidInputError, match="more than 3 distinct values; is it a round"):
        tally_of(from_items([1] * 5, rounds=list(range(5))), num_rounds=None)


def test_rows_of_a_dictionary_are_counted_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(item_ids, "_FEW", 2)
    rows = ["tea", "rice", "tea", "tea", "milk"]
    encoder = FromInput(bytes(32))
    words = pa.array(rows).dictionary_encode()
    [only] = tally_of(from_items(words), encoder=encoder).finish()
    assert dict(zip(encoder.items().to_pylist(), only.counts.tolist(), strict=True)) == Counter(
        rows
    )
