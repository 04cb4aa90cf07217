"""The paper's four families: how the width that meets tau grows, beside the slope that the paper states.

For every family, the width at taus over several decades, of 20 / tau clients each, for a domain of a million items: by
the paper's formula for known frequencies (`theory.width_oracle`), and by `fedtally.planner.calculus` for the same,
without margin, for the median and for joint recovery, of 15 rows each. The stated slope is the power of 1 / tau in the
corollary "Examples"; slopes are fitted on logarithmic axes by least squares, after the corollary's logarithm is divided
out. `off` is the difference. `spread` is the largest width over the corollary's growth, divided by the smallest: 1 if
they are in proportion.

The stated growth is that of tau to 0. At these taus zipf-log is still on its way: its N-th item has the frequency
c / (N log(N + 1)^b), and log(N) is not log(1/tau).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from experiments import output, rounds
from fedtally import planner, theory
from fedtally.errors import InvalidInputError
from fedtally.sources.synthetic import frequencies

CLIENTS = 20  # over tau
P = 0.1
END = 3  # smallest taus


class Member(NamedTuple):
    """A law of one of the families, or laws that depend on the number of clients.

    Attributes:
        family: as in `theory.width_growth`.
        exponent: of zipf and zipf-log.
        power: of 1 / tau in the corollary.
        logarithm: power of log(1 / tau).
    """

    family: theory.Family
    exponent: float | None
    power: float
    logarithm: float

    def law(self, clients: int, size: int) -> rounds.F64:
        """Return the frequencies: float64 [at most size].

        >>> MEMBERS["uniform"].law(40, 1000).tolist()
        [0.25, 0.25, 0.25, 0.25]
        """
        if self.family == "uniform":
            items = clients // 10
            if items > size:
                raise InvalidInputError(f"--domain-size must be at least {items}, a tenth of the clients, got {size}")
            return np.full(items, 1 / items)
        if self.family == "geometric":
            return frequencies(f"geometric:d={min(size, 100)}")
        name = "a" if self.family == "zipf" else "b"
        return frequencies(f"{self.family}:{name}={self.exponent},d={size}")


MEMBERS = {
    "geometric": Member("geometric", None, 0.0, 1.0),
    "zipf a=1.2": Member("zipf", 1.2, 1 / 1.2, 0.0),
    "zipf a=2": Member("zipf", 2.0, 1 / 2, 0.0),
    "zipf-log b=1.5": Member("zipf-log", 1.5, 1.0, -1.5),
    "zipf-log b=2": Member("zipf-log", 2.0, 1.0, -2.0),
    "uniform": Member("uniform", None, 1.0, 0.0),
}


def widths(member: Member, tau: float, rows: int, size: int) -> dict[str, int]:
    """Return the width that meets tau, by each method."""
    clients = round(CLIENTS / tau)
    known = member.law(clients, size)
    law = planner.Law.from_frequencies(known, size)
    found = {"oracle": theory.width_oracle(known, tau, num_clients=clients)}
    for recovery in ("median", "joint"):
        campaign = planner.Campaign(clients, recovery=recovery)
        found[recovery] = planner.calculus(law, tau, campaign, p=P, rows=rows, margin=1.0, risk=1.0).width
    return found


def slope(taus: rounds.F64, values: rounds.F64) -> float:
    """Return the slope of values over 1 / tau on logarithmic axes, by least squares.

    >>> taus = np.array([0.1, 0.01, 0.001])
    >>> round(slope(taus, 3 * taus**-0.5), 6)
    0.5
    """
    return float(np.polyfit(-np.log(taus), np.log(values), 1)[0])


def compare(name: str, taus: rounds.F64, rows: int, size: int) -> list[dict[str, object]]:
    """Return a row for each method."""
    member = MEMBERS[name]
    found = [widths(member, float(tau), rows, size) for tau in taus]
    growth = np.array([theory.width_growth(member.family, float(tau), member.exponent) for tau in taus])
    table: list[dict[str, object]] = []
    for method in found[0]:
        values = np.array([one[method] for one in found], dtype=np.float64)
        divided = values / np.log(1 / taus) ** member.logarithm
        fitted = slope(taus, divided)
        constants = values / growth
        row: dict[str, object] = {"family": name, "method": method, "first": int(values[0]), "last": int(values[-1])}
        row |= {"stated": member.power, "slope": fitted, "off": fitted - member.power}
        row["at the end"] = slope(taus[-END:], divided[-END:])
        row["spread"] = float(constants.max() / constants.min())
        table.append(row)
    return table


@click.command("families")
@click.option("--family", "families", multiple=True, type=click.Choice(list(MEMBERS)), help="[default: all]")
@click.option("--largest", default=1e-2, help="Largest tau.")
@click.option("--smallest", default=1e-5, help="Smallest tau.")
@click.option("--points", type=click.IntRange(2), default=7, help="Taus between them, in equal ratios.")
@click.option("--rows", type=click.IntRange(1), default=15)
@click.option("--domain-size", default=1_000_000)
@click.option("--output", "path", type=click.Path(path_type=Path), help="Also write the table: .csv or .parquet.")
def command(
    families: tuple[str, ...],
    largest: float,
    smallest: float,
    points: int,
    rows: int,
    domain_size: int,
    path: Path | None,
) -> None:
    """Fit the slope at which the width that meets tau grows, for the families of the paper's examples."""
    output.check_path(path)
    if not 0.0 < smallest < largest <= math.exp(-1):
        raise InvalidInputError(f"--smallest must be below --largest, at most 1/e, got {smallest} and {largest}")
    taus = np.geomspace(largest, smallest, points)
    table = [row for name in families or MEMBERS for row in compare(name, taus, rows, domain_size)]
    output.show(table)
    output.save(table, path)


if __name__ == "__main__":
    command()
