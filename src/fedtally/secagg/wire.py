"""Encode and decode the messages of ``fedtally-secagg/1``, and compute the digests that bind them.

A frame is a header of 48 bytes and a body. The receiver knows the length of the body beforehand, or
computes it from the first bytes of the body. Integers are little-endian. Bitmaps have their least
significant bit first and padding bits of zero.

Every message has exactly one encoding, and the decoders refuse any other. If a message had two
encodings, two clients could sign different bytes that mean the same, or take equal keys for
different ones.
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
# The sender in a header is the number of a client, or one of two special numbers: UNLISTED is a
# client that has no number yet, and SERVER is the server. No client's number is so large: a roster
# and an allow-list have at most 2^20 entries.
UNLISTED, SERVER = 2**32 - 1, 2**32 - 2
HEADER = struct.Struct(f"<4sBBH{SESSION_BYTES}sII")
NONCE_BYTES = 16  # the random bytes in an advert: they make each roster's digest a new one
ADVERT_BYTES = 3 * KEY_BYTES + NONCE_BYTES
SEALED_BYTES = 2 * shamir.SECRET_BYTES + TAG_BYTES  # the shares of both secrets in one ciphertext

_INVITE = struct.Struct("<QBBIIIIIBIIQQI32s32s")
_ROSTER = struct.Struct("<II32s")
_RESULT = struct.Struct("<BI32s")
_PROFILES = (Adversary.SEMI_HONEST, Adversary.ACTIVE)  # by their numbers in an Invite

U32 = npt.NDArray[np.uint32]


class Frame(NamedTuple):
    """Hold a parsed message: the fields of its header, and its body.

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
    """Encode a message: its header, then its body.

    Args:
        kind: the type of the message.
        session: the identifier of the session, 32 bytes.
        sender: SERVER, UNLISTED, or the number of a client, see `Frame`.
        body: the encoded body.

    >>> frame(Kind.ABORT, bytes(32), SERVER, bytes([5])).hex()[:16]
    '46545341010b0000'
    """
    return HEADER.pack(MAGIC, VERSION, kind, 0, session, sender, len(body)) + body


def parse(data: bytes | bytearray | memoryview) -> Frame | None:
    """Decode the header of a message; return None if the bytes are no frame.

    Bytes are a frame if they begin with the magic, the type is known, the reserved field is 0, and
    the header has the real length of the body.

    The version, the session, the sender and the body are not checked.

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
    """Make the error for a body that does not have the form of its type of message."""
    return RemoteProtocolError(AbortCode.MALFORMED, reason)


def _sized(body: bytes, length: int) -> bytes:
    if len(body) != length:
        raise malformed(f"the body must have {length} bytes, got {len(body)}")
    return body


def pack_bits(bits: Bits) -> bytes:
    """Encode a bitmap as bytes, the least significant bit first.

    >>> pack_bits(np.array([True, False, True])).hex()
    '05'
    """
    return np.packbits(bits, bitorder="little").tobytes()


def bitmap_bytes(count: int) -> int:
    """Return the number of bytes of a bitmap of `count` bits."""
    return -(-count // 8)


def unpack_bits(data: bytes, count: int) -> Bits:
    """Decode a bitmap: bool [count].

    Raises:
        RemoteProtocolError: the bitmap has a wrong length, or a padding bit is set.
    """
    bits = np.unpackbits(
        np.frombuffer(_sized(data, bitmap_bytes(count)), np.uint8), bitorder="little"
    ).view(np.bool_)
    if bits[count:].any():
        # If padding bits could be set, a bitmap would have a second encoding and digest.
        raise malformed("the padding bits of a bitmap must be zero")
    return bits[:count]


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _split_bitmap(body: bytes, count: int, size: int) -> tuple[Bits, list[bytes]]:
    """Split a body into its bitmap and the pieces that follow, one for each bit that is set.

    Args:
        body: a bitmap, then the pieces.
        count: the number of bits of the bitmap.
        size: the number of bytes of a piece.

    Returns:
        bool [count], and the pieces in order.

    Raises:
        RemoteProtocolError: the body has a wrong length, or a padding bit is set.
    """
    head = bitmap_bytes(count)
    bits = unpack_bits(body[:head], count)
    return bits, _cut(_sized(body[head:], size * int(bits.sum())), size)


# ---- Invite ----


def encode_terms(invite: Invite) -> bytes:
    """Encode the body of an Invite, without the signature at its end."""
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
    """Split the body of an Invite into its terms, still encoded, and the server's signature.

    The signature has 64 bytes, and is not checked.

    Raises:
        RemoteProtocolError: the body has a wrong length.
    """
    _sized(body, _INVITE.size + SIGNATURE_BYTES)
    return body[: _INVITE.size], body[_INVITE.size :]


def decode_terms(terms: bytes) -> Invite:
    """Decode the terms of an Invite. The times, the round and the digests are not checked.

    Raises:
        RemoteProtocolError: with code POLICY: `Parameters` refuses the parameters. With code
            MALFORMED: the profile is unknown, or the flag of the complete graph does not fit k.
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
    """Compute ctx, the context of a session: a digest of its identifier and terms, 32 bytes."""
    return digest(Label.CONTEXT, bytes([VERSION]), session, terms)


# ---- Advertise, Roster ----


def advert_bytes(adversary: Adversary) -> int:
    """Return the number of bytes of an advert.

    >>> advert_bytes(Adversary.SEMI_HONEST), advert_bytes(Adversary.ACTIVE)
    (112, 176)
    """
    return ADVERT_BYTES + (SIGNATURE_BYTES if adversary.has_identities else 0)


def decode_advert(body: bytes, adversary: Adversary) -> Advert:
    """Decode an advert; its keys and its signature are not checked.

    Raises:
        RemoteProtocolError: the body has a wrong length.
    """
    _sized(body, advert_bytes(adversary))
    return Advert(body[:32], body[32:64], body[64:96], body[96:ADVERT_BYTES], body[ADVERT_BYTES:])


def encode_roster(roster: Roster) -> bytes:
    """Encode the body of a Roster of `semi-honest`."""
    return _ROSTER.pack(roster.n, roster.own_index, roster.digest) + b"".join(roster.adverts)


def decode_roster(body: bytes, parameters: Parameters) -> Roster:
    """Decode the body of a Roster of `semi-honest`; the keys in it are not checked.

    Raises:
        RemoteProtocolError: n or the index is out of range (code ROSTER_INVALID); or the body is
            too short, or the number of adverts is not the number of neighbours in a roster of n
            clients (code MALFORMED).
    """
    if len(body) < _ROSTER.size:
        raise malformed("a roster is too short")
    n, index, digest_of_all = _ROSTER.unpack_from(body)
    # The length that the body must have is computed from n. So n is checked first: if it is out of
    # range, the code says so, and `graph` does not accept n = 0.
    if not parameters.n_min <= n <= parameters.n_max or index >= n:
        raise RemoteProtocolError(
            AbortCode.ROSTER_INVALID, f"index {index} among {n} clients is not possible"
        )
    _sized(body, _ROSTER.size + ADVERT_BYTES * parameters.graph(n).neighbours)
    return Roster(n, index, digest_of_all, _cut(body[_ROSTER.size :], ADVERT_BYTES))


def encode_full_roster(roster: FullRoster) -> bytes:
    """Encode the body of a Roster of `active`."""
    return pack_bits(roster.members) + b"".join(roster.adverts)


def decode_full_roster(body: bytes, identities: int) -> FullRoster:
    """Decode the body of a Roster of `active`; the adverts in it are not checked.

    Args:
        body: the body.
        identities: the number of keys in the allow-list.

    Raises:
        RemoteProtocolError: the body has a wrong length, or a padding bit is set.
    """
    return FullRoster(*_split_bitmap(body, identities, ADVERT_BYTES + SIGNATURE_BYTES))


def adverts_digest(adverts: Sequence[bytes]) -> bytes:
    """Compute the digest of a roster's adverts: 32 bytes.

    Args:
        adverts: the adverts as they were sent, in order of index.
    """
    return digest(Label.ADVERTS, len(adverts).to_bytes(4, "little"), *adverts)


def roster_context(ctx: bytes, n: int, members: Bits | None, digest_of_adverts: bytes) -> bytes:
    """Compute ctx2, the context of a roster: a digest of its session and its clients, 32 bytes.

    The keys of shares and masks are derived from ctx2, and confirmations sign it. So nothing of one
    roster is valid in another roster.

    Args:
        ctx: the context of the session, 32 bytes.
        n: the number of clients in the roster.
        members: bool [keys of the allow-list]; whether the client with this key is in the roster.
            None in `semi-honest`.
        digest_of_adverts: the result of `adverts_digest`, 32 bytes.
    """
    listed = b"" if members is None else bitmap_digest(members)
    return digest(Label.ROSTER_CONTEXT, ctx, n.to_bytes(4, "little"), listed, digest_of_adverts)


def bitmap_digest(bits: Bits) -> bytes:
    """Compute the SHA-256 of an encoded bitmap: 32 bytes."""
    return hashlib.sha256(pack_bits(bits)).digest()


# ---- Shares, Inbox ----


def decode_shares(body: bytes, neighbours: int) -> bytes:
    """Return the body of Shares if it has the right length: SEALED_BYTES for each neighbour.

    The body is the sealed shares, joined in order of the client's slots (see `graph`).

    Raises:
        RemoteProtocolError: the body has a wrong length.
    """
    return _sized(body, SEALED_BYTES * neighbours)


def encode_inbox(inbox: Inbox) -> bytes:
    """Encode the body of an Inbox."""
    return pack_bits(inbox.present) + b"".join(inbox.sealed)


def decode_inbox(body: bytes, neighbours: int) -> Inbox:
    """Decode the body of an Inbox; the shares in it stay sealed.

    Args:
        body: the body.
        neighbours: the number of neighbours of the client that gets it.

    Raises:
        RemoteProtocolError: the body has a wrong length, or a padding bit is set.
    """
    return Inbox(*_split_bitmap(body, neighbours, SEALED_BYTES))


# ---- Confirmations, Unmask, Result, Abort ----


def decode_confirm(body: bytes) -> bytes:
    """Return the body of a Confirm, which is a signature of 64 bytes; it is not checked.

    Raises:
        RemoteProtocolError: the body has a wrong length.
    """
    return _sized(body, SIGNATURE_BYTES)


def encode_confirmations(confirmations: Confirmations) -> bytes:
    """Encode the body of the Confirmations."""
    return pack_bits(confirmations.signers) + b"".join(confirmations.signatures)


def decode_confirmations(body: bytes, n: int) -> Confirmations:
    """Decode the body of the Confirmations; the signatures in it are not checked.

    Args:
        body: the body.
        n: the number of clients in the roster.

    Raises:
        RemoteProtocolError: the body has a wrong length, or a padding bit is set.
    """
    return Confirmations(*_split_bitmap(body, n, SIGNATURE_BYTES))


def encode_unmask(unmask: Unmask) -> bytes:
    """Encode the body of an Unmask."""
    return shamir.to_bytes(unmask.own) + pack_bits(unmask.given) + shamir.to_bytes(unmask.shares)


def decode_unmask(body: bytes, neighbours: int) -> Unmask:
    """Decode the body of an Unmask; it is not checked whether the shares are right.

    Args:
        body: the body.
        neighbours: the number of neighbours of its sender.

    Raises:
        RemoteProtocolError: the body has a wrong length, a padding bit is set, or an element of a
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
    """Encode the body of a Result."""
    return _RESULT.pack(0, result.survivors, result.digest)


def decode_result(body: bytes) -> Result:
    """Decode the body of a Result.

    Raises:
        RemoteProtocolError: the body has a wrong length, or its first byte is not 0 (an Abort has
            its code there).
    """
    code, survivors, digest_of_sum = _RESULT.unpack(_sized(body, _RESULT.size))
    if code:
        raise malformed("the code of a result must be 0")
    return Result(survivors, digest_of_sum)


def result_digest(ctx2: bytes, alive: Bits, salt: bytes, total: npt.NDArray[np.int64]) -> bytes:
    """Compute the salted digest of a sum: 32 bytes.

    It reveals nothing about the sum until the salt is published, together with the sum.

    Args:
        ctx2: the context of the roster, 32 bytes.
        alive: bool [n]; which clients are in the sum, by index in the roster.
        salt: 32 uniform bytes.
        total: int64 [V]; the sum.
    """
    return digest(Label.RESULT, ctx2, bitmap_digest(alive), salt, total.astype("<i8").tobytes())


def decode_abort(body: bytes) -> AbortCode:
    """Decode the body of an Abort: its code.

    Raises:
        RemoteProtocolError: the body has a wrong length, or the code is unknown.
    """
    try:
        return AbortCode(_sized(body, 1)[0])
    except ValueError:
        raise malformed("the code of an Abort is unknown") from None


# ---- sizes ----


def upload_bytes(parameters: Parameters, n: int) -> int:
    """Return the most bytes that a client sends in a session, headers included.

    A message that is sent again is counted once.

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

    The messages are the requests and replies between the server and one client, and the Result, in
    a session that ends with a sum.

    Args:
        parameters: the parameters of the session.
        n: the number of clients in the roster.
        identities: the number of keys in the allow-list, in `active`; ignored in `semi-honest`.
        dealers: the number of the client's neighbours that dealt shares, which all open; None: all
            neighbours.
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
