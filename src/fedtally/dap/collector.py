"""The functions of a collector: they make the request for a batch, and open its result.

The collector sends the request to the leader. The answer has one share of the sum from each server,
which only the collector can decrypt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedtally.base import validate
from fedtally.dap.draft18 import (
    AggregateShareAad,
    BatchMode,
    CollectionJobReq,
    CollectionJobResp,
    Interval,
    Query,
    Role,
    aggregate_share_info,
)
from fedtally.dap.presentation import MalformedError
from fedtally.dap.sealing import Keyring
from fedtally.dap.task import Task
from fedtally.errors import InvalidInputError


@dataclass(frozen=True)
class Collected:
    """The result of a batch: the reports of one time interval.

    The leader states `start` and `end`. The collector can check only that they are in the interval
    for which it asked.

    Attributes:
        count: the number of reports in the batch, as the leader states it. The collector can check
            only that it is at least the task's `min_batch`.
        start: the time of the earliest report, rounded down to the precision, Unix seconds.
        end: the time of the latest report, rounded down, plus the precision, Unix seconds.
        result: the sum. An integer for a count; a list of integers for a vector of sums and for a
            histogram. If the servers add noise, integers may be negative.
    """

    count: int
    start: int
    end: int
    result: Any


def make_query(task: Task, start: int, end: int) -> CollectionJobReq:
    """Make the request for the batch of all reports from `start` up to `end`.

    Args:
        task: the task.
        start: the first second of the interval, Unix seconds, a multiple of the precision.
        end: the first second after the interval, Unix seconds, a multiple of the precision.

    Raises:
        InvalidInputError: a time is negative or is not a multiple of the task's precision, or `end`
            is not after `start`.
    """
    precision = task.configuration.precision
    for name, seconds in (("start", start), ("end", end)):
        if validate.integer(0, **{name: seconds}) % precision:
            raise InvalidInputError(
                f"{name} must be a multiple of the precision, {precision} s, got {seconds}"
            )
    if end <= start:
        raise InvalidInputError(f"end must be after start, {start}, got {end}")
    interval = Interval(start // precision, (end - start) // precision)
    return CollectionJobReq(Query(BatchMode.TIME_INTERVAL, interval.encode()), b"", ())


def open_result(task: Task, keys: Keyring, request: CollectionJobReq, body: bytes) -> Collected:
    """Decrypt both servers' shares in the leader's answer, and return their sum.

    Args:
        task: the task.
        keys: the collector's keys.
        request: the collector's request, from `make_query`.
        body: the leader's answer to this request, an encoded CollectionJobResp.

    Raises:
        InvalidInputError: the answer is malformed, its batch has fewer reports than the task
            demands, or its batch is not within the requested interval.
        RejectedError: a share cannot be decrypted: it was sealed to another key, for another
            request, or was changed.
    """
    answer = CollectionJobResp.decode(body)
    if answer.report_count < task.min_batch:
        raise MalformedError(
            f"a batch must have {task.min_batch} reports or more, got {answer.report_count}"
        )
    asked = Interval.decode(request.query.config)
    if not answer.interval.is_valid or not asked.holds(answer.interval):
        raise MalformedError("the answer is of another interval")
    aad = AggregateShareAad(task.id, task.configuration, request).encode()
    shares = [
        keys.open(sealed, aggregate_share_info(role), aad)
        for sealed, role in ((answer.leader, Role.LEADER), (answer.helper, Role.HELPER))
    ]
    precision = task.configuration.precision
    return Collected(
        answer.report_count,
        answer.interval.start * precision,
        answer.interval.end * precision,
        _centred(task.prio3.unshard(shares), task.prio3.circuit.field.prime),
    )


def _centred(result: Any, prime: int) -> Any:
    """Map integers mod p from 0 .. p - 1 to -p/2 .. p/2, since sums with noise may be negative.

    Args:
        result: an integer, or a list of integers, 0 .. p - 1.
        prime: p.

    Returns:
        An integer, or a list of integers, as `result`.
    """
    if isinstance(result, list):
        return [_centred(each, prime) for each in result]
    return result - prime if 2 * result > prime else result
