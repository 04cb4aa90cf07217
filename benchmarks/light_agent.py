"""A light agent: the seconds and the memory of its import, beside those of an earlier version.

Both run with the packages of this Python, in turns. The import is that of what an agent's process
needs before it opens its record; a second row has the record, too, as an agent that runs.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import click

from benchmarks.measure import Goal, Report, machine

ROOT = Path(__file__).parents[1]
IMPORT = "import fedtally.agent.agent, fedtally.agent.serve, fedtally.agent.settings"
RECORD = f"{IMPORT}; from fedtally.store import ClientRecord"
LIBRARIES = (
    "import numpy, sqlalchemy.dialects.sqlite, asyncio, cryptography.hazmat.primitives.ciphers.aead"
)
MEASURED = """
import json, time

def resident():
    with open("/proc/self/status") as file:
        [line] = [line for line in file if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024 / 1e6

before, start = resident(), time.process_time()
{code}
print(json.dumps((time.process_time() - start, resident() - before)))
"""


def loaded(source: Path, code: str) -> tuple[float, float]:
    """Run code in a fresh interpreter; return its seconds of CPU, and the MB that it added."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED.format(code=code)],
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(f"{code!r} failed:\n{done.stderr}")
    seconds, memory = json.loads(done.stdout)
    return seconds, memory


def unpack(commit: str, folder: Path) -> Path:
    """Write the sources of a commit into a folder, with the kernels of this version."""
    packed = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode:
        raise click.ClickException(f"git archive {commit} failed:\n{packed.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    for native in (ROOT / "src/fedtally/kernels").glob("_native*"):
        shutil.copy(native, folder / "src/fedtally/kernels")
    return folder / "src"


def least(sources: dict[str, Path], code: str, turns: int) -> dict[str, tuple[float, float]]:
    """Return the least seconds and MB of each version, which take turns."""
    # one more turn first, which writes what Python compiles
    found = [{name: loaded(at, code) for name, at in sources.items()} for _ in range(turns + 1)]
    return {
        name: (min(turn[name][0] for turn in found[1:]), min(turn[name][1] for turn in found[1:]))
        for name in sources
    }


@click.command("light-agent")
@click.option("--against", metavar="COMMIT", help="Compare with this commit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="One turn each.")
def command(against: str | None, as_json: bool, quick: bool) -> None:
    """Measure the import of an agent, in seconds of CPU and in memory."""
    turns, goals, notes = 1 if quick else 10, [], []
    with tempfile.TemporaryDirectory() as folder:
        sources = {"now": ROOT / "src"}
        if against is not None:
            sources["before"] = unpack(against, Path(folder))
        alone = {"now": sources["now"]}
        for name, code, measured in (
            ("import of an agent", IMPORT, sources),
            ("with its record open", RECORD, sources),
            ("NumPy, SQLAlchemy, cryptography and asyncio alone", LIBRARIES, alone),
        ):
            found = least(measured, code, turns)
            notes += [
                f"{name}, {version}: {seconds:.2f} s of CPU, {memory:.1f} MB"
                for version, (seconds, memory) in found.items()
            ]
            if against is not None and code is IMPORT:
                shares = [now / old for now, old in zip(*found.values(), strict=True)]
                goals += [
                    Goal(f"{what} of the import, share of the earlier", share, 2 / 3, at_most=True)
                    for what, share in zip(("seconds", "memory"), shares, strict=True)
                ]
    Report(machine(), goals=goals, notes=notes).emit(as_json)
