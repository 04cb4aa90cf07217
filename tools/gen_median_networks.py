"""Write median_networks.h, medians of 1 to 32 values in C++, for the build.

Up to 16 values are held in registers, by straight-line code. The networks of more values are
data: as code, they would take most of the time that the kernels take to compile.

Each network is a sorting network (Batcher's odd-even merge exchange, Knuth volume 3, algorithm
5.2.2M, or a shorter known one from the same volume, section 5.3.4) of which only the comparators
that can reach a middle output are kept, and of those only the needed half. Every network is checked
by the zero-one principle before it is written: on every 0-1 input up to 12 values, on random ones
above.

    python tools/gen_median_networks.py build/median_networks.h
"""

from __future__ import annotations

import itertools
import random  # noqa: TID251 - only checks the networks
import sys
import textwrap
from pathlib import Path

LARGEST_STRAIGHT, LARGEST = 16, 32
Network = list[tuple[int, int]]

# Knuth, The Art of Computer Programming 3, 5.3.4: minimal networks for few values; Green's network
# for 16.
KNOWN: dict[int, Network] = {
    5: [(0, 3), (1, 4), (0, 2), (1, 3), (0, 1), (2, 4), (1, 2), (3, 4), (2, 3)],
    7: [
        (0, 6),
        (2, 3),
        (4, 5),
        (0, 2),
        (1, 4),
        (3, 6),
        (0, 1),
        (2, 5),
        (3, 4),
        (1, 2),
        (4, 6),
        (2, 3),
        (4, 5),
        (1, 2),
        (3, 4),
        (5, 6),
    ],
    16: (
        [
            (step * 2 * block + i, step * 2 * block + i + step)
            for step in (1, 2, 4, 8)
            for block in range(8 // step)
            for i in range(step)
        ]
        + [
            (5, 10),
            (6, 9),
            (3, 12),
            (13, 14),
            (4, 8),
            (7, 11),
            (1, 2),
            (1, 4),
            (7, 13),
            (2, 8),
            (11, 14),
            (2, 4),
            (5, 6),
            (9, 10),
            (11, 13),
        ]
        + [
            (3, 8),
            (7, 12),
            (6, 8),
            (10, 12),
            (3, 5),
            (7, 9),
            (3, 4),
            (5, 6),
            (7, 8),
            (9, 10),
            (11, 12),
            (6, 7),
            (8, 9),
        ]
    ),
}
# Three-comparator selections beat pruned sorting for the median of five (seven comparators, ten
# min/max operations).
MEDIAN_OF_FIVE: Network = [(0, 1), (3, 4), (0, 3), (1, 4), (1, 2), (2, 3), (1, 2)]


def merge_exchange(size: int) -> Network:
    """Return Batcher's sorting network for `size` values."""
    network: Network = []
    top = 1
    while top * 2 < size:
        top *= 2
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            network += [(i, i + d) for i in range(size - d) if i & p == r]
            if q == p:
                break
            q, r, d = q // 2, p, q - p
        p //= 2
    return network


def middle(size: int) -> list[int]:
    """Return the positions whose mean is the median."""
    return sorted({(size - 1) // 2, size // 2})


def selects_median(size: int, network: Network) -> bool:
    """Check by the zero-one principle that the middle outputs are right."""
    rng = random.Random(size)
    inputs = (
        itertools.product((0, 1), repeat=size)
        if size <= 12
        else ([rng.randint(0, 1) for _ in range(size)] for _ in range(2_000))
    )
    for values in inputs:
        wires = list(values)
        for a, b in network:
            if wires[a] > wires[b]:
                wires[a], wires[b] = wires[b], wires[a]
        if [wires[i] for i in middle(size)] != [sorted(values)[i] for i in middle(size)]:
            return False
    return True


def pruned(size: int, network: Network) -> list[tuple[int, int, bool, bool]]:
    """Return the comparators that reach a middle output, each with (keep minimum, maximum)."""
    needed = set(middle(size))
    kept = []
    for a, b in reversed(network):
        low, high = a in needed, b in needed
        if low or high:
            kept.append((a, b, low, high))
            needed |= {a, b}
    return kept[::-1]


def median_network(size: int) -> list[tuple[int, int, bool, bool]]:
    """Return the comparators that select the median of `size` values, as `pruned` does."""
    network = MEDIAN_OF_FIVE if size == 5 else KNOWN.get(size) or merge_exchange(size)
    if not selects_median(size, network):
        raise AssertionError(f"the network for {size} values is wrong")
    return pruned(size, network)


def straight(size: int) -> str:
    """Return the C++ specialisation for `size` values."""
    lines = [
        f"template <> struct Median<{size}> {{",
        # GCC does not inline many rows by itself, and a call is not vectorised.
        "  template <class T, class Rows> [[gnu::always_inline]] static inline T of(Rows x) {",
    ]
    lines += [f"    T x{i} = x[{i}];" for i in range(size)]
    for a, b, low, high in median_network(size):
        if low and high:
            lines.append(
                f"    {{ T t = lesser(x{a}, x{b}); x{b} = greater(x{a}, x{b}); x{a} = t; }}"
            )
        elif low:
            lines.append(f"    x{a} = lesser(x{a}, x{b});")
        else:
            lines.append(f"    x{b} = greater(x{a}, x{b});")
    low, high = middle(size)[0], middle(size)[-1]
    lines.append(
        f"    return x{low};" if low == high else f"    return (x{low} + x{high}) * T(0.5);"
    )
    return "\n".join([*lines, "  }", "};"])


def table(sizes: range) -> str:
    """Return C++ arrays: the networks of `sizes`, one behind the other, and where each ends."""
    networks = [median_network(size) for size in sizes]
    pairs = [f"{{{a}, {b}}}," for network in networks for a, b, _, _ in network]
    ends = [str(end) for end in itertools.accumulate(map(len, networks), initial=0)]
    return "\n".join(
        [
            "struct Comparator { unsigned char low, high; };",
            "static constexpr Comparator kComparators[] = {",
            *textwrap.wrap(" ".join(pairs), 100),
            "};",
            f"static constexpr int kNetworkEnds[] = {{{', '.join(ends)}}};",
        ]
    )


def main() -> None:
    """Write the header to the path given."""
    text = (
        "// Written by tools/gen_median_networks.py; do not edit.\n#pragma once\n\ntemplate <int N>"
        " struct Median;\n"
    )
    text += "template <class T> static inline T lesser(T a, T b) { return a < b ? a : b; }\n"
    text += "template <class T> static inline T greater(T a, T b) { return a < b ? b : a; }\n"
    text += f"static constexpr int kLargestStraight = {LARGEST_STRAIGHT};\n"
    text += f"static constexpr int kLargestNetwork = {LARGEST};\n\n"
    text += "\n".join(straight(size) for size in range(1, LARGEST_STRAIGHT + 1)) + "\n"
    text += table(range(LARGEST_STRAIGHT + 1, LARGEST + 1)) + "\n"
    Path(sys.argv[1]).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
