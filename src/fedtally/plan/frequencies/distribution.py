"""The frequencies that a plan is made for: known, assumed, or read of a pilot.

`fedtally.recovery.error_model` takes frequencies in groups of items of one frequency.
How a pilot is read is in `fedtally.plan.frequencies.pilot`, with its theory in docs/accuracy.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.plan.frequencies import pilot
from fedtally.plan.frequencies.pilot import Fit
from fedtally.plan.frequencies.power_law import STEEPEST, capped, ranks_between
from fedtally.recovery.error_model import rising
from fedtally.sketch import CountSketch

F64 = npt.NDArray[np.float64]
_ALONE = 60  # heaviest items that are kept one by one
_GROUP = 1.01  # items within this ratio are taken together


@dataclass(frozen=True, eq=False)
class Frequencies:
    """What is known of the frequencies, as `fedtally.recovery.error_model` takes it.

    Attributes:
        frequencies: float64 [k], above 0; the heaviest first, then groups of the others.
        numbers: float64 [k], how many items have each.
        domain_size: how many candidates there are.
        fit: how a pilot was read; None where frequencies were known.
        heterogeneity: the heterogeneity of the rounds, at least 1.
        max_items: the most items of one client: a bound on the sum of frequencies.
        is_hardest: whether these are the hardest frequencies, in place of any others.
    """

    frequencies: F64
    numbers: F64
    domain_size: int
    fit: Fit | None = None
    heterogeneity: float = 1.0
    max_items: int = 1
    is_hardest: bool = False

    @cached_property
    def rising(self) -> tuple[F64, F64]:
        """The frequencies, rising, and how many items have each: as error models take them."""
        return rising(self.frequencies, self.numbers, self.max_items)

    @property
    def has_known_shape(self) -> bool:
        """Whether it is known how many items are rare, and how rare: a pilot tells their sum."""
        return self.fit is None and not self.is_hardest

    @classmethod
    def from_frequencies(
        cls, frequencies: npt.ArrayLike, domain_size: int | None = None, *, max_items: int = 1
    ) -> Self:
        """Return the distribution of known frequencies.

        Args:
            frequencies: [d], in any order, in [0, 1], together at most `max_items`.
            domain_size: where it is larger than d; the others are held by nobody.
            max_items: the most items of one client.

        Raises:
            InvalidInputError: a value is out of its range.

        >>> known = Frequencies.from_frequencies(np.full(1000, 1e-3), domain_size=5000)
        >>> len(known.frequencies) < 100, round(float(known.numbers.sum()))
        (True, 1000)
        >>> round(known.hardness(0.01), 6)
        10.0
        """
        known = np.asarray(frequencies, dtype=np.float64)
        if known.ndim != 1 or not np.isfinite(known).all() or (known < 0).any():
            raise InvalidInputError("frequencies must be in one dimension, finite and at least 0")
        if known.sum() > validate.integer(1, max_items=max_items) * (1 + 1e-9):
            raise InvalidInputError(
                f"frequencies must sum to at most {max_items}, got {known.sum():.6g}"
            )
        if known.max(initial=0.0) > 1 + 1e-9:
            raise InvalidInputError(f"frequencies must each be at most 1, got {known.max():.6g}")
        size = validate.integer(
            max(len(known), 1), domain_size=len(known) if domain_size is None else domain_size
        )
        falling = np.sort(known[known > 0])[::-1]
        light = falling[_ALONE:]
        group = np.floor((np.log(light[:1]) - np.log(light)) / math.log(_GROUP)).astype(np.int64)
        numbers = np.bincount(group).astype(np.float64)
        means = np.bincount(group, light)[numbers > 0] / numbers[numbers > 0]
        head = falling[:_ALONE]
        each = np.append(np.ones(len(head)), numbers[numbers > 0])
        return cls(np.append(head, means), each, size, max_items=max_items)

    @classmethod
    def assumed(cls, domain_size: int, exponent: float = 1.1, *, max_items: int = 1) -> Self:
        """Return the power law that is assumed: f_i proportional to i^-exponent.

        Every client is taken to hold `max_items` items, none of them twice; frequencies are cut off
        at 1.

        Args:
            domain_size: d, at least 1; ranks are grouped, so that it may be vast.
            exponent: 0 .. 10.
            max_items: the most items of one client.

        >>> assumed = Frequencies.assumed(2**61)
        >>> mass = float(assumed.numbers @ assumed.frequencies)
        >>> len(assumed.frequencies) < 3000, round(mass, 6), round(assumed.hardness(0.01), 1)
        (True, 1.0, 13.8)
        """
        size, most = (
            validate.integer(1, domain_size=domain_size),
            validate.integer(1, max_items=max_items),
        )
        ranks, numbers = ranks_between(1, size)
        shape = ranks ** -validate.real(0.0, STEEPEST, exponent=exponent)
        return cls(
            capped(shape, numbers, float(min(most, size)), 1.0), numbers, size, max_items=most
        )

    @classmethod
    def from_pilot(
        cls,
        sketches: Sequence[CountSketch],
        domain: Domain,
        noise_variance: float = 0.0,
        largest_unseen: float = 1.0,
        *,
        max_items: int = 1,
    ) -> Self:
        """Return the distribution that a pilot suggests: heavy items, and a tail.

        docs/accuracy.md says how it is read.

        Args:
            sketches: landed sums of the pilot's rounds, all of one spec.
            domain: the candidate items.
            noise_variance: the variance of the noise in each counter of each round's sum, in
                squared counts.
            largest_unseen: bound on the frequencies of the tail, above 0, beside that which items
                would stand out at. With tau the distribution has the hardness of `hardest`: for the
                median that covers tails of any shape.
            max_items: the most items of one client.

        Raises:
            InvalidInputError: nothing landed, or two sums of one round.
        """
        read = pilot.read(sketches, domain, noise_variance, largest_unseen, max_items)
        return cls(
            read.frequencies,
            read.numbers,
            domain.size,
            read.fit,
            read.heterogeneity,
            max_items,
        )

    def hardness(self, tau: float) -> float:
        """Return `theory.hardness` of the distribution, the paper's width without its constant."""
        return float(
            self.numbers @ np.minimum(self.frequencies / validate.inside(tau=tau), 1.0) ** 2
        )

    def hardest(self, tau: float) -> float:
        """Return the largest hardness that any tail of this mass and energy has.

        What is above `hardness` is due to items above tau that a pilot does not show one by one:
        how large they are is taken from a power law.
        """
        if self.fit is None:
            return self.hardness(tau)
        heavy = np.minimum(self.frequencies[: self.fit.heavy] / validate.inside(tau=tau), 1.0)
        others = self.domain_size - self.fit.heavy
        return float(heavy @ heavy) + min(self.fit.energy / tau**2, self.fit.mass / tau, others)

    def alike_below(self, frequency: float) -> Frequencies:
        """Return this distribution with all rarer items alike.

        There are as many as have the same mass and energy.

        Of all items of that mass and energy these are the hardest for joint recovery, which fits
        the larger of others.

        >>> known = Frequencies(np.array([0.4, 0.03, 0.01]), np.array([1.0, 10.0, 30.0]), 1000)
        >>> distribution = known.alike_below(0.1)
        >>> distribution.frequencies.tolist(), distribution.numbers.tolist()
        ([0.4, 0.02], [1.0, 30.0])
        """
        rare = self.frequencies < frequency
        mass = float(self.numbers[rare] @ self.frequencies[rare])
        if mass == 0.0:
            return self
        each = float(self.numbers[rare] @ self.frequencies[rare] ** 2) / mass
        numbers = np.append(self.numbers[~rare], mass / each)
        return replace(self, frequencies=np.append(self.frequencies[~rare], each), numbers=numbers)

    def uncertainty(self, tau: float) -> float:
        """Return the relative standard error of the hardness.

        It is 0 for known frequencies, infinite for a failed fit.
        """
        if self.fit is None:
            return 0.0
        if not self.fit.conditioned:
            return math.inf
        tau, clients = validate.inside(tau=tau), self.fit.clients
        # Items above tau count as one each, however large. Of the others, pairs of clients in one
        # batch are counted.
        light = self.frequencies < tau
        f, number = self.frequencies[light], self.numbers[light]
        one_pair = 2 * self.fit.batches / clients**2
        pairs = one_pair * max(float(number @ f**2), one_pair) + 4 * float(number @ f**3) / clients
        return math.sqrt(pairs + self.fit.cells_error**2) / tau**2 / max(self.hardness(tau), 1.0)
