"""The books of a campaign: what was reserved, which sums landed, and what was released of them.

A `FrequencyServer` asks them before a sum can be opened and before it counts one. `MemoryBooks` end
with the process; `LedgerBooks` charge a ledger as well.
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

    One object keeps the books of several plans, such as a pilot's and its campaign's. An error of a
    method reaches the caller of the server; then nothing was opened or counted.
    """

    def reserve(self, plan: Plan, release: int) -> None:
        """Charge a release of a plan with privacy.

        It is called before the sum can be opened and before the noise is drawn. The run that
        reserved a release may repeat the call, for another cohort or after a restart, until the
        release is out.

        Args:
            plan: the plan of the campaign.
            release: 0 .. len(plan.releases) - 1.

        Raises:
            AlreadySpentError: the release is out, or another run reserved it.
            OverspentError: the population has too little left.
        """

    def has_landed(self, plan: Plan, session: bytes) -> bool:
        """Tell whether the sum of a session has landed."""

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        """Add the sum of a session to the sum of its round, once; return whether it counts.

        It does not count if it had landed before; then nothing changes. It is one transaction: of
        two processes that land a session at once, one counts. Two sessions that land at once
        are both in the sum.

        Args:
            plan: the plan of the campaign.
            session: the name under which the sum lands: the 32 bytes of a session, or the name of a
                batch or of a plain sum.
            sketch: the sum. The books own it from now on.

        Raises:
            AlreadySpentError: the release of the round is out.
        """

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of the rounds that landed and are not released, by round.

        Under central trust they are exact: they are for `campaign.release` alone, which adds the
        noise.
        """

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of `sums` by session, in the order of their rounds, to be screened.

        They are asked for only of plans that `campaign.screening.why_unscreened` allows: without
        privacy, or with all noise in the sum of each session.
        """

    def release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        """Keep the noised sums, by the number of the release, and erase the exact ones.

        It is one transaction. Afterwards nothing lands in these releases.

        Args:
            plan: the plan of the campaign.
            noised: the sums; none of them: an earlier release may have failed before it erased all
                exact sums, and they are erased now.

        Raises:
            InvalidInputError: a release was not reserved.
            AlreadySpentError: a release is out already.
        """

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return what was released, by the number of the release."""


def charge(books: Books, plan: Plan, release: int) -> None:
    """Charge a release of a plan with privacy, as `Books.reserve` says.

    Raises:
        InvalidInputError: the books answered something, such as the coroutine of an `async` method,
            which has reserved nothing.
        Exception: what the books raised.
    """
    call: Callable[[Plan, int], object] = books.reserve
    answer = call(plan, release)
    if answer is not None:
        raise InvalidInputError(
            f"Books.reserve must return None once the release is reserved, and returned"
            f" {type(answer).__name__}: a method of books is a plain function, not an async one"
        )


class MemoryBooks:
    """Books that end with the process and charge nobody.

    They are for plans without privacy, simulations and tests. Several servers in several threads
    may share them.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # a transaction
        self._reserved: set[tuple[str, int]] = set()
        self._landed: set[tuple[str, bytes]] = set()
        # by plan and round: one sum, or those of the cohorts if they may be screened
        self._sums: dict[str, dict[int, list[CountSketch]]] = {}
        self._released: dict[str, dict[int, CountSketch]] = {}  # by plan and release

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise InvalidInputError(
            "books cannot be copied or pickled: two could release one sum with two noises, whose"
            " mean has less; and they hold exact sums"
        )

    def check_pilot(self, plan: Plan, later: Sequence[Event]) -> None:
        """Refuse no pilot: nothing is charged."""

    def reserve(self, plan: Plan, release: int) -> None:
        """Note a release, before its sum can be opened and before its noise is drawn."""
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
            # The name is claimed before the sum is counted: an error below loses the sum, and none
            # counts it twice, which would show in a difference of sums.
            self._landed.add((plan.fingerprint, session))
            landed = self._sums.setdefault(plan.fingerprint, {}).setdefault(sketch.round, [])
            # An exact sum of a cohort that nobody may see is not kept by itself.
            if landed and why_unscreened(plan) is not None:
                landed[0].merge(sketch)
            else:
                landed.append(sketch)
            return True

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of the rounds that landed and are not released, by round."""
        return summed(self.cohorts(plan))

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of sessions that landed and are not released, by round.

        Where they may not be screened, they are added up already.
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
        """Keep the noised sums, by the number of the release, and erase the exact ones."""
        with self._lock:
            self._check_release(plan, noised)
            # kept before the rest is erased: what interrupts this loses nothing
            self._released.setdefault(plan.fingerprint, {}).update(noised)
            sums = self._sums.get(plan.fingerprint, {})
            for number, kept in noised.items():
                for round in plan.releases[number]:
                    # where the noise was in the sum before, the sum itself is what is kept
                    for sketch in sums.pop(round, []):
                        if sketch is not kept:
                            sketch.vector.fill(0)

    def _check_release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        for number in noised:
            # whatever is released without a reservation is in no ledger
            if (plan.fingerprint, number) not in self._reserved:
                raise InvalidInputError(
                    f"release {number} of plan {plan.fingerprint} was not reserved: reserve it,"
                    " then draw its noise"
                )
            if number in self.released(plan):
                raise _released_before(plan, number)

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return what was released, by the number of the release."""
        return dict(self._released.get(plan.fingerprint, {}))


class LedgerBooks(MemoryBooks):
    """Books that charge a population's ledger release by release, and keep the releases there.

    They are one run of a campaign, and of the pilot before it: no other run gets what this one
    reserved. The sums that landed and are not released are in memory: a run that ends before has
    spent what it reserved.

    Args:
        location: the path or URL of the ledger.
        population: the population whose budget is charged; a plan of another one is refused.
        owner: names this run and no other, such as 32 random bytes in hexadecimal.
        clock: returns the time, Unix seconds.
        fingerprint: the fingerprint of the plan that was given, so that it is charged once whatever
            keys a simulation makes: such books are of one plan. None: that of the plan that
                runs.

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
        # imported here: it loads a database library, which books in memory do without
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
        """Refuse a pilot whose population could not also bear the campaign, before it is spent.

        Args:
            plan: the plan of the pilot.
            later: the events that the campaign may have; it has one of them.

        Raises:
            OverspentError: the pilot and one of these campaigns cost more than was granted.
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

    def reserve(self, plan: Plan, release: int) -> None:
        """Charge a release, before its sum can be opened and before its noise is drawn."""
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
        """Keep the noised sums in the ledger, with their spend, and erase the exact ones."""
        with self._lock:
            self._check_release(plan, noised)
            kept = {
                self._reservations[plan.fingerprint, number]: sketch.to_bytes()
                for number, sketch in noised.items()
            }
            # The ledger first: if the process ends in between, the release is out and charged, and
            # its exact sum ends with the process.
            self._ledger.land_all(kept, self._owner, self._clock())
            super().release(plan, noised)


def _released_before(plan: Plan, release: int) -> AlreadySpentError:
    return AlreadySpentError(
        f"release {release} of plan {plan.fingerprint} was released: its sum is not opened again"
    )


def _terms(plan: Plan) -> PrivacyConfig:
    assert plan.privacy is not None
    return plan.privacy
