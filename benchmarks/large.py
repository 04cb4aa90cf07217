"""A table that is larger than memory: on one machine, and on a Dask cluster of two workers.

The table is a folder of files that this command writes: text items by Zipf's law, and clients of
about twenty rows each, which lie in all files. `fedtally estimate` counts it in a process of its
own. The workers count it under a limit on their memory, and one of them is killed meanwhile. All
sums must be the same, to the last bit.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.measure import Goal, Report, machine, peak_memory
from benchmarks.tables import EACH, ITEMS
from fedtally.base import validate

_PART = 5_000_000  # rows of a file
_SKETCH: dict[str, Any] = {"rows": 5, "width": 1 << 16}
_SEED = 26
_LIBRARIES = 0.25  # GB that the interpreter, the libraries and the answer take beside the rows


@dataclass(frozen=True)
class Counted:
    """A digest of the sums, the seconds that they took, and the peak memory of a process in MB."""

    digest: str
    seconds: float
    memory: float


def write_folder(folder: Path, rows: int, kind: str) -> None:
    """Write the files of the table, one after the other."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv
    import pyarrow.parquet as parquet

    weights = np.arange(1, ITEMS + 1) ** -1.05
    bounds = np.cumsum(weights / weights.sum())
    words = pa.array([f"item-{7919 * i % 1_000_003:06d}" for i in range(ITEMS)])
    for number, start in enumerate(range(0, rows, _PART)):
        rng = np.random.default_rng([26, number])
        size = min(_PART, rows - start)
        places = np.searchsorted(bounds, rng.random(size)).clip(max=ITEMS - 1)
        owners = pa.array(rng.integers(0, max(1, rows // EACH), size)).cast(pa.string())
        table = pa.table({"item": words.take(pa.array(places)), "client": owners})
        write = arrow_csv.write_csv if kind == "csv" else parquet.write_table
        write(table, folder / f"{number:04d}.{kind}")


def here(folder: Path, memory: str) -> Counted:
    """Run `fedtally estimate`, which shows its progress, and watch its memory."""
    import fedtally

    with tempfile.TemporaryDirectory() as out:
        sketch = [part for name, value in _SKETCH.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "fedtally", "estimate", str(folder), "--item", "item"]
        command += ["--client", "client", "--max-items", str(EACH), "--seed", str(_SEED)]
        command += ["--memory", memory, "--save", f"{out}/result", *sketch]
        start, peak = time.perf_counter(), 0.0
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                peak = max(peak, peak_memory(process.pid))
                time.sleep(0.1)
        if process.returncode:
            raise click.ClickException("fedtally estimate failed")
        seconds = time.perf_counter() - start
        return Counted(_digest(fedtally.Result.load(f"{out}/result")), seconds, peak)


def on_workers(folder: Path, memory: str) -> Counted:
    """Count on two workers of so much memory each, the first of which is killed on its way."""
    import dask
    import dask.dataframe as frames
    import distributed as untyped

    import fedtally
    from fedtally.simulation.dataframe.dask import tally_dask

    distributed: Any = untyped

    class KillOnce(untyped.WorkerPlugin):
        """Kill the first worker that has counted a partition: its tally is lost with it."""

        def __init__(self, pending: str) -> None:
            self.pending = pending

        def transition(self, key: Any, start: str, finish: str, **_more: Any) -> None:
            if str(key).startswith("_count") and finish == "memory":
                try:
                    os.unlink(self.pending)
                except FileNotFoundError:
                    return
                os.kill(os.getpid(), signal.SIGKILL)

    with (
        tempfile.TemporaryDirectory() as scratch,
        dask.config.set({"temporary-directory": scratch}),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
            memory_limit=memory,
            silence_logs="CRITICAL",
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pending = Path(scratch) / "pending"
        pending.touch()
        client.register_plugin(KillOnce(str(pending)))
        start = time.perf_counter()
        if any(folder.glob("*.csv")):
            frame = frames.read_csv(f"{folder}/*.csv", dtype=str)
        else:  # a partition for each row group: a whole file may not fit into a worker
            frame = frames.read_parquet(str(folder), split_row_groups=True)
        tally = tally_dask(frame, item="item", client="client", max_items=EACH, seed=_SEED)
        seconds = time.perf_counter() - start
        if pending.exists():
            raise click.ClickException("no worker was killed")
        peak = max(client.run(peak_memory).values())
    result = fedtally.estimate(tally, max_items=EACH, seed=_SEED, **_SKETCH)
    return Counted(_digest(result), seconds, peak)


def _digest(result: Any) -> str:
    state = hashlib.sha256()
    for sketch in result.sketches:
        state.update(sketch.counters.tobytes())
    return state.hexdigest()


@click.command("large")
@click.option("--rows", type=int, default=100_000_000, help="Rows of the table.")
@click.option("--format", "kind", type=click.Choice(["parquet", "csv"]), default="parquet")
@click.option("--memory", default="1GiB", help="Of the rows here, read or held.")
@click.option("--worker-memory", default="2GiB", help="Of all that a worker of Dask holds.")
@click.option("--engine", "engines", multiple=True, type=click.Choice(["here", "dask"]))
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the table here, or take it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(
    rows: int,
    kind: str,
    memory: str,
    worker_memory: str,
    engines: tuple[str, ...],
    folder: Path | None,
    as_json: bool,
) -> None:
    """Count a table beyond memory: seconds and peak memory, here and on two workers of Dask."""
    report = Report(machine() | {"rows": f"{rows:,}, about {rows // EACH:,} clients"})
    ways: dict[str, Callable[[Path], Counted]] = {
        "here": lambda place: here(place, memory),
        "dask": lambda place: on_workers(place, worker_memory),
    }
    chosen = engines or tuple(ways)
    if "dask" in chosen and importlib.util.find_spec("dask") is None:
        report.notes.append("dask is not installed: pip install 'fedtally[dask]'")
        chosen = tuple(name for name in chosen if name != "dask")
    with tempfile.TemporaryDirectory() as temporary:
        place = folder or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        if not any(place.iterdir()):
            write_folder(place, rows, kind)
        size = sum(file.stat().st_size for file in place.iterdir())
        found = {name: ways[name](place) for name in chosen}
    report.machine["table"] = f"{size / 1e9:.2f} GB of {kind}"
    for name, counted in found.items():
        report.notes.append(
            f"{name}: {counted.seconds:.0f} s, {counted.memory:,.0f} MB at most in a process"
        )
    if "here" in found:
        bound = validate.size(memory=memory) / 1e9 + _LIBRARIES
        peak = found["here"].memory / 1e3
        report.goals.append(Goal("here: peak memory", peak, round(bound, 2), " GB", at_most=True))
    if len({counted.digest for counted in found.values()}) > 1:
        raise click.ClickException("the sums differ")
    report.emit(as_json)
