"""Silos (clients with many people each): their options, and how many silos a secure sum protects.

A silo is for example a hospital. The module also computes how closely a sum shows one silo's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist
from typing import TYPE_CHECKING

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg
from fedtally.plan import MAX_CLIENTS, Plan
from fedtally.plan.rules import given
from fedtally.plan.secure_sum import MIN_HONEST
from fedtally.secagg.params import MIN_CLIENTS, Adversary
from fedtally.secagg.proposal import propose

if TYPE_CHECKING:
    from fedtally.plan.frequencies.distribution import Frequencies


@dataclass(frozen=True)
class Silos:
    """The options of a plan whose clients are silos.

    Args:
        people: the most people of one silo, 2 .. 2^40. None: the number in a given plan, or the
            people of the largest silo in a simulation's input.
        silos_per_person: the most silos that may hold items of the same person, in the whole
            campaign.
        expected: the number of people of all silos together, for which errors are predicted. With
            fewer people the same noise causes a larger error. None: every silo has `people` people.

    Raises:
        InvalidInputError: a value is out of bounds.

    >>> Silos(5000).expected_of(10), Silos(5000, expected=8000).expected_of(10)
    (50000, 8000)
    """

    people: int | None
    silos_per_person: int = 1
    expected: int | None = None

    def __post_init__(self) -> None:
        if self.people is not None:
            validate.integer(2, MAX_CLIENTS, people=self.people)
        validate.integer(1, silos_per_person=self.silos_per_person)
        if self.expected is not None:
            validate.integer(1, expected_people=self.expected)

    def check(self, num_silos: int) -> None:
        """Refuse a number of silos that is too small for `silos_per_person` or for `expected`.

        Args:
            num_silos: the number of silos of the campaign.

        Raises:
            InvalidInputError: `num_silos` is below `silos_per_person`, or this number of silos
                cannot have `expected` people.
        """
        if self.silos_per_person > num_silos:
            raise InvalidInputError(
                f"{arg.silos_per_person} must be at most {num_silos}, the number of silos, got"
                f" {self.silos_per_person}"
            )
        most = num_silos * self.most
        if self.expected is not None and self.expected > most:
            raise InvalidInputError(
                f"{arg.expected_people} must be at most {most:,}, {num_silos:,} silos of"
                f" {self.most:,} people, got {self.expected:,}; raise people, or expect fewer"
            )

    def expected_of(self, num_silos: int) -> int:
        """Return the number of people in `num_silos` silos for which errors are predicted."""
        return num_silos * self.most if self.expected is None else self.expected

    def beyond_column(self) -> dict[str, int]:
        """Return `people` and `silos_per_person` by name.

        `people` is left out if it is None, and `silos_per_person` if it is 1.
        """
        return given(
            people=self.people,
            silos_per_person=self.silos_per_person if self.silos_per_person > 1 else None,
        )

    @property
    def most(self) -> int:
        """The most people of one silo; use it only if `people` is not None."""
        assert self.people is not None
        return self.people


def fitting_numbers(
    max_dropout: float, adversary: Adversary | str, corrupt: int = 1, most: int = 12
) -> dict[int, int]:
    """Return the numbers of silos that a secure sum can protect.

    Args:
        max_dropout: the share of the silos that may drop out, 0 <= max_dropout < 1.
        adversary: the adversary, "semi-honest" or "active", or the member of `Adversary`.
        corrupt: the number of corrupt silos in a sum, at least 1: a silo that reads the result can
            subtract its own share of the noise.
        most: the largest number of silos to try.

    Returns:
        A dict: the key is a number of silos; the value is the number of honest silos that are sure
        to be in the sum and to add noise.

    >>> fitting_numbers(0.2, "active"), 3 in fitting_numbers(0.0, "active")
    ({8: 4, 9: 5, 10: 6, 11: 6, 12: 7}, False)
    """
    corrupt = validate.integer(1, corrupt=corrupt)
    found = {}
    for silos in range(MIN_CLIENTS, most + 1):
        try:
            # any length and bits will do: whether `propose` succeeds does not depend on them
            parameters = propose(
                silos,
                length=1,
                bits=64,
                corrupt=min(corrupt, silos),
                max_dropout=max_dropout,
                adversary=adversary,
            )
        except InvalidInputError:
            continue
        if parameters.honest_survivors >= MIN_HONEST:
            found[silos] = parameters.honest_survivors
    return found


def in_ranges(numbers: Iterable[int]) -> str:
    """Return rising numbers as a text, in which consecutive numbers become ranges; "none" if empty.

    >>> in_ranges([2, 3, 4, 6, 8, 9]), in_ranges([])
    ('2 to 4, 6, 8 to 9', 'none')
    """
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{run[0]} to {run[-1]}" if run[1:] else f"{run[0]}" for run in runs) or "none"


def size_shown(plan: Plan, sums: int = 1, confidence: float = 0.95) -> float:
    """Return how precisely a sum shows one silo's size: half the width of an interval.

    The unit is people.

    The reader of the sum is assumed to know the sizes of all other silos. Then only the noise on
    the number of people hides the size. The noise is taken as normal, with the smallest variance
    that the plan guarantees; more honest silos in a sum add more noise. Returns 0 if the plan has
    no privacy: the sum then shows the size exactly.

    Args:
        plan: a plan whose clients are silos.
        sums: the number of independent sums that the reader compares: 2 for the difference between
            a sum with the silo and a sum without it.
        confidence: the probability that the true size is within the returned number of people of
            the estimate, above 0 and below 1.

    Raises:
        InvalidInputError: the clients of the plan are not silos, or a value is out of its range.
    """
    if why := plan.clients.why_no_silos:
        raise InvalidInputError(why)
    if plan.privacy is None:
        return 0.0
    share = validate.inside(confidence=confidence)
    deviations = NormalDist().inv_cdf((1 + share) / 2)
    return deviations * plan.privacy.stddev * math.sqrt(validate.integer(1, sums=sums))


def error_of_number(distribution: Frequencies, noise: float, probability: float) -> float:
    """Return the error that noise on the number of people causes in the largest frequency.

    A frequency is a count divided by the number of people. So an error in this number scales all
    frequencies, and changes the largest one most. This error is independent of the noise in the
    counters, so that the squares of the two errors add up.

    Args:
        distribution: the known frequencies of the items.
        noise: the standard deviation of the noise on the number of people, divided by the number of
            people.
        probability: the probability with which the returned error may be exceeded.
    """
    heaviest = float(distribution.frequencies.max(initial=0.0))
    return heaviest * noise * NormalDist().inv_cdf(1 - probability / 2)
