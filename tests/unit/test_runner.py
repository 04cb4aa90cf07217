"""Which process a lock names, and whether a signal from here would reach it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedtally.campaign import runner
from fedtally.campaign.places import held_by, holder
from fedtally.campaign.runner import Runner, fields
from fedtally.errors import InvalidInputError


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Runner]:
    """Another process, as it names itself."""
    code = "import os, sys; from fedtally.campaign.runner import Runner"
    code += "; print(*Runner.this(os.getpid()), flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        number, namespace, start = process.stdout.readline().split()
        yield Runner(int(number), namespace, start)


def test_a_lock_names_its_process(tmp_path: Path) -> None:
    with held_by(tmp_path, os.getpid()):
        found = holder(tmp_path)
    assert found == Runner.this(os.getpid()) and found.namespace.startswith("pid:")
    assert found.is_here and str(found) == f"{os.getpid()}"
    assert found.how_to_end().startswith(f"kill {os.getpid()},")
    (tmp_path / "lock").write_text("4321\n")  # of an earlier version
    with open(tmp_path / "lock", "rb") as file:
        assert Runner.read(file.fileno()) == Runner(4321) and not Runner(4321).is_seen()


def test_a_number_counts_for_its_own_process_alone(other: Runner) -> None:
    assert other.is_seen()
    later = other._replace(start=str(int(other.start) + 1))  # its PID went to a stranger
    away = other._replace(namespace="pid:[1]")
    gone = other._replace(number=2**22 + 1)
    assert not any(one.is_seen() for one in (later, away, gone, Runner(0, *other[1:])))
    assert not Runner.this(os.getpid()).is_seen()  # nobody signals itself
    assert later.is_here and not away.is_here
    assert str(away) == f"{other.number} of another container"
    assert away.how_to_end() == "stop its container"


def test_who_runs_a_folder_in_another_container_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_by(tmp_path, 1):
        assert fields(holder(tmp_path)) == {"process": 1, "in_another_container": False}
        monkeypatch.setattr(runner, "_namespace", lambda: "pid:[2]")
        assert fields(holder(tmp_path)) == {"process": 1, "in_another_container": True}
        said = pytest.raises(InvalidInputError, match="process 1 of another container runs")
        with said, held_by(tmp_path, 2):
            pass
    assert fields(None) == {"process": None, "in_another_container": False}


def test_where_the_system_names_no_namespace_a_number_is_all_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS, which has no /proc."""

    def absent(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", absent)
    monkeypatch.setattr(Path, "read_text", absent)
    assert Runner.this(os.getpid()) == Runner(os.getpid()) and Runner(os.getpid()).is_here
