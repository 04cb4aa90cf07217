"""The rounds of a planned campaign: their possible schedules, and their sizes."""

from __future__ import annotations

import math

from fedtally.recovery.decoding import kind_of
from fedtally.sketch import Schedule
from fedtally.sketch.schedule import AUTO, BATCHED_AUTO

_MARGIN = 6  # how far the size of a round may be from its mean, in standard deviations


def possible_schedules(
    name: Schedule | str, num_rounds: int, recovery: str, *, noised_by_release: bool
) -> list[Schedule]:
    """Return the schedules that a name stands for, the preferred one first.

    The names "auto" and "batched:auto" stand for all schedules that they choose from. Every other
    name stands for one schedule.

    Args:
        name: a schedule or its name, "auto" or "batched:auto".
        num_rounds: the number of rounds of the campaign.
        recovery: the name of a decoder.
        noised_by_release: whether an aggregator or two servers add noise once to each sum that is
            opened.

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
    """Return the numbers of batches to try.

    Successive numbers differ by a factor of about sqrt(2). If there are many batches of few rounds,
    the sizes of the batches differ by this factor instead.

    >>> sorted(numbers_of_batches(20))
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 16, 20]
    """
    powers = {round(2 ** (i / 2)) for i in range(2 * num_rounds.bit_length())}
    powers = {power for power in powers if power <= num_rounds}
    return powers | {-(-num_rounds // power) for power in powers}


def round_size_bounds(expected: float) -> tuple[int, int]:
    """Return the fewest and the most clients of a round whose clients are drawn at random.

    The size of a round is outside these bounds with a probability of about 1e-9. The first bound is
    negative if fewer than 36 clients are expected.

    >>> round_size_bounds(10_000.0)
    (9400, 10600)
    """
    room = _MARGIN * math.sqrt(expected)
    return math.floor(expected - room), math.ceil(expected + room)


def sizes_with_extremes(num_clients: int, rounds: int) -> list[int]:
    """Return sizes of rounds that sum to `num_clients`, with the likely extremes among them.

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
