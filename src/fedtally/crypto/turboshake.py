"""Compute TurboSHAKE128 (RFC 9861), the hash with which Prio3 expands seeds.

Hazard layer, see `fedtally.crypto`. Only this file imports the library pycryptodome, and only when
a hash is computed. So whoever does not use Prio3 need not install it.
"""

from __future__ import annotations

from fedtally.base import validate
from fedtally.errors import MissingExtraError


def turboshake128(message: bytes, domain: int, length: int) -> bytes:
    """Compute the first `length` bytes of the TurboSHAKE128 hash of a message.

    Args:
        message: any bytes.
        domain: the domain separation byte, 1 .. 127.
        length: the number of bytes to return, at least 0.

    Raises:
        MissingExtraError: pycryptodome is not installed.

    >>> turboshake128(b"", 31, 8).hex()
    '1e415f1c5983aff2'
    """
    validate.integer(1, 127, domain=domain)
    length = validate.integer(0, length=length)
    try:
        from Crypto.Hash import TurboSHAKE128
    except ImportError:
        raise MissingExtraError("Prio3 needs pycryptodome: pip install 'fedtally[prio3]'") from None
    return bytes(TurboSHAKE128.new(domain=domain, data=message).read(length))
