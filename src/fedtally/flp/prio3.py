"""Run Prio3 of draft-irtf-cfrg-vdaf-20 (whose version byte is 18), for any `Measured` circuit.

A client splits a measurement and its proof into shares for two or more servers, called aggregators.
The aggregators check each report together, in one round of messages, and add up the reports that
pass. A collector computes the result from the aggregators' sums. All messages are bytes. Random
bytes are arguments: the module draws none.
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

_VDAF, _DOMAIN = 0, 1  # the draft's algorithm class, and domain byte of XofTurboShake128
_MEASUREMENT_SHARE, _PROOF_SHARE, _JOINT, _PROVE, _QUERY, _JOINT_SEED, _JOINT_PART = range(1, 8)


class Measured(Circuit, Protocol):
    """Add to a `Circuit` how a measurement is encoded, and how a sum of measurements is decoded."""

    def encode(self, measurement: Any) -> Array:
        """Encode a measurement as words: [length]."""

    def truncate(self, words: Array) -> Array:
        """Return the words, or shares of words, that the aggregators add up.

        Args:
            words: words [length]; a measurement that `encode` returned, or a share of it.
        """

    def decode(self, total: Array) -> Any:
        """Return the result, such as a count.

        Args:
            total: words; the sum of what `truncate` returned for each report.
        """


@dataclass(frozen=True, eq=False)
class VerifyState:
    """Keep what an aggregator needs between the two steps of checking a report.

    Args:
        out_share: words; the aggregator's share of what `Measured.truncate` returns. Do not use it
            before `verify_next` has returned it: until then the report may be invalid.
        joint_seed: the seed of the joint randomness that this aggregator used; empty if the circuit
            needs none.
    """

    out_share: Array = field(repr=False)
    joint_seed: bytes = field(repr=False)


class Streams(NamedTuple):
    """Expand seeds to pseudorandom streams with XofTurboShake128, one stream for each usage.

    A usage is one purpose of a seed, with a number in the draft.

    Attributes:
        id: the number of the algorithm, in the draft's table.
        context: the bytes that name the application.
    """

    id: int
    context: bytes

    def of(self, usage: int, seed: bytes, binder: bytes) -> Callable[[int], bytes]:
        """Return the stream of a seed: a function from a length to the stream's first bytes.

        Args:
            usage: the number of the usage, in the draft's table.
            seed: the seed.
            binder: other bytes that the stream depends on.
        """
        return partial(turboshake128, self.head(usage, seed) + binder, _DOMAIN)

    def head(self, usage: int, seed: bytes) -> bytes:
        """Return the first bytes of the hash input of a stream: label, context and seed.

        The bytes are, in this order: the length of label and context together (2 bytes), the label,
        the context, the length of the seed (1 byte), and the seed. The binder, which comes next in
        the hash input, is not in the result.

        Args:
            usage: the number of the usage, in the draft's table.
            seed: the seed.
        """
        label = self.label(VERSION, usage) + self.context
        return len(label).to_bytes(2, "little") + label + bytes([len(seed)]) + seed

    def label(self, version: int, usage: int) -> bytes:
        """Return the label that separates the usages of one seed: 8 bytes.

        Args:
            version: the version byte of the draft.
            usage: the number of the usage, in the draft's table.
        """
        return bytes([version, _VDAF]) + self.id.to_bytes(4, "big") + usage.to_bytes(2, "big")


@dataclass(frozen=True)
class Prio3:
    """Run one instance of Prio3, as a client, an aggregator or the collector.

    A client calls `shard`. Each aggregator calls `verify_init`. One of them joins all verifier
    shares by `verifier_shares_to_message`, and each continues with `verify_next` and `aggregate`.
    The collector calls `unshard`. If pycryptodome is not installed, `shard` and `verify_init` raise
    a MissingExtraError, and so does `verifier_shares_to_message` if there is joint randomness.

    Args:
        id: the number of the algorithm, in the draft's table.
        circuit: the statement, over a prime field.
        context: the bytes that name the application.
        shares: the number of aggregators, 2 .. 255. Aggregator 0 is the leader, and the others are
            helpers.
        proofs: the number of independent proofs of each report, 1 .. 255.

    Raises:
        InvalidInputError: `id`, `shares` or `proofs` is out of bounds.

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
    _helper_seeds: ClassVar[int] = 1  # the seeds in a helper's share, besides its blind

    def __post_init__(self) -> None:
        validate.integer(0, 2**32 - 1, id=self.id)
        validate.integer(2, 255, shares=self.shares)
        validate.integer(1, 255, proofs=self.proofs)

    @classmethod
    def count(cls, *, context: bytes, shares: int = 2) -> Prio3:
        """Make Prio3Count: a measurement is 0 or 1."""
        return cls(1, Count(), context=context, shares=shares)

    @classmethod
    def sum_vec(
        cls, entries: int, maximum: int, chunk: int, *, context: bytes, shares: int = 2
    ) -> Prio3:
        """Make Prio3SumVec: a measurement is a vector of integers 0 .. maximum; see `SumVec`."""
        return cls(3, SumVec(entries, maximum, chunk), context=context, shares=shares)

    @classmethod
    def histogram(cls, buckets: int, chunk: int, *, context: bytes, shares: int = 2) -> Prio3:
        """Make Prio3Histogram: a measurement is a bucket, 0 .. buckets - 1; see `Histogram`."""
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
        """Make Prio3SumVecWithMultiproof: Prio3SumVec over Field64 with several proofs.

        The draft has no number for this algorithm: its `id` is 0xFFFFFFFF, as in the official test
        vectors. `SumVec` describes `entries`, `maximum` and `chunk`.
        """
        circuit = SumVec(entries, maximum, chunk, FIELD64)
        return cls(0xFFFFFFFF, circuit, context=context, shares=shares, proofs=proofs)

    @property
    def random_bytes(self) -> int:
        """The number of random bytes that `shard` needs for a report."""
        return self.shares * SEED_BYTES * (2 if self.circuit.joint_length else 1)

    @property
    def public_bytes(self) -> int:
        """The size in bytes of a public share; 0 if the circuit has no joint randomness."""
        return self._blind_bytes * self.shares

    def share_bytes(self, aggregator: int) -> int:
        """Return the size in bytes of the input share that a client sends to an aggregator.

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
        """Split a measurement and its proof into shares: the client's step.

        Args:
            measurement: a measurement that the circuit can encode.
            nonce: 16 uniform bytes, new for each report; they are public.
            random: `random_bytes` uniform bytes, used once.

        Returns:
            The public share, for all aggregators, and a list of input shares, one for each
            aggregator in order.

        Raises:
            InvalidInputError: the nonce or `random` has another length, or the circuit cannot
                encode the measurement.
        """
        _exactly(NONCE_BYTES, nonce=nonce)
        _exactly(self.random_bytes, random=random)
        field, words = self.circuit.field, self.circuit.encode(measurement)
        # With joint randomness, `random` has in this order: for each helper a seed and a blind; the
        # leader's blind; the seed of the proof. Otherwise it has no blinds. The public share has a
        # hash of each input share. A blind is hashed with the input share, so that the hash does
        # not reveal the input share.
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
        """Begin to check a report: an aggregator's first step.

        Args:
            verify_key: the key that all aggregators have and no client knows; 32 bytes, and 16
                bytes in `Prio3Draft08`.
            aggregator: the number of this aggregator; 0 is the leader.
            nonce: the 16 bytes of the report's nonce; verify each nonce only once.
            public_share: the public share from the client, the same for all aggregators.
            share: the input share from the client for this aggregator.

        Returns:
            The state to keep for `verify_next`, and this aggregator's verifier share, to be sent to
            whoever calls `verifier_shares_to_message`.

        Raises:
            ReportRefusedError: the public share or the input share has another length, the input
                share has a word outside the field, or a proof got a test point that would reveal a
                piece of the measurement. Each proof gets such a point with the probability P / p,
                where P is `FullyLinearProof.nodes`.
            InvalidInputError: the key or the nonce has another length, or `aggregator` is out of
                bounds.
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
            # This aggregator computes its own piece of the public share from the input share that
            # arrived here. The client may have put other bytes in the public share. Then the
            # aggregators compute different seeds, and `verify_next` refuses the report.
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
        """Decide about a report, and return the message that every aggregator then gets.

        Args:
            shares: the verifier shares of the report from all aggregators, in the order of the
                aggregators.

        Returns:
            The message: the seed of the joint randomness, or no bytes if the circuit needs none.

        Raises:
            ReportRefusedError: a share has another length or a word outside the field, or the
                measurement is not valid.
            InvalidInputError: the number of shares is not the number of aggregators.
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
        """Return this aggregator's output share of a valid report: words, for `aggregate`.

        Args:
            state: the state from `verify_init`.
            message: the message from `verifier_shares_to_message`.

        Raises:
            ReportRefusedError: the message is not the seed in `state`. For example, the client's
                public share does not fit its input shares, a verifier share was altered, or the
                message is of another report.
        """
        if message != state.joint_seed:
            raise ReportRefusedError("the joint randomness is not the one of this report")
        return state.out_share

    def aggregate(self, out_shares: Sequence[Array]) -> bytes:
        """Add up output shares of one aggregator, and encode the sum.

        The sum is the aggregator's share of the sum of all measurements.

        Args:
            out_shares: the output shares from `verify_next`; without any, all words of the sum are
                0.
        """
        field = self.circuit.field
        return field.encode(field.reduce(np.stack([self._nothing, *out_shares]).sum(0)))

    # ---- the collector ----

    def unshard(self, aggregate_shares: Sequence[bytes]) -> Any:
        """Compute the result from the aggregators' shares of the sum: the collector's step.

        Args:
            aggregate_shares: what each aggregator's `aggregate` returned.

        Raises:
            InvalidInputError: the number of shares or the length of a share is wrong, or a word is
                outside the field.
        """
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
        """Return the words, proofs and blind of an input share.

        A helper's words and proofs are expanded from seeds.

        Args:
            aggregator: the number of the aggregator that the share is for; 0 is the leader.
            share: the input share.

        Raises:
            ReportRefusedError: the share has another length, or a word outside the field.
        """
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
        """Return proofs, or shares of proofs, with polynomials given by values.

        This method returns the proofs unchanged, because in this draft clients send values. In
        draft 08 clients send coefficients, so `Prio3Draft08` overrides this method.
        """
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
        """Return the seed of the joint randomness, or no bytes if the circuit needs none.

        Args:
            parts: the pieces of the public share, one for each aggregator in order.
        """
        if not self._blind_bytes:
            return b""
        nothing = bytes(self.seed_bytes)
        return self._streams.of(_JOINT_SEED, nothing, b"".join(parts))(self.seed_bytes)

    def _joint(self, seed: bytes) -> Array:
        return self._expand(_JOINT, seed, bytes([self.proofs]), self.circuit.joint_length)

    def _expand(self, usage: int, seed: bytes, binder: bytes, length: int) -> Array:
        """Draw elements from the stream of a seed: [proofs, length, 1]."""
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
