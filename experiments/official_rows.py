"""Rows of the official files: what becomes of each, and the clients that they amount to.

Readers take the lines of a file and a `Report`, which they complete, and return an array [d] of the
number of clients that hold each item. A row that cannot be read as its format says is dropped; one
that is intact but has no item is left out; both are counted by reason.

Memory is that of what is counted, not of what is read. Check-ins: the grid, 0.1 GB in all.
Sentiment-140: words read, names of users and of words, 0.7 GB. C4: fingerprints of domains, 61 bits
each, 1.3 GB for 14 million; that any two of so many coincide has a probability below 1 in 1,000
(`fedtally.domain.Strings.collision_probability`).
"""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from experiments import rounds
from fedtally.domain import Grid, fingerprint_key, fingerprints
from fedtally.errors import InvalidInputError

CELLS = 175_000
Bools = npt.NDArray[np.bool_]
GOWALLA = Grid(25, 50, -130, -60, 0.1)
MERIDIANS = -127.96875 + np.arange(351) * 360 / 2048
PARALLELS = np.degrees(np.arctan(np.sinh(np.arange(501) * 2 * np.pi / 2048)))
_BLOCK = 1 << 16  # rows
_MOST_NEW = 1 << 22  # domains
_MOST_DOCUMENTS = 10_000_000  # of a domain; the law is as long
_NUMBER = rb"[+-]?\d{1,20}(?:\.\d{0,40})?(?:[eE][+-]?\d{1,3})?"
_CHECKIN = {
    "user": rb"\d+",
    "time": rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "latitude": _NUMBER,
    "longitude": _NUMBER,
    "location": rb"[^\t]*",
}
_CHECKIN_ROW = re.compile(rb"\t".join(b"(%b)" % form for form in _CHECKIN.values()))
_WORD = re.compile(r"[a-z_@#\-;()*:.'/]{3,}")


@dataclass
class Report:
    """What became of the rows of some files.

    Attributes:
        files: their names.
        rows: read, blank lines not counted: those that were used, dropped or left out.
        dropped: broken rows, by what is wrong with them.
        left_out: intact rows without an item, by reason.
        clients: who hold an item.
    """

    files: list[str]
    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    clients: int = 0


Reader = Callable[[Iterator[bytes], Report], rounds.F64]


def checkins(locate: Callable[[rounds.F64], tuple[rounds.I64, Bools]]) -> Reader:
    """Return what counts check-ins in each of `CELLS` cells, which `locate` finds."""

    def count(lines: Iterator[bytes], report: Report) -> rounds.F64:
        counts, points = np.zeros(CELLS), _points(lines, report)
        while block := list(islice(points, _BLOCK)):
            cells, inside = locate(np.array(block))
            report.left_out["outside the grid"] += int(np.count_nonzero(~inside))
            counts += np.bincount(cells[inside], minlength=CELLS)
        report.clients = int(counts.sum())
        return counts

    return count


def _points(lines: Iterator[bytes], report: Report) -> Iterator[tuple[float, float]]:
    """Yield latitude and longitude of each intact row."""
    for line in lines:
        if match := _CHECKIN_ROW.fullmatch(line):
            latitude, longitude = float(match[3]), float(match[4])
            if abs(latitude) <= 90 and abs(longitude) <= 180:
                yield latitude, longitude
            else:
                report.dropped["not on the Earth"] += 1
        else:
            report.dropped[_what_is_wrong(line)] += 1


def _what_is_wrong(line: bytes) -> str:
    """Say why a row is no check-in.

    >>> row = b"0;2010-10-19T23:55:27Z;;-97.7;22847".replace(b";", bytes([9]))
    >>> _what_is_wrong(b"0 2010"), _what_is_wrong(row)
    ('not five fields', 'no latitude')
    """
    fields = line.split(b"\t")
    if len(fields) != len(_CHECKIN):
        return "not five fields"
    return next(
        f"no {name}"
        for value, (name, form) in zip(fields, _CHECKIN.items(), strict=True)
        if not re.fullmatch(form, value)
    )


def in_gowalla(degrees: rounds.F64) -> tuple[rounds.I64, Bools]:
    """Return the cell of each latitude and longitude, int64 [n], and whether there is one.

    See `fedtally.domain.Grid`.

    >>> in_gowalla(np.array([[25.0, -129.95], [0.0, 0.0]]))
    (array([0, 0]), array([ True, False]))
    """
    inside = GOWALLA.contains(degrees)
    cells = np.zeros(len(degrees), np.int64)
    cells[inside] = GOWALLA.locate(degrees[inside])
    return cells, inside


def in_brightkite(degrees: rounds.F64) -> tuple[rounds.I64, Bools]:
    """Return the cell of each latitude and longitude, int64 [n], and whether there is one.

    Cells are pixels of a Web Mercator map that is 2048 pixels wide: 350 columns from longitude
    -127.96875 on, each with 500 pixels northwards from the equator, column by column.

    >>> in_brightkite(np.array([[0.0, -127.96875], [65.7, -100.0]]))
    (array([0, 0]), array([ True, False]))
    """
    column, row = (
        np.searchsorted(edges, degrees[:, axis], "right") - 1
        for axis, edges in ((1, MERIDIANS), (0, PARALLELS))
    )
    columns, rows = len(MERIDIANS) - 1, len(PARALLELS) - 1
    inside = (column >= 0) & (column < columns) & (row >= 0) & (row < rows)
    return np.where(inside, column * rows + row, 0), inside


def words_of_users(lines: Iterator[bytes], report: Report) -> rounds.F64:
    """Return the expected users of each word, in the order in which words first occur.

    A row is a line; a quote that is left open ends with it, lest it swallow the rows after it.
    """
    users: dict[str, int] = {}
    known: dict[str, int] = {}
    held = array("i"), array("i")  # of every word read: its user, itself
    for text in lines:
        try:
            _, _, _, _, user, tweet = next(csv.reader([text.decode("latin-1")]))
        except (ValueError, csv.Error):
            report.dropped["not six fields"] += 1
            continue
        found = words(tweet)
        if not user:
            report.dropped["no user"] += 1
        elif not found:
            report.left_out["no word"] += 1
        else:
            held[0].extend([users.setdefault(user, len(users))] * len(found))
            held[1].extend([known.setdefault(word, len(known)) for word in found])
    report.clients = len(users)
    owners, items = (np.array(column, np.intc) for column in held)
    weights: rounds.F64 = np.bincount(
        items, (1.0 / np.bincount(owners))[owners], len(known)
    ).astype(np.float64)
    return weights


def words(tweet: str) -> list[str]:
    """Return the words of a tweet, by the rule that gives about the paper's number of words.

    Lower case, split at white space, with ``,.;?!`` stripped from both ends; kept are three or more
    characters that do not start with http or www, all of them letters a to z or one of
    ``_@#-;()*:.'/``.

    >>> words("@Anna Don't go, PLEASE!! see www.x.org ;-) at 8pm")
    ['@anna', "don't", 'please', 'see']
    """
    stripped = (piece.strip(",.;?!") for piece in tweet.lower().split())
    return [
        word for word in stripped if _WORD.fullmatch(word) and not word.startswith(("http", "www"))
    ]


class _Domains:
    """Numbers of documents of web domains, of which only fingerprints are kept."""

    def __init__(self) -> None:
        self._key = fingerprint_key(bytes(32))
        self._ids, self._counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._new: list[tuple[npt.NDArray[np.uint64], rounds.I64]] = []
        self._size = 0  # of what is new

    def add(self, domains: Sequence[str], counts: Sequence[int]) -> None:
        """Add documents to domains."""
        self._new.append((fingerprints(domains, self._key), np.array(counts, np.int64)))
        self._size += len(domains)
        if self._size > max(len(self._ids) // 4, _MOST_NEW):
            self._merge()

    def _merge(self) -> None:
        ids, counts = (
            np.concatenate(parts)
            for parts in zip((self._ids, self._counts), *self._new, strict=True)
        )
        order = np.argsort(ids)
        ids = ids[order]
        first = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])[: len(ids)])
        self._ids, self._counts = (
            ids[first],
            np.add.reduceat(counts[order], first) if len(ids) else counts,
        )
        self._new, self._size = [], 0

    def by_documents(self) -> rounds.F64:
        """Return how many domains have 1, 2, ... documents."""
        self._merge()
        most = int(self._counts.max(initial=0))
        if most > _MOST_DOCUMENTS:
            raise InvalidInputError(
                f"a domain has {most:,} documents; at most {_MOST_DOCUMENTS:,} are supported"
            )
        return np.bincount(self._counts, minlength=1)[1:].astype(np.float64)


def documents(parse: Callable[[bytes], tuple[str, int]]) -> Reader:
    """Return a counter of domains by documents, from lines that `parse` reads."""

    def count(lines: Iterator[bytes], report: Report) -> rounds.F64:
        domains, found = _Domains(), _parsed(lines, report, parse)
        while block := list(islice(found, _BLOCK)):
            domains.add(*zip(*block, strict=True))
        weights = domains.by_documents()
        report.clients = int(weights.sum())
        return weights

    return count


def _parsed(
    lines: Iterator[bytes], report: Report, parse: Callable[[bytes], tuple[str, int]]
) -> Iterator[tuple[str, int]]:
    for line in lines:
        try:
            yield parse(line)
        except _BrokenRow as error:
            report.dropped[str(error)] += 1


class _BrokenRow(Exception):
    """Say what is wrong with a row."""


def of_document(line: bytes) -> tuple[str, int]:
    """Return the domain of a document of C4, and 1.

    >>> of_document(b'{"url": "http://Example.org:80/a", "text": "..."}')
    ('example.org:80', 1)
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise _BrokenRow("not JSON") from None
    url = found.get("url") if isinstance(found, dict) else None
    try:
        domain = urlsplit(url).netloc.rpartition("@")[2].lower() if isinstance(url, str) else ""
        domain.encode()
    except ValueError:
        domain = ""
    if not domain:
        raise _BrokenRow("no url with a domain")
    return domain, 1


def of_row(line: bytes) -> tuple[str, int]:
    """Return domain and count of a row of a table, separated by a comma or a tab.

    A line of names has no count.

    >>> of_row(b"Example.org,12")
    ('example.org', 12)
    """
    try:
        text = line.decode("utf-8-sig")
        domain, count = map(
            str.strip, next(csv.reader([text], delimiter="\t" if "\t" in text else ","))
        )
    except (ValueError, csv.Error):
        raise _BrokenRow("not two fields") from None
    if not re.fullmatch(r"[0-9]{1,9}", count) or int(count) == 0:
        raise _BrokenRow("no count")
    if not domain:
        raise _BrokenRow("no domain")
    return domain.lower(), int(count)
