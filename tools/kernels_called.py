"""A plugin of pytest: fail where the tests that ran left a compiled function uncalled.

    PYTHONPATH=tools python -m pytest -p kernels_called tests/unit/test_kernels.py

`.ci/sanitizers` runs a choice of tests, and a sanitizer sees only what runs: a function that none
of them calls would pass with any error. One that is added to `native/module.cpp` has to be called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from fedtally.kernels import _native  # type: ignore[attr-defined,unused-ignore]

# Loops of the benchmarks, which read no data of anybody, and the list of levels.
LEFT_OUT = {"gather_limit", "levels", "scatter_limit"}
uncalled: set[str] = set()


def _noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        uncalled.discard(name)
        return function(*arguments, **named)

    return call


for _name in dir(_native):
    _function = getattr(_native, _name)
    if callable(_function) and not _name.startswith("_"):
        uncalled.add(_name)
        setattr(_native, _name, _noted(_name, _function))
uncalled -= LEFT_OUT


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that passed, if a function was not called."""
    if uncalled and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which ones."""
    if uncalled:
        names = ", ".join(sorted(uncalled))
        terminalreporter.write_line(f"no test called these compiled functions: {names}")
