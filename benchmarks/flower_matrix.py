"""What follows when a part of a Flower federation dies or is set up wrongly, tried on processes.

    python -m benchmarks.flower_matrix [CASE...]    print a table in Markdown, row by row

The federation is one of this machine: a SuperLink with TLS, and six SuperNodes with registered keys
and an agent each. A case is one campaign or two of its own, against the adversary `active` and with
noise of the clients; two of the six vectors may be lost. Without a CASE all run.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.federation import CONNECTION, Federation, federation, free_ports
from fedtally.agent.accepted import AcceptedCampaigns, Campaign
from fedtally.agent.home import create
from fedtally.campaign.driver import Deadlines
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.domain import IntegerRange
from fedtally.errors import UnreadableFileError
from fedtally.plan import Plan
from fedtally.privacy.config import propose as propose_privacy
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.proposal import propose
from fedtally.sketch import Schedule
from fedtally.store import Ledger

NODES, ROWS, WIDTH = 6, 3, 16
DOMAIN = IntegerRange(1, 50)
PHASES = ("advertise", "share", "collect", "confirm", "unmask")
PATIENCE = 1800.0  # seconds; a busy machine may need minutes for what a quiet one does in seconds
_POLICY = """
[items]
file = "items.txt"
[policy]
epsilon = 1000.0
delta = 1e-2
min_honest = 2
"""


class Row(NamedTuple):
    """What was tried, what followed, and how many of the six vectors are not in the sum."""

    dies: str
    then: str
    lost: str

    def __str__(self) -> str:
        return f"| {self.dies} | {self.then} | {self.lost} |"


def wait_until(what: str, is_so: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Wait until something is so; return the seconds that it took."""
    begun = time.monotonic()
    while not is_so():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(what)
        time.sleep(0.1)
    return time.monotonic() - begun


@dataclass
class World:
    """A federation, its agents, and the campaigns that ran on it."""

    here: Federation
    listed: AllowList
    campaigns: int = 0
    groups: list[int] = field(default_factory=list)  # what a killed leader may have left behind

    @property
    def folder(self) -> Path:
        """Of all files."""
        return self.here.folder

    def start_agent(self, node: int) -> None:
        """Start an agent, and wait until it listens."""
        # A killed one leaves its socket behind.
        self.here.agent(node).unlink(missing_ok=True)
        command = [str(Path(sys.executable).parent / "fedtally"), "agent", "run", "--agent"]
        self.here.start(f"agent{node}", *command, str(self.folder / f"owner{node}"))
        agent = self.here.processes[f"agent{node}"]
        wait_until(
            f"agent {node} listens",
            lambda: self.here.agent(node).exists() or agent.poll() is not None,
        )

    def kill(self, name: str, *, is_alone: bool = False) -> None:
        """Kill a process of the federation, and all that it started unless it dies alone."""
        process = self.here.processes[name]
        if is_alone:
            del self.here.processes[name]
            self.groups.append(process.pid)
            process.kill()
            process.wait()
        else:
            self.here.stop(name, signal.SIGKILL)

    def begin(self, phase: int = 120) -> Running:
        """Start a campaign of its own plan, that all owners have accepted."""
        self.campaigns += 1
        place = self.folder / f"campaign{self.campaigns}"
        place.mkdir()
        parameters = propose(
            NODES, length=ROWS * WIDTH, bits=16, corrupt=1, max_dropout=0.15, adversary="active"
        )
        key = create_key_files(place / "server.key", "server", secrets.token_bytes)
        plan = Plan(
            rows=ROWS,
            width=WIDTH,
            schedule=Schedule.parse("shared"),
            num_rounds=1,
            num_clients=NODES,
            max_round_clients=NODES,
            domain=DOMAIN.describe(),
            max_items=1,
            seed=secrets.token_bytes(32),
            secure_sum=SecAggConfig(
                parameters=parameters, server_key=key.value, allow_list=self.listed.digest
            ),
            privacy=propose_privacy(
                epsilon=1.0,  # small: agents refuse a sum of campaigns that guarantees nothing
                delta=1e-6,
                rows=ROWS,
                width=WIDTH,
                trust="distributed",
                honest_survivors=parameters.honest_survivors,
                most_clients=NODES,
            ),
        )
        plan.save(place / "plan.toml")
        save_allow_list(place / "list", self.listed)
        for node in range(NODES):
            accepted = AcceptedCampaigns(self.folder / f"owner{node}" / "campaigns", None)
            accepted.add(Campaign(plan, self.listed, until=date.max))
        assert plan.privacy is not None
        books = place / "ledger.db"
        Ledger.open(books, create=True).grant(plan.privacy.population, 1.0, 1e-6, int(time.time()))
        folder = CampaignFolder.create(
            place / "campaign",
            place / "plan.toml",
            server_key=place / "server.key",
            mark=place / "mark",
            ledger=str(books),
            allow_list=place / "list",
            deadlines=Deadlines(gather=30, phase=phase),
        )
        return Running(self, folder)


@dataclass
class Running:
    """A campaign that runs on the federation, and the command that follows it."""

    world: World
    folder: CampaignFolder
    number: int = 0

    def __post_init__(self) -> None:
        self.command("run")

    def command(self, name: str, *options: str) -> None:
        """Start `fedtally campaign NAME`."""
        self.number += 1
        self.log = self.folder.path.parent / f"{name}{self.number}.log"
        command = [str(Path(sys.executable).parent / "fedtally"), "campaign", name]
        command += [str(self.folder.path), "--engine", "flower", "--connection", CONNECTION]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                env=self.world.here.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def phase(self) -> str | None:
        """Return the phase of the open session; None: there is none."""
        with suppress(UnreadableFileError):  # the ServerApp is just making the file
            found = self.folder.status().open if self.folder.has_begun else ()
            return found[0].phase if found else None
        return None

    def reach(self, phase: str) -> None:
        """Wait until a process runs the campaign, and its session is in a phase."""
        wait_until(
            phase, lambda: self.folder.runner() is not None and self.phase() == phase, PATIENCE
        )

    def end(self) -> int:
        """Wait until the command ends; return its exit code."""
        return self.process.wait(PATIENCE)

    def said(self) -> str:
        """Return the last line of an error that the command printed."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = [one for one in lines if one.startswith("error:")] or lines[-1:]
        return found[-1].replace(str(self.folder.path), "NAME") if found else "nothing"

    def lost(self) -> str:
        """Wait until the campaign is over; return how many vectors are not in its sum."""
        code = self.end()
        landed = self.folder.status().landed
        if code != 0 or not landed:
            return f"**all** (exit code {code}: {self.said()})"
        return str(NODES - landed[0])

    def take_up(self) -> str:
        """Resume the campaign; return what that took."""
        begun, holder = time.monotonic(), self.folder.runner()
        self.command("resume", *(["--take-over"] if holder is not None else []))
        wait_until("resumed", lambda: self.folder.runner() not in (None, holder))
        how = "`campaign resume --take-over`" if holder is not None else "`campaign resume`"
        return f"{how} runs after {time.monotonic() - begun:.0f} s"


def serverapp(world: World) -> Iterator[Row]:
    """The ServerApp is killed in each phase of one campaign."""
    campaign = world.begin()
    found = []
    for phase in PHASES:
        campaign.reach(phase)
        process = campaign.folder.runner()
        assert process is not None
        begun = time.monotonic()
        os.kill(process.number, signal.SIGKILL)
        code = campaign.end()
        noticed = time.monotonic() - begun
        resumed = campaign.take_up()
        then = f"`campaign run` exits with {code} after {noticed:.0f} s; {resumed}"
        found.append((f"the ServerApp, in {phase}", f"{then}, in {campaign.phase()}"))
    lost = campaign.lost()
    for dies, then in found:
        yield Row(dies, then, lost)


def superlink(world: World) -> Iterator[Row]:
    """The SuperLink is killed in collect, alone or with all that it started."""
    for is_alone in (True, False):
        campaign = world.begin()
        campaign.reach("collect")
        world.kill("superlink", is_alone=is_alone)
        begun = time.monotonic()
        time.sleep(5)
        world.here.start_superlink()
        up = time.monotonic() - begun
        with suppress(subprocess.TimeoutExpired):
            campaign.process.wait(300)
        if campaign.process.poll() is None:
            then = "300 s later `campaign run` still follows a ServerApp that does nothing"
            campaign.process.terminate()
            campaign.process.wait()
        else:
            seconds = time.monotonic() - begun
            then = f"`campaign run` exits with {campaign.process.returncode} after {seconds:.0f} s"
            then += f" (the SuperLink was up after {up:.0f} s)"
        back = wait_until("the nodes are back", lambda: world.here.online() == NODES)
        then += f"; all nodes are online {'at once' if back < 15 else f'after {back:.0f} s'}"
        then += f"; {campaign.take_up()}, in {campaign.phase()}"
        name = "the SuperLink's process alone" if is_alone else "the SuperLink with its ServerApp"
        yield Row(f"{name}, in collect", then, campaign.lost())


def supernode(world: World) -> Iterator[Row]:
    """A SuperNode is killed in collect; a supervisor starts it again until it is taken."""
    campaign = world.begin()
    campaign.reach("collect")
    world.kill("node0")
    begun, refused = time.monotonic(), 0
    while True:
        world.here.start_node(0, free_ports(1)[0])
        process = world.here.processes["node0"]
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if process.poll() is None:
            break
        refused += 1
    then = (
        f"the SuperLink refuses it {refused} times, with exit code"
        f" {_last_exit(world, 'node0')}, for {time.monotonic() - begun - 20:.0f} s"
    )
    yield Row("a SuperNode, in collect; a supervisor starts it again", then, campaign.lost())
    campaign = world.begin()
    campaign.reach("collect")
    world.kill("node0")
    lost = campaign.lost()
    waited = f"the phase waits {campaign.folder.deadlines.phase} s for it"
    yield Row("a SuperNode, in collect; it stays away", waited, lost)
    time.sleep(60)
    world.here.start_node(0, free_ports(1)[0])
    wait_until("node 0 is back", lambda: world.here.online() == NODES)


def clientapp(world: World) -> Iterator[Row]:
    """A ClientApp is killed in collect, before it has answered."""
    campaign = world.begin()
    campaign.reach("collect")
    # It lives for a second or two: stopped first, so that none is missed.
    killed = begun = 0.0
    while not killed:
        for number in _processes("flwr-clientapp", world.here.processes["node0"].pid):
            os.kill(number, signal.SIGKILL)
            killed = begun = time.monotonic()
        time.sleep(0.02)
    wait_until("the phase ends", lambda: campaign.phase() != "collect")
    then = f"the node is asked again; the phase takes {time.monotonic() - begun:.0f} s longer"
    yield Row("the ClientApp of a node, in collect", then, campaign.lost())


def agent(world: World) -> Iterator[Row]:
    """Agents are killed in each phase, before they answer, and started again at once."""
    for phases in (PHASES[:3], PHASES[3:]):
        campaign = world.begin(phase=60)
        for node, phase in enumerate(phases):
            campaign.reach(phase)
            world.kill(f"agent{node}")
            world.start_agent(node)
        lost = campaign.lost()
        # Their vectors are in the sum from confirm on, and the others can open it.
        forgotten = "an agent that was restarted answers in no session that it began"
        yield Row(
            f"agents, one each in {', '.join(phases)}; each is started again at once",
            forgotten,
            lost,
        )


def setup(world: World) -> Iterator[Row]:
    """SuperNodes that are set up wrongly."""
    here = world.here
    here.new_key("stranger")
    here.call(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "other.key"),
        *("-days", "30", "-subj", "/CN=other", "-out", "other.crt"),
    )
    link, key = ["--superlink", here.address], ["--auth-supernode-private-key"]
    trusted = ["--root-certificates", "ca.crt"]
    yield _refused(world, "a node without TLS", [*link, "--insecure"], [*link])
    other = ["--root-certificates", "other.crt"]
    yield _refused(
        world,
        "a node that trusts another authority",
        [*link, *other, *key, "node0"],
        [*link, *other, "--key", "node0"],
    )
    yield _refused(world, "a node without a key", [*link, *trusted], [*link, *trusted])
    yield _refused(
        world,
        "a node whose key nobody registered",
        [*link, *trusted, *key, "nodestranger"],
        [*link, *trusted, "--key", "nodestranger"],
    )


def version(world: World) -> Iterator[Row]:
    """A SuperNode of another minor version: FLWR_OTHER names the folder of its commands."""
    other = os.environ.get("FLWR_OTHER")
    if other is None or not Path(other, "fedtally").exists():
        print(
            "not tried: FLWR_OTHER names no folder with commands of another flwr and fedtally",
            file=sys.stderr,
        )
        return
    here = world.here
    here.new_key("other")
    here.call("flwr", "supernode", "register", "nodeother.pub", CONNECTION)
    asked = ["--superlink", here.address, "--root-certificates", "ca.crt"]
    asked += ["--auth-supernode-private-key", "nodeother"]
    said = here.call(f"{other}/flwr", "--version").split()[-1]
    path = here.environment["PATH"]
    here.environment["PATH"] = f"{other}{os.pathsep}{path}"  # a node starts others by their names
    try:
        check = [*asked[:-2], "--key", "nodeother"]
        yield _refused(world, f"a node with flwr {said}", asked, check, Path(other))
    finally:
        here.environment["PATH"] = path


def _refused(
    world: World,
    name: str,
    options: list[str],
    check: list[str],
    commands: Path = Path(sys.executable).parent,
) -> Row:
    """Start a node that cannot work; tell what it does, and what `fedtally flower check` says.

    Args:
        world: the federation.
        name: of the row.
        options: those of `flower-supernode`.
        check: those of `fedtally flower check`.
        commands: the folder of the node's own `fedtally`.
    """
    here, begun = world.here, time.monotonic()
    # Not Popen's own search: it looks into the PATH of this process.
    command = shutil.which("flower-supernode", path=here.environment["PATH"])
    assert command is not None
    here.start("wrong", command, *options, "--port", str(free_ports(1)[0]))
    process = here.processes["wrong"]
    with suppress(subprocess.TimeoutExpired):
        process.wait(90)
    log = here.folder / "wrong.log"
    if process.poll() is None:
        lines = log.read_text(errors="replace").splitlines()
        then = f"after 90 s it still tries, and its last line is “{lines[-1]}”"
    else:
        then = f"it exits with {process.returncode} after {time.monotonic() - begun:.0f} s"
    here.stop("wrong")
    log.rename(here.folder / f"{name}.log")
    done = subprocess.run(
        [str(commands / "fedtally"), "flower", "check", "--json", *check],
        cwd=here.folder,
        capture_output=True,
        text=True,
    )
    bad = [one["about"] for one in json.loads(done.stdout)["findings"] if not one["is_good"]]
    seen = f"finds a problem ({', '.join(bad)})" if bad else "finds no problem"
    return Row(name, f"{then}; `fedtally flower check` {seen}", "0")


def _processes(name: str, session: int) -> Iterator[int]:
    """Yield the numbers of the processes of a session whose command has a name in it."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if int((place / "stat").read_text().rpartition(")")[2].split()[3]) != session:
                continue
            if name.encode() in (place / "cmdline").read_bytes():
                yield int(place.name)


def _last_exit(world: World, name: str) -> str:
    """Return the code of Flower with which a process ended last, from its log."""
    lines = (world.folder / f"{name}.log").read_text(errors="replace").splitlines()
    codes = [line for line in lines if "Exit Code" in line]
    return codes[-1].partition("Exit Code")[2].strip(": ") if codes else "unknown"


CASES = {
    case.__name__: case
    for case in (serverapp, superlink, supernode, clientapp, agent, setup, version)
}


@click.command()
@click.argument("cases", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--keep", type=click.Path(path_type=Path), help="A new folder that keeps all files.")
def main(cases: tuple[str, ...], keep: Path | None) -> None:
    """Try what follows when a part of a Flower federation dies, and print a table."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process is left
    with tempfile.TemporaryDirectory(prefix="fedtally-matrix-") as made:
        folder = keep or Path(made)
        folder.mkdir(exist_ok=True)
        with federation(folder, NODES) as here:
            os.environ.update(here.environment)
            owners = [folder / f"owner{node}" for node in range(NODES)]
            listed = AllowList(sorted(create(owner, secrets.token_bytes) for owner in owners))
            world = World(here, listed)
            for node, owner in enumerate(owners):
                (owner / "items.txt").write_text(f"{1 + node}\n")
                settings = f'socket = "{here.agent(node)}"\n{_POLICY}'
                (owner / "agent.toml").write_text(settings)
                world.start_agent(node)
            try:
                click.echo("| what dies | then | lost |\n|---|---|---|")
                for name in cases or CASES:
                    for row in CASES[name](world):
                        click.echo(str(row))
            finally:
                for group in world.groups:
                    with suppress(ProcessLookupError):
                        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
