"""Servers that lie, with the keys of corrupt clients, against real clients; and a checker of what
they have learnt.

A `World` carries every message as bytes and keeps it. `learnt` decides by linear algebra which sums
of honest vectors follow from all that honest clients sent, given every key of the adversary, and
checks each of them against the numbers: a sum that it reports was computed from masked vectors and
masks that the adversary can derive. `violations` compares with the claim of `active`: for every
honest client at most one sum, over enough honest clients of one roster.

>>> world = World(5)
>>> LyingServer(world).attack()
[]
>>> [sorted(found.coefficients) for found in learnt(world)]
[[1, 2, 3, 4]]
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from secagg_cohort import FINGERPRINT, NOW, SERVER_KEY, stream

from fedtally.crypto import keys, shamir
from fedtally.crypto.keys import ExchangeKey, Label, Secret, SigningKey
from fedtally.crypto.prg import Masking, lane
from fedtally.secagg import client as client_module
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal, Pinned
from fedtally.secagg.graph import Neighbourhood
from fedtally.secagg.messages import Bits, Confirmations, FullRoster, Inbox, Invite, Kind, Roster
from fedtally.secagg.packing import unpack
from fedtally.secagg.params import PPM, Adversary, ClientPolicy, Parameters

B, KEY = "b", "key"
PRIME = shamir.PRIME


# ---- who takes part ----


class Secrets:
    """The key pairs and b of one party in one session, from its own randomness, in the order of the
    specification."""

    def __init__(self, random: Callable[[int], bytes], ctx: bytes) -> None:
        self.elements = shamir.random_elements(2 * shamir.SECRET_ELEMENTS, random)
        self.b = Secret(shamir.to_bytes(self.elements[: shamir.SECRET_ELEMENTS]))
        self.mask_key = keys.mask_key(
            Secret(shamir.to_bytes(self.elements[shamir.SECRET_ELEMENTS :])), ctx
        )
        self.encryption_key = ExchangeKey(Secret(random(keys.KEY_BYTES)))
        self.unsigned = (
            self.mask_key.public
            + self.encryption_key.public
            + keys.commitment(self.b, ctx)
            + random(16)
        )
        self._random = random

    def shares(self, graph: Neighbourhood) -> shamir.U32:
        """Deal shares, [k + 1, 10]; once."""
        coefficients = shamir.random_elements(
            (graph.threshold - 1) * len(self.elements), self._random
        )
        return shamir.split(
            self.elements, coefficients.reshape(graph.threshold - 1, -1), graph.neighbours + 1
        )


@dataclasses.dataclass
class Session:
    """One session: what its Invite says."""

    number: int
    id: bytes
    parameters: Parameters
    terms: bytes
    invite: bytes
    ctx: bytes


@dataclasses.dataclass
class View:
    """A roster as one client is told it: ranks in order, and what is said to be their adverts."""

    session: Session
    members: list[int]
    adverts: list[bytes]
    listed: Bits | None

    def __post_init__(self) -> None:
        self.digest = wire.adverts_digest(self.adverts)
        self.ctx2 = wire.roster_context(
            self.session.ctx, len(self.members), self.listed, self.digest
        )
        self.graph = Neighbourhood(self.session.parameters, len(self.members), self.ctx2)
        self.points = [
            wire.decode_advert(a, self.session.parameters.adversary) for a in self.adverts
        ]

    def neighbours(self, rank: int) -> list[int]:
        """Return the ranks of the neighbours of a rank, by slot."""
        return [self.members[int(i)] for i in self.graph.of(self.members.index(rank))]

    def bits(self, ranks: Iterable[int]) -> Bits:
        """Return a bitmap over the roster."""
        chosen = set(ranks)
        return np.array([rank in chosen for rank in self.members])

    def body(self, rank: int) -> bytes:
        """Return the body of the Roster for a client."""
        if self.listed is not None:
            return wire.encode_full_roster(FullRoster(self.listed, self.adverts))
        index = self.members.index(rank)
        adverts = [self.adverts[int(i)] for i in self.graph.of(index)]
        return wire.encode_roster(Roster(len(self.members), index, self.digest, adverts))


class Puppet:
    """A corrupt client, or one that the server made up: the adversary has all its keys."""

    def __init__(self, world: World, rank: int, session: Session, label: object = "puppet") -> None:
        self.rank, self.secrets = (
            rank,
            Secrets(stream((world.seed, label, rank, session.number)), session.ctx),
        )
        self.advert = self.secrets.unsigned
        self._dealt: dict[bytes, shamir.U32] = {}
        if world.active:
            self.advert += world.identities[rank].sign(Label.ADVERTISE, session.ctx, self.advert)

    def seal(self, view: View, peer: int) -> bytes:
        """Return what it sends a client in this roster: honest shares."""
        if view.ctx2 not in self._dealt:
            self._dealt[view.ctx2] = self.secrets.shares(view.graph)
        own, other = view.members.index(self.rank), view.members.index(peer)
        slot = view.neighbours(self.rank).index(peer)
        point = view.points[other].encryption_key
        shared = self.secrets.encryption_key.exchange(point)
        up, _ = keys.share_keys(
            shared, view.ctx2, own, self.secrets.encryption_key.public, other, point
        )
        return keys.seal(up, Secret(self._dealt[view.ctx2][slot].astype("<u4").tobytes()))


class Run:
    """An honest client in one session: the client, its true secrets, and what it was asked and
    answered."""

    def __init__(self, world: World, rank: int, session: Session, item: int, label: object) -> None:
        def random() -> Callable[[int], bytes]:
            return stream((world.seed, label, rank, session.number))

        self.rank, self.session, self.item = rank, session, item
        self.client = client_module.Client(
            world.policy,
            world.pinned,
            lambda _: world.vectors[item],
            journal=world.journals[item],
            random=random(),
            identity=world.identities[rank] if world.active else None,
        )
        self.secrets = Secrets(random(), session.ctx)
        self.view: View | None = None
        self._dealt: shamir.U32 | None = None
        # by reply: (asked, answered), bodies
        self.answers: dict[Kind, list[tuple[bytes, bytes]]] = defaultdict(list)

    def tell(self, kind: Kind, body: bytes, now: int = NOW) -> wire.Frame | None:
        """Carry a message of the server to the client; return what it answers."""
        return self.receive(wire.frame(kind, self.session.id, wire.SERVER, body), now)

    def receive(self, data: bytes, now: int = NOW) -> wire.Frame | None:
        """Carry any bytes to the client; return what it answers."""
        reply = self.client.receive(data, now)
        if reply is None:
            return None
        answer = wire.parse(reply)
        assert answer is not None, "a client sends whole frames"
        self.answers[answer.kind].append((data[wire.HEADER.size :], answer.body))
        return answer

    def said(self, kind: Kind) -> bytes | None:
        """Return the body of the first answer of a type."""
        return self.answers[kind][0][1] if self.answers[kind] else None

    def dealt(self) -> shamir.U32:
        """Return the shares that it dealt, [k + 1, 10]."""
        assert self.view is not None
        if self._dealt is None:
            self._dealt = self.secrets.shares(self.view.graph)
        return self._dealt

    @property
    def advert(self) -> bytes:
        """What it advertised."""
        said = self.said(Kind.ADVERTISE)
        assert said is not None, f"rank {self.rank} did not advertise: {self.client.code}"
        return said


class World:
    """Identities, honest clients, corrupt ones, and all that was said.

    Args:
        n: clients in a session, the ranks 0 .. n - 1 by default.
        corrupt: C; the ranks below it are corrupt.
        identities: keys in the allow-list, n by default.
        min_survivors: by default as many as `active` allows.
        least: the fewest honest clients that may be in a sum; by default min_survivors - C.
        listed_often: whether the allow-list holds one key at all ranks but the last.
    """

    def __init__(
        self,
        n: int,
        *,
        corrupt: int = 1,
        adversary: Adversary = Adversary.ACTIVE,
        identities: int | None = None,
        min_survivors: int | None = None,
        least: int | None = None,
        policy: Mapping[str, Any] | None = None,
        seed: object = 0,
        length: int = 2,
        parameters: Parameters | None = None,
        listed_often: bool = False,
    ) -> None:
        self.n, self.corrupt, self.seed, self.active = (
            n,
            corrupt,
            seed,
            adversary is Adversary.ACTIVE,
        )
        size = identities or n
        signers = [SigningKey(Secret(stream((seed, "identity", i))(32))) for i in range(size)]
        self.identities = sorted(signers, key=lambda key: key.public)
        if listed_often:
            self.identities = [self.identities[0]] * (size - 1) + self.identities[-1:]
        self.allow_list = AllowList(key.public for key in self.identities) if self.active else None
        self.pinned = Pinned(SERVER_KEY.public, FINGERPRINT, self.allow_list, round=3)
        bounds: dict[str, Any] = {
            "adversary": adversary,
            "min_honest": 2,
            "corrupt": corrupt,
        } | dict(policy or {})
        self.policy = ClientPolicy(**bounds)
        self.parameters = parameters or complete(adversary, n, corrupt, min_survivors, length)
        self.least = self.parameters.honest_survivors if least is None else least
        self.vectors = np.random.default_rng([size, 7]).integers(-9, 10, (size, length))
        self.journals = [MemoryJournal() for _ in range(size)]
        self.sessions: list[Session] = []
        self.runs: list[Run] = []
        self.puppets: list[Puppet] = []

    # ---- what any server does ----

    def session(
        self, parameters: Parameters | None = None, number: int | None = None, **changed: Any
    ) -> Session:
        """Invite: return a session, new unless it is numbered."""
        p, number = parameters or self.parameters, len(self.sessions) if number is None else number
        listed = bytes(32) if self.allow_list is None else self.allow_list.digest
        terms = wire.encode_terms(
            Invite(p, NOW - 10, NOW + 1000, 3, FINGERPRINT, listed)._replace(**changed)
        )
        id = stream((self.seed, "session", number))(32)
        header = wire.frame(Kind.INVITE, id, wire.SERVER, terms + bytes(64))[: wire.HEADER.size]
        invite = header + terms + SERVER_KEY.sign(Label.INVITE, header, terms)
        self.sessions.append(Session(number, id, p, terms, invite, wire.context(id, terms)))
        return self.sessions[-1]

    def join(
        self, session: Session, rank: int, item: int | None = None, label: object = "client"
    ) -> Run:
        """Let an honest client see the Invite."""
        run = Run(self, rank, session, rank if item is None else item, label)
        self.runs.append(run)
        run.receive(session.invite)
        return run

    def puppet(self, session: Session, rank: int, label: object = "puppet") -> Puppet:
        """Return a client of the adversary; only for corrupt ranks has it the identity's key in
        earnest."""
        found = Puppet(self, rank, session, label)
        self.puppets.append(found)
        return found

    def view(self, session: Session, adverts: Mapping[int, bytes]) -> View:
        """Return the roster of these ranks and adverts."""
        members, listed = sorted(adverts), None
        if self.allow_list is not None:
            listed = np.isin(np.arange(len(self.allow_list)), members)
        return View(session, members, [adverts[rank] for rank in members], listed)


def complete(
    adversary: Adversary,
    n: int,
    corrupt: int,
    min_survivors: int | None = None,
    length: int = 2,
    n_min: int | None = None,
) -> Parameters:
    """Return parameters of the complete graph that bear as many dropouts as they can."""
    few = n_min or n
    most = few - corrupt if adversary is Adversary.ACTIVE else few
    least = most if min_survivors is None else min_survivors
    return Parameters(
        adversary=adversary,
        n_min=few,
        n_max=n,
        corrupt=corrupt,
        max_dropout_ppm=PPM * (most - least) // few,
        min_survivors=least,
        ring_neighbours=0,
        ring_threshold=0,
        length=length,
        bits=16,
    )


# ---- what has been learnt ----


class Sum(NamedTuple):
    """A linear combination of honest vectors that the adversary knows: by item, and the rosters it
    comes from."""

    coefficients: dict[int, int]
    contexts: frozenset[bytes]


def learnt(world: World) -> list[Sum]:
    """Return a basis of all linear combinations of honest vectors that follow from the
    transcript."""
    sent = [run for run in world.runs if run.said(Kind.MASKED_INPUT) is not None]
    known = opened_secrets(world)
    points = {run.secrets.mask_key.public for run in world.runs if (run, KEY) in known}
    points |= {puppet.secrets.mask_key.public for puppet in world.puppets}
    rows, residues = [], []
    for run in sent:
        row, residue = _residue(world, run, (run, B) in known, points)
        rows.append(row)
        residues.append(residue)
    found = []
    for vector in _left_null_space(rows):
        used = [
            (c, run, residue) for c, run, residue in zip(vector, sent, residues, strict=True) if c
        ]
        coefficients: dict[int, int] = defaultdict(int)
        total = np.zeros_like(residues[0])
        for c, run, residue in used:
            coefficients[run.item] += c
            total += residue * total.dtype.type(c % 2**16)
        truth = sum(c * world.vectors[item] for item, c in coefficients.items())
        length = world.parameters.length
        assert ((total[:length].astype(np.int64) - truth) % 2**16 == 0).all(), (
            "a sum that is said to be learnt is not"
        )
        contexts = frozenset(run.view.ctx2 for _, run, _ in used if run.view is not None)
        found.append(Sum(dict(coefficients), contexts))
    return found


def violations(world: World) -> list[str]:
    """Return what has been learnt beyond the claim; empty if it holds."""
    found, out = learnt(world), []
    for number, one in enumerate(found):
        members = sorted(one.coefficients)
        if set(one.coefficients.values()) != {1}:
            out.append(f"a combination that is no sum: {one.coefficients}")
        if len(members) < world.least:
            out.append(f"a sum over {members}, fewer than {world.least} honest clients")
        if len(one.contexts) > 1:
            out.append(f"a sum over several rosters: {members}")
        for other in found[:number]:
            if one.contexts & other.contexts:
                out.append(f"two sums in one roster: {members} and {sorted(other.coefficients)}")
            elif set(members) & set(other.coefficients):
                out.append(f"two sums with one item: {members} and {sorted(other.coefficients)}")
    return out


def both_shares(world: World) -> list[str]:
    """Return the honest clients that gave a share of both secrets of one neighbour at one point."""
    out, table = [], _true_shares(world)
    for run in world.runs:
        given = [table[piece] for piece in _pieces(run) if piece in table]
        twice = {(id(owner), x) for owner, secret, x in given if secret is B}
        if any((id(owner), x) in twice for owner, secret, x in given if secret is KEY):
            out.append(f"rank {run.rank} gave both shares of a neighbour")
    return out


def _true_shares(world: World) -> dict[bytes, tuple[Run, str, int]]:
    """Return whose share of what every share is that honest clients dealt, by its 20 bytes."""
    table = {}
    for run in world.runs:
        if run.said(Kind.SHARES) is None or run.view is None:
            continue
        dealt = run.dealt()
        for x in range(1, len(dealt) + 1):
            table[shamir.to_bytes(dealt[x - 1, :5])] = (run, B, x)
            table[shamir.to_bytes(dealt[x - 1, 5:])] = (run, KEY, x)
    return table


def _pieces(run: Run) -> list[bytes]:
    """Return all shares in what a client gave to unmask."""
    pieces = []
    for _, body in run.answers[Kind.UNMASK]:
        assert run.view is not None
        unmask = wire.decode_unmask(body, run.view.graph.neighbours)
        pieces += [shamir.to_bytes(elements) for elements in (unmask.own, *unmask.shares)]
    return pieces


def opened_secrets(world: World) -> set[tuple[Run, str]]:
    """Return the secrets of honest clients of which the adversary has t shares."""
    table, points = _true_shares(world), defaultdict(set)
    for run in world.runs:
        for piece in _pieces(run):
            if piece in table:
                owner, secret, x = table[piece]
                points[owner, secret].add(x)
    readable = {puppet.secrets.encryption_key.public for puppet in world.puppets}
    for run in world.runs:
        if run.said(Kind.SHARES) is None or run.view is None:
            continue
        for slot, index in enumerate(run.view.graph.of(run.view.members.index(run.rank))):
            if run.view.points[int(index)].encryption_key in readable:
                points[run, B].add(slot + 1)
                points[run, KEY].add(slot + 1)
    return {
        of
        for of, found in points.items()
        if of[0].view and len(found) >= of[0].view.graph.threshold
    }


def _residue(
    world: World, run: Run, b_known: bool, points: set[bytes]
) -> tuple[dict[bytes, int], npt.NDArray[Any]]:
    """Return the masks in a masked vector that the adversary cannot derive, by key, and the vector
    without the others.

    Also checks that the client masked as the specification says.
    """
    view, own = run.view, run.secrets
    assert view is not None
    asked, packed = run.answers[Kind.MASKED_INPUT][0]
    parameters = run.session.parameters
    vector = unpack(packed, parameters.length + parameters.checksum_entries, parameters.bits).copy()
    index, mine = view.members.index(run.rank), own.mask_key.public
    self_mask = keys.self_mask_key(own.b, view.ctx2, index)
    masks = [(1, self_mask, b_known)]
    present = wire.decode_inbox(asked, view.graph.neighbours).present
    for peer in view.graph.of(index)[present].tolist():
        point = view.points[peer].mask_key
        key = keys.pair_mask_key(own.mask_key.exchange(point), view.ctx2, index, mine, peer, point)
        masks.append((1 if index < peer else -1, key, point in points or mine in points))
    row: dict[bytes, int] = defaultdict(int)
    bare, residue = vector.copy(), vector.copy()
    for sign, key, known in masks:
        for target in (bare, residue) if known else (bare,):
            masking = Masking(target)
            (masking.subtract if sign == 1 else masking.add)(key)
        if not known:
            row[bytes(key.reveal())] += sign
    true = np.ones(len(bare), lane(16))
    true[: parameters.length] = world.vectors[run.item].astype(lane(16))
    assert (bare == true).all(), "the client did not mask as the specification says"
    return row, residue


def _left_null_space(rows: list[dict[bytes, int]]) -> list[list[int]]:
    """Return the reduced basis of all combinations of rows that cancel, with integers near zero."""
    columns = sorted({column for row in rows for column in row})
    place = {column: i for i, column in enumerate(columns)}
    matrix = np.zeros((len(rows), len(columns) + len(rows)), np.int64)
    for i, row in enumerate(rows):
        for column, value in row.items():
            matrix[i, place[column]] = value
        matrix[i, len(columns) + i] = 1
    rank = _reduce(matrix, range(len(columns)))
    null = matrix[rank:, len(columns) :]
    _reduce(null, range(len(rows)))
    return [[c - PRIME if c > PRIME // 2 else c for c in vector] for vector in null.tolist()]


def _reduce(matrix: npt.NDArray[np.int64], columns: Iterable[int]) -> int:
    """Bring a matrix mod 2^31 - 1 to its reduced form over these columns, in place; return its rank
    there."""
    matrix %= PRIME
    lead = 0
    for column in columns:
        found = np.flatnonzero(matrix[lead:, column])
        if not len(found):
            continue
        swap = lead + int(found[0])
        matrix[[lead, swap]] = matrix[[swap, lead]]
        matrix[lead] = matrix[lead] * pow(int(matrix[lead, column]), -1, PRIME) % PRIME
        for i in np.flatnonzero(matrix[:, column]).tolist():
            if i != lead:
                matrix[i] = (matrix[i] - matrix[i, column] * matrix[lead]) % PRIME
        lead += 1
        if lead == len(matrix):
            break
    return lead


# ---- servers ----

Signatures = dict[int, bytes]


class LyingServer:
    """A server that may tell anybody anything.
    This one follows the protocol; each subclass lies in its own way.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: list[Run] = []
        self.puppets: dict[int, Puppet] = {}
        self.shown: dict[Run, frozenset[int]] = {}

    def attack(self) -> list[str]:
        """Run one session; return what has been learnt beyond the claim."""
        self.begin()
        self.share()
        self.collect()
        self.confirm()
        self.unmask()
        return violations(self.world)

    def begin(self, session: Session | None = None) -> None:
        """Invite everybody, and have the corrupt clients ready."""
        self.session = session or self.world.session()
        self.puppets = {
            rank: self.world.puppet(self.session, rank) for rank in range(self.world.corrupt)
        }
        self.runs = self.joined(range(self.world.corrupt, self.world.n))
        self.shown = {}

    def joined(self, ranks: Iterable[int]) -> list[Run]:
        """Invite these; return those that advertise."""
        runs = [self.world.join(self.session, rank) for rank in ranks]
        return [run for run in runs if run.said(Kind.ADVERTISE) is not None]

    def tell(self, run: Run, kind: Kind, body: bytes) -> wire.Frame | None:
        """Send a client a message; return its answer."""
        return run.tell(kind, body)

    def share(self) -> None:
        """Tell everybody a roster."""
        for run in self.runs:
            run.view = self.roster(run)
            self.tell(run, Kind.ROSTER, run.view.body(run.rank))

    def collect(self) -> None:
        """Tell everybody who shared."""
        for run in self.runs:
            if run.said(Kind.SHARES) is None:
                continue
            assert run.view is not None
            peers = run.view.neighbours(run.rank)
            sealed = self.inbox(run)
            present = np.array([peer in sealed for peer in peers])
            parts = [sealed[peer] for peer in peers if peer in sealed]
            self.tell(run, Kind.INBOX, wire.encode_inbox(Inbox(present, parts)))

    def confirm(self) -> None:
        """Tell everybody who survived."""
        for run in self.runs:
            if run.said(Kind.MASKED_INPUT) is not None:
                self.show(run, self.survivors(run))

    def show(self, run: Run, alive: Iterable[int]) -> wire.Frame | None:
        """Tell one client who survived."""
        assert run.view is not None
        self.shown[run] = frozenset(alive)
        return self.tell(run, Kind.SURVIVORS, wire.pack_bits(run.view.bits(alive)))

    def unmask(self) -> None:
        """Tell everybody who confirmed."""
        for run in self.runs:
            if run.said(Kind.CONFIRM) is None:
                continue
            assert run.view is not None
            given = self.confirmations(run)
            parts = [given[rank] for rank in run.view.members if rank in given]
            self.tell(
                run,
                Kind.CONFIRMATIONS,
                wire.encode_confirmations(Confirmations(run.view.bits(given), parts)),
            )

    # ---- what it says ----

    def roster(self, run: Run) -> View:
        """Return the roster that a client is told."""
        adverts = {rank: puppet.advert for rank, puppet in self.puppets.items()}
        return self.world.view(
            self.session, adverts | {other.rank: other.advert for other in self.runs}
        )

    def inbox(self, run: Run) -> dict[int, bytes]:
        """Return what a client is told that its neighbours sealed for it, by rank."""
        assert run.view is not None
        return {peer: self.sealed(peer, run) for peer in run.view.neighbours(run.rank)}

    def survivors(self, run: Run) -> Iterable[int]:
        """Return who is alive, as a client is told."""
        assert run.view is not None
        return run.view.members

    def confirmations(self, run: Run) -> Signatures:
        """Return the signatures that a client is given: by default all that there are on what it
        was shown."""
        return self.signed(
            run, [other for other in self.runs if self.shown.get(other) == self.shown[run]]
        )

    # ---- what it can say ----

    def sealed(self, owner: int, run: Run) -> bytes:
        """Return what the owner sealed for a client in the client's roster; garbage if there is no
        such thing."""
        assert run.view is not None
        if owner in self.puppets:
            return self.puppets[owner].seal(run.view, run.rank)
        for other in self.runs:
            shares = other.said(Kind.SHARES)
            if other.rank == owner and shares is not None and other.view is not None:
                if run.rank not in other.view.members:
                    break
                slot = other.view.neighbours(owner).index(run.rank)
                return shares[wire.SEALED_BYTES * slot : wire.SEALED_BYTES * (slot + 1)]
        return bytes(wire.SEALED_BYTES)

    def signed(self, run: Run, others: Iterable[Run]) -> Signatures:
        """Return the corrupt clients' signatures on what a client was shown, and what these others
        last confirmed."""
        assert run.view is not None
        what = wire.bitmap_digest(run.view.bits(self.shown[run]))
        given = {
            rank: self.world.identities[rank].sign(Label.CONFIRM, run.view.ctx2, what)
            for rank in self.puppets
            if rank in run.view.members and self.world.active
        }
        return given | {
            other.rank: other.answers[Kind.CONFIRM][-1][1]
            for other in others
            if other.said(Kind.CONFIRM)
        }


class MadeUpClients(LyingServer):
    """Surrounds one client with clients that do not exist, under the identities of others."""

    def begin(self, session: Session | None = None) -> None:
        self.session = self.world.session()
        victim = self.world.n - 1
        self.runs = self.joined([victim])
        self.puppets = {
            rank: self.world.puppet(self.session, rank, "fake") for rank in range(victim)
        }
        forger = SigningKey(Secret(bytes(32)))
        for puppet in self.puppets.values():
            unsigned = puppet.secrets.unsigned
            puppet.advert = unsigned + forger.sign(Label.ADVERTISE, self.session.ctx, unsigned)


class Isolation(LyingServer):
    """Tells one client that only corrupt ones shared; everybody else hears the truth."""

    def inbox(self, run: Run) -> dict[int, bytes]:
        sealed = super().inbox(run)
        return sealed if run is not self.runs[0] else {rank: sealed[rank] for rank in self.puppets}


class Regions(LyingServer):
    """Tells each region that the others did not share, and did not survive."""

    regions: ClassVar[tuple[frozenset[int], ...]] = ()

    def region(self, run: Run) -> set[int]:
        """Return the region of a client, with the corrupt ones: by default halves of the honest
        clients."""
        middle = len(self.runs) // 2
        half = self.runs[:middle] if run in self.runs[:middle] else self.runs[middle:]
        return {other.rank for other in half} | set(self.puppets)

    def inbox(self, run: Run) -> dict[int, bytes]:
        return {
            peer: sealed for peer, sealed in super().inbox(run).items() if peer in self.region(run)
        }

    def survivors(self, run: Run) -> Iterable[int]:
        return self.region(run)


class Scattered(LyingServer):
    """Shows every client other survivors, so that each of many clients is dead for a majority of
    the others.

    For 5 honest clients: 0, 1 and 2 are dead for three others each, 3 and 4 for none. It gives the
    signatures that `how` says: "none", "forged" ones, whatever was signed on "any" survivors, all
    that were given when it showed all of these sets to everybody ("often"), those of "earlier"
    sessions in which one set each was confirmed, or those that were given on a client's "own" set.
    """

    how = "none"
    alive: ClassVar[dict[int, frozenset[int]]] = {
        0: frozenset({0, 3, 4}),
        1: frozenset({1, 3, 4}),
        2: frozenset({2, 3, 4}),
        3: frozenset({2, 3, 4}),
        4: frozenset({1, 3, 4}),
    }

    def attack(self) -> list[str]:
        self.collected: dict[frozenset[int], Signatures] = defaultdict(dict)
        if self.how == "earlier":
            for alive in sorted(set(self.alive.values()), key=sorted):
                self.begin()
                for run in self.runs:
                    run.client._journal = MemoryJournal()  # another round: another item
                self.share()
                self.collect()
                for run in self.runs:
                    self.ask(run, alive)
        return super().attack()

    def ask(self, run: Run, alive: frozenset[int]) -> None:
        """Show survivors to a client and keep what it signs."""
        answer = self.show(run, alive)
        if answer is not None and answer.kind is Kind.CONFIRM:
            self.collected[alive][run.rank] = answer.body

    def confirm(self) -> None:
        for run in self.runs:
            own = self.alive[run.rank]
            for alive in (
                sorted(set(self.alive.values()) - {own}, key=sorted) if self.how == "often" else ()
            ):
                if run.rank in alive:
                    self.ask(run, alive)
            self.ask(run, own)

    def confirmations(self, run: Run) -> Signatures:
        others = self.alive[run.rank] - {run.rank}
        if self.how == "forged":
            return dict.fromkeys(others, bytes(64))
        if self.how == "any":
            return self.signed(run, self.runs)
        if self.how == "own":
            return LyingServer.confirmations(self, run)
        return {} if self.how == "none" else self.collected[self.alive[run.rank]]


class ForgedSignatures(Scattered):
    """Gives signatures of nothing."""

    how = "forged"


class SignaturesOfOthers(Scattered):
    """Gives signatures on other survivors."""

    how = "any"


class SignsOften(Scattered):
    """Asks everybody to confirm one set of survivors after the other."""

    how = "often"


class EarlierSignatures(Scattered):
    """Gives signatures of earlier sessions."""

    how = "earlier"


class TwoSets(Scattered):
    """Shows two sets of survivors, with the signatures on each, to clients that are alive in it."""

    how = "own"
    alive: ClassVar[dict[int, frozenset[int]]] = {
        0: frozenset({0, 1, 2}),
        1: frozenset({0, 1, 2}),
        2: frozenset({2, 3, 4}),
        3: frozenset({2, 3, 4}),
        4: frozenset({2, 3, 4}),
    }


class TwoSetsWithACorruptClient(TwoSets):
    """Does so with the signature of a corrupt client on both."""

    alive: ClassVar[dict[int, frozenset[int]]] = {
        1: frozenset({0, 1, 2, 3}),
        2: frozenset({0, 1, 2, 3}),
        3: frozenset({0, 1, 3, 4}),
        4: frozenset({0, 1, 3, 4}),
    }


class Ghosts(LyingServer):
    """Pads each of two groups with the dead of the other, whose keys that group opens.

    For 7 clients of 12 identities, min_survivors 6, nobody corrupt: the groups are 0 .. 5 and 6 ..
    11, and 5 and 11 are dead in their own group and alive, as ghosts, in the other.
    """

    donors: ClassVar[tuple[int, int]] = (5, 11)

    def begin(self, session: Session | None = None) -> None:
        self.session = self.world.session()
        self.runs = self.joined(range(12))

    def members(self, run: Run) -> set[int]:
        """Return the group of a client and its ghost."""
        own = run.rank // 6
        return {other.rank for other in self.runs if other.rank // 6 == own} | {
            self.donors[1 - own]
        }

    def roster(self, run: Run) -> View:
        members = self.members(run)
        return self.world.view(
            self.session, {other.rank: other.advert for other in self.runs if other.rank in members}
        )

    def survivors(self, run: Run) -> Iterable[int]:
        return self.members(run) - {self.donors[run.rank // 6]}


class Reflection(Ghosts):
    """Gives a client, in place of what the ghost never sealed for it, what it sealed for the
    ghost."""

    def sealed(self, owner: int, run: Run) -> bytes:
        if owner != self.donors[1 - run.rank // 6]:
            return super().sealed(owner, run)
        shares = run.said(Kind.SHARES)
        assert run.view is not None and shares is not None
        slot = run.view.neighbours(run.rank).index(owner)
        return shares[wire.SEALED_BYTES * slot : wire.SEALED_BYTES * (slot + 1)]


class GhostsOfManyRosters(LyingServer):
    """Takes the ghosts' shares from rosters in which the victims have the same indexes.

    16 identities, nobody corrupt, rosters of 6 to 8, min_survivors 5. The victims 2, 3, 6, 7 are in
    a roster with the ghosts 8 and 10; 8 dealt its shares in a roster with 2 and 3, and is dead
    there; 10 in one with 6 and 7.
    """

    rosters: ClassVar[tuple[frozenset[int], ...]] = (
        frozenset({2, 3, 6, 7, 8, 10}),
        frozenset({2, 3, 4, 5, 8, 11, 12, 13}),
        frozenset({0, 1, 6, 7, 9, 10, 14, 15}),
    )
    inside: ClassVar[tuple[frozenset[int], ...]] = (
        frozenset({2, 3, 6, 7}),
        frozenset({4, 5, 8, 11, 12, 13}),
        frozenset({0, 1, 9, 10, 14, 15}),
    )

    def begin(self, session: Session | None = None) -> None:
        self.session = self.world.session()
        self.runs = self.joined(range(16))

    def number(self, run: Run) -> int:
        """Return which roster a client is told."""
        return next(i for i, inside in enumerate(self.inside) if run.rank in inside)

    def roster(self, run: Run) -> View:
        members = self.rosters[self.number(run)]
        return self.world.view(
            self.session, {other.rank: other.advert for other in self.runs if other.rank in members}
        )

    def inbox(self, run: Run) -> dict[int, bytes]:
        sealed = super().inbox(run)
        if self.number(run) == 0:
            return sealed
        return {peer: ct for peer, ct in sealed.items() if peer in self.inside[self.number(run)]}

    def survivors(self, run: Run) -> Iterable[int]:
        return self.rosters[0] if self.number(run) == 0 else self.inside[self.number(run)] - {8, 10}


class Rerun(LyingServer):
    """Runs the same items again without one of them."""

    def attack(self) -> list[str]:
        super().attack()
        return super().attack()

    def survivors(self, run: Run) -> Iterable[int]:
        alive = list(super().survivors(run))
        return alive if self.session.number == 0 else alive[:-1]


class AskTwice(LyingServer):
    """Asks to unmask twice, with other survivors."""

    def survivors(self, run: Run) -> Iterable[int]:
        alive = list(super().survivors(run))
        return alive[1:] if self.again and run is not self.runs[0] else alive

    again = False

    def unmask(self) -> None:
        super().unmask()
        self.again = True
        for run in self.runs:
            run.answers[Kind.CONFIRM].clear()
        self.confirm()
        super().unmask()


class TooFewSurvivors(LyingServer):
    """Drops chosen clients, until fewer are left than a sum may have."""

    def survivors(self, run: Run) -> Iterable[int]:
        return list(super().survivors(run))[:-1]


class DictatedAlive(LyingServer):
    """Lets the confirmations say something else about who is alive than what was confirmed."""

    def confirmations(self, run: Run) -> Signatures:
        given = super().confirmations(run)
        return {
            rank: signature
            for rank, signature in given.items()
            if rank in Scattered.alive[run.rank]
        }


class ManyOfOneIdentity(LyingServer):
    """Puts one corrupt identity into the roster many times."""

    def begin(self, session: Session | None = None) -> None:
        self.session = self.world.session()
        self.puppets = {
            rank: self.world.puppet(self.session, rank) for rank in range(self.world.n - 1)
        }
        self.runs = self.joined([self.world.n - 1])
