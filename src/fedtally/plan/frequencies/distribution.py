"""The distribution of frequencies that a plan is made for: known, assumed, or read from a pilot.

Items of equal or nearly equal frequency form a group: this is the form that
`fedtally.recovery.error_model` needs. `fedtally.plan.frequencies.pilot` reads a pilot;
docs/accuracy.md has the theory.
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
_ALONE = 60  # the number of items, the most frequent ones, that are kept one by one
_GROUP = 1.01  # the frequencies of a group of other items are within this ratio


@dataclass(frozen=True, eq=False)
class Frequencies:
    """A distribution of frequencies (each a share of clients), in groups of equal frequency.

    Attributes:
        frequencies: float64 [k], above 0: the frequency of an item in each group. Items that are
            known one by one come first, each as a group of its own.
        numbers: float64 [k], the number of items in each group; estimates need not be integers.
        domain_size: the number of candidates.
        fit: what a pilot showed besides the frequencies; None: no pilot was read.
        heterogeneity: how much frequencies differ between rounds, at least 1; 1 if they do not
            differ (see `pilot.Fit`).
        max_items: the most items of one client; frequencies sum to at most this number.
        is_hardest: whether these are the hardest frequencies for a plan (see `hardest`), which are
            used if nothing is known.
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
        """Two arrays, float64: the frequencies in rising order, and the number of items of each."""
        return rising(self.frequencies, self.numbers, self.max_items)

    @property
    def has_known_shape(self) -> bool:
        """Whether the frequencies of rare items are known.

        They are not known after a pilot, which shows only sums over rare items, nor if the
        frequencies are the hardest ones.
        """
        return self.fit is None and not self.is_hardest

    @classmethod
    def from_frequencies(
        cls, frequencies: npt.ArrayLike, domain_size: int | None = None, *, max_items: int = 1
    ) -> Self:
        """Return the distribution of known frequencies.

        Items of frequency 0 are left out. Each of the most frequent items is a group. Rarer items
        of nearly equal frequency form a group, which has their mean frequency.

        Args:
            frequencies: [d], the frequency of each item, in any order, each in [0, 1]; they sum to
                at most `max_items`.
            domain_size: the number of candidates, at least d; no client holds the candidates beyond
                d. None: d.
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
        """Return a power law: the item of rank i has a frequency proportional to i^-exponent.

        Each client is assumed to hold `max_items` different items, or all items if there are fewer.
        Frequencies above 1 are lowered to 1, and the frequencies below 1 raised to make up for it.

        Args:
            domain_size: the number of candidates, at least 1. A huge number costs no more time,
                because ranks are grouped.
            exponent: the exponent, 0 .. 10; with 0 all items are equally frequent.
            max_items: the number of items of one client.

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
        """Return the distribution that a pilot suggests: frequent items one by one, and a tail.

        The tail is all items that do not stand out from the noise. docs/accuracy.md says how the
        distribution is estimated.

        Args:
            sketches: the sums of the pilot's rounds, all with the same parameters.
            domain: the candidate items.
            noise_variance: the variance of the noise in each counter of each round's sum, in
                squared counts.
            largest_unseen: an upper bound on the frequencies of the tail, above 0 and at most 1.
                The frequency from which items stand out is always a bound, too. If you pass tau
                here, `hardness(tau)` of the result is about its `hardest(tau)`, a bound for any
                shape of the tail.
            max_items: the most items of one client.

        Raises:
            InvalidInputError: no sum has clients; a batch (rounds that share all hashes and signs)
                has fewer than two clients on average; two sums are of the same round; the sketches
                have fewer than 3 rows; or a value is out of its range.
            IncompatibleError: the sketches differ in their parameters.
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
        """Return the hardness of the distribution: how wide a sketch an error of tau needs.

        It is the sum of min(1, f / tau)^2 over all items, without a constant factor: see
        `fedtally.plan.paper.hardness`.
        """
        return float(
            self.numbers @ np.minimum(self.frequencies / validate.inside(tau=tau), 1.0) ** 2
        )

    def hardest(self, tau: float) -> float:
        """Return a bound on the hardness for any tail with the pilot's mass and energy.

        The tail is all items that do not stand out from the noise. Its mass is the sum of its
        frequencies f, and its energy is the sum of f^2. `hardness` takes the frequencies of the
        tail from an estimated shape. If the tail has items above tau that the pilot does not show
        one by one, this shape may be wrong, and the result here may be larger. Without a pilot the
        result is `hardness(tau)`.
        """
        if self.fit is None:
            return self.hardness(tau)
        heavy = np.minimum(self.frequencies[: self.fit.heavy] / validate.inside(tau=tau), 1.0)
        others = self.domain_size - self.fit.heavy
        return float(heavy @ heavy) + min(self.fit.energy / tau**2, self.fit.mass / tau, others)

    def alike_below(self, frequency: float) -> Frequencies:
        """Return this distribution with one common frequency for all items below `frequency`.

        The common frequency and the number of items keep two sums: of the frequencies f, and of
        f^2. Of all shapes with these sums, equal items are the hardest for joint recovery: in
        another shape, joint recovery could fit the more frequent items.

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
        """Return the relative standard error of `hardness(tau)`.

        It is 0 if no pilot was read. It is infinite if the pilot's sketch was too small for its
        items.
        """
        if self.fit is None:
            return 0.0
        if not self.fit.conditioned:
            return math.inf
        tau, clients = validate.inside(tau=tau), self.fit.clients
        # Each item above tau adds 1 to the hardness, so errors in its frequency do not matter. For
        # the other items the energy counts, which is estimated from pairs of clients in one batch.
        light = self.frequencies < tau
        f, number = self.frequencies[light], self.numbers[light]
        one_pair = 2 * self.fit.batches / clients**2
        pairs = one_pair * max(float(number @ f**2), one_pair) + 4 * float(number @ f**3) / clients
        return math.sqrt(pairs + self.fit.cells_error**2) / tau**2 / max(self.hardness(tau), 1.0)
