"""The answer of a batch of DAP, as the other commands read it."""

from __future__ import annotations

import numpy as np

from fedtally.answer.result import Result
from fedtally.answer.sections import dap
from fedtally.base.encoding import Encoding
from fedtally.crypto.keys import KEY_BYTES, TAG_BYTES
from fedtally.dap import Collected, Task
from fedtally.dap.draft18 import HpkeCiphertext, PlaintextInputShare, Report, ReportMetadata
from fedtally.domain import Domain, IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.flp.prio3 import NONCE_BYTES
from fedtally.plan import Plan
from fedtally.sketch import CountSketch, Schedule

NOTE = (
    "reports of DAP have no identity: one person may have sent several, and shares are of reports"
)


def domain_of_task(task: Task, given: Domain | None = None) -> Domain:
    """Return the candidates of a task: those of a list, else the numbers of its entries.

    A count has one candidate, 1. Buckets and entries are counted from 0.

    Args:
        task: the task.
        given: the candidates in the order of buckets or entries; None: numbers.

    Raises:
        InvalidInputError: the list has more candidates than the task, or fewer; or the sums of the
            task are no numbers of reports.
    """
    sizes = task.sizes
    if sizes.get("maximum", 1) > 1:
        raise InvalidInputError(
            f"entries of this task are numbers up to {sizes['maximum']:,}, and no shares of"
            " reports: leave the file of the result out"
        )
    size = sizes.get("buckets", sizes.get("entries", 1))
    if given is None:
        return IntegerRange(1, 1) if task.vdaf == "count" else IntegerRange(0, size - 1)
    if given.size != size:
        raise InvalidInputError(
            f"the task has {size:,} candidates, and the list has {given.size:,}: give its own list"
        )
    return given


def result_of(task: Task, collected: Collected, domain: Domain, command: str = "") -> Result:
    """Return the answer of a batch.

    Args:
        task: the task.
        collected: the batch.
        domain: its candidates, of `domain_of_task`.
        command: the command line that asked for it.
    """
    count = collected.count
    plan = Plan(
        rows=1,
        width=domain.size,
        schedule=Schedule.parse("shared"),
        num_rounds=1,
        num_clients=count,
        max_round_clients=count,
        domain=domain.describe(),
        max_items=domain.size if task.vdaf == "sumvec" else 1,
        seed=task.id,
        encoding=Encoding.HISTOGRAM,
    )
    sums = CountSketch(plan.spec, 0)
    sums.counters = np.atleast_2d(np.asarray(collected.result, np.int64))
    sums.num_clients = count
    summed = dap.summed(task.min_batch, report_bytes(task))
    return Result(plan, domain, [sums], secure_sum=summed, warnings=[NOTE], command=command)


def report_bytes(task: Task) -> int:
    """Return the bytes of a report of a task."""
    plain = [
        PlaintextInputShare((), bytes(task.prio3.share_bytes(number))).encode() for number in (0, 1)
    ]
    leader, helper = (
        HpkeCiphertext(0, bytes(KEY_BYTES), bytes(len(each) + TAG_BYTES)) for each in plain
    )
    metadata = ReportMetadata(bytes(NONCE_BYTES), 0, ())
    report = Report(metadata, bytes(task.prio3.public_bytes), leader, helper)
    return len(task.version.write_upload(report, task.configuration))
