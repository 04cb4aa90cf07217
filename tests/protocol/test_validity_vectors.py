"""The known answers of docs/protocol.md, which a second reading of the page wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case

from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.errors import InvalidInputError
from fedtally.flp import FIELD16, FIELD24, FIELD32
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.two_server import (
    BatchPolicy,
    MemoryJournal,
    Outcome,
    TwoServerParameters,
    proofs,
)
from fedtally.secagg.two_server.proofs import HelperPart, LeaderPart, ReportProof
from fedtally.secagg.two_server.proven import make_proven_report
from fedtally.secagg.two_server.servers import Helper, Leader

FIELDS = {field.prime: field for field in (FIELD16, FIELD24, FIELD32)}
PATH = Path(__file__).parents[1] / "vectors" / "validity.json"
DOCUMENT = json.loads(PATH.read_text())
VECTORS, BATCHES = DOCUMENT["proofs"], DOCUMENT["batches"]
ALLOWED = AllowList([bytes.fromhex(key) for key in DOCUMENT["allow_list"]])


def raw(vector: dict[str, Any], *names: str) -> list[bytes]:
    return [bytes.fromhex(vector[name]) for name in names]


def proof_of(vector: dict[str, Any]) -> ReportProof:
    given = {
        name: bytes.fromhex(value) if isinstance(value, str) else value
        for name, value in vector["parameters"].items()
    }
    given["widths"] = tuple(vector["widths"])
    assert sum(given["widths"]) == given.pop("length")
    given["signed"] = vector["signed"]
    return ReportProof(TwoServerParameters(**given), vector["abstain"])


def parts_of(vector: dict[str, Any], proof: ReportProof) -> tuple[LeaderPart, HelperPart]:
    nonce, secret = raw(vector, "nonce", "identity")
    bound = proof.bound(nonce, vector["round"], SigningKey(Secret(secret)).public, vector["time"])
    helper, signature = raw(vector | vector.get("leader_gets", {}), "dH", "signature")
    leader = LeaderPart(bound, helper, signature, *raw(vector, "salt", "words", "proof"))
    return leader, HelperPart(bound, *raw(vector, "dL", "dP", "signature", "sealed"))


@each_case("vector", VECTORS, ids=lambda vector: vector["case"])
def test_clients(monkeypatch, vector):
    proof, counters = proof_of(vector), np.array(vector["vector"])
    (sealed, identity) = raw(vector, "sealed", "identity")
    assert proof.context.hex() == vector["context"]
    assert proof.circuit.field is FIELDS[vector["p"]]
    if vector["verdict"] == "invalid" and vector["case"] != "proof changed":
        if vector["case"] != "nothing, e is 1":  # of which the library writes e = 0
            with pytest.raises(InvalidInputError, match="must have one entry"):
                proof.circuit.encode(counters)
        return
    monkeypatch.setattr(proofs.hpke, "seal", lambda *_: sealed)  # which draws a key of its own
    draws = iter(raw(vector, "nonce", "seed", "salt", "prove_seed"))
    made = proof.report(
        counters,
        round=vector["round"],
        now=vector["time"],
        identity=SigningKey(Secret(identity)),
        random=lambda _: next(draws),
    )
    expected = parts_of({**vector, "leader_gets": {}}, proof)
    assert (made == expected) == (vector["case"] != "proof changed")
    assert made[0].words == expected[0].words


@each_case("vector", VECTORS, ids=lambda vector: vector["case"])
def test_servers(vector):
    proof = proof_of(vector)
    (secret,) = raw(vector, "helper_secret")
    key, (leader, helper) = PrivateKey(Secret(secret)), parts_of(vector, proof)
    checks = proof.check([proof.of_helper(helper, key)], key)
    assert [check.hex() for check in checks] == [vector["check"]]
    verdicts = proof.decide([proof.of_leader(leader)], checks)
    assert [verdict.value for verdict in verdicts] == [vector["verdict"]]


@each_case("vector", VECTORS, ids=lambda vector: vector["case"])
def test_frames(monkeypatch, vector):
    """Of clients, and of the helper, which reads what the second reading wrote."""
    proof, frames = proof_of(vector), vector["frames"]

    def same(name: str, frame: bytes) -> bool:
        given = frames[name]
        return (frame[:48].hex(), hashlib.sha256(frame).hexdigest()) == tuple(given.values())

    leader, helper = parts_of({**vector, "leader_gets": {}}, proof)
    monkeypatch.setattr(ReportProof, "report", lambda *_, **__: (leader, helper))
    (sealed,) = raw(vector, "sealed_leader_part")
    monkeypatch.setattr(proofs.hpke, "seal", lambda *_: sealed)  # which draws a key of its own
    made = make_proven_report(
        proof, None, round=0, now=0, identity=None, policy=BatchPolicy(min_honest=2), random=bytes
    )
    assert same("leader", made.leader) and same("helper", made.helper)
    rounds = range(vector["round"], vector["round"] + 1)
    keys = [PrivateKey(Secret(each)) for each in raw(vector, "leader_secret", "helper_secret")]
    servers = proof, rounds, ALLOWED, BatchPolicy(min_honest=2), MemoryJournal()
    noise = (lambda: None) if proof.parameters.noise else None
    server = Helper(*servers, keys[1], noise)
    assert server.receive(made.helper, vector["time"]) is Outcome.ACCEPTED
    (checks,) = server.checks()
    assert same("checks", checks)
    server = Leader(*servers[:-1], MemoryJournal(), keys[0], noise)
    assert server.receive(made.leader, vector["time"]) is Outcome.ACCEPTED
    server.judge(checks)
    verdict = "valid" if vector["verdict"] == "inconsistent" else vector["verdict"]
    assert [each.verdict.value for each in server.refused] == [verdict][verdict == "valid" :]


def test_every_verdict_has_a_vector_in_every_field():
    seen = {(vector["p"], vector["verdict"]) for vector in VECTORS}
    assert seen == {(p, kind) for p in FIELDS for kind in ("valid", "invalid", "inconsistent")}


@each_case("batch", BATCHES, ids=lambda batch: str(batch["total"]))
def test_sums(batch):
    (secret,) = raw(batch["reports"][0], "helper_secret")
    proof, key = proof_of(batch["reports"][0]), PrivateKey(Secret(secret))
    parts = [parts_of(report, proof) for report in batch["reports"]]
    shares = {
        "leader": [proof.of_leader(leader) for leader, _ in parts],
        "helper": [proof.of_helper(helper, key) for _, helper in parts],
    }
    sums = {}
    for server, noise in batch["noise"].items():
        drawn = None if noise is None else np.array(noise)
        sums[server] = proof.add(shares[server], drawn)
    assert {server: each.hex() for server, each in sums.items()} == batch["sums"]
    assert proof.open(**sums, count=len(parts)).tolist() == batch["total"]
