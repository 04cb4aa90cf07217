"""Replay the known answers that tools/gen_vectors.py computed from the specification, on every
implementation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case

from fedtally import kernels
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec, hashing

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "sketch.json").read_text())
Vector = dict[str, Any]


def spec_of(vector: Vector) -> SketchSpec:
    schedule = (
        vector["schedule"]
        if vector["batches"] is None
        else f"{vector['schedule']}:{vector['batches']}"
    )
    seed = bytes.fromhex(vector["seed"])
    return SketchSpec(
        vector["rows"], vector["width"], Schedule.parse(schedule), vector["num_rounds"], seed
    )


def encode(sketch: CountSketch, items: list[list[int]], signed: bool) -> None:
    ids = np.array([id_ for id_, _ in items], np.uint64)
    weights = np.array([weight for _, weight in items], np.int64)
    if signed:
        sketch.encode_vector(weights, ids)
    else:
        sketch.add(ids, weights)


def test_the_file_is_of_a_known_version() -> None:
    assert VECTORS["version"] == "fedtally-vectors/1"
    sections = {key: len(value) for key, value in VECTORS.items() if isinstance(value, list)}
    assert sections.keys() == {
        "tables",
        "round_seeds",
        "words",
        "sketches",
        "fingerprints",
        "negative",
    }
    assert all(sections.values())


@each_case(
    "vector",
    VECTORS["tables"],
    ids=lambda v: f"{v['seed'][:4]}-{v['purpose']}-{v['row']}-{v['group']}",
)
def test_tables(vector: Vector) -> None:
    if vector["row"] >= kernels.MAX_ROWS:  # for implementations that have no such limit
        with pytest.raises(InvalidInputError, match="rows must be at most 1024"):
            SketchSpec(vector["row"] + 1, 1, Schedule.parse("shared"), 1, bytes(32))
        return
    seed = bytes.fromhex(vector["seed"])
    table = hashing.tabulation_tables(seed, vector["row"] + 1, vector["group"], vector["purpose"])[
        vector["row"]
    ]
    assert table[:, vector["bytes"]].tolist() == vector["entries"]
    assert hashlib.sha256(table.astype("<u4").tobytes()).hexdigest() == vector["sha256"]


@pytest.mark.parametrize("vector", VECTORS["round_seeds"], ids=lambda v: v["seed"][:4])
def test_round_seeds(vector: Vector) -> None:
    seed = bytes.fromhex(vector["seed"])
    assert [hashing.round_seed(seed, m).hex() for m in vector["rounds"]] == vector["round_seeds"]


@each_case("vector", VECTORS["words"], ids=lambda v: f"{v['seed'][:4]}-{v['row']}")
def test_words_locations_and_signs(vector: Vector, backend: str) -> None:
    seed, row, ids = (
        bytes.fromhex(vector["seed"]),
        vector["row"],
        np.array(vector["ids"], np.uint64),
    )
    tables = [
        np.ascontiguousarray(hashing.tabulation_tables(seed, row + 1, g)[row:])
        for g in vector["groups"]
    ]
    words = [kernels.hash_words(t, ids) for t in tables]
    assert [w[0].tolist() for w in words] == vector["words"]
    signs = [
        reference.signs(words[index // 8], index % 8)[0].tolist()
        for index in range(len(vector["signs"]))
    ]
    assert signs == vector["signs"]
    for width, cells in zip(vector["widths"], vector["locations"], strict=True):
        assert reference.locations(words[0], width)[0].tolist() == cells
        check_encoding(tables, ids, width, cells, vector["signs"])


def check_encoding(
    tables: list[Any], ids: Any, width: int, cells: list[int], signs: list[list[int]]
) -> None:
    """Give every id a count of its own power of 16, so that no two sets of ids have the same
    sum."""
    counts = np.array([16**i for i in range(len(ids))], np.int64)
    for index in (0, 7, 8, 18):
        counters = np.zeros((1, width), np.int64)
        kernels.accumulate(counters, tables[0], tables[index // 8], index % 8, ids, counts)
        expected = dict.fromkeys(cells, 0)
        for cell, sign, count in zip(cells, signs[index], counts.tolist(), strict=True):
            expected[cell] += sign * count
        assert {cell: int(counters[0, cell]) for cell in cells} == expected
        assert width > 70_000 or np.count_nonzero(counters) <= len(expected)


@each_case("vector", VECTORS["sketches"], ids=lambda v: v["name"])
def test_sketches(vector: Vector, backend: str) -> None:
    assert vector["success"]
    spec = spec_of(vector)
    if vector["batch_of_round"] is not None:
        assert [
            spec.schedule.batch_of(m, spec.num_rounds) for m in range(spec.num_rounds)
        ] == vector["batch_of_round"]
    landed = []
    for m, (items, counters) in enumerate(zip(vector["items"], vector["counters"], strict=True)):
        if items is not None:
            sketch = CountSketch(spec, m)
            encode(sketch, items, vector["signed"])
            assert sketch.counters.tolist() == counters
            landed.append(sketch)
    ids = np.array(vector["ids"], np.uint64)
    for expected in (1, 1 << 20):
        decoder = MedianDecoder(landed, expected)
        assert decoder.at(ids).tolist() == vector["estimates"]
        assert [decoder.range(id_, 1)[0] for id_ in vector["ids"]] == vector["estimates"]


@pytest.mark.parametrize("vector", VECTORS["fingerprints"], ids=lambda v: v["seed"][:4])
def test_fingerprints(vector: Vector, backend: str) -> None:
    strings = [bytes.fromhex(entry["utf8"]) for entry in vector["strings"]]
    offsets = np.cumsum([0, *map(len, strings)])
    data = np.frombuffer(b"".join(strings), np.uint8)
    assert kernels.fingerprint(data, offsets, vector["k"], vector["k2"]).tolist() == [
        e["id"] for e in vector["strings"]
    ]


@each_case("vector", VECTORS["negative"], ids=lambda v: v["name"])
def test_negative(vector: Vector) -> None:
    assert not vector["success"]
    with pytest.raises(InvalidInputError):
        encode(CountSketch(spec_of(vector), vector["round"]), vector["items"], signed=False)
