"""The driver and its store between two processes, copies of the file, and a ledger elsewhere.

`test_driver_order.py` says by a model which order holds. Here the driver itself runs, and something
happens to it at each call of the store and of the ledger, and at each frame: one a campaign.
`tools/fuzz_driver.py` runs random schedules of all of this.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from campaign_world import DEADLINES, Crash, World, small_plan

from fedtally.errors import OvertakenError
from fedtally.plan import Plan
from fedtally.secagg import wire

pytestmark = pytest.mark.usefixtures("no_sync")
PLANS = pytest.mark.parametrize(
    ("adversary", "trust"), [("semi-honest", None), ("active", "distributed")]
)
ON_POSTGRES = pytest.mark.parametrize(
    "places", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)
ON_POSTGRES = pytest.mark.parametrize(
    "places", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)


def interrupted(
    folder: Path, plan: Plan, act: Callable[[World], None], first: int = 1, every: int = 1
) -> Iterator[World]:
    """Yield the campaigns to whose steps something happens, one step a campaign."""
    for stop in count(first, every):
        place = folder / str(stop)
        place.mkdir()
        world = World(place, plan, plan.num_clients)
        at = world.steps + stop

        def step(_: str, world: World = world, at: int = at) -> None:
            if world.steps == at:
                world.on_step = None
                world.log.append("--- here")
                act(world)

        world.on_step = step
        world.run()
        if world.on_step is step:  # the campaign was over before this step
            assert stop > 50
            return
        world.on_step = None
        yield world
        shutil.rmtree(place)


@pytest.mark.promise
@PLANS
@pytest.mark.parametrize("passes", [1, 3, None])
def test_a_process_may_sleep_at_any_step_while_another_one_goes_on(
    tmp_path: Path, adversary: str, trust: str | None, passes: int | None
) -> None:
    """The second one goes on for a while, or to the end; then the first one wakes and goes on."""
    sleepers: list[Any] = []
    landed = 0

    def sleep(world: World) -> None:
        sleepers.append(world.driver)
        world.driver = world.start()
        world.run(passes=passes)

    # Of three, each test takes another third of the steps.
    first = 1 + (passes or 2) % 3
    for world in interrupted(tmp_path, small_plan(adversary, trust), sleep, first, 3):
        old = sleepers.pop()
        for person in world.persons:  # it may speak as long as it has written nothing
            frame = old.next(person.number, world.now)
            if frame is not None:
                world.note(wire.parse(frame), person.number)
        try:
            old.tick(world.now + DEADLINES.session)
        except OvertakenError:
            assert all(old.next(person.number, world.now) is None for person in world.persons)
        # A frame that reaches a client after the next one ends the client's side of the session.
        world.check(everybody=not world.aborted())
        landed += not world.aborted()
    assert landed >= 10


@pytest.mark.promise
@PLANS
@pytest.mark.parametrize("later", [7, 40])
def test_a_copy_of_any_step_that_is_put_back_opens_nothing_twice(
    tmp_path: Path, adversary: str, trust: str | None, later: int
) -> None:
    """It comes back some steps later, when the process dies."""

    def copy(world: World) -> None:
        kept = world.folder / "copy.db"
        shutil.copy(world.folder / "campaign.db", kept)
        at = world.steps + later

        def put_back(_: str) -> None:
            if world.steps == at:
                world.on_step = None
                world.put_back(kept)
                raise Crash

        world.on_step = put_back

    for world in interrupted(tmp_path, small_plan(adversary, trust), copy, 1 + later % 3, 3):
        world.check(everybody=False, copies=True)


@pytest.mark.promise
@ON_POSTGRES
def test_with_the_ledger_on_postgresql_a_crash_at_any_call_loses_nothing(
    tmp_path: Path, places: Callable[[], str]
) -> None:
    """The calls are those of the store and of the ledger; `test_driver.py` has the frames too."""
    plan = small_plan("semi-honest", "distributed")
    (tmp_path / "whole").mkdir()
    whole = World(tmp_path / "whole", plan, plan.num_clients, ledger_at=places())
    begun = whole.steps
    log = whole.run().log[begun:]
    calls = [at for at, what in enumerate(log, 1) if what.startswith(("before", "after"))]
    assert len(calls) >= 36
    for stop in calls:
        place = tmp_path / str(stop)
        place.mkdir()
        world = World(place, plan, plan.num_clients, ledger_at=places())
        world.stops = frozenset({world.steps + stop})
        world.run()
        assert world.processes == 2
        world.check()
        shutil.rmtree(place)


@pytest.mark.promise
@ON_POSTGRES
def test_with_the_ledger_on_postgresql_a_release_leaves_once(
    tmp_path: Path, places: Callable[[], str]
) -> None:
    """Whatever step of it is the last of the process, all later ones release the same."""
    plan = small_plan("active", "central")
    for stop in count(1):
        place = tmp_path / str(stop)
        place.mkdir()
        world = World(place, plan, plan.num_clients, ledger_at=places()).run()
        world.driver = world.start()
        world.driver.tick(world.now)
        stops = world.stops = frozenset({world.steps + stop})
        try:
            released = world.driver.release()
        except Crash:
            released = []
        before = [sketch.to_bytes() for sketch in released]
        landings = world.ledger.landings(plan.fingerprint)
        world.driver = world.start()
        world.driver.tick(world.now)
        after = [sketch.to_bytes() for sketch in world.driver.release()]
        assert before in ([], after)
        assert landings in ([], world.ledger.landings(plan.fingerprint))
        assert world.claim().sums(plan) == []
        if world.steps < min(stops) or before:
            assert stop > 5
            return
