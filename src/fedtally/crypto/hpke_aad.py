"""HPKE (RFC 9180) with associated data, for one message to one recipient. Hazard layer.

The mode is base, with X25519, HKDF-SHA256 and AES-128-GCM: every implementation of DAP has this
suite. The library's HPKE, which `hpke` uses, takes no associated data. DAP needs them: they bind a
share to its task and report. So this file has the key schedule, over the library's X25519 and
AES-GCM.

As in `hpke`, the library draws the ephemeral key of every seal itself: a caller that passed the
same key twice would encrypt two plaintexts under one key and nonce.
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

SUITE = (0x0020, 0x0001, 0x0001)  # KEM, KDF and AEAD, by their numbers in the RFC

_KEM_ID = b"KEM" + SUITE[0].to_bytes(2, "big")
_SUITE_ID = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in SUITE)
_AES_BYTES, _NONCE_BYTES = 16, 12


class RecipientKey(_Hidden):
    """The X25519 secret key of a recipient; never use it for any other key exchange.

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
        """Return the plaintext of a ciphertext that `seal` made.

        Args:
            enc: the encapsulated key that came from a peer, 32 bytes.
            sealed: the ciphertext that came with the encapsulated key.
            info: the purpose that the ciphertext must be sealed for.
            aad: the associated data that the ciphertext must be bound to.

        Raises:
            RejectedError: the bytes were not sealed to this key for this purpose and these data,
                were changed, or `check_point` refuses the encapsulated key.
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
        """Drop the secret key; the library overwrites its memory."""
        self._key = None


def seal(public: bytes, plaintext: bytes, info: bytes, aad: bytes) -> tuple[bytes, bytes]:
    """Return an encapsulated key of 32 bytes and a ciphertext; both differ at each call.

    The ciphertext is 16 bytes longer than the plaintext.

    Args:
        public: the recipient's public key, 32 bytes.
        plaintext: the bytes to seal.
        info: the purpose of the ciphertext.
        aad: the associated data that the ciphertext is bound to.

    Raises:
        RejectedError: `check_point` refuses the key.
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
    """Return the cipher and the nonce of its first message (RFC 9180, sections 4.1 and 5.1).

    Args:
        shared: the result of the X25519 exchange, 32 bytes.
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
    """Return `length` bytes of HKDF-Expand, at most 32: one block."""
    text = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(prk, text + b"\1", hashlib.sha256)[:length]
