"""Two servers over HTTPS, in one process: what clients hear, and what is on disk when they do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from aggregate_world import SIDES, World

from fedtally.campaign.transports.https.resource import STATE_TYPE, Release, read_state

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_report_is_on_disk_before_it_is_acknowledged(world: World) -> None:
    async def reports() -> None:
        for side in SIDES:
            state = await world.get(side)
            assert (state.status_code, state.headers["content-type"]) == (200, STATE_TYPE)
            assert read_state(state.content, side) is Release.OPEN
        assert await world.send(0, 1, 2, 3) == [201] * 4
        for side in SIDES:
            world.start(side)  # nothing is left but the disk
            assert len(world.processes[side].releases[0].server) == 4
        assert await world.send(0, 1, 2, 3) == [201] * 4  # copies

    asyncio.run(reports())


def test_a_release_lands_and_nothing_of_its_reports_is_left(world: World) -> None:
    async def lands() -> None:
        assert await world.send(0, 1, 2, 3, 4) == [201] * 5
        world.close()
        tending = await world.land()
        assert tending.has_told
        for side in SIDES:
            assert read_state((await world.get(side)).content, side) is Release.CLOSED
        assert await world.send(0, 1) == [201] * 2  # copies of what is in the sum
        assert await world.send(5) == [410]

    asyncio.run(lands())
    [sketch] = world.result().sketches
    assert (sketch.num_clients, sketch.vector.tolist()) == (5, world.expected(0, 1, 2, 3, 4))
    for side in SIDES:
        content = (world.folders[side].path / "reports.db").read_bytes()
        assert getattr(world.report(0), side) not in content
