"""A campaign on a real Flower federation: a SuperLink with TLS and SuperNodes with registered keys.

Each scenario is a campaign of its own on the same federation. The agents run in a thread here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from benchmarks.federation import CONNECTION, Federation, federation, free_ports
from campaign_world import plan_of
from secagg_cohort import stream
from socket_agents import Person

from fedtally.answer.result import Result
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.flower import launch
from fedtally.campaign.transports.pipe import PipeError, read_frame, write_frame
from fedtally.cli.app import run
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan

pytestmark = [pytest.mark.flower, pytest.mark.slow]
NODES = 6  # two may be lost: four can still open the sum
PATIENCE = 600.0  # seconds; a busy machine may need minutes for what a quiet one does in seconds
HOSTILE = '''
"""A ClientApp that the SuperLink put in place of ours."""
import socket
import time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from fedtally.campaign.transports.flower.client_app import step
from fedtally.campaign.transports.flower.exchange import unpack

INBOX = 4
app = ClientApp()

@app.query("step")
def hostile(message, context):
    frame, agent = unpack(message.content), context.node_config["agent"]
    if frame[5] == INBOX and agent.endswith("agent5.sock"):
        # The test kills this node now, before its agent hears of the Inbox.
        Path(agent + ".held").touch()
        time.sleep(600)
    if frame[5] != INBOX or not agent.endswith("agent4.sock"):
        return step(message, context)
    # Garbage to the agent, and two questions at once of which it reads no answer.
    links = []
    for said in (b"\\xff" * 100, len(frame).to_bytes(4, "little") + frame):
        link = socket.socket(socket.AF_UNIX)
        link.connect(agent)
        link.sendall(said)
        links.append(link)
    raise ValueError("text that a server should not get")
'''


class Agents:
    """The agents of all nodes: they answer for the persons of the campaign that runs."""

    def __init__(self, federation: Federation) -> None:
        self.loop = asyncio.new_event_loop()
        self.persons: list[Person] = []
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        for node in range(NODES):
            asyncio.run_coroutine_threadsafe(self._listen(node, federation), self.loop).result(10)

    async def _listen(self, node: int, federation: Federation) -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    frame = await read_frame(reader, 1 << 24)
                    await write_frame(writer, self.persons[node].answer(frame) or b"")
            except PipeError:
                pass
            finally:
                writer.close()

        self._servers.append(await asyncio.start_unix_server(handle, federation.agent(node)))

    def serve(self, plan: Plan) -> None:
        """Be the clients of another campaign."""
        self.persons = [Person(plan, number) for number in range(NODES)]

    def end(self) -> None:
        async def hang_up() -> None:
            for server in self._servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(hang_up(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A federation of six nodes, with their agents, and a node whose key nobody registered."""
    before = dict(os.environ)
    # Otherwise its processes, which have groups of their own, would outlive a run that is ended.
    on_term = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM"))
    with federation(tmp_path_factory.mktemp("federation"), NODES) as processes:
        agents = Agents(processes)
        processes.new_key("stranger")
        processes.start_node("stranger", free_ports(1)[0])
        os.environ.update(processes.environment)
        try:
            yield SimpleNamespace(processes=processes, agents=agents)
        finally:
            agents.end()
            os.environ.clear()
            os.environ.update(before)
            signal.signal(signal.SIGTERM, on_term)


def campaign(here: SimpleNamespace, folder: Path, phase: int = 900, **options: Any) -> Path:
    """Make a campaign, whose clients the agents are from now on.

    With all nodes there nothing waits for a deadline, so they are as long as a busy machine needs.
    """
    plan = plan_of(clients=NODES, **options)
    create_key_files(folder / "server.key", "server", stream("server"))
    plan.save(folder / "plan.toml")
    deadlines = ["--gather", "600", "--phase", str(phase), "--session", "5400"]
    given = ["--plan", "plan.toml", "--server-key", "server.key", "--mark", "mark"]
    given = [str(folder / each) if "." in each or each == "mark" else each for each in given]
    assert run(["campaign", "init", str(folder / "survey"), *given, *deadlines]) == 0
    here.agents.serve(plan)
    return folder / "survey"


def command(name: str, place: Path) -> list[str]:
    return ["campaign", name, str(place), "--engine", "flower", "--connection", CONNECTION]


def wait_for(place: Path, phase: str) -> CampaignFolder:
    """Wait until a campaign is in a phase."""
    end = time.monotonic() + PATIENCE
    folder, phases = CampaignFolder.open(place), [""]
    while phase not in phases:
        assert time.monotonic() < end, phase
        time.sleep(0.2)
        # The ServerApp is just making the file, or has made it and not claimed the campaign yet.
        with suppress(UnreadableFileError, InvalidInputError):
            phases = [one.phase for one in folder.status().open]
    return folder


def check_sums(place: Path, here: SimpleNamespace, clients: int) -> None:
    """Check that exactly the first clients are in the sum."""
    (sketch,) = Result.load(place / "result.fed").sketches
    status = CampaignFolder.open(place).status()
    assert status.landed == {0: clients}
    (session,) = [one.session for one in status.ended if one.why is None]
    held = sum(person.sent[session] for person in here.agents.persons[:clients])
    assert (sketch.counters.ravel() == held).all()


@pytest.mark.promise
def test_a_killed_serverapp_is_resumed_in_its_phase_and_all_land(
    here: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = campaign(here, tmp_path)
    first = subprocess.Popen(
        [str(Path(sys.executable).parent / "fedtally"), *command("run", place)],
        stderr=subprocess.PIPE,
        text=True,
    )
    process = wait_for(place, "collect").runner()
    assert process is not None
    os.kill(process.number, signal.SIGKILL)
    _, said = first.communicate(timeout=PATIENCE)
    assert first.returncode == 1
    assert f"fedtally campaign resume {place}" in said
    assert run(command("resume", place)) == 0
    assert "landed, the sum of 6 clients" in capsys.readouterr().err
    check_sums(place, here, NODES)
    # The key that nobody registered took no part: its node has ended long ago.
    assert here.processes.processes["nodestranger"].poll()


@pytest.mark.promise
def test_a_hostile_app_and_a_killed_node_cost_their_own_vectors(
    here: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_hostile(place: Path) -> None:
        write_app(place)
        text = (place / launch.APP).read_text()
        ours = "fedtally.campaign.transports.flower.client_app:app"
        assert ours in text
        (place / launch.APP).write_text(text.replace(ours, "hostile:app"))
        (place / "hostile.py").write_text(HOSTILE)

    def kill() -> None:
        end = time.monotonic() + PATIENCE
        while not held.exists() and time.monotonic() < end:
            time.sleep(0.2)
        here.processes.stop("node5", signal.SIGKILL)

    write_app, held = launch.write_app, Path(f"{here.processes.agent(5)}.held")
    monkeypatch.setattr(launch, "write_app", write_hostile)
    place = campaign(here, tmp_path, phase=120, max_dropout=0.34)  # one phase waits so long
    killing = threading.Thread(target=kill)
    killing.start()
    assert run(command("run", place)) == 0
    killing.join()
    assert held.exists()
    check_sums(place, here, NODES - 2)


@pytest.mark.promise
def test_whoever_reaches_the_control_api_reads_what_the_superlink_may(
    here: SimpleNamespace, tmp_path: Path
) -> None:
    # A limit of Flower, which the threat model tells: a run brings a ServerApp of its own.
    secret, seen = tmp_path / "server.key", tmp_path / "seen"
    secret.write_text("of the user who runs the SuperLink")
    app = tmp_path / "app"
    launch.write_app(app)
    text = (app / launch.APP).read_text()
    ours = "fedtally.campaign.transports.flower.server_app:app"
    assert ours in text
    (app / launch.APP).write_text(text.replace(ours, "hostile:app"))
    (app / "hostile.py").write_text(
        "from pathlib import Path\nfrom flwr.serverapp import ServerApp\napp = ServerApp()\n"
        "@app.main()\ndef main(grid, context):\n"
        f"    Path({str(seen)!r}).write_text(Path({str(secret)!r}).read_text())\n"
    )
    here.processes.call("flwr", "run", str(app), CONNECTION)
    end = time.monotonic() + PATIENCE
    while not (seen.exists() and seen.read_text()):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert seen.read_text() == secret.read_text()
