"""The counts of one partition of a table, or of several, as an Arrow table: a *partial tally*.

`fedtally.partial_tally` and `fedtally.merge_tallies` return it. The counts are exact: they show how
many rows, or clients, hold each item. Each row of the Arrow table says how many clients of a round
hold an item: `round` (the number of the round from 0, int32), `id` (of the item, uint64) and
`count` (int64). If the input's own items are the candidates, rows with the items follow. They have
only the fourth column, `item`, which is null in the rows with counts. All other data of a partial
tally, such as the options, are JSON in the metadata of the schema.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedtally.base.dropped import Dropped
from fedtally.domain import Domain
from fedtally.domain.columns import utf8_buffers
from fedtally.errors import InvalidInputError, UnreadableFileError, reason
from fedtally.simulation.counted_part import Part
from fedtally.simulation.item_ids import Encoder, is_integer
from fedtally.simulation.partial_checks import check
from fedtally.simulation.randomness import campaign_seed
from fedtally.simulation.round_tally import U64, RoundTally
from fedtally.simulation.row_counts import Tally
from fedtally.sources import Batch, Columns, Source

_SCHEMA = "fedtally/partial-tally/2"
_KEY = b"fedtally"  # the key of the JSON in the schema's metadata
_NAME = "a partial tally"  # what messages call it
_BYTES = bytes | bytearray | memoryview  # an earlier fedtally returned partial tallies as bytes
_BLOCK = 1 << 20  # the most candidates to compare at a time


class Rules(NamedTuple):
    """The options with which rows are counted, as JSON-able values.

    All partitions and the campaign must have the same rules.

    Attributes:
        domain: a digest of the declared candidates; None: the input's own items are the candidates.
        seed: a digest of the campaign's seed; None if neither ids nor draws depend on the seed.
        hashes: a digest of the seed from which ids of items follow; None if candidates are
            declared. In a campaign with a plan the ids follow from the plan's seed, otherwise from
            the campaign's seed.
        num_rounds: the number of rounds over which clients are split; None: the rows name their
            rounds.
        max_items: the most items that a client contributes.
        outside: what happens to items outside the domain: "error" or "drop".
        private: whether the campaign has an epsilon. If so, a row that cannot be read is no error,
            and clients without items take part.
    """

    domain: str | None
    seed: str | None
    hashes: str | None
    num_rounds: int | None
    max_items: int
    outside: str
    private: bool

    @classmethod
    def of(
        cls,
        seed: int | str | bytes | None,
        domain: Domain | None,
        *,
        hashes: bytes,
        num_rounds: int | None,
        max_items: int,
        outside: str,
        private: bool,
    ) -> Rules:
        """Return the rules that follow from options.

        Args:
            seed: the seed of the campaign; None if neither ids nor draws depend on it.
            domain: the declared candidates; None: the input's own items are the candidates.
            hashes: the seed from which ids of items follow.
            num_rounds: the attribute `num_rounds`.
            max_items: the most items that a client contributes.
            outside: what happens to items outside the domain: "error" or "drop".
            private: the attribute `private`.
        """
        return cls(
            _digest(domain),
            None if seed is None else _digest_of(campaign_seed(seed)),
            None if domain is not None else _digest_of(hashes),
            num_rounds,
            max_items,
            outside,
            private,
        )

    def check(self, theirs: Rules, who: str) -> None:
        """Refuse other rules that differ from these rules.

        Args:
            theirs: the other rules.
            who: the name of what has the other rules, for the error.

        Raises:
            InvalidInputError: the rules differ; the error names the first difference.
        """
        # `outside` follows from `private` unless it was given, so `private` is named before it
        for name in ("private", *self._fields):
            mine, other = getattr(self, name), getattr(theirs, name)
            if mine != other:
                if name == "hashes":  # `seed` is equal, or was not compared
                    raise InvalidInputError(
                        f"{who} has ids of its items by another seed than the plan's: count the"
                        " partitions with the seed that the plan was made with, or declare a domain"
                    )
                shown = "" if name in ("seed", "domain") else f" ({other!r} and {mine!r})"
                raise InvalidInputError(
                    f"{who} has another {name} than the others{shown}: give it alike to all"
                    " partitions and to the campaign"
                )


def _digest_of(seed: bytes) -> str:
    return hashlib.shake_256(b"fedtally/1/partial tally\x00" + seed).hexdigest(16)


def _digest(domain: Domain | None) -> str | None:
    if domain is None:
        return None
    state = hashlib.sha256(json.dumps(domain.describe(), sort_keys=True).encode())
    for name, values in sorted(domain.arrays().items()):
        state.update(name.encode() + values.tobytes())
    return state.hexdigest()


@dataclass(frozen=True, eq=False)
class Content:
    """The counts of one partition or of several, with all that a partial tally holds.

    Attributes:
        partitions: a dict from the name of each partition to a digest of its counts.
        rules: the options with which the rows were counted.
        part: the counts.
        items: the distinct items of the input, an Arrow array of text or int64, if they are the
            candidates and there are any; else None.
        columns: the columns of the rows; without names if there were no rows.
    """

    partitions: Mapping[str, str]
    rules: Rules
    part: Part
    items: Any
    columns: Columns

    @classmethod
    def of_partition(
        cls, name: str, rules: Rules, part: Part, items: Any, columns: Columns
    ) -> Self:
        """Return the counts of one partition, with the partition's name and digest."""
        # The items are sorted, as a merge sorts them. Otherwise a merge of this tally alone would
        # change the digest.
        items = None if items is None else _joined([items])
        content = cls({}, rules, part, items, columns)
        return replace(content, partitions={name: content._digest()})

    def _digest(self) -> str:
        """Return a digest of the counts and of the options with which they were made."""
        # Unused columns are left out: if the same rows are counted again, these columns may have
        # another order, and the digest must not change.
        meta = replace(self, columns=replace(self.columns, others=()))._header()
        state = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
        for values in (*self._counts().values(), *_buffers(self.items)):
            state.update(len(values).to_bytes(8, "little") + values.tobytes())
        return state.hexdigest()

    def table(self) -> Any:
        """Return the partial tally: the counts as an Arrow table, with metadata."""
        import pyarrow as pa

        meta = {
            "schema": _SCHEMA,
            "partitions": dict(sorted(self.partitions.items())),
            **self._header(),
        }
        columns = {name: pa.array(values) for name, values in self._counts().items()}
        if self.items is not None:
            more, number = len(self.items), len(columns["id"])
            columns = {
                name: pa.concat_arrays([values, pa.nulls(more, values.type)])
                for name, values in columns.items()
            }
            columns["item"] = pa.concat_arrays([pa.nulls(number, self.items.type), self.items])
        return pa.table(columns).replace_schema_metadata({_KEY: json.dumps(meta)})

    @classmethod
    def of(cls, data: object) -> Self:
        """Return the counts of a partial tally that `table` made.

        Raises:
            InvalidInputError: the data are no partial tally.
            UnreadableFileError: the partial tally is damaged, or was made by another version.
        """
        if isinstance(data, _BYTES):
            raise UnreadableFileError(
                f"{_NAME} is an Arrow table, got {type(data).__name__}: an earlier fedtally counted"
                " to bytes (fedtally/partial-tally/1); count the partitions anew"
            )
        if not is_tally(data):
            raise InvalidInputError(
                f"{_NAME} is the Arrow table that fedtally.partial_tally returns, with the metadata"
                f" of its schema, got {type(data).__name__}: pass on the table as it is"
            )
        # Impossible values can raise any kind of error.
        try:
            return cls._read(data)
        except UnreadableFileError:  # from another version
            raise
        except Exception as error:
            raise UnreadableFileError(
                f"{_NAME} is damaged{reason(error)}; count the partition anew"
            ) from error

    def _header(self) -> dict[str, Any]:
        part = self.part
        return {
            "rules": self.rules._asdict(),
            "columns": {
                name: value
                for name, value in asdict(self.columns).items()
                # other fields are only for reading files
                if name not in ("folders", "given", "item_option")
            },
            "labels": list(part.labels),
            "num_clients": [tally.num_clients for tally in part.rounds],
            "sizes": [len(tally.ids) for tally in part.rounds],
            "num_items": 0 if self.items is None else len(self.items),
            "by_client": part.by_client,
            "has_counts": part.has_counts,
            "rows": part.rows,
            **part.dropped.header(),
            "most_clients": part.most_clients,
            "has_integer_clients": part.has_integer_clients,
            "sample": base64.b64encode(part.sample.astype("<u8").tobytes()).decode(),
        }

    def _counts(self) -> dict[str, npt.NDArray[Any]]:
        rounds = self.part.rounds
        places = np.arange(len(rounds), dtype=np.int32)
        return {
            "round": np.repeat(places, [len(tally.ids) for tally in rounds]),
            "id": np.concatenate([np.empty(0, np.uint64), *(tally.ids for tally in rounds)]),
            "count": np.concatenate([np.empty(0, np.int64), *(tally.counts for tally in rounds)]),
        }

    @classmethod
    def _read(cls, table: Any) -> Self:
        meta = json.loads(table.schema.metadata[_KEY])
        if meta["schema"] != _SCHEMA:
            raise UnreadableFileError(
                f"{_NAME} holds {meta['schema']}, expected {_SCHEMA}: count the partition anew"
            )
        sample = np.frombuffer(base64.b64decode(meta["sample"], validate=True), "<u8")
        number = check(meta, table, sample)
        ends = np.cumsum(meta["sizes"], dtype=np.int64)
        *ids, _ = np.split(table["id"][:number].to_numpy(), ends)
        *counts, _ = np.split(table["count"][:number].to_numpy(), ends)
        rounds = map(RoundTally, meta["num_clients"], ids, counts)
        part = Part(
            tuple(meta["labels"]),
            tuple(rounds),
            meta["by_client"],
            meta["has_counts"],
            meta["rows"],
            Dropped.of_header(meta),
            meta["most_clients"],
            sample.astype(np.uint64),
            meta["has_integer_clients"],
        )
        items = table["item"][number:].combine_chunks() if "item" in table.schema.names else None
        rules, columns = Rules(**meta["rules"]), _columns(meta["columns"])
        content = cls(meta["partitions"], rules, part, items, columns)
        if len(content.partitions) == 1 and [content._digest()] != [*content.partitions.values()]:
            raise InvalidInputError("its counts are other ones than its digest says")
        return content


def is_tally(data: object) -> bool:
    """Return whether data are an Arrow table with the metadata of a partial tally."""
    import pyarrow as pa

    return isinstance(data, pa.Table) and _KEY in (data.schema.metadata or {})


def _buffers(items: Any) -> tuple[npt.NDArray[Any], ...]:
    import pyarrow as pa

    if items is None:
        return ()
    return (items.to_numpy(),) if pa.types.is_integer(items.type) else utf8_buffers(items)


def _columns(meta: Mapping[str, Any]) -> Columns:
    item = meta["item"]
    return Columns(
        **{
            **meta,
            "item": tuple(item) if isinstance(item, list) else item,
            "others": tuple(meta["others"]),
        }
    )


@dataclass(frozen=True, eq=False)
class Tallied(Source):
    """A source of rows that are already counted: a partial tally, for `estimate`.

    Attributes:
        content: the counts and the options with which they were made.
    """

    content: Content = field(kw_only=True)

    @classmethod
    def of(cls, data: object) -> Self:
        """Return the source of a partial tally; for errors see `Content.of`."""

        def read(_private: bool) -> Iterator[Batch]:
            raise InvalidInputError("a merged tally has counts, and no rows to read")

        return cls("the merged tally", read, content=Content.of(data))

    @property
    def form(self) -> tuple[bool, bool]:
        """Two flags: whether the rows named their rounds, and whether they named their clients."""
        return self.content.rules.num_rounds is None, self.content.part.by_client

    def fill(self, tally: Tally, encoder: Encoder, rules: Rules) -> None:
        """Put the counts into a tally, and the items into its encoder.

        Args:
            tally: a tally without rows.
            encoder: the encoder of the tally.
            rules: the options of the campaign, which must equal the options of the partitions. Two
                of them are not always compared. `hashes` is not compared if ids of items are not
                fingerprints of text. `seed` is not compared if no count depends on it, or if the
                campaign is private and has no seed: clients' items are already drawn.

        Raises:
            InvalidInputError: the rows were counted with other options; or there were no rows, and
                the input's own items are the candidates.
            UnreadableFileError: an id does not belong to any candidate.
        """
        theirs, items, part = self.content.rules, self.content.items, self.content.part
        if rules.private != theirs.private:
            raise InvalidInputError(
                f"the merged tally was counted with private={theirs.private}, and must be with"
                f" {rules.private}: a campaign with epsilon needs True, and another needs False;"
                " count all partitions anew, for True with a declared domain"
            )
        if theirs.seed is None or (rules.seed is None and rules.private):
            rules = rules._replace(seed=theirs.seed)
        if items is None or is_integer(items):  # no seed changes the id of an integer
            rules = rules._replace(hashes=theirs.hashes)
        rules.check(theirs, "the merged tally")
        ids = np.unique(
            np.concatenate([np.empty(0, np.uint64), *(each.ids for each in part.rounds)])
        )
        if rules.domain is not None:
            wrong = _outside(ids, encoder.domain())
        else:
            wrong = ids if items is None else np.setdiff1d(ids, encoder.encode(items)[0])
        if len(wrong):
            raise UnreadableFileError(
                f"{_NAME} is damaged: id is {wrong[0]}, and must be the id of a candidate; count"
                " the partition anew"
            )
        if rules.domain is None and items is None:
            raise self.without_rows(part.dropped, self.content.columns)
        tally.take(part)
        tally.columns = self.content.columns


def _outside(ids: U64, domain: Domain) -> U64:
    """Return the ids that belong to no candidate: uint64."""
    if domain.first_id is not None:  # a range may be too large to list its ids
        return ids[ids - np.uint64(domain.first_id) >= np.uint64(domain.size)]
    for start in range(0, domain.size, _BLOCK):
        ids = ids[~np.isin(ids, domain.ids(start, min(start + _BLOCK, domain.size)))]
    return ids


def merged(contents: Iterable[Content]) -> Content:
    """Return the counts of all partitions together.

    A partition that comes several times counts once.

    Args:
        contents: the counts, at least one.

    Raises:
        InvalidInputError: there are no counts; they were made with different options; two counts of
            one partition differ; or, of the partitions of a tally, some are in tallies with at
            least as many partitions, and others are not. Such a tally can be neither added nor left
            out.
    """
    # Tallies of more partitions come first. A tally whose partitions are all in earlier tallies is
    # left out.
    given = sorted(contents, key=lambda content: -len(content.partitions))
    if not given:
        raise InvalidInputError("there is no partial tally to merge: pass at least one")
    known: dict[str, str] = {}
    parts: list[Content] = []
    for content in given:
        _check_alike(given[0], content)
        again = sorted(content.partitions.keys() & known.keys())
        if any(known[name] != content.partitions[name] for name in again):
            raise InvalidInputError(
                f"two tallies of the partition {again[0]!r} differ: give each partition a name of"
                " its own, and count the same rows when it is counted again"
            )
        if again and len(again) < len(content.partitions):
            raise InvalidInputError(
                f"the partition {again[0]!r} is in two merged tallies: merge each partition into"
                " one of them"
            )
        if not again:
            known |= content.partitions
            parts.append(content)
    return Content(
        known,
        given[0].rules,
        Part.sum([content.part for content in parts]),
        _joined([content.items for content in parts if content.items is not None]),
        _columns_of([content.columns for content in given]),
    )


def _columns_of(tables: Sequence[Columns]) -> Columns:
    """Return the columns that a merged tally names.

    If the tallies have different columns, the result has the columns of one tally, but its `others`
    lists the unused columns of all tallies. Tallies without columns are ignored. The result does
    not depend on the order of the tallies.
    """
    known = {columns for columns in tables if columns.names()}
    if len(known) < 2:
        return next(iter(known), Columns())
    others = sorted({name for columns in known for name in columns.others})
    # Take the columns whose JSON text is the smallest: they do not depend on the tallies' order.
    return replace(
        min(known, key=lambda columns: json.dumps(asdict(columns))), others=tuple(others)
    )


def _check_alike(first: Content, content: Content) -> None:
    names = sorted(content.partitions)
    who = f"the tally of {names[0]!r}" + (f" and {len(names) - 1} others" * (len(names) > 1))
    first.rules.check(content.rules, who)
    if content.part.by_client != first.part.by_client:
        raise InvalidInputError(
            f"{who} bounds named clients, and another does not, or the other way round: name the"
            " column of the clients (client) for all partitions, or for none"
        )


def _joined(columns: Sequence[Any]) -> Any:
    """Return the distinct items of several Arrow arrays, sorted; None if there are no arrays.

    Raises:
        InvalidInputError: some arrays hold integers and some text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not columns:
        return None
    if len({str(column.type) for column in columns}) > 1:
        raise InvalidInputError(
            "some partitions hold integers and some text; give the items one type, or declare a"
            " domain"
        )
    distinct = pa.chunked_array(columns).unique()
    return distinct.take(pc.sort_indices(distinct))
