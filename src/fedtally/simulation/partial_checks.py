"""Checks of a partial tally (`partial.py`): could any input have these counts?

Arrow checks buffers, offsets and text. These checks find damage and mistakes, but not lies: whoever
counted a partition can invent possible counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.errors import InvalidInputError
from fedtally.plan import MAX_CLIENTS
from fedtally.simulation.counted_part import MAX_NATURAL_ROUNDS, MOST_SAMPLED

COUNTED = {"round": "int32", "id": "uint64", "count": "int64"}  # each column's Arrow type
_ITEMS = ("large_string", "int64")  # the Arrow types that a column of items may have


def check(meta: Mapping[str, Any], table: Any, sample: npt.NDArray[np.uint64]) -> int:
    """Check that some input could have these counts; return the number of rows with counts.

    Rows with counts stand before rows with items.

    Args:
        meta: the data in the table's metadata, as `Content.table` writes them.
        table: the Arrow table.
        sample: the hashes of clients in the metadata.

    Raises:
        InvalidInputError: no input could have these counts; the error names a value and its bound.
        KeyError: a value is missing in the metadata.
        pyarrow.ArrowInvalid: the table is damaged.
    """
    _check_header(meta)
    _check_rules(meta["rules"])
    _check_columns(meta["columns"])
    _check_clients(meta)
    number = _check_form(meta, table)
    _check_counts(meta, *(table[name][:number].to_numpy() for name in COUNTED))
    _need(len(sample) <= MOST_SAMPLED * meta["by_client"], "sample", len(sample),
          f"at most {MOST_SAMPLED * meta['by_client']:,} clients")  # fmt: skip
    _need_order(bool((sample[1:] > sample[:-1]).all()), "sample")
    return number


def _need(is_so: bool, name: str, value: object, bound: str) -> None:
    if not is_so:
        raise InvalidInputError(f"{name} is {repr(value)[:40]}, and must be {bound}")


def _need_order(is_so: bool, name: str) -> None:
    if not is_so:
        raise InvalidInputError(f"{name} is out of order, and must rise")


def _need_integer(name: str, value: object, least: int = 0, most: int = 2**63 - 1) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    _need(is_integer and least <= value <= most, name, value,  # type: ignore[operator]
          f"an integer from {least} to {most}")  # fmt: skip


def _need_kind(names: str, values: Mapping[str, Any], *kinds: type | None) -> None:
    """Refuse entries whose type is none of the given types.

    Args:
        names: the names of the entries to check, separated by spaces.
        values: a dict from names of entries to their values.
        kinds: the allowed types; None allows the value None.
    """
    for name in names.split():
        _need(
            any(values[name] is None if kind is None else type(values[name]) is kind
                for kind in kinds),
            name, values[name], " or ".join(getattr(kind, "__name__", "null") for kind in kinds),
        )  # fmt: skip


def _need_texts(name: str, values: object) -> None:
    is_so = isinstance(values, list) and all(isinstance(text, str) for text in values)
    _need(is_so, name, values, "a list of text")


def _check_header(meta: Mapping[str, Any]) -> None:
    _need_kind("partitions rules columns", meta, dict)
    _need_kind("by_client has_counts", meta, bool)
    _need_kind("has_integer_clients", meta, bool, None)
    _need_kind("most_clients", meta, float)
    _need(0 <= meta["most_clients"] < math.inf, "most_clients", meta["most_clients"], "at least 0")
    for name in ("rows", "missing", "outside"):
        _need_integer(name, meta[name])
    _need_integer("missing", meta["missing"], 0, meta["rows"])
    names = meta["partitions"]
    is_named = bool(names) and all(names) and all(isinstance(x, str) for x in names.values())
    _need(is_named, "partitions", names, "names, each with its digest")


def _check_rules(rules: Mapping[str, Any]) -> None:
    _need_kind("domain seed hashes", rules, str, None)
    _need_kind("private", rules, bool)
    if rules["num_rounds"] is not None:
        _need_integer("num_rounds", rules["num_rounds"], 1)
    _need_integer("max_items", rules["max_items"], 1)
    _need(rules["outside"] in ("error", "drop"), "outside", rules["outside"], "error or drop")


def _check_columns(columns: Mapping[str, Any]) -> None:
    _need_kind("client round count silo", columns, str, None)
    _need_kind("are_named", columns, bool)
    _need_texts("others", columns["others"])
    item = columns["item"]
    if isinstance(item, list):
        _need_texts("item", item)
        _need(len(item) == 2, "item", item, "one column, or latitude and longitude")
    else:
        _need_kind("item", columns, str, None)


def _check_clients(meta: Mapping[str, Any]) -> None:
    """Refuse names of rounds and numbers of clients that do not fit the rules."""
    labels, clients, drawn = meta["labels"], meta["num_clients"], meta["drawn"]
    by_client, num_rounds = meta["by_client"], meta["rules"]["num_rounds"]
    _need_kind("labels num_clients", meta, list)
    if labels and isinstance(labels[0], str):
        _need_texts("labels", labels)
    else:
        for label in labels:
            _need_integer("label of a round", label, -(2**63), 2**64 - 1)
    most = MAX_NATURAL_ROUNDS if num_rounds is None else 0
    _need(len(set(labels)) == len(labels) <= most, "labels", labels,
          f"at most {most:,} rounds, each once")  # fmt: skip
    number = len(labels) if num_rounds is None else num_rounds if by_client else 1
    _need(len(clients) == number, "num_clients", clients, f"of {number:,} rounds")
    for value in clients:
        _need_integer("num_clients", value, 0, MAX_CLIENTS)
    _need(sum(clients) <= meta["most_clients"], "num_clients", sum(clients),
          f"at most {meta['most_clients']:,.0f} in all")  # fmt: skip
    _need_kind("drawn", meta, list if by_client else None)
    if by_client:
        _need(len(drawn) == 5, "drawn", drawn, "five numbers")
        for value in drawn:
            _need_integer("drawn", value)


def _check_form(meta: Mapping[str, Any], table: Any) -> int:
    """Check the columns, types and nulls of the table; return the number of rows with counts."""
    kinds = {field.name: str(field.type) for field in table.schema}
    item = kinds.pop("item", None)
    _need(kinds == COUNTED and table.num_columns == len(kinds) + (item is not None),
          "schema", table.schema.names, f"the columns {', '.join(COUNTED)}")  # fmt: skip
    kinds_of_items = (None,) if meta["rules"]["domain"] is not None else (None, *_ITEMS)
    _need(item in kinds_of_items, "item", item, f"of type {' or '.join(map(str, kinds_of_items))}")
    table.validate(full=True)  # by wrong offsets, memory outside the table would be read
    sizes, named = meta["sizes"], meta["num_items"]
    _need_kind("sizes", meta, list)
    for size in (*sizes, named):
        _need_integer("sizes and num_items", size)
    _need(len(sizes) == len(meta["num_clients"]), "sizes", sizes, "as many as num_clients")
    number = sum(sizes)
    _need(table.num_rows == number + named, "number of rows", table.num_rows, f"{number + named:,}")
    for name in (*COUNTED, "item")[: table.num_columns]:
        rows = number if name == "item" else named  # how many rows must be null in this column
        here = table[name][:number] if name == "item" else table[name][number:]
        _need(table[name].null_count == here.null_count == rows, f"number of nulls in {name}",
              table[name].null_count, f"{rows:,}, all beside the others")  # fmt: skip
    _need(bool(item) or not named, "num_items", named, "0 without a column item")
    return int(number)


def _check_counts(
    meta: Mapping[str, Any],
    rounds: npt.NDArray[np.int32],
    ids: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.int64],
) -> None:
    if not len(ids):
        return
    clients = np.array(meta["num_clients"], np.int64)
    known = np.repeat(np.arange(len(clients)), meta["sizes"])
    worst = int((rounds != known).argmax())
    _need(rounds[worst] == known[worst], "round", int(rounds[worst]), str(known[worst]))
    _need_order(bool(((rounds[1:] != rounds[:-1]) | (ids[1:] > ids[:-1])).all()), "id")
    _need_integer("count", int(counts.min()), 1)
    held = clients[rounds]
    worst = int((counts - held).argmax())
    _need_integer("count", int(counts[worst]), 1, int(held[worst]))
    most = meta["rules"]["max_items"] if meta["by_client"] else 1
    sums = np.bincount(rounds, weights=counts, minlength=len(clients))
    worst = int((sums - clients * float(most)).argmax())
    bound = int(clients[worst]) * most
    _need(sums[worst] <= bound, "sum of counts", int(sums[worst]), f"at most {bound:,} in a round")
