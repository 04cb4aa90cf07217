"""The systemd unit of the agent: systemd takes it, and it keeps what its page promises."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "fedtally-agent.service"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def verified(unit: Path) -> str:
    """Return what `systemd-analyze verify` has against a unit; it exits with 0 for some of it."""
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    # Units of the machine itself are no business of this test.
    said = [line for line in found.stderr.splitlines() if unit.name in line]
    return "\n".join(said) or ("" if found.returncode == 0 else found.stderr)


@needs_systemd
def test_systemd_takes_the_unit_of_the_agent():
    assert verified(UNIT) == ""


@needs_systemd
def test_systemd_names_an_entry_that_it_does_not_know(tmp_path):
    """Else the test above would pass for any file."""
    (tmp_path / UNIT.name).write_text(UNIT.read_text().replace("PrivateNetwork=", "PrivateNet="))
    assert "PrivateNet" in verified(tmp_path / UNIT.name)


def test_the_agent_has_no_network_no_swap_and_no_core_dump():
    said = UNIT.read_text().splitlines()
    for line in ("PrivateNetwork=yes", "MemorySwapMax=0", "LimitCORE=0", "NoNewPrivileges=yes"):
        assert line in said
