"""What of a server depends on whether reports have proofs: its check, one of two.

`NoProofs` takes every report of one client whose form is right. `Proofs` is the check of reports
with proofs (docs/protocol.md): the helper sends a check of each report, and the leader decides.
Both read the parts of a report, and add them up. What they return of a report is theirs alone: the
servers hold it, hand it back, and do not look into it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import KEY_BYTES, Label, Secret
from fedtally.crypto.prg import Lanes, Masking, lane
from fedtally.flp.words import Array
from fedtally.secagg.packing import centred, unpack
from fedtally.secagg.two_server.proofs import (
    Digests,
    HelperPart,
    HelperShare,
    LeaderPart,
    LeaderShare,
    ReportProof,
)
from fedtally.secagg.two_server.reports import (
    SALT_BYTES,
    SEALED_BYTES,
    Kind,
    Part,
    TwoServerParameters,
    entries_within,
    mask_key,
    packed,
    part_digest,
    with_checksum,
)

I64 = npt.NDArray[np.int64]


class Check(ABC):
    """The base of both checks.

    Attributes:
        parameters: the parameters of the plan.
        context: the digest that binds every message.
        proof: the proof of every report; None: reports have none.
    """

    parameters: TwoServerParameters
    context: bytes
    proof: ReportProof | None

    @abstractmethod
    def part_bytes(self, kind: Kind) -> int:
        """Return the bytes of what a server gets of a report, unsealed."""

    @abstractmethod
    def digests(self, kind: Kind, part: Part) -> tuple[bytes, ...]:
        """Return what the client must have signed.

        The digests of the own part are computed, those of the other part are believed.
        """

    @abstractmethod
    def of_leader(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        """Return what the leader holds of a report; raise InvalidInputError if it is unreadable.

        Args:
            part: from the client.
            signed: what the client signed, `digests`.
        """

    @abstractmethod
    def of_helper(self, part: Part, signed: tuple[bytes, ...], key: PrivateKey) -> Any:
        """Return what the helper holds of a report, as `of_leader`; it can be wiped."""

    @abstractmethod
    def nothing(self) -> Array:
        """Return a server's share of the sum of no reports: an array of its own."""

    @abstractmethod
    def add_leader(self, total: Array, held: Sequence[Any]) -> None:
        """Add reports that the leader holds to its share of a sum, in its place."""

    @abstractmethod
    def add_helper(self, total: Array, held: Sequence[Any]) -> None:
        """Add reports that the helper holds to its share of a sum, in its place."""

    @abstractmethod
    def message(self, total: Array, drawn: I64 | None) -> bytes:
        """Return a server's share of a sum with the noise that it drew, encoded; it may change it.

        Raises:
            InvalidInputError: the noise is not what the parameters are for.
        """

    @abstractmethod
    def whole(self, own: bytes, other: bytes) -> Any:
        """Return the sum of both shares; raise InvalidInputError if one is unreadable."""

    @abstractmethod
    def entries(self, total: Any, count: int, *, any_entries: bool) -> I64 | None:
        """Return the entries of a sum, or None if `count` reports cannot have it.

        With `any_entries` only the checksum entries are looked at.
        """


def check_of(terms: TwoServerParameters | ReportProof) -> Check:
    """Return the check of reports: with proofs where the terms are a proof."""
    return Proofs(terms) if isinstance(terms, ReportProof) else NoProofs(terms)


class NoProofs(Check):
    """The check of reports without proofs: only the sum shows whether it counts its reports."""

    proof = None

    def __init__(self, parameters: TwoServerParameters) -> None:
        self.parameters, self.context = parameters, parameters.context

    def part_bytes(self, kind: Kind) -> int:
        """Return the bytes of a masked vector with its salt, or of a sealed seed."""
        leader = SALT_BYTES + self.parameters.packed_bytes
        return leader if kind is Kind.LEADER_REPORT else SEALED_BYTES

    def digests(self, kind: Kind, part: Part) -> tuple[bytes, ...]:
        """Return the digests of the leader's part and of the helper's."""
        own = part_digest(kind, part.payload)
        return (own, part.other) if kind is Kind.LEADER_REPORT else (part.other, own)

    def of_leader(self, part: Part, signed: tuple[bytes, ...]) -> bytes:
        """Return the masked vector, packed."""
        share = part.payload[SALT_BYTES:]
        self._vector(share)  # refused now, not when the batch is opened and lost by it
        return share

    def of_helper(self, part: Part, signed: tuple[bytes, ...], key: PrivateKey) -> Secret:
        """Return the key of the mask."""
        seed = key.open(part.payload, Label.TWO_SERVER_SEED, *part.bound.fields)
        mask = mask_key(seed, part.bound)
        seed.wipe()  # the key of the mask is all that the helper needs
        return mask

    def nothing(self) -> Lanes:
        """Return lanes of 0."""
        parameters = self.parameters
        length = parameters.length + parameters.checksum_entries
        return np.zeros(length, lane(parameters.bits))

    def add_leader(self, total: Lanes, held: Sequence[bytes]) -> None:
        """Add the masked vectors."""
        for share in held:
            total += self._vector(share)

    def add_helper(self, total: Lanes, held: Sequence[Secret]) -> None:
        """Subtract the masks."""
        masking = Masking(total)
        for key in held:
            masking.subtract(key)
        masking.wipe()

    def message(self, total: Lanes, drawn: I64 | None) -> bytes:
        """Return the lanes with the noise, packed."""
        total += self._noise(drawn)
        return packed(self.parameters, total)

    def whole(self, own: bytes, other: bytes) -> Lanes:
        """Return the sum in its lanes."""
        return self._vector(other) + self._vector(own)

    def entries(self, total: Lanes, count: int, *, any_entries: bool) -> I64 | None:
        """Return the entries of a sum, or None if `count` reports cannot have it."""
        bits, length = self.parameters.bits, self.parameters.length
        entries, checksum_entries = np.split(
            self.parameters.read(centred(total, bits), 1 << bits), [length]
        )
        # If a mask is wrong, the checksum entries count the reports with a probability of 2^-64. An
        # entry that no sketches can have shows a false vector, or a wrong answer of the helper.
        possible = any_entries or self.parameters.is_possible(entries, count)
        return entries if possible and (checksum_entries == count).all() else None

    def _vector(self, packed: bytes) -> Lanes:
        parameters = self.parameters
        length = parameters.length + parameters.checksum_entries
        return unpack(packed, length, parameters.bits)

    def _noise(self, drawn: I64 | None) -> Lanes:
        """Return a vector with noise, and no noise in the checksum entries."""
        parameters, length = self.parameters, self.parameters.length
        parameters.check_noise(drawn)
        drawn = np.zeros(length, np.int64) if drawn is None else drawn
        noise = entries_within(length, parameters.noise, noise=drawn)
        return with_checksum(parameters, noise, 0)


class Proofs(Check):
    """The check of reports with proofs: each report is found valid, or costs nobody else."""

    proof: ReportProof

    def __init__(self, proof: ReportProof) -> None:
        self.proof, self.parameters, self.context = proof, proof.parameters, proof.context

    def part_bytes(self, kind: Kind) -> int:
        """Return the bytes of a part with its share, or the digest, of the proof."""
        leader = SALT_BYTES + self.proof.words_bytes + self.proof.proof_bytes
        return leader if kind is Kind.LEADER_REPORT else SEALED_BYTES + KEY_BYTES

    def digests(self, kind: Kind, part: Part) -> Digests:
        """Return the digests of the words, of the sealed seed and of the share of the proof."""
        bound, other, signature, payload = part
        if kind is Kind.LEADER_REPORT:
            return self.proof.digests(LeaderPart(bound, other, signature, *self._split(payload)))
        sealed, proof = payload[:SEALED_BYTES], payload[SEALED_BYTES:]
        return self.proof.digests(HelperPart(bound, other, proof, signature, sealed))

    def of_leader(self, part: Part, signed: tuple[bytes, ...]) -> LeaderShare:
        """Return the words with the leader's share of the proof."""
        _, words, proof = self._split(part.payload)
        return self.proof._read_leader(part.bound, Digests(*signed), words, proof)

    def of_helper(self, part: Part, signed: tuple[bytes, ...], key: PrivateKey) -> HelperShare:
        """Return the keys of both masks."""
        sealed = part.payload[:SEALED_BYTES]
        return self.proof._read_helper(part.bound, Digests(*signed), sealed, key)

    def nothing(self) -> Array:
        """Return words of 0."""
        return self.proof.nothing()

    def add_leader(self, total: Array, held: Sequence[LeaderShare]) -> None:
        """Add the words, mod p."""
        self.proof.accumulate(total, held)

    def add_helper(self, total: Array, held: Sequence[HelperShare]) -> None:
        """Add the masks, mod p."""
        self.proof.accumulate(total, held)

    def message(self, total: Array, drawn: I64 | None) -> bytes:
        """Return the words with the noise, encoded."""
        return self.proof.share_of(total, drawn)

    def whole(self, own: bytes, other: bytes) -> Array:
        """Return counters and checksum words of the sum, mod p."""
        return self.proof._whole(own, other)

    def entries(self, total: Array, count: int, *, any_entries: bool) -> I64 | None:
        """Return the counters of a sum, or None if `count` reports cannot have it."""
        return self.proof._counted(total, count, any_entries=any_entries)

    def _split(self, payload: bytes) -> tuple[bytes, bytes, bytes]:
        """Return salt, words and proof."""
        end = SALT_BYTES + self.proof.words_bytes
        return payload[:SALT_BYTES], payload[SALT_BYTES:end], payload[end:]
