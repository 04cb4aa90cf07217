"""The engine of Flower on a grid in memory: it carries frames, whatever nodes and the grid do."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from campaign_world import (
    DEADLINES,
    DOMAIN,
    START,
    STRINGS,
    Crash,
    N,
    World,
    held_text,
    open_plan,
    plan_of,
)
from flower_grid import FakeGrid, Fate, Handler
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from secagg_cohort import stream
from socket_agents import Person

import fedtally
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.flower import client_app, server_app
from fedtally.campaign.transports.flower.exchange import Exchange, Letter, pack, unpack
from fedtally.campaign.transports.flower.launch import RunReport
from fedtally.campaign.transports.flower.server_app import FlowerLoop
from fedtally.campaign.transports.pace import Ending
from fedtally.campaign.transports.pipe import read_frame, write_frame
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.plan import Plan
from fedtally.plan.calendar import Calendar
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind

pytestmark = pytest.mark.flower
FIRST_NODE = 2**63 - 5  # Flower's numbers of nodes are that large


class Federation:
    """A world whose persons are nodes, and the clock that they share.

    `now` is seconds that nobody sets; the clock shows `ahead` more.
    """

    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        self.now, self.ahead = float(world.now), 0.0
        handlers = {FIRST_NODE + each: self.honest(each) for each in range(world.people)}
        self.grid = FakeGrid(handlers, lambda: self.now, **options)
        self.problems: list[str] = []

    def honest(self, number: int) -> Handler:
        def handle(message: Message) -> Message:
            person, frame = self.world.persons[number], unpack(message.content)
            if (parsed := wire.parse(frame)) is not None:
                self.world.note(parsed, number)
            answer = person.answer(frame, int(self.now + self.ahead))
            return Message(pack(answer or b""), reply_to=message)

        return handle

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.world.now = int(self.now + self.ahead)

    def engine(self, wait: float = 300.0) -> FlowerLoop:
        return FlowerLoop(
            self.world.driver,
            self.grid,
            lambda: self.now + self.ahead,
            self.sleep,
            wait,
            self.problems.append,
            lambda: self.now,
        )

    def run(self, **options: Any) -> Ending:
        return self.engine(**options).run()


def kind_of(message: Message) -> Kind:
    frame = wire.parse(unpack(message.content))
    assert frame is not None
    return frame.kind


def only(number: int, fate: Fate, kind: Kind | None = None) -> Callable[[int, Message], Fate]:
    """Give this fate to the messages of one node, of one kind or of all."""

    def choose(node: int, message: Message) -> Fate:
        mine = node == FIRST_NODE + number and kind in (None, kind_of(message))
        return fate if mine else Fate.ANSWERED

    return choose


def check_sums(world: World) -> None:
    rounds = {one.session: one.round for one in world.campaigns().status(world.plan).ended}
    for round, (clients, total) in world.landed().items():
        held = [
            vector
            for session, sent in world.contributed.items()
            for vector in sent.values()
            if rounds.get(session) == round
        ]
        assert len(held) >= clients
        if len(held) == clients:
            assert (total == np.sum(held, axis=0)).all()


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_the_sums_are_those_of_what_the_agents_hold(tmp_path: Path, adversary: str) -> None:
    world = World(tmp_path, plan_of(adversary, rounds=2), people=2 * N)
    federation = Federation(world)
    assert federation.run() is Ending.COMPLETE
    assert {round: n for round, (n, _) in world.landed().items()} == {0: N, 1: N}
    check_sums(world)
    assert federation.grid.most_in_flight == 1
    # Each phase asks each client once, and one message says how the session ended.
    phases = 5 if adversary == "active" else 4
    assert set(federation.grid.pushed.values()) == {phases + 1}
    assert not federation.problems


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_the_sums_are_those_of_the_local_engine(tmp_path: Path, adversary: str) -> None:
    plan = replace(
        plan_of(adversary, rounds=2, n_min=N - 1), schedule="fresh", seed=stream("seed")(32)
    )
    world = World(tmp_path, plan, people=2 * N)
    # The local engine is told who takes part; on the grid one client is lost before its vector.
    Federation(world, fate=only(3, Fate.LOST, Kind.ROSTER)).run(wait=30)
    landed = world.landed()
    rounds = {number: round for number, spent in world.spent.items() for round in spent}
    assert sorted(n for n, _ in landed.values()) == [N - 1, N]
    assert len(rounds) == 2 * N - 1 and 3 not in rounds
    here = fedtally.estimate(
        [1 + number for number in rounds],
        rounds=list(rounds.values()),
        domain=DOMAIN,
        plan=plan,
    )
    assert [sketch.round for sketch in here.sketches] == [0, 1]
    for sketch in here.sketches:
        clients, total = landed[sketch.round]
        assert sketch.num_clients == clients
        assert (sketch.counters.ravel() == total).all()


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_strings_of_which_nobody_has_the_list(tmp_path: Path, adversary: str) -> None:
    """An open domain is a longer vector: the sums are those of the local engine."""
    plan = open_plan(adversary, rounds=2)
    world = World(tmp_path, plan, people=2 * N, domain=STRINGS, hold=held_text)
    assert Federation(world).run() is Ending.COMPLETE
    check_sums(world)
    rounds = {number: round for number, spent in world.spent.items() for round in spent}
    here = fedtally.estimate(
        [text for number in rounds for text in held_text(number)],
        rounds=list(rounds.values()),
        plan=plan,
        allow_rare_names=True,
    )
    landed = world.landed()
    for sketch in here.sketches:
        clients, total = landed[sketch.round]
        assert sketch.num_clients == clients == N
        assert (sketch.vector == total).all()


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_a_node_that_is_lost_in_any_phase_stops_nobody(tmp_path: Path, adversary: str) -> None:
    asked = [Kind.INVITE, Kind.ROSTER, Kind.INBOX, Kind.SURVIVORS]
    for kind in asked + [Kind.CONFIRMATIONS] * (adversary == "active"):
        folder = tmp_path / kind.name
        folder.mkdir()
        world = World(folder, plan_of(adversary, n_min=N - 1))
        federation = Federation(world, fate=only(3, Fate.LOST, kind))
        assert federation.run(wait=30) in (Ending.COMPLETE, Ending.STALLED), kind
        late = kind in (Kind.SURVIVORS, Kind.CONFIRMATIONS)  # its vector is in the sum already
        assert world.landed()[0][0] == (N if late else N - 1), kind
        check_sums(world)


@pytest.mark.parametrize("fate", [Fate.LATE, Fate.FAILED, Fate.DOUBLED])
def test_late_failed_and_doubled_messages_cost_nothing(tmp_path: Path, fate: Fate) -> None:
    world = World(tmp_path, plan_of())
    seen: set[bytes] = set()

    def choose(node: int, message: Message) -> Fate:
        # The first message of each kind meets the fate, at whichever node; LATE is within a phase.
        frame = unpack(message.content)
        if fate is not Fate.DOUBLED and frame[:64] in seen:
            return Fate.ANSWERED
        seen.add(frame[:64])
        return fate

    federation = Federation(world, fate=choose)
    assert federation.run() is Ending.COMPLETE
    assert world.landed()[0][0] == N
    check_sums(world)
    assert federation.grid.most_in_flight == 1


def test_the_farewell_comes_once_however_long_a_trip_takes(tmp_path: Path) -> None:
    # Twelve seconds are more than those after which the driver returns a frame again.
    world = World(tmp_path, plan_of(rounds=2), people=2 * N)
    federation = Federation(world, delay=12.0)
    assert federation.run() is Ending.COMPLETE
    assert set(federation.grid.pushed.values()) == {5}  # four phases and the farewell
    assert not world.driver.owes_farewells


def test_a_farewell_that_flower_failed_to_carry_comes_again(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of(rounds=2), people=N)
    told: list[Kind] = []

    def fail_once(node: int, message: Message) -> Fate:
        if node != FIRST_NODE + 3 or kind_of(message) not in (Kind.RESULT, Kind.ABORT):
            return Fate.ANSWERED
        told.append(kind_of(message))
        return Fate.FAILED if len(told) == 1 else Fate.ANSWERED

    federation = Federation(world, fate=fail_once)
    # There are too few for a second session, so the engine waits, and looks who is online.
    assert federation.run(wait=40) is Ending.STALLED
    assert told == [Kind.RESULT, Kind.RESULT]
    assert set(federation.grid.pushed.values()) == {5, 6}


def test_an_answer_that_comes_after_its_time_is_not_waited_for(tmp_path: Path) -> None:
    # The answer comes after 25 seconds, a phase closes after 10, and patience ends after 40.
    quick = replace(DEADLINES, phase=10)
    world = World(tmp_path, plan_of(n_min=N - 1), deadlines=quick)
    federation = Federation(world, fate=only(3, Fate.LATE, Kind.INBOX))
    begun = federation.now
    assert federation.run(wait=5) in (Ending.COMPLETE, Ending.STALLED)
    assert world.landed()[0][0] == N - 1
    assert federation.now - begun < 60
    check_sums(world)


@pytest.mark.parametrize("set_by", [-3600.0, 3600.0])
def test_a_clock_that_is_set_changes_no_wait_of_the_engine(tmp_path: Path, set_by: float) -> None:
    world = World(tmp_path, plan_of())
    federation = Federation(world)
    handlers, federation.grid.handlers = federation.grid.handlers, {}
    engine, begun = federation.engine(wait=60), federation.now

    def sleep(seconds: float) -> None:
        federation.sleep(seconds)
        if federation.now - begun > 10:
            federation.ahead = set_by
        if federation.now - begun > 20:
            federation.grid.handlers = handlers

    engine.sleep = sleep
    assert engine.run() is Ending.COMPLETE
    assert world.landed()[0][0] == N
    assert federation.now - begun < 60


@pytest.mark.parametrize("call", ["sleep", "push_messages", "pull_messages"])
@pytest.mark.parametrize("seconds", [2 * DEADLINES.phase, 4 * DEADLINES.phase + 10])
def test_a_serverapp_that_was_suspended_reads_what_came_meanwhile(
    tmp_path: Path, call: str, seconds: int
) -> None:
    """It is suspended in each phase, at a call, for longer than the phase waits for anybody.

    After the shorter time the answers are there. After the longer one Flower has given them up, and
    the nodes are asked again.
    """
    world = World(tmp_path, plan_of(n_min=N - 1))
    federation = Federation(world, delay=1.0)
    caller: Any = federation if call == "sleep" else federation.grid
    go_on, seen = getattr(caller, call), set()

    def suspended(*args: Any) -> Any:
        for one in world.driver.running():
            if one.phase not in seen:
                seen.add(one.phase)
                Federation.sleep(federation, seconds)
        return go_on(*args)

    setattr(caller, call, suspended)
    assert federation.run() is Ending.COMPLETE
    assert len(seen) == 4
    assert [clients for clients, _ in world.landed().values()] == [N]
    check_sums(world)
    times = 1 if seconds < 4 * DEADLINES.phase else 2  # a phase waits so long at most
    assert set(federation.grid.pushed.values()) == {4 * times + 1}


@pytest.mark.parametrize("phase", ["advertise", "share", "collect", "unmask"])
def test_a_killed_serverapp_goes_on_in_its_phase(tmp_path: Path, phase: str) -> None:
    world = World(tmp_path, plan_of())
    federation = Federation(world)

    def sleep(seconds: float) -> None:
        if [one.phase for one in world.driver.running()] == [phase]:
            raise Crash
        federation.sleep(seconds)

    engine = federation.engine()
    engine.sleep = sleep
    with pytest.raises(Crash):
        engine.run()
    # Answers of the first run are lost with it: the second run has its own messages.
    again = Federation(world)
    world.driver = world.start()
    assert again.run() is Ending.COMPLETE
    assert world.landed()[0][0] == N
    check_sums(world)
    world.check()


def hostile_answers(honest: Handler) -> dict[str, Handler]:
    """Return ClientApps that a SuperLink could put in place of ours."""
    first: list[bytes] = []

    def replays(message: Message) -> Message:
        first.append(unpack(honest(message).content))
        return Message(pack(first[0]), reply_to=message)

    def answers(content: Callable[[bytes], RecordDict]) -> Handler:
        return lambda message: Message(content(unpack(message.content)), reply_to=message)

    return {
        "garbage": answers(lambda frame: pack(b"\x00garbage")),
        "a large array": answers(lambda frame: pack(bytes(3 << 20))),
        "its own question": answers(pack),
        "another session": answers(lambda frame: pack(frame[:4] + bytes(32) + frame[36:])),
        "nothing": answers(lambda frame: RecordDict()),
        "no bytes": answers(
            lambda frame: RecordDict({"frame": ConfigRecord({"bytes": [1] * 200})})
        ),
        "a text": answers(
            lambda frame: RecordDict({"frame": ConfigRecord({"bytes": "text" * 50})})
        ),
        "no array": answers(lambda frame: RecordDict({"frame": ArrayRecord()})),
        "a metric": answers(lambda frame: RecordDict({"frame": MetricRecord({"bytes": 1})})),
        "its first answer": replays,
    }


def test_a_hostile_clientapp_harms_its_own_node_alone(tmp_path: Path) -> None:
    names = list(hostile_answers(lambda message: message))
    for place, name in enumerate(names):
        folder = tmp_path / str(place)
        folder.mkdir()
        world = World(folder, plan_of(n_min=N - 1))
        federation = Federation(world)
        handlers = dict(federation.grid.handlers)
        node = FIRST_NODE + 3
        handlers[node] = hostile_answers(handlers[node])[name]
        federation.grid.handlers = handlers
        assert federation.run(wait=30) in (Ending.COMPLETE, Ending.STALLED), name
        assert world.landed()[0][0] == N - 1, name
        check_sums(world)


def test_an_answer_that_flower_cannot_read_takes_no_other_with_it(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of(n_min=N - 1))
    federation = Federation(world)
    pull = federation.grid.pull_messages
    handlers = dict(federation.grid.handlers)
    spoilt: set[str] = set()

    def spoil(message: Message) -> Message:
        spoilt.add(message.metadata.message_id)
        return Message(RecordDict(), reply_to=message)

    def strange(names: Iterable[str]) -> list[Message]:
        if spoilt & set(names):
            raise ValueError("of the node's own making")
        return pull(names)

    handlers[FIRST_NODE + 3] = spoil
    federation.grid.handlers = handlers
    federation.grid.pull_messages = strange  # type: ignore[method-assign]
    assert federation.run(wait=30) in (Ending.COMPLETE, Ending.STALLED)
    assert world.landed()[0][0] == N - 1
    silent = [line for line in federation.problems if "did not answer" in line]
    assert set(federation.problems) - set(silent) == {"an answer could not be read: ValueError"}
    assert len(silent) <= 1  # where it was the answer to an invitation
    # told once a message, however often Flower is asked for its answer
    assert len(federation.problems) - len(silent) <= len(spoilt)


def test_a_reply_to_another_message_is_none(tmp_path: Path) -> None:
    now = 100.0
    grid = FakeGrid({1: lambda message: message, 2: lambda message: message}, lambda: now)
    exchange = Exchange(grid, lambda: now)
    exchange.push([Letter(1, b"to 1", 10.0), Letter(2, b"to 2", 10.0)])
    # Flower says to which message a reply belongs; these say that they belong to none.
    assert list(exchange.pull()) == []
    assert exchange.busy == {1, 2}
    now = 111.0
    list(exchange.pull())
    assert exchange.busy == set()


def test_a_message_lives_as_long_as_its_phase() -> None:
    pushed: list[Message] = []

    def answer(message: Message) -> Message:
        pushed.append(message)
        return Message(RecordDict(), reply_to=message)

    exchange = Exchange(FakeGrid({1: answer}, lambda: 100.0), lambda: 100.0)
    exchange.push([Letter(1, b"frame", 30.0)])
    assert [one.metadata.ttl for one in pushed] == [30.0]


def test_frames_travel_whole_whatever_their_size() -> None:
    for size in (0, 1, 1 << 20, (1 << 20) + 1, 3 << 20):
        frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
        content = pack(frame)
        assert unpack(content) == frame
        assert isinstance(content["frame"], ArrayRecord if size > 1 << 20 else ConfigRecord)


def test_records_that_hold_no_bytes_hold_no_frame() -> None:
    for record in (
        ConfigRecord({"bytes": [1] * 200}),
        ConfigRecord({"bytes": "text"}),
        MetricRecord({"bytes": 1}),
        ArrayRecord(),
    ):
        assert unpack(RecordDict({"frame": record})) == b"", record
    assert unpack(RecordDict()) == b""


def test_too_few_nodes_end_the_run_and_nobody_is_asked(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of(), people=N - 1)
    federation = Federation(world)
    assert federation.run(wait=30) is Ending.STALLED
    assert not federation.grid.pushed


def test_each_round_of_a_calendar_opens_in_its_period_alone(tmp_path: Path) -> None:
    """The run sleeps for longer than `wait` between rounds, and does not stall."""
    hour = timedelta(hours=1)
    calendar = Calendar(datetime.fromtimestamp(START, UTC) + hour, hour, 3)
    plan = replace(plan_of(rounds=3), schedule="hybrid", calendar=calendar)
    world = World(tmp_path, plan, people=3 * N)
    federation = Federation(world)
    asked: dict[Kind, list[float]] = {}
    push = federation.grid.push_messages

    def noted(messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        for message in sent:
            asked.setdefault(kind_of(message), []).append(federation.now)
        return push(sent)

    federation.grid.push_messages = noted  # type: ignore[method-assign]
    assert federation.run(wait=30) is Ending.COMPLETE
    assert {round: n for round, (n, _) in world.landed().items()} == {0: N, 1: N, 2: N}
    check_sums(world)
    opened = [datetime.fromtimestamp(now, UTC) for now in asked[Kind.INVITE]]
    assert {calendar.round_at(when) for when in opened} == {0, 1, 2}
    assert len(opened) == 3 * N  # each is asked once


def test_a_run_that_is_stopped_opens_no_other_session(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of(rounds=2), people=N)
    federation = Federation(world)
    engine = federation.engine()

    def sleep(seconds: float) -> None:
        if world.driver.running():
            engine.stop()
        federation.sleep(seconds)

    engine.sleep = sleep
    assert engine.run() is Ending.DRAINED
    assert list(world.landed()) == [0]


def test_a_later_process_silences_the_run(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    federation = Federation(world)
    engine = federation.engine()

    def sleep(seconds: float) -> None:
        if [one.phase for one in world.driver.running()] == ["collect"]:
            world.claim()
        federation.sleep(seconds)

    engine.sleep = sleep
    with pytest.raises(OvertakenError):
        engine.run()
    assert not world.landed()


def test_nodes_that_answer_no_invitation_end_the_run_and_are_told(tmp_path: Path) -> None:
    """Their agents are there, and drop the Invite of a plan that nobody accepted."""
    world = World(tmp_path, plan_of(), people=N)
    federation = Federation(world)
    for person in world.persons:
        person.answer = lambda frame, now: None  # type: ignore[method-assign]
    began = federation.now
    assert federation.run(wait=10) is Ending.STALLED
    assert federation.now - began < DEADLINES.phase
    assert len(federation.problems) == 1 and world.driver.unanswered == N
    assert f"{N} of {N} invited clients did not answer" in federation.problems[0]
    assert world.driver.is_idle


# ---- the ServerApp ----


def campaign_folder(tmp_path: Path, plan: Plan) -> CampaignFolder:
    create_key_files(tmp_path / "server.key", "server", stream("server"))
    plan.save(tmp_path / "plan.toml")
    return CampaignFolder.create(
        tmp_path / "survey",
        tmp_path / "plan.toml",
        server_key=tmp_path / "server.key",
        mark=tmp_path / "mark",
    )


def serve(folder: CampaignFolder, number: int, fate: Any = None) -> RunReport | None:
    """Run the ServerApp under the real clock; return its report."""
    persons = [Person(folder.plan, each) for each in range(number)]

    def honest(each: int) -> Handler:
        def handle(message: Message) -> Message:
            answer = persons[each].answer(unpack(message.content))
            return Message(pack(answer or b""), reply_to=message)

        return handle

    grid = FakeGrid({1 + each: honest(each) for each in range(number)}, time.time)
    if fate is not None:
        grid.fate = fate
    config = {"campaign": str(folder.path), "wait": 3, "take-over": False}
    server_app.main(grid, Context(5, 1, {}, RecordDict(), config))
    return RunReport.load(folder)


def test_the_serverapp_says_how_its_run_ended(tmp_path: Path) -> None:
    folder, before = campaign_folder(tmp_path, plan_of()), signal.getsignal(signal.SIGTERM)
    assert serve(folder, N - 1) == RunReport(5, "stalled", N - 1)
    with folder.lock(1), pytest.raises(InvalidInputError):
        serve(folder, N)
    found = RunReport.load(folder)
    assert found is not None and found.error is not None and "runs" in found.error
    assert serve(folder, N) == RunReport(5, "complete", N)
    assert folder.status().landed == {0: N}
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_drains_the_serverapp(tmp_path: Path) -> None:
    folder = campaign_folder(tmp_path, plan_of(rounds=2))
    before = signal.getsignal(signal.SIGTERM)

    def terminate(node: int, message: Message) -> Fate:
        if node == 1 and kind_of(message) is Kind.ROSTER:
            os.kill(os.getpid(), signal.SIGTERM)
        return Fate.ANSWERED

    report = serve(folder, N, terminate)
    assert report is not None and report.ending == "drained"
    assert folder.status().landed == {0: N}
    assert signal.getsignal(signal.SIGTERM) is before


# ---- the ClientApp ----


@contextmanager
def agent_at(place: Path, handle: Callable[[bytes], bytes | None]) -> Iterator[None]:
    """Let an agent listen, in a thread of its own; None: it takes the frame and says nothing."""
    ready, done = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = handle(await read_frame(reader, 1 << 24))
            if answer is None:
                await reader.read()
            else:
                await write_frame(writer, answer)
        finally:  # also when the loop ends first: no socket is left for the garbage collector
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def listen() -> None:
        async with await asyncio.start_unix_server(serve, place):
            loops.append(asyncio.get_running_loop())
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    assert ready.wait(10)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(done.set)
        thread.join(10)


def ask(agent: Path, frame: bytes, ttl: float = 30.0) -> Message:
    """Return what the ClientApp of a node answers."""
    context = Context(1, 1, {"agent": str(agent)}, RecordDict(), {})
    replies: list[Message] = []
    grid = FakeGrid({1: lambda message: client_app.app(message, context)}, lambda: 0.0)
    exchange = Exchange(grid, lambda: 0.0)
    exchange.push([Letter(1, frame, ttl)])
    replies += grid.pull_messages(["message 0"])
    return replies[0]


def test_the_clientapp_carries_bytes_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "agent.sock"
    with agent_at(place, lambda frame: frame[::-1]):
        for frame in (b"frame", bytes(range(256)) * 10_000):
            assert unpack(ask(place, frame).content) == frame[::-1]


def test_no_agent_and_no_error_of_it_reaches_the_server(tmp_path: Path) -> None:
    begun = time.monotonic()
    place = tmp_path / "agent.sock"
    for bad in (place, tmp_path, tmp_path / ("x" * 200)):
        answer = ask(bad, b"frame")
        assert answer.has_content() and unpack(answer.content) == b"", bad
    assert time.monotonic() - begun < 5
    with agent_at(place, lambda frame: None):
        answer = ask(place, b"frame", ttl=1.0)
        assert answer.has_content() and unpack(answer.content) == b""
    assert time.monotonic() - begun < 10
