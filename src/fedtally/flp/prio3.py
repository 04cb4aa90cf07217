"""Prio3 of draft-irtf-cfrg-vdaf-20 (whose version byte is 18), for any circuit with an encoding.

A client splits a measurement and its proof into shares for two aggregators or more. They check each
report together, in one round, and add up the reports that pass. Everything that is sent is bytes.
Randomness is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedtally.base import validate
from fedtally.crypto.turboshake import turboshake128
from fedtally.errors import InvalidInputError
from fedtally.flp.circuits import Count, Histogram, SumVec
from fedtally.flp.fields import FIELD64
from fedtally.flp.proof import Circuit, FullyLinearProof, ReportRefusedError
from fedtally.flp.words import Array

VERSION = 18
SEED_BYTES, NONCE_BYTES = 32, 16

_VDAF, _DOMAIN = 0, 1  # the class of algorithms in labels; the domain of XofTurboShake128
_MEASUREMENT_SHARE, _PROOF_SHARE, _JOINT, _PROVE, _QUERY, _JOINT_SEED, _JOINT_PART = range(1, 8)


class Measured(Circuit, Protocol):
    """A circuit with an encoding of measurements."""

    def encode(self, measurement: Any) -> Array:
        """Return the words of a measurement."""

    def truncate(self, words: Array) -> Array:
        """Return the words, or shares of them, that are added up."""

    def decode(self, total: Array) -> Any:
        """Return the result of a sum of truncated words."""


@dataclass(frozen=True, eq=False)
class VerifyState:
    """What an aggregator keeps of a report between the messages.

    Args:
        out_share: words, its share of what is added up; of no use before the report has passed.
        joint_seed: the seed of the joint randomness that it used; empty without any.
    """

    out_share: Array = field(repr=False)
    joint_seed: bytes = field(repr=False)


class Streams(NamedTuple):
    """The streams of one instance: XofTurboShake128 of seeds, by what each is used for.

    Attributes:
        id: the number of the algorithm, in the draft's table.
        context: the bytes that name the application.
    """

    id: int
    context: bytes

    def of(self, usage: int, seed: bytes, binder: bytes) -> Callable[[int], bytes]:
        """Return the stream of a seed: a function of the number of bytes.

        Args:
            usage: the number of what it is used for.
            seed: the seed.
            binder: what else the stream depends on.
        """
        return partial(turboshake128, self.head(usage, seed) + binder, _DOMAIN)

    def head(self, usage: int, seed: bytes) -> bytes:
        """Return what a stream is of, before its binder."""
        label = self.label(VERSION, usage) + self.context
        return len(label).to_bytes(2, "little") + label + bytes([len(seed)]) + seed

    def label(self, version: int, usage: int) -> bytes:
        """Return what tells the uses of one seed apart.

        Args:
            version: the version of the draft.
            usage: the number of what the stream is used for.
        """
        return bytes([version, _VDAF]) + self.id.to_bytes(4, "big") + usage.to_bytes(2, "big")


@dataclass(frozen=True)
class Prio3:
    """One instance of Prio3.

    Args:
        id: the number of the algorithm, in the draft's table.
        circuit: the statement, over a prime field.
        context: the bytes that name the application.
        shares: the aggregators, 2 .. 255; number 0 is the leader.
        proofs: independent proofs of each report, 1 .. 255.

    >>> prio3 = Prio3.count(context=b"example")
    >>> nonce, key = bytes(16), bytes(32)
    >>> public, parts = prio3.shard(1, nonce, bytes(prio3.random_bytes))
    >>> states, said = zip(
    ...     *(prio3.verify_init(key, i, nonce, public, part) for i, part in enumerate(parts)))
    >>> message = prio3.verifier_shares_to_message(said)
    >>> sums = [prio3.aggregate([prio3.verify_next(state, message)]) for state in states]
    >>> prio3.unshard(sums)
    1
    """

    id: int
    circuit: Measured
    context: bytes = field(kw_only=True)
    shares: int = field(default=2, kw_only=True)
    proofs: int = field(default=1, kw_only=True)

    seed_bytes: ClassVar[int] = SEED_BYTES
    _helper_seeds: ClassVar[int] = 1  # in a helper's share: for its words and for its proofs

    def __post_init__(self) -> None:
        validate.integer(0, 2**32 - 1, id=self.id)
        validate.integer(2, 255, shares=self.shares)
        validate.integer(1, 255, proofs=self.proofs)

    @classmethod
    def count(cls, *, context: bytes, shares: int = 2) -> Prio3:
        """Return Prio3Count: measurements 0 or 1."""
        return cls(1, Count(), context=context, shares=shares)

    @classmethod
    def sum_vec(
        cls, entries: int, maximum: int, chunk: int, *, context: bytes, shares: int = 2
    ) -> Prio3:
        """Return Prio3SumVec: vectors of integers 0 .. maximum."""
        return cls(3, SumVec(entries, maximum, chunk), context=context, shares=shares)

    @classmethod
    def histogram(cls, buckets: int, chunk: int, *, context: bytes, shares: int = 2) -> Prio3:
        """Return Prio3Histogram: buckets 0 .. buckets - 1."""
        return cls(4, Histogram(buckets, chunk), context=context, shares=shares)

    @classmethod
    def sum_vec_with_multiproof(
        cls,
        entries: int,
        maximum: int,
        chunk: int,
        *,
        context: bytes,
        shares: int = 2,
        proofs: int = 3,
    ) -> Prio3:
        """Return Prio3SumVecWithMultiproof: as Prio3SumVec, by several proofs over Field64."""
        circuit = SumVec(entries, maximum, chunk, FIELD64)
        return cls(0xFFFFFFFF, circuit, context=context, shares=shares, proofs=proofs)

    @property
    def random_bytes(self) -> int:
        """The random bytes of a report."""
        return self.shares * SEED_BYTES * (2 if self.circuit.joint_length else 1)

    @property
    def public_bytes(self) -> int:
        """The bytes of a public share."""
        return self._blind_bytes * self.shares

    def share_bytes(self, aggregator: int) -> int:
        """Return the bytes of an input share.

        Args:
            aggregator: the number of the aggregator; 0 is the leader.
        """
        size = self.seed_bytes * self._helper_seeds
        if not aggregator:
            elements = self.circuit.length + self.proofs * self._proof.proof_length
            size = self.circuit.field.word_bytes * elements
        return size + self._blind_bytes

    # ---- the client ----

    def shard(self, measurement: Any, nonce: bytes, random: bytes) -> tuple[bytes, list[bytes]]:
        """Return the public share, and an input share for each aggregator.

        Args:
            measurement: what the circuit encodes.
            nonce: 16 bytes, public, and uniform for each report.
            random: `random_bytes` uniform bytes, used once.
        """
        _exactly(NONCE_BYTES, nonce=nonce)
        _exactly(self.random_bytes, random=random)
        field, words = self.circuit.field, self.circuit.encode(measurement)
        # a seed for each helper, with its blind where there is one; the leader's blind; the proof's
        size, rest = SEED_BYTES + self._blind_bytes, random
        for_helpers = [rest[i * size : (i + 1) * size] for i in range(self.shares - 1)]
        rest = rest[(self.shares - 1) * size :]
        leader_blind, prove_seed = rest[: self._blind_bytes], rest[self._blind_bytes :]
        helpers = [self._opened(j, share) for j, share in enumerate(for_helpers, 1)]
        share = field.reduce(words - sum(opened.words for opened in helpers))
        parts = []
        if self._blind_bytes:
            all_blinds = [(leader_blind, share), *((one.blind, one.words) for one in helpers)]
            parts = [self._joint_part(j, *each, nonce) for j, each in enumerate(all_blinds)]
        length = self._proof.prove_random_length
        prove_random = self._expand(_PROVE, prove_seed, bytes([self.proofs]), length)
        proofs = self._proof.prove(words, prove_random, self._joint(self._joint_seed(parts)))
        proofs = field.reduce(proofs - sum(opened.proofs for opened in helpers))
        leader = field.encode(share) + field.encode(proofs) + leader_blind
        return b"".join(parts), [leader, *for_helpers]

    # ---- the aggregators ----

    def verify_init(
        self, verify_key: bytes, aggregator: int, nonce: bytes, public_share: bytes, share: bytes
    ) -> tuple[VerifyState, bytes]:
        """Return the state, and the verifier share for the others.

        Args:
            verify_key: 32 bytes that the aggregators share and no client knows.
            aggregator: the number of this one; 0 is the leader.
            nonce: 16 bytes, those of the report; each one is verified once.
            public_share: from the client, the same for all aggregators.
            share: the input share, from the client.

        Raises:
            ReportRefusedError: a share is of another length, or has a word outside the field; or
                (in 2^-58 cases at most) the test point would not hide the report.
        """
        _exactly(self.seed_bytes, verify_key=verify_key)
        _exactly(NONCE_BYTES, nonce=nonce)
        aggregator = validate.integer(0, self.shares - 1, aggregator=aggregator)
        size = self.public_bytes
        if len(public_share) != size:
            raise ReportRefusedError(f"a public share has {size} bytes, got {len(public_share)}")
        opened, part, seed = self._opened(aggregator, share), b"", b""
        if size:
            step = self.seed_bytes
            parts = [public_share[i : i + step] for i in range(0, size, step)]
            # what this one got, whatever the client says that it got
            parts[aggregator] = part = self._joint_part(
                aggregator, opened.blind, opened.words, nonce
            )
            seed = self._joint_seed(parts)
        length = self._proof.query_random_length
        query_random = self._expand(_QUERY, verify_key, bytes([self.proofs]) + nonce, length)
        verifier = self._proof.query(
            opened.words,
            self._by_values(opened.proofs),
            query_random,
            self._joint(seed),
            self.shares,
        )
        state = VerifyState(self.circuit.truncate(opened.words), seed)
        return state, self.circuit.field.encode(verifier) + part

    def verifier_shares_to_message(self, shares: Sequence[bytes]) -> bytes:
        """Return the message to all aggregators, from the verifier shares of all, in their order.

        Raises:
            ReportRefusedError: a share cannot be read, or the measurement is not valid.
        """
        if len(shares) != self.shares:
            raise InvalidInputError(f"there must be {self.shares} shares, got {len(shares)}")
        length = self.proofs * self._proof.verifier_length * self.circuit.field.word_bytes
        total = self.circuit.field.zeros((self.proofs, self._proof.verifier_length))
        for share in shares:
            if len(share) != length + self._blind_bytes:
                raise ReportRefusedError(
                    f"a verifier share has {length + self._blind_bytes} bytes, got {len(share)}"
                )
            total = total + self._words(share[:length]).reshape(total.shape)
        if not self._proof.decide(self.circuit.field.reduce(total)).all():
            raise ReportRefusedError("the measurement of this report is not valid")
        return self._joint_seed([share[length:] for share in shares])

    def verify_next(self, state: VerifyState, message: bytes) -> Array:
        """Return the output share of a report that passed.

        Raises:
            ReportRefusedError: the client gave the aggregators other parts than it said.
        """
        if message != state.joint_seed:
            raise ReportRefusedError("the joint randomness is not the one of this report")
        return state.out_share

    def aggregate(self, out_shares: Sequence[Array]) -> bytes:
        """Return an aggregator's share of the sum, from its output shares."""
        field = self.circuit.field
        return field.encode(field.reduce(np.stack([self._nothing, *out_shares]).sum(0)))

    # ---- the collector ----

    def unshard(self, aggregate_shares: Sequence[bytes]) -> Any:
        """Return the result, from the shares of all aggregators."""
        if len(aggregate_shares) != self.shares:
            raise InvalidInputError(
                f"there must be {self.shares} shares of the sum, got {len(aggregate_shares)}"
            )
        field = self.circuit.field
        for share in aggregate_shares:
            _exactly(len(self._nothing) * field.word_bytes, aggregate_share=share)
        total = np.stack([field.decode(share) for share in aggregate_shares]).sum(0)
        return self.circuit.decode(field.reduce(total))

    # ---- shares and randomness ----

    @property
    def _proof(self) -> FullyLinearProof:
        return FullyLinearProof(self.circuit)

    @property
    def _streams(self) -> Streams:
        return Streams(self.id, self.context)

    @property
    def _nothing(self) -> Array:
        return self.circuit.truncate(self.circuit.field.words([0] * self.circuit.length))

    @property
    def _blind_bytes(self) -> int:
        return self.seed_bytes if self.circuit.joint_length else 0

    def _opened(self, aggregator: int, share: bytes) -> _Opened:
        """Return what an input share holds."""
        size, length = self.share_bytes(aggregator), self.circuit.length
        if len(share) != size:
            raise ReportRefusedError(
                f"the share of aggregator {aggregator} has {size} bytes, got {len(share)}"
            )
        whole = size - self._blind_bytes
        seed, blind = share[:whole], share[whole:]
        if not aggregator:
            words = self._words(seed)
            return _Opened(words[:length], words[length:].reshape(self.proofs, -1, 1), blind)
        stream = self._streams.of(_MEASUREMENT_SHARE, seed[: self.seed_bytes], bytes([aggregator]))
        words = self.circuit.field.sample(stream, length)
        binder = bytes([self.proofs, aggregator])
        last = seed[-self.seed_bytes :]
        proofs = self._expand(_PROOF_SHARE, last, binder, self._proof.proof_length)
        return _Opened(words, proofs, blind)

    def _by_values(self, proofs: Array) -> Array:
        """Return proofs, or shares of them, with the values of their polynomials."""
        return proofs

    def _words(self, data: bytes) -> Array:
        try:
            return self.circuit.field.decode(data)
        except InvalidInputError as error:
            raise ReportRefusedError(f"a share cannot be read: {error}") from None

    def _joint_part(self, aggregator: int, blind: bytes, words: Array, nonce: bytes) -> bytes:
        binder = bytes([aggregator]) + nonce + self.circuit.field.encode(words)
        return self._streams.of(_JOINT_PART, blind, binder)(self.seed_bytes)

    def _joint_seed(self, parts: Sequence[bytes]) -> bytes:
        """Return the seed of the joint randomness, or nothing where there is none."""
        if not self._blind_bytes:
            return b""
        nothing = bytes(self.seed_bytes)
        return self._streams.of(_JOINT_SEED, nothing, b"".join(parts))(self.seed_bytes)

    def _joint(self, seed: bytes) -> Array:
        return self._expand(_JOINT, seed, bytes([self.proofs]), self.circuit.joint_length)

    def _expand(self, usage: int, seed: bytes, binder: bytes, length: int) -> Array:
        """Return as many elements for each proof: [proofs, length, 1]."""
        words = self.circuit.field.sample(
            self._streams.of(usage, seed, binder), self.proofs * length
        )
        return words.reshape(self.proofs, length, 1)


class _Opened(NamedTuple):
    words: Array
    proofs: Array
    blind: bytes


def _exactly(length: int, /, **named: bytes) -> None:
    ((name, value),) = named.items()
    if not isinstance(value, bytes) or len(value) != length:
        got = len(value) if isinstance(value, bytes) else type(value).__name__
        raise InvalidInputError(f"{name} must be {length} bytes, got {got}")
