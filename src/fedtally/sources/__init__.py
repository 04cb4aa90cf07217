"""Sources of items: tables, plain text, columns in memory, synthetic populations.

Every source is read with `Source.batches()`. It yields `Batch`es, whose columns are Arrow arrays
without nulls, in bounded memory. PyArrow is imported with the first batch. Every error in the data
is an `InvalidInputError` or `UnreadableFileError`. No exception of Arrow, of a compression or of a
codec leaves this package.

A value becomes the same item in every format, by these rules, which are mostly in `sources.values`:

* Text is not changed: ``007`` stays ``007``, and ``NA`` is an item like others. An empty text is a
  missing value. A CSV has no types, so its items are the texts in the file, as another program
  wrote them.
* Integers stay integers if the column has an integer type. If the domain is a range or a set of
  integers, the texts ``7`` and ``7.0`` are the same item as the integer 7: pandas writes ``7.0`` if
  a value of the column is missing. In other domains the text ``7.0`` is an item of its own. Without
  a domain, an integer of 2^63 or more can be an item only as text.
* If texts name clients, silos or rounds, ``7.0`` and ``7.00`` become ``7``, and ``-0.0`` becomes
  ``0`` (`sources.values.as_names`). Byte order marks before such a text are dropped. Nothing else
  is changed: texts that differ in spaces, exponents or leading zeros are different clients.
* A value of another type becomes one text. A truth value is ``true`` or ``false``. A date is
  ``2026-01-22``, a time ``09:53:12.5``, without zeros at the end of the second, and its zone
  ``+01:00``. A decimal has all digits of its column. A duration is ``0 days 01:30:00``. A UUID has
  its hyphens. A period and an interval of pandas are as pandas writes them. DuckDB and Python's csv
  module write the same texts to a CSV, except for durations. Other programs write other texts,
  which are other items: pandas writes ``True``, seconds as ``12.500``, and only dates if all times
  are midnight; pyarrow writes ``12.500000``, and ``Z`` or ``+0100``; Polars also writes ``T``
  between date and time. Write such columns as Parquet, or in the form given here.
* A column of an Arrow extension type is read as the values of that type, and not as the numbers or
  bytes that Arrow stores (`sources.extensions`). Unknown extension types are refused, unless they
  store text.
* A float without a fraction becomes an integer, because many tables write integers as floats if a
  value of the column is missing. NaN is a missing value. Any other float is an error in a column of
  items, clients, silos or rounds, because equal numbers may be written differently. A float without
  a fraction is an error from 2^53 on (in 32 bits from 2^24, in 16 bits from 2^11), because
  different integers may have been rounded to it.
* Bytes are read as UTF-8 text. Bytes that are not UTF-8, or contain a NUL byte, are an error.
* A pair of columns (latitude, longitude) becomes the text ``lat,lon``.
* A line ends with LF, CR LF or a single CR, and in plain text and JSON lines also with CR CR LF.
  Under privacy a single CR ends a line only in a CSV or TSV whose header line ends with a single CR
  (`sources.lines`).
* A blank line is a row with a missing item in plain text, and in CSV and TSV of one column. In CSV
  and TSV of several columns, in JSON lines, and before a header, a blank line is no row. Under
  privacy it is such a row, too, if the table has only the item's two columns, or if it has no
  header and only the item is read.
* A row in which the item, client, silo or round is missing is left out, and counted in
  `Batch.dropped`. A missing count is an error.

Under differential privacy (`Source.batches` with ``private=True``) each row is read independently:
no row changes another row or ends the run. A value that is an error by the rules above is then a
missing value. A CSV, TSV, text or JSON lines file is read line by line (`sources.lines`). A float
without a fraction, below 2^63, becomes the digits of the integer. Any other float becomes the
shortest text that reads back as the same number. A row whose count is missing or cannot be read
stands for no client.
"""

from __future__ import annotations

import glob
import os

import numpy as np

from fedtally.base.validate import did_you_mean
from fedtally.errors import InvalidInputError, opt
from fedtally.sources.batches import Batch, Columns, Source, item_columns
from fedtally.sources.files import open_files
from fedtally.sources.layout import Layout
from fedtally.sources.lists import domain_of, list_path, of_description, open_list, read_candidates
from fedtally.sources.memory import from_items, from_table, is_table
from fedtally.sources.readers import table_source
from fedtally.sources.synthetic import FAMILIES, frequencies, is_synthetic, synthetic_source

__all__ = [
    "Batch",
    "Columns",
    "Source",
    "domain_of",
    "frequencies",
    "from_items",
    "from_table",
    "is_table",
    "item_columns",
    "list_path",
    "of_description",
    "open_files",
    "open_list",
    "open_source",
    "read_candidates",
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
    is_one_of_many: bool = False,
) -> Source:
    r"""Open a table, a text file, standard input or a synthetic population.

    A file must exist when this is called. `Source.batches()` reads and checks its content.

    Args:
        text: the path of a file; or a folder or a glob, whose files are all read (see
            `open_files`); or ``-`` for standard input, which can be read only once, like any pipe;
            or a synthetic population such as ``zipf:a=1.1,d=100000,n=150000`` or
            ``profile:gowalla-us,n=1e6`` (see `fedtally.sources.synthetic`).
        columns: the columns of the item, client, silo, round and count. If the item's column is not
            named, it is the only column without another role. If there are several such columns, it
            is the one named ``item``.
        format: ``csv``, ``tsv``, ``json`` (one object a line), ``parquet``, ``feather`` (an Arrow
            file) or ``text`` (one item a line). None: the suffix of the name decides, before any
            ``.gz``, ``.bz2``, ``.xz`` or ``.zst``. With another suffix, and for standard input, it
            is ``csv`` if a column or a delimiter is named, otherwise ``text``. A compressed file is
            recognised by its suffix. Compressed text is also recognised by its first bytes; under
            privacy only if it has a header.
        delimiter: the character between the fields of CSV or TSV, ``\t`` for a tab. None: a comma
            for CSV, a tab for TSV.
        header: whether the first row of a CSV or TSV names the columns. Otherwise their names are
            their positions, ``1``, ``2``, ... Plain text has no header.
        encoding: the character encoding of CSV, TSV, JSON lines and text.
        rng: the random generator for a synthetic population; other sources need none.
        is_one_of_many: whether a single file is read as `open_files` reads a file of a folder: the
            round or the silo may then be the name of a folder in its path, such as
            ``day=2026-11-24``.

    Raises:
        InvalidInputError: the options do not fit together, or name an unknown format, encoding, or
            family or parameter of synthetic populations. Or a synthetic population gets no `rng`.
            Or the path has a colon and does not exist: it may be a misspelt family. Or the files of
            a folder or a glob do not fit together (see `open_files`).
        UnreadableFileError: there is no such file, or its suffix belongs to a format that is not
            supported. Or a folder cannot be used (see `open_files`).

    >>> source = open_source("uniform:d=100,k=4,n=1000", rng=np.random.default_rng(1))
    >>> [batch] = source.batches()
    >>> source.synthetic_size, batch.items.to_pylist(), int(batch.counts.sum())
    (100, [1, 2, 3, 4], 1000)
    """
    path = os.fspath(text)
    columns = columns or Columns()
    if is_synthetic(path):
        parts = ("item", "client", "round", "count", "silo")
        of_a_table = {name: getattr(columns, name) for name in parts}
        of_a_table |= {"format": format, "delimiter": delimiter}
        if surplus := [opt[name] for name, value in of_a_table.items() if value]:
            raise InvalidInputError(
                f"{path} is synthetic: it has no columns and no format; leave"
                f" {' and '.join(surplus)} out"
            )
        if rng is None:
            raise InvalidInputError(
                f"{path} draws its items: pass rng=numpy.random.default_rng(seed)"
            )
        return synthetic_source(path, rng)
    # The name of a file may have brackets. If there is a file of this name, the text is no glob.
    is_pattern = glob.has_magic(path) and not os.path.exists(path)
    if os.path.isdir(path) or is_pattern or (is_one_of_many and os.path.isfile(path)):
        return open_files(
            path, columns, format=format, delimiter=delimiter, header=header, encoding=encoding
        )
    layout = Layout.detect(
        path, columns, format=format, delimiter=delimiter, header=header, encoding=encoding
    )
    if path != "-" and ":" in path and not os.path.exists(path):
        known = [f"{family}:" for family in FAMILIES]
        meant = did_you_mean(f"{path.partition(':')[0]}:", known)
        raise InvalidInputError(
            f"{path} is no file, and no synthetic source: these start with"
            f" {', '.join(known)}{meant}"
        )
    return table_source(path, columns, layout)
