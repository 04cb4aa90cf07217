"""Ids with heavy cells, found by halves, against a look at each; and fits that use them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.recovery.decoders.joint import finder, joint, joint_intervals
from fedtally.recovery.decoders.joint.finder import Finder
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.joint.joint_intervals import kappa_of
from fedtally.recovery.intervals import make_intervals
from fedtally.recovery.linear_system import Candidates, Landed
from fedtally.sketch import CountSketch, Schedule, SketchSpec

DOMAIN = IntegerRange(70_001, 70_000 + (1 << 20))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(2, 7),
    width=st.one_of(st.integers(2, 70), st.sampled_from([64, 507, 1000])),
    bits=st.integers(1, 3),
    need=st.integers(0, 4),
    first=st.sampled_from([0, 1, 65_535, 1_000_000, 2**40 + 12_345, 2**64 - 90_000]),
    count=st.sampled_from([1, 17, 65_536, 90_000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_halves_find_what_a_look_at_each_id_finds(
    backend, rows, width, bits, need, first, count, seed
):
    """Values are whole numbers, so that every sum is exact, whatever its order."""
    rng = np.random.default_rng(seed)
    tables = rng.integers(0, 2**32, (rows, 8, 256), dtype=np.uint32)
    values = np.rint(rng.normal(-1.5, 2.0, (rows, width, 1 << bits))).astype(np.float32)
    need = min(need, rows)
    least = float(rng.integers(0, 3)) if need else 0.0
    halves = kernels.Halves(tables, width, bits, first, count)
    expected = reference.heavy(tables, values, need, least, first, count)
    assert np.array_equal(halves.find(values, need, least), expected)


def test_halves_find_more_than_they_have_room_for(backend, monkeypatch):
    monkeypatch.setattr(kernels.halves, "_ROOM", 3)
    rng = np.random.default_rng(0)
    tables = rng.integers(0, 2**32, (3, 8, 256), dtype=np.uint32)
    values = np.ones((3, 40, 2), np.float32)
    found = kernels.Halves(tables, 40, 1, 5, 100_000).find(values)
    assert np.array_equal(found, np.arange(5, 100_005, dtype=np.uint64))


def test_the_ids_that_halves_look_at_are_counted():
    """Of 2^20 ids a heavy cell of 64 holds 2^14, half of them with its sign.

    A key of a row has 2^9 of the 2^16 ids of a half. Half a tile more counts for each, and no less
    than a tile of 16.
    """
    tables = np.random.default_rng(0).integers(0, 2**32, (4, 8, 256), dtype=np.uint32)
    halves = kernels.Halves(tables, 64, 1, 0, 1 << 20)
    values = np.full((4, 64, 2), -1.0, np.float32)
    values[1, 5, 0] = values[3, 7, 1] = values[3, 8, 1] = 1.0
    each = (512 + 8) / 512
    assert halves.looked_at(values) in (each * (3 << 13), 4 << 20)
    # Two of four rows are heavy: one of them is among the first three.
    assert halves.looked_at(values, 2) in (each * (1 << 13), 4 << 20)
    # A key of a cell of 1024, with three signs, has 8 ids of a half: they count as a tile.
    fine = kernels.Halves(tables, 1024, 3, 0, 1 << 20)
    values = np.full((4, 1024, 8), -1.0, np.float32)
    values[0, 5, 0] = 1.0
    assert fine.looked_at(values) in (2 * (1 << 7), 4 << 20)


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.zeros((3, 40, 2))},
        {"values": np.zeros((3, 40, 4), np.float32)},
        {"need": 4},
        {"least": 1.0},
    ],
)
def test_halves_refuse_what_does_not_fit(change):
    tables = np.zeros((3, 8, 256), np.uint32)
    asked = {"values": np.zeros((3, 40, 2), np.float32)} | change
    with pytest.raises(InvalidInputError):
        kernels.Halves(tables, 40, 1, 0, 10).find(**asked)


def campaign(rounds: int = 1, width: int = 150, clients: int = 20_000) -> list[CountSketch]:
    """The sums of a power law over a large range, too small for it: the support fills."""
    spec = SketchSpec(5, width, Schedule.parse("hybrid"), rounds, bytes(32))
    rng = np.random.default_rng(7)
    law = np.arange(1, 4001) ** -1.0
    ids = DOMAIN.ids(0, DOMAIN.size)[rng.permutation(DOMAIN.size)[: len(law)]]
    sketches = []
    for number in range(rounds):
        sketches.append(CountSketch(spec, number))
        sketches[-1].add(ids, rng.multinomial(clients, law / law.sum()))
    return sketches


def answers(sketches: list[CountSketch]) -> list[object]:
    decoder = JointDecoder(sketches, DOMAIN)
    found, fit = make_intervals(decoder, sketches, DOMAIN), decoder.fit
    low, high = found.at(fit.support.ids)
    return [
        *(fit.support.positions.tolist(), fit.support.values.tolist(), fit.residual.tolist()),
        *(fit.threshold, fit.scale, fit.most, found.kappa, found.predicted_linf),
        *(low.tolist(), high.tolist()),
    ]


@pytest.mark.skipif(kernels.backend() == "numpy", reason="NumPy looks at all candidates")
@pytest.mark.parametrize(("rounds", "width"), [(1, 150), (2, 150), (3, 128), (1, 1500)])
def test_fits_by_cells_are_those_by_looks_at_all_candidates(monkeypatch, rounds, width):
    """Bit for bit, for supports that are full and for one that is not; also of the largest only."""
    sketches, used = campaign(rounds, width), []
    plain, suits = Finder.largest, Finder.suits

    def largest(self, *asked):
        used.append(plain(self, *asked) is not None)
        return plain(self, *asked)

    monkeypatch.setattr(Finder, "largest", largest)
    monkeypatch.setattr(finder, "_FIRST_TRY", 1 << 12)
    # Of so few candidates a look costs less: here searches cost nothing, so that there are many.
    monkeypatch.setattr(finder, "_PREPARED", 1)
    monkeypatch.setattr(finder, "_PER_VALUE", 0.01)
    by_cells = answers(sketches)
    assert sum(used) > 8
    monkeypatch.setattr(Finder, "suits", staticmethod(lambda *_: False))
    # A look at a list may miss an item that hardly stands out (`Kept`): all are looked at here.
    monkeypatch.setattr(joint, "LARGE", 1 << 40)
    used.clear()
    assert answers(sketches) == by_cells
    assert not used
    assert suits(Landed(sketches[0].spec, sketches), Candidates(DOMAIN))


@pytest.mark.parametrize(
    ("rounds", "schedule", "domain", "suits"),
    [
        (3, "hybrid", IntegerRange(5, 1 << 21), True),
        (4, "hybrid", IntegerRange(5, 1 << 21), False),
        (1, "fresh", IntegerRange(5, 1 << 21), False),
        (1, "hybrid", IntegerRange(5, 1 << 20), False),
        (1, "hybrid", IntegerRange(-5, 1 << 21), False),
    ],
)
def test_other_fits_look_at_all_candidates(rounds, schedule, domain, suits):
    """Of more batches, of batches with hashes of their own, of few candidates; across 2^64."""
    spec = SketchSpec(3, 40, Schedule.parse(schedule), rounds, bytes(32))
    sketches = [CountSketch(spec, number) for number in range(rounds)]
    for sketch in sketches:
        sketch.add(domain.ids(0, 10), np.full(10, 5))
    by_cells = suits and kernels.backend() != "numpy"
    assert Finder.suits(Landed(spec, sketches), Candidates(domain)) == by_cells


@pytest.mark.skipif(kernels.backend() == "numpy", reason="NumPy looks at all candidates")
def test_a_search_that_costs_more_than_a_look_is_given_up(monkeypatch):
    """Searches in vain take one look in all, however many there are; a good one gives time back."""
    monkeypatch.setattr(finder, "_FIRST_TRY", 1 << 12)
    [sketch] = campaign()
    landed = Landed(sketch.spec, [sketch])
    search = Finder(landed, Candidates(DOMAIN))
    spent = []
    affordable = Finder._affordable

    def counted(self, values, need, floor, budget):
        spent.append(3 * 2.8 * budget / (DOMAIN.size * 5))  # three rows of each are read
        return affordable(self, values, need, floor, budget)

    monkeypatch.setattr(Finder, "_affordable", counted)
    cells = landed.frequencies * [1.0, -1.0]
    low = float(np.quantile(np.abs(cells), 0.3))
    asked = []

    def never(positions, at):
        asked.append((len(positions), at))
        return 0.0

    assert search.looks == 0.0
    assert search.largest(lambda at: cells - at, 3, low, never) is None
    assert 0.1 < sum(spent) <= 1.0
    assert search.looks == pytest.approx(1.0 + sum(spent))
    floors = [at for _, at in asked]
    assert floors == sorted(floors, reverse=True)
    assert floors[-1] > low
    before = list(spent)
    assert search.largest(lambda at: cells - at, 3, low, never) is None
    assert spent == before
    # Nothing exceeds so high a floor: no id is looked at, and there is nothing to ask.
    high = 2 * float(np.abs(cells).max())
    search = Finder(landed, Candidates(DOMAIN))
    assert search.largest(lambda at: cells - at, 3, high, never).tolist() == []
    # Where all are needed, a search that costs too much does not begin.
    assert search.largest(lambda at: cells - at, 3, low, None) is None
    # Every cell is heavy, however high the floor.
    assert search.largest(lambda at: np.abs(cells) + 1, 3, low, never) is None


@pytest.mark.skipif(kernels.backend() == "numpy", reason="NumPy looks at all candidates")
def test_kappa_by_a_test_of_contenders_is_that_by_a_list(monkeypatch):
    """Where searches cost little, those that compete with added items are not listed."""
    monkeypatch.setattr(finder, "_PREPARED", 1)
    monkeypatch.setattr(finder, "_PER_VALUE", 0.01)
    monkeypatch.setattr(joint_intervals, "_TIPPED", 100.0)
    sketches = campaign(1, 1500, 200_000)
    fit = JointDecoder(sketches, DOMAIN).fit
    by_test = kappa_of(fit)
    assert "were added" in by_test.source
    contenders = fit.contenders(1.5)
    assert contenders.size == DOMAIN.size
    heavy = contenders.may_be_heavy(np.arange(DOMAIN.size))
    monkeypatch.setattr(joint, "_LISTED_LOOKS", -1.0)
    listed = fit.contenders(1.5)
    assert np.array_equal(listed.ids(np.arange(listed.size)), fit.candidates.ids(heavy))
    assert listed.size < DOMAIN.size / 5
    monkeypatch.setattr(Finder, "suits", staticmethod(lambda *_: False))
    monkeypatch.setattr(joint, "LARGE", 1 << 40)
    assert kappa_of(JointDecoder(sketches, DOMAIN).fit) == by_test
