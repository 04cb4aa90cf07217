"""Encrypt for one recipient with HPKE (RFC 9180), without associated data, and decrypt.

Hazard layer, see `fedtally.crypto`. The mode is base, with X25519, HKDF-SHA256 and AES-256-GCM.
Anybody who knows the public key can seal, and a ciphertext does not prove who sealed it. A `Label`
and fields bind a ciphertext to its purpose: joined, they are the `info` of the RFC. The result of
`seal` is the encapsulated key, 32 bytes, and then the ciphertext, 16 bytes longer than the
plaintext.

The library `cryptography` draws the ephemeral key of each message from the operating system, and
the caller cannot pass one. If a caller passed the same key twice, two plaintexts would be encrypted
under one key and nonce.
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
    """Hold the X25519 secret key of a recipient; do not use this key outside this class.

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
        """Decrypt bytes that `seal` made for this key.

        Args:
            sealed: the bytes to decrypt.
            label: the purpose, the same as in the call of `seal`.
            fields: the fields, the same as in the call of `seal`.

        Returns:
            The plaintext.

        Raises:
            RejectedError: the bytes were sealed for another key, label or fields, were changed, or
                have an empty plaintext; or `check_point` refuses their encapsulated key.
            InvalidInputError: this key was wiped.
        """
        key, info = _present(self._key), _join(label, fields)
        if not isinstance(sealed, bytes) or len(sealed) <= OVERHEAD_BYTES:
            raise RejectedError(f"what is sealed must be bytes, more than {OVERHEAD_BYTES} of them")
        # With a point of low order the shared secret would be zero, which everybody knows: RFC
        # 9180, section 7.1.4, demands the check. A second encoding of a point is refused, too. With
        # it the ciphertext would not open anyway, since the key depends on the encoding's bytes.
        check_point(sealed[:KEY_BYTES])
        try:
            return Secret(_SUITE.decrypt(sealed, key, info=info))
        except InvalidTag:
            raise RejectedError(
                "it does not open: sealed to another key or for another purpose, or changed"
            ) from None

    def derive(self, salt: bytes, label: Label) -> Secret:
        """Derive a secret of 32 bytes from this secret key with HKDF-SHA256.

        Args:
            salt: public bytes, such as the context of a session; each salt gives another secret.
            label: the purpose of the secret. Do not use a label that `seal` is called with.

        Raises:
            InvalidInputError: this key was wiped.
        """
        secret = bytearray(_present(self._key).private_bytes_raw())
        # X25519 sets or ignores these five bits of a key (RFC 7748, section 5). So 32 different
        # secrets are the same key and open the same ciphertexts. If the bits were not set here, the
        # 32 secrets would give 32 results.
        secret[0] &= 248
        secret[31] = secret[31] & 127 | 64
        clamped = Secret(secret)
        secret[:] = bytes(KEY_BYTES)
        derived = hkdf(clamped, salt, label)
        clamped.wipe()
        return derived

    def wipe(self) -> None:
        """Drop the secret key: `open` and `derive` then raise. The library overwrites the key."""
        self._key = None


def seal(public: bytes, plaintext: Secret, label: Label, *fields: bytes) -> bytes:
    """Encrypt a plaintext to a public key.

    Args:
        public: the recipient's public key, 32 bytes.
        plaintext: the bytes to encrypt.
        label: the purpose of the ciphertext.
        fields: values that the ciphertext is bound to. Their lengths must follow the rule at the
            top of `crypto.keys`.

    Returns:
        The sealed bytes, `OVERHEAD_BYTES` longer than the plaintext. They differ at each call.

    Raises:
        RejectedError: `check_point` refuses the public key.
    """
    key = X25519PublicKey.from_public_bytes(check_point(public))
    return _SUITE.encrypt(plaintext.reveal(), key, info=_join(label, fields))
