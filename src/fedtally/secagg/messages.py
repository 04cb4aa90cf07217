"""The messages of ``fedtally-secagg/1``, and the one table that says in which order they come.

The server asks and a client answers, in a few exchanges (`EXCHANGES`). In every state a client
takes exactly one type of message, once; a type that is not in the table is an error.
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
    """The type of a message, as it stands in its frame."""

    # The numbers travel, so that none is ever given to another type.
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
    """The reason why a round ends without a result; a function of public data only."""

    # Never of a vector or a secret: a server that may provoke Aborts would learn a bit of it each.
    # The numbers travel, so that none is ever reused.
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
    """Refuse a call that comes out of turn, or whose input cannot be summed."""


class RemoteProtocolError(FedtallyError):
    """Refuse what a peer sent; never leaves `receive`."""

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
    """The replies that the server waits for, until it closes the phase."""

    ADVERTISE = "advertise"
    SHARE = "share"
    COLLECT = "collect"
    CONFIRM = "confirm"
    UNMASK = "unmask"
    DONE = "done"
    ABORTED = "aborted"


class Exchange(NamedTuple):
    """A request of the server in a phase, and the reply that takes a client to its next state."""

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
# `active` has one exchange more, the consistency check of Bonawitz et al. 2017: without it a lying
# server could show each client another set of survivors.
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
    """Return the exchange of a server's phase."""
    return next(step for step in EXCHANGES[adversary] if step.phase is state)


def next_phase(adversary: Adversary, state: ServerState) -> ServerState:
    """Return the phase that follows when the server closes a phase.

    >>> next_phase(Adversary.ACTIVE, ServerState.COLLECT)
    <ServerState.CONFIRM: 'confirm'>
    >>> next_phase(Adversary.SEMI_HONEST, ServerState.COLLECT)
    <ServerState.UNMASK: 'unmask'>
    """
    # A server ends in DONE after its last phase; what ends early is no next phase.
    phases = [*(step.phase for step in EXCHANGES[adversary]), ServerState.DONE]
    return phases[phases.index(state) + 1]


class Invite(NamedTuple):
    """The terms of a session: parameters, times (Unix seconds), round, plan and allow-list."""

    parameters: Parameters
    not_before: int
    not_after: int
    round: int
    fingerprint: bytes
    allow_list: bytes


class Advert(NamedTuple):
    """A client's public keys and its commitment to b; the signature is empty in `semi-honest`."""

    mask_key: bytes
    encryption_key: bytes
    commitment: bytes
    nonce: bytes
    signature: bytes


class Roster(NamedTuple):
    """In `semi-honest`: the client's place, and its neighbours' adverts by x, as they were sent."""

    n: int
    own_index: int
    digest: bytes
    adverts: Sequence[bytes]


class FullRoster(NamedTuple):
    """In `active`: the members of the allow-list in the roster, and their adverts in that order."""

    members: Bits
    adverts: Sequence[bytes]


class Inbox(NamedTuple):
    """The neighbours that shared, by x, and what each of them sealed for the client."""

    present: Bits
    sealed: Sequence[bytes]


class Confirmations(NamedTuple):
    """The clients of the roster that confirmed the survivors, and their signatures in order."""

    signers: Bits
    signatures: Sequence[bytes]


class Unmask(NamedTuple):
    """The client's share of its own b, and those that it gives of neighbours: uint32 [given, 5].

    `given` says for which neighbours, by x.
    """

    own: npt.NDArray[np.uint32]
    given: Bits
    shares: npt.NDArray[np.uint32]


class Result(NamedTuple):
    """The number of clients in the sum, and a salted hash of the sum."""

    survivors: int
    digest: bytes


class Outcome(NamedTuple):
    """The sum of a session, int64 [V], and the clients that are in it, by roster index."""

    total: npt.NDArray[np.int64]
    alive: Bits
    salt: bytes

    @property
    def survivors(self) -> int:
        """How many clients are in the sum."""
        return int(self.alive.sum())


# The names of the stages in reports, by the replies of clients in them: both profiles have the same
# replies where they have the same stage, while the requests differ.
STAGES = {
    Kind.ADVERTISE: "advertise keys",
    Kind.SHARES: "share keys",
    Kind.MASKED_INPUT: "masked input",
    Kind.CONFIRM: "consistency check",
    Kind.UNMASK: "unmask",
}
