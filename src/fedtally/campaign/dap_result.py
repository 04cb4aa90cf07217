"""The answer of a batch of DAP, as the other commands read it."""

from __future__ import annotations

import numpy as np

from fedtally.answer.result import Result
from fedtally.answer.sections import dap
from fedtally.base.encoding import Encoding
from fedtally.crypto.keys import KEY_BYTES, TAG_BYTES
from fedtally.dap import Collected, Task
from fedtally.dap.draft18 import HpkeCiphertext, PlaintextInputShare, Report, ReportMetadata
from fedtally.domain import Domain
from fedtally.flp.prio3 import NONCE_BYTES
from fedtally.plan import Plan
from fedtally.sketch import CountSketch, Schedule

NOTE = (
    "reports of DAP have no identity: one person may have sent several, and shares are of reports"
)


def result_of(task: Task, collected: Collected, domain: Domain, command: str = "") -> Result:
    """Return the answer of a batch.

    Args:
        task: the task.
        collected: the batch.
        domain: its candidates, of `dap_files.domain_of_task`.
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
