"""Reports to two servers with and without the proof that they are valid, in one run.

CPU is that of this process, on one thread, the least of several turns that alternate. A client's is
that of `make_report` and `make_proven_report`. A server's is that of `receive` for every report of
a batch, and with proofs that of the helper's `checks` and the leader's `judge` as well. That is
with compiled kernels, where they are there; the reports with proofs are measured by NumPy alone as
well.

`--prio3 FOLDER` sets reports of Prio3 beside them, of the package installed there (`prio3_peer`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from benchmarks.measure import Goal, Report, environment, machine
from benchmarks.prio3_peer import INSTALL, measure_peer
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.two_server import (
    BatchPolicy,
    Helper,
    Leader,
    MemoryJournal,
    ReportProof,
    TwoServerParameters,
    make_proven_report,
    make_report,
)
from fedtally.secagg.two_server import Report as ClientReport

# rows, width; upload, client, servers: the most times as much as without a proof
GOALS = ((5, 400, 1.10, 2.0, 1.5), (7, 571, 1.07, 2.0, 1.5), (16, 1000, 1.03, 2.0, 2.0))
NONE = bytes(32)
# kind, entries (None: those of the sketch); the least times our bytes, with a proof
PEERS = (("sumvec", None, 13), ("histogram", 100_000, 35))


def source(name: str) -> Callable[[int], bytes]:
    """Return a stream of bytes of its own for a name."""
    state = hashlib.shake_256(name.encode())

    def draw(count: int) -> bytes:
        state.update(b".")
        return state.digest(count)

    return draw


@dataclass
class Batch:
    """A batch of one size of sketch: what each party does, all of it or a client's part."""

    rows: int
    width: int
    clients: int
    reports: list[ClientReport] = field(default_factory=list)
    proven: list[ClientReport] = field(default_factory=list)
    checks: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key = PrivateKey(Secret(source("helper")(32)))
        self.leaders_key = PrivateKey(Secret(source("leader")(32)))
        self.people = [SigningKey(Secret(source(f"identity {i}")(32))) for i in range(self.clients)]
        self.allowed = AllowList(sorted(person.public for person in self.people))
        self.policy = BatchPolicy(min_honest=2)
        self.parameters = TwoServerParameters(
            bits=16,
            n_max=20_000,
            min_batch=2,
            corrupt=0,
            leader_key=self.leaders_key.public,
            helper_key=self.key.public,
            allow_list=self.allowed.digest,
            fingerprint=NONE,
            widths=(self.width,) * self.rows,
        )
        rng = np.random.default_rng(1)
        self.vectors: list[npt.NDArray[np.int64]] = []
        for _ in range(self.clients):
            vector = np.zeros((self.rows, self.width), np.int64)
            places = rng.integers(0, self.width, self.rows)
            vector[np.arange(self.rows), places] = rng.choice([-1, 1], self.rows)
            self.vectors.append(vector.reshape(-1))
        self.proof = ReportProof(self.parameters, abstain=True)

    def report(self) -> None:
        """Make the reports without proofs."""
        self.reports = [
            make_report(
                self.parameters,
                vector,
                round=0,
                now=0,
                identity=self.people[i],
                policy=self.policy,
                random=source(f"report {i}"),
            )
            for i, vector in enumerate(self.vectors)
        ]

    def lead(self) -> None:
        """Receive the leader's parts of the reports without proofs."""
        rounds, journal = range(1), MemoryJournal()
        key = self.leaders_key
        leader = Leader(self.parameters, rounds, self.allowed, self.policy, journal, key)
        for report in self.reports:
            leader.receive(report.leader, now=0)

    def help(self) -> None:
        """Receive the helper's parts of the reports without proofs."""
        rounds, journal = range(1), MemoryJournal()
        helper = Helper(self.parameters, rounds, self.allowed, self.policy, journal, self.key)
        for report in self.reports:
            helper.receive(report.helper, now=0)

    def prove(self) -> None:
        """Make the reports with proofs."""
        self.proven = [
            make_proven_report(
                self.proof,
                vector,
                round=0,
                now=0,
                identity=self.people[i],
                policy=self.policy,
                random=source(f"report {i}"),
            )
            for i, vector in enumerate(self.vectors)
        ]

    def check(self) -> None:
        """Receive the helper's parts of the reports with proofs, and make the checks."""
        rounds, journal = range(1), MemoryJournal()
        helper = Helper(self.proof, rounds, self.allowed, self.policy, journal, self.key)
        for report in self.proven:
            helper.receive(report.helper, now=0)
        self.checks = helper.checks()

    def judge(self) -> None:
        """Receive the leader's parts of the reports with proofs, and judge them by the checks."""
        rounds, journal, key = range(1), MemoryJournal(), self.leaders_key
        leader = Leader(self.proof, rounds, self.allowed, self.policy, journal, key)
        for report in self.proven:
            leader.receive(report.leader, now=0)
        for frame in self.checks:
            leader.judge(frame)
        if leader.refused:
            raise click.ClickException(f"an honest report was refused: {leader.refused}")

    @property
    def proven_bytes(self) -> int:
        """Bytes of a report with its proof: the helper's part has the digest of the proof."""
        more = self.proof.words_bytes - self.parameters.packed_bytes + self.proof.proof_bytes
        return self.parameters.report_bytes + more + KEY_BYTES

    @property
    def upload(self) -> float:
        """Bytes of a report with its proof, over those of one without."""
        return self.proven_bytes / self.parameters.report_bytes


def microseconds(batch: Batch, turns: int) -> dict[str, float]:
    """Return the CPU of each step, a report."""
    steps = batch.report, batch.lead, batch.help, batch.prove, batch.check, batch.judge
    least = dict.fromkeys((step.__name__ for step in steps), float("inf"))
    for _ in range(turns):
        for step in steps:
            start = time.process_time()
            step()
            taken = time.process_time() - start
            least[step.__name__] = min(least[step.__name__], taken / batch.clients * 1e6)
    return least


def add_peers(report: Report, batch: Batch, client: float, folder: Path, turns: int) -> None:
    """Set reports of Prio3 beside those of a batch, whose client takes `client` microseconds."""
    for kind, entries, bound in PEERS:
        length = entries or batch.rows * batch.width
        peer = measure_peer(folder, kind, length, turns)
        name = f"{batch.rows} x {batch.width}: Prio3 {kind} of {length:,} entries"
        report.goals.append(
            Goal(f"{name}, bytes / ours with proof", peer.bytes / batch.proven_bytes, bound, "x")
        )
        report.notes.append(
            f"{name}: {peer.bytes:,} and {batch.proven_bytes:,} bytes; CPU of a client in"
            f" JavaScript {peer.client / 1e3:.0f} ms, {peer.client / client:.0f} times ours;"
            f" of a server {peer.server / 1e3:.0f} ms"
        )


def measure(clients: int, turns: int, prio3: Path | None) -> Report:
    """Run all sizes."""
    report = Report(machine() | {"reports": str(clients)})
    for rows, width, upload, client, server in GOALS:
        batch = Batch(rows, width, clients)
        took = microseconds(batch, turns)
        with environment(FEDTALLY_KERNELS="numpy"):
            slow = microseconds(batch, turns)
        by_numpy = {step: slow[step] for step in ("prove", "check", "judge")}
        name = f"{rows} x {width}"
        report.notes.append(
            f"{name}, us a report: without proof "
            + ", ".join(f"{step} {took[step]:.0f}" for step in ("report", "lead", "help"))
            + "; with it "
            + ", ".join(f"{step} {took[step]:.0f}" for step in by_numpy)
            + "; by NumPy "
            + ", ".join(f"{step} {taken:.0f}" for step, taken in by_numpy.items())
        )
        for what, value, bound in (
            ("upload", batch.upload, upload),
            ("client", took["prove"] / took["report"], client),
            ("leader", took["judge"] / took["lead"], server),
            ("helper", took["check"] / took["help"], server),
        ):
            report.goals.append(
                Goal(f"{name}: {what}, with / without proof", value, bound, "x", at_most=True)
            )
        slowest = max(
            (by_numpy[step] - took[plain]) / (took[step] - took[plain])
            for step, plain in (("prove", "report"), ("check", "help"), ("judge", "lead"))
        )
        report.goals.append(
            Goal(f"{name}: what a proof adds, NumPy / compiled", slowest, 20, "x", at_most=True)
        )
        if prio3 is not None:
            add_peers(report, batch, took["prove"], prio3, min(turns, 2))
    if prio3 is None:
        report.notes.append(f"no Prio3 beside: in a folder, {INSTALL}; then --prio3 FOLDER")
    return report


@click.command("proofs")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few reports: shows that it runs.")
@click.option(
    "--prio3",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with @divviup/prio3, to measure beside.",
)
def command(as_json: bool, quick: bool, prio3: Path | None) -> None:
    """Measure reports to two servers with and without proofs of valid vectors."""
    (measure(3, 1, prio3) if quick else measure(100, 5, prio3)).emit(as_json)
