"""Rings that dropouts cut: the weakest cut, the margin, and one round that ends with 19.

The cases are by `tools/secagg_reading.py`.

The smallest round in which a ring is safe, and can be cut within its dropouts all the same, has
more than fifty clients. So it is no transcript: the server is given Shares and MaskedInputs of
zeros, and one client is followed.
"""

from __future__ import annotations

import hashlib
from typing import Any

import secagg_reading as page
from secagg_reading import (
    ABORT,
    ADVERTISE,
    INBOX,
    MASKED_INPUT,
    SEMI_HONEST,
    SHARES,
    SURVIVORS,
    Draws,
    Frame,
    Graph,
    Server,
    Terms,
    bitmap,
    bits,
    u8,
)
from secagg_transcripts import NOW, Json, numbers, shake, terms_json, terms_of

TERMS = terms_of(
    SEMI_HONEST,
    length=1,
    bits=8,
    graph=0,
    k=22,
    t=2,
    n_min=56,
    n_max=56,
    min_survivors=35,
    corrupt=1,
    max_dropout=0,
)
ARC = 5


def cut_vectors() -> list[Json]:
    """Return weakest cuts, margins, and the round.

    Returns:
        One object each, told apart by ``operation``.
    """
    return [*_weakest_cuts(), *_margins(), *_rounds()]


def _weakest_cuts() -> list[Json]:
    found: list[Json] = []
    for number in range(60):
        n, size, out_of = numbers(f"cut {number}", 3, 2**32)
        n = 6 + n % 19
        k = 2 + 2 * (size % ((n - 2) // 2))
        alive = [
            i
            for i, dice in enumerate(numbers(f"cut {number} alive", n, 10))
            if dice < (5, 8, 9, 10)[out_of % 4]
        ]
        ctx2 = shake(f"cut {number}")
        cut = page.weakest_cut(page.ring_order(ctx2, n), k, alive)
        row: Json = {
            "operation": "weakest cut",
            "success": cut is not None,
            "ctx2": ctx2.hex(),
            "n": n,
            "k": k,
        }
        found.append({**row, "alive": alive, "cut": cut})
    assert {row["cut"] for row in found} >= {None, 0, 1, 2, 3, 4}
    return found


def _margins() -> list[Json]:
    found: list[Json] = []
    for n, k, corrupt in (
        (56, 22, 1),
        (200, 40, 10),
        (1000, 36, 50),
        (1000, 56, 100),
        (3001, 98, 600),
        (12, 6, 3),
    ):
        least = next(cut for cut in range(k + 1) if page.ring_is_whole(n, k, corrupt, cut))
        for cut in sorted({0, least - 1, least, min(least + 1, k)}):
            whole = page.ring_is_whole(n, k, corrupt, cut)
            row = {"operation": "margin", "n": n, "k": k, "corrupt": corrupt, "cut": cut}
            found.append({**row, "success": whole})
    return found


def _advert(server: Server, index: int) -> tuple[bytes, bytes]:
    """Return the advert of a client whose vector nobody uses, and its secret encryption key."""
    secret = shake(f"cut encryption {index}")
    keys = page.public_key(shake(f"cut mask {index}")) + page.public_key(secret)
    return (
        keys
        + page.commitment(shake(f"cut b {index}", 20), server.ctx)
        + shake(f"cut nonce {index}", 16),
        secret,
    )


def _rounds() -> list[Json]:
    session, secret, salt = shake("cut session"), shake("server signing key"), shake("cut salt")
    draws = shake("cut order", 16 * TERMS.n_max)
    names = [f"c{i}" for i in range(TERMS.n_max)]

    def new_server() -> Server:
        return Server(session, TERMS, secret, [], salt, Draws(draws))

    server, steps = new_server(), []
    client, client_draws = _client(server.invite), shake("cut client", 140)
    own = client.receive(server.invite, NOW)
    assert own is not None
    adverts, secrets = {names[0]: own[48:]}, {}
    for i, name in enumerate(names[1:], 1):
        adverts[name], secrets[name] = _advert(server, i)
    frames = {
        name: Frame(ADVERTISE, session, page.UNKNOWN, body).encode()
        for name, body in adverts.items()
    }
    for name in names:
        assert server.receive(name, frames[name])
    rosters = server.close(NOW)
    half, order, me = TERMS.k // 2, server.graph.order, server.roster.index(names[0])
    first = order.index(me) - half - ARC // 2  # so that the client is in the arc
    order = [*order[first:], *order[:first]]
    gaps = [*order[:half], *order[half + ARC : 2 * half + ARC]]
    cases: list[tuple[str, list[int], list[int]]] = [
        ("nobody drops out", [], []),
        ("an arc is cut off in SHARE", gaps[1:], []),
        ("an arc is cut off in COLLECT", [], gaps[1:]),
        ("an arc is cut off in both", gaps[1:11], gaps[11:]),
        ("two survivors are left in the gaps", gaps[2:13], gaps[13:]),
        ("as many drop out elsewhere", [], [i for i in order[::-1] if i != me][: len(gaps) - 1]),
    ]
    for name, in_share, in_collect in cases:
        steps.append({"name": name, **_run(new_server(), frames, in_share, in_collect)})
    assert [case["code"] for case in steps] == [0, 19, 19, 19, 0, 0]

    answers = [own, client.receive(rosters[names[0]], NOW)]
    inbox = Frame(INBOX, session, page.SERVER, _inbox(client.graph, me, server, secrets)).encode()
    answers.append(client.receive(inbox, NOW))
    ends = []
    for name, dead, code in (
        ("the ring is cut", gaps[1:], 19),
        ("two survivors are left in the gaps", gaps[2:], 0),
        ("the ring is cut, and too few survive", gaps, 12),
    ):
        alive = bitmap((i for i in range(TERMS.n_max) if i not in dead), TERMS.n_max)
        again = _client(server.invite)
        for frame, answer in zip((server.invite, rosters[names[0]], inbox), answers, strict=True):
            assert again.receive(frame, NOW) == answer
        last = Frame(SURVIVORS, session, page.SERVER, alive).encode()
        answer = again.receive(last, NOW)
        assert answer is not None and again.code == code, (name, again.code)
        assert not code or answer == Frame(ABORT, session, me, u8(code)).encode()
        ends.append(
            {
                "name": name,
                "success": not code,
                "survivors": last.hex(),
                "code": code,
                "answer": answer.hex(),
            }
        )
    assert all(answers)
    common: Json = {
        "session": session.hex(),
        "server_secret": secret.hex(),
        "server_public": page.identity_of(secret).hex(),
        "salt": salt.hex(),
        "now": NOW,
        "terms": terms_json(TERMS),
    }
    client_messages = [server.invite, rosters[names[0]], inbox]
    return [
        {
            "operation": "server",
            "success": True,
            **common,
            "draws": draws.hex(),
            "adverts": [frames[name].hex() for name in names],
            "order": server.roster,
            "cases": steps,
        },
        {
            "operation": "client",
            "success": True,
            **common,
            "draws": client_draws[: client.draws.used].hex(),
            "vector": [1],
            "messages": [message.hex() for message in client_messages],
            "answers": [hashlib.sha256(answer or b"").hexdigest() for answer in answers],
            "cases": ends,
        },
    ]


def _client(invite: bytes) -> page.Client:
    terms = Terms.decode(invite[48:171])
    server = page.identity_of(shake("server signing key"))
    pinned = page.Pinned(
        SEMI_HONEST, server, terms.fingerprint, [], None, page.Policy(), round=terms.round
    )
    return page.Client(pinned, Draws(shake("cut client", 140)), lambda: [1], page.Journal())


def _inbox(graph: Graph, me: int, server: Server, secrets: dict[str, bytes]) -> bytes:
    """Return the body of an Inbox in which everybody is present and every share opens."""
    keys = {i: advert[32:64] for i, advert in enumerate(server.adverts)}
    body = bitmap(range(graph.k), graph.k)
    assert len(body) == bits(graph.k)
    for other in graph.neighbours(me):
        secret = secrets[server.roster[other]]
        key = page.share_key(secret, other, me, keys, server.ctx2, sender=other)
        body += page.seal(key, page.join(numbers(f"cut share {other}", 10, page.PRIME)))
    return body


def _run(
    server: Server, adverts: dict[str, bytes], in_share: list[int], in_collect: list[int]
) -> Json:
    """Return how a round ends, or not, when these indexes send nothing from a phase on."""
    for name, frame in adverts.items():
        assert server.receive(name, frame)
    server.close(NOW)
    silent: set[int] = set()
    for phase, type_, size, gone in (
        ("SHARE", SHARES, 56 * TERMS.k, in_share),
        ("COLLECT", MASKED_INPUT, page.packed_length(TERMS.entries, TERMS.bits), in_collect),
    ):
        if server.phase != phase:
            break
        silent |= set(gone)
        for index, name in enumerate(server.roster):
            if index not in silent:
                assert server.receive(
                    name, Frame(type_, server.session, index, bytes(size)).encode()
                )
        out = server.close(NOW)
    found: dict[str, Any] = {
        "success": not server.code,
        "in_share": in_share,
        "in_collect": in_collect,
    }
    left = hashlib.sha256(b"".join(out[name] for name in sorted(out))).hexdigest()
    return {
        **found,
        "code": server.code,
        "phase": server.phase,
        "to": sorted(out),
        "messages": left,
    }
