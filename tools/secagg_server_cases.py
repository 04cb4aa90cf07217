"""The server's answers to messages, good and bad: cases by `tools/secagg_reading.py`."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import secagg_reading as page
from secagg_reading import (
    ABORT,
    ACTIVE,
    ADVERTISE,
    MASKED_INPUT,
    SERVER,
    UNMASK,
    Frame,
    bitmap,
    bits,
    u8,
    u32,
)
from secagg_transcripts import (
    AFTER,
    NOW,
    PRIME,
    Json,
    Transcript,
    clear,
    closed,
    edited,
    frame_edits,
    message_json,
    server_case,
    shake,
)


def from_client(
    transcript: Transcript, type_: int, sender: int, body: bytes, version: int = 1
) -> bytes:
    """Return a message of a client.

    Args:
        transcript: Whose session it has.
        type_: Of the message.
        sender: In the header.
        body: The body.
        version: In the header.

    Returns:
        The message.
    """
    return Frame(type_, transcript.session, sender, body, version).encode()


def advertise_cases(transcript: Transcript) -> list[Json]:
    """Return what a server does in ADVERTISE.

    Args:
        transcript: Of any profile.

    Returns:
        Cases of servers.
    """
    found: list[Json] = []
    terms, is_active = transcript.terms, transcript.terms.profile == ACTIVE
    names = transcript.setting.arrivals
    first = "g"
    message = edited(transcript, f"advertise/{first}")
    body = transcript.messages[f"advertise/{first}"][48:]
    rank = transcript.pinned(first).rank if is_active else page.UNKNOWN

    def advert(data: bytes, who: str = first, sender: int = rank) -> bytes:
        if is_active:
            data = data[:112]
            data += page.sign(transcript.identities[who], "advertise", transcript.server.ctx, data)
        return from_client(transcript, ADVERTISE, sender, data)

    low, high = bytes(32), (2**255 - 18).to_bytes(32, "little")
    refused = [m for name, m in frame_edits(transcript, f"advertise/{first}", 12)]
    refused += [
        edited(transcript, f"advertise/{first}", (4, "02")),
        edited(transcript, f"shares/{first}"),
    ]
    refused += [
        from_client(transcript, ABORT, rank, u8(4)),
        from_client(transcript, ADVERTISE, SERVER, body),
    ]
    refused += [
        from_client(transcript, ADVERTISE, rank, body[:-1]),
        from_client(transcript, ADVERTISE, rank, body + b"\0"),
    ]
    refused += [
        advert(low + body[32:]),
        advert(body[:32] + high + body[64:]),
        advert(body[:32] + body[:32] + body[64:]),
    ]
    if is_active:
        refused += [
            from_client(transcript, ADVERTISE, page.UNKNOWN, body),
            from_client(transcript, ADVERTISE, rank, body[:112]),
        ]
        refused += [
            from_client(transcript, ADVERTISE, rank, clear(body, 8 * 175)),
            advert(body, who="a"),
        ]
        refused += [from_client(transcript, ADVERTISE, rank + 1, body)]
    else:
        refused += [
            from_client(transcript, ADVERTISE, 0, body),
            from_client(transcript, ADVERTISE, rank, body + bytes(64)),
        ]
    steps = [("receive", first, m, False) for m in refused]
    second = "a"
    theirs = transcript.messages[f"advertise/{second}"][48:]
    sender = transcript.pinned(second).rank if is_active else page.UNKNOWN
    late = [
        ("receive", first, message, False),
        ("receive", "x", message, False),
        ("receive", first, edited(transcript, f"advertise/{second}"), False),
        ("receive", second, advert(body[:32] + theirs[32:], second, sender), False),
        ("receive", second, advert(body[32:64] + theirs[32:], second, sender), False),
        ("receive", second, advert(theirs[:32] + body[32:64] + theirs[64:], second, sender), False),
        ("receive", second, edited(transcript, f"advertise/{second}"), True),
    ]
    if is_active:  # the identity once more, with other keys and on another connection
        fresh = (
            page.public_key(shake("fresh mask"))
            + page.public_key(shake("fresh encryption"))
            + body[64:112]
        )
        late.insert(0, ("receive", "x", advert(fresh), False))
    ok = ("receive", first, message, True)
    found.append(
        server_case(transcript, "ADVERTISE, refused and taken", "ADVERTISE", *steps, ok, *late)
    )
    enough = names[: terms.n_min]
    found.append(
        server_case(transcript, "ADVERTISE, n_min", "ADVERTISE", ("all", enough), ("close", 0))
    )
    found.append(
        server_case(
            transcript, "ADVERTISE, too few", "ADVERTISE", ("all", enough[:-1]), ("close", 15)
        )
    )
    found.append(server_case(transcript, "ADVERTISE, nobody", "ADVERTISE", ("close", 15)))
    found.append(
        server_case(
            transcript,
            "ADVERTISE, the last second",
            "ADVERTISE",
            ("all", names),
            ("close", 0, AFTER),
        )
    )
    ended = [("close", 5, AFTER + 1), ("receive", first, message, False)]
    found.append(
        server_case(transcript, "ADVERTISE, too late", "ADVERTISE", ("all", names[:2]), *ended)
    )
    more = []
    for number in range(len(names), terms.n_max + 1):
        if is_active:
            who = "hi"[number - len(names)]
            data = transcript.client(who).receive(transcript.messages["invite"], NOW)
            assert data is not None
            more.append(("receive", who, data, number < terms.n_max))
        else:
            keys = [page.public_key(shake(f"more {number} {i}")) for i in (0, 1)]
            data = keys[0] + keys[1] + bytes(48)
            more.append(
                (
                    "receive",
                    f"more{number}",
                    from_client(transcript, ADVERTISE, rank, data),
                    number < terms.n_max,
                )
            )
    # In the ring the predicate does not hold for more than 12.
    code = 0 if terms.graph == 1 else 15
    found.append(
        server_case(
            transcript, "ADVERTISE, n_max", "ADVERTISE", ("all", names), *more, ("close", code)
        )
    )
    return found


def phase_cases(transcript: Transcript) -> list[Json]:
    """Return what a server does in the later phases.

    Args:
        transcript: Of any profile.

    Returns:
        Cases of servers.
    """
    found: list[Json] = []
    is_active, terms = transcript.terms.profile == ACTIVE, transcript.terms
    server = transcript.server
    kept = {step["phase"]: step for step in transcript.steps}

    def add(name: str, phase: str, *operations: tuple[Any, ...]) -> None:
        found.append(server_case(transcript, f"{phase}, {name}", phase, *operations))

    for phase in list(kept)[1:]:
        step = kept[phase]
        sent = step["from"]
        first, second = "g", next(who for who in sent if who != "g")
        key = f"{step['collects']}/{first}"
        good = edited(transcript, key)
        type_ = transcript.messages[key][5]
        body = transcript.messages[key][48:]
        me = transcript.sender_of(first)
        steps = [
            ("receive", first, m, False)
            for _, m in frame_edits(transcript, key, transcript.sender_of(second))
        ]
        others = sorted(set(range(13)) - {type_, ABORT})
        steps += [
            ("receive", first, from_client(transcript, other, me, body), False) for other in others
        ]
        steps += [
            ("receive", first, edited(transcript, key, (4, "02")), False),
            ("receive", "stranger", good, False),
            ("receive", second, good, False),
            ("receive", first, from_client(transcript, type_, page.UNKNOWN, body), False),
            ("receive", first, from_client(transcript, type_, me, body[:-1]), False),
            ("receive", first, from_client(transcript, type_, me, body + b"\0"), False),
            ("receive", first, from_client(transcript, type_, me, b""), False),
            ("receive", first, from_client(transcript, ABORT, me, u8(0)), False),
            ("receive", first, from_client(transcript, ABORT, me, u8(20)), False),
            ("receive", first, from_client(transcript, ABORT, me, b""), False),
            ("receive", first, from_client(transcript, ABORT, me, b"\x04\x04"), False),
            (
                "receive",
                first,
                from_client(transcript, ABORT, transcript.sender_of(second), u8(4)),
                False,
            ),
        ]
        if is_active:
            steps.append(
                ("receive", first, from_client(transcript, ABORT, page.UNKNOWN, u8(4)), False)
            )
        steps += bad_bodies(transcript, phase, first, me)
        add(
            "refused, then taken",
            phase,
            *steps,
            ("receive", first, good, True),
            ("receive", first, good, False),
        )
        add("in time", phase, ("all", sent), ("close", 0, AFTER))
        add(
            "too late",
            phase,
            ("all", sent),
            ("close", 5, AFTER + 1),
            ("receive", first, good, False),
        )
        aborted = from_client(transcript, ABORT, me, u8(12))
        rest = [who for who in sent if who != first]
        add(
            "a client that aborts",
            phase,
            ("receive", first, aborted, True),
            ("receive", first, good, False),
            ("all", rest),
        )
        answered = [
            ("receive", first, aborted, True),
            ("receive", first, aborted, True),
            ("receive", first, good, False),
        ]
        add("a client that answers and aborts", phase, ("all", sent), *answered, ("close", 0))
        if not is_active and phase == "SHARE":
            aborted = from_client(transcript, ABORT, page.UNKNOWN, u8(8))
            steps = [("receive", first, aborted, True), ("receive", first, good, False)]
            add("a client that aborts without an index", phase, *steps, ("all", rest))
        absent = next(
            (
                who
                for who in server.roster
                if who not in transcript.steps[list(kept).index(phase) - 1]["to"]
            ),
            None,
        )
        if absent is not None:
            asks = from_client(transcript, type_, transcript.sender_of(absent), body)
            aborts = from_client(transcript, ABORT, transcript.sender_of(absent), u8(9))
            steps = [
                ("receive", absent, asks, False),
                ("receive", absent, aborts, True),
                ("receive", absent, asks, False),
            ]
            add("a client that was not asked", phase, *steps)
        late = [name for name in transcript.messages if name.startswith(("shares/", "masked/"))]
        if phase in ("CONFIRM", "UNMASK"):
            steps = [("receive", name[-1], edited(transcript, name), False) for name in late]
            add("messages of closed phases", phase, *steps)

    present = kept["SHARE"]["from"]
    need = max(server.graph.t, terms.min_survivors)
    add("just enough", "SHARE", ("all", present[:need]), ("close", 0))
    add("too few", "SHARE", ("all", present[: need - 1]), ("close", 15))
    add("nobody", "SHARE", ("close", 15))
    add(
        "too few",
        "COLLECT",
        ("all", kept["COLLECT"]["from"][: terms.min_survivors - 1]),
        ("close", 12),
    )
    if terms.graph == 0:
        least: dict[int, tuple[str, ...]] = {}
        for chosen in combinations(kept["COLLECT"]["from"], terms.min_survivors):
            alive = {server.roster.index(who) for who in chosen}
            around = [{i, *server.graph.neighbours(i)} & alive for i in server.present]
            least.setdefault(min(map(len, around)), chosen)
        for missing, code in ((0, 0), (1, 13)):
            add(
                f"{missing} holders too few",
                "COLLECT",
                ("all", least[server.graph.t - missing]),
                ("close", code),
            )
    else:
        add(
            "just enough",
            "COLLECT",
            ("all", kept["COLLECT"]["from"][: terms.min_survivors]),
            ("close", 0),
        )
    if is_active:
        t = server.graph.t
        add("just enough", "CONFIRM", ("all", kept["CONFIRM"]["from"][:t]), ("close", 0))
        add("too few", "CONFIRM", ("all", kept["CONFIRM"]["from"][: t - 1]), ("close", 14))
    return [*found, *unmask_cases(transcript)]


def bad_bodies(transcript: Transcript, phase: str, who: str, sender: int) -> list[tuple[Any, ...]]:
    """Return messages of the right type and sender that a server refuses.

    Args:
        transcript: Where they are from.
        phase: Of the server.
        who: The client.
        sender: Its number.

    Returns:
        Operations.
    """
    client, server = transcript.clients[who], transcript.server
    found: list[bytes] = []
    if phase == "COLLECT":
        body = transcript.messages[f"masked/{who}"][48:]
        count, offset = transcript.terms.entries, 0
        for p, _ in page.planes(transcript.terms.bits):
            offset += -(-count * p // 8)
            if p < 8 and count * p % 8:
                changed = body[: offset - 1] + u8(body[offset - 1] | 0x80) + body[offset:]
                found.append(from_client(transcript, MASKED_INPUT, sender, changed))
        assert found or transcript.terms.bits % 8 == 0
    if phase == "CONFIRM":
        ctx2, identity = server.ctx2, transcript.identities[who]
        wrong = [
            page.sign(
                identity, "confirm", ctx2, hashlib.sha256(bitmap([0], client.graph.n)).digest()
            )
        ]
        digest = hashlib.sha256(client.survivors).digest()
        wrong += [
            page.sign(identity, "advertise", ctx2, digest),
            page.sign(shake("another"), "confirm", ctx2, digest),
        ]
        found += [from_client(transcript, page.CONFIRM, sender, signature) for signature in wrong]
    if phase == "UNMASK":
        body, k = transcript.messages[f"unmask/{who}"][48:], client.graph.k
        head = 20 + bits(k)
        found += [from_client(transcript, UNMASK, sender, u32(PRIME) + body[4:])]
        found += [from_client(transcript, UNMASK, sender, body[:-4] + u32(2**32 - 1))]
        found += [from_client(transcript, UNMASK, sender, body[:19])]
        if k % 8:
            found.append(
                from_client(
                    transcript,
                    UNMASK,
                    sender,
                    body[: head - 1] + u8(body[head - 1] | 0x80) + body[head:],
                )
            )
        for slot, other in enumerate(client.neighbours):
            if other not in server.present:
                slots = [slot, *(s for s, o in enumerate(client.neighbours) if o in client.opened)]
                shares = body[head:] + bytes(20)
                found.append(
                    from_client(transcript, UNMASK, sender, body[:20] + bitmap(slots, k) + shares)
                )
    return [("receive", who, message, False) for message in found]


def unmask_cases(transcript: Transcript) -> list[Json]:
    """Return how a server reconstructs, and whom it blames.

    Args:
        transcript: Of any profile.

    Returns:
        Cases of servers.
    """
    found: list[Json] = []
    server = transcript.server
    phase = "UNMASK"
    sent = next(step for step in transcript.steps if step["phase"] == phase)["from"]

    def answered(owner: int) -> list[str]:
        return [who for who in sent if server.roster.index(who) in server.holders(owner)]

    def spoil(who: str, owner: int) -> bytes:
        client = transcript.clients[who]
        at = 48
        if owner != client.index:
            given = [other for other in client.neighbours if other in client.opened]
            at += 20 + bits(client.graph.k) + 20 * given.index(owner)
        old = page.little(transcript.messages[f"unmask/{who}"][at : at + 4])
        return edited(
            transcript, f"unmask/{who}", (at, u32((old + 12_345 + 678 * ord(who)) % PRIME).hex())
        )

    def without(who: str, owner: int) -> bytes:
        client = transcript.clients[who]
        k = client.graph.k
        body = transcript.messages[f"unmask/{who}"][48:]
        slots = [slot for slot, other in enumerate(client.neighbours) if other in client.opened]
        place = [client.neighbours[slot] for slot in slots].index(owner)
        left = body[20 + bits(k) :]
        shares = left[: 20 * place] + left[20 * place + 20 :]
        slots.pop(place)
        body = body[:20] + bitmap(slots, k) + shares
        return from_client(transcript, UNMASK, transcript.sender_of(who), body)

    # The owners: one that is alive and one that is not. All holders that answer, in the order of
    # their points.
    for kind, owner in (
        ("alive", max(server.alive, key=lambda i: len(answered(i)))),
        ("dead", next(i for i in server.present if i not in server.alive)),
    ):
        holders = answered(owner)
        holders.sort(key=lambda who: server.graph.point(owner, server.roster.index(who)))
        t, m = server.graph.t, len(holders)
        assert m >= t
        for count in (1, 2):
            for end, wrong in (("first", holders[:count]), ("last", holders[-count:])):
                rest = [who for who in sent if who not in wrong]
                unnoticed = end == "last" and m - count >= t
                code = 0 if unnoticed or 2 * count <= m - t else 16
                steps = [("receive", who, spoil(who, owner), True) for who in wrong]
                name = (
                    f"UNMASK, {count} wrong share(s) of {m} of a client that is {kind}, the {end}"
                )
                found.append(
                    server_case(transcript, name, phase, ("all", rest), *steps, ("close", code))
                )
        left_out = [who for who in holders if server.roster.index(who) != owner][: m - t + 1]
        for gone, code in ((left_out[1:], 0), (left_out, 16)):
            rest = [who for who in sent if who not in gone]
            steps = [("receive", who, without(who, owner), True) for who in gone]
            name = f"UNMASK, {m - len(gone)} shares of a client that is {kind}"
            found.append(
                server_case(transcript, name, phase, ("all", rest), *steps, ("close", code))
            )
    found.append(server_case(transcript, "UNMASK, nobody", phase, ("close", 16)))
    found.append(
        server_case(
            transcript,
            "UNMASK, t - 1 answers",
            phase,
            ("all", sent[: server.graph.t - 1]),
            ("close", 16),
        )
    )
    found.append(
        server_case(transcript, "UNMASK, the session is over", phase, ("all", sent), ("close", 0))
    )
    # A masked vector that has one lane too many: the checksum entries are wrong.
    who = next(who for who in sent)
    values = page.unpack(
        transcript.messages[f"masked/{who}"][48:], transcript.terms.entries, transcript.terms.bits
    )
    for name, at, by, code in (
        ("the last lane", -1, 1, 17),
        ("an entry", 0, 1, 0),
        ("the first lane", transcript.terms.length, -1, 17),
    ):
        changed = list(values)
        changed[at] = (changed[at] + by) % 2**transcript.terms.bits
        message = from_client(
            transcript,
            MASKED_INPUT,
            transcript.sender_of(who),
            page.pack(changed, transcript.terms.bits),
        )
        found.append(lane_case(transcript, name, who, message, code))
    return found


def lane_case(transcript: Transcript, name: str, who: str, message: bytes, code: int) -> Json:
    """Return a case from COLLECT to the end in which one masked vector is another.

    Args:
        transcript: Where it is from.
        name: What is changed.
        who: The client.
        message: Its MaskedInput.
        code: With which the round ends, or 0.

    Returns:
        The case.
    """
    server = transcript.new_server("COLLECT")
    shown: list[Json] = []
    for step in transcript.steps[2:]:
        for client in step["from"]:
            sent = edited(transcript, f"{step['collects']}/{client}")
            if step["phase"] == "COLLECT" and client == who:
                sent = message
            assert server.receive(client, sent)
            shown.append(
                {"from": client, "message": message_json(transcript, sent), "success": True}
            )
        shown.append(closed(server))
    assert server.code == code
    return {
        "name": f"{transcript.setting.name}: COLLECT, {name} changed",
        "transcript": transcript.setting.name,
        "phase": "COLLECT",
        "operations": shown,
    }
