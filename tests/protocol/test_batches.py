"""Two servers whose facts and reports are on disk: groups, deaths, old copies, damage, memory."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import shutil
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import test_proven as proven
import test_two_server as plain
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from test_report_proofs import KEY, LEADER_KEY, proof_of

import fedtally
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.hpke import PrivateKey
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal as ClientJournal
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server import (
    BatchPolicy,
    BatchRefusedError,
    BatchState,
    Helper,
    Leader,
    LostReportError,
    Outcome,
    Report,
    make_proven_report,
    servers,
)
from fedtally.store import Batch, Batches, BatchStore, StoreError, claims, database, two_server

NOW, NOISE = plain.NOW, 40
SIDES: tuple[Any, Any] = ("leader", "helper")
PLAN: Any = SimpleNamespace(fingerprint="plan-0")
pytestmark = pytest.mark.usefixtures("no_sync")


class Kind(NamedTuple):
    """Reports with proofs, or without: what both servers are made with, and who reports what."""

    terms: Any
    rounds: range
    allowed: AllowList
    policy: Any
    keys: tuple[PrivateKey, PrivateKey]
    report: Callable[[int], Report]
    vector: Callable[[int], Any]


PROOF, PLAIN = proven.plan(NOISE), plain.parameters(noise=NOISE)
KINDS = {
    "proofs": Kind(
        PROOF,
        proven.ROUNDS,
        proven.ALLOWED,
        proven.POLICY,
        (LEADER_KEY, KEY),
        lambda i: proven.report(i, proof=PROOF),
        proven.vector_of,
    ),
    "none": Kind(
        PLAIN,
        range(5, 6),
        plain.ALLOWED,
        plain.POLICY,
        (plain.LEADER_KEY, plain.HELPER_KEY),
        lambda i: plain.report(i, (1, 0, -1), p=PLAIN),
        lambda i: np.array((1, 0, -1)),
    ),
}


class World:
    """Two servers on disk, which can be started again; it remembers what a witness would see."""

    def __init__(self, folder: Path, kind: Kind = KINDS["proofs"]) -> None:
        self.folder, self.kind = folder, kind
        self.reports: dict[int, Report] = {}
        self.drawn = [0, 0]
        self.queries: set[bytes] = set()
        self.answers: set[bytes] = set()
        for side in SIDES:
            Batches.open(folder / f"{side}.db", create=True)
        self.stores: list[BatchStore] = [None, None]  # type: ignore[list-item]
        self.batches: list[Any] = [None, None]
        self.start(0, 1)

    def claim(self, side: int) -> BatchStore:
        name = SIDES[side]
        file = Batches.open(self.folder / f"{name}.db")
        return file.claim(PLAN, name, mark=self.folder / f"{name}.mark")

    def start(self, *sides: int) -> None:
        """Let a new process run a server: nothing is left but its disk."""
        for side in sides:
            store, kind = self.claim(side), self.kind
            common = kind.terms, kind.rounds, kind.allowed, kind.policy, store, kind.keys[side]
            noise = self.noise(side)
            made = (Leader, Helper)[side](*common, noise, reports=store.reports(kind.rounds))
            self.stores[side], self.batches[side] = store, Batch(store, made)

    def noise(self, side: int) -> Callable[[], Any]:
        def draw() -> Any:
            self.drawn[side] += 1
            return np.full(len(self.kind.vector(0)), self.drawn[side], np.int64)

        return draw

    @property
    def leader(self) -> Leader:
        return self.batches[0]._server  # type: ignore[no-any-return]

    @property
    def helper(self) -> Helper:
        return self.batches[1]._server  # type: ignore[no-any-return]

    def report(self, i: int) -> Report:
        return self.reports.setdefault(i, self.kind.report(i))

    def send(self, side: int, *people: int) -> list[Any]:
        frames = [getattr(self.report(i), SIDES[side]) for i in people]
        return self.batches[side].take(frames, NOW)  # type: ignore[no-any-return]

    def take(self, *people: int) -> None:
        for side in (1, 0):
            assert self.send(side, *people) == [Outcome.ACCEPTED] * len(people)

    def judge(self, most: int = 4096) -> None:
        asked = 0
        while asked < self.leader.unjudged:
            ids = self.leader.to_check(most)
            asked += len(ids)
            for frame in self.helper.checks(ids):
                with self.batches[0].server() as leader:
                    leader.judge(frame)

    def query(self) -> bytes:
        with self.batches[0].server() as leader:
            leader.stop()
        self.judge()
        with self.batches[0].server() as leader:
            query = leader.query(self.helper.offer())
        self.queries.add(query)
        return query

    def close(self) -> Any:
        """Return the sum, from whatever state both are in."""
        with self.batches[0].server() as leader:
            is_open = leader.state in (BatchState.COLLECTING, BatchState.STOPPED)
        query = self.query() if is_open else self.leader.resume()
        self.queries.add(query)
        answer = self.leader.kept_answer
        if answer is None:
            with self.batches[1].server() as helper:
                answer = helper.answer(query)
        self.answers.add(answer)
        with self.batches[0].server() as leader:
            return leader.finish(answer)

    def expected(self, *people: int) -> list[int]:
        return (sum(map(self.kind.vector, people)) + sum(self.drawn)).tolist()  # type: ignore[no-any-return]

    def sql(self, side: int, statement: str, *values: Any) -> list[Any]:
        """Do what no process of this package does."""
        with closing(sqlite3.connect(self.folder / f"{SIDES[side]}.db")) as file:
            found = file.execute(statement, values).fetchall()
            file.commit()
        return found

    def rows(self, side: int) -> int:
        return int(self.sql(side, "SELECT count(*) FROM fedtally_reports")[0][0])

    def id(self, i: int) -> bytes:
        return plain.id_of(self.report(i))


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, KINDS[request.param])


@pytest.fixture
def proofs(tmp_path: Path) -> World:
    return World(tmp_path)


# ---- the sum ----


@settings(max_examples=12)
@given(st.data())
def test_the_sum_is_the_plain_one_whatever_is_dropped(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Reports that one server lacks, groups of any size, checks of any size, and restarts."""
    draw = data.draw
    kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    world = World(tmp_path_factory.mktemp("sum"), kind)
    people = draw(st.permutations(range(6)))
    lacks = {i: draw(st.sampled_from([None, None, 0, 1])) for i in people[3:]}
    for side in (1, 0):
        mine = [i for i in people if lacks.get(i) != side]
        while mine:
            size = draw(st.integers(1, len(mine)))
            assert set(world.send(side, *mine[:size])) == {Outcome.ACCEPTED}
            mine = mine[size:]
            if draw(st.booleans()):
                world.judge(draw(st.integers(1, 4)))
            if draw(st.booleans()):
                world.start(draw(st.integers(0, 1)))
    total = world.close()
    kept = [i for i in people if lacks.get(i) is None]
    assert total.tolist() == world.expected(*kept)
    assert world.leader.count == len(kept) and world.drawn == [1, 1]


def test_an_offer_that_lacks_judged_reports_is_subtracted_and_a_refusal_changes_nothing(
    proofs: World,
) -> None:
    """Conditions (c) and (f): on a copy, and never below min_batch."""
    proofs.take(0, 1, 2, 3, 4)
    proofs.judge()
    assert (proofs.leader.unjudged, len(proofs.leader)) == (0, 5)
    before = proofs.leader._sum.copy()  # type: ignore[union-attr]
    kind = proofs.kind
    fewer = Helper(kind.terms, kind.rounds, kind.allowed, kind.policy, plain.MemoryJournal(), KEY,
                   proofs.noise(1))  # fmt: skip
    for i in (0, 1):
        fewer.receive(proofs.report(i).helper, NOW)
    proofs.leader.stop()
    with pytest.raises(BatchRefusedError, match="must have 3 .. 12 reports that both .* got 2"):
        proofs.leader.query(fewer.offer())
    for i in (3, 4):
        fewer.receive(proofs.report(i).helper, NOW)
    proofs.leader.stop()
    with pytest.MonkeyPatch.context() as full:
        full.setattr(proofs.stores[0], "keep", _raise(StoreError("no room")))
        with pytest.raises(StoreError, match="no room"):
            proofs.leader.query(fewer.offer())
    np.testing.assert_array_equal(proofs.leader._sum, before)
    proofs.drawn = [0, 0]
    total = proofs.leader.finish(fewer.answer(proofs.leader.query(fewer.offer())))
    assert total.tolist() == proofs.expected(0, 1, 3, 4)


def test_the_helper_takes_from_its_sum_what_is_not_asked_for(
    proofs: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads again only what it had not checked, or what the leader refused or never had."""
    reads: list[int] = []
    frames = two_server.StoredReports.frames
    proofs.reports[5] = proven.lie(5, proof=proven.lying(PROOF))
    proofs.take(0, 1, 2, 3, 5)
    assert proofs.send(1, 6) == [Outcome.ACCEPTED]
    proofs.judge()
    proofs.judge()  # again: a report is in the sum once
    (every,) = proofs.helper.checks()
    proofs.helper.checks()
    proofs.take(4)
    with proofs.batches[0].server() as leader:
        leader.stop()
        for frame in proofs.helper.checks([proofs.id(4)]):
            leader.judge(frame)
        query = leader.query(proofs.helper.offer())

    def noted(self: Any, ids: Any) -> Any:
        reads.append(len(ids))
        return frames(self, ids)

    monkeypatch.setattr(two_server.StoredReports, "frames", noted)
    total = proofs.leader.finish(proofs.helper.answer(query))
    assert total.tolist() == proofs.expected(0, 1, 2, 3, 4)
    assert reads == [2]  # the refused one, and the one that the leader never had
    assert len(every) == 60 + 6 * (16 + PROOF.check_bytes)


@pytest.mark.parametrize(
    ("bound", "value", "most"), [("_READ_AT_ONCE", 2, 2), ("_READ_BYTES", 1, 1)]
)
def test_reports_are_read_a_page_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, most: int
) -> None:
    """A page has few reports, and few bytes: with a million reports memory is bounded."""
    reads: list[int] = []
    frames = two_server.StoredReports.frames

    def noted(self: Any, ids: Any) -> Any:
        reads.append(len(ids))
        return frames(self, ids)

    monkeypatch.setattr(two_server.StoredReports, "frames", noted)
    monkeypatch.setattr(servers, bound, value)
    world.take(0, 1, 2, 3, 4)
    assert world.close().tolist() == world.expected(0, 1, 2, 3, 4)
    assert max(reads) == most
    assert sum(reads) == 2 * 5  # both servers read each report once


def test_what_the_helper_never_got_keeps_nobody_from_being_checked(proofs: World) -> None:
    """Whoever asks for few at a time comes to all of them."""
    assert proofs.send(0, *range(8)) == [Outcome.ACCEPTED] * 8
    assert proofs.send(1, 6, 7) == [Outcome.ACCEPTED] * 2
    proofs.judge(2)
    assert proofs.leader.unjudged == 6
    with pytest.raises(InvalidInputError, match="most must be"):
        proofs.leader.to_check(4097)


def test_checks_are_of_the_ids_that_are_asked_for(proofs: World) -> None:
    proofs.take(0, 1, 2)
    asked = [proofs.id(i) for i in (2, 0)]
    (frame,) = proofs.helper.checks([*asked, bytes(16), *asked])
    size = 16 + PROOF.check_bytes
    assert [frame[60 + size * i :][:16] for i in range(2)] == sorted(asked)
    assert len(frame) == 60 + 2 * size
    assert proofs.helper.checks([]) == proofs.helper.checks([bytes(16)]) == []
    with pytest.raises(BatchRefusedError, match="at most 4096 ids at once, got 4097"):
        proofs.helper.checks([bytes(16)] * 4097)
    with proofs.batches[0].server() as leader:
        leader.judge(frame)
        assert leader.unjudged == 1 and leader.to_check() == [proofs.id(1)]


def test_without_proofs_nothing_waits_for_a_check(tmp_path: Path) -> None:
    world = World(tmp_path, KINDS["none"])
    world.take(0, 1, 2)
    assert (world.leader.unjudged, world.leader.to_check()) == (0, [])
    assert world.helper.checks([world.id(0)]) == []


def test_a_refused_report_stays_refused_after_a_restart(proofs: World) -> None:
    proofs.reports[4] = proven.lie(4, proof=proven.lying(PROOF))
    proofs.take(0, 1, 2, 4)
    for _ in range(2):
        proofs.judge()
        assert [one.identity for one in proofs.leader.refused] == [proven.key_of(4)]
        assert proofs.send(0, 4) == [Outcome.ACCEPTED]  # a copy changes nothing
        assert proofs.leader.unjudged == 0
        proofs.start(0)
    assert proofs.close().tolist() == proofs.expected(0, 1, 2)


def test_a_stopped_leader_accepts_copies_and_nothing_else(world: World) -> None:
    world.take(0, 1, 2)
    world.leader.stop()
    assert world.send(0, 0, 3) == [Outcome.ACCEPTED, Outcome.CLOSED]
    world.close()
    assert world.send(0, 0, 3) == [Outcome.ACCEPTED, Outcome.CLOSED]


# ---- groups ----


def test_one_report_of_an_identity_in_a_group_too(proofs: World) -> None:
    other = proven.report(0, proof=PROOF, nonce=b"another nonce...")
    frames = [proofs.report(0).leader, other.leader, proofs.report(0).leader]
    accepted, second = Outcome.ACCEPTED, Outcome.SECOND_REPORT
    assert proofs.batches[0].take(frames, NOW) == [accepted, second, accepted]
    assert (len(proofs.leader), proofs.rows(0)) == (1, 1)
    proofs.start(0)
    assert proofs.batches[0].take(frames, NOW) == [accepted, second, accepted]


def test_of_two_reports_of_one_id_one_is_stored(proofs: World) -> None:
    reports = proofs.stores[0].reports(proofs.kind.rounds)
    assert reports.put(bytes(16), b"one", (b"id", b"report of a"))
    assert not reports.put(bytes(16), b"other", (b"id", b"report of b"))
    assert reports.frames([bytes(16), bytes(15)]) == [b"one", None]
    assert proofs.stores[0].kept(b"report of b") is None
    assert reports.put(bytes(16), b"one", (b"id", b"report of a"))


def _raise(error: BaseException) -> Callable[..., Any]:
    def raising(*_: Any, **__: Any) -> Any:
        raise error

    return raising


def test_a_report_that_raises_fails_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    receive, bad, taken = Leader.receive, world.report(2).leader, []

    def received(self: Leader, frame: bytes, now: int) -> Outcome:
        taken.append(frame)
        if frame == bad:
            raise MemoryError("one report")
        return receive(self, frame, now)

    monkeypatch.setattr(Leader, "receive", received)
    world.send(1, 0, 1, 2, 3)
    *_, failed, last = world.send(0, 0, 1, 2, 3)
    assert isinstance(failed, MemoryError) and last is Outcome.ACCEPTED
    assert len(taken) == 3 + 4  # the group up to it, then each: nothing is replayed
    assert len(world.leader) == 3 == world.rows(0)
    monkeypatch.undo()
    assert world.send(0, 2, 0) == [Outcome.ACCEPTED] * 2
    assert world.close().tolist() == world.expected(0, 1, 2, 3)


def test_a_group_that_was_written_though_it_failed_is_taken_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mark was not: so nobody heard of it, and each of its reports is there once."""
    mark, fails = claims.write_mark, list[Exception]()

    def marked(*given: Any) -> None:
        if fails:
            raise fails.pop()
        mark(*given)

    monkeypatch.setattr(claims, "write_mark", marked)
    for side in (1, 0):
        fails.append(StoreError("the disk of the mark"))
        assert world.send(side, 0, 1, 2) == [Outcome.ACCEPTED] * 3
        assert not fails and len(world.batches[side]._server) == world.rows(side) == 3
    assert world.close().tolist() == world.expected(0, 1, 2)


def test_a_batch_has_no_more_reports_on_disk_than_it_may_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were written though they failed count: a larger offer could never be read."""

    def marked(*_: Any) -> None:
        raise StoreError("the disk of the mark")

    for side in (1, 0):
        with monkeypatch.context() as failing:
            failing.setattr(claims, "write_mark", marked)
            said = world.send(side, 0, 1, 2, 3)
        assert [isinstance(one, StoreError) for one in said] == [True] * 4
        assert len(world.batches[side]._server) == world.rows(side) == 4
    most = dataclasses.replace(world.helper._parameters, n_max=3)
    world.helper._parameters = most  # as of a helper that had more before
    assert world.send(1, 5) == [Outcome.FULL]


def test_a_disk_that_fills_up_within_a_group_leaves_nothing_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the group wrote before it failed is gone from the disk, and so from the server."""
    write, left = two_server.StoredReports._write, iter(range(2))

    def filling(*given: Any) -> None:
        if next(left, None) is None:
            raise sqlite3.OperationalError("database or disk is full")
        write(*given)

    for side in (1, 0):
        left = iter(range(2))
        with monkeypatch.context() as full:
            full.setattr(two_server.StoredReports, "_write", filling)
            said = world.send(side, 0, 1, 2)
        assert [isinstance(one, StoreError) for one in said] == [True] * 3
        assert len(world.batches[side]._server) == world.rows(side) == 0
    world.take(0, 1, 2)
    assert world.close().tolist() == world.expected(0, 1, 2)


def test_of_a_group_of_which_nobody_knows_whether_it_is_on_disk_nothing_is_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reports come again, and count once."""

    def fails(*_: Any) -> None:
        raise StoreError("the disk is away")

    for side in (1, 0):
        with monkeypatch.context() as away:
            away.setattr(claims, "write_mark", fails)
            away.setattr(two_server.StoredReports, "frames", fails)
            said = world.send(side, 0, 1, 2)
        assert [isinstance(one, StoreError) for one in said] == [True] * 3
        assert len(world.batches[side]._server) == 0
    world.take(0, 1, 2)
    assert world.close().tolist() == world.expected(0, 1, 2)


def fill(world: World, side: int) -> Callable[[], None]:
    """Leave the file of a server no room; return what gives it room again."""

    def limit(pages: int) -> None:
        with world.stores[side]._batches._sqlite(write=False) as connection:
            connection.execute(f"PRAGMA max_page_count = {pages}")

    limit(world.sql(side, "PRAGMA page_count")[0][0])
    return lambda: limit(2**30)


def test_a_full_disk_takes_nothing_and_forgets_nothing(world: World) -> None:
    world.take(0, 1, 2)
    big = range(3, 6)
    for side in (1, 0):
        room = fill(world, side)
        held = len(world.batches[side]._server)
        # pages that are half empty may take a few: they are on disk, and no others are held
        for _ in range(2):
            said = world.send(side, *big)
            assert all(one is Outcome.ACCEPTED or isinstance(one, StoreError) for one in said)
            taken = sum(one is Outcome.ACCEPTED for one in said)
            assert len(world.batches[side]._server) == held + taken == world.rows(side)
        world.sql(side, "CREATE TABLE filler (data BLOB)")
        room()
        assert world.send(side, *big) == [Outcome.ACCEPTED] * 3
    assert world.close().tolist() == world.expected(0, 1, 2, *big)


class Blocked:
    """A group that is open until `fail`, and then fails, in a thread of its own."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go, self.said = threading.Event(), threading.Event(), []
        receive, first, frames = Leader.receive, [True], [world.report(4).leader]

        def slow(server: Leader, frame: bytes, now: int) -> Outcome:
            said = receive(server, frame, now)
            if first:
                first.clear()
                self.entered.set()
                assert self.go.wait(30)
                raise OSError("the disk is full")
            return said

        monkeypatch.setattr(Leader, "receive", slow)
        batch: Any = world.batches[0]
        self.thread = threading.Thread(target=lambda: self.said.extend(batch.take(frames, NOW)))
        self.thread.start()
        assert self.entered.wait(30)

    def fail(self) -> None:
        self.go.set()
        self.thread.join()


STEPS: dict[str, Callable[[World], Any]] = {
    "stop": lambda world: world.leader.stop(),
    "judge": lambda world: [world.leader.judge(one) for one in world.helper.checks()],
    "query": lambda world: world.leader.query(world.helper.offer()),
    "finish": lambda world: world.leader.finish(world.helper.answer(world.leader.resume())),
}


@pytest.mark.parametrize("through", ["the lock", "nothing"])
@pytest.mark.parametrize("step", STEPS)
def test_nothing_that_closes_a_batch_is_rolled_back_with_a_group(
    proofs: World, monkeypatch: pytest.MonkeyPatch, step: str, through: str
) -> None:
    """The fact is on disk when it is said: also where a caller takes no lock."""
    proofs.take(0, 1, 2, 3)
    for earlier in list(STEPS)[: list(STEPS).index(step)]:
        STEPS[earlier](proofs)
    blocked, done, said = Blocked(proofs, monkeypatch), threading.Event(), []

    def closing() -> None:
        if through == "nothing":
            with suppress(LocalProtocolError):
                said.append(STEPS[step](proofs))
        else:
            with proofs.batches[0].server():
                said.append(STEPS[step](proofs))
        done.set()

    thread = threading.Thread(target=closing)
    thread.start()
    if through == "the lock" or step in ("query", "finish"):
        assert not done.wait(0.2)
    blocked.fail()
    thread.join()
    assert done.is_set()
    if step in ("query", "finish"):
        asked = proofs.leader.resume()
        proofs.start(0)  # what left outlives the process
        assert proofs.leader.resume() == asked
        if step == "query":
            assert said == [asked]
        else:
            assert proofs.leader.kept_answer == proofs.helper.answer(asked)
            with pytest.raises(BatchRefusedError, match="another answer"):
                proofs.leader.finish(proofs.leader.kept_answer[:-1] + b"\1")
    # the group failed, and its report was taken again, before the leader stopped or not at all
    assert blocked.said in ([Outcome.ACCEPTED], [Outcome.CLOSED])


def test_a_fact_of_a_batch_never_joins_a_group(proofs: World) -> None:
    store = proofs.stores[0]
    with pytest.raises(LocalProtocolError, match="a group of reports is open"), store.group():
        store.keep(b"batch", b"a query that would leave")
    assert store.kept(b"batch") is None
    with store.group():
        with pytest.raises(LocalProtocolError, match="a group of reports is open"):
            store.reports(proofs.kind.rounds).keep_answer(b"an answer")
        with pytest.raises(LocalProtocolError, match="a group"), store.group():
            raise AssertionError
    assert store.keep(b"batch", b"first") == store.keep(b"batch", b"second") == b"first"


def test_there_is_no_second_query(proofs: World) -> None:
    """Whatever is lost, received and offered after it: the attack on a group, and its end."""
    proofs.take(*range(8))
    first = proofs.query()
    for _ in range(2):
        proofs.start(0)
        assert proofs.send(0, 9) == [Outcome.CLOSED]
        proofs.leader.stop()
        with pytest.raises(LocalProtocolError, match="a leader asks once"):
            proofs.leader.query(proofs.helper.offer())
        assert proofs.leader.resume() == first and proofs.drawn == [1, 0]
    total = proofs.close()
    assert total.tolist() == proofs.expected(*range(8)) and proofs.queries == {first}


# ---- damage ----


@each_case("damage", ["missing", "changed", "another one", "a fact that is gone"])
def test_a_frame_that_is_not_the_accepted_one_raises_before_noise_is_drawn(
    tmp_path_factory: pytest.TempPathFactory, damage: str
) -> None:
    for name, side in ((name, side) for name in KINDS for side in (0, 1)):
        world = World(tmp_path_factory.mktemp("damage"), KINDS[name])
        world.take(0, 1, 2, 3)
        world.start(0, 1)
        bad, where = world.id(2), "fedtally_reports WHERE id = ?"
        if damage == "missing":
            world.sql(side, f"DELETE FROM {where}", bad)
        elif damage == "a fact that is gone":
            world.sql(side, "DROP TRIGGER fedtally_facts_delete")
            world.sql(side, "DELETE FROM fedtally_facts WHERE substr(name, -16) = ?", bad)
        else:
            (frame,) = world.sql(side, f"SELECT frame FROM {where}", bad)[0]
            new = frame[:-1] + bytes([frame[-1] ^ 1])
            if damage == "another one":
                new = getattr(world.report(1), SIDES[side])
            world.sql(side, "UPDATE fedtally_reports SET frame = ? WHERE id = ?", new, bad)
        word = "is missing" if damage == "missing" else "is another one"
        lost = pytest.raises(LostReportError, match=f"report {bad.hex()} {word}")
        world.leader.stop()
        if name == "proofs":
            with lost:
                world.judge()
            assert (world.leader.unjudged, world.leader._sum) == (4, None)
        elif side == 0:
            with lost:
                world.leader.query(world.helper.offer())
            assert world.leader.state is BatchState.STOPPED
        else:
            query = world.leader.query(world.helper.offer())
            with lost:
                world.helper.answer(query)
            assert world.drawn == [1, 0]  # the leader has asked: its release is lost with the disk
            continue
        assert world.drawn == [0, 0] and world.stores[0].kept(b"batch") is None
        with world.batches[side].server() as server:
            server.withdraw([bad])  # the way out: without it
        assert world.close().tolist() == world.expected(0, 1, 3)


def test_what_is_subtracted_is_what_was_judged(proofs: World) -> None:
    """Condition (b), and a copy of the report heals the disk."""
    proofs.take(0, 1, 2, 3)
    proofs.judge()
    proofs.sql(0, "UPDATE fedtally_reports SET frame = x'00' WHERE id = ?", proofs.id(3))
    proofs.start(1)
    proofs.helper.withdraw([proofs.id(3)])  # so the offer lacks it
    proofs.leader.stop()
    with pytest.raises(LostReportError, match="is another one.* run --leave-out-lost"):
        proofs.leader.query(proofs.helper.offer())
    assert proofs.drawn == [0, 0] and proofs.leader.state is BatchState.STOPPED
    with pytest.raises(LocalProtocolError, match="is in the sum; restart first"):
        proofs.leader.withdraw([proofs.id(3)])
    assert proofs.send(1, 3) == [Outcome.ACCEPTED]  # a copy heals what was withdrawn
    proofs.start(0)
    proofs.leader.withdraw([proofs.id(3)])
    assert proofs.send(0, 3) == proofs.send(1, 3) == [Outcome.ACCEPTED]
    assert proofs.close().tolist() == proofs.expected(0, 1, 2, 3)


def test_a_check_that_cannot_be_read_decides_nothing_of_its_frame(
    proofs: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the frame takes several pages, and the first ones are read."""
    monkeypatch.setattr(servers, "_READ_AT_ONCE", 2)
    proofs.take(0, 1, 2, 3, 4)
    proofs.leader.judge(*proofs.helper.checks([proofs.id(0)]))
    before = proofs.leader._sum.copy()  # type: ignore[union-attr]
    (frame,) = proofs.helper.checks([proofs.id(i) for i in range(1, 5)])
    with pytest.raises(BatchRefusedError, match="a check cannot be read"):
        proofs.leader.judge(frame[:-2] + b"\xff\xff")
    assert proofs.leader.unjudged == 4
    np.testing.assert_array_equal(proofs.leader._sum, before)
    assert proofs.close().tolist() == proofs.expected(*range(5))


# ---- whose file it is ----


def test_a_file_is_of_one_server_and_one_plan(proofs: World) -> None:
    file, mark = Batches.open(proofs.folder / "leader.db"), proofs.folder / "leader.mark"
    with pytest.raises(InvalidInputError, match="is the file of the leader: name the one of the"):
        file.claim(PLAN, "helper", mark=mark)
    other: Any = SimpleNamespace(fingerprint="plan-1")
    with pytest.raises(InvalidInputError, match="holds the campaign of plan plan-0"):
        file.claim(other, "leader", mark=proofs.folder / "other.mark")
    proofs.take(0)  # neither took the file from its process


def test_an_old_copy_is_refused_for_good(proofs: World) -> None:
    proofs.take(0, 1, 2)
    place = proofs.folder / "leader.db"
    shutil.copy(place, proofs.folder / "copy.db")
    first = proofs.query()
    (proofs.folder / "copy.db").rename(place)
    with pytest.raises(
        OvertakenError, match=r"was put back while.*begin with new keys and a new plan"
    ):
        proofs.stores[0].check_claim()
    with pytest.raises(OvertakenError, match="was put back while"):
        proofs.stores[0].keep(b"answer", b"")
    with pytest.raises(
        InvalidInputError, match=r"a copy was put back.*begin with new keys and a new plan"
    ):
        proofs.claim(0)
    (proofs.folder / "leader.mark").unlink()
    with pytest.raises(InvalidInputError, match=r"there is no mark at .*nobody knows whether"):
        proofs.claim(0)
    (proofs.folder / "leader.mark").touch()
    with pytest.raises(InvalidInputError, match=r"leader.mark is empty, .*nobody knows whether"):
        proofs.claim(0)
    assert proofs.queries == {first}


def test_of_two_processes_on_one_file_the_later_one_runs(proofs: World) -> None:
    proofs.take(0, 1, 2)
    old = proofs.batches[0]
    proofs.start(0)
    proofs.stores[0].check_claim()
    for frames in ([proofs.report(3).leader], [proofs.report(i).leader for i in (3, 4)]):
        with pytest.raises(OvertakenError, match="another process runs the campaign"):
            old.take(frames, NOW)
    with old.server() as leader:
        assert len(leader) == 3  # what it could not write it does not hold
        leader.stop()
        for frame in proofs.helper.checks():
            leader.judge(frame)
        with pytest.raises(OvertakenError, match="another process runs the campaign"):
            leader.query(proofs.helper.offer())
    proofs.take(3, 4)
    assert proofs.close().tolist() == proofs.expected(0, 1, 2, 3, 4)


def test_a_process_that_is_overtaken_in_the_middle_of_a_group_says_so(
    proofs: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = iter([StoreError("the disk"), OvertakenError("another process")])
    monkeypatch.setattr(Leader, "receive", lambda *_: _raise(next(failed))())
    with pytest.raises(OvertakenError, match="another process"):
        proofs.send(0, 0, 1)


# ---- the answer, and what is erased ----


def test_the_answer_outlives_the_leader_until_its_sum_landed(world: World) -> None:
    world.take(0, 1, 2)
    total, (answer,) = world.close(), world.answers
    world.start(0)
    assert world.leader.state is BatchState.WAITING and world.leader.kept_answer == answer
    file = (world.folder / "leader.db").read_bytes()
    assert answer[80:] not in file and hashlib.sha256(answer).digest() in file  # it is sealed
    np.testing.assert_array_equal(world.leader.finish(answer), total)
    assert world.drawn == [1, 1]
    world.leader.erase()
    assert world.leader.kept_answer is None and world.rows(0) == 0
    np.testing.assert_array_equal(world.leader.total, total)


def test_an_answer_that_the_disk_changed_is_asked_for_again(proofs: World) -> None:
    proofs.take(0, 1, 2)
    total = proofs.close()
    proofs.sql(0, "UPDATE fedtally_reports SET frame = zeroblob(99) WHERE id = ?", b"answer")
    proofs.start(0)
    assert proofs.leader.kept_answer is None
    np.testing.assert_array_equal(proofs.close(), total)
    assert len(proofs.answers) == 1


def test_another_answer_does_not_take_the_place_of_the_one_that_was_heard(proofs: World) -> None:
    proofs.take(0, 1, 2)
    total, (answer,) = proofs.close(), proofs.answers
    other = answer[:-1] + bytes([answer[-1] ^ 1])
    with pytest.raises(BatchRefusedError, match="another answer to this query was heard"):
        proofs.leader.finish(other)
    proofs.start(0)
    assert proofs.leader.kept_answer == answer
    np.testing.assert_array_equal(proofs.close(), total)


def test_reports_are_erased_by_the_helper_when_it_answered_and_by_the_leader_when_it_landed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.take(0, 1, 2, 3)
    with pytest.raises(LocalProtocolError, match="erased after its sum landed"):
        world.leader.erase()
    query = world.query()
    assert (world.rows(0), world.rows(1)) == (4, 4)
    # it is cut off in the middle, and goes on when it is started again
    monkeypatch.setattr(two_server, "ERASED_AT_ONCE", 3)
    with monkeypatch.context() as cut:
        calls = iter(range(1))
        some = two_server.StoredReports._some

        def cut_off(self: Any) -> list[bytes]:
            return some(self) if next(calls, None) is not None else _raise(OSError("cut"))()

        cut.setattr(two_server.StoredReports, "_some", cut_off)
        with pytest.raises(OSError, match="cut"):
            world.helper.answer(query)
    assert world.rows(1) == 1
    world.start(1)
    assert world.rows(1) == 0
    for i in range(4):
        frame = world.report(i).helper
        assert frame not in (world.folder / "helper.db").read_bytes()
    assert world.helper.answer(query) == world.helper.answer(query)
    world.close()
    assert world.rows(0) == 5  # with the answer
    world.leader.erase()
    assert world.rows(0) == 0
    assert world.report(0).leader not in (world.folder / "leader.db").read_bytes()


def test_a_release_that_landed_erases_its_reports_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the campaign's own server: between landing and erasing it may die."""
    domain, count = IntegerRange(1, 40), 8
    terms = TwoServerConfig(
        length=2 * 16, bits=16, n_max=8, min_batch=3, corrupt=0, validity="proofs"
    )
    made = fedtally.Plan(
        rows=2, width=16, schedule="shared", num_rounds=1, num_clients=8, max_round_clients=8,
        max_items=1, domain=domain.describe(), seed=bytes(32), secure_sum=terms,
    )  # fmt: skip
    keys = {"leader_key": LEADER_KEY.public, "helper_key": KEY.public}
    plan = made.with_keys(**keys, allow_list=proven.ALLOWED.digest)
    server, stores, parties = FrequencyServer(plan, MemoryBooks()), {}, {}

    def start(side: Any) -> Any:
        file = Batches.open(tmp_path / f"{side}.db", create=True)
        stores[side] = store = file.claim(plan, side, mark=tmp_path / f"{side}.mark")
        given = 0, BatchPolicy(min_honest=2), proven.ALLOWED, store
        key = LEADER_KEY if side == "leader" else KEY
        place = store.reports(plan.releases[0])
        parties[side] = Batch(store, getattr(server, side)(*given, key, reports=place))
        return parties[side]._server

    leader, helper = start("leader"), start("helper")
    for i in range(count):
        report = FrequencyClient(plan, domain, [1 + i % 3]).report(
            0, BatchPolicy(min_honest=2), journal=ClientJournal(),
            identity=proven.PEOPLE[i], random=plain.source(i), now=NOW,
        )  # fmt: skip
        for side in ("helper", "leader"):
            assert parties[side].take([getattr(report, side)], NOW) == [Outcome.ACCEPTED]
    for frame in helper.checks():
        leader.judge(frame)
    leader.stop()
    leader.finish(helper.answer(leader.query(helper.offer())))
    with monkeypatch.context() as dying:
        dying.setattr(Leader, "erase", _raise(OSError("dead")))
        with pytest.raises(OSError, match="dead"):
            server.land_batch(leader)
    reports = stores["leader"].reports(plan.releases[0])
    assert len(reports.ids()) == count
    leader = start("leader")
    assert stores["leader"].reports(plan.releases[0]).ids() == [] and leader.kept_answer is None
    [sketch] = server.release()
    assert sketch.num_clients == count


# ---- deaths ----


class Death(BaseException):
    """The end of a process, here of a call: nothing in the package catches it."""


class Deaths:
    """Die at a step: there is one before and after each commit, and after each mark."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.steps = 0, 0
        begun, mark = database.Database._sqlite, claims.write_mark

        @contextmanager
        def watched(database: Any, *, write: bool) -> Iterator[Any]:
            with begun(database, write=write) as connection:
                yield connection
                self.step(write)
            self.step(write)

        def marked(*given: Any) -> None:
            mark(*given)
            self.step(True)

        monkeypatch.setattr(database.Database, "_sqlite", watched)
        monkeypatch.setattr(claims, "write_mark", marked)

    def step(self, counts: bool) -> None:
        self.steps += counts
        if self.steps == self.at and counts:
            raise Death


def life(world: World, landed: list[Any]) -> None:
    """Do all of it from where the disks are; clients send until they hear that they are taken."""
    world.start(0, 1)
    people = [0, 1, 2, 3, 4]
    for side in (1, 0):
        for group in ([0, 1, 2], [3, 4]):
            said = set(world.send(side, *group))
            if said == {Outcome.CLOSED}:
                continue
            assert said == {Outcome.ACCEPTED}
            if side == 0 and world.leader.state is BatchState.COLLECTING:
                world.judge()
    if not landed:
        total = world.close()
        landed.append(total.tolist())  # the books: durable, and another file
        assert world.leader.count == len(people)
    if world.leader.state is not BatchState.COLLECTING:
        world.leader.erase()


@pytest.mark.parametrize("kind", KINDS)
def test_a_death_around_any_transaction_loses_nothing_and_asks_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    reports: dict[int, Report] = {}

    def run(at: int) -> int:
        world = World(tmp_path_factory.mktemp("death"), KINDS[kind])
        world.reports, deaths = reports, Deaths(patch)
        landed: list[Any] = []
        deaths.at = at
        while True:
            try:
                life(world, landed)
                break
            except Death:
                gc.collect(1)  # the end of a process closes its connections
        # a noise that was drawn and never written was never sent
        assert len(world.queries) == len(world.answers) == 1
        plain_sum = sum(map(world.kind.vector, range(5)))
        noise = np.array(landed[0]) - plain_sum
        assert len(landed) == 1 and len(set(noise.tolist())) == 1
        assert 2 <= noise[0] <= sum(world.drawn) <= 3
        assert world.rows(0) == world.rows(1) == 0
        return deaths.steps

    with monkeypatch.context() as patch:
        calm = run(0)
    assert calm > 30
    for at in range(1, calm + 1):
        with monkeypatch.context() as patch:
            run(at)


# ---- memory ----


def test_servers_hold_no_more_than_300_bytes_of_a_report(tmp_path: Path) -> None:
    """A leader before the stop and after it, and both at the most that they take until the end.

    A share has more than ten times as many.
    """
    counts = (300, 1300)
    people = [proven.SigningKey(plain.Secret(plain.source(i)(32))) for i in range(counts[-1])]
    allowed = AllowList(sorted(person.public for person in people))
    proof = proof_of(
        (400,) * 5, False, n_max=2000, min_batch=2, corrupt=0, allow_list=allowed.digest
    )
    policy = BatchPolicy(min_honest=2)
    found = []
    for count in counts:
        stores = [
            Batches.open(tmp_path / f"{count}-{side}.db", create=True).claim(
                PLAN, side, mark=tmp_path / f"{count}-{side}.mark"
            )
            for side in SIDES
        ]
        common = proof, range(1), allowed, policy
        leader = Leader(*common, stores[0], LEADER_KEY, reports=stores[0].reports(range(1)))
        helper = Helper(*common, stores[1], KEY, reports=stores[1].reports(range(1)))
        taking: Any = Batch(stores[0], leader), Batch(stores[1], helper)
        rng, sizes = np.random.default_rng(1), []
        made = [
            make_proven_report(
                proof, proven.one_hot(rng, proof.circuit), round=0, now=NOW,
                identity=people[i], policy=policy, random=plain.source(("made", i)),
            )
            for i in range(count)
        ]  # fmt: skip
        assert len(made[0].leader) > 10 * 300
        for start in range(0, count, 100):
            taking[1].take([each.helper for each in made[start : start + 100]], NOW)
        tracemalloc.start()
        for start in range(0, count, 100):
            said = taking[0].take([each.leader for each in made[start : start + 100]], NOW)
            assert set(said) == {Outcome.ACCEPTED}
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
        while ids := leader.to_check(100):
            leader.judge(*helper.checks(ids))
        leader.stop()
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
        offer = helper.offer()
        tracemalloc.reset_peak()
        query = leader.query(offer)
        sizes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        helper.answer(query)
        sizes.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        found.append(sizes)
    for few, many in zip(*found, strict=True):
        assert (many - few) / (counts[1] - counts[0]) <= 300
