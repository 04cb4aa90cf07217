"""The site on a phone, in the dark and on paper: nothing is cut off, and all text can be read.

It is looked at as `python -m sphinx -W docs build/docs` left it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("FEDTALLY_SITE", ROOT / "build/docs"))
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not SITE.exists() and os.environ.get("FEDTALLY_REQUIRE_SITE") != "1",
        reason="needs the site: python -m sphinx -W docs build/docs",
    ),
    pytest.mark.skipif(
        browser.find() is None and os.environ.get("FEDTALLY_REQUIRE_BROWSER") != "1",
        reason="needs a Chromium",
    ),
]
PHONE = 390  # columns of pixels
PAPER = 720  # of A4 between its margins, at 96 pixels an inch

# What scrolls by itself may be wider than the screen, and all else may not.
WIDER_THAN_THE_SCREEN = """(() => {
  const width = document.documentElement.clientWidth, found = [];
  for (const each of document.querySelectorAll('article *')) {
    const box = each.getBoundingClientRect();
    if (!box.width || box.right <= width + 2) continue;
    let above = each;
    while (above.tagName !== 'ARTICLE' && getComputedStyle(above).overflowX === 'visible')
      above = above.parentElement;
    if (above.tagName === 'ARTICLE') found.push(each.outerHTML.slice(0, 80));
  }
  return found;
})()"""
# Nothing scrolls on paper.
CUT_OFF = """[...document.querySelectorAll('article .table-wrapper, article pre')]
  .filter(each => each.scrollWidth > each.clientWidth + 2)
  .map(each => each.textContent.trim().slice(0, 80))"""
# The contrast of each text with the ground that it stands on, as the WCAG define it.
FAINT = """(() => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([...rgb]) => rgb.slice(0, 3).map(value => value / 255)
    .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + [0.2126, 0.7152, 0.0722][at] * value, 0);
  const found = new Map();
  const texts = document.createTreeWalker(document.querySelector('article'), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !element.getClientRects().length) continue;
    let ground = element;  // the nearest that is not transparent
    while (ground && (channels(getComputedStyle(ground).backgroundColor)[3] ?? 1) < 0.9)
      ground = ground.parentElement;
    if (!ground) continue;
    const both = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor]
      .map(colour => light(channels(colour))).sort((a, b) => b - a);
    const contrast = (both[0] + 0.05) / (both[1] + 0.05);
    if (contrast < 4.4) found.set(`${element.tagName}.${element.className}`, contrast);
  }
  return [...found].map(each => each.join(' '));
})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.Page(tmp_path_factory.mktemp("browser"), PHONE) as page:
        yield page


def show(page: browser.Page, media: str, scheme: str = "light") -> None:
    """Show a page as on a phone, or as on paper."""
    width = PAPER if media == "print" else PHONE
    page.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=width == PHONE,
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.call("Emulation.setEmulatedMedia", media=media, features=features)


@pytest.mark.promise
def test_each_page_can_be_read_on_a_phone_in_the_dark_and_on_paper(page: browser.Page) -> None:
    faults = []
    for name in PAGES:
        page.open(SITE / f"{name}.html")
        for look, media, scheme in (
            (WIDER_THAN_THE_SCREEN, "screen", "light"),
            (FAINT, "screen", "light"),
            (FAINT, "screen", "dark"),
            (CUT_OFF, "print", "light"),
        ):
            show(page, media, scheme)
            faults += [f"{name}, {media}, {scheme}: {one}" for one in page.value(look)]
    assert PAGES and faults == []


@pytest.mark.parametrize(
    ("look", "media", "planted"),
    [
        (WIDER_THAN_THE_SCREEN, "screen", "article p { width: 800px; }"),
        (CUT_OFF, "print", "article table { width: 1200px; }"),
        (FAINT, "screen", "article p { color: #777 !important; }"),
    ],
)
def test_a_planted_fault_is_found(
    page: browser.Page, tmp_path: Path, look: str, media: str, planted: str
) -> None:
    show(page, media)
    shutil.copytree(SITE / "_static", tmp_path / "_static")
    text = (SITE / "threat-model.html").read_text(encoding="utf-8")
    for style, finds in (("", False), (planted, True)):
        copy = tmp_path / "copy.html"
        copy.write_text(text.replace("</head>", f"<style>{style}</style></head>"))
        page.open(copy)
        assert bool(page.value(look)) == finds
