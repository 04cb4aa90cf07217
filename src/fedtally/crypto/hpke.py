"""Hybrid public-key encryption (RFC 9180) for one recipient. Hazard layer.

The mode is base, with X25519, HKDF-SHA256 and AES-256-GCM: anybody who knows the public key can
seal, and a ciphertext does not prove who sealed it. A `Label` and fields, which are the `info` of
the RFC, bind a ciphertext to its purpose. The associated data are empty. A context seals only one
message: 32 bytes of encapsulated key, then the ciphertext, 16 bytes longer than the plaintext.

The library draws the ephemeral key of every seal itself, from the operating system. Only here and
in `hpke_aad` randomness is not an argument: a caller that passed the same ephemeral key twice would
encrypt two plaintexts under one key and nonce.
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
    hkdf,
)

OVERHEAD_BYTES = KEY_BYTES + TAG_BYTES  # the encapsulated key and the tag of AES-GCM

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class PrivateKey(_Hidden):
    """The X25519 secret key of a recipient; never use it for any other key exchange.

    Args:
        secret: 32 uniform bytes.

    Attributes:
        public: the public key, 32 bytes.

    >>> key = PrivateKey(Secret(bytes(32)))
    >>> sealed = seal(key.public, Secret(b"a seed"), Label.TWO_SERVER_SEED, b"field")
    >>> opened = key.open(sealed, Label.TWO_SERVER_SEED, b"field")
    >>> len(sealed) - OVERHEAD_BYTES, bytes(opened.reveal())
    (6, b'a seed')
    """

    __slots__ = ("_key", "public")

    def __init__(self, secret: Secret) -> None:
        self._key: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(
            secret.reveal(KEY_BYTES)
        )
        self.public = self._key.public_key().public_bytes_raw()

    def open(self, sealed: bytes, label: Label, *fields: bytes) -> Secret:
        """Return the plaintext of bytes that `seal` made.

        Args:
            sealed: the sealed bytes that came from a peer.
            label: the purpose that the bytes must be sealed for.
            fields: the fields that the bytes must be bound to.

        Raises:
            RejectedError: the bytes were not sealed to this key for this purpose, were changed, or
                have an empty plaintext; or `check_point` refuses their encapsulated key.
            InvalidInputError: this key was wiped.
        """
        key, info = _present(self._key), _join(label, fields)
        if not isinstance(sealed, bytes) or len(sealed) <= OVERHEAD_BYTES:
            raise RejectedError(f"what is sealed must be bytes, more than {OVERHEAD_BYTES} of them")
        # A point of low order would make the shared secret zero, which everybody knows: RFC 9180,
        # section 7.1.4, demands the check. A second encoding of a point would give a second
        # ciphertext of the same plaintext.
        check_point(sealed[:KEY_BYTES])
        try:
            return Secret(_SUITE.decrypt(sealed, key, info=info))
        except InvalidTag:
            raise RejectedError(
                "it does not open: sealed to another key or for another purpose, or changed"
            ) from None

    def derive(self, salt: bytes, label: Label) -> Secret:
        """Return a secret of 32 bytes that is derived from this secret key with HKDF-SHA256.

        Args:
            salt: public bytes, such as a context; each salt gives another secret.
            label: the purpose of the secret; it must not be a purpose of `seal`.

        Raises:
            InvalidInputError: this key was wiped.
        """
        secret = bytearray(_present(self._key).private_bytes_raw())
        # X25519 ignores these five bits of a key (RFC 7748, section 5). If they were not set here,
        # the 32 encodings of one key, which open the same ciphertexts, would give 32 results.
        secret[0] &= 248
        secret[31] = secret[31] & 127 | 64
        clamped = Secret(secret)
        secret[:] = bytes(KEY_BYTES)
        derived = hkdf(clamped, salt, label)
        clamped.wipe()
        return derived

    def wipe(self) -> None:
        """Drop the secret key; the library overwrites its memory."""
        self._key = None


def seal(public: bytes, plaintext: Secret, label: Label, *fields: bytes) -> bytes:
    """Return the plaintext sealed to a public key: bytes that differ at each call.

    The result is `OVERHEAD_BYTES` longer than the plaintext.

    Args:
        public: the recipient's public key, 32 bytes.
        plaintext: the bytes to seal.
        label: the purpose of the ciphertext.
        fields: the fields that the ciphertext is bound to; under one label each field must always
            have the same length.

    Raises:
        RejectedError: `check_point` refuses the key.
    """
    key = X25519PublicKey.from_public_bytes(check_point(public))
    return _SUITE.encrypt(plaintext.reveal(), key, info=_join(label, fields))
