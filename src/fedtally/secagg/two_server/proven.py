"""Two-server summation of reports with proofs: the report of a client, and all sizes.

`Leader` and `Helper` take these reports where they are made with the proof: docs/protocol.md says
how the helper checks each, and the leader takes only valid ones into a batch. A report that is
refused costs nobody else anything.
"""

from __future__ import annotations

from collections.abc import Callable

from fedtally.crypto.keys import KEY_BYTES, SigningKey
from fedtally.secagg.two_server import servers
from fedtally.secagg.two_server.proofs import ReportProof
from fedtally.secagg.two_server.reports import (
    BATCH,
    I64,
    ID_BYTES,
    BatchPolicy,
    Kind,
    Part,
    Report,
    frames_of,
    message_bytes,
)
from fedtally.secagg.wire import HEADER


def proven_message_bytes(proof: ReportProof, reports: int, held: int) -> dict[Kind, int]:
    """Return the bytes of every message of a batch, as `reports.message_bytes`, with proofs.

    Args:
        proof: the proof that each report has.
        reports: the number of reports in the batch.
        held: reports that the helper checks; the bytes of all frames of checks are together.
    """
    sizes, frames = message_bytes(proof.parameters, reports), -(-held // servers.CHECKS_OF_A_FRAME)
    sizes[Kind.HELPER_REPORT] += KEY_BYTES  # the digest of the leader's share of the proof
    sizes[Kind.LEADER_REPORT] += proof.added_bytes - KEY_BYTES
    checks = held * (ID_BYTES + proof.check_bytes)
    return sizes | {Kind.CHECKS: frames * (HEADER.size + BATCH.size) + checks}


def make_proven_report(
    proof: ReportProof,
    vector: I64,
    *,
    round: int,
    now: int,
    identity: SigningKey,
    policy: BatchPolicy,
    random: Callable[[int], bytes],
) -> Report:
    """Return the report of a client, with its proof.

    A client sends the helper's part first, and the leader's once the helper accepted: a report that
    the leader alone holds is in no batch. To send it again, send the same bytes.

    Args:
        proof: the proof that the plan demands.
        vector: integers [counters], valid (see `OneHot.encode`).
        round: 0 .. 2^32 - 1.
        now: seconds since 1970; the time that the client signs.
        identity: the client's key; its public key is in the allow-list.
        policy: the client's own.
        random: returns as many uniform bytes as it is asked for, from a cryptographic source.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the vector, the round, the identity or the random bytes are not as above.
    """
    policy.check(proof.parameters, has_proofs=True)
    leader, helper = proof.report(vector, round=round, now=now, identity=identity, random=random)
    bound, signature = leader.bound, leader.signature
    return frames_of(
        proof.parameters,
        Part(bound, leader.helper, signature, leader.salt + leader.words + leader.proof),
        Part(bound, helper.leader, signature, helper.sealed + helper.proof),
    )
