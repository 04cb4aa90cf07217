"""The bill of a plan: bytes as the protocol sends them, and CPU as a host would take it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kinds import DECODER_NAMES
from secagg_cohort import Cohort

import fedtally
from fedtally.campaign import cohort
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan import bill as bills
from fedtally.plan.bill import OPERATIONS, REFERENCE, Bill, Host, bill
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind
from fedtally.secagg.proposal import propose
from fedtally.secagg.two_server import Kind as ReportKind
from fedtally.secagg.two_server.reports import message_bytes
from fedtally.simulation import cohorts
from fedtally.sketch import Schedule

ITEMS = ["tea"] * 16 + ["milk"] * 9 + ["cocoa"] * 6
ROUNDS = ["a"] * 14 + ["b"] * 17
FAST: dict[str, Any] = {"recovery": "median", "confidence": 0}
SECAGG: dict[str, Any] = {"secure_sum": "secagg"}
ACTIVE, TWO = SECAGG | {"adversary": "active"}, {"secure_sum": "two-server"}
NOISE = {"epsilon": 2.0, "not_private": True}
OURS = (bills.NOISE, bills.COMBINING)  # stages without a message of a client
NOTHING = Host("v4", "0", dict.fromkeys(OPERATIONS, 1e-30))  # an operation takes some time
LITTLE = 1e-20  # seconds: of a bill without the operations asked for


def run(**options: Any) -> fedtally.Result:
    return fedtally.estimate(ITEMS, **(FAST | {"rows": 5, "width": 64, "seed": 3} | options))


def made(sizes: list[int], **options: Any) -> Plan:
    """A plan of rounds of these sizes, and no campaign."""
    rounds = [i for i, size in enumerate(sizes) for _ in range(size)]
    return fedtally.estimate(
        [1] * len(rounds), rounds=rounds, domain="range:1..9", rows=3, width=20, **options
    ).plan


def test_stages_have_the_names_that_the_account_gives_them() -> None:
    assert bills.STAGES == cohort.STAGES


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        *((options, rounds) for options in (SECAGG, ACTIVE, TWO) for rounds in (ROUNDS, None)),
        (SECAGG | {"max_cohort": 6}, ROUNDS),
        (SECAGG | {"max_items": 300, "clients": range(31)}, None),
        (SECAGG | NOISE, ROUNDS),
        (SECAGG | NOISE | {"trust": "central"}, None),
        (ACTIVE | {"max_cohort": 17}, None),
        (TWO | NOISE | {"schedule": "shared"}, ROUNDS),
        (TWO | NOISE | {"schedule": "hybrid"}, ROUNDS),
    ],
)
def test_bytes_are_those_that_the_protocol_sends(
    options: dict[str, Any], rounds: list[str] | None
) -> None:
    """Whatever the rounds: of 14 and 17 clients, or one of 31."""
    result = run(**options, **({"rounds": rounds} if rounds else {"num_rounds": 1}))
    account, found = result.secure_sum, bill(result.plan, rounds=[14, 17] if rounds else None)
    assert (found.clients, found.sums) == (account["clients"], account["cohorts"])
    stages = [
        {
            "stage": line.stage,
            "upload_bytes": line.upload_bytes,
            "download_bytes": line.download_bytes,
        }
        for line in found.stages
        if line.stage not in OURS
    ]
    assert stages == account["stages"]
    assert (found.upload_bytes, found.download_bytes) == (
        account["upload_bytes"],
        account["download_bytes"],
    )
    assert found.upload_bytes <= result.plan.bytes_per_client


def test_bytes_in_the_complete_graph() -> None:
    ring = run(num_rounds=1, **SECAGG).plan
    parameters = ring.secure_sum.parameters  # type: ignore[union-attr]
    assert not parameters.is_complete  # type: ignore[union-attr]
    everybody = replace(parameters, ring_neighbours=0, ring_threshold=0)  # type: ignore[type-var]
    plan = replace(ring, secure_sum=replace(ring.secure_sum, parameters=everybody))  # type: ignore[type-var]
    account = fedtally.estimate(ITEMS, plan=plan, **FAST).secure_sum
    found = bill(plan)
    assert account["neighbours"] == 30
    assert (found.upload_bytes, found.download_bytes) == (
        account["upload_bytes"],
        account["download_bytes"],
    )


@pytest.mark.parametrize("options", [SECAGG, ACTIVE, TWO])
def test_the_servers_get_what_clients_send(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, in all rounds."""
    carried = {"up": 0, "down": 0}
    carry = cohorts.Traffic.carry

    def count(account: Any, stage: str, way: str, size: int) -> None:
        carried[way] += size
        carry(account, stage, way, size)

    monkeypatch.setattr(cohorts.Traffic, "carry", count)
    found = bill(run(rounds=ROUNDS, **options).plan, rounds=[14, 17])
    between = sum(line.received_bytes for line in found.stages if line.stage == bills.COMBINING)
    assert (found.received_bytes - between, found.sent_bytes - between) == (
        carried["up"],
        carried["down"],
    )
    assert (between > 0) == (options is TWO)


def test_two_servers_tell_each_other_what_is_billed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedtally.secagg.two_server import Helper, Leader

    sent: list[bytes] = []
    for kind, name in ((Helper, "offer"), (Leader, "query"), (Helper, "answer")):
        true = getattr(kind, name)
        monkeypatch.setattr(kind, name, lambda *a, true=true: kept(sent, true(*a)))
    checks = Helper.checks
    monkeypatch.setattr(Helper, "checks", lambda *a: [kept(sent, one) for one in checks(*a)])
    found = bill(run(rounds=ROUNDS, **TWO).plan, rounds=[14, 17]).stages[-1]
    assert (found.stage, found.received_bytes) == ("combining", sum(map(len, sent)))


def kept(into: list[bytes], message: bytes) -> bytes:
    into.append(message)
    return message


def test_messages_have_the_bytes_that_are_foretold() -> None:
    """Also with dropouts, which shorten what others are told."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("semi-honest", {"share": [1, 5]}),
        ("active", {"share": [1], "confirm": [2]}),
    ]
    for adversary, dropped in cases:
        parameters = propose(
            11, length=30, bits=24, corrupt=1, max_dropout=0.2, adversary=adversary
        )
        # everybody sees who is gone
        parameters = replace(parameters, ring_neighbours=0, ring_threshold=0)
        cohort = Cohort(
            11, adversary=adversary, parameters=parameters, identities=13, dropped=dropped
        )
        down: dict[Kind, set[int]] = {}

        def heard(i: int, frame: bytes, down: dict[Kind, set[int]] = down) -> bytes:
            parsed = wire.parse(frame)
            assert parsed is not None
            down.setdefault(parsed.kind, set()).add(len(frame))
            return frame

        cohort.to_client = cohort.to_server = heard
        cohort.run()
        dealers = 10 - len(dropped["share"])
        signers = 11 - len(dropped["share"]) - len(dropped.get("confirm", []))
        sizes = wire.message_bytes(
            cohort.parameters, 11, identities=13, dealers=dealers, signers=signers
        )
        for kind, found in down.items():
            assert found == {sizes[kind]}, kind
        assert down.keys() | {Kind.RESULT} == sizes.keys()


def test_reports_are_two_parts_of_what_a_plan_says() -> None:
    plan = run(num_rounds=1, **TWO).plan
    parameters = plan.secure_sum.parameters(
        bytes(32), plan.spec.row_widths, signed=plan.encoding.is_signed
    )  # type: ignore[union-attr,operator]
    sizes = message_bytes(parameters, 60)
    assert (
        sizes[ReportKind.LEADER_REPORT] + sizes[ReportKind.HELPER_REPORT] == parameters.report_bytes
    )
    assert sizes[ReportKind.OFFER] == sizes[ReportKind.QUERY] == 48 + 12 + 16 * 60


@pytest.mark.parametrize("options", [SECAGG, ACTIVE, TWO])
def test_dropouts_are_expected(options: dict[str, Any]) -> None:
    """Which stages they leave in is drawn: bytes within what as many dropouts in one stage change
    at most."""
    result = run(num_rounds=1, **options, dropout=0.2)
    account, found = result.secure_sum, bill(result.plan, dropout=0.2)
    assert found.upload_bytes == pytest.approx(account["upload_bytes"], rel=0.1)
    assert found.download_bytes == pytest.approx(account["download_bytes"], rel=0.1)
    assert found.received_bytes < bill(result.plan).received_bytes
    assert found.client_seconds <= bill(result.plan).client_seconds


def test_an_ideal_sum_is_the_packed_sketch_alone() -> None:
    plan = run(num_rounds=2).plan
    found = bill(plan)
    assert [(line.stage, line.upload_bytes, line.download_bytes) for line in found.stages] == [
        ("sketch", plan.bytes_per_client, 0)
    ]
    assert found.received_bytes == 31 * plan.bytes_per_client
    assert (found.method, found.sums, found.sent_bytes) == ("ideal", 2, 0)


def test_rounds_without_clients_cost_nothing() -> None:
    plan = run(rounds=ROUNDS, **SECAGG).plan
    assert bill(plan, rounds=[0, 17]).sums == 1
    nobody = bill(plan, rounds=[0, 0])
    assert (nobody.sums, nobody.received_bytes, nobody.stages) == (0, 0, ())


def test_a_longer_allow_list_makes_longer_rosters() -> None:
    plan = run(num_rounds=1, **ACTIVE).plan
    assert bill(plan, identities=31 + 800).download_bytes == bill(plan).download_bytes + 100


def test_noise_is_paid_by_those_who_draw_it() -> None:
    draws = replace(NOTHING, seconds=dict(NOTHING.seconds) | {"draw": 1.0, "scan": 1.0})
    counters = 5 * 64
    for options, client, server in (
        (NOISE | {"schedule": "hybrid"}, 0.0, 2 * counters),
        (NOISE | {"schedule": "shared"}, 0.0, counters),
        (NOISE | TWO | {"schedule": "hybrid"}, 0.0, 2 * 2 * counters),
        (NOISE | TWO | {"schedule": "shared"}, 0.0, 2 * counters),
        (NOISE | SECAGG | {"trust": "central", "schedule": "hybrid"}, 0.0, 2 * counters),
    ):
        found = bill(run(num_rounds=2, **options).plan, draws)
        assert found.client_seconds == pytest.approx(client, abs=LITTLE)
        assert found.server_seconds == pytest.approx(server)
    plan = run(num_rounds=2, **NOISE, **SECAGG).plan
    assert plan.privacy is not None
    found = bill(plan, draws)
    share = plan.privacy.share()
    assert share.is_small
    assert found.client_seconds == pytest.approx(counters * len(share.masses))
    assert found.server_seconds < LITTLE
    wide = run(num_rounds=1, **SECAGG, epsilon=0.005, not_private=True).plan
    assert wide.privacy is not None and not wide.privacy.share().is_small
    assert bill(wide, draws).client_seconds == counters
    two = run(num_rounds=2, **(NOISE | TWO | {"epsilon": 8.0, "schedule": "shared"})).plan
    noise = two.protection.of_server()
    assert noise is not None and noise.is_small
    assert bill(two, draws).server_seconds == pytest.approx(2 * counters * len(noise.masses))


def test_cpu_is_the_price_of_counted_operations() -> None:
    exchanges = replace(NOTHING, seconds=dict(NOTHING.seconds) | {"exchange": 1.0})
    plan = run(num_rounds=1, **ACTIVE).plan
    assert bill(plan, exchanges).client_seconds == 2 * 30
    assert bill(plan, exchanges).server_seconds < LITTLE
    verified = replace(NOTHING, seconds=dict(NOTHING.seconds) | {"verification": 1.0})
    assert bill(plan, verified).client_seconds == 1 + 30 + 30  # the Invite, adverts, confirmations
    assert bill(plan, verified).server_seconds == 2 * 31
    masks = replace(NOTHING, seconds=dict(NOTHING.seconds) | {"mask": 1.0})
    vector = 2 * (5 * 64 + plan.secure_sum.parameters.checksum_entries)  # type: ignore[union-attr]
    assert bill(plan, masks).client_seconds == 31 * vector
    assert bill(plan, masks).server_seconds == 31 * vector


def test_a_silo_pays_for_the_rows_of_its_people() -> None:
    """Each of them has as many rows as a person may have items."""
    rows = replace(NOTHING, seconds=dict(NOTHING.seconds) | {"row": 1.0})
    asked = {"domain": "range:1..9", "rows": 3, "width": 20, "people": 10}
    held: dict[str, Any] = {"clients": range(24), "silos": [i % 6 for i in range(24)]}
    for secure_sum in ("ideal", "secagg"):
        plan = fedtally.estimate([1] * 24, **held, **asked, max_items=2, secure_sum=secure_sum).plan
        assert bill(plan, rows).client_seconds == 10 * 2
        assert bill(plan, rows, people=24).client_seconds == 4 * 2
        assert bill(plan, rows).server_seconds < LITTLE
        assert bill(plan, rows).decoding_seconds < LITTLE
    assert bill(run(num_rounds=1).plan, rows).client_seconds < LITTLE


def test_looks_grow_with_candidates_and_rounds() -> None:
    plan = run(num_rounds=1).plan

    def seconds(recovery: str, plan: Plan = plan, host: Host = REFERENCE, **options: Any) -> float:
        return bill(plan, host, recovery=recovery, **options).decoding_seconds

    assert seconds("median", candidates=10**8) == pytest.approx(
        10 * seconds("median", candidates=10**7), rel=0.01
    )
    assert seconds("median") < seconds("joint")
    assert seconds("joint", heavy=1) < seconds("joint", heavy=100)
    many = [
        replace(plan, schedule=Schedule.parse(name), num_rounds=8)
        for name in ("shared", "hybrid", "fresh")
    ]
    shared, hybrid, fresh = (seconds("median", each, candidates=10**6) for each in many)
    assert shared == seconds("median", candidates=10**6) < hybrid < fresh
    numpy = replace(REFERENCE, kernels="numpy")
    assert seconds("median", many[1], numpy, candidates=10**6) > seconds(
        "median", many[0], numpy, candidates=10**6
    )


def test_bill_is_written_as_json() -> None:
    found = bill(run(num_rounds=1, **ACTIVE).plan)
    values = json.loads(json.dumps(found.to_dict()))
    assert [line["stage"] for line in values["stages"]] == [line.stage for line in found.stages]
    assert values["upload_bytes"] == found.upload_bytes
    assert values["server_seconds"] == sum(line["server_seconds"] for line in values["stages"])
    assert isinstance(found, Bill)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recovery": "best"}, f"recovery must be {DECODER_NAMES}, got 'best'"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"rounds": [31]}, "the clients of each of 2 rounds, got 1"),
        ({"rounds": [31, 1]}, "clients_of_a_round must be at most"),
        ({"identities": 0}, "identities must be at least 1"),
        ({"candidates": 0}, "candidates must be at least 1"),
        ({"heavy": -1}, "heavy must be at least 0"),
    ],
)
def test_what_does_not_fit_the_plan_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        bill(run(rounds=ROUNDS, **SECAGG).plan, **options)


def test_hosts_are_written_and_read() -> None:
    assert Host.from_dict(json.loads(json.dumps(REFERENCE.to_dict()))) == REFERENCE
    assert all(seconds > 0 for seconds in REFERENCE.seconds.values())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schema": "fedtally-host/9"}, "schema must be 'fedtally-host/1', got 'fedtally-host/9'"),
        ({"version": 1}, "version must be a text, got 1"),
        ({"seconds": {"message": 1.0}}, "seconds lacks receipt, "),
        ({"seconds": 3}, "seconds must be a table, got int"),
        ({"seconds": dict.fromkeys(OPERATIONS, -1.0)}, "message must be above 0 seconds, got -1.0"),
        ({"seconds": dict.fromkeys(OPERATIONS, float("inf"))}, "message must be finite"),
        ({"more": 1}, "the host has unknown entries more"),
    ],
)
def test_a_damaged_host_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Host.from_dict(REFERENCE.to_dict() | changed)


def test_large_campaigns_are_billed_at_once() -> None:
    """Ten million clients in 5,000 cohorts: those of one size are counted together."""
    parameters = propose(2000, length=20_000, bits=16, corrupt=100, max_dropout=0.05)
    plan = run(num_rounds=1, **SECAGG).plan
    agreed = replace(plan.secure_sum, parameters=parameters)  # type: ignore[type-var]
    large = replace(plan, width=4000, num_clients=10**7, max_round_clients=10**7, secure_sum=agreed)
    found = bill(large)
    assert (found.sums, found.clients) == (5000, 10**7)
    assert np.isclose(found.server_seconds, 5000 * bill(large, rounds=[2000]).server_seconds)
