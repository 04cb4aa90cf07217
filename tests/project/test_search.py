"""The site's search finds numbers as they are written, and sections by heading and text."""

from __future__ import annotations

import os
import time
from pathlib import Path

import browser
import pytest

pytest.importorskip("sphinx")
pytestmark = pytest.mark.promise
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {
    "index": "# Home\n\n```{toctree}\n:hidden:\n\nnight\nday\ndawn\n```\n",
    "night": "# Night\n\nDevices say HTTP 502, and 429.\n\n`</script>` ends a script.\n",
    "day": "# Day\n\n7 of 1502 devices say 4290, in 2027.\nOf 20,000 and 1,000,000 none.\n"
    "\n## How sure a share is\n\nBy its limits.\n\n## Shares of pandas\n\n### Colours\n\n"
    "<!-- asked:\nWhich hues?\nIs the moon blue?\n-->\n\nBlack.\n",
    "dawn": "# Dawn\n\nA share is sure, and pandas counts it.\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a small site whose search is that of the documentation."""
    from sphinx.application import Sphinx

    folder = tmp_path_factory.mktemp("site")
    source, out = folder / "docs", folder / "site"
    source.mkdir()
    (source / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DOCS)!r})\n"
        'extensions = ["myst_parser", "numbers_found", "sections_found"]\n'
    )
    for name, text in PAGES.items():
        (source / f"{name}.md").write_text(text)
    Sphinx(source, source, out, folder / "trees", "html", status=None, warning=None).build()
    return out


def test_the_index_holds_numbers_of_three_digits_and_with_commas_alone(site: Path) -> None:
    index = (site / "searchindex.js").read_text("utf-8")
    assert all(f'"{number}":' in index for number in (429, 502))
    assert not any(f'"{number}":' in index for number in (7, 1502, 2027, 4290))
    assert all(f'"{number}":' in index for number in ("20,000", "1,000,000"))
    assert not any(f'"{part}":' in index for part in ("000", "20", "000,000"))
    assert '"devic":' in index  # words are stemmed as before


@pytest.mark.browser
@pytest.mark.skipif(
    browser.find() is None and os.environ.get("FEDTALLY_REQUIRE_BROWSER") != "1",
    reason="needs a Chromium",
)
def test_a_reader_finds_what_is_typed(site: Path, tmp_path: Path) -> None:
    """Numbers lead to the page that explains them, and words of a heading to its section."""
    found = {}
    numbers = ("502", "HTTP 429", "devices", "4290", "503", "20,000", "30,000", "HTTP,429")
    words = (
        *("how sure", "shares", "pandas", "sure shares of pandas", "the"),
        *("black pandas", "black limits", "limits of unicorns", "unicorns"),
        *("hues", "which hues are black", "moon", "moon and hues", "how", "why a share?"),
    )
    with browser.Page(tmp_path, 1000) as page:
        for typed in numbers + words:
            page.go(f"{(site / 'search.html').as_uri()}?q={typed.replace(' ', '+')}")
            end, said = time.monotonic() + 60, ""
            while "finished" not in said and "did not match" not in said:
                assert time.monotonic() < end, said
                time.sleep(0.05)
                said = page.value("document.querySelector('#search-results').textContent")
            links = "[...document.querySelectorAll('#search-results li a')]"
            found[typed] = page.value(f"{links}.map(a => a.textContent + new URL(a.href).hash)")
    assert {typed: sorted(found[typed]) for typed in numbers} == {
        "502": ["Night"],
        "HTTP 429": ["Night"],
        "devices": ["Day", "Night"],
        "4290": [],
        "503": [],
        "20,000": ["Day"],
        "30,000": [],
        "HTTP,429": ["Night"],
    }
    sure, pandas = "Day > How sure a share is#how-sure-a-share-is", "Day > Shares of pandas"
    pandas += "#shares-of-pandas"
    colours = "Day > Colours#colours"
    assert {typed: found[typed] for typed in words} == {
        "how sure": [sure, "Dawn", "Day"],  # a heading, a text, and a page that holds the section
        "shares": [pandas, sure, "Dawn", colours, "Day"],  # headings, a text, a heading above
        "pandas": [pandas, "Dawn", colours, "Day"],
        "sure shares of pandas": [sure, pandas, "Dawn", colours, "Day"],  # two whole headings
        "the": [],
        "black pandas": [colours, pandas, "Dawn", "Day"],  # one in text, one in a heading above
        "black limits": [sure, colours, "Day"],  # no section has both, and three places have black
        "limits of unicorns": [sure],  # a word that no section has
        "unicorns": [],
        "hues": [colours],  # other words for its heading
        "which hues are black": [colours],
        "moon": [colours],
        "moon and hues": [colours],  # once, though it is asked in two ways
        "how": [],  # headings have it, and it says nothing
        "why a share?": [pandas, sure, "Dawn", colours, "Day"],
    }
