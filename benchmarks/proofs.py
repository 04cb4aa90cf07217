"""Reports to two servers with and without the proof that they are valid, in one run.

CPU is that of this process, on one thread, the least of several turns that alternate. Of today's
report it is what `make_report` and both servers' `receive` take; of the proof, what comes on top:
`share` and `prove` for one client, `check` and `decide` for a batch, with the streams and digests.
That is with compiled kernels, where they are there; the proof is measured by NumPy alone as well.
No message carries a proof yet.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import click
import numpy as np
import numpy.typing as npt

from benchmarks.measure import Goal, Report, environment, machine
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.flp import SignedOneHot
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.two_server import (
    BatchPolicy,
    Helper,
    Leader,
    MemoryJournal,
    TwoServerParameters,
    make_report,
)
from fedtally.secagg.two_server import Report as ClientReport
from fedtally.secagg.two_server.proofs import Digests, ReportProof
from fedtally.secagg.two_server.reports import Bound

# rows, width; upload, client, servers: the most times as much as without a proof
GOALS = ((5, 400, 1.10, 2.0, 1.5), (7, 571, 1.07, 2.0, 1.5), (16, 1000, 1.03, 2.0, 2.0))
NONE = bytes(32)


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

    def __post_init__(self) -> None:
        self.key = PrivateKey(Secret(source("helper")(32)))
        self.people = [SigningKey(Secret(source(f"identity {i}")(32))) for i in range(self.clients)]
        self.allowed = AllowList(sorted(person.public for person in self.people))
        self.policy = BatchPolicy(min_honest=2)
        self.parameters = TwoServerParameters(
            length=self.rows * self.width,
            bits=16,
            n_max=20_000,
            min_batch=2,
            corrupt=0,
            helper_key=self.key.public,
            allow_list=self.allowed.digest,
            fingerprint=NONE,
        )
        rng = np.random.default_rng(1)
        self.vectors: list[npt.NDArray[np.int64]] = []
        for _ in range(self.clients):
            vector = np.zeros((self.rows, self.width), np.int64)
            places = rng.integers(0, self.width, self.rows)
            vector[np.arange(self.rows), places] = rng.choice([-1, 1], self.rows)
            self.vectors.append(vector.reshape(-1))
        circuit = SignedOneHot((self.width,) * self.rows, abstain=True, checksum=4)
        self.proof = ReportProof(circuit)
        self.bounds = [
            Bound(self.parameters.context, source(f"id {i}")(16), 0, self.people[i].public)
            for i in range(self.clients)
        ]
        self.digests = Digests(NONE, NONE, NONE)
        self.sent: list[tuple[bytes, bytes]] = []
        self.checks: list[bytes] = []

    def seeds(self, i: int) -> tuple[Secret, Secret]:
        """Return a client's seed and prove seed."""
        return Secret(source(f"seed {i}")(32)), Secret(source(f"prove {i}")(32))

    def report(self) -> None:
        """Make today's reports."""
        self.reports = [
            make_report(
                self.parameters,
                vector,
                round=0,
                identity=self.people[i],
                policy=self.policy,
                random=source(f"report {i}"),
            )
            for i, vector in enumerate(self.vectors)
        ]

    def lead(self) -> None:
        """Receive the leader's parts of today's reports."""
        rounds, journal = range(1), MemoryJournal()
        leader = Leader(self.parameters, rounds, self.allowed, self.policy, journal)
        for report in self.reports:
            leader.receive(report.leader)

    def help(self) -> None:
        """Receive the helper's parts of today's reports."""
        rounds, journal = range(1), MemoryJournal()
        helper = Helper(self.parameters, rounds, self.allowed, self.policy, journal, self.key)
        for report in self.reports:
            helper.receive(report.helper)

    def prove(self) -> None:
        """Make the leader's shares of words and proofs, client by client."""
        self.sent = []
        for i, vector in enumerate(self.vectors):
            seed, prove_seed = self.seeds(i)
            words = self.proof.share(vector, self.bounds[i], seed)
            sent = self.proof.prove(vector, self.bounds[i], self.digests, seed, prove_seed)
            self.sent.append((words, sent))

    def check(self) -> None:
        """Make the helper's checks, of the whole batch."""
        shares = [
            self.proof.of_helper(bound, self.digests, self.seeds(i)[0])
            for i, bound in enumerate(self.bounds)
        ]
        self.checks = self.proof.check(shares, Secret(NONE))

    def decide(self) -> None:
        """Decide as the leader, of the whole batch."""
        shares = [
            self.proof.of_leader(bound, self.digests, *sent)
            for bound, sent in zip(self.bounds, self.sent, strict=True)
        ]
        verdicts = self.proof.decide(shares, self.checks)
        if {verdict.value for verdict in verdicts} != {"valid"}:
            raise click.ClickException(f"an honest report was refused: {verdicts}")

    @property
    def upload(self) -> float:
        """Bytes of a report with its proof, over today's."""
        today = self.parameters.report_bytes
        more = self.proof.words_bytes - self.parameters.packed_bytes + self.proof.proof_bytes
        return (today + more + len(self.digests.proof)) / today


def microseconds(batch: Batch, steps: Sequence[Callable[[], None]], turns: int) -> dict[str, float]:
    """Return the CPU of each step, a report."""
    least = dict.fromkeys((step.__name__ for step in steps), float("inf"))
    for _ in range(turns):
        for step in steps:
            start = time.process_time()
            step()
            taken = time.process_time() - start
            least[step.__name__] = min(least[step.__name__], taken / batch.clients * 1e6)
    return least


def measure(clients: int, turns: int) -> Report:
    """Run all sizes."""
    report = Report(machine() | {"reports": str(clients)})
    for rows, width, upload, client, server in GOALS:
        batch = Batch(rows, width, clients)
        proof = (batch.prove, batch.check, batch.decide)
        took = microseconds(batch, (batch.report, batch.lead, batch.help, *proof), turns)
        with environment(FEDTALLY_KERNELS="numpy"):
            by_numpy = microseconds(batch, proof, turns)
        name = f"{rows} x {width}"
        report.notes.append(
            f"{name}, us a report: today "
            + ", ".join(f"{step} {took[step]:.0f}" for step in ("report", "lead", "help"))
            + "; the proof "
            + ", ".join(f"{step} {took[step]:.0f}" for step in by_numpy)
            + "; by NumPy "
            + ", ".join(f"{step} {slow:.0f}" for step, slow in by_numpy.items())
        )
        for what, value, bound in (
            ("upload", batch.upload, upload),
            ("client", 1 + took["prove"] / took["report"], client),
            ("leader", 1 + took["decide"] / took["lead"], server),
            ("helper", 1 + took["check"] / took["help"], server),
        ):
            report.goals.append(
                Goal(f"{name}: {what}, with / without proof", value, bound, "x", at_most=True)
            )
        slowest = max(slow / took[step] for step, slow in by_numpy.items())
        report.goals.append(
            Goal(f"{name}: a step of the proof, NumPy / compiled", slowest, 20, "x", at_most=True)
        )
    return report


@click.command("proofs")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few reports: shows that it runs.")
def command(as_json: bool, quick: bool) -> None:
    """Measure reports to two servers with and without proofs of valid vectors."""
    (measure(3, 1) if quick else measure(100, 5)).emit(as_json)
