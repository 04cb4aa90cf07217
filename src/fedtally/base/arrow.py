"""PyArrow where it is installed: a light agent reads the few items that it holds without it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from fedtally.errors import MissingExtraError


@cache
def is_installed() -> bool:
    """Return whether PyArrow is installed, without loading it, which takes a while."""
    try:
        return find_spec("pyarrow") is not None
    except ModuleNotFoundError:  # of an importer that hides it
        return False


def found() -> Any:
    """Return PyArrow; None: it is not installed."""
    if not is_installed():
        return None
    import pyarrow

    return pyarrow


def errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return other errors, and beside them those of PyArrow where it is installed."""
    pa = found()
    return others if pa is None else (*others, pa.ArrowException)


def check(what: str, way_out: str = "") -> None:
    """Refuse what cannot be done without PyArrow.

    Args:
        what: needs it.
        way_out: another way out than to install it, with what comes before it.

    Raises:
        MissingExtraError: it is not installed.
    """
    if not is_installed():
        raise MissingExtraError(f"{what} needs PyArrow: pip install pyarrow{way_out}")
