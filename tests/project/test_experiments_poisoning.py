"""The experiment on lying clients: what it draws, what its attacks add, and that it judges."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import poisoning

from fedtally.campaign.screening import Consistency

SIZES = np.full(20, 1000)


@pytest.fixture(scope="module")
def hashes() -> poisoning.Hashes:
    return poisoning.Hashes.of(7)


def test_honest_sums_are_those_of_sketches(hashes: poisoning.Hashes) -> None:
    rng, items = np.random.default_rng(0), poisoning.law("i^-1.1")
    sums = poisoning.honest(rng, hashes.codes(items), SIZES)
    assert sums.shape == (20, poisoning.ROWS, poisoning.WIDTH)
    assert poisoning.possible(sums, SIZES) == list(range(20))
    held = items[np.random.default_rng(0).integers(0, len(items), 20_000, dtype=np.uint16)][:1000]
    alone = np.zeros((poisoning.ROWS, poisoning.WIDTH), np.int64)
    for row in range(poisoning.ROWS):
        np.add.at(alone[row], hashes.cells[row, held], hashes.signs[row, held])
    assert np.array_equal(sums[0], alone)
    whole = poisoning.honest(rng, poisoning.Hashes.of_histogram().codes(items), SIZES)
    assert (whole.sum(axis=2) == 1000).all() and whole.min() == 0
    noised = poisoning.honest(rng, hashes.codes(items), SIZES, 0.5)
    assert 450 < noised[:, :, -200:].var() < 650  # 500 of noise, and a few clients


def test_liars_add_what_the_page_says(hashes: poisoning.Hashes) -> None:
    rng, liars = np.random.default_rng(1), np.zeros(20, np.int64)
    liars[:2] = 1, 3
    cells, signs = hashes.cells, hashes.signs
    rows = np.arange(poisoning.ROWS)

    def added(attack: str, times: int, item: int) -> list[list[int]]:
        sums = np.zeros((20, poisoning.ROWS, poisoning.WIDTH), np.int64)
        poisoning.poison(rng, attack, times, sums, hashes, liars)
        return [np.unique(each[rows, cells[:, item]] * signs[:, item]).tolist() for each in sums]

    assert added("boost", 9, poisoning.RARE)[:3] == [[9], [27], [0]]
    assert added("negative", 5, poisoning.HEAVY)[:3] == [[-5], [-15], [0]]
    # 0.2 liars a cohort, who agree on 10 votes each: 2 a cohort, made odd where liars are odd
    assert added("botnet", 10, poisoning.RARE)[:3] == [[3], [3], [0]]
    assert added("swap", 10, poisoning.RARE)[:3] == [[2], [2], [0]]
    assert added("swap", 10, poisoning.HEAVY)[:3] == [[-1], [1], [0]]
    sums = np.zeros((20, poisoning.ROWS, poisoning.WIDTH), np.int64)
    poisoning.poison(rng, "scattered", 1, sums, hashes, liars)
    assert np.count_nonzero(sums[0]) == 10 * poisoning.ROWS and np.abs(sums).max() <= 3
    poisoning.poison(rng, "random", 1, sums, hashes, liars)
    assert np.abs(sums[0]).max() > 30_000 and not sums[2].any()


def test_a_strong_attack_is_found_and_a_weak_one_is_not() -> None:
    strong = poisoning.attacked("boost", 101, 0.05, 1, 0)
    assert strong["refused"] == 1 and strong["shift"] == pytest.approx(5.05, abs=0.01)
    weak = poisoning.attacked("lie", 1, 0.02, 1, 0)
    assert weak["refused"] == 0 and weak["shift under refuse"] == pytest.approx(0.02, abs=0.005)
    alone = poisoning.attacked("random", 1, 0.00005, 1, 0)
    assert (alone["refused"], alone["cohorts left out"]) == (0, 1)


def test_a_rate_of_false_alarms_has_a_bound() -> None:
    assert poisoning.upper_bound(0, 100_000) == pytest.approx(-np.log(0.05) / 1e5, rel=1e-3)
    assert poisoning.upper_bound(10, 100_000) == pytest.approx(1.7e-4, rel=0.01)  # by tables


def test_it_fails_where_honest_rounds_raise_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisoning, "SHAPES", (poisoning.Shape("i^-2", 8, 50),))
    monkeypatch.setattr(poisoning, "attack_cases", lambda: iter([("lie", 1, 0.01)]))
    arguments = ["--honest", "5", "--repeats", "1"]
    fine = CliRunner().invoke(poisoning.command, arguments)
    assert fine.exit_code == 0 and "0 false alarms in 5 honest rounds" in fine.output
    monkeypatch.setattr(Consistency, "is_consistent", False)
    found = CliRunner().invoke(poisoning.command, arguments)
    assert found.exit_code == 1 and "5 false alarms in 5 honest rounds" in found.output
