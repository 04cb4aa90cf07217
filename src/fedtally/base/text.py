"""Show untrusted text: escape its control characters, and shorten it if it is long."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate

# The signs that begin a formula of a spreadsheet, = + - @, and their full-width forms. They are
# written as a regular expression needs them between brackets.
FORMULA_SIGNS = r"=+\-@\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}"
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # stands in figures for a letter that their fonts lack


def escaped(text: str) -> str:
    r"""Return a text in which each letter that `str.isprintable` refuses is escaped.

    These are control characters, line feeds, invisible marks and spaces other than " ". Otherwise
    untrusted text could give commands to a terminal.

    >>> escaped("tab\there\x1b[31m")
    'tab\\there\\x1b[31m'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def shortened(text: str, columns: int) -> str:
    """Return a text that fits `columns` terminal columns; a long text loses its middle.

    Both ends are kept, since items such as web addresses often differ only there. `columns` must be
    at least 1.

    >>> shortened("https://example.org/1", 9), shortened("tea", 9)
    ('http…rg/1', 'tea')
    """
    if sum(map(_columns, text)) <= columns:
        return text
    half = (columns - 1) // 2
    return "".join([*_start(text, half), "…", *_start(text[::-1], half)[::-1]])


def utc(seconds: float) -> str:
    """Return a time, in Unix seconds, as a text in UTC, to the minute.

    >>> utc(1_800_000_059)
    '2027-01-15 08:00 UTC'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def one_of(unit: str) -> str:
    """Return the singular of a plural noun for clients or rounds, such as "people" or "days".

    >>> one_of("people"), one_of("contributions"), one_of("periods of 6h")
    ('person', 'contribution', 'period of 6h')
    """
    noun, of, length = unit.partition(" of ")
    return {"people": "person"}.get(noun, noun.removesuffix("s")) + of + length


def in_number(number: int, one: str, many: str) -> str:
    """Return `one` if the number is 1, else `many` with "{}" replaced by the number.

    >>> in_number(1, "one item is", "{} items are"), in_number(1200, "one item is", "{} items are")
    ('one item is', '1,200 items are')
    """
    return one if number == 1 else many.format(f"{number:,}")


def in_a_row(number: int, unit: str) -> str:
    """Return the words for some number of rounds, wherever they begin, such as those of a promise.

    Args:
        number: how many rounds lie in a row, at least 1.
        unit: the plural noun for rounds, such as "days" (`Plan.rounds_noun`).

    >>> in_a_row(7, "days"), in_a_row(1, "weeks"), in_a_row(1, "periods of 6h")
    ('any 7 days in a row', 'any one week', 'any one period of 6h')
    """
    return in_number(number, f"any one {one_of(unit)}", f"any {{}} {unit} in a row")


def in_range(least: int, most: int) -> str:
    """Return a range of whole numbers as text; a single number if both ends are equal.

    >>> in_range(900, 1200), in_range(7, 7)
    ('900 to 1,200', '7')
    """
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _columns(letter: str) -> int:
    """Return how many terminal columns a letter takes: 1 or 2."""
    is_wide = letter == UNKNOWN or unicodedata.east_asian_width(letter) in "WF"
    return 2 if is_wide else 1


def _start(letters: str, columns: int) -> Sequence[str]:
    """Return the first letters that fit into `columns` terminal columns."""
    return [
        letter
        for letter, end in zip(letters, accumulate(map(_columns, letters)), strict=True)
        if end <= columns
    ]


def word(path: object) -> str:
    """Return a path as a word of a shell command: in quotes, if the shell needs them.

    >>> word("survey"), word("my survey")
    ('survey', "'my survey'")
    """
    return shlex.quote(str(path))
