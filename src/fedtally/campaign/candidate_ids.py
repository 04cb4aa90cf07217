"""Find which of a client's items are candidates, so that no item changes how another is read.

A candidate is an item that the plan counts. Distinct texts and whole numbers are read in blocks,
and pairs of coordinates in one call. An item of another type is read as a column of its own,
because all values of a column must have the same type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import arrow
from fedtally.domain import Domain, Grid
from fedtally.domain.columns import as_text
from fedtally.domain.plain import Texts

# How many texts are read in one call. Other threads may have to wait until the call is over.
_BLOCK = 1 << 16
_LISTED = "iufUO"  # kinds of NumPy arrays whose `tolist` returns the items unchanged


def ids_inside(domain: Domain, items: Any) -> npt.NDArray[np.uint64]:
    """Return the ids of the items that are candidates, uint64 [n], in no particular order.

    An id may come more than once.

    Args:
        domain: the candidates, that is, the items that the plan counts.
        items: a list, array or series of items, as for `FrequencyClient`.

    Raises:
        TypeError: `items` is no list, array or series.

    >>> from fedtally.domain import IntegerRange
    >>> sorted(ids_inside(IntegerRange(1, 9), ["7", 7, 3.0, 3.5, None, "tea", [1]]).tolist())
    [3, 7]
    """
    found = [domain.encode(column) for column in _columns_inside(domain, items)]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def texts_inside(domain: Domain, items: Any) -> Any:
    """Return the items that an open domain accepts, as a column of text in no particular order.

    The column is a chunked Arrow array, or a `Texts` if PyArrow is not installed.

    Args:
        domain: the open domain: one without a list of candidates, which accepts all texts of a
            form.
        items: a list, array or series of items, as for `FrequencyClient`.

    Raises:
        TypeError: `items` is no list, array or series.
    """
    found = [as_text(column) for column in _columns_inside(domain, items)]
    if not arrow.is_installed():
        return Texts(text for column in found for text in column)
    import pyarrow as pa

    return pa.chunked_array(found, pa.large_string())


def _columns_inside(domain: Domain, items: Any) -> Iterator[Any]:
    """Yield the items that are candidates, in columns; all items of a column have the same type."""
    found = _sorted(domain, items)
    for start in range(0, len(found.texts), _BLOCK):
        block = found.texts[start : start + _BLOCK]
        yield block.filter(domain.inside(block))
    if len(found.points):
        yield found.points[domain.inside(found.points)]
    yield from (one for one in found.others if _is_inside(domain, one))


def is_of_arrow(items: Any) -> bool:
    """Return whether `items` is an Arrow array or chunked array; False without PyArrow."""
    pa = arrow.found()
    return pa is not None and isinstance(items, pa.Array | pa.ChunkedArray)


class _Sorted(NamedTuple):
    """A client's items, sorted into groups that are read in different ways.

    Attributes:
        texts: the distinct texts, and the distinct integers written in decimal. They are an Arrow
            array, or a `Texts` if PyArrow is not installed.
        points: the pairs of coordinates, float64 [n, 2].
        others: all other items, each as a list or array with this one item.
    """

    texts: Any
    points: npt.NDArray[np.float64]
    others: list[Any]


def _sorted(domain: Domain, items: Any) -> _Sorted:
    """Sort items into the groups of `_Sorted`: texts and integers, points, others.

    None is left out, and so is a float that is not whole, such as NaN. But coordinates are kept.

    Raises:
        TypeError: `items` is no list, array or series.
    """
    points = np.zeros((0, 2))
    if is_of_arrow(items):
        texts = _distinct_texts(items)
        if texts is not None:
            return _Sorted(texts, points, [])
        items = [_of_arrow(item) for item in items]
    if isinstance(items, str | bytes | Set | Mapping) or not isinstance(
        items, Collection | np.ndarray
    ):
        raise TypeError
    if isinstance(items, np.ndarray) and items.ndim == 2:
        if items.dtype.kind in "iuf":
            return _Sorted(_arrow(set()), items.astype(np.float64), [])
        return _Sorted(_arrow(set()), points, [item[None] for item in items])
    if isinstance(items, np.ndarray) and items.dtype.kind in _LISTED:
        items = items.tolist()
    known, pairs, others = set[str](), set[tuple[float, float]](), list[Any]()
    has_points = isinstance(domain, Grid)
    for item in items:
        text = _text(item)
        if text is not None:
            known.add(text)
        elif has_points and _is_point(item):
            pairs.add(tuple(item))
        # a float that is not whole is a candidate of no domain
        elif item is not None and not _is_float(item):
            others.append([item])
    if pairs:
        points = np.array(list(pairs), np.float64)
    return _Sorted(_arrow(known), points, others)


def _distinct_texts(items: Any) -> Any:
    """Return the distinct items of an Arrow column as text, without missing values.

    Returns None if the column's type is not string, large_string or an integer type, or if a text
    is not UTF-8.
    """
    import pyarrow as pa

    kinds, kind = pa.types, items.type
    if not (kinds.is_integer(kind) or kinds.is_string(kind) or kinds.is_large_string(kind)):
        return None
    texts = items.unique().drop_null().cast(pa.large_string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:  # some text is not UTF-8: the caller reads the items one by one
        return None
    return texts


def _text(item: Any) -> str | None:
    """Return the text of an item that is a text or a whole number, else None.

    A whole number may be a float, because a column of integers with a missing value comes as
    floats. Three kinds of text and integers also give None: text that UTF-8 cannot encode, an int
    of 2^64 or more in absolute value, and text or integers whose type is not exactly str or int,
    such as NumPy integers.
    """
    kind = type(item)
    if kind is str:
        return item if item.isascii() or _is_writable(item) else None
    if _is_float(item) and float(item).is_integer():
        return str(int(item))
    if kind is int and abs(item) < 1 << 64:  # Python refuses to print very long integers
        return str(item)
    return None


def _is_float(item: Any) -> bool:
    # `type` cannot fail, but `isinstance` reads `__class__`, which may raise if a user wrote the
    # class.
    return issubclass(type(item), float | np.floating)


def _is_writable(text: str) -> bool:
    """Return whether UTF-8 can encode a text: it cannot encode half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_point(item: Any) -> bool:
    """Return whether an item is a list or tuple of two numbers.

    Each number is a float, or an int above -2^63 and below 2^63.
    """
    return (
        type(item) in (tuple, list)
        and len(item) == 2
        and all(
            type(number) is float or (type(number) is int and abs(number) < 1 << 63)
            for number in item
        )
    )


def _is_inside(domain: Domain, one: Any) -> bool:
    """Return whether the one item of a column is a candidate."""
    try:
        return bool(domain.inside(one)[0]) and len(domain.encode(one)) == 1
    except Exception:  # a class that a user wrote may raise any error
        return False


def _arrow(texts: set[str]) -> Any:
    """Return texts as an Arrow array, or as a `Texts` if PyArrow is not installed."""
    if not arrow.is_installed():
        return Texts(texts)
    import pyarrow as pa

    listed = list(texts)
    blocks = [
        pa.array(listed[start : start + _BLOCK], pa.large_string())
        for start in range(0, len(listed), _BLOCK)
    ]
    return pa.concat_arrays([*blocks, pa.array([], pa.large_string())])


def _of_arrow(item: Any) -> Any:
    """Return the Python value of an Arrow scalar, or None if Python cannot represent it.

    Python cannot represent text that is not UTF-8, for instance, or dates after the year 9999.
    """
    try:
        return item.as_py()
    except Exception:
        return None
