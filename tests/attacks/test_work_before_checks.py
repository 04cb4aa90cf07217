"""Attacks that make an agent work before it has checked who asks, and that read its clock.

Attack 11 replays an Invite, and counts the readings. Attack 15 lets a client hold so much that its
answer comes too late. Who carries bytes is hostile in both, or the server itself.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import Guarded, no_power_is_lost, policy, said, session_of  # noqa: F401
from campaign_world import DOMAIN, START, N, plan_of
from cases import each_case
from secagg_cohort import stream

from fedtally.agent.items import READ_SECONDS, Items, of_file
from fedtally.agent.reading import Aside, Reading
from fedtally.agent.serve import serve
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.transports.pipe import read_frame, write_frame
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.privacy.budget import Cap
from fedtally.secagg.messages import AbortCode, Kind, ServerState
from fedtally.secagg.server import Server

PLAN = plan_of()
PRIVATE = plan_of("active", "distributed", rounds=3)
BOTH = {"without privacy": PLAN, "with privacy": PRIVATE}
HELD = [1, *range(60), "tea", None] * 50
THIEF = SigningKey(Secret(bytes(32)))


@pytest.fixture(autouse=True)
def no_reading_goes_on() -> Iterator[None]:
    """Wait for the threads of a test: they would take the time of the next one."""
    yield
    for thread in threading.enumerate():
        if thread.name == "items":
            thread.join()


class Counted:
    """A reader that counts how often it is called, and how many sessions the record has then."""

    def __init__(self, held: Any = HELD) -> None:
        self.held, self.calls = held, 0
        self.sessions: list[int] = []
        self.agent: Guarded | None = None

    def __call__(self) -> Any:
        self.calls += 1
        if self.agent is not None:
            self.sessions.append(self.agent.sessions)
        return self.held


@pytest.fixture(params=BOTH.values(), ids=BOTH.keys())
def counted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Guarded, Counted, Plan]:
    """Return an agent that may begin three sessions a day, and the reader of its items."""
    plan, read = request.param, Counted()
    cap = None if plan.privacy is None else Cap(100.0, 1e-6)
    demands = policy(plan.secure_sum.parameters.adversary, cap=cap, sessions_a_day=3)
    read.agent = Guarded(tmp_path, plan, policy=demands, read=read)
    return read.agent, read, plan


# ---- attack 11 ----


@each_case(
    ("changed", "expected", "note"),
    [
        ({"not_before": START - 7200, "not_after": START - 3600}, AbortCode.EXPIRED, "is over"),
        ({"not_before": START + 60}, AbortCode.EXPIRED, "has not begun"),
        ({"signing_key": THIEF}, None, "did not sign"),
        ({"fingerprint": bytes(32)}, None, "was not accepted"),
        ({"not_after": START + 10**6}, AbortCode.POLICY, "max_seconds"),
        ({"round": 7}, AbortCode.POLICY, "rounds"),
    ],
)
@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH.keys())
def test_an_invite_that_leads_to_nothing_is_replayed_and_reads_no_item(
    tmp_path: Path, plan: Plan, changed: dict[str, Any], expected: AbortCode | None, note: str
) -> None:
    """Attack 11: an Invite that was recorded, and has expired, as often as one likes."""
    read = Counted()
    one = Guarded(tmp_path / note, plan, read=read)
    invite = session_of(plan, note, **changed).invite
    assert {one.said(invite) for _ in range(30)} == {expected}
    assert note in one.notes
    assert (read.calls, one.sessions) == (0, 0)
    # the same agent reads for an Invite that leads to a session
    assert one.said(session_of(plan, "live").invite) is Kind.ADVERTISE
    assert read.calls == 1


def test_a_live_invite_is_replayed_and_reads_once(counted: tuple[Guarded, Counted, Plan]) -> None:
    """Attack 11, with an Invite that is still good: before and after the agent was restarted."""
    one, read, plan = counted
    invite = session_of(plan).invite
    assert {one.said(invite) for _ in range(30)} == {Kind.ADVERTISE}
    one.restart()
    assert {one.said(invite) for _ in range(30)} == {AbortCode.SESSION_SEEN}
    assert (read.calls, one.sessions) == (1, 1)


def test_the_readings_of_a_day_are_its_sessions(counted: tuple[Guarded, Counted, Plan]) -> None:
    """Attack 11 by a server that signs as many Invites as it likes; also where nothing is held."""
    one, read, plan = counted
    read.held = []
    answers = [one.said(session_of(plan, label).invite) for label in range(20)]
    assert (read.calls, one.sessions) == (3, 3)
    # without privacy a client without an item stays away, and is counted all the same
    alone = Kind.ADVERTISE if plan.privacy is not None else AbortCode.POLICY
    assert answers == [alone] * 3 + [AbortCode.POLICY] * 17
    assert "(sessions_a_day) allows 3" in one.notes


def test_a_session_is_recorded_before_its_items_are_read(
    counted: tuple[Guarded, Counted, Plan],
) -> None:
    """An agent that is killed while it reads has counted the session."""
    one, read, plan = counted
    for label in range(2):
        one.said(session_of(plan, label).invite)
    assert read.sessions == [1, 2]


def test_a_record_that_refuses_keeps_the_items_closed(
    counted: tuple[Guarded, Counted, Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that the client took part in, and a record that cannot be written."""
    one, read, plan = counted

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(one.record, "begin", full)
        assert one.said(session_of(plan, "full").invite) is AbortCode.INTERNAL
    event = None if plan.privacy is None else plan.privacy.event
    one.record.take_part("clients", plan.fingerprint, 0, event, time=START)
    assert one.said(session_of(plan, "spent").invite) is AbortCode.ITEM_SPENT
    assert read.calls == 0


def test_what_everybody_may_know_of_the_place_keeps_a_client_away_before_it_begins(
    counted: tuple[Guarded, Counted, Plan],
) -> None:
    """No file, or one that a peer may see: no epsilon is spent on zeros, and nothing is read."""
    one, read, plan = counted

    def seen() -> None:
        raise InvalidInputError("a peer may read items.csv")

    one.items._check = seen
    assert one.said(session_of(plan).invite) is AbortCode.POLICY
    assert "a peer may read items.csv" in one.notes
    assert (read.calls, one.sessions) == (0, 0)


# ---- attack 15 ----


def team(folder: Path, plan: Plan, items: Items) -> list[Guarded]:
    """Return the agents of a session; the first has the items that are given."""
    return [
        Guarded(folder / str(number), plan, number=number, items=None if number else items)
        for number in range(N)
    ]


def asked_of(server: Server, client: int) -> bytes:
    if server.state is ServerState.ADVERTISE:
        return server.invite
    return next(frame for to, frame in server.outgoing() if to == client)


@contextmanager
def stuck(plan: Plan) -> Iterator[Callable[[], Any]]:
    """Yield a reader that waits until the test is over, as that of a disk that is gone."""
    go_on = threading.Event()

    def read() -> Any:
        assert go_on.wait(60)
        return [7]

    try:
        yield read
    finally:
        go_on.set()


def raised() -> Any:
    raise ValueError("secret")


@each_case(
    "held", [[], [7], [99], [1, 2, 3] * 1000, [2**70, "x", None], raised, "no column", {"a": 1}]
)
def test_with_privacy_the_answers_of_a_session_are_of_one_kind_whatever_is_held(
    tmp_path: Path, held: Any
) -> None:
    """Attack 15: who takes part must not depend on what is held, nor on whether it can be read."""
    read = held if callable(held) else lambda: held
    agents = team(tmp_path / repr(held)[:12].replace("/", ""), PRIVATE, Items(read))
    server, kinds = session_of(PRIVATE), []
    while server.outcome is None:
        for number, one in enumerate(agents):
            answer = one.answer(asked_of(server, number))
            kinds += [said(answer)] if number == 0 else []  # type: ignore[arg-type]
            assert isinstance(answer, bytes)
            server.receive(number, answer)
        server.close_phase(START)
    assert kinds == [Kind.ADVERTISE, Kind.SHARES, Kind.MASKED_INPUT, Kind.CONFIRM, Kind.UNMASK]
    assert "secret" not in agents[0].notes
    is_told = "takes part with zeros" in agents[0].notes
    assert is_told is (held is raised or isinstance(held, str | dict))


def test_items_that_cannot_be_read_leave_the_vector_of_no_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leaves in their place is what a client without an item sends: zeros and its noise."""
    one = Guarded(tmp_path, PRIVATE, read=raised)
    one.agent._random = stream("vector")
    assert one.said(session_of(PRIVATE).invite) is Kind.ADVERTISE
    [live] = one.agent._live.values()
    expected = FrequencyClient(PRIVATE, DOMAIN, []).contribution(0, stream("noise"))
    np.testing.assert_array_equal(live.items.contribution(0, stream("noise")), expected)
    assert expected.any()


@each_case("took", [0.0, 0.3, 0.99])
def test_the_moment_of_the_vector_does_not_tell_how_long_the_items_took(
    tmp_path: Path, took: float
) -> None:
    """Attack 15: the time of a reading told how many rows there are, as often as one likes."""
    now = [0.0]

    def read() -> Any:
        now[0] += took
        return [7]

    def start(work: Any, *, in_steps: bool = False) -> Reading:
        reading = Reading(work, 30.0, in_steps=in_steps, clock=lambda: now[0])
        reading.run()
        return reading

    agents = team(tmp_path / str(took), PRIVATE, Items(read, start=start))
    server = session_of(PRIVATE)
    while server.state is not ServerState.COLLECT:
        for number, one in enumerate(agents):
            answer = one.answer(asked_of(server, number))
            assert isinstance(answer, bytes)
            server.receive(number, answer)
        server.close_phase(START)
    inbox = asked_of(server, 0)
    assert now[0] == took and isinstance(agents[0].answer(inbox), Reading)
    now[0] = 1.0
    assert agents[0].said(inbox) is Kind.MASKED_INPUT
    assert "zeros" not in agents[0].notes


class Line:
    """A connection of the process that carries bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, path: Path) -> Line:
        return cls(*await asyncio.open_unix_connection(path))

    async def ask(self, frame: bytes) -> bytes:
        await write_frame(self._writer, frame)
        return await read_frame(self._reader, 2**20)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


async def run_session(
    plan: Plan, agents: list[Guarded], path: Path, is_stuck: bool = False
) -> dict[Kind, float]:
    """Run a session whose first agent is on a socket; return how long each of its answers took.

    While its answer to the Inbox is made, the same agent is invited to another session, and
    answers there; `is_stuck` says that it must answer before.
    """
    running = await serve(agents[0].agent, path, clock=lambda: START)
    line, other = await Line.to(path), await Line.to(path)
    server, took = session_of(plan), dict[Kind, float]()
    try:
        while server.outcome is None:
            for number, one in enumerate(agents):
                frame, began = asked_of(server, number), time.monotonic()
                if number:
                    answer = one.answer(frame)
                    assert isinstance(answer, bytes)
                else:
                    asking = asyncio.create_task(line.ask(frame))
                    if server.state is ServerState.COLLECT:
                        await asyncio.sleep(0)
                        invite = session_of(plan, "other", round=1).invite
                        answered = said(await other.ask(invite))
                        # items that were read in the meantime have left, on a busy machine
                        left = not is_stuck and answered is AbortCode.ITEM_SPENT
                        assert answered is Kind.ADVERTISE or left
                        took[Kind.INVITE] = time.monotonic() - began
                        assert not (is_stuck and asking.done())
                    answer = await asking
                    took[said(answer)] = time.monotonic() - began  # type: ignore[index]
                server.receive(number, answer)
            server.close_phase(START)
    finally:
        for one_line in (line, other):
            await one_line.close()
        await running.stop()
    assert server.outcome.survivors == N
    return took


def test_a_reading_that_hangs_keeps_no_session_waiting(tmp_path: Path) -> None:
    """Attack 15: seconds = 3, and the items are never there: all others go on, and so does it."""
    with stuck(PRIVATE) as read, tempfile.TemporaryDirectory(prefix="ft-") as name:
        agents = team(tmp_path, PRIVATE, Items(read, start=Aside(3.0)))
        took = asyncio.run(run_session(PRIVATE, agents, Path(name) / "a.sock", is_stuck=True))
    # an answer takes milliseconds; what waited for the items would take the three seconds
    assert all(took[kind] < 2.9 for kind in (Kind.ADVERTISE, Kind.SHARES, Kind.INVITE))
    assert took[Kind.MASKED_INPUT] < 20.0  # the three seconds begin with the Invite
    assert "takes part with zeros" in agents[0].notes
    assert "more than 3 seconds" in agents[0].notes


def test_many_rows_keep_no_session_waiting(tmp_path: Path) -> None:
    """Attack 15 with a real file: the answers wait for a second at most, whatever it holds."""
    (tmp_path / "items.csv").write_text("item\n" + "37\n" * 600_000)
    read = of_file(tmp_path / "items.csv", None, None)
    with tempfile.TemporaryDirectory(prefix="ft-") as name:
        agents = team(tmp_path, PRIVATE, Items(read, start=Aside(1.0)))
        took = asyncio.run(run_session(PRIVATE, agents, Path(name) / "a.sock"))
    # row by row it took a minute, which all answers waited for; now they take milliseconds
    assert all(took[kind] < 5.0 for kind in (Kind.ADVERTISE, Kind.SHARES, Kind.INVITE)), took
    assert took[Kind.MASKED_INPUT] < 20.0


def test_a_hundred_thousand_rows_are_read_in_time(tmp_path: Path) -> None:
    """Attack 15: from 175,000 rows on a client missed every phase; 60 s is that of an operator."""
    (tmp_path / "items.csv").write_text("item\n" + "".join(f"{i % 60}\n" for i in range(175_000)))
    items = Items(of_file(tmp_path / "items.csv", None, None), start=Aside(READ_SECONDS))
    began = time.process_time()
    reading = items.read(PRIVATE)
    reading.wait()
    assert len(reading.client()._ids) == 50
    # 343 us a row were 60 s; reading and encoding take about 2 us
    assert time.process_time() - began < 175_000 * 40e-6


def test_without_privacy_an_invite_waits_for_the_items_and_others_do_not(tmp_path: Path) -> None:
    """A client without an item stays away there, so that its answer has to know the items."""
    go_on = threading.Event()

    def read() -> Any:
        assert go_on.wait(60)
        return []

    one = Guarded(tmp_path, PLAN, items=Items(read, start=Aside(30.0)))
    first, second = session_of(PLAN, 1).invite, session_of(PLAN, 2).invite
    waiting = [one.answer(invite) for invite in (first, second, first)]
    assert all(isinstance(found, Reading) for found in waiting) and one.sessions == 2
    assert waiting[0] is waiting[2]  # one reading a session
    assert one.answer(b"garbage") is None
    go_on.set()
    for found in waiting:
        assert isinstance(found, Reading)
        found.wait()
    assert one.said(first) is AbortCode.POLICY and one.said(first) is AbortCode.POLICY
    assert "there is no item" in one.notes and "joined" not in one.notes


def test_a_session_that_ends_lets_its_items_go(tmp_path: Path) -> None:
    """Neither the items nor a reading of them outlives a session, however it ends."""
    with stuck(PRIVATE) as read:
        one = Guarded(tmp_path, PRIVATE, items=Items(read, start=Aside(30.0)))
        readings = []
        for end in ("close", "expire"):
            assert one.said(session_of(PRIVATE, end).invite) is Kind.ADVERTISE
            [live] = one.agent._live.values()
            readings.append(live.items.reading)
            if end == "close":
                one.agent.close()
            else:
                one.agent.expire(START + 601)
            assert readings[-1] is not None and readings[-1].is_over
