"""The two servers: each collects the reports of one batch; together they open its sum, once."""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, StrEnum
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto.hpke import OVERHEAD_BYTES, PrivateKey
from fedtally.crypto.keys import KEY_BYTES, Label, RejectedError, verify
from fedtally.errors import InvalidInputError
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server.checks import Check, check_of
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
_NUMBERS = struct.Struct("<II")  # first and last round
_LENGTH = struct.Struct("<I")
CLOCK_SKEW = 3_600  # seconds that a client's clock may be ahead of a server's
CHECKS_OF_A_FRAME = 4096
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


class Journal(Protocol):
    """The facts that a server must never forget: values under names, each written once for ever.

    Each server has its own, and all its batches share it. A restart, a second process or a restored
    backup must not make it forget: the sums of two batches that overlap give their difference away,
    and two noises for one sum average. docs/protocol_two_server.md lists the names, and before
    which message each is written.
    """

    def kept(self, name: bytes) -> bytes | None:
        """Return what is kept under a name, or None."""

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Keep a value under a name, unless one is kept there; return the one that is kept.

        It is one transaction, on disk before the call returns: of two processes that keep at once,
        both get the value of one. After an error the caller does not know whether the value was
        kept, and sends nothing.
        """


class MemoryJournal:
    """A journal that ends with the process: for simulation and tests alone."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def kept(self, name: bytes) -> bytes | None:
        """Return what is kept under a name, or None."""
        return self._values.get(name)

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Keep a value under a name, unless one is kept there; return the one that is kept."""
        return self._values.setdefault(name, value)


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
        self._allow_list, self._journal, self._draw = allow_list, journal, noise
        self._reserve, self._noise_source = reserve, noise_source
        self._state = BatchState.COLLECTING
        self._identities: set[bytes] = set()  # whose report is held
        self._held: dict[bytes, Any] = {}  # by id; what its check made of a report
        self._valid: set[bytes] = set()  # of a leader: ids that were found valid
        self._refused: list[Refused] = []  # of a leader
        self._counted: frozenset[bytes] = (
            frozenset()
        )  # ids of the closed batch, or of a stopped leader
        # A key is destroyed after the last sum of its plan, so that nobody reads its reports later;
        # one that another plan still needs would stay.
        if journal.keep(b"key" + key.public, self._context) != self._context:
            raise BatchRefusedError(
                "this journal keeps this key as that of another plan: make new keys for each plan"
                " (fedtally keys new), and destroy them after its last sum (fedtally keys retire)"
            )
        # A batch that was closed before a restart stays closed: a second one over other reports
        # would give the difference of the two sums away.
        recorded = journal.kept(self._name_of_batch(rounds))
        if recorded is not None:
            self._check_noise_source(journal.kept(self._name_of_noise()))
            self._close(recorded)

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

    def __getstate__(self) -> None:
        raise InvalidInputError(
            "the state of a server of a batch cannot be copied or pickled: two could open two sums"
            " that differ by one client; a batch that was recorded goes on from its journal"
        )

    def __len__(self) -> int:
        return len(self._held)

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
        name, this = self._name_of_report(identity), hashlib.sha256(frame).digest()
        kept = self._journal.kept(name)
        if kept not in (None, this):
            return Outcome.SECOND_REPORT
        # what the journal keeps came in time, and may come again after a restart
        if kept is None and not now - self._max_age <= part.bound.time <= now + CLOCK_SKEW:
            return Outcome.OTHER_TIME
        if identity in self._identities:
            return Outcome.ACCEPTED
        if len(self) == self._parameters.n_max:
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
        id = part.bound.id
        if any(self._journal.keep(one, this) != this for one in (self._name_of_id(id), name)):
            return Outcome.SECOND_REPORT
        self._held[id] = held
        self._identities.add(identity)
        return Outcome.ACCEPTED

    def _is_counted(self, frame: bytes) -> bool:
        """Tell whether a frame is a copy of a report in the batch, or of one a stopped leader held.

        Its sender may have missed the first answer.
        """
        part = self._parse(frame)
        if part is None or part.bound.id not in self._counted:
            return False
        return (
            self._journal.kept(self._name_of_report(part.bound.identity))
            == hashlib.sha256(frame).digest()
        )

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
        """Wipe what is kept of a report, if it is secret."""

    def _ids_of(self, frame: bytes, kind: Kind, sender: int) -> tuple[range, list[bytes]]:
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

    # ---- what the journal keeps ----

    def _name_of_noise(self) -> bytes:
        return b"noise" + self._context + _NUMBERS.pack(self._rounds[0], self._rounds[-1])

    def _check_noise_source(self, kept: bytes | None) -> None:
        """Refuse a batch whose noise another kind of caller drew."""
        # It may have drawn none, and the sum would be marked as noised all the same
        if kept != self._noise_source:
            raise BatchRefusedError(
                f"the batch of rounds {shown(self._rounds)} in this journal has noise of another"
                " source, or of none: its sum is not one of the plan"
            )

    def _name_of_batch(self, rounds: range) -> bytes:
        return b"batch" + self._context + _NUMBERS.pack(rounds[0], rounds[-1])

    def _name_of_report(self, identity: bytes) -> bytes:
        return (
            b"report" + self._context + _NUMBERS.pack(self._rounds[0], self._rounds[-1]) + identity
        )

    def _name_of_id(self, id: bytes) -> bytes:
        return b"id" + self._context + _NUMBERS.pack(self._rounds[0], self._rounds[-1]) + id

    def _record(self, query: bytes, message: bytes) -> bytes:
        """Keep a query with its message, once for these rounds; return what is kept.

        Another process may have kept its own first. A round belongs to one range for ever, and a
        range has one batch: so a report is in one batch at most.

        Raises:
            BatchRefusedError: a round is in another batch, or the batch has noise of another
                source.
        """
        own = _NUMBERS.pack(self._rounds[0], self._rounds[-1])
        for round in self._rounds:
            kept = self._journal.keep(b"round" + self._context + _LENGTH.pack(round), own)
            if kept != own:
                first, last = _NUMBERS.unpack(kept)
                raise BatchRefusedError(
                    f"round {round} is in a batch of rounds {shown(range(first, last + 1))}"
                )
        self._check_noise_source(self._journal.keep(self._name_of_noise(), self._noise_source))
        entry = _LENGTH.pack(len(query)) + query + message
        return self._journal.keep(self._name_of_batch(self._rounds), entry)

    @abstractmethod
    def _close(self, recorded: bytes) -> None:
        """Go on from the batch in the journal: take no more reports, and forget the held ones."""

    def _forget(self, query: bytes, state: BatchState) -> None:
        self._state = state
        self._counted = frozenset(self._ids_of(query, Kind.QUERY, LEADER)[1])
        for held in self._held.values():
            self._drop(held)
        self._held.clear()
        self._identities.clear()


def _is_signed(part: Part, signed: tuple[bytes, ...]) -> bool:
    """Return whether the client signed its report with these digests."""
    label, bound = Label.TWO_SERVER_REPORT, part.bound
    try:
        verify(bound.identity, part.signature, label, *bound.fields, *signed)
    except RejectedError:
        return False
    return True


def end_of_query(entry: bytes) -> int:
    """Return where the query of a recorded batch ends; its message follows."""
    return _LENGTH.size + int.from_bytes(entry[: _LENGTH.size], "little")


def _parts(entry: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the query of a recorded batch, and its message of so many bytes."""
    end = end_of_query(entry)
    query, message = entry[_LENGTH.size : end], entry[end:]
    if len(message) != size:
        raise BatchRefusedError(
            "the journal keeps the batch of another server; each server has its own journal"
        )
    return query, message


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
        return frame_of(
            Kind.OFFER, self._context, HELPER, encode_ids(self._rounds, sorted(self._held))
        )

    def checks(self) -> list[bytes]:
        """Return the checks of all reports that are held, for the leader: frames.

        A report gets the same check whenever it is asked for, also after a restart. There are none
        where reports have no proofs.

        Raises:
            LocalProtocolError: the batch is closed, and the keys of its reports are wiped.
        """
        if (proof := self._check.proof) is None:
            return []
        if self._state is not BatchState.COLLECTING:
            raise LocalProtocolError(
                f"this batch is {self._state.value}; reports are checked before it is answered"
            )
        ids, frames = sorted(self._held), []
        for start in range(0, len(ids), CHECKS_OF_A_FRAME):
            some = ids[start : start + CHECKS_OF_A_FRAME]
            checks = proof.check([self._held[id] for id in some], self._key)
            body = BATCH.pack(self._rounds[0], self._rounds[-1], len(some))
            body += b"".join(id + check for id, check in zip(some, checks, strict=True))
            frames.append(frame_of(Kind.CHECKS, self._context, HELPER, body))
        return frames

    def answer(self, query: bytes) -> bytes:
        """Return the sum of the masks of a batch, once.

        The same query again gets the same bytes, also after a restart.

        Args:
            query: the query of the leader.

        Raises:
            BatchRefusedError: the query is malformed, is of other rounds or other reports than are
                held, has fewer than min_batch or more than n_max reports, overlaps another batch,
                or is a second query; or the answer was recorded with noise of another source.
            InvalidInputError: the noise that was drawn is of another type or shape, or too large.
            Exception: what `reserve` raised, as it was.
        """
        rounds, ids = self._ids_of(query, Kind.QUERY, LEADER)
        self._check_rounds(rounds)
        recorded = self._journal.kept(self._name_of_batch(rounds))
        if recorded is None:
            recorded = self._record(query, self._summed(rounds, ids))
        else:
            # the process that recorded the answer may have had other noise, and other books
            self._check_noise_source(self._journal.kept(self._name_of_noise()))
            self._make_reservation()
        self._close(recorded)
        asked, answer = _parts(recorded, self._answer_bytes)
        # A second batch of the same rounds would differ from the first by few reports: the two sums
        # would show those.
        if asked != query:
            raise BatchRefusedError(
                "this batch was answered; there is no second query, only the same again"
            )
        return answer

    def _summed(self, rounds: range, ids: list[bytes]) -> bytes:
        """Return the answer: new noise less the masks of these reports."""
        self._check_batch(rounds, len(ids))
        unknown = sum(id not in self._held for id in ids)
        if unknown:
            raise BatchRefusedError(
                f"{unknown} of {len(ids)} reports of the query are not held here"
            )
        self._make_reservation()
        # Charged first: noise of a batch that could not be charged would be drawn again later, and
        # two noises for one sum average. The noise is the helper's own, since the leader knows the
        # noise that it drew itself.
        batch = name_of_batch(self._context, rounds, ids)
        share = self._check.helper_sum([self._held[id] for id in ids], self._drawn())
        return frame_of(Kind.ANSWER, self._context, HELPER, batch + share)

    @property
    def _answer_bytes(self) -> int:
        return HEADER.size + KEY_BYTES + self._parameters.packed_bytes

    def _close(self, recorded: bytes) -> None:
        query, _ = _parts(recorded, self._answer_bytes)
        self._forget(query, BatchState.DONE)

    def _take(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        return self._check.of_helper(part, signed, self._key)

    def _drop(self, held: Any) -> None:
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
        new = {
            id: entry[ID_BYTES:]
            for id, entry in zip(ids, entries, strict=True)
            if id in self._held and id not in self._valid
        }
        try:
            verdicts = proof.decide([self._held[id] for id in new], list(new.values()))
        except InvalidInputError as error:
            raise BatchRefusedError(f"a check cannot be read: {error}") from error
        for id, verdict in zip(new, verdicts, strict=True):
            if verdict is Verdict.VALID:
                self._valid.add(id)
            else:  # its identity stays taken: a copy of the report changes nothing
                self._refused.append(Refused(self._held.pop(id).bound.identity, verdict))

    def stop(self) -> None:
        """Take no more reports, before the helper is asked for its offer.

        Clients send to the helper first. So what the leader has accepted by now is in an offer that
        the helper makes from now on, and no report that both accepted is missed. To stop again, or
        after the query, changes nothing.
        """
        if self._state is BatchState.COLLECTING:
            self._state = BatchState.STOPPED
            self._counted = frozenset(self._held)  # copies of these are still accepted

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
            rounds, offered = self._ids_of(offer, Kind.OFFER, HELPER)
            # only reports that both hold: a mask without its vector, or a vector without its mask,
            # would make the whole sum useless
            ids = [id for id in offered if self._may_count(id)]
            self._check_batch(rounds, len(ids))
            self._make_reservation()
            share = self._check.leader_sum([self._held[id] for id in ids], self._drawn())
            query = frame_of(Kind.QUERY, self._context, LEADER, encode_ids(rounds, ids))
            recorded = self._record(query, share)
        except BatchRefusedError:
            self._state = BatchState.COLLECTING  # more may come
            raise
        self._close(recorded)
        return self._query

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
        self._query, self._share = _parts(own, self._parameters.packed_bytes)
        self._refused = [
            Refused(identity, _VERDICTS[verdict])
            for identity, verdict in _REFUSED.iter_unpack(refused)
        ]
        self._forget(self._query, BatchState.WAITING)
        self._batch = name_of_batch(self._context, self._rounds, sorted(self._counted))

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
        name = b"answer" + self._context + _NUMBERS.pack(self._rounds[0], self._rounds[-1])
        heard = hashlib.sha256(answer).digest()
        if self._journal.keep(name, heard) != heard:
            raise BatchRefusedError(
                "another answer to this query was heard before; the helper answers once"
            )

    def _may_count(self, id: bytes) -> bool:
        """Return whether a report may be in the batch."""
        if self._check.proof is None:
            return id in self._held
        return id in self._valid

    def _take(self, part: Part, signed: tuple[bytes, ...]) -> Any:
        return self._check.of_leader(part, signed)

    def _drop(self, held: Any) -> None:
        """Wipe nothing: without its mask, what a leader holds says nothing."""

    def _record(self, query: bytes, message: bytes) -> bytes:
        # in the entry of the batch: of two processes the one that closes it says who was refused
        refused = (
            _REFUSED.pack(identity, _VERDICTS.index(verdict)) for identity, verdict in self._refused
        )
        return super()._record(query, message + b"".join(refused))
