"""A report of DAP beside a native one with a proof, of the same histogram: bytes and CPU.

CPU is of this process, on one thread, the least of several turns. A DAP leader takes an upload,
makes the job, and reads the helper's answer. The native report is the one of `proofs`: one row with
one entry, and its servers' `receive`, `checks` and `judge`. Stores are in memory on both sides, and
nothing is sent.

A bare verification is that of an input share that was opened already. The leader's time within
proofs is compared with it: a leader that verified a report twice would take two.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from benchmarks.measure import Goal, Report, machine
from benchmarks.proofs import Batch, microseconds, source
from fedtally.crypto.hpke_aad import RecipientKey
from fedtally.crypto.keys import Secret
from fedtally.dap import (
    Helper,
    Keyring,
    Leader,
    MemoryStore,
    Task,
    TaskSecret,
    make_report,
    random_bytes,
)
from fedtally.dap.draft18 import Report as DapReport
from fedtally.dap.draft18 import UploadRequest
from fedtally.flp.prio3 import Prio3

SIZES = (100, 600)  # buckets, and the chunks of Prio3 about their square root
_HOUR = 3600.0
TWICE = 1.1  # times a bare verification, at most


class Shares(NamedTuple):
    """A report before it is sealed: its id, its public share and the shares of both servers."""

    id: bytes
    public: bytes
    inputs: list[bytes]


class World:
    """A task of a histogram, its keys, and reports of it."""

    def __init__(self, buckets: int, clients: int) -> None:
        keys = [RecipientKey(Secret(source(name)(32))) for name in ("leader", "helper", "other")]
        self.rings = [Keyring({1: key}) for key in keys]
        leader, helper, collector = (ring.configs.configs[0] for ring in self.rings)
        self.configs, self.buckets, self.clients = (leader, helper), buckets, clients
        self.task = Task.make(
            "histogram",
            {"buckets": buckets, "chunk": int(buckets**0.5)},
            info=bytes(16),
            leader="https://leader.example/",
            helper="https://helper.example/",
            precision=int(_HOUR),
            min_batch=2,
            start=0,
            end=2 * int(_HOUR),
            collector=collector,
        )
        self.secret = TaskSecret(self.task.id, Secret(source("seed")(32)))
        self.reports: list[DapReport] = []

    def measured(self, i: int) -> int:
        """Return the bucket of a client."""
        return i % self.buckets

    def report(self) -> None:
        """Make the reports."""
        leader, helper = self.configs
        draw, length = source("reports"), random_bytes(self.task)
        self.reports = [
            make_report(
                self.task,
                self.measured(i),
                leader=leader,
                helper=helper,
                now=60.0,
                random=draw(length),
            )
            for i in range(self.clients)
        ]

    def bare(self) -> dict[str, float]:
        """Return the CPU of verifying shares that are open, of each server, microseconds."""
        prio3, key, draw = self.task.prio3, self.secret.verify_key(self.task), source("bare")
        made = []
        for i in range(self.clients):
            id = draw(16)
            made.append(Shares(id, *prio3.shard(self.measured(i), id, draw(prio3.random_bytes))))
        begun: list[list[Any]] = []
        took = []
        for number in (0, 1):
            start = time.process_time()
            begun.append(
                [prio3.verify_init(key, number, s.id, s.public, s.inputs[number]) for s in made]
            )
            took.append(time.process_time() - start)
        start = time.process_time()
        messages = [
            prio3.verifier_shares_to_message([said for _, said in both])
            for both in zip(*begun, strict=True)
        ]
        took[1] += time.process_time() - start
        for number in (0, 1):
            start = time.process_time()
            for (state, _), message in zip(begun[number], messages, strict=True):
                prio3.verify_next(state, message)
            took[number] += time.process_time() - start
        return {
            name: each / self.clients * 1e6
            for name, each in zip(("bare leader", "bare helper"), took, strict=True)
        }

    def served(self) -> dict[str, float]:
        """Return the CPU of each server for all reports, a report; and the leader's in proofs."""
        leader = Leader(self.task, self.secret, self.rings[0], MemoryStore())
        helper = Helper(self.task, self.secret, self.rings[1], MemoryStore())
        body = UploadRequest(tuple(self.reports)).encode()
        with _Proofs() as proofs:
            first = _timed(lambda: leader.upload(body, 60.0))
            second = _timed(lambda: leader.make_job(self.clients))
            in_proofs, calls = proofs.seconds, proofs.calls
            (job,) = leader.jobs()
            said: list[bytes] = []
            helps = _timed(lambda: said.append(helper.aggregate(job.request, 60.0).answer))
            proofs.seconds = 0.0
            last = _timed(lambda: leader.finish_job(job.id, said[0]))
            in_proofs += proofs.seconds
        if leader.jobs() or calls != self.clients:
            raise click.ClickException("a report was verified twice, or not at all")
        each = 1e6 / self.clients
        return {
            "leader": (first + second + last) * each,
            "helper": helps * each,
            "in proofs": in_proofs * each,
        }


class _Proofs:
    """Count the seconds within proofs of Prio3, and how often a verification begins."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0
        self._methods = {name: getattr(Prio3, name) for name in ("verify_init", "verify_next")}

    def __enter__(self) -> _Proofs:
        for name, method in self._methods.items():
            setattr(Prio3, name, self._counted(name, method))
        return self

    def __exit__(self, *_: object) -> None:
        for name, method in self._methods.items():
            setattr(Prio3, name, method)

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return method(*arguments)
            finally:
                self.seconds += time.process_time() - start
                self.calls += name == "verify_init"

        return counted


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def notes(
    buckets: int, size: int, native: Batch, took: dict[str, float], ours: dict[str, float]
) -> list[str]:
    """Return what a size took, DAP's report beside the native one."""
    parties = [
        f"{name} {took[name]:.0f} and {ours[step]:.0f} ({took[name] / ours[step]:.1f} times)"
        for name, step in (("client", "prove"), ("leader", "judge"), ("helper", "check"))
    ]
    bare = [f"{name} {took[name] / took[f'bare {name}']:.2f}" for name in ("leader", "helper")]
    ratio = size / native.proven_bytes
    beside = f"{size:,} and {native.proven_bytes:,} ({ratio:.1f} times)"
    return [
        f"{buckets} buckets, bytes a report, DAP and native: {beside}",
        f"{buckets} buckets, us of CPU a report, DAP and native: {', '.join(parties)}",
        f"{buckets} buckets, with HPKE and messages / bare verification: {', '.join(bare)}",
    ]


def measure(clients: int, turns: int, sizes: tuple[int, ...] = SIZES) -> Report:
    """Measure all sizes."""
    report = Report(machine() | {"reports": str(clients)})
    for buckets in sizes:
        native = Batch(1, buckets, clients)
        ours = microseconds(native, turns)
        world = World(buckets, clients)
        took: dict[str, float] = {}
        for _ in range(turns):
            turn = {"client": _timed(world.report) / clients * 1e6}
            turn |= world.served() | world.bare()
            took = {name: min(value, took.get(name, value)) for name, value in turn.items()}
        report.notes += notes(buckets, len(world.reports[0].encode()), native, took, ours)
        name = f"{buckets} buckets: leader's CPU in proofs / a bare verification"
        ratio = took["in proofs"] / took["bare leader"]
        report.goals.append(Goal(name, ratio, TWICE, "x", at_most=True))
    return report


@click.command("dap")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few reports: shows that it runs.")
def command(as_json: bool, quick: bool) -> None:
    """Measure reports of DAP beside native ones of the same histogram."""
    (measure(3, 1, SIZES[:1]) if quick else measure(50, 5)).emit(as_json)
