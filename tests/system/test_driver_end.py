"""A campaign of several rounds that ends as soon as its error is known, whoever dies meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from campaign_world import N, World, plan_of

from fedtally.campaign.driver import Driver
from fedtally.campaign.screening import PoisonedError
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan, Target
from fedtally.sketch import CountSketch

ROUNDS, ENOUGH = 5, 2
pytestmark = pytest.mark.usefixtures("no_sync")


def ending(trust: str | None = None, cohorts: int = 1) -> Plan:
    target = Target(0.1, 0.1, "joint", until_known=1)
    plan = plan_of(trust=trust, rounds=ROUNDS, cohorts=cohorts)
    return dataclasses.replace(plan, schedule="hybrid", target=target)


class Judge:
    """Knows the error after some rounds, and notes what it was shown."""

    def __init__(self, enough: int = ENOUGH) -> None:
        self.enough = enough
        self.shown: list[list[tuple[int, int]]] = []

    def __call__(self, sketches: Sequence[CountSketch]) -> bool:
        self.shown.append([(sketch.round, sketch.num_clients) for sketch in sketches])
        return len(sketches) >= self.enough


def world_of(folder: Path, judge: Judge, people: int = ROUNDS * N, **more: Any) -> World:
    return World(folder, more.pop("plan", ending()), people=people, is_known=judge, **more)


def test_the_rounds_after_the_last_one_do_not_take_place(tmp_path: Path) -> None:
    judge = Judge()
    world = world_of(tmp_path, judge).run()
    assert world.driver.is_complete
    assert {round: n for round, (n, _) in world.landed().items()} == {0: N, 1: N}
    world.check(everybody=False)
    asked = [number for number, spent in world.spent.items() if spent]
    assert len(asked) == ENOUGH * N  # the others are asked for nothing
    # once after each round: a look takes seconds
    assert judge.shown == [[(0, N)], [(0, N), (1, N)]]
    assert [sketch.round for sketch in world.driver.release()] == [0, 1]


def test_a_round_follows_the_other_and_is_judged_when_it_is_whole(tmp_path: Path) -> None:
    """Two cohorts a round: no look after the first one, and no other round opens beside it."""
    judge = Judge()
    world = world_of(tmp_path, judge, 5 * N, plan=ending(cohorts=2)).run()
    assert world.driver.is_complete
    assert {round: n for round, (n, _) in world.landed().items()} == {0: 2 * N, 1: 2 * N}
    assert judge.shown == [[(0, 2 * N)], [(0, 2 * N), (1, 2 * N)]]


def test_half_a_round_is_not_judged(tmp_path: Path) -> None:
    """Clients of one cohort are there: the round may have another one."""
    judge = Judge(1)
    world = world_of(tmp_path, judge, N, plan=ending(cohorts=2)).run()
    assert {round: n for round, (n, _) in world.landed().items()} == {0: N}
    assert not judge.shown and not world.driver.is_complete


def test_an_error_that_is_never_known_takes_every_round(tmp_path: Path) -> None:
    world = world_of(tmp_path, Judge(ROUNDS + 1)).run(4000)
    assert world.driver.is_complete
    assert sorted(world.landed()) == list(range(ROUNDS))


@pytest.mark.parametrize("step", [3, 20, 60, 90, 120, 150, 180])
def test_who_dies_ends_with_the_same_round(tmp_path: Path, step: int) -> None:
    world = world_of(tmp_path, Judge(), stops=frozenset({step})).run()
    assert world.processes == 2 and world.driver.is_complete
    assert sorted(world.landed()) == [0, 1]
    world.check(everybody=False)


def test_a_process_that_begins_after_the_end_asks_nobody(tmp_path: Path) -> None:
    world = world_of(tmp_path, Judge()).run()
    frames = len(world.receipts)
    world.driver = world.start()
    world.now += 60
    world.run(600)
    assert world.driver.is_complete and len(world.receipts) == frames


def test_with_noise_that_clients_add_every_look_is_at_released_sums(tmp_path: Path) -> None:
    plan = ending("distributed")
    assert plan.stopping is not None and plan.stopping.least_rounds == 3
    world = world_of(tmp_path, Judge(3), plan=plan).run(3000)
    assert sorted(world.landed()) == [0, 1, 2]
    assert world.ledger is not None
    # what was charged is one round of a client, whichever: nothing is given back for it
    assert len(world.ledger.reserved(plan.fingerprint)) == 3


def test_a_plan_that_ends_early_needs_who_knows(tmp_path: Path) -> None:
    world = world_of(tmp_path, Judge())
    with pytest.raises(InvalidInputError, match="give `is_known`"):
        Driver(world.plan, world.driver._store, world.driver._keys, random=bytes)


def test_a_plan_that_goes_on_is_not_judged(tmp_path: Path) -> None:
    judge = Judge(1)
    world = World(tmp_path, plan_of(rounds=2), people=2 * N, is_known=judge).run()
    assert sorted(world.landed()) == [0, 1] and not judge.shown


def test_the_last_round_is_no_early_end_though_one_before_it_is_missing(tmp_path: Path) -> None:
    """An answer said that its rule had ended a campaign whose days were over, one without a sum."""
    judge = Judge(ROUNDS)
    world = world_of(tmp_path, judge).run(4000)
    assert sorted(world.landed()) == list(range(ROUNDS))
    del world.driver._landed[2]  # as if nobody had come in time
    assert not world.driver.has_enough()
    assert [len(shown) for shown in judge.shown] == [1, 2, 3, 4]  # a last look tells nothing


def test_a_round_that_screening_refuses_ends_no_run(tmp_path: Path) -> None:
    """A look at it was an error of the driver, which came again in each process."""
    world = world_of(tmp_path, Judge(3))
    so_far, looks = world.driver._server.so_far, []

    def screened() -> list[CountSketch]:
        looks.append(len(so_far()))
        if looks[-1] == 1:
            raise PoisonedError("screening refused the 1 round that landed")
        return so_far()

    world.driver._server.so_far = screened  # type: ignore[method-assign]
    assert sorted(world.run().landed()) == [0, 1, 2]
    assert looks == [1, 2, 3]
