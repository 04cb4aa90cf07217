"""The errors of tools/mutations.toml, which tools/mutations_privacy.py plants: each still fits the
source, and names tests that exist.

That some test fails for each is what the command itself shows; it takes minutes, and does not run
here.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "mutations_privacy", ROOT / "tools" / "mutations_privacy.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_error_still_fits_the_source(tool: ModuleType) -> None:
    assert tool.problems(tool.MUTATIONS) == []
    names = [mutation.name for mutation in tool.MUTATIONS]
    assert len(set(names)) == len(names) >= 30


def test_a_list_is_read_as_it_is_written(tool: ModuleType) -> None:
    text = "[first]\nfile = 'a.py'\nold = '''\n  x\n'''\nnew = ''\n"
    text += "[second]\nfile = 'b.py'\nold = 'y'\nnew = 'z'\ntests = ['test_b.py']\n"
    assert tool.listed(text) == (
        tool.Mutation("first", "a.py", "  x\n", "", tool.AUDIT),
        tool.Mutation("second", "b.py", "y", "z", ("test_b.py",)),
    )
    with pytest.raises(KeyError):
        tool.listed("[first]\nfile = 'a.py'\nold = 'x'\n")


def test_a_list_that_no_longer_fits_is_found(tool: ModuleType) -> None:
    some = tool.MUTATIONS[0]
    for changed, said in (
        ({"old": "nowhere in the file"}, "its text is 0 times in"),
        ({"old": "return"}, f"times in {some.file}, and must be there once"),
        ({"new": "return )"}, "is no Python"),
        (
            {"old": "from __future__ import annotations\n", "new": "nowhere\n"},
            "cannot be imported with it: NameError",
        ),
        ({"new": some.old}, "it changes nothing"),
        ({"file": "privacy/none.py"}, "none.py"),
        ({"tests": ("test_none.py",)}, "there is no test test_none.py"),
        (
            {"tests": ("test_audit_engine.py::test_none",)},
            "there is no test test_audit_engine.py::test_none",
        ),
    ):
        [problem] = tool.problems([some._replace(**changed)])
        assert said in problem


@pytest.mark.promise
def test_a_copy_is_what_runs(tool: ModuleType, tmp_path: Path) -> None:
    """A copy with an error fails the test that sees it, and the source is as before."""
    copy = tool.copied(tmp_path)
    budget = next(mutation for mutation in tool.MUTATIONS if mutation.name == "budget-not-compared")
    source = (ROOT / "src" / "fedtally" / budget.file).read_bytes()
    found = tool.tried(budget, tmp_path)
    assert found.problem == "" and found.caught_by.startswith("test_budget.py::")
    assert (
        (copy / budget.file).read_bytes()
        == (ROOT / "src" / "fedtally" / budget.file).read_bytes()
        == source
    )
    assert tool.tested(tmp_path, budget.tests)[0] == 0
