"""Trial campaigns: simulations of sketches that are too small for the error model.

In a sketch of a hundred counters, chance decides the error: whether two of a dozen heavy items
share a counter, and which of them is fitted first. The error model
(`fedtally.recovery.error_model`) predicts means over such events, which say little about a single
campaign. But so small a campaign takes only some hundredths of a second. So the planner simulates
many of them, each with its own hashes and clients.

Only campaigns of one batch are simulated (one round, or shared hashes). Several batches would take
several times as long. For these, `plan.predictor` has the safeguard of `JUMP` and `FALL` instead.

The `ITEMS` most frequent items are simulated one by one. The sum of all other items in a counter is
simulated as normal noise.

At most `CANDIDATES` candidates are simulated. In a larger domain, the largest error of items that
hardly anybody holds is assumed to grow like the maximum of normal variables. In truth it grows more
slowly, since the content of a counter is bounded. So the prediction is on the safe side.

The random generator of a campaign depends only on the number of the campaign, so that the same
arguments always give the same result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, ndtri

from fedtally import kernels
from fedtally.domain import IntegerRange
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.recovery.decoding import kind_of
from fedtally.recovery.phantoms import generator
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
MOST_CELLS = 150  # the most counters of a sketch whose campaigns are simulated
CANDIDATES = 100_000
ITEMS = 5000
# `linf` may end early if its result is then wrong with at most this probability. `exceeds` ends
# early if it has seen few failures: with twice the allowed failure rate, the probability of so few
# failures would be at most this.
_SURE = 0.02
_FIRST_ID = 1
_SHARED = Schedule.parse("shared")


@dataclass(frozen=True)
class Trials:
    """The simulated campaigns for one size of sketch.

    The object keeps the errors of campaigns that it has simulated. So callers use `of`, which
    returns the same object for the same arguments.

    Args:
        distribution: the known frequencies.
        num_clients: the number of clients of all rounds together.
        recovery: the name of the decoder.
        noise: the standard deviation of the noise in each counter of the sum over all rounds, in
            counts.
        rows: the number of rows of the sketch.
        width: the number of counters in a row.
    """

    distribution: Frequencies
    num_clients: int
    recovery: str
    noise: float
    rows: int
    width: int

    @staticmethod
    @lru_cache(maxsize=512)  # the search for a plan for any frequencies tries hundreds of sizes
    def of(
        distribution: Frequencies,
        num_clients: int,
        recovery: str,
        noise: float,
        rows: int,
        width: int,
    ) -> Trials:
        """Return the simulated campaigns for these arguments, from a cache; see the class."""
        return Trials(distribution, num_clients, recovery, noise, rows, width)

    def errors(self, repeats: int) -> F64:
        """Return the largest error of each of `repeats` campaigns, a frequency: float64 [repeats].

        >>> distribution = Frequencies.from_frequencies([0.5, 0.3, 0.1], domain_size=1000)
        >>> bool((Trials.of(distribution, 1000, "joint", 0.0, 7, 8).errors(20) < 0.01).all())
        True
        """
        return np.array([self._campaign(repeat) for repeat in range(repeats)])

    def exceeds(
        self, tau: float, probability: float, repeats: int, like: Trials | None = None
    ) -> bool:
        """Return whether the error is above tau in more than a given share of the campaigns.

        Campaigns are simulated only until the result is known, or until it is nearly sure that the
        share is below twice `probability`. In the second case the result is False.

        Args:
            tau: the error, a frequency, that is compared.
            probability: the share of campaigns whose error may be above tau.
            repeats: the number of campaigns; the share is a share of this number.
            like: the campaigns of another width, or None. Campaigns with the same number have the
                same clients and the same seed of hashes at every width. So the campaigns with the
                largest errors in `like` are simulated first. As soon as more campaigns than allowed
                have an error above tau, the result is True.

        >>> distribution = Frequencies.from_frequencies([0.5, 0.3, 0.1], domain_size=1000)
        >>> trials = Trials.of(distribution, 1000, "joint", 0.0, 7, 2)
        >>> trials.exceeds(0.01, 0.05, 100), trials.exceeds(0.9, 0.05, 100)
        (True, False)
        """
        allowed, above = math.floor(probability * repeats + 1e-9), tau * (1 + 1e-9)
        failed = kept = 0
        for repeat in like._worst_first(repeats) if like is not None else ():
            if self._campaign(repeat) > above:
                failed += 1
            else:
                kept += 1
            if failed > allowed:
                return True
            if kept > allowed:  # errors at the other width do not tell which campaigns fail here
                break
        # From here on campaigns are counted in order of their numbers. Ending because the result is
        # nearly sure would be wrong for campaigns that were selected by their errors.
        for done in range(10, repeats + 10, 10):
            failed = int((self.errors(min(done, repeats)) > above).sum())
            if failed > allowed:
                return True
            if bdtr(failed, done, min(2 * probability, 1.0)) <= _SURE:
                return False
        return False

    def failure(self, tau: float, repeats: int) -> float:
        """Return the share of `repeats` campaigns whose largest error is above tau."""
        return float((self.errors(repeats) > tau * (1 + 1e-9)).mean())

    def linf(self, probability: float, repeats: int, tau: float | None = None) -> float:
        """Return the smallest error that at most a given share of campaigns exceeds, a frequency.

        Args:
            probability: the largest share of campaigns whose error may exceed the result.
            repeats: the number of campaigns; the share is a share of this number.
            tau: the error that is allowed, or None. With it, the simulation ends after half or
                three quarters of the campaigns, if these show that a smaller share than
                `probability` exceeds tau. The probability that this conclusion is wrong is at most
                `_SURE`, for both tests together.

        >>> distribution = Frequencies.from_frequencies([0.5, 0.3, 0.1], domain_size=1000)
        >>> trials = Trials.of(distribution, 1000, "joint", 0.0, 7, 7)
        >>> trials.linf(0.1, 100, tau=0.9) < 0.9, len(trials._errors)
        (True, 50)
        """
        looks = () if tau is None else (repeats // 2, 3 * repeats // 4)
        bound = math.inf if tau is None else tau * (1 + 1e-9)
        for done in looks:
            failed = int((self.errors(done) > bound).sum())
            if bdtr(failed, done, probability) <= _SURE / 2:
                repeats = done
                break
        return float(np.sort(self.errors(repeats))[-1 - math.floor(probability * repeats + 1e-9)])

    @cached_property
    def _errors(self) -> dict[int, float]:
        return {}

    def _campaign(self, repeat: int) -> float:
        """Return the largest error of a campaign, which is simulated only at the first call.

        Args:
            repeat: the number of the campaign, from 0 on; it is the seed of the random generator.
        """
        if repeat not in self._errors:
            with kernels.one_thread():  # calls take a millisecond: threads would not help
                self._errors[repeat] = self._error(
                    generator(repeat.to_bytes(4, "little"), b"trial")
                )
        return self._errors[repeat]

    def _worst_first(self, repeats: int) -> list[int]:
        """Return the numbers of the campaigns that were simulated, the largest error first.

        Only numbers below `repeats` are returned.
        """
        return sorted(
            (one for one in self._errors if one < repeats),
            key=lambda one: (-self._errors[one], one),
        )

    def _error(self, rng: np.random.Generator) -> float:
        # The draws above that of `noise` must not depend on the width. `exceeds` assumes that the
        # campaigns of two widths have the same clients.
        items, others = _items(
            self.distribution,
            self.num_clients,
            min(ITEMS, CANDIDATES, self.distribution.domain_size),
        )
        held = rng.binomial(self.num_clients, np.minimum(items, 1.0)).astype(np.int64)
        held = held[held > 0]
        counts = np.zeros(min(self.distribution.domain_size, CANDIDATES), np.int64)
        # Items get random ids. Joint recovery takes the first of several equal estimates, so small
        # ids would be recovered too well.
        places = rng.choice(len(counts), len(held), replace=False)
        counts[places] = held
        sketch = CountSketch(SketchSpec(self.rows, self.width, _SHARED, 1, rng.bytes(32)), 0)
        sketch.add((places + _FIRST_ID).astype(np.uint64), held)
        sketch.num_clients = self.num_clients
        stddev = math.sqrt(self.noise**2 + others / self.width)
        if stddev:
            noise = rng.normal(0.0, stddev, sketch.counters.shape)
            sketch.counters += np.rint(noise).astype(np.int64)
        candidates = IntegerRange(_FIRST_ID, len(counts))
        decoder = kind_of(self.recovery).make([sketch], candidates)
        errors = np.abs(decoder.range(_FIRST_ID, len(counts)) - counts)
        largest = float(errors.max())
        errors[places] = 0.0  # only the errors of items that nobody holds stay
        light = float(errors.max()) * _growth(len(counts), self.distribution.domain_size)
        return max(largest, light) / self.num_clients


@lru_cache(maxsize=4)
def _items(distribution: Frequencies, num_clients: int, most: int) -> tuple[F64, float]:
    """Return the frequencies of the `most` most frequent items, and a sum over the other items.

    The sum is of the expected squared counts of the other items. Numbers of items in a group need
    not be integers, so their cumulative sums are rounded.

    Returns:
        frequencies: float64 [at most `most`], falling.
        squares: the sum over the other items, in squared counts.
    """
    order = np.argsort(-distribution.frequencies)
    frequencies = distribution.frequencies[order]
    ends = np.rint(np.cumsum(distribution.numbers[order]))
    kept = np.minimum(ends, most)
    items = np.repeat(frequencies, np.diff(kept, prepend=0.0).astype(np.int64))
    expected = frequencies * num_clients
    left = np.diff(ends, prepend=0.0) - np.diff(kept, prepend=0.0)
    return items, float(left @ (expected**2 + expected))


def _growth(candidates: int, domain_size: int) -> float:
    """Return how much larger a maximum of normal variables is for `domain_size` than `candidates`.

    The result is the ratio of the maximum of `domain_size` variables and the maximum of
    `candidates` variables. It is 1 if `domain_size` is at most `candidates`.

    >>> _growth(1000, 1000), round(_growth(100_000, 1_000_000), 3)
    (1.0, 1.107)
    """
    return (
        1.0
        if domain_size <= candidates
        else float(ndtri(0.5 / domain_size) / ndtri(0.5 / candidates))
    )
