"""One cohort, a group of clients: its session from the first message until its sum is added.

A `CohortRun` says which bytes go to which client, takes the bytes that come back, and closes a
phase (a step of the protocol) when its caller says so. It does no I/O: a loop around it carries the
bytes. `carry` and `drive` are such a loop for clients that answer at once, as simulated clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Self

from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import SigningKey
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import STAGES, AbortCode, ServerState, phase
from fedtally.secagg.server import ClientId, Server

LIFETIME = 3600  # how long a session may last, seconds, unless the caller of `begin` says otherwise
SKEW = 300  # how far a client's clock may be behind, seconds: a session is valid from now - SKEW on
RESULT = "result"  # the last stage, in which `outgoing` tells clients how the session ended


class CohortRun:
    """The server's side of one session with one cohort, a group of clients.

    `begin` and `resume` make a run for a round of a `FrequencyServer`. The sum of the cohort is
    added to that round: it *lands*. If the plan has privacy, the sum can be opened only after the
    server's books (`campaign.books.Books`) have charged for the round. A phase ends only when the
    caller calls `deadline_passed`.

    Args:
        session: the server's state machine of the session, new or restored.
        clients: the clients to invite.
        on_done: called with `session` as soon as it has a sum, before any client gets its Result.
            If `session` is restored with its sum, `on_done` is called again, since the earlier
            process may have died during the first call.

    Attributes:
        session: the server's state machine of the session.
    """

    def __init__(
        self,
        session: Server,
        clients: Iterable[ClientId],
        on_done: Callable[[Server], None] | None = None,
    ) -> None:
        self.session, self._invited, self._on_done = session, tuple(clients), on_done
        self._has_landed = False
        self._land()  # a restored session may have its sum already

    @classmethod
    def begin(
        cls,
        server: FrequencyServer,
        round: int,
        clients: Iterable[ClientId],
        *,
        signing_key: SigningKey,
        random: Callable[[int], bytes],
        now: int,
        lifetime: int = LIFETIME,
        session: bytes | None = None,
        allow_list: AllowList | None = None,
        journal: Callable[[bytes], None] | None = None,
        journal_lands: bool = False,
    ) -> Self:
        """Open a new session for a cohort, and return its run.

        Args:
            server: the server of the campaign.
            round: the round to which the sum is added, 0 .. num_rounds - 1.
            clients: the clients to invite, by the names that the transport uses for them.
            signing_key: the private key of the server's public key in the plan.
            random: a cryptographic source; `random(n)` returns n uniform bytes.
            now: the time, Unix seconds.
            lifetime: the seconds after `now` for which the session lasts. A call of
                `deadline_passed` after this time aborts the session, whatever its phase.
            session: the name of the session, 32 uniform bytes never used before; None: `random`
                draws it.
            allow_list: the registered keys of all clients, if the plan's adversary is active.
            journal: called with a checkpoint (the state of the session) when a phase begins, and at
                the end. It must store the checkpoint on the disk before it returns. `resume` needs
                the last checkpoint.
            journal_lands: whether `journal` also adds the sum to the round, when it stores the last
                checkpoint. Otherwise the run adds it.

        Raises:
            InvalidInputError: as for `FrequencyServer.open`.
            Exception: an error that `journal` raised.
        """
        made = server.open(
            round,
            session=random(32) if session is None else session,
            signing_key=signing_key,
            salt=random(32),
            random=random,
            not_before=max(0, now - SKEW),
            not_after=now + lifetime,
            allow_list=allow_list,
            journal=journal,
        )
        return cls(made, clients, _landing(server, journal_lands))

    @classmethod
    def resume(
        cls,
        server: FrequencyServer,
        checkpoint: bytes,
        clients: Iterable[ClientId],
        *,
        random: Callable[[int], bytes],
        allow_list: AllowList | None = None,
        journal: Callable[[bytes], None] | None = None,
        journal_lands: bool = False,
    ) -> Self:
        """Restore the run of a process that died, and return it.

        The run starts again at the beginning of the phase in which the process died. The answers
        that the process received in that phase are lost, and the clients send them again. If the
        checkpoint has a sum that was not added to the round yet, this method adds it. With
        `journal_lands` the caller must add it.

        Args:
            server: the server of the campaign, with the books of the process that died.
            checkpoint: the last checkpoint that the journal wrote.
            clients: the same clients that `begin` got.
            random: the cryptographic source of uniform bytes, as for `begin`.
            allow_list: the registered keys of all clients, if the plan's adversary is active.
            journal: the function that stores checkpoints, as for `begin`.
            journal_lands: whether `journal` also adds the sum to the round, as for `begin`.

        Raises:
            CheckpointError: `checkpoint` is no checkpoint, or was made with another allow-list.
            InvalidInputError: the checkpoint is of another plan; or `server` runs the session
                already; or the session's sum was added to the round, but the checkpoint is older
                than the sum.
            RejectedSumError, LocalProtocolError: the checkpoint has a sum that cannot be added, see
                `FrequencyServer.land`.
            Exception: any error that the books raised.
        """
        session = server.restore(checkpoint, random=random, allow_list=allow_list, journal=journal)
        return cls(session, clients, _landing(server, journal_lands))

    @property
    def done(self) -> bool:
        """Whether the session is over: it has a sum or, if `code` is not None, it was aborted."""
        return self.session.state in (ServerState.DONE, ServerState.ABORTED)

    @property
    def code(self) -> AbortCode | None:
        """The reason why the session was aborted; None if it has a sum, or is not over."""
        return self.session.code

    @property
    def stage(self) -> str:
        """The name of the step that clients take in this phase.

        After the end it is "result", even if the session was aborted and has no sum.
        """
        if self.done:
            return RESULT
        return STAGES[phase(self.session.terms.parameters.adversary, self.session.state).reply]

    def outgoing(self) -> Iterator[tuple[ClientId, bytes]]:
        """Yield each client's name and its bytes in this phase.

        Each call in the same phase yields the same pairs of name and bytes. In the first phase,
        every client to invite gets the Invite. After the end, the bytes say how the session ended.
        If it has a sum, the surviving clients get a Result. If it was aborted, all clients of the
        roster (the clients that answered the Invite in time) get an Abort. If there was no roster
        yet, all clients that had sent their keys get it.
        """
        if self.session.state is ServerState.ADVERTISE:
            return ((client, self.session.invite) for client in self._invited)
        return self.session.outgoing()

    def receive(self, client: ClientId, data: bytes) -> bool:
        """Process a message from a client, and return whether the session uses it.

        No bytes from a client raise an exception.

        Raises:
            LocalProtocolError: `client` is no int or str.
        """
        return self.session.receive(client, data)

    def deadline_passed(self, now: int) -> None:
        """Close the phase, and go on with the clients that have answered.

        After the last phase, the sum is added to its round. If too few clients have answered, or
        the time of the session is over, the session is aborted.

        Args:
            now: the time, Unix seconds.

        Raises:
            LocalProtocolError: the session was over before the call.
            Exception: an error of the books, of the journal or of the source of randomness. It ends
                the session without a sum. Or an error of `on_done`. Then the session has its sum,
                but the sum was not added to the round. The next call tries to add it again. If the
                error was `RejectedSumError`, the next call raises it again.
        """
        # An earlier call may have got the sum and failed to add it. Then there is no phase to
        # close, and this call only adds the sum. Once the sum is added, `close_phase` raises the
        # error of a finished session.
        if self.session.state is not ServerState.DONE or self._has_landed:
            self.session.close_phase(now)
        self._land()

    def _land(self) -> None:
        if self.session.state is ServerState.DONE:
            if self._on_done is not None:
                self._on_done(self.session)
            self._has_landed = True


def _landing(server: FrequencyServer, journal_lands: bool) -> Callable[[Server], None] | None:
    """Return the function that adds a session's sum to its round, or None if the journal does."""
    if journal_lands:
        return None

    # The check is needed, since the sum of a restored session may have been added already, and
    # `FrequencyServer.land` refuses to add it twice.
    def land(session: Server) -> None:
        if not server.has_landed(session.session):
            server.land(session)

    return land


Ask = Callable[[ClientId, bytes], bytes | None]
Meter = Callable[[], AbstractContextManager[object]]


def carry(run: CohortRun, ask: Ask, *, batch: int = 1, meter: Meter = nullcontext) -> None:
    """Carry the messages of one phase to the clients, and their answers back.

    The phase is not closed.

    Args:
        run: the run of the cohort.
        ask: brings bytes to a client and returns its answer, or None if it does not answer.
        batch: how many messages are delivered before the run receives their answers.
        meter: makes a context manager around the server's work, for instance to add up its CPU
            time.
    """
    frames = run.outgoing()
    while True:
        # `outgoing` makes each message only when `islice` asks for it: this is the server's work
        with meter():
            asked = list(islice(frames, batch))
        if not asked:
            return
        # This line is outside of the meter, since the clients do this work.
        answers = [(client, ask(client, frame)) for client, frame in asked]
        with meter():
            for client, answer in answers:
                if answer is not None:
                    run.receive(client, answer)


def drive(
    run: CohortRun, ask: Ask, now: int, *, batch: int = 1, meter: Meter = nullcontext
) -> None:
    """Carry the messages of a run and close its phases until the session is over.

    Afterwards the caller must deliver the last messages, from `run.outgoing`.

    Args:
        run: the run of the cohort.
        ask: brings bytes to a client and returns its answer, or None if it does not answer.
        now: the time that each call of `deadline_passed` gets, Unix seconds.
        batch: how many messages are delivered before the run receives their answers.
        meter: makes a context manager around the server's work, for instance to add up its CPU
            time.
    """
    while not run.done:
        carry(run, ask, batch=batch, meter=meter)
        with meter():
            run.deadline_passed(now)
