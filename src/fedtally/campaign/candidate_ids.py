"""A client's items as candidates of a domain: no item changes how another one is read.

Text, numbers and coordinates are looked at many at a time, each distinct one once. Items of other
types are read one by one, since a column takes one type for all its values.
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

_BLOCK = 1 << 16  # items that are looked at together, to bound the wait of other threads
_LISTED = "iufUO"  # kinds of NumPy arrays whose list holds the items as they are


def ids_inside(domain: Domain, items: Any) -> npt.NDArray[np.uint64]:
    """Return the ids of the items that are candidates, uint64 [n], in no order.

    Args:
        domain: the candidates.
        items: a column, as `FrequencyClient` takes it.

    Raises:
        TypeError: the items are no column.

    >>> from fedtally.domain import IntegerRange
    >>> sorted(ids_inside(IntegerRange(1, 9), ["7", 7, 3.0, 3.5, None, "tea", [1]]).tolist())
    [3, 7]
    """
    found = [domain.encode(column) for column in _columns_inside(domain, items)]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def texts_inside(domain: Domain, items: Any) -> Any:
    """Return the items of an open domain as an Arrow column of text, in no order.

    Args:
        domain: the domain.
        items: a column, as `FrequencyClient` takes it.

    Raises:
        TypeError: the items are no column.
    """
    found = [as_text(column) for column in _columns_inside(domain, items)]
    if not arrow.is_installed():
        return Texts(text for column in found for text in column)
    import pyarrow as pa

    return pa.chunked_array(found, pa.large_string())


def _columns_inside(domain: Domain, items: Any) -> Iterator[Any]:
    """Yield the items that are candidates, in columns."""
    found = _sorted(domain, items)
    for start in range(0, len(found.texts), _BLOCK):
        block = found.texts[start : start + _BLOCK]
        yield block.filter(domain.inside(block))
    if len(found.points):
        yield found.points[domain.inside(found.points)]
    yield from (one for one in found.others if _is_inside(domain, one))


def is_of_arrow(items: Any) -> bool:
    """Return whether items are an Arrow array, as they cannot be without PyArrow."""
    pa = arrow.found()
    return pa is not None and isinstance(items, pa.Array | pa.ChunkedArray)


class _Sorted(NamedTuple):
    """Items by the way in which they are read.

    Attributes:
        texts: the distinct ones that are text, or numbers, which are written in decimal; an Arrow
            array, or a `Texts` without PyArrow.
        points: the coordinates, float64 [n, 2].
        others: columns of one item each.
    """

    texts: Any
    points: npt.NDArray[np.float64]
    others: list[Any]


def _sorted(domain: Domain, items: Any) -> _Sorted:
    """Sort a column of items by the way in which they are read.

    Raises:
        TypeError: the items are no column.
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
        elif item is not None and not _is_float(item):  # a fraction is a candidate of no domain
            others.append([item])
    if pairs:
        points = np.array(list(pairs), np.float64)
    return _Sorted(_arrow(known), points, others)


def _distinct_texts(items: Any) -> Any:
    """Return the distinct items of an Arrow column of text or integers, as text; else None."""
    import pyarrow as pa

    kinds, kind = pa.types, items.type
    if not (kinds.is_integer(kind) or kinds.is_string(kind) or kinds.is_large_string(kind)):
        return None
    texts = items.unique().drop_null().cast(pa.large_string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:  # bytes that are no UTF-8, and others beside them
        return None
    return texts


def _text(item: Any) -> str | None:
    """Return the text of an item that is text or a whole number; None: it is neither.

    Integers come as floats if a missing value is beside them.
    """
    kind = type(item)
    if kind is str:
        return item if item.isascii() or _is_writable(item) else None
    if _is_float(item) and float(item).is_integer():
        return str(int(item))
    if kind is int and abs(item) < 1 << 64:  # of more digits Python may write none
        return str(item)
    return None


def _is_float(item: Any) -> bool:
    # by its type: what an object of the client's own says of its class may raise
    return issubclass(type(item), float | np.floating)


def _is_writable(text: str) -> bool:
    """Return whether UTF-8 can write a text: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_point(item: Any) -> bool:
    """Return whether an item is two numbers that float64 holds."""
    return (
        type(item) in (tuple, list)
        and len(item) == 2
        and all(
            type(number) is float or (type(number) is int and abs(number) < 1 << 63)
            for number in item
        )
    )


def _is_inside(domain: Domain, one: Any) -> bool:
    """Return whether a column of one item is a candidate."""
    try:
        return bool(domain.inside(one)[0]) and len(domain.encode(one)) == 1
    except Exception:  # a class of the client's own may raise anything
        return False


def _arrow(texts: set[str]) -> Any:
    """Return texts as an Arrow array, which is made of some at a time."""
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
    """Return the value of an Arrow scalar, or None if Python has no such object.

    Such are bytes that are no UTF-8, and dates that are too far away.
    """
    try:
        return item.as_py()
    except Exception:
        return None
