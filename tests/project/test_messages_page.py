"""docs/troubleshooting.md has what the source refuses, with the way out."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("messages", ROOT / "tools" / "gen_messages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_messages_of_the_source(tool: ModuleType) -> None:
    assert tool.generate(PAGE) == PAGE, "run python tools/gen_messages.py"


def test_a_page_that_was_changed_is_found(tool: ModuleType) -> None:
    changed = PAGE.replace("**name another file**", "**name this file**", 1)
    assert tool.generate(changed) == PAGE != changed
    with pytest.raises(ValueError, match="one pair of markers"):
        tool.generate("no markers")


def test_every_folder_that_raises_is_read(tool: ModuleType) -> None:
    """But for those whose messages name arguments of arrays, and no way out for a user."""
    read = {name for folders in tool.AREAS.values() for name in folders}
    assert all((tool.PACKAGE / name).exists() for name in read)
    inner = {"base", "errors.py", "flp", "kernels", "__init__.py", "__main__.py", "py.typed"}
    found = {path.name for path in tool.PACKAGE.iterdir() if path.name != "__pycache__"}
    assert found - inner == read


def test_each_extra_that_a_message_names_can_be_copied(tool: ModuleType) -> None:
    """`pip install 'fedtally[x]'` also holds for what was installed from a clone: pip finds it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = [
        node.value
        for path in sorted(tool.PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    named = [text for text in texts if re.search(r"fedtally\[[a-z]", text)]
    assert len(named) > 10
    for text in named:
        lines = re.findall(r"pip install '?fedtally\[([a-z0-9,]+)\]'", text)
        assert len(lines) == text.count("fedtally[") == text.count("'fedtally["), text
        for line in lines:
            assert set(line.split(",")) <= extras["optional-dependencies"].keys(), text


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ('"a: name one"', "a: name one"),
        (
            'f"{opt.num_rounds} of {self._path!r}: " f"take {opt.max_items(3)}"',
            "`--rounds` of `PATH`: take `--max-items 3`",
        ),
        (
            'f"{arg.rows} {len(x)}; {opt.evaluate(True)} {opt.like(y)}"',
            "`rows` ...; `--evaluate` `--like ...`",
        ),
        ('"a  " + f"{x} <b> *c*"', r"a `X` \\<b> \\*c\\*"),
        ('f"{self} is odd"', "... is odd"),
        ("other", "..."),
    ],
)
def test_values_stand_in_capitals(tool: ModuleType, raised: str, text: str) -> None:
    assert list(tool.messages(f"raise Error({raised})\nraise Error\nraise error()")) == [
        text.replace("\\\\", "\\")
    ]


def test_a_way_out_begins_with_a_verb(tool: ModuleType) -> None:
    assert tool.with_way("x: take y: leave z out") == "x: **take y: leave z out**"
    assert tool.with_way("x: it is odd") is None
    assert tool.with_way("x; or mark it") == "x; **or mark it**"
