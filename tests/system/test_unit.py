"""What counts as one client: rows, contributions and people, and what every output says of them."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtally
from fedtally.answer import documents
from fedtally.answer.answer import Answer
from fedtally.answer.result import Result
from fedtally.answer.screen import answer, plain
from fedtally.cli import app
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.simulation.counted_unit import looks_like_people
from fedtally.sketch import CountSketch
from fedtally.store import Ledger

DOMAIN = IntegerRange(1, 9)
SMALL: dict[str, Any] = {"domain": DOMAIN, "rows": 5, "width": 64}


def call(*arguments: str) -> str:
    """Return what a command that ends well prints, on one line."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
        code = app.run(list(arguments))
    assert code == 0, error.getvalue()
    return " ".join(out.getvalue().split())


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "visits.csv"
    path.write_text(
        "user_id,day,n,item\n" + "".join(f"u{i % 40},{i % 3},2,{1 + i % 7}\n" for i in range(200))
    )
    return str(path)


# ---- what a row is ----


@pytest.mark.promise
def test_every_output_says_that_a_row_counts_as_a_person(table: str, tmp_path: Path) -> None:
    saved = [str(tmp_path / f"{name}.fed") for name in "ab"]
    options = ["--item", "item", "--domain", "range:1..9", "--epsilon", "1"]
    shown = [
        call("estimate", table, *options),
        call("estimate", table, *options, "--json", "--save", saved[0]),
    ]
    call("estimate", table, *options, "--rounds", "2", "--save", saved[1])
    for more in ([], ["--json"]):
        shown += [
            call("query", saved[0], "1", *more),
            call("inspect", saved[0], *more),
            call("merge", *saved, *more),
        ]
    for text in shown:
        assert "each row counts as a person of its own" in text
        assert "--client COL" in text and "'user_id' looks like one" in text
    assert "'day'" not in shown[0]


def test_who_names_the_clients_is_not_told_to(table: str) -> None:
    options = ["--item", "item", "--domain", "range:1..9"]
    for more in (["--client", "user_id", "--epsilon", "1"], []):
        assert "counts as a person" not in call("estimate", table, *options, *more)
    for source in (["zipf:d=50,n=500"], ["demo"]):
        command = source if source == ["demo"] else ["estimate", *source]
        assert "counts as a person" not in call(*command, "--epsilon", "1")
    counted = call("estimate", table, *options, "--count", "n", "--epsilon", "1")
    assert "each counted record counts as a person of its own" in counted


def test_advice_rests_on_names_alone(tmp_path: Path) -> None:
    """Repeated values are the clients' own: no note may depend on them."""
    said = set()
    for values in (range(50), [1] * 50):
        path = tmp_path / "t.csv"
        path.write_text("device,item\n" + "".join(f"{value},1\n" for value in values))
        out = json.loads(
            call(
                "estimate",
                str(path),
                "--item",
                "item",
                "--domain",
                "range:1..9",
                "--epsilon",
                "1",
                "--json",
            )
        )
        said.add(tuple(out["warnings"]))
    [warnings] = said
    assert any("'device' looks like one" in warning for warning in warnings)


def test_no_key_of_json_lines_is_advice(tmp_path: Path) -> None:
    """Keys stand in the rows: which there are is what clients hold."""
    path = tmp_path / "t.jsonl"
    said = set()
    for more in ({}, {"device": 7}):
        path.write_text(
            "".join(
                json.dumps({"item": 1, "user_id": client} | more) + "\n" for client in range(50)
            )
        )
        out = json.loads(
            call(
                "estimate",
                str(path),
                "--item",
                "item",
                "--domain",
                "range:1..9",
                "--epsilon",
                "1",
                "--json",
            )
        )
        said.add(tuple(out["warnings"]))
    [warnings] = said
    assert any("counts as a person" in warning for warning in warnings)
    assert not any("user_id" in warning or "device" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("user", True),
        ("USER_ID", True),
        ("clientId", True),
        ("patients", True),
        ("e-mail", False),
        ("email", True),
        ("imei2", True),
        ("word", False),
        ("valid", False),
        ("video", False),
        ("users per day", True),
        ("", False),
    ],
)
def test_names_that_look_like_people(name: str, likely: bool) -> None:
    assert looks_like_people([name, "word"]) == [name] * likely


def test_a_private_run_without_a_ledger_says_so(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "books.db", create=True).grant("phones", epsilon=2.0, delta=1e-6, time=0)
    own = {**SMALL, "epsilon": 1.0}

    def said(**options: Any) -> bool:
        result = fedtally.estimate([1, 2, 3] * 30, **own | options)
        texts = plain(answer(result, [])), json.dumps(documents.of_result(result, []))
        found = {"in no ledger" in text for text in texts}
        assert len(found) == 1
        return found.pop()

    assert said() and said(population="phones")
    assert not said(population="phones", ledger=tmp_path / "books.db")
    assert not said(not_private=True) and not said(epsilon=None)


# ---- clients of several rounds ----


def natural(**options: Any) -> Result:
    """Return a campaign of 20 clients in three rounds each, and 30 in one, who all keep to one
    item."""
    clients = [f"a{i}" for i in range(20)] * 3 + [f"b{i}" for i in range(30)]
    rounds = [day for day in range(3) for _ in range(20)] + [i % 3 for i in range(30)]
    items = [1 + int(name[1:]) % 4 for name in clients]
    return fedtally.estimate(
        items, clients=clients, rounds=rounds, **(SMALL | {"seed": 1} | options)
    )


@pytest.mark.parametrize(
    "options", [{}, {"epsilon": 4.0, "not_private": True}, {"schedule": "shared"}]
)
def test_a_client_of_three_rounds_is_one_client(options: dict[str, Any], tmp_path: Path) -> None:
    result = natural(**options)
    result.save(tmp_path / "r.fed")
    for found in (result, Result.load(tmp_path / "r.fed"), result.decoded(recovery="median")):
        assert (found.num_clients, found.num_contributions, found.attendance) == (
            50,
            90,
            [30, 0, 20],
        )
    shown = plain(answer(result, result.top(2), details=True), 200)
    # Under privacy nobody may know whether somebody had more items than were drawn.
    each = "drawn item" if "epsilon" in options else "item"
    assert (
        f"Share of each {each} among 90 contributions of 50 clients" in shown
        and "50, each in 1.8 of 3 rounds on average" in shown
    )
    written = documents.of_result(result, [])
    assert (written["plan"]["num_clients"], written["num_contributions"]) == (50, 90)
    assert any(
        "shares of 90 contributions of 50 clients" in warning for warning in written["warnings"]
    )
    text = call("query", str(tmp_path / "r.fed"), "1")
    assert "contributions" in text and "50 clients" in text
    assert (
        json.loads(call("query", str(tmp_path / "r.fed"), "1", "--json"))["num_contributions"] == 90
    )


def test_frequencies_are_shares_of_contributions() -> None:
    result = natural(evaluate=True)
    assert result.evaluation is not None and result.evaluation.linf < 1e-9
    assert result.frequency(1) == pytest.approx((3 * 5 + 8) / 90)


def test_bounded_rounds_lost_clients_and_pilots_are_counted_too() -> None:
    bounded = natural(epsilon=4.0, not_private=True, max_rounds=2)
    assert (bounded.num_clients, bounded.num_contributions) == (50, 70)
    lost = natural(secure_sum="secagg", dropout=0.3)
    assert lost.num_contributions == lost.secure_sum["survivors"] < 90
    assert sum(k * number for k, number in enumerate(lost.attendance, 1)) == lost.num_contributions
    assert lost.num_contributions / 3 <= lost.num_clients <= 50
    items = [1 + i % 4 for i in range(400)]
    clients, rounds = [i % 200 for i in range(400)], [i // 200 for i in range(400)]
    piloted = fedtally.estimate(
        items,
        clients=clients,
        rounds=rounds,
        domain=DOMAIN,
        tau=0.1,
        encoding="sketch",  # a histogram of so few candidates would need no pilot
        pilot_share=0.2,
        seed=1,
    )
    assert piloted.num_contributions == 320 and 160 <= piloted.num_clients <= 200


def test_who_is_in_one_round_is_counted_as_before() -> None:
    split = fedtally.estimate([1, 2, 3] * 30, clients=list(range(90)), num_rounds=3, **SMALL)
    rows = fedtally.estimate([1, 2, 3] * 30, rounds=[1, 2, 3] * 30, **SMALL)
    for result in (split, rows):
        assert result.num_clients == result.num_contributions == 90 and result.unit == "clients"
        assert "contributions" not in plain(answer(result, result.top(1)))


def test_attendance_must_add_up() -> None:
    result = natural()
    with pytest.raises(
        InvalidInputError, match="must add up to the 90 contributions in the sums, got 91"
    ):
        Result(result.plan, DOMAIN, result.sketches, attendance=[31, 0, 20])


def test_the_sampling_error_counts_clients_and_not_contributions() -> None:
    """Clients who hold the same in every round are drawn from a population: the limits hold as
    often as they say.

    600 draws of 60 clients in one or five rounds, half hold the item: at 95 % at least 0.91 hold,
    4.5 standard errors of the share below. Taking the contributions for the sample would make them
    too narrow by a factor above 1.5.
    """
    rng = np.random.default_rng(5)
    plan = Plan(
        rows=1,
        width=8,
        schedule="shared",
        num_rounds=5,
        num_clients=300,
        max_round_clients=300,
        max_items=1,
        domain=DOMAIN.describe(),
        seed=bytes(32),
    )
    hits = narrow = 0
    for _ in range(600):
        rounds, holds = rng.choice([1, 5], 60), rng.random(60) < 0.5
        share = float(rounds @ holds / rounds.sum())
        sketches = []
        for number in range(5):
            sketch = CountSketch(plan.spec, number)
            sketch.num_clients = int((rounds > number).sum())
            sketches.append(sketch)
        attended = [int((rounds == k).sum()) for k in range(1, 6)]
        result = Result(plan, DOMAIN, sketches, attendance=attended)
        error = result.sampling_error(np.array([share]))[0]
        hits += abs(share - 0.5) <= error
        narrow += abs(share - 0.5) <= 1.96 * (share * (1 - share) / result.num_contributions) ** 0.5
    assert hits >= 0.91 * 600 > narrow


def test_merging_weighs_contributions() -> None:
    results = [natural(seed=seed, domain=IntegerRange(1, 9)) for seed in (1, 2)]
    single = fedtally.estimate([1] * 90, **SMALL, seed=3)
    merged = Answer([results[0], single])
    assert (merged.num_clients, merged.num_contributions) == (140, 180)
    assert merged.estimates([1])[0].frequency == pytest.approx((23 + 90) / 180)


# ---- what the bound on items draws away ----


def test_what_is_drawn_away_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients, items = rng.integers(0, 60, 300), rng.integers(1, 10, 300)
    sets = [set(items[clients == client].tolist()) for client in np.unique(clients)]
    for bound in (1, 2, max(map(len, sets))):
        result = fedtally.estimate(items, clients=clients, max_items=bound, seed=1, **SMALL)
        pairs, most = sum(map(len, sets)), max(map(len, sets))
        away = sum(max(0, len(held) - bound) for held in sets)
        share = sum(len(held) > 1 for held in sets) / len(sets)
        expected = {
            "max_items": bound,
            "pairs": pairs,
            "drawn_away": away,
            "share_with_several": share,
        }
        assert documents.of_result(result, [])["draw"] == expected | {"max_items_for_all": most}
        result.save(tmp_path / "r.fed")
        assert Result.load(tmp_path / "r.fed").draw == result.draw
        said = [
            warning for warning in result.warnings if "pairs of a client and an item" in warning
        ]
        assert len(said) == (away > 0)
        if said:
            assert (
                f"{away:,} of {pairs:,} pairs of a client and an item are not counted" in said[0]
                and f"--max-items {most} counts all" in said[0]
            )
            assert f"{share:.1%} of the clients" in said[0]
    assert documents.of_result(fedtally.estimate([1, 2, 3], **SMALL), [])["draw"] is None


def test_under_privacy_the_fact_is_said_and_not_the_numbers() -> None:
    said = set()
    for second in (1, 2, None):
        result = fedtally.estimate(
            [1, second] * 40, clients=[i // 2 for i in range(80)], epsilon=1.0, **SMALL
        )
        assert documents.of_result(result, [])["draw"] is None
        said.add(tuple(result.warnings))
    [warnings] = said
    assert any(
        "of a client with more than one item, 1 drawn at random is counted" in warning
        for warning in warnings
    )


# ---- what a plan says of its sums ----


def test_landed_sums_of_a_plan_say_how_they_were_made(tmp_path: Path) -> None:
    for method, words in (
        ("secagg", "secagg against a server that follows"),
        ("two-server", "two servers that do not"),
    ):
        ran = fedtally.estimate([1, 2, 3] * 20, secure_sum=method, seed=1, **SMALL)
        by_hand = Result(ran.plan, DOMAIN, ran.sketches)
        assert by_hand.secure_sum["method"] == method
        known = by_hand.secure_sum.items() <= ran.secure_sum.items()
        assert known, "what the plan says is what the run says"
        by_hand.save(tmp_path / "r.fed")
        text = call("query", str(tmp_path / "r.fed"), "1")
        assert "ideal" not in text and (
            "the server sees" in text or "the servers, unless they collude" in text
        )
        shown = plain(answer(by_hand, by_hand.top(1), details=True), 300)
        assert words in shown and "ideal" not in shown
        assert f"secure sum {method}" in call("inspect", str(tmp_path / "r.fed"))
        assert documents.of_result(by_hand, [])["secure_sum"]["method"] == method
