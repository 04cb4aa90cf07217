"""The page of `fedtally show` in a real browser: it adds the uploads itself, and finds the sum."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Page, find

from fedtally.answer.show_page import show_page
from fedtally.simulation import demonstration
from fedtally.simulation.demonstration import Demonstration, demonstrate

pytestmark = pytest.mark.browser
MOVE = (
    "(slider => {{ slider.value = {1}; slider.dispatchEvent(new Event('input')); }})"
    "(document.getElementById('{0}'))"
)


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    if find() is None:
        assert os.environ.get("FEDTALLY_REQUIRE_BROWSER") != "1"
        pytest.skip("there is no Chromium")


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demonstration, "EPSILONS", (8.0, 1.0))
        return demonstrate(7)


@pytest.fixture(scope="module")
def file(shown: Demonstration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("show") / "show.html"
    path.write_text(show_page(shown._asdict()), encoding="utf-8")
    return path


@pytest.fixture
def page(file: Path, tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path) as opened:
        opened.open(file)
        yield opened
        assert opened.complaints == []
        assert [at for at in opened.requests if not at.startswith("data:")] == [file.as_uri()]


def move(page: Page, slider: str, to: int) -> None:
    page.value(MOVE.format(slider, to))


def counters(page: Page) -> np.ndarray:
    return np.array(page.value("fedtallyShow.counters()"), np.int64)


def text(page: Page, name: str) -> str:
    return str(page.value(f"document.getElementById('{name}').innerText"))


def test_the_sum_appears_with_the_last_phone_and_not_before(
    shown: Demonstration, page: Page
) -> None:
    total = shown.sketches.sum(axis=0)
    assert not counters(page).any() and text(page, "bars") == ""
    for added in (1, 100, demonstration.PHONES - 1):
        move(page, "added", added)
        assert (counters(page) == shown.sketches[:added].sum(axis=0)).sum() < 6
        assert f"{added} of {demonstration.PHONES}" in text(page, "status")
        assert not page.value("document.getElementById('answer').checkVisibility()")
    move(page, "added", demonstration.PHONES)
    np.testing.assert_array_equal(counters(page), total)
    np.testing.assert_array_equal(counters(page), shown.levels[0].released)
    first = page.value("document.querySelector('#bars tr').innerText").split()
    assert first[0] == shown.words[0] and int(first[-1]) == np.bincount(shown.held)[0]


def test_an_altered_upload_alters_the_sum_that_the_page_finds(
    shown: Demonstration, file: Path, tmp_path: Path
) -> None:
    whole = file.read_text("utf-8")
    data: dict[str, Any] = json.loads(re.findall(r'id="data">(.*?)</script>', whole, re.S)[0])
    altered = shown.uploads.copy()
    altered[17, 3] ^= 1
    planted = base64.b64encode(altered.astype("<u2").tobytes()).decode()
    other = tmp_path / "altered.html"
    other.write_text(whole.replace(data["uploads"], planted), encoding="utf-8")
    with Page(tmp_path) as page:
        page.open(other)
        move(page, "added", demonstration.PHONES)
        assert np.flatnonzero(counters(page) != shown.sketches.sum(axis=0)).tolist() == [3]


def test_a_phone_is_chosen_by_click_and_by_keys(shown: Demonstration, page: Page) -> None:
    phones = "document.getElementById('phones').children"
    page.value(f"{phones}[41].click()")
    assert text(page, "holds") == f"Phone 42 holds {shown.words[shown.held[41]]}."
    assert page.value("fedtallyShow.uploadOf(41)") == shown.uploads[41].tolist()
    sent = " ".join(map(str, shown.uploads[41][:4]))
    assert text(page, "numbers").startswith(sent)
    page.value(f"{phones}[41].focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert page.value("document.activeElement.ariaLabel") == (
        f"Phone 43: {shown.words[shown.held[42]]}"
    )
    # one stop of the tab key, whose state is told
    assert page.value(f"[...{phones}].filter(phone => phone.tabIndex === 0).length") == 1
    assert page.value(f"{phones}[42].ariaChecked") == "true"
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in nodes if not node["ignored"]]
    assert roles.count("radio") == demonstration.PHONES and roles.count("slider") == 1
    named = [node for node in nodes if node.get("role", {}).get("value") in ("slider", "image")]
    assert all(node["name"]["value"] for node in named if not node["ignored"])


def test_epsilon_blurs_the_bars_and_says_what_is_left(shown: Demonstration, page: Page) -> None:
    move(page, "added", demonstration.PHONES)
    bars = (
        "[...document.querySelectorAll('#bars tr')]"
        ".map(row => row.querySelectorAll('i.bar').length)"
    )
    for place, level in enumerate(shown.levels):
        move(page, "epsilon", place)
        told = [int(low > 0) for low in level.low[:8]]
        assert page.value(bars)[:8] == told  # nothing that cannot be told from 0 has a bar
    assert "13.6\xa0%" in text(page, "attack") and "8\xa0%" in text(page, "bound")
    assert text(page, "chosen") == "1"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_no_wider_than_the_screen(
    file: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    with Page(tmp_path, width) as page:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.call("Emulation.setEmulatedMedia", features=[feature])
        page.open(file)
        move(page, "added", demonstration.PHONES)
        assert page.value("document.documentElement.scrollWidth") <= width
        background = page.value("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 150) == (scheme == "dark")
        # the picture has the colours of the scheme, too: most counters of a sketch are 0
        pixels = "getContext('2d').getImageData(0, 0, 32, 16).data"
        red = page.value(f"[...document.getElementById('sketch').{pixels}]")[::4]
        assert np.median(red) == (22 if scheme == "dark" else 255)
        assert page.complaints == []


def test_the_button_adds_all_at_once_where_motion_is_not_wanted(
    shown: Demonstration, file: Path, tmp_path: Path
) -> None:
    with Page(tmp_path) as page:
        feature = {"name": "prefers-reduced-motion", "value": "reduce"}
        page.call("Emulation.setEmulatedMedia", features=[feature])
        page.open(file)
        page.value("document.getElementById('play').click()")
        np.testing.assert_array_equal(counters(page), shown.levels[0].released)
        assert "the masks cancel" in text(page, "spoken")


def test_it_prints_the_last_picture_and_the_one_before(file: Path, page: Page) -> None:
    move(page, "added", 50)
    page.value(
        "globalThis.printed = 0;"
        "addEventListener('beforeprint', () => { printed = fedtallyShow.counters(); })"
    )
    assert page.pdf(file.parent / "show.pdf").startswith(b"%PDF")
    assert page.value("printed") == page.value(f"fedtallyShow.sum({demonstration.PHONES})")
    assert counters(page).tolist() == page.value("fedtallyShow.sum(50)")  # and then goes on
    page.call("Emulation.setEmulatedMedia", media="print")
    visible = (
        "['before', 'sum', 'sketch', 'upload', 'added', 'phones']"
        ".map(name => document.getElementById(name).checkVisibility())"
    )
    assert page.value(visible) == [True, True, True, True, False, False]


def test_without_javascript_the_answers_are_a_table(
    shown: Demonstration, file: Path, tmp_path: Path
) -> None:
    with Page(tmp_path) as page:
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.open(file)
        told = page.value("document.body.innerText")
        assert not page.value("document.querySelector('main').checkVisibility()")
        assert "The sliders need JavaScript" in told and shown.words[0] in told
        assert page.value("[...document.querySelectorAll('td')].at(-1).innerText") == "13.6\xa0%"
