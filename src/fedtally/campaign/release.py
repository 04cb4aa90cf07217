"""The release of sums that landed: charge it, add noise, keep the noised sum, erase the exact."""

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
    """Return the noised sums, which may leave the trusted part of a campaign.

    Each sum is charged before its noise is drawn. The books keep the noised sum. A sketch with
    noise has a mark (`CountSketch.noise`); a `Result` under a plan with privacy refuses sketches
    without the mark. `FrequencyServer.release` calls this function; its docstring has details.

    Args:
        plan: the plan of the campaign, with privacy.
        books: the books that hold the sums that landed, and that are charged.
        random: returns as many uniform bytes as it is asked for.
        used: the sums to release, without the cohorts that screening left out; None: all sums that
            landed. It is ignored unless the noise is in the sums before they are opened: which
            exact sums are left out would show something of them (docs/privacy-proofs/screening.md).
        num_closed: the number of rounds, from the first, that take no more sums; None: all. It has
            an effect only if an aggregator adds the noise and the plan has a calendar.

    Proof: docs/privacy-proofs/central.md.
    """
    # Central noise is drawn once for each release: the mean of two noised versions of one sum would
    # have less noise. Without a calendar all releases are noised at once; with a calendar, a
    # release is noised when all its rounds are closed (see `_due`). Shares of clients belong to
    # single rounds, so a round that lands later is released later.
    if plan.protection.sums is Sums.NOISED:
        opened = books.sums(plan) if used is None else used
        number_of = releases_by_round(plan)
        noised = {number_of[sketch.round]: sketch for sketch in opened}
        for number in noised:
            # The release was reserved before its sum was opened. It is charged again in case an old
            # copy of the ledger, without the charge, was restored since then.
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
    """Return copies of the released sums that have clients, in the order of rounds."""
    released = [copy_of(sketch) for _, sketch in sorted(books.released(plan).items())]
    for sketch in released:
        if sketch.num_silos:
            # Noise may bring the number of people below 1, and a result divides by this number.
            sketch.num_clients = max(1, sketch.num_clients)
    return [sketch for sketch in released if sketch.num_clients]


def folded(total: I64, largest: int) -> I64:
    """Return an exact sum with each entry brought into -largest .. largest, so that noise hides it.

    Entries within the range stay as they are, so the sums of honest clients do not change. An entry
    beyond `largest` by d becomes largest - d, but not less than 0; negative entries likewise.

    Reason: a secure sum is known only modulo its modulus. Clients that lie can bring an entry to
    the point where a change by 1 turns the largest number into the smallest. Then the items of one
    other client decide between the two, and noise does not hide so large a step. After the folding,
    a change of an entry by 1 changes the result by at most 1. This also holds around the modulus,
    if the modulus is at least 4 largest, or 2 largest where no honest entry is negative.

    Args:
        total: the entries of a sum, read as integers around 0.
        largest: the largest absolute value of an entry of honest clients.

    Proof: docs/privacy-proofs/central.md.

    >>> folded(np.array([-2, 3, 4, 5, 6, 127, -128]), 3).tolist()
    [-2, 3, 2, 1, 0, 0, 0]
    """
    size = np.abs(np.clip(total, -2 * largest, 2 * largest))
    return np.asarray(np.sign(total) * np.minimum(size, 2 * largest - size))


def _due(plan: Plan, books: Books, num_closed: int | None) -> list[int]:
    """Return the numbers of the releases to which an aggregator adds its noise now.

    Without a calendar these are all releases, or none if they were made before; a release without
    clients gets noise, too. With a calendar these are the releases whose rounds are all closed and
    of which a sum landed.
    """
    releases = plan.releases
    if plan.calendar is None:
        return [] if books.released(plan) else list(range(len(releases)))
    closed = plan.num_rounds if num_closed is None else num_closed
    number_of = releases_by_round(plan)
    landed = {number_of[sketch.round] for sketch in books.sums(plan)}
    return sorted(number for number in landed if releases[number].stop <= closed)


def releases_by_round(plan: Plan) -> list[int]:
    """Return a list with the number of the release of each round, in the order of rounds."""
    return [number for number, rounds in enumerate(plan.releases) for _ in rounds]


def release_of(plan: Plan, round: int) -> int:
    """Return the number of the release that a round belongs to.

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
    """Return the noised sum of each release that is due, by the number of the release.

    Each release is charged before its noise is drawn. The given sums are not changed.

    Args:
        plan: a plan with privacy, whose noise an aggregator adds.
        sketches: the sums of all rounds that have clients.
        random: returns as many uniform bytes as it is asked for.
        books: the books that are charged.
        due: the numbers of the releases.
    """
    # Each release is charged before the draw. If the charge failed after the draw, the noise would
    # be drawn a second time later, and the mean of two noised sums has less noise.
    found, releases = [], plan.releases
    for number in due:
        charge(books, plan, number)
        found.append(_opened(plan, releases[number], sketches, random))
    # Silos are public and have unequal sizes, so each release keeps its own number of people.
    if plan.clients.are_hidden(_terms(plan).event.relation):
        _share_out(plan, found)
    return dict(zip(due, found, strict=True))


def _add_all_shares(
    plan: Plan, sketches: list[CountSketch], random: Random, books: Books
) -> dict[int, CountSketch]:
    """Return noised copies of exact sums, by round, as a simulation of noise by clients.

    Each release is charged before its noise is drawn. Such a plan has one release for each round.
    """
    shared = [copy_of(sketch) for sketch in sketches]
    for sketch in shared:
        charge(books, plan, sketch.round)
        _add_shares(plan, sketch, random)
    return {sketch.round: sketch for sketch in shared}


def _share_out(plan: Plan, released: Sequence[CountSketch]) -> None:
    """Set the number of clients of each release to its part of the noised total.

    The part is in proportion to the number of the release's rounds, and at least 1. Clients draw
    their rounds uniformly, so the parts differ from the true numbers only by chance. A noised
    number of each release would be worse: it can be below 0, and to raise it to 0 would make the
    numbers too large on average.
    """
    total = max(plan.num_rounds, sum(sketch.num_clients for sketch in released))
    bounds = [total * release.stop // plan.num_rounds for release in plan.releases]
    for sketch, (start, stop) in zip(released, pairwise([0, *bounds]), strict=True):
        sketch.num_clients = stop - start


def _add_shares(plan: Plan, sketch: CountSketch, random: Random) -> None:
    """Add the noise of all clients of a round to its sum and, with silos, to the number of people.

    One draw replaces the shares of all clients, since Skellam shares add up to Skellam noise.
    """
    [noise] = plan.protection.of_sum(sketch.num_vectors)
    drawn = noise.draw(Secret(random(KEY_BYTES)), plan.vector_length)
    size = sketch.vector.size
    sketch.vector += drawn[:size]
    sketch.num_clients += int(drawn[size:].sum())  # one entry with silos, else none
    sketch.noise = plan.noise_mark


def _opened(
    plan: Plan, rounds: range, sketches: Sequence[CountSketch], random: Random
) -> CountSketch:
    """Return the noised sum of the rounds of a release; its round number is the first of them."""
    privacy = _terms(plan)
    own = [sketch for sketch in sketches if sketch.round in rounds]
    total = CountSketch(plan.spec, rounds.start)
    clients, size = sum(sketch.num_clients for sketch in own), total.vector.size
    # One value more than there are counters is drawn, for the number of clients. It is drawn also
    # if the number of clients is public, so that random bytes are used alike in both cases. The
    # noise is added first, so that the new sketch never holds an exact sum.
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
