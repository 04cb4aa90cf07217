"""The kernels on one thread, in one run: limits of the machine, backends, peers, and the goals.

An update is one (item, row). Rates are G a second per core. Lists are of ids with 8 random bytes or
3 (below 2^24). Decoding writes 8 bytes an item: at 2^19 items they stay in the second or third
cache, as in a scan by blocks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import click
import numpy as np

from benchmarks import peers
from benchmarks.measure import Case, Goal, Report, environment, interleaved, machine
from fedtally import kernels
from fedtally.kernels.backends import native
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

NUMPY_SHARE = 16  # NumPy and the libraries get this part of the items: a rate needs no more
LIMIT_KIB = (16, 32, 256, 4096)
PASSES = 8  # of a decode in one turn
LIST_SHAPE = (16, 4096)
DECODES = ((1, 5, 4096), (1, 16, 4096), (10, 5, 200), (10, 5, 4096))  # batches, rows, width


def list_name(characters: int) -> str:
    """Name the case of a list of ids."""
    return "accumulate list, {} characters, {}x{}".format(characters, *LIST_SHAPE)


def decode_name(batches: int, rows: int, width: int) -> str:
    """Name the case of a decode of a range."""
    return f"decode M={batches}, {rows}x{width}"


def forced(backend: str, run: Callable[[], object]) -> Callable[[], object]:
    """Return the run under one backend."""

    def under() -> None:
        with environment(FEDTALLY_KERNELS=backend):
            run()

    return under


def repeated(run: Callable[[], object], times: int) -> Callable[[], object]:
    """Return the run, several times over."""

    def over() -> None:
        for _ in range(times):
            run()

    return over


def limit_cases(level: str, count: int, rng: np.random.Generator) -> list[Case]:
    """Gather and scatter-increment at random places of tables of several sizes.

    The places are four times as many as the cells, and visited again: a longer list would measure
    how fast it is read.
    """
    cases = []
    for kib in LIMIT_KIB:
        index = rng.integers(kib << 8, size=min(count, kib << 10), dtype=np.uint32)
        passes = max(count // len(index), 1)
        work = passes * len(index)
        gather = partial(native.gather_limit, level, np.zeros(kib << 8, np.float32), index)
        scatter = partial(native.scatter_limit, level, np.zeros(kib << 8, np.int32), index)
        cases.append(Case(f"limit: gather, {kib} KiB", level, repeated(gather, passes), work))
        cases.append(
            Case(f"limit: scatter-increment, {kib} KiB", level, repeated(scatter, passes), work)
        )
    return cases


def encode_cases(backend: str, count: int, rng: np.random.Generator) -> list[Case]:
    """Accumulate lists and a histogram."""
    rows, width = LIST_SHAPE
    tables = rng.integers(2**32, size=(rows, 8, 256), dtype=np.uint32)
    counters = np.zeros((rows, width), np.int64)
    cases = []
    for characters in (8, 3):
        ids = _random_ids(count, rng) >> np.uint64(64 - 8 * characters)
        run = partial(kernels.accumulate, counters, tables, tables, 0, ids)
        cases.append(Case(list_name(characters), backend, forced(backend, run), count * rows))
    counts = rng.integers(0, 9, count)
    run = partial(kernels.accumulate_range, counters, tables, tables, 0, 0, counts)
    cases.append(
        Case(f"accumulate histogram, {rows}x{width}", backend, forced(backend, run), count * rows)
    )
    return cases


def decode_cases(backend: str, count: int, rng: np.random.Generator) -> list[Case]:
    """Decode a range of ids, and scan one for heavy hitters."""
    cases = []
    for batches, rows, width in DECODES:
        sums, tables = _landed(batches, rows, width, rng)
        with environment(FEDTALLY_KERNELS=backend):
            decoder = kernels.Decoder(sums, tables)
        # Several times over, as the limits: the first pass finds what others left in the caches.
        passes = 1 if backend == "numpy" else PASSES
        run = repeated(partial(decoder.range, 0, count), passes)
        cases.append(Case(decode_name(batches, rows, width), backend, run, passes * count * rows))
    spec = SketchSpec(5, 4096, Schedule.parse("shared"), 1, rng.bytes(32))
    sketch = CountSketch(spec, 0)
    sketch.add(np.minimum(rng.zipf(1.3, 100_000), 2**20).astype(np.uint64))
    with environment(FEDTALLY_KERNELS=backend):
        scanner = MedianDecoder([sketch])
    scan = partial(scanner.scan, 0, count, 500.0)
    return [*cases, Case("scan, 5x4096, G ids/s", backend, scan, count)]


def fingerprint_cases(backend: str, count: int, rng: np.random.Generator) -> list[Case]:
    """Fingerprint words of 4 to 10 bytes and addresses of 20 to 60."""
    cases = []
    for name, low, high in (("words", 4, 11), ("addresses", 20, 61)):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(low, high, count))])
        data = np.frombuffer(rng.bytes(int(offsets[-1])), np.uint8)
        run = partial(kernels.fingerprint, data, offsets, 2**60 + 7, 2**59 + 11)
        cases.append(Case(f"fingerprints of {name}", backend, forced(backend, run), count, "M/s"))
    return cases


def peer_cases(count: int, rng: np.random.Generator) -> list[Case]:
    """The installed libraries and NumPy by blocks."""
    rows, width = LIST_SHAPE
    found = peers.installed()
    ids = _random_ids(count, rng)
    items = (ids >> np.uint64(1)).tolist()  # signed 64-bit integers
    name, cases = list_name(8), []
    for library, update in (
        ("datasketches", peers.datasketches_update),
        ("bounter", peers.bounter_update),
    ):
        if library in found:
            cases.append(
                Case(name, library, update(found[library], rows, width, items), count * rows)
            )
    if "datasketches" in found:
        query = peers.datasketches_query(found["datasketches"], 5, 4096, items)
        cases.append(Case(decode_name(1, 5, 4096), "datasketches", query, count * 5))
    tables = rng.integers(2**32, size=(rows, 8, 256), dtype=np.uint32)
    blocked = partial(peers.numpy_accumulate, np.zeros((rows, width), np.int64), tables, ids)
    cases.append(Case(name, "numpy-blocked", blocked, count * rows))
    for batches, own_rows, own_width in DECODES:
        if own_rows % 2:
            run = partial(peers.numpy_decode, *_landed(batches, own_rows, own_width, rng), 0, count)
            cases.append(
                Case(
                    decode_name(batches, own_rows, own_width),
                    "numpy-blocked",
                    run,
                    count * own_rows,
                )
            )
    return cases


def judge(report: Report, levels: list[str]) -> None:
    """Append the goals, ratios within this run, for the levels above the baseline (or all)."""
    found = peers.installed()
    listed = list_name(8)
    for level in [level for level in levels if level != "baseline"] or levels:
        if found:
            best = max(report.best(listed, name) for name in found)
            bound = 10 if level == "v4" else 8
            report.goals.append(
                Goal(
                    f"{level}: list encoder / best library",
                    report.best(listed, level) / best,
                    bound,
                    "x",
                )
            )
        single = report.best(decode_name(1, 5, 4096), level)
        if "datasketches" in found:
            peer = report.best(decode_name(1, 5, 4096), "datasketches")
            report.goals.append(
                Goal(f"{level}: decode M=1 / point queries of datasketches", single / peer, 30, "x")
            )
        limit = max(report.best(f"limit: gather, {kib} KiB", level) for kib in (16, 32))
        report.goals.append(
            Goal(f"{level}: decode M=1 / gather limit", 100 * single / limit, 65, " %")
        )
        for shape in DECODES[2:]:
            name = decode_name(*shape)
            numpy_best = max(report.best(name, peer) for peer in ("numpy", "numpy-blocked"))
            report.goals.append(
                Goal(
                    f"{level}: {name} / best NumPy", report.best(name, level) / numpy_best, 15, "x"
                )
            )


def _random_ids(count: int, rng: np.random.Generator) -> peers.U64:
    return np.frombuffer(rng.bytes(8 * count), np.uint64)


def _landed(
    batches: int, rows: int, width: int, rng: np.random.Generator
) -> tuple[peers.I64, peers.U32]:
    tables = rng.integers(2**32, size=(-(-batches // 8), rows, 8, 256), dtype=np.uint32)
    return rng.integers(-1000, 1000, (batches, rows, width)), tables


def measure(count: int, turns: int) -> Report:
    """Run everything on one thread."""
    rng = np.random.default_rng(1)
    levels = [name for name in kernels.available_backends() if name != "numpy"]
    report = Report(machine() | {"backends": ", ".join(kernels.available_backends())})
    limits = [case for level in levels for case in limit_cases(level, count, rng)]
    small = max(count // NUMPY_SHARE, 1)
    work = peer_cases(small, rng)
    for backend in kernels.available_backends():
        size = small if backend == "numpy" else count
        for cases in (encode_cases, decode_cases, fingerprint_cases):
            work += cases(backend, size, rng)
    with environment(FEDTALLY_NUM_THREADS="1"):
        rates = interleaved([*limits, *work], turns)
    report.rates = rates[: len(limits)] + sorted(rates[len(limits) :], key=lambda rate: rate.name)
    report.notes += [
        f"{name} is not installed: pip install 'fedtally[bench]'"
        for name in peers.LIBRARIES
        if name not in peers.installed()
    ]
    if levels:
        judge(report, levels)
    else:
        report.notes.append("nothing was compiled: no goal applies to the NumPy kernels")
    return report


@click.command("kernels")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--quick", is_flag=True, help="Few items, few turns: shows that it runs, the rates mean little."
)
def command(as_json: bool, quick: bool) -> None:
    """Measure the kernels, the machine's limits and the peers."""
    os.environ.pop("FEDTALLY_KERNELS", None)
    (measure(1 << 13, 2) if quick else measure(1 << 19, 25)).emit(as_json)
