"""The items of an agent: where they are read, and the client that counts them under a plan.

A reader is a function without arguments. It returns a column of items for `FrequencyClient`, or
`Held` for a silo. A silo is a client with the items of many people, and `Held` also names the
person of each item.

The agent calls the reader at most once for each session, after the session was recorded. Between
sessions the agent holds no items.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtally import domain, sources
from fedtally.agent.reading import Reading, Start, at_once
from fedtally.base import arrow
from fedtally.campaign.client import FrequencyClient
from fedtally.domain import Domain, IntegerSet, names_of
from fedtally.domain.columns import as_text
from fedtally.errors import InvalidInputError, OutsideDomainError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.sources import one_file

Reader = Callable[[], Any]


class Held(NamedTuple):
    """The items of a silo, in batches of rows; each row is an item and the person who has it.

    Attributes:
        batches: the batches, whose column `clients` names the people.
    """

    batches: Sequence[sources.Batch]


WAIT_SECONDS = 10  # the longest wait while another program locks the owner's SQLite database
READ_SECONDS = 30  # the default time limit for reading and encoding the items
MOST_READ_SECONDS = 3600


class Items:
    """The items of a client, which are read when they are needed.

    Args:
        read: the reader, a function that returns the items.
        candidates: domains that may be needed, because a plan may state only the digest of its
            domain.
        of_people: whether this client is a silo; `read` must then return `Held`.
        start: starts a reading and returns it; it decides whether a thread is used. See `Start`.
        check: raises an error if the items cannot be read. It must not look into the items, because
            the server may see whether it raises an error.
    """

    def __init__(
        self,
        read: Reader,
        candidates: Iterable[Domain] = (),
        *,
        of_people: bool = False,
        start: Start = at_once,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._read, self._candidates, self._of_people = read, list(candidates), of_people
        self._start, self._check = start, check

    def check_there(self) -> None:
        """Call `check`: raise an error if the items cannot be read, without looking into them.

        With the settings of agent.toml, the errors are as follows. If a Python function returns the
        items, nothing is checked.

        Raises:
            UnreadableFileError: the file of the items is missing, or the agent may not read it.
            InvalidInputError: the path is a pipe or a device. Or a peer, which is another user who
                may connect to the agent, may read the file or see its size. Or agent.toml names
                peers, and the path, a hard link or an ACL hides who may read the file, see
                `Permissions.check_closed`.
        """
        self._check()

    def read(
        self,
        plan: Plan,
        then: Callable[[FrequencyClient], FrequencyClient] = lambda client: client,
        *,
        in_steps: bool = False,
    ) -> Reading:
        """Start to read and encode the items, and return the `Reading`.

        When the reading is over, `Reading.client` returns the client of `plan` that holds the
        items.

        Args:
            plan: the plan.
            then: applied to the client within the reading; `Reading.client` returns its result.
            in_steps: whether the end is reported only after 1, 2, 4, 8, ... seconds, see `Reading`.
        """
        return self._start(lambda: then(self.client(plan)), in_steps=in_steps)

    def without(self, plan: Plan) -> FrequencyClient:
        """Return a client of a plan that holds no items. For a silo, it holds no people either.

        The plan must have privacy.
        """
        domain = self.domain(plan)
        nothing = FrequencyClient(plan, domain, [], bounded=True)
        if not self._of_people:
            return nothing
        return FrequencyClient.of_people(plan, nothing._ids, [], names=nothing._names)

    def domain(self, plan: Plan) -> Domain:
        """Return the domain that a plan describes.

        Raises:
            InvalidInputError: the plan states only the digest of its candidates, and none of this
                agent's candidates has this digest. Or an agent cannot rebuild a domain of this
                kind. Or the plan describes the domain in a form other than `Domain.describe` gives.
        """
        for known in self._candidates:
            if plan.has_domain(known.describe()):
                return known
        try:
            found = domain.load(plan.domain, {})
        except InvalidInputError:
            raise InvalidInputError(
                f"the candidates of the plan ({plan.domain['kind']}, {plan.domain_size:,} items)"
                " are not in the plan: get their file, and name it in items.candidates"
            ) from None
        if not plan.has_domain(found.describe()):
            raise InvalidInputError("the plan describes its domain in a form that is not the one")
        return found

    def client(self, plan: Plan) -> FrequencyClient:
        """Read the items, and return the client of a plan that holds them.

        Items outside the plan's domain are left out; but a silo raises an error for them if the
        plan has no privacy. If there are more items than the plan's max_items, the client draws
        some at random when it makes its vector. Each vector is recorded before it is sent, and only
        one is sent in a round. So no server sees two draws for one round.

        Raises:
            InvalidInputError: the plan is for silos, and these are the items of one person. Or the
                plan is not for silos, and these are the items of a silo. Or `FrequencyClient`
                refuses the items.
            OutsideDomainError: the plan is for silos and has no privacy, and an item is outside its
                domain.
            Exception: an error of the reader, unchanged.
        """
        if reason := self.refusal(plan):
            raise InvalidInputError(reason)
        domain = self.domain(plan)
        if self._of_people:
            return _silo(plan, domain, self._read())
        return FrequencyClient(plan, domain, self._read(), bounded=True)

    def refusal(self, plan: Plan) -> str:
        """Return, in words, why a plan cannot count these items; "": it can.

        A plan for silos needs a client with the items of many people. Any other plan needs a client
        with the items of one person.
        """
        if plan.is_of_silos == self._of_people:
            return ""
        if self._of_people:
            return (
                "this agent holds the items of many people (items.people), and under the plan a"
                " client is one person: take part in plans of silos (fedtally plan --people)"
            )
        return (
            "the plan is for silos, and this agent holds the items of one person: name the"
            " column of the people in items.people"
        )


def _silo(plan: Plan, domain: Domain, held: Held) -> FrequencyClient:
    """Return the client of a silo with the items of its people.

    Under a plan with privacy, an item outside the domain is left out. A person who then has no item
    is still counted as a person.

    Raises:
        OutsideDomainError: the plan has no privacy, and an item is outside the domain.
    """
    import pyarrow as pa

    domain = domain.with_seed(plan.seed)
    ids, owners, others, columns = [np.zeros(0, np.uint64)], [], [], []
    for batch in held.batches:
        assert batch.clients is not None
        inside = domain.inside(batch.items)
        kept = batch.items.filter(pa.array(inside))
        ids.append(domain.fingerprints(kept))
        columns.append(kept)
        owners.append(batch.clients.filter(pa.array(inside)))
        others.append(batch.clients.filter(pa.array(~inside)))
        if plan.privacy is not None and batch.itemless is not None:
            others.append(batch.itemless.clients)
        elif plan.privacy is None and not inside.all():
            raise OutsideDomainError(
                "an item is none of the plan's candidates; leave it out, or take part in a plan"
                " with privacy"
            )
    labels = pa.chunked_array([*owners, *others]).combine_chunks().dictionary_encode()
    people = labels.indices.to_numpy()
    number = sum(map(len, owners))
    without = len(labels.dictionary) - len(np.unique(people[:number]))
    names = names_of(domain, lambda: pa.chunked_array(map(as_text, columns), pa.large_string()))
    return FrequencyClient.of_people(plan, np.concatenate(ids), people[:number], without, names)


def of_file(
    path: Path,
    column: str | Sequence[str] | None,
    format: str | None,
    people: str | None = None,
    watch: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Reader:
    """Return a reader of a file of items: CSV, TSV, Parquet, an Arrow file, JSON lines or plain
    text.

    When the reader is called, it raises an UnreadableFileError if the file cannot be read, and an
    InvalidInputError if the file gives no column of items.

    Args:
        path: the path of the file.
        column: the name of the column of items, or the names of two columns: latitude and
            longitude. None: the only column, or the column `item`.
        format: the format of the file, such as "csv"; None: the file's suffix decides.
        people: the name of the column that names the person of each item, for a silo. None: all
            items are of one person.
        watch: returns a context manager, within which the file is read each time. It raises an
            error if the file must not be read.

    Raises:
        InvalidInputError: there is no such file or format, or the path is a pipe or a device.
        MissingExtraError: reading the file needs PyArrow, which is not installed.
    """
    chosen = column if column is None or isinstance(column, str) else (column[0], column[1])
    columns = sources.Columns(item=chosen, client=people)
    is_light = not arrow.is_installed()

    def read() -> Any:
        check_whole(path)
        with watch():
            return rows()

    def rows() -> Any:
        # An error about a value would show an item in its message. So the file is read as under
        # privacy, where no value of a row raises an error.
        try:
            if is_light:
                return one_file.texts_of(str(path), columns, format)
            return _of_arrow(sources.open_source(path, columns, format=format), people)
        except UnreadableFileError:
            raise
        # The message of this error quotes the first line, which may hold items.
        except InvalidInputError:
            raise InvalidInputError(
                f"{path} gives no column of items: name it in items.column, as the first line of"
                " the file has it; the column holds texts or numbers"
            ) from None

    if is_light:
        _check_light(path, columns, format, people)
    check_whole(path)
    # A missing file is an error now, and not in the first session.
    sources.open_source(path, columns, format=format)
    return read


def _of_arrow(source: sources.Source, people: str | None) -> Any:
    """Return the items of a file: an Arrow column of text, or `Held` for a silo.

    In the column, no item is repeated within a batch.
    """
    import pyarrow as pa

    batches = source.batches(private=True, may_be_empty=True)
    if people is not None:
        return Held(list(batches))
    # An integer and its digits as text are the same item, so all become text. Repeated items are
    # stored only once for each batch.
    kind = pa.large_string()
    return pa.chunked_array([batch.items.cast(kind).unique() for batch in batches], kind)


def check_whole(path: Path) -> None:
    """Raise an error if a path is a named pipe or a character device, such as a terminal.

    To open a pipe that nobody writes would block the thread of all readings (`Aside`) for good, and
    a pipe gives its items once, while each session reads them anew.

    Raises:
        InvalidInputError: there is a named pipe or a character device at the path.
    """
    if path.is_fifo() or path.is_char_device():
        raise InvalidInputError(
            f"{path} is a pipe or a device, and each session reads the items anew: write them to a"
            " file, or give them by a function (items.python)"
        )


def _check_light(path: Path, columns: sources.Columns, format: str | None, people: object) -> None:
    """Raise an error if a file of items cannot be read without PyArrow.

    Raises:
        InvalidInputError: there is no such format.
        MissingExtraError: a silo, a folder, a glob or this format needs PyArrow, which is not
            installed.
    """
    _check_people(people)
    if path.is_dir() or (glob.has_magic(str(path)) and not path.exists()):
        arrow.check(f"{path}, a folder or a pattern,", "; or name one file")
    one_file.check_format(str(path), columns, format)


def _check_people(people: object) -> None:
    if people is not None:
        arrow.check("a silo (items.people)")


def of_sqlite(
    path: Path,
    query: str,
    people: str | None = None,
    watch: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Reader:
    """Return a reader that runs a query on an SQLite database; the result is the column of items.

    The database is opened read-only, so the query cannot change it. When the reader is called, it
    raises an UnreadableFileError if the query fails, and an InvalidInputError if the result has the
    wrong columns. Neither error shows an item.

    Args:
        path: the path of the database.
        query: the SQL query. Its result has one column, or two for a silo.
        people: for a silo, the name of the column that names the person of each item; the other
            column holds the items. None: all items are of one person.
        watch: returns a context manager, within which the database is read each time. It raises an
            error if the file must not be read.

    Raises:
        UnreadableFileError: there is no such file.
        MissingExtraError: a silo needs PyArrow, which is not installed.
    """
    if not path.is_file():
        raise UnreadableFileError(f"there is no database {path}")
    _check_people(people)

    def read() -> Any:
        check_whole(path)
        with watch():
            return rows()

    def rows() -> Any:
        shown = True
        try:
            with closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", WAIT_SECONDS, uri=True)
            ) as connection:
                connection.text_factory = _decoded
                connection.execute(f"EXPLAIN {query}")
                shown = False  # from here on, the text of an SQLite error may quote an item
                cursor = connection.execute(query)
                names = [column[0] for column in cursor.description or ()]
                if people is not None:
                    return _held_by(cursor, names, people)
                if len(names) != 1:
                    raise InvalidInputError(
                        "the query of items.sqlite must give one column; for a grid join the two:"
                        " SELECT lat || ',' || lon FROM ..."
                    )
                return [item for (item,) in cursor if item is not None]
        except (sqlite3.Error, UnicodeDecodeError) as error:  # both may quote items
            why = error if shown else getattr(error, "sqlite_errorname", type(error).__name__)
            raise UnreadableFileError(f"cannot read the items from {path}: {why}") from None

    return read


def _held_by(rows: Iterable[Sequence[Any]], names: Sequence[str], people: str) -> Held:
    """Return the items of a silo and their people from the rows of a query.

    A value that is neither text nor NULL becomes text.

    Args:
        rows: the rows, each with two values.
        names: the names of the two columns.
        people: the name of the column of people.

    Raises:
        InvalidInputError: there are not two columns, or none of them is the column of people.
    """
    if len(names) != 2 or people not in names:
        raise InvalidInputError(
            "the query of items.sqlite must give two columns, that of the items and the one that"
            f" items.people names, {people!r}"
        )
    place = list(names).index(people)
    # An SQLite column may hold numbers and texts, but an Arrow array has only one type.
    items, owners = [], []
    for row in rows:
        items.append(None if row[1 - place] is None else str(row[1 - place]))
        owners.append(None if row[place] is None else str(row[place]))
    return Held(list(sources.from_items(items, clients=owners).batches(private=True)))


def _decoded(text: bytes) -> str | None:
    """Return bytes as text; None, a missing item, if they are not valid UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def of_python(entry: str, check: Callable[[Path], None] = lambda file: None) -> Reader:
    """Import a Python function, and return it as a reader.

    The reader raises the errors of the function, but an InvalidInputError in place of a SystemExit.

    Args:
        entry: the function, as `module:function`.
        check: called with a file before the file is run: first the files of the enclosing packages,
            then the file of the module. It raises an InvalidInputError if the file must not be run.

    Raises:
        InvalidInputError: there is no such module or function, or its import fails.
    """
    module, _, name = entry.partition(":")
    for file in _files_of(module):
        check(file)
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # the import runs the module, which may raise anything
        known = isinstance(error, ImportError | AttributeError)
        why = error if known else type(error).__name__  # the text of other errors may quote an item
        raise InvalidInputError(
            f"{entry!r} cannot be imported ({why}): write"
            " module:function, of a module that is installed beside fedtally or on PYTHONPATH"
        ) from None
    if not callable(found):
        raise InvalidInputError(f"{entry!r} is no function: write module:function")

    def read() -> Any:
        try:
            return found()
        except SystemExit:  # it would end the agent, and print its argument, perhaps an item
            raise InvalidInputError(
                f"items.python: {entry} ended the process (SystemExit): let it return the items"
            ) from None

    return read


def _files_of(module: str) -> Iterator[Path]:
    """Yield the files that importing a module runs: first those of its packages, then its own.

    Each file is yielded before it is run. To find the next file, Python runs the file that was
    yielded last.
    """
    names = module.split(".")
    for end in range(1, len(names) + 1):
        try:
            found = importlib.util.find_spec(".".join(names[:end]))
        except (Exception, SystemExit):  # the later import raises the same error
            return
        if found is not None and found.has_location and found.origin is not None:
            yield Path(found.origin)


def candidates_of(path: Path) -> list[Domain]:
    """Return the domains that a file of candidates may stand for, one or two.

    The first has the lines as words. If all lines are integers, the second has them as integers.
    The file does not say which one a plan uses.

    Raises:
        InvalidInputError: the file cannot be read, or a line is empty or repeats another line.
    """
    words: list[Domain] = [sources.read_candidates(path, is_checked=True)]
    with suppress(InvalidInputError):  # raised if not all lines are integers
        words.append(IntegerSet(words[0].labels(range(words[0].size)), public=True))
    return words
