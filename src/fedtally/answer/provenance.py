"""Check what a file says about how its answer was made: a stranger may have written the file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fedtally.errors import InvalidInputError
from fedtally.plan import Plan

SCHEMA = "fedtally-result/2"

_PLANNED = {  # entries of `Plan.secure_sum.summary` and their types
    "method": str,
    "adversary": str,
    "neighbours": int,
    "threshold": int,
    "corrupt": int,
    "max_dropout": float,
    "min_survivors": int,
    "bits": int,
    "validity": str,
}
_SUMMED = {
    "cohorts": int,
    "smallest_cohort": int,
    "largest_cohort": int,
    "clients": int,
    "survivors": int,
    "fewest_survivors": int,
}
_SIMULATED = {  # entries that only a simulation knows: real clients count their own bytes
    "dropouts": int,
    "upload_bytes": float,
    "download_bytes": float,
    "stages": list,
    "equals_plain_sum": bool,
}
_SECONDS = {"client_seconds": float, "server_seconds": float}  # both are null in a private run
_STAGE = {"stage": str, "upload_bytes": float, "download_bytes": float}
_SCREENING = {"screen": str, "why": str, "rounds": list}
_ROUND = {"round": int, "cohorts": int, "verdict": str}
_UNSCREENED = {"why": str}
_SCREENED = {
    "stand_out": int,
    "votes": float,
    "votes_limit": float,
    "mean_square": float,
    "mean_square_limit": float,
}
_MAY_BE = {
    "refused": int,
    "between_bytes": int,
    "engine": str,
    "screening": dict,
    "report_bytes": int,  # present only if DAP servers made the sums
}
_DRAW = {
    "max_items": int,
    "pairs": int,
    "drawn_away": int,
    "share_with_several": float,
    "max_items_for_all": int,
}
_ENDED = {"rounds": int, "num_rounds": int, "by": str}
_SIZING = {"sizing": str, "tau": float, "failure_probability": float, "message": str}
_PILOT = {"rows": int, "width": int, "bytes_per_client": int, "num_clients": int}
_NAMES = {"threshold": float, "name_length": int}
_MOST = 2**53  # the largest integer that a field may hold
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_WORDS: dict[Any, str] = {
    str: "text",
    int: f"a whole number, 0 .. {_MOST}",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def planned_sum(plan: Plan) -> dict[str, Any]:
    """Return how a plan says that sums are made, in the form of `Result.secure_sum`, JSON-able.

    The entry "method" is "ideal" if the plan names no protocol for secure sums.
    """
    return {"method": "ideal"} if plan.secure_sum is None else plan.secure_sum.summary()


def secure_sum(said: object, plan: Plan) -> dict[str, Any] | None:
    """Check the field `secure_sum` of a file, which says how sums were made. Return it as a dict.

    Returns None if the file has no such field.

    Args:
        said: the field's value in the file; None: the file has none.
        plan: the plan in the file.

    Raises:
        InvalidInputError: the value is no table, lacks an entry, has an entry of the wrong type, or
            has another method than the plan.
    """
    if said is None:
        return None
    found, agreed = _table("secure_sum", said, {"method": str}), planned_sum(plan)
    if found["method"] != agreed["method"]:
        raise InvalidInputError(
            f"secure_sum.method must be {agreed['method']}, as in the plan, got"
            f" {found['method']!r:.40}"
        )
    needed = {name: _PLANNED[name] for name in agreed}
    if "cohorts" in found:
        needed |= _SUMMED
        if "engine" not in found:
            needed |= _SIMULATED
            if any(found.get(name, 0) is not None for name in _SECONDS):
                needed |= _SECONDS
    _table("secure_sum", found, needed, _PLANNED | _MAY_BE)
    for stage in found.get("stages", ()):
        _table("secure_sum.stages", stage, _STAGE)
    if "screening" in found:
        _check_screening(found["screening"])
    return found


def draw(said: object) -> dict[str, Any] | None:
    """Check the field `draw` of a file: how many items max_items left out. Return it as a dict.

    `max_items` is the bound on a client's items. Returns None if the file has no such field.

    Args:
        said: the field's value in the file; None: the file has none.

    Raises:
        InvalidInputError: the value is no table, lacks an entry, or an entry has the wrong type.

    >>> draw({"max_items": 1})
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: draw lacks pairs
    """
    return None if said is None else _table("draw", said, _DRAW)


def ended(said: object, plan: Plan) -> dict[str, Any] | None:
    """Check the field `ended` of a file: how a campaign ended early. Return it as a dict.

    Returns None if the file has no such field: the campaign did not end early.

    Args:
        said: the field's value in the file; None: the file has none.
        plan: the plan in the file.

    Raises:
        InvalidInputError: the value is no table, lacks an entry, or an entry has the wrong type;
            the end is not before the plan's last round; or the plan does not allow this way to end.
    """
    if said is None:
        return None
    found = _table("ended", said, _ENDED)
    by = ("operator",) if plan.stopping is None else ("operator", "rule")
    if found["num_rounds"] != plan.num_rounds or not 0 < found["rounds"] < plan.num_rounds:
        raise InvalidInputError(
            f"ended must be before the last of the plan's {plan.num_rounds} rounds, got"
            f" {found['rounds']} of {found['num_rounds']}"
        )
    if found["by"] not in by:
        raise InvalidInputError(f"ended.by must be {' or '.join(by)}, got {found['by']!r:.40}")
    return found


def sizing(said: object) -> dict[str, Any] | None:
    """Check the field `sizing` of a file: how the sketch's size was chosen. Return it as a dict.

    A missing entry "pilot" becomes None. Returns None if the file has no such field.

    Args:
        said: the field's value in the file; None: the file has none.

    Raises:
        InvalidInputError: the value is no table, lacks an entry, or an entry has the wrong type.
    """
    if said is None:
        return None
    found = _table("sizing", said, _SIZING)
    pilot, names = found.setdefault("pilot", None), found.get("names")
    if pilot is not None and _table("sizing.pilot", pilot, _PILOT).get("epsilon"):
        _table("sizing.pilot", pilot, {"epsilon": float})
    if names is not None:
        _table("sizing.names", names, _NAMES)
    return found


def timings(said: object) -> dict[str, float]:
    """Check the field `timings` of a file: the seconds of each stage. Return it as a dict.

    Args:
        said: the field's value in the file.

    Raises:
        InvalidInputError: the value is no table, or an entry is no number.

    >>> timings({"read": "long"})
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: timings.read must be a number, got 'long'
    """
    return _table("timings", said, dict.fromkeys(said, float) if isinstance(said, Mapping) else {})


def columns(said: object) -> dict[str, list[str]]:
    """Check the field `columns` of a file: names of the input's columns, by role. Return a dict.

    Args:
        said: the field's value in the file.

    Raises:
        InvalidInputError: the value is no table, or an entry is no list of texts.
    """
    return {
        part: texts(f"columns.{part}", names) for part, names in _table("columns", said, {}).items()
    }


def texts(name: str, said: object) -> list[str]:
    """Return `said` if it is a list of texts.

    Args:
        name: what the list is, for the error.
        said: a value in a file.

    Raises:
        InvalidInputError: the value is no list of texts.
    """
    if not isinstance(said, list) or not all(isinstance(text, str) for text in said):
        raise InvalidInputError(f"{name} must be text")
    return said


def _check_screening(told: Mapping[str, Any]) -> None:
    name = "secure_sum.screening"
    _table(name, told, _SCREENING, {"clients_left_out": int})
    for each in told["rounds"]:
        found = _table(f"{name}.rounds", each, _ROUND)
        _table(f"{name}.rounds", found, _SCREENED if "votes" in found else _UNSCREENED)
        for limit in ("votes_limit", "mean_square_limit"):
            # Honest clients have values of about 1. A limit of 1 would make a division by 0 later.
            if found.get(limit, 2) <= 1:
                raise InvalidInputError(f"{name}.rounds.{limit} must exceed 1")


def _table(
    name: str, values: object, needed: Mapping[str, Any], others: Mapping[str, Any] = _NOTHING
) -> dict[str, Any]:
    """Return a table of a file as a dict, after checking the types of its known entries.

    Args:
        name: the name of the table, for errors.
        values: the value in the file.
        needed: the names of the entries that must be there, with their types, such as int.
        others: the names of entries that may be there, with their types. Further entries are kept,
            and not checked.

    Raises:
        InvalidInputError: the value is no table, lacks an entry, or an entry has the wrong type.
            Whole numbers must be from 0 to 2^53.
    """
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"{name} must be a table, got {type(values).__name__}")
    for entry, kind in {**others, **needed}.items():
        if entry not in values:
            if entry in needed:
                raise InvalidInputError(f"{name} lacks {entry}")
            continue
        value = values[entry]
        is_one = isinstance(value, (int, float) if kind is float else kind)
        if kind in (int, float):
            is_one = (
                is_one and not isinstance(value, bool) and (kind is float or 0 <= value <= _MOST)
            )
        if not is_one:
            raise InvalidInputError(f"{name}.{entry} must be {_WORDS[kind]}, got {value!r:.40}")
    return dict(values)
