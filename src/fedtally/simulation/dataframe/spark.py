"""Count a Spark data frame on its executors.

Only this module imports `pyspark` (extra `spark`). Spark only moves rows and tallies:
`partial_tally` counts each partition, and `merge_tallies` adds up the counts. A row of Spark has no
metadata, so a tally is sent as one value, the Arrow stream of its table.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.functions import col, regexp_replace

from fedtally import errors
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.simulation.estimate import suggests_keywords
from fedtally.simulation.partial import Content
from fedtally.simulation.partitions import candidates_of, merge_tallies, partial_tally
from fedtally.sources import Columns, item_columns
from fedtally.sources.values import WHOLE_NUMBER

if TYPE_CHECKING:
    import pyarrow as pa


@suggests_keywords
def tally_spark(
    frame: Any,
    *,
    # keywords: written by tools/keywords.py
    item: str | tuple[str, str] | None = None,
    client: str | None = None,
    count: str | None = None,
    domain: Domain | str | os.PathLike[str] | Sequence[str | int] | None = None,
    outside: str | None = None,
    num_rounds: int | None = None,
    max_items: int | None = None,
    round: str | None = None,
    seed: int | str | bytes | None = None,
    memory: int | str | None = None,
    # end of keywords
    private: bool = False,
) -> pa.Table:
    """Count a Spark data frame on its executors, for a campaign over all of it.

    It does what `fedtally.simulation.dataframe.dask.tally_dask` does, with the same options. With
    `client`, Spark repartitions the frame by this column. Each Python worker holds one partition at
    a time in memory. The executors need fedtally, too.

    Args:
        frame: a data frame of `pyspark.sql`.
        item: the table's column of the items, or for a grid a pair (latitude, longitude), also
            written "latitude,longitude"; by default the only column that plays no other part, or
            the one called "item".
        client: the table's column of the clients; None: each row is a client of its own. It does
            not go with `round`, since a client's draws depend on all rounds.
        count: the table's column of the number of clients that each row stands for.
        domain: the candidates of the campaign, as for `estimate`, but not open; None: the distinct
            items of the input.
        outside: the fate of items outside the domain: "error" (the default) or "drop" (the default
            with `private`).
        num_rounds: the number of rounds, of which each client has one, drawn uniformly (1); not
            where the rows name their rounds.
        max_items: the most items of one client, drawn uniformly from its distinct items (1).
        round: the table's column of natural rounds; None: clients are split over rounds at random.
            A client in several of them contributes to each.
        seed: the seed of the campaign. It is needed where the candidates are the items of the
            input, or clients are named. With `private` it is a secret of the workers, and the
            campaign has another.
        memory: the memory for the rows of each partition that is being counted, as for `estimate`.
        private: whether the campaign has an epsilon, see `partial_tally`.

    Returns:
        The counts of all partitions, as `merge_tallies` returns them.

    Raises:
        InvalidInputError: `frame` is no Spark data frame, or data or options cannot be used.
            Options are checked before any row is counted.
    """
    if not all(hasattr(frame, name) for name in ("mapInArrow", "repartition", "columns")):
        raise InvalidInputError(
            f"frame must be a Spark data frame, got {type(frame).__name__}: fedtally.estimate takes"
            " the tables of one machine"
        )
    columns = Columns(item_columns(item, domain), client, round, count)
    columns = columns.resolve(frame.columns, "the frame")
    keywords = {part: getattr(columns, part) for part in ("item", "client", "round", "count")} | {
        "domain": candidates_of(domain),
        "num_rounds": num_rounds,
        "max_items": max_items,
        "seed": seed,
        "outside": outside,
        "private": private,
        "memory": memory,
    }
    names = columns.names()
    # New names: `mapInArrow` reads a dot in a name as the path to a part of a column.
    frame = frame.select(*(col(_quoted(name)).alias(f"c{i}") for i, name in enumerate(names)))
    # A test without rows: otherwise a wrong option would be an error only after hours of work.
    no_rows = frame.limit(0).toArrow().rename_columns(names)
    partial_tally(no_rows, partition="no rows", **keywords)
    where = "the frame"
    if client is not None:
        key = f"c{names.index(client)}"
        if frame.schema[key].dataType.typeName() == "string":
            # The text 7.0 becomes 7, as sources read it. Otherwise rows of one client could get
            # into two partitions.
            pattern = WHOLE_NUMBER.replace("$", r"\z")  # Java's $ also matches before a line end
            frame = frame.withColumn(key, regexp_replace(key, pattern, "$1$2"))
        frame = frame.repartition(key)
        where = f"the frame, by {client}"
    count_each = partial(_count, names=names, where=where, keywords=keywords)
    counted = frame.mapInArrow(count_each, "tally binary, kind string, error string")
    tallies = []
    for tally, kind, error in counted.collect():
        if error is not None:
            raise getattr(errors, kind, InvalidInputError)(error)
        tallies.append(_table(tally))
    # Partitions without rows return no tally. If all are without rows, count a table without rows.
    tallies = tallies or [partial_tally(no_rows, partition=0, **keywords)]
    content = Content.of(merge_tallies(tallies))
    # Add the columns that did not move: `estimate` may warn about them.
    return replace(content, columns=replace(content.columns, others=columns.others)).table()


def _quoted(name: str) -> str:
    """Return the name of a column in Spark's quotes, so that it may have any characters."""
    return "`" + name.replace("`", "``") + "`"


def _count(
    batches: Iterable[Any], *, names: list[str], where: str, keywords: dict[str, Any]
) -> Iterator[Any]:
    """Yield one row: the counts of a partition, or its error, which names the partition.

    The row has three columns: `tally` (the Arrow stream of the counts), `kind` (the name of the
    error's class) and `error` (its text). A partition without rows yields nothing.
    """
    import pyarrow as pa

    number = TaskContext.get().partitionId()
    held = list(batches)
    kind = error = tally = None
    if not held:
        return
    try:
        rows = pa.Table.from_batches(held).rename_columns(names)
        tally = _stream(partial_tally(rows, partition=number, **keywords))
    except InvalidInputError as raised:
        kind, error = type(raised).__name__, f"partition {number} of {where}: {raised}"
    yield pa.RecordBatch.from_arrays(
        [
            pa.array([tally], pa.binary()),
            pa.array([kind], pa.string()),
            pa.array([error], pa.string()),
        ],
        ["tally", "kind", "error"],
    )


def _stream(table: Any) -> bytes:
    """Return a table, with its metadata, as the bytes of a compressed Arrow stream."""
    import pyarrow as pa

    sink, packed = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=packed) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _table(stream: bytes) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(stream).read_all()
