"""How close decoders come to the limit: belief propagation, joint recovery, and their bounds.

Every campaign is decoded by joint recovery and by belief propagation, under both objectives. Beside
them stand

- state evolution (`limit`): the error of a scalar channel whose noise is what its own estimates
  leave in a cell, under the true distribution of counts. It holds for dense random matrices, so it
  is a guide and no proven bound.
- its form for few rows (`rows`): a message rests on all rows but the one that it goes to. A dense
  matrix has so many rows that one less is nothing; a sketch has a few. Started from the noise of
  nothing known it says where belief propagation ends; started from the truth (`informed`), where it
  could end if it were told where to begin.
- a genie: the same messages, told the true distribution of the counts.

Ratios are of medians over campaigns, to joint recovery under the same objective; those of the genie
are over the campaigns that it decoded. `over rows` is belief propagation over state evolution for
few rows, and the genie stands over it, too. `one end` says whether that ends alike from both
starts: elsewhere it is no guide.
A cell misses where belief propagation is more than 2 % worse than joint recovery, or where fewer
than .93 of the intervals of a band of true ranks with 40 items hold, by more than 2.5 standard
errors.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from experiments import coverage, options, output, rounds, study
from experiments.privacy import calibrated
from experiments.recovery import ROUNDS, land, law
from experiments.recovery import draw as draw_counts
from fedtally.domain import Domain, IntegerRange
from fedtally.recovery.decoders.belief.belief import BeliefDecoder, Messages
from fedtally.recovery.decoders.belief.prior import Prior
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.error_model import predict
from fedtally.recovery.intervals import make_intervals
from fedtally.recovery.linear_system import Candidates, Decoder
from fedtally.recovery.phantoms import generator
from fedtally.recovery.shrinkage import ShrunkDecoder
from fedtally.sketch import CountSketch, Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAWS = ("1.1", "zm", "2", "lognormal", "plateaus")
SCHEDULES = ("shared", "fresh", "hybrid", "batched:2")
SIZES = ("5x200", "16x200", "3x300")
UNLIKE = ("cv=2", "once")  # rounds that differ, at the first size
WORST = 1.02
LEAST = 0.93
FEWEST = 40
ERRORS = ("linf", "l2")
SAME = 1.05  # two ends of state evolution whose l2 errors are within this ratio are one
BANDS = ((0, 20), (20, 100), (100, 500), (500, 2500), (2500, None))
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_GROUP = 1.03  # counts within this ratio are taken together from _EXACT on
_EXACT = 50
_VALUES = 1500  # at which means are taken; between them lie lines
_CHANNELS = 20  # draws of the scalar channel, whose errors have their medians


class Task(NamedTuple):
    """One campaign.

    Attributes:
        law: an exponent, zm, lognormal or plateaus.
        kind: of the rounds: alike, cv=SPREAD or once, as in `recovery.draw`.
        schedule: shared, fresh, hybrid or batched:B.
        rows: of the sketch.
        width: of the sketch.
        noise: off or on, as in `coverage.Case`.
        size: candidates.
        clients: of all ten rounds.
        seed: of the experiment.
        repeat: of the cell.
        bounded: whether a genie and state evolution stand beside it.
    """

    law: str
    kind: str
    schedule: str
    rows: int
    width: int
    noise: str
    size: int
    clients: int
    seed: int
    repeat: int
    bounded: bool = True

    @property
    def cell(self) -> str:
        """All but what tells its campaigns apart."""
        kind = "" if self.kind == "alike" else f" {self.kind}"
        noise = "" if self.noise == "off" else " with noise"
        return f"{self.law}{kind}, {self.schedule} {self.rows}x{self.width}{noise}"


def population(name: str, size: int, rng: np.random.Generator) -> rounds.F64:
    """Return the frequencies of a law: float64 [size], sums to 1.

    >>> population("plateaus", 100, np.random.default_rng(0)).round(4)[[0, 2, 99]].tolist()
    [0.2, 0.02, 0.0026]
    """
    if name == "lognormal":
        weights = np.exp(rng.normal(0.0, 1.8, size))
    elif name == "plateaus":
        few, more = max(1, size // 50), size // 5
        weights = np.repeat(
            [0.4 / few, 0.4 / more, 0.2 / (size - few - more)], [few, more, size - few - more]
        )
    else:
        return law(name, size)
    found: rounds.F64 = weights / weights.sum()
    return found


# ---- state evolution ----


def groups(counts: rounds.I64) -> tuple[rounds.F64, rounds.F64]:
    """Return counts and the shares of all items that have them; large counts in groups.

    >>> groups(np.array([0, 0, 3, 1000, 1001]))
    (array([   0. ,    3. , 1000.5]), array([0.4, 0.2, 0.4]))
    """
    place = np.where(
        counts < _EXACT,
        counts,
        _EXACT + np.floor(np.log(np.maximum(counts, _EXACT) / _EXACT) / np.log(_GROUP)),
    )
    place = np.unique(place, return_inverse=True)[1]
    number = np.bincount(place).astype(np.float64)
    return np.bincount(place, counts) / number, number / len(counts)


def means(values: rounds.F64, stddev: float, points: rounds.F64, shares: rounds.F64) -> rounds.F64:
    """Return the mean counts given values with normal noise of one standard deviation."""
    # Far above the noise a value says its own count: no decoder knows the law of so few items.
    far = 8.0 * stddev
    at = np.linspace(min(float(values.min()), -far), far, _VALUES)
    chance = np.exp(-0.5 * ((at[:, None] - points) / stddev) ** 2) * shares
    total = chance.sum(axis=1)
    mean = np.where(total > 0.0, chance @ points / np.maximum(total, 1e-300), at)
    found: rounds.F64 = np.where(values < far, np.interp(values, at, mean), values)
    return found


def evolve(
    counts: rounds.I64,
    cells: int,
    width: int,
    batches: int,
    noise: float,
    *,
    informed: bool,
    heard: float = 1.0,
) -> float:
    """Return the standard deviation at which state evolution stands still, in clients.

    Args:
        counts: int64 [d], of all rounds.
        cells: of one sketch.
        width: of one sketch.
        batches: of equal size.
        noise: variance of one counter of a batch.
        informed: whether it starts from the truth, rather than from nothing known.
        heard: the share of an item's rows that a message rests on.
    """
    points, shares = groups(counts)
    density, alone = len(counts) / cells, 1.0 / batches
    known = batches * noise * width / cells
    square = 1e-3 if informed else known + density * float(shares @ points**2)
    for _ in range(80):
        stddev = float(np.sqrt(square / heard))
        truth = np.repeat(points, len(_NODES))
        believed = means(truth + stddev * np.tile(_NODES, len(points)), stddev, points, shares)
        # Between batches a count is a Poisson variable. An item's differences are kept as far as
        # the count that is believed exceeds the noise: nobody knows the true one.
        kept = np.maximum(believed, 0.0) / (np.maximum(believed, 0.0) + stddev**2)
        between = (kept * stddev) ** 2 + (1.0 - kept) ** 2 * truth
        error = alone * (believed - truth) ** 2 + (1.0 - alone) * between
        mean_error = float(shares @ (error.reshape(-1, len(_NODES)) @ _WEIGHTS)) / _WEIGHTS.sum()
        new = known + density * mean_error
        if abs(new - square) < 1e-3 * square:
            break
        square = max(new, 1e-6)
    return float(np.sqrt(square))


def channel(counts: rounds.I64, stddev: float, rng: np.random.Generator) -> tuple[float, float]:
    """Return the medians of the largest error and of the l2 error of a scalar channel."""
    points, shares = groups(counts)
    found = []
    for _ in range(_CHANNELS):
        values = counts + stddev * rng.normal(size=len(counts))
        error = means(values, stddev, points, shares) - counts
        found.append((np.abs(error).max(), np.sqrt(np.sum(error**2))))
    largest, l2 = np.median(found, axis=0)
    return float(largest), float(l2)


# ---- one campaign ----


def measure(task: Task) -> list[study.Row]:
    """Decode one campaign in all ways; errors are in clients."""
    rng = np.random.default_rng([task.seed, task.repeat, zlib.crc32(task.cell.encode())])
    frequencies = population(task.law, task.size, rng)
    held = draw_counts(frequencies, task.clients, task.kind, rng)
    seed = rng.bytes(32)
    sketches = land(held, task.rows, task.width, task.schedule, seed)
    coverage.protect(sketches, task.noise, rng)
    truth, domain = held.sum(axis=0), IntegerRange(rounds.FIRST_ID, task.size)
    decoder = BeliefDecoder(sketches, domain)
    answers: dict[str, Decoder] = {
        "joint": decoder.joint,
        "joint_shrunk": ShrunkDecoder(decoder.joint, domain),
        "belief": decoder,
        "belief_shrunk": ShrunkDecoder(decoder, domain),
    }
    row: study.Row = {
        "seed": f"{task.seed}/{task.repeat}",
        "plan": study.describe(sketches[0].spec, int(truth.sum())),
        **{name: getattr(task, name) for name in ("cell", "law", "kind", "schedule", "noise")},
        "fallback": decoder.fallback,
        "iterations": decoder.messages.iterations if decoder.messages else 0,
        "inflation": decoder.messages.inflation if decoder.messages else None,
        "stddev": float(np.median(decoder.messages.beliefs.stddev)) if decoder.messages else None,
    }
    for name, one in answers.items():
        error = one.range(rounds.FIRST_ID, task.size) - truth
        row[f"{name}_linf"], row[f"{name}_l2"] = largest_and_l2(error)
    ids = domain.ids(0, task.size)
    row |= intervals(decoder, sketches, truth, domain, ids) | _bounds(task, truth, rng)
    genie: tuple[float | None, float | None] = (None, None)
    if task.bounded and decoder.messages is not None:
        fit = decoder.joint.fit
        support = fit.support
        told = Messages(
            fit.landed,
            Candidates(domain),
            generator(seed, b"belief"),
            (support.positions, support.values * fit.landed.clients),
            Prior(0.0, groups(truth)),
        )
        genie = largest_and_l2(told.prior.posterior(*told.beliefs).mean - truth)
    row["genie_linf"], row["genie_l2"] = genie
    row["planned_linf"] = _planned(task, frequencies)
    return [row]


def largest_and_l2(error: rounds.F64) -> tuple[float, float]:
    """Return the largest error in size, and the root of the sum of squares."""
    return float(np.abs(error).max()), float(np.sqrt(np.sum(error**2)))


def intervals(
    decoder: BeliefDecoder | JointDecoder,
    sketches: Sequence[CountSketch],
    truth: rounds.I64,
    domain: Domain,
    ids: npt.NDArray[np.uint64],
) -> study.Row:
    """Return how many intervals hold, by band of true ranks, and whether the whole band does.

    Args:
        decoder: of the campaign.
        sketches: its sums.
        truth: int64 [d], of all landed rounds.
        domain: the candidates.
        ids: of the candidates, as in `truth`.
    """
    clients = sum(sketch.num_clients for sketch in sketches)
    pointwise = make_intervals(decoder, sketches, domain)
    held = coverage.holds(pointwise.at(ids), truth, clients)
    whole = make_intervals(decoder, sketches, domain, kind="simultaneous").at(ids)
    order = np.argsort(-truth, kind="stable")
    row: study.Row = {
        "predicted_linf": pointwise.predicted_linf * clients,
        "band_holds": bool(coverage.holds(whole, truth, clients).all()),
    }
    for first, last in BANDS:
        band = held[order[first:last]]
        row[f"held_{first}"], row[f"items_{first}"] = int(band.sum()), len(band)
    return row


def _planned(task: Task, frequencies: rounds.F64) -> float | None:
    """Return the error that a plan predicts of the population, in clients.

    Nothing where rounds are not alike: a plan does not know how they differ.
    """
    if task.kind != "alike":
        return None
    found = predict(
        frequencies,
        rows=task.rows,
        width=task.width,
        schedule=task.schedule,
        num_rounds=ROUNDS,
        num_clients=task.clients,
        noise=float(np.sqrt(_noise(task) / ROUNDS)),
        recovery="belief",
    )
    return found.linf * task.clients


def _noise(task: Task) -> float:
    """Return the variance of the noise in a counter of the sum over all batches."""
    if task.noise == "off":
        return 0.0
    batches = Schedule.parse(task.schedule).num_batches(ROUNDS)
    return batches * float(calibrated("rounded-gaussian", task.rows).noise_variance)


def _bounds(task: Task, truth: rounds.I64, rng: np.random.Generator) -> study.Row:
    """Return what state evolution says; nothing where rounds are not alike, as it assumes."""
    names = tuple(f"{name}_{what}" for name in ("limit", "rows", "informed") for what in ERRORS)
    if task.kind != "alike" or not task.bounded:
        return dict.fromkeys(names)
    batches = Schedule.parse(task.schedule).num_batches(ROUNDS)
    variance = _noise(task) / batches
    found: list[float] = []
    few = 1.0 - 1.0 / task.rows
    for informed, heard in ((False, 1.0), (False, few), (True, few)):
        cells = task.rows * task.width
        stddev = evolve(truth, cells, task.width, batches, variance, informed=informed, heard=heard)
        found += channel(truth, stddev, rng)
    return dict(zip(names, found, strict=True))


# ---- all campaigns ----


def tasks(
    laws: Sequence[str],
    schedules: Sequence[str],
    sizes: Sequence[str],
    size: int,
    clients: int,
    repeats: int,
    genies: int,
    seed: int,
) -> list[Task]:
    """Return the campaigns of all cells, a repeat of every cell after the other.

    Rounds that differ and noise are measured at the first size, under hybrid and fresh. The first
    `genies` repeats have bounds beside them.
    """
    cells: list[tuple[str, str, str, str, str]] = []
    for name in laws:
        cells += [(name, "alike", schedule, one, "off") for one in sizes for schedule in schedules]
        for schedule in schedules:
            if schedule in ("hybrid", "fresh"):
                cells += [(name, kind, schedule, sizes[0], "off") for kind in UNLIKE]
            cells.append((name, "alike", schedule, sizes[0], "on"))
    found = []
    for repeat in range(repeats):
        for name, kind, schedule, one, noise in cells:
            rows, width = map(int, one.split("x"))
            campaign = (size, clients, seed, repeat, repeat < genies)
            found.append(Task(name, kind, schedule, rows, width, noise, *campaign))
    return found


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return a line for every cell: ratios to joint recovery, intervals and a verdict."""
    table: list[study.Row] = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        mine = [row for row in rows if row["cell"] == cell]
        line: study.Row = {"cell": cell}
        for what, base in (("linf", "joint"), ("l2", "joint_shrunk")):
            ours = "belief" if what == "linf" else "belief_shrunk"
            least = _median(mine, f"{base}_{what}")
            line[f"joint {what}"] = least
            line[f"belief {what}"] = _ratio(_median(mine, f"{ours}_{what}"), least)
            told = [row for row in mine if row[f"genie_{what}"] is not None]
            line[f"genie {what}"] = _ratio(
                _median(told, f"genie_{what}"), _median(told, f"{base}_{what}")
            )
            for name in ("limit", "rows"):
                line[f"{name} {what}"] = _ratio(_median(mine, f"{name}_{what}"), least)
            line[f"{what} over rows"] = _ratio(
                _median(mine, f"{ours}_{what}"), _median(mine, f"rows_{what}")
            )
            line[f"genie {what} over rows"] = _ratio(
                _median(told, f"genie_{what}"), _median(told, f"rows_{what}")
            )
        line["one end"] = _has_one_end(mine)
        line["l2 to joint"] = _ratio(_median(mine, "belief_l2"), _median(mine, "joint_l2"))
        line["predicted"] = _ratio(_median(mine, "predicted_linf"), _median(mine, "belief_linf"))
        line["planned"] = _ratio(_median(mine, "planned_linf"), _median(mine, "belief_linf"))
        line["fell back"] = f"{sum(bool(row['fallback']) for row in mine)}/{len(mine)}"
        bands = _coverage(mine)
        line["lowest coverage"] = min((held for held, _ in bands), default=None)
        line["band"] = f"{sum(row['band_holds'] for row in mine)}/{len(mine)}"
        if "joint_held_0" in mine[0]:
            line |= _beside(mine)
        line["times the time"] = _ratio(
            _median(mine, "belief_seconds"), _median(mine, "joint_seconds")
        )
        worse = max(line["belief linf"] or 0.0, line["belief l2"] or 0.0)
        holds = all(held >= LEAST - slack for held, slack in bands)
        line["verdict"] = "PASS" if worse <= WORST and holds else "MISS"
        table.append(line)
    return {
        "ratios of medians to joint recovery; errors of joint recovery in clients": table,
        "largest errors of single campaigns in which messages answered, to joint recovery": [
            _single(rows)
        ],
    }


def _single(rows: Sequence[study.Row]) -> study.Row:
    """Return in how many campaigns the largest error is larger, and by how much at most."""
    found = [
        _ratio(row["belief_linf"], row["joint_linf"]) or 0.0 for row in rows if not row["fallback"]
    ]
    larger = [one for one in found if one > 1.0]
    return {
        "campaigns": len(found),
        "larger": len(larger),
        "by 10 %": sum(one > 1.1 for one in found),
        "most": max(found, default=None),
        "median": float(np.median(found)) if found else None,
    }


def _has_one_end(rows: Sequence[study.Row]) -> bool | None:
    """Return whether state evolution for few rows ends alike from nothing and from the truth."""
    nothing, truth = _median(rows, "rows_l2"), _median(rows, "informed_l2")
    return None if nothing is None or truth is None else nothing <= SAME * truth


def _median(rows: Sequence[study.Row], name: str) -> float | None:
    found = [row[name] for row in rows if row.get(name) is not None]
    return float(np.median(found)) if found else None


def _ratio(value: float | None, base: float | None) -> float | None:
    """Return a ratio; of two errors below a thousandth of a client 1, and None without a value."""
    if value is None or base is None:
        return None
    return 1.0 if max(value, base) < 1e-3 else value / max(base, 1e-3)


def _beside(rows: Sequence[study.Row]) -> study.Row:
    """Return how often intervals of the twenty largest and bands hold, where messages answered."""
    rows = [row for row in rows if not row["fallback"]]
    items = sum(row["items_0"] for row in rows)
    found: study.Row = {}
    for name, before in (("belief", ""), ("joint", "joint_")):
        held, bands = (sum(row[before + what] for row in rows) for what in ("held_0", "band_holds"))
        found[f"{name} held, 0-20"] = held / items if items else None
        found[f"{name} bands"] = f"{bands}/{len(rows)}"
    return found


def _coverage(rows: Sequence[study.Row]) -> list[tuple[float, float]]:
    """Return the shares of intervals that hold, of bands of true ranks with items enough.

    Beside each share stand 2.5 standard errors of a share that is .95.
    """
    found = []
    for first, _ in BANDS:
        held, items = (sum(row[f"{name}_{first}"] for row in rows) for name in ("held", "items"))
        if items >= FEWEST:
            found.append((held / items, 2.5 * float(np.sqrt(0.95 * 0.05 / items))))
    return found


def draw(rows: list[study.Row]) -> Figure:
    """Draw, for every cell, both errors over those of joint recovery, and the limits."""
    from matplotlib.figure import Figure

    table, _ = summarise(rows).values()
    places = np.arange(len(table))[::-1]
    figure = Figure(figsize=(9.0, 1.5 + 0.22 * len(table)), layout="constrained", facecolor="white")
    for axes, what in zip(figure.subplots(1, 2, sharey=True), ("linf", "l2"), strict=True):
        axes.axvline(1.0, color="#8C959F", linewidth=1)
        for name, color, marker in (
            ("belief", "#0969DA", "o"),
            ("genie", "#8250DF", "x"),
            ("limit", "#24292F", "|"),
        ):
            ratios = [
                np.nan if line[f"{name} {what}"] is None else line[f"{name} {what}"]
                for line in table
            ]
            axes.plot(ratios, places, marker, color=color, label=name)
        axes.set_xscale("log")
        axes.set_xlabel(f"{what} over that of joint recovery")
        axes.set_yticks(places, [line["cell"] for line in table], fontsize="x-small")
    axes.legend(loc="lower left", frameon=False)
    return figure


@click.command("limit")
@options.study(
    laws=("1.1",),
    schedules=("hybrid",),
    sizes=("5x60",),
    domain_size=1000,
    clients=100_000,
    repeats=2,
)
@options.laws(LAWS, "An exponent, zm, lognormal or plateaus.")
@options.schedules(SCHEDULES, "shared, fresh, hybrid or batched:B.")
@options.sizes(SIZES, "Rows x width; rounds that differ, and noise, are of the first.")
@options.domain_size(10_000)
@options.clients(1_000_000)
@options.repeats(20)
@click.option(
    "--genies",
    type=click.IntRange(0),
    default=5,
    help="Campaigns of each cell with a genie and state evolution, which vary little.",
)
@click.option(
    "--cells",
    type=click.Choice(["grid", "unlike", "rows", "few", "small"]),
    default="grid",
    help="grid, as the other options say; unlike: other sizes, laws and rounds, and the time of"
    " both decoders; rows: these with three or four rows and as many counters; few: sketches of few"
    " cells, where messages are sent here alone; small: of 700 to 1,500 cells.",
)
@options.data(
    "Folder of the real tables, for --cells unlike and rows."
    " [default: FEDTALLY_DATA or ../shared/data]"
)
@options.seed
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    laws: tuple[str, ...],
    schedules: tuple[str, ...],
    sizes: tuple[str, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    genies: int,
    cells: str,
    data: Path | None,
    seed: int,
) -> None:
    """Compare belief propagation with joint recovery and with the limit of both."""
    about = (
        f"{domain_size:,} candidates, {clients:,} clients in ten rounds, {repeats} campaigns of"
        " each cell. Ratios are of medians to joint recovery under the same objective."
    )
    one = study.Study(
        "limit",
        tasks(laws, schedules, sizes, domain_size, clients, repeats, genies, seed),
        measure,
        summarise,
        draw,
        about,
    )
    if cells != "grid":
        from experiments import unlike

        one = one._replace(
            name=cells,
            tasks=unlike.tasks(repeats, output.data_folder(data), seed, cells),
            measure=unlike.measure,
            about=f"{repeats} campaigns of each cell; seconds are of CPU time.",
        )
    rows = study.run(one, folder, jobs, plot)
    table, _ = summarise(rows).values()
    if any(line["verdict"] == "MISS" for line in table):
        sys.exit(1)
