"""Trial campaigns: the largest errors of sketches too small for an error model.

With a hundred counters chance decides: whether two of a dozen heavy items share a cell, and which
of them is fitted first. Means over such events, of which `fedtally.recovery.error_model` is made,
say little of what happens. But so small a campaign takes some hundredths of a second, so it is run,
again and again, with hashes and clients of its own.

Only campaigns of one batch (one round, or shared hashes) are run: several take as many times
longer, and `JUMP` and `FALL` of `plan.predictor` are all that guards these. The `ITEMS`
heaviest items take part one by one; what all others leave in a cell is normal noise. There are at
most `CANDIDATES` candidates. In a larger domain the largest error of what hardly anybody holds is
taken to grow as that of normals does, which is too fast: what a cell holds is bounded.

The draws are a function of the size alone, so that the same question has the same answer.
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
MOST_CELLS = 150  # counters up to which campaigns are run
CANDIDATES = 100_000
ITEMS = 5000
# probability of so few failures, were they twice as many as allowed, at which no more campaigns are
# run
_SURE = 0.02
_FIRST_ID = 1
_SHARED = Schedule.parse("shared")


@dataclass(frozen=True)
class Trials:
    """Campaigns of one size; `of` returns those that were run already.

    Args:
        distribution: the known frequencies.
        num_clients: the clients of all rounds together.
        recovery: the name of a decoder.
        noise: standard deviation in each counter of the sum over all rounds, in counts.
        rows: the rows of the sketch.
        width: the width of the sketch.
    """

    distribution: Frequencies
    num_clients: int
    recovery: str
    noise: float
    rows: int
    width: int

    @staticmethod
    @lru_cache(maxsize=512)  # a plan for any frequencies looks at hundreds
    def of(
        distribution: Frequencies,
        num_clients: int,
        recovery: str,
        noise: float,
        rows: int,
        width: int,
    ) -> Trials:
        """Return the campaigns of these arguments, those of the class."""
        return Trials(distribution, num_clients, recovery, noise, rows, width)

    def errors(self, repeats: int) -> F64:
        """Return the largest errors of `repeats` campaigns, frequencies: float64 [repeats].

        >>> distribution = Frequencies.from_frequencies([0.5, 0.3, 0.1], domain_size=1000)
        >>> bool((Trials.of(distribution, 1000, "joint", 0.0, 7, 8).errors(20) < 0.01).all())
        True
        """
        return np.array([self._campaign(repeat) for repeat in range(repeats)])

    def exceeds(
        self, tau: float, probability: float, repeats: int, like: Trials | None = None
    ) -> bool:
        """Say whether a larger share than `probability` of campaigns has an error above tau.

        No more are run than it takes to know that, or to be about sure that it is below twice as
        many.

        Args:
            tau: an error, a frequency.
            probability: the share that is allowed.
            repeats: how many campaigns that is a share of.
            like: campaigns of another width. Campaigns of one number have the same clients and
                hashes whatever the width: those with the largest errors there come first here,
                since more failures than are allowed are too many in any order.

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
            if kept > allowed:  # they are not alike
                break
        # What is about sure is so of campaigns in their own order alone, not of those that were
        # picked.
        for done in range(10, repeats + 10, 10):
            failed = int((self.errors(min(done, repeats)) > above).sum())
            if failed > allowed:
                return True
            if bdtr(failed, done, min(2 * probability, 1.0)) <= _SURE:
                return False
        return False

    def failure(self, tau: float, repeats: int) -> float:
        """Return the share of `repeats` campaigns that has an error above tau."""
        return float((self.errors(repeats) > tau * (1 + 1e-9)).mean())

    def linf(self, probability: float, repeats: int, tau: float | None = None) -> float:
        """Return the largest error that all but a share of `repeats` campaigns keep.

        Args:
            probability: the share.
            repeats: how many campaigns that is a share of.
            tau: an error to be kept. If half of the campaigns, or three quarters, make it sure that
                tau is exceeded with less than `probability`, no more are run. The chance to be
                wrong with that is at most `_SURE`, over both looks together.

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
        """Return the largest error of one campaign, by its number."""
        if repeat not in self._errors:
            with kernels.one_thread():  # a campaign asks for a millisecond's work, many times
                self._errors[repeat] = self._error(
                    generator(repeat.to_bytes(4, "little"), b"trial")
                )
        return self._errors[repeat]

    def _worst_first(self, repeats: int) -> list[int]:
        """Return the campaigns below `repeats` that were run, the largest error first."""
        return sorted(
            (one for one in self._errors if one < repeats),
            key=lambda one: (-self._errors[one], one),
        )

    def _error(self, rng: np.random.Generator) -> float:
        # What is drawn before the noise is the same whatever the width: `exceeds` counts on it.
        items, others = _items(
            self.distribution,
            self.num_clients,
            min(ITEMS, CANDIDATES, self.distribution.domain_size),
        )
        held = rng.binomial(self.num_clients, np.minimum(items, 1.0)).astype(np.int64)
        held = held[held > 0]
        counts = np.zeros(min(self.distribution.domain_size, CANDIDATES), np.int64)
        # Anywhere: of estimates that are equal, joint recovery takes the first.
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
        errors[places] = 0.0  # what is left is the error of what nobody holds
        light = float(errors.max()) * _growth(len(counts), self.distribution.domain_size)
        return max(largest, light) / self.num_clients


@lru_cache(maxsize=4)
def _items(distribution: Frequencies, num_clients: int, most: int) -> tuple[F64, float]:
    """Return the heaviest items' frequencies, and the others' sum of squared counts.

    The frequencies are float64 [most].

    Groups of items of like frequency have numbers that are not whole: the sum of them is rounded,
    group by group.
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
    """Return how much larger the largest of more normals is.

    >>> _growth(1000, 1000), round(_growth(100_000, 1_000_000), 3)
    (1.0, 1.107)
    """
    return (
        1.0
        if domain_size <= candidates
        else float(ndtri(0.5 / domain_size) / ndtri(0.5 / candidates))
    )
