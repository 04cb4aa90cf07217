"""Root on the SuperLink, against agents: every message in plaintext, and the server's own key.

`Root` carries all frames of a campaign on a grid in memory, keeps them, and does with them what it
likes. It also has all that one corrupt client holds. What it has learnt is decided by linear
algebra (`secagg_adversaries.learnt`), from all that the honest agents ever said, whoever asked.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from agents import AgentWorld, no_power_is_lost, session_of  # noqa: F401
from campaign_world import ALLOWED, PEOPLE, SERVER_KEY, N, plan_of
from flower_grid import Handler
from flwr.app import Message
from secagg_adversaries import Puppet, Run, Secrets, Session, View, violations
from secagg_adversaries import learnt as all_learnt
from secagg_cohort import stream
from test_flower_fake import FIRST_NODE, Federation

from fedtally.campaign.driver import Driver, ServerKeys
from fedtally.campaign.transports.flower.exchange import pack, unpack
from fedtally.campaign.transports.pace import Ending
from fedtally.crypto.keys import Label
from fedtally.secagg import wire
from fedtally.secagg.messages import TRANSITIONS, ClientState, Confirmations, Kind, ServerState
from fedtally.secagg.params import Adversary
from fedtally.store import Campaigns, Journal, Ledger

pytestmark = pytest.mark.flower
CORRUPT = 0  # the client whose machine is the adversary's too
HONEST = range(1, N)
Tamper = Callable[["Root", int, bytes], Iterator[bytes]]


class Root:
    """Carry every frame to the agents, and keep what was asked and answered.

    Args:
        tamper: yields the frames that an agent gets in place of one that the campaign's server
            sends; the server gets the answer to the last of them.
        seed: of what is drawn.

    Attributes:
        has_struck: whether an attack that happens once has happened.
    """

    def __init__(self, folder: Path, tamper: Tamper, seed: int = 0) -> None:
        self.world = AgentWorld(folder, plan_of("active", "distributed", n_min=N - 1))
        self.tamper = tamper
        self.down: list[tuple[int, bytes]] = []
        self.up: list[tuple[int, bytes]] = []
        self.invites: dict[bytes, bytes] = {}
        self.runs: dict[tuple[bytes, int], Any] = {}
        self.rng, self.has_struck = np.random.default_rng(seed), False
        self.federation = Federation(self.world)
        grid = self.federation.grid
        grid.handlers = {FIRST_NODE + each: self.handler(each) for each in range(N)}

    def handler(self, number: int) -> Handler:
        def handle(message: Message) -> Message:
            frame, answer = unpack(message.content), None
            self.down.append((number, frame))
            for put in self.tamper(self, number, frame):
                answer = self.ask(number, put)
            return Message(pack(answer or b""), reply_to=message)

        return handle

    def ask(self, number: int, frame: bytes) -> bytes | None:
        """Put any frame to an agent; keep and return what it answers."""
        asked, seat = wire.parse(frame), self.world.persons[number]
        if asked is not None and asked.kind is Kind.INVITE:
            self.invites.setdefault(asked.session, frame)
            # A stream for each session, so that the checker knows the true secrets.
            seat.guarded.agent._random = stream(("root", number, asked.session))
        seat.items.session = b"" if asked is None else asked.session
        reply = seat.guarded.answer(frame, int(self.federation.now))
        if reply:
            self.up.append((number, reply))
            self._note(number, asked, wire.parse(reply))
        return reply

    def _note(self, number: int, asked: wire.Frame | None, answer: wire.Frame | None) -> None:
        """Note an answer as `secagg_adversaries` notes those of its own clients."""
        assert asked is not None and answer is not None
        if answer.kind is Kind.ABORT:
            return
        key = asked.session, number
        if key not in self.runs:
            self.runs[key] = self._run(number, asked.session)
        run = self.runs[key]
        if answer.kind is Kind.SHARES and run.view is None:
            roster = wire.decode_full_roster(asked.body, len(ALLOWED))
            members = np.flatnonzero(roster.members).tolist()
            run.view = View(run.session, members, list(roster.adverts), roster.members)
        run.answers[answer.kind].append((asked.body, answer.body))

    def _run(self, number: int, session: bytes) -> Any:
        invite = self.invites[session]
        terms = wire.split_invite(invite[wire.HEADER.size :])[0]
        parameters = wire.decode_terms(terms).parameters
        ctx = wire.context(session, terms)
        run: Any = Run.__new__(Run)
        run.rank = run.item = number
        run.session = Session(0, session, parameters, terms, invite, ctx)
        run.secrets = Secrets(stream(("root", number, session)), ctx)
        run.view, run._dealt, run.answers = None, None, defaultdict(list)
        return run

    # ---- what came out ----

    def seen(self) -> Any:
        """Return all that the adversary has, as the checker of `secagg_adversaries` reads it."""
        vectors: dict[int, Any] = {}
        for session, sent in self.world.contributed.items():
            for number, vector in sent.items():
                if not self.runs[session, number].answers[Kind.MASKED_INPUT]:
                    continue  # it was made, and did not leave
                assert number == CORRUPT or number not in vectors, "a client gave a second vector"
                vectors[number] = vector.ravel()
        puppets: list[Any] = []
        for (_, number), run in self.runs.items():
            if number == CORRUPT:
                puppets.append(Puppet.__new__(Puppet))
                puppets[-1].secrets = run.secrets
        parameters = self.world.plan.secure_sum.parameters
        return SimpleNamespace(
            runs=[run for (_, number), run in self.runs.items() if number != CORRUPT],
            puppets=puppets,
            vectors=vectors,
            parameters=parameters,
            least=parameters.honest_survivors,
        )

    def sums(self) -> list[set[int]]:
        """Return the honest clients of each sum that the adversary knows."""
        return [set(one.coefficients) for one in all_learnt(self.seen())]


def kind_in(frame: bytes) -> Kind:
    message = wire.parse(frame)
    assert message is not None
    return message.kind


def session_in(frame: bytes) -> bytes:
    message = wire.parse(frame)
    assert message is not None
    return message.session


def carry(root: Root, number: int, frame: bytes) -> Iterator[bytes]:
    """Change nothing."""
    yield frame


def garble(root: Root, number: int, frame: bytes) -> Iterator[bytes]:
    """Drop a message, spoil it, double it, or put another one in its place or before it."""
    rng, kind = root.rng, kind_in(frame)
    if rng.random() < 0.85:
        yield frame
        return

    def one_of(kept: list[tuple[int, bytes]]) -> bytes:
        return kept[int(rng.integers(len(kept)))][1] if kept else frame

    match int(rng.integers(6)):
        case 0:  # it is lost
            return
        case 1:  # one bit
            spoilt = bytearray(frame)
            spoilt[int(rng.integers(len(frame)))] ^= 1 << int(rng.integers(8))
            yield bytes(spoilt)
        case 2:  # what a node was told in this phase
            yield one_of([one for one in root.down if kind_in(one[1]) is kind])
        case 3:  # before it, anything that was ever sent
            yield one_of(root.down)
            yield frame
        case 4:
            yield frame
            yield frame
        case _:  # what a node answered
            yield one_of(root.up)


def second_server(root: Root, number: int, frame: bytes) -> Iterator[bytes]:
    """Let another process with the same key, on a copy of the store, open the sum without one.

    The copy is made while vectors are collected. Once the first server asks to open the sum of
    all, the second one opens, with the same agents, a sum without client 2.
    """
    kind, copy = kind_in(frame), root.world.folder / "copy"
    if kind is Kind.INBOX and not copy.exists():
        copy.mkdir()
        for file in root.world.folder.glob("campaign.db*"):
            shutil.copy(file, copy)
        shutil.copy(root.world.folder / "mark", copy)
    if kind is Kind.SURVIVORS and not root.has_struck:
        root.has_struck = True
        _open_without(root, copy, lost=2)
    yield frame


def _open_without(root: Root, copy: Path, lost: int) -> None:
    """Run the campaign of a copied store to its end, as if a client's vector had not come."""
    now, plan = int(root.federation.now), root.world.plan
    store = Campaigns.open(copy / "campaign.db").claim(
        plan,
        mark=copy / "mark",
        clock=lambda: now,
        owner="campaign",
        ledger=Ledger.open(copy / "campaign.db"),
    )
    driver = Driver(
        plan,
        store,
        ServerKeys(SERVER_KEY, ALLOWED),
        root.world.deadlines,
        random=stream("second"),
    )
    driver.tick(now)
    for _ in range(12):
        for number in range(N):
            node = str(FIRST_NODE + number)
            frame = driver.next(node, now)
            if frame is None or (number == lost and kind_in(frame) is Kind.INBOX):
                continue
            if kind_in(frame) is not Kind.RESULT:  # nobody need hear that this session is over
                answer = root.ask(number, frame)
                if answer:
                    driver.receive(node, answer, now)
        for _ in range(4):  # a driver that hears nothing for longer takes itself for suspended
            now += root.world.deadlines.phase // 8
            driver.tick(now)


def greedy(root: Root, number: int, frame: bytes) -> Iterator[bytes]:
    """Once the campaign has its sum, ask each agent for more, with all that was kept."""
    if kind_in(frame) is Kind.RESULT and not root.has_struck:
        root.has_struck = True
        _ask_for_other_sums(root, session_in(frame))
        for _, kept in list(root.down):  # everything again, to everybody
            for other in range(N):
                root.ask(other, kept)
        _open_another_session(root)
    yield frame


def _ask_for_other_sums(root: Root, session: bytes) -> None:
    """Show every agent sums without one client each, with all signatures that there are."""
    roster = next(run.view for (of, _), run in root.runs.items() if of == session)
    for dead in range(1, len(roster.members)):
        alive = np.arange(len(roster.members)) != dead
        what = wire.bitmap_digest(alive)
        signatures = {CORRUPT: PEOPLE[CORRUPT].sign(Label.CONFIRM, roster.ctx2, what)}
        shown = wire.frame(Kind.SURVIVORS, session, wire.SERVER, wire.pack_bits(alive))
        for other in HONEST:
            answer = wire.parse(root.ask(other, shown) or b"")
            if answer is not None and answer.kind is Kind.CONFIRM:
                signatures[other] = answer.body
        signers = np.isin(roster.members, list(signatures))
        parts = [signatures[rank] for rank in sorted(signatures)]
        body = wire.encode_confirmations(Confirmations(signers, parts))
        for other in HONEST:
            root.ask(other, wire.frame(Kind.CONFIRMATIONS, session, wire.SERVER, body))


def _open_another_session(root: Root, keep_from: Collection[int] = ()) -> None:
    """Invite everybody for the same round, as the server that the plan names.

    Args:
        keep_from: the clients that are not asked for their vectors.
    """
    now = int(root.federation.now)
    server = session_of(root.world.plan, "root")
    asked = [(other, server.invite) for other in range(N)]
    while asked:
        for other, question in asked:
            if other in keep_from and kind_in(question) is Kind.INBOX:
                continue
            answer = root.ask(other, question)
            if answer:
                server.receive(other, answer)
        server.close_phase(now)
        over = server.state in (ServerState.DONE, ServerState.ABORTED)
        asked = [] if over else list(server.outgoing())


def three_tales(root: Root, number: int, frame: bytes) -> Iterator[bytes]:
    """Tell each third of the clients that another client is lost."""
    if kind_in(frame) is Kind.SURVIVORS and not root.has_struck:
        root.has_struck = True
        _tell_tales(root, session_in(frame))
    yield frame


def _tell_tales(root: Root, session: bytes) -> None:
    """Show each third its own survivors, and then its own signatures and forged ones."""
    roster = next(run.view for (of, _), run in root.runs.items() if of == session)
    tales = {lost: np.arange(N) != lost for lost in (1, 2, 3)}
    signatures: dict[int, dict[int, bytes]] = {}
    for lost, alive in tales.items():
        what = wire.bitmap_digest(alive)
        signatures[lost] = {other: bytes(64) for other in HONEST if alive[other]}
        signatures[lost][CORRUPT] = PEOPLE[CORRUPT].sign(Label.CONFIRM, roster.ctx2, what)
    for other in HONEST:
        lost = 1 + other % 3  # never the client itself
        bits = wire.pack_bits(tales[lost])
        answer = root.ask(other, wire.frame(Kind.SURVIVORS, session, wire.SERVER, bits))
        assert answer is not None and kind_in(answer) is Kind.CONFIRM
        signatures[lost][other] = answer[wire.HEADER.size :]
    for other in HONEST:
        given = signatures[1 + other % 3]
        signers = np.isin(roster.members, list(given))
        parts = [given[rank] for rank in sorted(given)]
        body = wire.encode_confirmations(Confirmations(signers, parts))
        root.ask(other, wire.frame(Kind.CONFIRMATIONS, session, wire.SERVER, body))


def twin(root: Root, number: int, frame: bytes) -> Iterator[bytes]:
    """While the campaign's session collects, open another one, of other clients, for its round."""
    if kind_in(frame) is Kind.INBOX and not root.has_struck:
        root.has_struck = True
        _open_another_session(root, keep_from=(2,))
    yield frame


def test_whoever_keeps_everything_has_the_one_sum(tmp_path: Path) -> None:
    root = Root(tmp_path, carry)
    assert root.federation.run() is Ending.COMPLETE
    assert root.sums() == [set(HONEST)]
    assert violations(root.seen()) == []


@pytest.mark.parametrize("seed", range(6))
def test_spoiling_messages_opens_no_other_sum(tmp_path: Path, seed: int) -> None:
    root = Root(tmp_path, garble, seed)
    root.federation.run(wait=30)
    assert violations(root.seen()) == []


@pytest.mark.parametrize(
    ("tamper", "lost"),
    [
        (second_server, {2}),  # the second server came first
        (greedy, set()),
        (three_tales, None),  # no third is enough to open a sum
        (twin, {2}),
    ],
)
def test_a_server_that_asks_twice_gets_one_sum(
    tmp_path: Path, tamper: Tamper, lost: set[int] | None
) -> None:
    root = Root(tmp_path, tamper)
    root.federation.run(wait=30)
    assert root.has_struck
    assert violations(root.seen()) == []
    assert root.sums() == ([] if lost is None else [set(HONEST) - lost])


@pytest.mark.parametrize("tamper", [second_server, greedy])
def test_agents_that_answered_two_bitmaps_would_be_seen(
    tmp_path: Path, tamper: Tamper, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The planted error: whatever a client is asked after its vector, it stays where it was.
    table = TRANSITIONS[Adversary.ACTIVE]
    steps = table[ClientState.MASKED] | table[ClientState.CONFIRMED]
    always = {kind: step._replace(after=ClientState.CONFIRMED) for kind, step in steps.items()}
    monkeypatch.setitem(table, ClientState.CONFIRMED, always)
    root = Root(tmp_path, tamper)
    root.federation.run(wait=30)
    found = violations(root.seen())
    assert any("two sums in one roster" in one or "fewer than" in one for one in found), found


def test_agents_that_believed_forged_signatures_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtally.secagg.client.keys.verify", lambda *_: None)
    root = Root(tmp_path, three_tales)
    root.federation.run(wait=30)
    assert root.sums() != []


def test_agents_that_forgot_what_they_gave_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Journal.standing
    monkeypatch.setattr(Journal, "spend", lambda _, session: True)
    monkeypatch.setattr(
        Journal, "standing", lambda one, since: asked(one, since)._replace(refusal=None)
    )
    root = Root(tmp_path, twin)
    root.federation.run(wait=30)
    with pytest.raises(AssertionError, match="a second vector"):
        root.seen()
