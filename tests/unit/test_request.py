"""A request is resolved once: what it means, and what does not go together."""

from dataclasses import FrozenInstanceError, fields

import pytest

import fedtally
from fedtally.errors import InvalidInputError
from fedtally.plan.request import Request
from fedtally.privacy.events import NoiseBy, Relation, Trust
from fedtally.secagg.config import SecureSum
from fedtally.simulation.simulation import OPTIONS, Simulation, Sizing
from fedtally.sketch import Schedule

SIMULATED = {
    "seed",
    "evaluate",
    "outside",
    "memory",
    "top",
    "dropout",
    "ledger",
    "not_private",
    "sizing",
    "pilot_share",
    "people",
    "silos_per_person",
    "allow_rare_names",
    "dictionary",
    "name_length",
    "screen",
    "until_known",
    "min_clients",
}


def test_what_only_a_simulation_has_is_apart() -> None:
    assert SIMULATED.isdisjoint(each.name for each in fields(Request))
    assert set(OPTIONS) == SIMULATED | {each.name for each in fields(Request)}


def test_every_default_is_a_fact() -> None:
    spec = Request().resolve()
    assert (spec.max_items, spec.accounting.population, spec.privacy, spec.noise_by) == (
        1,
        "clients",
        None,
        None,
    )
    assert not spec.is_private and spec.summation.method is SecureSum.IDEAL
    with pytest.raises(FrozenInstanceError):
        spec.size.rows = 3  # type: ignore[misc]


@pytest.mark.parametrize("method", list(SecureSum))
@pytest.mark.parametrize("trust", [None, *Trust])
def test_trust_and_protocol_decide_who_adds_the_noise(
    method: SecureSum, trust: Trust | None
) -> None:
    """Whom nobody need trust, who could take off their own noise, is told by the protocol."""
    spec = Request(epsilon=1.0, secure_sum=method, trust=trust).resolve()
    is_central = trust is Trust.CENTRAL or (trust is None and method is SecureSum.IDEAL)
    among = {
        SecureSum.IDEAL: NoiseBy.CLIENTS,
        SecureSum.SECAGG: NoiseBy.CLIENTS,
        SecureSum.TWO_SERVER: NoiseBy.SERVERS,
    }
    assert spec.noise_by is (NoiseBy.AGGREGATOR if is_central else among[method])
    assert spec.privacy is not None and spec.privacy.trust is (
        Trust.CENTRAL if is_central else Trust.DISTRIBUTED
    )


def test_a_plan_says_what_it_says() -> None:
    plan = fedtally.estimate(
        [1, 2, 3] * 9,
        domain="range:1..9",
        epsilon=1.0,
        rows=3,
        width=8,
        neighbours="replace-one",
        population="phones",
    ).plan
    spec = Request(plan=plan).resolve()
    assert (spec.size.rows, spec.max_items, spec.accounting.population) == (3, 1, "phones")
    assert (
        spec.relation is Relation.REPLACE_ONE
        and spec.privacy is None
        and spec.is_private
        and not spec.accounting.is_not_private
    )
    with pytest.raises(InvalidInputError, match="a plan already says epsilon="):
        Request(plan=plan, epsilon=1.0).resolve()


def test_of_a_pilot_no_certificate_is_asked_for() -> None:
    asked = Request(
        epsilon=1.0, neighbours="replace-one", certify=True, max_rounds=3, tau=0.1
    ).resolve()
    spec = asked.for_pilot(rows=15, width=None, max_bytes=1000, num_rounds=1)
    assert (
        spec.privacy is not None and not spec.privacy.certify and spec.accounting.max_rounds is None
    )
    assert (spec.tau, spec.size.rows, spec.size.schedule, spec.size.num_rounds) == (
        None,
        15,
        Schedule.parse("shared"),
        1,
    )


def test_one_delta_for_pilot_and_campaign() -> None:
    spec = Request(epsilon=1.0).resolve().with_delta(10**8)
    assert spec.privacy is not None and spec.privacy.delta == 1e-9
    assert spec.with_delta(10) is spec
    hidden = Request(epsilon=1.0, neighbours="add-remove", max_clients=10).resolve()
    assert hidden.with_delta(10**8) is hidden  # the number of clients is private


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"secure_sum": "blind"}, "secure_sum must be ideal, secagg or two-server, got 'blind'"),
        (
            {"sizing": "guess", "tau": 0.1},
            "sizing must be model, two-phase, minimax, linear or oracle, got 'guess'",
        ),
        ({"max_rounds": 0, "epsilon": 1.0}, "max_rounds must be at least 1"),
        ({"evaluate": 1}, "evaluate must be true or false"),
        ({"memory": 0}, "memory must be at least 1"),
    ],
)
def test_values_out_of_bounds(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Simulation.of(**options)


@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({"sizing": "minimax"}, "sizing", "goes with tau="),
        ({"pilot_share": 0.2}, "pilot_share", "goes with tau="),
        ({"not_private": True}, "not_private", "goes with epsilon="),
        ({"ledger": "books.db"}, "ledger", "goes with epsilon="),
        ({"epsilon": 1.0, "seed": 5}, "seed", "can take the noise off"),
        ({"epsilon": 1.0, "evaluate": True}, "evaluate", "the truth is not private"),
        ({"epsilon": 1.0, "tau": 0.1, "sizing": "oracle"}, "sizing", "it reads the truth"),
        (
            {"epsilon": 1.0, "not_private": True, "ledger": "books.db"},
            "ledger",
            "nothing of such a run is charged",
        ),
    ],
)
def test_what_does_not_go_together(options: dict[str, object], option: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        Simulation.of(**options)
    assert caught.value.option == option


def test_which_sizings_have_a_pilot() -> None:
    assert [one for one in Sizing if one.has_pilot] == [Sizing.MODEL, Sizing.TWO_PHASE]
    assert Simulation.of(tau=0.1).pilots and not Simulation.of(tau=0.1, sizing="linear").pilots
    assert not Simulation.of().pilots
