"""The client: what it answers, what it refuses and with which code, and what is left of its secrets
afterwards."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import itertools
import pickle  # noqa: TID251 - to see that it is refused
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import each_case
from scipy import stats
from secagg_cohort import (
    FINGERPRINT,
    NOW,
    SERVER_KEY,
    Cohort,
    five,
    flips,
    left_behind,
    reframed,
    stream,
    twin,
)

from fedtally.crypto import keys, shamir
from fedtally.crypto.keys import ExchangeKey, Label, Secret, SigningKey
from fedtally.errors import InvalidInputError
from fedtally.secagg import client as client_module
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal, Pinned, read_invite
from fedtally.secagg.messages import (
    EXCHANGES,
    TRANSITIONS,
    AbortCode,
    ClientState,
    Confirmations,
    Exchange,
    Inbox,
    Invite,
    Kind,
    LocalProtocolError,
    Result,
    ServerState,
)
from fedtally.secagg.packing import unpack
from fedtally.secagg.params import Adversary, ClientPolicy, Parameters
from fedtally.secagg.proposal import propose

BOTH = list(Adversary)
SEMI, ACTIVE = Adversary.SEMI_HONEST, Adversary.ACTIVE
STEPS = [(adversary, step) for adversary in BOTH for step in EXCHANGES[adversary]]
STEP_IDS = [f"{adversary.value}-{step.request.name}" for adversary, step in STEPS]
PHASES = {ClientState.NEW: ServerState.ADVERTISE, ClientState.ADVERTISED: ServerState.SHARE}
PHASES |= {ClientState.SHARED: ServerState.COLLECT, ClientState.DONE: ServerState.DONE}
RING = propose(10, length=3, bits=16, corrupt=1, max_dropout=0.25)
LOW_ORDER = (
    0,
    1,
    2**255 - 20,
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
)
BAD_POINTS = [
    number.to_bytes(32, "little")
    for number in (*LOW_ORDER, 2**255 - 19, 2**255 - 10, 2**255 + 9, 2**256 - 1)
]


def aborted(client: Client, answer: bytes | None, code: AbortCode) -> None:
    """See that a client has ended with a code, said so, and kept nothing."""
    assert (client.state, client.code) == (ClientState.ABORTED, code)
    assert answer is not None
    assert answer == wire.frame(Kind.ABORT, answer[8:40], client._sender, bytes([code]))
    assert client._secrets == client_module._Secrets()


def phase_of(adversary: Adversary, state: ClientState) -> ServerState:
    """Return the phase in which a client is in a state and has not yet heard what is asked."""
    if state is ClientState.MASKED:
        return ServerState.CONFIRM if adversary is ACTIVE else ServerState.UNMASK
    return PHASES.get(state, ServerState.UNMASK)


def spoken(cohort: Cohort, kind: Kind, body: bytes) -> bytes:
    return wire.frame(kind, cohort.session, wire.SERVER, body)


def invitation(
    cohort: Cohort, terms: bytes, *, key: SigningKey = SERVER_KEY, version: int = 1
) -> bytes:
    """Return an Invite with these terms, signed."""
    header = bytearray(wire.frame(Kind.INVITE, cohort.session, wire.SERVER, terms + bytes(64))[:48])
    header[4] = version
    return bytes(header) + terms + key.sign(Label.INVITE, bytes(header), terms)


# ---- what it is made of ----


@pytest.mark.parametrize("size", [0, 31, 33])
def test_what_is_pinned_has_a_size(size: int) -> None:
    for arguments in (
        (bytes(size), bytes(32)),
        (bytes(32), bytes(size)),
        (bytearray(32), bytes(32)),
    ):
        with pytest.raises(InvalidInputError, match="must be 32 bytes"):
            Pinned(*arguments, round=0)


@pytest.mark.parametrize("number", [0, 1, 2**255 - 20, 2**255 - 19, 1 + 2**255])
def test_a_server_key_for_which_anybody_could_sign_is_refused(number: int) -> None:
    with pytest.raises(InvalidInputError, match="an identity must"):
        Pinned(number.to_bytes(32, "little"), FINGERPRINT, round=0)


@pytest.mark.parametrize("adversary", BOTH)
def test_identity_and_allow_list_go_with_active(adversary: Adversary) -> None:
    cohort = five(ACTIVE, ServerState.ADVERTISE)
    policy, unlisted = (
        ClientPolicy(adversary=adversary, min_honest=2),
        Pinned(SERVER_KEY.public, FINGERPRINT, round=3),
    )
    active = adversary is ACTIVE
    for pinned, identity in itertools.product(
        (cohort.pinned, unlisted), (cohort.identities[0], None)
    ):
        context: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if (pinned is cohort.pinned) != active or (identity is not None) != active:
            context = pytest.raises(InvalidInputError, match="identity and allow_list both go with")
        with context:
            Client(
                policy,
                pinned,
                lambda _: 0,
                journal=MemoryJournal(),
                random=bytes,
                identity=identity,
            )  # type: ignore[arg-type,return-value]


def test_an_identity_must_be_listed() -> None:
    with pytest.raises(InvalidInputError, match="not in the allow-list"):
        five(ACTIVE, ServerState.ADVERTISE).client(
            0, identity=SigningKey(Secret(b"somebody else".ljust(32)))
        )


# ---- the order of messages ----


def everything_said(adversary: Adversary) -> dict[Kind, bytes]:
    """Return one message of every type, as it would come from the server to client 0 in this
    session."""
    done = five(adversary, ServerState.DONE)
    said = {kind: wire.frame(kind, done.session, wire.SERVER, b"\x01") for kind in Kind}
    for step in EXCHANGES[adversary]:
        said[step.request] = five(adversary, step.phase).request(0)
        said[step.reply] = wire.frame(
            step.reply, done.session, wire.SERVER, answer_to(adversary, step)[48:]
        )
    return said | {Kind.RESULT: done.request(0), Kind.ABORT: spoken(done, Kind.ABORT, b"\x0c")}


def answer_to(adversary: Adversary, step: Exchange) -> bytes:
    cohort = five(adversary, step.phase)
    answer = cohort.clients[0].receive(cohort.request(0), NOW)
    assert answer is not None
    return answer


@each_case("kind", Kind)
@each_case("state", ClientState)
@each_case("adversary", BOTH)
def test_every_message_in_every_state(adversary: Adversary, state: ClientState, kind: Kind) -> None:
    if (adversary, state) == (SEMI, ClientState.CONFIRMED):
        assert state not in TRANSITIONS[adversary]
        return
    said = everything_said(adversary)
    cohort = five(adversary, phase_of(adversary, state))
    client = cohort.clients[0]
    if state is ClientState.ABORTED:
        client.abandon()
    assert client.state is state
    before = next((step for step in EXCHANGES[adversary] if step.after is state), None)
    journal, answer = copy.deepcopy(client._journal), client.receive(said[kind], NOW)
    step = TRANSITIONS[adversary].get(state, {}).get(kind)
    if step is not None:
        assert (client.state, answer) == (step.after, answer_to(adversary, step))
    elif state in (ClientState.NEW, ClientState.ABORTED):
        assert (client.state, answer, client._journal) == (state, None, journal)
    elif before is not None and kind is before.request:  # a copy of the last one
        (stored,) = [frame for i, frame in cohort.sent if i == 0 and frame[5] == before.reply]
        assert (client.state, answer) == (state, stored)
    elif kind is Kind.ABORT:
        assert (client.state, client.code, answer) == (
            ClientState.ABORTED,
            AbortCode.BELOW_MIN_SURVIVORS,
            None,
        )
    elif state is ClientState.DONE:
        assert (client.state, answer, client.result is not None) == (
            state,
            None,
            kind is Kind.RESULT,
        )
    else:
        aborted(client, answer, AbortCode.WRONG_STATE)


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_a_copy_is_answered_again_and_changes_nothing(adversary: Adversary, step: Exchange) -> None:
    cohort = five(adversary, step.phase)
    client, request = cohort.clients[0], cohort.request(0)
    answer = client.receive(request, NOW)
    assert answer is not None and client.state is step.after
    state = dict(vars(client))
    for now in (NOW, NOW - 10**6, NOW + 10**6):  # the answer was given in time
        assert client.receive(request, now) is answer
    assert {name: value is vars(client)[name] for name, value in state.items()} == dict.fromkeys(
        state, True
    )


@pytest.mark.parametrize("adversary", BOTH)
def test_an_older_message_again_ends_the_session(adversary: Adversary) -> None:
    for one, other in itertools.pairwise(EXCHANGES[adversary][:-1]):
        old, cohort = five(adversary, one.phase).request(0), five(adversary, other.phase)
        client = cohort.clients[0]
        client.receive(cohort.request(0), NOW)
        aborted(client, client.receive(old, NOW), AbortCode.WRONG_STATE)


@pytest.mark.parametrize("adversary", BOTH)
def test_after_the_end_there_is_a_result_once_or_an_abort(adversary: Adversary) -> None:
    cohort = five(adversary, ServerState.DONE)
    client = cohort.clients[0]
    assert client.receive(spoken(cohort, Kind.RESULT, b"\x01" + bytes(36)), NOW) is None
    assert client.receive(spoken(cohort, Kind.ABORT, b"\x00"), NOW) is None
    assert (client.state, client.result, client.code) == (ClientState.DONE, None, None)
    left = twin(client)
    assert left.receive(spoken(cohort, Kind.ABORT, bytes([AbortCode.CHECKSUM_WRONG])), NOW) is None
    assert (left.state, left.code) == (ClientState.ABORTED, AbortCode.CHECKSUM_WRONG)
    assert client.receive(cohort.request(0), NOW) is None
    found = client.result
    assert found is not None and found.survivors == 5
    assert (
        client.receive(spoken(cohort, Kind.RESULT, wire.encode_result(Result(4, bytes(32)))), NOW)
        is None
    )
    assert client.receive(spoken(cohort, Kind.ABORT, b"\x12"), NOW) is None
    assert (client.result, client.state, client.code) == (found, ClientState.DONE, None)
    assert cohort.server.outcome is not None
    alive, salt, total = (
        cohort.server.outcome.alive,
        cohort.server.outcome.salt,
        cohort.server.outcome.total,
    )
    assert found.digest == wire.result_digest(cohort.server._ctx2, alive, salt, total)


@pytest.mark.parametrize("adversary", BOTH)
def test_messages_of_other_sessions_and_senders_are_dropped(adversary: Adversary) -> None:
    for step in EXCHANGES[adversary]:
        cohort = five(adversary, step.phase)
        client, request = cohort.clients[0], cohort.request(0)
        for other in (bytes(32), bytes([request[8] ^ 1]) + request[9:40]):
            assert client.receive(request[:8] + other + request[40:], NOW) is None
        for sender in (0, 1, wire.UNLISTED):
            assert (
                client.receive(request[:40] + sender.to_bytes(4, "little") + request[44:], NOW)
                is None
            )
        for kind in Kind:
            assert client.receive(wire.frame(kind, bytes(32), wire.SERVER, b"\x01"), NOW) is None
        assert client.state is step.before
        assert client.receive(request, NOW) == answer_to(adversary, step)


@each_case("code", AbortCode)
@each_case("state", [ClientState.ADVERTISED, ClientState.SHARED, ClientState.MASKED])
def test_an_abort_ends_the_session_and_is_not_answered(state: ClientState, code: AbortCode) -> None:
    cohort = five(SEMI, phase_of(SEMI, state))
    client = cohort.clients[0]
    assert client.receive(spoken(cohort, Kind.ABORT, bytes([code])), NOW) is None
    assert (client.state, client.code) == (ClientState.ABORTED, code)
    assert client._secrets == client_module._Secrets()


# ---- bit flips and truncations ----

HEADER = (
    (["magic"] * 4)
    + ["version", "type", "reserved", "reserved"]
    + ["session"] * 32
    + ["sender"] * 4
    + ["length"] * 4
)
DROPPED, ANSWERED, SAME = "dropped", "answered", "answered as before"
Held = dict[str, set[Any]]
CALM: Held = {name: {DROPPED} for name in ("magic", "reserved", "session", "sender", "length")}
TURN: Held = {**CALM, "version": {AbortCode.VERSION}, "type": {DROPPED, AbortCode.WRONG_STATE}}
INVALID, MALFORMED = AbortCode.ROSTER_INVALID, AbortCode.MALFORMED
WHAT_MUST_HOLD: dict[tuple[Adversary, Kind], Held] = {
    # signed by the key that is pinned
    (SEMI, Kind.INVITE): {
        **CALM,
        "version": {DROPPED},
        "type": {DROPPED},
        "terms": {DROPPED},
        "signature": {DROPPED},
    },
    (ACTIVE, Kind.INVITE): {
        **CALM,
        "version": {DROPPED},
        "type": {DROPPED},
        "terms": {DROPPED},
        "signature": {DROPPED},
    },
    # not authenticated: a client of another roster, whose shares open nowhere (see below), or a
    # refusal
    (SEMI, Kind.ROSTER): (
        {
            **TURN,
            "n": {INVALID},
            "index": {ANSWERED, INVALID},
            "digest": {ANSWERED},
        }
        | {
            "mask key": {SAME, INVALID},
            "encryption key": {ANSWERED, INVALID},
            "commitment, nonce": {SAME},
        }
    ),
    (ACTIVE, Kind.ROSTER): {**TURN, "members": {MALFORMED}, "adverts": {INVALID}},
    # the edge is kept, the share is not counted; n = 5 bears one such neighbour
    (SEMI, Kind.INBOX): {**TURN, "present": {MALFORMED}, "sealed": {SAME}},
    (ACTIVE, Kind.INBOX): {**TURN, "present": {MALFORMED}, "sealed": {SAME}},
    # one less is min_survivors still; two make one bitmap with t signers in `active`
    (SEMI, Kind.SURVIVORS): {
        **TURN,
        "own": {AbortCode.OWN_BIT_DEAD},
        "others": {ANSWERED, MALFORMED},
    },
    (ACTIVE, Kind.SURVIVORS): {
        **TURN,
        "own": {AbortCode.OWN_BIT_DEAD},
        "others": {ANSWERED, MALFORMED},
    },
    # four of five are t
    (ACTIVE, Kind.CONFIRMATIONS): {**TURN, "signers": {MALFORMED}, "signatures": {SAME}},
}


def region(kind: Kind, adversary: Adversary, at: int, changed: bytes, frame: bytes) -> str:
    """Name the part of a message in which a byte is."""
    if at < len(HEADER):
        return HEADER[at]
    at -= len(HEADER)
    match kind:
        case Kind.INVITE:
            return "terms" if at < len(frame) - 48 - 64 else "signature"
        case Kind.ROSTER if adversary is ACTIVE:
            return "adverts" if at else "members"
        case Kind.ROSTER:
            places = ["n"] * 4 + ["index"] * 4 + ["digest"] * 32
            places += (["mask key"] * 32 + ["encryption key"] * 32 + ["commitment, nonce"] * 48) * 4
            return places[at]
        case Kind.INBOX:
            return "sealed" if at else "present"
        case Kind.SURVIVORS:
            return "own" if (changed[48] ^ frame[48]) == 1 else "others"
        case _:
            return "signatures" if at else "signers"


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_every_flip_of_a_bit(adversary: Adversary, step: Exchange) -> None:
    cohort = five(adversary, step.phase)
    base, frame = cohort.clients[0], cohort.request(0)
    plain, calm = twin(base).receive(frame, NOW), twin(base)
    found: Held = {}
    for at, changed in flips(frame):
        client = twin(base)
        answer = client.receive(changed, NOW)
        if client.state is ClientState.ABORTED:
            assert client.code is not None
            aborted(client, answer, client.code)
            what: Any = client.code
        elif answer is None:
            assert (client.state, calm.receive(changed, NOW)) == (base.state, None)
            what = DROPPED
        else:
            assert client.state is step.after and len(answer) == len(plain or b"")
            what = SAME if answer == plain else ANSWERED
        found.setdefault(region(step.request, adversary, at, changed, frame), set()).add(what)
    assert found == WHAT_MUST_HOLD[adversary, step.request]
    assert calm.receive(frame, NOW) == plain  # what was dropped has left no trace


@pytest.mark.parametrize("adversary", BOTH)
def test_every_flip_of_a_bit_at_the_end(adversary: Adversary) -> None:
    """A Result is an announcement: a changed one can be another, and is not that of the salt that
    is published."""
    cohort = five(adversary, ServerState.DONE)
    base, frame = cohort.clients[0], cohort.request(0)
    result = wire.decode_result(frame[48:])
    for at, changed in flips(frame):
        client = twin(base)
        assert client.receive(changed, NOW) is None and client.state is ClientState.DONE
        if at > 48:
            assert client.result is not None and client.result != result
        elif at != 4:
            assert client.result is None
    abort = spoken(cohort, Kind.ABORT, b"\x0c")
    for state in (ServerState.SHARE, ServerState.COLLECT, ServerState.UNMASK):
        base = five(adversary, state).clients[0]
        for at, changed in flips(abort):
            client = twin(base)
            client.receive(changed, NOW)
            ended = at in (4, 48) or (at == 5 and changed[5] < 12)
            assert client.state is (ClientState.ABORTED if ended else base.state)


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_every_truncation(adversary: Adversary, step: Exchange) -> None:
    cohort = five(adversary, step.phase)
    base, frame = cohort.clients[0], cohort.request(0)
    calm = twin(base)
    for size in range(len(frame)):
        assert calm.receive(frame[:size], NOW) is None
    for more in (b"\0", frame, bytes(10**6)):
        assert calm.receive(frame + more, NOW) is None
    assert calm.state is step.before
    assert calm.receive(frame, NOW) == answer_to(adversary, step)
    for body in (
        *(frame[48:size] for size in range(48, len(frame))),
        frame[48:] + b"\0",
        frame[48:] * 2,
        bytes(10**6),
    ):
        client = twin(base)
        answer = client.receive(reframed(frame, body), NOW)
        if step.request is Kind.INVITE:  # it is not that of the signature
            assert (answer, client.state) == (None, ClientState.NEW)
        elif (step.request, adversary) == (Kind.ROSTER, SEMI) and body == bytes(10**6):
            aborted(client, answer, INVALID)  # of no clients
        elif (step.request, adversary, body) == (Kind.ROSTER, ACTIVE, b"\0"):
            aborted(client, answer, INVALID)
        else:
            aborted(client, answer, MALFORMED)


@pytest.mark.parametrize("adversary", BOTH)
def test_another_version_is_refused_by_name(adversary: Adversary) -> None:
    cohort = five(adversary, ServerState.ADVERTISE)
    terms, _ = wire.split_invite(cohort.server.invite[48:])
    for version in (0, 2, 255):
        client = cohort.client(0)
        aborted(
            client,
            client.receive(invitation(cohort, terms, version=version), NOW),
            AbortCode.VERSION,
        )
    with pytest.raises(AssertionError):
        aborted(
            cohort.clients[0],
            cohort.clients[0].receive(invitation(cohort, terms), NOW),
            AbortCode.VERSION,
        )


# ---- Invite ----


def test_what_is_not_signed_by_the_server_of_the_plan_is_dropped() -> None:
    cohort = five(SEMI, ServerState.ADVERTISE)
    client, invite = cohort.clients[0], cohort.server.invite
    terms, signature = wire.split_invite(invite[48:])
    other = SigningKey(Secret(b"another server".ljust(32)))
    as_roster = bytearray(
        wire.frame(Kind.ROSTER, cohort.session, wire.SERVER, terms + bytes(64))[:48]
    )
    for forged in (
        invitation(cohort, terms, key=other),
        invite[:-64] + bytes(64),
        invite[:48] + terms + SERVER_KEY.sign(Label.CONFIRM, invite[:48], terms),
        # not by an honest server
        bytes(as_roster) + terms + SERVER_KEY.sign(Label.INVITE, bytes(as_roster), terms),
        reframed(invite, b""),
    ):
        assert client.receive(forged, NOW) is None
    assert client.state is ClientState.NEW
    assert client.receive(invite[:48] + terms + signature, NOW) is not None


@pytest.mark.parametrize(
    "changed",
    [
        {"min_honest": 4},
        {"corrupt": 2},
        {"max_corrupt": 0.21},
        {"min_clients": 6, "max_clients": 6},
        {"min_clients": 4, "max_clients": 4},
        {"max_neighbours": 3},
        {"max_length": 2},
        {"max_bits": 15},
        {"known": frozenset(map(bytes, range(5))), "least_known": 5},
    ],
)
@pytest.mark.parametrize("adversary", BOTH)
def test_the_policy_is_the_clients(adversary: Adversary, changed: dict[str, Any]) -> None:
    cohort = five(adversary, ServerState.ADVERTISE)
    bounds: dict[str, Any] = {
        "adversary": adversary,
        "min_honest": 3,
        "corrupt": 1,
        "max_corrupt": 0.2,
        "min_clients": 5,
        "max_clients": 5,
        "max_neighbours": 4,
        "max_length": 3,
        "max_bits": 16,
    }
    cohort.policy = ClientPolicy(**bounds)
    # all bounds are met exactly
    assert cohort.client(0).receive(cohort.server.invite, NOW) is not None
    cohort.policy, cohort.journals[1] = ClientPolicy(**bounds | changed), MemoryJournal()
    client = cohort.client(1, random=lambda _: pytest.fail("nothing may be drawn"))
    aborted(client, client.receive(cohort.server.invite, NOW), AbortCode.POLICY)
    assert cohort.journals[1] == MemoryJournal()


def test_another_profile_plan_or_allow_list_breaks_the_policy() -> None:
    semi, active = five(SEMI, ServerState.ADVERTISE), five(ACTIVE, ServerState.ADVERTISE)
    for asked, other in ((semi, active), (active, semi)):
        client = asked.client(0)
        aborted(client, client.receive(other.server.invite, NOW), AbortCode.POLICY)
    fewer = AllowList(key.public for key in active.identities[:4])
    for changed in ({"fingerprint": bytes(32)}, {"allow_list": fewer}):
        active.pinned = dataclasses.replace(five(ACTIVE, ServerState.ADVERTISE).pinned, **changed)
        client = active.client(0)
        aborted(client, client.receive(active.server.invite, NOW), AbortCode.POLICY)
    terms, _ = wire.split_invite(semi.server.invite[48:])
    client = semi.client(1)
    aborted(client, client.receive(invitation(semi, terms[:-1] + b"\x01"), NOW), AbortCode.POLICY)


def test_the_round_and_the_parameters_of_the_plan_are_pinned() -> None:
    cohort = five(SEMI, ServerState.ADVERTISE)  # its server invites to round 3
    asked = cohort.parameters
    for parameters, round, fits in (
        (asked, 3, True),
        (None, 3, True),
        (asked, 2, False),
        (None, 2, False),
        (None, 4, False),
        (dataclasses.replace(asked, length=4), 3, False),
        (dataclasses.replace(asked, max_dropout_ppm=0), 3, False),
    ):
        cohort.pinned = dataclasses.replace(cohort.pinned, parameters=parameters, round=round)
        journal = MemoryJournal()
        client = cohort.client(0, journal=journal)
        answer = client.receive(cohort.server.invite, NOW)
        if fits:
            assert client.state is ClientState.ADVERTISED
        else:
            aborted(client, answer, AbortCode.POLICY)
            # nothing was recorded for it
            assert (journal.sessions, journal.is_spent) == (set(), False)


@pytest.mark.parametrize("round", [-1, 2**32, 1.0, None])
def test_a_pinned_round_is_one_that_an_invite_can_name(round: object) -> None:
    with pytest.raises(InvalidInputError, match="round must be"):
        Pinned(SERVER_KEY.public, FINGERPRINT, round=round)  # type: ignore[arg-type]


@pytest.mark.parametrize("adversary", BOTH)
def test_what_a_verified_invite_says(adversary: Adversary) -> None:
    cohort = five(adversary, ServerState.ADVERTISE)
    known = {"server_key": SERVER_KEY.public, "fingerprint": FINGERPRINT}
    found = read_invite(cohort.server.invite, **known)
    assert found == (cohort.session, 3, NOW - 10, NOW + 1000, cohort.parameters)


def test_bytes_that_are_no_invite_of_the_plan_say_nothing() -> None:
    cohort = five(SEMI, ServerState.ADVERTISE)
    known = {"server_key": SERVER_KEY.public, "fingerprint": FINGERPRINT}
    frame = cohort.server.invite
    terms, _ = wire.split_invite(frame[48:])
    assert read_invite(invitation(cohort, terms), **known) is not None
    for other in (
        b"",
        frame[:-1],
        frame + b"0",
        # whichever bit is changed
        *(bytes([*frame[:i], frame[i] ^ 1, *frame[i + 1 :]]) for i in range(len(frame))),
        frame[:5] + bytes([Kind.ROSTER]) + frame[6:],
        invitation(cohort, terms, version=2),
        invitation(cohort, terms, key=SigningKey(Secret(bytes(32)))),
        invitation(cohort, b"\xff" * 8 + terms[8:]),  # terms that contradict each other
    ):
        assert read_invite(other, **known) is None
    assert read_invite(frame, server_key=SERVER_KEY.public, fingerprint=bytes(32)) is None
    with pytest.raises(InvalidInputError, match="an identity must"):
        read_invite(frame, server_key=bytes(32), fingerprint=FINGERPRINT)


def test_terms_that_are_signed_and_impossible() -> None:
    cohort = five(SEMI, ServerState.ADVERTISE)
    terms, _ = wire.split_invite(cohort.server.invite[48:])
    for start, value, code in (
        (0, bytes(8), AbortCode.POLICY),  # V = 0
        (0, b"\xff" * 8, AbortCode.POLICY),
        (8, b"\x01", AbortCode.POLICY),  # b = 1
        (8, b"\x41", AbortCode.POLICY),  # b = 65
        (9, b"\x00", MALFORMED),  # a ring of no neighbours
        (14, b"\x02", AbortCode.POLICY),  # a threshold in the complete graph
        (30, b"\x02", MALFORMED),  # no such profile
    ):
        changed = terms[:start] + value + terms[start + len(value) :]
        client = cohort.client(0)
        aborted(client, client.receive(invitation(cohort, changed), NOW), code)


@pytest.mark.parametrize("adversary", BOTH)
def test_a_session_has_its_time(adversary: Adversary) -> None:
    first, last = NOW - 10, NOW + 1000
    for now, fits in ((first - 1, False), (first, True), (last, True), (last + 1, False)):
        cohort = five(adversary, ServerState.ADVERTISE)
        client = cohort.clients[0]
        answer = client.receive(cohort.server.invite, now)
        assert client.state is (ClientState.ADVERTISED if fits else ClientState.ABORTED)
        if not fits:
            aborted(client, answer, AbortCode.EXPIRED)
    for step in EXCHANGES[adversary][1:]:
        cohort = five(adversary, step.phase)
        late = twin(cohort.clients[0])
        assert cohort.clients[0].receive(cohort.request(0), last) == answer_to(adversary, step)
        aborted(late, late.receive(cohort.request(0), last + 1), AbortCode.EXPIRED)


# ---- the journal ----


def test_a_session_is_entered_once() -> None:
    cohort = five(SEMI, ServerState.ADVERTISE)
    client, again = (
        cohort.client(0),
        cohort.client(0, random=lambda _: pytest.fail("nothing may be drawn")),
    )
    assert client.receive(cohort.server.invite, NOW) is not None
    aborted(again, again.receive(cohort.server.invite, NOW), AbortCode.SESSION_SEEN)


@pytest.mark.parametrize("adversary", BOTH)
def test_of_two_sessions_for_one_item_the_loser_gives_no_vector(adversary: Adversary) -> None:
    journal, drawn = MemoryJournal(), {}
    cohorts = []
    for seed in "ab":
        cohort = Cohort(
            5,
            adversary=adversary,
            max_dropout=0.0,
            parameters=five(adversary, ServerState.DONE).parameters,
        )
        cohort = Cohort(5, adversary=adversary, parameters=cohort.parameters, seed=seed)
        source = stream((seed, "client 0"))
        drawn[seed] = count = [0]

        def draw(
            size: int, source: Callable[[int], bytes] = source, count: list[int] = count
        ) -> bytes:
            count[0] += 1
            return source(size)

        cohort.journals[0] = journal
        cohort.clients[0] = cohort.client(0, random=draw)
        cohort.run(ServerState.COLLECT)
        cohorts.append(cohort)
    winner, loser = cohorts
    before = {seed: count[0] for seed, count in drawn.items()}
    answer = winner.clients[0].receive(winner.request(0), NOW)
    assert answer is not None and answer[5] == Kind.MASKED_INPUT
    aborted(loser.clients[0], loser.clients[0].receive(loser.request(0), NOW), AbortCode.ITEM_SPENT)
    assert {seed: count[0] for seed, count in drawn.items()} == before  # masking draws nothing
    assert journal.sessions == {winner.session, loser.session} and journal.is_spent
    for cohort in (winner, loser):
        server = cohort.run()
        assert server.outcome is not None
        np.testing.assert_array_equal(server.outcome.total, cohort.expected)
    assert loser.server.outcome is not None and loser.server.outcome.survivors == 4


class FailingJournal(MemoryJournal):
    def __init__(self, call: str, error: BaseException) -> None:
        super().__init__()
        self.call, self.error = call, error

    def begin(self, session: bytes, not_after: int) -> bool:
        if self.call == "begin":
            raise self.error
        return super().begin(session, not_after)

    def spend(self, session: bytes) -> bool:
        if self.call == "spend":
            raise self.error
        return super().spend(session)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), SystemExit(1)])
@pytest.mark.parametrize("call", ["begin", "spend"])
@pytest.mark.parametrize("adversary", BOTH)
def test_a_journal_that_fails_ends_the_session(
    adversary: Adversary, call: str, error: BaseException
) -> None:
    cohort = Cohort(5, adversary=adversary, parameters=five(adversary, ServerState.DONE).parameters)
    cohort.journals[0] = FailingJournal(call, error)
    cohort.clients[0] = client = cohort.client(0)
    if call == "spend":
        cohort.run(ServerState.COLLECT)
    secrets, request = remember(client), cohort.request(0)
    with pytest.raises(type(error)) as caught:
        client.receive(request, NOW)
    assert caught.value is error
    assert left_behind(error) == []  # the vector is not masked yet
    assert (client.state, client.code) == (ClientState.ABORTED, AbortCode.INTERNAL)
    assert client.receive(request, NOW) is None
    assert_wiped(client, secrets)


WEEK = 604_800


@pytest.mark.parametrize(
    ("not_before", "not_after", "max_seconds", "code"),
    [
        (NOW, NOW + WEEK, None, None),
        (NOW, NOW + WEEK + 1, None, AbortCode.POLICY),
        (NOW - WEEK, NOW, None, None),
        (NOW - WEEK - 1, NOW, None, AbortCode.POLICY),
        (0, NOW, None, AbortCode.POLICY),
        (NOW, NOW + 60, 60, None),
        (NOW, NOW + 61, 60, AbortCode.POLICY),
        (NOW, NOW + 2**32, 2**32, None),
        (NOW, 2**63 - 1, 2**32, AbortCode.POLICY),
        (NOW, 2**63, 2**32, AbortCode.POLICY),
        (NOW, 2**64 - 1, 2**32, AbortCode.POLICY),
        (2**64 - 1, 2**64 - 1, None, AbortCode.EXPIRED),
        (NOW + 1, NOW, None, AbortCode.EXPIRED),
    ],
)
def test_a_policy_bounds_how_long_a_session_lasts(
    not_before: int, not_after: int, max_seconds: int | None, code: AbortCode | None
) -> None:
    """Until not_after an Invite can be used; a journal, whose integers have 64 bits with a sign,
    never hears more."""
    kept: list[int] = []

    class Signed(MemoryJournal):
        def begin(self, session: bytes, not_after: int) -> bool:
            kept.append(np.array(not_after, np.int64)[()])
            return super().begin(session, not_after)

    cohort = Cohort(5, policy={} if max_seconds is None else {"max_seconds": max_seconds})
    terms = wire.encode_terms(
        cohort.server.terms._replace(not_before=not_before, not_after=not_after)
    )
    header = cohort.server.invite[: wire.HEADER.size]
    invite = header + terms + SERVER_KEY.sign(Label.INVITE, header, terms)
    client = cohort.client(0, journal=Signed())
    answer = client.receive(invite, NOW)
    assert answer is not None
    assert (client.code, answer[5]) == (code, Kind.ADVERTISE if code is None else Kind.ABORT)
    assert kept == ([not_after] if code is None else [])


def test_one_failure_is_not_the_end_of_the_cohort() -> None:
    for adversary in BOTH:
        cohort = Cohort(
            5, adversary=adversary, parameters=five(adversary, ServerState.DONE).parameters
        )
        cohort.clients[2]._contribution = _raises(OSError("gone"))
        cohort.run(ServerState.COLLECT)
        for i, frame in cohort.server.outgoing():
            with contextlib.suppress(OSError):
                cohort.server.receive(i, cohort.clients[int(i)].receive(frame, NOW) or b"")
        cohort.server.close_phase(NOW)
        server = cohort.run()
        assert server.outcome is not None and server.outcome.alive.tolist() == [
            True,
            True,
            False,
            True,
            True,
        ]
        np.testing.assert_array_equal(server.outcome.total, cohort.expected)


def _raises(error: BaseException) -> Callable[[Invite], Any]:
    def contribution(invite: Invite) -> Any:
        raise error

    return contribution


# ---- the contribution ----


def masked(
    vector: Any, *, length: int = 6, bits: int = 11
) -> tuple[Client, Callable[[], bytes | None]]:
    """Return a client with this contribution, and what asks for its masked vector."""
    parameters = propose(5, length=length, bits=bits, corrupt=1, max_dropout=0.2)
    cohort = Cohort(5, parameters=parameters)
    cohort.clients[0]._contribution = vector if callable(vector) else lambda _: vector
    cohort.run(ServerState.COLLECT)
    return cohort.clients[0], lambda: cohort.clients[0].receive(cohort.request(0), NOW)


PLAIN = [5, -3, 0, 1023, -1023, 1]
READ_ONLY = np.array(PLAIN)
READ_ONLY.setflags(write=False)
FITTING: dict[str, npt.NDArray[np.integer]] = {
    "int16": np.array(PLAIN, np.int16),
    "int32": np.array(PLAIN, np.int32),
    "int64": np.array(PLAIN),
    "big-endian": np.array(PLAIN, ">i4"),
    "every other": np.array([PLAIN, PLAIN]).T.ravel()[::2],
    "backwards": np.array(PLAIN[::-1])[::-1],
    "a column": np.asfortranarray(np.array([PLAIN, PLAIN]).T)[:, 1],
    "read-only": READ_ONLY,
    "unaligned": np.frombuffer(b"\0" + np.array(PLAIN).tobytes(), np.int64, offset=1),
}


@pytest.mark.parametrize("name", FITTING)
def test_any_array_of_integers_will_do(name: str) -> None:
    vector = FITTING[name]
    kept = vector.copy()
    _, ask = masked(vector)
    _, reference = masked(np.array(PLAIN))
    answer = ask()
    assert answer is not None and answer == reference()
    np.testing.assert_array_equal(vector, kept)


def test_unsigned_integers_will_do() -> None:
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        answers = [masked(np.array([5, 3, 0, 255, 2, 1], kind))[1]() for kind in (dtype, np.int64)]
        assert answers[0] == answers[1] is not None


@pytest.mark.parametrize(
    "vector",
    [
        PLAIN,
        np.array(PLAIN, np.float64),
        np.array([1, 0, 1, 1, 0, 1], bool),
        np.array(PLAIN, object),
        np.array(PLAIN, "m8[s]"),
        np.array(PLAIN)[:5],
        np.array([*PLAIN, 1]),
        np.array([PLAIN]),
        np.array(PLAIN)[:, None],
        np.array(3),
        np.array([], np.int64),
        None,
        *(np.array([*PLAIN[:5], most]) for most in (1024, -1024, 2**63 - 1, -(2**63))),
        np.array([*(0,) * 5, 2**64 - 1], np.uint64),
    ],
    ids=repr,
)
def test_another_contribution_ends_the_session_unspent(vector: Any) -> None:
    client, ask = masked(vector)
    secrets = remember(client)
    with pytest.raises(
        LocalProtocolError, match="of the contribution must be within|must be integers"
    ) as caught:
        ask()
    assert all(str(value) not in str(caught.value) for value in (1024, 2**63, 2**64 - 1))
    assert (client.state, client.code) == (ClientState.ABORTED, AbortCode.INTERNAL)
    assert not client._journal.is_spent  # type: ignore[attr-defined]
    assert ask() is None
    assert_wiped(client, secrets)


@pytest.mark.parametrize("error", [ValueError("no vector today"), KeyboardInterrupt()])
def test_a_contribution_that_fails_ends_the_session(error: BaseException) -> None:
    client, ask = masked(_raises(error))
    secrets = remember(client)
    with pytest.raises(type(error)) as caught:
        ask()
    assert caught.value is error
    assert (client.state, client.code) == (ClientState.ABORTED, AbortCode.INTERNAL)
    assert_wiped(client, secrets)


def test_the_contribution_is_asked_for_once_with_the_terms() -> None:
    asked: list[Invite] = []

    def contribution(invite: Invite) -> npt.NDArray[np.int64]:
        asked.append(invite)
        assert ask() is None  # no way in from here
        return np.array(PLAIN)

    client, ask = masked(contribution)
    answer = ask()
    assert answer is not None and ask() == answer
    assert asked == [client.invite] and asked[0].round == 3 and asked[0].fingerprint == FINGERPRINT


@pytest.mark.parametrize("failing", range(5))
def test_randomness_that_fails_ends_the_session(failing: int) -> None:
    for result in (OSError("no entropy"), b"short"):
        cohort = five(SEMI, ServerState.ADVERTISE)
        source, count = stream("source"), itertools.count()

        def draw(
            size: int, result: Any = result, source: Any = source, count: Iterator[int] = count
        ) -> bytes:
            if next(count) != failing:
                return bytes(source(size))
            if isinstance(result, OSError):
                raise result
            return bytes(result)

        cohort.clients[0] = client = cohort.client(0, random=draw)
        if failing == 2 and result == b"short":
            continue  # a nonce of another length makes an advert that the server refuses
        with contextlib.ExitStack() as stack:
            if failing < 4:
                stack.enter_context(pytest.raises((OSError, InvalidInputError)))
            cohort.run(ServerState.COLLECT)
        if failing < 4:
            assert (client.state, client.code) == (ClientState.ABORTED, AbortCode.INTERNAL)
            assert client._secrets == client_module._Secrets()
        else:
            assert client.state is ClientState.SHARED  # four draws are all


# ---- Roster ----


def sign_advert(cohort: Cohort, rank: int, advert: bytes, ctx: bytes | None = None) -> bytes:
    """Return an advert as the identity of that rank would sign it, in this session or another."""
    unsigned = advert[: wire.ADVERT_BYTES]
    return unsigned + cohort.identities[rank].sign(
        Label.ADVERTISE, ctx or cohort.server._ctx, unsigned
    )


def with_advert(cohort: Cohort, i: int, change: Callable[[bytes], bytes]) -> bytes:
    """Return the Roster of client 0 in which the advert of client i is another, and signed where it
    must be."""
    frame, advert = cohort.request(0), cohort.server._adverts[i]
    assert frame.count(advert) == 1
    changed = change(advert)
    if cohort.allow_list is not None and len(changed) == wire.ADVERT_BYTES:
        changed = sign_advert(cohort, i, changed)
    return frame.replace(advert, changed)


@each_case("point", BAD_POINTS, ids=lambda point: point.hex()[:8])
@each_case("start", [0, 32])
@each_case("adversary", BOTH)
def test_bad_points_are_refused(adversary: Adversary, start: int, point: bytes) -> None:
    cohort = five(adversary, ServerState.SHARE)
    frame = with_advert(
        cohort, 3, lambda advert: advert[:start] + point + advert[start + 32 : wire.ADVERT_BYTES]
    )
    aborted(cohort.clients[0], cohort.clients[0].receive(frame, NOW), INVALID)


@pytest.mark.parametrize("start", [0, 32])
@pytest.mark.parametrize("whose", [0, 1, 3])
@pytest.mark.parametrize("adversary", BOTH)
def test_no_key_occurs_twice(adversary: Adversary, whose: int, start: int) -> None:
    """Neither the client's own, nor another neighbour's, nor the other key of the same one."""
    for taken in (slice(0, 32), slice(32, 64)):
        cohort = five(adversary, ServerState.SHARE)
        if whose == 3 and taken.start == start:
            continue
        own, key = cohort.server._adverts[3], cohort.server._adverts[whose][taken]
        changed = own[:start] + key + own[start + 32 : wire.ADVERT_BYTES]
        frame = with_advert(cohort, 3, lambda _, changed=changed: changed)  # type: ignore[misc]
        aborted(cohort.clients[0], cohort.clients[0].receive(frame, NOW), INVALID)


def test_every_advert_is_signed_by_its_identity_for_this_session() -> None:
    def fresh() -> tuple[Cohort, Client]:
        cohort = five(ACTIVE, ServerState.SHARE)
        return cohort, cohort.clients[0]

    other_ctx = Cohort(5, adversary=ACTIVE, max_dropout=0.0, session=b"o" * 32).server._ctx
    for change in (
        lambda cohort, advert: sign_advert(cohort, 2, advert),
        lambda cohort, advert: sign_advert(cohort, 3, advert, other_ctx),
        lambda cohort, advert: advert[:112] + bytes(64),
        lambda cohort, advert: cohort.server._adverts[2][:112] + advert[112:],
        lambda cohort, advert: cohort.server._adverts[2],
    ):
        cohort, client = fresh()
        aborted(
            client,
            client.receive(with_advert(cohort, 3, lambda a, c=cohort, f=change: f(c, a)), NOW),
            INVALID,
        )  # type: ignore[misc]
    cohort, client = fresh()
    assert (
        client.receive(with_advert(cohort, 3, lambda advert: sign_advert(cohort, 3, advert)), NOW)
        is not None
    )


def test_the_own_advert_is_in_the_roster_as_it_was_sent() -> None:
    cohort = five(ACTIVE, ServerState.SHARE)
    # signed anew: a thief of the identity
    frame = with_advert(cohort, 0, lambda advert: advert[:96] + bytes(16))
    aborted(cohort.clients[0], cohort.clients[0].receive(frame, NOW), INVALID)
    cohort = Cohort(5, adversary=ACTIVE, identities=6, max_dropout=0.0)
    cohort.run(ServerState.SHARE)
    frame = cohort.request(0)
    assert frame[48] == 0b11111
    for members, adverts in (
        (0b111110, cohort.server._adverts),
        (0b111111, [*cohort.server._adverts, bytes(176)]),
    ):
        client = twin(cohort.clients[0])
        aborted(
            client,
            client.receive(reframed(frame, bytes([members]) + b"".join(adverts)), NOW),
            INVALID,
        )


def four_to_six() -> Parameters:
    return Parameters(
        adversary=SEMI,
        n_min=4,
        n_max=6,
        corrupt=1,
        max_dropout_ppm=0,
        min_survivors=4,
        ring_neighbours=0,
        ring_threshold=0,
        length=3,
        bits=16,
    )


@pytest.mark.parametrize("n", [0, 3, 4, 6, 7, 2**32 - 1])
def test_the_roster_has_a_size(n: int) -> None:
    cohort = Cohort(5, parameters=four_to_six(), dropped={"advertise": [4]} if n == 4 else {})
    cohort.run(ServerState.SHARE)
    client, frame = cohort.clients[0], cohort.request(0)
    adverts = b"".join(
        Cohort(1, parameters=four_to_six(), seed=1 + i)
        .clients[0]
        .receive(cohort.server.invite, NOW)[48:]  # type: ignore[index]
        for i in range(min(n, 8) - 1)
    )
    answer = client.receive(reframed(frame, n.to_bytes(4, "little") + frame[52:88] + adverts), NOW)
    if 4 <= n <= 6:
        assert (
            client.state is ClientState.SHARED
            and answer is not None
            and len(answer) == 48 + 56 * (n - 1)
        )
    else:
        aborted(client, answer, INVALID)


def test_a_ring_that_is_unsafe_for_the_real_roster_is_refused() -> None:
    small = dataclasses.replace(
        RING, n_min=9, n_max=20, min_survivors=7, corrupt=2, ring_threshold=2
    )
    cohort = Cohort(10, parameters=small, policy={"corrupt": 2})
    with pytest.raises(InvalidInputError, match="not safe"):
        small.check_roster(10)
    client, invite = cohort.clients[0], cohort.server.invite
    assert client.receive(invite, NOW) is not None
    body = (10).to_bytes(4, "little") + bytes(36) + bytes(112 * 6)
    aborted(client, client.receive(spoken(cohort, Kind.ROSTER, body), NOW), INVALID)


# ---- Inbox ----


def sealed_by(adversary: Adversary, dealer: int, holder: int, elements: list[int] | bytes) -> bytes:
    """Return what a client that lies seals for another: these elements, or bytes."""
    cohort = five(adversary, ServerState.SHARE)
    secret_key = cohort.clients[dealer]._secrets.encryption_key
    assert secret_key is not None
    adverts = [wire.decode_advert(advert, adversary) for advert in cohort.server._adverts]
    shared = secret_key.exchange(adverts[holder].encryption_key)
    up, _ = keys.share_keys(
        *(
            shared,
            cohort.server._ctx2,
            dealer,
            secret_key.public,
            holder,
            adverts[holder].encryption_key,
        )
    )
    data = (
        elements
        if isinstance(elements, bytes)
        else b"".join(e.to_bytes(4, "little") for e in elements)
    )
    return keys.seal(up, Secret(data))


def inbox(cohort: Cohort, changes: dict[int, bytes | None], holder: int = 0) -> bytes:
    """Return the Inbox of a client in which what some dealers sealed is another, or absent."""
    frame = cohort.request(holder)
    found = wire.decode_inbox(frame[48:], cohort.server._graph.neighbours)
    present, sealed = found.present.copy(), list(found.sealed)
    for slot, dealer in enumerate(cohort.server._graph.of(holder).tolist()):
        if dealer in changes:
            change = changes[dealer]
            present[slot], sealed[slot] = change is not None, change or b""
    return reframed(frame, wire.encode_inbox(Inbox(present, [piece for piece in sealed if piece])))


NONSENSE: dict[str, Callable[[Adversary], bytes]] = {
    "zeros": lambda _: bytes(56),
    "an element that is p": lambda adversary: sealed_by(adversary, 1, 0, [5] * 9 + [shamir.PRIME]),
    "an element of 32 bits": lambda adversary: sealed_by(adversary, 1, 0, [2**32 - 1] + [5] * 9),
    "for another": lambda adversary: sealed_by(adversary, 1, 2, [5] * 10),
    "of another": lambda adversary: sealed_by(adversary, 2, 0, [5] * 10),
    "reflected": lambda adversary: sealed_by(adversary, 0, 1, [5] * 10),
}


@pytest.mark.parametrize("name", NONSENSE)
@pytest.mark.parametrize("adversary", BOTH)
def test_what_does_not_open_keeps_its_edge_and_is_not_counted(
    adversary: Adversary, name: str
) -> None:
    """The masked vector is the same as if it had opened; its entry in Unmask is absent.
    Two such are too many here.
    """
    cohort, nonsense = five(adversary, ServerState.COLLECT), NONSENSE[name](adversary)
    plain = twin(cohort.clients[0]).receive(cohort.request(0), NOW)
    two = twin(cohort.clients[0])
    aborted(
        two, two.receive(inbox(cohort, {1: nonsense, 4: bytes(56)}), NOW), AbortCode.TOO_FEW_OPENED
    )
    assert not two._journal.is_spent  # type: ignore[attr-defined]
    cohort.to_client = lambda i, frame: inbox(cohort, {1: nonsense}) if i == 0 else frame
    cohort.step()
    assert cohort.sent[-5] == (0, plain)
    cohort.to_client = lambda _, frame: frame
    server = cohort.run()
    assert server.outcome is not None and server.outcome.survivors == 5
    np.testing.assert_array_equal(server.outcome.total, cohort.expected)
    (unmask,) = [frame for i, frame in cohort.sent if i == 0 and frame[5] == Kind.UNMASK]
    assert wire.decode_unmask(unmask[48:], 4).given.tolist() == [False, True, True, True]


def test_a_share_that_opens_is_counted_whatever_it_is() -> None:
    """So that the cases above are refused for what they are."""
    cohort = five(SEMI, ServerState.COLLECT)
    client, good = cohort.clients[0], sealed_by(SEMI, 1, 0, [5] * 10)
    assert client.receive(inbox(cohort, {1: good, 4: bytes(56)}), NOW) is not None
    assert client._opened.tolist() == [True, True, True, False]
    client = five(SEMI, ServerState.COLLECT).clients[0]
    client.receive(inbox(cohort, {1: sealed_by(SEMI, 1, 0, [5] * 9 + [shamir.PRIME - 1])}), NOW)
    assert client._opened.all()


@pytest.mark.parametrize("adversary", BOTH)
def test_an_inbox_below_the_threshold_is_refused_before_the_item_is_spent(
    adversary: Adversary,
) -> None:
    def spent(_: int) -> Any:
        pytest.fail("not yet")

    for absent in (range(1, 2), range(1, 3), range(1, 5)):
        cohort = five(adversary, ServerState.COLLECT)
        client = cohort.clients[0]
        client._contribution = spent if len(absent) > 1 else lambda _: np.zeros(3, int)
        answer = client.receive(inbox(cohort, dict.fromkeys(absent)), NOW)
        if len(absent) == 1:
            assert client.state is ClientState.MASKED
        else:
            aborted(client, answer, AbortCode.TOO_FEW_OPENED)
            assert not client._journal.is_spent  # type: ignore[attr-defined]


def test_active_wants_min_survivors_in_the_inbox() -> None:
    """t = 3 of five with C = 0, and min_survivors = 4."""
    parameters = dataclasses.replace(
        propose(5, length=3, bits=16, corrupt=0, max_dropout=0, adversary=ACTIVE)
    )
    parameters = dataclasses.replace(parameters, min_survivors=4)
    assert parameters.graph(5).threshold == 3
    for absent, fits in (([1], True), ([1, 2], False)):
        cohort = Cohort(5, adversary=ACTIVE, parameters=parameters, policy={"corrupt": 0})
        cohort.run(ServerState.COLLECT)
        client = cohort.clients[0]
        answer = client.receive(inbox(cohort, dict.fromkeys(absent)), NOW)
        if fits:
            assert client.state is ClientState.MASKED
        else:
            aborted(client, answer, AbortCode.TOO_FEW_OPENED)


def test_the_shares_of_a_dealer_at_a_wrong_point_open_nowhere() -> None:
    """Two ciphertexts of one dealer, swapped: each is for one pair."""
    cohort = five(SEMI, ServerState.SHARE)

    def swap(i: int, frame: bytes) -> bytes:
        body = frame[48:]
        return frame if i != 2 else reframed(frame, body[56:112] + body[:56] + body[112:])

    cohort.to_server = swap
    cohort.step()
    cohort.step()
    assert [client._opened.tolist() for client in cohort.clients[3:]] == [
        [True, True, True, False],  # client 2 is at distance 4 from client 3 ...
        [True, True, False, True],  # ... and at distance 3 from client 4: its slots 1 and 2
    ]
    assert (
        cohort.run().code is AbortCode.RECONSTRUCTION_FAILED
    )  # three holders of one dealer's secret: a bad one can do that


# ---- Survivors ----


def survivors(cohort: Cohort, alive: Iterable[int]) -> bytes:
    bits = np.zeros(cohort.n, np.bool_)
    bits[list(alive)] = True
    return spoken(cohort, Kind.SURVIVORS, wire.pack_bits(bits))


def at_survivors(
    adversary: Adversary, *, parameters: Parameters | None = None, **arguments: Any
) -> Cohort:
    state = ServerState.CONFIRM if adversary is ACTIVE else ServerState.UNMASK
    if parameters is None:
        return five(adversary, state)
    cohort = Cohort(parameters.n_max, adversary=adversary, parameters=parameters, **arguments)
    cohort.run(state)
    assert cohort.server.state is state
    return cohort


@pytest.mark.parametrize("adversary", BOTH)
@pytest.mark.parametrize(
    ("alive", "code"),
    [
        ([0, 1, 2, 3, 4], None),
        ([0, 1, 2, 3], None),
        ([1, 2, 3, 4], AbortCode.OWN_BIT_DEAD),
        ([], AbortCode.OWN_BIT_DEAD),
        ([0, 2, 3], AbortCode.BELOW_MIN_SURVIVORS),
        ([0], AbortCode.BELOW_MIN_SURVIVORS),
    ],
)
def test_what_a_survivor_checks(
    adversary: Adversary, alive: list[int], code: AbortCode | None
) -> None:
    cohort = at_survivors(adversary)
    client = cohort.clients[0]
    answer = client.receive(survivors(cohort, alive), NOW)
    if code is None:
        assert answer is not None and answer[5] == (
            Kind.CONFIRM if adversary is ACTIVE else Kind.UNMASK
        )
    else:
        aborted(client, answer, code)


@pytest.mark.parametrize("body", [b"", b"\x1f\0", b"\x3f", b"\x9f", b"\xff"])
@pytest.mark.parametrize("adversary", BOTH)
def test_a_bitmap_of_another_length_or_with_padding(adversary: Adversary, body: bytes) -> None:
    cohort = at_survivors(adversary)
    client = cohort.clients[0]
    aborted(client, client.receive(spoken(cohort, Kind.SURVIVORS, body), NOW), MALFORMED)


@pytest.mark.parametrize("adversary", BOTH)
def test_nobody_comes_back_to_life(adversary: Adversary) -> None:
    parameters = five(adversary, ServerState.DONE).parameters
    cohort = at_survivors(adversary, parameters=parameters, dropped={"share": [3]})
    client, other = cohort.clients[0], cohort.clients[1]
    aborted(client, client.receive(survivors(cohort, range(5)), NOW), AbortCode.REVIVED)
    assert other.receive(survivors(cohort, [0, 1, 2, 4]), NOW) is not None


@pytest.mark.parametrize("missing", range(5))
def test_exactly_t_holders_and_one_less(missing: int) -> None:
    """Oneself and six neighbours in a ring of ten hold shares; five of them are t."""
    parameters = dataclasses.replace(RING, ring_threshold=5, max_dropout_ppm=0, min_survivors=6)
    cohort = at_survivors(SEMI, parameters=parameters)
    client = cohort.clients[0]
    answer = client.receive(
        survivors(cohort, set(range(10)) - set(client._neighbours[:missing].tolist())), NOW
    )
    if missing <= 2:
        assert client.state is ClientState.DONE
    else:
        aborted(client, answer, AbortCode.BELOW_THRESHOLD)


@pytest.mark.parametrize("adversary", BOTH)
def test_a_neighbour_whose_shares_did_not_open_does_not_help(adversary: Adversary) -> None:
    """Four alive are t, but one of them is a ghost: its keys are of another roster."""
    cohort = five(adversary, ServerState.COLLECT)
    cohort.to_client = lambda i, frame: inbox(cohort, {1: bytes(56)}) if i == 0 else frame
    cohort.step()
    client = twin(cohort.clients[0])
    aborted(client, client.receive(survivors(cohort, [0, 1, 2, 3]), NOW), AbortCode.BELOW_THRESHOLD)
    assert cohort.clients[0].receive(survivors(cohort, [0, 2, 3, 4]), NOW) is not None


def test_active_counts_min_survivors_among_those_that_opened() -> None:
    parameters = propose(5, length=3, bits=16, corrupt=0, max_dropout=0, adversary=ACTIVE)
    parameters = dataclasses.replace(parameters, min_survivors=4)
    cohort = Cohort(5, adversary=ACTIVE, parameters=parameters, policy={"corrupt": 0})
    cohort.run(ServerState.COLLECT)
    cohort.to_client = lambda i, frame: inbox(cohort, {1: bytes(56)}) if i == 0 else frame
    cohort.step()
    client = twin(cohort.clients[0])
    aborted(
        client, client.receive(survivors(cohort, [0, 1, 2, 3]), NOW), AbortCode.BELOW_MIN_SURVIVORS
    )
    assert cohort.clients[0].receive(survivors(cohort, [0, 2, 3, 4]), NOW) is not None


def test_one_share_of_every_neighbour_never_both() -> None:
    """Of the alive that of b, of the dead that of the key."""
    cohort = five(SEMI, ServerState.UNMASK)
    client = cohort.clients[0]
    held, own = (np.array(part) for part in (client._secrets.held, client._secrets.own_share))
    answer = client.receive(survivors(cohort, [0, 1, 3, 4]), NOW)
    assert answer is not None
    unmask = wire.decode_unmask(answer[48:], 4)
    assert unmask.given.all()
    np.testing.assert_array_equal(unmask.own, own)
    expected = [held[0, :5], held[1, 5:], held[2, :5], held[3, :5]]  # client 2 is the one that died
    np.testing.assert_array_equal(unmask.shares, expected)
    assert all(
        held[slot, part].tobytes() not in answer
        for slot, part in enumerate((slice(5, 10), slice(0, 5), slice(5, 10)))
    )


# ---- Confirmations ----


def confirmations(cohort: Cohort, signatures: dict[int, bytes]) -> bytes:
    signers = np.zeros(cohort.n, np.bool_)
    signers[list(signatures)] = True
    ordered = [signatures[i] for i in sorted(signatures)]
    return spoken(
        cohort, Kind.CONFIRMATIONS, wire.encode_confirmations(Confirmations(signers, ordered))
    )


def sign_survivors(
    cohort: Cohort, i: int, alive: Iterable[int], ctx2: bytes | None = None
) -> bytes:
    bits = np.zeros(cohort.n, np.bool_)
    bits[list(alive)] = True
    return cohort.identities[i].sign(
        Label.CONFIRM, ctx2 or cohort.server._ctx2, wire.bitmap_digest(bits)
    )


def test_t_valid_confirmations_of_the_same_by_those_alive() -> None:
    """t = 4: oneself and three others. What is not valid is not counted, and does no harm."""
    everybody = range(5)
    cases: list[tuple[Callable[[Cohort], dict[int, bytes]], bool]] = [
        (lambda c: {i: sign_survivors(c, i, everybody) for i in (1, 2, 3)}, True),
        # oneself does not count twice
        (lambda c: {i: sign_survivors(c, i, everybody) for i in (0, 1, 2)}, False),
        (lambda c: {i: sign_survivors(c, i, everybody) for i in (1, 2)}, False),
        (
            lambda c: (
                {i: sign_survivors(c, i, everybody) for i in (1, 2, 3)}
                | {4: bytes(64), 0: bytes(64)}
            ),
            True,
        ),
        (
            lambda c: (
                {i: sign_survivors(c, i, everybody) for i in (1, 2)} | {3: bytes(64), 4: bytes(64)}
            ),
            False,
        ),
        (lambda c: {i: sign_survivors(c, i, [0, 1, 2, 3]) for i in (1, 2, 3, 4)}, False),
        (lambda c: {i: sign_survivors(c, i, everybody, bytes(32)) for i in (1, 2, 3, 4)}, False),
        (lambda c: {i: sign_survivors(c, 1, everybody) for i in (1, 2, 3, 4)}, False),
        (lambda c: {}, False),
    ]
    for make, fits in cases:
        cohort = five(ACTIVE, ServerState.UNMASK)
        client = cohort.clients[0]
        answer = client.receive(confirmations(cohort, make(cohort)), NOW)
        if fits:
            assert answer is not None and (client.state, answer[5]) == (
                ClientState.DONE,
                Kind.UNMASK,
            )
        else:
            aborted(client, answer, AbortCode.TOO_FEW_CONFIRMATIONS)


def test_the_dead_do_not_confirm() -> None:
    cohort = five(ACTIVE, ServerState.CONFIRM)
    alive = [0, 1, 2, 3]
    for signers, fits in (([1, 2, 4], False), ([1, 2, 3], True), ([1, 2, 3, 4], True)):
        client = twin(cohort.clients[0])
        client.receive(survivors(cohort, alive), NOW)
        answer = client.receive(
            confirmations(cohort, {i: sign_survivors(cohort, i, alive) for i in signers}),
            NOW,
        )
        if fits:
            assert client.state is ClientState.DONE
        else:
            aborted(client, answer, AbortCode.TOO_FEW_CONFIRMATIONS)


# ---- secrets ----


@dataclasses.dataclass
class Remembered:
    """The places where a client keeps its secrets, and what stands there."""

    arrays: list[npt.NDArray[np.uint32]]
    keys: list[ExchangeKey | Secret]
    contents: set[bytes]


def remember(client: Client) -> Remembered:
    mine = client._secrets
    arrays = [array for array in (mine.elements, mine.own_share, mine.held) if array is not None]
    secret_keys: list[ExchangeKey | Secret] = [*mine.unsealing]
    secret_keys += [key for key in (mine.mask_key, mine.encryption_key) if key is not None]
    pieces = [
        array.tobytes()[at : at + 20] for array in arrays for at in range(0, array.nbytes, 20)
    ]
    pieces += [bytes(key.reveal()) for key in mine.unsealing if len(key)]
    return Remembered(arrays, secret_keys, {piece for piece in pieces if any(piece)})


def assert_wiped(client: Client, secrets: Remembered) -> None:
    assert client._secrets == client_module._Secrets()
    assert client._identity is None
    assert not any(array.any() for array in secrets.arrays)
    for key in secrets.keys:
        assert (key._key if isinstance(key, ExchangeKey) else len(key) or None) is None
    assert not held_by(client, secrets.contents)


# the last is the caller's
NO_STATE = type | types.ModuleType | types.FunctionType | types.TracebackType


def held_by(client: Client, contents: set[bytes]) -> bool:
    """Tell whether any object that can be reached from a client holds one of these."""
    seen, queue = set(), [value for name, value in vars(client).items() if name != "_contribution"]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, NO_STATE):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray | memoryview | bytes | bytearray):
            data = bytes(thing) if isinstance(thing, bytes | bytearray) else thing.tobytes()
            if any(content in data for content in contents):
                return True
        elif isinstance(thing, Secret):
            queue.append(thing._buffer)
        else:
            queue += gc.get_referents(thing)
    return False


ENDS: dict[str, Callable[[Cohort, Client], object]] = {
    "abort": lambda cohort, client: client.receive(spoken(cohort, Kind.ABORT, b"\x0c"), NOW),
    "wrong state": lambda cohort, client: client.receive(
        spoken(cohort, Kind.RESULT, bytes(37)), NOW
    ),
    "malformed": lambda cohort, client: client.receive(reframed(cohort.request(0), b""), NOW),
    "expired": lambda cohort, client: client.receive(cohort.request(0), NOW + 10**6),
    "abandoned": lambda cohort, client: client.abandon(),
}


@each_case("end", ENDS)
@each_case(("adversary", "step"), [pair for pair in STEPS if pair[1].before is not ClientState.NEW])
def test_an_end_wipes_everything(adversary: Adversary, step: Exchange, end: str) -> None:
    cohort = five(adversary, step.phase)
    client = cohort.clients[0]
    secrets = remember(client)
    assert held_by(client, secrets.contents) and secrets.contents
    ENDS[end](cohort, client)
    assert client.state is ClientState.ABORTED
    assert_wiped(client, secrets)


@pytest.mark.parametrize("adversary", BOTH)
def test_the_last_answer_wipes_everything(adversary: Adversary) -> None:
    """What is left is the answer, in which some of the shares stand."""
    cohort = five(adversary, ServerState.UNMASK)
    client = cohort.clients[0]
    secrets, answer = remember(client), client.receive(cohort.request(0), NOW)
    assert answer is not None and client.state is ClientState.DONE
    secrets.contents = {content for content in secrets.contents if content not in answer}
    assert len(secrets.contents) == 4  # the shares of the keys of the four who are alive
    assert_wiped(client, secrets)


def test_secrets_go_as_soon_as_they_have_served() -> None:
    cohort = five(SEMI, ServerState.SHARE)
    client = cohort.clients[0]
    own = remember(client)
    client.receive(cohort.request(0), NOW)
    assert own.keys[1]._key is None and own.keys[0]._key is not None  # type: ignore[union-attr]
    cohort = five(SEMI, ServerState.COLLECT)
    client = cohort.clients[0]
    own = remember(client)
    client.receive(cohort.request(0), NOW)
    mine = client._secrets
    assert mine.elements is not None and not mine.elements.any()
    assert mine.mask_key is not None and mine.mask_key._key is None
    assert [len(key) for key in mine.unsealing] == [0] * 4
    assert (
        mine.held is not None
        and mine.held.any()
        and mine.own_share is not None
        and mine.own_share.any()
    )


def test_what_shares_are_made_of_is_wiped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coefficients, of which with one share of each secret all follows, and the shares of the
    others."""
    made: list[npt.NDArray[np.uint32]] = []

    def watched(
        function: Callable[..., npt.NDArray[np.uint32]],
    ) -> Callable[..., npt.NDArray[np.uint32]]:
        def call(*arguments: Any) -> npt.NDArray[np.uint32]:
            made.append(function(*arguments))
            assert made[-1].any()
            return made[-1]

        return call

    cohort = five(SEMI, ServerState.SHARE)
    for name in ("random_elements", "split"):
        monkeypatch.setattr(shamir, name, watched(getattr(shamir, name)))
    assert cohort.clients[0].receive(cohort.request(0), NOW) is not None
    assert [array.size for array in made] == [3 * 10, 5 * 10] and not any(
        array.any() for array in made
    )


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_clients_do_not_print_copy_or_pickle(adversary: Adversary, step: Exchange) -> None:
    client = five(adversary, step.phase).clients[0]
    contents = remember(client).contents
    for text in (
        repr(client),
        str(client),
        f"{client}",
        repr([client]),
        repr(client._secrets),
        repr(vars(client)),
    ):
        data = text.encode()
        for content in contents:
            words = np.frombuffer(content, "<u4").tolist()
            assert (
                content.hex() not in text
                and content not in data
                and repr(content)[2:-1] not in text
            )
            assert not any(str(word) in text for word in words if word > 10**6)
    for thing in (client, client._secrets):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(InvalidInputError, match="cannot be copied or pickled"):
                pickle.dumps(thing, protocol)
        for refused in (copy.copy, copy.deepcopy):
            with pytest.raises(InvalidInputError, match="cannot be copied or pickled"):
                refused(thing)


def test_the_callers_identity_goes_on() -> None:
    cohort = five(ACTIVE, ServerState.SHARE)
    cohort.clients[0].abandon()
    assert len(cohort.identities[0].sign(Label.CONFIRM, b"")) == 64


# ---- what masked vectors look like ----

# Bounds for fresh randomness; here it is fixed, so that a test passes always or never.
BEYOND = 2.0**-40


def masked_zeros(bits: int, length: int) -> npt.NDArray[np.uint64]:
    """Return what a client of three sends for a vector of zeros, without checksum entries."""
    cohort = Cohort(3, parameters=propose(3, length=length, bits=bits, corrupt=1, max_dropout=0))
    cohort.vectors[:] = 0
    cohort.run(ServerState.COLLECT)
    answer = cohort.clients[1].receive(cohort.request(1), NOW)
    assert answer is not None
    return unpack(answer[48:], length + cohort.parameters.checksum_entries, bits)[:length].astype(
        np.uint64
    )


def is_uniform(values: npt.NDArray[np.integer], bins: int) -> bool:
    """Tell whether chi-square is within bounds that a uniform sample leaves with a probability of
    2^-40 at a side."""
    counts = np.bincount(values.astype(np.int64), minlength=bins)
    statistic, freedom = ((counts - len(values) / bins) ** 2).sum() / (len(values) / bins), bins - 1
    return bool(stats.chi2.isf(1 - BEYOND, freedom) < statistic < stats.chi2.isf(BEYOND, freedom))


@pytest.mark.parametrize("bits", [8, 11, 16, 17, 64])
def test_masked_zeros_are_uniform(bits: int) -> None:
    vector = masked_zeros(bits, 40_000)
    for start in range(0, bits, 8):  # every byte, and the highest digits
        width = min(8, bits - start)
        assert is_uniform((vector >> np.uint64(start)) & np.uint64(2**width - 1), 2**width)
    if bits == 11:
        assert is_uniform(vector, 2048)


def test_what_is_not_uniform_is_seen() -> None:
    rng = np.random.default_rng(1)
    vector = rng.integers(0, 256, 40_000)
    assert is_uniform(vector, 256)
    assert not is_uniform(np.where(rng.random(40_000) < 0.1, 0, vector), 256)
    assert not is_uniform(np.arange(40_000) % 256, 256)  # nor what is too even


def linear_complexity(bits: list[int]) -> int:
    """Return the length of the shortest linear recurrence over GF(2) (Massey 1969); polynomials are
    integers."""
    current, previous, length, shift, recent = 1, 1, 0, 1, 0
    for at, bit in enumerate(bits):
        recent = recent << 1 | bit
        if (current & recent).bit_count() & 1:
            if 2 * length <= at:
                current, previous, length, shift = (
                    current ^ previous << shift,
                    current,
                    at + 1 - length,
                    1,
                )
                continue
            current ^= previous << shift
        shift += 1
    return length


def is_unpredictable(bits: list[int]) -> bool:
    """Tell whether the linear complexity of n bits is within 21 of n / 2.

    Of 2^n sequences 2^min(2n - 2L, 2L - 1) have the complexity L (Rueppel 1986), so that uniform
    bits are farther off with a probability below 2^-40 at either side.
    """
    return abs(linear_complexity(bits) - len(bits) / 2) <= 21


LOW_BITS = 41_000  # more than twice the state of a Mersenne Twister, 19,937 bits


def test_the_low_bits_of_masked_zeros_are_unpredictable() -> None:
    assert is_unpredictable((masked_zeros(16, LOW_BITS) & np.uint64(1)).tolist())


@pytest.mark.parametrize("masks", [1, 5])
def test_masks_of_a_mersenne_twister_are_caught(masks: int) -> None:
    """However many of them are added: the low bits of all obey one recurrence, and so does their
    sum."""
    streams = [
        np.random.MT19937(seed).random_raw(LOW_BITS).astype(np.uint16) for seed in range(masks)
    ]
    total = sum(streams[1:], streams[0])
    assert is_uniform(total & 0xFF, 256)  # which does not see it
    bits = (total & 1).tolist()
    assert linear_complexity(bits) == 19_937
    assert not is_unpredictable(bits)


def test_linear_complexity_of_short_sequences() -> None:
    """By exhaustion: how many sequences have which complexity is a theorem."""
    n = 9
    found = [linear_complexity(list(bits)) for bits in itertools.product((0, 1), repeat=n)]
    expected = [1] + [2 ** min(2 * n - 2 * length, 2 * length - 1) for length in range(1, n + 1)]
    assert np.bincount(found).tolist() == expected
    beyond = sum(
        2.0 ** (2 * length - 1 - LOW_BITS + 0)
        for length in range(LOW_BITS // 2 - 30, LOW_BITS // 2 - 21)
    )
    assert beyond + sum(2.0 ** (-2 * d) for d in range(22, 60)) < 2 * BEYOND


# ---- injected randomness ----


@pytest.mark.parametrize("adversary", BOTH)
def test_the_same_randomness_gives_the_same_bytes(adversary: Adversary) -> None:
    parameters = five(adversary, ServerState.DONE).parameters

    def said(seed: int) -> list[tuple[int, bytes]]:
        cohort = Cohort(5, adversary=adversary, parameters=parameters, seed=seed, session=b"s" * 32)
        cohort.run()
        return [*cohort.sent, *((int(i), frame) for i, frame in cohort.server.outgoing())]

    assert said(1) == said(1)
    assert not set(said(1)) & set(said(2))
