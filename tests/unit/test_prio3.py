"""Prio3: what its official vectors do not show."""

from __future__ import annotations

import sys

import pytest
from cases import each_case

from fedtally.crypto.turboshake import turboshake128
from fedtally.errors import InvalidInputError, MissingExtraError
from fedtally.flp import Prio3, ReportRefusedError

KEY, NONCE = bytes(range(32)), bytes(16)


def report(prio3: Prio3, measurement: object) -> tuple[bytes, list[bytes]]:
    random = bytes(i % 251 for i in range(prio3.random_bytes))
    return prio3.shard(measurement, NONCE, random)


@each_case(
    ("prio3", "measurements", "total"),
    [
        (Prio3.count(context=b"c", shares=3), [0, 1, 1], 2),
        (Prio3.sum_vec(2, 6, 2, context=b"c"), [], [0, 0]),
        (Prio3.histogram(3, 2, context=b""), [2, 2, 0], [1, 0, 2]),
        (Prio3.sum_vec(2, 6, 2, context=b"c"), [[1, 6], [3, 0]], [4, 6]),
        (Prio3.sum_vec_with_multiproof(2, 6, 2, context=b"c", proofs=2), [[1, 6]], [1, 6]),
    ],
)
def test_sums_are_those_of_the_measurements(prio3, measurements, total):
    outs: list[list[object]] = [[] for _ in range(prio3.shares)]
    for measurement in measurements:
        public, shares = report(prio3, measurement)
        states, said = zip(
            *(prio3.verify_init(KEY, i, NONCE, public, each) for i, each in enumerate(shares)),
            strict=True,
        )
        message = prio3.verifier_shares_to_message(said)
        for own, state in zip(outs, states, strict=True):
            own.append(prio3.verify_next(state, message))
    assert prio3.unshard([prio3.aggregate(own) for own in outs]) == total


def test_states_do_not_print_what_they_hold():
    prio3 = Prio3.histogram(3, 2, context=b"")
    public, shares = report(prio3, 1)
    state, _ = prio3.verify_init(KEY, 0, NONCE, public, shares[0])
    assert repr(state) == "VerifyState()"


def test_reports_that_cannot_be_read_are_refused():
    prio3 = Prio3.histogram(3, 2, context=b"")
    public, shares = report(prio3, 1)
    outside = b"\xff" * 16 + shares[0][16:]
    for who, public_share, share, why in (
        (0, public[1:], shares[0], "a public share has 64 bytes, got 63"),
        (0, public, shares[0][1:], "the share of aggregator 0 has 256 bytes, got 255"),
        (1, public, shares[1] + b"0", "the share of aggregator 1 has 64 bytes, got 65"),
        (0, public, outside, "a share cannot be read: every word must be below"),
    ):
        with pytest.raises(ReportRefusedError, match=why):
            prio3.verify_init(KEY, who, NONCE, public_share, share)
    said = [prio3.verify_init(KEY, i, NONCE, public, each)[1] for i, each in enumerate(shares)]
    for bad, why in (
        (said[0][1:], "a verifier share has 128 bytes, got 127"),
        (b"\xff" * 16 + said[0][16:], "a share cannot be read"),
        (said[1], "not valid"),
    ):
        with pytest.raises(ReportRefusedError, match=why):
            prio3.verifier_shares_to_message([bad, said[1]])


def test_bad_arguments_name_themselves():
    prio3 = Prio3.count(context=b"")
    public, shares = report(prio3, 1)
    vec = Prio3.sum_vec(2, 6, 2, context=b"")
    for message, call in (
        ("nonce must be 16 bytes, got 15", lambda: prio3.shard(1, bytes(15), bytes(64))),
        ("random must be 64 bytes, got str", lambda: prio3.shard(1, NONCE, "")),  # type: ignore
        ("measurement must be at most 1, got 2", lambda: prio3.shard(2, NONCE, bytes(64))),
        ("measurement must have 2 entries, got 1", lambda: report(vec, [1])),
        ("measurement must be at most 6, got 7", lambda: report(vec, [1, 7])),
        ("verify_key must be 32", lambda: prio3.verify_init(b"", 0, NONCE, public, shares[0])),
        ("aggregator must be at most 1", lambda: prio3.verify_init(KEY, 2, NONCE, b"", b"")),
        ("must be 2 shares, got 1", lambda: prio3.verifier_shares_to_message([b""])),
        ("aggregate_share must be 8 bytes", lambda: prio3.unshard([bytes(8), bytes(16)])),
        ("must be 2 shares of the sum, got 0", lambda: prio3.unshard([])),
        ("shares must be at least 2, got 1", lambda: Prio3.count(context=b"", shares=1)),
        ("entries must be at least 1", lambda: Prio3.sum_vec(0, 1, 1, context=b"")),
        ("buckets must be at least 1", lambda: Prio3.histogram(0, 1, context=b"")),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()


def test_the_library_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "Crypto.Hash", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fedtally\[prio3\]'"):
        turboshake128(b"", 1, 1)
