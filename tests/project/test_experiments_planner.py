"""The experiments on the planner: cells are measured as they say, on small laws and on tables made
here."""

from __future__ import annotations

import csv
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import exceedance, planner, recovery, seeds

from fedtally.errors import InvalidInputError
from fedtally.plan import paper
from fedtally.plan.frequencies.pilot import Pilot
from fedtally.plan.paper import Size
from fedtally.sketch import SketchSpec

SMALL = ("--domain-size", 500, "--clients", 2000, "--pilots", 1, "--draws", 10, "--trials", 5)


def run(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(
        command, [str(argument) for argument in arguments], catch_exceptions=False
    )


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf8") as file:
        return list(csv.DictReader(file))


def cell(
    law: list[float], tau: float, recovery: str = "median", rows: int | None = 5
) -> planner.Cell:
    return planner.Cell("law", np.array(law), tau, recovery, rows, 1000, Pilot())


# ---- chosen over least sizes ----


def test_chosen_rows_are_compared_by_cells(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    found = run(
        planner.command,
        "--law",
        2,
        "--tau",
        0.05,
        "--decoder",
        "joint",
        "--rows",
        "chosen",
        *SMALL,
        "--output",
        path,
    )
    assert found.exit_code == 0
    [row] = read(path)
    rows, note = row["rows"].split()
    assert int(rows) in range(3, 17) and note == "(chosen)"
    cells = int(rows) * int(row["least"])
    worst = paper.rows_for(500, 0.1) * paper.width_minimax(0.05, 2000)
    assert float(row["minimax"]) == pytest.approx(worst / cells)
    assert row["verdict"] == "-"  # one pilot
    assert row["model range"] == f"{float(row['model']):.2f}-{float(row['model']):.2f}"


def test_cells_may_be_measured_in_processes() -> None:
    arguments = ("--law", 2, "--tau", 0.05, "--tau", 0.1, *SMALL)
    alone, together = (run(planner.command, *arguments, "--jobs", jobs) for jobs in (1, 2))
    assert alone.output == together.output
    assert len(alone.output.splitlines()) == 5  # one of each cell while it runs, and the table


def test_the_least_width_is_where_campaigns_begin_to_keep_tau(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Success that is known for every width: the search ends within 3 %, from any guess."""
    one = cell([1.0], 0.1)
    monkeypatch.setattr(
        planner.Cell, "within", lambda _self, _rows, width, seed: width >= 137 or seed % 10 > 1
    )
    for guess in (2, 100, 137, 4000):
        assert 137 <= one.least_width(5, guess, 100) <= 141
    assert one.suffices(5, 137, 100) and not one.suffices(5, 136, 100)


@pytest.mark.parametrize("decoder", ["median", "joint"])
def test_campaigns_keep_tau_or_do_not(decoder: str) -> None:
    one = cell([0.6, 0.4, 0.0, 0.0], 0.05, decoder)
    assert one.successes(5, 1 << 16, 3) == 3
    assert cell([0.01] * 100, 0.001).successes(5, 2, 5) == 0


def test_only_enough_work_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    one, work = cell([0.5, 0.5], 0.1), planner.Work(12, 10, 200)
    choice = planner.Choice(*(Size("model", 5, 100) for _ in range(3)), 1.0, 0.0)
    monkeypatch.setattr(planner, "choose", lambda _cell, _seed: choice)
    for least, successes, verdict in (
        (100, 200, "PASS"),
        (72, 170, "PASS"),
        (71, 200, "MISS"),
        (100, 169, "MISS"),
    ):
        monkeypatch.setattr(planner.Cell, "least_width", lambda *_, least=least: least)
        monkeypatch.setattr(planner.Cell, "successes", lambda *_, successes=successes: successes)
        assert planner.measure(one, work)["verdict"] == verdict
        assert planner.measure(one, work._replace(pilots=11))["verdict"] == "-"
        assert planner.measure(one, work._replace(trials=199))["verdict"] == "-"


def test_tables_are_read_and_fall(tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    births = {"name": ["b", "a", "b"], "year": [1, 1, 2], "count": [1, 5, 2]}
    parquet.write_table(pa.table(births), tmp_path / planner.NAMES)
    np.savez(tmp_path / recovery.TABLES["c4"][0], pmf=np.array([0.1, 0.6, 0.3]))
    assert planner.load_law("names", 9, tmp_path).tolist() == [0.625, 0.375]
    assert planner.load_law("c4", 9, tmp_path) == pytest.approx([0.6, 0.3, 0.1])
    assert len(planner.load_law("1.5", 9, None)) == 9
    (tmp_path / planner.NAMES).unlink()
    with pytest.raises(
        InvalidInputError, match=r"us_baby_names.parquet does not exist: .* with --data"
    ):
        planner.load_law("names", 9, tmp_path)
    with pytest.raises(
        InvalidInputError,
        match="table names is not part of the project: name its folder with --data",
    ):
        planner.load_law("names", 9, None)


def test_rows_that_are_no_number_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="--rows must be a number, or chosen, got 'all'"):
        run(planner.command, "--rows", "all")


# ---- exceedance ----


@pytest.mark.parametrize(("schedule", "number"), [("shared", 1), ("hybrid", 4), ("fresh", 4)])
@pytest.mark.parametrize("rows", [5, 6])
def test_predicted_shares_are_those_of_campaigns(schedule: str, number: int, rows: int) -> None:
    """Few clients, so that the lattice is exact: within 10 % and four standard errors."""
    law, spec = recovery.law("1.2", 5000), SketchSpec(rows, 100, schedule, number, bytes(32))  # type: ignore[arg-type]
    [row] = exceedance.compare("1.2", law, spec, 2000, (0.01,), repeats=40)
    assert row["predicted"] <= 0.01 < exceedance.exceedance(law, spec, 2000, row["size"] - 0.5)  # type: ignore[operator]
    assert abs(row["ratio"] - 1) < 0.1 + 4 * row["error"]  # type: ignore[operator]


def test_the_table_of_exceedance_has_a_line_for_each_share(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    few = (
        "--rows",
        5,
        "--rounds",
        1,
        "--rounds",
        2,
        "--domain-size",
        300,
        "--clients",
        500,
        "--repeats",
        1,
    )
    found = run(exceedance.command, "--law", 1.2, "--width", 20, *few, "--output", path)
    table = read(path)
    assert [(row["rounds"], row["schedule"]) for row in table[::2]] == [
        ("1", "shared"),
        ("2", "shared"),
        ("2", "hybrid"),
        ("2", "fresh"),
    ]
    missed = sum(row["verdict"] == "MISS" for row in table)
    assert f"{8 - missed} PASS, {missed} MISS" in found.output
    assert found.exit_code == (1 if missed else 0)


def test_seeds_compares_the_same_campaigns_under_both(tmp_path: Path) -> None:
    task = seeds.Task(seeds.CELLS[1], 3, 0, 0)
    [row], [again] = seeds.measure(task), seeds.measure(task)
    assert {**row, "seconds": 0} == {**again, "seconds": 0}
    assert 0 < row["chosen mean"] < 1 and 0 < row["first mean"] < 2
    [line] = seeds.summarise([row, row | {"first above": 1.0}])[
        "largest errors under the first draw of a seed, and under the most even of 8"
    ]
    assert line["draws"] == 2 and line["worst draw above, first"] == 1.0
    result = run(seeds.command, "--quick", "--output", tmp_path)
    assert result.exit_code == 0 and "8 x 13" in result.output
