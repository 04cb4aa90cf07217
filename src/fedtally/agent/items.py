"""The items that an agent holds: where they are read, and what they are candidates of.

A reader takes no argument and returns a column of items, as `FrequencyClient` takes them; that of a
silo returns `Held`, which says whose each item is. It is called for every session anew, so that the
agent holds no items in between, and never before the record knows the session.
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
    """What the people of a silo hold: batches of items and people, each row read by itself."""

    batches: Sequence[sources.Batch]  # with clients, which are the people


WAIT_SECONDS = 10  # for a lock that another program holds on the owner's database
READ_SECONDS = 30  # to read and encode the items, unless the owner says otherwise
MOST_READ_SECONDS = 3600


class Items:
    """The items of a client.

    Args:
        read: returns them.
        candidates: the domains of which a plan holds the digest alone.
        of_people: whether this client is a silo: then `read` returns `Held`.
        start: how items are read and encoded for a session.
        check: refuses a place of items that cannot be read, by what everybody may know of it.
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
        """Refuse a place of items that cannot be read, without a look at what it holds.

        Raises:
            UnreadableFileError: there is no such file, or it may not be read.
            InvalidInputError: a peer may see it.
        """
        self._check()

    def read(
        self,
        plan: Plan,
        then: Callable[[FrequencyClient], FrequencyClient] = lambda client: client,
        *,
        in_steps: bool = False,
    ) -> Reading:
        """Start to read and encode the items; what is returned has the `client` of the plan.

        Args:
            plan: the plan.
            then: what is made of the client, as a part of the same work.
            in_steps: whether its end is told only after 1, 2, 4, 8, ... seconds; see `Reading`.
        """
        return self._start(lambda: then(self.client(plan)), in_steps=in_steps)

    def without(self, plan: Plan) -> FrequencyClient:
        """Return the client of a plan with privacy that holds no item, nor anybody who does."""
        domain = self.domain(plan)
        nothing = FrequencyClient(plan, domain, [], bounded=True)
        if not self._of_people:
            return nothing
        return FrequencyClient.of_people(plan, nothing._ids, [], names=nothing._names)

    def domain(self, plan: Plan) -> Domain:
        """Return the candidates that a plan describes.

        Raises:
            InvalidInputError: the plan holds their digest alone, and no file here has it; or their
                kind is none that an agent can rebuild.
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
        """Return the client of a plan that holds the items as they are now.

        Items that are no candidates are left out. Of more than the plan's max_items some are drawn,
        when the vector is made: it leaves once, after the record knows it, so that no second draw
        can leave.

        Raises:
            InvalidInputError: the plan is one of silos and these are the items of one person, or
                the other way round; or the items are refused by `FrequencyClient`.
        """
        if reason := self.refusal(plan):
            raise InvalidInputError(reason)
        domain = self.domain(plan)
        if self._of_people:
            return _silo(plan, domain, self._read())
        return FrequencyClient(plan, domain, self._read(), bounded=True)

    def refusal(self, plan: Plan) -> str:
        """Return why these are not the items that a plan counts, or ""."""
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
    """Return the silo whose people hold items.

    Under privacy an item that is no candidate is left out, and its person counts all the same.
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
    """Return the reader of a table or text file: CSV, TSV, Parquet, JSON lines, text.

    Args:
        path: the path of the file.
        column: the column of the items, or two: latitude and longitude. None: the only one, or
            `item`.
        format: None: by the file's suffix.
        people: the column of the people of a silo; None: the items are of one person.
        watch: is entered for each reading; raises an InvalidInputError if it must not be.

    Raises:
        InvalidInputError: there is no such file or format.
        MissingExtraError: it cannot be read without PyArrow, which is not installed.
    """
    chosen = column if column is None or isinstance(column, str) else (column[0], column[1])
    columns = sources.Columns(item=chosen, client=people)
    is_light = not arrow.is_installed()

    def read() -> Any:
        with watch():
            return rows()

    def rows() -> Any:
        # Every row by itself: no value is an error, since errors would show what is held.
        try:
            if is_light:
                return one_file.texts_of(str(path), columns, format)
            return _of_arrow(sources.open_source(path, columns, format=format), people)
        except UnreadableFileError:
            raise
        except InvalidInputError:  # it lists the columns: without a header these are items
            raise InvalidInputError(
                f"{path} gives no column of items: name it in items.column, as the first line of"
                " the file has it; the column holds texts or numbers"
            ) from None

    if is_light:
        _check_light(path, columns, format, people)
    sources.open_source(path, columns, format=format)  # a file that is not there is refused now
    return read


def _of_arrow(source: sources.Source, people: str | None) -> Any:
    """Return the items of a file as a column, or those of the people of a silo."""
    import pyarrow as pa

    batches = source.batches(private=True, may_be_empty=True)
    if people is not None:
        return Held(list(batches))
    # integers read the same as text, and repeated items need no memory
    kind = pa.large_string()
    return pa.chunked_array([batch.items.cast(kind).unique() for batch in batches], kind)


def _check_light(path: Path, columns: sources.Columns, format: str | None, people: object) -> None:
    """Refuse a file of items that cannot be read without PyArrow."""
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
    """Return the reader of what a query of an SQLite database gives: one column of items.

    The database is opened to read, so that a query changes nothing.

    Args:
        path: the path of the database.
        query: the query.
        people: the column of the people of a silo, beside that of the items; None: there is none.
        watch: the context that is entered for each reading, as for `of_file`.

    Raises:
        UnreadableFileError: there is no such file.
        MissingExtraError: a silo needs PyArrow, which is not installed.
    """
    if not path.is_file():
        raise UnreadableFileError(f"there is no database {path}")
    _check_people(people)

    def read() -> Any:
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
                shown = False  # from here on the text of an error may quote an item
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
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a text that quotes bytes
            why = error if shown else getattr(error, "sqlite_errorname", type(error).__name__)
            raise UnreadableFileError(f"cannot read the items from {path}: {why}") from None

    return read


def _held_by(rows: Iterable[Sequence[Any]], names: Sequence[str], people: str) -> Held:
    """Return what the rows of a query say that each person of a silo holds."""
    if len(names) != 2 or people not in names:
        raise InvalidInputError(
            "the query of items.sqlite must give two columns, that of the items and the one that"
            f" items.people names, {people!r}"
        )
    place = list(names).index(people)
    # numbers are written as texts: one column may hold both, and an array holds one type
    items, owners = [], []
    for row in rows:
        items.append(None if row[1 - place] is None else str(row[1 - place]))
        owners.append(None if row[place] is None else str(row[place]))
    return Held(list(sources.from_items(items, clients=owners).batches(private=True)))


def _decoded(text: bytes) -> str | None:
    """Return the text of a value; None where it is no UTF-8, as in the other files."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def of_python(entry: str, check: Callable[[Path], None] = lambda file: None) -> Reader:
    """Return the reader that a Python entry point names: `module:function`.

    Args:
        entry: the module and the function.
        check: is called with the file of the module, and of each package around it, before it runs;
            raises an InvalidInputError if it must not.

    Raises:
        InvalidInputError: there is no such module or function.
    """
    module, _, name = entry.partition(":")
    for file in _files_of(module):
        check(file)
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a module runs when it is imported
        known = isinstance(error, ImportError | AttributeError)
        why = error if known else type(error).__name__  # another text may quote an item
        raise InvalidInputError(
            f"{entry!r} cannot be imported ({why}): write"
            " module:function, of a module that is installed beside fedtally or on PYTHONPATH"
        ) from None
    if not callable(found):
        raise InvalidInputError(f"{entry!r} is no function: write module:function")

    def read() -> Any:
        try:
            return found()
        except SystemExit:  # it would end the agent, and print what it was given
            raise InvalidInputError(
                f"items.python: {entry} ended the process (SystemExit): let it return the items"
            ) from None

    return read


def _files_of(module: str) -> Iterator[Path]:
    """Yield the file of each package around a module, and that of the module.

    To find a module, Python runs the packages around it: each of them is yielded before it runs.
    """
    names = module.split(".")
    for end in range(1, len(names) + 1):
        try:
            found = importlib.util.find_spec(".".join(names[:end]))
        except (Exception, SystemExit):  # the import says what is wrong
            return
        if found is not None and found.has_location and found.origin is not None:
            yield Path(found.origin)


def candidates_of(path: Path) -> list[Domain]:
    """Return the public domains that a list of candidates may be: words, or integers.

    Raises:
        InvalidInputError: the file cannot be read, or a line is empty or repeats another.
    """
    words: list[Domain] = [sources.read_candidates(path, is_checked=True)]
    with suppress(InvalidInputError):  # not all lines are integers
        words.append(IntegerSet(words[0].labels(range(words[0].size)), public=True))
    return words
