"""The experiment on releases: its figures are read and predicted, it measures, and says what is
best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import recovery, releases
from experiments.curves import Release, best_releases, errors_by_law

from fedtally.errors import InvalidInputError
from fedtally.privacy.events import Event

SMALL = ("--domain-size", 2000, "--clients", 50_000, "--repeats", 1)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        releases.command, [str(argument) for argument in arguments], catch_exceptions=False
    )


def test_every_figure_of_the_study_is_read() -> None:
    cells = releases.study()
    assert len(cells) == 10
    assert {tuple(cell.figures["median"]) for cell in cells} == {releases.BATCHES}
    assert sum(len(cell.figures["joint"]) for cell in cells) == 62
    [zipf] = [cell for cell in cells if cell.law == "zm"]
    assert zipf[1:4] == (16, 500, 1.0)
    assert (zipf.figures["median"][32], zipf.figures["joint"][64]) == (24, 15)
    assert all(
        cell.figures["joint"][m] < cell.figures["median"][m]
        for cell in cells
        for m in cell.figures["joint"]
    )


@pytest.mark.parametrize(
    "index",
    [i if i % 3 == 0 else pytest.param(i, marks=pytest.mark.matrix) for i in range(10)],
)
def test_the_study_is_predicted(index: int) -> None:
    """Joint recovery: every figure within 20 %, standard errors of 1 to 7 % and two digits; its
    best within 2 times."""
    cell = releases.study()[index]
    release = Release(
        Event("rounded-gaussian", cell.rows, "zero-out"), cell.epsilon, 1e-6, 1_000_000, 64
    )
    law = recovery.law(cell.law, 100_000)
    figures = cell.figures["joint"]
    predicted = errors_by_law(release, cell.width, law, batches=figures)
    for m, figure in figures.items():
        assert predicted[m].linf / recovery.UNIT == pytest.approx(figure, rel=0.2)
    best = min(figures, key=lambda m: figures[m])
    assert (
        best / 2 <= best_releases(errors_by_law(release, cell.width, law)).num_batches <= 2 * best
    )


def test_without_collisions_the_error_is_that_of_the_noise() -> None:
    """Three rows: root 3 times the largest of 50 medians of three normals is between 1.5 and 5 with
    probability .998.

    One is above 5 where two of three are above 5 / root 3 on one side, 2.3e-5; below 1.5 with .805.
    """
    release = Release(Event("rounded-gaussian", 3, "zero-out"), 1.0, 1e-6, 6400, 64)
    found = releases.measure(np.full(50, 0.02), release, 1 << 16, (1, 5), (0, 0))
    for m in (1, 5):
        stddev = 4.2247 * m**0.5 / 6400
        assert 1.5 < found["median"][m] / stddev < 5.0


def test_table_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    only = ("--law", "1.1", "--size", "5x2000", "--batches", 1, "--batches", 6, "--batches", 64)
    result = run(*SMALL, *only, "--output", path)
    assert result.exit_code == 0
    lines = path.read_text().splitlines()
    names = [name.strip('"') for name in lines[0].split(",")]
    assert len(lines) == 4
    assert "joint predicted" in names
    assert [line.split(",")[names.index("batches")] for line in lines[1:]] == ["1", "6", "64"]
    assert result.output.count("best at") == 2
    assert "by the norm of the tail" in result.output


def test_quick_takes_one_cell() -> None:
    result = run(*SMALL, "--quick", "--batches", 2)
    assert result.exit_code == 0
    assert "median of 1 campaigns" in result.output
    assert result.output.count("best at 2 of 2") == 2


def test_unknown_cells_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="the study has no such cell"):
        run("--law", "7")
    with pytest.raises(InvalidInputError, match="must end in"):
        run("--output", tmp_path / "table.xlsx")
