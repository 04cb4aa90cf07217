"""HPKE: an independent reading of RFC 9180, itself checked on the vectors of the RFC, against the
library both ways."""

from __future__ import annotations

import copy
import hmac
import pickle  # noqa: TID251 - to see that it is refused
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from hypothesis import given
from hypothesis import strategies as st

from fedtally.crypto import hpke
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Label, RejectedError, Secret
from fedtally.errors import InvalidInputError

LABEL = Label.TWO_SERVER_SEED
PRIME = 2**255 - 19
AEADS: dict[int, tuple[Callable[[bytes], Any], int]] = {
    1: (AESGCM, 16),
    2: (AESGCM, 32),
    3: (ChaCha20Poly1305, 32),
}
BYTES_32 = st.binary(min_size=32, max_size=32)
SKR = bytes(range(32))


# ---- RFC 9180, sections 4 and 5.1, for DHKEM(X25519, HKDF-SHA256) and HKDF-SHA256, base mode ----


def extract(suite: bytes, salt: bytes, label: bytes, ikm: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + ikm, "sha256")


def expand(suite: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    text = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(prk, text + b"\x01", "sha256")[:length]


def public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def exchange(secret: bytes, point: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).exchange(
        X25519PublicKey.from_public_bytes(point)
    )


def schedule(
    aead: int, shared: bytes, enc: bytes, recipient: bytes, info: bytes
) -> tuple[bytes, bytes]:
    """Return the key and the first nonce."""
    kem = b"KEM" + (0x20).to_bytes(2, "big")
    secret = expand(
        kem, extract(kem, b"", b"eae_prk", shared), b"shared_secret", enc + recipient, 32
    )
    suite = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (0x20, 1, aead))
    context = (
        b"\x00" + extract(suite, b"", b"psk_id_hash", b"") + extract(suite, b"", b"info_hash", info)
    )
    prk = extract(suite, secret, b"secret", b"")
    return expand(suite, prk, b"key", context, AEADS[aead][1]), expand(
        suite, prk, b"base_nonce", context, 12
    )


def open_base(aead: int, sealed: bytes, secret: bytes, info: bytes, aad: bytes = b"") -> bytes:
    enc = sealed[:32]
    key, nonce = schedule(aead, exchange(secret, enc), enc, public(secret), info)
    return bytes(AEADS[aead][0](key).decrypt(nonce, sealed[32:], aad))


def seal_base(
    aead: int, plaintext: bytes, recipient: bytes, ephemeral: bytes, info: bytes, aad: bytes = b""
) -> bytes:
    enc = public(ephemeral)
    key, nonce = schedule(aead, exchange(ephemeral, recipient), enc, recipient, info)
    return enc + bytes(AEADS[aead][0](key).encrypt(nonce, plaintext, aad))


INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
AAD = b"Count-0"
PLAINTEXT = b"Beauty is truth, truth beauty"
# RFC 9180, A.1.1 and A.2.1: skEm, skRm, key, base_nonce, enc || ct of sequence number 0
VECTORS = {
    1: (
        "52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736",
        "4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8",
        "4531685d41d65f03dc48f6b8302c05b0",
        "56d890e5accaaf011cff4b7d",
        (
            "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
            "f938558b5d72f1a23810b4be2ab4f84331acc02fc97ba"
            "bc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
        ),
    ),
    3: (
        "f4ec9b33b792c372c1d2c2063507b684ef925b8c75a42dbcbf57d63ccd381600",
        "8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb",
        "ad2744de8e17f4ebba575b3f5f5a8fa1f69c2a07f6e7500bc60ca6e3e3ec1c91",
        "5c4d98150661b848853b547f",
        (
            "1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a"
            "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938"
            "e131f0def8c8b60b4db21993c62ce81883d2dd1b51a28"
        ),
    ),
}


@pytest.mark.parametrize("aead", VECTORS)
def test_the_independent_reading_agrees_with_the_rfc(aead: int) -> None:
    """The RFC has X25519 with AES-128-GCM and with ChaCha20-Poly1305: what differs for AES-256-GCM
    is a number."""
    ephemeral, recipient, key, nonce, sealed = map(bytes.fromhex, VECTORS[aead])
    shared = exchange(ephemeral, public(recipient))
    assert schedule(aead, shared, public(ephemeral), public(recipient), INFO) == (key, nonce)
    assert seal_base(aead, PLAINTEXT, public(recipient), ephemeral, INFO, AAD) == sealed
    assert open_base(aead, sealed, recipient, INFO, AAD) == PLAINTEXT


@given(BYTES_32, st.binary(min_size=1, max_size=99), st.lists(st.binary(max_size=40), max_size=3))
def test_what_is_sealed_opens_by_the_independent_reading(
    secret: bytes, plaintext: bytes, fields: list[bytes]
) -> None:
    key = PrivateKey(Secret(secret))
    sealed = hpke.seal(key.public, Secret(plaintext), LABEL, *fields)
    assert len(sealed) == len(plaintext) + hpke.OVERHEAD_BYTES
    assert open_base(2, sealed, secret, LABEL + b"".join(fields)) == plaintext
    assert key.open(sealed, LABEL, *fields) == Secret(plaintext)


@given(BYTES_32, BYTES_32, st.binary(min_size=1, max_size=99), st.binary(max_size=40))
def test_what_the_independent_reading_seals_opens(
    secret: bytes, ephemeral: bytes, plaintext: bytes, bound: bytes
) -> None:
    key = PrivateKey(Secret(secret))
    assert key.public == public(secret)
    sealed = seal_base(2, plaintext, key.public, ephemeral, LABEL + bound)
    assert key.open(sealed, LABEL, bound) == Secret(plaintext)


def test_a_ciphertext_that_never_changes_opens() -> None:
    """Made by the reading above with the keys of RFC 9180, A.1.1: an answer that every version must
    give."""
    ephemeral, recipient = (bytes.fromhex(VECTORS[1][i]) for i in (0, 1))
    sealed = seal_base(2, bytes(32), public(recipient), ephemeral, LABEL + b"bound")
    assert (
        sealed.hex() == "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
        "e7ffc5b1017dd0a2721fc2910ede08686dc3f877f62ce88e"
        "5d229f79b3838e5a01c852bb2a80130b010201616efe81db"
    )
    assert PrivateKey(Secret(recipient)).open(sealed, LABEL, b"bound") == Secret(bytes(32))


def test_every_seal_is_another() -> None:
    key = PrivateKey(Secret(SKR))
    sealed = {hpke.seal(key.public, Secret(b"same"), LABEL) for _ in range(8)}
    assert len(sealed) == 8 and len({one[:32] for one in sealed}) == 8


# ---- what does not open ----


def test_no_truncation_and_no_flipped_bit_opens() -> None:
    key = PrivateKey(Secret(SKR))
    sealed = seal_base(2, b"seed", key.public, bytes(31) + b"\x07", LABEL + b"bound")
    assert key.open(sealed, LABEL, b"bound") == Secret(b"seed")
    for changed in [sealed[:length] for length in range(len(sealed))] + [sealed + b"\x00"]:
        with pytest.raises(RejectedError):
            key.open(changed, LABEL, b"bound")
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RejectedError):
            key.open(bytes(flipped), LABEL, b"bound")


def test_it_opens_for_its_purpose_and_by_its_key_alone() -> None:
    key = PrivateKey(Secret(SKR))
    sealed = hpke.seal(key.public, Secret(b"seed"), LABEL, b"bound")
    for other, label, field in (
        (key, LABEL, b"bounD"),
        (key, LABEL, b""),
        (key, Label.TWO_SERVER_MASK, b"bound"),
        (PrivateKey(Secret(bytes(32))), LABEL, b"bound"),
    ):
        with pytest.raises(RejectedError, match="does not open"):
            other.open(sealed, label, field)


@pytest.mark.parametrize(
    "number", [0, 1, PRIME - 1, PRIME, PRIME + 1, PRIME + 9, 2**255 - 1, 2**256 - 1]
)
def test_low_order_and_non_canonical_points_are_refused(number: int) -> None:
    key, point = PrivateKey(Secret(SKR)), number.to_bytes(32, "little")
    sealed = hpke.seal(key.public, Secret(b"seed"), LABEL)
    with pytest.raises(RejectedError, match="a public key must"):
        key.open(point + sealed[32:], LABEL)
    with pytest.raises(RejectedError, match="a public key must"):
        hpke.seal(point, Secret(b"seed"), LABEL)


def test_another_encoding_of_a_point_is_refused() -> None:
    """u + p is the point u to X25519; the sealed key is bound to its bytes, and only one encoding
    is taken."""
    key = PrivateKey(Secret(SKR))
    # the base point: its secret key would be 1, clamped away
    twin = (9 + PRIME).to_bytes(32, "little")
    shared = exchange(SKR, (9).to_bytes(32, "little"))
    code, nonce = schedule(2, shared, twin, key.public, bytes(LABEL))
    sealed = twin + AESGCM(code).encrypt(nonce, b"seed", b"")
    with pytest.raises(RejectedError, match="its only valid encoding"):
        key.open(sealed, LABEL)


@pytest.mark.parametrize("sealed", [b"", bytes(48), "text" * 20, None, bytearray(80)])
def test_what_is_nothing_sealed(sealed: Any) -> None:
    with pytest.raises(RejectedError, match="must be bytes, more than 48"):
        PrivateKey(Secret(SKR)).open(sealed, LABEL)


def test_the_label_is_one_of_the_list() -> None:
    key = PrivateKey(Secret(SKR))
    for use in (
        lambda: hpke.seal(key.public, Secret(b"x"), b"text"),
        lambda: key.open(bytes(80), b"text"),
    ):  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="one of Label"):
            use()


# ---- the key ----


def test_the_key_hides_and_is_of_no_use_when_wiped() -> None:
    key = PrivateKey(Secret(SKR))
    assert repr(key) == str(key) == "PrivateKey(hidden)" and not hasattr(key, "__dict__")
    for refused in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInputError, match="cannot be copied or pickled"):
            refused(key)
    sealed = hpke.seal(key.public, Secret(b"seed"), LABEL)
    key.wipe()
    with pytest.raises(InvalidInputError, match="was wiped"):
        key.open(sealed, LABEL)
    with pytest.raises(InvalidInputError, match="must be of 32 bytes, got 31"):
        PrivateKey(Secret(bytes(31)))
