"""Campaigns of six silos of unequal sizes and tastes: errors, and how many limits hold by band.

A round has few silos and many people, so that nothing averages out between the silos. Each repeat
draws people, hashes and noise anew, and runs the local engine, as `fedtally estimate --silo` does:

- zipf: each silo weighs a Zipf law's items by tastes of its own;
- places: cells of Brightkite's map, a band of longitudes for each silo;
- births: first names in the US, a decade for each silo.

One round has all people; of three natural rounds, as months would be, each silo fills each with
other people and other tastes. Limits are pointwise, of 95 %. The share that holds is a mean over
repeats, with its standard error; a share fails if it and four standard errors stay below 93 %.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

import fedtally
from experiments import options, output

F64 = npt.NDArray[np.float64]
PEOPLE = (4000, 900, 2500, 3100, 1200, 2000)
BANDS = {"1 to 10": slice(0, 10), "11 to 100": slice(10, 100), "others": slice(100, None)}
LEAST, ERRORS = 0.93, 4.0  # of the limits that hold, and standard errors that are allowed for
POPULATIONS = ("zipf", "places", "births")
_EPSILONS = (None, 4.0, 1.0)


class Found(NamedTuple):
    """A repeat: the largest error of a frequency, and the share of the limits that hold by band."""

    linf: float
    held: Sequence[float]


def laws(name: str, data: Path | None) -> F64:
    """Return what the people of each silo hold: [silos, items], each line adding up to 1.

    Raises:
        MissingDataError: there is no folder of the tables that the population is made of.
    """
    number = len(PEOPLE)
    if name == "zipf":
        rng = np.random.default_rng(22)
        found = rng.gamma(2.0, 0.5, (number, 2000)) / np.arange(1, 2001) ** 1.1
    elif name == "places":
        cells = np.load(output.data_folder(data) / "brightkite_us_grid.npz")["counts"]
        # as many check-ins in each band of longitudes, about
        bands = np.searchsorted(np.cumsum(cells.sum(axis=1)) / cells.sum(), np.arange(1, 6) / 6)
        lines = np.arange(len(cells))
        own = [(np.searchsorted(bands, lines) == silo)[:, None] * cells for silo in range(number)]
        found = np.stack([part.reshape(-1) for part in own]).astype(np.float64)
    else:
        found = _births(output.data_folder(data) / "us_baby_names.parquet", number)
    shares: F64 = found / found.sum(axis=1, keepdims=True)
    return shares


def _births(path: Path, number: int) -> F64:
    """Return the births of each name in the last decades."""
    from pyarrow import parquet

    table = parquet.read_table(path)
    names, place = np.unique(table["name"].to_numpy(), return_inverse=True)
    decades = table["year"].to_numpy() // 10
    counts = np.zeros((number, len(names)))
    for silo, decade in enumerate(np.unique(decades)[-number:]):
        own = decades == decade
        np.add.at(counts[silo], place[own], table["count"].to_numpy()[own])
    return counts


def draw(shares: F64, num_rounds: int, rng: np.random.Generator) -> Iterator[tuple[Any, int, int]]:
    """Yield the items of the people of each silo in each round, with both numbers."""
    for silo, (people, law) in enumerate(zip(PEOPLE, shares, strict=True)):
        parts = rng.dirichlet(np.full(num_rounds, 2.0))
        for round, number in enumerate(rng.multinomial(people, parts).tolist()):
            tastes = law if num_rounds == 1 else law * rng.gamma(2.0, 0.5, len(law))
            yield rng.choice(len(law), number, p=tastes / tastes.sum()) + 1, silo, round


def repeat(shares: F64, num_rounds: int, epsilon: float | None, seed: Sequence[int]) -> Found:
    """Run one campaign on people who are drawn anew."""
    rng = np.random.default_rng(seed)
    parts = list(draw(shares, num_rounds, rng))
    items = np.concatenate([ids for ids, _, _ in parts])
    silos, rounds = (
        np.repeat([part[i] for part in parts], [len(part[0]) for part in parts]) for i in (1, 2)
    )
    asked: dict[str, Any] = {"rounds": rounds} if num_rounds > 1 else {}
    if epsilon is not None:
        asked |= {"epsilon": epsilon, "not_private": True, "people": max(PEOPLE)}
        asked |= {"trust": "distributed"}
    size = shares.shape[1]
    result = fedtally.estimate(
        items,
        clients=np.arange(len(items)),
        silos=silos,
        domain=f"range:1..{size}",
        rows=7,
        width=400,
        recovery="joint",
        intervals="pointwise",
        seed=rng.bytes(16),
        **asked,
    )
    truth = np.bincount(items, minlength=size + 1)[1:] / len(items)
    limits = result.limits()
    assert limits is not None
    slack = 1e-12  # of exact sums: limits of no width are compared in floating point
    holds = (limits.low <= truth + slack) & (truth - slack <= limits.high)
    ranked = holds[np.argsort(-truth, kind="stable")]
    linf = float(np.abs(result.frequencies() - truth).max())
    return Found(linf, [float(ranked[band].mean()) for band in BANDS.values()])


@click.command("silos")
@click.option("--population", type=click.Choice(["all", *POPULATIONS]), default="all")
@click.option("--repeats", type=click.IntRange(2), default=6)
@options.data("Folder of the real tables. [default: FEDTALLY_DATA or ../shared/data]")
@options.seed
@options.quick(repeats=2, population="zipf")
def command(population: str, repeats: int, data: Path | None, seed: int) -> None:
    """Run campaigns of six silos: the largest error, and the share of the limits that hold."""
    rows, missed = [], False
    for name in POPULATIONS if population == "all" else (population,):
        shares = laws(name, data)
        for num_rounds in (1, 3):
            for epsilon in _EPSILONS:
                found = [
                    repeat(shares, num_rounds, epsilon, [seed, number]) for number in range(repeats)
                ]
                held = np.array([each.held for each in found])
                error = held.std(axis=0, ddof=1) / math.sqrt(repeats)
                missed |= bool((held.mean(axis=0) + ERRORS * error < LEAST).any())
                rows.append(
                    {
                        "people": name,
                        "items": shares.shape[1],
                        "rounds": num_rounds,
                        "epsilon": "none" if epsilon is None else epsilon,
                        "largest error, points": 100 * float(np.median([f.linf for f in found])),
                        **{
                            f"held, {band}": f"{100 * mean:.1f} +- {100 * deviation:.1f} %"
                            for band, mean, deviation in zip(
                                BANDS, held.mean(axis=0), error, strict=True
                            )
                        },
                    }
                )
    output.show(rows)
    if missed:
        click.echo(f"less than {100 * LEAST:g} % of the limits of a band hold")
        sys.exit(1)
