"""The server's side of a campaign: it reserves, then opens; it adds noise, then releases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.text import in_number
from fedtally.campaign.books import Books, MemoryBooks, charge
from fedtally.campaign.client import _secagg, _two_server
from fedtally.campaign.release import folded, release_of, release_sums, released_sums
from fedtally.campaign.screening import (
    PoisonedError,
    Screen,
    Screening,
    checked_screen,
    why_unscreened,
)
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import KEY_BYTES, Secret, SigningKey
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.plan import Plan, Sums
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError, ServerState
from fedtally.secagg.server import Server
from fedtally.sketch import CountSketch, check_compatible, copy_of, summed

I64 = npt.NDArray[np.int64]
# The source of noise in the journals of two servers: this module draws that of the plan, and no
# other noise counts for it.
_OF_PLAN = b"plan"


class RejectedSumError(FedtallyError):
    """Refuse a sum that a cohort's sketches cannot have: a client sent something else."""


class FrequencyServer:
    """The server of a campaign: one session for every cohort, one sum for every round.

    It holds a plan with privacy to its guarantee. A session enters the unmasking phase, and two
    servers ask and answer, only after the books have reserved the release. Sums leave by `release`
    alone, which adds the noise that a trusted aggregator owes.

    Use it from one thread at a time.

    Args:
        plan: the plan of the campaign.
        books: the reserved, landed and released sums, from which another server of the campaign can
            go on. None: new books in memory, for a plan without privacy.
        screen: what happens to cohorts whose sums honest clients cannot have: "refuse", "warn" or
            "off". None: "warn" if the plan's cohorts can be screened.

    Attributes:
        screening: what `release` found.

    Raises:
        InvalidInputError: the plan has privacy, and there are no books; or screening is asked for,
            and the plan's cohorts cannot be screened.
    """

    def __init__(
        self, plan: Plan, books: Books | None = None, *, screen: Screen | str | None = None
    ) -> None:
        if books is None and plan.protection.is_charged:
            raise InvalidInputError(
                "a plan with privacy is charged before a sum is opened: give the server the"
                " campaign's books, campaign.books.LedgerBooks(...), or MemoryBooks() where nobody"
                " is charged"
            )
        self.plan = plan
        self.screening = Screening(checked_screen(plan, screen), why_unscreened(plan) or "")
        self._books: Books = MemoryBooks() if books is None else books
        self._names: set[bytes] = set()  # of all sessions that were opened here
        self._sessions: WeakValueDictionary[bytes, Server] = WeakValueDictionary()
        # those whose noise is the plan's
        self._leaders: WeakSet[two_server.Leader] = WeakSet()

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
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.
                In `semi-honest` it draws the order of the roster.
            not_before: Unix seconds.
            not_after: Unix seconds.
            allow_list: the registered identities, in `active`.
            journal: writes checkpoints; see `secagg.server.Server`.

        Raises:
            InvalidInputError: the plan is summed by another protocol, or names another key or
                allow-list.
        """
        terms = _secagg(self.plan)
        round = validate.integer(0, self.plan.num_rounds - 1, round=round)
        self.check_keys(signing_key, allow_list)
        # two servers of one session could close a phase differently, and open both secrets of a
        # client
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
        """Return the server's side of a session that an earlier process opened.

        Args:
            checkpoint: the last one that was written.
            random: the cryptographic source of uniform bytes, as for `open`.
            allow_list: the registered identities, in `active`.
            journal: the writer of checkpoints; see `secagg.server.Server`.

        Raises:
            UnreadableFileError: the bytes are no checkpoint, or one of another allow-list.
            InvalidInputError: the checkpoint is of another plan, the session goes on here, or its
                sum has landed and the checkpoint is an older one.
            Exception: what the books raised, if the sum could be opened when the checkpoint was
                written.
        """
        _secagg(self.plan)
        # `Server.restore` reserves again if the sum could be opened, before this server can send
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

    def check_keys(self, signing_key: SigningKey, allow_list: AllowList | None = None) -> None:
        """Refuse keys that the plan does not name.

        Args:
            signing_key: the key that the plan names.
            allow_list: the registered identities, in `active`.

        Raises:
            InvalidInputError: the plan is not summed so, or it names another key or allow-list.
        """
        terms = _secagg(self.plan)
        if signing_key.public != terms.server_key:
            raise InvalidInputError("this signing key is not the one that the plan names")
        if (None if allow_list is None else allow_list.digest) != terms.allow_list:
            raise InvalidInputError("this allow-list is not the one that the plan names")

    def _check_own(self, session: Server) -> None:
        """Refuse a session of another plan."""
        # It may have fewer clients than the noise shares of this plan count on
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
        """Charge the release of a session, on its way into the unmasking phase."""
        self._check_own(session)
        self._reserve(session.session, release_of(self.plan, session.terms.round))

    def _reserve(self, name: bytes, release: int) -> None:
        """Charge a release, unless the plan has no privacy or the sum of this name has landed."""
        # A sum that landed was charged. Its release may be out, and could not be reserved again.
        if self.plan.protection.is_charged and not self._books.has_landed(self.plan, name):
            charge(self._books, self.plan, release)

    def leader(
        self,
        release: int,
        policy: two_server.BatchPolicy,
        allow_list: AllowList,
        journal: two_server.Journal,
        key: PrivateKey,
        *,
        random: Callable[[int], bytes] | None = None,
        reports: two_server.Reports | None = None,
    ) -> two_server.Leader:
        """Return the leader's side of a batch: the reports of one of the plan's releases.

        Where the plan has proofs, it takes only reports into the batch that it finds valid: give
        `judge` the helper's `checks` before the query.

        Args:
            release: the number of the plan's release.
            policy: the leader's own.
            allow_list: the list whose digest is in the plan.
            journal: the leader's own.
            key: the secret key of the plan's `leader_key`, which clients seal to.
            random: returns as many uniform bytes as it is asked for, from a cryptographic source.
                The plan's noise is drawn from it, where the servers add noise.
            reports: the place of the reports on disk, as `store.BatchStore.reports` gives it. If
                the release has landed, they are erased. None: the leader holds them in memory.

        Raises:
            UnsafeParametersError: the policy refuses the plan.
            InvalidInputError: the plan is summed by another protocol, there is no such release, no
                randomness where it is needed, or the key is not the plan's.
            BatchRefusedError: the journal keeps this key as that of another plan, or a batch of
                these rounds whose noise was not drawn here.
        """
        parameters, rounds = _two_server(self.plan), self._rounds(release)
        noise, reserve = self._server_noise(random), self._batch_reservation(release)
        books = rounds, allow_list, policy, journal, key, noise, reserve, _OF_PLAN, reports
        made = two_server.Leader(self.plan.report_proof or parameters, *books)
        if self.plan.protection.sums is Sums.SECRET:
            made.take_any_entries()
        self._leaders.add(made)
        # an earlier process may have ended before it erased them
        if made.state is two_server.BatchState.WAITING and self.has_landed(_batch_name(release)):
            made.erase()
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
        reports: two_server.Reports | None = None,
    ) -> two_server.Helper:
        """Return the helper's side of a batch, as `leader`.

        `key` is the secret key of the public one that clients seal to.

        The helper is another operator's: its books are its own.
        """
        parameters, rounds = _two_server(self.plan), self._rounds(release)
        noise, reserve = self._server_noise(random), self._batch_reservation(release)
        books = rounds, allow_list, policy, journal, key, noise, reserve, _OF_PLAN, reports
        return two_server.Helper(self.plan.report_proof or parameters, *books)

    def _batch_reservation(self, release: int) -> Callable[[], None]:
        return lambda: self._reserve(_batch_name(release), release)

    def _server_noise(self, random: Callable[[int], bytes] | None) -> Callable[[], I64] | None:
        """Return a function that draws one server's noise, or None if the servers add none.

        Proof: docs/privacy-proofs/two_servers.md.
        """
        noise, counters = self.plan.protection.of_server(), self.plan.vector_length
        if noise is None:
            return None
        if random is None:
            raise InvalidInputError(
                "each server adds the plan's noise before a sum is opened: give `random`"
            )
        # each draws all of the noise, since the other one may add none
        return lambda: noise.draw(Secret(random(KEY_BYTES)), counters)

    def has_landed(self, session: bytes) -> bool:
        """Tell whether the sum of a session has landed, here or in an earlier process."""
        return self._books.has_landed(self.plan, session)

    def land(self, session: Server, write: Callable[[CountSketch], bool] | None = None) -> None:
        """Add the sum of a cohort to that of its round, once.

        Args:
            session: the finished session of the cohort, which `open` or `restore` returned, so that
                it was reserved.
            write: lands the sum as `Books.land` does, and returns whether it counts; for a caller
                that writes more in the same transaction. None: the books land it.

        Raises:
            RejectedSumError: the cohort's sketches cannot have this sum: a counter, or the sum of
                the absolute values of a row, is too large, or the sum of a row has the wrong
                parity. Nothing has landed.
            LocalProtocolError: the session is not done, its sum has landed, or its round was
                released.
            InvalidInputError: the session was made elsewhere, or the plan is summed by another
                protocol, or lacks a key.
        """
        _secagg(self.plan)
        # by identity, not by name: anybody can make a Server of that name, without a reservation
        if self._sessions.get(session.session) is not session:
            raise InvalidInputError(
                "this session was made elsewhere, and may be of another plan, or opened unreserved:"
                " make it by FrequencyServer.open, or restore"
            )
        if session.outcome is None:
            raise LocalProtocolError(
                f"there is no sum to land: the session is {session.state.value}"
            )
        round, outcome = session.terms.round, session.outcome
        try:
            sketch = self._sketch(round, outcome.total, outcome.survivors)
        except RejectedSumError:
            self.screening.rejected[round] += 1
            raise
        self._count(session.session, sketch, "the sum of this session", write)

    def land_batch(self, leader: two_server.Leader) -> None:
        """Land the sum of a batch as the sum of its release, once, and erase its reports.

        Two servers open one batch for each release.

        Args:
            leader: the finished leader of the batch, which `leader` made, so that the plan's noise
                is in its sum. After a restart it is made again from its journal.

        Raises:
            RejectedSumError: as for `land`.
            LocalProtocolError: the batch is not done, or the release has landed.
            InvalidInputError: the plan is summed by another protocol, or the leader is of another
                plan, or made elsewhere.
        """
        if leader.parameters != _two_server(self.plan):
            raise InvalidInputError("the batch is of another plan")
        # only a leader that was made here is known to have drawn the plan's noise
        if leader not in self._leaders:
            raise InvalidInputError(
                "this leader was made elsewhere, with any noise or none: make it by"
                " FrequencyServer.leader"
            )
        round = leader.rounds.start
        sketch = self._sketch(round, leader.total, leader.count)
        self._count(_batch_name(release_of(self.plan, round)), sketch, f"round {round}")
        leader.erase()

    def has_landed_batch(self, release: int) -> bool:
        """Tell whether the sum of a release of two servers has landed, also before a restart."""
        return self.has_landed(_batch_name(release))

    def land_plain(self, sketch: CountSketch) -> None:
        """Land a sum that a trusted aggregator made in the clear, once for each round.

        This is the ideal secure sum.

        Args:
            sketch: the exact sketch of a round of the plan. The server owns it from now on, and may
                erase it. Where the plan's noise belongs into a secure sum, a simulation has added
                it, and marked it with `Plan.noise_mark`.

        Raises:
            IncompatibleError: the sketch is of another plan.
            InvalidInputError: the noise that the plan demands is missing, or the sketch has noise
                that does not belong.
            LocalProtocolError: the round has landed, or was released.
        """
        check_compatible(self.plan.spec, sketch.spec)
        is_noised = self.plan.protection.sums is Sums.NOISED
        if sketch.noise != (self.plan.noise_mark if is_noised else None):
            expected = (
                f"with noise of {self.plan.noise_mark}"
                if is_noised
                else "exact: `release` adds its noise"
            )
            raise InvalidInputError(
                f"a plain sum of this plan must be {expected}, got noise of {sketch.noise}"
            )
        if not self.plan.clients.fits(sketch.num_silos):
            raise InvalidInputError(
                "a plain sum must say how many silos it has, and 0 where clients are no silos:"
                f" this plan has up to {self.plan.people} people a client, got {sketch.num_silos}"
            )
        # With noise in it the sum is released as it is, so that this is the moment before it can be
        # read. Without noise `release` reserves.
        if is_noised:
            charge(self._books, self.plan, release_of(self.plan, sketch.round))
        self._count(b"plain" + sketch.round.to_bytes(4, "little"), sketch, f"round {sketch.round}")

    def release(
        self, random: Callable[[int], bytes] | None = None, num_closed: int | None = None
    ) -> list[CountSketch]:
        """Return the sums that have landed, in the order of their rounds, with the plan's noise.

        Sums leave by this method and `so_far` alone, as copies that the caller may merge. Without
        privacy they are the exact sums so far. Under central trust the aggregator's noise is added
        now: each release is reserved, noised and kept in the books, and then the exact sums are
        erased. So call it when all rounds have landed: a release takes no more sums once it is
        out, and another call returns the same. Where clients or two servers add the noise, it is in
        the sums, and every round that has landed is released.

        Sums of cohorts are screened first, if the plan allows it: `screening` says what was found.
        If it is asked to refuse, cohorts that stand out are left out for ever, and of a round that
        is bad everywhere nothing is returned.

        Args:
            random: returns as many uniform bytes as it is asked for, from a cryptographic source;
                needed with privacy.
            num_closed: the number of rounds, from the first, that take no more sums; None: all.
                Where the aggregator's noise goes by a calendar, the other rounds wait.

        Raises:
            InvalidInputError: there is no randomness, and the plan has privacy.
            AlreadySpentError: another run reserved, or released, one of them.
            OverspentError: the population has too little left.
            PoisonedError: screening refused every round. Nothing was released.
        """
        used = self._screened()
        if not self.plan.protection.is_charged:
            landed = self._books.sums(self.plan) if used is None else used
            return [copy_of(sketch) for sketch in landed]
        if random is None:
            raise InvalidInputError("a plan with privacy is released with noise: give `random`")
        return release_sums(self.plan, self._books, random, used, num_closed)

    def so_far(self) -> list[CountSketch]:
        """Return the sums that may be seen while the campaign goes on, by round; change nothing.

        Under central trust these are the sums that were released. Else they are all that landed,
        screened as `release` screens them.
        """
        found = released_sums(self.plan, self._books) if self.plan.protection.is_charged else []
        if not self.plan.protection.is_secret:
            used = self._screened()
            landed = self._books.sums(self.plan) if used is None else used
            found += [copy_of(sketch) for sketch in landed]
        return sorted(found, key=lambda sketch: sketch.round)

    def _screened(self) -> list[CountSketch] | None:
        """Return the sums without the cohorts that are refused; None: nothing is screened."""
        # Of a plan that cannot be screened not even the sums are asked for.
        if self.screening.screen is Screen.OFF:
            return None
        cohorts = self._books.cohorts(self.plan)
        used: list[CountSketch] = []
        for _, group in groupby(cohorts, key=lambda sketch: sketch.round):
            used += self.screening.look(self.plan, list(group))
        for number in self._books.released(self.plan):
            self.screening.note_released(self.plan.releases[number])
        if cohorts and not used and not self._books.released(self.plan):
            rounds = in_number(len(self.screening.rounds), "round", "{} rounds")
            raise PoisonedError(
                f"screening refused the {rounds} that landed: the sums of the cohorts do not fit"
                " honest clients who were dealt to them at random; screen warn shows the answer all"
                " the same"
            )
        return summed(used)

    def _rounds(self, release: int) -> range:
        releases = self.plan.releases
        return releases[validate.integer(0, len(releases) - 1, release=release)]

    def _sketch(self, round: int, total: I64, num_clients: int) -> CountSketch:
        """Return a sum as the sketch of a round, marked if noise was in the vectors."""
        total = self.plan.read_sum(total)
        is_secret = self.plan.protection.sums is Sums.SECRET
        if is_secret:
            # The sum is exact, and whether it is refused would be seen: a client that lies could
            # find out what one other client holds. So nothing that is done with it depends on it.
            total = folded(total, num_clients * self.plan.largest_entry)
        sketch = CountSketch(self.plan.spec, round)
        size = sketch.vector.size
        sketch.vector = total[:size].copy()
        people, silos = self.plan.clients.people_and_silos(total[size:], num_clients)
        sketch.num_clients, sketch.num_silos = people, silos
        if is_secret:
            most = num_clients * self.plan.people
            sketch.num_clients = min(max(sketch.num_clients, 0), most)
            return sketch
        sketch.noise = self.plan.noise_mark
        check_plausible(sketch, self.plan)
        return sketch

    def _count(
        self,
        name: bytes,
        sketch: CountSketch,
        what: str,
        write: Callable[[CountSketch], bool] | None = None,
    ) -> None:
        """Add a sum to that of its round, unless it has landed or its release is out."""
        # A sum that joined a release afterwards would show by the difference
        if release_of(self.plan, sketch.round) in self._books.released(self.plan):
            raise LocalProtocolError(
                f"the release of {what} is out; what it holds does not change any more"
            )
        if write is None:
            write = partial(self._books.land, self.plan, name)
        if not write(sketch):
            raise LocalProtocolError(
                f"{what} has landed; a second time would count its clients twice"
            )


def _batch_name(release: int) -> bytes:
    """Return the name under which the one batch of a release lands."""
    return b"batch" + release.to_bytes(4, "little")


def check_plausible(sketch: CountSketch, plan: Plan) -> None:
    """Refuse a sum that no sketches, or histograms, can have.

    An item adds +1 or -1 to one counter of each row, and 1 to one of a histogram. Noise has a bound
    for each counter, and one for the sizes of a row together. Honest noise exceeds either in a sum
    with a probability of at most 2^-40.

    A sum that is still to be noised must not come here: a refusal is an answer without noise.
    """
    max_items, noise = plan.max_items, plan.noise_bound
    people, senders = sketch.num_clients, (sketch.num_clients, sketch.num_silos)
    clients, most = plan.clients.numbered(*senders), plan.clients.most_people(*senders)
    if not -noise <= people <= most + noise:
        raise RejectedSumError(
            f"the number of people in the sum is {people}, and"
            f" {clients} {'and their noise ' * (noise > 0)}have -{noise} to {most + noise}: a"
            " silo sent something else than a sketch"
        )
    # as many as the sum says, or the noise of that number hides
    people = max(0, min(most, people + noise))
    items, most_of_one = people * max_items, people * plan.encoding.most_of_counter(max_items)
    who = f"{clients} of at most {max_items} items {'and their noise ' * (noise > 0)}"
    for row in sketch.all_rows():
        largest = max(int(row.max()), -int(row.min()))
        if largest > most_of_one + noise:
            raise RejectedSumError(
                f"a counter of the sum is {largest}, and {who}cannot exceed {most_of_one + noise}:"
                f" a client sent something else than a {plan.encoding}"
            )
        # Only noise is negative in a histogram, and within its bound.
        if (least := int(row.min())) < plan.vector.lowest(most_of_one, noise):
            raise RejectedSumError(
                f"a counter of the sum is {least}, below {-noise}, and clients add nothing negative"
                f" to a histogram{' but their noise' * (noise > 0)}: a client sent something else"
            )
        total, bound = _sum_of_sizes(row), items + plan.row_noise_bound(len(row))
        if total > bound:
            raise RejectedSumError(
                f"the counters of a row of the sum add up to {total} without their signs, and"
                f" {who}cannot exceed {bound}: a client sent something else than a sketch"
            )
    # Noise has no parity.
    if (
        not plan.protection.is_charged
        and plan.vector.has_parity(max_items)
        and any((int(row.sum()) - sketch.num_clients) % 2 for row in sketch.all_rows())
    ):
        raise RejectedSumError(
            "the sum of a row has another parity than the number of clients, each of whom adds or"
            " subtracts 1 in it: a client sent something else than a sketch of one item"
        )


def _sum_of_sizes(row: I64) -> int:
    """Return the sum of |counters|, exactly."""
    # in halves of 32 bits: 2^24 counters of up to 2^63 do not fit 64 bits, but 2^24 halves do
    sizes = np.abs(row)
    return (int((sizes >> 32).sum()) << 32) + int((sizes & (2**32 - 1)).sum())
