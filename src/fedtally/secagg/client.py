"""A client of secure summation, sans-IO: it takes the server's bytes and returns its answers.

docs/protocol.md specifies every byte and check; its "Claim of `active`" has a table of the checks
that carry the proof, a to j. Comments here name the check, and the attack that it stops. The
protocol is that of Bonawitz et al. 2017 (double masks, Shamir recovery, consistency check), with
the ring of Bell et al. 2020 in `semi-honest`.

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

# The two secrets of a client lie side by side in one array, so that one sharing serves both: b, the
# seed of the self mask, and the seed of the mask key. A neighbour holds shares of both, and must
# never give away both.
_B = slice(0, shamir.SECRET_ELEMENTS)
_KEY = slice(shamir.SECRET_ELEMENTS, 2 * shamir.SECRET_ELEMENTS)


class Journal(Protocol):
    """The facts that a client must remember through crashes.

    There is one memory of sessions for each identity (a device), across all its items, so that no
    identity is in a session twice. There is one mark for each item, which says that it is spent.
    Each method returns only once its fact is durable. No fact is ever undone.
    """

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session before it begins; return False if it was recorded before.

        The record may be forgotten after `not_after`.
        """

    def spend(self, session: bytes) -> bool:
        """Mark the item as spent, in one atomic step; return False if it was spent before."""


@dataclass
class MemoryJournal:
    """A journal in memory, for simulations, whose items do not outlive the process either.

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
    """The facts that a client knows beforehand, from a source other than the server that sums.

    Args:
        server_key: the Ed25519 key that the Plan names; Invites are signed with it.
        fingerprint: the fingerprint of the Plan, 32 bytes.
        allow_list: the identities that may take part; None in `semi-honest`.
        parameters: the parameters of the plan; None leaves them to the policy alone.
        round: the one that the client takes part in, 0 .. 2^32 - 1, and that its journal books.
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
        # under a key of low order anybody can sign: to pin it would protect from nobody
        keys.check_identity(self.server_key)


class Invitation(NamedTuple):
    """The terms of a verified Invite: from `read_invite`.

    Attributes:
        session: 32 bytes.
        round: the round that it is for.
        not_before: Unix seconds.
        not_after: Unix seconds.
        parameters: the parameters of the cohort.
    """

    session: bytes
    round: int
    not_before: int
    not_after: int
    parameters: Parameters


@dataclass(repr=False)
class _Secrets:
    """The secrets of a session. They are wiped when it ends, however it ends, and never print."""

    elements: shamir.U32 | None = None  # b and the seed of the mask key
    mask_key: ExchangeKey | None = None
    encryption_key: ExchangeKey | None = None
    unsealing: list[Secret] = field(default_factory=list)  # keys of each neighbour's sealed shares
    own_share: shamir.U32 | None = None
    held: shamir.U32 | None = None  # the shares of the neighbours, [k, 10]

    def wipe(self) -> None:
        # in place: to drop an array leaves its bytes in freed memory
        for array in (self.elements, self.own_share, self.held):
            if array is not None:
                array.fill(0)
        for key in (self.mask_key, self.encryption_key, *self.unsealing):
            if key is not None:
                key.wipe()

    def __getstate__(self) -> None:
        raise InvalidInputError("the state of a client is secret: it cannot be copied or pickled")


class Client:
    """One client in one session.

    It takes one message of each type, once, in the order of `messages.EXCHANGES`. It answers a
    byte-identical copy of the last message again, and changes nothing. It drops bytes that are no
    frame of this session. Any other message of the wrong type or content ends the session for good,
    and every secret is wiped. A client that was restarted has no way back into its session.

    Args:
        policy: the demands of the client on the parameters.
        pinned: what the client knows beforehand.
        contribution: returns the vector that is to be summed for an Invite: integers [V], each of
            which fits the modulus. It is called at most once, after all checks and just before the
            item is spent.
        journal: remembers sessions and the spent item durably.
        random: returns as many uniform bytes as it is asked for, from a cryptographic source.
        identity: the client's key in the allow-list; only and always in `active`.

    Attributes:
        state: how far the session is.
        invite: the terms of the session, from its start.
        code: why the session ended, if it did without a result.
        reason: the same in words, for the client's owner alone; "" if `code` is None.
        result: what the server announced in the end.

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
        # The number in the header of each message. `active`: the rank in the allow-list;
        # `semi-honest`: the index, once there is a roster.
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
        # A copy could answer a second roster or a second bitmap in the same session (checks a, g):
        # then both secrets of the client would be open.
        raise InvalidInputError("the state of a client is secret: it cannot be copied or pickled")

    def receive(self, data: bytes, now: int) -> bytes | None:
        """Take a message of the server; return the answer, or None if there is none.

        Args:
            data: the bytes that came; any bytes are allowed.
            now: the time, Unix seconds.

        Raises:
            LocalProtocolError: the contribution is not of the form that the Invite asks for; the
                session is aborted.
            Exception: what `contribution`, `journal` or `random` raised, as it was; the session is
                aborted. Nothing that the server sends raises by itself.
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
        # The same bytes get the stored bytes: a network may deliver a message twice. To compute the
        # answer anew would draw new secrets and encrypt twice under one key and nonce.
        seen = hashlib.sha256(data).digest()
        if seen == self._last:
            return self._reply
        if self.state is ClientState.DONE:
            self._conclude(message)
            return None
        # The client is ABORTED before the message is looked at, and gets its next state only once
        # the answer exists. So an exception anywhere leaves a client that answers nothing more.
        before, self.state = self.state, ClientState.ABORTED
        try:
            reply, after = self._handle(before, message, now)
        except RemoteProtocolError as error:
            self._end(error.code, str(error))
            # an Abort is never answered, or two sides would send each other Aborts for ever
            return (
                None if message.kind is Kind.ABORT else self._frame(Kind.ABORT, bytes([error.code]))
            )
        except BaseException:
            self._end(AbortCode.INTERNAL)
            raise
        self.state, self._last, self._reply = after, seen, reply
        return reply

    def confirms(self, total: npt.NDArray[np.int64], salt: bytes) -> bool:
        """Tell whether a published sum is the one that the server announced to this client.

        The digest also holds the survivors that this client unmasked for, so that a sum over others
        is not confirmed.

        Args:
            total: int64 [V].
            salt: 32 bytes, published with the sum. If an aggregator adds noise to the sum, there is
                none: the announcement is of the exact sum, and its salt stays secret.

        Raises:
            LocalProtocolError: no result was announced to this client.
        """
        if self.result is None:
            raise LocalProtocolError(
                "no result was announced to this client: there is nothing to compare with"
            )
        return wire.result_digest(self._ctx2, self._alive, salt, total) == self.result.digest

    def abandon(self) -> None:
        """End the session and wipe its secrets.

        The server need not be told: it sees a dropout.
        """
        self._end(AbortCode.INTERNAL)

    # ---- the state machine ----

    def _is_invited(self, message: wire.Frame, data: bytes) -> bool:
        """Tell whether this is an Invite that the server's key signed."""
        # Anything else may come from anybody, and is dropped. If the client aborted on it, a
        # stranger could keep the client out of every session.
        return _signed_terms(message, data, self._pinned.server_key) is not None

    def _handle(
        self, state: ClientState, message: wire.Frame, now: int
    ) -> tuple[bytes, ClientState]:
        """Return the answer and the state after it."""
        if message.version != wire.VERSION:
            raise RemoteProtocolError(AbortCode.VERSION)
        if message.kind is Kind.ABORT:
            raise RemoteProtocolError(wire.decode_abort(message.body))
        # Check a and g: the table has each kind once, so that no second Roster and no second
        # Survivors gets an answer. Two of either would open both secrets of a client.
        step = TRANSITIONS[self._policy.adversary][state].get(message.kind)
        if step is None:
            raise RemoteProtocolError(AbortCode.WRONG_STATE)
        if self.invite is not None and now > self.invite.not_after:
            raise RemoteProtocolError(AbortCode.EXPIRED)
        body = self._body(message, now)
        # All that is left to do is to repeat the answer: secrets that are gone cannot leak.
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
        """Note how the session ended; the secrets are wiped, so that no check is needed."""
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
        # Every key, commitment and signature below is bound to the session and its terms: an advert
        # or a share of another session, or under weaker parameters, does not verify.
        self._ctx = wire.context(self._session, terms)
        # Check a: the session is recorded durably before the advert leaves. Otherwise a client that
        # is restarted, or runs twice, would advertise twice, and the server could build two rosters
        # around it.
        if not self._journal.begin(self._session, invite.not_after):
            raise RemoteProtocolError(AbortCode.SESSION_SEEN)
        # Double masks (Bonawitz et al. 2017): the self mask of b hides the vector if the server
        # calls a client dead, opens its pair masks, and its vector then comes late.
        mine = self._secrets
        mine.elements = shamir.random_elements(2 * shamir.SECRET_ELEMENTS, self._random)
        with _Seed(mine.elements[_KEY]) as seed:
            mine.mask_key = keys.mask_key(seed, self._ctx)
        # A key pair of its own for sealing: the mask key is opened if the client drops out, and
        # shares that were sealed with it would open with it.
        secret = Secret(self._random(keys.KEY_BYTES))
        mine.encryption_key = ExchangeKey(secret)
        secret.wipe()
        # With this commitment the server checks the b that shares give back: a wrong b would take a
        # wrong mask off, and spoil the sum.
        with _Seed(mine.elements[_B]) as seed:
            commitment = keys.commitment(seed, self._ctx)
        self._public = Advert(
            mine.mask_key.public,
            mine.encryption_key.public,
            commitment,
            self._random(wire.NONCE_BYTES),  # the nonce makes the roster's digest fresh
            b"",
        )
        self._advert = b"".join(self._public)
        # Check b: the signature holds ctx, so that the advert is of this session alone. Without it
        # the server could put its own keys in the place of every neighbour's.
        if self._identity is not None:
            self._advert += self._identity.sign(Label.ADVERTISE, self._ctx, self._advert)
        return self._advert

    def _check_invite(self, invite: Invite, now: int) -> None:
        # The server chooses the parameters. The policy is the client's own, so that the server
        # cannot talk it into a cohort that is too small or a threshold that is too low.
        try:
            self._policy.check_invite(invite.parameters)
        except InvalidInputError as error:
            raise RemoteProtocolError(AbortCode.POLICY, str(error)) from error
        # the journal forgets a session after not_after, and secrets stay in memory until then
        if invite.not_after - invite.not_before > (most := self._policy.max_seconds):
            raise RemoteProtocolError(
                AbortCode.POLICY,
                f"a session may last at most {most} seconds by this client's policy (max_seconds),"
                f" got {invite.not_after - invite.not_before}",
            )
        # Check b: the list by its digest, or the server could add identities of its own (Sybils).
        # The fingerprint: the sum is of the plan, with its noise, that the client agreed to.
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
        # The client's record of privacy booked one round. A vector for another one would be
        # charged to the wrong round, or not at all.
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
        # Shamir 1979: fewer than t holders learn nothing of either secret. Both are shared with one
        # threshold at the same points; a holder later gives its share of one of them alone.
        coefficients = shamir.random_elements((threshold - 1) * len(mine.elements), self._random)
        shares = shamir.split(
            mine.elements, coefficients.reshape(threshold - 1, -1), len(slots) + 1
        )
        mine.own_share = shares[-1, _B].copy()
        sealed = []
        for slot in slots:
            peer_key = self._neighbour_keys[slot].encryption_key
            # Check c: each key is bound to ctx2, both public keys, both indexes and the direction.
            # So a share that is moved to another roster, swapped with another one, or reflected to
            # its dealer does not open.
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
            # `up` seals one plaintext ever, which is what allows AES-GCM with a fixed nonce
            sealed.append(keys.seal(up, share))
            share.wipe()
            mine.unsealing.append(down)
        # Wiped, because the coefficients with the shares give the secrets back, and the encryption
        # key gives the keys of every sealed share.
        coefficients.fill(0)
        shares.fill(0)
        mine.encryption_key.wipe()
        return b"".join(sealed)

    def _take_roster(self, body: bytes) -> Sequence[bytes]:
        """Take a Roster in `semi-honest`; return the neighbours' adverts."""
        # n, the index and the digest are the server's word: in this profile it follows the protocol
        roster = wire.decode_roster(body, self._parameters)
        self._n, self._index, self._sender = roster.n, roster.own_index, roster.own_index
        self._check_size()
        self._enter(wire.roster_context(self._ctx, self._n, None, roster.digest))
        return roster.adverts

    def _take_full_roster(self, body: bytes) -> Sequence[bytes]:
        """Take a Roster in `active`, with all signed adverts; return the neighbours' adverts."""
        identities = self._pinned.allow_list
        assert identities is not None
        # Check b: a bitmap over the pinned list cannot name an identity twice, nor one outside it
        roster = wire.decode_full_roster(body, len(identities))
        ranks = np.flatnonzero(roster.members)
        self._n = len(ranks)
        self._check_size()
        # Check a: a roster without this client, or with another advert of it, is one that the
        # server built around another client.
        own = np.flatnonzero(ranks == self._sender)
        if not len(own) or roster.adverts[own[0]] != self._advert:
            raise _invalid_roster("the client's own advert is not in the roster")
        self._index = int(own[0])
        self._roster_keys = [identities.key(int(rank)) for rank in ranks]
        # Check b: all signatures, not those of neighbours alone, since ctx2 vouches for the whole
        # roster. The own one was compared byte for byte.
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
        # This check takes the real n, because a ring that is safe at n_max may be cut at a smaller
        # n. In `active` this is check j: t follows from n such that 2t > n + C, so that two sets of
        # t clients have an honest client in common.
        try:
            self._parameters.check_roster(self._n)
        except InvalidInputError as error:
            raise _invalid_roster(str(error)) from error

    def _enter(self, ctx2: bytes) -> None:
        """Settle on a roster: there is no other in this session."""
        # Check a: the state machine takes one Roster, and every later key and signature holds ctx2.
        # The ring follows from ctx2, so that no server can choose a client's neighbours directly.
        self._ctx2 = ctx2
        self._graph = self._parameters.graph(self._n)
        self._neighbours = Neighbourhood(self._parameters, self._n, ctx2).of(self._index)

    def _check_adverts(self, adverts: Sequence[bytes]) -> list[Advert]:
        """Return the neighbours' adverts, if all public keys are valid and pairwise different."""
        found = [wire.decode_advert(advert, self._policy.adversary) for advert in adverts]
        points = [
            key
            for advert in (self._public, *found)
            for key in (advert.mask_key, advert.encryption_key)
        ]
        # A point of low order would make a shared key that everybody can compute (RFC 7748, section
        # 6.1). check_point also refuses a second encoding of a key, so that comparing bytes is
        # enough. A key that occurs twice is one party in two places: it would hold two shares, and
        # count twice towards every threshold.
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
        # Check e: this bitmap alone says which edges carry masks. If edges depended on what opens,
        # a dealer of garbage would make an edge that one end has and the other has not.
        self._present = inbox.present
        self._open(inbox)
        # Check d, before the vector exists: a client without honest neighbours in its own roster is
        # isolated, and a server that holds all its masks reads its vector. Only shares that opened
        # under this ctx2 count: the server may say that others came.
        ready = 1 + int(self._opened.sum())
        if ready < self._graph.threshold or (
            self._is_active and ready < self._parameters.min_survivors
        ):
            raise RemoteProtocolError(AbortCode.TOO_FEW_OPENED)
        self._check_known(self._opened, AbortCode.TOO_FEW_OPENED)
        vector = self._vector()
        try:
            # The mark is durable before the vector leaves, in one atomic step among all processes:
            # the difference of two sums could show an item that is in both, and nobody would have
            # charged the second one. The mark is never undone, because the vector of an aborted
            # round may still be opened.
            if not self._journal.spend(self._session):
                raise RemoteProtocolError(AbortCode.ITEM_SPENT)
            self._add_masks(vector)
        except BaseException:
            vector.fill(0)  # it may not be masked yet, and the traceback would hold it
            raise
        return pack(vector, self._parameters.bits)

    def _open(self, inbox: Inbox) -> None:
        """Open what the neighbours sealed.

        A neighbour that sent nonsense keeps its edge, and is not counted.
        """
        k = self._graph.neighbours
        self._opened = np.zeros(k, np.bool_)
        self._secrets.held = held = np.zeros((k, 2 * shamir.SECRET_ELEMENTS), np.uint32)
        for slot, sealed in zip(np.flatnonzero(inbox.present).tolist(), inbox.sealed, strict=True):
            # Not an abort: one corrupt neighbour could stop every round of its neighbours
            with suppress(RejectedError, shamir.ShareError):
                share = keys.unseal(self._secrets.unsealing[slot], sealed)
                try:
                    held[slot] = shamir.from_bytes(share.reveal())
                finally:
                    share.wipe()
                self._opened[slot] = True
        for key in self._secrets.unsealing:  # also those of neighbours that sent nothing
            key.wipe()

    def _vector(self) -> Lanes:
        """Return the contribution mod 2^b and its checksum entries, not yet masked."""
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
            del given  # it is not masked, and the traceback would hold it
            raise LocalProtocolError(f"the contribution must be integers [{length}], got {got}")
        # A larger entry would wrap around the modulus, and the sum would be silently wrong.
        # max and min, not abs: the absolute value of the least int64 is negative.
        if int(given.max()) > most or int(given.min()) < -most:
            del given
            raise LocalProtocolError(
                f"every entry of the contribution must be within +-{most}, for {bits} bits"
            )
        # The ones at the end are the checksum entries. They sum to the number of survivors if every
        # mask was taken off. If not, they do so with a probability of at most 2^-64.
        vector = np.ones(length + self._parameters.checksum_entries, lane(bits))
        vector[:length] = given.astype(vector.dtype)
        return vector

    def _add_masks(self, vector: Lanes) -> None:
        """Add the self mask, and add or subtract the pair mask of every present neighbour."""
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
            # the smaller index adds what the larger subtracts, so that both cancel in the sum
            masks.append((self._index < peer, mask))
        for adds, key in masks:
            (masking.add if adds else masking.subtract)(key)
            key.wipe()
        masking.wipe()
        # 2^b divides the lane's modulus, so that one reduction after all masks is enough
        vector &= vector.dtype.type(2**self._parameters.bits - 1)
        # The client never needs its own secrets again: others hold shares of them, and it holds its
        # own share of b. A leak of its memory from here on does not unmask its vector.
        mine.mask_key.wipe()
        mine.elements.fill(0)

    # ---- Survivors -> Confirm or Unmask ----

    def _survive(self, body: bytes) -> bytes:
        alive = wire.unpack_bits(body, self._n)
        self._check_survivors(alive)
        self._alive = alive
        if not self._is_active:
            return self._unmask(alive)
        # Consistency check (Bonawitz et al. 2017). A lying server would show each client another
        # bitmap. Check g: one signature per session, on the bitmap that passed all checks.
        assert self._identity is not None
        return self._identity.sign(Label.CONFIRM, self._ctx2, wire.bitmap_digest(alive))

    def _check_survivors(self, alive: Bits) -> None:
        """Raise unless it is safe to unmask for these survivors: check f of the claim."""
        near = alive[self._neighbours]
        # This client sent its vector. If the server calls it dead, the server wants its mask key.
        if not alive[self._index]:
            raise RemoteProtocolError(AbortCode.OWN_BIT_DEAD)
        # The vector holds no pair mask with an absent neighbour. If the server calls such a
        # neighbour alive, it pads the survivors with a ghost: a client whose secrets it got in
        # another roster.
        if (near & ~self._present).any():
            raise RemoteProtocolError(AbortCode.REVIVED)
        # A sum over few clients is close to one client's vector, and has too little of their noise.
        if int(alive.sum()) < self._parameters.min_survivors:
            raise RemoteProtocolError(AbortCode.BELOW_MIN_SURVIVORS)
        # Only survivors whose shares opened are counted. The shares of a ghost were sealed under
        # the keys of another roster and do not open here.
        helpers = 1 + int((near & self._opened).sum())
        if helpers < self._graph.threshold:
            raise RemoteProtocolError(AbortCode.BELOW_THRESHOLD)
        # Survivors in two gaps of the ring may all be corrupt. If the other survivors fall apart
        # into two arcs there, the server gets a sum for each arc (Bell et al. 2020 need the graph
        # of honest survivors connected). docs/protocol.md, "Whole".
        # The ring is built anew: the order of all clients, if it were kept since the Roster, would
        # be the largest thing that a client holds.
        if not Neighbourhood(self._parameters, self._n, self._ctx2).is_whole(alive):
            raise RemoteProtocolError(AbortCode.RING_CUT)
        # A server that lies may pad the survivors, but `helpers` are provably of this roster.
        if self._is_active and helpers < self._parameters.min_survivors:
            raise RemoteProtocolError(AbortCode.BELOW_MIN_SURVIVORS)
        self._check_known(near & self._opened, AbortCode.BELOW_MIN_SURVIVORS)

    def _check_known(self, slots: Bits, code: AbortCode) -> None:
        """Raise unless the policy knows enough of the clients at these slots."""
        # The list alone says nothing: the server chooses the roster out of it, and could leave all
        # known clients out. In `semi-honest` nobody has a key, and the policy demands nobody.
        if not self._is_active:
            return
        there = self._neighbours[slots].tolist()
        try:
            self._policy.check_known((self._roster_keys[one] for one in there), "in the sum")
        except InvalidInputError as error:
            raise RemoteProtocolError(code, str(error)) from error

    def _confirmed(self, body: bytes) -> Bits:
        """Return the survivors, if t of them, this client included, signed the same bitmap.

        Check h: with 2t > n + C any two such sets have an honest client in common, which signs one
        bitmap. So there is one bitmap, and no client has both of its secrets opened.
        """
        confirmations = wire.decode_confirmations(body, self._n)
        what, valid = wire.bitmap_digest(self._alive), 1
        for index, signature in zip(
            np.flatnonzero(confirmations.signers).tolist(), confirmations.signatures, strict=True
        ):
            # The client counted itself already. An honest client that is dead on this bitmap does
            # not sign it.
            if index == self._index or not self._alive[index]:
                continue
            # An invalid signature is not counted, and is no reason to abort: a corrupt client could
            # stop the round with it.
            with suppress(RejectedError):
                keys.verify(self._roster_keys[index], signature, Label.CONFIRM, self._ctx2, what)
                valid += 1
        if valid < self._graph.threshold:
            raise RemoteProtocolError(AbortCode.TOO_FEW_CONFIRMATIONS)
        return self._alive

    def _unmask(self, alive: Bits) -> bytes:
        """Return, for every neighbour whose shares opened, its share of b or of the key.

        Check i: never both. A survivor's pair masks cancel, so the server needs its b. A dead
        client's pair masks do not, so the server needs its key; if its vector comes late, the self
        mask still hides it.
        """
        assert self._secrets.held is not None and self._secrets.own_share is not None
        held, near = self._secrets.held[self._opened], alive[self._neighbours[self._opened]]
        shares = np.where(near[:, None], held[:, _B], held[:, _KEY])
        return wire.encode_unmask(Unmask(self._secrets.own_share, self._opened, shares))


def read_invite(data: bytes, *, server_key: bytes, fingerprint: bytes) -> Invitation | None:
    """Return what a verified Invite says, so that a client knows which round it is asked to join.

    This call records nothing and checks no policy: a `Client` that is pinned to the round decides
    whether to join.

    Args:
        data: the bytes that came; any bytes are allowed.
        server_key: the Ed25519 key that the Plan names, 32 bytes.
        fingerprint: the fingerprint of the Plan, 32 bytes.

    Returns:
        None if the bytes are no Invite of this version that the key has signed for this plan: they
        may be anybody's.

    Raises:
        RejectedError: the server's key is of low order, so that anybody could sign under it, or is
            not the one encoding of its point.
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
    """Return the terms of an Invite if the server's key has signed them, else None."""
    if message.kind is not Kind.INVITE:
        return None
    try:
        terms, signature = wire.split_invite(message.body)
        # The signature also covers the header, and so the session. Otherwise signed terms could be
        # replayed under a session of an attacker's choice.
        keys.verify(server_key, signature, Label.INVITE, data[: wire.HEADER.size], terms)
    except (RemoteProtocolError, RejectedError):
        return None
    return terms


class _Seed:
    """A context that gives a secret made of field elements, and wipes it at the end."""

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
