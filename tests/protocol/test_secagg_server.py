"""The server: what it takes and refuses, how phases close, whom it blames, and what a crash cannot
change."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
import pickle  # noqa: TID251 - to see that it is refused
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import each_case
from secagg_cohort import FINGERPRINT, NOW, SERVER_KEY, Cohort, five, flips, in_order, reframed

from fedtally.crypto import shamir
from fedtally.crypto.keys import Label, Secret
from fedtally.crypto.prg import Masking, lane
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.secagg import checkpoints, unmasking, wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.graph import Neighbourhood
from fedtally.secagg.messages import (
    EXCHANGES,
    AbortCode,
    ClientState,
    Exchange,
    Kind,
    LocalProtocolError,
    ServerState,
    Unmask,
)
from fedtally.secagg.packing import centred
from fedtally.secagg.params import Adversary, Parameters
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import Blame, Closing, Server

BOTH = list(Adversary)
SEMI, ACTIVE = Adversary.SEMI_HONEST, Adversary.ACTIVE
STEPS = [(adversary, step) for adversary in BOTH for step in EXCHANGES[adversary]]
STEP_IDS = [f"{adversary.value}-{step.reply.name}" for adversary, step in STEPS]
RING = propose(10, length=3, bits=16, corrupt=1, max_dropout=0.25)
BAD_POINTS = [bytes(32), bytes([1]) + bytes(31), (2**255 - 20).to_bytes(32, "little"), b"\xff" * 32]


def answer(cohort: Cohort, i: int) -> bytes:
    """Return what client i answers to what it is asked."""
    found = cohort.clients[i].receive(cohort.request(i), NOW)
    assert found is not None and found[5] != Kind.ABORT
    return found


def all_but_one(adversary: Adversary, state: ServerState) -> tuple[Cohort, bytes]:
    """Return a cohort in which everybody but client 0 has answered in this phase, and what that one
    will say."""
    cohort = five(adversary, state)
    for i in range(1, 5):
        assert cohort.server.receive(i, answer(cohort, i))
    return cohort, answer(cohort, 0)


def facts(server: Server) -> dict[str, Any]:
    """Return everything that a server knows, to compare."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.tobytes()
        if isinstance(value, dict):
            return {repr(name): plain(part) for name, part in value.items()}
        if isinstance(value, set):
            return sorted(value)
        return (
            plain(vars(value))
            if isinstance(value, unmasking.Unmasking | Neighbourhood | AllowList)
            else repr(value)
        )

    return {name: plain(value) for name, value in vars(server).items() if name != "_journal"}


def finish(cohort: Cohort) -> AbortCode | None:
    """Close the phase, in which everybody has said what they say, and go on to the end."""
    cohort.server.close_phase(NOW)
    return end(cohort)


def end(cohort: Cohort) -> AbortCode | None:
    """Go on to the end; see that a sum is that of the survivors."""
    server = cohort.run()
    if server.state is ServerState.DONE:
        assert server.outcome is not None
        np.testing.assert_array_equal(server.outcome.total, cohort.expected)
    return server.code


# ---- what it is made of ----


def arguments(**changed: Any) -> dict[str, Any]:
    return {
        "session": bytes(32),
        "signing_key": SERVER_KEY,
        "fingerprint": FINGERPRINT,
        "round": 0,
        "not_before": 5,
        "not_after": 5,
        "salt": bytes(32),
        "random": in_order,
        **changed,
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"session": bytes(31)},
        {"session": bytearray(32)},
        {"fingerprint": bytes(33)},
        {"fingerprint": None},
        {"salt": b""},
        {"not_before": 6},
        {"not_before": -1},
        {"not_after": 2**63},
        {"not_after": 5.5},
        {"round": -1},
        {"round": 2**32},
        {"allow_list": AllowList([bytes([7]) * 32])},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_session_has_the_arguments_it_needs(changed: dict[str, Any]) -> None:
    assert Server(RING, **arguments()).state is ServerState.ADVERTISE
    with pytest.raises(InvalidInputError, match=next(iter(changed))):
        Server(RING, **arguments(**changed))


def test_active_needs_an_allow_list() -> None:
    with pytest.raises(InvalidInputError, match="allow_list"):
        Server(five(ACTIVE, ServerState.DONE).parameters, **arguments())


def test_what_can_be_read_off() -> None:
    server = five(SEMI, ServerState.ADVERTISE).server
    assert (server.session, server.clients, list(server.outgoing())) == (
        server.invite[8:40],
        (),
        [],
    )
    assert five(SEMI, ServerState.SHARE).server.clients == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("name", [None, 1.5, (1, 2), b"client", True, [], np.int64(3)], ids=repr)
def test_clients_have_names_that_a_checkpoint_can_hold(name: Any) -> None:
    cohort = five(SEMI, ServerState.ADVERTISE)
    said = answer(cohort, 0)
    with pytest.raises(LocalProtocolError, match="int or a str"):
        cohort.server.receive(name, said)
    assert cohort.server.receive("name", said)


# ---- the order of messages ----


def everything_said(adversary: Adversary) -> dict[Kind, bytes]:
    """Return one message of every type, as it would come from client 0 in this session."""
    done = five(adversary, ServerState.DONE)
    sender = done.clients[0]._sender
    said = {kind: wire.frame(kind, done.session, sender, b"\x01") for kind in Kind}
    for step in EXCHANGES[adversary]:
        said[step.reply] = all_but_one(adversary, step.phase)[1]
        request = five(adversary, step.phase).request(0)
        said[step.request] = wire.frame(step.request, done.session, sender, request[48:])
    return said


@each_case("kind", Kind)
@each_case("state", ServerState)
@each_case("adversary", BOTH)
def test_every_message_in_every_state(adversary: Adversary, state: ServerState, kind: Kind) -> None:
    if (adversary, state) == (SEMI, ServerState.CONFIRM):
        assert all(step.phase is not state for step in EXCHANGES[adversary])
        return
    if state is ServerState.ABORTED:
        cohort = five(adversary, ServerState.COLLECT)
        cohort.server.abort()
    elif state is ServerState.DONE:
        cohort = five(adversary, state)
    else:
        cohort, _ = all_but_one(adversary, state)
    server, before = cohort.server, facts(cohort.server)
    expected = next((step.reply for step in EXCHANGES[adversary] if step.phase is state), None)
    taken = server.receive(0, everything_said(adversary)[kind])
    if kind is expected:
        assert taken and facts(server) != before
        assert server.can_close().answered == 5
    elif kind is Kind.ABORT and state not in (
        ServerState.ADVERTISE,
        ServerState.DONE,
        ServerState.ABORTED,
    ):
        assert taken and server.can_close()[2:] == (4, 4)
        assert not server.receive(0, everything_said(adversary)[expected])  # type: ignore[index]
    else:
        assert not taken and facts(server) == before
    assert server.state is state


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_duplicates_late_messages_and_strangers_change_nothing(
    adversary: Adversary, step: Exchange
) -> None:
    cohort, said = all_but_one(adversary, step.phase)
    server = cohort.server
    before = facts(server)
    if step.phase is not ServerState.ADVERTISE:
        assert (
            not server.receive(1, said)
            and not server.receive("0", said)
            and not server.receive(9, said)
        )
        assert facts(server) == before
    assert server.receive(0, said)
    before = facts(server)
    assert not server.receive(0, said) and facts(server) == before
    for other in (None, bytearray(said), said.hex(), 0):
        assert not server.receive(0, other)  # type: ignore[arg-type]
    cohort, said = all_but_one(adversary, step.phase)
    late = cohort.server  # for which client 0 is too late
    late.close_phase(NOW)
    before = facts(late)
    assert not late.receive(0, said) and facts(late) == before


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_messages_of_another_session_are_dropped(adversary: Adversary, step: Exchange) -> None:
    cohort, said = all_but_one(adversary, step.phase)
    before = facts(cohort.server)
    assert not cohort.server.receive(0, said[:8] + bytes(32) + said[40:])
    assert facts(cohort.server) == before


# ---- bit flips and truncations ----


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_every_truncation(adversary: Adversary, step: Exchange) -> None:
    cohort, said = all_but_one(adversary, step.phase)
    before, body = facts(cohort.server), said[48:]
    for size in range(len(said)):
        assert not cohort.server.receive(0, said[:size])
    for other in (
        *(body[:size] for size in range(len(body))),
        body + b"\0",
        body * 2,
        bytes(10**6),
    ):
        assert not cohort.server.receive(0, reframed(said, other))
    for length in (0, len(body) - 1, len(body) + 1, 2**32 - 1):
        assert not cohort.server.receive(0, said[:44] + length.to_bytes(4, "little") + body)
    assert not cohort.server.receive(0, said + b"\0")
    assert facts(cohort.server) == before
    assert cohort.server.receive(0, said)
    assert finish(cohort) is None


AUTHENTICATED = [(ACTIVE, Kind.ADVERTISE), (ACTIVE, Kind.CONFIRM)]


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_every_flip_of_a_bit_is_refused_or_leads_to_an_exact_sum_or_an_end(
    adversary: Adversary, step: Exchange
) -> None:
    """In the header and in what is signed all are refused, and leave no trace; one bit of every
    other byte is followed.

    A masked vector is the exception: nobody but its client knows what it should be. Its
    checksum entries are watched.
    """
    cohort, said = all_but_one(adversary, step.phase)
    before, taken = facts(cohort.server), []
    for number, (at, changed) in enumerate(flips(said)):
        fork = (
            cohort.fork() if at >= 48 and (adversary, step.reply) not in AUTHENTICATED else cohort
        )
        if fork.server.receive(0, changed):
            assert fork is not cohort
            if number % 9 < 2:  # every byte, and every bit of some
                taken.append((at, changed, fork))
    assert facts(cohort.server) == before
    if (adversary, step.reply) in AUTHENTICATED:
        assert not taken
    codes: list[AbortCode | None] = []
    for at, changed, fork in taken:
        if step.reply is Kind.MASKED_INPUT:
            check_changed_vector(fork, at, changed[at] ^ said[at])
        else:
            codes.append(finish(fork))
    may: dict[Kind, set[AbortCode | None]] = {
        Kind.ADVERTISE: {None, AbortCode.RECONSTRUCTION_FAILED, AbortCode.CHECKSUM_WRONG},
        Kind.SHARES: {None},  # each is one share less, of which there is one to spare
        Kind.UNMASK: {None, AbortCode.RECONSTRUCTION_FAILED},
    }
    assert set(codes) == (
        set() if (adversary, step.reply) in AUTHENTICATED else may.get(step.reply, set())
    )
    assert cohort.server.receive(0, said)
    assert finish(cohort) is None


def check_changed_vector(cohort: Cohort, at: int, flip: int) -> None:
    """A flip in a lane ends the round; one in another entry changes that entry, by what was
    flipped."""
    cohort.server.close_phase(NOW)
    server = cohort.run()
    entry, high = divmod(at - 48, 2)
    if entry >= cohort.parameters.length:
        assert server.code is AbortCode.CHECKSUM_WRONG
        return
    assert server.outcome is not None
    gap = server.outcome.total - cohort.expected
    assert np.flatnonzero(gap).tolist() == [entry]
    assert int(abs(gap[entry])) in (flip << 8 * high, 2**16 - (flip << 8 * high))


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused(version: int) -> None:
    for adversary, step in STEPS:
        cohort, said = all_but_one(adversary, step.phase)
        assert not cohort.server.receive(0, said[:4] + bytes([version]) + said[5:])


# ---- Advertise ----


def advertise(
    i: int, adversary: Adversary = SEMI, change: Callable[[bytes], bytes] = bytes
) -> tuple[Cohort, bytes]:
    """Return a cohort of which 1 ..
    4 have advertised, and an Advertise of client i, signed, of other keys.
    """
    cohort, said = all_but_one(adversary, ServerState.ADVERTISE)
    body = change(said[48 : 48 + wire.ADVERT_BYTES])
    if adversary is ACTIVE:
        body += cohort.identities[i].sign(Label.ADVERTISE, cohort.server._ctx, body)
        said = said[:40] + i.to_bytes(4, "little") + said[44:]
    return cohort, said[:48] + body


@pytest.mark.parametrize("start", [0, 32])
@pytest.mark.parametrize("adversary", BOTH)
def test_bad_points_and_points_that_occur_twice_are_refused(
    adversary: Adversary, start: int
) -> None:
    cohort, _ = all_but_one(adversary, ServerState.ADVERTISE)
    taken = [
        advert[part] for advert in cohort.server._adverts for part in (slice(0, 32), slice(32, 64))
    ]
    assert len(taken) == 8
    for point in (*BAD_POINTS, *taken):
        cohort, said = advertise(
            0, adversary, lambda body, p=point: body[:start] + p + body[start + 32 :]
        )  # type: ignore[misc]
        before = facts(cohort.server)
        assert not cohort.server.receive(0, said) and facts(cohort.server) == before
    cohort, said = advertise(0, adversary, lambda body: body[:32] * 2 + body[64:])
    assert not cohort.server.receive(0, said)
    cohort, said = advertise(0, adversary)
    assert cohort.server.receive(0, said)
    assert not cohort.server.receive("another", said)  # two clients with one key


def test_identities_advertise_once_and_only_their_own_keys() -> None:
    cohort, said = advertise(1, ACTIVE)
    assert not cohort.server.receive(0, said)  # the identity is in the roster
    cohort, said = advertise(0, ACTIVE)
    for sender in (1, 5, wire.UNLISTED, wire.SERVER):
        assert not cohort.server.receive(0, said[:40] + sender.to_bytes(4, "little") + said[44:])
    assert not cohort.server.receive(0, said[:-64] + bytes(64))
    other = Cohort(5, adversary=ACTIVE, parameters=cohort.parameters, session=b"o" * 32).server._ctx
    unsigned = said[48:-64]
    for key, ctx in ((cohort.identities[1], cohort.server._ctx), (cohort.identities[0], other)):
        assert not cohort.server.receive(0, said[:-64] + key.sign(Label.ADVERTISE, ctx, unsigned))
    assert cohort.server.receive(0, said)


def test_in_semi_honest_nobody_has_an_index_before_the_roster() -> None:
    cohort, said = advertise(0)
    for sender in (0, 1, wire.SERVER):
        assert not cohort.server.receive(0, said[:40] + sender.to_bytes(4, "little") + said[44:])
    assert cohort.server.receive(0, said)


def four_to_five(adversary: Adversary) -> Parameters:
    return dataclasses.replace(
        five(adversary, ServerState.DONE).parameters,
        n_min=4,
        n_max=5,
        corrupt=1 if adversary is SEMI else 0,
    )


@pytest.mark.parametrize("adversary", BOTH)
@pytest.mark.parametrize("n", range(6))
def test_a_roster_has_a_size(adversary: Adversary, n: int) -> None:
    cohort = Cohort(
        6,
        adversary=adversary,
        parameters=four_to_five(adversary),
        policy={"corrupt": 0},
        dropped={"advertise": range(n, 6)},
    )
    cohort.phase()
    assert cohort.server.can_close() == Closing(
        None if n > 3 else AbortCode.TOO_FEW_CLIENTS, (), n, 5
    )
    assert finish(cohort) is (None if n > 3 else AbortCode.TOO_FEW_CLIENTS)
    if n < 4:
        frames = dict(cohort.server.outgoing())
        assert list(frames) == list(range(n))
        assert {frame[5:6] + frame[48:] for frame in frames.values()} <= {bytes([Kind.ABORT, 15])}


@pytest.mark.parametrize("adversary", BOTH)
def test_a_full_roster_takes_nobody_more(adversary: Adversary) -> None:
    cohort = Cohort(
        6, adversary=adversary, parameters=four_to_five(adversary), policy={"corrupt": 0}
    )
    said = [client.receive(cohort.server.invite, NOW) for client in cohort.clients]
    assert [cohort.server.receive(i, frame or b"") for i, frame in enumerate(said)] == [
        True
    ] * 5 + [False]


def test_a_ring_that_is_not_safe_for_who_came_is_not_begun() -> None:
    small = dataclasses.replace(RING, n_min=9, n_max=20, min_survivors=7, corrupt=2)
    cohort = Cohort(10, parameters=small, policy={"corrupt": 2})
    cohort.step()
    assert cohort.server.code is AbortCode.TOO_FEW_CLIENTS


# ---- MaskedInput and Unmask ----


def test_bits_without_an_entry_must_be_zero_in_a_vector() -> None:
    """Eleven entries of 11 bits: two bits of the plane of 2 have none, and five of that of 1."""
    cohort = Cohort(5, parameters=propose(5, length=5, bits=11, corrupt=1, max_dropout=0.2))
    cohort.run(ServerState.COLLECT)
    said = answer(cohort, 0)
    assert len(said) == 48 + 11 + 3 + 2
    before = facts(cohort.server)
    for at, bit in ((-3, 6), (-3, 7), (-1, 3), (-1, 7)):
        changed = bytearray(said)
        changed[at] ^= 1 << bit
        assert not cohort.server.receive(0, bytes(changed)) and facts(cohort.server) == before
    assert cohort.server.receive(0, said)


def unmask_of(frame: bytes, neighbours: int) -> Unmask:
    return wire.decode_unmask(frame[48:], neighbours)


def test_shares_of_those_who_did_not_share_are_refused() -> None:
    cohort = Cohort(5, max_dropout=0.2, dropped={"share": [3]})
    cohort.run(ServerState.UNMASK)
    said = answer(cohort, 0)
    found = unmask_of(said, 4)
    assert found.given.tolist() == [True, True, False, True]
    more = found._replace(given=np.ones(4, np.bool_), shares=np.ones((4, 5), np.uint32))
    assert not cohort.server.receive(0, reframed(said, wire.encode_unmask(more)))
    assert cohort.server.receive(0, said)


def test_signatures_of_another_bitmap_or_roster_are_refused() -> None:
    cohort, said = all_but_one(ACTIVE, ServerState.CONFIRM)
    other = wire.bitmap_digest(np.array([True, True, True, True, False]))
    own = wire.bitmap_digest(np.ones(5, np.bool_))
    key, ctx2 = cohort.identities[0], cohort.server._ctx2
    for signature in (
        key.sign(Label.CONFIRM, ctx2, other),
        key.sign(Label.CONFIRM, bytes(32), own),
        key.sign(Label.ADVERTISE, ctx2, own),
        cohort.identities[1].sign(Label.CONFIRM, ctx2, own),
    ):
        assert not cohort.server.receive(0, said[:48] + signature)
    assert said[48:] == key.sign(Label.CONFIRM, ctx2, own)
    assert cohort.server.receive(0, said)


# ---- closing a phase ----


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_what_closing_would_do(adversary: Adversary, step: Exchange) -> None:
    """Four of five are needed in every phase, five in the first one."""
    needed = 5 if step.phase is ServerState.ADVERTISE else 4
    code = {
        ServerState.ADVERTISE: AbortCode.TOO_FEW_CLIENTS,
        ServerState.SHARE: AbortCode.TOO_FEW_CLIENTS,
        ServerState.COLLECT: AbortCode.BELOW_MIN_SURVIVORS,
        ServerState.CONFIRM: AbortCode.TOO_FEW_CONFIRMATIONS,
        ServerState.UNMASK: AbortCode.RECONSTRUCTION_FAILED,
    }[step.phase]
    cohort = five(adversary, step.phase)
    for answered in range(6):
        closing, fork = cohort.server.can_close(), cohort.fork()
        assert closing.code is (None if answered >= needed else code)
        assert (closing.answered, closing.asked) == (answered, 5)
        short = tuple(range(5)) if closing.code is AbortCode.RECONSTRUCTION_FAILED else ()
        assert closing.short == short
        assert facts(fork.server) == facts(cohort.server)
        fork.server.close_phase(NOW)
        assert (fork.server.state is ServerState.ABORTED, fork.server.code) == (
            closing.code is not None,
            closing.code,
        )
        if answered < 5:
            assert cohort.server.receive(answered, answer(cohort, answered))


@pytest.mark.parametrize("sharers", [5, 6])
def test_t_clients_must_share_even_where_fewer_may_survive(sharers: int) -> None:
    """Ten in the complete graph, C = 1: t = 6, and min_survivors = 4."""
    parameters = dataclasses.replace(RING, ring_neighbours=0, ring_threshold=0, min_survivors=4)
    cohort = Cohort(10, parameters=parameters, dropped={"share": range(sharers, 10)})
    assert cohort.run(ServerState.COLLECT).code is (
        None if sharers == 6 else AbortCode.TOO_FEW_CLIENTS
    )


def test_closing_counts_those_who_still_can() -> None:
    cohort = Cohort(10, parameters=RING, dropped={"share": [0]})
    cohort.run(ServerState.COLLECT)
    assert cohort.server.can_close()[2:] == (0, 9)
    assert cohort.server.receive(1, wire.frame(Kind.ABORT, cohort.session, 1, b"\x12"))
    assert cohort.server.can_close()[2:] == (0, 8)
    for i in range(2, 10):
        cohort.server.receive(i, answer(cohort, i))
    assert cohort.server.can_close()[2:] == (8, 8)
    cohort.server.close_phase(NOW)
    assert cohort.server.can_close()[2:] == (0, 8)


def test_an_abort_is_an_abort_whatever_its_code_if_it_has_one() -> None:
    cohort = five(SEMI, ServerState.SHARE)
    for body in (b"", b"\0", b"\x14", b"\x0c\x0c"):
        assert not cohort.server.receive(0, wire.frame(Kind.ABORT, cohort.session, 0, body))
    assert not cohort.server.receive(0, wire.frame(Kind.ABORT, cohort.session, 1, b"\x08"))
    assert cohort.server.receive(0, wire.frame(Kind.ABORT, cohort.session, wire.UNLISTED, b"\x08"))
    assert finish(cohort) is AbortCode.TOO_FEW_CLIENTS


def test_who_is_short_of_holders_is_named() -> None:
    """Three of six neighbours of one client do not send a vector: four holders, of which t = 5 are
    needed."""
    parameters = dataclasses.replace(RING, ring_threshold=5, min_survivors=6, max_dropout_ppm=0)
    for missing in (2, 3):
        cohort = Cohort(10, parameters=parameters)
        cohort.run(ServerState.COLLECT)
        graph = cohort.server._graph
        gone = set(graph.of(4)[:missing].tolist())
        for i in sorted(set(range(10)) - gone):
            assert cohort.server.receive(i, answer(cohort, i))
        alive = np.array([i not in gone for i in range(10)])
        holders = [int(alive[graph.of(i)].sum() + alive[i]) for i in range(10)]
        short = tuple(i for i in range(10) if holders[i] < 5)
        assert holders[4] == 7 - missing and (4 in short) == (missing == 3)
        closing = cohort.server.can_close()
        assert closing.short == short and closing.code is (
            AbortCode.BELOW_THRESHOLD if short else None
        )
        assert finish(cohort) is closing.code


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_the_session_ends_at_its_time(adversary: Adversary, step: Exchange) -> None:
    cohort, said = all_but_one(adversary, step.phase)
    cohort.server.receive(0, said)
    fork = cohort.fork()
    cohort.server.close_phase(NOW + 1000)
    assert cohort.server.code is None
    fork.server.close_phase(NOW + 1001)
    assert (fork.server.state, fork.server.code) == (ServerState.ABORTED, AbortCode.EXPIRED)


def test_what_ends_ends_once() -> None:
    done, ended = five(SEMI, ServerState.DONE).server, five(SEMI, ServerState.COLLECT).server
    ended.abort()
    assert (ended.state, ended.code) == (ServerState.ABORTED, AbortCode.INTERNAL)
    frames = dict(ended.outgoing())
    assert list(frames) == [0, 1, 2, 3, 4] and frames[0][48:] == b"\x12"
    for server in (done, ended):
        for call in (server.abort, server.can_close, lambda server=server: server.close_phase(NOW)):
            with pytest.raises(LocalProtocolError, match="the session has ended"):
                call()


def test_an_abort_reaches_the_clients() -> None:
    cohort = five(SEMI, ServerState.COLLECT)
    cohort.server.abort()
    for i, frame in cohort.server.outgoing():
        assert cohort.clients[int(i)].receive(frame, NOW) is None
    assert {(client.state, client.code) for client in cohort.clients} == {
        (ClientState.ABORTED, AbortCode.INTERNAL)
    }


def test_a_failure_while_closing_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort, said = all_but_one(SEMI, ServerState.UNMASK)
    cohort.server.receive(0, said)
    monkeypatch.setattr(unmasking.Unmasking, "open", _raises(MemoryError()))
    with pytest.raises(MemoryError):
        cohort.server.close_phase(NOW)
    assert (cohort.server.state, cohort.server.code) == (ServerState.ABORTED, AbortCode.INTERNAL)
    assert cohort.server.outcome is None


def _raises(error: BaseException) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


# ---- wrong shares ----


def spoil(cohort: Cohort, owner: int, holders: Iterable[int]) -> Callable[[int, bytes], bytes]:
    """Return a network in which these holders give a wrong share of one owner's secret."""
    liars, k = set(holders), cohort.server._graph.neighbours

    def change(i: int, frame: bytes) -> bytes:
        if i not in liars or frame[5] != Kind.UNMASK:
            return frame
        unmask = unmask_of(frame, k)
        if i == owner:
            unmask.own[2] = (unmask.own[2] + 1) % shamir.PRIME
        else:
            slot = cohort.server._graph.of(i).tolist().index(owner)
            unmask.shares[int(unmask.given[:slot].sum()), 4] ^= 1
        return reframed(frame, wire.encode_unmask(unmask))

    return change


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("wrong", range(5))
@pytest.mark.parametrize("adversary", BOTH)
def test_wrong_shares_are_corrected_and_their_pairs_named(
    adversary: Adversary, wrong: int, dead: bool
) -> None:
    """t = 7 of 12 holders, or of 11 where the owner is dead: two can be wrong, and three are too
    many.

    Client 6 is at x = 1: where one of the first t shares is wrong, all of them are looked at.
    """
    parameters = dataclasses.replace(
        propose(12, length=3, bits=16, corrupt=1, max_dropout=0, adversary=adversary),
        min_survivors=7,
        ring_neighbours=0,
        ring_threshold=0,
    )
    cohort = Cohort(
        12, adversary=adversary, parameters=parameters, dropped={"mask": [5]} if dead else {}
    )
    liars = [6, 4 if dead else 5, 9, 10, 11][:wrong]
    cohort.run(ServerState.UNMASK)
    cohort.to_server = spoil(cohort, 5, liars)
    code = end(cohort)
    if wrong <= 2:
        assert code is None
        assert sorted(cohort.server.blamed) == [Blame(5, liar) for liar in sorted(liars)]
    else:
        assert code is AbortCode.RECONSTRUCTION_FAILED
        assert cohort.server.blamed == [Blame(5, None)]


def test_shares_at_wrong_points_are_wrong_shares() -> None:
    """A holder that gives to each owner the share of another.
    It is named where it is caught, and passed over then.
    """
    parameters = dataclasses.replace(
        propose(10, length=3, bits=16, corrupt=1, max_dropout=0),
        ring_neighbours=0,
        ring_threshold=0,
        min_survivors=7,
    )
    cohort = Cohort(10, parameters=parameters)
    cohort.run(ServerState.UNMASK)

    def rotate(i: int, frame: bytes) -> bytes:
        unmask = unmask_of(frame, 9)
        return (
            frame
            if i != 4
            else reframed(frame, wire.encode_unmask(unmask._replace(shares=unmask.shares[::-1])))
        )

    cohort.to_server = rotate
    assert end(cohort) is None
    middle = cohort.server._graph.of(4)[4]  # whose share stays where it is
    looked_at = [
        i
        for i in range(10)
        if i not in (4, middle) and (4 - i) % 10 <= cohort.server._graph.threshold
    ]
    assert cohort.server.blamed == [Blame(looked_at[0], 4)] and len(looked_at) == 5


def test_elements_that_are_not_of_the_field_are_refused_at_once() -> None:
    cohort, said = all_but_one(SEMI, ServerState.UNMASK)
    for start in (48, 48 + 16, 48 + 21, 48 + 21 + 76):
        changed = said[:start] + shamir.PRIME.to_bytes(4, "little") + said[start + 4 :]
        assert not cohort.server.receive(0, changed)
    assert finish(cohort) is None


@pytest.mark.parametrize("dead", [False, True])
def test_a_dealer_that_lies_ends_the_round_and_is_named(dead: bool) -> None:
    """Its shares agree with each other, and give neither the b nor the key that it advertised and
    masks with."""
    cohort = five(SEMI, ServerState.SHARE)
    elements = cohort.clients[2]._secrets.elements
    assert elements is not None
    advertised = elements.copy()
    elements[[0, 5]] ^= 1
    cohort.step()
    elements[:] = advertised
    cohort.dropped = {"mask": {2}} if dead else {}
    assert end(cohort) is AbortCode.RECONSTRUCTION_FAILED
    assert cohort.server.blamed == [Blame(2, None)]


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("liars", [[], [5], [5, 9, 10]])
def test_what_was_recovered_is_wiped_whether_or_not_the_sum_opens(
    monkeypatch: pytest.MonkeyPatch, liars: list[int], dead: bool
) -> None:
    """Also the secrets of those who come before the one whose shares are wrong."""
    parameters = dataclasses.replace(
        propose(12, length=3, bits=16, corrupt=1, max_dropout=0),
        min_survivors=7,
        ring_neighbours=0,
        ring_threshold=0,
    )
    cohort = Cohort(12, parameters=parameters, dropped={"mask": [7]} if dead else {})
    cohort.run(ServerState.UNMASK)
    cohort.to_server = spoil(cohort, 7, liars)
    recovered, buffers = list[Secret](), list[bytearray]()

    class Recovered(Secret):
        def __init__(self, value: bytes) -> None:
            super().__init__(value)
            recovered.append(self)

    class Buffered(Masking):
        def __init__(self, vector: npt.NDArray[Any]) -> None:
            super().__init__(vector)
            buffers.append(self._buffer)

    monkeypatch.setattr(unmasking, "Secret", Recovered)
    monkeypatch.setattr(unmasking, "Masking", Buffered)
    assert (end(cohort) is None) == (len(liars) < 3)
    assert len(recovered) >= 12 and not any(map(len, recovered))
    assert len(buffers) == 1 and not any(buffers[0])


@pytest.mark.parametrize("adversary", BOTH)
def test_too_few_shares_name_those_who_stay_shut(adversary: Adversary) -> None:
    cohort = five(adversary, ServerState.UNMASK)
    cohort.dropped = {"unmask": {0, 1}}
    assert cohort.run().code is AbortCode.RECONSTRUCTION_FAILED
    assert cohort.server.blamed == [Blame(i, None) for i in range(5)]


def test_a_wrong_mask_is_seen_in_the_checksum_entries() -> None:
    """A client that hears that a neighbour is absent adds nothing for it."""
    cohort = five(SEMI, ServerState.COLLECT)

    def without_the_first(i: int, frame: bytes) -> bytes:
        return frame if i else reframed(frame, b"\x0e" + frame[48 + 1 + wire.SEALED_BYTES :])

    cohort.to_client = without_the_first
    cohort.step()
    cohort.to_client = lambda _, frame: frame
    assert end(cohort) is AbortCode.CHECKSUM_WRONG
    assert cohort.clients[0].code is AbortCode.REVIVED


def test_secrets_are_opened_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unmasking, "_OWNERS", 3)
    cohort = Cohort(10, parameters=RING, dropped={"share": [1], "mask": [8]})
    assert end(cohort) is None


@pytest.mark.parametrize("bits", [3, 8, 16, 17, 32, 33, 62, 63, 64])
def test_sums_are_centred(bits: int) -> None:
    top = 2 ** (bits - 1)
    values = [0, 1, top - 1, top, top + 1, 2**bits - 1]
    dtype = next(d for d in ("<u2", "<u4", "<u8") if bits <= 8 * np.dtype(d).itemsize)
    assert centred(np.array(values, np.uint64).astype(dtype), bits).tolist() == [
        0,
        1,
        top - 1,
        -top,
        -top + 1,
        -1,
    ]


# ---- what is written down, and a crash ----


class Disk:
    """A journal that keeps every checkpoint, and fails at one."""

    def __init__(self, failing: int | None = None) -> None:
        self.written: list[bytes] = []
        self.failing = failing

    def __call__(self, checkpoint: bytes) -> None:
        if len(self.written) == self.failing:
            raise OSError("disk full")
        self.written.append(checkpoint)


def cohort_on(disk: Disk, adversary: Adversary, **arguments: Any) -> Cohort:
    parameters = five(adversary, ServerState.DONE).parameters
    return Cohort(5, adversary=adversary, parameters=parameters, journal=disk, **arguments)


def restart(cohort: Cohort, disk: Disk) -> Server:
    """Put a restored server in the place of one that crashed."""
    cohort.server = Server.restore(
        disk.written[-1], random=in_order, allow_list=cohort.allow_list, journal=disk
    )
    return cohort.server


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_a_crash_between_any_two_sends_changes_nothing(
    adversary: Adversary, step: Exchange
) -> None:
    """Client 4 does not send its vector, so that there is a secret key to open as well."""
    plain = cohort_on(Disk(), adversary, dropped={"mask": [4]})
    plain.run()
    for sends in range(6):
        disk = Disk()
        cohort = cohort_on(disk, adversary, dropped={"mask": [4]})
        cohort.run(step.phase)
        frames = [(i, cohort.server.invite) for i in range(5)]
        frames = (
            frames
            if step.phase is ServerState.ADVERTISE
            else [(int(i), f) for i, f in cohort.server.outgoing()]
        )
        dead = {4} if step.phase is ServerState.COLLECT else set()
        frames, before, first = [(i, f) for i, f in frames if i not in dead], list(cohort.sent), {}
        for i, frame in frames[:sends]:
            first[i] = cohort.clients[i].receive(frame, NOW)
            assert cohort.server.receive(i, first[i] or b"")
        server = restart(cohort, disk)
        assert server.state is step.phase and len(disk.written) == 1 + EXCHANGES[adversary].index(
            step
        )
        again = (
            [(i, server.invite) for i in range(5)]
            if step.phase is ServerState.ADVERTISE
            else [*server.outgoing()]
        )
        assert [(i, f) for i, f in again if i not in dead] == frames
        if step.phase is not ServerState.ADVERTISE:
            assert not any(server.receive(i, frame) for i, frame in before)  # late, for ever
        for i, frame in frames:
            said = cohort.clients[i].receive(frame, NOW)
            assert said is not None and said == first.get(i, said) and (i, said) in plain.sent
            assert server.receive(i, said)
        assert finish(cohort) is None
        assert plain.server.outcome is not None and server.outcome is not None
        np.testing.assert_array_equal(server.outcome.total, plain.server.outcome.total)
        assert list(server.outgoing()) == list(plain.server.outgoing())


@pytest.mark.parametrize("adversary", BOTH)
def test_a_server_that_crashed_in_every_phase_still_sums(adversary: Adversary) -> None:
    disk = Disk()
    cohort = cohort_on(disk, adversary, dropped={"mask": [4]})
    restart(cohort, disk)
    cohort.step()
    while cohort.server.state is not ServerState.DONE:
        restart(cohort, disk)
        cohort.step()
    before = list(cohort.server.outgoing())
    server = restart(cohort, disk)
    assert server.state is ServerState.DONE and list(server.outgoing()) == before
    assert server.outcome is not None and server.outcome.survivors == 4
    np.testing.assert_array_equal(server.outcome.total, cohort.expected)


@pytest.mark.parametrize(("adversary", "step"), STEPS, ids=STEP_IDS)
def test_what_cannot_be_written_down_does_not_leave(adversary: Adversary, step: Exchange) -> None:
    """Nothing of the next phase; only that the round has ended.
    The server that comes back is still before it.
    """
    number = 1 + EXCHANGES[adversary].index(step)
    disk = Disk(failing=number)
    cohort = cohort_on(disk, adversary)
    cohort.run(step.phase)
    cohort.phase()
    with pytest.raises(OSError, match="disk full"):
        cohort.server.close_phase(NOW)
    assert (cohort.server.state, cohort.server.code) == (ServerState.ABORTED, AbortCode.INTERNAL)
    assert {frame[5:6] + frame[48:] for _, frame in cohort.server.outgoing()} == {
        bytes([Kind.ABORT, 18])
    }
    disk.failing = None
    assert restart(cohort, disk).state is step.phase
    assert cohort.run().code is None
    assert cohort.server.outcome is not None
    np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)


def test_a_session_that_cannot_be_written_down_does_not_begin() -> None:
    with pytest.raises(OSError, match="disk full"):
        cohort_on(Disk(failing=0), SEMI)


def test_an_end_is_written_down() -> None:
    disk = Disk()
    cohort = cohort_on(disk, SEMI)
    cohort.run(ServerState.SHARE)
    cohort.server.abort()
    frames = list(cohort.server.outgoing())
    assert len(frames) == 5
    server = restart(cohort, disk)
    assert (server.state, server.code, list(server.outgoing())) == (
        ServerState.ABORTED,
        AbortCode.INTERNAL,
        frames,
    )
    disk.failing = len(disk.written)
    other = cohort_on(Disk(failing=1), SEMI)
    with pytest.raises(OSError, match="disk full"):
        other.server.abort()
    assert other.server.state is ServerState.ABORTED


def test_blame_is_written_down() -> None:
    disk = Disk()
    cohort = cohort_on(disk, SEMI)
    cohort.dropped = {"unmask": {0, 1}}
    cohort.run()
    blamed = cohort.server.blamed
    assert blamed and restart(cohort, disk).blamed == blamed


@pytest.mark.parametrize("adversary", BOTH)
def test_no_second_bitmap_ever_leaves(adversary: Adversary) -> None:
    """A vector that was late, or lost, does not get in after a restart: it would open both secrets
    of a client."""
    disk, asked = Disk(), set()
    cohort = cohort_on(disk, adversary)
    cohort.run(ServerState.COLLECT)
    late = answer(cohort, 4)
    for i in range(4):
        assert cohort.server.receive(i, answer(cohort, i))
    cohort.server.close_phase(NOW)
    phases = []
    while cohort.server.state is not ServerState.DONE:
        for _ in range(2):
            server = restart(cohort, disk)
            assert not server.receive(4, late)
            frames = list(server.outgoing())
            asked |= {frame[48:] for _, frame in frames if frame[5] == Kind.SURVIVORS}
            assert 4 not in dict(frames)
        phases.append(server.state)
        cohort.step()
    assert asked == {b"\x0f"}
    assert phases[-1] is ServerState.UNMASK
    np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)  # type: ignore[union-attr]


def test_a_checkpoint_says_what_is_final_and_nothing_since() -> None:
    for adversary, step in STEPS:
        cohort, said = all_but_one(adversary, step.phase)
        before = five(adversary, step.phase).server.checkpoint()
        assert cohort.server.checkpoint() == before
        cohort.server.receive(0, said)
        assert cohort.server.checkpoint() == before


def test_names_of_clients_come_back() -> None:
    disk = Disk()
    cohort = cohort_on(disk, SEMI)
    names: tuple[int | str, ...] = (7, "7", "a", 0, 2**70)
    for i, name in enumerate(names):
        assert cohort.server.receive(
            name, cohort.clients[i].receive(cohort.server.invite, NOW) or b""
        )
    cohort.server.close_phase(NOW)
    assert restart(cohort, disk).clients == names


def test_the_order_of_the_roster_is_drawn_once_after_the_last_advert_and_comes_back() -> None:
    """The blocks that are drawn fall, so the last to come is the first in the roster; a restored
    server draws none."""
    disk, asked = Disk(), []

    def falling(size: int) -> bytes:
        asked.append(size)
        return in_order(size)[::-1]

    cohort = cohort_on(disk, SEMI, random=falling)
    cohort.phase()
    assert asked == []
    cohort.server.close_phase(NOW)
    assert asked == [5 * 16]
    assert cohort.server.clients == (4, 3, 2, 1, 0)
    rosters = list(cohort.server.outgoing())
    cohort.server = Server.restore(disk.written[-1], random=falling, journal=disk)
    assert list(cohort.server.outgoing()) == rosters
    cohort.run()
    assert cohort.server.outcome is not None
    np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)
    assert asked == [5 * 16]


def test_in_active_identities_make_the_order_and_nothing_is_drawn() -> None:
    def none(size: int) -> bytes:
        raise AssertionError(size)

    server = Cohort(5, adversary=ACTIVE, max_dropout=0.0, random=none).run()
    assert server.clients == tuple(range(5))
    assert server.state is ServerState.DONE


@pytest.mark.parametrize(
    "drawn", [bytes(79), bytes(81), bytearray(80)], ids=["few", "many", "bytearray"]
)
def test_a_source_that_draws_something_else_ends_the_round(drawn: bytes) -> None:
    cohort = Cohort(5, random=lambda size: drawn)
    with pytest.raises(InvalidInputError, match="random must return the 80 bytes"):
        cohort.step()
    assert cohort.server.code is AbortCode.INTERNAL


# ---- what it holds ----


@pytest.mark.parametrize("adversary", Adversary)
def test_a_session_does_not_copy_or_pickle(adversary: Adversary) -> None:
    for state in (ServerState.ADVERTISE, ServerState.COLLECT, ServerState.UNMASK, ServerState.DONE):
        server = five(adversary, state).server
        for leak in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InvalidInputError, match="cannot be copied or pickled"):
                leak(server)
            # what holds the opened shares does not go by itself either
            if state is ServerState.UNMASK:
                with pytest.raises(
                    InvalidInputError, match="the shares of an unmasking are secret"
                ):
                    leak(server._unmasking)


def held(server: Server) -> list[npt.NDArray[Any]]:
    """Return the arrays of what clients sealed, sent and gave, as they lie in memory."""
    unmasking = [] if server._unmasking is None else [server._unmasking._shares]
    return [array for array in (server._sealed, server._total, *unmasking) if array.size]


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("end", ["done", "aborted", "no share opens"])
def test_shares_and_totals_are_erased_when_they_are_used_up(adversary: Adversary, end: str) -> None:
    """Erased in place, and not kept by a view of a part: `base` would be the whole array."""
    cohort, seen = five(adversary, ServerState.ADVERTISE), []
    cohort.step()
    while cohort.server.state not in (ServerState.DONE, ServerState.ABORTED):
        state = cohort.server.state
        if end == "aborted" and state is ServerState.UNMASK:
            cohort.server.abort()
            continue
        if end == "no share opens":
            cohort.to_server = spoiled
        cohort.phase()
        now = held(cohort.server)
        assert any(array.any() for array in now) or state is ServerState.CONFIRM
        seen += now
        outcome = cohort.server.outcome
        cohort.server.close_phase(NOW)
        if cohort.server.state in (ServerState.CONFIRM, ServerState.UNMASK):
            # what was sealed
            assert not any(array.any() for array in seen if array.dtype == np.uint8)
    assert outcome is None
    assert (cohort.server.outcome is not None) is (end == "done")
    assert len(seen) >= 3
    assert not any(array.any() for array in seen)
    assert held(cohort.server) == []
    assert cohort.server._sealed.base is None
    assert cohort.server._total.base is None
    if cohort.server.outcome is not None:
        np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)


def spoiled(_: int, frame: bytes) -> bytes:
    """Return an Unmask whose last share is another one."""
    if frame[5] != Kind.UNMASK:
        return frame
    return frame[:-4] + (int.from_bytes(frame[-4:], "little") ^ 1).to_bytes(4, "little")


def checkpoint(adversary: Adversary, state: ServerState) -> tuple[bytes, AllowList | None]:
    cohort = five(adversary, state)
    return cohort.server.checkpoint(), cohort.allow_list


@pytest.mark.parametrize(
    "state",
    [
        ServerState.ADVERTISE,
        ServerState.COLLECT,
        ServerState.CONFIRM,
        ServerState.UNMASK,
        ServerState.DONE,
    ],
)
def test_a_damaged_checkpoint_is_unreadable_or_the_same(state: ServerState) -> None:
    """A flip that goes unnoticed is one in what the container does not use."""
    good, listed = checkpoint(ACTIVE, state)
    original = Server.restore(good, random=in_order, allow_list=listed)
    same = 0
    for at in range(0, len(good), 5):
        changed = good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :]
        try:
            server = Server.restore(changed, random=in_order, allow_list=listed)
        except UnreadableFileError:
            continue
        assert list(server.outgoing()) == list(original.outgoing()) and facts(server) == facts(
            original
        )
        same += 1
    assert same < len(good) // 5 // 4
    for size in {*range(0, len(good), 97), len(good) - 1}:
        with pytest.raises(UnreadableFileError, match="not a checkpoint"):
            Server.restore(good[:size], random=in_order, allow_list=listed)


def rewritten(good: bytes, **changed: Any) -> bytes:
    """Return a checkpoint that is whole and says something else; None: without it."""
    facts, arrays = checkpoints.unpack(good)
    del facts["arrays"]
    for name, value in changed.items():
        (arrays if name in arrays else facts)[name] = value
    return checkpoints.pack(facts, {name: one for name, one in arrays.items() if one is not None})


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": "fedtally-secagg-checkpoint/3"},
        {"state": "somewhere"},
        {"code": 99},
        {"salt": "no hex"},
        {"clients": None},
        {"blamed": 5},
        {"total": None},
        {"invite": None},
        {"invite": np.zeros(300, np.uint8)},
        {"sealed": np.zeros(56, np.uint8)},
        {"adverts": np.zeros(5, np.uint8)},
        {"ranks": [0]},
        {"present": np.ones(3, np.bool_)},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_a_checkpoint_that_says_what_cannot_be_is_unreadable(changed: dict[str, Any]) -> None:
    good, _ = checkpoint(SEMI, ServerState.COLLECT)
    assert Server.restore(rewritten(good), random=in_order).state is ServerState.COLLECT
    with pytest.raises(UnreadableFileError, match="not a checkpoint"):
        Server.restore(rewritten(good, **changed), random=in_order)


def test_a_checkpoint_of_another_version_is_refused_by_name() -> None:
    good, _ = checkpoint(SEMI, ServerState.COLLECT)
    other = rewritten(good, schema="fedtally-secagg-checkpoint/1")
    with pytest.raises(UnreadableFileError, match=r"checkpoint/1, and this version reads .*/2"):
        Server.restore(other, random=in_order)


def test_a_sum_takes_the_bytes_of_its_integers() -> None:
    good, listed = checkpoint(ACTIVE, ServerState.DONE)
    server = Server.restore(good, random=in_order, allow_list=listed)
    assert server.outcome is not None and server.outcome.total.dtype == np.int64
    _, arrays = checkpoints.unpack(good)
    assert arrays["outcome"].dtype.itemsize == lane(server.terms.parameters.bits).itemsize < 8
    assert (arrays["outcome"] == server.outcome.total).all() and server.outcome.total.any()


def test_what_is_no_checkpoint_at_all() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    for other in (b"", b"PK\x03\x04", b"\x80\x04K\x01.", file.getvalue(), None, 5, "checkpoint"):
        with pytest.raises(UnreadableFileError, match="not a checkpoint"):
            Server.restore(other, random=in_order)  # type: ignore[arg-type]


def test_a_checkpoint_goes_with_its_allow_list() -> None:
    good, listed = checkpoint(ACTIVE, ServerState.SHARE)
    assert listed is not None
    fewer = AllowList(listed.key(rank) for rank in range(4))
    for other in (None, fewer):
        with pytest.raises(UnreadableFileError, match="allow-list"):
            Server.restore(good, random=in_order, allow_list=other)
    with pytest.raises(UnreadableFileError, match="allow-list"):
        Server.restore(checkpoint(SEMI, ServerState.SHARE)[0], random=in_order, allow_list=listed)


def test_the_checkpoint_holds_no_secret() -> None:
    """Neither what a client draws nor what it holds stands in any checkpoint before the secrets are
    opened."""
    disk = Disk()
    cohort = cohort_on(disk, SEMI)
    cohort.run(ServerState.COLLECT)
    drawn = [client._secrets.elements for client in cohort.clients]
    contents = [
        part.tobytes()
        for elements in drawn
        if elements is not None
        for part in (elements[:5], elements[5:])
    ]
    assert len(contents) == 10
    cohort.run()
    assert not any(content in written for content in contents for written in disk.written)
    assert len(disk.written) == 5


def test_every_order_of_answers_gives_the_same_sum() -> None:
    totals = set()
    for order in itertools.islice(itertools.permutations(range(5)), 0, 120, 17):
        cohort = five(SEMI, ServerState.COLLECT)
        while cohort.server.state is not ServerState.DONE:
            said = {i: answer(cohort, i) for i in range(5)}
            assert all(cohort.server.receive(i, said[i]) for i in order)
            cohort.server.close_phase(NOW)
        assert cohort.server.outcome is not None
        totals.add(cohort.server.outcome.total.tobytes())
    assert len(totals) == 1


def test_who_comes_after_the_end_is_nobody_s_fault() -> None:
    cohort = Cohort(12)
    cohort.run(until=ServerState.UNMASK)
    cohort.server.close_phase(NOW + 10_000)
    assert (cohort.server.code, cohort.server.blamed) == (AbortCode.EXPIRED, [])
