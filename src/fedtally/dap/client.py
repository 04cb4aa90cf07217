"""A client of DAP: a report of one measurement."""

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
    """Return how many random bytes a report of this task takes."""
    return NONCE_BYTES + task.prio3.random_bytes


def check_draft(task: Task) -> None:
    """Refuse a task whose reports are not made here.

    Raises:
        InvalidInputError: it takes reports of another draft than 18.
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
    """Return the report of a measurement, which goes to the leader.

    The leader may get it again and again, and counts it once. Another report of the same
    measurement would be counted, too.

    Args:
        task: the task.
        measurement: 0 or 1 for a count, a list for a vector of sums, a bucket for a histogram.
        leader: the leader's key, as `choose` gives it.
        helper: the helper's key.
        now: seconds since 1970.
        random: `random_bytes` uniform bytes, for this report alone.

    Raises:
        InvalidInputError: the measurement does not fit the task, the task does not run now, or it
            takes reports of draft 09, which are made by others' programs.
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
