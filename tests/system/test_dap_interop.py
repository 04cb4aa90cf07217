"""The interoperation test API: a test runner lets all four parties of a task work."""

# ruff: noqa: E402

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from dap_interop import PROGRAMS
from dap_interop_runner import CASES, HOUR, PARTIES, Runner
from dap_live import serving


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve a program on a port of this machine; give its address."""
    with socket.create_server(("127.0.0.1", 0)) as place, serving(app, place, "on"):
        yield f"http://127.0.0.1:{place.getsockname()[1]}"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with ExitStack() as stack:
        yield Runner(
            {
                party: stack.enter_context(served(PROGRAMS[kind]()))
                for party, kind in PARTIES.items()
            }
        )


@pytest.mark.parametrize(("vdaf", "measurements", "result"), CASES)
def test_a_runner_gets_the_result(
    runner: Runner, vdaf: dict[str, str], measurements: list[Any], result: Any
) -> None:
    runner.begin(vdaf, len(measurements))
    assert runner.report(*measurements) == ["success"] * len(measurements), runner.said
    found = runner.collect()
    assert (found["status"], found["report_count"], found["result"]) == (
        "complete", len(measurements), result,
    )  # fmt: skip
    assert (found["interval_start"], found["interval_duration"]) == (
        runner.now // HOUR * HOUR,
        HOUR,
    )
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
