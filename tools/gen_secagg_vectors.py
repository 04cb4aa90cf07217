"""Known answers of secure summation, computed by `tools/secagg_reading.py` from docs/protocol.md.

`tools/gen_vectors.py` writes them to ``tests/vectors/secagg.json``. Everything is derived from SHAKE-256 of labels.

A *transcript* has every message of one round, by a key such as ``inbox/c``, and what each party was given. A *client
case* is one client of a transcript that has taken its first ``taken`` messages and then a list of operations; a *server
case* is the server at the beginning of a phase and then a list of operations. A message in an operation is a key of
the transcript, perhaps with ``splices`` (``[start, end, hex]``: these bytes are replaced, one splice after another), or
its own ``hex``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
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
    SEMI_HONEST,
    SERVER,
    SHARES,
    SURVIVORS,
    UNMASK,
    Client,
    Draws,
    Frame,
    Journal,
    Pinned,
    Policy,
    Server,
    Terms,
    bitmap,
    bits,
    u8,
    u32,
)

Json = dict[str, Any]
NAMES = "abcdefghijkl"
NOW = 1_800_000_000
BEFORE, AFTER = NOW - 100, NOW + 1000
PRIME = page.PRIME


def shake(label: str, count: int = 32) -> bytes:
    """Return deterministic bytes.

    Args:
        label: Any text.
        count: How many.

    Returns:
        SHAKE-256 of the label.
    """
    return hashlib.shake_256(b"fedtally secagg vectors: " + label.encode()).digest(count)


def numbers(label: str, count: int, bound: int) -> list[int]:
    """Return deterministic integers.

    Args:
        label: Any text.
        count: How many.
        bound: They are below this.

    Returns:
        The integers.
    """
    data = shake(label, 16 * count)
    return [page.little(data[16 * i : 16 * i + 16]) % bound for i in range(count)]


def terms_json(terms: Terms) -> Json:
    """Return terms as JSON.

    Args:
        terms: Of an Invite.

    Returns:
        Integers, and hex for the two digests.
    """
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(terms).items()}


# ---------------------------------------------------------------------------------------------------------------------
# Keys, generator, packing, sharing, graph.


def label_vectors() -> list[Json]:
    """Return every derivation of the table of keys, the contexts and the digests, with inputs.

    Returns:
        One object each: ``name``, inputs in hex, ``output``.
    """
    found: list[Json] = []

    def add(name: str, output: bytes | Sequence[int], **inputs: Any) -> None:
        shown = {k: v.hex() if isinstance(v, bytes) else v for k, v in inputs.items()}
        found.append({"name": name, **shown, "output": output.hex() if isinstance(output, bytes) else list(output)})

    for round_, (i, j) in enumerate(((0, 1), (3, 700), (65_536, 2**20 - 1))):
        ctx, ctx2 = shake(f"ctx {round_}"), shake(f"ctx2 {round_}")
        seed, b = (page.join(numbers(f"{what} {round_}", 5, PRIME)) for what in ("seed", "b"))
        one, other = shake(f"one {round_}"), shake(f"other {round_}")
        keys = {i: page.public_key(one), j: page.public_key(other)}
        add("mask secret key", page.mask_secret(seed, ctx), seed=seed, ctx=ctx)
        add("commitment to b", page.commitment(b, ctx), b=b, ctx=ctx)
        add("self mask", page.self_mask_key(b, ctx2, j), b=b, ctx2=ctx2, index=j)
        pair = page.pair_mask_key(one, i, j, keys, ctx2)
        assert pair == page.pair_mask_key(other, j, i, keys, ctx2)
        ends: Json = {"i": i, "j": j, "secret_i": one, "secret_j": other, "public_i": keys[i], "public_j": keys[j]}
        add("pair mask", pair, ctx2=ctx2, **ends)
        for direction, sender in enumerate((i, j)):
            key = page.share_key(one, i, j, keys, ctx2, sender)
            assert key == page.share_key(other, j, i, keys, ctx2, sender)
            share = page.join(numbers(f"share {round_} {direction}", 10, PRIME))
            sealed = page.seal(key, share)
            add("share encryption", key, ctx2=ctx2, direction=direction, share=share, sealed=sealed, **ends)
        for n in (12, 33):
            add("ring order", page.ring_order(ctx2, n), ctx2=ctx2, n=n)
        terms, session = shake(f"terms {round_}", 123), shake(f"session {round_}")
        add("context", page.context_of(session, terms), session=session, terms=terms)
        for size, profile in ((112, SEMI_HONEST), (176, ACTIVE)):
            adverts = [shake(f"advert {round_} {a}", size) for a in range(3)]
            digest = page.adverts_digest(adverts)
            add("adverts", digest, adverts=[advert.hex() for advert in adverts])
            roster = shake(f"roster {round_}", 1) if profile == ACTIVE else None
            made = page.roster_context(ctx, 3, roster, digest)
            add("roster context", made, ctx=ctx, n=3, adverts=digest, roster=None if roster is None else roster.hex())
        survivors, salt = shake(f"survivors {round_}", 2), shake(f"salt {round_}")
        total = [0, 1, -1, 2**63 - 1, -(2**63)]
        made = page.result_digest(ctx2, survivors, salt, total)
        add("result", made, ctx2=ctx2, survivors=survivors, salt=salt, total=total)
    return found


def point_vectors() -> list[Json]:
    """Return public X25519 keys that are accepted and refused.

    Returns:
        One object each.
    """
    edge = 2**255 - 19
    low = sorted(page.LOW_ORDER)
    refused = [*low, *(value + edge for value in low if value + edge < 2**255), edge, edge + 5, 2**255 - 1]
    refused += [value + 2**255 for value in low] + [2**256 - 1, 2**255 + 9]
    values = [(value, False) for value in sorted(set(refused))] + [(value, True) for value in (2, 9, edge - 2)]
    return [{"key": value.to_bytes(32, "little").hex(), "success": success} for value, success in values]


def prg_vectors() -> list[Json]:
    """Return what is on both sides of each edge of a chunk, and digests of whole streams.

    Returns:
        One object for each key.
    """
    found = []
    for key in (bytes(32), bytes(range(32)), shake("prg key")):
        length = 3 * page.CHUNK + 5
        stream = page.prg(key, length)
        for chunk in range(3):
            for block in (0, 1, 8191):
                at = page.CHUNK * chunk + 16 * block
                assert stream[at : at + 16] == page.prg_block(key, chunk, block)
        edges = [0, page.CHUNK, 2 * page.CHUNK, 3 * page.CHUNK]
        found.append(
            {
                "key": key.hex(),
                "length": length,
                "sha256": hashlib.sha256(stream).hexdigest(),
                "chunks": [
                    {"first": stream[e : e + 32].hex(), "last": stream[e + page.CHUNK - 32 : e + page.CHUNK].hex()}
                    for e in edges[:-1]
                ],
                "tail": stream[edges[-1] :].hex(),
                "masks": [
                    {"bits": b, "count": 11, "entries": [str(entry) for entry in page.mask(key, 11, b)]}
                    for b in (1, 16, 17, 32, 33, 64)
                ],
                "long_masks": [
                    {
                        "bits": b,
                        "count": count,
                        "sha256": hashlib.sha256(
                            b"".join(entry.to_bytes(size, "little") for entry in page.mask(key, count, b))
                        ).hexdigest(),
                    }
                    for b, size in ((16, 2), (32, 4), (64, 8))
                    for count in (page.CHUNK // size - 1, page.CHUNK // size, page.CHUNK // size + 1)
                ],
            }
        )
    return found


def packing_vectors() -> list[Json]:
    """Return packed integers of every width, and bytes that are not packed integers.

    Returns:
        One object each.
    """
    found: list[Json] = []
    for b in range(1, 65):
        for count in (1, 11 if b % 3 else 8):
            values = numbers(f"packing {b} {count}", count, 2**b)
            values[-1] = 2**b - 1
            packed = page.pack(values, b)
            assert page.unpack(packed, count, b) == values and len(packed) == page.packed_length(count, b)
            shown = [str(value) for value in values]
            found.append({"success": True, "bits": b, "values": shown, "packed": packed.hex()})
    values = numbers("packing long", 1003, 2**23)
    digest = hashlib.sha256(page.pack(values, 23)).hexdigest()
    found.append({"success": True, "bits": 23, "values": [str(value) for value in values], "sha256": digest})
    for b, count in ((1, 3), (2, 3), (3, 5), (4, 1), (6, 7), (11, 11), (13, 2), (63, 1)):
        good = page.pack(numbers(f"refused {b}", count, 2**b), b)
        bad = [good[:-1], good + b"\0"]
        offset = 0
        for p, _ in page.planes(b):
            offset += -(-count * p // 8)
            if p < 8:  # every bit of the last byte that may be padding
                bad += [good[: offset - 1] + u8(good[offset - 1] ^ (1 << bit)) + good[offset:] for bit in (7, 6, 4)]
        for data in bad:
            try:
                page.unpack(data, count, b)
            except page.AbortError:
                found.append({"success": False, "bits": b, "count": count, "packed": data.hex()})
    return found


def shamir_vectors() -> list[Json]:
    """Return shares of given coefficients, what they combine to, and what shares with errors decode to.

    Returns:
        One object each, told apart by ``operation``.
    """
    found: list[Json] = []
    for t, points in ((2, [1, 2, 65_535]), (3, [1, 5, 6, 9]), (5, list(range(1, 10))), (6, [1, 2, 3, 4, 5, 6])):
        secret = numbers(f"secret {t}", 10, PRIME)
        secret[0], secret[9] = 0, PRIME - 1
        draws = shake(f"coefficients {t}", 40 * (t - 1))
        skipped = draws[:4] + b"\xff\xff\xff\x7f" + draws[4:48] + b"\xff\xff\xff\xff" + draws[48:]
        source = Draws(skipped if t == 3 else draws)
        coefficients = [source.elements(10) for _ in range(t - 1)]
        shares = {x: page.split(secret, coefficients, x) for x in points}
        found.append(
            {
                "operation": "split",
                "success": True,
                "secret": secret,
                "threshold": t,
                "draws": source.data[: source.used].hex(),
                "points": points,
                "shares": [shares[x] for x in points],
            }
        )
        for chosen in (points[:t], points[-t:]):
            base = {x: shares[x] for x in chosen}
            assert page.value_at(base, 0) == secret
            row: Json = {"operation": "combine", "points": chosen, "shares": [shares[x] for x in chosen]}
            found.append({**row, "success": True, "secret": secret})
    t, points = 3, list(range(1, 9))
    secret = numbers("decoded", 5, PRIME)
    coefficients = [numbers(f"decoded {power}", 5, PRIME) for power in range(t - 1)]
    for count, wrong in ((3, []), (5, [2]), (6, [1]), (7, [1, 7]), (8, [3, 4]), (4, [1]), (5, [1, 2]), (7, [1, 2, 3])):
        shares = {x: page.split(secret, coefficients, x) for x in points[:count]}
        for position, x in enumerate(wrong):
            entry = position % 5
            shares[x] = [*shares[x][:entry], (shares[x][entry] + 1 + x) % PRIME, *shares[x][entry + 1 :]]
        result = page.decode(shares, t)
        assert (result is not None) == (2 * len(wrong) <= count - t)
        row = {"operation": "decode", "threshold": t, "points": list(shares), "shares": list(shares.values())}
        if result is None:
            found.append({**row, "success": False})
        else:
            assert result == (secret, wrong)
            found.append({**row, "success": True, "secret": secret, "wrong": wrong})
    return found


def graph_vectors() -> list[Json]:
    """Return which rings are safe, on both sides of both inequalities.

    Returns:
        One object each.
    """
    found = []

    def add(n: int, k: int, t: int, corrupt: int, dropout: int, survivors: int) -> bool:
        safe = page.ring_is_safe(n, k, t, corrupt, dropout, survivors)
        keys = ("n", "k", "t", "corrupt", "max_dropout", "min_survivors", "success")
        found.append(dict(zip(keys, (n, k, t, corrupt, dropout, survivors, safe), strict=True)))
        return safe

    for n, corrupt, dropout in ((100, 10, 50_000), (1000, 100, 100_000), (1000, 1, 0), (3001, 600, 300_000)):
        survivors = n - dropout * n // page.PPM
        for part in (Fraction(1, 2), Fraction(2, 3), Fraction(1)):
            degrees = range(4, min(n - 2, 400), 2)
            terms = (corrupt, dropout, survivors)
            k = next((k for k in degrees if page.ring_is_safe(n, k, int(k * part), *terms)), None)
            if k is not None:
                for degree in (k - 2, k - 1, k, k + 1):
                    add(n, degree, int(degree * part), *terms)
                low = int(k * part)
                while low >= 2 and add(n, k, low, *terms):
                    low -= 1
                add(n, k, int(k * part), corrupt + n // 10, dropout, survivors)
                add(n, k, int(k * part), corrupt, dropout, survivors - n // 5)
    for row in (
        (12, 6, 3, 1, 0, 8),
        (13, 6, 3, 1, 0, 8),
        (13, 6, 3, 1, 0, 9),
        (12, 6, 1, 1, 0, 8),
        (12, 6, 7, 1, 0, 8),
    ):
        add(*row)
    for row in (
        (12, 10, 3, 1, 0, 8),
        (11, 10, 3, 1, 0, 8),
        (12, 5, 3, 1, 0, 8),
        (12, 6, 2, 2, 0, 9),
        (12, 6, 3, 2, 0, 9),
    ):
        add(*row)
    # Safe if a client's neighbours were drawn from n clients, not from the n - 1 others.
    add(84, 20, 17, 17, 0, 84)
    add(90, 26, 20, 20, 0, 90)
    # floor(max_dropout n) at its edge
    for dropout in (416_666, 416_667, 333_333, 333_334):
        add(12, 6, 3, 1, dropout, 12)
    assert {entry["success"] for entry in found} == {True, False}
    return found


def modulus_vectors() -> list[Json]:
    """Return bits of sums, lanes, and bounds of noise.

    Returns:
        One object each, told apart by ``operation``.
    """
    found: list[Json] = []
    for n_max, largest, tau in ((3, 1, 0), (1000, 1, 0), (64, 1, 0), (63, 1, 0), (10_000, 5, 123), (2**20, 2**42, 7)):
        exact = page.modulus_bits(n_max, largest, tau, whole_bytes=False)
        whole = page.modulus_bits(n_max, largest, tau, whole_bytes=True)
        row = {"operation": "bits", "n_max": n_max, "largest": largest, "tau": tau, "exact": exact, "rounded": whole}
        found.append({**row, "success": exact <= 64})
    found.append(
        {**found[-1], "n_max": 2**20, "largest": 2**43, "tau": 0, "exact": 65, "rounded": 72, "success": False}
    )
    assert page.modulus_bits(2**20, 2**43, 0, whole_bytes=False) == 65
    found += [
        {
            "operation": "lanes",
            "success": True,
            "bits": b,
            "lanes": page.lane_count(b),
            "width": page.lane_width(b),
        }
        for b in (1, 2, 11, 16, 17, 21, 22, 31, 32, 33, 63, 64)
    ]
    for s in ("0.5", "1", "3", "40", "12345.678"):
        for length in (1, 1000, 320_000):
            row = {"operation": "tau", "success": True, "deviation": s, "length": length}
            for name, of in (("gaussian", page.gaussian_tau), ("skellam", page.skellam_tau)):
                row[name] = f"{of(Decimal(s), length):.15e}"
            found.append(row)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Transcripts.


@dataclass(frozen=True)
class Setting:
    """What a transcript is made of.

    Attributes:
        name: Its name.
        terms: The Invite; ``allow_list`` is filled in.
        listed: The size of the allow-list; 0 in `semi_honest`.
        arrivals: Who advertises, in order of arrival.
        drops: Who sends nothing from a phase on.
    """

    name: str
    terms: Terms
    listed: int
    arrivals: str
    drops: dict[str, str]


def terms_of(profile: int, **changes: Any) -> Terms:
    """Return terms with the times and the round that all transcripts have.

    Args:
        profile: 0 or 1.
        changes: The other fields.

    Returns:
        Terms.
    """
    base: Json = {"k": 0, "t": 0, "graph": 1, "max_dropout": 200_000, "round": 2, "allow_list": bytes(32)}
    times = {"not_before": BEFORE, "not_after": AFTER, "fingerprint": shake("fingerprint")}
    return Terms(profile=profile, **{**base, **times, **changes})


SETTINGS = (
    Setting(
        "ring",
        terms_of(SEMI_HONEST, length=7, bits=16, graph=0, k=6, t=4, n_min=10, n_max=14, min_survivors=8, corrupt=1),
        0,
        "cabdfehgijkl",
        {"SHARE": "a", "COLLECT": "f", "UNMASK": "b"},
    ),
    Setting(
        "complete",
        terms_of(SEMI_HONEST, length=4, bits=33, n_min=6, n_max=9, min_survivors=5, corrupt=1),
        0,
        "hgfedcba",
        {"SHARE": "a", "COLLECT": "f", "UNMASK": "d"},
    ),
    Setting(
        "active",
        terms_of(ACTIVE, length=5, bits=11, n_min=9, n_max=10, min_survivors=7, corrupt=1, max_dropout=100_000),
        12,
        "lkjbacdefg",
        {"SHARE": "c", "COLLECT": "l", "CONFIRM": "e", "UNMASK": "k"},
    ),
)


class Transcript:
    """One round, run by the second reading.

    Attributes:
        setting: What it is made of.
        messages: Every message by key.
        steps: The operations of the server, by phase.
        server: The server at the end.
        clients: The clients at the end, by name.
    """

    def __init__(self, setting: Setting) -> None:
        """Run it.

        Args:
            setting: What it is made of.
        """
        name = setting.name
        self.setting, self.terms = setting, setting.terms
        self.session = shake(f"{name} session")
        self.secret = shake("server signing key")
        identities = sorted((page.identity_of(shake(f"{name} identity {i}")), i) for i in range(setting.listed))
        self.allow = [public for public, _ in identities]
        self.identities = {NAMES[rank]: shake(f"{name} identity {i}") for rank, (_, i) in enumerate(identities)}
        if setting.listed:
            self.terms = replace(self.terms, allow_list=hashlib.sha256(b"".join(self.allow)).digest())
        self.salt = shake(f"{name} salt")
        self.vectors = self._vectors()
        self.messages: dict[str, bytes] = {}
        self.steps: list[Json] = []
        self._run()

    def _vectors(self) -> dict[str, list[int]]:
        bound = 2 ** (self.terms.bits - 1) - 1
        vectors = {}
        for who in self.setting.arrivals:
            vectors[who] = [
                x - bound // 40 for x in numbers(f"{self.setting.name} vector {who}", self.terms.length, bound // 20)
            ]
        first, second = "gh" if self.setting.listed == 0 else "ab"
        vectors[first][:2] = [bound, -bound]
        vectors[second][:2] = [-bound, bound]
        return vectors

    def draws(self, who: str) -> bytes:
        """Return more than a client draws; for one of them with values that are skipped.

        Args:
            who: Its name.

        Returns:
            Random bytes, in the order of the page.
        """
        data = shake(f"{self.setting.name} draws {who}", 600)
        if who == self.setting.arrivals[2]:
            data = data[:8] + b"\xff\xff\xff\x7f\xff\xff\xff\xff" + data[8:100] + b"\xff\xff\xff\xff" + data[100:]
        return data

    def pinned(self, who: str, **changes: Any) -> Pinned:
        """Return what a client knows.

        Args:
            who: Its name.
            changes: Other values.

        Returns:
            The knowledge.
        """
        server = page.identity_of(self.secret)
        base: Json = {"policy": Policy(corrupt=1), "plan": self.terms, "rounds": 3}
        base |= {"profile": self.terms.profile, "server": server, "fingerprint": self.terms.fingerprint}
        return Pinned(allow=self.allow, identity=self.identities.get(who), **{**base, **changes})

    def client(self, who: str, taken: int = 0, **changes: Any) -> Client:
        """Return a client that has taken messages of the transcript.

        Args:
            who: Its name.
            taken: How many messages.
            changes: ``vector`` (what the client adds), ``seen`` and ``spent`` (its journal), or what it has pinned.

        Returns:
            The client.
        """
        vector = changes.pop("vector", self.vectors.get(who, []))
        journal = Journal({self.session} if changes.pop("seen", False) else set(), changes.pop("spent", False))
        client = Client(self.pinned(who, **changes), Draws(self.draws(who)), lambda: list(vector), journal)
        for key in self.keys_to(who)[:taken]:
            client.receive(self.messages[key], NOW)
        return client

    def sender_of(self, who: str) -> int:
        """Return the sender in the messages of a client of the roster.

        Args:
            who: Its name.

        Returns:
            Its rank in `active`, else its index.
        """
        index = self.server.roster.index(who)
        return self.server.ranks[index] if self.terms.profile == ACTIVE else index

    def keys_to(self, who: str) -> list[str]:
        """Return the keys of the messages that a client takes before DONE.

        Args:
            who: Its name.

        Returns:
            Keys, in order.
        """
        own_roster = "roster" if self.terms.profile == ACTIVE else f"roster/{who}"
        keys = ["invite", own_roster, f"inbox/{who}", "survivors"]
        return [*keys, "confirmations"] if self.terms.profile == ACTIVE else keys

    def new_server(self, phase: str = "ADVERTISE") -> Server:
        """Return a server at the beginning of a phase.

        Args:
            phase: Of the table.

        Returns:
            The server.
        """
        server = Server(self.session, self.terms, self.secret, self.allow, self.salt)
        for step in self.steps:
            if server.phase == phase:
                break
            for who in step["from"]:
                server.receive(who, self.messages[f"{step['collects']}/{who}"])
            server.close(NOW)
        return server

    def _keep(self, asks: dict[str, bytes], name: str) -> None:
        shared = name in ("survivors", "confirmations", "result") or (name == "roster" and self.terms.profile == ACTIVE)
        for who, data in asks.items():
            self.messages[name if shared else f"{name}/{who}"] = data

    def _run(self) -> None:
        words = {ROSTER: "roster", INBOX: "inbox", SURVIVORS: "survivors", CONFIRMATIONS: "confirmations"}
        words |= {RESULT: "result"}
        answers = {"ADVERTISE": "advertise", "SHARE": "shares", "COLLECT": "masked", "CONFIRM": "confirm"}
        answers |= {"UNMASK": "unmask"}
        self.server = server = self.new_server()
        self.messages["invite"] = server.invite
        self.clients = {who: self.client(who) for who in self.setting.arrivals}
        asks = dict.fromkeys(self.clients, server.invite)
        silent: set[str] = set()
        while server.phase != "DONE":
            phase = server.phase
            silent |= set(self.setting.drops.get(phase, ""))
            sent = []
            for who, ask in asks.items():
                if who in silent:
                    continue
                answer = self.clients[who].receive(ask, NOW)
                assert answer is not None and server.receive(who, answer), (phase, who)
                self.messages[f"{answers[phase]}/{who}"] = answer
                sent.append(who)
            asks = server.close(NOW)
            assert server.phase != "ABORTED", server.code
            name = words[next(iter(asks.values()))[5]]
            self.steps.append(
                {"phase": phase, "collects": answers[phase], "from": sent, "asks": name, "to": list(asks)}
            )
            self._keep(asks, name)
        for who, ask in asks.items():
            if who not in silent:
                assert self.clients[who].receive(ask, NOW) is None
        alive = [server.roster[i] for i in server.alive]
        assert server.total == [sum(self.vectors[who][i] for who in alive) for i in range(self.terms.length)]

    def to_json(self) -> Json:
        """Return the transcript.

        Returns:
            JSON.
        """
        server = self.server
        return {
            "name": self.setting.name,
            "success": True,
            "session": self.session.hex(),
            "now": NOW,
            "server_secret": self.secret.hex(),
            "server_public": page.identity_of(self.secret).hex(),
            "salt": self.salt.hex(),
            "terms": terms_json(self.terms),
            "rounds": 3,
            "policy": asdict(Policy(corrupt=1)),
            "allow_list": [key.hex() for key in self.allow],
            "clients": [
                {
                    "name": who,
                    "identity": self.identities[who].hex() if self.allow else None,
                    "draws": client.draws.data[: client.draws.used].hex(),
                    "vector": self.vectors[who],
                    "state": client.state,
                }
                for who, client in self.clients.items()
            ],
            "order": server.roster,
            "neighbours": [server.graph.neighbours(i) for i in range(server.graph.n)],
            "k": server.graph.k,
            "t": server.graph.t,
            "ctx": server.ctx.hex(),
            "ctx2": server.ctx2.hex(),
            "adverts_digest": page.adverts_digest(server.adverts).hex(),
            "present": server.present,
            "alive": server.alive,
            "sum": server.total,
            "result_digest": server.result.hex(),
            "blame": server.blame,
            "steps": self.steps,
            "messages": {key: data.hex() for key, data in self.messages.items()},
        }


# ---------------------------------------------------------------------------------------------------------------------
# Operations.


def splice(old: bytes, new: bytes, at: int) -> list[list[Any]]:
    """Return how to make new bytes of old ones.

    Args:
        old: What there is.
        new: What is wanted.
        at: Where ``old`` begins.

    Returns:
        Nothing where they are equal, else one ``[start, end, hex]``: the bytes from start to end are replaced.
    """
    if old == new:
        return []
    short = min(len(old), len(new))
    first = next((i for i in range(short) if old[i] != new[i]), short)
    last = next((i for i in range(short - first) if old[-1 - i] != new[-1 - i]), short - first)
    return [[at + first, at + len(old) - last, new[first : len(new) - last].hex()]]


def message_json(transcript: Transcript, data: bytes) -> Json:
    """Return a message of an operation as the file has it.

    Args:
        transcript: Whose messages may be named.
        data: Header and body.

    Returns:
        A key, perhaps with ``splices``, or ``hex``: whichever is shortest.
    """
    found: list[Json] = [{"hex": data.hex()}]
    for key, old in transcript.messages.items():
        # Later places first, so that places stay what they are.
        splices = splice(old[48:], data[48:], 48) + splice(old[:48], data[:48], 0)
        found.append({"key": key, "splices": splices} if splices else {"key": key})
    return min(found, key=lambda shown: len(json.dumps(shown)))


def edited(transcript: Transcript, key: str, *edits: tuple[int | str, Any]) -> bytes:
    """Return a message of a transcript, perhaps edited.

    Args:
        transcript: Where it is from.
        key: Its key.
        edits: ``(offset, hex)`` replaces bytes, ``("cut", n)`` keeps n bytes, ``("append", hex)`` adds some.

    Returns:
        The message.
    """
    data = transcript.messages[key]
    for place, what in edits:
        if place == "cut":
            data = data[:what]
        elif place == "append":
            data += bytes.fromhex(what)
        else:
            assert isinstance(place, int)
            new = bytes.fromhex(what)
            data = data[:place] + new + data[place + len(new) :]
    assert not edits or data != transcript.messages[key]
    return data


def body_of(transcript: Transcript, key: str, change: Callable[[bytes], bytes]) -> bytes:
    """Return a message of a transcript with another body, and the length that goes with it.

    Args:
        transcript: Where it is from.
        key: Its key.
        change: From the old body to the new one.

    Returns:
        The message.
    """
    frame = Frame.decode(transcript.messages[key])
    assert frame is not None
    return replace(frame, body=change(frame.body)).encode()


def answer_json(transcript: Transcript, answer: bytes | None) -> Json | None:
    """Return an answer as the file has it.

    Args:
        transcript: Whose messages may be named.
        answer: Bytes or None.

    Returns:
        A key, hex if short, else the length and SHA-256.
    """
    if answer is None:
        return None
    for key, data in transcript.messages.items():
        if data == answer:
            return {"key": key}
    if len(answer) <= 64:
        return {"hex": answer.hex()}
    return {"length": len(answer), "sha256": hashlib.sha256(answer).hexdigest()}


ClientOperation = tuple[bytes, str | int] | tuple[bytes, str | int, int]


def client_case(
    transcript: Transcript, name: str, who: str, taken: int, *operations: ClientOperation, **changes: Any
) -> Json:
    """Run operations on a client and return the case.

    Args:
        transcript: Where the client is from.
        name: A unique name.
        who: The client.
        taken: How many messages of the transcript it has taken before.
        operations: A message, what is wanted (``answer``, ``drop``, ``note``, ``raise`` or the code of an abort), and
            perhaps the time.
        changes: See `Transcript.client`.

    Returns:
        The case.
    """
    given = dict(changes)
    if "policy" in given:
        given["policy"] = asdict(given["policy"])
    if "plan" in given:
        given["plan"] = None if given["plan"] is None else terms_json(given["plan"])
    for key in ("fingerprint", "server"):
        if key in given:
            given[key] = given[key].hex()
    client = transcript.client(who, taken, **changes)
    shown = []
    for message, wanted, *when in operations:
        now = when[0] if when else NOW
        before = (client.state, client.code, client.result)
        answer, raised = None, False
        try:
            answer = client.receive(message, now)
        except ValueError:
            raised = True
        changed = before != (client.state, client.code, client.result)
        if wanted == "answer":
            assert answer is not None and client.state != "ABORTED", (name, client.state, client.code)
        elif wanted == "drop":
            assert answer is None and not changed and not raised, (name, client.state, client.code)
        elif wanted == "note":
            assert answer is None and changed and not raised, name
        elif wanted == "raise":
            assert raised and client.code == 18
        else:
            assert client.state == "ABORTED" and client.code == wanted and answer is not None, (name, client.code)
            assert answer[48:] == u8(client.code)
        operation: Json = {"message": message_json(transcript, message), "success": wanted in ("answer", "note")}
        if now != NOW:
            operation["now"] = now
        if answer is not None:
            operation["answer"] = answer_json(transcript, answer)
        operation["state"] = client.state
        if client.state == "ABORTED":
            operation["code"] = client.code
        if wanted == "raise":
            operation["raises"] = True
        operation["spent"] = client.journal.spent
        if client.result is not None:
            operation["result"] = [client.result[0], client.result[1].hex()]
        shown.append(operation)
    return {
        "name": f"{transcript.setting.name}: {name}",
        "transcript": transcript.setting.name,
        "client": who,
        "taken": taken,
        "given": given,
        "operations": shown,
    }


def closed(server: Server, now: int = NOW) -> Json:
    """Close a phase and return the operation.

    Args:
        server: The server.
        now: When.

    Returns:
        The operation; ``messages`` is the SHA-256 of all that leave, joined in the order of ``to``.
    """
    out = server.close(now)
    operation: Json = {"operation": "close", "now": now, "success": server.code == 0, "phase": server.phase}
    if server.code:
        operation["code"] = server.code
    if server.phase == "DONE":
        operation["sum"] = server.total
    operation["blame"] = [list(pair) for pair in server.blame]
    operation["to"] = sorted(out)
    operation["messages"] = hashlib.sha256(b"".join(out[name] for name in sorted(out))).hexdigest()
    return operation


def server_case(transcript: Transcript, name: str, phase: str, *operations: tuple[Any, ...]) -> Json:
    """Run operations on a server and return the case.

    Args:
        transcript: Where the server is from.
        name: A unique name.
        phase: At the beginning of which it is.
        operations: ``("receive", who, message, taken)``, ``("all", names)`` for the messages of the transcript, or
            ``("close", code or 0)``, perhaps with a time.

    Returns:
        The case.
    """
    server = transcript.new_server(phase)
    step = next(step for step in transcript.steps if step["phase"] == phase)
    shown: list[Json] = []
    for kind, *rest in operations:
        if kind == "receive":
            who, message, taken = rest
            assert server.receive(who, message) is taken, (name, who)
            shown.append({"from": who, "message": message_json(transcript, message), "success": taken})
        elif kind == "all":
            for who in rest[0]:
                message = edited(transcript, f"{step['collects']}/{who}")
                assert server.receive(who, message), (name, who)
                shown.append({"from": who, "message": message_json(transcript, message), "success": True})
        else:
            shown.append(closed(server, *rest[1:]))
            assert server.code == rest[0], (name, server.code)
    return {
        "name": f"{transcript.setting.name}: {name}",
        "transcript": transcript.setting.name,
        "phase": phase,
        "operations": shown,
    }


def clear(data: bytes, bit: int) -> bytes:
    """Return a bitmap with one bit the other way round."""
    return data[: bit // 8] + u8(data[bit // 8] ^ (1 << bit % 8)) + data[bit // 8 + 1 :]


def frame_edits(transcript: Transcript, key: str, other: int) -> Iterable[tuple[str, bytes]]:
    """Return messages that are no frames, or of somebody else.

    Args:
        transcript: Where the message is from.
        key: Its key.
        other: A sender that it must not have.

    Yields:
        A name and a message.
    """
    size = len(transcript.messages[key])
    yield "empty", b""
    yield "47 bytes", edited(transcript, key, ("cut", 47))
    yield "magic", edited(transcript, key, (0, "00"))
    yield "type 12", edited(transcript, key, (5, "0c"))
    yield "type 255", edited(transcript, key, (5, "ff"))
    yield "reserved", edited(transcript, key, (6, "01"))
    yield "reserved, second byte", edited(transcript, key, (7, "80"))
    yield "one byte less", edited(transcript, key, ("cut", size - 1))
    yield "one byte more", edited(transcript, key, ("append", "00"))
    yield "length field", edited(transcript, key, (44, u32(size - 48 + 1).hex()))
    yield "another session", edited(transcript, key, (8, "5a5a"))
    yield "another sender", edited(transcript, key, (40, u32(other).hex()))


# ---------------------------------------------------------------------------------------------------------------------
# Cases of a client.


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
    ("2^b above 2 n_max", {"bits": 5}, 0),
    ("2^b not above 2 n_max", {"bits": 4}, 4),
    ("2^b equal to 2 n_max", {"bits": 5, "n_max": 16}, 4),
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

    def add(transcript: Transcript, name: str, message: bytes, code: int, now: int = NOW, **changes: Any) -> None:
        wanted: str | int = code or "answer"
        found.append(client_case(transcript, f"Invite, {name}", "g", 0, (message, wanted, now), **changes))

    for transcript, table in ((ring, RING_INVITES), (active, ACTIVE_INVITES)):
        for name, changes, code in table:
            add(transcript, name, invite(transcript, **changes), code, plan=None, policy=lax)
    for b, width in ((16, 2), (17, 4), (33, 8)):
        length = 2**30 // width - page.lane_count(b)
        add(ring, f"V at its bound, b {b}", invite(ring, bits=b, length=length), 0, plan=None, policy=lax)
        add(ring, f"V above its bound, b {b}", invite(ring, bits=b, length=length + 1), 4, plan=None, policy=lax)
    plain = invite(ring)
    limits: list[tuple[str, int, int]] = [("corrupt", 1, 2), ("max_corrupt", 71_428, 71_429), ("min_honest", 7, 8)]
    limits += [("min_clients", 10, 11), ("n_max", 14, 13), ("k", 6, 5), ("length", 7, 6), ("bits", 16, 15)]
    for field, good, bad in limits:
        for value, code in ((good, 0), (bad, 4)):
            add(ring, f"policy {field} {value}", plain, code, plan=None, policy=Policy(**{field: value}))
    for value, code in ((8, 0), (7, 4)):
        add(complete, f"policy k {value}", invite(complete), code, plan=None, policy=Policy(k=value))
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
    add(ring, "the last round of the plan", invite(ring, round=2), 0)
    add(ring, "the first round of the plan", invite(ring, round=0), 0)
    add(ring, "a round after the plan", invite(ring, round=3), 4)
    add(ring, "any round without a plan", invite(ring, round=2**32 - 1), 0, plan=None)
    add(ring, "other times", invite(ring, not_before=0, not_after=2**64 - 1), 0)
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
    dropped = [*frame_edits(ring, "invite", UNMASK), ("signature", edited(ring, "invite", (200, "0000")))]
    dropped += [("signed by another", page.invite_frame(ring.session, ring.terms.encode(), shake("another")))]
    dropped += [("one term changed", edited(ring, "invite", (55 + 48, "01")))]
    dropped += [
        ("version changed", edited(ring, "invite", (4, "02"))),
        ("186 bytes", body_of(ring, "invite", lambda b: b[:-1])),
    ]
    dropped += [("an Abort", Frame(ABORT, ring.session, SERVER, u8(4)).encode())]
    dropped += [("a Roster", edited(ring, "roster/g")), ("188 bytes", body_of(ring, "invite", lambda b: b + b"\0"))]
    steps = [(message, "drop") for _, message in dropped]
    found.append(client_case(ring, "Invite, dropped before a good one", "g", 0, *steps, (plain, "answer")))
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
        found.append(client_case(transcript, f"Roster, {name}", "g", 1, (message, code or "answer")))

    me = ring.server.roster.index("g")
    size = len(ring.messages["roster/g"])
    low, high = sorted(page.LOW_ORDER)[2].to_bytes(32, "little"), (2**255 - 19).to_bytes(32, "little")
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
    add(ring, "one's own mask key as a neighbour's other key", edited(ring, "roster/g", (120, mine[:32].hex())), 8)
    add(ring, "both keys of a neighbour equal", edited(ring, "roster/g", (120, first[:32].hex())), 8)
    add(complete, "n 7 and adverts of 8", edited(complete, "roster/g", (48, u32(7).hex())), 1)
    seven = body_of(complete, "roster/g", lambda b: u32(7) + u32(6) + b[8:-112])
    add(complete, "n 7", seven, 0)
    add(complete, "n 5", body_of(complete, "roster/g", lambda b: u32(5) + u32(1) + b[8 : 40 + 4 * 112]), 8)

    count = len(active.allow)
    adverts = {who: active.messages[f"advertise/{who}"][48:] for who in active.setting.arrivals}
    for who in "hi":
        spare = active.client(who).receive(active.messages["invite"], NOW)
        assert spare is not None
        adverts[who] = spare[48:]

    def roster(members: str, **changes: bytes) -> bytes:
        who = sorted(members)
        body = bitmap([NAMES.index(w) for w in who], count) + b"".join(changes.get(w, adverts[w]) for w in who)
        return Frame(ROSTER, active.session, SERVER, body).encode()

    def signed(who: str, advert: bytes, ctx: bytes = active.server.ctx) -> bytes:
        return advert + page.sign(active.identities[who], "advertise", ctx, advert)

    everybody = active.setting.arrivals
    without = "".join(sorted(set(everybody) - {"g"}))
    assert roster(everybody) == active.messages["roster"]
    add(active, "padding", edited(active, "roster", (49, u8(active.messages["roster"][49] | 0x80).hex())), 1)
    add(active, "empty", body_of(active, "roster", lambda _: b""), 1)
    add(active, "bitmap alone", body_of(active, "roster", lambda b: b[:2]), 1)
    add(active, "a byte less", body_of(active, "roster", lambda b: b[:-1]), 1)
    add(active, "an advert less", body_of(active, "roster", lambda b: b[:-176]), 1)
    add(active, "a bit more", edited(active, "roster", (48, u8(active.messages["roster"][48] | 0x80).hex())), 1)
    add(active, "own advert missing", roster(without), 8)
    add(active, "own advert missing, another client in its place", roster(without + "h"), 8)
    add(active, "n 9", roster(everybody.replace("l", "")), 0)
    add(active, "n 8", roster(everybody.replace("l", "").replace("a", "")), 8)
    add(active, "n 11", roster(everybody + "h"), 8)
    add(active, "another member", roster(everybody.replace("l", "h")), 0)
    nonce = signed("g", adverts["g"][:96] + bytes(16))
    add(active, "own advert with another nonce", roster(everybody, g=nonce), 8)
    add(active, "own signature alone differs", roster(everybody, g=adverts["g"][:112] + bytes(64)), 8)
    add(active, "a false signature", roster(everybody, a=clear(adverts["a"], 8 * 112 + 3)), 8)
    add(active, "a changed commitment", roster(everybody, a=clear(adverts["a"], 8 * 70)), 8)
    other = signed("a", adverts["a"][:112], shake("another ctx"))
    add(active, "an advert of another session", roster(everybody, a=other), 8)
    add(active, "an advert signed by another member", roster(everybody, a=signed("b", adverts["a"][:112])), 8)
    add(active, "two adverts exchanged", roster(everybody, a=adverts["b"], b=adverts["a"]), 8)
    add(active, "a mask key of low order", roster(everybody, a=signed("a", low + adverts["a"][32:112])), 8)
    moved = adverts["a"][:32] + high + adverts["a"][64:112]
    add(active, "an encryption key that is not canonical", roster(everybody, a=signed("a", moved)), 8)
    same = adverts["a"][:32] + adverts["a"][:32] + adverts["a"][64:112]
    add(active, "both keys of a member equal", roster(everybody, a=signed("a", same)), 8)
    copied = adverts["g"][32:64] + adverts["a"][32:112]
    add(active, "one's own key as another's", roster(everybody, a=signed("a", copied)), 8)
    copied = adverts["b"][:32] + adverts["a"][32:112]
    add(active, "one key of two members", roster(everybody, a=signed("a", copied)), 8)
    copied = adverts["a"][:64] + adverts["b"][64:112]
    add(active, "one commitment of two members", roster(everybody, a=signed("a", copied)), 0)
    return found


def inbox_body(transcript: Transcript, who: str, keep: Iterable[int], garble: Iterable[int] = ()) -> bytes:
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
            zip(client.present, (body[bits(k) + 56 * i :][:56] for i in range(len(client.present))), strict=True)
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
    case = client_case(transcript, "Inbox, one does not open and is a neighbour still", who, 2, (garbled, "answer"))
    assert case["operations"][0]["answer"] == {"key": f"masked/{who}"}
    found.append(case)
    add("Unmask without what did not open", 2, (garbled, "answer"), (own_survivors, "answer"))
    share = page.join(numbers("not below the prime", 10, PRIME))
    key = page.share_key(client.enc_secret, me, some[0], client.enc_keys, client.ctx2, sender=some[0])
    for place in (0, 9):
        spoiled = page.seal(key, share[: 4 * place] + u32(PRIME) + share[4 * place + 4 :])
        at = 48 + bits(k) + 56 * present.index(some[0])
        message = edited(transcript, f"inbox/{who}", (at, spoiled.hex()))
        add(f"Inbox, element {place} not below p", 2, (message, "answer"), (own_survivors, "answer"))
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
        add("Survivors, padding", 3, (body_of(transcript, "survivors", lambda b: b[:-1] + u8(b[-1] | 0x80)), 1))
    add("Survivors, own bit dead", 3, (survivors(transcript, alive - {me}), 10))
    add("Survivors, nobody", 3, (survivors(transcript, []), 10))
    add("Survivors, an absent one revived", 3, (survivors(transcript, alive | {absent}), 11))
    add("Survivors, own bit dead and one revived", 3, (survivors(transcript, (alive | {absent}) - {me}), 10))
    add("Survivors, a revived one and nobody else", 3, (survivors(transcript, [me, absent]), 11))
    add("Survivors, oneself alone", 3, (survivors(transcript, [me]), 12))
    few = [me, *(i for i in some if i in alive), *(i for i in sorted(alive) if i not in some and i != me)]
    add("Survivors, one too few", 3, (survivors(transcript, few[: terms.min_survivors - 1]), 12))
    if not is_active:
        add("Survivors, just enough", 3, (survivors(transcript, few[: max(t, terms.min_survivors)]), "answer"))
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
            add(f"Survivors, opened and alive {gone} too few", 2, (message, "answer"), (bitmap_, code))
    if is_active:
        found += confirmation_cases(transcript, who)
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
    elsewhere = page.sign(identity[last], "confirm", client.ctx2, hashlib.sha256(bitmap(range(n), n)).digest())
    add("one on another bitmap", 14, {**few, last: elsewhere})
    add("one on another roster", 14, {**few, last: page.sign(identity[last], "confirm", shake("ctx2"), body)})
    add("one under another label", 14, {**few, last: page.sign(identity[last], "advertise", client.ctx2, body)})
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
    """Return messages out of turn, copies, times, versions, Aborts and what is dropped, in every state.

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

        def add(name: str, *operations: ClientOperation, taken: int = taken, state: str = state) -> None:
            found.append(client_case(transcript, f"{state}, {name}", who, taken, *operations))

        steps: list[ClientOperation] = [(message, "drop") for _, message in frame_edits(transcript, key, sender)]
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
        add("another version of the last message", (edited(transcript, keys[taken - 1], (4, "02")), 2))
        add(
            "an Abort of another version",
            (edited(transcript, "result", (4, "02"), (5, "0b")), "note"),
            (wanted, "drop"),
        )
        add("an Abort with 13", (abort(u8(13)), "note"), (wanted, "drop"), (last, "drop"))
        add("an Abort with 18, too late", (abort(u8(18)), "note", AFTER + 1))
        add("an Abort with 19", (abort(u8(19)), "note"))
        add("an Abort with 0", (abort(u8(0)), "note"))
        add("an Abort of no bytes", (abort(b""), "note"))
        add("an Abort of two bytes", (abort(b"\4\4"), "note"))
        for type_ in sorted({INVITE, ROSTER, INBOX, SURVIVORS, CONFIRMATIONS, RESULT} - {transcript.messages[key][5]}):
            add(f"type {type_} out of turn", (Frame(type_, transcript.session, SERVER, b"").encode(), 3))
        for type_ in (ADVERTISE, SHARES, MASKED_INPUT, UNMASK):
            add(f"a client's type {type_}", (Frame(type_, transcript.session, SERVER, b"").encode(), 3))
        add("out of turn and too late", (edited(transcript, "result"), 3, AFTER + 1))
        if taken >= 2:
            add("the message before the last", (edited(transcript, keys[taken - 2]), 3))
        flip = u8(transcript.messages[keys[taken - 1]][-1] ^ 1).hex()
        size = len(transcript.messages[keys[taken - 1]])
        add("the last message with another bit", (edited(transcript, keys[taken - 1], (size - 1, flip)), 3))

    taken = len(keys)
    last, result = edited(transcript, keys[-1]), edited(transcript, "result")

    def end(name: str, *operations: ClientOperation) -> None:
        found.append(client_case(transcript, f"DONE, {name}", who, taken, *operations))

    end("Result", (result, "note"), (result, "drop"), (last, "answer"))
    end("Result, too late", (result, "note", AFTER + 1), (last, "answer", AFTER + 1))
    end("a second Result", (result, "note"), (edited(transcript, "result", (60, "00ff00")), "drop"))
    ignored = [edited(transcript, "result", (48, "01")), body_of(transcript, "result", lambda b: b[:-1])]
    ignored += [body_of(transcript, "result", lambda b: b + b"\0"), edited(transcript, "invite")]
    ignored += [edited(transcript, keys[1]), edited(transcript, keys[2]), edited(transcript, "result", (4, "02"))]
    ignored += [abort(u8(0)), abort(u8(19)), abort(b""), abort(b"\4\4"), edited(transcript, keys[-1], (4, "02"))]
    ignored += [message for _, message in frame_edits(transcript, "result", sender)]
    end("ignored, then a Result", *((message, "drop") for message in ignored), (result, "note"))
    end("an Abort", (abort(u8(17)), "note"), (result, "drop"), (last, "drop"))
    end("an Abort after a Result", (result, "note"), (abort(u8(17)), "drop"), (last, "answer"))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Cases of a server.


def from_client(transcript: Transcript, type_: int, sender: int, body: bytes, version: int = 1) -> bytes:
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
    refused += [edited(transcript, f"advertise/{first}", (4, "02")), edited(transcript, f"shares/{first}")]
    refused += [from_client(transcript, ABORT, rank, u8(4)), from_client(transcript, ADVERTISE, SERVER, body)]
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
        refused += [from_client(transcript, ADVERTISE, rank, clear(body, 8 * 175)), advert(body, who="a")]
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
        fresh = page.public_key(shake("fresh mask")) + page.public_key(shake("fresh encryption")) + body[64:112]
        late.insert(0, ("receive", "x", advert(fresh), False))
    ok = ("receive", first, message, True)
    found.append(server_case(transcript, "ADVERTISE, refused and taken", "ADVERTISE", *steps, ok, *late))
    enough = names[: terms.n_min]
    found.append(server_case(transcript, "ADVERTISE, n_min", "ADVERTISE", ("all", enough), ("close", 0)))
    found.append(server_case(transcript, "ADVERTISE, too few", "ADVERTISE", ("all", enough[:-1]), ("close", 15)))
    found.append(server_case(transcript, "ADVERTISE, nobody", "ADVERTISE", ("close", 15)))
    found.append(
        server_case(transcript, "ADVERTISE, the last second", "ADVERTISE", ("all", names), ("close", 0, AFTER))
    )
    ended = [("close", 5, AFTER + 1), ("receive", first, message, False)]
    found.append(server_case(transcript, "ADVERTISE, too late", "ADVERTISE", ("all", names[:2]), *ended))
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
                ("receive", f"more{number}", from_client(transcript, ADVERTISE, rank, data), number < terms.n_max)
            )
    # In the ring the predicate does not hold for more than 12.
    code = 0 if terms.graph == 1 else 15
    found.append(server_case(transcript, "ADVERTISE, n_max", "ADVERTISE", ("all", names), *more, ("close", code)))
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
        steps = [("receive", first, m, False) for _, m in frame_edits(transcript, key, transcript.sender_of(second))]
        others = sorted(set(range(13)) - {type_, ABORT})
        steps += [("receive", first, from_client(transcript, other, me, body), False) for other in others]
        steps += [
            ("receive", first, edited(transcript, key, (4, "02")), False),
            ("receive", "stranger", good, False),
            ("receive", second, good, False),
            ("receive", first, from_client(transcript, type_, page.UNKNOWN, body), False),
            ("receive", first, from_client(transcript, type_, me, body[:-1]), False),
            ("receive", first, from_client(transcript, type_, me, body + b"\0"), False),
            ("receive", first, from_client(transcript, type_, me, b""), False),
            ("receive", first, from_client(transcript, ABORT, me, u8(0)), False),
            ("receive", first, from_client(transcript, ABORT, me, u8(19)), False),
            ("receive", first, from_client(transcript, ABORT, me, b""), False),
            ("receive", first, from_client(transcript, ABORT, me, b"\x04\x04"), False),
            ("receive", first, from_client(transcript, ABORT, transcript.sender_of(second), u8(4)), False),
        ]
        if is_active:
            steps.append(("receive", first, from_client(transcript, ABORT, page.UNKNOWN, u8(4)), False))
        steps += bad_bodies(transcript, phase, first, me)
        add("refused, then taken", phase, *steps, ("receive", first, good, True), ("receive", first, good, False))
        add("in time", phase, ("all", sent), ("close", 0, AFTER))
        add("too late", phase, ("all", sent), ("close", 5, AFTER + 1), ("receive", first, good, False))
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
            (who for who in server.roster if who not in transcript.steps[list(kept).index(phase) - 1]["to"]), None
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
    add("too few", "COLLECT", ("all", kept["COLLECT"]["from"][: terms.min_survivors - 1]), ("close", 12))
    if terms.graph == 0:
        least: dict[int, tuple[str, ...]] = {}
        for chosen in combinations(kept["COLLECT"]["from"], terms.min_survivors):
            alive = {server.roster.index(who) for who in chosen}
            around = [{i, *server.graph.neighbours(i)} & alive for i in server.present]
            least.setdefault(min(map(len, around)), chosen)
        for missing, code in ((0, 0), (1, 13)):
            add(f"{missing} holders too few", "COLLECT", ("all", least[server.graph.t - missing]), ("close", code))
    else:
        add("just enough", "COLLECT", ("all", kept["COLLECT"]["from"][: terms.min_survivors]), ("close", 0))
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
        wrong = [page.sign(identity, "confirm", ctx2, hashlib.sha256(bitmap([0], client.graph.n)).digest())]
        digest = hashlib.sha256(client.survivors).digest()
        wrong += [page.sign(identity, "advertise", ctx2, digest), page.sign(shake("another"), "confirm", ctx2, digest)]
        found += [from_client(transcript, page.CONFIRM, sender, signature) for signature in wrong]
    if phase == "UNMASK":
        body, k = transcript.messages[f"unmask/{who}"][48:], client.graph.k
        head = 20 + bits(k)
        found += [from_client(transcript, UNMASK, sender, u32(PRIME) + body[4:])]
        found += [from_client(transcript, UNMASK, sender, body[:-4] + u32(2**32 - 1))]
        found += [from_client(transcript, UNMASK, sender, body[:19])]
        if k % 8:
            found.append(
                from_client(transcript, UNMASK, sender, body[: head - 1] + u8(body[head - 1] | 0x80) + body[head:])
            )
        for slot, other in enumerate(client.neighbours):
            if other not in server.present:
                slots = [slot, *(s for s, o in enumerate(client.neighbours) if o in client.opened)]
                shares = body[head:] + bytes(20)
                found.append(from_client(transcript, UNMASK, sender, body[:20] + bitmap(slots, k) + shares))
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
        return edited(transcript, f"unmask/{who}", (at, u32((old + 12_345 + 678 * ord(who)) % PRIME).hex()))

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

    # The owners: one that is alive and one that is not. All holders that answer, in the order of their points.
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
                name = f"UNMASK, {count} wrong share(s) of {m} of a client that is {kind}, the {end}"
                found.append(server_case(transcript, name, phase, ("all", rest), *steps, ("close", code)))
        left_out = [who for who in holders if server.roster.index(who) != owner][: m - t + 1]
        for gone, code in ((left_out[1:], 0), (left_out, 16)):
            rest = [who for who in sent if who not in gone]
            steps = [("receive", who, without(who, owner), True) for who in gone]
            name = f"UNMASK, {m - len(gone)} shares of a client that is {kind}"
            found.append(server_case(transcript, name, phase, ("all", rest), *steps, ("close", code)))
    found.append(server_case(transcript, "UNMASK, nobody", phase, ("close", 16)))
    found.append(
        server_case(transcript, "UNMASK, t - 1 answers", phase, ("all", sent[: server.graph.t - 1]), ("close", 16))
    )
    found.append(server_case(transcript, "UNMASK, the session is over", phase, ("all", sent), ("close", 0)))
    # A masked vector that has one lane too many: the lanes are wrong.
    who = next(who for who in sent)
    values = page.unpack(transcript.messages[f"masked/{who}"][48:], transcript.terms.entries, transcript.terms.bits)
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
            shown.append({"from": client, "message": message_json(transcript, sent), "success": True})
        shown.append(closed(server))
    assert server.code == code
    return {
        "name": f"{transcript.setting.name}: COLLECT, {name} changed",
        "transcript": transcript.setting.name,
        "phase": "COLLECT",
        "operations": shown,
    }


# ---------------------------------------------------------------------------------------------------------------------


def sections() -> dict[str, list[Json]]:
    """Return all vectors of the page.

    Returns:
        Lists by name.
    """
    transcripts = [Transcript(setting) for setting in SETTINGS]
    ring, complete, active = transcripts
    clients = [*invite_cases(ring, complete, active), *roster_cases(ring, complete, active)]
    servers: list[Json] = []
    for transcript in transcripts:
        clients += later_cases(transcript) + order_cases(transcript)
        servers += advertise_cases(transcript) + phase_cases(transcript)
    for cases in (clients, servers):
        assert len({case["name"] for case in cases}) == len(cases)
    codes = {op.get("code") for case in clients for op in case["operations"]}
    assert codes >= set(range(1, 15)) | {18}, codes
    codes = {op.get("code") for case in servers for op in case["operations"]}
    assert codes >= {5, 12, 13, 14, 15, 16, 17}, codes
    return {
        "derivations": label_vectors(),
        "points": point_vectors(),
        "generator": prg_vectors(),
        "packing": packing_vectors(),
        "shamir": shamir_vectors(),
        "rings": graph_vectors(),
        "numbers": modulus_vectors(),
        "transcripts": [transcript.to_json() for transcript in transcripts],
        "clients": clients,
        "servers": servers,
    }


if __name__ == "__main__":
    for section, vectors in sections().items():
        print(section, len(vectors), len(json.dumps(vectors, separators=(",", ":"))))
