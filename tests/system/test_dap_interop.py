"""The interoperation test API: a test runner lets all four parties of a task work."""

# ruff: noqa: E402

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from dap_interop import PROGRAMS

from fedtally.dap.task import to_text

HOUR = 3600
NOW = int(time.time()) - HOUR  # of reports
PARTIES = {
    "leader": "aggregator",
    "helper": "aggregator",
    "client": "client",
    "collector": "collector",
}


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve a program on a port of this machine; give its address."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        thread = threading.Thread(target=server.run, args=([place],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class Runner:
    """A test runner, with one task at a time."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.addresses = addresses

    def ask(self, party: str, command: str, **asked: Any) -> Any:
        """Return the answer of a party to a command."""
        url = f"{self.addresses[party]}/internal/test/{command}"
        said = httpx.post(url, json=asked, trust_env=False)
        assert said.status_code == 200
        return said.json()

    def begin(self, vdaf: dict[str, str], min_batch: int) -> None:
        """Make a task at all parties."""
        id = to_text(secrets.token_bytes(32))
        self.task: dict[str, Any] = {
            "task_id": id, "vdaf": vdaf, "batch_mode": 1, "min_batch_size": min_batch,
            "time_precision": HOUR,
        }  # fmt: skip
        for side in ("leader", "helper"):
            at = self.ask(side, "endpoint_for_task", task_id=id, role=side, hostname=side)
            self.task[side] = self.addresses[side] + at["endpoint"]
        tokens = {
            "leader_authentication_token": secrets.token_hex(8),
            "collector_authentication_token": secrets.token_hex(8),
        }
        made = self.ask("collector", "add_task", **self.task, **tokens)
        more = {
            "vdaf_verify_key": to_text(secrets.token_bytes(32)),
            "collector_hpke_config": made["collector_hpke_config"],
        }
        for side in ("leader", "helper"):
            said = self.ask(side, "add_task", role=side, **self.task, **tokens, **more)
            assert said == {"status": "success"}, said

    def report(self, *measurements: Any) -> list[str]:
        """Let the client report, at one time; return what it says of each report."""
        said = [
            self.ask("client", "upload", measurement=each, time=NOW, **self.task)
            for each in measurements
        ]
        self.said = said
        return [each["status"] for each in said]

    def collect(self) -> Any:
        """Let the collector collect the hour of the reports."""
        query = {
            "type": 1, "batch_interval_start": NOW // HOUR * HOUR, "batch_interval_duration": HOUR,
        }  # fmt: skip
        made = self.ask("collector", "collection_start", task_id=self.task["task_id"],
                        agg_param="", query=query)  # fmt: skip
        end = time.monotonic() + 60
        while True:
            said = self.ask("collector", "collection_poll", handle=made["handle"])
            if said["status"] != "in progress":
                return said
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with ExitStack() as stack:
        yield Runner(
            {
                party: stack.enter_context(served(PROGRAMS[kind]()))
                for party, kind in PARTIES.items()
            }
        )


@pytest.mark.parametrize(
    ("vdaf", "measurements", "result"),
    [
        ({"type": "Prio3Count"}, ["1", "0", "1"], "2"),
        (
            {"type": "Prio3SumVec", "length": "3", "max_measurement": "5", "chunk_length": "3"},
            [["1", "2", "3"], ["5", "0", "0"]],
            ["6", "2", "3"],
        ),
        (
            {"type": "Prio3Histogram", "length": "4", "chunk_length": "2"},
            ["0", "3", "3", "1"],
            ["1", "1", "0", "2"],
        ),
    ],
)
def test_a_runner_gets_the_result(
    runner: Runner, vdaf: dict[str, str], measurements: list[Any], result: Any
) -> None:
    runner.begin(vdaf, len(measurements))
    assert runner.report(*measurements) == ["success"] * len(measurements), runner.said
    found = runner.collect()
    assert (found["status"], found["report_count"], found["result"]) == (
        "complete", len(measurements), result,
    )  # fmt: skip
    assert (found["interval_start"], found["interval_duration"]) == (NOW // HOUR * HOUR, HOUR)
    assert runner.report(measurements[0]) == ["error"]  # its time was collected
    assert runner.collect() == found


def test_what_a_runner_is_told(runner: Runner) -> None:
    runner.begin({"type": "Prio3Count"}, 3)
    assert runner.report("1", "2") == ["success", "error"]
    found = runner.collect()
    assert found["status"] == "error" and "invalidBatchSize" in found["error"]
    for party in PARTIES:
        assert runner.ask(party, "ready") == {"status": "success"}
        other = httpx.post(f"{runner.addresses[party]}/internal/test/other", json={})
        assert other.status_code == 404
    bad = runner.task | {"vdaf": {"type": "Poplar1"}}
    assert runner.ask("client", "upload", measurement="1", **bad)["status"] == "error"
    bad = runner.task | {"batch_mode": 2}
    said = runner.ask("client", "upload", measurement="1", **bad)
    assert "time_interval" in said["error"]
