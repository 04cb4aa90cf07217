"""Joint recovery, its intervals and belief propagation on one thread, as ratios within one run.

A domain of 10^8 is decoded in a process of its own.

N = 1,000,000 clients in M = 10 multinomial rounds, f_i proportional to (i + 2.7)^-1.07. Decoding is
everything from the sums to an estimate of every candidate, intervals from the decoder to the limits
of every candidate. The cases that are compared take turns; a ratio is that of the fastest turns.
Seconds are of CPU: on one thread that is what the clock says on a machine with nothing else to do.
Those of the large domain start when the sums have landed and end with the twenty largest items; its
peak memory includes the interpreter and the libraries.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt
from experiments.recovery import SCHEDULES, draw, land, law

from benchmarks.measure import Goal, Rate, Report, environment, machine
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.intervals import make_intervals
from fedtally.sketch import CountSketch

SHAPES = ((5, 1000), (16, 200), (16, 1000))  # of the intervals
BLOCK = 1 << 22

CHILD = """
import json, resource, sys, time
import numpy as np
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.sketch import CountSketch, SketchSpec
path, size, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
held = np.load(path)
spec = SketchSpec(5, 4096, "hybrid", len(held), bytes(range(32)))
sketches = [CountSketch(spec, m) for m in range(len(held))]
for sketch, ids in zip(sketches, held):
    sketch.add(ids.astype(np.uint64))
start, clock = time.process_time(), time.perf_counter()
decoder = (BeliefDecoder if name == "belief" else JointDecoder)(sketches, IntegerRange(1, size))
ids = (decoder.joint if name == "belief" else decoder).fit.support.ids
counts = decoder.at(ids)
order = np.argsort(-counts)[:20]
seconds, clock = time.process_time() - start, time.perf_counter() - clock
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
found = {"seconds": seconds, "clock": clock, "peak": peak, "support": len(ids)}
found |= {"fallback": decoder.fallback or ""} if name == "belief" else {}
found |= {"ids": ids[order].tolist(), "counts": counts[order].tolist()}
print(json.dumps(found))
"""


class Scale(NamedTuple):
    """The size of a run: candidates of decoding, intervals and the large domain; clients; turns."""

    decoded: int
    bounded: int
    large: int
    clients: int
    turns: int


FULL, QUICK = Scale(740_000, 100_000, 10**8, 1_000_000, 5), Scale(2_000, 1_000, 10_000, 20_000, 1)


def in_turns(cases: dict[str, Callable[[], object]], turns: int) -> list[Rate]:
    """Return the best and the median CPU seconds of each case, timed in turn after a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, case in cases.items():
            start = time.process_time()
            case()
            if turn:
                seconds[name].append(time.process_time() - start)
    return [Rate(name, "", min(own), statistics.median(own), "s") for name, own in seconds.items()]


def landed(size: int, clients: int, rows: int, width: int, schedule: str) -> list[CountSketch]:
    """Return the sums of a campaign."""
    rng = np.random.default_rng(1)
    return land(draw(law("zm", size), clients, "alike", rng), rows, width, schedule, rng.bytes(32))


def joint(sketches: Sequence[CountSketch], size: int) -> JointDecoder:
    """Recover jointly, and decode every candidate."""
    decoder = JointDecoder(sketches, IntegerRange(1, size))
    decoder.range(1, size)
    return decoder


def decode(report: Report, scale: Scale) -> None:
    """Compare the decoders on 16 rows x 1000."""
    size = scale.decoded
    for schedule in SCHEDULES:
        sketches = landed(size, scale.clients, 16, 1000, schedule)

        def paper(sketches: Sequence[CountSketch] = sketches) -> None:
            MedianDecoder(sketches, expected=size).range(1, size)

        def ours(sketches: Sequence[CountSketch] = sketches) -> None:
            joint(sketches, size)

        name = f"decode {size:,}, 16x1000 {schedule}"
        base, refined = in_turns({f"{name}: median": paper, f"{name}: joint": ours}, scale.turns)
        report.rates += [base, refined]
        report.goals.append(
            Goal(f"{name}: joint / median", refined.best / base.best, 20, "x", at_most=True)
        )
        report.goals.append(Goal(f"{name}: joint", refined.best, 4, " s", at_most=True))


def intervals(report: Report, scale: Scale) -> None:
    """Compare pointwise intervals with the recovery that they belong to."""
    size = scale.bounded
    for rows, width in SHAPES:
        for schedule in SCHEDULES:
            sketches = landed(size, scale.clients, rows, width, schedule)
            decoder = joint(sketches, size)

            def ours(sketches: Sequence[CountSketch] = sketches) -> None:
                joint(sketches, size)

            def limits(
                sketches: Sequence[CountSketch] = sketches, decoder: JointDecoder = decoder
            ) -> None:
                make_intervals(decoder, sketches, IntegerRange(1, size)).at(range(1, size + 1))

            name = f"{size:,}, {rows}x{width} {schedule}"
            own, more = in_turns(
                {f"{name}: joint": ours, f"{name}: its intervals": limits}, scale.turns
            )
            report.rates += [own, more]
            report.goals.append(
                Goal(f"{name}: intervals / joint", more.best / own.best, 4, "x", at_most=True)
            )


def fallback(report: Report, scale: Scale) -> None:
    """Compare the NumPy kernels with the compiled ones."""
    size = scale.bounded
    sketches = landed(size, scale.clients, 5, 1000, "hybrid")

    def under(backend: dict[str, str]) -> Callable[[], object]:
        def case() -> None:
            with environment(**backend):
                joint(sketches, size)

        return case

    name = f"decode {size:,}, 5x1000 hybrid: joint"
    cases = {name: under({}), f"{name}, NumPy kernels": under({"FEDTALLY_KERNELS": "numpy"})}
    compiled, plain = in_turns(cases, min(scale.turns, 2))
    report.rates += [compiled, plain]
    report.notes.append(
        f"{name}: the NumPy kernels take {plain.best / compiled.best:.3g} times as long"
    )


def draw_clients(
    size: int, clients: int, num_rounds: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Draw each client's item in rounds of equal size: int64 [num_rounds, clients / num_rounds].

    The law has one weight for each of up to 10^8 items; it is held one block at a time.
    """
    starts = range(0, size, BLOCK)
    totals = np.array([_weights(start, size).sum() for start in starts])
    held = rng.multinomial(clients, totals / totals.sum())
    drawn = []
    for start, number in zip(starts, held, strict=True):
        reached = np.cumsum(_weights(start, size))
        places = np.searchsorted(reached, rng.random(number) * reached[-1], side="right")
        drawn.append(start + 1 + np.minimum(places, len(reached) - 1))
    return rng.permutation(np.concatenate(drawn)).reshape(num_rounds, -1)


def _weights(start: int, size: int) -> npt.NDArray[np.float64]:
    rank = np.arange(start + 1.0, min(start + BLOCK, size) + 1)
    weights: npt.NDArray[np.float64] = (rank + 2.7) ** -1.07
    return weights


def belief(report: Report, scale: Scale) -> None:
    """Compare belief propagation, which does joint recovery first, with joint recovery alone."""
    size = scale.decoded
    sketches = landed(size, scale.clients, 16, 1000, "hybrid")

    def ours(sketches: Sequence[CountSketch] = sketches) -> None:
        BeliefDecoder(sketches, IntegerRange(1, size)).range(1, size)

    def base(sketches: Sequence[CountSketch] = sketches) -> None:
        joint(sketches, size)

    name = f"decode {size:,}, 16x1000 hybrid"
    alone, whole = in_turns({f"{name}: joint": base, f"{name}: belief": ours}, scale.turns)
    report.rates += [alone, whole]
    report.goals.append(
        Goal(f"{name}: belief / joint", whole.best / alone.best, 5, "x", at_most=True)
    )


def large_belief(report: Report, scale: Scale) -> None:
    """Decode the large domain by belief propagation in a process of its own."""
    held = draw_clients(scale.large, scale.clients, 10, np.random.default_rng(1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.npy"
        np.save(path, held)
        run = _child(path, scale.large, "belief")
    name = f"{scale.large:,}, 5x4096 hybrid: belief"
    report.rates.append(Rate(name, "", run["seconds"], run["seconds"], "s"))
    report.goals.append(Goal(f"{name}: peak memory", run["peak"] / 1e9, 1, " GB", at_most=True))
    report.notes.append(f"{name}: {run['fallback'] or 'no fall back'}")


def large(report: Report, scale: Scale) -> None:
    """Find the largest items of a large domain in a process of its own."""
    held = draw_clients(scale.large, scale.clients, 10, np.random.default_rng(1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "items.npy"
        np.save(path, held)
        runs = [_child(path, scale.large, "joint") for _ in range(min(scale.turns, 2))]
    items, counts = np.unique(held, return_counts=True)
    first = runs[0]
    if first["ids"][0] != items[np.argmax(counts)]:
        raise click.ClickException(
            f"the most frequent item is {items[np.argmax(counts)]}, found was {first['ids'][0]}"
        )
    true = np.array([counts[items == item].sum() for item in first["ids"]])
    worst = np.abs(true - first["counts"]).max()
    best = min(run["seconds"] for run in runs)
    name = f"top items of {scale.large:,}, 5x4096 hybrid"
    report.rates.append(
        Rate(name, "", best, statistics.median(run["seconds"] for run in runs), "s")
    )
    report.goals.append(Goal(f"{name}: CPU time", best, 40, " s", at_most=True))
    report.goals.append(
        Goal(f"{name}: peak memory", max(run["peak"] for run in runs) / 1e9, 1, " GB", at_most=True)
    )
    clock = min(run["clock"] for run in runs)
    report.notes.append(
        f"{name}: {clock:.1f} s by the clock, {first['support']:,} items fitted, largest error of"
        f" the twenty largest {worst:.1f} of {scale.clients:,} clients"
    )


def _child(path: Path, size: int, decoder: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(size), decoder],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(f"the recovery failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


PARTS = {
    "decode": decode,
    "intervals": intervals,
    "fallback": fallback,
    "large": large,
    "belief": belief,
    "large-belief": large_belief,
}


@click.command("joint")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="Only this part; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few clients and items, once: shows that it runs.")
def command(parts: tuple[str, ...], as_json: bool, quick: bool) -> None:
    """Time joint recovery against the paper's decoder, and its intervals against it."""
    report = Report(machine())
    with environment(FEDTALLY_NUM_THREADS="1"):
        for part in parts or PARTS:
            PARTS[part](report, QUICK if quick else FULL)
    report.emit(as_json)
