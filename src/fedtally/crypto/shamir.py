"""Split secrets into shares over GF(2^31 - 1) with Shamir's scheme, and recover them.

Hazard layer, see `fedtally.crypto`: a wrong argument gives secrets away.

A secret is a vector of field elements. The secrets of the protocol have 20 bytes: 5 uniform
elements (155 bits). Element j of a secret has a polynomial of degree t - 1, f_j(z) = secret_j +
coefficients[0, j] z + ..., and the share at point x is the vector of all f_j(x). Any t shares give
the secret. Fewer shares reveal nothing about it, if the coefficients are uniform and used once
(Shamir 1979). In messages an element is a little-endian u32 below 2^31 - 1.

Points are public: code may branch on them and use them as indexes. Secrets, shares and coefficients
are not public. Code may use them only in additions, products and comparisons of whole arrays:
otherwise its running time would reveal them. `decode` branches on syndromes, which depend on the
errors and not on the secrets.

>>> import hashlib
>>> stream = iter(hashlib.shake_256(b"not a secret").digest(120))  # for a test only
>>> random = lambda count: bytes(next(stream) for _ in range(count))
>>> secret, coefficients = random_elements(5, random), random_elements(10, random).reshape(2, 5)
>>> shares = split(secret, coefficients, 5)
>>> bool((combine([1, 3, 5], shares[[0, 2, 4]]) == secret).all())
True
>>> shares[3] = shares[0]  # a holder that lies
>>> recovered, wrong = decode([1, 2, 3, 4, 5], shares, 3)
>>> bool((recovered == secret).all()), wrong.tolist()
(True, [4])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import FedtallyError, InvalidInputError

# A Mersenne prime: 2^31 is 1 modulo it, so that a reduction is a shift and an addition. It is so
# small that sums of products of half elements (16 or 15 bits) are exact in float64.
PRIME = 2**31 - 1
SECRET_ELEMENTS = 5  # 155 bits: more than the 128-bit security of the other primitives
SECRET_BYTES = 4 * SECRET_ELEMENTS
MAX_THRESHOLD = 2**15  # the largest t for which no sum in `_product` can reach 2^63
MAX_SHARES = 2**16 - 1  # the largest point; `_weights` needs differences of points below 2^16
_BLOCK = 1 << 20  # the most powers that `_powers` computes at once; two halves of each are cached
# `combine` computes the Lagrange coefficients of several owners together, of this many points at
# most (of one owner, if a single owner has more). More would not fit the CPU's cache.
_BATCH = 1 << 14

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


class ShareError(InvalidInputError):
    """Report that an array or bytes do not hold elements of the field GF(2^31 - 1)."""


class DecodingError(InvalidInputError):
    """Report that shares do not give the secret of their owner.

    Too many of them are wrong, or they give another secret than the one that the owner committed
    to (`secagg.unmasking` compares the two).
    """


def random_elements(count: int, random: Callable[[int], bytes]) -> U32:
    """Draw uniform field elements.

    An element is read from 4 bytes, little-endian, with the top bit cleared. The value 2^31 - 1 is
    skipped: if it were reduced to 0, then 0 would be twice as likely as other elements.

    Args:
        count: the number of elements.
        random: a function that takes a number of bytes, and returns as many uniform bytes from a
            cryptographic source.

    Returns:
        uint32 [count]. The running time depends only on `count` and on the skipped values. Skipped
        values are not in the result, so that the running time reveals nothing about the result.

    Raises:
        InvalidInputError: `random` returned another number of bytes than it was asked for.

    >>> random_elements(2, lambda count: bytes(range(count))).tolist()
    [50462976, 117835012]
    """
    count = validate.integer(0, count=count)
    elements = np.empty(0, np.uint32)
    while len(elements) < count:
        missing = count - len(elements)
        data = random(4 * missing)
        if not isinstance(data, bytes) or len(data) != 4 * missing:
            raise InvalidInputError(f"random must return the {4 * missing} bytes it is asked for")
        drawn = np.frombuffer(data, "<u4") & np.uint32(PRIME)
        elements = np.concatenate([elements, drawn[drawn != PRIME]])
    return elements


def to_bytes(elements: U32) -> bytes:
    """Encode elements, 4 bytes each, little-endian.

    Args:
        elements: uint32 of any shape, every element below 2^31 - 1.

    Raises:
        ShareError: the elements have another type, or an element is too large.

    >>> to_bytes(np.array([1, 2], np.uint32)).hex()
    '0100000002000000'
    """
    return _elements(elements=elements).astype("<u4").tobytes()


def from_bytes(data: bytes | bytearray | memoryview) -> U32:
    """Read the elements that `to_bytes` encoded.

    Args:
        data: the encoding, 4 bytes for each element.

    Returns:
        uint32 [len(data) / 4], a copy.

    Raises:
        ShareError: the length is no multiple of 4, or an element is not below 2^31 - 1.

    >>> from_bytes(bytes.fromhex("0100000002000000")).tolist()
    [1, 2]
    """
    if not isinstance(data, (bytes, bytearray, memoryview)) or len(data) % 4:
        raise ShareError("the encoding of elements must be bytes, 4 for each")
    return _elements(data=np.frombuffer(data, "<u4").astype(np.uint32))


def split(secret: U32, coefficients: U32, num_shares: int) -> U32:
    """Compute the shares of a vector of secrets at the points 1 .. num_shares.

    Args:
        secret: uint32 [m], every element below 2^31 - 1. If several secrets go to the same holders,
            pass them joined in one vector.
        coefficients: uint32 [t - 1, m], the coefficients of the powers 1 .. t - 1. Take them from
            `random_elements`, and use them once. The threshold t is 2 .. 2^15.
        num_shares: the number of shares, t .. 65,535.

    Returns:
        uint32 [num_shares, m]; row x - 1 is the share at point x.

    Raises:
        ShareError: an array is not uint32, or a number is not an element of the field.
        InvalidInputError: the shapes do not fit each other, or t or `num_shares` is out of bounds.
    """
    secret, coefficients = _elements(secret=secret), _elements(coefficients=coefficients)
    if (
        secret.ndim != 1
        or not secret.size
        or coefficients.ndim != 2
        or coefficients.shape[1] != secret.size
    ):
        raise InvalidInputError(
            f"secret must be [m] and coefficients [t - 1, m], got {secret.shape} and"
            f" {coefficients.shape}"
        )
    threshold = validate.integer(2, MAX_THRESHOLD, threshold=len(coefficients) + 1)
    num_shares = validate.integer(threshold, MAX_SHARES, num_shares=num_shares)
    terms = _halves(np.vstack([secret[None], coefficients]), 1)
    rows = max(1, _BLOCK // threshold)
    blocks = [
        _product(_powers(start, min(start + rows - 1, num_shares), threshold), terms)
        for start in range(1, num_shares + 1, rows)
    ]
    return np.concatenate(blocks).astype(np.uint32)


def combine(points: npt.ArrayLike, shares: U32) -> U32:
    """Recover the secrets of one or more owners, who split them, from t shares each.

    Wrong shares are not noticed: they give a wrong result. Use `decode` where a share may be wrong.

    Args:
        points: the points of the shares, integers, strictly ascending in 1 .. 65,535. The shape is
            [t] if all owners have the same points, or else [owners, t].
        shares: uint32, every element below 2^31 - 1: [t, m] for one owner, or [owners, t, m].

    Returns:
        uint32 [m] for one owner, or [owners, m]: the values at 0 of the polynomials of degree t - 1
        through the shares.

    Raises:
        ShareError: an array is not uint32, or a number is not an element of the field.
        InvalidInputError: the points are not strictly ascending integers in 1 .. 65,535, the shapes
            do not fit each other, or t exceeds 2^15.
    """
    at, shares = _points(points), _elements(shares=shares)
    if shares.ndim == 2:
        if at.ndim != 1:
            raise InvalidInputError(f"shares of one owner need points [t], got {at.shape}")
        return np.asarray(combine(at, shares[None])[0])
    if (
        shares.ndim != 3
        or at.shape[-1] != shares.shape[1]
        or (at.ndim == 2 and len(at) != len(shares))
    ):
        raise InvalidInputError(
            f"points must be [t] or [owners, t] and shares [owners, t, m], got {at.shape} and"
            f" {shares.shape}"
        )
    owners, threshold, _ = shares.shape
    validate.integer(1, MAX_THRESHOLD, shares=threshold)
    shared = _at_zero(at[None])[..., None] if at.ndim == 1 else None
    secrets = np.empty((owners, shares.shape[2]), np.uint32)
    step = max(1, _BATCH // threshold)
    for start in range(0, owners, step):
        part = slice(start, start + step)
        weights = _at_zero(at[part])[..., None] if shared is None else shared
        # Products are below 2^62, folded ones below 2^32, and sums of 2^15 of them below 2^47: no
        # overflow.
        secrets[part] = _reduce(_fold(weights * shares[part]).sum(axis=1))
    return secrets


def decode(points: npt.ArrayLike, shares: U32, threshold: int) -> tuple[U32, I64]:
    """Recover a secret although some of its shares are wrong, and find the wrong shares.

    A share is wrong if any of its elements is wrong. At most (n - threshold) // 2 of the n shares
    may be wrong. This is unique decoding of an interleaved Reed-Solomon code, with the result of
    Berlekamp and Welch (1986).

    The errors are found by syndromes and the shortest recurrence (Massey 1969). This takes O(n^2)
    and not O(n^3) time, so that clients cannot keep a server busy with wrong shares. The code does
    not branch on a secret: syndromes depend on the errors alone.

    Args:
        points: the points of the shares, integers [n], strictly ascending in 1 .. 65,535.
        shares: uint32 [n, m], n >= threshold, every element below 2^31 - 1.
        threshold: the number of right shares that give the secret, t.

    Returns:
        uint32 [m], the secret; and int64 [errors], the points of the wrong shares, ascending.

    Raises:
        ShareError: an array is not uint32, or a number is not an element of the field.
        DecodingError: no secret agrees with all but (n - threshold) // 2 of the shares. If more
            than this number are wrong, the result may also be another secret, without an error.
        InvalidInputError: the points are not strictly ascending integers in 1 .. 65,535, the shapes
            do not fit each other, or the threshold is out of bounds.
    """
    at, shares = _points(points), _elements(shares=shares)
    if at.ndim != 1 or shares.ndim != 2 or len(at) != len(shares):
        raise InvalidInputError(
            f"points must be [n] and shares [n, m], got {at.shape} and {shares.shape}"
        )
    threshold = validate.integer(1, min(len(at), MAX_THRESHOLD), threshold=threshold)
    radius = (len(at) - threshold) // 2
    kept = np.ones(len(at), bool)
    # The elements of the secret are decoded one after the other. If element j (column j of
    # `shares`) of a share is wrong, the share is removed before the next element is decoded. Let e
    # shares be wrong, f of them removed already. If e <= (n - threshold) // 2, then e - f <= (n - f
    # - threshold) // 2: the remaining shares have few enough errors, too.
    while (
        column := _first_error(syndromes := _syndromes(at[kept], shares[kept], threshold))
    ) is not None:
        locator = _shortest_recurrence(syndromes[:, column].tolist())
        wrong = np.flatnonzero(kept)[_values(locator, at[kept]) == 0]
        kept[wrong] = False
        if len(wrong) != len(locator) - 1 or (~kept).sum() > radius:
            raise DecodingError(
                f"more than {radius} of {len(at)} shares are wrong; threshold {threshold} cannot be"
                " decoded"
            )
    use = np.flatnonzero(kept)[:threshold]
    return combine(at[use], shares[use]), at[~kept]


# ---- arguments ----


def _elements(**named: U32) -> U32:
    name, array = next(iter(named.items()))
    if not isinstance(array, np.ndarray) or array.dtype != np.uint32:
        raise ShareError(
            f"{name} must be an array of uint32, got"
            f" {getattr(array, 'dtype', type(array).__name__)}"
        )
    if bool((array >= PRIME).any()):
        raise ShareError(f"every element of {name} must be below 2^31 - 1")
    return array


def _points(points: npt.ArrayLike) -> I64:
    array = np.asarray(points)
    if array.ndim not in (1, 2) or not array.size or array.dtype.kind not in "iu":
        raise InvalidInputError(
            f"points must be integers [t] or [owners, t], at least one, got {array.dtype}"
            f" {array.shape}"
        )
    smallest, largest = int(array.min()), int(array.max())
    at = array.astype(np.int64)
    if smallest < 1 or largest > MAX_SHARES or bool((np.diff(at) <= 0).any()):
        raise InvalidInputError(
            f"points must be strictly ascending from 1 to {MAX_SHARES}, got {smallest} .. {largest}"
        )
    return at


# ---- the field: int64 below 2^63, reduced modulo 2^31 - 1 ----


def _fold(x: I64) -> I64:
    """Return for each number x its low 31 bits plus x / 2^31, rounded down.

    The result is equal to x modulo the prime, since 2^31 is 1 modulo the prime, and is smaller if x
    is 2^31 or more.
    """
    return np.asarray((x & PRIME) + (x >> 31))


def _reduce(x: I64) -> I64:
    """Reduce numbers below 2^63 modulo the prime."""
    # The first fold gives numbers below 2^33, and the second one numbers below 2^31 + 4: at most
    # one subtraction of the prime remains. It is an array operation, because a branch would depend
    # on a secret.
    x = _fold(_fold(x))
    return x - PRIME * (x >= PRIME)


def _halves(x: npt.NDArray[Any], axis: int) -> F64:
    """Join the low 16 bits of all elements, then their high 15 bits, along an axis: float64."""
    return np.concatenate([x & 0xFFFF, x >> 16], axis=axis).astype(np.float64)


def _product(left: F64, right: F64) -> I64:
    """Compute the matrix product A @ B mod p, from `_halves(A, 0)` and `_halves(B, 1)`.

    The inner length t is at most 2^15. A float64 sum of integers is exact while it stays below
    2^53, in any order and with or without fused multiply-add. Low halves are at most l = 2^16 - 1,
    and high halves at most h = 2^15 - 1, so that with t = 2^15
        low  <= t l^2   = 2^47 - 2^32 + 2^15         the largest sum in floating point: below 2^53
        mid  <= 2 t l h = 2^47 - 3 2^31 + 2^16       made of two sums, each below 2^46
        high <= t h^2   = 2^45 - 2^31 + 2^15
    Since 2^32 is 2 modulo p, the product is low + 2^16 mid + 2 high modulo p. Before it is reduced
    it is at most
        low + 2^16 mid + 2 high < 2^47 + (2^63 - 3 2^47 + 2^32) + 2^46 < 2^63.
    The running time of floating-point products depends on the values only if one of them is
    subnormal. Products of integers of this size never are.
    """
    rows, columns = len(left) // 2, right.shape[1] // 2
    sums = (left @ right).astype(np.int64)
    low, high = sums[:rows, :columns], sums[rows:, columns:]
    mid = sums[:rows, columns:] + sums[rows:, :columns]
    return _reduce(low + (mid << 16) + (high << 1))


@lru_cache(maxsize=4)
def _powers(first: int, last: int, columns: int) -> F64:
    """Compute the powers 0 .. columns - 1 of the integers first .. last, as `_halves(powers, 0)`.

    The shape is [2 * (last - first + 1), columns]: rows with the low halves, then rows with the
    high halves. The array cannot be written to: the cache returns the same array again.
    """
    powers = np.ones((last - first + 1, columns), np.int64)
    step = np.arange(first, last + 1)[:, None]
    done = 1
    while done < columns:  # each step doubles the columns: x^(done + k) = x^k x^done
        more = min(done, columns - done)
        powers[:, done : done + more] = _reduce(powers[:, :more] * step)
        step = _reduce(step * step)
        done += more
    halves = _halves(powers, 0)
    halves.setflags(write=False)  # the cache returns this array itself, not a copy
    return halves


def _weights(at: I64) -> I64:
    """Compute for each point x_i the product of |x_j - x_i| over all j other than i.

    Points and products are [owners, t]. The products are below 2^32, and not fully reduced modulo
    the prime. A factor is below 2^16, so that a product with it is below 2^48, and below 2^31 +
    2^17 once it is folded.
    """
    product = np.ones_like(at)
    for j in range(at.shape[1]):
        gap = np.abs(at - at[:, j : j + 1])
        gap[:, j] = 1
        product = _fold(product * gap)
    return product


def _signs(count: int) -> I64:
    """Compute (-1)^i, i < count: the sign of the product of x_j - x_i over all j other than i."""
    # The points ascend, so that i of these differences are negative.
    return 1 - 2 * (np.arange(count) & 1)


def _inverse(x: I64) -> I64:
    """Invert numbers below 2^32 modulo the prime; none of them may be a multiple of the prime.

    Inversion is slow. So two numbers are inverted by one inversion of their product, and the
    products are inverted in the same way. In all there is one inversion, and 3 products for each
    number. The function branches on the numbers, so that they must be public.
    """
    if x.size == 1:
        return np.full(1, pow(int(x[0]), -1, PRIME), np.int64)
    x = _reduce(x)
    even, odd = x[0::2], x[1::2]
    pairs = even.copy()
    pairs[: len(odd)] = _reduce(even[: len(odd)] * odd)
    inverse = _inverse(pairs)
    out = np.empty_like(x)
    out[1::2] = _reduce(inverse[: len(odd)] * even[: len(odd)])
    out[0::2] = inverse
    out[0 : 2 * len(odd) : 2] = _reduce(inverse[: len(odd)] * odd)
    return out


def _at_zero(at: I64) -> I64:
    """Compute the Lagrange coefficients at 0 of points, mod p: [owners, t] -> [owners, t].

    Coefficient i is the product of x_j / (x_j - x_i) over all j other than i.
    """
    total = np.ones(len(at), np.int64)
    for j in range(at.shape[1]):
        total = _fold(total * at[:, j])
    inverse = _inverse(_fold(_weights(at) * at).ravel()).reshape(at.shape)
    coefficients = _reduce(total[:, None] * inverse) * _signs(at.shape[1])
    return coefficients + PRIME * (coefficients < 0)


# ---- error decoding ----


def _syndromes(at: I64, shares: U32, threshold: int) -> I64:
    """Compute the syndromes S_r = sum of v_i y_i x_i^r for r < n - t: int64 [n - t, m].

    x_i is a point, y_i its share, and v_i is 1 / product of (x_i - x_j) over all j other than i.
    The code leaves out a sign that all v_i have in common.

    All syndromes are 0 if all shares are right. The reason: S_r is the coefficient of degree n - 1
    of the polynomial through the points (x_i, y_i x_i^r), and this polynomial has at most degree t
    - 1 + r, which is below n - 1.

    Args:
        at: int64 [n]; the points.
        shares: uint32 [n, m]; the shares at these points.
        threshold: t, the number of right shares that give the secret.
    """
    inverse = _inverse(_weights(at[None])[0]) * _signs(len(at))
    terms = _reduce((inverse + PRIME * (inverse < 0))[:, None] * shares.astype(np.int64))
    syndromes = np.zeros((len(at) - threshold, shares.shape[1]), np.int64)
    for r in range(len(syndromes)):
        syndromes[r] = terms.sum(axis=0) % PRIME
        terms = _reduce(terms * at[:, None])
    return syndromes


def _first_error(syndromes: I64) -> int | None:
    wrong = np.flatnonzero(syndromes.any(axis=0))
    return int(wrong[0]) if wrong.size else None


def _shortest_recurrence(sequence: list[int]) -> list[int]:
    """Find the shortest linear recurrence of a sequence S modulo the prime (Massey 1969).

    The result is the list of coefficients c_0 = 1, c_1, ..., c_L, where L is the length of the
    recurrence. For every r >= L, the sum of c_k S_{r - k} over k <= L is 0. Let S be one column of
    the syndromes. Unless too many shares are wrong, the roots of the reversed polynomial z^L + c_1
    z^(L - 1) + ... + c_L are the points of the shares that are wrong in this column.
    """
    current, previous = [1], [1]
    length, shift, last = 0, 1, 1
    for r, value in enumerate(sequence):
        gap = (value + sum(c * sequence[r - k] for k, c in enumerate(current[1:], 1))) % PRIME
        if gap == 0:
            shift += 1
            continue
        factor = gap * pow(last, -1, PRIME) % PRIME
        before, room = current, shift + len(previous) - len(current)
        current = current + [0] * max(0, room)
        for k, c in enumerate(previous, shift):
            current[k] = (current[k] - factor * c) % PRIME
        if 2 * length <= r:
            length, previous, last, shift = r + 1 - length, before, gap, 1
        else:
            shift += 1
    return current + [0] * (length + 1 - len(current))


def _values(recurrence: list[int], at: I64) -> I64:
    """Evaluate z^L + c_1 z^(L - 1) + ... + c_L mod p at points, by Horner's rule.

    Args:
        recurrence: the coefficients 1, c_1, ..., c_L.
        at: int64 [n]; the points z.
    """
    value = np.zeros_like(at)
    for coefficient in recurrence:
        value = _reduce(value * at + coefficient)
    return value


# ---- self-test ----


def _self_test() -> None:
    """Compare matrix products in floating point with exact integers; this runs at import.

    Without this test, a library behind `@` that is not exact would make shares wrong without any
    error.

    Raises:
        FedtallyError: this machine does not multiply exactly.
    """
    # The longest sum of the largest elements. (p - 1)^2 is 1 mod p, so that the result must be the
    # number of terms.
    largest = np.full((1, MAX_THRESHOLD), PRIME - 1)
    exact = _product(_halves(largest, 0), _halves(largest.T, 1)).item() == MAX_THRESHOLD
    polynomial = [pow(7, 99 + k, PRIME) for k in range(4)]
    shares = split(
        np.array(polynomial[:1], np.uint32), np.array(polynomial[1:], np.uint32)[:, None], 9
    )
    expected = [sum(c * x**k for k, c in enumerate(polynomial)) % PRIME for x in range(1, 10)]
    exact &= shares[:, 0].tolist() == expected
    exact &= combine([2, 3, 5, 9], shares[[1, 2, 4, 8]]).tolist() == polynomial[:1]
    if not exact:
        raise FedtallyError(
            "the NumPy of this machine does not multiply matrices of integers exactly, and secrets"
            " shared with it would be lost; install another build of NumPy"
        )


_self_test()
