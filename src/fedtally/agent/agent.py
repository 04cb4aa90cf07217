"""The agent: it answers servers for a client, and guards its items, its key and its record.

It does no input or output itself: the caller passes received bytes and the time, and sends the
answer (sans-IO). The agent trusts neither a server nor the process that carries its bytes.

A server calls the client to a session by an Invite. The agent joins the session only if all of
these hold:

- The owner accepted the campaign.
- The server that the plan names signed the Invite.
- The owner's policy allows the plan.
- The round is open by the client's own clock.
- The client's record allows the round.

A session is first recorded; only then the items are read. The state of a session is kept only in
memory. So after a restart the agent takes no part in sessions that began before.

The log tells the owner why a session was refused. The server sees only an error code of the
protocol, or no answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtally.agent.accepted import Campaign
from fedtally.agent.demands import AgentPolicy
from fedtally.agent.items import Items
from fedtally.agent.reading import Reading
from fedtally.campaign.client import FrequencyClient
from fedtally.crypto.keys import SigningKey
from fedtally.errors import FedtallyError, InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.plan.calendar import time_text
from fedtally.privacy.budget import DAY, Cap
from fedtally.secagg import wire
from fedtally.secagg.client import Client, Invitation, read_invite
from fedtally.secagg.messages import AbortCode, ClientState, Kind, RemoteProtocolError
from fedtally.secagg.params import Adversary

if TYPE_CHECKING:
    from fedtally.store import ClientRecord, Journal

MOST_SESSIONS = 4  # the most sessions at the same time
MOST_ENDED = 64  # the number of ended sessions whose last answer is kept
LEAST_BYTES = 4096  # frames up to this length are read whatever the campaigns need
SKEW = 300  # seconds: allowed difference between the clocks of client and server


class Note(NamedTuple):
    """A line of the agent's log, for the owner.

    Attributes:
        what: what happened, in words, without items.
        session: the first 8 hexadecimal digits of the session's identifier; "": the note is about
            no session.
        plan: the first 8 hexadecimal digits of the plan's fingerprint; "": the note is about no
            plan.
        round: the number of the round; None: the note is about no round.
    """

    what: str
    session: str = ""
    plan: str = ""
    round: int | None = None

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (
                ("plan", self.plan),
                ("round", self.round),
                ("session", self.session),
            )
            if value not in ("", None)
        ]
        return f"{', '.join(where)}: {self.what}" if where else self.what


class _Awaited(FrequencyClient):
    """A client whose items are read and encoded while its session already runs.

    Under a plan with privacy, the participation must not depend on the items, and the time of an
    answer should tell little about them. So the Invite is answered before the items are read. If
    they cannot be read, the client contributes the vector of a client without items.

    Attributes:
        reading: the reading of the items; None: it has not been started, because the session has
            not begun.
    """

    reading: Reading | None = None
    _is_made = False  # whether the vector was made; the items are then no longer in memory

    def __init__(self, plan: Plan, items: Items, note: Callable[[str], None]) -> None:
        self._plan, self._items, self._note = plan, items, note

    def read(self, round: int, random: Callable[[int], bytes]) -> None:
        """Start to read and encode the items. The reading also draws at random which items are
        contributed.
        """
        self.reading = self._items.read(
            self._plan,
            lambda client: client.drawn(round, random),
            in_steps=self._plan.privacy is not None,
        )

    def is_due(self, kind: Kind) -> bool:
        """Return whether the answer to a message of this kind needs the items.

        Once the vector is made, no answer needs them.
        """
        return not self._is_made and (self._plan.privacy is None or kind is Kind.INBOX)

    def problem(self) -> Exception | None:
        """Return the error of the reading, which must be over; None: the reading has no error.

        Under a plan with privacy, return None: `contribution` handles the error.
        """
        assert self.reading is not None
        if self._plan.privacy is None:
            try:
                self.reading.client()
            except Exception as error:
                return error
        return None

    def contribution(self, round: int, random: Callable[[int], bytes] | None = None) -> Any:
        """Return the vector of the items, and discard the items.

        If the items cannot be read and the plan has privacy, return the vector of a client without
        items.

        Raises:
            Exception: the items cannot be read, and the plan has no privacy.
        """
        assert self.reading is not None
        try:
            client = self.reading.client()
        except Exception as error:
            if self._plan.privacy is None:
                raise
            self._note(f"takes part with zeros, as if it held no item: {in_words(error)}")
            client = self._items.without(self._plan)
        vector = client.contribution(round, random)
        self._is_made = True
        self.drop()
        return vector

    def drop(self) -> None:
        """Discard the items, if their reading was started."""
        if self.reading is not None:
            self.reading.drop()


@dataclass
class _Live:
    """A session that runs.

    Attributes:
        client: the state machine of the protocol for this client.
        items: the items, from which `client` gets its vector.
        journal: the client's record, for the round of this session.
        plan: the fingerprint of the plan, in hexadecimal.
        not_after: the latest end of the session, Unix seconds.
        sender: the client's number in the session, from the last answer.
        last: the SHA-256 digest of the last frame that was answered.
        earlier: the SHA-256 digests of the frames that were answered before the last one.
        has_joined: whether the answer to the Invite was returned. Under a plan without privacy,
            this answer waits for the items.
    """

    client: Client
    items: _Awaited
    journal: Journal
    plan: str
    not_after: int
    sender: int = wire.UNLISTED
    last: bytes = b""
    earlier: set[bytes] = field(default_factory=set)
    has_joined: bool = False

    def abandon(self) -> None:
        """Wipe the session's secrets, and discard its items. The server gets no message."""
        self.client.abandon()
        self.items.drop()


class _Ended(NamedTuple):
    """What is kept of a session that ended.

    Attributes:
        last: the SHA-256 digest of the last frame that was answered.
        reply: the answer to that frame; None: there was none.
        not_after: the time after which the answer is forgotten in any case, Unix seconds.
    """

    last: bytes
    reply: bytes | None
    not_after: int


class Agent:
    """Guard a client: decide in which sessions it takes part, and answer the servers.

    At most four sessions run at the same time. A new session may end an older one, but only if the
    older one has not sent its secret shares.

    If the last frame of a session is received again, the agent gives the same answer again. For the
    last 64 sessions that ended, this holds until their `not_after`, the latest end that the server
    announced. It does not hold for a session that the agent itself ended, for one of four reasons:
    a newer session needed the room, the session's time was over, the owner left the campaign, or
    the plan was over.

    Use an agent from one thread at a time.

    Args:
        policy: what the owner demands of every plan.
        items: the client's items.
        campaigns: the campaigns that the owner accepted, by the fingerprint of the plan, 32 bytes.
        record: the client's record of its participation. It must have been opened with its mark, a
            second file that detects an old copy of the record. The agent writes the policy's cap
            into it.
        identity: the client's signing key. None: the client has none. Then the client takes part in
            no plan that has an allow-list or is secure against an active server.
        random: a function that returns the requested number of uniform bytes from a cryptographic
            source. A thread that reads items may call it at the same time.
        now: the time, Unix seconds.
        log: called with each note for the owner.
        once: a label of the items, a new one for new items. The record allows each label only once,
            over all plans. None: there is no label.

    Raises:
        InvalidInputError: the policy has no cap (a bound on the total privacy cost), and there is
            no label, so a second plan could count the same items again. Or the record has a cap and
            the policy has none. Or the policy has a new cap, and the client took part in a plan
            without differential privacy before, which no cap can cover.
    """

    def __init__(
        self,
        policy: AgentPolicy,
        items: Items,
        campaigns: Mapping[bytes, Campaign],
        record: ClientRecord,
        *,
        identity: SigningKey | None,
        random: Callable[[int], bytes],
        now: float,
        log: Callable[[Note], None] = lambda note: None,
        once: str | None = None,
    ) -> None:
        bind(record, policy, once, now)
        self._policy, self._items, self._campaigns = policy, items, campaigns
        self._record, self._identity, self._random = record, identity, random
        self._log, self._once = log, once
        self._live: dict[bytes, _Live] = {}  # by the session's identifier; the oldest first
        self._ended: dict[bytes, _Ended] = {}

    def __repr__(self) -> str:
        return f"Agent({len(self._live)} sessions)"

    def __getstate__(self) -> None:
        raise InvalidInputError("an agent is secret: it cannot be copied or pickled")

    @property
    def most_bytes(self) -> int:
        """The most bytes that a frame for any accepted campaign can have, at least 4096."""
        # The owner may delete a campaign between the two calls; `get` then returns None.
        accepted = [self._campaigns.get(name) for name in list(self._campaigns)]
        # `LEAST_BYTES` is for an agent without any accepted campaign: it must still read an Invite,
        # to write it into the log.
        return max([LEAST_BYTES, *(one.most_bytes for one in accepted if one is not None)])

    def answer(self, frame: bytes, now: float) -> bytes | Reading | None:
        """Process a received frame, and return the answer.

        No `Exception` is raised: an error is logged for the owner, and the answer is None or a
        refusal.

        Args:
            frame: the received bytes; any bytes are allowed.
            now: the time, Unix seconds.

        Returns:
            The bytes of the answer, or None if there is no answer. Or a `Reading`, if the answer
            needs items that are still being read: wait until it is over, then call again with the
            same frame. Other frames may be processed in between. Under a plan without privacy the
            answer to the Invite needs the items. Under a plan with privacy only the answer to the
            Inbox does. The Inbox is the later message with the shares of the other clients.
        """
        try:
            return self._answer(frame, int(now))
        except Exception as error:  # logged for the owner; the server gets no answer
            self._note(f"failed: {in_words(error)}")
            return None

    def expire(self, now: float, but: bytes = b"") -> None:
        """End the sessions whose latest end has passed: wipe their secrets, and log this.

        The kept answers of sessions whose latest end has passed are forgotten as well.

        Args:
            now: the time, Unix seconds.
            but: the identifier of a running session that is not ended.
        """
        for session, live in list(self._live.items()):
            if now > live.not_after and session != but:
                del self._live[session]
                live.abandon()
                self._note("ran out of time", session, live)
        self._ended = {
            session: ended for session, ended in self._ended.items() if now <= ended.not_after
        }

    def close(self) -> None:
        """End all sessions, and wipe their secrets. To the servers, this client looks like a
        dropout.
        """
        for live in self._live.values():
            live.abandon()
        self._live.clear()
        self._ended.clear()

    # ---- sessions ----

    def _answer(self, frame: bytes, now: int) -> bytes | Reading | None:
        message = wire.parse(frame)
        if message is None or message.sender != wire.SERVER:
            self._note("dropped bytes that are no frame of a server")
            return None
        # The session of this frame is not ended here, even if its latest end has passed. Otherwise
        # the server would not get the code EXPIRED as an answer.
        self.expire(now, but=message.session)
        seen = hashlib.sha256(frame).digest()
        live, ended = self._live.get(message.session), self._ended.get(message.session)
        if live is not None:
            return self._held_up(live, message, seen) or self._go_on(
                live, message, frame, seen, now
            )
        if ended is not None:
            if seen == ended.last:
                return ended.reply
            self._note_result(message)
            return None
        if message.kind is not Kind.INVITE:
            self._note(
                f"dropped a {message.kind.name} of a session that this agent is not in: it is over,"
                " or began before the agent was started",
                message.session,
            )
            return None
        return self._invited(message, frame, seen, now)

    def _go_on(
        self, live: _Live, message: wire.Frame, frame: bytes, seen: bytes, now: int
    ) -> bytes | None:
        # A network may deliver a copy of a frame late, when a later frame was answered already. The
        # state machine would see a message out of order, and end the session.
        if seen in live.earlier:
            return None
        if why := self._why_over(live, now):
            del self._live[message.session]
            live.abandon()
            self._note(f"ended: {why}", message.session, live)
            return _abort(AbortCode.POLICY, message.session, live.sender)
        # Otherwise participation would be recorded with the time of the Invite.
        live.journal.at(now)
        try:
            reply = live.client.receive(frame, now)
        except Exception as error:  # raised by the record, the items or the random source
            self._note(f"failed: {in_words(error)}", message.session, live)
            reply = _abort(AbortCode.INTERNAL, message.session, live.sender)
        if live.client.state is ClientState.ABORTED:
            self._note(_ending(live, message), message.session, live)
            self._end(message.session, live, seen, reply)
        elif seen != live.last and reply is not None:
            answer = wire.parse(reply)
            assert answer is not None
            live.earlier.add(live.last)
            live.last, live.sender = seen, answer.sender
            if answer.kind is Kind.MASKED_INPUT:
                self._note("contributed: the round counts from now on", message.session, live)
            if live.client.state is ClientState.DONE:
                self._note("unmasked: this client's part is done", message.session, live)
                self._end(message.session, live, seen, reply)
        return reply

    def _held_up(self, live: _Live, message: wire.Frame, seen: bytes) -> bytes | Reading | None:
        """Return the answer to a message that must not be processed now; None: process it now.

        If the message needs items that are still being read, the answer is their `Reading`. If the
        items cannot be read and the plan has no privacy, the session is ended, and the answer is
        the refusal.
        """
        if live.items.is_due(message.kind):
            reading = live.items.reading
            assert reading is not None
            if not reading.is_over:
                return reading
            problem = live.items.problem()
            if problem is not None:
                reply = self._refuse(problem, message.session, live)
                live.abandon()
                self._end(message.session, live, seen, reply)
                return reply
        if not live.has_joined:
            live.has_joined = True
            self._note("joined", message.session, live)
        return None

    def _why_over(self, live: _Live, now: int) -> str | None:
        """Return, in words, why a session must end early; None: it goes on.

        It must end if the owner left the campaign or the plan is over. A session in which this
        client has sent its masked vector is not ended for these reasons.
        """
        # Once the vector is sent, the items count as used. Ending the session would protect
        # nothing, and unmasking the sum reveals nothing more.
        if live.client.state not in (ClientState.ADVERTISED, ClientState.SHARED):
            return None
        campaign = self._campaigns.get(bytes.fromhex(live.plan))
        if campaign is None:
            return "its campaign is not accepted any more"
        return campaign.why_over(self._record, now)

    def _end(self, session: bytes, live: _Live, seen: bytes, reply: bytes | None) -> None:
        """Remove a session from the running ones, and keep its last answer.

        If the server sends the last frame again, it gets the same answer, until `not_after` or
        until `MOST_ENDED` later sessions have ended.
        """
        self._live.pop(session, None)
        live.items.drop()
        self._ended[session] = _Ended(seen, reply, live.not_after)
        if len(self._ended) > MOST_ENDED:
            # The oldest; the record still knows its session.
            del self._ended[next(iter(self._ended))]

    def _note_result(self, message: wire.Frame) -> None:
        """Log the result of a session that has ended, as the server reports it; nothing else uses
        it.
        """
        if message.kind is Kind.RESULT:
            try:
                survivors = wire.decode_result(message.body).survivors
            except RemoteProtocolError:
                return
            self._note(f"the server has the sum of {survivors} vectors", message.session)

    # ---- Invites ----

    def _invited(
        self, message: wire.Frame, frame: bytes, seen: bytes, now: int
    ) -> bytes | Reading | None:
        if message.version != wire.VERSION:
            # Anybody may have sent this, and another version may have other fields in these
            # places. So neither a plan nor a session is read from it, and of its content only the
            # version is logged.
            self._note(
                f"dropped an Invite of version {message.version} of the protocol: this agent speaks"
                f" version {wire.VERSION}, and cannot check who sent it"
            )
            return None
        fingerprint = _named_plan(message)
        campaign = None if fingerprint is None else self._campaigns.get(fingerprint)
        if fingerprint is None or campaign is None or campaign.server_key is None:
            shown = "" if fingerprint is None else f" {fingerprint.hex()[:16]}"
            self._note(
                f"dropped an Invite of a plan{shown} that was not accepted, or has no sessions, or"
                " whose files cannot be read (fedtally agent check)",
                message.session,
            )
            return None
        invite = read_invite(frame, server_key=campaign.server_key, fingerprint=fingerprint)
        if invite is None:
            self._note("dropped an Invite that the plan's server did not sign", message.session)
            return None
        from fedtally.store import Journal  # imported here because it loads slowly

        plan = campaign.plan
        journal = Journal(self._record, plan, invite.round, now, self._once)
        try:
            refusal = self._refusal(campaign, invite, journal, now)
            if refusal is None and not self._has_room():
                # No answer is sent: the server sends the Invite again, and a session may be over by
                # then.
                self._note("busy: all sessions are past the shares", message.session, plan, invite)
                return None
            if refusal is None:
                live = self._join(campaign, message.session, invite, journal)
        except Exception as error:
            return self._refuse(error, message.session, plan, invite)
        if refusal is not None:
            code, why = refusal
            self._note(f"refused ({code.name}): {why}", message.session, plan, invite)
            return _abort(code, message.session, wire.UNLISTED)
        live.last = seen
        reply = self._go_on(live, message, frame, seen, now)
        if live.client.state is not ClientState.ADVERTISED:
            # The client did not join, so a copy of this Invite may get another answer.
            self._ended.pop(message.session, None)
            return reply
        self._make_room()
        self._live[message.session] = live
        answer = wire.parse(reply or b"")
        assert answer is not None
        live.sender = answer.sender
        # The session is recorded now, so no second copy of this Invite can start a read of the
        # items.
        live.items.read(invite.round, self._random)
        return self._held_up(live, message, seen) or reply

    def _refusal(
        self, campaign: Campaign, invite: Invitation, journal: Journal, now: int
    ) -> tuple[AbortCode, str] | None:
        """Return the error code and the reason why the client must not join a session; None: it
        may.

        Args:
            campaign: the accepted campaign that the Invite names.
            invite: the Invite, signed by the server of the plan.
            journal: the client's record, for the round that the Invite names.
            now: the time, Unix seconds.

        Raises:
            InvalidInputError: a check that does not read the items shows that they cannot be read.
        """
        if not invite.not_before <= now <= invite.not_after:
            return AbortCode.EXPIRED, AbortCode.EXPIRED.meaning
        if why := campaign.why_over(self._record, now):
            return AbortCode.POLICY, f"the plan is over: {why}"
        found = demands(campaign, self._policy, self._items, self._identity)
        for reason in found:
            return AbortCode.POLICY, reason
        if invite.round >= campaign.plan.num_rounds:
            return AbortCode.POLICY, f"the plan has {campaign.plan.num_rounds} rounds"
        if why := why_closed(campaign.plan, invite.round, invite.not_before, now):
            return AbortCode.POLICY, why
        begun, cap, refusal = journal.standing(since=max(0, now - DAY))
        if begun >= (most := self._policy.sessions_a_day):
            why = f"{begun} sessions in a day, and the policy (sessions_a_day) allows {most}"
            return AbortCode.POLICY, why
        if why := other_cap(cap, self._policy):
            return AbortCode.POLICY, why
        # The record will be asked again, with the Inbox. Without this first check, a server could
        # obtain keys and shares for a round in which this client cannot take part.
        if refusal is not None:
            return AbortCode.ITEM_SPENT, refusal
        self._items.check_there()
        return None

    def _refuse(
        self,
        error: Exception,
        session: bytes,
        of: _Live | Plan,
        invite: Invitation | None = None,
    ) -> bytes:
        """Log an error that makes the client refuse, and return the bytes of the refusal.

        The code in the refusal is POLICY for an InvalidInputError, such as a demand of the owner.
        It is INTERNAL for an UnreadableFileError and for every error of another class.
        """
        # An unreadable file, such as the file of the items, is not a demand of the owner.
        is_demand = isinstance(error, InvalidInputError)
        is_demand &= not isinstance(error, UnreadableFileError)
        code = AbortCode.POLICY if is_demand else AbortCode.INTERNAL
        self._note(f"refused ({code.name}): {in_words(error)}", session, of, invite)
        return _abort(code, session, of.sender if isinstance(of, _Live) else wire.UNLISTED)

    def _join(
        self, campaign: Campaign, session: bytes, invite: Invitation, journal: Journal
    ) -> _Live:
        """Return a new session, in which no message was processed and no item was read yet."""
        plan = campaign.plan
        active = plan.summing.of_cohorts().parameters.adversary is Adversary.ACTIVE
        items = _Awaited(plan, self._items, lambda what: self._note(what, session, plan, invite))
        client = items.join(
            invite.round,
            self._policy.sums_of(campaign.plan),
            journal=journal,
            random=self._random,
            identity=self._identity if active else None,
            allow_list=campaign.allow_list,
            privacy=self._policy.privacy,
        )
        return _Live(client, items, journal, plan.fingerprint, invite.not_after)

    def _has_room(self) -> bool:
        return len(self._live) < MOST_SESSIONS or any(
            _may_be_left(live) for live in self._live.values()
        )

    def _make_room(self) -> None:
        """If `MOST_SESSIONS` run, end the oldest one that has not sent its secret shares.

        Call this only if `_has_room` returns True: otherwise all of them have sent their shares.
        """
        if len(self._live) < MOST_SESSIONS:
            return
        session, live = next(
            (session, live) for session, live in self._live.items() if _may_be_left(live)
        )
        del self._live[session]
        live.abandon()
        self._note("left for a newer session, before it dealt shares", session, live)

    def _note(
        self,
        what: str,
        session: bytes = b"",
        of: _Live | Plan | None = None,
        invite: Invitation | None = None,
    ) -> None:
        plan = "" if of is None else of.plan if isinstance(of, _Live) else of.fingerprint
        round = of.journal.round if isinstance(of, _Live) else invite.round if invite else None
        # A log that cannot be written, for example because a disk is full, must not keep the client
        # from answering.
        with suppress(Exception):
            self._log(Note(what, session.hex()[:8], plan[:8], round))


def bind(record: ClientRecord, policy: AgentPolicy, once: str | None, now: float) -> None:
    """Write the policy's cap, a bound on the total privacy cost, into the client's record.

    Nothing is written if the policy has no cap, or the record has the same cap already.

    Args:
        record: the client's record.
        policy: what the owner demands of every plan.
        once: a label of the items; None: there is no label.
        now: the time, Unix seconds.

    Raises:
        InvalidInputError: as for `check_binds`.
    """
    check_binds(record, policy, once)
    if policy.cap is not None and policy.cap != record.capped():
        cap = policy.cap
        record.cap(cap.epsilon, cap.delta, int(now), cap.relation, cap.per_days)


def check_binds(record: ClientRecord, policy: AgentPolicy, once: str | None) -> None:
    """Check that a client's record can enforce the owner's policy. Nothing is recorded.

    Args:
        record: the client's record.
        policy: what the owner demands of every plan.
        once: a label of the items; None: there is no label.

    Raises:
        InvalidInputError: the policy has no cap (a bound on the total privacy cost), and there is
            no label. Or the policy has no cap, and the record has one. Or the policy has a new cap,
            and the client took part in a plan without differential privacy before, which no cap can
            cover.
    """
    if policy.cap is None and once is None:
        raise InvalidInputError(
            "without an epsilon the items need a label (once): a new plan could else let the same"
            " items out again; change the label when the items are new"
        )
    before = record.capped()
    if policy.cap is None and before is not None:
        raise InvalidInputError(
            f"the record has a cap of epsilon {before.epsilon:g}, which is never lifted: set"
            " policy.epsilon, or begin anew with a new key and a new record"
        )
    if policy.cap is not None and policy.cap != before:
        record.check_coverable()


def refusals(
    campaign: Campaign,
    policy: AgentPolicy,
    items: Items,
    identity: SigningKey | None,
    record: ClientRecord,
    once: str | None = None,
    now: float = 0.0,
) -> list[str]:
    """Return the reasons, in words, why a client can take part in no further round of a campaign.

    Policy, items and record are taken as they are now. A cap that is used up now, but renews after
    some days, is no reason. Whether the plan is over is not checked, see `Campaign.why_over`. If
    the settings give no reason, the items are read: an error of the reading is a reason. Nothing is
    recorded.

    Args:
        campaign: the campaign.
        policy: what the owner demands of every plan.
        items: the client's items.
        identity: the client's signing key; None: it has none.
        record: the client's record.
        once: a label of the items; None: there is no label.
        now: the time, Unix seconds.
    """
    found = list(demands(campaign, policy, items, identity))
    if not found:
        try:
            items.check_there()
            reading = items.read(campaign.plan)
            reading.wait()
            reading.client()
        except Exception as error:
            found.append(f"the items: {in_words(error)}")
    plan, taken = campaign.plan, record.participations(campaign.plan.fingerprint)
    left = _round_left(plan, taken, now)
    if left is None:
        found.append(
            "this client took part in every round of the plan"
            if len(taken) == plan.num_rounds
            else "no round is left of the plan's calendar in which this client may take part"
        )
    else:
        from fedtally.store import Journal

        newest = max([int(now), *(part.time for part in record.parts())])
        days = 0 if policy.cap is None else policy.cap.per_days or 0
        journal = Journal(record, plan, left, newest + days * DAY, once)
        # If the plan alone exceeds the cap, that reason is in the list already.
        is_refused = policy.privacy is not None and any(policy.privacy.refusals(plan.privacy))
        if not journal.may_spend(policy.cap) and not is_refused:
            found.append(journal.refusal)
    return found


def _round_left(plan: Plan, taken: list[int], now: float) -> int | None:
    """Return a round in which the client may still take part; None: no round is left.

    A plan with privacy bounds how often a client takes part. If it allows no round after the rounds
    in `taken`, return the first round that is neither in `taken` nor over. The record then says why
    that round is not allowed.
    """
    calendar, event = plan.calendar, None if plan.privacy is None else plan.privacy.event
    left = [
        round
        for round in range(plan.num_rounds)
        if round not in taken and (calendar is None or calendar.closes(round).timestamp() > now)
    ]
    allowed = (round for round in left if event is None or event.allows(taken, round))
    return next(allowed, left[0] if left else None)


def why_closed(plan: Plan, round: int, began: int, now: float) -> str:
    """Return, in words, why a round is not open by the client's own clock; "": it is open.

    A round of a plan without a calendar is always open. Otherwise two things must hold. `now` is
    within the round's period, with a tolerance of `SKEW` seconds. `began` is before the end of the
    period. The begin alone is not enough, because it is only a claim of the server: a server could
    ask for the rounds of many days within one day.

    Args:
        plan: the plan.
        round: the number of the round.
        began: the begin of the session as the server claims it, Unix seconds.
        now: the time, Unix seconds.
    """
    calendar = plan.calendar
    if calendar is None:
        return ""
    opens, closes = calendar.opens(round), calendar.closes(round)
    is_its_time = opens.timestamp() - SKEW <= now < closes.timestamp() + SKEW
    if is_its_time and began < closes.timestamp():
        return ""
    period = f"{time_text(opens)} to {time_text(closes)}"
    return f"round {round} is open from {period} (UTC), and by this client's clock it is not"


def other_cap(cap: Cap | None, policy: AgentPolicy) -> str:
    """Return, in words, that the record's cap differs from the policy's cap; "": they are equal.

    They differ if another agent wrote its own cap after this agent was started.

    Args:
        cap: the cap of the record; None: it has none.
        policy: what the owner demands of every plan.
    """
    if cap == policy.cap:
        return ""
    days = "" if cap is None or cap.per_days is None else f" in {cap.unit}"
    held = "no cap" if cap is None else f"a cap of epsilon {cap.epsilon:g}{days}"
    return (
        f"the record has {held} by now, and this agent was started with another one: start it anew"
    )


def demands(
    campaign: Campaign, policy: AgentPolicy, items: Items, identity: SigningKey | None
) -> Iterator[str]:
    """Yield, in words, every reason in the campaign and the settings against taking part.

    Nothing is yielded if the client may take part. Neither the client's record nor the content of
    the items is read.

    Args:
        campaign: the campaign.
        policy: what the owner demands of every plan.
        items: the client's items.
        identity: the client's signing key; None: it has none.
    """
    own = None if identity is None else identity.public
    yield from policy.refusals(campaign.plan, campaign.allow_list, own)
    if reason := items.refusal(campaign.plan):
        yield reason
    try:
        items.domain(campaign.plan)
    except InvalidInputError as error:
        yield error.in_shell
    listed = campaign.allow_list
    if listed is not None and (identity is None or identity.public not in listed):
        yield (
            "this client's key is not in the allow-list of the plan: have it registered, and take"
            " the plan that names the new list"
        )


def _may_be_left(live: _Live) -> bool:
    """Return whether a session may be ended for a newer one: it has not sent its secret shares."""
    # Before that, no other client depends on this client.
    return live.client.state is ClientState.ADVERTISED


def _named_plan(message: wire.Frame) -> bytes | None:
    """Return the fingerprint of the plan that an Invite names, 32 bytes; None: it cannot be read.

    The signature of the Invite is not verified here.
    """
    try:
        terms, _ = wire.split_invite(message.body)
        return wire.decode_terms(terms).fingerprint
    except RemoteProtocolError:
        return None


def _abort(code: AbortCode, session: bytes, sender: int) -> bytes:
    return wire.frame(Kind.ABORT, session, sender, bytes([code]))


def _ending(live: _Live, message: wire.Frame) -> str:
    code = live.client.code
    by = "the server ended it" if message.kind is Kind.ABORT else "ended"
    why = live.journal.refusal or live.client.reason
    return f"{by} ({'' if code is None else code.name}): {why}"


def in_words(error: Exception) -> str:
    """Return a text about an error that contains no item.

    An error of fedtally gives its message. Any other error gives only its type and the place in the
    code where it was raised.
    """
    if isinstance(error, FedtallyError):
        return error.in_shell
    # The message of this error may quote an item, and users other than the owner may read the log.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f", {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f"{type(error).__name__}{where}"
