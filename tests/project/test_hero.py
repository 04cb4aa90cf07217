"""The picture of the front pages shows numbers of the demo and of a real secure sum."""

from __future__ import annotations

import html
import importlib.util
import json
import platform
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("hero", ROOT / "tools" / "hero.py")
hero = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hero)

PICTURES = [ROOT / "docs" / "figures" / f"{name}.svg" for name in ("hero", "hero-narrow")]


def told(picture: Path) -> dict:
    """Return the numbers that a picture keeps."""
    [data] = re.findall("<metadata>(.*)</metadata>", picture.read_text(encoding="utf-8"))
    return json.loads(html.unescape(data))


@pytest.fixture(scope="module")
def now() -> dict:
    return json.loads(json.dumps(hero.numbers()))


def test_the_pictures_are_drawn_from_the_numbers_they_keep():
    wide, narrow = map(told, PICTURES)
    assert wide == narrow
    assert PICTURES[0].read_text(encoding="utf-8") == hero.draw(wide)
    assert PICTURES[1].read_text(encoding="utf-8") == hero.draw(wide, narrow=True)
    assert all(picture.stat().st_size < 100_000 for picture in PICTURES)


def test_the_numbers_are_those_of_the_demo(now):
    """To the last one under the Python that is named; another one has other words."""
    shown = told(PICTURES[0])
    if shown["python"] == platform.python_version():
        assert shown == now
    assert shown.keys() == now.keys()
    for name in ("rounds", "columns", "upload"):
        assert shown[name] == now[name]


def test_an_upload_shows_nothing_of_its_word(now):
    """Its shades are uniform, as masks are; a sketch has one counter of each row at most."""
    letters = "".join("".join(upload) for upload in now["uploads"])
    assert len(letters) == 3 * 7 * hero.SHOWN
    steps = np.array([ord(letter) - ord("e") for letter in letters])
    # uniform in [-4, 4], with a standard deviation of 2.31 in each: five of the mean's
    assert abs(steps.mean()) < 5 * 2.31 / len(letters) ** 0.5
    assert len(set(now["uploads"][0]) & set(now["uploads"][1])) == 0
    assert set(letters) == set("abcdefghi")


def test_the_readme_quotes_what_the_picture_shows():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    demo = readme.partition("<!-- demo")[2].partition("<!-- end")[0]
    rows = re.findall(r"^ *\d+  (\S+) +([0-9.]+) %", demo, re.MULTILINE)
    quoted = [[word, f"{float(share):.2f}"] for word, share in rows]
    shown = told(PICTURES[0])["shares"]
    assert len(quoted) >= 2
    assert quoted[: len(shown)] == shown[: len(quoted)]
