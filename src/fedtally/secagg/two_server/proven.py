"""Two-server summation of reports with proofs: the frames of `proofs`, and both servers.

The servers are those of `servers`, but for what docs/validity.md says: the helper sends a check of
each report that it holds, and the leader takes only reports into a batch that it found valid. A
report that is refused costs nobody else anything.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise

from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import KEY_BYTES, SigningKey
from fedtally.errors import InvalidInputError
from fedtally.flp.fields import Array
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server.proofs import (
    Digests,
    HelperPart,
    HelperShare,
    LeaderPart,
    LeaderShare,
    ReportProof,
)
from fedtally.secagg.two_server.reports import (
    BATCH,
    HELPER,
    I64,
    ID_BYTES,
    SALT_BYTES,
    SEALED_BYTES,
    BatchPolicy,
    BatchRefusedError,
    Kind,
    Part,
    Refused,
    Report,
    Verdict,
    body_of,
    frame_of,
    frames_of,
    message_bytes,
    shown,
)
from fedtally.secagg.two_server.servers import (
    BatchState,
    HelperServer,
    Journal,
    LeaderServer,
    Noise,
    end_of_query,
)
from fedtally.secagg.wire import HEADER

CHECKS_OF_A_FRAME = 4096
_REFUSED = struct.Struct(f"<{KEY_BYTES}sB")  # in the journal: an identity, and the verdict
_VERDICTS = (Verdict.INVALID, Verdict.INCONSISTENT)


def proven_message_bytes(proof: ReportProof, reports: int, held: int) -> dict[Kind, int]:
    """Return the bytes of every message of a batch, as `reports.message_bytes`, with proofs.

    Args:
        proof: that of each report.
        reports: in the batch.
        held: reports that the helper checks; the bytes of all frames of checks are together.
    """
    sizes, frames = message_bytes(proof.parameters, reports), -(-held // CHECKS_OF_A_FRAME)
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
        proof: that of the plan.
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


class ProvenHelper(HelperServer[HelperShare]):
    """The helper of reports with proofs, for one batch.

    Args:
        proof: that of the plan.
        rounds: the rounds whose reports are in the batch.
        allow_list: the list whose digest is in the parameters.
        policy: the helper's own.
        journal: the helper's own.
        key: the secret key of `parameters.helper_key`.
        noise, reserve, noise_source: as for `Helper`.

    Raises:
        UnsafeParametersError, InvalidInputError, BatchRefusedError: as for `Helper`.
    """

    _has_proofs = True

    def __init__(
        self,
        proof: ReportProof,
        rounds: range,
        allow_list: AllowList,
        policy: BatchPolicy,
        journal: Journal,
        key: PrivateKey,
        noise: Noise | None = None,
        reserve: Callable[[], None] | None = None,
        noise_source: bytes = b"caller",
    ) -> None:
        self._proof = proof
        books = journal, key, noise, reserve, noise_source
        super().__init__(proof.parameters, rounds, allow_list, policy, *books, proof.context)

    def checks(self) -> list[bytes]:
        """Return the checks of all reports that are held, for the leader: frames.

        A report gets the same check whenever it is asked for, also after a restart.

        Raises:
            LocalProtocolError: the batch is closed, and the keys of its reports are wiped.
        """
        if self._state is not BatchState.COLLECTING:
            raise LocalProtocolError(
                f"this batch is {self._state.value}; reports are checked before it is answered"
            )
        ids, frames = sorted(self._held), []
        for start in range(0, len(ids), CHECKS_OF_A_FRAME):
            some = ids[start : start + CHECKS_OF_A_FRAME]
            checks = self._proof.check([self._held[id] for id in some], self._key)
            body = BATCH.pack(self._rounds[0], self._rounds[-1], len(some))
            body += b"".join(id + check for id, check in zip(some, checks, strict=True))
            frames.append(frame_of(Kind.CHECKS, self._context, HELPER, body))
        return frames

    def _part_bytes(self) -> int:
        return SEALED_BYTES + KEY_BYTES

    def _digests(self, part: Part) -> Digests:
        sealed, proof = part.payload[:SEALED_BYTES], part.payload[SEALED_BYTES:]
        given = HelperPart(part.bound, part.other, proof, part.signature, sealed)
        return self._proof.digests(given)

    def _take(self, part: Part, signed: tuple[bytes, ...]) -> HelperShare:
        sealed = part.payload[:SEALED_BYTES]
        return self._proof._read_helper(part.bound, Digests(*signed), sealed, self._key)

    def _add_up(self, ids: list[bytes]) -> bytes:
        return self._proof.add([self._held[id] for id in ids], self._drawn())

    def _drop(self, held: HelperShare) -> None:
        held.wipe()


class ProvenLeader(LeaderServer[LeaderShare]):
    """The leader of reports with proofs, for one batch.

    Args:
        proof: that of the plan.
        rounds: the rounds whose reports are in the batch.
        allow_list: the list whose digest is in the parameters.
        policy: the leader's own.
        journal: the leader's own.
        key: the secret key of `parameters.leader_key`.
        noise, reserve, noise_source: as for `Leader`.

    Raises:
        UnsafeParametersError, InvalidInputError, BatchRefusedError: as for `Leader`.
    """

    _has_proofs = True

    def __init__(
        self,
        proof: ReportProof,
        rounds: range,
        allow_list: AllowList,
        policy: BatchPolicy,
        journal: Journal,
        key: PrivateKey,
        noise: Noise | None = None,
        reserve: Callable[[], None] | None = None,
        noise_source: bytes = b"caller",
    ) -> None:
        self._proof = proof
        self._valid: set[bytes] = set()  # ids that were found valid
        self._refused: list[Refused] = []
        books = journal, key, noise, reserve, noise_source
        super().__init__(proof.parameters, rounds, allow_list, policy, *books, proof.context)

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The reports that `judge` refused, since this server started; once the batch is closed,
        those that were refused before it was, also after a restart.
        """
        return tuple(self._refused)

    def judge(self, checks: bytes) -> None:
        """Find the reports of a frame valid, or refuse them.

        Of a report that is decided another check is not looked at. A report that is not held yet is
        not decided: its check can be asked for again.

        Args:
            checks: one of `ProvenHelper.checks`.

        Raises:
            BatchRefusedError: the frame is malformed or of other rounds, or a check cannot be read:
                it is dropped, and nothing of it is decided.
            LocalProtocolError: the batch is closed.
        """
        if not self._is_open:
            raise LocalProtocolError(
                f"this batch is {self._state.value}; reports are judged before it is closed"
            )
        size = ID_BYTES + self._proof.check_bytes
        most = BATCH.size + CHECKS_OF_A_FRAME * size
        body = body_of(checks, Kind.CHECKS, self._context, HELPER, most)
        if body is None or len(body) < BATCH.size:
            raise BatchRefusedError("these are no checks of these parameters")
        first, last, count = BATCH.unpack_from(body)
        entries = [body[start : start + size] for start in range(BATCH.size, len(body), size)]
        ids = [entry[:ID_BYTES] for entry in entries]
        if len(body) != BATCH.size + size * count or any(a >= b for a, b in pairwise(ids)):
            raise BatchRefusedError("the checks are malformed")
        if (first, last) != (self._rounds[0], self._rounds[-1]):
            raise BatchRefusedError(
                f"the checks are of rounds {first} .. {last}, not {shown(self._rounds)}"
            )
        new = {
            id: entry[ID_BYTES:]
            for id, entry in zip(ids, entries, strict=True)
            if id in self._held and id not in self._valid
        }
        try:
            verdicts = self._proof.decide([self._held[id] for id in new], list(new.values()))
        except InvalidInputError as error:
            raise BatchRefusedError(f"a check cannot be read: {error}") from error
        for id, verdict in zip(new, verdicts, strict=True):
            if verdict is Verdict.VALID:
                self._valid.add(id)
            else:  # its identity stays taken: a copy of the report changes nothing
                self._refused.append(Refused(self._held.pop(id).bound.identity, verdict))

    def _part_bytes(self) -> int:
        return SALT_BYTES + self._proof.words_bytes + self._proof.proof_bytes

    def _digests(self, part: Part) -> Digests:
        given = LeaderPart(part.bound, part.other, part.signature, *self._split(part))
        return self._proof.digests(given)

    def _take(self, part: Part, signed: tuple[bytes, ...]) -> LeaderShare:
        _, words, proof = self._split(part)
        return self._proof._read_leader(part.bound, Digests(*signed), words, proof)

    def _split(self, part: Part) -> tuple[bytes, bytes, bytes]:
        """Return salt, words and proof."""
        payload, end = part.payload, SALT_BYTES + self._proof.words_bytes
        return payload[:SALT_BYTES], payload[SALT_BYTES:end], payload[end:]

    def _may_count(self, id: bytes) -> bool:
        return id in self._valid

    def _record(self, query: bytes, message: bytes) -> bytes:
        # in the entry of the batch: of two processes the one that closes it says who was refused
        refused = (
            _REFUSED.pack(identity, _VERDICTS.index(verdict)) for identity, verdict in self._refused
        )
        return super()._record(query, message + b"".join(refused))

    def _close(self, recorded: bytes) -> None:
        end = end_of_query(recorded) + self._proof.sum_bytes
        refused = recorded[end:]
        # what a helper keeps is longer, and by no whole number of these: then it is refused
        is_own = len(refused) % _REFUSED.size == 0
        super()._close(recorded[:end] if is_own else recorded)
        self._refused = [
            Refused(identity, _VERDICTS[verdict])
            for identity, verdict in _REFUSED.iter_unpack(refused)
        ]

    def _add_up(self, ids: list[bytes]) -> bytes:
        return self._proof.add([self._held[id] for id in ids], self._drawn())

    def _whole(self, own: bytes, other: bytes) -> Array:
        return self._proof._whole(own, other)

    def _checked(self, total: Array) -> I64 | None:
        return self._proof._counted(total, self.count, any_entries=self._takes_any_entries)
