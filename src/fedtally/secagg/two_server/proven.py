"""Make reports with proofs for two servers, and compute the sizes of their messages.

A `Leader` and a `Helper` that are made with a `ReportProof` accept these reports. The helper checks
each report (docs/protocol.md says how), and the leader puts only valid ones into a batch. A refused
report does not change the sum of the others.
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
    """Return the size in bytes of each type of message of a batch of reports with proofs.

    Headers are included. All frames of checks together count as one message. The Offer is counted
    with `reports` ids: it is longer if the helper holds more.

    Args:
        proof: the proof system of the reports.
        reports: the number of reports in the batch.
        held: the number of reports that the helper checks; it may hold more than the batch has.
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
    """Make a client's report with a proof that its vector is valid.

    A client sends the helper's part first. It sends the leader's part once the helper has accepted:
    a report that only the leader holds is in no batch. To send a report again, send the same bytes.

    Args:
        proof: the proof system that the plan demands.
        vector: integers [counters], valid (see `OneHot.encode`).
        round: the round of the campaign, 0 .. 2^32 - 1.
        now: the time that the client signs, Unix seconds.
        identity: the client's signing key. Its public key must be in the allow-list; this function
            does not check that.
        policy: what this client demands of the parameters.
        random: a function that returns a given number of uniform bytes, from a cryptographic
            source.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the vector, the round, the time, the identity or the random bytes are not
            as described.
    """
    policy.check(proof.parameters, has_proofs=True)
    leader, helper = proof.report(vector, round=round, now=now, identity=identity, random=random)
    bound, signature = leader.bound, leader.signature
    return frames_of(
        proof.parameters,
        Part(bound, leader.helper, signature, leader.salt + leader.words + leader.proof),
        Part(bound, helper.leader, signature, helper.sealed + helper.proof),
    )
