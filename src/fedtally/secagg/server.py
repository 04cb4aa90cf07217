"""Run the server of secure summation, sans-IO: clients' bytes come in, its requests go out.

The server adds up masked vectors as they come and stores none of them. It closes a phase when its
caller says so. After that the requests of the next phase can never change. If there is a journal,
it has everything that these requests are made of before their first byte leaves. So a restored
server sends the same bytes. Late messages are refused.

A second version of a request would be dangerous. A client has two secrets: the seed of its self
mask, and the seed of the key of its pair masks. After two versions of a request, clients could
reveal both secrets of one client to the server, and so this client's vector.

docs/protocol.md specifies every byte and check. In `semi-honest` privacy needs this server to
follow the protocol. In `active` privacy needs only the clients' checks; the checks of this module
then only prevent that a bad client stops a round. The protocol is by Bonawitz et al. 2017. The ring
of `semi-honest` is by Bell et al. 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto import keys
from fedtally.crypto.keys import Label, RejectedError, SigningKey
from fedtally.crypto.prg import Lanes, lane
from fedtally.errors import InvalidInputError
from fedtally.secagg import checkpoints, wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.graph import Neighbourhood
from fedtally.secagg.messages import (
    EXCHANGES,
    AbortCode,
    Bits,
    Confirmations,
    FullRoster,
    Inbox,
    Invite,
    Kind,
    LocalProtocolError,
    Outcome,
    RemoteProtocolError,
    Result,
    Roster,
    ServerState,
    next_phase,
    phase,
)
from fedtally.secagg.packing import unpack
from fedtally.secagg.params import Parameters
from fedtally.secagg.unmasking import Unmasking

ClientId = int | str  # a checkpoint has clients' names in JSON, which keeps these types
# The size of the salt of the digest in the Result. With a shorter salt, a reader of the Result
# could try out likely sums before the sum is published.
SALT_BYTES = 32
_ENDED = (ServerState.DONE, ServerState.ABORTED)


def check_name(client: ClientId) -> None:
    """Refuse a client's name that is not exactly an int or a str.

    A checkpoint would not give other names back unchanged.

    Raises:
        LocalProtocolError: `client` is no int or str, or is of a subclass.
    """
    # Subclasses are refused, too: True equals 1, which may be another client's name, and JSON gives
    # an IntEnum back as a plain int.
    if type(client) not in (int, str):
        raise LocalProtocolError(
            f"a client must be named by an int or a str, got {type(client).__name__}"
        )


class Closing(NamedTuple):
    """Say what would happen if the phase were closed now, and how many clients have answered.

    Attributes:
        code: None if the next phase would follow, else why the round would be aborted.
        short: the clients whose secrets cannot be recovered: too few holders of their shares are
            left.
        answered: the number of clients that have answered in this phase.
        asked: the number of clients that were asked in this phase, without those that aborted in it
            before they answered; `n_max` while clients advertise. A client that aborted in an
            earlier phase and was asked again is counted. If `answered` equals `asked`, no answer
            can come any more. Before that it can be useful to wait in UNMASK, even if `code` is
            None: with more shares than it needs, the server can correct wrong ones.
    """

    code: AbortCode | None
    short: tuple[ClientId, ...]
    answered: int
    asked: int


class Blame(NamedTuple):
    """Name the owner and the holder of a wrong share.

    The owner of a secret deals one share of it to each holder, and holders give their shares to the
    server. Either the owner dealt a wrong share, or the holder gave a wrong one; nobody can tell
    which. So a pair can name an honest client beside a client that lied. For instance, an owner
    that deals wrong shares to all its holders can get all of them named.

    Attributes:
        owner: the name of the owner.
        holder: the name of the holder; None if the owner's secret cannot be recovered: too few
            shares came, too many are wrong, or the secret does not fit the owner's advert.
    """

    owner: ClientId
    holder: ClientId | None


class Server:
    """Run the server's side of one session, which adds up the vectors of one cohort of clients.

    Args:
        parameters: the parameters of the cohort.
        session: the identifier of the session, 32 uniform bytes that were never used before.
        signing_key: the server's Ed25519 key; the plan has its public key.
        fingerprint: the fingerprint of the plan, 32 bytes.
        round: the round of the campaign, 0 .. 2^32 - 1.
        not_before: the start of the session, Unix seconds.
        not_after: the end of the session, Unix seconds; a later `close_phase` aborts the round.
        salt: 32 uniform bytes, secret until they are published with the sum. If an aggregator adds
            noise to the sum, the salt is never published.
        random: a function that returns a given number of uniform bytes, from a cryptographic
            source. It is called at most once, and in `semi-honest` only: for the order of the
            roster, after the last advert.
        allow_list: the keys of the clients that may take part; needed in `active`, and None
            otherwise.
        journal: a function that writes a checkpoint durably before it returns. With None, a server
            that crashes cannot resume the session.
        reserve: a function that charges the privacy budget, because from the unmasking phase on the
            sum can be opened. It is called with this server before the session enters the unmasking
            phase. `restore` calls it again, before the server can send anything, if the session is
            in the unmasking phase or has a sum. If `reserve` raises an error, the caller gets it;
            in `close_phase` the error also ends the session of this object.

    Attributes:
        state: the phase that the session is in.
        invite: the bytes of the Invite, the same for every client.
        code: why the round was aborted; None if it was not.
        outcome: the sum; None until the session is done.
        blamed: the wrong shares that were found while unmasking, each with its owner and its
            holder, of which at least one lied. Also clients whose secrets cannot be recovered, with
            the holder None: perhaps nobody lied (see `Blame`). Exclude nobody because of one round.
            The list is not complete: more than t shares of a secret are examined only if one of the
            first t is wrong, and none after a secret that cannot be recovered.

    Raises:
        InvalidInputError: an argument has a wrong size or is out of range, or the allow-list is
            missing or not needed.
        Exception: any error of `journal`, unchanged.

    Use it from one thread at a time. `can_close` takes a pass over all neighbours: call it when a
    deadline is near, not after each message.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        session: bytes,
        signing_key: SigningKey,
        fingerprint: bytes,
        round: int,
        not_before: int,
        not_after: int,
        salt: bytes,
        random: Callable[[int], bytes],
        allow_list: AllowList | None = None,
        journal: Callable[[bytes], None] | None = None,
        reserve: Callable[[Server], None] | None = None,
    ) -> None:
        if parameters.adversary.has_identities != (allow_list is not None):
            raise InvalidInputError(
                "an allow_list goes with the adversary active, and with no other: got"
                f" {'no' if allow_list is None else 'an'} allow_list for {parameters.adversary}"
            )
        for name, value, size in (
            ("session", session, 32),
            ("fingerprint", fingerprint, 32),
            ("salt", salt, SALT_BYTES),
        ):
            if not isinstance(value, bytes) or len(value) != size:
                raise InvalidInputError(f"{name} must be {size} bytes")
        not_after = validate.integer(0, 2**63 - 1, not_after=not_after)
        not_before = validate.integer(0, not_after, not_before=not_before)
        number = validate.integer(0, 2**32 - 1, round=round)
        # Without an allow-list, the Invite has zeros in the place of the list's digest.
        listed = bytes(keys.KEY_BYTES) if allow_list is None else allow_list.digest
        terms = wire.encode_terms(
            Invite(parameters, not_before, not_after, number, fingerprint, listed)
        )
        unsigned = wire.frame(
            Kind.INVITE, session, wire.SERVER, terms + bytes(keys.SIGNATURE_BYTES)
        )
        # The signature covers the header, which has the session. Otherwise an attacker could replay
        # the terms in another session. The header also has the length of the body: so the header is
        # taken from a frame with zeros in the place of the signature.
        header = unsigned[: wire.HEADER.size]
        self._begin(
            header + terms + signing_key.sign(Label.INVITE, header, terms),
            salt,
            random,
            allow_list,
            journal,
            reserve,
        )
        self._save()

    def __getstate__(self) -> None:
        raise InvalidInputError(
            "a session cannot be copied or pickled: two servers could close a phase differently,"
            " and open both secrets of a client; restore it from its checkpoint, once"
        )

    def _begin(
        self,
        invite: bytes,
        salt: bytes,
        random: Callable[[int], bytes],
        allow_list: AllowList | None,
        journal: Callable[[bytes], None] | None,
        reserve: Callable[[Server], None] | None,
    ) -> None:
        message = wire.parse(invite)
        assert message is not None
        terms, _ = wire.split_invite(message.body)
        self.invite, self.state = invite, ServerState.ADVERTISE
        self.code: AbortCode | None = None
        self.outcome: Outcome | None = None
        self.blamed: list[Blame] = []
        self._session, self._terms = message.session, wire.decode_terms(terms)
        self._ctx = wire.context(self._session, terms)
        self._parameters = self._terms.parameters
        self._is_active = self._parameters.adversary.has_identities
        self._salt, self._random, self._allow_list, self._journal = (
            salt,
            random,
            allow_list,
            journal,
        )
        self._reserve = reserve
        self._clients: list[ClientId] = []  # in the order of the roster, once there is one
        self._adverts: list[bytes] = []
        self._ranks: list[int] = []  # the clients' ranks in the allow-list; in `active` only
        self._places: dict[ClientId, int] = {}
        self._points: set[bytes] = set()  # all public X25519 keys so far: none may occur twice
        # Bitmaps by place in the roster: the clients that sent Shares, the clients whose vectors
        # are in the total, and the clients that confirmed the survivors. A bitmap is empty until
        # the phase that it is about has closed.
        self._present = self._alive = self._signers = np.zeros(0, np.bool_)
        self._sealed = np.zeros((0, 0, wire.SEALED_BYTES), np.uint8)  # by client and slot
        self._signatures: dict[int, bytes] = {}
        self._total: Lanes = np.zeros(0, np.uint16)
        self._unmasking: Unmasking | None = None
        self._enter(self.state)

    # ---- what comes from clients ----

    @property
    def session(self) -> bytes:
        """The identifier of the session, 32 bytes."""
        return self._session

    @property
    def terms(self) -> Invite:
        """The terms of the session's Invite: the parameters, the times, the round and the plan."""
        return self._terms

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The names of the clients in the roster, by index.

        Before there is a roster, they are the clients that have advertised, in order of arrival.
        """
        return tuple(self._clients)

    @property
    def awaited(self) -> tuple[ClientId, ...]:
        """The names of the clients that this phase asked and that neither answered nor aborted.

        A client that aborted in an earlier phase may be asked again, and is then awaited, too.
        While clients advertise the tuple is empty: the server does not know whom its caller
        invited. Once the session has ended, the tuple means nothing.
        """
        return tuple(self._clients[place] for place in np.flatnonzero(self._waiting).tolist())

    def receive(self, client: ClientId, data: bytes) -> bool:
        """Process a message of a client; return whether it was accepted.

        A message that is refused changes nothing and gets no answer. No bytes of a client cause an
        exception.

        Args:
            client: the name that the transport gives the sender; the same in all messages of a
                session.
            data: the bytes that came; any bytes are allowed.

        Raises:
            LocalProtocolError: `client` is no int or str, see `check_name`.
        """
        message = wire.parse(data)
        return message is not None and self.take(client, message) is None

    def take(self, client: ClientId, message: wire.Frame) -> AbortCode | None:
        """Process a message that `wire.parse` returned, as `receive` does.

        Args:
            client: the name that the transport gives the sender; the same in all messages of a
                session.
            message: the message.

        Returns:
            The reason why the message is refused, or None if it is accepted.

        Raises:
            LocalProtocolError: `client` is no int or str, see `check_name`.
        """
        check_name(client)
        if message.session != self._session or self.state in _ENDED:
            return AbortCode.WRONG_STATE
        # A refused message has no effect on the session, and gets no answer. So its sender may send
        # another message. Otherwise a client that sends nonsense could end the session of
        # the other clients.
        try:
            self._take(client, message)
        except RemoteProtocolError as error:
            return error.code
        except RejectedError:  # a signature or a key is not valid
            return AbortCode.ROSTER_INVALID
        return None

    def _take(self, client: ClientId, message: wire.Frame) -> None:
        if message.version != wire.VERSION:
            raise RemoteProtocolError(AbortCode.VERSION)
        if self.state is ServerState.ADVERTISE:
            if message.kind is not Kind.ADVERTISE or client in self._places:
                raise RemoteProtocolError(AbortCode.WRONG_STATE)
            self._add_client(client, message)
            return
        # The name from the transport and the sender in the header must be the same client.
        # Otherwise a client could answer for another client, and this client would count as alive.
        place = self._places.get(client)
        if place is None or message.sender not in self._senders(place, message.kind):
            raise RemoteProtocolError(AbortCode.MALFORMED, "the sender is not who it says")
        if message.kind is Kind.ABORT:
            wire.decode_abort(message.body)  # raises if the body is no code
            self._waiting[place] = False
            return
        # Each client answers once in each phase. Otherwise a second vector would be added to the
        # total, or a second Unmask could have shares of the other secrets.
        if (
            message.kind is not phase(self._parameters.adversary, self.state).reply
            or not self._waiting[place]
        ):
            raise RemoteProtocolError(AbortCode.WRONG_STATE)
        self._add(place, message)
        self._waiting[place], self._answered[place] = False, True

    def _senders(self, place: int, kind: Kind) -> tuple[int, ...]:
        """Return the numbers that a client may write as the sender into the header of a message.

        Args:
            place: the index of the client in the roster.
            kind: the type of the message.
        """
        if self._is_active:
            return (self._ranks[place],)
        # In `semi-honest` a client learns its index from the Roster. A client that aborts because
        # it cannot read the Roster has no index.
        return (place, wire.UNLISTED) if kind is Kind.ABORT else (place,)

    def _add(self, place: int, message: wire.Frame) -> None:
        match message.kind:
            case Kind.SHARES:
                body = wire.decode_shares(message.body, self._graph.neighbours)
                self._sealed[place] = np.frombuffer(body, np.uint8).reshape(
                    self._sealed[place].shape
                )
            case Kind.MASKED_INPUT:
                self._add_vector(message.body)
            case Kind.CONFIRM:
                self._add_signature(place, wire.decode_confirm(message.body))
            case _:
                self._add_secrets(place, message.body)

    def _add_client(self, client: ClientId, message: wire.Frame) -> None:
        """Add a client by its Advertise.

        Raises:
            RemoteProtocolError: the roster is full, the client's identity or a public key is in it
                already, or the body or the sender is not valid.
            RejectedError: a signature or a public key is not valid.
        """
        advert = wire.decode_advert(message.body, self._parameters.adversary)
        if len(self._clients) >= self._parameters.n_max:
            # The protocol has one code for too many clients and for too few.
            raise RemoteProtocolError(AbortCode.TOO_FEW_CLIENTS, "the roster is full")
        rank = message.sender
        if self._allow_list is None:
            if rank != wire.UNLISTED:
                raise RemoteProtocolError(
                    AbortCode.MALFORMED, "a client has no index before the roster"
                )
        else:
            # An identity has one place in the roster. With two places a corrupt client would hold
            # several shares of a secret.
            if rank >= len(self._allow_list) or rank in self._ranks:
                raise RemoteProtocolError(
                    AbortCode.ROSTER_INVALID, "no such identity, or one that is in the roster"
                )
            signed = message.body[: wire.ADVERT_BYTES]
            keys.verify(
                self._allow_list.key(rank), advert.signature, Label.ADVERTISE, self._ctx, signed
            )
        # A client ends its session if an advert that it gets has a key of low order (RFC 7748,
        # section 6.1), or if a key occurs twice in these adverts and its own. So the server refuses
        # such an advert: only its sender misses the round. Otherwise the clients that get the
        # advert would miss the round: all clients in the complete graph, the neighbours in a ring.
        points = {keys.check_point(advert.mask_key), keys.check_point(advert.encryption_key)}
        if len(points) < 2 or points & self._points:
            raise RemoteProtocolError(AbortCode.ROSTER_INVALID, "a key occurs twice")
        self._points |= points
        self._places[client] = len(self._clients)
        self._clients.append(client)
        self._adverts.append(message.body)
        if self._is_active:
            self._ranks.append(rank)

    def _add_vector(self, body: bytes) -> None:
        length = self._parameters.length + self._parameters.checksum_entries
        # The vector is added at once and not kept: a stored vector could be unmasked by itself if
        # both secrets of its client ever got out. If `unpack` raises, nothing has been added.
        try:
            self._total += unpack(body, length, self._parameters.bits)
        except InvalidInputError as error:
            raise RemoteProtocolError(AbortCode.MALFORMED, str(error)) from error

    def _add_signature(self, place: int, signature: bytes) -> None:
        key = self._roster_key(place)
        # Without this check a wrong signature would count. Then clients, which need t valid
        # signatures, would abort.
        keys.verify(key, signature, Label.CONFIRM, self._ctx2, wire.bitmap_digest(self._alive))
        self._signatures[place] = signature

    def _roster_key(self, place: int) -> bytes:
        assert self._allow_list is not None
        return self._allow_list.key(self._ranks[place])

    def _add_secrets(self, place: int, body: bytes) -> None:
        unmask = wire.decode_unmask(body, self._graph.neighbours)
        if (unmask.given & ~self._present[self._graph.of(place)]).any():
            raise RemoteProtocolError(
                AbortCode.MALFORMED, "an Unmask gives a share of a client that sent no Shares"
            )
        self._begun_unmasking().add(place, unmask)

    # ---- phases ----

    def can_close(self) -> Closing:
        """Return what `close_phase` would do now, without doing it.

        The result assumes that not_after has not passed, that all shares and vectors are right, and
        that no function of the caller raises an error.

        Raises:
            LocalProtocolError: the session has ended.
        """
        code, short = self._verdict()
        answered, asked = int(self._answered.sum()), int((self._waiting | self._answered).sum())
        if self.state is ServerState.ADVERTISE:
            answered, asked = len(self._clients), self._parameters.n_max
        return Closing(code, tuple(self._clients[place] for place in short), answered, asked)

    def _verdict(self) -> tuple[AbortCode | None, list[int]]:
        """Return why the next phase cannot follow, and the places of clients that prevent it.

        The reason is None if the next phase can follow. The places, which are indexes in the
        roster, are of clients whose secrets cannot be recovered, because too few holders of their
        shares are left. For any other reason, and for None, the list of places is empty.

        If the next phase began in spite of a reason, clients would abort later, or the sum could
        not be opened. So the round ends now, before it costs the clients anything more.

        Raises:
            LocalProtocolError: the session has ended.
        """
        p, n = self._parameters, len(self._clients)
        threshold = p.graph(max(n, 3)).threshold  # there is no graph of fewer than 3 clients
        match self.state:
            case ServerState.ADVERTISE:
                try:
                    p.check_roster(n)
                except InvalidInputError:
                    return AbortCode.TOO_FEW_CLIENTS, []
            case ServerState.SHARE:
                if int(self._answered.sum()) < max(threshold, p.min_survivors):
                    return AbortCode.TOO_FEW_CLIENTS, []
                # Missing clients leave gaps in the ring, which corrupt clients could use to cut it
                # into two parts (Bell et al. 2020). This check comes before any client spends its
                # item. COLLECT checks again, since more clients may be missing by then.
                if not self._graph.is_whole(self._answered):
                    return AbortCode.RING_CUT, []
            case ServerState.COLLECT:
                if int(self._answered.sum()) < p.min_survivors:
                    return AbortCode.BELOW_MIN_SURVIVORS, []
                # One secret of each client that sent Shares must be recovered. This is also true
                # for a client that is missing now: its pair masks must be removed.
                short = self._short(self._answered)
                if short:
                    return AbortCode.BELOW_THRESHOLD, short
                if not self._graph.is_whole(self._answered):
                    return AbortCode.RING_CUT, []
            case ServerState.CONFIRM:
                if len(self._signatures) < threshold:
                    return AbortCode.TOO_FEW_CONFIRMATIONS, []
            case ServerState.UNMASK:
                short = self._begun_unmasking().short()
                return (AbortCode.RECONSTRUCTION_FAILED if short else None), short
            case _:
                raise LocalProtocolError(f"the session has ended: it is {self.state.value}")
        return None, []

    def _short(self, alive: Bits) -> list[int]:
        """Return the places in the roster of clients whose secrets could not be recovered.

        They sent Shares, and fewer than t of their shares are with clients in `alive`.

        Args:
            alive: bool [n]; the clients that could still give shares.
        """
        holders = alive.astype(np.int64)
        for slot in range(self._graph.neighbours):
            holders += alive[self._graph.at_slot(slot)]
        return np.flatnonzero(self._present & (holders < self._graph.threshold)).tolist()

    def close_phase(self, now: int) -> None:
        """Close the phase: begin the next one, or open the sum, or abort the round.

        Args:
            now: the time, Unix seconds; after not_after the round is aborted.

        Raises:
            LocalProtocolError: the session has ended.
            InvalidInputError: `random` returned another number of bytes than it was asked for.
            Exception: any error of `reserve`, `random` or `journal`, unchanged. After this error,
                or an InvalidInputError, the session has ended without a sum. This end is not
                written: the last checkpoint can be restored.
        """
        code, short = self._verdict()
        try:
            if now > self._terms.not_after:
                raise RemoteProtocolError(AbortCode.EXPIRED)
            if code is AbortCode.RECONSTRUCTION_FAILED:
                self.blamed = [Blame(self._clients[place], None) for place in short]
            if code is not None:
                raise RemoteProtocolError(code)
            following = next_phase(self._parameters.adversary, self.state)
            # Privacy is charged before anything is sent that can open the sum. Otherwise a crash in
            # between could reveal a sum that no ledger has charged.
            if following is ServerState.UNMASK:
                self._make_reservation()
            self._commit()
            self._enter(following)
            # The checkpoint is written before the caller can ask for `outgoing` of the new phase.
            # The call is inside this `try`, so that an interruption here also ends the session.
            self._save()
        except RemoteProtocolError as error:
            self._end(error.code)
            self._save()
        except BaseException:
            self._end(AbortCode.INTERNAL)
            raise

    def _make_reservation(self) -> None:
        """Call `reserve` unless it is None: the unmasking phase opens the sum and costs privacy."""
        if self._reserve is not None:
            self._reserve(self)

    def _save(self) -> None:
        """Write the checkpoint, before any request of the new phase can be sent.

        If a server sent a bitmap of survivors and then lost the bitmap, it could close COLLECT
        again with another bitmap. Two bitmaps together open both secrets of a client. So if the
        journal raises an error, the session ends. Without a journal nothing is written, and nothing
        can be restored.
        """
        try:
            if self._journal is not None:
                self._journal(self.checkpoint())
        except BaseException:
            self._end(AbortCode.INTERNAL)
            raise

    def abort(self) -> None:
        """End the round without a result, in any phase; `code` is then INTERNAL.

        Raises:
            LocalProtocolError: the session has ended.
            Exception: any error of `journal`, unchanged; the session has ended all the same.
        """
        if self.state in _ENDED:
            raise LocalProtocolError(f"the session has ended: it is {self.state.value}")
        self._end(AbortCode.INTERNAL)
        self._save()

    def _end(self, code: AbortCode) -> None:
        self.state, self.code = ServerState.ABORTED, code
        # If the journal raised an error, `_commit` may have set the outcome already.
        self.outcome = None
        self._drop_inputs()

    def _drop_inputs(self) -> None:
        self._drop_sealed()
        self._total.fill(0)
        self._total, self._signatures = np.zeros(0, np.uint16), {}
        if self._unmasking is not None:
            self._unmasking.wipe()
        self._unmasking = None

    def _drop_sealed(self) -> None:
        """Erase the sealed shares.

        No later phase needs them. If they were kept, whoever gets the clients' encryption keys
        could open them.
        """
        self._sealed.fill(0)
        # An empty view of the old array would keep all its memory.
        self._sealed = np.zeros((0, 0, wire.SEALED_BYTES), np.uint8)

    def _commit(self) -> None:
        """Make the inputs of this phase final: later messages cannot change them."""
        match self.state:
            case ServerState.ADVERTISE:
                self._settle_roster()
            case ServerState.SHARE:
                self._present = self._answered
            case ServerState.COLLECT:
                self._alive = self._answered
                self._drop_sealed()
            case ServerState.CONFIRM:
                self._signers = self._answered
            case _:
                self.outcome = Outcome(self._opened_total(), self._alive, self._salt)
                self._drop_inputs()

    def _opened_total(self) -> npt.NDArray[np.int64]:
        unmasking = self._begun_unmasking()
        try:
            return unmasking.open(self._total)
        finally:  # also if the sum cannot be opened: `blamed` then says which shares were wrong
            names = self._clients
            self.blamed = [
                Blame(names[o], None if h is None else names[h]) for o, h in unmasking.blamed
            ]

    def _settle_roster(self) -> None:
        """Give each client its index in the roster: by rank in `active`, random in `semi-honest`.

        In `semi-honest` the indexes are drawn after the last advert. The reason: the ring is
        derived from ctx2, a digest of all adverts in order of index. If the indexes were the order
        of arrival, an attacker could try out rings by choosing which corrupt clients come, and
        when. Then t corrupt clients could be neighbours of one client and hold its secrets, or
        corrupt clients could fill two gaps of the ring.
        """
        n = len(self._clients)
        by = self._ranks if self._is_active else self._drawn(n)
        order = sorted(range(n), key=by.__getitem__)
        self._clients = [self._clients[place] for place in order]
        self._adverts = [self._adverts[place] for place in order]
        self._ranks.sort()
        self._index_roster()

    def _drawn(self, n: int) -> list[bytes]:
        """Return 16 uniform bytes for each of n clients, by which the clients are sorted."""
        # For up to 2^20 clients, two clients have equal bytes with a probability below 2^-88. Of
        # these two, the client that came first would come first in the order.
        size = 16 * n
        drawn = self._random(size)
        if not isinstance(drawn, bytes) or len(drawn) != size:
            raise InvalidInputError(f"random must return the {size} bytes it is asked for")
        return [drawn[start : start + 16] for start in range(0, size, 16)]

    def _index_roster(self) -> None:
        n = len(self._clients)
        self._places = {client: place for place, client in enumerate(self._clients)}
        self._digest = wire.adverts_digest(self._adverts)
        members = None
        if self._allow_list is not None:
            members = np.zeros(len(self._allow_list), np.bool_)
            members[self._ranks] = True
        self._members = members
        self._ctx2 = wire.roster_context(self._ctx, n, members, self._digest)
        self._graph = Neighbourhood(self._parameters, n, self._ctx2)

    def _enter(self, state: ServerState) -> None:
        """Begin a phase: decide whom it asks; no client has answered in it yet."""
        n, self.state = len(self._clients), state
        # SHARE asks the whole roster, and COLLECT the clients that sent Shares. Later phases ask
        # the clients whose vectors are in the total, also those that did not confirm. No phase asks
        # a client that was declared dead: its mask key will be opened, and its answer has a share
        # of its other secret.
        asked = {ServerState.SHARE: np.ones(n, np.bool_), ServerState.COLLECT: self._present}.get(
            state, self._alive
        )
        self._waiting, self._answered = asked.copy(), np.zeros(n, np.bool_)
        if state is ServerState.SHARE:
            self._sealed = np.zeros((n, self._graph.neighbours, wire.SEALED_BYTES), np.uint8)
        if state is ServerState.COLLECT:
            self._total = np.zeros(
                self._parameters.length + self._parameters.checksum_entries,
                lane(self._parameters.bits),
            )
        if state is ServerState.UNMASK:
            self._unmasking = Unmasking(
                self._parameters,
                self._ctx,
                self._ctx2,
                self._graph,
                self._adverts,
                self._present,
                self._alive,
            )

    def _begun_unmasking(self) -> Unmasking:
        assert self._unmasking is not None
        return self._unmasking

    # ---- what goes to clients ----

    def outgoing(self) -> Iterator[tuple[ClientId, bytes]]:
        """Yield the name of each client that the open phase asks, and the bytes to send to it.

        The bytes are the request of the phase. After the session has ended with a sum, they are the
        Result, for the survivors. After an abort, they are an Abort, for all `clients`. Each call
        in one phase yields the same pairs. While clients advertise nothing is yielded: the caller
        sends `invite` to any client.
        """
        if self.state is ServerState.ABORTED:
            assert self.code is not None
            yield from self._to_all(
                Kind.ABORT, bytes([self.code]), np.ones(len(self._clients), np.bool_)
            )
        elif self.state is ServerState.DONE:
            yield from self._to_all(Kind.RESULT, self._announcement(), self._alive)
        elif self.state is ServerState.SHARE:
            yield from self._rosters()
        elif self.state is ServerState.COLLECT:
            yield from self._inboxes()
        elif self.state is ServerState.CONFIRM or (
            self.state is ServerState.UNMASK and not self._is_active
        ):
            yield from self._to_all(Kind.SURVIVORS, wire.pack_bits(self._alive), self._alive)
        elif self.state is ServerState.UNMASK:
            signatures = [
                self._signatures[place] for place in np.flatnonzero(self._signers).tolist()
            ]
            body = wire.encode_confirmations(Confirmations(self._signers, signatures))
            yield from self._to_all(Kind.CONFIRMATIONS, body, self._alive)

    def _to_all(self, kind: Kind, body: bytes, whom: Bits) -> Iterator[tuple[ClientId, bytes]]:
        message = wire.frame(kind, self._session, wire.SERVER, body)
        for place in np.flatnonzero(whom).tolist():
            yield self._clients[place], message

    def _rosters(self) -> Iterator[tuple[ClientId, bytes]]:
        if self._members is not None:
            body = wire.encode_full_roster(FullRoster(self._members, self._adverts))
            yield from self._to_all(Kind.ROSTER, body, np.ones(len(self._clients), np.bool_))
            return
        adverts = np.frombuffer(b"".join(self._adverts), f"V{wire.ADVERT_BYTES}")
        for place, client in enumerate(self._clients):
            roster = Roster(
                len(self._clients), place, self._digest, [adverts[self._graph.of(place)].tobytes()]
            )
            yield (
                client,
                wire.frame(Kind.ROSTER, self._session, wire.SERVER, wire.encode_roster(roster)),
            )

    def _inboxes(self) -> Iterator[tuple[ClientId, bytes]]:
        shares = self._sealed.view(f"V{wire.SEALED_BYTES}")[..., 0]
        for place in np.flatnonzero(self._present).tolist():
            peers = self._graph.of(place)
            present = self._present[peers]
            # Two neighbours are at different slots of each other: `mirror` gives the slot of this
            # client at each sender.
            sealed = shares[peers[present], self._graph.mirror[present]].tobytes()
            body = wire.encode_inbox(Inbox(present, [sealed]))
            yield self._clients[place], wire.frame(Kind.INBOX, self._session, wire.SERVER, body)

    def _announcement(self) -> bytes:
        assert self.outcome is not None
        digest = wire.result_digest(self._ctx2, self._alive, self._salt, self.outcome.total)
        return wire.encode_result(Result(self.outcome.survivors, digest))

    # ---- after a crash ----

    def checkpoint(self) -> bytes:
        """Return the bytes that must survive a crash; `restore` makes a server from them.

        They have all that was final when the phase began, and no message of the open phase. They do
        not have the signing key, or shares that a client gave in UNMASK: a stolen checkpoint opens
        no client's vector. They do have the salt, and at the end the sum.
        """
        state = self.state
        clients = [] if state is ServerState.ADVERTISE else self._clients
        sealed = self._sealed[:0]
        if state is ServerState.COLLECT:
            # Indexing the array with a bitmap copies the array. If nobody is missing, no copy is
            # needed.
            sealed = self._sealed if self._present.all() else self._sealed[self._present]
        signatures = self._signatures if state is ServerState.UNMASK else {}
        total = (
            self._total if state in (ServerState.CONFIRM, ServerState.UNMASK) else self._total[:0]
        )
        facts = {
            "state": state.value,
            "code": self.code,
            "salt": self._salt.hex(),
            "clients": clients,
            "ranks": self._ranks[: len(clients)],
            "blamed": self.blamed,
        }
        arrays: dict[str, Any] = {
            "invite": _bytes_array(self.invite),
            "adverts": _bytes_array(b"".join(self._adverts[: len(clients)])),
            "present": self._present,
            "alive": self._alive,
            "signers": self._signers,
            "total": total,
            "sealed": sealed,
            "signatures": _bytes_array(b"".join(signatures[place] for place in sorted(signatures))),
            "outcome": np.zeros(0, np.int64) if self.outcome is None else self._packed_total(),
        }
        return checkpoints.pack(facts, arrays)

    def _packed_total(self) -> npt.NDArray[np.signedinteger[Any]]:
        """Return the sum, [V], as signed integers as wide as a lane, at most as wide as int64."""
        assert self.outcome is not None
        return self.outcome.total.astype(f"<i{lane(self._parameters.bits).itemsize}")

    @classmethod
    def restore(
        cls,
        checkpoint: bytes,
        *,
        random: Callable[[int], bytes],
        allow_list: AllowList | None = None,
        journal: Callable[[bytes], None] | None = None,
        reserve: Callable[[Server], None] | None = None,
    ) -> Server:
        """Make the server that wrote a checkpoint, at the beginning of the phase of the checkpoint.

        Answers that the earlier server received in that phase are lost. Send `outgoing` again, or
        `invite` while clients advertise: the clients give the same answers to the same bytes.

        Args:
            checkpoint: the last checkpoint that was written.
            random: the cryptographic source of uniform bytes, as for a new server.
            allow_list: the keys of the clients that may take part, as for a new server.
            journal: the function that writes checkpoints durably, as for a new server.
            reserve: the function that charges the privacy budget, as for a new server. It is called
                if the checkpoint is of the unmasking phase or has a sum.

        Raises:
            CheckpointError: the bytes are no checkpoint that this version reads, or `allow_list`
                is not the allow-list of its session.
            Exception: any error of `reserve`, unchanged.
        """
        try:
            facts, arrays = checkpoints.unpack(checkpoint)
            server = cls.__new__(cls)
            salt = bytes.fromhex(facts["salt"])
            server._begin(arrays["invite"].tobytes(), salt, random, allow_list, journal, reserve)
            if server._terms.allow_list != (
                bytes(keys.KEY_BYTES) if allow_list is None else allow_list.digest
            ):
                raise ValueError("another allow-list")
            server._resume(facts, arrays)
        # On damaged bytes NumPy and JSON raise errors of many types, and a list of them would never
        # be complete.
        except Exception as error:
            raise checkpoints.CheckpointError(
                f"this is not a checkpoint of a session with this allow-list: {error}"
            ) from error
        if server.state in (ServerState.UNMASK, ServerState.DONE):
            # `reserve` is called before anything is sent: the earlier process may have charged
            # another ledger.
            server._make_reservation()
        return server

    def _resume(self, facts: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        self._clients, self._ranks = facts["clients"], facts["ranks"]
        self.code = None if facts["code"] is None else AbortCode(facts["code"])
        self.blamed = [Blame(*pair) for pair in facts["blamed"]]
        self._adverts = _pieces(arrays["adverts"], wire.advert_bytes(self._parameters.adversary))
        self._present, self._alive, self._signers = (
            arrays["present"],
            arrays["alive"],
            arrays["signers"],
        )
        n, state = len(self._clients), ServerState(facts["state"])
        if state not in _ENDED and state not in {
            step.phase for step in EXCHANGES[self._parameters.adversary]
        }:
            raise ValueError("this adversary has no such phase")
        if len(self._adverts) != n or len(self._ranks) != (n if self._is_active else 0):
            raise ValueError("each client needs one advert, and in `active` one rank")
        if any(len(bits) not in (0, n) for bits in (self._present, self._alive, self._signers)):
            raise ValueError("a bitmap is of another length than the roster")
        if self._clients:
            self._index_roster()
            if state is ServerState.COLLECT:
                self._sealed = np.zeros((n, self._graph.neighbours, wire.SEALED_BYTES), np.uint8)
                if (
                    arrays["sealed"].shape != self._sealed[self._present].shape
                    or arrays["sealed"].dtype != np.uint8
                ):
                    raise ValueError("sealed shares are missing, or too many")
                self._sealed[self._present] = arrays["sealed"]
        # A checkpoint has signatures only in UNMASK. It still has the signers in later states.
        signers = np.flatnonzero(self._signers).tolist()
        signatures = _pieces(arrays["signatures"], keys.SIGNATURE_BYTES)
        self._signatures = dict(zip(signers, signatures, strict=True)) if signatures else {}
        self._total = arrays["total"]
        if len(arrays["outcome"]):
            self.outcome = Outcome(arrays["outcome"].astype(np.int64), self._alive, self._salt)
        self._enter(state)


def _bytes_array(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _pieces(array: npt.NDArray[Any], size: int) -> list[bytes]:
    data = array.tobytes()
    return [data[start : start + size] for start in range(0, len(data), size)]
