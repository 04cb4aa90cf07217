"""A client's answers to messages, good and bad: cases by `tools/secagg_reading.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import secagg_reading as page
from secagg_reading import (
    ABORT,
    ACTIVE,
    ADVERTISE,
    CONFIRMATIONS,
    INBOX,
    INVITE,
    MASKED_INPUT,
    RESULT,
    ROSTER,
    SERVER,
    SHARES,
    SURVIVORS,
    UNMASK,
    Frame,
    Policy,
    bitmap,
    bits,
    u8,
    u32,
)
from secagg_transcripts import (
    AFTER,
    BEFORE,
    NAMES,
    NOW,
    PRIME,
    ClientOperation,
    Json,
    Transcript,
    body_of,
    clear,
    client_case,
    edited,
    frame_edits,
    numbers,
    shake,
)


def invite(transcript: Transcript, **changes: Any) -> bytes:
    """Return a signed Invite with other terms.

    Args:
        transcript: Where it is from.
        changes: Other fields of the terms.

    Returns:
        The message.
    """
    terms = replace(transcript.terms, **changes)
    return page.invite_frame(transcript.session, terms.encode(), transcript.secret)


Change = tuple[str, Json, int]
RING_INVITES: list[Change] = [
    ("unchanged", {}, 0),
    ("n_min 2", {"n_min": 2, "min_survivors": 2, "k": 2, "t": 2}, 4),
    ("n_min above n_max", {"n_min": 15}, 4),
    ("n_max 2^20", {"n_max": 2**20, "bits": 22}, 0),
    ("n_max 2^20 + 1", {"n_max": 2**20 + 1, "bits": 22}, 4),
    ("2^b above n_max", {"bits": 4}, 0),
    ("2^b not above n_max", {"bits": 3}, 4),
    ("2^b equal to n_max", {"bits": 4, "n_max": 16}, 4),
    ("b 64", {"bits": 64}, 0),
    ("b 65", {"bits": 65}, 4),
    ("b 0", {"bits": 0}, 4),
    ("V 0", {"length": 0}, 4),
    ("V 2^64 - 1", {"length": 2**64 - 1}, 4),
    ("min_survivors 0", {"min_survivors": 0}, 4),
    ("min_survivors n_min", {"min_survivors": 10}, 0),
    ("min_survivors above n_min", {"min_survivors": 11}, 4),
    ("C 0", {"corrupt": 0}, 4),
    ("C equal to min_survivors", {"corrupt": 8}, 4),
    ("one honest", {"corrupt": 7}, 4),
    ("two honest", {"corrupt": 6}, 0),
    ("max_dropout 999999", {"max_dropout": 999_999}, 0),
    ("max_dropout 1000000", {"max_dropout": 1_000_000}, 4),
    ("k odd", {"k": 7}, 4),
    ("t 1", {"t": 1}, 4),
    ("t equal to k", {"t": 6}, 0),
    ("t above k", {"t": 7}, 4),
    ("k n_min - 2", {"k": 8}, 0),
    ("k above n_min - 2", {"k": 10}, 4),
    ("k 2^15", {"k": 2**15, "n_min": 40_000, "n_max": 40_000, "bits": 32}, 0),
    ("k above 2^15", {"k": 2**15 + 2, "n_min": 40_000, "n_max": 40_000, "bits": 32}, 4),
    ("k 0 but a ring", {"k": 0}, 1),
    ("complete but k 6", {"graph": 1}, 1),
    ("graph 2", {"graph": 2}, 1),
    ("graph 2, k 0", {"graph": 2, "k": 0, "t": 0}, 1),
    ("complete", {"graph": 1, "k": 0, "t": 0}, 0),
    ("complete with a threshold", {"graph": 1, "k": 0, "t": 3}, 4),
    ("complete, n_max 4096", {"graph": 1, "k": 0, "t": 0, "n_max": 4096}, 0),
    ("complete, n_max 4097", {"graph": 1, "k": 0, "t": 0, "n_max": 4097}, 4),
    ("profile 2", {"profile": 2}, 1),
    ("profile of the other kind", {"profile": 1}, 4),
    ("another fingerprint", {"fingerprint": shake("another")}, 4),
    ("an allow-list", {"allow_list": shake("another")}, 4),
]
ACTIVE_INVITES: list[Change] = [
    ("unchanged", {}, 0),
    ("C 0", {"corrupt": 0}, 0),
    ("min_survivors too few", {"min_survivors": 5}, 4),
    ("min_survivors at the lower bound", {"min_survivors": 6}, 0),
    ("min_survivors too many", {"min_survivors": 8}, 4),
    ("n_max 12", {"n_max": 12}, 0),
    ("n_max 13", {"n_max": 13}, 4),
    ("max_dropout 111111", {"max_dropout": 111_111}, 0),
    ("max_dropout 111112", {"max_dropout": 111_112}, 4),
    ("a ring", {"graph": 0, "k": 6, "t": 3}, 4),
    ("n_max 1000", {"n_min": 999, "n_max": 1000, "min_survivors": 600, "bits": 16}, 0),
    ("n_max 1001", {"n_min": 999, "n_max": 1001, "min_survivors": 600, "bits": 16}, 4),
    ("profile of the other kind", {"profile": 0}, 4),
    ("another fingerprint", {"fingerprint": bytes(32)}, 4),
    ("another allow-list", {"allow_list": shake("another")}, 4),
    ("no allow-list", {"allow_list": bytes(32)}, 4),
]


def invite_cases(ring: Transcript, complete: Transcript, active: Transcript) -> list[Json]:
    """Return Invites that are taken and refused.

    Args:
        ring: A transcript.
        complete: A transcript.
        active: A transcript.

    Returns:
        Cases of clients.
    """
    found: list[Json] = []
    lax = Policy(length=2**32)

    def add(
        transcript: Transcript, name: str, message: bytes, code: int, now: int = NOW, **changes: Any
    ) -> None:
        wanted: str | int = code or "answer"
        found.append(
            client_case(transcript, f"Invite, {name}", "g", 0, (message, wanted, now), **changes)
        )

    for transcript, table in ((ring, RING_INVITES), (active, ACTIVE_INVITES)):
        for name, changes, code in table:
            add(transcript, name, invite(transcript, **changes), code, plan=None, policy=lax)
    for b, width in ((16, 2), (17, 4), (33, 8)):
        length = 2**30 // width - page.checksum_count(b)
        add(
            ring,
            f"V at its bound, b {b}",
            invite(ring, bits=b, length=length),
            0,
            plan=None,
            policy=lax,
        )
        add(
            ring,
            f"V above its bound, b {b}",
            invite(ring, bits=b, length=length + 1),
            4,
            plan=None,
            policy=lax,
        )
    plain = invite(ring)
    limits: list[tuple[str, int, int]] = [
        ("corrupt", 1, 2),
        ("max_corrupt", 71_428, 71_429),
        ("min_honest", 7, 8),
    ]
    limits += [
        ("min_clients", 10, 11),
        ("n_max", 14, 13),
        ("k", 6, 5),
        ("length", 7, 6),
        ("bits", 16, 15),
        ("seconds", 1100, 1099),
    ]
    for field, good, bad in limits:
        for value, code in ((good, 0), (bad, 4)):
            add(
                ring,
                f"policy {field} {value}",
                plain,
                code,
                plan=None,
                policy=Policy(**{field: value}),
            )
    others = active.terms.n_max - 1
    for transcript, least, code in ((ring, 1, 4), (active, others, 0), (active, others + 1, 4)):
        add(
            transcript,
            f"policy least_known {least}",
            invite(transcript),
            code,
            plan=None,
            policy=Policy(known=[u8(key).hex() * 32 for key in range(least)], least_known=least),
        )
    for value, code in ((8, 0), (7, 4)):
        add(
            complete, f"policy k {value}", invite(complete), code, plan=None, policy=Policy(k=value)
        )
    another: Json = {
        "length": 8,
        "bits": 24,
        "k": 8,
        "t": 3,
        "n_min": 11,
        "n_max": 13,
        "min_survivors": 9,
        "corrupt": 2,
    }
    for field, value in {**another, "max_dropout": 200_001}.items():
        add(ring, f"not the plan's {field}", invite(ring, **{field: value}), 4)
    add(ring, "not the plan's graph", invite(ring, graph=1, k=0, t=0), 4)
    add(ring, "the first of all rounds", invite(ring, round=0), 0, round=0)
    add(ring, "the last of all rounds", invite(ring, round=2**32 - 1), 0, round=2**32 - 1)
    add(ring, "another round, earlier", invite(ring, round=1), 4)
    add(ring, "another round, later", invite(ring, round=3), 4)
    add(ring, "another round, without a plan", invite(ring, round=3), 4, plan=None)
    add(ring, "other times", invite(ring, not_before=NOW - 604_799, not_after=NOW + 1), 0)
    add(
        ring,
        "a session of more than a week",
        invite(ring, not_before=NOW - 604_799, not_after=NOW + 2),
        4,
    )
    add(ring, "a session without an end", invite(ring, not_before=0, not_after=2**64 - 1), 4)
    add(ring, "times from the end", invite(ring, not_before=2**64 - 1, not_after=2**64 - 1), 5)
    add(ring, "times the wrong way round", invite(ring, not_before=AFTER, not_after=BEFORE), 5)
    add(ring, "the first second", plain, 0, BEFORE)
    add(ring, "a second too early", plain, 5, BEFORE - 1)
    add(ring, "the last second", plain, 0, AFTER)
    add(ring, "a second too late", plain, 5, AFTER + 1)
    add(ring, "too late, and of an unknown profile", invite(ring, profile=2), 1, AFTER + 1)
    add(ring, "too late, and refused", invite(ring, corrupt=0), 4, AFTER + 1)
    for transcript in (ring, complete, active):
        add(transcript, "session seen", invite(transcript), 6, seen=True)
        add(transcript, "session seen, too late", invite(transcript), 5, AFTER + 1, seen=True)
        add(transcript, "session seen, refused", invite(transcript, corrupt=2), 4, seen=True)
    dropped = [
        *frame_edits(ring, "invite", UNMASK),
        ("signature", edited(ring, "invite", (200, "0000"))),
    ]
    dropped += [
        (
            "signed by another",
            page.invite_frame(ring.session, ring.terms.encode(), shake("another")),
        )
    ]
    dropped += [("one term changed", edited(ring, "invite", (55 + 48, "01")))]
    dropped += [
        ("version changed", edited(ring, "invite", (4, "02"))),
        ("186 bytes", body_of(ring, "invite", lambda b: b[:-1])),
    ]
    dropped += [("an Abort", Frame(ABORT, ring.session, SERVER, u8(4)).encode())]
    dropped += [
        ("a Roster", edited(ring, "roster/g")),
        ("188 bytes", body_of(ring, "invite", lambda b: b + b"\0")),
    ]
    steps = [(message, "drop") for _, message in dropped]
    found.append(
        client_case(ring, "Invite, dropped before a good one", "g", 0, *steps, (plain, "answer"))
    )
    for version in (0, 2, 255):
        data = page.invite_frame(ring.session, ring.terms.encode(), ring.secret, version)
        add(ring, f"signed, of version {version}", data, 2)
    return found


def roster_cases(ring: Transcript, complete: Transcript, active: Transcript) -> list[Json]:
    """Return Rosters that are taken and refused.

    Args:
        ring: A transcript.
        complete: A transcript.
        active: A transcript.

    Returns:
        Cases of clients.
    """
    found: list[Json] = []

    def add(transcript: Transcript, name: str, message: bytes, code: int) -> None:
        found.append(
            client_case(transcript, f"Roster, {name}", "g", 1, (message, code or "answer"))
        )

    me = ring.server.roster.index("g")
    size = len(ring.messages["roster/g"])
    low, high = (
        sorted(page.LOW_ORDER)[2].to_bytes(32, "little"),
        (2**255 - 19).to_bytes(32, "little"),
    )
    add(ring, "39 bytes", body_of(ring, "roster/g", lambda b: b[:39]), 1)
    add(ring, "empty", body_of(ring, "roster/g", lambda _: b""), 1)
    add(ring, "an advert less", body_of(ring, "roster/g", lambda b: b[:-112]), 1)
    add(ring, "an advert more", body_of(ring, "roster/g", lambda b: b + b[-112:]), 1)
    add(ring, "a byte more", body_of(ring, "roster/g", lambda b: b + b"\0"), 1)
    for n, code in ((9, 8), (10, 0), (11, 0), (13, 8), (14, 8), (15, 8), (2**32 - 1, 8)):
        add(ring, f"n {n}", edited(ring, "roster/g", (48, u32(n).hex())), 8 if me >= n else code)
    for index in (12, 2**32 - 1):
        add(ring, f"index {index} of 12", edited(ring, "roster/g", (52, u32(index).hex())), 8)
    add(ring, "n 15 and no adverts", body_of(ring, "roster/g", lambda b: u32(15) + b[4:40]), 8)
    add(ring, "another index", edited(ring, "roster/g", (52, u32((me + 1) % 12).hex())), 0)
    add(ring, "another digest", edited(ring, "roster/g", (56, "00")), 0)
    add(ring, "mask key of low order", edited(ring, "roster/g", (88, low.hex())), 8)
    add(ring, "encryption key not canonical", edited(ring, "roster/g", (size - 80, high.hex())), 8)
    first = ring.messages["roster/g"][88 : 88 + 112]
    mine = ring.messages["advertise/g"][48:]
    add(ring, "one neighbour twice", edited(ring, "roster/g", (88 + 112, first.hex())), 8)
    add(ring, "one's own advert as a neighbour's", edited(ring, "roster/g", (88, mine.hex())), 8)
    add(
        ring,
        "one's own mask key as a neighbour's other key",
        edited(ring, "roster/g", (120, mine[:32].hex())),
        8,
    )
    add(
        ring, "both keys of a neighbour equal", edited(ring, "roster/g", (120, first[:32].hex())), 8
    )
    add(complete, "n 7 and adverts of 8", edited(complete, "roster/g", (48, u32(7).hex())), 1)
    seven = body_of(complete, "roster/g", lambda b: u32(7) + u32(6) + b[8:-112])
    add(complete, "n 7", seven, 0)
    add(
        complete,
        "n 5",
        body_of(complete, "roster/g", lambda b: u32(5) + u32(1) + b[8 : 40 + 4 * 112]),
        8,
    )

    count = len(active.allow)
    adverts = {who: active.messages[f"advertise/{who}"][48:] for who in active.setting.arrivals}
    for who in "hi":
        spare = active.client(who).receive(active.messages["invite"], NOW)
        assert spare is not None
        adverts[who] = spare[48:]

    def roster(members: str, **changes: bytes) -> bytes:
        who = sorted(members)
        body = bitmap([NAMES.index(w) for w in who], count) + b"".join(
            changes.get(w, adverts[w]) for w in who
        )
        return Frame(ROSTER, active.session, SERVER, body).encode()

    def signed(who: str, advert: bytes, ctx: bytes = active.server.ctx) -> bytes:
        return advert + page.sign(active.identities[who], "advertise", ctx, advert)

    everybody = active.setting.arrivals
    without = "".join(sorted(set(everybody) - {"g"}))
    assert roster(everybody) == active.messages["roster"]
    add(
        active,
        "padding",
        edited(active, "roster", (49, u8(active.messages["roster"][49] | 0x80).hex())),
        1,
    )
    add(active, "empty", body_of(active, "roster", lambda _: b""), 1)
    add(active, "bitmap alone", body_of(active, "roster", lambda b: b[:2]), 1)
    add(active, "a byte less", body_of(active, "roster", lambda b: b[:-1]), 1)
    add(active, "an advert less", body_of(active, "roster", lambda b: b[:-176]), 1)
    add(
        active,
        "a bit more",
        edited(active, "roster", (48, u8(active.messages["roster"][48] | 0x80).hex())),
        1,
    )
    add(active, "own advert missing", roster(without), 8)
    add(active, "own advert missing, another client in its place", roster(without + "h"), 8)
    add(active, "n 9", roster(everybody.replace("l", "")), 0)
    add(active, "n 8", roster(everybody.replace("l", "").replace("a", "")), 8)
    add(active, "n 11", roster(everybody + "h"), 8)
    add(active, "another member", roster(everybody.replace("l", "h")), 0)
    nonce = signed("g", adverts["g"][:96] + bytes(16))
    add(active, "own advert with another nonce", roster(everybody, g=nonce), 8)
    add(
        active,
        "own signature alone differs",
        roster(everybody, g=adverts["g"][:112] + bytes(64)),
        8,
    )
    add(active, "a false signature", roster(everybody, a=clear(adverts["a"], 8 * 112 + 3)), 8)
    add(active, "a changed commitment", roster(everybody, a=clear(adverts["a"], 8 * 70)), 8)
    other = signed("a", adverts["a"][:112], shake("another ctx"))
    add(active, "an advert of another session", roster(everybody, a=other), 8)
    add(
        active,
        "an advert signed by another member",
        roster(everybody, a=signed("b", adverts["a"][:112])),
        8,
    )
    add(active, "two adverts exchanged", roster(everybody, a=adverts["b"], b=adverts["a"]), 8)
    add(
        active,
        "a mask key of low order",
        roster(everybody, a=signed("a", low + adverts["a"][32:112])),
        8,
    )
    moved = adverts["a"][:32] + high + adverts["a"][64:112]
    add(
        active,
        "an encryption key that is not canonical",
        roster(everybody, a=signed("a", moved)),
        8,
    )
    same = adverts["a"][:32] + adverts["a"][:32] + adverts["a"][64:112]
    add(active, "both keys of a member equal", roster(everybody, a=signed("a", same)), 8)
    copied = adverts["g"][32:64] + adverts["a"][32:112]
    add(active, "one's own key as another's", roster(everybody, a=signed("a", copied)), 8)
    copied = adverts["b"][:32] + adverts["a"][32:112]
    add(active, "one key of two members", roster(everybody, a=signed("a", copied)), 8)
    copied = adverts["a"][:64] + adverts["b"][64:112]
    add(active, "one commitment of two members", roster(everybody, a=signed("a", copied)), 0)
    return found


def inbox_body(
    transcript: Transcript, who: str, keep: Iterable[int], garble: Iterable[int] = ()
) -> bytes:
    """Return an Inbox of a client with fewer neighbours, or with ciphertexts that do not open.

    Args:
        transcript: Where it is from.
        who: The client.
        keep: Indexes of those that stay present.
        garble: Indexes of those whose ciphertext is spoiled.

    Returns:
        The message.
    """
    client = transcript.clients[who]
    k = client.graph.k
    keep, garble = set(keep), set(garble)

    def change(body: bytes) -> bytes:
        texts = dict(
            zip(
                client.present,
                (body[bits(k) + 56 * i :][:56] for i in range(len(client.present))),
                strict=True,
            )
        )
        slots = [slot for slot, other in enumerate(client.neighbours) if other in keep]
        out = bitmap(slots, k)
        for slot in slots:
            other = client.neighbours[slot]
            out += clear(texts[other], 8 * 55) if other in garble else texts[other]
        return out

    return body_of(transcript, f"inbox/{who}", change)


def survivors(transcript: Transcript, alive: Iterable[int]) -> bytes:
    """Return a Survivors message.

    Args:
        transcript: Where it is from.
        alive: The indexes of those alive.

    Returns:
        The message.
    """
    n = transcript.server.graph.n
    return Frame(SURVIVORS, transcript.session, SERVER, bitmap(alive, n)).encode()


def later_cases(transcript: Transcript) -> list[Json]:
    """Return what a client does at Inbox, Survivors and Confirmations.

    Args:
        transcript: Of any profile.

    Returns:
        Cases of clients.
    """
    found: list[Json] = []
    is_active = transcript.terms.profile == ACTIVE
    # A neighbour of somebody absent, that answers to the end.
    server = transcript.server
    absent = next(i for i in range(server.graph.n) if i not in server.present)
    done = {who for who, client in transcript.clients.items() if client.state == "DONE"}
    who = next(w for w in sorted(done) if absent in transcript.clients[w].neighbours)
    client = transcript.clients[who]
    me, k, n, t = client.index, client.graph.k, client.graph.n, client.graph.t
    assert me is not None
    terms = transcript.terms
    needed = max(t, terms.min_survivors) if is_active else t

    def add(name: str, taken: int, *operations: ClientOperation, **changes: Any) -> None:
        found.append(client_case(transcript, name, who, taken, *operations, **changes))

    own_inbox = edited(transcript, f"inbox/{who}")
    own_survivors = edited(transcript, "survivors")
    present = client.present
    some = sorted(present)

    # Inbox
    add("Inbox, a byte less", 2, (body_of(transcript, f"inbox/{who}", lambda b: b[:-1]), 1))
    add("Inbox, a byte more", 2, (body_of(transcript, f"inbox/{who}", lambda b: b + b"\0"), 1))
    add("Inbox, empty", 2, (body_of(transcript, f"inbox/{who}", lambda _: b""), 1))
    if k % 8:
        last = 48 + bits(k) - 1
        byte = transcript.messages[f"inbox/{who}"][last] | 0x80
        add("Inbox, padding", 2, (edited(transcript, f"inbox/{who}", (last, u8(byte).hex())), 1))
    for count, wanted in ((needed - 1, "answer"), (needed - 2, 9), (0, 9)):
        message = inbox_body(transcript, who, some[:count])
        add(f"Inbox, {count} present", 2, (message, wanted))
        message = inbox_body(transcript, who, some, some[count:])
        add(f"Inbox, {count} of those present open", 2, (message, wanted))
    garbled = inbox_body(transcript, who, some, some[:1])
    case = client_case(
        transcript, "Inbox, one does not open and is a neighbour still", who, 2, (garbled, "answer")
    )
    assert case["operations"][0]["answer"] == {"key": f"masked/{who}"}
    found.append(case)
    add("Unmask without what did not open", 2, (garbled, "answer"), (own_survivors, "answer"))
    share = page.join(numbers("not below the prime", 10, PRIME))
    key = page.share_key(
        client.enc_secret, me, some[0], client.enc_keys, client.ctx2, sender=some[0]
    )
    for place in (0, 9):
        spoiled = page.seal(key, share[: 4 * place] + u32(PRIME) + share[4 * place + 4 :])
        at = 48 + bits(k) + 56 * present.index(some[0])
        message = edited(transcript, f"inbox/{who}", (at, spoiled.hex()))
        add(
            f"Inbox, element {place} not below p", 2, (message, "answer"), (own_survivors, "answer")
        )
    back = page.share_key(client.enc_secret, me, some[0], client.enc_keys, client.ctx2, sender=me)
    message = edited(transcript, f"inbox/{who}", (at, page.seal(back, share).hex()))
    add("Inbox, a share in the wrong direction", 2, (message, "answer"), (own_survivors, "answer"))
    message = edited(transcript, f"inbox/{who}", (at, page.seal(key, share).hex()))
    add("Inbox, another share that opens", 2, (message, "answer"), (own_survivors, "answer"))
    add("Inbox, item spent", 2, (own_inbox, 7), spent=True)
    add("Inbox, too few open and item spent", 2, (inbox_body(transcript, who, []), 9), spent=True)
    bound = 2 ** (terms.bits - 1) - 1
    for name, vector, wanted in (
        ("of the largest entries", [bound, -bound] + [0] * (terms.length - 2), "answer"),
        ("above the bound", [bound + 1] + [0] * (terms.length - 1), "raise"),
        ("below the bound", [-bound - 1] + [0] * (terms.length - 1), "raise"),
        ("too short", [0] * (terms.length - 1), "raise"),
        ("too long", [0] * (terms.length + 1), "raise"),
    ):
        steps: list[ClientOperation] = [(own_inbox, wanted)]
        if wanted == "raise":
            steps.append((own_inbox, "drop"))
        add(f"Inbox, a vector {name}", 2, *steps, vector=vector)

    # Survivors
    alive = set(server.alive)
    add("Survivors, empty", 3, (body_of(transcript, "survivors", lambda _: b""), 1))
    add("Survivors, a byte more", 3, (body_of(transcript, "survivors", lambda b: b + b"\0"), 1))
    if n % 8:
        add(
            "Survivors, padding",
            3,
            (body_of(transcript, "survivors", lambda b: b[:-1] + u8(b[-1] | 0x80)), 1),
        )
    add("Survivors, own bit dead", 3, (survivors(transcript, alive - {me}), 10))
    add("Survivors, nobody", 3, (survivors(transcript, []), 10))
    add("Survivors, an absent one revived", 3, (survivors(transcript, alive | {absent}), 11))
    add(
        "Survivors, own bit dead and one revived",
        3,
        (survivors(transcript, (alive | {absent}) - {me}), 10),
    )
    add("Survivors, a revived one and nobody else", 3, (survivors(transcript, [me, absent]), 11))
    add("Survivors, oneself alone", 3, (survivors(transcript, [me]), 12))
    few = [
        me,
        *(i for i in some if i in alive),
        *(i for i in sorted(alive) if i not in some and i != me),
    ]
    add("Survivors, one too few", 3, (survivors(transcript, few[: terms.min_survivors - 1]), 12))
    if not is_active:
        add(
            "Survivors, just enough",
            3,
            (survivors(transcript, few[: max(t, terms.min_survivors)]), "answer"),
        )
    # Of those that opened all but a few are dead; alive are enough.
    opened = some[: t - 1]
    message = inbox_body(transcript, who, some, [i for i in some if i not in opened])
    others = [i for i in range(n) if i not in opened and i != absent]
    add("Inbox, t open", 2, (message, 9 if t < needed else "answer"))
    if t == needed:
        add(
            "Survivors, t - 1 alive and opened",
            2,
            (message, "answer"),
            (survivors(transcript, [*others, *opened[1:]]), 13),
        )
    else:
        opened = some[: needed - 1]
        message = inbox_body(transcript, who, some, [i for i in some if i not in opened])
        others = [i for i in range(n) if i not in opened and i != absent]
        for gone, code in ((1, 12), (2, 13)):
            bitmap_ = survivors(transcript, [*others, *opened[gone:]])
            add(
                f"Survivors, opened and alive {gone} too few",
                2,
                (message, "answer"),
                (bitmap_, code),
            )
    if is_active:
        found += known_cases(transcript, who, own_inbox) + confirmation_cases(transcript, who)
    return found


def known_cases(transcript: Transcript, who: str, own_inbox: Json) -> list[Json]:
    """Return what a client does whose policy names clients that it knows.

    Args:
        transcript: Of the profile `active`.
        who: The client.
        own_inbox: The Inbox that it gets.

    Returns:
        Cases of a client.
    """
    client, alive = transcript.clients[who], transcript.server.alive
    me, some = client.index, sorted(client.present)
    assert me is not None
    one = next(other for other in some if other in alive)
    fewer = survivors(transcript, set(alive) - {one})
    found = []
    for name, known, least, taken, operations in (
        ("all of them there", some, len(some), 2, [(own_inbox, "answer")]),
        ("one does not open", some, len(some), 2, [(inbox_body(transcript, who, some, [one]), 9)]),
        ("oneself does not count", [me, one], 2, 2, [(own_inbox, 9)]),
        ("one is dead, and another is enough", some, 1, 3, [(fewer, "answer")]),
        ("one is dead", [one], 1, 3, [(fewer, 12)]),
    ):
        keys = [client.identities[each].hex() for each in known]
        policy = Policy(corrupt=1, known=keys, least_known=least)
        found.append(
            client_case(
                transcript, f"known clients, {name}", who, taken, *operations, policy=policy
            )
        )
    return found


def confirmation_cases(transcript: Transcript, who: str) -> list[Json]:
    """Return what a client does at Confirmations.

    Args:
        transcript: Of `active`.
        who: A client that is DONE in it.

    Returns:
        Cases of clients.
    """
    found: list[Json] = []
    client, server = transcript.clients[who], transcript.server
    me, n, t = client.index, client.graph.n, client.graph.t
    assert me is not None
    identity = {i: transcript.identities[name] for i, name in enumerate(server.roster)}
    body = hashlib.sha256(client.survivors).digest()
    good = {i: page.sign(identity[i], "confirm", client.ctx2, body) for i in range(n)}
    others = [i for i in server.alive if i != me]
    dead = next(i for i in server.present if i not in server.alive)
    absent = next(i for i in range(n) if i not in server.present)

    def add(name: str, wanted: str | int, signatures: dict[int, bytes]) -> None:
        body = bitmap(signatures, n) + b"".join(signatures[i] for i in sorted(signatures))
        message = Frame(CONFIRMATIONS, transcript.session, SERVER, body).encode()
        found.append(client_case(transcript, f"Confirmations, {name}", who, 4, (message, wanted)))

    enough = {i: good[i] for i in others[: t - 1]}
    few = dict(list(enough.items())[:-1])
    last = others[t - 2]
    add("t with oneself, who is not in the list", "answer", enough)
    add("t with oneself", "answer", {**enough, me: good[me]})
    add("all", "answer", {i: good[i] for i in server.alive})
    add("t - 1 with oneself", 14, {**few, me: good[me]})
    add("none", 14, {})
    add("one's own signature is not looked at", "answer", {**enough, me: bytes(64)})
    add("one that is false", 14, {**few, last: clear(good[last], 300)})
    add("one of zeros", 14, {**few, last: bytes(64)})
    add("one false, but enough", "answer", {**enough, others[t - 1]: bytes(64)})
    add("one by the wrong client", 14, {**few, last: good[others[0]]})
    add("one by a client that is not alive", 14, {**few, dead: good[dead]})
    add("one by a client that was absent", 14, {**few, absent: good[absent]})
    elsewhere = page.sign(
        identity[last], "confirm", client.ctx2, hashlib.sha256(bitmap(range(n), n)).digest()
    )
    add("one on another bitmap", 14, {**few, last: elsewhere})
    add(
        "one on another roster",
        14,
        {**few, last: page.sign(identity[last], "confirm", shake("ctx2"), body)},
    )
    add(
        "one under another label",
        14,
        {**few, last: page.sign(identity[last], "advertise", client.ctx2, body)},
    )
    order = 2**252 + 27742317777372353535851937790883648493
    large = good[last][:32] + (page.little(good[last][32:]) + order).to_bytes(32, "little")
    add("one whose S is not below the order", 14, {**few, last: large})
    for name, change in (
        ("empty", lambda _: b""),
        ("a byte less", lambda b: b[:-1]),
        ("a byte more", lambda b: b + b"\0"),
        ("a signature more", lambda b: b + bytes(64)),
        ("padding", lambda b: b[:1] + u8(b[1] | 0x80) + b[2:]),
    ):
        message = body_of(transcript, "confirmations", change)
        found.append(client_case(transcript, f"Confirmations, {name}", who, 4, (message, 1)))
    return found


def order_cases(transcript: Transcript) -> list[Json]:
    """Return messages out of turn, copies, times, versions, Aborts and dropped ones, by state.

    Args:
        transcript: Of any profile.

    Returns:
        Cases of clients.
    """
    found: list[Json] = []
    who = "g"
    keys = transcript.keys_to(who)
    states = ["NEW", *(then for _, _, then in page.TAKES[transcript.terms.profile].values())]
    sender = transcript.pinned(who).rank if transcript.terms.profile == ACTIVE else 0

    def abort(body: bytes) -> bytes:
        return Frame(ABORT, transcript.session, SERVER, body).encode()

    for taken in range(1, len(keys)):
        state, key = states[taken], keys[taken]
        last = edited(transcript, keys[taken - 1])
        wanted = edited(transcript, key)

        def add(
            name: str, *operations: ClientOperation, taken: int = taken, state: str = state
        ) -> None:
            found.append(client_case(transcript, f"{state}, {name}", who, taken, *operations))

        steps: list[ClientOperation] = [
            (message, "drop") for _, message in frame_edits(transcript, key, sender)
        ]
        add("dropped, then taken", *steps, (wanted, "answer"), (wanted, "answer"))
        add(
            "a copy is answered again, at any time",
            (last, "answer"),
            (last, "answer", AFTER + 10_000),
            (wanted, "answer"),
        )
        add("the last second", (wanted, "answer", AFTER), (wanted, "answer", AFTER + 1))
        add("too late", (wanted, 5, AFTER + 1), (wanted, "drop"), (last, "drop"))
        add("before not_before", (wanted, "answer", BEFORE - 1))
        add("another version", (edited(transcript, key, (4, "00")), 2))
        add(
            "another version of the last message",
            (edited(transcript, keys[taken - 1], (4, "02")), 2),
        )
        add(
            "an Abort of another version",
            (edited(transcript, "result", (4, "02"), (5, "0b")), "note"),
            (wanted, "drop"),
        )
        add("an Abort with 13", (abort(u8(13)), "note"), (wanted, "drop"), (last, "drop"))
        add("an Abort with 18, too late", (abort(u8(18)), "note", AFTER + 1))
        add("an Abort with 20", (abort(u8(20)), "note"))
        add("an Abort with 0", (abort(u8(0)), "note"))
        add("an Abort of no bytes", (abort(b""), "note"))
        add("an Abort of two bytes", (abort(b"\4\4"), "note"))
        for type_ in sorted(
            {INVITE, ROSTER, INBOX, SURVIVORS, CONFIRMATIONS, RESULT}
            - {transcript.messages[key][5]}
        ):
            add(
                f"type {type_} out of turn",
                (Frame(type_, transcript.session, SERVER, b"").encode(), 3),
            )
        for type_ in (ADVERTISE, SHARES, MASKED_INPUT, UNMASK):
            add(
                f"a client's type {type_}",
                (Frame(type_, transcript.session, SERVER, b"").encode(), 3),
            )
        add("out of turn and too late", (edited(transcript, "result"), 3, AFTER + 1))
        if taken >= 2:
            add("the message before the last", (edited(transcript, keys[taken - 2]), 3))
        flip = u8(transcript.messages[keys[taken - 1]][-1] ^ 1).hex()
        size = len(transcript.messages[keys[taken - 1]])
        add(
            "the last message with another bit",
            (edited(transcript, keys[taken - 1], (size - 1, flip)), 3),
        )

    taken = len(keys)
    last, result = edited(transcript, keys[-1]), edited(transcript, "result")

    def end(name: str, *operations: ClientOperation) -> None:
        found.append(client_case(transcript, f"DONE, {name}", who, taken, *operations))

    end("Result", (result, "note"), (result, "drop"), (last, "answer"))
    end("Result, too late", (result, "note", AFTER + 1), (last, "answer", AFTER + 1))
    end("a second Result", (result, "note"), (edited(transcript, "result", (60, "00ff00")), "drop"))
    ignored = [
        edited(transcript, "result", (48, "01")),
        body_of(transcript, "result", lambda b: b[:-1]),
    ]
    ignored += [body_of(transcript, "result", lambda b: b + b"\0"), edited(transcript, "invite")]
    ignored += [
        edited(transcript, keys[1]),
        edited(transcript, keys[2]),
        edited(transcript, "result", (4, "02")),
    ]
    ignored += [
        abort(u8(0)),
        abort(u8(20)),
        abort(b""),
        abort(b"\4\4"),
        edited(transcript, keys[-1], (4, "02")),
    ]
    ignored += [message for _, message in frame_edits(transcript, "result", sender)]
    end("ignored, then a Result", *((message, "drop") for message in ignored), (result, "note"))
    end("an Abort", (abort(u8(17)), "note"), (result, "drop"), (last, "drop"))
    end("an Abort after a Result", (result, "note"), (abort(u8(17)), "drop"), (last, "answer"))
    return found
