"""Counting the items of a table, beside DuckDB and Polars: seconds, CPU and memory.

Each job runs in a fresh process, which says how long it took after its imports. The sums of all
counts must agree. The peers come with ``pip install 'fedtally[bench]'``.

Where a client counts with one item, fedtally draws it uniformly from the client's distinct items,
whatever the order of the rows. The peers do the same: they take the item whose hash together with
the client is the least. Of several ways to write that, each has the one that was the fastest here.
A job of its own lets them take any item, which is less work for DuckDB.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.measure import Goal, Report, machine, peak_memory

ITEMS, EACH = 200_000, 20  # distinct items; rows of a client
FORMATS = ("csv", "parquet")
JOBS = {
    "count": "how many rows hold each item",
    "one": "how many clients hold each item, one item of each client",
    "any": "the same, but the peers take any item of each client; not judged",
    "twenty": f"how many clients hold each item, up to {EACH} items of each client",
    "private": "as one, read row by row as with --epsilon; fedtally alone, not judged",
}
ENGINES = ("fedtally", "duckdb", "polars")


@dataclass(frozen=True)
class Run:
    """One job: seconds by the clock, CPU seconds, peak memory in MB, and the sum of all counts."""

    seconds: float
    cpu: float
    memory: float
    total: int


def write_tables(folder: Path, rows: int) -> None:
    """Write the table as CSV and as Parquet; items follow Zipf's law of exponent 1.05."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(26)
    weights = np.arange(1, ITEMS + 1) ** -1.05
    places = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(rows))
    words = pa.array([f"item-{7919 * i % 1_000_003:06d}" for i in range(ITEMS)])
    owners = pa.array([f"user-{i:07d}" for i in range(rows // EACH)])
    table = pa.table(
        {
            "item": words.take(pa.array(places.clip(max=ITEMS - 1))),
            "client": owners.take(pa.array(rng.permutation(rows) % len(owners))),
        }
    )
    arrow_csv.write_csv(table, folder / "table.csv")
    parquet.write_table(table, folder / "table.parquet", row_group_size=1 << 20)


def ours(path: str, job: str) -> Any:
    """Count with fedtally's reader and tally, as `fedtally.estimate` does before it encodes."""
    from fedtally.simulation.item_ids import FromInput
    from fedtally.simulation.prefetch import read_ahead
    from fedtally.simulation.row_counts import Tally
    from fedtally.sources import Columns, open_source

    encoder = FromInput(bytes(32))
    tally = Tally(
        encoder,
        num_rounds=1,
        max_items=EACH if job == "twenty" else 1,
        rng=np.random.default_rng(0),
        memory=1 << 30,
    )
    columns = Columns("item", client=None if job == "count" else "client")
    batches = open_source(path, columns).batches(private=job == "private")
    for batch in read_ahead(batches, tally.prepare):
        tally.add_prepared(batch)
    [counted] = tally.finish()
    encoder.domain()  # the distinct items, by name
    return counted.counts


def duckdb(path: str, job: str) -> Any:
    """Count with DuckDB."""
    import duckdb as engine

    rows = {
        "count": "rows",
        # min_by, a window and DISTINCT ON were slower
        "one": (
            "(SELECT first(item ORDER BY hash(client, item)) AS item FROM rows GROUP BY client)"
        ),
        "any": "(SELECT any_value(item) AS item FROM rows GROUP BY client)",
        "twenty": "(SELECT DISTINCT client, item FROM rows)",
    }[job]
    with engine.connect() as connection:
        reader = connection.read_csv if path.endswith(".csv") else connection.read_parquet
        reader(path).create_view("rows")
        query = f"SELECT item, count(*) AS n FROM {rows} GROUP BY item"  # noqa: S608 - constants
        counted: Any = connection.sql(query)
        return counted.to_arrow_table().column("n").to_numpy()


def polars(path: str, job: str) -> Any:
    """Count with Polars' streaming engine."""
    import polars as pl

    table = pl.scan_csv(path) if path.endswith(".csv") else pl.scan_parquet(path)
    if job == "one":
        # the hash of a struct, a sort and a join were slower
        pair = (pl.col("client").hash(1) + pl.col("item").hash(2)).hash(3)
        table = table.with_columns(pair=pair)
        table = table.group_by("client").agg(pl.col("item").min_by("pair"))
    elif job == "any":
        table = table.group_by("client").agg(pl.col("item").first())
    elif job == "twenty":
        table = table.unique()
    return table.group_by("item").len().collect(engine="streaming")["len"].to_numpy()


_ENGINES: dict[str, Callable[[str, str], Any]] = {  # return the counts of the items that are held
    "fedtally": ours,
    "duckdb": duckdb,
    "polars": polars,
}
# PyArrow imports pandas, where there is one, once something is first converted to or from NumPy.
_CONVERT = "pyarrow.array([0]).to_numpy()"
_IMPORTS = {
    "fedtally": (
        "import fedtally, fedtally.simulation.run, pyarrow.compute, pyarrow.csv,"
        f" pyarrow.parquet; {_CONVERT}"
    ),
    "duckdb": f"import duckdb, pyarrow; {_CONVERT}",
    "polars": "import polars",
}


def measure_here(engine: str, path: str, job: str) -> Run:
    """Run a job in this process."""
    cpu, start = time.process_time(), time.perf_counter()
    counts = _ENGINES[engine](path, job)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return Run(seconds, cpu, peak_memory(), int(counts.sum()))


def measured(engine: str, path: str, job: str) -> Run:
    """Run a job in a process of its own, whose imports do not count."""
    code = (
        f"{_IMPORTS[engine]}\nimport json\nfrom dataclasses import asdict\n"
        "from benchmarks.tables import measure_here\n"
        f"print(json.dumps(asdict(measure_here({engine!r}, {path!r}, {job!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{engine} failed at {job} of {path}:\n{done.stderr}")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def compare(folder: Path, jobs: Iterable[str], engines: list[str], turns: int) -> list[Any]:
    """Return a row for each format and job: the runs of each engine, which take turns."""
    rows = []
    for kind in FORMATS:
        path = str(folder / f"table.{kind}")
        for job in jobs:
            able = [engine for engine in engines if job != "private" or engine == "fedtally"]
            runs = [{engine: measured(engine, path, job) for engine in able} for _ in range(turns)]
            if len({run.total for turn in runs for run in turn.values()}) > 1:
                raise click.ClickException(f"the engines disagree on {job} of {path}: {runs[0]}")
            best = {
                engine: min((turn[engine] for turn in runs), key=lambda run: run.seconds)
                for engine in able
            }
            rows.append((kind, job, best))
    return rows


@click.command("tables")
@click.option("--rows", type=int, default=10_000_000, help="Rows of the table.")
@click.option("--turns", type=int, default=3, help="Runs of each engine; the fastest counts.")
@click.option("--job", "jobs", multiple=True, type=click.Choice([*JOBS]), help="  [default: all]")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the table here, or take it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(
    rows: int, turns: int, jobs: tuple[str, ...], folder: Path | None, as_json: bool
) -> None:
    """Count the items of a table from CSV and from Parquet, beside DuckDB and Polars."""
    present = [name for name in ENGINES if importlib.util.find_spec(name) is not None]
    versions = {name: importlib.metadata.version(name) for name in present}
    report = Report(machine() | versions | {"rows": f"{rows:,}, {rows // EACH:,} clients"})
    report.notes += [
        f"{name} is not installed: pip install 'fedtally[bench]'"
        for name in ENGINES
        if name not in present
    ]
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "table.parquet").exists():
            write_tables(place, rows)
        compared = compare(place, jobs or JOBS, present, turns)
    lines = [f"{'':22}{'engine':10}{'seconds':>9}{'CPU s':>9}{'MB':>7}"]
    documents = []
    for kind, job, runs in compared:
        for engine, run in runs.items():
            figures = f"{run.seconds:9.2f}{run.cpu:9.2f}{run.memory:7.0f}"
            lines.append(f"{job + ', ' + kind:22}{engine:10}{figures}")
            documents.append({"format": kind, "job": job, "engine": engine, **asdict(run)})
        peers = [run.seconds for engine, run in runs.items() if engine != "fedtally"]
        if peers and job != "any":
            ratio = runs["fedtally"].seconds / min(peers)
            report.goals.append(
                Goal(f"{job}, {kind}: seconds over the faster peer", ratio, 2, "x", at_most=True)
            )
    if as_json:
        report.notes += [json.dumps(document) for document in documents]
    else:
        click.echo("\n".join([*lines, *(f"{job}: {text}" for job, text in JOBS.items()), ""]))
    report.emit(as_json)
