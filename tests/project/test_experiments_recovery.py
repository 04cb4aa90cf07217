"""The checks of joint recovery: what they draw, measure and judge, and that they say so when it is
not good enough."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("benchmarks", reason="run from the root of the repository: python -m pytest")

from benchmarks import joint as benchmark
from experiments import recovery, tradeoff

from fedtally.errors import InvalidInputError, UnreadableFileError

SMALL = ("--domain-size", 2000, "--clients", 20_000, "--repeats", 1)


def run(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(
        command, [str(argument) for argument in arguments], catch_exceptions=False
    )


def cell(joint: float, uncertain: bool = False) -> recovery.Cell:
    return recovery.Cell("zm", "alike", 5, 200, "hybrid", 1.0, joint, uncertain)


def campaign(median: float = 1.0, joint: float = 0.0, exact: bool = False) -> recovery.Run:
    return recovery.Run(median, joint, exact, 0.0)


def test_every_figure_of_the_study_is_read() -> None:
    grid = recovery.study("grid")
    assert len(grid) == 3 * 22
    assert len({found[:5] for found in grid}) == len(grid)
    assert sum(found.uncertain for found in grid) == 3
    [light] = [found for found in grid if found[:5] == ("3", "alike", 5, 200, "shared")]
    assert (light.median, light.joint, light.uncertain) == (0.11, 0.0058, True)
    assert len(recovery.study("rounds")) == 15
    tables = recovery.study("tables")
    assert len(tables) == 4 * 4 + 2
    assert all(found.median > found.joint for found in [*grid, *recovery.study("rounds"), *tables])


@pytest.mark.parametrize(
    ("study", "runs", "expected"),
    [
        (cell(0.01), [campaign(joint=0.0141)] * 5, True),  # 1.4 x .01 + 1/1000 = .015
        (cell(0.01), [campaign(joint=0.0151)] * 5, False),
        # the median counts
        (cell(0.01), [campaign(joint=0.01)] * 3 + [campaign(joint=9.0)] * 2, True),
        (cell(0.0), [campaign(joint=0.0009, exact=True)] * 4 + [campaign(joint=9.0)], True),
        (cell(0.0), [campaign(joint=0.0009, exact=True)] * 3 + [campaign(joint=0.0009)] * 2, False),
        (cell(0.0), [campaign(joint=0.0011, exact=True)] * 5, False),
        (cell(0.5, uncertain=True), [campaign(median=0.1, joint=0.119)] * 5, True),
        (cell(0.5, uncertain=True), [campaign(median=0.1, joint=0.121)] * 5, False),
    ],
)
def test_verdicts(study: recovery.Cell, runs: list[recovery.Run], expected: bool) -> None:
    assert recovery.passes(study, runs, clients=1000) == expected


def test_rounds_are_drawn_as_they_are_called() -> None:
    rng, uniform = np.random.default_rng(0), np.full(50, 0.02)
    once = recovery.draw(uniform, 100_000, "once", rng)
    assert (np.count_nonzero(once, axis=0) == 1).all()
    assert once.sum(axis=1).tolist() == [10_000] * 10
    for kind, spread in (("alike", 0.0), ("cv=0.5", 0.5), ("cv=2", 2.0)):
        held = recovery.draw(np.full(5000, 1 / 5000), 10**8, kind, rng)
        assert held.sum(axis=1).tolist() == [10**7] * 10
        # 50,000 counts of mean 2000: Poisson adds 1/2000 to cv^2. The sample variance of Gamma
        # variables has a relative sd of sqrt((2 + 6 cv^2) / 50,000), 2.3 % for cv = 2; equal rounds
        # add 1.8 %: five times both together.
        assert np.var(held) / 2000**2 == pytest.approx(spread**2 + 1 / 2000, rel=0.15)


def test_a_wide_sketch_is_exact_by_both_decoders() -> None:
    held = np.random.default_rng(0).integers(0, 9, (4, 30))
    found = recovery.run(held, 5, 1 << 14, "fresh", bytes(32))
    assert found.exact
    assert (found.median, found.joint) == (0.0, pytest.approx(0.0, abs=1e-12))


def test_errors_are_shares_of_all_clients() -> None:
    held = np.zeros((2, 50), np.int64)
    held[0, 7] = 60
    held[1, 3] = 40
    found = recovery.run(held, 3, 1, "shared", bytes(32))
    # The cell of each row holds 60 + 40 or 60 - 40. The heavier item is off by 40, the lighter by
    # 60, others by what it holds.
    assert round(found.median, 12) in (0.6, 1.0)
    assert not found.exact


def test_recovery_compares_and_saves(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    result = run(
        recovery.command, *SMALL, "--part", "grid", "--law", "zm", "--width", 200, "--output", path
    )
    assert result.exit_code == 0
    assert "0 PASS, 0 MISS, 6 not judged" in result.output  # other sizes than the study's
    lines = path.read_text().splitlines()
    assert len(lines) == 7
    errors = [[float(number) for number in line.split(",")[5:8:2]] for line in lines[1:]]
    assert all(0 < joint < median for median, joint in errors)


def test_recovery_fails_where_the_bar_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SIZE", 2000)
    monkeypatch.setattr(recovery, "CLIENTS", 20_000)
    only = ("--part", "grid", "--law", "2", "--rows", 5, "--width", 1000, "--schedule", "hybrid")
    good = run(recovery.command, *SMALL, *only)
    assert (good.exit_code, "1 PASS, 0 MISS" in good.output) == (0, True)
    # Now the study's sketch is narrow, and its figure that of a wide one.
    figures = "2 alike 5 1000 . . 120->.16".replace("5 1000", "3 20")
    monkeypatch.setitem(recovery.FIGURES, "grid", figures)
    bad = run(recovery.command, *SMALL, "--part", "grid")
    assert (bad.exit_code, "0 PASS, 1 MISS" in bad.output) == (1, True)


def test_recovery_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="name their folder with --data"):
        run(recovery.command, "--part", "tables")
    with pytest.raises(InvalidInputError, match=re.escape("gowalla_us_grid.npz with --data")):
        run(recovery.command, "--part", "tables", "--data", tmp_path)
    with pytest.raises(InvalidInputError, match="the study has no such cell"):
        run(recovery.command, "--part", "grid", "--width", 333)


@pytest.mark.parametrize(
    ("name", "file"),
    [("gowalla", "gowalla_us_grid.npz"), ("sentiment140", "sentiment140_words.parquet")],
)
def test_a_damaged_table_is_refused(tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / file).write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(UnreadableFileError, match="get it again"):
        recovery.load_table(name, tmp_path)


def test_tables_are_read_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = (1e5 * np.arange(1, 401.0) ** -1.2).astype(np.int32).reshape(20, 20)
    np.savez(tmp_path / "gowalla_us_grid.npz", reconstructed=counts)
    monkeypatch.setitem(
        recovery.TABLES, "gowalla", ("gowalla_us_grid.npz", "reconstructed", 50_000)
    )
    assert recovery.load_table("gowalla", tmp_path) == pytest.approx(
        counts.reshape(-1) / counts.sum()
    )
    only = (
        "--data",
        tmp_path,
        "--part",
        "tables",
        "--law",
        "gowalla",
        "--width",
        1000,
        "--repeats",
        1,
    )
    result = run(recovery.command, *only)
    assert (result.exit_code, "2 PASS, 0 MISS" in result.output) == (0, True)


def test_savings_find_a_smaller_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PAPERS", {(5, 200): 2.0})
    [row] = recovery.savings(repeats=1, seed=0, clients=20_000, size=500)
    rows, width = (int(number) for number in str(row["joint"]).split("x"))
    assert row["fewer counters"] == 5 * 200 / (rows * width) > 1
    assert float(str(row["joint's"])) <= float(str(row["median's error"]))
    assert row["verdict"] == "-"


def test_tradeoff_writes_table_and_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table, chart = tmp_path / "table.csv", tmp_path / "chart.svg"
    widths = ("--width", 50, "--width", 200)
    result = run(tradeoff.command, *SMALL, "--rows", 3, *widths, "--output", table, "--plot", chart)
    assert result.exit_code == 0
    lines = [line.split(",") for line in table.read_text().splitlines()[1:]]
    assert [line[0].strip('"') for line in lines[::2]] == list(recovery.SCHEDULES)
    # plus or minus 2,000 clients: 12 bits a counter
    assert [int(line[3]) for line in lines[:2]] == [225, 900]
    assert chart.read_bytes().startswith(b"<?xml")
    with pytest.raises(InvalidInputError, match="a plot must end in"):
        run(tradeoff.command, *SMALL, "--plot", tmp_path / "chart.gif")


def test_the_same_table_gives_the_same_chart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table = [
        {"schedule": "hybrid", "bytes": 100 * k, "median": 0.1 / k, "joint": 0.01 / k}
        for k in (1, 10, 100)
    ]
    paths = [tmp_path / name for name in ("first.svg", "second.svg")]
    for path in paths:
        tradeoff.draw_chart(table, "three sizes", path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_bytes_are_saved_by_interpolation() -> None:
    def row(size: int, median: float, joint: float) -> dict[str, object]:
        return {"schedule": "hybrid", "bytes": size, "median": median, "joint": joint}

    table = [row(100, 0.5, 0.4), row(1000, 0.3, 0.1), row(10_000, 0.2, 0.01)]
    # From (100, .4) to (1000, .1) on logarithmic scales: .2 is half of the way.
    assert tradeoff.bytes_saved(table, "hybrid") == pytest.approx((0.2, 10_000, 1000 / np.sqrt(10)))
    assert tradeoff.bytes_saved(table[:1], "hybrid") is None
    assert tradeoff.bytes_saved(table, "fresh") is None
    assert tradeoff.bytes_saved([row(100, 0.5, 0.1), row(1000, 0.3, 0.01)], "hybrid") is None


@pytest.mark.parametrize("seed", range(5))
def test_labels_are_moved_apart_and_keep_their_order(seed: int) -> None:
    heights = np.random.default_rng(seed).random(6) * 0.2
    places = np.array(tradeoff._apart(heights.tolist()))
    order = np.argsort(heights)
    assert (np.diff(places[order]) >= tradeoff._LABEL_GAP - 1e-12).all()
    assert places.mean() == pytest.approx(heights.mean())


def test_clients_of_a_large_domain_follow_its_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "BLOCK", 7)
    held = benchmark.draw_clients(20, 100_000, 10, np.random.default_rng(0))
    assert held.shape == (10, 10_000)
    expected = 100_000 * recovery.law("zm", 20)
    observed = np.bincount(held.reshape(-1), minlength=21)
    assert observed[0] == 0
    # Chi-square with 19 degrees of freedom: above 50 with probability 1e-4.
    assert ((observed[1:] - expected) ** 2 / expected).sum() < 50
    rounds = np.array([np.bincount(own, minlength=21)[1:] for own in held])
    # Clients are dealt to rounds at random: of 10 x 20 counts, none is off by more than six
    # standard deviations.
    assert (np.abs(rounds - expected / 10) < 6 * np.sqrt(expected / 10)).all()


def test_the_benchmark_states_its_goals() -> None:
    # A process of its own: the peak memory is that of the process, whatever ran in it before.
    arguments = ["joint", "--quick", "--part", "large", "--part", "fallback", "--json"]
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=root, capture_output=True, check=True
    )
    found = json.loads(result.stdout)
    assert [goal["name"].split(": ")[1] for goal in found["goals"]] == ["CPU time", "peak memory"]
    assert 0.01 < found["goals"][1]["value"] < 1  # GB: an interpreter with NumPy at least
    assert any("the NumPy kernels take" in note for note in found["notes"])
    assert all(rate["median"] >= rate["best"] > 0 for rate in found["rates"])
