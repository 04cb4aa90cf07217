"""HPKE in DAP: a key configuration has a number, and a ciphertext has the number of its key."""

from __future__ import annotations

from collections.abc import Mapping

from fedtally.base import validate
from fedtally.crypto import hpke_aad
from fedtally.crypto.hpke_aad import SUITE, RecipientKey
from fedtally.crypto.keys import RejectedError, check_point
from fedtally.dap.draft18 import HpkeCiphertext, HpkeConfig, HpkeConfigList
from fedtally.errors import InvalidInputError


class Keyring:
    """The keys of a server or of the collector.

    Args:
        keys: the keys by the number of their configuration, 0 .. 255. Clients seal new reports to
            the first key; ciphertexts for the other keys still open.

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
        """The configurations of the public keys, which clients fetch; the first is preferred."""
        return HpkeConfigList(tuple(config(id, key.public) for id, key in self._keys.items()))

    def open(self, sealed: HpkeCiphertext, info: bytes, aad: bytes) -> bytes:
        """Return the plaintext of a ciphertext that `seal` made.

        Args:
            sealed: the ciphertext, with the number of its key.
            info: the purpose that the ciphertext must be sealed for.
            aad: the associated data that the ciphertext must be bound to.

        Raises:
            RejectedError: no key has this number, or the bytes do not open.
        """
        key = self._keys.get(sealed.config)
        if key is None:
            raise RejectedError(f"no key has the number {sealed.config}")
        return key.open(sealed.key, sealed.payload, info, aad)


def config(id: int, public: bytes) -> HpkeConfig:
    """Return the configuration of a public key.

    Args:
        id: the number of the configuration, 0 .. 255.
        public: the X25519 public key, 32 bytes.

    Raises:
        RejectedError: `check_point` refuses the key.
    """
    return HpkeConfig(id, *SUITE, check_point(public))


def choose(configs: HpkeConfigList) -> HpkeConfig:
    """Return the configuration that a client seals to: the first one with the suite known here.

    Args:
        configs: the key configurations of a server.

    Raises:
        InvalidInputError: two configurations have the same number, none has the suite, or the key
            of the first one that has the suite is not valid.
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
    """Return a plaintext sealed to a key configuration; the ciphertext differs at each call.

    Args:
        recipient: the key configuration of the recipient.
        plaintext: the bytes to seal.
        info: the purpose of the ciphertext.
        aad: the associated data that the ciphertext is bound to.

    Raises:
        RejectedError: the configuration has no valid key.
    """
    return HpkeCiphertext(recipient.id, *hpke_aad.seal(recipient.key, plaintext, info, aad))
