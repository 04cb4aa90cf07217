"""Reports of draft 09: recorded bytes of clients that others wrote, and what is refused of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from dap_world import HELPER_KEYS, HOUR, LEADER_KEYS, NOW, SEED, World, make_task

from fedtally.campaign.dap_result import report_bytes
from fedtally.dap import draft09, draft18
from fedtally.dap.client import make_report, random_bytes
from fedtally.dap.draft18 import Role
from fedtally.dap.helper import Helper
from fedtally.dap.leader import Leader
from fedtally.dap.problems import Problem, ProblemType
from fedtally.dap.state import MemoryStore, Table
from fedtally.dap.task import Task, TaskSecret
from fedtally.errors import InvalidInputError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "dap09.json").read_text())
PLACES = range(len(VECTORS))


class Recorded(World):
    """The servers of a task whose reports were recorded."""

    def __init__(self, vector: dict[str, Any]) -> None:
        super().__init__()
        self.task, self.now = Task.from_toml(vector["task"]), vector["now"]
        self.reports = [bytes.fromhex(each) for each in vector["reports"]]
        self.leader_store, self.helper_store = MemoryStore(), MemoryStore()
        self.restart()

    @property
    def hour(self) -> int:
        return self.task.time(self.now)


def refusal(world: Recorded, report: bytes) -> ProblemType | None:
    """Return what the leader says of a report; None: it was taken."""
    try:
        assert world.leader.upload(report, world.now) == b""
    except Problem as problem:
        return problem.type
    return None


def test_who_was_recorded() -> None:
    of = [(vector["client"], Task.from_toml(vector["task"]).vdaf) for vector in VECTORS]
    npm, firefox = "@divviup/dap 0.9.1", "Firefox 153.8.0"
    assert of == [
        (npm, "count"),
        (npm, "histogram"),
        (npm, "sumvec"),
        (firefox, "histogram"),
        (firefox, "sumvec"),
    ]


@each_case("place", PLACES)
def test_recorded_reports_are_counted(place: int) -> None:
    vector = VECTORS[place]
    world = Recorded(vector)
    assert [refusal(world, each) for each in world.reports * 2] == [None] * 2 * len(world.reports)
    assert world.run_jobs(now=world.now) == (len(world.reports), 0)
    found = world.collect(0, 2)
    assert (found.count, found.result) == (len(world.reports), vector["result"])


@each_case("place", PLACES)
def test_a_recorded_report_that_was_changed_is_refused(place: int) -> None:
    """In each field: by the leader, or by the helper; the others are counted."""
    vector = VECTORS[place]
    whole = Recorded(vector).reports[0]
    report = draft09.Report.decode(whole)
    flipped = bytes([report.leader.payload[0] ^ 1]) + report.leader.payload[1:]
    turned = report.helper.payload[:-1] + bytes([report.helper.payload[-1] ^ 1])
    metadata = report.metadata
    changes: dict[str, dict[str, Any]] = {
        "id": {"metadata": replace(metadata, id=bytes(16))},
        "time": {"metadata": replace(metadata, time=metadata.time - HOUR)},
        "leader's payload": {"leader": replace(report.leader, payload=flipped)},
        "leader's key": {"leader": replace(report.leader, key=report.helper.key)},
        "helper's payload": {"helper": replace(report.helper, payload=turned)},
        "helper's number": {"helper": replace(report.helper, config=99)},
        "swapped": {
            "leader": replace(report.helper, config=report.leader.config),
            "helper": replace(report.leader, config=report.helper.config),
        },
        "public share": {"public_share": report.public_share[:-1]},
    }
    if report.public_share:
        first = bytes([report.public_share[0] ^ 1]) + report.public_share[1:]
        changes["public share, a bit"] = {"public_share": first}
    else:
        changes["public share"] = {"public_share": b"\0"}
    for name, change in changes.items():
        world = Recorded(vector)
        bad = replace(report, **change).encode()
        assert [refusal(world, each) for each in (bad, *world.reports[1:])] == [None] * len(
            world.reports
        )
        added, _ = world.run_jobs(now=world.now)
        assert added == len(world.reports) - 1, name


@each_case("place", PLACES)
def test_a_recorded_report_is_read_exactly(place: int) -> None:
    world = Recorded(VECTORS[place])
    whole = world.reports[0]
    assert draft09.Report.decode(whole).encode() == whole
    (read,) = draft09.read_upload(whole, world.task.configuration)
    assert draft09.write_upload(read, world.task.configuration) == whole
    assert report_bytes(world.task) == len(whole)
    for bad in (*(whole[:size] for size in range(len(whole))), whole + b"\0", whole * 2):
        assert refusal(world, bad) is ProblemType.INVALID_MESSAGE
    assert world.leader.is_idle


def test_what_a_client_of_draft_09_is_told() -> None:
    world = Recorded(VECTORS[0])
    report = draft09.Report.decode(world.reports[0])

    def said(**change: Any) -> ProblemType | None:
        return refusal(world, replace(report, **change).encode())

    def at(time: int) -> ProblemType | None:
        return said(metadata=draft09.ReportMetadata(b"t" * 16, time))

    start = world.task.interval.start * HOUR
    end = world.task.interval.end * HOUR
    assert at(report.metadata.time + 1) is ProblemType.INVALID_MESSAGE
    assert at(report.metadata.time + 2 * HOUR) is ProblemType.REPORT_TOO_EARLY
    assert at((2**64 - 1) // HOUR * HOUR) is ProblemType.REPORT_TOO_EARLY
    assert at(start - HOUR) is ProblemType.REPORT_REJECTED
    world.now = end + HOUR
    assert at(end) is ProblemType.REPORT_REJECTED
    world.now = VECTORS[0]["now"]
    old = replace(report.leader, config=99)
    assert said(leader=old) is ProblemType.OUTDATED_CONFIG
    assert said() is None
    assert said(helper=replace(report.helper, config=99)) is ProblemType.REPORT_REJECTED  # its id
    for each in world.reports[1:]:
        assert refusal(world, each) is None
    world.run_jobs(now=world.now)
    world.collect(0, 2)
    assert said(metadata=replace(report.metadata, id=b"n" * 16)) is ProblemType.REPORT_REJECTED


def test_a_task_of_one_draft_takes_no_report_of_the_other() -> None:
    """Nor has it the other one's id, so that no report counts for both."""
    recorded = Recorded(VECTORS[1])
    late = Task(recorded.task.configuration, recorded.task.collector)
    assert late.id != recorded.task.id and late.configuration == recorded.task.configuration
    world = World()
    world.task = late
    world.leader_store, world.helper_store = MemoryStore(), MemoryStore()
    world.restart()
    with pytest.raises(Problem, match="invalidMessage"):
        world.leader.upload(recorded.reports[0], recorded.now)
    made = make_report(
        late,
        3,
        leader=LEADER_KEYS.configs.configs[0],
        helper=HELPER_KEYS.configs.configs[0],
        now=recorded.now,
        random=bytes(random_bytes(late)),
    )
    assert refusal(recorded, draft18.UploadRequest((made,)).encode()) is ProblemType.INVALID_MESSAGE
    # the same shares as a report of draft 09: they are bound to the other draft
    metadata = draft09.ReportMetadata(made.metadata.id, made.metadata.time * HOUR)
    old = draft09.Report(metadata, made.public_share, made.leader, made.helper)
    assert refusal(recorded, old.encode()) is None
    assert recorded.leader.make_job() is None
    assert recorded.leader_store.scan(Table.JOB) == []


def test_fedtally_makes_no_report_of_draft_09() -> None:
    task = make_task("histogram", draft=9)
    with pytest.raises(InvalidInputError, match="draft 09"):
        make_report(
            task,
            1,
            leader=LEADER_KEYS.configs.configs[0],
            helper=HELPER_KEYS.configs.configs[0],
            now=NOW,
            random=bytes(random_bytes(task)),
        )


@each_case("server", [Leader, Helper])
def test_the_verification_key_of_draft_09_is_shorter(server: Any) -> None:
    task = make_task("count", draft=9)
    secret = TaskSecret(task.id, SEED)
    assert len(secret.verify_key(task)) == 16
    server(task, secret, LEADER_KEYS, MemoryStore())
    assert Task.from_toml(task.to_toml()) == task
    with pytest.raises(InvalidInputError, match="2\\^bits - 1 in draft 08, got 5"):
        make_task("sumvec", draft=9)


def test_the_names_of_the_version() -> None:
    """As the draft has them: the purpose of a share names client and server."""
    assert draft09.input_share_info(Role.LEADER) == b"dap-09 input share\x01\x02"
    assert draft09.input_share_info(Role.HELPER) == b"dap-09 input share\x01\x03"
    task = make_task("count", draft=9)
    metadata = draft18.ReportMetadata(b"i" * 16, 500_050, ())
    aad = draft09.input_share_aad(task.id, task.configuration, metadata, b"ps")
    time = (500_050 * HOUR).to_bytes(8, "big")
    assert aad == task.id + b"i" * 16 + time + b"\0\0\0\2ps"
