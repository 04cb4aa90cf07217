"""The schedules that a planned campaign may have, and the sizes of its rounds."""

from __future__ import annotations

import math

from fedtally.recovery.decoding import kind_of
from fedtally.sketch import Schedule
from fedtally.sketch.schedule import AUTO, BATCHED_AUTO

_MARGIN = 6  # a round's size is planned to be within this many standard deviations of its mean


def possible_schedules(
    name: Schedule | str, num_rounds: int, recovery: str, *, noised_by_release: bool
) -> list[Schedule]:
    """Return the schedules from which the planner may choose, the preferred one first.

    A schedule says which rounds share the locations and the signs of items. "auto" and
    "batched:auto" leave the choice to the planner: the list then has all schedules that are worth a
    comparison. Any other `name` is one schedule, and the list has only this one.

    Args:
        name: a `Schedule`, the name of one, "auto", or "batched:auto".
        num_rounds: the number of rounds of the campaign.
        recovery: the name of the decoder; each decoder has its own preferred schedules.
        noised_by_release: whether the noise is added once to each sum that is opened, by an
            aggregator or by two servers. Then fewer and larger sums have less noise, so that
            batches of rounds are tried, too.

    >>> [str(one) for one in possible_schedules("auto", 10, "joint", noised_by_release=False)]
    ['hybrid']
    >>> [str(one) for one in possible_schedules("auto", 4, "joint", noised_by_release=True)]
    ['hybrid', 'batched:3', 'batched:2', 'shared']
    """
    if name not in (AUTO, BATCHED_AUTO):
        return [Schedule.parse(name)]
    if num_rounds == 1:
        return [Schedule.parse("shared" if name == AUTO else "batched:1")]
    if name == AUTO and not noised_by_release:
        return [Schedule.parse(usual) for usual in kind_of(recovery).schedules]
    few = sorted(numbers_of_batches(num_rounds) - {1, num_rounds}, reverse=True)
    ends = ("hybrid", "shared") if name == AUTO else (f"batched:{num_rounds}", "batched:1")
    names = (ends[0], *(f"batched:{number}" for number in few), ends[1])
    return [Schedule.parse(listed) for listed in names]


def numbers_of_batches(num_rounds: int) -> set[int]:
    """Return the numbers of batches that the planner tries for a campaign of `num_rounds` rounds.

    A batch is a group of consecutive rounds that share all hashes and signs.

    Trying all numbers would take too long. Small numbers of batches grow by factors of about
    sqrt(2). Large numbers are chosen by the rounds in a batch instead: these grow by factors of
    about sqrt(2).

    >>> sorted(numbers_of_batches(20))
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 16, 20]
    """
    powers = {round(2 ** (i / 2)) for i in range(2 * num_rounds.bit_length())}
    powers = {power for power in powers if power <= num_rounds}
    return powers | {-(-num_rounds // power) for power in powers}


def round_size_bounds(expected: float) -> tuple[int, int]:
    """Return the fewest and the most clients that a round of random clients may get.

    The size of a round is outside these bounds with a probability of at most 3e-9 if at least 1,000
    clients are expected. With fewer clients it is more likely: about 4e-8 with 36 and 1e-5 with
    one. If fewer than 36 are expected, the first bound is negative.

    Args:
        expected: the expected number of clients of the round.

    >>> round_size_bounds(10_000.0)
    (9400, 10600)
    """
    room = _MARGIN * math.sqrt(expected)
    return math.floor(expected - room), math.ceil(expected + room)


def sizes_with_extremes(num_clients: int, rounds: int) -> list[int]:
    """Return one possible split of clients into rounds, with a very small and a very large round.

    The result has `rounds` sizes, which sum to `num_clients`. The first size is the lower bound of
    `round_size_bounds`, at least 1. The second size is about as far above the mean as the first
    size is below. All further sizes are nearly equal. So a plan that is checked with these sizes
    also suits other random splits. A single round has all clients.

    >>> sizes_with_extremes(40_000, 4)
    [9400, 10600, 10000, 10000]
    """
    if rounds == 1:
        return [num_clients]
    least = max(1, round_size_bounds(num_clients / rounds)[0])
    most = min(2 * num_clients // rounds - least, num_clients - least - (rounds - 2))
    others = num_clients - least - most
    if rounds == 2:
        return [least, num_clients - least]
    small, larger = divmod(others, rounds - 2)
    return [least, most] + [small + 1] * larger + [small] * (rounds - 2 - larger)
