"""What is known of the frequencies before a campaign: all of them, or what a pilot tells.

**Pilot.** A small sketch of few clients, none of whom takes part again. `size_by_model` decodes it
jointly. Items that stand out of the fit's error and of their own sampling error s, f > 4 s, are the
heavy list. What else the sums hold is the tail. Its energy, the sum of f^2, is that of the
residual: L W cells of mean square s2 hold, of a fit that leaves the share b of what it does not
know,

    E = W s2 / b - W noise,    ||tail||^2 = (E - mass / n) / (1 - 1 / n),           (1)

where n clients were drawn, so that an item of frequency f has mean square f^2 + (f - f^2) / n among
them, and mass is what the heavy list leaves of 1. Fitted items that are not heavy are part of the
tail; their squares are added to E. The tail's shape is a power law over the ranks beyond the heavy
list, with this mass and this energy, and cut off at a largest frequency. (1) is unbiased for any
shape, but for what is fitted because of its error. Such items, below twice the fit's own threshold,
are put back into the cells first. The cut follows from the fourth powers of the counts: W times the
fourth cumulant of a cell is their sum over the tail, and normal noise adds nothing. Without it,
items alike that do not stand out one by one, as in real tables of places, would be taken for a
steep head, and the width would be too small. Where these powers are not known to half of
themselves, or the pilot has several batches, there is no cut but what would stand out.

**Items that are fitted one by one** tell more than that. From `Fit.resolved` on, the distribution
is what their counts make
likely, with the power law as the start (`fedtally.planner.tail`); a fiftieth of it has no cut, so
that none is final. Mostly the pilot's sketch recovers every count, and what is left of the power
law is below a client or two. Where it does not, how the energy is spread below is a guess.
`Frequencies.hardest` says what that may cost the median, where tau is
below what stands out. Joint recovery depends on it more: below half of `Fit.resolved`, or tau where
that is less, its plans take all items to be alike (`Frequencies.alike_below`), the hardest case.
Above that the deconvolution tells
enough: what has few clients by chance is fitted where it has many.

**Several items.** A client of one item adds a mass of 1, one of at most k items somewhere between 0
and k, and sums of sketches do not tell it. The sampling noise in (1) is then that of fitted items
alone, which leaves too much energy. The tail has all the mass that k admits, but no more than would
by its sampling noise alone make up E, and two standard
errors: so it is as flat as it may be, and its energy lies in items that all count. Both err on the
side of a larger
sketch: most for steep distributions, of which clients hold fewer items than allowed.

**Rounds of different distributions.** `heterogeneity` is that of the fitted items: what they differ
between rounds beyond
sampling and the noise of their cells, by least squares in every round, weighted by their mass. It
is used where it is clear, beyond twice its standard error. With signs of their own, rounds show an
energy within themselves alone, not that of their mean distribution, of which it is so many times as
much: E is divided by it. It is an estimate for the tail only as far as that is like the fitted
items. A pilot of one round tells nothing of it, and 1 is taken.

**What a distribution must be.** Known but for that: where clients hold one item, a mass of 1 is
used. What is read of a pilot
must be public, or noised and accounted: a pilot under differential privacy is a release of its own,
of clients of its own. Whatever follows from it, rows and noise too, is then a function of what
others released. A ledger, which adds up what all clients of a population may have been in, must
compose such campaigns as Gaussians, and does.

**How far it is to be trusted.** `Frequencies.uncertainty` is the standard error of hardness(f, tau)
due to that of the tail's
energy: from the pairs of clients with one item, which are few, and from the cells, whose mean
square has a relative error of sqrt(2 / cells). Beyond `TOO_UNCERTAIN`, `size_by_model` falls back
to `minimax` and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.planner.tail import Seen, deconvolved
from fedtally.recovery.error_model import heterogeneity_of_batches
from fedtally.recovery.joint import Fit as JointFit
from fedtally.recovery.joint import JointDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
HEAVY = 4.0  # standard errors by which an item of a pilot stands out
_ALONE = 60  # heaviest items that are kept one by one
_GROUP = 1.01  # items within this ratio are taken together
_KNOWN = 0.5  # relative standard error up to which fourth powers are used
_STEEPEST = 10.0  # exponent of a fitted power law
_COMPARED = 100  # largest fitted items that are compared between rounds
_CLEARLY = 2.0  # times the fit's own threshold, from which an item is not one that its error chose
_LONGER = 0.02  # share of the start that is not cut off
_CLEAR = 2.0  # standard errors from which rounds are taken to be of different distributions


@dataclass(frozen=True)
class Pilot:
    """A small sketch of few clients, from which the frequencies are guessed; as in the paper's experiments.

    Args:
        share: of all clients, in (0, 1).
        rows: of its sketch.
        width: of its sketch.

    >>> Pilot().clients(17_500), Pilot().spec(bytes(32)).width
    (1750, 200)
    """

    share: float = 0.1
    rows: int = 8
    width: int = 200

    def __post_init__(self) -> None:
        _validate.inside(share=self.share)
        _validate.integer(1, rows=self.rows)
        _validate.integer(2, width=self.width)

    def clients(self, num_clients: int) -> int:
        """Return how many of so many clients take part in the pilot, and not in what follows; at least one."""
        return max(1, int(self.share * _validate.integer(1, num_clients=num_clients)))

    def spec(self, seed: bytes) -> SketchSpec:
        """Return the pilot's sketch, of one round."""
        return SketchSpec(self.rows, self.width, Schedule.parse("shared"), 1, seed)


@dataclass(frozen=True)
class Fit:
    """How a pilot was read.

    Attributes:
        clients: of the pilot.
        batches: of its rounds.
        heavy: length of the heavy list.
        mass: of the tail, 1 less that of the heavy list; of clients of several items the most that
            it can be.
        energy: of the tail, the sum of squared frequencies.
        cells_error: the part of its standard error that is due to the few cells.
        exponent: of the power law that the tail's shape starts from.
        resolved: frequency from which items are told one by one; of smaller ones mass and energy.
        conditioned: whether joint recovery was at least as good as the median; otherwise the
            pilot's sketch was too small for what it held.
        heterogeneity: of its rounds, as estimated; `Frequencies.heterogeneity` is what is used of
            it.
        heterogeneity_error: its standard error; infinite where nothing is known of it.
    """

    clients: int
    batches: int
    heavy: int
    mass: float
    energy: float
    cells_error: float
    exponent: float
    resolved: float
    conditioned: bool
    heterogeneity: float = 1.0
    heterogeneity_error: float = math.inf


@dataclass(frozen=True, eq=False)
class Frequencies:
    """What is known of the frequencies, as `fedtally.recovery.error_model` takes it.

    Attributes:
        frequencies: float64 [k], above 0; the heaviest first, then groups of the others.
        numbers: float64 [k], how many items have each.
        domain_size: how many candidates there are.
        fit: how a pilot was read; None where frequencies were known.
        heterogeneity: of the rounds, at least 1.
        max_items: the most items of one client: a bound on the sum of frequencies.
    """

    frequencies: F64
    numbers: F64
    domain_size: int
    fit: Fit | None = None
    heterogeneity: float = 1.0
    max_items: int = 1

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
        >>> len(known.frequencies) < 100, round(float(known.numbers.sum())), round(known.hardness(0.01), 6)
        (True, 1000, 10.0)
        """
        known = np.asarray(frequencies, dtype=np.float64)
        if known.ndim != 1 or not np.isfinite(known).all() or (known < 0).any():
            raise InvalidInputError("frequencies must be in one dimension, finite and at least 0")
        if known.sum() > _validate.integer(1, max_items=max_items) * (1 + 1e-9):
            raise InvalidInputError(
                f"frequencies must sum to at most {max_items}, got {known.sum():.6g}"
            )
        if known.max(initial=0.0) > 1 + 1e-9:
            raise InvalidInputError(f"frequencies must each be at most 1, got {known.max():.6g}")
        size = _validate.integer(
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
        """Return the power law that is taken where nothing is known: f_i proportional to i^-exponent.

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
            _validate.integer(1, domain_size=domain_size),
            _validate.integer(1, max_items=max_items),
        )
        ranks, numbers = _ranks(1, size)
        shape = ranks ** -_validate.real(0.0, _STEEPEST, exponent=exponent)
        return cls(
            _capped(shape, numbers, float(min(most, size)), 1.0), numbers, size, max_items=most
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
        """Return the distribution that a pilot suggests: heavy items, and a power law with the tail's mass and energy.

        Args:
            sketches: landed sums of the pilot's rounds, all of one spec.
            domain: the candidate items.
            noise_variance: of the noise in each counter of each round's sum, in squared counts.
            largest_unseen: bound on the frequencies of the tail, above 0, beside that which items
                would stand out at. With tau the distribution has the hardness of `hardest`: for the
                median that covers tails of any shape.
            max_items: the most items of one client.

        Raises:
            InvalidInputError: nothing landed, or two sums of one round.
        """
        decoder = JointDecoder(sketches, domain)
        fit, landed, clients = decoder.fit, decoder.fit.landed, decoder.num_clients
        batches = int(np.count_nonzero(landed.clients))
        if clients < 2 * batches:
            raise InvalidInputError(
                f"a pilot must have at least {2 * batches} clients, got {clients}"
            )
        if _validate.real(0.0, 1.0, largest_unseen=largest_unseen) == 0.0:
            raise InvalidInputError("largest_unseen must be above 0, got 0")
        noise = (
            _validate.real(0.0, noise_variance=noise_variance)
            * len(sketches)
            * batches
            / clients**2
        )
        values = np.maximum(fit.estimates(fit.support.ids), 0.0)
        squared_error = fit.scale**2 / fit.own_shares
        stands_out = values > HEAVY * np.sqrt(squared_error + values / clients)
        clear = stands_out | (values > _CLEARLY * fit.threshold * np.sqrt(squared_error))
        residual, share = _without(fit, clear)
        heavy, light = np.sort(values[stands_out])[::-1], values[clear & ~stands_out]
        light_error = squared_error[clear & ~stands_out]
        heavy = np.minimum(
            heavy / max(1.0, float(heavy.sum()) / _validate.integer(1, max_items=max_items)), 1.0
        )
        mass = max(max_items - float(heavy.sum()), 0.0)
        # What is not fitted is seen batch by batch, of clients / batches each; what is fitted, over
        # all of them.
        squares = float(np.mean(residual**2, axis=(0, 1)) @ landed.weights)
        filled = landed.spec.width * squares / share
        excess = filled - landed.spec.width * noise
        cells = math.sqrt(2 / (landed.cells * batches)) * filled
        unfitted = max(mass - float(light.sum()), 0.0)
        if max_items > 1:  # whatever is held is also sampled: a mass that is not there would show
            mass = min(
                mass, float(light.sum()) + max(excess + _CLEAR * cells, 0.0) * clients / batches
            )
            unfitted = 0.0
        spread, spread_error = _heterogeneity(fit, sketches)
        differ = spread if spread > 1 + _CLEAR * spread_error else 1.0
        energy = (excess - unfitted * batches / clients) / (1 - batches / clients)
        same = heterogeneity_of_batches(differ, landed.effective, _effective(sketches))
        energy /= same
        energy += float((light**2 - light_error - light / clients).sum()) / (1 - 1 / clients)
        # The largest frequency that does not stand out.
        most = (
            HEAVY**2 / clients + math.sqrt(HEAVY**4 / clients**2 + 4 * HEAVY**2 * fit.scale**2)
        ) / 2
        ranks = (len(heavy) + 1, domain.size)
        cut = most
        if batches == 1:
            fourth, error = _fourth_powers(
                residual, share, landed.spec.width, clients, light, light_error
            )
            cut = _largest(ranks, mass, energy, most, clients, fourth, error)
        tail, numbers, exponent = _power_law(*ranks, mass, energy, min(cut, largest_unseen))
        # the error of one item, in clients
        one = fit.scale * clients / math.sqrt(float(fit.share.mean()))
        resolved = min(max(_CLEARLY * fit.threshold * one, 0.5), most * clients)
        if len(tail) and largest_unseen >= most:
            longer, others, _ = _power_law(*ranks, mass, energy, most)
            shown = Seen(
                clients=clients,
                values=light * clients,
                errors=np.sqrt(light_error) * clients,
                error=one,
                least=resolved,
                most=most * clients,
                mass=mass * clients,
                squares=excess * clients**2,
                squares_error=cells * clients**2,
                same=same,
                sampled=batches if max_items == 1 else 0,
            )
            both = np.append((1 - _LONGER) * numbers, _LONGER * others)
            tail, numbers = deconvolved(np.append(tail, longer), both, shown)
            # times the candidates that are left
            many = max(float(numbers.sum()) / (domain.size - len(heavy)), 1.0)
            tail, numbers = tail * many, numbers / many
            energy = float(numbers @ tail**2)
        energy = max(energy, float(numbers @ tail**2))  # the least that the mass admits
        read = Fit(
            clients=clients,
            batches=batches,
            heavy=len(heavy),
            mass=mass,
            energy=energy,
            cells_error=cells,
            exponent=exponent,
            resolved=resolved / clients,
            conditioned=decoder.fallback is None,
            heterogeneity=spread,
            heterogeneity_error=spread_error,
        )
        found, each = np.append(heavy, tail), np.append(np.ones(len(heavy)), numbers)
        return cls(found, each, domain.size, read, differ, max_items)

    def hardness(self, tau: float) -> float:
        """Return `theory.hardness` of the distribution, the paper's width without its constant."""
        return float(
            self.numbers @ np.minimum(self.frequencies / _validate.inside(tau=tau), 1.0) ** 2
        )

    def hardest(self, tau: float) -> float:
        """Return the largest hardness of all distributions with this heavy list, and this mass and energy of the tail.

        What is above `hardness` is due to items above tau that a pilot does not show one by one:
        how large they are is taken from a power law.
        """
        if self.fit is None:
            return self.hardness(tau)
        heavy = np.minimum(self.frequencies[: self.fit.heavy] / _validate.inside(tau=tau), 1.0)
        others = self.domain_size - self.fit.heavy
        return float(heavy @ heavy) + min(self.fit.energy / tau**2, self.fit.mass / tau, others)

    def alike_below(self, frequency: float) -> Frequencies:
        """Return this distribution with all rarer items alike: as many as have the same mass and energy.

        Of all items of that mass and energy these are the hardest for joint recovery, which fits
        the larger of others.

        >>> distribution = Frequencies(np.array([0.4, 0.03, 0.01]), np.array([1.0, 10.0, 30.0]), 1000).alike_below(0.1)
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
        """Return the relative standard error of the hardness; 0 for known frequencies, infinite for a failed fit."""
        if self.fit is None:
            return 0.0
        if not self.fit.conditioned:
            return math.inf
        tau, clients = _validate.inside(tau=tau), self.fit.clients
        # Items above tau count as one each, however large. Of the others, pairs of clients in one
        # batch are counted.
        light = self.frequencies < tau
        f, number = self.frequencies[light], self.numbers[light]
        one_pair = 2 * self.fit.batches / clients**2
        pairs = one_pair * max(float(number @ f**2), one_pair) + 4 * float(number @ f**3) / clients
        return math.sqrt(pairs + self.fit.cells_error**2) / tau**2 / max(self.hardness(tau), 1.0)


def _without(fit: JointFit, kept: npt.NDArray[np.bool_]) -> tuple[F64, float]:
    """Return the residual with only some of the support fitted, and the share that it keeps of what it does not know.

    Args:
        fit: of all.
        kept: bool [support]; the others are put back into the cells.
    """
    residual = fit.residual.copy()
    fit.landed.add(residual, fit.support.ids[~kept], fit.support.values[~kept])
    return residual, 1.0 - (1.0 - float(fit.share.mean())) * (
        float(kept.mean()) if len(kept) else 0.0
    )


def _fourth_powers(
    residual: F64, share: float, width: int, clients: int, light: F64, squared_error: F64
) -> tuple[float, float]:
    """Return the sum of fourth powers of the counts of all items of the tail, and its standard error.

    What cells hold has that sum as its fourth cumulant, over the width; normal noise has none.

    Args:
        residual: of one batch.
        share: that it keeps of what is not fitted.
        width: of the sketch.
        clients: n.
        light: frequencies that are fitted and do not stand out.
        squared_error: theirs, mean squares.
    """
    cells = residual.reshape(-1) * clients
    square = float(np.mean(cells**2))
    scale = width / share**2
    counts, errors = light * clients, squared_error * clients**2
    fitted = float((counts**4 - 6 * counts**2 * errors + 3 * errors**2).sum())
    return (
        scale * (float(np.mean(cells**4)) - 3 * square**2) + fitted,
        scale * math.sqrt(24 / len(cells)) * square**2,
    )


def _largest(
    ranks: tuple[int, int],
    mass: float,
    energy: float,
    seen: float,
    clients: int,
    fourth: float,
    error: float,
) -> float:
    """Return the largest frequency of the power law whose counts have this sum of fourth powers; at most `seen`.

    `seen` itself, where that sum is not known well enough.
    """
    if mass <= 0.0 or energy <= 0.0:
        return seen

    def excess(log: float) -> float:
        tail, numbers, _ = _power_law(*ranks, mass, energy, math.exp(log))
        expected = tail * clients
        # E[c^4] of a Poisson count
        moments = expected * (1 + expected * (7 + expected * (6 + expected)))
        return float(numbers @ moments) - fourth

    low, high = math.log(min(energy / mass, seen)), math.log(seen)
    most_powers = excess(high) + fourth
    if error > _KNOWN * most_powers or excess(high) <= 0:
        return seen
    return math.exp(low if excess(low) >= 0 else float(brentq(excess, low, high, xtol=0.01)))


def _power_law(
    first: int, last: int, mass: float, energy: float, most: float
) -> tuple[F64, F64, float]:
    """Return frequencies and numbers of the ranks first..last of a power law, none above `most`, and its exponent.

    Of those with this mass, the one whose energy is nearest.
    """
    if mass <= 0.0 or last < first:
        return np.empty(0), np.empty(0), 0.0
    ranks, numbers = _ranks(first, last)

    def distribution(exponent: float) -> F64:
        return _capped((ranks / first) ** -exponent, numbers, mass, most)

    def excess(exponent: float) -> float:
        return math.log(float(numbers @ distribution(exponent) ** 2) / energy)

    if energy <= 0 or excess(0.0) >= 0:
        exponent = 0.0
    else:
        exponent = (
            _STEEPEST
            if excess(_STEEPEST) <= 0
            else float(brentq(excess, 0.0, _STEEPEST, xtol=1e-4))
        )
    return distribution(exponent), numbers, exponent


def _ranks(first: int, last: int) -> tuple[F64, F64]:
    """Return the ranks first..last, the first 200 one by one, the others in groups, and how many each stands for."""
    few = min(last - first + 1, 200)
    if few == last - first + 1:
        return np.arange(first, last + 1.0), np.ones(few)
    steps = max(int(math.log((last + 1) / (first + few)) / math.log(1.02)), 1)
    edges = np.unique(
        np.append(
            np.arange(first, first + few), np.rint(np.geomspace(first + few, last + 1, steps + 1))
        )
    )
    return np.sqrt(edges[:-1] * (edges[1:] - 1)), np.diff(edges)


def _capped(shape: F64, numbers: F64, mass: float, most: float) -> F64:
    """Return a falling shape, so many of each, with this mass, and none above `most`."""
    low, high = math.log(mass / float(numbers @ shape)), math.log(most / float(shape[-1]))
    if float(numbers @ np.minimum(math.exp(low) * shape, most)) < mass * (1 - 1e-9):
        for _ in range(60):  # what the bound cuts off goes to the others
            middle = (low + high) / 2
            less = float(numbers @ np.minimum(np.exp(middle) * shape, most)) < mass
            low, high = (middle, high) if less else (low, middle)
    found: F64 = np.minimum(math.exp(low) * shape, most)
    return found


def _effective(sketches: Sequence[CountSketch]) -> float:
    """Return how many rounds of equal size would spread the clients as much."""
    sizes = np.array([float(sketch.num_clients) for sketch in sketches])
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def _heterogeneity(fit: JointFit, sketches: Sequence[CountSketch]) -> tuple[float, float]:
    """Return the heterogeneity of the largest fitted items over rounds, and its standard error; 1 if unknown.

    Given what an item has in all rounds, its variance between them is unbiased, however the item
    was chosen.
    """
    most = _effective(sketches)
    landed, rounds = fit.landed, sorted(sketches, key=lambda sketch: sketch.round)
    largest = np.argsort(-fit.fitted)[: min(_COMPARED, landed.cells // 8)]
    if most < 1.5 or not len(largest):
        return 1.0, math.inf
    cells, signs = landed.places(fit.support.ids[largest])
    batches = len(landed.clients)
    weights = np.array([sketch.num_clients for sketch in rounds]) / landed.num_clients
    z, error = np.zeros((2, len(largest), len(rounds)))
    for m, sketch in enumerate(rounds):
        if not sketch.num_clients:
            continue
        batch = (
            m
            if landed.fresh
            else landed.spec.schedule.batch_of(sketch.round, landed.spec.num_rounds)
        )
        design = np.zeros((len(largest), landed.cells))
        at = cells[..., batch if landed.fresh else 0] // batches
        np.put_along_axis(design, at, signs[..., batch].astype(np.float64), axis=1)
        inverse = np.linalg.pinv(design @ design.T, hermitian=True)
        counters = sketch.counters.reshape(-1) / sketch.num_clients
        z[:, m] = inverse @ (design @ counters)
        left = counters - z[:, m] @ design
        error[:, m] = np.diagonal(inverse) * float(left @ left) / (landed.cells - len(largest))
    mean = z @ weights
    z, error, mean = z[mean > 0], error[mean > 0], mean[mean > 0]
    noise = error + mean[:, None] / np.maximum(weights * landed.num_clients, 1.0)
    variance = (z - mean[:, None]) ** 2 @ weights - noise @ (weights * (1 - weights))
    square = mean**2 - noise @ weights**2
    total = float((square / mean).sum())
    if total <= 0:
        return 1.0, math.inf
    more = float((variance / mean).sum()) / total
    # of the variance, were there one distribution
    alike = 2 * (noise @ (weights * (1 - weights))) ** 2 / (most - 1)
    errors = np.maximum((variance - more * square) ** 2, alike)
    return min(max(1.0, 1.0 + more), most), math.sqrt(float((errors / mean**2).sum())) / total
