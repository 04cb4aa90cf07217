"""The error-correcting code of names: turns a name into T symbols, each of one byte.

A name is a string that an open domain (`open_strings`) counts. The caller chooses T.
A word is the UTF-8 bytes of a name, at most `max_length` bytes (see `encode`), and then the end
mark 0xFF, which UTF-8 never contains. A word has p symbols. The T positions begin with
floor(T / p) copies of the word. The remaining T mod p positions hold parity symbols (Reed and
Solomon 1960). Take the polynomial over GF(256) of degree below p whose value at the point 2^j is
symbol j of the word, for j = 0 .. p-1. The parity symbols are the values of this polynomial at the
points 2^p, 2^(p+1) and so on. The word and its parity are p + (T mod p) symbols, and any p of them
determine the word. Short names have several copies but few parity symbols.

GF(256) is defined by the polynomial x^8 + x^4 + x^3 + x^2 + 1, with the generator 2. No library is
used. The decoder of names interpolates thousands of words at once, each from its p most reliable
symbols. Libraries of codes do not offer this.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
END = 0xFF
FIRST_UNUSED = 0xF8  # UTF-8 has no byte from here on
_POLYNOMIAL = 0x11D
_AT_ONCE = 1 << 16  # products that are computed at once, to bound the memory


def _make_field() -> tuple[I64, I64, U8]:
    """Return tables of GF(256): powers of 2 [255], logarithms [256], products [256, 256]."""
    powers, value = np.empty(255, np.int64), 1
    for exponent in range(255):
        powers[exponent] = value
        value <<= 1
        value ^= _POLYNOMIAL if value & 0x100 else 0
    logs = np.zeros(256, np.int64)
    logs[powers] = np.arange(255)
    products = powers[(logs[:, None] + logs[None]) % 255]
    products[0] = products[:, 0] = 0
    return powers, logs, products.astype(np.uint8)


_POWERS, _LOGS, _PRODUCTS = _make_field()


@lru_cache(maxsize=1024)
def _basis(known: tuple[int, ...], wanted: tuple[int, ...]) -> U8:
    """Return Lagrange's basis polynomials for the points 2^known, at the points 2^wanted.

    The result is a matrix, uint8 [wanted, known], and is cached. Over GF(256), the matrix times the
    values at `known` gives the values at `wanted`.
    """
    x, y = _POWERS[np.array(known)], _POWERS[np.array(wanted)]
    among = _LOGS[x[:, None] ^ x[None]]
    np.fill_diagonal(among, 0)
    across = _LOGS[y[:, None] ^ x[None]]
    logs = across.sum(axis=1, keepdims=True) - across - among.sum(axis=1)
    basis: U8 = _POWERS[logs % 255].astype(np.uint8)
    return basis


def interpolate(known: tuple[int, ...], values: U8, wanted: tuple[int, ...]) -> U8:
    """Compute symbols of words from p known symbols of each word; all words have p symbols.

    A place is the exponent j of the point 2^j. A place below p holds symbol j of the word. A place
    from p on holds a parity symbol.

    Args:
        known: p different places, 0 .. 254.
        values: uint8 [n, p], the symbols of each word at the places `known`.
        wanted: places, 0 .. 254, that are not in `known`.

    Returns:
        The symbols of each word at the places `wanted`, uint8 [n, wanted].

    >>> whole = np.frombuffer(b"tea!", np.uint8)[None]
    >>> parity = interpolate((0, 1, 2, 3), whole, (4, 5))
    >>> interpolate((1, 3, 4, 5), np.hstack([whole[:, [1, 3]], parity]), (0, 2)).tobytes()
    b'ta'
    """
    basis = _basis(known, wanted)
    found = np.empty((len(values), len(wanted)), np.uint8)
    step = max(1, _AT_ONCE // max(1, basis.size))
    for start in range(0, len(values), step):
        products = _PRODUCTS[basis, values[start : start + step, None]]
        np.bitwise_xor.reduce(products, axis=2, out=found[start : start + step])
    return found


def parity_of(size: int, positions: int) -> tuple[int, ...]:
    """Return the places of the parity symbols of a name of `size` symbols, its end mark included.

    `positions` is T, the number of all symbols. A place is the exponent j of the point 2^j (see
    `interpolate`), not one of the T positions.

    >>> parity_of(4, 10), parity_of(5, 10)
    ((4, 5), ())
    """
    return tuple(range(size, size + positions % size))


def encode(names: U8, offsets: I64, max_length: int, positions: int) -> U8:
    r"""Return the symbols of each name: copies of its bytes and end mark, then parity.

    This module's docstring describes the code. A name longer than `max_length` is cut after
    max_length + 1 bytes and gets no end mark. A decoder can find its hash but not read the name.

    Args:
        names: uint8, the bytes of all names, one after the other.
        offsets: int64 [n + 1]; name i is names[offsets[i] : offsets[i + 1]].
        max_length: the most bytes of a name that can be read.
        positions: T, the number of symbols of each name, at least max_length + 1.

    Returns:
        uint8 [n, positions].

    >>> encode(np.frombuffer(b"tea", np.uint8), np.array([0, 3]), 4, 9)[0, :8].tobytes()
    b'tea\xfftea\xff'
    """
    lengths = np.diff(offsets)
    sizes = np.minimum(lengths, max_length) + 1
    found = np.empty((len(lengths), positions), np.uint8)
    for size in np.unique(sizes).tolist():
        mine = np.flatnonzero(sizes == size)
        places = offsets[mine][:, None] + np.arange(size)
        ends = lengths[mine] < size  # the last symbol is the end mark, not a byte
        whole = np.full((len(mine), size), END, np.uint8)
        whole[:, :-1] = names[places[:, :-1]]
        whole[~ends, -1] = names[places[~ends, -1]]
        rest = positions % size
        found[mine, : positions - rest] = np.tile(whole, positions // size)
        if rest:
            parity = interpolate(tuple(range(size)), whole, parity_of(size, positions))
            found[mine, positions - rest :] = parity
    return found
