"""Sources from data in memory: lists, and columns of NumPy, Arrow, pandas and Polars."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, Set, ValuesView
from contextlib import contextmanager
from numbers import Real
from typing import Any, NoReturn

import numpy as np

from fedtally.errors import InvalidInputError, arg
from fedtally.sources.batches import Batch, Columns, Source, no_rows, to_batch
from fedtally.sources.values import of_column, of_numpy, of_objects, type_of

_ROWS = 1 << 20  # the most rows of a batch


def from_items(
    items: Any,
    *,
    clients: Any = None,
    silos: Any = None,
    rounds: Any = None,
    counts: Any = None,
) -> Source:
    """Return a source of columns in memory; all of them must have the same length.

    Under privacy, no value in a column is an error. But an argument that is no column, or a column
    of a type that cannot be read, is always an error.

    Args:
        items: the items: a list, tuple, NumPy array, Arrow array, or pandas or Polars series of
            text or of integers. Or latitudes and longitudes: a NumPy float array [n, 2]. None and
            NaN are missing items.
        clients: the client of each row; rows with equal values are one client. None: each row is a
            client.
        silos: the silo of each row; each value of `clients` is then a person. None: there are no
            silos.
        rounds: the round of each row. None: rows name no round.
        counts: the number of clients that each row stands for, integers from 0; not with `clients`.
            None: each row stands for one client.

    Raises:
        InvalidInputError: the columns differ in length, or an argument is no column. Or `counts`
            are given with `clients`, or `silos` without. When the source is read: a column has a
            type that cannot be read. Or, without privacy, a value cannot be read, such as a float
            with a fraction, or the values are of several types.

    >>> [batch] = from_items(["tea", "rice", "tea"], counts=[3, 0, 2]).batches()
    >>> batch.items.to_pylist(), batch.counts.tolist()
    (['tea', 'rice', 'tea'], [3, 0, 2])
    """
    given = {"clients": clients, "silos": silos, "rounds": rounds, "counts": counts}
    named = {name: None if values is None else name for name, values in given.items()}
    columns = Columns(
        ("latitude", "longitude") if _is_pair(items) else "items",
        named["clients"],
        named["rounds"],
        named["counts"],
        silo=named["silos"],
        are_named=False,
    )
    given |= dict(zip(columns.items, items.T if _is_pair(items) else [items], strict=True))
    held = {name: _sequence(given[name], name) for name in columns.names()}
    lengths = {name: len(values) for name, values in held.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InvalidInputError(f"the columns must have one length, got {listed}")

    return _source("items", held, columns)


def from_table(table: Any, columns: Columns) -> Source:
    """Return a source that reads columns of a table in memory.

    Args:
        table: a pandas or Polars data frame; or a Polars lazy frame, of which only the needed
            columns are computed; or an Arrow table; or an object that exports an Arrow stream, such
            as a relation of DuckDB.
        columns: the columns of the item, client, silo, round and count.

    Raises:
        InvalidInputError: a column is missing, or several columns have its name. Or the item's
            column is not named, and several columns could be it. Or the table is a frame of Dask or
            Spark, or a lazy frame or a stream that cannot be computed.

    >>> import pyarrow as pa
    >>> drinks = pa.table({"word": ["tea", "rice"], "user": [1, 2]})
    >>> [batch] = from_table(drinks, Columns("word", client="user")).batches()
    >>> batch.items.to_pylist(), batch.clients.to_pylist()
    (['tea', 'rice'], [1, 2])
    """
    _refuse_of_workers(table)
    table = _streamed(table)
    is_lazy = hasattr(table, "collect_schema") and hasattr(table, "collect")
    names = _lazy_names(table) if is_lazy else getattr(table, "column_names", None)
    names = [str(name) for name in (table.columns if names is None else names)]
    resolved = columns.resolve(names, "the table")
    if is_lazy:
        table = _collected(table, resolved.names())
    if hasattr(table, "iloc"):  # pandas: by position, because a column's name may be no text
        held = {name: table.iloc[:, names.index(name)] for name in resolved.names()}
    else:
        held = {name: table[name] for name in resolved.names()}
    # Only Arrow tables have fields. The metadata of a field may name an extension type.
    schema: Any = getattr(table, "schema", None)
    fields = {name: schema.field(name) for name in held} if hasattr(schema, "field") else {}
    return _source("the table", held, resolved, fields)


def _streamed(table: Any) -> Any:
    """Return the Arrow table of an object that only exports an Arrow stream.

    Any other table is returned unchanged.
    """
    import pyarrow as pa

    known = isinstance(table, pa.Table | pa.RecordBatch) or hasattr(table, "iloc")
    if known or not hasattr(table, "__arrow_c_stream__") or _is_polars(type(table)):
        return table
    with _computing():
        return pa.table(table)


def _lazy_names(frame: Any) -> list[str]:
    """Return the names of a Polars lazy frame's columns."""
    with _computing():
        return list(frame.collect_schema().names())


def _collected(frame: Any, names: list[str]) -> Any:
    """Compute the named columns of a Polars lazy frame, and return them as a Polars data frame."""
    with _computing():
        return frame.select(names).collect()


@contextmanager
def _computing() -> Iterator[None]:
    """Turn every `Exception` in the context into an InvalidInputError.

    The error says that the frame cannot be computed.
    """
    try:
        yield
    except Exception as error:  # Polars has many types of errors, and raises Python's own, too
        raise InvalidInputError(
            f"the frame cannot be computed ({type(error).__name__}): compute it to see why, and"
            " pass the table"
        ) from error


def _refuse_of_workers(value: Any) -> None:
    """Raise an InvalidInputError for a frame of Dask or Spark.

    To count the frame here, all its data would be fetched from the workers into this process.
    """
    if hasattr(value, "sparkSession") and hasattr(value, "toArrow"):
        raise InvalidInputError(
            "a Spark data frame lies on its executors: count it there with"
            " fedtally.simulation.dataframe.spark.tally_spark and pass the tally; if it fits into"
            " this process, pass frame.toArrow()"
        )
    if hasattr(value, "npartitions") and hasattr(value, "compute"):
        raise InvalidInputError(
            "a Dask data frame lies on its workers: count it there with"
            " fedtally.simulation.dataframe.dask.tally_dask and pass the tally; if it fits into"
            " this process, pass frame.compute()"
        )


def is_table(value: Any) -> bool:
    """Return whether a value is a table with named columns, such as a data frame."""
    if hasattr(value, "collect_schema") and hasattr(value, "collect"):
        return True
    # A pandas series may have a label `columns`, which is then an attribute.
    if getattr(value, "ndim", 2) != 2:
        return False
    has_names = hasattr(value, "column_names") or hasattr(value, "columns")
    return has_names and hasattr(value, "__getitem__")


def _source(
    where: str, held: dict[str, Any], columns: Columns, fields: Mapping[str, Any] | None = None
) -> Source:
    """Return a source that reads columns of the same length.

    Args:
        where: the name of the source in messages.
        held: the columns by name.
        columns: the role of each column, as `Columns.resolve` returns it.
        fields: the Arrow fields of the columns by name; None: the columns are not from an Arrow
            table.
    """
    import pyarrow as pa

    def read(private: bool) -> Iterator[Batch]:
        parts = {
            name: _column(values, name, private, columns.beside if name in columns.items else None)
            for name, values in held.items()
        }
        known = {name: part.metadata for name, part in (fields or {}).items()}
        known |= {name: _metadata(values) for name, values in held.items() if name not in known}
        schema = pa.schema(
            [pa.field(name, part.type, metadata=known[name]) for name, part in parts.items()]
        )
        table = pa.table(list(parts.values()), schema=schema)
        done, size = 0, table.get_total_buffer_size()
        if private:
            # A batch without rows comes first: it shows the columns even of an empty table.
            yield to_batch(no_rows(table.schema), columns, where, 0, private)
        for part in table.to_batches(max_chunksize=_ROWS):
            done += part.num_rows
            yield to_batch(part, columns, where, size * done // table.num_rows, private)

    return Source(where, read)


def _is_pair(items: Any) -> bool:
    return (
        isinstance(items, np.ndarray)
        and items.ndim == 2
        and items.shape[1] == 2
        and items.dtype.kind == "f"
    )


def _sequence(values: Any, name: str) -> Any:
    """Return a column that has a length and can be read several times.

    A column with a length is returned unchanged. A set, a view of a dict, or any iterable without a
    length becomes a list. A bytearray or a memory view is refused.

    Args:
        values: what the user passed as a column.
        name: the name of the column in messages.

    Raises:
        InvalidInputError: the value is no column, or is a series of counts by label.
    """
    if isinstance(values, (str, bytes)):
        raise InvalidInputError(
            f"{name} must be a column such as a list, got one value {values!r}; write [{values!r}]"
        )
    if isinstance(values, Mapping):
        _refuse_mapping(values, name)
    if name == "items" and _is_value_counts(values):
        raise InvalidInputError(
            f"{arg.items} must be a column, got numbers by label, as of value_counts(); pass its"
            " index as items and its values as counts (or series.array, if the numbers are the"
            " items)"
        )
    if isinstance(values, bytearray | memoryview):  # otherwise its bytes would be read as integers
        raise _no_column(values, name)
    # The checks from here on use only the type, which is public. So they may raise errors under
    # privacy.
    _refuse_of_workers(values)
    if isinstance(values, np.ndarray) and values.ndim == 2 and name == "items":
        raise InvalidInputError(
            f"{name} must be a 1-dimensional array (coordinates: floats [n, 2]), got 2 dimensions:"
            " pass one column of it, or write a row for each item, and name its client (clients=)"
        )
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise InvalidInputError(
            f"{name} must be a 1-dimensional array (coordinates: floats [n, 2]), got {values.ndim}"
            " dimensions"
        )
    try:
        if hasattr(values, "__len__") and not isinstance(values, Set | ValuesView | KeysView):
            len(values)  # a sparse matrix has no length, and raises a TypeError
            return values
        return list(values)
    except TypeError as error:
        raise _no_column(values, name) from error


def _refuse_mapping(values: Mapping[Any, Any], name: str) -> NoReturn:
    """Raise the InvalidInputError for a mapping that was passed as a column."""
    if name not in ("items", "counts"):
        raise InvalidInputError(
            f"{name} must be a column, got a mapping; pass a list with a value for each item"
        )
    # Only numbers can be counts. The keys of other mappings are often people, not items.
    held = list(values.values())
    if all(isinstance(value, Real) and not isinstance(value, bool) for value in held):
        raise InvalidInputError(
            f"{name} must be a column, got a mapping; pass its keys as items and its values as"
            " counts (or only list(X.values()), if the numbers are the items)"
        )
    raise InvalidInputError(
        f"{name} must be a column, got a mapping; write two lists with a row for each item, one of"
        " the items and one of their clients (clients=)"
    )


def _is_value_counts(values: Any) -> bool:
    """Return whether a value is a pandas series of numbers by label, as `value_counts` returns it.

    The index of such a series has the items, and its values are counts. It was probably passed as
    items by mistake.
    """
    index = getattr(values, "index", None)  # a list or a tuple has a method of this name
    kind = getattr(index, "dtype", None)
    name, numbers = getattr(values, "name", None), str(getattr(values, "dtype", "")).lower()
    # Floats are often items. So they are shares or counts only under the name that pandas gives.
    names = {"int": ("count", None), "flo": ("count", "proportion")}.get(numbers[:3], ())
    if kind is None or name not in names:
        return False
    return getattr(index, "name", None) is not None or not str(kind).startswith("int")


def _no_column(values: Any, name: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name} must be a column such as a list or a series, got {type(values).__name__}"
    )


def _column(values: Any, name: str, private: bool, beside: tuple[str, str] | None) -> Any:
    """Return a column of any kind as a chunked Arrow array.

    Args:
        values: the column, as `_sequence` returns it.
        name: the name of the column in messages.
        private: whether a value that cannot be read is missing, and not an error.
        beside: for a column of items, the options of the client and the count, see `of_column`.

    Raises:
        InvalidInputError: the type of the column cannot be read. Or, unless `private`, a value
            cannot be read.
    """
    import pyarrow as pa

    kind: Any = getattr(values, "dtype", None)
    if getattr(kind, "names", None):  # a structured array: as text, each record would be an item
        raise InvalidInputError(
            f"{name} must be all text or all integers, got records: pass one field of them,"
            f" {name}[{kind.names[0]!r}]"
        )
    try:
        values = _unwrapped(values, name, private, beside)
        objects = _objects(values)
        if objects is not None:
            found = of_objects(objects) if private else of_column(objects, name, beside)
            return pa.chunked_array([found])
        return _arrow(values)
    except InvalidInputError:
        raise
    # Each library has its own errors. Their messages are about internals, and do not help a user.
    except Exception as error:
        called = type_of(type(values)) if kind is None else f"type {kind}"
        raise InvalidInputError(
            f"{name} must be all text or all integers, got values of {called}: cast it to text"
            " first"
        ) from error


def _metadata(values: Any) -> Any:
    """Return the metadata of the Arrow field of a Polars series, if its type is an extension type.

    Returns None for other columns.
    """
    import pyarrow as pa

    if not _is_polars(type(values)) or not str(values.dtype).startswith(("Extension", "ext[")):
        return None
    return pa.table(values.to_frame()).field(0).metadata


def _is_polars(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "polars"


def _unwrapped(values: Any, name: str, private: bool, beside: tuple[str, str] | None) -> Any:
    """Return a column in a form that `_objects` or `_arrow` reads; most columns are unchanged.

    Args:
        values: the column.
        name: the name of the column in messages.
        private: whether a value that cannot be read is missing, and not an error.
        beside: the options of the client and the count, see `of_column`.
    """
    kind: Any = getattr(values, "dtype", None)
    if type(kind).__name__ in ("SparseDtype", "NumpyEADtype"):  # both are types of pandas
        return np.asarray(values)
    if type(kind).__name__ == "CategoricalDtype" and kind.categories.dtype == object:
        return _categories(values, name, private, beside)
    if hasattr(values, "to_series") and hasattr(values, "get_indexer"):  # an index of pandas
        return values.to_series()
    if _is_polars(type(values)):
        if str(kind) == "Object":
            return values.to_list()
        if str(kind) in ("Int128", "UInt128"):
            return _integers_of_polars(values, private)
    is_array = isinstance(values, np.ndarray) or hasattr(values, "to_numpy")
    if hasattr(values, "__array__") and not is_array and not _speaks_arrow(values):
        return np.asarray(values)  # other arrays, such as tensors
    return values


def _categories(values: Any, name: str, private: bool, beside: tuple[str, str] | None) -> Any:
    """Return a pandas categorical column, whose categories are Python objects, as an Arrow
    dictionary.
    """
    import pyarrow as pa

    held = getattr(values, "cat", values)  # a series has the categorical data in `cat`
    codes = np.asarray(held.codes)
    objects = list(held.categories)
    texts = of_objects(objects) if private else of_column(objects, name, beside)
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), texts)


def _integers_of_polars(values: Any, private: bool) -> Any:
    """Return a Polars column of 128-bit integers as int64 if all values fit, otherwise as text.

    Under privacy the result is always text. Otherwise one value would decide how the others are
    read.
    """
    import polars

    narrow = values.cast(polars.Int64, strict=False)
    fits = not private and narrow.null_count() == values.null_count()
    return narrow if fits else values.cast(polars.String)


def _objects(values: Any) -> list[Any] | None:
    """Return a column of Python objects as a list.

    Returns None if the column has one type for all its values: Arrow then reads it.
    """
    if isinstance(values, list | tuple):
        return list(values)
    kind = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype):
        return list(values) if kind.kind == "O" else None
    is_column = hasattr(values, "to_numpy") or hasattr(values, "to_arrow")
    return None if is_column or _speaks_arrow(values) else list(values)


def _speaks_arrow(values: Any) -> bool:
    names = ("__arrow_c_stream__", "__arrow_c_array__", "__arrow_array__")
    return any(hasattr(values, name) for name in names)


def _arrow(values: Any) -> Any:
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        return values
    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    if isinstance(values, np.ndarray):
        return _arrow(of_numpy(values))
    if hasattr(values, "__arrow_c_stream__"):
        return pa.chunked_array(values)
    if hasattr(values, "to_arrow"):
        return _arrow(values.to_arrow())
    return _arrow(pa.array(values, from_pandas=True))
