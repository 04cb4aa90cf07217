"""The demo's output in README and start page is what the demo prints."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def skeleton(text: str) -> list[str]:
    """Return the lines with digits as zeros and items and bars left out."""
    lines = [
        re.sub(r"^( *[0-9]+  )\S+ .*? ([0-9.]+ %)", r"\1\2", line) for line in text.splitlines()
    ]
    return [
        re.sub(r" +", " ", re.sub(r"[0-9]+|[▁-█▉-▏]|[+-](?=[0-9])", "", line)) for line in lines
    ]


def quoted(page: str, marker: str) -> tuple[str, str]:
    """Return the version of Python and the output that a page quotes behind a marker."""
    [found] = re.findall(
        rf"With Python ([0-9.]+) the demo \w+:\s+<!-- {marker} -->\n```text\n(.*?)```",
        (ROOT / page).read_text(encoding="utf-8"),
        re.DOTALL,
    )
    return found


def test_the_pages_show_the_demo() -> None:
    """To the letter under the Python that is named; the words of another one are others."""
    version, rows = quoted("README.md", "demo")
    same_version, whole = quoted("docs/start.md", "demo: all of it")
    ran = subprocess.run(
        [sys.executable, "-m", "fedtally", "demo"],
        env=os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    assert version == same_version
    if version == platform.python_version():
        assert ran == whole
        assert ran.startswith(rows)
    assert skeleton(ran) == skeleton(whole)
    assert skeleton(ran)[: len(rows.splitlines())] == skeleton(rows)
    assert len(rows.splitlines()) >= 6  # a heading and rows
    assert len(whole.splitlines()) <= 35
