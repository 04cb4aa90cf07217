"""The network part of two DAP commands.

`report` is for a client, and sends one report. `collect` is for a collector, and gets one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from fedtally.campaign.dap_files import key_number
from fedtally.campaign.transports.https.dap_asking import DapAsking, DeniedError
from fedtally.crypto.hpke_aad import RecipientKey
from fedtally.dap import Collected, Keyring, Task, make_query, make_report, open_result
from fedtally.dap.client import check_draft, random_bytes
from fedtally.dap.draft18 import CollectionJobReq, CollectionJobResp, UploadRequest
from fedtally.dap.sealing import choose
from fedtally.dap.task import to_text
from fedtally.errors import InvalidInputError

# The most requests for a deferred content. There is a second or more between two requests, so this
# takes 12 days or longer: in practice `wait` of `collect` ends first.
_POLLS = 1 << 20


async def report(
    http: httpx.AsyncClient,
    task: Task,
    measurement: Any,
    *,
    now: float,
    random: Callable[[int], bytes],
) -> None:
    """Make a report of a measurement, and send it to the leader.

    Args:
        http: the HTTP client.
        task: the task.
        measurement: the value to report; `dap.make_report` says its type.
        now: the time, Unix seconds.
        random: returns uniform bytes from a cryptographic source. Its argument is their number.

    Raises:
        InvalidInputError: the task does not accept reports of draft 18, `make_report` refuses the
            measurement or the time, the keys of a server are not usable, or the leader refuses the
            report.
        UnansweredError: a server cannot be reached, or its answer is not usable.
        DeniedError: a server refuses to send its keys.
    """
    check_draft(task)
    of, id = task.configuration, to_text(task.id)
    leader, helper = (DapAsking(http, url.decode(), id) for url in (of.leader, of.helper))
    made = make_report(
        task,
        measurement,
        leader=choose(await leader.configs()),
        helper=choose(await helper.configs()),
        now=now,
        random=random(random_bytes(task)),
    )
    try:
        refused = (await leader.upload(UploadRequest((made,)).encode())).status
    except DeniedError as error:
        raise InvalidInputError(f"the leader does not take the report: {error}") from None
    if refused:
        why = refused[0].error.name.lower().replace("_", " ")
        raise InvalidInputError(f"the leader does not take the report ({why}): make another one")


async def collect(
    http: httpx.AsyncClient,
    task: Task,
    key: RecipientKey,
    token: str,
    interval: tuple[int, int],
    *,
    wait: float,
) -> Collected:
    """Ask the leader for the batch of a time interval, and return its sum.

    A second call for the same interval returns the same batch.

    Args:
        http: the HTTP client.
        task: the task.
        key: the collector's private key.
        token: the collector's token.
        interval: (start, end): the first second of the interval, and the first second after it,
            Unix seconds, both multiples of the task's precision.
        wait: the most seconds to wait for the leader's answer with the batch.

    Raises:
        InvalidInputError: `key` is not the key of the task's collector, the interval is not valid,
            the leader refuses the interval or has no answer after `wait` seconds, or its answer is
            damaged.
        UnansweredError: the leader cannot be reached, or its answer is not usable.
    """
    if key.public != task.collector.key:
        raise InvalidInputError(
            f"the task {to_text(task.id)[:8]} is of another collector: give the key that its file"
            " names"
        )
    query = make_query(task, *interval)
    url = task.configuration.leader.decode()
    asking = DapAsking(http, url, to_text(task.id), token, polls=_POLLS)
    try:
        async with asyncio.timeout(wait):
            body, _ = await asking.make(
                "collection_jobs", query.encode(), CollectionJobReq, CollectionJobResp
            )
    except TimeoutError:
        raise InvalidInputError(
            f"the leader has no answer after {wait:g} seconds, as while the helper is away: ask"
            " again for the same interval"
        ) from None
    except DeniedError as error:
        raise InvalidInputError(f"the leader refuses this interval: {error}") from None
    keys = Keyring({key_number(key.public): key})
    return open_result(task, keys, query, body)
