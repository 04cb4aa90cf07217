"""No page breaks a rule of tools/style.py more often than it did, and the tool finds each rule."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
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
    f"{GOOD}\nA short one. {LONG}.\n": ("long", 9),
    f"{GOOD}\n- {LONG}.\n": ("long", 9),
    f"{GOOD}\nThe time is that of a server.\n": ("chain", 9),
    f"{GOOD}\nOne line.\nStrings of which\nnobody knows.\n": ("chain", 10),
    f"{GOOD}\n| a | b |\n|---|---|\n| c | {LONG} |\n": ("cell", 11),
    f"{GOOD}\n| a | b |\n|---|---|\n| c | those of others |\n": ("chain", 11),
    f"{GOOD}\nIf it rains, stay, if you can.\n": ("ifs", 9),
    GOOD.replace("One command", "This page says which command"): ("introduction", 3),
    GOOD.replace("counts it.", "counts it.\nThe page is for all."): ("introduction", 4),
    GOOD.replace("\n\n```", 25 * "\n" + "```"): ("example", 28),
    "# Nothing to copy\n\nOnly words.\n": ("example", 1),
    f"{GOOD}\nSeveral QZQs speak it.\n": ("abbreviation", 9),
    f"{GOOD}\n| a | b |\n|---|---|\n| c | QZQ |\n": ("abbreviation", 11),
}
DEAD = [
    "[a](nowhere.md)",
    "[a](page.md#nowhere)",
    "[a](#nowhere)",
    "[a](#count-a-table-1)",
    "![a](figures/nowhere.svg)",
]
ALIVE = [
    "[a](page.md#count-a-table)",
    "[a](#the-code-way)",
    "[a](#twice) [b](#twice-1)",
    "[a](#named)",
    "[a](page.md) [b](https://example.org/x.md#y) [c](picture.svg#view)",
]


def test_no_page_breaks_a_rule_more_often_than_it_may():
    assert style.faults() == []


def test_exceptions_are_few_have_reasons_and_are_needed(monkeypatch):
    exceptions = style.accepted()
    assert len(exceptions) <= style.MOST_EXCEPTIONS
    monkeypatch.setattr(style, "accepted", lambda: ())
    for each in exceptions:
        assert each["because"]
        found = style.breaks_of(each["page"])
        fits = [one for one in found if one.text.startswith(each["begins"])]
        assert each["rule"] in {one.rule for one in fits}, each


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with one page and one source, of which the tool thinks as of the repository."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "src").mkdir()
    monkeypatch.setattr(style, "ROOT", tmp_path)
    return tmp_path / "docs" / "page.md"


@pytest.mark.parametrize("line", [*DEAD, *ALIVE])
def test_links_that_lead_nowhere_are_found(site, line):
    page = f"{GOOD}\n## The `code` way\n\n## Twice\n\n## Twice\n\n(named)=\n\n{line}\n"
    site.write_text(page, encoding="utf-8")
    (site.parent / "picture.svg").touch()
    style.anchors.cache_clear()
    found = style.breaks_of("docs/page.md")
    assert [(each.rule, each.line) for each in found] == [("link", 17)] * (line in DEAD)


def test_names_of_pages_in_the_source_lead_somewhere(site):
    site.write_text(GOOD, encoding="utf-8")
    style.anchors.cache_clear()
    good = "see docs/page.md, and docs/page.md#count-a-table"
    (site.parents[1] / "src" / "a.py").write_text(
        f"{good}\ndocs/page.md#x\ndocs/gone.md\n", encoding="utf-8"
    )
    assert list(style.dead_names()) == ["src/a.py:2: docs/page.md#x", "src/a.py:3: docs/gone.md"]


def test_an_exception_is_for_one_sentence_of_one_page(site, monkeypatch):
    page = f"{GOOD}\nFirst {LONG}.\n\nSecond {LONG}.\n"
    for name in ("page.md", "other.md"):
        site.with_name(name).write_text(page, encoding="utf-8")
    excepted = {"page": "docs/page.md", "rule": "long", "begins": "First", "because": "a law"}
    monkeypatch.setattr(style, "accepted", lambda: (excepted,))
    assert [each.line for each in style.breaks_of("docs/page.md")] == [11]
    assert [each.line for each in style.breaks_of("docs/other.md")] == [9, 11]


def test_counts_may_shrink_and_move_and_never_grow():
    before = {"a.md": Counter(long=2, chain=1)}
    assert style.worse(before, {"a.md": Counter(long=1)}) == []
    assert len(style.worse(before, {"a.md": Counter(long=3), "b.md": Counter(ifs=1)})) == 2
    moved = {"c.md": Counter(chain=1), "b.md": Counter(long=2), "d.md": Counter()}
    assert style.renewed(before, moved) == '"b.md" = { long = 2 }\n"c.md" = { chain = 1 }\n'
    with pytest.raises(ValueError, match="sentence over 28 words: 3, 2 before"):
        style.renewed(before, {"a.md": Counter(long=2), "b.md": Counter(long=1)})


def test_terms_of_the_glossary_are_used(monkeypatch):
    monkeypatch.setattr(style, "terms", lambda: ("Cohort", "Zyzzyva"))
    monkeypatch.setattr(style, "abbreviations", lambda: frozenset({"DAP", "QZQ"}))
    assert style.unused_terms() == ["Zyzzyva", "QZQ"]


def test_the_glossary_has_the_terms_of_the_field():
    """A round, a sketch, a secure sum and a guarantee cannot be told without them."""
    terms = {term.lower() for term in style.terms()}
    assert terms >= {"batch", "cohort", "helper", "leader", "relation", "release", "report"}
    assert terms >= {"roster", "schedule", "unmask"}
    assert len(terms) == len(style.terms())


def test_questions_are_answered_at_once():
    """A heading that fits a line of a search, and an answer that is read in one breath."""
    page = (ROOT / style.GLOSSARY).read_text(encoding="utf-8")
    page = re.sub("<!-- asked:.*?-->\n\n", "", page, flags=re.DOTALL)  # for the search alone
    sections = [part.partition("\n\n") for part in re.split(r"^#+ ", page, flags=re.MULTILINE)]
    answers = {title: text for title, _, text in sections if title.endswith("?")}
    assert len(answers) == len(re.findall(r"^### .+\?$", page, re.MULTILINE)) > 200
    assert not {question for question in answers if len(question.split()) > 12}
    most = {
        question: len(re.findall(r"^.", re.sub(r"(?ms)^```.*?^```$", "", answer), re.MULTILINE))
        for question, answer in answers.items()
    }
    assert not {question for question, lines in most.items() if lines > 8}
    assert not {question for question, answer in answers.items() if "](" not in answer}


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_every_rule_is_tried():
    assert {rule for rule, _ in PLANTED.values()} | {"link"} == set(style.RULES)


@pytest.mark.parametrize(("page", "found"), PLANTED.items(), ids=range(len(PLANTED)))
def test_each_rule_finds_what_breaks_it(page, found):
    assert [(each.rule, each.line) for each in style.breaks(page)] == [found]


def test_what_is_not_read_or_breaks_nothing():
    """Code and what a program writes are not read; a page may speak of itself further down."""
    page = f"{GOOD}\n```text\n{LONG} that of\n```\n\n<!-- generated: x -->\n{LONG}\n<!-- end -->\n"
    assert style.breaks(page) == []
    assert style.breaks(f"{GOOD}\nOne `if` and `if` and `that of`.\n") == []
    assert style.breaks(f"{GOOD}\n## More\n\nThis page says more.\n") == []
    assert style.breaks(f"{GOOD}\n<!-- asked:\nThat of what? Of ABCX\n-->\n") == []
    assert style.breaks(f"{GOOD}\nThe page has three steps, in JSON and CAPITALS.\n") == []


def test_a_full_stop_within_an_abbreviation_ends_no_sentence():
    half = " ".join(["word"] * (style.MOST_WORDS // 2))
    page = f"{GOOD}\n{half} e.g. {half} word word.\n"
    assert [found.rule for found in style.breaks(page)] == ["long"]


def test_pages_that_need_no_example_exist():
    assert all((ROOT / name).exists() for name in style.look_up())


def test_options_with_long_help_are_found_below_a_group():
    said = {
        "--short": "Count at most K items of each client, drawn at random here [1; by a plan]",
        "--long": LONG,
    }
    options = [click.Option([name], help=text) for name, text in said.items()]
    group = click.Group("all", commands={"one": click.Command("one", params=options)})
    assert list(style.wordy_options(group, "all")) == ["all one --long"]
