"""Define the reports of two-server summation: parameters, a client's report, bytes of messages."""

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

# A nonce may be known. Nobody must be able to guess a seed or a salt.
NONCE_BYTES, ID_BYTES, SEED_BYTES, SALT_BYTES = 16, 16, 32, 32
SEALED_BYTES = SEED_BYTES + hpke.OVERHEAD_BYTES
LEADER, HELPER = SERVER, SERVER - 1
LAST_TIME = 2**64 - 1

I64 = npt.NDArray[np.int64]

_TERMS = struct.Struct("<QBQQIII32s32s32s32s")
HEAD = struct.Struct(f"<{NONCE_BYTES}sI{KEY_BYTES}sQ32s{SIGNATURE_BYTES}s")
BATCH = struct.Struct("<III")


class BatchRefusedError(FedtallyError):
    """Report that a batch, or the sum that came out of it, is refused; the message says why."""


class Verdict(Enum):
    """Name the leader's verdict on a report with a proof.

    VALID: the report may be in the batch. INVALID: the vector is not valid, or its proof does not
    show that it is, or one server lies. INCONSISTENT: the client gave the two servers different
    reports with one id, or one server lies to the other.
    """

    VALID = "valid"
    INVALID = "invalid"
    INCONSISTENT = "inconsistent"


class Refused(NamedTuple):
    """Name a report that is in no sum, because the leader's verdict on it was not VALID.

    Args:
        identity: the public key of its client. The verdict is no proof against the client: a server
            could lie.
        verdict: INVALID or INCONSISTENT.
    """

    identity: bytes
    verdict: Verdict


class Kind(IntEnum):
    """Number the types of messages, as in their headers; `messages.Kind` has other numbers."""

    LEADER_REPORT = 32
    HELPER_REPORT = 33
    OFFER = 34
    QUERY = 35
    ANSWER = 36
    CHECKS = 37  # only if reports have proofs


@dataclass(frozen=True, kw_only=True)
class TwoServerParameters:
    """Hold the public parameters that clients and both servers agree on; they must fit each other.

    `BatchPolicy` decides whether they are safe.

    Args:
        widths: the number of entries in each row of the vector. The whole vector with its checksum
            entries takes at most 2^30 bytes.
        bits: b, the number of bits of an entry: at most 64, and enough for sums of n_max entries of
            `largest_entry` and `noise`.
        n_max: the most reports in a batch, 2 .. 2^20.
        min_batch: the fewest reports in a batch, at least corrupt + 2.
        corrupt: C, the most clients of the allow-list that are corrupt.
        leader_key: the leader's public X25519 key, 32 bytes; it must differ from the helper's.
        helper_key: the helper's public X25519 key, 32 bytes.
        allow_list: the digest of the list of clients that may report, 32 bytes.
        fingerprint: the plan's fingerprint, 32 bytes.
        largest_entry: B, the largest absolute value of an entry of one client.
        noise: tau, the bound on the absolute noise of both servers together in an entry, from
            `params.noise_bound`; each server draws noise within it. The noise of both together
            may very rarely exceed tau; then the sum may be refused or wrap around. 0: no noise.
        signed: whether an entry without noise may be negative: True for a sketch, False for a
            histogram. It is not in `context`: without proofs it only decides how many bits are
            enough, how a sum is read, and which sums are possible.

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
        # A sum needs at least two honest clients. Corrupt clients can subtract their own vectors
        # from the sum: if only one client were honest, its vector would be left.
        bounded(self.corrupt + 2, self.n_max, "min_batch")
        bounded(1, None, "largest_entry")
        bounded(0, None, "noise")
        if not isinstance(self.signed, bool):  # `modulus_bits` computes with it: 2 would add bits
            raise InvalidInputError(f"signed must be True or False, got {self.signed!r:.80}")
        sums = self.n_max, self.largest_entry, self.noise
        bounded(modulus_bits(*sums, multiple=1, signed=self.signed), MAX_BITS, "bits")
        widths = tuple(validate.integer(1, width=width) for width in self.widths)
        object.__setattr__(self, "widths", widths)
        most = MAX_STREAM_BYTES // lane(self.bits).itemsize - self.checksum_entries
        validate.integer(1, most, length=self.length)
        exactly(KEY_BYTES, allow_list=self.allow_list)
        exactly(KEY_BYTES, fingerprint=self.fingerprint)
        # Anybody can open what is sealed to a key of low order.
        check_point(self.leader_key)
        check_point(self.helper_key)
        # Whoever has both secret keys can open both parts of a report, and read its vector.
        if self.leader_key == self.helper_key:
            raise InvalidInputError(
                "leader_key and helper_key must be the keys of two servers, got one key for both"
            )

    def read(self, total: I64, modulus: int) -> I64:
        """Read the entries of a sum, integers mod `modulus`, as the integers that they stand for.

        If no entry of a vector is negative (`signed` is False), an integer below -noise stands for
        a large positive integer: the modulus is added. Otherwise the entries are not changed.

        Args:
            total: int64; the entries mod `modulus`, as integers from -modulus / 2 to modulus / 2.
            modulus: the modulus of the sum.
        """
        return total if self.signed else lifted(total, -self.noise, modulus)

    def bounds(self, count: int) -> tuple[int, int]:
        """Return the least and the largest possible entry of a sum of `count` vectors and noise."""
        most = count * self.largest_entry + self.noise
        return (-most if self.signed else -self.noise), most

    def is_possible(self, entries: I64, count: int) -> bool:
        """Return whether `count` vectors and noise can add up to these entries.

        Args:
            entries: int64; the entries that `read` returned.
            count: the number of vectors.
        """
        least, most = self.bounds(count)
        return least <= int(entries.min()) and int(entries.max()) <= most

    def check_noise(self, noise: object) -> None:
        """Raise an error if noise is missing, or is given although the parameters have none.

        The parameters have no noise if their `noise` is 0. Without this check a sum without noise
        could be published as a sum with noise, or the other way round.

        Args:
            noise: the noise, or the function that draws it; None: there is no noise.

        Raises:
            InvalidInputError: the noise is missing, or the parameters have none.
        """
        if (noise is None) != (self.noise == 0):
            raise InvalidInputError(
                f"noise must {'be given' if noise is None else 'be None'}: the parameters are for"
                f" noise up to {self.noise}"
            )

    def own_key(self, key: hpke.PrivateKey, kind: Kind = Kind.HELPER_REPORT) -> hpke.PrivateKey:
        """Return a server's secret key unchanged, if clients seal to its public key.

        Args:
            key: the secret key.
            kind: the type of the reports that the server gets: LEADER_REPORT for the leader,
                HELPER_REPORT for the helper.

        Raises:
            InvalidInputError: the key is not the one that clients seal to.
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
        """The size in bytes of a packed vector, with its checksum entries."""
        return packed_length(self.length + self.checksum_entries, self.bits)

    @property
    def report_bytes(self) -> int:
        """The size in bytes of a report without a proof, both frames together."""
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
        # `terms` has a fixed length, and the widths come last. So two different lists of these
        # values never have the same bytes. The format also has the number of widths.
        rows = b"".join(number.to_bytes(4, "little") for number in (len(self.widths), *self.widths))
        return digest(Label.TWO_SERVER_CONTEXT, bytes([VERSION]), terms, rows)


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """State what one party demands of the parameters; every client and server has its own policy.

    Args:
        min_honest: the fewest honest clients in a sum, min_batch - corrupt; at least 2.
        corrupt: the least number of corrupt clients that the parameters must allow for.
        max_clients: the most reports in a batch.
        max_length: the most entries of a vector.
        max_age: the largest age of a report that a server accepts: the seconds since the time that
            its client signed. A report that the server accepted before may come again at any age.
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
            has_proofs: whether the reports of the plan have proofs.

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
    """Hold the report of one client: one frame for each server.

    Args:
        leader: the frame for the leader; its share of the vector is sealed to the leader's key.
        helper: the frame for the helper; its seed is sealed to the helper's key.
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
    """Make a client's report without a proof.

    A client makes one report for each range of rounds that is summed in one batch. The servers
    refuse a second one. The client sends the helper's frame first: a report that only the leader
    holds is in no batch.

    Args:
        parameters: the parameters of the plan.
        vector: int64 [V], every entry within +-largest_entry, and none negative unless the
            parameters are `signed`.
        round: the round of the campaign, 0 .. 2^32 - 1.
        now: the time that the client signs, Unix seconds.
        identity: the client's signing key. Its public key must be in the allow-list; this function
            does not check that.
        policy: what this client demands of the parameters.
        random: a function that returns a given number of uniform bytes, from a cryptographic
            source.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the vector, the round, the time, the identity or the random bytes are not
            as described.
    """
    policy.check(parameters, has_proofs=False)  # first: large parameters would exhaust the memory
    identity = is_signing_key(identity)
    round = validate.integer(0, 2**32 - 1, round=round)
    now = validate.integer(0, LAST_TIME, now=now)
    entries_within(parameters.length, parameters.largest_entry, vector=vector)
    # A negative counter of a sum of histograms would be read as a large one, and the batch be lost.
    if not parameters.signed and int(vector.min()) < 0:
        raise InvalidInputError(
            f"every entry of vector must be 0 or above in a histogram, got {int(vector.min())};"
            " encode the items as the plan says"
        )
    nonce = exactly(NONCE_BYTES, random_nonce=random(NONCE_BYTES))
    with ExitStack() as secrets:  # wiped at the end, also after an error
        seed = Secret(exactly(SEED_BYTES, random_seed=random(SEED_BYTES)))
        secrets.callback(seed.wipe)
        # The helper knows the mask, and gets the digest of the leader's part. Without the salt it
        # could try likely vectors until the digest fits.
        salt = exactly(SALT_BYTES, random_salt=random(SALT_BYTES))
        # HPKE (RFC 9180) with these fields as `info`: nobody can move the sealed seed to another
        # plan, round or identity. If the identity were not in `info`, a corrupt client could sign
        # a copy of this report as its own, and this client's vector would be in one batch twice.
        bound = Bound(parameters.context, nonce, round, identity.public, now)
        sealed = hpke.seal(parameters.helper_key, seed, Label.TWO_SERVER_SEED, *bound.fields)
        key, checksum_entries = mask_key(seed, bound), with_checksum(parameters, vector, 1)
        secrets.callback(key.wipe)
        masking = Masking(checksum_entries)
        secrets.callback(masking.wipe)
        try:
            masking.add(key)
        except BaseException:
            checksum_entries.fill(0)  # the vector may not be masked yet
            raise
    share = salt + packed(parameters, checksum_entries)
    # The signature covers the digests of both parts. So nobody but the client can make another part
    # of this report.
    digests = part_digest(Kind.LEADER_REPORT, share), part_digest(Kind.HELPER_REPORT, sealed)
    signature = identity.sign(Label.TWO_SERVER_REPORT, *bound.fields, *digests)
    return frames_of(
        parameters,
        Part(bound, digests[1], signature, share),
        Part(bound, digests[0], signature, sealed),
    )


# ---- what is bound to what ----


class Bound(NamedTuple):
    """Hold the values that every key and signature of a report is bound to.

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
        """The values as bytes, in the form that is hashed and signed."""
        round, time = self.round.to_bytes(4, "little"), self.time.to_bytes(8, "little")
        return self.context, self.nonce, round, self.identity, time

    @property
    def id(self) -> bytes:
        """The name of the report at both servers, 16 bytes.

        It is a digest of the five values. If a client could choose its report's id, an attacker who
        sees a report in transit could send another report with the same id under another identity,
        and so keep the first report out.
        """
        return digest(Label.TWO_SERVER_ID, *self.fields)[:ID_BYTES]


class Part(NamedTuple):
    """Hold the part of a report for one server.

    Attributes:
        bound: the values that the report is bound to.
        other: the digest of the other server's part, 32 bytes. With proofs it covers less of that
            part: for the helper the leader's words, for the leader the sealed seed (see
            `proofs.Digests`).
        signature: the client's signature, 64 bytes.
        payload: the content for this server. The leader's payload is sealed to the leader's key in
            a frame, and must be unsealed before it is read.
    """

    bound: Bound
    other: bytes
    signature: bytes
    payload: bytes


def mask_key(seed: Secret, bound: Bound) -> Secret:
    """Derive the key of the mask of a report from the report's seed: 32 bytes."""
    return hkdf(seed, bound.context + bound.id, Label.TWO_SERVER_MASK)


def part_digest(kind: Kind, payload: bytes) -> bytes:
    """Compute the digest of one server's part of a report: 32 bytes.

    The client signs the digest. The part for the other server contains it, see `Part.other`.

    Args:
        kind: LEADER_REPORT for the leader's part, HELPER_REPORT for the helper's.
        payload: the content that the digest covers.
    """
    return digest(Label.TWO_SERVER_PART, bytes([kind]), payload)


def name_of_batch(context: bytes, rounds: range, ids: Collection[bytes]) -> bytes:
    """Compute the digest of a batch, 32 bytes, by which the helper's Answer names its batch.

    Args:
        context: the digest of the parameters, 32 bytes.
        rounds: the rounds of the batch.
        ids: the ids of its reports, in ascending order.
    """
    return digest(Label.TWO_SERVER_BATCH, context, encode_ids(rounds, ids))


# ---- bytes ----


def frames_of(parameters: TwoServerParameters, leader: Part, helper: Part) -> Report:
    """Encode both parts of a report as frames; the leader's payload is sealed to its key.

    Args:
        parameters: the parameters of the plan.
        leader: the leader's part, not sealed yet.
        helper: the helper's part, its seed sealed already.
    """
    # The leader's payload and the seed together give the vector. If TLS ends at a proxy, the
    # operator of the proxy may also run the helper. So only the leader can open its payload.
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
    """Encode a message: header and body; the session in the header is the context.

    Args:
        kind: the type of the message.
        context: the digest of the parameters, 32 bytes.
        sender: LEADER, HELPER, or for a client UNLISTED.
        body: the encoded body.
    """
    return HEADER.pack(MAGIC, VERSION, kind, 0, context, sender, len(body)) + body


def body_of(frame: bytes, kind: Kind, context: bytes, sender: int, most: int) -> bytes | None:
    """Return the body of a frame; None if the header differs or the body is longer than `most`.

    Args:
        frame: the bytes that came; any value is allowed.
        kind: the type that the frame must have.
        context: the digest of the parameters that the frame must have, 32 bytes.
        sender: the sender that the frame must have.
        most: the largest length of the body, in bytes.
    """
    if not isinstance(frame, bytes) or not HEADER.size <= len(frame) <= HEADER.size + most:
        return None
    size = len(frame) - HEADER.size
    is_own = frame.startswith(HEADER.pack(MAGIC, VERSION, kind, 0, context, sender, size))
    return frame[HEADER.size :] if is_own else None


class Ids(Collection[bytes]):
    """Hold ids of reports, in strictly ascending order, as the bytes of an Offer or a Query.

    In this form a million ids take 16 MB. In a list or a set they would take several times as many.

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
        """Join ids, which must be in strictly ascending order already; this is not checked."""
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
    """Encode the body of an Offer or a Query: its rounds, and its ids in the given order."""
    body = BytesIO()
    body.write(BATCH.pack(rounds[0], rounds[-1], len(ids)))
    body.writelines(ids)
    return body.getvalue()


def decode_ids(
    context: bytes, n_max: int, frame: bytes, kind: Kind, sender: int
) -> tuple[range, Ids]:
    """Decode the rounds and the ids of an Offer or a Query.

    Args:
        context: the digest of the parameters, 32 bytes.
        n_max: the most reports in a batch.
        frame: the frame that came from the other server.
        kind: OFFER or QUERY.
        sender: the number of the server that sends this type.

    Raises:
        BatchRefusedError: the frame is not a well-formed message of this type, context and sender,
            or the ids are not in strictly ascending order.
    """
    body = body_of(frame, kind, context, sender, BATCH.size + ID_BYTES * n_max)
    if body is None or len(body) < BATCH.size:
        raise BatchRefusedError(f"this is no {kind.name.lower()} of these parameters")
    first, last, count = BATCH.unpack_from(body)
    if first > last or len(body) != BATCH.size + ID_BYTES * count:
        raise BatchRefusedError(f"the {kind.name.lower()} is malformed")
    ids = Ids(frame, HEADER.size + BATCH.size)
    # If any order were allowed, a batch could have several encodings. If an id occurred twice, its
    # report would count twice, and the report's vector would stand out in the sum.
    if any(one >= other for one, other in itertools.pairwise(ids)):
        raise BatchRefusedError(
            f"the ids of the {kind.name.lower()} must be in strictly ascending order"
        )
    return range(first, last + 1), ids


def with_checksum(parameters: TwoServerParameters, entries: I64, constant: int) -> Lanes:
    """Return a vector's entries as lanes, followed by the checksum entries.

    Entries are reduced mod 2^w, where w is the number of bits of a lane (see `packing`).

    Args:
        parameters: the parameters of the plan.
        entries: int64 [V].
        constant: the value of all checksum entries: 1 in a vector, 0 in noise.

    Returns:
        lane(bits) [V + checksum entries], see `crypto.prg.lane`.
    """
    checksum_entries = np.full(
        parameters.length + parameters.checksum_entries, constant, lane(parameters.bits)
    )
    checksum_entries[: parameters.length] = entries.astype(checksum_entries.dtype)
    return checksum_entries


def packed(parameters: TwoServerParameters, checksum_entries: Lanes) -> bytes:
    """Reduce a vector mod 2^b and pack it; this changes the vector.

    Args:
        parameters: the parameters of the plan.
        checksum_entries: lane(bits) [V + checksum entries], see `crypto.prg.lane`; the whole
            vector.
    """
    checksum_entries &= checksum_entries.dtype.type((1 << parameters.bits) - 1)
    return pack(checksum_entries, parameters.bits)


def entries_within(length: int, largest: int, **named: I64) -> I64:
    """Return the named vector; raise an error unless it is int64 [length] within +-largest.

    Pass it as the only keyword argument; messages name it by this keyword.

    Raises:
        InvalidInputError: the vector has a wrong dtype or shape, or an entry is beyond +-largest.
    """
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
    """Return a client's signing key unchanged, if it is a `SigningKey`.

    Raises:
        InvalidInputError: `identity` is not a `SigningKey`.
    """
    if not isinstance(identity, SigningKey):
        raise InvalidInputError(
            "identity must be the SigningKey that the client registered, whose public key is in"
            f" the allow-list, got {type(identity).__name__}"
        )
    return identity


def exactly(length: int, **named: bytes) -> bytes:
    """Return the named bytes unchanged; raise an error unless they are exactly `length` bytes.

    Pass them as the only keyword argument; messages name them by this keyword.

    Raises:
        InvalidInputError: the argument is not exactly `length` bytes.
    """
    ((name, value),) = named.items()
    if not isinstance(value, bytes) or len(value) != length:
        got = len(value) if isinstance(value, bytes) else type(value).__name__
        raise InvalidInputError(f"{name} must be {length} bytes, got {got}")
    return value


def shown(rounds: range) -> str:
    """Format a range of rounds for messages: its first and its last round."""
    return f"{rounds[0]} .. {rounds[-1]}"


def message_bytes(parameters: TwoServerParameters, reports: int) -> dict[Kind, int]:
    """Return the size in bytes of each type of message of a batch, headers included.

    The reports have no proofs. If the helper holds more reports than the batch has, its Offer is
    longer.

    Args:
        parameters: the parameters of the plan.
        reports: the number of reports in the batch.
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
