"""Encrypt for one recipient with HPKE (RFC 9180) and associated data, and decrypt.

Hazard layer, see `fedtally.crypto`. The mode is base, with X25519, HKDF-SHA256 and AES-128-GCM:
every implementation of DAP has these algorithms. DAP needs associated data: they bind a share to
its task and report. The HPKE of the library `cryptography`, which `hpke` calls, takes none. So this
file computes HPKE's key schedule itself, from the library's X25519 and AES-GCM.

The library draws the ephemeral key of each message, and the caller cannot pass one. If a caller
passed the same key twice, two plaintexts would be encrypted under one key and nonce.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedtally.crypto.keys import (
    KEY_BYTES,
    TAG_BYTES,
    RejectedError,
    Secret,
    _Hidden,
    _present,
    check_point,
)

SUITE = (0x0020, 0x0001, 0x0001)  # the RFC's numbers of X25519, HKDF-SHA256 and AES-128-GCM

_KEM_ID = b"KEM" + SUITE[0].to_bytes(2, "big")
_SUITE_ID = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in SUITE)
_AES_BYTES, _NONCE_BYTES = 16, 12


class RecipientKey(_Hidden):
    """Hold the X25519 secret key of a recipient; do not use this key outside this class.

    Args:
        secret: 32 uniform bytes.

    Attributes:
        public: the public key, 32 bytes.

    >>> key = RecipientKey(Secret(bytes(32)))
    >>> enc, sealed = seal(key.public, b"a share", b"purpose", b"task")
    >>> key.open(enc, sealed, b"purpose", b"task")
    b'a share'
    """

    __slots__ = ("_key", "public")

    def __init__(self, secret: Secret) -> None:
        self._key: X25519PrivateKey | None = X25519PrivateKey.from_private_bytes(
            secret.reveal(KEY_BYTES)
        )
        self.public = self._key.public_key().public_bytes_raw()

    def open(self, enc: bytes, sealed: bytes, info: bytes, aad: bytes) -> bytes:
        """Decrypt a ciphertext that `seal` made for this key.

        Args:
            enc: the encapsulated key that came with the ciphertext, 32 bytes.
            sealed: the ciphertext.
            info: the purpose, the same bytes as in the call of `seal`.
            aad: the associated data, the same bytes as in the call of `seal`.

        Returns:
            The plaintext.

        Raises:
            RejectedError: the ciphertext was made for another key, another purpose or other
                associated data, or was changed; or `check_point` refuses `enc`.
            InvalidInputError: this key was wiped.
        """
        key = _present(self._key)
        if len(sealed) < TAG_BYTES:
            raise RejectedError(f"what is sealed must be {TAG_BYTES} bytes or more")
        shared = key.exchange(X25519PublicKey.from_public_bytes(check_point(enc)))
        cipher, nonce = _schedule(shared, enc, self.public, info)
        try:
            return cipher.decrypt(nonce, sealed, aad)
        except InvalidTag:
            raise RejectedError(
                "it does not open: sealed to another key or for another purpose, or changed"
            ) from None

    def wipe(self) -> None:
        """Drop the secret key, so that `open` raises; the library overwrites the key."""
        self._key = None


def seal(public: bytes, plaintext: bytes, info: bytes, aad: bytes) -> tuple[bytes, bytes]:
    """Encrypt a plaintext to a public key.

    Args:
        public: the recipient's public key, 32 bytes.
        plaintext: the bytes to encrypt.
        info: the purpose of the ciphertext; `open` needs the same bytes.
        aad: the associated data that the ciphertext is bound to; `open` needs the same bytes.

    Returns:
        The encapsulated key, 32 bytes, and the ciphertext, 16 bytes longer than the plaintext. Both
        differ at each call.

    Raises:
        RejectedError: `check_point` refuses the public key.
    """
    return _seal(X25519PrivateKey.generate(), public, plaintext, info, aad)


def _seal(
    ephemeral: X25519PrivateKey, public: bytes, plaintext: bytes, info: bytes, aad: bytes
) -> tuple[bytes, bytes]:
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(check_point(public)))
    enc = ephemeral.public_key().public_bytes_raw()
    cipher, nonce = _schedule(shared, enc, public, info)
    return enc, cipher.encrypt(nonce, plaintext, aad)


def _schedule(shared: bytes, enc: bytes, public: bytes, info: bytes) -> tuple[AESGCM, bytes]:
    """Derive the cipher and the nonce for a single message (RFC 9180, sections 4.1 and 5.1).

    Args:
        shared: the raw result of the X25519 exchange of the ephemeral and the recipient's key, 32
            bytes.
        enc: the encapsulated key.
        public: the recipient's public key.
        info: the purpose of the ciphertext.
    """
    prk = _extract(_KEM_ID, b"", b"eae_prk", shared)
    secret = _expand(_KEM_ID, prk, b"shared_secret", enc + public, KEY_BYTES)
    mode = b"\0"  # base mode: neither a sender's key nor a pre-shared key
    context = (
        mode
        + _extract(_SUITE_ID, b"", b"psk_id_hash", b"")
        + _extract(_SUITE_ID, b"", b"info_hash", info)
    )
    prk = _extract(_SUITE_ID, secret, b"secret", b"")
    key = _expand(_SUITE_ID, prk, b"key", context, _AES_BYTES)
    return AESGCM(key), _expand(_SUITE_ID, prk, b"base_nonce", context, _NONCE_BYTES)


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + material, hashlib.sha256)


def _expand(suite: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """Compute LabeledExpand of RFC 9180, for at most 32 bytes: one block of HKDF-Expand."""
    text = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(prk, text + b"\1", hashlib.sha256)[:length]
