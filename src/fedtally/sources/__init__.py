"""Where items come from: tables, plain text, columns in memory, synthetic populations.

Every source is read through one door, `Source.batches()`: a stream of `Batch`es in bounded memory
whose columns are Arrow arrays without nulls. Reading rests on PyArrow, which is imported when the
first batch is read. Whatever is wrong with the data becomes an `InvalidInputError` or
`UnreadableFileError` here; no exception of Arrow, gzip or a codec leaves this package.

What a value becomes, in every format (`sources.values` is the one place that says so):

* Text stays as it is written (``007`` stays ``007``, ``NA`` is a word). Empty text is missing. So
  what a CSV or JSON lines hold of a typed column is what their writer made of it.
* Integers stay integers where a column has that type; text that writes one is the same item of a
  range or a set of integers, also ``7.0``, which pandas writes where a value of the column is
  missing. Elsewhere ``7.0`` is a word. Without a domain, integers of 2^63 and more are items as
  text alone.
* What has another type becomes one text: ``true`` and ``false``; ``2026-01-22``; ``2026-01-22
  09:53:12.5``, without zeros at the end of the second, a zone as ``+01:00``; decimals with all
  digits of their column; of a duration the number of its units. DuckDB and Python's csv module
  write the same text, durations apart. Others write other text, which then is another item: pandas
  ``True``, dates without the time where all are midnight, and ``12.500`` seconds; pyarrow
  ``12.500000``, and ``Z`` or ``+0100``; Polars also ``T`` between date and time. Keep these columns
  in Parquet, or write them as above.
* Whole floats become integers, since that is what integers beside a missing value are in many
  tables; NaN is missing. Any other float is refused as an item, a client or a round, because equal
  numbers need not be written alike.
* A pair of columns (latitude, longitude) becomes the text ``lat,lon``.
* Blank lines are missing items in plain text, and in CSV and TSV of one column; of several columns
  they are no rows.
* A row without its item, client or round is dropped and counted in `Batch.missing`; a missing count
  is an error.

Under differential privacy (`Source.batches` with ``private=True``) a row is read by itself: a value
that cannot be read is missing, and nothing of what a row holds changes another row or ends the run.
A CSV, TSV, text or JSON lines file is then read line by line (`sources.lines`). A float that is not
whole becomes its shortest text, and a row whose count cannot be read stands for nobody.
"""

from __future__ import annotations

import os

import numpy as np

from fedtally.errors import InvalidInputError
from fedtally.sources.batches import Batch, Columns, Source
from fedtally.sources.memory import from_items
from fedtally.sources.synthetic import FAMILIES, frequencies, is_synthetic, synthetic_source
from fedtally.sources.tables import Layout, table_source

__all__ = ["Batch", "Columns", "Source", "frequencies", "from_items", "open_source"]


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

    A file is checked for existence at once; its content is read, and judged, by `Source.batches()`.

    Args:
        text: a path, ``-`` (standard input; like any pipe it can be read once), or a synthetic
            population such as ``zipf:a=1.1,d=100000,n=150000`` or ``profile:gowalla-us,n=1e6`` (see
            `fedtally.sources.synthetic`).
        columns: which column plays which part. Without an item column it is the only one left over,
            or ``item``.
        format: ``csv``, ``tsv``, ``json`` (one object a line), ``parquet`` or ``text`` (one item a
            line). Taken from the suffix when absent, with or without ``.gz``; for other names and
            standard input it is ``csv`` if a column or a delimiter is named, else ``text``. Gzip is
            recognised by its content; under privacy, in a file without a header, by the name.
        delimiter: one character, ``\t`` for a tab; for CSV and TSV.
        header: whether the first row names the columns; otherwise they are named ``1``, ``2``, ...
            by position. For CSV and TSV; plain text has no header.
        encoding: of CSV, TSV, JSON lines and text.
        rng: what a synthetic population draws with; needed there, unused elsewhere.

    Raises:
        InvalidInputError: options that do not fit together, an unknown format, encoding, family or
            parameter.
        UnreadableFileError: a path that does not exist or is a directory.

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
    layout = Layout.detect(
        path, columns, format=format, delimiter=delimiter, header=header, encoding=encoding
    )
    if path != "-" and ":" in path and not os.path.exists(path):
        known = ", ".join(f"{family}:" for family in FAMILIES)
        raise InvalidInputError(
            f"{path} is no file, and no synthetic source: these start with {known}"
        )
    return table_source(path, columns, layout)
