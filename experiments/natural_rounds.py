"""Real rounds that are not alike, and the same clients arranged otherwise.

Every client of a table takes part in the round of its hour, month or decade, so that rounds differ
in size and in what they hold. The clients are arranged in three ways, all with the same total of
every item:

- as they came;
- dealt: each client to a random round, in proportion to the rounds' sizes, which makes all rounds
  alike;
- apart: each item to one round alone, which makes them as unlike as can be.

The rounds ``drift`` are synthetic, for runs without the tables: i^-1.1, each item's share of a
round times a Gamma variable of mean 1 and standard deviation 1.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from experiments import output, rounds, theory
from fedtally.errors import UnreadableFileError
from fedtally.sources.synthetic import frequencies

TABLES = {
    "hour": ("brightkite_us_hourly.npz", "Brightkite by hour"),
    "month": ("brightkite_us_hourly.npz", "Brightkite by month"),
    "decade": ("us_baby_names.parquet", "US baby names by decade"),
    "drift": (None, "synthetic drift"),
}
CELLS = 512 * 512
ARRANGEMENTS = ("dealt", "as they came", "apart")


@functools.cache
def load(name: str, folder: Path) -> rounds.I64:
    """Return how many clients of each round hold each item: int64 [M, d].

    Raises:
        InvalidInputError: the table is not in the folder.
        UnreadableFileError: it is damaged, or another table.
    """
    file = TABLES[name][0]
    if file is None:
        return _drift()
    path = folder / file
    if not path.is_file():
        raise output.MissingDataError(
            f"{path} does not exist: name the folder of {file} with --data, or take --table drift"
        )
    try:
        return _decades(path) if name == "decade" else _periods(path, name)
    except output.DAMAGED as error:
        reason = " ".join(str(error).split())
        raise UnreadableFileError(
            f"{path} cannot be read as a table of rounds: {reason}; get it again"
        ) from error


def _periods(path: Path, name: str) -> rounds.I64:
    with path.open("rb") as file, np.load(file) as arrays:
        index, cell, count = (arrays[key] for key in (name, f"{name}_cell", f"{name}_count"))
    return _dense(index, cell, count, CELLS)


def _decades(path: Path) -> rounds.I64:
    from pyarrow import parquet

    table = parquet.read_table(path, columns=["name", "year", "count"])
    names = table["name"].combine_chunks().dictionary_encode()
    decades = table["year"].to_numpy().astype(np.int64) // 10
    return _dense(
        decades - decades.min(),
        names.indices.to_numpy(),
        table["count"].to_numpy(),
        len(names.dictionary),
    )


def _dense(index: Any, item: Any, count: Any, size: int) -> rounds.I64:
    """Return counts as int64 [rounds, size]; sums below 2^53, so that they are exact."""
    shape = (int(index.max()) + 1, size)
    flat = np.bincount(index.astype(np.int64) * size + item, count, shape[0] * size)
    return flat.astype(np.int64).reshape(shape)


def _drift(size: int = 2000, num_rounds: int = 8, clients: int = 10_000) -> rounds.I64:
    rng = np.random.default_rng(0)
    laws = frequencies(f"zipf:a=1.1,d={size}") * rng.gamma(1.0, size=(num_rounds, size))
    return np.concatenate([rounds.draw(own, clients, 1, rng) for own in laws])


def digest(held: rounds.I64) -> str:
    """Return what tells tables apart: 12 hexadecimal digits."""
    return hashlib.sha256(repr(held.shape).encode() + held.tobytes()).hexdigest()[:12]


def arrange(held: rounds.I64, arrangement: str, rng: np.random.Generator) -> rounds.I64:
    """Return the clients as they came, dealt over rounds, or items apart: int64 [M, d].

    The total of each item is the same.

    >>> held = np.array([[3, 0, 1], [1, 4, 0]])
    >>> arrange(held, "apart", np.random.default_rng(0)).max(axis=0).tolist()
    [4, 4, 1]
    """
    if arrangement == "as they came":
        return held
    shares, totals = held.sum(axis=1) / held.sum(), held.sum(axis=0)
    if arrangement == "dealt":
        return np.ascontiguousarray(rng.multinomial(totals, shares).T)
    own = rng.choice(len(held), size=len(totals), p=shares)
    found: rounds.I64 = totals * (own == np.arange(len(held))[:, None])
    return found


def predicted(held: rounds.I64, width: int) -> float:
    """Return ||F tail|| / ||f tail||: the bound of hybrid over that of shared rounds of this width.

    >>> predicted(np.array([[5, 5, 1], [5, 5, 1], [5, 5, 1], [5, 5, 1]]), 1)
    0.5
    """
    sizes = held.sum(axis=1)
    vector = theory.heterogeneity(held / np.maximum(sizes, 1)[:, None], sizes)
    return theory.tail_norm(vector, width) / theory.tail_norm(held.sum(axis=0) / sizes.sum(), width)
