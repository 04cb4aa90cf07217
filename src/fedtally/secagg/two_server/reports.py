"""The reports of two-server summation: parameters, a client's report, the bytes of messages."""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from io import BytesIO
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto import hpke
from fedtally.crypto.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Label,
    Secret,
    SigningKey,
    check_point,
    digest,
    hkdf,
)
from fedtally.crypto.prg import MAX_BITS, MAX_STREAM_BYTES, Lanes, Masking, lane
from fedtally.errors import FedtallyError, InvalidInputError, opt
from fedtally.secagg.packing import lifted, pack, packed_length
from fedtally.secagg.params import (
    MAX_CLIENTS,
    UnsafeParametersError,
    Validity,
    modulus_bits,
    num_checksum_entries,
)
from fedtally.secagg.wire import HEADER, MAGIC, SERVER, UNLISTED, VERSION

# nonces need not be secret; seeds and salts must not be guessed
NONCE_BYTES, ID_BYTES, SEED_BYTES, SALT_BYTES = 16, 16, 32, 32
SEALED_BYTES = SEED_BYTES + hpke.OVERHEAD_BYTES
LEADER, HELPER = SERVER, SERVER - 1
LAST_TIME = 2**64 - 1

I64 = npt.NDArray[np.int64]

_TERMS = struct.Struct("<QBQQIII32s32s32s32s")
HEAD = struct.Struct(f"<{NONCE_BYTES}sI{KEY_BYTES}sQ32s{SIGNATURE_BYTES}s")
BATCH = struct.Struct("<III")


class BatchRefusedError(FedtallyError):
    """Refuse to open a batch, or the sum that came out of it; the message says why."""


class Verdict(Enum):
    """The leader's verdict on a report with a proof.

    VALID: the report counts. INVALID: the vector is not valid, or its proof does not show that it
    is. INCONSISTENT: the client gave the two servers different reports with one id, or one server
    lies to the other.
    """

    VALID = "valid"
    INVALID = "invalid"
    INCONSISTENT = "inconsistent"


class Refused(NamedTuple):
    """A report that is in no sum.

    Args:
        identity: the public key of its client. This is no proof against the client: a server could
            lie.
        verdict: INVALID or INCONSISTENT.
    """

    identity: bytes
    verdict: Verdict


class Kind(IntEnum):
    """The type of a message, as the number in its header; `messages.Kind` has other numbers."""

    LEADER_REPORT = 32
    HELPER_REPORT = 33
    OFFER = 34
    QUERY = 35
    ANSWER = 36
    CHECKS = 37  # only if reports have proofs


@dataclass(frozen=True, kw_only=True)
class TwoServerParameters:
    """The public parameters that clients and both servers agree on, consistent with each other.

    `BatchPolicy` decides whether they are safe.

    Args:
        widths: the number of entries in each row of the vector. The whole vector with its checksum
            entries takes at most 2^30 bytes.
        bits: b, at most 64, enough for sums of n_max entries of `largest_entry` and `noise`.
        n_max: the most reports in a batch, at most 2^20.
        min_batch: the fewest reports in a batch, at least 2 more than corrupt.
        corrupt: C, the most identities of the allow-list that are corrupt.
        leader_key: the leader's public key, 32 bytes; it must differ from the helper's.
        helper_key: the helper's public key, 32 bytes.
        allow_list: the digest of the identities that may report, 32 bytes.
        fingerprint: the plan's fingerprint, 32 bytes.
        largest_entry: B, the largest absolute value of an entry of one client.
        noise: tau, the largest absolute value of the noise of both servers together in an entry,
            from `params.noise_bound`; 0: no noise.
        signed: whether an entry without noise may be negative: True for a sketch, False for a
            histogram. It is not in `context`: without proofs it only decides how a sum is read.

    Raises:
        InvalidInputError: a value is out of bounds, or two do not fit each other.
    """

    widths: tuple[int, ...]
    bits: int
    n_max: int
    min_batch: int
    corrupt: int
    leader_key: bytes
    helper_key: bytes
    allow_list: bytes
    fingerprint: bytes
    largest_entry: int = 1
    noise: int = 0
    signed: bool = True

    def __post_init__(self) -> None:
        def bounded(minimum: int, maximum: int | None, name: str) -> None:
            object.__setattr__(
                self, name, validate.integer(minimum, maximum, **{name: getattr(self, name)})
            )

        bounded(2, MAX_CLIENTS, "n_max")
        bounded(0, self.n_max - 2, "corrupt")
        # At least two honest clients: corrupt clients can subtract their own vectors from a sum,
        # and would see the vector of a single honest client.
        bounded(self.corrupt + 2, self.n_max, "min_batch")
        bounded(1, None, "largest_entry")
        bounded(0, None, "noise")
        if not isinstance(self.signed, bool):  # 2 would make another circuit with the same digest
            raise InvalidInputError(f"signed must be True or False, got {self.signed!r:.80}")
        sums = self.n_max, self.largest_entry, self.noise
        bounded(modulus_bits(*sums, multiple=1, signed=self.signed), MAX_BITS, "bits")
        widths = tuple(validate.integer(1, width=width) for width in self.widths)
        object.__setattr__(self, "widths", widths)
        most = MAX_STREAM_BYTES // lane(self.bits).itemsize - self.checksum_entries
        validate.integer(1, most, length=self.length)
        exactly(KEY_BYTES, allow_list=self.allow_list)
        exactly(KEY_BYTES, fingerprint=self.fingerprint)
        # anybody can open what is sealed to a key of low order
        check_point(self.leader_key)
        check_point(self.helper_key)
        # Whoever has both secret keys can open both parts of a report, and read its vector.
        if self.leader_key == self.helper_key:
            raise InvalidInputError(
                "leader_key and helper_key must be the keys of two servers, got one key for both"
            )

    def read(self, total: I64, modulus: int) -> I64:
        """Return the entries of a sum as integers that vectors and noise can add up to.

        `total` has the entries mod `modulus`, as integers around 0. If vectors have no negative
        entries, an integer below -noise stands for a large positive one.
        """
        return total if self.signed else lifted(total, -self.noise, modulus)

    def bounds(self, count: int) -> tuple[int, int]:
        """Return the least and the largest possible entry of a sum of `count` vectors and noise."""
        most = count * self.largest_entry + self.noise
        return (-most if self.signed else -self.noise), most

    def is_possible(self, entries: I64, count: int) -> bool:
        """Tell whether `count` vectors and noise can add up to entries that `read` returned."""
        least, most = self.bounds(count)
        return least <= int(entries.min()) and int(entries.max()) <= most

    def check_noise(self, noise: object) -> None:
        """Raise an error unless noise is given exactly if these parameters have noise.

        `noise` is the noise or its source; None: there is none. Otherwise a sum without noise would
        be read as a sum with noise, or the other way round.
        """
        if (noise is None) != (self.noise == 0):
            raise InvalidInputError(
                f"noise must {'be given' if noise is None else 'be None'}: the parameters are for"
                f" noise up to {self.noise}"
            )

    def own_key(self, key: hpke.PrivateKey, kind: Kind = Kind.HELPER_REPORT) -> hpke.PrivateKey:
        """Return a server's secret key; raise an error if it is not the key that clients seal to.

        `kind`, the type of the reports that the server gets, says which server it is.
        """
        is_leader = kind is Kind.LEADER_REPORT
        if key.public != (self.leader_key if is_leader else self.helper_key):
            raise InvalidInputError(
                "the key is not the one that clients seal to; use that of"
                f" parameters.{'leader' if is_leader else 'helper'}_key"
            )
        return key

    @property
    def length(self) -> int:
        """V, the number of entries of the vector, without checksum entries."""
        return sum(self.widths)

    @property
    def checksum_entries(self) -> int:
        """The number of checksum entries that are appended to the vector."""
        return num_checksum_entries(self.bits)

    @property
    def packed_bytes(self) -> int:
        """The size in bytes of a packed vector with its checksum entries."""
        return packed_length(self.length + self.checksum_entries, self.bits)

    @property
    def report_bytes(self) -> int:
        """The size in bytes of a report without a proof: both frames together."""
        sizes = message_bytes(self, 0)
        return sizes[Kind.LEADER_REPORT] + sizes[Kind.HELPER_REPORT]

    @property
    def context(self) -> bytes:
        """The digest of all parameters except `signed`, 32 bytes; every message is bound to it."""
        terms = _TERMS.pack(
            self.length,
            self.bits,
            self.largest_entry,
            self.noise,
            self.n_max,
            self.min_batch,
            self.corrupt,
            self.leader_key,
            self.helper_key,
            self.allow_list,
            self.fingerprint,
        )
        # The number of widths comes first, so that different widths never give the same bytes.
        rows = b"".join(number.to_bytes(4, "little") for number in (len(self.widths), *self.widths))
        return digest(Label.TWO_SERVER_CONTEXT, bytes([VERSION]), terms, rows)


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """The demands of one party on the parameters; each client and each server has its own.

    Args:
        min_honest: the fewest honest identities in a sum, at least 2.
        corrupt: the least number of corrupt identities that the parameters must allow for.
        max_clients: the most reports in a batch.
        max_length: the most entries of a vector.
        max_age: the largest age of a report that a server accepts: the seconds since the time that
            its client signed.
        validity: `proofs` demands that every report has a proof; `none` allows reports with and
            without proofs.

    >>> BatchPolicy(min_honest=2, validity="proofs").validity
    <Validity.PROOFS: 'proofs'>
    """

    min_honest: int
    corrupt: int = 0
    max_clients: int = MAX_CLIENTS
    max_length: int = 2**24
    max_age: int = 7 * 86_400
    validity: Validity | str = Validity.NONE

    def __post_init__(self) -> None:
        for minimum, name in (
            (2, "min_honest"),
            (0, "corrupt"),
            (2, "max_clients"),
            (1, "max_length"),
            (0, "max_age"),
        ):
            object.__setattr__(self, name, validate.integer(minimum, **{name: getattr(self, name)}))
        object.__setattr__(self, "validity", Validity.parse(self.validity))

    def check(self, parameters: TwoServerParameters, *, has_proofs: bool) -> None:
        """Raise an error if parameters are weaker, or larger, than this policy allows.

        Args:
            parameters: the parameters of the plan.
            has_proofs: whether its reports have proofs.

        Raises:
            UnsafeParametersError: names the parameter, its value and the bound.
        """
        if self.validity is Validity.PROOFS and not has_proofs:
            raise UnsafeParametersError(
                "validity must be proofs by this policy, got none: without proofs one client can"
                f" spoil or move the whole sum; ask for a plan with {opt.validity('proofs')}"
            )
        for name, value, least in (
            ("corrupt", parameters.corrupt, self.corrupt),
            ("min_batch - corrupt", parameters.min_batch - parameters.corrupt, self.min_honest),
        ):
            if value < least:
                raise UnsafeParametersError(
                    f"{name} must be at least {least} by this policy, got {value}"
                )
        for name, value, most in (
            ("n_max", parameters.n_max, self.max_clients),
            ("length", parameters.length, self.max_length),
        ):
            if value > most:
                raise UnsafeParametersError(
                    f"{name} must be at most {most} by this policy, got {value}"
                )


# ---- the client ----


@dataclass(frozen=True)
class Report:
    """The report of one client: one frame for each server.

    Args:
        leader: the frame for the leader, sealed to its key.
        helper: the frame for the helper. Its seed is sealed, so anybody may forward it.
    """

    leader: bytes = field(repr=False)
    helper: bytes = field(repr=False)


def make_report(
    parameters: TwoServerParameters,
    vector: I64,
    *,
    round: int,
    now: int,
    identity: SigningKey,
    policy: BatchPolicy,
    random: Callable[[int], bytes],
) -> Report:
    """Return the report of a client.

    A client makes one report for each range of rounds that is summed in one batch. The servers
    refuse a second one.

    Args:
        parameters: the parameters of the plan.
        vector: int64 [V], every entry within +-largest_entry.
        round: the round of the campaign, 0 .. 2^32 - 1.
        now: the time that the client signs, Unix seconds.
        identity: the client's signing key; its public key is in the allow-list.
        policy: the demands of this client on the parameters.
        random: a function that returns as many uniform bytes as it is asked for, from a
            cryptographic source.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the vector, the round, the identity or the random bytes are not as above.
    """
    policy.check(parameters, has_proofs=False)  # before anything of their size is allocated
    identity = is_signing_key(identity)
    round = validate.integer(0, 2**32 - 1, round=round)
    now = validate.integer(0, LAST_TIME, now=now)
    entries_within(parameters.length, parameters.largest_entry, vector=vector)
    nonce = exactly(NONCE_BYTES, random_nonce=random(NONCE_BYTES))
    with ExitStack() as secrets:  # wiped at the end, also after an error
        seed = Secret(exactly(SEED_BYTES, random_seed=random(SEED_BYTES)))
        secrets.callback(seed.wipe)
        # The helper knows the mask, and gets the digest of the leader's part. Without the salt it
        # could try likely vectors until the digest fits.
        salt = exactly(SALT_BYTES, random_salt=random(SALT_BYTES))
        # HPKE (RFC 9180) with these fields as `info`: nobody can move the sealed seed to another
        # plan, round or identity. Without the identity a corrupt client could sign a copy of this
        # report as its own, and this client's vector would be in one batch twice.
        bound = Bound(parameters.context, nonce, round, identity.public, now)
        sealed = hpke.seal(parameters.helper_key, seed, Label.TWO_SERVER_SEED, *bound.fields)
        key, checksum_entries = mask_key(seed, bound), with_checksum(parameters, vector, 1)
        secrets.callback(key.wipe)
        masking = Masking(checksum_entries)
        secrets.callback(masking.wipe)
        try:
            masking.add(key)
        except BaseException:
            checksum_entries.fill(0)  # they may not be masked yet
            raise
    share = salt + packed(parameters, checksum_entries)
    # One signature over both parts: no server can combine parts of two reports, and each sees that
    # the other one got the part that the client meant.
    digests = part_digest(Kind.LEADER_REPORT, share), part_digest(Kind.HELPER_REPORT, sealed)
    signature = identity.sign(Label.TWO_SERVER_REPORT, *bound.fields, *digests)
    return frames_of(
        parameters,
        Part(bound, digests[1], signature, share),
        Part(bound, digests[0], signature, sealed),
    )


# ---- what is bound to what ----


class Bound(NamedTuple):
    """The values that every key and signature of a report is bound to.

    Attributes:
        context: the digest of the parameters, and with proofs of the circuit; 32 bytes.
        nonce: 16 random bytes.
        round: the round of the campaign.
        identity: the client's public key, 32 bytes.
        time: the time that the client signs, Unix seconds.
    """

    context: bytes
    nonce: bytes
    round: int
    identity: bytes
    time: int

    @property
    def fields(self) -> tuple[bytes, ...]:
        """The fields as bytes, in the form that is hashed and signed."""
        round, time = self.round.to_bytes(4, "little"), self.time.to_bytes(8, "little")
        return self.context, self.nonce, round, self.identity, time

    @property
    def id(self) -> bytes:
        """The name of the report at both servers, 16 bytes.

        It is a digest of all fields. If a client could choose it, an attacker who sees a report in
        transit could send another report with the same id under another identity, and so keep the
        first report out.
        """
        return digest(Label.TWO_SERVER_ID, *self.fields)[:ID_BYTES]


class Part(NamedTuple):
    """The part of a report for one server; `other` is the digest of the other server's part."""

    bound: Bound
    other: bytes
    signature: bytes
    payload: bytes


def mask_key(seed: Secret, bound: Bound) -> Secret:
    """Return the key of the mask of a report, from its seed."""
    return hkdf(seed, bound.context + bound.id, Label.TWO_SERVER_MASK)


def part_digest(kind: Kind, payload: bytes) -> bytes:
    """Return the digest of one server's part, which the client signs and the other server gets."""
    return digest(Label.TWO_SERVER_PART, bytes([kind]), payload)


def name_of_batch(context: bytes, rounds: range, ids: Collection[bytes]) -> bytes:
    """Return the digest of a batch, 32 bytes, by which an Answer names its batch."""
    return digest(Label.TWO_SERVER_BATCH, context, encode_ids(rounds, ids))


# ---- bytes ----


def frames_of(parameters: TwoServerParameters, leader: Part, helper: Part) -> Report:
    """Return the report made of its two parts; the payload for the leader is sealed to its key."""
    # The leader's share and the seed together give the vector. If TLS ends at a proxy, the operator
    # of the proxy may also run the helper. So only the leader can open its share.
    share = Secret(leader.payload)
    sealed = hpke.seal(parameters.leader_key, share, Label.TWO_SERVER_SHARE, *leader.bound.fields)
    share.wipe()
    return Report(
        _report_frame(Kind.LEADER_REPORT, leader._replace(payload=sealed)),
        _report_frame(Kind.HELPER_REPORT, helper),
    )


def _report_frame(kind: Kind, part: Part) -> bytes:
    _, nonce, round, identity, time = part.bound
    head = HEAD.pack(nonce, round, identity, time, part.other, part.signature)
    return frame_of(kind, part.bound.context, UNLISTED, head + part.payload)


def frame_of(kind: Kind, context: bytes, sender: int, body: bytes) -> bytes:
    """Return the bytes of a message; its session is the context."""
    return HEADER.pack(MAGIC, VERSION, kind, 0, context, sender, len(body)) + body


def body_of(frame: bytes, kind: Kind, context: bytes, sender: int, most: int) -> bytes | None:
    """Return the body of a frame with exactly this header and at most `most` bytes, or None."""
    if not isinstance(frame, bytes) or not HEADER.size <= len(frame) <= HEADER.size + most:
        return None
    size = len(frame) - HEADER.size
    is_own = frame.startswith(HEADER.pack(MAGIC, VERSION, kind, 0, context, sender, size))
    return frame[HEADER.size :] if is_own else None


class Ids(Collection[bytes]):
    """Ids of reports, in strictly ascending order, as the bytes of an Offer or a Query have them.

    In this form a million ids take 16 MB. In a list they would take five times as many bytes, in a
    set eight times.

    Args:
        body: bytes that end with the joined ids.
        start: the offset of the first id in `body`, in bytes.

    >>> ids = Ids.of([16 * b"a", 16 * b"c"])
    >>> len(ids), 16 * b"c" in ids, 16 * b"b" in ids
    (2, True, False)
    """

    def __init__(self, body: bytes, start: int = 0) -> None:
        self._body, self._start = body, start

    @classmethod
    def of(cls, ids: Iterable[bytes]) -> Ids:
        """Return ids as `Ids`; they must be in strictly ascending order already."""
        joined = BytesIO()
        joined.writelines(ids)
        return cls(joined.getvalue())

    def __len__(self) -> int:
        return (len(self._body) - self._start) // ID_BYTES

    def __iter__(self) -> Iterator[bytes]:
        return map(self._at, range(len(self)))

    def __contains__(self, id: object) -> bool:
        if not isinstance(id, bytes):
            return False
        place = bisect_left(range(len(self)), id, key=self._at)
        return place < len(self) and self._at(place) == id

    def _at(self, place: int) -> bytes:
        start = self._start + place * ID_BYTES
        return self._body[start : start + ID_BYTES]


def encode_ids(rounds: range, ids: Collection[bytes]) -> bytes:
    """Return the body of an Offer or a Query: its rounds and its ids, in the given order."""
    body = BytesIO()
    body.write(BATCH.pack(rounds[0], rounds[-1], len(ids)))
    body.writelines(ids)
    return body.getvalue()


def decode_ids(
    context: bytes, n_max: int, frame: bytes, kind: Kind, sender: int
) -> tuple[range, Ids]:
    """Return the rounds and the ids of an Offer or a Query.

    Args:
        context: the digest of the parameters, 32 bytes.
        n_max: the most reports in a batch.
        frame: the frame that came from the other server.
        kind: OFFER or QUERY.
        sender: the number of the server that sends this type.

    Raises:
        BatchRefusedError: the frame is no such message, or the ids are not in strictly ascending
            order.
    """
    body = body_of(frame, kind, context, sender, BATCH.size + ID_BYTES * n_max)
    if body is None or len(body) < BATCH.size:
        raise BatchRefusedError(f"this is no {kind.name.lower()} of these parameters")
    first, last, count = BATCH.unpack_from(body)
    if first > last or len(body) != BATCH.size + ID_BYTES * count:
        raise BatchRefusedError(f"the {kind.name.lower()} is malformed")
    ids = Ids(frame, HEADER.size + BATCH.size)
    # So a batch has only one encoding, and no report counts twice: its vector would stand out.
    if any(one >= other for one, other in itertools.pairwise(ids)):
        raise BatchRefusedError(
            f"the ids of the {kind.name.lower()} must be in strictly ascending order"
        )
    return range(first, last + 1), ids


def with_checksum(parameters: TwoServerParameters, entries: I64, constant: int) -> Lanes:
    """Return entries as lanes, followed by the checksum entries, which are all `constant`.

    Entries are reduced mod 2^w, where w is the number of bits of a lane (see `packing`).
    """
    checksum_entries = np.full(
        parameters.length + parameters.checksum_entries, constant, lane(parameters.bits)
    )
    checksum_entries[: parameters.length] = entries.astype(checksum_entries.dtype)
    return checksum_entries


def packed(parameters: TwoServerParameters, checksum_entries: Lanes) -> bytes:
    """Return a vector with its checksum entries, reduced mod 2^b and packed; this changes it."""
    checksum_entries &= checksum_entries.dtype.type((1 << parameters.bits) - 1)
    return pack(checksum_entries, parameters.bits)


def entries_within(length: int, largest: int, **named: I64) -> I64:
    """Return the named vector; raise an error unless it is int64 [length] within +-largest."""
    ((name, vector),) = named.items()
    if not isinstance(vector, np.ndarray) or vector.dtype != np.int64 or vector.shape != (length,):
        got = (
            f"{vector.dtype} {vector.shape}"
            if isinstance(vector, np.ndarray)
            else type(vector).__name__
        )
        raise InvalidInputError(f"{name} must be int64 [{length}], got {got}")
    if int(vector.max()) > largest or int(vector.min()) < -largest:
        raise InvalidInputError(
            f"every entry of {name} must be within +-{largest}, the bound that the bits are for"
        )
    return vector


def is_signing_key(identity: SigningKey) -> SigningKey:
    """Return a client's signing key; raise an error if it is no `SigningKey`."""
    if not isinstance(identity, SigningKey):
        raise InvalidInputError(
            "identity must be the SigningKey that the client registered, whose public key is in"
            f" the allow-list, got {type(identity).__name__}"
        )
    return identity


def exactly(length: int, **named: bytes) -> bytes:
    """Return the named bytes; raise an error unless there are exactly `length`."""
    ((name, value),) = named.items()
    if not isinstance(value, bytes) or len(value) != length:
        got = len(value) if isinstance(value, bytes) else type(value).__name__
        raise InvalidInputError(f"{name} must be {length} bytes, got {got}")
    return value


def shown(rounds: range) -> str:
    """Return a range of rounds as text: the first and the last one."""
    return f"{rounds[0]} .. {rounds[-1]}"


def message_bytes(parameters: TwoServerParameters, reports: int) -> dict[Kind, int]:
    """Return the size in bytes of each type of message of a batch, headers included.

    The batch has `reports` reports without proofs. If the helper offers more reports than the batch
    has, its Offer is longer.
    """
    ids = BATCH.size + ID_BYTES * reports
    bodies = {
        Kind.LEADER_REPORT: (
            HEAD.size + SALT_BYTES + parameters.packed_bytes + hpke.OVERHEAD_BYTES
        ),
        Kind.HELPER_REPORT: HEAD.size + SEALED_BYTES,
        Kind.OFFER: ids,
        Kind.QUERY: ids,
        Kind.ANSWER: KEY_BYTES + parameters.packed_bytes,
    }
    return {kind: HEADER.size + body for kind, body in bodies.items()}
