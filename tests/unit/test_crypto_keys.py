"""Keys: known answers of the RFCs and of NIST, the key table by a second reading, and what a peer
may send."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import pickle  # noqa: TID251 - to see that it is refused
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from fedtally.crypto import keys
from fedtally.crypto.keys import ExchangeKey, Label, RejectedError, Secret, SigningKey
from fedtally.errors import InvalidInputError

BYTES_32 = st.binary(min_size=32, max_size=32)
SEEDS = st.binary(min_size=20, max_size=20)
INDEXES = st.integers(0, 2**32 - 1)
PRIME = 2**255 - 19


def secret(value: str | bytes) -> Secret:
    return Secret(bytes.fromhex(value) if isinstance(value, str) else value)


def shown(value: Secret) -> str:
    return value.reveal().hex()


def le32(number: int) -> bytes:
    return number.to_bytes(4, "little")


# ---- secrets ----


MARK = b"\xc3\x5a\x99 not to be seen"
HIDDEN: list[Callable[[], Any]] = [
    lambda: Secret(MARK),
    lambda: ExchangeKey(Secret(MARK.ljust(32, b"!"))),
    lambda: SigningKey(Secret(MARK.ljust(32, b"!"))),
]


@pytest.mark.parametrize("make", HIDDEN)
def test_secrets_do_not_print(make: Callable[[], Any]) -> None:
    hidden = make()
    for text in (
        repr(hidden),
        str(hidden),
        f"{hidden}",
        "%s" % hidden,  # noqa: UP031
        repr([hidden]),
        repr({"key": hidden}),
    ):
        assert "hidden)" in text
        assert (
            "not to be seen" not in text and MARK.hex() not in text and repr(MARK)[2:-1] not in text
        )
    assert not hasattr(hidden, "__dict__")


@pytest.mark.parametrize("make", HIDDEN)
def test_secrets_do_not_pickle_or_copy(make: Callable[[], Any]) -> None:
    hidden = make()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(InvalidInputError, match="cannot be copied or pickled") as caught:
            pickle.dumps(hidden, protocol)
        assert "not to be seen" not in str(caught.value)
    for refused in (copy.copy, copy.deepcopy):
        with pytest.raises(InvalidInputError, match="cannot be copied or pickled"):
            refused(hidden)


def test_secrets_are_not_bytes_and_not_hashable() -> None:
    with pytest.raises(TypeError):
        bytes(Secret(MARK))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="unhashable"):
        hash(Secret(MARK))


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40))
def test_secrets_are_equal_when_their_bytes_are(one: bytes, other: bytes) -> None:
    assert Secret(one) == Secret(bytearray(one)) == Secret(memoryview(one))
    assert (Secret(one) == Secret(other)) == (one == other)
    assert Secret(one) != one
    assert len(Secret(one)) == len(one) and bytes(Secret(one).reveal()) == one


def test_equality_is_that_of_the_constant_time_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys.hmac, "compare_digest", lambda one, other: "asked")
    assert (Secret(b"a").__eq__(Secret(b"b"))) == "asked"


def test_a_secret_is_a_copy_of_its_own_and_read_only() -> None:
    drawn = bytearray(b"drawn")
    kept = Secret(drawn)
    drawn[:] = bytes(5)
    assert bytes(kept.reveal()) == b"drawn" and kept.reveal().readonly
    array = np.array([1, 2**31 - 2], "<u4")
    assert shown(Secret(array.data)) == "01000000feffff7f"


@pytest.mark.parametrize(
    "value", [b"", bytearray(), "text", 5, None, [1, 2], np.zeros(3, np.uint8)]
)
def test_what_is_not_a_secret(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="a secret must be bytes, at least one"):
        Secret(value)


def test_wiping_overwrites_and_ends_views() -> None:
    kept = Secret(MARK)
    buffer, view = kept._buffer, kept.reveal()
    kept.wipe()
    assert buffer == bytes(len(MARK)) and len(kept) == 0
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    for use in (kept.reveal, lambda: kept == Secret(MARK), lambda: keys.hkdf(kept, b"", b"")):
        with pytest.raises(InvalidInputError, match="was wiped"):
            use()
    kept.wipe()


def test_wiping_reaches_arrays_over_the_view() -> None:
    kept = Secret(MARK)
    array = np.frombuffer(kept.reveal(), np.uint8)
    kept.wipe()
    assert not array.any()
    with pytest.raises(InvalidInputError, match="was wiped"):
        kept.reveal()


def test_wiped_keys_are_of_no_use() -> None:
    exchange, signing = ExchangeKey(Secret(bytes(32))), SigningKey(Secret(bytes(32)))
    exchange.wipe()
    signing.wipe()
    with pytest.raises(InvalidInputError, match="was wiped"):
        exchange.exchange(exchange.public)
    with pytest.raises(InvalidInputError, match="was wiped"):
        signing.sign(Label.CONFIRM)


@pytest.mark.parametrize("length", [1, 31, 33, 64])
def test_keys_are_made_of_32_bytes(length: int) -> None:
    for make in (ExchangeKey, SigningKey):
        with pytest.raises(InvalidInputError, match=f"must be of 32 bytes, got {length}"):
            make(Secret(bytes(length)))


# ---- X25519 ----

# RFC 7748, section 5.2; the u-coordinate of the second one has its highest bit set there, which the
# RFC masks.
RFC7748 = [
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
        "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a413",
        "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
    ),
]


@pytest.mark.parametrize(("scalar", "point", "expected"), RFC7748)
def test_x25519_known_answers(scalar: str, point: str, expected: str) -> None:
    assert shown(ExchangeKey(secret(scalar)).exchange(bytes.fromhex(point))) == expected


def test_x25519_iterated() -> None:
    """RFC 7748, section 5.2: 1 and 1,000 iterations."""
    scalar = point = b"\x09" + bytes(31)
    for turn in range(1000):
        scalar, point = bytes(ExchangeKey(Secret(scalar)).exchange(point).reveal()), scalar
        if turn == 0:
            assert (
                scalar.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
            )
    assert scalar.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_x25519_agreement() -> None:
    """RFC 7748, section 6.1."""
    alice = ExchangeKey(secret("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = ExchangeKey(secret("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert (
        shown(alice.exchange(bob.public))
        == "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    )
    assert alice.exchange(bob.public) == bob.exchange(alice.public)


# The points to be refused, Bernstein's list (cr.yp.to/ecdh.html, "How do I validate Curve25519
# public keys?").
_C = 325606250916557431795983626356110631294008115727848805560023387167927233504
_D = 39382357235489614581723060781553021112529911719440698176882885853963445705823
BERNSTEIN = [0, 1, _C, _D, PRIME - 1, PRIME, PRIME + 1, PRIME + _C, PRIME + _D]
BERNSTEIN += [2 * PRIME - 1, 2 * PRIME, 2 * PRIME + 1]


@pytest.mark.parametrize("number", BERNSTEIN, ids=hex)
def test_points_of_low_order_are_refused(number: int) -> None:
    point = number.to_bytes(32, "little")
    with pytest.raises(
        RejectedError, match="low order" if number < PRIME else "only valid encoding"
    ):
        keys.check_point(point)
    with pytest.raises(RejectedError):
        ExchangeKey(Secret(bytes(range(32)))).exchange(point)


@pytest.mark.parametrize("number", [number for number in BERNSTEIN if number < 2**255], ids=hex)
@pytest.mark.parametrize("highest", [0, 2**255])
def test_the_library_yields_nothing_for_them(number: int, highest: int) -> None:
    """An oracle for the list: the exchange is zero, which it refuses.
    It does not look at the highest bit.
    """
    peer = X25519PublicKey.from_public_bytes((number + highest).to_bytes(32, "little"))
    with pytest.raises(ValueError, match="shared"):
        X25519PrivateKey.from_private_bytes(bytes(range(32))).exchange(peer)


@given(st.integers(2, 18))
def test_numbers_from_the_prime_on_are_refused(excess: int) -> None:
    """2^255 - 19 + x, with x below 19, is another encoding of x."""
    with pytest.raises(RejectedError, match="only valid encoding"):
        keys.check_point((PRIME + excess).to_bytes(32, "little"))


@given(BYTES_32, BYTES_32)
def test_the_highest_bit_is_refused(scalar: bytes, other: bytes) -> None:
    """The library ignores it: the same key would have two encodings."""
    key, point = ExchangeKey(Secret(scalar)), ExchangeKey(Secret(other)).public
    assert keys.check_point(point) == point
    twin = point[:31] + bytes([point[31] | 0x80])
    theirs = X25519PrivateKey.from_private_bytes(scalar).exchange(
        X25519PublicKey.from_public_bytes(twin)
    )
    assert bytes(key.exchange(point).reveal()) == theirs
    with pytest.raises(RejectedError, match="only valid encoding"):
        key.exchange(twin)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_point_or_refused(point: bytes) -> None:
    try:
        accepted = keys.check_point(point)
    except RejectedError:
        number = int.from_bytes(point, "little")
        assert len(point) != 32 or number in BERNSTEIN or number >= PRIME
    else:
        assert len(ExchangeKey(Secret(bytes(range(32)))).exchange(accepted)) == 32


@pytest.mark.parametrize(
    ("point", "got"), [(bytes(31), "31"), (bytes(33), "33"), (b"", "0"), ("9" * 32, "str")]
)
def test_points_of_another_length(point: Any, got: str) -> None:
    with pytest.raises(RejectedError, match=f"must be 32 bytes, got {got}"):
        keys.check_point(point)


# ---- Ed25519 ----

# RFC 8032, section 7.1: TEST 1 to 3.
RFC8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]


@pytest.mark.parametrize(("key", "public", "message", "signature"), RFC8032)
def test_ed25519_known_answers(
    key: str, public: str, message: str, signature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the RFC's messages have no label
    monkeypatch.setattr(keys, "_join", lambda label, fields: b"".join(fields))
    signing = SigningKey(secret(key))
    assert signing.public.hex() == public
    assert signing.sign(Label.CONFIRM, bytes.fromhex(message)).hex() == signature
    keys.verify(signing.public, bytes.fromhex(signature), Label.CONFIRM, bytes.fromhex(message))


@given(BYTES_32, st.sampled_from(Label), st.lists(st.binary(max_size=40), max_size=3))
def test_signatures_begin_with_their_label(key: bytes, label: Label, fields: list[bytes]) -> None:
    signing = SigningKey(Secret(key))
    signature = signing.sign(label, *fields)
    keys.verify(signing.public, signature, label, *fields)
    for other in Label:
        if other is not label:
            with pytest.raises(RejectedError, match="not one by this key"):
                keys.verify(signing.public, signature, other, *fields)


@given(st.integers(0, 511))
def test_every_flipped_bit_of_a_signature_is_seen(bit: int) -> None:
    signing = SigningKey(Secret(bytes(range(32))))
    signature = bytearray(signing.sign(Label.CONFIRM, b"bitmap"))
    signature[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RejectedError):
        keys.verify(signing.public, bytes(signature), Label.CONFIRM, b"bitmap")


@given(BYTES_32, st.binary(max_size=80))
def test_no_bytes_crash_the_verification(public: bytes, signature: bytes) -> None:
    with pytest.raises(RejectedError):
        keys.verify(SigningKey(Secret(bytes(32))).public, signature, Label.CONFIRM, b"bitmap")
    with contextlib.suppress(RejectedError):  # a key of low order, which nobody drew, accepts some
        keys.verify(public, signature, Label.CONFIRM, b"bitmap")


def test_a_signature_with_s_beyond_the_order_is_refused() -> None:
    """RFC 8032, section 5.1.7: S must be below the order, else one signature makes another."""
    signing = SigningKey(Secret(bytes(32)))
    signature = signing.sign(Label.CONFIRM)
    order = 2**252 + 27742317777372353535851937790883648493
    doubled = int.from_bytes(signature[32:], "little") + order
    with pytest.raises(RejectedError):
        keys.verify(signing.public, signature[:32] + doubled.to_bytes(32, "little"), Label.CONFIRM)


@pytest.mark.parametrize(
    ("public", "got"), [(bytes(31), "31"), (bytes(33), "33"), (None, "NoneType")]
)
def test_verification_keys_of_another_length(public: Any, got: str) -> None:
    with pytest.raises(InvalidInputError, match=f"public must be 32 bytes, got {got}"):
        keys.verify(public, bytes(64), Label.CONFIRM)


# ---- HKDF, digests, labels ----

# RFC 5869, appendix A.1 to A.3: the first 32 bytes of each output.
RFC5869 = [
    (
        b"\x0b" * 22,
        bytes(range(13)),
        bytes(range(0xF0, 0xFA)),
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf",
    ),
    (
        bytes(range(0x50)),
        bytes(range(0x60, 0xB0)),
        bytes(range(0xB0, 0x100)),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c",
    ),
    (b"\x0b" * 22, b"", b"", "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"),
]


@pytest.mark.parametrize(("key", "salt", "info", "expected"), RFC5869)
def test_hkdf_known_answers(key: bytes, salt: bytes, info: bytes, expected: str) -> None:
    assert shown(keys.hkdf(Secret(key), salt, info)) == expected


def test_no_label_begins_another() -> None:
    labels = list(Label)
    assert len({bytes(label) for label in labels}) == len(Label.__members__)
    for one, other in itertools.permutations(labels, 2):
        assert not other.startswith(one)
    assert all(label.startswith(b"fedtally-secagg/1 ") for label in labels)


def test_digests_begin_with_their_label() -> None:
    expected = hashlib.sha256(b"fedtally-secagg/1 roster context" + b"abc").digest()
    assert keys.digest(Label.ROSTER_CONTEXT, b"a", b"bc") == expected


@pytest.mark.parametrize("label", [b"fedtally-secagg/1 confirm", "confirm", None])
def test_labels_are_of_the_list(label: Any) -> None:
    for use in (keys.digest, SigningKey(Secret(bytes(32))).sign):
        with pytest.raises(InvalidInputError, match="label must be one of Label"):
            use(label, b"")


# ---- sealing ----


def test_gcm_known_answer() -> None:
    """AES-256-GCM, test case 14 of McGrew and Viega's specification: key, nonce and one block, all
    zero."""
    sealed = keys.seal(Secret(bytes(32)), Secret(bytes(16)))
    assert sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18" + "d0d1c8a799996bf0265b98b5d48ab919"


@given(BYTES_32, st.binary(min_size=1, max_size=80), st.data())
def test_what_was_sealed_opens_once_and_unchanged(
    key: bytes, plaintext: bytes, data: st.DataObject
) -> None:
    sealed = keys.seal(Secret(key), Secret(plaintext))
    assert sealed == AESGCM(key).encrypt(bytes(12), plaintext, None)
    assert len(sealed) == len(plaintext) + keys.TAG_BYTES
    assert bytes(keys.unseal(Secret(key), sealed).reveal()) == plaintext
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[bit // 8] ^= 1 << bit % 8
    cut = sealed[: data.draw(st.integers(0, len(sealed) - 1))]
    for damaged in (bytes(flipped), cut, sealed + b"\0"):
        with pytest.raises(RejectedError, match="does not open"):
            keys.unseal(Secret(key), damaged)
    with pytest.raises(RejectedError, match="does not open"):
        keys.unseal(Secret(bytes([key[0] ^ 1]) + key[1:]), sealed)


def test_nothing_sealed_is_refused() -> None:
    """Test case 13 of the same specification: the tag of no plaintext."""
    with pytest.raises(RejectedError, match="holds nothing"):
        keys.unseal(Secret(bytes(32)), bytes.fromhex("530f8afbc74536b9a963b4f1c4cb738b"))


def test_sealing_and_opening_use_up_the_key() -> None:
    key = Secret(bytes(32))
    sealed = keys.seal(key, Secret(b"shares"))
    with pytest.raises(InvalidInputError, match="was wiped"):
        keys.seal(key, Secret(b"others"))
    for content in (sealed, bytes(20)):
        key = Secret(bytes(32))
        try:
            keys.unseal(key, content)
        except RejectedError:
            assert content != sealed
        with pytest.raises(InvalidInputError, match="was wiped"):
            keys.unseal(key, content)


@pytest.mark.parametrize("length", [1, 16, 24, 31, 33])
def test_sealing_keys_are_of_32_bytes(length: int) -> None:
    with pytest.raises(InvalidInputError, match="must be of 32 bytes"):
        keys.seal(Secret(bytes(length)), Secret(b"shares"))
    with pytest.raises(InvalidInputError, match="must be of 32 bytes"):
        keys.unseal(Secret(bytes(length)), bytes(56))


# ---- the key table ----


def derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF as the library has it."""
    return HKDF(SHA256(), 32, salt, b"fedtally-secagg/1 " + info).derive(secret)


@given(SEEDS, BYTES_32, INDEXES)
def test_what_comes_from_seeds(seed: bytes, ctx: bytes, index: int) -> None:
    private = X25519PrivateKey.from_private_bytes(derived(seed, ctx, b"mask secret key"))
    assert keys.mask_key(Secret(seed), ctx).public == private.public_key().public_bytes_raw()
    assert keys.commitment(Secret(seed), ctx) == derived(seed, ctx, b"commitment to b")
    assert keys.self_mask_key(Secret(seed), ctx, index) == Secret(
        derived(seed, ctx, b"self mask" + le32(index))
    )
    assert keys.ring_order_key(ctx) == Secret(derived(bytes(32), ctx, b"ring order"))


@given(
    BYTES_32, BYTES_32, BYTES_32, BYTES_32, st.lists(INDEXES, min_size=2, max_size=2, unique=True)
)
def test_what_comes_from_pairs(
    shared: bytes, ctx2: bytes, own_key: bytes, peer_key: bytes, pair: list[int]
) -> None:
    own, peer = pair
    (i, pk_i), (j, pk_j) = (
        ((own, own_key), (peer, peer_key)) if own < peer else ((peer, peer_key), (own, own_key))
    )
    info = le32(i) + le32(j) + pk_i + pk_j
    mine = (Secret(shared), ctx2, own, own_key, peer, peer_key)
    theirs = (Secret(shared), ctx2, peer, peer_key, own, own_key)
    mask = Secret(derived(shared, ctx2, b"pair mask" + info))
    assert keys.pair_mask_key(*mine) == keys.pair_mask_key(*theirs) == mask
    outgoing, incoming = keys.share_keys(*mine)
    assert outgoing == Secret(
        derived(shared, ctx2, b"share encryption" + info + (b"\0" if own < peer else b"\1"))
    )
    assert incoming == Secret(
        derived(shared, ctx2, b"share encryption" + info + (b"\1" if own < peer else b"\0"))
    )
    assert (incoming, outgoing) == keys.share_keys(*theirs)
    assert outgoing != incoming and mask not in (outgoing, incoming)


def test_two_clients_seal_shares_for_each_other() -> None:
    ctx, ctx2 = bytes([1]) * 32, bytes([2]) * 32
    one, other = (keys.mask_key(Secret(bytes([seed]) * 20), ctx) for seed in (3, 4))
    to_other, from_other = keys.share_keys(
        one.exchange(other.public), ctx2, 9, one.public, 5, other.public
    )
    to_one, from_one = keys.share_keys(
        other.exchange(one.public), ctx2, 5, other.public, 9, one.public
    )
    assert (
        bytes(keys.unseal(from_one, keys.seal(to_other, Secret(b"for five"))).reveal())
        == b"for five"
    )
    sealed = keys.seal(to_one, Secret(b"for nine"))
    with pytest.raises(RejectedError):  # sent back to where it came from
        keys.unseal(
            keys.share_keys(other.exchange(one.public), ctx2, 5, other.public, 9, one.public)[1],
            sealed,
        )
    assert bytes(keys.unseal(from_other, sealed).reveal()) == b"for nine"


@pytest.mark.parametrize("length", [1, 19, 21, 32])
def test_seeds_are_of_20_bytes(length: int) -> None:
    seed = Secret(bytes(length))
    for use in (keys.mask_key, keys.commitment, lambda s, ctx: keys.self_mask_key(s, ctx, 0)):
        with pytest.raises(InvalidInputError, match=f"must be of 20 bytes, got {length}"):
            use(seed, bytes(32))


@pytest.mark.parametrize("context", [b"", bytes(31), bytes(33), "c" * 32, None])
def test_contexts_are_of_32_bytes(context: Any) -> None:
    key = bytes(32)
    uses: list[Callable[[], Any]] = [
        lambda: keys.mask_key(Secret(bytes(20)), context),
        lambda: keys.commitment(Secret(bytes(20)), context),
        lambda: keys.self_mask_key(Secret(bytes(20)), context, 0),
        lambda: keys.pair_mask_key(Secret(key), context, 0, key, 1, key),
        lambda: keys.share_keys(Secret(key), context, 0, key, 1, key),
        lambda: keys.ring_order_key(context),
    ]
    for use in uses:
        with pytest.raises(InvalidInputError, match="must be 32 bytes, got ") as caught:
            use()
        assert not isinstance(caught.value, RejectedError)  # the caller's fault, not a peer's


@pytest.mark.parametrize("use", [keys.pair_mask_key, keys.share_keys])
def test_pairs_are_of_two_clients(use: Callable[..., Any]) -> None:
    key = bytes(32)
    with pytest.raises(InvalidInputError, match="got index 7 twice"):
        use(Secret(key), key, 7, key, 7, key)
    with pytest.raises(InvalidInputError, match="index must be at most 4294967295"):
        use(Secret(key), key, 0, key, 2**32, key)
    with pytest.raises(InvalidInputError, match="index must be at least 0"):
        use(Secret(key), key, -1, key, 3, key)
    with pytest.raises(InvalidInputError, match="public_key must be 32 bytes, got 31"):
        use(Secret(key), key, 0, key, 1, key[1:])
    with pytest.raises(InvalidInputError, match="must be an integer"):
        keys.self_mask_key(Secret(bytes(20)), key, 0.5)  # type: ignore[arg-type]


# ---- identities ----


def edwards_add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Add two points of the twisted Edwards curve of RFC 8032, in affine coordinates."""
    d = -121665 * pow(121666, -1, PRIME) % PRIME
    (x1, y1), (x2, y2) = one, other
    product = d * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, PRIME) % PRIME
    return x, (y1 * y2 + x1 * x2) * pow(1 - product, -1, PRIME) % PRIME


def edwards_x(y: int) -> int | None:
    """Return an x with which y is on the curve, or None."""
    d = -121665 * pow(121666, -1, PRIME) % PRIME
    square = (y * y - 1) * pow(d * y * y + 1, -1, PRIME) % PRIME
    root = pow(square, (PRIME + 3) // 8, PRIME)
    for x in (root, root * pow(2, (PRIME - 1) // 4, PRIME) % PRIME):
        if x * x % PRIME == square:
            return x
    return None


def test_the_refused_identities_are_all_points_whose_order_divides_eight() -> None:
    found = set()
    for y in keys._LOW_ORDER_IDENTITIES:
        x = edwards_x(y)
        assert x is not None
        for signed in {x, PRIME - x if x else 0}:
            point = (signed, y)
            found.add(point)
            for _ in range(3):
                point = edwards_add(point, point)
            assert point == (0, 1)
    assert len(found) == 8  # the whole torsion subgroup, which is cyclic of order 8


@pytest.mark.parametrize("sign", [0, 1 << 255])
@pytest.mark.parametrize("y", [*sorted(keys._LOW_ORDER_IDENTITIES), PRIME, PRIME + 1, 2**255 - 1])
def test_identities_of_low_order_or_of_two_encodings_are_refused(y: int, sign: int) -> None:
    with pytest.raises(RejectedError, match="an identity must"):
        keys.check_identity((y | sign).to_bytes(32, "little"))


def test_anybody_signs_for_an_identity_of_low_order() -> None:
    neutral = (1).to_bytes(32, "little")
    keys.verify(neutral, neutral + bytes(32), Label.CONFIRM, b"whatever")  # why it is refused


@given(BYTES_32)
def test_identities_of_secret_keys_are_taken(key: bytes) -> None:
    public = SigningKey(secret(key)).public
    assert keys.check_identity(public) == public


def test_identities_must_be_bytes_of_one_length() -> None:
    for wrong in (b"", bytes(31), bytes(33), "x" * 32):
        with pytest.raises(RejectedError, match="an identity must be 32 bytes"):
            keys.check_identity(wrong)  # type: ignore[arg-type]
