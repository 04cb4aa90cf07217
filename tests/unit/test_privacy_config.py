"""What a plan guarantees of privacy: the noise that keeps it, and plans that would not."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.crypto.keys import Secret
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.privacy import accounting
from fedtally.privacy.accounting import rounded_up
from fedtally.privacy.config import PrivacyConfig, default_delta, propose
from fedtally.privacy.events import Collisions, Event, Relation
from fedtally.privacy.guarantee_text import add_up_guarantees, fields, period, sentences, unit

PUBLIC = {"kind": "range", "size": 1000, "public": True, "first": 1, "last": 1000}
CENTRAL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "rows": 5, "width": 100}
SHARES = CENTRAL | {"trust": "distributed", "honest_survivors": 500, "most_clients": 600}


def plan_of(privacy: PrivacyConfig | None, **changed: Any) -> Plan:
    values: dict[str, Any] = {
        "rows": 5,
        "width": 100,
        "schedule": "hybrid",
        "num_rounds": 4,
        "num_clients": 2400,
        "max_round_clients": 600,
        "domain": PUBLIC,
        "max_items": 1,
        "seed": bytes(32),
    }
    return Plan(**(values | changed), privacy=privacy)


@pytest.mark.promise
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(
    "asked", [CENTRAL, SHARES, CENTRAL | {"max_items": 4}, SHARES | {"max_items": 4}]
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_noise_keeps_the_promise_and_little_less_would_not(
    asked: dict[str, Any], relation: Relation, epsilon: float
) -> None:
    if relation is Relation.ADD_REMOVE and "trust" in asked:
        pytest.skip("add-remove needs central trust")
    terms = propose(**(asked | {"epsilon": epsilon}), relation=relation)
    assert terms.guarantee.epsilon <= epsilon
    assert terms.guarantee == accounting.epsilon(terms.event, 1e-6)
    less = dataclasses.replace(terms.event, variance=0.99 * terms.event.noise_variance)
    with pytest.raises(
        InvalidInputError, match=r"above the epsilon .* give it more noise, or guarantee less"
    ):
        dataclasses.replace(terms, event=less)


def test_shares_of_the_fewest_clients_make_up_the_noise() -> None:
    terms = propose(**SHARES)
    assert math.isclose(terms.share(500).variance, terms.event.noise_variance, rel_tol=1e-12)
    assert math.isclose(terms.share().variance * 600, terms.share(600).variance, rel_tol=1e-12)
    assert math.isclose(
        terms.largest_stddev(600) ** 2, terms.event.noise_variance * 600 / 500, rel_tol=1e-12
    )
    with pytest.raises(InvalidInputError, match="comes from the clients"):
        terms.noise()
    with pytest.raises(InvalidInputError, match="drawn at once"):
        propose(**CENTRAL).share()


@pytest.mark.parametrize("asked", [CENTRAL, SHARES])
def test_noise_has_the_variance_that_is_promised(asked: dict[str, Any]) -> None:
    """The mean of n squares of a distribution with kurtosis below 3.1 varies by sqrt(2.1 / n): six
    times that are
    allowed.
    """
    terms = propose(**asked)
    noise = terms.share(500) if terms.by_clients else terms.noise()
    drawn = noise.draw(Secret(bytes(range(32))), 200_000).astype(np.float64)
    rounding = 0.0 if terms.by_clients else 1 / 12
    expected = terms.event.noise_variance + rounding
    assert abs(np.mean(drawn**2) / expected - 1) < 6 * math.sqrt(2.1 / len(drawn))


def test_a_certificate_needs_less_noise_and_is_kept() -> None:
    worst = propose(**CENTRAL, relation="replace-one")
    certified = worst.certified(Collisions(opposite=3, excess=3))
    assert certified.event.noise_variance < worst.event.noise_variance
    assert certified.guarantee.epsilon <= 1.0
    assert PrivacyConfig.from_dict(json.loads(json.dumps(certified.to_dict()))) == certified


@settings(max_examples=30)
@given(
    epsilon=st.floats(0.05, 20),
    delta=st.floats(1e-9, 1e-4),
    rows=st.integers(1, 20),
    participations=st.integers(1, 6),
    max_items=st.integers(1, 5),
    not_private=st.booleans(),
)
def test_terms_survive_json_and_toml(
    epsilon: float, delta: float, rows: int, participations: int, max_items: int, not_private: bool
) -> None:
    terms = propose(
        epsilon=epsilon,
        delta=delta,
        rows=rows,
        width=50,
        participations=participations,
        max_items=max_items,
        not_private=not_private,
        population="the phones",
    )
    plan = plan_of(terms, rows=rows, width=50, num_rounds=6, max_items=max_items)
    assert Plan.from_toml(plan.to_toml()) == plan
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert (
        plan_of(None, rows=rows, width=50, num_rounds=6, max_items=max_items).fingerprint
        != plan.fingerprint
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be 0.001 to 100, got 0"),
        ({"epsilon": math.nan}, "epsilon must be finite"),
        ({"epsilon": 2000.0}, "epsilon must be 0.001 to 100"),
        ({"delta": 0.0}, "delta must be above 0 and below 1, got 0"),
        ({"delta": 1.0}, "delta must be above 0 and below 1"),
        ({"delta": 1e-40}, "delta must exceed"),
        ({"population": ""}, "population must be"),
        ({"trust": "nobody"}, "trust must be central or distributed"),
        ({"relation": "neighbours"}, "relation must be zero-out, "),
        (
            {"relation": "add-remove", "trust": "distributed"},
            "central trust",
        ),
    ],
)
def test_what_cannot_be_promised(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        propose(**(CENTRAL | values))


@pytest.mark.parametrize(
    "change",
    [{"not_private": 1}, {"event": None}, {"event": Event("rounded-gaussian", 5, "zero-out")}],
)
def test_terms_of_other_types(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        dataclasses.replace(propose(**CENTRAL), **change)


@pytest.mark.parametrize(
    "values", [None, [], {}, {"epsilon": 1.0}, propose(**CENTRAL).to_dict() | {"sigma": 3}]
)
def test_terms_that_cannot_be_read(values: Any) -> None:
    with pytest.raises(
        InvalidInputError, match="privacy must be a table with the entries epsilon, delta"
    ):
        PrivacyConfig.from_dict(values)


@pytest.mark.parametrize(
    ("terms", "changed", "message"),
    [
        ({"rows": 3}, {}, "privacy.event.rows must be that of the plan, 5, got 3"),
        ({"max_items": 2}, {}, "privacy.event.max_items must be that of the plan, 1, got 2"),
        ({"participations": 5}, {}, "participations must be at most the rounds, 4"),
        (
            {"participations": 2},
            {"schedule": "shared"},
            "per_release must be 2, the most rounds of one client",
        ),
        (
            {"participations": 4, "per_release": 4},
            {"schedule": "batched:2"},
            "per_release must be 2",
        ),
        ({"participations": 2, "per_release": 2}, {}, "per_release must be 1"),
        ({}, {"domain": PUBLIC | {"public": False}}, "the domain must be public"),
        (
            {"trust": "distributed"},
            {},
            "must be skellam: with one server the clients add the noise",
        ),
        (SHARES | {"honest_survivors": 601}, {}, "honest_survivors must be at most 600"),
        (
            {"delta": 1 / 2400},
            {},
            "delta must be below 1 / num_clients, 0.000416667, got 0.000416667",
        ),
        ({"delta": 0.002}, {}, "delta must be below 1 / num_clients"),
    ],
)
def test_plans_that_would_not_keep_it(
    terms: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plan_of(propose(**(CENTRAL | terms)), **changed)


@pytest.mark.promise
def test_a_delta_below_one_over_the_clients_will_do_and_a_study_may_have_any() -> None:
    plan_of(propose(**(CENTRAL | {"delta": 0.999 / 2400})))
    plan_of(propose(**(CENTRAL | {"delta": 0.9}), not_private=True))


def test_a_study_may_name_private_candidates() -> None:
    plan = plan_of(propose(**CENTRAL, not_private=True), domain=PUBLIC | {"public": False})
    assert plan.privacy is not None and plan.privacy.not_private


@pytest.mark.parametrize(
    ("schedule", "central"),
    [
        ("shared", [range(4)]),
        ("hybrid", [range(i, i + 1) for i in range(4)]),
        ("fresh", [range(i, i + 1) for i in range(4)]),
        ("batched:3", [range(2), range(2, 3), range(3, 4)]),
    ],
)
def test_openings(schedule: str, central: list[range]) -> None:
    each = [range(i, i + 1) for i in range(4)]
    assert plan_of(propose(**CENTRAL), schedule=schedule).releases == central
    assert plan_of(propose(**SHARES), schedule=schedule).releases == each
    assert plan_of(None, schedule=schedule).releases == each


def test_bits_hold_the_noise_of_all_clients() -> None:
    """But for a probability of 2^-40, so never in ten thousand draws of the largest total."""
    terms = propose(**SHARES)
    plan, largest = plan_of(terms), terms.share(600).draw(Secret(bytes(range(32))), 10_000)
    assert np.abs(largest).max() <= plan.noise_bound == plan.protection.bound(500, 600)
    assert 2 ** (plan.modulus_bits - 1) > 600 + plan.noise_bound
    assert plan_of(propose(**CENTRAL)).noise_bound == 0
    assert plan_of(propose(**CENTRAL)).modulus_bits == plan_of(None).modulus_bits


def test_a_file_that_promises_more_is_refused(tmp_path: Any) -> None:
    text = plan_of(propose(**CENTRAL)).to_toml()
    (tmp_path / "plan.toml").write_text(text.replace("epsilon = 1.0", "epsilon = 0.5"))
    with pytest.raises(InvalidInputError, match="above the epsilon 0.5 of the plan"):
        Plan.load(tmp_path / "plan.toml")


def test_default_delta_stays_below_one_over_n() -> None:
    assert [default_delta(n) for n in (10, 10**5, 10**7)] == [1e-6, 1e-6, 1e-8]


def test_the_statement_names_what_was_promised_and_rounds_up() -> None:
    terms = propose(**SHARES, not_private=True)
    said = sentences(terms, num_releases=3)
    assert said[0].startswith(
        "not private: epsilon 1, delta 1e-06 if one client's items are taken away"
    )
    assert "distributed trust" in said[1] and "500 honest clients together have" in said[1]
    assert "in every counter of each of 3 sums" in said[1]
    assert "a client takes part in one round with one item; proven by composing" in said[2]
    clipped = sentences(propose(**(SHARES | {"max_items": 4})), num_releases=1)
    assert (
        "a sketch of norm" in clipped[2]
        and "less than 1 % above the exact value at epsilon 1" in clipped[2]
    )
    two = sentences(
        propose(**(CENTRAL | {"trust": "distributed"})), num_releases=1, is_two_server=True
    )
    assert "each of two servers adds rounded Gaussian noise" in two[1]
    assert f"unit of privacy: {unit(terms.event)}; period: the whole campaign, with" in said[3]
    found = fields(terms, fewest_survivors=590, corrupt=30)
    assert (
        f"zCDP: rho {rounded_up(found['rho']):g}, except with probability"
        f" {rounded_up(found['rho_delta']):g}" in said[3]
    )
    assert (found["unit"], found["period"]) == (unit(terms.event), period(terms.event))
    assert "whether it takes part, and all its items" in unit(
        replace(propose(**CENTRAL).event, relation="add-remove")
    )
    assert found["epsilon_realised"] < found["epsilon"] <= 1.0 < found["epsilon_replace_one"]
    assert math.isclose(
        found["noise_multiplier"] * found["l2_sensitivity"], math.sqrt(found["noise_variance"])
    )


def test_campaigns_cost_a_client_of_all_of_them_what_the_accountant_says() -> None:
    first, second = propose(**CENTRAL), propose(**(CENTRAL | {"epsilon": 0.5, "delta": 1e-8}))
    both = add_up_guarantees([first, second])
    assert both.guarantee == accounting.epsilon([first.event, second.event], 1e-6, adaptive=True)
    assert 1.0 < both.to_dict()["epsilon"] < 1.5 and str(both).startswith(
        "epsilon 1.097 at delta 1e-06"
    )
    shares = add_up_guarantees([first, propose(**SHARES)])
    assert shares.to_dict()["trust"] == "central and distributed"
    study = add_up_guarantees([first, replace(second, not_private=True)])
    assert study.to_dict()["not_private"] and str(study).startswith("not private: epsilon")
    with pytest.raises(InvalidInputError, match="campaigns must be at least one, got none"):
        add_up_guarantees([])
    exact = add_up_guarantees([first, None])
    assert (
        str(exact) == "nothing is guaranteed: the sums of 1 of these 2 are exact"
        and exact.to_dict()["epsilon"] is None
    )
    apart = add_up_guarantees([first, propose(**(CENTRAL | {"relation": "replace-one"}))])
    assert "several relations do not compose" in str(apart) and apart.guarantee is None


@pytest.mark.parametrize(
    ("relation", "rows", "width"), [("zero-out", 5, 200), ("replace-one", 1, 50)]
)
@pytest.mark.parametrize("wanted", [1.0, 4.0, 20.0])
def test_a_statement_has_the_deviation_of_what_is_drawn(
    relation: str, rows: int, width: int, wanted: float
) -> None:
    """As `fedtally audit` measures it: of the integers, and not of the Gaussian before rounding."""
    terms = propose(epsilon=wanted, delta=1e-6, rows=rows, width=width, relation=relation)
    table = terms.noise()
    drawn = np.array(table.masses, np.float64) / 2.0**128
    k = np.arange(-table.largest, table.largest + 1)
    exact = math.sqrt(float(drawn @ k**2))
    [said] = re.findall(
        r"rounded Gaussian noise of standard deviation (\S+) in every",
        sentences(terms, num_releases=1)[1],
    )
    assert said == f"{exact:.4g}" != f"{terms.stddev:.4g}"
