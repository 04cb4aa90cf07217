"""Derive each key of the protocol ``fedtally-secagg/1``, and sign, verify, seal and hash.

Hazard layer, see `fedtally.crypto`. The algorithms are X25519, Ed25519, HKDF-SHA256, SHA-256 and
AES-256-GCM. A `Label` binds every derived value to one purpose. The functions `mask_key` to
`ring_order_key` are the key table of the specification: each derives what one row of the table
says, a key, two keys or a commitment, from a secret, a salt and fields.

Integers in fields are little-endian; in the key table they are 32 bits wide. Fields are joined
without separators. So under one label each field but the last must have a length that is fixed, or
follows from the fields before it: otherwise two different lists of fields could give the same
bytes.

Secrets are objects that do not print, copy or pickle, and that can be wiped. In Python, wiping does
not overwrite everything. It misses temporary ``bytes`` of a derivation or exchange, which are freed
and not overwritten. It also misses copies that the caller made, and memory that the operating
system wrote to disk. The library `cryptography` overwrites its own copy of a key at the end.
"""

from __future__ import annotations

import hashlib
import hmac
from contextlib import suppress
from enum import Enum
from typing import NoReturn, SupportsIndex, TypeVar

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedtally.base import validate
from fedtally.errors import InvalidInputError

KEY_BYTES = 32  # the size of X25519, Ed25519 and AES-256 keys, SHA-256 digests and contexts
SEED_BYTES = 20  # the size of the seeds that are secret-shared: 5 field elements, 155 bits
SIGNATURE_BYTES = 64
TAG_BYTES = 16

_T = TypeVar("_T")
_NONCE = bytes(12)  # always the same nonce: `seal` says why this is safe
_PREFIX = b"fedtally-secagg/1 "  # only this protocol derives, signs or seals under such labels
_FIELD_PRIME = 2**255 - 19
# The u-coordinates of all points of order 1, 2, 4 and 8 on Curve25519 and on its twist. With such a
# point the shared secret is zero for every secret key (RFC 7748, section 6.1).
_LOW_ORDER = frozenset(
    {
        0,
        1,
        _FIELD_PRIME - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)
# The y-coordinates of all points of order 1, 2, 4 and 8 on Ed25519. Under such a public key anybody
# can make a valid signature of any message.
_LOW_ORDER_IDENTITIES = frozenset(
    {
        0,
        1,
        _FIELD_PRIME - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)


class RejectedError(InvalidInputError):
    """Report that a public key, a signature or a ciphertext of another party is not valid."""


class Label(bytes, Enum):
    """List the purposes of hashes, derived keys, signatures and sealed bytes.

    No label is the beginning of another label. Otherwise a label with its fields could be read as
    another label with other fields.
    """

    MASK_SECRET_KEY = _PREFIX + b"mask secret key"
    COMMITMENT = _PREFIX + b"commitment to b"
    SELF_MASK = _PREFIX + b"self mask"
    PAIR_MASK = _PREFIX + b"pair mask"
    SHARE_ENCRYPTION = _PREFIX + b"share encryption"
    RING_ORDER = _PREFIX + b"ring order"
    CONTEXT = _PREFIX + b"context"
    ROSTER_CONTEXT = _PREFIX + b"roster context"
    ADVERTS = _PREFIX + b"adverts"
    RESULT = _PREFIX + b"result"
    INVITE = _PREFIX + b"invite"
    ADVERTISE = _PREFIX + b"advertise"
    CONFIRM = _PREFIX + b"confirm"
    POSSESSION = _PREFIX + b"proof of possession"
    SIGNED_PLAN = _PREFIX + b"signed plan"  # not "plan": that label signed plans without end dates
    REVOCATION = _PREFIX + b"revocation"
    TWO_SERVER_CONTEXT = _PREFIX + b"two-server context"
    TWO_SERVER_ID = _PREFIX + b"two-server id"
    TWO_SERVER_SEED = _PREFIX + b"two-server seed"
    TWO_SERVER_SHARE = _PREFIX + b"two-server share"
    TWO_SERVER_MASK = _PREFIX + b"two-server mask"
    TWO_SERVER_PART = _PREFIX + b"two-server part"
    TWO_SERVER_REPORT = _PREFIX + b"two-server report"
    TWO_SERVER_BATCH = _PREFIX + b"two-server batch"
    TWO_SERVER_ANSWER = _PREFIX + b"two-server answer"
    TWO_SERVER_CIRCUIT = _PREFIX + b"two-server circuit"
    TWO_SERVER_JOINT_RANDOMNESS = _PREFIX + b"two-server joint randomness"
    TWO_SERVER_JOINT_DIGEST = _PREFIX + b"two-server joint digest"
    TWO_SERVER_PROVE = _PREFIX + b"two-server prove"
    TWO_SERVER_PROOF_MASK = _PREFIX + b"two-server proof mask"
    TWO_SERVER_PROOF_SHARE = _PREFIX + b"two-server proof share"
    TWO_SERVER_VERIFY_KEY = _PREFIX + b"two-server verify key"
    TWO_SERVER_POINT = _PREFIX + b"two-server point"


class _Hidden:
    """Make an object that does not print, copy or pickle: the base class of secrets."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise InvalidInputError(
            f"{type(self).__name__} is secret: it cannot be copied or pickled; pass the object on"
        )


class Secret(_Hidden):
    """Hold secret bytes in a buffer that `wipe` overwrites; `==` takes constant time.

    Args:
        value: the secret bytes, at least one; they are copied.

    >>> secret = Secret(bytes(32))
    >>> secret
    Secret(hidden)
    >>> secret == Secret(bytes(32))
    True
    """

    __slots__ = ("_buffer", "_view")

    def __init__(self, value: bytes | bytearray | memoryview) -> None:
        if not isinstance(value, (bytes, bytearray, memoryview)) or not len(value):
            raise InvalidInputError(
                f"a secret must be bytes, at least one of them, got {type(value).__name__}"
            )
        self._buffer = bytearray(value)
        self._view = memoryview(self._buffer).toreadonly()

    def __len__(self) -> int:
        return len(self._buffer)

    def __eq__(self, other: object) -> bool:
        return (
            hmac.compare_digest(self.reveal(), other.reveal())
            if isinstance(other, Secret)
            else NotImplemented
        )

    def reveal(self, length: int | None = None) -> memoryview:
        """Return a read-only view of the bytes; do not use the view after `wipe`.

        Args:
            length: the length that the secret must have, in bytes; None allows any length.

        Raises:
            InvalidInputError: the secret was wiped, or has another length.
        """
        if not self._buffer:
            raise InvalidInputError("this secret was wiped; derive or draw a new one")
        if length is not None and len(self._buffer) != length:
            raise InvalidInputError(
                f"the secret must be of {length} bytes, got {len(self._buffer)}"
            )
        return self._view

    def wipe(self) -> None:
        """Overwrite the bytes with zeros; from then on `reveal` raises.

        An array that shares memory with the view from `reveal` then reads zeros. Using the view
        itself raises ValueError or, while other code holds its buffer, reads zeros.
        """
        # The bytes are overwritten before the view is released: the release fails while other code
        # holds the view's buffer, and the secret must be gone also then.
        self._buffer[:] = bytes(len(self._buffer))
        with suppress(BufferError):
            self._view.release()
        self._buffer = bytearray()


class ExchangeKey(_Hidden):
    """Hold an X25519 secret key (RFC 7748).

    Args:
        secret: 32 bytes; X25519 sets or ignores five bits of them, as the RFC says.

    Attributes:
        public: the public key, 32 bytes.
    """

    __slots__ = ("_key", "public")

    def __init__(self, secret: Secret) -> None:
        self._key: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(
            secret.reveal(KEY_BYTES)
        )
        self.public = self._key.public_key().public_bytes_raw()

    def exchange(self, point: bytes) -> Secret:
        """Compute the raw shared secret of this key and another client's public key: 32 bytes.

        The bytes are not uniform: pass them through `hkdf` before any other use (RFC 7748, section
        6.1).

        Args:
            point: the other client's public key, 32 bytes.

        Raises:
            RejectedError: `check_point` refuses the point.
            InvalidInputError: this key was wiped.
        """
        peer = X25519PublicKey.from_public_bytes(check_point(point))
        return Secret(_present(self._key).exchange(peer))

    def wipe(self) -> None:
        """Drop the secret key, so that `exchange` raises; the library overwrites the key."""
        self._key = None


class SigningKey(_Hidden):
    """Hold an Ed25519 secret key (RFC 8032).

    Args:
        secret: 32 uniform bytes.

    Attributes:
        public: the public key, 32 bytes.
    """

    __slots__ = ("_key", "public")

    def __init__(self, secret: Secret) -> None:
        self._key: Ed25519PrivateKey | None = Ed25519PrivateKey.from_private_bytes(
            secret.reveal(KEY_BYTES)
        )
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, label: Label, *fields: bytes) -> bytes:
        """Sign a label and fields; the signature has 64 bytes.

        Args:
            label: the purpose of the signature.
            fields: the values to sign. Their lengths must follow the rule at the top of this file.

        Raises:
            InvalidInputError: this key was wiped.
        """
        return _present(self._key).sign(_join(label, fields))

    def wipe(self) -> None:
        """Drop the secret key, so that `sign` raises; the library overwrites the key."""
        self._key = None


def verify(public: bytes, signature: bytes, label: Label, *fields: bytes) -> None:
    """Check an Ed25519 signature of another party over a label and fields.

    Args:
        public: the public key of the signer, 32 bytes. The caller must have passed it to
            `check_identity` before: this function does not refuse a key of low order, under which
            anybody can sign.
        signature: the signature, 64 bytes.
        label: the purpose that must have been signed.
        fields: the values that must have been signed.

    Raises:
        RejectedError: the signature is not one by this key over this label and these fields.
        InvalidInputError: the public key is not 32 bytes.

    >>> key = SigningKey(Secret(bytes(32)))
    >>> verify(key.public, key.sign(Label.CONFIRM, b"yes"), Label.CONFIRM, b"no")
    Traceback (most recent call last):
    ...
    fedtally.crypto.keys.RejectedError: the signature is not one by this key over this content
    """
    key, message = (
        Ed25519PublicKey.from_public_bytes(_exact(KEY_BYTES, public=public)),
        _join(label, fields),
    )
    try:
        key.verify(signature, message)
    except InvalidSignature:
        raise RejectedError("the signature is not one by this key over this content") from None


def check_point(point: bytes) -> bytes:
    """Return an X25519 public key unchanged, if it is canonical and not of low order.

    A canonical key has 32 bytes and is an integer below 2^255 - 19. Each point has one canonical
    key, so that two keys are the same point only if their bytes are equal. A key of low order would
    give the shared secret zero, which everybody knows.

    Raises:
        RejectedError: the key is not canonical, or of low order.
    """
    if not isinstance(point, bytes) or len(point) != KEY_BYTES:
        raise RejectedError(f"a public key must be {KEY_BYTES} bytes, got {_describe(point)}")
    number = int.from_bytes(point, "little")
    if number >= _FIELD_PRIME:
        raise RejectedError("a public key must be below 2^255 - 19, its only valid encoding")
    if number in _LOW_ORDER:
        raise RejectedError(
            "a public key must not be of low order: what is exchanged with it is no secret"
        )
    return point


def check_identity(key: bytes) -> bytes:
    """Return an Ed25519 public key unchanged, if it is canonical and not of low order.

    A canonical key has 32 bytes and a y-coordinate below 2^255 - 19. Under a key of low order
    anybody can make a valid signature of any message.

    Raises:
        RejectedError: the key is not canonical, or of low order.

    >>> check_identity(bytes([1]) + bytes(31))
    Traceback (most recent call last):
    ...
    fedtally.crypto.keys.RejectedError: an identity must not be a key of low order: ...
    """
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise RejectedError(f"an identity must be {KEY_BYTES} bytes, got {_describe(key)}")
    y = int.from_bytes(key, "little") & (2**255 - 1)  # the top bit is the sign of x (RFC 8032)
    if y >= _FIELD_PRIME:
        raise RejectedError("an identity must be the one encoding of its point, below 2^255 - 19")
    if y in _LOW_ORDER_IDENTITIES:
        raise RejectedError("an identity must not be a key of low order: anybody could sign for it")
    return key


def digest(label: Label, *fields: bytes) -> bytes:
    """Compute the SHA-256 of a label and fields, joined without separators: 32 bytes.

    >>> digest(Label.CONTEXT, bytes(32)).hex()[:16]
    '1fc6d049b0988732'
    """
    return hashlib.sha256(_join(label, fields)).digest()


def hkdf(secret: Secret, salt: bytes, info: bytes) -> Secret:
    """Derive a key of 32 bytes from a secret with HKDF-SHA256 (RFC 5869).

    Args:
        secret: any secret bytes, also if they are not uniform.
        salt: public bytes, such as the context of a session.
        info: the purpose of the key: a label and fields, joined.
    """
    # A key of 32 bytes is one block of HKDF. So extract and expand are one HMAC each; the byte 1 is
    # the number of the block.
    extracted = hmac.digest(salt, secret.reveal(), "sha256")
    return Secret(hmac.digest(extracted, info + b"\x01", "sha256"))


def seal(key: Secret, plaintext: Secret) -> bytes:
    """Encrypt a plaintext with AES-256-GCM under nonce 0, and wipe the key.

    A second plaintext under the same key and nonce would reveal the XOR of both plaintexts, and
    allow forgeries. The wipe prevents that: a second call with this key raises.

    Args:
        key: the key, 32 bytes, which must never have sealed before; this call wipes it.
        plaintext: the bytes to encrypt.

    Returns:
        The ciphertext, 16 bytes longer than the plaintext.

    Raises:
        InvalidInputError: the key was wiped before, or does not have 32 bytes.
    """
    sealed = AESGCM(key.reveal(KEY_BYTES)).encrypt(_NONCE, plaintext.reveal(), None)
    key.wipe()
    return sealed


def unseal(key: Secret, sealed: bytes) -> Secret:
    """Decrypt bytes that `seal` made, and wipe the key, also after an error.

    Args:
        key: the key, 32 bytes; this call wipes it.
        sealed: the sealed bytes that came from another client.

    Returns:
        The plaintext.

    Raises:
        RejectedError: the bytes were sealed under another key, were changed, or have an empty
            plaintext.
        InvalidInputError: the key was wiped before, or does not have 32 bytes.
    """
    try:
        plaintext = AESGCM(key.reveal(KEY_BYTES)).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise RejectedError(
            "the ciphertext does not open: sealed under another key, or changed on its way"
        ) from None
    finally:
        key.wipe()
    if not plaintext:
        raise RejectedError("the ciphertext holds nothing")
    return Secret(plaintext)


# The key table of the specification. Each function binds its key to the context of a session (ctx)
# or to the context of a roster, the list of clients that take part in a session (ctx2). So a key of
# one session or roster is useless in another one.


def mask_key(seed: Secret, ctx: bytes) -> ExchangeKey:
    """Derive the key pair from which a client and each neighbour make their common mask.

    Args:
        seed: the seed of the mask key, 20 bytes.
        ctx: the context of the session, a digest (`wire.context`), 32 bytes.
    """
    secret = _from_seed(seed, ctx, Label.MASK_SECRET_KEY)
    key = ExchangeKey(secret)
    secret.wipe()
    return key


def commitment(seed: Secret, ctx: bytes) -> bytes:
    """Compute the commitment to the seed of a client's self mask: 32 bytes, public.

    A self mask is the mask that a client has in common with nobody. The specification calls its
    seed b.

    Args:
        seed: the seed of the self mask, 20 bytes.
        ctx: the context of the session, a digest (`wire.context`), 32 bytes.
    """
    # The seed has 155 uniform bits, so that its hash hides it. The result is public and needs no
    # wipe.
    return bytes(_from_seed(seed, ctx, Label.COMMITMENT).reveal())


def self_mask_key(seed: Secret, ctx2: bytes, index: int) -> Secret:
    """Derive the key of a client's self mask, 32 bytes.

    A self mask is the mask that a client has in common with nobody.

    Args:
        seed: the seed of the self mask, 20 bytes.
        ctx2: the context of the roster, a digest (`wire.roster_context`), 32 bytes.
        index: the client's index in the roster, the list of the clients in the session.
    """
    return _from_seed(seed, ctx2, Label.SELF_MASK, _u32(index=index))


def pair_mask_key(
    shared: Secret, ctx2: bytes, own: int, own_key: bytes, peer: int, peer_key: bytes
) -> Secret:
    """Derive the key of the mask that two clients have in common, 32 bytes; both get the same key.

    Args:
        shared: the result of `ExchangeKey.exchange` on the two mask keys.
        ctx2: the context of the roster, a digest (`wire.roster_context`), 32 bytes.
        own: the index of this client in the roster, the list of the clients in the session.
        own_key: the public mask key of this client, 32 bytes.
        peer: the index of the other client.
        peer_key: the public mask key of the other client, 32 bytes.

    Raises:
        InvalidInputError: both indexes are equal, an index is not in 0 .. 2^32 - 1, or a context or
            a public key does not have 32 bytes.
    """
    pair = _pair(own, own_key, peer, peer_key)
    return hkdf(shared, _exact(KEY_BYTES, ctx2=ctx2), Label.PAIR_MASK + pair)


def share_keys(
    shared: Secret, ctx2: bytes, own: int, own_key: bytes, peer: int, peer_key: bytes
) -> tuple[Secret, Secret]:
    """Derive the key that seals shares for another client, and the key that opens its shares.

    Each direction has its own key, 32 bytes. With one key for both directions, two plaintexts would
    be sealed under one key and nonce. Also, a server could send a client's own share back to it as
    the share of the other client.

    Args:
        shared: the result of `ExchangeKey.exchange` on the two encryption keys.
        ctx2: the context of the roster, a digest (`wire.roster_context`), 32 bytes.
        own: the index of this client in the roster, the list of the clients in the session.
        own_key: the public encryption key of this client, 32 bytes.
        peer: the index of the other client.
        peer_key: the public encryption key of the other client, 32 bytes.

    Returns:
        The key for `seal`, and the key for `unseal`.

    Raises:
        InvalidInputError: both indexes are equal, an index is not in 0 .. 2^32 - 1, or a context or
            a public key does not have 32 bytes.
    """
    info = Label.SHARE_ENCRYPTION + _pair(own, own_key, peer, peer_key)
    up, down = (
        hkdf(shared, _exact(KEY_BYTES, ctx2=ctx2), info + direction)
        for direction in (b"\x00", b"\x01")
    )
    return (up, down) if own < peer else (down, up)


def ring_order_key(ctx2: bytes) -> Secret:
    """Derive the key of the stream from which every client computes the order of the ring.

    The ring is the random circular order in which each client is a neighbour of the nearest
    clients. The key is not secret, because every client must get the same order.

    Args:
        ctx2: the context of the roster, a digest (`wire.roster_context`), 32 bytes.

    Returns:
        The key, 32 bytes.
    """
    # HKDF needs a secret. Here the secret is a constant, so that all clients find the same order.
    return hkdf(Secret(bytes(32)), _exact(KEY_BYTES, ctx2=ctx2), Label.RING_ORDER)


def _from_seed(seed: Secret, context: bytes, label: Label, field: bytes = b"") -> Secret:
    seed.reveal(SEED_BYTES)
    return hkdf(seed, _exact(KEY_BYTES, context=context), label + field)


def _pair(own: int, own_key: bytes, peer: int, peer_key: bytes) -> bytes:
    """Encode two clients i < j as their indexes and public keys: i, j, key of i, key of j.

    Both clients get the same bytes, whichever of the two is `own`.
    """
    if own == peer:
        raise InvalidInputError(f"a pair must be of two clients, got index {own} twice")
    one, other = sorted(((own, own_key), (peer, peer_key)))
    keys = _exact(KEY_BYTES, public_key=one[1]) + _exact(KEY_BYTES, public_key=other[1])
    return _u32(index=one[0]) + _u32(index=other[0]) + keys


def _join(label: Label, fields: tuple[bytes, ...]) -> bytes:
    if not isinstance(label, Label):
        raise InvalidInputError(f"label must be one of Label, got {type(label).__name__}")
    return b"".join((label, *fields))


def _u32(**named: int) -> bytes:
    return validate.integer(0, 2**32 - 1, **named).to_bytes(4, "little")


def _exact(length: int, **named: bytes) -> bytes:
    ((name, value),) = named.items()
    if not isinstance(value, bytes) or len(value) != length:
        raise InvalidInputError(f"{name} must be {length} bytes, got {_describe(value)}")
    return value


def _describe(value: object) -> str:
    return str(len(value)) if isinstance(value, bytes) else type(value).__name__


def _present(key: _T | None) -> _T:
    if key is None:
        raise InvalidInputError("this key was wiped; derive or draw a new one")
    return key
