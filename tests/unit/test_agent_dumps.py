"""The memory of an agent is in no core dump."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedtally.agent import dumps
from fedtally.errors import InvalidInputError

CRASH = """
import ctypes, os, resource, sys
if sys.argv[1] == "forbidden":
    from fedtally.agent.dumps import forbid_dumps
    forbid_dumps()
print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)
os.abort()
"""


@pytest.mark.parametrize("how", ["forbidden", "allowed"])
def test_a_process_that_crashes_leaves_nothing(tmp_path: Path, how: str) -> None:
    started = f'ulimit -c unlimited 2>/dev/null; exec {sys.executable} -c "$0" {how}'
    done = subprocess.run(
        ["sh", "-c", started, CRASH], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGABRT
    is_forbidden = done.stdout.strip() == "(0, 0) 0"
    assert is_forbidden == (how == "forbidden")
    if is_forbidden:
        assert list(tmp_path.iterdir()) == []


def test_a_system_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        @staticmethod
        def prctl(*_: Any) -> int:
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(dumps.ctypes, "CDLL", lambda *_, **__: Refusing)
    monkeypatch.setattr(dumps.resource, "setrlimit", lambda *_: None)
    with pytest.raises(InvalidInputError, match="Operation not permitted.*allow prctl"):
        dumps.forbid_dumps()
