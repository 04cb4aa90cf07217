"""Small tables to try the commands on, written by `fedtally sample`.

They are drawn from a seed, and have no real data. Words are made of syllables, and their
frequencies follow a power law, as the frequencies of real words, pages and places do. The list of
candidates for words is long, so a sketch counts them. The lists of candidates for codes are short.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
_SYLLABLES = tuple(map("".join, product("bdflmnrstv", "aeio")))


def _vocabulary(number: int) -> tuple[str, ...]:
    """Return the first `number` words of a fixed random order: first all words of two syllables."""
    rng = np.random.default_rng(7)
    words: list[str] = []
    for length in (2, 3):
        made = ["".join(parts) for parts in product(_SYLLABLES, repeat=length)]
        words += [made[place] for place in rng.permutation(len(made))]
    return tuple(words[:number])


WORDS = _vocabulary(40_000)  # from the most frequent word to the rarest
_CITIES = (
    (40.75, -73.95),
    (34.05, -118.25),
    (41.85, -87.65),
    (29.75, -95.35),
    (47.65, -122.35),
    (39.75, -105.05),
    (33.75, -84.45),
    (37.75, -122.35),
    (25.85, -80.25),
    (44.95, -93.25),
    (33.45, -112.05),
    (42.35, -71.05),
)
_CODES = (0, 17, 104, 230, 404, 418, 503, 599)
_DIAGNOSES = ("I10", "J06", "M54", "E11", "K21", "F32", "N39", "R51")
# Ranks of the words whose frequency changes on some day in `_searches`.
_RISING, _GONE, _BORN = 5, 9, 600
_HOSPITALS = {
    "north": 0.3,
    "west": 0.25,
    "harbour": 0.2,
    "hill": 0.15,
    "lake": 0.1,
}


class Sample(NamedTuple):
    """A file that `fedtally sample` writes.

    Attributes:
        name: the file's name.
        about: a description of the file's content.
        make: draws and returns the bytes of the file.
    """

    name: str
    about: str
    make: Callable[[np.random.Generator], bytes]


def _ranks(rng: np.random.Generator, number: int, size: int, exponent: float = 1.1) -> I64:
    """Return `size` ranks from 0 to number - 1: int64 [size].

    Each is drawn independently. The probability of a rank is proportional to (rank + 1)^-exponent.
    """
    law = np.arange(1, number + 1) ** -exponent
    return rng.choice(number, size, p=law / law.sum())


def _lines(values: list[str]) -> bytes:
    return "".join(f"{value}\n" for value in values).encode()


def _words(rng: np.random.Generator) -> bytes:
    return _lines([WORDS[rank] for rank in _ranks(rng, len(WORDS), 20_000)])


def _words_zipped(rng: np.random.Generator) -> bytes:
    # mtime=0: otherwise the same seed would give other bytes at another time
    return gzip.compress(_words(rng), mtime=0)


def _dictionary(_: np.random.Generator) -> bytes:
    return _lines(list(WORDS))


def _visits(rng: np.random.Generator) -> bytes:
    users = np.repeat(np.arange(20_000), rng.integers(1, 4, 20_000))
    pages = _ranks(rng, len(WORDS), len(users))
    rows = [f"u{user},/{WORDS[page]}" for user, page in zip(users, pages, strict=True)]
    return _lines(["user,url", *rows])


def _searches(rng: np.random.Generator) -> bytes:
    law = np.arange(1, 4001) ** -1.1
    law[_BORN] = 0.0
    rows = []
    for day in range(1, 25):
        if day == 13:
            law[_GONE] = 0.0
        if day == 17:
            law[_RISING] *= 3.0
        if day == 20:
            law[_BORN] = 0.01 * law.sum()
        ranks = rng.choice(len(law), 1000, p=law / law.sum())
        rows += [f"2026-11-{day:02d},{WORDS[rank]}" for rank in ranks]
    return _lines(["day,word", *rows])


def _devices(rng: np.random.Generator) -> bytes:
    devices = np.repeat(np.arange(900), rng.integers(1, 4, 900))
    errors = _ranks(rng, len(_CODES), len(devices), 1.5)
    rows = zip(devices.tolist(), errors.tolist(), strict=True)
    return _lines([json.dumps({"device": d, "code": f"E{_CODES[code]}"}) for d, code in rows])


def _codes(rng: np.random.Generator) -> bytes:
    drawn = _ranks(rng, len(_CODES), 2000, 1.5)
    return gzip.compress(_lines([str(_CODES[code]) for code in drawn]), mtime=0)


def _places(rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
    centres = np.array(_CITIES)[_ranks(rng, len(_CITIES), size)]
    return centres + rng.normal(scale=0.15, size=(size, 2))


def _checkins(rng: np.random.Generator) -> bytes:
    rows = [f"{lat:.4f}\t{lon:.4f}" for lat, lon in _places(rng, 20_000)]
    return _lines(["lat\tlon", *rows])


def _counted_checkins(rng: np.random.Generator) -> bytes:
    places, counts = _places(rng, 500), rng.integers(1, 2000, 500)
    rows = [
        f"{lat:.4f},{lon:.4f},{count}" for (lat, lon), count in zip(places, counts, strict=True)
    ]
    return _lines(["lat,lon,count", *rows])


def _counts(_: np.random.Generator) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    counts = (20_000 / np.arange(1, len(WORDS) + 1) ** 1.1).astype(np.int64)
    held = counts > 0
    table, file = pa.table({"word": np.array(WORDS)[held], "n": counts[held]}), io.BytesIO()
    pyarrow.parquet.write_table(table, file)
    return file.getvalue()


def _diagnosed(rng: np.random.Generator) -> bytes:
    hospitals = rng.choice(list(_HOSPITALS), 1500, p=list(_HOSPITALS.values()))
    diagnoses = _ranks(rng, len(_DIAGNOSES), len(hospitals))
    rows = [
        f"p{patient},{hospital},{_DIAGNOSES[code]}"
        for patient, (hospital, code) in enumerate(zip(hospitals, diagnoses, strict=True))
    ]
    return _lines(["patient,hospital,code", *rows])


def _diagnoses(_: np.random.Generator) -> bytes:
    return _lines(list(_DIAGNOSES))


SAMPLES = (
    Sample("visits.csv", "pages that 20,000 users opened: user, url", _visits),
    Sample("searches.csv", "1,000 searches on each of 24 days: day, word", _searches),
    Sample("words.txt", "20,000 words, one a line", _words),
    Sample("words.txt.gz", "20,000 more words", _words_zipped),
    Sample("dictionary.txt", "40,000 words that may occur: candidates", _dictionary),
    Sample("counts.parquet", "words and how many clients hold them: word, n", _counts),
    Sample("devices.jsonl", "error codes of 900 devices: device, code", _devices),
    Sample(
        "diagnosed.csv", "1,500 patients of five hospitals: patient, hospital, code", _diagnosed
    ),
    Sample("diagnoses.txt", "all codes of diagnoses that may occur: candidates", _diagnoses),
    Sample("log.gz", "2,000 status codes from 0 to 599: few, so a histogram is best", _codes),
    Sample("checkins.tsv", "20,000 places in the United States: lat, lon", _checkins),
    Sample("checkins.csv", "500 places with counts: lat, lon, count", _counted_checkins),
)


def sample(seed: int = 0) -> dict[str, bytes]:
    """Return the bytes of all sample files by their names.

    In one installation, the same seed gives the same bytes.

    >>> sorted(sample())[:3]
    ['checkins.csv', 'checkins.tsv', 'counts.parquet']
    >>> sample(1)["words.txt"] == sample(2)["words.txt"]
    False
    """
    # Each file has its own random generator, so that a new file does not change the others.
    return {name: make(np.random.default_rng([seed, *name.encode()])) for name, _, make in SAMPLES}
