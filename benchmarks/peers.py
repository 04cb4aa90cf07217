"""The peers of fedtally: the errors of other ways to count, and libraries for the kernels.

Errors: local differential privacy at equal epsilon (`local_dp`), and sketches at equal bytes
(`streams`).

Speed, for ``kernels``: count-min sketches of other projects, and NumPy as one would write it. The
libraries are used through their Python interfaces, one item a call or a list where they take one;
sketches have the same rows and width as ours. They come with ``pip install 'fedtally[bench]'``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import fedtally
from benchmarks import host as calibration
from benchmarks import local_dp, streams
from benchmarks.measure import Report, environment, machine
from fedtally.plan.bill import REFERENCE, Host

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

BLOCK = 1 << 13  # words of one row stay in the cache
LIBRARIES = ("datasketches", "bounter")


def installed() -> dict[str, Any]:
    """Return the peer libraries that can be imported."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.import_module(name)
        except ImportError:
            continue
    return found


def datasketches_update(
    module: Any, rows: int, width: int, items: list[int]
) -> Callable[[], object]:
    """Return a run that puts the items in a count-min sketch of Apache DataSketches."""
    update = module.count_min_sketch(rows, width).update

    def run() -> None:
        for item in items:
            update(item)

    return run


def datasketches_query(
    module: Any, rows: int, width: int, items: list[int]
) -> Callable[[], object]:
    """Return a run that asks Apache DataSketches for the estimates of the items."""
    estimate = module.count_min_sketch(rows, width).get_estimate
    return lambda: [estimate(item) for item in items]


def bounter_update(module: Any, rows: int, width: int, items: list[int]) -> Callable[[], object]:
    """Return a run that puts the items, as text, in a count-min sketch of bounter."""
    sketch = module.CountMinSketch(width=width, depth=rows)
    texts = [str(item) for item in items]
    return lambda: sketch.update(texts)


def blocked_words(tables: U32, ids: U64) -> U32:
    """Return the tabulation words of one row, tables [8, 256], with a gather for each byte."""
    characters = ids.view(np.uint8).reshape(-1, 8)
    words: U32 = tables[0].take(characters[:, 0])
    for c in range(1, 8):
        words ^= tables[c].take(characters[:, c])
    return words


def numpy_accumulate(counters: I64, tables: U32, ids: U64) -> None:
    """Count ids as NumPy does it fastest: per row and block, one histogram over (cell, sign)."""
    width = counters.shape[1]
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        for row, own in zip(counters, tables, strict=True):
            words = blocked_words(own, block)
            cells = ((words >> 8).astype(np.uint64) * np.uint64(width)) >> np.uint64(24)
            split = np.bincount(
                (cells << np.uint64(1) | (words & 1)).view(np.int64), minlength=2 * width
            )
            row += split[::2] - split[1::2]


def numpy_decode(sums: I64, tables: U32, first: int, count: int) -> F64:
    """Estimate the ids from `first` on as NumPy does it fastest: blocks, rows, partial sorts."""
    batches, rows, width = sums.shape
    estimates = np.empty(count)
    values = np.ascontiguousarray(sums.transpose(1, 0, 2))
    for start in range(0, count, BLOCK):
        ids = np.arange(first + start, first + min(count, start + BLOCK), dtype=np.uint64)
        totals = np.zeros((rows, len(ids)), np.int64)
        for row in range(rows):
            words = blocked_words(tables[0, row], ids)
            cells = (((words >> 8).astype(np.uint64) * np.uint64(width)) >> np.uint64(24)).view(
                np.int64
            )
            for b in range(batches):
                if b and b % 8 == 0:
                    words = blocked_words(tables[b // 8, row], ids)
                taken = values[row, b].take(cells)
                totals[row] += np.where(words >> np.uint32(b % 8) & np.uint32(1), -taken, taken)
        totals.partition(rows // 2, axis=0)  # rows is odd here
        estimates[start : start + len(ids)] = totals[rows // 2]
    return estimates


# ---- errors ----


@dataclass
class TablesReport(Report):
    """A run, with tables: lines of named values."""

    tables: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def emit(self, as_json: bool) -> None:
        """Print the report as text, with tables in Markdown, or as one JSON document."""
        if as_json:
            click.echo(json.dumps(asdict(self), indent=1))
            return
        super().emit(as_json=False)
        for title, lines in self.tables.items():
            click.echo(f"\n{title}\n\n{markdown(lines)}")


def markdown(lines: Sequence[dict[str, str]]) -> str:
    """Return a table in Markdown.

    >>> print(markdown([{"a": "1", "b": "2"}]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    heads = list(lines[0])
    rows = [f"| {' | '.join(line)} |" for line in (heads, *(line.values() for line in lines))]
    return "\n".join([rows[0], f"|{'---|' * len(heads)}", *rows[1:]])


def measure(
    cells: Sequence[local_dp.Cell],
    host: Host,
    levels: Sequence[int],
    stream: local_dp.Cell,
    epsilons: Sequence[float] = local_dp.EPSILONS,
    seed: int = 1,
) -> TablesReport:
    """Compare with local differential privacy, and with sketches of a stream."""
    libraries = ("pure-ldp", "datasketches", "numpy")
    report = TablesReport(machine() | {"fedtally": fedtally.__version__} | versions(libraries))
    oracles, sketches = local_dp.installed(), installed().get("datasketches")
    if oracles is None:
        report.notes.append(f"pure-ldp is not there, or does not work: {local_dp.EXTRA}")
    if sketches is None:
        report.notes.append("datasketches is not installed: pip install 'fedtally[bench]'")
    report.notes.append("Flower's SecAgg+ is compared by: python -m benchmarks secagg")
    with environment(FEDTALLY_NUM_THREADS="1"):
        for cell in cells:
            title = (
                f"{cell.clients:,} clients, {cell.candidates:,} candidates: largest / typical /"
                " top-20 error, x 1e-5"
            )
            report.tables[title] = local_dp.table(
                list(local_dp.measure(oracles, cell, host, epsilons, seed))
            )
        title = (
            f"stream of {stream.clients:,}, {stream.candidates:,} candidates, no privacy: errors x"
            " 1e-5"
        )
        report.tables[title] = streams.table(streams.measure(sketches, stream, levels, seed=seed))
    return report


def versions(libraries: Sequence[str]) -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    found = {}
    for name in libraries:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@click.command("peers")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--quick",
    is_flag=True,
    help="Few clients, and the CPU of the reference machine: shows that it runs.",
)
@click.option("--seed", type=click.IntRange(0), default=1, help="Of populations, hashes and noise.")
def command(as_json: bool, quick: bool, seed: int) -> None:
    """Compare errors with local privacy at equal epsilon, and with sketches at equal bytes."""
    if quick:
        small = local_dp.Cell(20_000, 2_000, (), 0)
        report = measure(local_dp.QUICK, REFERENCE, streams.LEVELS[:1], small, (1.0, 4.0), seed)
    else:
        report = measure(
            local_dp.FULL, calibration.calibrate(), streams.LEVELS, streams.STREAM, seed=seed
        )
    report.emit(as_json)


if __name__ == "__main__":
    command()
