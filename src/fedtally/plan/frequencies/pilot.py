"""Read a pilot: estimate a distribution of frequencies from a small sketch of few clients.

`read` does this in four steps:

1. `_heads` finds the items whose own frequencies joint recovery shows. The items that stand out
   from the noise are the *heavy list*. All other items are the *tail*.
2. `_energy` estimates two sums over the tail: its *mass*, the sum of the frequencies f, and its
   *energy*, the sum of f^2.
3. `_shape` finds a power law with this mass and this energy.
4. `_deconvolution` corrects the power law by the counts of the items that are fitted one by one.

A *cell* is a counter of the sums, divided by the number of clients. The *support* is the set of
items that joint recovery fits. docs/accuracy.md derives each step, and says how far the result can
be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.roots import root
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.plan.frequencies.power_law import power_law
from fedtally.plan.frequencies.tail import Seen, deconvolved
from fedtally.recovery.decoders.joint.joint import Fit as JointFit
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.error_model import heterogeneity_of_batches
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
HEAVY = 4.0  # an item stands out if its frequency exceeds this many of its standard errors
_KNOWN = 0.5  # the most relative standard error with which a sum of fourth powers is used
_COMPARED = 100  # the most fitted items, the largest first, that are compared between rounds
# An item may be on the support because of its error alone. An item is *clearly fitted* if its value
# exceeds this many times the fit's threshold for the support.
_CLEARLY = 2.0
# The power law is cut off at a largest frequency. Deconvolution starts from a mixture of it and of
# this share of a second power law, which is cut off at the frequency from which items stand out.
# Without the second power law, no item could ever lie beyond the cut of the first.
_LONGER = 0.02
_CLEAR = 2.0  # an effect is real if it exceeds this many of its standard errors


@dataclass(frozen=True)
class Pilot:
    """The size of a pilot: a small sketch of few clients, from which frequencies are estimated.

    The defaults come from the paper's experiments.

    Args:
        share: the pilot's share of all clients, in (0, 1).
        rows: the rows of the pilot's sketch.
        width: the width of the pilot's sketch.

    >>> Pilot().clients(17_500), Pilot().spec(bytes(32)).width
    (1750, 200)
    """

    share: float = 0.1
    rows: int = 8
    width: int = 200

    def __post_init__(self) -> None:
        validate.inside(share=self.share)
        validate.integer(1, rows=self.rows)
        validate.integer(2, width=self.width)

    def clients(self, num_clients: int) -> int:
        """Return the number of clients in the pilot, at least one.

        The pilot's clients take no part in the later campaign.
        """
        return max(1, int(self.share * validate.integer(1, num_clients=num_clients)))

    def spec(self, seed: bytes) -> SketchSpec:
        """Return the spec of the pilot's sketch, of one round."""
        return SketchSpec(self.rows, self.width, Schedule.parse("shared"), 1, seed)


@dataclass(frozen=True)
class Fit:
    """The numbers behind a reading of a pilot.

    Attributes:
        clients: the number of the pilot's clients.
        batches: the number of batches of its rounds that clients took part in.
        heavy: the length of the heavy list.
        mass: the tail's mass. If clients hold one item each, it is 1 minus the mass of the heavy
            list. If clients may hold several, it is the largest mass that the tail can have.
        energy: the tail's energy, the sum of its squared frequencies.
        cells_error: the part of the energy's standard error that comes from the small number of
            cells.
        exponent: the exponent of the power law that deconvolution starts from.
        resolved: the frequency from which single items are known. Of the smaller items only the
            mass and the energy are known.
        conditioned: whether joint recovery was at least as good as the median. If not, the pilot's
            sketch was too small for its items.
        heterogeneity: how much the frequencies differ between the pilot's rounds, as estimated: the
            mean energy of single rounds over the energy of their mean; 1 if they are alike. The
            planner uses `Frequencies.heterogeneity`, which is 1 unless the estimate is clearly
            more.
        heterogeneity_error: the standard error of that estimate; infinite if the pilot does not
            show the heterogeneity.
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
    """The distribution that a pilot suggests.

    Attributes:
        frequencies: float64 [k], the heavy list, then the frequencies of groups of other items.
        numbers: float64 [k], the number of items that have each frequency.
        fit: the numbers behind this reading.
        heterogeneity: the heterogeneity of the rounds; 1 unless they clearly differ.
    """

    frequencies: F64
    numbers: F64
    fit: Fit
    heterogeneity: float


class _Pilot(NamedTuple):
    """A decoded pilot.

    Attributes:
        sketches: the sums of the pilot's rounds.
        fit: the fit of joint recovery to these sums.
        clients: n, the number of clients in all rounds.
        batches: the number of batches of rounds that clients took part in. Each batch has signs of
            its own.
        max_items: the largest number of items that a client may hold.
    """

    sketches: Sequence[CountSketch]
    fit: JointFit
    clients: int
    batches: int
    max_items: int


class _Heads(NamedTuple):
    """The items whose own frequencies are known.

    Attributes:
        heavy: float64 [heavy], the falling frequencies of the items that stand out.
        light: float64 [light], the frequencies of the items that are clearly fitted but do not
            stand out. These items belong to the tail.
        light_error: float64 [light], the mean squared errors of `light`.
        residual: float64 [rows, width, batches], the sums less the heavy and the light items.
        share: the share of the mean square of all other items that the residual keeps; the fit
            absorbs the rest.
    """

    heavy: F64
    light: F64
    light_error: F64
    residual: F64
    share: float


class _Energy(NamedTuple):
    """Sums over the tail, the items that do not stand out, as the cells show them.

    Attributes:
        mass: the tail's mass; if clients may hold several items, the largest that it can be.
        energy: the tail's energy, the sum of its squared frequencies.
        excess: the width times the mean square of a cell that the items outside `_Heads` cause,
            without the noise.
        error: the standard error of `excess`.
        same: the heterogeneity of the batches.
        used: the heterogeneity of the rounds, if it is clearly more than 1; otherwise 1.
        estimated: the heterogeneity of the rounds, as estimated.
        estimated_error: the standard error of `estimated`.
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
    """The items that do not stand out, in groups of equal frequency.

    Attributes:
        frequencies: float64 [k], the frequency of each group.
        numbers: float64 [k], the number of items in each group.
        exponent: the exponent of the power law.
        most: the largest frequency that does not stand out.
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
    """Return the distribution that a pilot suggests; see `Frequencies.from_pilot`."""
    decoder = JointDecoder(sketches, domain)
    fit, landed, clients = decoder.fit, decoder.fit.landed, decoder.num_clients
    batches = int(np.count_nonzero(landed.clients))
    if clients < 2 * batches:
        raise InvalidInputError(f"a pilot must have at least {2 * batches} clients, got {clients}")
    if validate.real(0.0, 1.0, largest_unseen=largest_unseen) == 0.0:
        raise InvalidInputError("largest_unseen must be above 0, got 0")
    noise = validate.real(0.0, noise_variance=noise_variance) * len(sketches) * batches / clients**2
    pilot = _Pilot(sketches, fit, clients, batches, validate.integer(1, max_items=max_items))
    heads = _heads(pilot)
    known = _energy(pilot, heads, noise)
    ranks = (len(heads.heavy) + 1, domain.size)
    tail = _shape(pilot, heads, known, ranks, largest_unseen)
    # The standard error, in clients, of an item of which the residual keeps an average share
    # (`fit.share`).
    one = fit.scale * clients / math.sqrt(float(fit.share.mean()))
    resolved = min(max(_CLEARLY * fit.threshold * one, 0.5), tail.most * clients)
    energy = known.energy
    # Deconvolution keeps the tail below `tail.most` alone. If the caller's `largest_unseen` is
    # smaller, deconvolution could exceed it, so the power law stays as it is.
    if len(tail.frequencies) and largest_unseen >= tail.most:
        tail = _deconvolution(pilot, heads, known, ranks, tail, one, resolved)
        energy = float(tail.numbers @ tail.frequencies**2)
    # The power law may have more energy than the cells show: with few candidates the same mass
    # cannot have less.
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
    """Return the items whose own frequencies are known, and the residual without these items."""
    fit, clients = pilot.fit, pilot.clients
    values = np.maximum(fit.estimates(fit.support.ids), 0.0)
    squared_error = fit.scale**2 / fit.own_shares
    # An item of frequency f among n clients has the sampling variance f / n.
    stands_out = values > HEAVY * np.sqrt(squared_error + values / clients)
    clear = stands_out | (values > _CLEARLY * fit.threshold * np.sqrt(squared_error))
    residual, share = _without(fit, clear)
    heavy = np.sort(values[stands_out])[::-1]
    # Positive errors may lift the sum above the mass that clients can hold.
    heavy = np.minimum(heavy / max(1.0, float(heavy.sum()) / pilot.max_items), 1.0)
    light = clear & ~stands_out
    return _Heads(heavy, values[light], squared_error[light], residual, share)


def _energy(pilot: _Pilot, heads: _Heads, noise: float) -> _Energy:
    """Return the mass and the energy of all items that do not stand out.

    Args:
        pilot: the decoded pilot.
        heads: the items whose own frequencies are known.
        noise: the variance of the noise in a cell of one batch, in squared frequencies.
    """
    landed, clients, batches, light = (
        pilot.fit.landed,
        pilot.clients,
        pilot.batches,
        heads.light,
    )
    mass = max(pilot.max_items - float(heads.heavy.sum()), 0.0)
    # The cells show the other items batch by batch, each batch with clients / batches clients. So
    # sampling adds (f - f^2) * batches / clients to the square of an item's frequency f. The fitted
    # items have estimates over all clients, so for them sampling adds only (f - f^2) / clients.
    squares = float(np.mean(heads.residual**2, axis=(0, 1)) @ landed.weights)
    filled = landed.spec.width * squares / heads.share
    excess = filled - landed.spec.width * noise
    error = math.sqrt(2 / (landed.cells * batches)) * filled
    unfitted = max(mass - float(light.sum()), 0.0)
    if pilot.max_items > 1:
        # The mass that clients hold is unknown, but it causes sampling noise, which is part of
        # `excess`. So `excess` bounds the mass. The noise is not subtracted from the energy, which
        # is rather too large then.
        mass = min(mass, float(light.sum()) + max(excess + _CLEAR * error, 0.0) * clients / batches)
        unfitted = 0.0
    spread, spread_error = _heterogeneity(pilot.fit, pilot.sketches)
    used = spread if spread > 1 + _CLEAR * spread_error else 1.0
    energy = (excess - unfitted * batches / clients) / (1 - batches / clients)
    # A batch shows the energy of its own distribution, `same` times that of the mean distribution.
    same = heterogeneity_of_batches(used, landed.effective, _effective(pilot.sketches))
    energy /= same
    energy += float((light**2 - heads.light_error - light / clients).sum()) / (1 - 1 / clients)
    return _Energy(mass, energy, excess, error, same, used, spread, spread_error)


def _shape(
    pilot: _Pilot, heads: _Heads, known: _Energy, ranks: tuple[int, int], largest_unseen: float
) -> _Tail:
    """Return the power law beyond the heavy list with the tail's mass and energy.

    Args:
        pilot: the decoded pilot.
        heads: the items whose own frequencies are known.
        known: the tail's mass and energy.
        ranks: the tail's first and last rank.
        largest_unseen: the caller's bound on the tail's frequencies.
    """
    clients = pilot.clients
    # The largest frequency f that does not stand out solves f^2 = HEAVY^2 (scale^2 + f / clients).
    most = (
        HEAVY**2 / clients + math.sqrt(HEAVY**4 / clients**2 + 4 * HEAVY**2 * pilot.fit.scale**2)
    ) / 2
    cut = most
    # Each batch has signs of its own, and the fourth cumulant of a cell would mix them. So with
    # several batches the cut is the largest frequency that does not stand out.
    if pilot.batches == 1:
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

    Deconvolution starts from the power law.

    Args:
        pilot: the decoded pilot.
        heads: the items whose own frequencies are known.
        known: the tail's mass and energy.
        ranks: the tail's first and last rank.
        tail: the power law.
        error: the standard error of one item, in clients.
        least: the number of clients from which an item is clearly fitted.
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
    # Deconvolution may find more items than there are candidates left. Then the tail gets fewer and
    # larger items, of the same mass.
    many = max(float(numbers.sum()) / (ranks[1] - ranks[0] + 1), 1.0)
    return tail._replace(frequencies=found * many, numbers=numbers / many)


def _without(fit: JointFit, kept: npt.NDArray[np.bool_]) -> tuple[F64, float]:
    """Return the residual with only some of the support fitted, and the share that it keeps.

    The residual keeps this share of the mean square of the items that are not on the support.

    Args:
        fit: the fit with the whole support.
        kept: bool [support], the items that stay fitted. All others are put back into the cells.
    """
    residual = fit.residual.copy()
    places = fit.landed.places(fit.support.ids[~kept])
    fit.landed.add(residual, *places, fit.support.values[~kept])
    # Fitting the whole support absorbs a share 1 - b of the other items, where b is the mean of
    # `fit.share`. A part of the support is assumed to absorb the same part of 1 - b.
    return residual, 1.0 - (1.0 - float(fit.share.mean())) * (
        float(kept.mean()) if len(kept) else 0.0
    )


def _fourth_powers(
    residual: F64, share: float, width: int, clients: int, light: F64, squared_error: F64
) -> tuple[float, float]:
    """Return the sum of fourth powers of the tail's counts, and its standard error.

    The fourth cumulant of a cell is this sum divided by the width. Normal noise adds nothing to it.

    Args:
        residual: the residual of the one batch.
        share: the share of the mean square of other items that the residual keeps, as in `_Heads`.
        width: the width of the sketch.
        clients: n, the number of clients.
        light: the frequencies of the items that are clearly fitted but do not stand out.
        squared_error: the mean squared errors of `light`.
    """
    cells = residual.reshape(-1) * clients
    square = float(np.mean(cells**2))
    scale = width / share**2
    counts, errors = light * clients, squared_error * clients**2
    # If x is a count c plus a normal error of variance v, E[x^4 - 6 x^2 v + 3 v^2] = c^4.
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

    The result is at most `seen`, and is `seen` itself if the sum is not known well enough.

    Args:
        ranks: the tail's first and last rank.
        mass: the tail's mass.
        energy: the tail's energy.
        seen: the largest frequency that does not stand out.
        clients: n, the number of clients.
        fourth: the sum of fourth powers of the tail's counts.
        error: the standard error of `fourth`.
    """
    if mass <= 0.0 or energy <= 0.0:
        return seen

    def excess(log: float) -> float:
        tail, numbers, _ = power_law(*ranks, mass, energy, math.exp(log))
        expected = tail * clients
        # E[c^4] of a Poisson count c.
        moments = expected * (1 + expected * (7 + expected * (6 + expected)))
        return float(numbers @ moments) - fourth

    # A tail has a frequency of at least energy / mass, which is its mean weighted by mass.
    low, high = math.log(min(energy / mass, seen)), math.log(seen)
    most_powers = excess(high) + fourth
    if error > _KNOWN * most_powers or excess(high) <= 0:
        return seen
    return math.exp(low if excess(low) >= 0 else root(excess, low, high, within=0.01))


def _effective(sketches: Sequence[CountSketch]) -> float:
    """Return the effective number of rounds: (sum of sizes)^2 / sum of squared sizes."""
    sizes = np.array([float(sketch.num_clients) for sketch in sketches])
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def _by_round(fit: JointFit, rounds: Sequence[CountSketch], items: I64) -> tuple[F64, F64]:
    """Return the frequency of each item in each round, by least squares, and its squared error.

    Args:
        fit: the fit of all rounds together.
        rounds: the sketches, one for each round.
        items: the places of the items among the fitted ones.

    Returns:
        float64 [items, rounds], twice; 0 in a round without clients.
    """
    landed = fit.landed
    cells, signs = landed.places(fit.support.ids[items])
    batches = len(landed.clients)
    z, error = np.zeros((2, len(items), len(rounds)))
    for m, sketch in enumerate(rounds):
        if not sketch.num_clients:
            continue
        batch = (
            m
            if landed.fresh
            else landed.spec.schedule.batch_of(sketch.round, landed.spec.num_rounds)
        )
        design = np.zeros((len(items), landed.cells))
        at = cells[..., batch if landed.fresh else 0] // batches
        np.put_along_axis(design, at, signs[..., batch].astype(np.float64), axis=1)
        # Two items may share all their cells, so the matrix may have no inverse.
        inverse = np.linalg.pinv(design @ design.T, hermitian=True)
        counters = sketch.counters.reshape(-1) / sketch.num_clients
        z[:, m] = inverse @ (design @ counters)
        left = counters - z[:, m] @ design
        error[:, m] = np.diagonal(inverse) * float(left @ left) / (landed.cells - len(items))
    return z, error


def _heterogeneity(fit: JointFit, sketches: Sequence[CountSketch]) -> tuple[float, float]:
    """Return the heterogeneity of the largest fitted items, and its standard error.

    The heterogeneity is 1, and its error infinite, if the pilot does not show it.

    The compared items are chosen by their values over all rounds. This causes no bias: given such a
    value, the estimated variance between rounds is unbiased.
    """
    most = _effective(sketches)
    landed, rounds = fit.landed, sorted(sketches, key=lambda sketch: sketch.round)
    largest = np.argsort(-fit.fitted)[: min(_COMPARED, landed.cells // 8)]
    if most < 1.5 or not len(largest):
        return 1.0, math.inf
    weights = np.array([sketch.num_clients for sketch in rounds]) / landed.num_clients
    z, error = _by_round(fit, rounds, largest)
    mean = z @ weights
    z, error, mean = z[mean > 0], error[mean > 0], mean[mean > 0]
    # The noise of the cells and of sampling. The next two lines subtract the part that this noise
    # adds to the variance between rounds, and to the square of the mean.
    noise = error + mean[:, None] / np.maximum(weights * landed.num_clients, 1.0)
    variance = (z - mean[:, None]) ** 2 @ weights - noise @ (weights * (1 - weights))
    square = mean**2 - noise @ weights**2
    # An item's variance and square are taken relative to mean^2, and weighted by the mass, `mean`.
    total = float((square / mean).sum())
    if total <= 0:
        return 1.0, math.inf
    more = float((variance / mean).sum()) / total
    # The squared error that `variance` would have if all rounds had one distribution. It is the
    # least squared error that is taken for an item.
    alike = 2 * (noise @ (weights * (1 - weights))) ** 2 / (most - 1)
    errors = np.maximum((variance - more * square) ** 2, alike)
    return min(max(1.0, 1.0 + more), most), math.sqrt(float((errors / mean**2).sum())) / total
