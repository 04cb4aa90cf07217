"""A second, independent reading of docs/protocol.md and its known answers, without fedtally.

`tools/gen_vectors.py` writes them to ``tests/vectors/open.json``. The hashes are those of
`gen_vectors.py`, a reading of that page, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
END = 0xFF


def multiply(a: int, b: int) -> int:
    """Return the product in GF(256), by shifts.

    Args:
        a: 0 .. 255.
        b: 0 .. 255.

    Returns:
        0 .. 255.
    """
    total = 0
    while b:
        if b & 1:
            total ^= a
        a <<= 1
        if a & 0x100:
            a ^= 0x11D
        b >>= 1
    return total


def power(base: int, exponent: int) -> int:
    """Return a power in GF(256).

    Args:
        base: 0 .. 255.
        exponent: At least 0.

    Returns:
        0 .. 255.
    """
    total = 1
    for _ in range(exponent):
        total = multiply(total, base)
    return total


def symbols(name: bytes, max_length: int, positions: int) -> list[int]:
    """Return the symbol at each position.

    Args:
        name: The UTF-8 of an item.
        max_length: Of a name that can be read, in bytes.
        positions: T.

    Returns:
        T integers.
    """
    word = [*name, END] if len(name) <= max_length else list(name[: max_length + 1])
    size = len(word)
    found = word * (positions // size)
    for i in range(positions % size):
        x, value = power(2, size + i), 0
        for j in range(size):
            above = below = 1
            for k in range(size):
                if k != j:
                    above = multiply(above, x ^ power(2, k))
                    below = multiply(below, power(2, j) ^ power(2, k))
            value ^= multiply(word[j], multiply(above, power(below, 254)))
        found.append(value)
    return found


def slots(seed: bytes, positions: int) -> list[int]:
    """Return the slot of each position.

    Args:
        seed: Of the campaign.
        positions: T.

    Returns:
        A permutation of 0 .. T - 1.
    """
    stream = hashlib.shake_256(b"fedtally/1/positions\x00" + seed).digest(8 * positions)
    words = [int.from_bytes(stream[8 * t : 8 * t + 8], "little") for t in range(positions)]
    return [sum((words[u], u) < (words[t], t) for u in range(positions)) for t in range(positions)]


def vector(
    case: Json,
    finder: Callable[[int], list[tuple[int, int]]],
    word: Callable[[int, int], int],
    fingerprint: Callable[[bytes], int],
) -> list[int]:
    """Return the vector of a client of one item.

    Args:
        case: The parameters and the item.
        finder: Gives the places and signs of an id in the first part.
        word: Gives the word of an id in a row of the tables of purpose 1.
        fingerprint: Of a string of bytes.

    Returns:
        The places of the entries that are not 0, from 1 on, each with its sign.
    """
    batches, batch = case["batches"], case["batch"]
    blocks = -(-(case["max_length"] + 1) // batches)
    positions = batches * blocks
    name = bytes.fromhex(case["utf8"])
    hash_ = fingerprint(name) % 2 ** case["bits"]
    found = [sign * (1 + place) for place, sign in finder(hash_)]
    slot_of, letters = (
        slots(bytes.fromhex(case["seed"]), positions),
        symbols(name, case["max_length"], positions),
    )
    rows, width = case["spelling_rows"], case["spelling_width"]
    for block in range(blocks):
        position = slot_of.index(block * batches + batch)
        for row in range(rows):
            drawn = word(position * rows + row, hash_ * 256 + letters[position])
            place = case["rows"] * case["width"] + (block * rows + row) * width
            place += ((drawn >> 8) * width) >> 24
            found.append((1 + place) * (1 - 2 * (drawn & 1)))
    return found


ITEMS = ("tea", "caf\u00e9", "", "https://www.example.org/a/long/path/p1f.html", "x" * 65)
SIZES: Json = {
    "rows": 5,
    "width": 150,
    "spelling_rows": 4,
    "spelling_width": 16,
    "max_length": 64,
    "bits": 26,
}


def sections(read: Callable[[Json], list[int]], seed: bytes) -> dict[str, list[Json]]:
    """Return all vectors.

    Args:
        read: Gives the vector of a case, by `vector` and the hashes of docs/protocol.md.
        seed: Of the campaign.

    Returns:
        Lists by name.
    """
    cases = [
        {
            "name": f"{name}, batch {batch} of {batches}",
            **SIZES,
            "seed": seed.hex(),
            "batches": batches,
            "batch": batch,
            "utf8": item.encode().hex(),
        }
        for name, item in zip(
            ("short", "two bytes", "empty", "long", "too long"), ITEMS, strict=True
        )
        for batches, batch in ((8, 0), (8, 5), (1, 0))
    ]
    return {
        "symbols": [
            {"utf8": item.encode().hex(), "max_length": 64, "positions": positions}
            | {"symbols": bytes(symbols(item.encode(), 64, positions)).hex()}
            for item in ITEMS
            for positions in (65, 72)
        ],
        "slots": [{"seed": seed.hex(), "positions": 72, "slots": slots(seed, 72)}],
        "vectors": [case | {"entries": read(case)} for case in cases],
    }
