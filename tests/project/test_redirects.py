"""Each old address, of version 0.1 or of a page gone since, leads to a section that exists."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx")
ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("redirects", ROOT / "docs" / "redirects.py")
redirects = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = redirects
spec.loader.exec_module(redirects)
MOVES = redirects.moves(ROOT / "docs")
# What old addresses name: pages and their sections of the first two levels.
PAGES, ADDRESSES = 52, 649


def sections(page: Path) -> set[str]:
    """Return the names of the sections of a page, as links have them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("old", MOVES)
def test_every_old_address_leads_to_what_exists(old):
    for name, new in MOVES[old].items():
        page, _, section = new.partition("#")
        path = ROOT / "docs" / f"{page}.md"
        assert path.exists(), f"{old}#{name}: no page {page}"
        assert not section or section in sections(path), f"{old}#{name}: no section {new}"


def test_no_old_address_is_forgotten():
    assert len(MOVES) == PAGES
    assert sum(len(names) - 1 for names in MOVES.values()) == ADDRESSES
    assert all("" in names for names in MOVES.values())


def test_a_site_leads_from_old_to_new(tmp_path):
    """A small site: `gone` became a section of `new`, and `stayed` gave a section away."""
    from sphinx.application import Sphinx

    source, out = tmp_path / "docs", tmp_path / "site"
    source.mkdir()
    (source / "conf.py").write_text(
        'extensions = ["myst_parser", "redirects"]\nmyst_heading_anchors = 4\n'
    )
    (source / "index.md").write_text("# Home\n\n```{toctree}\nnew\nstayed\n```\n")
    (source / "new.md").write_text("# New\n\n## 1. What was `gone`\n\n### Its part\n\n## Given\n")
    (source / "stayed.md").write_text("# Stayed\n\n## Kept\n")
    (source / redirects.MOVES).write_text(
        '[gone]\n"" = "new#1-what-was-gone"\n1-part = "new#its-part"\n'
        '[stayed]\n"" = "stayed"\nkept = "stayed#kept"\ngiven = "new#given"\n'
    )
    Sphinx(source, source, out, tmp_path / "trees", "html", status=None, warning=None).build()

    stub = (out / "gone.html").read_text("utf-8")
    moved = json.loads(re.search(r"const moved = (.*);", stub)[1])
    assert moved == {
        "": "new.html#what-was-gone",
        "1-part": "new.html#its-part",
        "part": "new.html#its-part",  # as the old site named it
    }
    page = (out / "new.html").read_text("utf-8")
    for link in moved.values():
        assert f'href="{link}"' in stub
        assert f'id="{link.partition("#")[2]}"' in page
    stayed = (out / "stayed.html").read_text("utf-8")
    assert json.loads(re.search(r"const moved = (.*), name", stayed)[1]) == {
        "given": "new.html#given"
    }
    assert "const moved" not in page


def test_a_move_to_a_section_that_is_not_there_breaks_the_build():
    with pytest.raises(KeyError, match="nowhere"):
        redirects.addresses({"new": {"here": "here"}}, {"": "new", "old": "new#nowhere"})
