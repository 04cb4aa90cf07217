"""PyArrow as an optional dependency: an agent on a client's device works without it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from fedtally.errors import MissingExtraError


@cache
def is_installed() -> bool:
    """Return whether PyArrow is installed. It is not imported, since an import takes a while."""
    try:
        return find_spec("pyarrow") is not None
    except ModuleNotFoundError:  # an import hook that hides PyArrow raises this
        return False


def found() -> Any:
    """Return the module `pyarrow`; None if it is not installed."""
    if not is_installed():
        return None
    import pyarrow

    return pyarrow


def errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return exception types for an `except` clause: `others`, and PyArrow's if it is installed."""
    pa = found()
    return others if pa is None else (*others, pa.ArrowException)


def check(what: str, way_out: str = "") -> None:
    """Raise an error if PyArrow is not installed.

    Args:
        what: the feature that needs PyArrow, as the subject of the message.
        way_out: text to append to the message, with its own separator: what users can do without
            PyArrow, such as "; or name one file". "": nothing.

    Raises:
        MissingExtraError: PyArrow is not installed.
    """
    if not is_installed():
        raise MissingExtraError(f"{what} needs PyArrow: pip install pyarrow{way_out}")
