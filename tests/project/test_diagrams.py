"""Diagrams are text: each is on a page, says its result, and fits the screen of a phone."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
DIAGRAMS = sorted((DOCS / "diagrams").glob("*.dot"))
SHOWN = re.compile(r"^```\{graphviz\} (?P<path>\S+)\n:alt: (?P<alt>.+)\n```$", re.MULTILINE)
WIDEST = 300  # points: a phone of 390 pixels then shows letters of 11 pixels and more
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


@pytest.fixture(scope="module")
def conf() -> dict[str, Any]:
    pytest.importorskip("sphinx")
    return runpy.run_path(str(DOCS / "conf.py"))


def width_of(text: str, arguments: list[str]) -> float:
    """Return the width in points of a diagram as the site draws it."""
    command = ["dot", *arguments, "-Tsvg"]
    drawn = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert drawn.stderr == ""
    found = re.search(r'<svg width="([0-9.]+)pt"', drawn.stdout)
    assert found is not None
    return float(found[1])


def test_each_diagram_is_on_a_page_and_says_its_result():
    shown = set()
    for page in DOCS.glob("**/*.md"):
        text = page.read_text(encoding="utf-8")
        found = list(SHOWN.finditer(text))
        assert len(found) == text.count("{graphviz}"), f"{page.name}: a diagram without alt text"
        for diagram in found:
            shown.add((page.parent / diagram["path"]).resolve())
            assert 12 <= len(diagram["alt"].split()) <= 50, diagram["alt"]
    assert shown == set(DIAGRAMS)


@needs_dot
@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.stem)
def test_a_diagram_fits_a_phone(conf, path):
    assert width_of(path.read_text(encoding="utf-8"), conf["graphviz_dot_args"]) <= WIDEST


@needs_dot
def test_a_diagram_that_is_too_wide_is_found(conf):
    wide = f'digraph {{ a [label="{"wide " * 12}"] }}'
    assert width_of(wide, conf["graphviz_dot_args"]) > WIDEST


@pytest.mark.parametrize("has_dot", [pytest.param(True, marks=needs_dot), False])
def test_where_graphviz_is_missing_the_text_stands_for_the_picture(conf, tmp_path, has_dot):
    settings = SimpleNamespace(
        graphviz_dot="dot" if has_dot else "no-such-dot",
        graphviz_dot_args=conf["graphviz_dot_args"],
    )
    builder = SimpleNamespace(
        config=settings,
        outdir=tmp_path,
        srcdir=DOCS,
        imagedir="_images",
        imgpath="_images",
        env=None,
    )
    page = SimpleNamespace(body=[], builder=builder)
    diagram = {"alt": "a < b", "code": "digraph { a -> b }", "options": {}}
    with pytest.raises(conf["nodes"].SkipNode):
        conf["draw"](page, diagram)
    if has_dot:
        [picture] = (tmp_path / "_images").iterdir()
        src = f"_images/{picture.name}"
        assert page.body == [f'<p><img class="diagram" src="{src}" alt="a &lt; b"></p>']
    else:
        assert page.body == ["<p>a &lt; b</p>"]
