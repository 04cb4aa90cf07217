"""The books of a campaign: which releases were charged, which sums landed, what was released.

A `FrequencyServer` calls the books before a sum can be opened, and before it counts a sum.
`MemoryBooks` are lost when the process ends; `LedgerBooks` also charge a ledger of privacy budgets.
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
    """The facts that a server must not forget, shared with other servers of the same campaign.

    One object keeps the books of several plans, such as the plan of a pilot and the plan of its
    campaign. If a method raises, nothing was opened or counted, and the server raises the error.
    """

    def reserve(self, plan: Plan, release: int) -> None:
        """Reserve a release of a plan with privacy: charge it to the privacy budget.

        The server calls this before the sum can be opened and before the noise is drawn. The run
        that reserved a release may repeat the call, for another cohort or after a restart, until
        the release is made.

        Args:
            plan: the plan of the campaign.
            release: the number of the release, 0 .. len(plan.releases) - 1.

        Raises:
            AlreadySpentError: the release is made already, or another run reserved it.
            OverspentError: the population has too little privacy budget left.
        """

    def has_landed(self, plan: Plan, session: bytes) -> bool:
        """Tell whether the sum of a session has landed."""

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        """Add the sum of a session to the sum of its round, once; return whether it counts.

        A sum that had landed before does not count, and nothing changes. The call is one
        transaction: if two processes land the same session at the same time, only one sum counts.
        If two different sessions land at the same time, both sums count.

        Args:
            plan: the plan of the campaign.
            session: the name under which the sum lands: the 32 bytes of a session, or the name of a
                batch or of a plain sum.
            sketch: the sum. The caller must not use it afterwards.

        Raises:
            AlreadySpentError: the release of the round is made already.
        """

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sum of each round that landed and is not released, in the order of rounds.

        Under central trust these sums are exact. Only `campaign.release`, which adds the noise,
        may read them.
        """

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of single sessions, not released, in the order of rounds, for screening.

        Call this only for a plan that `campaign.screening.why_unscreened` allows: a plan without
        privacy, or a plan whose noise is already in the sum of each session.
        """

    def release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        """Keep the noised sums, by the number of the release, and erase the exact sums.

        The call is one transaction. Afterwards no sum can land in these releases.

        Args:
            plan: the plan of the campaign.
            noised: the noised sum of each release that is made now. An empty mapping only erases
                exact sums that an earlier call, which failed, did not erase.

        Raises:
            InvalidInputError: a release was not reserved.
            AlreadySpentError: a release is made already.
        """

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return the noised sums that were released, by the number of the release."""


def charge(books: Books, plan: Plan, release: int) -> None:
    """Charge a release of a plan with privacy: call `Books.reserve` and check its answer.

    Raises:
        InvalidInputError: the books returned something else than None, such as the coroutine of an
            `async` method, which has reserved nothing.
        Exception: the error that the books raised.
    """
    call: Callable[[Plan, int], object] = books.reserve
    answer = call(plan, release)
    if answer is not None:
        raise InvalidInputError(
            f"Books.reserve must return None once the release is reserved, and returned"
            f" {type(answer).__name__}: a method of books is a plain function, not an async one"
        )


class MemoryBooks:
    """Books that are lost when the process ends, and that charge no ledger.

    They serve plans without privacy, simulations and tests. Several servers in several threads may
    share one object.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # held during each transaction
        self._reserved: set[tuple[str, int]] = set()
        self._landed: set[tuple[str, bytes]] = set()
        # by plan and round: one sum for each cohort if cohorts may be screened, else one sum of all
        self._sums: dict[str, dict[int, list[CountSketch]]] = {}
        self._released: dict[str, dict[int, CountSketch]] = {}  # by plan and number of the release

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise InvalidInputError(
            "books cannot be copied or pickled: two could release one sum with two noises, whose"
            " mean has less; and they hold exact sums"
        )

    def check_pilot(self, plan: Plan, later: Sequence[Event]) -> None:
        """Accept every pilot, since these books charge nothing."""

    def cautions(self, plan: Plan) -> list[str]:
        """Return no warning of a grant, since these books charge none."""
        return []

    def reserve(self, plan: Plan, release: int) -> None:
        """Record a release, before its sum can be opened and before its noise is drawn."""
        with self._lock:
            if release in self.released(plan):
                raise _released_before(plan, release)
            self._reserved.add((plan.fingerprint, release))

    def has_landed(self, plan: Plan, session: bytes) -> bool:
        """Tell whether the sum of a session has landed."""
        return (plan.fingerprint, session) in self._landed

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        """Add the sum of a session to the sum of its round, once; return whether it counts."""
        with self._lock:
            if self.has_landed(plan, session):
                return False
            for number in self.released(plan):
                if sketch.round in plan.releases[number]:
                    raise _released_before(plan, number)
            # The name is recorded before the sum is counted. So an error below may lose the sum,
            # but cannot count it twice. A sum that counts twice would show in a difference of sums.
            self._landed.add((plan.fingerprint, session))
            landed = self._sums.setdefault(plan.fingerprint, {}).setdefault(sketch.round, [])
            # If the sum of a single cohort may not be screened, only the sum of the round is kept.
            if landed and why_unscreened(plan) is not None:
                landed[0].merge(sketch)
            else:
                landed.append(sketch)
            return True

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sum of each round that landed and is not released, in the order of rounds."""
        return summed(self.cohorts(plan))

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        """Return the sums that landed and are not released, in the order of rounds.

        There is one sum for each session, or one for each round if screening is not allowed.
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
        """Keep the noised sums, by the number of the release, and erase the exact sums."""
        with self._lock:
            self._check_release(plan, noised)
            # The noised sums are kept first: an interruption before the erasure loses no sum.
            self._released.setdefault(plan.fingerprint, {}).update(noised)
            sums = self._sums.get(plan.fingerprint, {})
            for number, kept in noised.items():
                for round in plan.releases[number]:
                    # If clients or servers added the noise, the noised sum is this same object.
                    for sketch in sums.pop(round, []):
                        if sketch is not kept:
                            sketch.vector.fill(0)

    def _check_release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        for number in noised:
            # a release without a reservation would not be in the ledger
            if (plan.fingerprint, number) not in self._reserved:
                raise InvalidInputError(
                    f"release {number} of plan {plan.fingerprint} was not reserved: reserve it,"
                    " then draw its noise"
                )
            if number in self.released(plan):
                raise _released_before(plan, number)

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return the noised sums that were released, by the number of the release."""
        return dict(self._released.get(plan.fingerprint, {}))


class LedgerBooks(MemoryBooks):
    """Books that charge a population's ledger release by release, and keep the releases there.

    One object is for one run: of a campaign, and of its pilot if it has one. No other run can use
    the releases that this run reserved. Sums that landed and are not released are only in memory.
    If the process ends before their release, they are lost, and their charge stays.

    Args:
        location: the path or URL of the ledger.
        population: the population whose budget is charged; a plan of another one is refused.
        owner: a name that only this run has, such as 32 random bytes in hexadecimal.
        clock: returns the time, Unix seconds.
        fingerprint: the fingerprint under which the ledger is charged. A simulation puts new keys
            into its plan, which change the fingerprint of the plan; this one stays the same. The
            books then take one plan only. None: the fingerprint of the plan that runs.

    Raises:
        InvalidInputError: nothing was granted to the population.
        UnreadableFileError: there is no ledger.
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
        """Refuse a pilot, before it is charged, if the campaign's budget would be too small then.

        Args:
            plan: the plan of the pilot.
            later: the possible privacy events of the campaign, which will have one of them.

        Raises:
            OverspentError: earlier charges, the pilot and one of these events cost together more
                than the population was granted, or an epsilon above 25.
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
        """Return a warning if the delta of the grant is too large for the clients of a plan."""
        return self._ledger.cautions(self._population, plan.num_clients * plan.people)

    def reserve(self, plan: Plan, release: int) -> None:
        """Charge a release to the ledger, before its sum is opened and its noise is drawn."""
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
        """Keep the noised sums in the ledger, with their charge, and erase the exact sums."""
        with self._lock:
            self._check_release(plan, noised)
            kept = {
                self._reservations[plan.fingerprint, number]: sketch.to_bytes()
                for number, sketch in noised.items()
            }
            # The ledger comes first. If the process ends between the two calls, the release is made
            # and charged, and the exact sum, which is in memory only, is lost.
            self._ledger.land_all(kept, self._owner, self._clock())
            super().release(plan, noised)


def _released_before(plan: Plan, release: int) -> AlreadySpentError:
    return AlreadySpentError(
        f"release {release} of plan {plan.fingerprint} was released: its sum is not opened again"
    )


def _terms(plan: Plan) -> PrivacyConfig:
    assert plan.privacy is not None
    return plan.privacy
