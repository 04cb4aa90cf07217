"""One cohort from Invite to landing: the order that must hold, restarts after every message, and
what leaves."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 to be refused
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from secagg_cohort import NOW, land_done, landed, stream

from fedtally.campaign.books import LedgerBooks, MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import RESULT, CohortRun, carry, drive
from fedtally.campaign.release import folded, release_of
from fedtally.campaign.server import FrequencyServer, RejectedSumError
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.errors import IncompatibleError, InvalidInputError, UnreadableFileError
from fedtally.plan import Plan, Protection, modulus_bits
from fedtally.privacy.budget import AlreadySpentError, OverspentError
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.config import propose as propose_privacy
from fedtally.privacy.mechanism import Noise
from fedtally.secagg import two_server, wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.messages import AbortCode, Kind, LocalProtocolError, ServerState
from fedtally.secagg.packing import lifted, pack, unpack
from fedtally.secagg.params import Adversary, ClientPolicy, num_checksum_entries
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import ClientId, Server
from fedtally.sketch import CountSketch, Schedule
from fedtally.store import Ledger

DOMAIN = IntegerRange(1, 50)
ROWS, WIDTH, N = 3, 16, 8
SERVER_KEY = SigningKey(Secret(stream("server")(32)))
HELPER_KEY = PrivateKey(Secret(stream("helper")(32)))
LEADER_KEY = PrivateKey(Secret(stream("leader key")(32)))
PEOPLE = sorted(
    (SigningKey(Secret(stream(("person", i))(32))) for i in range(N)), key=lambda key: key.public
)
ALLOWED = AllowList(person.public for person in PEOPLE)
POLICY = two_server.BatchPolicy(min_honest=2)
# heard from the unmasking phase on; semi-honest, SURVIVORS, too
OPENS = {Kind.CONFIRMATIONS, Kind.RESULT}


def plan_of(
    adversary: str = "semi-honest", trust: str | None = "distributed", rounds: int = 1
) -> Plan:
    """Return a plan of cohorts of eight; trust None: without privacy."""
    parameters = propose(
        N, length=ROWS * WIDTH, bits=16, corrupt=1, max_dropout=0.13, adversary=adversary
    )
    asked: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-6,
        "rows": ROWS,
        "width": WIDTH,
        "trust": trust,
    }
    if trust == "distributed":
        asked |= {"honest_survivors": parameters.honest_survivors, "most_clients": N}
    active = adversary == "active"
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule="shared",
        num_rounds=rounds,
        num_clients=rounds * N,
        max_round_clients=N,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        secure_sum=SecAggConfig(
            parameters=parameters,
            server_key=SERVER_KEY.public,
            allow_list=ALLOWED.digest if active else None,
        ),
        privacy=None if trust is None else propose_privacy(**asked),
    )


def plain(plan: Plan, who: list[int], round: int = 0) -> CountSketch:
    sketch = CountSketch(plan.spec, round)
    for i in who:
        sketch.add(DOMAIN.encode([1 + i]), num_clients=1)
    return sketch


@dataclass
class Site:
    """A plan, books that outlive its servers, a journal in memory, and eight clients."""

    plan: Plan
    books: Any = field(default_factory=MemoryBooks)
    saved: list[bytes] = field(default_factory=list)
    gone: dict[ServerState, set[int]] = field(default_factory=dict)  # who drops out, and when
    round: int = 0
    label: str = ""

    def __post_init__(self) -> None:
        assert isinstance(self.plan.secure_sum, SecAggConfig)
        self.adversary = self.plan.secure_sum.parameters.adversary
        self.options: dict[str, Any] = {
            "allow_list": ALLOWED if self.adversary is Adversary.ACTIVE else None,
            "journal": self.saved.append,
        }
        self.server = FrequencyServer(self.plan, self.books)
        self.drawn = stream(("site", self.round, self.label))
        self.clients = [
            FrequencyClient(self.plan, DOMAIN, [1 + i]).join(
                self.round,
                ClientPolicy(adversary=self.adversary, min_honest=2),
                journal=MemoryJournal(),
                random=stream(("client", self.round, i)),
                identity=PEOPLE[i] if self.adversary is Adversary.ACTIVE else None,
                allow_list=self.options["allow_list"],
            )
            for i in range(N)
        ]
        # what was sent to clients, and in which state
        self.heard: list[tuple[ServerState, int]] = []
        self.run = CohortRun.begin(
            self.server,
            self.round,
            range(N),
            signing_key=SERVER_KEY,
            random=self.drawn,
            now=NOW,
            **self.options,
        )

    def restart(self) -> None:
        """Let the process die, and another one go on with the same books and the last
        checkpoint."""
        self.server = FrequencyServer(self.plan, self.books)
        self.run = CohortRun.resume(
            self.server, self.saved[-1], range(N), random=self.drawn, **self.options
        )

    def ask(self, i: ClientId, frame: bytes) -> bytes | None:
        state, message = self.run.session.state, wire.parse(frame)
        assert message is not None
        self.heard.append((state, message.kind))
        return (
            None if int(i) in self.gone.get(state, ()) else self.clients[int(i)].receive(frame, NOW)
        )

    def finish(self) -> CohortRun:
        drive(self.run, self.ask, NOW)
        carry(self.run, self.ask)
        return self.run


class NotedBooks(MemoryBooks):
    """Books that note what they are asked, and can refuse."""

    def __init__(self, refuses: bool = False) -> None:
        super().__init__()
        self.refuses, self.asked = refuses, []  # type: ignore[var-annotated]

    def reserve(self, plan: Plan, release: int) -> None:
        self.asked.append(("reserve", release))
        if self.refuses:
            raise OverspentError("nothing is left")
        super().reserve(plan, release)

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        self.asked.append(("land", sketch.round))
        return super().land(plan, session, sketch)

    def release(self, plan: Plan, noised: Any) -> None:
        self.asked.append(("release", *noised))
        super().release(plan, noised)


# ---- a run ----


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("trust", [None, "central", "distributed"])
def test_a_cohort_runs_from_its_invite_to_its_landing(
    adversary: Adversary, trust: str | None
) -> None:
    site = Site(plan_of(adversary, trust), NotedBooks(), gone={ServerState.COLLECT: {5}})
    stages = []
    while not site.run.done:
        stages.append(site.run.stage)
        assert list(site.run.outgoing()) == list(site.run.outgoing())
        carry(site.run, site.ask)
        site.run.deadline_passed(NOW)
    carry(site.run, site.ask)
    assert site.run.stage == RESULT not in stages and len(set(stages)) == len(stages) >= 4
    assert site.run.code is None and site.heard[-1] == (ServerState.DONE, Kind.RESULT)
    assert site.server.has_landed(site.run.session.session)
    assert site.books.asked == [*([("reserve", 0)] if trust else []), ("land", 0)]
    [sketch] = site.server.release(stream("noise"))
    assert sketch.num_clients == N - 1 and sketch.noise == site.plan.noise_mark
    exact = plain(site.plan, [i for i in range(N) if i != 5]).counters
    assert np.array_equal(sketch.counters, exact) is (trust is None)


def test_a_session_that_is_aborted_lands_nothing_and_costs_nothing() -> None:
    site = Site(plan_of(), NotedBooks(), gone={ServerState.COLLECT: {0, 1, 2}})
    run = site.finish()
    assert run.done and run.code is AbortCode.BELOW_MIN_SURVIVORS
    assert site.books.asked == [] and site.server.release(stream("noise")) == []
    with pytest.raises(LocalProtocolError, match="has ended"):
        run.deadline_passed(NOW)


def test_a_run_of_a_session_without_a_plan_hands_over_its_sum() -> None:
    """What a protocol without sketches needs: a raw server, and where its sum goes."""
    done: list[Any] = []
    site = Site(plan_of(trust=None))
    raw = Server(
        site.run.session.terms.parameters,
        session=bytes(32),
        signing_key=SERVER_KEY,
        fingerprint=bytes.fromhex(site.plan.fingerprint),
        round=0,
        not_before=NOW,
        not_after=NOW + 60,
        salt=bytes(32),
        random=stream("raw"),
    )
    site.run = CohortRun(raw, range(N), done.append)
    site.finish()
    assert done == [raw] and raw.outcome is not None
    with pytest.raises(InvalidInputError, match="this session was made elsewhere"):
        site.server.land(raw)


# ---- restarts ----


@pytest.mark.parametrize(
    ("adversary", "trust"), [("semi-honest", "central"), ("active", "distributed")]
)
def test_a_run_that_restarts_after_any_message_lands_the_same_sum_once(
    adversary: str, trust: str
) -> None:
    """A process dies after each message that it was sent, in turn, and after each phase that it
    closed."""
    whole = Site(plan_of(adversary, trust))
    whole.finish()
    [expected] = [sketch.counters.copy() for sketch in landed(whole.server)]
    moments = 0
    while True:
        site, left = Site(whole.plan), moments

        def dies_now() -> bool:
            nonlocal left
            left -= 1
            return left == -1

        while not site.run.done:
            for i, frame in list(site.run.outgoing()):
                answer = site.ask(i, frame)
                site.run.receive(i, answer or b"")
                if dies_now():
                    site.restart()
                    break
            else:
                site.run.deadline_passed(NOW)
                if dies_now():
                    site.restart()
        carry(site.run, site.ask)
        site.restart()  # with its sum, which has landed
        with pytest.raises(
            LocalProtocolError, match="the sum of this session has landed; a second time"
        ):
            site.server.land(site.run.session)
        [sketch] = landed(site.server)
        assert np.array_equal(sketch.counters, expected) and sketch.num_clients == N, moments
        assert all(client.code is None for client in site.clients)
        if left >= 0:
            break  # it would have died after the last
        moments += 1
    assert moments >= 4 * N + 4


def test_a_sum_that_had_not_landed_lands_after_the_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(plan_of())

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FrequencyServer, "land", dies)
    with pytest.raises(KeyboardInterrupt):
        site.finish()
    monkeypatch.undo()
    assert landed(site.server) == []
    site.restart()
    assert site.run.done and [sketch.num_clients for sketch in landed(site.server)] == [N]


def test_a_session_goes_on_in_one_place() -> None:
    """Two servers of one session could close a phase differently."""
    site = Site(plan_of())
    with pytest.raises(InvalidInputError, match="this session goes on here"):
        site.server.restore(site.saved[-1], random=site.drawn)
    site.finish()
    assert site.server.restore(site.saved[-1], random=site.drawn).state is ServerState.DONE
    other = FrequencyServer(site.plan, site.books)
    with pytest.raises(InvalidInputError, match="this session was opened before"):
        CohortRun.begin(
            other, 0, range(N), signing_key=SERVER_KEY, random=stream(("site", 0, "")), now=NOW
        )


# ---- the order: reserve, then open ----


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_no_sum_can_be_opened_before_it_is_reserved(adversary: Adversary, trust: str) -> None:
    """When the books are asked, the session is still before the phase; where they refuse, it is
    closed."""
    site = Site(plan_of(adversary, trust), NotedBooks(refuses=True))
    states: list[ServerState] = []
    reserve = site.books.reserve

    def seen(plan: Plan, release: int) -> None:
        states.append(site.run.session.state)
        reserve(plan, release)

    site.books.reserve = seen
    with pytest.raises(OverspentError, match="nothing is left"):
        site.finish()
    before = ServerState.CONFIRM if adversary is Adversary.ACTIVE else ServerState.COLLECT
    assert states == [before] and site.run.session.state is ServerState.ABORTED
    kinds = {wire.parse(frame).kind for _, frame in site.run.outgoing()}  # type: ignore[union-attr]
    assert kinds == {Kind.ABORT} and site.run.done and site.run.code is AbortCode.INTERNAL
    opens = OPENS if adversary is Adversary.ACTIVE else OPENS | {Kind.SURVIVORS}
    assert not {kind for _, kind in site.heard} & opens
    assert landed(site.server) == []


@pytest.mark.parametrize("state", [ServerState.UNMASK, ServerState.DONE])
def test_a_restart_where_the_sum_can_be_opened_asks_the_books_again(state: ServerState) -> None:
    site = Site(plan_of())
    while site.run.session.state is not state:
        carry(site.run, site.ask)
        site.run.session.close_phase(NOW)  # without landing
    site.books = NotedBooks(refuses=True)
    with pytest.raises(OverspentError, match="nothing is left"):
        site.restart()
    site.books.refuses = False
    site.restart()
    assert site.books.asked[:2] == [("reserve", 0)] * 2
    site.finish()
    site.books.refuses = True
    site.restart()  # it has landed, so it was reserved
    assert site.books.asked[-1] == ("land", 0)


def noise_bound(privacy: PrivacyConfig, counters: int, clients: int) -> int:
    """Return the most that noise adds to a counter of a secure sum of so many clients."""
    added = Protection(privacy, Schedule.parse("shared"), 1, has_secure_sum=True)
    return added.bound(counters, clients)


def two_servers(trust: str | None = "distributed") -> Plan:
    privacy, noise = None, 0
    if trust is not None:
        privacy = propose_privacy(epsilon=8.0, delta=1e-6, rows=ROWS, width=WIDTH, trust=trust)
        noise = noise_bound(privacy, ROWS * WIDTH, N)
    terms = TwoServerConfig(
        length=ROWS * WIDTH,
        bits=modulus_bits(N, 1, noise),
        n_max=N,
        min_batch=4,
        corrupt=1,
        leader_key=LEADER_KEY.public,
        helper_key=HELPER_KEY.public,
        allow_list=ALLOWED.digest,
        noise=noise,
    )
    return replace(plan_of(trust=None), secure_sum=terms, privacy=privacy)


@dataclass
class Pair:
    """Two operators, each with its own books and journal, and eight reports."""

    plan: Plan
    items: list[int] = field(default_factory=lambda: [1 + i for i in range(N)])

    def __post_init__(self) -> None:
        self.books = NotedBooks(), NotedBooks()
        self.journals = two_server.MemoryJournal(), two_server.MemoryJournal()
        self.make()
        for i in range(N):
            client = FrequencyClient(self.plan, DOMAIN, [self.items[i]])
            random = stream(("report", i))
            report = client.report(
                0, POLICY, now=NOW, journal=MemoryJournal(), identity=PEOPLE[i], random=random
            )
            self.leader.receive(report.leader, NOW)
            self.helper.receive(report.helper, NOW)

    def make(self) -> None:
        """Make both sides, also again after a restart: of their journals."""
        self.server = FrequencyServer(self.plan, self.books[0])
        helping = FrequencyServer(self.plan, self.books[1])
        self.leader = self.server.leader(
            0, POLICY, ALLOWED, self.journals[0], LEADER_KEY, random=stream("leader")
        )
        self.helper = helping.helper(
            0, POLICY, ALLOWED, self.journals[1], HELPER_KEY, random=stream("helper")
        )

    def refused(self, which: int, call: Callable[[], object]) -> None:
        self.books[which].refuses = True
        with pytest.raises(OverspentError, match="nothing is left"):
            call()
        self.books[which].refuses = False


@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_two_servers_ask_and_answer_after_each_has_reserved(
    trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(two_servers(trust))
    pair.leader.stop()
    offer = pair.helper.offer()
    with monkeypatch.context() as patch:
        patch.setattr(
            Noise, "draw", lambda *_: pytest.fail("noise was drawn before its release was reserved")
        )
        pair.refused(0, lambda: pair.leader.query(offer))
    assert pair.leader.state is two_server.BatchState.STOPPED
    query = pair.leader.query(offer)
    with monkeypatch.context() as patch:
        patch.setattr(
            Noise, "draw", lambda *_: pytest.fail("noise was drawn before its release was reserved")
        )
        pair.refused(1, lambda: pair.helper.answer(query))
    answer = pair.helper.answer(query)
    pair.refused(0, lambda: pair.leader.resume())
    pair.refused(0, lambda: pair.leader.finish(answer))
    pair.make()  # a restart: what the journals keep is not said before the books are asked
    pair.refused(0, lambda: pair.leader.resume())
    pair.refused(0, lambda: pair.leader.finish(answer))
    pair.refused(1, lambda: pair.helper.answer(query))
    assert pair.leader.resume() == query and pair.helper.answer(query) == answer
    pair.leader.finish(answer)
    pair.server.land_batch(pair.leader)
    assert {asked for asked, *_ in pair.books[1].asked} == {"reserve"}
    pair.make()
    pair.leader.finish(answer)
    with pytest.raises(LocalProtocolError, match="round 0 has landed; a second time"):
        pair.server.land_batch(pair.leader)
    [sketch] = pair.server.release(stream("noise"))
    assert sketch.num_clients == N and sketch.noise == pair.plan.noise_mark


def test_two_servers_without_privacy_reserve_nothing() -> None:
    pair = Pair(two_servers(None))
    pair.leader.stop()
    total = pair.leader.finish(pair.helper.answer(pair.leader.query(pair.helper.offer())))
    assert pair.books[0].asked == pair.books[1].asked == []
    assert np.array_equal(total, plain(pair.plan, list(range(N))).counters.reshape(-1))


# ---- what leaves ----


def test_a_plan_with_privacy_needs_books() -> None:
    with pytest.raises(
        InvalidInputError,
        match=r"before a sum is opened: give .* or MemoryBooks\(\) where nobody is charged",
    ):
        FrequencyServer(plan_of())
    assert FrequencyServer(plan_of(trust=None)).release() == []
    with pytest.raises(InvalidInputError, match="released with noise: give `random`"):
        FrequencyServer(plan_of(), MemoryBooks()).release()


def exact(plan: Plan, rounds: int = 1) -> tuple[FrequencyServer, NotedBooks, list[CountSketch]]:
    """Return a server in which exact sums of eight clients have landed, its books, and the sums."""
    books = NotedBooks()
    server = FrequencyServer(plan, books)
    sums = [plain(plan, list(range(N)), round) for round in range(rounds)]
    for sketch in sums:
        server.land_plain(sketch)
    return server, books, sums


def test_exact_sums_of_central_trust_are_handed_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a server says of them is noised, once; then they are erased, and nothing lands any
    more."""
    plan = replace(plan_of(trust="central", rounds=2), secure_sum=None)
    server, books, sums = exact(plan, 2)
    held = plain(plan, list(range(N)), 0).counters + plain(plan, list(range(N)), 1).counters
    assert not hasattr(server, "sketches")
    drawn: list[Any] = []
    draw = Noise.draw

    def noted(self: Noise, *arguments: Any, **options: Any) -> Any:
        assert books.asked == [("land", 0), ("land", 1), ("reserve", 0)]
        drawn.append(draw(self, *arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(Noise, "draw", noted)
    [sketch] = server.release(stream("noise"))
    assert np.array_equal(sketch.counters.reshape(-1), held.reshape(-1) + drawn[0][:-1])
    assert sketch.noise == plan.noise_mark and books.asked[3:] == [("release", 0)]
    assert not any(one.counters.any() for one in sums) and landed(server) == []
    again = FrequencyServer(plan, books)
    [same] = again.release(stream("other noise"))
    assert same.to_bytes() == sketch.to_bytes() and len(drawn) == 1
    with pytest.raises(LocalProtocolError, match="the release of round 1 is out"):
        again.land_plain(plain(plan, [1], 1))


def test_where_the_books_refuse_nothing_is_noised_and_the_sums_remain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = replace(plan_of(trust="central"), secure_sum=None)
    server, books, [sketch] = exact(plan)
    books.refuses = True
    with monkeypatch.context() as patch:
        patch.setattr(
            Noise, "draw", lambda *_: pytest.fail("noise was drawn before its release was reserved")
        )
        with pytest.raises(OverspentError, match="nothing is left"):
            server.release(stream("noise"))
    assert np.array_equal(sketch.counters, plain(plan, list(range(N))).counters) and landed(
        server
    ) == [sketch]
    books.refuses = False
    assert server.release(stream("noise"))[0].noise == plan.noise_mark


def test_rounds_of_shares_are_released_as_they_land() -> None:
    """Those that are out take no more; the others go on."""
    plan, books = plan_of(rounds=2), NotedBooks()
    first = Site(plan, books)
    first.finish()
    [one] = first.server.release(stream("noise"))
    second = Site(plan, books, round=1)
    second.finish()
    [other] = landed(second.server)
    for _ in range(2):
        found = second.server.release(stream("noise"))
        assert [each.to_bytes() for each in found] == [one.to_bytes(), other.to_bytes()]
    third = Site(plan, books, label="third")
    with pytest.raises(AlreadySpentError, match="release 0 of plan .* was released"):
        third.finish()
    assert books.asked == [
        ("reserve", 0),
        ("land", 0),
        ("reserve", 0),  # again: the ledger may have been put back since
        ("release", 0),
        ("reserve", 1),
        ("land", 1),
        ("reserve", 1),
        ("release", 1),
        ("release",),
        ("reserve", 0),
    ]


def test_a_plain_sum_has_the_noise_that_it_should() -> None:
    for plan, has_noise in (
        (plan_of(), True),
        (plan_of(trust="central"), False),
        (replace(plan_of(), secure_sum=None), False),
        (plan_of(trust=None), False),
    ):
        server, sketch = FrequencyServer(plan, MemoryBooks()), plain(plan, [1, 2])
        sketch.noise, expected = (
            (None, "with noise of") if has_noise else (plan_of().noise_mark, "exact: `release`")
        )
        with pytest.raises(InvalidInputError, match=f"plain sum of this plan must be {expected}"):
            server.land_plain(sketch)
        sketch.noise = plan.noise_mark if has_noise else None
        server.land_plain(sketch)
        with pytest.raises(LocalProtocolError, match="round 0 has landed; a second time"):
            server.land_plain(plain(plan, [1]) if not has_noise else sketch)
        [released] = server.release(stream("noise"))
        assert released.noise == plan.noise_mark and released.num_clients == 2
    with pytest.raises(IncompatibleError, match="seed"):
        FrequencyServer(plan_of(trust=None)).land_plain(
            plain(replace(plan_of(trust=None), seed=bytes([1]) * 32), [1])
        )


# ---- books ----


def test_books_that_promise_a_reservation_have_made_none() -> None:
    """The coroutine of an `async` method would count as the answer of one that has reserved."""

    class Promising(MemoryBooks):
        async def reserve(self, plan: Plan, release: int) -> None:  # type: ignore[override]
            raise AssertionError("nobody waits for it")

    plan = plan_of(trust="central")
    server = FrequencyServer(plan, Promising())
    server.land_plain(plain(plan, [1, 2]))
    with (
        warnings.catch_warnings(action="ignore"),  # the coroutine is never awaited
        pytest.raises(InvalidInputError, match="returned coroutine: a method of books is a plain"),
    ):
        server.release(stream("noise"))


def test_books_count_a_session_once_and_erase_what_they_release() -> None:
    plan, books = plan_of(trust="central", rounds=2), MemoryBooks()
    first, second = plain(plan, [1]), plain(plan, [2])
    assert books.land(plan, b"one", first) and books.has_landed(plan, b"one")
    assert not books.land(plan, b"one", plain(plan, [1])) and books.sums(plan) == [first]
    assert books.land(plan, b"two", second) and first.num_clients == 2
    assert not books.has_landed(plan_of(trust="central"), b"one") and books.sums(plan_of()) == []
    noised = plain(plan, [3])
    with pytest.raises(
        InvalidInputError, match="was not reserved: reserve it, then draw its noise"
    ):
        books.release(plan, {0: noised})
    books.reserve(plan, 0)
    books.release(plan, {0: noised})
    assert (
        books.released(plan) == {0: noised} and books.sums(plan) == [] and not first.counters.any()
    )
    with pytest.raises(AlreadySpentError, match="was released: its sum is not opened again"):
        books.release(plan, {0: noised})
    assert books.has_landed(plan, b"one")
    books.check_pilot(plan, [])


def test_books_of_a_ledger_charge_it_and_keep_what_leaves(tmp_path: Path) -> None:
    """A cohort is charged when it can be opened; another run of the plan gets nothing of it."""
    Ledger.open(tmp_path / "books.db", create=True).grant(
        "everyone", epsilon=9.0, delta=1e-5, time=0
    )
    plan = plan_of()
    assert plan.privacy is not None
    population = plan.privacy.population
    Ledger.open(tmp_path / "books.db").grant(population, epsilon=9.0, delta=1e-5, time=0)

    def books(owner: str, of: str = population) -> LedgerBooks:
        return LedgerBooks(tmp_path / "books.db", of, owner=owner, clock=lambda: NOW)

    with pytest.raises(InvalidInputError, match="grants nothing to population 'nobody'"):
        books("a", "nobody")
    site = Site(plan, books("one run"))
    ledger = Ledger.open(tmp_path / "books.db")
    while site.run.session.state is not ServerState.UNMASK:
        assert ledger.reserved(plan.fingerprint) == []
        carry(site.run, site.ask)
        site.run.deadline_passed(NOW)
    assert ledger.reserved(plan.fingerprint) == [0] and ledger.landings(plan.fingerprint) == []
    site.restart()  # the same run, which may repeat it
    site.finish()
    [sketch] = site.server.release(stream("noise"))
    kept = CountSketch.from_bytes(ledger.sketch(plan.fingerprint, 0))
    assert (
        np.array_equal(kept.counters, sketch.counters)
        and kept.noise == sketch.noise == plan.noise_mark
    )
    other = Site(plan, books("another run"))
    with pytest.raises(AlreadySpentError):
        other.finish()
    assert other.run.session.state is ServerState.ABORTED


def test_books_of_a_ledger_refuse_a_pilot_that_leaves_too_little(tmp_path: Path) -> None:
    plan = plan_of(trust="central")
    assert plan.privacy is not None
    population, event = plan.privacy.population, plan.privacy.event
    Ledger.open(tmp_path / "books.db", create=True).grant(
        population, epsilon=9.0, delta=1e-5, time=0
    )
    books = LedgerBooks(tmp_path / "books.db", population, owner="a run", clock=lambda: NOW)
    books.check_pilot(plan, [])  # the pilot alone would do
    with pytest.raises(OverspentError, match="the pilot and the campaign are both charged"):
        books.check_pilot(plan, [event])
    quiet = propose_privacy(epsilon=0.1, delta=1e-6, rows=ROWS, width=WIDTH)
    books.check_pilot(plan, [quiet.event])


@pytest.mark.parametrize("trust", [None, "central", "distributed"])
def test_what_is_released_is_the_callers_to_merge(trust: str | None) -> None:
    """Neither does a later cohort change it, nor does the caller change what the server says."""
    books = MemoryBooks()
    first = Site(plan_of(trust=trust), books, label="first")
    first.finish()
    [sketch] = first.server.release(stream("noise"))
    if trust is None:
        Site(first.plan, books, label="second").finish()
    assert sketch.num_clients == N
    [before] = [each.to_bytes() for each in first.server.release(stream("noise"))]
    sketch.merge(sketch)
    assert [each.to_bytes() for each in first.server.release(stream("noise"))] == [before]


def test_books_do_not_copy_or_pickle() -> None:
    """Of two that hold one sum each would draw a noise of its own for it."""
    _, books, _ = exact(replace(plan_of(trust="central"), secure_sum=None))
    for each in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInputError, match="two could release one sum with two noises"):
            each(books)


def test_sums_that_land_at_once_are_all_counted() -> None:
    """Several servers share the books of a campaign, each in a thread of its own."""
    plan = replace(plan_of(trust=None), secure_sum=None, width=1 << 19)
    for _ in range(5):
        books, sums = MemoryBooks(), [CountSketch(plan.spec, 0) for _ in range(4)]
        together = Barrier(len(sums))

        def land(name: int, sketch: CountSketch, books: MemoryBooks, together: Barrier) -> None:
            sketch.counters += 1
            sketch.num_clients = 1
            together.wait()
            assert books.land(plan, bytes([name]), sketch)

        threads = [Thread(target=land, args=(*each, books, together)) for each in enumerate(sums)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [total] = books.sums(plan)
        assert total.num_clients == 4 and (total.counters == 4).all()


def test_nothing_lands_in_books_whose_release_is_out() -> None:
    plan, books = plan_of(), MemoryBooks()
    books.reserve(plan, 0)
    noised = plain(plan, [1])
    books.release(plan, {0: noised})
    with pytest.raises(AlreadySpentError, match="was released"):
        books.land(plan, b"late", plain(plan, [2]))
    assert not books.has_landed(plan, b"late") and books.sums(plan) == []


def granted(plan: Plan, folder: Path, *others: str) -> tuple[Ledger, str]:
    """Return a ledger that grants to the plan's population, and to others, and that population."""
    assert plan.privacy is not None
    ledger = Ledger.open(folder / "books.db", create=True)
    for population in (plan.privacy.population, *others):
        ledger.grant(population, epsilon=30.0, delta=1e-5, time=0)
    return ledger, plan.privacy.population


def test_books_of_a_ledger_charge_the_population_that_they_name(tmp_path: Path) -> None:
    plan = plan_of()
    ledger, population = granted(plan, tmp_path, "phones")
    books = LedgerBooks(ledger.name, "phones", owner="a run", clock=lambda: NOW)
    with pytest.raises(InvalidInputError, match="these books charge 'phones'"):
        Site(plan, books).finish()
    assert ledger.spent(population) is ledger.spent("phones") is None


def test_books_under_a_given_fingerprint_are_of_one_plan(tmp_path: Path) -> None:
    """A second plan would be taken for the first, and opened for nothing."""
    plan = plan_of()
    ledger, population = granted(plan, tmp_path)
    books = LedgerBooks(
        ledger.name, population, owner="a run", clock=lambda: NOW, fingerprint=plan.fingerprint
    )
    Site(plan, books).finish()
    second = Site(replace(plan, seed=bytes([1]) * 32), books)
    with pytest.raises(InvalidInputError, match="a second plan would not be charged"):
        second.finish()
    assert second.run.session.outcome is None


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_release_that_fails_half_way_can_be_made_again(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All releases are kept in one transaction: where one cannot be, no noise of any has left."""
    plan = replace(plan_of(trust="central", rounds=4), secure_sum=None, schedule="batched:2")
    ledger, population = granted(plan, tmp_path)
    server = FrequencyServer(
        plan, LedgerBooks(ledger.name, population, owner="a run", clock=lambda: NOW)
    )
    for round in range(4):
        server.land_plain(plain(plan, list(range(N)), round))
    land, left = Ledger._land, 1

    def fails(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        return land(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_land", fails)
        with pytest.raises(error):
            server.release(stream("noise"))
    assert ledger.landings(plan.fingerprint) == []
    found = server.release(stream("noise"))
    assert [sketch.num_clients for sketch in found] == [2 * N, 2 * N]
    assert [ledger.sketch(plan.fingerprint, i) for i in range(2)] == [s.to_bytes() for s in found]


# ---- what breaks off ----


def test_a_sum_that_could_not_land_lands_when_it_is_asked_again() -> None:
    site, calls = Site(plan_of(trust=None)), []
    land = site.books.land

    def fails_once(*arguments: Any) -> bool:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError("the database is locked")
        return bool(land(*arguments))

    site.books.land = fails_once
    with pytest.raises(OSError, match="locked"):
        site.finish()
    assert site.run.done and site.server.release() == []
    site.run.deadline_passed(NOW)
    assert site.server.release()[0].num_clients == N
    with pytest.raises(LocalProtocolError, match="has ended"):
        site.run.deadline_passed(NOW)


def test_a_checkpoint_in_a_phase_that_its_adversary_lacks_is_none() -> None:
    """It would ask what opens the sum, and nobody would have reserved it."""
    site = Site(plan_of(trust="central"), NotedBooks())
    while site.run.session.state is not ServerState.UNMASK:
        carry(site.run, site.ask)
        site.run.deadline_passed(NOW)
    site.run.session.state = ServerState.CONFIRM
    with pytest.raises(UnreadableFileError, match="no such phase"):
        FrequencyServer(site.plan, site.books).restore(
            site.run.session.checkpoint(), random=site.drawn
        )


def test_an_exact_sum_that_is_secret_is_never_refused() -> None:
    """Whether it is would be an answer without noise: a liar who adds one less than the bound
    learns whether anybody else holds what it holds."""
    total = np.zeros(ROWS * WIDTH, np.int64)
    total[:2] = 97, N + 1
    central, exact = (
        FrequencyServer(replace(plan_of(trust=trust), secure_sum=None), MemoryBooks())
        for trust in ("central", None)
    )
    assert central._sketch(0, total, N).counters.ravel()[:2].tolist() == [0, N - 1]  # folded
    with pytest.raises(RejectedSumError, match="97"):
        exact._sketch(0, total, N)
    crowded = np.full(ROWS * WIDTH, N)  # each counter could be, but not all of a row together
    assert (central._sketch(0, crowded, N).counters == N).all()
    with pytest.raises(RejectedSumError):
        exact._sketch(0, crowded, N)


@pytest.mark.parametrize(
    ("signed", "modulus"),
    [(True, m) for m in (4 * N, 4 * N + 1, 64, 257)]
    + [(False, m) for m in (2 * N, 2 * N + 1, 64, 257)],
)
def test_a_change_by_one_stays_one_around_the_modulus(signed: bool, modulus: int) -> None:
    """Noise hides a change by one, and not a leap from the largest number to the least."""
    read = (np.arange(modulus) + modulus // 2) % modulus - modulus // 2
    least = -N if signed else 0
    read = read if signed else lifted(read, least, modulus)
    kept = folded(read, N)
    assert (np.abs(kept - np.roll(kept, 1)) <= 1).all() and np.abs(kept).max() == N
    honest = (read >= least) & (read <= N)
    assert np.count_nonzero(honest) == N - least + 1  # every sum that there may be
    assert (kept[honest] == read[honest]).all()
    unfolded = np.abs(read - np.roll(read, 1)).max()
    assert unfolded >= N - least + N - 1  # so that folding is needed


def test_the_largest_sums_are_folded() -> None:
    ends = np.array([-(2**63), 2**63 - 1, 2**62, 2**61, -(2**61)])
    assert folded(ends, 2**61).tolist() == [0, 0, 0, 2**61, -(2**61)]


@pytest.mark.parametrize(("bits", "changed"), [(5, {}), (16, {"validity": "proofs"})])
@pytest.mark.parametrize("at", ["the largest entry", "half of the modulus"])
def test_a_helper_that_lies_sees_nothing_of_an_exact_sum(
    bits: int, changed: dict[str, Any], at: str
) -> None:
    """It adds to its answer what one more client brings over an edge: nothing may leap there."""
    plan = two_servers("central")
    plan = replace(plan, secure_sum=replace(plan.secure_sum, bits=bits, **changed))
    worlds = [*range(1, N + 1)], [*range(1, N), 1]  # the last client holds 8, or 1
    sums = [summed_of(plan, items) for items in worlds]
    cell = int(np.flatnonzero(sums[1] - sums[0])[0])
    modulus = plan.secure_sum.modulus  # type: ignore[union-attr]
    edge = N if at == "the largest entry" else (modulus - 1) // 2
    lie = edge - min(int(sums[0][cell]), int(sums[1][cell]))
    found = []
    for items in worlds:
        pair = Pair(plan, items)
        pair.leader.stop()
        for frame in pair.helper.checks():
            pair.leader.judge(frame)
        answer = pair.helper.answer(pair.leader.query(pair.helper.offer()))
        pair.leader.finish(add_to(answer, plan, cell, lie))
        pair.server.land_batch(pair.leader)
        [sketch] = pair.books[0].sums(plan)
        found.append(int(sketch.vector[cell]))
    assert abs(found[0] - found[1]) <= 1


def summed_of(plan: Plan, items: list[int]) -> Any:
    sketch = CountSketch(plan.spec, 0)
    for item in items:
        sketch.add(DOMAIN.encode([item]), num_clients=1)
    return sketch.vector.copy()


def add_to(answer: bytes, plan: Plan, cell: int, lie: int) -> bytes:
    """Return an answer with something added to a counter."""
    proof, terms = plan.report_proof, plan.secure_sum
    assert isinstance(terms, TwoServerConfig)
    head, body = answer[:80], answer[80:]
    if proof is not None:
        field = proof.circuit.field
        words = field.decode(body).copy()
        words[cell] = (words[cell] + lie) % field.prime
        return head + field.encode(words)
    entries = unpack(body, terms.length + num_checksum_entries(terms.bits), terms.bits)
    entries[cell] = (int(entries[cell]) + lie) % terms.modulus
    return head + pack(entries, terms.bits)


def test_terms_of_an_exact_sum_leave_room_to_fold_it() -> None:
    plan = two_servers("central")
    assert plan.secure_sum.modulus == 4 * N  # type: ignore[union-attr]
    with pytest.raises(InvalidInputError, match="bits must be more than 5: under central trust"):
        replace(
            plan,
            num_clients=N + 1,
            max_round_clients=N + 1,
            secure_sum=replace(plan.secure_sum, n_max=N + 1),
        )


def test_a_sum_without_its_checkpoint_is_none() -> None:
    """Where the last checkpoint cannot be written, the session has no sum that could land."""
    site = Site(plan_of(trust="central"))

    def fails(checkpoint: bytes) -> None:
        if site.run.session.state is ServerState.DONE:
            raise OSError("the disk is full")
        site.saved.append(checkpoint)

    site.run.session._journal = fails
    with pytest.raises(OSError, match="the disk is full"):
        site.finish()
    assert site.run.code is AbortCode.INTERNAL and site.run.session.outcome is None
    with pytest.raises(LocalProtocolError, match="there is no sum to land"):
        site.server.land(site.run.session)


def test_an_interrupt_before_the_checkpoint_closes_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of a phase may leave without its checkpoint: a restart could say something else."""
    site = Site(plan_of())
    while site.run.session.state is not ServerState.COLLECT:
        carry(site.run, site.ask)
        site.run.deadline_passed(NOW)
    carry(site.run, site.ask)

    def interrupted(_: Server) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Server, "_save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            site.run.deadline_passed(NOW)
    kinds = {wire.parse(frame).kind for _, frame in site.run.outgoing()}  # type: ignore[union-attr]
    assert kinds == {Kind.ABORT}


def test_a_session_that_has_landed_is_not_begun_again_from_an_older_checkpoint() -> None:
    site = Site(plan_of(trust="central"))
    site.finish()
    for checkpoint in site.saved[:-1]:
        site.saved.append(checkpoint)
        with pytest.raises(InvalidInputError, match="has landed, and the checkpoint is of before"):
            site.restart()
        site.saved.pop()
    site.restart()


def test_the_release_of_a_round_is_that_of_its_hashes() -> None:
    central = replace(plan_of(trust="central", rounds=4), schedule="batched:2")
    assert [release_of(central, round) for round in range(4)] == [0, 0, 1, 1]
    assert [release_of(plan_of(rounds=3), round) for round in range(3)] == [0, 1, 2]
    done = FrequencyServer(replace(two_servers(None), num_rounds=1), MemoryBooks())
    assert (
        land_done(done, plain(done.plan, list(range(N))).counters.reshape(-1), N).num_clients == N
    )


def test_releases_that_hide_the_number_of_clients_share_out_a_noised_one() -> None:
    """At least one client a round, and in all what the draws of the releases say."""
    hiding = propose_privacy(epsilon=8.0, delta=1e-6, rows=ROWS, width=WIDTH, relation="add-remove")
    plan = replace(plan_of(trust=None, rounds=2), secure_sum=None, privacy=hiding, schedule="fresh")
    server, _, _ = exact(plan, 2)
    keys = [bytes([i]) * 32 for i in (1, 2)]
    draws = iter(keys)
    found = server.release(lambda _: next(draws))
    noise = sum(int(hiding.noise().draw(Secret(key), ROWS * WIDTH + 1)[-1]) for key in keys)
    total = max(2, 2 * N + noise)
    assert [sketch.num_clients for sketch in found] == [total // 2, total - total // 2]
