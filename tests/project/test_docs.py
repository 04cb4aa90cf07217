"""The documents keep what they say: examples run, links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize(
    ("page", "least"), [("library", 80), ("plan", 7), ("privacy", 3), ("paper-notes", 3)]
)
def test_examples_of_a_page_run(page, least):
    outcome = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False)
    assert outcome.attempted >= least
    assert outcome.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target
