"""A client of secure summation: from the bytes that the server sends to those that it answers, sans-IO.

>>> from fedtally.crypto.keys import Secret, SigningKey
>>> from fedtally.secagg.params import ClientPolicy
>>> pinned = Pinned(server_key=SigningKey(Secret(bytes(32))).public, fingerprint=bytes(32), round=0)
>>> policy = ClientPolicy(adversary="semi-honest", min_honest=50)
>>> client = Client(policy, pinned, lambda invite: np.zeros(1), journal=MemoryJournal(), random=bytes)
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

from fedtally import _validate
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
from fedtally.secagg.params import Adversary, ClientPolicy, Parameters

_B, _KEY = (
    slice(0, shamir.SECRET_ELEMENTS),
    slice(shamir.SECRET_ELEMENTS, 2 * shamir.SECRET_ELEMENTS),
)


class Journal(Protocol):
    """What a client must remember whatever happens to it.

    Sessions are remembered by identity (a device), across all its items: nobody is in a session
    twice. That an item is spent is remembered by item. Both calls return only once the fact is
    durable, and neither is ever undone.
    """

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session before it begins; False if it was recorded before (it may be forgotten after not_after)."""

    def spend(self, session: bytes) -> bool:
        """Mark the item as spent, in one atomic step; False if it was."""


@dataclass
class MemoryJournal:
    """A journal that ends with the process: for simulations, where an item does not outlive it either.

    >>> journal = MemoryJournal()
    >>> journal.begin(b"1", 9), journal.begin(b"1", 9), journal.spend(b"1"), journal.spend(b"2")
    (True, False, True, False)
    """

    sessions: set[bytes] = field(default_factory=set)
    is_spent: bool = False

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session; False if it was recorded before."""
        new = session not in self.sessions
        self.sessions.add(session)
        return new

    def spend(self, session: bytes) -> bool:
        """Mark the item as spent; False if it was."""
        fresh, self.is_spent = not self.is_spent, True
        return fresh


@dataclass(frozen=True)
class Pinned:
    """What a client knows beforehand, and not from the server that sums.

    Args:
        server_key: the Ed25519 key that the Plan names; Invites are signed with it.
        fingerprint: of the Plan, 32 bytes.
        allow_list: the identities that may take part; None in `semi_honest`.
        parameters: those of the Plan; None leaves them to the policy alone.
        round: the one that the client takes part in, 0 .. 2^32 - 1, and that its journal books.
    """

    server_key: bytes
    fingerprint: bytes
    allow_list: AllowList | None = None
    parameters: Parameters | None = None
    round: int = field(kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "round", _validate.integer(0, 2**32 - 1, round=self.round))
        for name in ("server_key", "fingerprint"):
            value = getattr(self, name)
            if not isinstance(value, bytes) or len(value) != keys.KEY_BYTES:
                raise InvalidInputError(f"{name} must be {keys.KEY_BYTES} bytes")
        keys.check_identity(self.server_key)


class Invitation(NamedTuple):
    """What a verified Invite says: from `read_invite`.

    Attributes:
        session: 32 bytes.
        round: the one that it is for.
        not_before: Unix seconds.
        not_after: Unix seconds.
        parameters: of the cohort.
    """

    session: bytes
    round: int
    not_before: int
    not_after: int
    parameters: Parameters


@dataclass(repr=False)
class _Secrets:
    """What must be forgotten when a session ends, however it ends; nothing of it prints."""

    elements: shamir.U32 | None = None  # b and the seed of the mask key
    mask_key: ExchangeKey | None = None
    encryption_key: ExchangeKey | None = None
    unsealing: list[Secret] = field(default_factory=list)  # what opens the shares of each neighbour
    own_share: shamir.U32 | None = None
    held: shamir.U32 | None = None  # the shares of the neighbours, [k, 10]

    def wipe(self) -> None:
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

    It takes one message of each type, once, in the order of `messages.EXCHANGES`. A byte-identical
    copy of the last one is answered again and changes nothing; bytes that are no frame of this
    session are dropped; anything else of the wrong type or content ends the session for good, and
    every secret is wiped. A client that was restarted has no way back into its session.

    Args:
        policy: what the client demands of the parameters.
        pinned: what it knows beforehand.
        contribution: returns the vector that is to be summed for an Invite: integers [V], each of
            which fits the modulus; called at most once, after all checks and just before the item
            is spent.
        journal: what is remembered durably.
        random: returns as many uniform bytes as it is asked for, from a cryptographic source.
        identity: the client's key in the allow-list; only and always in `active`.

    Attributes:
        state: how far it is.
        invite: the terms of the session, from its start.
        code: why the session ended, if it did without a result.
        reason: the same in words, for the client's owner alone; "" if it did not.
        result: what the server announced in the end.

    One thread at a time: that nothing is answered twice rests on `receive` being whole.
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
        active = policy.adversary is Adversary.ACTIVE
        if active != (identity is not None) or active != (pinned.allow_list is not None):
            raise InvalidInputError(
                "identity and allow_list both go with the adversary active, and the policy says"
                f" {policy.adversary}"
            )
        # `active`: the rank; `semi_honest`: the index, once there is a roster
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
        raise InvalidInputError("the state of a client is secret: it cannot be copied or pickled")

    def receive(self, data: bytes, now: int) -> bytes | None:
        """Take what came from the server; return the answer, or None if there is none.

        Args:
            data: whatever came.
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
        seen = hashlib.sha256(data).digest()
        if seen == self._last:
            return self._reply
        if self.state is ClientState.DONE:
            self._conclude(message)
            return None
        before, self.state = self.state, ClientState.ABORTED
        try:
            reply, after = self._handle(before, message, now)
        except RemoteProtocolError as error:
            self._end(error.code, str(error))
            return (
                None if message.kind is Kind.ABORT else self._frame(Kind.ABORT, bytes([error.code]))
            )
        except BaseException:
            self._end(AbortCode.INTERNAL)
            raise
        self.state, self._last, self._reply = after, seen, reply
        return reply

    def confirms(self, total: npt.NDArray[np.int64], salt: bytes) -> bool:
        """Tell whether a published sum is the one that the server announced, for this client's survivors.

        Args:
            total: int64 [V].
            salt: 32 bytes, published with it; not of a sum that gets its noise after this.

        Raises:
            LocalProtocolError: no result was announced to this client.
        """
        if self.result is None:
            raise LocalProtocolError(
                "no result was announced to this client: there is nothing to compare with"
            )
        return wire.result_digest(self._ctx2, self._alive, salt, total) == self.result.digest

    def abandon(self) -> None:
        """Leave: end the session and wipe its secrets.
        The server need not be told, it sees a dropout.
        """
        self._end(AbortCode.INTERNAL)

    # ---- the state machine ----

    def _is_invited(self, message: wire.Frame, data: bytes) -> bool:
        """Tell whether this is an Invite by the server's key: anything else may be anybody's."""
        return _signed_terms(message, data, self._pinned.server_key) is not None

    def _handle(
        self, state: ClientState, message: wire.Frame, now: int
    ) -> tuple[bytes, ClientState]:
        """Return the answer and the state after it."""
        if message.version != wire.VERSION:
            raise RemoteProtocolError(AbortCode.VERSION)
        if message.kind is Kind.ABORT:
            raise RemoteProtocolError(wire.decode_abort(message.body))
        step = TRANSITIONS[self._policy.adversary][state].get(message.kind)
        if step is None:
            raise RemoteProtocolError(AbortCode.WRONG_STATE)
        if self.invite is not None and now > self.invite.not_after:
            raise RemoteProtocolError(AbortCode.EXPIRED)
        body = self._body(message, now)
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
        """Take note of how the session ended; there is nothing left to protect."""
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
        self._identity = None  # the caller's: it goes on

    @property
    def _parameters(self) -> Parameters:
        assert self.invite is not None
        return self.invite.parameters

    @property
    def _is_active(self) -> bool:
        return self._policy.adversary is Adversary.ACTIVE

    # ---- Invite -> Advertise ----

    def _advertise(self, message: wire.Frame, now: int) -> bytes:
        terms, _ = wire.split_invite(message.body)
        self.invite = invite = wire.decode_terms(terms)
        self._check_invite(invite, now)
        self._ctx = wire.context(self._session, terms)
        if not self._journal.begin(self._session, invite.not_after):
            raise RemoteProtocolError(AbortCode.SESSION_SEEN)
        mine = self._secrets
        mine.elements = shamir.random_elements(2 * shamir.SECRET_ELEMENTS, self._random)
        with _Seed(mine.elements[_KEY]) as seed:
            mine.mask_key = keys.mask_key(seed, self._ctx)
        secret = Secret(self._random(keys.KEY_BYTES))
        mine.encryption_key = ExchangeKey(secret)
        secret.wipe()
        with _Seed(mine.elements[_B]) as seed:
            commitment = keys.commitment(seed, self._ctx)
        self._public = Advert(
            mine.mask_key.public,
            mine.encryption_key.public,
            commitment,
            self._random(wire.NONCE_BYTES),
            b"",
        )
        self._advert = b"".join(self._public)
        if self._identity is not None:
            self._advert += self._identity.sign(Label.ADVERTISE, self._ctx, self._advert)
        return self._advert

    def _check_invite(self, invite: Invite, now: int) -> None:
        try:
            self._policy.check_invite(invite.parameters)
        except InvalidInputError as error:
            raise RemoteProtocolError(AbortCode.POLICY, str(error)) from error
        if invite.not_after - invite.not_before > (most := self._policy.max_seconds):
            raise RemoteProtocolError(
                AbortCode.POLICY, f"a session may last at most {most} seconds by this policy"
            )
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
        if invite.round != self._pinned.round:  # what is booked must be what is sent
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
        coefficients = shamir.random_elements((threshold - 1) * len(mine.elements), self._random)
        shares = shamir.split(
            mine.elements, coefficients.reshape(threshold - 1, -1), len(slots) + 1
        )
        mine.own_share = shares[-1, _B].copy()
        sealed = []
        for slot in slots:
            peer_key = self._neighbour_keys[slot].encryption_key
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
            sealed.append(keys.seal(up, share))
            share.wipe()
            mine.unsealing.append(down)
        coefficients.fill(0)
        shares.fill(0)
        mine.encryption_key.wipe()
        return b"".join(sealed)

    def _take_roster(self, body: bytes) -> Sequence[bytes]:
        """Take a Roster, `semi_honest`; return the neighbours' adverts."""
        roster = wire.decode_roster(body, self._parameters)
        self._n, self._index, self._sender = roster.n, roster.own_index, roster.own_index
        self._check_size()
        self._enter(wire.roster_context(self._ctx, self._n, None, roster.digest))
        return roster.adverts

    def _take_full_roster(self, body: bytes) -> Sequence[bytes]:
        """Take a Roster, `active`: everybody's advert, signed; return the neighbours' adverts."""
        identities = self._pinned.allow_list
        assert identities is not None
        roster = wire.decode_full_roster(body, len(identities))
        ranks = np.flatnonzero(roster.members)
        self._n = len(ranks)
        self._check_size()
        own = np.flatnonzero(ranks == self._sender)
        if not len(own) or roster.adverts[own[0]] != self._advert:
            raise _invalid_roster("the client's own advert is not in the roster")
        self._index = int(own[0])
        self._roster_keys = [identities.key(int(rank)) for rank in ranks]
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
        try:
            self._parameters.check_roster(self._n)
        except InvalidInputError as error:
            raise _invalid_roster(str(error)) from error

    def _enter(self, ctx2: bytes) -> None:
        """Settle on a roster: there is no other in this session."""
        self._ctx2 = ctx2
        self._graph = self._parameters.graph(self._n)
        self._neighbours = Neighbourhood(self._parameters, self._n, ctx2).of(self._index)

    def _check_adverts(self, adverts: Sequence[bytes]) -> list[Advert]:
        """Return the neighbours' keys: canonical, not of low order, none of them twice or the client's own."""
        found = [wire.decode_advert(advert, self._policy.adversary) for advert in adverts]
        points = [
            key
            for advert in (self._public, *found)
            for key in (advert.mask_key, advert.encryption_key)
        ]
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
        self._present = inbox.present
        self._open(inbox)
        ready = 1 + int(self._opened.sum())
        if ready < self._graph.threshold or (
            self._is_active and ready < self._parameters.min_survivors
        ):
            raise RemoteProtocolError(AbortCode.TOO_FEW_OPENED)
        vector = self._vector()
        try:
            if not self._journal.spend(self._session):
                raise RemoteProtocolError(AbortCode.ITEM_SPENT)
            self._add_masks(vector)
        except BaseException:
            vector.fill(0)  # it may not be masked yet
            raise
        return pack(vector, self._parameters.bits)

    def _open(self, inbox: Inbox) -> None:
        """Open what the neighbours sealed.
        One that sent nonsense keeps its edge and is not counted.
        """
        k = self._graph.neighbours
        self._opened = np.zeros(k, np.bool_)
        self._secrets.held = held = np.zeros((k, 2 * shamir.SECRET_ELEMENTS), np.uint32)
        for slot, sealed in zip(np.flatnonzero(inbox.present).tolist(), inbox.sealed, strict=True):
            with suppress(RejectedError, shamir.ShareError):
                share = keys.unseal(self._secrets.unsealing[slot], sealed)
                try:
                    held[slot] = shamir.from_bytes(share.reveal())
                finally:
                    share.wipe()
                self._opened[slot] = True
        for key in self._secrets.unsealing:
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
        if int(given.max()) > most or int(given.min()) < -most:
            del given
            raise LocalProtocolError(
                f"every entry of the contribution must be within +-{most}, for {bits} bits"
            )
        vector = np.ones(length + self._parameters.checksum_entries, lane(bits))
        vector[:length] = given.astype(vector.dtype)
        return vector

    def _add_masks(self, vector: Lanes) -> None:
        """Add the own mask and, in the order of indexes, plus or minus that of every neighbour who is present."""
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
            masks.append((self._index < peer, mask))
        for adds, key in masks:
            (masking.add if adds else masking.subtract)(key)
            key.wipe()
        masking.wipe()
        vector &= vector.dtype.type(2**self._parameters.bits - 1)
        mine.mask_key.wipe()
        mine.elements.fill(0)

    # ---- Survivors -> Confirm or Unmask ----

    def _survive(self, body: bytes) -> bytes:
        alive = wire.unpack_bits(body, self._n)
        self._check_survivors(alive)
        self._alive = alive
        if not self._is_active:
            return self._unmask(alive)
        assert self._identity is not None
        return self._identity.sign(Label.CONFIRM, self._ctx2, wire.bitmap_digest(alive))

    def _check_survivors(self, alive: Bits) -> None:
        near = alive[self._neighbours]
        if not alive[self._index]:
            raise RemoteProtocolError(AbortCode.OWN_BIT_DEAD)
        if (near & ~self._present).any():
            raise RemoteProtocolError(AbortCode.REVIVED)
        if int(alive.sum()) < self._parameters.min_survivors:
            raise RemoteProtocolError(AbortCode.BELOW_MIN_SURVIVORS)
        # not those whose shares came from another roster
        helpers = 1 + int((near & self._opened).sum())
        if helpers < self._graph.threshold:
            raise RemoteProtocolError(AbortCode.BELOW_THRESHOLD)
        # The ring anew: kept since the Roster, the order of all clients would be the largest thing
        # that a client holds.
        if not Neighbourhood(self._parameters, self._n, self._ctx2).is_whole(alive):
            raise RemoteProtocolError(AbortCode.RING_CUT)
        if self._is_active and helpers < self._parameters.min_survivors:
            raise RemoteProtocolError(AbortCode.BELOW_MIN_SURVIVORS)

    def _confirmed(self, body: bytes) -> Bits:
        """Return the survivors once t clients among them, itself included, have signed the very same."""
        confirmations = wire.decode_confirmations(body, self._n)
        what, valid = wire.bitmap_digest(self._alive), 1
        for index, signature in zip(
            np.flatnonzero(confirmations.signers).tolist(), confirmations.signatures, strict=True
        ):
            if index == self._index or not self._alive[index]:
                continue
            with suppress(RejectedError):
                keys.verify(self._roster_keys[index], signature, Label.CONFIRM, self._ctx2, what)
                valid += 1
        if valid < self._graph.threshold:
            raise RemoteProtocolError(AbortCode.TOO_FEW_CONFIRMATIONS)
        return self._alive

    def _unmask(self, alive: Bits) -> bytes:
        """Return, for every neighbour whose shares opened, either that of b or that of the key, never both."""
        assert self._secrets.held is not None and self._secrets.own_share is not None
        held, near = self._secrets.held[self._opened], alive[self._neighbours[self._opened]]
        shares = np.where(near[:, None], held[:, _B], held[:, _KEY])
        return wire.encode_unmask(Unmask(self._secrets.own_share, self._opened, shares))


def read_invite(data: bytes, *, server_key: bytes, fingerprint: bytes) -> Invitation | None:
    """Return what a verified Invite says, so that a client knows which round it is asked to join.

    Nothing is recorded, and nothing is said of whether to join: a `Client` that is pinned to the
    round decides that.

    Args:
        data: whatever came.
        server_key: the Ed25519 key that the Plan names, 32 bytes.
        fingerprint: of the Plan, 32 bytes.

    Returns:
        None if the bytes are no Invite of this version that the key has signed for this plan: they
        may be anybody's.

    Raises:
        RejectedError: the key is of low order, or not the one encoding of its point: anybody could
            sign for it.
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
    """Return the terms of an Invite that the server's key has signed with its header; None for all else."""
    if message.kind is not Kind.INVITE:
        return None
    try:
        terms, signature = wire.split_invite(message.body)
        keys.verify(server_key, signature, Label.INVITE, data[: wire.HEADER.size], terms)
    except (RemoteProtocolError, RejectedError):
        return None
    return terms


class _Seed:
    """Context of a secret that is made of elements and wiped at the end."""

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
