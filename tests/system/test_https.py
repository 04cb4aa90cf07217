"""Campaigns over HTTPS, in one process and by a clock that jumps: nothing is lost on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from campaign_world import World, plan_of, small_plan

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from https_world import HttpsWorld, run

pytestmark = pytest.mark.usefixtures("no_sync")
ASKED = [(a, t) for a in ("semi-honest", "active") for t in (None, "distributed")]


@pytest.mark.parametrize(("adversary", "trust"), ASKED)
def test_a_campaign_lands(tmp_path: Path, adversary: str, trust: str | None) -> None:
    world = World(tmp_path, plan_of(adversary, trust))
    cloud = HttpsWorld(world)
    run(cloud.run())
    world.check()


@pytest.mark.parametrize(("adversary", "trust"), ASKED)
def test_a_server_that_dies_at_any_call_of_its_store_loses_nobody(
    tmp_path: Path, adversary: str, trust: str | None
) -> None:
    """Before and after each call: the next process lands all, and nobody stops asking."""
    plan = small_plan(adversary, trust)
    clients = plan.num_clients
    (tmp_path / "none").mkdir()
    whole = World(tmp_path / "none", plan, clients)
    run(HttpsWorld(whole).run())
    steps = len(whole.log)
    assert steps > 20
    for stop in range(1, steps + 1):
        place = tmp_path / str(stop)
        place.mkdir()
        world = World(place, plan, clients, stops=frozenset({stop}))
        cloud = HttpsWorld(world)
        run(cloud.run())
        assert world.processes > 1, stop
        world.check()
        shutil.rmtree(place)
