"""The HTML report: hostile items, what it may load, and what it says without privacy."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import fedtally
from fedtally.answer import amounts, charts, figures, page, screen, sections, summary
from fedtally.answer.answer import Answer
from fedtally.answer.estimates import largest_uncertainty
from fedtally.answer.merged_page import write_merged_page
from fedtally.answer.noise_floor import standing
from fedtally.answer.page import write_page
from fedtally.answer.result import Result
from fedtally.cli import console
from fedtally.cli.app import cli, run
from fedtally.domain import OpenStrings, Unread
from fedtally.errors import InvalidInputError
from fedtally.store import Ledger

pytestmark = pytest.mark.extras  # helpers, and not the tests, ask for Jinja2 and matplotlib
EXACT = "the sums of each round are exact"
HOSTILE = '<script>alert("x")</script>'


def _page() -> str:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    result = fedtally.estimate([HOSTILE] * 3 + ["tea"], seed=1)
    return page.page(result, result.top(2), command="fedtally estimate <b>")


@pytest.mark.promise
def test_an_item_is_text_and_never_markup() -> None:
    text = _page()
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(" in text
    assert text.count("<script>") == 1
    assert "<b>" not in text


def test_the_policy_allows_the_one_script_and_style_alone() -> None:
    text = _page()
    for kind in ("script", "style"):
        (inner,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{kind}-src &#39;sha256-{digest}&#39;" in text
    assert "default-src &#39;none&#39;" in text
    assert not re.search(r"""(src|href)=["'](?!data:)""", text.partition("<title>")[2])


def test_a_result_without_privacy_says_so_before_its_title() -> None:
    text = _page()
    assert text.index("No differential privacy") < text.index("<h1>")


def test_the_command_leaves_out_the_address_of_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--ledger", "postgresql://me:pw@host"], ["--ledger=postgresql://me:pw@host"]):
        monkeypatch.setattr(sys, "argv", ["fedtally", "estimate", *words, "--epsilon", "1"])
        shown = console.command_line()
        assert "pw" not in shown
        assert shown.endswith("--epsilon 1")


def test_a_report_has_no_folder_and_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may name a person, and who knows the seed knows the draws."""
    given = (
        "fedtally estimate /home/ana/words.txt --seed 17 --domain=/home/ana/list.txt --query"
        " https://a.org/b --report out/r.html"
    )
    monkeypatch.setattr(sys, "argv", given.split())
    assert console.command_line() == (
        "fedtally estimate words.txt --seed ... --domain=list.txt --query https://a.org/b --report"
        " r.html"
    )
    monkeypatch.setattr(sys, "argv", ["fedtally", "demo", "--seed=17"])
    assert console.command_line() == "fedtally demo --seed=..."


@pytest.mark.parametrize("title", [["--title", "2025/26 & more"], ["--title=2025/26 & more"]])
def test_a_title_is_no_file_and_stays_whole(
    monkeypatch: pytest.MonkeyPatch, title: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedtally", "demo", *title])
    with click.Context(cli):
        assert "2025/26 & more" in console.command_line()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("estimate a/t.csv --item km/h --query 1/2", "estimate t.csv --item km/h --query 1/2"),
        ("estimate a/t.csv --item=km/h --client a/b", "estimate t.csv --item=km/h --client a/b"),
        ("estimate - --save=a/r.fed --plot a/p.png", "estimate - --save=r.fed --plot p.png"),
        ("estimate t.csv --quiet --plan a/p.toml", "estimate t.csv --quiet --plan p.toml"),
        ("report a/r.fed -o a/r.html --title 25/26", "report r.fed -o r.html --title 25/26"),
        ("report -oa/r.html -- a/r.fed", "report -or.html -- r.fed"),
        ("merge a/1.fed b/2.fed a/c/ --top 5", "merge 1.fed 2.fed c --top 5"),
        ("query a/r.fed km/h -- -1/2", "query r.fed km/h -- -1/2"),
        ("aggregate leader run a/b --listen unix:/a/s", "aggregate leader run b --listen s"),
        # Nothing is known of these: what may be a path is shown as one.
        ("unknown a/b --of a/c --seed 17 --to=a/d", "unknown b --of c --seed ... --to=d"),
        ("demo --unknown --seed 17 a/b", "demo --unknown --seed ... b"),
    ],
)
def test_only_folders_of_paths_are_left_out(
    monkeypatch: pytest.MonkeyPatch, given: str, shown: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedtally", *given.split()])
    with click.Context(cli):
        assert console.command_line() == f"fedtally {shown}"


def test_a_column_of_a_list_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list.csv").touch()
    words = [f"--domain={tmp_path}/list.csv:km/h", "--dictionary", f"{tmp_path}/list.csv:km/h"]
    monkeypatch.setattr(sys, "argv", ["fedtally", "estimate", "t.csv", *words])
    with click.Context(cli):
        shown = console.command_line()
    assert shown == "fedtally estimate t.csv --domain=list.csv:km/h --dictionary list.csv:km/h"
    # Where there is no such file, what follows the colon may be a folder.
    monkeypatch.setattr(sys, "argv", ["fedtally", "estimate", "t.csv", "--domain", "a:/home/ana"])
    with click.Context(cli):
        assert console.command_line() == "fedtally estimate t.csv --domain ana"
    # Outside of a command nothing is known of its options.
    monkeypatch.setattr(sys, "argv", ["fedtally", "estimate", "a/t.csv", "--item", "km/h"])
    assert console.command_line() == "fedtally estimate t.csv --item h"


def _text_of(result: fedtally.Result) -> str:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    return page.page(result, result.top(5), command="fedtally estimate words.txt")


@pytest.mark.promise
@pytest.mark.parametrize(
    ("mechanism", "numbers"),
    [("rounded-gaussian", "epsilon 2, delta 1e-06"), ("geometric", "pure epsilon 2")],
)
def test_the_report_of_a_private_plan_says_what_it_guarantees(mechanism: str, numbers: str) -> None:
    options = {"domain": "range:1..50", "epsilon": 2.0, "delta": 1e-6, "mechanism": mechanism}
    text = _text_of(fedtally.estimate([1, 2, 2, 3] * 100, **options))
    assert 'role="note"' not in text  # the banner of runs without privacy
    assert "is right in at most 88.1 % of cases" in _plain(text)  # e^2 : 1
    assert numbers in re.sub("<[^>]*>", "", text)
    for said in (
        "predicted from the plan",
        "<dt>Noise, in units of one client&#39;s effect</dt>",
        "Who could learn what",
    ):
        assert said in text
    marked = _text_of(fedtally.estimate([1, 2, 2, 3] * 100, **options, not_private=True, seed=1))
    assert marked.index("Not private: nothing is guaranteed") < marked.index("<h1>")
    assert "of cases" not in marked


@pytest.mark.promise
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ["Whoever made the sums all that each client holds", "what exact sums show"]),
        (
            {"secure_sum": "secagg"},
            [
                "The server who took part, and exact sums over at least 19 clients",
                "as long as it follows the protocol and at most 1 client of a sum works with it",
                "Other clients how many took part Whoever ran this all that each client holds",
            ],
        ),
        (
            {"secure_sum": "secagg", "adversary": "active", "epsilon": 4.0},
            [
                "The server who took part, and noised sums over",
                "as long as it did not choose the list of keys and at most 1 of all 20 listed",
                "Other clients who took part",
            ],
        ),
        (
            {"secure_sum": "two-server", "epsilon": 4.0},
            [
                "as long as the two servers do not work together, and neither chose the list of",
                "1 of all 20 listed clients works with one of them The leading server noised sums",
            ],
        ),
        (
            {"secure_sum": "secagg", "epsilon": 4.0, "trust": "central"},
            ["exact sums over at least 19 clients, and added the noise", "what noised sums show"],
        ),
    ],
    ids=["ideal", "semi-honest", "active", "two-server", "central"],
)
def test_a_report_says_who_could_learn_what(options: dict[str, Any], said: list[str]) -> None:
    result = fedtally.estimate([1, 2, 2, 3] * 5, domain="range:1..9", **options)
    text = html.unescape(re.sub("<[^>]*>", " ", _text_of(result)))
    text = " ".join(text.partition("Who could learn what")[2].split())
    assert all(each in text for each in said)
    # agents are no simulation
    agents = result.secure_sum | {"engine": "agents"}
    rows = dict(sections.trust.learned(result.plan, agents))
    assert "Whoever ran this" not in rows


def test_a_map_of_one_cell_says_so() -> None:
    text = _text_of(fedtally.estimate(["1.5,2.5"] * 50, domain="grid:1..2,2..3,1", seed=1))
    assert "The one cell whose share stands above noise. A cell is 1 degree wide." in _plain(text)
    assert "All 1" not in text and "1 degrees" not in text


def test_the_report_of_a_grid_has_a_map() -> None:
    import numpy as np

    places = np.array([[40.7, -74.0]] * 30 + [[34.0, -118.2]] * 10)
    text = _text_of(fedtally.estimate(places, domain="grid:25..50,-130..-60,0.5", seed=1))
    said = "Map of 2 cells. The most frequent one, around 40.75, -73.75, holds 75.00 %."
    assert f'alt="{said}"' in text
    assert "Map of" not in _text_of(fedtally.estimate(["tea"], seed=1))


def test_limits_have_the_digits_that_their_width_needs() -> None:
    result = fedtally.estimate(["tea"] * 50_000 + ["milk"] * 50_000, seed=1)
    assert re.findall(r"<td[^>]*>([0-9.]+) %</td>", _text_of(result))[:3] == [
        "50.0000",
        "49.9990",
        "50.0010",
    ]


def test_a_saved_result_is_reported_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    fedtally.estimate(["tea", "tea", "milk"], seed=1).save("r.fed")
    assert run(["report", "r.fed"]) == 0
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "<h1>Most frequent items in r.fed</h1>" in text
    assert "Share of each item among 3 clients; 2 candidates." in text
    assert run(["report", "r.fed", "-o", "page.html", "--top", "1", "--title", "Drinks"]) == 0
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "milk" not in text and "<h1>Drinks</h1>" in text
    capsys.readouterr()
    assert run(["report", "r.fed", "-o", "page.pdf"]) == 2
    assert run(["report", "r.fed", "-o", "r.fed"]) == 2
    said = capsys.readouterr().err
    assert "must end in .html" in said and "it is read by this run" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "r.fed", "r.html"]


def _command_in(path: Path) -> str:
    """Return the command that a report names."""
    (found,) = re.findall(r"<code>fedtally.*?</code>", path.read_text("utf-8"))
    return html.unescape(re.sub("<[^>]*>", "", found)).strip()


def test_a_saved_result_knows_the_command_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its report is of that run. Seed, folders and items that were asked for are not kept."""
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    asked = ["estimate", "zipf:d=9,n=99", "--seed", "41", "--query", "7", "--query=8"]
    given = [*asked, "--save", str(tmp_path / "r.fed"), "--quiet"]
    monkeypatch.setattr(sys, "argv", ["fedtally", *given])
    assert run(given) == 0
    made = "fedtally estimate zipf:d=9,n=99 --seed ... --query ... --query=... --save r.fed --quiet"
    result = Result.load("r.fed")
    assert result.command == result.decoded(confidence=0).command == made
    again = ["report", "r.fed"]
    monkeypatch.setattr(sys, "argv", ["fedtally", *again])
    capsys.readouterr()
    assert run(again) == 0
    assert _command_in(tmp_path / "r.html") == made
    assert run(["inspect", "r.fed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == made


def test_without_jinja_a_report_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before the run, not after it."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.chdir(tmp_path)
    assert run(["estimate", "zipf:d=10,n=99", "--report", "out.html"]) == 2
    shown = capsys.readouterr()
    assert "reports need Jinja2, which is not installed: pip install" in shown.err
    assert shown.out == "" and list(tmp_path.iterdir()) == []


def test_a_report_begins_with_its_title_its_verdict_and_its_chart() -> None:
    """Who has two minutes reads what was found, how sure it is, and sees it."""
    held = {"clients": [1, 1, 2, 3], "max_items": 1}
    text = _text_of(fedtally.estimate(["tea", "milk", "tea", "rice"], **held, seed=1))
    order = ["<h1>", 'class="origin"', 'class="verdict"', 'class="drawn"', "<figure>", "<table"]
    places = [text.index(part) for part in [*order, "How sure it is", "<details open>"]]
    assert places == sorted(places)
    [notes] = re.findall(r"Notes</h2>(.*?)</section>", text, re.DOTALL)
    lines = re.findall(r"<(?:p|li)[^>]*>(.*?)</", notes)
    assert lines and all(line[0] == line[0].upper() for line in lines)


def _plain(markup: str) -> str:
    """Return the words of a page in one line, with the spaces between them that people see."""
    bare = html.unescape(re.sub("<[^>]*>", "", markup.split("</style>")[1]))
    return " ".join(bare.replace("\u00a0", " ").split())


def test_the_verdict_names_the_first_items_and_both_uncertainties() -> None:
    result = fedtally.estimate(["tea"] * 600 + ["milk"] * 400, domain=["tea", "milk"], epsilon=2)
    tea, milk = result.top(2)
    text = _plain(_text_of(result))
    here, wider = (amounts.points(off) for off in largest_uncertainty([tea, milk]))
    assert 0 < float(here.split()[0]) < float(wider.split()[0])
    shares = [amounts.percent(estimate.frequency) for estimate in (tea, milk)]
    assert f"“tea” is held by {shares[0]} of clients, then “milk” with {shares[1]}." in text
    among = f"Each is right within {here} among these 1,000 clients"
    assert f"{among}, and {wider.split()[0]} if they stand for more people (95 %)." in text
    exact = fedtally.estimate(["tea"] * 600 + ["milk"] * 400, domain=["tea", "milk"], seed=1)
    assert "The counts are exact among these 1,000 clients. Each is right within" in _plain(
        _text_of(exact)
    )
    noise = [replace(tea, low=0.0), replace(milk, low=0.0)]
    nothing = page.page(result, noise, command="")
    assert "No item surely stands above noise among these 1,000 clients." in _plain(nothing)


def test_the_verdict_names_no_item_that_nobody_holds() -> None:
    """Limits of a list hold on average: the first sentence of a page has only the surest items."""
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    domain = list(range(2000))
    for seed in (3, 9):
        held = np.random.default_rng(seed).integers(0, 1000, 500).tolist()
        private = {"epsilon": 0.1, "not_private": True, "seed": seed}
        result = fedtally.estimate(held, domain=domain, **private)
        top = result.top(20)
        assert any(one.item >= 1000 and one.low > 0 for one in top)
        said = page._content(result, top, [], "", "", page.Head()).verdict
        assert said == ["No item surely stands above noise among these 500 clients."]


def test_the_verdict_says_what_was_drawn_or_counted_more_than_once() -> None:
    held = {"clients": [1, 1, 2, 3], "max_items": 1}
    drawn = fedtally.estimate(["tea", "milk", "tea", "rice"], **held, seed=1)
    assert summary.holding(drawn) == "is the drawn item of"
    twice = {"clients": [1, 1, 2], "rounds": [0, 1, 0]}
    assert summary.holding(fedtally.estimate(["a", "b", "a"], **twice, seed=1)) == "is in"


def test_a_title_names_the_source_without_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "of-ana"
    folder.mkdir()
    (folder / "visits.csv").write_text("url\n" + "/tea\n" * 30 + "/milk\n" * 9)
    asked = [
        "estimate",
        str(folder / "visits.csv"),
        "--item",
        "url",
        "--quiet",
        "--report",
        "r.html",
    ]
    monkeypatch.setattr(sys, "argv", ["fedtally", *asked])
    assert run(asked) == 0
    text = Path("r.html").read_text("utf-8")
    assert "<h1>Most frequent url in visits.csv</h1>" in text and "of-ana" not in text
    today = date.today()
    assert f"From visits.csv, page of {today.day} {today:%B} {today.year}." in _plain(text)
    assert run([*asked, "--title", "What <b>we</b> read"]) == 0
    text = Path("r.html").read_text("utf-8")
    for tag in ("title", "h1"):
        assert f"<{tag}>What &lt;b&gt;we&lt;/b&gt; read</{tag}>" in text
    # lines of a text have no name of their own
    (folder / "tea.txt").write_text("tea\n" * 9)
    assert run(["estimate", str(folder / "tea.txt"), "--quiet", "--report", "r.html"]) == 0
    assert "<h1>Most frequent items in tea.txt</h1>" in Path("r.html").read_text("utf-8")
    # who makes the page in Python says the day, or none: nothing is read from the clock
    result = fedtally.estimate(["tea"], seed=1)
    head = page.Head(sources=["a/b.csv", "-"], day=date(2020, 2, 3))
    said = _plain(page.page(result, result.top(1), command="", head=head))
    assert "Most frequent items in b.csv and standard input" in said
    assert "From b.csv, standard input, page of 3 February 2020." in said
    assert str(today.year) not in _plain(page.page(result, result.top(1), command=""))


@pytest.mark.parametrize(
    "command",
    [["estimate", "tea.txt"], ["demo"], ["merge", "a", "b"]],
)
def test_a_title_without_a_report_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tea.txt").write_text("tea\n" * 9)
    assert run([*command, "--title", "What we\x1b[2K drank " + "and ate " * 9]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--title 'What we" in said and "\x1b" not in said
    assert "does nothing without --report FILE.html: add that, or leave --title out" in said


def test_without_a_confidence_the_verdict_says_that_nobody_knows() -> None:
    result = fedtally.estimate(["tea"] * 6 + ["milk"] * 3, confidence=0, width=64, seed=1)
    said = _plain(_text_of(result))
    assert "then “milk” with 33.33 %." in said.replace("\u2068", "").replace("\u2069", "")
    assert "How far off these numbers may be was not estimated: the confidence is 0." in said


def test_a_table_has_both_limits_under_a_head_each() -> None:
    items = [1] * 300 + [2] * 100 + list(range(3, 103))
    text = _text_of(fedtally.estimate(items, domain="range:1..999", epsilon=2.0))
    groups = re.findall(r'<th scope="colgroup"[^>]*colspan="2"[^>]*>(.*?)</th>', text)
    assert [group.replace("\u00a0", " ") for group in groups] == [
        "among those who took part (95 %)",
        "in the population they stand for (95 %)",
    ]
    names = [
        "share",
        "clients",
        *(f"{who}: {end}" for who in ("took part", "population") for end in ("lowest", "highest")),
    ]
    row = re.findall(r'<tr role="row".*?</tr>', text, re.DOTALL)[2]
    assert re.findall(r'data-name="(.*?)"', row) == names
    share, _, low, high, least, most = map(float, re.findall(r'<td[^>]*data-key="(.*?)"', row))
    assert least < low < share < high < most
    assert re.findall(r'data-head="([^"]*)" aria-sort="descending"', text) == ["share"]


def test_the_curve_has_all_estimates_and_the_line_of_noise() -> None:
    pytest.importorskip("matplotlib")
    asked = {"domain": "range:1..900", "rows": 6, "width": 90, "seed": 1, "evaluate": True}
    result = fedtally.estimate("zipf:a=1.1,d=450,n=20000", **asked)
    found = standing(result)
    assert found is not None and len(found.frequencies) == 900
    # Half of the candidates are nobody's, and the line promises that none of them is above it.
    number = len(found.above)
    assert 10 < number < 450
    truth = result.true_frequencies([int(place) + 1 for place in found.above])
    assert truth is not None and min(truth) > 0
    assert result.limits().low[450:].max() > 0  # those of one item each promise less
    upper, lower = found.frequencies[number - 1 : number + 1].tolist()
    assert lower <= found.floor * (1 + 1e-9) and found.floor <= upper * (1 + 1e-9)
    text = _plain(_text_of(result))
    assert f"About {summary.rounded(number)} of 900 candidates stand above noise" in text
    assert f"below {amounts.percent(found.floor, amounts.decimals([found.floor]))}" in text
    [axes] = charts.rank_frequency(found.frequencies.tolist(), number, found.floor).axes
    lines = {line.get_color(): line for line in axes.get_lines()}
    assert lines[figures.BLUE].get_xdata()[-1] == number
    assert lines[figures.ORANGE].get_ydata()[0] == pytest.approx(100 * found.floor)
    assert max(line.get_xdata()[-1] for line in lines.values()) == (found.frequencies > 0).sum()


def test_a_picture_that_would_say_nothing_is_left_out() -> None:
    drinks = ["tea", "milk", *"abcdefgh"]  # two of them are somebody's
    few = fedtally.estimate(["tea"] * 90 + ["milk"] * 60, domain=drinks, epsilon=1)
    found = standing(few)
    assert found is not None and found.floor > 0
    exact = fedtally.estimate(list(range(50)) * 3, domain="range:0..99", seed=1)
    assert exact.is_exact
    bare = fedtally.estimate(list(range(50)) * 3, domain="range:0..99", width=60, confidence=0)
    strings = _of_strings()
    for result in (few, exact, bare, strings):
        assert _text_of(result).count("<figure>") == 1
    assert standing(bare) is None and standing(strings) is None


def _of_strings() -> Result:
    words = ["tea"] * 90 + ["milk"] * 60
    domain = OpenStrings(max_length=8, bits=12)
    return fedtally.estimate(words, domain=domain, max_bytes=2000, seed=1)


def test_strings_that_nobody_could_read_are_counted_and_not_listed() -> None:
    result = _of_strings()
    [tea, milk] = result.top(2)
    noise = replace(milk, item=Unread.of(7), low=0.0)
    sure = replace(milk, item=Unread.of(9))
    pytest.importorskip("jinja2")
    text = page.page(result, [tea, milk, sure, noise], command="")
    assert "0000007" not in text and "0000009" in text
    assert "1 more string could not be read, and may be noise." in _plain(text)


def test_each_part_of_a_table_has_its_role() -> None:
    """Blocks are no table to a screen reader, in browsers that take its role from the style."""
    text = _text_of(fedtally.estimate(["tea", "milk"], seed=1))
    roles = {"table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tr": "row", "td": "cell"}
    for tag, role in roles.items():
        found = re.findall(rf"<{tag}\b[^>]*>", text)
        assert found and all(f'role="{role}"' in one for one in found)
    heads = re.findall(r"<th\b[^>]*>", text)
    of = {"col": "columnheader", "colgroup": "columnheader", "row": "rowheader"}
    for head in heads:
        [scope], [role] = re.findall('scope="(.*?)"', head), re.findall('role="(.*?)"', head)
        assert of[scope] == role


def test_numbers_are_those_that_people_read() -> None:
    options = {"domain": "range:1..50", "epsilon": 2.0, "delta": 1e-6}
    text = _text_of(fedtally.estimate([1, 2, 2, 3] * 100, **options))
    assert re.search(r"<dt>Epsilon</dt>\s*<dd>2</dd>", text)
    shown = re.sub(r"<[^>]*>", "", text)  # without pictures, and without the keys to sort by
    assert not re.search(r"[0-9]\.[0-9]{7}", shown)
    assert page._shown("epsilon", 1.00001) == "1.001"  # a bound is never stated too small


def test_rows_that_cannot_be_told_from_0_are_marked_and_counted() -> None:
    items = [1] * 300 + [2] * 100 + list(range(3, 503))
    text = _text_of(
        fedtally.estimate(items, domain="range:1..999", width=20, epsilon=0.3, delta=1e-6)
    )
    number = text.count('class="doubtful"')
    assert 0 < number <= 5
    assert f"{number} of these 5 cannot be told from 0 (in grey)." in text
    # a word in each such row, for those who see no grey or hear the table, and in no other row
    for row in re.findall(r"<tr role=\"row\".*?</tr>", text, re.DOTALL):
        assert ("</bdi> <small>may be 0</small></th>" in row) == ('class="doubtful"' in row)
    sure = _text_of(fedtally.estimate(["tea"] * 30 + ["milk"] * 9, seed=1))
    assert "in grey" not in sure and "may be 0" not in sure


def test_a_report_says_why_a_larger_share_may_be_less_certain() -> None:
    result = fedtally.estimate(["tea"] * 30 + ["milk"], seed=1)
    sure, doubtful = (replace(result.top(1)[0], low=low) for low in (0.1, 0.0))
    why = "An item's margin depends on the items in its counters."
    for rows, is_said in (([sure, doubtful], False), ([doubtful, sure], True), ([sure], False)):
        listed = page.table(page._listed(result, rows), rows, page.LIST)
        assert (why in listed["doubts"]) == is_said
        # Items asked for are not in the order of their shares.
        assert why not in page.table(page._listed(result, rows), rows, page.ASKED)["doubts"]
    alone = fedtally.estimate(["tea"] * 30 + ["milk"], domain=["tea", "milk"], seed=1)
    assert alone.plan.is_histogram
    rows = [doubtful, sure]
    assert why not in page.table(page._listed(alone, rows), rows, page.LIST)["doubts"]


def test_text_breaks_between_words() -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    result = fedtally.estimate(["tea"], seed=1)
    command = "fedtally estimate <b> --max-items 2"
    text = page.page(result, result.top(1), command=command)
    said = 'fedtally estimate &lt;b&gt; <span class="word">--max-items</span> 2'
    assert f"<code>{said}</code>" in text


def test_the_page_of_merged_results_says_what_is_true_of_all_and_of_each(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    path = tmp_path / "page.html"
    domain = [HOSTILE, "milk"]
    parts = [
        fedtally.estimate([HOSTILE] * 8 * n + ["milk"] * 4, domain=domain, **options)
        for n, options in ((1, {"epsilon": 2.0}), (2, {"epsilon": 3.0, "secure_sum": "secagg"}))
    ]
    merged = Answer(parts)
    with pytest.raises(InvalidInputError, match=r"got Answer: write_merged_page writes"):
        write_page(merged, [], command="", path=path)  # type: ignore[arg-type]
    files = ["a/<i>.fed", "b/two.fed"]
    asked = merged.estimates(["milk"])
    write_merged_page(merged, files, merged.top(2), asked, command="merge <b>", path=path)
    markup = path.read_text("utf-8")
    assert HOSTILE not in markup and "<i>" not in markup and "<b>" not in markup
    assert 'role="note"' not in markup  # both are private
    text = " ".join(html.unescape(re.sub("<[^>]*>", " ", markup.split("<main>")[1])).split())
    for said in (
        "Items asked for",
        "The results <i>.fed 12 clients, ",
        "Who could learn what of <i>.fed Readers",
        f"a client in all of them: {merged.joint_guarantee}",
        "A client in both results counts in each",
        "Whoever made the sums all that each client holds",
        "as long as it follows the protocol",
        f"Plan of two.fed {parts[1].plan.fingerprint}",
        *(f"in at most {sure} % of cases" for sure in ("88.1", "95.3")),
    ):
        assert said in text, said
    assert "<h1>Most frequent items in &lt;i&gt;.fed and two.fed</h1>" in markup
    assert f"is held by {amounts.percent(merged.top(1)[0].frequency)} of clients" in _plain(markup)
    day = date(2020, 2, 3)
    titled = {"title": "Both months", "day": day, "command": "", "path": path}
    write_merged_page(merged, files, merged.top(2), **titled)
    markup = path.read_text("utf-8")
    assert "<h1>Both months</h1>" in markup
    assert "two.fed, page of 3 February 2020." in _plain(markup)
    exact = [fedtally.estimate(["milk"] * 9, domain=domain, seed=seed) for seed in (1, 2)]
    for every, of in (((parts[0], exact[0]), " (two.fed)"), (exact, "")):
        write_merged_page(Answer(every), files, [], command="", path=path)
        said = f'<p class="banner" role="note">No differential privacy: {EXACT}{of}</p>'
        assert said in path.read_text("utf-8")


@pytest.mark.promise
def test_the_page_of_merged_results_claims_no_more_than_each_of_them(tmp_path: Path) -> None:
    """A drawn item is not all that a client holds, and who is in both results spends twice."""
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    path, held = tmp_path / "page.html", {"clients": [1, 1, 2, 3], "max_items": 1}
    three = {"domain": ["tea", "milk", "rice"]}
    drawn = [
        fedtally.estimate(["tea", "milk", "tea", "rice"], **held, **three, seed=s) for s in (1, 2)
    ]
    asked = {"domain": ["tea", "milk"], "epsilon": 2.0}
    noised = [fedtally.estimate(["tea"] * 90 + ["milk"] * 10, **asked) for _ in range(2)]
    merged = Answer(noised)
    write_merged_page(merged, ["a", "b"], merged.top(2), command="", path=path)
    markup = path.read_text("utf-8")
    [said] = re.findall('<p class="privacy">.*?</p>', markup, re.DOTALL)
    text = html.unescape(re.sub("<[^>]*>", "", said)).replace("\u00a0", " ")
    assert "in each result; a client in all of them: pure epsilon 4" in text
    assert "is held by" in markup
    apart = Answer(noised, disjoint=True)
    write_merged_page(apart, ["a", "b"], apart.top(2), command="", path=path)
    assert "each pays for one result; a client in all of them: pure epsilon 4" in _plain(
        path.read_text("utf-8")
    )
    other = fedtally.estimate(["tea", "milk", "rice"], **three, seed=3)
    for parts, verb in (
        (drawn, "is the drawn item of"),
        ((drawn[0], other), "is among the drawn items of"),
    ):
        merged = Answer(parts)
        top = [replace(merged.top(1)[0], low=0.1)]
        write_merged_page(merged, ["a", "b"], top, command="", path=path)
        assert verb in _plain(path.read_text("utf-8"))


def test_a_report_of_exact_counts_has_no_limits_and_says_what_is_left_out() -> None:
    result = fedtally.estimate(["tea"] * 30 + ["rice"], domain=["tea", "rice", "milk"], seed=1)
    text = _text_of(result)
    assert "The counts are exact" in text and "among those who took part" not in text
    assert "1 more candidate has an estimate below half a client." in text
    assert len(result.plot().axes) == 1  # no panel of limits minus estimate


def test_a_report_names_its_numbers_in_words_and_what_a_ledger_says() -> None:
    result = fedtally.estimate(["tea"] * 30, domain=["tea", "rice"], epsilon=1)
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    said = "books.db: population phones has spent epsilon 1 of <b>"
    text = page.page(result, result.top(2), command="", charged=said)
    assert html.escape(said) in text
    for name in ("num rounds", "one hot bytes", "epsilon replace one", "l2 sensitivity"):
        assert name not in text


def test_a_saved_result_says_that_its_ledger_was_not_read_and_what_reads_it(
    tmp_path: Path,
) -> None:
    """A run that is in no ledger has a note instead; one that is not private has neither."""
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    books = str(tmp_path / "books.db")
    Ledger.open(books, create=True).grant("my phones", 1, 1e-6, time=0)
    items: dict[str, Any] = {"domain": ["tea", "rice"]}
    private = items | {"epsilon": 1, "population": "my phones"}
    runs = [(private | {"ledger": books}, 1), (private, 0), (private | {"not_private": True}, 0)]
    for asked, times in [*runs, (items, 0)]:
        fedtally.estimate(["tea"] * 30, **asked).save(tmp_path / "one.fedtally")
        loaded = Result.load(tmp_path / "one.fedtally")
        text = page.page(loaded, loaded.top(2), command="")
        shown = screen.plain(screen.answer(loaded, loaded.top(2), details=True), 200)
        command = "fedtally ledger show --ledger LEDGER --population 'my phones'"
        assert _plain(text).count(command) == shown.count(command) == times
        assert shown.count("in no ledger") == (asked == private)
