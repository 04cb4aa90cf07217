"""A secure round on Flower over the bare echo of the same messages, in turn, on one federation.

The echo is an app of its own that sends and answers as many bytes in as many messages, without
driver, store, protocol or agents. Both start as Flower apps do, and the start does not count.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.deploy import DOMAIN, KEY, ROWS, WIDTH, stream
from benchmarks.federation import CONNECTION, Federation, federation
from benchmarks.measure import Goal, Report
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.folder import LOCK, CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.flower import launch
from fedtally.campaign.transports.pipe import PipeError, read_frame, write_frame
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.params import Adversary, ClientPolicy
from fedtally.secagg.proposal import propose
from fedtally.sketch import Schedule

_ECHO_CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp
from fedtally.campaign.transports.flower.exchange import ACTION, pack, unpack

def echo(message, context):
    size = int.from_bytes(unpack(message.content)[:4], "little")
    return Message(pack(bytes(size)), reply_to=message)

app = ClientApp()
app.query(ACTION)(echo)
"""
_ECHO_SERVER = """
import json, time
from pathlib import Path
from flwr.serverapp import ServerApp
from fedtally.campaign.transports.flower.exchange import Exchange, Letter
from fedtally.campaign.transports.flower.server_app import POLL_SECONDS

def main(grid, context):
    begun, exchange = time.monotonic(), Exchange(grid, time.monotonic)
    for down, up in json.loads(context.run_config["campaign"]):
        frame = up.to_bytes(4, "little") + bytes(down)
        exchange.push([Letter(node, frame, 300) for node in grid.get_node_ids()])
        while exchange.busy:
            list(exchange.pull())
            time.sleep(POLL_SECONDS)
    Path("OUT_FILE").write_text(str(time.monotonic() - begun))

app = ServerApp()
app.main()(main)
"""


def identity(node: int) -> SigningKey:
    """Return the key of a client."""
    return SigningKey(Secret(stream(node)(KEY_BYTES)))


def listed(nodes: int) -> AllowList:
    """Return the identities of all clients."""
    return AllowList(sorted(identity(node).public for node in range(nodes)))


def plan_of(nodes: int, adversary: Adversary) -> Plan:
    """Return a plan of one round, without privacy; one of ten clients may drop out."""
    parameters = propose(
        nodes,
        length=ROWS * WIDTH,
        bits=16,
        corrupt=1,
        max_dropout=nodes // 10 / nodes,
        adversary=adversary.value,
    )
    names = listed(nodes).digest if adversary is Adversary.ACTIVE else None
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule=Schedule.parse("shared"),
        # One round: with more of them the run would wait in vain for other clients, and count that.
        num_rounds=1,
        num_clients=nodes,
        max_round_clients=nodes,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        secure_sum=SecAggConfig(parameters=parameters, server_key=KEY.public, allow_list=names),
    )


def joined(plan: Plan, node: int, nodes: int, adversary: Adversary) -> Client:
    """Return the client of a node."""
    is_active = adversary is Adversary.ACTIVE
    return FrequencyClient(plan, DOMAIN, [1 + node]).join(
        0,
        ClientPolicy(adversary=adversary, min_honest=2),
        journal=MemoryJournal(),
        random=stream(node),
        identity=identity(node) if is_active else None,
        allow_list=listed(nodes) if is_active else None,
    )


@dataclass
class Agents:
    """The agents of all nodes, in a thread of this process.

    Attributes:
        clients: of the round that runs, by node.
        sizes: the bytes that the first client got and gave, message by message.
        spent: CPU seconds of the clients' state machines.
    """

    here: Federation
    nodes: int
    clients: list[Client] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    spent: float = 0.0
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def start(self) -> None:
        """Let all agents listen."""
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        for node in range(self.nodes):
            asyncio.run_coroutine_threadsafe(self._listen(node), self.loop).result(10)

    async def _listen(self, node: int) -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    frame = await read_frame(reader, 1 << 28)
                    begun = time.thread_time()
                    answer = self.clients[node].receive(frame, int(time.time())) or b""
                    self.spent += time.thread_time() - begun
                    if node == 0:
                        self.sizes.append((len(frame), len(answer)))
                    await write_frame(writer, answer)
            except PipeError:
                writer.close()

        await asyncio.start_unix_server(handle, self.here.agent(node))


def secure(agents: Agents, adversary: Adversary, place: Path) -> float:
    """Return the seconds of a secure round."""
    nodes = agents.nodes
    plan = plan_of(nodes, adversary)
    agents.clients = [joined(plan, node, nodes, adversary) for node in range(nodes)]
    agents.sizes = []
    create_key_files(place / "server.key", "server", lambda size: bytes(range(KEY_BYTES)))
    plan.save(place / "plan.toml")
    names = place / "list" if adversary is Adversary.ACTIVE else None
    if names is not None:
        save_allow_list(names, listed(nodes))
    folder = CampaignFolder.create(
        place / "round",
        place / "plan.toml",
        server_key=place / "server.key",
        mark=place / "mark",
        allow_list=names,
    )
    assert KEY.public == plan.secure_sum.server_key  # type: ignore[union-attr]
    launch.follow(folder, CONNECTION, launch.start(folder, CONNECTION, 60), lambda: None)
    assert folder.status().landed == {0: agents.nodes}
    ended, begun = folder.path / launch.REPORT, folder.path / LOCK
    return ended.stat().st_mtime - begun.stat().st_mtime


def echo(here: Federation, sizes: list[tuple[int, int]], place: Path) -> float:
    """Return the seconds of the same messages without the protocol."""
    app, seconds = place / "app", place / "seconds"
    launch.write_app(app)
    text = (app / launch.APP).read_text()
    for role in ("client", "server"):
        text = text.replace(
            f"fedtally.campaign.transports.flower.{role}_app:app", f"echo_{role}:app"
        )
    (app / launch.APP).write_text(text)
    (app / "echo_client.py").write_text(_ECHO_CLIENT)
    (app / "echo_server.py").write_text(_ECHO_SERVER.replace("OUT_FILE", str(seconds)))
    config = place / "echo.toml"
    config.write_text(f"campaign = {json.dumps(json.dumps(sizes))}\n")
    said = here.call("flwr", "run", str(app), CONNECTION, "-c", str(config), "--format", "json")
    if '"run-id"' not in said:  # the exit code of flwr run is 0 all the same
        raise RuntimeError(said)
    while not seconds.exists():
        time.sleep(0.2)
    time.sleep(0.2)
    return float(seconds.read_text())


def cpu_seconds(here: Federation) -> float:
    """Return the CPU seconds of all processes of a federation, ended ones included."""
    leaders = {process.pid for process in here.processes.values()}
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) in leaders:  # its session
            ticks += sum(map(int, fields[11:15]))  # its own, and of those that it waited for
    return ticks / os.sysconf("SC_CLK_TCK")


def flower_part(report: Report, quick: bool) -> None:
    """Measure secure rounds on Flower, and their echoes."""
    turns = 1 if quick else 3
    cases = [(3, Adversary.SEMI_HONEST), (5, Adversary.ACTIVE), (10, Adversary.ACTIVE)]
    for nodes, adversary in cases[:1] if quick else cases:
        _measure(report, nodes, adversary, turns)


def _measure(report: Report, nodes: int, adversary: Adversary, turns: int) -> None:
    """Let secure rounds and echoes take turns on one federation."""
    found: dict[str, list[float]] = {"secure": [], "echo": []}
    spent: dict[str, list[float]] = {"secure": [], "echo": []}
    loads: list[float] = []
    with tempfile.TemporaryDirectory() as made, federation(Path(made), nodes) as here:
        os.environ.update(here.environment)
        agents = Agents(here, nodes)
        agents.start()
        for turn in range(turns):
            for name in found:
                place = Path(made) / f"{name}{turn}"
                place.mkdir()
                before = cpu_seconds(here) + agents.spent
                found[name].append(
                    secure(agents, adversary, place)
                    if name == "secure"
                    else echo(here, agents.sizes, place)
                )
                spent[name].append(cpu_seconds(here) + agents.spent - before)
                loads.append(os.getloadavg()[0])
                took = f"{found[name][-1]:.1f} s, {spent[name][-1]:.1f} s of CPU"
                print(f"{nodes} nodes, {adversary.value}, {name}: {took}", file=sys.stderr)
    of = f"{nodes} nodes, {adversary.value}"
    for what, measured in (("seconds", found), ("CPU seconds", spent)):
        name = f"{what} of a round on Flower, {of}: secure / echo of the same messages"
        ratio = min(measured["secure"]) / min(measured["echo"])
        report.goals.append(Goal(name, ratio, 1.1, "x", at_most=True))
    report.notes.append(f"{of}: the load of the machine was {min(loads):.0f} to {max(loads):.0f}")
    for each, taken in found.items():
        report.notes.append(
            f"{of}, {each}: {' '.join(f'{one:.1f}' for one in taken)} s a round, and"
            f" {' '.join(f'{one:.1f}' for one in spent[each])} s of CPU"
        )
    down, up = (sum(each) for each in zip(*agents.sizes, strict=True))
    report.notes.append(
        f"{of}: a node gets {down:,} bytes and gives {up:,} in {len(agents.sizes)} messages, in"
        " frames"
    )
