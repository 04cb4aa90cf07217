"""What a pilot and its campaign cost together, over the least, with a verdict.

Every cell is a table or a law of `promises`, a tau and an epsilon. Campaigns are what `fedtally
estimate --tau` makes of clients who are drawn anew: a pilot of some of them, and a plan for the
others. The cost is the mean upload of all clients. The least is that of the plan which is told the
frequencies (`--like`) and needs no pilot. A cell passes if the mean over its campaigns is at most
twice the least, and if no more campaigns exceed tau than the 99 % quantile of what the failure
probability of 10 % leads to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy.stats import binom

import fedtally
from experiments import coverage, options, output, promises, rounds
from fedtally.domain import IntegerRange
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.proposal import propose
from fedtally.plan.request import Request

MOST = 2.0


class Cell(NamedTuple):
    """A table or law, a target, epsilon, 0 for none, and the pilot's share, 0 for the usual one."""

    name: str
    tau: float
    epsilon: float
    share: float
    domain_size: int
    clients: int
    rounds: int
    repeats: int
    data: str


def measure(cell: Cell) -> dict[str, object]:
    """Return a row of the table."""
    known = promises.law(cell.name, cell.domain_size, Path(cell.data))
    domain = IntegerRange(rounds.FIRST_ID, len(known))
    asked: dict[str, Any] = {"num_rounds": cell.rounds, "tau": cell.tau}
    if cell.epsilon:
        asked |= {"epsilon": cell.epsilon, "delta": 1e-6}
    told = propose(
        Request(**asked).resolve(),
        domain,
        cell.clients,
        Frequencies.from_frequencies(known),
        seed=bytes(32),
    )
    least = told.plan.bytes_per_client
    costs, pilots, errors = [], [], []
    for repeat in range(cell.repeats):
        rng = np.random.default_rng((4, repeat))
        counts = rng.permutation(rng.multinomial(cell.clients, known))
        held = counts > 0
        result = fedtally.estimate(
            (rounds.FIRST_ID + np.arange(len(known)))[held],
            counts=counts[held],
            domain=domain,
            seed=repeat,
            confidence=0,
            evaluate=True,
            not_private=bool(cell.epsilon),
            pilot_share=cell.share or None,
            recovery="joint",  # which plans rest on
            **asked,
        )
        assert result.evaluation is not None
        pilot = (result.sizing or {}).get("pilot")
        sent = (cell.clients - pilot["num_clients"] if pilot else cell.clients) * (
            result.plan.bytes_per_client
        )
        pilots.append(pilot["num_clients"] * pilot["bytes_per_client"] if pilot else 0)
        costs.append((sent + pilots[-1]) / cell.clients)
        errors.append(result.evaluation.linf / cell.tau)
    exceeded = int((np.array(errors) > 1 + 1e-9).sum())
    allowed = int(binom.ppf(promises.LEVEL, cell.repeats, promises.P))
    ratio = float(np.mean(costs)) / least
    return {
        "law": cell.name,
        "tau": cell.tau,
        "epsilon": f"{cell.epsilon:g}" if cell.epsilon else "none",
        "share": f"{cell.share:g}" if cell.share else "usual",
        "least": least,
        "mean": float(np.mean(costs)),
        "pilot": float(np.mean(pilots)) / cell.clients,
        "ratio": ratio,
        "exceeded": exceeded,
        "of": cell.repeats,
        "verdict": "PASS" if ratio <= MOST and exceeded <= allowed else "MISS",
    }


@click.command("pilots")
@options.quick(laws=("plateaus",), taus=(0.01,), epsilons=(0.0,), clients=20_000, repeats=1)
@options.laws((*promises.TABLES, *promises.LAWS), help="A table, a law, or an exponent.")
@click.option("--tau", "taus", multiple=True, type=float, default=(0.002, 0.01))
@click.option(
    "--epsilon", "epsilons", multiple=True, type=float, default=(0.0, 0.5), help="0 for none."
)
@click.option(
    "--pilot-share",
    "shares",
    multiple=True,
    type=click.FloatRange(0, 1, max_open=True),
    default=(0.0,),
    help="Of the clients; 0 for the usual one.",
)
@options.domain_size(20_000, least=1100, help="Of laws that are no tables.")
@options.clients(200_000)
@click.option("--rounds", "num_rounds", type=click.IntRange(1), default=5)
@options.repeats(3)
@options.data("Folder of the real tables.")
@options.jobs
@options.table
def command(
    laws: tuple[str, ...],
    taus: tuple[float, ...],
    epsilons: tuple[float, ...],
    shares: tuple[float, ...],
    domain_size: int,
    clients: int,
    num_rounds: int,
    repeats: int,
    data: Path | None,
    jobs: int,
    path: Path | None,
) -> None:
    """Compare what pilots and campaigns cost with the least; exit code 1 if any is above twice."""
    output.check_path(path)
    where = str(output.data_folder(data))
    cells = [
        Cell(name, tau, epsilon, share, domain_size, clients, num_rounds, repeats, where)
        for epsilon in epsilons
        for share in shares
        for tau in taus
        for name in laws
    ]
    for name in laws:  # a table that is missing is said to be before the work starts
        promises.law(name, domain_size, Path(where))
    table = [row for _, row in coverage.in_turn(cells, measure, jobs)]
    output.show(table)
    output.save(table, path)
    if any(row["verdict"] == "MISS" for row in table):
        sys.exit(1)


if __name__ == "__main__":
    command()
