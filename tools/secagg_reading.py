"""A second, independent reading of docs/protocol.md that imports nothing from fedtally.

Simple and slow on purpose: Python integers and the standard library, and the `cryptography` package
for X25519, Ed25519 and AES alone. `tools/gen_secagg_vectors.py` and
`tools/gen_two_server_vectors.py` compute known answers with it. The comments name the sections of
the page.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from decimal import Decimal, localcontext
from itertools import combinations
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PRIME = 2**31 - 1
SERVER, UNKNOWN = 0xFFFFFFFE, 0xFFFFFFFF
SEMI_HONEST, ACTIVE = 0, 1
PPM = 1_000_000
(
    INVITE,
    ADVERTISE,
    ROSTER,
    SHARES,
    INBOX,
    MASKED_INPUT,
    SURVIVORS,
    CONFIRM,
    CONFIRMATIONS,
    UNMASK,
    RESULT,
    ABORT,
) = range(12)
Vector = list[int]


class AbortError(Exception):
    """What ends a client or a server, with the code of the page.

    Attributes:
        code: 1 .. 19.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


# --------------------------------------------------------------------------------------------------
# Notation, Primitives.


def u8(value: int) -> bytes:
    """Return one byte."""
    return value.to_bytes(1, "little")


def u32(value: int) -> bytes:
    """Return four bytes, the lowest first."""
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    """Return eight bytes, the lowest first."""
    return value.to_bytes(8, "little")


def little(data: bytes) -> int:
    """Return the integer that little-endian bytes stand for."""
    return int.from_bytes(data, "little")


def bits(count: int) -> int:
    """Return the bytes of a bitmap of ``count`` bits."""
    return (count + 7) // 8


def bitmap(members: Iterable[int], count: int) -> bytes:
    """Return the bitmap of ``count`` bits in which the bits of ``members`` are set."""
    data = bytearray(bits(count))
    for member in members:
        data[member // 8] |= 1 << (member % 8)
    return bytes(data)


def members(data: bytes, count: int) -> list[int]:
    """Return the set bits of a bitmap, in order.

    Raises:
        AbortError: The length is not ``bits(count)``, or a padding bit is set: 1.
    """
    if len(data) != bits(count) or little(data) >> count:
        raise AbortError(1)
    return [i for i in range(count) if data[i // 8] >> (i % 8) & 1]


def label(words: str) -> bytes:
    """Return a label of the page from its last words."""
    return b"fedtally-secagg/1 " + words.encode("ascii")


def digest(words: str, *fields: bytes) -> bytes:
    """Return ``H(label, fields)``."""
    return hashlib.sha256(label(words) + b"".join(fields)).digest()


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Return 32 bytes of HKDF-SHA256: one block (RFC 5869)."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def public_key(secret: bytes) -> bytes:
    """Return the X25519 public key of 32 secret bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def exchange(secret: bytes, public: bytes) -> bytes:
    """Return the raw shared bytes of X25519."""
    return X25519PrivateKey.from_private_bytes(secret).exchange(
        X25519PublicKey.from_public_bytes(public)
    )


def identity_of(secret: bytes) -> bytes:
    """Return the Ed25519 public key of 32 secret bytes."""
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, words: str, *fields: bytes) -> bytes:
    """Return the Ed25519 signature over a label and fields."""
    return Ed25519PrivateKey.from_private_bytes(secret).sign(label(words) + b"".join(fields))


def possession(secret: bytes, registrar: bytes, purpose: str) -> bytes:
    """Return a client's signature in its proof of possession."""
    hashed = hashlib.sha256(purpose.encode("utf-8")).digest()
    return sign(secret, "proof of possession", registrar, hashed)


def proof_line(secret: bytes, registrar: bytes, purpose: str) -> str:
    """Return the text of a proof of possession."""
    signed = possession(secret, registrar, purpose).hex()
    keys = f"{identity_of(secret).hex()} {registrar.hex()}"
    return f"fedtally-proof/1 {keys} {signed} {quoted(purpose)}\n"


def quoted(purpose: str) -> str:
    """Return a purpose as the texts have it."""
    text, units = "", purpose.encode("utf-16-le")
    for i in range(0, len(units), 2):
        unit = little(units[i : i + 2])
        character = chr(unit)
        text += f"\\u{unit:04x}" if unit > 126 else "\\" * (character in '"\\') + character
    return f'"{text}"'


class Signed(NamedTuple):
    """What a registrar signs of a plan.

    Attributes:
        fingerprint: Of the plan.
        purpose: The registrar's words.
        number: Of the signature, within the purpose.
        last_day: As the text has it.
        replaced: The fingerprints of plans that end with this one, in ascending order.
    """

    fingerprint: bytes
    purpose: str
    number: int
    last_day: str
    replaced: list[bytes]


def plan_signature(secret: bytes, signed: Signed) -> bytes:
    """Return a registrar's signature of a plan."""
    days = (datetime.date.fromisoformat(signed.last_day) - datetime.date(1970, 1, 1)).days
    return sign(
        secret,
        "signed plan",
        signed.fingerprint,
        hashlib.sha256(signed.purpose.encode("utf-8")).digest(),
        u32(signed.number),
        u32(days),
        u32(len(signed.replaced)),
        *signed.replaced,
    )


def plan_line(secret: bytes, signed: Signed) -> str:
    """Return the text of the signature of a plan."""
    replaced = ",".join(one.hex() for one in signed.replaced) or "-"
    made = f"{signed.fingerprint.hex()} {plan_signature(secret, signed).hex()}"
    said = f"{signed.number} {signed.last_day} {replaced} {quoted(signed.purpose)}"
    return f"fedtally-signature/2 {identity_of(secret).hex()} {made} {said}\n"


def revocation(secret: bytes, revoked: list[bytes]) -> bytes:
    """Return a registrar's signature of a revocation."""
    return sign(secret, "revocation", u32(len(revoked)), *revoked)


def revocation_line(secret: bytes, revoked: list[bytes]) -> str:
    """Return the text of a revocation."""
    signed = revocation(secret, revoked).hex()
    plans = ",".join(one.hex() for one in revoked)
    return f"fedtally-revocation/1 {identity_of(secret).hex()} {signed} {plans}\n"


def verifies(public: bytes, signature: bytes, words: str, *fields: bytes) -> bool:
    """Return whether a signature over a label and fields is valid."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(
            signature, label(words) + b"".join(fields)
        )
    except (InvalidSignature, ValueError):
        return False
    return True


LOW_ORDER = {
    0,
    1,
    2**255 - 20,
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
}


def acceptable(public: bytes) -> bool:
    """Return whether an X25519 public key is canonical and not of low order."""
    return little(public) < 2**255 - 19 and little(public) not in LOW_ORDER


def seal(key: bytes, plaintext: bytes) -> bytes:
    """Return AES-256-GCM of a plaintext under a zero nonce, the tag at the end."""
    return AESGCM(key).encrypt(bytes(12), plaintext, None)


def unseal(key: bytes, ciphertext: bytes) -> bytes | None:
    """Return the plaintext, or None where the tag is wrong."""
    try:
        return AESGCM(key).decrypt(bytes(12), ciphertext, None)
    except InvalidTag:
        return None


CHUNK = 131_072


def prg(key: bytes, length: int) -> bytes:
    """Return the first ``length`` bytes of ``PRG(key)``, by counters be96(c) || be32(i + 2)."""
    assert 0 <= length <= 2**30
    pieces = []
    for c in range((length + CHUNK - 1) // CHUNK):
        start = c.to_bytes(12, "big") + (2).to_bytes(4, "big")
        pieces.append(
            Cipher(algorithms.AES(key), modes.CTR(start)).encryptor().update(bytes(CHUNK))
        )
    return b"".join(pieces)[:length]


def prg_block(key: bytes, chunk: int, block: int) -> bytes:
    """Return one block of the stream, by AES of that one counter alone."""
    counter = chunk.to_bytes(12, "big") + (block + 2).to_bytes(4, "big")
    # ECB is sound here, since it encrypts a single block.
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counter)  # noqa: S305


# Lanes, Packing.


def lane_width(b: int) -> int:
    """Return w, the bits that an entry is computed in."""
    return 16 if b <= 16 else 32 if b <= 32 else 64


def checksum_count(b: int) -> int:
    """Return the number of checksum entries."""
    return -(-64 // b)


def mask(key: bytes, count: int, b: int) -> Vector:
    """Return ``count`` integers of w bits from the stream of a key."""
    size = lane_width(b) // 8
    stream = prg(key, count * size)
    return [little(stream[size * i : size * i + size]) for i in range(count)]


def planes(b: int) -> list[tuple[int, int]]:
    """Return (width, first binary digit) of each plane, the widest first."""
    found, shift = [], 0
    for power in (64, 32, 16, 8, 4, 2, 1):
        if b & power:
            found.append((power, shift))
            shift += power
    return found


def packed_length(count: int, b: int) -> int:
    """Return the bytes of ``count`` packed integers."""
    return sum(-(-count * p // 8) for p, _ in planes(b))


def _place(entry: int, p: int, length: int) -> tuple[int, int]:
    """Return the byte and the bit where an entry's digits begin in a plane of ``length`` bytes."""
    if p >= 8:
        return entry * p // 8, 0
    if p == 1:
        return entry // 8, entry % 8
    return entry % length, p * (entry // length)


def pack(values: Sequence[int], b: int) -> bytes:
    """Return the planes of integers below 2^b, one after another."""
    out = b""
    for p, shift in planes(b):
        length = -(-len(values) * p // 8)
        plane = 0
        for entry, value in enumerate(values):
            byte, bit = _place(entry, p, length)
            plane |= (value >> shift & (1 << p) - 1) << (8 * byte + bit)
        out += plane.to_bytes(length, "little")
    return out


def unpack(data: bytes, count: int, b: int) -> Vector:
    """Return the integers of packed bytes.

    Raises:
        AbortError: The length is wrong, or a bit without an entry is set: 1.
    """
    if len(data) != packed_length(count, b):
        raise AbortError(1)
    values = [0] * count
    offset = 0
    for p, shift in planes(b):
        length = -(-count * p // 8)
        plane = little(data[offset : offset + length])
        offset += length
        for entry in range(count):
            byte, bit = _place(entry, p, length)
            values[entry] |= (plane >> (8 * byte + bit) & (1 << p) - 1) << shift
    if pack(values, b) != data:
        raise AbortError(1)
    return values


# Shamir's sharing.


class Draws:
    """A byte string from which random bytes are drawn in order.

    Attributes:
        data: All of it.
        used: How many bytes were drawn.
    """

    def __init__(self, data: bytes) -> None:
        self.data, self.used = data, 0

    def __call__(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        piece = self.data[self.used : self.used + count]
        assert len(piece) == count, "the draws are too short"
        self.used += count
        return piece

    def elements(self, count: int) -> Vector:
        """Return uniform elements: four bytes each, the top bit cleared, the prime skipped."""
        found: Vector = []
        while len(found) < count:
            value = little(self(4)) & PRIME
            if value != PRIME:
                found.append(value)
        return found


def join(elements: Sequence[int]) -> bytes:
    """Return elements as u32 each."""
    return b"".join(u32(element) for element in elements)


def elements_of(data: bytes) -> Vector | None:
    """Return the elements of bytes, or None where one is not below the prime."""
    values = [little(data[i : i + 4]) for i in range(0, len(data), 4)]
    return values if all(value < PRIME for value in values) else None


def split(secret: Sequence[int], coefficients: Sequence[Sequence[int]], x: int) -> Vector:
    """Return the share at x of secret + coefficients[0] z + coefficients[1] z^2 + ..."""
    return [
        (s + sum(row[j] * x ** (power + 1) for power, row in enumerate(coefficients))) % PRIME
        for j, s in enumerate(secret)
    ]


def value_at(shares: Mapping[int, Sequence[int]], z: int) -> Vector:
    """Return the value at z of the polynomials through all shares, by Lagrange."""
    total = [0] * len(next(iter(shares.values())))
    for x, share in shares.items():
        above = below = 1
        for other in shares:
            if other != x:
                above = above * (z - other) % PRIME
                below = below * (x - other) % PRIME
        factor = above * pow(below, -1, PRIME)
        total = [(sum_ + factor * value) % PRIME for sum_, value in zip(total, share, strict=True)]
    return total


def decode(shares: Mapping[int, Sequence[int]], t: int) -> tuple[Vector, list[int]] | None:
    """Find the polynomials of degree t - 1 that agree with enough shares, by trying all.

    They may disagree with at most floor((m - t) / 2) of the m shares.

    Returns:
        The secret and the points that are wrong; None where there are no such polynomials.
    """
    errors = (len(shares) - t) // 2
    for chosen in combinations(sorted(shares), t):
        base = {x: shares[x] for x in chosen}
        wrong = [
            x for x in sorted(shares) if x not in base and value_at(base, x) != list(shares[x])
        ]
        if len(wrong) <= errors:
            return value_at(base, 0), wrong
    return None


# --------------------------------------------------------------------------------------------------
# Parameters.

TERMS = struct.Struct("<QBBIIIIIBIIQQI32s32s")


@dataclass(frozen=True)
class Terms:
    """The first 123 bytes of the body of an Invite, in the order of the page."""

    length: int
    bits: int
    graph: int
    k: int
    t: int
    n_min: int
    n_max: int
    min_survivors: int
    profile: int
    corrupt: int
    max_dropout: int
    not_before: int
    not_after: int
    round: int
    fingerprint: bytes
    allow_list: bytes

    def encode(self) -> bytes:
        """Return the 123 bytes."""
        return TERMS.pack(*astuple(self))

    @classmethod
    def decode(cls, data: bytes) -> Terms:
        """Return the terms of 123 bytes."""
        return cls(*TERMS.unpack(data))

    @property
    def entries(self) -> int:
        """Return the length of the vector with its checksum entries."""
        return self.length + checksum_count(self.bits)

    def degree(self, n: int) -> int:
        """Return k in a roster of n."""
        return n - 1 if self.graph == 1 else self.k

    def threshold(self, n: int) -> int:
        """Return t in a roster of n."""
        return (n + self.corrupt) // 2 + 1 if self.graph == 1 else self.t

    def in_bounds(self) -> bool:
        """Return whether everything is within the table of Parameters."""
        complete = self.graph == 1
        n_limit = 1000 if self.profile == ACTIVE else 2**12 if complete else 2**20
        good = [
            3 <= self.n_min <= self.n_max <= n_limit,
            1 <= self.min_survivors <= self.n_min,
            (1 if self.profile == SEMI_HONEST else 0) <= self.corrupt < self.min_survivors,
            0 <= self.max_dropout < PPM,
            1 <= self.bits <= 64 and 2**self.bits > self.n_max,
            self.length >= 1,
        ]
        if not all(good):
            return False
        if self.entries * lane_width(self.bits) // 8 > 2**30:
            return False
        if complete:
            good.append(self.k == 0 and self.t == 0)
        else:
            good.append(
                self.k % 2 == 0 and 2 <= self.t <= self.k <= self.n_min - 2 and self.k <= 2**15
            )
        if self.profile == ACTIVE:
            low = (self.n_max + self.corrupt) // 2 + 1
            high = self.n_min + -self.max_dropout * self.n_min // PPM - self.corrupt
            good.append(complete and low <= self.min_survivors <= high)
        return all(good)

    def safe(self, n: int) -> bool:
        """Return whether the graph is safe at n: a ring's predicate, or the threshold's."""
        if self.graph == 1:
            return True
        return ring_is_safe(n, self.k, self.t, self.corrupt, self.max_dropout, self.min_survivors)


def ring_is_safe(
    n: int, k: int, t: int, corrupt: int, max_dropout: int, min_survivors: int
) -> bool:
    """Return the predicate of section 'The graph of a ring'."""
    if k % 2 or not 2 <= t <= k <= n - 2:
        return False
    bad = corrupt + max(max_dropout * n // PPM, n - min_survivors)
    if 2**41 * n * (n - k - 1) * math.perm(bad, k) >= 2 * math.perm(n, k):
        return False
    tail = sum(
        math.comb(corrupt, i) * math.comb(n - 1 - corrupt, k - i)
        for i in range(t, min(corrupt, k) + 1)
    )
    return 2**41 * n * tail <= math.comb(n - 1, k)


def ring_is_whole(n: int, k: int, corrupt: int, cut: int | None) -> bool:
    """Return whether a ring of this weakest cut is whole, by section 'The graph of a ring'."""
    if cut is None:
        return True
    tail = sum(
        math.comb(corrupt, i) * math.comb(n - corrupt, k - i)
        for i in range(cut, min(corrupt, k) + 1)
    )
    return 2**40 * n * (n - k - 1) * tail <= math.comb(n, k)


def weakest_cut(order: Sequence[int], k: int, alive: Iterable[int]) -> int | None:
    """Return c of 'The graph of a ring', by trying all pairs of gaps; None without a pair."""
    n, half, survivors = len(order), k // 2, set(alive)
    lives = [order[place % n] in survivors for place in range(3 * n)]
    found = [
        sum(lives[one : one + half]) + sum(lives[other : other + half])
        for one in range(n)
        for other in range(one + half + 1, one + n - half)
        if any(lives[one + half : other]) and any(lives[other + half : one + n])
    ]
    return min(found, default=None)


def modulus_bits(
    n_max: int, largest: int, tau: int, *, whole_bytes: bool, signed: bool = True
) -> int:
    """Return b: the smallest with 2^b >= 2 (n_max E + tau) + 1, or that in whole bytes.

    Of histograms, which are not signed, it is the smallest with 2^b >= n_max E + 2 tau + 1.
    """
    value = (2 if signed else 1) * n_max * largest + 2 * tau + 1
    b = next(b for b in range(1, 200) if 2**b >= value)
    return -(-b // 8) * 8 if whole_bytes else b


def gaussian_tau(s: Decimal, length: int) -> Decimal:
    """Return tau of a discrete Gaussian of standard deviation s over ``length`` entries."""
    with localcontext() as context:
        context.prec = 60
        return s * (2 * (Decimal(2 * length).ln() + 40 * Decimal(2).ln())).sqrt()


def skellam_tau(s: Decimal, length: int) -> Decimal:
    """Return tau of Skellam noise: the root of the equation, by bisection."""
    with localcontext() as context:
        context.prec = 80
        goal = Decimal(2 * length).ln() + 40 * Decimal(2).ln()

        def excess(tau: Decimal) -> Decimal:
            ratio = tau / s**2
            asinh = (ratio + (ratio**2 + 1).sqrt()).ln()
            return tau * asinh - (tau**2 + s**4).sqrt() + s**2 - goal

        low, high = Decimal(0), Decimal(1)
        while excess(high) < 0:
            high *= 2
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) < 0 else (low, middle)
        return high


# --------------------------------------------------------------------------------------------------
# Keys, Contexts and digests, Graph.


def context_of(session: bytes, terms: bytes) -> bytes:
    """Return ctx."""
    return digest("context", u8(1), session, terms)


def adverts_digest(adverts: Sequence[bytes]) -> bytes:
    """Return the digest of all adverts in order of index."""
    return digest("adverts", u32(len(adverts)), *adverts)


def roster_context(ctx: bytes, n: int, roster: bytes | None, adverts: bytes) -> bytes:
    """Return ctx2; ``roster`` is the bitmap over the allow-list in `active`, else None."""
    middle = [] if roster is None else [hashlib.sha256(roster).digest()]
    return digest("roster context", ctx, u32(n), *middle, adverts)


def result_digest(ctx2: bytes, survivors: bytes, salt: bytes, total: Sequence[int]) -> bytes:
    """Return the digest of a result."""
    entries = b"".join(struct.pack("<q", entry) for entry in total)
    return digest("result", ctx2, hashlib.sha256(survivors).digest(), salt, entries)


def mask_secret(seed: bytes, ctx: bytes) -> bytes:
    """Return the X25519 secret mask key of its seed of 20 bytes."""
    return hkdf(seed, ctx, label("mask secret key"))


def commitment(b: bytes, ctx: bytes) -> bytes:
    """Return the commitment to b, 20 bytes."""
    return hkdf(b, ctx, label("commitment to b"))


def self_mask_key(b: bytes, ctx2: bytes, index: int) -> bytes:
    """Return the key of a client's self mask."""
    return hkdf(b, ctx2, label("self mask") + u32(index))


def _edge(one: int, other: int, keys: Mapping[int, bytes]) -> bytes:
    """Return i, j and the public keys of both, the smaller index first."""
    i, j = sorted((one, other))
    return u32(i) + u32(j) + keys[i] + keys[j]


def pair_mask_key(
    secret: bytes, me: int, other: int, keys: Mapping[int, bytes], ctx2: bytes
) -> bytes:
    """Return the key of a pair mask; ``keys`` are mask keys by index."""
    return hkdf(exchange(secret, keys[other]), ctx2, label("pair mask") + _edge(me, other, keys))


def share_key(
    secret: bytes, me: int, other: int, keys: Mapping[int, bytes], ctx2: bytes, sender: int
) -> bytes:
    """Return the key that seals shares of ``sender``; ``keys`` are encryption keys by index."""
    direction = u8(0 if sender == min(me, other) else 1)
    return hkdf(
        exchange(secret, keys[other]),
        ctx2,
        label("share encryption") + _edge(me, other, keys) + direction,
    )


def ring_order(ctx2: bytes, n: int) -> list[int]:
    """Return the order of the ring."""
    stream = prg(hkdf(bytes(32), ctx2, label("ring order")), 16 * n)
    return sorted(range(n), key=lambda i: (little(stream[16 * i : 16 * i + 16]), i))


class Graph:
    """Who is whose neighbour.

    Attributes:
        n: The clients of the roster.
        k: The neighbours of each.
        t: The threshold.
    """

    def __init__(self, terms: Terms, n: int, ctx2: bytes) -> None:
        self.n, self.k, self.t = n, terms.degree(n), terms.threshold(n)
        self.complete, self.corrupt = terms.graph == 1, terms.corrupt
        self.order = list(range(n)) if self.complete else ring_order(ctx2, n)

    def neighbours(self, owner: int) -> list[int]:
        """Return the neighbours at x = 1 .. k as seen from ``owner``."""
        place = self.order.index(owner)
        if self.complete:
            offsets = [*range(1, self.n)]
        else:
            offsets = [*range(1, self.k // 2 + 1), *range(-1, -self.k // 2 - 1, -1)]
        return [self.order[(place + offset) % self.n] for offset in offsets]

    def is_whole(self, alive: Iterable[int]) -> bool:
        """Return whether the ring of these survivors is whole; a complete graph cannot be cut."""
        return self.complete or ring_is_whole(
            self.n, self.k, self.corrupt, weakest_cut(self.order, self.k, alive)
        )

    def point(self, owner: int, holder: int) -> int:
        """Return x of a holder, which may be the owner itself."""
        return self.k + 1 if holder == owner else self.neighbours(owner).index(holder) + 1


# --------------------------------------------------------------------------------------------------
# Messages.


@dataclass(frozen=True)
class Frame:
    """A header and a body."""

    type: int
    session: bytes
    sender: int
    body: bytes
    version: int = 1

    def header(self) -> bytes:
        """Return the 48 bytes."""
        return struct.pack(
            "<4sBBH32sII",
            b"FTSA",
            self.version,
            self.type,
            0,
            self.session,
            self.sender,
            len(self.body),
        )

    def encode(self) -> bytes:
        """Return header and body."""
        return self.header() + self.body

    @classmethod
    def decode(cls, data: bytes) -> Frame | None:
        """Return a frame, or None for bytes that are none."""
        if len(data) < 48:
            return None
        magic, version, type_, reserved, session, sender, length = struct.unpack(
            "<4sBBH32sII", data[:48]
        )
        if magic != b"FTSA" or reserved != 0 or type_ > 11 or length != len(data) - 48:
            return None
        return cls(type_, session, sender, data[48:], version)


def invite_frame(session: bytes, terms: bytes, secret: bytes, version: int = 1) -> bytes:
    """Return a signed Invite."""
    header = Frame(INVITE, session, SERVER, bytes(187), version).header()
    return header + terms + sign(secret, "invite", header, terms)


@dataclass
class Policy:
    """The client's policy. ``max_corrupt`` is in parts per million of n_max, ``known`` are keys."""

    corrupt: int = 0
    max_corrupt: int = 0
    min_honest: int = 2
    min_clients: int = 3
    n_max: int = 2**20
    k: int = 2**15
    length: int = 2**26
    bits: int = 64
    seconds: int = 604_800
    known: list[str] = field(default_factory=list)
    least_known: int = 0

    def allows(self, terms: Terms) -> bool:
        """Return whether the numbers of an Invite are good enough."""
        return (
            terms.corrupt >= max(self.corrupt, -(-self.max_corrupt * terms.n_max // PPM))
            and terms.min_survivors - terms.corrupt >= self.min_honest
            and terms.n_min >= self.min_clients
            and terms.n_max - 1 >= self.least_known
            and (terms.profile == ACTIVE or self.least_known == 0)
            and terms.n_max <= self.n_max
            and terms.degree(terms.n_max) <= self.k
            and terms.length <= self.length
            and terms.bits <= self.bits
            and terms.not_after - terms.not_before <= self.seconds
        )


# --------------------------------------------------------------------------------------------------
# The client.

TAKES = {
    SEMI_HONEST: {
        "NEW": (INVITE, ADVERTISE, "ADVERTISED"),
        "ADVERTISED": (ROSTER, SHARES, "SHARED"),
        "SHARED": (INBOX, MASKED_INPUT, "MASKED"),
        "MASKED": (SURVIVORS, UNMASK, "DONE"),
    },
    ACTIVE: {
        "NEW": (INVITE, ADVERTISE, "ADVERTISED"),
        "ADVERTISED": (ROSTER, SHARES, "SHARED"),
        "SHARED": (INBOX, MASKED_INPUT, "MASKED"),
        "MASKED": (SURVIVORS, CONFIRM, "CONFIRMED"),
        "CONFIRMED": (CONFIRMATIONS, UNMASK, "DONE"),
    },
}


@dataclass
class Pinned:
    """What a client knows beforehand.

    Attributes:
        profile: 0 or 1.
        server: The server's Ed25519 key.
        fingerprint: Of the plan.
        allow: The allow-list; empty in `semi-honest`.
        identity: The client's Ed25519 secret; None in `semi-honest`.
        policy: The client's policy.
        plan: The terms that the plan has, of which all but the times and the round are compared;
            None without a plan.
        round: The one that the client takes part in.
    """

    profile: int
    server: bytes
    fingerprint: bytes
    allow: list[bytes]
    identity: bytes | None
    policy: Policy
    plan: Terms | None = None
    round: int = 0

    @property
    def rank(self) -> int:
        """Return the client's place in the allow-list."""
        assert self.identity is not None
        return self.allow.index(identity_of(self.identity))

    def allow_list_digest(self) -> bytes:
        """Return what the Invite must have."""
        return (
            hashlib.sha256(b"".join(self.allow)).digest() if self.profile == ACTIVE else bytes(32)
        )


@dataclass
class Journal:
    """Which sessions were begun, and whether the item is spent."""

    sessions: set[bytes] = field(default_factory=set)
    spent: bool = False


class Client:
    """One client of the page.

    Attributes:
        state: A state of the table, or ``ABORTED``.
        code: The code that ended it.
        result: The survivors and the digest of the first well-formed Result.
    """

    def __init__(
        self, pinned: Pinned, draws: Draws, vector: Callable[[], Vector], journal: Journal
    ) -> None:
        self.pinned, self.draws, self.vector, self.journal = pinned, draws, vector, journal
        self.state, self.code = "NEW", 0
        self.result: tuple[int, bytes] | None = None
        self.session = b""
        self.index: int | None = None
        self.last = self.stored = b""

    def receive(self, data: bytes, now: int) -> bytes | None:
        """Take a message.

        Args:
            data: What came.
            now: Unix seconds.

        Returns:
            The answer, or None.
        """
        frame = Frame.decode(data)
        if frame is None or frame.sender != SERVER or self.state == "ABORTED":
            return None
        if self.state == "NEW":
            if frame.type != INVITE or len(frame.body) != 187:
                return None
            if not verifies(
                self.pinned.server, frame.body[123:], "invite", frame.header(), frame.body[:123]
            ):
                return None
            self.session = frame.session
        elif frame.session != self.session:
            return None
        if data == self.last:
            return self.stored
        if self.state == "DONE":
            self._after_done(frame)
            return None
        return self._step(frame, data, now)

    def _after_done(self, frame: Frame) -> None:
        if self.result is not None or frame.version != 1:
            return
        if frame.type == RESULT and len(frame.body) == 37 and frame.body[0] == 0:
            self.result = (little(frame.body[1:5]), frame.body[5:])
        elif frame.type == ABORT and len(frame.body) == 1 and 1 <= frame.body[0] <= 19:
            self.state, self.code = "ABORTED", frame.body[0]

    def _step(self, frame: Frame, data: bytes, now: int) -> bytes | None:
        state, self.state = self.state, "ABORTED"
        try:
            if frame.version != 1:
                raise AbortError(2)
            if frame.type == ABORT:
                self.code = (
                    frame.body[0] if len(frame.body) == 1 and 1 <= frame.body[0] <= 19 else 1
                )
                return None
            takes, answers, then = TAKES[self.pinned.profile][state]
            if frame.type != takes:
                raise AbortError(3)
            if state != "NEW" and now > self.terms.not_after:
                raise AbortError(5)
            body = {
                INVITE: lambda body: self._invite(body, now),
                ROSTER: self._roster,
                INBOX: self._inbox,
                SURVIVORS: self._survivors,
                CONFIRMATIONS: self._confirmations,
            }[takes](frame.body)
        except AbortError as abort:
            self.code = abort.code
            if frame.type == ABORT:  # is never answered
                return None
            return Frame(ABORT, self.session, self._sender(), u8(abort.code)).encode()
        except Exception:
            self.code = 18
            raise
        self.state = then
        self.last, self.stored = data, Frame(answers, self.session, self._sender(), body).encode()
        return self.stored

    def _sender(self) -> int:
        if self.pinned.profile == ACTIVE:
            return self.pinned.rank
        return UNKNOWN if self.index is None else self.index

    def _invite(self, body: bytes, now: int) -> bytes:
        terms, pinned = Terms.decode(body[:123]), self.pinned
        if terms.profile not in (SEMI_HONEST, ACTIVE) or terms.graph != (1 if terms.k == 0 else 0):
            raise AbortError(1)
        known = (pinned.profile, pinned.fingerprint, pinned.allow_list_digest())
        if not terms.in_bounds() or (terms.profile, terms.fingerprint, terms.allow_list) != known:
            raise AbortError(4)
        if not pinned.policy.allows(terms):
            raise AbortError(4)
        if pinned.plan is not None and astuple(terms)[:11] != astuple(pinned.plan)[:11]:
            raise AbortError(4)
        if terms.round != pinned.round:
            raise AbortError(4)
        if not terms.not_before <= now <= terms.not_after:
            raise AbortError(5)
        if self.session in self.journal.sessions:
            raise AbortError(6)
        self.journal.sessions.add(self.session)
        self.terms = terms
        self.ctx = context_of(self.session, body[:123])
        secrets = self.draws.elements(10)
        self.secrets = secrets
        self.b, seed = join(secrets[:5]), join(secrets[5:])
        self.enc_secret = self.draws(32)
        nonce = self.draws(16)
        self.mask_secret = mask_secret(seed, self.ctx)
        self.mask_public, self.enc_public = (
            public_key(self.mask_secret),
            public_key(self.enc_secret),
        )
        self.advert = self.mask_public + self.enc_public + commitment(self.b, self.ctx) + nonce
        if pinned.profile == ACTIVE:
            assert pinned.identity is not None
            self.advert += sign(pinned.identity, "advertise", self.ctx, self.advert)
        return self.advert

    def _roster(self, body: bytes) -> bytes:
        terms = self.terms
        if self.pinned.profile == SEMI_HONEST:
            if len(body) < 40:
                raise AbortError(1)
            n, index, digest_ = little(body[:4]), little(body[4:8]), body[8:40]
            if not terms.n_min <= n <= terms.n_max or index >= n:
                raise AbortError(8)
            if len(body) != 40 + 112 * terms.degree(n):
                raise AbortError(1)
            adverts = [body[40 + 112 * i : 152 + 112 * i] for i in range(terms.degree(n))]
            roster = None
            self.index = index
        else:
            count = len(self.pinned.allow)
            roster = body[: bits(count)]
            ranks = members(roster, count)
            n = len(ranks)
            if len(body) != bits(count) + 176 * n:
                raise AbortError(1)
            adverts = [body[bits(count) + 176 * i :][:176] for i in range(n)]
        if not terms.n_min <= n <= terms.n_max or not terms.safe(n):
            raise AbortError(8)
        if roster is not None:
            if self.pinned.rank not in ranks:
                raise AbortError(8)
            index = ranks.index(self.pinned.rank)
            if adverts[index] != self.advert:
                raise AbortError(8)
            for rank, advert in zip(ranks, adverts, strict=True):
                if not verifies(
                    self.pinned.allow[rank], advert[112:], "advertise", self.ctx, advert[:112]
                ):
                    raise AbortError(8)
            self.identities = [self.pinned.allow[rank] for rank in ranks]
            digest_ = adverts_digest(adverts)
        self.ctx2 = roster_context(self.ctx, n, roster, digest_)
        self.graph = graph = Graph(terms, n, self.ctx2)
        self.neighbours = graph.neighbours(index)
        by_index = (
            dict(zip(self.neighbours, adverts, strict=True))
            if roster is None
            else dict(enumerate(adverts))
        )
        by_index[index] = self.advert
        self.mask_keys = {i: advert[:32] for i, advert in by_index.items()}
        self.enc_keys = {i: advert[32:64] for i, advert in by_index.items()}
        keys = [*self.mask_keys.values(), *self.enc_keys.values()]
        if not all(map(acceptable, keys)) or len(set(keys)) != len(keys):
            raise AbortError(8)
        coefficients = [self.draws.elements(10) for _ in range(graph.t - 1)]
        out = b""
        for x, other in enumerate(self.neighbours, 1):
            key = share_key(self.enc_secret, index, other, self.enc_keys, self.ctx2, sender=index)
            out += seal(key, join(split(self.secrets, coefficients, x)))
        self.own_share = split(self.secrets, coefficients, graph.k + 1)
        self.index = index
        return out

    def _inbox(self, body: bytes) -> bytes:
        graph, terms, me = self.graph, self.terms, self.index
        assert me is not None
        head = bits(graph.k)
        present = members(body[:head], graph.k)
        if len(body) != head + 56 * len(present):
            raise AbortError(1)
        self.present = [self.neighbours[slot] for slot in present]
        self.opened: dict[int, Vector] = {}
        for position, other in enumerate(self.present):
            key = share_key(self.enc_secret, me, other, self.enc_keys, self.ctx2, sender=other)
            plaintext = unseal(key, body[head + 56 * position :][:56])
            share = None if plaintext is None else elements_of(plaintext)
            if share is not None:
                self.opened[other] = share
        needed = max(graph.t, terms.min_survivors) if terms.profile == ACTIVE else graph.t
        if 1 + len(self.opened) < needed or self._lacks_known(self.opened):
            raise AbortError(9)
        vector = self.vector()
        bound = 2 ** (terms.bits - 1) - 1
        if len(vector) != terms.length or any(abs(entry) > bound for entry in vector):
            raise ValueError("the vector is not of the form that the session has")
        if self.journal.spent:
            raise AbortError(7)
        self.journal.spent = True
        y = vector + [1] * checksum_count(terms.bits)
        y = add(y, mask(self_mask_key(self.b, self.ctx2, me), len(y), terms.bits))
        for other in self.present:
            key = pair_mask_key(self.mask_secret, me, other, self.mask_keys, self.ctx2)
            y = add(y, mask(key, len(y), terms.bits), 1 if me < other else -1)
        return pack([entry % 2**terms.bits for entry in y], terms.bits)

    def _lacks_known(self, others: Iterable[int]) -> bool:
        policy = self.pinned.policy
        return self.terms.profile == ACTIVE and policy.least_known > sum(
            self.identities[other].hex() in policy.known for other in others
        )

    def _survivors(self, body: bytes) -> bytes:
        graph, terms = self.graph, self.terms
        alive = members(body, graph.n)
        if self.index not in alive:
            raise AbortError(10)
        if any(other in alive for other in self.neighbours if other not in self.present):
            raise AbortError(11)
        if len(alive) < terms.min_survivors:
            raise AbortError(12)
        counted = 1 + sum(other in alive for other in self.opened)
        if counted < graph.t:
            raise AbortError(13)
        if not graph.is_whole(alive):
            raise AbortError(19)
        if terms.profile == ACTIVE and counted < terms.min_survivors:
            raise AbortError(12)
        if self._lacks_known(other for other in self.opened if other in alive):
            raise AbortError(12)
        self.alive, self.survivors = alive, body
        if terms.profile == SEMI_HONEST:
            return self._unmask()
        assert self.pinned.identity is not None
        return sign(self.pinned.identity, "confirm", self.ctx2, hashlib.sha256(body).digest())

    def _confirmations(self, body: bytes) -> bytes:
        graph = self.graph
        head = bits(graph.n)
        signers = members(body[:head], graph.n)
        if len(body) != head + 64 * len(signers):
            raise AbortError(1)
        fields = (self.ctx2, hashlib.sha256(self.survivors).digest())
        count = 1
        for position, other in enumerate(signers):
            if other != self.index and other in self.alive:
                signature = body[head + 64 * position :][:64]
                count += verifies(self.identities[other], signature, "confirm", *fields)
        if count < graph.t:
            raise AbortError(14)
        return self._unmask()

    def _unmask(self) -> bytes:
        slots = [slot for slot, other in enumerate(self.neighbours) if other in self.opened]
        out = join(self.own_share[:5]) + bitmap(slots, self.graph.k)
        for slot in slots:
            other = self.neighbours[slot]
            share = self.opened[other]
            out += join(share[:5] if other in self.alive else share[5:])
        return out


def add(values: Sequence[int], more: Sequence[int], sign_: int = 1) -> Vector:
    """Return the entries of one vector plus, or minus, those of another."""
    return [one + sign_ * other for one, other in zip(values, more, strict=True)]


# --------------------------------------------------------------------------------------------------
# The server.

PHASES = {
    SEMI_HONEST: ["ADVERTISE", "SHARE", "COLLECT", "UNMASK", "DONE"],
    ACTIVE: ["ADVERTISE", "SHARE", "COLLECT", "CONFIRM", "UNMASK", "DONE"],
}
COLLECTS = {
    "ADVERTISE": ADVERTISE,
    "SHARE": SHARES,
    "COLLECT": MASKED_INPUT,
    "CONFIRM": CONFIRM,
    "UNMASK": UNMASK,
}


class Server:
    """The server of the page. Clients are known by the name of their connection.

    Attributes:
        phase: A phase of the table, or ``ABORTED``.
        code: The code that ended it.
        total: The sum, when DONE.
        blame: Pairs (owner, holder or None) of indexes.
    """

    def __init__(
        self,
        session: bytes,
        terms: Terms,
        secret: bytes,
        allow: list[bytes],
        salt: bytes,
        draws: Draws,
    ) -> None:
        self.session, self.terms, self.allow, self.salt, self.draws = (
            session,
            terms,
            allow,
            salt,
            draws,
        )
        self.invite = invite_frame(session, terms.encode(), secret)
        self.ctx = context_of(session, terms.encode())
        self.phase, self.code = "ADVERTISE", 0
        self.arrived: dict[str, tuple[int, bytes]] = {}
        self.roster: list[str] = []
        self.received: dict[int, object] = {}
        self.gone: set[int] = set()
        self.total: Vector = []
        self.blame: list[tuple[int, int | None]] = []

    @property
    def active(self) -> bool:
        """Return whether the profile is `active`."""
        return self.terms.profile == ACTIVE

    def receive(self, connection: str, data: bytes) -> bool:
        """Take a message of a client.

        Returns:
            Whether it was taken; otherwise nothing has changed.
        """
        frame = Frame.decode(data)
        if (
            frame is None
            or frame.session != self.session
            or frame.version != 1
            or self.phase in ("DONE", "ABORTED")
        ):
            return False
        if self.phase == "ADVERTISE":
            return self._advertise(connection, frame)
        if connection not in self.roster:
            return False
        index = self.roster.index(connection)
        sender = self.ranks[index] if self.active else index
        if frame.type == ABORT:
            if frame.sender != sender and (self.active or frame.sender != UNKNOWN):
                return False
            if len(frame.body) != 1 or not 1 <= frame.body[0] <= 19:
                return False
            self.gone.add(index)
            return True
        if frame.sender != sender or frame.type != COLLECTS[self.phase]:
            return False
        if index not in self.asked or index in self.received or index in self.gone:
            return False
        try:
            self.received[index] = getattr(self, "_take_" + self.phase.lower())(index, frame.body)
        except AbortError:
            return False
        return True

    def _advertise(self, connection: str, frame: Frame) -> bool:
        size = 176 if self.active else 112
        if frame.type != ADVERTISE or len(frame.body) != size:
            return False
        if connection in self.arrived or len(self.arrived) >= self.terms.n_max:
            return False
        body = frame.body
        if self.active:
            if frame.sender >= len(self.allow) or frame.sender in [
                rank for rank, _ in self.arrived.values()
            ]:
                return False
            if not verifies(
                self.allow[frame.sender], body[112:], "advertise", self.ctx, body[:112]
            ):
                return False
        elif frame.sender != UNKNOWN:
            return False
        keys = [key for _, advert in self.arrived.values() for key in (advert[:32], advert[32:64])]
        keys += [body[:32], body[32:64]]
        if not acceptable(body[:32]) or not acceptable(body[32:64]) or len(set(keys)) != len(keys):
            return False
        self.arrived[connection] = (frame.sender, body)
        return True

    def _take_share(self, _: int, body: bytes) -> bytes:
        if len(body) != 56 * self.graph.k:
            raise AbortError(1)
        return body

    def _take_collect(self, _: int, body: bytes) -> Vector:
        return unpack(body, self.terms.entries, self.terms.bits)

    def _take_confirm(self, index: int, body: bytes) -> bytes:
        survivors = hashlib.sha256(bitmap(self.alive, self.graph.n)).digest()
        identity = self.allow[self.ranks[index]]
        if len(body) != 64 or not verifies(identity, body, "confirm", self.ctx2, survivors):
            raise AbortError(1)
        return body

    def _take_unmask(self, index: int, body: bytes) -> dict[int, Vector]:
        k, neighbours = self.graph.k, self.graph.neighbours(index)
        head = 20 + bits(k)
        given = members(body[20:head], k)
        owners = [neighbours[slot] for slot in given]
        if len(body) != head + 20 * len(given) or any(
            owner not in self.present for owner in owners
        ):
            raise AbortError(1)
        shares = [elements_of(body[:20])]
        shares += [elements_of(body[head + 20 * i :][:20]) for i in range(len(given))]
        found = {
            owner: share
            for owner, share in zip([index, *owners], shares, strict=True)
            if share is not None
        }
        if len(found) != len(shares):
            raise AbortError(1)
        return found

    def _frames(self, type_: int, bodies: Mapping[int, bytes]) -> dict[str, bytes]:
        return {
            self.roster[i]: Frame(type_, self.session, SERVER, body).encode()
            for i, body in bodies.items()
        }

    def close(self, now: int) -> dict[str, bytes]:
        """Close the phase.

        Returns:
            The messages that leave, by connection.
        """
        try:
            if now > self.terms.not_after:
                raise AbortError(5)
            out: dict[str, bytes] = getattr(self, "_close_" + self.phase.lower())()
        except AbortError as abort:
            names = self.roster or list(self.arrived)
            self.phase, self.code = "ABORTED", abort.code
            return {
                name: Frame(ABORT, self.session, SERVER, u8(abort.code)).encode() for name in names
            }
        self.phase = PHASES[self.terms.profile][PHASES[self.terms.profile].index(self.phase) + 1]
        self.received, self.gone = {}, set()
        return out

    def _close_advertise(self) -> dict[str, bytes]:
        n, terms = len(self.arrived), self.terms
        if not terms.n_min <= n <= terms.n_max or not terms.safe(n):
            raise AbortError(15)
        names = list(self.arrived)
        if self.active:
            names.sort(key=lambda name: self.arrived[name][0])
        else:
            drawn = {name: self.draws(16) for name in names}
            names.sort(key=drawn.__getitem__)
        self.roster = names
        self.ranks = [self.arrived[name][0] for name in names]
        self.adverts = [self.arrived[name][1] for name in names]
        digest_ = adverts_digest(self.adverts)
        roster = bitmap(self.ranks, len(self.allow)) if self.active else None
        self.ctx2 = roster_context(self.ctx, n, roster, digest_)
        self.graph = Graph(terms, n, self.ctx2)
        self.asked = list(range(n))
        if roster is not None:
            body = roster + b"".join(self.adverts)
            return self._frames(ROSTER, dict.fromkeys(range(n), body))
        bodies = {}
        for i in range(n):
            bodies[i] = (
                u32(n)
                + u32(i)
                + digest_
                + b"".join(self.adverts[j] for j in self.graph.neighbours(i))
            )
        return self._frames(ROSTER, bodies)

    def _close_share(self) -> dict[str, bytes]:
        self.present = sorted(self.received)
        if len(self.present) < max(self.graph.t, self.terms.min_survivors):
            raise AbortError(15)
        if not self.graph.is_whole(self.present):
            raise AbortError(19)
        bodies = {}
        for i in self.present:
            neighbours = self.graph.neighbours(i)
            slots = [slot for slot, other in enumerate(neighbours) if other in self.present]
            body = bitmap(slots, self.graph.k)
            for slot in slots:
                sent = self.received[neighbours[slot]]
                assert isinstance(sent, bytes)
                x = self.graph.point(neighbours[slot], i)
                body += sent[56 * (x - 1) : 56 * x]
            bodies[i] = body
        self.asked = self.present
        return self._frames(INBOX, bodies)

    def holders(self, owner: int) -> list[int]:
        """Return who is alive and holds a share of ``owner``, itself included."""
        return [i for i in self.alive if i == owner or i in self.graph.neighbours(owner)]

    def _close_collect(self) -> dict[str, bytes]:
        self.alive = sorted(self.received)
        if len(self.alive) < self.terms.min_survivors:
            raise AbortError(12)
        if any(len(self.holders(owner)) < self.graph.t for owner in self.present):
            raise AbortError(13)
        if not self.graph.is_whole(self.alive):
            raise AbortError(19)
        self.masked = [0] * self.terms.entries
        for vector in self.received.values():
            assert isinstance(vector, list)
            self.masked = add(self.masked, vector)
        self.asked = self.alive
        return self._frames(SURVIVORS, dict.fromkeys(self.alive, bitmap(self.alive, self.graph.n)))

    def _close_confirm(self) -> dict[str, bytes]:
        if len(self.received) < self.graph.t:
            raise AbortError(14)
        signers = sorted(self.received)
        body = bitmap(signers, self.graph.n)
        for i in signers:
            signature = self.received[i]
            assert isinstance(signature, bytes)
            body += signature
        return self._frames(CONFIRMATIONS, dict.fromkeys(self.alive, body))

    def _opens(self, owner: int, elements: Sequence[int]) -> bool:
        secret, advert = join(elements), self.adverts[owner]
        if owner in self.alive:
            return commitment(secret, self.ctx) == advert[64:96]
        return public_key(mask_secret(secret, self.ctx)) == advert[:32]

    def _shares_of(self, owner: int) -> dict[int, Vector]:
        shares = {}
        for holder, given in self.received.items():
            assert isinstance(given, dict)
            if owner in given:
                shares[self.graph.point(owner, holder)] = given[owner]
        return shares

    def _reconstruct(self, owner: int) -> bytes:
        t, shares = self.graph.t, self._shares_of(owner)
        secret = value_at({x: shares[x] for x in sorted(shares)[:t]}, 0)
        if self._opens(owner, secret):
            return join(secret)
        found = decode(shares, t)
        if found is not None and self._opens(owner, found[0]):
            holders = [owner, *self.graph.neighbours(owner)]
            self.blame += [
                (owner, i) for x in found[1] for i in holders if self.graph.point(owner, i) == x
            ]
            return join(found[0])
        self.blame.append((owner, None))
        raise AbortError(16)

    def _close_unmask(self) -> dict[str, bytes]:
        terms = self.terms
        short = [owner for owner in self.present if len(self._shares_of(owner)) < self.graph.t]
        if short:
            self.blame += [(owner, None) for owner in short]
            raise AbortError(16)
        secrets = {owner: self._reconstruct(owner) for owner in self.present}
        total = self.masked
        count = terms.entries
        for owner in self.alive:
            key = self_mask_key(secrets[owner], self.ctx2, owner)
            total = add(total, mask(key, count, terms.bits), -1)
        keys = {i: advert[:32] for i, advert in enumerate(self.adverts)}
        for d in self.present:
            if d in self.alive:
                continue
            secret = mask_secret(secrets[d], self.ctx)
            for v in self.graph.neighbours(d):
                if v in self.alive:
                    key = pair_mask_key(secret, d, v, keys, self.ctx2)
                    total = add(total, mask(key, count, terms.bits), -1 if v < d else 1)
        size = 2**terms.bits
        total = [entry % size for entry in total]
        if any(lane != len(self.alive) % size for lane in total[terms.length :]):
            raise AbortError(17)
        self.total = [
            entry - size if entry >= size // 2 else entry for entry in total[: terms.length]
        ]
        survivors = bitmap(self.alive, self.graph.n)
        self.result = result_digest(self.ctx2, survivors, self.salt, self.total)
        body = u8(0) + u32(len(self.alive)) + self.result
        return self._frames(RESULT, dict.fromkeys(self.alive, body))
