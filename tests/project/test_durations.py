"""Which tests run where: `tests/durations.py`, in a small folder of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import durations
import pytest

import fedtally

ROOT = Path(__file__).resolve().parents[2]
TESTS = """import pytest

def test_quick(): pass
def test_slow(): pass
def test_long(): pass

@pytest.mark.promise
def test_kept(): pass

@pytest.mark.matrix
def test_case(): pass
"""
SECONDS = {"test_slow": 0.9, "test_long": 1.0, "test_kept": 100.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    files = ("unit/test_here.py", "attacks/test_there.py")
    for file in files:
        (folder / "tests" / file).parent.mkdir(parents=True)
        (folder / "tests" / file).write_text(TESTS)
    listed = {f"{file}::{name}": seconds for file in files for name, seconds in SECONDS.items()}
    (folder / "tests/durations.json").write_text(json.dumps(listed))
    (folder / "tests/durations.py").write_text((ROOT / "tests/durations.py").read_text())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    (folder / "pyproject.toml").write_text(
        f"[tool.pytest.ini_options]\nmarkers = {json.dumps(settings['markers'])}\n"
    )
    (folder / "tests/conftest.py").write_text('pytest_plugins = ("durations",)\n')
    return folder


@pytest.mark.parametrize(
    ("options", "here", "there"),
    [
        ([], "quick", "quick"),
        # of CI: what attacks is never long
        (["-m", "slow and not long"], "slow kept", "slow long kept"),
        (["--all", "-m", "not long"], "quick slow kept", "quick slow long kept"),
        (["-m", "long"], "long", ""),
    ],
)
def test_a_test_runs_where_its_time_and_its_marks_say(
    folder: Path, options: list[str], here: str, there: str
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "--collect-only", *options]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # it loads in a second less
    done = subprocess.run(
        command, cwd=folder, env=alone, capture_output=True, text=True, check=False
    )
    found = {line for line in done.stdout.splitlines() if "::" in line}
    assert found == {f"tests/unit/test_here.py::test_{name}" for name in here.split()} | {
        f"tests/attacks/test_there.py::test_{name}" for name in there.split()
    }, done.stdout + done.stderr


def test_files_without_a_slow_test_are_passed_over() -> None:
    """Those that hold one are listed, or are of kernels between the reference and the best ones."""
    tests, package = ROOT / "tests", Path(fedtally.__file__).parent
    files = {tests / name.partition("::")[0] for name in durations.listed() if "::" in name}
    assert all(map(durations.may_be_slow, [*files, tests / "unit" / "test_kernels.py"]))
    assert durations.may_be_slow(package / "plan" / "trials.py")
    assert not durations.may_be_slow(tests / "unit" / "test_tokens.py")
    assert not durations.may_be_slow(package / "plan" / "plan.py")
    assert durations.is_public(package / "plan" / "plan.py")
    assert {file for file in files if durations.is_public(file)} == {tests / durations.PUBLIC}
