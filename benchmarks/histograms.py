"""The largest error of a private plan against plain histograms of OpenDP, at equal privacy.

A client has one item, an aggregator adds the noise, and a client's items are taken away or not
(zero-out; OpenDP calls the same distance of counts 1). Ours is the plan that is made by default for
those candidates and that epsilon, a histogram in all cells; its noise alone is drawn, since it is
all that is wrong. OpenDP's are its Gaussian mechanism at the same delta, with the scale that its
own search finds, and its Laplace mechanism on integers, which needs no delta. A plain histogram has
one counter for each candidate, as ours.

An error is the largest of all frequencies. A goal compares means over so many campaigns that they
are known to about 3 %. Geometric noise of one epsilon is the same distribution everywhere, so that
the goal leaves 10 % for chance.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks.measure import Goal, Rate, Report
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.proposal import propose
from fedtally.plan.request import Request
from fedtally.privacy.config import default_delta

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

CANDIDATES = {14: 2000, 1000: 200, 20_000: 30}  # how many, and campaigns of so many
EPSILONS = (0.5, 1.0, 4.0)
CLIENTS = 100_000
GAUSSIAN, LAPLACE = "Gaussian", "Laplace"  # of OpenDP
CHANCE = 1.1
EXTRA = "pip install 'fedtally[bench-dp]'"


class Cell(NamedTuple):
    """One setting: so many candidates, an epsilon, and how many campaigns are run."""

    candidates: int
    epsilon: float
    repeats: int

    def __str__(self) -> str:
        return f"{self.candidates:,} candidates, epsilon {self.epsilon:g}"


def plan_for(cell: Cell) -> Plan:
    """Return the plan that is made by default."""
    spec = Request(num_rounds=1, epsilon=cell.epsilon).resolve()
    domain = IntegerRange(1, cell.candidates)
    frequencies = Frequencies.assumed(cell.candidates)
    return propose(spec, domain, CLIENTS, frequencies, seed=bytes(KEY_BYTES)).plan


def ours(plan: Plan, cell: Cell, rng: np.random.Generator) -> F64:
    """Return the largest error of each campaign, as a share of the clients: [campaigns]."""
    assert plan.is_histogram and plan.privacy is not None
    noise = plan.privacy.noise()
    return _largest(lambda: noise.draw(Secret(rng.bytes(KEY_BYTES)), cell.candidates), cell.repeats)


def theirs(dp: Any, name: str, cell: Cell) -> F64:
    """Return the largest error of each release of a mechanism of OpenDP: [releases]."""
    measure = MECHANISMS[name](dp, cell.candidates, cell.epsilon)
    exact = [0] * cell.candidates  # noise does not depend on counts
    return _largest(lambda: np.array(measure(exact), np.int64), cell.repeats)


def _largest(draw: Callable[[], I64], repeats: int) -> F64:
    return np.array([np.abs(draw()).max() for _ in range(repeats)]) / CLIENTS


def _gaussian(dp: Any, size: int, epsilon: float) -> Any:
    delta = default_delta(CLIENTS)

    def make(scale: float) -> Any:
        space = dp.vector_domain(dp.atom_domain(T="i64"), size), dp.l2_distance(T="i64")
        return dp.c.make_fix_delta(
            dp.c.make_zCDP_to_approxDP(space >> dp.m.then_gaussian(scale)), delta
        )

    return make(dp.binary_search_param(make, d_in=1, d_out=(epsilon, delta)))


def _laplace(dp: Any, size: int, epsilon: float) -> Any:
    space = dp.vector_domain(dp.atom_domain(T="i64"), size), dp.l1_distance(T="i64")
    return dp.binary_search_chain(
        lambda scale: space >> dp.m.then_laplace(scale), d_in=1, d_out=epsilon
    )


MECHANISMS: dict[str, Callable[[Any, int, float], Any]] = {GAUSSIAN: _gaussian, LAPLACE: _laplace}


def load() -> Any | None:
    """Return OpenDP, or None where it is not installed."""
    try:
        dp = importlib.import_module("opendp.prelude")
    except ImportError:
        return None
    dp.enable_features("contrib")
    return dp


def measure_cell(dp: Any | None, cell: Cell, rng: np.random.Generator, report: Report) -> None:
    """Add the errors of one setting to the report, and what is asked of them."""
    plan = plan_for(cell)
    errors = {"ours": ours(plan, cell, rng)}
    if dp is not None:
        errors |= {name: theirs(dp, name, cell) for name in MECHANISMS}
    for name, found in errors.items():
        best, median = 100 * float(found.min()), 100 * float(np.median(found))
        report.rates.append(
            Rate(f"{cell}, {plan.bytes_per_client:,} B", name, best, median, "points")
        )
        if name != "ours":
            ratio = float(errors["ours"].mean() / found.mean())
            report.goals.append(Goal(f"{cell}: ours / OpenDP {name}", ratio, CHANCE, at_most=True))
    what = plan.privacy.event.mechanism if plan.privacy else ""
    report.notes.append(f"{cell}: ours is a histogram with {what} noise")


def measure(cells: list[Cell], seed: int = 1) -> Report:
    """Run all cells."""
    dp, rng = load(), np.random.default_rng(seed)
    report = Report({"clients": f"{CLIENTS:,}", "columns": "the least and the median of campaigns"})
    for cell in cells:
        measure_cell(dp, cell, rng, report)
    if dp is None:
        report.notes.append(f"OpenDP is not installed: {EXTRA}")
    return report


@click.command("histograms")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few campaigns of few candidates: shows that it runs.")
def command(as_json: bool, quick: bool) -> None:
    """Compare the largest error of a private plan with plain histograms of OpenDP."""
    cells = [
        Cell(size, epsilon, 20 if quick else repeats)
        for size, repeats in CANDIDATES.items()
        if not quick or size == min(CANDIDATES)
        for epsilon in EPSILONS
    ]
    measure(cells).emit(as_json)
