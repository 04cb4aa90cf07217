"""Strings of which nobody has the list: the vector, the plan, the reader, and what sums show."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from clip_norms import squared_norm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

import fedtally
import fedtally.sources
from fedtally import kernels
from fedtally.answer import documents, screen, sections
from fedtally.answer.answer import Answer
from fedtally.base import archive
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.server import FrequencyServer, RejectedSumError
from fedtally.cli.app import run
from fedtally.domain import Names, OpenStrings, Unread, symbols
from fedtally.domain import load as load_domain
from fedtally.domain.strings import fingerprints
from fedtally.errors import IncompatibleError, InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.plan.rare_names import RareNames
from fedtally.recovery import names as reader
from fedtally.recovery.names import read_names
from fedtally.sketch import CountSketch, SketchSpec, Spelling
from fedtally.sketch.clip import Clip, bound_items

SEED = bytes(range(32))
DOMAIN = OpenStrings(max_length=8, bits=12)
STRINGS = DOMAIN.with_seed(SEED)
ITEMS = ["tea", "coffee", "milk", "water", "juice", "caf\u00e9", "\u8336", "a" * 8]


def plan_of(**changes):
    asked = {
        "rows": 5,
        "width": 40,
        "schedule": "hybrid",
        "num_rounds": 3,
        "num_clients": 60,
        "max_round_clients": 60,
        "domain": DOMAIN.describe(),
        "max_items": 1,
        "seed": SEED,
        "spelling": Spelling(3, 16, 8),
    }
    return Plan(**asked | changes)


def sums_of(plan, items, counts, rounds=None):
    """Return the sums of rounds in which each item is held so often."""
    names = Names(STRINGS, items)
    ids = fingerprints(items, STRINGS.key)
    sketches = []
    for round in range(plan.num_rounds) if rounds is None else rounds:
        sketch = CountSketch(plan.spec, round)
        sketch.add(names.spell(ids, plan.spec.num_positions), np.array(counts))
        sketches.append(sketch)
    return sketches


def hash_of(item):
    return int(STRINGS.encode([item])[0])


# ---- the code of names ----


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(0, 60), st.randoms(use_true_random=False))
def test_any_places_of_enough_symbols_give_the_name(size, more, random):
    positions = max(size + more, 2)
    word = np.array([random.randrange(256) for _ in range(size - 1)], np.uint8)
    found = symbols.encode(word, np.array([0, len(word)]), positions - 1, positions)[0]
    parity = symbols.parity_of(size, positions)
    assert found[: positions - len(parity)].tobytes() == (word.tobytes() + b"\xff") * (
        positions // size
    )
    whole = np.append(found[:size], found[positions - len(parity) :])
    places = sorted(random.sample(range(len(whole)), size))
    missing = tuple(place for place in range(len(whole)) if place not in places)
    if missing:
        read = symbols.interpolate(tuple(places), whole[places][None], missing)
        assert read[0].tolist() == whole[list(missing)].tolist()


def test_positions_are_spread_over_batches():
    spec = SketchSpec(5, 40, "hybrid", 8, SEED, Spelling(4, 16, 64))
    carried = [spec.positions_of(round) for round in range(8)]
    assert sorted(sum(carried, ())) == list(range(72))
    # with t mod 8 all copies of a symbol of a 7-byte name would be in one round
    assert max(len({t % 8 for t in own}) for own in carried) > 3


def test_long_names_need_points():
    SketchSpec(5, 40, "hybrid", 200, SEED, Spelling(4, 16, 127))
    with pytest.raises(InvalidInputError, match="max_length must be at most 127 where 256 batches"):
        SketchSpec(5, 40, "hybrid", 256, SEED, Spelling(4, 16, 128))
    for values in ((0, 16, 64), (4, 0, 64), (4, 16, 0), (4, 16, 193)):
        with pytest.raises(InvalidInputError, match=r"spelling\."):
            Spelling(*values)


# ---- the domain ----


def test_the_domain():
    assert load_domain(STRINGS.describe(), STRINGS.arrays()) == STRINGS
    assert load_domain(DOMAIN.describe(), DOMAIN.arrays()) == DOMAIN != STRINGS
    assert str(DOMAIN) == "open" and STRINGS.contains(["x"]).all() and DOMAIN.collides(1) == 0
    assert fedtally.sources.domain_of("open") == OpenStrings()
    label = STRINGS.labels(np.array([7]))[0]
    # the label is not the string that is written alike
    assert STRINGS.encode([label]).tolist() == [7] != STRINGS.encode([str(label)]).tolist()
    assert "tea" not in repr(Names(STRINGS, ["tea"]))
    with pytest.raises(InvalidInputError, match="need the campaign's seed"):
        DOMAIN.encode(["tea"])
    with pytest.raises(InvalidInputError, match="has no name here"):
        Names(STRINGS, ["tea"]).spell(np.array([1], np.uint64), 9)
    assert fedtally.sources.of_description(DOMAIN.describe(), None) == DOMAIN
    with pytest.raises(InvalidInputError, match="the plan holds its candidates as a whole"):
        fedtally.sources.of_description(DOMAIN.describe(), "words.txt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spelling": None}, "an open domain needs a spelling"),
        ({"domain": {"kind": "range", "size": 9, "public": True}}, "spelling goes with an open"),
        ({"spelling": Spelling(3, 16, 9)}, "max_length must be 9"),
        ({"domain": DOMAIN.describe() | {"size": 9}}, "has 4096 candidates"),
        ({"domain": DOMAIN.describe() | {"public": False}}, "is public"),
        ({"domain": DOMAIN.describe() | {"bits": 29, "size": 2**29}}, "domain.bits"),
        ({"domain": {"kind": "open", "size": 4096, "public": True}}, "domain lacks"),
        ({"domain": DOMAIN.describe() | {"normalise": "nfd"}}, 'domain.normalise must be "nfc"'),
        ({"domain": DOMAIN.describe() | {"form": "nfc"}}, "domain has unknown entries form"),
    ],
)
def test_plans_that_do_not_fit(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        plan_of(**changes)


@cache
def private_plan(**changes):
    """Return a plan with the noise of all its rows; cached, since that takes a second."""
    asked = {"epsilon": 1.0, "delta": 1e-6, "not_private": True} | changes
    plan = plan_of()
    privacy = fedtally.privacy.config.propose(
        rows=plan.spec.touched,
        width=plan.spec.mean_width,
        counters=plan.spec.vector_length,
        **asked,
    )
    return replace(plan, privacy=privacy, max_items=asked.get("max_items", 1))


def test_a_plan_and_its_file():
    plan = plan_of()
    assert Plan.from_toml(plan.to_toml()) == plan
    assert plan.to_dict()["spelling"] == {"rows": 3, "width": 16}
    assert plan.vector_length == 5 * 40 + 3 * 3 * 16  # three blocks of nine positions
    # every row of every part counts, and a plan that says fewer is refused
    private = private_plan()
    assert private.privacy.event.rows == 5 + 3 * 3
    less = replace(private.privacy, event=replace(private.privacy.event, rows=5))
    with pytest.raises(InvalidInputError, match="event.rows must be that of the plan, 14"):
        replace(private, privacy=less)
    certified = private_plan(relation="replace-one")
    event = replace(certified.privacy.event, collisions=(2, 1))
    with pytest.raises(InvalidInputError, match="an open domain has no list"):
        replace(certified, privacy=replace(certified.privacy, event=event))


# ---- a client ----


def test_every_client_changes_as_many_counters():
    plan = plan_of()
    for item in ["", "tea", "a" * 8, "a" * 9, "\u8336" * 40]:
        for round in range(3):
            vector = FrequencyClient(plan, DOMAIN, [item]).contribution(round)
            assert np.abs(vector).sum() == plan.spec.touched and np.abs(vector).max() == 1


def test_a_client_with_privacy_tells_nothing_by_an_error():
    plan = private_plan(max_items=2)
    random = np.random.default_rng(1).bytes
    for items in (["tea", None, "\ud800"], [b"\xff"], [], ITEMS, [5, "tea"]):
        assert len(FrequencyClient(plan, DOMAIN, items).contribution(0, random)) == 344
    with pytest.raises(InvalidInputError, match="give the names of the ids"):
        FrequencyClient.of_ids(plan, np.array([7], np.uint64))
    with pytest.raises(InvalidInputError, match="items must be a list"):
        FrequencyClient(plan_of(), DOMAIN, ["\ud800"])


def test_the_clip_holds_for_the_whole_vector():
    spec = SketchSpec(3, 2, "shared", 1, SEED, Spelling(3, 2, 8))
    names = Names(STRINGS, ITEMS)
    rows = names.spell(names.ids, spec.num_positions)
    for number in range(1, len(ITEMS) + 1):
        sketch = CountSketch(spec, 0)
        sketch.add(rows[:number])
        square = int((sketch.vector**2).sum())
        assert squared_norm(spec, 0, rows[:number]) == square
    clip = Clip(spec, 0, (2.5 * spec.touched) ** 0.5, lambda ids: names.spell(ids, 9))
    kept = bound_items(names.ids, 8, np.random.default_rng(0).bytes, clip)
    assert 1 <= len(kept) < 8
    assert squared_norm(spec, 0, names.spell(kept, 9)) <= clip.largest_square


# ---- sketches ----


def test_sketches_with_a_spelling(tmp_path):
    plan = plan_of()
    [sketch] = sums_of(plan, ITEMS, [1] * 8, [0])
    sketch.save(tmp_path / "s")
    again = CountSketch.load(tmp_path / "s")
    assert again.spec == plan.spec and (again.vector == sketch.vector).all()
    again.merge(sketch)
    assert (again.vector == 2 * sketch.vector).all()
    with pytest.raises(InvalidInputError, match=r"ids must be uint64 \[n, 10\]"):
        sketch.add(np.array([7], np.uint64))
    with pytest.raises(InvalidInputError, match="a range of ids has none"):
        sketch.add_range(0, np.array([1]))
    with pytest.raises(IncompatibleError, match="spelling"):
        sketch.merge(CountSketch(replace(plan.spec, spelling=None), 0))


def test_a_sum_that_no_clients_have_is_refused():
    """In the part that spells names, too: too large, too much in a row, of the wrong parity."""
    plan = plan_of()
    [sketch] = sums_of(plan, ["tea"], [20], [0])
    server = FrequencyServer(plan)
    at = plan.spec.parts(0)[1].start
    for change in (np.array([60]), np.full(16, 5), np.array([1])):
        total = sketch.vector.copy()
        total[at : at + len(change)] += change
        with pytest.raises(RejectedSumError):
            server._sketch(0, total, 20)
    assert server._sketch(0, sketch.vector, 20).num_clients == 20


# ---- the reader ----


def frequencies_of(items, shares):
    return {hash_of(item): share for item, share in zip(items, shares, strict=True)}


def test_names_are_read():
    counts = [400, 300, 200, 150, 100, 80, 60, 50]
    shares = [count / sum(counts) for count in counts]
    plan = plan_of(max_round_clients=2000, num_clients=6000)
    found = read_names(sums_of(plan, ITEMS, counts), STRINGS, frequencies_of(ITEMS, shares))
    assert sorted(found.values()) == sorted(ITEMS)
    assert all(hash_of(name) == h for h, name in found.items())
    # a lost round is an erasure: short names have copies elsewhere
    lost = read_names(sums_of(plan, ITEMS, counts, [0, 2]), STRINGS, frequencies_of(ITEMS, shares))
    assert "tea" in lost.values() and set(lost.values()) <= set(ITEMS)
    # a hash that nobody holds has no name
    absent = next(h for h in range(4096) if h not in found)
    assert absent not in read_names(sums_of(plan, ITEMS, counts), STRINGS, {absent: 0.2})


def test_a_name_with_control_characters_or_too_long_stays_unread():
    items, plan = ["a\x07b", "a" * 9, "\u0085", "\u200d\u2764"], plan_of(num_clients=180)
    found = read_names(sums_of(plan, items, [50] * 4), STRINGS, frequencies_of(items, [0.25] * 4))
    assert list(found.values()) == ["\u200d\u2764"]


def sums_of_one_hash(monkeypatch, h, other, counts):
    """Return sums in which "tea" and another string have the same hash, h."""
    plan = plan_of(num_clients=180, spelling=Spelling(3, 40, 8))
    names = Names(STRINGS, ["tea", other])
    rows = names.spell(fingerprints(["tea", other], STRINGS.key), plan.spec.num_positions)
    rows[1, 0], rows[1, 1:] = h, rows[1, 1:] & np.uint64(255) | np.uint64(h << 8)
    sketches = [CountSketch(plan.spec, round) for round in range(3)]
    for sketch in sketches:
        sketch.add(rows, np.array(counts))
    second, hashes = np.frombuffer(other.encode(), np.uint8), reader.hashes_of

    def colliding(each, domain):
        found = hashes(each, domain)
        if each.shape[1] == len(second):
            found[(each == second).all(axis=1)] = h
        return found

    monkeypatch.setattr(reader, "hashes_of", colliding)
    return sketches


@pytest.mark.parametrize(("other", "held"), [("rum", 50), ("rum", 20), ("rumba", 50), ("te", 0)])
def test_a_name_must_be_ahead_of_all_words_of_its_hash(monkeypatch, other, held):
    """Clients of another string have the same hash: where they are as many, no name is given."""
    h = hash_of("tea")
    found = read_names(sums_of_one_hash(monkeypatch, h, other, [50, held]), STRINGS, {h: 1.0})
    assert found == ({} if held == 50 else {h: "tea"})


@pytest.mark.parametrize(("held", "name"), [(40, {}), (10, "tea")])
def test_of_two_words_that_fit_none_is_given(monkeypatch, held, name):
    """Clients hold both: each word has more than half of the hash's frequency, and one has more."""
    h = hash_of("tea")
    sketches = sums_of_one_hash(monkeypatch, h, "rum", [50, held])
    assert read_names(sketches, STRINGS, {h: 0.5}) == ({h: name} if name else {})


@pytest.mark.parametrize(("held", "frequency", "name"), [(40, 0.85, {}), (20, 1.0, "tea")])
def test_a_name_does_not_hide_a_second_string_of_its_hash(monkeypatch, held, frequency, name):
    """A search that shows only the clearer word of the two finds the other one, too.

    If both have more than half of the frequency that was found, neither is named.
    """
    h, words = hash_of("tea"), [np.frombuffer(word, np.uint8) for word in (b"tea", b"rum")]
    sketches = sums_of_one_hash(monkeypatch, h, "rum", [50, held])

    def clearer(likely, sizes, prior, effort):
        def clarity(word):
            spelled = symbols.encode(word, np.array([0, len(word)]), 8, len(likely))[0]
            return likely[np.arange(len(likely)), spelled].sum()

        yield max(words, key=clarity)[None]

    monkeypatch.setattr(reader, "_words", clearer)
    assert read_names(sketches, STRINGS, {h: frequency}) == ({h: name} if name else {})


def test_at_most_so_many_words_are_tried(monkeypatch):
    tried = []
    hashes = reader.hashes_of
    monkeypatch.setattr(
        reader,
        "hashes_of",
        lambda words, domain: (tried.append(len(words)), hashes(words, domain))[1],
    )
    rng = np.random.default_rng(0)
    [sketch] = sums_of(plan_of(num_rounds=1, num_clients=60), ["tea"], [50], [0])
    sketch.vector += rng.integers(-9, 10, len(sketch.vector))
    read_names([sketch], STRINGS, {7: 0.6})
    assert 0 < sum(tried) <= reader.MOST_TRIES
    # whose tries are used up is not spelled again: neither in this sweep nor in the next
    words, spelled = reader._words, []
    monkeypatch.setattr(reader, "MOST_TRIES", 100)
    monkeypatch.setattr(
        reader, "_words", lambda *given: (spelled.append(given[1]), words(*given))[1]
    )
    read_names([sketch], STRINGS, {7: 0.6})
    assert 0 < sum(map(len, spelled)) <= reader._QUICK.lengths


def test_posteriors_are_those_of_the_chain():
    """Names of several lengths at once, against the sum over all words of three letters."""
    prior, rng, letters = reader._Prior(), np.random.default_rng(0), b"abc"
    prior.learn(np.frombuffer(b"cab", np.uint8))
    every = []
    for places in (2, 0, 4, 1):
        logs = np.full((places, 256), -np.inf)
        logs[:, list(letters)] = 3 * rng.normal(size=(places, 3))
        every.append(logs)
    for logs, found in zip(every, reader._posteriors(every, prior), strict=True):
        total = np.zeros((len(logs), 256))
        for word in product(letters, repeat=len(logs)):
            chain = [256, *word, 255]
            log = sum(prior.log[a, b] for a, b in pairwise(chain))
            log += sum(logs[place, letter] for place, letter in enumerate(word))
            total[np.arange(len(logs)), list(word)] += np.exp(log)
        np.testing.assert_allclose(
            np.exp(found), total / total.sum(axis=1, keepdims=True).clip(1e-300), atol=1e-12
        )


@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 4), st.integers(0, 2**32))
def test_combinations_go_through_the_surest_places(size, rest, flips, seed):
    """All combinations of first and second symbols at the least sure of them: each word is
    interpolated by itself here."""
    rng = np.random.default_rng(seed)
    posterior, parity = rng.normal(size=(size - 1, 256)), rng.normal(size=(rest, 256))
    posterior[:, 128:] -= 9  # most words are no UTF-8 otherwise
    found = reader._interpolated(posterior, parity, reader._Effort(1, 0, flips, replaced=0))
    logs = np.vstack([posterior, np.full((1, 256), -np.inf), parity])
    logs[size - 1, 255] = 0.0
    best = np.argsort(-logs, axis=1)[:, :2]
    gap = np.diff(-np.take_along_axis(logs, best, 1), axis=1)[:, 0]
    places = np.argsort(-gap, kind="stable")[:size]
    flips = min(flips, size - 1)
    expected = []
    choices = product((0, 1), repeat=flips)
    for choice in sorted(choices, key=lambda bits: (sum(bits), bits[::-1])):
        chosen = np.array([0] * (size - flips) + list(choice))
        known = best[places, chosen].astype(np.uint8)[None]
        whole = np.zeros(size, np.uint8)
        whole[places[places < size]] = known[0, places < size]
        missing = tuple(sorted(set(range(size)) - set(places.tolist())))
        if missing:
            whole[list(missing)] = symbols.interpolate(tuple(places.tolist()), known, missing)[0]
        if whole[-1] == symbols.END and (whole[:-1] < symbols.FIRST_UNUSED).all():
            expected.append(whole[:-1].tolist())
    assert found.tolist() == expected


# ---- what sums show without noise ----


def attacked(sketch, rows, noise, seed):
    """Return how often each item of a list is held, as a server with that list finds it."""
    rng = np.random.default_rng(seed)
    vector = sketch.vector + np.rint(rng.normal(0, noise, len(sketch.vector)))
    return nnls(system(sketch, rows), vector, maxiter=5000)[0]


def system(sketch, rows):
    """Return what each item of a list adds to each counter, one column an item."""
    columns = np.zeros((len(sketch.vector), len(rows)))
    for part in sketch.spec.parts(0):
        location, sign, bit = part.hashes
        places = kernels.locations(kernels.hash_words(location, part.ids(rows)), part.width)
        signs = kernels.signs(kernels.hash_words(sign, part.ids(rows)), bit)
        for row in range(part.rows):
            at = part.start + row * part.width + places[row]
            columns[at, np.arange(len(rows))] = signs[row]
    return columns


@pytest.mark.parametrize("is_open", [True, False], ids=["open domain", "list of candidates"])
def test_a_list_reads_what_single_clients_hold(is_open):
    """The attack of docs/open-domain.md and docs/privacy.md, on 100 clients, with a list of 1,000.

    Non-negative least squares: 872 counters of an open domain, or 875 of a sketch of 7 rows. Where
    noise of epsilon 1 is added, the items that it gives most to are hardly more often those of
    single clients than if they were drawn: an item's statistic is moved by 1 / 4.2 standard
    deviations.
    """
    rng = np.random.default_rng(2)
    shares = np.arange(1, 1001) ** -0.5
    held = np.bincount(rng.choice(1000, 100, p=shares / shares.sum()), minlength=1000)
    if is_open:
        plan = plan_of(num_rounds=1, width=88, num_clients=100, max_round_clients=100)
        items = [f"w{number:03d}" for number in range(1000)]
        ids = fingerprints(items, STRINGS.key)
        rows, sketch = Names(STRINGS, items).spell(ids, 9), CountSketch(plan.spec, 0)
    else:
        rows = np.arange(1000, dtype=np.uint64)
        sketch = CountSketch(SketchSpec(7, 125, "shared", 1, SEED), 0)
    sketch.add(rows, held)
    single = held == 1
    exact = attacked(sketch, rows, 0.0, 3)
    assert single.sum() > 50 and (np.rint(exact[single]) == 1).mean() > 0.95
    noised = attacked(sketch, rows, 4.2247 * sketch.spec.touched**0.5, 3)
    guessed = np.argsort(-noised)[: held.astype(bool).sum()]
    # by chance a tenth; the chance of three tenths of more than 50 is below 1e-4 (Chernoff)
    assert np.isin(np.flatnonzero(single), guessed).mean() < 0.3


def test_a_list_shorter_than_the_counters_reads_every_count_of_any_number_of_clients():
    """20,000 clients in 872 counters, whose strings are among 800: the system has one solution."""
    rng = np.random.default_rng(7)
    shares = np.arange(1, 801) ** -1.3
    held = np.bincount(rng.choice(800, 20_000, p=shares / shares.sum()), minlength=800)
    plan = plan_of(num_rounds=1, width=88, num_clients=20_000, max_round_clients=20_000)
    assert plan.spec.vector_length == 872 and not RareNames(872, 48, 20_000, 9).is_warned
    items = [f"w{number:03d}" for number in range(800)]
    rows = Names(STRINGS, items).spell(fingerprints(items, STRINGS.key), 9)
    sketch = CountSketch(plan.spec, 0)
    sketch.add(rows, held)
    found = np.linalg.lstsq(system(sketch, rows), sketch.vector, rcond=None)[0]
    assert (held == 1).sum() > 100 and np.array_equal(np.rint(found), held)


@pytest.mark.matrix  # a minute; a hundred clients are attacked in every run
def test_a_list_reads_every_client_of_a_cohort_of_a_thousand():
    """The same attack on a cohort, in 11,016 counters, with a list of 3,000 strings.

    485 of the clients hold a string that nobody else holds.
    """
    rng = np.random.default_rng(2)
    shares = np.arange(1, 3001) ** -0.8
    held = np.bincount(rng.choice(3000, 1000, p=shares / shares.sum()), minlength=3000)
    spelling = Spelling(4, 256, 8)
    plan = plan_of(
        num_rounds=1, width=360, num_clients=1000, max_round_clients=1000, spelling=spelling
    )
    assert plan.spec.vector_length == 5 * 360 + 9 * 4 * 256 == 11_016
    items = [f"w{number:04d}" for number in range(3000)]
    rows = Names(STRINGS, items).spell(fingerprints(items, STRINGS.key), 9)
    sketch = CountSketch(plan.spec, 0)
    sketch.add(rows, held)
    found = np.rint(attacked(sketch, rows, 0.0, 3))
    assert (held == 1).sum() == 485
    assert np.array_equal(found, held)


@pytest.mark.matrix  # a minute
@pytest.mark.parametrize(("name", "size"), [("qzx", "read"), ("qzxjvkwpyhgfdrtb", "read_longest")])
def test_a_name_is_read_from_one_to_three_times_the_holders_that_are_said(name, size):
    """Twelve campaigns each; with a share of one half, two or fewer have a probability of .02."""
    asked = {"domain": OpenStrings(max_length=16, bits=20), "max_bytes": 4000}
    shares = np.arange(1, 2001) ** -1.1

    def is_read(seed, holders):
        words = np.random.default_rng(seed).choice(2000, 20_000, p=shares / shares.sum())
        items = [name] * holders + [f"w{word}" for word in words[holders:]]
        result = fedtally.estimate(items, **asked, seed=seed)
        return result, name in result.names.values()

    plan = is_read(0, 0)[0].plan
    position = plan.spelling.rows * plan.spelling.width
    rare = RareNames(plan.spec.vector_length, position, 20_000, plan.spec.num_positions)
    holders = round(getattr(rare, size))
    assert sum(is_read(seed, holders)[1] for seed in range(12)) <= 2
    assert sum(is_read(seed, 3 * holders)[1] for seed in range(12)) >= 7


def test_a_made_word_takes_the_place_of_a_string_too_long_to_be_spelled():
    """Only its first bytes are spelled: whoever has the seed makes another one of that hash."""
    true, start = "abcdefgh, and more", "abcdefgh"
    h = hash_of(true)
    made = next(word for word in (f"{start} {n}" for n in range(10**6)) if hash_of(word) == h)
    plan = plan_of(num_rounds=1)
    result = fedtally.Result(plan, STRINGS, sums_of(plan, [*ITEMS, true], [5] * 8 + [100]))
    count = result.frequency(true)
    assert h in result.found and h not in result.names
    result.recognise([[made]])
    assert result.names[h] == made and result.frequency(true) == count
    result.recognise([[true]])  # both fit: none is given
    assert h not in result.names


def test_what_can_be_confirmed_is_said():
    few, many = (RareNames(2000, 64, clients, 16) for clients in (1000, 100_000))
    assert round(few.confirmed, 2) == 2.83 and round(many.read_longest) == 194
    assert many.read == many.read_longest / 2  # 4 of 16 symbols
    with pytest.raises(InvalidInputError, match="1,000 clients in 2,000 counters"):
        few.check()
    many.check()
    assert "most of what rare clients hold" in few.notes[0]
    assert "most of what rare clients hold" not in many.notes[0]
    assert "a list of 2,000 strings or fewer that has all that clients hold" in many.notes[0]


# ---- campaigns in this process ----

WORDS = [
    item
    for item, count in zip(ITEMS, (90, 70, 50, 30, 20, 15, 15, 10), strict=True)
    for _ in range(count)
]
ASKED = {"domain": DOMAIN, "max_bytes": 300, "seed": 1}


def test_an_estimate(tmp_path, monkeypatch):
    stages = []
    result = fedtally.estimate(WORDS, **ASKED, allow_rare_names=True)
    assert [each.item for each in result.top(3)] == ["tea", "coffee", "milk"]
    assert result.top(1)[0].frequency == pytest.approx(0.3, abs=0.02)
    assert result.num_found >= len(result.names) >= 3
    result.save(tmp_path / "r")
    again = fedtally.Result.load(tmp_path / "r")
    with monkeypatch.context() as patch:  # what was read is kept
        patch.setattr("fedtally.answer.part.read_names", lambda *_: pytest.fail("read anew"))
        assert again.top(5) == result.top(5) and again.names == result.names
        again.save(tmp_path / "r2")  # a file that was only read keeps it, too
        assert fedtally.Result.load(tmp_path / "r2").names == result.names
    schema, meta, arrays = archive.read(tmp_path / "r")
    for wrong in ("tea", [3], {"tea": 3}):
        archive.write(tmp_path / "bad", schema, {**meta, "names": wrong}, arrays)
        with pytest.raises(UnreadableFileError, match="names of an open domain must be text"):
            fedtally.Result.load(tmp_path / "bad")
    # names of hashes that do not stand out are nobody's, and without any they are read anew
    archive.write(tmp_path / "odd", schema, {**meta, "names": ["tea", "nobody's"]}, arrays)
    assert list(fedtally.Result.load(tmp_path / "odd").names.values()) == ["tea"]
    archive.write(tmp_path / "bare", schema, {**meta, "names": None}, arrays)
    assert fedtally.Result.load(tmp_path / "bare").names == result.names
    assert again.frequency("tea") == result.frequency("tea")
    again.decoded(confidence=0.9).prepare(lambda stage, *_: stages.append(stage))
    assert not stages  # the fit and the names are those of the other confidence
    told = documents.of_result(result, result.top(2))
    assert told["open"]["named"] == len(result.names) and told["estimates"][0]["item"] == "tea"
    table = result.to_arrow()  # of what stands out
    assert table.num_rows == result.num_found and "tea" in table.column("item").to_pylist()
    assert len(again) == len(list(again)) == table.num_rows
    assert "candidates=none" in repr(again)
    for refused in (result.limits, lambda: result.decoded(recovery="median")):
        with pytest.raises(InvalidInputError, match="open"):
            refused()
    with pytest.raises(InvalidInputError, match="two of the results are of one plan"):
        Answer([result, again])
    raw = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UnreadableFileError):
        fedtally.Result.load(tmp_path / "r")


def test_a_hash_without_a_name_stays(monkeypatch):
    result = fedtally.estimate(["a" * 9] * 200 + WORDS, **ASKED, allow_rare_names=True)
    first, read = result.top(1)[0], result.names
    assert isinstance(first.item, Unread) and first.item.hash == hash_of_run(result, "a" * 9)
    assert first.frequency == result.frequency("a" * 9)  # named later
    for asked, warned in ((str(first.item), True), (first.item, False), ("tea", False)):
        shown = screen.plain(screen.answer(result, (), result.estimates([asked])))
        assert (f"{first.item}: asked for as text" in " ".join(shown.split())) == warned
    assert sections.listed.estimate_fields(first)["item"] is None
    [note] = [one for one in result.warnings if "could not be read" in one]
    assert "#" not in note  # pages show no hash of what may be noise
    # the hashes of an open domain by default are more than a notebook lists of candidates
    monkeypatch.setattr("fedtally.answer.answer_rows.MAX_LISTED", DOMAIN.size - 1)
    notebook = result._repr_html_()
    assert "500 clients, no list of candidates" in notebook
    assert f"<bdi>{first.item}</bdi>" in notebook and "<bdi>tea</bdi>" in notebook
    assert "could not be read" in notebook
    result.names = read
    assert result.num_unread > 0 and min(result._found.values()) * result.num_clients >= 0.5
    said = screen.plain(screen.answer(result, result.top(3), details=True))
    assert "no list of candidates" in said and "one-hot" not in said


def shown_names(result, listed, **options):
    """Return the line on names, and the list that stands above it."""
    text = screen.plain(screen.answer(result, listed, **options), 300)
    names = [line.rstrip() for line in text.splitlines() if line.startswith("Names ")]
    return (*names, text.partition("\nError ")[0])


def test_hashes_are_one_line_and_details_list_them(monkeypatch):
    """A list has names. What they hide is counted, with the largest that is no noise."""
    result = fedtally.estimate(["a" * 9] * 200 + WORDS, **ASKED, allow_rare_names=True)
    read, every = result.names, result.top(result.num_found)
    first = every[0]
    assert isinstance(first.item, Unread) and first.low > 0
    line, table = shown_names(result, every)
    assert "#" not in table.partition("#")[2] and "tea" in table
    helps = "a public list of words (--dictionary), or more bytes, may name more"
    share = f"{100 * first.frequency:.2f} % of the clients"
    assert line == (
        f"Names    1 more string could not be read, told from 0, with {share}: {helps};"
        " --details lists it"
    )
    others = [hash for hash, name in read.items() if name != "tea"]
    monkeypatch.setattr(result, "names", {hash: read[hash] for hash in read if hash != others[0]})
    every = result.top(result.num_found)
    hashes = [e for e in every if isinstance(e.item, Unread)]
    line, _ = shown_names(result, every)
    assert len(hashes) == 2 and line.startswith(
        f"Names    2 more strings could not be read, all told from 0, with up to {share}: {helps};"
    )
    details = screen.plain(screen.answer(result, every, details=True), 300)
    assert all(str(e.item) in details for e in hashes)
    # a shorter list says how to see them all
    line, _ = shown_names(result, every[:3], how="show it --details")
    assert line.endswith(f"; show it --details --top {len(every)} lists them")
    # of what may be noise nothing more is said, nor without intervals, when nobody knows
    monkeypatch.setattr(result, "top", lambda k: [replace(e, low=0.0) for e in every])
    line, _ = shown_names(result, every)
    assert line.startswith(
        f"Names    {len(hashes)} more strings could not be read, none of them told"
    )
    assert "may name" not in line
    bare = result.decoded(confidence=0)
    bare.names = read
    line, _ = shown_names(bare, bare.top(100))
    assert "could not be read; --details" in line
    # a list of hashes alone has no table, and one that is read through counts them all
    text = screen.plain(screen.answer(result, [first]))
    assert "none is shown" not in text and "could not be read" in text
    monkeypatch.setattr(result, "names", dict.fromkeys(result.found.tolist(), "x"))
    line, _ = shown_names(result, every)
    assert line == f"Names    all {len(every)} strings that stand out could be read"
    line, _ = shown_names(result, every[:1])
    assert line.endswith(f"could be read; --top {len(every)} lists all")
    assert first.frequency == pytest.approx(0.4, abs=0.02)


def hash_of_run(result, item):
    return int(result.domain.encode([item])[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rounds": 60}, "sums of 1 client in [0-9,]+ counters .*allow_rare_names=True"),
        ({"tau": 0.01, "sizing": "model"}, "sizing= is not for an open domain"),
        ({"tau": 0.01, "pilot_share": 0.2}, "pilot_share= is not for an open domain"),
        ({"name_length": 9}, "name_length must be at most 8, got 9"),
        ({"max_bytes": 9}, "with 9 bytes no name of up to 8 bytes can be read"),
        ({"width": 9, "max_bytes": None}, "width= is not for an open domain"),
        ({"recovery": "median"}, "recovery='median' is not for an open domain"),
        ({"recovery": "belief"}, "recovery='belief' is not for an open domain"),
        ({"schedule": "batched:auto"}, "schedule='batched:auto' is not for an open domain"),
        ({"allow_rare_names": 1}, "allow_rare_names must be true or false"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        fedtally.estimate(WORDS, **ASKED | options)


def test_a_plan_of_an_open_domain_takes_no_other_decoder():
    plan = fedtally.estimate(WORDS, **ASKED).plan
    with pytest.raises(InvalidInputError, match="recovery='belief' is not for an open domain"):
        fedtally.estimate(WORDS, plan=plan, domain="open", recovery="belief")
    with pytest.raises(InvalidInputError, match="recovery='belief' is not for an open domain"):
        fedtally.estimate(WORDS, plan=plan, recovery="belief")
    with pytest.raises(InvalidInputError, match="that no plan has sized yet"):
        fedtally.estimate(WORDS, plan=plan, name_length=5)


def test_privacy_and_several_items():
    """The noise is that of all rows; clients of several items are clipped over the whole vector."""
    clients = np.arange(len(WORDS) * 2) // 2
    result = fedtally.estimate(
        [word for pair in zip(WORDS, reversed(WORDS), strict=True) for word in pair],
        clients=clients,
        max_items=2,
        epsilon=50.0,
        not_private=True,
        **ASKED | {"max_bytes": 900},
    )
    event = result.plan.privacy.event
    assert event.rows == result.plan.spec.touched and event.clip_norm**2 < 4 * event.rows
    assert result.num_clients == len(WORDS)
    assert abs(result.frequency("tea") - 0.5) < 0.2


@pytest.mark.parametrize("method", ["secagg", "two-server"])
def test_secure_sums(method):
    result = fedtally.estimate(
        WORDS[::5],
        **ASKED | {"max_bytes": 6_000},
        secure_sum=method,
        dropout=0.1,
        allow_rare_names=True,
    )
    assert result.secure_sum["equals_plain_sum"]
    assert result.top(1)[0].item == "tea"


def test_the_command_line(tmp_path, capsys):
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    words = str(tmp_path / "words.txt")
    tried = ["simulate", words, "--domain", "open"]
    for arguments, message in (
        (["estimate", words, "--max-length", "9"], "--max-length goes with --domain open"),
        (["estimate", words, "--allow-rare-names"], "--allow-rare-names goes with --domain open"),
        (["plan", "--clients", "9", "--normalise", "nfc"], "--normalise goes with --domain open"),
        (["estimate", words, "--domain", "open", "--rounds", "60"], "--allow-rare-names"),
        (["plan", "--clients", "20", "--domain", "open"], "sums of 20 clients in"),
        ([*tried, "--epsilon", "1", "--tau", "1e-9"], "tau 1e-09"),
        ([*tried, "--width", "100"], "--width is not for an open domain"),
        ([*tried, "--rows", "5"], "the sizes follow from --tau or --max-bytes; leave --rows out"),
        ([*tried, "--recovery", "own:Own"], "--domain open tests what real campaigns do"),
        (["simulate", words, "--tau", "0.1"], "--tau goes with fedtally simulate --domain open"),
        (["simulate", words, "--name-length", "4"], "--name-length goes with --domain open"),
    ):
        assert run(arguments) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert message in shown, shown


def test_a_chart_of_an_open_domain_is_refused(tmp_path, capsys, monkeypatch):
    """Also where nothing draws charts: nobody shall install it for a chart that there is not."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    words, plot = str(tmp_path / "words.txt"), str(tmp_path / "plan.png")
    assert run(["simulate", words, "--domain", "open", "--plot", plot]) == 2
    assert "leave --plot out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": bytes(32)}, "the sums are not those of the plan: they differ in seed$"),
        ({"spelling": Spelling(3, 17, 8)}, r"they differ in spelling \(Spelling\(rows=3, width=16"),
        ({"width": 41}, r"they differ in width \(40 and 41\)"),
        ({"domain": OpenStrings(8, 13).describe()}, "the domain is not that of the plan"),
    ],
)
def test_sums_of_another_plan_are_refused(changes, said):
    """Else names and frequencies of hashes that no client has would be given."""
    sketches = sums_of(plan_of(), ITEMS, [5] * len(ITEMS))
    with pytest.raises(IncompatibleError, match=said):
        fedtally.Result(plan_of(**changes), DOMAIN, sketches)


def test_no_plan_is_made_like_an_open_domain(tmp_path, capsys):
    plan = plan_of()
    result = fedtally.Result(plan, STRINGS, sums_of(plan, ITEMS, [5] * len(ITEMS)))
    result.save(tmp_path / "open.fed")
    asked = ["plan", "--clients", "100", "--domain-size", "1000", "--tau", "0.1", "--like"]
    assert run([*asked, str(tmp_path / "open.fed")]) == 2
    assert "this result has an open domain" in " ".join(capsys.readouterr().err.split())


def test_json_of_a_hash():
    assert (
        json.loads(
            json.dumps(
                sections.listed.estimate_fields(
                    fedtally.answer.estimates.Estimate(Unread.of(5), 0.1, None, None, 1.0)
                )
            )
        )["hash"]
        == "0000005"
    )


def test_every_part_of_a_release_has_noise():
    """The mean size of normal noise is 0.8 standard deviations.

    Over the 48 counters of a block its own standard deviation is 0.09: 0.4 is 4.6 of these below.
    """
    plan = private_plan()
    [exact] = sums_of(plan, ["tea"], [20], [0])
    server = FrequencyServer(plan, MemoryBooks())
    server.land_plain(sums_of(plan, ["tea"], [20], [0])[0])
    [released] = server.release(np.random.default_rng(1).bytes)
    for part in plan.spec.parts(0):
        sizes = np.abs(part.of(released.vector) - part.of(exact.vector))
        assert sizes.mean() > 0.4 * plan.privacy.stddev


def test_every_string_is_inside_also_without_a_seed() -> None:
    assert OpenStrings().inside(["tea", "", None, "cola"]).tolist() == [True, True, False, True]
