"""The canonical JSON of a plan, and checks that a plan's file has only one reading.

Without these checks two readers of one file could see two plans, with two fingerprints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedtally.errors import InvalidInputError


def canonical_json(values: Mapping[str, Any]) -> str:
    """Return the canonical JSON text of `values`, from which a plan's fingerprint is computed.

    The names are sorted, spaces stand only within texts, and all characters are ASCII
    (docs/plan.md).

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(
        dict(values), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def check_form(read: Mapping[str, Any], normal: Mapping[str, Any], path: str = "") -> None:
    """Refuse a plan's file that another reader could take for another plan.

    An entry that is null is refused, because the plan writes no null: it leaves the entry out. A
    text is refused if the plan itself would write it in another way. Tables within the table are
    checked, too. Numbers and truth values are not compared.

    Args:
        read: the entries of a table, as they were read from the file.
        normal: the entries of the same table, as the plan writes them.
        path: where the table stands in the plan: the names of the tables around it, each followed
            by a dot.

    Raises:
        InvalidInputError: an entry is null, or is a text that the plan would write in another way.
            The message names the entry.
    """
    for name, value in read.items():
        if isinstance(value, Mapping):
            check_form(value, normal[name], f"{path}{name}.")
        elif value is None:
            raise InvalidInputError(f"{path}{name} must not be null: leave the entry out")
        elif isinstance(value, str) and value != normal[name]:
            raise InvalidInputError(
                f"{path}{name} must be written {normal[name]!r} in a plan, got {value!r}"
            )


def json_object(text: str) -> dict[str, Any]:
    """Return the entries of a plan, by name, from its JSON text.

    Raises:
        InvalidInputError: the text is not a JSON object, or a table has an entry twice.
        ValueError: the text is not JSON.
    """
    value = json.loads(text, object_pairs_hook=_entries)  # refuses a table with an entry twice
    if not isinstance(value, dict):
        raise InvalidInputError("a plan is a JSON object")
    return value


def _entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # If an entry stands twice in a table, Python reads the last one, and other readers may read the
    # first one: they would see two plans.
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise InvalidInputError("a table of a plan must have each entry once, as in TOML")
    return entries
