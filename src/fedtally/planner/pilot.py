"""How a pilot is read: the frequencies that a small sketch of few clients suggests.

A pilot is read in four steps: the items that are told one by one (`_heads`), the mass and the
energy of all others (`_energy`), a power law with these (`_shape`), and what the counts of fitted
items say against it (`_deconvolution`). docs/pilot.md derives each step, and says how far the
result is to be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.planner.power_law import power_law
from fedtally.planner.tail import Seen, deconvolved
from fedtally.recovery.error_model import heterogeneity_of_batches
from fedtally.recovery.joint import Fit as JointFit
from fedtally.recovery.joint import JointDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
HEAVY = 4.0  # standard errors by which an item of a pilot stands out
_KNOWN = 0.5  # relative standard error up to which fourth powers are used
_COMPARED = 100  # largest fitted items that are compared between rounds
_CLEARLY = 2.0  # times the fit's own threshold, from which an item is not one that its error chose
_LONGER = 0.02  # share of the start that is not cut off
_CLEAR = 2.0  # standard errors from which rounds are taken to be of different distributions


@dataclass(frozen=True)
class Pilot:
    """A small sketch of few clients, from which the frequencies are guessed.

    The defaults are those of the paper's experiments.

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
        """Return how many clients take part in the pilot, at least one.

        They take no part in what follows.
        """
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


class Reading(NamedTuple):
    """What a pilot suggests.

    Attributes:
        frequencies: float64 [k], the heavy list, then groups of the others.
        numbers: float64 [k], how many items have each.
        fit: how the pilot was read.
        heterogeneity: of its rounds, 1 where they are not clearly different.
    """

    frequencies: F64
    numbers: F64
    fit: Fit
    heterogeneity: float


class _Pilot(NamedTuple):
    """A decoded pilot.

    Attributes:
        sketches: of its rounds.
        fit: of joint recovery.
        clients: n, of all rounds.
        batches: sets of signs that clients took part in.
        max_items: the most items of one client.
    """

    sketches: Sequence[CountSketch]
    fit: JointFit
    clients: int
    batches: int
    max_items: int


class _Heads(NamedTuple):
    """What is told item by item.

    Attributes:
        heavy: float64 [heavy], falling frequencies of the items that stand out.
        light: float64 [light], frequencies that are clearly fitted, and do not stand out.
        light_error: float64 [light], their mean squared errors.
        residual: of the fit with these and the heavy items alone.
        share: that the residual keeps of what is not fitted.
    """

    heavy: F64
    light: F64
    light_error: F64
    residual: F64
    share: float


class _Energy(NamedTuple):
    """What the cells tell of the tail, the items that do not stand out.

    Attributes:
        mass: of the tail; of clients of several items the most that it can be.
        energy: of the tail, its sum of squared frequencies.
        excess: mean square of what is not fitted, times the width, without the noise.
        error: the standard error of `excess`.
        same: heterogeneity of the batches.
        used: heterogeneity of the rounds, 1 where it is not clearly more.
        estimated: heterogeneity of the rounds, as estimated.
        estimated_error: its standard error.
    """

    mass: float
    energy: float
    excess: float
    error: float
    same: float
    used: float
    estimated: float
    estimated_error: float


class _Tail(NamedTuple):
    """The items that do not stand out.

    Groups of them, the exponent of the power law, and the largest frequency.
    """

    frequencies: F64
    numbers: F64
    exponent: float
    most: float


def read(
    sketches: Sequence[CountSketch],
    domain: Domain,
    noise_variance: float,
    largest_unseen: float,
    max_items: int,
) -> Reading:
    """Return the distribution that a pilot suggests; arguments as for `Frequencies.from_pilot`."""
    decoder = JointDecoder(sketches, domain)
    fit, landed, clients = decoder.fit, decoder.fit.landed, decoder.num_clients
    batches = int(np.count_nonzero(landed.clients))
    if clients < 2 * batches:
        raise InvalidInputError(f"a pilot must have at least {2 * batches} clients, got {clients}")
    if _validate.real(0.0, 1.0, largest_unseen=largest_unseen) == 0.0:
        raise InvalidInputError("largest_unseen must be above 0, got 0")
    noise = (
        _validate.real(0.0, noise_variance=noise_variance) * len(sketches) * batches / clients**2
    )
    pilot = _Pilot(sketches, fit, clients, batches, _validate.integer(1, max_items=max_items))
    heads = _heads(pilot)
    known = _energy(pilot, heads, noise)
    ranks = (len(heads.heavy) + 1, domain.size)
    tail = _shape(pilot, heads, known, ranks, largest_unseen)
    # the error of one item, in clients
    one = fit.scale * clients / math.sqrt(float(fit.share.mean()))
    resolved = min(max(_CLEARLY * fit.threshold * one, 0.5), tail.most * clients)
    energy = known.energy
    # A bound below what would stand out is the caller's: deconvolution does not know of it.
    if len(tail.frequencies) and largest_unseen >= tail.most:
        tail = _deconvolution(pilot, heads, known, ranks, tail, one, resolved)
        energy = float(tail.numbers @ tail.frequencies**2)
    # the least that the mass admits
    energy = max(energy, float(tail.numbers @ tail.frequencies**2))
    return Reading(
        np.append(heads.heavy, tail.frequencies),
        np.append(np.ones(len(heads.heavy)), tail.numbers),
        Fit(
            clients=clients,
            batches=batches,
            heavy=len(heads.heavy),
            mass=known.mass,
            energy=energy,
            cells_error=known.error,
            exponent=tail.exponent,
            resolved=resolved / clients,
            conditioned=decoder.fallback is None,
            heterogeneity=known.estimated,
            heterogeneity_error=known.estimated_error,
        ),
        known.used,
    )


def _heads(pilot: _Pilot) -> _Heads:
    """Return the items that are told one by one, and the residual without them."""
    fit, clients = pilot.fit, pilot.clients
    values = np.maximum(fit.estimates(fit.support.ids), 0.0)
    squared_error = fit.scale**2 / fit.own_shares
    stands_out = values > HEAVY * np.sqrt(squared_error + values / clients)
    clear = stands_out | (values > _CLEARLY * fit.threshold * np.sqrt(squared_error))
    residual, share = _without(fit, clear)
    heavy = np.sort(values[stands_out])[::-1]
    # Errors may add up to more than clients can hold.
    heavy = np.minimum(heavy / max(1.0, float(heavy.sum()) / pilot.max_items), 1.0)
    light = clear & ~stands_out
    return _Heads(heavy, values[light], squared_error[light], residual, share)


def _energy(pilot: _Pilot, heads: _Heads, noise: float) -> _Energy:
    """Return the mass and the energy of all items that do not stand out.

    Args:
        pilot: decoded.
        heads: the items that are told one by one.
        noise: the variance of the noise in a cell of one batch, in squared frequencies.
    """
    landed, clients, batches, light = (
        pilot.fit.landed,
        pilot.clients,
        pilot.batches,
        heads.light,
    )
    mass = max(pilot.max_items - float(heads.heavy.sum()), 0.0)
    # What is not fitted is seen batch by batch, of clients / batches each; what is fitted, over
    # all of them.
    squares = float(np.mean(heads.residual**2, axis=(0, 1)) @ landed.weights)
    filled = landed.spec.width * squares / heads.share
    excess = filled - landed.spec.width * noise
    error = math.sqrt(2 / (landed.cells * batches)) * filled
    unfitted = max(mass - float(light.sum()), 0.0)
    if pilot.max_items > 1:  # whatever is held is also sampled: a mass that is not there would show
        mass = min(mass, float(light.sum()) + max(excess + _CLEAR * error, 0.0) * clients / batches)
        unfitted = 0.0
    spread, spread_error = _heterogeneity(pilot.fit, pilot.sketches)
    used = spread if spread > 1 + _CLEAR * spread_error else 1.0
    energy = (excess - unfitted * batches / clients) / (1 - batches / clients)
    same = heterogeneity_of_batches(used, landed.effective, _effective(pilot.sketches))
    energy /= same
    energy += float((light**2 - heads.light_error - light / clients).sum()) / (1 - 1 / clients)
    return _Energy(mass, energy, excess, error, same, used, spread, spread_error)


def _shape(
    pilot: _Pilot, heads: _Heads, known: _Energy, ranks: tuple[int, int], largest_unseen: float
) -> _Tail:
    """Return the power law beyond the heavy list with the tail's mass and energy.

    Args:
        pilot: decoded.
        heads: the items that are told one by one.
        known: mass and energy.
        ranks: the first and the last.
        largest_unseen: the caller's bound on its frequencies.
    """
    clients = pilot.clients
    # the largest frequency that does not stand out
    most = (
        HEAVY**2 / clients + math.sqrt(HEAVY**4 / clients**2 + 4 * HEAVY**2 * pilot.fit.scale**2)
    ) / 2
    cut = most
    if pilot.batches == 1:  # in several batches a cell's fourth cumulant mixes signs
        fourth, error = _fourth_powers(
            heads.residual,
            heads.share,
            pilot.fit.landed.spec.width,
            clients,
            heads.light,
            heads.light_error,
        )
        cut = _largest(ranks, known.mass, known.energy, most, clients, fourth, error)
    return _Tail(*power_law(*ranks, known.mass, known.energy, min(cut, largest_unseen)), most)


def _deconvolution(
    pilot: _Pilot,
    heads: _Heads,
    known: _Energy,
    ranks: tuple[int, int],
    tail: _Tail,
    error: float,
    least: float,
) -> _Tail:
    """Return the tail that the counts of clearly fitted items make likely.

    The power law is the start.

    Args:
        pilot: decoded.
        heads: the items that are told one by one.
        known: mass and energy.
        ranks: the first and the last of the tail.
        tail: the power law.
        error: of one item, in clients.
        least: clients from which items are clearly fitted.
    """
    clients = pilot.clients
    longer, others, _ = power_law(*ranks, known.mass, known.energy, tail.most)
    shown = Seen(
        clients=clients,
        values=heads.light * clients,
        errors=np.sqrt(heads.light_error) * clients,
        error=error,
        least=least,
        most=tail.most * clients,
        mass=known.mass * clients,
        squares=known.excess * clients**2,
        squares_error=known.error * clients**2,
        same=known.same,
        sampled=pilot.batches if pilot.max_items == 1 else 0,
    )
    start = np.append((1 - _LONGER) * tail.numbers, _LONGER * others)
    found, numbers = deconvolved(np.append(tail.frequencies, longer), start, shown)
    # more items than candidates that are left: fewer and larger ones, of the same mass
    many = max(float(numbers.sum()) / (ranks[1] - ranks[0] + 1), 1.0)
    return tail._replace(frequencies=found * many, numbers=numbers / many)


def _without(fit: JointFit, kept: npt.NDArray[np.bool_]) -> tuple[F64, float]:
    """Return the residual with only some of the support fitted, and the share that it keeps.

    The share is that of what the fit does not know.

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
    """Return the sum of fourth powers of the tail's counts, and its standard error.

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
    """Return the largest frequency of the power law with this sum of fourth powers.

    It is at most `seen`.

    `seen` itself, where that sum is not known well enough.
    """
    if mass <= 0.0 or energy <= 0.0:
        return seen

    def excess(log: float) -> float:
        tail, numbers, _ = power_law(*ranks, mass, energy, math.exp(log))
        expected = tail * clients
        # E[c^4] of a Poisson count
        moments = expected * (1 + expected * (7 + expected * (6 + expected)))
        return float(numbers @ moments) - fourth

    low, high = math.log(min(energy / mass, seen)), math.log(seen)
    most_powers = excess(high) + fourth
    if error > _KNOWN * most_powers or excess(high) <= 0:
        return seen
    return math.exp(low if excess(low) >= 0 else float(brentq(excess, low, high, xtol=0.01)))


def _effective(sketches: Sequence[CountSketch]) -> float:
    """Return how many rounds of equal size would spread the clients as much."""
    sizes = np.array([float(sketch.num_clients) for sketch in sketches])
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def _heterogeneity(fit: JointFit, sketches: Sequence[CountSketch]) -> tuple[float, float]:
    """Return the heterogeneity of the largest fitted items, and its standard error.

    It is 1 where nothing is known.

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
