"""HPKE as DAP has it: configurations with numbers, and sealed bytes that name theirs."""

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
        keys: the keys by the number of their configuration, 0 .. 255; new reports are sealed to the
            first one, and what was sealed to another still opens.

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
        """What clients fetch."""
        return HpkeConfigList(tuple(config(id, key.public) for id, key in self._keys.items()))

    def open(self, sealed: HpkeCiphertext, info: bytes, aad: bytes) -> bytes:
        """Return the plaintext of `seal`.

        Raises:
            RejectedError: no key has this number, or the bytes do not open.
        """
        key = self._keys.get(sealed.config)
        if key is None:
            raise RejectedError(f"no key has the number {sealed.config}")
        return key.open(sealed.key, sealed.payload, info, aad)


def config(id: int, public: bytes) -> HpkeConfig:
    """Return the configuration of a public key.

    Raises:
        RejectedError: it is no key.
    """
    return HpkeConfig(id, *SUITE, check_point(public))


def choose(configs: HpkeConfigList) -> HpkeConfig:
    """Return the configuration of a server that a client seals to: the first of the known suite.

    Raises:
        InvalidInputError: two have one number, or none is of the suite with a valid key.
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
    """Return a plaintext sealed to a configuration; each call returns other bytes.

    Raises:
        RejectedError: the configuration has no valid key.
    """
    return HpkeCiphertext(recipient.id, *hpke_aad.seal(recipient.key, plaintext, info, aad))
