"""Two-server summation: a client sends one report; two servers that do not collude learn the sum of a batch of them.

The leader gets the client's vector under a mask, the helper the seed of the mask, sealed to its key. A batch is opened
once: the leader asks, the helper answers with the sum of the masks. Nothing but a sum over at least
`min_batch - corrupt` honest identities leaves the pair, whichever of the two servers lies. docs/protocol_two_server.md
has every byte, and what is not claimed: above all, nothing protects from clients that report false vectors.

No input, output, clock or randomness: frames come and go as bytes. What a server must not forget is in its `Journal`.

>>> import hashlib
>>> from fedtally.crypto.keys import Secret, SigningKey
>>> def source(name):  # of random bytes; here none at all
...     state = hashlib.shake_256(name)
...     return lambda n: state.update(b".") or state.digest(n)
>>> key = OpeningKey(Secret(source(b"helper")(32)))
>>> people = [SigningKey(Secret(source(b"%d" % i)(32))) for i in range(3)]
>>> allowed = AllowList(sorted(person.public for person in people))
>>> parameters = TwoServerParameters(
...     length=2, bits=8, n_max=10, min_batch=3, corrupt=1, helper_key=key.public, allow_list=allowed.digest,
...     fingerprint=bytes(32))
>>> policy = BatchPolicy(min_honest=2, corrupt=1)
>>> leader = Leader(parameters, range(1), allowed, policy, MemoryJournal())
>>> helper = Helper(parameters, range(1), allowed, policy, MemoryJournal(), key)
>>> for i, person in enumerate(people):
...     item = np.array([1, -1]) * (-1) ** i
...     report = make_report(
...         parameters, item, round=0, identity=person, policy=policy, random=source(b"client %d" % i))
...     print(leader.receive(report.leader), helper.receive(report.helper))
accepted accepted
accepted accepted
accepted accepted
>>> leader.finish(helper.answer(leader.query(helper.offer()))).tolist()
[1, -1]
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally.crypto import hpke
from fedtally.crypto.hpke import OpeningKey
from fedtally.crypto.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Label,
    RejectedError,
    Secret,
    SigningKey,
    check_point,
    digest,
    hkdf,
    verify,
)
from fedtally.crypto.prg import Lanes, Masking, lane
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.packing import centred, pack, packed_length, unpack
from fedtally.secagg.params import (
    MAX_BITS,
    MAX_CLIENTS,
    MAX_STREAM_BYTES,
    UnsafeParametersError,
    integrity_lanes,
    modulus_bits,
)
from fedtally.secagg.wire import HEADER, MAGIC, SERVER, UNLISTED, VERSION

ID_BYTES, SEED_BYTES, SALT_BYTES = 16, 32, 32
SEALED_BYTES = SEED_BYTES + hpke.OVERHEAD_BYTES
LEADER, HELPER = SERVER, SERVER - 1

I64 = npt.NDArray[np.int64]
_Held = TypeVar("_Held", bytes, Secret)

_TERMS = struct.Struct("<QBQQIII32s32s32s")
_HEAD = struct.Struct(f"<{ID_BYTES}sI{KEY_BYTES}s32s{SIGNATURE_BYTES}s")
_BATCH = struct.Struct("<III")


class BatchRefusedError(FedtallyError):
    """Refuse to open a batch, or the sum that came out of it; the message says why."""


class Kind(IntEnum):
    """The type of a message, as it stands in its frame; none is one of `messages.Kind`."""

    LEADER_REPORT = 32
    HELPER_REPORT = 33
    OFFER = 34
    QUERY = 35
    ANSWER = 36


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


@dataclass(frozen=True, kw_only=True)
class TwoServerParameters:
    """What clients and both servers agree on, public and consistent; whether it is safe is for `BatchPolicy`.

    Args:
        length: V, entries of the vector without integrity lanes; with them at most 2^30 bytes.
        bits: b, at most 64, enough for sums of n_max entries of `largest_entry` and `noise`.
        n_max: the most reports in a batch, at most 2^20.
        min_batch: the fewest, at least 2 more than corrupt.
        corrupt: C, the most identities of the allow-list that are corrupt.
        helper_key: the helper's public key, 32 bytes.
        allow_list: the digest of the identities that may report, 32 bytes.
        fingerprint: that of the plan, 32 bytes.
        largest_entry: B, the largest absolute value of an entry of one client.
        noise: tau, from `params.noise_bound`, of the noise of both servers together; 0: none.

    Raises:
        InvalidInputError: a value is out of bounds, or two do not fit each other.
    """

    length: int
    bits: int
    n_max: int
    min_batch: int
    corrupt: int
    helper_key: bytes
    allow_list: bytes
    fingerprint: bytes
    largest_entry: int = 1
    noise: int = 0

    def __post_init__(self) -> None:
        def bounded(minimum: int, maximum: int | None, name: str) -> None:
            object.__setattr__(self, name, _validate.integer(minimum, maximum, **{name: getattr(self, name)}))

        bounded(2, MAX_CLIENTS, "n_max")
        bounded(0, self.n_max - 2, "corrupt")
        bounded(self.corrupt + 2, self.n_max, "min_batch")
        bounded(1, None, "largest_entry")
        bounded(0, None, "noise")
        bounded(modulus_bits(self.n_max, self.largest_entry, self.noise, multiple=1), MAX_BITS, "bits")
        bounded(1, MAX_STREAM_BYTES // lane(self.bits).itemsize - self.lanes, "length")
        _exact(KEY_BYTES, allow_list=self.allow_list)
        _exact(KEY_BYTES, fingerprint=self.fingerprint)
        check_point(self.helper_key)

    @property
    def lanes(self) -> int:
        """Integrity lanes that are appended to the vector."""
        return integrity_lanes(self.bits)

    @property
    def packed_bytes(self) -> int:
        """Bytes of a packed vector with its lanes."""
        return packed_length(self.length + self.lanes, self.bits)

    @property
    def report_bytes(self) -> int:
        """Bytes of a report, to both servers together, frames and all."""
        return 2 * (HEADER.size + _HEAD.size) + SALT_BYTES + self.packed_bytes + SEALED_BYTES

    @property
    def context(self) -> bytes:
        """The digest of all of it, 32 bytes: it is in every message, and everything is bound to it."""
        terms = _TERMS.pack(
            self.length,
            self.bits,
            self.largest_entry,
            self.noise,
            self.n_max,
            self.min_batch,
            self.corrupt,
            self.helper_key,
            self.allow_list,
            self.fingerprint,
        )
        return digest(Label.TWO_SERVER_CONTEXT, bytes([VERSION]), terms)


@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """What one party demands, whatever the others say; each client and each server has its own.

    Args:
        min_honest: the fewest honest identities in a sum, at least 2.
        corrupt: how many identities of the allow-list may be corrupt.
        max_clients: the most reports in a batch.
        max_length: the most entries of a vector.
    """

    min_honest: int
    corrupt: int = 0
    max_clients: int = MAX_CLIENTS
    max_length: int = 2**24

    def __post_init__(self) -> None:
        for minimum, name in ((2, "min_honest"), (0, "corrupt"), (2, "max_clients"), (1, "max_length")):
            object.__setattr__(self, name, _validate.integer(minimum, **{name: getattr(self, name)}))

    def check(self, parameters: TwoServerParameters) -> None:
        """Refuse parameters that are weaker, or larger, than this policy allows.

        Raises:
            UnsafeParametersError: names the parameter, its value and the bound.
        """
        for name, value, least in (
            ("corrupt", parameters.corrupt, self.corrupt),
            ("min_batch - corrupt", parameters.min_batch - parameters.corrupt, self.min_honest),
        ):
            if value < least:
                raise UnsafeParametersError(f"{name} must be at least {least} by this policy, got {value}")
        for name, value, most in (
            ("n_max", parameters.n_max, self.max_clients),
            ("length", parameters.length, self.max_length),
        ):
            if value > most:
                raise UnsafeParametersError(f"{name} must be at most {most} by this policy, got {value}")


# ---- the client ----


@dataclass(frozen=True)
class Report:
    """What one client sends: one frame for each server.

    Args:
        leader: for the leader alone, over a channel that the helper cannot read.
        helper: for the helper; the leader may pass it on.
    """

    leader: bytes = field(repr=False)
    helper: bytes = field(repr=False)


def make_report(
    parameters: TwoServerParameters,
    vector: I64,
    *,
    round: int,
    identity: SigningKey,
    policy: BatchPolicy,
    random: Callable[[int], bytes],
) -> Report:
    """Return the report of a client. It makes one a round at most: what it reports twice may be counted twice.

    Args:
        parameters: of the plan.
        vector: int64 [V], every entry within +-largest_entry.
        round: 0 .. 2^32 - 1.
        identity: the client's key; its public key is in the allow-list.
        policy: the client's own.
        random: returns so many uniform bytes, never the same again.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the vector, the round or the randomness is not as above.
    """
    policy.check(parameters)
    round = _validate.integer(0, 2**32 - 1, round=round)
    lanes = _lanes(parameters, _entries(parameters.length, parameters.largest_entry, vector=vector), 1)
    id = _exact(ID_BYTES, random_id=random(ID_BYTES))
    seed = Secret(_exact(SEED_BYTES, random_seed=random(SEED_BYTES)))
    salt = _exact(SALT_BYTES, random_salt=random(SALT_BYTES))
    bound = _Bound(parameters.context, id, round, identity.public)
    sealed = hpke.seal(parameters.helper_key, seed, Label.TWO_SERVER_SEED, *bound.fields)
    key, masking = _mask_key(seed, bound), Masking(lanes)
    masking.add(key)
    for secret in (masking, key, seed):
        secret.wipe()
    share = salt + _pack(parameters, lanes)
    digests = _part_digest(Kind.LEADER_REPORT, share), _part_digest(Kind.HELPER_REPORT, sealed)
    signature = identity.sign(Label.TWO_SERVER_REPORT, *bound.fields, *digests)
    for_leader = _HEAD.pack(id, round, identity.public, digests[1], signature) + share
    for_helper = _HEAD.pack(id, round, identity.public, digests[0], signature) + sealed
    return Report(
        _frame(Kind.LEADER_REPORT, bound.context, UNLISTED, for_leader),
        _frame(Kind.HELPER_REPORT, bound.context, UNLISTED, for_helper),
    )


# ---- the servers ----


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

    def _parse(self, frame: bytes) -> _Part | None:
        size = _HEAD.size + self._part_bytes()
        body = _body(frame, self._kind, self._context, UNLISTED, size)
        if body is None or len(body) != size:
            return None
        id, round, identity, other, signature = _HEAD.unpack_from(body)
        return _Part(_Bound(self._context, id, round, identity), other, signature, body[_HEAD.size :])

    def _refuse(self, part: _Part) -> Outcome | None:
        """Return why it is no report of an identity in these rounds, or None."""
        if part.bound.round not in self._rounds:
            return Outcome.OTHER_ROUND
        if part.bound.identity not in self._allow_list:
            return Outcome.UNKNOWN_IDENTITY
        digests = [part.other, _part_digest(self._kind, part.payload)]
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
    def _take(self, part: _Part) -> _Held:
        """Return what is kept of a report, or raise InvalidInputError if it cannot be read."""

    def _check_batch(self, rounds: range, count: int) -> None:
        if rounds != self._rounds:
            raise BatchRefusedError(f"the batch is of rounds {_shown(rounds)}, not {_shown(self._rounds)}")
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
        entries = none if noise is None else _entries(parameters.length, parameters.noise, noise=noise)
        return _lanes(parameters, entries, 0)

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
        return _frame(Kind.OFFER, self._context, HELPER, _encode_ids(self._rounds, sorted(self._held)))

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
        rounds, ids = _decode_ids(self._parameters, query, Kind.QUERY, LEADER)
        batch = _batch_digest(self._context, rounds, ids)
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
        answer = _frame(Kind.ANSWER, self._context, HELPER, batch + _pack(self._parameters, total))
        self._journal.record(batch, ids, answer)
        self._close(BatchState.DONE)
        return answer

    def _part_bytes(self) -> int:
        return SEALED_BYTES

    def _take(self, part: _Part) -> Secret:
        seed = self._key.open(part.payload, Label.TWO_SERVER_SEED, *part.bound.fields)
        key = _mask_key(seed, part.bound)
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
        rounds, offered = _decode_ids(self._parameters, offer, Kind.OFFER, HELPER)
        ids = [id for id in offered if id in self._held]
        self._check_batch(rounds, len(ids))
        total = self._noise(noise)
        for id in ids:
            total += self._vector(self._held[id])
        query = _frame(Kind.QUERY, self._context, LEADER, _encode_ids(rounds, ids))
        batch = _batch_digest(self._context, rounds, ids)
        self._journal.record(batch, ids, query + _pack(self._parameters, total))
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
        rounds, ids = _decode_ids(self._parameters, query, Kind.QUERY, LEADER)
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
        body = _body(answer, Kind.ANSWER, self._context, HELPER, 32 + self._parameters.packed_bytes)
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

    def _take(self, part: _Part) -> bytes:
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
    return _batch_digest(parameters.context, *_decode_ids(parameters, query, Kind.QUERY, LEADER))


# ---- what is bound to what ----


class _Bound(NamedTuple):
    """What every derived value and signature of a report is bound to."""

    context: bytes
    id: bytes
    round: int
    identity: bytes

    @property
    def fields(self) -> tuple[bytes, ...]:
        return self.context, self.id, self.round.to_bytes(4, "little"), self.identity


class _Part(NamedTuple):
    """What one server gets of a report; `other` is the digest of what the other one gets."""

    bound: _Bound
    other: bytes
    signature: bytes
    payload: bytes


def _mask_key(seed: Secret, bound: _Bound) -> Secret:
    return hkdf(seed, bound.context + bound.id, Label.TWO_SERVER_MASK)


def _part_digest(kind: Kind, payload: bytes) -> bytes:
    return digest(Label.TWO_SERVER_PART, bytes([kind]), payload)


def _batch_digest(context: bytes, rounds: range, ids: Sequence[bytes]) -> bytes:
    return digest(Label.TWO_SERVER_BATCH, context, _encode_ids(rounds, ids))


# ---- bytes ----


def _frame(kind: Kind, context: bytes, sender: int, body: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, kind, 0, context, sender, len(body)) + body


def _body(frame: bytes, kind: Kind, context: bytes, sender: int, most: int) -> bytes | None:
    """Return the body of a frame whose header is exactly this, if it has at most so many bytes, or None."""
    if not isinstance(frame, bytes) or len(frame) > HEADER.size + most:
        return None
    body = frame[HEADER.size :]
    return body if frame == _frame(kind, context, sender, body) else None


def _encode_ids(rounds: range, ids: Sequence[bytes]) -> bytes:
    return _BATCH.pack(rounds[0], rounds[-1], len(ids)) + b"".join(ids)


def _decode_ids(parameters: TwoServerParameters, frame: bytes, kind: Kind, sender: int) -> tuple[range, list[bytes]]:
    """Return the rounds and the ids of an offer or a query.

    Raises:
        BatchRefusedError: it is none, or the ids are not in strictly ascending order.
    """
    body = _body(frame, kind, parameters.context, sender, _BATCH.size + ID_BYTES * parameters.n_max)
    if body is None or len(body) < _BATCH.size:
        raise BatchRefusedError(f"this is no {kind.name.lower()} of these parameters")
    first, last, count = _BATCH.unpack_from(body)
    if first > last or len(body) != _BATCH.size + ID_BYTES * count:
        raise BatchRefusedError(f"the {kind.name.lower()} is malformed")
    ids = [body[start : start + ID_BYTES] for start in range(_BATCH.size, len(body), ID_BYTES)]
    if any(one >= other for one, other in itertools.pairwise(ids)):
        raise BatchRefusedError(f"the ids of the {kind.name.lower()} must be in strictly ascending order")
    return range(first, last + 1), ids


def _lanes(parameters: TwoServerParameters, entries: I64, constant: int) -> Lanes:
    """Return entries mod 2^w, w the width of a lane, with the integrity lanes after them."""
    lanes = np.full(parameters.length + parameters.lanes, constant, lane(parameters.bits))
    lanes[: parameters.length] = entries.astype(lanes.dtype)
    return lanes


def _pack(parameters: TwoServerParameters, lanes: Lanes) -> bytes:
    """Return the lanes mod 2^b, packed; changes them."""
    lanes &= lanes.dtype.type((1 << parameters.bits) - 1)
    return pack(lanes, parameters.bits)


def _entries(length: int, largest: int, **named: I64) -> I64:
    ((name, vector),) = named.items()
    if not isinstance(vector, np.ndarray) or vector.dtype != np.int64 or vector.shape != (length,):
        got = f"{vector.dtype} {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
        raise InvalidInputError(f"{name} must be int64 [{length}], got {got}")
    if int(vector.max()) > largest or int(vector.min()) < -largest:
        raise InvalidInputError(f"every entry of {name} must be within +-{largest}, the bound that the bits are for")
    return vector


def _exact(length: int, **named: bytes) -> bytes:
    ((name, value),) = named.items()
    if not isinstance(value, bytes) or len(value) != length:
        raise InvalidInputError(f"{name} must be {length} bytes")
    return value


def _shown(rounds: range) -> str:
    return f"{rounds[0]} .. {rounds[-1]}"
