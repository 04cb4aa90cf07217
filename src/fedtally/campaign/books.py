"""The books of a campaign: which releases were charged, which sums there are, what was published.

A release is a noised sum that somebody reads. It is charged to the privacy budget of a population.
A `FrequencyServer` calls the books before it can open (read) a sum, and to add up sums.
`MemoryBooks` are lost when the process ends. `LedgerBooks` also charge a ledger, the database of
privacy budgets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, NoReturn, Protocol, SupportsIndex

from fedtally.campaign.screening import why_unscreened
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan
from fedtally.privacy.accounting import MOST_ADAPTIVE
from fedtally.privacy.budget import AlreadySpentError, Charge, OverspentError
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.events import Event
from fedtally.sketch import CountSketch, summed

if TYPE_CHECKING:
    from fedtally.store import Reservation


class Books(Protocol):
    """The books of some campaigns: what their servers must not forget.

    One object may serve several plans, for instance the plan of a pilot (a small first campaign)
    and the plan of the campaign. Several servers may use one object. A sum "lands" when it is added
    to the books. If a method raises an error, the server raises it, too, and its call neither opens
    nor adds a sum.
    """

    def reserve(self, plan: Plan, release: int) -> None:
        """Reserve a release of a plan with privacy for this run: charge its privacy budget.

        A run is one campaign, with its pilot if it has one. A release is *made* when `release`
        stores its noised sum. The server calls `reserve` before the sum can be opened (read) and
        before the noise is drawn. Until the release is made, the same run may reserve it again, for
        instance for another cohort (group of clients) or after a restart. The release is charged
        only once.

        Args:
            plan: the plan of the campaign.
            release: the number of the release, 0 .. len(plan.releases) - 1.

        Raises:
            AlreadySpentError: the release was made before, or another run has reserved it.
            OverspentError: the population has too little privacy budget left.
            InvalidInputError: the release cannot be charged for another reason, for instance
                because the population has no budget.
        """

    def has_landed(self, plan: Plan, session: bytes) -> bool:
        """Return whether the sum of a session was added to the books.

        Args:
            plan: the plan of the campaign.
            session: the name of the sum, as for `land`.
        """

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        """Add the sum of a session to the sum of its round, and return whether it was added.

        If a sum of this session was added before, nothing changes, and the result is False. The
        call is one transaction: if two processes add a sum of the same session at the same time,
        only one sum is added. If two processes add sums of different sessions, both are added. Not
        all books check whether the release of the round was made; a `FrequencyServer` checks it
        before each call.

        Args:
            plan: the plan of the campaign.
            session: the name of the sum: the 32 bytes of a session, or the name of a batch of
                reports or of a sum that one party computed in the open.
            sketch: the sum, with the number of its round. The caller must not use it afterwards.

        Raises:
            AlreadySpentError: the release to which the round belongs was made before, and these
                books check it.
        """

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of the rounds whose release was not made yet, in the order of rounds.

        A round without a sum is left out. If one trusted aggregator adds the noise, these sums are
        exact, without noise. Then only `campaign.release`, which adds the noise, may read them.
        """

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of single sessions, for screening, in the order of rounds.

        Screening looks for sums that lying clients changed. Rounds that are released are left out.
        Call this only if `campaign.screening.why_unscreened` returns None for the plan. Then the
        plan is without privacy, or the sum of each session has its noise already.
        """

    def release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        """Store the noised sums of releases, and erase the exact sums from which they were made.

        All noised sums are stored in one transaction, and the exact sums are erased after it.
        Afterwards a `FrequencyServer` adds no sum to the rounds of these releases.

        Args:
            plan: the plan of the campaign.
            noised: the noised sum of each release that is made now, by the number of the release.
                An empty mapping only erases exact sums that an earlier, interrupted call left.

        Raises:
            InvalidInputError: a release was not reserved.
            AlreadySpentError: a release was made before. Books in a database raise no error if the
                release was made with the same noised sum.
        """

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return the noised sum of each release that was made, by the number of the release."""


def charge(books: Books, plan: Plan, release: int) -> None:
    """Charge a release of a plan with privacy, by `Books.reserve`, and check what the books return.

    Raises:
        InvalidInputError: the books returned something else than None. Books with an `async` method
            return a coroutine, for instance, and have reserved nothing.
        Exception: any error that the books raised.
    """
    call: Callable[[Plan, int], object] = books.reserve
    answer = call(plan, release)
    if answer is not None:
        raise InvalidInputError(
            f"Books.reserve must return None once the release is reserved, and returned"
            f" {type(answer).__name__}: a method of books is a plain function, not an async one"
        )


class MemoryBooks:
    """Books that are lost when the process ends, and that charge no ledger of privacy budgets.

    They are for plans without privacy, simulations and tests. Several servers in several threads
    may share one object.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # held during each transaction
        self._reserved: set[tuple[str, int]] = set()
        self._landed: set[tuple[str, bytes]] = set()
        # The sums by plan and round. A round has one sum for each cohort if `why_unscreened`
        # returns None for the plan, else a single sum of all its cohorts.
        self._sums: dict[str, dict[int, list[CountSketch]]] = {}
        self._released: dict[str, dict[int, CountSketch]] = {}  # by plan and number of the release

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise InvalidInputError(
            "books cannot be copied or pickled: two could release one sum with two noises, whose"
            " mean has less; and they hold exact sums"
        )

    def check_pilot(self, plan: Plan, later: Sequence[Event]) -> None:
        """Accept every pilot, since these books have no budget that a pilot could use up."""

    def cautions(self, plan: Plan) -> list[str]:
        """Return an empty list: there is no ledger whose grant could be too large."""
        return []

    def reserve(self, plan: Plan, release: int) -> None:
        """Record that a release is reserved: its sum may be opened, and its noise drawn.

        Raises:
            AlreadySpentError: the release was made before.
        """
        with self._lock:
            if release in self.released(plan):
                raise _released_before(plan, release)
            self._reserved.add((plan.fingerprint, release))

    def has_landed(self, plan: Plan, session: bytes) -> bool:
        """Return whether the sum of a session was added to these books."""
        return (plan.fingerprint, session) in self._landed

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        """Add the sum of a session to the sum of its round, once; return whether it was added.

        Raises:
            AlreadySpentError: the release to which the round belongs was made before.
        """
        with self._lock:
            if self.has_landed(plan, session):
                return False
            for number in self.released(plan):
                if sketch.round in plan.releases[number]:
                    raise _released_before(plan, number)
            # The name is recorded before the sum is added. An error below may then lose the sum,
            # but cannot add it twice. If a sum were added twice, two results of the server would
            # differ by just this sum, and show it.
            self._landed.add((plan.fingerprint, session))
            landed = self._sums.setdefault(plan.fingerprint, {}).setdefault(sketch.round, [])
            # If the sum of a single cohort may not be screened, it is not kept alone, but added to
            # the sum of its round.
            if landed and why_unscreened(plan) is not None:
                landed[0].merge(sketch)
            else:
                landed.append(sketch)
            return True

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of the rounds whose release was not made yet, in the order of rounds."""
        return summed(self.cohorts(plan))

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of rounds that are not released, in the order of rounds.

        A plan that may be screened for lying clients has one sum for each session. Other plans have
        one sum for each round.
        """
        with self._lock:
            releases = plan.releases
            out = {round for number in self.released(plan) for round in releases[number]}
            sums = self._sums.get(plan.fingerprint, {})
            return [
                sketch
                for round, landed in sorted(sums.items())
                if round not in out
                for sketch in landed
            ]

    def release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        """Store the noised sum of each release, and overwrite the exact sums with zeros.

        Raises:
            InvalidInputError: a release was not reserved.
            AlreadySpentError: a release was made before.
        """
        with self._lock:
            self._check_release(plan, noised)
            # The noised sums are stored first. Otherwise an interruption could leave neither them
            # nor the exact sums.
            self._released.setdefault(plan.fingerprint, {}).update(noised)
            sums = self._sums.get(plan.fingerprint, {})
            for number, kept in noised.items():
                for round in plan.releases[number]:
                    # If clients or servers added the noise, `sketch` and `kept` are one object,
                    # which must stay.
                    for sketch in sums.pop(round, []):
                        if sketch is not kept:
                            sketch.vector.fill(0)

    def _check_release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        for number in noised:
            # Without this check, a release could be made that no ledger was charged for.
            if (plan.fingerprint, number) not in self._reserved:
                raise InvalidInputError(
                    f"release {number} of plan {plan.fingerprint} was not reserved: reserve it,"
                    " then draw its noise"
                )
            if number in self.released(plan):
                raise _released_before(plan, number)

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return the noised sum of each release that was made, by the number of the release."""
        return dict(self._released.get(plan.fingerprint, {}))


class LedgerBooks(MemoryBooks):
    """Books that charge each release to a population's ledger, and store the noised sums there.

    One object serves one run: a campaign, with its pilot if it has one. No other run can make the
    releases that this run reserved. Sums that are not released are only in memory. If the process
    ends before their release, these sums are lost, but what was charged for them stays charged.

    Args:
        location: the path or URL of the ledger.
        population: the population whose budget is charged. A plan of another population is refused.
        owner: a name that only this run has, such as 32 random bytes in hexadecimal. By this
            name the ledger tells the run from other runs.
        clock: returns the time, Unix seconds.
        fingerprint: the fingerprint under which the ledger is charged, in place of the plan's own.
            A simulation needs it: it puts new keys into its plan, which change the fingerprint of
            the plan. With `fingerprint` set, the books accept only one plan. None: the plan's own.

    Raises:
        InvalidInputError: the ledger grants no budget to the population.
        UnreadableFileError: there is no ledger, or it cannot be read.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        population: str,
        *,
        owner: str,
        clock: Callable[[], int],
        fingerprint: str | None = None,
    ) -> None:
        # imported here, because it loads a database library that `MemoryBooks` do not need
        from fedtally.store import Ledger

        super().__init__()
        self._owner, self._clock, self._fingerprint = owner, clock, fingerprint
        self._reservations: dict[tuple[str, int], Reservation] = {}
        self._population = population
        self._ledger = Ledger.open(location)
        if self._ledger.granted(population) is None:
            alike = ", ".join(map(ascii, self._ledger.look_alikes(population)))
            raise InvalidInputError(
                f"{self._ledger.name} grants nothing to population"
                f" {population!r}{f', but to what looks like it: {alike}' if alike else ''}:"
                f" fedtally ledger grant --ledger {self._ledger.name} --population {population}"
                " --epsilon ... --delta ..."
            )

    def check_pilot(self, plan: Plan, later: Sequence[Event]) -> None:
        """Refuse a pilot if it would leave too little budget for the campaign.

        Args:
            plan: the plan of the pilot.
            later: what the campaign may cost, as privacy events. The campaign will cost one of
                these events; which one is decided after the pilot.

        Raises:
            OverspentError: with at least one of the events in `later`, the total epsilon of earlier
                charges, the pilot and the campaign is above the epsilon that was granted, or above
                25.
        """
        terms = _terms(plan)
        population, granted = terms.population, self._ledger.granted(terms.population)
        pilot = Charge(population, plan.fingerprint, 0, terms.event)
        for event in later:
            total = self._ledger.spent(
                population, [pilot, Charge(population, "campaign", 0, event)]
            )
            if (
                granted is not None
                and total is not None
                and total.epsilon > min(granted.epsilon, MOST_ADAPTIVE)
            ):
                raise OverspentError(
                    "the pilot and the campaign are both charged, and could take population"
                    f" {population!r} to {total}, and epsilon {granted.epsilon:g} was granted: use"
                    " a smaller epsilon, or size the sketch without a pilot"
                    f" ({opt.sizing('minimax')}, {opt.max_bytes}, or a plan of fedtally plan)"
                )

    def cautions(self, plan: Plan) -> list[str]:
        """Return a warning if the grant's delta is too large for the number of people.

        The list has one text, or is empty. The number of people is the number of clients in `plan`,
        each counted once, times the largest number of people that a client may stand for.
        """
        return self._ledger.cautions(
            self._population, plan.fleet * plan.people, plan.clients.counted[1]
        )

    def reserve(self, plan: Plan, release: int) -> None:
        """Charge a release to the ledger: its sum may then be opened, and its noise drawn.

        Raises:
            InvalidInputError: the plan is of another population; or the books were made for a
                `fingerprint`, and this is a second plan; or the ledger cannot charge the plan, for
                instance because it charged the plan with different noise before.
            AlreadySpentError: the release was made before, or another run has reserved it.
            OverspentError: the population has too little privacy budget left.
        """
        terms = _terms(plan)
        if terms.population != self._population:
            raise InvalidInputError(
                f"the plan is of population {terms.population!r}, and these books charge"
                f" {self._population!r}"
            )
        others = {of for of, _ in self._reservations if of != plan.fingerprint}
        if self._fingerprint is not None and others:
            raise InvalidInputError(
                "these books are of one plan, by the fingerprint that they were given: a second"
                " plan would not be charged"
            )
        charge = Charge(
            terms.population, self._fingerprint or plan.fingerprint, release, terms.event
        )
        reservation = self._ledger.reserve(charge, self._owner, self._clock())
        super().reserve(plan, release)
        self._reservations[plan.fingerprint, release] = reservation

    def release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        """Store the noised sums in the ledger, then overwrite the exact sums in memory."""
        with self._lock:
            self._check_release(plan, noised)
            kept = {
                self._reservations[plan.fingerprint, number]: sketch.to_bytes()
                for number, sketch in noised.items()
            }
            # The ledger is written first. If the process ends before `super().release`, the release
            # is made and charged, and the exact sum is gone with the memory of the process.
            self._ledger.land_all(kept, self._owner, self._clock())
            super().release(plan, noised)


def _released_before(plan: Plan, release: int) -> AlreadySpentError:
    return AlreadySpentError(
        f"release {release} of plan {plan.fingerprint} was released: its sum is not opened again"
    )


def _terms(plan: Plan) -> PrivacyConfig:
    assert plan.privacy is not None
    return plan.privacy
