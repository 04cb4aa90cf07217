"""The driver of a campaign: who is asked for what, and what is written down first. Sans-IO.

An engine carries bytes. It calls four methods of a `Driver` and nothing else of the protocol:

- `check_in` when a client says that it is there,
- `next` when a client asks what it should do,
- `receive` when a client sends a frame,
- `tick` when time has passed, or a frame was taken.

The driver opens a session as soon as enough clients have checked in, closes a phase when everybody
has answered or its time is up, and lands the sum. Several sessions run at once.

**The order that holds.** A phase ends in one transaction of the store, which writes the checkpoint
of the next phase. Only then does the first byte of the next phase leave. The sum lands in one
transaction that also erases the checkpoint. Therefore a process may die at any moment: the next
one resumes each session at the beginning of the phase that it was in, and the clients send their
answers again.

**An error of the store ends the object in memory, never the session.** The driver forgets the
session, says nothing to its clients, and restores it from its last checkpoint. A process whose
campaign was taken over by another one (`OvertakenError`) says nothing any more.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from fedtally import _validate
from fedtally.campaign.books import Books
from fedtally.campaign.cohort import CohortRun
from fedtally.campaign.release import release_of
from fedtally.campaign.server import FrequencyServer, RejectedSumError
from fedtally.crypto.keys import SigningKey
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import (
    EXCHANGES,
    AbortCode,
    Kind,
    LocalProtocolError,
    RemoteProtocolError,
    ServerState,
)
from fedtally.secagg.server import ClientId, Server
from fedtally.sketch import CountSketch
from fedtally.store import SavedSession

PATIENCE = (
    4  # a phase waits this many times its seconds for the clients that it cannot go on without
)
REPEAT_SECONDS = 10  # a frame is handed out again to a client that asks, but no earlier
RETRY_SECONDS = 10  # after an error of the store
MISSES = 2  # a client that left so many questions unanswered is not drawn for a while
_ENDED = (ServerState.DONE, ServerState.ABORTED)


class Receipt(StrEnum):
    """What became of a frame."""

    TAKEN = "taken"  # it counts
    AGAIN = "again"  # the same frame counts already
    LATE = "late"  # its phase, or its session, is over
    REFUSED = "refused"  # it is not what this client was asked for


@dataclass(frozen=True)
class ServerKeys:
    """What the server of a campaign signs with, and whom it lets take part.

    Args:
        signing_key: the key that the plan names.
        allow_list: the registered identities, in `active`.
    """

    signing_key: SigningKey = field(repr=False)
    allow_list: AllowList | None = None


@dataclass(frozen=True)
class Deadlines:
    """How long the driver waits, in seconds.

    Args:
        gather: from the first client that checked in until a session opens with fewer clients than
            it could have.
        phase: until a phase closes without the clients that have not answered. If the session
            cannot go on without them, it waits up to four times as long.
        session: until a session is given up, whatever its phase.
        presence: for how long a client counts as present after it checked in.
        bench: for how long a client that twice did not answer is not drawn.

    Raises:
        InvalidInputError: a number of seconds is no whole number of at least 1, or a session is too
            short for its phases.
    """

    gather: int = 60
    phase: int = 60
    session: int = 3600
    presence: int = 300
    bench: int = 3600

    def __post_init__(self) -> None:
        for name in ("gather", "phase", "session", "presence", "bench"):
            value = _validate.integer(1, 2**31, **{f"{name}_seconds": getattr(self, name)})
            object.__setattr__(self, name, value)
        phases = max(len(exchanges) for exchanges in EXCHANGES.values())
        if self.session < phases * self.phase:
            raise InvalidInputError(
                f"a session of {self.session} seconds is too short for {phases} phases of"
                f" {self.phase} seconds each: allow at least {phases * self.phase}"
            )


class DurableBooks(Books, Protocol):
    """The books of one campaign, and its sessions: what must survive the process.

    `fedtally.store.CampaignStore` keeps them in SQLite.

    Each method that writes is one transaction. It raises `OvertakenError`, and changes nothing, if
    another process has claimed the campaign since.
    """

    def save(self, plan: Plan, session: SavedSession, asked: Collection[ClientId]) -> None:
        """Write a session durably, if the version before is the one that is there.

        Args:
            plan: of the campaign.
            session: what to write; version 1 is the first.
            asked: the clients that this session asks for their items from now on. They are kept,
                by round, for ever.
        """

    def sessions(self, plan: Plan) -> list[SavedSession]:
        """Return the sessions that go on, and those that ended and may still have to say how."""

    def forget(self, plan: Plan, session: bytes) -> None:
        """Erase a session that has ended. Who was asked, and what landed, stays."""

    def asked(self, plan: Plan) -> dict[int, set[ClientId]]:
        """Return who was asked for items, by round."""

    def landed_clients(self, plan: Plan) -> dict[int, int]:
        """Return the number of clients in the sums that landed, by round."""


@dataclass
class _Live:
    """A session in this process, and what the driver notes about its clients."""

    saved: SavedSession
    run: CohortRun | None = None  # None only while `CohortRun.begin` makes it
    frames: dict[ClientId, bytes] = field(default_factory=dict)  # what this phase asks of whom
    awaited: set[ClientId] = field(default_factory=set)  # those who have not answered it
    taken: dict[ClientId, int] = field(default_factory=dict)  # a digest of what each answered
    handed: dict[ClientId, float] = field(default_factory=dict)  # when a frame was handed out

    @property
    def session(self) -> Server:
        assert self.run is not None
        return self.run.session


@dataclass
class _Over:
    """A session that has ended: what its clients still have to hear."""

    farewell: bytes
    clients: frozenset[ClientId]
    owed: set[ClientId]
    not_after: int


class Driver:
    """Run a campaign of secure aggregation between an engine and a store.

    The engine carries bytes. The store keeps what must survive this process.

    A campaign is charged before its first Invite. A session opens for `n_max` clients of a round,
    drawn from those who checked in, or after a while for at least `n_min`. A round has as many
    sessions as fit under the plan's `max_round_clients`; a round that lost a session lands with
    the others. A client is asked once for a round, and for as many rounds as the plan's privacy
    allows, without privacy for one.

    Make a new driver with the same store after a crash. One thread at a time.

    Args:
        plan: the campaign's, with its keys.
        store: what survives this process; claimed for this driver alone.
        keys: the server's.
        deadlines: how long to wait.
        random: returns as many uniform bytes as it is asked for, from a cryptographic source.

    Attributes:
        refusals: how often a frame was refused, and how often a client said that it aborts, by
            code: why clients stay away.
        rejected: sessions whose sum no sketches can have, so that it did not land.
        is_overtaken: another process runs the campaign now.

    Raises:
        InvalidInputError: the plan is not summed by `secagg`, lacks keys, or names others.
    """

    def __init__(
        self,
        plan: Plan,
        store: DurableBooks,
        keys: ServerKeys,
        deadlines: Deadlines | None = None,
        *,
        random: Callable[[int], bytes],
    ) -> None:
        if not isinstance(plan.secure_sum, SecAggConfig):
            raise InvalidInputError(
                "a driver runs campaigns of secure aggregation: the plan's secure_sum must be"
                " secagg"
            )
        plan.check_published()
        self._server = FrequencyServer(plan, store)
        self._server.check_keys(keys.signing_key, keys.allow_list)
        self.plan, self._store, self._keys, self._random = plan, store, keys, random
        self._parameters = plan.secure_sum.parameters
        self._deadlines = Deadlines() if deadlines is None else deadlines
        self._phases = [step.phase for step in EXCHANGES[self._parameters.adversary]]
        self._replies = [step.reply for step in EXCHANGES[self._parameters.adversary]]
        self._live: dict[bytes, _Live] = {}
        self._session_of: dict[ClientId, bytes] = {}  # of clients in a session that runs
        self._over: dict[bytes, _Over] = {}
        self._present: dict[ClientId, float] = {}  # when each checked in last
        self._gathering: dict[int, float] = {}  # since when a round has had clients waiting for it
        self._misses: Counter[ClientId] = Counter()
        self._benched: dict[ClientId, float] = {}  # until when
        self._retry_at: float | None = -math.inf  # sessions of the store are not in memory
        self._now = 0
        self._drains = False
        self.refusals: Counter[AbortCode] = Counter()
        self.rejected: list[bytes] = []
        self.is_overtaken = False
        self._asked: dict[int, set[ClientId]] = defaultdict(set)
        self._landed: dict[int, int] = {}  # clients whose items are in sums, by round
        self._released: frozenset[int] = frozenset()
        self._read_books()

    # ---- what an engine calls ----

    def check_in(self, client: ClientId, now: float) -> bool:
        """Note that a client is there; whether it may be drawn for a session of the rounds left.

        Args:
            client: its name in the transport, the same in all calls and all processes.
            now: the time, Unix seconds.
        """
        _check_name(client)
        if self.is_overtaken or self._drains or self._benched.get(client, -math.inf) > now:
            return False
        is_free = client not in self._session_of
        if is_free and not any(self._may_join(client, round) for round in self._open_rounds()):
            return False
        self._present[client] = now
        return True

    def next(self, client: ClientId, now: float) -> bytes | None:
        """Return the frame that a client should answer now; None: there is nothing to do.

        A frame is handed out at once, again after a receipt for this client, and otherwise every
        ten seconds. It says what the session decided, whatever the client was told before.

        Args:
            client: as for `check_in`.
            now: the time, Unix seconds.
        """
        if self.is_overtaken:
            return None
        live = self._live.get(self._session_of.get(client, b""))
        if live is not None and client in live.awaited:
            if now - live.handed.get(client, -math.inf) < REPEAT_SECONDS:
                return None
            live.handed[client] = now
            return live.frames[client]
        for over in self._over.values():
            if client in over.owed:
                over.owed.discard(client)
                return over.farewell
        return None

    def receive(self, client: ClientId, frame: bytes, now: float) -> Receipt:
        """Take what a client sent; what became of it. Nothing that a client sends is an exception.

        Args:
            client: as for `check_in`: the one whom the transport has authenticated.
            frame: whatever came.
            now: the time, Unix seconds.
        """
        _check_name(client)
        if self.is_overtaken:
            return Receipt.LATE
        self._now = int(now)
        message = wire.parse(frame)
        if message is None:
            return self._refuse(AbortCode.MALFORMED)
        over = self._over.get(message.session)
        if over is not None and client in over.clients:
            over.owed.add(client)  # it has not heard how the session ended
            return Receipt.LATE
        live = self._live.get(message.session)
        if live is None:
            return Receipt.LATE  # it ended long ago, or this process does not have it yet
        if client not in live.saved.clients:
            return self._refuse(AbortCode.WRONG_STATE)
        live.handed.pop(client, None)  # it is there, and may be asked at once
        return self._take(live, client, message)

    def tick(self, now: float) -> float:
        """Open, close and land what is due; return when to call again at the latest, Unix seconds.

        Call it as well after a frame was TAKEN: it may have been the last that a phase waited for.

        Args:
            now: the time, Unix seconds.

        Raises:
            OvertakenError: another process runs this campaign; this driver says nothing any more.
            OverspentError: the population has too little left for the campaign. Nobody was invited.
            Exception: what the store raised; call again later.
        """
        if self.is_overtaken:
            raise OvertakenError("another process runs this campaign: stop this one")
        self._now = int(now)
        try:
            if self._retry_at is not None and now >= self._retry_at:
                self._recover()
            for live in list(self._live.values()):
                if self._is_due(live):
                    self._close(live)
            self._drop_over()
            if self._retry_at is None and not self._drains:
                self._open_sessions()
        except OvertakenError:
            self._live.clear()
            self._session_of.clear()
            self._over.clear()
            self.is_overtaken = True
            raise
        except BaseException:
            self._retry_at = now + RETRY_SECONDS
            raise
        return self._next_time()

    # ---- what an operator asks ----

    def drain(self) -> None:
        """Open no session any more; those that run go on to their end."""
        self._drains = True

    @property
    def is_idle(self) -> bool:
        """Whether no session runs and none waits to be restored."""
        return not self._live and self._retry_at is None

    @property
    def is_complete(self) -> bool:
        """Whether every round is as full as the plan allows, and no session runs."""
        return self.is_idle and not self._open_rounds()

    def release(self) -> list[CountSketch]:
        """Return the sums that may leave, as `FrequencyServer.release` does. Call it at the end.

        Raises:
            LocalProtocolError: sessions run; `drain` and wait until `is_idle`.
        """
        if not self.is_idle:
            raise LocalProtocolError(
                "sessions run, and their sums would be lost: drain, and wait until the driver is"
                " idle"
            )
        sums = self._server.release(self._random)
        self._read_books()
        return sums

    # ---- frames ----

    def _take(self, live: _Live, client: ClientId, message: wire.Frame) -> Receipt:
        # Only this client's own receipts depend on it: a hash table's function is good enough.
        digest = hash(message)
        if live.taken.get(client) == digest:
            return Receipt.AGAIN
        state = live.session.state
        if state is ServerState.ADVERTISE and message.kind is Kind.ABORT:
            # The session has no roster yet and cannot know this client; the driver invited it.
            return self._decline(live, client, message, digest)
        code = live.session.take(client, message)
        if code is None:
            live.awaited.discard(client)
            live.taken[client] = digest
            if message.kind is Kind.ABORT:
                self.refusals[wire.decode_abort(message.body)] += 1
            return Receipt.TAKEN
        if message.kind in self._replies[: self._phases.index(state)]:
            return Receipt.LATE
        return self._refuse(code)

    def _decline(self, live: _Live, client: ClientId, message: wire.Frame, digest: int) -> Receipt:
        try:
            code = wire.decode_abort(message.body)
        except RemoteProtocolError as error:
            return self._refuse(error.code)
        live.awaited.discard(client)
        live.taken[client] = digest
        self.refusals[code] += 1
        return Receipt.TAKEN

    def _refuse(self, code: AbortCode) -> Receipt:
        self.refusals[code] += 1
        return Receipt.REFUSED

    # ---- sessions ----

    def _journal(self, live: _Live) -> Callable[[bytes], None]:
        """Return what a session writes its checkpoint with, before anything of the phase leaves."""

        def write(checkpoint: bytes) -> None:
            # The first checkpoint is written while the session is made.
            state = ServerState.ADVERTISE if live.run is None else live.session.state
            # Each client that gets an Inbox spends its item.
            asked = live.session.awaited if state is ServerState.COLLECT else ()
            saved = replace(
                live.saved,
                checkpoint=None if state is ServerState.ABORTED else checkpoint,
                closes=self._closes(state, live.saved.not_after),
                version=live.saved.version + 1,
            )
            if state in _ENDED:
                told = dict(live.session.outgoing())
                saved = replace(saved, clients=tuple(told), farewell=next(iter(told.values()), b""))
            self._store.save(self.plan, saved, asked)
            live.saved = saved
            self._asked[saved.round].update(asked)

        return write

    def _closes(self, state: ServerState, not_after: int) -> tuple[int, int]:
        """Return until when a phase waits for all clients, and until when for those it needs.

        The phase begins now.
        """
        if state in _ENDED:
            return self._now, self._now
        later = len(self._phases) - 1 - self._phases.index(state)
        seconds = self._deadlines.phase
        # What later phases need is not spent in this one.
        last = max(self._now, not_after - later * seconds)
        return min(self._now + seconds, last), min(self._now + PATIENCE * seconds, last)

    def _recover(self) -> None:
        """Take the sessions of the store that are not in memory: after a restart, or an error."""
        self._retry_at = None
        self._read_books()
        for saved in self._store.sessions(self.plan):
            if saved.checkpoint is None:
                self._over.setdefault(saved.session, _over(saved))
            elif saved.session not in self._live:
                self._resume(saved)

    def _read_books(self) -> None:
        """Read what decides who may join which round."""
        self._asked = defaultdict(set, self._store.asked(self.plan))
        self._landed = self._store.landed_clients(self.plan)
        self._released = frozenset(self._store.released(self.plan))

    def _resume(self, saved: SavedSession) -> None:
        live = _Live(saved)
        try:
            live.run = CohortRun.resume(
                self._server,
                saved.checkpoint or b"",
                saved.clients,
                random=self._random,
                allow_list=self._keys.allow_list,
                journal=self._journal(live),
            )
        except (RejectedSumError, LocalProtocolError):  # it had its sum, which did not land
            self._reject(live)
            return
        self._keep(live)
        if live.run.done:  # it had its sum, which `resume` has landed
            self._finish(live)
            return
        # What clients sent in this phase is lost, so that they get the time to send it again.
        soft, hard = self._closes(live.session.state, saved.not_after)
        closes = max(soft, saved.closes[0]), max(hard, saved.closes[1])
        live.saved = replace(saved, closes=closes)
        self._ask(live)

    def _keep(self, live: _Live) -> None:
        self._live[live.saved.session] = live
        self._session_of.update(dict.fromkeys(live.saved.clients, live.saved.session))

    def _drop(self, live: _Live) -> None:
        """Take a session out of memory. Its clients may be drawn again."""
        self._live.pop(live.saved.session, None)
        for client, session in list(self._session_of.items()):
            if session == live.saved.session:
                del self._session_of[client]

    def _ask(self, live: _Live) -> None:
        """Note what the phase asks of whom."""
        assert live.run is not None
        live.frames = dict(live.run.outgoing())
        live.awaited = set(live.frames)
        live.taken.clear()
        live.handed.clear()

    def _is_due(self, live: _Live) -> bool:
        """Tell whether a phase has nobody to wait for, or its time is up."""
        if not live.awaited or self._now > live.saved.not_after:
            return True
        soft, hard = live.saved.closes
        # `can_close` costs a pass over all neighbours: it is asked late.
        return self._now >= hard or (self._now >= soft and live.session.can_close().code is None)

    def _close(self, live: _Live) -> None:
        """Close a phase. After an error the session is not in memory, and is restored later."""
        assert live.run is not None
        missing = tuple(live.awaited)
        self._drop(live)
        try:
            live.run.deadline_passed(self._now)
        except (RejectedSumError, LocalProtocolError):
            self._reject(live)
            return
        for client in missing:
            self._note_miss(client)
        if live.run.done:
            self._finish(live)
        else:
            self._keep(live)
            self._ask(live)

    def _reject(self, live: _Live) -> None:
        """End a session whose sum cannot land, today or later.

        No sketches have such a sum, or its release is out.
        """
        self.rejected.append(live.saved.session)
        saved = replace(live.saved, checkpoint=None, version=live.saved.version + 1)
        self._store.save(self.plan, saved, ())
        live.saved = saved
        self._finish(live)

    def _finish(self, live: _Live) -> None:
        """Keep of a session that has ended what its clients still have to hear."""
        self._drop(live)
        self._landed = self._store.landed_clients(self.plan)
        self._over[live.saved.session] = _over(live.saved)

    def _drop_over(self) -> None:
        for session, over in list(self._over.items()):
            if self._now > over.not_after:
                self._store.forget(self.plan, session)
                del self._over[session]

    def _note_miss(self, client: ClientId) -> None:
        self._misses[client] += 1
        self._present.pop(client, None)
        if self._misses[client] >= MISSES:
            self._benched[client] = self._now + self._deadlines.bench
            del self._misses[client]

    # ---- who takes part ----

    def _open_rounds(self) -> dict[int, int]:
        """Return how many clients the rounds that may have another session have room for.

        The emptiest round comes first.
        """
        most, least = self.plan.max_round_clients, self._parameters.n_min
        room = {n: most - self._landed.get(n, 0) for n in range(self.plan.num_rounds)}
        for live in self._live.values():
            room[live.saved.round] -= len(live.saved.clients)
        emptiest = sorted(room.items(), key=lambda one: (-one[1], one[0]))
        return {
            round: left
            for round, left in emptiest
            if left >= least and release_of(self.plan, round) not in self._released
        }

    def _may_join(self, client: ClientId, round: int) -> bool:
        """Tell whether a client was not asked for this round, nor for as many rounds as it may."""
        if client in self._asked[round]:
            return False
        privacy = self.plan.privacy
        most = 1 if privacy is None else privacy.event.participations
        return sum(client in clients for clients in self._asked.values()) < most

    def _open_sessions(self) -> None:
        """Open a session for each round that has enough clients present."""
        since = self._now - self._deadlines.presence
        free = [c for c, at in self._present.items() if at >= since and c not in self._session_of]
        for round, room in self._open_rounds().items():
            size = min(self._parameters.n_max, room)
            ready = [client for client in free if self._may_join(client, round)]
            if len(ready) < self._parameters.n_min:
                self._gathering.pop(round, None)
                continue
            began = self._gathering.setdefault(round, self._now)
            if len(ready) < size and self._now < began + self._deadlines.gather:
                continue
            drawn = self._draw(ready, size)
            self._open(round, drawn)
            del self._gathering[round]
            free = [client for client in free if client not in self._session_of]

    def _draw(self, clients: Sequence[ClientId], size: int) -> tuple[ClientId, ...]:
        """Return so many of the clients, each set of this size with the same probability."""
        if len(clients) <= size:
            return tuple(clients)
        # 16 uniform bytes for each: that any two are equal has a probability below 2^-88.
        drawn = self._random(16 * len(clients))
        keys = {c: drawn[16 * place : 16 * place + 16] for place, c in enumerate(clients)}
        return tuple(sorted(clients, key=keys.__getitem__)[:size])

    def _open(self, round: int, clients: tuple[ClientId, ...]) -> None:
        """Charge the campaign, open a session and note its Invites."""
        if self.plan.privacy is not None:
            # Before the first Invite. Else clients could spend their items for a sum that may not
            # be opened.
            self._store.reserve(self.plan, release_of(self.plan, round))
        session, lifetime = self._random(32), self._deadlines.session
        live = _Live(SavedSession(session, round, clients, None, (0, 0), self._now + lifetime))
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
        )
        self._keep(live)
        self._ask(live)

    def _next_time(self) -> float:
        """Return when something is due by time alone."""
        times = [math.inf if self._retry_at is None else self._retry_at]
        for live in self._live.values():
            soft, hard = live.saved.closes
            times.append(min(soft if self._now < soft else hard, live.saved.not_after + 1))
        times += [began + self._deadlines.gather for began in self._gathering.values()]
        times += [over.not_after + 1 for over in self._over.values()]
        return min(times)


def _over(saved: SavedSession) -> _Over:
    clients = frozenset(saved.clients if saved.farewell else ())
    return _Over(saved.farewell or b"", clients, set(clients), saved.not_after)


def _check_name(client: ClientId) -> None:
    if type(client) not in (int, str):
        raise LocalProtocolError(
            f"a client must be named by an int or a str, got {type(client).__name__}"
        )
