"""Two servers and reports with proofs, in any order: two processes a side, restarts, liars.

In every second run the reports of a side are on a disk that both of its processes share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import test_proven as world
from test_report_proofs import KEY, LEADER_KEY, NOW, drawn, lying

from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server import (
    BatchRefusedError,
    Helper,
    Leader,
    LostReportError,
    MemoryJournal,
    Report,
)
from fedtally.secagg.two_server.reports import HEAD, LEADER, Bound, Kind, decode_ids

PROOF = world.plan(world.NOISE)
LIAR = lying(PROOF)
PEOPLE = len(world.PEOPLE)
STEPS = (
    *["receive"] * 8, "check", "judge", "judge", "stop", "offer",
    "query", "query", "answer", "answer", "finish", "finish", "resume", "restart",
)  # fmt: skip


class Disk(dict[bytes, bytes]):
    """The reports of a side, by id, and its answer."""

    def __init__(self, journal: MemoryJournal) -> None:
        super().__init__()
        self.journal = journal

    def ids(self) -> list[bytes]:
        return [id for id in self if len(id) == 16]

    def put(self, id: bytes, frame: bytes, names: Sequence[bytes]) -> bool:
        this = hashlib.sha256(frame).digest()
        if any(self.journal.kept(name) not in (None, this) for name in names):
            return False
        for name in names:
            self.journal.keep(name, this)
        self[id] = frame
        return True

    def frames(self, ids: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(id) for id in ids]

    def keep_answer(self, sealed: bytes) -> None:
        self[b"answer"] = sealed

    def answer(self) -> bytes | None:
        return self.get(b"answer")

    def erase(self) -> None:
        self.clear()


class Orders:
    """One run: what both sides did, and what they said."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.journals = MemoryJournal(), MemoryJournal()
        self.disks = [Disk(journal) if seed % 2 else None for journal in self.journals]
        self.leaders, self.helpers = ([self.made(i), self.made(i)] for i in range(2))
        self.liars = set(self.rng.permutation(PEOPLE)[: self.rng.integers(7)].tolist())
        self.told: dict[str, list[bytes]] = {
            name: [] for name in ("check", "offer", "query", "answer")
        }
        self.sums: set[bytes] = set()
        self.people: dict[bytes, int] = {}  # by the id of a report
        self.honest = {i: self.known(i, world.report(i, proof=PROOF)) for i in range(PEOPLE)}
        self.lies = {i: self.known(i, world.lie(i, 200, LIAR)) for i in self.liars}
        self.others = {
            i: self.known(i, world.report(i, proof=PROOF, nonce=drawn("another nonce", i)))
            for i in self.liars
        }

    def made(self, side: int) -> Any:
        """Return another process of a leader or of a helper."""

        def noise() -> Any:
            return self.rng.integers(-world.NOISE // 2, world.NOISE // 2 + 1, world.SIZE)

        kind, key = ((Leader, LEADER_KEY), (Helper, KEY))[side]
        common = PROOF, world.ROUNDS, world.ALLOWED, world.POLICY
        return kind(*common, self.journals[side], key, noise, reports=self.disks[side])

    def known(self, who: int, report: Report) -> Report:
        nonce, round, identity, time, *_ = HEAD.unpack_from(report.leader, 48)
        id = Bound(PROOF.context, nonce, round, identity, time).id
        self.people[id] = who
        return report

    def run(self, steps: int) -> None:
        for step in range(steps):
            late = step / steps
            name = self.any_of(STEPS if late > 0.4 else STEPS[:11])
            leader, helper = (
                processes[self.rng.random() < 0.25] for processes in (self.leaders, self.helpers)
            )
            try:
                self.take(name, leader, helper)
            except LostReportError:
                assert self.told["answer"]  # only a helper that answered erased any
            except (BatchRefusedError, LocalProtocolError) as error:
                if "lost" in str(error):
                    raise

    def take(self, name: str, leader: Leader, helper: Helper) -> None:
        told, any_of = self.told, self.any_of
        if name == "receive":
            who = int(self.rng.integers(PEOPLE))
            kinds = (self.lies, self.others, self.honest) if who in self.liars else (self.honest,)
            kind = any_of(kinds)
            # a report may be lost, and a liar may tell the servers different things
            for server, part in ((helper, "helper"), (leader, "leader")):
                if self.rng.random() < 0.95:
                    server.receive(getattr(kind[who], part), NOW)
                if self.rng.random() < 0.5:
                    kind = any_of(kinds)
        elif name == "check":
            told["check"] += helper.checks(leader.to_check(4) if self.rng.random() < 0.5 else None)
        elif name == "judge" and told["check"]:
            leader.judge(any_of(told["check"]))
        elif name == "stop":
            leader.stop()
        elif name == "offer":
            told["offer"].append(helper.offer())
        elif name == "query" and told["offer"]:
            told["query"].append(leader.query(any_of(told["offer"])))
        elif name == "resume":
            told["query"].append(leader.resume())
        elif name == "answer" and told["query"]:
            told["answer"].append(helper.answer(any_of(told["query"])))
        elif name == "finish" and told["answer"]:
            self.sums.add(leader.finish(any_of(told["answer"])).tobytes())
        elif name == "restart" and self.rng.random() < 0.4:
            side, process = self.rng.integers(2, size=2)
            (self.leaders, self.helpers)[side][process] = self.made(side)

    def any_of(self, things: Sequence[Any]) -> Any:
        return things[self.rng.integers(len(things))]

    def check(self) -> None:
        """Look at what must hold, whatever happened."""
        checks: dict[bytes, bytes] = {}
        size = 16 + PROOF.check_bytes
        for frame in self.told["check"]:
            for start in range(60, len(frame), size):
                entry = frame[start : start + size]
                assert checks.setdefault(entry[:48], entry) == entry  # of a report, for ever
        assert len(set(self.told["query"])) <= 1 >= len(set(self.told["answer"]))
        assert len(self.sums) <= 1
        for leader in self.leaders:
            refused = [one.identity for one in leader.refused]
            assert set(refused) <= {world.key_of(i) for i in self.liars}
            assert len(set(refused)) == len(refused)
        if self.told["query"]:
            _, ids = decode_ids(PROOF.context, 12, self.told["query"][0], Kind.QUERY, LEADER)
            who = [self.people[id] for id in ids]
            assert len(set(who)) == len(who) >= PROOF.parameters.min_batch
            for total in self.sums:
                true = sum(world.vector_of(i) for i in who)
                assert np.abs(np.frombuffer(total, np.int64) - true).max() <= world.NOISE


def run(seeds: range) -> tuple[int, int]:
    """Return how many of the runs closed a batch, and opened it."""
    done = [Orders(seed) for seed in seeds]
    for one in done:
        one.run(150)
        one.check()
    return sum(bool(one.told["query"]) for one in done), sum(bool(one.sums) for one in done)


def test_whatever_the_order_a_batch_has_one_honest_sum() -> None:
    closed, opened = run(range(8))
    assert closed >= opened >= 2  # else it shows nothing
