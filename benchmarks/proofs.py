"""Reports to two servers with and without the proof that they are valid, in one run.

CPU is that of this process, on one thread, the least of several turns that alternate. Of a report
without a proof it is what `make_report` and both servers' `receive` take. A client's report with a
proof is that of `make_proven_report`. For the servers, what comes on top is `check` and `decide` of
a batch, with `of_helper` and `of_leader` less what `receive` does already: the signature, and the
seal. That is with compiled kernels, where they are there; the proof is measured by NumPy alone as
well.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import click
import numpy as np
import numpy.typing as npt

from benchmarks.measure import Goal, Report, environment, machine
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import KEY_BYTES, Label, Secret, SigningKey, verify
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.two_server import (
    BatchPolicy,
    Helper,
    Leader,
    MemoryJournal,
    TwoServerParameters,
    make_proven_report,
    make_report,
)
from fedtally.secagg.two_server import Report as ClientReport
from fedtally.secagg.two_server.proofs import HelperPart, LeaderPart, ReportProof

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
        self.leaders_key = PrivateKey(Secret(source("leader")(32)))
        self.people = [SigningKey(Secret(source(f"identity {i}")(32))) for i in range(self.clients)]
        self.allowed = AllowList(sorted(person.public for person in self.people))
        self.policy = BatchPolicy(min_honest=2)
        self.parameters = TwoServerParameters(
            length=self.rows * self.width,
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
        self.parts: list[tuple[LeaderPart, HelperPart]] = []
        self.checks: list[bytes] = []

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
        """Make the reports with proofs as clients send them, sealed to both servers."""
        for i, vector in enumerate(self.vectors):
            make_proven_report(
                self.proof,
                vector,
                round=0,
                now=0,
                identity=self.people[i],
                policy=self.policy,
                random=source(f"report {i}"),
            )

    def divide(self) -> None:
        """Make the parts of the reports with proofs, as the servers have them once opened."""
        self.parts = [
            self.proof.report(
                vector, round=0, now=0, identity=self.people[i], random=source(f"report {i}")
            )
            for i, vector in enumerate(self.vectors)
        ]

    def verify(self) -> None:
        """Check the signatures, as each server does with and without proofs."""
        for leader, helper in self.parts:
            bound = leader.bound
            digests = helper.leader, leader.helper, helper.proof
            fields = *bound.fields, *digests
            verify(bound.identity, leader.signature, Label.TWO_SERVER_REPORT, *fields)

    def open(self) -> None:
        """Open the seals, as the helper does with and without proofs."""
        for _, part in self.parts:
            self.key.open(part.sealed, Label.TWO_SERVER_SEED, *part.bound.fields)

    def check(self) -> None:
        """Make the helper's checks, of the whole batch."""
        shares = [self.proof.of_helper(part, self.key) for _, part in self.parts]
        self.checks = self.proof.check(shares, self.key)

    def decide(self) -> None:
        """Decide as the leader, of the whole batch."""
        shares = [self.proof.of_leader(part) for part, _ in self.parts]
        verdicts = self.proof.decide(shares, self.checks)
        if {verdict.value for verdict in verdicts} != {"valid"}:
            raise click.ClickException(f"an honest report was refused: {verdicts}")

    @property
    def upload(self) -> float:
        """Bytes of a report with its proof, over those of one without."""
        plain = self.parameters.report_bytes
        more = self.proof.words_bytes - self.parameters.packed_bytes + self.proof.proof_bytes
        return (plain + more + KEY_BYTES) / plain  # the helper's part has the digest of the proof


def microseconds(batch: Batch, turns: int) -> dict[str, float]:
    """Return the CPU of each step, a report; of check and decide, what comes on top."""
    steps = (
        *(batch.report, batch.lead, batch.help),
        *(batch.prove, batch.verify, batch.open, batch.check, batch.decide),
    )
    least = dict.fromkeys((step.__name__ for step in steps), float("inf"))
    batch.divide()
    for _ in range(turns):
        for step in steps:
            start = time.process_time()
            step()
            taken = time.process_time() - start
            least[step.__name__] = min(least[step.__name__], taken / batch.clients * 1e6)
    least["prove"] -= least["report"]
    least["decide"] -= least["verify"]
    least["check"] -= least["verify"] + least["open"]
    return least


def measure(clients: int, turns: int) -> Report:
    """Run all sizes."""
    report = Report(machine() | {"reports": str(clients)})
    for rows, width, upload, client, server in GOALS:
        batch = Batch(rows, width, clients)
        took = microseconds(batch, turns)
        with environment(FEDTALLY_KERNELS="numpy"):
            slow = microseconds(batch, turns)
        by_numpy = {step: slow[step] for step in ("prove", "check", "decide")}
        name = f"{rows} x {width}"
        report.notes.append(
            f"{name}, us a report: without proof "
            + ", ".join(f"{step} {took[step]:.0f}" for step in ("report", "lead", "help"))
            + "; the proof "
            + ", ".join(f"{step} {took[step]:.0f}" for step in by_numpy)
            + "; by NumPy "
            + ", ".join(f"{step} {taken:.0f}" for step, taken in by_numpy.items())
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
        slowest = max(taken / took[step] for step, taken in by_numpy.items())
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
