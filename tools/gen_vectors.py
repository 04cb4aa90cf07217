"""A second reading of docs/protocol.md, without fedtally, and all known-answer vectors.

The reading of docs/protocol.md is in ``secagg_reading.py``, its vectors in
``gen_secagg_vectors.py``, and both of docs/protocol.md in ``gen_two_server_vectors.py``;
of docs/plan.md in ``plan_reading.py``, the names of docs/protocol.md in ``open_reading.py``, of
docs/protocol.md in ``validity_reading.py``, of the messages of DAP in ``dap_reading.py``. What
follows is the sketch.

It is pure standard library, simple and slow on purpose: every number is a Python integer or a
fraction, nothing is vectorised, and nothing is shared with the package. The known-answer vectors
that it writes to ``tests/vectors/sketch.json`` are therefore a check of the package by a reader of
the text, not by its own code.

Run ``python tools/gen_vectors.py`` to rewrite the vectors; ``python tools/gen_vectors.py --check``
writes nothing and exits 1 when the committed files differ from what this program computes. All data
are derived from SHAKE-256 of labels, so that the output depends on this file alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import dap_reading
import gen_secagg_vectors
import gen_two_server_vectors
import open_reading
import plan_reading
import validity_reading

VERSION = "fedtally-vectors/1"
TARGET = Path(__file__).resolve().parent.parent / "tests" / "vectors"
MAX_BYTES = 320_000

SCHEDULES = ("shared", "fresh", "hybrid", "batched")
MAX_WIDTH = 1 << 24
MERSENNE = (1 << 61) - 1
PURPOSE_SKETCH = 0
PURPOSE_SPELLING = 1

Item = tuple[int, int]
Counters = list[list[int]]
Json = dict[str, Any]


# --------------------------------------------------------------------------------------------------
# The specification.


def check_seed(seed: bytes) -> None:
    """Refuse a seed that is not exactly 32 bytes.

    Args:
        seed: The campaign seed or a round seed.

    Raises:
        ValueError: The seed has another length.
    """
    if len(seed) != 32:
        raise ValueError(f"a seed has 32 bytes, not {len(seed)}")


@cache
def table(seed: bytes, purpose: int, row: int, group: int) -> tuple[tuple[int, ...], ...]:
    """Return the tabulation table of one (purpose, row, group).

    Args:
        seed: 32 bytes.
        purpose: 0 for sketches; one byte.
        row: Row number from 0; four bytes.
        group: Sign group from 0; four bytes.

    Returns:
        Eight tuples of 256 words of 32 bits: ``table[c][b]`` belongs to byte value ``b`` of
        character ``c``.
    """
    raw = table_bytes(seed, purpose, row, group)
    words = [int.from_bytes(raw[4 * i : 4 * i + 4], "little") for i in range(8 * 256)]
    return tuple(tuple(words[256 * c : 256 * c + 256]) for c in range(8))


def table_bytes(seed: bytes, purpose: int, row: int, group: int) -> bytes:
    """Return the 8,192 bytes that a table is read from.

    Args:
        seed: 32 bytes.
        purpose: One byte.
        row: Four bytes, little-endian.
        group: Four bytes, little-endian.

    Returns:
        The output of SHAKE-256.
    """
    check_seed(seed)
    message = b"fedtally/1/tabulation" + b"\x00" + seed
    message += (
        purpose.to_bytes(1, "little") + row.to_bytes(4, "little") + group.to_bytes(4, "little")
    )
    return hashlib.shake_256(message).digest(8 * 256 * 4)


def hash_word(seed: bytes, row: int, group: int, identifier: int) -> int:
    """Return the 32-bit tabulation word of an id.

    Args:
        seed: 32 bytes.
        row: Row number from 0.
        group: Sign group from 0.
        identifier: A 64-bit id.

    Returns:
        The exclusive or of one table entry per byte of the id.
    """
    entries = table(seed, PURPOSE_SKETCH, row, group)
    word = 0
    for position, byte in enumerate(identifier.to_bytes(8, "little")):
        word ^= entries[position][byte]
    return word


def location(seed: bytes, row: int, width: int, identifier: int) -> int:
    """Return the cell of an id in a row, from the upper 24 bits of its group-0 word.

    Args:
        seed: 32 bytes.
        row: Row number from 0.
        width: Number of cells of the row.
        identifier: A 64-bit id.

    Returns:
        A cell number below ``width``.
    """
    return ((hash_word(seed, row, 0, identifier) >> 8) * width) >> 24


def sign(seed: bytes, row: int, index: int, identifier: int) -> int:
    """Return sign number ``index`` of an id in a row.

    Args:
        seed: 32 bytes.
        row: Row number from 0.
        index: Bit ``index mod 8`` (bit 0 is the least significant) of the word of group ``index div
            8``.
        identifier: A 64-bit id.

    Returns:
        1 where the bit is 0 and -1 where it is 1.
    """
    group, bit = divmod(index, 8)
    return -1 if (hash_word(seed, row, group, identifier) >> bit) & 1 else 1


def round_seed(seed: bytes, number: int) -> bytes:
    """Return the seed of one round of the fresh schedule.

    Args:
        seed: The campaign seed, 32 bytes.
        number: Round number from 0; four bytes.

    Returns:
        32 bytes.
    """
    check_seed(seed)
    return hashlib.shake_256(
        b"fedtally/1/round" + b"\x00" + seed + number.to_bytes(4, "little")
    ).digest(32)


def fingerprint_keys(seed: bytes) -> tuple[int, int]:
    """Return the two keys of the string fingerprint.

    Args:
        seed: 32 bytes.

    Returns:
        The evaluation point and the final multiplier, both reduced.
    """
    check_seed(seed)
    raw = hashlib.shake_256(b"fedtally/1/fingerprint" + b"\x00" + seed).digest(32)
    return (
        int.from_bytes(raw[:16], "little") % MERSENNE,
        int.from_bytes(raw[16:], "little") % MERSENNE,
    )


def fingerprint(seed: bytes, text: str) -> int:
    """Return the keyed 61-bit fingerprint of a string.

    Args:
        seed: 32 bytes.
        text: Any string that UTF-8 can encode.

    Returns:
        An id below 2**61 - 1.
    """
    key, multiplier = fingerprint_keys(seed)
    data = text.encode("utf-8")
    value = len(data) + 1
    for start in range(0, len(data), 7):
        value = (value * key + int.from_bytes(data[start : start + 7], "little")) % MERSENNE
    return value * multiplier % MERSENNE


@dataclass(frozen=True)
class Plan:
    """Everything that fixes the hash functions of a campaign.

    Attributes:
        schedule: One of ``SCHEDULES``.
        seed: 32 bytes.
        rows: Number of rows.
        width: Number of cells of a row.
        num_rounds: Number of rounds that were planned, whether or not they took place.
        batches: Number of batches for the batched schedule, otherwise None.
    """

    schedule: str
    seed: bytes
    rows: int
    width: int
    num_rounds: int
    batches: int | None = None

    def __post_init__(self) -> None:
        """Refuse what the specification does not define.

        Raises:
            ValueError: A parameter is out of its range.
        """
        check_seed(self.seed)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}")
        if self.rows < 1:
            raise ValueError("at least one row is needed")
        if not 1 <= self.width <= MAX_WIDTH:
            raise ValueError(f"the width must be from 1 to 2^24, not {self.width}")
        if self.num_rounds < 1:
            raise ValueError("at least one round is needed")
        if self.schedule == "batched":
            if self.batches is None or self.batches < 1:
                raise ValueError("at least one batch is needed")
            if self.batches > self.num_rounds:
                raise ValueError(f"{self.batches} batches are more than {self.num_rounds} rounds")
        elif self.batches is not None:
            raise ValueError("only the batched schedule has batches")

    def batch_of_round(self) -> list[int]:
        """Return the batch of every round of a batched plan.

        Returns:
            One batch number per round: consecutive rounds, sizes that differ by at most one, larger
            batches first.
        """
        assert self.batches is not None
        size, larger = divmod(self.num_rounds, self.batches)
        numbers: list[int] = []
        for batch in range(self.batches):
            numbers += [batch] * (size + 1 if batch < larger else size)
        return numbers

    def hashes(self, number: int) -> tuple[bytes, int]:
        """Return what hashes one round.

        Args:
            number: Round number from 0.

        Returns:
            The seed of the tables and the number of the sign.

        Raises:
            ValueError: There is no such round.
        """
        if not 0 <= number < self.num_rounds:
            raise ValueError(f"round {number} is not one of the {self.num_rounds} rounds from 0")
        if self.schedule == "shared":
            return self.seed, 0
        if self.schedule == "fresh":
            return round_seed(self.seed, number), 0
        if self.schedule == "hybrid":
            return self.seed, number
        return self.seed, self.batch_of_round()[number]


def encode(plan: Plan, number: int, items: Iterable[Item]) -> Counters:
    """Encode the items of one round.

    Args:
        plan: The campaign.
        number: Round number from 0.
        items: Pairs of an id and an integer weight; an id may occur more than once.

    Returns:
        One list of counters per row.
    """
    seed, index = plan.hashes(number)
    counters = [[0] * plan.width for _ in range(plan.rows)]
    for identifier, weight in items:
        for row in range(plan.rows):
            counters[row][location(seed, row, plan.width, identifier)] += (
                sign(seed, row, index, identifier) * weight
            )
    return counters


def row_estimates(plan: Plan, number: int, counters: Counters, identifier: int) -> list[int]:
    """Return sign times counter of one id for every row of one round.

    Args:
        plan: The campaign.
        number: Round number from 0.
        counters: The counters of that round.
        identifier: A 64-bit id.

    Returns:
        One integer per row.
    """
    seed, index = plan.hashes(number)
    return [
        sign(seed, row, index, identifier)
        * counters[row][location(seed, row, plan.width, identifier)]
        for row in range(plan.rows)
    ]


def median(values: Sequence[int]) -> Fraction:
    """Return the median, the mean of the two middle values where their number is even.

    Args:
        values: At least one integer.

    Returns:
        The exact median.
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return Fraction(ordered[middle])
    return Fraction(ordered[middle - 1] + ordered[middle], 2)


def estimate(plan: Plan, rounds: Sequence[Counters | None], identifier: int) -> Fraction:
    """Return the estimated total weight of one id over all rounds.

    Args:
        plan: The campaign.
        rounds: The counters of every planned round, None for a missing one, which contributes
            nothing.
        identifier: A 64-bit id.

    Returns:
        The exact estimate, a multiple of one half.
    """
    present = [(number, counters) for number, counters in enumerate(rounds) if counters is not None]
    if plan.schedule == "shared":
        summed = [[0] * plan.width for _ in range(plan.rows)]
        for _, counters in present:
            for row in range(plan.rows):
                for cell in range(plan.width):
                    summed[row][cell] += counters[row][cell]
        return median(row_estimates(plan, 0, summed, identifier))
    if plan.schedule == "fresh":
        medians = [
            median(row_estimates(plan, number, counters, identifier))
            for number, counters in present
        ]
        return sum(medians, Fraction(0))
    totals = [0] * plan.rows
    for number, counters in present:
        for row, value in enumerate(row_estimates(plan, number, counters, identifier)):
            totals[row] += value
    return median(totals)


# --------------------------------------------------------------------------------------------------
# The vectors.


class Stream:
    """Deterministic integers from SHAKE-256 of a label.

    Attributes:
        label: What the stream is derived from.
    """

    def __init__(self, label: str) -> None:
        """Start a stream.

        Args:
            label: Any text; another label gives unrelated integers.
        """
        self.label = label
        self._data = hashlib.shake_256(b"fedtally test vectors: " + label.encode()).digest(1 << 16)
        self._used = 0

    def below(self, bound: int) -> int:
        """Return the next integer.

        Args:
            bound: The integer is below this (the bias of the reduction does not matter here).

        Returns:
            An integer from 0 to ``bound - 1``.
        """
        chunk = self._data[self._used : self._used + 16]
        assert len(chunk) == 16, "stream exhausted"
        self._used += 16
        return int.from_bytes(chunk, "little") % bound


SEEDS = (
    bytes(32),
    bytes(range(32)),
    b"\xff" * 32,
    hashlib.shake_256(b"fedtally test vectors: seed").digest(32),
)
EDGE_IDS = (
    0,
    1,
    255,
    256,
    65_535,
    65_536,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 2,
    2**64 - 1,
)
WORD_IDS = (*EDGE_IDS, 0x0123456789ABCDEF, 257)
# With 2^24 - 1 cells, a location that looks at the low eight bits of the word differs for about
# every other id.
WORD_WIDTHS = (1, 2, 3, 200, 4096, 65_536, 1_000_003, 2**24 - 1, 2**24)
WORD_GROUPS = (0, 1, 2)
TABLE_BYTES = (0, 1, 127, 128, 255)


def table_vectors() -> list[Json]:
    """Return entries and digests of tables.

    Returns:
        One object per (seed, purpose, row, group).
    """
    keys = [
        (seed, PURPOSE_SKETCH, row, group)
        for seed in SEEDS[:2]
        for row in (0, 1)
        for group in (0, 1)
    ]
    keys += [(SEEDS[2], PURPOSE_SKETCH, 4, 2), (SEEDS[3], PURPOSE_SKETCH, 258, 65_539)]
    # Row and group swapped, and another purpose: an implementation that mixes up the fields is
    # found out.
    keys += [(SEEDS[3], PURPOSE_SKETCH, 65_539, 258), (SEEDS[3], 1, 0, 0)]
    vectors = []
    for seed, purpose, row, group in keys:
        entries = table(seed, purpose, row, group)
        vectors.append(
            {
                "seed": seed.hex(),
                "purpose": purpose,
                "row": row,
                "group": group,
                "bytes": list(TABLE_BYTES),
                "entries": [[entries[c][byte] for byte in TABLE_BYTES] for c in range(8)],
                "sha256": hashlib.sha256(table_bytes(seed, purpose, row, group)).hexdigest(),
            }
        )
    return vectors


def round_seed_vectors() -> list[Json]:
    """Return round seeds of the fresh schedule.

    Returns:
        One object per seed.
    """
    numbers = [0, 1, 2, 7, 8, 255, 256, 65_536, (1 << 32) - 1]
    return [
        {
            "seed": seed.hex(),
            "rounds": numbers,
            "round_seeds": [round_seed(seed, number).hex() for number in numbers],
        }
        for seed in SEEDS
    ]


def word_vectors() -> list[Json]:
    """Return words, locations and signs of single ids.

    Returns:
        One object per (seed, row).
    """
    keys = [(seed, row) for seed in SEEDS for row in (0, 1, 4)]
    keys += [(SEEDS[1], 300), (round_seed(SEEDS[1], 3), 2)]
    vectors = []
    for seed, row in keys:
        signs = [
            [sign(seed, row, index, i) for i in WORD_IDS] for index in range(8 * len(WORD_GROUPS))
        ]
        vectors.append(
            {
                "seed": seed.hex(),
                "row": row,
                "ids": list(WORD_IDS),
                "groups": list(WORD_GROUPS),
                "words": [
                    [hash_word(seed, row, group, i) for i in WORD_IDS] for group in WORD_GROUPS
                ],
                "widths": list(WORD_WIDTHS),
                "locations": [
                    [location(seed, row, width, i) for i in WORD_IDS] for width in WORD_WIDTHS
                ],
                "signs": signs,
            }
        )
    return vectors


def draw_rounds(
    label: str, num_rounds: int, *, signed: bool, scale: int = 1
) -> list[list[Item] | None]:
    """Draw the items of all rounds of a campaign.

    Rounds have unequal numbers of items. From three rounds on, one round is empty and another is
    missing.

    Args:
        label: The label of the stream.
        num_rounds: Number of rounds.
        signed: Whether weights may be negative or zero.
        scale: All weights are multiplied by this, plus a small number.

    Returns:
        One list of (id, weight) per round, None for the missing one.
    """
    stream = Stream(label)
    empty = missing = -1
    if num_rounds >= 3:
        empty = stream.below(num_rounds)
        missing = (empty + 1 + stream.below(num_rounds - 1)) % num_rounds
    rounds: list[list[Item] | None] = []
    for number in range(num_rounds):
        if number == missing:
            rounds.append(None)
            continue
        items: list[Item] = []
        for _ in range(0 if number == empty else 1 + stream.below(6)):
            kind = stream.below(8)
            if kind < 5:
                identifier = stream.below(6)
            elif kind < 7:
                identifier = EDGE_IDS[stream.below(len(EDGE_IDS))]
            else:
                identifier = stream.below(1 << 64)
            weight = stream.below(19) - 9 if signed else 1 + stream.below(9)
            items.append((identifier, weight * scale + (weight if scale > 1 else 0)))
        rounds.append(items)
    return rounds


def queries(rounds: Sequence[Sequence[Item] | None]) -> list[int]:
    """Return ids to estimate: some that were encoded and some that were not.

    Args:
        rounds: The items of every round.

    Returns:
        Distinct ids in increasing order.
    """
    encoded = sorted(
        {identifier for items in rounds if items is not None for identifier, _ in items}
    )
    chosen = set(range(6)) | set(encoded[-5:]) | {77, 1 << 20, 1 << 63, (1 << 64) - 1}
    return sorted(chosen)


def number_of(value: Fraction) -> int | float:
    """Return an estimate as a JSON number.

    Args:
        value: A multiple of one half.

    Returns:
        An integer where the value is one, otherwise the exact float.
    """
    if value.denominator == 1:
        return value.numerator
    result = float(value)
    assert Fraction(result) == value
    return result


def sketch_vector(
    name: str, plan: Plan, rounds: Sequence[Sequence[Item] | None], *, signed: bool
) -> Json:
    """Encode and decode one campaign.

    Args:
        name: A unique name.
        plan: The campaign.
        rounds: The items of every round, None for a missing one.
        signed: Whether weights may be negative or zero.

    Returns:
        The object of the campaign.
    """
    assert len(rounds) == plan.num_rounds
    counters = [
        None if items is None else encode(plan, number, items)
        for number, items in enumerate(rounds)
    ]
    ids = queries(rounds)
    return {
        "name": name,
        "success": True,
        "schedule": plan.schedule,
        "seed": plan.seed.hex(),
        "rows": plan.rows,
        "width": plan.width,
        "num_rounds": plan.num_rounds,
        "batches": plan.batches,
        "batch_of_round": plan.batch_of_round() if plan.schedule == "batched" else None,
        "signed": signed,
        "items": [None if items is None else [list(item) for item in items] for items in rounds],
        "counters": counters,
        "ids": ids,
        "encoded": [
            any(i == x for items in rounds if items is not None for x, _ in items) for i in ids
        ],
        "estimates": [number_of(estimate(plan, counters, i)) for i in ids],
    }


def sketch_vectors() -> list[Json]:
    """Return full encodes and decodes.

    Returns:
        One object per campaign.
    """
    lengths = {
        "shared": (1, 3, 4, 2, 9),
        "fresh": (3, 1, 18, 5, 4, 2, 7),
        "hybrid": (18, 3, 9, 17, 8, 5, 16),
        "batched": (18, 9, 7, 18, 18, 17, 5),
    }
    batches = (4, 2, 3, 17, 18, 9, 5)
    vectors: list[Json] = []
    for schedule in SCHEDULES:
        count = 0
        for rows in (1, 2, 3, 4, 5):
            for width in (4, 7, 16):
                length = lengths[schedule][count % len(lengths[schedule])]
                split = batches[count % len(batches)] if schedule == "batched" else None
                plan = Plan(
                    schedule,
                    SEEDS[(count + len(schedule)) % len(SEEDS)],
                    rows,
                    width,
                    length,
                    split,
                )
                name = f"{schedule}-{rows}x{width}"
                signed = count % 2 == 1
                vectors.append(
                    sketch_vector(
                        name, plan, draw_rounds(name, length, signed=signed), signed=signed
                    )
                )
                count += 1

    # One round, or one batch: hybrid, batched and shared agree bit for bit; as many batches as
    # rounds: hybrid.
    for length, names in ((1, ("shared", "hybrid", "batched")), (4, ("shared", "batched"))):
        rounds = draw_rounds(f"equal-{length}", length, signed=True)
        group = []
        for schedule in names:
            plan = Plan(schedule, SEEDS[1], 3, 7, length, 1 if schedule == "batched" else None)
            group.append(sketch_vector(f"equal-{length}-{schedule}", plan, rounds, signed=True))
        assert all(v["counters"] == group[0]["counters"] for v in group)
        assert all(v["estimates"] == group[0]["estimates"] for v in group)
        vectors += group
    rounds = draw_rounds("equal-10", 10, signed=True)
    hybrid = sketch_vector(
        "equal-10-hybrid", Plan("hybrid", SEEDS[3], 3, 7, 10), rounds, signed=True
    )
    batched = sketch_vector(
        "equal-10-batched", Plan("batched", SEEDS[3], 3, 7, 10, 10), rounds, signed=True
    )
    assert hybrid["counters"] == batched["counters"] and hybrid["estimates"] == batched["estimates"]
    vectors += [hybrid, batched]

    # A single cell per row, weights beyond 32 bits, and campaigns of which little or nothing is
    # left.
    for schedule in SCHEDULES:
        split = 2 if schedule == "batched" else None
        plan = Plan(schedule, SEEDS[0], 3, 1, 3, split)
        rounds = draw_rounds(f"width-1-{schedule}", 3, signed=True)
        vectors.append(sketch_vector(f"width-1-{schedule}", plan, rounds, signed=True))
        plan = Plan(schedule, SEEDS[2], 4, 5, 4, split)
        rounds = draw_rounds(f"large-{schedule}", 4, signed=True, scale=1 << 40)
        vectors.append(sketch_vector(f"large-weights-{schedule}", plan, rounds, signed=True))
        plan = Plan(schedule, SEEDS[3], 3, 4, 3, split)
        last = draw_rounds(f"last-{schedule}", 1, signed=False)
        vectors.append(
            sketch_vector(f"only-last-round-{schedule}", plan, [None, None, *last], signed=False)
        )
        vectors.append(sketch_vector(f"no-items-{schedule}", plan, [[], None, []], signed=False))
    assert len({vector["name"] for vector in vectors}) == len(vectors)
    return vectors


def text_with_fingerprint(seed: bytes, wanted: int) -> str:
    """Find a printable string of 14 bytes with a given fingerprint, for the reduction's edges.

    Args:
        seed: 32 bytes.
        wanted: The fingerprint.

    Returns:
        The first such string of a fixed search: the second chunk is solved for until it is
        printable.
    """
    key, multiplier = fingerprint_keys(seed)
    last = wanted * pow(multiplier, -1, MERSENNE) % MERSENNE
    for attempt in range(10_000_000):
        head = f"{attempt:07d}"
        tail = (last - ((14 + 1) * key + int.from_bytes(head.encode(), "little")) * key) % MERSENNE
        if tail < 1 << 56 and all(32 <= byte < 127 for byte in tail.to_bytes(7, "little")):
            text = head + tail.to_bytes(7, "little").decode("ascii")
            assert fingerprint(seed, text) == wanted
            return text
    raise AssertionError("no such string was found")


def fingerprint_vectors() -> list[Json]:
    """Return fingerprints of strings.

    Returns:
        One object per seed.
    """
    stream = Stream("strings")
    printable = "".join(chr(code) for code in range(32, 127))
    texts = [""]
    texts += [
        "".join(printable[stream.below(95)] for _ in range(length)) for length in range(1, 17)
    ]
    # Only the length tells these apart.
    texts += ["\0" * length for length in (1, 6, 7, 8, 14)] + [
        "a",
        "a\0",
        "a\0\0\0\0\0\0",
        "a\0\0\0\0\0\0\0",
    ]
    # Composed and decomposed, two to four bytes a character, characters across the edge of a chunk,
    # the last one.
    texts += [
        "\u00e9",
        "e\u0301",
        "stra\u00dfe",
        "aaaaaa\u00f1",
        "aaaaa\u20ac\u20ac",
        "\u65e5\u672c\u8a9e\u306e\u30c6",
    ]
    texts += ["\U0001f600", "\U0010ffff" * 2, "\ufeffbom", "https://example.org/a?b=c&d=\u00fc#e"]
    texts += [
        "".join(printable[stream.below(95)] for _ in range(length))
        for length in (21, 63, 64, 255, 256, 1000)
    ]
    vectors = []
    for seed in (SEEDS[1], SEEDS[3]):
        key, multiplier = fingerprint_keys(seed)
        edges = [text_with_fingerprint(seed, wanted) for wanted in (0, 1, MERSENNE - 1)]
        vectors.append(
            {
                "seed": seed.hex(),
                "k": key,
                "k2": multiplier,
                "strings": [
                    {"text": text, "utf8": text.encode().hex(), "id": fingerprint(seed, text)}
                    for text in [*texts, *edges]
                ],
            }
        )
    return vectors


def negative_vectors() -> list[Json]:
    """Return requests that must be refused, each of which this program refuses too.

    Returns:
        One object per request: to encode one item in round ``round`` of the given campaign.
    """
    good: Json = {
        "schedule": "hybrid",
        "seed": SEEDS[1].hex(),
        "rows": 3,
        "width": 16,
        "num_rounds": 4,
        "batches": None,
        "round": 0,
        "items": [[1, 1]],
    }
    batched: Json = {"schedule": "batched", "batches": 2}
    changes: list[tuple[str, Json]] = []
    for schedule in SCHEDULES:
        base: Json = batched if schedule == "batched" else {"schedule": schedule}
        changes += [
            (f"width-0-{schedule}", {**base, "width": 0}),
            (f"width-2^24+1-{schedule}", {**base, "width": MAX_WIDTH + 1}),
            (f"rows-0-{schedule}", {**base, "rows": 0}),
            (f"seed-31-bytes-{schedule}", {**base, "seed": SEEDS[1][:31].hex()}),
            (f"seed-33-bytes-{schedule}", {**base, "seed": SEEDS[1].hex() + "20"}),
            (f"round-too-large-{schedule}", {**base, "round": 4}),
            (f"round-negative-{schedule}", {**base, "round": -1}),
        ]
    changes += [
        ("batches-more-than-rounds", {**batched, "batches": 5}),
        ("batches-0", {**batched, "batches": 0}),
    ]
    request_of(good)
    vectors = []
    for name, change in changes:
        case = {**good, **change}
        try:
            request_of(case)
        except ValueError as error:
            vectors.append({"name": name, "success": False, "reason": str(error), **case})
        else:
            raise AssertionError(f"{name} was not refused")
    return vectors


def request_of(case: Json) -> Counters:
    """Carry out the request of a negative case.

    Args:
        case: The object of the case.

    Returns:
        The counters, should the request be a good one.
    """
    plan = Plan(
        case["schedule"],
        bytes.fromhex(case["seed"]),
        case["rows"],
        case["width"],
        case["num_rounds"],
        case["batches"],
    )
    return encode(
        plan, case["round"], [(identifier, weight) for identifier, weight in case["items"]]
    )


def sketch_sections() -> dict[str, list[Json]]:
    """Return all vectors of the sketch.

    Returns:
        Lists by name.
    """
    return {
        "tables": table_vectors(),
        "round_seeds": round_seed_vectors(),
        "words": word_vectors(),
        "sketches": sketch_vectors(),
        "fingerprints": fingerprint_vectors(),
        "negative": negative_vectors(),
    }


def open_sections() -> dict[str, list[Json]]:
    """Return all vectors of open domains.

    Returns:
        Lists by name.
    """

    def read(case: Json) -> list[int]:
        seed = bytes.fromhex(case["seed"])
        batches = case["batches"]
        schedule = "hybrid" if batches > 1 else "shared"
        plan = Plan(schedule, seed, case["rows"], case["width"], batches, None)

        def finder(identifier: int) -> list[tuple[int, int]]:
            rows = encode(plan, case["batch"], [(identifier, 1)])
            return [
                (row * case["width"] + place, value)
                for row, counters in enumerate(rows)
                for place, value in enumerate(counters)
                if value
            ]

        def word(row: int, identifier: int) -> int:
            value = 0
            for place, column in enumerate(table(seed, PURPOSE_SPELLING, row, 0)):
                value ^= column[identifier >> 8 * place & 255]
            return value

        return open_reading.vector(
            case, finder, word, lambda name: fingerprint(seed, name.decode())
        )

    return open_reading.sections(read, hashlib.shake_256(b"open domain").digest(32))


def documents() -> dict[str, bytes]:
    """Return all files.

    Returns:
        The contents by name.
    """
    secagg = gen_secagg_vectors.sections()
    clients, servers = secagg.pop("clients"), secagg.pop("servers")
    files = {
        "sketch.json": sketch_sections(),
        "secagg.json": secagg,
        "secagg_clients.json": {"clients": clients},
        "secagg_servers.json": {"servers": servers},
        "two_server.json": gen_two_server_vectors.sections(),
        "plan.json": plan_reading.sections(),
        "open.json": open_sections(),
        "validity.json": validity_reading.sections(),
        "dap18.json": dap_reading.sections(),
    }
    return {name: document(sections).encode("ascii") for name, sections in files.items()}


def document(sections: dict[str, list[Json]]) -> str:
    """Return a whole file: JSON with one line per vector.

    Args:
        sections: Lists of vectors by name.

    Returns:
        ASCII text that ends with a newline.
    """
    lines = ["{", f' "version": {json.dumps(VERSION)},']
    lines.append(' "generator": "tools/gen_vectors.py",')
    for position, (name, vectors) in enumerate(sections.items()):
        lines.append(f" {json.dumps(name)}: [")
        lines += [
            "  "
            + json.dumps(vector, separators=(",", ":"))
            + ("," if number + 1 < len(vectors) else "")
            for number, vector in enumerate(vectors)
        ]
        lines.append(" ]" + ("," if position + 1 < len(sections) else ""))
    text = "\n".join([*lines, "}"]) + "\n"
    assert json.loads(text) == {"version": VERSION, "generator": "tools/gen_vectors.py", **sections}
    assert len(text) < MAX_BYTES, len(text)
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the vectors, or compare them.

    Args:
        arguments: The command line, by default that of the process.

    Returns:
        The exit status: 1 where ``--check`` finds a difference, otherwise 0.
    """
    parser = argparse.ArgumentParser(description="Write the known-answer vectors.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when the committed files differ"
    )
    options = parser.parse_args(arguments)
    status = 0
    for name, data in documents().items():
        target = TARGET / name
        if not options.check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            print(f"wrote {len(data)} bytes to {target}")
        elif not target.is_file() or target.read_bytes() != data:
            print(f"{target} differs from what tools/gen_vectors.py computes", file=sys.stderr)
            status = 1
        else:
            print(f"{target} is up to date")
    return status


if __name__ == "__main__":
    sys.exit(main())
