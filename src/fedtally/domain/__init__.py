"""Domains turn items into 64-bit ids and back: integers, text, latitude-longitude grids.

`OpenStrings` is the domain of strings of which nobody has the list.

Clients encode their items with a `Domain`, and decoding enumerates it, at positions 0 to
``size - 1``. Items come as a column without missing values: a NumPy array, an Arrow array or
chunked array, a pandas or Polars series, or a list. An item that is not of the domain's kind at all
(``"abc"`` for a range) is an `InvalidInputError` in every method. An item of that kind that is not
in the domain is an `OutsideDomainError` where a position or an id is asked for.

Text is compared by its UTF-8 bytes. Nothing is normalised, neither Unicode nor case nor white
space: an accented letter in one code point and the same letter in two are two items. Normalise
before, if your data needs it; an open domain does so where it is asked to (`OpenStrings`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from fedtally._validate import did_you_mean, did_you_mean_file
from fedtally.domain.contract import Domain
from fedtally.domain.grid import Grid
from fedtally.domain.integers import IntegerRange, IntegerSet
from fedtally.domain.open_strings import Names, OpenStrings, Unread
from fedtally.domain.text import Dictionary, Strings, fingerprint_key, fingerprints
from fedtally.errors import InvalidInputError, UnreadableFileError

__all__ = [
    "Dictionary",
    "Domain",
    "Grid",
    "IntegerRange",
    "IntegerSet",
    "Names",
    "OpenStrings",
    "Strings",
    "Unread",
    "domain_of",
    "fingerprint_key",
    "fingerprints",
    "load",
    "of_description",
    "parse",
]

# their descriptions are all there is to know of them
_WRITTEN_OUT = (IntegerRange.kind, Grid.kind, OpenStrings.kind)
_KINDS: dict[str, type[Domain]] = {
    cls.kind: cls for cls in (IntegerRange, IntegerSet, Dictionary, Strings, Grid, OpenStrings)
}
_NUMBER = r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
_RANGE = re.compile(r"range:([+-]?[0-9]{1,30})\.\.([+-]?[0-9]{1,30})")
_GRID = re.compile(rf"grid:{_NUMBER}\.\.{_NUMBER},{_NUMBER}\.\.{_NUMBER},{_NUMBER}")


def parse(text: str) -> Domain:
    """Return the domain that a text writes.

    The forms are ``range:FIRST..LAST`` and ``grid:SOUTH..NORTH,WEST..EAST,STEP`` (in degrees).
    ``str`` of these two kinds writes them.

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


def domain_of(value: Any) -> Domain | str:
    """Return the domain that a value names, or "input", which names none before rows are read.

    Args:
        value: a `Domain`; "input"; "open", for `OpenStrings`; what `parse` reads; the path of a
            text file with one item a line; or a column of distinct items, all text or all integers.

    Raises:
        InvalidInputError: the value is none of these.
        UnreadableFileError: the file cannot be read.

    >>> domain_of(["tea", "coffee"]).size, domain_of([3, 9]), domain_of("range:1..9").size
    (2, IntegerSet(size=2, public=False), 9)
    """
    if isinstance(value, Domain):
        return value
    if isinstance(value, str) and value == OpenStrings.kind:  # a column compares value by value
        return OpenStrings()
    if isinstance(value, str) and (value == "input" or value.startswith(("range:", "grid:"))):
        return value if value == "input" else parse(value)
    if isinstance(value, str | os.PathLike):
        if os.path.exists(value):
            return Dictionary.from_file(value)
        if isinstance(value, os.PathLike):
            raise UnreadableFileError(f"domain {os.fspath(value)}: there is no such file")
        if value.strip().startswith(("range:", "grid:")):
            return parse(value)
        meant = did_you_mean(value, ("input", "open")) or did_you_mean_file(value)
        raise InvalidInputError(
            f"cannot read the domain {value!r}: there is no such file; give the path of a file, a"
            " list of items, 'input', 'open', range:FIRST..LAST or"
            f" grid:SOUTH..NORTH,WEST..EAST,STEP{meant}"
        )
    if isinstance(value, bytes | Mapping) or not hasattr(value, "__len__"):
        raise InvalidInputError(
            "domain must be a Domain such as fedtally.Dictionary(...), a list of items, a path, or"
            f" text, got {type(value).__name__}"
        )
    first: Any = next(iter(value), None)
    first = first.as_py() if hasattr(first, "as_py") else first  # an Arrow column's
    # A set has no order, and the order of a dictionary is part of a plan: sorted, it has one.
    items = sorted(value) if isinstance(value, set | frozenset) else value
    return Dictionary(items) if first is None or isinstance(first, str) else IntegerSet(items)


def load(meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Domain:
    """Rebuild the domain that wrote ``describe()`` and ``arrays()``.

    The new domain must have the same description, which includes the size and the digest.

    Raises:
        UnreadableFileError: The kind is unknown, an entry is missing, or the content is damaged.

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
            f"the saved domain of kind {kind!r} is damaged: {error}"
        ) from error
    saved, found = dict(meta), domain.describe()
    if any(saved.get(key) != value for key, value in found.items()):
        raise UnreadableFileError(
            f"the saved domain of kind {kind!r} is damaged: its items do not fit its description"
        )
    return domain


def of_description(meta: Mapping[str, Any], candidates: str | os.PathLike[str] | None) -> Domain:
    """Return the domain that a plan describes.

    A range, a grid or an open domain is in the plan as a whole. Of a dictionary the plan holds the
    digest alone: the candidates come from a file, and the digest tells whether it is the right one.

    Args:
        meta: what `Domain.describe` returned.
        candidates: the path of a text file with one candidate a line; None: there is none.

    Raises:
        InvalidInputError: the file is missing, not needed, or holds other candidates; or the
            domain is not public, so that no file can be checked against it.
        UnreadableFileError: the file cannot be read.

    >>> of_description(IntegerRange(1, 9).describe(), None)
    IntegerRange(1, 9)
    """
    if meta.get("kind") in _WRITTEN_OUT:
        if candidates is not None:
            raise InvalidInputError(
                "the plan holds its candidates as a whole: leave out the file"
                f" {os.fspath(candidates)}"
            )
        return load(meta, {})
    if meta.get("kind") != Dictionary.kind or not meta.get("public"):
        raise InvalidInputError(
            "the candidates of this plan are the distinct items of one input, which nobody else"
            " has: plan with --domain FILE, range:FIRST..LAST or grid:..."
        )
    if candidates is None:
        raise InvalidInputError(
            "the plan holds only the digest of its candidates: name the file that it was planned"
            " with, one candidate a line (--candidates)"
        )
    domain = Dictionary.from_file(candidates)
    if any(meta.get(name) != value for name, value in domain.describe().items()):
        raise InvalidInputError(
            f"{os.fspath(candidates)} holds other candidates than those of the plan: the same lines"
            " in the same order are needed"
        )
    return domain
