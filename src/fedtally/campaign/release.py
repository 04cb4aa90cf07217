"""The release of what landed: reserve, add the aggregator's noise, keep what leaves, erase what it was made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from fedtally.campaign.books import Books
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.plan import Plan
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.events import Relation, Trust
from fedtally.sketch import CountSketch

Random = Callable[[int], bytes]


def release_sums(plan: Plan, books: Books, random: Random) -> list[CountSketch]:
    """Return what leaves the trusted part of a campaign: the sums with their noise, each charged before and kept after.

    What it adds noise to it marks (`CountSketch.noise`); a `Result` under a plan with privacy takes
    nothing else. Called by `FrequencyServer.release`, which says more.

    Args:
        plan: of the campaign, with privacy.
        books: hold the sums that landed, and are charged.
        random: returns as many uniform bytes as it is asked for.

    Proof: docs/privacy-proofs/central.md.
    """
    if is_noised_before(plan):
        books.release(plan, {release_of(plan, sketch.round): sketch for sketch in books.sums(plan)})
    elif _terms(plan).by_clients or not books.released(plan):
        books.release(plan, add_noise(plan, books.sums(plan), random, books))
    released = sorted(books.released(plan).items())
    return [copy_of(sketch) for _, sketch in released if sketch.num_clients]


def is_noised_before(plan: Plan) -> bool:
    """Tell whether the noise of a plan with privacy is in its sums before anybody can open them."""
    return plan.secure_sum is not None and _terms(plan).event.trust is Trust.DISTRIBUTED


def release_of(plan: Plan, round: int) -> int:
    """Return which of the plan's releases has a round.

    >>> from fedtally.domain import IntegerRange
    >>> plan = Plan(rows=3, width=8, schedule="shared", num_rounds=4, num_clients=50, max_round_clients=50,
    ...             domain=IntegerRange(1, 100).describe(), max_items=1, seed=bytes(32))
    >>> release_of(plan, 2)
    2
    """
    return next(number for number, rounds in enumerate(plan.releases) if round in rounds)


def add_noise(
    plan: Plan, sketches: list[CountSketch], random: Random, books: Books
) -> dict[int, CountSketch]:
    """Return the noised sum of each release, charged before its noise is drawn.
    The sums stay as they are.

    Args:
        plan: with privacy, whose noise is not in the sums.
        sketches: the sums of all rounds that have clients.
        random: returns as many uniform bytes as it is asked for.
        books: are charged.
    """
    if _terms(plan).by_clients:
        shared = [copy_of(sketch) for sketch in sketches]
        for sketch in shared:
            books.reserve(plan, sketch.round)
            _add_shares(plan, sketch, random)
        return {sketch.round: sketch for sketch in shared}
    found = []
    for number, rounds in enumerate(plan.releases):
        books.reserve(plan, number)
        found.append(_opened(plan, rounds, sketches, random))
    if _terms(plan).event.relation is Relation.ADD_REMOVE:
        _share_out(plan, found)
    return dict(enumerate(found))


def copy_of(sketch: CountSketch) -> CountSketch:
    """Return a sketch of the same sum, which changes by itself."""
    other = CountSketch(sketch.spec, sketch.round)
    other.noise = sketch.noise
    other.merge(sketch)
    return other


def _share_out(plan: Plan, released: Sequence[CountSketch]) -> None:
    """Give the releases their parts of the noised number of all clients, as many as their rounds: at least one each.

    Rounds are drawn uniformly, so that nothing but noise is lost; and noise that is more than a
    release's clients would otherwise be cut off, which favours large numbers.
    """
    total = max(plan.num_rounds, sum(sketch.num_clients for sketch in released))
    bounds = [total * release.stop // plan.num_rounds for release in plan.releases]
    for sketch, (start, stop) in zip(released, pairwise([0, *bounds]), strict=True):
        sketch.num_clients = stop - start


def _add_shares(plan: Plan, sketch: CountSketch, random: Random) -> None:
    """Add the noise of all clients of a round to its sum: that of one draw, since shares of Skellam noise add up."""
    noise = _terms(plan).share(sketch.num_clients)
    sketch.counters += noise.draw(Secret(random(KEY_BYTES)), sketch.counters.size).reshape(
        sketch.counters.shape
    )
    sketch.noise = plan.noise_mark


def _opened(
    plan: Plan, rounds: range, sketches: Sequence[CountSketch], random: Random
) -> CountSketch:
    """Return the noised sum of the rounds of a release, under the first round's number."""
    privacy = _terms(plan)
    own = [sketch for sketch in sketches if sketch.round in rounds]
    total = CountSketch(plan.spec, rounds.start)
    clients, size = sum(sketch.num_clients for sketch in own), total.counters.size
    noise = privacy.noise().draw(Secret(random(KEY_BYTES)), size + 1)
    total.counters += noise[:size].reshape(total.counters.shape)
    total.noise = plan.noise_mark
    for sketch in own:
        total.counters += sketch.counters
    hidden = privacy.event.relation is Relation.ADD_REMOVE
    total.num_clients = clients + int(noise[size]) if hidden else clients
    return total


def _terms(plan: Plan) -> PrivacyConfig:
    assert plan.privacy is not None
    return plan.privacy
