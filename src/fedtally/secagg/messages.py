"""Define the messages of ``fedtally-secagg/1``, and the one table of their order.

The server sends requests and a client replies, in four or five exchanges (`EXCHANGES`). Until its
last reply, a client accepts exactly one type of request in every state, once. A copy of the last
request gets the same reply. Any other request in its session is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.errors import FedtallyError
from fedtally.secagg.params import Adversary, Parameters

Bits = npt.NDArray[np.bool_]


class Kind(IntEnum):
    """Number the types of messages, as in the header of a message."""

    # The numbers are part of the wire format: never give one to another type.
    INVITE = 0
    ADVERTISE = 1
    ROSTER = 2
    SHARES = 3
    INBOX = 4
    MASKED_INPUT = 5
    SURVIVORS = 6
    CONFIRM = 7
    CONFIRMATIONS = 8
    UNMASK = 9
    RESULT = 10
    ABORT = 11


class AbortCode(IntEnum):
    """Give the reason why a session ends without a result, or why a server refuses a message.

    The reason must not depend on a vector or a secret.
    """

    # If a reason depended on a vector or a secret, a server could provoke Aborts, and learn a bit
    # of the secret from each. The numbers are part of the wire format: never reuse one.
    MALFORMED = 1
    VERSION = 2
    WRONG_STATE = 3
    POLICY = 4
    EXPIRED = 5
    SESSION_SEEN = 6
    ITEM_SPENT = 7
    ROSTER_INVALID = 8
    TOO_FEW_OPENED = 9
    OWN_BIT_DEAD = 10
    REVIVED = 11
    BELOW_MIN_SURVIVORS = 12
    BELOW_THRESHOLD = 13
    TOO_FEW_CONFIRMATIONS = 14
    TOO_FEW_CLIENTS = 15
    RECONSTRUCTION_FAILED = 16
    CHECKSUM_WRONG = 17
    INTERNAL = 18
    RING_CUT = 19

    @property
    def meaning(self) -> str:
        """The reason in words.

        >>> AbortCode.REVIVED.meaning
        'a client that was absent is said to have survived'
        """
        return _MEANINGS[self]


_MEANINGS = {
    AbortCode.MALFORMED: "a message is not of the form that its type demands",
    AbortCode.VERSION: "a message is of another version of the protocol",
    AbortCode.WRONG_STATE: "a message came out of turn",
    AbortCode.POLICY: (
        "the client's policy, or the plan that it knows, does not allow the invitation"
    ),
    AbortCode.EXPIRED: "the session is over, or has not begun",
    AbortCode.SESSION_SEEN: "the client has taken part in this session before",
    AbortCode.ITEM_SPENT: (
        "the client's item is spent, or the client's record does not allow to spend it"
    ),
    AbortCode.ROSTER_INVALID: (
        "the roster is not one of this session, or a key in it or its size is not valid"
    ),
    AbortCode.TOO_FEW_OPENED: "too few neighbours sent shares that open",
    AbortCode.OWN_BIT_DEAD: "the client is said to have dropped out, and has not",
    AbortCode.REVIVED: "a client that was absent is said to have survived",
    AbortCode.BELOW_MIN_SURVIVORS: "fewer clients survived than a sum may have",
    AbortCode.BELOW_THRESHOLD: "too few neighbours survived to open the masks",
    AbortCode.TOO_FEW_CONFIRMATIONS: "too few clients confirmed the same survivors",
    AbortCode.TOO_FEW_CLIENTS: "too few clients advertised or sent Shares, or too many advertised",
    AbortCode.RECONSTRUCTION_FAILED: "the shares of a secret do not give it back",
    AbortCode.CHECKSUM_WRONG: (
        "the checksum entries do not count the survivors: a mask is wrong, missing or extra"
    ),
    AbortCode.INTERNAL: "one side failed or gave up, for a reason outside the protocol",
    AbortCode.RING_CUT: (
        "clients that are close together on the ring dropped out: corrupt ones could part the"
        " others"
    ),
}


class LocalProtocolError(FedtallyError):
    """Report that the local program made a call out of turn, or gave an input that is not valid."""


class RemoteProtocolError(FedtallyError):
    """Report that a message of the other side is refused, or that a round cannot go on.

    The methods of `Client` and `Server` catch this error, so that their callers do not get it. A
    client answers with an Abort, but never to an Abort. A server refuses the message, or ends the
    round.

    Args:
        code: the reason, as it goes into an Abort.
        reason: the reason in words; "" takes the words of the code.
    """

    def __init__(self, code: AbortCode, reason: str = "") -> None:
        super().__init__(reason or code.meaning)
        self.code = code


class ClientState(Enum):
    """Name the last step that a client has taken in a session."""

    NEW = "new"
    ADVERTISED = "advertised"
    SHARED = "shared"
    MASKED = "masked"
    CONFIRMED = "confirmed"
    DONE = "done"
    ABORTED = "aborted"


class ServerState(Enum):
    """Name the phase of a server's session: which replies it collects, or how the session ended."""

    ADVERTISE = "advertise"
    SHARE = "share"
    COLLECT = "collect"
    CONFIRM = "confirm"
    UNMASK = "unmask"
    DONE = "done"
    ABORTED = "aborted"


class Exchange(NamedTuple):
    """Describe one exchange: the server's request, and the client's reply.

    Attributes:
        phase: the phase in which the server sends the request and collects replies.
        request: the type of the server's message.
        before: the state in which a client accepts the request.
        reply: the type of the client's message.
        after: the state of the client after its reply.
    """

    phase: ServerState
    request: Kind
    before: ClientState
    reply: Kind
    after: ClientState


_FIRST = (
    Exchange(
        ServerState.ADVERTISE, Kind.INVITE, ClientState.NEW, Kind.ADVERTISE, ClientState.ADVERTISED
    ),
    Exchange(
        ServerState.SHARE, Kind.ROSTER, ClientState.ADVERTISED, Kind.SHARES, ClientState.SHARED
    ),
    Exchange(
        ServerState.COLLECT, Kind.INBOX, ClientState.SHARED, Kind.MASKED_INPUT, ClientState.MASKED
    ),
)
# `active` has one more exchange, the consistency check of Bonawitz et al. 2017. Without this
# exchange a server that lies could show different sets of survivors to different clients.
EXCHANGES: dict[Adversary, tuple[Exchange, ...]] = {
    Adversary.SEMI_HONEST: (
        *_FIRST,
        Exchange(
            ServerState.UNMASK, Kind.SURVIVORS, ClientState.MASKED, Kind.UNMASK, ClientState.DONE
        ),
    ),
    Adversary.ACTIVE: (
        *_FIRST,
        Exchange(
            ServerState.CONFIRM,
            Kind.SURVIVORS,
            ClientState.MASKED,
            Kind.CONFIRM,
            ClientState.CONFIRMED,
        ),
        Exchange(
            ServerState.UNMASK,
            Kind.CONFIRMATIONS,
            ClientState.CONFIRMED,
            Kind.UNMASK,
            ClientState.DONE,
        ),
    ),
}
TRANSITIONS: dict[Adversary, dict[ClientState, dict[Kind, Exchange]]] = {
    adversary: {step.before: {step.request: step} for step in steps}
    for adversary, steps in EXCHANGES.items()
}
"""The exchange that a message starts, by adversary, state of the client and type of the message.

From its first answer to its last, a client answers any other new message with an Abort, and an
Abort not at all. Once it is done, it only records a Result or an Abort.
"""


def phase(adversary: Adversary, state: ServerState) -> Exchange:
    """Return the exchange of a phase of the server.

    Args:
        adversary: the kind of server that the session protects against.
        state: the phase; not DONE or ABORTED, which have no exchange, and in `semi-honest` not
            CONFIRM.
    """
    return next(step for step in EXCHANGES[adversary] if step.phase is state)


def next_phase(adversary: Adversary, state: ServerState) -> ServerState:
    """Return the phase that follows when the server closes the phase `state`; DONE after the last.

    >>> next_phase(Adversary.ACTIVE, ServerState.COLLECT)
    <ServerState.CONFIRM: 'confirm'>
    >>> next_phase(Adversary.SEMI_HONEST, ServerState.COLLECT)
    <ServerState.UNMASK: 'unmask'>
    """
    # ABORTED is not in the list: a session may be aborted in any phase.
    phases = [*(step.phase for step in EXCHANGES[adversary]), ServerState.DONE]
    return phases[phases.index(state) + 1]


class Invite(NamedTuple):
    """Announce the terms of a session, as the server's first message.

    Attributes:
        parameters: the parameters of the secure sum.
        not_before: the start of the session, Unix seconds.
        not_after: the end of the session, Unix seconds.
        round: the round of the campaign, 0 .. 2^32 - 1.
        fingerprint: the fingerprint of the plan, 32 bytes.
        allow_list: the digest of the allow-list, 32 bytes; zeros in `semi-honest`.
    """

    parameters: Parameters
    not_before: int
    not_after: int
    round: int
    fingerprint: bytes
    allow_list: bytes


class Advert(NamedTuple):
    """Give a client's one-time public keys, and a commitment to the seed of its self mask.

    A self mask is the mask that a client has in common with nobody.

    Attributes:
        mask_key: the X25519 public key from which the client and each neighbour make their common
            mask, 32 bytes.
        encryption_key: the X25519 public key to which neighbours seal shares, 32 bytes.
        commitment: a hash of the seed of the client's self mask, 32 bytes.
        nonce: 16 random bytes, which make the digest of each roster a new one.
        signature: the client's signature over the context of the session and the four fields above;
            64 bytes in `active`, empty in `semi-honest`.
    """

    mask_key: bytes
    encryption_key: bytes
    commitment: bytes
    nonce: bytes
    signature: bytes


class Roster(NamedTuple):
    """Tell a client of `semi-honest` its place in the roster, and its neighbours' adverts.

    Attributes:
        n: the number of clients in the roster.
        own_index: the index of the client that gets this message, 0 .. n - 1.
        digest: the digest of all adverts, 32 bytes.
        adverts: the adverts of this client's neighbours, as the neighbours sent them, in order of
            slots (see `graph`).
    """

    n: int
    own_index: int
    digest: bytes
    adverts: Sequence[bytes]


class FullRoster(NamedTuple):
    """Tell each client of `active` who is in the roster, and the adverts of all.

    Attributes:
        members: bool [keys of the allow-list]; whether the client with this key is in the roster.
        adverts: the adverts of these clients, in order of their rank in the allow-list.
    """

    members: Bits
    adverts: Sequence[bytes]


class Inbox(NamedTuple):
    """Pass on the shares that the neighbours of a client sealed for it.

    Attributes:
        present: bool [k]; which neighbours sent shares, in order of their slots (see `graph`).
        sealed: the sealed shares of these neighbours, in the same order.
    """

    present: Bits
    sealed: Sequence[bytes]


class Confirmations(NamedTuple):
    """Show which clients confirmed the set of survivors.

    Attributes:
        signers: bool [n]; which clients of the roster confirmed, by index in the roster.
        signatures: the signatures of these clients, 64 bytes each, in order of index.
    """

    signers: Bits
    signatures: Sequence[bytes]


class Unmask(NamedTuple):
    """Give the server a client's shares of secrets, so that it can unmask the sum.

    A share is 5 field elements, see `crypto.shamir`.

    Attributes:
        own: uint32 [5]; the client's own share of the seed of its self mask.
        given: bool [k]; for which neighbours this message has a share, in order of their slots (see
            `graph`).
        shares: uint32 [given neighbours, 5]; one share for each of these neighbours, in the same
            order. If the neighbour survived, the share is of the seed of its self mask, else of the
            seed of its mask key.
    """

    own: npt.NDArray[np.uint32]
    given: Bits
    shares: npt.NDArray[np.uint32]


class Result(NamedTuple):
    """Announce that a session has a sum, and give the digest of the sum.

    Attributes:
        survivors: the number of clients in the sum.
        digest: a salted SHA-256 of the sum, 32 bytes; see `wire.result_digest`.
    """

    survivors: int
    digest: bytes


class Outcome(NamedTuple):
    """Hold the sum of a session.

    Attributes:
        total: int64 [V]; the sum.
        alive: bool [n]; which clients are in the sum, by index in the roster.
        salt: the salt of the digest in the Result, 32 bytes.
    """

    total: npt.NDArray[np.int64]
    alive: Bits
    salt: bytes

    @property
    def survivors(self) -> int:
        """The number of clients in the sum."""
        return int(self.alive.sum())


# The name of each stage of a round, for bills of costs and progress messages, by the type of the
# client's reply. In both profiles a stage has the same reply, while its request may differ.
STAGES = {
    Kind.ADVERTISE: "advertise keys",
    Kind.SHARES: "share keys",
    Kind.MASKED_INPUT: "masked input",
    Kind.CONFIRM: "consistency check",
    Kind.UNMASK: "unmask",
}
