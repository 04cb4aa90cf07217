"""Prove that reports to two servers are valid: the computations of a client and of both servers.

The functions here make the parts of reports, decide about each report, and add up the valid
reports. `proven` makes the messages. docs/protocol.md has every byte.

Each value of a report is split into two shares, modulo a prime. The helper's share is a stream that
a seed expands to. The leader's share is the value minus the helper's share. For each report the
helper sends a *check*: the point at which the proof is tested, and its verifier share (see
`flp.proof`). The leader adds its own verifier share, and decides.

**Two checks of one report at different points reveal its whole vector.** So the point depends only
on the report and on the helper's secret key, which opens the report. Whoever asks again, after a
restart or with an old copy of a journal, gets the same check. A helper with another key cannot read
the report. The context fixes the circuit, and a report is sealed and signed for its context.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto import hpke, prg
from fedtally.crypto.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Label,
    Secret,
    SigningKey,
    digest,
    hkdf,
    verify,
)
from fedtally.errors import InvalidInputError
from fedtally.flp.fields import Field
from fedtally.flp.one_hot import FIELDS_OF_SUMS, OneHot, field_for_sums
from fedtally.flp.proof import FullyLinearProof
from fedtally.flp.words import Array
from fedtally.secagg.two_server.reports import (
    LAST_TIME,
    NONCE_BYTES,
    SALT_BYTES,
    SEALED_BYTES,
    SEED_BYTES,
    BatchRefusedError,
    Bound,
    Kind,
    TwoServerParameters,
    Verdict,
    entries_within,
    exactly,
    is_signing_key,
    mask_key,
    part_digest,
)

SHARES = 2
# The most words verified together. They take 8 MiB, and the results a few times as much. A report
# with more words is verified alone.
WORDS_AT_ONCE = 1 << 20


class Digests(NamedTuple):
    """Hold the digests that a client signs, 32 bytes each.

    Args:
        leader: the digest of the salt and the leader's share of the words.
        helper: the digest of the sealed seed. It does not cover the proof: the proof is made later,
            and depends on this digest.
        proof: the digest of the salt and the leader's share of the proof.
    """

    leader: bytes
    helper: bytes
    proof: bytes


@dataclass(frozen=True)
class LeaderPart:
    """Hold the part of a report that the leader gets.

    Args:
        bound: the context, nonce, round, identity and time of the report.
        helper: the digest of the sealed seed, as the client states it; 32 bytes.
        signature: the client's signature over `bound` and the three `Digests`, 64 bytes.
        salt: 32 random bytes, which the helper must not learn.
        words: the leader's share of the encoded vector, `ReportProof.words_bytes` long.
        proof: the leader's share of the proof, `ReportProof.proof_bytes` long.
    """

    bound: Bound
    helper: bytes
    signature: bytes
    salt: bytes = field(repr=False)
    words: bytes = field(repr=False)
    proof: bytes = field(repr=False)


@dataclass(frozen=True)
class HelperPart:
    """Hold the part of a report that the helper gets.

    Args:
        bound: the context, nonce, round, identity and time of the report.
        leader: the digest of the salt (of `LeaderPart`) and the leader's share of the words, as the
            client states it; 32 bytes.
        proof: the digest of this salt and the leader's share of the proof, as the client states it;
            32 bytes.
        signature: the client's signature, the same as in the leader's part; 64 bytes.
        sealed: the seed of the helper's shares, sealed to the helper's key; 80 bytes.
    """

    bound: Bound
    leader: bytes
    proof: bytes
    signature: bytes
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class LeaderShare:
    """Hold the leader's share of a report whose signature is verified (`ReportProof.of_leader`).

    Args:
        bound: the context, nonce, round, identity and time of the report.
        digests: the digests that the client signed.
        words: the leader's share of the vector's words, encoded; every word is below p.
        proof: the leader's share of the proof, encoded; every word is below p.
    """

    bound: Bound
    digests: Digests
    words: bytes = field(repr=False)
    proof: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class HelperShare:
    """Hold the helper's share of a report whose signature is verified (`ReportProof.of_helper`).

    Args:
        bound: the context, nonce, round, identity and time of the report.
        digests: the digests that the client signed.
        mask_key: the key whose stream is the helper's share of the words, 32 bytes.
        proof_mask_key: the key whose stream is the helper's share of the proof, 32 bytes.
    """

    bound: Bound
    digests: Digests
    mask_key: Secret
    proof_mask_key: Secret

    def wipe(self) -> None:
        """Overwrite both keys with zeros."""
        self.mask_key.wipe()
        self.proof_mask_key.wipe()


@dataclass(frozen=True)
class ReportProof:
    """Make and check the proofs of reports under one set of parameters, and add up the reports.

    The circuit, which is the statement to prove, and its field follow from the arguments. `context`
    covers all arguments, and a report is sealed and signed for its context. So a report can be
    checked with only one circuit.

    Args:
        parameters: the parameters that clients and servers agree on. `largest_entry` must be 1,
            `bits` the number of bits of the prime of a field that is large enough for the sums (16,
            24 or 32), and `widths` the widths of the vector's rows. If `signed` is true, an entry
            may be -1.
        abstain: whether a client without an item may report the zero vector.

    Raises:
        InvalidInputError: the arguments do not fit each other.

    >>> import os
    >>> import numpy as np
    >>> leaders, key = (hpke.PrivateKey(Secret(os.urandom(32))) for _ in range(2))
    >>> person = SigningKey(Secret(os.urandom(32)))
    >>> parameters = TwoServerParameters(
    ...     widths=(3, 2), bits=16, n_max=100, min_batch=2, corrupt=0, leader_key=leaders.public,
    ...     helper_key=key.public, allow_list=bytes(32), fingerprint=bytes(32))
    >>> proof = ReportProof(parameters)
    >>> leader, helper = proof.report(
    ...     np.array([0, 1, 0, 0, -1]), round=0, now=0, identity=person, random=os.urandom)
    >>> checks = proof.check([proof.of_helper(helper, key)], key)
    >>> proof.decide([proof.of_leader(leader)], checks)
    [<Verdict.VALID: 'valid'>]
    """

    parameters: TwoServerParameters
    abstain: bool = False

    def __post_init__(self) -> None:
        parameters = self.parameters
        if not isinstance(self.abstain, bool):  # otherwise only the use of `circuit` would fail
            raise InvalidInputError(f"abstain must be True or False, got {self.abstain!r}")
        if parameters.largest_entry != 1:
            raise InvalidInputError(
                "largest_entry must be 1, since a proof is of a client with one item, got"
                f" {parameters.largest_entry}"
            )
        if parameters.bits != self._field.prime.bit_length():
            bits = " or ".join(str(field.prime.bit_length()) for field in self._fields)
            raise InvalidInputError(
                f"bits must be {bits} for proofs with n_max = {parameters.n_max} and noise ="
                f" {parameters.noise}, got {parameters.bits}"
            )

    @property
    def _field(self) -> Field:
        # The field is no argument: a caller could choose one so small that invalid vectors pass.
        bits, fields = self.parameters.bits, self._fields
        return next((field for field in fields if field.prime.bit_length() == bits), fields[0])

    @property
    def _fields(self) -> tuple[Field, ...]:
        """The fields that are large enough for the sums, the smallest first."""
        given = self.parameters
        least = field_for_sums(given.n_max, given.noise, signed=given.signed)
        return FIELDS_OF_SUMS[FIELDS_OF_SUMS.index(least) :]

    @property
    def modulus(self) -> int:
        """The prime p of the field; words are integers mod p."""
        return self._field.prime

    @cached_property
    def circuit(self) -> OneHot:
        """The statement that a report proves: its vector is valid."""
        lanes = self.parameters.checksum_entries
        given = self.parameters
        return OneHot(given.widths, self._field, self.abstain, lanes, given.signed)

    @cached_property
    def flp(self) -> FullyLinearProof:
        """The fully linear proof of the circuit, with the steps prove, query and decide."""
        return FullyLinearProof(self.circuit)

    @cached_property
    def context(self) -> bytes:
        """The digest of the parameters and of the circuit, 32 bytes; a report is bound to it."""
        circuit = self.circuit
        return digest(
            Label.TWO_SERVER_CIRCUIT,
            self.parameters.context,
            circuit.field.prime.to_bytes(8, "little"),
            bytes([circuit.field.degree]),
            circuit.field.generator.to_bytes(8, "little"),
            bytes([circuit.abstain, circuit.signed, circuit.checksum]),
        )

    @property
    def words_bytes(self) -> int:
        """The size in bytes of the leader's share of the words, which are the encoded vector."""
        return self.circuit.length * self.circuit.field.word_bytes

    @property
    def proof_bytes(self) -> int:
        """The size in bytes of the leader's share of the proof."""
        return self.flp.proof_length * self._element_bytes

    @property
    def added_bytes(self) -> int:
        """The number of bytes that the proof adds to a report.

        They are the leader's share of the proof, its digest, and with `abstain` one word that says
        whether the client has an item.
        """
        return self.proof_bytes + KEY_BYTES + self.circuit.abstain * self.circuit.field.word_bytes

    @property
    def check_bytes(self) -> int:
        """The size in bytes of a check of one report.

        A check has, in this order: the digest of all that the client signed (`_joint_digest`), 32
        bytes; the seed of the test point, 32 bytes; and the helper's verifier share.
        """
        return 2 * KEY_BYTES + self.flp.verifier_length * self._element_bytes

    def bound(self, nonce: bytes, round: int, identity: bytes, time: int) -> Bound:
        """Collect the values that every key and signature of a report is bound to.

        Args:
            nonce: 16 random bytes.
            round: the round of the campaign, 0 .. 2^32 - 1.
            identity: the client's public key, 32 bytes.
            time: the time that the client signs, Unix seconds, 0 .. 2^64 - 1.

        Raises:
            InvalidInputError: a value has a wrong size or is out of range.
        """
        return Bound(
            self.context,
            exactly(NONCE_BYTES, nonce=nonce),
            validate.integer(0, 2**32 - 1, round=round),
            exactly(KEY_BYTES, identity=identity),
            validate.integer(0, LAST_TIME, time=time),
        )

    # ---- the client ----

    def report(
        self,
        vector: npt.NDArray[Any],
        *,
        round: int,
        now: int,
        identity: SigningKey,
        random: Callable[[int], bytes],
    ) -> tuple[LeaderPart, HelperPart]:
        """Make both parts of a client's report.

        To send a report again, send the same parts: do not make it again.

        Args:
            vector: integers [counters], valid (see `OneHot.encode`).
            round: the round of the campaign, 0 .. 2^32 - 1.
            now: the time that the client signs, Unix seconds.
            identity: the client's signing key.
            random: a function that returns a given number of uniform bytes, from a cryptographic
                source. It is called for a nonce of 16 bytes; then for the seed, the salt and the
                seed of the proof's randomness, 32 bytes each.

        Raises:
            InvalidInputError: the vector, the round, the time, the identity or the random bytes are
                not as described.
        """
        identity = is_signing_key(identity)
        # The secrets are wiped at the end, also after an error, whose traceback refers to them.
        with ExitStack() as secrets:
            words = self.circuit.encode(vector)
            secrets.callback(words.fill, 0)  # they reveal the item
            nonce = exactly(NONCE_BYTES, random_nonce=random(NONCE_BYTES))
            bound = self.bound(nonce, round, identity.public, now)

            def kept(secret: Secret) -> Secret:
                secrets.callback(secret.wipe)
                return secret

            seed = kept(Secret(exactly(SEED_BYTES, random_seed=random(SEED_BYTES))))
            salt = exactly(SALT_BYTES, random_salt=random(SALT_BYTES))
            prove_seed = kept(Secret(exactly(SEED_BYTES, random_prove_seed=random(SEED_BYTES))))
            sealed = hpke.seal(
                self.parameters.helper_key, seed, Label.TWO_SERVER_SEED, *bound.fields
            )
            share = self._less(words, self._words([kept(mask_key(seed, bound))], len(words)))
            # The proof and all of its randomness depend on these two digests, which do not cover
            # the proof. A report that is made again, by mistake with the same seeds, is sealed
            # differently. So its proof has other randomness: two proofs with the same masks would
            # reveal their difference.
            digests = _words_digest(salt, share), _sealed_digest(sealed)
            joint = self._joint_key(bound, *digests)
            prove_key = kept(hkdf(prove_seed, joint, Label.TWO_SERVER_PROVE))
            proof = self.flp.prove(
                words,
                self._elements([prove_key], self.flp.prove_random_length)[0],
                self._elements([Secret(joint)], self.circuit.joint_length)[0],
            )
            secrets.callback(proof.fill, 0)  # it is not masked, and depends on the item
            proof_mask_key = kept(_proof_mask_key(seed, joint))
            proof_share = self._less(proof, self._elements([proof_mask_key], self.flp.proof_length))
        signed = Digests(*digests, _proof_digest(salt, proof_share))
        signature = identity.sign(Label.TWO_SERVER_REPORT, *bound.fields, *signed)
        return (
            LeaderPart(bound, signed.helper, signature, salt, share, proof_share),
            HelperPart(bound, signed.leader, signed.proof, signature, sealed),
        )

    # ---- the servers ----

    def digests(self, part: LeaderPart | HelperPart) -> Digests:
        """Return the digests that the client must have signed.

        The digests of this server's part are computed. The digests of the other server's part are
        in `part`, as the client states them.

        Args:
            part: the part of a report that this server got.

        Raises:
            InvalidInputError: a field of the part has a wrong length.
        """
        if isinstance(part, HelperPart):
            return Digests(
                exactly(KEY_BYTES, leader_digest=part.leader),
                _sealed_digest(exactly(SEALED_BYTES, sealed=part.sealed)),
                exactly(KEY_BYTES, proof_digest=part.proof),
            )
        salt = exactly(SALT_BYTES, salt=part.salt)
        return Digests(
            _words_digest(salt, exactly(self.words_bytes, words=part.words)),
            exactly(KEY_BYTES, helper_digest=part.helper),
            _proof_digest(salt, exactly(self.proof_bytes, proof=part.proof)),
        )

    def of_leader(self, part: LeaderPart) -> LeaderShare:
        """Verify the signature of the leader's part of a report, and read the part.

        The caller must have checked that the identity is in the allow-list.

        Raises:
            RejectedError: the client did not sign this part.
            InvalidInputError: a field has a wrong length, the report's context is not
                `self.context`, or a word is not below p.
        """
        digests, bound = self._signed(part)
        return self._read_leader(bound, digests, part.words, part.proof)

    def of_helper(self, part: HelperPart, key: hpke.PrivateKey) -> HelperShare:
        """Verify the signature of the helper's part of a report, and derive the helper's two keys.

        The caller must have checked that the identity is in the allow-list.

        Args:
            part: the part of the report that came from the client.
            key: the secret key that belongs to `parameters.helper_key`.

        Raises:
            RejectedError: the client did not sign this part, or the seal does not open.
            InvalidInputError: a field has a wrong length, the report's context is not
                `self.context`, or the key does not belong to `parameters.helper_key`.
        """
        digests, bound = self._signed(part)
        return self._read_helper(bound, digests, part.sealed, key)

    def _read_leader(
        self, bound: Bound, digests: Digests, words: bytes, proof: bytes
    ) -> LeaderShare:
        """Read the leader's part of a report whose signature is verified already.

        Raises:
            InvalidInputError: a word is not below p.
        """
        for data in (words, proof):  # otherwise a word that is not below p would fail later
            self.circuit.field.check(data)
        return LeaderShare(bound, digests, words, proof)

    def _read_helper(
        self, bound: Bound, digests: Digests, sealed: bytes, key: hpke.PrivateKey
    ) -> HelperShare:
        """Derive the keys of the helper's shares of a report whose signature is verified already.

        Raises:
            RejectedError: the seal does not open.
            InvalidInputError: the key does not belong to `parameters.helper_key`.
        """
        seed = self.parameters.own_key(key).open(sealed, Label.TWO_SERVER_SEED, *bound.fields)
        joint = self._joint_key(bound, digests.leader, digests.helper)
        share = HelperShare(bound, digests, mask_key(seed, bound), _proof_mask_key(seed, joint))
        seed.wipe()  # the helper needs only the two keys
        return share

    def check(self, shares: Sequence[HelperShare], key: hpke.PrivateKey) -> list[bytes]:
        """Compute the helper's check of each report, `check_bytes` long, in the order of `shares`.

        A check is a function of the report and of the helper's key. It must depend on nothing else:
        nothing that is drawn for the check, nothing from the leader, no batch.

        Args:
            shares: the helper's shares of the reports.
            key: the secret key that belongs to `parameters.helper_key`.

        Raises:
            InvalidInputError: the key does not belong to `parameters.helper_key`, or a report's
                context is not `self.context`.
        """
        key = self.parameters.own_key(key)  # another key would make another test point
        digests = [self._joint_digest(share) for share in shares]  # before a key exists: may raise
        verify_key = key.derive(self.context, Label.TWO_SERVER_VERIFY_KEY)
        seeds = [
            bytes(hkdf(verify_key, joint, Label.TWO_SERVER_POINT).reveal()) for joint in digests
        ]
        verify_key.wipe()
        verifiers = self.circuit.field.encode(self._query(shares, seeds))
        size = self.check_bytes - 2 * KEY_BYTES
        return [
            joint + seed + verifiers[i * size : (i + 1) * size]
            for i, (joint, seed) in enumerate(zip(digests, seeds, strict=True))
        ]

    def decide(self, shares: Sequence[LeaderShare], checks: Sequence[bytes]) -> list[Verdict]:
        """Decide about each report, as the leader: return its verdict, in the order of `shares`.

        A report is INCONSISTENT if the digest in the helper's check is not the digest of what the
        client signed for the leader.
        Otherwise its proof decides whether it is VALID or INVALID.

        Args:
            shares: the leader's shares of the reports.
            checks: the helper's check of each report, in the same order.

        Raises:
            InvalidInputError: a report's context is not `self.context`; or the helper did not
                follow the protocol: there is not one check for each report, a check has a wrong
                length, or a word of a check is not below p. No verdict is returned then.
        """
        if len(checks) != len(shares):
            raise InvalidInputError(
                f"checks must be one for each of {len(shares)} reports, got {len(checks)}"
            )
        seeds, verifiers, same = [], [], []
        length = self.flp.verifier_length
        for share, check in zip(shares, checks, strict=True):
            exactly(self.check_bytes, check=check)
            same.append(hmac.compare_digest(check[:KEY_BYTES], self._joint_digest(share)))
            seeds.append(check[KEY_BYTES : 2 * KEY_BYTES])
            verifiers.append(check[2 * KEY_BYTES :])
        # Checks that cannot be read are refused first: that costs no derivation.
        sent = self._read(b"".join(verifiers), length)
        total = self.circuit.field.reduce(self._query(shares, seeds) + sent)
        valid = self.flp.decide(total)
        return [
            (Verdict.VALID if passed else Verdict.INVALID) if agreed else Verdict.INCONSISTENT
            for passed, agreed in zip(valid, same, strict=True)
        ]

    # ---- the sum of a batch ----

    def add(
        self, shares: Sequence[LeaderShare | HelperShare], noise: npt.NDArray[np.int64] | None
    ) -> bytes:
        """Add up a server's shares of the reports of a batch, and this server's noise.

        Args:
            shares: this server's shares of the reports; the leader has found every report valid.
            noise: int64 [counters], within +-parameters.noise; the noise of this server; None if
                the parameters have none.

        Returns:
            This server's share of the sum, encoded: counters and checksum words.

        Raises:
            InvalidInputError: there are fewer than min_batch reports or more than n_max, a report
                occurs twice, a report's context is not `self.context`, or the noise is not as
                described.
        """
        parameters = self.parameters
        low, high = parameters.min_batch, parameters.n_max
        ids = {self._of_this_context(share.bound).id for share in shares}
        if not low <= len(shares) <= high:
            raise InvalidInputError(f"a batch must have {low} .. {high} reports, got {len(shares)}")
        if len(ids) < len(shares):  # the item of a report that counts twice would stand out
            raise InvalidInputError(
                f"a report must be in a batch once, got {len(shares)} reports of {len(ids)} ids"
            )
        total = self.nothing()
        self.accumulate(total, shares)
        return self.share_of(total, noise)

    def nothing(self) -> Array:
        """Return a share of the sum of no reports: counters and checksum words, all 0."""
        return np.zeros(self.circuit.counters + self.circuit.checksum, self.circuit.field.dtype)

    def accumulate(self, total: Array, shares: Sequence[LeaderShare | HelperShare]) -> None:
        """Add reports, at most n_max, to `total`, a server's share of a sum, mod p, in place."""
        # No overflow: `total` and 2^20 words, all below 2^32, add up to less than 2^63.
        for share in shares:
            total += self.circuit.truncate(self._words_of([share])[0])
        total[...] = self.circuit.field.reduce(total)

    def less(self, total: Array, part: Array) -> Array:
        """Subtract reports from a server's share of a sum, mod p; return a new array.

        Args:
            total: the share of the sum of all reports.
            part: the share of the sum of the reports to leave out.
        """
        return self.circuit.field.reduce(total - part)

    def share_of(self, total: Array, noise: npt.NDArray[np.int64] | None) -> bytes:
        """Add a server's noise to `total` in place, and encode the result.

        Args:
            total: the share of the sum: counters and checksum words.
            noise: int64 [counters]; the noise of this server; None if the parameters have none.

        Raises:
            InvalidInputError: the noise does not fit the parameters.
        """
        parameters, field = self.parameters, self.circuit.field
        parameters.check_noise(noise)
        if noise is not None:
            entries_within(parameters.length, parameters.noise, noise=noise)
            total[: self.circuit.counters] += field.words(noise)
        return field.encode(field.reduce(total))

    def open(self, leader: bytes, helper: bytes, count: int) -> npt.NDArray[np.int64]:
        """Open the sum of a batch from both servers' shares.

        Args:
            leader: the leader's share of the sum, from `add`.
            helper: the helper's share of the sum, from `add`.
            count: the number of reports in the batch.

        Returns:
            int64 [counters]; the sum, with the noise of both servers.

        Raises:
            InvalidInputError: a share cannot be read.
            BatchRefusedError: a checksum word is not the number of reports, or no honest reports
                could add up to a counter. The reason is a server that did not add up its shares
                of these reports or, rarely, noise of both servers beyond the bound.
        """
        counters = self._counted(self._whole(leader, helper), count)
        if counters is None:
            least, most = self.parameters.bounds(count)
            raise BatchRefusedError(
                f"the checksum words do not count {count} reports, or a counter is beyond"
                f" {least} .. {most}: a server added up other reports, or answered wrongly"
            )
        return counters

    @property
    def sum_bytes(self) -> int:
        """The size in bytes of an encoded share of the sum."""
        return (self.circuit.counters + self.circuit.checksum) * self.circuit.field.word_bytes

    def _whole(self, leader: bytes, helper: bytes) -> Array:
        """Add up two encoded shares of a sum, mod p: counters and checksum words.

        Raises:
            InvalidInputError: a share cannot be read.
        """
        field, size = self.circuit.field, self.sum_bytes
        one = field.decode(exactly(size, leader=leader))
        return field.reduce(one + field.decode(exactly(size, helper=helper)))

    def _counted(
        self, total: Array, count: int, *, any_entries: bool = False
    ) -> npt.NDArray[np.int64] | None:
        """Return the counters of a sum, or None if `count` reports cannot have this sum.

        Args:
            total: words; the sum, from `_whole`.
            count: the number of reports in it.
            any_entries: whether all counters are accepted; then only the checksum words are
                checked.
        """
        prime = self.circuit.field.prime
        total = np.where(total > prime // 2, total - prime, total).astype(np.int64)
        total = self.parameters.read(total, prime)
        counters, checksum = np.split(total, [self.circuit.counters])
        possible = any_entries or self.parameters.is_possible(counters, count)
        return counters if possible and (checksum == count).all() else None

    # ---- what is refused ----

    def _of_this_context(self, bound: Bound) -> Bound:
        """Return `bound` unchanged if its context is `self.context`.

        Raises:
            InvalidInputError: the report's context is not `self.context`.
        """
        # The test point depends on the context. A check of this report under another context would
        # be a second check, at another point: both together reveal the vector.
        if bound.context != self.context:
            raise InvalidInputError(
                "the report is of another context: use the proof of the parameters, and of the"
                " abstain, that it was made for"
            )
        return bound

    def _signed(self, part: LeaderPart | HelperPart) -> tuple[Digests, Bound]:
        """Return a part's digests and its bound values, if its client signed them for this context.

        Raises:
            RejectedError: the client did not sign them.
            InvalidInputError: a field has a wrong length, or the report's context is not
                `self.context`.
        """
        digests, bound = self.digests(part), self.bound(*self._of_this_context(part.bound)[1:])
        signature = exactly(SIGNATURE_BYTES, signature=part.signature)
        verify(bound.identity, signature, Label.TWO_SERVER_REPORT, *bound.fields, *digests)
        return digests, bound

    def _query(self, shares: Sequence[LeaderShare | HelperShare], seeds: Sequence[bytes]) -> Array:
        """Compute this server's verifier share (see `flp.proof`): [reports, verifier_length, K].

        K is the number of words of an element of the extension field.

        Args:
            shares: this server's shares of the reports.
            seeds: the seed of the test point of each report, 32 bytes.
        """
        verifiers = [self.circuit.field.zeros((0, self.flp.verifier_length))]
        block = max(1, WORDS_AT_ONCE // self.circuit.length)
        for start in range(0, len(shares), block):
            some = shares[start : start + block]
            verifiers.append(
                self.flp.query(
                    self._words_of(some),
                    self._proofs_of(some),
                    self._query_random(seeds[start : start + block]),
                    self._joint(some),
                    SHARES,
                )
            )
        return np.concatenate(verifiers)

    # ---- what is derived from what ----

    def _words_of(self, shares: Sequence[LeaderShare | HelperShare]) -> Array:
        """Return a server's shares of the words (encoded vectors) of reports: [reports, length].

        Args:
            shares: all of the leader, or all of the helper.
        """
        length, field = self.circuit.length, self.circuit.field
        if read := [share.words for share in shares if isinstance(share, LeaderShare)]:
            return field.decode(b"".join(read)).reshape(-1, length)
        keys = [share.mask_key for share in shares if isinstance(share, HelperShare)]
        return self._words(keys, length)

    def _proofs_of(self, shares: Sequence[LeaderShare | HelperShare]) -> Array:
        """Return a server's shares of the proofs of reports: [reports, proof_length, K].

        Args:
            shares: all of the leader, or all of the helper.
        """
        length = self.flp.proof_length
        if read := [share.proof for share in shares if isinstance(share, LeaderShare)]:
            return self._read(b"".join(read), length)
        keys = [share.proof_mask_key for share in shares if isinstance(share, HelperShare)]
        return self._elements(keys, length)

    def _joint_key(self, bound: Bound, leader: bytes, helper: bytes) -> bytes:
        """Compute the key of the joint randomness of a report (r1, r2, r3 in docs/protocol.md).

        The key depends on both shares of the words. It does not depend on the proof: the proof is
        made later, with the joint randomness.

        Args:
            bound: the bound values of the report.
            leader: the digest of the salt and the leader's share of the words, 32 bytes.
            helper: the digest of the sealed seed, 32 bytes.
        """
        return digest(Label.TWO_SERVER_JOINT_RANDOMNESS, *bound.fields, leader, helper)

    def _joint(self, shares: Sequence[LeaderShare | HelperShare]) -> Array:
        """Derive the joint randomness of each report: [reports, joint_length, K]."""
        keys = [
            Secret(self._joint_key(share.bound, share.digests.leader, share.digests.helper))
            for share in shares
        ]
        return self._elements(keys, self.circuit.joint_length)

    def _joint_digest(self, share: LeaderShare | HelperShare) -> bytes:
        """Compute the digest of everything that the client signed for a report: 32 bytes.

        The digest also covers the proof, and the test point depends on the digest. Otherwise a
        client could choose the proof when it knows the test point already.
        """
        bound = self._of_this_context(share.bound)
        return digest(Label.TWO_SERVER_JOINT_DIGEST, *bound.fields, *share.digests)

    def _query_random(self, seeds: Sequence[bytes]) -> Array:
        """Derive the query randomness of each report: [reports, query_random_length, K].

        The elements are drawn from the stream of the seed. First come the factors of the circuit's
        outputs, if the circuit has several outputs. The last element is the test point: the next
        element of the stream that may be a test point.

        Args:
            seeds: the seed of each report, 32 bytes.
        """
        count = self.flp.query_random_length
        drawn = self._elements([Secret(seed) for seed in seeds], count)
        for i in np.flatnonzero(~self.flp.is_test_point(drawn[:, -1])).tolist():
            more = count
            while not self.flp.is_test_point(drawn[i, -1]):
                more += 1
                drawn[i, -1] = self._elements([Secret(seeds[i])], more)[0, -1]
        return drawn

    def _less(self, values: Array, mask: Array) -> bytes:
        """Compute the leader's share of values, encoded: the values minus the helper's share."""
        field = self.circuit.field
        return field.encode(field.reduce(values - mask))

    def _elements(self, keys: Sequence[Secret], count: int) -> Array:
        """Draw uniform elements from the stream of each key: [keys, count, K]."""
        degree = self.circuit.field.degree
        return self._words(keys, count * degree).reshape(-1, count, degree)

    def _words(self, keys: Sequence[Secret], count: int) -> Array:
        """Draw uniform words from the stream of each key: [keys, count]."""
        return self.circuit.field.samples([partial(prg.expand, key) for key in keys], count)

    @property
    def _element_bytes(self) -> int:
        return self.circuit.field.degree * self.circuit.field.word_bytes

    def _read(self, data: bytes, count: int) -> Array:
        """Decode elements, `count` of them for each report: [reports, count, K]."""
        return self.circuit.field.decode(data).reshape(-1, count, self.circuit.field.degree)


def _words_digest(salt: bytes, share: bytes) -> bytes:
    return part_digest(Kind.LEADER_REPORT, salt + share)


def _sealed_digest(sealed: bytes) -> bytes:
    return part_digest(Kind.HELPER_REPORT, sealed)


def _proof_digest(salt: bytes, share: bytes) -> bytes:
    return digest(Label.TWO_SERVER_PROOF_SHARE, salt, share)


def _proof_mask_key(seed: Secret, joint: bytes) -> Secret:
    # The HKDF salt is the key of the joint randomness, which the proof depends on. So two different
    # proofs never have the same mask.
    return hkdf(seed, joint, Label.TWO_SERVER_PROOF_MASK)
