"""Sources of items: tables, plain text, columns in memory, synthetic populations.

Every source is read through `Source.batches()`: a stream of `Batch`es in bounded memory whose
columns are Arrow arrays without nulls. PyArrow reads them, and is imported with the first batch.
All errors in the data become an `InvalidInputError` or `UnreadableFileError` here. No exception of
Arrow, gzip or a codec leaves this package.

A value becomes the same item in every format. `sources.values` has these rules:

* Text stays as it is written: ``007`` stays ``007``, and ``NA`` is a word. Empty text is missing.
  CSV and JSON lines hold the text that their writer made of a typed column.
* Integers stay integers where a column has that type. In a range or a set of integers, text that
  writes an integer is the same item, and so is ``7.0``, which pandas writes where a value of the
  column is missing. In other domains ``7.0`` is a word. Without a domain, integers of 2^63 and more
  can be items only as text.
* A value of another type becomes one text: ``true`` and ``false``; ``2026-01-22``;
  ``2026-01-22 09:53:12.5``, without zeros at the end of the second, and a zone as ``+01:00``;
  decimals with all digits of their column; for a duration the number of its units. DuckDB and
  Python's csv module write the same text, except for durations. Other writers write other text,
  which is another item: pandas ``True``, dates without the time where all are midnight, and
  ``12.500`` seconds; pyarrow ``12.500000``, and ``Z`` or ``+0100``; Polars also ``T`` between date
  and time. Keep these columns in Parquet, or write them as above.
* Whole floats become integers, since many tables hold integers so in columns where a value is
  missing. NaN is missing. Any other float is refused as an item, a client or a round, because equal
  numbers need not be written alike.
* A pair of columns (latitude, longitude) becomes the text ``lat,lon``.
* Blank lines are missing items in plain text, and in CSV and TSV of one column. With several
  columns they are no rows.
* A row without its item, client, silo or round is dropped, and counted in `Batch.missing`. A
  missing count is an error.

Under differential privacy (`Source.batches` with ``private=True``) each row is read by itself. A
value that cannot be read is missing, and no row changes another row or ends the run. A CSV, TSV,
text or JSON lines file is then read line by line (`sources.lines`). A whole float below 2^63
becomes the digits of the integer, any other float its shortest text, and a row whose count cannot
be read stands for nobody.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.sources.batches import Batch, Columns, Source
from fedtally.sources.layout import Layout
from fedtally.sources.memory import from_items, from_table, is_table
from fedtally.sources.synthetic import FAMILIES, frequencies, is_synthetic, synthetic_source
from fedtally.sources.tables import parquet_kinds, table_source

__all__ = [
    "Batch",
    "Columns",
    "Source",
    "frequencies",
    "from_items",
    "from_table",
    "is_table",
    "open_files",
    "open_source",
]


def open_source(
    text: str | os.PathLike[str],
    columns: Columns | None = None,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str = "utf8",
    rng: np.random.Generator | None = None,
) -> Source:
    r"""Open a table, a text file, standard input or a synthetic population.

    A file must exist when this is called. `Source.batches()` reads and checks its content.

    Args:
        text: a path, ``-`` (standard input; like any pipe it can be read once), or a synthetic
            population such as ``zipf:a=1.1,d=100000,n=150000`` or ``profile:gowalla-us,n=1e6`` (see
            `fedtally.sources.synthetic`).
        columns: the columns of the item, client, silo, round and count. If no item column is named,
            it is the only column left over, or ``item``.
        format: ``csv``, ``tsv``, ``json`` (one object a line), ``parquet`` or ``text`` (one item a
            line). If absent, it follows from the suffix, with or without ``.gz``. For other names
            and standard input it is ``csv`` if a column or a delimiter is named, otherwise
            ``text``. Gzip is recognised by its content; under privacy, in a file without a header,
            by the name.
        delimiter: one character, ``\t`` for a tab; for CSV and TSV.
        header: whether the first row of a CSV or TSV names the columns. Otherwise their names are
            their positions, ``1``, ``2``, ... Plain text has no header.
        encoding: of CSV, TSV, JSON lines and text.
        rng: the generator of a synthetic population; only these need one.

    Raises:
        InvalidInputError: the options do not fit together, or name an unknown format, encoding,
            family or parameter.
        UnreadableFileError: the path does not exist or is a directory.

    >>> source = open_source("uniform:d=100,k=4,n=1000", rng=np.random.default_rng(1))
    >>> [batch] = source.batches()
    >>> source.synthetic_size, batch.items.to_pylist(), int(batch.counts.sum())
    (100, [1, 2, 3, 4], 1000)
    """
    path = os.fspath(text)
    columns = columns or Columns()
    if is_synthetic(path):
        if columns.names() or format or delimiter:
            raise InvalidInputError(
                f"{path} is synthetic: it has no columns and no format; leave these options out"
            )
        if rng is None:
            raise InvalidInputError(
                f"{path} draws its items: pass rng=numpy.random.default_rng(seed)"
            )
        return synthetic_source(path, rng)
    # A file may be named with brackets: then it is that file.
    if glob.has_magic(path) and not os.path.exists(path):
        return open_files(
            path, columns, format=format, delimiter=delimiter, header=header, encoding=encoding
        )
    layout = Layout.detect(
        path, columns, format=format, delimiter=delimiter, header=header, encoding=encoding
    )
    if path != "-" and ":" in path and not os.path.exists(path):
        known = ", ".join(f"{family}:" for family in FAMILIES)
        raise InvalidInputError(
            f"{path} is no file, and no synthetic source: these start with {known}"
        )
    return table_source(path, columns, layout)


def open_files(
    pattern: str,
    columns: Columns | None = None,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str = "utf8",
) -> Source:
    """Open all files that a glob names, in the order of their names, as one source.

    The files are of one format, and a column has one type in all of them: otherwise the client 7 of
    one file and the client "7" of another would be two. Text formats have no types: there the
    client, silo or round ``7.0`` is ``7``, since pandas writes ``7.0`` in the one file in which a
    value of the column is missing.

    Args:
        pattern: a path with ``*``, ``?`` or ``[...]``; ``**`` stands for any folders.
        columns: as for `open_source`; in tables the item must be named, as files may differ in
            their columns.
        format: of all files, as for `open_source`.
        delimiter: as for `open_source`.
        header: as for `open_source`.
        encoding: as for `open_source`.

    Raises:
        InvalidInputError: the files differ in format, or the item's column is not named.
        UnreadableFileError: no file matches.
    """
    columns = columns or Columns()
    paths = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    if not paths:
        raise UnreadableFileError(f"no file matches {pattern}")
    written: dict[str, Any] = {
        "format": format,
        "delimiter": delimiter,
        "header": header,
        "encoding": encoding,
    }
    formats = {path: Layout.detect(path, columns, **written).format for path in paths}
    for path in paths[1:]:
        if formats[path] != formats[paths[0]]:
            raise InvalidInputError(
                f"{paths[0]} is {formats[paths[0]]} and {path} is {formats[path]}: the files of"
                f" {pattern} must have one format; name them apart"
            )
    if len(paths) > 1 and formats[paths[0]] != "text" and columns.item is None:
        raise InvalidInputError(
            f"{pattern} names {len(paths)} tables: which column is the item? (--item)"
        )
    sources = [open_source(path, columns, **written) for path in paths]
    sizes = [source.size_bytes for source in sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)

    def read(private: bool) -> Iterator[Batch]:
        if formats[paths[0]] == "parquet":
            _check_types(paths, columns)
        done = 0
        types: list[bool | None] | None = None
        for source in sources:
            for batch in source.read(private):
                # Under privacy the values of text formats are text, and those of Parquet were
                # compared above: no row may end the run.
                if len(batch) and not private:
                    found = [_is_integer(part) for part in (batch.items, batch.clients)]
                    if types is not None and found != types:
                        raise InvalidInputError(
                            f"{source.name}: a column holds integers in one file of {pattern} and"
                            " text in another; write it alike in all of them"
                        )
                    types = found
                yield _without_points(replace(batch, bytes_read=done + batch.bytes_read))
            done += source.size_bytes or 0

    return Source(pattern, read, total, repeatable=all(each.repeatable for each in sources))


def _without_points(batch: Batch) -> Batch:
    """Return a batch whose clients, silos and rounds are whole numbers where they end in .0."""
    bare = batch.itemless  # rows that lack the item alone
    if bare is not None:
        bare = bare._replace(
            clients=_whole(bare.clients), silos=_whole(bare.silos), rounds=_whole(bare.rounds)
        )
    return replace(
        batch,
        clients=_whole(batch.clients),
        silos=_whole(batch.silos),
        rounds=_whole(batch.rounds),
        itemless=bare,
    )


def _whole(part: Any) -> Any:
    """Return a column of text in which ``7.0`` is ``7``; another column, or None, as it is."""
    import pyarrow.compute as pc

    if part is None or _is_integer(part):
        return part
    return pc.replace_substring_regex(part, r"^(-?[1-9][0-9]*|0)\.0$", r"\1")


def _is_integer(part: object) -> bool | None:
    import pyarrow as pa

    return None if part is None else pa.types.is_integer(getattr(part, "type", None))


def _check_types(paths: list[str], columns: Columns) -> None:
    """Refuse Parquet files that write a column as one type here and as another one there."""
    first = parquet_kinds(paths[0], columns)
    for path in paths[1:]:
        for name, kind in parquet_kinds(path, columns).items():
            if (other := first.get(name, kind)) != kind:
                raise InvalidInputError(
                    f"{path}: the column {name!r} holds {kind} there and {other} in {paths[0]};"
                    " write it alike in all files"
                )
