"""The code of a server that depends on whether reports have proofs: `NoProofs` or `Proofs`.

`NoProofs` accepts every report that has the right form. `Proofs` is for reports with proofs
(docs/protocol.md): the helper sends a check of each report, and the leader decides.
Both classes read the parts of a report, and add reports up. The object that they return for a
report is opaque to the servers: they store it and pass it back, and do not look into it.
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
    """The base of `NoProofs` and `Proofs`.

    Attributes:
        parameters: the parameters of the plan.
        context: the digest of the parameters, 32 bytes; every message is bound to it.
        proof: the proof system of the reports; None: reports have no proofs.
    """

    parameters: TwoServerParameters
    context: bytes
    proof: ReportProof | None

    @abstractmethod
    def part_bytes(self, kind: Kind) -> int:
        """Return the size in bytes of the payload of a server's part of a report, unsealed.

        Args:
            kind: LEADER_REPORT or HELPER_REPORT; it says which server.
        """

    @abstractmethod
    def digests(self, kind: Kind, part: Part) -> tuple[bytes, ...]:
        """Return the digests that the client must have signed, 32 bytes each.

        This server computes the digests of its own part. It takes the digests of the other server's
        part from the client: the signature covers them.

        Args:
            kind: LEADER_REPORT or HELPER_REPORT; it says which server.
            part: this server's part of a report.
        """

    @abstractmethod
    def of_leader(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        """Return the object that the leader holds for a report.

        Args:
            part: the leader's part of the report.
            signed: the digests that the client signed, from `digests`.

        Raises:
            InvalidInputError: the part cannot be read.
        """

    @abstractmethod
    def of_helper(self, part: Part, signed: tuple[bytes, ...], key: PrivateKey) -> Any:
        """Return the object that the helper holds for a report; it has a method `wipe`.

        Args:
            part: the helper's part of the report.
            signed: the digests that the client signed, from `digests`.
            key: the helper's secret key, which opens the sealed seed.

        Raises:
            InvalidInputError: the part cannot be read.
        """

    @abstractmethod
    def nothing(self) -> Array:
        """Return a server's share of the sum of no reports: a new array of zeros."""

    @abstractmethod
    def add_leader(self, total: Array, held: Sequence[Any]) -> None:
        """Add reports that the leader holds to `total`, its share of a sum, in place."""

    @abstractmethod
    def add_helper(self, total: Array, held: Sequence[Any]) -> None:
        """Add reports that the helper holds to `total`, its share of a sum, in place."""

    @abstractmethod
    def message(self, total: Array, drawn: I64 | None) -> bytes:
        """Return a server's share of a sum, with its noise added, encoded.

        Args:
            total: the share of the sum; this call may change it.
            drawn: int64 [V]; the noise that this server drew; None if the parameters have none.

        Raises:
            InvalidInputError: the noise does not fit the parameters.
        """

    @abstractmethod
    def whole(self, own: bytes, other: bytes) -> Any:
        """Return the sum of both servers' shares, which are encoded as by `message`.

        Raises:
            InvalidInputError: a share cannot be read.
        """

    @abstractmethod
    def entries(self, total: Any, count: int, *, any_entries: bool) -> I64 | None:
        """Return the entries of a sum, int64 [V], or None if `count` reports cannot have this sum.

        Args:
            total: the sum, from `whole`.
            count: the number of reports in it.
            any_entries: whether only the checksum entries are checked.
        """


def check_of(terms: TwoServerParameters | ReportProof) -> Check:
    """Return `Proofs` if the terms are a proof, else `NoProofs`."""
    return Proofs(terms) if isinstance(terms, ReportProof) else NoProofs(terms)


class NoProofs(Check):
    """The check of reports without proofs: a wrong report can be noticed only in the sum."""

    proof = None

    def __init__(self, parameters: TwoServerParameters) -> None:
        self.parameters, self.context = parameters, parameters.context

    def part_bytes(self, kind: Kind) -> int:
        """Return the size in bytes of a salt and masked vector, or of a sealed seed."""
        leader = SALT_BYTES + self.parameters.packed_bytes
        return leader if kind is Kind.LEADER_REPORT else SEALED_BYTES

    def digests(self, kind: Kind, part: Part) -> tuple[bytes, ...]:
        """Return the digest of the leader's part and the digest of the helper's part."""
        own = part_digest(kind, part.payload)
        return (own, part.other) if kind is Kind.LEADER_REPORT else (part.other, own)

    def of_leader(self, part: Part, signed: tuple[bytes, ...]) -> bytes:
        """Return the masked vector, packed."""
        share = part.payload[SALT_BYTES:]
        self._vector(share)  # a bad vector is refused now; later it would spoil the whole batch
        return share

    def of_helper(self, part: Part, signed: tuple[bytes, ...], key: PrivateKey) -> Secret:
        """Return the key of the mask."""
        seed = key.open(part.payload, Label.TWO_SERVER_SEED, *part.bound.fields)
        mask = mask_key(seed, part.bound)
        seed.wipe()  # the key of the mask is all that the helper needs
        return mask

    def nothing(self) -> Lanes:
        """Return a vector of 0: lane(bits) [V + checksum entries]."""
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
        """Return the vector with the noise added, packed."""
        total += self._noise(drawn)
        return packed(self.parameters, total)

    def whole(self, own: bytes, other: bytes) -> Lanes:
        """Return the sum: lane(bits) [V + checksum entries]."""
        return self._vector(other) + self._vector(own)

    def entries(self, total: Lanes, count: int, *, any_entries: bool) -> I64 | None:
        """Return the entries of a sum, or None if `count` reports cannot have it."""
        bits, length = self.parameters.bits, self.parameters.length
        entries, checksum_entries = np.split(
            self.parameters.read(centred(total, bits), 1 << bits), [length]
        )
        # If a mask is wrong, the checksum entries equal the number of reports with a probability of
        # 2^-64. An entry that no sum of sketches can have comes from a false vector, or from a
        # wrong answer of the helper.
        possible = any_entries or self.parameters.is_possible(entries, count)
        return entries if possible and (checksum_entries == count).all() else None

    def _vector(self, packed: bytes) -> Lanes:
        parameters = self.parameters
        length = parameters.length + parameters.checksum_entries
        return unpack(packed, length, parameters.bits)

    def _noise(self, drawn: I64 | None) -> Lanes:
        """Return the noise as a vector of lanes; its checksum entries are 0."""
        parameters, length = self.parameters, self.parameters.length
        parameters.check_noise(drawn)
        drawn = np.zeros(length, np.int64) if drawn is None else drawn
        noise = entries_within(length, parameters.noise, noise=drawn)
        return with_checksum(parameters, noise, 0)


class Proofs(Check):
    """The check of reports with proofs: a report that is not valid is left out of the batch."""

    proof: ReportProof

    def __init__(self, proof: ReportProof) -> None:
        self.proof, self.parameters, self.context = proof, proof.parameters, proof.context

    def part_bytes(self, kind: Kind) -> int:
        """Return the size in bytes of a payload.

        The leader's payload has a salt, words and its share of the proof. The helper's payload has
        the sealed seed and the digest of the leader's share of the proof.
        """
        leader = SALT_BYTES + self.proof.words_bytes + self.proof.proof_bytes
        return leader if kind is Kind.LEADER_REPORT else SEALED_BYTES + KEY_BYTES

    def digests(self, kind: Kind, part: Part) -> Digests:
        """Return the digests of the words, of the sealed seed and of the leader's proof share."""
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
        """Return the keys of the masks of the words and of the proof."""
        sealed = part.payload[:SEALED_BYTES]
        return self.proof._read_helper(part.bound, Digests(*signed), sealed, key)

    def nothing(self) -> Array:
        """Return words of 0: counters and checksum words."""
        return self.proof.nothing()

    def add_leader(self, total: Array, held: Sequence[LeaderShare]) -> None:
        """Add the leader's shares of the words, mod p."""
        self.proof.accumulate(total, held)

    def add_helper(self, total: Array, held: Sequence[HelperShare]) -> None:
        """Add the helper's shares of the words, which are masks, mod p."""
        self.proof.accumulate(total, held)

    def message(self, total: Array, drawn: I64 | None) -> bytes:
        """Return the words with the noise added, encoded."""
        return self.proof.share_of(total, drawn)

    def whole(self, own: bytes, other: bytes) -> Array:
        """Return the counters and the checksum words of the sum, mod p."""
        return self.proof._whole(own, other)

    def entries(self, total: Array, count: int, *, any_entries: bool) -> I64 | None:
        """Return the counters of a sum, or None if `count` reports cannot have this sum."""
        return self.proof._counted(total, count, any_entries=any_entries)

    def _split(self, payload: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the salt, the words and the proof share in the leader's payload."""
        end = SALT_BYTES + self.proof.words_bytes
        return payload[:SALT_BYTES], payload[SALT_BYTES:end], payload[end:]
