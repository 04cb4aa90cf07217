"""The bytes of the messages of ``fedtally-secagg/1``, and the digests that bind them.

A frame is a header of 48 bytes and a body. The receiver knows the length of the body beforehand, or
computes it from its first bytes. Integers are little-endian. Bitmaps have their least significant
bit first and padding bits of zero.

Every message has exactly one encoding, and the decoders refuse any other. With two encodings of one
message, two clients could sign different bytes that mean the same, or find equal keys different.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.crypto import shamir
from fedtally.crypto.keys import KEY_BYTES, SIGNATURE_BYTES, TAG_BYTES, Label, digest
from fedtally.errors import InvalidInputError
from fedtally.secagg.messages import (
    AbortCode,
    Advert,
    Bits,
    Confirmations,
    FullRoster,
    Inbox,
    Invite,
    Kind,
    RemoteProtocolError,
    Result,
    Roster,
    Unmask,
)
from fedtally.secagg.packing import packed_length
from fedtally.secagg.params import Adversary, Parameters

MAGIC, VERSION = b"FTSA", 1
SESSION_BYTES = 32
# The sender in a header is the number of a client. Two numbers are special: a client that has no
# number yet, and the server. A roster and an allow-list have at most 2^20 entries, so that no
# client's number is that large.
UNLISTED, SERVER = 2**32 - 1, 2**32 - 2
HEADER = struct.Struct(f"<4sBBH{SESSION_BYTES}sII")
NONCE_BYTES = 16  # random bytes in each advert, so that no two rosters have the same digest
ADVERT_BYTES = 3 * KEY_BYTES + NONCE_BYTES
SEALED_BYTES = 2 * shamir.SECRET_BYTES + TAG_BYTES  # the shares of both secrets in one ciphertext

_INVITE = struct.Struct("<QBBIIIIIBIIQQI32s32s")
_ROSTER = struct.Struct("<II32s")
_RESULT = struct.Struct("<BI32s")
_PROFILES = (Adversary.SEMI_HONEST, Adversary.ACTIVE)  # by their number on the wire

U32 = npt.NDArray[np.uint32]


class Frame(NamedTuple):
    """A message on the wire: the fields of its header, and its body.

    Attributes:
        version: the version of the protocol.
        kind: the type of the message.
        session: the identifier of the session, 32 bytes.
        sender: SERVER, UNLISTED, or the number of a client: its index in the roster in
            `semi-honest`, its rank in the allow-list in `active`.
        body: the bytes after the header.
    """

    version: int
    kind: Kind
    session: bytes
    sender: int
    body: bytes


def frame(kind: Kind, session: bytes, sender: int, body: bytes) -> bytes:
    """Return the bytes of a message: its header and its body.

    >>> frame(Kind.ABORT, bytes(32), SERVER, bytes([5])).hex()[:16]
    '46545341010b0000'
    """
    return HEADER.pack(MAGIC, VERSION, kind, 0, session, sender, len(body)) + body


def parse(data: bytes | bytearray | memoryview) -> Frame | None:
    """Return the message in these bytes, or None if they are no frame.

    >>> parse(b"FTSA") is None
    True
    """
    if not isinstance(data, (bytes, bytearray, memoryview)) or len(data) < HEADER.size:
        return None
    magic, version, kind, reserved, session, sender, length = HEADER.unpack_from(data)
    if magic != MAGIC or reserved or kind not in _KINDS or length != len(data) - HEADER.size:
        return None
    return Frame(version, Kind(kind), session, sender, bytes(data[HEADER.size :]))


_KINDS = frozenset(Kind)


def malformed(reason: str) -> RemoteProtocolError:
    """Return the error for a body that does not have the form that its type demands."""
    return RemoteProtocolError(AbortCode.MALFORMED, reason)


def _sized(body: bytes, length: int) -> bytes:
    if len(body) != length:
        raise malformed(f"the body must have {length} bytes, got {len(body)}")
    return body


def pack_bits(bits: Bits) -> bytes:
    """Return the bytes of a bitmap.

    >>> pack_bits(np.array([True, False, True])).hex()
    '05'
    """
    return np.packbits(bits, bitorder="little").tobytes()


def bitmap_bytes(count: int) -> int:
    """Return the number of bytes of a bitmap of `count` bits."""
    return -(-count // 8)


def unpack_bits(data: bytes, count: int) -> Bits:
    """Return the bits of a bitmap: bool [count].

    Raises:
        RemoteProtocolError: the bitmap has another length, or a padding bit is set.
    """
    bits = np.unpackbits(
        np.frombuffer(_sized(data, bitmap_bytes(count)), np.uint8), bitorder="little"
    ).view(np.bool_)
    if bits[count:].any():
        # A set padding bit would be a second encoding of the same bitmap, with another digest.
        raise malformed("the padding bits of a bitmap must be zero")
    return bits[:count]


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _split_bitmap(body: bytes, count: int, size: int) -> tuple[Bits, list[bytes]]:
    """Return the bitmap at the beginning of a body, and the pieces that follow it.

    Args:
        body: a bitmap, then one piece for each bit that is set.
        count: the number of bits of the bitmap.
        size: the number of bytes of a piece.

    Raises:
        RemoteProtocolError: the body has another length, or a padding bit is set.
    """
    head = bitmap_bytes(count)
    bits = unpack_bits(body[:head], count)
    return bits, _cut(_sized(body[head:], size * int(bits.sum())), size)


# ---- Invite ----


def encode_terms(invite: Invite) -> bytes:
    """Return the body of an Invite without the server's signature, which comes after it."""
    p = invite.parameters
    return _INVITE.pack(
        p.length,
        p.bits,
        int(p.is_complete),
        p.ring_neighbours,
        p.ring_threshold,
        p.n_min,
        p.n_max,
        p.min_survivors,
        _PROFILES.index(p.adversary),
        p.corrupt,
        p.max_dropout_ppm,
        invite.not_before,
        invite.not_after,
        invite.round,
        invite.fingerprint,
        invite.allow_list,
    )


def split_invite(body: bytes) -> tuple[bytes, bytes]:
    """Return the terms of an Invite, still encoded, and the server's signature, 64 bytes.

    Raises:
        RemoteProtocolError: the body has another length.
    """
    _sized(body, _INVITE.size + SIGNATURE_BYTES)
    return body[: _INVITE.size], body[_INVITE.size :]


def decode_terms(terms: bytes) -> Invite:
    """Return the decoded terms of an Invite.

    Raises:
        RemoteProtocolError: the terms contradict each other or exceed their bounds (code POLICY),
            or they are not the only valid encoding of their content (code MALFORMED).
    """
    length, bits, graph, k, t, n_min, n_max, least, profile, corrupt, dropout, *rest = (
        _INVITE.unpack(terms)
    )
    if profile >= len(_PROFILES) or graph != (k == 0):
        raise malformed("the profile or the graph is unknown")
    try:
        parameters = Parameters(
            adversary=_PROFILES[profile],
            n_min=n_min,
            n_max=n_max,
            corrupt=corrupt,
            max_dropout_ppm=dropout,
            min_survivors=least,
            ring_neighbours=k,
            ring_threshold=t,
            length=length,
            bits=bits,
        )
    except InvalidInputError as error:
        raise RemoteProtocolError(AbortCode.POLICY, str(error)) from error
    return Invite(parameters, *rest)


def context(session: bytes, terms: bytes) -> bytes:
    """Return ctx, the context of a session: the digest of its id and its terms, 32 bytes."""
    return digest(Label.CONTEXT, bytes([VERSION]), session, terms)


# ---- Advertise, Roster ----


def advert_bytes(adversary: Adversary) -> int:
    """Return the number of bytes of an advert.

    >>> advert_bytes(Adversary.SEMI_HONEST), advert_bytes(Adversary.ACTIVE)
    (112, 176)
    """
    return ADVERT_BYTES + (SIGNATURE_BYTES if adversary.has_identities else 0)


def decode_advert(body: bytes, adversary: Adversary) -> Advert:
    """Return the parts of an advert; this function does not check the keys or the signature.

    Raises:
        RemoteProtocolError: the body has another length.
    """
    _sized(body, advert_bytes(adversary))
    return Advert(body[:32], body[32:64], body[64:96], body[96:ADVERT_BYTES], body[ADVERT_BYTES:])


def encode_roster(roster: Roster) -> bytes:
    """Return the body of a Roster of `semi-honest`."""
    return _ROSTER.pack(roster.n, roster.own_index, roster.digest) + b"".join(roster.adverts)


def decode_roster(body: bytes, parameters: Parameters) -> Roster:
    """Return the Roster of `semi-honest` in a body.

    Raises:
        RemoteProtocolError: n or the index is out of range, or the number of adverts is not the
            number of neighbours in a roster of n clients.
    """
    if len(body) < _ROSTER.size:
        raise malformed("a roster is too short")
    n, index, digest_of_all = _ROSTER.unpack_from(body)
    # n is checked before it is used: the length of the body follows from n, and with a wrong n a
    # peer could ask for a graph of any size.
    if not parameters.n_min <= n <= parameters.n_max or index >= n:
        raise RemoteProtocolError(
            AbortCode.ROSTER_INVALID, f"index {index} among {n} clients is not possible"
        )
    _sized(body, _ROSTER.size + ADVERT_BYTES * parameters.graph(n).neighbours)
    return Roster(n, index, digest_of_all, _cut(body[_ROSTER.size :], ADVERT_BYTES))


def encode_full_roster(roster: FullRoster) -> bytes:
    """Return the body of a Roster of `active`."""
    return pack_bits(roster.members) + b"".join(roster.adverts)


def decode_full_roster(body: bytes, identities: int) -> FullRoster:
    """Return the Roster of `active` in a body; the allow-list has `identities` keys.

    Raises:
        RemoteProtocolError: the body has another length, or a padding bit is set.
    """
    return FullRoster(*_split_bitmap(body, identities, ADVERT_BYTES + SIGNATURE_BYTES))


def adverts_digest(adverts: Sequence[bytes]) -> bytes:
    """Return the digest of a roster's adverts, as they were sent, in order of index: 32 bytes."""
    return digest(Label.ADVERTS, len(adverts).to_bytes(4, "little"), *adverts)


def roster_context(ctx: bytes, n: int, members: Bits | None, digest_of_adverts: bytes) -> bytes:
    """Return ctx2, the context of a roster: the digest of a session and its roster, 32 bytes.

    The keys of shares, pair masks and self masks are derived with ctx2, and confirmations sign it.
    So nothing of one roster is valid in another one.

    Args:
        ctx: the context of the session, 32 bytes.
        n: the number of clients in the roster.
        members: bool [keys of the allow-list]; which of them are in the roster; None in
            `semi-honest`.
        digest_of_adverts: the result of `adverts_digest`, 32 bytes.
    """
    listed = b"" if members is None else bitmap_digest(members)
    return digest(Label.ROSTER_CONTEXT, ctx, n.to_bytes(4, "little"), listed, digest_of_adverts)


def bitmap_digest(bits: Bits) -> bytes:
    """Return the SHA-256 of a bitmap: 32 bytes."""
    return hashlib.sha256(pack_bits(bits)).digest()


# ---- Shares, Inbox ----


def decode_shares(body: bytes, neighbours: int) -> bytes:
    """Return the sealed shares in a body: SEALED_BYTES for each neighbour, by slot.

    Raises:
        RemoteProtocolError: the body has another length.
    """
    return _sized(body, SEALED_BYTES * neighbours)


def encode_inbox(inbox: Inbox) -> bytes:
    """Return the body of an Inbox."""
    return pack_bits(inbox.present) + b"".join(inbox.sealed)


def decode_inbox(body: bytes, neighbours: int) -> Inbox:
    """Return the Inbox in a body.

    Raises:
        RemoteProtocolError: the body has another length, or a padding bit is set.
    """
    return Inbox(*_split_bitmap(body, neighbours, SEALED_BYTES))


# ---- Confirmations, Unmask, Result, Abort ----


def decode_confirm(body: bytes) -> bytes:
    """Return the signature in the body of a Confirm: 64 bytes.

    Raises:
        RemoteProtocolError: the body has another length.
    """
    return _sized(body, SIGNATURE_BYTES)


def encode_confirmations(confirmations: Confirmations) -> bytes:
    """Return the body of the Confirmations."""
    return pack_bits(confirmations.signers) + b"".join(confirmations.signatures)


def decode_confirmations(body: bytes, n: int) -> Confirmations:
    """Return the Confirmations in a body, for a roster of n clients.

    Raises:
        RemoteProtocolError: the body has another length, or a padding bit is set.
    """
    return Confirmations(*_split_bitmap(body, n, SIGNATURE_BYTES))


def encode_unmask(unmask: Unmask) -> bytes:
    """Return the body of an Unmask."""
    return shamir.to_bytes(unmask.own) + pack_bits(unmask.given) + shamir.to_bytes(unmask.shares)


def decode_unmask(body: bytes, neighbours: int) -> Unmask:
    """Return the Unmask in a body; its sender has `neighbours` neighbours.

    Raises:
        RemoteProtocolError: the body has another length, a padding bit is set, or an element of a
            share is not in the field.
    """
    head = shamir.SECRET_BYTES + bitmap_bytes(neighbours)
    given = unpack_bits(body[shamir.SECRET_BYTES : head], neighbours)
    _sized(body, head + shamir.SECRET_BYTES * int(given.sum()))
    try:
        elements = shamir.from_bytes(body[: shamir.SECRET_BYTES] + body[head:]).reshape(
            -1, shamir.SECRET_ELEMENTS
        )
    except shamir.ShareError as error:
        raise malformed(str(error)) from error
    return Unmask(elements[0], given, elements[1:])


def encode_result(result: Result) -> bytes:
    """Return the body of a Result."""
    return _RESULT.pack(0, result.survivors, result.digest)


def decode_result(body: bytes) -> Result:
    """Return the Result in a body.

    Raises:
        RemoteProtocolError: the body has another length, or its code is not 0.
    """
    code, survivors, digest_of_sum = _RESULT.unpack(_sized(body, _RESULT.size))
    if code:
        raise malformed("the code of a result must be 0")
    return Result(survivors, digest_of_sum)


def result_digest(ctx2: bytes, alive: Bits, salt: bytes, total: npt.NDArray[np.int64]) -> bytes:
    """Return the salted digest of a sum: 32 bytes.

    The salt is published with the sum. Before that, the digest reveals nothing about the sum.

    Args:
        ctx2: the context of the roster, 32 bytes.
        alive: bool [n]; the clients in the sum.
        salt: 32 bytes.
        total: int64 [V]; the sum.
    """
    return digest(Label.RESULT, ctx2, bitmap_digest(alive), salt, total.astype("<i8").tobytes())


def decode_abort(body: bytes) -> AbortCode:
    """Return the code in the body of an Abort.

    Raises:
        RemoteProtocolError: the body has another length, or the code is unknown.
    """
    try:
        return AbortCode(_sized(body, 1)[0])
    except ValueError:
        raise malformed("the code of an Abort is unknown") from None


# ---- sizes ----


def upload_bytes(parameters: Parameters, n: int) -> int:
    """Return the most bytes that a client sends in a session, headers included.

    Args:
        parameters: the parameters of the session.
        n: the number of clients in the roster.

    >>> from fedtally.secagg.proposal import propose
    >>> cohort = propose(1000, length=20_000, bits=16, corrupt=50, max_dropout=0.05)
    >>> upload_bytes(cohort, 1000)
    43073
    """
    k = parameters.graph(n).neighbours
    bodies = [
        advert_bytes(parameters.adversary),
        SEALED_BYTES * k,
        packed_length(parameters.length + parameters.checksum_entries, parameters.bits),
        shamir.SECRET_BYTES * (k + 1) + bitmap_bytes(k),
    ]
    if parameters.adversary.has_identities:
        bodies.append(SIGNATURE_BYTES)
    return sum(HEADER.size + body for body in bodies)


def message_bytes(
    parameters: Parameters,
    n: int,
    *,
    identities: int = 0,
    dealers: int | None = None,
    signers: int | None = None,
) -> dict[Kind, int]:
    """Return the size in bytes of each type of message, headers included.

    These are the messages between the server and one client, in a session that ends with a sum.

    Args:
        parameters: the parameters of the session.
        n: the number of clients in the roster.
        identities: the number of keys in the allow-list, in `active`.
        dealers: the number of the client's neighbours that dealt shares; None: all.
        signers: the number of clients that confirmed, in `active`; None: all.

    >>> from fedtally.secagg.proposal import propose
    >>> cohort = propose(1000, length=20_000, bits=16, corrupt=50, max_dropout=0.05)
    >>> sizes = message_bytes(cohort, 1000)
    >>> sizes[Kind.MASKED_INPUT], sizes[Kind.SURVIVORS]
    (40056, 173)
    """
    active, k = parameters.adversary.has_identities, parameters.graph(n).neighbours
    dealers, signers = k if dealers is None else dealers, n if signers is None else signers
    advert = advert_bytes(parameters.adversary)
    bodies = {
        Kind.INVITE: _INVITE.size + SIGNATURE_BYTES,
        Kind.ADVERTISE: advert,
        Kind.ROSTER: bitmap_bytes(identities) + advert * n if active else _ROSTER.size + advert * k,
        Kind.SHARES: SEALED_BYTES * k,
        Kind.INBOX: bitmap_bytes(k) + SEALED_BYTES * dealers,
        Kind.MASKED_INPUT: packed_length(
            parameters.length + parameters.checksum_entries, parameters.bits
        ),
        Kind.SURVIVORS: bitmap_bytes(n),
        Kind.UNMASK: shamir.SECRET_BYTES * (1 + dealers) + bitmap_bytes(k),
        Kind.RESULT: _RESULT.size,
    }
    if active:
        bodies |= {
            Kind.CONFIRM: SIGNATURE_BYTES,
            Kind.CONFIRMATIONS: bitmap_bytes(n) + SIGNATURE_BYTES * signers,
        }
    return {kind: HEADER.size + body for kind, body in bodies.items()}
