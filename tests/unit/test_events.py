"""Events: the sensitivity of one client, certificates of collisions, records, what is refused."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.errors import InvalidInputError
from fedtally.privacy.events import (
    SCHEMA,
    Collisions,
    Event,
    Relation,
    Trust,
    certify,
    countable,
    default_clip_norm,
)
from fedtally.sketch import SketchSpec


def gaussian(rows=5, relation="zero-out", **more):
    return Event("rounded-gaussian", rows, relation, **more)


def skellam(rows=5, relation="zero-out", **more):
    return Event("skellam", rows, relation, **({"honest_survivors": 100} | more))


# ---- sensitivity ----


def dense(spec, round, domain_size):
    """One sketch per item: [items, rows * width], and its hashes."""
    hashes = spec.round_hash(round)
    ids = np.arange(domain_size, dtype=np.uint64)
    cells = kernels.locations(kernels.hash_words(hashes.location, ids), spec.width)
    signs = kernels.signs(kernels.hash_words(hashes.sign, ids), hashes.sign_bit)
    sketches = np.zeros((domain_size, spec.rows, spec.width), np.int64)
    for row, item in itertools.product(range(spec.rows), range(domain_size)):
        sketches[item, row, cells[row, item]] += signs[row, item]
    return sketches.reshape(domain_size, -1), (cells, signs)


@pytest.mark.parametrize("schedule", ["shared", "hybrid", "fresh"])
@pytest.mark.parametrize(
    ("rows", "width", "items"), [(3, 4, 8), (5, 10, 60), (7, 6, 100), (1, 5, 30), (16, 40, 90)]
)
def test_certified_sensitivity_is_the_largest_over_pairs(schedule, rows, width, items):
    spec = SketchSpec(rows, width, schedule, 3, bytes([rows]) * 32)
    rounds = [dense(spec, round, items) for round in range(3)]
    assert all(
        (sketches**2).sum(axis=1).max() == rows == np.abs(sketches).sum(axis=1).min()
        for sketches, _ in rounds
    )
    squares = [((s[:, None] - s[None]) ** 2).sum(axis=2).max() for s, _ in rounds]
    found = certify(hashes for _, hashes in rounds)
    event = gaussian(rows, "replace-one", collisions=found)
    assert event.l2_sensitivity**2 == pytest.approx(max(squares))
    assert 2 * rows <= max(squares) <= 4 * rows
    # cells of opposite signs
    twice = [(np.abs(s[:, None] - s[None]) == 2).sum(axis=2).max() for s, _ in rounds]
    assert found.opposite == max(twice)


def test_certified_value_of_a_large_domain():
    spec = SketchSpec(5, 1000, "shared", 1, bytes(32))
    ids, hashes = np.arange(100_000, dtype=np.uint64), spec.round_hash(0)
    words = kernels.hash_words(hashes.location, ids)
    found = certify([(kernels.locations(words, 1000), kernels.signs(words, 0))])
    assert found.excess in (2, 3, 4)  # 3, 3, 3 for the seeds of the design study
    assert gaussian(5, "replace-one", collisions=found).l2_sensitivity in (14**0.5, 4.0, 18**0.5)


def test_certificates_of_special_cases():
    row = np.array([[1, 1, 1]])
    assert certify([(row * 0, row)]) == (0, 0)  # all items look the same
    assert certify([(row[:, :1], row[:, :1])]) == (0, 0)  # one item
    assert certify([(row * 0, np.array([[1, -1, 1]]))]) == (1, 1)
    assert certify([(np.zeros((2, 2), int), np.array([[1, -1], [1, -1]]))]) == (2, 2)
    assert certify([(np.zeros((2, 2), int), np.array([[1, -1], [1, 1]]))]) == (1, 0)
    for bad in ([], [(row, row[:, :2])], [(row[0], row[0])], [(row[:, :0], row[:, :0])]):
        with pytest.raises(InvalidInputError):
            certify(bad)


def test_moving_to_another_round_costs_two_rows_a_row():
    spec = SketchSpec(6, 5, "hybrid", 2, bytes(32))
    here, there = (dense(spec, round, 20)[0] for round in range(2))
    apart = (here**2).sum(axis=1)[:, None] + (there**2).sum(axis=1)[None]  # disjoint releases
    assert (apart == 2 * 6).all()
    event = gaussian(6, "replace-one", collisions=(0, 0))
    assert event.l2_sensitivity**2 == pytest.approx(2 * 6)
    assert event.l2_sensitivity <= gaussian(6, "replace-one").l2_sensitivity


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.data())
@settings(max_examples=40)
def test_no_client_exceeds_the_sensitivity(participations, per_release, max_items, data):
    """Any items in any rounds, rounds added up in any way that the event allows."""
    per_release = min(per_release, participations)
    rows, width, items = 3, 4, 12
    sketches = dense(SketchSpec(rows, width, "shared", 1, bytes(32)), 0, items)[0]

    def contribution():
        total = np.zeros((participations, rows * width), np.int64)
        room = [per_release] * participations
        for _ in range(participations):
            release = data.draw(st.sampled_from([j for j, left in enumerate(room) if left]))
            room[release] -= 1
            chosen = data.draw(st.lists(st.integers(0, items - 1), max_size=max_items, unique=True))
            total[release] += sketches[chosen].sum(axis=0)
        return total

    one, other = contribution(), contribution()
    event = gaussian(
        rows, max_items=max_items, participations=participations, per_release=per_release
    )
    assert (one**2).sum() <= event.l2_sensitivity**2 + 1e-9
    assert ((one - other) ** 2).sum() <= replace(
        event, relation="replace-one"
    ).l2_sensitivity ** 2 + 1e-9


def test_sensitivities_by_schedule():
    assert gaussian(5).l2_sensitivity == pytest.approx(5**0.5)
    assert gaussian(5, "replace-one").l2_sensitivity == pytest.approx(2 * 5**0.5)
    assert gaussian(5, participations=7).l2_sensitivity == pytest.approx(35**0.5)
    assert gaussian(5, participations=7, per_release=7).l2_sensitivity == pytest.approx(7 * 5**0.5)
    assert gaussian(
        5, "replace-one", participations=7, per_release=7
    ).l2_sensitivity == pytest.approx(14 * 5**0.5)
    split = gaussian(5, participations=7, per_release=3)
    assert split.releases == [(3, 2), (1, 1)] and split.num_releases == 3
    assert split.l2_sensitivity == pytest.approx((5 * 19) ** 0.5)
    clip = default_clip_norm(5, 1000, 20)
    assert clip**2 == pytest.approx(100 * (1 + 4 * math.sqrt(2 / 5000)))
    assert gaussian(5, max_items=20, clip_norm=clip).l2_sensitivity == pytest.approx(clip)
    assert gaussian(5, "replace-one", max_items=20, clip_norm=clip).l2_sensitivity == pytest.approx(
        2 * clip
    )
    assert gaussian(5, "add-remove", max_items=20, clip_norm=clip).l2_sensitivity == pytest.approx(
        (clip**2 + 1) ** 0.5
    )
    assert gaussian(5, max_items=20).l2_sensitivity == pytest.approx(20 * 5**0.5)
    assert not gaussian(5, clip_norm=3.0).is_clipped  # one item has norm sqrt 5


# ---- trust, records, errors ----


@pytest.mark.parametrize(
    "event",
    [
        gaussian(5),
        gaussian(5, "add-remove", variance=2.5, total_variation=2.0**-90),
        skellam(16, "replace-one", variance=1 / 3, collisions=Collisions(3, 2), participations=4),
        skellam(16, max_items=20, clip_norm=18.1, participations=6, per_release=2),
        gaussian(5, trust="distributed"),
    ],
)
def test_events_survive_json(event):
    assert Event.from_dict(json.loads(json.dumps(event.to_dict()))) == event


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "fedtally-event/2"},
        {"unknown": 1},
        {"mechanism": "laplace"},
        {"relation": "substitution"},
        {"trust": "nobody"},
        {"collisions": [1, 2, 3]},
        {"collisions": 3},
        {"rows": 2.5},
    ],
)
def test_events_that_are_not_known_are_refused(change):
    with pytest.raises(InvalidInputError):
        Event.from_dict(gaussian(5).to_dict() | change)
    for bad in (None, {}, {"schema": SCHEMA}):
        with pytest.raises(InvalidInputError):
            Event.from_dict(bad)


def test_trust_is_the_mechanism_s_own_or_of_two_servers():
    assert (gaussian(5).trust, skellam(5).trust) == (Trust.CENTRAL, Trust.DISTRIBUTED)
    assert gaussian(5, trust="central") == gaussian(5) != gaussian(5, trust="distributed")
    assert gaussian(5, trust="distributed").l2_sensitivity == gaussian(5).l2_sensitivity
    assert skellam(5, trust=Trust.DISTRIBUTED) == skellam(5)


@pytest.mark.parametrize("event", [gaussian(5, variance=2.0), skellam(5, variance=2.0)])
def test_a_record_without_trust_means_the_mechanism_s_own(event):
    record = event.to_dict()
    assert record.pop("trust") == event.trust
    assert Event.from_dict(record) == event


def test_events_import_no_accountant():
    heavy = "{'scipy', 'dp_accounting', 'sqlalchemy'}"
    code = f"import sys, fedtally.privacy.events; sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "entry", ["mechanism", "rows", "relation", "max_items", "participations", "total_variation"]
)
def test_a_record_without_an_entry_is_not_read_as_the_cheapest_event(entry):
    record = skellam(
        5, variance=100.0, participations=3, max_items=2, total_variation=1e-12
    ).to_dict()
    assert Event.from_dict(record).to_dict() == record
    del record[entry]
    with pytest.raises(InvalidInputError, match=f"an event lacks {entry};"):
        Event.from_dict(record)


@pytest.mark.parametrize("collisions", [5, (1,), (2, 1, 9), "21"])
def test_collisions_are_two_integers(collisions):
    with pytest.raises(InvalidInputError, match="collisions must be two integers"):
        gaussian(5, "replace-one", variance=1.0, collisions=collisions)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gaussian(0), "rows must be at least 1"),
        (lambda: gaussian(5, variance=0.0), "variance must be at least"),
        (lambda: gaussian(5, variance=math.inf), "variance must be finite"),
        (lambda: gaussian(5, clip_norm=-1.0), "clip_norm must be at least"),
        (lambda: gaussian(5, max_items=0), "max_items must be at least 1"),
        (lambda: gaussian(5, per_release=2), "per_release must be at most 1"),
        (lambda: gaussian(5, total_variation=2.0), "total_variation must be at most"),
        (lambda: gaussian(5, honest_survivors=3), "honest_survivors belongs to skellam"),
        (lambda: skellam(5, honest_survivors=None), "honest_survivors must be an integer"),
        (lambda: skellam(5, honest_survivors=0), "honest_survivors must be at least 1"),
        (
            lambda: gaussian(5, "add-remove", trust="distributed"),
            "add-remove needs the number of clients with noise",
        ),
        (lambda: skellam(5, trust="central"), "trust in skellam noise is distributed"),
        (lambda: gaussian(5, trust="both"), "trust must be central or distributed"),
        (lambda: Event("laplace", 5, "zero-out"), "mechanism must be rounded-gaussian, "),
        (lambda: Event("skellam", 5, "bounded"), "relation must be zero-out, "),
        (lambda: gaussian(5, collisions=(1, 1)), "collisions are certified for replace-one"),
        (
            lambda: gaussian(5, "replace-one", collisions=(1, 1), max_items=2),
            "collisions are certified for",
        ),
        (lambda: gaussian(5, "replace-one", collisions=(6, 1)), "opposite must be at most 5"),
        (lambda: gaussian(5, "replace-one", collisions=(1, 2)), "excess must be at most 1"),
        (lambda: default_clip_norm(5, 0, 2), "width must be at least 1"),
    ],
)
def test_errors(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


@pytest.mark.parametrize(
    "charge",
    [
        lambda event: event.shifts,
        lambda event: event.round_square,
        lambda event: event.l2_sensitivity,
        lambda event: countable(event.relation),
        lambda event: event.under(event.relation),
    ],
)
def test_a_relation_that_no_table_names_is_charged_as_none_of_the_others(charge):
    unknown = str.__new__(Relation, "swap")
    unknown._name_, unknown._value_ = "SWAP", "swap"
    event = gaussian(5)
    object.__setattr__(event, "relation", unknown)
    with pytest.raises((KeyError, InvalidInputError)):
        charge(event)


def test_the_tables_name_every_relation():
    numbers = {relation: (relation.contributions, relation.hides_number) for relation in Relation}
    assert numbers == {
        Relation.ZERO_OUT: (1, False),
        Relation.REPLACE_ONE: (2, False),
        Relation.ADD_REMOVE: (1, True),
    }
