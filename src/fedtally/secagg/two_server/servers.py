"""The two servers: each collects the reports of one batch; together they open its sum, once."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally.crypto.hpke import OpeningKey
from fedtally.crypto.keys import (
    Label,
    RejectedError,
    Secret,
    digest,
    verify,
)
from fedtally.crypto.prg import Lanes, Masking
from fedtally.errors import InvalidInputError
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.packing import centred, unpack
from fedtally.secagg.two_server.reports import (
    HEAD,
    HELPER,
    LEADER,
    SALT_BYTES,
    SEALED_BYTES,
    BatchPolicy,
    BatchRefusedError,
    Bound,
    Kind,
    Part,
    TwoServerParameters,
    body_of,
    decode_ids,
    encode_ids,
    entries_within,
    frame_of,
    mask_key,
    name_of_batch,
    packed,
    part_digest,
    shown,
    with_lanes,
)
from fedtally.secagg.wire import UNLISTED

I64 = npt.NDArray[np.int64]
_Held = TypeVar("_Held", bytes, Secret)


class Outcome(StrEnum):
    """What became of a report; all but the first leave no trace."""

    ACCEPTED = "accepted"
    CLOSED = "closed"
    MALFORMED = "malformed"
    OTHER_ROUND = "other round"
    UNKNOWN_IDENTITY = "unknown identity"
    FORGED = "forged"
    SECOND_REPORT = "second report"
    ID_TAKEN = "id taken"
    UNREADABLE = "unreadable"
    FULL = "full"


class BatchState(Enum):
    """What a server does: it collects reports, as leader waits for the answer, and is done or, as leader, aborted."""

    COLLECTING = "collecting"
    WAITING = "waiting"
    DONE = "done"
    ABORTED = "aborted"


class Journal(Protocol):
    """What a server must never forget; each server has its own, and all its batches share it.

    A restart, a second process or a restored backup must not make it forget: the sums of two batches that overlap give
    their difference away, and two noises for one sum average.
    """

    def spent(self, id: bytes) -> bool:
        """Tell whether a report of that id is in a recorded batch."""

    def message(self, batch: bytes) -> bytes | None:
        """Return what was recorded for the batch, or None."""

    def record(self, batch: bytes, ids: Sequence[bytes], message: bytes) -> None:
        """Write down, in one transaction and before returning, that these ids belong to this batch.

        Raises:
            BatchRefusedError: the batch, or one of the ids, is recorded already; nothing was written.
        """


class MemoryJournal:
    """A journal that ends with the process: for simulation and tests alone."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()
        self._messages: dict[bytes, bytes] = {}

    def spent(self, id: bytes) -> bool:
        """Tell whether a report of that id is in a recorded batch."""
        return id in self._ids

    def message(self, batch: bytes) -> bytes | None:
        """Return what was recorded for the batch, or None."""
        return self._messages.get(batch)

    def record(self, batch: bytes, ids: Sequence[bytes], message: bytes) -> None:
        """Write down that these ids belong to this batch.

        Raises:
            BatchRefusedError: one of the ids is recorded already.
        """
        if batch in self._messages or not self._ids.isdisjoint(ids):
            raise BatchRefusedError("a report belongs to one batch for ever, and one of these was in another")
        self._ids.update(ids)
        self._messages[batch] = message


class _Server(ABC, Generic[_Held]):
    """Collects the reports of one batch: what is common to both servers."""

    _kind: Kind

    def __init__(
        self,
        parameters: TwoServerParameters,
        rounds: range,
        allow_list: AllowList,
        policy: BatchPolicy,
        journal: Journal,
    ) -> None:
        policy.check(parameters)
        if allow_list.digest != parameters.allow_list:
            raise InvalidInputError("the allow-list is not the one of these parameters; use that of the plan")
        if not isinstance(rounds, range) or not rounds or rounds.step != 1:
            raise InvalidInputError(f"rounds must be a range of at least one round, step 1, got {rounds!r}")
        _validate.integer(0, 2**32 - 1, first_round=rounds[0])
        _validate.integer(0, 2**32 - 1, last_round=rounds[-1])
        self._parameters, self._context, self._rounds = parameters, parameters.context, rounds
        self._allow_list, self._journal = allow_list, journal
        self._state = BatchState.COLLECTING
        self._frames: dict[bytes, bytes] = {}  # by identity, the digest of its report
        self._held: dict[bytes, _Held] = {}  # by id

    @property
    def state(self) -> BatchState:
        """What this server does."""
        return self._state

    def __getstate__(self) -> None:
        raise InvalidInputError(
            "the state of a server of a batch cannot be copied or pickled: two could open two sums that differ by one "
            "client; a batch that was recorded goes on from its journal"
        )

    def __len__(self) -> int:
        return len(self._held)

    def receive(self, frame: bytes) -> Outcome:
        """Take the report of a client, whoever passed it on; a copy of one that was taken changes nothing."""
        if self._state is not BatchState.COLLECTING:
            return Outcome.CLOSED
        part = self._parse(frame)
        if part is None:
            return Outcome.MALFORMED
        refused = self._refuse(part)
        if refused is not None:
            return refused
        id, identity, once = part.bound.id, part.bound.identity, hashlib.sha256(frame).digest()
        if identity in self._frames:
            return Outcome.ACCEPTED if self._frames[identity] == once else Outcome.SECOND_REPORT
        if id in self._held or self._journal.spent(id):
            return Outcome.ID_TAKEN
        if len(self) == self._parameters.n_max:
            return Outcome.FULL
        try:
            self._held[id] = self._take(part)
        except InvalidInputError:
            return Outcome.UNREADABLE
        self._frames[identity] = once
        return Outcome.ACCEPTED

    def _parse(self, frame: bytes) -> Part | None:
        size = HEAD.size + self._part_bytes()
        body = body_of(frame, self._kind, self._context, UNLISTED, size)
        if body is None or len(body) != size:
            return None
        id, round, identity, other, signature = HEAD.unpack_from(body)
        return Part(Bound(self._context, id, round, identity), other, signature, body[HEAD.size :])

    def _refuse(self, part: Part) -> Outcome | None:
        """Return why it is no report of an identity in these rounds, or None."""
        if part.bound.round not in self._rounds:
            return Outcome.OTHER_ROUND
        if part.bound.identity not in self._allow_list:
            return Outcome.UNKNOWN_IDENTITY
        digests = [part.other, part_digest(self._kind, part.payload)]
        if self._kind is Kind.LEADER_REPORT:
            digests.reverse()
        try:
            verify(part.bound.identity, part.signature, Label.TWO_SERVER_REPORT, *part.bound.fields, *digests)
        except RejectedError:
            return Outcome.FORGED
        return None

    @abstractmethod
    def _part_bytes(self) -> int:
        """Return the bytes of what this server gets after the head of a report."""

    @abstractmethod
    def _take(self, part: Part) -> _Held:
        """Return what is kept of a report, or raise InvalidInputError if it cannot be read."""

    def _check_batch(self, rounds: range, count: int) -> None:
        if rounds != self._rounds:
            raise BatchRefusedError(f"the batch is of rounds {shown(rounds)}, not {shown(self._rounds)}")
        low, high = self._parameters.min_batch, self._parameters.n_max
        if not low <= count <= high:
            raise BatchRefusedError(f"a batch must have {low} .. {high} reports that both servers hold, got {count}")

    def _noise(self, noise: I64 | None) -> Lanes:
        """Return a vector with the noise, and none in the lanes."""
        parameters = self._parameters
        if (noise is None) != (parameters.noise == 0):
            raise InvalidInputError(
                f"noise must {'be given' if noise is None else 'be None'}: the parameters are for noise up to "
                f"{parameters.noise}"
            )
        none = np.zeros(parameters.length, np.int64)
        entries = none if noise is None else entries_within(parameters.length, parameters.noise, noise=noise)
        return with_lanes(parameters, entries, 0)

    def _close(self, state: BatchState) -> None:
        self._state = state
        for held in self._held.values():
            if isinstance(held, Secret):
                held.wipe()
        self._held.clear()
        self._frames.clear()


class Helper(_Server[Secret]):
    """The server that holds the seeds of the masks, for one batch.

    Args:
        parameters: of the plan.
        rounds: the rounds whose reports are in the batch.
        allow_list: whose digest is in the parameters.
        policy: the helper's own.
        journal: the helper's own.
        key: the secret key of `parameters.helper_key`.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the allow-list, the rounds or the key do not fit the parameters.
    """

    _kind = Kind.HELPER_REPORT

    def __init__(
        self,
        parameters: TwoServerParameters,
        rounds: range,
        allow_list: AllowList,
        policy: BatchPolicy,
        journal: Journal,
        key: OpeningKey,
    ) -> None:
        super().__init__(parameters, rounds, allow_list, policy, journal)
        if key.public != parameters.helper_key:
            raise InvalidInputError("the key is not the one that clients seal to; use that of parameters.helper_key")
        self._key = key

    def offer(self) -> bytes:
        """Return the ids of the reports that are held, for the leader; more may come until a batch is answered."""
        return frame_of(Kind.OFFER, self._context, HELPER, encode_ids(self._rounds, sorted(self._held)))

    def answer(self, query: bytes, noise: I64 | None = None) -> bytes:
        """Return the sum of the masks of a batch, once; the same query again gets the same bytes, after a restart too.

        Args:
            query: of the leader.
            noise: int64 [V], within +-parameters.noise: the helper's share of it, drawn for this call and used up by
                it; None where the parameters have none. It plays no part if the answer was recorded before.

        Raises:
            BatchRefusedError: the query is malformed, of other rounds or other reports than are held, has fewer than
                min_batch or more than n_max, overlaps another, or is the second.
            InvalidInputError: the noise is missing or not planned, of another type or shape, or too large.
        """
        rounds, ids = decode_ids(self._parameters, query, Kind.QUERY, LEADER)
        batch = name_of_batch(self._context, rounds, ids)
        recorded = self._journal.message(batch)
        if recorded is not None:
            return recorded
        if self._state is not BatchState.COLLECTING:
            raise BatchRefusedError("this batch was answered; there is no second query, only the same again")
        self._check_batch(rounds, len(ids))
        unknown = sum(id not in self._held for id in ids)
        if unknown:
            raise BatchRefusedError(f"{unknown} of {len(ids)} reports of the query are not held here")
        total = self._noise(noise)
        masking = Masking(total)
        for id in ids:
            masking.subtract(self._held[id])
        masking.wipe()
        answer = frame_of(Kind.ANSWER, self._context, HELPER, batch + packed(self._parameters, total))
        self._journal.record(batch, ids, answer)
        self._close(BatchState.DONE)
        return answer

    def _part_bytes(self) -> int:
        return SEALED_BYTES

    def _take(self, part: Part) -> Secret:
        seed = self._key.open(part.payload, Label.TWO_SERVER_SEED, *part.bound.fields)
        key = mask_key(seed, part.bound)
        seed.wipe()
        return key


class Leader(_Server[bytes]):
    """The server that holds the masked vectors, for one batch, and learns the sum.

    Args:
        parameters: of the plan.
        rounds: the rounds whose reports are in the batch.
        allow_list: whose digest is in the parameters.
        policy: the leader's own.
        journal: the leader's own, which the helper must not see: with what the helper answered it gives the sum.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the allow-list or the rounds do not fit the parameters.
    """

    _kind = Kind.LEADER_REPORT

    def query(self, offer: bytes, noise: I64 | None = None) -> bytes:
        """Close the batch, over the reports that both servers hold, and return the query for the helper.

        Args:
            offer: of the helper.
            noise: int64 [V], within +-parameters.noise: the leader's share of it, drawn for this call and used up by
                it; None where the parameters have none.

        Raises:
            BatchRefusedError: the offer is malformed or of other rounds, or too few reports are common.
            LocalProtocolError: the batch is closed.
            InvalidInputError: the noise is missing or not planned, of another type or shape, or too large.
        """
        if self._state is not BatchState.COLLECTING:
            raise LocalProtocolError(f"this batch is {self._state.value}; a leader asks once")
        rounds, offered = decode_ids(self._parameters, offer, Kind.OFFER, HELPER)
        ids = [id for id in offered if id in self._held]
        self._check_batch(rounds, len(ids))
        total = self._noise(noise)
        for id in ids:
            total += self._vector(self._held[id])
        query = frame_of(Kind.QUERY, self._context, LEADER, encode_ids(rounds, ids))
        batch = name_of_batch(self._context, rounds, ids)
        self._journal.record(batch, ids, query + packed(self._parameters, total))
        return self.resume(batch)

    def resume(self, batch: bytes) -> bytes:
        """Return the query of a batch that was recorded, as it was, and wait for its answer: after a restart.

        Args:
            batch: its digest, 32 bytes: `batch_digest` of the query, or what the journal holds.

        Raises:
            BatchRefusedError: no such batch is recorded, or it is of other rounds.
        """
        recorded = self._journal.message(batch)
        if recorded is None:
            raise BatchRefusedError("no such batch is recorded")
        end = len(recorded) - self._parameters.packed_bytes
        query = recorded[:end]
        rounds, ids = decode_ids(self._parameters, query, Kind.QUERY, LEADER)
        self._check_batch(rounds, len(ids))
        self._share, self._batch, self._count = recorded[end:], batch, len(ids)
        self._close(BatchState.WAITING)
        return query

    @property
    def count(self) -> int:
        """How many reports are in the batch, once it is closed."""
        if self._state is BatchState.COLLECTING:
            raise LocalProtocolError("the batch is not closed yet; make a query first")
        return self._count

    def finish(self, answer: bytes) -> I64:
        """Return the sum of the batch, with the noise of both servers: int64 [V].

        Args:
            answer: of the helper.

        Raises:
            BatchRefusedError: the answer is malformed or for another batch: it is dropped, and the right one may
                follow. Or it is another one than the first, which is recorded before it is looked into: a helper that
                could try several would learn from which are refused. Or the sum is wrong: a lane does not count the
                reports, or an entry is larger than they can make it; then the batch is lost.
            LocalProtocolError: the leader does not wait for an answer.
        """
        if self._state not in (BatchState.WAITING, BatchState.DONE):
            raise LocalProtocolError(f"this batch is {self._state.value}; make a query first")
        body = body_of(answer, Kind.ANSWER, self._context, HELPER, 32 + self._parameters.packed_bytes)
        if body is None or body[:32] != self._batch:
            raise BatchRefusedError("this is no answer to the query of this batch")
        try:
            total = self._vector(body[32:]) + self._vector(self._share)
        except InvalidInputError as error:
            raise BatchRefusedError(f"the answer cannot be read: {error}") from error
        self._hear_once(answer)
        entries, lanes = np.split(centred(total, self._parameters.bits), [self._parameters.length])
        largest = self._count * self._parameters.largest_entry + self._parameters.noise
        if not (lanes == self._count).all() or int(entries.max()) > largest or int(entries.min()) < -largest:
            self._state = BatchState.ABORTED
            raise BatchRefusedError(
                "the integrity lanes do not count the reports, or an entry is larger than they can make it: "
                "a client reported a wrong mask or vector, or a server answered wrongly; this batch is lost"
            )
        self._state = BatchState.DONE
        return entries

    def _hear_once(self, answer: bytes) -> None:
        name, heard = digest(Label.TWO_SERVER_BATCH, self._batch), hashlib.sha256(answer).digest()
        recorded = self._journal.message(name)
        if recorded is None:
            self._journal.record(name, (), heard)
        elif recorded != heard:
            raise BatchRefusedError("another answer to this query was heard before; the helper answers once")

    def _part_bytes(self) -> int:
        return SALT_BYTES + self._parameters.packed_bytes

    def _take(self, part: Part) -> bytes:
        share = part.payload[SALT_BYTES:]
        self._vector(share)  # it has one encoding
        return share

    def _vector(self, packed: bytes) -> Lanes:
        return unpack(packed, self._parameters.length + self._parameters.lanes, self._parameters.bits)


def batch_digest(parameters: TwoServerParameters, query: bytes) -> bytes:
    """Return the digest of the batch that a query asks for, 32 bytes: its name in the journals of both servers.

    Raises:
        BatchRefusedError: it is no query.
    """
    return name_of_batch(parameters.context, *decode_ids(parameters, query, Kind.QUERY, LEADER))
