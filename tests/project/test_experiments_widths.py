"""The experiment that sets the sizes that pilots lead to beside those for joint recovery."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import widths


def test_a_size_for_the_decoder_that_answers_is_smaller_and_keeps_its_target(
    tmp_path: Path,
) -> None:
    given = ["--law", "shifted", "--repeats", "2", "--output", str(tmp_path / "widths.csv")]
    result = CliRunner().invoke(widths.command, given)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines() if line.strip()]
    [row] = [line for line in lines if line[0] == "shifted"]
    _, _, share, exceeded, number, largest = row
    assert float(share) < 0.9 and (exceeded, number) == ("0", "2") and float(largest) <= 1
