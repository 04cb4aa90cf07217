"""The driver of a campaign: it opens sessions, asks clients, and adds up sums. It does no I/O.

A *session* is one run of the secure sum with a group of clients. A *frame* is one message between
server and client. The driver reads no clock and opens no connection. An *engine* carries the frames
and tells the driver the time. To run the protocol, the engine calls four methods of a `Driver`:

- `check_in` when a client says that it is there,
- `next` when a client asks what it should do,
- `receive` when a client sends a frame,
- `tick` at the time that the last `tick` returned, and also after each check-in, and after each
  frame with the verdict TAKEN.

An engine that has had no session for a while also calls `check_claim`, which raises an error if
another process runs the campaign now.

The driver opens a session as soon as enough clients have checked in. A session has several phases.
In each phase, the driver asks every client that is still in the session for one answer. It closes
the phase when all of them have answered, or when the time of the phase is over (see `Deadlines`).
After the last phase the driver lands the sum: it adds the sum to its round in the store, the
database. Several sessions run at once.

**The driver writes to the store before it asks a client.** A phase ends in one transaction of the
store, which writes the checkpoint (the state of the session) for the next phase. Only then is the
first byte of the next phase sent. The last phase ends in the transaction that adds the sum and
erases the checkpoint. Therefore a process may die at any moment. The next process resumes each
session at the beginning of its current phase, and the clients send their answers again.

**An error of the store never ends a session.** The driver only drops the copy in memory of a
session that it could not write, and sends nothing to the session's clients. Later it restores the
session from its last checkpoint. If `Deadlines.session` is over by then, the session ends without a
sum. Another process may take over the campaign. The first process notices this when the store
raises `OvertakenError`, for instance in `tick` or `check_claim`. After that error in either, its
driver never sends anything again.

**A process that was suspended is treated like one that was restarted.** A process may be suspended,
for instance when a laptop is closed, while answers wait to be read. The driver assumes this if a
session runs and nobody has called `tick` for a quarter of a phase, and for more than a second. Then
it sends no frame of a running session until the next `tick`. That call asks the store whether
another process has taken over, and starts the time of each phase again (see `_renew`). If the store
does not answer, no frame is sent until a later `tick` gets an answer.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

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
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.checkpoints import CheckpointError
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

# If a session cannot go on without the missing clients, the phase waits for them for at most this
# many times `Deadlines.phase`. A farewell (the last frame of a session) is kept for at least this
# many times `Deadlines.phase`.
PATIENCE = 4
# The process counts as away (suspended) if a session runs and nobody has called `tick` for longer
# than this part of `Deadlines.phase`, and for longer than a second.
AWAY = 1 / 4
REPEAT_SECONDS = 10  # after how many seconds a client that asks again gets the same frame again
# If the clock is put back by at most this many seconds, the driver keeps its last time until the
# clock has caught up. Otherwise a clock that jumps back and forth would shorten the driver's waits.
JITTER = 10
# A round with a period (the window of time in which its sessions may open) waits for a full session
# only until this many seconds before the period ends. In these last seconds, a tick opens a session
# as soon as `n_min` clients may be drawn. Engines tick at least once a second, so there is a tick
# in these seconds.
LAST_SECONDS = 2
# after an error in `tick`, the seconds before the driver reads the sessions in the store again
RETRY_SECONDS = 3
_ENDED = (ServerState.DONE, ServerState.ABORTED)


class Receipt(StrEnum):
    """The driver's verdict on a frame that a client sent."""

    TAKEN = "taken"  # the frame is a valid answer of this phase; an Abort is an answer, too
    AGAIN = "again"  # the same frame was taken before in this phase
    LATE = "late"  # the phase that the frame answers is over, or its session does not run here
    REFUSED = "refused"  # the frame is not valid, or this client was not asked for it


@dataclass(frozen=True)
class ServerKeys:
    """The signing key of a campaign's server, and the list of the clients that may take part.

    Args:
        signing_key: the private key of the server's public key in the plan.
        allow_list: the registered keys of the clients, if the plan's adversary is `active`; else
            None.
    """

    signing_key: SigningKey = field(repr=False)
    allow_list: AllowList | None = None


@dataclass(frozen=True)
class Deadlines:
    """How long the driver waits, in seconds.

    Args:
        gather: how long a round waits for a full session. The wait begins when `n_min` clients, the
            fewest of a session, may be drawn. A session with `n_max` clients opens at once. At the
            end of the wait a session opens with all clients that may be drawn, if these are still
            at least `n_min`. The wait is shorter if the period of the round ends sooner.
        phase: how long a phase waits for answers. Then the phase closes without the missing
            clients. If the session cannot go on without these clients, the phase waits up to four
            times as long. After a restart or a pause of the process, the wait begins again. Near
            the end of the session a phase is shorter, so that each later phase still has its time.
        session: how long a session may last. Then the driver ends the session without a sum, in
            whatever phase it is.
        presence: how long a client counts as present after it has checked in.
        bench: for how long a client is not drawn after every second miss. A miss is a frame that
            the client does not answer, or that it answers with an Abort. Answers in between do not
            reset the count.

    Raises:
        InvalidInputError: a value is not a whole number from 1 to 2^31, or `session` is too short
            for all phases with `phase` seconds each.
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
    """The books and the sessions of a campaign: everything that must survive the process.

    `fedtally.store.CampaignStore` implements this interface with SQLite. Each method that writes is
    one transaction, except `release` (see `Books`). If another process has claimed the campaign,
    each method that writes raises `OvertakenError` and changes nothing.
    """

    def save(self, plan: Plan, session: SavedSession, asked: Collection[ClientId]) -> None:
        """Write a session to the disk, if the store has the version just before this one.

        If the store has another version, another process wrote it, and this method raises
        `OvertakenError`.

        Args:
            plan: the campaign's plan.
            session: the new version of the session. A session that is not in the store yet has
                version 1.
            asked: the clients that this session asks for their items in the phase that begins. The
                store keeps their names for ever, by round.
        """

    def end(self, plan: Plan, session: SavedSession, sketch: CountSketch) -> bool:
        """Write a session that has ended, and add its sum, in one transaction.

        Return whether the sum was added. If the sum of this session was added before, the method
        returns False and writes nothing, not even the session.

        Args:
            plan: the campaign's plan.
            session: the new version of the session.
            sketch: the sum, as for `Books.land`.
        """

    def sessions(self, plan: Plan) -> list[SavedSession]:
        """Return the sessions that `forget` has not erased, whether they are over or not."""

    def forget(self, plan: Plan, session: bytes) -> None:
        """Erase a session that is over; keep the names of its asked clients, and its sum."""

    def asked(self, plan: Plan) -> dict[int, set[ClientId]]:
        """Return the clients that were asked for their items, by the number of the round."""

    def landed_clients(self, plan: Plan) -> dict[int, int]:
        """Return the number of clients in the sum of each round, by the number of the round."""

    def impossible(self, plan: Plan) -> dict[int, int]:
        """Return, by round, how many sessions had a sum that honest clients cannot make."""

    def check_claim(self, plan: Plan) -> None:
        """Raise `OvertakenError` if another process runs the campaign, or it was cancelled.

        No session is changed. If the store does not answer, another error is raised.
        """

    def check_writes(self, plan: Plan) -> None:
        """Raise the error that a write of a session would raise now; change no session."""

    def check_room(self, plan: Plan) -> None:
        """Raise an error if the disk is full or the ledger does not answer; change nothing."""


@dataclass(frozen=True)
class RunningSession:
    """The state of a session, for the people who run the server.

    Attributes:
        session: the name of the session, 32 bytes.
        round: the number of the round to which the sum of the session is added.
        phase: the phase of the session, a value of `ServerState`.
        clients: how many clients are asked in this phase.
        answered: how many of these clients have answered. An Abort counts as an answer.
        closes: two times, Unix seconds. At the first one the phase closes if the session can go on
            without the missing clients. At the second one it closes in any case.
        not_after: the last second of the session, Unix time.
    """

    session: bytes
    round: int
    phase: str
    clients: int
    answered: int
    closes: tuple[int, int]
    not_after: int


class SetAside(NamedTuple):
    """A session of the store that cannot be restored.

    Attributes:
        saved: the session as the store has it.
        why: why it cannot be restored, in words for the operator.
    """

    saved: SavedSession
    why: str


@dataclass
class _Live:
    """A session in this process, and what the driver remembers of its clients.

    `frames`, `taken`, `handed` and `hurried` are about the current phase.

    Attributes:
        saved: the session as it is in the store, except for `closes`: `_renew` changes it only
            here.
        run: the server's side of the session; None only while `CohortRun.begin` or
            `CohortRun.resume` makes it.
        gone: the clients that have sent an Abort in this session, after its first phase. They
            ignore every further frame, so later phases send them none. A process that restores the
            session does not know them, and waits for them again.
        frames: the frame for each client that has not answered yet.
        taken: a digest of the answer of each client that has answered.
        handed: the time at which `next` last returned a client's frame, for each client that got
            its frame.
        hurried: the clients that sent a frame of an earlier phase during this phase. After the
            first such frame, `next` returns this phase's frame at once. Further late frames
            have no effect.
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
    """Run a campaign of secure summation between an engine and a store.

    The engine carries bytes. The store keeps all state that must survive this process. After a
    crash, make a new driver with the same store. Use a driver from one thread at a time.

    With privacy, the campaign is charged to the privacy budget before its first Invite (the first
    frame of a session) is sent. A session belongs to one round. It opens for `n_max` clients, or
    for all that still fit into the round if these are fewer. Its clients are drawn from the clients
    that checked in. After `Deadlines.gather` seconds a session opens for fewer clients, but at
    least `n_min`. A round gets further sessions until fewer than `n_min` more clients fit into the
    plan's `max_round_clients`. A session that fails adds nothing to the sum of its round. A client
    is asked for its items at most once in a round. With privacy it is asked in at most as many
    rounds as the plan allows, and without privacy in one round only.

    If the plan has a calendar, each round has a period, and its sessions open only in this period.
    If the plan has a calendar and a trusted aggregator adds the noise, a release (a sum that is
    published) gets its noise as soon as no session of its rounds can still run:
    `Deadlines.session` + 1 seconds after the last of their periods.

    Args:
        plan: the campaign's plan, with its keys.
        store: the store, claimed for this driver alone.
        keys: the server's keys.
        deadlines: how long the driver waits; None: the values of `Deadlines()`.
        random: a cryptographic source; `random(n)` returns n uniform bytes.
        screen: what happens to sums that look as if clients lied, as for `FrequencyServer`.
        is_known: returns whether the sums so far are accurate enough, for instance by
            `ending.is_known`. It is needed if the plan has a stopping rule. Then only one round is
            open at a time, and the campaign ends once `is_known` returns True.

    Attributes:
        plan: the plan of the campaign.
        refusals: the number of refused frames and of Aborts from clients together, by the code of
            the reason. The codes tell an operator why clients do not take part.
        invited: how many clients were drawn to get an Invite, in sessions whose first phase this
            driver closed. A client counts once for each such session.
        unanswered: how many of the clients in `invited` did not answer the Invite.
        rejected: the names of the sessions whose sum this driver will never add. Either no honest
            vectors can add up to the sum, or the release of the round was made, or the books have
            the sum already, or the session could not be restored in time. `store.Campaigns.status`
            also lists the sessions that earlier drivers rejected, with the reasons.
        aside: the sessions of the store whose checkpoint cannot be read, by name. The clients of
            such a session get no frame of it, and are drawn for no other session. The session ends
            without a sum when its time is over, unless a later process can read the checkpoint
            before.
        is_overtaken: whether this driver has found that another process runs the campaign, or that
            the campaign was cancelled. If True, this driver never sends anything again.

    Raises:
        InvalidInputError: the plan's secure sum is not `secagg`, the plan has no keys or names
            other keys than `keys`, it has a stopping rule and `is_known` is None, or its cohorts
            cannot be screened as `screen` demands.
        Exception: an error that the store raised.
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
        # The numbers of clients by round for which `is_known` was asked last, and its answer.
        self._judged: tuple[dict[int, int], bool] = {}, False
        self._server = FrequencyServer(plan, store, screen=screen)
        self._server.check_keys(keys.signing_key, keys.allow_list)
        self.plan, self._store, self._keys, self._random = plan, store, keys, random
        self._parameters = agreed.parameters
        self._deadlines = Deadlines() if deadlines is None else deadlines
        # `_phases` and `_replies` are in the order of phases: entries of the same index belong to
        # the same phase.
        self._phases = [step.phase for step in EXCHANGES[self._parameters.adversary]]
        self._replies = [step.reply for step in EXCHANGES[self._parameters.adversary]]
        self._live: dict[bytes, _Live] = {}
        self.aside: dict[bytes, SetAside] = {}
        self._farewells = Farewells(REPEAT_SECONDS)
        deadlines = self._deadlines
        self._pool = Pool(
            plan.protection.allows,
            deadlines.presence,
            deadlines.bench,
        )
        # For each round, the number of the release to which it belongs.
        self._releases = releases_by_round(plan)
        self._periods = periods_of(plan, deadlines.session)
        self._num_closed = 0  # how many rounds were closed when `_release_closed` last added noise
        # What `_open_rounds` last returned; None if it must be computed again.
        self._rooms: dict[int, int] | None = None
        self._rooms_of = range(0)  # the rounds for which `_rooms` was computed
        # For each round with enough clients for a session, but not for a full one: since when, Unix
        # time.
        self._gathering: dict[int, float] = {}
        # Until `Pool.num_arrivals`, which only grows, has reached this number, no client that
        # checks in lets `_open_sessions` do anything new: each round lacks clients. inf: no round
        # waits for clients. A round that gathers clients also opens a session when its wait is
        # over, see `_next_time`.
        self._enough = 0.0
        # When to read the sessions in the store; None if all of them are in memory. A new driver
        # has none of them in memory, so its first tick reads the store.
        self._retry_at: float | None = -math.inf
        # Before this time a tick has nothing to do, unless `_is_stirred`: something happened since
        # the last tick that may make a phase close or a session open.
        self._next_at, self._is_stirred = -math.inf, True
        self._ticked_at = -math.inf  # the engine's time at the last tick
        # The seconds without a tick after which the process counts as away. `_next_time` asks for a
        # tick after half of this time. So the minimum of 1 second means at most two ticks a second.
        # If a phase is shorter than 4 seconds, the minimum is more than a quarter of the phase.
        # Then a pause of up to a second is not noticed.
        self._away_after = max(1.0, AWAY * self._deadlines.phase)
        # The driver's time. It follows the engine's time, but not back by `JITTER` seconds or less.
        self._time = 0.0
        self._drains = self._gives_up = False
        self.invited = self.unanswered = 0
        self.refusals: Counter[AbortCode] = Counter()
        self.rejected: list[bytes] = []
        self.is_overtaken = False
        self._landed: dict[int, int] = {}  # how many clients are in the sum of each round, by round
        self._released: frozenset[int] = frozenset()
        self._read_books()

    # ---- what an engine calls ----

    def check_in(self, client: ClientId, now: float, *, has_heard: bool = True) -> bool:
        """Record that a client is present; return whether it has a session or may be drawn.

        A client that has no session and may not be drawn does not count as present. A client may
        not be drawn if it is benched (see `Deadlines`), if the plan does not allow it another
        round, or if no other round is open, for instance after `drain`. A benched client with a
        session does not count as present, either. If another process runs the campaign
        (`is_overtaken`), the client is not recorded, and the result is False.

        Args:
            client: the client's name in the transport, the same in all calls and all processes.
            now: the time, Unix seconds.
            has_heard: True if the client itself checks in, so that it has handled the frames that
                `next` returned for it. False if something else reports that the client is there,
                such as a list of the machines online.

        Raises:
            LocalProtocolError: `client` is not exactly an int or a str.
            Exception: an error of the store or of `is_known`.
        """
        check_name(client)
        if self.is_overtaken:
            return False
        now = self._note_time(now)
        if has_heard:
            self._farewells.note_heard(client)
        # After `drain` no round is open: then only a client with a session counts as present.
        is_there = self._pool.check_in(client, now, () if self._drains else self._open_rounds())
        # Without this line, a session that waits for this client would not open at the next tick.
        self._is_stirred |= self._pool.num_arrivals >= self._enough
        return is_there

    def holds(self, client: ClientId) -> bool:
        """Return whether a client is in a session, or may be in one that is not restored yet.

        While not all sessions of the store are in memory, this is True for every client.

        Args:
            client: the client's name in the transport.
        """
        return client in self._pool.session_of or self._retry_at is not None

    def next(self, client: ClientId, now: float, *, handled: bytes | None = None) -> bytes | None:
        """Return the frame that a client should handle now, or None if there is nothing to do.

        The first call in a phase returns the frame of the phase. Later calls return it again, at
        most every ten seconds, until the client has answered. If `receive` returned LATE for a
        frame of the client, the next call returns the frame of the phase at once, but only once in
        each phase. After the end of the session, the frame is the farewell, which says how the
        session ended. It is returned again, after ten seconds or after a LATE frame, until the
        client checks in after the farewell was returned, or until the session is forgotten.

        With `handled`, frames that were lost on their way are repeated sooner. Every call returns
        the frame or farewell at once, unless `handled` shows that the client has it. A frame that
        the client has is returned again at most every ten seconds, and a farewell never.

        The result is also None if another process runs the campaign, and for a client in a session
        if this process may have been suspended (see the module).

        Args:
            client: the client's name in the transport, the same in all calls and all processes.
            now: the time, Unix seconds.
            handled: the SHA-256 digest of the last frame that the client handled, or empty bytes if
                it has handled none. None: the transport does not send digests.
        """
        if self.is_overtaken:
            return None
        now = self._note_time(now)
        # No session has an empty name: a client without a session gets None here.
        live = self._live.get(self._pool.session_of.get(client, b""))
        if live is not None and self._is_away(now):
            # another process may run the campaign meanwhile; `tick` asks the store first
            return None
        if live is not None and client in live.frames:
            frame = live.frames[client]
            is_known = handled is None or handled == hashlib.sha256(frame).digest()
            # `abs`, since otherwise a clock that was put back would delay the frame until it has
            # caught up.
            if is_known and abs(now - live.handed.get(client, -math.inf)) < REPEAT_SECONDS:
                return None
            live.handed[client] = now
            return frame
        return self._farewells.next(client, now, handled)

    def receive(self, client: ClientId, frame: bytes, now: float) -> Receipt:
        """Process a frame that a client sent, and return the driver's verdict on it.

        No bytes from a client raise an exception. If another process runs the campaign
        (`is_overtaken`), the frame is ignored, and the verdict is LATE.

        Args:
            client: the client's name in the transport, which must have authenticated the client.
            frame: the bytes that came. Any bytes are allowed.
            now: the time, Unix seconds.

        Raises:
            LocalProtocolError: `client` is not exactly an int or a str.
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
            # The session is over, or this process has not restored it yet.
            self._farewells.note_late(client, message.session)
            return Receipt.LATE
        if self._pool.session_of.get(client) != message.session:
            return self._refuse(AbortCode.WRONG_STATE)
        receipt = self._take(live, client, message)
        if receipt is Receipt.LATE and client not in live.hurried:
            # The client is connected now, so `next` may return the frame of the phase at once. It
            # does so only for the first late frame. Otherwise a client that is late each time would
            # get the same frame as fast as frames travel.
            live.hurried.add(client)
            live.handed.pop(client, None)
        # A tick must now check whether the phase closes. Before the first time of `closes` it
        # closes only when no client is awaited. Later, each frame may be the last one that the
        # session needs.
        self._is_stirred |= not live.frames or now >= live.saved.closes[0]
        return receipt

    def tick(self, now: float) -> float:
        """Open sessions, close phases and add sums that are due; return when to call again.

        The returned time is in Unix seconds. It is inf if nothing will be due. Earlier calls do no
        harm. If a session runs and the next call comes much later than the returned time, the
        driver assumes that the process was suspended (see the module). Call `tick` also after each
        check-in, since a session may only have waited for this client. Call it also after each
        frame with the verdict TAKEN, since a phase may only have waited for this frame.

        Args:
            now: the time, Unix seconds.

        Raises:
            OvertakenError: another process runs this campaign, or it was cancelled. This driver
                never sends anything again.
            OverspentError: the population has too little privacy budget left for the campaign. No
                client was invited.
            Exception: the store raised an error. Or a session of the store cannot be restored,
                although its checkpoint can be read. Call again later.
        """
        if self.is_overtaken:
            raise OvertakenError(
                "another process runs this campaign, or it was cancelled: stop this process"
            )
        now = self._note_time(now)
        # A pause that ended before `_next_at` is too short for `_is_away`: see `_next_time`.
        if not self._is_stirred and now < self._next_at:
            self._ticked_at = now
            return self._next_at
        is_away = self._is_away(now)
        # Without this line, the tick after an error in this tick would return early and do nothing.
        self._is_stirred = True
        try:
            recovers = now >= self._recovers_at
            if is_away or recovers:
                # A later process may have taken over, and this driver must not contradict it. After
                # a restart or a pause, frames are sent again without a write to the store. Only a
                # write would raise OvertakenError, so the store is asked here.
                self._store.check_claim(self.plan)
            if is_away:
                for live in self._live.values():
                    self._renew(live)
            # This line comes after `check_claim`. If that call raised, the process must still count
            # as away.
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
                pass  # there may be clients for a second session of a round
            self._release_closed()
        except OvertakenError:
            self._fall_silent()
            raise
        except BaseException:
            # A session may be missing in memory, or be half restored. The store has all sessions,
            # so they are read again.
            self._retry_at = now + RETRY_SECONDS
            raise
        self._next_at, self._is_stirred = self._next_time(), False
        return self._next_at

    def check_claim(self) -> None:
        """Raise an error if another process has taken over the campaign.

        While nothing is due, `tick` does not use the store, so it would not notice this.

        Raises:
            OvertakenError: another process runs the campaign, or it was cancelled. This driver
                never sends anything again.
            StoreError: the store does not answer.
        """
        with self._silenced():
            self._store.check_claim(self.plan)

    def check_writes(self) -> None:
        """Raise an error if the store still takes no writes after it had an error.

        A `tick` without an error does not show that writes work again: after an error, ticks may
        only read, for instance until a phase ends.

        Raises:
            OvertakenError: another process runs the campaign, or it was cancelled. This driver
                never sends anything again.
            StoreError: the store takes no writes.
        """
        with self._silenced():
            self._store.check_writes(self.plan)

    def check_room(self) -> None:
        """Raise an error if the store's disk is full, or the ledger does not answer.

        While no session runs, a long time may pass without a write. Then no other call would show a
        full disk. In contrast to `check_writes`, this call is not counted in the mark, the file
        that shows whether a store is an old copy. So a copy of the store that was made before this
        call is still up to date after the call.

        Raises:
            StoreError: the disk is full, or the ledger does not answer.
        """
        self._store.check_room(self.plan)

    @contextmanager
    def _silenced(self) -> Iterator[None]:
        """Make the driver silent for ever if the `with` block raises `OvertakenError`."""
        try:
            yield
        except OvertakenError:
            self._fall_silent()
            raise

    def _fall_silent(self) -> None:
        self._live.clear()
        self.aside.clear()
        self._pool.keep(())
        self._farewells.clear()
        self.is_overtaken = True

    # ---- what an operator asks ----

    def drain(self) -> None:
        """Open no more sessions from now on; the sessions that run go on to their end."""
        self._drains, self._is_stirred, self._enough = True, True, math.inf
        self._gathering = {}  # no round waits for clients any more

    def give_up_silent(self) -> None:
        """Open no more sessions, and end each session whose Invite no client has answered.

        The next tick ends these sessions. Nothing is lost, since no client was asked for its items
        yet.
        """
        self.drain()
        self._gives_up = True

    def running(self) -> list[RunningSession]:
        """Return the state of each session here, in the order in which their phases began."""
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
        """How many clients checked in lately, and had a session or could be drawn for one then.

        A client that has missed a frame since is not counted, see `Deadlines.bench`.
        """
        return self._pool.num_present

    @property
    def owes_farewells(self) -> bool:
        """Whether a client must still get a farewell, the last frame of an ended session."""
        return self._farewells.are_owed

    @property
    def is_idle(self) -> bool:
        """Whether no session runs or is set aside, and all sessions of the store were read."""
        return not self._live and not self.aside and self.is_restored

    @property
    def is_restored(self) -> bool:
        """Whether all sessions of the store were read, as after a tick without error."""
        return self._retry_at is None

    @property
    def is_gathering(self) -> bool:
        """Whether a round has enough clients for a session, and waits for more clients."""
        return bool(self._gathering)

    @property
    def is_complete(self) -> bool:
        """Whether no session runs, and no round can have another session, now or later.

        This is also True if the stopping rule of the plan ends the campaign (`has_enough`). It is
        False while a session is set aside, or sessions of the store must still be restored.
        """
        return self.is_idle and self._next_round() is None

    @property
    def wakes_at(self) -> float | None:
        """When the next round opens, Unix seconds; until then no client is asked.

        It is None if a session runs, is set aside or must be restored, if a session may open now,
        or if no round will open.
        """
        round = self._next_round() if self.is_idle else None
        if round is None or (at := self._periods.opens(round)) <= self._time:
            return None
        return at

    @property
    def screening(self) -> Screening:
        """The verdicts on the sums of cohorts that were compared, to find clients that lie.

        The sums are compared when they are read, for instance by `release`.
        """
        return self._server.screening

    def release(self) -> list[CountSketch]:
        """Return the sums as `FrequencyServer.release` does; call this at the end.

        Raises:
            LocalProtocolError: the driver is not idle. If sessions run, call `drain` and wait until
                `is_idle`. If the sessions of the store are not all in memory, call `tick` until
                they are.
            Exception: an error of `FrequencyServer.release` or of the store.
        """
        if not self.is_idle:
            raise LocalProtocolError(
                "sessions run, or the store's sessions are not all in memory: a release now would"
                " lose their sums; drain, and call tick until the driver is idle"
            )
        return self._release()

    def _release(self, num_closed: int | None = None) -> list[CountSketch]:
        # Sums that earlier processes rejected are shown, too.
        self.screening.rejected = Counter(self._store.impossible(self.plan))
        sums = self._server.release(self._random, num_closed)
        self._read_books()
        return sums

    def _release_closed(self) -> None:
        """Add a trusted aggregator's noise to the releases whose rounds are over by the calendar.

        If nobody is trusted to add the noise, nothing is done. Without a calendar, the noise is
        added when `release` is called.
        """
        if self.plan.calendar is None or not self.plan.protection.is_secret:
            return
        closed = self._periods.num_closed(self._now)
        # `num_closed` counts a round only when its last session must be over, so no session is lost
        # here.
        if closed != self._num_closed:
            self._release(closed)
            self._num_closed = closed

    @property
    def _now(self) -> int:
        """The driver's time in whole seconds."""
        return int(self._time)

    def _note_time(self, now: float) -> float:
        """Set the driver's time to the engine's time, but not back by a small step.

        Return the driver's time.

        If the driver followed small steps back, a clock that jumps back and forth would shorten the
        driver's waits with each jump. If the clock was put back by more than `JITTER` seconds,
        these times are put back with it: the check-ins and benches of clients, the waits of rounds,
        the last tick and the next try to read the store.
        """
        back = self._time - now
        if 0 < back <= JITTER:
            return self._time
        self._time = now
        if back > 0:
            # The times at which phases close are not put back. They are in the store, and must not
            # be after `not_after`, which the server signed.
            self._pool.put_back(back)
            self._gathering = {round: at - back for round, at in self._gathering.items()}
            self._ticked_at -= back
            if self._retry_at is not None:
                self._retry_at -= back
            self._is_stirred = True
        return now

    def _is_away(self, now: float) -> bool:
        """Return whether a session runs and `tick` was last called too long ago.

        Then the process may have been suspended, and answers may wait to be read.
        """
        return bool(self._live) and now - self._ticked_at > self._away_after

    # ---- frames ----

    def _take(self, live: _Live, client: ClientId, message: wire.Frame) -> Receipt:
        # The digest only tells a repeated frame from a new one. A client that finds two frames with
        # one digest only changes the receipt for its own frame. So Python's `hash` of the length
        # and both ends is enough. A hash of a whole vector would double the time of this method.
        body = message.body
        digest = hash((message.kind, message.sender, len(body), body[:64], body[-64:]))
        if live.taken.get(client) == digest:
            return Receipt.AGAIN
        session = live.session
        state = session.state
        if state is ServerState.ADVERTISE and message.kind is Kind.ABORT:
            # Without a roster (before this phase ends), the session itself refuses an Abort. But
            # the driver knows whom it invited, and stops waiting for this client. A client that has
            # sent its keys in this phase is in the session already: the next phase waits for it.
            if client in live.taken:
                return self._refuse(AbortCode.WRONG_STATE)
            return self._decline(live, client, message, digest)
        code = session.take(client, message)
        if code is None:
            live.frames.pop(client, None)
            live.taken[client] = digest
            if message.kind is Kind.ABORT:
                # This cannot raise, since `session.take` has decoded the same body already.
                self._note_abort(client, wire.decode_abort(message.body))
                live.gone.add(client)
            return Receipt.TAKEN
        # An answer to an earlier phase is only late: it is not counted as a refusal.
        if message.kind in self._replies[: self._phases.index(state)]:
            return Receipt.LATE
        return self._refuse(code)

    def _decline(self, live: _Live, client: ClientId, message: wire.Frame, digest: int) -> Receipt:
        """Record that a client declined an Invite by an Abort; return the verdict on the frame."""
        try:
            code = wire.decode_abort(message.body)
        except RemoteProtocolError as error:
            return self._refuse(error.code)
        del live.frames[client]
        live.taken[client] = digest
        self._note_abort(client, code)
        return Receipt.TAKEN

    def _note_abort(self, client: ClientId, code: AbortCode) -> None:
        """Count a client's Abort among the refusals, and as a miss of the client."""
        self.refusals[code] += 1
        # A client that refuses this plan would refuse the next session, too, and at once. Without
        # the bench, sessions would open and fail as fast as frames travel.
        self._pool.note_miss(client, self._now)

    def _refuse(self, code: AbortCode) -> Receipt:
        self.refusals[code] += 1
        return Receipt.REFUSED

    # ---- sessions ----

    def _journal(self, live: _Live) -> Callable[[bytes], None]:
        """Return the function that writes a session's checkpoints to the store.

        The session calls the function when it enters a phase, before any frame of the phase is
        sent, and when it ends.
        """

        def write(checkpoint: bytes) -> None:
            # If `live.run` is None, `CohortRun.begin` has not returned the run yet: the session
            # enters its first phase.
            state = ServerState.ADVERTISE if live.run is None else live.session.state
            # In COLLECT each client gets an Inbox, and answers with its items. The same transaction
            # records that these clients were asked, so that no crash can lose this.
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
            # `live.frames` still has the clients that did not answer the phase before this one.
            # Their misses are counted only after the write. If the write fails, the phase is
            # repeated, and misses that were counted before would be counted twice.
            for client in live.frames:
                self._pool.note_miss(client, self._now)

        return write

    def _end(self, session: Server, saved: SavedSession) -> SavedSession:
        """Write a session that has ended, and its sum, in one transaction; return the session.

        If the session has no sum, or the sum is rejected, the session is written with the reason
        instead.
        """
        # Only these clients get the farewell, which is the same for all of them.
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
        """Return the two times, Unix seconds, at which a phase that begins now closes.

        At the first time the phase closes if the session can go on without the missing clients. At
        the second time it closes in any case. Each of the two times leaves enough time for the
        later phases before `not_after`. If there is not enough time left, the two times are now.
        They are also now if the session has ended (`state` is in `_ENDED`).
        """
        if state in _ENDED:
            return self._now, self._now
        later = len(self._phases) - 1 - self._phases.index(state)
        seconds = self._deadlines.phase
        # Each later phase needs `seconds` of its own before the end of the session.
        last = max(self._now, not_after - later * seconds)
        return min(self._now + seconds, last), min(self._now + PATIENCE * seconds, last)

    def _recover(self) -> None:
        """Restore the sessions of the store that are not in memory, after a restart or an error.

        Sessions whose checkpoint cannot be read are set aside, or rejected if their time is over.

        Raises:
            Exception: an error of the store. Or a session cannot be restored, although its
                checkpoint can be read. If the error of a session is an InvalidInputError, all other
                sessions are restored before the error is raised.
        """
        self._retry_at = None  # `tick` sets it again if anything here raises
        # After an error, a session may be out of memory while the pool still has its clients.
        self._pool.keep(self._live)
        self.aside.clear()
        self._read_books()
        problem: Exception | None = None
        for saved in self._store.sessions(self.plan):
            if saved.checkpoint is None:
                if saved.session not in self._farewells:
                    self._bid_farewell(saved)
            elif self._releases[saved.round] in self._released:
                # No sum can be added to the round any more, so no client is asked for it.
                self._finish(self._reject(_next(saved), "the release of its round is out"))
            elif saved.session not in self._live:
                try:
                    self._resume(saved)
                except InvalidInputError as error:
                    # Only this session is at fault, so the other sessions are restored first, and
                    # the error is raised at the end. Any other type of error is a fault of the
                    # whole store, and is raised at once. A session with another fault than a
                    # checkpoint that cannot be read is kept, because its sum may be added once the
                    # fault is mended, for instance a wrong ledger.
                    if isinstance(error, CheckpointError):
                        self._set_aside(saved, error)
                    else:
                        problem = error
        if problem is not None:
            raise problem

    def _set_aside(self, saved: SavedSession, error: CheckpointError) -> None:
        """Keep a session whose checkpoint cannot be read until its time is over, then reject it.

        Until then a later process may be able to read it, and its sum may still be added. So its
        clients are drawn for no other session, and count as clients of its round.

        Args:
            saved: the session as the store has it.
            error: why it cannot be read.
        """
        if self._now > saved.not_after:
            self._finish(self._reject(_next(saved), error))
            return
        self.aside[saved.session] = SetAside(saved, str(error))
        self._pool.begin(saved.session, saved.clients)

    @property
    def _recovers_at(self) -> float:
        """When the sessions of the store are read next, Unix seconds; inf if never."""
        ends = [one.saved.not_after + 1.0 for one in self.aside.values()]
        return min([math.inf if self._retry_at is None else self._retry_at, *ends])

    def _read_books(self) -> None:
        """Read what the store says of clients, rounds and releases into memory.

        This is: the clients that were asked in each round, the number of clients in the sum of each
        round, and the numbers of the releases that were made.
        """
        self._pool.read_asked(self._store.asked(self.plan))
        self._rooms = None
        self._landed = self._store.landed_clients(self.plan)
        self._released = frozenset(self._store.released(self.plan))

    def _resume(self, saved: SavedSession) -> None:
        """Restore a session at the beginning of its phase, or add its sum if it has one."""
        # a session without a checkpoint is over, and `_recover` does not resume it
        assert saved.checkpoint is not None
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
        # Earlier versions of the package wrote a checkpoint with the sum, and added the sum in a
        # later transaction. If their process ended between the two, the sum is added here.
        if live.run.done:
            self._finish(self._end(live.session, _next(saved)))
            return
        # The answers of this phase were only in memory, and are lost. The clients must send them
        # again, so the phase gets its time again, as far as the end of the session allows.
        self._renew(live)
        self._ask(live)
        self._keep(live)

    def _renew(self, live: _Live) -> None:
        """Start the time of a session's phase again; answers that have come still count.

        The phase gets its whole time only if the end of the session, `not_after`, allows it. It
        never gets less time than it had.
        """
        soft, hard = self._closes(live.session.state, live.saved.not_after)
        before = live.saved.closes
        live.saved = replace(live.saved, closes=(max(soft, before[0]), max(hard, before[1])))

    def _keep(self, live: _Live) -> None:
        """Put a session into memory, so that none of its clients is drawn for another session."""
        self._live[live.saved.session] = live
        self._pool.begin(live.saved.session, live.saved.clients)
        self._rooms = None

    def _ask(self, live: _Live) -> None:
        """Prepare the frames of a new phase; no client has answered it yet."""
        assert live.run is not None
        live.frames = {to: frame for to, frame in live.run.outgoing() if to not in live.gone}
        live.taken.clear()
        live.handed.clear()
        live.hurried.clear()

    def _is_due(self, live: _Live) -> bool:
        """Return whether a phase must close now: it waits for nobody, or its time is over.

        `RunningSession.closes` says when the time is over, and it is over in any case after
        `RunningSession.not_after`. After `give_up_silent`, a first phase that no client has
        answered must close, too.
        """
        if not live.frames or self._now > live.saved.not_after:
            return True
        if self._gives_up and live.session.state is ServerState.ADVERTISE and not live.taken:
            return True
        soft, hard = live.saved.closes
        # `can_close` takes a pass over all neighbours, so it is called only when its answer counts.
        return self._now >= hard or (self._now >= soft and live.session.can_close().code is None)

    def _close(self, live: _Live) -> None:
        """Close a phase: begin the next one, or add the sum to its round, or abort the session."""
        assert live.run is not None
        # The session is taken out of memory first: if closing raises, `_recover` restores only
        # sessions that are not in memory. Its clients are kept in a variable, since `_end` replaces
        # them by the clients that get the farewell.
        session, clients = live.saved.session, live.saved.clients
        is_first = live.session.state is ServerState.ADVERTISE
        silent = len(live.frames)
        del self._live[session]
        live.run.deadline_passed(self._now)
        if is_first:
            self.invited += len(clients)
            self.unanswered += silent
        if live.run.done:
            self._finish(live.saved)
            self._pool.end(session, clients)
        else:
            self._ask(live)
            self._live[session] = live

    def _reject(self, saved: SavedSession, reason: Exception | str) -> SavedSession:
        """Write the end of a session whose sum will never be added, and return what was written.

        Args:
            saved: the next version of the session.
            reason: why the sum is not added. Either no honest vectors can add up to it, or the
                release of the round was made, or the books have the sum already, or the session
                could not be restored in time.
        """
        aborted = ServerState.ABORTED.value
        # The store counts a sum as impossible if the reason begins with the word `IMPOSSIBLE`.
        beginning = IMPOSSIBLE if isinstance(reason, RejectedSumError) else "rejected: "
        saved = replace(saved, phase=aborted, checkpoint=None, why=f"{beginning}{reason}")
        self._store.save(self.plan, saved, ())
        self.rejected.append(saved.session)
        return saved

    def _finish(self, saved: SavedSession) -> None:
        """Keep the farewell of a session that has ended, and let `_open_rounds` count anew.

        The places of the session's clients in the sum of its round are free again, except for
        clients whose items are in the sum.
        """
        self._rooms = None
        self._bid_farewell(saved)

    def _bid_farewell(self, saved: SavedSession) -> None:
        """Keep the farewell of a session that has ended, for the clients that must still get it.

        The farewell is kept until the session's `not_after`, and at least for `PATIENCE` phases
        from now. The second limit is for a session that ended only after `not_after`. A session
        that `_recover` rejected has no farewell, but the store keeps the session for the same time.
        """
        clients = saved.clients if saved.farewell else ()
        until = max(saved.not_after, self._now + PATIENCE * self._deadlines.phase)
        self._farewells.bid(saved.session, saved.farewell or b"", clients, until)

    # ---- who takes part ----

    def _open_rounds(self) -> dict[int, int]:
        """Return the rounds that may have another session, and how many clients each may still get.

        The emptiest round comes first, so that rounds fill evenly. All clients of a session that
        runs or is set aside are subtracted, since each of them may end up in its sum.
        """
        rounds = self._one_by_one(self._periods.open_at(self._time))
        if self._rooms is not None and rounds == self._rooms_of:
            return self._rooms
        room = {round: self._room(round) for round in rounds}
        kept = [live.saved for live in self._live.values()]
        for saved in (*kept, *(saved for saved, _ in self.aside.values())):
            if saved.round in room:
                room[saved.round] -= len(saved.clients)
        emptiest = sorted(room.items(), key=lambda one: (-one[1], one[0]))
        self._rooms_of = rounds
        self._rooms = {round: left for round, left in emptiest if left >= self._parameters.n_min}
        return self._rooms

    def _one_by_one(self, rounds: range) -> range:
        """Return the part of `rounds` in which the stopping rule of the plan lets sessions open.

        If the plan has no stopping rule, the result is all of `rounds`, also rounds that are full.
        If the plan has a stopping rule, its rounds are filled one after another: the result is only
        the first of `rounds` that is not full. A round is full if fewer than `n_min` more clients
        fit into its sum. The result is empty if all of `rounds` are full, or if `has_enough`
        returns True.
        """
        if self._is_known is None:
            return rounds
        if self.has_enough():
            return range(0)
        first = next(self._with_room(rounds), rounds.stop)
        return range(first, min(first + 1, rounds.stop))

    def has_enough(self) -> bool:
        """Return whether the stopping rule of the plan ends the campaign now.

        If the rule is not met, the result is False. It is also False in four other cases: the plan
        has no stopping rule; a session runs, is set aside or must be restored; a round that has a
        sum may have another session; or the last round has a sum, so that the campaign is over
        anyway.
        """
        if self._is_known is None or not self.is_idle:
            return False
        if self.plan.num_rounds - 1 in self._landed:
            return False  # the last round has a sum: this is no early end, even if rounds lack sums
        if any(self._landed.get(r, 0) for r in self._with_room(self._periods.left_at(self._time))):
            return False  # the round may have another session: it is judged when it is whole
        if self._judged[0] != self._landed:
            self._judged = dict(self._landed), self._knows(self._is_known)
        return self._judged[1]

    def _knows(self, is_known: Callable[[Sequence[CountSketch]], bool]) -> bool:
        """Return whether the sums so far are accurate enough; False if screening refused all."""
        try:
            return is_known(self._server.so_far())
        except PoisonedError:  # screening refused all cohorts so far, but later cohorts may be good
            return False

    def _room(self, round: int) -> int:
        """Return how many more clients the sum of a round may get; 0 if its release was made.

        Clients of running sessions are not subtracted.
        """
        if self._releases[round] in self._released:
            return 0
        return self.plan.max_round_clients - self._landed.get(round, 0)

    def _next_round(self) -> int | None:
        """Return the first round that may have another session, now or later.

        None: there is no such round, or `has_enough` returns True. Call this only while no session
        runs: clients of running sessions are not subtracted.
        """
        if self.has_enough():
            return None
        return next(self._with_room(self._periods.left_at(self._time)), None)

    def _with_room(self, rounds: range) -> Iterator[int]:
        """Yield the given rounds that may have another session, as if no session ran now."""
        least = self._parameters.n_min
        return (round for round in rounds if self._room(round) >= least)

    def _open_sessions(self) -> bool:
        """Open a session for each round that has clients for it; return whether one was opened.

        A round needs `n_max` clients, or all that still fit into the round if these are fewer.
        After `Deadlines.gather` seconds, or shortly before the period of the round ends, `n_min`
        clients are enough.
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
        """Return until when a round waits for more clients than `n_min`, Unix seconds.

        The time is before the end of the round's period, since the session must open in the period.

        Args:
            round: the number of the round.
            began: when the round began to wait, Unix seconds.
        """
        return min(began + self._deadlines.gather, self._periods.closes(round) - LAST_SECONDS)

    def _draw(self, clients: Sequence[ClientId], size: int) -> tuple[ClientId, ...]:
        """Draw `size` of the clients; each set of this size has the same probability.

        If there are not more clients than `size`, all are returned.
        """
        if len(clients) <= size:
            return tuple(clients)
        # Each client gets 16 uniform bytes, and the clients with the smallest ones are drawn. With
        # up to 2^20 clients, two of them get the same bytes with a probability below 2^-88.
        drawn = self._random(16 * len(clients))
        keys = {c: drawn[16 * place : 16 * place + 16] for place, c in enumerate(clients)}
        return tuple(sorted(clients, key=keys.__getitem__)[:size])

    def _open(self, round: int, clients: tuple[ClientId, ...]) -> None:
        """Charge a plan with privacy to the budget, open a session, and prepare its Invites."""
        if self.plan.protection.is_charged:
            # This reserves the release of the round in the ledger. Only the campaign's first
            # reservation costs epsilon. The charge comes before the first Invite. Otherwise clients
            # could use up their items for a sum that nobody may open.
            charge(self._store, self.plan, self._releases[round])
        session, lifetime = self._random(32), self._deadlines.session
        # `_journal` fills in the checkpoint and the deadlines before the first Invite is sent.
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
        """Return when something is due next, Unix seconds, even if no client sends anything."""
        times = [self._recovers_at]
        for live in self._live.values():
            soft, hard = live.saved.closes
            # The phase is due from the first whole second after `not_after` on, see `_is_due`.
            times.append(min(soft if self._now < soft else hard, live.saved.not_after + 1))
            # A tick is due after half of the time that `_is_away` allows. So an engine that is a
            # little late does not count as away.
            times.append(self._ticked_at + self._away_after / 2)
        if self._retry_at is None and not self._drains:
            times += [self._gathers_until(*one) for one in self._gathering.items()]
        return min(*times, self._farewells.next_end, self._periods.next_change(self._time))


def _next(saved: SavedSession) -> SavedSession:
    """Return a copy of a session with the next version, the only one that the store accepts."""
    return replace(saved, version=saved.version + 1)
