"""Read and write documents in TOML. Python's standard library can only read them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any


def loads(text: str) -> dict[str, Any]:
    """Return the entries of a TOML document.

    Raises:
        ValueError: the text is not TOML, has a number with thousands of digits, or has lists or
            tables nested hundreds of levels deep.

    >>> loads("a = " + 1000 * "[")
    Traceback (most recent call last):
    ...
    ValueError: its lists and tables lie too deep in each other
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its lists and tables lie too deep in each other") from None


def document(values: Mapping[str, Any]) -> str:
    """Return a TOML document with these entries.

    Dicts become tables, and follow after all other entries. Otherwise the order is kept. A dict in
    a list is not supported, nor is None.

    Args:
        values: the entries by name: texts, numbers, booleans, lists of these, and dicts.

    >>> print(document({"name": "tea", "days": ["Monday"], "sizes": {"rows": 3}}), end="")
    name = "tea"
    days = ["Monday"]
    <BLANKLINE>
    [sizes]
    rows = 3
    """
    return "\n".join([*_lines(values), ""])


def _lines(values: Mapping[str, Any], path: str = "") -> list[str]:
    lines = [
        f"{_key(key)} = {_value(value)}"
        for key, value in values.items()
        if not isinstance(value, dict)
    ]
    for key, value in values.items():
        if isinstance(value, dict):
            name = f"{path}{_key(key)}"
            lines += ["", f"[{name}]", *_lines(value, f"{name}.")]
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # A JSON string is also a TOML string, with one exception: TOML requires DEL to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value) if isinstance(value, bool) else repr(value)
