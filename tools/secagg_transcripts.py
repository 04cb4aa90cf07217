"""Transcripts of secure summation, and the form in which operations are written.

A *transcript* has every message of one round, by a key such as ``inbox/c``, and what each party was
given. A *client case* is one client of a transcript that has taken its first ``taken`` messages and
then a list of operations; a *server case* is the server at the beginning of a phase and then a list
of operations. A message in an operation is a key of the transcript, perhaps with ``splices``
(``[start, end, hex]``: these bytes are replaced, one splice after another), or its own ``hex``.
Everything is derived from SHAKE-256 of labels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import secagg_reading as page
from secagg_reading import (
    ACTIVE,
    CONFIRMATIONS,
    INBOX,
    RESULT,
    ROSTER,
    SEMI_HONEST,
    SURVIVORS,
    Client,
    Draws,
    Frame,
    Journal,
    Pinned,
    Policy,
    Server,
    Terms,
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
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in asdict(terms).items()
    }


@dataclass(frozen=True)
class Setting:
    """What a transcript is made of.

    Attributes:
        name: Its name.
        terms: The Invite; ``allow_list`` is filled in.
        listed: The size of the allow-list; 0 in `semi-honest`.
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
    base: Json = {
        "k": 0,
        "t": 0,
        "graph": 1,
        "max_dropout": 200_000,
        "round": 2,
        "allow_list": bytes(32),
    }
    times = {"not_before": BEFORE, "not_after": AFTER, "fingerprint": shake("fingerprint")}
    return Terms(profile=profile, **{**base, **times, **changes})


SETTINGS = (
    Setting(
        "ring",
        terms_of(
            SEMI_HONEST,
            length=7,
            bits=16,
            graph=0,
            k=6,
            t=4,
            n_min=10,
            n_max=14,
            min_survivors=8,
            corrupt=1,
        ),
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
        terms_of(
            ACTIVE,
            length=5,
            bits=11,
            n_min=9,
            n_max=10,
            min_survivors=7,
            corrupt=1,
            max_dropout=100_000,
        ),
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
        identities = sorted(
            (page.identity_of(shake(f"{name} identity {i}")), i) for i in range(setting.listed)
        )
        self.allow = [public for public, _ in identities]
        self.identities = {
            NAMES[rank]: shake(f"{name} identity {i}") for rank, (_, i) in enumerate(identities)
        }
        if setting.listed:
            self.terms = replace(
                self.terms, allow_list=hashlib.sha256(b"".join(self.allow)).digest()
            )
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
                x - bound // 40
                for x in numbers(
                    f"{self.setting.name} vector {who}", self.terms.length, bound // 20
                )
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
            data = (
                data[:8]
                + b"\xff\xff\xff\x7f\xff\xff\xff\xff"
                + data[8:100]
                + b"\xff\xff\xff\xff"
                + data[100:]
            )
        return data

    def order_draws(self) -> bytes:
        """Return what the server draws, for n_max clients.

        Returns:
            Random bytes.
        """
        return shake(f"{self.setting.name} order", 16 * self.terms.n_max)

    def pinned(self, who: str, **changes: Any) -> Pinned:
        """Return what a client knows.

        Args:
            who: Its name.
            changes: Other values.

        Returns:
            The knowledge.
        """
        server = page.identity_of(self.secret)
        base: Json = {"policy": Policy(corrupt=1), "plan": self.terms, "round": self.terms.round}
        base |= {
            "profile": self.terms.profile,
            "server": server,
            "fingerprint": self.terms.fingerprint,
        }
        return Pinned(allow=self.allow, identity=self.identities.get(who), **{**base, **changes})

    def client(self, who: str, taken: int = 0, **changes: Any) -> Client:
        """Return a client that has taken messages of the transcript.

        Args:
            who: Its name.
            taken: How many messages.
            changes: ``vector`` (what the client adds), ``seen`` and ``spent`` (its journal), or
                what it has pinned.

        Returns:
            The client.
        """
        vector = changes.pop("vector", self.vectors.get(who, []))
        journal = Journal(
            {self.session} if changes.pop("seen", False) else set(), changes.pop("spent", False)
        )
        client = Client(
            self.pinned(who, **changes), Draws(self.draws(who)), lambda: list(vector), journal
        )
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
        server = Server(
            self.session, self.terms, self.secret, self.allow, self.salt, Draws(self.order_draws())
        )
        for step in self.steps:
            if server.phase == phase:
                break
            for who in step["from"]:
                server.receive(who, self.messages[f"{step['collects']}/{who}"])
            server.close(NOW)
        return server

    def _keep(self, asks: dict[str, bytes], name: str) -> None:
        shared = name in ("survivors", "confirmations", "result") or (
            name == "roster" and self.terms.profile == ACTIVE
        )
        for who, data in asks.items():
            self.messages[name if shared else f"{name}/{who}"] = data

    def _run(self) -> None:
        words = {
            ROSTER: "roster",
            INBOX: "inbox",
            SURVIVORS: "survivors",
            CONFIRMATIONS: "confirmations",
        }
        words |= {RESULT: "result"}
        answers = {
            "ADVERTISE": "advertise",
            "SHARE": "shares",
            "COLLECT": "masked",
            "CONFIRM": "confirm",
        }
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
                {
                    "phase": phase,
                    "collects": answers[phase],
                    "from": sent,
                    "asks": name,
                    "to": list(asks),
                }
            )
            self._keep(asks, name)
        for who, ask in asks.items():
            if who not in silent:
                assert self.clients[who].receive(ask, NOW) is None
        alive = [server.roster[i] for i in server.alive]
        assert server.total == [
            sum(self.vectors[who][i] for who in alive) for i in range(self.terms.length)
        ]

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
            "draws": self.order_draws().hex(),
            "terms": terms_json(self.terms),
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


def splice(old: bytes, new: bytes, at: int) -> list[list[Any]]:
    """Return how to make new bytes of old ones.

    Args:
        old: What there is.
        new: What is wanted.
        at: Where ``old`` begins.

    Returns:
        Nothing where they are equal, else one ``[start, end, hex]``: the bytes from start to end
        are replaced.
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
        edits: ``(offset, hex)`` replaces bytes, ``("cut", n)`` keeps n bytes, ``("append", hex)``
            adds some.

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
    transcript: Transcript,
    name: str,
    who: str,
    taken: int,
    *operations: ClientOperation,
    **changes: Any,
) -> Json:
    """Run operations on a client and return the case.

    Args:
        transcript: Where the client is from.
        name: A unique name.
        who: The client.
        taken: How many messages of the transcript it has taken before.
        operations: A message, what is wanted (``answer``, ``drop``, ``note``, ``raise`` or the code
            of an abort), and perhaps the time.
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
            assert answer is not None and client.state != "ABORTED", (
                name,
                client.state,
                client.code,
            )
        elif wanted == "drop":
            assert answer is None and not changed and not raised, (name, client.state, client.code)
        elif wanted == "note":
            assert answer is None and changed and not raised, name
        elif wanted == "raise":
            assert raised and client.code == 18
        else:
            assert client.state == "ABORTED" and client.code == wanted and answer is not None, (
                name,
                client.code,
            )
            assert answer[48:] == u8(client.code)
        operation: Json = {
            "message": message_json(transcript, message),
            "success": wanted in ("answer", "note"),
        }
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
    operation: Json = {
        "operation": "close",
        "now": now,
        "success": server.code == 0,
        "phase": server.phase,
    }
    if server.code:
        operation["code"] = server.code
    if server.phase == "DONE":
        operation["sum"] = server.total
    operation["blame"] = [list(pair) for pair in server.blame]
    operation["to"] = sorted(out)
    operation["messages"] = hashlib.sha256(b"".join(out[name] for name in sorted(out))).hexdigest()
    return operation


def server_case(
    transcript: Transcript, name: str, phase: str, *operations: tuple[Any, ...]
) -> Json:
    """Run operations on a server and return the case.

    Args:
        transcript: Where the server is from.
        name: A unique name.
        phase: At the beginning of which it is.
        operations: ``("receive", who, message, taken)``, ``("all", names)`` for the messages of the
            transcript, or ``("close", code or 0)``, perhaps with a time.

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
            shown.append(
                {"from": who, "message": message_json(transcript, message), "success": taken}
            )
        elif kind == "all":
            for who in rest[0]:
                message = edited(transcript, f"{step['collects']}/{who}")
                assert server.receive(who, message), (name, who)
                shown.append(
                    {"from": who, "message": message_json(transcript, message), "success": True}
                )
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
