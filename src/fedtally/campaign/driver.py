"""The driver of a campaign: it opens sessions, asks clients, and lands sums. Sans-IO.

The driver itself reads no clock and opens no connection. An engine carries the bytes and tells the
driver the time. To run the protocol, the engine calls four methods of a `Driver`:

- `check_in` when a client says that it is there,
- `next` when a client asks what it should do,
- `receive` when a client sends a frame,
- `tick` at the time that the last `tick` returned, after a client has checked in, and after a frame
  was TAKEN.

An engine that has had no session for a while also calls `check_claim`, which tells whether another
process runs the campaign now.

The driver opens a session as soon as enough clients have checked in. A session runs through
phases: in each one, the driver asks every client of the session for one answer. The driver closes a
phase when every client has answered, or when the phase has run out of time. After the last phase
the driver lands the sum. Several sessions run at once.

**The store is written before a client is asked.** A phase ends in one transaction of the store,
which writes the checkpoint of the next phase. Only then does the first byte of the next phase
leave. The last phase ends in the transaction that lands the sum and erases the checkpoint.
Therefore a process may die at any moment. The next process resumes each session at the beginning of
the phase that the session was in, and the clients send their answers again.

**An error of the store never ends a session.** The error only ends the copy of the session in
memory: the driver drops this copy, sends nothing to the session's clients, and later restores the
session from its last checkpoint. Another process may take the campaign over. The driver of the
first process notices this when the store raises `OvertakenError` in `tick` or `check_claim`. After
that error the driver never sends anything again.

**A process that was away is like one that was restarted.** A process may be suspended, as when the
lid of a laptop is closed, while answers lie unread. The driver notices this when nobody calls
`tick` for a quarter of a phase, and for more than a second. From then on the driver hands out no
frame of a session. The next `tick` asks the store whether another process has taken over, gives
each phase its whole time again, and so ends the silence.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from fedtally.base import validate
from fedtally.campaign.books import Books, charge
from fedtally.campaign.cohort import CohortRun
from fedtally.campaign.farewells import Farewells
from fedtally.campaign.periods import periods_of
from fedtally.campaign.pool import Pool
from fedtally.campaign.release import releases_by_round
from fedtally.campaign.screening import PoisonedError, Screen, Screening
from fedtally.campaign.server import FrequencyServer, RejectedSumError
from fedtally.crypto.keys import SigningKey
from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import (
    EXCHANGES,
    AbortCode,
    Kind,
    LocalProtocolError,
    RemoteProtocolError,
    ServerState,
)
from fedtally.secagg.server import ClientId, Server, check_name
from fedtally.sketch import CountSketch
from fedtally.store import IMPOSSIBLE, SavedSession

# If a session cannot go on without the missing clients, its phase waits for them for at most this
# many times `Deadlines.phase`. A farewell (the last frame of a session) is kept at least as long.
PATIENCE = 4
# The process was away if nobody called `tick` for longer than this part of `Deadlines.phase`, and
# for longer than a second.
AWAY = 1 / 4
REPEAT_SECONDS = 10  # a client that asks again gets the same frame again after this time
# If the clock is put back by at most this many seconds, time stands still for the driver until the
# clock has caught up. Some clocks jump back and forth.
JITTER = 10
# A round with a period that waits for more clients opens its session this many seconds before the
# period ends, at the latest. That is early enough, since engines tick at least once a second.
LAST_SECONDS = 2
RETRY_SECONDS = 3  # after an error of the store, the driver waits this long before it reads again
_ENDED = (ServerState.DONE, ServerState.ABORTED)


class Receipt(StrEnum):
    """The driver's verdict on a frame that a client sent."""

    TAKEN = "taken"  # the frame counts
    AGAIN = "again"  # the same frame came before and counts already
    LATE = "late"  # the frame's phase, or its session, is over
    REFUSED = "refused"  # the frame is not the answer that the driver asked this client for


@dataclass(frozen=True)
class ServerKeys:
    """The signing key of a campaign's server, and the list of the clients that may take part.

    Args:
        signing_key: the key that the plan names.
        allow_list: the registered identities of the clients, if the plan's adversary is `active`;
            else None.
    """

    signing_key: SigningKey = field(repr=False)
    allow_list: AllowList | None = None


@dataclass(frozen=True)
class Deadlines:
    """How long the driver waits, in seconds.

    Args:
        gather: the wait for a full session. The wait begins when a round has `n_min` clients
            present. At the end of the wait a session opens with fewer clients than `n_max`.
        phase: the wait for the answers of a phase. At the end of the wait the phase closes without
            the missing clients. If the session cannot go on without those clients, the phase waits
            up to four times as long.
        session: the longest life of a session. After this time the driver gives the session up,
            whatever its phase.
        presence: the time for which a client counts as present after it has checked in.
        bench: the time for which the driver does not draw a client after its second miss. A miss is
            a frame that the client leaves unanswered, or answers with an Abort.

    Raises:
        InvalidInputError: a value is not a whole number of at least 1, or a session is too short
            for its phases.
    """

    gather: int = 60
    phase: int = 60
    session: int = 3600
    presence: int = 300
    bench: int = 3600

    def __post_init__(self) -> None:
        for name in ("gather", "phase", "session", "presence", "bench"):
            value = validate.integer(1, 2**31, **{f"{name}_seconds": getattr(self, name)})
            object.__setattr__(self, name, value)
        phases = max(len(exchanges) for exchanges in EXCHANGES.values())
        if self.session < phases * self.phase:
            raise InvalidInputError(
                f"a session of {self.session} seconds is too short for {phases} phases of"
                f" {self.phase} seconds each: allow at least {phases * self.phase}"
            )


class DurableBooks(Books, Protocol):
    """The books and the sessions of one campaign: all its state that must survive the process.

    `fedtally.store.CampaignStore` keeps this state in SQLite.

    Each method that writes is one transaction. If another process has claimed the campaign in the
    meantime, the method raises `OvertakenError` and changes nothing.
    """

    def save(self, plan: Plan, session: SavedSession, asked: Collection[ClientId]) -> None:
        """Write a session durably, if the store holds the version just before this one.

        Otherwise another process wrote it, and this method raises `OvertakenError`.

        Args:
            plan: the campaign's plan.
            session: the new version of the session. A session that is not in the store yet has
                version 1.
            asked: the clients that this session asks for their items from now on. The store keeps
                their names for ever, by round.
        """

    def end(self, plan: Plan, session: SavedSession, sketch: CountSketch) -> bool:
        """Write a session that has ended and land its sum as `Books.land` does, in one transaction.

        Return whether the sum counts. If the sum of this session had landed before, return False
        and write nothing, not even the session.
        """

    def sessions(self, plan: Plan) -> list[SavedSession]:
        """Return the sessions that go on, and those that ended but are not forgotten yet."""

    def forget(self, plan: Plan, session: bytes) -> None:
        """Erase a session that has ended. The asked clients and the landed sums stay."""

    def asked(self, plan: Plan) -> dict[int, set[ClientId]]:
        """Return the clients that were asked for their items, by round."""

    def landed_clients(self, plan: Plan) -> dict[int, int]:
        """Return the number of clients in the sums that landed, by round."""

    def impossible(self, plan: Plan) -> dict[int, int]:
        """Return the number of sessions whose sum no clients can have, by round."""

    def check_claim(self, plan: Plan) -> None:
        """Raise `OvertakenError` if another process runs the campaign; change no session."""

    def check_writes(self, plan: Plan) -> None:
        """Raise as a write of a session would, if it would fail; change no session."""

    def check_room(self, plan: Plan) -> None:
        """Raise if the disk is full or the ledger is away; write nothing that lasts."""


@dataclass(frozen=True)
class RunningSession:
    """How far a session is, for the people who run the server.

    Attributes:
        session: the name of the session, 32 bytes.
        round: the number of the session's round.
        phase: the phase of the session, a value of `ServerState`.
        clients: the number of clients that are asked in this phase.
        answered: the number of these clients that have answered.
        closes: two times, Unix seconds. The phase closes at the first one if the session can go on
            without the missing clients, and at the second one in any case.
        not_after: the end of the session, Unix seconds.
    """

    session: bytes
    round: int
    phase: str
    clients: int
    answered: int
    closes: tuple[int, int]
    not_after: int


@dataclass
class _Live:
    """A session in this process, and the driver's notes about its clients.

    All notes but `gone` are about the phase that the session is in.

    Attributes:
        saved: the session as the store has it, except that `_renew` may extend `closes`.
        run: the server's side of the session; None only while `CohortRun.begin` or
            `CohortRun.resume` makes it.
        gone: the clients that aborted in this session. They drop every further frame, so none is
            handed to them. A process that restores the session does not know them, and waits for
            them again.
        frames: the frame for each client that has not answered yet.
        taken: a digest of the answer of each client that has answered.
        handed: the time at which each client last got its frame.
        hurried: the clients that sent a frame of an earlier phase during this phase. The first such
            frame makes `next` return this phase's frame at once. Further such frames do not.
    """

    saved: SavedSession
    run: CohortRun | None = None
    gone: set[ClientId] = field(default_factory=set)
    frames: dict[ClientId, bytes] = field(default_factory=dict)
    taken: dict[ClientId, int] = field(default_factory=dict)
    handed: dict[ClientId, float] = field(default_factory=dict)
    hurried: set[ClientId] = field(default_factory=set)

    @property
    def session(self) -> Server:
        assert self.run is not None
        return self.run.session


class Driver:
    """Run a campaign of secure aggregation between an engine and a store.

    The engine carries bytes. The store keeps all state that must survive this process.

    With privacy, the campaign is charged before its first Invite leaves. A session belongs to one
    round. The session opens for `n_max` clients, or for as many as the round has room for. These
    clients are drawn from those that checked in. After `Deadlines.gather` a session opens for fewer
    clients, but at least `n_min`. A round has as many sessions as fit under the plan's
    `max_round_clients`. If a session fails, the sum of the round is that of its other sessions. A
    client is asked for its items at most once in a round, and in as many rounds as the plan's
    privacy allows. Without privacy a client is asked in one round only.

    With a calendar, a session of a round opens only in the period of the round. If also a trusted
    aggregator adds the noise, each release gets its noise as soon as its rounds are closed.

    After a crash, make a new driver with the same store. Use a driver from one thread at a time.

    Args:
        plan: the campaign's plan, with its keys.
        store: the state that survives this process; claimed for this driver alone.
        keys: the server's keys.
        deadlines: how long the driver waits; None: the defaults.
        random: returns as many uniform bytes as it is asked for, from a cryptographic source.
        screen: what happens to cohorts whose sums honest clients cannot have, as for
            `FrequencyServer`.
        is_known: returns whether the sums so far are accurate enough, such as `ending.is_known`. It
            is needed if the plan has a stopping rule. Then rounds open one after the other, and the
            campaign ends once this is True.

    Attributes:
        refusals: the number of refused frames and of clients that aborted, by code. These codes
            tell an operator why clients do not take part.
        unanswered: the number of Invites that clients did not answer, in sessions whose first phase
            is over.
        rejected: the sessions that this driver gave up because their sum can never land: no
            sketches have such a sum, the release of the round is out, or the session could not be
            restored in time. `store.Campaigns.status` lists those of earlier drivers too, with the
            reasons.
        is_overtaken: whether this driver must stay silent for ever, since another process runs the
            campaign, or the campaign was cancelled.

    Raises:
        InvalidInputError: the plan is not summed by `secagg`, or has no keys, or names other keys
            than `keys`; or it ends when its error is known, and there is no `is_known`.
    """

    def __init__(
        self,
        plan: Plan,
        store: DurableBooks,
        keys: ServerKeys,
        deadlines: Deadlines | None = None,
        *,
        random: Callable[[int], bytes],
        screen: Screen | str | None = None,
        is_known: Callable[[Sequence[CountSketch]], bool] | None = None,
    ) -> None:
        agreed = plan.summing.cohorts
        if agreed is None:
            raise InvalidInputError(
                "a driver runs campaigns of secure aggregation: the plan's secure_sum must be"
                " secagg"
            )
        if plan.stopping is not None and is_known is None:
            raise InvalidInputError(
                "the plan ends when its error is known (target.until_known): give `is_known`"
            )
        plan.check_published()
        self._is_known = None if plan.stopping is None else is_known
        # The last verdict of `is_known`, after the numbers of clients by round that it is about.
        self._judged: tuple[dict[int, int], bool] = {}, False
        self._server = FrequencyServer(plan, store, screen=screen)
        self._server.check_keys(keys.signing_key, keys.allow_list)
        self.plan, self._store, self._keys, self._random = plan, store, keys, random
        self._parameters = agreed.parameters
        self._deadlines = Deadlines() if deadlines is None else deadlines
        # Both lists have the order of the exchanges: an index into one is an index into the other.
        self._phases = [step.phase for step in EXCHANGES[self._parameters.adversary]]
        self._replies = [step.reply for step in EXCHANGES[self._parameters.adversary]]
        self._live: dict[bytes, _Live] = {}
        self._farewells = Farewells(REPEAT_SECONDS)
        deadlines = self._deadlines
        self._pool = Pool(
            plan.protection.allows,
            deadlines.presence,
            deadlines.bench,
        )
        # The number of the release that each round belongs to.
        self._releases = releases_by_round(plan)
        self._periods = periods_of(plan, deadlines.session)
        self._num_closed = 0  # the closed rounds whose releases have the aggregator's noise
        # The last answer of `_open_rounds`. None: `_open_rounds` has to compute it.
        self._rooms: dict[int, int] | None = None
        self._rooms_of = range(0)  # the rounds that `_rooms` is about
        # The time since which a round has had enough clients for a session, but not a full one.
        self._gathering: dict[int, float] = {}
        # A client that arrives can make a round gather, or open its session, only once
        # `Pool.num_arrivals`, which only grows, has reached this number. inf: no round waits for
        # clients. A gathering round also opens a session when its time is over: see `_next_time`.
        self._enough = 0.0
        # The time at which to read the store's sessions. None: all of them are in memory. A new
        # driver has none of them, so its first tick reads the store.
        self._retry_at: float | None = -math.inf
        # Before this time a tick has nothing to do, unless something stirred since the last one.
        self._next_at, self._is_stirred = -math.inf, True
        self._ticked_at = -math.inf  # the engine's time at the last tick
        # Seconds. `_next_time` asks for a tick after half of this time: with at least 1 second here
        # the engine need not tick for that more often than twice a second. In a phase of less than
        # 4 seconds this is more than a quarter, and a pause of up to a second goes unnoticed.
        self._away_after = max(1.0, AWAY * self._deadlines.phase)
        # The time, which goes back by more than `JITTER` or not at all.
        self._time = 0.0
        self._drains = self._gives_up = False
        self.unanswered = 0
        self.refusals: Counter[AbortCode] = Counter()
        self.rejected: list[bytes] = []
        self.is_overtaken = False
        self._landed: dict[int, int] = {}  # the number of clients in landed sums, by round
        self._released: frozenset[int] = frozenset()
        self._read_books()

    # ---- what an engine calls ----

    def check_in(self, client: ClientId, now: float, *, has_heard: bool = True) -> bool:
        """Note that a client is present; return whether it has a session, or may be drawn for one.

        If neither holds, because the client is benched, was asked often enough, or the driver
        drains, its presence is not noted.

        Args:
            client: its name in the transport, the same in all calls and all processes.
            now: the time, Unix seconds.
            has_heard: whether the client has handled the frames that `next` returned for it; False
                if something else says that it is there, such as a list of the machines online.
        """
        check_name(client)
        if self.is_overtaken:
            return False
        now = self._note_time(now)
        if has_heard:
            self._farewells.note_heard(client)
        # A driver that drains has no open rounds: then only clients of a session count as present.
        is_there = self._pool.check_in(client, now, () if self._drains else self._open_rounds())
        # A session may have waited for this client.
        self._is_stirred |= self._pool.num_arrivals >= self._enough
        return is_there

    def holds(self, client: ClientId) -> bool:
        """Return whether a client is in a session, as far as this process knows.

        While not all sessions of the store are in memory, any client may be in one of them: then
        this is True for every client.

        Args:
            client: its name in the transport.
        """
        return client in self._pool.session_of or self._retry_at is not None

    def next(self, client: ClientId, now: float, *, handled: bytes | None = None) -> bytes | None:
        """Return the frame that a client should answer now; None: there is nothing to do.

        The first call in a phase returns the phase's frame. Further calls return the same frame
        again, at most every ten seconds. If a frame of the client was LATE, the next call returns
        the phase's frame at once, but only once in each phase. When the session has ended, the
        frame is the farewell, which says how the session ended. The farewell comes again until the
        client checks in after it.

        If the client names the frames that it has handled, frames may be lost on their way. Every
        call then returns at once a frame that the client has not named. The farewell comes again
        until the client names it.

        Args:
            client: its name in the transport, the same in all calls and all processes.
            now: the time, Unix seconds.
            handled: the SHA-256 digest of the last frame that the client handled; empty: it has
                handled none; None: the transport does not tell.
        """
        if self.is_overtaken:
            return None
        now = self._note_time(now)
        # No session has an empty name: a client without a session gets None here.
        live = self._live.get(self._pool.session_of.get(client, b""))
        if live is not None and self._is_away(now):
            return None  # another process may have gone on meanwhile: `tick` asks the store first
        if live is not None and client in live.frames:
            frame = live.frames[client]
            is_known = handled is None or handled == hashlib.sha256(frame).digest()
            # `abs`: if the clock was put back, the frame need not wait for it to catch up.
            if is_known and abs(now - live.handed.get(client, -math.inf)) < REPEAT_SECONDS:
                return None
            live.handed[client] = now
            return frame
        return self._farewells.next(client, now, handled)

    def receive(self, client: ClientId, frame: bytes, now: float) -> Receipt:
        """Take a frame that a client sent; return the driver's verdict on it.

        No bytes of a client raise an exception.

        Args:
            client: its name in the transport, which has authenticated it.
            frame: the bytes that came; any bytes are allowed.
            now: the time, Unix seconds.
        """
        check_name(client)
        if self.is_overtaken:
            return Receipt.LATE
        now = self._note_time(now)
        message = wire.parse(frame)
        if message is None:
            return self._refuse(AbortCode.MALFORMED)
        live = self._live.get(message.session)
        if live is None:
            # The session has ended, or this process has not restored it yet.
            self._farewells.note_late(client, message.session)
            return Receipt.LATE
        if self._pool.session_of.get(client) != message.session:
            return self._refuse(AbortCode.WRONG_STATE)
        receipt = self._take(live, client, message)
        if receipt is Receipt.LATE and client not in live.hurried:
            # The client is connected now, so `next` need not wait before it returns a frame again.
            # After a wrong answer, or a second late one, it waits: the same question at once would
            # get the same answer, as fast as frames travel.
            live.hurried.add(client)
            live.handed.pop(client, None)
        # A phase may close now. Before its first deadline it closes only if nobody is awaited;
        # after that, each frame may be the one that was missing.
        self._is_stirred |= not live.frames or now >= live.saved.closes[0]
        return receipt

    def tick(self, now: float) -> float:
        """Open sessions, close phases and land sums that are due; return the time of the next call.

        The returned time is in Unix seconds; inf if nothing will be due. It is the latest time for
        the next call: earlier calls do no harm. If a session runs and the next call comes much
        later, the driver treats the process as one that was away (see the module). Call `tick` also
        after each check-in, since a session may have waited for this client alone, and after each
        frame that was TAKEN, since a phase may have waited for this frame alone.

        Args:
            now: the time, Unix seconds.

        Raises:
            OvertakenError: another process runs this campaign, or it was cancelled; this driver
                never sends anything again.
            OverspentError: the population has too little left for the campaign. Nobody was invited.
            Exception: an error that the store raised; call again later.
        """
        if self.is_overtaken:
            raise OvertakenError(
                "another process runs this campaign, or it was cancelled: stop this process"
            )
        now = self._note_time(now)
        # Before `_next_at` the process was not away: see `_next_time`.
        if not self._is_stirred and now < self._next_at:
            self._ticked_at = now
            return self._next_at
        is_away = self._is_away(now)
        # If this tick ends with an error, the next tick must not take the shortcut above.
        self._is_stirred = True
        try:
            recovers = self._retry_at is not None and now >= self._retry_at
            if is_away or recovers:
                # This driver must not contradict a later process. After a restart or a pause, the
                # frames of a phase leave without a write to the store. Only a write would raise
                # OvertakenError, so ask the store.
                self._store.check_claim(self.plan)
            if is_away:
                for live in self._live.values():
                    self._renew(live)
            # Only here: if `check_claim` raised, the process still counts as having been away.
            self._ticked_at = now
            if recovers:
                self._recover()
            for live in list(self._live.values()):
                if self._is_due(live):
                    self._close(live)
            for session in self._farewells.ended_before(self._now):
                self._store.forget(self.plan, session)
            self._pool.expire(self._now)
            while self._retry_at is None and not self._drains and self._open_sessions():
                pass  # more clients may be there than one session of each round takes
            self._release_closed()
        except OvertakenError:
            self._fall_silent()
            raise
        except BaseException:
            # A session may have left memory, or be half restored: the store has all of it.
            self._retry_at = now + RETRY_SECONDS
            raise
        self._next_at, self._is_stirred = self._next_time(), False
        return self._next_at

    def check_claim(self) -> None:
        """Check that no other process has taken the campaign over.

        A driver without sessions writes nothing, so its `tick` would not notice another process.

        Raises:
            OvertakenError: another process runs it, or it was cancelled; this driver never sends
                anything again.
            StoreError: the store does not answer.
        """
        with self._silenced():
            self._store.check_claim(self.plan)

    def check_writes(self) -> None:
        """Check that the store takes writes again, after it had an error.

        A `tick` without an error does not show this. Most ticks write nothing, and after an error
        ticks only read until a phase ends.

        Raises:
            OvertakenError: another process runs it, or it was cancelled; this driver never sends
                anything again.
            StoreError: the store takes no writes.
        """
        with self._silenced():
            self._store.check_writes(self.plan)

    def check_room(self) -> None:
        """Check that the disk of the store has room for a write, and that the ledger answers.

        Without a session nothing is written, so nothing else would show a full disk. Unlike
        `check_writes`, this call is not counted in the mark: it does not make a copy of the store
        an old one.

        Raises:
            StoreError: the disk is full, or the ledger is away.
        """
        self._store.check_room(self.plan)

    @contextmanager
    def _silenced(self) -> Iterator[None]:
        """Fall silent for ever if another process has the campaign."""
        try:
            yield
        except OvertakenError:
            self._fall_silent()
            raise

    def _fall_silent(self) -> None:
        self._live.clear()
        self._pool.keep(())
        self._farewells.clear()
        self.is_overtaken = True

    # ---- what an operator asks ----

    def drain(self) -> None:
        """Open no further session. The sessions that run go on to their end."""
        self._drains, self._is_stirred, self._enough = True, True, math.inf

    def give_up_silent(self) -> None:
        """Drain; at the next tick, end the sessions in which no client has answered its Invite.

        Nothing is lost with these sessions, since no client was asked for its items yet.
        """
        self.drain()
        self._gives_up = True

    def running(self) -> list[RunningSession]:
        """Return the sessions that run here now, in the order in which their phases began here."""
        return [
            RunningSession(
                name,
                live.saved.round,
                live.session.state.value,
                len(live.frames) + len(live.taken),
                len(live.taken),
                live.saved.closes,
                live.saved.not_after,
            )
            for name, live in self._live.items()
        ]

    @property
    def num_present(self) -> int:
        """The number of clients that checked in lately, and are in a session or may be drawn."""
        return self._pool.num_present

    @property
    def owes_farewells(self) -> bool:
        """Whether the last frame of an ended session must still be sent to some client."""
        return self._farewells.are_owed

    @property
    def is_idle(self) -> bool:
        """Whether no session runs, and no session of the store waits to be restored."""
        return not self._live and self.is_restored

    @property
    def is_restored(self) -> bool:
        """Whether all sessions of the store are in memory, as after a tick without an error."""
        return self._retry_at is None

    @property
    def is_gathering(self) -> bool:
        """Whether a round has enough clients for a session, and waits for more of them."""
        return bool(self._gathering)

    @property
    def is_complete(self) -> bool:
        """Whether the driver is idle, and no round may have another session, now or later."""
        return self.is_idle and self._next_round() is None

    @property
    def wakes_at(self) -> float | None:
        """The time at which the next round opens, Unix seconds; until then no client is asked.

        None: a session runs, a session may open now, or no round opens any more.
        """
        round = None if self._live or self._retry_at is not None else self._next_round()
        if round is None or (at := self._periods.opens(round)) <= self._time:
            return None
        return at

    @property
    def screening(self) -> Screening:
        """The verdicts of screening on the rounds whose sums were read, such as by `release`."""
        return self._server.screening

    def release(self) -> list[CountSketch]:
        """Return the sums that may leave, as `FrequencyServer.release` does; call it at the end.

        Raises:
            LocalProtocolError: the driver is not idle. Either sessions run: `drain`, and wait until
                `is_idle`. Or the store has not been read yet, or not since its last error: `tick`.
        """
        if not self.is_idle:
            raise LocalProtocolError(
                "sessions run, or the store's sessions are not all in memory: a release now would"
                " lose their sums; drain, and call tick until the driver is idle"
            )
        return self._release()

    def _release(self, num_closed: int | None = None) -> list[CountSketch]:
        # Sums that earlier processes rejected count, too.
        self.screening.rejected = Counter(self._store.impossible(self.plan))
        sums = self._server.release(self._random, num_closed)
        self._read_books()
        return sums

    def _release_closed(self) -> None:
        """If a trusted aggregator adds the noise, add it to releases that the calendar has closed.

        Without a calendar do nothing: then the noise comes with the call of `release`.
        """
        if self.plan.calendar is None or not self.plan.protection.is_secret:
            return
        closed = self._periods.num_closed(self._now)
        # No session runs in a closed round: a round is closed only when its last session is over.
        if closed != self._num_closed:
            self._release(closed)
            self._num_closed = closed

    @property
    def _now(self) -> int:
        """The driver's time in whole seconds."""
        return int(self._time)

    def _note_time(self, now: float) -> float:
        """Note the engine's time; return the driver's, which does not follow small steps back.

        If the driver followed small steps back, a clock that jumps back and forth would shorten the
        driver's waits with each jump. If the clock was put back by more than `JITTER`, the times
        that the driver keeps in memory are moved back with it.
        """
        back = self._time - now
        if 0 < back <= JITTER:
            return self._time
        self._time = now
        if back > 0:
            # The deadlines of a phase stay: they are in the store, and within `not_after`, which
            # the server signed.
            self._pool.put_back(back)
            self._gathering = {round: at - back for round, at in self._gathering.items()}
            self._ticked_at -= back
            if self._retry_at is not None:
                self._retry_at -= back
            self._is_stirred = True
        return now

    def _is_away(self, now: float) -> bool:
        """Return whether a session runs and the last call of `tick` is too long ago.

        Then the process may have been suspended, and answers may lie unread.
        """
        return bool(self._live) and now - self._ticked_at > self._away_after

    # ---- frames ----

    def _take(self, live: _Live, client: ClientId, message: wire.Frame) -> Receipt:
        # The digest only tells a repeated frame from a new one. A client that finds two frames with
        # one digest spoils its own receipt, and nothing else. So Python's `hash` of the length and
        # of both ends is enough; a hash of a whole vector would double the time of this method.
        body = message.body
        digest = hash((message.kind, message.sender, len(body), body[:64], body[-64:]))
        if live.taken.get(client) == digest:
            return Receipt.AGAIN
        session = live.session
        state = session.state
        if state is ServerState.ADVERTISE and message.kind is Kind.ABORT:
            # The session refuses an Abort while it has no roster. The driver has invited the client
            # and need not wait for it any more.
            # A client that has advertised is in the session, which waits for it in the next phase.
            if client in live.taken:
                return self._refuse(AbortCode.WRONG_STATE)
            return self._decline(live, client, message, digest)
        code = session.take(client, message)
        if code is None:
            live.frames.pop(client, None)
            live.taken[client] = digest
            if message.kind is Kind.ABORT:
                # This cannot raise: `session.take` has decoded the body already.
                self._note_abort(client, wire.decode_abort(message.body))
                live.gone.add(client)
            return Receipt.TAKEN
        # An answer to an earlier phase is late, and nobody is to blame.
        if message.kind in self._replies[: self._phases.index(state)]:
            return Receipt.LATE
        return self._refuse(code)

    def _decline(self, live: _Live, client: ClientId, message: wire.Frame, digest: int) -> Receipt:
        """Note that a client declined an Invite by an Abort; return the verdict on the frame."""
        try:
            code = wire.decode_abort(message.body)
        except RemoteProtocolError as error:
            return self._refuse(error.code)
        del live.frames[client]
        live.taken[client] = digest
        self._note_abort(client, code)
        return Receipt.TAKEN

    def _note_abort(self, client: ClientId, code: AbortCode) -> None:
        """Count a client's Abort, which is as bad for its session as no answer."""
        self.refusals[code] += 1
        # A client that refuses its plan would refuse the next session, too, and at once: without
        # the bench, sessions would open and fail as fast as frames travel.
        self._pool.note_miss(client, self._now)

    def _refuse(self, code: AbortCode) -> Receipt:
        self.refusals[code] += 1
        return Receipt.REFUSED

    # ---- sessions ----

    def _journal(self, live: _Live) -> Callable[[bytes], None]:
        """Return the function that writes a session's checkpoints to the store.

        The session calls this function when it enters a phase, before any frame of the phase can
        leave.
        """

        def write(checkpoint: bytes) -> None:
            # `CohortRun.begin` writes the first checkpoint before it returns the run.
            state = ServerState.ADVERTISE if live.run is None else live.session.state
            # In COLLECT each client gets an Inbox, and answers with its items. The same transaction
            # counts this participation, so that no crash can lose the count.
            asked = live.session.awaited if state is ServerState.COLLECT else ()
            saved = replace(
                _next(live.saved),
                phase=state.value,
                checkpoint=checkpoint,
                closes=self._closes(state, live.saved.not_after),
            )
            if state in _ENDED:
                live.saved = self._end(live.session, saved)
            else:
                self._store.save(self.plan, saved, asked)
                live.saved = saved
            self._pool.note_asked(saved.round, asked)
            # `live.frames` still holds the clients that missed the phase that just ended. They
            # count only now: had the store failed above, the phase would be asked again, and a
            # client would be counted twice.
            for client in live.frames:
                self._pool.note_miss(client, self._now)

        return write

    def _end(self, session: Server, saved: SavedSession) -> SavedSession:
        """Write a session that has ended, and land its sum in the same transaction.

        Return the session as it was written. If it has no sum, or the sum cannot land, the session
        is written with the reason instead.
        """
        # Only these clients hear the farewell, which is the same for all of them.
        told = dict(session.outgoing())
        farewell = next(iter(told.values()), b"")
        saved = replace(saved, checkpoint=None, clients=tuple(told), farewell=farewell)
        if session.code is not None:
            saved = replace(saved, why=f"aborted: {session.code.name} ({session.code.value})")
            self._store.save(self.plan, saved, ())
            return saved
        try:
            self._server.land(session, lambda sketch: self._store.end(self.plan, saved, sketch))
        except (RejectedSumError, LocalProtocolError) as error:
            return self._reject(saved, error)
        assert session.outcome is not None
        self._landed[saved.round] = self._landed.get(saved.round, 0) + session.outcome.survivors
        return saved

    def _closes(self, state: ServerState, not_after: int) -> tuple[int, int]:
        """Return the two times at which a phase that begins now closes, Unix seconds.

        Until the first time the phase waits for all clients. Until the second time it waits only if
        the session cannot go on without the missing clients.
        """
        if state in _ENDED:
            return self._now, self._now
        later = len(self._phases) - 1 - self._phases.index(state)
        seconds = self._deadlines.phase
        # Each later phase needs its own seconds before the session's end.
        last = max(self._now, not_after - later * seconds)
        return min(self._now + seconds, last), min(self._now + PATIENCE * seconds, last)

    def _recover(self) -> None:
        """Restore the store's sessions that are not in memory, after a restart or an error."""
        self._retry_at = None  # `tick` sets it again if anything here raises
        # An error may have taken a session out of memory whose clients the pool still holds.
        self._pool.keep(self._live)
        self._read_books()
        problem: Exception | None = None
        for saved in self._store.sessions(self.plan):
            if saved.checkpoint is None:
                if saved.session not in self._farewells:
                    self._bid_farewell(saved)
            elif self._releases[saved.round] in self._released:
                # Nothing can land in the round any more, and no client need be asked for it.
                self._finish(self._reject(_next(saved), "the release of its round is out"))
            elif saved.session not in self._live:
                try:
                    self._resume(saved)
                except InvalidInputError as error:
                    # This error concerns one session, so the others go on. Every other error
                    # concerns the whole store, and leaves this method.
                    # A session that cannot be read is given up when its time is over. A session
                    # with another problem is kept: its sum may land when the problem is mended, as
                    # when the ledger was the wrong one.
                    if isinstance(error, UnreadableFileError) and self._now > saved.not_after:
                        self._finish(self._reject(_next(saved), error))
                    else:
                        problem = error
        if problem is not None:
            raise problem

    def _read_books(self) -> None:
        """Read from the store which clients were asked, and which rounds are full or released."""
        self._pool.read_asked(self._store.asked(self.plan))
        self._rooms = None
        self._landed = self._store.landed_clients(self.plan)
        self._released = frozenset(self._store.released(self.plan))

    def _resume(self, saved: SavedSession) -> None:
        """Restore a session at the beginning of its phase, or land its sum if it has one."""
        assert saved.checkpoint is not None  # only a session that has ended has none
        live = _Live(saved)
        live.run = CohortRun.resume(
            self._server,
            saved.checkpoint,
            saved.clients,
            random=self._random,
            allow_list=self._keys.allow_list,
            journal=self._journal(live),
            journal_lands=True,
        )
        # Earlier versions of the package wrote a checkpoint with the sum, and landed the sum in a
        # later transaction. If the process ended in between, the sum lands here.
        if live.run.done:
            self._finish(self._end(live.session, _next(saved)))
            return
        # The answers of this phase were only in memory, and are lost. So the phase gets its whole
        # time again, in which the clients send them again.
        self._renew(live)
        self._ask(live)
        self._keep(live)

    def _renew(self, live: _Live) -> None:
        """Give the phase of a session its whole time again; answers that have come still count."""
        soft, hard = self._closes(live.session.state, live.saved.not_after)
        before = live.saved.closes
        live.saved = replace(live.saved, closes=(max(soft, before[0]), max(hard, before[1])))

    def _keep(self, live: _Live) -> None:
        """Put a session into memory, so that its clients cannot be drawn for another one."""
        self._live[live.saved.session] = live
        self._pool.begin(live.saved.session, live.saved.clients)
        self._rooms = None

    def _ask(self, live: _Live) -> None:
        """Note the frames of a new phase, which no client has answered yet."""
        assert live.run is not None
        live.frames = {to: frame for to, frame in live.run.outgoing() if to not in live.gone}
        live.taken.clear()
        live.handed.clear()
        live.hurried.clear()

    def _is_due(self, live: _Live) -> bool:
        """Tell whether a phase has nobody to wait for, or no time left."""
        if not live.frames or self._now > live.saved.not_after:
            return True
        if self._gives_up and live.session.state is ServerState.ADVERTISE and not live.taken:
            return True
        soft, hard = live.saved.closes
        # `can_close` takes a pass over all neighbours, so it is called only when its answer counts.
        return self._now >= hard or (self._now >= soft and live.session.can_close().code is None)

    def _close(self, live: _Live) -> None:
        """Close a phase: begin the next one, or land the sum, or abort the session."""
        assert live.run is not None
        # If closing raises, `_recover` restores the session, but only if it is not in memory: so
        # take it out first. Keep its clients: `_end` replaces them by those that get the farewell.
        session, clients = live.saved.session, live.saved.clients
        invited = live.session.state is ServerState.ADVERTISE
        silent = len(live.frames) if invited else 0
        del self._live[session]
        live.run.deadline_passed(self._now)
        self.unanswered += silent
        if live.run.done:
            self._finish(live.saved)
            self._pool.end(session, clients)
        else:
            self._ask(live)
            self._live[session] = live

    def _reject(self, saved: SavedSession, reason: Exception | str) -> SavedSession:
        """Write the end of a session whose sum can never land.

        No sketches have such a sum, the release of the session's round is out, or the session could
        not be restored in time.
        """
        aborted = ServerState.ABORTED.value
        # The store counts impossible sums by this beginning of the reason.
        beginning = IMPOSSIBLE if isinstance(reason, RejectedSumError) else "rejected: "
        saved = replace(saved, phase=aborted, checkpoint=None, why=f"{beginning}{reason}")
        self._store.save(self.plan, saved, ())
        self.rejected.append(saved.session)
        return saved

    def _finish(self, saved: SavedSession) -> None:
        """Give back the room of a session that has ended, and keep its farewell for its clients."""
        self._rooms = None
        self._bid_farewell(saved)

    def _bid_farewell(self, saved: SavedSession) -> None:
        """Keep the farewell of a session that has ended, for its clients that have not heard it.

        The farewell is kept until the session's `not_after`, and at least for `PATIENCE` phases
        from now. The second limit is for a session that ended because `not_after` had passed. A
        session that `_recover` gave up unrestored has no farewell; the store forgets such a session
        after the same time.
        """
        clients = saved.clients if saved.farewell else ()
        until = max(saved.not_after, self._now + PATIENCE * self._deadlines.phase)
        self._farewells.bid(saved.session, saved.farewell or b"", clients, until)

    # ---- who takes part ----

    def _open_rounds(self) -> dict[int, int]:
        """Return the rounds that may have another session, each with its room for clients.

        The emptiest round comes first, so that rounds fill evenly. A session that runs takes the
        room of all its clients, since any of them may end up in its sum.
        """
        rounds = self._one_by_one(self._periods.open_at(self._time))
        if self._rooms is not None and rounds == self._rooms_of:
            return self._rooms
        room = {round: self._room(round) for round in rounds}
        for live in self._live.values():
            if live.saved.round in room:
                room[live.saved.round] -= len(live.saved.clients)
        emptiest = sorted(room.items(), key=lambda one: (-one[1], one[0]))
        self._rooms_of = rounds
        self._rooms = {round: left for round, left in emptiest if left >= self._parameters.n_min}
        return self._rooms

    def _one_by_one(self, rounds: range) -> range:
        """Return the given rounds; under a plan with a stopping rule, only the first with room.

        Then there is at most one round, and none if `has_enough`.
        """
        if self._is_known is None:
            return rounds
        if self.has_enough():
            return range(0)
        first = next(self._with_room(rounds), rounds.stop)
        return range(first, min(first + 1, rounds.stop))

    def has_enough(self) -> bool:
        """Return whether the stopping rule of the plan ends the campaign now.

        False without a stopping rule; while a session runs or must be restored; while a round whose
        sum landed may have another session; and after the last round, which ends the campaign
        anyway.
        """
        if self._is_known is None or self._live or self._retry_at is not None:
            return False
        if self.plan.num_rounds - 1 in self._landed:
            return False  # the last round has a sum: this is no early end, even if rounds lack sums
        if any(self._landed.get(r, 0) for r in self._with_room(self._periods.left_at(self._time))):
            return False  # the round may have another session: it is judged when it is whole
        if self._judged[0] != self._landed:
            self._judged = dict(self._landed), self._knows(self._is_known)
        return self._judged[1]

    def _knows(self, is_known: Callable[[Sequence[CountSketch]], bool]) -> bool:
        """Return what `is_known` says of the sums that may be seen now; False if there are none."""
        try:
            return is_known(self._server.so_far())
        except PoisonedError:  # screening refused all cohorts so far; later cohorts may be good
            return False

    def _room(self, round: int) -> int:
        """Return the number of clients that the sum of a round may still get.

        Clients of running sessions are not subtracted.
        """
        if self._releases[round] in self._released:
            return 0
        return self.plan.max_round_clients - self._landed.get(round, 0)

    def _next_round(self) -> int | None:
        """Return the first round that may have another session, now or later; None: there is none.

        Call it only while no session runs, since the clients of running sessions do not count here.
        """
        if self.has_enough():
            return None
        return next(self._with_room(self._periods.left_at(self._time)), None)

    def _with_room(self, rounds: range) -> Iterator[int]:
        """Yield the given rounds that have room for another session; running ones do not count."""
        least = self._parameters.n_min
        return (round for round in rounds if self._room(round) >= least)

    def _open_sessions(self) -> bool:
        """Open a session for each round that has `n_max` clients, or as many as it has room for.

        After `Deadlines.gather`, `n_min` clients are enough. Return whether a session was opened.
        """
        before, self._gathering = self._gathering, {}
        has_opened, missing = False, math.inf
        for round, room in self._open_rounds().items():
            size = min(self._parameters.n_max, room)
            ready = self._pool.count(round)
            if ready < self._parameters.n_min:
                missing = min(missing, self._parameters.n_min - ready)
                continue
            began = before.get(round, self._now)
            if ready < size and self._now < self._gathers_until(round, began):
                self._gathering[round] = began
                missing = min(missing, size - ready)
                continue
            self._open(round, self._draw(self._pool.ready(round), size))
            has_opened = True
        self._enough = self._pool.num_arrivals + missing
        return has_opened

    def _gathers_until(self, round: int, began: float) -> float:
        """Return the time until which a round waits for a full session, Unix seconds.

        It is before the end of the round's period, since a session must open in the period.

        Args:
            round: the number of the round.
            began: the time since which the round waits, Unix seconds.
        """
        return min(began + self._deadlines.gather, self._periods.closes(round) - LAST_SECONDS)

    def _draw(self, clients: Sequence[ClientId], size: int) -> tuple[ClientId, ...]:
        """Draw `size` of the clients; each set of this size has the same probability."""
        if len(clients) <= size:
            return tuple(clients)
        # Each client gets 16 uniform bytes, and the smallest ones win. With up to 2^20 clients, two
        # of them get the same bytes with a probability below 2^-88.
        drawn = self._random(16 * len(clients))
        keys = {c: drawn[16 * place : 16 * place + 16] for place, c in enumerate(clients)}
        return tuple(sorted(clients, key=keys.__getitem__)[:size])

    def _open(self, round: int, clients: tuple[ClientId, ...]) -> None:
        """Charge the campaign, open a session and note its Invites."""
        if self.plan.protection.is_charged:
            # This reserves the release of the round in the ledger. The campaign's first reservation
            # spends its epsilon, and a repeated one costs nothing. It comes before the first
            # Invite: otherwise clients could spend their items on a sum that nobody may open.
            charge(self._store, self.plan, self._releases[round])
        session, lifetime = self._random(32), self._deadlines.session
        # `_journal` fills in the checkpoint and the deadlines before the first Invite leaves.
        unsaved = SavedSession(
            session, round, clients, checkpoint=None, closes=(0, 0), not_after=self._now + lifetime
        )
        live = _Live(unsaved)
        live.run = CohortRun.begin(
            self._server,
            round,
            clients,
            session=session,
            signing_key=self._keys.signing_key,
            random=self._random,
            now=self._now,
            lifetime=lifetime,
            allow_list=self._keys.allow_list,
            journal=self._journal(live),
            journal_lands=True,
        )
        self._ask(live)
        self._keep(live)

    def _next_time(self) -> float:
        """Return the time at which something is next due, even if no client sends anything."""
        times = [math.inf if self._retry_at is None else self._retry_at]
        for live in self._live.values():
            soft, hard = live.saved.closes
            # `_is_due` wants the first whole second after `not_after`.
            times.append(min(soft if self._now < soft else hard, live.saved.not_after + 1))
            # Half of the time that `_is_away` allows: an engine that is a little late was not away.
            times.append(self._ticked_at + self._away_after / 2)
        if self._retry_at is None and not self._drains:
            times += [self._gathers_until(*one) for one in self._gathering.items()]
        return min(*times, self._farewells.next_end, self._periods.next_change(self._time))


def _next(saved: SavedSession) -> SavedSession:
    """Return a copy of a session with the next version, the only one that the store will accept."""
    return replace(saved, version=saved.version + 1)
