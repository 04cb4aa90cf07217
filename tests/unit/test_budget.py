"""The rule of the budget: what may be spent, and how often a client may take part."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.errors import InvalidInputError
from fedtally.privacy import accounting
from fedtally.privacy.budget import (
    AlreadySpentError,
    Cap,
    Charge,
    Grant,
    OverspentError,
    appearance,
    check_cap,
    check_participation,
    check_spend,
    checked_name,
)
from fedtally.privacy.events import Event

EVENT = Event("rounded-gaussian", 16, "zero-out", variance=1e5, participations=3)
SHARES = Event("skellam", 5, "zero-out", variance=2e5, honest_survivors=90, participations=2)
GRANT = Grant("phones", 0.25, 1e-6)


def charge(
    plan: str = "a", release: int = 0, event: Event = EVENT, population: str = "phones"
) -> Charge:
    return Charge(population, plan, release, event)


def test_a_campaign_is_charged_once_and_in_full() -> None:
    first = check_spend(GRANT, [], charge())
    assert first == accounting.epsilon(EVENT, 1e-6)  # of 3 participations, with the first round
    assert check_spend(GRANT, [charge()], charge(release=1)) is None
    assert all(
        check_spend(GRANT, [charge(release=r) for r in range(n)], charge(release=n)) is None
        for n in range(1, 7)
    )


def test_campaigns_compose() -> None:
    both = check_spend(GRANT, [charge()], charge("b", event=SHARES))
    assert both == accounting.epsilon([EVENT, SHARES], 1e-6, adaptive=True)
    assert both is not None
    assert both.trust == "central and distributed"


def test_the_grant_is_reached_and_not_passed() -> None:
    exact = accounting.epsilon([EVENT, EVENT], 1e-6, adaptive=True).epsilon
    assert check_spend(Grant("phones", exact, 1e-6), [charge()], charge("b")) is not None
    with pytest.raises(
        OverspentError, match=r"plan b would take population 'phones' to epsilon .* was granted"
    ):
        check_spend(Grant("phones", math.nextafter(exact, 0), 1e-6), [charge()], charge("b"))


def test_of_two_populations_each_pays_for_itself() -> None:
    tablets = charge("b", population="tablets")
    assert check_spend(GRANT, [tablets], charge()) == accounting.epsilon(EVENT, 1e-6)
    with pytest.raises(InvalidInputError, match="is of population 'phones', not of 'tablets'"):
        check_spend(GRANT, [], tablets)


def test_a_smaller_grant_stops_campaigns_but_no_rounds_of_those_reserved() -> None:
    small = Grant("phones", 1e-3, 1e-6)
    assert check_spend(small, [charge()], charge(release=1)) is None
    with pytest.raises(OverspentError):
        check_spend(small, [], charge())


@pytest.mark.parametrize("check", [lambda *args: check_spend(GRANT, *args), check_participation])
def test_a_round_is_spent_once_and_a_plan_is_one_thing(check) -> None:
    with pytest.raises(AlreadySpentError, match="release 0 of plan a was reserved before"):
        check([charge()], charge())
    with pytest.raises(InvalidInputError, match="charged with another event"):
        check([charge()], charge(release=1, event=replace(EVENT, variance=2e5)))
    with pytest.raises(InvalidInputError, match="charged to population 'tablets'"):
        check([charge(population="tablets")], charge(release=1))


@pytest.mark.parametrize("name", ["cafe\u0301", "\u212b", "\u1100\u1161", "d\u0307\u0323"])
def test_a_name_has_one_encoding(name: str) -> None:
    composed = unicodedata.normalize("NFC", name)
    assert composed != name
    Grant(composed, 1, 1e-6)
    for make in (
        lambda: Grant(name, 1, 1e-6),
        lambda: charge(population=name),
        lambda: charge(plan=name),
    ):
        with pytest.raises(InvalidInputError, match="must be in Unicode form NFC") as caught:
            make()
        assert ascii(name) in str(caught.value) and ascii(composed) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("phones", "PHONES"),
        ("phones", "\u0440hon\u0435s"),  # Cyrillic er and ie
        ("PHONES", "\u03a1\u0397\u039f\u039d\u0395S"),  # Greek capitals
        ("phones", "\uff50\uff48\uff4f\uff4e\uff45\uff53"),  # full width
        ("phones eu", "phones_eu"),
        ("phones eu", "phones\u2010\u2010eu"),
        ("phones", "pho\ufe0fnes"),  # a variation selector: without ink
        ("phones", "pho\u3164nes"),  # a Hangul filler: likewise
        ("phones1", "phonesl"),
        ("phones0", "phoneso"),
        ("stra\xdfe", "STRASSE"),
        ("z\xfcrich", "zurich"),
    ],
)
def test_names_that_look_alike(name: str, alike: str) -> None:
    assert checked_name(population=name) != checked_name(population=alike)
    assert appearance(name) == appearance(alike)


def test_names_that_do_not_look_alike() -> None:
    names = [
        "phones",
        "phones-2",
        "phones-3",
        "tablets",
        "2024-01-11",
        "2024-11-01",
        "phones-eu",
        "phones-us",
    ]
    assert len({appearance(name) for name in names}) == len(names)


def test_several_campaigns_spend_no_more_than_they_compose_up_to() -> None:
    large = Event("rounded-gaussian", 1, "zero-out", variance=0.12)
    grant = Grant("phones", 100, 1e-6)
    alone = check_spend(grant, [], charge(event=large))
    assert alone is not None and 15 < alone.epsilon < accounting.MOST_ADAPTIVE
    with pytest.raises(
        OverspentError, match="epsilon 100 was granted, of which several campaigns may spend 25"
    ):
        check_spend(grant, [charge(event=large)], charge("b", event=large))
    with pytest.raises(OverspentError, match="100, of which several campaigns may spend 25"):
        check_cap(Cap(100, 1e-6), [charge(event=large)], charge("b", event=large))


def test_two_relations_do_not_compose() -> None:
    with pytest.raises(InvalidInputError, match="several relations do not compose"):
        check_spend(GRANT, [charge()], charge("b", event=replace(EVENT, relation="replace-one")))


def test_participations_are_counted_by_plan() -> None:
    taken = [charge(release=r) for r in range(3)]
    for before in range(3):
        check_participation(taken[:before], charge(release=5))
    with pytest.raises(OverspentError, match="took part in 3 rounds of plan a, of 3"):
        check_participation(taken, charge(release=5))
    check_participation(taken, charge("b"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Grant("", 1, 1e-6), "population must be"),
        (lambda: Grant("a\x1bb", 1, 1e-6), "population must be"),
        (lambda: Grant(" a", 1, 1e-6), "population must be"),
        (lambda: Grant("x" * 201, 1, 1e-6), "population must be"),
        (lambda: Grant("a", 0, 1e-6), "epsilon above 0"),
        (lambda: Grant("a", 1001, 1e-6), "epsilon must be at most"),
        (lambda: Grant("a", math.nan, 1e-6), "epsilon must be finite"),
        (lambda: Grant("a", 1, 1e-16), "delta from 1e-15 to below 1, or 0 for geometric noise"),
        (lambda: Grant("a", 1, -1e-9), "delta must be at least 0"),
        (lambda: Grant("a", 1, 1), "delta from 1e-15 to below 1"),
        (lambda: charge(plan=""), "plan must be"),
        (lambda: charge(release=-1), "release must be at least 0"),
        (lambda: charge(release=2**31), "release must be at most"),
        (lambda: charge(event=replace(EVENT, variance=None)), "no variance yet"),
        (lambda: charge(event="an event"), "event must be an Event"),
    ],
)
def test_bad_values_are_refused(make, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        make()


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 4), st.sampled_from([1e5, 4e5])),
        max_size=25,
    )
)
def test_whatever_is_asked_what_was_let_through_is_within_the_grant(
    asked: Sequence[tuple[str, int, float]],
) -> None:
    grant = Grant("phones", 0.125, 1e-6)  # two campaigns of the larger cost
    let: list[Charge] = []
    refused = 0
    for plan, round, variance in asked:
        new = charge(plan, round, replace(EVENT, variance=variance))
        try:
            check_spend(grant, let, new)
        except InvalidInputError:
            refused += 1
        else:
            let.append(new)
    assert refused + len(let) == len(asked)
    assert len({(one.plan, one.release) for one in let}) == len(let)
    assert len({(one.plan, one.event) for one in let}) == len({one.plan for one in let})
    events = list({one.plan: one.event for one in let}.values())
    assert (
        not events
        or accounting.Composition.of(events, grant.delta).guarantee.epsilon <= grant.epsilon
    )
