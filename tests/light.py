"""A plugin of pytest that hides what a light agent has not: `pytest -p light ...`.

Importing it hides the three packages from a whole process.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

HIDDEN = ("scipy", "pyarrow", "dp_accounting")


class _Hidden:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden", name=name)


_hidden: Any = _Hidden()
sys.meta_path.insert(0, _hidden)

from fedtally.privacy import gaussian, light  # noqa: E402


def _multiplier(epsilon: float, delta: float) -> float:
    """Return the noise of a plan: no agent asks for it, and tests of agents make their plans."""
    low, high = 1e-3, 1e3
    while high > low * (1 + 1e-9):
        middle = (low * high) ** 0.5
        fits = light.get_epsilon_gaussian(middle, delta) <= epsilon
        low, high = (low, middle) if fits else (middle, high)
    return high


gaussian._multiplier = _multiplier  # type: ignore[assignment]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Let the list of durations look for tests of the planner, which needs SciPy."""
    sys.meta_path.remove(_hidden)
