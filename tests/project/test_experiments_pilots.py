"""The experiment that sets the cost of pilots and their campaigns beside the least."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedtally.simulation import sizing

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import pilots


def run(path: Path, *more: str) -> tuple[int, list[list[str]]]:
    given = ["--law", "plateaus", "--tau", "0.01", "--epsilon", "0", "--clients", "20000"]
    given += ["--domain-size", "20000", "--repeats", "1", "--output", str(path), *more]
    result = CliRunner().invoke(pilots.command, given)
    return result.exit_code, [line.split() for line in result.output.splitlines()]


def test_a_pilot_and_its_campaign_cost_at_most_twice_the_least(tmp_path: Path) -> None:
    code, lines = run(tmp_path / "pilots.csv", "--epsilon", "4")
    [row, private] = [line for line in lines if line and line[0] == "plateaus"]
    assert (code, row[-1]) == (0, "PASS")
    names = lines[lines.index(row) - 1]
    assert [line[names.index("epsilon")] for line in (row, private)] == ["none", "4"]
    least, mean, ratio = (float(row[names.index(name)]) for name in ("least", "mean", "ratio"))
    assert ratio == pytest.approx(mean / least, rel=0.01) and ratio <= pilots.MOST


def test_a_pilot_of_8_kb_costs_too_much_for_a_large_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "_MEAN_BYTES", 8.0)
    code, lines = run(tmp_path / "pilots.csv")
    assert code == 1 and any(line[-1:] == ["MISS"] for line in lines)
