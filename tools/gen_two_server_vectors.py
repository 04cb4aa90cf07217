"""A second reading of docs/protocol.md, without fedtally, and its known answers.

`tools/gen_vectors.py` writes them to ``tests/vectors/two_server.json``. HPKE is written out here
from RFC 9180; the codec, the masks and the labels are those of `tools/secagg_reading.py`. Cases are
operations on a leader or a helper.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import secagg_reading as page
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from secagg_reading import label, u8, u32, u64
from secagg_transcripts import numbers, shake, splice

Json = dict[str, Any]
CLIENT, LEADER, HELPER = 2**32 - 1, 2**32 - 2, 2**32 - 3
LEADER_REPORT, HELPER_REPORT, OFFER, QUERY, ANSWER = range(32, 37)
HEAD = 156
MAX_AGE, CLOCK_SKEW = 7 * 86_400, 3_600


class RefusedError(Exception):
    """A Query, an Offer, an Answer or parameters that are refused."""


# HPKE, RFC 9180, base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.
KEM, SUITE = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x02"


def labeled_extract(suite: bytes, salt: bytes, name: bytes, secret: bytes) -> bytes:
    """Return LabeledExtract of RFC 9180."""
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + name + secret, "sha256")


def labeled_expand(suite: bytes, key: bytes, name: bytes, info: bytes, length: int) -> bytes:
    """Return LabeledExpand of RFC 9180 for at most 32 bytes: one block."""
    message = length.to_bytes(2, "big") + b"HPKE-v1" + suite + name + info
    return hmac.digest(key, message + b"\x01", "sha256")[:length]


def hpke_key(
    shared: bytes, encapsulated: bytes, recipient: bytes, info: bytes
) -> tuple[bytes, bytes]:
    """Return key and first nonce from the raw shared bytes of X25519."""
    extracted = labeled_extract(KEM, b"", b"eae_prk", shared)
    secret = labeled_expand(KEM, extracted, b"shared_secret", encapsulated + recipient, 32)
    context = (
        b"\x00"
        + labeled_extract(SUITE, b"", b"psk_id_hash", b"")
        + labeled_extract(SUITE, b"", b"info_hash", info)
    )
    final = labeled_extract(SUITE, secret, b"secret", b"")
    return labeled_expand(SUITE, final, b"key", context, 32), labeled_expand(
        SUITE, final, b"base_nonce", context, 12
    )


def hpke_seal(recipient: bytes, info: bytes, plaintext: bytes, ephemeral: bytes) -> bytes:
    """Return encapsulated key and ciphertext; ``ephemeral`` is the X25519 secret of the sender."""
    encapsulated = page.public_key(ephemeral)
    key, nonce = hpke_key(page.exchange(ephemeral, recipient), encapsulated, recipient, info)
    return encapsulated + AESGCM(key).encrypt(nonce, plaintext, b"")


def hpke_open(secret: bytes, info: bytes, sealed: bytes) -> bytes | None:
    """Return the plaintext, or None."""
    encapsulated = sealed[:32]
    if not page.acceptable(encapsulated):
        return None
    key, nonce = hpke_key(
        page.exchange(secret, encapsulated), encapsulated, page.public_key(secret), info
    )
    try:
        return AESGCM(key).decrypt(nonce, sealed[32:], b"")
    except InvalidTag:
        return None


@dataclass(frozen=True)
class Parameters:
    """The parameters of a two-server summation; ``allow_list`` is the joined keys."""

    length: int
    bits: int
    largest: int
    tau: int
    n_max: int
    min_batch: int
    corrupt: int
    leader_key: bytes
    helper_key: bytes
    allow_list: bytes
    fingerprint: bytes
    widths: tuple[int, ...]

    def check(self) -> None:
        """Refuse what is out of bounds.

        Raises:
            RefusedError: A parameter is out of its bounds.
        """
        good = [
            self.length >= 1,
            1 <= self.bits <= 64
            and self.bits >= (2 * (self.n_max * self.largest + self.tau) + 1).bit_length(),
            self.largest >= 1 and self.tau >= 0,
            2 <= self.n_max <= 2**20,
            self.corrupt + 2 <= self.min_batch <= self.n_max,
            0 <= self.corrupt <= self.n_max - 2,
            page.acceptable(self.leader_key),
            page.acceptable(self.helper_key),
            self.leader_key != self.helper_key,
            min(self.widths, default=0) >= 1 and sum(self.widths) == self.length,
        ]
        if not all(good) or self.entries * page.lane_width(self.bits) // 8 > 2**30:
            raise RefusedError

    @property
    def entries(self) -> int:
        """Return the length of the vector with its checksum entries."""
        return self.length + page.checksum_count(self.bits)

    def identities(self) -> set[bytes]:
        """Return the keys of the allow-list."""
        return {self.allow_list[i : i + 32] for i in range(0, len(self.allow_list), 32)}

    def context(self) -> bytes:
        """Return the context."""
        numbers_ = u8(1) + u64(self.length) + u8(self.bits) + u64(self.largest) + u64(self.tau)
        numbers_ += u32(self.n_max) + u32(self.min_batch) + u32(self.corrupt)
        digest = hashlib.sha256(self.allow_list).digest()
        keys = self.leader_key + self.helper_key
        rows = u32(len(self.widths)) + b"".join(u32(width) for width in self.widths)
        return page.digest("two-server context", numbers_, keys, digest, self.fingerprint, rows)

    def frame(self, type_: int, sender: int, body: bytes) -> bytes:
        """Return header and body."""
        return (
            struct.pack("<4sBBH32sII", b"FTSA", 1, type_, 0, self.context(), sender, len(body))
            + body
        )

    def body(self, data: bytes, type_: int, sender: int) -> bytes | None:
        """Return the body of a frame that is exactly as expected, else None."""
        body = data[48:]
        return body if data == self.frame(type_, sender, body) else None


def part_digest(type_: int, part: bytes) -> bytes:
    """Return the digest of a part."""
    return page.digest("two-server part", u8(type_), part)


def id_of(bound: bytes) -> bytes:
    """Return the id of a report: context, nonce, round, identity and time are joined in bound."""
    return page.digest("two-server id", bound)[:16]


def mask_key(parameters: Parameters, id_: bytes, seed: bytes) -> bytes:
    """Return the mask key of a seed."""
    return page.hkdf(seed, parameters.context() + id_, label("two-server mask"))


@dataclass(frozen=True)
class Report:
    """What a client draws and sends."""

    identity: bytes
    round: int
    time: int
    nonce: bytes
    seed: bytes
    salt: bytes
    ephemeral: bytes
    ephemeral_for_leader: bytes
    vector: list[int]

    @property
    def start(self) -> bytes:
        """Return what a head begins with."""
        return self.nonce + u32(self.round) + page.identity_of(self.identity) + u64(self.time)

    def id(self, parameters: Parameters) -> bytes:
        """Return the id of the report."""
        return id_of(parameters.context() + self.start)

    def parts(self, parameters: Parameters) -> tuple[bytes, bytes]:
        """Return what the leader gets, before it is sealed, and the sealed seed."""
        bound = parameters.context() + self.start
        sealed = hpke_seal(
            parameters.helper_key, label("two-server seed") + bound, self.seed, self.ephemeral
        )
        mask = page.mask(
            mask_key(parameters, self.id(parameters), self.seed),
            parameters.entries,
            parameters.bits,
        )
        values = self.vector + [1] * page.checksum_count(parameters.bits)
        share = page.pack(
            [entry % 2**parameters.bits for entry in page.add(values, mask)], parameters.bits
        )
        return self.salt + share, sealed

    def frames(
        self, parameters: Parameters, parts: tuple[bytes, bytes] | None = None
    ) -> tuple[bytes, bytes]:
        """Return LeaderReport and HelperReport, of these parts or of its own."""
        parts = parts or self.parts(parameters)
        bound = parameters.context() + self.start
        digests = (part_digest(LEADER_REPORT, parts[0]), part_digest(HELPER_REPORT, parts[1]))
        signature = page.sign(self.identity, "two-server report", bound, *digests)
        share = hpke_seal(
            parameters.leader_key,
            label("two-server share") + bound,
            parts[0],
            self.ephemeral_for_leader,
        )
        leader = self.start + digests[1] + signature + share
        helper = self.start + digests[0] + signature + parts[1]
        return parameters.frame(LEADER_REPORT, CLIENT, leader), parameters.frame(
            HELPER_REPORT, CLIENT, helper
        )


@dataclass
class Receiver:
    """What leader and helper have in common: they take reports.

    Attributes:
        parameters: Of the summation.
        secret: The server's secret key.
        rounds: First and last round.
        journal: What outlives a restart, by name: the SHA-256 of the report of an identity, and the
            batch.
        reports: Whole messages by id.
        held: What is kept of the part, by id.
        has_stopped: Whether the leader takes no more.
    """

    parameters: Parameters
    secret: bytes
    rounds: tuple[int, int]
    journal: dict[Any, Any] = field(default_factory=dict)
    reports: dict[bytes, bytes] = field(default_factory=dict)
    held: dict[bytes, list[int]] = field(default_factory=dict)
    has_stopped: bool = False

    def restarted(self) -> Receiver:
        """Return the server after a restart: only the journal is left."""
        return type(self)(self.parameters, self.secret, self.rounds, self.journal)

    @property
    def batch(self) -> tuple[bytes, Any] | None:
        """The Query of the batch and what goes with it, once the journal knows it."""
        return self.journal.get("batch")

    @property
    def leads(self) -> bool:
        """Return whether this is the leader."""
        return isinstance(self, Leader)

    def receive(self, data: bytes, now: int) -> str:
        """Take a report.

        Returns:
            The word of the page.
        """
        p = self.parameters
        mine, other = (
            (LEADER_REPORT, HELPER_REPORT) if self.leads else (HELPER_REPORT, LEADER_REPORT)
        )
        size = 48 + 32 + page.packed_length(p.entries, p.bits) if self.leads else 80
        body = p.body(data, mine, CLIENT)
        is_one = body is not None and len(body) == HEAD + size
        once = hashlib.sha256(data).digest()
        if self.batch is not None or self.has_stopped:
            ids = list(self.held)
            if self.batch is not None:
                ids = [self.batch[0][i : i + 16] for i in range(60, len(self.batch[0]), 16)]
            is_copy = (
                is_one
                and body is not None
                and id_of(p.context() + body[:60]) in ids
                and self.journal.get(body[20:52]) == once
            )
            return "accepted" if is_copy else "closed"
        if not is_one or body is None:
            return "malformed"
        round_, public, time, digest, signature, part = (
            page.little(body[16:20]),
            body[20:52],
            page.little(body[52:60]),
            body[60:92],
            body[92:HEAD],
            body[HEAD:],
        )
        if not self.rounds[0] <= round_ <= self.rounds[1]:
            return "other round"
        if public not in p.identities():
            return "unknown identity"
        bound = p.context() + body[:60]
        id_ = id_of(bound)
        if self.leads:
            opened = hpke_open(self.secret, label("two-server share") + bound, part)
            if opened is None:
                return "forged"
            part = opened
        digests = {mine: part_digest(mine, part), other: digest}
        fields = (bound, digests[LEADER_REPORT], digests[HELPER_REPORT])
        if not page.verifies(public, signature, "two-server report", *fields):
            return "forged"
        if self.journal.get(public, once) != once:
            return "second report"
        if public not in self.journal and not now - MAX_AGE <= time <= now + CLOCK_SKEW:
            return "other time"
        if data in self.reports.values():
            return "accepted"
        if id_ in self.reports:
            return "second report"
        if len(self.reports) >= p.n_max:
            return "full"
        if self.leads:
            try:
                values = page.unpack(part[32:], p.entries, p.bits)
            except page.AbortError:
                return "unreadable"
        else:
            seed = hpke_open(self.secret, label("two-server seed") + bound, part)
            if seed is None:
                return "unreadable"
            values = page.mask(mask_key(p, id_, seed), p.entries, p.bits)
        self.journal[public] = once
        self.reports[id_], self.held[id_] = data, values
        return "accepted"

    def ids_body(self, ids: Sequence[bytes]) -> bytes:
        """Return the body of an Offer or a Query."""
        return u32(self.rounds[0]) + u32(self.rounds[1]) + u32(len(ids)) + b"".join(sorted(ids))

    def ids_of(self, body: bytes | None) -> list[bytes]:
        """Return the ids of an Offer or a Query of these rounds.

        Raises:
            RefusedError: It is malformed, or of other rounds.
        """
        if body is None or len(body) < 12 or len(body) != 12 + 16 * page.little(body[8:12]):
            raise RefusedError
        ids = [body[i : i + 16] for i in range(12, len(body), 16)]
        if ids != sorted(set(ids)) or len(ids) > self.parameters.n_max:
            raise RefusedError
        if body[:8] != u32(self.rounds[0]) + u32(self.rounds[1]):
            raise RefusedError
        return ids

    def batch_digest(self, query: bytes) -> bytes:
        """Return the digest of a Query."""
        return page.digest("two-server batch", self.parameters.context(), query[48:])

    def summed(self, ids: Sequence[bytes], noise: Sequence[int], sign: int) -> list[int]:
        """Return noise plus, or minus, what is held of some ids, mod 2^b."""
        total = [*noise, *([0] * page.checksum_count(self.parameters.bits))]
        for id_ in ids:
            total = page.add(total, self.held[id_], sign)
        return [entry % 2**self.parameters.bits for entry in total]


class Helper(Receiver):
    """The helper."""

    def offer(self) -> bytes:
        """Return an Offer."""
        return self.parameters.frame(OFFER, HELPER, self.ids_body(list(self.reports)))

    def answer(self, query: bytes, noise: Sequence[int]) -> bytes:
        """Return the Answer to a Query.

        Raises:
            RefusedError: The Query is refused.
        """
        p = self.parameters
        ids = self.ids_of(p.body(query, QUERY, LEADER))
        if self.batch is not None:
            if self.batch[0] == query:
                return self.batch[1]
            raise RefusedError
        if not p.min_batch <= len(ids) <= p.n_max or any(id_ not in self.held for id_ in ids):
            raise RefusedError
        body = self.batch_digest(query) + page.pack(self.summed(ids, noise, -1), p.bits)
        self.journal["batch"] = query, p.frame(ANSWER, HELPER, body)
        return self.journal["batch"][1]


class Leader(Receiver):
    """The leader."""

    def stop(self) -> str:
        """Take no more reports."""
        self.has_stopped = True
        return "stopped"

    def query(self, offer: bytes, noise: Sequence[int]) -> bytes | str:
        """Return the Query for the ids that both hold, or ``closed``.

        Raises:
            RefusedError: The Offer is refused, or there are too few.
        """
        p = self.parameters
        if self.batch is not None or not self.has_stopped:
            return "closed" if self.batch is not None else "collecting"
        self.has_stopped = False  # if the Offer is refused
        offered = self.ids_of(p.body(offer, OFFER, HELPER))
        ids = [id_ for id_ in offered if id_ in self.held]
        if not p.min_batch <= len(ids) <= p.n_max:
            raise RefusedError
        query = p.frame(QUERY, LEADER, self.ids_body(ids))
        self.journal["batch"] = query, self.summed(ids, noise, 1)
        return query

    def finish(self, answer: bytes) -> list[int] | str:
        """Return the sum, ``dropped`` for an Answer that is not to this Query, or ``aborted``."""
        p = self.parameters
        assert self.batch is not None
        asked, own = self.batch
        body = p.body(answer, ANSWER, HELPER)
        if body is None or body[:32] != self.batch_digest(asked):
            return "dropped"
        try:
            values = page.unpack(body[32:], p.entries, p.bits)
        except page.AbortError:
            return "dropped"
        size = 2**p.bits
        if self.journal.setdefault("heard", answer) != answer:
            return "dropped"
        total, count = [entry % size for entry in page.add(own, values)], page.little(asked[56:60])
        total = [entry - size if entry >= size // 2 else entry for entry in total]
        if any(lane != count for lane in total[p.length :]):
            return "aborted"
        if any(abs(entry) > count * p.largest + p.tau for entry in total[: p.length]):
            return "aborted"
        return total[: p.length]


# --------------------------------------------------------------------------------------------------
# The vectors.

ROUNDS, NOW = (3, 4), 0x0102030405
LEADER_SECRET, HELPER_SECRET = shake("leader secret"), shake("helper secret")
IDENTITIES = sorted((shake(f"two-server identity {i}") for i in range(7)), key=page.identity_of)


def parameters_of(**changes: Any) -> Parameters:
    """Return the parameters of the vectors.

    Args:
        changes: Other values.

    Returns:
        Parameters.
    """
    base: Json = {
        "length": 5,
        "bits": 11,
        "largest": 100,
        "tau": 40,
        "n_max": 5,
        "min_batch": 3,
        "corrupt": 1,
        "widths": (2, 3),
        "leader_key": page.public_key(LEADER_SECRET),
    }
    keys = {"helper_key": page.public_key(HELPER_SECRET), "fingerprint": shake("fingerprint")}
    allow = b"".join(page.identity_of(secret) for secret in IDENTITIES[:6])
    return Parameters(allow_list=allow, **{**base, **keys, **changes})


def report(parameters: Parameters, number: int, **changes: Any) -> Report:
    """Return the report of a client.

    Args:
        parameters: Of the summation.
        number: Of the client.
        changes: Other values.

    Returns:
        The report.
    """
    draws = shake(f"two-server draws {number}", 80)
    vector = [x - 100 for x in numbers(f"two-server vector {number}", parameters.length, 201)]
    base: Json = {"identity": IDENTITIES[number], "round": ROUNDS[number % 2], "vector": vector}
    base |= {"time": NOW - number, "ephemeral_for_leader": shake(f"ephemeral for leader {number}")}
    base |= {
        "nonce": draws[:16],
        "seed": draws[16:48],
        "salt": draws[48:],
        "ephemeral": shake(f"ephemeral {number}"),
    }
    return Report(**{**base, **changes})


def shown(value: Any) -> Any:
    """Return a value as JSON: bytes as hex.

    Args:
        value: Anything.

    Returns:
        JSON.
    """
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: shown(entry) for key, entry in value.items()}
    return [shown(entry) for entry in value] if isinstance(value, list | tuple) else value


def parameter_vectors() -> list[Json]:
    """Return parameters that are good and refused, and contexts.

    Returns:
        One object each.
    """
    low = sorted(page.LOW_ORDER)
    changes: list[Json] = [{}]
    changes += [
        {"length": 0, "widths": ()},
        {"length": 0, "widths": (0,)},
        {"length": 2**29 - 6, "widths": (2**29 - 6,)},
        {"length": 2**29 - 5, "widths": (2**29 - 5,)},
        {"widths": (5,)},
        {"widths": (3, 2)},
        {"widths": (1, 1, 1, 1, 1)},
        {"widths": (2, 3, 0)},
        {"widths": (2, 4)},
        {"bits": 10},
        {"bits": 65},
        {"bits": 64},
    ]
    changes += [
        {"bits": 17, "length": 2**28 - 4, "widths": (2**28 - 4,)},
        {"bits": 17, "length": 2**28 - 3, "widths": (2**28 - 3,)},
        {"bits": 33, "length": 2**27 - 1, "widths": (2**27 - 1,)},
    ]
    changes += [
        {"largest": 0},
        {"largest": 1},
        {"largest": 196},
        {"largest": 197},
        {"tau": 0},
        {"tau": 523},
        {"tau": 524},
    ]
    changes += [
        {"n_max": 2, "min_batch": 2, "corrupt": 0},
        {"n_max": 1, "min_batch": 1, "corrupt": 0},
        {"n_max": 2},
    ]
    changes += [
        {"min_batch": 2},
        {"min_batch": 5},
        {"min_batch": 6},
        {"corrupt": 0},
        {"corrupt": 2},
        {"corrupt": 3, "min_batch": 5},
    ]
    changes += [{"n_max": 2**20, "bits": 32}, {"n_max": 2**20 + 1, "bits": 32}]
    changes += [
        {"helper_key": value.to_bytes(32, "little")} for value in [*low, 2**255 - 19, 2**255 + 9]
    ]
    changes += [
        {"leader_key": value.to_bytes(32, "little")} for value in [*low, 2**255 - 19, 2**255 + 9]
    ]
    changes += [{"leader_key": page.public_key(HELPER_SECRET)}]
    found = []
    for change in changes:
        parameters = parameters_of(**change)
        try:
            parameters.check()
        except RefusedError:
            found.append({"success": False, "changes": shown(change)})
        else:
            found.append(
                {"success": True, "changes": shown(change), "context": parameters.context().hex()}
            )
    return found


def case(name: str, party: Receiver, keys: dict[str, bytes], *operations: tuple[Any, ...]) -> Json:
    """Run operations on a server and return the case.

    Args:
        name: A unique name.
        party: A leader or a helper.
        keys: Messages that may be named.
        operations: What is done, a message, what is wanted of it, and when if that matters.

    Returns:
        The case.
    """
    initial: Json = {"rounds": list(party.rounds)}
    initial["n_max"] = party.parameters.n_max
    steps: list[Json] = []
    noise = numbers(f"two-server noise {party.leads}", party.parameters.length, 2 * 15 + 1)
    noise = [entry - 15 for entry in noise]
    for kind, message, wanted, *when in operations:
        result: Any
        now = when[0] if when else NOW
        try:
            if kind == "receive":
                result = party.receive(message, now)
            elif kind == "query":
                assert isinstance(party, Leader)
                result = party.query(message, noise)
            elif kind == "answer":
                assert isinstance(party, Helper)
                result = party.answer(message, noise)
            elif kind == "stop":
                assert isinstance(party, Leader)
                result = party.stop()
            elif kind == "restart":
                party, result = party.restarted(), "restarted"
            else:
                assert isinstance(party, Leader)
                result = party.finish(message)
        except RefusedError:
            result = "refused"
        assert wanted is None or result == wanted, (name, kind, result, wanted)
        best = min(
            (
                {
                    "key": k,
                    "splices": (
                        splice(old[48:], message[48:], 48) + splice(old[:48], message[:48], 0)
                    ),
                }
                for k, old in keys.items()
            ),
            key=lambda row: len(str(row)),
        )
        good = result in ("accepted", "restarted", "stopped") or not isinstance(result, str)
        shown_message: Json = best if len(str(best)) < 2 * len(message) else {"hex": message.hex()}
        if not shown_message.get("splices", True):
            del shown_message["splices"]
        step = {"operation": kind, "message": shown_message, "success": good}
        if kind == "receive":
            step["now"] = now
        steps.append({**step, "result": shown(result)})
    role = "leader" if party.leads else "helper"
    return {"name": name, "role": role, **initial, "noise": noise, "operations": steps}


def sections() -> dict[str, list[Json]]:
    """Return all vectors of the page.

    Returns:
        Lists by name.
    """
    p = parameters_of()
    reports = [report(p, number) for number in range(6)]
    keys: dict[str, bytes] = {}
    for number, made in enumerate(reports):
        keys[f"leader/{number}"], keys[f"helper/{number}"] = made.frames(p)

    def leader(**changes: Any) -> Leader:
        return Leader(**{"parameters": p, "secret": LEADER_SECRET, "rounds": ROUNDS, **changes})

    def helper(**changes: Any) -> Helper:
        return Helper(**{"parameters": p, "secret": HELPER_SECRET, "rounds": ROUNDS, **changes})

    # One batch: the leader lacks report 1, the helper lacks report 3.
    one, two = leader(), helper()
    first = [("receive", keys[f"leader/{i}"], "accepted") for i in (0, 2, 3, 4)]
    second = [("receive", keys[f"helper/{i}"], "accepted") for i in (4, 2, 1, 0)]
    for _, message, _ in first:
        one.receive(message, NOW)
    for _, message, _ in second:
        two.receive(message, NOW)
    noises = [
        [entry - 15 for entry in numbers(f"two-server noise {is_leader}", p.length, 31)]
        for is_leader in (True, False)
    ]
    keys["offer"] = two.offer()
    one.stop()
    query = one.query(keys["offer"], noises[0])
    assert isinstance(query, bytes)
    keys["query"] = query
    keys["answer"] = two.answer(keys["query"], noises[1])
    total = one.finish(keys["answer"])
    plain = [
        sum(reports[i].vector[e] for i in (0, 2, 4)) + noises[0][e] + noises[1][e]
        for e in range(p.length)
    ]
    assert total == plain
    batch: Json = {
        "success": True,
        "parameters": {**shown(asdict(p))},
        "rounds": list(ROUNDS),
        "leader_secret": LEADER_SECRET.hex(),
        "helper_secret": HELPER_SECRET.hex(),
        "context": p.context().hex(),
        "reports": [
            {
                **shown(asdict(made)),
                "id": made.id(p).hex(),
                "draws": (made.nonce + made.seed + made.salt).hex(),
                "public": page.identity_of(made.identity).hex(),
                "mask_key": mask_key(p, made.id(p), made.seed).hex(),
            }
            for made in reports
        ],
        "leader_noise": noises[0],
        "helper_noise": noises[1],
        "batch_digest": one.batch_digest(keys["query"]).hex(),
        "messages": shown(keys),
        "sum": total,
    }

    cases: list[Json] = []
    for role, other, make in (("leader", "helper", leader), ("helper", "leader", helper)):
        of = {number: keys[f"{role}/{number}"] for number in range(6)}
        frames = [made.frames(p)[0 if role == "leader" else 1] for made in reports]
        assert frames == list(of.values())

        def edit(place: int, data: bytes, base: bytes = frames[0]) -> bytes:
            return base[:place] + data + base[place + len(data) :]

        def resent(number: int, role: str = role, **changes: Any) -> bytes:
            return report(p, number, **changes).frames(p)[0 if role == "leader" else 1]

        def signed(part: bytes, number: int = 0, role: str = role) -> bytes:
            made = reports[number]
            leader, helper = made.parts(p)
            parts = (part, helper) if role == "leader" else (leader, part)
            return made.frames(p, parts)[0 if role == "leader" else 1]

        malformed = [
            b"",
            frames[0][:47],
            frames[0][:-1],
            frames[0] + b"\0",
            keys[f"{other}/0"],
            keys["query"],
        ]
        malformed += [
            edit(0, b"X"),
            edit(4, b"\2"),
            edit(5, b"\0"),
            edit(6, b"\1"),
            edit(8, b"\0\0"),
            edit(40, u32(LEADER)),
        ]
        malformed += [
            edit(44, u32(1)),
            p.frame(frames[0][5], CLIENT, frames[0][48:] + b"\0"),
            p.frame(frames[0][5], CLIENT, b""),
        ]
        steps: list[tuple[str, bytes, Any]] = [
            ("receive", message, "malformed") for message in malformed
        ]
        steps += [
            ("receive", resent(0, round=round_), "other round") for round_ in (0, 2, 5, 2**32 - 1)
        ]
        steps += [("receive", resent(0, identity=IDENTITIES[6]), "unknown identity")]
        forged = [
            edit(48, b"\0"),
            edit(64, u32(4)),
            edit(48 + 52, u64(NOW + 1)),
            edit(48 + 60, b"\0\0"),
            edit(48 + 92, b"\0\0"),
            edit(48 + HEAD, b"\0\0"),
        ]
        forged += [
            edit(len(frames[0]) - 1, u8(frames[0][-1] ^ 1)),
            edit(48 + 20, page.identity_of(IDENTITIES[1])),
        ]
        steps += [("receive", message, "forged") for message in forged]
        part = reports[0].parts(p)[0 if role == "leader" else 1]
        if role == "leader":
            # a seal that does not open is not what the client signed
            steps += [
                ("receive", edit(48 + HEAD, data), "forged")
                for data in (bytes(32), frames[1][48 + HEAD :], u8(9) + bytes(31))
            ]
            offset = 32
            for plane, _ in page.planes(p.bits):
                offset += -(-p.entries * plane // 8)
                if plane < 8 and p.entries * plane % 8:
                    changed = part[: offset - 1] + u8(part[offset - 1] | 0x80) + part[offset:]
                    steps.append(("receive", signed(changed), "unreadable"))
        else:
            unreadable = [
                point.to_bytes(32, "little") + part[32:] for point in sorted(page.LOW_ORDER)
            ]
            unreadable += [(page.little(part[:32]) + 2**255).to_bytes(32, "little") + part[32:]]
            unreadable += [
                part[:-1] + u8(part[-1] ^ 1),
                part[:40] + u8(part[40] ^ 1) + part[41:],
                bytes(80),
            ]
            unreadable += [keys["helper/2"][48 + HEAD :]]
            unreadable += [
                hpke_seal(page.public_key(shake("not the helper")), b"", bytes(32), shake("e"))
            ]
            steps += [("receive", signed(changed), "unreadable") for changed in unreadable]
        times = (NOW - MAX_AGE - 1, NOW + CLOCK_SKEW + 1, 0, 2**64 - 1)
        steps += [("receive", resent(0, time=time), "other time") for time in times]
        steps += [("receive", frames[0], "other time", NOW + MAX_AGE + 1)]
        steps += [("receive", frames[0], "other time", NOW - CLOCK_SKEW - 1)]
        for number, time in ((2, NOW - MAX_AGE), (3, NOW + CLOCK_SKEW)):
            steps += [("receive", resent(number, time=time), "accepted")]
        steps += [("receive", frames[0], "accepted"), ("receive", frames[0], "accepted")]
        # what was taken is no older for being sent again
        steps += [("receive", frames[0], "accepted", NOW + MAX_AGE + 1)]
        steps += [
            ("receive", resent(0, nonce=bytes(16)), "second report"),
            ("receive", resent(0, round=4), "second report"),
        ]
        steps += [
            ("receive", resent(0, salt=bytes(32)), "second report"),
            ("receive", edit(48 + HEAD, b"\0\0"), "forged"),
        ]
        steps += [
            # a nonce that another client has
            ("receive", resent(1, nonce=reports[0].nonce), "accepted"),
            ("receive", frames[1], "second report"),
        ]
        cases.append(case(f"{role}: reports in the order of the checks", make(), keys, *steps))
        steps = [("receive", frames[i], "accepted") for i in range(5)]
        steps += [("receive", frames[5], "full"), ("receive", frames[0], "accepted")]
        steps += [
            ("receive", resent(0, nonce=bytes(16)), "second report"),
        ]
        cases.append(case(f"{role}: full", make(), keys, *steps))
        restart = ("restart", b"", "restarted")
        steps = [
            ("receive", frames[0], "accepted"),
            restart,
            ("receive", resent(0, nonce=bytes(16)), "second report"),
        ]
        steps += [
            ("receive", resent(1, nonce=reports[0].nonce), "accepted"),
            ("receive", frames[0], "accepted"),
            restart,
        ]
        steps += [("receive", frames[1], "second report"), ("receive", frames[0], "accepted")]
        steps += [("receive", frames[0], "accepted"), restart]
        steps += [("receive", frames[0], "accepted", NOW + MAX_AGE + 1)]
        cases.append(case(f"{role}: a restart before the batch is closed", make(), keys, *steps))

    def ids(*which: int) -> bytes:
        return one.ids_body([reports[i].id(p) for i in which])

    bad_bodies = [
        ids(0, 2, 4)[:-1],
        ids(0, 2, 4) + b"\0",
        ids(0, 2, 4)[:12],
        b"",
        u32(3) + ids(0, 2, 4)[4:8] + u32(4) + ids(0, 2, 4)[12:],
    ]
    body = ids(0, 2, 4)
    bad_bodies += [
        body[:12] + body[28:44] + body[12:28] + body[44:],
        body[:28] + body[12:28] + body[44:],
    ]
    bad_bodies += [u32(2) + body[4:], body[:4] + u32(5) + body[8:], ids(0, 1, 2, 3, 4, 5)]
    of_query = [
        p.frame(QUERY, LEADER, bad) for bad in [*bad_bodies, ids(0, 2), ids(), ids(0, 2, 3)]
    ]
    of_query += [p.frame(QUERY, HELPER, body), p.frame(OFFER, LEADER, body), keys["offer"]]
    of_query += [parameters_of(min_batch=4).frame(QUERY, LEADER, body)]
    steps = [
        *second,
        *(("answer", message, "refused") for message in of_query),
        ("answer", keys["query"], keys["answer"]),
    ]
    steps += [
        ("answer", keys["query"], keys["answer"]),
        ("answer", p.frame(QUERY, LEADER, ids(0, 1, 2)), "refused"),
    ]
    restart = ("restart", b"", "restarted")
    for _ in range(2):
        steps += [
            ("receive", keys["helper/3"], "closed"),
            ("receive", keys["helper/0"], "accepted"),
        ]
        steps += [
            ("receive", keys["helper/1"], "closed"),
            ("receive", keys["leader/0"], "closed"),
            restart,
        ]
        steps += [("answer", p.frame(QUERY, LEADER, ids(0, 1, 2)), "refused")]
        steps += [("answer", keys["query"], keys["answer"])]
    cases.append(case("helper: Queries", helper(), keys, *steps))
    of_offer = [
        p.frame(OFFER, HELPER, bad) for bad in [*bad_bodies, ids(0, 2), ids(), ids(0, 1, 2)]
    ]
    of_offer += [p.frame(OFFER, LEADER, body), p.frame(QUERY, HELPER, body)]
    stop = ("stop", b"", "stopped")
    steps = [*first, ("query", keys["offer"], "collecting")]
    for message in of_offer:  # a leader that refuses an Offer collects again
        steps += [stop, stop, ("query", message, "refused")]
    steps += [("query", keys["offer"], "collecting"), stop]
    # what came before is still accepted, and nothing else
    steps += [("receive", keys["leader/0"], "accepted"), ("receive", keys["leader/1"], "closed")]
    steps += [("query", keys["offer"], keys["query"]), stop]
    for after in ([], [restart]):
        steps += [
            *after,
            ("receive", keys["leader/1"], "closed"),
            ("receive", keys["leader/0"], "accepted"),
        ]
        steps += [("receive", keys["leader/3"], "closed"), ("query", keys["offer"], "closed")]
    answer = keys["answer"]
    spoiled = [
        answer[:-1],
        answer + b"\0",
        answer[:48] + bytes(32) + answer[80:],
        answer[:40] + u32(LEADER) + answer[44:],
        b"",
    ]
    spoiled += [answer[:-1] + u8(answer[-1] | 0x80), keys["query"]]
    steps += [("finish", message, "dropped") for message in spoiled]
    other = page.pack([1, *page.unpack(answer[80:], p.entries, p.bits)[1:]], p.bits)
    late = ("finish", answer[:80] + other, "dropped")
    good = [*steps, ("finish", answer, total), late, restart, late, ("finish", answer, total)]
    cases.append(case("leader: Offers and Answers", leader(), keys, *good))
    values = page.unpack(answer[80:], p.entries, p.bits)
    for name, at, by, wanted in (
        ("a lane", p.length, 1, "aborted"),
        ("the last lane", p.entries - 1, -1, "aborted"),
        ("an entry beyond the bound", 0, 3 * p.largest + p.tau + 1 - plain[0], "aborted"),
        ("an entry at the bound", 0, 3 * p.largest + p.tau - plain[0], None),
        ("an entry at the other bound", 1, -3 * p.largest - p.tau - plain[1], None),
        ("an entry beyond the other bound", 1, -3 * p.largest - p.tau - 1 - plain[1], "aborted"),
    ):
        answered = list(values)
        answered[at] = (answered[at] + by) % 2**p.bits
        message = p.frame(ANSWER, HELPER, answer[48:80] + page.pack(answered, p.bits))
        steps = [*first, stop, ("query", keys["offer"], keys["query"]), ("finish", message, wanted)]
        cases.append(case(f"leader: an Answer with {name} changed", leader(), keys, *steps))
    hpke = []
    for number in range(3):
        secret, info, text = (
            shake(f"hpke {number}"),
            shake(f"info {number}", 20 * number),
            shake(f"plain {number}"),
        )
        sealed = hpke_seal(page.public_key(secret), info, text, shake(f"ephemeral {number}"))
        assert hpke_open(secret, info, sealed) == text
        row = {
            "secret": secret.hex(),
            "info": info.hex(),
            "ephemeral": shake(f"ephemeral {number}").hex(),
        }
        hpke.append({"success": True, **row, "plaintext": text.hex(), "sealed": sealed.hex()})
        hpke.append({"success": False, **row, "sealed": (sealed[:-1] + u8(sealed[-1] ^ 1)).hex()})
    return {"parameters": parameter_vectors(), "hpke": hpke, "batches": [batch], "cases": cases}
