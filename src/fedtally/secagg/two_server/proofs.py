"""Proofs that reports to two servers are valid: what a client and both servers compute.

No message of `fedtally-secagg/1` carries this yet, so that no campaign uses it: these are the
functions between the bytes that messages will hold. docs/validity.md has every byte.

The helper's shares are streams of a seed; the leader's are what is left. The helper answers a
report with a *check*: the point at which the proof is tested, and its verifier share. The leader
adds its own verifier share, and decides.

**Two checks of one report at different points give away its whole vector.** So the point is a
function of the report, under a key that the helper alone has: whoever asks again, after a restart
or with an old copy of a journal, gets the same check.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.crypto import prg
from fedtally.crypto.keys import KEY_BYTES, Label, Secret, digest, hkdf
from fedtally.flp.fields import Array
from fedtally.flp.one_hot import SignedOneHot
from fedtally.flp.proof import FullyLinearProof
from fedtally.secagg.two_server.reports import Bound, exactly, mask_key

SHARES = 2


class Verdict(Enum):
    """What the leader finds of a report.

    INVALID: the vector is not valid, or its proof does not show it. INCONSISTENT: the client gave
    the two servers different reports of one id, or one server lies to the other.
    """

    VALID = "valid"
    INVALID = "invalid"
    INCONSISTENT = "inconsistent"


class Digests(NamedTuple):
    """The digests that a client signs, 32 bytes each.

    Args:
        leader: of the leader's part, without the proof (`part_digest`).
        helper: of the helper's part, which must not hold the digest of the proof: the proof depends
            on this digest.
        proof: of the leader's share of the proof (`proof_digest`).
    """

    leader: bytes
    helper: bytes
    proof: bytes


@dataclass(frozen=True, eq=False)
class ServerShare:
    """One server's share of a report.

    Args:
        bound: context, id, round and identity.
        digests: of its own part as it came, and of the others as the report states them.
        words: [length], a share of the vector's words.
        proof: elements [proof_length, K], a share of the proof.
    """

    bound: Bound
    digests: Digests
    words: Array = field(repr=False)
    proof: Array = field(repr=False)


def proof_digest(salt: bytes, share: bytes) -> bytes:
    """Return the digest of the leader's share of a proof.

    Args:
        salt: the 32 bytes that salt the leader's part, too; the helper does not learn them.
        share: from `ReportProof.prove`.
    """
    return digest(Label.TWO_SERVER_PROOF_SHARE, exactly(KEY_BYTES, salt=salt), share)


@dataclass(frozen=True)
class ReportProof:
    """The proof of one circuit, for reports to two servers.

    Args:
        circuit: the statement.

    >>> import numpy as np
    >>> proof = ReportProof(SignedOneHot((3, 2)))
    >>> bound = Bound(bytes(32), bytes(16), 0, bytes(32))
    >>> seed, prove_seed, verify_key = (Secret(bytes([i]) * 32) for i in range(3))
    >>> words = proof.share(np.array([0, 1, 0, 0, -1]), bound, seed)
    >>> digests = Digests(b"digest of the leader's part     ", bytes(32), bytes(32))
    >>> sent = proof.prove(np.array([0, 1, 0, 0, -1]), bound, digests, seed, prove_seed)
    >>> digests = digests._replace(proof=proof_digest(bytes(32), sent))
    >>> checks = proof.check([proof.of_helper(bound, digests, seed)], verify_key)
    >>> proof.decide([proof.of_leader(bound, digests, words, sent)], checks)
    [<Verdict.VALID: 'valid'>]
    """

    circuit: SignedOneHot

    @cached_property
    def flp(self) -> FullyLinearProof:
        """The proof without the shares."""
        return FullyLinearProof(self.circuit)

    @property
    def words_bytes(self) -> int:
        """The bytes of the leader's share of the words."""
        return self.circuit.length * self.circuit.field.word_bytes

    @property
    def proof_bytes(self) -> int:
        """The bytes of the leader's share of the proof."""
        return self.flp.proof_length * self._element_bytes

    @property
    def check_bytes(self) -> int:
        """The bytes of a check: joint digest 32, point seed 32, verifier share."""
        return 2 * KEY_BYTES + self.flp.verifier_length * self._element_bytes

    # ---- the client ----

    def share(self, vector: npt.NDArray[Any], bound: Bound, seed: Secret) -> bytes:
        """Return the leader's share of the words of a vector: `words_bytes`.

        Args:
            vector: integers [counters], valid (see `SignedOneHot.encode`).
            bound: context, id, round and identity.
            seed: 32 uniform bytes, for this report alone; the helper gets them, sealed.
        """
        field = self.circuit.field
        mask = self._words_mask(bound, seed)
        return field.encode(field.reduce(self.circuit.encode(vector) - mask))

    def prove(
        self,
        vector: npt.NDArray[Any],
        bound: Bound,
        digests: Digests,
        seed: Secret,
        prove_seed: Secret,
    ) -> bytes:
        """Return the leader's share of the proof: `proof_bytes`.

        Args:
            vector: that of `share`.
            bound: that of `share`.
            digests: of both parts; that of the proof does not count.
            seed: that of `share`.
            prove_seed: 32 uniform bytes, for this report alone; nobody else gets them.
        """
        field, circuit = self.circuit.field, self.circuit
        key = hkdf(prove_seed, bound.context + bound.id, Label.TWO_SERVER_PROVE)
        prove_random = self._elements(key, self.flp.prove_random_length)
        joint = self._joint(bound, digests)
        proof = self.flp.prove(circuit.encode(vector), prove_random, joint)
        return field.encode(field.reduce(proof - self._proof_mask(bound, seed)))

    # ---- the servers ----

    def of_leader(self, bound: Bound, digests: Digests, words: bytes, proof: bytes) -> ServerShare:
        """Return the leader's share of a report, from the bytes that it got.

        Raises:
            InvalidInputError: the bytes are of another length, or a word is not below p.
        """
        field = self.circuit.field
        return ServerShare(
            bound,
            digests,
            field.decode(exactly(self.words_bytes, words=words)),
            self._read(exactly(self.proof_bytes, proof=proof)),
        )

    def of_helper(self, bound: Bound, digests: Digests, seed: Secret) -> ServerShare:
        """Return the helper's share of a report, from the seed that was sealed to it."""
        words, proof = self._words_mask(bound, seed), self._proof_mask(bound, seed)
        return ServerShare(bound, digests, words, proof)

    def check(self, reports: Sequence[ServerShare], verify_key: Secret) -> list[bytes]:
        """Return the helper's check of each report: `check_bytes` each.

        It is a function of the report and the key. Nothing else may enter it: no nonce, nothing
        from the leader, no batch.

        Args:
            reports: the helper's shares.
            verify_key: 32 bytes, the helper's for a plan. Who knows them can make a proof for any
                vector; clients and the leader must not.
        """
        digests = [self._joint_digest(report) for report in reports]
        seeds = [
            bytes(hkdf(verify_key, joint, Label.TWO_SERVER_POINT).reveal()) for joint in digests
        ]
        verifiers = self._query(reports, seeds)
        return [
            joint + seed + self.circuit.field.encode(verifier)
            for joint, seed, verifier in zip(digests, seeds, verifiers, strict=True)
        ]

    def decide(self, reports: Sequence[ServerShare], checks: Sequence[bytes]) -> list[Verdict]:
        """Return the leader's verdict on each report.

        Args:
            reports: the leader's shares.
            checks: the helper's check of each, in the same order.

        Raises:
            InvalidInputError: a check is of another length, or a word of it is not below p. The
                helper did not follow the protocol: no report is to blame.
        """
        seeds, verifiers, same = [], [], []
        for report, check in zip(reports, checks, strict=True):
            exactly(self.check_bytes, check=check)
            same.append(hmac.compare_digest(check[:KEY_BYTES], self._joint_digest(report)))
            seeds.append(check[KEY_BYTES : 2 * KEY_BYTES])
            verifiers.append(self._read(check[2 * KEY_BYTES :]))
        own = self._query(reports, seeds)
        total = self.circuit.field.reduce(own + np.reshape(verifiers, own.shape))
        valid = self.flp.decide(total)
        return [
            (Verdict.VALID if passed else Verdict.INVALID) if agreed else Verdict.INCONSISTENT
            for passed, agreed in zip(valid, same, strict=True)
        ]

    def _query(self, reports: Sequence[ServerShare], seeds: Sequence[bytes]) -> Array:
        """Return the verifier share of each report: elements [reports, verifier_length, K]."""
        field = self.circuit.field
        if not reports:
            return field.zeros((0, self.flp.verifier_length))
        return self.flp.query(
            np.stack([report.words for report in reports]),
            np.stack([report.proof for report in reports]),
            self._query_random(seeds),
            np.stack([self._joint(report.bound, report.digests) for report in reports]),
            SHARES,
        )

    # ---- what is derived from what ----

    @cached_property
    def _circuit_digest(self) -> bytes:
        """Bind the circuit: a proof of one statement is none of another."""
        circuit = self.circuit
        return digest(
            Label.TWO_SERVER_CIRCUIT,
            circuit.field.prime.to_bytes(8, "little"),
            bytes([circuit.field.degree, circuit.abstain, circuit.checksum]),
            circuit.rows.to_bytes(4, "little"),  # how many widths follow: no two circuits are alike
            *(width.to_bytes(4, "little") for width in circuit.widths),
        )

    def _joint(self, bound: Bound, digests: Digests) -> Array:
        """Return r1, r2 and r3: fixed by both parts, so by the whole vector, before the proof."""
        key = digest(
            Label.TWO_SERVER_JOINT_RANDOMNESS,
            *bound.fields,
            self._circuit_digest,
            digests.leader,
            digests.helper,
        )
        return self._elements(Secret(key), self.circuit.joint_length)

    def _joint_digest(self, report: ServerShare) -> bytes:
        """Return the digest of all that the client signed; with the proof, or it could be chosen
        after the point is known.
        """
        return digest(
            Label.TWO_SERVER_JOINT_DIGEST,
            *report.bound.fields,
            self._circuit_digest,
            *report.digests,
        )

    def _query_random(self, seeds: Sequence[bytes]) -> Array:
        """Return the factors of the outputs, then the first element that may be a test point."""
        count = self.flp.query_random_length
        drawn = np.stack([self._elements(Secret(seed), count) for seed in seeds])
        for i in np.flatnonzero(~self.flp.is_test_point(drawn[:, -1])).tolist():
            more = count
            while not self.flp.is_test_point(drawn[i, -1]):
                more += 1
                drawn[i, -1] = self._elements(Secret(seeds[i]), more)[-1]
        return drawn

    def _words_mask(self, bound: Bound, seed: Secret) -> Array:
        return self._words(mask_key(seed, bound), self.circuit.length)

    def _proof_mask(self, bound: Bound, seed: Secret) -> Array:
        key = hkdf(seed, bound.context + bound.id, Label.TWO_SERVER_PROOF_MASK)
        return self._elements(key, self.flp.proof_length)

    def _elements(self, key: Secret, count: int) -> Array:
        """Return uniform elements of the stream of a key, which is used up: [count, K]."""
        degree = self.circuit.field.degree
        return self._words(key, count * degree).reshape(count, degree)

    def _words(self, key: Secret, count: int) -> Array:
        words = self.circuit.field.sample(partial(prg.expand, key), count)
        key.wipe()
        return words

    @property
    def _element_bytes(self) -> int:
        return self.circuit.field.degree * self.circuit.field.word_bytes

    def _read(self, data: bytes) -> Array:
        return self.circuit.field.decode(data).reshape(-1, self.circuit.field.degree)
