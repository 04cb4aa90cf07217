"""Whole rounds: the sum is exact, whoever drops out and whenever, or the round ends with the right
code."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from secagg_cohort import NOW, Cohort, five, flips, reframed, stream

from fedtally.secagg import wire
from fedtally.secagg.messages import AbortCode, ClientState, Kind, LocalProtocolError, ServerState
from fedtally.secagg.params import (
    Adversary,
    Graph,
    Parameters,
    complete_threshold,
    is_safe_ring,
    modulus_bits,
)
from fedtally.secagg.proposal import propose

BOTH = list(Adversary)
SEMI, ACTIVE = Adversary.SEMI_HONEST, Adversary.ACTIVE
EARLY_AND_LATE = {"share": [3], "mask": [5, 9], "confirm": [6], "unmask": [7]}
PHASES = ("advertise", "share", "mask", "confirm", "unmask")


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize("dropped", [{}, EARLY_AND_LATE])
def test_the_sum_is_exactly_that_of_the_survivors(
    adversary: Adversary, dropped: dict[str, list[int]]
) -> None:
    cohort = Cohort(24, adversary=adversary, max_dropout=0.25, dropped={**dropped})
    server = cohort.run()
    assert server.state is ServerState.DONE
    assert server.outcome is not None
    gone = {i for phase in ("share", "mask") for i in dropped.get(phase, ())}
    assert server.outcome.survivors == 24 - len(gone)
    np.testing.assert_array_equal(server.outcome.total, cohort.expected)
    told = [i for i, client in enumerate(cohort.clients) if client.state is ClientState.DONE]
    assert all(cohort.clients[i].result == cohort.clients[told[0]].result for i in told)


# ---- whoever drops out ----


def safe_rings(n: int, corrupt: int, absent: int) -> list[Graph]:
    graphs = [Graph(k, t) for k in range(2, n - 1, 2) for t in range(2, k + 1)]
    return [graph for graph in graphs if is_safe_ring(n, corrupt, absent, graph)]


@st.composite
def rounds(draw: st.DrawFn) -> Cohort:
    """Draw a cohort, its parameters and who drops out in which phase: nobody, some, or
    everybody."""
    adversary, n = draw(st.sampled_from(BOTH)), draw(st.integers(3, 14))
    n_min = draw(st.integers(max(3, n - 3), n))
    ring = Graph(0, 0)
    if adversary is ACTIVE:
        bearable = [c for c in range(n) if complete_threshold(n, c) <= n_min - c]
        n_min = n_min if bearable else n
        corrupt = draw(st.sampled_from(bearable or [0]))
        least, most = complete_threshold(n, corrupt), n_min - corrupt
    else:
        corrupt = draw(st.integers(1, max(1, n_min // 3)))
        least, most = corrupt + 2, n_min
    min_survivors = draw(st.integers(least, most)) if least <= most else n_min
    if adversary is SEMI and (found := safe_rings(n_min, corrupt, max(0, n_min - min_survivors))):
        ring = draw(st.sampled_from([Graph(0, 0), *found]))
    parameters = Parameters(
        adversary=adversary,
        n_min=n_min,
        n_max=n,
        corrupt=corrupt,
        max_dropout_ppm=0,
        min_survivors=min_survivors,
        ring_neighbours=ring.neighbours,
        ring_threshold=ring.threshold,
        length=draw(st.integers(1, 40)),
        bits=draw(st.integers(modulus_bits(n, multiple=1), 64)),
    )
    worst = draw(st.sampled_from([None, *PHASES]))
    few, many = (
        st.sets(st.integers(0, n - 1), max_size=1),
        st.sets(st.integers(0, n - 1), min_size=n // 4),
    )
    dropped = {phase: draw(many if phase == worst else few) for phase in PHASES}
    policy = {"corrupt": corrupt, "min_honest": 2}
    return Cohort(
        n,
        adversary=adversary,
        parameters=parameters,
        dropped={**dropped},
        policy=policy,
        seed=draw(st.integers(0, 2**32)),
    )


def what_must_happen(cohort: Cohort) -> AbortCode | set[int]:
    """Return who must be in the sum, or why there must be none: a model of the round in sets."""
    p, gone = cohort.parameters, {name: set(cohort.dropped[name]) for name in PHASES}
    roster = sorted(set(range(cohort.n)) - gone["advertise"])
    try:
        p.check_roster(len(roster))
    except ValueError:
        return AbortCode.TOO_FEW_CLIENTS
    t, least, active = p.graph(len(roster)).threshold, p.min_survivors, p.adversary is ACTIVE
    graph = cohort.server._graph
    near = {i: {roster[j] for j in graph.of(place).tolist()} for place, i in enumerate(roster)}
    present = set(roster) - gone["share"]
    if len(present) < max(t, least):
        return AbortCode.TOO_FEW_CLIENTS
    needed = max(t, least) if active else t
    alive = {i for i in present - gone["mask"] if 1 + len(near[i] & present) >= needed}
    if len(alive) < least:
        return AbortCode.BELOW_MIN_SURVIVORS
    if any(holders(i, near, alive) < t for i in present):
        return AbortCode.BELOW_THRESHOLD
    answering = set(alive)
    if active:
        answering -= gone["confirm"]
        if len(answering) < t:
            return AbortCode.TOO_FEW_CONFIRMATIONS
    answering -= gone["unmask"]
    if any(holders(i, near, answering) < t for i in present):
        return AbortCode.RECONSTRUCTION_FAILED
    return alive


def holders(i: int, near: dict[int, set[int]], who: set[int]) -> int:
    return len(near[i] & who) + (i in who)


@given(rounds())
@settings(max_examples=200)
def test_the_sum_is_plain_or_the_code_is_right(cohort: Cohort) -> None:
    server = cohort.run()
    expected = what_must_happen(cohort)
    event(str(expected if isinstance(expected, AbortCode) else "sum"))
    if isinstance(expected, AbortCode):
        assert (server.state, server.code, server.outcome) == (ServerState.ABORTED, expected, None)
        return
    assert server.outcome is not None and server.code is None
    alive = [server.clients[place] for place in np.flatnonzero(server.outcome.alive)]
    assert set(alive) == expected and server.outcome.survivors == len(expected)
    np.testing.assert_array_equal(
        server.outcome.total, cohort.vectors[sorted(expected)].sum(axis=0)
    )
    assert server.blamed == []


@pytest.mark.parametrize("adversary", BOTH)
@pytest.mark.parametrize("phase", PHASES)
def test_all_drop_out_at_once(adversary: Adversary, phase: str) -> None:
    cohort = Cohort(10, adversary=adversary, max_dropout=0.0, dropped={phase: range(10)})
    server = cohort.run()
    code = {
        "advertise": AbortCode.TOO_FEW_CLIENTS,
        "share": AbortCode.TOO_FEW_CLIENTS,
        "mask": AbortCode.BELOW_MIN_SURVIVORS,
        "confirm": AbortCode.TOO_FEW_CONFIRMATIONS,
        "unmask": AbortCode.RECONSTRUCTION_FAILED,
    }[phase]
    if (adversary, phase) == (SEMI, "confirm"):  # there is no such phase
        assert server.state is ServerState.DONE
    else:
        assert (server.state, server.code, server.outcome) == (ServerState.ABORTED, code, None)


def test_one_client_is_short_of_holders() -> None:
    """In a ring, of the neighbours of a client all but t - 1 or t - 2 leave: with itself t, or one
    less."""
    parameters = propose(12, length=3, bits=16, corrupt=1, max_dropout=0.25)
    parameters = dataclasses.replace(
        parameters, ring_neighbours=8, ring_threshold=6, min_survivors=7
    )
    for leaving, code in ((3, None), (4, AbortCode.BELOW_THRESHOLD)):
        cohort = Cohort(12, parameters=parameters)
        assert cohort.run(ServerState.COLLECT).code is None
        cohort.dropped = {"mask": set(cohort.server._graph.of(5)[[0, 1, 4, 5][:leaving]].tolist())}
        assert cohort.run().code is code
        if code is None:
            assert cohort.server.outcome is not None
            np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)


@pytest.mark.parametrize("phase", ["share", "mask"])
def test_dropouts_by_chance_do_not_cut_a_ring(phase: str) -> None:
    """All that may drop out, drawn without a look at the ring."""
    gone = np.random.default_rng(5).choice(200, 60, replace=False).tolist()
    server = Cohort(200, corrupt=10, max_dropout=0.3, length=2, dropped={phase: gone}).run()
    assert server.outcome is not None
    assert server.outcome.survivors == 140


@pytest.mark.parametrize("adversary", Adversary)
def test_the_sum_is_exact_whatever_order_the_server_draws(adversary: Adversary) -> None:
    cohort = Cohort(
        24, adversary=adversary, max_dropout=0.25, dropped={"mask": [3, 9]}, random=stream("order")
    )
    server = cohort.run()
    assert server.outcome is not None
    assert (list(server.clients) == list(range(24))) is (adversary is ACTIVE)
    np.testing.assert_array_equal(server.outcome.total, cohort.expected)


# ---- the vector ----


@pytest.mark.parametrize("bits", [3, 8, 11, 16, 17, 32, 33, 63, 64])
@pytest.mark.parametrize("adversary", BOTH)
def test_the_largest_and_the_smallest_sums(adversary: Adversary, bits: int) -> None:
    """+-(2^(b - 1) - 1), by one client or by all of three."""
    most, n = 2 ** (bits - 1) - 1, 3
    share = [most // n, most // n, most - 2 * (most // n)]
    parameters = propose(
        n,
        length=6,
        bits=bits,
        corrupt=1 if adversary is SEMI else 0,
        max_dropout=0,
        adversary=adversary,
    )
    cohort = Cohort(n, adversary=adversary, parameters=parameters, policy={"corrupt": 0})
    columns = [
        share,
        [-s for s in share],
        [most, 0, 0],
        [0, -most, 0],
        [most, -most, 0],
        [most, -1, 1],
    ]
    cohort.vectors = np.array(columns, dtype=np.int64).T
    server = cohort.run()
    assert server.outcome is not None and server.outcome.total.dtype == np.int64
    assert server.outcome.total.tolist() == [most, -most, most, -most, 0, most]


@pytest.mark.parametrize("bits", [16, 17, 64])
@pytest.mark.parametrize("gap", [-1, 0, 1])
@pytest.mark.parametrize("with_checksum", [False, True])
def test_vectors_at_the_edge_of_a_chunk(bits: int, gap: int, with_checksum: bool) -> None:
    """128 KiB of lanes, one entry less and one more; with the checksum entries or before them.
    One client drops out.
    """
    entries = (1 << 17) // {16: 2, 17: 4, 64: 8}[bits]
    length = entries + gap - (-(-64 // bits) if with_checksum else 0)
    parameters = propose(4, length=length, bits=bits, corrupt=1, max_dropout=0.25)
    cohort = Cohort(4, parameters=parameters, dropped={"mask": [1]})
    server = cohort.run()
    assert server.outcome is not None
    np.testing.assert_array_equal(server.outcome.total, cohort.expected)


@pytest.mark.parametrize("length", [1, 7, 8, 9])
@pytest.mark.parametrize("bits", [11, 13, 16])
def test_short_vectors(length: int, bits: int) -> None:
    cohort = Cohort(3, parameters=propose(3, length=length, bits=bits, corrupt=1, max_dropout=0))
    server = cohort.run()
    assert server.outcome is not None
    np.testing.assert_array_equal(server.outcome.total, cohort.expected)


def test_a_false_vector_is_not_seen() -> None:
    """What is not claimed: the sum is of what was sent, and whoever sends anything else changes it
    by that."""
    cohort = Cohort(5, max_dropout=0.2)
    cohort.vectors[:] = 0
    cohort.vectors[2, 7] = 2**15 - 1
    server = cohort.run()
    assert server.outcome is not None and server.outcome.total.max() == 2**15 - 1


# ---- the network ----


@pytest.mark.parametrize("adversary", BOTH)
def test_everything_twice_and_in_another_order(adversary: Adversary) -> None:
    """Every message is delivered again and again, and those of a phase from the last client to the
    first."""
    cohort = five(adversary, ServerState.ADVERTISE)
    heard: list[tuple[int, bytes]] = []
    while cohort.server.state is not ServerState.DONE:
        first = cohort.server.state is ServerState.ADVERTISE
        frames: Iterable[tuple[Any, bytes]] = cohort.server.outgoing()
        frames = [(i, cohort.server.invite) for i in range(5)] if first else list(frames)
        said = [(i, cohort.clients[i].receive(frame, NOW)) for i, frame in frames for _ in range(3)]
        for i, frame in reversed(said):
            assert frame is not None
            taken = [cohort.server.receive(i, frame) for _ in range(3)]
            assert sum(taken) == ((i, frame) not in heard) and not any(taken[1:])
            heard.append((i, frame))
        assert not any(cohort.server.receive(i, frame) for i, frame in heard)
        cohort.server.close_phase(NOW)
    assert not any(cohort.server.receive(i, frame) for i, frame in heard)
    assert cohort.server.outcome is not None
    np.testing.assert_array_equal(cohort.server.outcome.total, cohort.vectors.sum(axis=0))


def test_two_sessions_do_not_hear_each_other() -> None:
    one = five(SEMI, ServerState.ADVERTISE)
    other = Cohort(5, parameters=one.parameters, seed=1)
    for cohort, foreign in ((one, other), (other, one)):
        cohort.to_server = lambda i, frame, f=foreign: _both(f, i, frame)  # type: ignore[misc]
    one.run()
    other.run()
    for cohort in (one, other):
        assert cohort.server.outcome is not None
        np.testing.assert_array_equal(cohort.server.outcome.total, cohort.expected)
    assert one.server.outcome is not None and other.server.outcome is not None
    assert not np.array_equal(one.server.outcome.total, other.server.outcome.total)


def _both(foreign: Cohort, i: int, frame: bytes) -> bytes:
    assert not foreign.server.receive(i, frame)
    assert (
        foreign.clients[i].receive(frame[:40] + wire.SERVER.to_bytes(4, "little") + frame[44:], NOW)
        is None
    )
    return frame


def test_a_changed_roster_is_a_client_less_or_an_end() -> None:
    """In semi-honest the Roster is not authenticated: a flip in what one client gets never makes a
    wrong sum."""
    cohort = five(SEMI, ServerState.SHARE)
    codes: list[AbortCode | None] = []
    for at, changed in flips(cohort.request(0), bits=[7]):
        if at < 48:
            continue
        fork = cohort.fork()
        fork.to_client = lambda i, frame, c=changed: (
            c if i == 0 and frame[5] == Kind.ROSTER else frame
        )  # type: ignore[misc]
        server = fork.run()
        codes.append(server.code)
        if server.code is None:
            assert server.outcome is not None
            np.testing.assert_array_equal(server.outcome.total, fork.expected)
    assert (
        set(codes)
        == {
            None,
            AbortCode.BELOW_THRESHOLD,
            AbortCode.RECONSTRUCTION_FAILED,
            AbortCode.CHECKSUM_WRONG,
        }
        or codes
    )


@pytest.mark.parametrize("adversary", BOTH)
def test_one_client_that_sends_nonsense_is_one_client_less(adversary: Adversary) -> None:
    nonsense = {
        Kind.SHARES: lambda frame: reframed(frame, b""),
        Kind.MASKED_INPUT: lambda frame: reframed(frame, frame[48:] + b"\0"),
        Kind.CONFIRM: lambda frame: reframed(frame, bytes(64)),
        Kind.UNMASK: lambda frame: reframed(frame, b"\xff" * (len(frame) - 48)),
    }
    for kind, change in nonsense.items():
        cohort = Cohort(
            5, adversary=adversary, parameters=five(adversary, ServerState.DONE).parameters
        )
        cohort.to_server = lambda i, frame, k=kind, c=change: (
            c(frame) if i == 2 and frame[5] == k else frame
        )  # type: ignore[misc]
        server = cohort.run()
        assert server.outcome is not None and server.code is None
        assert server.outcome.survivors == (4 if kind in (Kind.SHARES, Kind.MASKED_INPUT) else 5)
        np.testing.assert_array_equal(server.outcome.total, cohort.expected)


@pytest.mark.parametrize("adversary", Adversary)
def test_a_client_can_check_what_is_published(adversary: Adversary) -> None:
    cohort = Cohort(12, adversary=adversary, dropped={"mask": [5]})
    client = cohort.clients[0]
    with pytest.raises(LocalProtocolError, match="no result was announced"):
        client.confirms(np.zeros(24, np.int64), bytes(32))
    outcome = cohort.run().outcome
    assert outcome is not None
    assert client.confirms(outcome.total, outcome.salt)
    assert not client.confirms(outcome.total + 1, outcome.salt)
    assert not client.confirms(outcome.total, bytes(32))


def test_the_owner_of_a_client_learns_why_it_ended() -> None:
    cohort = Cohort(12, policy={"min_honest": 12})
    cohort.run()
    assert cohort.clients[0].code is AbortCode.POLICY
    assert "min_survivors - corrupt must be at least 12" in cohort.clients[0].reason
