"""What a person reads of a result, and the document that a program reads."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import fedtally
from fedtally.answer import amounts, documents, screen, sections, tables
from fedtally.answer.estimates import Estimate, is_told_from_zero, uncertainty, uncertainty_of
from fedtally.answer.result import Result
from fedtally.domain import Strings
from fedtally.privacy.accounting import Guarantee, Method
from fedtally.privacy.events import Relation
from fedtally.privacy.guarantee_text import right_guesses
from fedtally.recovery.limits import Limits


@pytest.fixture(scope="module")
def result() -> Result:
    return fedtally.estimate(
        ["tea"] * 70 + ["milk"] * 30, rows=5, width=256, num_rounds=2, seed=1, evaluate=True
    )


def test_document_is_json_and_complete(result: Result) -> None:
    fields = documents.of_result(result, result.top(1), result.estimates(["milk", "cola"]))
    assert json.loads(json.dumps(fields)) == fields
    assert [entry["item"] for entry in fields["estimates"]] == ["tea"]
    assert [entry["count"] for entry in fields["queries"]] == [30.0, 0.0]
    assert fields["plan"]["bytes_per_client"] == result.plan.bytes_per_client
    assert "queries" not in documents.of_result(result, [])


def test_a_document_has_both_readings_of_the_whole_list() -> None:
    result = fedtally.estimate("zipf:a=1.1,d=900,n=20000", domain="range:1..900", width=90, seed=1)
    top, asked = result.top(20), result.estimates([3, 899])
    error = documents.of_result(result, top, asked)["error"]
    off = uncertainty_of([e for e in [*top, *asked] if is_told_from_zero(e)])
    assert off is not None and error == {
        "clients": off.clients.max(),
        "population": off.population.max(),
    }
    assert 0 < error["clients"] < error["population"]
    for nothing in ([], result.decoded(confidence=0).top(3), result.estimates([899])):
        assert documents.of_result(result, nothing)["error"] is None


def text_of(result: Result, columns: int = 300, **options: Any) -> str:
    top = options.pop("top", 3)
    return screen.plain(screen.answer(result, result.top(top), **options), columns)


def test_answer_says_what_must_be_said(result: Result) -> None:
    cola = result.estimates(["cola"])
    text = " ".join(text_of(result, queried=cola, details=True).split())
    plan = result.plan
    for said in (
        "Share of each item among 100 clients; 2 candidates",
        amounts.size(plan.bytes_per_client),
        f"one-hot vector: {plan.one_hot_bytes_per_client} B",
        "binary: 1 B, but then the server would see it",
        "no differential privacy",
        "not public: taken from the input itself",
        "with probability at most",
        "no error found among these 100 clients",
        plan.fingerprint[:16],
        "Items asked for",
        "hybrid schedule, joint recovery",
    ):
        assert said in text


def test_an_answer_is_in_the_order_of_its_questions(result: Result) -> None:
    """What was counted, the list, its error, what is protected, the bytes, what to try next."""
    text = text_of(result, 80, hints=[("--more", "more of it")])
    parts = ("Share of each", " tea ", "\nError ", "\nPrivacy ", "\nUpload ", "\nTry ", "--more  ")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    exact = result.plan.one_hot_bytes_per_client
    assert f"; over a declared list an exact histogram takes only {exact} B" in " ".join(
        text.split()
    )
    assert "fingerprint" not in text and result.plan.fingerprint[:16] not in text


def test_a_long_purpose_of_a_hint_goes_on_below_itself(result: Result) -> None:
    text = text_of(result, 60, hints=[("--more N", "more of it, " * 5)])
    first, second = text[text.index("--more N") :].splitlines()[:2]
    start = text.splitlines()[-2].index("more of it,")
    assert first.startswith("--more N ") and "more of it," in first
    assert second[:start].strip() == "" and second[start:].startswith(("more", "of", "it,"))
    # a long command has no column of its own: nothing of it is cut
    command = "--more /" + "folder/" * 8
    lines = text_of(result, 60, hints=[(command, "more of it")])
    assert command in "".join(lines.split()).replace("--more/", "--more /")
    # nor has a purpose that would have few columns: it stands below the command
    lines = text_of(result, 60, hints=[("fedtally demo --max-bytes 32kB", "more bytes, and so on")])
    assert "  fedtally demo --max-bytes 32kB\n           more bytes, and so on\n" in re.sub(
        " +\n", "\n", lines
    )


def test_an_item_that_was_no_candidate_is_named(result: Result) -> None:
    asked = result.estimates(["tea", "taa"])
    assert "\ntaa was no candidate\n" in text_of(result, queried=asked)
    assert "no candidate" not in text_of(result, queried=asked[:1])


def test_the_words_are_those_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("word,user,day\n" + "".join(f"w{i % 5},u{i // 4},1\n" for i in range(400)))
    drawn = fedtally.estimate(path, item="word", client="user", seed=1)
    lines = text_of(drawn, 80).splitlines()
    assert lines[0] == "Share of each drawn word among 100 clients (user); 5 candidates"
    assert lines[1] == "The draw left out 75 % of the clients' items: --max-items 4 counts all"
    [head] = [line for line in lines if line.startswith("#")]  # it may have a line above it
    assert head.split()[:2] == ["#", "word"]
    whole = text_of(fedtally.estimate(path, item="word", client="user", max_items=4, seed=1), 80)
    assert whole.startswith("Share of 100 clients (user) that hold each word among at most 4 items")
    by_day = text_of(fedtally.estimate(path, item="word", client="user", round="day", seed=1), 80)
    assert by_day.startswith("Share of each drawn word among ")
    hidden = fedtally.estimate(
        path, item="word", client="user", domain=[f"w{i}" for i in range(5)], epsilon=1.0
    )
    assert "Share of each drawn word among" in text_of(hidden, 80)
    assert "draw left out" not in text_of(hidden)
    drawn.save(tmp_path / "r.fed")
    assert text_of(Result.load(tmp_path / "r.fed"), 80) == text_of(drawn, 80)


def test_a_column_of_an_evil_name_cannot_drive_a_terminal() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"w\x1b[31m": ["tea", "tea"], "u\x07": ["a", "b"]})
    text = text_of(fedtally.estimate(table, item="w\x1b[31m", client="u\x07", seed=1))
    assert "\x1b" not in text and "\x07" not in text
    assert r"Share of each w\x1b[31m among 2 clients (u\x07); 1 candidate" in text


@pytest.mark.parametrize("columns", [80, 100])
def test_an_answer_fits_a_screen_and_counts_the_notes_that_do_not(columns: int) -> None:
    """At its longest: 20 items, a table of people without its people, no ledger, large epsilon."""
    table = {"item": list(range(1, 41)) * 300, "user": list(range(12_000))}
    result = fedtally.estimate(
        pytest.importorskip("pyarrow").table(table),
        item="item",
        domain="range:1..5000",
        epsilon=11.0,
        num_rounds=3,
    )
    assert len(result.cautions) >= 3
    hints = [("--one", "x"), ("--two", "y")]
    lines = text_of(result, columns, top=20, hints=hints).splitlines()
    assert len(lines) <= 35
    text = " ".join(" ".join(lines).split())
    assert "each row counts as a person" in text  # the first note is there
    hidden = sum(f"Note {note[:20]}" not in text for note in result.cautions)
    assert hidden and f"{hidden} more note" in text
    whole = " ".join(text_of(result, columns, top=20, details=True).split())
    assert all(note[:20] in whole for note in result.warnings)
    assert len(text_of(result, columns, top=30, hints=hints).splitlines()) <= 45


@pytest.mark.parametrize("columns", [60, 72, 80])
def test_hints_make_no_narrow_answer_longer_than_a_screen(columns: int) -> None:
    """At its longest without notes: 20 items, and four hints of two lines each."""
    items = [item for item in range(1, 41) for _ in range(300 - item)]
    result = fedtally.estimate(items, domain="range:1..50000", num_rounds=3, seed=1, evaluate=True)
    assert not result.cautions
    hints = [(f"fedtally estimate --option {n}", "an answer of another kind") for n in range(4)]
    text = text_of(result, columns, top=20, hints=hints)
    assert len(text.splitlines()) <= 35 and "Try      --details" in text
    assert text_of(result, 160, top=20, hints=hints).count("--option") == 4


@pytest.mark.parametrize("relation", ["zero-out", "replace-one", "add-remove"])
def test_guesses_are_those_of_the_best_test(relation: str) -> None:
    """The best guess between neighbours at even odds errs with (1 - delta) / (1 + e^epsilon)."""
    result = fedtally.estimate(
        list(range(1, 101)),
        domain="range:1..200",
        epsilon=1.5,
        delta=1e-3,
        neighbours=relation,
        max_clients=200 if relation == "add-remove" else None,
    )
    guarantee = result.plan.privacy.guarantee
    right = 100 * (1 - (1 - guarantee.delta) / (1 + math.exp(guarantee.epsilon)))
    said = sections.privacy.line(result.plan)
    most = float(re.findall(r"is right in at most ([0-9.]+) % of cases", said)[0])
    assert right <= most <= right + 0.1
    assert "50 % is chance" in said and f"at most {most:g} %" in " ".join(
        sections.privacy.protects(result.plan)
    )
    assert ("% (which of two sets of items does it have?)" in said) == (relation != "replace-one")


def test_no_guess_is_right_in_more_than_all_cases() -> None:
    """Without a bound, too; and epsilon 0 leaves a guess at chance."""
    relation, method = Relation.ZERO_OUT, Method.BASIC
    said = [
        right_guesses(Guarantee(epsilon, delta, relation, "central", method))
        for epsilon, delta in ((math.inf, 0.0), (700.0, 1e-6), (0.0, 0.0), (0.0, 1e-3))
    ]
    assert said == ["100", "100", "50", "50.1"]


def test_a_guess_that_may_fail_is_not_said_to_be_right_in_all_cases() -> None:
    """Epsilon 8 bounds a guess at 99.966 %, which one decimal would round up to 100."""
    said = [
        right_guesses(Guarantee(epsilon, 1e-6, Relation.ZERO_OUT, "central", Method.BASIC))
        for epsilon in (4.0, 8.0, 12.0)
    ]
    assert said == ["98.3", "99.97", "99.9994"]


def test_the_one_hot_vector_is_recommended_where_it_is_smaller(result: Result) -> None:
    assert any("histogram (one-hot vectors) is no larger" in note for note in result.warnings)
    assert "an exact histogram takes only 2 B" in text_of(result)
    wide = fedtally.estimate([str(i) for i in range(500)], rows=1, width=8, seed=1)
    assert not any("no larger" in note for note in wide.warnings)
    assert "an exact histogram takes" in text_of(wide)


def test_a_histogram_under_noise_is_not_called_exact() -> None:
    asked = {"domain": "range:0..9", "rows": 3, "width": 5, "seed": 1}
    noised = fedtally.estimate([0, 1, 1], epsilon=1.0, not_private=True, **asked)
    assert any(note.startswith("a histogram (one-hot vectors)") for note in noised.warnings)
    assert "; a histogram takes only" in " ".join(text_of(noised).split())


def test_truth_and_error_stand_beside_the_estimates(result: Result) -> None:
    lines = screen.plain(
        sections.listed.table([Estimate("tea", 0.71, None, None, 71.0)], [0.7])
    ).splitlines()
    assert lines[0].split() == ["error,"]
    assert re.split(r"\s{2,}", lines[1].strip()) == [
        "#",
        "item",
        "share",
        "true",
        "points",
        "clients",
    ]
    assert re.split(r"\s{2,}", lines[3].strip()) == [
        "1",
        "tea",
        "71.00 %",
        "█" * 20,
        "70.00 %",
        "+1.00",
        "71",
    ]


def test_what_cannot_be_told_from_zero_is_marked() -> None:
    items = [1] * 300 + [2] * 100 + list(range(3, 503))
    result = fedtally.estimate(
        items, domain="range:1..999", width=20, rows=7, epsilon=1.0, not_private=True, seed=1
    )
    top = result.top(20)
    number = sum(e.low == 0 for e in top)
    assert 0 < number < 20
    assert [e.low == 0 for e in top] == [False] * (20 - number) + [True] * number
    lines = screen.plain(screen.answer(result, top), 300).splitlines()
    line = lines.index(f"── the {number} below cannot be told from 0")
    assert all("at most " not in row and "█" in row for row in lines[5:line])
    below = lines[line + 1 : line + 1 + number]
    # among these clients, and if they stand for more; a bar would make something of it
    assert all(row.count("at most ") == 2 and not re.search("[█-▏]", row) for row in below)
    assert "none of these can be told from 0" in screen.plain(screen.answer(result, top[-1:]), 300)
    assert "told from 0" not in screen.plain(screen.answer(result, top[:1]), 300)
    bare = screen.answer(result.decoded(confidence=0), top[:1])
    assert "told from 0" not in screen.plain(bare, 300)
    mixed = screen.plain(sections.listed.table([top[-1], top[0]]))
    assert "1 of these 2 cannot be told from 0 (at most): an item's margin depends on" in mixed
    alone = sections.listed.table([top[-1], top[0]], shares_counters=False)
    assert "1 of these 2 cannot be told from 0 (at most)\n" in screen.plain(alone)
    last = screen.plain(sections.listed.table([top[0], top[-1]]))
    assert "── the one below cannot be told from 0" in last


def test_an_exact_answer_says_what_its_limits_still_allow() -> None:
    """Of one client the limits exclude nothing, which the expected error alone would deny."""
    one = fedtally.estimate(["tea"], domain=["tea", "milk"], encoding="sketch", seed=1)
    assert one.top(1)[0].low == 0.0
    allowed = "recovery looks exact, though the limits allow 1 client more or less"
    text = screen.plain(screen.answer(one, one.top(1)), 300)
    assert "none of these can be told from 0" in text and "looks exact" not in text
    most = "Error    each is at most 100.00 % among this one client; at most 100.00 % if they stand"
    assert most in text
    assert allowed in screen.plain(screen.answer(one, one.top(1), details=True), 300)
    bare = screen.plain(screen.answer(one.decoded(confidence=0), one.top(1)), 300)
    assert "allow" not in bare and "Error    not estimated: the confidence is 0" in bare


def test_a_noised_answer_is_not_called_exact() -> None:
    """Noise that is 0 in most counters is no error that one expects, and still may be one."""
    found = fedtally.estimate(["tea"] * 30, domain=["tea", "milk"], epsilon=6)
    assert found.intervals is not None and found.intervals.predicted_linf == 0
    said = "most likely none: the plan's noise is small"
    shown = " ".join(text_of(found, details=True).split())
    assert said in shown and "looks exact" not in shown
    assert "exact" not in text_of(found).partition("Upload")[0]


def test_who_dropped_out_adds_up() -> None:
    traffic = {"method": "secagg", "cohorts": 1, "clients": 2000, "equals_plain_sum": True}
    late = "1,856 of 2,000 clients in the sums, 200 dropped out, 56 of them after their part was in"
    for survivors, dropouts, said in (
        (1856, 200, f"{late}; the sums equal"),
        (1800, 200, "200 dropped out; the sums equal"),
        (2000, 0, "nobody dropped out; the sums equal"),
    ):
        numbers = {"survivors": survivors, "dropouts": dropouts}
        assert said in sections.trust.line({**traffic, **numbers}, "client")


def held(item: str | int, share: float, low: float, high: float, sampling: float) -> Estimate:
    """Return an estimate whose limits for a population follow from the others."""
    off = uncertainty(
        np.array([share]), Limits(np.array([low]), np.array([high])), np.array([sampling])
    )
    ends = (float(end[0]) for end in off.limits)
    return Estimate(item, share, low, high, 1e6 * share, sampling, *ends)


def test_both_readings_stand_in_a_row_the_narrower_first() -> None:
    """One number each, which holds on both sides: the distance to the further limit."""
    tea = held("tea", 0.5, 0.49, 0.53, 0.04)
    text = screen.plain(sections.listed.table([tea], unit="people"))
    assert [line.split() for line in text.splitlines()[:2]] == [
        ["±", "these", "±", "more"],
        ["#", "item", "share", "people", "people", "people"],
    ]
    assert text.splitlines()[3].split()[-3:] == ["3.00", "5.00", "500,000"]


SHARES = st.floats(0, 1)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(SHARES, SHARES, SHARES, st.floats(1e-7, 0.3)), min_size=1, max_size=6),
    st.booleans(),
)
def test_if_clients_stand_for_more_no_number_is_smaller(
    rows: list[tuple[float, float, float, float]], is_shrunk: bool
) -> None:
    """In each row as it is printed, in the line below, and in the document.

    Also where an estimate was shrunk beyond its own limits, and covering both of its limits.
    """
    found = []
    for one, two, three, sampling in rows:
        low, share, high = sorted((one, two, three))
        found.append(
            held("x", high if is_shrunk else share, low, share if is_shrunk else high, sampling)
        )
    text = screen.plain(sections.listed.table(found), 200)
    lines = [line for line in text.splitlines() if re.match(r" *[0-9]+  x  ", line)]
    assert len(lines) == len(found)
    has_clients = "these" in text
    for estimate, line in zip(found, lines, strict=True):
        numbers = re.findall(r"(?:at most |  )([0-9.]+)(?: %)?(?=  )", line[line.index("%") :])
        cells = [float(number) for number in numbers][: 1 + has_clients]
        assert cells == sorted(cells)
        if is_told_from_zero(estimate) and has_clients:
            further = 100 * max(
                estimate.frequency - estimate.low, estimate.high - estimate.frequency
            )
            assert cells[0] >= further - 0.5e-2
    said = re.findall(r"(?:±|at most) ([0-9.]+)", sections.error.doubt(found, "these"))
    assert [float(number) for number in said] == sorted(map(float, said)) and said


def test_the_answer_says_what_each_kind_of_interval_covers() -> None:
    result = fedtally.estimate([1, 1, 2], domain="range:1..9", width=64, seed=1)
    text = " ".join(text_of(result, queried=result.estimates([3]), details=True).split())
    assert (
        "95 %, for frequencies among those that took part; of a list chosen by its"
        " estimates, on" in text
    )
    assert (
        "95 % each, for frequencies among those that took part; of items named"
        " beforehand, not" in text
    )
    alone = result.estimates([3])
    only = " ".join(screen.plain(screen.answer(result, (), alone, details=True), 300).split())
    assert "of items named beforehand" in only and "; of a list" not in only
    at_once = result.decoded(intervals="simultaneous", confidence=0.9)
    assert "90 %, for frequencies among those that took part; of all" in text_of(
        at_once, details=True
    )


def test_noise_that_moves_no_count_has_a_doubt_that_can_be_read() -> None:
    """Its limits are as wide as rounding, and the counts are not called exact."""
    result = fedtally.estimate(["a", "b"] * 2048, domain=["a", "b", "c"], epsilon=14.0)
    said = sections.error.line(result, result.top(2))
    assert said.startswith("± 0.00 points among these 4,096 clients; ± 1.5")


def test_one_line_of_doubt_has_one_number_for_each_reading() -> None:
    """What the limits cover, how good the list is, and what was foreseen: in the details."""
    asked: dict[str, Any] = {"domain": "range:1..900", "rows": 6, "width": 90, "seed": 1}
    result = fedtally.estimate("zipf:a=1.1,d=900,n=20000", **asked)
    top = result.top(20)
    off = uncertainty_of([e for e in top if is_told_from_zero(e)])
    said = sections.error.line(result, top)
    assert off is not None and said == (
        f"± {amounts.points(off.clients.max())} among these 20,000 clients;"
        f" ± {amounts.points(off.population.max())[:-7]} if they stand for more people"
    )
    assert f"Error    {said}" in screen.plain(screen.answer(result, top), 300)
    # items that were asked for count too, and a list that none of can be told from 0 says so
    rare = result.estimates([899])
    assert not is_told_from_zero(rare[0]) and sections.error.line(result, [*top, *rare]) == said
    assert sections.error.line(result, rare).startswith("each is at most ")
    # with the truth: what was found, and nothing foreseen
    known = fedtally.estimate("zipf:a=1.1,d=900,n=20000", **asked, evaluate=True)
    found = sections.error.line(known, top)
    assert known.evaluation is not None and found == (
        f"largest error found: {amounts.points(known.evaluation.linf)} among these 20,000 clients;"
        f" {said.partition('; ')[2]}"
    )
    bare = known.decoded(confidence=0)
    bare.evaluate()
    assert sections.error.line(bare, bare.top(3)) == found.partition("; ")[0]
    details = screen.plain(screen.answer(known, top, details=True), 300)
    for only in ("predicted from the sums", "precision", "of a list chosen by its estimates"):
        assert only in details and only not in screen.plain(screen.answer(known, top), 300)


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ("[bold red]x", "[bold red]x"),
        (":smile:", ":smile:"),
        ("a\x1b]0;evil\x07b", r"a\x1b]0;evil\x07b"),
        ("two\nlines", r"two\nlines"),
        ("\u202eright to left", r"\u202eright to left"),
        ("漢字 é", "漢字 é"),
        ("", '""'),
        (-7, "-7"),
    ],
)
def test_items_are_shown_as_they_are_and_cannot_drive_a_terminal(
    item: str | int, shown: str
) -> None:
    estimate = Estimate(item, 0.5, None, None, 5.0)
    assert f" {shown} " in screen.plain(sections.listed.table([estimate]))


@given(st.text(max_size=30))
def test_no_control_character_survives(item: str) -> None:
    assert tables.printable(item).plain.isprintable()


def test_long_items_are_elided_in_the_middle() -> None:
    item = "https://example.org/" + "x" * 200 + "/end"
    text = screen.plain(sections.listed.table([Estimate(item, 0.5, None, None, 5.0)]), 60)
    assert re.search(r"1  https://[a-z./]*…x*/end  50", text)
    assert "60 columns: without bars, items shortened; --json has all" in text
    # the terminal is full; Rich before version 15 pays a blank that it does not draw
    assert 59 <= max(map(len, text.splitlines())) <= 60


ITEMS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Mn", "Me"]), max_size=60)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(ITEMS, st.floats(0, 1)), min_size=1, max_size=4),
    st.sampled_from([60, 72, 80, 120]),
    st.booleans(),
    st.floats(1e-7, 0.4),
    st.sampled_from([1.0, 3.0]),
)
def test_a_row_has_its_item_and_whole_numbers_at_any_width(
    rows: list[tuple[str, float]], columns: int, has_truth: bool, half: float, skew: float
) -> None:
    found = [
        replace(
            held(item, f, max(0.0, f - half), min(1.0, f + skew * half), 2 * half),
            count=f * 123_456_789,
        )
        for item, f in rows
    ]
    truth = [min(1.0, e.frequency + half / 2) for e in found] if has_truth else None
    table = sections.listed.table(found, truth, unit="contributions")
    lines = screen.plain(table, columns).splitlines()
    assert all(cell_len(line) <= columns for line in lines)
    shown = [line for line in lines[3:] if "told from 0" not in line][: len(found)]
    left_out = " ".join(" ".join(lines).partition(f"{columns} columns: ")[2].split())
    digits = amounts.decimals(
        [e.frequency for e in found] + [h for e in found if (h := (e.high - e.low) / 2) > 1e-9]
    )
    for estimate, line in zip(found, shown, strict=True):
        assert f" {amounts.percent(estimate.frequency, digits)}" in line
        label = tables.printable(estimate.item).plain
        start = r" *[0-9]+  " if "#" in lines[1].split() else ""
        share = re.escape(amounts.percent(estimate.frequency, digits))
        [field] = re.findall(rf"^{start}(.*?) +{share}", line)
        if field.rstrip() == label.rstrip():
            continue
        assert "items shortened" in left_out
        assert cell_len(field) >= 6  # 8, without a blank and half of a wide letter
        assert any(
            label.startswith(field[:at]) and label.rstrip().endswith(field[at + 1 :])
            for at, letter in enumerate(field)
            if letter == "…"
        )
    assert (f"{found[0].count:,.0f}" in shown[0]) or "contributions" in left_out
    heads = " ".join(lines[0].split() + lines[1].split())
    for name in ("± these", "± more", "#", *(("true", "error,") if has_truth else ())):
        assert name in heads or name in left_out
    # the bars stand behind the shares, or a line says that they do not
    has_bars = any(re.search("% +█", line) for line in shown)
    largest = max((e.frequency for e in found if is_told_from_zero(e)), default=0.0)
    assert has_bars + ("bars" in left_out) == (largest > 0)


def test_columns_go_by_rank_and_groups_are_named_once() -> None:
    cells = ["1,234", "56,789"]
    after = [
        tables.Column("sends", cells, rank=2, group="a client"),
        tables.Column("gets", cells, group="a client"),
        tables.Column("mean", cells, rank=1, group="l_2"),
        tables.Column("median", cells, rank=1, group="l_2"),
    ]
    names = [tables.printable(name) for name in ("a long name of a row", "short")]
    table = tables.FittedTable("row", names, after, noun="rows")
    shown = {columns: screen.plain(table, columns).splitlines() for columns in (60, 42, 34, 22)}
    assert [len(lines) for lines in shown.values()][:2] == [5, 6]
    assert shown[60][:2] == [
        "                      a client             l_2        ",
        "row                      sends    gets    mean  median",
    ]
    assert shown[42][-1] == "42 columns: rows shortened; --json has all"
    assert shown[42][3] == "a lo…row     1,234   1,234   1,234   1,234"
    assert shown[34][3] == "a long n…f a row     1,234   1,234"
    assert " ".join(shown[34][5:]).startswith("34 columns: without l_2, rows")
    assert shown[22][3] == "a long…a row     1,234"
    assert "without  l_2, a client sends,  rows shortened" in " ".join(shown[22])
    folded = tables.FittedTable("row", names, [], before=after[1:2], folds=True)
    assert "…" not in screen.plain(folded, 22) and "shortened" not in screen.plain(folded, 22)


@pytest.mark.parametrize(
    ("shares", "digits"),
    [([], 2), ([0.5], 2), ([0.01], 2), ([0.0012], 2), ([0.00012], 3), ([1e-9, 0.5], 6), ([0.0], 2)],
)
def test_decimals(shares: list[float], digits: int) -> None:
    assert amounts.decimals(shares) == digits


@given(st.floats(1e-6, 1.0))
def test_two_digits_of_a_share_are_seen(share: float) -> None:
    shown = float(amounts.percent(share, amounts.decimals([share])).removesuffix(" %")) / 100
    assert shown == pytest.approx(share, rel=0.5 if share < 1e-7 else 0.06)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 B"),
        (999.4, "999 B"),
        (1000, "1.00 kB"),
        (31_987, "32.0 kB"),
        (999_600, "1.00 MB"),
        (2.5e9, "2.50 GB"),
    ],
)
def test_sizes(number: float, shown: str) -> None:
    assert amounts.size(number) == shown


def test_a_zero_has_no_sign() -> None:
    assert amounts.percent(-1e-12) == "0.00 %"


def test_collisions_are_said_of_fingerprints() -> None:
    assert "probability" in sections.counted.collisions(Strings(["tea", "milk"], bytes(32)))
    assert sections.counted.collisions(Strings(["tea"], bytes(32))) == ""


@pytest.mark.parametrize(
    ("pilot", "noised"), [({}, False), ({"epsilon": None}, False), ({"epsilon": 1.0}, True)]
)
def test_a_pilot_says_whether_it_was_noised(pilot: dict[str, object], noised: bool) -> None:
    """Results that were saved before this was kept say nothing of it."""
    of = {"num_clients": 500, "rows": 8, "width": 200, "bytes_per_client": 3200} | pilot
    said = {"sizing": "model", "tau": 0.01, "failure_probability": 0.1, "pilot": of, "message": ""}
    [_, (_, words)] = sections.error.sizing_rows(said)
    assert ("noised for epsilon 1" in words) == noised
