"""DAP from clients to the collector, in memory: exact sums, and what each request may change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cases import each_case
from dap_world import COLLECTOR, HELPER_KEYS, HOUR, LEADER_KEYS, NOW, SEED, TASK_SECONDS, World, key

from fedtally.crypto.keys import RejectedError
from fedtally.dap.collector import make_query, open_result
from fedtally.dap.draft18 import (
    AggregateShareReq,
    AggregationJobContinueReq,
    AggregationJobInitReq,
    AggregationJobResp,
    BatchMode,
    BatchSelector,
    CollectionJobResp,
    Continued,
    Extension,
    InputShareAad,
    Interval,
    PlaintextInputShare,
    Query,
    Rejected,
    Report,
    ReportError,
    Role,
    UploadRequest,
    VerifyContinue,
    input_share_info,
)
from fedtally.dap.helper import Helper
from fedtally.dap.leader import Leader
from fedtally.dap.problems import Problem, ProblemType, UnknownResourceError
from fedtally.dap.sealing import Keyring, seal
from fedtally.dap.state import MemoryStore, Table
from fedtally.dap.task import TaskSecret, to_text
from fedtally.errors import InvalidInputError
from fedtally.flp import Prio3

E = ReportError
RESULTS: list[tuple[str, list[Any], Any]] = [
    ("count", [1, 0, 1, 1], 3),
    ("histogram", [0, 2, 2, 3], [1, 0, 2, 1]),
    ("sumvec", [[1, 2, 3], [5, 0, 1], [0, 0, 0], [4, 4, 4]], [10, 6, 8]),
]


def problem(type: ProblemType) -> Any:
    return pytest.raises(Problem, match=f"^{type}: ")


# ---- the whole way ----


@each_case(("vdaf", "measurements", "result"), RESULTS)
def test_the_result_is_exact(vdaf: str, measurements: list[Any], result: Any) -> None:
    world = World(vdaf)
    world.measure(*measurements)
    assert world.run_jobs() == (4, 0)
    got = world.collect()
    start = world.hour * HOUR
    assert (got.count, got.result, got.start, got.end) == (4, result, start, start + HOUR)


def test_a_batch_has_the_reports_of_its_interval_alone() -> None:
    world = World()
    for hours in (-3, -2, -2, -1, 0):
        world.measure(-hours, hours=hours)
    assert world.run_jobs() == (5, 0)
    got = world.collect(start=-2, duration=2)
    assert (got.count, got.result) == (3, [0, 1, 2, 0])


def test_the_interval_of_an_answer_is_the_smallest_one() -> None:
    world = World()
    for hours in (-3, -3, -1):
        world.measure(1, hours=hours)
    world.run_jobs()
    got = world.collect(start=-40, duration=60)
    assert (got.start, got.end) == ((world.hour - 3) * HOUR, world.hour * HOUR)


def test_jobs_of_any_size_give_the_same() -> None:
    world = World()
    world.measure(0, 1, 1, 2, 2, 2, 3)
    sizes = []
    while (job := world.leader.make_job(most=3)) is not None:
        sizes.append(len(AggregationJobInitReq.decode(job.request).reports))
        world.leader.finish_job(job.id, world.helper.aggregate(job.request, NOW).answer)
    assert sizes == [3, 3, 1]
    assert world.leader.is_idle
    assert world.collect().result == [1, 2, 3, 1]


def test_servers_that_begin_again_give_the_same() -> None:
    """Made anew of what they keep, between any two messages."""
    world = World("sumvec")
    world.measure([1, 2, 3], [0, 0, 5])
    world.restart()
    assert world.leader.make_job() is not None
    world.restart()
    (job,) = world.leader.jobs()
    answer = world.helper.aggregate(job.request, NOW).answer
    world.restart()
    assert world.helper.aggregate(job.request, NOW).answer == answer
    world.restart()
    assert world.leader.finish_job(job.id, answer) == (2, 0)
    world.measure([4, 0, 0])
    world.run_jobs()
    world.restart()
    state = world.leader.collect(world.query().encode())
    world.restart()
    assert world.leader.collection(state.id) == state
    share = world.helper.share(state.ask).answer
    world.restart()
    done = world.leader.finish_collection(state.id, share)
    world.restart()
    assert world.leader.collection(state.id) == done
    assert open_result(world.task, COLLECTOR, world.query(), done.answer).result == [5, 2, 8]


def test_the_same_request_gets_the_same_bytes() -> None:
    world = World()
    world.measure(0, 1, 2)
    job = world.leader.make_job()
    assert job is not None
    first = world.helper.aggregate(job.request, NOW)
    world.leader.finish_job(job.id, first.answer)
    state = world.leader.collect(world.query().encode())
    assert world.leader.collect(world.query().encode()) == state
    share = world.helper.share(state.ask)
    done = world.leader.finish_collection(state.id, share.answer)
    # whatever happened since: sealing is random, so nothing is made twice
    assert world.helper.aggregate(job.request, NOW + 10 * HOUR) == first
    assert world.helper.aggregation_job(first.id) == first.answer
    assert world.helper.share(state.ask) == share
    assert world.helper.aggregate_share(share.id) == share.answer
    assert world.leader.collect(world.query().encode()) == done
    assert world.leader.finish_collection(state.id, share.answer) == done
    assert world.leader.finish_job(job.id, first.answer) == (0, 0)
    assert len(first.id) == len(share.id) == len(state.id) == 16


def test_a_resource_is_forgotten_and_what_it_did_stays() -> None:
    world = World()
    world.measure(0, 1, 2)
    job = world.leader.make_job()
    assert job is not None
    made = world.helper.aggregate(job.request, NOW)
    world.leader.finish_job(job.id, made.answer)
    world.helper.forget_aggregation_job(made.id)
    with problem(ProblemType.UNRECOGNIZED_AGGREGATION_JOB):
        world.helper.aggregation_job(made.id)
    again = AggregationJobResp.decode(world.helper.aggregate(job.request, NOW).answer)
    assert [each.said for each in again.reports] == [Rejected(E.REPORT_REPLAYED)] * 3
    state = world.leader.collect(world.query().encode())
    share = world.helper.share(state.ask)
    world.helper.forget_aggregate_share(share.id)
    with problem(ProblemType.BATCH_OVERLAP):
        world.helper.share(state.ask)
    world.leader.finish_collection(state.id, share.answer)
    world.leader.forget_collection(state.id)
    with problem(ProblemType.BATCH_OVERLAP):
        world.leader.collect(world.query().encode())
    for call in (
        lambda: world.helper.aggregate_share(share.id),
        lambda: world.helper.forget_aggregate_share(share.id),
        lambda: world.leader.collection(state.id),
        lambda: world.leader.forget_collection(state.id),
        lambda: world.leader.finish_collection(state.id, share.answer),
    ):
        with pytest.raises(UnknownResourceError):
            call()


def test_a_server_has_the_secret_of_its_task() -> None:
    world, other = World(), World(info=b"\7" * 16)
    with pytest.raises(InvalidInputError, match="is of the task"):
        Helper(world.task, TaskSecret(other.task.id, SEED), HELPER_KEYS, MemoryStore())


# ---- uploads ----


def test_an_upload_that_comes_again_counts_once() -> None:
    world = World()
    reports = [world.report(each) for each in (0, 1, 1)]
    assert world.upload(*reports) == []
    assert world.upload(*reports) == []
    assert world.run_jobs() == (3, 0)
    assert world.upload(*reports) == []
    assert world.run_jobs() == (0, 0)
    assert world.collect().result == [1, 2, 0, 0]
    assert world.upload(*reports) == []
    assert world.run_jobs() == (0, 0)


def test_another_report_of_the_same_id_is_a_replay() -> None:
    world = World()
    first = world.report(1)
    world.made -= 1
    second = world.report(2)
    assert first.metadata == second.metadata and first != second
    assert world.upload(first, second) == [(first.metadata.id, E.REPORT_REPLAYED)]
    assert world.upload(second) == [(first.metadata.id, E.REPORT_REPLAYED)]
    world.measure(0, 0)
    world.run_jobs()
    assert world.collect().result == [2, 1, 0, 0]


def test_reports_that_are_not_taken_are_named_in_order() -> None:
    world = World()
    good = world.report(1)
    late = world.report(1, hours=-40)
    old_key = replace(good, metadata=replace(good.metadata, id=b"k" * 16))
    old_key = replace(old_key, leader=replace(old_key.leader, config=99))
    extended = world.report(1)
    extended = replace(
        extended, metadata=replace(extended.metadata, extensions=(Extension(1, b""),))
    )
    before = replace(late, metadata=replace(late.metadata, time=world.task.interval.start - 1))
    after = replace(good, metadata=replace(good.metadata, id=b"a" * 16, time=2**64 - 1))
    assert world.upload(old_key, good, extended, before, after) == [
        (b"k" * 16, E.OUTDATED_CONFIG),
        (extended.metadata.id, E.INVALID_MESSAGE),
        (before.metadata.id, E.REPORT_DROPPED),
        (b"a" * 16, E.REPORT_TOO_EARLY),
    ]
    assert world.run_jobs() == (1, 0)


def test_the_times_that_are_taken() -> None:
    world = World()
    start, end = TASK_SECONDS
    first, last = world.task.interval.start, world.task.interval.end - 1
    report = world.report(1)
    for time, now, error in [
        (first, start, None),
        (first, start - 300, None),
        (first, start - 301, E.REPORT_TOO_EARLY),
        (last, end - HOUR - 300, None),
        (last, end + 9 * HOUR, None),
        (last + 1, end + 9 * HOUR, E.REPORT_DROPPED),
        (first - 1, start, E.REPORT_DROPPED),
    ]:
        changed = replace(report, metadata=replace(report.metadata, time=time, id=bytes(16)))
        fresh = Leader(world.task, TaskSecret(world.task.id, SEED), LEADER_KEYS, MemoryStore())
        body = UploadRequest((changed,)).encode()
        expected = b"" if error is None else bytes(16) + bytes([error])
        assert fresh.upload(body, now) == expected, (time, now)


def test_an_upload_that_cannot_be_read_keeps_nothing() -> None:
    world = World()
    body = UploadRequest((world.report(1), world.report(2))).encode()
    for bad in (b"", body[:-1], body + b"\0"):
        with problem(ProblemType.INVALID_MESSAGE):
            world.leader.upload(bad, NOW)
    assert world.leader.is_idle


# ---- reports that do not pass ----


def outcomes(world: World, *reports: Report, now: float = NOW) -> list[Any]:
    """Return what the helper says of reports that the leader finds valid."""
    assert world.upload(*reports) == []
    job = world.leader.make_job()
    assert job is not None
    answer = world.helper.aggregate(job.request, now).answer
    world.leader.finish_job(job.id, answer)
    said = {each.id: each.said for each in AggregationJobResp.decode(answer).reports}
    return [said.get(report.metadata.id) for report in reports]


def associated(world: World, report: Report) -> bytes:
    of = world.task
    return InputShareAad(of.id, of.configuration, report.metadata, report.public_share).encode()


def resealed(world: World, report: Report, role: Role, share: PlaintextInputShare) -> Report:
    """Return a report with another share for a server."""
    aad = associated(world, report)
    keys = LEADER_KEYS if role == Role.LEADER else HELPER_KEYS
    sealed = seal(keys.configs.configs[0], share.encode(), input_share_info(role), aad)
    return replace(report, **{role.name.lower(): sealed})


def opened(world: World, report: Report, role: Role) -> PlaintextInputShare:
    aad = associated(world, report)
    keys, sealed = (
        (LEADER_KEYS, report.leader) if role == Role.LEADER else (HELPER_KEYS, report.helper)
    )
    plain = keys.open(sealed, input_share_info(role), aad)
    return PlaintextInputShare.decode(plain)


def test_what_the_helper_refuses() -> None:
    world = World()
    good, fake = world.report(1), PlaintextInputShare((), bytes(64))
    unknown, changed, wrong, short, extended = (world.report(1) for _ in range(5))
    sealed = changed.helper.payload
    said = outcomes(
        world,
        good,
        replace(unknown, helper=replace(unknown.helper, config=99)),
        replace(changed, helper=replace(changed.helper, payload=sealed[:-1] + b"x")),
        resealed(world, wrong, Role.HELPER, fake),
        resealed(world, short, Role.HELPER, PlaintextInputShare((), b"short")),
        resealed(
            world,
            extended,
            Role.HELPER,
            replace(opened(world, extended, Role.HELPER), extensions=(Extension(7, b""),)),
        ),
    )
    assert isinstance(said[0], Continued)
    assert said[1:] == [
        Rejected(E.HPKE_DECRYPT_ERROR),
        Rejected(E.HPKE_DECRYPT_ERROR),
        Rejected(E.VDAF_VERIFY_ERROR),
        Rejected(E.INVALID_MESSAGE),
        Rejected(E.INVALID_MESSAGE),
    ]
    world.measure(2, 3)
    world.run_jobs()
    assert world.collect().result == [0, 1, 1, 1]


def test_what_the_leader_refuses_never_reaches_the_helper() -> None:
    world = World()
    changed, garbled, extended, good = (world.report(1) for _ in range(4))
    payload = changed.leader.payload
    plain = opened(world, extended, Role.LEADER)
    garbage = seal(
        LEADER_KEYS.configs.configs[0],
        b"garbage",
        input_share_info(Role.LEADER),
        associated(world, garbled),
    )
    said = outcomes(
        world,
        replace(changed, leader=replace(changed.leader, payload=payload[:-1] + b"x")),
        replace(garbled, leader=garbage),
        resealed(world, extended, Role.LEADER, replace(plain, extensions=(Extension(7, b""),))),
        good,
    )
    assert said[:3] == [None, None, None]
    assert isinstance(said[3], Continued)


def test_a_job_of_no_valid_report_is_none() -> None:
    world = World()
    report = world.report(1)
    assert world.upload(replace(report, public_share=b"")) == []
    assert world.leader.make_job() is None
    assert world.leader.is_idle
    assert world.leader.jobs() == []
    assert world.leader.make_job() is None


@each_case("extensions", [(3,), (3, 3), (4, 3), (3, 4)])
def test_extensions_of_a_report_are_refused_by_either(extensions: tuple[int, ...]) -> None:
    """Unknown, doubled, unsorted: public ones at the leader, private ones at whom they are for."""
    listed = tuple(Extension(type, b"data") for type in extensions)
    world = World()
    report = world.report(1)
    public = replace(report, metadata=replace(report.metadata, extensions=listed))
    assert world.upload(public) == [(report.metadata.id, E.INVALID_MESSAGE)]
    private = resealed(
        world,
        report,
        Role.HELPER,
        replace(opened(world, report, Role.HELPER), extensions=listed),
    )
    assert outcomes(world, private) == [Rejected(E.INVALID_MESSAGE)]
    # a leader that lets a public one pass
    request = job_of(world, world.report(1))
    init = request.reports[0]
    metadata = replace(init.report.metadata, extensions=listed)
    changed = replace(init, report=replace(init.report, metadata=metadata))
    answer = world.helper.aggregate(replace(request, reports=(changed,)).encode(), NOW).answer
    assert AggregationJobResp.decode(answer).reports[0].said == Rejected(E.INVALID_MESSAGE)


def test_a_report_is_bound_to_all_that_is_said_with_it() -> None:
    """Time, id, public share and task are in what is sealed: none can be changed on the way."""
    report = World().report(1)
    metadata, share = report.metadata, report.public_share
    for changed in (
        replace(report, metadata=replace(metadata, time=metadata.time - 1)),
        replace(report, metadata=replace(metadata, id=bytes(16))),
        replace(report, public_share=share[:-1] + bytes([share[-1] ^ 1])),
    ):
        world = World()
        assert world.upload(changed) == []
        assert world.leader.make_job() is None
    for changes, passes in (({}, True), ({"info": b"\7" * 16}, False), ({"min_batch": 4}, False)):
        world = World(**changes)
        assert world.upload(report) == []
        assert (world.leader.make_job() is not None) == passes


# ---- requests to the helper ----


def job_of(world: World, *reports: Report) -> AggregationJobInitReq:
    """Return the leader's request of reports."""
    assert world.upload(*reports) == []
    job = world.leader.make_job()
    assert job is not None
    return AggregationJobInitReq.decode(job.request)


def test_jobs_that_the_helper_refuses() -> None:
    world = World()
    request = job_of(world, world.report(1), world.report(2))
    one, two = request.reports
    body = request.encode()
    for bad, type in [
        (b"", ProblemType.INVALID_MESSAGE),
        (body[:-1], ProblemType.INVALID_MESSAGE),
        (body + b"\0", ProblemType.INVALID_MESSAGE),
        (replace(request, key_id=1).encode(), ProblemType.INVALID_MESSAGE),
        (replace(request, agg_param=b"\0").encode(), ProblemType.INVALID_AGGREGATION_PARAMETER),
        (replace(request, reports=(one, two, one)).encode(), ProblemType.INVALID_MESSAGE),
        (
            replace(request, extensions=(Extension(1, bytes(32)),)).encode(),
            ProblemType.UNSUPPORTED_EXTENSION,
        ),
        (
            replace(request, extensions=(Extension(9, b""), Extension(9, b""))).encode(),
            ProblemType.INVALID_MESSAGE,
        ),
        (
            replace(request, extensions=(Extension(9, b""), Extension(8, b""))).encode(),
            ProblemType.INVALID_MESSAGE,
        ),
    ]:
        with problem(type):
            world.helper.aggregate(bad, NOW)
    assert world.helper_store.scan(Table.SEEN) == []
    assert world.run_jobs() == (2, 0)


def test_a_job_has_one_step() -> None:
    world = World()
    job = world.helper.aggregate(job_of(world, world.report(1)).encode(), NOW)
    more = AggregationJobContinueReq(1, (VerifyContinue(bytes(16), b"x"),)).encode()
    with problem(ProblemType.STEP_MISMATCH):
        world.helper.proceed(job.id, more)
    with problem(ProblemType.INVALID_MESSAGE):
        world.helper.proceed(job.id, more[:-1])
    with problem(ProblemType.UNRECOGNIZED_AGGREGATION_JOB):
        world.helper.proceed(bytes(16), more)


def test_the_helper_looks_at_times_itself() -> None:
    world = World()
    init = job_of(world, world.report(1)).reports[0]
    start, end = TASK_SECONDS
    first, last = world.task.interval.start, world.task.interval.end - 1
    for time, now, error in [
        (world.hour, NOW - 2 * HOUR, E.REPORT_TOO_EARLY),
        (world.hour, NOW, None),
        (first, start - 301, E.REPORT_TOO_EARLY),
        (first, start - 300, E.HPKE_DECRYPT_ERROR),  # in time, but of another report
        (first - 1, start, E.TASK_NOT_STARTED),
        (last, end + HOUR, E.HPKE_DECRYPT_ERROR),
        (last + 1, end + HOUR, E.TASK_EXPIRED),
        (2**64 - 1, end + HOUR, E.REPORT_TOO_EARLY),
    ]:
        metadata = replace(init.report.metadata, time=time)
        changed = replace(init, report=replace(init.report, metadata=metadata))
        request = AggregationJobInitReq(0, b"", (), (changed,)).encode()
        helper = Helper(world.task, TaskSecret(world.task.id, SEED), HELPER_KEYS, MemoryStore())
        said = AggregationJobResp.decode(helper.aggregate(request, now).answer).reports[0].said
        assert said == Rejected(error) if error else isinstance(said, Continued), (time, now)


def asked(world: World, *measurements: Any) -> AggregateShareReq:
    """Return what an honest leader asks for the batch of the last hours."""
    world.measure(*measurements)
    world.run_jobs()
    state = world.leader.collect(world.query(-4, 10).encode())
    return AggregateShareReq.decode(state.ask)


def selector(world: World, start: int, duration: int) -> BatchSelector:
    config = Interval(world.hour + start, duration).encode()
    return BatchSelector(BatchMode.TIME_INTERVAL, config)


def test_a_selector_is_within_the_query() -> None:
    """The query is 10 hours from 4 hours ago on; the reports are of now."""
    for start, duration, fits in [
        (-4, 10, True),
        (0, 1, True),
        (-4, 5, True),
        (0, 6, True),
        (-5, 11, False),
        (-5, 10, False),
        (-4, 11, False),
        (6, 1, False),
        (-5, 1, False),
    ]:
        world = World()
        request = replace(asked(world, 0, 1, 1), selector=selector(world, start, duration))
        if fits:
            world.helper.share(request.encode())
        else:
            with problem(ProblemType.BATCH_INVALID):
                world.helper.share(request.encode())


def test_all_of_a_query_is_closed_selected_or_not() -> None:
    world = World()
    request = replace(asked(world, 0, 1, 1), selector=selector(world, 0, 1))
    world.helper.share(request.encode())
    for start in (-4, -1, 1, 5):
        for collection in (request.collection, world.query(start)):
            other = replace(request, collection=collection, selector=selector(world, start, 1))
            with problem(ProblemType.BATCH_OVERLAP):
                world.helper.share(other.encode())
    for start in (-5, 6):
        other = replace(request, collection=world.query(start), selector=selector(world, start, 1))
        with problem(ProblemType.INVALID_BATCH_SIZE):
            world.helper.share(other.encode())


def test_shares_that_the_helper_refuses() -> None:
    world = World()
    request = asked(world, 0, 1, 1)
    collection, body = request.collection, request.encode()
    narrow = BatchSelector(BatchMode.TIME_INTERVAL, b"")
    chosen = BatchSelector(BatchMode.LEADER_SELECTED, b"")
    two = (Extension(2, b""), Extension(2, b""))
    for bad, type in [
        (b"", ProblemType.INVALID_MESSAGE),
        (body[:-1], ProblemType.INVALID_MESSAGE),
        (body + b"\0", ProblemType.INVALID_MESSAGE),
        (replace(request, selector=narrow), ProblemType.INVALID_MESSAGE),
        (replace(request, selector=chosen), ProblemType.INVALID_MESSAGE),
        (replace(request, selector=selector(world, 0, 0)), ProblemType.BATCH_INVALID),
        (replace(request, selector=selector(world, 0, 2**63)), ProblemType.BATCH_INVALID),
        (replace(request, report_count=2), ProblemType.BATCH_MISMATCH),
        (replace(request, report_count=4), ProblemType.BATCH_MISMATCH),
        (replace(request, checksum=bytes(32)), ProblemType.BATCH_MISMATCH),
        (replace(request, selector=selector(world, 1, 1)), ProblemType.INVALID_BATCH_SIZE),
        (
            replace(request, collection=replace(collection, agg_param=b"x")),
            ProblemType.INVALID_MESSAGE,
        ),
        (
            replace(request, collection=replace(collection, extensions=two[:1])),
            ProblemType.UNSUPPORTED_EXTENSION,
        ),
        (
            replace(request, collection=replace(collection, extensions=two)),
            ProblemType.INVALID_EXTENSION,
        ),
    ]:
        with problem(type):
            world.helper.share(bad if isinstance(bad, bytes) else bad.encode())
    assert world.helper_store.scan(Table.COLLECTED) == []
    world.helper.share(body)


# ---- requests to the leader ----


def test_queries_that_the_leader_refuses() -> None:
    world = World()
    world.measure(0, 1, 1)
    world.run_jobs()
    query = world.query()
    body = query.encode()
    two = (Extension(2, b""), Extension(2, b""))
    mode = Query(BatchMode.LEADER_SELECTED, b"")
    for bad, type in [
        (b"", ProblemType.INVALID_MESSAGE),
        (body[:-1], ProblemType.INVALID_MESSAGE),
        (body + b"\0", ProblemType.INVALID_MESSAGE),
        (replace(query, query=mode), ProblemType.INVALID_MESSAGE),
        (replace(query, query=replace(query.query, config=b"x")), ProblemType.INVALID_MESSAGE),
        (replace(query, agg_param=b"x"), ProblemType.INVALID_AGGREGATION_PARAMETER),
        (replace(query, extensions=two[:1]), ProblemType.UNSUPPORTED_EXTENSION),
        (replace(query, extensions=two), ProblemType.INVALID_EXTENSION),
        (world.query(0, 0), ProblemType.BATCH_INVALID),
        (world.query(0, 2**64 - 1), ProblemType.BATCH_INVALID),
        (world.query(1, 1), ProblemType.INVALID_BATCH_SIZE),
    ]:
        with problem(type):
            world.leader.collect(bad if isinstance(bad, bytes) else bad.encode())
    assert world.leader_store.scan(Table.COLLECTION) == []
    assert world.collect().result == [1, 2, 0, 0]


def test_a_batch_below_the_least_size_may_be_asked_for_later() -> None:
    world = World()
    world.measure(0, 1)
    world.run_jobs()
    with problem(ProblemType.INVALID_BATCH_SIZE):
        world.collect()
    world.measure(1)
    world.run_jobs()
    assert world.collect().result == [1, 2, 0, 0]


@each_case(("start", "duration"), [(0, 1), (-1, 2), (0, 2), (-9, 30), (-1, 1), (1, 1)])
def test_no_time_is_collected_twice(start: int, duration: int) -> None:
    """Nor an empty one: a report that comes later would be alone in its batch."""
    world = World(min_batch=1)
    for hours in (-2, -1, 0, 1):
        world.measure(1, hours=hours)
    world.run_jobs(now=NOW + HOUR)
    world.collect(-1, 3)
    with problem(ProblemType.BATCH_OVERLAP):
        world.collect(start, duration)
    assert world.collect(-2, 1).count == 1


def test_collected_times_are_found_wherever_they_lie() -> None:
    world = World(min_batch=1)
    for hours in range(-10, 1):
        world.measure(1, hours=hours)
    world.run_jobs()
    for start, duration in ((-4, 2), (-9, 3), (-1, 1)):
        world.collect(start, duration)
    closed = {-9, -8, -7, -4, -3, -1}
    for hours in range(-10, 1):
        error = [E.REPORT_REPLAYED] if hours in closed else []
        assert [error for _, error in world.upload(world.report(1, hours))] == error, hours
    assert world.collect(-6, 2).count == 2
    assert world.collect(0, 1).count == 1


def test_a_collection_waits_for_the_jobs_of_its_interval() -> None:
    world = World()
    world.measure(0, 1, 1)
    world.run_jobs()
    for hours in (-4, -2):
        world.measure(3, hours=hours)
    job = world.leader.make_job()  # of the hours from 4 to 2 ago
    assert job is not None
    waiting = world.leader.collect(world.query(-2, 3).encode())
    assert (waiting.answer, waiting.ask) == (b"", b"")
    assert world.leader.collection(waiting.id) == waiting
    assert world.leader.collect(world.query(-3, 4).encode()).ask == b""  # within the job's times
    assert world.leader.collect(world.query(-1, 2).encode()).ask != b""  # which none touches
    world.leader.finish_job(job.id, world.helper.aggregate(job.request, NOW).answer)
    with problem(ProblemType.BATCH_OVERLAP):
        world.leader.collection(waiting.id)


def test_a_job_that_the_helper_never_answers_can_be_ended() -> None:
    world = World()
    world.measure(0, 1, 1)
    world.run_jobs()
    world.measure(2)
    job = world.leader.make_job()
    assert job is not None
    assert world.leader.collect(world.query().encode()).ask == b""
    world.leader.abandon_job(job.id)
    world.leader.abandon_job(job.id)
    assert world.leader.jobs() == []
    assert world.collect().result == [1, 2, 0, 0]


def test_the_answer_of_a_job_after_its_key_is_gone_adds_nothing() -> None:
    world = World()
    world.measure(0, 1)
    job = world.leader.make_job()
    assert job is not None
    answer = world.helper.aggregate(job.request, NOW).answer
    secret = TaskSecret(world.task.id, SEED)
    leader = Leader(world.task, secret, Keyring({11: key(5)}), world.leader_store)
    assert leader.finish_job(job.id, answer) == (0, 2)
    assert leader.jobs() == []


# ---- the collector ----


def test_queries_of_the_collector() -> None:
    world = World()
    start, end = TASK_SECONDS
    query = make_query(world.task, start, end)
    assert Interval.decode(query.query.config) == world.task.interval
    for bad in ((start + 1, end), (start, end - 1), (end, start), (start, start), (-HOUR, start)):
        with pytest.raises(InvalidInputError, match="start|end"):
            make_query(world.task, *bad)


def test_answers_that_the_collector_refuses() -> None:
    world = World()
    world.measure(0, 1, 1)
    world.run_jobs()
    query = world.query(-1, 2)
    state = world.leader.collect(query.encode())
    share = world.helper.share(state.ask).answer
    body = world.leader.finish_collection(state.id, share).answer
    answer = CollectionJobResp.decode(body)
    assert open_result(world.task, COLLECTOR, query, body).count == 3
    swapped = replace(answer, leader=answer.helper, helper=answer.leader)
    garbled = answer.helper.payload[:-1] + bytes([answer.helper.payload[-1] ^ 1])
    for bad, match in [
        (body[:-1], "cut off"),
        (body + b"\0", "follow"),
        (replace(answer, report_count=2), "3 reports or more, got 2"),
        (replace(answer, interval=Interval(world.hour, 0)), "another interval"),
        (replace(answer, interval=Interval(world.hour - 2, 1)), "another interval"),
        (replace(answer, interval=Interval(world.hour, 2)), "another interval"),
        (swapped, "does not open"),
        (replace(answer, helper=replace(answer.helper, payload=garbled)), "does not open"),
        (replace(answer, helper=replace(answer.helper, config=9)), "no key has the number 9"),
    ]:
        encoded = bad if isinstance(bad, bytes) else bad.encode()
        with pytest.raises(InvalidInputError, match=match):
            open_result(world.task, COLLECTOR, query, encoded)
    with pytest.raises(RejectedError, match="does not open"):  # the answer to another request
        open_result(world.task, COLLECTOR, world.query(-2, 3), body)
    with pytest.raises(RejectedError, match="does not open"):
        open_result(world.task, Keyring({1: key(3)}), query, body)


# ---- problems and stores ----


def test_a_problem_as_a_document() -> None:
    task_id = bytes(range(32))
    assert Problem(ProblemType.BATCH_OVERLAP, "a part was collected").document(task_id) == {
        "type": "urn:ietf:params:ppm:dap:error:batchOverlap",
        "status": 400,
        "detail": "a part was collected",
        "taskid": to_text(task_id),
    }
    assert Problem(ProblemType.UNRECOGNIZED_TASK, "no such task").status == 404


def test_a_transaction_is_whole_or_nothing() -> None:
    store = MemoryStore()
    store.put(Table.SEEN, b"a", b"1")
    store.put(Table.SEEN, b"c", b"3")
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012 - all of it is undone
        store.put(Table.SEEN, b"a", b"2")
        store.put(Table.SEEN, b"a", b"4")
        store.put(Table.SEEN, b"b", b"2")
        store.drop(Table.SEEN, b"c")
        store.drop(Table.SEEN, b"never")
        raise KeyError
    assert store.scan(Table.SEEN) == [(b"a", b"1"), (b"c", b"3")]
    with store.transaction():
        store.put(Table.SEEN, b"b", b"2")
        with pytest.raises(InvalidInputError, match="open already"), store.transaction():
            pass
    assert store.scan(Table.SEEN, b"b") == [(b"b", b"2"), (b"c", b"3")]
    assert store.scan(Table.SEEN, b"a", b"c") == [(b"a", b"1"), (b"b", b"2")]
    assert store.scan(Table.SEEN, limit=1) == [(b"a", b"1")]


def test_the_leader_verifies_each_report_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs are most of its time: it keeps the states of its jobs until they are answered."""
    world, calls = World(), []
    verify = Prio3.verify_init

    def counted(self: Prio3, key: bytes, aggregator: int, *rest: bytes) -> Any:
        calls.append(aggregator)
        return verify(self, key, aggregator, *rest)

    monkeypatch.setattr(Prio3, "verify_init", counted)
    world.measure(0, 1, 2, 3)
    world.run_jobs()
    world.collect()
    assert sorted(calls) == [0] * 4 + [1] * 4
