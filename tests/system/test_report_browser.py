"""The report in a real browser: light, dark, on a phone, printed, and without JavaScript."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from browser import Page, find

import fedtally
from fedtally.answer import page

pytestmark = pytest.mark.browser
SCHEMES = ("light", "dark")
FITS = "[...document.querySelectorAll('{}')].every(e => e.scrollWidth <= e.clientWidth)"


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    if find() is None:
        assert os.environ.get("FEDTALLY_REQUIRE_BROWSER") != "1"
        pytest.skip("there is no Chromium")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report with long, wide and hostile items, and the truth."""
    items = [f"https://example.org/{'long/' * 12}{n}" for n in range(4) for _ in range(40 - 9 * n)]
    items += ["漢字" * 9] * 20 + ["<script>alert(1)</script>"] * 15 + ["9", "10", "tea"] * 5
    result = fedtally.estimate(items, seed=1, num_rounds=2, max_bytes="2kB", evaluate=True)
    path = tmp_path_factory.mktemp("report") / "report.html"
    queried = result.estimates(["tea", "nobody"])
    text = page.page(result, result.top(20), queried, command="fedtally estimate words.txt")
    path.write_text(text, encoding="utf-8")
    return path


def test_coordinates_stay_on_one_line(tmp_path: Path) -> None:
    places = ["-17.375,-179.875", "-17.625,-179.625"]
    noisy = {"encoding": "sketch", "domain": "grid:-20..-15,-180..-170,0.25", "seed": 1}
    result = fedtally.estimate(places * 200, **noisy, evaluate=True)
    path = tmp_path / "places.html"
    path.write_text(page.page(result, result.top(2), command=""), encoding="utf-8")
    with Page(tmp_path, 1000) as shown:
        shown.open(path)
        heights = "[...document.querySelectorAll('tbody tr')].map(row => row.clientHeight)"
        assert all(height < 40 for height in shown.value(heights)), shown.value(heights)


@pytest.mark.parametrize("width", [1000, 390])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_whole_silent_and_no_wider_than_the_screen(
    report: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    with Page(tmp_path, width) as shown:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        shown.call("Emulation.setEmulatedMedia", features=[feature])
        shown.open(report)
        assert shown.value("document.documentElement.scrollWidth") <= width
        # Nothing scrolls sideways, not even the table of a phone, and no number is cut.
        assert shown.value(FITS.format(".scroll")) and shown.value(FITS.format("td, th"))
        narrow = "[...document.images].map(image => image.naturalWidth < 500)"
        assert set(shown.value(narrow)) == {width == 390}
        # On a phone the item has a line of its own, and each number says what it is.
        named = (
            "[...document.querySelectorAll('td')].map(e => ["
            "getComputedStyle(e, '::before').content,"
            " e.dataset.name,"
            " e.parentNode.cells[0].getBoundingClientRect().bottom"
            " <= e.getBoundingClientRect().top])"
        )
        for content, name, is_below in shown.value(named):
            assert (content, is_below) == ((f'"{name}"', True) if width == 390 else ("none", False))
        filters = "[...document.images].map(image => getComputedStyle(image).filter !== 'none')"
        assert set(shown.value(filters)) == {scheme == "dark"}
        background = shown.value("getComputedStyle(document.body).backgroundColor")
        assert sum(map(int, background[4:-1].split(","))) > 600 or scheme == "dark"
        assert sum(map(int, background[4:-1].split(","))) < 150 or scheme == "light"
        images = "[...document.images].every(image => image.complete && image.naturalWidth > 0)"
        assert shown.value(images) and shown.value("document.images.length") >= 1
        assert len(shown.screenshot(tmp_path / "page.png")) > 20_000
        assert shown.complaints == []
        assert [at for at in shown.requests if not at.startswith("data:")] == [report.as_uri()]


def first_items(shown: Page) -> list[str]:
    column = (
        "[...document.querySelector('table').tBodies[0].rows].map(row => row.cells[0].textContent)"
    )
    found: list[str] = shown.value(column)
    return found


def test_a_card_of_a_phone_has_no_column_alone(report: Path, tmp_path: Path) -> None:
    """Numbers stand in rows of two or three, whose names are short enough for one line."""
    with Page(tmp_path, 390) as shown:
        shown.open(report)
        tops = (
            "[...document.querySelectorAll('tbody tr')].map(row => [...row.querySelectorAll('td')]"
        )
        tops += ".map(cell => cell.getBoundingClientRect().top))"
        for row in shown.value(tops):
            assert all(row.count(top) in (0, 2, 3) for top in row)
        heights = "[...document.querySelectorAll('td')].map(e => e.getBoundingClientRect().height)"
        assert max(shown.value(heights)) < 48  # a name and a number


def test_a_long_table_is_folded_after_ten_rows_on_a_screen(tmp_path: Path) -> None:
    result = fedtally.estimate([n for n in range(15) for _ in range(20 - n)] * 9, seed=1)
    path = tmp_path / "long.html"
    path.write_text(page.page(result, result.top(15), command=""), encoding="utf-8")
    rows = "[...document.querySelectorAll('tbody tr')].filter(e => e.checkVisibility()).length"
    with Page(tmp_path) as shown:
        shown.open(path)
        # the order of the rows is marked before anybody presses a head
        assert shown.value("document.querySelector('th[aria-sort]').innerText") == "share"
        arrow = "getComputedStyle(document.querySelector('th[aria-sort]'), '::after').content"
        assert "\u25bc" in shown.value(arrow)
        assert shown.value(rows) == 10
        fold = "document.querySelector('.fold')"
        assert shown.value(f"{fold}.ariaExpanded") == "false"
        shown.value(f"{fold}.click()")
        assert shown.value(rows) == 15 and shown.value(f"{fold}.ariaExpanded") == "true"
        shown.value(f"{fold}.click()")
        assert shown.value(rows) == 10
        shown.call("Emulation.setEmulatedMedia", media="print")
        assert shown.value(rows) == 15 and not shown.value(f"{fold}.checkVisibility()")
        assert shown.complaints == []


def test_the_numbers_for_experts_are_folded_on_a_screen_and_not_on_paper(
    report: Path, tmp_path: Path
) -> None:
    is_open = "document.querySelector('details').open"
    with Page(tmp_path) as shown:
        shown.open(report)
        assert shown.value(is_open) is False
        shown.value("window.dispatchEvent(new Event('beforeprint'))")
        assert shown.value(is_open) is True
        shown.value("window.dispatchEvent(new Event('afterprint'))")
        assert shown.value(is_open) is False


def test_a_table_of_blocks_is_a_table_to_a_screen_reader(report: Path, tmp_path: Path) -> None:
    with Page(tmp_path, 390) as shown:
        shown.open(report)
        nodes = shown.call("Accessibility.getFullAXTree")["nodes"]
        roles = [node["role"]["value"] for node in nodes if not node["ignored"]]
        rows = shown.value("document.querySelectorAll('tbody tr').length")
        assert roles.count("table") == 2 and roles.count("rowheader") == rows
        assert roles.count("cell") == shown.value("document.querySelectorAll('td').length")


def test_its_table_is_sorted_by_a_press_of_its_headings(report: Path, tmp_path: Path) -> None:
    with Page(tmp_path) as shown:
        shown.open(report)
        usual = first_items(shown)
        # shares stand largest first
        assert shown.value("document.querySelector('th[aria-sort]').ariaSort") == "descending"
        shown.value("document.querySelector('th[aria-sort] button').click()")
        shares = (
            "[...document.querySelector('table').tBodies[0].rows].map(r => +r.cells[1].dataset.key)"
        )
        assert shown.value(shares) == sorted(shown.value(shares))
        assert sorted(first_items(shown)) == sorted(usual) and first_items(shown) != usual
        table = "document.querySelector('table')"
        last = f"[...{table}.querySelectorAll('th[data-column] button')].at(-1)"
        shown.value(f"{last}.click()")  # of the second line of heads
        column = shown.value(f"{last}.parentNode.dataset.column")
        keys = f"map(row => +row.cells[{column}].dataset.key)"
        ends = shown.value(f"[...{table}.tBodies[0].rows].{keys}")
        assert ends == sorted(ends, reverse=True)
        assert shown.complaints == []


def test_without_javascript_nothing_is_missing(report: Path, tmp_path: Path) -> None:
    text = "document.body.innerText.replace(/\\s+/g, ' ')"
    with Page(tmp_path) as shown:
        shown.open(report)
        shown.value("document.querySelectorAll('details').forEach(e => (e.open = true))")
        usual, pictures = shown.value(text), shown.value("document.images.length")
    (tmp_path / "bare").mkdir()
    with Page(tmp_path / "bare") as shown:
        shown.call("Emulation.setScriptExecutionDisabled", value=True)
        shown.open(report)
        assert shown.value(text) == usual
        assert shown.value("document.images.length") == pictures
        assert shown.value("document.querySelectorAll('button').length") == 0


def test_it_prints_in_the_colours_of_paper(report: Path, tmp_path: Path) -> None:
    with Page(tmp_path) as shown:
        shown.open(report)
        assert shown.pdf(tmp_path / "page.pdf").startswith(b"%PDF")
        feature = {"name": "prefers-color-scheme", "value": "dark"}
        shown.call("Emulation.setEmulatedMedia", media="print", features=[feature])
        assert (
            shown.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        )
        assert shown.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
        # A footer could be alone on the last page; the version stands in the report, too.
        assert not shown.value("document.querySelector('footer').checkVisibility()")
        assert f"Page by\nfedtally {fedtally.__version__}" in shown.value("document.body.innerText")
        assert shown.value(FITS.format(".scroll"))
        assert shown.complaints == []
