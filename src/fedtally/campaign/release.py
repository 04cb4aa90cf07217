"""The release of sums: charge the privacy budget, add noise, keep the noised sums.

The exact sums are erased.
"""

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
    """Make all releases that may be made now, and return all noised sums, which anybody may see.

    A sum without noise is charged to the privacy budget before its noise is drawn. A sum with the
    noise of clients or servers was charged before it was opened. It is charged again, which costs
    nothing if the books still have the first charge. The books keep the noised sum. A noised sum
    has a mark, `CountSketch.noise`. If the plan has privacy, a `Result` refuses sums without the
    mark. `FrequencyServer.release` calls this function, and says more.

    Args:
        plan: the plan of the campaign, with privacy.
        books: the books with the sums of all rounds, which also charge the privacy budget.
        random: a cryptographic source; `random(n)` returns n uniform bytes.
        used: the sums to release, without the cohorts that screening left out; None: all sums in
            the books. It is ignored unless clients or servers add the noise before the sums are
            opened. To leave out some exact sums would show something of them, see
            docs/privacy-proofs/screening.md.
        num_closed: how many rounds, from the first, get no more sums; None: all rounds. It has an
            effect only if an aggregator adds the noise and the plan has a calendar.

    Proof: docs/privacy-proofs/central.md.
    """
    # An aggregator draws the noise of a release only once: the mean of two noised versions of a sum
    # would have less noise. Without a calendar, all releases get their noise at once. With a
    # calendar, a release gets its noise when all its rounds are closed, see `_due`. If clients add
    # the noise, each round is a release of its own. A round that gets its sum later is released by
    # a later call.
    if plan.protection.sums is Sums.NOISED:
        opened = books.sums(plan) if used is None else used
        number_of = releases_by_round(plan)
        noised = {number_of[sketch.round]: sketch for sketch in opened}
        for number in noised:
            # The release was reserved before its sum was opened. It is charged again, since an old
            # copy of the ledger, without the charge, may have been restored since then.
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
    """Return copies of the noised sums that were released, in the order of rounds.

    Sums without clients are left out. In a copy of a sum of silos, the number of people is at least
    1, even if the noise has made it smaller.
    """
    released = [copy_of(sketch) for _, sketch in sorted(books.released(plan).items())]
    for sketch in released:
        if sketch.num_silos:
            # With noise, the number of people may be below 1, and a result divides by this number.
            sketch.num_clients = max(1, sketch.num_clients)
    return [sketch for sketch in released if sketch.num_clients]


def folded(total: I64, largest: int) -> I64:
    """Return an exact sum with each entry brought into -largest .. largest, so that noise hides it.

    Entries within the range do not change, so sums of honest clients stay as they are. An entry
    `largest` + d becomes `largest` - d, but at least 0. An entry -(`largest` + d) becomes
    -(`largest` - d), but at most 0.

    The reason: a secure sum is known only modulo its modulus. Clients that lie can bring an entry
    to the point where a change by 1 turns the largest number into the smallest. Then the items of
    one other client decide between the two, and noise does not hide so large a step. After this
    function, a change of an entry by 1 changes the result by at most 1. This is also true around
    the modulus, if the modulus is at least 4 `largest`, or at least 2 `largest` where no honest
    entry is negative.

    Args:
        total: the entries of a sum, as `Plan.read_sum` returns them.
        largest: the largest absolute value that an entry of honest clients can have.

    Proof: docs/privacy-proofs/central.md.

    >>> folded(np.array([-2, 3, 4, 5, 6, 127, -128]), 3).tolist()
    [-2, 3, 2, 1, 0, 0, 0]
    """
    size = np.abs(np.clip(total, -2 * largest, 2 * largest))
    return np.asarray(np.sign(total) * np.minimum(size, 2 * largest - size))


def _due(plan: Plan, books: Books, num_closed: int | None) -> list[int]:
    """Return the numbers, from 0, of the releases to which an aggregator adds its noise now.

    Without a calendar, all releases get their noise at once, also a release without clients. The
    list is empty if this was done before. With a calendar, a release is in the list if all its
    rounds are closed and it has a sum without noise.
    """
    releases = plan.releases
    if plan.calendar is None:
        return [] if books.released(plan) else list(range(len(releases)))
    closed = plan.num_rounds if num_closed is None else num_closed
    number_of = releases_by_round(plan)
    landed = {number_of[sketch.round] for sketch in books.sums(plan)}
    return sorted(number for number in landed if releases[number].stop <= closed)


def releases_by_round(plan: Plan) -> list[int]:
    """Return the number of the release of each round, in the order of rounds."""
    return [number for number, rounds in enumerate(plan.releases) for _ in rounds]


def release_of(plan: Plan, round: int) -> int:
    """Return the number of the release to which a round belongs.

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
    """Return the noised sum of each release in `due`, by the number of the release.

    Each release is charged before its noise is drawn. The sums in `sketches` are not changed. If
    the number of clients is not public, the noised number of clients of all releases together is
    divided among the releases (see `_share_out`).

    Args:
        plan: a plan with privacy, for which an aggregator adds the noise.
        sketches: the exact sums of all rounds that have clients.
        random: a cryptographic source; `random(n)` returns n uniform bytes.
        books: the books, which charge the privacy budget.
        due: the numbers of the releases to make.
    """
    # The charge comes before the draw. If a charge failed after the draw, the noise would later be
    # drawn again, and the mean of two noised sums has less noise.
    found, releases = [], plan.releases
    for number in due:
        charge(books, plan, number)
        found.append(_opened(plan, releases[number], sketches, random))
    # Silos are public and differ in size, so the number of people in each release stays as it is.
    if plan.clients.are_hidden(_terms(plan).event.relation):
        _share_out(plan, found)
    return dict(zip(due, found, strict=True))


def _add_all_shares(
    plan: Plan, sketches: list[CountSketch], random: Random, books: Books
) -> dict[int, CountSketch]:
    """Return noised copies of exact sums, by round; this simulates clients that add the noise.

    Each round is a release of its own, and is charged before its noise is drawn.
    """
    shared = [copy_of(sketch) for sketch in sketches]
    for sketch in shared:
        charge(books, plan, sketch.round)
        _add_shares(plan, sketch, random)
    return {sketch.round: sketch for sketch in shared}


def _share_out(plan: Plan, released: Sequence[CountSketch]) -> None:
    """Set the number of clients in each release to a part of the noised total over all releases.

    The part is in proportion to the number of rounds in the release, and at least 1. Clients draw
    their rounds uniformly, so the parts differ from the true numbers only by chance. The noised
    number of clients of a single release would be worse: it can be below 0, and raising it to 0
    makes the numbers too large on average.
    """
    total = max(plan.num_rounds, sum(sketch.num_clients for sketch in released))
    bounds = [total * release.stop // plan.num_rounds for release in plan.releases]
    for sketch, (start, stop) in zip(released, pairwise([0, *bounds]), strict=True):
        sketch.num_clients = stop - start


def _add_shares(plan: Plan, sketch: CountSketch, random: Random) -> None:
    """Add the noise of all clients of a round to its sum and, with silos, to the number of people.

    One draw replaces the draws of all clients, since sums of Skellam noise are Skellam noise.
    """
    [noise] = plan.protection.of_sum(sketch.num_vectors)
    drawn = noise.draw(Secret(random(KEY_BYTES)), plan.vector_length)
    size = sketch.vector.size
    sketch.vector += drawn[:size]
    sketch.num_clients += int(drawn[size:].sum())  # with silos the slice has one entry, else none
    sketch.noise = plan.noise_mark


def _opened(
    plan: Plan, rounds: range, sketches: Sequence[CountSketch], random: Random
) -> CountSketch:
    """Return the noised sum of a release; the sum's `round` is the release's first round."""
    privacy = _terms(plan)
    own = [sketch for sketch in sketches if sketch.round in rounds]
    total = CountSketch(plan.spec, rounds.start)
    clients, size = sum(sketch.num_clients for sketch in own), total.vector.size
    # For the number of clients, one value more is drawn than there are counters. It is also drawn
    # if the number is public, so that both cases use the same random bytes. The noise is added
    # before the sums, so that the new sketch never has an exact sum.
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
