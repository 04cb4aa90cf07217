"""The experiment that counts the campaigns that are not exact where it was predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import exact

FEW = ("--shape", "alike", "--batches", "3", "--items", "30", "--repeats", "4")


def run(folder: Path) -> tuple[int, list[str]]:
    result = CliRunner().invoke(exact.command, [*FEW, "--output", str(folder)])
    [row] = [line.split() for line in result.output.splitlines() if " alike " in line]
    return result.exit_code, row


def test_recovery_is_exact_where_it_is_relied_on(tmp_path: Path) -> None:
    """And not where it is just predicted."""
    code, row = run(tmp_path)
    assert code == 0 and row[-1] == "PASS"
    counts = [int(row[place]) for place in range(3, len(row) - 1, 3)]
    assert counts[0] > 3 and counts[2:] == [0, 0]


def test_a_prediction_that_is_too_bold_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = exact.begins
    monkeypatch.setattr(exact, "begins", lambda cell: begins(cell) * 2 // 3)
    code, row = run(tmp_path)
    assert code == 1 and row[-1] == "MISS"
