"""Count a Dask data frame on its workers.

Only this module imports `dask` (extra `dask`). Dask only moves rows and tallies: `partial_tally`
counts each partition, and `merge_tallies` adds up the counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dask import delayed

from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.simulation.estimate import suggests_keywords
from fedtally.simulation.partial import Content
from fedtally.simulation.partitions import candidates_of, merge_tallies, partial_tally
from fedtally.sources import Columns, item_columns
from fedtally.sources.values import as_names

if TYPE_CHECKING:
    import pyarrow as pa

_FAN_IN = 8  # the most tallies that one task adds up


@suggests_keywords
def tally_dask(
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
    """Count a Dask data frame on the workers that hold it, for a campaign over all of it.

    `estimate` takes the counts instead of the table. Without `private` and with one `seed`, its
    result is bit for bit the result on the whole table, however many partitions and workers there
    are. If a worker dies, Dask counts its
    partitions again; each partition counts once.

    With `client` the frame is first shuffled, so that all rows of a client are in one partition.
    Only the named columns move.

    The work runs on the cluster of the current `distributed.Client` or, without a client, in this
    process. The workers need fedtally, too.

    The counts are exact and, unless candidates are declared, come with the items. They are as
    secret as the table. With `private` and `client` the seed is secret, too; it is sent to the
    scheduler and the workers.

    Args:
        frame: a Dask data frame.
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
        InvalidInputError: `frame` is no Dask data frame, or data or options cannot be used. Options
            are checked before any work begins.

    >>> import dask.dataframe, fedtally, pandas
    >>> drinks = pandas.DataFrame({"drink": ["tea", "rice", "tea"], "user": ["ann", "bob", "cy"]})
    >>> frame = dask.dataframe.from_pandas(drinks, npartitions=2)
    >>> tally = tally_dask(frame, item="drink", client="user", seed=7)
    >>> [(each.item, round(each.count)) for each in fedtally.estimate(tally, seed=7).top(1)]
    [('tea', 2)]
    """
    if not all(hasattr(frame, name) for name in ("to_delayed", "map_partitions", "columns")):
        raise InvalidInputError(
            f"frame must be a Dask data frame, got {type(frame).__name__}: fedtally.estimate takes"
            " the tables of one machine"
        )
    return _tally(
        frame,
        Columns(item_columns(item, domain), client, round, count),
        {
            "domain": candidates_of(domain),
            "num_rounds": num_rounds,
            "max_items": max_items,
            "seed": seed,
            "outside": outside,
            "private": private,
            "memory": memory,
        },
    )


@dataclass(frozen=True, repr=False)  # without repr: the seed may be secret, and Dask logs values
class _Options:
    """The keyword arguments of `partial_tally`, without the partition's name."""

    keywords: Mapping[str, Any]


def _tally(frame: Any, columns: Columns, options: Mapping[str, Any]) -> pa.Table:
    labels = list(frame.columns)  # labels may have any type; `columns` has text
    names = [str(label) for label in labels]
    columns = columns.resolve(names, "the frame")
    parts = {part: getattr(columns, part) for part in ("item", "client", "round", "count")}
    keywords = _Options({**parts, **options})
    frame = frame[[labels[names.index(name)] for name in columns.names()]]
    # A test without rows: otherwise a wrong option would be an error only after hours of work.
    partial_tally(frame._meta, partition="no rows", **keywords.keywords)
    where = "the frame"
    if columns.client is not None:
        label = labels[names.index(columns.client)]
        frame = frame.map_partitions(_one_name, label).shuffle(on=label)
        where = f"the frame, shuffled by {columns.client}"
    shared = delayed(keywords, traverse=False)  # one copy for all
    level = [
        delayed(_count)(part, number, where, shared)
        for number, part in enumerate(frame.to_delayed())
    ]
    while len(level) > 1:
        level = [
            delayed(merge_tallies)(level[at : at + _FAN_IN]) for at in range(0, len(level), _FAN_IN)
        ]
    content = Content.of(level[0].compute())
    # Add the columns that did not move: `estimate` may warn about them.
    return replace(content, columns=replace(content.columns, others=columns.others)).table()


def _one_name(part: Any, label: Any) -> Any:
    """Return a partition in which clients named by the text 7.0 are named 7, as sources read it.

    Otherwise the shuffle could put rows of one client into two partitions. `label` is the label of
    the column of clients.
    """
    import pyarrow as pa

    if part[label].dtype.kind != "O":  # numbers
        return part
    try:
        held = pa.array(part[label], from_pandas=True)
        if isinstance(held, pa.ChunkedArray):  # text of several joined partitions
            held = held.combine_chunks()
        names = as_names(held, f"column {label!r}")
    except (TypeError, ValueError):  # mixed types: `partial_tally` will raise a better error
        return part
    part = part.copy(deep=False)
    part[label] = names.to_pandas().array
    return part


def _count(part: Any, number: int, where: str, options: _Options) -> pa.Table:
    """Return the counts of one partition; errors name the partition."""
    try:
        return partial_tally(part, partition=number, **options.keywords)
    except InvalidInputError as error:
        raise type(error)(f"partition {number} of {where}: {error.marked}") from error
