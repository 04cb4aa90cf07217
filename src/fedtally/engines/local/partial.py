"""The counts of a part of a table, as bytes: what `fedtally.partial_tally` returns.

They are exact: whoever reads them reads how many rows, or clients, hold each item.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedtally import _archive
from fedtally.domain import Domain
from fedtally.domain.columns import text_of_buffers, utf8_buffers
from fedtally.engines.local.encoding import Encoder, is_integer
from fedtally.engines.local.partial_checks import ALIKE, check, limits
from fedtally.engines.local.seeds import campaign_seed
from fedtally.engines.local.tally import Drawn, Part, RoundTally, Tally
from fedtally.errors import InvalidInputError, UnreadableFileError, reason
from fedtally.sources import Batch, Columns, Source

_SCHEMA = "fedtally/partial-tally/1"
_NAME = "a partial tally"  # in messages


class Rules(NamedTuple):
    """The rules of counting, on which all partitions and the campaign agree; JSON-able.

    Attributes:
        domain: a digest of the declared candidates; None: those of the input.
        seed: a digest of the campaign's seed; None where no id and no draw depends on it.
        hashes: a digest of the seed that items become ids by; None where candidates are declared.
            A plan has its own.
        num_rounds: the rounds that clients are split over; None: the rows name their rounds.
        max_items: the most items of a client.
        outside: the fate of items outside the domain.
        private: whether each row is read by itself, and clients without items take part.
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
        """Return the rules that options say.

        `seed` is None where it does not matter, and `hashes` is the seed of the ids.
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
        """Raise InvalidInputError if the rules of somebody else differ, and say which."""
        for name, mine, other in zip(self._fields, self, theirs, strict=True):
            if mine != other:
                if name == "hashes":  # of partitions it follows from the seed, which is equal
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
    """What was counted of one partition, or of several.

    Attributes:
        partitions: a digest of the counts of each partition, by its name.
        rules: the rules of counting.
        part: the counts.
        items: the distinct items of the input, text or int64, where the candidates are those and
            there are any; else None.
        columns: the columns that were read; of no names if there were no rows.
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
        """Return what was counted of one partition."""
        # in the order of merged tallies, so that the digest holds for a merge of one, too
        items = None if items is None else _joined([items])
        content = cls({}, rules, part, items, columns)
        return replace(content, partitions={name: content._digest()})

    def _digest(self) -> str:
        """Return the digest of the counts of one partition, and of how they were counted."""
        # Columns that play no part may come in another order when rows are counted again.
        meta, arrays = replace(self, columns=replace(self.columns, others=()))._document()
        state = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
        for array, values in sorted(arrays.items()):
            state.update(array.encode() + values.tobytes())
        return state.hexdigest()

    def pack(self) -> bytes:
        """Return it as bytes."""
        meta, arrays = self._document()
        meta = {"partitions": dict(sorted(self.partitions.items())), **meta}
        return _archive.pack(_SCHEMA, meta, arrays, alike=ALIKE)

    @classmethod
    def unpack(cls, data: object) -> Self:
        """Return what the bytes of `pack` hold.

        Raises:
            InvalidInputError: the data are no bytes.
            UnreadableFileError: the bytes are cut off, damaged, or of another version.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidInputError(
                "a partial tally is the bytes that fedtally.partial_tally returns, got"
                f" {type(data).__name__}"
            )
        try:
            meta, arrays = _archive.unpack(bytes(data), _NAME, _SCHEMA, limits, alike=ALIKE)
        except UnreadableFileError as error:
            if "expected" in str(error):  # of another version
                raise
            raise UnreadableFileError(
                f"{_NAME} is cut off or damaged, or comes from elsewhere: count it anew"
            ) from error
        try:
            return cls._rebuilt(meta, arrays)
        # An impossible value can raise many kinds of errors: no list would be whole.
        except Exception as error:
            raise UnreadableFileError(
                f"{_NAME} is damaged{reason(error)}; count it anew"
            ) from error

    def _document(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        part, rounds = self.part, self.part.rounds
        meta = {
            "rules": self.rules._asdict(),
            "columns": {
                name: value
                for name, value in asdict(self.columns).items()
                # of a path and of its messages, which only readers need
                if name not in ("folders", "given", "item_option")
            },
            "labels": list(part.labels),
            "num_clients": [tally.num_clients for tally in rounds],
            "by_client": part.by_client,
            "has_counts": part.has_counts,
            "rows": part.rows,
            "missing": part.missing,
            "outside": part.outside,
            "most_clients": part.most_clients,
            "has_integer_clients": part.has_integer_clients,
            "drawn": None if part.drawn is None else list(part.drawn),
        }
        arrays = {
            "sizes": np.array([len(tally.ids) for tally in rounds], np.int64),
            "ids": np.concatenate([np.empty(0, np.uint64), *(tally.ids for tally in rounds)]),
            "counts": np.concatenate([np.empty(0, np.int64), *(tally.counts for tally in rounds)]),
            "sample": part.sample,
        }
        if self.items is None:
            return meta, arrays
        import pyarrow as pa

        if pa.types.is_integer(self.items.type):
            return meta, arrays | {"integers": self.items.to_numpy()}
        utf8, offsets = utf8_buffers(self.items)
        return meta, arrays | {"utf8": utf8, "offsets": offsets}

    @classmethod
    def _rebuilt(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        check(meta, arrays)
        ends = np.cumsum(arrays["sizes"])
        *ids, _ = np.split(arrays["ids"], ends)
        *counts, _ = np.split(arrays["counts"], ends)
        rounds = [
            RoundTally(number, own, held)
            for number, own, held in zip(meta["num_clients"], ids, counts, strict=True)
        ]
        part = Part(
            tuple(meta["labels"]),
            tuple(rounds),
            meta["by_client"],
            meta["has_counts"],
            meta["rows"],
            meta["missing"],
            meta["outside"],
            meta["most_clients"],
            None if meta["drawn"] is None else Drawn(*meta["drawn"]),
            arrays["sample"],
            meta["has_integer_clients"],
        )
        content = cls(
            meta["partitions"],
            Rules(**meta["rules"]),
            part,
            _items(arrays),
            _columns(meta["columns"]),
        )
        if len(content.partitions) == 1 and [content._digest()] != [*content.partitions.values()]:
            raise ValueError("other counts than the digest says")
        return content


def _items(arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    import pyarrow as pa

    if "integers" in arrays:
        return pa.array(arrays["integers"])
    return text_of_buffers(arrays["utf8"], arrays["offsets"]) if "utf8" in arrays else None


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
    """A source whose rows are counted already.

    Attributes:
        content: what was counted.
    """

    content: Content = field(kw_only=True)

    @classmethod
    def of(cls, data: object) -> Self:
        """Return the source of the bytes of a tally."""

        def read(_private: bool) -> Iterator[Batch]:
            raise InvalidInputError("a merged tally has counts, and no rows to read")

        return cls("the merged tally", read, content=Content.unpack(data))

    @property
    def form(self) -> tuple[bool, bool]:
        """Whether the rows named their rounds, and whether they named their clients."""
        return self.content.rules.num_rounds is None, self.content.part.by_client

    def fill(self, tally: Tally, encoder: Encoder, rules: Rules) -> None:
        """Give the counts to a tally, and the items to its encoder.

        Args:
            tally: one without rows.
            encoder: its encoder.
            rules: those of the campaign. Under privacy its seed is secret, and any goes: the draws
                of clients are made.

        Raises:
            InvalidInputError: the rows were counted by other rules.
        """
        theirs, items, part = self.content.rules, self.content.items, self.content.part
        if theirs.seed is None or (rules.seed is None and rules.private):
            rules = rules._replace(seed=theirs.seed)
        if items is None or is_integer(items):  # no seed changes the id of an integer
            rules = rules._replace(hashes=theirs.hashes)
        rules.check(theirs, "the merged tally")
        if rules.domain is None:
            known = np.empty(0, np.uint64) if items is None else encoder.encode(items)[0]
            if not all(np.isin(each.ids, known).all() for each in part.rounds):
                raise UnreadableFileError(f"{_NAME} is damaged (ids of no item): count it anew")
            if items is None:
                raise self.without_rows(part.missing, self.content.columns)
        tally.take(part)
        tally.columns = self.content.columns


def merged(contents: Iterable[Content]) -> Content:
    """Return what was counted of all partitions together.

    Each partition counts once, however often it is there.

    Raises:
        InvalidInputError: there are none, or they do not go together.
    """
    # a single partition may be in a merged tally as well
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
    """Return the columns of all partitions, whatever their order, and also of merged tallies."""
    known = {columns for columns in tables if columns.names()}
    if len(known) < 2:
        return next(iter(known), Columns())
    others = sorted({name for columns in known for name in columns.others})
    # partitions may name their columns differently: any of them, but the same in each order
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
    """Return the distinct items of several columns, sorted."""
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
