"""One server of DAP lies to the other, or to the collector: no batch below the least size, and no
time twice.

A server that lies knows all keys of its own, and may help clients or the collector. What it can
always do is leave reports out, or make none of its answers fit: then there is no result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
from dap_world import COLLECTOR, HELPER_KEYS, NOW, SEED, World
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.crypto.keys import RejectedError
from fedtally.dap.aggregator import resource_id
from fedtally.dap.collector import open_result
from fedtally.dap.draft18 import (
    AggregateShare,
    AggregateShareAad,
    AggregateShareReq,
    AggregationJobInitReq,
    AggregationJobResp,
    BatchMode,
    BatchSelector,
    CollectionJobReq,
    Continued,
    Extension,
    Finish,
    Finished,
    Interval,
    Rejected,
    ReportError,
    Role,
    VerifyInit,
    VerifyResp,
    aggregate_share_info,
)
from fedtally.dap.helper import Helper
from fedtally.dap.leader import AbandonedError, Job
from fedtally.dap.problems import Problem, ProblemType
from fedtally.dap.sealing import config, seal
from fedtally.dap.state import Bucket, Collection, MemoryStore, Table
from fedtally.dap.task import TaskSecret
from fedtally.errors import FedtallyError


def liar(world: World, store: MemoryStore | None = None) -> Helper:
    """Return a helper that remembers nothing: to it every report is new, and no time collected."""
    secret = TaskSecret(world.task.id, SEED)
    return Helper(world.task, secret, HELPER_KEYS, store or MemoryStore())


def job_of(world: World) -> Job:
    job = world.leader.make_job()
    assert job is not None
    return job


# ---- a helper that lies ----


def test_a_late_report_of_a_collected_time_is_never_opened() -> None:
    """Uploaded before the collection and in a job after it, a helper that calls it valid, and a
    collector that asks again: its measurement alone was read so."""
    world = World()
    world.measure(1, 1, 2)
    world.run_jobs()
    world.measure(3)  # the victim: taken, in no job
    assert world.collect().result == [0, 2, 1, 0]
    assert world.leader.make_job() is None
    for start, duration in ((0, 2), (-1, 2), (-9, 20)):
        with pytest.raises(Problem, match="^batchOverlap"):
            world.leader.collect(world.query(start, duration).encode())


def test_a_report_in_a_job_as_its_time_is_collected_is_never_added() -> None:
    """The collection waits for the job. Where it did not, the transaction would refuse."""
    world = World()
    world.measure(1, 1, 2)
    world.run_jobs()
    world.measure(3)
    job = job_of(world)
    kept = world.leader_store.get(Table.JOB, job.id)
    assert kept is not None
    world.leader_store.drop(Table.JOB, job.id)  # the leader has forgotten that there is a job
    assert world.collect().result == [0, 2, 1, 0]
    world.leader_store.put(Table.JOB, job.id, kept)
    answer = liar(world).aggregate(job.request, NOW).answer
    assert world.leader.finish_job(job.id, answer) == (0, 1)
    assert world.leader_store.scan(Table.BUCKET) == []


def test_a_report_is_added_once_whatever_the_helper_says() -> None:
    world = World()
    world.measure(1, 1, 2)
    job = job_of(world)
    kept = world.leader_store.get(Table.JOB, job.id)
    assert kept is not None
    answer = liar(world).aggregate(job.request, NOW).answer
    assert world.leader.finish_job(job.id, answer) == (3, 0)
    assert world.leader.finish_job(job.id, answer) == (0, 0)
    world.leader_store.put(Table.JOB, job.id, kept)  # an old copy of a table
    world.leader._states[job.id] = [
        world.task.prio3.verify_init(
            TaskSecret(world.task.id, SEED).verify_key(world.task),
            1,
            init.report.metadata.id,
            init.report.public_share,
            bytes(64),
        )[0]
        for init in AggregationJobInitReq.decode(job.request).reports
    ]
    assert world.leader.finish_job(job.id, answer) == (0, 3)


def test_an_answer_that_came_twice_at_once_counts_once() -> None:
    """Both have seen that the job is open; the transaction looks again."""
    world = World()
    world.measure(1, 1, 2)
    job = job_of(world)
    answer = world.helper.aggregate(job.request, NOW).answer
    begin = world.leader_store.transaction

    def transaction() -> Any:
        world.leader_store.transaction = begin  # type: ignore[method-assign]
        assert world.leader.finish_job(job.id, answer) == (3, 0)
        return begin()

    world.leader_store.transaction = transaction  # type: ignore[method-assign]
    assert world.leader.finish_job(job.id, answer) == (0, 0)
    assert world.collect().count == 3


def answers_that_do_not_fit(answer: AggregationJobResp) -> Iterator[tuple[str, bytes]]:
    first, second, *rest = answer.reports
    body = answer.encode()
    yield "empty", b""
    yield "cut", body[:-1]
    yield "longer", body + b"\0"
    yield "garbage", b"\0" * 40
    yield "one less", AggregationJobResp((first, *rest)).encode()
    yield "one more", AggregationJobResp((*answer.reports, first)).encode()
    yield "another order", AggregationJobResp((second, first, *rest)).encode()
    yield "twice the same", AggregationJobResp((first, first, *rest)).encode()
    other = replace(first, id=bytes(16))
    yield "another report", AggregationJobResp((other, second, *rest)).encode()
    finished = replace(first, said=Finished())
    yield "finished", AggregationJobResp((finished, second, *rest)).encode()


def test_an_answer_that_does_not_fit_ends_its_job() -> None:
    """It is not asked for ever, and the collections of the task do not wait for it."""
    cases = 0
    for name, body in answers_that_do_not_fit(honest_answer(World())):
        cases += 1
        world = World()
        world.measure(1, 1, 2)
        job = job_of(world)
        with pytest.raises(AbandonedError, match="does not fit"):
            world.leader.finish_job(job.id, body)
        assert world.leader.jobs() == [], name
        assert world.leader.is_idle
        assert world.leader_store.scan(Table.BUCKET) == []
        world.measure(0, 0, 3)
        world.run_jobs()
        assert world.collect().result == [2, 0, 0, 1]
    assert cases == 10


def honest_answer(world: World) -> AggregationJobResp:
    world.measure(1, 1, 2)
    return AggregationJobResp.decode(world.helper.aggregate(job_of(world).request, NOW).answer)


@pytest.mark.parametrize(
    "lie",
    [
        lambda said: Continued(b"\0"),
        lambda said: Continued(Finish(b"").encode()),
        lambda said: Continued(Finish(bytes(32)).encode()),
        lambda said: Continued(said.payload + b"\0"),
        lambda said: Continued(said.payload[:-1] + bytes([said.payload[-1] ^ 1])),
        *[lambda said, error=error: Rejected(error) for error in ReportError],
    ],
)
def test_a_report_that_the_helper_lies_about_is_left_out(lie: Callable[[Any], Any]) -> None:
    world = World()
    world.measure(1, 1, 2)
    job = job_of(world)
    answer = AggregationJobResp.decode(world.helper.aggregate(job.request, NOW).answer)
    first, *rest = answer.reports
    changed = AggregationJobResp((replace(first, said=lie(first.said)), *rest)).encode()
    assert world.leader.finish_job(job.id, changed) == (2, 1)
    with pytest.raises(Problem, match="^invalidBatchSize"):  # not 3 of them
        world.collect()
    assert world.leader.make_job() is None  # it is in no other job


def shares_that_do_not_fit(share: AggregateShare) -> Iterator[bytes]:
    body = share.encode()
    yield b""
    yield body[:-1]
    yield body + b"\0"
    yield replace(share, sealed=replace(share.sealed, config=99)).encode()


def test_a_share_that_does_not_fit_ends_its_collection() -> None:
    for place in range(4):
        world = World()
        world.measure(1, 1, 2)
        world.run_jobs()
        state = world.leader.collect(world.query().encode())
        share = AggregateShare.decode(world.helper.share(state.ask).answer)
        with pytest.raises(Problem, match="^invalidMessage: the helper's share"):
            world.leader.finish_collection(state.id, list(shares_that_do_not_fit(share))[place])
        for call in (
            partial(world.leader.collect, world.query().encode()),
            partial(world.leader.collection, state.id),
            # the right answer comes too late: the leader gives its share once or never
            partial(world.leader.finish_collection, state.id, share.encode()),
        ):
            with pytest.raises(Problem, match="^invalidMessage"):
                call()
        with pytest.raises(Problem, match="^batchOverlap"):
            world.leader.collect(world.query(0, 2).encode())


def test_a_batch_that_the_helper_refuses_stays_closed() -> None:
    world = World()
    world.measure(1, 1, 2)
    world.run_jobs()
    state = world.leader.collect(world.query().encode())
    world.leader.fail_collection(state.id, ProblemType.BATCH_MISMATCH)
    kept = world.leader_store.get(Table.COLLECTION, state.id)
    assert kept is not None and Collection.decode(kept).head == b""  # nobody gets the share
    with pytest.raises(Problem, match="^batchMismatch"):
        world.leader.collect(world.query().encode())
    with pytest.raises(Problem, match="^batchOverlap"):
        world.leader.collect(world.query(-1, 2).encode())
    assert [error for _, error in world.upload(world.report(1))] == [ReportError.REPORT_REPLAYED]


def test_an_answered_collection_cannot_be_made_to_fail() -> None:
    world = World()
    world.measure(1, 1, 2)
    world.run_jobs()
    state = world.leader.collect(world.query().encode())
    answer = world.helper.share(state.ask).answer
    done = world.leader.finish_collection(state.id, answer)
    world.leader.fail_collection(state.id, ProblemType.BATCH_MISMATCH)
    with pytest.raises(Problem, match="helper's share"):
        world.leader.finish_collection(state.id, b"")
    assert world.leader.collection(state.id) == done


def test_a_collection_that_asked_nothing_is_not_answered() -> None:
    """A helper that answers before it is asked, as the leader waits for a job."""
    world = World()
    world.measure(1, 1, 2)
    world.run_jobs()
    world.measure(3)
    job = job_of(world)
    state = world.leader.collect(world.query().encode())
    sealed = seal(COLLECTOR.configs.configs[0], b"x", b"info", b"aad")
    early = world.leader.finish_collection(state.id, AggregateShare(sealed).encode())
    assert (early.answer, early.ask) == (b"", b"")
    world.leader.fail_collection(state.id, ProblemType.BATCH_MISMATCH)
    world.leader.finish_job(job.id, world.helper.aggregate(job.request, NOW).answer)
    assert world.collect().result == [0, 2, 1, 1]


def test_the_collector_sees_a_share_of_another_batch_or_key() -> None:
    """A helper's share is bound to task, query and role."""
    world = World()
    world.measure(1, 1, 2)
    world.run_jobs()
    state = world.leader.collect(world.query().encode())
    to = COLLECTOR.configs.configs[0]
    for forged in (
        seal(to, bytes(64), aggregate_share_info(Role.HELPER), b"another aad"),
        seal(to, bytes(64), aggregate_share_info(Role.LEADER), b""),
        seal(config(1, HELPER_KEYS.configs.configs[0].key), bytes(64), b"", b""),
    ):
        other = World()
        other.measure(1, 1, 2)
        other.run_jobs()
        state = other.leader.collect(other.query().encode())
        done = other.leader.finish_collection(state.id, AggregateShare(forged).encode())
        with pytest.raises(RejectedError):
            open_result(other.task, COLLECTOR, other.query(), done.answer)


# ---- a leader that lies ----


def asked(world: World, *measurements: Any) -> AggregateShareReq:
    world.measure(*measurements)
    world.run_jobs()
    state = world.leader.collect(world.query(-1, 3).encode())
    return AggregateShareReq.decode(state.ask)


def test_a_share_is_refused_whatever_byte_is_changed() -> None:
    """But for bytes of the query, within which the selector stays: such a share opens for nobody
    who did not ask that."""
    world = World()
    request = asked(world, 1, 1, 2)
    body = request.encode()
    answered = 0
    for place in range(len(body)):
        for bit in (1, 128):
            changed = body[:place] + bytes([body[place] ^ bit]) + body[place + 1 :]
            helper = liar(world, copy_of(world.helper_store))
            try:
                share = AggregateShare.decode(helper.share(changed).answer)
            except Problem:
                assert helper._store.scan(Table.COLLECTED) == []
                continue
            answered += 1
            said = AggregateShareReq.decode(changed)
            assert (said.report_count, said.checksum) == (request.report_count, request.checksum)
            query = Interval.decode(said.collection.query.config)
            assert query.holds(Interval(world.hour, 1))
            if said.collection != request.collection:
                with pytest.raises(RejectedError):
                    open_share(world, share, request.collection)
            assert open_share(world, share, said.collection)
            with pytest.raises(Problem, match="^batchOverlap"):
                helper.share(body)
    assert answered


def open_share(world: World, share: AggregateShare, request: CollectionJobReq) -> bytes:
    aad = AggregateShareAad(world.task.id, world.task.configuration, request).encode()
    return COLLECTOR.open(share.sealed, aggregate_share_info(Role.HELPER), aad)


def copy_of(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for table in Table:
        for name, value in store.scan(table):
            copy.put(table, name, value)
    return copy


def test_a_job_is_refused_whatever_byte_is_changed() -> None:
    """Or the one report that was changed is: never is another one added in its place."""
    world = World("count")
    world.measure(1)
    body = job_of(world).request
    honest = liar(world).aggregate(body, NOW).answer
    for place in range(len(body)):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        helper = liar(world)
        try:
            answer = helper.aggregate(changed, NOW).answer
        except Problem:
            assert helper._store.scan(Table.SEEN) == []
            continue
        (said,) = AggregationJobResp.decode(answer).reports
        assert isinstance(said.said, Rejected), place
        assert helper._store.scan(Table.SEEN) == helper._store.scan(Table.BUCKET) == []
    assert isinstance(AggregationJobResp.decode(honest).reports[0].said, Continued)


def test_reports_that_the_leader_sends_again_are_not_added_again() -> None:
    world = World()
    world.measure(1, 1, 2)
    request = AggregationJobInitReq.decode(job_of(world).request)
    world.helper.aggregate(request.encode(), NOW)
    one, two, three = request.reports
    world.made = 10
    world.measure(3)
    (new,) = AggregationJobInitReq.decode(job_of(world).request).reports
    for reports, replayed in (
        ((two, one, three), [True, True, True]),  # another order, so another request
        ((one,), [True]),
        ((one, new), [True, False]),
        ((new, two), [True, True]),
    ):
        answer = world.helper.aggregate(replace(request, reports=reports).encode(), NOW).answer
        said = [each.said for each in AggregationJobResp.decode(answer).reports]
        assert [each == Rejected(ReportError.REPORT_REPLAYED) for each in said] == replayed
    (row,) = world.helper_store.scan(Table.BUCKET)
    assert Bucket.decode(row[1]).count == 4


def test_two_jobs_at_once_add_a_report_once() -> None:
    """Both have passed the first check; the transaction looks again."""
    world = World()
    world.measure(1)
    request = AggregationJobInitReq.decode(job_of(world).request)
    verified = [world.helper._verify(request.reports[0], NOW) for _ in range(2)]
    answers = [world.helper._commit([each]) for each in verified]
    said = [AggregationJobResp.decode(answer).reports[0].said for answer in answers]
    assert isinstance(said[0], Continued)
    assert said[1] == Rejected(ReportError.REPORT_REPLAYED)


def test_reports_of_a_collected_time_are_refused_by_the_helper() -> None:
    world = World()
    request = asked(world, 1, 1, 2)
    victims = [world.report(3, hours) for hours in (-1, 0, 1)]
    refused = world.upload(*victims, now=NOW + 3600)  # an honest leader has closed the times
    assert [error for _, error in refused] == [ReportError.REPORT_REPLAYED] * 3
    other = World()  # the leader lies: it keeps another book
    assert other.upload(*victims, now=NOW + 3600) == []
    lying = other.leader.make_job()
    assert lying is not None
    world.helper.share(request.encode())
    answer = world.helper.aggregate(lying.request, NOW + 3600).answer
    said = [each.said for each in AggregationJobResp.decode(answer).reports]
    assert said == [Rejected(ReportError.BATCH_COLLECTED)] * 3


def test_a_second_share_of_a_time_is_never_given() -> None:
    world = World()
    request = asked(world, 1, 1, 2)
    world.helper.share(request.encode())
    for start, duration in [(-1, 3), (0, 1), (-5, 5), (1, 1), (-9, 30)]:
        interval = Interval(world.hour + start, duration)
        query = replace(request.collection.query, config=interval.encode())
        again = replace(
            request,
            collection=replace(request.collection, query=query),
            selector=BatchSelector(BatchMode.TIME_INTERVAL, interval.encode()),
        )
        if again == request:
            continue
        for count in (0, 3):
            with pytest.raises(Problem, match="^batchOverlap"):
                world.helper.share(replace(again, report_count=count).encode())


def test_a_batch_below_the_least_size_is_never_shared() -> None:
    """Whatever the leader says that it has: the helper counts itself."""
    world = World()
    world.measure(1, 1)
    world.run_jobs()
    other = World()
    request = asked(other, 1, 1, 2)
    for count in (2, 3, 2**64 - 1):
        with pytest.raises(Problem, match="^invalidBatchSize"):
            world.helper.share(replace(request, report_count=count).encode())


def test_extensions_of_a_collection_are_refused_by_the_helper_too() -> None:
    world = World()
    request = asked(world, 1, 1, 2)
    extended = replace(request.collection, extensions=(Extension(1, b""),))
    with pytest.raises(Problem, match="^unsupportedExtension"):
        world.helper.share(replace(request, collection=extended).encode())


# ---- everything, in any order ----


LEAST = 2
STEPS = st.one_of(
    st.tuples(st.just("measure"), st.integers(-1, 0), st.integers(1, 3)),
    st.tuples(st.just("job"), st.sampled_from(["honest", "liar", "reject", "garbage", "swap"])),
    st.tuples(st.just("collect"), st.integers(-1, 0), st.integers(1, 2)),
    st.tuples(st.just("answer"), st.sampled_from(["honest", "garbage", "refuse"])),
    st.tuples(st.just("restart")),
)


@settings(max_examples=60)
@given(st.lists(STEPS, min_size=15, max_size=30))
def test_a_leader_keeps_its_word_in_any_order(steps: list[tuple[Any, ...]]) -> None:
    """However the helper lies: each share that the leader seals for a collector is of the least
    size, of reports that were added once, and of times that no other share has."""
    world = World("count", min_batch=LEAST)
    mischief = liar(world)
    shared: dict[bytes, tuple[Interval, int]] = {}
    added, asks = 0, {}
    for step, *rest in steps:
        if step == "measure":
            hours, many = rest
            world.upload(*(world.report(1, hours) for _ in range(many)))
        elif step == "job":
            added += run_a_job(world, mischief, *rest)
        elif step == "collect":
            query = world.query(*rest)
            try:
                state = world.leader.collect(query.encode())
            except Problem:
                continue
            if state.ask:
                asks[state.id] = state.ask
                ask = AggregateShareReq.decode(state.ask)
                shared[state.id] = Interval.decode(query.query.config), ask.report_count
        elif step == "answer" and asks:
            id, ask = asks.popitem()
            answer_a_collection(world, mischief, id, ask, *rest)
        elif step == "restart":
            world.restart()
    rows = world.leader_store.scan(Table.BUCKET)
    open_times = [Interval(int.from_bytes(time, "big"), 1) for time, _ in rows]
    assert not any(each.holds(time) for each, _ in shared.values() for time in open_times)
    still_open = sum(Bucket.decode(value).count for _, value in rows)
    assert sum(count for _, count in shared.values()) + still_open == added
    assert all(count >= LEAST for _, count in shared.values())
    intervals = sorted((each.start, each.end) for each, _ in shared.values())
    assert all(one[1] <= two[0] for one, two in pairwise(intervals))


LEADERS_STEPS = st.one_of(
    st.tuples(st.just("job"), st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True)),
    st.tuples(
        st.just("share"),
        st.tuples(st.integers(-1, 0), st.integers(1, 2)),
        st.tuples(st.integers(-1, 0), st.integers(1, 2)),
        st.sampled_from([True, True, True, False]),
    ),
    st.tuples(st.just("restart")),
)


@settings(max_examples=60)
@given(st.lists(LEADERS_STEPS, min_size=15, max_size=30))
def test_a_helper_keeps_its_word_in_any_order(steps: list[tuple[Any, ...]]) -> None:
    """However the leader lies, also if it knows the helper's tables: each share that the helper
    gives is of the least size, of reports that were added once, and of times that no other has."""
    world, inits = World("count", min_batch=LEAST), reports_of_two_hours()
    added: set[bytes] = set()
    shared: dict[bytes, tuple[Interval, int]] = {}
    for step, *rest in steps:
        if step == "job":
            chosen = tuple(inits[place] for place in rest[0])
            body = AggregationJobInitReq(0, b"", (), chosen).encode()
            seen_before = world.helper_store.get(Table.JOB_ANSWER, resource_id(body)) is not None
            answer = world.helper.aggregate(body, NOW).answer
            passed = {
                each.id
                for each in AggregationJobResp.decode(answer).reports
                if isinstance(each.said, Continued)
            }
            assert seen_before or not passed & added  # else it is the same answer again
            added |= passed
        elif step == "share":
            query, selected, knows = rest
            request = share_request(world, query, selected, knows)
            with suppress(Problem):
                world.helper.share(request.encode())
                asked_for = Interval.decode(request.collection.query.config)
                shared[request.encode()] = asked_for, request.report_count
        else:
            world.restart()
    rows = world.helper_store.scan(Table.BUCKET)
    open_times = [Interval(int.from_bytes(time, "big"), 1) for time, _ in rows]
    assert not any(each.holds(time) for each, _ in shared.values() for time in open_times)
    still_open = sum(Bucket.decode(value).count for _, value in rows)
    assert sum(count for _, count in shared.values()) + still_open <= len(added)
    assert all(count >= LEAST for _, count in shared.values())
    intervals = sorted((each.start, each.end) for each, _ in shared.values())
    assert all(one[1] <= two[0] for one, two in pairwise(intervals))


@cache
def reports_of_two_hours() -> tuple[VerifyInit, ...]:
    """Return what a leader sends of 8 reports."""
    world = World("count", min_batch=LEAST)
    for hours in (-1, -1, -1, -1, 0, 0, 0, 0):
        world.measure(1, hours=hours)
    return AggregationJobInitReq.decode(job_of(world).request).reports


def share_request(
    world: World, query: tuple[int, int], selected: tuple[int, int], knows: bool
) -> AggregateShareReq:
    """Return a request; a leader that knows the helper's tables says what these say."""
    interval = Interval(world.hour + selected[0], selected[1])
    rows = [
        Bucket.decode(value)
        for time, value in world.helper_store.scan(Table.BUCKET)
        if interval.holds(Interval(int.from_bytes(time, "big"), 1))
    ]
    total = world.helper._sum(rows)
    count = total.count if knows else 3
    selector = BatchSelector(BatchMode.TIME_INTERVAL, interval.encode())
    return AggregateShareReq(world.query(*query), selector, count, total.checksum)


def run_a_job(world: World, mischief: Helper, how: str) -> int:
    world.leader.make_job()
    if not (jobs := world.leader.jobs()):
        return 0
    job = jobs[0]
    answer = mischief.aggregate(job.request, NOW).answer
    said = AggregationJobResp.decode(answer).reports
    if how == "garbage":
        answer = b"garbage"
    elif how == "swap":
        answer = AggregationJobResp(said[::-1]).encode()
    elif how == "reject":
        first = VerifyResp(said[0].id, Rejected(ReportError.REPORT_TOO_EARLY))
        answer = AggregationJobResp((first, *said[1:])).encode()
    elif how == "honest":
        answer = world.helper.aggregate(job.request, NOW).answer
    try:
        return world.leader.finish_job(job.id, answer).added
    except AbandonedError:
        return 0


def answer_a_collection(world: World, mischief: Helper, id: bytes, ask: bytes, how: str) -> None:
    if how == "refuse":
        world.leader.fail_collection(id, ProblemType.BATCH_MISMATCH)
        return
    try:
        answer = b"garbage" if how == "garbage" else mischief.share(ask).answer
        world.leader.finish_collection(id, answer)
    except FedtallyError:
        return
