"""Servers that lie, and what each check of the client is for.

For every check there is an attack that fails with it and succeeds without it: the mutations take
one check out of the client's source. What `succeeds` means is decided by
`secagg_adversaries.violations`, which finds by linear algebra, and confirms with the numbers, what
the adversary has learnt; or by a property that the test names.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import secagg_adversaries as attacks
from secagg_adversaries import (
    KEY,
    B,
    LyingServer,
    Puppet,
    Run,
    View,
    World,
    complete,
    opened_secrets,
    violations,
)
from secagg_cohort import NOW, SERVER_KEY, Cohort, in_order, stream

from fedtally.crypto import keys, shamir
from fedtally.crypto.keys import Label, Secret, SigningKey
from fedtally.crypto.prg import lane
from fedtally.errors import InvalidInputError
from fedtally.secagg import allow_list as allow_list_module
from fedtally.secagg import client as client_module
from fedtally.secagg import messages, params, wire
from fedtally.secagg.client import Client
from fedtally.secagg.messages import AbortCode, ClientState, Kind, LocalProtocolError, ServerState
from fedtally.secagg.packing import pack, unpack
from fedtally.secagg.params import Adversary, Graph
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import Blame, Server
from fedtally.secagg.unmasking import Unmasking

Mutation = Callable[[pytest.MonkeyPatch], None]


# ---- mutations ----


def without(owner: Any, name: str, *pieces: str, count: int = 1) -> Mutation:
    """Return what replaces pieces of a function's source: old, new, old, ...; each is there exactly
    so often."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        function = getattr(owner, name)
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in zip(pieces[::2], pieces[1::2], strict=True):
            source, found = re.subn(_wherever_lines_end(old), lambda _, new=new: new, source)
            assert found == count, (
                f"{old!r} is not in {name} {count} times: bring this table up to date"
            )
        scope: dict[str, Any] = {}
        exec(
            compile("from __future__ import annotations\n" + source, f"<{name}>", "exec"),
            function.__globals__,
            scope,
        )
        monkeypatch.setattr(owner, name, scope[name])

    return apply


def _wherever_lines_end(piece: str) -> str:
    """Return the pattern of a piece of source, with whatever blanks and line ends it is written."""
    stripped = piece.strip()
    before, _, after = piece.partition(stripped)
    inside = r"\s*".join(map(re.escape, re.findall(r"\w+|[^\w\s]", stripped)))
    return re.escape(before) + inside + re.escape(after)


def both(*mutations: Mutation) -> Mutation:
    """Return several mutations as one."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        for mutation in mutations:
            mutation(monkeypatch)

    return apply


def also_taken(state: ClientState, kind: Kind, like: ClientState) -> Mutation:
    """Return what lets a client take a message in one more state, as it takes it in another one."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        table = messages.TRANSITIONS[Adversary.ACTIVE]
        monkeypatch.setitem(table, state, table.get(state, {}) | {kind: table[like][kind]})

    return apply


def unsalted(name: str) -> Mutation:
    """Return what takes ctx2 out of a derived key."""

    def apply(monkeypatch: pytest.MonkeyPatch) -> None:
        derive = getattr(keys, name)
        monkeypatch.setattr(
            keys, name, lambda secret, ctx2, *rest: derive(secret, bytes(32), *rest)
        )

    return apply


def one_key_for_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seal and open with one key."""
    derive = keys.share_keys

    def same(*arguments: Any) -> tuple[keys.Secret, keys.Secret]:
        up, down = derive(*arguments)
        key = up if arguments[2] < arguments[4] else down
        return keys.Secret(key.reveal()), keys.Secret(key.reveal())

    monkeypatch.setattr(keys, "share_keys", same)


CHECK_INBOX = (
    "ready < self._graph.threshold or (self._is_active and ready < self._parameters.min_survivors)"
)
AGAIN = both(
    also_taken(ClientState.DONE, Kind.SURVIVORS, ClientState.MASKED),
    without(Client, "_handle", "self._forget()", "pass"),
    without(Client, "receive", "if self.state is ClientState.DONE:", "if False:"),
)


class Case(NamedTuple):
    """A check, what takes it out, and the attack that then succeeds.

    `code` is what the attack meets with the check. None: it is answered in the ordinary way, or
    never begins.
    """

    check: str
    mutation: Mutation
    attack: type[LyingServer]
    world: Callable[[], World]
    code: AbortCode | None


def _five() -> World:
    return World(5, corrupt=0, min_survivors=3)


def _ghosts() -> World:
    return World(7, corrupt=0, identities=12, min_survivors=6)


def _many_rosters() -> World:
    parameters = complete(Adversary.ACTIVE, 8, 0, 5, n_min=6)
    return World(8, corrupt=0, identities=16, parameters=parameters)


def _weak() -> World:
    """Two corrupt clients, as the policy fears, and parameters for none."""
    parameters = complete(Adversary.ACTIVE, 7, 0, 4)
    return World(7, corrupt=2, parameters=parameters, least=3)


def _semi_honest() -> World:
    return World(5, corrupt=1, adversary=Adversary.SEMI_HONEST)


CASES = [
    Case(
        "(b) the signatures of the adverts",
        without(client_module, "_verify_advert", "keys.verify(", "(lambda *_: None)("),
        attacks.MadeUpClients,
        lambda: World(5),
        AbortCode.ROSTER_INVALID,
    ),
    Case(
        "(b) an identity is listed once",
        without(allow_list_module.AllowList, "__init__", "key <= self._keys[place - 1]", "False"),
        attacks.ManyOfOneIdentity,
        lambda: World(5, listed_often=True),
        None,
    ),
    Case(
        "(c) ctx2 in the keys of shares",
        unsalted("share_keys"),
        attacks.GhostsOfManyRosters,
        _many_rosters,
        AbortCode.TOO_FEW_OPENED,
    ),
    Case(
        "(c) the direction in the keys of shares",
        one_key_for_both_directions,
        attacks.Reflection,
        _ghosts,
        AbortCode.BELOW_MIN_SURVIVORS,
    ),
    Case(
        "(d) the Inbox check",
        without(Client, "_mask", CHECK_INBOX, "False"),
        attacks.Isolation,
        lambda: World(5),
        AbortCode.TOO_FEW_OPENED,
    ),
    Case(
        "(f) alive and opened >= min_survivors",
        without(Client, "_check_survivors", "self._is_active and helpers", "False and helpers"),
        attacks.Ghosts,
        _ghosts,
        AbortCode.BELOW_MIN_SURVIVORS,
    ),
    Case(
        "(f) opened, not only alive",
        without(Client, "_check_survivors", "(near & self._opened)", "near"),
        attacks.Ghosts,
        _ghosts,
        AbortCode.BELOW_MIN_SURVIVORS,
    ),
    Case(
        "min_survivors, on the bitmap",
        without(
            Client, "_check_survivors", "int(alive.sum()) < self._parameters.min_survivors", "False"
        ),
        attacks.TooFewSurvivors,
        _semi_honest,
        AbortCode.BELOW_MIN_SURVIVORS,
    ),
    Case(
        "(g) sign once",
        also_taken(ClientState.CONFIRMED, Kind.SURVIVORS, ClientState.MASKED),
        attacks.SignsOften,
        _five,
        AbortCode.WRONG_STATE,
    ),
    Case(
        "(h) t signatures",
        without(Client, "_confirmed", "valid < self._graph.threshold", "False"),
        attacks.Scattered,
        _five,
        AbortCode.TOO_FEW_CONFIRMATIONS,
    ),
    Case(
        "(h) valid signatures",
        without(Client, "_confirmed", "keys.verify(", "(lambda *_: None)("),
        attacks.ForgedSignatures,
        _five,
        AbortCode.TOO_FEW_CONFIRMATIONS,
    ),
    Case(
        "(h) on the own survivors",
        both(
            without(Client, "_survive", "self._ctx2, wire.bitmap_digest(alive)", "self._ctx2"),
            without(Client, "_confirmed", "self._ctx2, what", "self._ctx2"),
        ),
        attacks.SignaturesOfOthers,
        _five,
        AbortCode.TOO_FEW_CONFIRMATIONS,
    ),
    Case(
        "(h) in the own roster",
        both(
            without(
                Client,
                "_survive",
                "self._ctx2, wire.bitmap_digest(alive)",
                "wire.bitmap_digest(alive)",
            ),
            without(Client, "_confirmed", "self._ctx2, what", "what"),
        ),
        attacks.EarlierSignatures,
        _five,
        AbortCode.TOO_FEW_CONFIRMATIONS,
    ),
    Case(
        "(i) unmask once",
        AGAIN,
        attacks.AskTwice,
        lambda: World(7, corrupt=0, min_survivors=4),
        None,
    ),
    Case(
        "(i) by the bitmap that was confirmed",
        without(Client, "_confirmed", "return self._alive", "return confirmations.signers"),
        attacks.DictatedAlive,
        _five,
        None,
    ),
    Case(
        "(j) 2t > n + C, by one less",
        without(params, "complete_threshold", "// 2 + 1", "// 2"),
        attacks.TwoSets,
        _five,
        AbortCode.TOO_FEW_CONFIRMATIONS,
    ),
    Case(
        "(j) 2t > n + C, for C = 0",
        without(
            params, "complete_threshold", "corrupt=corrupt)) // 2", "corrupt=0 * corrupt)) // 2"
        ),
        attacks.TwoSetsWithACorruptClient,
        lambda: World(5),
        AbortCode.TOO_FEW_CONFIRMATIONS,
    ),
    Case(
        "the policy: C",
        without(Client, "_check_invite", "self._policy.check_invite(invite.parameters)", "pass"),
        attacks.Regions,
        _weak,
        AbortCode.POLICY,
    ),
    Case(
        "the item is spent once",
        without(Client, "_mask", "not self._journal.spend(self._session)", "False"),
        attacks.Rerun,
        lambda: World(6, corrupt=0, min_survivors=5),
        AbortCode.ITEM_SPENT,
    ),
]


def outcome(case: Case) -> tuple[list[str], set[AbortCode | None]]:
    """Return what the adversary has learnt beyond the claim, and how the clients ended."""
    try:
        world = case.world()
    except InvalidInputError:
        return [], {None}
    return case.attack(world).attack(), {run.client.code for run in world.runs}


@pytest.mark.parametrize("case", CASES, ids=[case.check for case in CASES])
def test_every_check_stops_an_attack_that_succeeds_without_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt, codes = outcome(case)
    assert learnt == []
    assert case.code in codes
    case.mutation(monkeypatch)
    learnt, _ = outcome(case)
    assert learnt != []


# ---- checks whose absence opens nothing by itself: the client must refuse, and say why ----


def led(world: World, **lies: Callable[[LyingServer, Run], Any]) -> Run:
    """Run a session with a server that lies as given; return its first honest client."""
    server = LyingServer(world)
    for name, lie in lies.items():
        setattr(server, name, lambda run, lie=lie: lie(server, run))
    server.attack()
    return world.runs[0]


def invited(world: World, **changed: Any) -> Run:
    """Return a client that was invited on other terms."""
    return world.join(world.session(**changed), world.corrupt)


def late(kind: Kind) -> Callable[[World], Run]:
    """Return what sends one message after the end of the session."""

    def scenario(world: World) -> Run:
        class Late(LyingServer):
            def tell(self, run: Run, message: Kind, body: bytes) -> Any:
                return run.tell(message, body, NOW + 5000 if message is kind else NOW)

        Late(world).attack()
        return world.runs[0]

    return scenario


def with_advert(world: World, change: Callable[[Puppet, LyingServer], bytes]) -> Run:
    """Let a corrupt client advertise something else, properly signed."""

    def roster(server: LyingServer, run: Run) -> View:
        adverts = {rank: puppet.advert for rank, puppet in server.puppets.items()}
        adverts |= {other.rank: other.advert for other in server.runs}
        unsigned = change(server.puppets[0], server)
        adverts[0] = unsigned + world.identities[0].sign(
            Label.ADVERTISE, server.session.ctx, unsigned
        )
        return world.view(server.session, adverts)

    return led(world, roster=roster)


def low_order(world: World) -> Run:
    """A corrupt client's mask key is of low order."""
    return with_advert(world, lambda puppet, _: bytes(32) + puppet.secrets.unsigned[32:])


def key_of_another(world: World) -> Run:
    """A corrupt client advertises the mask key of an honest one."""
    return with_advert(
        world, lambda puppet, server: server.runs[1].advert[:32] + puppet.secrets.unsigned[32:]
    )


def foreign_advert(world: World) -> Run:
    """The roster holds another advert of the client's own identity."""

    def roster(server: LyingServer, run: Run) -> View:
        adverts = {other.rank: other.advert for other in server.runs}
        twin = Puppet(world, run.rank, server.session, "before")
        return world.view(server.session, adverts | {run.rank: twin.advert})

    return led(world, roster=roster)


def small_roster(world: World) -> Run:
    """The roster is smaller than the Invite says."""

    def roster(server: LyingServer, run: Run) -> View:
        return world.view(server.session, {other.rank: other.advert for other in server.runs[:3]})

    return led(world, roster=roster)


def unopened(world: World) -> Run:
    """Everybody is present, and too few shares open to make min_survivors of them."""

    def inbox(server: LyingServer, run: Run) -> dict[int, bytes]:
        sealed = LyingServer.inbox(server, run)
        return {peer: ct if peer < 3 else bytes(56) for peer, ct in sealed.items()}

    return led(world, inbox=inbox)


def revived(world: World) -> Run:
    """A client that was absent has survived."""

    def inbox(server: LyingServer, run: Run) -> dict[int, bytes]:
        return dict(list(LyingServer.inbox(server, run).items())[:-1])

    return led(world, inbox=inbox)


def own_death(world: World) -> Run:
    """The client itself has not survived."""
    return led(world, survivors=lambda server, run: set(range(5)) - {run.rank})


def too_few(world: World) -> Run:
    """Fewer have survived than a sum may have."""
    return led(world, survivors=lambda server, run: {0, 1, 2})


def second_time(world: World) -> Run:
    """A client that was restarted is invited to the same session."""
    session = world.session()
    world.join(session, 1)
    return world.join(session, 1, label="restarted")


def others_invite(world: World) -> Run:
    """Somebody else invites."""
    session = world.session()
    session.invite = session.invite[:-64] + SigningKey(Secret(bytes(32))).sign(
        Label.INVITE, session.invite[:48]
    )
    return world.join(session, 1)


class Refusal(NamedTuple):
    """A check, what takes it out, what the client is told, and the code that it ends with."""

    check: str
    mutation: Mutation
    scenario: Callable[[World], Run]
    code: AbortCode | None
    world: Callable[[], World] = _five


EXPIRED = without(Client, "_handle", "now > self.invite.not_after", "False")
REFUSALS = [
    Refusal(
        "who signed the Invite",
        without(client_module, "_signed_terms", "keys.verify(", "(lambda *_: None)("),
        others_invite,
        None,
    ),
    Refusal(
        "the plan",
        without(Client, "_check_invite", "invite.fingerprint != self._pinned.fingerprint or", ""),
        lambda world: invited(world, fingerprint=bytes(32)),
        AbortCode.POLICY,
    ),
    Refusal(
        "the round",
        without(Client, "_check_invite", "invite.round != self._pinned.round", "False"),
        lambda world: invited(world, round=4),
        AbortCode.POLICY,
    ),
    Refusal(
        "the allow-list",
        without(Client, "_check_invite", "or invite.allow_list != listed", ""),
        lambda world: invited(world, allow_list=bytes(32)),
        AbortCode.POLICY,
    ),
    Refusal(
        "not before",
        without(Client, "_check_invite", "invite.not_before <= now <=", "now <="),
        lambda world: invited(world, not_before=NOW + 1),
        AbortCode.EXPIRED,
    ),
    Refusal(
        "not after",
        without(Client, "_check_invite", "<= now <= invite.not_after", "<= now"),
        lambda world: invited(world, not_after=NOW - 1),
        AbortCode.EXPIRED,
    ),
    Refusal("the deadline of Roster", EXPIRED, late(Kind.ROSTER), AbortCode.EXPIRED),
    Refusal("the deadline of Inbox", EXPIRED, late(Kind.INBOX), AbortCode.EXPIRED),
    Refusal("the deadline of Survivors", EXPIRED, late(Kind.SURVIVORS), AbortCode.EXPIRED),
    Refusal("the deadline of Confirmations", EXPIRED, late(Kind.CONFIRMATIONS), AbortCode.EXPIRED),
    Refusal(
        "(a) a session once",
        without(
            Client,
            "_advertise",
            "not self._journal.begin(self._session, invite.not_after)",
            "False",
        ),
        second_time,
        AbortCode.SESSION_SEEN,
    ),
    Refusal(
        "(a) the own advert in the roster",
        without(Client, "_take_full_roster", "or roster.adverts[own[0]] != self._advert", ""),
        foreign_advert,
        AbortCode.ROSTER_INVALID,
    ),
    Refusal(
        "the size of the roster",
        without(Client, "_check_size", "self._parameters.check_roster(self._n)", "pass"),
        small_roster,
        AbortCode.ROSTER_INVALID,
    ),
    Refusal(
        "a key once",
        without(Client, "_check_adverts", "len(distinct) < len(points)", "False"),
        key_of_another,
        AbortCode.ROSTER_INVALID,
        lambda: World(5),
    ),
    Refusal(
        "(d) opened >= min_survivors",
        without(Client, "_mask", "(self._is_active and ready", "(False and ready"),
        unopened,
        AbortCode.TOO_FEW_OPENED,
        lambda: World(5, corrupt=0, min_survivors=4),
    ),
    Refusal(
        "(f) alive is a part of present",
        without(Client, "_check_survivors", "(near & ~self._present).any()", "False"),
        revived,
        AbortCode.REVIVED,
    ),
    Refusal(
        "(f) the own bit",
        without(Client, "_check_survivors", "not alive[self._index]", "False"),
        own_death,
        AbortCode.OWN_BIT_DEAD,
    ),
    Refusal(
        "(f) min_survivors, counted twice in active",
        without(
            Client,
            "_check_survivors",
            "int(alive.sum()) < self._parameters.min_survivors",
            "False",
            "self._is_active and helpers",
            "False and helpers",
        ),
        too_few,
        AbortCode.BELOW_MIN_SURVIVORS,
        lambda: World(5, corrupt=0, min_survivors=4),
    ),
]


@pytest.mark.parametrize("case", REFUSALS, ids=[case.check for case in REFUSALS])
def test_every_other_check_refuses_what_is_taken_without_it(
    case: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = case.scenario(case.world())
    assert refused.client.code is case.code
    assert refused.client.state is (ClientState.NEW if case.code is None else ClientState.ABORTED)
    case.mutation(monkeypatch)
    taken = case.scenario(case.world())
    assert taken.client.code is not case.code or taken.client.state is not refused.client.state


def test_a_point_of_low_order_is_refused_and_without_the_check_it_would_be_an_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert low_order(World(5)).client.code is AbortCode.ROSTER_INVALID
    without(Client, "_check_adverts", "keys.check_point(point)", "point")(monkeypatch)
    with pytest.raises(InvalidInputError):
        low_order(World(5))


# ---- more that a server tries ----

WEAK = {
    "fewer corrupt clients than the policy fears": (
        complete(Adversary.ACTIVE, 7, 0, 5),
        {"corrupt": 1},
    ),
    "too few honest clients in a sum": (complete(Adversary.ACTIVE, 5, 1, 4), {"min_honest": 4}),
    "a tiny cohort": (complete(Adversary.ACTIVE, 5, 1, 4), {"min_clients": 6}),
    "more neighbours than the client bears": (
        complete(Adversary.ACTIVE, 7, 1, 6),
        {"max_neighbours": 5},
    ),
    "a longer vector": (complete(Adversary.ACTIVE, 5, 1, 4, length=100), {"max_length": 99}),
    "more bits": (
        dataclasses.replace(complete(Adversary.ACTIVE, 5, 1, 4), bits=40),
        {"max_bits": 32},
    ),
    "the weaker profile": (complete(Adversary.SEMI_HONEST, 5, 1, 4), {}),
}


@pytest.mark.parametrize("name", WEAK)
def test_a_client_joins_on_no_weaker_terms_than_its_own(name: str) -> None:
    parameters, policy = WEAK[name]
    world = World(parameters.n_max, policy=policy)
    run = world.join(world.session(parameters), 1)
    assert run.client.code is AbortCode.POLICY
    assert not run.answers[Kind.ADVERTISE]


@pytest.mark.parametrize(
    ("at", "value"),
    [(48 + 8, 2), (48 + 8, 0), (48 + 8, 65), (48 + 22, 0), (48 + 0, 0), (48 + 26, 200)],
    ids=["b too small for the sum", "b = 0", "b = 65", "min_survivors", "V = 0", "profile"],
)
def test_terms_that_contradict_themselves_are_refused_though_the_server_signs_them(
    at: int, value: int
) -> None:
    world = World(5)
    session = world.session(dataclasses.replace(world.parameters, length=2))
    frame = bytearray(session.invite)
    size = {48 + 0: 8, 48 + 22: 4}.get(at, 1)
    frame[at : at + size] = value.to_bytes(size, "little")
    header, terms = bytes(frame[:48]), bytes(frame[48:-64])
    session.invite = header + terms + SERVER_KEY.sign(Label.INVITE, header, terms)
    run = world.join(session, 1)
    assert run.client.code in (AbortCode.POLICY, AbortCode.MALFORMED)
    assert not run.answers[Kind.ADVERTISE]


@pytest.mark.parametrize("graph", [Graph(12, 2), Graph(90, 6), Graph(12, 12)])
def test_a_server_dictates_no_threshold(graph: Graph) -> None:
    """Each of these rings is in its bounds; none is safe among 100 clients of which 20 are
    corrupt."""
    base = propose(100, length=2, bits=16, corrupt=20, max_dropout=0.05)
    parameters = dataclasses.replace(
        base, ring_neighbours=graph.neighbours, ring_threshold=graph.threshold
    )
    world = World(
        100,
        corrupt=0,
        adversary=Adversary.SEMI_HONEST,
        parameters=parameters,
        policy={"corrupt": 20},
    )
    server = LyingServer(world)
    server.begin()
    assert not server.runs[0].answers[Kind.ABORT]
    server.runs[0].view = view = server.roster(server.runs[0])
    answer = server.runs[0].tell(Kind.ROSTER, view.body(0))
    assert answer is not None and answer.kind is Kind.ABORT
    assert server.runs[0].client.code is AbortCode.ROSTER_INVALID


def test_an_identity_cannot_be_listed_twice() -> None:
    """A bitmap has one bit for each; a body with one advert more than bits is malformed."""
    world = World(5)
    server = LyingServer(world)
    server.begin()
    view = server.roster(server.runs[0])
    server.runs[0].tell(Kind.ROSTER, view.body(1) + view.adverts[0])
    assert server.runs[0].client.code is AbortCode.MALFORMED


class Swapped(LyingServer):
    """Gives clients ciphertexts that were not made for that pair, direction, roster or session."""

    other: LyingServer | None = None
    how = ""

    def inbox(self, run: Run) -> dict[int, bytes]:
        sealed = super().inbox(run)
        first, second = [peer for peer in sealed if peer not in self.puppets][:2]
        if self.how == "another owner":
            sealed[first] = sealed[second]
        elif self.how == "another holder":
            holder = next(other for other in self.runs if other.rank not in (first, run.rank))
            sealed[first] = self.sealed(first, holder)
        elif self.how == "another direction":
            assert run.view is not None
            shares, slot = run.said(Kind.SHARES), run.view.neighbours(run.rank).index(first)
            assert shares is not None
            sealed[first] = shares[wire.SEALED_BYTES * slot : wire.SEALED_BYTES * (slot + 1)]
        elif self.how == "another session":
            assert self.other is not None
            sealed[first] = self.other.sealed(
                first, next(r for r in self.other.runs if r.rank == run.rank)
            )
        return sealed

    def given(self, run: Run) -> int:
        """Return how many neighbours' shares a client gave."""
        assert run.view is not None
        body = run.said(Kind.UNMASK)
        assert body is not None
        return int(wire.decode_unmask(body, run.view.graph.neighbours).given.sum())


@pytest.mark.parametrize(
    "how", ["", "another owner", "another holder", "another direction", "another session"]
)
def test_a_ciphertext_opens_for_one_pair_one_direction_and_one_session(how: str) -> None:
    world = World(7, corrupt=0, min_survivors=4)
    server = Swapped(world)
    if how == "another session":
        server.other = LyingServer(world)
        server.other.begin()
        server.other.share()
    server.how = how
    assert server.attack() == []
    assert {server.given(run) for run in server.runs} == {6 if how == "" else 5}


def test_regions_of_many_clients_learn_nothing() -> None:
    world = World(24, corrupt=2, min_survivors=14)
    assert attacks.Regions(world).attack() == []
    assert {run.client.code for run in world.runs} == {AbortCode.TOO_FEW_OPENED}


class TwoBitmaps(LyingServer):
    """Tells one half of a client's neighbours that it survived, and the other half that it did
    not."""

    def survivors(self, run: Run) -> set[int]:
        assert run.view is not None
        victim = self.runs[0]
        assert victim.view is not None
        told = {victim.rank, *victim.view.neighbours(victim.rank)[: victim.view.graph.threshold]}
        everybody = set(run.view.members)
        return everybody if run.rank in told else everybody - {victim.rank}


def test_in_semi_honest_a_server_that_lies_once_gets_both_secrets_of_a_client() -> None:
    """What the page says is not covered: the attack succeeds, so that nobody takes the profile for
    more than it is."""
    parameters = propose(100, length=2, bits=16, corrupt=5, max_dropout=0.05)
    assert 2 * parameters.ring_threshold <= parameters.ring_neighbours + 1
    world = World(
        100,
        corrupt=0,
        adversary=Adversary.SEMI_HONEST,
        parameters=parameters,
        policy={"corrupt": 5},
    )
    server = TwoBitmaps(world)
    assert "a sum over [0], fewer than" in server.attack()[0]
    victim = server.runs[0]
    assert {(victim, B), (victim, KEY)} <= opened_secrets(world)


def test_a_client_takes_no_message_out_of_turn_twice_or_after_the_end() -> None:
    kinds = [Kind.INVITE, Kind.ROSTER, Kind.INBOX, Kind.SURVIVORS, Kind.CONFIRMATIONS]
    phases = ["share", "collect", "confirm", "unmask"]
    for done in range(5):
        for kind in kinds:
            if kind is kinds[min(done + 1, 4)] and done < 4:
                continue
            world = World(5)
            server = LyingServer(world)
            server.begin()
            for phase in phases[:done]:
                getattr(server, phase)()
            run, state = server.runs[0], server.runs[0].client.state
            answer = run.tell(kind, bytes(56))
            if state is ClientState.DONE:
                assert answer is None and run.client.state is ClientState.DONE
                continue
            assert (
                answer is not None
                and answer.kind is Kind.ABORT
                and answer.body == bytes([AbortCode.WRONG_STATE])
            )
            assert run.client.state is ClientState.ABORTED
            for again in kinds:
                assert run.tell(again, bytes(56)) is None


def test_a_copy_of_the_last_message_gets_the_same_answer_and_changes_nothing() -> None:
    world = World(5)
    server = LyingServer(world)
    for phase in ("begin", "share", "collect", "confirm", "unmask"):
        getattr(server, phase)()
        for run in server.runs:
            state = run.client.state
            kind = next(kind for kind in reversed(Kind) if run.answers[kind])
            asked, answered = run.answers[kind][-1]
            if kind is not Kind.ADVERTISE:
                request = {
                    Kind.SHARES: Kind.ROSTER,
                    Kind.MASKED_INPUT: Kind.INBOX,
                    Kind.CONFIRM: Kind.SURVIVORS,
                }
                answer = run.tell(request.get(kind, Kind.CONFIRMATIONS), asked)
                assert answer is not None and answer.body == answered
            assert run.client.state is state
    assert violations(world) == []
    assert attacks.both_shares(world) == []


# ---- corrupt clients ----


class BadDealer(Client):
    """Deals wrong shares to its first neighbours: as many as `wrong`; or elements that are not of
    the field."""

    wrong = 0
    value = 7

    def _share(self, body: bytes) -> bytes:
        split = shamir.split

        def badly(*arguments: Any) -> shamir.U32:
            shares = split(*arguments)
            shares[: self.wrong] = self.value
            return shares

        shamir.split = badly  # type: ignore[assignment]
        try:
            return super()._share(body)
        finally:
            shamir.split = split


def with_dealer(adversary: Adversary, wrong: int, value: int) -> Cohort:
    cohort = Cohort(9, adversary=adversary, max_dropout=0.2)
    dealer = cohort.client(4)
    dealer.__class__ = BadDealer
    dealer.wrong, dealer.value = wrong, value  # type: ignore[attr-defined]
    cohort.clients[4] = dealer
    cohort.run()
    return cohort


@pytest.mark.parametrize("adversary", Adversary)
def test_a_corrupt_dealer_can_stop_a_round_and_open_nothing(adversary: Adversary) -> None:
    """Of k + 1 shares (k + 1 - t) // 2 wrong ones are corrected, and the pairs blamed; one more is
    not."""
    neighbours, threshold = Cohort(9, adversary=adversary, max_dropout=0.2).parameters.graph(9)
    radius = (neighbours + 1 - threshold) // 2
    cohort = with_dealer(adversary, radius, 7)
    assert cohort.server.outcome is not None
    np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)
    assert [(owner, holder is None) for owner, holder in cohort.server.blamed] == [
        (4, False)
    ] * radius
    cohort = with_dealer(adversary, radius + 1, 7)
    assert cohort.server.code is AbortCode.RECONSTRUCTION_FAILED
    assert cohort.server.blamed == [Blame(4, None)]
    assert cohort.server.outcome is None


@pytest.mark.parametrize("adversary", Adversary)
def test_shares_that_are_none_cost_their_entry_and_not_the_edge(
    adversary: Adversary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(e): a client masks with everybody who is present, whether or not what it sent opens."""
    cohort = with_dealer(adversary, 2, 2**31 - 1)
    assert cohort.server.outcome is not None
    np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)
    without(Client, "_add_masks", "np.flatnonzero(self._present)", "np.flatnonzero(self._opened)")(
        monkeypatch
    )
    assert with_dealer(adversary, 2, 2**31 - 1).server.code is AbortCode.CHECKSUM_WRONG


# ---- dropouts that are chosen ----

SERVER_LOOKS_NOT = without(
    Server, "_verdict", "if not self._graph.is_whole(self._answered)", "if False", count=2
)
CLIENT_LOOKS_NOT = without(
    Client, "_check_survivors", "if not Neighbourhood(", "if False and Neighbourhood("
)
ARC = 12


def cut_off(phase: str) -> tuple[Cohort, set[int]]:
    """Return a round of 200 in which the clients on both sides of an arc, 40 of the 60 that may,
    drop out."""
    cohort = Cohort(200, corrupt=10, max_dropout=0.3, length=8, policy={"corrupt": 1})
    cohort.step()
    order, half = cohort.server._graph._order.tolist(), cohort.parameters.ring_neighbours // 2
    cohort.dropped = {phase: set(order[:half] + order[half + ARC : 2 * half + ARC])}
    cohort.run()
    return cohort, set(order[half : half + ARC])


def sum_of_the_arc(cohort: Cohort, arc: set[int]) -> Any:
    """Return what a server that followed the protocol to the letter computes from what it was
    sent."""
    server, p = cohort.server, cohort.parameters
    of_the_arc = np.isin(np.arange(cohort.n), list(arc))
    present = of_the_arc | np.isin(np.arange(cohort.n), list(cohort.dropped["mask"]))
    adverts = server._adverts
    unmasking = Unmasking(p, server._ctx, server._ctx2, server._graph, adverts, present, of_the_arc)
    total = np.zeros(p.length + p.checksum_entries, lane(p.bits))
    for i, frame in cohort.sent:
        message = wire.parse(frame)
        assert message is not None
        if message.kind is Kind.MASKED_INPUT and i in arc:
            total += unpack(message.body, len(total), p.bits)
        if message.kind is Kind.UNMASK:
            unmasking.add(i, wire.decode_unmask(message.body, p.ring_neighbours))
    return unmasking.open(total)


def test_who_chooses_dropouts_around_an_arc_of_the_ring_learns_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without both checks an honest server holds the exact sum of 12 clients, where 130 honest ones
    were guaranteed."""
    cohort, _ = cut_off("mask")
    assert (cohort.server.code, cohort.server.outcome) == (AbortCode.RING_CUT, None)
    assert not any(frame[5] == Kind.UNMASK for _, frame in cohort.sent)
    cohort, _ = cut_off("share")
    assert cohort.server.code is AbortCode.RING_CUT
    assert not any(journal.is_spent for journal in cohort.journals)

    SERVER_LOOKS_NOT(monkeypatch)
    cohort, _ = cut_off("mask")
    assert {c.code for i, c in enumerate(cohort.clients) if i not in cohort.dropped["mask"]} == {
        AbortCode.RING_CUT
    }
    assert cohort.server.code is AbortCode.RECONSTRUCTION_FAILED

    CLIENT_LOOKS_NOT(monkeypatch)
    cohort, arc = cut_off("mask")
    assert cohort.server.outcome is not None
    np.testing.assert_array_equal(
        sum_of_the_arc(cohort, arc), cohort.vectors[sorted(arc)].sum(axis=0)
    )


def test_the_server_alone_ends_a_round_whose_ring_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    CLIENT_LOOKS_NOT(monkeypatch)
    for phase in ("share", "mask"):
        assert cut_off(phase)[0].server.code is AbortCode.RING_CUT


def test_who_comes_when_does_not_choose_the_ring() -> None:
    """The draws of one server: the very same adverts, in the very same order, and another ring each
    time."""
    rings = set()
    for draws in range(3):
        cohort = Cohort(12, random=stream(draws))
        cohort.step()
        rings.add(cohort.server._ctx2)
    assert len(rings) == 3


# ---- the server's memory ----


def crashed(cohort: Cohort, saved: list[bytes]) -> Server:
    """Return the server that restarts from the last thing that was written."""
    return Server.restore(
        saved[-1], random=in_order, allow_list=cohort.allow_list, journal=saved.append
    )


def bitmaps_after_a_crash(saves: bool) -> set[bytes]:
    """Return what clients are told about the survivors when a server crashes after it told some of
    them."""
    saved: list[bytes] = []
    cohort = Cohort(9, adversary=Adversary.ACTIVE, max_dropout=0.2, journal=saved.append)
    cohort.run(until=ServerState.COLLECT)
    before = list(saved)
    cohort.dropped["mask"] = {8}
    cohort.step()
    told = {frame for _, frame in cohort.server.outgoing()}
    cohort.server = crashed(cohort, saved if saves else before)
    if cohort.server.state is ServerState.COLLECT:
        # another one is late this time; the others send their stored bytes
        cohort.dropped["mask"] = {7}
        cohort.step()
    return told | {frame for _, frame in cohort.server.outgoing()}


def test_a_restored_server_says_the_very_same_and_one_that_forgot_does_not() -> None:
    assert len(bitmaps_after_a_crash(saves=True)) == 1
    assert len(bitmaps_after_a_crash(saves=False)) == 2


def test_late_inputs_are_refused_for_ever_also_after_a_crash() -> None:
    saved: list[bytes] = []
    cohort = Cohort(9, adversary=Adversary.ACTIVE, max_dropout=0.2, journal=saved.append)
    cohort.run(until=ServerState.COLLECT)
    asked = dict(cohort.server.outgoing())
    cohort.dropped["mask"] = {8}
    cohort.clients[8].abandon = lambda: None  # type: ignore[method-assign]
    cohort.step()
    late = cohort.clients[8].receive(asked[8], NOW)
    assert late is not None
    assert not cohort.server.receive(8, late)
    cohort.server = crashed(cohort, saved)
    assert not cohort.server.receive(8, late)
    cohort.run()
    assert cohort.server.outcome is not None and cohort.server.outcome.survivors == 8
    np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)


def test_without_writing_first_the_phase_would_leave_before_it_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of a phase leaves when it could not be written."""

    def full(_: bytes) -> None:
        if seen:
            raise OSError("the disk is full")

    def run() -> Cohort:
        seen.clear()
        cohort = Cohort(9, adversary=Adversary.ACTIVE, max_dropout=0.2, journal=full)
        cohort.run(until=ServerState.COLLECT)
        cohort.phase()
        seen.append(True)
        with pytest.raises(OSError, match="full"):
            cohort.server.close_phase(NOW)
        return cohort

    seen: list[bool] = []
    assert {wire.parse(frame).kind for _, frame in run().server.outgoing()} == {Kind.ABORT}  # type: ignore[union-attr]
    for name in ("_save", "close_phase"):  # either would do
        without(Server, name, "self._end(AbortCode.INTERNAL)", "pass")(monkeypatch)
    assert {wire.parse(frame).kind for _, frame in run().server.outgoing()} == {Kind.SURVIVORS}  # type: ignore[union-attr]


def test_a_vector_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice() -> Cohort:
        cohort = Cohort(9, adversary=Adversary.ACTIVE, max_dropout=0.2)
        cohort.run(until=ServerState.COLLECT)
        cohort.phase()
        cohort.server.receive(3, next(frame for i, frame in reversed(cohort.sent) if i == 3))
        cohort.server.close_phase(NOW)
        cohort.run()
        return cohort

    assert twice().server.outcome is not None
    without(Server, "_take", "or not self._waiting[place]", "")(monkeypatch)
    assert twice().server.code is AbortCode.CHECKSUM_WRONG


# ---- what is said of the peer's protocol ----


def linear_complexity(bits: list[int]) -> int:
    """Return the length of the shortest recurrence of a bit sequence (Massey 1969), in big
    integers."""
    current, previous, length, shift, window = 1, 1, 0, 1, 0
    for place, bit in enumerate(bits):
        window = window << 1 | bit
        if (current & window).bit_count() & 1:
            before = current
            current ^= previous << shift
            if 2 * length <= place:
                length, previous, shift = place + 1 - length, before, 0
        shift += 1
    return length


def test_masks_cannot_be_continued_as_those_of_a_mersenne_twister_can() -> None:
    """N = 41,000 lowest bits of a masked vector of zeros: a random sequence has a linear complexity
    of N/2 + O(1).

    P[|L - N/2| > 32] < 2^-60 (Rueppel 1986); a Mersenne Twister's is at most 19,937.
    """
    size = 41_000
    world = World(3, corrupt=0, length=size)
    world.vectors[:] = 0
    server = LyingServer(world)
    for phase in ("begin", "share", "collect"):
        getattr(server, phase)()
    packed = server.runs[0].said(Kind.MASKED_INPUT)
    assert packed is not None
    masked = unpack(packed, size + world.parameters.checksum_entries, 16)
    assert abs(linear_complexity((masked[:size] & 1).tolist()) - size // 2) <= 32
    twister = np.random.Generator(np.random.MT19937(1)).integers(0, 2**32, size, np.uint32)
    assert linear_complexity((twister & 1).tolist()) <= 19_937


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("phase", ["share", "mask", "confirm", "unmask"])
def test_a_dropout_in_any_stage_does_not_kill_the_round(adversary: Adversary, phase: str) -> None:
    cohort = Cohort(9, adversary=adversary, max_dropout=0.2, dropped={phase: [2]})
    server = cohort.run()
    assert server.outcome is not None
    assert server.outcome.survivors == (8 if phase in ("share", "mask") else 9)
    np.testing.assert_array_equal(server.outcome.total, cohort.expected)


@pytest.mark.parametrize("adversary", Adversary)
def test_the_largest_entries_are_summed_exactly_and_larger_ones_refused_before_the_item_is_spent(
    adversary: Adversary,
) -> None:
    """b = 16, n = 9: 9 times 3,640 is 32,760, below 2^15; nothing is clipped, rounded or wraps."""
    cohort = Cohort(9, adversary=adversary, max_dropout=0.2)
    cohort.vectors[:] = [3640, -3640] * 12
    server = cohort.run()
    assert server.outcome is not None
    assert server.outcome.total.tolist() == [32_760, -32_760] * 12
    cohort = Cohort(9, adversary=adversary, max_dropout=0.2)
    cohort.vectors[1, 0] = 2**15
    cohort.run(until=ServerState.COLLECT)
    asked = dict(cohort.server.outgoing())
    with pytest.raises(LocalProtocolError, match="within"):
        cohort.clients[1].receive(asked[1], NOW)
    assert not cohort.journals[1].is_spent


def test_a_malformed_vector_is_not_in_the_sum() -> None:
    cohort = Cohort(9, adversary=Adversary.ACTIVE, max_dropout=0.2, bits=11)
    cohort.run(until=ServerState.COLLECT)
    cohort.phase(without=(3,))
    rank = next(wire.parse(f).sender for i, f in cohort.sent if i == 3)  # type: ignore[union-attr]
    good = pack(np.ones(24 + cohort.parameters.checksum_entries, "<u2"), 11)
    for body in (
        b"",
        good[:-1],
        good + bytes(1),
        bytes([*good[:-1], good[-1] | 0x80]),
        bytes(10**6),
    ):
        assert not cohort.server.receive(
            3, wire.frame(Kind.MASKED_INPUT, cohort.session, rank, body)
        )
    cohort.server.close_phase(NOW)
    cohort.run()
    assert cohort.server.outcome is not None and cohort.server.outcome.survivors == 8
    np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)


def test_no_client_gives_both_shares_of_a_neighbour_whoever_is_said_to_be_alive() -> None:
    world = World(7, corrupt=0, min_survivors=4)
    server = attacks.AskTwice(world)
    assert server.attack() == []
    assert attacks.both_shares(world) == []
    assert all(run.said(Kind.UNMASK) is not None for run in server.runs)
