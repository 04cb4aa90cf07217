"""What tools/keywords.py writes is what the options say: keywords, docstrings and the page."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedtally.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def keywords() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keywords", ROOT / "tools" / "keywords.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_what_is_written_is_what_the_options_say(keywords: ModuleType) -> None:
    assert keywords.difference() == "", "run python tools/keywords.py"


def test_a_default_that_was_changed_by_hand_is_found(keywords: ModuleType) -> None:
    def read(path: Path) -> str:
        text = path.read_text("utf-8")
        return text.replace("top: int = 20,", "top: int = 25,")

    found = keywords.difference(read)
    assert "-    top: int = 25,\n+    top: int = 20,\n" in found


def test_an_entry_of_a_docstring_that_was_changed_by_hand_is_found(keywords: ModuleType) -> None:
    def read(path: Path) -> str:
        return path.read_text("utf-8").replace("        tau: the largest", "        tau: a large")

    assert "-        tau: a large" in keywords.difference(read)


def test_other_entries_and_keywords_stay(keywords: ModuleType) -> None:
    here = next(each for each in keywords.written() if each.name == "partial_tally")
    text = (keywords.SOURCE / here.path).read_text("utf-8")
    again = keywords.with_keywords(text.replace("    item: str |", "    nobody: str |", 1), here)
    assert again == text
    for name in ("partition", "private"):
        assert f"\n        {name}: " in again and f"\n    {name}: " in again


def test_a_file_without_the_two_comments_is_refused(keywords: ModuleType) -> None:
    here = keywords.written()[0]
    with pytest.raises(ValueError, match="# keywords: written by"):
        keywords.with_keywords("def estimate(\n    data,\n):\n    pass\n", here)
    with pytest.raises(ValueError, match="has no estimate"):
        keywords.with_keywords("x = 1\n", here)


def test_the_page_has_an_anchor_for_each_option(keywords: ModuleType) -> None:
    headings = re.findall(r"^### `([^`]+)`", keywords.page(), re.M)
    assert headings == [known.flag or known.name for known in OPTIONS.values()]
    assert len(headings) == len(set(headings))
