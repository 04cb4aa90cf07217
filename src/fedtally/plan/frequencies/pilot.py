"""Estimate a distribution of frequencies from a pilot: a small sketch of few clients.

`read` does this in four steps:

1. `_heads` finds the items whose own frequencies joint recovery shows. Items that stand out from
   the noise form the *heavy list*. All other items form the *tail*.
2. `_energy` estimates two sums over the tail: its *mass*, the sum of the frequencies f, and its
   *energy*, the sum of f^2.
3. `_shape` finds a power law with this mass and this energy.
4. `_deconvolution` corrects the power law, by the counts of the items that are fitted one by one.

A *cell* is a counter of the sums, divided by the number of clients. The *support* is the set of
items that joint recovery fits. The *residual* is what the cells contain besides fitted items.
docs/accuracy.md derives each step, and says how far the result can be trusted.
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
from fedtally.base.shares import whole_share
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
# A sum of fourth powers is not used if its standard error exceeds this share of the largest sum
# that the tail may have.
_KNOWN = 0.5
_COMPARED = 100  # at most this many of the largest fitted items are compared between rounds
# An item may be on the support only because of a random error. So an item is *clearly fitted* if it
# stands out, or if its value exceeds this many times the threshold for the support.
_CLEARLY = 2.0
# The power law is cut off at a largest frequency. Deconvolution cannot give items to frequencies
# that have none at its start. So a second power law with this share is mixed in, which is cut off
# only at the frequency from which items stand out.
_LONGER = 0.02
_CLEAR = 2.0  # an effect counts as real if it exceeds this many of its standard errors


@dataclass(frozen=True)
class Pilot:
    """The size of a pilot: a small sketch of few clients, from which frequencies are estimated.

    The defaults are the values of the paper's experiments.

    Args:
        share: the share of all clients that take part in the pilot, above 0 and below 1.
        rows: the number of rows of the pilot's sketch.
        width: the number of counters in a row of the pilot's sketch.

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
        """Return how many of `num_clients` clients take part in the pilot, at least 1.

        These clients do not take part in the later campaign.
        """
        return max(1, whole_share(self.share, validate.integer(1, num_clients=num_clients)))

    def spec(self, seed: bytes) -> SketchSpec:
        """Return the parameters of the pilot's sketch, with one round and this seed of 32 bytes."""
        return SketchSpec(self.rows, self.width, Schedule.parse("shared"), 1, seed)


@dataclass(frozen=True)
class Fit:
    """What a pilot showed, besides the frequencies themselves.

    Attributes:
        clients: the number of the pilot's clients.
        batches: the number of batches (groups of rounds that share all hashes and signs) in which
            clients took part.
        heavy: the number of items on the heavy list: the items that stand out from the noise.
        mass: the mass of the tail (all other items), which is the sum of its frequencies. If
            clients hold one item each, it is 1 minus the mass of the heavy list. Otherwise it is an
            upper bound, estimated from the energy of the counters.
        energy: the energy of the tail, as estimated: the sum of its squared frequencies.
        cells_error: the standard error of the energy, as far as it comes from the small number of
            cells (counters).
        exponent: the exponent of the power law from which deconvolution started.
        resolved: the frequency above which items are known one by one. Of less frequent items only
            the mass and the energy are known.
        conditioned: False if the pilot's sketch was too small for its items, so that the errors of
            joint recovery are larger than the median decoder's.
        heterogeneity: how much frequencies differ between the pilot's rounds, estimated from the
            largest fitted items: the mean energy of single rounds divided by the energy of their
            mean, at least 1; 1 if all rounds are alike. The planner uses
            `Frequencies.heterogeneity` instead, which is 1 unless this estimate is clearly above 1.
        heterogeneity_error: the standard error of `heterogeneity`; infinite if the pilot does not
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
    """The distribution of frequencies that a pilot suggests.

    Attributes:
        frequencies: float64 [k], the frequencies on the heavy list, then the frequencies of groups
            of other items.
        numbers: float64 [k], the number of items that have each frequency.
        fit: what else the pilot showed.
        heterogeneity: how much frequencies differ between rounds; 1 unless they clearly differ (see
            `Fit`).
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
        batches: the number of batches in which clients took part. Each batch has its own signs.
        max_items: the most items that one client may hold.
    """

    sketches: Sequence[CountSketch]
    fit: JointFit
    clients: int
    batches: int
    max_items: int


class _Heads(NamedTuple):
    """The items whose own frequencies are known: they stand out, or are at least clearly fitted.

    Attributes:
        heavy: float64 [heavy], the frequencies of the items that stand out, falling.
        light: float64 [light], the frequencies of the items that are clearly fitted but do not
            stand out. These items belong to the tail.
        light_error: float64 [light], the mean squared error of each frequency in `light`.
        residual: float64 [rows, width, batches], the cells without the items in `heavy` and
            `light`.
        share: how much of the mean square of the items that are neither in `heavy` nor in `light`
            is still in the residual, as a share; the fit has absorbed the rest.
    """

    heavy: F64
    light: F64
    light_error: F64
    residual: F64
    share: float


class _Energy(NamedTuple):
    """Sums over the tail (the items that do not stand out), as the cells show them.

    Attributes:
        mass: the mass of the tail; if clients may hold several items, an upper bound on it, as
            estimated.
        energy: the energy of the tail: the sum of its squared frequencies.
        excess: the width times the mean square of the cells (counters divided by the number of
            clients), as far as it comes from items outside of `_Heads`, without the noise.
        error: the standard error of `excess`.
        same: the heterogeneity of the batches: how much frequencies differ between them; 1 if they
            do not.
        used: the heterogeneity of the rounds that the planner uses: `estimated` if it is clearly
            above 1, otherwise 1.
        estimated: the estimated heterogeneity of the rounds.
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
    """The items that do not stand out from the noise, in groups of equal frequency.

    Attributes:
        frequencies: float64 [k], the frequency of each group.
        numbers: float64 [k], the number of items in each group.
        exponent: the exponent of the power law.
        most: the largest frequency that an item of the tail may have without standing out.
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
    # The standard error, in clients, of an average item: the residual keeps `fit.share` of it.
    one = fit.scale * clients / math.sqrt(float(fit.share.mean()))
    resolved = min(max(_CLEARLY * fit.threshold * one, 0.5), tail.most * clients)
    energy = known.energy
    # Deconvolution keeps frequencies below `tail.most`, but does not know `largest_unseen`. If
    # `largest_unseen` is smaller, deconvolution could exceed it, so the power law is not corrected.
    if len(tail.frequencies) and largest_unseen >= tail.most:
        tail = _deconvolution(pilot, heads, known, ranks, tail, one, resolved)
        energy = float(tail.numbers @ tail.frequencies**2)
    # If there are few candidates, the tail's mass on them has at least a certain energy, which may
    # be more than the cells show. Then the energy of the returned tail is taken instead.
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
    """Return the items whose own frequencies are known, and the residual without these items.

    The residual is what the cells (counters of the sums, divided by the number of clients) contain
    besides these items.
    """
    fit, clients = pilot.fit, pilot.clients
    values = np.maximum(fit.estimates(fit.support.ids), 0.0)
    squared_error = fit.scale**2 / fit.own_shares
    # `values / clients` is the variance of a frequency f among n randomly drawn clients: f / n.
    stands_out = values > HEAVY * np.sqrt(squared_error + values / clients)
    clear = stands_out | (values > _CLEARLY * fit.threshold * np.sqrt(squared_error))
    residual, share = _without(fit, clear)
    heavy = np.sort(values[stands_out])[::-1]
    # Positive errors may make the sum larger than the most that clients can hold: `max_items`.
    heavy = np.minimum(heavy / max(1.0, float(heavy.sum()) / pilot.max_items), 1.0)
    light = clear & ~stands_out
    return _Heads(heavy, values[light], squared_error[light], residual, share)


def _energy(pilot: _Pilot, heads: _Heads, noise: float) -> _Energy:
    """Return the mass and the energy of the tail, and related sums.

    The tail is all items that do not stand out from the noise. Their mass is the sum of their
    frequencies f, and their energy is the sum of f^2.

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
    # Clients are drawn at random, which adds to the square of an item's frequency f. Items that are
    # not fitted show in the cells of each batch, with clients / batches clients: this adds
    # (f - f^2) * batches / clients. Fitted items have estimates over all clients: this adds only
    # (f - f^2) / clients.
    squares = float(np.mean(heads.residual**2, axis=(0, 1)) @ landed.weights)
    filled = landed.spec.width * squares / heads.share
    excess = filled - landed.spec.width * noise
    error = math.sqrt(2 / (landed.cells * batches)) * filled
    unfitted = max(mass - float(light.sum()), 0.0)
    if pilot.max_items > 1:
        # The mass that clients hold is not known here. But the mass causes sampling noise. This
        # noise is a part of `excess`, so `excess` bounds the mass. With `unfitted` 0 the noise is
        # not subtracted from the energy: the energy is then rather too large than too small.
        mass = min(mass, float(light.sum()) + max(excess + _CLEAR * error, 0.0) * clients / batches)
        unfitted = 0.0
    spread, spread_error = _heterogeneity(pilot.fit, pilot.sketches)
    used = spread if spread > 1 + _CLEAR * spread_error else 1.0
    energy = (excess - unfitted * batches / clients) / (1 - batches / clients)
    # The cells show the mean energy of single batches. It is `same` times the energy of their mean.
    same = heterogeneity_of_batches(used, landed.effective, _effective(pilot.sketches))
    energy /= same
    energy += float((light**2 - heads.light_error - light / clients).sum()) / (1 - 1 / clients)
    return _Energy(mass, energy, excess, error, same, used, spread, spread_error)


def _shape(
    pilot: _Pilot, heads: _Heads, known: _Energy, ranks: tuple[int, int], largest_unseen: float
) -> _Tail:
    """Return the power law for the tail, with the tail's mass and energy.

    The tail is all items that do not stand out from the noise, see `_energy`.

    Args:
        pilot: the decoded pilot.
        heads: the items whose own frequencies are known.
        known: the tail's mass and energy.
        ranks: the first and the last rank of the tail.
        largest_unseen: the caller's upper bound on the frequencies of the tail.
    """
    clients = pilot.clients
    # The largest frequency f that does not stand out solves f^2 = HEAVY^2 (scale^2 + f / clients).
    most = (
        HEAVY**2 / clients + math.sqrt(HEAVY**4 / clients**2 + 4 * HEAVY**2 * pilot.fit.scale**2)
    ) / 2
    cut = most
    # With one batch, the fourth powers of the cells show a smaller cut. With several batches, each
    # has its own signs, and fourth powers would mix these: the cut then stays `most`.
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
    """Return the tail that is most likely, given the counts of the clearly fitted items.

    The tail is all items that do not stand out from the noise. An item is clearly fitted if its
    value is well above the threshold for the fit (`_CLEARLY`). The search starts from the power
    law, mixed with a small share of a second power law (`_LONGER`).

    Args:
        pilot: the decoded pilot.
        heads: the items whose own frequencies are known.
        known: the tail's mass and energy.
        ranks: the first and the last rank of the tail.
        tail: the power law, which `_shape` returned.
        error: the standard error of one item's count, in clients.
        least: the count, in clients, from which an item is clearly fitted.
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
    # Deconvolution does not know the number of candidates, and may find more items than there are.
    # Then the tail gets fewer and more frequent items, with the same mass.
    many = max(float(numbers.sum()) / (ranks[1] - ranks[0] + 1), 1.0)
    return tail._replace(frequencies=found * many, numbers=numbers / many)


def _without(fit: JointFit, kept: npt.NDArray[np.bool_]) -> tuple[F64, float]:
    """Return the residual if only some items of the support are fitted, and a share.

    The support is the set of fitted items, and the residual is what the counters contain besides
    the fitted items. The share says how much of the mean square of the items outside the support is
    still in the residual. The fit has absorbed the rest.

    Args:
        fit: the fit of the whole support.
        kept: bool [support], whether an item stays fitted. All other items are put back into the
            cells.
    """
    residual = fit.residual.copy()
    places = fit.landed.places(fit.support.ids[~kept])
    fit.landed.add(residual, *places, fit.support.values[~kept])
    # The fit of the whole support absorbs a share 1 - b of other items, where b is the mean of
    # `fit.share`. A fit of a part of the support is assumed to absorb that part of 1 - b.
    return residual, 1.0 - (1.0 - float(fit.share.mean())) * (
        float(kept.mean()) if len(kept) else 0.0
    )


def _fourth_powers(
    residual: F64, share: float, width: int, clients: int, light: F64, squared_error: F64
) -> tuple[float, float]:
    """Return the sum of the fourth powers of the tail's counts, and its standard error.

    The tail is all items that do not stand out from the noise. The sum divided by the width is the
    fourth cumulant of a cell (a counter), to which normal noise adds nothing.

    Args:
        residual: float64 [rows, width, 1], the residual of the only batch.
        share: `_Heads.share`: the share of a mean square that the residual keeps.
        width: the width of the sketch.
        clients: n, the number of clients.
        light: float64 [light], the frequencies of the items that are clearly fitted but do not
            stand out.
        squared_error: float64 [light], the mean squared error of each frequency in `light`.
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
    """Return the largest frequency of the tail: the cut of its power law.

    The tail is all items that do not stand out from the noise. The cut is chosen so that the power
    law has the given sum of fourth powers. Returns `seen` if this sum is not known well enough, or
    allows no smaller cut, or if the mass or the energy is not above 0.

    Args:
        ranks: the first and the last rank of the tail.
        mass: the tail's mass.
        energy: the tail's energy.
        seen: the largest frequency that an item may have without standing out.
        clients: n, the number of clients.
        fourth: the sum of the fourth powers of the tail's counts.
        error: the standard error of `fourth`.
    """
    if mass <= 0.0 or energy <= 0.0:
        return seen

    def excess(log: float) -> float:
        tail, numbers, _ = power_law(*ranks, mass, energy, math.exp(log))
        expected = tail * clients
        # the mean of c^4 for a Poisson count c
        moments = expected * (1 + expected * (7 + expected * (6 + expected)))
        return float(numbers @ moments) - fourth

    # energy / mass is a mean of the tail's frequencies, so the largest one is at least this.
    low, high = math.log(min(energy / mass, seen)), math.log(seen)
    most_powers = excess(high) + fourth
    if error > _KNOWN * most_powers or excess(high) <= 0:
        return seen
    return math.exp(low if excess(low) >= 0 else root(excess, low, high, within=0.01))


def _effective(sketches: Sequence[CountSketch]) -> float:
    """Return the effective number of rounds: n equal rounds count n, and small rounds count less.

    It is (sum of sizes)^2 / (sum of squared sizes), where a size is a round's number of clients.
    """
    sizes = np.array([float(sketch.num_clients) for sketch in sketches])
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def _by_round(fit: JointFit, rounds: Sequence[CountSketch], items: I64) -> tuple[F64, F64]:
    """Return the frequency of each item in each round, by least squares, and its squared error.

    Args:
        fit: the fit of all rounds together.
        rounds: the sketches, one for each round.
        items: int64 [items], where the items stand in the arrays of the fit's support.

    Returns:
        Two arrays, float64 [items, rounds]: the frequencies, and their mean squared errors. Both
        are 0 in a round without clients.
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
        # a pseudo-inverse: the matrix has no inverse if two items share all their cells
        inverse = np.linalg.pinv(design @ design.T, hermitian=True)
        counters = sketch.counters.reshape(-1) / sketch.num_clients
        z[:, m] = inverse @ (design @ counters)
        left = counters - z[:, m] @ design
        error[:, m] = np.diagonal(inverse) * float(left @ left) / (landed.cells - len(items))
    return z, error


def _heterogeneity(fit: JointFit, sketches: Sequence[CountSketch]) -> tuple[float, float]:
    """Return how much frequencies differ between the rounds, and the standard error of this number.

    The number is the heterogeneity (see `Fit`) of the largest fitted items, at least 1. If the
    pilot does not show it, the result is 1 with an infinite standard error.

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
    # The variance of each estimate, from other items in the cells and from the drawing of clients.
    # The next two lines subtract what it adds to the variance between rounds, and to the square of
    # the mean.
    noise = error + mean[:, None] / np.maximum(weights * landed.num_clients, 1.0)
    variance = (z - mean[:, None]) ** 2 @ weights - noise @ (weights * (1 - weights))
    square = mean**2 - noise @ weights**2
    # The variances and squares are divided by mean^2, and weighted by the mass of the item, `mean`.
    total = float((square / mean).sum())
    if total <= 0:
        return 1.0, math.inf
    more = float((variance / mean).sum()) / total
    # The squared error of `variance` if frequencies did not differ between rounds. Every item is
    # given at least this squared error: a smaller one would only be luck.
    alike = 2 * (noise @ (weights * (1 - weights))) ** 2 / (most - 1)
    errors = np.maximum((variance - more * square) ** 2, alike)
    return min(max(1.0, 1.0 + more), most), math.sqrt(float((errors / mean**2).sum())) / total
