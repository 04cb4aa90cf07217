"""Run a client of secure summation, sans-IO: the server's bytes come in, its answers go out.

docs/protocol.md specifies every byte and check. Its section "Claim of `active`" has a table of the
checks a to j that the security proof needs. Comments here name the check ("check a"), and the
attack that it stops. The protocol builds on Bonawitz et al. 2017 (double masks, Shamir recovery,
consistency check). The ring of `semi-honest` is by Bell et al. 2020.

>>> from fedtally.crypto.keys import Secret, SigningKey
>>> from fedtally.secagg.params import ClientPolicy
>>> pinned = Pinned(server_key=SigningKey(Secret(bytes(32))).public, fingerprint=bytes(32), round=0)
>>> policy, journal = ClientPolicy(adversary="semi-honest", min_honest=50), MemoryJournal()
>>> client = Client(policy, pinned, lambda invite: np.zeros(1), journal=journal, random=bytes)
>>> client.state, client.receive(b"noise", now=0)
(<ClientState.NEW: 'new'>, None)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto import keys, shamir
from fedtally.crypto.keys import ExchangeKey, Label, RejectedError, Secret, SigningKey
from fedtally.crypto.prg import Lanes, Masking, lane
from fedtally.errors import InvalidInputError
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.graph import Neighbourhood
from fedtally.secagg.messages import (
    TRANSITIONS,
    AbortCode,
    Advert,
    Bits,
    ClientState,
    Inbox,
    Invite,
    Kind,
    LocalProtocolError,
    RemoteProtocolError,
    Result,
    Unmask,
)
from fedtally.secagg.packing import pack
from fedtally.secagg.params import ClientPolicy, Parameters

# A client has two secrets: b, the seed of its self mask, and the seed of its mask key. They lie
# side by side in one array, so that they are split into shares together. A neighbour holds shares
# of both, and must never reveal more than one of the two: with both, the server could unmask the
# client's vector.
_B = slice(0, shamir.SECRET_ELEMENTS)
_KEY = slice(shamir.SECRET_ELEMENTS, 2 * shamir.SECRET_ELEMENTS)


class Journal(Protocol):
    """Record durably what a client must still know after a crash.

    A journal serves one identity (a device) and one of its items. An item is what the client
    contributes to one sum; for a `store.Journal` it is the contribution to one round of a plan.

    The journals of all items of an identity have the record of its sessions in common, so that no
    identity is in a session twice. Each item has a mark of its own: the item is spent, that is, its
    vector may have left the client. Each method returns only once its fact is durable. No fact is
    undone, except that the record of a session may be deleted after its end.
    """

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session before it begins; return False if it was recorded before.

        Args:
            session: the identifier of the session, 32 bytes.
            not_after: the end of the session, Unix seconds; the record of the session may be
                deleted after it.
        """

    def spend(self, session: bytes) -> bool:
        """Mark the item as spent, in one atomic step; return False if it may not be spent.

        The item may not be spent if it was spent before, even for this same session, or if the
        client's record does not allow it: for instance, because the round would cost more privacy
        than the client's owner allows.

        Args:
            session: the identifier of the session that the item's vector goes to, 32 bytes.
        """


@dataclass
class MemoryJournal:
    """Record sessions and a spent item in memory, for simulations.

    Nothing is durable: in a simulation the items do not outlive the process either.

    >>> journal = MemoryJournal()
    >>> journal.begin(b"1", 9), journal.begin(b"1", 9), journal.spend(b"1"), journal.spend(b"2")
    (True, False, True, False)
    """

    sessions: set[bytes] = field(default_factory=set)
    is_spent: bool = False

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session; return False if it was recorded before."""
        new = session not in self.sessions
        self.sessions.add(session)
        return new

    def spend(self, session: bytes) -> bool:
        """Mark the item as spent; return False if it was spent before."""
        fresh, self.is_spent = not self.is_spent, True
        return fresh


@dataclass(frozen=True)
class Pinned:
    """Hold what a client knows beforehand, from another source than the server that sums.

    Args:
        server_key: the server's public Ed25519 key, 32 bytes, from the plan; it verifies Invites.
        fingerprint: the fingerprint of the plan, 32 bytes.
        allow_list: the keys of the clients that may take part; None in `semi-honest`.
        parameters: the parameters of the plan; an Invite with other parameters is refused. None:
            the policy alone decides.
        round: the round that the client takes part in, 0 .. 2^32 - 1; an Invite for any other round
            is refused.

    Raises:
        InvalidInputError: a value has a wrong size or is out of range, or `check_identity` refuses
            the server's key.
    """

    server_key: bytes
    fingerprint: bytes
    allow_list: AllowList | None = None
    parameters: Parameters | None = None
    round: int = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "round", validate.integer(0, 2**32 - 1, round=self.round))
        for name in ("server_key", "fingerprint"):
            value = getattr(self, name)
            if not isinstance(value, bytes) or len(value) != keys.KEY_BYTES:
                raise InvalidInputError(f"{name} must be {keys.KEY_BYTES} bytes")
        # Under a key of low order anybody can sign: Invites under such a key would prove nothing.
        keys.check_identity(self.server_key)


class Invitation(NamedTuple):
    """Hold what `read_invite` returns: the terms of a verified Invite.

    Attributes:
        session: the identifier of the session, 32 bytes.
        round: the round of the campaign that the Invite is for.
        not_before: the start of the session, Unix seconds.
        not_after: the end of the session, Unix seconds.
        parameters: the parameters of the cohort.
    """

    session: bytes
    round: int
    not_before: int
    not_after: int
    parameters: Parameters


@dataclass(repr=False)
class _Secrets:
    """Hold the secrets of a session; they are never printed, and wiped however the session ends."""

    elements: shamir.U32 | None = None  # [10]: the seed of the self mask, then that of the mask key
    mask_key: ExchangeKey | None = None
    encryption_key: ExchangeKey | None = None
    unsealing: list[Secret] = field(default_factory=list)  # the keys of the neighbours' shares
    own_share: shamir.U32 | None = None
    held: shamir.U32 | None = None  # the shares of the neighbours, [k, 10]

    def wipe(self) -> None:
        # The arrays are overwritten. Otherwise their bytes would stay in memory after it is freed.
        for array in (self.elements, self.own_share, self.held):
            if array is not None:
                array.fill(0)
        for key in (self.mask_key, self.encryption_key, *self.unsealing):
            if key is not None:
                key.wipe()

    def __getstate__(self) -> None:
        raise InvalidInputError("the state of a client is secret: it cannot be copied or pickled")


class Client:
    """Take part in one session as a client.

    The client accepts each type of message once, in the order of `messages.EXCHANGES`. Until the
    session is aborted, the last message that it answered may come again, byte for byte, and gets
    the same answer again. The client drops bytes that are no frame of the server in this session.
    Before its session it drops everything but an Invite that the server signed. From this Invite
    until the client's last answer, any other message of the wrong type or content ends the session
    for good, and every secret is wiped. After its last answer the client only records a Result or
    an Abort. A restarted client cannot rejoin its session.

    Args:
        policy: what the client demands of the parameters.
        pinned: what the client knows beforehand.
        contribution: a function from an Invite to the vector to be summed: integers [V], each
            within +-(2^(bits - 1) - 1). It is called at most once, after the checks of the Inbox
            and just before the item is marked as spent.
        journal: the durable record of the sessions and of the spent item.
        random: a function that returns a given number of uniform bytes, from a cryptographic
            source.
        identity: the signing key of the client's entry in the allow-list; needed in `active`, and
            None otherwise.

    Attributes:
        state: the last step that the client has taken.
        invite: the terms of the session; None until an Invite was decoded.
        code: why the session ended without a result; None while the session goes on, and after a
            Result (unless `abandon` was called).
        reason: the same reason in words, for the client's owner alone; "" if `code` is None.
        result: the Result that the server announced; None until then.

    Raises:
        InvalidInputError: `identity` or the allow-list is missing or not needed, or the identity is
            not in the list.

    Use it from one thread at a time: two calls of `receive` at once could answer twice.
    """

    def __init__(
        self,
        policy: ClientPolicy,
        pinned: Pinned,
        contribution: Callable[[Invite], npt.NDArray[np.integer]],
        *,
        journal: Journal,
        random: Callable[[int], bytes],
        identity: SigningKey | None = None,
    ) -> None:
        signs = policy.adversary.has_identities
        if signs != (identity is not None) or signs != (pinned.allow_list is not None):
            raise InvalidInputError(
                "identity and allow_list both go with the adversary active, and the policy says"
                f" {policy.adversary}"
            )
        # The client's number for the header of each message. In `active` it is the rank in the
        # allow-list, and in `semi-honest` the index, once there is a roster.
        self._sender = wire.UNLISTED
        if identity is not None and pinned.allow_list is not None:
            self._sender = pinned.allow_list.rank(identity.public)
        self.state = ClientState.NEW
        self.invite: Invite | None = None
        self.code: AbortCode | None = None
        self.reason = ""
        self.result: Result | None = None
        self._policy, self._pinned, self._contribution = policy, pinned, contribution
        self._journal, self._random, self._identity = journal, random, identity
        self._secrets = _Secrets()
        self._session = b""
        self._last, self._reply = b"", b""

    def __getstate__(self) -> None:
        # A copy of the client could answer a second Roster, or a second Survivors, in the same
        # session (checks a and g). Then both secrets of the client would be open.
        raise InvalidInputError("the state of a client is secret: it cannot be copied or pickled")

    def receive(self, data: bytes, now: int) -> bytes | None:
        """Process a message of the server; return the answer, or None if there is none.

        Args:
            data: the bytes that came; any bytes are allowed.
            now: the time, Unix seconds.

        Returns:
            The bytes to send to the server: an answer, the same answer to a copy of the last
            message, or an Abort if the message is refused. None: the bytes were dropped, they were
            an Abort, or a new message after the client's last answer, or the session was aborted
            before.

        Raises:
            LocalProtocolError: the contribution is not what the Invite asks for; the session is
                aborted.
            InvalidInputError: `random` returned a wrong number of bytes for a secret; the session
                is aborted.
            Exception: any error of `contribution`, `journal` or `random`, unchanged; the session is
                aborted. The item stays spent if it was marked before the error. No bytes of the
                server alone cause an exception.
        """
        message = wire.parse(data)
        if message is None or message.sender != wire.SERVER or self.state is ClientState.ABORTED:
            return None
        if self.state is ClientState.NEW:
            if not self._is_invited(message, data):
                return None
            self._session = message.session
        if message.session != self._session:
            return None
        # A network may deliver a message twice: the second copy gets the stored answer. If the
        # answer were computed again, new secrets would be drawn, and a second plaintext would be
        # encrypted under one key and nonce.
        seen = hashlib.sha256(data).digest()
        if seen == self._last:
            return self._reply
        if self.state is ClientState.DONE:
            self._conclude(message)
            return None
        # The state is ABORTED while the message is handled, and becomes the next state only once
        # the answer exists. Otherwise a client could go on after an exception, with half of a step
        # done.
        before, self.state = self.state, ClientState.ABORTED
        try:
            reply, after = self._handle(before, message, now)
        except RemoteProtocolError as error:
            self._end(error.code, str(error))
            # An Abort gets no answer. Otherwise both sides would send each other Aborts for ever.
            return (
                None if message.kind is Kind.ABORT else self._frame(Kind.ABORT, bytes([error.code]))
            )
        except BaseException:
            self._end(AbortCode.INTERNAL)
            raise
        self.state, self._last, self._reply = after, seen, reply
        return reply

    def confirms(self, total: npt.NDArray[np.int64], salt: bytes) -> bool:
        """Return whether a published sum is the sum that the server announced to this client.

        The digest that the server announced also covers the set of survivors for which this client
        unmasked. So a sum over another set of survivors is not confirmed.

        Args:
            total: int64 [V]; the published sum.
            salt: 32 bytes, published with the sum. If an aggregator adds noise to the sum, the salt
                is not published, and no client can use this method: the digest is of the exact sum,
                and with the salt anybody could check guesses of the exact sum.

        Raises:
            LocalProtocolError: no result was announced to this client.
        """
        if self.result is None:
            raise LocalProtocolError(
                "no result was announced to this client: there is nothing to compare with"
            )
        return wire.result_digest(self._ctx2, self._alive, salt, total) == self.result.digest

    def abandon(self) -> None:
        """End the session and wipe its secrets, without a message to the server.

        In the middle of a session, the server takes the client for one that dropped out. `state`
        becomes ABORTED. `code` becomes INTERNAL. If the session had ended with a code before, that
        code stays.
        """
        self._end(AbortCode.INTERNAL)

    # ---- the state machine ----

    def _is_invited(self, message: wire.Frame, data: bytes) -> bool:
        """Return whether a message is an Invite that the server's key signed."""
        # The caller drops any other message, because it may come from anybody. If the client
        # aborted, a stranger could keep it out of every session.
        return _signed_terms(message, data, self._pinned.server_key) is not None

    def _handle(
        self, state: ClientState, message: wire.Frame, now: int
    ) -> tuple[bytes, ClientState]:
        """Return the answer to a message, as a frame, and the state that follows.

        Raises:
            RemoteProtocolError: the message is refused, or is an Abort.
            Exception: any other error that `receive` names.
        """
        if message.version != wire.VERSION:
            raise RemoteProtocolError(AbortCode.VERSION)
        if message.kind is Kind.ABORT:
            raise RemoteProtocolError(wire.decode_abort(message.body))
        # Checks a and g: the table has each type of message once, so that neither a second Roster
        # nor a second Survivors gets an answer. Such an answer would open both secrets of a client.
        step = TRANSITIONS[self._policy.adversary][state].get(message.kind)
        if step is None:
            raise RemoteProtocolError(AbortCode.WRONG_STATE)
        if self.invite is not None and now > self.invite.not_after:
            raise RemoteProtocolError(AbortCode.EXPIRED)
        body = self._body(message, now)
        # From here on the client only repeats its answer, which needs no secret. Secrets that are
        # wiped cannot leak.
        if step.after is ClientState.DONE:
            self._forget()
        return self._frame(step.reply, body), step.after

    def _body(self, message: wire.Frame, now: int) -> bytes:
        match message.kind:
            case Kind.INVITE:
                return self._advertise(message, now)
            case Kind.ROSTER:
                return self._share(message.body)
            case Kind.INBOX:
                return self._mask(message.body)
            case Kind.SURVIVORS:
                return self._survive(message.body)
            case _:
                return self._unmask(self._confirmed(message.body))

    def _conclude(self, message: wire.Frame) -> None:
        """Record the Result or Abort that the server sends after the client's last answer.

        Only the first Result is recorded. An Abort is recorded only if no Result came before. The
        message needs no further check, since all secrets are wiped.
        """
        if message.version != wire.VERSION:
            return
        with suppress(RemoteProtocolError):
            if message.kind is Kind.RESULT and self.result is None:
                self.result = wire.decode_result(message.body)
            elif message.kind is Kind.ABORT and self.result is None:
                self._end(wire.decode_abort(message.body))

    def _frame(self, kind: Kind, body: bytes) -> bytes:
        return wire.frame(kind, self._session, self._sender, body)

    def _end(self, code: AbortCode, reason: str = "") -> None:
        self.state, self.code = ClientState.ABORTED, self.code or code
        self.reason = self.reason or reason or code.meaning
        self._last, self._reply = b"", b""
        self._forget()

    def _forget(self) -> None:
        self._secrets.wipe()
        self._secrets = _Secrets()
        self._identity = None  # dropped, not wiped: the caller's key serves other sessions

    @property
    def _parameters(self) -> Parameters:
        assert self.invite is not None
        return self.invite.parameters

    @property
    def _is_active(self) -> bool:
        return self._policy.adversary.has_identities

    # ---- Invite -> Advertise ----

    def _advertise(self, message: wire.Frame, now: int) -> bytes:
        terms, _ = wire.split_invite(message.body)
        self.invite = invite = wire.decode_terms(terms)
        self._check_invite(invite, now)
        # Every key, commitment and signature below is bound to the session and its terms. Otherwise
        # an advert or a share of another session, perhaps with weaker parameters, would verify in
        # this session.
        self._ctx = wire.context(self._session, terms)
        # Check a: the session is recorded durably before the advert leaves. Otherwise a client that
        # is restarted, or runs twice, would advertise twice, and the server could put it into two
        # rosters.
        if not self._journal.begin(self._session, invite.not_after):
            raise RemoteProtocolError(AbortCode.SESSION_SEEN)
        # Double masks (Bonawitz et al. 2017): the server may call a client dead and open its pair
        # masks. If the client's vector then comes late, the self mask still hides it.
        mine = self._secrets
        mine.elements = shamir.random_elements(2 * shamir.SECRET_ELEMENTS, self._random)
        with _Seed(mine.elements[_KEY]) as seed:
            mine.mask_key = keys.mask_key(seed, self._ctx)
        # Sealing has its own key pair. The mask key is opened if the client drops out: shares that
        # were sealed to it could then be read.
        secret = Secret(self._random(keys.KEY_BYTES))
        mine.encryption_key = ExchangeKey(secret)
        secret.wipe()
        # With this commitment the server checks the seed of the self mask that it recovers from
        # shares. Without this check the server could subtract a wrong mask, and spoil the sum.
        with _Seed(mine.elements[_B]) as seed:
            commitment = keys.commitment(seed, self._ctx)
        self._public = Advert(
            mine.mask_key.public,
            mine.encryption_key.public,
            commitment,
            self._random(wire.NONCE_BYTES),  # the nonce makes the roster's digest a new one
            b"",
        )
        self._advert = b"".join(self._public)
        # Check b: the signature covers ctx, so that the advert is valid in this session alone.
        # Without the signature the server could replace every neighbour's keys by its own.
        if self._identity is not None:
            self._advert += self._identity.sign(Label.ADVERTISE, self._ctx, self._advert)
        return self._advert

    def _check_invite(self, invite: Invite, now: int) -> None:
        # The server proposes the parameters, and the policy is the client's own. Without this check
        # the server could propose a cohort that is too small or a threshold that is too low.
        try:
            self._policy.check_invite(invite.parameters)
        except InvalidInputError as error:
            raise RemoteProtocolError(AbortCode.POLICY, str(error)) from error
        # A long session takes storage: until not_after the journal must keep its record, and the
        # client may keep its secrets.
        if invite.not_after - invite.not_before > (most := self._policy.max_seconds):
            raise RemoteProtocolError(
                AbortCode.POLICY,
                f"a session may last at most {most} seconds by this client's policy (max_seconds),"
                f" got {invite.not_after - invite.not_before}",
            )
        # Check b: if the digest of the allow-list could differ, the server could add clients of its
        # own (Sybils). If the fingerprint could differ, the client would join another plan than it
        # agreed to, perhaps with less noise.
        listed = (
            bytes(keys.KEY_BYTES)
            if self._pinned.allow_list is None
            else self._pinned.allow_list.digest
        )
        if invite.fingerprint != self._pinned.fingerprint or invite.allow_list != listed:
            raise RemoteProtocolError(
                AbortCode.POLICY, "the Invite is of another plan, or of another allow-list"
            )
        if self._pinned.parameters not in (None, invite.parameters):
            raise RemoteProtocolError(
                AbortCode.POLICY, "the Invite has other parameters than its plan"
            )
        # The client's journal charges its privacy budget for the pinned round when the vector
        # leaves. A vector for another round would be charged to the wrong round, or not at all.
        if invite.round != self._pinned.round:
            reason = (
                f"the Invite is for round {invite.round}, and the client joined round"
                f" {self._pinned.round}"
            )
            raise RemoteProtocolError(AbortCode.POLICY, reason)
        if not invite.not_before <= now <= invite.not_after:
            raise RemoteProtocolError(AbortCode.EXPIRED)

    # ---- Roster -> Shares ----

    def _share(self, body: bytes) -> bytes:
        adverts = self._take_full_roster(body) if self._is_active else self._take_roster(body)
        self._neighbour_keys = self._check_adverts(adverts)
        mine, slots = self._secrets, range(self._graph.neighbours)
        assert mine.elements is not None and mine.encryption_key is not None
        threshold = self._graph.threshold
        # Fewer than t holders learn nothing of either secret (Shamir 1979). Both secrets are split
        # with one threshold, at the same points. Later a holder reveals its share of only one of
        # them.
        coefficients = shamir.random_elements((threshold - 1) * len(mine.elements), self._random)
        shares = shamir.split(
            mine.elements, coefficients.reshape(threshold - 1, -1), len(slots) + 1
        )
        mine.own_share = shares[-1, _B].copy()
        sealed = []
        for slot in slots:
            peer_key = self._neighbour_keys[slot].encryption_key
            # Check c: each key is bound to ctx2, both public keys, both indexes and the direction.
            # Otherwise a share would also open if the server moved it to another roster, swapped it
            # with another share, or sent it back to its dealer.
            shared = mine.encryption_key.exchange(peer_key)
            up, down = keys.share_keys(
                shared,
                self._ctx2,
                self._index,
                self._public.encryption_key,
                int(self._neighbours[slot]),
                peer_key,
            )
            shared.wipe()
            share = Secret(shares[slot].astype("<u4").tobytes())
            # `up` seals only this plaintext. So it is safe that AES-GCM has a fixed nonce.
            sealed.append(keys.seal(up, share))
            share.wipe()
            mine.unsealing.append(down)
        # The coefficients and shares together give the secrets, and the encryption key gives the
        # keys of every sealed share. None of them is needed again.
        coefficients.fill(0)
        shares.fill(0)
        mine.encryption_key.wipe()
        return b"".join(sealed)

    def _take_roster(self, body: bytes) -> Sequence[bytes]:
        """Accept a Roster of `semi-honest`; return the neighbours' adverts, by slot.

        Raises:
            RemoteProtocolError: the body is malformed, the index is out of range, or
                `Parameters.check_roster` refuses n.
        """
        # n, the index and the digest are not checked against the adverts: in this profile the
        # server follows the protocol.
        roster = wire.decode_roster(body, self._parameters)
        self._n, self._index, self._sender = roster.n, roster.own_index, roster.own_index
        self._check_size()
        self._enter(wire.roster_context(self._ctx, self._n, None, roster.digest))
        return roster.adverts

    def _take_full_roster(self, body: bytes) -> Sequence[bytes]:
        """Accept a Roster of `active`, and verify its adverts; return the neighbours', by slot.

        Raises:
            RemoteProtocolError: the body is malformed, `Parameters.check_roster` refuses n, the
                client's own advert is missing or changed, or a signature is not valid.
        """
        identities = self._pinned.allow_list
        assert identities is not None
        # Check b: the roster is a bitmap over the pinned list, so that it cannot name a client
        # twice, or one that is not in the list.
        roster = wire.decode_full_roster(body, len(identities))
        ranks = np.flatnonzero(roster.members)
        self._n = len(ranks)
        self._check_size()
        # Check a: the client's own advert must be in the roster, unchanged. Otherwise the server
        # made the roster without this client, or with an advert of another session.
        own = np.flatnonzero(ranks == self._sender)
        if not len(own) or roster.adverts[own[0]] != self._advert:
            raise _invalid_roster("the client's own advert is not in the roster")
        self._index = int(own[0])
        self._roster_keys = [identities.key(int(rank)) for rank in ranks]
        # Check b: the signatures of all clients are verified, not of neighbours alone, because ctx2
        # covers the whole roster. This client's own advert was compared byte for byte before.
        for index, (key, advert) in enumerate(zip(self._roster_keys, roster.adverts, strict=True)):
            if index != self._index:
                _verify_advert(key, self._ctx, advert)
        self._enter(
            wire.roster_context(
                self._ctx, self._n, roster.members, wire.adverts_digest(roster.adverts)
            )
        )
        return [roster.adverts[index] for index in self._neighbours]

    def _check_size(self) -> None:
        # n is checked because a ring that is safe at n_max may be unsafe at a smaller n. In
        # `active` this is check j: t is computed from n so that 2t > n + C. Then two sets of t
        # clients have an honest client in common.
        try:
            self._parameters.check_roster(self._n)
        except InvalidInputError as error:
            raise _invalid_roster(str(error)) from error

    def _enter(self, ctx2: bytes) -> None:
        """Fix the roster and the client's neighbours for the rest of the session.

        Args:
            ctx2: the context of the roster, a digest (`wire.roster_context`), 32 bytes.
        """
        # Check a: the state machine takes one Roster, and every later key and signature depends on
        # ctx2. The ring follows from ctx2, too, so that no server can choose a client's neighbours
        # directly.
        self._ctx2 = ctx2
        self._graph = self._parameters.graph(self._n)
        self._neighbours = Neighbourhood(self._parameters, self._n, ctx2).of(self._index)

    def _check_adverts(self, adverts: Sequence[bytes]) -> list[Advert]:
        """Decode the neighbours' adverts and check the public keys in them.

        Raises:
            RemoteProtocolError: a public key is not valid, or occurs twice.
        """
        found = [wire.decode_advert(advert, self._policy.adversary) for advert in adverts]
        points = [
            key
            for advert in (self._public, *found)
            for key in (advert.mask_key, advert.encryption_key)
        ]
        # With a point of low order everybody could compute the shared key (RFC 7748, section 6.1).
        # check_point also refuses a second encoding of a key, so that it is enough to compare
        # bytes. If a key could occur twice, one party could have two places in the roster: it would
        # hold two shares of a secret, and count twice towards every threshold.
        try:
            distinct = {keys.check_point(point) for point in points}
        except RejectedError as error:
            raise _invalid_roster(str(error)) from error
        if len(distinct) < len(points):
            raise _invalid_roster("a key occurs twice in the roster")
        return found

    # ---- Inbox -> MaskedInput ----

    def _mask(self, body: bytes) -> bytes:
        inbox = wire.decode_inbox(body, self._graph.neighbours)
        # Check e: only this bitmap decides which pairs of neighbours have a pair mask. If it also
        # depended on which shares open, a neighbour that seals garbage would add its mask and this
        # client would not subtract it.
        self._present = inbox.present
        self._open(inbox)
        # Check d, before the vector exists: enough neighbours are in this client's own roster. If
        # none of them were honest, the server would know all pair masks of this client. Only
        # neighbours whose shares opened under this ctx2 count: the server may claim that more of
        # them sent shares.
        ready = 1 + int(self._opened.sum())
        if ready < self._graph.threshold or (
            self._is_active and ready < self._parameters.min_survivors
        ):
            raise RemoteProtocolError(AbortCode.TOO_FEW_OPENED)
        self._check_known(self._opened, AbortCode.TOO_FEW_OPENED)
        vector = self._vector()
        try:
            # The item is marked as spent before the vector leaves, durably and in one step that is
            # atomic across processes. Otherwise an item could go into two sums, and nobody would
            # charge the second one. The mark is never undone: the vector of an aborted round may
            # still be opened.
            if not self._journal.spend(self._session):
                raise RemoteProtocolError(AbortCode.ITEM_SPENT)
            self._add_masks(vector)
        except BaseException:
            vector.fill(0)  # perhaps not masked yet, and the traceback refers to it
            raise
        return pack(vector, self._parameters.bits)

    def _open(self, inbox: Inbox) -> None:
        """Open the shares that the neighbours sealed for this client.

        The result is in `_opened`: bool [k], by slot, whether the shares of a neighbour opened.
        Which neighbours have a pair mask does not depend on `_opened`, but on `_present` alone.
        """
        k = self._graph.neighbours
        self._opened = np.zeros(k, np.bool_)
        self._secrets.held = held = np.zeros((k, 2 * shamir.SECRET_ELEMENTS), np.uint32)
        for slot, sealed in zip(np.flatnonzero(inbox.present).tolist(), inbox.sealed, strict=True):
            # Shares that do not open are no reason to abort: otherwise one corrupt neighbour could
            # stop every round.
            with suppress(RejectedError, shamir.ShareError):
                share = keys.unseal(self._secrets.unsealing[slot], sealed)
                try:
                    held[slot] = shamir.from_bytes(share.reveal())
                finally:
                    share.wipe()
                self._opened[slot] = True
        for key in self._secrets.unsealing:  # also keys of neighbours that sent nothing
            key.wipe()

    def _vector(self) -> Lanes:
        """Return the contribution and then the checksum entries, not yet masked.

        Returns:
            lane(bits) [V + checksum entries]; `lane` gives an unsigned integer of 16, 32 or 64 bits
            (see `crypto.prg`). The entries are not yet reduced mod 2^bits.

        Raises:
            LocalProtocolError: the contribution is not integers [V], or an entry is too large.
        """
        assert self.invite is not None
        length, bits = self._parameters.length, self._parameters.bits
        given, most = self._contribution(self.invite), 2 ** (bits - 1) - 1
        if (
            not isinstance(given, np.ndarray)
            or given.dtype.kind not in "iu"
            or given.shape != (length,)
        ):
            got = (
                f"{given.dtype} {given.shape}"
                if isinstance(given, np.ndarray)
                else type(given).__name__
            )
            del given  # it is not masked, and the traceback would refer to it
            raise LocalProtocolError(f"the contribution must be integers [{length}], got {got}")
        # A larger entry would wrap around the modulus, and nobody would notice that the sum is
        # wrong. max and min are used, not abs: the absolute value of the least int64 is negative.
        if int(given.max()) > most or int(given.min()) < -most:
            del given
            raise LocalProtocolError(
                f"every entry of the contribution must be within +-{most}, for {bits} bits"
            )
        # The checksum entries at the end are 1. If every mask was removed, each of them is the
        # number of survivors in the sum. If a mask is left, all of them have this value with a
        # probability of at most 2^-64.
        vector = np.ones(length + self._parameters.checksum_entries, lane(bits))
        vector[:length] = given.astype(vector.dtype)
        return vector

    def _add_masks(self, vector: Lanes) -> None:
        """Add the self mask, and add or subtract the pair mask with every present neighbour.

        The vector is changed in place and reduced mod 2^bits. Then both secrets are wiped.
        """
        mine, masking = self._secrets, Masking(vector)
        assert mine.elements is not None and mine.mask_key is not None
        with _Seed(mine.elements[_B]) as seed:
            masks = [(True, keys.self_mask_key(seed, self._ctx2, self._index))]
        for slot in np.flatnonzero(self._present).tolist():
            peer, peer_key = int(self._neighbours[slot]), self._neighbour_keys[slot].mask_key
            shared = mine.mask_key.exchange(peer_key)
            mask = keys.pair_mask_key(
                shared, self._ctx2, self._index, self._public.mask_key, peer, peer_key
            )
            shared.wipe()
            # The client with the smaller index adds the pair mask, and the other client subtracts
            # it. So the mask cancels in the sum.
            masks.append((self._index < peer, mask))
        for adds, key in masks:
            (masking.add if adds else masking.subtract)(key)
            key.wipe()
        masking.wipe()
        # One reduction after all masks is enough: 2^bits divides the modulus of the lane (2^16,
        # 2^32 or 2^64).
        vector &= vector.dtype.type(2**self._parameters.bits - 1)
        # The client never needs its two secrets again: its neighbours hold shares of them, and it
        # keeps only its own share of the seed of its self mask. From here on a leak of its memory
        # does not unmask its vector.
        mine.mask_key.wipe()
        mine.elements.fill(0)

    # ---- Survivors -> Confirm or Unmask ----

    def _survive(self, body: bytes) -> bytes:
        alive = wire.unpack_bits(body, self._n)
        self._check_survivors(alive)
        self._alive = alive
        if not self._is_active:
            return self._unmask(alive)
        # Consistency check (Bonawitz et al. 2017): it stops a server that shows clients different
        # bitmaps. Check g: the client signs once per session, and only a bitmap that passed all
        # checks.
        assert self._identity is not None
        return self._identity.sign(Label.CONFIRM, self._ctx2, wire.bitmap_digest(alive))

    def _check_survivors(self, alive: Bits) -> None:
        """Raise an error unless it is safe to unmask for these survivors.

        This is check f of docs/protocol.md.

        Args:
            alive: bool [n]; the survivors, by index in the roster.

        Raises:
            RemoteProtocolError: it is not safe; the code says why.
        """
        near = alive[self._neighbours]
        # This client sent its vector. A server that calls this client dead wants its mask key.
        if not alive[self._index]:
            raise RemoteProtocolError(AbortCode.OWN_BIT_DEAD)
        # The vector has no pair mask with a neighbour that sent no shares. A server that calls such
        # a neighbour alive adds a ghost to the survivors: a client whose secrets it got in another
        # roster.
        if (near & ~self._present).any():
            raise RemoteProtocolError(AbortCode.REVIVED)
        # A sum over few clients is close to one client's vector, and contains too little noise.
        if int(alive.sum()) < self._parameters.min_survivors:
            raise RemoteProtocolError(AbortCode.BELOW_MIN_SURVIVORS)
        # Only survivors whose shares opened are counted. The shares of a ghost were sealed under
        # the keys of another roster and do not open here.
        helpers = 1 + int((near & self._opened).sum())
        if helpers < self._graph.threshold:
            raise RemoteProtocolError(AbortCode.BELOW_THRESHOLD)
        # Survivors in two gaps of the ring may all be corrupt. If the other survivors fall apart
        # into two arcs there, the server gets a sum for each arc (Bell et al. 2020 need the graph
        # of honest survivors connected); see docs/protocol.md, "Whole". The ring is built again
        # here: if the order of all clients were kept since the Roster, it could be the largest
        # array in a client's memory.
        if not Neighbourhood(self._parameters, self._n, self._ctx2).is_whole(alive):
            raise RemoteProtocolError(AbortCode.RING_CUT)
        # A server that lies may add ghosts to the survivors. `helpers` counts only clients that are
        # provably of this roster.
        if self._is_active and helpers < self._parameters.min_survivors:
            raise RemoteProtocolError(AbortCode.BELOW_MIN_SURVIVORS)
        self._check_known(near & self._opened, AbortCode.BELOW_MIN_SURVIVORS)

    def _check_known(self, slots: Bits, code: AbortCode) -> None:
        """Raise an error if too few of the neighbours at these slots are `known` to the policy.

        It does nothing in `semi-honest`, where clients have no identities.

        Args:
            slots: bool [k]; the slots of the neighbours that are counted (see `graph`).
            code: the code of the error.

        Raises:
            RemoteProtocolError: fewer than the policy's `least_known` of these neighbours are
                `known`.
        """
        # The allow-list alone is not enough: the server chooses the roster from it, and could omit
        # all clients that the policy knows.
        if not self._is_active:
            return
        there = self._neighbours[slots].tolist()
        try:
            self._policy.check_known((self._roster_keys[one] for one in there), "in the sum")
        except InvalidInputError as error:
            raise RemoteProtocolError(code, str(error)) from error

    def _confirmed(self, body: bytes) -> Bits:
        """Return the survivors, bool [n], if t clients signed the same bitmap as this client.

        t is the threshold of shares, and this client is one of the t. This is check h of
        docs/protocol.md: since 2t > n + C, any two sets of t signers have an honest client in
        common, which signs only one bitmap. So only one bitmap has t signatures, and no client has
        both of its secrets opened.

        Args:
            body: the body of the Confirmations.

        Raises:
            RemoteProtocolError: the body is malformed, or fewer than t - 1 other survivors gave a
                valid signature.
        """
        confirmations = wire.decode_confirmations(body, self._n)
        what, valid = wire.bitmap_digest(self._alive), 1
        for index, signature in zip(
            np.flatnonzero(confirmations.signers).tolist(), confirmations.signatures, strict=True
        ):
            # This client is counted already. A dead client does not count: an honest one would not
            # sign a bitmap that says that it is dead.
            if index == self._index or not self._alive[index]:
                continue
            # An invalid signature is not counted. It is no reason to abort: otherwise one corrupt
            # client could stop the round.
            with suppress(RejectedError):
                keys.verify(self._roster_keys[index], signature, Label.CONFIRM, self._ctx2, what)
                valid += 1
        if valid < self._graph.threshold:
            raise RemoteProtocolError(AbortCode.TOO_FEW_CONFIRMATIONS)
        return self._alive

    def _unmask(self, alive: Bits) -> bytes:
        """Return the body of the Unmask: one share for each neighbour whose shares opened.

        The body also has this client's own share of its own b, the seed of its self mask.

        This is check i of docs/protocol.md: a neighbour's share is of the seed of its self mask (b)
        or of the seed of its mask key, never of both. If the neighbour survived, its pair masks
        with other survivors cancel, and the server needs b. Otherwise its pair masks do not cancel,
        and the server needs the seed of its mask key. If the neighbour's vector comes late, its
        self mask still hides the vector.

        Args:
            alive: bool [n]; the survivors, by index in the roster.
        """
        assert self._secrets.held is not None and self._secrets.own_share is not None
        held, near = self._secrets.held[self._opened], alive[self._neighbours[self._opened]]
        shares = np.where(near[:, None], held[:, _B], held[:, _KEY])
        return wire.encode_unmask(Unmask(self._secrets.own_share, self._opened, shares))


def read_invite(data: bytes, *, server_key: bytes, fingerprint: bytes) -> Invitation | None:
    """Return the terms of a verified Invite, for instance to learn the round of the Invite.

    The function records nothing and checks no policy: a `Client` that is pinned to the round
    decides whether to join.

    Args:
        data: the bytes that came; any bytes are allowed.
        server_key: the server's public Ed25519 key, 32 bytes, from the plan.
        fingerprint: the fingerprint of the plan, 32 bytes.

    Returns:
        The terms; or None if the bytes are not a valid Invite of this version, for this plan and
        signed by this key. Such bytes may come from anybody.

    Raises:
        RejectedError: the server's key is of low order, so that anybody could sign under it, or is
            not canonical.
    """
    keys.check_identity(server_key)
    message = wire.parse(data)
    if message is None or message.version != wire.VERSION or message.sender != wire.SERVER:
        return None
    terms = _signed_terms(message, data, server_key)
    if terms is None:
        return None
    try:
        invite = wire.decode_terms(terms)
    except RemoteProtocolError:
        return None
    if invite.fingerprint != fingerprint:
        return None
    return Invitation(
        message.session, invite.round, invite.not_before, invite.not_after, invite.parameters
    )


def _signed_terms(message: wire.Frame, data: bytes, server_key: bytes) -> bytes | None:
    """Return the encoded terms of an Invite if the server's key has signed them, else None."""
    if message.kind is not Kind.INVITE:
        return None
    try:
        terms, signature = wire.split_invite(message.body)
        # The signature also covers the header, which has the session. Otherwise an attacker could
        # replay signed terms in a session of its choice.
        keys.verify(server_key, signature, Label.INVITE, data[: wire.HEADER.size], terms)
    except (RemoteProtocolError, RejectedError):
        return None
    return terms


class _Seed:
    """Make a `Secret` of encoded field elements; the end of a `with` block wipes the secret."""

    def __init__(self, elements: shamir.U32) -> None:
        self._secret = Secret(shamir.to_bytes(elements))

    def __enter__(self) -> Secret:
        return self._secret

    def __exit__(self, *_: object) -> None:
        self._secret.wipe()


def _invalid_roster(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(AbortCode.ROSTER_INVALID, reason)


def _verify_advert(key: bytes, ctx: bytes, advert: bytes) -> None:
    try:
        keys.verify(
            key, advert[wire.ADVERT_BYTES :], Label.ADVERTISE, ctx, advert[: wire.ADVERT_BYTES]
        )
    except RejectedError as error:
        raise _invalid_roster("an advert is not signed by its identity for this session") from error
