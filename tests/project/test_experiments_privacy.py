"""The check of errors under differential privacy: its figures, its noise, what it judges, and that
it runs."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import privacy, recovery

from fedtally.errors import InvalidInputError
from fedtally.privacy import accounting
from fedtally.privacy.mechanism import skellam
from fedtally.secagg.params import corrupt_clients
from fedtally.secagg.proposal import propose
from fedtally.sketch import CountSketch, SketchSpec

CELL = privacy.Cell("gowalla", 5, 1000, 1.0, 1.0)


def run(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(
        command, [str(argument) for argument in arguments], catch_exceptions=False
    )


def law(size: int) -> np.ndarray:
    weights = np.arange(1, size + 1.0) ** -1.2
    return weights / weights.sum()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small table of the four."""
    np.savez(
        tmp_path / "gowalla_us_grid.npz",
        reconstructed=(1e6 * law(400)).astype(np.int32).reshape(20, 20),
    )
    monkeypatch.setitem(
        recovery.TABLES, "gowalla", ("gowalla_us_grid.npz", "reconstructed", 20_000)
    )
    return tmp_path


def test_every_figure_of_the_study_is_read() -> None:
    cells = privacy.study(privacy.FIGURES)
    assert len({cell[:3] for cell in cells}) == 4 * 4
    assert all(cell.median > cell.joint > 0 for cell in cells)
    # Noise adds to the errors of the same tables without it; the paper's decoder hardly notices.
    without = {
        found[:1] + found[2:4]: found
        for found in recovery.study("tables")
        if found.schedule == "hybrid"
    }
    for cell in cells:
        bare = without[cell[:3]]
        assert cell.joint > 0.9 * bare.joint and 0.9 < cell.median / bare.median < 15
    assert set(privacy.FIGURES) == set(recovery.TABLES) > set(privacy.STAND_INS)


@pytest.mark.parametrize("rows", [5, 16])
def test_noise_is_calibrated(rows: int) -> None:
    event = privacy.calibrated("skellam", rows)
    assert event.l2_sensitivity == pytest.approx(np.sqrt(rows))
    assert 0.9999 < accounting.epsilon(event, privacy.DELTA).epsilon <= privacy.EPSILON
    # Per counter, over the Gaussian's: the design study.
    assert np.sqrt(event.noise_variance / rows) / 4.2247 == pytest.approx(
        {5: 0.9954, 16: 0.9997}[rows], abs=2e-4
    )


@pytest.mark.parametrize("clients", [1000, 999, 15_000])
def test_provision_is_that_of_a_proposed_cohort(clients: int) -> None:
    corrupt = corrupt_clients(0.05, clients)
    cohort = propose(clients, length=100, bits=16, corrupt=corrupt, max_dropout=0.05)
    assert privacy.provision(clients) == clients / (cohort.min_survivors - cohort.corrupt)


def test_noise_is_of_its_law_and_of_the_seed_alone() -> None:
    spec = SketchSpec(5, 10_000, "hybrid", 2, bytes(32))  # type: ignore[arg-type]

    def noised() -> np.ndarray:
        sketches = [CountSketch(spec, m) for m in range(2)]
        privacy.add_noise(sketches, skellam(90.0), np.random.default_rng(0))
        return np.stack([sketch.counters for sketch in sketches])

    found = noised()
    assert np.array_equal(found, noised())
    # 50,000 counters a sketch: six standard errors of variance (0.63 %), mean and correlation.
    assert found.var(axis=(1, 2)) == pytest.approx([90, 90], rel=0.038)
    assert np.all(np.abs(found.mean(axis=(1, 2))) < 6 * np.sqrt(90 / 50_000))
    assert abs(np.corrcoef(found[0].ravel(), found[1].ravel())[0, 1]) < 6 / np.sqrt(50_000)


def test_errors_are_those_of_the_noise_where_nothing_collides() -> None:
    """Few items in a wide sketch, joint recovery: the mean of 10 rounds of 5 rows."""
    held, stddev = np.full((10, 30), 200), 9.0
    runs = [
        privacy.run(held, 5, 1 << 11, stddev**2, np.random.default_rng(seed)) for seed in range(20)
    ]
    # An estimate of the total is off by sqrt(10 / 5) deviations; the largest of 30 by 2.32 times
    # that, with a standard deviation of 0.45: the mean of 20 is within six standard errors of 0.1.
    unit = np.sqrt(10 / 5) * stddev / held.sum()
    assert np.mean([one.joint for one in runs]) == pytest.approx(2.32 * unit, abs=0.6 * unit)
    assert np.mean([one.median for one in runs]) > np.mean([one.joint for one in runs])


def test_more_is_expected_with_a_provision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recovery.TABLES, "gowalla", ("", "", 20_000))
    exact, provided = (privacy.compare(CELL, law(400), more, True, 2, 0) for more in (False, True))
    more = privacy.provision(2000)
    assert 1.11 < more < 1.12
    for name in ("stddev", "expected"):
        assert provided[name] == pytest.approx(np.sqrt(more) * float(str(exact[name])))
    # The same campaigns with more noise. The largest errors of two draws differ by a tenth or so.
    assert 0.8 < float(str(provided["joint"])) / float(str(exact["joint"])) < 1.4
    # far below the study's, which is 1 here: there would be no noise
    assert exact["verdict"] == "MISS"


def test_without_tables_stand_ins_are_measured_and_not_judged() -> None:
    result = run(privacy.command, "--quick", "--table", "brightkite", "--table", "c4")
    assert result.exit_code == 0
    assert "c4 is left out: c4_count_surrogate.npz is not in the folder of --data" in result.output
    assert (
        "5 rows: variance 88.42, epsilon 1 at delta 1e-06 (zero-out, distributed trust"
        in result.output
    )
    assert "0 PASS, 0 MISS, 2 not judged" in result.output
    ratios = [
        float(line.split()[-2])
        for line in result.output.splitlines()
        if line.split()[0] == "brightkite"
    ]
    # close to the table, noise and all
    assert len(ratios) == 2 and all(0.75 < ratio < 1.25 for ratio in ratios)


def test_tables_are_read_judged_and_saved(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.csv"
    few = ("--data", data, "--repeats", 1, "--output", path)
    bad = run(privacy.command, *few)
    assert (bad.exit_code, "MISS," in bad.output) == (1, True)  # the figures are of another table
    assert all(f"{name} is left out" in bad.output for name in ("brightkite", "c4", "sentiment140"))
    lines = [line.split(",") for line in path.read_text().splitlines()]
    assert len(lines) == 1 + 4 * 2
    assert lines[0][3] == '"noise"' and {line[3] for line in lines[1:]} == {'"exact"', '"provided"'}
    joint = [line[7] for line in lines[1::2]]
    monkeypatch.setitem(privacy.FIGURES, "gowalla", " ".join(f"9999->{error}" for error in joint))
    good = run(privacy.command, *few)
    assert (good.exit_code, "8 PASS, 0 MISS, 0 not judged" in good.output) == (0, True)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no table to measure"):
        run(privacy.command, "--data", tmp_path)
    with pytest.raises(InvalidInputError, match=r"must end in .csv or .parquet"):
        run(privacy.command, "--quick", "--output", tmp_path / "table.xlsx")
