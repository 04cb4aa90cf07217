"""Prio3 of draft 08: the official vectors, and reports that are changed or that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case
from proof_cheats import HONEST as AS_IT_IS
from proof_cheats import HOW, measured_cheats, solved, verdicts08

from fedtally.errors import InvalidInputError
from fedtally.flp import ReportRefusedError
from fedtally.flp.prio3 import _JOINT_PART, _PROVE
from fedtally.flp.prio3_draft08 import Prio3Draft08

FOLDER = Path(__file__).parents[1] / "vectors" / "vdaf08"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
KEY = bytes(range(16))
NONCE = bytes(range(16, 32))


def instance(name: str, vector: dict[str, Any]) -> Prio3Draft08:
    shares = vector["shares"]
    if name.startswith("Prio3Count"):
        return Prio3Draft08.count(shares=shares)
    if name.startswith("Prio3Histogram"):
        return Prio3Draft08.histogram(vector["length"], vector["chunk_length"], shares=shares)
    maximum = 2 ** vector["bits"] - 1
    return Prio3Draft08.sum_vec(vector["length"], maximum, vector["chunk_length"], shares=shares)


def test_the_files_are_all_there() -> None:
    assert len(FILES) == 6


@each_case("name", FILES)
def test_official_vectors(name: str) -> None:
    vector = json.loads((FOLDER / name).read_text())
    prio3, key = instance(name, vector), bytes.fromhex(vector["verify_key"])
    outs: list[list[Any]] = [[] for _ in range(prio3.shares)]
    for report in vector["prep"]:
        nonce, public = (bytes.fromhex(report[field]) for field in ("nonce", "public_share"))
        shares = [bytes.fromhex(share) for share in report["input_shares"]]
        begun = [
            prio3.verify_init(key, number, nonce, public, share)
            for number, share in enumerate(shares)
        ]
        said = [share for _, share in begun]
        assert [share.hex() for share in said] == report["prep_shares"][0]
        message = prio3.verifier_shares_to_message(said)
        assert message.hex() == report["prep_messages"][0]
        for number, (state, _) in enumerate(begun):
            out = prio3.verify_next(state, message)
            expected = "".join(report["out_shares"][number])
            assert prio3.circuit.field.encode(out).hex() == expected
            outs[number].append(out)
    totals = [prio3.aggregate(each) for each in outs]
    assert [total.hex() for total in totals] == vector["agg_shares"]
    assert prio3.unshard(totals) == vector["agg_result"]


def passes(prio3: Prio3Draft08, nonce: bytes, public: bytes, shares: list[bytes]) -> bool:
    try:
        begun = [
            prio3.verify_init(KEY, number, nonce, public, share)
            for number, share in enumerate(shares)
        ]
        message = prio3.verifier_shares_to_message([said for _, said in begun])
        for state, _ in begun:
            prio3.verify_next(state, message)
    except ReportRefusedError:
        return False
    return True


@each_case("name", [name for name in FILES if name.endswith("_0.json")])
def test_a_changed_report_is_refused(name: str) -> None:
    vector = json.loads((FOLDER / name).read_text())
    prio3, report = instance(name, vector), vector["prep"][0]
    nonce, public = bytes.fromhex(report["nonce"]), bytes.fromhex(report["public_share"])
    shares = [bytes.fromhex(share) for share in report["input_shares"]]
    assert passes(prio3, nonce, public, shares)
    parts = [nonce, public, *shares]
    for place, part in enumerate(parts):
        if place == 0 and not public:
            continue  # no randomness of a count depends on the nonce but the servers' own
        for at in {*range(0, len(part), max(1, len(part) // 8)), len(part) - 1} - {-1}:
            bad = part[:at] + bytes([part[at] ^ 1]) + part[at + 1 :]
            changed = [*parts[:place], bad, *parts[place + 1 :]]
            assert not passes(prio3, changed[0], changed[1], changed[2:]), (place, at)
        for bad in {part[:-1], part + b"\0"} - {part}:
            if place:
                changed = [*parts[:place], bad, *parts[place + 1 :]]
                assert not passes(prio3, changed[0], changed[1], changed[2:]), place


# ---- a client, as somebody who wants to cheat writes one ----


def report_of(prio3: Prio3Draft08, words: list[int]) -> tuple[bytes, list[bytes]]:
    """Return the public share and the input shares of any words, with an honest proof of them."""
    field, blind = prio3.circuit.field, prio3._blind_bytes
    helper_share = bytes(range(100, 132)) + b"h" * blind
    helper = prio3._opened(1, helper_share)
    whole = field.words(words)
    leader_words = field.reduce(whole - helper.words)
    parts = [
        prio3._streams.of(_JOINT_PART, seed * blind, bytes([number]) + NONCE + field.encode(share))(
            blind
        )
        for number, (seed, share) in enumerate([(b"l", leader_words), (b"h", helper.words)])
    ]
    joint = prio3._joint(prio3._joint_seed(parts))
    length = prio3._proof.prove_random_length
    proof = prio3._proof.prove(whole, prio3._expand(_PROVE, b"p" * 16, b"\1", length), joint)
    values = [int(value) for value in proof[0, length:, 0]]
    points = [[int(value) for value in row] for row in prio3._points]
    coefficients = solved(points, values, field.prime)
    sent = np.concatenate([proof[0, :length, 0], field.words(coefficients)])
    leader_proof = field.reduce(sent - helper.proofs[0, :, 0])
    leader = field.encode(np.concatenate([leader_words, leader_proof])) + b"l" * blind
    return b"".join(parts) if blind else b"", [leader, helper_share]


STATED = [
    (Prio3Draft08.count(), [[0], [1]], [[2], [-1], [1 << 40]]),
    (
        Prio3Draft08.histogram(5, 2),
        [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]],
        [
            [0] * 5,
            [1, 1, 0, 0, 0],
            [0, 2, 0, 0, 0],
            [2, -1, 0, 0, 0],
            [0, 0, 0, -1, 2],
            [1, 0, 0, 0, 1 << 90],
        ],
    ),
    (
        Prio3Draft08.sum_vec(2, 3, 3),
        [[0, 0, 0, 0], [1, 1, 0, 1]],
        [[2, 0, 0, 0], [0, 0, 0, -1], [1, 1, 1, 5], [-1, 1, -1, 1]],
    ),
]


@each_case(("prio3", "valid", "invalid"), STATED)
def test_a_measurement_that_is_not_valid_is_refused(
    prio3: Prio3Draft08, valid: list[list[int]], invalid: list[list[int]]
) -> None:
    prime = prio3.circuit.field.prime
    for words in valid:
        assert passes(prio3, NONCE, *report_of(prio3, words)), words
    for words in invalid:
        honest = [word % prime for word in words]
        assert not passes(prio3, NONCE, *report_of(prio3, honest)), words


@each_case("prio3", [each for each, _, _ in STATED])
def test_no_cheat_passes(prio3: Prio3Draft08) -> None:
    """A few of each kind; `tools/cheat_proofs.py --draft08` tries as many as it is told."""
    rng = np.random.default_rng(5)
    field = prio3.circuit.field
    for how in (AS_IT_IS, *HOW):
        kinds = measured_cheats(rng, prio3.circuit)
        words = field.words(list(kinds.values()))
        assert not verdicts08(rng, prio3, words, how).any(), how
        valid = field.words([prio3.circuit.encode(1 if prio3.circuit.length != 4 else [3, 1])])
        changes = how in (AS_IT_IS, HOW[0]) or (how == HOW[-1] and not prio3.circuit.joint_length)
        assert verdicts08(rng, prio3, valid, how).all() == changes, how


def test_it_is_for_servers() -> None:
    with pytest.raises(InvalidInputError, match="draft 08 is for servers"):
        Prio3Draft08.count().shard(1, bytes(16), bytes(64))
    with pytest.raises(InvalidInputError, match="must be 2\\^bits - 1 in draft 08, got 4"):
        Prio3Draft08.sum_vec(2, 4, 3)
    with pytest.raises(InvalidInputError, match="verify_key must be 16 bytes, got 32"):
        Prio3Draft08.count().verify_init(bytes(32), 0, bytes(16), b"", b"")
