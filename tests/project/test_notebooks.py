"""The notebooks of examples/notebooks run from top to bottom, in a folder of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    """Return the texts of the cells of a kind, "code" or "markdown"."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


def test_there_are_three():
    assert len(NOTEBOOKS) == 3


@pytest.mark.promise
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text("\n".join(cells(path, "code")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_its_title_and_keeps_no_output(path):
    assert cells(path, "markdown")[0].startswith("# ")
    content = json.loads(path.read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in content["cells"])
