"""A cohort in one process: every message is encoded, carried as bytes and decoded; a test changes
what it wants.

>>> Cohort(5).run().outcome.survivors
5
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.campaign.cohort import CohortRun, carry
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import ExchangeKey, Secret, SigningKey
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal, Pinned, _Secrets
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.messages import Kind, ServerState
from fedtally.secagg.params import Adversary, ClientPolicy, Parameters
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import ClientId, Server
from fedtally.secagg.two_server import BatchState, Leader
from fedtally.secagg.two_server.reports import Ids
from fedtally.secagg.unmasking import Unmasking
from fedtally.sketch import CountSketch

NOW = 1_000_000
FINGERPRINT = hashlib.sha256(b"plan").digest()
KINDS = {
    "advertise": Kind.ADVERTISE,
    "share": Kind.SHARES,
    "mask": Kind.MASKED_INPUT,
    "confirm": Kind.CONFIRM,
    "unmask": Kind.UNMASK,
}


NAMES = {  # of the phases, for those who drop out
    ServerState.ADVERTISE: "advertise",
    ServerState.SHARE: "share",
    ServerState.COLLECT: "mask",
    ServerState.CONFIRM: "confirm",
    ServerState.UNMASK: "unmask",
}


def done_leader(
    plan: Plan, total: npt.NDArray[np.int64], num_clients: int, unmasking: int = 0
) -> Leader:
    """Return the leader of a batch of two servers that has this sum, also one that no reports
    have."""
    assert isinstance(plan.secure_sum, TwoServerConfig)
    leader = Leader.__new__(Leader)
    fingerprint = bytes.fromhex(plan.fingerprint)
    leader._parameters = plan.secure_sum.parameters(
        fingerprint, plan.spec.row_widths, signed=plan.encoding.is_signed
    )
    leader._rounds, leader._state, leader._total = plan.releases[unmasking], BatchState.DONE, total
    leader._reports = None
    leader._counted = Ids.of(i.to_bytes(16) for i in range(num_clients))
    return leader


def land_done(
    server: FrequencyServer, total: npt.NDArray[np.int64], num_clients: int
) -> CountSketch:
    """Land that sum as the first batch of the server's plan, as if its own leader had finished
    it."""
    leader = done_leader(server.plan, total, num_clients)
    server._leaders.add(leader)
    server.land_batch(leader)
    return landed(server)[0]


def landed(server: FrequencyServer) -> list[CountSketch]:
    """Return the sums that a server holds, exact ones too, which it hands to nobody."""
    return server._books.sums(server.plan)


def left_behind(error: BaseException) -> list[str]:
    """Return the arrays and the secrets that hold anything in the frames of an error, but for those
    of tests."""
    found, trace = [], error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if Path(__file__).parent not in Path(frame.f_code.co_filename).parents:
            for name, value in frame.f_locals.items():
                array = value.counters if isinstance(value, CountSketch) else value
                if (isinstance(array, np.ndarray) and array.any()) or (
                    isinstance(value, Secret) and len(value)
                ):
                    found.append(f"{frame.f_code.co_qualname}: {name}")
    return found


def stream(seed: object) -> Callable[[int], bytes]:
    """Return a reproducible source of bytes: SHAKE-256 of a label and a counter."""
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(f"{seed}/{count}".encode()).digest(size)

    return draw


def in_order(size: int) -> bytes:
    """Return what a server draws so that clients have their indexes in the order in which they
    advertise."""
    return b"".join(place.to_bytes(16, "big") for place in range(size // 16))


SERVER_KEY = SigningKey(Secret(stream("server")(32)))


class Cohort:
    """A server and n clients with random vectors, deterministic in the seed.

    Args:
        n: invited clients.
        parameters: default: what `propose` says.
        dropped: for each phase ("share", "mask", "confirm", "unmask") the clients that leave before
            they answer it.
        identities: keys in the allow-list (`active`), n by default; the clients are the first n of
            them by rank.
        random: what the server draws; by default client i has index i.
    """

    def __init__(
        self,
        n: int,
        *,
        adversary: Adversary | str = Adversary.SEMI_HONEST,
        parameters: Parameters | None = None,
        length: int = 24,
        bits: int = 16,
        corrupt: int = 1,
        max_dropout: float = 0.2,
        seed: object = 0,
        dropped: dict[str, Iterable[int]] | None = None,
        identities: int | None = None,
        policy: dict[str, Any] | None = None,
        journal: Callable[[bytes], None] | None = None,
        session: bytes | None = None,
        random: Callable[[int], bytes] = in_order,
    ) -> None:
        adversary = Adversary.parse(adversary)
        self.n, self.seed = n, seed
        self.parameters = parameters or propose(
            n,
            length=length,
            bits=bits,
            corrupt=corrupt,
            max_dropout=max_dropout,
            adversary=adversary,
        )
        signers = [
            SigningKey(Secret(stream((seed, "identity", i))(32))) for i in range(identities or n)
        ]
        self.identities = sorted(signers, key=lambda key: key.public)
        active = adversary is Adversary.ACTIVE
        self.allow_list = AllowList(key.public for key in self.identities) if active else None
        self.session = session or stream((seed, "session"))(32)
        self.server = Server(
            self.parameters,
            session=self.session,
            signing_key=SERVER_KEY,
            fingerprint=FINGERPRINT,
            round=3,
            not_before=NOW - 10,
            not_after=NOW + 1000,
            salt=stream((seed, "salt"))(32),
            random=random,
            allow_list=self.allow_list,
            journal=journal,
        )
        rng = np.random.default_rng(list(stream((seed, "vectors"))(8)))
        most = (2 ** (self.parameters.bits - 1) - 1) // n
        self.vectors = rng.integers(-most, most, (n, self.parameters.length), endpoint=True)
        bounds: dict[str, Any] = {"adversary": adversary, "min_honest": 2} | (policy or {})
        self.policy = ClientPolicy(**bounds)
        self.pinned = Pinned(SERVER_KEY.public, FINGERPRINT, self.allow_list, round=3)
        self.journals = [MemoryJournal() for _ in range(n)]
        self.clients = [self.client(i) for i in range(n)]
        self.dropped = {name: set(gone) for name, gone in (dropped or {}).items()}
        self.sent: list[tuple[int, bytes]] = []  # what clients sent, in order
        # what the network makes of a message
        self.to_client: Callable[[int, bytes], bytes] = lambda _, frame: frame
        self.to_server: Callable[[int, bytes], bytes] = lambda _, frame: frame

    def client(self, i: int, **changed: Any) -> Client:
        """Return a fresh client i."""
        arguments: dict[str, Any] = {
            "journal": self.journals[i],
            "random": stream((self.seed, "client", i)),
            "identity": None if self.allow_list is None else self.identities[i],
        }
        return Client(self.policy, self.pinned, lambda _: self.vectors[i], **(arguments | changed))

    @property
    def cohort_run(self) -> CohortRun:
        """The run of the server as it is now: tests put another in its place."""
        return CohortRun(self.server, range(self.n))

    def ask(self, name: ClientId, frame: bytes) -> bytes | None:
        """Give a client what the server asks, as the network makes of it; return its answer, as
        that makes of it."""
        i, state = int(name), self.server.state
        if i in self.dropped.get(NAMES.get(state, ""), ()):  # those who drop out here hear nothing
            self.clients[i].abandon()
            return None
        answer = self.clients[i].receive(self.to_client(i, frame), NOW)
        if answer is None:
            return None
        self.sent.append((i, answer))
        return self.to_server(i, answer)

    def phase(self, without: Collection[int] = ()) -> None:
        """Carry what the server asks of all clients, or of all but some, and the answers back."""
        carry(self.cohort_run, lambda i, frame: None if i in without else self.ask(i, frame))

    def step(self) -> None:
        """Go through one phase."""
        self.phase()
        self.cohort_run.deadline_passed(NOW)

    def run(self, until: ServerState = ServerState.DONE) -> Server:
        """Run to a state, or to the end."""
        while self.server.state not in (until, ServerState.DONE, ServerState.ABORTED):
            self.step()
        if self.server.state is ServerState.DONE:
            self.phase()
        return self.server

    def request(self, i: int) -> bytes:
        """Return what the server now asks client i."""
        return next(frame for client, frame in self.cohort_run.outgoing() if client == i)

    def fork(self) -> Cohort:
        """Return a copy that goes on by itself, from where this one is."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), server=twin_server(self.server), sent=list(self.sent))
        other.clients = [twin(client, i) for i, client in enumerate(self.clients)]
        other.journals = copy.deepcopy(self.journals)
        for client, journal in zip(other.clients, other.journals, strict=True):
            client._journal = journal
        return other

    @property
    def expected(self) -> npt.NDArray[np.int64]:
        """The sum of the survivors' vectors."""
        assert self.server.outcome is not None
        alive = [self.server.clients[place] for place in np.flatnonzero(self.server.outcome.alive)]
        total: npt.NDArray[np.int64] = self.vectors[[int(i) for i in alive]].sum(axis=0)
        return total


@functools.cache
def _recorded(adversary: Adversary) -> dict[ServerState, Cohort]:
    cohort = Cohort(
        5, adversary=adversary, length=3, max_dropout=0.0 if adversary is Adversary.ACTIVE else 0.2
    )
    states = {ServerState.ADVERTISE: cohort.fork()}
    cohort.step()
    while cohort.server.state is not ServerState.DONE:
        states[cohort.server.state] = cohort.fork()
        cohort.step()
    return states | {ServerState.DONE: cohort}


def five(adversary: Adversary, state: ServerState) -> Cohort:
    """Return a cohort of five, C = 1, t = 4 = min_survivors, as it is before anybody has heard what
    the phase asks."""
    return _recorded(adversary)[state].fork()


def flips(frame: bytes, bits: Iterable[int] = range(8)) -> Iterator[tuple[int, bytes]]:
    """Yield a frame with one bit flipped, and the byte in which it is: every one, or some of every
    byte."""
    chosen = list(bits)
    for at in range(len(frame)):
        for bit in chosen:
            yield at, frame[:at] + bytes([frame[at] ^ 1 << bit]) + frame[at + 1 :]


def reframed(frame: bytes, body: bytes) -> bytes:
    """Return a frame with another body, and the length of that."""
    return frame[:44] + len(body).to_bytes(4, "little") + body


def twin_server(server: Server) -> Server:
    """Return a copy of a server, which no server makes of itself."""
    other = object.__new__(Server)
    known = {name: value for name, value in vars(server).items() if name != "_unmasking"}
    vars(other).update(copy.deepcopy(known), _unmasking=None)
    if server._unmasking is not None:
        other._unmasking = object.__new__(Unmasking)
        vars(other._unmasking).update(copy.deepcopy(vars(server._unmasking)))
    return other


def twin(client: Client, label: int = 0) -> Client:
    """Return a copy of a client, which no client makes of itself; its journal, and what it draws,
    are its own."""
    other = object.__new__(Client)
    vars(other).update(
        vars(client), _journal=copy.deepcopy(client._journal), _random=stream(("twin", label))
    )
    mine = client._secrets
    other._secrets = _Secrets(
        elements=copy.copy(mine.elements),
        mask_key=_same_key(mine.mask_key),
        encryption_key=_same_key(mine.encryption_key),
        unsealing=[Secret(key.reveal()) if len(key) else key for key in mine.unsealing],
        own_share=copy.copy(mine.own_share),
        held=copy.copy(mine.held),
    )
    return other


def _same_key(key: ExchangeKey | None) -> ExchangeKey | None:
    if key is None:
        return None
    other = object.__new__(ExchangeKey)
    other._key, other.public = key._key, key.public
    return other
