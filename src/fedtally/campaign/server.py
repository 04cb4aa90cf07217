"""The server's side of a campaign.

With privacy, the server charges a release (a sum that is published) to the privacy budget before a
sum of the release can be opened (read). A server that is trusted to add the noise adds the noise
before it returns the sum.
"""

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
# The journal of each of two servers says who drew the noise of a batch. This value says that this
# module drew it, as the plan demands. A batch with other noise is refused.
_OF_PLAN = b"plan"


class RejectedSumError(FedtallyError):
    """A sum to which no honest vectors can add up: a client sent something else than a sketch."""


class FrequencyServer:
    """The server of a campaign, with a session for each cohort and a sum for each round.

    A cohort is a group of clients whose sum is computed in one session. The server keeps the
    privacy guarantee of the plan. Before a sum can be opened (read), the books charge its release:
    before a session enters the unmasking phase, and before two servers exchange query and answer.
    Only `release` and `so_far` return sums. If a trusted aggregator adds the noise, `release` adds
    it.

    Use a server from one thread at a time.

    Args:
        plan: the plan of the campaign.
        books: the record of the sums of all rounds, and of what is charged and released. With the
            same books, another server can continue the campaign. None: new books in memory, for a
            plan without privacy.
        screen: what happens to cohorts whose sums look as if clients lied: "refuse" leaves them
            out, "warn" warns, "off" does not look. None: "warn" if the plan's cohorts can be
            compared, else "off".

    Attributes:
        plan: the plan of the campaign.
        screening: which cohorts look as if clients lied; `release` and `so_far` fill it.

    Raises:
        InvalidInputError: the plan has privacy and `books` is None; or `screen` is "refuse" or
            "warn", and the plan's cohorts cannot be compared.
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
        # the names of all sessions of this object, also of sessions that are over
        self._names: set[bytes] = set()
        self._sessions: WeakValueDictionary[bytes, Server] = WeakValueDictionary()
        # The leaders that this object made. Only they surely draw what noise the plan demands of
        # servers: see `land_batch`.
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
        """Open a new session for a cohort of a round, and return the server's side of it.

        Args:
            round: the number of the round, 0 .. num_rounds - 1.
            session: the name of the session, 32 uniform bytes never used before.
            signing_key: the private key of the server's public key in the plan.
            salt: 32 uniform bytes, for the digest of the sum.
            random: a cryptographic source; `random(n)` returns n uniform bytes. If the adversary is
                semi-honest, it draws the order of the roster, the clients that answered in time.
            not_before: the time from which the session is valid, Unix seconds.
            not_after: the time until which the session is valid, Unix seconds.
            allow_list: the registered keys of all clients, if the plan's adversary is active.
            journal: stores checkpoints (the state of the session when a phase begins, and at the
                end); see `secagg.server.Server`.

        Raises:
            InvalidInputError: there is no such round; the plan's secure sum is not secagg; the plan
                lacks a key, or names another key or allow-list; or the session was opened before.
            Exception: an error that `journal` raised.
        """
        terms = _secagg(self.plan)
        round = validate.integer(0, self.plan.num_rounds - 1, round=round)
        self.check_keys(signing_key, allow_list)
        # Without this check, two `Server` objects of one session could close a phase with different
        # clients. Together they would learn both secrets of a client, and so its vector.
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
        """Restore the server's side of a session that an earlier process opened, and return it.

        Args:
            checkpoint: the last checkpoint that the journal wrote.
            random: the cryptographic source of uniform bytes, as for `open`.
            allow_list: the registered keys of all clients, if the plan's adversary is active.
            journal: the function that stores checkpoints, as for `open`.

        Raises:
            CheckpointError: `checkpoint` is no checkpoint, or was made with another allow-list.
            InvalidInputError: the checkpoint is of another plan; or this object still runs the
                session; or the session's sum is in the books, but the checkpoint is older than the
                sum.
            Exception: an error of the books. They are called if the sum could already be opened
                when the checkpoint was made.
        """
        _secagg(self.plan)
        # If the sum could already be opened, `Server.restore` reserves the release again before
        # anything is sent.
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
        """Refuse a signing key or an allow-list that the plan does not name.

        Args:
            signing_key: the server's private key.
            allow_list: the registered keys of all clients, if the plan's adversary is active; else
                None.

        Raises:
            InvalidInputError: the plan's secure sum is not secagg, or the plan lacks a key, or
                names another key or allow-list.
        """
        terms = _secagg(self.plan)
        if signing_key.public != terms.server_key:
            raise InvalidInputError("this signing key is not the one that the plan names")
        if (None if allow_list is None else allow_list.digest) != terms.allow_list:
            raise InvalidInputError("this allow-list is not the one that the plan names")

    def _check_own(self, session: Server) -> None:
        """Refuse a session that was made for another plan, with other terms than this plan's."""
        # A session of another plan may have too few clients: their shares of the noise would be too
        # little.
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
        """Charge the release of a session, just before the session enters the unmasking phase."""
        self._check_own(session)
        self._reserve(session.session, release_of(self.plan, session.terms.round))

    def _reserve(self, name: bytes, release: int) -> None:
        """Charge a release if the plan has privacy and the sum `name` is not in the books yet."""
        # A sum in the books was charged before. If its release was made, the books would refuse to
        # reserve it again.
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
        """Return the leader of a batch, which is one of the two servers that sum its reports.

        A batch is all reports of one release. If the plan has proofs, the batch consists of the
        reports with a valid proof. So before `Leader.query`, the caller must call `Leader.judge`
        with each frame that `Helper.checks` returned.

        Args:
            release: the number of the release, from 0.
            policy: the leader's own demands on the plan.
            allow_list: the registered clients. The plan names the list by its digest.
            journal: the journal of the leader, which no other server may use. It records what must
                not be done twice.
            key: the private key of the plan's `leader_key`, with which the leader decrypts reports.
            random: a cryptographic source; `random(n)` returns n uniform bytes. It is needed if the
                servers add the plan's noise.
            reports: where the reports are on the disk, from `store.BatchStore.reports`. If the sum
                of the release is in the books already, this method erases the reports. None: the
                leader keeps the reports in memory.

        Raises:
            UnsafeParametersError: `policy` refuses the plan.
            InvalidInputError: two servers do not compute the plan's sums, the plan lacks a key,
                there is no such release, `random` is needed and missing, or the key or the
                allow-list is not the plan's.
            BatchRefusedError: the journal says that this key belongs to another plan, or has a
                batch of these rounds with noise that this module did not draw.
        """
        parameters, rounds = _two_server(self.plan), self._rounds(release)
        noise, reserve = self._server_noise(random), self._batch_reservation(release)
        books = rounds, allow_list, policy, journal, key, noise, reserve, _OF_PLAN, reports
        made = two_server.Leader(self.plan.report_proof or parameters, *books)
        if self.plan.protection.sums is Sums.SECRET:
            made.take_any_entries()
        self._leaders.add(made)
        # An earlier process may have ended after the sum was added to the books, and before it
        # erased the reports.
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
        """Return the helper of a batch, the second of the two servers that sum its reports.

        The arguments and errors are as for `leader`, except that `key` is the private key of the
        plan's `helper_key`, and that this method erases no reports. The leader and the helper must
        have different operators. So this object must have the books of the helper's operator.
        """
        parameters, rounds = _two_server(self.plan), self._rounds(release)
        noise, reserve = self._server_noise(random), self._batch_reservation(release)
        books = rounds, allow_list, policy, journal, key, noise, reserve, _OF_PLAN, reports
        return two_server.Helper(self.plan.report_proof or parameters, *books)

    def _batch_reservation(self, release: int) -> Callable[[], None]:
        return lambda: self._reserve(_batch_name(release), release)

    def _server_noise(self, random: Callable[[int], bytes] | None) -> Callable[[], I64] | None:
        """Return a function that draws one server's noise, or None if the servers add no noise.

        Proof: docs/privacy-proofs/two_servers.md.
        """
        noise, counters = self.plan.protection.of_server(), self.plan.vector_length
        if noise is None:
            return None
        if random is None:
            raise InvalidInputError(
                "each server adds the plan's noise before a sum is opened: give `random`"
            )
        # Each server draws the full noise, since the other server may lie and add none. The noise
        # also hides the sum from that other server, which may time the answer. So a small table is
        # read in constant time, as by a client.
        return lambda: noise.draw(Secret(random(KEY_BYTES)), counters, constant_time=noise.is_small)

    def has_landed(self, session: bytes) -> bool:
        """Return whether the sum of a session is in the books, also from an earlier process."""
        return self._books.has_landed(self.plan, session)

    def land(self, session: Server, write: Callable[[CountSketch], bool] | None = None) -> None:
        """Add the sum of a cohort to the sum of its round, once.

        Args:
            session: the finished session of the cohort. It must be an object that `open` or
                `restore` of this server returned, since only such a session reserves its release
                before its sum is opened.
            write: adds the sum to its round and returns whether it was added, in place of
                `Books.land`. It is for a caller that writes more in the same transaction. None:
                `Books.land` adds the sum.

        Raises:
            RejectedSumError: no honest vectors can add up to this sum, see `check_plausible`. The
                sum was not added. If a trusted aggregator adds the noise, this error is never
                raised: the entries of the sum are brought into their bounds instead, see `folded`.
            LocalProtocolError: the session has no sum, its sum is in the books already, or its
                round was released.
            InvalidInputError: this object did not make the session, the plan's secure sum is not
                secagg, or the plan lacks a key.
        """
        _secagg(self.plan)
        # The object is compared, and not its name: another `Server` with the same name may have
        # opened its sum without a reservation.
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
        """Add the sum of a batch to the books, once, and erase the batch's reports.

        A batch is all reports of a release, which two servers have summed.

        Args:
            leader: the finished leader of the batch. It must be an object that the method `leader`
                of this server returned, since only then the plan's noise is in its sum. After a
                restart, `leader` makes it again from its journal.

        Raises:
            RejectedSumError: as for `land`.
            LocalProtocolError: the batch has no sum yet, the sum of the release is in the books
                already, or the release was made.
            InvalidInputError: two servers do not compute the plan's sums, or the leader is of
                another plan, or this object did not make the leader.
        """
        if leader.parameters != _two_server(self.plan):
            raise InvalidInputError("the batch is of another plan")
        # A leader that was made elsewhere may have added different noise, or no noise.
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
        """Return whether a release's sum by two servers is in the books.

        The sum may also be from an earlier process.
        """
        return self.has_landed(_batch_name(release))

    def land_plain(self, sketch: CountSketch) -> None:
        """Add a sum to the books that was computed without a protocol, once for each round.

        A trusted aggregator or a simulation computes such a sum.

        Args:
            sketch: the sum of a round of the plan. The server may erase it, so the caller must not
                use it afterwards. If clients or servers add the plan's noise, the noise must be in
                the sum, and `sketch.noise` must be `Plan.noise_mark`. Otherwise the sum must be
                exact.

        Raises:
            IncompatibleError: the sketch is of another plan.
            InvalidInputError: the sketch lacks the noise that the plan demands, has noise that the
                plan does not allow, or has a wrong number of silos.
            LocalProtocolError: a call of this method added a sum of the round before, or the round
                was released.
            AlreadySpentError, OverspentError: a sum with noise cannot be charged, see
                `Books.reserve`.
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
        # A noised sum may be read from now on, so its release is charged here. For an exact sum,
        # `release` charges.
        if is_noised:
            charge(self._books, self.plan, release_of(self.plan, sketch.round))
        self._count(b"plain" + sketch.round.to_bytes(4, "little"), sketch, f"round {sketch.round}")

    def release(
        self, random: Callable[[int], bytes] | None = None, num_closed: int | None = None
    ) -> list[CountSketch]:
        """Return the sums with the plan's noise, in the order of their rounds.

        The sums are copies, which the caller may change. What is returned depends on who adds the
        noise. Without privacy, the result is the exact sums so far. If clients or two servers add
        the noise, it is already in the sums, and every sum so far is released.

        If a trusted aggregator adds the noise, this method adds it. It charges each release, keeps
        the noised sum in the books, and erases the exact sums. Call it when all rounds have their
        sums: a release that was made gets no more sums, and each later call returns its noised sum
        unchanged.

        If the plan allows it, the sums of cohorts are screened first for lying clients, and
        `screening` has the verdicts. With `Screen.REFUSE`, bad cohorts are left out, and a round
        that is bad as a whole is not returned. With privacy, the release of a round is then made
        without its bad cohorts, and no later call adds these cohorts.

        Args:
            random: a cryptographic source; `random(n)` returns n uniform bytes. It is needed with
                privacy.
            num_closed: how many rounds, from the first, get no more sums; None: all rounds. If an
                aggregator adds the noise and the plan has a calendar, no later round is released
                yet. In all other cases `num_closed` has no effect.

        Raises:
            InvalidInputError: the plan has privacy, and `random` is None.
            AlreadySpentError: another run reserved or made one of the releases.
            OverspentError: the population has too little privacy budget left.
            PoisonedError: screening refused every round that has a sum, and no release was made
                before. Nothing was released.
        """
        used = self._screened()
        if not self.plan.protection.is_charged:
            landed = self._books.sums(self.plan) if used is None else used
            return [copy_of(sketch) for sketch in landed]
        if random is None:
            raise InvalidInputError("a plan with privacy is released with noise: give `random`")
        return release_sums(self.plan, self._books, random, used, num_closed)

    def so_far(self) -> list[CountSketch]:
        """Return the sums that may be seen during the campaign, in the order of rounds.

        Nothing is released by this call. If a trusted aggregator adds the noise, the sums are the
        releases that were made. Otherwise they are all sums so far, screened as in `release`.

        Raises:
            PoisonedError: screening refused every round that has a sum, and no release was made.
        """
        found = released_sums(self.plan, self._books) if self.plan.protection.is_charged else []
        if not self.plan.protection.is_secret:
            used = self._screened()
            landed = self._books.sums(self.plan) if used is None else used
            found += [copy_of(sketch) for sketch in landed]
        return sorted(found, key=lambda sketch: sketch.round)

    def _screened(self) -> list[CountSketch] | None:
        """Return the sum of each round, without refused cohorts, or None if nothing is screened.

        Raises:
            PoisonedError: screening refused every round that has a sum, and no release was made.
        """
        # Without screening, the sums of cohorts are not even read.
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
        """Return a sum as the sketch of a round; a sum with noise gets the noise mark of the plan.

        Raises:
            RejectedSumError: no honest vectors can add up to the sum.
        """
        total = self.plan.read_sum(total)
        is_secret = self.plan.protection.sums is Sums.SECRET
        if is_secret:
            # The sum is exact and secret. Clients could observe a refusal, and a client that lies
            # could learn from it which items another client holds. So an exact sum is never
            # refused. Instead its entries are brought into their bounds.
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
        """Add a sum to the books, once.

        Args:
            name: the name of the sum in the books.
            sketch: the sum.
            what: what errors call the sum.
            write: the function that adds the sum, as for `land`; None: `Books.land`.

        Raises:
            LocalProtocolError: the sum is in the books already, or its release was made.
        """
        # If a sum were added to a release later, the difference of the two versions would show it.
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
    """Return the name in the books of the sum of a release that two servers compute."""
    return b"batch" + release.to_bytes(4, "little")


def check_plausible(sketch: CountSketch, plan: Plan) -> None:
    """Refuse a sum to which no honest vectors of clients can add up.

    In a sketch, an item adds +1 or -1 to one counter of each row. In a histogram, it adds 1 to one
    counter. So the sum is refused if a counter, or the sum of the absolute values of a row, is too
    large; if a counter of a histogram is below 0; if the number of people is not possible; or,
    without noise, if the sum of a row has the wrong parity. Noise widens each bound. Honest
    noise takes some entry of a sum over its bound with a probability of at most 2^-40, and some row
    over its bound with a probability of at most 2^-40.

    Do not call this with an exact sum of a plan with privacy: a refusal would depend on exact
    counts, without noise.

    Raises:
        RejectedSumError: the sum is refused.
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
    # The number of people may have noise, so the bounds below use the largest number that it may
    # be.
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
        # Noise can make a counter of a histogram negative, but only down to a bound.
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
    # Without noise, the parity of a row's sum is known. With noise, it could be any.
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
    """Return the exact sum of the absolute values of a row's counters."""
    # The two 32-bit halves are added up separately. The sum of 2^24 counters of up to 2^63 does not
    # fit 64 bits, but the sum of 2^24 halves does.
    sizes = np.abs(row)
    return (int((sizes >> 32).sum()) << 32) + int((sizes & (2**32 - 1)).sum())
