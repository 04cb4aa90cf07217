"""The columns of a source, and the batches of rows that a source yields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.dropped import NOTHING, Dropped
from fedtally.base.text import in_number
from fedtally.domain import Grid
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.sources.extensions import values_of
from fedtally.sources.values import as_counts, as_names, as_pairs, as_values

_LISTED = 30  # the most columns that a message lists


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold the item, the client, the silo, the round and the count.

    Args:
        item: the name of the item's column, or a pair of names: latitude and longitude. None:
            `resolve` chooses the only column without another role. If there are several such
            columns, it chooses the column ``item``.
        client: the client's column; rows with equal values are one client. None: each row is a
            client.
        round: the column that names the round of a row; None: rows name no round.
        count: the column with the number of clients that a row stands for; not with `client`. None:
            each row stands for one client.
        silo: the silo's column. A silo is a client that has the rows of many people. With `silo`,
            `client` must be given, and is the column of the people. None: there are no silos.
        others: the columns of the table that are not used; set by `resolve`.
        are_named: whether the names are the names of a table's columns. Otherwise `needed` and
            `parts` do not return them.
        folders: pairs of a column's name and its value, from the names of the folders in the
            table's path. The round and the silo may be such a column, with this value in all rows
            of the table. If the value is None, it is missing.
        given: the pairs of `folders` that are used, because the table has no column of that name;
            set by `with_folders`, which `resolve` calls.
        item_option: the option that names the item's column, for messages.

    Raises:
        InvalidInputError: `client` and `count` are both given, `silo` is given without `client`,
            `item` is a tuple of other than two names, or a name is no text.

    >>> Columns(count="n").resolve(["word", "n"], "words.csv").item
    'word'
    """

    item: str | tuple[str, str] | None = None
    client: str | None = None
    round: str | None = None
    count: str | None = None
    silo: str | None = None
    others: tuple[str, ...] = ()
    are_named: bool = True
    folders: tuple[tuple[str, str | None], ...] = ()
    given: tuple[tuple[str, str | None], ...] = ()
    item_option: str = opt.item

    def __post_init__(self) -> None:
        if self.client is not None and self.count is not None:
            raise InvalidInputError(
                "a count stands for that many clients, so a count column cannot go with a client"
                f" column: leave {opt.count} or {opt.client} out"
            )
        if self.silo is not None and self.client is None:
            raise InvalidInputError(
                "a silo column goes with a client column, which names the person of each row: name"
                f" both ({opt.silo}, {opt.client})"
            )
        if isinstance(self.item, tuple) and len(self.item) != 2:
            raise InvalidInputError(
                f"{arg.item} must be one column or a pair latitude, longitude, got {self.item!r}"
            )
        parts = ("client", "silo", "round", "count")
        for part, name in (
            *(("item", name) for name in self.items),
            *((part, getattr(self, part)) for part in parts),
        ):
            if name is not None and not isinstance(name, str):
                raise InvalidInputError(
                    f"{part} must be the name of a column, as text, got {type(name).__name__}"
                )

    @property
    def items(self) -> tuple[str, ...]:
        """The names of the item's one or two columns; empty if the column is not chosen yet."""
        if self.item is None:
            return ()
        return self.item if isinstance(self.item, tuple) else (self.item,)

    @property
    def beside(self) -> tuple[str, str]:
        """The options that name the client and the count of each row, for messages.

        >>> Columns("word", are_named=False).beside
        ('clients=', 'counts=')
        """
        if self.are_named:
            return opt.client("COL"), opt.count("COL")
        return "clients=", "counts="  # no command has them: lists are passed in Python alone

    def names(self) -> list[str]:
        """Return the names of all columns that are read from the table, each only once.

        Names that come from folders are left out.

        >>> Columns(item=("lat", "lon"), client="user").names()
        ['lat', 'lon', 'user']
        """
        parts = (self.client, self.round, self.count, self.silo)
        others = [name for name in parts if name is not None and name not in dict(self.given)]
        # A column with two roles, such as item and client, is named once.
        return list(dict.fromkeys([*self.items, *others]))

    def needed(self) -> list[str]:
        """Return, in words, the values that every row must have.

        If `are_named`, the words contain the names of the columns.

        >>> Columns("word", client="user").needed()
        ["item (column 'word')", "client (column 'user')"]
        """
        single = {"client": self.client, "silo": self.silo, "round": self.round}
        held = {"item": ",".join(self.items)}
        held |= {part: name for part, name in single.items() if name is not None}
        return [
            f"{part} (column {name!r})" if self.are_named and name else part
            for part, name in held.items()
        ]

    def parts(self) -> dict[str, list[str]]:
        """Return the names of the columns by role: item, client, round and count, in lists.

        A role without a column is left out. If the columns are not named (`are_named`), each list
        is empty. JSON can hold the result.

        >>> Columns("word", client="user").parts()
        {'item': ['word'], 'client': ['user']}
        """
        single = {"client": self.client, "round": self.round, "count": self.count}
        parts = {part: [name] for part, name in single.items() if name is not None}
        parts = ({"item": list(self.items)} if self.items else {}) | parts
        return parts if self.are_named else {part: [] for part in parts}

    def with_folders(self, available: Sequence[str] = ()) -> Columns:
        """Return these columns with `given` set: the pairs of `folders` that are used.

        A pair is used if its name is the name of the column of the rounds or silos. The table must
        have no column with this name; otherwise the pair is not used.

        Args:
            available: the names of the table's columns.
        """
        missing = {self.round, self.silo} - set(available)
        return replace(self, given=tuple(pair for pair in self.folders if pair[0] in missing))

    def resolve(self, available: Sequence[str], where: str) -> Columns:
        """Check the columns against a table, and return them with the item's column chosen.

        In the result, `given` and `others` are set, too.

        Args:
            available: the names of the table's columns.
            where: the name of the table in messages.

        Raises:
            InvalidInputError: a column is missing, or several columns have its name. Or it is not
                clear which column is the item.

        >>> Columns().resolve(["a", "b"], "x.csv")
        Traceback (most recent call last):
        ...
        fedtally.errors.InvalidInputError: x.csv: which column is the item? It has the columns ...
        """
        listed = _listing(available)
        chosen = self
        if self.item is None:
            left = [name for name in available if name not in self.names()]
            if len(left) != 1 and "item" not in left:
                raise InvalidInputError(
                    f"{where}: which column is the item? It has the columns {listed}"
                    f" ({self.item_option})"
                )
            chosen = replace(self, item=left[0] if len(left) == 1 else "item")
        elif ",".join(self.items) in available and not set(self.items) <= set(available):
            # One column that has both coordinates.
            chosen = replace(self, item=",".join(self.items))
        chosen = chosen.with_folders(available)
        if missing := [name for name in chosen.names() if name not in available]:
            ways = [
                "; the name of a folder can be the round or the silo alone"
                if name in dict(self.folders)
                else _other_delimiter(available) or validate.did_you_mean(name, available)
                for name in missing
            ]
            raise InvalidInputError(
                f"{where} has no column {' and no column '.join(map(repr, missing))}; it has the"
                f" columns {listed}{''.join(dict.fromkeys(ways))}"
            )
        for name in chosen.names():
            if list(available).count(name) > 1:  # nobody knows which one is meant
                raise InvalidInputError(
                    f"{where} has several columns called {name!r}; rename all but one"
                )
        return replace(
            chosen, others=tuple(name for name in available if name not in chosen.names())
        )


def item_columns(item: str | tuple[str, str] | None, domain: Any) -> str | tuple[str, str] | None:
    """Return the item's column or, for a grid, the pair of columns that a text names.

    If the domain is a grid, the text "lat,lon" names two columns. For any other domain a comma is a
    part of the name of one column.

    Args:
        item: the item's column or pair of columns, as for `Columns`, or a text such as "lat,lon".
        domain: the candidates, as `fedtally.estimate` takes them.

    >>> item_columns("lat,lon", "grid:25..50,-130..-60,0.1"), item_columns("a,b", None)
    (('lat', 'lon'), 'a,b')
    """
    is_grid = isinstance(domain, Grid) or (isinstance(domain, str) and domain.startswith("grid:"))
    if not is_grid or not isinstance(item, str) or item.count(",") != 1:
        return item
    latitude, longitude = item.split(",")
    return latitude, longitude


def _other_delimiter(available: Sequence[str]) -> str:
    """Return advice on a header that is none, or that another delimiter separates; else "".

    The first line of such a table looks like one column with a whole header in it, or is a line
    ``sep=;`` for Excel.

    Args:
        available: the names of the table's columns.

    >>> from fedtally.errors import render
    >>> render(_other_delimiter(["user;word"]), for_="shell"), _other_delimiter(["user", "a;b"])
    ("; if it is separated by ';', say so (--delimiter ';')", '')
    >>> _other_delimiter(["sep=", ""])
    "; remove its first line, 'sep=', which is for Excel alone"
    """
    if re.fullmatch("sep=.?", "".join(available)):
        return f"; remove its first line, {available[0]!r}, which is for Excel alone"
    letters = [letter for letter in ",;\t|" if len(available) == 1 and letter in available[0]]
    return (
        f"; if it is separated by {letters[0]!r}, say so ({opt.delimiter(letters[0])})"
        if letters
        else ""
    )


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_LISTED])
    return shown + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


class Itemless(NamedTuple):
    """The rows of a batch in which only the item is missing: clients that may take part without an
    item.

    Attributes:
        number: the number of rows.
        clients: the clients, an Arrow array of text or of integers; None: each row is a client.
        rounds: the rounds, an Arrow array of text or of integers; None: rows name no round.
        counts: a function that returns the counts, see `Batch`, or raises InvalidInputError for a
            bad count. Only some callers need the counts, and a bad count must be an error only for
            these callers. None: each row stands for one client.
        silos: the silos, an Arrow array of text or of integers; None: there are no silos.
    """

    number: int
    clients: Any | None
    rounds: Any | None
    counts: Callable[[], npt.NDArray[np.int64]] | None
    silos: Any | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a source. All columns have the same length, and no nulls.

    Attributes:
        items: the items, an Arrow array of text (string or large_string), or of integers (any
            width), or a dictionary of text. The dictionary may have values that no row has.
        clients: the clients, an Arrow array of text or of integers; None: each row is a client.
        rounds: the rounds, an Arrow array of text or of integers; None: rows name no round.
        counts: the number of clients that each row stands for, at least 0: int64 [n]. None: each
            row stands for one client.
        dropped: how many rows were left out of this batch because the item, client, silo or round
            is missing.
        bytes_read: the number of bytes of the source that were read so far, for progress. In a
            compressed file on disk, these are compressed bytes.
        itemless: the dropped rows in which only the item is missing; None: there are none.
        columns: the columns that were read, as `Columns.resolve` returns them.
        silos: the silos, an Arrow array of text or of integers; None: there are no silos.
        headers: the number of rows that repeat the header of the table; 0 under privacy.
    """

    items: Any
    clients: Any | None = None
    rounds: Any | None = None
    counts: npt.NDArray[np.int64] | None = None
    dropped: Dropped = NOTHING
    bytes_read: int = 0
    itemless: Itemless | None = None
    columns: Columns = Columns()
    silos: Any | None = None
    headers: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.items)


@dataclass(frozen=True, eq=False)
class Source:
    """A source of items, which yields its rows in batches.

    Attributes:
        name: the name of the source in messages.
        read: takes `private` (see `batches`) and yields the batches. With `private` there is at
            least one batch, perhaps without rows, which shows the columns.
        size_bytes: the approximate number of bytes of the source, to compare with
            `Batch.bytes_read`. None: it is unknown, as for standard input.
        synthetic_size: the number of items, d, of a synthetic population, whose items are the
            integers 1..d. None: the source is not synthetic.
        repeatable: whether `batches` may be called again, and then yields the same rows. False for
            standard input and pipes.
        about: a note on the origin of the data, for the readers of an answer; None: there is none.
        rows_are_clients: whether the source itself makes every row a client, so that no client has
            several rows.
    """

    name: str
    read: Callable[[bool], Iterator[Batch]] = field(repr=False)
    size_bytes: int | None = None
    synthetic_size: int | None = None
    repeatable: bool = True
    about: str | None = None
    rows_are_clients: bool = False

    def batches(self, *, private: bool = False, may_be_empty: bool = False) -> Iterator[Batch]:
        """Yield the rows in batches, in their order, in bounded memory.

        Args:
            private: whether each row is read independently. Then the content of a row never changes
                how another row is read, and never ends the run. A value that cannot be read is
                missing. A row in which only the item is missing counts as a row.
            may_be_empty: whether a source without rows is allowed.

        Raises:
            InvalidInputError: a value or a column cannot be used, or a column is missing. Or the
                source can be read only once, and was read. Or, at the end, there was no row, and
                `may_be_empty` is False.
            UnreadableFileError: the file cannot be read.

        >>> from fedtally.sources import from_items
        >>> [batch.items.to_pylist() for batch in from_items(["tea", None, "rice"]).batches()]
        [['tea', 'rice']]
        """
        rows, dropped, columns = 0, NOTHING, Columns()
        for batch in self.read(private):
            columns = batch.columns
            rows += len(batch)
            # Under privacy a client without an item takes part, so its row counts.
            rows += batch.itemless.number if private and batch.itemless is not None else 0
            dropped += batch.dropped
            yield batch
        if not rows and not may_be_empty:
            raise self.without_rows(dropped, columns)

    def without_rows(self, dropped: Dropped, columns: Columns) -> InvalidInputError:
        """Return the error for a source in which no complete row was found.

        Args:
            dropped: how many rows were left out.
            columns: the columns that were read.
        """
        # Two messages for two likely mistakes: the wrong column was named, or the wrong file.
        if dropped.incomplete:
            rows = in_number(dropped.incomplete, "its only row", "each of its {} rows")
            return InvalidInputError(
                f"{self.name}: {rows} lacks its {' or its '.join(columns.needed())}"
            )
        return InvalidInputError(f"{self.name} is empty: it has no rows")


def no_rows(schema: Any) -> Any:
    """Return an Arrow record batch that has the columns of a schema and no rows.

    >>> import pyarrow as pa
    >>> no_rows(pa.schema([("item", pa.string())])).num_rows
    0
    """
    import pyarrow as pa

    return pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)


def _column(table: Any, name: str, columns: Columns, where: str) -> Any:
    """Return a column of a table; if a folder's name states its value, an array of this value."""
    import pyarrow as pa

    given = dict(columns.given)
    if name not in given:
        field = table.schema.field(name)
        return values_of(table.column(name), field, f"{where}: column {name!r}")
    return pa.repeat(pa.scalar(given[name], pa.string()), table.num_rows)


def to_batch(
    table: Any,
    columns: Columns,
    where: str,
    bytes_read: int,
    private: bool = False,
    has_header: bool = False,
) -> Batch:
    """Turn an Arrow record batch into a `Batch`.

    Rows without an item, client, silo or round are left out. In the other rows, a count that is
    missing or cannot be read is an error; with `private` it is 0.

    Args:
        table: the Arrow record batch, which has all of `columns`.
        columns: the columns to read, as `Columns.resolve` returns them.
        where: the name of the source in messages.
        bytes_read: the number of bytes of the source that were read so far, see `Batch`.
        private: whether each row is read independently, see `Source.batches`.
        has_header: whether rows that repeat the header are counted, in `Batch.headers`. They stay
            in the batch.

    Raises:
        InvalidInputError: a value or a column cannot be read.

    >>> import pyarrow as pa
    >>> table = pa.record_batch({"word": ["a", None, "b"], "n": [1, 2, 3]})
    >>> batch = to_batch(table, Columns("word", count="n"), "words", 0)
    >>> batch.items.to_pylist(), batch.counts.tolist()
    (['a', 'b'], [1, 3])
    >>> batch.dropped.incomplete, batch.itemless.counts().tolist()
    (1, [2])
    """
    import pyarrow.compute as pc

    if isinstance(columns.item, tuple):
        items = as_pairs(
            [_column(table, name, columns, where) for name in columns.item],
            columns.item,
            where,
            private,
        )
    else:
        column = _column(table, str(columns.item), columns, where)
        what = f"{where}: column {columns.item!r}"
        items = as_values(column, what, private, grouped=True, client=columns.beside[0])
    clients, rounds, silos = (
        (
            None
            if name is None
            else as_names(
                _column(table, name, columns, where), f"{where}: column {name!r}", private
            )
        )
        for name in (columns.client, columns.round, columns.silo)
    )
    counts = None if columns.count is None else _column(table, columns.count, columns, where)
    # Counts are read last, and here only for rows that are kept (`itemless` reads its own when
    # asked): a bad count in a dropped row is no error here.
    what, itemless = f"{where}: column {columns.count!r}", None
    named = _valid(clients, rounds, silos)
    if items.null_count or named is not None:
        held = pc.is_valid(items)
        # The rows in which only the item is missing.
        bare = pc.invert(held)
        bare = bare if named is None else pc.and_(bare, named)
        if pc.any(bare).as_py():
            parts = [
                None if part is None else part.filter(bare)
                for part in (clients, rounds, counts, silos)
            ]
            number = pc.sum(bare).as_py()
            bare_counts = None if parts[2] is None else partial(as_counts, parts[2], what, private)
            itemless = Itemless(number, parts[0], parts[1], bare_counts, parts[3])
        mask = held if named is None else pc.and_(named, held)
        items, clients, rounds, counts, silos = (
            None if part is None else part.filter(mask)
            for part in (items, clients, rounds, counts, silos)
        )
    whole = None if counts is None else as_counts(counts, what, private)
    dropped = Dropped(incomplete=table.num_rows - len(items))
    own = (items, clients, rounds, whole, dropped, bytes_read, itemless, columns)
    headers = _headers(items, clients, rounds, silos, columns) if has_header else 0
    return Batch(*own, silos=silos, headers=headers)


def _headers(items: Any, clients: Any, rounds: Any, silos: Any, columns: Columns) -> int:
    """Return how many rows repeat the header, as joined files have them.

    In such a row the item, client, silo and round are the names of their columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    name = ",".join(columns.items)
    # A joined file may begin with a byte order mark, which is then a part of the first column's
    # name.
    is_header = pc.is_in(items, value_set=pa.array([name, f"\ufeff{name}"], items.type))
    for part, own in ((clients, columns.client), (rounds, columns.round), (silos, columns.silo)):
        if part is not None and own not in dict(columns.given):
            is_header = pc.and_(is_header, pc.equal(part, own))
    return int(pc.sum(is_header).as_py() or 0)


def _valid(*parts: Any) -> Any:
    """Return a mask, true for rows that have no null in any of `parts`; None: there are no nulls.

    A part that is None is ignored.
    """
    import pyarrow.compute as pc

    # Most batches have no nulls. Without a mask their columns need not be copied.
    masks = [pc.is_valid(part) for part in parts if part is not None and part.null_count]
    return reduce(pc.and_, masks) if masks else None
