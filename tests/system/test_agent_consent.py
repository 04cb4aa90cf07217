"""Standing consent: what a registrar gets without its owner's hand, and what it never gets."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest
from secagg_cohort import stream
from test_cli_agent import REGISTRAR, Owner, days_of, owner  # noqa: F401

from fedtally.agent.settings import FILE
from fedtally.campaign.enrolment import (
    Authority,
    revoke_plans,
    save_revocation,
    save_signature,
    sign_plan,
)
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError

STRANGER = SigningKey(Secret(stream("stranger")(32)))
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
BOUNDS = {
    "registrar": f'"{REGISTRAR.public.hex()}"',
    "purpose": '"a study"',
    "candidates": '["range:1..50"]',
    "epsilon": "8.1",
    "until": "2100-01-31",
}


class Trusting(Owner):
    """An owner with a standing consent."""

    def consent(self, **changed: str) -> None:
        self.write(per_days="7")
        bounds = "\n".join(f"{name} = {value}" for name, value in (BOUNDS | changed).items())
        with (self.folder / FILE).open("a") as file:
            file.write(f"\n[consent]\n{bounds}\n")

    def offer(self, name: str = "days") -> int:
        plan = str(self.place / f"{name}.toml")
        return self.run("accept", plan, "--by-consent", *self.files(name))

    @property
    def shown(self) -> dict[str, Any]:
        assert self.run("show", "--json") == 0
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def trusting(tmp_path, capsys) -> Trusting:
    found = Trusting(tmp_path, capsys)
    found.consent()
    found.plan = found.publish("days", days_of(found.plan, TODAY))
    return found


def test_without_a_consent_nothing_is_taken(trusting: Trusting) -> None:
    trusting.write(per_days="7")
    assert trusting.offer() == 2
    assert "agent.toml has no [consent]" in trusting.err and trusting.shown["accepted"] == []


def test_a_successor_within_the_bounds_needs_no_hand_and_is_told(trusting: Trusting) -> None:
    assert trusting.offer() == 0, trusting.err
    successor = dataclasses.replace(trusting.plan, seed=bytes([9]) * 32)
    successor = trusting.publish("next", successor)
    assert trusting.offer("next") == 0, trusting.err
    plans = {plan["plan"]: plan for plan in trusting.shown["plans"]}
    assert all(plan["period"]["has_room"] for plan in plans.values())
    assert set(plans) == {trusting.plan.fingerprint, successor.fingerprint}
    assert all(plan["by_consent"] == str(TODAY.date()) for plan in plans.values())
    assert trusting.run("show") == 0 and "by consent on" in " ".join(trusting.out.split())


def test_a_plan_that_its_owner_undid_does_not_come_back_by_itself(trusting: Trusting) -> None:
    assert trusting.offer() == 0
    assert trusting.offer() == 0  # a timer that asks again
    shutil.rmtree(trusting.folder / "campaigns" / trusting.plan.fingerprint)
    assert trusting.offer() == 2 and "accept it by hand" in trusting.err
    assert trusting.shown["accepted"] == []
    assert trusting.accept("days") == 0
    assert "by_consent" not in trusting.shown["plans"][0]


def test_what_an_owner_took_by_hand_keeps_its_last_day(trusting: Trusting) -> None:
    plan, until = str(trusting.place / "days.toml"), str(TODAY.date())
    assert trusting.run("accept", plan, "--yes", "--until", until, *trusting.files("days")) == 0
    assert trusting.offer() == 2 and "by hand" in trusting.err
    assert trusting.shown["plans"][0]["last_day"] == until


def test_a_revocation_beats_a_consent(trusting: Trusting) -> None:
    ended = revoke_plans(REGISTRAR, [trusting.plan.fingerprint])
    save_revocation(trusting.place / "ended", ended)
    assert trusting.offer() == 0
    assert trusting.run("accept", "--revocation", str(trusting.place / "ended")) == 0
    assert trusting.shown["plans"][0]["over"] == "its registrar replaced or revoked it"
    assert trusting.offer() == 2 and "replaced or revoked" in trusting.err


def sign(key: SigningKey = REGISTRAR, **said: Any) -> Callable[[Trusting], None]:
    """Return a registrar that signs the plan in another way."""

    def signs(by: Trusting) -> None:
        authority = Authority(
            **{"purpose": "a study", "number": 9, "last_day": date(2100, 1, 31)} | said
        )
        save_signature(by.place / "days.sig", sign_plan(key, by.plan, authority))

    return signs


def change(**changed: Any) -> Callable[[Trusting], None]:
    """Return a registrar that signs another plan."""

    def publishes(by: Trusting) -> None:
        by.plan = by.publish("days", dataclasses.replace(by.plan, **changed))

    return publishes


def louder(by: Trusting) -> None:
    """Publish a plan of which one part costs more."""
    terms = by.plan.privacy
    assert terms is not None
    event = dataclasses.replace(terms.event, variance=0.9 * terms.event.variance)  # type: ignore[operator]
    terms = dataclasses.replace(terms, epsilon=9.0, event=event)
    by.plan = by.publish("days", dataclasses.replace(by.plan, privacy=terms))


@pytest.mark.parametrize(
    ("hostile", "says"),
    [
        (sign(STRANGER), "registrar"),
        (sign(purpose="another study"), "the consent is for the purpose"),
        (sign(last_day=date(2100, 2, 1)), "the consent ends on 2100-01-31"),
        (change(domain=IntegerRange(1, 49).describe()), "other candidates"),
        (change(domain=IntegerRange(0, 49).describe()), "other candidates"),
        (louder, "the consent: this client's policy demands epsilon 8.1"),
        (change(calendar=None, privacy=None), "with a calendar"),
    ],
    ids=["registrar", "purpose", "until", "fewer", "others", "epsilon", "calendar"],
)
def test_nothing_outside_of_a_bound_is_taken(
    trusting: Trusting, hostile: Callable[[Trusting], None], says: str
) -> None:
    hostile(trusting)
    assert trusting.offer() == 2
    assert says in " ".join(trusting.err.split())
    assert trusting.shown["accepted"] == []


def test_the_policy_and_the_record_are_asked_as_ever(trusting: Trusting) -> None:
    trusting.consent()
    text = (trusting.folder / FILE).read_text()
    (trusting.folder / FILE).write_text(text.replace("min_honest = 4", "min_honest = 5"))
    assert trusting.offer() == 2 and "(min_honest)" in trusting.err


@pytest.mark.parametrize(
    ("bound", "value", "says"),
    [
        ("registrar", f'"{STRANGER.public.hex()}"', "must be the registrar of this agent, too"),
        ("purpose", '""', "consent.purpose: must be a text"),
        ("candidates", "[]", "consent.bounds: .*at least one domain"),
        ("candidates", '["open:8"]', "consent.candidates"),
        ("candidates", '["none.txt"]', "consent.candidates"),
        ("epsilon", "0", "consent.bounds: .*above 0"),
        ("epsilon", '"1"', "consent.bounds: .*epsilon must be a number"),
        ("until", '"2100-01-31"', "consent.bounds: .*until must be a day"),
    ],
)
def test_a_bound_that_is_wrong_is_named(
    trusting: Trusting, bound: str, value: str, says: str
) -> None:
    from fedtally.agent.settings import Settings

    trusting.consent(**{bound: value})
    with pytest.raises(InvalidInputError, match=says):
        Settings.load(trusting.folder)


def test_a_consent_names_every_bound(trusting: Trusting) -> None:
    from fedtally.agent.settings import Settings

    for bound in BOUNDS:
        trusting.consent()
        path = trusting.folder / FILE
        before, _, bounds = path.read_text().partition("[consent]")
        left = "\n".join(line for line in bounds.splitlines() if not line.startswith(bound))
        path.write_text(f"{before}[consent]{left}\n")
        with pytest.raises(InvalidInputError, match=f"consent.{bound} is missing"):
            Settings.load(trusting.folder)
