"""Reads columns of items, in any container, as integers, text or coordinates.

Arrow values have the type `Any`, so that type checks do not need PyArrow's stubs. PyArrow is
imported inside functions, because a client may run without it. Then a column of text is a
`plain.Texts` instead of an Arrow array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import arrow
from fedtally.base.text import shortened
from fedtally.domain.plain import Texts, check_column, refuse_several, texts_of
from fedtally.errors import InvalidInputError

_INT64_DIGITS = 18  # an integer with at most this many characters fits int64
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity|nan)"
INTEGER = r"^-?[0-9]+(\.0+)?$"  # pandas writes 1.0 for 1 if a value of the column is missing
_INTEGERS = "integers, such as 42 or -7"  # for error messages
_COORDINATES = "latitude,longitude in degrees, such as 40.75,-73.95"
COORDINATES = rf"^\s*(?P<lat>{_NUMBER})\s*,\s*(?P<lon>{_NUMBER})\s*$"


def as_integers(items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Read a column of integers, or of text that writes integers.

    Text must have the form ``-?[0-9]+`` or ``-?[0-9]+.0+``.

    Returns:
        The values, int64[n]; and for each whether it fits int64, bool[n]. Values that do not fit
        are replaced by 0.

    Raises:
        InvalidInputError: The column holds neither integers nor text, or has missing values, or a
            text has another form.

    >>> as_integers(["12", "-3.0", "9223372036854775808"])
    (array([12, -3,  0]), array([ True,  True, False]))
    """
    if not (isinstance(items, np.ndarray) and items.ndim == 1 and items.dtype.kind in "iu"):
        column = _arrow(items)
        if isinstance(column, Texts):
            return _integers_of_texts(column)
        import pyarrow as pa

        if not pa.types.is_integer(column.type):
            return _integers_of_text(_large_string(column, "integers"))
        items = (
            column.to_numpy(zero_copy_only=False)
            if isinstance(column, pa.Array)
            else column.to_numpy()
        )
    fits = (
        items <= np.iinfo(np.int64).max
        if items.dtype.kind == "u"
        else np.ones(items.size, np.bool_)
    )
    values = items.astype(np.int64, copy=False)  # values that do not fit wrap; see the next line
    return (values, fits) if fits.all() else (np.where(fits, values, 0), fits)


def as_text(items: Any) -> Any:
    """Read a column of text as one Arrow large_string array, or without PyArrow as a `Texts`.

    Integers are turned into decimal text.

    Raises:
        InvalidInputError: The column holds neither text nor integers, or has missing values, or is
            not UTF-8.

    >>> as_text(["tea", "coffee"]).to_pylist()
    ['tea', 'coffee']
    """
    chunks = text_chunks(items)
    if len(chunks) == 1:  # `concat_arrays` would copy it
        return chunks[0]
    import pyarrow as pa

    # An empty array is added because Arrow cannot join an empty list of arrays.
    return pa.concat_arrays([*chunks, pa.nulls(0, pa.large_string())])


def text_chunks(items: Any) -> list[Any]:
    """Read a column of text as a list of Arrow large_string arrays, one for each of its chunks.

    Without PyArrow the list holds one `Texts`. It reads what `as_text` reads, but does not join the
    chunks.

    >>> [len(chunk) for chunk in text_chunks(["tea", "coffee"])]
    [2]
    """
    column = _arrow(items)
    if isinstance(column, Texts):
        return [column]
    import pyarrow as pa

    if not pa.types.is_integer(column.type):
        return _chunks(_large_string(column, "text"))
    return _chunks(column.cast(pa.large_string()))


def is_grouped(items: Any) -> bool:
    """Return whether a column is an Arrow dictionary array: distinct values, and an index per row.

    >>> import pyarrow as pa
    >>> words = pa.array(["tea", "rice", "tea"])
    >>> is_grouped(words), is_grouped(words.dictionary_encode())
    (False, True)
    """
    import pyarrow as pa

    return isinstance(items, pa.DictionaryArray)


def distinct(items: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return the distinct values of an Arrow array, and for each row the index of its value.

    Args:
        items: Arrow array without missing values, of any type. In a dictionary array, values that
            no row uses are left out. A value that the dictionary lists twice is returned twice.

    Returns:
        The values, an Arrow array; and the indices, int64 [n].

    >>> import pyarrow as pa
    >>> words = pa.DictionaryArray.from_arrays([2, 0, 2], ["tea", "milk", "rice"])
    >>> values, places = distinct(words)
    >>> values.to_pylist(), places.tolist()
    (['tea', 'rice'], [1, 0, 1])
    """
    encoded = items if is_grouped(items) else items.dictionary_encode()
    places = numbers_of(encoded.indices).astype(np.int64)
    if encoded is not items:
        return encoded.dictionary, places
    held = np.zeros(len(encoded.dictionary), np.bool_)
    held[places] = True
    if held.all():
        return encoded.dictionary, places
    return encoded.dictionary.filter(held), (np.cumsum(held) - 1)[places]


def as_coordinates(items: Any) -> npt.NDArray[np.float64]:
    """Read a column of "latitude,longitude" text, or a numeric (n, 2) array, as float64[n, 2].

    Raises:
        InvalidInputError: The items are neither text nor a numeric (n, 2) array, values are
            missing, or a text is not two numbers with a comma between them.

    >>> as_coordinates(["40.75,-73.95"])
    array([[ 40.75, -73.95]])
    """
    pairs = _pairs(items)
    if pairs is not None:
        return pairs
    column = _arrow(items)
    if isinstance(column, Texts):
        _all_good(column, holds(column, COORDINATES), _COORDINATES)
        return column.coordinates(COORDINATES)
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.concat_arrays(
        [*_chunks(_large_string(column, "coordinates")), pa.nulls(0, pa.large_string())]
    )
    fields = pc.extract_regex(text, COORDINATES)
    _all_good(text, _array(fields.is_valid()), _COORDINATES)
    columns = [
        pc.struct_field(fields, name).cast(pa.float64()).to_numpy(zero_copy_only=False)
        for name in ("lat", "lon")
    ]
    return np.stack(columns, axis=1)


def places_in(text: Any, others: Any) -> npt.NDArray[np.int64]:
    """Return the index in `others` at which each text first occurs, int64 [n]; -1: nowhere.

    Args:
        text: Arrow large_string array or `Texts`.
        others: the texts to search, of the same type as `text`.

    >>> places_in(as_text(["rice", "tea"]), as_text(["tea", "milk"]))
    array([-1,  0])
    """
    if isinstance(text, Texts):
        return text.places_in(others)
    import pyarrow.compute as pc

    found = pc.index_in(text, value_set=others)
    # DLPack refuses a mask of missing values, so the mask is dropped; `fill_null` would load
    # pandas.
    known = found.from_buffers(
        found.type, len(found), [None, found.buffers()[1]], offset=found.offset
    )
    return np.where(_array(found.is_valid()), np.from_dlpack(known), -1).astype(np.int64)


def taken(text: Any, positions: npt.NDArray[np.int64]) -> Any:
    """Return the texts at some positions, in the order of `positions`, which is int64 [n].

    >>> taken(as_text(["rice", "tea"]), np.array([1, 1, 0])).to_pylist()
    ['tea', 'tea', 'rice']
    """
    if isinstance(text, Texts):
        return text.take(positions)
    import pyarrow as pa

    where = np.ascontiguousarray(positions, np.int64)
    # Arrow would load pandas to read the NumPy array itself
    return text.take(pa.Array.from_buffers(pa.int64(), len(where), [None, pa.py_buffer(where)]))


def holds(text: Any, pattern: str) -> npt.NDArray[np.bool_]:
    """Return whether a regular expression matches anywhere in each text, bool [n].

    >>> holds(as_text(["tea", "rice"]), "^r")
    array([False,  True])
    """
    if isinstance(text, Texts):
        return text.holds(pattern)
    import pyarrow.compute as pc

    return _array(pc.match_substring_regex(text, pattern))


def numbers_of(array: Any) -> npt.NDArray[Any]:
    """Return an Arrow array of numbers, without missing values, as a read-only NumPy view.

    PyArrow's own `to_numpy` imports pandas if it is installed. This import takes longer than
    counting a small table.

    >>> import pyarrow as pa
    >>> numbers_of(pa.array([3, 1, 2])[1:]).tolist()
    [1, 2]
    """
    return np.from_dlpack(array)


def utf8_buffers(text: Any) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the UTF-8 bytes of all texts, uint8, and the offset of each text, int64 [n + 1].

    Text i is bytes[offsets[i] : offsets[i + 1]]. The first offset is 0, even for a slice. The bytes
    of an Arrow array are a view, not a copy.

    Args:
        text: Arrow large_string array or `Texts`.

    >>> utf8_buffers(as_text(["tea", "coffee"]))[1]
    array([0, 3, 9])
    """
    if isinstance(text, Texts):
        return text.buffers()
    _, offsets_buffer, data_buffer = text.buffers()
    if len(text) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_buffer, np.int64, count=len(text) + 1, offset=8 * text.offset)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data[offsets[0] : offsets[-1]], offsets - offsets[0] if offsets[0] else offsets


def text_of_buffers(data: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> Any:
    """Return the Arrow large_string array of which `utf8_buffers` returned `data` and `offsets`.

    Raises:
        InvalidInputError: the dtype or shape of an array is wrong.
        pyarrow.ArrowInvalid: the offsets or the bytes make no valid text.

    >>> text_of_buffers(*utf8_buffers(as_text(["tea", "coffee"]))).to_pylist()
    ['tea', 'coffee']
    """
    import pyarrow as pa

    if (
        data.dtype != np.uint8
        or offsets.dtype != np.int64
        or data.ndim != 1
        or offsets.ndim != 1
        or not offsets.size
    ):
        raise InvalidInputError("text must be kept as uint8 bytes and at least one int64 offset")
    offsets_buffer, data_buffer = (
        pa.py_buffer(np.ascontiguousarray(part).data) for part in (offsets, data)
    )
    text = pa.LargeStringArray.from_buffers(offsets.size - 1, offsets_buffer, data_buffer)
    text.validate(full=True)  # the buffers come from a file: bad offsets would read foreign memory
    return text


def shown(items: Any, row: int) -> str:
    """Return one item of a column as text for a message, cut to 60 characters.

    A pair of numbers is not cut.

    >>> shown(np.array([250]), 0), shown(["x" * 99], 0)[:9], shown([[40.5, -70.0]], 0)
    ('250', "'xxxxxxxx", '40.5,-70.0')
    """
    pairs = _pairs(items)
    if pairs is not None:
        return ",".join(str(number) for number in pairs[row].tolist())
    text = repr(_arrow(items)[int(row) : int(row) + 1].to_pylist()[0])
    return text if len(text) <= 60 else f"{text[:59]}…"


def _arrow(items: Any) -> Any:
    """Return the column as an Arrow array or chunked array, but never as a dictionary array.

    Without PyArrow the result is a `Texts`.

    Raises:
        InvalidInputError: `items` is no column, has missing values or mixed types.
    """
    if isinstance(items, (str, bytes)):
        raise InvalidInputError(
            f"items must be a column, got the single item {items!r}; write [{items!r}]"
        )
    if not arrow.is_installed():
        return texts_of(items)
    import pyarrow as pa

    if isinstance(items, (pa.Array, pa.ChunkedArray)):
        column = items
    elif hasattr(items, "__arrow_c_stream__"):
        column = pa.chunked_array(items)
    else:
        column = _arrow_of_objects(items)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise InvalidInputError(
            f"items must have no missing values, the first of {column.null_count:,} is in row {row}"
        )
    return column


def _arrow_of_objects(items: Any) -> Any:
    import pyarrow as pa

    check_column(items)
    try:
        if isinstance(items, list) and all(type(item) is str for item in items):
            # `pa.array` would load pandas, which takes longer than a short command
            return text_of_buffers(*Texts(items).buffers())
        return pa.array(items)
    except OverflowError:  # Python integers beyond int64
        return text_of_buffers(*texts_of(items).buffers())
    except UnicodeEncodeError as error:  # a lone surrogate, as a shell's bytes that are no text
        raise InvalidInputError(
            f"items must be text that UTF-8 can write, got {shortened(error.object, 40)!r}"
        ) from error
    except (TypeError, ValueError) as error:
        refuse_several(items)
        kinds = ", ".join(sorted({type(item).__name__ for item in items}))
        raise InvalidInputError(
            f"items must be one column of text or integers, got values of type {kinds}: write each"
            " as text"
        ) from error


def _large_string(column: Any, wanted: str) -> Any:
    import pyarrow as pa

    types = pa.types
    known = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary,
        types.is_large_binary,
    )
    if types.is_nested(column.type):
        raise InvalidInputError(
            f"items must be {wanted}, got a column of {column.type}: choose one plain column, or"
            " write a row for each value"
        )
    if not (any(is_known(column.type) for is_known in known) or len(column) == 0):
        raise InvalidInputError(
            f"items must be {wanted}, got a column of {column.type}: write each as text"
        )
    try:
        return column.cast(pa.large_string())
    except ValueError as error:
        raise InvalidInputError(f"items must be {wanted} in UTF-8") from error


def _chunks(column: Any) -> list[Any]:
    return list(column.chunks) if hasattr(column, "chunks") else [column]


def _array(flags: Any) -> npt.NDArray[np.bool_]:
    """Return an Arrow array of booleans as a NumPy array.

    `to_numpy` would import pandas, which takes longer than everything else in a short command.
    """
    found: npt.NDArray[Any] = np.from_dlpack(flags.cast("uint8"))
    return found.view(np.bool_)


def _all_good(text: Any, good: npt.NDArray[np.bool_], wanted: str) -> None:
    """Raise InvalidInputError, which names the first bad text, unless all texts are good.

    Args:
        text: the texts.
        good: bool [n], whether each text can be read.
        wanted: what the texts should be, for the message.
    """
    bad = np.flatnonzero(~good)
    if bad.size:
        raise InvalidInputError(
            f"{bad.size:,} of {len(text):,} items cannot be read as {wanted}; the first is"
            f" {shown(text, bad[0])}: other items need another domain, such as a list of words"
        )


def _integers_of_text(column: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.concat_arrays([*_chunks(column), pa.nulls(0, pa.large_string())])
    _all_good(text, holds(text, INTEGER), _INTEGERS)
    if pc.any(pc.match_substring(text, ".")).as_py():
        text = pc.replace_substring_regex(text, r"\.0+$", "")
    # A single number beyond int64 makes Arrow refuse the whole column. So the few long texts are
    # read one by one.
    long = pc.greater(pc.binary_length(text), pa.scalar(_INT64_DIGITS))
    short = pc.if_else(long, pa.scalar("0", pa.large_string()), text)
    values = short.cast(pa.int64()).to_numpy(zero_copy_only=False).copy()
    fits = np.ones(values.size, np.bool_)
    for row in np.flatnonzero(long.to_numpy(zero_copy_only=False)):
        values[row], fits[row] = _long_integer(text[int(row)].as_py())
    return values, fits


def _integers_of_texts(column: Texts) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Read text that writes integers, as `as_integers` does, without PyArrow."""
    _all_good(column, holds(column, INTEGER), _INTEGERS)
    pairs = [_long_integer(text.partition(".")[0]) for text in column]
    return np.array([value for value, _ in pairs], np.int64), np.array(
        [fits for _, fits in pairs], np.bool_
    )


def _long_integer(text: str) -> tuple[int, bool]:
    """Return the value of an integer of any length, and whether it fits int64; 0 if it does not."""
    digits = text.lstrip("-").lstrip("0")
    # Long numbers are sorted out before int(), whose time grows with the square of their length.
    if len(digits) > _INT64_DIGITS + 1:
        return 0, False
    value = int(digits or "0") * (-1 if text.startswith("-") else 1)
    fits = -(1 << 63) <= value < 1 << 63
    return value if fits else 0, fits


def _pairs(items: Any) -> npt.NDArray[np.float64] | None:
    """Return a numeric (n, 2) array, or a list of pairs, as float64 [n, 2]; None for other items.

    Raises:
        InvalidInputError: the pairs differ in length, or are no numbers of the shape (n, 2).
    """
    if (
        isinstance(items, (list, tuple))
        and items
        and isinstance(items[0], (list, tuple, np.ndarray))
    ):
        try:
            items = np.asarray(items)
        except ValueError as error:
            raise InvalidInputError("coordinates must be pairs of numbers, two each") from error
    if not isinstance(items, np.ndarray) or items.ndim < 2:
        return None
    if items.ndim > 2 or items.shape[1] != 2 or items.dtype.kind not in "fiu":
        raise InvalidInputError(
            f"coordinates must be numbers of shape (n, 2), got {items.dtype} of shape {items.shape}"
        )
    return items.astype(np.float64, copy=False)
