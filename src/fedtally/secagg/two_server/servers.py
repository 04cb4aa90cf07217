"""Run the two servers. Each collects the reports of one batch: the reports of a range of rounds.

Together they open the sum of the batch. The journal of a server enforces that a batch has only one
sum, and that no round is in two batches.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from enum import Enum, StrEnum
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto.hpke import OVERHEAD_BYTES, PrivateKey, seal
from fedtally.crypto.keys import KEY_BYTES, Label, RejectedError, Secret, verify
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.flp.words import Array
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server.checks import Check, check_of
from fedtally.secagg.two_server.facts import BatchFacts, end_of_query, parts_of
from fedtally.secagg.two_server.journal import Journal, Reports
from fedtally.secagg.two_server.proofs import ReportProof
from fedtally.secagg.two_server.reports import (
    BATCH,
    HEAD,
    HELPER,
    ID_BYTES,
    LEADER,
    BatchPolicy,
    BatchRefusedError,
    Bound,
    Ids,
    Kind,
    Part,
    Refused,
    TwoServerParameters,
    Verdict,
    body_of,
    decode_ids,
    encode_ids,
    frame_of,
    name_of_batch,
    shown,
)
from fedtally.secagg.wire import HEADER, UNLISTED

I64 = npt.NDArray[np.int64]
Noise = Callable[[], I64]
CLOCK_SKEW = 3_600  # the most seconds that a client's clock may be ahead of a server's
CHECKS_OF_A_FRAME = 4096  # the most checks in one frame
# The most bytes, and the most reports, that are read from the disk together. Deciding about these
# reports takes about ten times as many bytes of memory, and the process does not give all of this
# memory back. With 2 MiB read together, the process kept more memory than all held reports take.
_READ_BYTES, _READ_AT_ONCE = 1 << 19, 1024
_REFUSED = struct.Struct(f"<{KEY_BYTES}sB")  # a refused report in the journal: identity, verdict
_VERDICTS = (Verdict.INVALID, Verdict.INCONSISTENT)


class Outcome(StrEnum):
    """Say what became of a received report; the server holds only accepted reports.

    ACCEPTED: the server holds the report, or the closed batch has the report. With proofs, the
    leader may still refuse the report later, or has done so. CLOSED: the server accepts no new
    reports, and the report is not ACCEPTED as a copy. MALFORMED: the bytes are no report to this
    server under its parameters. OTHER_ROUND: the batch does not have the report's round.
    UNKNOWN_IDENTITY: the client is not in the allow-list. OTHER_TIME: the report's time is too old,
    or too far in the future. FORGED: the client that the report names did not sign it, or (leader)
    the report is not sealed to this server. SECOND_REPORT: the journal has another report of this
    client for these rounds, or another report with this id. UNREADABLE: the report's content has a
    wrong form, or (helper) the seed is not sealed to this server. FULL: the server holds n_max
    reports.
    """

    ACCEPTED = "accepted"
    CLOSED = "closed"
    MALFORMED = "malformed"
    OTHER_ROUND = "other round"
    OTHER_TIME = "other time"
    UNKNOWN_IDENTITY = "unknown identity"
    FORGED = "forged"
    SECOND_REPORT = "second report"
    UNREADABLE = "unreadable"
    FULL = "full"


class BatchState(Enum):
    """Name the state of a server of a batch.

    COLLECTING: it accepts reports. STOPPED (leader): it accepts no more, and has no query yet.
    WAITING (leader): it has a query, and waits for the answer. DONE: the helper has answered; the
    leader has the sum. ABORTED (leader): the sum was refused. A leader that is restarted after DONE
    or ABORTED is WAITING again, until `finish` is called.
    """

    COLLECTING = "collecting"
    STOPPED = "stopped"
    WAITING = "waiting"
    DONE = "done"
    ABORTED = "aborted"


class LostReportError(FedtallyError):
    """Report that the stored frame of an accepted report is missing or was changed.

    Args:
        message: the text of the error.
        id: the id of the report, 16 bytes; `withdraw` takes it.
    """

    def __init__(self, message: str, id: bytes) -> None:
        super().__init__(message)
        self.id = id


class _Server(ABC):
    """Collect the reports of one batch: the base of both servers.

    For each accepted report the server holds an object that `_check` made, the held report (see
    `checks`). `Helper` and `Leader` describe the arguments.
    """

    _kind: Kind

    def __init__(
        self,
        terms: TwoServerParameters | ReportProof,
        rounds: range,
        allow_list: AllowList,
        policy: BatchPolicy,
        journal: Journal,
        key: PrivateKey,
        noise: Noise | None = None,
        reserve: Callable[[], None] | None = None,
        noise_source: bytes = b"caller",
        reports: Reports | None = None,
    ) -> None:
        self._check: Check = check_of(terms)
        parameters = self._check.parameters
        policy.check(parameters, has_proofs=self._check.proof is not None)
        parameters.check_noise(noise)
        # With another list, an attacker could fill a batch around one honest client with clients of
        # its own.
        if allow_list.digest != parameters.allow_list:
            raise InvalidInputError(
                "the allow-list is not the one of these parameters; use that of the plan"
            )
        if not isinstance(rounds, range) or not rounds or rounds.step != 1:
            raise InvalidInputError(
                f"rounds must be a range of at least one round, step 1, got {rounds!r}"
            )
        validate.integer(0, 2**32 - 1, first_round=rounds[0])
        validate.integer(0, 2**32 - 1, last_round=rounds[-1])
        self._parameters, self._rounds, self._max_age = parameters, rounds, policy.max_age
        self._key = parameters.own_key(key, self._kind)
        self._context = self._check.context
        self._allow_list, self._draw, self._reserve = allow_list, noise, reserve
        self._facts = BatchFacts(journal, self._context, rounds, noise_source)
        self._state = BatchState.COLLECTING
        # `_held` has the accepted reports by id: the held report that `_check` made, or None if the
        # frames are in `reports`. With `reports`, only the ids are in memory: there may be a
        # million reports.
        self._reports = reports
        self._held: dict[bytes, Any] = {}
        # `_added` has the reports whose shares are in `_sum` already: at a leader the reports that
        # were found valid, at a helper with `reports` those that it has checked. When the batch is
        # summed, the shares of reports in `_added` that the batch leaves out are subtracted from
        # `_sum`. With `reports`, the frames of these reports are read again for this; the frames of
        # all other reports in `_added` are not.
        self._added: dict[bytes, Any] = {}
        self._sum: Array | None = None
        self._out: set[bytes] = set()  # at a leader: the ids of the reports that it refused
        self._refused: list[Refused] = []  # at a leader: the same reports, by identity and verdict
        self._counted = Ids(b"")  # the ids of the reports in the closed batch
        self._facts.check_key(key.public)
        # A batch that was closed before a restart stays closed. A second batch over other reports
        # would reveal the difference of the two sums.
        recorded = self._facts.recorded()
        if recorded is not None:
            self._close(recorded)
        elif reports is not None:
            self._held = dict.fromkeys(reports.ids())

    @property
    def state(self) -> BatchState:
        """The state of this server; see `BatchState`."""
        return self._state

    @property
    def parameters(self) -> TwoServerParameters:
        """The parameters of all reports and of the noise of the batch."""
        return self._parameters

    @property
    def rounds(self) -> range:
        """The rounds whose reports are in the batch."""
        return self._rounds

    @property
    def num_counted(self) -> int:
        """The number of reports in the batch once it is closed; 0 while it is open."""
        return len(self._counted)

    @property
    def report_bytes(self) -> int:
        """The size in bytes of the frame of a report to this server."""
        return HEADER.size + HEAD.size + self._payload_bytes()

    def __getstate__(self) -> None:
        raise InvalidInputError(
            "the state of a server of a batch cannot be copied or pickled: two could open two sums"
            " that differ by one client; a batch that was recorded goes on from its journal"
        )

    def __len__(self) -> int:
        return len(self._held) + len(self._added)

    def _knows(self, id: bytes) -> bool:
        """Return whether this server holds a report, or has refused it since the server started.

        Once the batch is closed, the result is always False.
        """
        return id in self._held or id in self._added or id in self._out

    def receive(self, frame: bytes, now: int) -> Outcome:
        """Process the report of a client; a copy of a report that is held already changes nothing.

        Anybody may forward a report, since its client signed it. `Outcome.ACCEPTED` is returned
        only after the report was written into the journal. If the caller has begun a group of calls
        (see `Reports.put`), the report is on disk only when the group has ended.

        Args:
            frame: the frame that came from the client; any bytes are allowed.
            now: the time, Unix seconds.

        Raises:
            Exception: any error of `journal` or `reports`, unchanged. Perhaps the report is written
                then; the same frame may come again.
        """
        if self._state is not BatchState.COLLECTING:
            return Outcome.ACCEPTED if self._is_counted(frame) else Outcome.CLOSED
        part = self._parse(frame)
        if part is None:
            return Outcome.MALFORMED
        if part.bound.round not in self._rounds:
            return Outcome.OTHER_ROUND
        if part.bound.identity not in self._allow_list:
            return Outcome.UNKNOWN_IDENTITY
        try:
            part = self._unsealed(part)
        except RejectedError:  # it does not open, and anybody may have sent it
            return Outcome.FORGED
        signed = self._check.digests(self._kind, part)
        if not _is_signed(part, signed):
            return Outcome.FORGED
        identity = part.bound.identity
        # A client has one report in a range of rounds, for ever. With two reports it would count
        # twice, and two batches that differ in its report would reveal the difference.
        this, kept = hashlib.sha256(frame).digest(), self._facts.report_of(identity)
        if kept not in (None, this):
            return Outcome.SECOND_REPORT
        # A report that is in the journal came in time before. It may come again after a restart,
        # although it is too old by then.
        if kept is None and not now - self._max_age <= part.bound.time <= now + CLOCK_SKEW:
            return Outcome.OTHER_TIME
        id = part.bound.id
        if kept == this and self._knows(id):
            return Outcome.ACCEPTED
        if len(self) >= self._parameters.n_max:
            return Outcome.FULL
        # The report is read before it is written into the journal. Otherwise a report that cannot
        # be read would keep out a later, correct report of this client.
        try:
            held = self._take(part, signed)
        except InvalidInputError:
            return Outcome.UNREADABLE
        # The report is written before it counts: another process may have accepted another report
        # of this client meanwhile. It is written under its id, too. Two clients that work together
        # can find two reports with the same id by 2^64 hashes. The second report would replace the
        # first one, here or after a restart, and would get the verdict on the first one.
        names = self._facts.names(id, identity)
        if self._reports is not None:
            self._drop(held)  # it was made only to see that the report can be read
            held, is_kept = None, self._reports.put(id, frame, names)
        else:
            is_kept = self._facts.keep_report(names, this)
        if not is_kept:
            return Outcome.SECOND_REPORT
        self._held[id] = held
        return Outcome.ACCEPTED

    def withdraw(self, ids: Iterable[bytes]) -> None:
        """Remove reports from memory: the batch leaves them out, and their frames may come again.

        The journal and the stored frames stay. So another report of the same client is still
        refused, and after a restart a frame that is stored is held again. This method is meant for
        a group of reports that could not be written, and for a report that raised
        `LostReportError`. Ids that are not held have no effect.

        Args:
            ids: the ids of the reports, 16 bytes each.

        Raises:
            LocalProtocolError: one of the reports was checked, and is in a sum; nothing is removed.
        """
        ids = list(ids)
        if any(id in self._added for id in ids):
            raise LocalProtocolError("a report that was checked is in the sum; restart first")
        for id in ids:
            self._drop(self._held.pop(id, None))

    # ---- what is read back ----

    def _pages(
        self, ids: Iterable[bytes]
    ) -> Generator[tuple[Sequence[bytes], list[Any]], None, None]:
        """Yield accepted reports, a page at a time: their ids, and held reports (see `checks`).

        After each page, a helper wipes the held reports that it read from the disk.

        Args:
            ids: the ids of accepted reports.

        Raises:
            LostReportError: a stored frame is missing, or is not the accepted one.
        """
        size = max(1, min(_READ_AT_ONCE, _READ_BYTES // self._payload_bytes()))
        left = iter(ids)
        while some := list(islice(left, size)):
            with ExitStack() as read:
                yield some, self._page(some, read)

    def _page(self, ids: Sequence[bytes], read: ExitStack) -> list[Any]:
        """Return the held report (see `checks`) of each id, in order.

        Args:
            ids: the ids of accepted reports.
            read: a stack; when it is closed, a helper wipes the held reports that it read from the
                disk.

        Raises:
            LostReportError: a stored frame is missing, or is not the accepted one.
        """
        if self._reports is None:
            return [self._held[id] if id in self._held else self._added[id] for id in ids]
        page = []
        for id, frame in zip(ids, self._reports.frames(ids), strict=True):
            page.append(self._read(id, frame))
            read.callback(self._drop, page[-1])
        return page

    def _read(self, id: bytes, frame: bytes | None) -> Any:
        """Make the held report (see `checks`) of a frame that was read from the disk.

        Args:
            id: the id of the report, 16 bytes.
            frame: the stored frame; None if it is missing.

        Raises:
            LostReportError: the frame is missing, or is not the accepted one.
        """
        # A check is valid only for the bytes that were checked. With other bytes the sum would have
        # a vector that nobody checked.
        kept = self._facts.report(id)
        if frame is None or hashlib.sha256(frame).digest() != kept:
            raise LostReportError(
                f"report {id.hex()} {'is missing' if frame is None else 'is another one'}, and was"
                " accepted: check the disk; to go on without it, `withdraw` its id, as run"
                " --leave-out-lost does",
                id,
            )
        part = self._parse(frame)
        assert part is not None  # it was accepted
        part = self._unsealed(part)
        return self._take(part, self._check.digests(self._kind, part))

    def _total_of(self, ids: Ids) -> Array:
        """Compute this server's share of the sum of some reports, without noise.

        `_sum` is not changed: if the batch is refused, more reports may come.

        Args:
            ids: the ids of the reports.

        Raises:
            LostReportError: a stored frame is missing, or is not the accepted one.
        """
        total, proof = self._check.nothing(), self._check.proof
        if proof is not None and self._sum is not None:
            self._read_into(total, self._lacking(ids))
            total = proof.less(self._sum, total)
        self._read_into(total, (id for id in ids if id not in self._added))
        return total

    def _copied_sum(self) -> Array:
        """Return a copy of `_sum`, or zeros if `_sum` is None, to add reports to.

        `_sum` is this server's share of the sum of the reports in `_added`. The caller replaces
        `_sum` by the copy once nothing can fail any more.
        """
        return self._check.nothing() if self._sum is None else self._sum.copy()

    def _lacking(self, ids: Ids) -> list[bytes]:
        """Return the ids of the reports that are in `_sum` and not in `ids`."""
        if sum(id in self._added for id in ids) == len(self._added):
            return []
        return [id for id in self._added if id not in ids]

    def _read_into(self, total: Array, ids: Iterable[bytes]) -> None:
        """Add reports to `total`, this server's share of a sum, in place; they are read by id.

        Raises:
            LostReportError: a stored frame is missing, or is not the accepted one.
        """
        with closing(self._pages(ids)) as pages:
            for _, held in pages:
                self._add(total, held)

    @abstractmethod
    def _add(self, total: Array, held: Sequence[Any]) -> None:
        """Add held reports to `total`, this server's share of a sum, in place."""

    def _is_counted(self, frame: bytes) -> bool:
        """Return whether a frame is a copy of an accepted report, once the server has stopped.

        If the batch is closed, the report must be in the batch. A client that missed the first
        outcome may send such a copy.
        """
        part = self._parse(frame)
        if part is None or not (part.bound.id in self._counted or self._knows(part.bound.id)):
            return False
        return self._facts.report_of(part.bound.identity) == hashlib.sha256(frame).digest()

    def _parse(self, frame: bytes) -> Part | None:
        size = HEAD.size + self._payload_bytes()
        body = body_of(frame, self._kind, self._context, UNLISTED, size)
        if body is None or len(body) != size:
            return None
        nonce, round, identity, time, other, signature = HEAD.unpack_from(body)
        bound = Bound(self._context, nonce, round, identity, time)
        return Part(bound, other, signature, body[HEAD.size :])

    def _payload_bytes(self) -> int:
        """Return the size in bytes of the payload of a report, which follows the head."""
        return self._check.part_bytes(self._kind)

    def _unsealed(self, part: Part) -> Part:
        """Return a part of a report with the payload unsealed, the form that the client signed.

        The helper's payload is not sealed as a whole: the helper's part is returned unchanged.

        Raises:
            RejectedError: the payload does not open.
        """
        return part

    @abstractmethod
    def _take(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        """Make the held report (see `checks`) from this server's part of a report.

        Args:
            part: this server's part, unsealed.
            signed: the digests that the client signed.

        Raises:
            InvalidInputError: the part cannot be read.
        """

    @abstractmethod
    def _drop(self, held: Any) -> None:
        """Wipe a held report if it is secret: a helper's is, a leader's is not.

        If `held` is None, do nothing.
        """

    def _ids_of(self, frame: bytes, kind: Kind, sender: int) -> tuple[range, Ids]:
        return decode_ids(self._context, self._parameters.n_max, frame, kind, sender)

    def _check_rounds(self, rounds: range) -> None:
        if rounds != self._rounds:
            raise BatchRefusedError(
                f"the batch is of rounds {shown(rounds)}, not {shown(self._rounds)}"
            )

    def _check_batch(self, rounds: range, count: int) -> None:
        self._check_rounds(rounds)
        low, high = self._parameters.min_batch, self._parameters.n_max
        if not low <= count <= high:
            raise BatchRefusedError(
                f"a batch must have {low} .. {high} reports that both servers hold, got {count}"
            )

    def _make_reservation(self) -> None:
        """Call `reserve`, if there is one, before noise is drawn and before the sum is opened."""
        if self._reserve is not None:
            self._reserve()

    def _drawn(self) -> I64 | None:
        """Draw new noise: int64 [V], not checked yet, or None if the parameters have none."""
        return None if self._draw is None else self._draw()

    @abstractmethod
    def _close(self, recorded: bytes) -> None:
        """Close the batch as the journal has it: accept no more reports, and drop the held reports.

        Args:
            recorded: the entry of the batch in the journal.
        """

    def _forget(self, query: bytes, state: BatchState) -> None:
        self._counted = self._ids_of(query, Kind.QUERY, LEADER)[1]  # before anything is dropped
        self._state, self._sum = state, None
        for held in self._held.values():
            self._drop(held)
        for gone in (self._held, self._added, self._out):
            gone.clear()


def _is_signed(part: Part, signed: tuple[bytes, ...]) -> bool:
    """Return whether the client signed its report with these digests."""
    label, bound = Label.TWO_SERVER_REPORT, part.bound
    try:
        verify(bound.identity, part.signature, label, *bound.fields, *signed)
    except RejectedError:
        return False
    return True


class Helper(_Server):
    """Run the server that gets the seeds of the masks, for one batch.

    Args:
        terms: the parameters of the plan or, if reports have proofs, its `ReportProof`.
        rounds: the rounds whose reports are in the batch.
        allow_list: the list whose digest is in the parameters.
        policy: what the helper demands of the parameters.
        journal: the journal of the helper; no other server uses it.
        key: the secret key that belongs to `parameters.helper_key`.
        noise: a function that draws the helper's noise, new at each call: int64 [V], within
            +-parameters.noise; None if the parameters have none.
        reserve: a function that charges the privacy budget, called before each answer. If it raises
            an error, no noise is drawn and nothing is sent.
        noise_source: a name for the origin of `noise`. The journal records the name with the batch.
            If the batch is recorded with a different name, this server refuses it: perhaps no noise
            was drawn for it. `FrequencyServer` passes a name of its own for the noise of a plan.
        reports: the storage of the reports until the batch is closed; None: this server holds them
            in memory only, and a restart loses them.

    If the journal has a batch of these rounds, the batch is closed. Then `answer` returns the
    recorded answer again, and no other answer.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the allow-list, the rounds, the key or the noise do not fit the
            parameters.
        BatchRefusedError: the journal has this key for another plan. Or the journal has a batch of
            these rounds, and it is the other server's batch, or has noise from another source.
    """

    _kind = Kind.HELPER_REPORT

    def offer(self) -> bytes:
        """Return the offer to the leader: a frame with the ids of the reports that are held.

        The call changes nothing: more reports may come until a query is answered. From then on the
        offer has no ids.
        """
        return frame_of(Kind.OFFER, self._context, HELPER, encode_ids(self._rounds, self._ids()))

    def _ids(self) -> list[bytes]:
        """Return the ids of all reports that are held, in ascending order."""
        return sorted([*self._held, *self._added])

    def checks(self, ids: Collection[bytes] | None = None) -> list[bytes]:
        """Return the checks of held reports, as frames for the leader, each of up to 4,096 reports.

        A check is what the leader needs from the helper to decide whether a report is valid (see
        `proofs`). A report has the same check at every call, also after a restart. The checks are
        in ascending order of the ids. The list is empty if reports have no proofs, or if none of
        the ids is held.

        Args:
            ids: up to 4,096 ids that the leader asks for, in any order; ids that are not held get
                no check. None: all reports that are held.

        Raises:
            BatchRefusedError: there are more than 4,096 ids.
            LocalProtocolError: the batch is closed, and the keys of its reports are wiped.
            LostReportError: a stored frame is missing, or is not the accepted one.
        """
        if (proof := self._check.proof) is None:
            return []
        if self._state is not BatchState.COLLECTING:
            raise LocalProtocolError(
                f"this batch is {self._state.value}; reports are checked before it is answered"
            )
        if ids is not None and len(ids) > CHECKS_OF_A_FRAME:
            raise BatchRefusedError(
                f"checks are asked for at most {CHECKS_OF_A_FRAME} ids at once, got {len(ids)}"
            )
        wanted = self._ids() if ids is None else sorted(filter(self._knows, set(ids)))
        return [
            self._checks_of(wanted[start : start + CHECKS_OF_A_FRAME], proof)
            for start in range(0, len(wanted), CHECKS_OF_A_FRAME)
        ]

    def _sum_up(self, ids: Sequence[bytes], held: Sequence[Any]) -> None:
        """Add reports to `_sum`, except for those that are in it already.

        Args:
            ids: the ids of the reports.
            held: the held report of each id, in the same order.
        """
        new = [(id, one) for id, one in zip(ids, held, strict=True) if id in self._held]
        total = self._copied_sum()
        self._add(total, [one for _, one in new])
        self._sum = total
        for id, _ in new:
            self._added[id] = self._held.pop(id)

    def _checks_of(self, ids: list[bytes], proof: ReportProof) -> bytes:
        """Return a frame with the checks of held reports, in the order of `ids`.

        With `reports`, the checked reports are also added to `_sum`.
        """
        body = [BATCH.pack(self._rounds[0], self._rounds[-1], len(ids))]
        with closing(self._pages(ids)) as pages:
            for page, held in pages:
                checks = proof.check(held, self._key)
                body += [id + check for id, check in zip(page, checks, strict=True)]
                if self._reports is not None:
                    self._sum_up(page, held)
        return frame_of(Kind.CHECKS, self._context, HELPER, b"".join(body))

    def answer(self, query: bytes) -> bytes:
        """Answer the leader's query: a frame with the helper's share of the sum, noise included.

        Only one query is answered. The same query again gets the same bytes, also after a restart.
        `reserve` is called before each of these answers.

        Args:
            query: the query of the leader, a frame.

        Raises:
            BatchRefusedError: the query is malformed, is not for the rounds of this batch, has
                reports that are not held, has fewer than min_batch or more than n_max reports,
                overlaps another batch, or is not the query that was answered; or the batch has
                noise from another source.
            LostReportError: a stored frame is missing, or is not the accepted one; no noise was
                drawn.
            InvalidInputError: the noise that was drawn has a wrong dtype or shape, or is too large;
                the batch was charged, and is not answered.
            Exception: any error of `reserve`, `noise`, `journal` or `reports`, unchanged; send
                nothing then.
        """
        rounds, ids = self._ids_of(query, Kind.QUERY, LEADER)
        self._check_rounds(rounds)
        recorded = self._facts.recorded()
        is_new = recorded is None
        if recorded is None:
            recorded = self._facts.record(query, self._summed(rounds, ids))
        self._close(recorded)
        asked, answer = parts_of(recorded, self._answer_bytes)
        # A second batch of the same rounds could differ from the first one by few reports. The two
        # sums would reveal the sum of these reports.
        if asked != query:
            raise BatchRefusedError(
                "this batch was answered; there is no second query, only the same again"
            )
        # Another process may have recorded the answer, and charged another ledger. So `reserve` is
        # called also for a recorded answer. A query that differs from the recorded one was refused
        # above.
        if not is_new:
            self._make_reservation()
        return answer

    def _summed(self, rounds: range, ids: Ids) -> bytes:
        """Make the answer: a frame with the helper's share of the sum, with new noise.

        Args:
            rounds: the rounds of the query.
            ids: the ids of the reports in the query.

        Raises:
            BatchRefusedError: the helper does not hold a report of the query, the batch is too
                small or too large, or `BatchFacts.claim` refuses the batch; no noise was drawn.
            LostReportError: a stored frame is missing, or is not the accepted one; no noise was
                drawn.
            InvalidInputError: the noise that was drawn has a wrong dtype or shape, or is too large.
            Exception: any error of `reserve`, unchanged; no noise was drawn.
        """
        self._check_batch(rounds, len(ids))
        unknown = sum(not self._knows(id) for id in ids)
        if unknown:
            raise BatchRefusedError(
                f"{unknown} of {len(ids)} reports of the query are not held here"
            )
        total = self._total_of(ids)
        self._facts.claim()
        self._make_reservation()
        # Charged first, the batch gets no noise if it cannot be charged. The helper adds noise of
        # its own, since the leader knows the noise that it drew itself.
        batch = name_of_batch(self._context, rounds, ids)
        share = self._check.message(total, self._drawn())
        return frame_of(Kind.ANSWER, self._context, HELPER, batch + share)

    @property
    def _answer_bytes(self) -> int:
        return HEADER.size + KEY_BYTES + self._parameters.packed_bytes

    def _close(self, recorded: bytes) -> None:
        query, _ = parts_of(recorded, self._answer_bytes)
        self._forget(query, BatchState.DONE)
        if self._reports is not None:
            self._reports.erase()  # the answer is in the journal, and can be had again

    def _take(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        return self._check.of_helper(part, signed, self._key)

    def _add(self, total: Array, held: Sequence[Any]) -> None:
        self._check.add_helper(total, held)

    def _drop(self, held: Any) -> None:
        if held is not None:
            held.wipe()


class Leader(_Server):
    """Run the server that gets the masked vectors, for one batch; it learns the sum.

    Args:
        terms: the parameters of the plan or, if reports have proofs, its `ReportProof`.
        rounds: the rounds whose reports are in the batch.
        allow_list: the list whose digest is in the parameters.
        policy: what the leader demands of the parameters.
        journal: the journal of the leader. The helper must not see this journal: the leader's share
            of the sum is in it, and the helper knows the other share.
        key: the secret key that belongs to `parameters.leader_key`.
        noise: a function that draws the leader's noise, new at each call: int64 [V], within
            +-parameters.noise; None if the parameters have none.
        reserve: a function that charges the privacy budget, called before each query, also by
            `resume`, and before an answer is accepted. If it raises an error, no noise is drawn and
            nothing is sent.
        noise_source: a name for the origin of `noise`. The journal records the name with the batch.
            If the batch is recorded with a different name, this server refuses it: perhaps no noise
            was drawn for it. `FrequencyServer` passes a name of its own for the noise of a plan.
        reports: the storage of the reports until `erase`; None: this server holds them in memory
            only, and a restart loses them.

    If the journal has a batch of these rounds, the batch is closed. Then `resume` returns the
    query of this batch again.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the allow-list, the rounds, the key or the noise do not fit the
            parameters.
        BatchRefusedError: the journal has this key for another plan. Or the journal has a batch of
            these rounds, and it is the other server's batch, or has noise from another source.
    """

    _kind = Kind.LEADER_REPORT
    _takes_any_entries = False

    def take_any_entries(self) -> None:
        """Accept sums with any entries from now on; only wrong checksum entries are refused.

        The call is meant for a leader that gets the exact sum and adds noise later. Without it a
        sum is refused if an entry is beyond what honest reports can add up to. From such a refusal,
        a client or a helper that lies could learn something about the exact entries.
        """
        self._takes_any_entries = True

    def _payload_bytes(self) -> int:
        return super()._payload_bytes() + OVERHEAD_BYTES

    def _unsealed(self, part: Part) -> Part:
        share = self._key.open(part.payload, Label.TWO_SERVER_SHARE, *part.bound.fields)
        return part._replace(payload=bytes(share.reveal()))

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The reports that `judge` refused, by identity and verdict.

        While the batch is open, they are the reports that were refused since this server started.
        Once the batch is closed, they are the refused reports that were recorded with it, also
        after a restart. The tuple is empty if reports have no proofs.
        """
        return tuple(self._refused)

    def judge(self, checks: bytes) -> None:
        """Decide about the report of each check in a frame: the report is valid, or it is refused.

        A check is what the helper computed about the proof of one report. A check of a report that
        was decided before is ignored. A check of a report that is not held yet decides nothing: ask
        the helper for it again.

        Args:
            checks: one of the frames that `Helper.checks` returned.

        Raises:
            BatchRefusedError: the frame is malformed or for other rounds, or a check cannot be
                read; no report is decided.
            LocalProtocolError: the batch is closed, or reports have no proofs.
            LostReportError: a stored frame is missing, or is not the accepted one; no report is
                decided.
        """
        if (proof := self._check.proof) is None:
            raise LocalProtocolError("reports of these parameters have no proofs, and no checks")
        if not self._is_open:
            raise LocalProtocolError(
                f"this batch is {self._state.value}; reports are judged before it is closed"
            )
        size = ID_BYTES + proof.check_bytes
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
        # Only `_held` has reports that are not decided yet.
        new = {entry[:ID_BYTES]: entry[ID_BYTES:] for entry in entries}
        self._decide({id: check for id, check in new.items() if id in self._held}, proof)

    def _decide(self, checks: dict[bytes, bytes], proof: ReportProof) -> None:
        """Decide about held reports: add valid ones to `_sum`, and refuse the others.

        After an error, no report is decided.

        Args:
            checks: the helper's checks by report id; all these reports are held.
            proof: the proof system of the reports.

        Raises:
            BatchRefusedError: a check cannot be read.
            LostReportError: a stored frame is missing, or is not the accepted one.
        """
        total = self._copied_sum()
        decided: list[tuple[bytes, bytes, Verdict]] = []
        with closing(self._pages(list(checks))) as pages:
            for page, shares in pages:
                try:
                    verdicts = proof.decide(shares, [checks[id] for id in page])
                except InvalidInputError as error:
                    raise BatchRefusedError(f"a check cannot be read: {error}") from error
                found = list(zip(page, shares, verdicts, strict=True))
                # The same bytes that were judged are added here, and are not read again: the disk
                # could have other bytes by then.
                self._add(total, [share for _, share, verdict in found if verdict is Verdict.VALID])
                decided += [(id, share.bound.identity, verdict) for id, share, verdict in found]
        self._sum = total
        for id, identity, verdict in decided:
            held = self._held.pop(id)
            if verdict is Verdict.VALID:
                self._added[id] = held
            else:  # the journal still has the report: its client cannot send another one
                self._out.add(id)
                self._refused.append(Refused(identity, verdict))

    @property
    def unjudged(self) -> int:
        """The number of held reports that wait for their check; 0 if reports have no proofs."""
        return 0 if self._check.proof is None else len(self._held)

    def to_check(self, most: int = CHECKS_OF_A_FRAME) -> list[bytes]:
        """Return ids of reports that wait for their check, for a call of `Helper.checks`.

        The waiting ids are a queue. An id that is returned goes to its end, and new ids join there,
        too. So the next `unjudged` ids, over one or more calls, are all ids that wait now. The list
        is empty if reports have no proofs.

        Args:
            most: the largest number of ids, 1 to 4,096.

        Raises:
            InvalidInputError: `most` is out of bounds.
        """
        most = validate.integer(1, CHECKS_OF_A_FRAME, most=most)
        some = list(islice(self._held, min(self.unjudged, most)))
        for id in some:
            self._held[id] = self._held.pop(id)
        return some

    def stop(self) -> None:
        """Accept no more reports; call this before asking the helper for its offer.

        Clients send to the helper first. So an offer that the helper makes after this call has all
        reports that the leader accepted, and the batch misses no report that both accepted. If the
        leader is not COLLECTING, the call changes nothing.
        """
        if self._state is BatchState.COLLECTING:
            self._state = BatchState.STOPPED

    def query(self, offer: bytes) -> bytes:
        """Close the batch with the reports that both servers hold; return the query, a frame.

        With proofs, only reports that were found valid are in the batch. If another process has
        closed the batch of these rounds meanwhile, its query is returned. After a BatchRefusedError
        the leader collects reports again. After any other error its state is as before the call.

        Args:
            offer: the offer that the helper made after the leader stopped.

        Raises:
            BatchRefusedError: the offer is malformed or for other rounds, the servers have too few
                reports in common, a round is in another batch, the batch has noise from another
                source, or the journal has the batch of the other server.
            LocalProtocolError: the leader has not stopped, or the batch is closed.
            LostReportError: a stored frame is missing, or is not the accepted one; no noise was
                drawn.
            InvalidInputError: the noise that was drawn has a wrong dtype or shape, or is too large;
                the batch was charged.
            Exception: any error of `reserve`, `noise`, `journal` or `reports`, unchanged.
        """
        # An offer from before the stop could lack reports that both servers accepted later.
        if self._state is BatchState.COLLECTING:
            raise LocalProtocolError(
                "this batch is collecting; stop the leader, then ask the helper for its offer"
            )
        if self._state is not BatchState.STOPPED:
            raise LocalProtocolError(f"this batch is {self._state.value}; a leader asks once")
        try:
            self._close(self._recorded(offer))
        except BatchRefusedError:
            self._state = BatchState.COLLECTING  # more reports may come
            raise
        return self._query

    def _recorded(self, offer: bytes) -> bytes:
        """Record the query for an offer, and this server's share of the sum; return the entry.

        Args:
            offer: the offer of the helper.

        Raises:
            BatchRefusedError: the offer is malformed or for other rounds, the servers have too few
                reports in common, a round is in another batch, or the batch is recorded with noise
                from another source.
            LostReportError: a stored frame is missing, or is not the accepted one.
            InvalidInputError: the noise that was drawn has a wrong dtype or shape, or is too large.
            Exception: any error of `reserve`, unchanged.
        """
        rounds, offered = self._ids_of(offer, Kind.OFFER, HELPER)
        # Only reports that both servers hold are in the batch: a mask without its vector, or a
        # vector without its mask, would make the whole sum useless.
        ids = Ids.of(id for id in offered if id in self._countable)
        self._check_batch(rounds, len(ids))
        total = self._total_of(ids)
        self._facts.claim()
        self._make_reservation()
        share = self._check.message(total, self._drawn())
        query = frame_of(Kind.QUERY, self._context, LEADER, encode_ids(rounds, ids))
        return self._facts.record(query, share + self._named_refused())

    def resume(self) -> bytes:
        """Return the query of the batch again, after a restart or if the query was lost on its way.

        Raises:
            LocalProtocolError: the batch is not closed yet.
            Exception: any error of `reserve`, unchanged.
        """
        if self._is_open:
            raise LocalProtocolError("this batch is not closed yet; make a query first")
        self._make_reservation()  # perhaps only an earlier process has called it for this query
        return self._query

    @property
    def _is_open(self) -> bool:
        """Whether the batch is open: it has no query yet."""
        return self._state in (BatchState.COLLECTING, BatchState.STOPPED)

    def _close(self, recorded: bytes) -> None:
        end = end_of_query(recorded) + self._parameters.packed_bytes
        refused = b"" if self._check.proof is None else recorded[end:]
        # If this is a helper's entry, the bytes after `end` are no whole number of refused reports.
        # In this case `parts_of` gets all of the entry and refuses it.
        is_own = len(refused) % _REFUSED.size == 0
        own = recorded.removesuffix(refused) if is_own else recorded
        self._query, self._share = parts_of(own, self._parameters.packed_bytes)
        self._refused = [
            Refused(identity, _VERDICTS[verdict])
            for identity, verdict in _REFUSED.iter_unpack(refused)
        ]
        self._forget(self._query, BatchState.WAITING)
        self._batch = name_of_batch(self._context, self._rounds, self._counted)

    @property
    def count(self) -> int:
        """The number of reports in the closed batch.

        Raises:
            LocalProtocolError: the batch is not closed yet.
        """
        if self._is_open:
            raise LocalProtocolError("the batch is not closed yet; make a query first")
        return len(self._counted)

    @property
    def total(self) -> I64:
        """The sum that `finish` returned: int64 [V].

        Raises:
            LocalProtocolError: `finish` has returned no sum.
        """
        if self._state is not BatchState.DONE:
            raise LocalProtocolError(
                f"this batch has no sum: it is {self._state.value}; finish it first"
            )
        return self._total.copy()

    def finish(self, answer: bytes) -> I64:
        """Open the sum of the batch with the helper's answer.

        Args:
            answer: the answer of the helper, a frame.

        Returns:
            int64 [V]; the sum, with the noise of both servers.

        Raises:
            BatchRefusedError: the answer is malformed or for another batch, or differs from the
                first answer that was recorded. Such an answer is dropped: the right answer may
                follow. Or no honest reports could add up to the sum: a checksum entry is not the
                number of reports, or (unless `take_any_entries` was called) an entry is too large
                or too small. The batch is lost only in this last case.
            LocalProtocolError: the batch has no query yet, or is lost.
            Exception: any error of `reserve`, `journal` or `reports`, unchanged; the same answer
                may follow.
        """
        if self._state not in (BatchState.WAITING, BatchState.DONE):
            raise LocalProtocolError(f"this batch is {self._state.value}; make a query first")
        most = KEY_BYTES + self._parameters.packed_bytes
        body = body_of(answer, Kind.ANSWER, self._context, HELPER, most)
        if body is None or body[:32] != self._batch:
            raise BatchRefusedError("this is no answer to the query of this batch")
        heard = hashlib.sha256(answer).digest()
        self._facts.check_first(heard)  # before it is charged
        self._make_reservation()  # after a restart nothing may have been charged yet
        try:
            total = self._check.whole(self._share, body[32:])
        except InvalidInputError as error:
            raise BatchRefusedError(f"the answer cannot be read: {error}") from error
        # The answer is recorded before its sum is checked. If a helper could try several answers,
        # it would learn about the sum from which of them are refused.
        self._hear_once(answer, heard)
        entries = self._check.entries(total, self.count, any_entries=self._takes_any_entries)
        if entries is None:
            self._state = BatchState.ABORTED
            raise BatchRefusedError(
                "the checksum entries do not count the reports, or an entry is larger than they can"
                " make it: a client reported a wrong mask or vector, or a server answered wrongly;"
                " this batch is lost"
            )
        self._state, self._total = BatchState.DONE, entries
        return entries.copy()

    def _hear_once(self, answer: bytes, heard: bytes) -> None:
        self._facts.check_first(heard)  # another process may have heard one meanwhile
        # The helper may erase its answer once the sum is saved. So the leader stores the answer
        # before its journal records that there is one. The stored answer is sealed: together with
        # the leader's share in the journal it gives the sum.
        if self._reports is not None:
            own = self._key.public
            sealed = seal(own, Secret(answer), Label.TWO_SERVER_ANSWER, *self._facts.range)
            self._reports.keep_answer(sealed)
        self._facts.hear(heard)

    @property
    def kept_answer(self) -> bytes | None:
        """The stored answer of the helper, for `finish` after a restart.

        None: it is not stored, or is damaged; ask the helper again.
        """
        sealed = None if self._reports is None else self._reports.answer()
        if sealed is None:
            return None
        try:
            opened = self._key.open(sealed, Label.TWO_SERVER_ANSWER, *self._facts.range)
        except RejectedError:  # the stored bytes are damaged
            return None
        return bytes(opened.reveal())

    def erase(self) -> None:
        """Erase the stored reports and the answer.

        Call this only after the sum was saved, or the batch was lost: the method does not check it.

        Raises:
            LocalProtocolError: the batch is not closed yet.
        """
        if self._is_open:
            raise LocalProtocolError(
                f"this batch is {self._state.value}; its reports are erased after its sum landed"
            )
        if self._reports is not None:
            self._reports.erase()

    @property
    def _countable(self) -> dict[bytes, Any]:
        """The reports that may be in the batch, by id; with proofs, only valid ones."""
        return self._held if self._check.proof is None else self._added

    def _take(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        return self._check.of_leader(part, signed)

    def _add(self, total: Array, held: Sequence[Any]) -> None:
        self._check.add_leader(total, held)

    def _drop(self, held: Any) -> None:
        """Wipe nothing: a masked vector reveals nothing without its mask."""

    def _named_refused(self) -> bytes:
        """Encode the identities and verdicts of the refused reports for the journal.

        They are recorded with the batch, so that a restarted leader has them, too.
        """
        return b"".join(
            _REFUSED.pack(identity, _VERDICTS.index(verdict)) for identity, verdict in self._refused
        )
