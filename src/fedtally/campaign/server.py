"""The server's side of a campaign: nothing is opened that is not reserved, and nothing leaves without its noise."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally.campaign.books import Books, MemoryBooks
from fedtally.campaign.client import _secagg, _two_server
from fedtally.campaign.release import copy_of, is_noised_before, release_of, release_sums
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.plan import Plan
from fedtally.privacy.events import Trust
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError, ServerState
from fedtally.secagg.server import Server
from fedtally.sketch import CountSketch, check_compatible

I64 = npt.NDArray[np.int64]
_OF_PLAN = b"plan"  # the source of noise that this module draws: that of the plan, and no other


class RejectedSumError(FedtallyError):
    """Refuse a sum that no sketches of so many clients can have: somebody sent something else."""


class FrequencyServer:
    """The server of a campaign: one session for every cohort, one sum for every round.

    A plan with privacy is kept to its word here: a session enters the unmasking phase, and two
    servers ask and answer, only after the books have reserved the release; and sums leave by
    `release` alone, which adds the noise that a trusted aggregator owes.

    One thread at a time.

    Args:
        plan: the campaign's.
        books: what was reserved, landed and released, which another server of the campaign goes on
            from; None: new ones in memory, for a plan without privacy.

    Raises:
        InvalidInputError: the plan has privacy, and there are no books.
    """

    def __init__(self, plan: Plan, books: Books | None = None) -> None:
        if books is None and plan.privacy is not None:
            raise InvalidInputError(
                "a plan with privacy is charged before a sum is opened: give the server the"
                " campaign's books, campaign.books.LedgerBooks(...), or MemoryBooks() where nobody"
                " is charged"
            )
        self.plan = plan
        self._books: Books = MemoryBooks() if books is None else books
        self._names: set[bytes] = set()  # of all sessions that were opened here
        self._sessions: WeakValueDictionary[bytes, Server] = WeakValueDictionary()
        self._leaders: WeakSet[two_server.Leader] = WeakSet()  # those whose noise is the plan's

    def open(
        self,
        round: int,
        *,
        session: bytes,
        signing_key: SigningKey,
        salt: bytes,
        random: Callable[[int], bytes],
        not_before: int,
        not_after: int,
        allow_list: AllowList | None = None,
        journal: Callable[[bytes], None] | None = None,
    ) -> Server:
        """Return the server's side of a new session for one cohort of a round.

        Args:
            round: 0 .. num_rounds - 1.
            session: 32 uniform bytes, never used before.
            signing_key: the key that the plan names.
            salt: 32 uniform bytes, for the digest of the sum.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source;
                draws the order of the roster in `semi_honest`.
            not_before: Unix seconds.
            not_after: Unix seconds.
            allow_list: the registered identities, in `active`.
            journal: writes checkpoints; see `secagg.server.Server`.

        Raises:
            InvalidInputError: the plan is not summed so, or it names another key or allow-list.
        """
        terms = _secagg(self.plan)
        round = _validate.integer(0, self.plan.num_rounds - 1, round=round)
        if signing_key.public != terms.server_key:
            raise InvalidInputError("this signing key is not the one that the plan names")
        if (None if allow_list is None else allow_list.digest) != terms.allow_list:
            raise InvalidInputError("this allow-list is not the one that the plan names")
        if session in self._names or self.has_landed(session):
            raise InvalidInputError("this session was opened before; draw 32 new bytes for each")
        self._names.add(session)
        made = Server(
            terms.parameters,
            session=session,
            signing_key=signing_key,
            fingerprint=bytes.fromhex(self.plan.fingerprint),
            round=round,
            not_before=not_before,
            not_after=not_after,
            salt=salt,
            random=random,
            allow_list=allow_list,
            journal=journal,
            reserve=self._reserve_session,
        )
        self._sessions[session] = made
        return made

    def restore(
        self,
        checkpoint: bytes,
        *,
        random: Callable[[int], bytes],
        allow_list: AllowList | None = None,
        journal: Callable[[bytes], None] | None = None,
    ) -> Server:
        """Return the server's side of a session that a process before this one opened, from its last checkpoint.

        Args:
            checkpoint: the last that was written.
            random: as for `open`.
            allow_list: as for `open`.
            journal: as for `open`.

        Raises:
            UnreadableFileError: this is no checkpoint, or of another allow-list.
            InvalidInputError: it is one of another plan, or the session goes on here, or its sum
                has landed and the checkpoint is an older one.
            Exception: what the books raised, if the sum could be opened when the checkpoint was
                written.
        """
        _secagg(self.plan)
        made = Server.restore(
            checkpoint,
            random=random,
            allow_list=allow_list,
            journal=journal,
            reserve=self._reserve_session,
        )
        self._check_own(made)
        if made.state is not ServerState.DONE and self.has_landed(made.session):
            raise InvalidInputError(
                "the sum of this session has landed, and the checkpoint is of before: what it asks"
                " again could open another sum of the same clients"
            )
        running = self._sessions.get(made.session)
        if running is not None and running.state not in (ServerState.DONE, ServerState.ABORTED):
            raise InvalidInputError(
                "this session goes on here: two servers of one session could open both secrets of a"
                " client; abort the one that runs, or drop it, before its checkpoint is restored"
            )
        self._names.add(made.session)
        self._sessions[made.session] = made
        return made

    def _check_own(self, session: Server) -> None:
        """Refuse a session of another plan: it may have fewer clients than the noise of this one counts on."""
        terms = _secagg(self.plan)
        listed = bytes(KEY_BYTES) if terms.allow_list is None else terms.allow_list
        agreed = (self.plan.fingerprint, terms.parameters, listed)
        if (
            session.terms.fingerprint.hex(),
            session.terms.parameters,
            session.terms.allow_list,
        ) != agreed:
            raise InvalidInputError("the session is of another plan")

    def _reserve_session(self, session: Server) -> None:
        """Charge what a session opens, on its way into the unmasking phase."""
        self._check_own(session)
        self._reserve(session.session, release_of(self.plan, session.terms.round))

    def _reserve(self, name: bytes, release: int) -> None:
        """Charge a release, unless the plan is without privacy or the sum of this name has landed."""
        if self.plan.privacy is not None and not self._books.has_landed(self.plan, name):
            self._books.reserve(self.plan, release)

    def leader(
        self,
        release: int,
        policy: two_server.BatchPolicy,
        allow_list: AllowList,
        journal: two_server.Journal,
        *,
        random: Callable[[int], bytes] | None = None,
    ) -> two_server.Leader:
        """Return the leader's side of a batch: the reports of one of the plan's releases.

        Args:
            release: which of the plan's releases.
            policy: the leader's own.
            allow_list: whose digest is in the plan.
            journal: the leader's own.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source;
                needed where the plan says that the servers add noise, which is the plan's and drawn
                from it.

        Raises:
            UnsafeParametersError: the policy refuses the plan.
            InvalidInputError: the plan is not summed so, there is no such release, or no randomness
                where it is needed.
            BatchRefusedError: the journal keeps a batch of these rounds whose noise was not drawn
                here.
        """
        parameters, rounds = _two_server(self.plan), self._rounds(release)
        noise, reserve = self._server_noise(random), self._batch_reservation(release)
        made = two_server.Leader(
            parameters, rounds, allow_list, policy, journal, noise, reserve, _OF_PLAN
        )
        self._leaders.add(made)
        return made

    def helper(
        self,
        release: int,
        policy: two_server.BatchPolicy,
        allow_list: AllowList,
        journal: two_server.Journal,
        key: PrivateKey,
        *,
        random: Callable[[int], bytes] | None = None,
    ) -> two_server.Helper:
        """Return the helper's side of a batch, as `leader`; `key` is the one that clients seal to.

        The helper is another operator's: its books are its own.
        """
        parameters, rounds = _two_server(self.plan), self._rounds(release)
        noise, reserve = self._server_noise(random), self._batch_reservation(release)
        return two_server.Helper(
            parameters, rounds, allow_list, policy, journal, key, noise, reserve, _OF_PLAN
        )

    def _batch_reservation(self, release: int) -> Callable[[], None]:
        return lambda: self._reserve(_batch_name(release), release)

    def _server_noise(self, random: Callable[[int], bytes] | None) -> Callable[[], I64] | None:
        """Return what draws the plan's noise of one of two servers; None: the plan has none for them to add.

        Proof: docs/privacy-proofs/two_servers.md.
        """
        privacy = self.plan.privacy
        if privacy is None or privacy.event.trust is not Trust.DISTRIBUTED:
            return None
        if random is None:
            raise InvalidInputError(
                "each server adds the plan's noise before a sum is opened: give it randomness"
            )
        noise, counters = privacy.noise(), self.plan.rows * self.plan.width
        return lambda: noise.draw(Secret(random(KEY_BYTES)), counters)

    def has_landed(self, session: bytes) -> bool:
        """Tell whether the sum of a session has landed: here, or in a process before this one, by the books."""
        return self._books.has_landed(self.plan, session)

    def land(self, session: Server) -> None:
        """Add the sum of a cohort to that of its round, once.

        Args:
            session: that of the cohort, done: one that `open` or `restore` returned, so that it was
                reserved.

        Raises:
            RejectedSumError: no sketches of so many clients have this sum: a counter, or the sum of
                |counters| of a row, is too large, or the sum of a row is odd where it must be even or the other way round. Nothing has
                landed.
            LocalProtocolError: the session is not done, its sum has landed, or its round was
                released.
            InvalidInputError: the session was made elsewhere, or the plan is not summed so, or
                lacks a key.
        """
        _secagg(self.plan)
        if self._sessions.get(session.session) is not session:
            raise InvalidInputError(
                "this session was made elsewhere, and may be of another plan, or opened unreserved:"
                " make it by FrequencyServer.open, or restore"
            )
        if session.outcome is None:
            raise LocalProtocolError(
                f"there is no sum to land: the session is {session.state.value}"
            )
        sketch = self._sketch(session.terms.round, session.outcome.total, session.outcome.survivors)
        self._count(session.session, sketch, "the sum of this session")

    def land_batch(self, leader: two_server.Leader) -> None:
        """Make the sum of a batch that of its release, once: two servers open one batch each.

        Args:
            leader: that of the batch, done: one that `leader` made, so that the plan's noise is in
                its sum. After a restart it is made again, of its journal.

        Raises:
            RejectedSumError: as for `land`.
            LocalProtocolError: the batch is not done, or the release has landed.
            InvalidInputError: the plan is not summed so, or the leader is of another plan, or made
                elsewhere.
        """
        if leader.parameters != _two_server(self.plan):
            raise InvalidInputError("the batch is of another plan")
        if leader not in self._leaders:
            raise InvalidInputError(
                "this leader was made elsewhere, with any noise or none: make it by"
                " FrequencyServer.leader"
            )
        round = leader.rounds.start
        sketch = self._sketch(round, leader.total, leader.count)
        self._count(_batch_name(release_of(self.plan, round)), sketch, f"round {round}")

    def land_plain(self, sketch: CountSketch) -> None:
        """Make a sum that a trusted aggregator made in the clear that of its round, once: the ideal secure sum.

        Args:
            sketch: of a round of the plan, exact. It is the server's from now on, and may be
                erased. Where the plan's noise belongs into a secure sum, a simulation has added it,
                and marked it with `Plan.noise_mark`.

        Raises:
            IncompatibleError: it is a sketch of another plan.
            InvalidInputError: the noise is missing that the plan says, or there is some that does
                not belong.
            LocalProtocolError: the round has landed, or was released.
        """
        check_compatible(self.plan.spec, sketch.spec)
        is_noised = self.plan.privacy is not None and is_noised_before(self.plan)
        if sketch.noise != (self.plan.noise_mark if is_noised else None):
            expected = (
                f"with noise of {self.plan.noise_mark}"
                if is_noised
                else "exact: `release` adds its noise"
            )
            raise InvalidInputError(
                f"a plain sum of this plan must be {expected}, got noise of {sketch.noise}"
            )
        if is_noised:
            self._books.reserve(self.plan, release_of(self.plan, sketch.round))
        self._count(b"plain" + sketch.round.to_bytes(4, "little"), sketch, f"round {sketch.round}")

    def release(self, random: Callable[[int], bytes] | None = None) -> list[CountSketch]:
        """Return the sums that have landed, in the order of their rounds, with the plan's noise: the one way out.

        They are copies, which the caller may merge. Without privacy they are the exact sums so
        far. Under central trust the aggregator's noise
        is added now: each release is reserved, noised, kept in the books, and then the exact sums
        are erased. So call it when all rounds have landed: what was released takes no more sums,
        and another call returns the same. Where clients or two servers add the noise, it is in the
        sums, and every round that has landed is released.

        Args:
            random: returns as many uniform bytes as it is asked for, from a cryptographic source;
                needed with privacy.

        Raises:
            InvalidInputError: there is no randomness, and the plan has privacy.
            AlreadySpentError: another run reserved, or released, one of them.
            OverspentError: the population has too little left.
        """
        if self.plan.privacy is None:
            return [copy_of(sketch) for sketch in self._books.sums(self.plan)]
        if random is None:
            raise InvalidInputError(
                "a plan with privacy is released with noise: give it randomness"
            )
        return release_sums(self.plan, self._books, random)

    def _rounds(self, release: int) -> range:
        releases = self.plan.releases
        return releases[_validate.integer(0, len(releases) - 1, release=release)]

    def _sketch(self, round: int, total: I64, num_clients: int) -> CountSketch:
        """Return a sum as the sketch of a round, marked if noise was in what was summed."""
        sketch = CountSketch(self.plan.spec, round)
        sketch.counters = total.reshape(sketch.counters.shape).copy()
        sketch.num_clients = num_clients
        if self.plan.privacy is not None and is_noised_before(self.plan):
            sketch.noise = self.plan.noise_mark
        _check_plausible(sketch, self.plan)
        return sketch

    def _count(self, name: bytes, sketch: CountSketch, what: str) -> None:
        """Add a sum to that of its round, unless the books say that it landed, or that its release is out."""
        if release_of(self.plan, sketch.round) in self._books.released(self.plan):
            raise LocalProtocolError(
                f"the release of {what} is out; what it holds does not change any more"
            )
        if not self._books.land(self.plan, name, sketch):
            raise LocalProtocolError(
                f"{what} has landed; a second time would count its clients twice"
            )


def _batch_name(release: int) -> bytes:
    """Return the name under which the one batch of a release lands."""
    return b"batch" + release.to_bytes(4, "little")


def _check_plausible(sketch: CountSketch, plan: Plan) -> None:
    """Refuse a sum that no sketches have: an item adds +1 or -1 to one counter of each row, noise so much to each.

    Noise has a bound for each counter and one for the sizes of a row together; honest noise exceeds
    either in a sum with a probability of 2^-40 at most.
    """
    max_items, noise = plan.max_items, plan.noise_bound
    is_secret = plan.privacy is not None and not is_noised_before(plan)  # errors are logged
    items = sketch.num_clients * max_items
    who = (
        f"{sketch.num_clients} clients of at most {max_items} items"
        f" {'and their noise ' * (noise > 0)}"
    )
    for row in sketch.counters:
        largest = max(int(row.max()), -int(row.min()))
        if largest > items + noise:
            raise RejectedSumError(
                f"a counter of the sum is {'too large' if is_secret else largest}, and {who}cannot"
                f" exceed {items + noise}: a client sent something else than a sketch"
            )
        total, bound = _sum_of_sizes(row), items + plan.row_noise_bound
        if total > bound:
            raise RejectedSumError(
                f"the counters of a row of the sum add up to {'too much' if is_secret else total}"
                " without their signs, and"
                f" {who}cannot exceed {bound}: a client sent something else than a sketch"
            )
    if (
        plan.privacy is None
        and max_items == 1
        and ((sketch.counters.sum(axis=1) - sketch.num_clients) % 2).any()
    ):
        raise RejectedSumError(
            "the sum of a row has another parity than the number of clients, each of whom adds or"
            " subtracts 1 in it: a client sent something else than a sketch of one item"
        )


def _sum_of_sizes(row: I64) -> int:
    """Return the sum of |counters|, exactly: in halves, since 2^24 counters of 2^63 do not fit 64 bits."""
    sizes = np.abs(row)
    return (int((sizes >> 32).sum()) << 32) + int((sizes & (2**32 - 1)).sum())
