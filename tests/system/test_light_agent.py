"""A light agent: no command of `fedtally agent` needs SciPy or dp-accounting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedtally.cli.app import run

TESTS = Path(__file__).resolve().parents[1]
# all commands of an owner, and whole campaigns of agents with and without an epsilon
ASKED = (
    "system/test_cli_agent.py",
    "protocol/test_agent.py::test_a_campaign_of_agents_lands_the_sums_of_their_contributions",
)
LOADED = """
import sys
import fedtally.agent.agent, fedtally.agent.serve, fedtally.agent.settings, fedtally.cli.agent
heavy = {"scipy", "dp_accounting", "pyarrow", "rich", "pandas", "matplotlib"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""


def test_commands_and_campaigns_of_agents_need_no_scipy() -> None:
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "without_scipy", *ASKED],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_ADDOPTS": "", "COVERAGE_PROCESS_START": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


def test_the_plugin_really_takes_scipy_away() -> None:
    asked = "import without_scipy, scipy"
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True)
    assert b"scipy is not on a device" in done.stderr


def test_an_agent_that_starts_has_loaded_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_an_agent_needs_is_printed_for_pip(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", "requirements"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("cryptography>=") for line in lines)
    assert not any(line.startswith("scipy") or ";" in line for line in lines)
