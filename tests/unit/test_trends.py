"""What changed over the rounds of a result: who is listed, by how much, since when, and lines."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import fedtally
from fedtally.answer import documents, page, sections, trending
from fedtally.answer.by_round import ByRound
from fedtally.answer.result import Result
from fedtally.answer.trending import Change, Trends
from fedtally.cli.app import run
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError, OutsideDomainError
from fedtally.sketch import CountSketch

SIZE, ROUNDS, CLIENTS = 400, 12, 500
DOMAIN = IntegerRange(1, SIZE)
DAYS = [f"2026-11-{day:02d}" for day in range(1, ROUNDS + 1)]
SKETCH: dict[str, Any] = {"rows": 5, "width": 60, "encoding": "sketch"}
# item -> the round from which it changes, and how
CHANGED = {5: (6, "rising"), 3: (8, "falling"), 300: (7, "new"), 4: (6, "gone")}


def drawn(*, quiet: bool = False) -> tuple[list[int], list[str]]:
    rng = np.random.default_rng(0)
    items: list[int] = []
    for day in range(ROUNDS):
        law = (np.arange(1, SIZE + 1) + 2.7) ** -1.1
        law[299] = 0.0
        for item, (since, kind) in CHANGED.items():
            if day >= since and not quiet:
                factor = {"rising": 4.0, "falling": 0.4, "new": 0.0, "gone": 0.0}[kind]
                law[item - 1] = 0.2 if kind == "new" else factor * law[item - 1]
        items += (rng.choice(SIZE, CLIENTS, p=law / law.sum()) + 1).tolist()
    return items, np.repeat(DAYS, CLIENTS).tolist()


@pytest.fixture(scope="module")
def campaign() -> Result:
    items, days = drawn()
    return fedtally.estimate(items, rounds=days, domain=DOMAIN, seed=1, **SKETCH)


@pytest.fixture(scope="module")
def trends(campaign: Result) -> Trends:
    return campaign.trends("last:4", against=6)


def test_what_changed_is_listed_with_its_round_and_its_kind(trends: Trends) -> None:
    found = {change.item: (DAYS.index(str(change.since)), change.kind) for change in trends.changed}
    assert found == CHANGED
    for kind in ("rising", "falling", "new", "gone"):
        assert [one.item for one in getattr(trends, kind)] == [
            item for item, (_, how) in CHANGED.items() if how == kind
        ]
    # the latest first
    since = [str(change.since) for change in trends.changed]
    assert since == sorted(since, reverse=True)
    assert trends.tested == SIZE and len(trends) == 4 and all(c.flagged for c in trends.changed)
    for change in trends.changed:
        assert str(change.since_low) <= str(change.since) <= str(change.since_high)


def test_a_change_is_the_difference_of_the_two_windows(trends: Trends) -> None:
    items, _ = drawn()
    table = np.array(items).reshape(ROUNDS, CLIENTS)
    assert trends.window.rounds == (8, 9, 10, 11) and trends.against.rounds == tuple(range(2, 8))
    for change in trends.changed:
        now, before = (
            float((table[list(one.rounds)] == change.item).mean())
            for one in (trends.window, trends.against)
        )
        assert (
            change.low <= now <= change.high and change.before_low <= before <= change.before_high
        )
        assert change.change_low <= now - before <= change.change_high
        assert change.change == pytest.approx(change.frequency - change.before)


def test_a_share_below_0_is_explained_where_it_is_shown_as_0(trends: Trends) -> None:
    below = [one for one in trends.changed if min(one.before, one.frequency) < 0]
    said = "a share below 0 is shown as 0, and counts in the change"
    assert below and said in dict(sections.changed.rows(trends))["Change"]
    others = copy.copy(trends)
    others.changed = [one for one in trends.changed if one not in below]
    assert others.changed and said not in dict(sections.changed.rows(others))["Change"]


def test_nothing_is_listed_where_nothing_changes() -> None:
    items, days = drawn(quiet=True)
    quiet = fedtally.estimate(items, rounds=days, domain=DOMAIN, seed=1, **SKETCH)
    found = quiet.trends()
    assert found.changed == [] and bool(found)
    assert (found.window.rounds, found.against.rounds) == ((11,), tuple(range(11)))
    assert sections.changed.line(found).startswith(f"None of {SIZE} items changed in {DAYS[0]}..")
    with pytest.raises(InvalidInputError, match="no item changed, so there is no line to draw"):
        found.plot()
    assert found.to_arrow().num_rows == 0


def test_alpha_is_the_rate_of_the_list(campaign: Result) -> None:
    few = campaign.trends(alpha=1e-6)
    assert [change.item for change in few.changed] == [5]
    assert "at most 0.0001 %" in sections.changed.rate(few)
    with pytest.raises(InvalidInputError, match="alpha must be above 0 and below 1, got 5"):
        campaign.trends(alpha=5)


def test_lines_hold_the_shares_of_each_round(campaign: Result) -> None:
    items, _ = drawn()
    truth = (np.array(items).reshape(ROUNDS, CLIENTS)[..., None] == [5, 1]).mean(axis=1)
    series = campaign.series([5, 1])
    assert series.items == [5, 1] and len(series) == 2 * ROUNDS
    assert campaign.series(5).points == campaign.series([5, 5]).points == series.of(5)
    points = [series.of(5), series.of(1)]
    assert [point.label for point in points[0]] == DAYS
    assert [point.round for point in points[0]] == list(range(ROUNDS))
    held = [
        point.low <= true <= point.high
        for line, column in zip(points, truth.T, strict=True)
        for point, true in zip(line, column, strict=True)
    ]
    assert np.mean(held) >= 0.8 and {point.clients for point in points[0]} == {CLIENTS}
    whole = campaign.series([5, 1], whole=True)
    wider = [
        one.high - one.low >= other.high - other.low
        for one, other in zip(whole.of(5), points[0], strict=True)
    ]
    assert all(wider)
    # a round of the whole line fails with an equal part of the probability
    z, least = (NormalDist().inv_cdf(1 - fails / 2) for fails in (0.05 / ROUNDS, 0.05))
    widths = [one.high - one.low for one in (whole.of(1)[0], points[1][0])]
    assert widths[0] / widths[1] == pytest.approx(z / least)
    table = series.to_arrow()
    assert table.num_rows == 2 * ROUNDS and set(table["item"].to_pylist()) == {1, 5}
    with pytest.raises(OutsideDomainError):
        campaign.series([SIZE + 1])
    with pytest.raises(InvalidInputError, match="no item is named"):
        campaign.series([])


def test_missing_rounds_have_no_point(campaign: Result) -> None:
    left = [sketch for sketch in campaign.sketches if sketch.round not in (2, 9)]
    gapped = Result(campaign.plan, DOMAIN, left, round_labels=campaign.round_labels)
    assert [p.round for p in gapped.series([5]).points] == [0, 1, 3, 4, 5, 6, 7, 8, 10, 11]
    found = gapped.trends("last:2", against=2)
    assert (found.window.rounds, found.against.rounds) == ((10, 11), (7, 8))
    assert found.rounds.missing == (2, 9)
    assert {c.item: DAYS.index(str(c.since)) for c in found.changed} == {
        item: since for item, (since, _) in CHANGED.items()
    }


def emptied(result: Result, *rounds: int) -> Result:
    """Return a result of the same sums, but nobody took part in some rounds."""
    sums = [CountSketch(s.spec, s.round) if s.round in rounds else s for s in result.sketches]
    return Result(result.plan, result.domain, sums, round_labels=result.round_labels)


@pytest.mark.parametrize("is_histogram", [False, True])
def test_rounds_without_clients_have_no_shares(campaign: Result, is_histogram: bool) -> None:
    result = campaign
    if is_histogram:
        items, days = drawn()
        few = [min(item, 6) for item in items]
        result = fedtally.estimate(few, rounds=days, domain=IntegerRange(1, 6), seed=1)
    assert result.plan.is_histogram is is_histogram
    gapped = emptied(result, 0, 1, 6, 7)
    points = gapped.series([5]).points
    assert [point.round for point in points] == [2, 3, 4, 5, 8, 9, 10, 11]
    assert all(0 <= point.low <= point.frequency <= point.high <= 1 for point in points)
    found = gapped.trends("last:2", against=3)
    assert (found.window.rounds, found.against.rounds) == ((10, 11), (5, 8, 9))
    assert 5 in {change.item for change in found.changed} and found.earlier == 0
    for window, history, said in (
        ("7..7", 64, "has only rounds without clients .7., .*: take a window with others$"),
        ("0..1", 64, "has only rounds without clients .0, 1."),
        ("3..4", 6, "the last 6 rounds here, from round 6 on, got round 3$"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            gapped.trends(window, history=history)
    # a window leaves such rounds out
    assert gapped.trends("4..8").window.rounds == (4, 5, 8)
    assert found.no_clients == (0, 1, 6, 7)
    assert "nobody took part in 4 of the rounds" in dict(sections.changed.rows(found))["Note"]
    assert sections.changed.fields(found)["no_clients"] == [0, 1, 6, 7]
    assert (
        "Note" not in dict(sections.changed.rows(result.trends()))
        and not result.trends().no_clients
    )
    with pytest.raises(InvalidInputError, match="there is one set of them with clients here"):
        emptied(result, *range(1, ROUNDS)).trends()


@pytest.mark.parametrize("window", ["last:1", "last:3", "9..11"])
def test_a_last_round_without_clients_is_left_out(campaign: Result, window: str) -> None:
    """The answer is that of the rounds with clients, as if the others had not landed."""
    gapped = emptied(campaign, 10, 11)
    found = gapped.trends(window)
    assert found.window.rounds == (9,) and found.no_clients == (10, 11)
    assert dict(sections.changed.rows(found))["Note"] == (
        "nobody took part in rounds 10, 11: without shares, they are left out"
    )
    left = [sketch for sketch in campaign.sketches if sketch.round < 10]
    fewer = Result(campaign.plan, DOMAIN, left, round_labels=campaign.round_labels)
    assert {c.item: c.kind for c in found.changed} == {
        c.item: c.kind for c in fewer.trends("last:1").changed
    }
    assert window != "last:1" or page.changed(gapped) is not None  # the page looks at last:1


@pytest.mark.parametrize("noise", [None, 6.0])
def test_histograms_have_trends(noise: float | None) -> None:
    items, days = drawn()
    few = [min(item, 6) for item in items]
    private: dict[str, Any] = {}
    if noise is not None:
        private = {"epsilon": noise, "population": "p", "not_private": True, "trust": "distributed"}
    domain = IntegerRange(1, 6)
    result = fedtally.estimate(few, rounds=days, domain=domain, seed=1, **private)
    assert result.plan.is_histogram
    found = result.trends("last:4")
    for rows in (found.to_arrow(), result.series([5]).to_arrow()):
        assert ("note" in rows.schema.names) is bool(result.not_private)
    assert {5, 4} <= {change.item for change in found.changed}
    share = [point.frequency for point in result.series([5]).points]
    assert share[-1] > 2 * share[0]
    if noise is None:
        exact = [few[start : start + CLIENTS].count(5) / CLIENTS for start in range(0, 6000, 500)]
        assert share == exact
        # no limit is closer than one client
        widths = [point.high - point.low for point in result.series([5]).points]
        assert widths == pytest.approx([2 / CLIENTS] * ROUNDS)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"window": "all"}, "window must leave rounds to compare with, got all"),
        ({"window": "0..2"}, "no round before the window landed"),
        ({"window": "last:x"}, "'last:x' is no window"),
        ({"history": 1}, "history must be at least 2 rounds for a trend, got 1"),
        ({"window": "3..4", "history": 6}, "trends look at the last 6 rounds here, from round 6"),
        ({"against": 0}, "against must be at least 1"),
    ],
)
def test_trends_that_are_none_are_refused(
    campaign: Result, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        campaign.trends(**asked)


def test_results_without_values_by_round_have_no_trends(campaign: Result) -> None:
    with pytest.raises(InvalidInputError, match="trends are of the result of all rounds"):
        campaign.window("last:4", history=0).trends()
    with pytest.raises(InvalidInputError, match="by median recovery: decode by recovery='joint'"):
        campaign.decoded(recovery="median").trends()
    bare = campaign.decoded(confidence=0)
    for ask in (bare.trends, lambda: bare.series([5])):
        with pytest.raises(InvalidInputError, match="this answer has none: set confidence=0.95"):
            ask()
    one = fedtally.estimate([1, 2], domain=DOMAIN, seed=1, **SKETCH)
    with pytest.raises(InvalidInputError, match="the plan has one round, .*: ask for the answer"):
        one.trends()
    named = fedtally.estimate(["tea"] * 90, domain="open", seed=1, allow_rare_names=True)
    with pytest.raises(InvalidInputError, match="of an open domain nobody has the list"):
        named.trends()
    items, days = drawn()
    shared = {**SKETCH, "schedule": "shared"}
    same = fedtally.estimate(items, rounds=days, domain=DOMAIN, seed=1, **shared)
    with pytest.raises(InvalidInputError, match="there is one set of them here: ask for"):
        same.trends()


def test_rounds_of_one_set_of_hashes_are_one_point() -> None:
    items, _ = drawn(quiet=True)
    asked = {**SKETCH, "schedule": "batched:4", "num_rounds": 8}
    result = fedtally.estimate(items, domain=DOMAIN, seed=1, **asked)
    points = result.series([1]).points
    assert [(p.round, p.last_round) for p in points] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [point.label for point in points] == [None] * 4
    with pytest.raises(InvalidInputError, match="rounds 4 to 5 have one set of hashes"):
        result.trends("last:3")
    usual = result.trends().window  # the last round has no value of its own
    assert (usual.asked, usual.rounds) == ("last:2", (6, 7))
    assert result.trends("last:2", against=2).against.rounds == (4, 5)
    with pytest.raises(InvalidInputError, match="last 4 rounds here, from round 4 on, got round 2"):
        result.trends("2..3", history=4)


def test_the_decoder_of_all_rounds_is_chosen_by_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches would make "auto" take another decoder than the answer has."""
    items, days = drawn()
    asked = {**SKETCH, "schedule": "batched:4"}
    result = fedtally.estimate(items, rounds=days, domain=DOMAIN, seed=1, **asked)
    numbers, recovery = list[int](), ByRound._recovery

    def counted(by_round: ByRound, batches: int) -> str:
        numbers.append(batches)
        return recovery(by_round, batches)

    monkeypatch.setattr(ByRound, "_recovery", counted)
    assert ByRound(result, None).history() is not None
    assert numbers == [4]  # of 12 rounds


def test_the_noise_on_how_many_took_part_is_in_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silos whose people are hidden: shares of each round are as uncertain as their number."""
    items, days = drawn()
    count = 3000
    table = {
        # from the fourth day on, every second client holds 1
        "items": [
            1 if n % 2 and n >= 3 * CLIENTS else min(item, 6)
            for n, item in enumerate(items[:count])
        ],
        "clients": [f"p{n}" for n in range(count)],
        "silos": [f"s{n % 6}" for n in range(count)],
    }
    result = fedtally.estimate(
        table["items"], clients=table["clients"], silos=table["silos"], rounds=days[:count],
        domain=IntegerRange(1, 6), seed=1, epsilon=2.0, population="p", people=600,
        neighbours="add-remove", not_private=True, secure_sum="ideal", trust="distributed",
    )  # fmt: skip
    column = trending._column
    assert column(result._by_round, [0]).noise > 0

    def widths() -> list[float]:
        points = [*result.series([6]).points, *result.trends("last:3").changed]
        return [point.high - point.low for point in points]

    noised = widths()
    monkeypatch.setattr(trending, "_column", lambda *given: column(*given)._replace(noise=0.0))
    exact = widths()
    assert len(noised) == len(exact) > 6 and all(np.array(noised) > np.array(exact))


# ---- every form ----


def test_documents_hold_all_fields(campaign: Result, trends: Trends) -> None:
    told = documents.of_trends(campaign, trends)
    assert told["schema"] == "fedtally-trends/1"
    assert told["window"]["rounds"] == [8, 9, 10, 11] and told["against"]["asked"] == "6"
    assert [one["item"] for one in told["changed"]] == [c.item for c in trends.changed]
    lines = documents.of_series(campaign, campaign.series([5]))
    assert lines["schema"] == "fedtally-series/1" and len(lines["points"]) == ROUNDS
    json.dumps([told, lines])


def test_a_list_of_the_last_rounds_promises_nothing_of_looks_at_others(campaign: Result) -> None:
    whole, part = campaign.trends(), campaign.trends(history=9)
    assert (whole.earlier, part.earlier) == (0, ROUNDS - 9)
    told = [sections.changed.stricter(one) for one in (whole, part)]
    assert told[0].endswith("no unchanged item ever does, at any look")
    assert told[1].endswith("no unchanged item does, at any look at these rounds")


@pytest.mark.extras
def test_a_report_says_what_changed(campaign: Result) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    text = page.page(campaign, campaign.top(3), command="x")
    section = text[text.index('<h2 id="what-changed">') :]
    section = section[: section.index("</section>")]
    words = " ".join(re.sub(r"<[^>]+>", " ", section).split())
    assert f"4 of {SIZE} items changed in {DAYS[0]}..{DAYS[-1]}" in words
    last, before = f"{DAYS[-1]} (round {ROUNDS - 1})", f"{DAYS[0]}..{DAYS[-2]} (rounds 0.."
    assert f"Now is {last}, and before is {before}" in words
    assert "On average at most 5 % of the items of one such list did not change" in words
    for item, (since, kind) in CHANGED.items():
        assert re.search(rf"\b{item} {kind} {DAYS[since]}\b", words), (item, words)
    assert 'alt="Shares by round of' in section
    # rounds that are drawn at random change nothing: the section is not there
    random = fedtally.estimate([1, 2] * 200, num_rounds=4, domain=DOMAIN, seed=1, **SKETCH)
    assert "What changed" not in page.page(random, random.top(2), command="x")


@pytest.mark.extras
def test_a_chart_has_a_line_for_each_of_at_most_seven(
    campaign: Result, trends: Trends, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    figure: Any = trends.plot(tmp_path / "t.png")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [str(change.item) for change in trends.changed]
    assert "4 of 400 items changed" in figure.axes[0].get_title("left")
    # a circle at the round of each change
    rings = [line for line in figure.axes[0].lines if line.get_markersize() == 12]
    circles = [line.get_xdata()[0] for line in rings]
    assert not any(ring.get_clip_on() for ring in rings)  # a share of 0 lies on the axis
    assert circles == [DAYS.index(str(change.since)) for change in trends.changed]
    assert (tmp_path / "t.png").stat().st_size > 10_000
    with pytest.raises(InvalidInputError, match="a plot has at most 7 lines, got 8 items"):
        campaign.series(range(1, 9)).plot()


@pytest.mark.extras
@pytest.mark.parametrize(
    ("schedule", "whole", "said"),
    [
        ("hybrid", False, "95 % limits in each round"),
        ("hybrid", True, "95 % limits in all rounds at once"),
        ("batched:2", False, "95 % limits in each batch"),
        ("batched:2", True, "95 % limits in all batches at once"),
    ],
)
def test_a_chart_says_in_what_its_limits_hold(schedule: str, whole: bool, said: str) -> None:
    pytest.importorskip("matplotlib")
    asked: dict[str, Any] = {**SKETCH, "schedule": schedule, "num_rounds": 4, "seed": 1}
    result = fedtally.estimate([1, 2, 2] * 80, domain=DOMAIN, **asked)
    figure: Any = result.series([1], whole=whole).plot()
    assert figure.axes[0].get_title("left").endswith(f"bands: {said}")


@pytest.mark.extras
@pytest.mark.filterwarnings("error:Glyph")
def test_labels_of_rounds_are_no_formulas_and_of_letters_that_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    days = [label for label in ("$\\frac$", "1 \U0001b170") for _ in range(60)]
    result = fedtally.estimate([1, 2] * 60, rounds=days, domain=DOMAIN, seed=1)
    figure = result.series([1]).plot(tmp_path / "t.png")
    shown = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert shown == ["1 \N{REPLACEMENT CHARACTER}", r"\$\frac\$"]
    result.window("0..0").plot(tmp_path / "w.png")


@pytest.mark.extras
def test_a_chart_of_a_run_that_guarantees_nothing_says_so() -> None:
    pytest.importorskip("matplotlib")
    items, days = drawn()
    asked: dict[str, Any] = {"epsilon": 9.0, "population": "p", "trust": "distributed", "seed": 1}
    few, domain = [min(item, 6) for item in items], IntegerRange(1, 6)
    result = fedtally.estimate(few, rounds=days, domain=domain, not_private=True, **asked)
    for found in (result.trends("last:4"), result.series([5])):
        assert found.plot().get_suptitle() == result.not_private != ""


@pytest.mark.extras
def test_a_line_is_broken_where_rounds_are_missing(campaign: Result) -> None:
    pytest.importorskip("matplotlib")
    left = [sketch for sketch in campaign.sketches if sketch.round not in (4, 5)]
    gapped = Result(campaign.plan, DOMAIN, left)
    figure: Any = gapped.series([5]).plot(narrow=True)
    solid = [line for line in figure.axes[0].lines if line.get_linestyle() == "-"]
    drawn = [list(line.get_xdata()) for line in solid if len(line.get_xdata())]
    assert drawn == [[0, 1, 2, 3], [6, 7, 8, 9, 10, 11]]
    assert figure.axes[0].get_xlabel() == "round"


def test_the_command_prints_the_list_and_lines(
    campaign: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, table = str(tmp_path / "r.fed"), str(tmp_path / "t.csv")
    campaign.save(saved)
    assert run(["trends", saved, "--window", "last:4", "--against", "6", "--top", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"4 of {SIZE} items changed" in shown and "2 more changed: --top 4 lists all" in shown
    assert re.search(rf"3 falling [0-9.]+ % [0-9.]+ % -[0-9.]+ [0-9.]+ {DAYS[8]}", shown)
    assert run(["trends", saved, "--json", "-o", table]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["item"] for one in told["changed"]} == set(CHANGED)
    header, *rows = Path(table).read_text().splitlines()
    assert header.count(",") == len(Change.__dataclass_fields__) - 1 and len(rows) == 4
    assert run(["trends", saved, "--item", "5", "--item", "1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^{DAYS[0]} +[0-9.]+ % ± [0-9.]+ +[0-9.]+ % ± [0-9.]+", shown, re.M)
    assert run(["trends", saved, "--item", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "fedtally-series/1"


def test_the_command_names_items_that_were_no_candidates_and_rounds_of_one_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, days = str(tmp_path / "r.fed"), ["Mon", "Tue", "Wed", "Thu"]
    asked: dict[str, Any] = {"rows": 5, "width": 40, "encoding": "sketch", "seed": 1}
    words = ["tea", "milk"] * 200
    fedtally.estimate(words, rounds=days * 100, schedule="batched:2", **asked).save(saved)
    assert run(["trends", saved, "--item", "tea", "--item", "tee"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^Mon \(rounds 0..1\) .*^tee was no candidate$", shown, re.M | re.S)


@pytest.mark.extras
def test_the_command_answers_where_there_is_no_line_to_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    saved, plot, table = (tmp_path / name for name in ("r.fed", "t.png", "t.csv"))
    fedtally.estimate([1, 2] * 80, rounds=[1, 2] * 80, domain=DOMAIN, seed=1).save(saved)
    assert run(["trends", str(saved), "--plot", str(plot), "-o", str(table)]) == 0
    out, error = capsys.readouterr()
    assert out.startswith("Too few rounds to tell whether any of 400 items changed in 1..2")
    assert "is not written: no item" in error
    assert table.exists() and not plot.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--against", "0"],
        ["--against", "week"],
        ["--alpha", "7"],
        ["--window", "all"],
        ["--item", "tea"],
        ["--item", "4444"],
        ["--item", "5", "--window", "last:2"],
        ["--item", "5", "--against", "before"],
        ["--item", "5", "--alpha", "0.1"],
        ["-o", "t.txt"],
        ["--recovery", "median"],
        ["--confidence", "0"],
        ["--item", "5", "--confidence", "0"],
    ],
)
def test_the_command_refuses_what_is_none(
    campaign: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    saved = str(tmp_path / "r.fed")
    campaign.save(saved)
    before = sorted(tmp_path.iterdir())
    assert run(["trends", saved, *words]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ")
    assert sorted(tmp_path.iterdir()) == before
