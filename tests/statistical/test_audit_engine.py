"""The audit of what `fedtally.estimate` releases: sound campaigns pass it, and each planted error
is seen.

False alarms: each audit fails with a probability of at most 1e-6 where nothing is wrong
(`engines.audit.FALSE_ALARM`, by binomial tests and Bonferroni's inequality), and there are about 50
below: one run of this file in 20,000. Noise comes from the operating system, so that every run is
another one.

Misses: with 12,000 counters of a release, noise 10 % too small is 8 to 9 standard errors below what
is allowed for (`test_what_is_said_of_power`). The errors that a command plants into a copy of the
package are in tools/mutations.toml.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedtally
from fedtally.campaign import release as engine
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.server import FrequencyServer
from fedtally.cli.app import run as command
from fedtally.cli.audit import view
from fedtally.cli.console import show
from fedtally.crypto.keys import Secret
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.calendar import DAY, Calendar
from fedtally.privacy.config import propose
from fedtally.privacy.mechanism import Noise
from fedtally.simulation import client_rows, item_ids, round_sums, row_counts
from fedtally.simulation.client_rows import Bounded
from fedtally.sketch import CountSketch
from fedtally.studies import dependence_checks as dependence
from fedtally.studies import noise_checks
from fedtally.studies.audit import FALSE_ALARM, Audit, AuditResult, run
from fedtally.studies.audit_clients import Design
from fedtally.studies.audit_evidence import failing_level
from fedtally.studies.dependence_checks import dependence_checks
from fedtally.studies.noise_checks import (
    Distribution,
    Ranks,
    checks_of,
    detectable_scale,
    epsilon_bound,
    of_products,
)

DOMAIN = IntegerRange(1, 50)
TWICE: dict[str, Any] = {
    "clients": [i // 2 for i in range(40)],
    "rounds": [i % 2 for i in range(40)],
}
CASES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "central": (60, {}, {}),
    "central, a small sketch": (60, {"rows": 3, "width": 40}, {}),
    "central, one client": (3, {"epsilon": 4.0}, {"clients": 1}),
    "central, many clients": (5000, {"rows": 3, "width": 1000}, {"clients": 5000}),
    "central, fresh rounds": (60, {"num_rounds": 3, "schedule": "fresh"}, {}),
    "central, hybrid rounds": (60, {"num_rounds": 2, "schedule": "hybrid", "epsilon": 3.0}, {}),
    "central, batches": (60, {"num_rounds": 4, "schedule": "batched:2"}, {}),
    "central, of a secure sum": (8, {"secure_sum": "secagg", "trust": "central", "width": 300}, {}),
    "central, several items": (40, {"clients": list(range(40)), "max_items": 5}, {}),
    "central, several items in two rounds": (
        2000,
        {
            "clients": [i // 8 for i in range(8000)],
            "rounds": [i % 2 for i in range(8000)],
            "max_items": 4,
            "schedule": "fresh",
            "width": 40,
        },
        {},
    ),
    "central, several items in two rounds at once": (
        2000,
        {
            "clients": [i // 8 for i in range(8000)],
            "rounds": [i % 2 for i in range(8000)],
            "max_items": 4,
            "schedule": "shared",
            "width": 40,
        },
        {},
    ),
    "central, two rounds of a client": (40, {**TWICE, "schedule": "fresh"}, {}),
    "central, two rounds at once": (40, {**TWICE, "schedule": "shared"}, {}),
    "replace-one": (60, {"neighbours": "replace-one"}, {}),
    "certified": (60, {"neighbours": "replace-one", "certify": True}, {}),
    "add-remove": (60, {"neighbours": "add-remove", "max_clients": 1000, "width": 100}, {}),
    "add-remove, rounds": (
        60,
        {
            "neighbours": "add-remove",
            "max_clients": 1000,
            "num_rounds": 3,
            "schedule": "fresh",
            "width": 100,
        },
        {},
    ),
    "shares": (5, {"trust": "distributed"}, {}),
    "shares, rounds": (
        15,
        {"trust": "distributed", "rounds": [0, 1, 2] * 5, "schedule": "shared", "epsilon": 0.5},
        {},
    ),
    "shares, several items": (
        20,
        {"trust": "distributed", "clients": list(range(20)), "max_items": 3},
        {},
    ),
    "secagg": (10, {"secure_sum": "secagg", "rounds": [0, 1] * 5}, {}),
    "secagg, cohorts and dropouts": (
        24,
        {"secure_sum": "secagg", "max_cohort": 12, "max_dropout": 0.25},
        {"dropout": 0.2, "clients": 24},
    ),
    "two servers": (12, {"secure_sum": "two-server"}, {}),
    "two servers, batches and dropouts": (
        48,
        {
            "secure_sum": "two-server",
            "rounds": [0, 1, 2, 3] * 12,
            "schedule": "batched:2",
            "max_dropout": 0.25,
            "width": 200,
        },
        {"dropout": 0.1},
    ),
}


@cache
def planned(name: str) -> Plan:
    number, options, _ = CASES[name]
    items = [
        1 + i % 7 for i in range(len(options.get("clients", options.get("rounds", range(number)))))
    ]
    plain = {
        "domain": DOMAIN,
        "epsilon": 1.0,
        "rows": 5,
        "width": 400,
        "confidence": 0.0,
        "recovery": "median",
    }
    return fedtally.estimate(items, **(plain | options)).plan


def audited(name: str, **changed: Any) -> AuditResult:
    return run(Audit(planned(name), **(CASES[name][2] | changed)))


# ---- what users run ----


LIVES = [(1, 3), (2, 3), (2, None)]  # the most rounds of a client, of how many in a row


def by_the_calendar(participations: int, in_a_row: int | None) -> Plan:
    terms = propose(
        epsilon=1.0,
        delta=1e-6,
        rows=3,
        width=40,
        participations=participations,
        per_rounds=in_a_row,
        num_rounds=None if in_a_row is None else 8,
    )
    return Plan(
        rows=3,
        width=40,
        schedule="fresh",
        num_rounds=8,
        num_clients=800,
        max_round_clients=100,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        privacy=terms,
        calendar=Calendar(datetime(2100, 1, 1, tzinfo=UTC), DAY, 8),
    )


@pytest.mark.parametrize(("participations", "in_a_row"), LIVES)
def test_clients_take_part_as_often_as_their_whole_life_allows(
    participations: int, in_a_row: int | None
) -> None:
    """A plan by the calendar is charged for a life, and one week would show less than that."""
    plan = by_the_calendar(participations, in_a_row)
    terms = plan.privacy
    assert terms is not None
    design = Design(plan, np.random.default_rng(), clients=None, dropout=0.0)
    lives = [client.rounds for client in design.clients]
    assert max(map(len, lives)) == terms.event.lifetime
    for rounds in lives:
        assert all(terms.event.allows(set(rounds) - {one}, one) for one in rounds)
    in_each = [sum(round in rounds for rounds in lives) for round in range(8)]
    assert len(set(in_each)) == 1


@pytest.mark.promise
@pytest.mark.parametrize(("participations", "in_a_row"), LIVES)
def test_clients_of_a_calendar_are_in_all_rounds_of_their_lives(
    participations: int, in_a_row: int | None
) -> None:
    """Otherwise the sums lack clients whom the audit counts, and it says that noise shows them."""
    found = run(Audit(by_the_calendar(participations, in_a_row)))
    assert found.failures == [] and set(found.bounds) == {"items", "repeats"}


@pytest.mark.promise
@pytest.mark.parametrize("name", CASES)
def test_what_is_released_has_the_noise_of_its_plan(name: str) -> None:
    found = audited(name)
    assert found.failures == []
    assert len(found.releases) == len(planned(name).releases)
    assert all(release.counters >= 12_000 for release in found.releases)
    if found.detection is not None:
        assert found.detection.clients >= found.audit.runs


@pytest.mark.promise
def test_a_client_is_as_far_as_the_noise_allows() -> None:
    """The neighbours are the worst: they reach the sensitivity that the plan's noise is for;
    opposite ones nearly."""
    for name in (
        "central",
        "central, two rounds of a client",
        "central, two rounds at once",
        "add-remove",
        "shares",
    ):
        seen = audited(name, campaigns=2).detection
        assert seen is not None and seen.distance == pytest.approx(seen.sensitivity)
    for name, least in (
        ("central, several items", 0.95),
        ("replace-one", 0.75),
        ("certified", 0.8),
    ):
        seen = audited(name, campaigns=2).detection
        assert (
            seen is not None
            and least * seen.sensitivity <= seen.distance <= seen.sensitivity + 1e-9
        )


@pytest.mark.promise
def test_the_number_of_released_clients_has_noise() -> None:
    """That has 300 draws in so many campaigns: 40 % less noise would be seen."""
    assert run(Audit(planned("add-remove"), campaigns=300)).failures == []


@pytest.mark.parametrize("clients", [5, 64, 3000])
@pytest.mark.parametrize("name", ["central, batches", "shares, rounds", "add-remove"])
def test_noise_is_that_of_the_whole_key(name: str, clients: int) -> None:
    """What is released less the sums is what the distribution of the plan draws from 32 bytes,
    other ones for each
    release.
    """
    plan, keys = planned(name), []
    terms = plan.privacy
    assert terms is not None

    def random(size: int) -> bytes:
        keys.append(bytes([len(keys) + 1]) * size)
        return keys[-1]

    sums = [CountSketch(plan.spec, round) for round in range(plan.num_rounds)]
    for number, sketch in enumerate(sums):
        sketch.counters += number + 1
        sketch.num_clients = clients
    server = FrequencyServer(plan, MemoryBooks())
    exact = [sketch.counters for sketch in sums]
    for sketch in sums:
        server.land_plain(sketch)
    found = server.release(random)
    assert not any(counters.any() for counters in exact)  # erased
    assert [len(key) for key in keys] == [32] * len(plan.releases) == [32] * len(found)
    for rounds, sketch, key in zip(plan.releases, found, keys, strict=True):
        distribution = terms.share(clients) if terms.by_clients else terms.noise()
        noise = distribution.draw(Secret(key), sketch.counters.size + (not terms.by_clients))
        summed = sum(round + 1 for round in rounds)
        assert np.array_equal(sketch.counters.reshape(-1) - summed, noise[: sketch.counters.size])
    if terms.event.relation == "add-remove":
        assert found[0].num_clients == max(1, clients + noise[-1])


# ---- errors that are planted ----


def wrong(change: Callable[[Any, Noise], Any]) -> Callable[..., Any]:
    """Return a `Noise.draw` whose draws are changed."""
    draw = Noise.draw

    def changed(self: Noise, key: Any, size: int, constant_time: bool = False) -> Any:
        return change(draw(self, key, size, constant_time), self)

    return changed


@pytest.mark.promise
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda noise, _: np.abs(noise), "more noise of one sign"),
        (lambda noise, _: noise * 0, "too small or too large"),
        (lambda noise, _: np.rint(noise * 0.9).astype(np.int64), "too small or too large"),
        (lambda noise, _: np.rint(noise * 1.1).astype(np.int64), "too small or too large"),
        (lambda noise, _: 2 * (noise // 2), "another distribution"),
        (
            lambda noise, _: np.concatenate([noise[: len(noise) // 2]] * 3)[: len(noise)],
            "repeats itself",
        ),
        (lambda noise, _: np.where(np.arange(len(noise)) < 400, 0, noise), "the noise of a row"),
        (
            lambda noise, _: noise + (np.arange(len(noise)) % 400 == 7) * 4 * np.abs(noise),
            "too small or too large",
        ),
    ],
)
@pytest.mark.parametrize("name", ["central", "shares"])
def test_wrong_noise_is_found(
    name: str, change: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(name)
    monkeypatch.setattr(Noise, "draw", wrong(change))
    found = run(Audit(plan, campaigns=20))
    assert any(said in failure for failure in found.failures), found.failures


@pytest.mark.promise
@pytest.mark.parametrize(
    "name", ["central", "central, fresh rounds", "central, many clients", "shares"]
)
def test_one_counter_without_noise_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the audit as it is run without options; also where that counter has the same noise
    always."""
    plan = planned(name)
    place = plan.width + 7
    for value in (0, 3):
        with monkeypatch.context() as patch:
            change = wrong(
                lambda noise, _, value=value: np.where(np.arange(len(noise)) == place, value, noise)
            )
            patch.setattr(Noise, "draw", change)
            found = run(Audit(plan))
        assert "a counter has the same noise in every campaign" in found.failures


def test_counters_that_never_change_are_counted_exactly() -> None:
    """Of three fair coins in four campaigns one is constant as often as 1 - (7/8)^3 says; the bound
    is 3/8."""
    coin = Distribution(np.array([0.0, 0.5]))
    rng, alarms = np.random.default_rng(3), 0
    for _ in range(2000):
        draws = rng.choice([-1, 1], (4, 3))
        probability = noise_checks.unchanging([draws], [[coin] * 4]).probability
        assert probability in (1.0, 3 / 8)
        alarms += probability < 1
    expected = 1 - (7 / 8) ** 3
    assert abs(alarms / 2000 - expected) < 6 * math.sqrt(expected * (1 - expected) / 2000)


def test_noise_of_a_single_counter_passes() -> None:
    plan = fedtally.estimate([1, 1, 1], domain="range:1..1", epsilon=1.0).plan
    assert plan.rows * plan.width == 1
    assert run(Audit(plan, campaigns=20)).failures == []


def test_a_key_that_is_used_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third release of a campaign takes the key of the first."""
    opened, first = engine._opened, [bytes(32)]

    def same(plan: Plan, rounds: range, sketches: Any, random: Any) -> Any:
        if rounds.start == 0:
            first[0] = random(32)
        return opened(plan, rounds, sketches, random if rounds.start == 1 else lambda _: first[0])

    monkeypatch.setattr(engine, "_opened", same)
    assert any(
        "a key was used twice" in failure for failure in audited("central, fresh rounds").failures
    )


def test_a_key_that_is_laid_out_in_two_ways_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By rows in one release, by columns in the next."""
    draw, drawn = Noise.draw, []

    def turned(self: Noise, key: Any, size: int, constant_time: bool = False) -> Any:
        drawn.append(draw(self, key, size, constant_time))
        last = drawn[-1] if len(drawn) % 2 else drawn[-2].copy()
        last[:2000] = last[:2000] if len(drawn) % 2 else last[:2000].reshape(5, 400).T.reshape(-1)
        return last

    plan = planned("central, batches")
    monkeypatch.setattr(Noise, "draw", turned)
    assert run(Audit(plan)).failures == [
        "two releases have the same noise in another order",
        "two releases have noise of the same sizes, in whatever order",
        "counters have the same noise as others, or the opposite one, in every campaign",
    ]


def test_noise_that_follows_from_the_data_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each population is used twice."""
    opened = engine._opened

    def derived(plan: Plan, rounds: range, sketches: Any, random: Any) -> Any:
        exact = sum(int((sketch.counters**3).sum()) for sketch in sketches)
        return opened(
            plan, rounds, sketches, lambda size: np.random.default_rng(abs(exact)).bytes(size)
        )

    monkeypatch.setattr(engine, "_opened", derived)
    assert any("a key was used twice" in failure for failure in audited("central").failures)


def rows_that_add_up_to_0(noise: Any, _: Any) -> Any:
    """Move counters of each row by 1 until its sum is 0."""
    for row in noise[:2000].reshape(5, 400):
        off = int(row.sum())
        row[np.random.default_rng().permutation(400)[: abs(off) % 400]] -= np.sign(off)
        row -= int(row.sum()) // 400
    return noise


def one_row_in_other_orders(noise: Any, _: Any) -> Any:
    rows = noise[:2000].reshape(5, 400)
    for number in range(1, 5):
        rows[number] = np.random.default_rng(number).permutation(rows[0])
    return noise


def fixed_pairs(noise: Any, _: Any) -> Any:
    places = np.random.default_rng(1).permutation(2000)
    noise[places[::2]] = -noise[places[1::2]]
    return noise


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rows_that_add_up_to_0, "the noise of a row adds up to too little or too much"),
        (fixed_pairs, "counters have the same noise as others, or the opposite one"),
        (one_row_in_other_orders, "two rows have noise of the same sizes"),
    ],
)
def test_noise_that_follows_from_noise_of_the_release_is_found(
    change: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each draw has the right distribution or nearly, and a sum or a difference of counters is
    exact."""
    plan = planned("central")
    monkeypatch.setattr(Noise, "draw", wrong(change))
    found = run(Audit(plan))
    assert any(said in failure for failure in found.failures), found.failures


SIZES = "two releases have noise of the same sizes"
EQUAL = "counters have the same noise as others, or the opposite one"


def but_one(noise: Any, last: Any, order: Any) -> Any:
    changed = last[order]
    changed[3] += 1
    return changed


@pytest.mark.promise
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda noise, last, order: -last[order], SIZES),
        (lambda noise, last, order: -last[np.random.default_rng().permutation(len(last))], SIZES),
        (but_one, SIZES),
        (lambda noise, last, order: np.where(np.arange(len(noise)) % 2, noise, last[order]), EQUAL),
        (
            lambda noise, last, order: np.where(np.arange(len(noise)) % 9, noise, -last[order]),
            EQUAL,
        ),
    ],
)
def test_noise_that_follows_from_another_release_is_found(
    change: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, drawn = Noise.draw, []

    def second(self: Noise, key: Any, size: int, constant_time: bool = False) -> Any:
        noise = draw(self, key, size, constant_time)
        if len(drawn) % 2:
            noise = change(noise, drawn[-1], np.random.default_rng(3).permutation(size))
        drawn.append(noise.copy())
        return noise

    plan = planned("central, batches")
    monkeypatch.setattr(Noise, "draw", second)
    found = run(Audit(plan))
    assert any(said in failure for failure in found.failures), found.failures


@pytest.mark.promise
def test_more_campaigns_see_weaker_dependence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parity of a release is one coin of each campaign; two counters that share signs alone
    agree once in each."""

    def even(noise: Any, _: Any) -> Any:
        noise[int(np.random.default_rng().integers(2000))] += noise[:2000].sum() % 2
        return noise

    def sign_of_another(noise: Any, _: Any) -> Any:
        noise[1900] = abs(noise[1900]) * (1 if noise[30] > 0 else -1)
        return noise

    plan = planned("central")
    for change, said in (
        (even, "adds up to an even number"),
        (sign_of_another, "two counters have correlated noise"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Noise, "draw", wrong(change))
            found = run(Audit(plan, campaigns=100))
        assert any(said in failure for failure in found.failures), found.failures


BOUNDED = ["central", "central, fresh rounds", "central, several items", "add-remove", "shares"]


@pytest.mark.parametrize("name", BOUNDED)
def test_clients_that_hold_too_much_are_held_to_the_plan(name: str) -> None:
    """The bounds that a plan relies on are tested, and a sound engine passes."""
    found = audited(name, campaigns=2)
    several = "several items" in name
    assert found.failures == [] and set(found.bounds) >= ({"clip"} if several else {"items"})
    assert name == "shares" or "repeats" in found.bounds  # five clients are too few for it


@pytest.mark.parametrize("name", ["central, several items"])
def test_a_clip_that_is_left_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(name)
    monkeypatch.setattr(round_sums, "clip_rounds", lambda plan, rounds, *_: list(rounds))
    found = run(Audit(plan, campaigns=2))
    assert any("(clip) move a release" in failure for failure in found.failures), found.failures


@pytest.mark.promise
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "name",
    ["central, several items in two rounds", "central, several items in two rounds at once"],
)
def test_a_clip_of_one_of_two_contributions_is_found(
    name: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client is in both rounds, and clips its items in one of them alone."""
    plan, clip = planned(name), round_sums.clip_rounds

    def one_clipped(plan: Plan, rounds: Any, *rest: Any) -> Any:
        clipped = clip(plan, rounds, *rest)
        return [clipped[k] if k == place else own for k, own in enumerate(rounds)]

    assert run(Audit(plan, campaigns=2)).failures == []
    monkeypatch.setattr(round_sums, "clip_rounds", one_clipped)
    found = run(Audit(plan, campaigns=2))
    assert any("(clip) move a release" in failure for failure in found.failures), found.failures


def repeated(rows: Any) -> Any:
    """Return sorted rows, as `distinct_rows` does, with all that are equal."""
    return rows[:, np.lexsort(rows[[1, *range(2, len(rows)), 0]])]


def half_turned(sketch: CountSketch, ids: Any, counts: Any, *rest: Any) -> None:
    """Add items, half of whose clients have the opposite signs."""
    turned = np.random.default_rng().binomial(counts, 0.5)
    other = CountSketch(sketch.spec, sketch.round)
    item_ids.add_items(sketch, ids, counts - turned, *rest)
    item_ids.add_items(other, ids, turned, *rest)
    sketch.counters -= other.counters


@pytest.mark.promise
@pytest.mark.parametrize("name", ["central", "central, batches", "central, fresh rounds"])
@pytest.mark.parametrize(
    ("room", "function", "planted"),
    [
        (client_rows, "distinct_rows", repeated),
        (
            round_sums,
            "clip_rounds",
            lambda plan, rounds, *_: [own._replace(counts=2 * own.counts) for own in rounds],
        ),
        (round_sums, "add_items", half_turned),
    ],
    ids=["equal rows", "everybody twice", "signs of a client"],
)
def test_clients_that_do_not_count_once_are_found(
    room: Any, function: str, planted: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(name)
    monkeypatch.setattr(room, function, planted)
    failures = run(Audit(plan, campaigns=2)).failures
    assert "clients do not count once each, with their items and the plan's hashes" in failures


@pytest.mark.parametrize("more", [1, 1000])
@pytest.mark.parametrize("name", ["central", "central, fresh rounds", "add-remove"])
def test_a_draw_of_too_many_items_is_found(
    name: str, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, draw = planned(name), row_counts.bound_clients
    monkeypatch.setattr(
        row_counts,
        "bound_clients",
        lambda rows, most, *rest, **named: draw(rows, most + more, *rest, **named),
    )
    found = run(Audit(plan, campaigns=2))
    assert any("(items) move a release" in failure for failure in found.failures), found.failures


def late(first: int, most: int) -> Callable[..., Bounded]:
    """Return a `bound_clients` that lets `most` items of a client through from a round on."""
    draw = row_counts.bound_clients

    def bounded(rows: Any, items: int, *rest: Any, **named: Any) -> Bounded:
        is_late = rows[2] >> np.uint64(1) >= first
        parts = (
            draw(rows[:, own], number, *rest, **named)
            for own, number in ((~is_late, items), (is_late, most))
        )
        return Bounded(*map(np.concatenate, zip(*parts, strict=True)))

    return bounded


@pytest.mark.promise
@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize(("participations", "in_a_row"), LIVES)
def test_a_bound_that_is_kept_in_the_first_rounds_alone_is_found(
    participations: int, in_a_row: int | None, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in rounds in which no client begins."""
    plan = by_the_calendar(participations, in_a_row)
    monkeypatch.setattr(row_counts, "bound_clients", late(first, 1000))
    failures = run(Audit(plan, campaigns=2)).failures
    assert any("(items) move a release" in failure for failure in failures), failures


def test_tails_of_weighted_sums_are_bounds() -> None:
    """Against the exact distribution of the sum, by convolution: never below, and above by a factor
    that grows with
    sigma.
    """
    distribution, weights = Distribution.rounded_gaussian(4.0), np.array([1, -2, 3])
    whole = np.concatenate([distribution.pmf[:0:-1], distribution.pmf])
    total = np.ones(1)
    for weight in (1, 2, 3):
        spread = np.zeros(weight * (len(whole) - 1) + 1)
        spread[::weight] = whole
        total = np.convolve(total, spread)
    middle = len(total) // 2
    stddev = math.sqrt(14 * distribution.variance)
    for sigmas in (0.5, 1.0, 3.0, 6.0):
        excess = math.ceil(sigmas * stddev)
        exact, bound = (
            float(total[middle + excess :].sum()),
            noise_checks.weighted_tail(excess, weights, [distribution]),
        )
        assert exact <= bound <= 15 * exact * max(1.0, sigmas)
    assert noise_checks.weighted_tail(-1.0, weights, [distribution]) == 1.0


@pytest.mark.parametrize("sigmas", [5.0, 10.0, 20.0])
@pytest.mark.parametrize("draws", [1, 2, 8])
def test_tails_of_few_geometric_draws_are_small_bounds(draws: int, sigmas: float) -> None:
    """Against the exact distribution: a draw that is large by itself does not make the bound 1."""
    distribution = noise_checks.Distribution.discrete_laplace(100.0)
    whole = np.concatenate([distribution.pmf[:0:-1], distribution.pmf])
    total = np.ones(1)
    for _ in range(draws):
        total = np.convolve(total, whole)
    excess = math.ceil(sigmas * math.sqrt(draws * distribution.variance))
    exact = float(total[len(total) // 2 + excess :].sum())
    found = noise_checks.weighted_tail(excess, np.ones(draws, np.int64), [distribution])
    assert exact <= found <= 4 * math.exp(-sigmas)


def test_a_missing_server_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, calls = planned("two servers"), itertools.count()
    monkeypatch.setattr(Noise, "draw", wrong(lambda noise, _: noise * (next(calls) % 2)))
    assert any("too small or too large" in failure for failure in run(Audit(plan)).failures)


def test_noise_for_less_than_a_client_does_is_found() -> None:
    """A plan cannot be made so (`PrivacyConfig` refuses it), so the numbers are changed after the
    audit."""
    found = audited("central, two rounds of a client", campaigns=2)
    assert found.detection is not None
    low = replace(
        found, detection=found.detection._replace(sensitivity=found.detection.sensitivity / 1.01)
    )
    assert (
        any("one client moves the releases by" in failure for failure in low.failures)
        and not low.passed
    )
    told = replace(found, detection=found.detection._replace(bound=1.001))
    assert told.failures == ["epsilon is at least 1.001, and 1 is guaranteed"]


def test_clients_without_noise_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on epsilon alone sees it, and passes what was guaranteed."""
    plan = planned("central")
    monkeypatch.setattr(Noise, "draw", wrong(lambda noise, _: noise * 0))
    seen = run(Audit(plan, campaigns=20)).detection
    assert seen is not None and seen.bound > 3 * seen.guaranteed


# ---- the statistics ----


def law_cases() -> list[Distribution]:
    return [
        Distribution.rounded_gaussian(0.3),
        Distribution.rounded_gaussian(90.0),
        Distribution.skellam(0.2),
        Distribution.skellam(90.0).times(2),
    ]


@pytest.mark.parametrize(
    "distribution", law_cases(), ids=lambda distribution: f"{distribution.variance:.3g}"
)
def test_laws_add_up(distribution: Distribution) -> None:
    assert distribution.pmf[0] + 2 * distribution.pmf[1:].sum() == pytest.approx(1.0, abs=1e-12)
    assert distribution.times(3).variance == pytest.approx(3 * distribution.variance, rel=1e-6)


def test_laws_are_the_sums_that_they_should_be() -> None:
    """Skellam distributions add up to Skellam distributions; a rounded Gaussian has a twelfth of a
    unit more."""
    assert np.allclose(
        Distribution.skellam(2.0).times(3).pmf[:20], Distribution.skellam(6.0).pmf[:20], atol=1e-14
    )
    assert Distribution.skellam(7.5).variance == pytest.approx(7.5)
    assert Distribution.rounded_gaussian(50.0).variance == pytest.approx(50 + 1 / 12)


@pytest.mark.promise
@pytest.mark.parametrize(
    "distribution", law_cases(), ids=lambda distribution: f"{distribution.variance:.3g}"
)
def test_checks_of_sound_noise_alarm_as_seldom_as_they_say(distribution: Distribution) -> None:
    """Of 1,200 checks of right noise at most 3 % fall below 1 % (12 expected; 36 or more: 1e-8 by
    Poisson)."""
    rng = np.random.default_rng(11)
    both = np.concatenate([distribution.pmf[:0:-1], distribution.pmf])
    values = np.arange(len(both)) - len(distribution.pmf) + 1
    probabilities: list[float] = []
    while len(probabilities) < 1200:
        draws = rng.choice(values, (2, 6, 200), p=both / both.sum())
        exact = rng.integers(-2, 3, (2, 6, 200))
        ranks = [
            Ranks.joined([Ranks.of(one, distribution, rng) for one in release]) for release in draws
        ]
        probabilities += [check.probability for check in checks_of(ranks, list(exact), 4)]
        distributions = [[distribution] * 6] * 2
        probabilities += [
            check.probability for check in dependence_checks(list(draws), distributions, 4, rng)
        ]
    assert sum(probability < 0.01 for probability in probabilities) <= 36


class _Fixed:
    """Draws a given value for each uniform random number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self, shape: Any) -> Any:
        return np.full(shape, self.value)


@pytest.mark.promise
@pytest.mark.parametrize("number", [1, 2, 5])
def test_wide_sums_of_few_geometric_draws_alarm_as_seldom_as_they_say(number: int) -> None:
    """Such a sum is far from Gaussian: ranked as one, one counter in 3,000 campaigns is called
    wrong in 96 of 100 audits.

    The law of the sum is computed at its own width. So the probability that a depth is below a
    bound is exact, and with it how often the number of such depths is called rare.
    """
    draw = Distribution.discrete_laplace(2 * dependence._WIDE / number)
    exact = Distribution.of_sum((draw,), number)
    sums = np.arange(len(exact.pmf))
    weights = np.append(exact.pmf[:1], 2 * exact.pmf[1:])
    below = np.zeros(len(dependence._TAILS))
    places = (np.arange(16) + 0.5) / 16
    for place in places:
        rng: Any = _Fixed(place)
        ranks, _ = dependence._ranked(sums, [draw], number, rng)
        found = [weights[ranks.depth[0] < tail].sum() for tail in dependence._TAILS]
        below += np.array(found) / len(places)
    campaigns, level = 30_000, failing_level(500)
    events = 1 + len(below)
    for tail, probability in zip(dependence._TAILS, below, strict=True):
        counts = np.arange(campaigns + 1)
        called = 2 * events * noise_checks.binomial(counts, campaigns, tail) < level
        alarm = stats.binom.pmf(counts[called], campaigns, probability).sum()
        assert alarm <= 1.1 * level / (2 * events)


def test_wide_sums_of_other_noise_are_ranked_as_gaussian() -> None:
    """Their fourth cumulant is below 1e-8 of the squared variance."""
    draw = Distribution.rounded_gaussian(2 * dependence._WIDE)
    sums = np.arange(0, 60_000, 1000)
    ranks, _ = dependence._ranked(sums, [draw], 1, np.random.default_rng(1))
    expected = 2 * stats.norm.sf(sums / math.sqrt(draw.variance))
    assert np.allclose(ranks.depth[0], expected, atol=1e-4)


def test_vectors_of_signs_that_agree_are_found_at_any_length() -> None:
    """Sums of products are beyond what the signs' own type holds."""
    rng = np.random.default_rng(4)
    for length in (64, 256, 384, 1000):
        signs = np.where(rng.integers(0, 2, (3, length)) == 1, 1, -1).astype(np.int8)
        assert of_products(signs, "", "").probability > 1e-6
        signs[2] = -signs[0]
        assert of_products(signs, "", "").probability <= 6 * 2.0**-length


def test_depths_are_uniform_also_where_draws_are_equal() -> None:
    rng = np.random.default_rng(5)
    distribution = Distribution.skellam(0.1)  # nine of ten draws are 0
    draws = rng.poisson(0.05, 100_000) - rng.poisson(0.05, 100_000)
    ranks = Ranks.of(draws, distribution, rng)
    assert all(check.probability > 1e-6 for check in ranks.checks("here"))
    for share in (0.01, 0.05, 0.5, 0.95):
        error = math.sqrt(share * (1 - share) / 100_000)
        assert abs(float((ranks.depth < share).mean()) - share) < 6 * error


def test_what_is_said_of_power() -> None:
    """Noise so much too small, and a little more, is found; noise of half the difference mostly is
    not."""
    rng = np.random.default_rng(8)
    level = FALSE_ALARM / 40
    share = detectable_scale(12_000, level)
    assert share is not None and 0.05 < share < 0.07
    distribution = Distribution.rounded_gaussian(90.0)

    def found(scale: float) -> int:
        draws = [
            np.rint(rng.normal(0, math.sqrt(90) * scale, 12_000)).astype(np.int64)
            for _ in range(60)
        ]
        return sum(
            Ranks.of(one, distribution, rng).checks("here")[1].probability < level for one in draws
        )

    assert found(1 - share) >= 52  # 59.4 are expected; fewer than 52 once in 10 million
    assert found(1 - share / 2) <= 20
    assert detectable_scale(60, level) is None


def test_the_page_says_how_many_counters_an_audit_takes_and_what_they_show() -> None:
    page = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text(encoding="utf-8")
    found = re.search(
        r"as many as have ([\d,]+) counters of each release, but at most ([\d,]+)\.\n"
        r"  In ([\d,]+) counters, noise that is (\S+) % too small is found in 99 of 100 audits, and"
        r" noise that is (\S+) % too small in practically all\.\n",
        page,
    )
    checked = re.search(r"^Verdict  passed: (\d+) checks", page, re.M)
    assert found is not None and checked is not None
    counters, most, again, seen, surely = (float(one.replace(",", "")) for one in found.groups())
    small = planned("central, a small sketch")
    assert counters == again and most == 1000
    assert Audit(small).runs == math.ceil(counters / (small.rows * small.width))
    sizes = {"rows": 1, "width": 8, "recovery": "median", "confidence": 0.0}
    tiny = fedtally.estimate([1, 2, 3], domain=DOMAIN, epsilon=1.0, **sizes).plan
    assert Audit(tiny).runs == most < counters / 8
    level = failing_level(int(checked[1]))
    share = detectable_scale(int(counters), level)
    less = detectable_scale(int(counters / 2), level)
    assert share is not None and round(100 * share, 1) == seen
    assert less is not None and 100 * less < surely  # half the counters show it 99 times in 100


def test_bounds_on_epsilon_hold() -> None:
    """Of a mechanism that is exactly epsilon 1: randomised response.
    At 5 % of false alarms 200 audits have 10.
    """
    rng = np.random.default_rng(2)
    true = math.e / (1 + math.e)
    bounds = [
        epsilon_bound(rng.random(2000) < true, rng.random(2000) < 1 - true, 0.0, 0.05)
        for _ in range(200)
    ]
    assert sum(bound > 1 for bound in bounds) <= 25 and np.mean(bounds) > 0.8
    none = np.zeros(0, bool)
    assert epsilon_bound(none, none, 1e-6, 0.01) == 0.0
    assert noise_checks.binomial(5, 10, 0.5) == 1.0


# ---- the command ----


def test_the_command_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned("central, batches").save(tmp_path / "plan.toml")
    assert command(["audit", str(tmp_path / "plan.toml"), "--campaigns", "7"]) == 0
    said = capsys.readouterr().out
    assert "Audit of 8 campaigns, 2 releases each" in said and "passed: " in said
    assert "3 to 4" in said and "guaranteed: at most 1" in said
    assert command(["audit", str(tmp_path / "plan.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["schema"] == "fedtally-audit/1"
        and found["passed"] is True
        and found["failures"] == []
    )
    assert [release["rounds"] for release in found["releases"]] == [[0, 2], [2, 4]]
    assert found["epsilon"]["guaranteed"] == 1.0 and found["false_alarm"] == FALSE_ALARM


@pytest.mark.parametrize(
    ("name", "clients", "said", "noise"),
    [
        (
            "secagg, cohorts and dropouts",
            12,
            "12 clients in each round, of up to 24 of the plan: 1 cohort of up to 2",
            "planned is that of all 12 clients; the guarantee counts on 8 honest ones that stay",
        ),
        (
            "secagg, cohorts and dropouts",
            24,
            "24 clients in each round: as many as the plan may have",
            "planned is that of all 24 clients; the guarantee counts on 8 honest ones that stay",
        ),
        ("central", 40, "40 clients in each round, of up to 60 of the plan", ""),
        ("add-remove", 90, "90 clients in all rounds together, of up to", ""),
        (
            "two servers",
            12,
            "12 clients in each round",
            "planned is that of both servers; the guarantee counts on one of them",
        ),
    ],
)
def test_the_command_says_which_part_of_a_plan_it_ran(
    name: str, clients: int, said: str, noise: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = AuditResult(Audit(planned(name)), clients, (), (), None, None, {}, name == "add-remove")
    show(view(found))
    shown = " ".join(capsys.readouterr().out.split())
    assert f" Made up {said}" in shown
    assert f" Noise {noise}" in shown if noise else " Noise " not in shown


def test_the_command_fails_where_the_noise_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned("central").save(tmp_path / "plan.toml")
    monkeypatch.setattr(Noise, "draw", wrong(lambda noise, _: np.abs(noise)))
    assert command(["audit", str(tmp_path / "plan.toml")]) == 1
    said = capsys.readouterr().out
    assert "failed: the releases do not keep what the plan guarantees" in " ".join(said.split())
    assert "more noise of one sign" in said
    assert command(["audit", str(tmp_path / "plan.toml"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False


def test_what_cannot_be_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = fedtally.estimate([1, 2, 3], domain=DOMAIN, rows=3, width=8).plan
    bare.save(tmp_path / "plan.toml")
    assert command(["audit", str(tmp_path / "plan.toml")]) == 2
    assert "no differential privacy, so there is no noise to audit" in capsys.readouterr().err
    asked = ["--domain", "open", "--clients", "100000", "--tau", ".02", "--epsilon", "2"]
    assert command(["plan", *asked, "--output", str(tmp_path / "open.toml")]) == 0
    assert command(["audit", str(tmp_path / "open.toml")]) == 2
    assert "the plan has an open domain" in capsys.readouterr().err
    assert command(["audit", str(tmp_path / "none.toml")]) == 2
    assert command(["audit", str(tmp_path / "plan.toml"), "--campaigns", "0"]) == 2
    with pytest.raises(InvalidInputError, match="campaigns must be at least 1, got 0"):
        Audit(planned("central"), campaigns=0)
    with pytest.raises(InvalidInputError, match="clients must be at most 60, got 61"):
        Audit(planned("central"), clients=61)
