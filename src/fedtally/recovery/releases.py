"""The noise of a campaign's released sums, and numbers of batches that are worth a try.

Rounds that are added up before anything is opened share their noise, but their signs, too. More
batches cancel more of the population's tail, and each release has noise of its own. So there is a
best number of batches (docs/releases.md), which the planner finds by the error model.

How private a campaign is, `fedtally.privacy.accounting` computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.privacy.accounting import noise_multiplier
from fedtally.privacy.events import Event, Mechanism


@dataclass(frozen=True)
class Release:
    """The sums that a campaign opens, and how private they must be.

    With rounded Gaussian noise the rounds of a batch are added up before anything is opened, by a
    trusted aggregator or by two servers, each of which adds all of the noise. With Skellam noise
    one server opens every round.

    Args:
        event: the exposure of a client. Its variance and per_opening are not used.
        epsilon: the target, 1e-6 .. 1e3.
        delta: the target, in (0, 1).
        num_clients: the clients of all rounds together; a client that takes part twice counts
            twice.
        num_rounds: M, the rounds, of equal size; at least event.participations.
        provision: the variance of the noise that is in a sum over the variance that is accounted,
            at least 1. It is survivors / (min_survivors - C), since all survivors add noise.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> event = Event("rounded-gaussian", rows=16, relation="zero-out", participations=4)
    >>> release = Release(event, epsilon=1.0, delta=1e-6, num_clients=1_000_000, num_rounds=64)
    >>> # a client's 4 rounds are in batches of 4, of 4, of 2 + 2, or of 1 + 1 + 1 + 1
    >>> [round(release.noise(batches), 1) for batches in (1, 16, 32, 64)]
    [67.6, 67.6, 47.8, 33.8]
    """

    event: Event
    epsilon: float
    delta: float
    num_clients: int
    num_rounds: int
    provision: float = 1.0

    def __post_init__(self) -> None:
        validate.integer(1, num_clients=self.num_clients)
        validate.integer(self.event.participations, num_rounds=self.num_rounds)
        validate.real(1.0, provision=self.provision)
        if self.provision > 1 and self.adds_up:
            raise InvalidInputError(
                f"provision belongs to the shares of skellam noise, got {self.provision:g}"
            )
        noise_multiplier(self.epsilon, self.delta)  # raises where epsilon or delta is out of range

    @property
    def adds_up(self) -> bool:
        """Whether rounds of a batch are added up before anything is opened."""
        return self.event.mechanism is Mechanism.ROUNDED_GAUSSIAN

    def num_releases(self, num_batches: int) -> int:
        """Return how many noised sums are opened."""
        self._sizes(num_batches)
        return num_batches if self.adds_up else self.num_rounds

    def noise(self, num_batches: int) -> float:
        """Return the standard deviation of the noise in one counter of one release, in counts."""
        most, _, _ = self._sizes(num_batches)
        return _noise(self, min(self.event.participations, most if self.adds_up else 1))

    def noise_variance(self, num_batches: int) -> float:
        """Return the variance of one row's estimates by noise alone, in squared frequencies."""
        return self.num_releases(num_batches) * (self.noise(num_batches) / self.num_clients) ** 2

    def _sizes(self, num_batches: int) -> tuple[int, int, int]:
        """Return the most rounds of a batch, the number of such batches, and that of smaller ones.

        The smaller batches have one round less.
        """
        num_batches = validate.integer(1, self.num_rounds, num_batches=num_batches)
        most = -(-self.num_rounds // num_batches)
        smaller = most * num_batches - self.num_rounds
        return most, num_batches - smaller, smaller


@lru_cache(maxsize=256)
def _noise(release: Release, per_release: int) -> float:
    event = release.event
    # The bound on collisions is certified for rounds that are opened one by one only.
    collisions = event.collisions if per_release == 1 else None
    sensitivity = replace(event, per_release=per_release, collisions=collisions).l2_sensitivity
    return (
        noise_multiplier(release.epsilon, release.delta)
        * sensitivity
        * math.sqrt(event.draws_of_sum * release.provision)
    )


def numbers_of_batches(num_rounds: int) -> set[int]:
    """Return numbers of batches about a factor of sqrt(2) apart.

    Where a batch holds few rounds, the sizes of the batches are about that far apart instead.

    >>> sorted(numbers_of_batches(20))
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 16, 20]
    """
    powers = {round(2 ** (i / 2)) for i in range(2 * num_rounds.bit_length())}
    powers = {power for power in powers if power <= num_rounds}
    return powers | {-(-num_rounds // power) for power in powers}
