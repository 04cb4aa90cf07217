"""Pages in plain words stay so, and tools/style.py finds what breaks its rules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("style", ROOT / "tools" / "style.py")
style = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = style
spec.loader.exec_module(style)

GOOD = "# Count a table\n\nOne command counts it.\n\n```sh\nfedtally demo\n```\n"
LONG = " ".join(["word"] * (style.MOST_WORDS + 1))
PLANTED = {
    f"{GOOD}\nA short one. {LONG}.\n": (style._LONG, 9),
    f"{GOOD}\n- {LONG}.\n": (style._LONG, 9),
    f"{GOOD}\nThe time is that of a server.\n": (style._CHAINED, 9),
    f"{GOOD}\nOne line.\nStrings of which\nnobody knows.\n": (style._CHAINED, 10),
    f"{GOOD}\n| a | b |\n|---|---|\n| c | {LONG} |\n": (style._CELL, 11),
    f"{GOOD}\n| a | b |\n|---|---|\n| c | those of others |\n": (style._CHAINED, 11),
    f"{GOOD}\nIf it rains, stay, if you can.\n": (style._IFS, 9),
    GOOD.replace("One command", "This page says which command"): (style._INTRODUCES, 3),
    GOOD.replace("\n\n```", 25 * "\n" + "```"): (style._LATE, 28),
    "# Nothing to copy\n\nOnly words.\n": (style._LATE, 1),
}


@pytest.mark.parametrize("name", style.CLEAN)
def test_a_page_that_was_rewritten_keeps_to_the_rules(name):
    assert style.breaks_of(name) == []


@pytest.mark.parametrize(("page", "found"), PLANTED.items(), ids=range(len(PLANTED)))
def test_each_rule_finds_what_breaks_it(page, found):
    assert [(each.rule, each.line) for each in style.breaks(page)] == [found]


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_every_rule_is_tried():
    assert {rule for rule, _ in PLANTED.values()} == set(style.RULES)


def test_code_and_what_a_program_writes_are_not_read():
    page = f"{GOOD}\n```text\n{LONG} that of\n```\n\n<!-- generated: x -->\n{LONG}\n<!-- end -->\n"
    assert style.breaks(page) == []
    assert style.breaks(f"{GOOD}\nOne `if` and `if` and `that of`.\n") == []


def test_a_full_stop_within_an_abbreviation_ends_no_sentence():
    half = " ".join(["word"] * (style.MOST_WORDS // 2))
    page = f"{GOOD}\n{half} e.g. {half} word word.\n"
    assert [found.rule for found in style.breaks(page)] == [style._LONG]


def test_pages_that_need_no_example_exist():
    assert all((ROOT / name).exists() for name in style.REFERENCE)


def test_options_with_long_help_are_found_below_a_group():
    said = {
        "--short": "Count at most K items of each client, drawn at random here [1; by a plan]",
        "--long": LONG,
    }
    options = [click.Option([name], help=text) for name, text in said.items()]
    group = click.Group("all", commands={"one": click.Command("one", params=options)})
    assert list(style.wordy_options(group, "all")) == ["all one --long"]
