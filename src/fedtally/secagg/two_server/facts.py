"""What the journal of a server keeps of one batch: the names, and what stands under them for ever.

1. An identity has one report in a range of rounds, and an id names one report.
2. A round belongs to one range for ever, and a range has one batch: a report is in one at most.
3. A batch has noise of one source.
4. A helper's answer is heard once.
"""

from __future__ import annotations

import struct

from fedtally.secagg.two_server.journal import Journal
from fedtally.secagg.two_server.reports import BatchRefusedError, shown

_RANGE = struct.Struct("<II")  # first and last round
_LENGTH = struct.Struct("<I")


class BatchFacts:
    """The facts of one batch.

    Args:
        journal: the journal of the server.
        context: the digest that binds every message.
        rounds: the rounds whose reports are in the batch.
        noise_source: the name of the maker of the server's noise.

    Attributes:
        range: the context, and the first and last round.
    """

    def __init__(
        self, journal: Journal, context: bytes, rounds: range, noise_source: bytes
    ) -> None:
        self._journal, self._context, self._rounds = journal, context, rounds
        self._noise_source = noise_source
        self.range = (context, _RANGE.pack(rounds[0], rounds[-1]))

    def check_key(self, public: bytes) -> None:
        """Refuse a key that the journal keeps as that of another plan."""
        # A key is destroyed after the last sum of its plan, so that nobody reads its reports later;
        # one that another plan still needs would stay.
        if self._journal.keep(b"key" + public, self._context) != self._context:
            raise BatchRefusedError(
                "this journal keeps this key as that of another plan: make new keys for each plan"
                " (fedtally keys new), and destroy them after its last sum (fedtally keys retire)"
            )

    # ---- reports ----

    def names(self, id: bytes, identity: bytes) -> tuple[bytes, bytes]:
        """Return the names under which the digest of a report is kept."""
        return self._of_id(id), self._of_identity(identity)

    def report_of(self, identity: bytes) -> bytes | None:
        """Return the SHA-256 of the report of an identity; None: it has none."""
        return self._journal.kept(self._of_identity(identity))

    def report(self, id: bytes) -> bytes | None:
        """Return the SHA-256 of the report of an id; None: there is none."""
        return self._journal.kept(self._of_id(id))

    def keep_report(self, names: tuple[bytes, bytes], digest: bytes) -> bool:
        """Keep the SHA-256 of a report under its names; return whether it is the one kept there."""
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
        """Return the entry of the batch, which was closed before; None: it is open.

        Raises:
            BatchRefusedError: the batch has noise of another source.
        """
        entry = self._journal.kept(self._batch)
        if entry is not None:
            self._check_noise_source(self._journal.kept(self._noise))
        return entry

    def record(self, query: bytes, message: bytes) -> bytes:
        """Keep a query with its message, once for these rounds; return the entry that is kept.

        Another process may have kept its own first.

        Raises:
            BatchRefusedError: a round is in another batch, or the batch has noise of another
                source.
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
        entry = b"".join((_LENGTH.pack(len(query)), query, message))
        return self._journal.keep(self._batch, entry)

    def _check_noise_source(self, kept: bytes | None) -> None:
        """Refuse a batch whose noise another kind of caller drew."""
        # It may have drawn none, and the sum would be marked as noised all the same
        if kept != self._noise_source:
            raise BatchRefusedError(
                f"the batch of rounds {shown(self._rounds)} in this journal has noise of another"
                " source, or of none: its sum is not one of the plan"
            )

    # ---- the answer ----

    @property
    def _answer(self) -> bytes:
        return b"answer" + b"".join(self.range)

    def may_hear(self, digest: bytes) -> bool:
        """Tell whether no other answer than the one with this SHA-256 was heard."""
        return self._journal.kept(self._answer) in (None, digest)

    def hear(self, digest: bytes) -> bool:
        """Keep the SHA-256 of an answer; return whether it is the one that is kept."""
        return self._journal.keep(self._answer, digest) == digest


def end_of_query(entry: bytes) -> int:
    """Return where the query of a recorded batch ends; its message follows."""
    return _LENGTH.size + int.from_bytes(entry[: _LENGTH.size], "little")


def parts_of(entry: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the query of a recorded batch, and its message of `size` bytes."""
    end = end_of_query(entry)
    query, message = entry[_LENGTH.size : end], entry[end:]
    if len(message) != size:
        raise BatchRefusedError(
            "the journal keeps the batch of another server; each server has its own journal"
        )
    return query, message
