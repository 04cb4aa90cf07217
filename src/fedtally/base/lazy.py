"""Names of a package that are loaded on first use: who needs one of them must not pay for all."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def loader(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: the name of the package.
        homes: the names that each of its modules has, by the module's name.

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
