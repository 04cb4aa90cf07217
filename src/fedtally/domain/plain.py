"""`Texts`: a column of text that needs no PyArrow, for the few items of a client.

Most functions of `domain.columns` accept it in place of an Arrow array.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.errors import InvalidInputError


class Texts:
    """A column of text without missing values.

    It has those methods of an Arrow array that the code of a client needs.

    >>> words = Texts(["tea", "rice", "milk"])
    >>> len(words), words[1:].to_pylist(), words.filter(np.array([True, False, True])).to_pylist()
    (3, ['rice', 'milk'], ['tea', 'milk'])
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __getitem__(self, where: slice) -> Texts:
        return Texts(self._texts[where])

    def __repr__(self) -> str:
        return "Texts(hidden)"  # the texts may be a client's items, which must not be logged

    def filter(self, kept: Iterable[bool]) -> Texts:
        """Return the texts for which `kept` is true; `kept` has one value for each text."""
        return Texts(text for text, stays in zip(self._texts, kept, strict=True) if stays)

    def take(self, places: Iterable[int]) -> Texts:
        """Return the texts at these indices, in the order of `places`."""
        return Texts(self._texts[place] for place in places)

    def slice(self, start: int, length: int) -> Texts:
        """Return `length` texts from the index `start` on; fewer if the column ends before."""
        return self[start : start + length]

    def to_pylist(self) -> list[str]:
        """Return the texts as a list."""
        return list(self._texts)

    def holds(self, pattern: str) -> npt.NDArray[np.bool_]:
        """Return whether a regular expression matches anywhere in each text, bool [n]."""
        form = _compiled(pattern)
        return np.array([form.search(text) is not None for text in self._texts], np.bool_)

    def places_in(self, others: Texts) -> npt.NDArray[np.int64]:
        """Return the index in `others` at which each text first occurs, int64 [n]; -1: nowhere.

        >>> Texts(["rice", "tea"]).places_in(Texts(["tea", "milk", "tea"]))
        array([-1,  0])
        """
        known: dict[str, int] = {}
        for place, text in enumerate(others):
            known.setdefault(text, place)
        return np.array([known.get(text, -1) for text in self._texts], np.int64)

    def buffers(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return the UTF-8 bytes of all texts, uint8, and their offsets, int64 [n + 1].

        Text i is bytes[offsets[i] : offsets[i + 1]].

        >>> Texts(["tea", "rice"]).buffers()[1]
        array([0, 3, 7])
        """
        parts = [text.encode() for text in self._texts]
        ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        return np.frombuffer(b"".join(parts), np.uint8), ends

    def coordinates(self, pattern: str) -> npt.NDArray[np.float64]:
        """Return the two numbers of each text, latitude and longitude, float64 [n, 2].

        Args:
            pattern: a regular expression with groups `lat` and `lon`. Every text must match it.
        """
        form, pairs = _compiled(pattern), []
        for text in self._texts:
            found = form.search(text)
            assert found is not None
            pairs.append((float(found["lat"]), float(found["lon"])))
        return np.array(pairs, np.float64).reshape(len(pairs), 2)


def check_column(items: Any) -> None:
    """Raise an InvalidInputError for a value without a length, a set or a mapping."""
    if not hasattr(items, "__len__") or isinstance(items, (Mapping, AbstractSet)):
        raise InvalidInputError(
            f"items must be a column (an array, a series or a list), got {type(items).__name__}"
        )


def holds_several(kind: type) -> bool:
    """Return whether an object of a type holds several values, as a list or a set does.

    >>> [holds_several(kind) for kind in (list, frozenset, dict, np.ndarray, str, bytes, int)]
    [True, True, True, True, False, False, False]
    """
    is_one = issubclass(kind, (str, bytes, bytearray, memoryview))
    return not is_one and issubclass(kind, Iterable) and issubclass(kind, (Sized, Iterator))


def refuse_several(items: Collection[Any]) -> None:
    """Raise an InvalidInputError if an item is itself a list, a set or the like.

    Written as one text, such a list would be one item.
    """
    kinds = {type(item) for item in items}
    if any(map(holds_several, kinds)):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidInputError(
            f"items must be one column of text or integers, got values of type {names}: write a row"
            " for each value"
        )


def texts_of(items: Any) -> Texts:
    """Return a column of text (str, or bytes in UTF-8) or of integers as decimal text.

    Raises:
        InvalidInputError: `items` is no column, mixes text and integers, or holds a value that is
            neither text in UTF-8 nor an integer.

    >>> texts_of([7, 250]).to_pylist(), texts_of([b"tea"]).to_pylist()
    (['7', '250'], ['tea'])
    """
    if isinstance(items, Texts):
        return items
    if isinstance(items, np.ndarray):
        items = items.tolist()
    check_column(items)
    found = list(items)
    refuse_several(found)
    kinds = {_kind(item) for item in found}
    if None in kinds or len(kinds) > 1:
        raise InvalidInputError(
            "items must be one column of text or integers, without missing values: write each as"
            " text"
        )
    try:
        return Texts(map(_text, found))
    except UnicodeError as error:
        raise InvalidInputError("items must be text in UTF-8") from error


def _kind(item: Any) -> type | None:
    """Return as which type an item is read, str or int; None: it can be read as neither."""
    if isinstance(item, bool):
        return None
    kinds = ((str, str), (bytes, str), (int, int), (np.integer, int))
    return next((read for known, read in kinds if isinstance(item, known)), None)


def _text(item: Any) -> str:
    if isinstance(item, bytes):
        return item.decode()
    text = str.__str__(item) if isinstance(item, str) else str(int(item))
    text.encode()  # refuses a lone surrogate, which has no UTF-8
    return text


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression so that it matches the same texts as in Arrow."""
    # Unlike in Python, \s in Arrow does not match a vertical tab, and $ does not match before a
    # final line feed.
    text = pattern.replace(r"\s", r"[\t\n\f\r ]")
    return re.compile(f"{text[:-1]}\\Z" if text.endswith("$") else text, re.ASCII)
