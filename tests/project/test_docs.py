"""The documents keep what they say: examples run, links lead somewhere."""

import doctest
import json
import re
import runpy
import tomllib
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedtally
from fedtally.answer import documents, sections
from fedtally.base.encoding import Encoding
from fedtally.cli.app import run
from fedtally.domain import Dictionary, OpenStrings
from fedtally.privacy import mechanism
from fedtally.privacy.config import propose
from fedtally.sources import domain_of

ROOT = Path(__file__).resolve().parents[2]
Point = namedtuple("Point", "x y")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("library", 80),
        ("plan", 7),
        ("accounting", 3),
        ("accuracy", 3),
        ("evidence", 2),
        ("silos", 8),
        ("windows", 9),
        ("privacy-proofs/renyi", 3),
        ("privacy-proofs/shares", 3),
        ("privacy-proofs/table_sampler", 4),
    ],
)
def test_examples_of_a_page_run(page, least):
    outcome = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False)
    assert outcome.attempted >= least
    assert outcome.failed == 0


def numbers_on(page, pattern):
    """Return the numbers of the one sentence of a page that a pattern finds."""
    [found] = re.findall(pattern, (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    return [float(number.replace(",", "")) for number in ([found], found)[type(found) is tuple]]


def test_which_noise_is_scanned_is_said_as_the_program_does_it():
    """Also the variance: a table of it is scanned, and one of a variance larger by 1 is not."""
    [entries] = numbers_on("evidence", r"serves tables of more than (\d+) entries")
    [variance] = numbers_on("evidence", r"a share of variance above about (\d+) ")
    assert numbers_on("privacy", r"Up to (\d+) entries, a draw compares") == [entries]
    said = numbers_on("privacy", r"suffice for a client's variance up to (\d+), and a server's")
    assert said == [variance]
    sampler = r"a table of at most (\d+) entries, which is a variance up to about (\d+)\."
    assert numbers_on("privacy-proofs/table_sampler", sampler) == [entries, variance]
    small, large = mechanism.skellam(variance), mechanism.skellam(variance + 1)
    assert small.is_small and len(small.masses) <= entries
    assert not large.is_small and len(large.masses) > entries
    assert replace(small, masses=(1,) * int(entries)).is_small
    assert not replace(small, masses=(1,) * int(entries + 1)).is_small
    [variance] = numbers_on("evidence", r"is scanned, too, up to a variance of (\d+);")
    assert numbers_on("privacy", r"and a server's up to (\d+)\.") == [variance]
    assert numbers_on(
        "threat-model", r"noise of variance up to (\d+) \(`variance` in the plan"
    ) == [variance]
    assert numbers_on(
        "privacy-proofs/table_sampler", r"from the other: up to a variance of (\d+)"
    ) == [variance]
    assert mechanism.rounded_gaussian(variance).is_small
    assert not mechanism.rounded_gaussian(variance + 1).is_small


def test_what_replacing_costs_is_said_as_the_program_computes_it():
    said = numbers_on(
        "privacy",
        r"about (\S+) with Gaussian noise, (\S+) with clients' shares \(Skellam\), and (\d+) with",
    )
    histogram = {"rows": 1, "width": 100, "encoding": Encoding.HISTOGRAM}
    for epsilon, delta, noise in zip(
        said,
        (1e-6, 1e-6, 0.0),
        (
            {},
            {"trust": "distributed", "honest_survivors": 180},
            {"mechanism": "geometric"},
        ),
        strict=True,
    ):
        terms = propose(epsilon=1.0, delta=delta, **histogram, **noise)
        assert round(terms.replace_one.epsilon, 2) == epsilon


def test_the_pilot_of_the_paper_sizes_a_sketch(capsys):
    pytest.importorskip("matplotlib")
    page = (ROOT / "docs" / "paper_in_20_minutes.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```{code-cell}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {}
    exec(cells[0], names)
    [cell] = [cell for cell in cells if "tau=0.02" in cell]
    exec(cell, names)
    rows, width, sent, one_hot, asked, error = map(
        float, re.findall(r"[0-9.]+", capsys.readouterr().out.split("\n", 2)[2])
    )
    assert rows >= 3 and width > 1 and sent < one_hot / 5 and error <= asked


def test_the_list_of_found_words_has_every_word(tmp_path, monkeypatch):
    """The line of the page keeps words that a spreadsheet or pandas would take for something else.

    tests/project/test_pasted.py runs the block as a whole.
    """
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    [line] = re.findall(r"^python -c '(.*)'$", page, re.MULTILINE)
    assert "--output found.parquet" in page and "--domain list.parquet" in page
    monkeypatch.chdir(tmp_path)
    words = ["@anna", "=)", "-lol", "+1", "null", "NA", "nan", "10", "1.0", 'a,"b"', "New York"]
    too_long = "x" * 99  # to be read
    held = [word for word in [*words, too_long] for _ in range(60)]
    few = OpenStrings(bits=14)  # hashes, so that they are looked at quickly
    found = fedtally.estimate(held, domain=few, allow_rare_names=True, confidence=0.0, seed=1)
    found.export("found.parquet")
    items = found.to_pandas()["item"]
    assert set(items.dropna()) == set(words) and items.isna().any()
    exec(line, {})
    assert domain_of("list.parquet") == Dictionary(list(items.dropna()))


def test_every_page_with_examples_is_run():
    marks = [mark for mark in test_examples_of_a_page_run.pytestmark if mark.name == "parametrize"]
    run = {ROOT / "docs" / f"{page}.md" for page, _ in marks[0].args[1]}
    assert {page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")} == run


def test_the_reference_has_every_public_name():
    reference = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\.\. auto\w+:: fedtally\.(\w+)$", reference, re.MULTILINE))
    assert documented == set(fedtally.__all__) - {"__version__"}


def section_of_design(begin: str, end: str) -> str:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    return page.partition(begin)[2].partition(end)[0]


def files_below(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (ROOT / folder).rglob("*.*")


def test_the_layout_has_every_module():
    """Whoever looks for a file finds it on the page of the design, and none that is gone."""
    layout = section_of_design("```\nsrc/fedtally/\n", "\n```\n")
    named = set(re.findall(r"\b\w+\.py\b", layout))
    modules = {path.name for path in files_below("src/fedtally") if path.suffix == ".py"}
    assert modules - {"__init__.py"} <= named
    assert named <= {
        path.name for path in files_below("src", "tools", "tests", "experiments", "docs")
    }


def test_where_to_put_it_names_files_that_are_there():
    """NAME stands for a file to be; other paths are whole, or their last parts."""
    lists = section_of_design("## Where to put it\n", "\n## Who may import whom\n")
    named = set(re.findall(r"`([\w./-]+\.(?:py|md|toml|ts|dot|txt|json))`", lists))
    assert len(named) > 200
    folders = ("src", "tools", "tests", "docs", "benchmarks", "experiments")
    web = ("clients/web/src", "clients/web/test")  # what is beside them is installed
    found = [*ROOT.glob("*.*"), *files_below(*folders, *web)]
    ends = {path.relative_to(ROOT).parts[-n:] for path in found for n in range(1, 8)}
    assert [name for name in named if "NAME" not in name and Path(name).parts not in ends] == []


def test_every_page_is_on_the_site():
    """Sphinx says the same, as a warning; here without building it."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/*.md"):
        entry = rf"^({page.stem}|.* <{page.stem}>)$"
        assert page.stem == "index" or re.search(entry, index, re.MULTILINE), page


def test_a_reader_finds_a_page_among_thirty():
    """Proofs stand beside them, in a folder of their own, and the design is for who changes it."""
    assert len({*ROOT.glob("docs/*.md")} - {ROOT / "docs" / "design.md"}) <= 30


def test_no_page_is_longer_than_a_reader_bears():
    """Pages to look something up in may be: those of tools/style.toml, and what has no others.

    Comments, which nobody reads there, do not count.
    """
    look_up = tomllib.loads((ROOT / "tools" / "style.toml").read_text("utf-8"))["look_up"]
    long = set()
    for page in ROOT.glob("docs/*.md"):
        read = re.sub("<!-- asked:.*?-->\n\n", "", page.read_text("utf-8"), flags=re.DOTALL)
        if len(read.splitlines()) > 250:
            long.add(page.relative_to(ROOT).as_posix())
    assert long <= {*look_up, "docs/library.md"}


def test_the_front_page_leads_to_the_page_of_uploads(tmp_path, monkeypatch):
    """The build of the site makes the page; here another text stands for it."""
    pytest.importorskip("sphinx")
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    write, app = conf["write_show"], SimpleNamespace(outdir=tmp_path)
    shown = [Point(1, 2)]  # by their seeds
    monkeypatch.setitem(write.__globals__, "show_page", lambda shown: f"{len(shown)} fields")
    monkeypatch.setitem(write.__globals__, "demonstrate", lambda seed: shown[seed])
    for kind, failure in (("text", None), ("html", ValueError("the build failed"))):
        app.builder = SimpleNamespace(format=kind)
        write(app, failure)
        assert list(tmp_path.iterdir()) == []
    write(app, None)
    [page] = tmp_path.iterdir()
    assert page.read_text(encoding="utf-8") == "2 fields"
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f'<a href="{page.name}">' in index
    assert not (ROOT / "docs" / f"{page.stem}.md").exists()  # whose page would have its name


def table_of(heading: str) -> dict[str, str]:
    """Return the first table below a heading of the page of output: a row by each of its fields."""
    page = (ROOT / "docs" / "output.md").read_text(encoding="utf-8")
    rows = page.partition(f"{heading}\n")[2].partition("| field | |\n|---|---|\n")[2]
    rows = rows.partition("\n\n")[0].splitlines()
    return {name: row for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def test_the_reference_has_the_fields_of_every_section():
    """None is missing, and none of them is told of that no section has."""
    items = ["tea"] * 600 + ["milk"] * 300
    asked = {"domain": ["tea", "milk"], "seed": 1, "epsilon": 1.0, "not_private": True}
    result = fedtally.estimate(items, **asked)
    every = documents.of_result(result, result.top(2), result.estimates(["tea"]))
    told = table_of("## `fedtally-result/2`: estimate, demo")
    assert set(told) == set(every) - {"schema"}
    assert set(sections.counted.fields(result)) <= set(told)
    # fields that only a plan with a calendar has: tests/system/test_plan_calendar.py
    planned, private = table_of("### The plan"), table_of("### Privacy")
    assert set(planned) - {"calendar"} == set(sections.cost.fields(result.plan))
    assert set(private) - {"in_a_row"} == set(
        sections.privacy.fields(result.plan, result.secure_sum)
    )
    named = fedtally.estimate(items, domain="open", seed=1, allow_rare_names=True)
    top = result.top(2)
    week = fedtally.estimate(items, rounds=[1, 2, 3] * 300, seed=1).window("last:1").span
    assert week is not None
    for field, parts in (
        ("window", week.fields()),
        ("error", sections.error.fields(top)),
        ("intervals", sections.error.intervals_fields(result)),
        ("estimates", sections.listed.fields(result, top)[0]),
        ("open", sections.counted.open_fields(named)),
    ):
        assert [name for name in parts if f"`{name}`" not in told[field]] == [], field


def test_the_reference_has_the_fields_of_a_proposal(capsys):
    assert run(["plan", "--clients", "50", "--domain-size", "9", "--tau", "0.1", "--json"]) == 0
    proposal = json.loads(capsys.readouterr().out)
    assert set(table_of("## A plan and its bill")) == set(proposal) - {"schema"}


def test_the_reference_has_the_fields_of_what_changed():
    days = [day for day in range(8) for _ in range(100)]
    drinks = ["tea"] * 400 + ["tea", "tea", "tea", "milk"] * 100
    result = fedtally.estimate(drinks, rounds=days, seed=1)
    shared = {"schema", "fingerprint", "recovery", "privacy", "warnings"}
    trends, series = result.trends(), result.series(["tea"])
    for heading, parts in (
        ("### What changed", documents.of_trends(result, trends)),
        ("An item of `changed` has:\n", documents.of_trends(result, trends)["changed"][0]),
        ("and the same four fields.\n", documents.of_series(result, series)),
        ("A row of `points` has:\n", documents.of_series(result, series)["points"][0]),
    ):
        told = table_of(heading)
        assert set(told) == set(parts) - shared, heading


# A full stop, a question mark or an exclamation mark with another word after it. A dot after a dot
# ("0 .. 9", "...") is none, nor is that of an abbreviation or of somebody's initial.
SENTENCE_END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bet al)(?<!\bcf)(?<!\b[A-Z])(?<!\.)[.!?][)\"'*_]* +(?=\S)"
)


def prose(page: str) -> list[str]:
    """Return the lines outside code, tables, headings and generated parts, without list marks."""
    page = re.sub(r"^ *```.*?^ *```", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"<!-- generated.*?<!-- end -->", "", page, flags=re.DOTALL)
    page = re.sub(r"^ *([-*]|\d+\.) ", "", page, flags=re.MULTILINE)
    page = re.sub(r"^\*\*[^*]+\*\* ", "", page, flags=re.MULTILINE)  # "**A lead.** The sentence."
    page = re.sub(r"`[^`\n]+`", "code", page)
    return [line for line in page.splitlines() if not re.match(r" *[|#]", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_line_holds_one_sentence(page):
    """So that a change shows in a diff as the sentences that it changes."""
    lines = prose(page.read_text(encoding="utf-8"))
    assert [line for line in lines if SENTENCE_END.search(line)] == []
