"""The page of a plan in a real browser: whole and silent in both schemes, also on a phone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from browser import Page, find

from fedtally.cli.app import run

pytestmark = pytest.mark.browser
ASKED = "--clients 200000 --domain-size 5000 --rounds 10 --like zipf:a=1.1,d=5000 --tau 0.002"
PRIVATE = "--secure-sum secagg --epsilon 1 --rows 8 --encoding sketch --quiet --seed 1"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    if find() is None:
        assert os.environ.get("FEDTALLY_REQUIRE_BROWSER") != "1"
        pytest.skip("there is no Chromium")
    path = tmp_path_factory.mktemp("plan") / "plan.html"
    assert run(["plan", *ASKED.split(), *PRIVATE.split(), "--report", str(path)]) == 0
    return path


@pytest.mark.parametrize(("scheme", "width"), [("light", 1000), ("dark", 390)])
def test_the_page_of_a_plan_is_whole_and_silent(
    plan: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    with Page(tmp_path, width) as shown:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        shown.call("Emulation.setEmulatedMedia", features=[feature])
        shown.open(plan)
        assert shown.value("document.documentElement.scrollWidth") <= width
        assert shown.value(
            "[...document.querySelectorAll('.scroll')].every(e => e.scrollWidth <= e.clientWidth)"
        )
        # the chart is the one for this screen, and is drawn
        sizes = shown.value("[...document.images].map(image => image.naturalWidth)")
        assert len(sizes) == 1 and (0 < sizes[0] < 500) == (width == 390) and sizes[0] > 0
        assert shown.complaints == []
        assert [one for one in shown.requests if not one.startswith(("data:", "file:"))] == []
