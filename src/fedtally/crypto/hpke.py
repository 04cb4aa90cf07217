"""Hybrid public-key encryption (RFC 9180) for one recipient: base mode, X25519, HKDF-SHA256, AES-256-GCM. Hazard layer.

Whoever knows the public key can seal, once per call and without saying who it is; what a ciphertext
is for is bound to it by a `Label` and fields, as `info` of the RFC. The associated data are empty,
and only the first message of a context is used: 32 bytes of encapsulated key, then the ciphertext,
16 bytes longer than the plaintext.

The library draws the ephemeral key of every seal itself, from the operating system: the one place
in the core where randomness is not an argument, so that no caller can seal twice with one.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from fedtally.crypto.keys import (
    KEY_BYTES,
    TAG_BYTES,
    Label,
    RejectedError,
    Secret,
    _Hidden,
    _join,
    _present,
    check_point,
)

OVERHEAD_BYTES = KEY_BYTES + TAG_BYTES

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class PrivateKey(_Hidden):
    """The secret key of a recipient; not to be used for any other exchange.

    Args:
        secret: 32 bytes, uniform.

    Attributes:
        public: the public key, 32 bytes.

    >>> key = PrivateKey(Secret(bytes(32)))
    >>> sealed = seal(key.public, Secret(b"a seed"), Label.TWO_SERVER_SEED, b"what for")
    >>> len(sealed) - OVERHEAD_BYTES, bytes(key.open(sealed, Label.TWO_SERVER_SEED, b"what for").reveal())
    (6, b'a seed')
    """

    __slots__ = ("_key", "public")

    def __init__(self, secret: Secret) -> None:
        self._key: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(
            secret.reveal(KEY_BYTES)
        )
        self.public = self._key.public_key().public_bytes_raw()

    def open(self, sealed: bytes, label: Label, *fields: bytes) -> Secret:
        """Return the plaintext of `seal`.

        Args:
            sealed: what came from a peer.
            label: what it must be for.
            fields: what it must be bound to.

        Raises:
            RejectedError: it was not sealed to this key for this, was changed, holds nothing, or
                its encapsulated key is one that `check_point` refuses.
            InvalidInputError: this key was wiped.
        """
        key, info = _present(self._key), _join(label, fields)
        if not isinstance(sealed, bytes) or len(sealed) <= OVERHEAD_BYTES:
            raise RejectedError(f"what is sealed must be bytes, more than {OVERHEAD_BYTES} of them")
        check_point(sealed[:KEY_BYTES])
        try:
            return Secret(_SUITE.decrypt(sealed, key, info=info))
        except InvalidTag:
            raise RejectedError(
                "it does not open: sealed to another key or for another purpose, or changed"
            ) from None

    def wipe(self) -> None:
        """Forget the secret key; the library clears it."""
        self._key = None


def seal(public: bytes, plaintext: Secret, label: Label, *fields: bytes) -> bytes:
    """Return the plaintext sealed to a public key, `OVERHEAD_BYTES` longer, and different every time.

    Args:
        public: the recipient's key, 32 bytes.
        plaintext: what is sealed.
        label: what for.
        fields: what it is bound to; under one label each of them has one length.

    Raises:
        RejectedError: `check_point` refuses the key.
    """
    key = X25519PublicKey.from_public_bytes(check_point(public))
    return _SUITE.encrypt(plaintext.reveal(), key, info=_join(label, fields))
