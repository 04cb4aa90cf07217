"""Recorded exchanges of DAP draft 18, a task of each VDAF: the same bytes in, the same bytes out.

What is sealed was sealed with random keys, so it was recorded, and is opened here. All else follows
from it. `PYTHONPATH=tests python tests/protocol/test_dap_exchange.py` records anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dap_world import COLLECTOR, HELPER_KEYS, LEADER_KEYS, NOW, SEED, World

from fedtally.dap.collector import open_result
from fedtally.dap.draft18 import AggregationJobResp, CollectionJobReq, Continued, UploadRequest
from fedtally.dap.helper import Helper
from fedtally.dap.leader import Leader
from fedtally.dap.state import MemoryStore
from fedtally.dap.task import Task, TaskSecret

PATH = Path(__file__).parents[1] / "vectors" / "dap18_exchange.json"
MEASURED: dict[str, list[Any]] = {
    "count": [1, 0, 1, 1],
    "sumvec": [[1, 2, 3], [5, 0, 1], [0, 0, 0]],
    "histogram": [0, 2, 2, 3],
}


def record(vdaf: str) -> dict[str, Any]:
    """Return the messages of a whole exchange."""
    world = World(vdaf)
    upload = UploadRequest(tuple(world.report(each) for each in MEASURED[vdaf])).encode()
    assert world.leader.upload(upload, NOW) == b""
    job = world.leader.make_job()
    assert job is not None
    answer = world.helper.aggregate(job.request, NOW).answer
    world.leader.finish_job(job.id, answer)
    query = world.query(-1, 3).encode()
    state = world.leader.collect(query)
    share = world.helper.share(state.ask).answer
    response = world.leader.finish_collection(state.id, share).answer
    messages = {
        "UploadRequest": upload,
        "AggregationJobInitReq": job.request,
        "AggregationJobResp": answer,
        "CollectionJobReq": query,
        "AggregateShareReq": state.ask,
        "AggregateShare": share,
        "CollectionJobResp": response,
    }
    result = open_result(world.task, COLLECTOR, world.query(-1, 3), response).result
    return {"task": world.task.to_toml(), "result": result} | {
        name: message.hex() for name, message in messages.items()
    }


@pytest.mark.parametrize("vdaf", MEASURED)
def test_an_exchange_that_was_recorded(vdaf: str) -> None:
    recorded = json.loads(PATH.read_text())[vdaf]
    sent = {name: bytes.fromhex(text) for name, text in recorded.items() if name[0].isupper()}
    task = Task.from_toml(recorded["task"])
    secret = TaskSecret(task.id, SEED)
    leader = Leader(task, secret, LEADER_KEYS, MemoryStore())
    helper = Helper(task, secret, HELPER_KEYS, MemoryStore())

    assert leader.upload(sent["UploadRequest"], NOW) == b""
    job = leader.make_job()
    assert job is not None and job.request == sent["AggregationJobInitReq"]
    answer = helper.aggregate(job.request, NOW).answer
    assert answer == sent["AggregationJobResp"]
    said = AggregationJobResp.decode(answer).reports
    assert all(isinstance(each.said, Continued) for each in said)
    leader.finish_job(job.id, answer)

    state = leader.collect(sent["CollectionJobReq"])
    assert state.ask == sent["AggregateShareReq"]
    ours = leader.finish_collection(state.id, helper.share(state.ask).answer).answer
    assert ours[:24] == sent["CollectionJobResp"][:24]  # the count and the interval
    assert sent["CollectionJobResp"].endswith(sent["AggregateShare"])
    request = CollectionJobReq.decode(sent["CollectionJobReq"])
    for response in (ours, sent["CollectionJobResp"]):
        assert open_result(task, COLLECTOR, request, response).result == recorded["result"]


if __name__ == "__main__":
    PATH.write_text(json.dumps({vdaf: record(vdaf) for vdaf in MEASURED}, indent=1) + "\n")
