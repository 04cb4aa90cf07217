"""A test runner of the interoperation test API of DAP: all four parties, whoever wrote them.

    python tests/dap_interop_runner.py --leader http://leader:8080 --helper http://helper:8080 \\
        --client http://client:8080 --collector http://collector:8080

Each of three kinds of task must give the exact result; the exit code is 1 if one does not.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from typing import Any

import httpx

from fedtally.dap.task import to_text

HOUR = 3600
PARTIES = {
    "leader": "aggregator",
    "helper": "aggregator",
    "client": "client",
    "collector": "collector",
}
CASES: list[tuple[dict[str, str], list[Any], Any]] = [
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
]


class Runner:
    """A test runner, with one task at a time.

    Args:
        addresses: the addresses of the parties by name, without a slash at the end.
    """

    def __init__(self, addresses: dict[str, str]) -> None:
        self.addresses = addresses
        self.now = int(time.time()) - HOUR  # of reports

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
            self.ask("client", "upload", measurement=each, time=self.now, **self.task)
            for each in measurements
        ]
        self.said = said
        return [each["status"] for each in said]

    def collect(self) -> Any:
        """Let the collector collect the hour of the reports."""
        query = {
            "type": 1,
            "batch_interval_start": self.now // HOUR * HOUR,
            "batch_interval_duration": HOUR,
        }
        made = self.ask("collector", "collection_start", task_id=self.task["task_id"],
                        agg_param="", query=query)  # fmt: skip
        end = time.monotonic() + 60
        while True:
            said = self.ask("collector", "collection_poll", handle=made["handle"])
            if said["status"] != "in progress":
                return said
            assert time.monotonic() < end
            time.sleep(0.05)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for party in PARTIES:
        parser.add_argument(f"--{party}", required=True, metavar="URL", help=f"ask this {party}")
    runner, wrong = Runner(vars(parser.parse_args())), 0
    for vdaf, measurements, result in CASES:
        runner.begin(vdaf, len(measurements))
        runner.report(*measurements)
        found = runner.collect()
        is_right = found.get("result") == result
        print(f"{vdaf['type']}: {'right' if is_right else (runner.said, found)}")  # noqa: T201
        wrong += not is_right
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
