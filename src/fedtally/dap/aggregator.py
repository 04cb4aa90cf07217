"""What leader and helper of DAP do alike: check reports, add them up, close batches.

Each server believes nothing of the other. It looks at its own tables before it works on a report,
and again in the transaction that adds the report: an id is added once, and a collected time has no
more reports. A batch is closed in the transaction that gives its share away.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import xor
from typing import ClassVar, NamedTuple

from fedtally.crypto.keys import RejectedError
from fedtally.dap.draft18 import (
    AggregateShareAad,
    BatchMode,
    BatchSelector,
    CollectionJobReq,
    Extension,
    HpkeCiphertext,
    Interval,
    PlaintextInputShare,
    Query,
    ReportError,
    ReportMetadata,
    Role,
    aggregate_share_info,
    are_sorted,
)
from fedtally.dap.noise import Noise
from fedtally.dap.presentation import MalformedError
from fedtally.dap.problems import Problem, ProblemType
from fedtally.dap.sealing import Keyring, seal
from fedtally.dap.state import Bucket, Store, Table
from fedtally.dap.task import Task, TaskSecret
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.flp.prio3 import VerifyState
from fedtally.flp.proof import ReportRefusedError
from fedtally.flp.words import Array

CLOCK_SKEW = 300  # seconds that a client's clock may be ahead
KEY_ID = 0  # of the one verification key
RESOURCE_BYTES = 16
_TIME_BYTES = 8
_NOISE = b"noise"  # in the table of terms


class RefusedError(FedtallyError):
    """Do not take a report.

    Attributes:
        error: the draft's word for it.
    """

    def __init__(self, error: ReportError) -> None:
        super().__init__(f"a report is not taken: {error.name.lower()}")
        self.error = error


class Resource(NamedTuple):
    """What was made for a request.

    Attributes:
        id: the last part of its address.
        answer: what a GET of it returns.
    """

    id: bytes
    answer: bytes


class Added(NamedTuple):
    """A report that passed, and the server's share of what it adds."""

    metadata: ReportMetadata
    share: Array


@dataclass(frozen=True)
class Batch:
    """The sum of an interval.

    Attributes:
        share: this server's share.
        count: the number of reports.
        checksum: the XOR of the digests of their ids.
        interval: the smallest one with the times of all of them.
    """

    share: bytes
    count: int
    checksum: bytes
    interval: Interval


class Aggregator:
    """A server of one task.

    Args:
        task: the task.
        secret: the seed of the verification key.
        keys: this server's keys, for input shares.
        store: what it keeps.
        noise: what it adds to its share of each batch; None: nothing, and results are exact.

    Raises:
        InvalidInputError: the secret is of another task, noise does not protect reports of this
            task, or the store was begun with other noise.
    """

    role: ClassVar[Role]

    def __init__(
        self,
        task: Task,
        secret: TaskSecret,
        keys: Keyring,
        store: Store,
        noise: Noise | None = None,
    ) -> None:
        self.task = task
        self._verify_key = secret.verify_key(task)
        self._keys, self._store, self._noise = keys, store, noise
        if noise is not None:
            task.check_noise()
        self._keep_terms(b"" if noise is None else noise.terms)

    def _keep_terms(self, terms: bytes) -> None:
        """Refuse a store that was begun with other noise.

        Settings without their noise would give exact sums away, and nobody would see it.
        """
        kept = self._store.get(Table.TERMS, _NOISE)
        if kept is None:
            self._store.put(Table.TERMS, _NOISE, terms)
        elif kept != terms:
            raise InvalidInputError(
                "the store of this server was begun with other noise than the settings say:"
                " take that back, or begin a new task"
            )

    # ---- reports ----

    def _check(self, metadata: ReportMetadata, now: float) -> None:
        """Refuse a report that may not be added, by what both servers see of it."""
        seconds = metadata.time * self.task.configuration.precision
        if seconds > now + CLOCK_SKEW:
            raise RefusedError(ReportError.REPORT_TOO_EARLY)
        if metadata.time < self.task.interval.start:
            raise RefusedError(ReportError.TASK_NOT_STARTED)
        if metadata.time >= self.task.interval.end:
            raise RefusedError(ReportError.TASK_EXPIRED)
        if metadata.extensions:  # which everybody must know, and nobody knows one
            raise RefusedError(ReportError.INVALID_MESSAGE)
        self._check_again(metadata)

    def _check_again(self, metadata: ReportMetadata) -> None:
        """Refuse a report of a collected time, or whose id was added."""
        if self._is_collected(Interval(metadata.time, 1)):
            raise RefusedError(ReportError.BATCH_COLLECTED)
        if self._store.get(Table.SEEN, metadata.id) is not None:
            raise RefusedError(ReportError.REPORT_REPLAYED)

    def _begin(
        self, metadata: ReportMetadata, public_share: bytes, sealed: HpkeCiphertext
    ) -> tuple[VerifyState, bytes]:
        """Open this server's share of a report; return its state and its verifier share."""
        task, version = self.task, self.task.version
        aad = version.input_share_aad(task.id, task.configuration, metadata, public_share)
        try:
            opened = self._keys.open(sealed, version.input_share_info(self.role), aad)
        except RejectedError:
            raise RefusedError(ReportError.HPKE_DECRYPT_ERROR) from None
        number = self.role - Role.LEADER
        try:
            share = PlaintextInputShare.decode(opened)
            if share.extensions:
                raise RefusedError(ReportError.INVALID_MESSAGE)
            return self.task.prio3.verify_init(
                self._verify_key, number, metadata.id, public_share, share.payload
            )
        except (MalformedError, ReportRefusedError):
            raise RefusedError(ReportError.INVALID_MESSAGE) from None

    def _add(self, reports: Iterable[Added]) -> None:
        """Add reports that `_check_again` passed; within the same transaction."""
        by_time: defaultdict[int, list[Added]] = defaultdict(list)
        for each in reports:
            by_time[each.metadata.time].append(each)
            self._store.put(Table.SEEN, each.metadata.id, b"")
        for time, added in by_time.items():
            key = _key(time)
            kept = self._store.get(Table.BUCKET, key)
            share = self.task.prio3.aggregate([each.share for each in added])
            digests = [hashlib.sha256(each.metadata.id).digest() for each in added]
            buckets = [Bucket(share, len(added), _xor(digests))]
            if kept is not None:
                buckets.append(Bucket.decode(kept))
            self._store.put(Table.BUCKET, key, self._sum(buckets).encode())

    def _sum(self, buckets: Sequence[Bucket]) -> Bucket:
        prio3 = self.task.prio3
        return Bucket(
            prio3.aggregate([prio3.circuit.field.decode(each.share) for each in buckets]),
            sum(each.count for each in buckets),
            _xor([each.checksum for each in buckets]),
        )

    # ---- batches ----

    def _is_collected(self, interval: Interval) -> bool:
        """Return whether a time of an interval was collected.

        Collected intervals do not overlap: only the first one that ends behind the start can.
        """
        rows = self._store.scan(Table.COLLECTED, _key(interval.start + 1), limit=1)
        return any(int.from_bytes(start, "big") < interval.end for _, start in rows)

    def _read_query(self, query: Query | BatchSelector) -> Interval:
        """Return the interval that is asked for."""
        if query.batch_mode != BatchMode.TIME_INTERVAL:
            raise Problem(ProblemType.INVALID_MESSAGE, "the task is of the mode time_interval")
        try:
            interval = Interval.decode(query.config)
        except MalformedError as error:
            raise Problem(ProblemType.INVALID_MESSAGE, str(error)) from None
        if not interval.is_valid:
            raise Problem(ProblemType.BATCH_INVALID, "the interval has no time")
        return interval

    def _close(self, query: Interval, selected: Interval) -> Batch:
        """Take the sum of an interval and close the whole query; within a transaction.

        Nothing is added to a time of the query afterwards, and no time of it is collected again,
        be it selected or not.
        """
        if self._is_collected(query):
            raise Problem(ProblemType.BATCH_OVERLAP, "a part of the interval was collected")
        rows = self._store.scan(Table.BUCKET, _key(selected.start), _key(selected.end))
        total = self._sum([Bucket.decode(value) for _, value in rows])
        if total.count < self.task.min_batch:
            raise Problem(
                ProblemType.INVALID_BATCH_SIZE,
                f"a batch must have {self.task.min_batch} reports or more",
            )
        times = [int.from_bytes(key, "big") for key, _ in rows]
        for key, _ in self._store.scan(Table.BUCKET, _key(query.start), _key(query.end)):
            self._store.drop(Table.BUCKET, key)
        self._store.put(Table.COLLECTED, _key(query.end), _key(query.start))
        smallest = Interval(times[0], times[-1] + 1 - times[0])
        return Batch(total.share, total.count, total.checksum, smallest)

    def _seal(self, batch: Batch, request: CollectionJobReq) -> HpkeCiphertext:
        """Return the share of a batch with this server's noise, sealed to the collector.

        It is the last thing of a transaction that may be refused: what is drawn here is kept, and
        is not drawn again.
        """
        share = batch.share if self._noise is None else self._noised(batch, self._noise)
        aad = AggregateShareAad(self.task.id, self.task.configuration, request)
        return seal(self.task.collector, share, aggregate_share_info(self.role), aad.encode())

    def _noised(self, batch: Batch, noise: Noise) -> bytes:
        """Charge a batch, and return its share with noise."""
        noise.charge(batch.interval.start - self.task.interval.start)
        field = self.task.prio3.circuit.field
        share = field.decode(batch.share)
        drawn = field.words(noise.draw(len(share)))
        return field.encode(field.reduce(share + drawn))


def check_extensions(extensions: Sequence[Extension], unsorted: ProblemType) -> None:
    """Refuse the extensions of a job: all must be known, and none is.

    Args:
        extensions: the extensions.
        unsorted: the type of the problem where they do not rise.
    """
    if not are_sorted(extensions):
        raise Problem(unsorted, "extensions must rise, and none may be there twice")
    if extensions:
        types = ", ".join(str(each.type) for each in extensions)
        raise Problem(ProblemType.UNSUPPORTED_EXTENSION, f"not known here: {types}")


def resource_id(request: bytes) -> bytes:
    """Return the id of what a request makes: so the same request makes the same resource."""
    return hashlib.sha256(request).digest()[:RESOURCE_BYTES]


def _xor(checksums: Iterable[bytes]) -> bytes:
    numbers = (int.from_bytes(each, "big") for each in checksums)
    return reduce(xor, numbers, 0).to_bytes(32, "big")


def _key(time: int) -> bytes:
    return time.to_bytes(_TIME_BYTES, "big")
