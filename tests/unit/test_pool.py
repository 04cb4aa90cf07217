"""The pool of a campaign's clients: against a plain list of who is there and who was asked."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from fedtally.campaign.pool import MISSES, Pool

ROUNDS = range(3)


def most(number: int) -> Callable[[Collection[int], int], bool]:
    """Return the rule of a plan without a calendar: at most so many rounds."""
    return lambda taken, _: len(taken) < number


def test_a_client_is_there_for_a_while_after_it_checks_in() -> None:
    pool = Pool(most(1), presence=10, bench=50)
    assert pool.check_in("a", 0, ROUNDS) and pool.check_in("b", 5, ROUNDS)
    pool.expire(10)
    assert pool.ready(0) == ["a", "b"]
    assert pool.check_in("a", 10, ROUNDS)
    pool.expire(16)
    assert pool.ready(0) == ["a"]
    pool.expire(21)
    assert pool.count(0) == 0 and not pool._seen and not pool._free


def test_a_bench_is_over_after_its_seconds() -> None:
    pool = Pool(most(1), presence=10, bench=50)
    for _ in range(MISSES):
        assert pool.check_in("a", 0, ROUNDS)
        pool.note_miss("a", 7)
        assert pool.count(0) == 0  # whoever missed has to check in again
    assert not pool.check_in("a", 56, ROUNDS)
    assert pool.check_in("a", 57, ROUNDS)
    pool.expire(57)
    assert not pool._benched and not pool._misses


def test_who_is_benched_in_a_session_is_not_free_after_it() -> None:
    pool = Pool(most(1), presence=10, bench=50)
    assert pool.check_in("a", 0, ROUNDS)
    pool.begin(b"one", ["a"])
    for _ in range(MISSES):
        pool.note_miss("a", 0)
    assert pool.check_in("a", 1, ROUNDS)  # it is in a session
    pool.end(b"one", ["a"])
    assert pool.count(0) == 0 and not pool.check_in("a", 2, ROUNDS)


def test_who_may_join_no_open_round_is_not_there() -> None:
    pool = Pool(most(2), presence=10, bench=50)
    pool.read_asked({0: {"a"}, 1: {"a", "b"}})
    assert not pool.check_in("a", 0, ROUNDS)  # asked twice
    assert not pool.check_in("b", 0, [1])  # asked in this one
    assert not pool.check_in("c", 0, [])
    assert pool.check_in("b", 0, [1, 2])


def test_the_pool_agrees_with_a_plain_list() -> None:
    """Random calls; after each one every round has the clients that a look at each one finds."""
    rng, pool = np.random.default_rng(1), Pool(most(2), presence=20, bench=30)
    asked: dict[int, set[int]] = {round: set() for round in ROUNDS}
    seen: dict[int, int] = {}
    session_of: dict[int, bytes] = {}
    benched: dict[int, int] = {}
    misses = dict.fromkeys(range(12), 0)

    def may_join(client: int, round: int) -> bool:
        return client not in asked[round] and sum(client in who for who in asked.values()) < 2

    for now in range(3000):
        client, session = int(rng.integers(12)), bytes([int(rng.integers(3))])
        match rng.integers(12):
            case 0:
                asked[round := int(rng.integers(3))].add(client)
                pool.note_asked(round, [client])
            case 1:
                session_of[client] = session
                pool.begin(session, [client])
            case 2:
                session_of = {c: s for c, s in session_of.items() if s != session}
                pool.end(session, range(12))
            case 3:
                session_of = {c: s for c, s in session_of.items() if s == session}
                pool.keep([session])
            case 4:
                misses[client] += 1
                seen.pop(client, None)
                if misses[client] == MISSES:
                    misses[client], benched[client] = 0, now + 30
                pool.note_miss(client, now)
            case 5 if now % 7 == 0:
                asked = {round: set() for round in ROUNDS}
                pool.read_asked(asked)
            case _:
                expected = client in session_of or (
                    benched.get(client, 0) <= now and any(may_join(client, r) for r in ROUNDS)
                )
                assert pool.check_in(client, now, ROUNDS) is expected
                if expected and benched.get(client, 0) <= now:
                    seen[client] = now
        pool.expire(now)
        seen = {c: at for c, at in seen.items() if at >= now - 20}
        assert pool.session_of == session_of
        for round in ROUNDS:
            found = {c for c in seen if c not in session_of and may_join(c, round)}
            assert set(pool.ready(round)) == found
            assert pool.count(round) == len(found)
