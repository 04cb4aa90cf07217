"""The two servers: each collects the reports of one batch; together they open its sum, once."""

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
CLOCK_SKEW = 3_600  # seconds that a client's clock may be ahead of a server's
CHECKS_OF_A_FRAME = 4096
# Of reports that are read from the disk together. To judge them takes about ten times as much, and
# pieces of that stay with the process: with 2 MiB they were more than what is held of reports.
_READ_BYTES, _READ_AT_ONCE = 1 << 19, 1024
_REFUSED = struct.Struct(f"<{KEY_BYTES}sB")  # in the journal: an identity, and the verdict
_VERDICTS = (Verdict.INVALID, Verdict.INCONSISTENT)


class Outcome(StrEnum):
    """The outcome of a report; only an accepted one leaves a trace."""

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
    """The state of a server; only a leader stops, waits for an answer, or aborts."""

    COLLECTING = "collecting"
    STOPPED = "stopped"
    WAITING = "waiting"
    DONE = "done"
    ABORTED = "aborted"


class LostReportError(FedtallyError):
    """Refuse to go on with a report whose frame is gone, or is not the one that was accepted.

    Args:
        message: the words.
        id: the id of the report, for `withdraw`.
    """

    def __init__(self, message: str, id: bytes) -> None:
        super().__init__(message)
        self.id = id


class _Server(ABC):
    """The base of both servers: it collects the reports of one batch."""

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
        # another list could have identities of an attacker's, which pad a batch around one client
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
        # By id; what its check made of a report, or None: its frame lies in `reports`. No more of a
        # report is in memory then, since there may be a million of them.
        self._reports = reports
        self._held: dict[bytes, Any] = {}
        # Those whose share is in `_sum`, and are not read again for the sum of a batch: of a leader
        # all that were found valid, of a helper that has a disk all that it checked.
        self._added: dict[bytes, Any] = {}
        self._sum: Array | None = None
        self._out: set[bytes] = set()  # of a leader: ids that were refused
        self._refused: list[Refused] = []  # of a leader
        self._counted = Ids(b"")  # of the closed batch
        self._facts.check_key(key.public)
        # A batch that was closed before a restart stays closed: a second one over other reports
        # would give the difference of the two sums away.
        recorded = self._facts.recorded()
        if recorded is not None:
            self._close(recorded)
        elif reports is not None:
            self._held = dict.fromkeys(reports.ids())

    @property
    def state(self) -> BatchState:
        """The state of this server."""
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
        """How many reports are in the closed batch; 0 while it is open."""
        return len(self._counted)

    @property
    def report_bytes(self) -> int:
        """The bytes of the frame of a report to this server."""
        return HEADER.size + HEAD.size + self._payload_bytes()

    def __getstate__(self) -> None:
        raise InvalidInputError(
            "the state of a server of a batch cannot be copied or pickled: two could open two sums"
            " that differ by one client; a batch that was recorded goes on from its journal"
        )

    def __len__(self) -> int:
        return len(self._held) + len(self._added)

    def _knows(self, id: bytes) -> bool:
        """Tell whether a report was taken, and is held or was refused."""
        return id in self._held or id in self._added or id in self._out

    def receive(self, frame: bytes, now: int) -> Outcome:
        """Take the report of a client; a copy of a report that was taken changes nothing.

        Any party may pass it on, since it is signed. "Accepted" is returned after the report of
        that identity was written into the journal.

        Args:
            frame: from the client.
            now: seconds since 1970.
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
        except RejectedError:  # nothing shows that its client sent this
            return Outcome.FORGED
        signed = self._check.digests(self._kind, part)
        if not _is_signed(part, signed):
            return Outcome.FORGED
        identity = part.bound.identity
        # One report of an identity in a range of rounds, for ever. With two it would count twice,
        # and two batches that differ in its report would show the difference.
        this, kept = hashlib.sha256(frame).digest(), self._facts.report_of(identity)
        if kept not in (None, this):
            return Outcome.SECOND_REPORT
        # what the journal keeps came in time, and may come again after a restart
        if kept is None and not now - self._max_age <= part.bound.time <= now + CLOCK_SKEW:
            return Outcome.OTHER_TIME
        id = part.bound.id
        if kept == this and self._knows(id):
            return Outcome.ACCEPTED
        if len(self) >= self._parameters.n_max:
            return Outcome.FULL
        # read before it is written into the journal: a report that cannot be read must not keep the
        # identity's right one out
        try:
            held = self._take(part, signed)
        except InvalidInputError:
            return Outcome.UNREADABLE
        # Written before it counts; another process may have taken another report meanwhile. Two
        # identities that work together find two reports of one id with 2^64 hashes. The second
        # would take the place of the first, here or after a restart, and be counted by the verdict
        # on that one.
        names = self._facts.names(id, identity)
        if self._reports is not None:
            self._drop(held)  # it can be read: that is all that it was needed for
            held, is_kept = None, self._reports.put(id, frame, names)
        else:
            is_kept = self._facts.keep_report(names, this)
        if not is_kept:
            return Outcome.SECOND_REPORT
        self._held[id] = held
        return Outcome.ACCEPTED

    def withdraw(self, ids: Iterable[bytes]) -> None:
        """Forget reports, as if they had not come; the same bytes may come again.

        For a group of reports that could not be written, and for one that raised `LostReportError`.

        Raises:
            LocalProtocolError: one of them was checked, and is in a sum.
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
        """Yield held reports a page at a time: ids, and what the check made of each report."""
        size = max(1, min(_READ_AT_ONCE, _READ_BYTES // self._payload_bytes()))
        left = iter(ids)
        while some := list(islice(left, size)):
            with ExitStack() as read:
                yield some, self._page(some, read)

    def _page(self, ids: Sequence[bytes], read: ExitStack) -> list[Any]:
        """Return reports; those that are read for it are wiped at the end of `read`."""
        if self._reports is None:
            return [self._held[id] if id in self._held else self._added[id] for id in ids]
        page = []
        for id, frame in zip(ids, self._reports.frames(ids), strict=True):
            page.append(self._read(id, frame))
            read.callback(self._drop, page[-1])
        return page

    def _read(self, id: bytes, frame: bytes | None) -> Any:
        """Return what the check makes of a frame from the disk.

        Raises:
            LostReportError: it is not the one that was accepted.
        """
        # The check of it counts for these bytes alone: with others the sum would have what nobody
        # looked at.
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
        """Return this server's share of the sum of held reports, without noise.

        `_sum` stays as it is: after a refusal more reports may come.
        """
        total, proof = self._check.nothing(), self._check.proof
        if proof is not None and self._sum is not None:
            self._read_into(total, self._lacking(ids))
            total = proof.less(self._sum, total)
        self._read_into(total, (id for id in ids if id not in self._added))
        return total

    def _copied_sum(self) -> Array:
        """Return a copy of `_sum` to add to; it takes its place when nothing can fail any more."""
        return self._check.nothing() if self._sum is None else self._sum.copy()

    def _lacking(self, ids: Ids) -> list[bytes]:
        """Return the ids whose shares are in `_sum`, and that are not among these."""
        if sum(id in self._added for id in ids) == len(self._added):
            return []
        return [id for id in self._added if id not in ids]

    def _read_into(self, total: Array, ids: Iterable[bytes]) -> None:
        """Add reports to this server's share of a sum, in its place."""
        with closing(self._pages(ids)) as pages:
            for _, held in pages:
                self._add(total, held)

    @abstractmethod
    def _add(self, total: Array, held: Sequence[Any]) -> None:
        """Add reports to this server's share of a sum, in its place."""

    def _is_counted(self, frame: bytes) -> bool:
        """Tell whether a frame is a copy of a report in the batch, or of one a stopped leader held.

        Its sender may have missed the first answer.
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
        """Return the bytes that follow the head of a report."""
        return self._check.part_bytes(self._kind)

    def _unsealed(self, part: Part) -> Part:
        """Return a part as its client signed it; raise RejectedError if it does not open."""
        return part

    @abstractmethod
    def _take(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        """Return what is kept of a report; raise InvalidInputError if it cannot be read."""

    @abstractmethod
    def _drop(self, held: Any) -> None:
        """Wipe what is kept of a report, if it is secret; None: nothing is."""

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
        """Call `reserve`, before noise is drawn and before anything leaves that opens the sum."""
        if self._reserve is not None:
            self._reserve()

    def _drawn(self) -> I64 | None:
        """Return new noise, which is not checked yet, or None where there is none."""
        return None if self._draw is None else self._draw()

    @abstractmethod
    def _close(self, recorded: bytes) -> None:
        """Go on from the batch in the journal: take no more reports, and forget the held ones."""

    def _forget(self, query: bytes, state: BatchState) -> None:
        self._state, self._sum = state, None
        for held in self._held.values():
            self._drop(held)
        for gone in (self._held, self._added, self._out):
            gone.clear()
        self._counted = self._ids_of(query, Kind.QUERY, LEADER)[1]


def _is_signed(part: Part, signed: tuple[bytes, ...]) -> bool:
    """Return whether the client signed its report with these digests."""
    label, bound = Label.TWO_SERVER_REPORT, part.bound
    try:
        verify(bound.identity, part.signature, label, *bound.fields, *signed)
    except RejectedError:
        return False
    return True


class Helper(_Server):
    """The server that holds the seeds of the masks, for one batch.

    Args:
        terms: the parameters of the plan, or, where reports have proofs, its proof.
        rounds: the rounds whose reports are in the batch.
        allow_list: the list whose digest is in the parameters.
        policy: the helper's own.
        journal: the helper's own.
        key: the secret key of `parameters.helper_key`.
        noise: draws int64 [V], within +-parameters.noise, anew at each call: the helper's own
            noise; None where the parameters have none.
        reserve: called before each answer; if it raises, nothing is drawn and nothing leaves.
        noise_source: names the maker of `noise`. The journal keeps it beside the batch, and a
            server of another source does not go on from that journal. `FrequencyServer` names the
            plan.
        reports: the place of the reports until the batch is closed; None: this server holds them in
            memory, and has lost them after a restart.

    A batch of these rounds that the journal keeps is closed: its answer can be had again, and no
    other.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the allow-list, the rounds, the key or the noise do not fit the
            parameters.
        BatchRefusedError: the journal is another server's, keeps this key as that of another plan,
            or has a batch of these rounds with noise of another source.
    """

    _kind = Kind.HELPER_REPORT

    def offer(self) -> bytes:
        """Return the ids of the reports that are held, for the leader.

        More reports may come until a batch is answered.
        """
        return frame_of(Kind.OFFER, self._context, HELPER, encode_ids(self._rounds, self._ids()))

    def _ids(self) -> list[bytes]:
        """Return the ids of all reports that are held, in order."""
        return sorted([*self._held, *self._added])

    def checks(self, ids: Collection[bytes] | None = None) -> list[bytes]:
        """Return the checks of reports that are held, for the leader: frames.

        A report gets the same check whenever it is asked for, also after a restart. There are none
        where reports have no proofs.

        Args:
            ids: up to 4,096 ids that the leader asks for, in any order; those that are not held
                have no check. None: all reports that are held.

        Raises:
            BatchRefusedError: there are more ids.
            LocalProtocolError: the batch is closed, and the keys of its reports are wiped.
            LostReportError: a frame is gone, or is another one.
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
        """Add reports that were read to the sum, those that are not in it."""
        new = [(id, one) for id, one in zip(ids, held, strict=True) if id in self._held]
        total = self._copied_sum()
        self._add(total, [one for _, one in new])
        self._sum = total
        for id, _ in new:
            self._added[id] = self._held.pop(id)

    def _checks_of(self, ids: list[bytes], proof: ReportProof) -> bytes:
        """Return a frame of checks."""
        body = [BATCH.pack(self._rounds[0], self._rounds[-1], len(ids))]
        with closing(self._pages(ids)) as pages:
            for page, held in pages:
                checks = proof.check(held, self._key)
                body += [id + check for id, check in zip(page, checks, strict=True)]
                if self._reports is not None:
                    self._sum_up(page, held)
        return frame_of(Kind.CHECKS, self._context, HELPER, b"".join(body))

    def answer(self, query: bytes) -> bytes:
        """Return the sum of the masks of a batch, once.

        The same query again gets the same bytes, also after a restart.

        Args:
            query: the query of the leader.

        Raises:
            BatchRefusedError: the query is malformed, is of other rounds or other reports than are
                held, has fewer than min_batch or more than n_max reports, overlaps another batch,
                or is a second query; or the answer was recorded with noise of another source.
            LostReportError: a frame is gone, or is another one; nothing was drawn.
            InvalidInputError: the noise that was drawn is of another type or shape, or too large.
            Exception: what `reserve` raised, as it was.
        """
        rounds, ids = self._ids_of(query, Kind.QUERY, LEADER)
        self._check_rounds(rounds)
        # the process that recorded the answer may have had other noise, and other books
        recorded = self._facts.recorded()
        if recorded is None:
            recorded = self._facts.record(query, self._summed(rounds, ids))
        else:
            self._make_reservation()
        self._close(recorded)
        asked, answer = parts_of(recorded, self._answer_bytes)
        # A second batch of the same rounds would differ from the first by few reports: the two sums
        # would show those.
        if asked != query:
            raise BatchRefusedError(
                "this batch was answered; there is no second query, only the same again"
            )
        return answer

    def _summed(self, rounds: range, ids: Ids) -> bytes:
        """Return the answer: new noise less the masks of these reports."""
        self._check_batch(rounds, len(ids))
        unknown = sum(not self._knows(id) for id in ids)
        if unknown:
            raise BatchRefusedError(
                f"{unknown} of {len(ids)} reports of the query are not held here"
            )
        total = self._total_of(ids)
        self._make_reservation()
        # Charged first: noise of a batch that could not be charged would be drawn again later, and
        # two noises for one sum average. The noise is the helper's own, since the leader knows the
        # noise that it drew itself.
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
    """The server that holds the masked vectors, for one batch, and learns the sum.

    Args:
        terms: the parameters of the plan, or, where reports have proofs, its proof.
        rounds: the rounds whose reports are in the batch.
        allow_list: the list whose digest is in the parameters.
        policy: the leader's own.
        journal: the leader's own, which the helper must not see: with what the helper answered it
            gives the sum.
        key: the secret key of `parameters.leader_key`.
        noise: draws int64 [V], within +-parameters.noise, anew at each call: the leader's own
            noise; None where the parameters have none.
        reserve: called before each query, and before an answer is taken; if it raises, nothing is
            drawn and nothing leaves.
        noise_source: names the maker of `noise`. The journal keeps it beside the batch, and a
            server of another source does not go on from that journal. `FrequencyServer` names the
            plan.
        reports: the place of the reports until the batch is closed; None: this server holds them in
            memory, and has lost them after a restart.

    A batch of these rounds that the journal keeps is closed: `resume` asks its query again.

    Raises:
        UnsafeParametersError: the policy refuses the parameters.
        InvalidInputError: the allow-list, the rounds, the key or the noise do not fit the
            parameters.
        BatchRefusedError: the journal is another server's, keeps this key as that of another plan,
            or has a batch of these rounds with noise of another source.
    """

    _kind = Kind.LEADER_REPORT
    _takes_any_entries = False

    def take_any_entries(self) -> None:
        """Refuse no sum for its entries from now on, only for its checksum entries.

        A sum that the leader alone may see exact, and adds noise to later, must be taken whatever
        it is: whether it is refused would be an answer without noise, to clients that lie and to a
        helper that lies.
        """
        self._takes_any_entries = True

    def _payload_bytes(self) -> int:
        return super()._payload_bytes() + OVERHEAD_BYTES

    def _unsealed(self, part: Part) -> Part:
        share = self._key.open(part.payload, Label.TWO_SERVER_SHARE, *part.bound.fields)
        return part._replace(payload=bytes(share.reveal()))

    @property
    def refused(self) -> tuple[Refused, ...]:
        """The reports that `judge` refused, since this server started; once the batch is closed,
        those that were refused before it was, also after a restart. None where reports have no
        proofs.
        """
        return tuple(self._refused)

    def judge(self, checks: bytes) -> None:
        """Find the reports of a frame valid, or refuse them.

        Of a report that is decided another check is not looked at. A report that is not held yet is
        not decided: its check can be asked for again.

        Args:
            checks: one of `Helper.checks`.

        Raises:
            BatchRefusedError: the frame is malformed or of other rounds, or a check cannot be read:
                it is dropped, and nothing of it is decided.
            LocalProtocolError: the batch is closed, or reports have no proofs.
            LostReportError: a frame is gone, or is another one; nothing is decided.
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
        # a report that is decided stays so
        new = {entry[:ID_BYTES]: entry[ID_BYTES:] for entry in entries}
        self._decide({id: check for id, check in new.items() if id in self._held}, proof)

    def _decide(self, checks: dict[bytes, bytes], proof: ReportProof) -> None:
        """Find reports valid and add them to the sum, or refuse them: all of them, or none."""
        total = self._copied_sum()
        decided: list[tuple[bytes, bytes, Verdict]] = []
        with closing(self._pages(list(checks))) as pages:
            for page, shares in pages:
                try:
                    verdicts = proof.decide(shares, [checks[id] for id in page])
                except InvalidInputError as error:
                    raise BatchRefusedError(f"a check cannot be read: {error}") from error
                found = list(zip(page, shares, verdicts, strict=True))
                # What is added is what was judged, and never read again.
                self._add(total, [share for _, share, verdict in found if verdict is Verdict.VALID])
                decided += [(id, share.bound.identity, verdict) for id, share, verdict in found]
        self._sum = total
        for id, identity, verdict in decided:
            held = self._held.pop(id)
            if verdict is Verdict.VALID:
                self._added[id] = held
            else:  # its identity stays taken: a copy of the report changes nothing
                self._out.add(id)
                self._refused.append(Refused(identity, verdict))

    @property
    def unjudged(self) -> int:
        """How many reports are held and wait for their check; 0 where reports have no proofs."""
        return 0 if self._check.proof is None else len(self._held)

    def to_check(self, most: int = CHECKS_OF_A_FRAME) -> list[bytes]:
        """Return ids of reports that wait for their check, to ask `Helper.checks` for them.

        Each call begins with those that were not returned for the longest time. So whoever calls it
        until it has returned `unjudged` ids has asked for all of them, also for those that the
        helper does not know.

        Args:
            most: the largest number of ids, 1 to 4,096.
        """
        most = validate.integer(1, CHECKS_OF_A_FRAME, most=most)
        some = list(islice(self._held, min(self.unjudged, most)))
        for id in some:
            self._held[id] = self._held.pop(id)
        return some

    def stop(self) -> None:
        """Take no more reports, before the helper is asked for its offer.

        Clients send to the helper first. So what the leader has accepted by now is in an offer that
        the helper makes from now on, and no report that both accepted is missed. To stop again, or
        after the query, changes nothing.
        """
        if self._state is BatchState.COLLECTING:
            self._state = BatchState.STOPPED

    def query(self, offer: bytes) -> bytes:
        """Close the batch over the reports that both servers hold; return the query.

        If another process closed the batch of these rounds meanwhile, its query is returned. If
        this raises BatchRefusedError, the leader collects reports again.

        Args:
            offer: the offer of the helper, which it made after the leader stopped.

        Raises:
            BatchRefusedError: the offer is malformed or of other rounds, too few reports are
                common, or a round is in another batch.
            LocalProtocolError: the leader has not stopped, or the batch is closed.
            LostReportError: a frame is gone, or is another one; nothing was drawn, and the leader
                stays stopped.
            InvalidInputError: the noise that was drawn is of another type or shape, or too large.
            Exception: what `reserve` raised, as it was.
        """
        # an offer from before would lack reports that were accepted by both since
        if self._state is BatchState.COLLECTING:
            raise LocalProtocolError(
                "this batch is collecting; stop the leader, then ask the helper for its offer"
            )
        if self._state is not BatchState.STOPPED:
            raise LocalProtocolError(f"this batch is {self._state.value}; a leader asks once")
        try:
            recorded = self._recorded(offer)
        except BatchRefusedError:
            self._state = BatchState.COLLECTING  # more may come
            raise
        self._close(recorded)
        return self._query

    def _recorded(self, offer: bytes) -> bytes:
        """Keep the query of an offer, with this server's share; return what is kept."""
        rounds, offered = self._ids_of(offer, Kind.OFFER, HELPER)
        # only reports that both hold: a mask without its vector, or a vector without its mask,
        # would make the whole sum useless
        ids = Ids.of(id for id in offered if id in self._countable)
        self._check_batch(rounds, len(ids))
        total = self._total_of(ids)
        self._make_reservation()
        share = self._check.message(total, self._drawn())
        query = frame_of(Kind.QUERY, self._context, LEADER, encode_ids(rounds, ids))
        return self._facts.record(query, share + self._named_refused())

    def resume(self) -> bytes:
        """Return the query of the batch once more, after a restart or if it was lost on its way.

        Raises:
            LocalProtocolError: the batch is not closed yet.
        """
        if self._is_open:
            raise LocalProtocolError("this batch is not closed yet; make a query first")
        self._make_reservation()  # after a restart nobody has asked yet
        return self._query

    @property
    def _is_open(self) -> bool:
        """Whether there is no query yet."""
        return self._state in (BatchState.COLLECTING, BatchState.STOPPED)

    def _close(self, recorded: bytes) -> None:
        end = end_of_query(recorded) + self._parameters.packed_bytes
        refused = b"" if self._check.proof is None else recorded[end:]
        # what a helper keeps is longer, and by no whole number of these: then it is refused
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
        """How many reports are in the batch, once it is closed."""
        if self._is_open:
            raise LocalProtocolError("the batch is not closed yet; make a query first")
        return len(self._counted)

    @property
    def total(self) -> I64:
        """The sum that `finish` returned: int64 [V]."""
        if self._state is not BatchState.DONE:
            raise LocalProtocolError(
                f"this batch has no sum: it is {self._state.value}; finish it first"
            )
        return self._total.copy()

    def finish(self, answer: bytes) -> I64:
        """Return the sum of the batch, with the noise of both servers: int64 [V].

        Args:
            answer: the answer of the helper.

        Raises:
            BatchRefusedError: the answer is malformed or for another batch: it is dropped, and the
                right one may follow. Or it differs from the first answer. Or the sum is wrong: a
                checksum entry does not count the reports, or an entry is larger than they can make
                it; then the batch is lost.
            LocalProtocolError: the leader does not wait for an answer.
            Exception: what `reserve` raised, as it was; the same answer may follow.
        """
        if self._state not in (BatchState.WAITING, BatchState.DONE):
            raise LocalProtocolError(f"this batch is {self._state.value}; make a query first")
        most = KEY_BYTES + self._parameters.packed_bytes
        body = body_of(answer, Kind.ANSWER, self._context, HELPER, most)
        if body is None or body[:32] != self._batch:
            raise BatchRefusedError("this is no answer to the query of this batch")
        self._make_reservation()  # a leader that was made of its journal can get here at once
        try:
            total = self._check.whole(self._share, body[32:])
        except InvalidInputError as error:
            raise BatchRefusedError(f"the answer cannot be read: {error}") from error
        # recorded before it is looked into: a helper that could try several answers would learn of
        # the sum from which of them are refused
        self._hear_once(answer)
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

    def _hear_once(self, answer: bytes) -> None:
        heard = hashlib.sha256(answer).digest()
        # The helper forgets how it answered once the sum has landed. So the answer is here before
        # the fact that it was heard, and it is sealed: with the share of the journal it is the sum.
        if self._reports is not None and self._facts.may_hear(heard):
            own = self._key.public
            sealed = seal(own, Secret(answer), Label.TWO_SERVER_ANSWER, *self._facts.range)
            self._reports.keep_answer(sealed)
        if not self._facts.hear(heard):
            raise BatchRefusedError(
                "another answer to this query was heard before; the helper answers once"
            )

    @property
    def kept_answer(self) -> bytes | None:
        """The answer that was heard before a restart, for `finish`; None: ask the helper again."""
        sealed = None if self._reports is None else self._reports.answer()
        if sealed is None:
            return None
        try:
            opened = self._key.open(sealed, Label.TWO_SERVER_ANSWER, *self._facts.range)
        except RejectedError:  # the disk changed it
            return None
        return bytes(opened.reveal())

    def erase(self) -> None:
        """Erase the reports and the answer, after the sum has landed or was lost.

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
        """The reports that may be in the batch."""
        return self._held if self._check.proof is None else self._added

    def _take(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        return self._check.of_leader(part, signed)

    def _add(self, total: Array, held: Sequence[Any]) -> None:
        self._check.add_leader(total, held)

    def _drop(self, held: Any) -> None:
        """Wipe nothing: without its mask, what a leader holds says nothing."""

    def _named_refused(self) -> bytes:
        """Return who was refused, for the entry of the batch: whoever closes it says so."""
        return b"".join(
            _REFUSED.pack(identity, _VERDICTS.index(verdict)) for identity, verdict in self._refused
        )
