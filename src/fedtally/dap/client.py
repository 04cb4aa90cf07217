"""The functions by which a client makes the report of one measurement."""

from __future__ import annotations

from typing import Any

from fedtally.dap.draft18 import (
    DRAFT,
    HpkeConfig,
    PlaintextInputShare,
    Report,
    ReportMetadata,
    Role,
)
from fedtally.dap.sealing import seal
from fedtally.dap.task import Task, to_text
from fedtally.errors import InvalidInputError
from fedtally.flp.prio3 import NONCE_BYTES


def random_bytes(task: Task) -> int:
    """Return the number of random bytes that `make_report` needs for a report of this task."""
    return NONCE_BYTES + task.prio3.random_bytes


def check_draft(task: Task) -> None:
    """Raise an error if the task does not accept reports of draft 18: fedtally makes no others.

    Raises:
        InvalidInputError: the task does not accept reports of draft 18.
    """
    if task.draft != DRAFT:
        raise InvalidInputError(
            f"the task takes reports of draft {task.draft:02}, which fedtally does not make: report"
            " with @divviup/dap of npm"
        )


def make_report(
    task: Task,
    measurement: Any,
    *,
    leader: HpkeConfig,
    helper: HpkeConfig,
    now: float,
    random: bytes,
) -> Report:
    """Make the report of a measurement, which the client then sends to the leader.

    A client that receives no answer must send the same report again: the leader counts it once. A
    new report of the same measurement would be counted a second time.

    Args:
        task: the task.
        measurement: 0 or 1 for a count; a list of integers, each 0 .. `maximum`, for a vector of
            sums; the number of a bucket, 0 .. `buckets` - 1, for a histogram.
        leader: the key configuration of the leader, from `sealing.choose`.
        helper: the key configuration of the helper, from `sealing.choose`.
        now: the time, Unix seconds.
        random: `random_bytes(task)` uniform bytes, which must not be used for another report.

    Raises:
        InvalidInputError: the task's VDAF cannot encode the measurement, `now` is not in the task's
            interval, `random` has another length, or the task does not accept reports of draft 18.
        RejectedError: the key of a server is not valid.
        MissingExtraError: pycryptodome is not installed.
    """
    check_draft(task)
    if len(random) != random_bytes(task):
        raise InvalidInputError(f"random must be {random_bytes(task)} bytes, got {len(random)}")
    time = task.time(now)
    if not task.interval.start <= time < task.interval.end:
        raise InvalidInputError(f"the task {to_text(task.id)} does not run now")
    id = random[:NONCE_BYTES]
    public, shares = task.prio3.shard(measurement, id, random[NONCE_BYTES:])
    metadata = ReportMetadata(id, time, ())
    aad = task.version.input_share_aad(task.id, task.configuration, metadata, public)
    sealed = [
        seal(to, PlaintextInputShare((), share).encode(), task.version.input_share_info(role), aad)
        for to, share, role in zip(
            (leader, helper), shares, (Role.LEADER, Role.HELPER), strict=True
        )
    ]
    return Report(metadata, public, *sealed)
