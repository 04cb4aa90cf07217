"""Windows of an answer: which rounds they hold, what says so, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtally
from fedtally.answer import by_round, documents, page, screen
from fedtally.answer.result import Result
from fedtally.answer.sections import counted
from fedtally.answer.window import LandedRounds
from fedtally.base import archive
from fedtally.cli.app import run
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.recovery.decoding import Decoding

SIZE, ROUNDS, CLIENTS = 500, 10, 400
DOMAIN = IntegerRange(1, SIZE)
DAYS = [f"2026-11-{day:02d}" for day in range(1, ROUNDS + 1)]
SKETCH: dict[str, Any] = {"rows": 5, "width": 60, "domain": DOMAIN, "encoding": "sketch"}


def drawn(rounds: int = ROUNDS) -> tuple[list[int], list[str]]:
    """Return items and days of clients of one law."""
    law = (np.arange(1, SIZE + 1) + 2.7) ** -1.1
    items = np.random.default_rng(0).choice(SIZE, rounds * CLIENTS, p=law / law.sum()) + 1
    return items.tolist(), np.repeat(DAYS[:rounds], CLIENTS).tolist()


@pytest.fixture(scope="module")
def campaign() -> Result:
    items, days = drawn()
    return fedtally.estimate(items, rounds=days, seed=1, evaluate=True, **SKETCH)


@pytest.fixture(scope="module")
def week(campaign: Result) -> Result:
    return campaign.window("last:2")


def without(result: Result, *gone: int) -> Result:
    """Return the answer of the rounds that are not gone."""
    left = [sketch for sketch in result.sketches if sketch.round not in gone]
    return Result(result.plan, result.domain, left, round_labels=result.round_labels)


def test_a_window_of_all_rounds_is_the_answer_itself(campaign: Result) -> None:
    assert campaign.window("all") is campaign
    every = campaign.window(f"last:{ROUNDS}")
    assert np.array_equal(every.frequencies(), campaign.frequencies())
    assert every.top(5) == campaign.top(5)


@pytest.mark.parametrize(
    ("recovery", "objective"),
    [("belief", "linf"), ("joint", "linf"), ("median", "linf"), ("auto", "l2")],
)
def test_without_history_a_window_is_the_answer_of_its_sums_to_the_bit(
    campaign: Result, recovery: str, objective: str
) -> None:
    asked = {"recovery": recovery, "objective": objective}
    window = campaign.decoded(**asked).window("last:3", history=0)
    alone = Result(campaign.plan, DOMAIN, campaign.sketches[-3:], decoding=Decoding(**asked))
    assert window.recovery == alone.recovery
    assert np.array_equal(window.frequencies(), alone.frequencies())
    assert window.top(5) == alone.top(5) and window.estimates([3, 99]) == alone.estimates([3, 99])
    assert window.span is not None and (window.span.history, window.span.prior) == (3, 0)


def test_a_history_moves_estimates_and_no_client_count(campaign: Result, week: Result) -> None:
    alone = campaign.window("last:2", history=0)
    assert week.span is not None and week.span.prior == 8
    assert week.num_contributions == alone.num_contributions == 2 * CLIENTS
    assert not np.array_equal(week.frequencies(), alone.frequencies())
    limits = week.limits()
    assert limits is not None and float(np.mean(limits.high - limits.low)) > 0
    assert week.evaluate().l2 < alone.evaluate().l2
    # the prior has shrunk them: they are not shrunk a second time
    shrunk = week.decoded(objective="l2")
    np.testing.assert_allclose(shrunk.frequencies(), week.frequencies(), atol=1e-9)


def test_a_window_is_compared_with_the_truth_of_its_own_rounds(campaign: Result) -> None:
    items, days = drawn()
    first = [item for item, day in zip(items, days, strict=True) if day <= DAYS[1]]
    window = campaign.window("0..1", history=0)
    assert window.true_frequencies([1]) == [first.count(1) / len(first)]


def test_fits_are_kept(campaign: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    result = campaign.decoded(confidence=0.9)
    made: list[int] = []
    fit = by_round.fit
    monkeypatch.setattr(by_round, "fit", lambda *a: made.append(1) or fit(*a))
    for _ in range(2):
        for number in range(3):
            result.window(f"{number}..{number}", history=0)
    assert len(made) == 3
    for number in range(ROUNDS):
        result.window(f"{number}..{number}", history=0)
    assert len(made) == ROUNDS and len(result._by_round._fits) == 6


def test_fits_of_one_window_by_two_decoders_are_kept_apart(campaign: Result) -> None:
    rounds = campaign.decoded()._by_round
    found = [str(rounds._fit_of([0, 1], name).recovery) for name in ("joint", "median", "joint")]
    assert found == ["joint", "median", "joint"]


def test_windows_are_named_by_length_numbers_and_labels(campaign: Result) -> None:
    gapped = without(campaign, 4, 7)
    spans = [
        campaign.window(asked, history=0).span
        for asked in ("last:2", "3..5", f"{DAYS[3]}..{DAYS[5]}", "9..9")
    ]
    assert [one and one.rounds for one in spans] == [(8, 9), (3, 4, 5), (3, 4, 5), (9,)]
    assert {one and one.labels for one in spans[1:3]} == {(DAYS[3], DAYS[5])}
    last = gapped.window("last:4", history=0).span  # counts rounds that landed
    assert last is not None
    assert (last.rounds, last.missing, last.clients) == ((5, 6, 8, 9), (7,), 4 * CLIENTS)
    assert str(last) == f"{DAYS[5]}..{DAYS[9]} (rounds 5..9 without 7)"
    everything = gapped.window("last:400", history=0).span
    assert everything is not None and len(everything.rounds) == 8
    few = without(campaign, 2, 4, 6, 8).window("0..9", history=0).span
    assert str(few).endswith("(rounds 0..9 without 4 that did not land)")


def test_years_are_labels_and_no_numbers() -> None:
    years = ["1997", "1998", "2004"]
    rounds = np.repeat(years, 50).tolist()
    result = fedtally.estimate([1, 2] * 75, rounds=rounds, seed=1, domain=IntegerRange(1, 9))
    landed = LandedRounds(result.plan, result.sketches, result.round_labels)
    assert landed.chosen("1998..2004") == [1, 2] and landed.chosen("0..1") == [0, 1]
    with pytest.raises(InvalidInputError, match="'1999' is no round of 0..2, and the label of"):
        result.window("1999..2004")


def test_auto_takes_the_rounds_since_frequencies_changed() -> None:
    items, days = drawn()
    changed = [
        7 if day >= DAYS[6] and place % 4 == 0 else item
        for place, (item, day) in enumerate(zip(items, days, strict=True))
    ]
    result = fedtally.estimate(changed, rounds=days, seed=1, **SKETCH)
    span = result.window("auto").span
    assert span is not None and span.rounds[0] >= 6 and span.asked == "auto"


def test_every_output_names_the_window(campaign: Result, week: Result) -> None:
    window = without(campaign, 7).window("last:3", history=0)
    name = f"{DAYS[6]}..{DAYS[9]} (rounds 6..9 without 7)"
    assert f"among 1,200 clients in {name}" in counted.line(window)
    # a line of a terminal breaks where it is full
    for details in (False, True):
        shown = screen.answer(window, window.top(3), details=details)
        assert name in " ".join(screen.plain(shown).split())
    told = documents.of_result(window, window.top(1))["window"]
    assert (told["rounds"], told["missing"]) == ([6, 8, 9], [7])
    assert (told["labels"], told["clients"]) == ([DAYS[6], DAYS[9]], 3 * CLIENTS)
    assert told["asked"] == "last:3" and (told["history"], told["prior"]) == (3, 0)
    assert documents.of_result(campaign, [])["window"] is None
    assert name in repr(window) and name in window._repr_html_()
    assert set(window.to_arrow()["window"].to_pylist()) == {name}
    assert "window" not in campaign.to_arrow().schema.names
    assert any("one round of the window did not land" in note for note in window.warnings)
    assert any("which rest on the window alone" in note for note in week.warnings)


@pytest.mark.extras
def test_a_report_and_a_chart_name_the_window(campaign: Result) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    window = campaign.window("last:3", history=0)
    assert f"clients in {DAYS[7]}..{DAYS[9]}" in page.page(window, window.top(3), command="x")
    figure: Any = window.plot(k=3)
    assert DAYS[9] in figure._suptitle.get_text()


def test_clients_of_several_rounds_are_not_counted_in_a_window() -> None:
    clients = [f"c{number}" for number in range(200)]
    rows = [
        (client, day, "tea" if n % 3 else "milk")
        for day in DAYS
        for n, client in enumerate(clients)
    ]
    who, when, items = map(list, zip(*rows, strict=True))
    result = fedtally.estimate(items, clients=who, rounds=when, seed=1, confidence=0.9)
    assert result.num_clients == 200
    window, one = (result.window(asked, history=0) for asked in ("last:4", "last:1"))
    assert window.unit == "contributions" and window.num_contributions == 800
    assert one.unit == "clients" and one.num_clients == 200
    assert "800 contributions in" in counted.line(window)
    assert any("of how many clients, no sum shows" in note for note in window.warnings)
    # at worst, everybody came four times: 800 contributions tell no more of others than 200
    errors = [each.estimates(["tea"])[0].sampling_error for each in (window, one)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("last:0", "'last:0' is no window: write all, auto, last:7 or 3..9"),
        ("22", "'22' is no window: .* 3..9; for one round 22..22"),
        (DAYS[3], f"for one round {DAYS[3]}..{DAYS[3]}"),
        ("22-", "for one round 3..3"),
        ("", "'' is no window"),
        ("5..3", "window must end after it begins, got 5..3: write 3..5"),
        ("4..12", "'12' is no round of 0..9, and the label of none; labels go from 2026-11-01"),
        (f"{DAYS[3]}..5", f"both ends by labels or both by numbers, got {DAYS[3]}..5"),
        (f"3..{DAYS[5]}", f"both ends by labels or both by numbers, got 3..{DAYS[5]}"),
        ("tea..milk", "'tea' is no round of 0..9, and the label of none"),
        ("2026-11-01..2026-11-99", "'2026-11-99' is no round .* did you mean '2026-11-0"),
        ("7..7", "no round of 7..7 landed: take rounds of 2026-11-01..2026-11-10"),
    ],
)
def test_windows_that_are_none_are_refused(campaign: Result, asked: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        without(campaign, 7).window(asked)


def test_windows_that_cannot_be_told_apart_are_refused(campaign: Result, week: Result) -> None:
    unlabelled = Result(campaign.plan, DOMAIN, campaign.sketches)
    with pytest.raises(
        InvalidInputError, match="rounds 0..9, which have no labels here, got 'Mon'"
    ):
        unlabelled.window("Mon..Tue")
    one = fedtally.estimate([1, 2], seed=1, **SKETCH)
    with pytest.raises(InvalidInputError, match="the plan has one round, so there is no window"):
        one.window("last:1")
    assert one.window("all") is one
    with pytest.raises(InvalidInputError, match="this is one already: ask that result"):
        week.window("last:2")
    with pytest.raises(InvalidInputError, match="history must be at least 0"):
        campaign.window("last:2", history=-1)


def test_a_window_that_cuts_through_a_batch_is_refused() -> None:
    items, _ = drawn(8)
    result = fedtally.estimate(items, num_rounds=8, schedule="batched:4", seed=1, **SKETCH)
    assert result.window("2..3", history=0).span is not None
    with pytest.raises(InvalidInputError, match="whole batches, and round 2 has the signs"):
        result.window("3..5")


def noised(schedule: str, **more: Any) -> Result:
    items, _ = drawn(8)
    asked = SKETCH | more | {"schedule": schedule, "num_rounds": 8}
    return fedtally.estimate(items, seed=1, epsilon=3.0, population="p", not_private=True, **asked)


def test_rounds_that_were_added_up_before_they_were_opened_stay_together() -> None:
    result = noised("batched:4")
    assert [sketch.round for sketch in result.sketches] == [0, 2, 4, 6]
    span = result.window("last:4", history=0).span
    assert span is not None and span.rounds == (4, 5, 6, 7)
    for asked in ("last:3", "1..3"):
        with pytest.raises(
            InvalidInputError,
            match="and a window holds all of them or none.*; schedule='hybrid' opens each round",
        ):
            result.window(asked)
    with pytest.raises(InvalidInputError, match="so that there are no sums by round: leave window"):
        noised("shared").window("last:4")
    # the way out that the first refusal names
    assert noised("hybrid").window("last:3", history=0).span.rounds == (5, 6, 7)


def test_a_window_of_sums_of_several_rounds_says_how_many_rounds_it_rests_on() -> None:
    span = noised("batched:4").window("last:2").span  # four sums, of two rounds each
    assert span is not None and span.prior == 6 and span.history in (2, 4, 8)


def test_rounds_whose_clients_are_hidden_have_no_windows() -> None:
    result = noised("hybrid", neighbours="add-remove", max_clients=5000)
    with pytest.raises(InvalidInputError, match="nobody knows how many clients a round has"):
        result.window("last:4")


def test_auto_says_which_decoders_it_is_for(campaign: Result) -> None:
    with pytest.raises(InvalidInputError, match="median recovery does not: take window='last:7'"):
        campaign.decoded(recovery="median").window("auto")
    items, days = drawn()
    shared = fedtally.estimate(items, rounds=days, seed=1, schedule="shared", **SKETCH)
    with pytest.raises(InvalidInputError, match="there is one set of them here: take window="):
        shared.window("auto")


def test_an_open_domain_has_windows_of_the_names_of_all_rounds() -> None:
    items = ["tea"] * 600 + ["milk"] * 300
    rounds = ([1] * 200 + [2] * 200 + [3] * 200) + ([1] * 100 + [2] * 100 + [3] * 100)
    result = fedtally.estimate(items, rounds=rounds, domain="open", seed=1, allow_rare_names=True)
    with pytest.raises(InvalidInputError, match="of an open domain nobody has the list: take"):
        result.window("auto")
    window = result.window("last:2")
    assert sorted(str(e.item) for e in window.top(5)) == ["milk", "tea"]
    assert window.num_contributions == 600


def test_labels_stay_with_a_saved_result(campaign: Result, tmp_path: Path) -> None:
    path = tmp_path / "r.fed"
    campaign.save(path)
    loaded = Result.load(path)
    assert loaded.round_labels == tuple(DAYS)
    window = loaded.window("last:2", history=0)
    assert window.span == campaign.window("last:2", history=0).span
    with pytest.raises(InvalidInputError, match="a window is not saved"):
        window.save(tmp_path / "window.fed")
    schema, meta, arrays = archive.read(
        path,
        archive.schema_of(path),
        lambda *_: dict.fromkeys(("counters", "domain_values", "domain_seed"), None),
    )
    for labels in (DAYS[1:], [DAYS[0]] * ROUNDS, "days"):
        archive.write(path, schema, {**meta, "round_labels": labels}, arrays)
        with pytest.raises(UnreadableFileError, match="labels of rounds must be"):
            Result.load(path)


def test_labels_of_partitions_are_in_the_order_of_the_whole_table() -> None:
    asked: dict[str, Any] = {"domain": DOMAIN, "seed": 1}
    tallies = [
        fedtally.partial_tally([7] * 60, rounds=[day] * 60, partition=day, **asked)
        for day in (DAYS[2], DAYS[0], DAYS[1])
    ]
    result = fedtally.estimate(fedtally.merge_tallies(tallies), **asked)
    span = result.window(f"{DAYS[1]}..{DAYS[2]}").span
    assert span is not None and (span.rounds, span.labels) == ((1, 2), (DAYS[1], DAYS[2]))


def test_labels_of_a_private_run_are_not_shown() -> None:
    """They are what rows hold, and a row may be one client's."""
    items, days = drawn(4)
    asked = SKETCH | {"epsilon": 3.0, "population": "p"}
    private = fedtally.estimate(items, rounds=days, seed=None, ledger=None, **asked)
    assert private.round_labels is None
    assert private.window("last:2", history=0).span is not None


# ---- the command line ----


@pytest.fixture
def table(tmp_path: Path) -> str:
    items, days = drawn(6)
    path = tmp_path / "visits.csv"
    rows = "".join(f"{day},{item}\n" for item, day in zip(items, days, strict=True))
    path.write_text("day,item\n" + rows, encoding="utf-8")
    return str(path)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_commands_take_windows(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "r.fed")
    read = ["estimate", table, "--item", "item", "--round", "day", "--seed", "1", "--quiet"]
    size = ["--rows", "5", "--width", "60", "--evaluate", "--recovery", "joint"]
    whole = asked(capsys, *read, *size, "--window", "all", "--save", saved)
    assert whole["window"] is None
    days = ["--window", f"{DAYS[1]}..{DAYS[2]}", "--history", "0"]
    part = asked(capsys, *read, *size, *days)
    assert part["window"]["rounds"] == [1, 2] and part["window"]["history"] == 2
    assert part["evaluation"]["linf"] != whole["evaluation"]["linf"]
    queried = asked(capsys, "query", saved, "1", "2", *days)
    assert queried["window"] == part["window"]
    named = {one["item"]: one["frequency"] for one in queried["estimates"]}
    listed = {one["item"]: one["frequency"] for one in part["estimates"]}
    assert named["1"] == listed["1"]
    # a window was asked for, and the file is of all rounds
    asked(capsys, *read, *size, "--window", "last:1", "--save", saved)
    assert asked(capsys, "query", saved, "1")["num_contributions"] == 6 * CLIENTS


@pytest.mark.parametrize("window", ["last:x", "Mon..Tue"])
def test_a_window_that_is_none_ends_a_command(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], window: str
) -> None:
    saved = tmp_path / "r.fed"
    read = ["estimate", table, "--item", "item", "--round", "day", "--width", "60", "--quiet"]
    assert run([*read, "--window", window, "--save", str(saved)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "window" in error.replace("label", "window")
    assert not saved.exists()


def test_an_answer_that_was_paid_for_is_not_lost_over_a_window(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = str(tmp_path / "books.db")
    grant = ["ledger", "grant", "--ledger", ledger, "--population", "p"]
    assert run([*grant, "--epsilon", "4", "--delta", "1e-4"]) == 0
    words = ["estimate", table, "--item", "item", "--domain", "range:1..500", "--rounds", "4"]
    private = ["--epsilon", "2", "--population", "p", "--ledger", ledger, "--window", "2..9"]
    capsys.readouterr()
    assert run([*words, *private, "--json"]) == 0
    out, error = capsys.readouterr()
    assert json.loads(out)["window"] is None
    assert "the answer is of all rounds: the 4 rounds of the plan were added up" in error
