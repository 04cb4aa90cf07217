"""What a campaign spends and releases: reserve before a sum is opened, noise before it leaves."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.privacy.accounting import MOST_ADAPTIVE
from fedtally.privacy.budget import Charge, OverspentError
from fedtally.privacy.events import Event, Relation, Trust
from fedtally.privacy.terms import POPULATION, PrivacyTerms
from fedtally.sketch import CountSketch

if TYPE_CHECKING:
    from fedtally.store import Ledger, Reservation

Random = Callable[[int], bytes]


class Books:
    """The ledger that a campaign is charged to, opening by opening; or none.

    It is one run of a campaign, and of the pilot before it: another one gets nothing of what this one reserved.

    Args:
        location: of the ledger; None: nothing is written.
        population: whose budget is charged.
        fingerprint: of the plan that was given, so that it is charged once whatever keys a simulation makes; None: that
            of the plan that runs.

    Raises:
        InvalidInputError: nothing was granted to the population.
        UnreadableFileError: there is no ledger.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | None = None,
        population: str = POPULATION,
        fingerprint: str | None = None,
    ) -> None:
        self._fingerprint, self._owner = fingerprint, secrets.token_hex(32)
        self._ledger: Ledger | None = None
        self._reserved: dict[int, Reservation] = {}
        if location is not None:
            from fedtally.store import Ledger

            self._ledger = Ledger.open(location)
            if self._ledger.granted(population) is None:
                alike = ", ".join(map(ascii, self._ledger.look_alikes(population)))
                raise InvalidInputError(
                    f"{self._ledger.name} grants nothing to population {population!r}"
                    f"{f', but to what looks like it: {alike}' if alike else ''}: fedtally ledger grant "
                    f"--ledger {self._ledger.name} --population {population} --epsilon ... --delta ..."
                )

    def check_pilot(self, plan: Plan, later: Sequence[Event]) -> None:
        """Refuse a pilot, before anything is spent, whose population could not also bear what may follow.

        Args:
            plan: of the pilot.
            later: what the campaign may cost, one of them.

        Raises:
            OverspentError: it could not.
        """
        if self._ledger is None:
            return
        terms = _terms(plan)
        population, granted = terms.population, self._ledger.granted(terms.population)
        pilot = Charge(population, plan.fingerprint, 0, terms.event)
        for event in later:
            total = self._ledger.spent(population, [pilot, Charge(population, "campaign", 0, event)])
            if granted is not None and total is not None and total.epsilon > min(granted.epsilon, MOST_ADAPTIVE):
                raise OverspentError(
                    f"the pilot and the campaign are both charged, and could take population {population!r} to "
                    f"{total}, and epsilon {granted.epsilon:g} was granted: use a smaller epsilon, or size the sketch "
                    "without a pilot (--sizing minimax, --max-bytes, or a plan of fedtally plan)"
                )

    def reserve(self, plan: Plan, opening: int) -> None:
        """Charge an opening, before anything of it can be opened and before its noise is drawn.

        Every cohort that is summed for it asks again.
        """
        if self._ledger is not None:
            terms = _terms(plan)
            charge = Charge(terms.population, self._fingerprint or plan.fingerprint, opening, terms.event)
            self._reserved[opening] = self._ledger.reserve(charge, self._owner, int(time.time()))

    def land(self, opening: int, sketch: CountSketch) -> None:
        """Keep the noised sum of an opening in the ledger, with its spend."""
        assert sketch.noise is not None
        if self._ledger is not None:
            self._ledger.land(self._reserved[opening], sketch.to_bytes(), self._owner, int(time.time()))


def released(plan: Plan, sketches: list[CountSketch], random: Random, books: Books) -> list[CountSketch]:
    """Return what leaves the trusted part of a campaign: the sums with their noise, each charged before and kept after.

    What it adds noise to it marks (`CountSketch.noise`); a `Result` under a plan with privacy takes nothing else.

    Args:
        plan: of the campaign; without privacy, or where noise was in the sums before they were opened, nothing changes.
        sketches: the sums of all rounds that have clients. A trusted aggregator's are erased.
        random: returns as many uniform bytes as it is asked for.
        books: are charged.

    Proof: docs/privacy-proofs/central.md.
    """
    if plan.privacy is None or (plan.secure_sum is not None and plan.privacy.event.trust is Trust.DISTRIBUTED):
        return sketches
    if plan.privacy.by_clients:
        for sketch in sketches:
            books.reserve(plan, sketch.round)
            _add_shares(plan, sketch, random)
            books.land(sketch.round, sketch)
        return sketches
    found = []
    for number, rounds in enumerate(plan.openings):
        books.reserve(plan, number)
        found.append(_opened(plan, rounds, sketches, random))
    if plan.privacy.event.relation is Relation.ADD_REMOVE:
        _share_out(plan, found)
    for number, sketch in enumerate(found):
        books.land(number, sketch)
    return [sketch for sketch in found if sketch.num_clients]


def _share_out(plan: Plan, released: Sequence[CountSketch]) -> None:
    """Give the openings their parts of the noised number of all clients, as many as their rounds: at least one each.

    Rounds are drawn uniformly, so that nothing but noise is lost; and noise that is more than an opening's clients
    would otherwise be cut off, which favours large numbers.
    """
    total = max(plan.num_rounds, sum(sketch.num_clients for sketch in released))
    bounds = [total * opening.stop // plan.num_rounds for opening in plan.openings]
    for sketch, (start, stop) in zip(released, pairwise([0, *bounds]), strict=True):
        sketch.num_clients = stop - start


def _add_shares(plan: Plan, sketch: CountSketch, random: Random) -> None:
    """Add the noise of all clients of a round to its sum: that of one draw, since shares of Skellam noise add up."""
    noise = _terms(plan).share(sketch.num_clients)
    sketch.counters += noise.draw(Secret(random(KEY_BYTES)), sketch.counters.size).reshape(sketch.counters.shape)
    sketch.noise = plan.noise_mark


def _opened(plan: Plan, rounds: range, sketches: Sequence[CountSketch], random: Random) -> CountSketch:
    """Return the noised sum of the rounds of an opening, under the first round's number, and erase the sums."""
    privacy = _terms(plan)
    own = [sketch for sketch in sketches if sketch.round in rounds]
    total = CountSketch(plan.spec, rounds.start)
    clients, size = sum(sketch.num_clients for sketch in own), total.counters.size
    noise = privacy.noise().draw(Secret(random(KEY_BYTES)), size + 1)
    total.counters += noise[:size].reshape(total.counters.shape)
    total.noise = plan.noise_mark
    for sketch in own:
        total.counters += sketch.counters
        sketch.counters.fill(0)
    hidden = privacy.event.relation is Relation.ADD_REMOVE
    total.num_clients = clients + int(noise[size]) if hidden else clients
    return total


def _terms(plan: Plan) -> PrivacyTerms:
    assert plan.privacy is not None
    return plan.privacy
