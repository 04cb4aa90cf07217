"""The known answers of docs/validity.md, which a second reading of the page wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case

from fedtally.crypto.keys import Secret
from fedtally.errors import InvalidInputError
from fedtally.flp import FIELD16, FIELD24, FIELD32, SignedOneHot
from fedtally.secagg.two_server.proofs import Digests, ReportProof, proof_digest
from fedtally.secagg.two_server.reports import Bound

FIELDS = {field.prime: field for field in (FIELD16, FIELD24, FIELD32)}
PATH = Path(__file__).parents[1] / "vectors" / "validity.json"
VECTORS = json.loads(PATH.read_text())["proofs"]


def raw(vector: dict[str, Any], *names: str) -> list[bytes]:
    return [bytes.fromhex(vector[name]) for name in names]


def proof_of(vector: dict[str, Any]) -> ReportProof:
    return ReportProof(
        SignedOneHot(
            tuple(vector["widths"]), FIELDS[vector["p"]], vector["abstain"], vector["checksum"]
        )
    )


def bound_of(vector: dict[str, Any]) -> Bound:
    (joined,) = raw(vector, "bound")
    return Bound(joined[:32], joined[32:48], int.from_bytes(joined[48:52], "little"), joined[52:])


@each_case("vector", VECTORS, ids=lambda vector: vector["case"])
def test_clients(vector):
    proof, bound = proof_of(vector), bound_of(vector)
    seed, prove_seed, salt = raw(vector, "seed", "prove_seed", "salt")
    digests = Digests(*raw(vector, "dL", "dH", "proof_digest"))
    counters = np.array(vector["vector"])
    if vector["verdict"] == "invalid" and vector["case"] != "proof changed":
        if vector["case"] != "nothing, e is 1":  # of which the library writes e = 0
            with pytest.raises(InvalidInputError, match="must have one entry"):
                proof.circuit.encode(counters)
        return
    assert proof.share(counters, bound, Secret(seed)).hex() == vector["words"]
    sent = proof.prove(counters, bound, digests, Secret(seed), Secret(prove_seed))
    assert (sent.hex() == vector["proof"]) == (vector["case"] != "proof changed")
    assert proof_digest(salt, *raw(vector, "proof")).hex() == vector["proof_digest"]


@each_case("vector", VECTORS, ids=lambda vector: vector["case"])
def test_servers(vector):
    proof, bound = proof_of(vector), bound_of(vector)
    seed, verify_key, words, sent = raw(vector, "seed", "verify_key", "words", "proof")
    digests = Digests(*raw(vector, "dL", "dH", "proof_digest"))
    helper = proof.of_helper(bound, digests, Secret(seed))
    checks = proof.check([helper], Secret(verify_key))
    assert [check.hex() for check in checks] == [vector["check"]]
    sees = digests._replace(helper=bytes.fromhex(vector.get("leader_sees", vector["dH"])))
    leader = proof.of_leader(bound, sees, words, sent)
    assert [verdict.value for verdict in proof.decide([leader], checks)] == [vector["verdict"]]


def test_every_verdict_has_a_vector_in_every_field():
    seen = {(vector["p"], vector["verdict"]) for vector in VECTORS}
    assert seen == {(p, kind) for p in FIELDS for kind in ("valid", "invalid", "inconsistent")}
