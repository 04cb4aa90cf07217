"""Reports of the client in TypeScript (clients/web), which the servers here judge."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from secagg_cohort import stream

import fedtally
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.enrolment import Proof, allow_list_of, make_proof
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Dictionary, Domain, IntegerRange
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.two_server import BatchPolicy, MemoryJournal, Outcome

MAKE = Path(__file__).resolve().parents[2] / "clients" / "web" / "build" / "test" / "make.js"
AT_ONCE = 1000
BATCHES = int(os.environ.get("FEDTALLY_WEB_REPORTS", "1000")) // AT_ONCE  # of each field
NOW = 1_800_000_000
POLICY = BatchPolicy(min_honest=2)


def secret(*name: object) -> bytes:
    return hashlib.sha256(repr(name).encode()).digest()


LEADER, HELPER = (PrivateKey(Secret(secret(each))) for each in ("leader", "helper"))
WORDS = Dictionary(["tea", "coffee", "a \u00e9clair", "\U0001f375"])


@pytest.fixture(scope="module")
def make() -> Callable[..., list[str]]:
    """Return a call of the program in node, which prints lines."""
    node = shutil.which("node")
    if node is None or not MAKE.exists():
        missing = "not tested: clients/web needs node, and 'npm ci && npm test' there"
        if os.environ.get("FEDTALLY_REQUIRE_WEB") == "1":
            pytest.fail(missing)
        pytest.skip(missing)

    def call(**wanted: Any) -> list[str]:
        done = subprocess.run(
            [node, "--no-warnings", MAKE],
            input=json.dumps(wanted),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return call


@cache
def pairs_of(people: int) -> list[tuple[str, str]]:
    """Return the secret and public keys of clients."""
    secrets = [secret("person", i) for i in range(people)]
    return [(each.hex(), SigningKey(Secret(each)).public.hex()) for each in secrets]


class World:
    """A published plan of two servers, and the clients on its list."""

    def __init__(self, domain: Domain, people: int, bits: int, rounds: int, **asked: Any) -> None:
        self.domain = domain
        self.people = pairs_of(people)
        self.allowed = AllowList(sorted(bytes.fromhex(public) for _, public in self.people))
        fixed = {"secure_sum": "two-server", "confidence": 0, "max_dropout": 0.3}
        sized = fedtally.estimate(40 * domain.labels([0]), domain=domain, **fixed | asked).plan
        assert isinstance(sized.secure_sum, TwoServerConfig)
        terms = replace(sized.secure_sum, bits=bits, n_max=people, min_batch=people, corrupt=0)
        sized = replace(
            sized,
            secure_sum=terms,
            num_clients=people * rounds,
            max_round_clients=people,
            num_rounds=rounds,
        )
        public = {"leader_key": LEADER.public, "helper_key": HELPER.public}
        self.plan = sized.without_keys().with_keys(**public, allow_list=self.allowed.digest)

    def reports(self, make: Callable[..., list[str]], round: int, **more: Any) -> list[Any]:
        """Return a report of each client, of random items."""
        given = {"plan": self.plan.canonical, "fingerprint": self.plan.fingerprint, "round": round}
        if isinstance(self.domain, Dictionary):
            given["candidates"] = WORDS.labels(range(WORDS.size))
        lines = make(**given | {"time": NOW, "identities": self.people} | more)
        return [json.loads(line) for line in lines]

    def servers(self, round: int) -> Pair:
        """Return servers with new journals, of the release of a round."""
        return Pair(self, round)


class Pair:
    """Both servers of a release."""

    def __init__(self, world: World, round: int) -> None:
        self.server = FrequencyServer(world.plan, MemoryBooks())
        release = next(i for i, each in enumerate(world.plan.releases) if round in each)
        given = release, POLICY, world.allowed
        self.leader = self.server.leader(*given, MemoryJournal(), LEADER, random=stream("leader"))
        self.helper = self.server.helper(*given, MemoryJournal(), HELPER, random=stream("helper"))

    def judge(self, reports: list[Any]) -> list[str]:
        """Hand reports to both servers, which take them all; return verdicts on refused ones."""
        for each in reports:
            assert self.helper.receive(bytes.fromhex(each["helper"]), NOW) is Outcome.ACCEPTED
            assert self.leader.receive(bytes.fromhex(each["leader"]), NOW) is Outcome.ACCEPTED
        for frame in self.helper.checks():
            self.leader.judge(frame)
        return [each.verdict.value for each in self.leader.refused]

    def total(self) -> Any:
        self.leader.stop()
        query = self.leader.query(self.helper.offer())
        return self.leader.finish(self.helper.answer(query))


SIZES = {"rows": 3, "width": 20, "recovery": "median"}
FIELDS: dict[str, dict[str, Any]] = {  # of which bits, and the plan
    "16": {"domain": IntegerRange(1, 300), "rounds": 3, "schedule": "hybrid"} | SIZES,
    "24": {"domain": IntegerRange(-5, 60), "rounds": 1, "epsilon": 4.0} | SIZES,
    "32": {"domain": WORDS, "rounds": 1, "epsilon": 4.0, "encoding": "histogram"},
}


@pytest.mark.parametrize("field", FIELDS)
def test_random_reports_are_valid(make, field):
    world = World(people=AT_ONCE, bits=int(field), **FIELDS[field])
    proof = world.plan.report_proof
    assert proof is not None
    assert (proof.circuit.field.prime.bit_length(), proof.circuit.signed) == (
        int(field),
        field != "32",
    )
    for part in range(BATCHES):
        round = (part + 1) % world.plan.num_rounds
        reports = world.reports(make, round)
        pair = world.servers(round)
        assert pair.judge(reports) == []
        got = pair.total()
        if not world.plan.protection.is_charged:  # the sum has no noise
            assert np.array_equal(got, plain_sum(world, reports, round))


def plain_sum(world: World, reports: list[Any], round: int) -> Any:
    items = [each["item"] for each in reports]
    clients = [FrequencyClient(world.plan, world.domain, [item]) for item in items]
    return sum(client.contribution(round) for client in clients)


CHEATS = {
    "twice as much": "invalid",
    "two in a row": "invalid",
    "nothing, e is 1": "invalid",
    "proof changed": "invalid",
    "another digest": "inconsistent",
}


@pytest.mark.parametrize("field", FIELDS)
def test_cheats_are_refused(make, field):
    world = World(people=3, bits=int(field), **FIELDS[field])
    lies = CHEATS | ({"minus 1": "invalid"} if field == "32" else {})
    reports = iter(world.reports(make, 0, cheats=[*lies, "one in each row"]))
    for lie, verdict in lies.items():
        assert world.servers(0).judge([*islice(reports, 3)]) == 3 * [verdict], lie
    assert world.servers(0).judge([*reports]) == []  # which is none: these clients are honest


def test_a_proof_of_possession_is_that_of_python(make):
    registrar = SigningKey(Secret(secret("registrar"))).public
    people = pairs_of(3)
    for purpose in ("fruit 2026", 'a "quoted" \\ caf\u00e9 \U0001f375'):
        given = {"identities": people, "purpose": purpose}
        lines = make(registrar=registrar.hex(), **given)
        signers = [SigningKey(Secret(bytes.fromhex(each))) for each, _ in people]
        expected = [make_proof(each, registrar, purpose) for each in signers]
        assert lines == [each.to_line().rstrip() for each in expected]
        read = [Proof.from_line(line + "\n") for line in lines]
        assert len(allow_list_of(read, registrar, purpose)) == 3
