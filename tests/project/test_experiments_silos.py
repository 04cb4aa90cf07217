"""The experiment on silos: what it reads and draws, that it runs, and that it judges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import silos

from fedtally.answer.result import Result
from fedtally.recovery.intervals import Limits


@pytest.fixture
def data(tmp_path: Path) -> Path:
    cells = np.random.default_rng(0).integers(1, 50, (30, 7))
    np.savez(tmp_path / "brightkite_us_grid.npz", counts=cells)
    years = np.arange(1960, 2020).repeat(2)
    names = np.tile(["Ann", "Bob"], 60)
    table = pa.table({"name": names, "year": years, "count": years - 1950})
    parquet.write_table(table, tmp_path / "us_baby_names.parquet")
    return tmp_path


def test_each_silo_has_a_law_of_its_own(data: Path) -> None:
    for name, items in (("zipf", 2000), ("places", 210), ("births", 2)):
        found = silos.laws(name, data)
        assert found.shape == (len(silos.PEOPLE), items)
        np.testing.assert_allclose(found.sum(axis=1), 1)
    places = silos.laws("places", data)
    assert ((places > 0).sum(axis=0) == 1).all()  # a cell is in one band of longitudes


def test_a_population_has_its_people() -> None:
    shares = silos.laws("zipf", None)
    parts = list(silos.draw(shares, 3, np.random.default_rng(0)))
    people = np.zeros((len(silos.PEOPLE), 3), int)
    for items, silo, round in parts:
        people[silo, round] += len(items)
    assert tuple(people.sum(axis=1)) == silos.PEOPLE
    assert people.std(axis=1).min() > 0  # rounds are unequal


def test_the_command_runs_and_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = silos.Found(0.01, [0.95, 0.96, 0.99])
    monkeypatch.setattr(silos, "repeat", lambda *_: wide)
    assert CliRunner().invoke(silos.command, ["--population", "zipf"]).exit_code == 0
    narrow = silos.Found(0.01, [0.95, 0.92, 0.99])
    monkeypatch.setattr(silos, "repeat", lambda *_: narrow)
    found = CliRunner().invoke(silos.command, ["--population", "zipf"])
    assert found.exit_code == 1 and "less than 93 %" in found.output


def test_limits_of_a_private_campaign_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three campaigns: 30, 270 and 5,700 limits; those of half the width fail."""
    shares = silos.laws("zipf", None)
    # 0.93 less four standard errors of 0.95, if the limits of one campaign were independent
    least = 0.93 - 4 * np.sqrt(0.95 * 0.05 / np.array([30, 270, 5700]))
    held = np.mean([silos.repeat(shares, 3, 2.0, [7, i]).held for i in range(3)], axis=0)
    assert (held >= least).all(), held
    limits = Result.limits

    def narrower(self: Result) -> Limits | None:
        found = limits(self)
        assert found is not None
        middle, reach = (found.low + found.high) / 2, (found.high - found.low) / 4
        return found._replace(low=middle - reach, high=middle + reach)

    monkeypatch.setattr(Result, "limits", narrower)
    assert silos.repeat(shares, 3, 2.0, [7, 0]).held[2] < least[2]
