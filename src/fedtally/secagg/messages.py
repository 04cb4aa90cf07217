"""The messages of ``fedtally-secagg/1``, and the one table that says in which order they come.

The server sends requests and a client replies, in a few exchanges (`EXCHANGES`). In every state a
client accepts exactly one type of request, once. Any other type is an error.
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
    """The type of a message, as the number that its header has."""

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
    """The reason why a round ends without a result; it depends on public data only."""

    # It never depends on a vector or a secret: a server could provoke Aborts, and learn one bit of
    # the secret from each. The numbers are part of the wire format: never reuse one.
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
    AbortCode.POLICY: "the invitation is weaker, or larger, than the client's policy allows",
    AbortCode.EXPIRED: "the session is over, or has not begun",
    AbortCode.SESSION_SEEN: "the client has taken part in this session before",
    AbortCode.ITEM_SPENT: "the client's item went into another session",
    AbortCode.ROSTER_INVALID: "the roster is not one of this session, or a key in it is not valid",
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
    AbortCode.INTERNAL: "something failed on one side that is not of the protocol",
    AbortCode.RING_CUT: (
        "clients that are close together on the ring dropped out: corrupt ones could part the"
        " others"
    ),
}


class LocalProtocolError(FedtallyError):
    """Refuse a call of the local caller: it is out of turn, or its input cannot be summed."""


class RemoteProtocolError(FedtallyError):
    """Refuse a message of a peer; `receive` catches this error and never raises it.

    Args:
        code: the reason, as it goes into an Abort.
        reason: the reason in words; "" takes the words of the code.
    """

    def __init__(self, code: AbortCode, reason: str = "") -> None:
        super().__init__(reason or code.meaning)
        self.code = code


class ClientState(Enum):
    """The last step that a client has taken."""

    NEW = "new"
    ADVERTISED = "advertised"
    SHARED = "shared"
    MASKED = "masked"
    CONFIRMED = "confirmed"
    DONE = "done"
    ABORTED = "aborted"


class ServerState(Enum):
    """The phase of the server: which replies it waits for, or how the session ended."""

    ADVERTISE = "advertise"
    SHARE = "share"
    COLLECT = "collect"
    CONFIRM = "confirm"
    UNMASK = "unmask"
    DONE = "done"
    ABORTED = "aborted"


class Exchange(NamedTuple):
    """One exchange: the server's request in a phase, and the client's reply.

    The reply takes the client from the state `before` to the state `after`.
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
# `active` has one more exchange, the consistency check of Bonawitz et al. 2017: without it a lying
# server could show different sets of survivors to different clients.
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
"""The exchange for each profile, state of a client and type of message.

Besides, a client takes an Abort from its first answer on, and a Result once it is done. It answers
neither.
"""


def phase(adversary: Adversary, state: ServerState) -> Exchange:
    """Return the exchange that takes place in a phase of the server."""
    return next(step for step in EXCHANGES[adversary] if step.phase is state)


def next_phase(adversary: Adversary, state: ServerState) -> ServerState:
    """Return the phase that follows when the server closes the phase `state`.

    >>> next_phase(Adversary.ACTIVE, ServerState.COLLECT)
    <ServerState.CONFIRM: 'confirm'>
    >>> next_phase(Adversary.SEMI_HONEST, ServerState.COLLECT)
    <ServerState.UNMASK: 'unmask'>
    """
    # DONE follows the last phase. ABORTED is no next phase: a round may end early in any phase.
    phases = [*(step.phase for step in EXCHANGES[adversary]), ServerState.DONE]
    return phases[phases.index(state) + 1]


class Invite(NamedTuple):
    """The terms of a session, as the server announces them.

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
    """A client's public keys, 32 bytes each, and its commitment to b, the seed of its self mask.

    Attributes:
        mask_key: the X25519 key with which it agrees on pair masks.
        encryption_key: the X25519 key to which neighbours seal shares.
        commitment: a hash of b, 32 bytes.
        nonce: 16 random bytes.
        signature: 64 bytes in `active`, empty in `semi-honest`.
    """

    mask_key: bytes
    encryption_key: bytes
    commitment: bytes
    nonce: bytes
    signature: bytes


class Roster(NamedTuple):
    """The Roster of `semi-honest`, which differs for each client.

    Attributes:
        n: the number of clients in the roster.
        own_index: the index of the client that gets this message, 0 .. n - 1.
        digest: the digest of all adverts, 32 bytes.
        adverts: the adverts of its neighbours, as they were sent, in order of x (see `graph`).
    """

    n: int
    own_index: int
    digest: bytes
    adverts: Sequence[bytes]


class FullRoster(NamedTuple):
    """The Roster of `active`, the same for every client.

    Attributes:
        members: bool [keys of the allow-list]; whether each of them is in the roster.
        adverts: the adverts of these members, in order of their rank in the allow-list.
    """

    members: Bits
    adverts: Sequence[bytes]


class Inbox(NamedTuple):
    """The shares that the neighbours of a client sealed for it.

    Attributes:
        present: bool [k]; which neighbours sent shares, in order of x (see `graph`).
        sealed: the sealed shares of these neighbours, in the same order.
    """

    present: Bits
    sealed: Sequence[bytes]


class Confirmations(NamedTuple):
    """The clients that confirmed the set of survivors.

    Attributes:
        signers: bool [n]; which clients of the roster confirmed, by index.
        signatures: the signatures of these clients, 64 bytes each, in order of index.
    """

    signers: Bits
    signatures: Sequence[bytes]


class Unmask(NamedTuple):
    """The shares that a client gives the server to unmask the sum; see `shamir` for the elements.

    Attributes:
        own: uint32 [5]; its share of its own b, the seed of its self mask.
        given: bool [k]; for which neighbours it gives a share, in order of x (see `graph`).
        shares: uint32 [given neighbours, 5]; their shares, in the same order.
    """

    own: npt.NDArray[np.uint32]
    given: Bits
    shares: npt.NDArray[np.uint32]


class Result(NamedTuple):
    """The number of clients in the sum, and a salted SHA-256 of the sum: 32 bytes."""

    survivors: int
    digest: bytes


class Outcome(NamedTuple):
    """The sum of a session.

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


# The names of the stages in reports, by the type of the clients' reply. The key is the reply since
# in both profiles a stage has the same reply, while its request may differ.
STAGES = {
    Kind.ADVERTISE: "advertise keys",
    Kind.SHARES: "share keys",
    Kind.MASKED_INPUT: "masked input",
    Kind.CONFIRM: "consistency check",
    Kind.UNMASK: "unmask",
}
