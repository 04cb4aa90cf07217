"""Without user ids, file locks and Unix sockets, as on Windows: studies run, campaigns say no."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# What Windows lacks is taken away before anything is imported.
_START = """
import os, socket, sys
for name in ("fcntl", "grp", "pwd", "resource"):
    sys.modules[name] = None
for name in ("geteuid", "getuid", "O_NOFOLLOW"):
    delattr(os, name)
del socket.AF_UNIX
from fedtally.cli import main
main(sys.argv[1:])
"""


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _START, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_an_answer_is_made_saved_and_read(tmp_path: Path) -> None:
    (tmp_path / "items.txt").write_text("tea\n" * 60 + "rice\n" * 40)
    done = _run(tmp_path, "estimate", "items.txt", "--save", "answer.fed", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["estimates"][0]["item"] == "tea"
    asked = _run(tmp_path, "query", "answer.fed", "rice")
    assert asked.returncode == 0 and "rice" in asked.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("campaign", "status", "here"),
        ("aggregate", "leader", "status", "here"),
        ("agent", "init", "here"),
        ("agent", "run", "--agent", "here"),
    ],
    ids=" ".join,
)
def test_a_command_that_cannot_run_says_where_it_can(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    done = _run(tmp_path, *command)
    assert done.returncode == 2, done.stderr
    assert "run it on Linux, or in a container" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
