"""A plugin of pytest under which SciPy and dp-accounting cannot be imported, as on a device.

python -m pytest -p without_scipy tests/system/test_cli_agent.py
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

BLOCKED = ("scipy", "dp_accounting")


class _Blocked:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not on a device")


_blocked: Any = _Blocked()
sys.meta_path.insert(0, _blocked)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Let the list of durations look for tests of the planner, which needs SciPy."""
    sys.meta_path.remove(_blocked)
