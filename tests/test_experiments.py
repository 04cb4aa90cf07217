"""The experiments run, on data made here, and measure what they say."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import figure2, figure3, hashing, rounds


def run(command: click.Command, *arguments: object) -> str:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    law = np.arange(1, 3001) ** -1.2
    np.savez(tmp_path / figure3.FILE, pmf=law / law.sum())
    return tmp_path


def test_rounds_are_of_equal_size_and_follow_the_law() -> None:
    drawn = rounds.draw(np.array([0.5, 0.5, 0.0]), 1009, 10, np.random.default_rng(0))
    assert drawn.sum(axis=1).tolist() == [100] * 10
    assert drawn[:, 2].sum() == 0
    assert abs(drawn[:, 0].sum() - 500) < 5 * np.sqrt(1000) / 2  # five standard deviations


@pytest.mark.parametrize("schedule", ["shared", "fresh", "hybrid", "batched:2"])
def test_wide_sketches_are_exact(schedule: str) -> None:
    held = np.random.default_rng(0).integers(0, 9, (4, 20))
    estimates = rounds.estimate(held, rows=5, width=1 << 20, schedule=schedule, seed=bytes(32))
    assert estimates.tolist() == held.sum(axis=0).tolist()


def test_figure3_writes_table_and_chart(data: Path) -> None:
    pytest.importorskip("matplotlib")
    table, chart = data / "table.csv", data / "chart.png"
    printed = run(
        figure3.command, "--data", data, "--clients", 5000, "--repeats", 1, "--output", table, "--plot", chart
    )
    assert "3,000 items, 5,000 clients in 10 rounds" in printed
    assert [line.split(",")[0] for line in table.read_text().splitlines()[1:]] == ['"hybrid"', '"fresh"', '"shared"']
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_figure3_counts_what_exceeds_the_bound(data: Path) -> None:
    law, rng = figure3.load_law(data), np.random.default_rng(0)
    assert figure3.count_bad(law, figure3.Point("hybrid", 1 << 18, 0), 2000, 10, 5, rng) <= 1
    assert figure3.count_bad(law, figure3.Point("shared", 4, 0), 2000, 10, 1, rng) > 1000


def test_figure3_names_the_missing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTALLY_DATA", str(tmp_path))
    with pytest.raises(figure3.InvalidInputError, match="--data or the environment variable FEDTALLY_DATA"):
        figure3.load_law(None)


def test_output_of_unknown_format_is_refused_first(data: Path) -> None:
    with pytest.raises(figure3.InvalidInputError, match=r"must end in .csv or .parquet"):
        run(figure3.command, "--data", data, "--output", data / "table.xlsx")


def test_figure2_hybrid_beats_shared_on_homogeneous_rounds(tmp_path: Path) -> None:
    # Theorem 3: the error falls by about sqrt(10); half of it leaves room for 20 repeats.
    [row] = [
        {line["schedule"]: line["mean"] for line in figure2.measure((1.1,), (64,), 2000, 10, 5, repeats=20, seed=0)}
    ]
    assert float(str(row["hybrid"])) < 2 / np.sqrt(10) * float(str(row["shared"]))
    path = tmp_path / "table.parquet"
    assert "hybrid" in run(
        figure2.command, "--repeats", 1, "--domain-size", 500, "--width", 50, "-a", 2, "--output", path
    )
    assert path.read_bytes().startswith(b"PAR1")


def test_kolmogorov_smirnov_tells_shifted_samples_from_equal_ones() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 400))
    assert hashing.kolmogorov_smirnov(first, second) > 0.01
    assert hashing.kolmogorov_smirnov(first, second + 0.5) < 1e-6
    assert hashing.kolmogorov_smirnov(first, first) == 1.0
    assert hashing.kolmogorov_smirnov(np.arange(100.0), np.arange(100.0) + 30) == pytest.approx(
        1.74e-4, rel=0.01
    )  # by hand


def test_random_hashes_estimate_exactly_in_wide_sketches() -> None:
    vector = figure2.integer_zipf(1.0, 30)
    for schedule in hashing.SCHEDULES:
        errors = hashing.random_errors(vector, 4, 5, 1 << 16, schedule, 2, np.random.default_rng(0))
        assert errors.max() == 0.0


def test_hashing_prints_every_schedule() -> None:
    printed = run(hashing.command, "--repeats", 5, "--domain-size", 200, "-a", 1.1)
    assert all(schedule in printed for schedule in hashing.SCHEDULES)
    assert "smallest of 4 p-values" in printed
