"""The key table of ``fedtally-secagg/1``, over X25519, Ed25519, HKDF and AES-256-GCM. Hazard layer.

A `Label` binds every derived value to one purpose. The functions of the key table, `mask_key` to
`ring_order_key`, say which secret, salt and fields a key is derived from. Integers in fields are
little-endian, 32 bits wide. Fields are joined without separators. So under one label each field
must always have the same length: otherwise two lists of fields could give the same bytes.

Secrets are objects that do not print, copy or pickle, and that can be wiped. In Python wiping does
not overwrite everything. It misses the temporary ``bytes`` of a derivation or exchange (they are
freed, not overwritten), copies that the caller made, and memory that the operating system wrote to
disk. The library overwrites its own copy of a key when it frees it.
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
_PREFIX = b"fedtally-secagg/1 "  # name and version: values of other protocols are not valid here
_FIELD_PRIME = 2**255 - 19
# Points of order 1, 2, 4 and 8 on Curve25519 (torsion Z/8) and on its twist (Z/4), by u-coordinate.
# The shared secret with such a point is zero for every secret key (RFC 7748, section 6.1).
_LOW_ORDER = frozenset(
    {
        0,
        1,
        _FIELD_PRIME - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)
# The same points in the Edwards form, by y-coordinate. Under such a key one signature is valid for
# every message.
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
    """Reject a public key, a signature or a ciphertext that came from a peer."""


class Label(bytes, Enum):
    """The purposes of hashes, derived keys and signatures.

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
    SIGNED_PLAN = _PREFIX + b"signed plan"  # "plan" was the label before plans had an end date
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
    """The base class of secrets: an object that does not print, copy or pickle."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise InvalidInputError(
            f"{type(self).__name__} is secret: it cannot be copied or pickled; pass the object on"
        )


class Secret(_Hidden):
    """Secret bytes, in a buffer of this object; two secrets are compared in constant time.

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
        """Return the bytes as a read-only view, which `wipe` makes useless.

        Args:
            length: the length that the secret must have; None allows any length.

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
        """Overwrite the bytes with zeros, and drop the buffer.

        An array or a view that still refers to the memory reads zeros.
        """
        # The bytes are overwritten in place first: a view that cannot be released must not keep
        # the secret.
        self._buffer[:] = bytes(len(self._buffer))
        with suppress(BufferError):
            self._view.release()
        self._buffer = bytearray()


class ExchangeKey(_Hidden):
    """An X25519 secret key (RFC 7748).

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
        """Return the raw shared secret of this key and a peer's public key: 32 bytes.

        It is not uniform: hash it with `hkdf` before any other use (RFC 7748, section 6.1).

        Args:
            point: the peer's public key, 32 bytes.

        Raises:
            RejectedError: `check_point` refuses the point.
            InvalidInputError: this key was wiped.
        """
        peer = X25519PublicKey.from_public_bytes(check_point(point))
        return Secret(_present(self._key).exchange(peer))

    def wipe(self) -> None:
        """Forget the secret key; the library clears it."""
        self._key = None


class SigningKey(_Hidden):
    """An Ed25519 secret key (RFC 8032).

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
        """Return the signature over the label and the fields: 64 bytes.

        Raises:
            InvalidInputError: this key was wiped.
        """
        return _present(self._key).sign(_join(label, fields))

    def wipe(self) -> None:
        """Forget the secret key; the library clears it."""
        self._key = None


def verify(public: bytes, signature: bytes, label: Label, *fields: bytes) -> None:
    """Check an Ed25519 signature over the label and the fields.

    Args:
        public: the public key of the signer, 32 bytes.
        signature: the signature that came from a peer, 64 bytes.
        label: the purpose of the signature.
        fields: the fields that the signature must cover.

    Raises:
        RejectedError: this key did not sign this label and these fields.

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

    A canonical key has 32 bytes and is below 2^255 - 19. So two keys are the same point only if
    their bytes are equal. A key that is not of low order never gives the shared secret zero.

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

    A canonical key has a y-coordinate below 2^255 - 19. Under a key of low order one signature is
    valid for every message, so that anybody could sign.

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
    """Return the SHA-256 of a label and fields: 32 bytes.

    >>> digest(Label.CONTEXT, bytes(32)).hex()[:16]
    '1fc6d049b0988732'
    """
    return hashlib.sha256(_join(label, fields)).digest()


def hkdf(secret: Secret, salt: bytes, info: bytes) -> Secret:
    """Return a key of 32 bytes that is derived with HKDF-SHA256 (RFC 5869)."""
    # 32 bytes are one block, so that extract and expand are one HMAC each. The byte 1 is the number
    # of the block.
    extracted = hmac.digest(salt, secret.reveal(), "sha256")
    return Secret(hmac.digest(extracted, info + b"\x01", "sha256"))


def seal(key: Secret, plaintext: Secret) -> bytes:
    """Return the AES-256-GCM ciphertext of a plaintext under nonce 0, and wipe the key.

    The ciphertext is 16 bytes longer than the plaintext. The fixed nonce is safe because a key
    seals only one plaintext, and the wipe prevents a second one. Two plaintexts under one key and
    nonce would reveal their difference, and allow forgeries.

    Args:
        key: the key, 32 bytes; this call wipes it.
        plaintext: the bytes to seal.
    """
    sealed = AESGCM(key.reveal(KEY_BYTES)).encrypt(_NONCE, plaintext.reveal(), None)
    key.wipe()
    return sealed


def unseal(key: Secret, sealed: bytes) -> Secret:
    """Return the plaintext of bytes that `seal` made, and wipe the key, also after an error.

    Args:
        key: the key, 32 bytes; this call wipes it.
        sealed: the sealed bytes that came from a peer.

    Raises:
        RejectedError: the bytes were not sealed under this key, were changed, or have an empty
            plaintext.
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


# The key table. Each function binds its key to the session (ctx) or to the roster (ctx2). So a key
# of one session or roster is useless in another one.


def mask_key(seed: Secret, ctx: bytes) -> ExchangeKey:
    """Return the key pair with which a client agrees on pair masks.

    Args:
        seed: the seed of the mask key, 20 bytes.
        ctx: the context of the session, 32 bytes.
    """
    secret = _from_seed(seed, ctx, Label.MASK_SECRET_KEY)
    key = ExchangeKey(secret)
    secret.wipe()
    return key


def commitment(seed: Secret, ctx: bytes) -> bytes:
    """Return the commitment to b, the seed of a client's self mask: 32 bytes, public.

    Args:
        seed: the 20 bytes of b.
        ctx: the context of the session, 32 bytes.
    """
    # b has 155 uniform bits, so that its hash hides it. The commitment is public: nothing to wipe.
    return bytes(_from_seed(seed, ctx, Label.COMMITMENT).reveal())


def self_mask_key(seed: Secret, ctx2: bytes, index: int) -> Secret:
    """Return the key of a client's self mask, 32 bytes.

    Args:
        seed: the 20 bytes of b.
        ctx2: the context of the roster, 32 bytes.
        index: the client's index in the roster.
    """
    return _from_seed(seed, ctx2, Label.SELF_MASK, _u32(index=index))


def pair_mask_key(
    shared: Secret, ctx2: bytes, own: int, own_key: bytes, peer: int, peer_key: bytes
) -> Secret:
    """Return the key of the pair mask of two clients, 32 bytes; both compute the same key.

    Args:
        shared: the result of `ExchangeKey.exchange` on the mask keys.
        ctx2: the context of the roster, 32 bytes.
        own: the index of this client in the roster.
        own_key: the public mask key of this client.
        peer: the index of the other client.
        peer_key: the public mask key of the other client.
    """
    pair = _pair(own, own_key, peer, peer_key)
    return hkdf(shared, _exact(KEY_BYTES, ctx2=ctx2), Label.PAIR_MASK + pair)


def share_keys(
    shared: Secret, ctx2: bytes, own: int, own_key: bytes, peer: int, peer_key: bytes
) -> tuple[Secret, Secret]:
    """Return the key that seals shares for the peer, and the key that opens the peer's shares.

    Each direction has its own key, 32 bytes. With one key for both directions, two plaintexts would
    be sealed under one key and nonce. And a server could return a client's own share to it as the
    share of the peer.

    Args:
        shared: the result of `ExchangeKey.exchange` on the encryption keys.
        ctx2: the context of the roster, 32 bytes.
        own: the index of this client in the roster.
        own_key: the public encryption key of this client.
        peer: the index of the other client.
        peer_key: the public encryption key of the other client.
    """
    info = Label.SHARE_ENCRYPTION + _pair(own, own_key, peer, peer_key)
    up, down = (
        hkdf(shared, _exact(KEY_BYTES, ctx2=ctx2), info + direction)
        for direction in (b"\x00", b"\x01")
    )
    return (up, down) if own < peer else (down, up)


def ring_order_key(ctx2: bytes) -> Secret:
    """Return the key of the stream that orders the ring, 32 bytes.

    The key is public: it depends only on ctx2, the context of the roster, 32 bytes.
    """
    # The secret is a constant, because every client must find the same order.
    return hkdf(Secret(bytes(32)), _exact(KEY_BYTES, ctx2=ctx2), Label.RING_ORDER)


def _from_seed(seed: Secret, context: bytes, label: Label, field: bytes = b"") -> Secret:
    seed.reveal(SEED_BYTES)
    return hkdf(seed, _exact(KEY_BYTES, context=context), label + field)


def _pair(own: int, own_key: bytes, peer: int, peer_key: bytes) -> bytes:
    """Return the indexes i < j and the public keys of two clients, encoded as i, j, key i, key j.

    Both clients get the same bytes.
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
