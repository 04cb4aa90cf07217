"""How many intervals of a printed list hold, and how wide they are, for the 20 largest.

A list is chosen by its estimates, so that limits of items named beforehand fail in it. Compared
are, on the same sums:

- pointwise: limits of items named beforehand;
- list: what a result prints by default: given that an estimate reached the list, and bounded as
  `by` would be;

and where joint recovery answered

- simultaneous: of all candidates at once;
- by: each at the level 1 - (1 - P) R / d, for R listed ones of d candidates (Benjamini and
  Yekutieli 2005).

Each cell is one table, decoder, number of rounds and epsilon; each of its repeats draws clients,
items' ids, hashes and noise anew, and counts which printed intervals hold the frequency among the
clients that took part. The share is the mean over lists. Widths are means over all intervals of a
cell, and compared with those of the pointwise ones.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

import fedtally
from experiments import coverage, options, output
from experiments.coverage import Scale, in_turn
from experiments.recovery import law
from fedtally.answer.estimates import Estimate, clip_limits
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.recovery.decoders.joint.joint_intervals import JointIntervals, Kappa
from fedtally.recovery.intervals import Limits

F64 = npt.NDArray[np.float64]
KINDS = ("pointwise", "simultaneous", "by", "list")
CONFIDENCE = 0.95
LEAST = 0.93
_EXACT = 0.01  # clients: widths below it leave nothing to compare


class Table(NamedTuple):
    """What clients are drawn from: how many, and how many bytes each may send."""

    shares: Callable[[Path | None], F64]
    clients: int
    max_bytes: int


def levels(*numbers_and_weights: tuple[int, float]) -> F64:
    """Return shares of so many items of each weight.

    >>> levels((1, 2.0), (2, 1.0)).tolist()
    [0.5, 0.25, 0.25]
    """
    weights = np.concatenate([np.full(number, weight) for number, weight in numbers_and_weights])
    shares: F64 = weights / weights.sum()
    return shares


def real(name: str) -> Callable[[Path | None], F64]:
    """Return what reads the shares of a real table from the folder of `coverage`."""

    def read(data: Path | None) -> F64:
        counts = coverage.population(name, Scale(data=data))[0][0]
        shares: F64 = counts / counts.sum()
        return shares

    return read


TABLES = {
    "readme": Table(lambda _: law("1.1", 1000), 500, 8000),  # the private example of README.md
    "heavy tail": Table(lambda _: law("zm", 20_000), 20_000, 4000),
    "steep": Table(lambda _: law("2", 5000), 20_000, 200),
    "uniform": Table(lambda _: levels((1000, 1.0)), 5000, 1000),
    "plateaus": Table(lambda _: levels((5, 500.0), (50, 50.0), (1000, 2.0)), 20_000, 2000),
    "wide plateau": Table(lambda _: levels((100, 10.0), (5000, 1.0)), 50_000, 4000),
}
REAL = {
    "brightkite": Table(real("brightkite"), 175_000, 4000),
    "c4": Table(real("c4"), 150_000, 1000),
    "sentiment140": Table(real("sentiment140"), 200_000, 4000),
}


class Case(NamedTuple):
    """One cell of the experiment; epsilon 0: no noise."""

    table: str
    recovery: str
    num_rounds: int
    epsilon: float


class List(NamedTuple):
    """One printed list, by kind of interval: float64 [kinds] each, nan for a missing kind.

    Attributes:
        items: how many were printed.
        held: share of the intervals that hold.
        width: their mean width, in clients.
        distinct: share of the items that are told from 0.
    """

    items: int
    held: F64
    width: F64
    distinct: F64


def read_counts(path: Path) -> F64:
    """Return the shares of a text file of counts, one a line.

    Raises:
        UnreadableFileError: it cannot be read, or holds something else.
        InvalidInputError: it has no count above 0.
    """
    try:
        counts = np.array(path.read_text(encoding="utf-8").split(), np.float64)
    except OSError as error:
        raise UnreadableFileError(
            f"cannot read the counts {path}: {error.strerror}; name a text file"
        ) from error
    except ValueError as error:
        raise UnreadableFileError(f"{path} holds no counts, one a line: {error}") from error
    if not np.isfinite(counts).all() or (counts < 0).any() or not counts.any():
        raise InvalidInputError(f"{path} must hold counts, one a line, at least 0 and one above it")
    shares: F64 = counts / counts.sum()
    return shares


def measure(case: Case, tables: dict[str, Table], data: Path | None, k: int, seed: int) -> List:
    """Run one campaign and look at the k largest estimates, as `Result.top` lists them."""
    table = tables[case.table]
    rng = np.random.default_rng([seed, *map(ord, repr(case))])
    shares = table.shares(data)
    size = len(shares)
    counts = np.zeros(size, np.int64)
    counts[rng.permutation(size)] = rng.multinomial(table.clients, shares)
    result = fedtally.estimate(
        np.repeat(np.arange(size), counts),
        domain=IntegerRange(0, size),
        max_bytes=table.max_bytes,
        num_rounds=case.num_rounds,
        recovery=case.recovery,
        epsilon=case.epsilon or None,
        not_private=case.epsilon > 0,
        confidence=CONFIDENCE,
        seed=rng.bytes(32),
    )
    top = result.top(k)
    truth = counts[[int(e.item) for e in top]] / result.num_clients
    ids = np.array([int(e.item) for e in top], np.uint64)
    limits: dict[str, Limits] = {}
    if top:
        limits["pointwise"] = ends(result.estimates([e.item for e in top]))
        limits["list"] = ends(top)
    if top and isinstance(result.intervals, JointIntervals):
        limits |= of_the_fit(result, result.intervals, ids)
    columns = [
        _of(limits[kind], truth, result.num_clients) if kind in limits else (np.nan,) * 3
        for kind in KINDS
    ]
    return List(len(top), *np.array(columns).T)


def ends(estimates: Sequence[Estimate]) -> Limits:
    """Return the limits of estimates."""
    return Limits(np.array([e.low for e in estimates]), np.array([e.high for e in estimates]))


def of_the_fit(
    result: fedtally.Result, made: JointIntervals, ids: npt.NDArray[np.uint64]
) -> dict[str, Limits]:
    """Return the other kinds of limits of a list's items, under joint recovery."""
    fit, kappa = made.fit, Kappa(made.kappa, "as measured for the list")
    size = result.domain.size
    level = 1.0 - (1.0 - CONFIDENCE) * len(ids) / size
    return {
        "simultaneous": clip_limits(
            JointIntervals(fit, CONFIDENCE, size, kappa, "simultaneous").at(ids)
        ),
        "by": clip_limits(JointIntervals(fit, level, size, kappa).at(ids)),
    }


def _of(limits: Limits, truth: F64, clients: int) -> tuple[float, float, float]:
    """Return share of limits that hold, to 1e-6 of a client; mean width; share of those above 0."""
    slack = 1e-6 / clients
    held = (limits.low - slack <= truth) & (truth <= limits.high + slack)
    return (
        float(held.mean()),
        float((limits.high - limits.low).mean() * clients),
        float((limits.low > 0).mean()),
    )


def repeated(
    case: Case, tables: dict[str, Table], data: Path | None, k: int, seed: int, repeats: int
) -> list[List]:
    """Run the campaigns of one cell."""
    return [measure(case, tables, data, k, seed + repeat) for repeat in range(repeats)]


def line(what: dict[str, object], lists: Sequence[List]) -> dict[str, object]:
    """Return one row of the table: means over lists that have items."""
    some = [one for one in lists if one.items]
    row = dict(what) | {"items": sum(one.items for one in some)}
    if not some:
        return row | dict.fromkeys(
            [*KINDS, *(f"{kind} width" for kind in KINDS[1:]), "distinct"], "-"
        )
    held, width = (np.array([getattr(one, name) for one in some]) for name in ("held", "width"))
    for column, kind in enumerate(KINDS):
        row[kind] = _mean(held[:, column])
    for column, kind in enumerate(KINDS[1:], start=1):
        there = ~np.isnan(width[:, column]) & (width[:, 0] > _EXACT)
        row[f"{kind} width"] = (
            float(width[there, column].sum() / width[there, 0].sum()) if there.any() else "-"
        )
    return row | {"distinct": float(np.mean([one.distinct[-1] for one in some]))}


def _mean(values: F64) -> float | str:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else "-"


@click.command("lists")
@options.quick(names=("readme",), recoveries=("joint",), rounds=(1,), epsilons=(2.0,), repeats=2)
@click.option(
    "--table",
    "names",
    multiple=True,
    help=f"Of {', '.join(TABLES)}, and with --data {', '.join(REAL)}.",
)
@click.option(
    "--counts",
    type=click.Path(path_type=Path),
    help="Measure this table instead: counts, one a line.",
)
@options.clients(50_000, help="Drawn from the table of --counts.")
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    default=4000,
    help="Of a client, for the table of --counts.",
)
@click.option("--recovery", "recoveries", multiple=True, type=click.Choice(["joint", "median"]))
@click.option("--rounds", multiple=True, type=click.IntRange(1), default=(1, 10))
@click.option(
    "--epsilon",
    "epsilons",
    multiple=True,
    type=click.FloatRange(0.0),
    default=(0.0, 2.0),
    help="0: none.",
)
@click.option("--top", "k", type=click.IntRange(1), default=20, help="Items of a list.")
@options.data()
@options.repeats(20, help="Lists of each cell.")
@options.seed
@options.jobs
@options.table
def command(
    names: tuple[str, ...],
    counts: Path | None,
    clients: int,
    max_bytes: int,
    recoveries: tuple[str, ...],
    rounds: tuple[int, ...],
    epsilons: tuple[float, ...],
    k: int,
    data: Path | None,
    repeats: int,
    seed: int,
    jobs: int,
    path: Path | None,
) -> None:
    """Count how many intervals of a printed list hold; fail where fewer than .93 do."""
    output.check_path(path)
    known = TABLES | (REAL if data is not None else {})
    if counts is not None:
        shares = read_counts(counts)
        known = {counts.name: Table(functools.partial(_given, shares), clients, max_bytes)}
    if unknown := set(names) - set(known):
        raise InvalidInputError(f"--table must be one of {', '.join(known)}, got {unknown.pop()}")
    cases = [
        Case(name, recovery, number, epsilon)
        for name in names or known
        for recovery in recoveries or ("joint", "median")
        for number in rounds
        for epsilon in epsilons
    ]
    tables = {name: known[name] for name in names or known}
    work = functools.partial(repeated, tables=tables, data=data, k=k, seed=seed, repeats=repeats)
    found = dict(in_turn(cases, work, jobs))
    rows = [line(case._asdict(), lists) for case, lists in found.items()]
    output.show(rows)
    click.echo(
        "share of the printed intervals that hold the truth, by kind; mean width over that of"
        " pointwise ones; share of"
    )
    click.echo("the printed items that are told from 0\n")
    output.save(rows, path)
    sound = True
    for name in tables:
        lists = [one for case, each in found.items() if case.table == name for one in each]
        total = line({"table": name}, lists)
        held = total["list"]
        kept = not isinstance(held, float) or held >= LEAST
        sound &= kept
        said = ", ".join(f"{kind} {output.text(total[kind])}" for kind in KINDS)
        click.echo(
            f"{'PASS' if kept else 'MISS'}  {name}, at least {LEAST} of its printed intervals hold:"
            f" {said}"
        )
    if not sound:
        sys.exit(1)


def _given(shares: F64, _: Path | None) -> F64:
    return shares
