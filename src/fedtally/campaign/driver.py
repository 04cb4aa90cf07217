"""The driver of a campaign: it opens sessions, asks clients, and lands sums. Sans-IO.

The driver itself reads no clock and opens no connection. An engine carries the bytes and passes the
time. Of the whole protocol, the engine calls only four methods of a `Driver`:

- `check_in` when a client says that it is there,
- `next` when a client asks what it should do,
- `receive` when a client sends a frame,
- `tick` when time has passed, or a frame was taken.

The driver opens a session as soon as enough clients have checked in. A session runs through
phases: in each one, the driver asks every client of the session for one answer. The driver closes a
phase when every client has answered, or when the phase has run out of time. After the last phase
the driver lands the sum. Several sessions run at once.

**The store is written before a client is asked.** A phase ends in one transaction of the store,
which writes the checkpoint of the next phase. Only then does the first byte of the next phase
leave. The sum lands in one transaction that also erases the checkpoint. Therefore a process may die
at any moment. The next process resumes each session at the beginning of the phase that the session
was in, and the clients send their answers again.

**An error of the store never ends a session.** The error only ends the copy of the session in
memory: the driver drops this copy, sends nothing to the session's clients, and later restores the
session from its last checkpoint. If another process takes the campaign over (`OvertakenError`), the
driver of the first process never sends anything again.
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

# A phase that cannot go on without its missing clients waits for this many times `Deadlines.phase`.
PATIENCE = 4
REPEAT_SECONDS = 10  # a client that asks again gets the same frame again after this time
RETRY_SECONDS = 10  # after an error of the store, the driver waits this long before it reads again
MISSES = 2  # a client that leaves this many frames unanswered is benched: not drawn for a while
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
        allow_list: the registered identities, in `active`.
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
        bench: the time for which the driver draws no client that has left two frames unanswered.

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
            value = _validate.integer(1, 2**31, **{f"{name}_seconds": getattr(self, name)})
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

        Args:
            plan: the campaign's plan.
            session: the new version of the session. A session that is not in the store yet has
                version 1.
            asked: the clients that this session asks for their items from now on. The store keeps
                their names for ever, by round.
        """

    def sessions(self, plan: Plan) -> list[SavedSession]:
        """Return the sessions that go on, and those that ended but are not forgotten yet."""

    def forget(self, plan: Plan, session: bytes) -> None:
        """Erase a session that has ended. The asked clients and the landed sums stay."""

    def asked(self, plan: Plan) -> dict[int, set[ClientId]]:
        """Return the clients that were asked for their items, by round."""

    def landed_clients(self, plan: Plan) -> dict[int, int]:
        """Return the number of clients in the sums that landed, by round."""


@dataclass
class _Live:
    """A session in this process, and the driver's notes about its clients.

    All notes are about the phase that the session is in.

    Attributes:
        saved: the session as the store has it, except that `_resume` may extend `closes`.
        run: the server's side of the session; None only while `CohortRun.begin` or
            `CohortRun.resume` makes it.
        frames: the frame that each client has to answer in this phase.
        awaited: the clients that have not answered yet.
        taken: a digest of the answer of each client.
        handed: the time at which each client last got its frame.
    """

    saved: SavedSession
    run: CohortRun | None = None
    frames: dict[ClientId, bytes] = field(default_factory=dict)
    awaited: set[ClientId] = field(default_factory=set)
    taken: dict[ClientId, int] = field(default_factory=dict)
    handed: dict[ClientId, float] = field(default_factory=dict)

    @property
    def session(self) -> Server:
        assert self.run is not None
        return self.run.session


@dataclass
class _Over:
    """A session that has ended, and the last frame that its clients still have to get.

    Attributes:
        farewell: the last frame, the same for all clients.
        clients: the clients that may get it.
        owed: the clients that have not got it yet, or have sent a frame of the session since.
        handed: when the others got it. A client leaves when it checks in.
        until: the time after which the session is forgotten, Unix seconds.
    """

    farewell: bytes
    clients: frozenset[ClientId]
    owed: set[ClientId]
    handed: dict[ClientId, float]
    until: float


class Driver:
    """Run a campaign of secure aggregation between an engine and a store.

    The engine carries bytes. The store keeps all state that must survive this process.

    With privacy, the campaign is charged before its first Invite leaves. A session opens for
    `n_max` clients of a round, which are drawn from the clients that checked in. After
    `Deadlines.gather` a session opens for fewer clients, but at least `n_min`. A round has as many
    sessions as fit under the plan's `max_round_clients`. If a session fails, its round is the sum
    of the others. A client is asked for its items at most once in a round, and in as many rounds as
    the plan's privacy allows. Without privacy a client is asked in one round only.

    After a crash, make a new driver with the same store. Use a driver from one thread at a time.

    Args:
        plan: the campaign's plan, with its keys.
        store: the state that survives this process; claimed for this driver alone.
        keys: the server's keys.
        deadlines: how long the driver waits; None: the defaults.
        random: returns as many uniform bytes as it is asked for, from a cryptographic source.

    Attributes:
        refusals: how many frames were refused, and how many clients aborted, by code. These codes
            tell an operator why clients do not take part.
        rejected: the sessions whose sum could not land. Either no sketches have such a sum, or the
            release of the session's round is out.
        is_overtaken: whether another process runs the campaign now.

    Raises:
        InvalidInputError: the plan is not summed by `secagg`, or has no keys, or names other keys
            than `keys`.
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
        # Both lists have the order of the exchanges: an index into one is an index into the other.
        self._phases = [step.phase for step in EXCHANGES[self._parameters.adversary]]
        self._replies = [step.reply for step in EXCHANGES[self._parameters.adversary]]
        self._live: dict[bytes, _Live] = {}
        self._session_of: dict[ClientId, bytes] = {}  # only clients of a session in `_live`
        self._over: dict[bytes, _Over] = {}
        self._present: dict[ClientId, float] = {}  # the time of each client's last check-in
        # The time since which a round has had enough clients for a session, but not a full one.
        self._gathering: dict[int, float] = {}
        self._misses: Counter[ClientId] = Counter()
        self._benched: dict[ClientId, float] = {}  # the time until which a client is not drawn
        # The time at which to read the store's sessions. None: all of them are in memory. A new
        # driver has none of them, so its first tick reads the store.
        self._retry_at: float | None = -math.inf
        self._now = 0  # the engine's time at the last `tick` or `receive`, in whole seconds
        self._drains = False
        self.refusals: Counter[AbortCode] = Counter()
        self.rejected: list[bytes] = []
        self.is_overtaken = False
        self._asked: dict[int, set[ClientId]] = defaultdict(set)
        self._landed: dict[int, int] = {}  # the number of clients in landed sums, by round
        self._released: frozenset[int] = frozenset()
        self._read_books()

    # ---- what an engine calls ----

    def check_in(self, client: ClientId, now: float) -> bool:
        """Note that a client is present; return whether a session may draw it.

        Args:
            client: its name in the transport, the same in all calls and all processes.
            now: the time, Unix seconds.
        """
        _check_name(client)
        if self.is_overtaken:
            return False
        for over in self._over.values():
            over.handed.pop(client, None)  # the client goes on, so that it has heard the farewell
        if client not in self._session_of:
            if self._drains or self._benched.get(client, -math.inf) > now:
                return False
            if not any(self._may_join(client, round) for round in self._open_rounds()):
                return False
        self._present[client] = now
        return True

    def next(self, client: ClientId, now: float) -> bytes | None:
        """Return the frame that a client should answer now; None: there is nothing to do.

        The first call in a phase returns the phase's frame. Further calls return the same frame
        again, at most every ten seconds, and at once after the client has sent something. Once the
        session has ended, the frame is the farewell, which says how the session ended. The farewell
        comes again until the client checks in after it.

        Args:
            client: as for `check_in`.
            now: the time, Unix seconds.
        """
        if self.is_overtaken:
            return None
        # No session has an empty name: a client without a session gets None here.
        live = self._live.get(self._session_of.get(client, b""))
        if live is not None and client in live.awaited:
            if now - live.handed.get(client, -math.inf) < REPEAT_SECONDS:
                return None
            live.handed[client] = now
            return live.frames[client]
        for over in self._over.values():
            if client in over.owed or now - over.handed.get(client, math.inf) >= REPEAT_SECONDS:
                over.owed.discard(client)
                over.handed[client] = now
                return over.farewell
        return None

    def receive(self, client: ClientId, frame: bytes, now: float) -> Receipt:
        """Take a frame that a client sent; return the driver's verdict on it.

        No bytes of a client raise an exception.

        Args:
            client: as for `check_in`: the client that the transport has authenticated.
            frame: the bytes that came; any bytes are allowed.
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
            over.owed.add(client)  # the client does not know yet how the session ended
            return Receipt.LATE
        live = self._live.get(message.session)
        if live is None:
            # The session ended long ago, or this process has not restored it yet.
            return Receipt.LATE
        if self._session_of.get(client) != message.session:
            return self._refuse(AbortCode.WRONG_STATE)
        # The client is connected now, so `next` need not wait before it returns a frame again.
        live.handed.pop(client, None)
        return self._take(live, client, message)

    def tick(self, now: float) -> float:
        """Open sessions, close phases and land sums that are due; return the time of the next call.

        The time is in Unix seconds, and is the latest one: earlier calls do no harm. Call `tick`
        also after each check-in, since a session may have waited for this client alone, and after
        each frame that was TAKEN, since a phase may have waited for this frame alone.

        Args:
            now: the time, Unix seconds.

        Raises:
            OvertakenError: another process runs this campaign; this driver never sends anything
                again.
            OverspentError: the population has too little left for the campaign. Nobody was invited.
            Exception: an error that the store raised; call again later.
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
            while self._retry_at is None and not self._drains and self._open_sessions():
                pass  # more clients may be there than one session of each round takes
        except OvertakenError:
            self._live.clear()
            self._session_of.clear()
            self._over.clear()
            self.is_overtaken = True
            raise
        except BaseException:
            # A session may have left memory, or be half restored: the store has all of it.
            self._retry_at = now + RETRY_SECONDS
            raise
        return self._next_time()

    # ---- what an operator asks ----

    def drain(self) -> None:
        """Open no further session. The sessions that run go on to their end."""
        self._drains = True

    @property
    def is_idle(self) -> bool:
        """Whether no session runs, and no session of the store waits to be restored."""
        return not self._live and self._retry_at is None

    @property
    def is_complete(self) -> bool:
        """Whether the driver is idle, and no round may have another session."""
        return self.is_idle and not self._open_rounds()

    def release(self) -> list[CountSketch]:
        """Return the sums that may leave, as `FrequencyServer.release` does; call it at the end.

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
        # A client that finds two frames with one digest only spoils its own receipt. So Python's
        # `hash` is good enough.
        digest = hash(message)
        if live.taken.get(client) == digest:
            return Receipt.AGAIN
        state = live.session.state
        if state is ServerState.ADVERTISE and message.kind is Kind.ABORT:
            # The session refuses an Abort while it has no roster. The driver has invited the client
            # and need not wait for it any more.
            # A client that has advertised is in the session, which waits for it in the next phase.
            if client in live.taken:
                return self._refuse(AbortCode.WRONG_STATE)
            return self._decline(live, client, message, digest)
        code = live.session.take(client, message)
        if code is None:
            live.awaited.discard(client)
            live.taken[client] = digest
            if message.kind is Kind.ABORT:
                self.refusals[wire.decode_abort(message.body)] += 1
            return Receipt.TAKEN
        # An answer to an earlier phase is late, and nobody is to blame.
        if message.kind in self._replies[: self._phases.index(state)]:
            return Receipt.LATE
        return self._refuse(code)

    def _decline(self, live: _Live, client: ClientId, message: wire.Frame, digest: int) -> Receipt:
        """Take the Abort of a client that answers an Invite with it."""
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
            # In DONE the checkpoint stays: it holds the sum until the sum has landed.
            saved = replace(
                live.saved,
                checkpoint=None if state is ServerState.ABORTED else checkpoint,
                closes=self._closes(state, live.saved.not_after),
                version=live.saved.version + 1,
            )
            if state in _ENDED:
                # Only these clients hear the farewell, which is the same for all of them.
                told = dict(live.session.outgoing())
                saved = replace(saved, clients=tuple(told), farewell=next(iter(told.values()), b""))
            self._store.save(self.plan, saved, asked)
            live.saved = saved
            self._asked[saved.round].update(asked)

        return write

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
        self._read_books()
        problem: Exception | None = None
        for saved in self._store.sessions(self.plan):
            if saved.checkpoint is None:
                self._over.setdefault(saved.session, self._ended(saved))
            elif saved.session not in self._live:
                try:
                    self._resume(saved)
                except OvertakenError:
                    raise
                except Exception as error:
                    # One session that cannot be restored must not keep the others from going on.
                    # Once its time is over nobody waits for it, and it is given up.
                    if self._now > saved.not_after:
                        self._reject(_Live(saved))
                    else:
                        problem = error
        if problem is not None:
            raise problem

    def _read_books(self) -> None:
        """Read from the store which clients were asked, and which rounds are full or released."""
        self._asked = defaultdict(set, self._store.asked(self.plan))
        self._landed = self._store.landed_clients(self.plan)
        self._released = frozenset(self._store.released(self.plan))

    def _resume(self, saved: SavedSession) -> None:
        """Restore a session at the beginning of its phase, or end it if its sum is there."""
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
        except (RejectedSumError, LocalProtocolError):
            # The session had its sum, and the sum could not land.
            self._reject(live)
            return
        if live.run.done:  # the session had its sum, and `CohortRun.resume` has landed the sum
            self._finish(live)
            return
        # The answers of this phase are lost: the clients get the time to send them again.
        soft, hard = self._closes(live.session.state, saved.not_after)
        closes = max(soft, saved.closes[0]), max(hard, saved.closes[1])
        live.saved = replace(saved, closes=closes)
        self._ask(live)
        self._keep(live)

    def _keep(self, live: _Live) -> None:
        """Put a session into memory, so that its clients cannot be drawn for another one."""
        self._live[live.saved.session] = live
        self._session_of.update(dict.fromkeys(live.saved.clients, live.saved.session))

    def _drop(self, live: _Live) -> None:
        """Take a session out of memory, so that its clients may be drawn again."""
        self._live.pop(live.saved.session, None)
        for client, session in list(self._session_of.items()):
            if session == live.saved.session:
                del self._session_of[client]

    def _ask(self, live: _Live) -> None:
        """Note the frames of a new phase, which no client has answered yet."""
        assert live.run is not None
        live.frames = dict(live.run.outgoing())
        live.awaited = set(live.frames)
        live.taken.clear()
        live.handed.clear()

    def _is_due(self, live: _Live) -> bool:
        """Tell whether a phase has nobody to wait for, or no time left."""
        if not live.awaited or self._now > live.saved.not_after:
            return True
        soft, hard = live.saved.closes
        # `can_close` takes a pass over all neighbours, so it is called only when its answer counts.
        return self._now >= hard or (self._now >= soft and live.session.can_close().code is None)

    def _close(self, live: _Live) -> None:
        """Close a phase: begin the next one, or land the sum, or abort the session."""
        assert live.run is not None
        missing = tuple(live.awaited)
        # If closing raises, the session must be out of memory, since `_recover` restores no other.
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
            self._ask(live)
            self._keep(live)

    def _reject(self, live: _Live) -> None:
        """End a session whose sum can never land.

        Either no sketches have such a sum, or the release of the session's round is out.
        """
        saved = replace(live.saved, checkpoint=None, version=live.saved.version + 1)
        self._store.save(self.plan, saved, ())
        live.saved = saved
        self.rejected.append(saved.session)
        self._finish(live)

    def _finish(self, live: _Live) -> None:
        """Move a session that has ended out of memory, and keep its farewell for its clients."""
        self._drop(live)
        self._landed = self._store.landed_clients(self.plan)
        self._over[live.saved.session] = self._ended(live.saved)

    def _ended(self, saved: SavedSession) -> _Over:
        """Return a session that has ended, and that owes its farewell to its clients.

        A session that ran out of time is kept a little longer, so that its clients hear of it.
        """
        clients = frozenset(saved.clients if saved.farewell else ())
        until = max(saved.not_after, self._now + PATIENCE * self._deadlines.phase)
        return _Over(saved.farewell or b"", clients, set(clients), {}, until)

    def _drop_over(self) -> None:
        """Forget the ended sessions whose last second is over."""
        for session, over in list(self._over.items()):
            if self._now > over.until:
                self._store.forget(self.plan, session)
                del self._over[session]

    def _note_miss(self, client: ClientId) -> None:
        """Note that a client has not answered, and must check in again before it is drawn."""
        self._misses[client] += 1
        self._present.pop(client, None)
        if self._misses[client] >= MISSES:
            self._benched[client] = self._now + self._deadlines.bench
            del self._misses[client]

    # ---- who takes part ----

    def _open_rounds(self) -> dict[int, int]:
        """Return the rounds that may have another session, each with its room for clients.

        The emptiest round comes first, so that rounds fill evenly. A session that runs takes the
        room of all its clients, since any of them may end up in its sum.
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
        """Tell whether a client was not asked in this round, and may still be asked in one."""
        if client in self._asked[round]:
            return False
        privacy = self.plan.privacy
        most = 1 if privacy is None else privacy.event.participations
        return sum(client in clients for clients in self._asked.values()) < most

    def _open_sessions(self) -> bool:
        """Open a session for each round with a full set of clients, or with enough after a wait.

        Return whether one was opened.
        """
        since = self._now - self._deadlines.presence
        free = [c for c, at in self._present.items() if at >= since and c not in self._session_of]
        before, self._gathering = self._gathering, {}
        has_opened = False
        for round, room in self._open_rounds().items():
            size = min(self._parameters.n_max, room)
            ready = [client for client in free if self._may_join(client, round)]
            if len(ready) < self._parameters.n_min:
                continue
            began = before.get(round, self._now)
            if len(ready) < size and self._now < began + self._deadlines.gather:
                self._gathering[round] = began
                continue
            self._open(round, self._draw(ready, size))
            free = [client for client in free if client not in self._session_of]
            has_opened = True
        return has_opened

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
        if self.plan.privacy is not None:
            # The first reservation charges the campaign, so it comes before the first Invite.
            # Otherwise clients could spend their items on a sum that nobody may open.
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
        self._ask(live)
        self._keep(live)

    def _next_time(self) -> float:
        """Return the time at which something is next due, even if no client sends anything."""
        times = [math.inf if self._retry_at is None else self._retry_at]
        for live in self._live.values():
            soft, hard = live.saved.closes
            times.append(min(soft if self._now < soft else hard, live.saved.not_after + 1))
        if self._retry_at is None and not self._drains:
            times += [began + self._deadlines.gather for began in self._gathering.values()]
        times += [over.until + 1 for over in self._over.values()]
        return min(times)


def _check_name(client: ClientId) -> None:
    if type(client) not in (int, str):
        raise LocalProtocolError(
            f"a client must be named by an int or a str, got {type(client).__name__}"
        )
