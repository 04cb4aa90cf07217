"""Name and encode the entries of one batch in the journal of a server.

An entry is never changed or removed. So these rules hold for ever. An identity is a client's public
key; an id is the name of a report; a range is the rounds of one batch:

1. An identity has one report in a range of rounds, and an id names one report.
2. A round belongs to one range, and a range has one batch: a report is in at most one batch.
3. A batch has noise from one source.
4. A leader accepts one answer of the helper.
"""

from __future__ import annotations

import struct

from fedtally.secagg.two_server.journal import Journal
from fedtally.secagg.two_server.reports import BatchRefusedError, shown

_RANGE = struct.Struct("<II")  # first and last round
_LENGTH = struct.Struct("<I")


class BatchFacts:
    """Read and write the entries of one batch in the journal of a server.

    Args:
        journal: the journal of the server.
        context: the digest of the parameters, 32 bytes; every message and key is bound to it.
        rounds: the rounds whose reports are in the batch.
        noise_source: a name, as bytes, for the origin of the server's noise; see `Helper`.

    Attributes:
        range: two pieces of bytes that are in the name of most entries: the context, 32 bytes; and
            the first and the last round, encoded in 8 bytes.
    """

    def __init__(
        self, journal: Journal, context: bytes, rounds: range, noise_source: bytes
    ) -> None:
        self._journal, self._context, self._rounds = journal, context, rounds
        self._noise_source = noise_source
        self.range = (context, _RANGE.pack(rounds[0], rounds[-1]))

    def check_key(self, public: bytes) -> None:
        """Record the server's public key for this context; refuse a key that another context has.

        Args:
            public: the server's public key, 32 bytes.

        Raises:
            BatchRefusedError: the journal has this key for another context.
        """
        # A key is destroyed after the last sum of its plan, so that nobody can read the plan's
        # reports later. A key of two plans could not be destroyed while one of them still needs it.
        if self._journal.keep(b"key" + public, self._context) != self._context:
            raise BatchRefusedError(
                "this journal keeps this key as that of another plan: make new keys for each plan"
                " (fedtally keys new), and destroy them after its last sum (fedtally keys retire)"
            )

    # ---- reports ----

    def names(self, id: bytes, identity: bytes) -> tuple[bytes, bytes]:
        """Return the two names under which the journal has the digest of a report.

        The first name is made from the id, and the second one from the identity.

        Args:
            id: the id of the report, 16 bytes.
            identity: the public key of its client, 32 bytes.
        """
        return self._of_id(id), self._of_identity(identity)

    def report_of(self, identity: bytes) -> bytes | None:
        """Return the recorded SHA-256 of a client's report for these rounds; None: there is none.

        Args:
            identity: the client's public key, 32 bytes.
        """
        return self._journal.kept(self._of_identity(identity))

    def report(self, id: bytes) -> bytes | None:
        """Return the recorded SHA-256 of the report with this id; None: nothing is recorded."""
        return self._journal.kept(self._of_id(id))

    def keep_report(self, names: tuple[bytes, bytes], digest: bytes) -> bool:
        """Record the SHA-256 of a report under its two names, where they have no value yet.

        Args:
            names: the names from `names`.
            digest: the SHA-256 of the report's frame, 32 bytes.

        Returns:
            Whether the journal has this digest under both names now. If False, the call may still
            have written the digest under the first name.
        """
        return all(self._journal.keep(name, digest) == digest for name in names)

    def _of_identity(self, identity: bytes) -> bytes:
        return b"report" + b"".join(self.range) + identity

    def _of_id(self, id: bytes) -> bytes:
        return b"id" + b"".join(self.range) + id

    # ---- the batch ----

    @property
    def _batch(self) -> bytes:
        return b"batch" + b"".join(self.range)

    @property
    def _noise(self) -> bytes:
        return b"noise" + b"".join(self.range)

    def recorded(self) -> bytes | None:
        """Return the entry of the batch, or None if the batch is still open.

        The entry has the query and this server's message; see `parts_of`.

        Raises:
            BatchRefusedError: the batch has noise from another source.
        """
        entry = self._journal.kept(self._batch)
        if entry is not None:
            self._check_noise_source(self._journal.kept(self._noise))
        return entry

    def claim(self) -> None:
        """Record that the rounds are in this range, and where the batch's noise comes from.

        Call it before the batch is charged, so that a batch that is refused here costs nothing.

        Raises:
            BatchRefusedError: a round is in another batch, or the batch has noise from another
                source. What the call wrote before the error stays, such as earlier rounds of this
                range.
        """
        own = self.range[1]
        for round in self._rounds:
            kept = self._journal.keep(b"round" + self._context + _LENGTH.pack(round), own)
            if kept != own:
                first, last = _RANGE.unpack(kept)
                raise BatchRefusedError(
                    f"round {round} is in a batch of rounds {shown(range(first, last + 1))}"
                )
        self._check_noise_source(self._journal.keep(self._noise, self._noise_source))

    def record(self, query: bytes, message: bytes) -> bytes:
        """Close the batch: record the query and this server's message; return the entry.

        There is one entry for these rounds. If an entry was recorded before, also by another
        process, nothing is changed and the result is that entry.

        Args:
            query: the leader's query, a frame.
            message: a helper's answer; or a leader's share of the sum and the refused reports.

        Raises:
            BatchRefusedError: as for `claim`.
        """
        self.claim()  # also here, so that no caller can leave it out
        entry = b"".join((_LENGTH.pack(len(query)), query, message))
        return self._journal.keep(self._batch, entry)

    def _check_noise_source(self, kept: bytes | None) -> None:
        """Refuse the batch unless the recorded source of its noise is this server's source.

        Args:
            kept: the recorded name of the source; None: no name is recorded.

        Raises:
            BatchRefusedError: `kept` is not the name of this server's source.
        """
        # A source with a different name may have drawn no noise. The sum would then be published as
        # a sum with noise.
        if kept != self._noise_source:
            raise BatchRefusedError(
                f"the batch of rounds {shown(self._rounds)} in this journal has noise of another"
                " source, or of none: its sum is not one of the plan"
            )

    # ---- the answer ----

    @property
    def _answer(self) -> bytes:
        return b"answer" + b"".join(self.range)

    def check_first(self, digest: bytes) -> None:
        """Refuse an answer if a different one is recorded.

        Args:
            digest: the SHA-256 of the answer, 32 bytes.

        Raises:
            BatchRefusedError: another answer is recorded.
        """
        if self._journal.kept(self._answer) not in (None, digest):
            raise _second_answer()

    def hear(self, digest: bytes) -> None:
        """Record the answer that the leader accepts.

        Args:
            digest: the SHA-256 of the answer, 32 bytes.

        Raises:
            BatchRefusedError: another answer is recorded.
        """
        if self._journal.keep(self._answer, digest) != digest:
            raise _second_answer()


def end_of_query(entry: bytes) -> int:
    """Return the offset, in bytes, of the server's message in a batch's entry.

    Before the message are the length of the query, and the query.

    Args:
        entry: the entry of a closed batch, from `BatchFacts.record`.
    """
    return _LENGTH.size + int.from_bytes(entry[: _LENGTH.size], "little")


def parts_of(entry: bytes, size: int) -> tuple[bytes, bytes]:
    """Split the entry of a closed batch into the query and the server's message.

    Args:
        entry: the entry of a closed batch, from `BatchFacts.record`.
        size: the number of bytes that the message must have.

    Raises:
        BatchRefusedError: the message does not have `size` bytes: the journal is of the other
            server.
    """
    end = end_of_query(entry)
    query, message = entry[_LENGTH.size : end], entry[end:]
    if len(message) != size:
        raise BatchRefusedError(
            "the journal keeps the batch of another server; each server has its own journal"
        )
    return query, message


def _second_answer() -> BatchRefusedError:
    return BatchRefusedError(
        "another answer to this query was heard before; the helper answers once"
    )
