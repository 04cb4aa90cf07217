"""Finds doubtful candidates: texts that look alike to people, and lists that are really tables."""

from __future__ import annotations

import unicodedata
from typing import Any, NamedTuple

import numpy as np

from fedtally.base.text import FORMULA_SIGNS
from fedtally.domain.columns import COORDINATES, utf8_buffers

_BLOCK = 1 << 20  # bytes that are checked at once
_MOST = 1 << 21  # the most texts with other than printable ASCII that are checked, at 1 us each
_HIDDEN = r"[\x{feff}\x{200b}\x{2060}\x{ad}\x00-\x08\x0b-\x1f\x7f-\x9f]"
# Matches a text that `fedtally.answer.cells` may have written: an apostrophe before a sign that
# begins a formula in spreadsheets.
_FORMULA = rf"^'[\"']*[{FORMULA_SIGNS}\t\r]"
_UNSEEN = r"\p{Cf}|[\x00-\x08\x0b-\x1f\x7f-\x9f]"


class Oddities(NamedTuple):
    """What is unusual about text candidates: for each kind, how many are concerned, and an example.

    A kind is None if it concerns no candidate.

    Attributes:
        alike: candidates that look like another candidate, because they have an invisible
            character, a space other than U+0020 or a letter that is not in the Unicode form NFC.
            Candidates without such a character are not counted. The example is a pair: the first
            candidate that is counted, and one that looks like it.
        hidden: candidates with an invisible character that no script needs.
        decomposed: candidates that are not in the Unicode form NFC.
        quoted: candidates that begin with an apostrophe before a sign that begins a formula. They
            may come from a CSV file of an answer, where `answer.cells` adds this apostrophe.
        delimiter: a comma, semicolon or vertical bar that all candidates contain equally often, or
            "" if there is no such sign, or only one candidate. If there is one, the list may be a
            table. A sign that a space always follows does not count, nor does the comma of
            coordinates.
    """

    alike: tuple[int, tuple[str, str]] | None = None
    hidden: tuple[int, str] | None = None
    decomposed: tuple[int, str] | None = None
    quoted: tuple[int, str] | None = None
    delimiter: str = ""


def oddities(text: Any) -> Oddities:
    r"""Return what is unusual about distinct candidates, an Arrow large_string array.

    For `quoted` and `delimiter`, all candidates are checked. For the other kinds, only the first
    2^21 candidates with a character outside printable ASCII are checked.

    >>> from fedtally.domain.columns import as_text
    >>> oddities(as_text(["a", "\ufeffa", "caf\u00e9", "cafe\u0301"])).alike
    (2, ('\ufeffa', 'a'))
    >>> oddities(as_text(["Paris, France", "Rome, Italy"])).delimiter
    ''
    >>> oddities(as_text(["word,n", "tea,3"])).delimiter
    ','
    >>> oddities(as_text(["tea", "'@anna", "'tis"])).quoted
    (1, "'@anna")
    """
    import pyarrow.compute as pc

    odd = _beyond_ascii(text)
    hidden = odd.filter(pc.match_substring_regex(odd, _HIDDEN))
    decomposed = odd.filter(pc.not_equal(odd, _composed(odd)))
    return Oddities(
        _alike(text, odd),
        _example(hidden),
        _example(decomposed),
        _quoted(text),
        _delimiter(text),
    )


def _beyond_ascii(text: Any) -> Any:
    """Return the texts with a character outside printable ASCII, but only the first 2^21."""
    import pyarrow.compute as pc

    data = utf8_buffers(text)[0]
    blocks = (data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK))
    if all(block.min() >= 32 and block.max() < 127 for block in blocks):  # true for most lists
        return text[:0]
    return text.filter(pc.match_substring_regex(text, r"[^\x20-\x7e]"))[:_MOST]


def _alike(text: Any, odd: Any) -> tuple[int, tuple[str, str]] | None:
    import pyarrow.compute as pc

    seen = pc.replace_substring_regex(pc.replace_substring_regex(odd, _UNSEEN, ""), r"\p{Zs}", " ")
    seen = _composed(seen)
    changed = pc.not_equal(seen, odd)
    odd, seen = odd.filter(changed), seen.filter(changed)
    if not len(odd):
        return None
    first = pc.index_in(seen, value_set=seen).to_numpy()
    number_of = np.bincount(first, minlength=len(odd))
    is_plain = pc.is_in(seen, value_set=text).to_numpy(zero_copy_only=False)
    places = np.flatnonzero(is_plain | (number_of[first] > 1))
    if not places.size:
        return None
    place = int(places[0])
    next_one = int(np.flatnonzero(first == first[place])[-1])
    other = seen[place] if is_plain[place] else odd[next_one]
    return len(places), (odd[place].as_py(), other.as_py())


def _composed(text: Any) -> Any:
    """Return the texts in the Unicode form NFC: an Arrow large_string array.

    `pyarrow.compute.utf8_normalize` is not used: in PyArrow 24 it decomposes the texts.
    """
    import pyarrow as pa

    if not len(text):  # PyArrow would import pandas, where it is installed, for an empty list, too
        return text
    texts = [unicodedata.normalize("NFC", one) for one in text.to_pylist()]
    return pa.array(texts, pa.large_string())


def _quoted(text: Any) -> tuple[int, str] | None:
    import pyarrow.compute as pc

    found = text.filter(pc.starts_with(text, "'"))  # fast, and leaves few texts of most lists
    return _example(found.filter(pc.match_substring_regex(found, _FORMULA)))


def _example(found: Any) -> tuple[int, str] | None:
    """Return the number of texts, and the first text; None if `found` is empty."""
    return (len(found), found[0].as_py()) if len(found) else None


def _delimiter(text: Any) -> str:
    import pyarrow.compute as pc

    sample = text[0].as_py()
    for sign in (",", ";", "|"):
        if len(text) < 2 or sign not in sample:
            continue
        counts = pc.count_substring(text, sign)
        spaced = pc.count_substring(text, f"{sign} ")
        if (
            len(counts.unique()) == 1
            and not pc.all(pc.equal(counts, spaced)).as_py()
            and not pc.all(pc.match_substring_regex(text, COORDINATES)).as_py()
        ):
            return sign
    return ""
