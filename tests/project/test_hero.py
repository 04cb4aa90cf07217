"""The picture at the head of the README has the numbers of the demo."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "figures" / "hero.svg"


def test_the_picture_shows_what_the_readme_quotes():
    """Its words and shares are the first rows of the demo, which another test runs."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = readme.partition("<!-- demo")[2].partition("<!-- end")[0]
    rows = re.findall(r"^ *\d+  (\S+) +([0-9.]+) %", quoted, re.MULTILINE)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", PICTURE.read_text(encoding="utf-8"))
    shown = [(name, share) for name, share in pairwise(texts) if "%" in share]
    assert len(shown) == 6 and len(rows) >= 2
    for (name, share), (word, full) in zip(shown, rows, strict=False):
        assert (name, share) == (word, f"{float(full):.2f} %")


def test_the_picture_is_what_its_tool_draws():
    """To the letter under the Python that the README names; the words of another are others."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [version] = set(re.findall(r"With Python ([0-9.]+)", readme))
    if version == platform.python_version():
        subprocess.run([sys.executable, ROOT / "tools" / "hero.py", "--check"], check=True)
