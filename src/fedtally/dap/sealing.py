"""Encryption to the servers and the collector of DAP, with HPKE (RFC 9180).

A key configuration is a public key with a number. A ciphertext states the number of the key that
opens it. To seal means to encrypt, and to open means to decrypt.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedtally.base import validate
from fedtally.crypto import hpke_aad
from fedtally.crypto.hpke_aad import SUITE, RecipientKey
from fedtally.crypto.keys import RejectedError, check_point
from fedtally.dap.draft18 import HpkeCiphertext, HpkeConfig, HpkeConfigList
from fedtally.errors import InvalidInputError


class Keyring:
    """The private keys of a server or of the collector.

    Args:
        keys: a mapping from the number of a key configuration, 0 .. 255, to its key; at least one.
            Clients seal new reports to the first key. The other keys only open older ciphertexts.

    Raises:
        InvalidInputError: there is no key, or a number is out of range.

    >>> from fedtally.crypto.keys import Secret
    >>> ring = Keyring({7: RecipientKey(Secret(bytes(32)))})
    >>> sealed = seal(ring.configs.configs[0], b"a share", b"purpose", b"task")
    >>> sealed.config, ring.open(sealed, b"purpose", b"task")
    (7, b'a share')
    """

    def __init__(self, keys: Mapping[int, RecipientKey]) -> None:
        self._keys = {validate.integer(0, 255, key_number=id): key for id, key in keys.items()}
        if not self._keys:
            raise InvalidInputError("a keyring must have a key, got none")

    def __contains__(self, id: int) -> bool:
        return id in self._keys

    @property
    def configs(self) -> HpkeConfigList:
        """The configurations of the public keys, in the order of `keys`; clients fetch them."""
        return HpkeConfigList(tuple(config(id, key.public) for id, key in self._keys.items()))

    def open(self, sealed: HpkeCiphertext, info: bytes, aad: bytes) -> bytes:
        """Decrypt a ciphertext that `seal` made, and return its plaintext.

        Args:
            sealed: the ciphertext, with the number of its key.
            info: the purpose that was given to `seal`.
            aad: the associated data that were given to `seal`.

        Raises:
            RejectedError: this keyring has no key with the number, or the ciphertext was changed,
                sealed to another key, or sealed with another `info` or `aad`.
        """
        key = self._keys.get(sealed.config)
        if key is None:
            raise RejectedError(f"no key has the number {sealed.config}")
        return key.open(sealed.key, sealed.payload, info, aad)


def config(id: int, public: bytes) -> HpkeConfig:
    """Return the configuration of a public key: its number, its HPKE algorithms and the key.

    Args:
        id: the number of the configuration, 0 .. 255.
        public: the X25519 public key, 32 bytes.

    Raises:
        RejectedError: `public` is no valid X25519 key.
    """
    return HpkeConfig(id, *SUITE, check_point(public))


def choose(configs: HpkeConfigList) -> HpkeConfig:
    """Return the key configuration that a client seals to: one of the configurations of a server.

    It is the first configuration with the algorithms X25519, HKDF-SHA256 and AES-128-GCM. fedtally
    supports no other algorithms.

    Args:
        configs: the key configurations of a server.

    Raises:
        InvalidInputError: two configurations have the same number, no configuration has these
            algorithms, or the key of the chosen configuration is not valid.
    """
    if len({each.id for each in configs.configs}) < len(configs.configs):
        raise InvalidInputError("a server offers two keys of one number; tell its operator")
    for each in configs.configs:
        if each.suite == SUITE:
            check_point(each.key)
            return each
    raise InvalidInputError(
        "a server offers no key for X25519, HKDF-SHA256 and AES-128-GCM; tell its operator"
    )


def seal(recipient: HpkeConfig, plaintext: bytes, info: bytes, aad: bytes) -> HpkeCiphertext:
    """Encrypt a plaintext to a key configuration, and return the ciphertext.

    Each call returns another ciphertext, since HPKE draws a fresh key.

    Args:
        recipient: the key configuration of the recipient.
        plaintext: the bytes to encrypt.
        info: the purpose of the ciphertext. `Keyring.open` must get the same bytes.
        aad: the associated data. `Keyring.open` must get the same bytes.

    Raises:
        RejectedError: the key of `recipient` is not valid.
    """
    return HpkeCiphertext(recipient.id, *hpke_aad.seal(recipient.key, plaintext, info, aad))
