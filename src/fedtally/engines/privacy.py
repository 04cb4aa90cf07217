"""Differential privacy in a campaign: what was asked for, the terms that its plan gets, and how noised sums land.

With privacy, whatever chooses a parameter or names an item is public. What only a study may use is refused elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedtally import _validate, kernels
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.domain import Domain
from fedtally.engines.summation import Summation
from fedtally.engines.tally import Members, RoundTally, tallied
from fedtally.errors import InvalidInputError
from fedtally.plan import MAX_CLIENTS, Plan
from fedtally.privacy.accounting import MOST_ADAPTIVE
from fedtally.privacy.budget import Charge, OverspentError, checked_name
from fedtally.privacy.events import Collisions, Event, Relation, Trust, certify
from fedtally.privacy.terms import POPULATION, PrivacyTerms, default_delta, propose
from fedtally.secagg.params import corrupt_clients
from fedtally.sketch import CountSketch, Schedule, SketchSpec
from fedtally.sketch.clip import clipped, exceeding

if TYPE_CHECKING:
    from fedtally.store import Ledger, Reservation

MAX_CERTIFIED = 1 << 22  # candidates
Random = Callable[[int], bytes]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The differential privacy that is asked for.

    Args:
        epsilon: what the campaign may cost.
        delta: what it may cost besides; None: 1e-6, or a tenth of one over the number of clients if that is less.
        trust: "central" or "distributed"; None: central where the secure sum is ideal, else distributed.
        relation: "zero-out", "replace-one" or "add-remove".
        max_rounds: the most natural rounds that one client takes part in; None: all of them.
        max_clients: for add-remove, a public bound on the number of clients, which is itself private then.
        certify: for replace-one, look for the worst pair of candidates under the very hashes, which needs less noise.
        population: whose budget is charged.
        study: allow what makes a run a study: private candidates, a seed, the truth.

    Raises:
        InvalidInputError: values do not go together.
    """

    epsilon: float
    delta: float | None = None
    trust: Trust | str | None = None
    relation: Relation | str = Relation.ZERO_OUT
    max_rounds: int | None = None
    max_clients: int | None = None
    certify: bool = False
    population: str = POPULATION
    study: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        if self.trust is not None:
            object.__setattr__(self, "trust", Trust.parse(self.trust))
        for name, most in (("max_rounds", None), ("max_clients", MAX_CLIENTS)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _validate.integer(1, most, **{name: value}))
        checked_name(population=self.population)
        if (self.relation is Relation.ADD_REMOVE) != (self.max_clients is not None):
            raise InvalidInputError(
                "add-remove needs max_clients, a public bound on the number of clients, which is private then"
                if self.max_clients is None
                else f"max_clients goes with the relation add-remove: for {self.relation} the number is public"
            )
        if self.certify and self.relation is not Relation.REPLACE_ONE:
            raise InvalidInputError(f"certify goes with the relation replace-one, got {self.relation}")

    def trusts(self, summation: Summation) -> Trust:
        """Return whom it trusts.

        Raises:
            InvalidInputError: the relation, or the secure sum, does not go with that.
        """
        if self.relation is Relation.ADD_REMOVE and summation.method != "ideal":
            raise InvalidInputError(
                f"add-remove hides the number of clients, which the secure sum {summation.method} shows: "
                "use zero-out or replace-one, or an ideal secure sum"
            )
        default = Trust.CENTRAL if summation.method == "ideal" else Trust.DISTRIBUTED
        trust = default if self.trust is None else Trust.parse(self.trust)
        if self.relation is Relation.ADD_REMOVE and trust is not Trust.CENTRAL:
            raise InvalidInputError("add-remove needs central trust: the number of clients must be noised too")
        return trust

    def opens(self, schedule: Schedule, num_rounds: int, summation: Summation) -> list[range]:
        """Return the rounds of each opening; as `Plan.openings`."""
        if self.trusts(summation) is Trust.DISTRIBUTED and summation.method != "two-server":
            return [range(round, round + 1) for round in range(num_rounds)]
        return schedule.batches_of(num_rounds)


def make_terms(
    asked: Privacy,
    *,
    rows: int,
    width: int,
    schedule: Schedule,
    max_items: int,
    participations: int,
    num_clients: Sequence[int],
    most_clients: int,
    summation: Summation,
    honest_survivors: int | None,
) -> PrivacyTerms:
    """Return what the plan says of privacy.

    Args:
        asked: what was asked for.
        rows: of the sketch.
        width: of the sketch.
        schedule: of the rounds.
        max_items: the most items of one client in a round.
        participations: the most rounds of one client.
        num_clients: of each round.
        most_clients: in a sum, by the plan.
        summation: how rounds are summed.
        honest_survivors: of the terms of secure aggregation; None for another secure sum.

    Raises:
        InvalidInputError: nothing protects so, or rounds are too small.
    """
    trust = asked.trusts(summation)
    together = max(map(len, asked.opens(schedule, len(num_clients), summation)))
    total = asked.max_clients or sum(num_clients)
    shares = trust is Trust.DISTRIBUTED and summation.method != "two-server"
    return propose(
        epsilon=asked.epsilon,
        delta=default_delta(total) if asked.delta is None else asked.delta,
        rows=rows,
        width=width,
        relation=asked.relation,
        trust=trust,
        max_items=max_items,
        participations=participations,
        per_opening=min(participations, together),
        honest_survivors=(honest_survivors or honest_clients(summation, num_clients)) if shares else None,
        most_clients=most_clients,
        population=asked.population,
        study=asked.study,
    )


def honest_clients(summation: Summation, num_clients: Sequence[int]) -> int:
    """Return the fewest clients that count on each other's noise, where a trusted process stands in for secagg."""
    sizes = [count for count in num_clients if count]
    least, corrupt = min(sizes), corrupt_clients(summation.max_corrupt, max(sizes))
    honest = least - int(summation.borne * least) - corrupt
    if honest < 1:
        raise InvalidInputError(
            f"a round of {least} clients, of which {corrupt} may be corrupt and {summation.borne:.0%} may drop out, "
            "has no honest client whose noise is sure: use fewer or larger rounds, or a smaller max_corrupt, or "
            "central trust"
        )
    return honest


def worst_pair(spec: SketchSpec, domain: Domain, report: Callable[..., None]) -> Collisions:
    """Return how the candidates collide at worst under the very hashes of the campaign.

    Raises:
        InvalidInputError: too many candidates.
    """
    if domain.size > MAX_CERTIFIED:
        raise InvalidInputError(
            f"certify looks at all pairs of candidates: at most {MAX_CERTIFIED:,}, got {domain.size:,}; leave it out"
        )
    batches = spec.schedule.batches_of(spec.num_rounds)
    ids = domain.ids(0, domain.size)

    def hashes() -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]]:
        for number, batch in enumerate(batches):
            own = spec.round_hash(batch.start)
            cells = kernels.locations(kernels.hash_words(own.location, ids), spec.width)
            yield cells, kernels.signs(kernels.hash_words(own.sign, ids), own.sign_bit)
            report("certify", number + 1, len(batches))

    return certify(hashes())


def check_certificate(plan: Plan, domain: Domain, report: Callable[..., None]) -> None:
    """Refuse a plan whose candidates collide worse than it says.

    Raises:
        InvalidInputError: they do; its noise is too little then.
    """
    said = None if plan.privacy is None else plan.privacy.event.collisions
    if said is None:
        return
    found = worst_pair(plan.spec, domain, report)
    if found.opposite > said.opposite or found.excess > said.excess:
        raise InvalidInputError(
            f"the plan says that no two candidates collide worse than {said.opposite} opposite rows (excess "
            f"{said.excess}), and some do, in {found.opposite} (excess {found.excess}): its noise is too little; make "
            "a new plan with certify"
        )


def bounded(plan: Plan, rounds: Sequence[RoundTally], key: bytes) -> list[RoundTally]:
    """Return the rounds without the items by which clients exceed the plan's clip; all of them, if it has none.

    Args:
        plan: of the campaign.
        rounds: with members, if the plan has a clip.
        key: 32 uniform bytes; what a client drops depends on them, its place and its own items alone.
    """
    clip = None if plan.privacy is None else plan.privacy.event.clip_norm
    if clip is None:
        return list(rounds)
    return [_bounded(plan, number, tally, clip, key) for number, tally in enumerate(rounds)]


def _bounded(plan: Plan, number: int, tally: RoundTally, clip: float, key: bytes) -> RoundTally:
    assert tally.members is not None
    ids, starts = tally.members
    kept = np.ones(len(ids), np.bool_)
    for client in exceeding(plan.spec, number, ids, starts, clip).tolist():
        own = slice(starts[client], starts[client + 1])
        random = _stream(key + number.to_bytes(8, "little") + client.to_bytes(8, "little"))
        kept[own] = np.isin(ids[own], clipped(plan.spec, number, ids[own], clip, random))
    if kept.all():
        return tally
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return tallied(Members(ids[kept], before[starts]))


def _stream(key: bytes) -> Random:
    """Return a source of bytes that a key determines, other ones at each call."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(key + next(calls).to_bytes(8, "little")).digest(size)


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
