"""How large a sketch must be: rows and width from the error that is asked for, or the least error from bytes.

Five ways. Three are the paper's (Wu, Zhu, Kairouz and Braverman 2023), with the constant 2 of its experiments:
`oracle` knows the frequencies, `minimax` assumes the worst, `two_phase` fits a power law to a pilot. `linear` is the
n of Chen et al. 2022. The fifth, `calculus`, is without constants: it searches for the smallest rows x width whose
largest error, by `fedtally.recovery.error_model`, exceeds tau with probability at most p.

**Pilot.** A small sketch of few clients, none of whom takes part again. `calculus` decodes it jointly. Items that stand
out of the fit's error and of their own sampling error s, f > 4 s, are the heavy list. What else the sums hold is the
tail. Its energy, the sum of f^2, is that of the residual: L W cells of mean square s2 hold, of a fit that leaves the
share b of what it does not know,

    E = W s2 / b - W noise,    ||tail||^2 = (E - mass / n) / (1 - 1 / n),                                      (1)

where n clients were drawn, so that an item of frequency f has mean square f^2 + (f - f^2) / n among them, and mass is
what the heavy list leaves of 1. Fitted items that are not heavy are part of the tail; their squares are added to E. The
tail's shape is a power law over the ranks beyond the heavy list, with this mass and this energy. (1) is unbiased for
any shape. How the energy is spread is a guess where tau is below what the pilot shows one by one: `Law.hardest` says
what that may cost the median. Joint recovery, which undoes what stands out, depends on the shape in more ways: 2,000
items alike, of which a pilot showed none, were planned with a quarter of the cells that they need.

**What a law must be.** Every client holds one item: a mass of 1 is used. Several rounds are taken to be of one law.
What is read of a pilot must be public, or noised and accounted: a pilot under differential privacy is a release of its
own, of clients of its own. Under differential privacy width, schedule and hashes may follow from a pilot; rows, noise
and participations, which decide what a campaign costs, may not, unless the ledger composes both as Gaussians.

**How far it is to be trusted.** `Law.uncertainty` is the standard error of hardness(f, tau) due to that of the tail's
energy: from the pairs of clients with one item, which are few, and from the cells, whose mean square has a relative
error of sqrt(2 / cells). Beyond `TOO_UNCERTAIN`, `calculus` falls back to `minimax` and says so.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, minimize_scalar

from fedtally import _validate, theory
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.kernels import MAX_ROWS, MAX_WIDTH
from fedtally.recovery.error_model import failure, predict
from fedtally.recovery.joint import JointDecoder
from fedtally.recovery.landed import Candidates
from fedtally.recovery.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
ROWS = {"median": range(3, 32), "joint": range(3, 17)}
HEAVY = 4.0  # standard errors by which an item of a pilot stands out
MARGIN = 1.1  # by which the width exceeds the predicted one, ...
RISK = 0.5  # ... and the share of p that is planned for: what a pilot gets wrong is to fit in the rest
TOO_UNCERTAIN = 0.5  # relative standard error of the hardness from which a pilot says too little
SHAPE = 1.5  # times the hardness from which it is said that the shape of the tail is a guess
_ALONE = 60  # heaviest items that are kept one by one
_GROUP = 1.01  # items within this ratio are taken together
_STEEPEST = 10.0  # exponent of a fitted power law
_MOST_RANKS = 1 << 23  # of the two-phase law: what is beyond adds less than 2^-23 / tau^2 to the hardness


# ---- what is known ----


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
        if not 0.0 < _validate.real(share=self.share) < 1.0:
            raise InvalidInputError(f"share must be above 0 and below 1, got {self.share}")
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
        mass: of the tail, 1 less that of the heavy list.
        energy: of the tail, the sum of squared frequencies.
        cells_error: the part of its standard error that is due to the few cells.
        exponent: of the power law that has this mass and energy.
        conditioned: whether joint recovery was at least as good as the median; otherwise the pilot's sketch was too
            small for what it held.
    """

    clients: int
    batches: int
    heavy: int
    mass: float
    energy: float
    cells_error: float
    exponent: float
    conditioned: bool


@dataclass(frozen=True, eq=False)
class Law:
    """What is known of the frequencies, as `fedtally.recovery.error_model` takes it.

    Attributes:
        frequencies: float64 [k], above 0; the heaviest first, then groups of the others.
        numbers: float64 [k], how many items have each.
        domain_size: how many candidates there are.
        fit: how a pilot was read; None where frequencies were known.
    """

    frequencies: F64
    numbers: F64
    domain_size: int
    fit: Fit | None = None

    @classmethod
    def from_frequencies(cls, frequencies: npt.ArrayLike, domain_size: int | None = None) -> Self:
        """Return the law of known frequencies.

        Args:
            frequencies: [d], in any order, at least 0, together at most 1.
            domain_size: where it is larger than d; the others are held by nobody.

        Raises:
            InvalidInputError: a value is out of its range.

        >>> law = Law.from_frequencies(np.full(1000, 1e-3), domain_size=5000)
        >>> len(law.frequencies) < 100, round(float(law.numbers.sum())), round(law.hardness(0.01), 6)
        (True, 1000, 10.0)
        """
        known = np.asarray(frequencies, dtype=np.float64)
        if known.ndim != 1 or not np.isfinite(known).all() or (known < 0).any():
            raise InvalidInputError("frequencies must be in one dimension, finite and at least 0")
        if known.sum() > 1 + 1e-9:
            raise InvalidInputError(f"frequencies must sum to at most 1, got {known.sum():.6g}")
        size = _validate.integer(max(len(known), 1), domain_size=len(known) if domain_size is None else domain_size)
        falling = np.sort(known[known > 0])[::-1]
        light = falling[_ALONE:]
        group = np.floor(np.log(light[:1] / light) / math.log(_GROUP)).astype(np.int64)
        numbers = np.bincount(group).astype(np.float64)
        means = np.bincount(group, light)[numbers > 0] / numbers[numbers > 0]
        head = falling[:_ALONE]
        return cls(np.append(head, means), np.append(np.ones(len(head)), numbers[numbers > 0]), size)

    @classmethod
    def from_pilot(
        cls, sketches: Sequence[CountSketch], domain: Domain, noise_variance: float = 0.0, largest_unseen: float = 1.0
    ) -> Self:
        """Return the law that a pilot suggests: heavy items, and a power law with the tail's mass and energy.

        Args:
            sketches: landed sums of the pilot's rounds, all of one spec; clients hold one item each.
            domain: the candidate items.
            noise_variance: of the noise in each counter of each round's sum, in squared counts.
            largest_unseen: bound on the frequencies of the tail, above 0, beside that which items would stand out at.
                With tau the law has the hardness of `hardest`: for the median that covers tails of any shape.

        Raises:
            InvalidInputError: nothing landed, or two sums of one round.
        """
        decoder = JointDecoder(sketches, domain)
        fit, landed, clients = decoder.fit, decoder.fit.landed, decoder.num_clients
        batches = int(np.count_nonzero(landed.clients))
        if clients < 2 * batches:
            raise InvalidInputError(f"a pilot must have at least {2 * batches} clients, got {clients}")
        if _validate.real(0.0, 1.0, largest_unseen=largest_unseen) == 0.0:
            raise InvalidInputError("largest_unseen must be above 0, got 0")
        noise = _validate.real(0.0, noise_variance=noise_variance) * len(sketches) * batches / clients**2
        values = np.maximum(fit.estimates(fit.support.ids), 0.0)
        squared_error = fit.scale**2 / fit.own_shares
        stands_out = values > HEAVY * np.sqrt(squared_error + values / clients)
        heavy, light = np.sort(values[stands_out])[::-1], values[~stands_out]
        heavy /= max(1.0, float(heavy.sum()))
        mass = max(1.0 - float(heavy.sum()), 0.0)
        # What is not fitted is seen batch by batch, of clients / batches each; what is fitted, over all of them.
        squares = float(np.mean(fit.residual**2, axis=(0, 1)) @ landed.weights)
        filled = landed.spec.width * squares / float(fit.share.mean())
        unfitted = max(mass - float(light.sum()), 0.0)
        energy = (filled - landed.spec.width * noise - unfitted * batches / clients) / (1 - batches / clients)
        energy += float((light**2 - squared_error[~stands_out] - light / clients).sum()) / (1 - 1 / clients)
        # The largest frequency that does not stand out.
        seen = (HEAVY**2 / clients + math.sqrt(HEAVY**4 / clients**2 + 4 * HEAVY**2 * fit.scale**2)) / 2
        most = min(seen, largest_unseen)
        tail, numbers, exponent = _power_law(len(heavy) + 1, domain.size, mass, energy, most)
        cells = math.sqrt(2 / (landed.cells * batches)) * filled
        energy = max(energy, float(numbers @ tail**2))  # the least that the mass admits
        read = Fit(clients, batches, len(heavy), mass, energy, cells, exponent, decoder.fallback is None)
        return cls(np.append(heavy, tail), np.append(np.ones(len(heavy)), numbers), domain.size, read)

    def hardness(self, tau: float) -> float:
        """Return `theory.hardness` of the law, the paper's width without its constant."""
        return float(self.numbers @ np.minimum(self.frequencies / _inside(tau=tau), 1.0) ** 2)

    def hardest(self, tau: float) -> float:
        """Return the largest hardness of all laws with this heavy list, and this mass and energy of the tail.

        What is above `hardness` is due to items above tau that a pilot does not show one by one: how large they are is
        taken from a power law.
        """
        if self.fit is None:
            return self.hardness(tau)
        heavy = np.minimum(self.frequencies[: self.fit.heavy] / _inside(tau=tau), 1.0)
        others = self.domain_size - self.fit.heavy
        return float(heavy @ heavy) + min(self.fit.energy / tau**2, self.fit.mass / tau, others)

    def uncertainty(self, tau: float) -> float:
        """Return the relative standard error of the hardness; 0 for known frequencies, infinite for a failed fit."""
        if self.fit is None:
            return 0.0
        if not self.fit.conditioned:
            return math.inf
        tau, clients = _inside(tau=tau), self.fit.clients
        # Items above tau count as one each, however large. Of the others, pairs of clients in one batch are counted.
        light = self.frequencies < tau
        f, number = self.frequencies[light], self.numbers[light]
        one_pair = 2 * self.fit.batches / clients**2
        pairs = one_pair * max(float(number @ f**2), one_pair) + 4 * float(number @ f**3) / clients
        return math.sqrt(pairs + self.fit.cells_error**2) / tau**2 / max(self.hardness(tau), 1.0)


def _power_law(first: int, last: int, mass: float, energy: float, most: float) -> tuple[F64, F64, float]:
    """Return frequencies and numbers of the ranks first..last of a power law, none above `most`, and its exponent.

    Of those with this mass, the one whose energy is nearest.
    """
    if mass <= 0.0 or last < first:
        return np.empty(0), np.empty(0), 0.0
    few = min(last - first + 1, 200)
    steps = max(int(math.log((last + 1) / (first + few)) / math.log(1.02)), 1)
    edges = np.unique(np.append(np.arange(first, first + few), np.rint(np.geomspace(first + few, last + 1, steps + 1))))
    numbers, ranks = np.diff(edges), np.sqrt(edges[:-1] * (edges[1:] - 1))
    if few == last - first + 1:
        numbers, ranks = np.ones(few), np.arange(first, last + 1.0)

    def law(exponent: float) -> F64:
        shape = (ranks / first) ** -exponent
        low, high = math.log(mass / float(numbers @ shape)), math.log(most / float(shape[-1]))
        if float(numbers @ np.minimum(math.exp(low) * shape, most)) < mass * (1 - 1e-9):
            for _ in range(60):  # what the bound cuts off goes to the others
                middle = (low + high) / 2
                less = float(numbers @ np.minimum(np.exp(middle) * shape, most)) < mass
                low, high = (middle, high) if less else (low, middle)
        found: F64 = np.minimum(math.exp(low) * shape, most)
        return found

    def excess(exponent: float) -> float:
        return math.log(float(numbers @ law(exponent) ** 2) / energy)

    if energy <= 0 or excess(0.0) >= 0:
        exponent = 0.0
    else:
        exponent = _STEEPEST if excess(_STEEPEST) <= 0 else float(brentq(excess, 0.0, _STEEPEST, xtol=1e-4))
    return law(exponent), numbers, exponent


# ---- sizes ----


@dataclass(frozen=True)
class Size:
    """A sketch, and what is said of it.

    Attributes:
        method: oracle, minimax, linear, two-phase, calculus or budget; minimax where calculus fell back to it.
        rows: L.
        width: W.
        linf: the predicted largest error, exceeded with probability p; None where nothing is predicted.
        message: what the reader must know, or empty.
    """

    method: str
    rows: int
    width: int
    linf: float | None = None
    message: str = ""

    @property
    def cells(self) -> int:
        """Counters."""
        return self.rows * self.width


@dataclass(frozen=True)
class Campaign:
    """What is given, whatever the size of the sketch.

    Args:
        num_clients: of all rounds together.
        schedule: shared, fresh, hybrid or batched:B.
        num_rounds: of equal size.
        recovery: "joint" or "median".
        noise: standard deviation in each counter of each round's sum, in counts; or a function of the rows, on which
            it depends under differential privacy.
    """

    num_clients: int
    schedule: Schedule | str = "shared"
    num_rounds: int = 1
    recovery: str = "joint"
    noise: float | Callable[[int], float] = 0.0

    def failure(self, law: Law, tau: float, rows: int, width: int) -> float:
        """Return the predicted probability that the largest error exceeds tau."""
        return failure(law.frequencies, tau, rows=rows, width=width, **self._plan(law, rows))

    def linf(self, law: Law, p: float, rows: int, width: int) -> float:
        """Return the predicted largest error that is exceeded with probability p."""
        found = predict(law.frequencies, rows=rows, width=width, probability=p, **self._plan(law, rows))
        return found.linf

    def _plan(self, law: Law, rows: int) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "num_rounds": self.num_rounds,
            "num_clients": self.num_clients,
            "recovery": self.recovery,
            "noise": self.noise(rows) if callable(self.noise) else self.noise,
            "numbers": law.numbers,
            "candidates": law.domain_size,
        }

    def _rows(self, rows: Iterable[int] | int | None) -> list[int]:
        """Return the rows to search, from the middle outwards."""
        if rows is None:
            if self.recovery not in ROWS:
                raise InvalidInputError(f"recovery must be {' or '.join(ROWS)}, got {self.recovery!r}")
            rows = ROWS[self.recovery]
        searched = sorted(
            {_validate.integer(1, MAX_ROWS, rows=one) for one in ([rows] if isinstance(rows, int) else rows)}
        )
        if not searched:
            raise InvalidInputError("rows must be at least one number, got none")
        middle = searched[len(searched) // 2]
        return sorted(searched, key=lambda one: abs(one - middle))


def oracle(
    frequencies: npt.ArrayLike,
    tau: float,
    *,
    num_clients: int,
    domain_size: int,
    p: float = 0.1,
    rows: int | None = None,
    constant: float = 2.0,
) -> Size:
    """Return the paper's size for known frequencies, "instance optimal" (`theory.width_oracle`).

    Args:
        frequencies: [d], each in [0, 1].
        tau: the largest error that is asked for, in (0, 1).
        num_clients: n, of all rounds together.
        domain_size: d.
        p: probability of failure, in (0, 1).
        rows: L; `theory.rows_for` if None, log(2 d / p).
        constant: C.

    >>> oracle([0.5, 0.25, 0.125, 0.125], 0.25, num_clients=1000, domain_size=175_000)
    Size(method='oracle', rows=16, width=5, linf=None, message='')
    """
    width = theory.width_oracle(frequencies, tau, constant, num_clients=num_clients)
    return Size("oracle", _paper_rows(rows, domain_size, p), width)


def minimax(
    tau: float, *, num_clients: int, domain_size: int, p: float = 0.1, rows: int | None = None, constant: float = 2.0
) -> Size:
    """Return the paper's size for the worst frequencies (`theory.width_minimax`); arguments as for `oracle`.

    >>> minimax(0.01, num_clients=17_500, domain_size=175_000).width
    400
    """
    return Size("minimax", _paper_rows(rows, domain_size, p), theory.width_minimax(tau, num_clients, constant))


def linear(
    *, num_clients: int, domain_size: int, p: float = 0.1, rows: int | None = None, constant: float = 2.0
) -> Size:
    """Return a size linear in the number of clients (`theory.width_linear`); arguments as for `oracle`.

    >>> linear(num_clients=17_500, domain_size=175_000).width
    35000
    """
    return Size("linear", _paper_rows(rows, domain_size, p), theory.width_linear(num_clients, constant))


def two_phase(
    pilot: CountSketch,
    domain: Domain,
    tau: float,
    *,
    num_clients: int,
    p: float = 0.1,
    rows: int | None = None,
    top: int = 20,
    constant: float = 2.0,
) -> Size:
    """Return the paper's two-phase size: a power law is fitted to a pilot's largest estimates, and taken for the truth.

    Section 2, "A two-phase method for hyperparameter setup": the estimates are the medians, the fit is by least
    squares, the law ends where its mass is 1, the width is `theory.width_oracle`. As we read it: step 4 cites the
    equation of the bits for that of the width, and writes beta i^alpha for beta i^-alpha. A law whose first frequency
    is above 1 is taken to be that item alone.

    Args:
        pilot: the sum of the pilot, in the paper 8 x 200 of a tenth of the clients (`Pilot`).
        domain: the candidate items.
        tau: the largest error that is asked for, in (0, 1).
        num_clients: n, of all rounds that follow.
        p: probability of failure, in (0, 1).
        rows: L; `theory.rows_for` if None.
        top: how many of the largest estimates are fitted.
        constant: C.
    """
    decoder = MedianDecoder([pilot], expected=domain.size)
    if decoder.num_clients == 0:
        raise InvalidInputError("no client took part in the pilot: there is nothing to fit")
    top = _validate.integer(2, top=top)
    largest = np.empty(0)
    for _, counts in Candidates(domain).decoded(decoder):
        both = np.append(largest, counts)
        largest = np.sort(both)[::-1][:top] if len(both) <= 4 * top else np.sort(np.partition(both, -top)[-top:])[::-1]
    frequencies = _two_phase_law(largest / decoder.num_clients, domain.size)
    width = theory.width_oracle(frequencies, tau, constant, num_clients=num_clients)
    return Size("two-phase", _paper_rows(rows, domain.size, p), width)


def _two_phase_law(largest: F64, domain_size: int) -> F64:
    """Return beta i^-alpha, least squares to the largest, cut off where its mass is 1: float64 [at most d]."""
    logs = np.log(np.arange(1.0, len(largest) + 1))

    def beta(alpha: float) -> float:
        return float(largest @ np.exp(-alpha * logs)) / float(np.exp(-2 * alpha * logs).sum())

    def squares(alpha: float) -> float:
        return float(((largest - beta(alpha) * np.exp(-alpha * logs)) ** 2).sum())

    alpha = float(minimize_scalar(squares, bounds=(0.0, _STEEPEST), method="bounded", options={"xatol": 1e-6}).x)
    law = max(beta(alpha), 0.0) * np.arange(1.0, min(domain_size, _MOST_RANKS) + 1) ** -alpha
    kept = law[: max(1, int(np.searchsorted(np.cumsum(law), 1.0, side="right")))]
    return np.minimum(kept, 1.0)


def calculus(
    law: Law,
    tau: float,
    campaign: Campaign,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    margin: float = MARGIN,
    risk: float = RISK,
) -> Size:
    """Return the smallest rows x width that are predicted to keep the largest error below tau, and a margin.

    Args:
        law: of the frequencies.
        tau: the largest error that is asked for, in (0, 1).
        campaign: clients, rounds, recovery and noise.
        p: probability, in (0, 1), with which the largest error may exceed tau.
        rows: those to search; 3..31 for the median, 3..16 for joint recovery if None.
        margin: by which the width exceeds the predicted one, at least 1.
        risk: the share of p that is planned for, above 0, at most 1.

    Raises:
        InvalidInputError: a value is out of its range, or no size reaches tau, since noise alone exceeds it.

    >>> law = Law.from_frequencies(np.arange(1, 10_001.0) ** -1.5 / 2.6)
    >>> calculus(law, 0.01, Campaign(10_000, recovery="median"), rows=15, margin=1.0, risk=1.0).width
    66
    """
    tau, p = _inside(tau=tau), _inside(p=p)
    margin, planned = _validate.real(1.0, margin=margin), p * _validate.real(1e-6, 1.0, risk=risk)
    searched = campaign._rows(rows)
    uncertainty = law.uncertainty(tau)
    if uncertainty > TOO_UNCERTAIN:
        size = minimax(
            tau,
            num_clients=campaign.num_clients,
            domain_size=law.domain_size,
            p=p,
            rows=searched[0] if len(searched) == 1 else None,
        )
        said = "its sketch is too small" if math.isinf(uncertainty) else f"it is known to {uncertainty:.0%} at best"
        message = (
            f"the pilot does not tell the width for tau {tau:g} ({said}): the worst case is assumed; take more clients"
        )
        return replace(size, message=message)
    found = _smallest(lambda *size: campaign.failure(law, tau, *size) > planned, searched)
    if found is None:
        raise InvalidInputError(
            f"tau {tau:g} is not reached with up to {MAX_WIDTH} columns: take a larger tau, more clients or less noise"
        )
    width = min(math.ceil(found[1] * margin), MAX_WIDTH)
    return Size("calculus", found[0], width, campaign.linf(law, planned, found[0], width), _guessed(law, tau))


def _guessed(law: Law, tau: float) -> str:
    """Say so where the shape of the tail, which is a guess, decides."""
    if law.fit is None or law.hardest(tau) <= SHAPE * law.hardness(tau):
        return ""
    return (
        f"the pilot does not show all items above tau {tau:g} one by one: were the tail no power law, the width could "
        f"have to be up to {law.hardest(tau) / law.hardness(tau):.1f} times larger; take more clients or a larger pilot"
    )


def _smallest(fails: Callable[[int, int], bool], rows: Sequence[int]) -> tuple[int, int] | None:
    """Return the rows and the width, from 2 on, that do not fail and have the fewest cells; None if all fail."""
    best: tuple[int, int] | None = None
    for one in rows:
        # Only a width that makes fewer cells is of interest: one look, where there is none.
        high = MAX_WIDTH if best is None else min((best[0] * best[1] - 1) // one, MAX_WIDTH)
        if high < 2 or fails(one, high):
            continue
        low = 1
        while best is None and 2 * low < high:
            if not fails(one, 2 * low):
                high = 2 * low
                break
            low *= 2
        while high - low > 1:
            middle = max(math.isqrt(low * high), low + 1)
            low, high = (middle, high) if fails(one, middle) else (low, middle)
        best = one, high
    return best


def within(
    law: Law,
    max_bytes: int,
    bytes_of: Callable[[int, int], int],
    campaign: Campaign,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    risk: float = RISK,
) -> Size:
    """Return the rows x width within a budget of bytes that have the smallest predicted largest error.

    Args:
        law: of the frequencies.
        max_bytes: the budget.
        bytes_of: what rows and width cost; it must not fall with the width.
        campaign: clients, rounds, recovery and noise.
        p: probability, in (0, 1), with which linf may be exceeded.
        rows: those to search; as for `calculus`.
        risk: the share of p that is planned for.

    Raises:
        InvalidInputError: a value is out of its range, or the budget buys no sketch.
    """
    planned = _inside(p=p) * _validate.real(1e-6, 1.0, risk=risk)
    max_bytes = _validate.integer(1, max_bytes=max_bytes)
    sizes = []
    for one in campaign._rows(rows):
        most = bisect_right(range(1, MAX_WIDTH + 1), max_bytes, key=lambda width: bytes_of(one, width))
        if most >= 2:
            sizes.append((campaign.linf(law, planned, one, most), one * most, one, most))
    if not sizes:
        raise InvalidInputError(f"max_bytes {max_bytes} buys no sketch of two columns: take more")
    linf, _, one, width = min(sizes)
    # Where recovery is predicted to be exact, one client more or less is in question.
    unknown = law.uncertainty(min(max(linf, 1 / campaign.num_clients), 0.5)) > TOO_UNCERTAIN
    message = "the pilot is too small to predict so small an error: take more clients" if unknown else ""
    return Size("budget", one, width, linf, message)


# ---- checks ----


def _paper_rows(rows: int | None, domain_size: int, p: float) -> int:
    return theory.rows_for(domain_size, p) if rows is None else _validate.integer(1, MAX_ROWS, rows=rows)


def _inside(**named: float) -> float:
    [(name, value)] = named.items()
    number = _validate.real(0.0, 1.0, **named)
    if number in (0.0, 1.0):
        raise InvalidInputError(f"{name} must be above 0 and below 1, got {value}")
    return number
