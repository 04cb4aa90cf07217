"""The page of a plan: its curves are the planner's, and what it says to type makes what it says."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtally.answer import amounts, charts, plan_page
from fedtally.cli.app import run
from fedtally.domain import IntegerRange
from fedtally.plan import Plan, proposal, tradeoff
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.request import Request

pytestmark = [pytest.mark.extras, pytest.mark.usefixtures("errors_once")]
FLEET = ("--clients", "200000", "--domain-size", "5000", "--rounds", "10")
LIKE = (*FLEET, "--like", "zipf:a=1.1,d=5000", "--encoding", "sketch", "--secure-sum", "secagg")
SKETCH = (*LIKE, "--tau", "0.002", "--epsilon", "1", "--rows", "8", "--seed", "1")
Tables = dict[str, list[list[str]]]
Call = Callable[..., tuple[str, Tables]]


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def made(*asked: str) -> tuple[str, Tables]:
        arguments = ["plan", *asked, "--report", "plan.html"]
        monkeypatch.setattr("sys.argv", ["fedtally", *arguments])
        assert run(arguments) == 0, capsys.readouterr().err
        assert capsys.readouterr().err.endswith("wrote plan.html\n")
        text = Path("plan.html").read_text(encoding="utf-8")
        return text, tables_of(text)

    return made


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw two points of two curves: the rest of a page does not depend on them."""
    monkeypatch.setattr(tradeoff, "EPSILONS", (None,))
    monkeypatch.setattr(tradeoff, "_COUNTERS", (1.0, 4.0))


def tables_of(text: str) -> Tables:
    """Return the rows of each table, its heads first, by its caption."""
    found = {}
    for caption, inner in re.findall(r"<caption>(.*?)</caption>(.*?)</table>", text, re.DOTALL):
        rows = re.findall(r"<tr.*?</tr>", inner, re.DOTALL)
        found[plain(caption)] = [
            [plain(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
            for row in rows
        ]
    return found


def plain(markup: str) -> str:
    text = html.unescape(re.sub(r"<[^>]+>", "", markup)).replace("\u00a0", " ")
    return " ".join(text.split())


def asked_again(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_points_of_the_curves_are_what_the_command_prints(
    page: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """For the same bytes and epsilon, with the rows and the schedule that the page names."""
    text, tables = page(*SKETCH, "-o", "plan.toml")
    plan = Plan.load("plan.toml")
    (caption,) = (name for name in tables if name.startswith("The chart in numbers"))
    heads, *rows = tables[caption]
    assert heads == ["bytes", "no epsilon", "epsilon 4", "epsilon 2", "epsilon 1", "epsilon 0.5"]
    assert len(rows) == 5 and rows[2][0] == f"{plan.bytes_per_client:,}"
    said = f"for sketches of {plan.rows} rows and the schedule {plan.schedule}"
    assert said in plain(text)
    fixed = ("--rows", str(plan.rows), "--schedule", str(plan.schedule), "--seed", "1")
    assert (plan.rows, str(plan.schedule)) == (8, "hybrid")
    for row, column in ((0, 1), (1, 4), (3, 5), (4, 2)):
        name = heads[column].removeprefix("epsilon ").replace("no epsilon", "none")
        budget = rows[row][0].replace(",", "")
        options = (*LIKE, *fixed, "--max-bytes", budget, "--epsilon", name)
        found = asked_again(capsys, *options)
        assert float(rows[row][column]) == pytest.approx(100 * found["predicted_linf"], abs=5e-3)
        assert run(["plan", *options, "--details"]) == 0
        printed = re.search(r"predicted ([\d.]+) points", capsys.readouterr().out)
        assert printed is not None
        assert float(printed[1]) == pytest.approx(float(rows[row][column]), abs=5e-3)
    # that of the plan is its own
    found = asked_again(capsys, *SKETCH)
    assert float(rows[2][4]) == pytest.approx(100 * found["predicted_linf"], abs=5e-3)
    # less noise is a smaller error, and so are more bytes
    errors = [[float(cell) for cell in row[1:]] for row in rows]
    assert all(row == sorted(row) for row in errors)
    assert all(list(one) == sorted(one, reverse=True) for one in zip(*errors, strict=True))


@pytest.mark.usefixtures("few")
def test_what_halves_the_error_does_when_it_is_typed(
    page: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    _, tables = page(*SKETCH)
    heads, own, *rows = tables["From 0.20 points to 0.10 points: one change each"]
    assert heads == ["what changes", "bytes per client", "type instead"]
    assert own[0] == "this plan" and own[2] == ""
    named = [row[0].partition(":")[0] for row in rows]
    assert named == ["a larger epsilon", "more clients", "larger cohorts"]
    for _, sent, options in rows:
        found = asked_again(capsys, *SKETCH, *options.split())
        assert amounts.size(found["plan"]["bytes_per_client"]) == sent
        assert found["target"]["linf"] == 0.001
    # without a change there is none
    assert run(["plan", *SKETCH, "--tau", "0.001"]) == 2
    assert "cannot be met" in capsys.readouterr().err


@pytest.mark.usefixtures("few")
def test_bytes_alone_halve_the_error_where_there_is_no_noise(
    page: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (*LIKE, "--tau", "0.002", "--rows", "8")
    text, tables = page(*asked)
    rows = tables["From 0.20 points to 0.10 points: one change each"][2:]
    assert [row[0] for row in rows] == ["more bytes"] and rows[0][2] == "--tau 0.001"
    again = asked_again(capsys, *asked, *rows[0][2].split())
    assert amounts.size(again["plan"]["bytes_per_client"]) == rows[0][1]
    # the banner says it, and once is enough
    assert "No differential privacy" in text and "<b>Privacy:</b>" not in text


@pytest.mark.parametrize(
    ("asked", "said", "has_table"),
    [
        (
            ("--clients", "5000", "--domain-size", "14"),
            ("so that counts are exact.", "and the counts are exact.", "There is no error to"),
            False,
        ),
        (
            (
                "--clients",
                "5000",
                "--domain-size",
                "14",
                "--encoding",
                "histogram",
                "--epsilon",
                "1",
            ),
            ("all of the error is noise. More bytes would change nothing.", "73.2 % of cases"),
            True,
        ),
        (
            ("--clients", "20000", "--domain", "open", "--tau", "0.01"),
            ("the bytes follow from the names that are to be read", "ask for --tau 0.005."),
            False,
        ),
    ],
)
def test_where_a_curve_makes_no_sense_a_sentence_says_so(
    page: Call, asked: tuple[str, ...], said: tuple[str, ...], has_table: bool
) -> None:
    text, tables = page(*asked)
    assert "<img" not in text and "There is no curve: " in plain(text)
    assert [one for one in said if one not in plain(text)] == []
    assert any(name.startswith("From ") for name in tables) is has_table
    assert tables["Bytes and CPU"][0] == ["who", "sends", "gets", "CPU"]


@pytest.mark.usefixtures("few")
def test_a_calendar_stands_at_the_top(page: Call) -> None:
    asked = ("--clients", "20000", "--domain-size", "500", "--tau", "0.02", "--rounds", "28")
    text, _ = page(*asked, "--start", "2100-01-01")
    top = html.unescape(text.partition("<main>")[0])
    assert "28 days, from 2100-01-01T00:00Z to 2100-01-29T00:00Z, UTC" in top
    assert "20,000 clients, each in one of them" in top


@pytest.mark.usefixtures("few")
def test_silos_have_a_curve_and_their_own_words(page: Call) -> None:
    silos = ("--clients", "10", "--people", "5000", "--domain-size", "20000", "--tau", "0.005")
    silos += ("--like", "zipf:a=1.1,d=20000", "--rows", "8")
    text, tables = page(*silos, "--epsilon", "1", "--secure-sum", "secagg", "--encoding", "sketch")
    assert "Each silo sends" in plain(text) and tables["Bytes and CPU"][1][0].startswith("a silo")
    assert "learns a silo's size to ±" in plain(text.partition("<details")[0])
    assert text.count("<img") == 1


def test_noise_that_hardly_counts_is_said_to() -> None:
    spec = Request(num_rounds=2, max_bytes=600, rows=7, epsilon=1.0).resolve()
    law = Frequencies.assumed(5000)
    found = proposal.propose(spec, IntegerRange(1, 5000), 20_000, law, seed=bytes(32))
    for free, said in ((0.0099, "about the same."), (0.002, "0.20 points there.")):
        sizes = {1.0: tradeoff.Size(2000, 2000, 0.01), None: tradeoff.Size(2000, 2000, free)}
        curves = {epsilon: tradeoff.Curve(epsilon, (one,)) for epsilon, one in sizes.items()}
        finding = plan_page._finding(found, curves)
        assert "; 2.00 kB would bring it to 1.00 points." in finding
        assert finding.endswith(f" Without differential privacy it would be {said}")


@pytest.mark.usefixtures("few")
def test_costs_and_the_alternative_text_state_results(
    page: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    text, tables = page(*SKETCH)
    found = asked_again(capsys, *SKETCH)
    bill, size = found["bill"], amounts.size
    _, client, server = tables["Bytes and CPU"]
    assert client[1:3] == [size(bill["upload_bytes"]), size(bill["download_bytes"])]
    assert server[1:3] == [size(bill["sent_bytes"]), size(bill["received_bytes"])]
    (alt,) = re.findall(r'alt="([^"]*)"', text)
    now = size(found["plan"]["bytes_per_client"])
    assert alt.startswith(f"At {now} the predicted error is ")
    assert re.search(r"; [\d.]+ kB would bring it to [\d.]+ points\. Without differential", alt)
    before, _, details = text.partition("<details")
    assert "rho" not in before and "rho" in details and "one-hot" in details


@pytest.mark.usefixtures("few")
def test_what_others_wrote_is_text_and_nothing_is_loaded(page: Call) -> None:
    text, _ = page(*SKETCH, "-o", "<b>&.toml")
    assert "<b>&" not in text and "&lt;b&gt;&amp;.toml" in text
    assert "default-src &#39;none&#39;" in text
    outside = re.findall(r"""(?:src|href|srcset)=["'](?!data:)""", text)
    assert outside == [] and text.count("<script>") == 1 and "--seed 1" not in plain(text)


def test_the_path_is_checked_before_the_search(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(*_: object, **__: object) -> None:
        raise AssertionError("planned first")

    monkeypatch.setattr(proposal, "propose", planned)
    for path, said in (
        ("plan.pdf", "a report must end in .html, got 'plan.pdf'"),
        ("nowhere/plan.html", "there is no folder nowhere"),
    ):
        assert run(["plan", *FLEET, "--report", path]) == 2
        assert said in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_one_document_stays_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--clients", "500", "--domain-size", "9", "--seed", "1")
    found = asked_again(capsys, *small, "--report", "plan.html")
    assert Path("plan.html").exists()
    assert found == asked_again(capsys, *small)


def test_every_size_is_told_to_who_waits() -> None:
    spec = Request(num_rounds=2, max_bytes=600, rows=7).resolve()
    law = Frequencies.assumed(5000)
    found = proposal.propose(spec, IntegerRange(1, 5000), 20_000, law, seed=bytes(32))
    told: list[tuple[str, int, int]] = []
    curves = tradeoff.curves(found, lambda *said: told.append(said))  # type: ignore[arg-type]
    assert told[0][1] == 0 and told[-1] == ("curve", 25, 25)
    assert [done for _, done, _ in told] == [*range(26)]
    assert [curve.epsilon for curve in curves] == [*tradeoff.EPSILONS]
    own = curves[0].sizes[2]
    assert own == (found.plan.bytes_per_client, found.plan.bytes_per_client, found.linf)


def test_an_epsilon_of_its_own_has_a_curve_and_what_is_refused_has_none() -> None:
    spec = Request(num_rounds=4, max_bytes=70, rows=7, epsilon=3.0, schedule="hybrid").resolve()
    law = Frequencies.assumed(5000)
    found = proposal.propose(spec, IntegerRange(1, 5000), 20_000, law, seed=bytes(32))
    curves = tradeoff.curves(found)
    assert [curve.epsilon for curve in curves] == [None, 4.0, 3.0, 2.0, 1.0, 0.5]
    # a quarter of these counters is too narrow for 7 rows
    assert {len(curve.sizes) for curve in curves} == {4}
    assert all(one.bytes_per_client <= one.max_bytes for curve in curves for one in curve.sizes)


@pytest.mark.parametrize("epsilon", [2.0, None])
def test_no_sketch_is_drawn_that_a_histogram_beats(
    monkeypatch: pytest.MonkeyPatch, epsilon: float | None
) -> None:
    """With the bytes of a histogram the planner takes it: larger sketches promise too little."""
    monkeypatch.setattr(tradeoff, "EPSILONS", (None,))
    clients, listed, law = 20_000, IntegerRange(1, 1000), Frequencies.assumed(1000)

    def planned(**asked: Any) -> proposal.Proposal:
        spec = Request(epsilon=epsilon, **asked).resolve()
        return proposal.propose(spec, listed, clients, law, seed=bytes(32))

    found, exact = planned(max_bytes=600), planned(max_bytes=100_000)
    assert exact.plan.is_histogram
    drawn = tradeoff.curves(found)
    sizes = [one.max_bytes for one in drawn[-1].sizes]
    assert sizes[2] == found.plan.bytes_per_client
    cost = exact.plan.bytes_per_client
    assert len(sizes) == 4 and sizes[-1] < cost < 2 * sizes[-1]
    error = f"an error of {amounts.points(exact.linf)}" if epsilon else "no error"
    finding = plan_page._finding(found, {curve.epsilon: curve for curve in drawn})
    assert finding.endswith(f" A histogram takes {amounts.size(cost)}, and has {error}.")
    # a sketch that is asked for by name stays
    sketch = planned(max_bytes=600, encoding="sketch")
    assert len(tradeoff.curves(sketch)[-1].sizes) == 5
    assert "A histogram" not in plan_page._finding(sketch, {epsilon: drawn[-1], None: drawn[0]})


def test_the_plan_ends_its_curve_where_a_histogram_is_next() -> None:
    spec = Request(max_bytes=1200).resolve()
    law = Frequencies.assumed(1000)
    found = proposal.propose(spec, IntegerRange(1, 1000), 20_000, law, seed=bytes(32))
    sizes = tradeoff._budgets(found)
    assert sizes[-1] == found.plan.bytes_per_client
    own = tradeoff.Size(sizes[-1], sizes[-1], found.linf)
    finding = plan_page._finding(found, {None: tradeoff.Curve(None, (own,))})
    assert "would bring" not in finding and finding.startswith("At 1.20 kB the predicted error is ")


def test_no_privacy_is_never_drawn_above_an_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where recovery is exact but for the noise, predictions with noise are as careful."""
    monkeypatch.setattr(tradeoff, "EPSILONS", (None, 4.0))
    monkeypatch.setattr(tradeoff, "_COUNTERS", (0.5, 1.0))
    spec = Request(num_rounds=4, max_bytes=240, rows=16, epsilon=1.0, schedule="hybrid").resolve()
    found = proposal.propose(spec, IntegerRange(1, 1000), 5000, seed=bytes(32))
    none, four, one = ([size.linf for size in curve.sizes] for curve in tradeoff.curves(found))
    assert len(none) == 2
    assert all(list(same) == sorted(same) for same in zip(none, four, one, strict=True))


def test_the_chart_draws_each_curve_and_the_plan_as_a_star() -> None:
    curves = {"no epsilon": [(1e3, 0.02), (2e3, 0.01)], "epsilon 1": [(1e3, 0.03), (2e3, 0.02)]}
    for narrow in (False, True):
        figure = charts.tradeoff(curves, (1e3, 0.03), "epsilon 1", unit="silo", narrow=narrow)
        (axes,) = figure.axes
        lines = {line.get_label(): line for line in axes.lines}
        assert set(lines) == {*curves, "the plan"}
        for name, points in curves.items():
            assert [*lines[name].get_xdata()] == [x for x, _ in points]
            assert [*lines[name].get_ydata()] == [100 * y for _, y in points]
        assert [*lines["the plan"].get_ydata()] == [3.0] and lines["the plan"].get_marker() == "*"
        assert lines["epsilon 1"].get_linewidth() > lines["no epsilon"].get_linewidth()
        assert axes.get_xlabel() == "bytes per silo" and axes.get_xscale() == "log"
        assert (float(figure.get_size_inches()[0]) < 5) is narrow
