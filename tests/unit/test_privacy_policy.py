"""What a client demands of a plan's privacy: by what is proven, whatever the plan says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError
from fedtally.privacy import accounting
from fedtally.privacy.config import PrivacyConfig, propose
from fedtally.privacy.events import Collisions, Event, Relation, Trust
from fedtally.privacy.policy import PrivacyPolicy, WeakPrivacyError

ASKED: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "rows": 5, "width": 100}
SHARES = ASKED | {"trust": "distributed", "honest_survivors": 50, "most_clients": 60}


def policy(**changed: Any) -> PrivacyPolicy:
    return PrivacyPolicy(**({"epsilon": 1.0, "delta": 1e-6} | changed))


def test_a_plan_that_is_proven_to_do_will_do() -> None:
    policy().check(propose(**SHARES))
    policy(trust="central").check(propose(**ASKED))
    policy(trust=Trust.CENTRAL).check(propose(**SHARES))  # who trusts one party may trust none
    policy(not_private=True).check(propose(**SHARES, not_private=True))
    policy(relation="replace-one", epsilon=2.2).check(propose(**SHARES))


@pytest.mark.parametrize(
    ("demanded", "terms", "message"),
    [
        ({}, None, "demands differential privacy, and the plan has none"),
        ({}, SHARES | {"not_private": True}, "marked as not private"),
        ({}, ASKED, "demands distributed trust, .* central trust the server sees exact sums"),
        (
            {"epsilon": 0.99},
            SHARES,
            r"epsilon 0.99 at most, .* proven to have epsilon 1 at delta 1e-06 \(zero-out",
        ),
        (
            {"delta": 1e-7},
            SHARES,
            r"epsilon 1 at most, .* proven to have epsilon 1.1.* at delta 1e-07",
        ),
        (
            {"relation": "replace-one"},
            SHARES,
            r"epsilon 1 at most, .* proven to have epsilon 2.1.* \(replace-one",
        ),
        ({"delta": 1e-13}, SHARES, "nothing is proven for this client's policy: delta must exceed"),
    ],
)
def test_a_plan_that_protects_less_is_refused(
    demanded: dict[str, Any], terms: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(WeakPrivacyError, match=message):
        policy(**demanded).check(None if terms is None else propose(**terms))


def test_a_client_may_demand_an_epsilon_without_a_delta() -> None:
    """Geometric noise alone keeps it: the delta of another plan is not read for the client's."""
    asked = {"epsilon": 1.0, "rows": 1, "width": 50, "encoding": Encoding.HISTOGRAM}
    pure = propose(delta=0.0, mechanism="geometric", **asked)
    demands = policy(delta=0, trust="central")
    assert demands.delta == 0.0
    demands.check(pure)
    with pytest.raises(WeakPrivacyError, match="demands epsilon 0.9 at most"):
        policy(delta=0, epsilon=0.9, trust="central").check(pure)
    with pytest.raises(WeakPrivacyError, match="delta must be above 0 but where all noise is"):
        demands.check(propose(delta=1e-9, **asked))


def test_what_a_plan_says_of_its_epsilon_is_not_asked() -> None:
    """The guarantee may be as loose or as tight as it likes: the event decides."""
    honest = propose(**SHARES)
    policy().check(dataclasses.replace(honest, epsilon=100.0))
    policy().check(dataclasses.replace(honest, epsilon=1.5, delta=1e-7))

    class Liar(PrivacyConfig):
        def __post_init__(self) -> None:
            """Check nothing."""

    little = dataclasses.replace(honest.event, variance=honest.event.noise_variance / 4)
    lying = Liar(epsilon=0.1, delta=1e-9, event=little)
    with pytest.raises(WeakPrivacyError, match="proven to have epsilon 2"):
        policy().check(lying)


def test_a_certificate_is_its_makers_word_and_not_counted() -> None:
    """Collisions of zero rows halve what replace-one costs; a client has not looked at all pairs of
    candidates."""
    asked = ASKED | {"relation": "replace-one"}
    certified = propose(**asked).certified(Collisions(0, 0))
    assert certified.guarantee.epsilon <= 1.0
    with pytest.raises(WeakPrivacyError, match="proven to have epsilon 1.4"):
        policy(relation="replace-one", trust="central").check(certified)
    policy(trust="central").check(certified)  # for zero-out they do not matter


@pytest.mark.promise
@settings(max_examples=25)
@given(
    epsilon=st.floats(0.1, 8.0),
    asked=st.floats(0.1, 8.0),
    relation=st.sampled_from([Relation.ZERO_OUT, Relation.REPLACE_ONE]),
    own=st.sampled_from([Relation.ZERO_OUT, Relation.REPLACE_ONE]),
    participations=st.integers(1, 3),
)
def test_what_is_let_in_is_proven(
    epsilon: float, asked: float, relation: Relation, own: Relation, participations: int
) -> None:
    terms = propose(**(SHARES | {"epsilon": epsilon}), relation=own, participations=participations)
    plain = Event(
        terms.event.mechanism,
        rows=5,
        relation=relation,
        variance=terms.event.variance,
        participations=participations,
        honest_survivors=1,
        total_variation=terms.event.total_variation,
    )
    proven = accounting.epsilon(plain, 1e-6).epsilon
    try:
        policy(epsilon=asked, relation=relation).check(terms)
    except WeakPrivacyError:
        assert proven > asked
    else:
        assert proven <= asked


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0}, "epsilon must be above 0"),
        ({"epsilon": -1.0}, "epsilon must be at least 0"),
        ({"epsilon": float("inf")}, "epsilon must be finite"),
        ({"delta": 1.0}, "delta must be above 0 and below 1"),
        ({"delta": False}, "delta must be a number"),
        ({"relation": "neighbours"}, "relation must be zero-out, replace-one or add-remove"),
        ({"trust": "nobody"}, "trust must be central or distributed"),
        ({"not_private": 1}, "not_private must be true or false"),
    ],
)
def test_policies_have_bounds(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        policy(**wrong)
