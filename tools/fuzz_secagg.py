"""Fuzz the decoders and the two state machines of secure summation.

    python tools/fuzz_secagg.py decoders --runs 10000000
    python tools/fuzz_secagg.py machines --runs 100000

Inputs are made from a seed corpus, which is itself made here, from cohorts that are deterministic:
valid messages of each type are flipped, cut, spliced and extended, and their declared lengths
mended or not. `--engine atheris` lets coverage guide the choice instead, where that package is
installed. Run number i of a seed is always the same input.

A decoder returns, or raises its own error; what it takes it gives back byte for byte when it is
encoded again. A client or server never raises, moves along its table alone, says nothing after it
has aborted, never gives both shares of one neighbour, and a sum that comes out is that of the
vectors of the clients it names. The exit status is 1 on a failure, which is printed with the input
in hexadecimal digits.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import random  # noqa: TID251 - reproducible, and for single numbers much faster than NumPy's
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.campaign.cohort import CohortRun, carry, drive
from fedtally.crypto import keys, shamir
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import ExchangeKey, Secret, SigningKey
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.secagg import two_server, wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal, Pinned
from fedtally.secagg.messages import (
    TRANSITIONS,
    ClientState,
    Invite,
    Kind,
    RemoteProtocolError,
    ServerState,
)
from fedtally.secagg.packing import pack, unpack
from fedtally.secagg.params import Adversary, ClientPolicy, Parameters
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import ClientId, Server

NOW = 1_000_000
FINGERPRINT = hashlib.sha256(b"plan").digest()
REPORT_SECONDS = 5


class Failure(Exception):
    """A property that does not hold."""


def stream(*seed: object) -> Callable[[int], bytes]:
    """Return a reproducible source of bytes."""
    count = 0

    def draw(size: int) -> bytes:
        nonlocal count
        count += 1
        return hashlib.shake_256(repr((seed, count)).encode()).digest(size)

    return draw


# ---- a cohort ----


SERVER_KEY = SigningKey(Secret(stream("server")(32)))
SIGNERS = sorted(
    (SigningKey(Secret(stream("identity", i)(32))) for i in range(6)), key=lambda key: key.public
)
ALLOWED = AllowList(key.public for key in SIGNERS)
PINNED = {
    Adversary.ACTIVE: Pinned(SERVER_KEY.public, FINGERPRINT, ALLOWED, round=3),
    Adversary.SEMI_HONEST: Pinned(SERVER_KEY.public, FINGERPRINT, round=3),
}
SETTINGS = [
    (
        adversary,
        propose(
            n, length=length, bits=bits, corrupt=corrupt, max_dropout=dropout, adversary=adversary
        ),
    )
    for adversary, n, length, bits, corrupt, dropout in (
        (Adversary.SEMI_HONEST, 6, 5, 11, 1, 0.2),
        (Adversary.SEMI_HONEST, 4, 3, 16, 1, 0.25),
        (Adversary.ACTIVE, 6, 5, 11, 1, 0.16),
        (Adversary.ACTIVE, 4, 3, 16, 0, 0.25),
    )
]
POLICY = {
    adversary: ClientPolicy(adversary=adversary, min_honest=2, corrupt=0) for adversary in Adversary
}


class Cohort:
    """A server and its clients, deterministic in the label; every message is kept.

    Args:
        setting: an entry of SETTINGS.
        label: of the randomness.
        session: another number makes another session of the same clients.
        before: whose journals are shared.
    """

    def __init__(
        self, setting: int, label: object = 0, session: int = 0, before: Cohort | None = None
    ) -> None:
        self.adversary, self.parameters = SETTINGS[setting]
        active = self.adversary is Adversary.ACTIVE
        self.n, self.allowed = self.parameters.n_max, ALLOWED if active else None
        self.saved: list[bytes] = []
        self.server = Server(
            self.parameters,
            session=stream("session", label, session)(32),
            signing_key=SERVER_KEY,
            fingerprint=FINGERPRINT,
            round=3,
            not_before=NOW - 10,
            not_after=NOW + 1000,
            salt=bytes(32),
            random=stream("order", label, session),
            allow_list=self.allowed,
            journal=self.saved.append,
        )
        self.journals: list[MemoryJournal] = (
            before.journals if before else [MemoryJournal() for _ in range(self.n)]
        )
        vectors = np.arange(self.n * self.parameters.length).reshape(self.n, -1) % 17 - 8
        self.vectors: list[npt.NDArray[np.int64]] = list(vectors)
        self.clients = [
            Client(
                POLICY[self.adversary],
                PINNED[self.adversary],
                partial(self._vector, i),
                journal=self.journals[i],
                random=stream("client", label, session, i),
                identity=SIGNERS[i] if active else None,
            )
            for i in range(self.n)
        ]

    def _vector(self, i: int, _: Invite) -> npt.NDArray[np.int64]:
        return self.vectors[i]

    def restart(self, back: int = 0) -> None:
        """Crash the server, and restore it from what it wrote last."""
        self.server = Server.restore(
            self.saved[-1 - back],
            random=stream("order again"),
            allow_list=self.allowed,
            journal=self.saved.append,
        )

    @property
    def run(self) -> CohortRun:
        """The run of the server as it is now: after a restart it is another."""
        return CohortRun(self.server, range(self.n))

    def outgoing(self) -> list[tuple[int, bytes]]:
        """Return what the server says now, and to whom."""
        return [(int(i), frame) for i, frame in self.run.outgoing()]


# ---- the decoders ----


class Target(NamedTuple):
    """A decoder, the errors that it declares, and valid inputs.

    `check` decodes and, where there is an encoder, returns what is encoded again, else None.
    """

    name: str
    check: Callable[[bytes], bytes | None]
    errors: tuple[type[Exception], ...]
    seeds: Sequence[bytes]


def targets() -> list[Target]:
    """Return every decoder with its seeds."""
    return [
        *_wire_targets(),
        *_small_targets(),
        *_two_server_targets(),
        *_two_server_targets(has_proofs=True),
        *_restore_targets(),
    ]


def _parsed(data: bytes) -> bytes | None:
    message = wire.parse(data)
    if message is None:
        return None
    header = wire.HEADER.pack(
        wire.MAGIC,
        message.version,
        message.kind,
        0,
        message.session,
        message.sender,
        len(message.body),
    )
    return header + message.body


def _wire_targets() -> list[Target]:
    frames, out = _transcripts(), []
    remote = (RemoteProtocolError,)
    out.append(Target("wire.parse", _parsed, (), [frame for _, frame in frames]))
    for setting, (adversary, parameters) in enumerate(SETTINGS):
        bodies = _bodies(frames, setting)
        for kind, check in _body_checks(adversary, parameters).items():
            if kind in bodies:
                out.append(
                    Target(f"wire {kind.name.lower()} {setting}", check, remote, bodies[kind])
                )
    return out


def _body_checks(
    adversary: Adversary, parameters: Parameters
) -> dict[Kind, Callable[[bytes], bytes]]:
    """Return what decodes a body and encodes it again, by its type."""
    n, k = parameters.n_max, parameters.graph(parameters.n_max).neighbours
    active = adversary is Adversary.ACTIVE

    def roster(data: bytes) -> bytes:
        if active:
            return wire.encode_full_roster(wire.decode_full_roster(data, len(ALLOWED)))
        return wire.encode_roster(wire.decode_roster(data, parameters))

    return {
        Kind.INVITE: _terms,
        Kind.ADVERTISE: lambda data: b"".join(wire.decode_advert(data, adversary)),
        Kind.ROSTER: roster,
        Kind.SHARES: lambda data: wire.decode_shares(data, k),
        Kind.INBOX: lambda data: wire.encode_inbox(wire.decode_inbox(data, k)),
        Kind.SURVIVORS: lambda data: wire.pack_bits(wire.unpack_bits(data, n)),
        Kind.CONFIRM: wire.decode_confirm,
        Kind.CONFIRMATIONS: lambda data: wire.encode_confirmations(
            wire.decode_confirmations(data, n)
        ),
        Kind.UNMASK: lambda data: wire.encode_unmask(wire.decode_unmask(data, k)),
        Kind.RESULT: lambda data: wire.encode_result(wire.decode_result(data)),
        Kind.ABORT: lambda data: bytes([wire.decode_abort(data)]),
    }


def _terms(body: bytes) -> bytes:
    terms, signature = wire.split_invite(body)
    return wire.encode_terms(wire.decode_terms(terms)) + signature


def _small_targets() -> list[Target]:
    def unpacked(entries: int, bits: int) -> Callable[[bytes], bytes]:
        return lambda data: pack(unpack(data, entries, bits), bits)

    def point(data: bytes) -> bytes | None:
        keys.check_point(data)
        ONE.exchange(data)
        return data

    out = []
    for bits, entries in (
        (1, 13),
        (3, 9),
        (11, 7),
        (15, 8),
        (16, 5),
        (20, 3),
        (31, 4),
        (33, 3),
        (63, 3),
        (64, 2),
    ):
        seeds = [pack(unpack(pack_seed(entries, bits, i), entries, bits), bits) for i in range(3)]
        out.append(Target(f"packing {bits}", unpacked(entries, bits), (InvalidInputError,), seeds))
    shares = [shamir.to_bytes(shamir.random_elements(5, stream("share", i))) for i in range(4)]
    out.append(
        Target(
            "shamir.from_bytes",
            lambda d: shamir.to_bytes(shamir.from_bytes(d)),
            (shamir.ShareError,),
            shares,
        )
    )
    points = [ExchangeKey(Secret(stream("point", i)(32))).public for i in range(4)]
    out.append(
        Target("keys.check_point", point, (keys.RejectedError,), [*points, bytes(32), b"\xff" * 32])
    )
    return out


ONE = ExchangeKey(Secret(stream("one")(32)))


def pack_seed(entries: int, bits: int, number: int) -> bytes:
    """Return the encoding of some vector."""
    size = (bits > 16) + (bits > 32)
    dtype = ("<u2", "<u4", "<u8")[size]
    vector = np.frombuffer(stream("vector", bits, number)(entries * (2 << size)), dtype) & np.array(
        2**bits - 1, dtype
    )
    return pack(vector, bits)


def _two_server_targets(has_proofs: bool = False) -> list[Target]:
    """Return the frames of the two servers, as their state machines take them."""
    keys = [PrivateKey(Secret(stream(server)(32))) for server in ("leader", "helper")]
    parameters = two_server.TwoServerParameters(
        widths=(3, 2),
        bits=16,
        n_max=6,
        min_batch=3,
        corrupt=1,
        leader_key=keys[0].public,
        helper_key=keys[1].public,
        allow_list=ALLOWED.digest,
        fingerprint=FINGERPRINT,
    )
    policy = two_server.BatchPolicy(min_honest=2, corrupt=1)
    terms: Any = two_server.ReportProof(parameters) if has_proofs else parameters
    make: Any = two_server.make_proven_report if has_proofs else two_server.make_report
    arguments = (terms, range(2), ALLOWED, policy)

    def pair() -> tuple[two_server.Leader, two_server.Helper]:
        return (
            two_server.Leader(*arguments, two_server.MemoryJournal(), keys[0]),
            two_server.Helper(*arguments, two_server.MemoryJournal(), keys[1]),
        )

    reports = [
        make(
            terms,
            np.array([0, 1, 0, 0, -1]),
            round=0,
            now=NOW,
            identity=signer,
            policy=policy,
            random=stream("report", i),
        )
        for i, signer in enumerate(SIGNERS[:4])
    ]
    closed = two_server.MemoryJournal()
    leader, (_, helper) = two_server.Leader(*arguments, closed, keys[0]), pair()
    for report in reports:
        leader.receive(report.leader, NOW)
        helper.receive(report.helper, NOW)
    checks = helper.checks() if has_proofs else []
    for frame in checks:
        leader.judge(frame)
    offer = helper.offer()
    leader.stop()
    query = leader.query(offer)
    answer = helper.answer(query)
    genuine = {report.leader for report in reports} | {report.helper for report in reports}
    accepting = pair()

    def receive(server: int) -> Callable[[bytes], bytes | None]:
        def check(data: bytes) -> bytes | None:
            taken = accepting[server].receive(data, NOW) is two_server.Outcome.ACCEPTED
            if taken and data not in genuine:
                raise Failure("a report was accepted that nobody signed")
            return None

        return check

    asked = pair()

    def of_offer(data: bytes) -> None:
        asked[0].stop()
        asked[0].query(data)

    def sum_of(data: bytes) -> bytes | None:
        # one that has heard no answer yet
        waiting = two_server.Leader(*arguments, copy.deepcopy(closed), keys[0])
        if np.abs(waiting.finish(data)).max() > len(reports):
            raise Failure("a sum was accepted that the reports cannot make")
        return None

    judging = pair()[0]
    for report in reports:
        judging.receive(report.leader, NOW)

    def judge(data: bytes) -> None:
        judging.judge(data)  # a helper that lies may have honest reports refused, and no others in

    refused, name = (two_server.BatchRefusedError,), "proven" if has_proofs else "two-server"
    found = [
        Target(f"{name} leader", receive(0), (), [report.leader for report in reports]),
        Target(f"{name} helper", receive(1), (), [report.helper for report in reports]),
        Target(f"{name} query", lambda data: asked[1].answer(data), refused, [query]),
        Target(f"{name} offer", of_offer, refused, [offer]),
        Target(f"{name} answer", sum_of, (two_server.BatchRefusedError,), [answer]),
    ]
    return [*found, Target(f"{name} checks", judge, refused, checks)] if has_proofs else found


def _restore_targets() -> list[Target]:
    def restored(allowed: AllowList | None) -> Callable[[bytes], bytes | None]:
        def check(data: bytes) -> bytes | None:
            Server.restore(data, random=bytes, allow_list=allowed)
            return None  # a damaged file may still be read: zip has bytes that say nothing

        return check

    out = []
    for setting in (0, 2):
        cohort = Cohort(setting)
        run_through(cohort)
        out.append(
            Target(
                f"restore {setting}", restored(cohort.allowed), (UnreadableFileError,), cohort.saved
            )
        )
    return out


def run_through(cohort: Cohort) -> list[bytes]:
    """Run a session without faults; return all frames."""
    frames: list[bytes] = []

    def ask(i: ClientId, frame: bytes) -> bytes | None:
        answer = cohort.clients[int(i)].receive(frame, NOW)
        frames.extend([frame] if answer is None else [frame, answer])
        return answer

    run = cohort.run
    drive(run, ask, NOW)
    carry(run, ask)
    return frames


def _transcripts() -> list[tuple[int, bytes]]:
    return [
        (setting, frame)
        for setting in range(len(SETTINGS))
        for frame in run_through(Cohort(setting))
    ]


def _bodies(frames: list[tuple[int, bytes]], setting: int) -> dict[Kind, list[bytes]]:
    bodies: dict[Kind, list[bytes]] = {Kind.ABORT: [bytes([code]) for code in (1, 18)]}
    for number, frame in frames:
        message = wire.parse(frame)
        if number == setting and message is not None:
            bodies.setdefault(message.kind, []).append(message.body)
    return {kind: list(dict.fromkeys(found))[:8] for kind, found in bodies.items()}


def check_decoder(target: Target, data: bytes) -> bool:
    """Give one input to a decoder; whether it was taken.

    Raises:
        Failure: it raised something else than its error, or what it took is not what it gives back.
    """
    try:
        again = target.check(data)
    except target.errors:
        return False
    except Exception as error:
        raise Failure(f"{target.name}: {type(error).__name__}: {error}") from error
    if again is not None and again != data:
        raise Failure(f"{target.name}: encoded again as {again.hex()}")
    return again is not None


# ---- mutations ----

_INTERESTING = [
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\x01",
    b"\xff\xff\xff\xff",
    b"\xfe\xff\xff\xff",
    b"\xff\xff\xff\x7f",
]


def mutate(data: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return a message near a valid one: up to a few changes, then perhaps a mended length."""
    out = bytearray(data)
    count = 1 if dice.random() < 0.5 else 1 + int(dice.random() * 4)
    for _ in range(count):
        choice, at = int(dice.random() * 8), int(dice.random() * (len(out) + 1))
        if choice < 2 and at < len(out):
            out[at] ^= 1 << int(dice.random() * 8)
        elif choice == 2:
            del out[at:]
        elif choice == 3:
            out += dice.randbytes(1 + int(dice.random() * 9))
        elif choice == 4:
            start = int(dice.random() * (len(other) + 1))
            out[at:] = other[start:]
        elif choice == 5:
            value = _INTERESTING[int(dice.random() * len(_INTERESTING))]
            out[at : at + len(value)] = value
        elif choice == 6:
            end = at + int(dice.random() * 16)
            del out[at:end]
        else:
            out[at : at + 1] = dice.randbytes(1)
    if len(out) >= 48 and dice.random() < 0.7:
        out[44:48] = (len(out) - 48).to_bytes(4, "little")
    if dice.random() < 0.3:  # the length of the valid one, whatever is in it
        out = (out + bytes(len(data)))[: len(data)]
    return bytes(out)


# ---- the state machines ----


class Tape:
    """Decisions for one run: from bytes of a fuzzer, or from a seed."""

    def __init__(self, data: bytes | None, seed: object = None) -> None:
        self._data, self._at = data, 0
        self.dice = random.Random(hashlib.sha256(data).digest() if data is not None else repr(seed))

    @property
    def ended(self) -> bool:
        """Whether the fuzzer's bytes are used up."""
        return self._data is not None and self._at >= len(self._data)

    def below(self, bound: int) -> int:
        """Return a number below the bound."""
        if self._data is None:
            return int(self.dice.random() * bound)
        if self.ended:
            return 0
        self._at += 1
        return self._data[self._at - 1] % bound


ALONG = {
    adversary: {(state, step.after) for state, row in table.items() for step in row.values()}
    for adversary, table in TRANSITIONS.items()
}
SERVER_ORDER = list(ServerState)


class Machines:
    """Two sessions of one cohort, and every rule that must hold whatever is sent to whom.

    Attributes:
        frames: all that was sent, to be sent again.
        sums: how many sessions came to a sum.
    """

    def __init__(self, setting: int, label: object) -> None:
        first = Cohort(setting, label)
        self.cohorts = [first, Cohort(setting, label, 1, first)]
        self.frames: list[bytes] = []
        self.sums = 0
        self._said: dict[tuple[int, int, Kind], bytes] = {}
        # sessions in which a client's unsigned bytes were changed, and taken
        self._changed: set[int] = set()

    def tell(self, number: int, i: int, frame: bytes, now: int = NOW) -> bytes | None:
        """Give a client a frame, and check what it does."""
        cohort = self.cohorts[number]
        client, before = cohort.clients[i], cohort.clients[i].state
        answer = client.receive(frame, now)
        after = client.state
        if (
            after is not before
            and after is not ClientState.ABORTED
            and (before, after) not in ALONG[cohort.adversary]
        ):
            raise Failure(f"a client went from {before} to {after}")
        if before is ClientState.ABORTED and (answer is not None or after is not before):
            raise Failure("a client that had aborted went on")
        if answer is not None:
            self.frames.append(answer)
            self._check_answer(number, i, frame, answer)
        return answer

    def _check_answer(self, number: int, i: int, frame: bytes, answer: bytes) -> None:
        message, asked = wire.parse(answer), wire.parse(frame)
        if message is None or asked is None:
            raise Failure("a client sent what is no frame, or answered it")
        session = next(
            n for n, cohort in enumerate(self.cohorts) if cohort.server.session == message.session
        )
        said = self._said.setdefault((session, i, message.kind), answer)
        # the second machine of one person says that it is that
        if said != answer and message.kind is not Kind.ABORT:
            raise Failure(f"a client sent two different messages of type {message.kind.name}")
        if message.kind is Kind.MASKED_INPUT and (1 - session, i, Kind.MASKED_INPUT) in self._said:
            raise Failure("an item went into two sessions")
        if message.kind is Kind.ADVERTISE and frame != self.cohorts[session].server.invite:
            raise Failure("a client took a forged Invite")
        if message.kind is Kind.SHARES and self.cohorts[session].allowed is not None:
            roster = wire.decode_full_roster(asked.body, len(ALLOWED))
            for rank, advert in zip(
                np.flatnonzero(roster.members).tolist(), roster.adverts, strict=True
            ):
                if advert != self._body(session, rank, Kind.ADVERTISE):
                    raise Failure("a client took a forged advert")

    def _body(self, session: int, i: int, kind: Kind) -> bytes | None:
        said = self._said.get((session, i, kind))
        return None if said is None else said[wire.HEADER.size :]

    def hand(self, number: int, i: int, frame: bytes) -> None:
        """Give the server a frame as from a client, and check what it does."""
        cohort = self.cohorts[number]
        before = cohort.server.state
        taken = cohort.run.receive(i, frame)
        if cohort.server.state is not before:
            raise Failure("a message alone moved the server")
        message = wire.parse(frame)
        if not taken or message is None or frame == self._said.get((number, i, message.kind)):
            return
        signed = cohort.allowed is not None and message.kind in (Kind.ADVERTISE, Kind.CONFIRM)
        if signed and message.body != self._body(number, message.sender, message.kind):
            raise Failure(f"the server took a forged {message.kind.name}")
        self._changed.add(number)

    def close(self, number: int, now: int = NOW) -> None:
        """Close a phase, and check where that leads."""
        server, run, before = (
            self.cohorts[number].server,
            self.cohorts[number].run,
            self.cohorts[number].server.state,
        )
        if run.done:
            return
        run.deadline_passed(now)
        places = SERVER_ORDER.index(before), SERVER_ORDER.index(server.state)
        if server.state is not ServerState.ABORTED and not 0 < places[1] - places[0] <= 2:
            raise Failure(f"the server went from {before} to {server.state}")
        if server.state is ServerState.DONE:
            self._check_sum(number)

    def _check_sum(self, number: int) -> None:
        """Check that a sum is exact, unless a vector was changed on its way (they are unsigned)."""
        cohort, outcome = self.cohorts[number], self.cohorts[number].server.outcome
        if outcome is None:
            raise Failure("done, without an outcome")
        self.sums += 1
        names = [int(cohort.server.clients[place]) for place in np.flatnonzero(outcome.alive)]
        if len(names) < cohort.parameters.min_survivors:
            raise Failure(f"a sum over {names}, too few")
        if (
            number not in self._changed
            and outcome.total.tolist()
            != np.sum([cohort.vectors[i] for i in names], axis=0).tolist()
        ):
            raise Failure(f"a wrong sum over {names}")


def run_machines(tape: Tape, label: object = 0) -> int:
    """Play one run: mostly the protocol, with faults between; return how many sums came out.

    Raises:
        Failure: a rule does not hold.
    """
    game = Machines(tape.below(len(SETTINGS)), label)
    rounds = 1 + (tape.below(3) == 0)
    for number in range(rounds):
        _session(game, number, tape)
    return game.sums


def _session(game: Machines, number: int, tape: Tape) -> None:
    cohort, faults = game.cohorts[number], (0, 4, 12, 40)[tape.below(4)]
    for _ in range(8):
        if cohort.run.done:
            break
        outgoing = cohort.outgoing()
        if tape.below(4) == 0:
            tape.dice.shuffle(outgoing)
        for i, frame in outgoing:
            game.frames.append(frame)
            if tape.below(100) < faults:
                _fault(game, number, i, frame, tape)
            if tape.below(100) >= faults // 4:
                answer = game.tell(number, i, frame)
                if answer is not None:
                    game.hand(number, i, answer)
        if tape.below(100) < faults:
            cohort.restart(tape.below(2) if len(cohort.saved) > 1 and tape.below(8) == 0 else 0)
        if tape.below(100) >= faults // 4:
            game.close(number, NOW if tape.below(100) else NOW + 5000)
    for i, frame in cohort.outgoing():
        game.tell(number, i, frame)


def _fault(game: Machines, number: int, i: int, frame: bytes, tape: Tape) -> None:
    """Do one thing that should not happen."""
    frames, kind = game.frames, tape.below(8)
    any_frame = frames[tape.below(min(255, len(frames)))]
    if kind == 0:
        # replayed, reordered, of another client, of another session
        game.tell(number, i, any_frame)
    elif kind == 1:
        game.tell(number, i, mutate(frame, any_frame, tape.dice))
    elif kind == 2:
        game.tell(number, i, frame, NOW + 5000 if tape.below(4) == 0 else NOW)
    elif kind == 3:
        game.hand(number, i, any_frame)
    elif kind == 4:
        answer = game.tell(number, i, frame)
        if answer is not None:
            game.hand(number, i, mutate(answer, any_frame, tape.dice))
            game.hand(number, i, answer)
            game.hand(number, i, answer)
    elif kind == 5:
        game.cohorts[number].clients[i].abandon()
    elif kind == 6:
        game.tell(1 - number, i, game.cohorts[1 - number].server.invite)
    else:
        game.hand(number, (i + 1) % game.cohorts[number].n, any_frame)


# ---- the engines ----


class Progress:
    """One line, a few times a minute."""

    def __init__(self, what: str, runs: int, unit: str) -> None:
        self.what, self.runs, self.unit, self.begun = what, runs, unit, time.monotonic()
        self.shown = self.begun

    def show(self, done: int, taken: int, *, last: bool = False) -> None:
        """Print how far it is."""
        now = time.monotonic()
        if last or now - self.shown >= REPORT_SECONDS:
            self.shown, rate = now, done / max(now - self.begun, 1e-9)
            print(
                f"{self.what}: {done:,} of {self.runs:,} runs, {taken:,} {self.unit}, {rate:,.0f} a"
                " second",
                flush=True,
            )


def fuzz_decoders(runs: int, seed: int, first: int = 0) -> None:
    """Give mutated inputs to all decoders in turn, to the slow checkpoints one time in fifty."""
    everything, progress, taken = targets(), Progress("decoders", runs, "taken"), 0
    fast = [target for target in everything if not target.name.startswith("restore")]
    slow = [target for target in everything if target.name.startswith("restore")]
    dice = random.Random()
    for run in range(first, first + runs):
        dice.seed(seed << 40 | run)
        pool = slow if run % 50 == 0 else fast
        target = pool[run // 50 % len(pool) if pool is slow else run % len(pool)]
        seeds = target.seeds
        other = seeds[int(dice.random() * len(seeds))]
        data = mutate(seeds[int(dice.random() * len(seeds))], other, dice)
        try:
            taken += check_decoder(target, data)
        except Failure as failure:
            raise Failure(f"run {run} of seed {seed}: {failure}\ninput: {data.hex()}") from failure
        if not run & 1023:
            progress.show(run - first, taken)
    progress.show(runs, taken, last=True)


def fuzz_machines(runs: int, seed: int, first: int = 0) -> None:
    """Play random runs of clients and servers."""
    progress, sums = Progress("machines", runs, "sums"), 0
    for run in range(first, first + runs):
        try:
            sums += run_machines(Tape(None, (seed, run)))
        except Exception as failure:
            raise Failure(
                f"run {run} of seed {seed}: {type(failure).__name__}: {failure}"
            ) from failure
        progress.show(run - first, sums)
    progress.show(runs, sums, last=True)


def fuzz_with_atheris(what: str, runs: int, seed: int) -> None:
    """Let coverage choose the inputs. Does not return: the fuzzer ends the process."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    everything = targets() if what == "decoders" else []

    def one(data: bytes) -> None:
        try:
            if what == "machines":
                run_machines(Tape(data))
            elif data:
                target = everything[data[0] % len(everything)]
                check_decoder(target, data[1:])
        except Exception:
            print("input:", data.hex(), flush=True)
            raise

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-runs={runs}", f"-seed={seed or 1}", "-max_len=4096"], one)
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz; 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("decoders", "machines"))
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        help="the number of the first run, to repeat one or to share",
    )
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # NumPy's, about files of old versions
    if chosen.engine == "atheris":
        fuzz_with_atheris(chosen.what, chosen.runs, chosen.seed)
        return 0
    fuzz = fuzz_decoders if chosen.what == "decoders" else fuzz_machines
    try:
        fuzz(chosen.runs, chosen.seed, chosen.first)
    except Failure as failure:
        print(f"FAILED: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
