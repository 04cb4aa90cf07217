"""The paper's populations: the law of the official file, or of its stand-in.

Of each, in the data folder, the first that is there:

- NAME_official.npz, which ``python -m experiments official FILE --cache FOLDER`` makes of the
  official file;
- the official file as it is downloaded, read by `experiments.official`;
- the stand-in, a table of `experiments.recovery`, which is called a stand-in wherever
  `Population.title` is shown.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import NamedTuple

from experiments import official, output, recovery, rounds
from fedtally.errors import InvalidInputError

NAMES = ("gowalla", "brightkite", "c4", "sentiment140")
_TITLES = {
    "gowalla": "Gowalla",
    "brightkite": "Brightkite",
    "c4": "C4",
    "sentiment140": "Sentiment-140",
}
_STAND_INS = {
    "gowalla": "stand-in: reconstructed grid",
    "brightkite": "real check-ins, stand-in for Gowalla",
    "c4": "stand-in: lognormal surrogate",
    "sentiment140": "stand-in: all words of all tweets",
}
_CLIENTS = {"gowalla": 17_500, "brightkite": 17_500, "c4": 15_000, "sentiment140": 65_949}
_ROWS = {"gowalla": 16, "brightkite": 16, "c4": 5, "sentiment140": 16}


class Population(NamedTuple):
    """The population of one of the paper's experiments, and the experiment's numbers.

    Attributes:
        name: of `NAMES`.
        title: what tables and plots call it; says so where it is a stand-in.
        law: float64 [d], read-only, sums to 1: the share of every candidate of the paper's domain.
            Gowalla and Brightkite: 175,000 cells of a grid over the US; C4: the number of documents
            of a web domain, 1 to d; Sentiment-140: words.
        num_clients: n, of one of the paper's rounds; a campaign has ten of them.
        rows: L, the paper's length of the sketch.
        official: made of the official file.
    """

    name: str
    title: str
    law: rounds.F64
    num_clients: int
    rows: int
    official: bool


def load(name: str, folder: Path | None = None) -> Population:
    """Return a population of the paper (Brightkite has the numbers of Gowalla's experiment).

    Args:
        name: of `NAMES`.
        folder: the data folder; None: `output.data_folder`. What was found there is kept while the
            process runs.

    Raises:
        InvalidInputError: the name is unknown, or neither the official file nor the stand-in is in
            the folder.
        UnreadableFileError: the official file is damaged.
    """
    if name not in NAMES:
        raise InvalidInputError(f"the population must be one of {', '.join(NAMES)}, got {name!r}")
    return _load(name, output.data_folder(folder))


@functools.cache
def _load(name: str, where: Path) -> Population:
    stand_in = recovery.TABLES[name][0]
    title, is_official = _TITLES[name], True
    if found := _official(name, where):
        law = found.weights / found.weights.sum()
        title += f" ({found.note})" if found.note else ""
    elif (where / stand_in).is_file():
        law, is_official = recovery.load_table(name, where), False
        title += f" ({_STAND_INS[name]})"
    else:
        files = " or ".join(official.names(name))
        raise output.MissingDataError(
            f"{where} has neither the official file of {title} ({files}) nor its stand-in"
            f" ({stand_in}): name the folder of one of them with --data"
        )
    law.setflags(write=False)
    return Population(name, title, law, _CLIENTS[name], _ROWS[name], is_official)


def _official(name: str, folder: Path) -> official.Official | None:
    """Return what the official file holds; None without one."""
    if (cache := folder / official.cache_file(name)).is_file():
        return official.load(cache)
    found = official.find(name, folder)
    return official.read(*found) if found else None


def digest(law: rounds.F64) -> str:
    """Return what tells a law from others in the `repr` of a task: 12 hexadecimal digits.

    >>> import numpy as np
    >>> digest(np.array([0.5, 0.5])), digest(np.array([0.25, 0.75]))
    ('606e5166986d', 'a084810e7c2a')
    """
    return hashlib.sha256(law.astype("<f8").tobytes()).hexdigest()[:12]
