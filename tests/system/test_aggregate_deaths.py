"""Both servers die before and after each of their writes, while clients and the leader ask.

All of it is one process. A server that died touches its disk no more, and a new one goes on. Every
report is put twice at once, as a proxy does that tries again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import aggregate_world
import httpx
from aggregate_world import ALLOWED, NOW, SIDES, World, made
from secagg_cohort import stream

import fedtally
from fedtally.campaign.aggregate_folder import AggregateFolder
from fedtally.campaign.closings import Closings
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.server import FrequencyServer
from fedtally.campaign.transports.https.resource import Release, read_state
from fedtally.secagg.two_server import Report, Side
from fedtally.store import Ledger, claims, database

pytestmark = pytest.mark.usefixtures("no_sync")
PEOPLE = range(4)


class Death(BaseException):
    """The end of a process: nothing in the package catches it."""


class Deaths:
    """Kill the server whose moment it is.

    There is a moment before and after each commit, each mark, and each of the leader's other files.

    Attributes:
        at: the moment that kills; 0: none does.
        names: the moments so far.
        killed: called with the server that dies.
    """

    def __init__(self, patch: pytest.MonkeyPatch, at: int) -> None:
        self.at, self.names = at, list[str]()
        self.killed: Callable[[Side], None] = lambda side: None
        self._lock, self._known = threading.Lock(), list[tuple[Side, Any]]()
        self._dead: list[Any] = []
        begun, mark = database.Database._sqlite, claims.write_mark

        @contextmanager
        def watched(file: Any, *, write: bool) -> Iterator[Any]:
            side = _side_of(file.name)
            with self._lock:
                self._known.append((side, file))
            with begun(file, write=write) as connection:
                yield connection
                self.moment(side, "before a commit", file, counts=write)
            self.moment(side, "after a commit", file, counts=write)

        def marked(place: Path, *given: Any) -> None:
            mark(place, *given)
            self.moment(_side_of(place), "after a mark")

        patch.setattr(database.Database, "_sqlite", watched)
        patch.setattr(claims, "write_mark", marked)
        for kind, name in ((Closings, "write"), (AggregateFolder, "save_result")):
            patch.setattr(kind, name, self._around(name, getattr(kind, name)))

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **more: Any) -> Any:
            self.moment("leader", f"before {name}")
            found = call(*given, **more)
            self.moment("leader", f"after {name}")
            return found

        return watched

    def moment(self, side: Side, name: str, file: Any = None, counts: bool = True) -> None:
        with self._lock:
            if any(one is file for one in self._dead):
                raise Death
            if not counts:
                return
            self.names.append(f"{side}: {name}")
            if len(self.names) != self.at:
                return
            self._dead += [one for owner, one in self._known if owner == side]
        self.killed(side)
        raise Death


def _side_of(path: Any) -> Side:
    return "leader" if "leader" in str(path) else "helper"


class Noised(World):
    """The same under a plan with epsilon: each server adds noise, and charges a ledger."""

    def __init__(self, folder: Path) -> None:
        self.path, self.now = folder, float(NOW)
        held = [1 + i % 40 for i in range(8)]
        options: dict[str, Any] = {"secure_sum": "two-server", "domain": "range:1..40"}
        plan = fedtally.estimate(held, epsilon=8.0, delta=1e-6, **options).plan
        terms = dataclasses.replace(plan.secure_sum, min_batch=3, corrupt=0)  # type: ignore[type-var]
        keys = {
            f"{side}_key": create_key_files(folder / f"{side}.key", side, stream(side)).value
            for side in SIDES
        }
        plan = dataclasses.replace(plan, secure_sum=terms).without_keys()
        self.plan = plan.with_keys(**keys, allow_list=ALLOWED.digest)
        self.plan.save(folder / "plan.toml")
        save_allow_list(folder / "clients.allow", ALLOWED)
        self.folders, self.processes = {}, {}
        for side in SIDES:
            place = str(folder / f"{side}.ledger")
            ledger = Ledger.open(place, create=True)
            ledger.grant("clients", epsilon=100.0, delta=1e-5, time=NOW)
            self.folders[side] = made(folder, side, ledger=place)
        self.reports: dict[tuple[int, int], Report] = {}
        self.start(*SIDES)


class Network:
    """What carries requests to the servers that live, and remembers what the two said.

    Attributes:
        queries: what the leader asked.
        answers: what the helper answered.
    """

    def __init__(self, world: World) -> None:
        self.world, self.queries, self.answers = world, set[bytes](), set[bytes]()
        self.died = {side: asyncio.Event() for side in SIDES}

    async def sent(self, side: Side, app: Any, request: httpx.Request) -> httpx.Response:
        """Return the response, unless the server dies before it is there."""
        died = self.died[side]
        if died.is_set():
            raise httpx.ConnectError("nobody listens")
        answering = asyncio.ensure_future(httpx.ASGITransport(app).handle_async_request(request))
        dying = asyncio.ensure_future(died.wait())
        await asyncio.wait({answering, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if died.is_set() or not answering.done():
            answering.cancel()
            answering.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise httpx.ReadError("the process died")
        response = answering.result()
        await response.aread()
        content = httpx.ByteStream(response.content)
        return httpx.Response(response.status_code, headers=response.headers, stream=content)

    async def put(self, side: Side, frame: bytes) -> int:
        """Put a frame once; return the status, 0 for none."""
        process = self.world.processes[side]
        request = httpx.Request(
            "PUT",
            f"https://{side}{self.world.path_of()}/reports",
            content=frame,
            headers={"content-type": "application/vnd.fedtally.frame"},
        )
        try:
            return (await self.sent(side, process.app, request)).status_code
        except httpx.RequestError:
            return 0

    async def report(self, person: int) -> None:
        """Report as a client does: the helper first, each again until it is acknowledged."""
        for side in SIDES:
            frame = getattr(self.world.report(person), side)
            while True:
                said = await asyncio.gather(self.put(side, frame), self.put(side, frame))
                assert set(said) <= {0, 201, 503}, said
                if 201 in said:
                    break
                await asyncio.sleep(0)

    def channel(self) -> httpx.AsyncClient:
        """Return what the leader that runs reaches the helper by."""
        network = self

        class Channel(httpx.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                helper = network.world.processes["helper"]
                is_query = request.url.path.endswith("/query")
                if is_query:
                    network.queries.add(request.content)
                app = helper.channel.application()
                response = await network.sent("helper", app, request)
                if is_query and response.status_code == 200:
                    content = await response.aread()
                    network.answers.add(content)
                    stream = httpx.ByteStream(content)
                    headers = response.headers
                    return httpx.Response(200, headers=headers, stream=stream)
                return response

        return httpx.AsyncClient(transport=Channel())


async def live(world: World, deaths: Deaths) -> Network:
    """Let all people report, the release close and land, whoever dies meanwhile."""
    network, loop = Network(world), asyncio.get_running_loop()
    deaths.killed = lambda side: loop.call_soon_threadsafe(network.died[side].set)

    async def sleep(seconds: float) -> None:
        world.now += seconds
        await asyncio.sleep(0)

    async def reports() -> None:
        await asyncio.gather(*map(network.report, PEOPLE))
        while True:  # the operator's `close` may die as well
            with suppress(Death):
                world.close()
                break
            await asyncio.sleep(0)
        await asyncio.gather(*map(network.report, PEOPLE))  # copies, while it closes

    async def serve(reporting: asyncio.Task[None]) -> None:
        while True:
            async with network.channel() as http:
                tending = asyncio.ensure_future(
                    world.processes["leader"].tending(0, http).run(sleep)
                )
                alive = asyncio.ensure_future(asyncio.wait({tending, reporting}))
                deadly = [asyncio.ensure_future(event.wait()) for event in network.died.values()]
                await asyncio.wait({alive, *deadly}, return_when=asyncio.FIRST_COMPLETED)
                dead = [side for side in SIDES if network.died[side].is_set()]
                for task in (tending, alive, *deadly):
                    task.cancel()
                [ended, *_] = await asyncio.gather(tending, alive, *deadly, return_exceptions=True)
            if not dead:
                assert ended is None, ended
                return
            for side in dead:
                world.start(side)
                network.died[side].clear()

    reporting = asyncio.ensure_future(reports())
    try:
        async with asyncio.timeout(60):
            await serve(reporting)
            await reporting
    finally:
        reporting.cancel()
    return network


def run_case(world: World, at: int) -> list[str]:
    """Run a case with servers that are there and have nothing yet; return the moments."""
    with pytest.MonkeyPatch.context() as patch:
        numbers, drawn = itertools.count(), list[Any]()
        draw_noise = FrequencyServer._server_noise

        def noted(server: Any, random: Any) -> Any:
            found = draw_noise(server, random)

            def draw() -> Any:
                drawn.append(found())
                return drawn[-1]

            return None if found is None else draw

        patch.setattr(FrequencyServer, "_server_noise", noted)
        # no process draws what another one drew
        patch.setattr(aggregate_world, "stream", lambda label: stream((label, next(numbers))))
        world.start(*SIDES)
        drawn.clear()
        deaths = Deaths(patch, at)
        network = asyncio.run(live(world, deaths))
    assert len(network.queries) == len(network.answers) == 1
    sums = world.processes["leader"].claimed.server.release(stream("release"))
    [sketch] = sums
    assert sketch.num_clients == len(PEOPLE)
    rest = sketch.vector - np.array(world.expected(*PEOPLE))
    if world.plan.privacy is None:
        assert drawn == [] and not rest.any()
    else:  # of all that was drawn, a noise of each server
        assert any((a + b == rest).all() for a, b in itertools.combinations(drawn, 2))
    saved = world.result().sketches
    assert [one.vector.tolist() for one in saved] == [sketch.vector.tolist()]
    for side in SIDES:
        assert world.processes[side].claimed.store.reports(world.plan.releases[0]).ids() == []
        assert AggregateFolder.open(world.folders[side].path, side).landed() == {0}
        state = asyncio.run(world.get(side))
        assert read_state(state.content, side) is Release.CLOSED
    return deaths.names


@pytest.mark.promise
@pytest.mark.parametrize("kind", [World, Noised])
def test_whoever_dies_each_report_is_there_once_and_one_sum_is_opened(
    tmp_path_factory: pytest.TempPathFactory, kind: type[World]
) -> None:
    """All cases begin with the same disk, in the same place: to make it takes as long as a case."""
    made, place = tmp_path_factory.mktemp("made") / "disk", tmp_path_factory.mktemp("lived")
    world = kind(place)
    for person in PEOPLE:
        world.report(person)
    shutil.copytree(place, made)
    names = run_case(world, 0)
    assert {name.partition(":")[0] for name in names} == set(SIDES)
    for at in range(1, len(names) + 1):
        shutil.rmtree(place)
        shutil.copytree(made, place)
        world.now = float(NOW)
        run_case(world, at)
