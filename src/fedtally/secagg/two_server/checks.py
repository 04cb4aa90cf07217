"""Do the steps that differ between reports without proofs (`NoProofs`) and with (`Proofs`).

`NoProofs` accepts every report that has the right form. With `Proofs` each report has a proof
(docs/protocol.md): the helper sends a check of the proof, and the leader decides. Both classes read
the parts of a report, and add reports up. For each report they return an object, the *held* report.
The servers store the held report and pass it back. They use only its `wipe` (at the helper) and,
with proofs, its `bound` (at the leader).
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
    """Read reports and add them up, for a leader or a helper: the base of `NoProofs` and `Proofs`.

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
            kind: LEADER_REPORT for the leader's part, HELPER_REPORT for the helper's.
        """

    @abstractmethod
    def digests(self, kind: Kind, part: Part) -> tuple[bytes, ...]:
        """Return the digests that the client must have signed, 32 bytes each.

        This server computes the digests of its own part. It takes the digests of the other server's
        part from the client: the signature covers them. Without proofs there are two digests, of
        the leader's part and of the helper's part; with proofs they are `proofs.Digests`.

        Args:
            kind: LEADER_REPORT if this server is the leader, HELPER_REPORT if it is the helper.
            part: this server's part of a report, unsealed.
        """

    @abstractmethod
    def of_leader(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        """Return the held report of the leader: what the leader needs to add the report up later.

        Args:
            part: the leader's part of the report.
            signed: the digests that the client signed, from `digests`.

        Raises:
            InvalidInputError: the part cannot be read.
        """

    @abstractmethod
    def of_helper(self, part: Part, signed: tuple[bytes, ...], key: PrivateKey) -> Any:
        """Return the held report of the helper, an object with a method `wipe`.

        It is what the helper needs to add the report up later.

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
        """Add held reports of the leader to `total`, the leader's share of a sum, in place."""

    @abstractmethod
    def add_helper(self, total: Array, held: Sequence[Any]) -> None:
        """Add held reports of the helper to `total`, the helper's share of a sum, in place."""

    @abstractmethod
    def message(self, total: Array, drawn: I64 | None) -> bytes:
        """Add a server's noise to its share of a sum, and encode the result.

        Args:
            total: the share of the sum; this call may change it.
            drawn: int64 [V]; the noise that this server drew; None if the parameters have none.

        Raises:
            InvalidInputError: the noise does not fit the parameters.
        """

    @abstractmethod
    def whole(self, own: bytes, other: bytes) -> Any:
        """Add up the two servers' shares of a sum.

        Args:
            own: the leader's share, from `message`.
            other: the helper's share, from `message`.

        Returns:
            The sum, for `entries`.

        Raises:
            InvalidInputError: a share cannot be read.
        """

    @abstractmethod
    def entries(self, total: Any, count: int, *, any_entries: bool) -> I64 | None:
        """Return the entries of a sum, int64 [V], or None if `count` reports cannot have this sum.

        Args:
            total: the sum, from `whole`.
            count: the number of reports in it.
            any_entries: whether all entries are accepted; then only the checksum entries are
                checked.
        """


def check_of(terms: TwoServerParameters | ReportProof) -> Check:
    """Make the `Check` for the terms: `Proofs` if they are a `ReportProof`, else `NoProofs`."""
    return Proofs(terms) if isinstance(terms, ReportProof) else NoProofs(terms)


class NoProofs(Check):
    """Read and add up reports without proofs: a wrong report can be noticed only in the sum."""

    proof = None

    def __init__(self, parameters: TwoServerParameters) -> None:
        self.parameters, self.context = parameters, parameters.context

    def part_bytes(self, kind: Kind) -> int:
        """Return the size in bytes of a payload.

        The leader's payload is a salt and the masked vector. The helper's payload is the sealed
        seed.
        """
        leader = SALT_BYTES + self.parameters.packed_bytes
        return leader if kind is Kind.LEADER_REPORT else SEALED_BYTES

    def digests(self, kind: Kind, part: Part) -> tuple[bytes, ...]:
        """Return the digest of the leader's part, then the digest of the helper's part."""
        own = part_digest(kind, part.payload)
        return (own, part.other) if kind is Kind.LEADER_REPORT else (part.other, own)

    def of_leader(self, part: Part, signed: tuple[bytes, ...]) -> bytes:
        """Return the masked vector, packed."""
        share = part.payload[SALT_BYTES:]
        self._vector(share)  # refuses a bad vector: later it would stop the whole batch
        return share

    def of_helper(self, part: Part, signed: tuple[bytes, ...], key: PrivateKey) -> Secret:
        """Return the key of the mask."""
        seed = key.open(part.payload, Label.TWO_SERVER_SEED, *part.bound.fields)
        mask = mask_key(seed, part.bound)
        seed.wipe()  # the key of the mask is all that the helper needs
        return mask

    def nothing(self) -> Lanes:
        """Return a new vector of zeros, to which reports are added.

        Its length is `parameters.length` plus `parameters.checksum_entries`. Its dtype is
        `lane(parameters.bits)`, an unsigned integer of 16, 32 or 64 bits.
        """
        parameters = self.parameters
        length = parameters.length + parameters.checksum_entries
        return np.zeros(length, lane(parameters.bits))

    def add_leader(self, total: Lanes, held: Sequence[bytes]) -> None:
        """Add masked vectors to `total`, in place."""
        for share in held:
            total += self._vector(share)

    def add_helper(self, total: Lanes, held: Sequence[Secret]) -> None:
        """Subtract the masks from `total`, in place."""
        masking = Masking(total)
        for key in held:
            masking.subtract(key)
        masking.wipe()

    def message(self, total: Lanes, drawn: I64 | None) -> bytes:
        """Add the noise to the vector, reduce it mod 2^bits and pack it; this changes `total`."""
        total += self._noise(drawn)
        return packed(self.parameters, total)

    def whole(self, own: bytes, other: bytes) -> Lanes:
        """Return the sum: a vector with the length and dtype of `nothing`.

        Its entries are not reduced mod 2^bits.
        """
        return self._vector(other) + self._vector(own)

    def entries(self, total: Lanes, count: int, *, any_entries: bool) -> I64 | None:
        """Return a sum's entries, int64 [V], or None if `count` reports cannot have this sum."""
        bits, length = self.parameters.bits, self.parameters.length
        entries, checksum_entries = np.split(
            self.parameters.read(centred(total, bits), 1 << bits), [length]
        )
        # If a mask is wrong, the checksum entries are all the number of reports with a probability
        # of at most 2^-64. An entry that no sum can have comes from a false vector, from a wrong
        # answer of the helper or, rarely, from noise of both servers beyond the bound.
        possible = any_entries or self.parameters.is_possible(entries, count)
        return entries if possible and (checksum_entries == count).all() else None

    def _vector(self, packed: bytes) -> Lanes:
        parameters = self.parameters
        length = parameters.length + parameters.checksum_entries
        return unpack(packed, length, parameters.bits)

    def _noise(self, drawn: I64 | None) -> Lanes:
        """Return the noise as a vector of lanes, whose checksum entries are 0.

        If `drawn` is None, the vector is all zeros.

        Raises:
            InvalidInputError: the noise does not fit the parameters.
        """
        parameters, length = self.parameters, self.parameters.length
        parameters.check_noise(drawn)
        drawn = np.zeros(length, np.int64) if drawn is None else drawn
        noise = entries_within(length, parameters.noise, noise=drawn)
        return with_checksum(parameters, noise, 0)


class Proofs(Check):
    """Read and add up reports with proofs: a report that is not valid is left out of the batch."""

    proof: ReportProof

    def __init__(self, proof: ReportProof) -> None:
        self.proof, self.parameters, self.context = proof, proof.parameters, proof.context

    def part_bytes(self, kind: Kind) -> int:
        """Return the size in bytes of a payload.

        The leader's payload is the salt, the leader's share of the words, and the leader's share of
        the proof. The helper's payload is the sealed seed and a digest of the leader's share of the
        proof.
        """
        leader = SALT_BYTES + self.proof.words_bytes + self.proof.proof_bytes
        return leader if kind is Kind.LEADER_REPORT else SEALED_BYTES + KEY_BYTES

    def digests(self, kind: Kind, part: Part) -> Digests:
        """Return the digests of the leader's words, the sealed seed and the leader's proof."""
        bound, other, signature, payload = part
        if kind is Kind.LEADER_REPORT:
            return self.proof.digests(LeaderPart(bound, other, signature, *self._split(payload)))
        sealed, proof = payload[:SEALED_BYTES], payload[SEALED_BYTES:]
        return self.proof.digests(HelperPart(bound, other, proof, signature, sealed))

    def of_leader(self, part: Part, signed: tuple[bytes, ...]) -> LeaderShare:
        """Return the leader's share of the words (the encoded vector) and of the proof."""
        _, words, proof = self._split(part.payload)
        return self.proof._read_leader(part.bound, Digests(*signed), words, proof)

    def of_helper(self, part: Part, signed: tuple[bytes, ...], key: PrivateKey) -> HelperShare:
        """Return the keys of the helper's share of the words (encoded vector) and of the proof."""
        sealed = part.payload[:SEALED_BYTES]
        return self.proof._read_helper(part.bound, Digests(*signed), sealed, key)

    def nothing(self) -> Array:
        """Return new words that are all 0, one for each counter and each checksum word."""
        return self.proof.nothing()

    def add_leader(self, total: Array, held: Sequence[LeaderShare]) -> None:
        """Add the leader's shares of the words to `total`, mod p, in place."""
        self.proof.accumulate(total, held)

    def add_helper(self, total: Array, held: Sequence[HelperShare]) -> None:
        """Add the helper's shares of the words to `total`, mod p, in place; they are masks."""
        self.proof.accumulate(total, held)

    def message(self, total: Array, drawn: I64 | None) -> bytes:
        """Add the noise to the words and encode them; this changes `total`."""
        return self.proof.share_of(total, drawn)

    def whole(self, own: bytes, other: bytes) -> Array:
        """Return the counters and the checksum words of the sum, mod p."""
        return self.proof._whole(own, other)

    def entries(self, total: Array, count: int, *, any_entries: bool) -> I64 | None:
        """Return a sum's counters, int64 [V], or None if `count` reports cannot have this sum."""
        return self.proof._counted(total, count, any_entries=any_entries)

    def _split(self, payload: bytes) -> tuple[bytes, bytes, bytes]:
        """Split the leader's payload into the salt, the words and the proof share."""
        end = SALT_BYTES + self.proof.words_bytes
        return payload[:SALT_BYTES], payload[SALT_BYTES:end], payload[end:]
