"""Values of Arrow's extension types, which Arrow stores in another form.

For example, the month ``2026-01`` of pandas is stored as the integer 672, and a UUID as 16 bytes.
Each supported type has a reader here. Any other extension type is an error, unless it stores text.

If a type is not registered in this process, only the metadata of the Arrow field has its name. This
is so for a Parquet file that pandas wrote and that is read without pandas.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from fedtally.errors import InvalidInputError
from fedtally.sources.values import as_values, each_once, interval_text, is_text

_NAME, _PARAMETERS = b"ARROW:extension:name", b"ARROW:extension:metadata"


def values_of(column: Any, field: Any, what: str) -> Any:
    """Return the values of an Arrow column, whose type may be an extension type, as an Arrow array.

    A run-end encoded column is decoded. A dictionary of values of an extension type becomes the
    values of its rows. Any other column whose type is no extension type is returned unchanged.

    Args:
        column: the column, an Arrow array.
        field: the column's Arrow field, whose metadata may name the type.
        what: the name of the column in messages.

    Raises:
        InvalidInputError: the extension type has no reader here, and does not store text. Or its
            parameters are not known. Or its reader needs pandas, which is not installed. Or Arrow
            cannot decode a run-end encoded column of this type.

    >>> import pyarrow as pa
    >>> flags = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
    >>> values_of(flags, pa.field("flags", flags.type), "flags").to_pylist()
    [True, False, None]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_run_end_encoded(kind):
        try:
            column = pc.run_end_decode(column)
        except pa.ArrowNotImplementedError as error:  # such as runs of categories
            raise InvalidInputError(
                f"{what} is of type {kind}: cast it to integers or text first"
            ) from error
        kind = column.type
    if pa.types.is_dictionary(kind) and isinstance(kind.value_type, pa.BaseExtensionType):
        values = values_of(column.dictionary, pa.field("", kind.value_type), what)
        return values.take(column.indices)
    name, parameters = _extension(kind, field)
    if name is None:
        return column
    storage = column.storage if isinstance(kind, pa.BaseExtensionType) else column
    if (read := _READERS.get(name)) is not None:
        try:
            return read(storage, parameters)
        except ImportError:
            raise InvalidInputError(
                f"{what} is of the type {name}, which pandas reads: pip install"
                " 'fedtally[pandas]', or write the column as text"
            ) from None
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InvalidInputError(
                f"{what} is of the type {name}, with parameters that are not known here: write the"
                " column as text"
            ) from error
    if is_text(storage.type):
        return storage
    raise InvalidInputError(
        f"{what} is of the extension type {name}, whose values are not known here: write the column"
        " as text or integers"
    )


def type_name(field: Any) -> str:
    """Return the name of an Arrow field's type; if it is an extension type, the extension's name.

    >>> import pyarrow as pa
    >>> type_name(pa.field("id", pa.uuid())), type_name(pa.field("n", pa.int8()))
    ('arrow.uuid', 'int8')
    """
    return _extension(field.type, field)[0] or str(field.type)


def is_extension(field: Any) -> bool:
    """Return whether an Arrow field has an extension type."""
    return _extension(field.type, field)[0] is not None


def _extension(kind: Any, field: Any) -> tuple[str | None, bytes]:
    """Return the name and the serialized parameters of an extension type.

    If Arrow does not know the type, only the field's metadata may name it. If neither the type nor
    the metadata names an extension type, the name is None.
    """
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return kind.extension_name, _parameters(kind)
    metadata = field.metadata or {}
    name = metadata.get(_NAME)
    return None if name is None else name.decode("utf8", "replace"), metadata.get(_PARAMETERS, b"")


def _parameters(kind: Any) -> bytes:
    serialize = getattr(kind, "__arrow_ext_serialize__", None)  # Arrow's own extensions lack it
    return b"" if serialize is None else serialize()


def _uuids(storage: Any, _: bytes) -> Any:
    return each_once(storage, lambda value: str(uuid.UUID(bytes=value)))


def _truth_values(storage: Any, _: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.not_equal(storage, pa.scalar(0, storage.type))


def _periods(storage: Any, parameters: bytes) -> Any:
    """Return the texts of pandas periods, such as 2026-01 or 2025-12-29/2026-01-04.

    Args:
        storage: the stored integers, an Arrow array.
        parameters: JSON with the frequency of the periods.
    """
    import pandas

    frequency = json.loads(parameters)["freq"]

    def text_of(ordinal: int) -> str | None:
        period = pandas.Period(ordinal=ordinal, freq=frequency)
        return None if period is pandas.NaT else str(period)

    return each_once(storage, text_of)


def _intervals(storage: Any, parameters: bytes) -> Any:
    """Return the texts of pandas intervals, such as (0, 1]; null if an end is missing.

    Args:
        storage: the stored ends, an Arrow struct array with `left` and `right`.
        parameters: JSON that says which ends belong to the intervals.
    """
    import pyarrow as pa

    closed = json.loads(parameters)["closed"]
    ends = []
    for name in ("left", "right"):
        part = storage.field(name)
        if pa.types.is_floating(part.type):
            ends.append([None if end is None else repr(end) for end in part.to_pylist()])
        else:
            ends.append(as_values(part, "an interval", private=True).to_pylist())
    held = zip(storage.is_valid().to_pylist(), *ends, strict=True)
    texts = [
        interval_text(left, right, closed)
        if is_there and left is not None and right is not None
        else None
        for is_there, left, right in held
    ]
    return pa.array(texts, pa.large_string())


_READERS: dict[str, Callable[[Any, bytes], Any]] = {
    "arrow.uuid": _uuids,
    "arrow.bool8": _truth_values,
    "pandas.period": _periods,
    "pandas.interval": _intervals,
}
