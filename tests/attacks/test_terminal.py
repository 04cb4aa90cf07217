"""What a stranger wrote drives the terminal of whoever looks at it.

Attack 2: a text moves the cursor and writes over what a command said, changes the title or the
clipboard, or turns the order of letters. Any text of a file may be one, and an error quotes it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

import fedtally
from fedtally import cli
from fedtally.base import archive
from fedtally.cli import console
from fedtally.cli.app import run

# CSI of seven and of eight bits, OSC, a carriage return, a backspace, and letters of other orders.
HOSTILE = "\x1b[2A\x1b[2K\x9b31m\x1b]0;title\x07\r\b\x7fServer key aaaa\u202e\u2066\u2028"
PRINTS = {"__init__.py", "app.py", "console.py", "help.py"}  # the rest prints by `console`


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_nothing_in_a_renderable_drives_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    for renderable in (HOSTILE, Text(HOSTILE), table, Group(Text(HOSTILE, style="red"), table)):
        console.show(renderable)
        said = capsys.readouterr().out
        assert is_harmless(said)
        assert "\\x1b" in said and said.endswith("\n")


def test_on_a_terminal_only_styles_are_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console.show(Text(HOSTILE, style="red"))
    said = capsys.readouterr().out
    assert said.count("\x1b[31m") == said.count("\x1b[0m") > 0
    assert is_harmless(said.replace("\x1b[31m", "").replace("\x1b[0m", ""))


def test_documents_notes_and_errors_are_harmless_and_documents_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    odd = HOSTILE + "\udc80 日本\u3000"
    console.show_json({"text": odd, odd: [odd]})
    said = capsys.readouterr().out
    assert is_harmless(said) and "日本" in said
    assert json.loads(said) == {"text": odd, odd: [odd]}
    for print_it in (
        lambda: console.note(HOSTILE),
        lambda: console.say(HOSTILE),
        lambda: console.complain("BadInput", HOSTILE, False),
        lambda: console.complain("BadInput", HOSTILE, True),
    ):
        print_it()
        captured = capsys.readouterr()
        assert is_harmless(captured.out + captured.err) and captured.out + captured.err


def test_commands_print_by_the_console_alone() -> None:
    """So that what is harmless there is harmless in each of them."""
    for path in sorted(Path(cli.__file__).parent.glob("*.py")):
        if path.name in PRINTS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "click.echo", "click.secho"), (path, node.lineno)
                assert not called.endswith(("stdout.write", "stderr.write")), (path, node.lineno)


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the texts of a document are."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in pairs:
            yield from texts(each, (*path, key))


def replaced(value: Any, path: tuple[Any, ...]) -> Any:
    if not path:
        return HOSTILE
    if isinstance(value, dict):
        return {key: replaced(v, path[1:]) if key == path[0] else v for key, v in value.items()}
    return [replaced(v, path[1:]) if key == path[0] else v for key, v in enumerate(value)]


def test_no_text_of_a_saved_result_drives_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    items = [HOSTILE, "tea\nServer key bbbb", "milk", *["tea"] * 9]
    result = fedtally.estimate(items, seed=1)
    result.command = "fedtally demo"
    result.save("r.fed")
    schema, meta, arrays = archive.read("r.fed")
    meta["warnings"] = ["a warning"]
    shown = 0
    for path in texts(meta):
        archive.write("bad.fed", schema, replaced(meta, path), arrays)
        for asked in (["inspect"], ["inspect", "--json"], ["query", "tea", HOSTILE]):
            code = run([asked[0], "bad.fed", *asked[1:]])
            captured = capsys.readouterr()
            assert is_harmless(captured.out) and is_harmless(captured.err), (path, asked)
            assert code in (0, 2)
            shown += code == 0 and "Server key aaaa" in captured.out
    assert shown >= 4  # a warning and the command, in both forms; most texts are refused
    assert run(["query", "r.fed", "--recovery", "joint", "tea\nServer key bbbb"]) == 0
    said = capsys.readouterr().out
    assert "tea\\nServer key bbbb" in said  # and no line of its own


def test_a_report_is_harmless(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    result = fedtally.estimate([HOSTILE, "</script><b>", "milk", *["tea"] * 9], seed=1)
    result.command = f"fedtally demo {HOSTILE}"
    result.save(tmp_path / "r.fed")
    assert run(["report", str(tmp_path / "r.fed")]) == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Server key aaaa" in page
    assert is_harmless(page.replace("\u00a0", " ").replace("\t", " "))
    assert "</script><b>" not in page


@pytest.mark.parametrize("command", ["inspect", "query", "merge", "report"])
def test_an_error_that_quotes_a_file_is_harmless(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "report":
        pytest.importorskip("jinja2")
    name = str(tmp_path / HOSTILE.replace("/", ""))
    for content in (None, b"\x1b[2K"):
        if content is not None:
            Path(name).write_bytes(content)
        assert run([command, name, *(["tea"] if command == "query" else [])]) == 2
        captured = capsys.readouterr()
        assert "Server key aaaa" in captured.err
        assert is_harmless(captured.out + captured.err)
