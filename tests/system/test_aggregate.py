"""Two servers over HTTPS, in one process: what clients hear, and what is on disk when they do."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
httpx = pytest.importorskip("httpx")

from aggregate_world import NOW, PEOPLE, SIDES, STRANGER, World, certificate, made, plan_of

from fedtally.answer.result import Result
from fedtally.campaign.aggregate_folder import AggregateFolder, landed_name
from fedtally.campaign.closings import Closings, Schedule
from fedtally.campaign.places import held_by
from fedtally.campaign.server import RejectedSumError
from fedtally.campaign.transports.https import channel, collecting
from fedtally.campaign.transports.https import closing as closing_module
from fedtally.campaign.transports.https.channel import Asking, ChannelError
from fedtally.campaign.transports.https.closing import Tending
from fedtally.campaign.transports.https.join import Heard
from fedtally.campaign.transports.https.listen import served
from fedtally.campaign.transports.https.operate import Counts
from fedtally.campaign.transports.https.pinned import Certificates, PeerAddress
from fedtally.campaign.transports.https.reporting import Begin, Beginning, Never, Sending, carried
from fedtally.campaign.transports.https.resource import (
    PROBLEM_TYPE,
    STATE_TYPE,
    Release,
    read_state,
)
from fedtally.campaign.transports.https.standing import Standing
from fedtally.campaign.transports.https.web import Room
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.secagg.two_server import BatchRefusedError, BatchState, Kind, Leader
from fedtally.secagg.two_server.reports import HELPER, decode_ids, encode_ids, frame_of
from fedtally.store import BatchStore, ClientRecord, Fate, Ledger, StoreError
from fedtally.store.two_server import StoredReports

pytestmark = pytest.mark.usefixtures("no_sync")
ALL = (0, 1, 2, 3, 4)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def check_landed(world: World, *people: int) -> None:
    """Check that the result is the plain sum of these people, and that no report is left."""
    [sketch] = world.result().sketches
    assert sketch.num_clients == len(people)
    assert sketch.vector.tolist() == world.expected(*people)
    for side in SIDES:
        content = (world.folders[side].path / "reports.db").read_bytes()
        assert not any(getattr(each, side) in content for each in world.reports.values())


async def standing(world: World, side: Any) -> Release | None:
    found = await world.get(side)
    assert found.headers["cache-control"] == "no-store"
    return read_state(found.content, side)


# ---- from the first report to the sum ----


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


@pytest.mark.parametrize("validity", ["proofs", "none"])
def test_a_release_lands_and_nothing_of_its_reports_is_left(tmp_path: Path, validity: str) -> None:
    world = World(tmp_path, validity=validity)

    async def lands() -> None:
        assert await world.send(*ALL) == [201] * 5
        world.close()
        tending = await world.land()
        assert tending.has_told
        for side in SIDES:
            assert await standing(world, side) is Release.CLOSED
        assert await world.send(0, 1) == [201] * 2  # copies of what is in the sum
        assert await world.send(5) == [410]

    asyncio.run(lands())
    check_landed(world, *ALL)


@pytest.mark.promise
def test_under_central_trust_the_leader_waits_for_all_releases(tmp_path: Path) -> None:
    """Its noise is drawn once, for all of them."""
    # The seed says which round each of the eight takes: of another, a round may have too few.
    seeded: dict[str, Any] = {"seed": 2, "not_private": True}
    world = World(tmp_path, epsilon=4.0, trust="central", num_rounds=2, schedule="fresh", **seeded)
    assert len(world.plan.releases) == 2

    async def lands() -> None:
        for release in range(2):
            round = world.plan.releases[release].start
            people = range(world.plan.summing.most_clients)  # rounds are drawn
            await world.send(*people, round=round, release=release)
            world.close(release)
            await world.land(release)
            there = (world.folders["leader"].path / "result.fed").exists()
            assert there == (release == 1)

    asyncio.run(lands())


@pytest.mark.promise
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("dies", [False, True])
def test_under_central_trust_the_leader_does_not_wait_for_a_release_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, dies: bool
) -> None:
    """Nor where it dies before the result is saved."""
    seeded: dict[str, Any] = {"seed": 2, "not_private": True}
    world = World(tmp_path, epsilon=4.0, trust="central", num_rounds=2, schedule="fresh", **seeded)
    answer, place = Asking.answer, world.folders["leader"].path / "result.fed"

    async def wrong(self: Asking, query: bytes) -> bytes:
        found = await answer(self, query)
        return found[:-1] + bytes([found[-1] ^ 1])  # in a checksum

    def death(*_: Any) -> None:
        raise KeyboardInterrupt

    async def lands() -> None:
        for release in range(2):
            round = world.plan.releases[release].start
            people = range(world.plan.summing.most_clients)
            await world.send(*people, round=round, release=release)
            world.close(release)
            with monkeypatch.context() as changed:
                if release == lost:
                    changed.setattr(Asking, "answer", wrong)
                if dies and release == 1:
                    changed.setattr(AggregateFolder, "save_result", death)
                    with pytest.raises(KeyboardInterrupt):
                        await world.land(release)
                else:
                    tending = await world.land(release)
                    assert tending.collecting.is_lost == (release == lost)
            assert place.exists() == (release == 1 and not dies)
        if dies:
            world.start("leader")
            await world.land(1)

    asyncio.run(lands())
    [sketch] = world.result().sketches
    assert sketch.round == world.plan.releases[1 - lost].start
    assert sketch.num_clients == world.plan.summing.most_clients


@pytest.mark.parametrize("trust", ["distributed", "central"])
def test_a_plan_with_privacy_is_charged_to_both_ledgers(tmp_path: Path, trust: str) -> None:
    world = World(tmp_path, epsilon=4.0, trust=trust)
    assert world.plan.privacy is not None

    async def lands() -> None:
        await world.send(*range(8))
        world.close()
        await world.land()

    asyncio.run(lands())
    world.start("leader")  # the release is out, and stays the same
    first = world.result().sketches
    leader = world.processes["leader"]
    leader.folder.save_result(leader.claimed, lambda size: bytes(size))
    [sketch] = world.result().sketches
    assert sketch.noise == world.plan.noise_mark
    assert sketch.vector.tolist() == first[0].vector.tolist()
    for side in SIDES:
        charged = Ledger.open(tmp_path / f"{side}-ledger.db").reserved(world.plan.fingerprint)
        assert charged == [0]


def test_each_release_closes_by_itself(tmp_path: Path) -> None:
    world = World(tmp_path, rounds=2)

    async def lands() -> None:
        assert await world.send(*ALL) == [201] * 5
        assert await world.send(0, 1, 2, round=1, release=1) == [201] * 3
        world.close(0)
        await world.land(0)
        assert len(world.result().sketches) == 1
        assert world.folders["leader"].landed() == world.folders["helper"].landed() == {0}
        assert (await world.get("leader", 1)).json()["state"] == "open"
        with pytest.raises(InvalidInputError, match="release 1 of .* has not landed"):
            world.folders["helper"].retire(1)
        world.close(1)
        await world.land(1)

    asyncio.run(lands())
    assert [each.num_clients for each in world.result().sketches] == [5, 3]
    assert world.folders["leader"].landed() == world.folders["helper"].landed() == {0, 1}


def test_a_leader_that_starts_again_tells_a_helper_nothing_that_it_knows(world: World) -> None:
    """The helper may be gone: its operator could end it once it had heard that the sum landed."""

    def is_gone(_: Any) -> httpx.Response:
        raise httpx.ConnectError("gone")

    async def lands_again() -> None:
        await world.send(*ALL)
        world.close()
        await world.land()
        place = world.folders["leader"].path / "result.fed"
        place.unlink()
        world.start("leader")
        async with httpx.AsyncClient(transport=httpx.MockTransport(is_gone)) as http:
            tending = world.processes["leader"].tending(0, http)
            for _ in range(3):
                await tending.step()
        assert tending.has_told and place.exists()

    asyncio.run(lands_again())


def test_results_are_saved_where_releases_land_and_so_one_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of one release, saved after that of both, would take its place."""
    threads = set[int]()
    for owner, name in ((Result, "save"), (Leader, "finish")):
        call = getattr(owner, name)

        def noted(*args: Any, call: Any = call) -> Any:
            threads.add(threading.get_ident())
            return call(*args)

        monkeypatch.setattr(owner, name, noted)

    async def lands() -> None:
        await world.send(*ALL)
        world.close()
        await world.land()

    asyncio.run(lands())
    assert len(threads) == 1 and len(world.result().sketches) == 1


def test_reports_are_judged_a_page_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing_module, "PAGE", 2)
    monkeypatch.setattr(closing_module, "LAST_PAGE", 2)

    async def judged() -> None:
        await world.send(*ALL)
        tending, left = world.tending(), []
        while await tending.step() == 0.0:
            left.append(tending.leader.unjudged)
        assert left == [3, 1, 0]
        world.start("leader")
        world.close()
        await world.land()

    asyncio.run(judged())
    check_landed(world, *ALL)


def test_reports_are_judged_while_they_come_and_again_after_a_restart(world: World) -> None:
    async def judged() -> None:
        await world.send(0, 1, 2)
        tending = world.tending()
        assert await tending.step() == 0.0 and tending.leader.unjudged == 0
        assert await tending.step() > 0  # there is nothing to do
        world.start("leader")
        assert world.processes["leader"].releases[0].server.unjudged == 3
        assert await world.send(3) == [201]  # taken before the first page is judged
        tending = world.tending()
        await tending.step()
        assert tending.leader.unjudged == 0 and len(tending.leader) == 4

    asyncio.run(judged())


def test_the_age_of_the_oldest_report_that_is_not_judged(world: World) -> None:
    """It is a bound: nothing older waits."""

    async def aged() -> None:
        tending = world.tending()
        await tending.step()
        assert tending.oldest == NOW
        # the leader alone has it: it waits for ever
        assert (await world.put("leader", world.report(0).leader)).status_code == 201
        world.now += 100
        for _ in range(3):
            await tending.step()
        assert tending.oldest == NOW and tending.leader.unjudged == 1
        # its helper's part comes at last, and it is judged with what came meanwhile
        await world.send(0, 1)
        for _ in range(3):
            await tending.step()
        assert tending.leader.unjudged == 0 and tending.oldest == NOW + 100

    asyncio.run(aged())


def test_prometheus_hears_when_a_release_closes(world: World) -> None:
    """As a Unix time: while it is open, the time that is set, then when it began to close."""
    leader, helper = world.processes["leader"], world.processes["helper"]
    tending = world.tending()
    seen = [
        Standing(leader.folder, leader.releases, [tending]),
        Standing(helper.folder, helper.releases, []),
    ]
    log = logging.getLogger("unheard")
    registries = [Counts(each.metrics, lambda: world.now, log).registry for each in seen]

    def told() -> list[float | None]:
        name = "fedtally_release_closes_at_seconds"
        return [each.get_sample_value(name, {"release": "0"}) for each in registries]

    async def closes() -> None:
        await world.send(0, 1, 2)
        await tending.step()
        assert told() == [None, None]
        Closings(leader.folder.path).change(0, at=NOW + 500)
        await tending.step()
        assert told() == [NOW + 500, None]
        world.now += 600  # nothing ran in the meantime
        tending._look(tending.closings.read())
        assert told() == [NOW + 600, None]
        world.now += 1000
        await tending.run(asyncio.sleep)
        assert tending.is_over and told() == [NOW + 600, None]

    asyncio.run(closes())
    # a process that begins anew knows it, too
    again = Standing(leader.folder, leader.releases, [world.tending()])
    assert [one["closes_at"] for one in again.metrics()] == [NOW + 600]


def test_how_many_are_judged_is_never_below_zero(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group may come after its reports were counted, and before those that wait."""
    leader = world.processes["leader"]
    monkeypatch.setattr(Leader, "unjudged", 3)
    found = Standing(leader.folder, leader.releases, [world.tending()]).of_release(0)
    assert (found["reports"], found["waiting"], found["judged"]) == (0, 3, 0)


# ---- when it closes ----


def test_a_release_closes_at_a_time_after_a_grace(world: World) -> None:
    place = Closings(world.folders["leader"].path)
    place.change(0, at=NOW + 50)

    async def closes() -> None:
        await world.send(0, 1, 2)
        tending = world.tending()
        await tending.step()
        assert await standing(world, "leader") is Release.OPEN
        world.now = NOW + 50.0
        await tending.step()
        assert await standing(world, "leader") is Release.CLOSING  # nobody begins
        assert await world.send(3) == [201]  # it was on its way
        world.start("leader")  # and it is no other after a restart
        tending = world.tending()
        assert await standing(world, "leader") is Release.CLOSING
        world.now += place.read().grace - 1
        await tending.step()
        assert await standing(world, "leader") is Release.CLOSING
        world.now += 1
        await tending.step()
        assert await standing(world, "leader") is Release.CLOSED
        assert (await world.put("leader", world.report(4).leader)).status_code == 410

    asyncio.run(closes())


def test_a_leader_that_was_away_at_its_time_closes_once_it_is_back(world: World) -> None:
    """Its grace begins then, and a later time that is set meanwhile keeps the release open."""
    place = Closings(world.folders["leader"].path)
    place.change(0, at=NOW + 50)

    async def closes() -> None:
        await world.send(0, 1, 2)
        world.now = NOW + 7200.0  # nobody saw the time go by
        place.change(0, at=NOW + 9000)  # as `close --at` does
        world.start("leader")
        await world.tending().step()
        assert await standing(world, "leader") is Release.OPEN
        world.now = NOW + 20_000.0
        world.start("leader")
        tending = world.tending()
        assert await standing(world, "leader") is Release.CLOSING
        assert place.read().releases[0].since == NOW + 20_000
        world.now += place.read().grace - 1
        await tending.step()
        assert await world.send(3) == [201]  # it was on its way
        world.now += 1
        await tending.step()
        assert await standing(world, "leader") is Release.CLOSED

    asyncio.run(closes())


@pytest.mark.parametrize("size", [4, None])
def test_a_release_closes_at_a_size_or_when_it_is_full(tmp_path: Path, size: int | None) -> None:
    world = World(tmp_path, n_max=5)
    place = Closings(world.folders["leader"].path)
    place.write(Schedule(place.read().releases, size))
    last = (size or 5) - 1

    async def closes() -> None:
        await world.send(*range(last))
        tending = world.tending()
        await tending.step()
        assert await standing(world, "leader") is Release.OPEN
        await world.send(last)
        await tending.step()
        assert await standing(world, "leader") is Release.CLOSING

    asyncio.run(closes())


def test_a_release_with_too_few_reports_stays_open(world: World) -> None:
    world.close()

    async def stays() -> None:
        await world.send(0, 1)
        tending = world.tending()
        for _ in range(3):
            await tending.step()
        assert await standing(world, "leader") is Release.OPEN
        # three at the leader, and two at both: the helper's offer shows it
        await world.put("leader", world.report(2).leader)
        await tending.step()
        assert await standing(world, "leader") is Release.CLOSING
        world.now += 1000
        await tending.step()
        assert "open again: a batch must have 3 .. 8 reports" in world.processes["leader"].notes[-1]
        for _ in range(3):
            await tending.step()
        assert await standing(world, "leader") is Release.OPEN
        await world.send(3)
        await world.land()

    asyncio.run(stays())
    check_landed(world, 0, 1, 3)


# ---- what a client hears ----


def refusal(found: Any) -> tuple[int, dict[str, str], bytes]:
    """Return all that a client sees, but for how long the body is."""
    return found.status_code, dict(found.headers), found.content


@pytest.mark.parametrize("side", SIDES)
def test_every_outcome_has_a_status(
    tmp_path: Path, side: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, rounds=2)
    good = getattr(world.report(0), side)

    async def statuses() -> None:
        async def put(frame: bytes, release: int = 0) -> int:
            found = await world.put(side, frame, release)
            kind = STATE_TYPE if found.status_code == 201 else PROBLEM_TYPE
            assert found.headers["content-type"] == kind
            assert found.headers["cache-control"] == "no-store"
            return found.status_code

        assert await put(good[:-1]) == 400  # malformed
        assert await put(b"") == 400
        assert await put(good + b"x") == 413
        assert await put(good, release=1) == 409  # another round
        for later in (8 * 86_400, -2 * 3_600):
            world.now = NOW + later
            assert await put(good) == 409  # another time
        world.now = NOW
        with monkeypatch.context() as garbage:
            server = world.processes[side].releases[0].server

            def unread(*_: Any) -> None:
                raise InvalidInputError("unread")

            garbage.setattr(server, "_take", unread)
            assert await put(good) == 400  # unreadable
        assert await put(good) == 201
        assert await put(good) == 201  # a copy
        second = world.report(9, key=PEOPLE[0])
        assert await put(getattr(second, side)) == 409

    asyncio.run(statuses())


@pytest.mark.parametrize("side", SIDES)
def test_an_unknown_identity_and_a_forged_report_look_alike(world: World, side: Any) -> None:
    unknown = getattr(world.report(1, key=STRANGER), side)
    forged = bytearray(getattr(world.report(1), side))
    forged[48 + 156 - 1] ^= 1  # of the signature

    async def alike() -> None:
        first, second = await world.put(side, unknown), await world.put(side, bytes(forged))
        assert refusal(first) == refusal(second)
        assert first.status_code == 403

    asyncio.run(alike())


def test_a_full_server_takes_nothing_and_nobody_begins(tmp_path: Path) -> None:
    world = World(tmp_path, n_max=3)

    async def full() -> None:
        assert await world.send(0, 1, 2) == [201] * 3
        found = await world.get("leader")
        assert found.status_code == 503 and int(found.headers["retry-after"]) >= 60
        assert await world.send(3) == [503]
        world.start("leader")
        assert len(world.processes["leader"].releases[0].server) == 3

    asyncio.run(full())


@pytest.mark.parametrize("side", SIDES)
def test_a_disk_without_room_takes_nothing_and_nobody_begins(world: World, side: Any) -> None:
    async def full() -> None:
        process = world.processes[side]
        process.has_room = False
        for found in (await world.get(side), await world.put(side, b"not looked at")):
            assert found.status_code == 503 and int(found.headers["retry-after"]) >= 60
        assert not process.intake.is_ready
        process.has_room = True
        assert await standing(world, side) is Release.OPEN and process.intake.is_ready

    asyncio.run(full())


def test_what_the_head_tells_is_refused_before_the_body_is_read(world: World) -> None:
    class Unread(httpx.AsyncByteStream):  # type: ignore[misc, name-defined]
        async def __aiter__(self) -> Any:
            raise AssertionError("the body was read")
            yield b""

    path, most = f"{world.path_of()}/reports", 10**6

    async def heads() -> None:
        async def put(place: str, **headers: str) -> int:
            async with world.http("leader") as http:
                request = http.build_request("PUT", place, headers=headers, content=Unread())
                if "content-length" in headers:
                    request.headers.pop("transfer-encoding", None)
                return int((await http.send(request)).status_code)

        process = world.processes["leader"]
        assert await put(path) == 411
        assert await put(path, **{"content-length": str(most)}) == 413
        assert await put(path.replace("releases/0", "releases/1")) == 404
        assert await put(path.replace("releases/0", "releases/00")) == 404
        assert await put(path.replace(world.plan.fingerprint, 64 * "0")) == 404
        process.intake.room = Room(10)
        assert await put(path, **{"content-length": "11"}) == 503
        process.intake.is_leaving = True
        assert await put(path, **{"content-length": "11"}) == 503
        assert not process.intake.is_ready

    with pytest.MonkeyPatch.context() as patch:
        # ASGITransport reads the body at once: this one hands over nothing
        async def passed(self: Any, request: Any) -> Any:
            scope = {
                "type": "http", "method": request.method, "path": request.url.path,
                "headers": request.headers.raw, "query_string": b"", "root_path": "",
                "server": ("leader", 443), "scheme": "https", "http_version": "1.1",
            }  # fmt: skip
            said: list[Any] = []

            async def receive() -> Any:
                raise AssertionError("the body was read")

            async def send(message: Any) -> None:
                said.append(message)

            await self.app(scope, receive, send)
            return httpx.Response(said[0]["status"], headers=said[0]["headers"])

        patch.setattr(httpx.ASGITransport, "handle_async_request", passed)
        asyncio.run(heads())


def test_too_many_that_wait_are_sent_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MOST_WAITING", 2)

    async def crowded() -> list[int]:
        frames = [world.report(i).helper for i in ALL]
        found = await asyncio.gather(*(world.put("helper", each) for each in frames))
        return [each.status_code for each in found]

    said = asyncio.run(crowded())
    assert 503 in said and set(said) == {201, 503}


def test_reports_that_come_meanwhile_are_one_group(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []

    class Counting(collecting.Watcher):
        def took(self, outcomes: Any, seconds: float) -> None:
            groups.append(len(outcomes))

    world.processes["helper"].releases[0].watcher = Counting()

    async def sent() -> None:
        await asyncio.gather(*(world.put("helper", world.report(i).helper) for i in range(8)))

    asyncio.run(sent())
    assert sum(groups) == 8 and len(groups) <= 4


def test_groups_and_what_a_server_is_asked_share_one_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator keeps the memory of a page for each thread that ever judged one."""
    receive, threads = Leader.receive, list[int]()
    begun, go = threading.Event(), threading.Event()

    def waits(self: Any, frame: bytes, now: int) -> Any:
        threads.append(threading.get_ident())
        begun.set()
        assert go.wait(20)
        return receive(self, frame, now)

    monkeypatch.setattr(Leader, "receive", waits)

    async def meet() -> None:
        one = world.processes["leader"].releases[0]
        putting = asyncio.create_task(world.put("leader", world.report(0).leader))
        assert await asyncio.to_thread(begun.wait, 20)
        asking = asyncio.create_task(one.ask(lambda _: threads.append(threading.get_ident())))
        await asyncio.sleep(0.01)
        go.set()
        assert (await putting).status_code == 201
        await asking

    asyncio.run(meet())
    assert len(threads) == 2 and len(set(threads)) == 1


def test_a_client_believes_what_the_servers_say(world: World, tmp_path: Path) -> None:
    """By the client's own rules: it begins, sends, ends; and begins none once it is closing."""

    class Both(httpx.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            app = world.processes[request.url.host].app
            found = await httpx.ASGITransport(app).handle_async_request(request)
            found.headers["date"] = "Fri, 15 Jan 2027 08:00:00 GMT"  # as uvicorn adds it
            return found

    urls: Any = {side: f"https://{side}{world.path_of()}" for side in SIDES}
    record = ClientRecord.open(tmp_path / "record.db", create=True)
    told: list[str] = []

    async def talk(with_it: Any) -> Any:
        async with httpx.AsyncClient(transport=Both()) as http:
            return await carried(
                http, urls, with_it, clock=lambda: world.now, sleep=lambda _: asyncio.sleep(0)
            )

    def send(i: int) -> Any:
        record.take_part("clients", f"plan-{i}", 0, None, NOW, report=world.report(i))
        (unsent,) = record.outbox()
        return talk(Sending(unsent, lambda: 0.0, told.append))

    async def client() -> None:
        assert await talk(Beginning(lambda: 0.0, told.append)) == Begin()
        assert await send(0) is Fate.ACCEPTED
        await world.send(1, 2)
        world.close()
        tending = world.tending()
        await tending.step()
        found = await talk(Beginning(lambda: 0.0, told.append))
        assert isinstance(found, Never) and "closing at the leader" in found.why
        assert await send(3) is Fate.ACCEPTED  # its items were spent before
        await world.land()
        found = await talk(Beginning(lambda: 0.0, told.append))
        assert isinstance(found, Never) and "closed at the helper" in found.why
        assert await send(4) is Fate.NOT_COUNTED
        news = [f"the {side} has the report" for side in SIDES]
        assert told == [*news, *news, "the helper takes no more reports of this release"]

    asyncio.run(client())
    check_landed(world, 0, 1, 2, 3)


@pytest.mark.parametrize(("side", "fate"), [("leader", Fate.UNKNOWN), ("helper", Fate.NOT_COUNTED)])
def test_a_client_that_missed_an_answer_is_not_told_what_no_server_knows_any_more(
    world: World, tmp_path: Path, side: Any, fate: Fate
) -> None:
    """Its report may be in the sum if the helper has it: then the leader got it, too."""
    told: list[str] = []
    record = ClientRecord.open(tmp_path / "record.db", create=True)

    async def client() -> Fate:
        record.take_part("clients", "plan-0", 0, None, NOW, report=world.report(0))
        (unsent,) = record.outbox()
        talk = Sending(unsent, lambda: 0.0, told.append)
        await world.send(1, 2, 3)
        await world.put("helper", world.report(0).helper)
        if side == "leader":
            talk.heard("helper", Heard(201, STATE_TYPE), world.now)
            await world.put("leader", world.report(0).leader)
        world.close()
        await world.land()
        world.processes[side].app = collecting.over(side, world.plan.fingerprint, 1)
        async with world.http(side) as http:
            found = await carried(
                http,
                dict.fromkeys(SIDES, f"https://{side}{world.path_of()}"),
                talk,
                clock=lambda: world.now,
                sleep=asyncio.sleep,
            )
        assert isinstance(found, Fate)
        return found

    assert asyncio.run(client()) is fate
    assert told[-1] == f"the {side} has destroyed its key, and cannot say what it took"


# ---- disks and processes that fail ----


def test_a_report_that_fails_is_500_alone_and_a_store_that_fails_503(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.processes["leader"]
    put = StoredReports.put
    bad = world.report(1).leader
    [release], notes, now = process.releases, list[str](), 0.0
    release.note, release.steady = notes.append, lambda: now

    def fails(error: Exception) -> None:
        def refuses(self: Any, id: bytes, frame: bytes, names: Any) -> bool:
            if frame == bad:
                raise error
            return put(self, id, frame, names)

        monkeypatch.setattr(StoredReports, "put", refuses)

    async def all_put() -> list[int]:
        frames = [world.report(i).leader for i in range(3)]
        found = await asyncio.gather(*(world.put("leader", each) for each in frames))
        return [each.status_code for each in found]

    async def sent() -> None:
        nonlocal now
        fails(ZeroDivisionError("a fault"))
        assert await all_put() == [201, 500, 201]
        assert process.intake.is_ready
        fails(StoreError("full"))
        for _ in range(2):
            assert await all_put() == [201, 503, 201]
            assert not process.intake.is_ready
        # whoever sends nothing to a server that is not ready tries again
        now += 61
        assert process.intake.is_ready
        assert await all_put() == [201, 503, 201]
        assert not process.intake.is_ready
        monkeypatch.undo()
        assert await all_put() == [201] * 3
        assert process.intake.is_ready

    asyncio.run(sent())
    why = ["ZeroDivisionError", "full"]
    assert notes == [f"reports could not be taken: {each}" for each in why]


HELD = ["stop", "judge", "query", "resume", "finish", "land_batch"]


def test_a_full_disk_in_a_group_while_a_release_closes_loses_no_fact_and_asks_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each call on the leader a group is open, which fails while the call waits for it."""
    queries: set[bytes] = set()
    called: list[Any] = []
    receive, ask, answer = Leader.receive, Tending._of, Asking.answer
    begun, fail = threading.Event(), threading.Event()

    def fills(self: Any, frame: bytes, now: int) -> Any:
        outcome = receive(self, frame, now)
        if frame == world.report(5).leader:
            begun.set()
            assert fail.wait(20)
            raise StoreError("disk full")
        return outcome

    async def meanwhile(self: Tending, call: Callable[[Any], Any]) -> Any:
        begun.clear()
        fail.clear()
        putting = asyncio.create_task(world.put("leader", world.report(5).leader))
        assert await asyncio.to_thread(begun.wait, 20)
        asking = asyncio.create_task(ask(self, call))
        await asyncio.sleep(0.01)
        assert not asking.done()  # it waits for the group
        called.append(call)
        fail.set()
        assert (await putting).status_code == 503
        return await asking

    async def answered(self: Asking, query: bytes) -> bytes:
        queries.add(query)
        return await answer(self, query)

    monkeypatch.setattr(Leader, "receive", fills)
    monkeypatch.setattr(Tending, "_of", meanwhile)
    monkeypatch.setattr(Asking, "answer", answered)

    async def lands() -> None:
        await world.put("helper", world.report(5).helper)
        await world.send(0, 1, 2)
        world.close()
        await world.land()

    asyncio.run(lands())
    monkeypatch.undo()
    assert len(queries) == 1 and len(called) >= len(HELD)
    check_landed(world, 0, 1, 2)


@pytest.mark.promise
def test_a_leader_that_dies_before_each_call_goes_on_and_asks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between `finish` and `land_batch`, when the helper is not there any more."""
    ask, queries = Tending._of, set[bytes]()
    answer = Asking.answer

    async def answered(self: Asking, query: bytes) -> bytes:
        queries.add(query)
        return await answer(self, query)

    monkeypatch.setattr(Asking, "answer", answered)
    for after in (False, True):
        for at in range(1, 9):
            queries.clear()
            place = tmp_path / f"{at}{after}"
            place.mkdir()
            world, calls = World(place), iter(range(1, 100))

            async def dies(
                self: Tending,
                call: Callable[[Any], Any],
                calls: Any = calls,
                at: int = at,
                after: bool = after,
            ) -> Any:
                number = next(calls)
                if number == at and not after:
                    raise KeyboardInterrupt
                found = await ask(self, call)
                if number == at:
                    raise KeyboardInterrupt
                return found

            monkeypatch.setattr(Tending, "_of", dies)

            async def sent(world: World = world) -> None:
                await world.send(0, 1, 2)
                world.close()

            asyncio.run(sent())
            for _ in range(2):
                try:
                    asyncio.run(world.land())
                    break
                except KeyboardInterrupt:
                    world.start(*SIDES)
            assert len(queries) == 1
            check_landed(world, 0, 1, 2)


def test_a_leader_that_heard_the_answer_needs_no_helper_to_land(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def heard() -> None:
        await world.send(0, 1, 2)
        world.close()
        with monkeypatch.context() as dying:

            def dies(*_: Any) -> None:
                raise KeyboardInterrupt

            dying.setattr(type(world.processes["leader"].claimed.server), "land_batch", dies)
            with pytest.raises(KeyboardInterrupt):
                await world.land()
        world.start("leader")
        tending = world.tending()
        assert tending.leader.kept_answer is not None

        async def away(*_: Any) -> Any:
            raise ChannelError("nobody is there")

        monkeypatch.setattr(Asking, "_sent", away)
        await tending.step()
        assert tending.is_over and not tending.has_told
        with pytest.raises(ChannelError):
            await tending.step()

    asyncio.run(heard())
    check_landed(world, 0, 1, 2)
    # the helper has not heard of it, and keeps its key
    with pytest.raises(InvalidInputError, match="release 0 of .* has not landed"):
        world.folders["helper"].retire(1)


def test_a_sum_that_no_clients_can_have_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rejects(*_: Any) -> None:
        raise RejectedSumError("no clients have this sum")

    async def lands() -> None:
        await world.send(0, 1, 2)
        world.close()
        server = world.processes["leader"].claimed.server
        monkeypatch.setattr(server, "land_batch", rejects)
        tending = await world.land()
        assert tending.collecting.is_lost

    asyncio.run(lands())
    found = Closings(world.folders["leader"].path).read().releases[0]
    assert found.lost == "no clients have this sum"


def test_a_leader_that_dies_before_its_result_is_saved_saves_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lands() -> None:
        await world.send(0, 1, 2)
        world.close()
        with monkeypatch.context() as dying:

            def dies(*_: Any, **__: Any) -> None:
                raise KeyboardInterrupt

            dying.setattr(AggregateFolder, "save_result", dies)
            with pytest.raises(KeyboardInterrupt):
                await world.land()
        world.start("leader")
        await world.land()

    asyncio.run(lands())
    check_landed(world, 0, 1, 2)


def test_a_result_that_could_not_be_saved_is_saved_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lands() -> None:
        await world.send(0, 1, 2)
        world.close()
        fails = iter([InvalidInputError("full"), InvalidInputError("full")])
        save = AggregateFolder.save_result

        def saved(*given: Any, **named: Any) -> None:
            if (error := next(fails, None)) is not None:
                raise error
            save(*given, **named)

        monkeypatch.setattr(AggregateFolder, "save_result", saved)
        tending = await world.land()
        assert tending.has_told
        notes = world.processes["leader"].notes
        assert notes.count("release 0 waits: full") == 1  # said once

    asyncio.run(lands())
    check_landed(world, 0, 1, 2)


def test_a_frame_that_is_missing_or_another_one_stops_the_release_until_it_is_back(
    world: World,
) -> None:
    def sql(side: str, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(world.folders[side].path / "reports.db")) as file:
            found = file.execute(statement, values).fetchall()
            file.commit()
        return found

    async def lands(side: str) -> None:
        rows = sql(side, "SELECT id, frame FROM fedtally_reports")
        id, frame = rows[0]
        if side == "leader":
            sql(side, "DELETE FROM fedtally_reports WHERE id = ?", id)
        else:
            sql(side, "UPDATE fedtally_reports SET frame = ? WHERE id = ?", frame[::-1], id)
        tending = world.tending()
        for _ in range(3):
            with pytest.raises(Exception, match="is missing|HTTP 500"):
                await tending.step()
        assert tending.leader.unjudged == 3 and not tending.is_over
        if side == "helper":
            assert "is another one" in world.processes["helper"].notes[-1]
            sql(side, "UPDATE fedtally_reports SET frame = ? WHERE id = ?", frame, id)
        else:
            added = "INSERT INTO fedtally_reports VALUES (0, 0, ?, ?)"
            sql(side, added, id, frame)

    async def all_of_it() -> None:
        await world.send(0, 1, 2)
        world.close()
        tending = world.tending()
        tending._look(tending.closings.read())
        world.now += 1000
        await lands("leader")
        await lands("helper")
        await world.land()

    asyncio.run(all_of_it())
    check_landed(world, 0, 1, 2)


@pytest.mark.parametrize("side", SIDES)
def test_a_report_that_the_disk_lost_is_left_out_if_the_operator_says_so(
    world: World, side: Any
) -> None:
    async def lands() -> None:
        await world.send(*ALL)
        with closing(sqlite3.connect(world.folders[side].path / "reports.db")) as file:
            id = file.execute("SELECT id FROM fedtally_reports ORDER BY id").fetchone()[0]
            file.execute("DELETE FROM fedtally_reports WHERE id = ?", [id])
            file.commit()
        one = world.processes[side].releases[0]
        one.leaves_out, one.note = True, world.processes[side].notes.append
        world.close()
        await world.land()
        notes = world.processes[side].notes
        assert f"report {id.hex()} is left out: the disk has lost it" in notes

    asyncio.run(lands())
    assert world.result().num_clients == 4


def test_who_lost_a_report_that_was_checked_hears_that_a_restart_leaves_it_out(
    world: World,
) -> None:
    async def lands() -> None:
        await world.send(*ALL)
        helper = world.processes["helper"]
        helper.releases[0].leaves_out = True
        await world.tending().step()  # all are checked, and in the helper's sum
        with closing(sqlite3.connect(world.folders["helper"].path / "reports.db")) as file:
            file.execute(
                "DELETE FROM fedtally_reports WHERE id IN (SELECT min(id) FROM fedtally_reports)"
            )
            file.commit()
        world.start("leader")  # asks for all again
        with pytest.raises(ChannelError, match="HTTP 503"):
            await world.tending().step()
        assert helper.notes[-1].endswith("it was added before: restart")
        world.start("helper")
        world.close()
        await world.land()

    asyncio.run(lands())
    assert world.result().num_clients == 4


def test_a_helper_that_was_overtaken_makes_no_offer(world: World) -> None:
    """It would lack what the later process took, and the sum would lack it, too."""

    async def two() -> None:
        await world.send(0, 1, 2)
        old = world.processes["helper"]
        world.start("helper")
        new = world.processes["helper"]
        await world.send(3, 4)
        world.processes["helper"] = old  # the address still leads there
        world.close()
        tending = world.tending()
        for _ in range(3):
            with suppress(ChannelError):
                await tending.step()
            world.now += 1000
        assert old.releases[0].overtaken.is_set() and not tending.leader.num_counted
        world.processes["helper"] = new
        await world.land()

    asyncio.run(two())
    check_landed(world, *ALL)


def test_of_two_processes_the_earlier_one_takes_nothing_any_more(world: World) -> None:
    async def two() -> None:
        await world.send(0, 1, 2)
        old = dict(world.processes)
        world.start(*SIDES)
        new = dict(world.processes)
        world.processes = dict(old)
        for side in SIDES:
            found = await world.put(side, getattr(world.report(3), side))
            assert found.status_code == 503 and old[side].releases[0].overtaken.is_set()
            assert (await world.get(side)).status_code == 503
            assert len(new[side].releases[0].server) == 3
        world.processes = new
        # it cannot close the release either, and its process ends
        old["leader"].releases[0].overtaken.clear()
        world.close()
        tending = old["leader"].tending(0, world.channel)
        tending._look(tending.closings.read())
        world.now += 1000
        async with asyncio.timeout(20):
            await tending.run(lambda _: asyncio.sleep(0))
        assert old["leader"].releases[0].overtaken.is_set() and not tending.is_over
        await world.land()

    asyncio.run(two())
    check_landed(world, 0, 1, 2)


def test_a_folder_is_run_once_and_no_old_copy_or_other_store_is_taken(
    world: World, tmp_path: Path
) -> None:
    folder = world.folders["leader"]
    with held_by(folder.path, 4711):
        assert folder.runner().number == 4711
        with pytest.raises(InvalidInputError, match="process 4711 runs"), held_by(folder.path, 1):
            pass
    assert folder.runner() is None
    copies = {name: folder.path / name for name in ("reports.db", "books.db")}
    for name, place in copies.items():
        shutil.copy(place, tmp_path / name)
    asyncio.run(world.send(0))
    world.start("leader")
    for name, place in copies.items():
        newest = place.read_bytes()
        shutil.copy(tmp_path / name, place)
        with pytest.raises(InvalidInputError, match="a copy was put back") as error:
            world.start("leader")
        # the way out is that of two servers: nothing gives a copy of theirs up
        assert "retire NAME --give-up" in str(error.value) and "restore" not in str(error.value)
        place.write_bytes(newest)
    # the store of another plan, and of the other server
    other = tmp_path / "other"
    other.mkdir()
    foreign = World(other, rounds=2)
    place = copies["reports.db"]
    newest = place.read_bytes()
    for found, why in (
        (foreign.folders["leader"].path, "holds the campaign of plan"),
        (world.folders["helper"].path, "is the file of the helper"),
    ):
        shutil.copy(found / "reports.db", place)
        with pytest.raises(InvalidInputError, match=why):
            world.start("leader")
    place.write_bytes(newest)
    world.start("leader")


# ---- what the other server says ----


def test_checks_that_are_cut_doubled_or_of_other_ids_decide_nothing_wrong(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = Asking.checks
    change: list[Callable[[bytes], bytes]] = []

    async def changed(self: Asking, ids: Any) -> Any:
        frame = await checks(self, ids)
        return frame if frame is None or not change else change[0](frame)

    monkeypatch.setattr(Asking, "checks", changed)

    async def lands() -> None:
        await world.send(*ALL)
        tending = world.tending()
        for lie in (lambda f: f[:-1], lambda f: f + f, lambda f: f[:100], lambda f: b""):
            change[:] = [lie]
            with pytest.raises(BatchRefusedError):
                await tending.step()
            assert tending.leader.unjudged == 5
        change.clear()
        # of ids that the leader did not ask for, and of none that it has
        helper = world.processes["helper"].releases[0].server
        all_of_them = helper.checks()[0]
        ask = Tending._of
        with monkeypatch.context() as few:
            change[:] = [lambda f: all_of_them]

            async def one(self: Any, call: Any) -> Any:
                found = await ask(self, call)
                return found[:1] if isinstance(found, list) else found

            few.setattr(Tending, "_of", one)
            await tending.step()
        change.clear()
        assert tending.leader.unjudged == 0 and not tending.leader.refused
        world.close()
        await world.land()

    asyncio.run(lands())
    check_landed(world, *ALL)


def test_an_offer_that_lacks_reports_or_names_unknown_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the sum and not in the offer is taken off, and the helper is asked for no more."""
    offer = Asking.offer

    async def lies(self: Asking) -> bytes:
        context = world.processes["leader"].releases[0].server._context
        rounds, ids = decode_ids(context, 8, await offer(self), Kind.OFFER, HELPER)
        found = sorted([*sorted(ids)[1:], bytes(16), 16 * b"\xff"])
        return frame_of(Kind.OFFER, context, HELPER, encode_ids(rounds, found))

    monkeypatch.setattr(Asking, "offer", lies)

    async def lands() -> list[int]:
        await world.send(*ALL)
        tending = world.tending()
        await tending.step()
        assert tending.leader.unjudged == 0  # all five are in the sum
        leader = tending.leader
        first = sorted(leader._added)[0]
        world.close()
        await world.land()
        return [i for i in ALL if leader._facts.report(first) != _sha(world, i)]

    kept = asyncio.run(lands())
    assert len(kept) == 4
    check_landed(world, *kept)


def _sha(world: World, i: int) -> bytes:
    import hashlib

    return hashlib.sha256(world.report(i).leader).digest()


def test_an_answer_that_does_not_fit_may_be_followed_by_the_right_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, lies = Asking.answer, [b"no answer"]

    async def answered(self: Asking, query: bytes) -> bytes:
        return lies.pop() if lies else await answer(self, query)

    monkeypatch.setattr(Asking, "answer", answered)

    async def lands() -> None:
        await world.send(0, 1, 2)
        world.close()
        await world.land()
        assert any("no answer to the query" in note for note in world.processes["leader"].notes)

    asyncio.run(lands())
    check_landed(world, 0, 1, 2)


def test_a_helper_that_is_away_or_answers_something_else_is_asked_again(world: World) -> None:
    class Odd(httpx.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        said = [
            None,
            # httpx cannot read this address, and says so by an error of its own
            httpx.Response(302, headers={"location": "https:foo"}, stream=httpx.ByteStream(b"")),
            httpx.Response(202, stream=httpx.ByteStream(b"")),
            httpx.Response(200, stream=httpx.ByteStream(b"a portal")),
            httpx.Response(202, stream=httpx.ByteStream(b"")),
        ]

        async def handle_async_request(self, request: Any) -> Any:
            if not self.said:
                app = world.processes["helper"].channel.application()
                return await httpx.ASGITransport(app).handle_async_request(request)
            if (found := self.said.pop(0)) is None:
                raise httpx.ConnectError("away")
            return found

    async def asks() -> None:
        await world.send(0, 1, 2)
        world.close()
        tending = world.tending()
        tending._look(tending.closings.read())
        world.now += 1000
        await tending.step()
        async with httpx.AsyncClient(transport=Odd()) as http:
            asking = world.processes["leader"].tending(0, http).asking
            query = tending.leader.resume()
            with pytest.raises(ChannelError, match="cannot be reached .away"):
                await asking.answer(query)
            with pytest.raises(ChannelError, match="cannot be reached"):
                await asking.answer(query)
            with pytest.raises(ChannelError, match="answers query with HTTP 200"):
                await asking.answer(query)
            answer = await asking.answer(query)
        assert answer == world.processes["helper"].releases[0].server.answer(query)

    asyncio.run(asks())


def test_a_client_that_goes_away_costs_nobody_else_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.processes["helper"].releases[0]
    go, receive = threading.Event(), one.server.receive

    def slow(frame: bytes, now: int) -> Any:
        assert go.wait(20)
        return receive(frame, now)

    monkeypatch.setattr(one.server, "receive", slow)

    async def goes() -> None:
        first, second = (asyncio.create_task(one.take(world.report(i).helper)) for i in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        idle = asyncio.create_task(one.idle())
        await asyncio.sleep(0.01)
        assert not idle.done()  # a process that is told to go waits for the group
        go.set()
        assert await second == "accepted" and len(one.server) == 2
        await idle

    asyncio.run(goes())


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("at", [-1, -40])  # of a checksum, and of a counter
def test_a_sum_that_is_wrong_is_lost_and_its_reports_are_erased(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int, dies: bool
) -> None:
    answer = Asking.answer

    async def wrong(self: Asking, query: bytes) -> bytes:
        found = bytearray(await answer(self, query))
        found[at] ^= 1
        return bytes(found)

    monkeypatch.setattr(Asking, "answer", wrong)

    async def lands() -> None:
        await world.send(0, 1, 2)
        world.close()
        if dies:
            with monkeypatch.context() as dying:

                def death(*_: Any) -> None:
                    raise KeyboardInterrupt

                dying.setattr(Leader, "erase", death)
                with pytest.raises(KeyboardInterrupt):
                    await world.land()
            world.start(*SIDES)
            assert await standing(world, "leader") is Release.CLOSED
        else:  # the disk is full when it is to be written down
            fails = iter([InvalidInputError("full")])
            change = Closings.change

            def changed(self: Any, number: int, **values: Any) -> Any:
                if "lost" in values and (error := next(fails, None)) is not None:
                    raise error
                return change(self, number, **values)

            monkeypatch.setattr(Closings, "change", changed)
        tending = await world.land()
        assert tending.has_told and tending.collecting.is_lost
        assert await standing(world, "leader") is Release.CLOSED

    asyncio.run(lands())
    assert not (world.folders["leader"].path / "result.fed").exists()
    for side in SIDES:
        assert world.folders[side].landed() == {0}  # over for good: the key may go
        content = (world.folders[side].path / "reports.db").read_bytes()
        assert not any(getattr(each, side) in content for each in world.reports.values())


# ---- the channel ----


def test_what_the_leader_asks_wrongly_is_refused(world: World) -> None:
    async def asked() -> None:
        await world.send(0, 1, 2)
        base = f"https://helper{world.path_of()}"
        async with world.channel as http:

            async def post(name: str, body: bytes = b"", place: str = base) -> Any:
                found = await http.post(f"{place}/{name}", content=body)
                assert found.headers["cache-control"] == "no-store"
                return found.status_code

            assert await post("checks", bytes(16 * channel.MOST_IDS)) == 204  # it holds none
            assert await post("checks", bytes(16 * channel.MOST_IDS + 16)) == 413
            assert await post("checks", bytes(15)) == 400
            assert await post("checks", b"", base.replace("releases/0", "releases/1")) == 404
            assert await post("checks", b"", base.replace(world.plan.fingerprint, "00")) == 404
            assert await post("query", b"no query") == 409
            assert await post("query", bytes(10**6)) == 413
            assert await post("landed") == 409  # it was not answered
            assert (await http.get(f"{base}/offer")).headers["cache-control"] == "no-store"

    asyncio.run(asked())


def test_an_answer_that_takes_long_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = world.processes["helper"]
    helper.channel.patience = 0.0
    go = threading.Event()
    server = helper.releases[0].server
    answer, answers = server.answer, list[bytes]()

    def slow(query: bytes) -> bytes:
        assert go.wait(20)
        answers.append(answer(query))
        return answers[-1]

    monkeypatch.setattr(server, "answer", slow)

    async def asks() -> None:
        await world.send(0, 1, 2)
        world.close()
        tending = world.tending()
        tending._look(tending.closings.read())
        world.now += 1000
        await tending.step()
        query = tending.leader.resume()
        place = f"https://helper{world.path_of()}/query"
        async with world.channel as http:
            for _ in range(3):
                found = await http.post(place, content=query)
                assert (found.status_code, found.headers["retry-after"]) == (202, "1")
            helper.channel.patience = 20.0
            other = asyncio.create_task(http.post(place, content=b"another query"))
            await asyncio.sleep(0.01)
            go.set()
            assert (await other).status_code == 503  # it is not mistaken for that
        await world.land()

    asyncio.run(asks())
    assert len(set(answers)) == 1
    check_landed(world, 0, 1, 2)


def test_another_query_drops_no_answer_that_nobody_has_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = world.processes["helper"]
    helper.channel.patience = 0.0
    server = helper.releases[0].server
    answer, asked = server.answer, list[bytes]()

    def counted(query: bytes) -> bytes:
        asked.append(query)
        return answer(query)

    monkeypatch.setattr(server, "answer", counted)

    async def asks() -> None:
        await world.send(0, 1, 2)
        world.close()
        tending = world.tending()
        tending._look(tending.closings.read())
        world.now += 1000
        await tending.step()
        query = tending.leader.resume()
        place = f"https://helper{world.path_of()}/query"
        async with world.channel as http:
            assert (await http.post(place, content=b"no query")).status_code == 202
            await asyncio.wait({helper.channel._answers[0].task})
            # a query that was refused is in nobody's way
            assert (await http.post(place, content=query)).status_code == 202
            await asyncio.wait({helper.channel._answers[0].task})
            assert (await http.post(place, content=b"another query")).status_code == 409
            found = await http.post(place, content=query)
            assert found.status_code == 200
            assert asked == [b"no query", query, b"another query"]
            assert found.content == answer(query)
        await world.land()

    asyncio.run(asks())
    check_landed(world, 0, 1, 2)


def test_who_waits_for_an_old_answer_drops_no_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests wait for one answer, and a third comes after the first of them has it."""
    parameters = SimpleNamespace(n_max=8)
    release: Any = SimpleNamespace(server=SimpleNamespace(parameters=parameters))
    found = channel.Channel("plan", [release], cast("Any", None), print)
    bodies: list[asyncio.Future[bytes]] = []
    works: list[asyncio.Future[bytes]] = []

    async def body(_: Any) -> bytes:
        bodies.append(asyncio.get_running_loop().create_future())
        return await bodies[-1]

    async def work(*_: Any) -> bytes:
        works.append(asyncio.get_running_loop().create_future())
        return await works[-1]

    monkeypatch.setattr(channel, "body_of", body)
    monkeypatch.setattr(channel, "length_of", lambda *_: 0)
    monkeypatch.setattr(found, "_of", work)

    async def turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def asks() -> None:
        first, second, third = (
            asyncio.create_task(found._query(cast("Any", None), 0)) for _ in range(3)
        )
        await turns()
        bodies[0].set_result(b"query")
        await turns()
        # wakes the third between the first and the second
        found._answers[0].task.add_done_callback(lambda _: bodies[2].set_result(b"query"))
        bodies[1].set_result(b"query")
        await turns()
        works[0].set_result(b"answer")
        assert [(await one).body for one in (first, second)] == [b"answer"] * 2
        await turns()
        assert len(works) == 2 and not third.done()
        # whoever asks for the new answer waits for it, and begins no further work
        fourth = asyncio.create_task(found._query(cast("Any", None), 0))
        await turns()
        bodies[3].set_result(b"query")
        await turns()
        works[1].set_result(b"again")
        assert [(await one).body for one in (third, fourth)] == [b"again"] * 2
        assert len(works) == 2 and not found._answers

    asyncio.run(asks())


def test_another_query_that_has_an_answer_gets_it_and_drops_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters = SimpleNamespace(n_max=8)
    server = SimpleNamespace(parameters=parameters, answer=lambda query: query + b"!")
    release: Any = SimpleNamespace(server=server)
    found = channel.Channel("plan", [release], cast("Any", None), print)
    found.patience = 0.0
    bodies, is_done = iter([b"one", b"two", b"one"]), asyncio.Event()

    async def body(_: Any) -> bytes:
        return next(bodies)

    async def work(_: int, do: Callable[[Any], bytes]) -> bytes:
        await is_done.wait()
        return do(server)

    monkeypatch.setattr(channel, "body_of", body)
    monkeypatch.setattr(channel, "length_of", lambda *_: 0)
    monkeypatch.setattr(found, "_of", work)

    async def asks() -> None:
        request = cast("Any", None)
        assert (await found._query(request, 0)).status_code == 202
        is_done.set()
        await found._answers[0].task
        assert (await found._query(request, 0)).body == b"two!"
        assert (await found._query(request, 0)).body == b"one!"
        assert not found._answers

    asyncio.run(asks())


def test_a_helper_that_fails_says_so_to_its_operator_and_the_leader_asks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = world.processes["helper"]
    errors = iter([StoreError("full"), OvertakenError("gone")])
    offer = helper.releases[0].server.offer

    def fails() -> bytes:
        if (error := next(errors, None)) is not None:
            raise error
        return offer()

    monkeypatch.setattr(helper.releases[0].server, "offer", fails)

    async def lands() -> None:
        await world.send(0, 1, 2)
        world.close()
        await world.land()

    asyncio.run(lands())
    assert helper.notes == ["the leader was not answered: full"]
    assert helper.releases[0].overtaken.is_set()
    notes = [note for note in world.processes["leader"].notes if "waits" in note]
    assert notes == [
        f"release 0 waits: the helper answers offer with HTTP 503 ({why}: send the same again)"
        for why in ("the store does not answer", "another process goes on")
    ]
    check_landed(world, 0, 1, 2)


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        (PROBLEM_TYPE, b'{"title": "no\\u001b[31m report"}', r" (no\x1b[31m report)"),
        (PROBLEM_TYPE, b'{"title": "' + 900 * b"a" + b'"}', f" ({99 * 'a'}…{99 * 'a'})"),
        ("text/html", b'{"title": "no"}', ""),
        (PROBLEM_TYPE, b'{"title": 1}', ""),
        (PROBLEM_TYPE, b"{}", ""),
        (PROBLEM_TYPE, b"[1]", ""),
        (PROBLEM_TYPE, b"{", ""),
    ],
)
def test_the_leaders_operator_hears_why_the_helper_refuses(
    world: World, kind: str, content: bytes, said: str
) -> None:
    def refuses(_: Any) -> httpx.Response:
        body = httpx.ByteStream(content)
        return httpx.Response(409, headers={"content-type": kind}, stream=body)

    async def asks() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(refuses)) as http:
            await world.processes["leader"].tending(0, http).asking.offer()

    with pytest.raises(ChannelError) as refused:
        asyncio.run(asks())
    assert str(refused.value) == f"the helper answers offer with HTTP 409{said}"


def test_the_helper_keeps_its_key_until_the_sum_has_landed(world: World) -> None:
    folder = world.folders["helper"]

    async def lands() -> None:
        await world.send(0, 1, 2)
        world.close()
        tending = world.tending()
        tending._look(tending.closings.read())
        world.now += 1000
        await tending.step()  # the query
        with pytest.raises(InvalidInputError, match="release 0 of .* has not landed"):
            folder.retire(1)
        await tending.step()  # the answer, and the sum has landed
        assert world.processes["helper"].releases[0].server.state is BatchState.DONE
        with pytest.raises(InvalidInputError, match="release 0 of .* has not landed"):
            folder.retire(1)
        # a leader that ended now would leave a helper that may never destroy its key
        with pytest.raises(InvalidInputError, match="the helper has not heard that release 0"):
            world.folders["leader"].retire(1)
        await tending.step()  # the helper hears of it
        store: BatchStore = world.processes["helper"].claimed.store
        assert store.kept(landed_name(range(1))) == b"landed"
        with held_by(folder.path, 5), pytest.raises(InvalidInputError, match="process 5 runs"):
            folder.retire(1)
        folder.retire(1)

    asyncio.run(lands())
    assert not folder.settings.key.exists() and folder.is_retired
    with pytest.raises(InvalidInputError, match="was destroyed before"):
        folder.retire(1)
    world.folders["leader"].retire(1)
    check_landed(world, 0, 1, 2)


def test_after_the_keys_are_gone_clients_hear_that_it_is_over(world: World) -> None:
    app = collecting.over("helper", world.plan.fingerprint, 1)

    async def over() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://h") as h:
            found = await h.get(world.path_of())
            assert read_state(found.content, "helper") is Release.CLOSED
            found = await h.put(f"{world.path_of()}/reports", content=b"late")
            assert (found.status_code, found.headers["content-type"]) == (410, STATE_TYPE)
            assert found.headers["cache-control"] == "no-store"
            for path in (world.path_of(1), "/v1/plans/00/releases/0"):
                for found in (await h.get(path), await h.put(f"{path}/reports", content=b"")):
                    assert found.status_code == 404
                    # its own server may begin later, and a cache would keep this
                    assert found.headers["cache-control"] == "no-store"

    asyncio.run(over())


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_each_server_believes_the_certificate_of_the_other_and_no_stranger(tmp_path: Path) -> None:
    plan_of(tmp_path)
    for name in ("leader", "helper", "stranger"):
        certificate(name, tmp_path)

    def pins(own: str, other: str) -> Certificates:
        own_files = tmp_path / f"{own}.crt", tmp_path / f"{own}-tls.key"
        return Certificates(*own_files, tmp_path / f"{other}.crt")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def calls() -> None:
        with PeerAddress.parse("127.0.0.1:0").bound() as listening:
            port = listening.getsockname()[1]

            async def call(verify: Any) -> int:
                async with httpx.AsyncClient(verify=verify) as http:
                    return int((await http.get(f"https://127.0.0.1:{port}/")).status_code)

            async with served(app, listening, pins("helper", "leader").of_listener()):
                assert await call(pins("leader", "helper").of_caller()) == 204
                for stranger in (
                    pins("stranger", "helper").of_caller(),  # shows another certificate
                    False,  # shows none
                    pins("leader", "stranger").of_caller(),  # believes another helper
                ):
                    with pytest.raises(httpx.TransportError):
                        await call(stranger)

    asyncio.run(calls())


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_nobody_is_believed_because_an_authority_signed_his_certificate(tmp_path: Path) -> None:
    def openssl(words: str) -> None:
        subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)

    for name in ("authority", "helper"):
        certificate(name, tmp_path)
    for name in ("leader", "stranger"):
        new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        openssl(f"req {new} -keyout {name}-tls.key -out {name}.csr -subj /CN={name}")
        by = "-CA authority.crt -CAkey authority-tls.key -CAcreateserial -days 2"
        openssl(f"x509 -req -in {name}.csr {by} -out {name}.crt")
    leader, authority = (tmp_path / f"{name}.crt" for name in ("leader", "authority"))
    (tmp_path / "chain.crt").write_text(leader.read_text() + authority.read_text())

    def pins(own: str, other: str) -> Certificates:
        own_files = tmp_path / f"{own}.crt", tmp_path / f"{own}-tls.key"
        return Certificates(*own_files, tmp_path / f"{other}.crt")

    def meet(caller: str, other: str) -> None:
        ends = [ssl.MemoryBIO(), ssl.MemoryBIO()]
        helper = pins("helper", other).of_listener().wrap_bio(*ends, server_side=True)
        asks = pins(caller, "helper").of_caller().wrap_bio(*reversed(ends))
        for end in (asks, helper, asks):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        helper.do_handshake()

    meet("leader", "leader")
    for caller, other in (("stranger", "leader"), ("stranger", "authority")):
        with pytest.raises(ssl.SSLCertVerificationError):
            meet(caller, other)
    with pytest.raises(InvalidInputError, match=r"chain\.crt holds 2 certificates"):
        meet("stranger", "chain")
    with pytest.raises(InvalidInputError, match=r"helper\.crt is the certificate of this server"):
        pins("helper", "helper").of_listener()


def test_a_folder_that_is_made_twice_or_of_the_other_side(world: World, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="exists already"):
        made(tmp_path, "leader")
    with pytest.raises(InvalidInputError, match="is the folder of the leader"):
        AggregateFolder.open(world.folders["leader"].path, "helper")
    again = AggregateFolder.open(world.folders["leader"].path, "leader")
    assert (again.plan, again.settings) == (world.plan, world.folders["leader"].settings)


# ---- web pages ----

PAGE = "https://page.example"


@pytest.fixture
def paged(tmp_path: Path) -> World:
    return World(tmp_path, origins=(PAGE,))


async def preflight(
    world: World,
    side: Any,
    *,
    report: bool = True,
    page: str = PAGE,
    method: str = "PUT",
    **more: str,
) -> Any:
    """Return what a browser hears before a page sends, once per combination."""
    asked = {"origin": page, "access-control-request-method": method}
    asked |= {f"access-control-request-{name}": value for name, value in more.items()}
    async with world.http(side) as http:
        path = f"{world.path_of()}/reports" if report else world.path_of()
        return await http.options(path, headers=asked)


@pytest.mark.parametrize("side", SIDES)
def test_a_listed_page_may_bring_reports_and_do_nothing_else(paged: World, side: Any) -> None:
    async def asks() -> None:
        said = await preflight(paged, side, headers="content-type")
        allowed = {name: value for name, value in said.headers.items() if "-allow-" in name}
        assert said.status_code == 200 and int(said.headers["access-control-max-age"]) > 0
        assert allowed.pop("access-control-allow-headers").lower().endswith("content-type")
        assert allowed == {
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": "PUT",
        }
        for name in ("authorization", "cookie", "x-other"):
            assert (await preflight(paged, side, headers=name)).status_code == 400
        for method in ("POST", "DELETE", "GET"):
            assert (await preflight(paged, side, method=method)).status_code == 400
        assert (await preflight(paged, side, method="GET", report=False)).status_code == 200
        assert (await preflight(paged, side, report=False)).status_code == 400
        async with paged.http(side) as http:
            bare = await http.options(paged.path_of(), headers={"origin": PAGE})
            assert bare.status_code == 405

    asyncio.run(asks())


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("page", ["https://other.example", "http://page.example", "null"])
def test_a_page_that_is_not_listed_may_do_nothing(paged: World, side: Any, page: str) -> None:
    async def asks() -> None:
        said = await preflight(paged, side, page=page)
        assert said.status_code == 400 and "access-control-allow-origin" not in said.headers
        async with paged.http(side) as http:
            read = await http.get(paged.path_of(), headers={"origin": page})
        assert "access-control-allow-origin" not in read.headers

    asyncio.run(asks())


def test_a_listed_page_reads_answers_the_time_and_when_to_ask_again(paged: World) -> None:
    async def asks() -> None:
        paged.processes["helper"].has_room = False
        path = f"{paged.path_of()}/reports"
        async with paged.http("helper") as http:
            for found in (
                await http.get(paged.path_of(), headers={"origin": PAGE}),
                await http.put(path, content=b"-", headers={"origin": PAGE}),
            ):
                assert found.status_code == 503
                assert found.headers["access-control-allow-origin"] == PAGE
                shown = found.headers["access-control-expose-headers"].lower()
                assert {each.strip() for each in shown.split(",")} == {"date", "retry-after"}

    asyncio.run(asks())


def test_no_page_may_ask_unless_the_settings_list_it(world: World) -> None:
    async def asks() -> None:
        for side in SIDES:
            said = await preflight(world, side)
            assert said.status_code == 405 and "access-control-allow-origin" not in said.headers

    asyncio.run(asks())


def test_a_listed_page_hears_from_a_retired_server_that_all_is_over(paged: World) -> None:
    async def asks() -> None:
        app = collecting.over("leader", paged.plan.fingerprint, 1, (PAGE,))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://leader") as http:
            path, page = f"{paged.path_of()}/reports", {"origin": PAGE}
            asked = page | {"access-control-request-method": "PUT"}
            assert (await http.options(path, headers=asked)).status_code == 200
            gone = await http.put(path, content=b"-", headers=page)
            assert gone.status_code == 410
            assert gone.headers["access-control-allow-origin"] == PAGE

    asyncio.run(asks())
