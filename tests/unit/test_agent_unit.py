"""The systemd units: systemd takes them, and they keep what their pages promise."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fedtally.cli import agent as agent_commands

UNIT = Path(__file__).parents[2] / "deploy" / "fedtally-agent.service"
AGGREGATE = UNIT.with_name("fedtally-aggregate@.service")
JOIN = UNIT.with_name("fedtally-join.service")
CAMPAIGN = UNIT.with_name("fedtally-campaign@.service")
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


@needs_systemd
def test_systemd_takes_the_unit_of_what_carries_an_agents_bytes():
    assert verified(JOIN) == ""


def test_what_carries_bytes_is_not_the_agent_and_ends_where_the_owner_must_act():
    said, agent = JOIN.read_text().splitlines(), UNIT.read_text().splitlines()
    for line in ("Restart=on-failure", "RestartPreventExitStatus=2", "LimitCORE=0"):
        assert line in said
    (user,) = (line for line in said if line.startswith("User="))
    assert user not in agent
    # what it types is what the command takes
    (start,) = (line for line in said if line.startswith("ExecStart="))
    taken = {name for one in agent_commands.join.params for name in one.opts}
    assert {word for word in shlex.split(start) if word.startswith("--")} <= taken


@needs_systemd
def test_systemd_takes_the_unit_of_a_campaign(tmp_path):
    made = tmp_path / "fedtally-campaign@survey.service"
    shutil.copy(CAMPAIGN, made)
    assert verified(made) == ""


def test_services_of_both_kinds_on_one_host_have_sockets_of_their_own():
    """Sockets of both lie in one folder, with the name of the instance: %i, or $1 of the shell."""
    pattern = r"unix:(/run/fedtally/[^\s\"]+)"
    one, two = (
        {each.replace("$$1", "%i") for each in re.findall(pattern, unit.read_text())}
        for unit in (CAMPAIGN, AGGREGATE)
    )
    assert len(one) == len(two) == 2 and not one & two


@needs_systemd
def test_systemd_takes_the_unit_of_one_of_two_servers(tmp_path):
    made = tmp_path / "fedtally-aggregate@survey.service"
    shutil.copy(AGGREGATE, made)
    assert verified(made) == ""


def test_one_of_two_servers_goes_on_after_a_crash_and_keeps_its_key_to_itself():
    said = AGGREGATE.read_text().splitlines()
    for line in (
        *("Restart=on-failure", "RestartPreventExitStatus=2", "UMask=0077", "LimitNOFILE=65536"),
        *("MemorySwapMax=0", "LimitCORE=0", "NoNewPrivileges=yes", "ProtectSystem=strict"),
    ):
        assert line in said


def test_a_campaign_goes_on_after_a_crash_and_reads_its_tokens_again():
    said = CAMPAIGN.read_text().splitlines()
    for line in (
        *("Restart=on-failure", "RestartPreventExitStatus=2", "SuccessExitStatus=3"),
        *("ExecReload=/bin/kill -HUP $MAINPID", "PrivateNetwork=yes", "LimitNOFILE=65536"),
    ):
        assert line in said


@pytest.mark.parametrize("how", ["unit", "container"])
def test_a_campaign_is_run_first_and_resumed_later(tmp_path, how):
    """The shell line of the unit, or the container's entry, with a `fedtally` that says its words.

    Both give the same options.
    """
    if how == "unit":
        line = CAMPAIGN.read_text().split("ExecStart=", 1)[1].split("\n# ", 1)[0]
        told = shlex.split(line.replace("\\\n", " ").replace("$$", "$").replace("%i", "survey"))
    else:
        told = ["/bin/sh", str(CAMPAIGN.with_name("serve.sh"))]
    (tmp_path / "fedtally").write_text('#!/bin/sh\necho "$@"\nexit 3\n')
    (tmp_path / "fedtally").chmod(0o755)
    (tmp_path / "survey").mkdir()
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin", "CAMPAIGN": "survey"}

    def called(*more: str) -> str:
        done = subprocess.run([*told, *more], cwd=tmp_path, env=env, stdout=subprocess.PIPE)
        assert done.returncode == 3  # of the campaign itself
        return " ".join(done.stdout.decode().split())

    options = (
        " --engine https --listen unix:/run/fedtally/survey.sock"
        " --operate unix:/run/fedtally/survey.operate.sock --log info --quiet"
    )
    assert called() == f"campaign run survey{options}"
    (tmp_path / "survey" / "campaign.db").touch()  # a process died while it made it
    assert called() == f"campaign run survey{options}"
    (tmp_path / "survey" / "campaign.db").write_text("what a process left")
    assert called() == f"campaign resume survey{options}"
    if how == "container":
        assert called("--linger", "5") == f"campaign resume survey{options} --linger 5"


def test_the_container_names_the_campaign_that_it_lacks(tmp_path):
    entry = ["/bin/sh", str(CAMPAIGN.with_name("serve.sh"))]
    done = subprocess.run(entry, cwd=tmp_path, env={"PATH": "/bin"}, capture_output=True, text=True)
    assert done.returncode == 2 and "podman run -e CAMPAIGN=survey" in done.stderr


def test_the_container_has_what_its_entry_and_its_ledger_need():
    said = CAMPAIGN.with_name("Containerfile").read_text()
    assert "fedtally[https,postgres]" in said
    for name in re.findall(r"/opt/fedtally/([a-z]+\.[a-z]+)", said):
        assert CAMPAIGN.with_name(name).exists() and f"deploy/{name} " in said
