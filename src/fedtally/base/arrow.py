"""PyArrow where it is installed: a light agent reads the few items that it holds without it."""

from __future__ import annotations

from functools import cache
from typing import Any

from fedtally.errors import MissingExtraError


@cache
def found() -> Any:
    """Return PyArrow, which takes a while to load; None: it is not installed."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        return None
    return pyarrow


def errors() -> tuple[type[Exception], ...]:
    """Return the errors of PyArrow that are none of Python's own: none where it is missing."""
    return () if found() is None else (found().ArrowException,)


def check(what: str, way_out: str = "") -> None:
    """Refuse what cannot be done without PyArrow.

    Args:
        what: needs it.
        way_out: another way out than to install it, with what comes before it.

    Raises:
        MissingExtraError: it is not installed.
    """
    if found() is None:
        raise MissingExtraError(f"{what} needs PyArrow: pip install pyarrow{way_out}")
