"""The paper's Figure 1 a, b, d, e, g and h: the width chosen for an error tau, and the error.

One round: n clients are drawn from the population's law, items in random order; for two-phase and
our planner a pilot of n / 10 others in a sketch of 8 x 200. The targets tau lie evenly on a
logarithmic axis, or a linear one, within (1e-3, 1e-1) and above 20 / n. The ways to choose a size,
for p = 0.1 and the paper's rows L:

- minimax optimal: W = 2 min(2 / tau, n);
- instance optimal: W = 2 min(hardness(f, tau), n), f being the frequencies of the very clients of
  the campaign;
- two-phase: the same for a power law, fitted to the pilot's 20 largest estimates;
- planner, median: `fedtally.plan.sizes.size_by_model` from the same pilot, for L rows and the
  paper's decoder;
- planner, joint: the same for joint recovery; the planner chooses the rows, too, so that counters
  are compared.

`kept` is whether the largest error of a frequency is at most tau; `warned` whether the planner said
that its size may be too small, or is that of the worst case, for want of a larger pilot. The
campaigns of a pilot are alike in their size, so the standard error of the share that keeps tau is
that of the pilots' shares; it is taken to be at least the binomial one of 1 - p. A target is missed
if that share is below 1 - p at the level of 99 %. Ratios of widths are geometric means over taus
and pilots.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import populations, recovery, rounds
from experiments.figure1_rounds import (
    CONSISTENT,
    FAVOURED,
    PANELS,
    P,
    Ratio,
    label,
    largest_error,
    load,
    overall,
    verdict_of,
    whole,
)
from experiments.populations import Population
from experiments.study import Row, describe
from fedtally.domain import IntegerRange
from fedtally.plan import paper
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.frequencies.pilot import Pilot
from fedtally.plan.paper import Size
from fedtally.plan.predictor import Predictor
from fedtally.plan.sizes import size_by_model
from fedtally.sketch import Schedule, SketchSpec

PART = "one round"
CONSTANT = 2.0
TAUS = 1e-3, 1e-1
FEW = 20  # clients: frequencies below FEW / n are of no interest
MINIMAX, INSTANCE, TWO_PHASE = "minimax optimal", "instance optimal", "two-phase"
MEDIAN, JOINT = "planner, median", "planner, joint"
METHODS = {  # colours of Okabe and Ito (2008), and markers
    MINIMAX: ("#D55E00", "s"),
    INSTANCE: ("#009E73", "^"),
    TWO_PHASE: ("#E69F00", "v"),
    MEDIAN: ("#56B4E9", "D"),
    JOINT: ("#0072B2", "o"),
}


class Task(NamedTuple):
    """The campaigns of one pilot; `law` is the digest of the population's."""

    population: str
    title: str
    data: str | None
    law: str
    clients: int
    rows: int
    tau: float
    pilot: int
    repeats: int
    seed: int


def taus(points: int, spacing: str, clients: int) -> list[float]:
    """Return the targets: so many evenly within TAUS, ends left out, of which those above 20 / n.

    >>> taus(3, "linear", 17_500), taus(1, "log", 17_500), taus(1, "log", 1000)
    ([0.02575, 0.0505, 0.07525], [0.01], [])
    """
    space: Callable[..., rounds.F64] = np.linspace if spacing == "linear" else np.geomspace
    return [tau for tau in space(*TAUS, points + 2)[1:-1].round(12).tolist() if tau > FEW / clients]


def refusal(clients: int) -> str:
    """Return why there are no targets, and what helps."""
    few = f"no tau is above {FEW} / {clients}"
    if FEW / clients < TAUS[1]:
        return f"{few}: take more --points"
    return (
        f"{few}, as all are below {TAUS[1]:g}: the population needs more than {FEW / TAUS[1]:.0f}"
        " clients in a round"
    )


def choose(task: Task, law: rounds.F64, rng: np.random.Generator) -> dict[str, Size]:
    """Return the sizes that one pilot leads to, and that for the worst case."""
    pilot, domain = Pilot(), IntegerRange(rounds.FIRST_ID, len(law))
    spec = pilot.spec(rng.bytes(32))
    held = rounds.draw(rng.permutation(law), pilot.clients(task.clients), 1, rng)
    [sums] = recovery.land(held, spec.rows, spec.width, "shared", spec.seed)
    known = Frequencies.from_pilot([sums], domain)

    def by_model(decoder: str, rows: int | None) -> Size:
        return size_by_model(
            known, task.tau, Predictor(task.clients, recovery=decoder), p=P, rows=rows
        )

    clients, rows = task.clients, task.rows
    return {
        MINIMAX: paper.minimax(
            task.tau, num_clients=clients, domain_size=len(law), rows=rows, constant=CONSTANT
        ),
        TWO_PHASE: paper.two_phase(
            sums, domain, task.tau, num_clients=clients, rows=rows, constant=CONSTANT
        ),
        MEDIAN: by_model("median", rows),
        JOINT: by_model("joint", None),
    }


def tasks(
    one: Population,
    data: str | None,
    targets: Iterable[float],
    pilots: int,
    repeats: int,
    seed: int,
) -> Iterator[Task]:
    """Yield the tasks of a population."""
    known = one.name, one.title, data, populations.digest(one.law), one.num_clients, one.rows
    for tau, pilot in itertools.product(targets, range(pilots)):
        yield Task(*known, tau, pilot, repeats, seed)


def measure(task: Task) -> list[Row]:
    """Return a row for every campaign and way to choose a size."""
    law = load(task.population, task.data).law
    place = task.seed, int(task.law, 16), round(task.tau * 1e12), task.pilot
    sizes = choose(task, law, np.random.default_rng(whole(*place)))
    found = []
    for repeat in range(task.repeats):
        seed = whole(*place, 1 + repeat)
        rng = np.random.default_rng(seed)
        held, hashes = rounds.draw(rng.permutation(law), task.clients, 1, rng), rng.bytes(32)
        own = held[0] / task.clients
        given = {
            "num_clients": task.clients,
            "domain_size": len(law),
            "rows": task.rows,
            "constant": CONSTANT,
        }
        oracle = paper.oracle(own, task.tau, **given)  # type: ignore[arg-type]
        for method, size in (sizes | {INSTANCE: oracle}).items():
            decoder = "joint" if method == JOINT else "median"
            spec = SketchSpec(size.rows, size.width, Schedule.parse("shared"), 1, hashes)
            linf = largest_error(held, size.rows, size.width, "shared", decoder, hashes)
            row: Row = {
                "part": PART,
                "population": task.population,
                "title": task.title,
                "law": task.law,
            }
            row |= {
                "domain_size": len(law),
                "clients": task.clients,
                "experiment_seed": task.seed,
                "tau": task.tau,
            }
            row |= {"method": method, "decoder": decoder, "pilot": task.pilot, "repeat": repeat}
            row |= {
                "rows": size.rows,
                "width": size.width,
                "sizing": size.method,
                "warned": bool(size.message),
            }
            row |= {"linf": linf, "kept": linf <= task.tau * (1 + 1e-9)}
            found.append(row | {"seed": seed, "plan": describe(spec, task.clients)})
    return found


class Cell(NamedTuple):
    """What one way to choose a size leads to for one tau.

    Attributes:
        columns: [pilots], counters divided by the paper's rows: logarithms, means over a pilot's
            campaigns.
        linf: mean largest error.
        share: of campaigns that keep tau.
        error: its standard error; that of pilots' shares, or that of 1 - p if larger.
        warned: the planner said of most sizes that they may be too small, or that the worst case
            was taken.
    """

    columns: rounds.F64
    linf: float
    share: float
    error: float
    warned: bool

    @property
    def missed(self) -> bool:
        """Whether fewer than 1 - p keep tau, at the level of 99 %."""
        return self.share < 1 - P - FAVOURED * self.error


def cells(rows: Iterable[Row], method: str, length: int) -> dict[float, Cell]:
    """Return what a way leads to at each tau; length: the paper's rows of the population."""
    groups: dict[float, dict[int, list[Row]]] = {}
    for row in rows:
        if row["part"] == PART and row["method"] == method:
            groups.setdefault(row["tau"], {}).setdefault(row["pilot"], []).append(row)
    return {tau: _cell(list(pilots.values()), length) for tau, pilots in sorted(groups.items())}


def _cell(pilots: list[list[Row]], length: int) -> Cell:
    shares = np.array([np.mean([row["kept"] for row in pilot]) for pilot in pilots])
    columns = [
        np.mean([math.log(row["rows"] * row["width"] / length) for row in pilot])
        for pilot in pilots
    ]
    count = sum(map(len, pilots))
    error = float(shares.std(ddof=1) / math.sqrt(len(pilots))) if len(pilots) > 1 else math.inf
    linf = float(np.mean([row["linf"] for pilot in pilots for row in pilot]))
    warned = float(np.mean([row["warned"] for pilot in pilots for row in pilot])) > 0.5
    return Cell(
        np.array(columns),
        linf,
        float(shares.mean()),
        max(error, math.sqrt(P * (1 - P) / count)),
        warned,
    )


def narrower(ours: dict[float, Cell], others: dict[float, Cell]) -> Ratio:
    """Return the share of the others' counters that is enough: the geometric mean over all."""
    found = []
    for tau, cell in ours.items():
        logs = cell.columns - others[tau].columns
        mean = math.exp(logs.mean())
        error = float(logs.std(ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        found.append(Ratio(mean, mean * error))
    return overall(found)


def claim(rows: Sequence[Row], one: Population) -> Row:
    """Return the row of the paper's claim on the widths.

    Reproduced if instance optimal and two-phase are both narrower than minimax, at 99 %, and miss
    no target; with a caveat if they are narrower.
    """
    found = {method: cells(rows, method, one.rows) for method in METHODS}
    ratios = {method: narrower(found[method], found[MINIMAX]) for method in (INSTANCE, TWO_PHASE)}
    missed = {
        m: sum(cell.missed for cell in found[m].values()) for m in (MINIMAX, INSTANCE, TWO_PHASE)
    }
    less = all(value.below(1.0) for value in ratios.values())
    ours = ", ".join(f"{method} {value} of minimax" for method, value in ratios.items())
    ours += "; targets missed: " + ", ".join(
        f"{m} {count} of {len(found[m])}" for m, count in missed.items()
    )
    panels = PANELS.get(one.name)
    figure = (
        f"section 2, Figure 1 {panels[0]} and {panels[1]}" if panels else "no claim of the paper"
    )
    figure += f": {CONSISTENT}; held to Gowalla's" if one.name == "sentiment140" else ""
    return {
        "population": one.title,
        "claim": "minimax is suboptimal, and improved by instance optimal and two-phase",
        "place": figure,
        "ours": ours,
        "verdict": verdict_of(less and not missed[INSTANCE] + missed[TWO_PHASE], less),
    }


def summary(rows: Sequence[Row], one: Population) -> list[Row]:
    """Return the rows of the table, one for every way to choose a size."""
    worst = cells(rows, MINIMAX, one.rows)
    table: list[Row] = []
    for method in METHODS:
        found = cells(rows, method, one.rows)
        errors = [cell.linf / tau for tau, cell in found.items()]
        shares, each = (
            [cell.share for cell in found.values()],
            [cell.error for cell in found.values()],
        )
        missed = [cell for cell in found.values() if cell.missed]
        row: Row = {
            "population": one.title,
            "size": method,
            "counters / minimax": str(narrower(found, worst)),
        }
        row["mean error / tau"] = f"{np.mean(errors):.2g} ({min(errors):.2g} to {max(errors):.2g})"
        row["success"] = f"{np.mean(shares):.3f} ± {np.linalg.norm(each) / len(each):.1g}"
        row["success at each tau"] = f"{min(shares):.3f} to {max(shares):.3f}"
        row |= {
            "targets missed": f"{len(missed)} of {len(found)}",
            "warned": sum(cell.warned for cell in missed),
        }
        table.append(row)
    return table


def draw(widths: Any, errors: Any, rows: Sequence[Row], one: Population) -> None:
    """Draw widths and mean errors over the targets."""
    for method, (colour, marker) in METHODS.items():
        found = cells(rows, method, one.rows)
        points = {"color": colour, "marker": marker, "markersize": 5}
        name = method if method in (MEDIAN, JOINT) else f"{method}, C = {CONSTANT:g}"
        columns = [math.exp(cell.columns.mean()) for cell in found.values()]
        for axes, values in ((widths, columns), (errors, [cell.linf for cell in found.values()])):
            axes.plot(list(found), values, linewidth=1.6, label=name, **points)
            for (tau, cell), value in zip(found.items(), values, strict=True):
                axes.plot(
                    tau,
                    value,
                    linestyle="",
                    markerfacecolor="white" if cell.missed else colour,
                    **points,
                )
    ends = [min(found), max(found)]
    errors.plot(ends, ends, color="black", linestyle=":", label="error = tau")
    errors.plot(
        [], [], "o", color="#57606A", markerfacecolor="white", label="hollow: target missed"
    )
    for axes in (widths, errors):
        axes.set(xscale="log", yscale="log", xlabel="target tau")
        label(axes)
