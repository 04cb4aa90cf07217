"""The demo's output in the README is what the demo prints."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def skeleton(text: str) -> list[str]:
    """Return the lines with digits as zeros and items and bars left out."""
    lines = [
        re.sub(r"^( *[0-9]+  )\S+ .*? ([0-9.]+ %)", r"\1\2", line) for line in text.splitlines()
    ]
    return [
        re.sub(r" +", " ", re.sub(r"[0-9]+|[▁-█▉-▏]|[+-](?=[0-9])", "", line)) for line in lines
    ]


def test_the_readme_shows_the_demo() -> None:
    """To the letter under the Python that is named; the words of another one are others."""
    text = README.read_text(encoding="utf-8")
    [(version, quoted)] = re.findall(
        r"With Python ([0-9.]+) the demo prints:\n\n<!-- demo -->\n```text\n(.*?)```",
        text,
        re.DOTALL,
    )
    ran = subprocess.run(
        [sys.executable, "-m", "fedtally", "demo"],
        env=os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    if version == platform.python_version():
        assert ran == quoted
    assert skeleton(ran) == skeleton(quoted)
    assert len(quoted.splitlines()) <= 35
