"""Simulated cohorts: the real protocol in the local engine and on the command line."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedtally
from fedtally.answer import documents, screen
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.parts.summation import Summation
from fedtally.plan.secure_sum import make_keys
from fedtally.secagg.client import Client
from fedtally.simulation.cohorts import AbortedRoundError
from fedtally.simulation.run import run
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch

ITEMS = ["tea"] * 30 + ["milk"] * 20 + ["cocoa"] * 10
SECURE: list[dict[str, Any]] = [
    {"secure_sum": "secagg"},
    {"secure_sum": "secagg", "adversary": "active"},
    {"secure_sum": "secagg", "max_cohort": 25, "num_rounds": 1},
    {"secure_sum": "two-server"},
]


def estimate(**options: Any) -> fedtally.Result:
    return fedtally.estimate(
        ITEMS, **({"num_rounds": 2, "rows": 5, "width": 64, "seed": 3} | options)
    )


@pytest.mark.parametrize("options", SECURE)
def test_without_dropouts_the_answer_is_that_of_the_ideal_sum(options: dict[str, Any]) -> None:
    ideal, real = estimate(num_rounds=options.get("num_rounds", 2)), estimate(**options)
    assert [(e.item, e.count) for e in real.top(3)] == [(e.item, e.count) for e in ideal.top(3)]
    for one, other in zip(ideal.sketches, real.sketches, strict=True):
        np.testing.assert_array_equal(one.counters, other.counters)
    assert real.secure_sum["equals_plain_sum"] is True
    assert (
        real.secure_sum["clients"],
        real.secure_sum["survivors"],
        real.secure_sum["dropouts"],
    ) == (60, 60, 0)
    assert real.plan.bytes_per_client >= real.secure_sum["upload_bytes"]


@pytest.mark.parametrize("options", SECURE)
def test_dropouts_are_out_of_the_sum_and_of_the_truth(options: dict[str, Any]) -> None:
    result = estimate(**options, dropout=0.2, evaluate=True)
    traffic = result.secure_sum
    assert traffic["survivors"] == result.num_clients < 60
    assert traffic["dropouts"] >= 60 - traffic["survivors"] > 0
    assert result.evaluation is not None
    assert result.evaluation.linf == 0
    again = estimate(**options, dropout=0.2, evaluate=True)
    assert [(e.item, e.count) for e in again.top(3)] == [(e.item, e.count) for e in result.top(3)]


def test_clients_of_several_items_contribute_all_of_them() -> None:
    clients = [i // 3 for i in range(90)]
    items = [i % 7 for i in range(90)]
    options = {
        "clients": clients,
        "max_items": 3,
        "rows": 5,
        "width": 64,
        "seed": 3,
        "evaluate": True,
    }
    ideal = fedtally.estimate(items, **options)
    real = fedtally.estimate(items, **options, secure_sum="secagg")
    assert [(e.item, e.count) for e in real.top(7)] == [(e.item, e.count) for e in ideal.top(7)]
    some = fedtally.estimate(items, **options, secure_sum="secagg", dropout=0.1)
    assert some.evaluation is not None
    assert some.evaluation.linf == 0


def test_natural_rounds_are_summed_one_by_one() -> None:
    result = fedtally.estimate(
        ITEMS, rounds=["a"] * 40 + ["b"] * 20, rows=5, width=64, secure_sum="secagg", seed=1
    )
    assert [sketch.num_clients for sketch in result.sketches] == [40, 20]
    assert result.secure_sum["smallest_cohort"] == 20


def test_the_upload_keeps_to_max_bytes_with_all_that_the_protocol_adds() -> None:
    result = estimate(width=None, max_bytes=4000, secure_sum="secagg")
    wider = replace(
        result.plan,
        width=result.plan.width + 1,
        secure_sum=replace(
            result.plan.secure_sum,  # type: ignore[type-var]
            parameters=replace(
                result.plan.secure_sum.parameters, length=5 * (result.plan.width + 1)
            ),  # type: ignore[union-attr,type-var,arg-type]
        ),
    )
    assert result.plan.bytes_per_client <= 4000 < wider.bytes_per_client
    with pytest.raises(
        InvalidInputError, match="max_bytes must be at least [0-9]+ for this secure sum"
    ):
        estimate(width=None, max_bytes=500, secure_sum="secagg")


def test_the_limits_of_a_pilot_leave_out_what_a_secure_sum_sends_beside_counters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pilot's own limit of 400 bytes is less than a report to two servers takes."""
    seen: list[CountSketch] = []

    def noted(sketches: Any, *_: Any, **__: Any) -> Any:
        seen.extend(sketches)
        raise InterruptedError  # what follows a pilot takes seconds

    monkeypatch.setattr(Frequencies, "from_pilot", staticmethod(noted))
    options = {"encoding": "sketch", "domain": "range:1..20000", "seed": 3}
    for most, width in ((None, 25), (1200, 11)):
        with pytest.raises(InterruptedError):
            fedtally.estimate(
                [7] * 600, tau=0.1, max_bytes=most, secure_sum="two-server", **options
            )
        assert (seen[-1].spec.rows, seen[-1].spec.width) == (8, width)
    with pytest.raises(InvalidInputError, match="max_bytes must be at least"):
        fedtally.estimate([7] * 600, tau=0.1, max_bytes=400, secure_sum="two-server", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"secure_sum": "trust me"}, "secure_sum must be ideal, secagg or two-server"),
        ({"secure_sum": "secagg", "adversary": "evil"}, "adversary must be semi-honest or"),
        ({"secure_sum": "secagg", "dropout": 1.0}, "dropout must be at least 0 and below 1"),
        (
            {"secure_sum": "secagg", "max_corrupt": -0.1},
            "max_corrupt must be at least 0 and below 1",
        ),
        ({"secure_sum": "secagg", "max_cohort": 2}, "max_cohort must be at least 3"),
        ({"dropout": 0.1}, "dropout= goes with a real secure sum"),
        ({"max_cohort": 10}, "max_cohort= goes with the secure sum secagg"),
        (
            {"secure_sum": "two-server", "adversary": "active"},
            "adversary='active' goes with the secure sum secagg",
        ),
        (
            {"secure_sum": "secagg", "num_rounds": 40},
            "a round has 1 client, and a secure sum needs at least 3; use fewer rounds",
        ),
        (
            {"secure_sum": "two-server", "max_corrupt": 0.99},
            "cannot be summed safely .* lower max_corrupt= or max_dropout=",
        ),
        ({"secure_sum": "secagg", "max_cohort": 3, "num_rounds": 1}, "protect nobody"),
    ],
)
def test_what_cannot_be_summed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        estimate(**options)


@pytest.mark.parametrize("options", SECURE)
def test_a_plan_with_terms_is_summed_as_it_says(options: dict[str, Any], tmp_path: Path) -> None:
    first = estimate(**options)
    first.plan.save(tmp_path / "plan.toml")
    plan = Plan.load(tmp_path / "plan.toml")
    again = fedtally.estimate(ITEMS, plan=plan)
    assert again.secure_sum["method"] == options["secure_sum"]
    assert [(e.item, e.count) for e in again.top(3)] == [(e.item, e.count) for e in first.top(3)]
    assert again.plan.fingerprint != plan.fingerprint  # other keys
    assert again.plan.is_published
    bare = plan.without_keys()
    assert not bare.is_published  # and it can be simulated, as `fedtally plan` writes it
    simulated = fedtally.estimate(ITEMS, plan=bare)
    assert simulated.plan.is_published
    assert [(e.item, e.count) for e in simulated.top(3)] == [
        (e.item, e.count) for e in first.top(3)
    ]
    lossy = fedtally.estimate(
        ITEMS, plan=plan, secure_sum=options["secure_sum"], dropout=0.04, evaluate=True
    )
    assert lossy.evaluation is not None
    assert lossy.evaluation.linf == 0
    with pytest.raises(InvalidInputError, match="cohorts of"):
        fedtally.estimate(ITEMS[:10], plan=plan)
    other = "two-server" if options["secure_sum"] == "secagg" else "secagg"
    with pytest.raises(
        InvalidInputError,
        match=r"the plan is summed by .*, got secure_sum='.*': leave that out, or the plan",
    ):
        fedtally.estimate(ITEMS, plan=plan, secure_sum=other)
    if other == "two-server":
        with pytest.raises(InvalidInputError, match="a plan already says max_cohort"):
            fedtally.estimate(ITEMS, plan=plan, secure_sum="secagg", max_cohort=10)


def test_a_plan_without_terms_gets_them() -> None:
    plan = estimate().plan
    result = fedtally.estimate(ITEMS, plan=plan, secure_sum="secagg")
    assert result.plan.secure_sum is not None
    assert (result.plan.rows, result.plan.width, result.plan.seed) == (
        plan.rows,
        plan.width,
        plan.seed,
    )


def test_a_round_that_cannot_be_finished_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "receive", lambda self, data, now: None)
    with pytest.raises(
        AbortedRoundError, match=r"round 1 was aborted .*: too few clients.* \(code 15\)"
    ) as caught:
        estimate(secure_sum="secagg")
    assert caught.value.exit_code == 1


def test_a_secure_sum_that_is_not_the_plain_one_is_never_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = CountSketch.add

    def off_by_one(
        self: CountSketch, ids: Any, counts: Any = None, num_clients: Any = None
    ) -> None:
        add(self, ids, counts, num_clients)
        if counts is not None:
            self.counters[0, 0] += 2

    monkeypatch.setattr(CountSketch, "add", off_by_one)
    with pytest.raises(FedtallyError, match="is not the plain sum"):
        estimate(secure_sum="secagg")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, []),
        (
            {"secure_sum": "secagg"},
            ["follows the protocol", "neighbours, any", "nobody dropped out", "share keys"],
        ),
        (
            {"secure_sum": "secagg", "adversary": "active", "dropout": 0.1},
            [
                "that may lie",
                "dropped out",
                "the sums equal the plain sums exactly",
                "consistency check",
            ],
        ),
        ({"secure_sum": "two-server"}, ["two servers that do not collude", "report to the leader"]),
    ],
)
def test_the_terminal_says_how_the_sums_were_made(
    options: dict[str, Any], shown: list[str]
) -> None:
    result = estimate(**options)
    text = " ".join(screen.plain(screen.answer(result, result.top(3), details=True), 100).split())
    assert ("Secure sum" in text) == bool(options)
    for part in shown:
        assert part in text
    assert documents.of_result(result, result.top(3))["secure_sum"] == result.secure_sum


def test_the_account_survives_the_file(tmp_path: Path) -> None:
    result = estimate(secure_sum="secagg")
    result.save(tmp_path / "r.fedtally")
    loaded = fedtally.Result.load(tmp_path / "r.fedtally")
    assert loaded.secure_sum == json.loads(json.dumps(result.secure_sum))
    assert loaded.plan == result.plan
    assert loaded.decoded(recovery="median").secure_sum == loaded.secure_sum


def test_cohorts_of_a_round_differ_by_one_client_at_most() -> None:
    for count, most in ((2500, 1000), (999, 1000), (1000, 1000), (1001, 1000), (7, 3)):
        sizes = Summation("secagg", max_cohort=most).sizes(count)
        assert sum(sizes) == count
        assert max(sizes) <= most
        assert max(sizes) - min(sizes) <= 1
    assert Summation("secagg", adversary="active").sizes(200) == [200]
    assert Summation("secagg").sizes(0) == Summation("two-server").sizes(0) == []


def test_identities_are_of_one_client_in_a_round() -> None:
    keys = make_keys(Summation("secagg", adversary="active"), [5, 7], secrets.token_bytes)
    assert len({key.public for key in keys.identities}) == 7
    assert keys.allow_list is not None
    assert len(keys.allow_list) == 7
    assert make_keys(Summation("secagg"), [5], secrets.token_bytes).allow_list is None


def test_progress_counts_the_clients() -> None:
    seen = []
    source = fedtally.sources.from_items(ITEMS)
    request = Simulation.of(rows=5, width=64, seed=3, secure_sum="secagg", max_cohort=20)
    run(source, request, lambda *step: seen.append(step))
    assert [step for step in seen if step[0] == "sum"] == [
        ("sum", 20, 60),
        ("sum", 40, 60),
        ("sum", 60, 60),
    ]


def test_a_chosen_seed_repeats_a_run_with_its_keys() -> None:
    for options in SECURE:
        first, again = (estimate(**options, dropout=0.1) for _ in range(2))
        assert first.plan == again.plan
    assert (
        estimate(secure_sum="secagg", seed=None).plan
        != estimate(secure_sum="secagg", seed=None).plan
    )


def test_what_a_plan_says_is_not_asked_again() -> None:
    plan = estimate(secure_sum="secagg").plan
    for options, message in (
        (
            {"secure_sum": "ideal"},
            "summed by secagg .semi-honest., got secure_sum='ideal'",
        ),
        ({"adversary": "active"}, "got adversary='active'"),
        ({"max_corrupt": 0.3}, "a plan already says max_corrupt"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            fedtally.estimate(ITEMS, plan=plan, **options)
    assert fedtally.estimate(ITEMS, plan=plan, dropout=0.04).secure_sum["dropouts"] == 2


def test_progress_moves_within_a_cohort() -> None:
    seen: list[int] = []
    request = Simulation.of(rows=5, width=64, seed=3, secure_sum="secagg", domain="input")
    source = fedtally.sources.from_items(ITEMS * 5)
    run(source, request, lambda stage, done, _: seen.append(done) if stage == "sum" else None)
    assert seen == sorted(seen)
    assert len(seen) >= 4
    assert seen[-1] == 300
