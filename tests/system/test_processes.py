"""Real processes on Unix sockets: agents that are killed in every phase, and a record put back."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import warm_processes
from campaign_world import ALLOWED, ROWS, WIDTH, plan_of
from secagg_cohort import stream
from socket_agents import Person, listening_in_a_thread

from fedtally.agent.accepted import AcceptedCampaigns, Campaign
from fedtally.agent.home import create
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.cli.app import run
from fedtally.plan import Plan
from fedtally.privacy.config import propose as propose_privacy
from fedtally.store import ClientRecord, Ledger

AGENTS = 10
START = "import sys; from fedtally.cli import main; sys.exit(main())"
# An agent that is killed as it writes down that its item is spent, before or after.
DIES = """
import os, signal
from fedtally.store import ClientRecord
take_part = ClientRecord.take_part
def dies(*given, **more):
    {writes}take_part(*given, **more)
    os.kill(os.getpid(), signal.SIGKILL)
ClientRecord.take_part = dies
"""
# What the server says that it asks for, in the order of the phases.
ASKED = ["their keys", "their shares", "their items", "whom they saw", "the opening"]


def plans() -> list[Plan]:
    """Return a plan a phase, small enough in epsilon that one client may be in all campaigns."""
    sized = plan_of("active", "distributed", n_min=AGENTS - 1, clients=AGENTS)
    parameters = sized.secure_sum.parameters  # type: ignore[union-attr]
    privacy = propose_privacy(
        epsilon=0.5,
        delta=1e-6,
        rows=ROWS,
        width=WIDTH,
        trust="distributed",
        honest_survivors=parameters.honest_survivors,
        most_clients=AGENTS,
    )
    return [
        dataclasses.replace(sized, privacy=privacy, seed=bytes([number]) * 32)
        for number in range(len(ASKED))
    ]


class Machine:
    """The agents of one machine, each a process in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sockets = folder, folder / "sockets"
        self.sockets.mkdir(mode=0o750)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.warm: dict[int, BaseProcess] = {}
        create_key_files(folder / "server.key", "server", stream("server"))
        save_allow_list(folder / "clients.allow", ALLOWED)

    def place(self, number: int) -> Path:
        return self.folder / f"agent{number}"

    def add(self, number: int, campaigns: list[Plan]) -> None:
        """Make an agent that accepted these campaigns."""
        place = self.place(number)
        create(place, stream(("person", number)))
        (place / "items.txt").write_text(f"{1 + number}\n")
        (place / "agent.toml").write_text(
            f'socket = "{self.sockets}/p{number}.sock"\n'
            '[items]\nfile = "items.txt"\n'
            "[policy]\nepsilon = 20.0\ndelta = 1e-6\nmin_honest = 2\n"
        )
        accepted = AcceptedCampaigns(place / "campaigns", None)
        for plan in campaigns:
            names_list = plan.secure_sum.allow_list is not None  # type: ignore[union-attr]
            accepted.add(Campaign(plan, ALLOWED if names_list else None, until=date.max))

    def start(self, number: int, before: str = "", within: tuple[str, ...] = ()) -> None:
        """Start an agent.

        Args:
            number: of the agent.
            before: what its process does first.
            within: the command that runs it.
        """
        log = open(self.place(number) / "log", "ab")  # noqa: SIM115 the process writes it
        arguments = ["agent", "run", "--agent", str(self.place(number))]
        command = [*within, sys.executable, "-c", before + START, *arguments]
        self.processes[number] = subprocess.Popen(command, stderr=log)
        log.close()

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes.pop(number).wait()

    def start_warm(self, number: int) -> None:
        """Start an agent that has loaded already what it needs."""
        arguments = ["agent", "run", "--agent", str(self.place(number))]
        self.warm[number] = warm_processes.start(arguments, self.place(number) / "log")

    def kill_warm(self, number: int) -> None:
        process = self.warm.pop(number)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL  # it lived until now

    def campaign(self, plan: Plan, phase: int) -> Path:
        """Make the folder of a campaign by the command."""
        place = self.folder / f"campaign{plan.seed[0]}"
        plan.save(self.folder / "plan.toml")
        given = {
            "--plan": "plan.toml",
            "--server-key": "server.key",
            "--mark": f"{place.name}.mark",
        }
        if plan.secure_sum.allow_list is not None:  # type: ignore[union-attr]
            given["--allow-list"] = "clients.allow"
        if plan.privacy is not None:
            given["--ledger"] = "books.db"
        files = [text for name, file in given.items() for text in (name, str(self.folder / file))]
        waits = f"--gather 8 --phase {phase} --session 120 --bench 1".split()
        assert run(["campaign", "init", str(place), *files, *waits]) == 0
        return place


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    with ExitStack() as stack:
        stack.callback(lambda: [found.kill(number) for number in list(found.processes)])
        stack.callback(lambda: [found.kill_warm(number) for number in list(found.warm)])
        yield found


@pytest.mark.promise
def test_agents_may_be_killed_in_every_phase(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    campaigns = plans()
    books = Ledger.open(machine.folder / "books.db", create=True)
    books.grant("clients", 20.0, 1e-6, int(time.time()))
    for number in range(AGENTS):
        machine.add(number, campaigns)
        machine.start_warm(number)
    shutil.copyfile(machine.place(0) / "record" / "record.db", machine.folder / "copy")
    for victim, (plan, phase) in enumerate(zip(campaigns, ASKED, strict=True)):
        place = machine.campaign(plan, phase=4)
        command = [sys.executable, "-c", START, "campaign", "run", str(place)]
        with subprocess.Popen(
            [*command, "--agents", str(machine.sockets), "--wait", "30"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as server:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if phase in line and victim in machine.warm:
                    machine.kill_warm(victim)
            assert server.wait() == 0, said
        # Its last answer may have left before it was killed.
        assert CampaignFolder.open(place).status().landed[0] in (AGENTS - 1, AGENTS), said
        machine.start_warm(victim)
    for number in range(AGENTS):
        record = ClientRecord.open(machine.place(number) / "record" / "record.db")
        for plan in campaigns:
            assert len(record.participations(plan.fingerprint)) <= 1
    # The record that is put back has forgotten all that: the agent does not start.
    machine.kill_warm(0)
    shutil.copyfile(machine.folder / "copy", machine.place(0) / "record" / "record.db")
    capsys.readouterr()
    assert run(["agent", "run", "--agent", str(machine.place(0))]) == 2
    assert "record" in capsys.readouterr().err


def bare(number: int) -> Plan:
    """Return a plan without privacy, whose sessions bear a dropout."""
    return dataclasses.replace(plan_of(n_min=AGENTS - 1, clients=AGENTS), seed=bytes([number]) * 32)


def take_bare_plans(place: Path, socket: Path) -> None:
    """Let an agent take plans without privacy."""
    (place / "agent.toml").write_text(
        f'socket = "{socket}"\n[items]\nfile = "items.txt"\nonce = "2026-11"\n'
        '[policy]\nadversary = "semi-honest"\nepsilon = "none"\nmin_honest = 2\n'
    )


def carried(machine: Machine, plan: Plan, phase: int = 4) -> int:
    """Run a campaign with an agent and clients in memory; return how many are in its sum.

    A phase, seconds, is short where somebody does not answer.
    """
    place = machine.campaign(plan, phase)
    with listening_in_a_thread(machine.sockets, [Person(plan, i) for i in range(AGENTS - 1)]):
        given = ["--agents", str(machine.sockets), "--wait", "20"]
        assert run(["campaign", "run", str(place), *given]) == 0
    return CampaignFolder.open(place).status().landed[0]


@pytest.mark.promise
@pytest.mark.parametrize("is_written", [False, True])
def test_an_agent_that_dies_as_its_item_is_spent_never_sends_it_again(
    machine: Machine, capsys: pytest.CaptureFixture[str], is_written: bool
) -> None:
    first, second, last = AGENTS - 1, bare(1), bare(2)
    machine.add(first, [second, last])
    place = machine.place(first)
    take_bare_plans(place, machine.sockets / f"p{first}.sock")
    shutil.copytree(place, machine.folder / "copy")
    # Its shares were taken; it is killed before its vector leaves.
    machine.start(first, DIES.format(writes="" if is_written else "if False: "))
    assert carried(machine, second) == AGENTS - 1
    assert machine.processes.pop(first).wait() == -signal.SIGKILL
    files = [Path("record", "record.db"), Path("key", "record.mark")]
    assert len(ClientRecord.open(place / files[0], mark=place / files[1]).parts()) == is_written
    # What was not written down was not sent, and may go into another campaign.
    machine.start(first)
    assert carried(machine, last) == (AGENTS - 1 if is_written else AGENTS)
    assert ("ITEM_SPENT" in (place / "log").read_text()) == is_written
    machine.kill(first)
    # An old copy of the record is refused. With its mark nobody notices, as the guide says.
    shutil.copyfile(machine.folder / "copy" / files[0], place / files[0])
    capsys.readouterr()
    assert run(["agent", "run", "--agent", str(place)]) == 2
    assert "an old copy of it was put back" in capsys.readouterr().err
    shutil.copyfile(machine.folder / "copy" / files[1], place / files[1])
    assert run(["agent", "check", "--agent", str(place)]) == 0


# An agent whose disk is full from a write of its record on, until somebody makes room: no file of
# its process takes a byte, also not its log.
FULL = """
import resource
from fedtally.store import ClientRecord
write, is_first = ClientRecord.{write}, [True]
def full(*given, **more):
    if is_first:
        is_first.clear()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return write(*given, **more)
ClientRecord.{write} = full
"""


@pytest.mark.promise
@pytest.mark.parametrize("write", ["begin", "take_part"])
def test_an_agent_whose_disk_is_full_sends_nothing_and_goes_on_when_it_has_room(
    machine: Machine, write: str
) -> None:
    last, full, roomy = AGENTS - 1, bare(1), bare(2)
    machine.add(last, [full, roomy])
    place = machine.place(last)
    take_bare_plans(place, machine.sockets / f"p{last}.sock")
    machine.start(last, FULL.format(write=write))
    assert carried(machine, full) == AGENTS - 1
    limits = resource.prlimit(machine.processes[last].pid, resource.RLIMIT_FSIZE)
    assert limits == (0, resource.RLIM_INFINITY)  # it was asked, and its disk was full
    files = [place / "record" / "record.db", place / "key" / "record.mark"]
    assert ClientRecord.open(files[0], mark=files[1]).parts() == []
    resource.prlimit(machine.processes[last].pid, resource.RLIMIT_FSIZE, limits[1:] * 2)
    assert carried(machine, roomy) == AGENTS
    assert len(ClientRecord.open(files[0], mark=files[1]).parts()) == 1


OTHER_USER = 61_234
ALONE = ("unshare", "--net", "setpriv", *f"--reuid={OTHER_USER} --regid={OTHER_USER}".split())


def may_be_alone() -> bool:
    """Whether this process may start one of another user, without a network, that finds Python."""
    command = [*ALONE, "--clear-groups", sys.executable, "-c", "import fedtally.cli.app"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.promise
def test_an_agent_of_another_user_without_a_network_takes_part() -> None:
    if os.getuid() != 0 or not may_be_alone():
        pytest.skip("needs root, unshare and setpriv, and a Python that every user may read")
    with tempfile.TemporaryDirectory() as folder:  # pytest lets nobody else into its own
        machine, number, plan = Machine(Path(folder)), AGENTS - 1, bare(1)
        machine.folder.chmod(0o711)
        machine.add(number, [plan])
        place = machine.place(number)
        take_bare_plans(place, place / "run" / "agent.sock")
        for each in (place, *place.rglob("*")):
            os.chown(each, OTHER_USER, OTHER_USER)
        machine.start(number, within=(*ALONE, "--clear-groups"))
        try:
            (machine.sockets / f"p{number}.sock").symlink_to(place / "run" / "agent.sock")
            assert carried(machine, plan, phase=20) == AGENTS, (place / "log").read_text()
            networks = [
                os.readlink(f"/proc/{process}/ns/net")
                for process in ("self", machine.processes[number].pid)
            ]
            assert networks[0] != networks[1]
        finally:
            machine.kill(number)
