"""One cohort, from its Invite (the first message) to the landing of its sum. Sans-IO.

A `CohortRun` says which bytes go to which client, takes the bytes that come back, and closes a
phase when its caller says so. A loop around it carries the bytes. `carry` and `drive` are such a
loop for clients that answer at once, as simulated clients do.
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

LIFETIME = 3600  # seconds that a session may last unless its opener says otherwise
SKEW = 300  # seconds that a client's clock may be behind: a session is valid from now - SKEW on
RESULT = "result"  # the last stage, in which clients hear how the session ended (`outgoing`)


class CohortRun:
    """The server's side of one cohort.

    `begin` and `resume` make a run for a round of a `FrequencyServer`. The run's sum lands in that
    round. If the plan has privacy, the sum can be opened only after the server's books
    (`campaign.books.Books`) have reserved the release of the round. A phase ends only when the
    caller calls `deadline_passed`.

    Args:
        session: the server's state machine of the session, new or restored.
        clients: the clients to invite.
        on_done: called with the session as soon as it has a sum, before any client is told. If a
            session is restored with its sum, `on_done` is called again, since the process may have
            died before the first call ended.

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
        """Return a new run, whose sum lands in a round of the server's plan.

        Args:
            server: the server of the campaign.
            round: 0 .. num_rounds - 1.
            clients: the clients to invite, by the names that the transport has for them.
            signing_key: the key that the plan names.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.
            now: the time, Unix seconds.
            lifetime: the seconds after `now` for which the session lasts. A call of
                `deadline_passed` after this time aborts the session, whatever its phase.
            session: the name of the session, 32 uniform bytes never used before; None: it is drawn.
            allow_list: the registered identities, if the plan's adversary is active.
            journal: writes a checkpoint durably before it returns; `resume` needs the last one.
            journal_lands: whether `journal` lands the sum, together with the last checkpoint.

        Raises:
            InvalidInputError: as for `FrequencyServer.open`.
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
        that the process had received in that phase are lost; the clients send them again. If the
        checkpoint holds a sum that has not landed, the sum lands now. With `journal_lands` the
        caller must land it.

        Args:
            server: the server of the campaign, with the books of the process that died.
            checkpoint: the last checkpoint that the journal wrote.
            clients: the same clients that `begin` got.
            random: the cryptographic source of uniform bytes, as for `begin`.
            allow_list: the registered identities, if the plan's adversary is active.
            journal: the durable writer of checkpoints, as for `begin`.
            journal_lands: whether `journal` lands the sum, together with the last checkpoint.

        Raises:
            UnreadableFileError: the bytes are no checkpoint, or a checkpoint of another allow-list.
            InvalidInputError: the checkpoint is of another plan, or older than a sum that has
                landed, or this process runs the session already.
            RejectedSumError, LocalProtocolError: the checkpoint holds a sum that cannot land.
            Exception: an error of the books.
        """
        session = server.restore(checkpoint, random=random, allow_list=allow_list, journal=journal)
        return cls(session, clients, _landing(server, journal_lands))

    @property
    def done(self) -> bool:
        """Whether the session has ended, with a sum or, if `code` is not None, without one."""
        return self.session.state in (ServerState.DONE, ServerState.ABORTED)

    @property
    def code(self) -> AbortCode | None:
        """The reason why the session aborted; None: it has a sum, or still runs."""
        return self.session.code

    @property
    def stage(self) -> str:
        """The name of the step that clients must do in this phase; "result" after the end."""
        if self.done:
            return RESULT
        return STAGES[phase(self.session.terms.parameters.adversary, self.session.state).reply]

    def outgoing(self) -> Iterator[tuple[ClientId, bytes]]:
        """Yield each client and its bytes in this phase, the same at each call.

        After the end, the bytes say how the session ended. If it has a sum, the surviving clients
        get a Result. If it aborted, all clients of the roster get an Abort; if there was no roster
        yet, all clients that had advertised their keys get it.
        """
        if self.session.state is ServerState.ADVERTISE:
            return ((client, self.session.invite) for client in self._invited)
        return self.session.outgoing()

    def receive(self, client: ClientId, data: bytes) -> bool:
        """Process a message from a client, and return whether it counts.

        Bytes that a client sends never raise an exception.
        """
        return self.session.receive(client, data)

    def deadline_passed(self, now: int) -> None:
        """Close the phase: go on with those who have answered, land the sum, or abort.

        Args:
            now: the time, Unix seconds.

        Raises:
            LocalProtocolError: the session has ended.
            Exception: an error of the books, of the journal or of the source of randomness, which
                ends the session without a sum. Or an error of `on_done`: then the sum has not
                landed, and the next call tries again. A sum that was refused (`RejectedSumError`)
                is refused again.
        """
        # If an earlier call got the sum but could not land it, there is no phase to close, and this
        # call only lands the sum. A call after that reaches `close_phase`, which raises an error.
        if self.session.state is not ServerState.DONE or self._has_landed:
            self.session.close_phase(now)
        self._land()

    def _land(self) -> None:
        if self.session.state is ServerState.DONE:
            if self._on_done is not None:
                self._on_done(self.session)
            self._has_landed = True


def _landing(server: FrequencyServer, journal_lands: bool) -> Callable[[Server], None] | None:
    """Return the function that lands a session's sum; None: the journal lands it."""
    if journal_lands:
        return None

    # The sum of a restored session may have landed already, and landing twice is an error.
    def land(session: Server) -> None:
        if not server.has_landed(session.session):
            server.land(session)

    return land


Ask = Callable[[ClientId, bytes], bytes | None]
Meter = Callable[[], AbstractContextManager[object]]


def carry(run: CohortRun, ask: Ask, *, batch: int = 1, meter: Meter = nullcontext) -> None:
    """Carry the messages of one phase to the clients and their answers back; close no phase.

    Args:
        run: the run of the cohort.
        ask: delivers a client's bytes, and returns its answer; None: there is no answer.
        batch: the number of messages that are delivered before the run receives the answers.
        meter: makes a context manager for the server's work, such as one that adds up its CPU time.
    """
    frames = run.outgoing()
    while True:
        with meter():  # `outgoing` makes messages lazily, so this is the server's work
            asked = list(islice(frames, batch))
        if not asked:
            return
        # outside of the meter: the clients' work is not the server's time
        answers = [(client, ask(client, frame)) for client, frame in asked]
        with meter():
            for client, answer in answers:
                if answer is not None:
                    run.receive(client, answer)


def drive(
    run: CohortRun, ask: Ask, now: int, *, batch: int = 1, meter: Meter = nullcontext
) -> None:
    """Carry messages and close phases until a run is done.

    Afterwards `run.outgoing` gives the last messages, which the caller must deliver.

    Args:
        run: the run of the cohort.
        ask: delivers a client's bytes, and returns its answer; None: there is no answer.
        now: the time that every call of `deadline_passed` gets, Unix seconds.
        batch: the number of messages that are delivered before the run receives the answers.
        meter: makes a context manager for the server's work, such as one that adds up its CPU time.
    """
    while not run.done:
        carry(run, ask, batch=batch, meter=meter)
        with meter():
            run.deadline_passed(now)
