"""What two servers take behind right seals and signatures, which chance would not find.

`fuzz_targets.py` has a row for each. A report of the own protocol has a share of its words and of
its proof, and one of DAP an input share: here they are any bytes, which a client signed and sealed
to the server. Bodies of DAP's requests and answers reach servers that have reports, a job and a
collection.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from fuzz_secagg import ALLOWED, FINGERPRINT, NOW, SIGNERS, Failure, stream

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import dap_world

from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Label, Secret
from fedtally.dap.collector import open_result
from fedtally.dap.draft18 import (
    AggregationJobContinueReq,
    AggregationJobInitReq,
    Report,
    ReportMetadata,
    ReportShare,
    Role,
    UploadRequest,
    VerifyContinue,
    VerifyInit,
)
from fedtally.dap.leader import AbandonedError
from fedtally.dap.presentation import Message, Number, Opaque
from fedtally.dap.problems import Problem, UnknownResourceError
from fedtally.dap.sealing import Keyring, seal
from fedtally.dap.state import MemoryStore
from fedtally.dap.task import Task
from fedtally.errors import InvalidInputError
from fedtally.secagg import two_server
from fedtally.secagg.two_server import reports

DAP_ERRORS = (Problem, UnknownResourceError, AbandonedError)

# ---- reports with proofs ----


@cache
def _keys() -> tuple[PrivateKey, PrivateKey]:
    leader, helper = (PrivateKey(Secret(stream(server)(32))) for server in ("leader", "helper"))
    return leader, helper


@cache
def _proof() -> two_server.ReportProof:
    leader, helper = _keys()
    return two_server.ReportProof(
        two_server.TwoServerParameters(
            widths=(3, 2),
            bits=16,
            n_max=6,
            min_batch=3,
            corrupt=1,
            leader_key=leader.public,
            helper_key=helper.public,
            allow_list=ALLOWED.digest,
            fingerprint=FINGERPRINT,
        )
    )


@cache
def _honest() -> tuple[Any, Any]:
    """Return both parts of a report that is valid."""
    vector = np.array([0, 1, 0, 0, -1])
    draw = stream("report")
    return _proof().report(vector, round=0, now=NOW, identity=SIGNERS[0], random=draw)


def proven_parts() -> Iterable[bytes]:
    """Return what the leader reads of a valid report: salt, words and proof."""
    leader, _ = _honest()
    return [leader.salt + leader.words + leader.proof]


def proven(data: bytes) -> None:
    """Give both servers a report with this part for the leader, and let them judge it."""
    if not data:
        return  # nothing cannot be sealed
    proof, keys, (leader, helper) = _proof(), _keys(), _honest()
    salt, words = reports.SALT_BYTES, reports.SALT_BYTES + proof.words_bytes
    digests = (
        reports.part_digest(reports.Kind.LEADER_REPORT, data[:words]),
        reports.part_digest(reports.Kind.HELPER_REPORT, helper.sealed),
        reports.digest(Label.TWO_SERVER_PROOF_SHARE, data[:salt], data[words:]),
    )
    bound = leader.bound
    signature = SIGNERS[0].sign(Label.TWO_SERVER_REPORT, *bound.fields, *digests)
    frames = reports.frames_of(
        proof.parameters,
        reports.Part(bound, digests[1], signature, data),
        reports.Part(bound, digests[0], signature, helper.sealed + digests[2]),
    )
    policy = two_server.BatchPolicy(min_honest=2, corrupt=1)
    arguments = (proof, range(2), ALLOWED, policy)
    one = two_server.Leader(*arguments, two_server.MemoryJournal(), keys[0])
    if one.receive(frames.leader, NOW) is not two_server.Outcome.ACCEPTED:
        return
    two = two_server.Helper(*arguments, two_server.MemoryJournal(), keys[1])
    if two.receive(frames.helper, NOW) is not two_server.Outcome.ACCEPTED:
        raise Failure("the helper refuses what its client signed")
    for checks in two.checks():
        one.judge(checks)
    if not one.refused and data not in proven_parts():
        raise Failure("a proof that nobody made was found valid")


# ---- DAP ----


class _Standing(NamedTuple):
    """What both servers keep, a job and a collection that the helper has not answered."""

    world: dap_world.World
    leader: Any
    helper: Any
    job: bytes
    collection: bytes
    bodies: list[bytes]


@cache
def _standing() -> _Standing:
    world = dap_world.World()
    world.measure(0, 1, 1)
    world.run_jobs()
    world.measure(2, hours=1)
    job = world.leader.make_job()
    assert job is not None
    asked = world.leader.collect(world.query().encode())
    kept = copy.deepcopy((world.leader_store, world.helper_store))
    answer, share = world.helper.aggregate(job.request, NOW_OF_DAP), world.helper.share(asked.ask)
    collected = world.leader.finish_collection(asked.id, share.answer)
    bodies = [  # in the order of `_HANDLERS`
        UploadRequest((world.report(3, hours=1),)).encode(),
        job.request,
        world.query(1).encode(),
        asked.ask,
        AggregationJobContinueReq(1, (VerifyContinue(bytes(16), b"\0"),)).encode(),
        answer.answer,
        share.answer,
        collected.answer,
    ]
    return _Standing(world, *kept, job.id, asked.id, bodies)


NOW_OF_DAP = dap_world.NOW + dap_world.HOUR
_HANDLERS: tuple[Callable[[_Standing, bytes], object], ...] = (
    lambda at, body: at.world.leader.upload(body, NOW_OF_DAP),
    lambda at, body: at.world.helper.aggregate(body, NOW_OF_DAP),
    lambda at, body: at.world.leader.collect(body),
    lambda at, body: at.world.helper.share(body),
    lambda at, body: at.world.helper.proceed(_done_job(at), body),
    lambda at, body: at.world.leader.finish_job(at.job, body),
    lambda at, body: at.world.leader.finish_collection(at.collection, body),
    lambda at, body: _collected(at, body),
)


def _collected(at: _Standing, body: bytes) -> None:
    with suppress(InvalidInputError):  # of the collector alone: servers have words for each fault
        open_result(at.world.task, dap_world.COLLECTOR, at.world.query(), body)


def _done_job(at: _Standing) -> bytes:
    """Return the id of a job that the helper has answered."""
    return at.world.helper.aggregate(at.bodies[1], NOW_OF_DAP).id


def bodies() -> Iterable[bytes]:
    """Return what each handler takes, behind the number of the handler."""
    return [bytes([number]) + body for number, body in enumerate(_standing().bodies)]


def body(data: bytes) -> None:
    """Give the rest to the handler that the first byte names."""
    if data:
        at = _standing()
        at.world.leader_store, at.world.helper_store = copy.deepcopy((at.leader, at.helper))
        at.world.restart()
        _HANDLERS[data[0] % len(_HANDLERS)](at, data[1:])


@dataclass(frozen=True)
class _Shares(Message):
    """What a server opens of a report; the leader's verifier share is for the helper alone."""

    server: Annotated[int, Number(1)]  # 2 * a place in SIZES + 1 for the helper
    public_share: Annotated[bytes, Opaque(2)]
    input_share: Annotated[bytes, Opaque(2)]
    verifier_share: Annotated[bytes, Opaque(2)]


@cache
def _worlds() -> list[dap_world.World]:
    return [dap_world.World(vdaf) for vdaf in dap_world.SIZES]


def _seal(
    task: Task, role: Role
) -> tuple[Keyring, bytes, Callable[[ReportMetadata, bytes], bytes]]:
    """Return a server's keys, and what its input shares are bound to."""
    keys = dap_world.HELPER_KEYS if role is Role.HELPER else dap_world.LEADER_KEYS
    version, configuration = task.version, task.configuration
    aad = partial(version.input_share_aad, task.id, configuration)
    return keys, version.input_share_info(role), aad


def shares() -> Iterable[bytes]:
    """Return the shares of a valid report of each algorithm, for each server."""
    for number, (world, measured) in enumerate(zip(_worlds(), (1, [1, 0, 5], 2), strict=True)):
        _begin_anew(world)
        report = world.report(measured)
        world.upload(report)
        job = world.leader.make_job()
        assert job is not None
        (said,) = AggregationJobInitReq.decode(job.request).reports
        for role, sealed in ((Role.LEADER, report.leader), (Role.HELPER, report.helper)):
            keys, info, aad = _seal(world.task, role)
            plain = keys.open(sealed, info, aad(report.metadata, report.public_share))
            server = 2 * number + (role is Role.HELPER)
            yield _Shares(server, report.public_share, plain, said.payload).encode()


def share(data: bytes) -> None:
    """Give a server a report with these shares: whatever they are, it says so and goes on."""
    given = _Shares.decode(data)
    world = _worlds()[given.server // 2 % len(_worlds())]
    role = Role.HELPER if given.server % 2 else Role.LEADER
    _begin_anew(world)
    keys, info, aad = _seal(world.task, role)
    metadata = ReportMetadata(bytes(16), world.hour, ())
    bound = aad(metadata, given.public_share)
    sealed = seal(keys.configs.configs[0], given.input_share, info, bound)
    if role is Role.LEADER:
        world.leader.upload(
            UploadRequest((Report(metadata, given.public_share, sealed, sealed),)).encode(),
            world.now,
        )
        world.leader.make_job()
    else:
        report = ReportShare(metadata, given.public_share, sealed)
        asked = AggregationJobInitReq(0, b"", (), (VerifyInit(report, given.verifier_share),))
        world.helper.aggregate(asked.encode(), world.now)


def _begin_anew(world: dap_world.World) -> None:
    world.leader_store, world.helper_store = MemoryStore(), MemoryStore()
    world.restart()
