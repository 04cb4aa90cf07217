"""The answer of a DAP batch, as a `Result`: the form of answer that fedtally's commands read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedtally.answer.result import Result
from fedtally.answer.sections import dap_sums
from fedtally.base.encoding import Encoding
from fedtally.campaign.dap_noise import DapNoise
from fedtally.crypto.keys import KEY_BYTES, TAG_BYTES
from fedtally.dap import Collected, Task
from fedtally.dap.draft18 import HpkeCiphertext, PlaintextInputShare, Report, ReportMetadata
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.flp.prio3 import NONCE_BYTES
from fedtally.plan import Plan
from fedtally.secagg.config import TwoServerConfig, whole_bits
from fedtally.secagg.params import noise_bound
from fedtally.sketch import CountSketch, Schedule

NOTE = (
    "reports of DAP have no identity: one person may have sent several, and shares are of reports"
)
NOTE_ON_NOISE = (
    "the unit of privacy is a report, wherever a client is named: whoever sent several is protected"
    " less"
)


def result_of(
    task: Task,
    collected: Collected,
    domain: Domain,
    command: str = "",
    noise: DapNoise | None = None,
) -> Result:
    """Return the answer of a batch: for each candidate, the share of reports that have it.

    Args:
        task: the task, that is, what two servers sum for a collector.
        collected: the sums of the batch and its number of reports.
        domain: the candidates of the task, from `dap_files.domain_of_task`.
        command: the command line that asked for the answer.
        noise: the noise that each server adds, as both operators told the collector; None: no
            noise.

    Raises:
        InvalidInputError: `noise` is None, and the sums show that they have noise. Or `noise` is
            given, and a sum is below 0 or above the number of reports by more than this noise can
            explain. Then a server spoiled the sums, or adds more noise than `noise` says. Or
            `DapNoise.terms` refuses `noise`.
    """
    plan = _plan(task, collected.count, domain, noise)
    _check_sums(task, collected, plan)
    sums = CountSketch(plan.spec, 0)
    sums.counters = np.atleast_2d(np.asarray(_sums(collected), np.int64))
    sums.num_clients, sums.noise = collected.count, plan.noise_mark
    summed = dap_sums.summed(task.min_batch, report_bytes(task), plan.summing.servers)
    notes = [NOTE] if noise is None else [NOTE, NOTE_ON_NOISE]
    return Result(plan, domain, [sums], secure_sum=summed, warnings=notes, command=command)


def _check_sums(task: Task, collected: Collected, plan: Plan) -> None:
    """Refuse sums that cannot come from this number of reports with the noise of the plan.

    Raises:
        InvalidInputError: the sums are refused, see `result_of`.
    """
    sums, count = _sums(collected), collected.count
    most = plan.secure_sum.noise if isinstance(plan.secure_sum, TwoServerConfig) else 0
    is_within = all(-most <= each <= count + most for each in sums)
    if most and not is_within:
        raise InvalidInputError(
            "a server spoiled the sums, or adds more noise than you say: compare --epsilon and"
            " --delta with both operators"
        )
    # A report of a histogram has one bucket, so exact sums add up to the number of reports. Another
    # total means noise that the plan does not have, or a server that spoiled the sums. Most noise
    # changes the total.
    is_total = most or task.vdaf != "histogram" or sum(sums) == count
    if not (is_within and is_total):
        raise InvalidInputError(
            f"the sums are not the exact ones of {count:,} reports, and so have noise: say which"
            " (--epsilon), as both operators tell you"
        )


def _sums(collected: Collected) -> list[int]:
    """Return the sums of a batch as a list; a task that counts has only one sum."""
    result = collected.result
    return result if isinstance(result, list) else [result]


def _plan(task: Task, count: int, domain: Domain, noise: DapNoise | None) -> Plan:
    """Return a plan that describes the batch for the `Result`; no campaign is run with it."""
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
    if noise is None:
        return plan
    terms = noise.terms(task)
    bound = noise_bound(terms.largest_stddev(count), domain.size, "discrete-gaussian") + 1
    bits = whole_bits(count, 1, bound, folds=False, signed=False)
    servers = TwoServerConfig(
        length=domain.size, bits=bits, n_max=count, min_batch=task.min_batch, corrupt=0, noise=bound
    )
    return replace(plan, secure_sum=servers, privacy=terms)


def report_bytes(task: Task) -> int:
    """Return the number of bytes with which a client uploads one report of a task."""
    plain = [
        PlaintextInputShare((), bytes(task.prio3.share_bytes(number))).encode() for number in (0, 1)
    ]
    leader, helper = (
        HpkeCiphertext(0, bytes(KEY_BYTES), bytes(len(each) + TAG_BYTES)) for each in plain
    )
    metadata = ReportMetadata(bytes(NONCE_BYTES), 0, ())
    report = Report(metadata, bytes(task.prio3.public_bytes), leader, helper)
    return len(task.version.write_upload(report, task.configuration))
