"""Turn each value of an Arrow column or a Python object into the text or integer that is its item.

The rules are the same for every format. Text stays as it is. A value of another type becomes one
text, whether it comes from Parquet, Arrow, pandas, Polars or a list. A CSV has no types: it gives
the same items only if the program that wrote it wrote this text. The docstring of
`fedtally.sources` lists the texts, and the programs that write others.

With `private`, no value is an error, and no value changes how another one is read: a value that
cannot be read is missing. The type of a column is public, so a type may still be an error.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base.text import in_number
from fedtally.domain.plain import holds_several
from fedtally.errors import InvalidInputError, opt

_COUNT_BOUND = 2**63
# By the number of bits: below this bound a float represents every integer exactly. From the bound
# on, several integers become the same float.
_EXACT_FLOAT = {16: 2.0**11, 32: 2.0**24, 64: 2.0**53}
_DAY = 86_400  # seconds
_SHOWN = 60  # the most characters of a value in a message
# A number without a fraction that is written with .0 at its end. One of the two groups matches, and
# has the number without .0.
WHOLE_NUMBER = r"^-?(0)\.0+$|^(-?[1-9][0-9]*)\.0+$"
_MARK = "\ufeff"  # a byte order mark
_CLIENT = opt.client("COL")
_ZONE = r"(Z|[+-][0-9]{4})?$"  # a time zone as Arrow writes it


def as_values(
    column: Any,
    what: str,
    private: bool = False,
    grouped: bool = False,
    client: str = _CLIENT,
) -> Any:
    """Return an Arrow column as text or integers; missing values are null.

    Args:
        column: an Arrow array of any type.
        what: the name of the column in messages.
        private: whether a value that cannot be read is missing, and not an error.
        grouped: whether a column that is a dictionary of text may stay a dictionary. The caller
            then need not compare all rows. A row whose value is missing is null, also if the
            dictionary has a null for it. With `private` the result is never a dictionary.
        client: the option that names the client of each row, for messages.

    Raises:
        InvalidInputError: the type cannot be read. Or, unless `private`, a value cannot be read.

    >>> import pyarrow as pa
    >>> as_values(pa.array(["tea", "", None]), "drinks").to_pylist()
    ['tea', None, None]
    >>> as_values(pa.array([500_000, 1_000_000], pa.timestamp("us")), "times").to_pylist()
    ['1970-01-01 00:00:00.5', '1970-01-01 00:00:01']
    >>> as_values(pa.array([1.0, 2.5]), "sizes", private=True).to_pylist()
    ['1', '2.5']
    """
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_dictionary(column.type):
        # Under privacy every row is read independently, and not with others in a dictionary.
        if grouped and not private and is_text(column.type.value_type):
            return _read_once(column, what)
        column = _decoded(column)
    kind = column.type
    if kinds.is_integer(kind):
        return column
    if kinds.is_nested(kind):
        raise InvalidInputError(
            f"{what} holds values of type {kind}: choose one plain column, or write a row for each"
            f" value, and name its client ({client})"
        )
    if kinds.is_floating(kind):
        # With `private` floats are always text: the type of a column must not depend on its values.
        text = _float_text(column) if private else _whole(column, what)
    elif private:
        text = _each(column, lambda part: _text(part, what), pa.ArrowInvalid, pa.large_string())
    else:
        try:
            text = _text(column, what)
        except pa.ArrowInvalid as error:
            why = f"is no valid UTF-8 text; say which encoding it is ({opt.text_encoding})"
            if not is_text(kind):
                why = "holds bytes that are no UTF-8 text: decode it to text first"
            raise InvalidInputError(f"{what} {why}") from error
    if kinds.is_integer(text.type):
        return text
    return _without_empty(text)


def _without_empty(text: Any) -> Any:
    """Return a column of texts in which empty texts are null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _has_empty(text):  # most columns; no text is copied then
        return text
    # The lengths are not compared with Python's 0, and the null is not made from Python's None: for
    # either PyArrow would import pandas.
    is_held = pc.binary_length(text).cast(pa.bool_())
    return pc.if_else(is_held, text, pa.nulls(1, text.type)[0])


def _has_empty(text: Any) -> bool:
    """Return whether a column has an empty text; a null may count as an empty text."""
    if not len(text):
        return False
    offsets = _offsets(text)
    return bool(np.any(offsets[1:] == offsets[:-1]))


def _offsets(text: Any) -> npt.NDArray[Any]:
    """Return the offsets of an Arrow array of text: int32 or int64 [n + 1].

    Text i begins at offset i in the bytes of the array, and ends at offset i + 1.
    """
    import pyarrow as pa

    kind = np.dtype(np.int64 if pa.types.is_large_string(text.type) else np.int32)
    start, size = kind.itemsize * text.offset, len(text) + 1
    return np.frombuffer(text.buffers()[1], kind, count=size, offset=start)


def _read_once(column: Any, what: str) -> Any:
    """Return an Arrow dictionary array of text with its values converted as by `as_values`.

    Each value in the dictionary is converted once, and not once for each row. If one of these
    values cannot be read, each row is converted: the result is then no dictionary, and an error is
    raised only if a row has the value.

    Args:
        column: the Arrow dictionary array of text.
        what: the name of the column in messages.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    indices = column.indices
    try:
        texts = as_values(column.dictionary, what)
    except InvalidInputError:  # a value that no row has is no error, so read the rows
        return as_values(_decoded(column), what)
    if texts.null_count:
        held = texts.is_valid().take(indices)
        indices = pc.if_else(held, indices, pa.scalar(None, indices.type))
    return pa.DictionaryArray.from_arrays(indices, texts)


def as_pairs(parts: Sequence[Any], names: Sequence[str], where: str, private: bool = False) -> Any:
    """Return two columns as one column of texts `lat,lon`.

    A row in which one of the two values is missing is null.

    Args:
        parts: the two columns, Arrow arrays.
        names: the names of the two columns.
        where: the name of the source in messages.
        private: whether a value that cannot be read is missing, and not an error.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = []
    for part, name in zip(parts, names, strict=True):
        if pa.types.is_floating(part.type):
            part = _float_text(part)
        texts.append(as_values(part, f"{where}: column {name!r}", private).cast(pa.string()))
    return pc.binary_join_element_wise(*texts, ",")


def as_names(column: Any, what: str, private: bool = False) -> Any:
    """Return a column of names of clients, silos or rounds as text or integers.

    Missing names are null. Texts such as 7.0 and 7.00 become 7: pandas writes 7.0 for the integer 7
    if a value of the column is missing, and a column of decimals has digits after its point. A byte
    order mark at the start of a text is removed, because joined files have such marks. Otherwise
    names are converted as by `as_values`. Every row is read independently.

    See `as_values` for the arguments and the errors.

    >>> import pyarrow as pa
    >>> as_names(pa.array(["7", "7.0", "-7.00", "007.0", "7.5", "7e0", " 7"]), "users").to_pylist()
    ['7', '7', '-7', '007.0', '7.5', '7e0', ' 7']
    """
    import pyarrow.compute as pc

    names = as_values(column, what, private)
    if not is_text(names.type):
        return names
    # Most columns have neither a mark nor ".0". Searching takes a tenth of the time of replacing.
    if pc.any(pc.starts_with(names, _MARK)).as_py():
        names = _without_empty(pc.replace_substring_regex(names, f"^{_MARK}+", ""))
    if pc.any(pc.match_substring(names, ".0")).as_py():
        names = pc.replace_substring_regex(names, WHOLE_NUMBER, r"\1\2")
    return names


def as_counts(column: Any, what: str, private: bool = False) -> npt.NDArray[np.int64]:
    """Return a column of counts as int64 [n].

    Args:
        column: an Arrow array.
        what: the name of the column in messages.
        private: whether a count that is missing or cannot be read is 0, and not an error. Its row
            then stands for no client.

    Raises:
        InvalidInputError: the column's type cannot have counts. Or, unless `private`, a value is
            missing, or is no integer from 0 to 2^63 - 1.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = _decoded(column)
    if not any(is_known(column.type) for is_known in _countable()):
        raise InvalidInputError(f"{what} must hold whole numbers, got values of type {column.type}")
    if not private:
        return _counts(column, what)
    counts = _each(
        column, lambda part: pa.array(_counts(part, what)), InvalidInputError, pa.int64()
    )
    read: npt.NDArray[np.int64] = counts.fill_null(0).to_numpy(zero_copy_only=False)
    return read


def _countable() -> tuple[Callable[[Any], bool], ...]:
    """Return functions that test an Arrow type.

    If one of them returns True, a column of this type can be read as counts: texts, integers,
    floats and decimals.
    """
    from pyarrow import types

    texts = (types.is_string, types.is_large_string, types.is_string_view)
    return (*texts, types.is_integer, types.is_floating, types.is_decimal)


def _counts(column: Any, what: str) -> npt.NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        rows = in_number(column.null_count, "1 row", "{} rows")
        raise InvalidInputError(
            f"{what} misses the count in {rows}: fill in 0, or leave such rows out"
        )
    kinds, kind = pa.types, column.type
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        trimmed = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
        column = _parsed(pc.replace_substring_regex(trimmed, r"\.0*$|^\+", ""), column, what)
    elif kinds.is_decimal(kind):
        column = _parsed(column, column, what)
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    # NaN does not fit, because every comparison with it is False.
    fits = (numbers >= 0) & (numbers < _COUNT_BOUND)
    if numbers.dtype.kind == "f":
        fits &= np.floor(numbers) == numbers
    if not fits.all():
        _reject(numbers[np.argmin(fits)], what)
    return numbers.astype(np.int64, copy=False)


def of_objects(values: Sequence[Any]) -> Any:
    r"""Return Python objects as an Arrow column: int64 if all are integers and fit, otherwise text.

    An object that cannot be read is null. Each object is read alone, so the type of one object
    never changes the text of another.

    >>> of_objects(["tea", 7, None, 7.5, [1], "\ud800", b"rice"]).to_pylist()
    ['tea', '7', None, '7.5', None, None, 'rice']
    >>> of_objects([3, None]).type
    DataType(int64)
    """
    import pyarrow as pa

    plain = [_plain(value) for value in values]
    # Types are told apart by identity: a class may define its own hash and equality, and these may
    # raise errors.
    types = {id(type(value)): type(value) for value in plain if value is not None}
    is_whole = all(kind is int for kind in types.values())
    if is_whole and all(value is None or -(2**63) <= value < 2**63 for value in plain):
        return pa.array(plain, pa.int64())
    texts: list[str | None] = [None] * len(plain)
    for kind in types.values():
        places = [place for place, value in enumerate(plain) if type(value) is kind]
        held = [plain[place] for place in places]
        for place, text in zip(places, _texts_of(kind, held), strict=True):
            texts[place] = text
    return pa.array(texts, pa.large_string())


def of_column(values: Sequence[Any], what: str, beside: tuple[str, str] | None = None) -> Any:
    """Return Python objects of one type as an Arrow column of this type, or as text.

    None and NaN are missing. Integers and floats without a fraction may be in one column, because
    many programs write integers as floats if a value is missing.

    Args:
        values: the objects.
        what: the name of the column in messages.
        beside: for a column of items, the options that name the client and the count of each row,
            for messages.

    Raises:
        InvalidInputError: the objects have several types, or an object cannot be read.

    >>> of_column([uuid.UUID(int=1), None], "ids").to_pylist()
    ['00000000-0000-0000-0000-000000000001', None]
    >>> of_column([7, "tea"], "drinks")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: drinks must be all text or all integers, got values of ...
    """
    import pyarrow as pa

    values, kinds = _of_few_types(values)
    if beside is not None:
        _refuse_several(values, kinds, what, *beside)
    _check_one_type(values, kinds, what)
    family = _family(next(iter(kinds))) if kinds else str
    try:
        if family in _ARROW_READS:
            return pa.array(values)
        if family is not None:
            texts = iter(_texts_of(family, [value for value in values if value is not None]))
            return pa.array([None if value is None else next(texts) for value in values])
    except UnicodeError:
        raise InvalidInputError(
            f"{what} must be text that UTF-8 can write, without lone surrogates"
        ) from None
    except OverflowError:
        if family is int:
            return _unsigned(values, what)
    except (pa.ArrowException, TypeError, ValueError):  # for example, a decimal has too many digits
        pass
    names = ", ".join(sorted(type_of(kind) for kind in kinds))
    raise InvalidInputError(
        f"{what} must be all text or all integers, got values of type {names}: write each as text"
    )


def _of_few_types(values: Sequence[Any]) -> tuple[Sequence[Any], set[type]]:
    """Return objects with None in place of missing ones (`_is_missing`), and the set of their types
    without NoneType.

    If all are integers and floats, with at least one of each, then all get one type: integers if
    each float is an exact integer (`_is_exact`), otherwise floats.
    """
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {str} or kinds <= {int}:
        return values, kinds
    values = [None if _is_missing(value) else _plain(value) for value in values]
    kinds = {type(value) for value in values} - {type(None)}
    if kinds != {int, float}:
        return values, kinds
    kind = int if all(_is_exact(value) for value in values if type(value) is float) else float
    return [None if value is None else kind(value) for value in values], {kind}


def _refuse_several(
    values: Sequence[Any], kinds: set[type], what: str, client: str, count: str
) -> None:
    """Raise an InvalidInputError if objects that should be items hold several values each.

    Written as text, the whole list of a client would be one item.

    Args:
        values: the objects.
        kinds: the types of the objects, without None.
        what: the name of the column in the message.
        client: the option that names the client of each row.
        count: the option that names the count of each row.
    """
    several = {kind for kind in kinds if holds_several(kind) and _family(kind) is None}
    if not several:
        return
    names = ", ".join(sorted(type_of(kind) for kind in kinds))
    pairs = [value for value in values if value is not None]
    if all(map(_is_pair, pairs)) and any(isinstance(part, float) for part in chain(*pairs)):
        raise InvalidInputError(
            f"{what} must be all text or all integers, got pairs of floats ({names}): pass"
            " coordinates as a NumPy array of floats [n, 2]"
        )
    if all(issubclass(kind, tuple) for kind in several):
        raise InvalidInputError(
            f"{what} must be all text or all integers, got values of type {names}: write a row for"
            f" each item, and name its client ({client}) or its count ({count}), or write each"
            " tuple as text if it is one item"
        )
    raise InvalidInputError(
        f"{what} must be all text or all integers, got values of type {names}: write a row for each"
        f" item, and name its client ({client})"
    )


def _is_pair(value: Any) -> bool:
    """Return whether an object is a list or a tuple of two numbers."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    return is_pair and all(isinstance(part, float | int) for part in value)


def _check_one_type(values: Sequence[Any], kinds: set[type], what: str) -> None:
    """Raise an InvalidInputError if objects of these types cannot be one column.

    Args:
        values: the objects.
        kinds: the types of the objects, without None.
        what: the name of the column in the message.
    """
    if len({_family(kind) for kind in kinds}) > 1:
        names = ", ".join(sorted(type_of(kind) for kind in kinds))
        raise InvalidInputError(
            f"{what} must be all text or all integers, got values of several types ({names}): write"
            " all of them as text"
        )
    if any(issubclass(kind, datetime.datetime | datetime.time) for kind in kinds):
        zoned = {value.tzinfo is not None for value in values if value is not None}
        if len(zoned) > 1:  # Arrow would read times without a zone as UTC
            raise InvalidInputError(
                f"{what} holds times with a zone and times without one: give all of them one"
            )


def _is_exact(number: float) -> bool:
    """Return whether a float is an integer, and no other integer is rounded to the same float."""
    return number.is_integer() and abs(number) < _EXACT_FLOAT[64]


def _unsigned(values: Sequence[Any], what: str) -> Any:
    """Return integers as uint64, because one of them does not fit into int64.

    Raises:
        InvalidInputError: an integer is too large for uint64, or one is negative.
    """
    import pyarrow as pa

    try:
        return pa.array(values, pa.uint64())
    except (OverflowError, pa.ArrowException):
        raise InvalidInputError(
            f"{what} holds integers beyond 64 bits; pass them as text"
        ) from None


def type_of(kind: type) -> str:
    """Return the name of a Python type for a message, with its package unless it is built in.

    >>> type_of(int), type_of(uuid.UUID)
    ('int', 'uuid.UUID')
    """
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


# `_family` uses the first type of `_FAMILIES` that fits, so their order matters: a datetime is also
# a date, and a bool is also an int.
_ONE_BY_ONE = (datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal)
_ARROW_READS = (str, bool, int, float, bytes, *_ONE_BY_ONE, datetime.date)
_FAMILIES = (*_ARROW_READS, uuid.UUID, np.datetime64, np.timedelta64)


def _family(kind: type) -> type | None:
    """Return the type that decides how objects of a type are read; None: they cannot be read."""
    known = next((family for family in _FAMILIES if issubclass(kind, family)), None)
    return kind if known is None and _of_pandas(kind) is not None else known


def _of_pandas(kind: type) -> Callable[[Any], str | None] | None:
    """Return a function that writes objects of a pandas type as text.

    Returns None if the type is not from pandas, or cannot be read.
    """
    if kind.__module__.partition(".")[0] != "pandas":
        return None
    known: dict[str, Callable[[Any], str | None]] = {"Period": str, "Interval": _text_of_interval}
    return known.get(kind.__name__)


def _text_of_interval(value: Any) -> str | None:
    left, right = (
        repr(float(end)) if isinstance(end, float) else of_objects([end]).to_pylist()[0]
        for end in (value.left, value.right)
    )
    return None if left is None or right is None else interval_text(left, right, value.closed)


def _is_missing(value: Any) -> bool:
    """Return whether an object stands for a missing value: None, NaN, NaT, or NA of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, float | np.floating | np.datetime64 | np.timedelta64 | decimal.Decimal):
        return bool(value != value)
    return False


def _plain(value: Any) -> Any:
    """Return the Python object for a NumPy scalar; other objects are returned unchanged.

    A NumPy time stays a NumPy scalar. Python has no nanoseconds, and NumPy's `item()` would return
    an integer. An object that cannot be converted becomes None.
    """
    kind = type(value)
    if not issubclass(kind, np.generic) or issubclass(kind, np.datetime64 | np.timedelta64):
        return value
    try:
        return value.item()
    except Exception:  # a subclass may raise any error; its object cannot be read
        return None


def _texts_of(kind: type, values: list[Any]) -> list[str | None]:
    """Return the texts of objects of one Python type; None for each object that cannot be read."""
    import pyarrow as pa

    if issubclass(kind, str):
        return [_writable(value) for value in values]
    if kind is int:
        return [_digits(value) for value in values]
    write = str if kind is uuid.UUID else _of_pandas(kind)
    if write is not None:
        return [_attempt(write, value) for value in values]
    known = {bool: pa.bool_(), float: pa.float64(), bytes: pa.binary(), datetime.date: pa.date32()}
    arrow = next((found for own, found in known.items() if kind is own), None)
    if arrow is not None:
        columns = [pa.array(values, arrow)]
    elif issubclass(kind, np.datetime64 | np.timedelta64):
        columns = [_attempt(lambda own: of_numpy(np.asarray([own])), value) for value in values]
    elif issubclass(kind, _ONE_BY_ONE):
        # One by one: in a list, Arrow would give all objects the same time zone or decimal scale.
        columns = [_attempt(lambda own: pa.array([own]), value) for value in values]
    else:
        return [None] * len(values)
    texts: list[str | None] = []
    for column in columns:
        column = pa.nulls(1) if column is None else column
        texts += as_values(column, "items", private=True).to_pylist()
    return texts


def _attempt(read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    # `value` may be an object of a class that a client's program defined, so its methods may raise
    # any error. Nothing else runs in this `try`, so no error of this package is hidden.
    except Exception:
        return None


def of_numpy(values: Any) -> Any:
    """Return a NumPy array [n] of any byte order as an Arrow column.

    Raises:
        ArrowException: the type cannot be read.

    >>> of_numpy(np.array(["2026-01", "2026-02"], "M8[M]")).to_pylist()
    ['2026-01', '2026-02']
    >>> of_numpy(np.array([1, 2], ">i8")).type
    DataType(int64)
    """
    import pyarrow as pa

    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    kind = values.dtype.kind
    if kind in "mM":
        unit, _ = np.datetime_data(values.dtype)
        if kind == "M" and unit in ("Y", "M"):
            texts = np.datetime_as_string(values).tolist()
            return pa.array([None if text == "NaT" else text for text in texts], pa.string())
        # Arrow has dates, and times from seconds to nanoseconds; longer units are converted to
        # these. A duration in months is not, because a month has no fixed length.
        known = {"W": "D", "D": "D"} if kind == "M" else {"W": "s", "D": "s"}
        unit = (known | {"h": "s", "m": "s"}).get(unit, unit)
        if unit in ("D", "s", "ms", "us", "ns"):
            values = values.astype(f"{kind}8[{unit}]")
    return pa.array(values, from_pandas=True)


def _writable(text: str) -> str | None:
    """Return a text as a plain str.

    Return None if UTF-8 cannot encode the text, because of a lone surrogate, or if the text is of a
    subclass of str whose own `encode` raises an error.
    """
    try:
        text.encode()
        # This calls no method of a subclass, so the result has the characters themselves.
        return str.encode(text).decode()
    # A subclass of str may raise any error. Only its own methods run in this `try`, so no error of
    # this package is hidden.
    except Exception:
        return None


def _digits(number: int) -> str | None:
    try:
        return str(number)
    except ValueError:  # Python refuses to write so many digits
        return None


def _each(column: Any, convert: Callable[[Any], Any], error: type[Exception], kind: Any) -> Any:
    """Return a column converted to a type; a value that cannot be converted is null.

    If the conversion of a part fails, its two halves are converted, down to single values.

    Args:
        column: an Arrow array.
        convert: converts an Arrow array, and raises `error` if a value in it cannot be converted.
        error: the type of the error.
        kind: the Arrow type of the result.
    """
    import pyarrow as pa

    try:
        return convert(column).cast(kind)
    except error:
        if len(column) == 1:
            return pa.nulls(1, kind)
    # The recursion ends, because an empty column never fails, and a single value is handled above.
    middle = len(column) // 2
    return pa.concat_arrays(
        [_each(part, convert, error, kind) for part in (column[:middle], column[middle:])]
    )


def _text(column: Any, what: str) -> Any:
    """Return a column of any plain type except integers and floats as text.

    Raises:
        ArrowInvalid: a value cannot be read.
        InvalidInputError: the type cannot be read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds, kind = pa.types, column.type
    if kinds.is_duration(kind):
        return _duration_text(column)
    if not is_text(kind):
        try:
            column = column.cast(
                pa.large_string() if kinds.is_large_binary(kind) or _is_view(kind) else pa.string()
            )
        except pa.ArrowNotImplementedError as error:
            raise InvalidInputError(
                f"{what} is of type {kind}: cast it to integers or text first"
            ) from error
    if kinds.is_decimal(kind):
        return _plain_decimals(column)
    column.validate()
    if not _is_ascii(column):
        column.validate(full=True)  # Arrow does not check whether the bytes of a file are UTF-8
    if _is_bytes(kind) and pc.any(pc.match_substring(column, "\0")).as_py():
        # For example, the bytes of a number or a UUID.
        raise pa.ArrowInvalid("a NUL byte is no text")
    return _shortest(column) if kinds.is_timestamp(kind) or kinds.is_time(kind) else column


def each_once(column: Any, text_of: Callable[[Any], str | None]) -> Any:
    """Return an Arrow column as texts; `text_of` is called once for each distinct value.

    A null stays a null.

    Args:
        column: an Arrow array of any type.
        text_of: returns the text of a Python value, or None if the value is to be null.
    """
    import pyarrow as pa

    found = column.dictionary_encode()
    texts = [None if value is None else text_of(value) for value in found.dictionary.to_pylist()]
    return pa.array(texts, pa.large_string()).take(found.indices)


def interval_text(left: object, right: object, closed: str) -> str:
    """Return the text of an interval, as pandas writes it.

    Args:
        left: the left end.
        right: the right end.
        closed: the ends that belong to the interval: "left", "right", "both" or "neither".

    >>> interval_text(0, 1, "right")
    '(0, 1]'
    """
    opening = "[" if closed in ("left", "both") else "("
    return f"{opening}{left}, {right}{']' if closed in ('right', 'both') else ')'}"


def _duration_text(column: Any) -> Any:
    """Return the texts of durations as pandas writes them.

    Unlike pandas, zeros at the end of a fraction of a second are left out.
    """
    import pyarrow as pa

    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[column.type.unit]

    def text_of(number: int) -> str:
        seconds, part = divmod(number, 10**digits)
        days, seconds = divmod(seconds, _DAY)
        sign, (minutes, seconds) = "+" if days < 0 else "", divmod(seconds, 60)
        fraction = f".{part:0{digits}}".rstrip("0") if part else ""
        return f"{days} days {sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}{fraction}"

    return each_once(column.cast(pa.int64()), text_of)


def _plain_decimals(text: Any) -> Any:
    """Return texts of decimals, written by Arrow, with all their digits and without an exponent."""
    import pyarrow.compute as pc

    if not pc.any(pc.match_substring(text, "E")).as_py():
        return text
    return each_once(text, lambda number: format(decimal.Decimal(number), "f"))


def _is_ascii(text: Any) -> bool:
    """Return whether all texts are certainly valid UTF-8: all bytes are ASCII, and offsets ascend.

    This takes much less time than to check each text. Arrow has already checked the first and the
    last offset.
    """
    if not len(text) or not is_text(text.type) or (data := text.buffers()[2]) is None:
        return False
    places = _offsets(text)
    letters = np.frombuffer(data, np.uint8)[places[0] : places[-1]]
    return bool(np.all(places[1:] >= places[:-1])) and int(letters.max(initial=0)) < 128


def _shortest(times: Any) -> Any:
    """Return texts of times, written by Arrow, in a shorter form.

    Zeros at the end of a fraction of a second are removed, and zones are written as +01:00.
    """
    import pyarrow.compute as pc

    for pattern, instead in (
        (r"\.0+" + _ZONE, r"\1"),
        (r"(\.[0-9]*[1-9])0+" + _ZONE, r"\1\2"),
        (r"Z$", "+00:00"),
        (r"([+-][0-9]{2})([0-9]{2})$", r"\1:\2"),
    ):
        times = pc.replace_substring_regex(times, pattern, instead)
    return times


def _float_text(column: Any) -> Any:
    """Return floating-point numbers as text; NaN is null.

    A number without a fraction, and below 2^63 in size, becomes the digits of the integer.
    Otherwise the clients 1e15 and 1000000000000000 would be two. Any other number becomes the
    shortest text that reads back as the same number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = column.cast(pa.float64())
    # A float of 2^63 or more is written with an exponent. In a column of integers such a number can
    # only be text (see `fedtally.sources`), so no integer has to become the same item.
    is_whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), 2.0**63))
    digits = pc.if_else(is_whole, numbers, 0.0).cast(pa.int64()).cast(pa.string())
    text = pc.if_else(is_whole, digits, numbers.cast(pa.string()))
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.string()), text)


def _whole(column: Any, what: str) -> Any:
    """Return floating-point numbers as int64; NaN is null.

    Many tables write integers as floats if a value of the column is missing.

    Raises:
        InvalidInputError: a number has a fraction, is infinite, or is so large that several
            integers are rounded to it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    there = ~np.isnan(values)
    wrong = there & ((np.floor(values) != values) | np.isinf(values))
    if wrong.any():
        raise InvalidInputError(
            f"{what} holds floating-point numbers such as {values[wrong][0]}: cast it to integers"
            " or text first"
        )
    bits = column.type.bit_width
    beyond = there & (np.abs(values) >= _EXACT_FLOAT[bits])
    if beyond.any():
        raise InvalidInputError(
            f"{what} holds floating-point numbers of {bits} bits such as"
            f" {values[beyond][0]:.0f}: from 2^{int(np.log2(_EXACT_FLOAT[bits]))} on several ids"
            " become one number; read the column as integers or text where it comes from"
        )
    return pc.if_else(
        pa.array(there),
        pa.array(np.where(there, values, 0.0).astype(np.int64)),
        pa.scalar(None, pa.int64()),
    )


def _decoded(column: Any) -> Any:
    """Return the values of the rows of an Arrow dictionary array.

    Values in a view type, as the categories of Polars have it, are cast first: Arrow's `take` does
    not support views.
    """
    import pyarrow as pa

    values = column.dictionary
    return (values.cast(pa.large_string()) if _is_view(values.type) else values).take(
        column.indices
    )


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is string or large_string, but not string_view."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    import pyarrow as pa

    kinds = pa.types
    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view)
    return any(test(kind) for test in (*tests, kinds.is_fixed_size_binary))


def _is_view(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _parsed(column: Any, written: Any, what: str) -> Any:
    """Return a column cast to int64.

    The whole column is cast at once. If that fails, the first value that cannot be cast is named.

    Args:
        column: the column to cast.
        written: the column as the user wrote it, for the message.
        what: the name of the column in the message.

    Raises:
        InvalidInputError: a value cannot be cast.
    """
    import pyarrow as pa

    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        for index in range(len(column)):
            try:
                column[index].cast(pa.int64())
            except pa.ArrowInvalid:
                _reject(written[index].as_py(), what)
        raise


def _reject(value: object, what: str) -> None:
    shown = repr(value) if isinstance(value, str) else str(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    raise InvalidInputError(f"{what} must hold whole numbers from 0 to 2^63 - 1, got {shown}")
