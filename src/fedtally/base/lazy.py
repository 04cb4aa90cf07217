"""Lazy imports: a package imports the module of a name only when the name is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def loader(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, which imports each of the package's names on first use.

    Args:
        package: the name of the package.
        homes: maps the name of a module of the package to the names that the module defines.

    >>> loader("fedtally.base", {"encoding": ["ENCODINGS"]})("other")
    Traceback (most recent call last):
    ...
    AttributeError: module 'fedtally.base' has no attribute 'other'
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
