"""docs/troubleshooting.md says what the code refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from fedtally.plan.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_rules", ROOT / "tools" / "gen_rules.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_rules_of_the_code(tool: ModuleType) -> None:
    assert tool.generate(PAGE) == PAGE, "run python tools/gen_rules.py"
    assert PAGE.count("\n| `--") == len(RULES)


def test_a_page_that_was_changed_is_found(tool: ModuleType) -> None:
    changed = PAGE.replace("Leave it out", "Take it out", 1)
    assert tool.generate(changed) == PAGE != changed
    with pytest.raises(ValueError, match="one pair of markers"):
        tool.generate("no markers")
