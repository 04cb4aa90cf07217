"""Checks of a partial tally that comes as bytes: an intact file may still hold impossible numbers.

They find damage and mistakes. Who counted a partition can claim other counts, as with any table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.engines.local.tally import MAX_NATURAL_ROUNDS, MOST_SAMPLED
from fedtally.plan import MAX_CLIENTS

_ARRAYS = {"sizes": np.int64, "ids": np.uint64, "counts": np.int64, "sample": np.uint64}
_ITEMS = {"integers": np.int64, "utf8": np.uint8, "offsets": np.int64}

ALIKE = frozenset({"counts"})  # they are packed however much they shrink: most are 1


def limits(meta: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int | None]:
    """Return the most bytes of each array of a tally: `_archive.Limits`."""
    most: dict[str, int | None] = dict.fromkeys((*_ARRAYS, *_ITEMS))
    return most | {"counts": sizes["ids"]}  # there is one for each id


def check(meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise ValueError, which says what, if no table has these counts.

    Args:
        meta: the header, as `Content.pack` writes it.
        arrays: the arrays, so as well.
    """
    _check_partitions(meta["partitions"])
    _check_rules(meta["rules"])
    _check_columns(meta["columns"])
    _check_arrays(meta, arrays)
    _check_numbers(meta)
    _check_rounds(meta, arrays)


def _need(is_so: bool, what: str) -> None:
    if not is_so:
        raise ValueError(what)


def _is_number(value: object, least: int = 0, most: int = 2**63 - 1) -> bool:
    """Return whether a value of the header is an integer in a range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _check_partitions(partitions: Any) -> None:
    _need(
        isinstance(partitions, dict)
        and len(partitions) > 0
        and all(name and _is_text(digest) for name, digest in partitions.items()),
        "no names of partitions",
    )


def _check_rules(rules: Any) -> None:
    _need(
        all(_is_text_or_none(rules[name]) for name in ("domain", "seed", "hashes"))
        and (rules["num_rounds"] is None or _is_number(rules["num_rounds"], 1))
        and _is_number(rules["max_items"], 1)
        and rules["outside"] in ("error", "drop")
        and isinstance(rules["private"], bool),
        "no rules of counting",
    )


def _check_columns(columns: Any) -> None:
    item = columns["item"]
    pair = isinstance(item, list) and len(item) == 2 and all(map(_is_text, item))
    _need(
        (pair or _is_text_or_none(item))
        and all(_is_text_or_none(columns[name]) for name in ("client", "round", "count", "silo"))
        and isinstance(columns["others"], list)
        and all(map(_is_text, columns["others"]))
        and isinstance(columns["are_named"], bool),
        "no names of columns",
    )


def _check_arrays(meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    items = arrays.keys() - _ARRAYS.keys()
    _need(items in (set(), {"integers"}, {"utf8", "offsets"}), "arrays of no tally")
    _need(not items or meta["rules"]["domain"] is None, "items beside declared candidates")
    for name, kind in (_ARRAYS | {item: _ITEMS[item] for item in items}).items():
        values = arrays[name]
        _need(values.ndim == 1 and values.dtype == kind, f"{name} of another type")
    if "utf8" in items:  # what is between is checked where the text is read
        ends = arrays["offsets"][[0, -1]].tolist()
        _need(ends == [0, len(arrays["utf8"])], "text of another length")


def _check_numbers(meta: Mapping[str, Any]) -> None:
    by_client, most, drawn = meta["by_client"], meta["most_clients"], meta["drawn"]
    _need(
        isinstance(by_client, bool)
        and isinstance(meta["has_counts"], bool)
        and (meta["has_integer_clients"] is None or isinstance(meta["has_integer_clients"], bool))
        and all(_is_number(meta[name]) for name in ("rows", "missing", "outside"))
        and meta["missing"] <= meta["rows"]
        and isinstance(most, float)
        and math.isfinite(most)
        and most >= 0,
        "a number that no table has",
    )
    of_clients = isinstance(drawn, list) and len(drawn) == 5 and all(map(_is_number, drawn))
    _need(of_clients if by_client else drawn is None, "draws of no clients")


def _check_rounds(meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    rules, labels, clients = meta["rules"], meta["labels"], meta["num_clients"]
    by_client, sample = meta["by_client"], arrays["sample"]
    sizes, ids, counts = arrays["sizes"], arrays["ids"], arrays["counts"]
    _need(
        isinstance(labels, list)
        and (all(map(_is_text, labels)) or all(_is_number(x, -(2**63), 2**64) for x in labels))
        and len(set(labels)) == len(labels) <= MAX_NATURAL_ROUNDS,
        "no names of rounds",
    )
    split = rules["num_rounds"] if by_client else 1
    number = len(labels) if rules["num_rounds"] is None else split
    _need(not labels or rules["num_rounds"] is None, "names of rounds that are drawn")
    _need(
        isinstance(clients, list)
        and len(clients) == len(sizes) == number
        and all(_is_number(each, 0, MAX_CLIENTS) for each in clients)
        and sum(clients) <= meta["most_clients"],
        "other rounds or clients than were counted",
    )
    _need(
        bool((sizes >= 0).all())
        and sum(sizes.tolist()) == len(ids) == len(counts)  # Python's sum cannot overflow
        and bool((counts > 0).all()),
        "arrays of other lengths than the header says",
    )
    most = rules["max_items"] if by_client else 1
    ends = np.cumsum(sizes).tolist()
    for start, end, each in zip([0, *ends], ends, clients, strict=False):
        own, held = ids[start:end], counts[start:end]
        _need(bool((own[1:] > own[:-1]).all()), "ids out of order")
        _need(
            int(held.max(initial=0)) <= each and float(held.sum(dtype=np.float64)) <= each * most,
            "more items than clients hold",
        )
    _need(
        len(sample) <= (MOST_SAMPLED if by_client else 0)
        and bool((sample[1:] > sample[:-1]).all()),
        "a sample of no clients",
    )
