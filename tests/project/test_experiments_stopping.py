"""The experiment on campaigns that end early: what they save, and how often they err."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import stopping

FEW = ("--law", "0.8", "--noise", "none", "--repeats", "20")


def run(folder: Path) -> tuple[int, list[str]]:
    result = CliRunner().invoke(stopping.command, [*FEW, "--output", str(folder)])
    [row] = [line.split() for line in result.output.splitlines() if " all " in line]
    return result.exit_code, row


def test_campaigns_end_early_within_their_target(tmp_path: Path) -> None:
    code, row = run(tmp_path)
    assert code == 0 and row[-1] == "PASS"
    assert float(row[4]) > 0.6 and float(row[6]) <= 0.1


@pytest.mark.parametrize("planted", ["a round too soon", "never"])
def test_a_rule_that_is_wrong_is_found_out(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(plan: Any, domain: Any, sketches: Any) -> bool:
        return planted != "never" and len(sketches) >= 3

    monkeypatch.setattr(stopping, "is_known", wrong)
    code, row = run(tmp_path)
    assert code == 1 and row[-1] == "MISS"
