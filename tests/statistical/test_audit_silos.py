"""The audit of campaigns of silos: sound ones pass it, and each planted error is seen.

False alarms and misses are those of `test_audit_engine`: an audit fails once in a million where
nothing is wrong, and with 12,000 counters of a release noise 10 % too small is 8 standard errors
below what is allowed for. A crowd that moves a release by 10 standard deviations too much is
missed with a probability far below 1e-6.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.design import Design
from fedtally.plan.request import Request
from fedtally.plan.silos import Silos
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.mechanism import Noise
from fedtally.simulation import round_sums, row_counts
from fedtally.studies.audit import Audit, AuditResult, run

CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "secagg": (6, 1, {"secure_sum": "secagg"}),
    "secagg, two silos": (6, 2, {"secure_sum": "secagg", "max_items": 4}),
    "shares": (6, 1, {"trust": "distributed"}),
    "central": (6, 2, {}),
    "central, several items": (6, 1, {"max_items": 4}),
    "shares, drawn rounds": (300, 1, {"trust": "distributed", "num_rounds": 2}),
}


@cache
def planned(name: str) -> Plan:
    silos, each, asked = CASES[name]
    spec = Request(**{"epsilon": 2.0, "secure_sum": "ideal", **asked}).resolve(
        silos=Silos(2000, each)
    )
    design = Design.for_fleet(spec, IntegerRange(1, 50), silos, bytes(32))
    return design.with_size(design.example, 3, 320).plan()


def audited(name: str, **changed: Any) -> AuditResult:
    return run(Audit(planned(name), **changed))


@pytest.mark.promise
@pytest.mark.parametrize("name", CASES)
def test_what_silos_release_has_the_noise_of_their_plan(name: str) -> None:
    found = audited(name)
    assert found.passed, found.failures
    assert found.detectable is not None and found.detectable < 0.1
    each = CASES[name][1]
    if "drawn" in name:  # nobody knows who is in which release
        assert found.detection is None and not found.bounds
        return
    assert "silos" in found.bounds and found.clients == CASES[name][0]
    assert found.detection is not None
    # one person as planned, in all its silos, is as far as the noise allows
    assert found.detection.distance <= found.detection.sensitivity + 1e-9
    if planned(name).max_items == 1:
        assert found.detection.distance == pytest.approx(2 * each)


@pytest.mark.promise
def test_silos_that_drop_out_take_their_people_along() -> None:
    spec = Request(epsilon=2.0, secure_sum="secagg", max_dropout=0.2).resolve(silos=Silos(2000))
    design = Design.for_fleet(spec, IntegerRange(1, 50), 10, bytes(32))
    found = run(Audit(design.with_size(design.example, 3, 320).plan(), dropout=0.1, campaigns=10))
    assert found.passed, found.failures


@pytest.mark.promise
@pytest.mark.parametrize("name", ["shares", "central"])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_tenth_of_the_noise_is_seen(
    name: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Noise.draw

    def scaled(self: Noise, key: Any, size: int, constant_time: bool = False) -> Any:
        return np.rint(draw(self, key, size, constant_time) * factor).astype(np.int64)

    monkeypatch.setattr(Noise, "draw", scaled)
    assert any("too small or too large" in failure for failure in audited(name).failures)


@pytest.mark.promise
def test_shares_for_all_silos_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six silos share the noise, of which four are honest and sure to stay."""
    share, honest = PrivacyConfig.share, planned("shares").privacy.event.honest_survivors  # type: ignore[union-attr]
    assert honest is not None and honest < 6
    monkeypatch.setattr(
        PrivacyConfig, "share", lambda self, clients=1: share(self, max(1, clients * honest // 6))
    )
    assert any("too small or too large" in failure for failure in audited("shares").failures)


@pytest.mark.promise
@pytest.mark.parametrize("name", ["shares", "central"])
def test_a_number_of_people_without_noise_is_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, size_of_vector = Noise.draw, planned(name).vector_length

    def but_the_last(self: Noise, key: Any, size: int, constant_time: bool = False) -> Any:
        found = draw(self, key, size, constant_time)
        found[size_of_vector - 1 :] = 0
        return found

    monkeypatch.setattr(Noise, "draw", but_the_last)
    failures = audited(name).failures
    assert any("number of people" in failure for failure in failures), failures


def test_people_who_are_not_clipped_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_sums, "clip_rounds", lambda plan, rounds, *_: rounds)
    failures = audited("central, several items", campaigns=4).failures
    assert any("hold too much (clip)" in failure for failure in failures), failures


def test_people_of_too_many_items_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = row_counts.bound_clients

    def unbounded(rows: Any, max_items: int, *rest: Any, **named: Any) -> Any:
        return bound(rows, 50, *rest, **named)

    monkeypatch.setattr(row_counts, "bound_clients", unbounded)
    failures = audited("central", campaigns=4).failures
    assert any("hold too much (items)" in failure for failure in failures), failures


@pytest.mark.parametrize("name", ["shares", "central"])
def test_people_in_too_many_silos_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = row_counts.bound_clients

    def everywhere(rows: Any, items: int, keys: Any, rounds: Any, most: Any, **named: Any) -> Any:
        return bound(rows, items, keys, rounds, None, **named)

    monkeypatch.setattr(row_counts, "bound_clients", everywhere)
    failures = audited(name, campaigns=4).failures
    assert any("hold too much (silos)" in failure for failure in failures), failures


def test_silos_that_no_audit_can_fill() -> None:
    spec = Request(epsilon=0.1).resolve(silos=Silos(5))
    design = Design.for_fleet(spec, IntegerRange(1, 50), 6, bytes(32))
    with pytest.raises(InvalidInputError, match="silos of 5 people are too small for an audit"):
        run(Audit(design.with_size(design.example, 3, 320).plan()))
