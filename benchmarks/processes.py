"""Agents over the bare state machines of the protocol: their records, sockets and processes.

CPU is that of everybody: server, store, engine, agents and their records on disk.
"""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from datetime import date
from pathlib import Path

from benchmarks.durable import floor
from benchmarks.measure import Goal, Report, cpu_of
from fedtally.agent.accepted import AcceptedCampaigns, Campaign
from fedtally.agent.agent import Agent
from fedtally.agent.demands import AgentPolicy
from fedtally.agent.home import create
from fedtally.agent.items import Items
from fedtally.agent.serve import serve
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import CohortRun, drive
from fedtally.campaign.driver import Driver, ServerKeys
from fedtally.campaign.server import FrequencyServer
from fedtally.campaign.transports.pace import Ending
from fedtally.campaign.transports.sockets import SocketLoop
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.params import Adversary, ClientPolicy
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import ClientId
from fedtally.sketch import Schedule
from fedtally.store import Campaigns, ClientRecord

ROWS, WIDTH = 5, 4096
WRITES = 2  # of an agent's record: the session begins, and the round is taken part in
DOMAIN = IntegerRange(1, 100_000)
KEY = SigningKey(Secret(bytes(range(32))))
START = "import sys; from fedtally.cli import main; sys.exit(main())"


def plan_of(clients: int, adversary: str, allow_list: AllowList | None = None) -> Plan:
    """Return a plan of one round of one session, without privacy."""
    parameters = propose(
        clients,
        length=ROWS * WIDTH,
        bits=16,
        corrupt=max(1, clients // 20),
        max_dropout=0.1,
        adversary=adversary,
    )
    listed = None if allow_list is None else allow_list.digest
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule=Schedule.parse("shared"),
        num_rounds=1,
        num_clients=clients,
        max_round_clients=clients,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        secure_sum=SecAggConfig(parameters=parameters, server_key=KEY.public, allow_list=listed),
    )


def bare(plan: Plan, clients: int) -> float:
    """Return the CPU seconds of a round of the state machines alone, clients and server."""
    now, start = int(time.time()), time.process_time()
    people: list[Client] = [
        FrequencyClient(plan, DOMAIN, [1 + number]).join(
            0,
            ClientPolicy(adversary=Adversary.SEMI_HONEST, min_honest=2),
            journal=MemoryJournal(),
            random=secrets.token_bytes,
        )
        for number in range(clients)
    ]
    run = CohortRun.begin(
        FrequencyServer(plan),
        0,
        range(clients),
        signing_key=KEY,
        random=secrets.token_bytes,
        now=now,
    )

    def ask(client: ClientId, frame: bytes) -> bytes | None:
        return people[int(client)].receive(frame, now)

    drive(run, ask, now)
    return time.process_time() - start


def engine_of(plan: Plan, folder: Path, allow_list: AllowList | None = None) -> SocketLoop:
    """Return the engine of a campaign whose agents' sockets are in a folder."""
    store = Campaigns.open(folder / "campaign.db", create=True).claim(
        plan, mark=folder / "mark", clock=lambda: int(time.time()), owner="benchmark"
    )
    driver = Driver(plan, store, ServerKeys(KEY, allow_list), random=secrets.token_bytes)
    return SocketLoop(driver, folder / "sockets", clock=time.time, patience=60.0, wait=60.0)


def guarded(plan: Plan, clients: int) -> float:
    """Return the CPU seconds of a round with agents, all in this process, on Unix sockets."""

    async def run(folder: Path) -> float:
        policy = AgentPolicy(
            sums=ClientPolicy(adversary=Adversary.SEMI_HONEST, min_honest=2), cap=None
        )
        campaigns = {bytes.fromhex(plan.fingerprint): Campaign(plan)}
        agents = [
            Agent(
                policy,
                Items(lambda number=number: [1 + number]),  # type: ignore[misc]
                campaigns,
                ClientRecord.open(folder / f"{number}.db", create=True, mark=folder / f"{number}"),
                identity=None,
                random=secrets.token_bytes,
                now=time.time(),
                once="benchmark",
            )
            for number in range(clients)
        ]
        async with AsyncExitStack() as stack:
            for number, agent in enumerate(agents):
                served = await serve(agent, folder / "sockets" / f"c{number}.sock")
                stack.push_async_callback(served.stop)
            engine, start = engine_of(plan, folder), time.process_time()
            assert await engine.run() is Ending.COMPLETE
            return time.process_time() - start

    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "sockets").mkdir(mode=0o750)
        return asyncio.run(run(Path(place)))


def of_processes(adversary: str, clients: int) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds, of a round in which each agent is a process.

    The start of the processes does not count.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "sockets").mkdir(mode=0o750)
        agents = [folder / f"agent{number}" for number in range(clients)]
        listed = AllowList(sorted(create(agent, secrets.token_bytes) for agent in agents))
        allow_list = listed if adversary == "active" else None
        plan = plan_of(clients, adversary, allow_list)
        accepted = Campaign(plan, allow_list, until=date.max)
        running = []
        for number, agent in enumerate(agents):
            (agent / "items.txt").write_text(f"{1 + number}\n")
            (agent / "agent.toml").write_text(
                f'socket = "{folder}/sockets/c{number}.sock"\n'
                '[items]\nfile = "items.txt"\nonce = "benchmark"\n'
                f'[policy]\nepsilon = "none"\nadversary = "{adversary}"\nmin_honest = 2\n'
            )
            AcceptedCampaigns(agent / "campaigns", None).add(accepted)
            command = [sys.executable, "-c", START, "agent", "run", "--agent", str(agent)]
            running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        try:
            while len(list((folder / "sockets").glob("*.sock"))) < clients:
                time.sleep(0.1)
            others = [process.pid for process in running]
            engine, begun = engine_of(plan, folder, allow_list), time.perf_counter()
            before = _cpu(others)
            assert asyncio.run(engine.run()) is Ending.COMPLETE
            return time.perf_counter() - begun, _cpu(others) - before
        finally:
            for process in running:
                process.terminate()
                process.wait()


def _cpu(others: list[int]) -> float:
    """Return the CPU seconds so far of this process and of others."""
    return time.process_time() + sum(map(cpu_of, others))


def part(report: Report, quick: bool) -> None:
    """Measure agents: all in one process, and each in a process of its own."""
    clients, turns = (20, 1) if quick else (200, 3)
    plan = plan_of(clients, "semi-honest")
    ours, least = [], []
    for _ in range(turns):
        least.append(bare(plan, clients))
        ours.append(guarded(plan, clients))
    name = f"CPU, a round of {clients} semi-honest agents, V={ROWS * WIDTH:,}: agents / bare"
    report.goals.append(Goal(name, min(ours) / min(least), 2.0, "x", at_most=True))
    report.notes.append(
        f"CPU of a round: {min(ours):.2f} s with agents, records, sockets, driver and store,"
        f" {min(least):.2f} s without;"
        f" the durable writes alone, of {WRITES} an agent: {floor(WRITES, 100, clients):.2f} s"
    )
    number = 4 if quick else 10
    for adversary in ("semi-honest",) if quick else ("semi-honest", "active"):
        seconds, cpu = of_processes(adversary, number)
        report.notes.append(
            f"{number} agents in processes of their own, {adversary}: {seconds:.2f} s a round,"
            f" {cpu:.2f} s of CPU"
        )
