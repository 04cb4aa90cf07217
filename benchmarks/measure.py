"""Timing that survives a noisy machine, and the report of a run with its goals.

Cases take turns, so that a slow minute hits all of them; a rate is that of the fastest turn, with
the median beside it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx2", "fma", "bmi2"}),
)


@dataclass(frozen=True)
class Case:
    """Something to time: `run` does `work` units, of which 1e9 (or 1e6) a second is one `unit`."""

    name: str
    backend: str
    run: Callable[[], object]
    work: int
    unit: str = "G/s"


@dataclass(frozen=True)
class Rate:
    """What a case reached: best and median over the turns, in its unit."""

    name: str
    backend: str
    best: float
    median: float
    unit: str


@dataclass(frozen=True)
class Goal:
    """A bound on a measured value; `at_most` says which side is good."""

    name: str
    value: float
    bound: float
    unit: str = ""
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether the value is on the good side of the bound."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def __str__(self) -> str:
        return f"{self.unjudged}: {'met' if self.met else 'NOT MET'}"

    @property
    def unjudged(self) -> str:
        """The value beside its bound, and no word of which is better."""
        side = "at most" if self.at_most else "at least"
        return f"{self.name}: {self.value:.3g}{self.unit} (goal: {side} {self.bound:g}{self.unit})"


@dataclass
class Report:
    """A run: the machine, rates, goals, and notes on what was skipped.

    Args:
        judges: whether the run was large enough to say that a goal is met.
    """

    machine: dict[str, str]
    rates: list[Rate] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    judges: bool = True

    def best(self, name: str, backend: str) -> float:
        """Return the best rate of a case."""
        return next(
            rate.best for rate in self.rates if (rate.name, rate.backend) == (name, backend)
        )

    def emit(self, as_json: bool) -> None:
        """Print the report as text or as one JSON document."""
        if as_json:
            goals = [
                {**asdict(goal), "met": goal.met if self.judges else None} for goal in self.goals
            ]
            document: dict[str, Any] = {
                "machine": self.machine,
                "rates": [asdict(rate) for rate in self.rates],
            }
            click.echo(json.dumps(document | {"goals": goals, "notes": self.notes}, indent=1))
            return
        for key, value in self.machine.items():
            click.echo(f"{key}: {value}")
        if self.rates:
            click.echo(f"\n{'':44}{'':14}{'best':>9}{'median':>9}")
        for rate in self.rates:
            click.echo(
                f"{rate.name:44}{rate.backend:14}{rate.best:9.3g}{rate.median:9.3g} {rate.unit}"
            )
        click.echo("")
        for goal in self.goals:
            click.echo(goal if self.judges else goal.unjudged)
        for note in self.notes:
            click.echo(f"note: {note}")
        if not self.judges:
            click.echo("note: a small run judges no goal")


def interleaved(cases: Sequence[Case], turns: int) -> list[Rate]:
    """Time every case once per turn, in turn, after one turn that does not count."""
    seconds: list[list[float]] = [[] for _ in cases]
    for turn in range(turns + 1):
        for case, own in zip(cases, seconds, strict=True):
            start = time.perf_counter()
            case.run()
            if turn:
                own.append(time.perf_counter() - start)
    rates = []
    for case, own in zip(cases, seconds, strict=True):
        scale = case.work / (1e6 if case.unit.startswith("M") else 1e9)
        rates.append(
            Rate(
                case.name, case.backend, scale / min(own), scale / statistics.median(own), case.unit
            )
        )
    return rates


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def machine() -> dict[str, str]:
    """Describe the processor: name, level and caches of the first core; only the name off Linux."""
    described = {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    info = Path("/proc/cpuinfo")
    if info.exists():
        facts = dict(
            line.split(":", 1)
            for line in info.read_text().split("\n\n")[0].splitlines()
            if ":" in line
        )
        facts = {key.strip(): value.strip() for key, value in facts.items()}
        described["processor"] = facts.get("model name", described["processor"])
        flags = set(facts.get("flags", "").split())
        described["level"] = next(
            (name for name, needed in LEVELS if needed <= flags), platform.machine()
        )
    caches = [
        f"L{_read(entry, 'level')} {_read(entry, 'type').lower()} {_read(entry, 'size')}"
        for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    ]
    return described | {"caches": ", ".join(caches) or "unknown", "cores": str(os.cpu_count())}


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a process that runs; Linux alone."""
    # After the name in brackets, which may hold blanks: utime and stime are the 12th, 13th.
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(process: int | str = "self") -> float:
    """Return the most memory of a process so far, in MB; 0 where that is not known."""
    try:  # getrusage counts what the process was before it became this program
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:  # it has ended, or this is macOS, which counts in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 if process == "self" else 0
    found = re.search(r"VmHWM:\s+(\d+)", status)  # a process that has just ended has none
    return int(found[1]) * 1.024e-3 if found else 0.0


def _read(folder: Path, name: str) -> str:
    return (folder / name).read_text().strip()
