"""The common code of the leader and the helper of DAP: check reports, add them up, close batches.

To close a batch means to read its sum, and to accept no further report for its interval. Each
server enforces these rules itself, since the other server may break them:

- No report is added twice, and no report is added to an interval that was collected. A server
  looks into its own tables before it verifies a report, and again in the transaction that adds it.
- A batch is closed once. Its share is encrypted ("sealed") to the collector in the transaction that
  closes it.
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

CLOCK_SKEW = 300  # by how many seconds a report's time may be after the time of this server's clock
KEY_ID = 0  # the id of the only verification key of a task
RESOURCE_BYTES = 16  # bytes of a resource's id
_TIME_BYTES = 8
_NOISE = b"noise"  # the key of `Noise.terms` in the table TERMS


class RefusedError(FedtallyError):
    """Say that a server refuses a report.

    Attributes:
        error: the reason, as the draft names it.
    """

    def __init__(self, error: ReportError) -> None:
        super().__init__(f"a report is not taken: {error.name.lower()}")
        self.error = error


class Resource(NamedTuple):
    """An HTTP resource that a server created for a request.

    Attributes:
        id: the last part of the resource's address, 16 bytes.
        answer: the body that a GET of the resource returns.
    """

    id: bytes
    answer: bytes


class Added(NamedTuple):
    """A report that passed verification, as it is added to a sum.

    Attributes:
        metadata: the metadata of the report.
        share: this server's share of the numbers that the report adds to the sum, as an array of
            field elements.
    """

    metadata: ReportMetadata
    share: Array


@dataclass(frozen=True)
class Batch:
    """A closed batch: this server's share of the sum of the reports of an interval.

    Attributes:
        share: this server's share of the sum, encoded, without noise.
        count: the number of reports.
        checksum: the XOR of the SHA-256 digests of the reports' ids, 32 bytes.
        interval: from the time of the earliest report to the time of the latest one, both included,
            in units of the precision.
        number: the number under which the batch is charged, see `Noise.charge`.
    """

    share: bytes
    count: int
    checksum: bytes
    interval: Interval
    number: int


class Aggregator:
    """A server of one task: the base class of the leader and the helper.

    A method that verifies reports raises a MissingExtraError if pycryptodome is not installed.

    Args:
        task: the task.
        secret: the secret of the task, from which the verification key is derived.
        keys: this server's private keys. Clients encrypt this server's input shares to them.
        store: the storage of this server for this task.
        noise: the noise that this server adds to its share of each batch; None: it adds no noise.

    Raises:
        InvalidInputError: `secret` belongs to another task; `noise` is given although the task's
            VDAF is sumvec, where noise does not hide a report; or the terms of the noise are not
            the terms with which `store` was first used (see `_keep_terms`).
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
        """Store the terms of the noise at the first start; at later starts, refuse other terms.

        Without this check, a server whose settings lost the entry for noise would start without
        noise, and seal exact shares. Nobody would notice.

        Args:
            terms: `Noise.terms`: what both operators agreed on about noise, encoded; empty bytes if
                this server adds no noise.

        Raises:
            InvalidInputError: the store has other terms.
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
        """Refuse a report by its metadata, which are the part that both servers see in the clear.

        Args:
            metadata: the metadata of the report.
            now: the time, Unix seconds.

        Raises:
            RefusedError: the report's time is more than `CLOCK_SKEW` seconds after `now`, is
                outside the task's interval, or was collected already; the report has an extension;
                or a report with this id was added already.
        """
        seconds = metadata.time * self.task.configuration.precision
        if seconds > now + CLOCK_SKEW:
            raise RefusedError(ReportError.REPORT_TOO_EARLY)
        if metadata.time < self.task.interval.start:
            raise RefusedError(ReportError.TASK_NOT_STARTED)
        if metadata.time >= self.task.interval.end:
            raise RefusedError(ReportError.TASK_EXPIRED)
        if metadata.extensions:  # a server must refuse unknown extensions, and fedtally knows none
            raise RefusedError(ReportError.INVALID_MESSAGE)
        self._check_again(metadata)

    def _check_again(self, metadata: ReportMetadata) -> None:
        """Refuse a report whose time was collected, or whose id was added already.

        Call it again in the transaction that adds the report: another job may have added the report
        since `_check`, or the collector may have collected its time.

        Raises:
            RefusedError: the time was collected, or the id was added.
        """
        if self._is_collected(Interval(metadata.time, 1)):
            raise RefusedError(ReportError.BATCH_COLLECTED)
        if self._store.get(Table.SEEN, metadata.id) is not None:
            raise RefusedError(ReportError.REPORT_REPLAYED)

    def _begin(
        self, metadata: ReportMetadata, public_share: bytes, sealed: HpkeCiphertext
    ) -> tuple[VerifyState, bytes]:
        """Decrypt this server's input share of a report, and begin to verify the report.

        An input share is one server's share of the measurement and of its proof.

        Args:
            metadata: the metadata of the report.
            public_share: the public share of the report.
            sealed: this server's input share, encrypted.

        Returns:
            The state that the next step of the verification needs, and this server's verifier
            share, encoded: its message to the other server.

        Raises:
            RefusedError: the input share cannot be decrypted, is malformed, or has an extension, or
                `Prio3.verify_init` refuses the report.
        """
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
        """Add each report to the `Bucket` of its time, and store its id in the table SEEN.

        Call it in the same transaction in which `_check_again` accepted the reports.
        """
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
        """Tell whether any time of an interval was collected.

        Collected intervals do not overlap, and the table COLLECTED lists them by their ends. So
        only one row is read: the first interval that ends after the start of `interval`. If any
        collected interval overlaps `interval`, this one does.
        """
        rows = self._store.scan(Table.COLLECTED, _key(interval.start + 1), limit=1)
        return any(int.from_bytes(start, "big") < interval.end for _, start in rows)

    def _read_query(self, query: Query | BatchSelector) -> Interval:
        """Return the interval that a query asks for, in units of the precision.

        Raises:
            Problem: the batch mode of the query is not TIME_INTERVAL, or its interval is malformed
                or empty.
        """
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
        """Sum the reports of the interval `selected`, and close the interval `query`.

        Call it in a transaction. Afterwards the server adds no report to any time in `query`, and
        refuses to collect any of these times again. The sums of times that are in `query`, but not
        in `selected`, are deleted and never collected.

        Args:
            query: the interval that the collector asked for.
            selected: the interval to sum, within `query`.

        Raises:
            Problem: a time in `query` was collected already, or `selected` has fewer reports than
                the task's `min_batch`.
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
        # If this transaction fails and is tried again, the number must be the same. `query` is the
        # same, but `smallest` may not be: a late report may have been added. A query that begins at
        # or before the start of the task gets the number 0. It has reports, so it contains the
        # start of the task or a later time. Two such queries overlap, so only one batch gets 0.
        number = max(0, query.start - self.task.interval.start)
        return Batch(total.share, total.count, total.checksum, smallest, number)

    def _seal(self, batch: Batch, request: CollectionJobReq) -> HpkeCiphertext:
        """Seal this server's share of a batch to the collector; return the ciphertext.

        If this server adds noise, it first charges the batch to the privacy budget and adds noise
        to the share. Call this method last in a transaction, when nothing can refuse the request
        any more: if the transaction is rolled back, the charge stays.

        Args:
            batch: the batch.
            request: the collector's request, which the ciphertext is bound to.

        Raises:
            FedtallyError: the privacy budget does not allow this batch (see `Noise.charge`).
        """
        share = batch.share if self._noise is None else self._noised(batch, self._noise)
        aad = AggregateShareAad(self.task.id, self.task.configuration, request)
        return seal(self.task.collector, share, aggregate_share_info(self.role), aad.encode())

    def _noised(self, batch: Batch, noise: Noise) -> bytes:
        """Charge a batch to the privacy budget; return its share with noise added, encoded."""
        noise.charge(batch.number)
        field = self.task.prio3.circuit.field
        share = field.decode(batch.share)
        drawn = field.words(noise.draw(len(share)))
        return field.encode(field.reduce(share + drawn))


def check_extensions(extensions: Sequence[Extension], unsorted: ProblemType) -> None:
    """Refuse a job that has an extension.

    A server must refuse extensions that it does not know, and fedtally knows none.

    Args:
        extensions: the extensions of the job.
        unsorted: the type of the problem if the extensions are not in strictly ascending order.

    Raises:
        Problem: there is an extension. The type is `unsorted` or UNSUPPORTED_EXTENSION.
    """
    if not are_sorted(extensions):
        raise Problem(unsorted, "extensions must rise, and none may be there twice")
    if extensions:
        types = ", ".join(str(each.type) for each in extensions)
        raise Problem(ProblemType.UNSUPPORTED_EXTENSION, f"not known here: {types}")


def resource_id(request: bytes) -> bytes:
    """Return the id, 16 bytes, of the resource that a server creates for a request.

    The id is a digest of the request's body. So a request that is sent again gets the resource
    that exists already.
    """
    return hashlib.sha256(request).digest()[:RESOURCE_BYTES]


def _xor(checksums: Iterable[bytes]) -> bytes:
    numbers = (int.from_bytes(each, "big") for each in checksums)
    return reduce(xor, numbers, 0).to_bytes(32, "big")


def _key(time: int) -> bytes:
    return time.to_bytes(_TIME_BYTES, "big")
