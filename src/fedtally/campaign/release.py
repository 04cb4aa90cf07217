"""The release of the sums that landed: reserve, add noise, keep the result, erase the exact sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fedtally.campaign.books import Books, charge
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.plan import Plan, Sums
from fedtally.privacy.config import PrivacyConfig
from fedtally.sketch import CountSketch, copy_of

I64 = npt.NDArray[np.int64]
Random = Callable[[int], bytes]


def release_sums(
    plan: Plan,
    books: Books,
    random: Random,
    used: Sequence[CountSketch] | None = None,
    num_closed: int | None = None,
) -> list[CountSketch]:
    """Return the sums with their noise, which may leave the trusted part of a campaign.

    Each sum is charged before its noise is drawn, and kept afterwards. Noise marks its sketch
    (`CountSketch.noise`), and a `Result` under a plan with privacy takes no sketch without the
    mark. `FrequencyServer.release` calls this function, and says more.

    Args:
        plan: the plan of the campaign, with privacy.
        books: the books that hold the sums that landed, and that are charged.
        random: returns as many uniform bytes as it is asked for.
        used: the sums that are released where the noise is in them before they are opened, without
            the cohorts that screening left out; None: all that landed. No other sums may depend on
            what is in them (docs/privacy-proofs/screening.md).
        num_closed: the number of rounds, from the first, that take no more sums; None: all. It
            matters where an aggregator adds the noise by a calendar.

    Proof: docs/privacy-proofs/central.md.
    """
    # Central noise is drawn once, for all releases: a second noise on one sum would average with
    # the first. Shares belong to single rounds, so that a round that lands later is released later.
    # By a calendar a release is noised once all its rounds are closed: see `_due`.
    if plan.protection.sums is Sums.NOISED:
        opened = books.sums(plan) if used is None else used
        number_of = releases_by_round(plan)
        noised = {number_of[sketch.round]: sketch for sketch in opened}
        for number in noised:
            # It was reserved before it was opened. A ledger that was put back since has forgotten.
            charge(books, plan, number)
        books.release(plan, noised)
    elif plan.protection.of_client() is not None:
        books.release(plan, _add_all_shares(plan, books.sums(plan), random, books))
    elif due := _due(plan, books, num_closed):
        books.release(plan, add_noise(plan, books.sums(plan), random, books, due))
    else:
        books.release(plan, {})  # an earlier release may have failed before it erased the sums
    return released_sums(plan, books)


def released_sums(plan: Plan, books: Books) -> list[CountSketch]:
    """Return copies of the sums that were released and have clients, by round."""
    released = [copy_of(sketch) for _, sketch in sorted(books.released(plan).items())]
    for sketch in released:
        if sketch.num_silos:
            # Noise may leave less than one of few people; nothing is decoded as shares of nobody.
            sketch.num_clients = max(1, sketch.num_clients)
    return [sketch for sketch in released if sketch.num_clients]


def folded(total: I64, largest: int) -> I64:
    """Return an exact, secret sum as one whose entries are within +-largest; honest ones are kept.

    A secure sum is known modulo its modulus alone. Clients that lie can bring an entry to where it
    is read as the largest or as the least number, depending on one other client, and noise does not
    hide such a leap. So what is beyond `largest` is folded back to 0, as far as it is beyond: then
    a change by 1 stays one by at most 1, also around the modulus if that is at least 4 largest, or
    2 largest where no honest entry is negative.

    Args:
        total: entries of a sum, read as integers around 0.
        largest: the largest entry that honest clients make.

    Proof: docs/privacy-proofs/central.md.

    >>> folded(np.array([-2, 3, 4, 5, 6, 127, -128]), 3).tolist()
    [-2, 3, 2, 1, 0, 0, 0]
    """
    size = np.abs(np.clip(total, -2 * largest, 2 * largest))
    return np.asarray(np.sign(total) * np.minimum(size, 2 * largest - size))


def _due(plan: Plan, books: Books, num_closed: int | None) -> list[int]:
    """Return the releases to which an aggregator adds its noise now, by number.

    Without a calendar these are all releases at once, or none: each has noise, also without
    clients. By a calendar a release without a sum is missing, and gets no noise.
    """
    releases = plan.releases
    if plan.calendar is None:
        return [] if books.released(plan) else list(range(len(releases)))
    closed = plan.num_rounds if num_closed is None else num_closed
    number_of = releases_by_round(plan)
    landed = {number_of[sketch.round] for sketch in books.sums(plan)}
    return sorted(number for number in landed if releases[number].stop <= closed)


def releases_by_round(plan: Plan) -> list[int]:
    """Return the number of the release that has each round, by round."""
    return [number for number, rounds in enumerate(plan.releases) for _ in rounds]


def release_of(plan: Plan, round: int) -> int:
    """Return the number of the plan's release that has a round.

    >>> from fedtally.domain import IntegerRange
    >>> plan = Plan(rows=3, width=8, schedule="shared", num_rounds=4, num_clients=50,
    ...             max_round_clients=50, domain=IntegerRange(1, 100).describe(), max_items=1,
    ...             seed=bytes(32))
    >>> release_of(plan, 2)
    2
    """
    return next(number for number, rounds in enumerate(plan.releases) if round in rounds)


def add_noise(
    plan: Plan, sketches: list[CountSketch], random: Random, books: Books, due: Sequence[int]
) -> dict[int, CountSketch]:
    """Return the noised sum of each release that is due, charged before its noise is drawn.

    The sums themselves stay as they are.

    Args:
        plan: a plan with privacy, whose noise an aggregator adds.
        sketches: the sums of all rounds that have clients.
        random: returns as many uniform bytes as it is asked for.
        books: the books that are charged.
        due: the numbers of the releases.
    """
    # Reserved before the draw: noise of a release that cannot be charged would be drawn anew later,
    # and two noises for one sum average.
    found, releases = [], plan.releases
    for number in due:
        charge(books, plan, number)
        found.append(_opened(plan, releases[number], sketches, random))
    # Silos are public, and of unequal sizes: each release keeps the number of its own people.
    if plan.clients.are_hidden(_terms(plan).event.relation):
        _share_out(plan, found)
    return dict(zip(due, found, strict=True))


def _add_all_shares(
    plan: Plan, sketches: list[CountSketch], random: Random, books: Books
) -> dict[int, CountSketch]:
    """Return ideal sums with the noise of their clients, each charged before its noise is drawn."""
    shared = [copy_of(sketch) for sketch in sketches]
    for sketch in shared:
        charge(books, plan, sketch.round)
        _add_shares(plan, sketch, random)
    return {sketch.round: sketch for sketch in shared}


def _share_out(plan: Plan, released: Sequence[CountSketch]) -> None:
    """Share the noised number of all clients out to the releases, by the number of their rounds.

    Each gets at least one. Clients draw their rounds uniformly, so that nothing but noise is lost.
    Noise on each release by itself could exceed its clients and would be cut off at 0, which would
    favour large numbers.
    """
    total = max(plan.num_rounds, sum(sketch.num_clients for sketch in released))
    bounds = [total * release.stop // plan.num_rounds for release in plan.releases]
    for sketch, (start, stop) in zip(released, pairwise([0, *bounds]), strict=True):
        sketch.num_clients = stop - start


def _add_shares(plan: Plan, sketch: CountSketch, random: Random) -> None:
    """Add the noise of all clients of a round to its sum, and of silos to the number of people.

    One draw is enough, since shares of Skellam noise add up to Skellam noise.
    """
    [noise] = plan.protection.of_sum(sketch.num_vectors)
    drawn = noise.draw(Secret(random(KEY_BYTES)), plan.vector_length)
    size = sketch.vector.size
    sketch.vector += drawn[:size]
    sketch.num_clients += int(drawn[size:].sum())  # one draw, or none where clients are no silos
    sketch.noise = plan.noise_mark


def _opened(
    plan: Plan, rounds: range, sketches: Sequence[CountSketch], random: Random
) -> CountSketch:
    """Return the noised sum of the rounds of a release, under the first round's number."""
    privacy = _terms(plan)
    own = [sketch for sketch in sketches if sketch.round in rounds]
    total = CountSketch(plan.spec, rounds.start)
    clients, size = sum(sketch.num_clients for sketch in own), total.vector.size
    # One draw more than counters, also where the number of clients is public: the stream of a key
    # then does not depend on the relation. The noise is in the copy before an exact sum is.
    noise = privacy.noise().draw(Secret(random(KEY_BYTES)), size + 1)
    total.vector += noise[:size]
    total.noise = plan.noise_mark
    for sketch in own:
        total.vector += sketch.vector
    hidden = privacy.event.relation.hides_number
    total.num_clients = clients + int(noise[size]) if hidden else clients
    total.num_silos = sum(sketch.num_silos for sketch in own)
    total.num_clients = plan.clients.shown_people(total.num_clients, total.num_silos)
    return total


def _terms(plan: Plan) -> PrivacyConfig:
    assert plan.privacy is not None
    return plan.privacy
