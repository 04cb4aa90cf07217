"""The official vectors of draft-irtf-cfrg-vdaf: every operation that they list, byte by byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cases import each_case

from fedtally.crypto.turboshake import turboshake128
from fedtally.flp import FIELD128, Prio3, ReportRefusedError, VerifyState

FOLDER = Path(__file__).parents[1] / "vectors" / "vdaf"
FILES = sorted(path.name for path in FOLDER.glob("Prio3*.json"))


def hexes(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def instance(name: str, vector: dict[str, Any]) -> Prio3:
    common = {"context": bytes.fromhex(vector["ctx"]), "shares": vector["shares"]}
    if name.startswith("Prio3Count_"):
        return Prio3.count(**common)
    if name.startswith("Prio3Histogram_"):
        return Prio3.histogram(vector["length"], vector["chunk_length"], **common)
    sizes = vector["length"], vector["max_measurement"], vector["chunk_length"]
    if name.startswith("Prio3SumVec_"):
        return Prio3.sum_vec(*sizes, **common)
    assert name.startswith("Prio3SumVecWithMultiproof_")
    return Prio3.sum_vec_with_multiproof(*sizes, **common)


class Replay:
    """A vector's operations: each returns what came out, and what the vector says."""

    def __init__(self, prio3: Prio3, vector: dict[str, Any]) -> None:
        self.prio3, self.vector = prio3, vector
        self.states: dict[tuple[int, int], VerifyState] = {}

    def run(self, operation: str, **fields: int) -> tuple[Any, Any]:
        report = self.vector["reports"][fields.get("report_index", 0)]
        return getattr(self, operation)(report, **fields)

    def shard(self, report, report_index):
        nonce, random = hexes([report["nonce"], report["rand"]])
        public = bytes.fromhex(report["public_share"])
        made = self.prio3.shard(report["measurement"], nonce, random)
        return made, (public, hexes(report["input_shares"]))

    def verify_init(self, report, report_index, aggregator_id):
        key, nonce = hexes([self.vector["verify_key"], report["nonce"]])
        public, share = hexes([report["public_share"], report["input_shares"][aggregator_id]])
        state, said = self.prio3.verify_init(key, aggregator_id, nonce, public, share)
        self.states[report_index, aggregator_id] = state
        return said.hex(), report["verifier_shares"][0][aggregator_id]

    def verifier_shares_to_message(self, report, report_index, round):
        shares = hexes(report["verifier_shares"][round])
        message = self.prio3.verifier_shares_to_message(shares)
        return message.hex(), report["verifier_messages"][round]

    def verify_next(self, report, report_index, aggregator_id, round):
        state = self.states[report_index, aggregator_id]
        message = bytes.fromhex(report["verifier_messages"][round - 1])
        out = self.prio3.circuit.field.encode(self.prio3.verify_next(state, message))
        return out.hex(), report["out_shares"][aggregator_id]

    def aggregate(self, report, aggregator_id):
        outs = hexes([each["out_shares"][aggregator_id] for each in self.vector["reports"]])
        total = self.prio3.aggregate([self.prio3.circuit.field.decode(out) for out in outs])
        return total.hex(), self.vector["agg_shares"][aggregator_id]

    def unshard(self, report):
        return self.prio3.unshard(hexes(self.vector["agg_shares"])), self.vector["agg_result"]


def test_the_files_are_all_there():
    assert len(FILES) == 17


def test_they_are_the_vectors_of_libprio_rs():
    """DAP draft 18 is upon draft 19 of VDAF: its vectors, as libprio-rs has them (folder 18, at
    commit 16f30b73be2218f177063844062d482acdf1a847), are these files, byte for byte."""
    blobs = ""
    for path in sorted(FOLDER.glob("*.json")):
        data = path.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # as git names a file
        blobs += f"{blob} {path.name}\n"
    assert hashlib.sha256(blobs.encode()).hexdigest() == (
        "2d2e5e5c9c3de8d109f8968eca906baccbda306e7adb2d1ea2bfc8154ed07ee4"
    )


@each_case("name", FILES)
def test_official_vectors(name):
    vector = json.loads((FOLDER / name).read_text())
    replay, refused = Replay(instance(name, vector), vector), 0
    for operation in vector["operations"]:
        kind, succeeds = operation.pop("operation"), operation.pop("success")
        if succeeds:
            got, expected = replay.run(kind, **operation)
            assert got == expected, kind
        else:
            refused += 1
            with pytest.raises(ReportRefusedError):
                replay.run(kind, **operation)
    assert refused == ("_bad_" in name)


def test_official_vector_of_the_stream():
    vector = json.loads((FOLDER / "XofTurboShake128.json").read_text())
    label, seed, binder = (bytes.fromhex(vector[name]) for name in ("dst", "seed", "binder"))
    message = len(label).to_bytes(2, "little") + label + bytes([len(seed)]) + seed + binder

    def stream(length: int) -> bytes:
        return turboshake128(message, 1, length)

    assert stream(32).hex() == vector["derived_seed"]
    expanded = FIELD128.sample(stream, vector["length"])
    assert FIELD128.encode(expanded).hex() == vector["expanded_vec_field128"]
