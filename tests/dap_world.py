"""Tasks, keys and parties of DAP for tests."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fedtally.crypto.hpke_aad import RecipientKey
from fedtally.crypto.keys import Secret
from fedtally.dap.client import make_report, random_bytes
from fedtally.dap.collector import Collected, open_result
from fedtally.dap.draft18 import (
    BatchMode,
    CollectionJobReq,
    Interval,
    Query,
    Report,
    ReportError,
    UploadErrors,
    UploadRequest,
)
from fedtally.dap.helper import Helper
from fedtally.dap.leader import Leader
from fedtally.dap.sealing import Keyring
from fedtally.dap.state import MemoryStore
from fedtally.dap.task import Task, TaskSecret
from fedtally.privacy.budget import OverspentError

SIZES: dict[str, dict[str, int]] = {
    "count": {},
    "sumvec": {"entries": 3, "maximum": 5, "chunk": 3},
    "histogram": {"buckets": 4, "chunk": 2},
}
HOUR = 3600
TASK_SECONDS = 500_000 * HOUR, 500_240 * HOUR  # ten days


def key(number: int) -> RecipientKey:
    return RecipientKey(Secret(hashlib.sha256(b"key %d" % number).digest()))


COLLECTOR = Keyring({1: key(100)})


def make_task(vdaf: str, **changes: Any) -> Task:
    values: dict[str, Any] = {
        "info": bytes(range(16)),
        "leader": "https://leader.example/",
        "helper": "https://helper.example/",
        "precision": HOUR,
        "min_batch": 3,
        "start": TASK_SECONDS[0],
        "end": TASK_SECONDS[1],
        "collector": COLLECTOR.configs.configs[0],
    }
    return Task.make(vdaf, **(values | {"sizes": SIZES[vdaf]} | changes))


LEADER_KEYS, HELPER_KEYS = Keyring({11: key(11)}), Keyring({12: key(12)})
SEED = Secret(bytes(range(32)))
NOW = TASK_SECONDS[0] + 50 * HOUR + 17


class FixedNoise:
    """Noise that tests can foretell: of counter i of draw n it is n - 10 i; all that is asked is
    noted."""

    def __init__(self, terms: bytes = b"fixed", limit: int = 100) -> None:
        self.terms, self.limit = terms, limit
        self.events: list[Any] = []

    def charge(self, batch: int) -> None:
        if self.limit <= len(self.charged | {batch}) - 1:
            raise OverspentError("the budget is spent")
        self.events.append(batch)

    def draw(self, counters: int) -> Any:
        self.events.append("draw")
        return self.events.count("draw") - 10 * np.arange(counters)

    @property
    def charged(self) -> set[int]:
        return {event for event in self.events if event != "draw"}


class World:
    """A client, both servers and the collector of a task, all in memory.

    Reports and answers go from one to the other as bytes. The number of a report is its randomness.
    """

    def __init__(self, vdaf: str = "histogram", noise: bool = False, **changes: Any) -> None:
        self.task = make_task(vdaf, **changes)
        self.leader_noise = FixedNoise() if noise else None
        self.helper_noise = FixedNoise() if noise else None
        self.leader_store: Any = MemoryStore()
        self.helper_store: Any = MemoryStore()
        self.restart()
        self.made = 0

    def restart(self) -> None:
        """Make both servers anew of what they keep."""
        secret = TaskSecret(self.task.id, SEED)
        self.leader = Leader(self.task, secret, LEADER_KEYS, self.leader_store, self.leader_noise)
        self.helper = Helper(self.task, secret, HELPER_KEYS, self.helper_store, self.helper_noise)

    @property
    def hour(self) -> int:
        """The time of reports that are made now."""
        return self.task.time(NOW)

    def report(self, measurement: Any, hours: int = 0) -> Report:
        """Return a report, made so many hours from now."""
        self.made += 1
        stream = hashlib.shake_256(b"report %d" % self.made)
        return make_report(
            self.task,
            measurement,
            leader=LEADER_KEYS.configs.configs[0],
            helper=HELPER_KEYS.configs.configs[0],
            now=NOW + hours * HOUR,
            random=stream.digest(random_bytes(self.task)),
        )

    def upload(self, *reports: Report, now: float = NOW) -> list[tuple[bytes, ReportError]]:
        """Give reports to the leader; return those that it does not take, and why."""
        said = self.leader.upload(UploadRequest(reports).encode(), now)
        return [(each.id, each.error) for each in UploadErrors.decode(said).status]

    def measure(self, *measurements: Any, hours: int = 0) -> None:
        """Upload a report of each measurement."""
        assert not self.upload(
            *(self.report(each, hours) for each in measurements), now=NOW + max(0, hours) * HOUR
        )

    def run_jobs(self, helper: Helper | None = None, now: float = NOW) -> tuple[int, int]:
        """Run jobs of all reports that wait; return how many were added, and how many not."""
        while not self.leader.is_idle:
            self.leader.make_job()
        ends = [
            self.leader.finish_job(
                job.id, (helper or self.helper).aggregate(job.request, now).answer
            )
            for job in self.leader.jobs()
        ]
        return sum(end.added for end in ends), sum(end.refused for end in ends)

    def query(self, start: int = 0, duration: int = 1) -> CollectionJobReq:
        """Return the query of an interval, from so many hours from now on."""
        config = Interval(self.hour + start, duration).encode()
        return CollectionJobReq(Query(BatchMode.TIME_INTERVAL, config), b"", ())

    def collect(self, start: int = 0, duration: int = 1) -> Collected:
        """Collect an interval; return the result."""
        request = self.query(start, duration)
        state = self.leader.collect(request.encode())
        if not state.answer:
            assert state.ask
            state = self.leader.finish_collection(state.id, self.helper.share(state.ask).answer)
        return open_result(self.task, COLLECTOR, request, state.answer)
