"""The official files of the paper's data sets, read as they are downloaded.

- Gowalla and Brightkite: check-ins, tab-separated, without header: user, time, latitude, longitude,
  location. An item is a cell: Gowalla 0.1 degree, latitude 25..50 and longitude -130..-60;
  Brightkite 350 x 500 pixels of a Web Mercator map of 2048 pixels, the cells of its stand-in. A
  client is a check-in in the grid, as in the paper.
- Sentiment-140: Latin-1, quoted, without header: target, id, date, query, user, text. An item is a
  word, see `official_rows.words`. A client is a user and holds one of the words of all tweets of
  this user, drawn uniformly, repetitions counted. The law is therefore the mean over users of the
  shares of words, and has no seed: every campaign that draws from it draws users and words anew.
- C4: shards of JSON lines with `url`, or a table of two columns, domain and count. A client is a
  web domain, the host and port of the address in lower case, and its item is its number of
  documents; d is the largest.

Broken rows are dropped and counted; see `experiments.official_rows`. A file that ends early, is
empty or does not unpack is refused: half a file is another population. Plain text does not show
that it ends early; a file whose number of rows is not the known one is read, and has that in its
title. Files are read line by line, gzip and zip recognised by their content.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import click
import numpy as np

from experiments import official_rows, output, rounds
from experiments.official_rows import Reader, Report
from fedtally.base import archive
from fedtally.cli.console import Progress
from fedtally.errors import InvalidInputError, UnreadableFileError

SCHEMA = "fedtally/official/1"
TWEETS = "training.1600000.processed.noemoticon.csv"
SHARDS = 1024
# of the whole file: by the paper, by the file's name
ROWS = {"gowalla": 6_442_892, "sentiment140": 1_600_000}
_LONGEST = 1 << 26  # bytes of a line; C4 has the longest


class Official(NamedTuple):
    """A population of the paper.

    Attributes:
        name: gowalla, brightkite, sentiment140 or c4.
        note: which part of the data set it is; empty for all of it.
        weights: float64 [d]: the (expected) number of clients that hold each item of the domain.
        report: what was read.
    """

    name: str
    note: str
    weights: rounds.F64
    report: Report


class Format(NamedTuple):
    """A format of official files.

    Attributes:
        name: of the population.
        patterns: the files' names.
        read: takes the lines and a report, returns the weights and completes the report.
        paper: what the paper says of the data set; keys as in the printed table.
    """

    name: str
    patterns: tuple[str, ...]
    read: Reader
    paper: Mapping[str, int]


FORMATS = {
    "gowalla": Format(
        "gowalla",
        ("loc-gowalla_totalCheckins.txt", "loc-gowalla_totalCheckins.txt.gz"),
        official_rows.checkins(official_rows.in_gowalla),
        {"rows": ROWS["gowalla"], "candidates": official_rows.CELLS},
    ),
    "brightkite": Format(
        "brightkite",
        ("loc-brightkite_totalCheckins.txt", "loc-brightkite_totalCheckins.txt.gz"),
        official_rows.checkins(official_rows.in_brightkite),
        {},
    ),
    "sentiment140": Format(
        "sentiment140",
        (TWEETS, f"{TWEETS}.gz", "trainingandtestdata.zip"),
        official_rows.words_of_users,
        {"clients": 659_497, "candidates": 739_972},
    ),
    "c4-domains": Format(
        "c4",
        ("c4_domains.csv", "c4_domains.csv.gz"),
        official_rows.documents(official_rows.of_row),
        {"candidates": 150_868},
    ),
    "c4": Format(
        "c4",
        ("c4-train.?????-of-01024.json.gz",),
        official_rows.documents(official_rows.of_document),
        {"candidates": 150_868},
    ),
}


def find(name: str, folder: Path) -> tuple[str, list[Path]] | None:
    """Return the format and the files of a population in a folder; None if there are none."""
    for format, (population, patterns, *_) in FORMATS.items():
        for pattern in patterns if population == name else ():
            if paths := sorted(folder.glob(pattern)):
                return format, paths
    return None


def names(name: str) -> list[str]:
    """Return how the official files of a population are called.

    >>> names("gowalla")
    ['loc-gowalla_totalCheckins.txt', 'loc-gowalla_totalCheckins.txt.gz']
    """
    return [
        pattern for known in FORMATS.values() if known.name == name for pattern in known.patterns
    ]


def read(format: str, paths: Sequence[Path]) -> Official:
    """Count the clients of each item in files of one format.

    Args:
        format: of `FORMATS`.
        paths: one file; of C4, any number of different shards.

    Raises:
        InvalidInputError: no client holds an item, or the files do not belong together.
        UnreadableFileError: a file is absent, ends early or does not unpack.
    """
    if len(paths) > 1 and (format != "c4" or len({path.name for path in paths}) < len(paths)):
        raise InvalidInputError(
            f"{format} is read of one file, or of different shards; got {len(paths)} files"
        )
    report = Report([path.name for path in paths])
    weights = FORMATS[format].read(_lines(paths, report), report)
    if not report.clients:
        raise InvalidInputError(
            f"{paths[0]} has no row of the format {format}: {_in_words(report)}"
        )
    return Official(FORMATS[format].name, _note(format, paths, report.rows), weights, report)


def _note(format: str, paths: Sequence[Path], rows: int) -> str:
    if rows != (whole := ROWS.get(format, rows)):
        return f"{rows:,} of {whole:,} rows"
    if format == "c4-domains":
        return "from a table of domains"
    if format == "c4" and not all(_fits(format, path) for path in paths):
        return f"from {len(paths):,} files"
    return f"{len(paths):,} of {SHARDS:,} shards" if format == "c4" and len(paths) < SHARDS else ""


def _fits(format: str, path: Path) -> bool:
    return any(fnmatch(path.name, pattern) for pattern in FORMATS[format].patterns)


def cache_file(name: str) -> str:
    """Return the name of a cache."""
    return f"{name}_official.npz"


def save(official: Official, folder: Path) -> Path:
    """Keep what was counted in a folder, for `load`; return the file."""
    path = folder / cache_file(official.name)
    meta = {"name": official.name, "note": official.note, "report": vars(official.report)}
    archive.write(path, SCHEMA, meta, {"weights": official.weights})
    return path


def load(path: Path) -> Official:
    """Return what `save` kept.

    Raises:
        UnreadableFileError: the file is absent, damaged or of another kind.
    """
    _, meta, arrays = archive.read(path, SCHEMA)
    return Official(meta["name"], meta["note"], arrays["weights"], _report(**meta["report"]))


def _report(dropped: dict[str, int], left_out: dict[str, int], **rest: Any) -> Report:
    return Report(dropped=Counter(dropped), left_out=Counter(left_out), **rest)


def _lines(paths: Sequence[Path], report: Report) -> Iterator[bytes]:
    """Yield the lines of all files without their ends, blank ones left out, and count them."""
    with Progress() as progress:
        for number, path in enumerate(paths):
            progress("files", number, len(paths))
            before = report.rows
            try:
                with path.open("rb") as file, _unpacked(file) as stream:
                    yield from _lines_of(stream, report)
                if report.rows == before:
                    raise EOFError("it has no row")
            except (
                OSError,
                EOFError,
                zlib.error,
                zipfile.BadZipFile,
                NotImplementedError,
                RuntimeError,
            ) as error:
                raise UnreadableFileError(
                    f"{path} cannot be read beyond row {report.rows:,}: {error}; download it again"
                ) from error


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    """Return the content of a file: of gzip, of the tweets in a zip, or as it is."""
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=file))
    if magic != b"PK\x03\x04":
        return file
    archive = zipfile.ZipFile(file)
    names = [name for name in archive.namelist() if Path(name).name == TWEETS]
    if not names:
        raise zipfile.BadZipFile(f"it holds no {TWEETS}")
    return archive.open(names[0])


def _lines_of(stream: IO[bytes], report: Report) -> Iterator[bytes]:
    while line := stream.readline(_LONGEST):
        if len(line) == _LONGEST and not line.endswith(b"\n"):
            report.rows += 1
            report.dropped["too long"] += 1
            while (rest := stream.readline(_LONGEST)) and not rest.endswith(b"\n"):
                pass
        elif line := line.rstrip(b"\r\n"):
            report.rows += 1
            yield line


def table(official: Official, format: str) -> list[dict[str, object]]:
    """Return the report as rows: what, how many, and how many by the paper."""
    report, paper = official.report, FORMATS[format].paper
    numbers = {"rows": report.rows}
    numbers |= {f"dropped: {reason}": number for reason, number in sorted(report.dropped.items())}
    numbers |= {f"left out: {reason}": number for reason, number in sorted(report.left_out.items())}
    numbers |= {"clients": report.clients, "items held": int(np.count_nonzero(official.weights))}
    numbers |= {"candidates": len(official.weights)}
    return [
        {"what": what, "number": f"{n:,}", "paper": f"{paper[what]:,}" if what in paper else "-"}
        for what, n in numbers.items()
    ]


def _in_words(report: Report) -> str:
    parts = [f"{report.rows:,} rows"]
    parts += [
        f"{number:,} {reason}" for reason, number in (report.dropped + report.left_out).items()
    ]
    return ", ".join(parts)


@click.command("official")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--format", type=click.Choice(list(FORMATS)), help="[default: by the file's name]")
@click.option(
    "--cache",
    type=click.Path(file_okay=False, writable=True, path_type=Path),
    help="Folder to keep the counts in: the one given as --data.",
)
def command(files: tuple[Path, ...], format: str | None, cache: Path | None) -> None:
    """Read an official file (of C4: any number of shards), describe it, and keep its counts."""
    format = format or _format_of(files)
    if cache is not None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot make the folder {cache}: {error.strerror}; choose another --cache"
            raise InvalidInputError(message) from error
    official = read(format, files)
    output.show(table(official, format))
    if official.note:
        click.echo(f"{official.name}: {official.note}")
    if cache is not None:
        click.echo(f"wrote {save(official, cache)}")


def _format_of(paths: Sequence[Path]) -> str:
    for format in FORMATS:
        if all(_fits(format, path) for path in paths):
            return format
    shown = paths[0].name if len(paths) == 1 else f"{paths[0].name}, ..."
    raise InvalidInputError(
        f"{shown}: no name of an official file, or not all of one format; say with --format what"
        " it is"
    )


if __name__ == "__main__":
    command()
