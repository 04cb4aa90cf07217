"""Reports of the client in TypeScript (clients/web), which the servers here judge."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from secagg_cohort import stream

from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.enrolment import Proof, allow_list_of, make_proof
from fedtally.campaign.server import FrequencyServer
from fedtally.cli import app
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Dictionary, Domain, IntegerRange
from fedtally.plan import Plan
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
WORDS = ("tea", "coffee", "a \u00e9clair", "\U0001f375")


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


class World:
    """A published plan of two servers, and the clients on its list."""

    def __init__(self, folder: Path, domain: Domain, people: int, bits: int, asked: str) -> None:
        self.domain = domain
        self.secrets = [secret("person", i) for i in range(people)]
        keys = [SigningKey(Secret(each)).public for each in self.secrets]
        self.allowed = AllowList(sorted(keys))
        path = folder / "plan.json"
        fixed = "--secure-sum two-server --validity proofs --max-dropout 0.3 --output"
        assert app.run(f"plan {asked} {fixed} {path}".split()) == 0
        sized = Plan.load(path)
        assert isinstance(sized.secure_sum, TwoServerConfig)
        sized = replace(sized, secure_sum=replace(sized.secure_sum, bits=bits))
        public = {"leader_key": LEADER.public, "helper_key": HELPER.public}
        self.plan = sized.with_keys(**public, allow_list=self.allowed.digest)
        self.plan.save(path)
        self.text = path.read_text()

    def reports(self, make: Callable[..., list[str]], round: int, **more: Any) -> list[Any]:
        """Return a report of each client, of random items."""
        given = {"plan": self.text, "fingerprint": self.plan.fingerprint, "round": round}
        if isinstance(self.domain, Dictionary):
            given["candidates"] = list(WORDS)
        lines = make(**given | {"time": NOW, "identities": self.secrets_in_hex} | more)
        return [json.loads(line) for line in lines]

    @property
    def secrets_in_hex(self) -> list[str]:
        return [each.hex() for each in self.secrets]

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


FIELDS: dict[str, tuple[Any, ...]] = {  # the domain, bits, and the plan
    "16": (IntegerRange(1, 300), 16, "--rounds 3 --schedule hybrid --domain range:1..300"),
    "24": (
        IntegerRange(-5, 60),
        24,
        "--rounds 4 --schedule batched:4 --domain range:-5..60 --encoding sketch --epsilon 4",
    ),
    "32": (Dictionary(list(WORDS)), 32, "--domain words.txt --encoding histogram --epsilon 4"),
}


def world_of(folder: Path, field: str, people: int, monkeypatch: Any) -> World:
    domain, bits, asked = FIELDS[field]
    (folder / "words.txt").write_text("\n".join(WORDS) + "\n")
    monkeypatch.chdir(folder)
    rounds = 1 if "--rounds" not in asked else int(asked.split()[1])
    return World(
        folder, domain, people, bits, f"--clients {AT_ONCE * rounds} {asked} --max-bytes 2kB"
    )


@pytest.mark.parametrize("field", FIELDS)
def test_random_reports_are_valid(tmp_path, monkeypatch, make, field):
    world = world_of(tmp_path, field, AT_ONCE, monkeypatch)
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
def test_cheats_are_refused(tmp_path, monkeypatch, make, field):
    world = world_of(tmp_path, field, 3, monkeypatch)
    cheats = CHEATS | ({"minus 1": "invalid"} if field == "32" else {})
    for cheat, verdict in cheats.items():
        reports = world.reports(make, 0, cheat=cheat)
        assert world.servers(0).judge(reports) == 3 * [verdict], cheat
    honest = world.reports(make, 0, cheat="one in each row")
    assert world.servers(0).judge(honest) == []


def test_a_proof_of_possession_is_that_of_python(make):
    registrar = SigningKey(Secret(secret("registrar"))).public
    keys = [secret("client", i) for i in range(3)]
    for purpose in ("fruit 2026", 'a "quoted" \\ caf\u00e9 \U0001f375'):
        given = {"identities": [each.hex() for each in keys], "purpose": purpose}
        lines = make(registrar=registrar.hex(), **given)
        signers = [SigningKey(Secret(each)) for each in keys]
        expected = [make_proof(each, registrar, purpose) for each in signers]
        assert lines == [each.to_line().rstrip() for each in expected]
        read = [Proof.from_line(line + "\n") for line in lines]
        assert len(allow_list_of(read, registrar, purpose)) == 3
