"""What a person reads of a result, and the document that a program reads."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtally
from fedtally import report
from fedtally.domain import Strings
from fedtally.result import Estimate, Result


@pytest.fixture(scope="module")
def result() -> Result:
    return fedtally.estimate(
        ["tea"] * 70 + ["milk"] * 30, rows=5, width=256, num_rounds=2, seed=1, evaluate=True
    )


def test_document_is_json_and_complete(result: Result) -> None:
    document = report.document(result, result.top(1), result.estimates(["milk", "cola"]))
    assert json.loads(json.dumps(document)) == document
    assert [entry["item"] for entry in document["estimates"]] == ["tea"]
    assert [entry["count"] for entry in document["queries"]] == [30.0, 0.0]
    assert document["plan"]["bytes_per_client"] == result.plan.bytes_per_client
    assert "queries" not in report.document(result, [])


def test_answer_says_what_must_be_said(result: Result) -> None:
    text = " ".join(
        report.plain(report.answer(result, result.top(2), result.estimates(["cola"])), 300).split()
    )
    plan = result.plan
    for said in (
        report.size(plan.bytes_per_client),
        f"one-hot vector: {plan.one_hot_bytes_per_client} B",
        "binary: 1 B, but then the server would see it",
        "no differential privacy",
        "not public: taken from the input itself",
        "with probability at most",
        "largest 0.00 points",
        plan.fingerprint[:16],
        "Items asked for",
        "hybrid schedule, joint recovery",
    ):
        assert said in text


def test_the_one_hot_vector_is_recommended_where_it_is_smaller(result: Result) -> None:
    assert any("a one-hot vector is no larger" in note for note in result.warnings)
    wide = fedtally.estimate([str(i) for i in range(500)], rows=1, width=8, seed=1)
    assert not any("no larger" in note for note in wide.warnings)


def test_truth_and_error_stand_beside_the_estimates(result: Result) -> None:
    lines = report.plain(
        report.estimates_table([Estimate("tea", 0.71, None, None, 71.0)], [0.7])
    ).splitlines()
    assert lines[0].split() == ["error"]
    assert re.split(r"\s{2,}", lines[1].strip()) == [
        "#",
        "item",
        "frequency",
        "true",
        "(points)",
        "clients",
    ]
    assert re.split(r"\s{2,}", lines[3].strip()) == [
        "1",
        "tea",
        "71.00 %",
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
    text = report.plain(report.answer(result, top), 300)
    assert f"{number} of these 20 cannot be told from 0" in text
    assert text.count("up to ") == number + 1  # and of the sampling error
    assert "on average over its items" in text
    table = report.estimates_table(top, confidence=0.95)
    assert [row.style == "dim" for row in table.rows] == [e.low == 0 for e in top]
    assert "None of these can be told from 0" in report.plain(report.answer(result, top[-1:]), 300)
    assert "told from 0" not in report.plain(report.answer(result, top[:1]), 300)
    assert "told from 0" not in report.plain(
        report.answer(result.decoded(confidence=0), top[:1]), 300
    )


def test_the_answer_says_what_each_kind_of_interval_covers() -> None:
    result = fedtally.estimate([1, 1, 2], domain="range:1..9", width=64, seed=1)
    text = " ".join(
        report.plain(report.answer(result, result.top(2), result.estimates([3])), 300).split()
    )
    assert (
        "95 %, for frequencies among the clients that took part; of a list chosen by its"
        " estimates, on" in text
    )
    assert (
        "95 % each, for frequencies among the clients that took part; of items named"
        " beforehand, not" in text
    )
    alone = " ".join(report.plain(report.footnotes(result, result.estimates([3])), 300).split())
    assert "on average over its items" not in alone
    assert "items named beforehand" in alone


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
    assert f" {shown} " in report.plain(report.estimates_table([estimate]))


@given(st.text(max_size=30))
def test_no_control_character_survives(item: str) -> None:
    assert report.printable(item).plain.isprintable()


def test_long_items_are_folded_not_cut() -> None:
    item = "https://example.org/" + "x" * 200
    text = report.plain(report.estimates_table([Estimate(item, 0.5, None, None, 5.0)]), 60)
    assert text.count("x") == 201  # one more in example
    assert max(map(len, text.splitlines())) <= 60


@pytest.mark.parametrize(
    ("shares", "digits"),
    [([], 2), ([0.5], 2), ([0.01], 2), ([0.0012], 2), ([0.00012], 3), ([1e-9, 0.5], 6), ([0.0], 2)],
)
def test_decimals(shares: list[float], digits: int) -> None:
    assert report.decimals(shares) == digits


@given(st.floats(1e-6, 1.0))
def test_two_digits_of_a_share_are_seen(share: float) -> None:
    shown = float(report.percent(share, report.decimals([share])).removesuffix(" %")) / 100
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
    assert report.size(number) == shown


def test_a_zero_has_no_sign() -> None:
    assert report.percent(-1e-12) == "0.00 %"


def test_collisions_are_said_of_fingerprints() -> None:
    assert "probability" in report.collisions(Strings(["tea", "milk"], bytes(32)))
    assert report.collisions(Strings(["tea"], bytes(32))) == ""


@pytest.mark.parametrize(
    ("pilot", "noised"), [({}, False), ({"epsilon": None}, False), ({"epsilon": 1.0}, True)]
)
def test_a_pilot_says_whether_it_was_noised(pilot: dict[str, object], noised: bool) -> None:
    """Results that were saved before this was kept say nothing of it."""
    of = {"num_clients": 500, "rows": 8, "width": 200, "bytes_per_client": 3200} | pilot
    said = {"sizing": "model", "tau": 0.01, "failure_probability": 0.1, "pilot": of, "message": ""}
    [_, (_, words)] = report.sizing_rows(said)
    assert ("noised for epsilon 1" in words) == noised
