"""The disk of a server of DAP: as the store in memory, through deaths and copies of the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dap_world import COLLECTOR, World, make_task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedtally.dap.collector import Collected, open_result
from fedtally.dap.draft18 import Role, UploadRequest
from fedtally.dap.state import MemoryStore, Store, Table
from fedtally.dap.task import Task
from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.store import DapFile, DapStore, StoreError

pytestmark = pytest.mark.usefixtures("no_sync")
TASK = make_task("histogram")


VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "dap09.json").read_text())
HISTOGRAM_BY_NPM = VECTORS[1]


def store_of(folder: Path, role: Role = Role.LEADER, task: Task = TASK) -> DapStore:
    file = DapFile.open(folder / f"{role.name}.db", create=True)
    return file.claim(task, role, mark=folder / f"{role.name}.mark")


# ---- a store ----


KEYS = st.binary(max_size=2)
WRITES = st.tuples(
    st.sampled_from(["put", "drop"]), st.sampled_from([Table.BUCKET, Table.JOB]), KEYS
)
STEPS = st.one_of(
    st.tuples(st.just("transaction"), st.lists(WRITES, max_size=4), st.booleans()),
    WRITES,
    st.tuples(st.just("scan"), KEYS, st.none() | KEYS, st.none() | st.integers(0, 3)),
)


def apply(store: Store, step: tuple[Any, ...], value: bytes) -> Any:
    kind, *rest = step
    if kind == "scan":
        return store.scan(Table.BUCKET, *rest), store.get(Table.JOB, rest[0])
    if kind == "put":
        return store.put(*rest, value)
    if kind == "drop":
        return store.drop(*rest)
    writes, fails = rest
    with suppress(ZeroDivisionError), store.transaction():
        for write in writes:
            apply(store, write, value)
        seen = store.scan(Table.BUCKET)
        assert not fails or 1 / 0
        return seen
    return None


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=12))
def test_it_is_as_the_store_in_memory(tmp_path: Path, steps: list[Any]) -> None:
    folder = tmp_path / str(next(_numbers))
    folder.mkdir()
    disk, memory = store_of(folder), MemoryStore()
    for number, step in enumerate(steps):
        value = b"%d" % number
        assert apply(disk, step, value) == apply(memory, step, value)
    disk = store_of(folder)
    for table in Table:
        assert disk.scan(table) == memory.scan(table)


_numbers = count()


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_scan_begins_and_ends_where_it_is_told(tmp_path: Path, in_memory: bool) -> None:
    store: Store = MemoryStore() if in_memory else store_of(tmp_path)
    for key in (b"b", b"a", b"\xff", b"ab", b""):
        store.put(Table.JOB, key, b"of " + key)
    store.put(Table.REPORT, b"aa", b"of another table")
    keys = [key for key, _ in store.scan(Table.JOB)]
    assert keys == [b"", b"a", b"ab", b"b", b"\xff"]
    assert store.scan(Table.JOB, b"a", b"b") == [(b"a", b"of a"), (b"ab", b"of ab")]
    assert store.scan(Table.JOB, b"aa", b"ab") == store.scan(Table.JOB, b"c", limit=0) == []
    assert store.scan(Table.JOB, b"aa", limit=1) == [(b"ab", b"of ab")]


def test_what_is_for_ever_is_neither_changed_nor_dropped(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    for table in (Table.SEEN, Table.COLLECTED):
        store.put(table, b"key", b"value")
        with pytest.raises(StoreError):
            store.put(table, b"key", b"other")
        with pytest.raises(StoreError, match="append-only"):
            store.drop(table, b"key")
        assert store.get(table, b"key") == b"value"


def test_a_transaction_is_one_at_a_time(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    with store.transaction():
        with pytest.raises(InvalidInputError, match="open already"), store.transaction():
            pass
        store.put(Table.JOB, b"a", b"1")
    assert store.get(Table.JOB, b"a") == b"1"


# ---- one process, and no copies ----


def test_a_process_that_was_overtaken_writes_nothing(tmp_path: Path) -> None:
    first, second = store_of(tmp_path), store_of(tmp_path)
    with pytest.raises(OvertakenError):
        first.put(Table.JOB, b"a", b"1")
    with pytest.raises(OvertakenError), first.transaction():
        pass
    second.put(Table.JOB, b"a", b"2")
    assert second.get(Table.JOB, b"a") == b"2"


def test_a_file_is_of_one_server_and_one_task(tmp_path: Path) -> None:
    store_of(tmp_path)
    file = DapFile.open(tmp_path / "LEADER.db")
    with pytest.raises(InvalidInputError, match="is the file of the leader"):
        file.claim(TASK, Role.HELPER, mark=tmp_path / "LEADER.mark")
    with pytest.raises(InvalidInputError, match="name another file"):
        file.claim(make_task("count"), Role.LEADER, mark=tmp_path / "other.mark")
    with pytest.raises(UnreadableFileError, match="there is no DAP task at"):
        DapFile.open(tmp_path / "none.db")


def test_a_copy_that_is_put_back_is_refused(tmp_path: Path) -> None:
    """It would not know which reports were added, and which times were collected, since."""
    place = tmp_path / "LEADER.db"
    store = store_of(tmp_path)
    shutil.copy(place, tmp_path / "copy")
    store.put(Table.SEEN, b"id", b"")
    shutil.copy(tmp_path / "copy", place)
    with pytest.raises(InvalidInputError, match="a copy was put back"):
        store_of(tmp_path)
    with pytest.raises(OvertakenError, match="a copy of .* was put back"):
        store.put(Table.JOB, b"a", b"1")


# ---- deaths ----


class Dead(Exception):
    """The process has died."""


class Mortal:
    """A store whose process dies at one of the moments before and after its commits."""

    def __init__(self, store: Store, moments: Iterator[int], last: int) -> None:
        self._store, self._moments, self._last = store, moments, last
        self._is_open = False
        self.get, self.scan = store.get, store.scan

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._store.transaction():
            self._is_open = True
            try:
                yield
            finally:
                self._is_open = False
            self._live()
        self._live()

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        with nullcontext() if self._is_open else self.transaction():
            self._store.put(table, key, value)

    def drop(self, table: Table, key: bytes) -> None:
        with nullcontext() if self._is_open else self.transaction():
            self._store.drop(table, key)

    def _live(self) -> None:
        if next(self._moments) == self._last:
            raise Dead


def uploads(world: World, draft: int) -> list[bytes]:
    """Return the uploads of four reports: of buckets 0, 2, 2, 3, or those of npm's client."""
    if draft == 9:
        return world.take_recorded(HISTOGRAM_BY_NPM)
    return [UploadRequest(tuple(world.report(each) for each in (0, 2, 2, 3))).encode()]


def whole_way(world: World, sent: list[bytes]) -> Collected:
    """Upload, verify and collect, from wherever the servers are."""
    for upload in sent:
        assert world.leader.upload(upload, world.now) == b""
    world.run_jobs(now=world.now)
    return world.collect(duration=2)


def with_a_death(folder: Path, last: int, noise: bool, draft: int) -> tuple[World, Collected, int]:
    """Return the result, and how many moments there were, if a server dies at one of them."""
    world, moments = World(noise=noise), count()
    sent = uploads(world, draft)
    while True:
        world.leader_store = Mortal(store_of(folder, Role.LEADER, world.task), moments, last)
        world.helper_store = Mortal(store_of(folder, Role.HELPER, world.task), moments, last)
        with suppress(Dead):
            world.restart()
            return world, whole_way(world, sent), next(moments)


@pytest.mark.promise
@pytest.mark.parametrize("draft", [18, 9])
@pytest.mark.parametrize("noise", [False, True])
def test_a_server_that_dies_anywhere_gives_the_same_result(
    tmp_path: Path, noise: bool, draft: int
) -> None:
    """Before and after each commit of either: each time all are made anew of their files.

    Noise whose transaction was lost is drawn again, and nobody has seen the first.
    """
    exact = [1, 0, 2, 1] if draft == 18 else HISTOGRAM_BY_NPM["result"]
    for last in count():
        folder = tmp_path / str(last)
        folder.mkdir()
        world, got, moments = with_a_death(folder, last, noise, draft)
        added = np.zeros(len(exact), np.int64)
        if noise:
            draws = [each.events.count("draw") for each in (world.leader_noise, world.helper_noise)]
            assert sorted(draws) in ([1, 1], [1, 2]), last
            assert world.leader_noise.charged == world.helper_noise.charged == {world.batch}
            added = sum(draws) - 20 * np.arange(len(exact))
        assert (got.count, got.result) == (4, (exact + added).tolist()), last
        world.restart()
        assert world.collect(duration=2) == got  # and draws no more
        if last >= moments:  # nobody died
            break
    # Both servers begin with a commit. An upload, a job and a collection have 1, 3 and 3; the four
    # reports of draft 09 come one by one.
    assert last == 2 * (2 + 7 + (3 if draft == 9 else 0))


def test_a_repeated_collection_gets_the_same_bytes_after_a_restart(tmp_path: Path) -> None:
    world = World()
    world.leader_store, world.helper_store = store_of(tmp_path), store_of(tmp_path, Role.HELPER)
    world.restart()
    world.measure(0, 2, 2)
    world.run_jobs()
    state = world.leader.collect(world.query().encode())
    share = world.helper.share(state.ask)
    done = world.leader.finish_collection(state.id, share.answer)
    world.leader_store, world.helper_store = store_of(tmp_path), store_of(tmp_path, Role.HELPER)
    world.restart()
    assert world.helper.share(state.ask) == share
    assert world.leader.collect(world.query().encode()) == done
    assert open_result(TASK, COLLECTOR, world.query(), done.answer).result == [1, 0, 2, 0]
