"""Strings that nobody has the list of: words of tweets, and made-up URLs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import output
from fedtally.sources.synthetic import frequencies

LONGEST = 64  # bytes of a string
_SYLLABLES = (
    *("ra", "lo", "mi", "ten", "sha", "ko", "ver", "du"),
    *("pal", "es", "nor", "ti", "gu", "ben", "cal", "ix"),
)
_HOSTS, _FOLDERS = 20_000, 2_000
_TABLE, _PROFILE = "sentiment140_words.parquet", "profile:sentiment140-words"


class Strings(NamedTuple):
    """A population.

    Attributes:
        title: what tables call it; says so where it is a stand-in.
        items: a column of different strings, Arrow's large_string [n], each of at most 64 bytes.
        law: float64 [n], the share of each, in falling order; sums to 1.
    """

    title: str
    items: Any
    law: np.ndarray[Any, np.dtype[np.float64]]


@functools.cache
def load(name: str, size: int, data: Path | None = None) -> Strings:
    """Return a population.

    Args:
        name: words or urls.
        size: the number of different strings, of which words have at most 264,939.
        data: the folder of the real tables; where the words are not there, made-up ones stand in,
            with the shares of the real ones.
    """
    return words(size, data) if name == "words" else urls(size)


def words(size: int, data: Path | None) -> Strings:
    """Return the most frequent words of Sentiment-140, or their stand-in."""
    import pyarrow as pa
    from pyarrow import parquet

    path = output.data_folder(data) / _TABLE
    if not path.is_file():
        law = frequencies(_PROFILE)[:size]
        stand_in = pa.array(_made_up(len(law)), pa.large_string())
        return Strings("words (stand-in: syllables)", stand_in, _shares(law))
    table = parquet.read_table(path)
    items, counts = table["word"].to_pylist(), table["count"].to_numpy()
    short = np.array([len(item.encode()) <= LONGEST for item in items])
    order = np.argsort(-counts, kind="stable")
    order = order[short[order]][:size]
    column = pa.array([items[place] for place in order.tolist()], pa.large_string())
    return Strings("words (Sentiment-140)", column, _shares(counts[order]))


def urls(size: int) -> Strings:
    """Return URLs of at most 64 bytes by a Zipf law of exponent 1.1.

    Few hosts have most pages, and pages share the folders of their host, and of all hosts.
    """
    import pyarrow as pa

    rng = np.random.default_rng(1)
    endings = np.array([".com/", ".org/", ".net/", ".co.uk/"])
    hosts = [
        f"https://{'www.' if rng.random() < 0.7 else ''}{_word(3, rng)}{number % 97}"
        f"{endings[rng.integers(4)]}"
        for number in range(_HOSTS)
    ]
    folders = [f"{_word(int(rng.integers(2, 5)), rng)}/" for _ in range(_FOLDERS)]
    popularity = 1.0 / np.arange(1, _HOSTS + 1)
    host = rng.choice(_HOSTS, size, p=popularity / popularity.sum())
    first = (host * 7 + rng.integers(0, 40, size)) % _FOLDERS
    second = rng.integers(0, _FOLDERS, size)
    found = []
    for number in range(size):
        folder = folders[first[number]] + (folders[second[number]] if number % 3 else "")
        end = f"p{number:x}.html"  # tells all pages apart
        found.append((hosts[host[number]] + folder)[: LONGEST - len(end)] + end)
    law = np.arange(1, size + 1) ** -1.1
    return Strings("URLs (made up)", pa.array(found, pa.large_string()), _shares(law))


def _made_up(size: int) -> list[str]:
    """Return different words of one to five syllables; the frequent ones are the short ones."""
    base, found = len(_SYLLABLES), []
    for number in range(size):
        digits, left = "", number
        while True:
            digits += _SYLLABLES[left % base]
            left = left // base - 1
            if left < 0:
                break
        found.append(digits)
    return found


def _word(syllables: int, rng: np.random.Generator) -> str:
    return "".join(_SYLLABLES[place] for place in rng.integers(0, len(_SYLLABLES), syllables))


def _shares(weights: Any) -> Any:
    shares = np.asarray(weights, np.float64)
    return shares / shares.sum()
