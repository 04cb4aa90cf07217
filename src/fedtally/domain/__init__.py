"""Domains: sets of items, such as integers, text or cells of a grid of the earth.

A `Domain` is a set of candidate items at the positions 0 to ``size - 1``. Each item has a 64-bit
id. Clients turn their items into ids with the domain. A decoder estimates the counts of all
candidates, and the domain turns the positions of candidates into labels. `OpenStrings` is the
domain for strings that nobody has listed. Such a domain is *open*: its candidates are all hashes,
not strings.

Items are given as a column without missing values: a NumPy array, an Arrow array or chunked array,
a pandas or Polars series, or a list. An item of the wrong kind (``"abc"`` in a range of integers)
raises `InvalidInputError` in all methods except `Domain.inside`. An item of the right kind that is
no candidate raises `OutsideDomainError` in methods that return positions or ids. There are two
exceptions: `Strings.encode` and open domains give every string an id.

Two strings are the same item only if their UTF-8 bytes are equal. Unicode forms, upper and lower
case and white space are not normalised: "é" as one code point and "é" as two are two items. If your
data needs a normal form, normalise the data first. An open domain can convert Unicode forms for you
(``OpenStrings(normalise="nfc")``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from fedtally.domain.contract import Domain
from fedtally.domain.grid import Grid
from fedtally.domain.integers import IntegerRange, IntegerSet
from fedtally.domain.open_strings import Names, OpenStrings, Unread, names_of
from fedtally.domain.strings import Dictionary, Strings, fingerprint_key, fingerprints
from fedtally.errors import InvalidInputError, UnreadableFileError, reason

__all__ = [
    "WRITTEN",
    "Dictionary",
    "Domain",
    "Grid",
    "IntegerRange",
    "IntegerSet",
    "Names",
    "OpenStrings",
    "Strings",
    "Unread",
    "fingerprint_key",
    "fingerprints",
    "load",
    "names_of",
    "parse",
]

_KINDS: dict[str, type[Domain]] = {
    cls.kind: cls for cls in (IntegerRange, IntegerSet, Dictionary, Strings, Grid, OpenStrings)
}
WRITTEN = ("range:", "grid:")  # the prefixes of texts that `parse` reads
_NUMBER = r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
_RANGE = re.compile(r"range:([+-]?[0-9]{1,30})\.\.([+-]?[0-9]{1,30})")
_GRID = re.compile(rf"grid:{_NUMBER}\.\.{_NUMBER},{_NUMBER}\.\.{_NUMBER},{_NUMBER}")


def parse(text: str) -> Domain:
    """Return the domain that a text describes.

    The text is ``range:FIRST..LAST`` or ``grid:SOUTH..NORTH,WEST..EAST,STEP`` (in degrees): the
    same text that ``str`` of an `IntegerRange` or a `Grid` returns.

    Raises:
        InvalidInputError: The text has neither form, or its numbers make no domain.

    >>> parse("range:1..100")
    IntegerRange(1, 100)
    >>> parse("grid:25..50,-130..-60,0.1").size
    175000
    """
    if match := _RANGE.fullmatch(text.strip()):
        first, last = int(match[1]), int(match[2])
        if last < first:
            raise InvalidInputError(
                f"{text.strip()} ends before it begins: write range:{last}..{first}"
            )
        return IntegerRange(first, last)
    if match := _GRID.fullmatch(text.strip()):
        return Grid(*(float(number) for number in match.groups()))
    raise InvalidInputError(
        f"cannot read the domain {text!r}; write range:FIRST..LAST or"
        " grid:SOUTH..NORTH,WEST..EAST,STEP, such as range:1..100 or grid:25..50,-130..-60,0.1"
    )


def load(meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Domain:
    """Rebuild a saved domain from the values that its ``describe()`` and ``arrays()`` returned.

    Args:
        meta: the value of ``describe()``. Entries that ``describe()`` does not return are ignored.
        arrays: the value of ``arrays()``.

    Raises:
        UnreadableFileError: The kind in `meta` is unknown, `meta` or `arrays` lacks an entry or has
            a damaged one, or ``describe()`` of the rebuilt domain differs from `meta`.

    >>> words = Dictionary(["tea", "coffee"])
    >>> load(words.describe(), words.arrays()) == words
    True
    """
    kind = meta.get("kind")
    if kind not in _KINDS:
        raise UnreadableFileError(f"unknown kind of domain {kind!r}; known are {', '.join(_KINDS)}")
    try:
        domain = _KINDS[kind].rebuild(meta, arrays)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableFileError(
            f"the saved domain of kind {kind!r} is damaged{reason(error)}"
        ) from error
    saved, found = dict(meta), domain.describe()
    if any(saved.get(key) != value for key, value in found.items()):
        raise UnreadableFileError(
            f"the saved domain of kind {kind!r} is damaged: its items do not fit its description"
        )
    return domain
