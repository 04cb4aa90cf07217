"""An operator lets a client take part in many plans, so that each Invite costs its agent more.

Attack 8: the whole record is composed anew at each Invite and at each inbox.
"""

from __future__ import annotations

import hashlib

import pytest

from fedtally.privacy.budget import Cap, Charge, OverspentError, check_cap
from fedtally.privacy.events import Event
from fedtally.privacy.laws.skellam import Skellam


def _charge(number: int) -> Charge:
    event = Event(
        "skellam",
        5,
        "zero-out",
        variance=5 * 4000.0**2 * (1 + number / 977),
        honest_survivors=5 + number,
        trust="distributed",
    )
    return Charge("anybody", hashlib.sha256(str(number).encode()).hexdigest(), 0, event)


@pytest.mark.parametrize("epsilon", [20.0, 1e-3])  # the last plan is taken, or refused
def test_a_plan_more_in_the_record_costs_an_invite_one_event_more(
    monkeypatch: pytest.MonkeyPatch, epsilon: float
) -> None:
    looked = 0
    square = Skellam.square

    def counted(law: Skellam, event: Event) -> float:
        nonlocal looked
        looked += 1
        return square(law, event)

    monkeypatch.setattr(Skellam, "square", counted)
    costs = []
    for plans in (100, 200):
        looked, charges = 0, [_charge(number) for number in range(plans)]
        if epsilon > 1:
            check_cap(Cap(epsilon, 1e-6), charges[:-1], charges[-1])
        else:
            with pytest.raises(OverspentError, match="would take everything in this record"):
                check_cap(Cap(epsilon, 1e-6), charges[:-1], charges[-1])
        costs.append(looked)
    assert costs[0] >= 100  # each plan counts
    assert costs[1] <= 2 * costs[0] <= 2 * 10 * 100  # and a bounded number of times
