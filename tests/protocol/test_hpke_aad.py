"""HPKE with associated data: the RFC's vector, and the independent reading both ways."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from test_hpke import AAD, BYTES_32, INFO, PLAINTEXT, VECTORS, open_base, public, seal_base

from fedtally.crypto import hpke_aad
from fedtally.crypto.hpke_aad import RecipientKey, seal
from fedtally.crypto.keys import RejectedError, Secret
from fedtally.errors import InvalidInputError

KEY = RecipientKey(Secret(bytes(range(32))))
SHORT = st.binary(max_size=40)


def test_the_vector_of_the_rfc() -> None:
    """RFC 9180, A.1.1.1, sequence number 0."""
    ephemeral, recipient, _, _, sealed = map(bytes.fromhex, VECTORS[1])
    drawn = X25519PrivateKey.from_private_bytes(ephemeral)
    made = hpke_aad._seal(drawn, public(recipient), PLAINTEXT, INFO, AAD)
    assert b"".join(made) == sealed
    key = RecipientKey(Secret(recipient))
    assert key.public == public(recipient)
    assert key.open(sealed[:32], sealed[32:], INFO, AAD) == PLAINTEXT


@given(BYTES_32, BYTES_32, st.binary(max_size=99), SHORT, SHORT)
def test_it_agrees_with_the_independent_reading(
    secret: bytes, ephemeral: bytes, plaintext: bytes, info: bytes, aad: bytes
) -> None:
    key = RecipientKey(Secret(secret))
    enc, sealed = seal(key.public, plaintext, info, aad)
    assert open_base(1, enc + sealed, secret, info, aad) == plaintext
    other = seal_base(1, plaintext, key.public, ephemeral, info, aad)
    assert key.open(other[:32], other[32:], info, aad) == plaintext


def test_each_seal_draws_its_own_key() -> None:
    one, two = (seal(KEY.public, b"share", b"info", b"aad") for _ in range(2))
    assert one[0] != two[0]
    assert one[1] != two[1]


def test_whatever_is_changed_does_not_open() -> None:
    enc, sealed = seal(KEY.public, b"share", b"info", b"aad")
    other = RecipientKey(Secret(bytes(32)))
    flipped = sealed[:-1] + bytes([sealed[-1] ^ 1])
    cases = [
        (other, enc, sealed, b"info", b"aad"),
        (KEY, other.public, sealed, b"info", b"aad"),
        (KEY, enc, flipped, b"info", b"aad"),
        (KEY, enc, sealed[:-1], b"info", b"aad"),
        (KEY, enc, sealed[:15], b"info", b"aad"),
        (KEY, enc, b"", b"info", b"aad"),
        (KEY, enc, sealed, b"inf", b"aad"),
        (KEY, enc, sealed, b"info", b"aae"),
        (KEY, enc, sealed, b"info", b""),
        (KEY, enc[:31], sealed, b"info", b"aad"),
        (KEY, bytes(32), sealed, b"info", b"aad"),  # a point of low order
    ]
    for key, *parts in cases:
        with pytest.raises(RejectedError):
            key.open(*parts)
    assert KEY.open(enc, sealed, b"info", b"aad") == b"share"


def test_a_key_of_low_order_is_refused() -> None:
    with pytest.raises(RejectedError, match="low order"):
        seal(bytes(32), b"share", b"info", b"aad")


def test_a_wiped_key_opens_nothing() -> None:
    key = RecipientKey(Secret(bytes(range(32))))
    enc, sealed = seal(key.public, b"share", b"info", b"aad")
    key.wipe()
    with pytest.raises(InvalidInputError, match="wiped"):
        key.open(enc, sealed, b"info", b"aad")
    assert "hidden" in repr(key)
