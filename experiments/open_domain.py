"""Strings of which nobody has the list: recall, precision, errors and bytes of open domains.

Every campaign is simulated by counts: the clients of each round are drawn at once, as a multinomial
variable, and so is the noise of a sum. The sums are then decoded as `fedtally estimate` does.
Other methods get as many bytes of each client (`open_peers`): prefix extension over the rounds, bit
planes in one stage, and an invertible Bloom lookup table (IBLT).

A string counts as frequent from 2 tau on. It is found where it is named and its estimate is at
least 1.5 tau; of the names with such an estimate, precision is the share of strings that more than
tau hold. A name is wrong if fewer than half of the clients with its hash hold its string, whatever
its frequency. Frequencies are those of the clients whose rounds landed.

`--acceptance` runs the figures that docs/open-domain.md promises instead of the comparison. Beside
campaigns it looks at sums of random counters, in which there are no names. Each campaign has a
process of its own then, so that its memory is its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from experiments import open_peers, open_populations, options, output, study
from fedtally.answer.result import Result
from fedtally.domain import Names, OpenStrings, Unread
from fedtally.domain.strings import fingerprints
from fedtally.plan import Plan
from fedtally.privacy import config
from fedtally.recovery.names import read_names
from fedtally.sketch import CountSketch, Schedule, SketchSpec, Spelling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
DELTA = 1e-6
MAX_LENGTH = 64
METHODS = ("ours", *open_peers.METHODS)
RANDOM = "random sums"
_SHOWN, _HELD, _LISTED = 1.5, 1.0, 0.25  # times tau
_MOST = 0.5  # of the clients with a hash, the share from which on its name is right
_SECONDS, _EACH = 20.0, 0.010  # of decoding, and for each hash that was found
_MEMORY = 1024  # MiB
_MANY = 1_000_000  # clients from which on the sizes are those of many
_HELD_SHARE = 0.93  # of intervals
_RANDOM_SUMS, _RANDOM_HASHES = 10, 10  # sums for each repeat, and hashes that are looked at in each
# rounds, finder and spelling by population, epsilon, and whether clients are many
_SIZES: dict[tuple[str, float | None, bool], tuple[int, str, str]] = {
    ("words", None, False): (33, "4x100", "4x64"),
    ("words", 4.0, False): (8, "8x150", "3x36"),
    ("words", 1.0, False): (8, "12x170", "3x56"),
    ("urls", None, False): (17, "5x150", "4x235"),
    ("urls", 4.0, False): (8, "8x400", "4x230"),
    ("urls", 1.0, False): (1, "16x800", "3x253"),
    ("words", None, True): (8, "5x600", "3x250"),
    ("words", 4.0, True): (8, "8x400", "3x230"),
    ("words", 1.0, True): (8, "12x400", "3x330"),
    ("urls", None, True): (33, "5x600", "4x1200"),
    ("urls", 4.0, True): (8, "8x1000", "3x1000"),
    ("urls", 1.0, True): (8, "8x1000", "3x1000"),
}
# The cells that are promised, as in _SIZES, and the same with eight rounds: finder and spelling.
_PROMISED: dict[str, tuple[str, float | None, bool]] = {
    "words": ("words", None, False),
    "words, epsilon 1": ("words", 1.0, False),
    "words, 1,000,000 clients": ("words", None, True),
    "words, 1,000,000 clients, epsilon 1": ("words", 1.0, True),
    "URLs": ("urls", None, False),
    "URLs, epsilon 1": ("urls", 1.0, False),
}
_EIGHT_ROUNDS: dict[str, tuple[str, str, str]] = {
    "words, 8 rounds": ("words", "5x165", "3x27"),
    "URLs, 8 rounds": ("urls", "5x130", "4x165"),
}


class Case(NamedTuple):
    """One campaign.

    Attributes:
        name: of the cell, without the method.
        population: words or urls.
        size: the number of different strings.
        clients: of all rounds.
        tau: the error that is asked for.
        epsilon: of the privacy; None: none.
        rounds: each with hashes' signs and positions of its own, and opened alone.
        finder: rows x width of the sketch of hashes.
        spelling: rows x width of the sketch of a position.
        bits: of a hash.
        lost: rounds that do not land.
        garbage: clients that send +1 or -1, at random, in every counter.
        method: of `METHODS`, or `RANDOM`.
        data: the folder of the real tables, "" for the usual one.
        seed: of the experiment.
        repeat: of the cell.
    """

    name: str
    population: str
    size: int
    clients: int
    tau: float
    epsilon: float | None
    rounds: int
    finder: str
    spelling: str
    bits: int = 26
    lost: int = 0
    garbage: int = 0
    method: str = "ours"
    data: str = ""
    seed: int = 0
    repeat: int = 0

    @property
    def strings(self) -> open_populations.Strings:
        """The population."""
        folder = Path(self.data) if self.data else None
        return open_populations.load(self.population, self.size, folder)

    def rng(self) -> np.random.Generator:
        """Return the draws of this campaign, the same for all methods."""
        told = f"{self.name} {self.population} {self.clients}"
        return np.random.default_rng([zlib.crc32(told.encode()), self.seed, self.repeat])


class Drawn(NamedTuple):
    """The clients of a round: the places of the strings that they hold, and how many hold each."""

    held: I64
    counts: I64


def plan_of(case: Case, seed: bytes) -> Plan:
    """Return the plan of a campaign: its bytes and its noise are those of the package."""
    (rows, width), (spelled, columns) = (
        map(int, size.split("x")) for size in (case.finder, case.spelling)
    )
    plan = Plan(
        rows=rows,
        width=width,
        schedule=Schedule.parse("hybrid"),
        num_rounds=case.rounds,
        num_clients=case.clients,
        max_round_clients=max(sizes_of(case)),
        domain=OpenStrings(MAX_LENGTH, case.bits).describe(),
        max_items=1,
        seed=seed,
        spelling=Spelling(spelled, columns, MAX_LENGTH),
    )
    if case.epsilon is None:
        return plan
    privacy = config.propose(
        epsilon=case.epsilon,
        delta=DELTA,
        rows=plan.spec.touched,
        width=plan.spec.mean_width,
        counters=plan.spec.vector_length,
        not_private=True,  # the truth is compared
    )
    return Plan(**{name: getattr(plan, name) for name in _FIELDS} | {"privacy": privacy})


_FIELDS = (
    *("rows", "width", "schedule", "num_rounds", "num_clients", "max_round_clients", "domain"),
    *("max_items", "seed", "spelling"),
)


def sizes_of(case: Case) -> list[int]:
    """Return the clients of each round, as equal as can be."""
    return [len(part) for part in np.array_split(np.arange(case.clients), case.rounds)]


def draw(case: Case, rng: np.random.Generator) -> list[Drawn]:
    """Draw what the clients of each round hold."""
    law, found = case.strings.law, []
    for clients in sizes_of(case):
        counts = rng.multinomial(clients, law)
        held = np.flatnonzero(counts)
        found.append(Drawn(held, counts[held]))
    return found


def land(case: Case, plan: Plan, drawn: Sequence[Drawn], rng: np.random.Generator) -> Result:
    """Return the answer of the sums of the rounds that land."""
    domain = OpenStrings(MAX_LENGTH, case.bits, plan.seed)
    items = case.strings.items
    names, ids = Names(domain, items), fingerprints(items, domain.key)
    sketches = []
    garbage = np.bincount(np.arange(case.garbage) % case.rounds, minlength=case.rounds)
    for round, ((held, counts), bad) in enumerate(zip(drawn, garbage.tolist(), strict=True)):
        if round < case.lost:
            continue
        sketch = CountSketch(plan.spec, round)
        sketch.add(names.spell(ids[held], plan.spec.num_positions), counts)
        sketch.vector += 2 * rng.binomial(bad, 0.5, len(sketch.vector)) - bad
        sketch.num_clients += bad
        if plan.privacy is not None:
            noise = rng.normal(0.0, plan.privacy.stddev, len(sketch.vector))
            sketch.vector += np.rint(noise).astype(np.int64)
            sketch.noise = plan.noise_mark
        sketches.append(sketch)
    return Result(plan, domain, sketches)


def measure_apart(case: Case) -> list[study.Row]:
    """Run one campaign in a process of its own, whose peak of memory is then the campaign's."""
    if case.method == RANDOM:  # its memory is not looked at
        return measure(case)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, case).result()


def measure(case: Case) -> list[study.Row]:
    """Run one campaign."""
    if case.method == RANDOM:
        return [_random(case)]
    rng = case.rng()
    plan = plan_of(case, rng.bytes(32))
    drawn = draw(case, rng)
    truth = np.zeros(len(case.strings.law))
    for held, counts in drawn[case.lost :]:
        truth[held] += counts
    truth /= truth.sum()
    row: study.Row = {
        "case": case.name,
        "population": case.strings.title,
        "clients": case.clients,
        "tau": case.tau,
        "epsilon": case.epsilon,
        "rounds": case.rounds,
        "method": case.method,
        "finder": case.finder,
        "spelling": case.spelling,
        "bits": case.bits,
        "lost": case.lost,
        "garbage": case.garbage,
        "bytes": plan.bytes_per_client,
        "repeat": case.repeat,
    }
    if case.method == "ours":
        row |= _ours(case, land(case, plan, drawn, rng), truth)
    else:
        start = time.process_time()
        asked = open_peers.Asked(
            *(case.population, case.strings, case.clients, case.tau, case.epsilon, DELTA),
            plan.bytes_per_client,
        )
        found = open_peers.METHODS[case.method](asked, rng)
        seconds = found.seconds or time.process_time() - start
        row |= _score(case, found.frequencies, found.truth)  # each string stands for itself
        row |= {"sequence": found.sequence, "seconds": seconds, "needed": found.needed}
    told = {"seed": case.seed, "plan": study.describe(plan.spec, case.clients)}
    return [_EMPTY | row | told]


_EMPTY: study.Row = dict.fromkeys(
    (
        *("case", "population", "clients", "tau", "epsilon", "rounds", "method", "finder"),
        *("spelling", "bits", "lost", "garbage", "bytes", "repeat", "frequent", "recall"),
        *("precision", "wrong", "rare", "largest", "rms", "hashes", "named", "found", "held"),
        *("intervals", "sequence", "seconds", "calibration", "needed", "memory"),
    )
)


def _random(case: Case) -> study.Row:
    """Look for the names of random hashes in a sum of counters that mean nothing."""
    rng = case.rng()
    key = rng.bytes(32)
    rows, width = map(int, case.spelling.split("x"))
    spelling = Spelling(rows, width, MAX_LENGTH)
    spec = SketchSpec(5, 8, Schedule.parse("shared"), 1, key, spelling)
    sketch = CountSketch(spec, 0)
    sketch.vector += rng.integers(-200, 201, len(sketch.vector))
    sketch.num_clients = case.clients
    hashes = rng.integers(0, 1 << case.bits, _RANDOM_HASHES)
    # as frequent as a name is that can be read
    domain = OpenStrings(MAX_LENGTH, case.bits, key)
    found = read_names([sketch], domain, dict.fromkeys(hashes.tolist(), 0.02))
    row = {name: getattr(case, name) for name in _EMPTY if name in Case._fields}
    row |= {"case": case.name, "named": len(found), "wrong": len(found), "rare": len(found)}
    return _EMPTY | row | {"seed": case.seed, "plan": study.describe(spec, case.clients)}


def _score(
    case: Case, found: dict[str, float], truth: F64, of_hashes: dict[str, float] | None = None
) -> study.Row:
    """Return recall, precision, errors and wrong names of a table of names.

    Args:
        case: the campaign.
        found: the estimate of each name.
        truth: the share of each string of the population.
        of_hashes: the share of each name's hash, of all strings together; None: there are no
            hashes, and each name stands for its own string.
    """
    items, tau = case.strings.items, case.tau
    some = np.flatnonzero(truth > 0)
    held = dict(zip(items.take(some).to_pylist(), truth[some].tolist(), strict=True))
    heavy = [item for item, share in held.items() if share > 2 * tau]
    shown = {item: value for item, value in found.items() if value >= _SHOWN * tau}
    errors = [abs(value - held.get(item, 0.0)) / tau for item, value in shown.items()]
    right = [held.get(item, 0.0) > _HELD * tau for item in shown]
    true = held if of_hashes is None else of_hashes
    return {
        "frequent": len(heavy),
        "recall": float(np.mean([item in shown for item in heavy])) if heavy else None,
        "precision": float(np.mean(right)) if right else None,
        "wrong": sum(item not in held or held[item] < _MOST * true[item] for item in found),
        "rare": sum(held.get(item, 0.0) <= _LISTED * tau for item in found),
        "largest": max(errors, default=0.0),
        "rms": float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0,
    }


def _ours(case: Case, result: Result, truth: F64) -> study.Row:
    """Decode, and score."""
    start = time.process_time()
    _ = result.decoder, result.names
    decoded = time.process_time()
    _ = result.intervals
    calibrated = time.process_time()
    table = result.top(4096, min_frequency=_LISTED * case.tau)
    named = [each for each in table if not isinstance(each.item, Unread)]
    names = [str(each.item) for each in named]
    items = case.strings.items
    heavy = np.flatnonzero(truth > 2 * case.tau)
    at = result.domain.encode(items.take(heavy)).tolist()
    listed = {
        int(result.domain.encode([each.item])[0])
        for each in table
        if each.frequency >= _SHOWN * case.tau
    }
    # intervals, and which name is right, are about all strings of a hash
    hashes = result.domain.encode(names)
    of_all = result.domain.encode(items)
    shares = dict.fromkeys(hashes.tolist(), 0.0)
    for place in np.flatnonzero(np.isin(of_all, hashes)).tolist():
        shares[int(of_all[place])] += float(truth[place])
    of_hashes = {name: shares[h] for name, h in zip(names, hashes.tolist(), strict=True)}
    scores = _score(case, {str(each.item): each.frequency for each in named}, truth, of_hashes)
    held = [
        each.low <= of_hashes[name] <= each.high
        for each, name in zip(named, names, strict=True)
        if each.low is not None and each.high is not None
    ]
    return scores | {
        "hashes": float(np.mean([h in listed for h in at])) if at else None,
        "named": len(named),
        "found": result.num_found,
        "held": int(sum(held)),
        "intervals": len(held),
        "sequence": 1,
        "seconds": decoded - start,
        "calibration": calibrated - decoded,
        "needed": None,
        "memory": _peak_memory(),
    }


def _peak_memory() -> float:
    """Return the most memory of this process so far, in MiB."""
    status = Path("/proc/self/status")  # ru_maxrss begins with what the process that started it had
    if status.is_file():
        [line] = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


def compared(
    size: int,
    clients: Sequence[int],
    bits: int,
    data: str,
    repeats: int,
    seed: int,
    noises: Sequence[str] = ("none", "4", "1"),
) -> list[Case]:
    """Return the campaigns of the comparison."""
    found: list[Case] = []
    for repeat in range(repeats):
        for number in clients:
            for (population, epsilon, many), (rounds, finder, spelling) in _SIZES.items():
                noise = "none" if epsilon is None else f"{epsilon:g}"
                if many != (number >= _MANY) or noise not in noises:
                    continue
                ours = Case(
                    f"{population}, {number:,} clients, epsilon {noise}",
                    population,
                    size,
                    number,
                    2e-4 if many else 1e-3,
                    epsilon,
                    rounds,
                    finder,
                    spelling,
                    bits,
                    data=data,
                    seed=seed,
                    repeat=repeat,
                )
                methods = [name for name in METHODS if epsilon is None or name != "IBLT"]
                found += [ours._replace(method=method) for method in methods]
    return found


def promised(size: int, bits: int, data: str, repeats: int, seed: int) -> list[Case]:
    """Return the campaigns by which the promises are judged."""
    cases = {}
    for name, cell in _PROMISED.items():
        population, epsilon, many = cell
        clients, tau = (1_000_000, 2e-4) if many else (100_000, 1e-3)
        cases[name] = Case(name, population, size, clients, tau, epsilon, *_SIZES[cell], bits)
    for name, (population, finder, spelling) in _EIGHT_ROUNDS.items():
        whole = Case(name, population, size, 100_000, 1e-3, None, 8, finder, spelling, bits)
        rows, width = spelling.split("x")
        cases[name] = whole
        cases[f"{name}, one lost"] = whole._replace(lost=1)
        cases[f"{name}, half the spelling"] = whole._replace(spelling=f"{rows}x{int(width) // 2}")
    cases["URLs, 8 rounds, garbage"] = cases["URLs, 8 rounds"]._replace(garbage=300)
    random = Case(RANDOM, RANDOM, 0, 10_000, 0.0, None, 1, "5x8", "4x64", bits, method=RANDOM)
    found: list[Case] = []
    for repeat in range(repeats):  # whole ones, so that a run that is stopped has some
        found += [
            case._replace(name=name, data=data, seed=seed, repeat=repeat)
            for name, case in cases.items()
        ]
        found += [
            random._replace(seed=seed, repeat=repeat * _RANDOM_SUMS + each)
            for each in range(_RANDOM_SUMS)
        ]
    return found


class Promise(NamedTuple):
    """A figure that is promised: its name, its value, its bound, and whether it holds."""

    name: str
    value: float
    bound: str
    holds: bool


_RECALL = {  # least recall, and most bytes
    "words": (0.95, 1_500),
    "words, 8 rounds": (0.95, 3_000),
    "words, epsilon 1": (0.95, 7_000),
    "words, 1,000,000 clients": (0.95, 27_000),
    "words, 1,000,000 clients, epsilon 1": (0.95, 32_000),
    "URLs": (0.95, 8_000),
    "URLs, 8 rounds": (0.95, 12_500),
    "URLs, epsilon 1": (0.9, 150_000),
}


def judge(rows: Sequence[study.Row]) -> list[Promise]:
    """Return all promises, judged by the rows of `promised`."""
    of_random = sum(row["named"] for row in rows if row["method"] == RANDOM)
    rows = [row for row in rows if row["method"] != RANDOM]
    by_case = {
        name: [row for row in rows if row["case"] == name]
        for name in dict.fromkeys(row["case"] for row in rows)
    }
    found: list[Promise] = []

    def least(name: str, value: float, bound: float) -> None:
        found.append(Promise(name, value, f">= {bound:g}", value >= bound))

    def most(name: str, value: float, bound: float) -> None:
        found.append(Promise(name, value, f"<= {bound:g}", value <= bound))

    for name, (recall, size) in _RECALL.items():
        mine = by_case[name]
        most(f"{name}: bytes", max(row["bytes"] for row in mine), size)
        least(f"{name}: recall", _mean(mine, "recall"), recall)
        least(f"{name}: precision", _mean(mine, "precision"), 0.95)
    most("URLs, epsilon 1: rms error / tau", _mean(by_case["URLs, epsilon 1"], "rms"), 0.2)
    for name in ("words, 8 rounds", "URLs, 8 rounds"):
        whole = _mean(by_case[name], "recall")
        lost = _mean(by_case[f"{name}, one lost"], "recall")
        most(f"{name}, one lost: recall that is lost", whole - lost, 0.05)
        half = by_case[f"{name}, half the spelling"]
        least(f"{name}, half the spelling: recall", _mean(half, "recall"), whole / 2)
        least(f"{name}, half the spelling: hashes", _mean(half, "hashes"), 0.99)
    garbage = by_case["URLs, 8 rounds, garbage"]
    least("URLs, 8 rounds, 300 of garbage: recall", _mean(garbage, "recall"), 0.85)
    most("wrong names in all campaigns", sum(row["wrong"] for row in rows), 0)
    most("names in random sums", of_random, 0)
    over = max(row["seconds"] - _SECONDS - _EACH * row["found"] for row in rows)
    most("CPU seconds of hashes and names beyond 20 s + 10 ms a hash", over, 0.0)
    most("memory, MiB", max(row["memory"] for row in rows), _MEMORY)
    intervals = sum(row["intervals"] for row in rows)
    held = sum(row["held"] for row in rows) / max(1, intervals)
    least("intervals that hold", held, _HELD_SHARE)
    return found


def _mean(rows: Sequence[study.Row], name: str) -> float:
    values = [row[name] for row in rows if row[name] is not None]
    return float(np.mean(values)) if values else 0.0


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return a line for every cell and method: means over the campaigns, and the worst error."""
    table: list[study.Row] = []
    rows = [row for row in rows if row["method"] != RANDOM]
    for case, method in dict.fromkeys((row["case"], row["method"]) for row in rows):
        mine = [row for row in rows if (row["case"], row["method"]) == (case, method)]
        recalls = [row["recall"] for row in mine if row["recall"] is not None]
        table.append(
            {
                "campaigns": case,
                "method": method,
                "bytes": mine[0]["bytes"],
                "rounds in sequence": mine[0]["sequence"],
                "recall": _mean(mine, "recall"),
                "least recall": min(recalls, default=0.0),
                "recall of hashes": _mean(mine, "hashes") or None,
                "precision": _mean(mine, "precision"),
                "largest error / tau": max(row["largest"] for row in mine),
                "rms / tau": _mean(mine, "rms"),
                "wrong": sum(row["wrong"] for row in mine),
                "of rare strings": sum(row["rare"] for row in mine),
                "CPU s": _mean(mine, "seconds"),
                "and of intervals": _mean(mine, "calibration") or None,
                "would need, bytes": _mean(mine, "needed") or None,
                "seeds": len(mine),
            }
        )
    return {"means over seeds; the largest error is that of all of them": table}


def draw_picture(rows: list[study.Row]) -> Figure:
    """Draw the recall of every cell, by method."""
    from matplotlib.figure import Figure

    [table] = summarise(rows).values()
    cells = list(dict.fromkeys(line["campaigns"] for line in table))
    methods = list(dict.fromkeys(line["method"] for line in table))
    figure = Figure(figsize=(8.0, 1.2 + 0.75 * len(cells)), layout="constrained", facecolor="white")
    axes = figure.subplots()
    colors = ("#0969DA", "#8250DF", "#24292F", "#BF8700")
    for number, (method, color) in enumerate(zip(methods, colors, strict=False)):
        mine = [line for line in table if line["method"] == method]
        places = [
            len(cells) - 1 - cells.index(line["campaigns"]) + 0.3 - 0.2 * number for line in mine
        ]
        label = "open domain" if method == "ours" else method
        bars = axes.barh(places, [line["recall"] for line in mine], 0.18, color=color, label=label)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize="x-small")
    size = {line["campaigns"]: line["bytes"] for line in table}
    named = [f"{_cell_name(cell)}\n{size[cell]:,} bytes of a client" for cell in cells]
    axes.set_yticks(range(len(cells)), named[::-1], fontsize="small")
    axes.set_xlabel("recall of the strings above 2 tau, at equal bytes")
    axes.set_xlim(0, 1.08)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    return figure


def _cell_name(cell: str) -> str:
    """Return what the picture calls a cell.

    >>> _cell_name("urls, 100,000 clients, epsilon none")
    'URLs, 100,000 clients, no noise'
    """
    return cell.replace("urls", "URLs").replace("epsilon none", "no noise")


@click.command("open")
@options.study(size=500, clients=(1000,), bits=16, repeats=1)
@click.option(
    "--acceptance", is_flag=True, help="Judge what docs/open-domain.md promises, instead."
)
@click.option("--size", type=click.IntRange(100), default=1_000_000, help="Different strings.")
@click.option(
    "--clients",
    type=click.IntRange(1000),
    multiple=True,
    default=(100_000, 1_000_000),
    help="Of the comparison; may be repeated.",
)
@click.option(
    "--epsilon",
    "noises",
    type=click.Choice(["none", "4", "1"]),
    multiple=True,
    default=("none", "4", "1"),
    help="Of the comparison; may be repeated.",
)
@click.option("--bits", type=click.IntRange(8, 28), default=26, help="Of a hash.")
@options.data()
@options.repeats(10)
@options.seed
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    acceptance: bool,
    size: int,
    clients: tuple[int, ...],
    noises: tuple[str, ...],
    bits: int,
    data: Path | None,
    repeats: int,
    seed: int,
) -> None:
    """Find strings of which nobody has the list, beside other methods at equal bytes."""
    where = "" if data is None else str(data)
    about = (
        f"{size:,} strings at most, hashes of {bits} bits, {repeats} campaigns of each cell. The"
        " others get the bytes of ours."
    )
    if not acceptance:
        cases = compared(size, clients, bits, where, repeats, seed, noises)
        asked = study.Study("open", cases, measure, summarise, draw_picture, about)
        study.run(asked, folder, jobs, plot)
        return
    cases = promised(size, bits, where, repeats, seed)
    rows = study.run(
        study.Study("open-acceptance", cases, measure_apart, summarise, None, about),
        folder,
        jobs,
        plot,
    )
    promises = judge(rows)
    click.echo("\nwhat is promised")
    output.show(
        [
            {
                "figure": each.name,
                "value": each.value,
                "bound": each.bound,
                "verdict": "PASS" if each.holds else "MISS",
            }
            for each in promises
        ]
    )
    if not all(each.holds for each in promises):
        sys.exit(1)
