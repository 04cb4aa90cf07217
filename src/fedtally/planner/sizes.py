"""How large a sketch must be: rows and width from the error that is asked for, or the least error from bytes.

Five ways. Three are the paper's (Wu, Zhu, Kairouz and Braverman 2023), with the constant 2 of its
experiments: `oracle` knows the frequencies, `minimax` assumes the worst, `two_phase` fits a power
law to a pilot. `linear` is the n of Chen et al. 2022. The fifth, `size_by_model`, is without
constants: it searches for the smallest rows x width whose largest error, by
`fedtally.recovery.error_model`, exceeds tau with probability at most p.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from fedtally import _validate, theory
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.kernels import MAX_ROWS, MAX_WIDTH
from fedtally.plan import Plan
from fedtally.planner.frequencies import Frequencies
from fedtally.planner.trials import MOST_CELLS, Trials
from fedtally.recovery.decoding import kind_of
from fedtally.recovery.error_model import failure, predict
from fedtally.recovery.linear_system import Candidates
from fedtally.recovery.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule

F64 = npt.NDArray[np.float64]
MARGIN = 1.1  # by which the width exceeds the predicted one, ...
# ... and the share of p that is planned for: what a pilot gets wrong is to fit in the rest
RISK = 0.5
TOO_UNCERTAIN = 0.5  # relative standard error of the hardness from which a pilot says too little
# a narrower sketch whose error is larger by more makes a prediction for joint recovery doubtful
JUMP, FALL = 1.4, 2.0
CELLS_PER_ITEM = 4  # that exact recovery is relied on with
FEW = 3.0  # clients of a pilot: of items that so many hold, or fewer, little shows
SHAPE = 1.5  # times the hardness from which it is said that the shape of the tail is a guess
_STEPS, _CLOSE = 8, 1.005  # towards an error that it depends on itself
_TELLING = 2  # failures that trials must allow, at least, to say anything
_FACTOR = 2.0  # by which a small sketch may be smaller than is predicted
_STEEPEST = 10.0  # exponent of a fitted power law
# of the two-phase distribution: what is beyond adds less than 2^-23 / tau^2 to the hardness
_MOST_RANKS = 1 << 23


class UnreachableError(InvalidInputError):
    """No sketch has the error that was asked for, or none that bytes can buy."""


@dataclass(frozen=True)
class Size:
    """A sketch, and what is said of it.

    Attributes:
        method: oracle, minimax, linear, two-phase, model or budget; minimax where model fell back
            to it.
        rows: L.
        width: W.
        linf: the predicted largest error, exceeded with probability p; None where nothing is
            predicted.
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
        num_rounds: M.
        recovery: "joint" or "median".
        noise: standard deviation in each counter of each round's sum, in counts; or a function of
            the rows, on which it depends under differential privacy.
        round_sizes: clients of each round, together num_clients; of equal size if None.
        repeats: how many campaigns at most are run to know what a small sketch does.
    """

    num_clients: int
    schedule: Schedule | str = "shared"
    num_rounds: int = 1
    recovery: str = "joint"
    noise: float | Callable[[int], float] = 0.0
    round_sizes: Sequence[int] | None = None
    repeats: int = 100

    @classmethod
    def from_plan(cls, plan: Plan, recovery: str) -> Self:
        """Return what a plan says: of its noise, all that there is when nobody drops out.

        >>> domain = {"kind": "range", "size": 1000, "public": True}
        >>> plan = Plan(rows=7, width=200, schedule="hybrid", num_rounds=4, num_clients=8000, max_round_clients=2200,
        ...             domain=domain, max_items=1, seed=bytes(32))
        >>> campaign = Campaign.from_plan(plan, "joint")
        >>> str(campaign.schedule), campaign.num_rounds, campaign.noise
        ('hybrid', 4, 0.0)
        """
        noise, rounds = 0.0, plan.num_rounds
        if plan.privacy is not None:
            each = plan.privacy.largest_stddev(-(-plan.num_clients // rounds))
            noise = each * math.sqrt(len(plan.releases) / rounds)
        return cls(plan.num_clients, plan.schedule, rounds, recovery, noise)

    def trials(self, distribution: Frequencies, rows: int, width: int) -> Trials | None:
        """Return the campaigns that say what so small a sketch does; None where the error model does."""
        schedule = Schedule.parse(self.schedule)
        if rows * width > MOST_CELLS or len(schedule.batches_of(self.num_rounds)) > 1:
            return None
        noise = _rounded_up(self._noise(rows) * math.sqrt(self.num_rounds))
        return Trials.of(distribution, self.num_clients, self.recovery, noise, rows, width)

    def failure(self, distribution: Frequencies, tau: float, rows: int, width: int) -> float:
        """Return the probability that the largest error exceeds tau, predicted or, of a small sketch, by trials."""
        trials = self.trials(distribution, rows, width)
        return (
            self.modelled_failure(distribution, tau, rows, width)
            if trials is None
            else trials.failure(tau, self.repeats)
        )

    def linf(self, distribution: Frequencies, p: float, rows: int, width: int) -> float:
        """Return the largest error that is exceeded with probability p: predicted, or of a small sketch by trials."""
        trials = self.trials(distribution, rows, width) if p * self.repeats >= _TELLING else None
        return (
            self.modelled_linf(distribution, p, rows, width)
            if trials is None
            else trials.linf(p, self.repeats)
        )

    def modelled_failure(
        self, distribution: Frequencies, tau: float, rows: int, width: int
    ) -> float:
        """Return the probability that the largest error exceeds tau, by the error model.

        Or the probability that that of a sketch `JUMP` times narrower exceeds `FALL` tau, if that
        is larger. Where the error of joint recovery falls so fast, from many items to few, by how
        much is well predicted, but not where.
        """
        return max(self._failures(distribution, tau, rows, width))

    def _failures(
        self, distribution: Frequencies, tau: float, rows: int, width: int
    ) -> Iterator[float]:
        """Yield the probabilities of which `modelled_failure` is the larger: who asks for a bound may need but one."""
        distribution = self._careful(distribution, tau)
        yield self._failure(distribution, tau, rows, width)
        if self._fits_items and (narrower := int(width / JUMP)) >= 2:
            yield self._failure(distribution, FALL * tau, rows, narrower)

    def _failure(self, distribution: Frequencies, tau: float, rows: int, width: int) -> float:
        found = failure(
            distribution.frequencies, tau, rows=rows, width=width, **self._plan(distribution, rows)
        )
        if found == 0.0 and (narrower := self._relied_on(distribution, rows, width)) < width:
            return failure(
                distribution.frequencies,
                tau,
                rows=rows,
                width=narrower,
                **self._plan(distribution, rows),
            )
        return found

    def modelled_linf(self, distribution: Frequencies, p: float, rows: int, width: int) -> float:
        """Return the largest error that is exceeded with probability p, by the error model, as `modelled_failure`."""
        found, known, narrower = 0.0, distribution, int(width / JUMP)
        # from below to the least error that is exceeded with p if items below it are alike
        for _ in range(_STEPS):
            before, found = found, self._linf(known, p, rows, width)
            if self._fits_items and narrower >= 2:
                found = max(found, self._linf(known, p, rows, narrower) / FALL)
            known = self._careful(distribution, found)
            if known is distribution or found <= _CLOSE * before:
                break
        return found

    def _careful(self, distribution: Frequencies, tau: float) -> Frequencies:
        """Return the distribution that joint recovery is planned with: rare items of which a pilot tells little are
        alike.
        """
        if not self._fits_items or distribution.fit is None:
            return distribution
        return _alike_below(distribution, min(tau, distribution.fit.resolved / 2))

    def _linf(self, distribution: Frequencies, p: float, rows: int, width: int) -> float:
        found = predict(
            distribution.frequencies,
            rows=rows,
            width=width,
            probability=p,
            **self._plan(distribution, rows),
        ).linf
        if found == 0.0 and (narrower := self._relied_on(distribution, rows, width)) < width:
            return predict(
                distribution.frequencies,
                rows=rows,
                width=narrower,
                probability=p,
                **self._plan(distribution, rows),
            ).linf
        return found

    def _relied_on(self, distribution: Frequencies, rows: int, width: int) -> int:
        """Return the width whose prediction is relied on: this one, or a narrower one.

        Joint recovery may be predicted to be exact with more items than so few cells bear: with a
        third of the cells as items, or a half, the decoder mostly stops before it is there. Then
        its error is at most that of the widest sketch that is not predicted to be exact.
        """
        while width > 2 and self._fits_items:
            found = predict(
                distribution.frequencies, rows=rows, width=width, **self._plan(distribution, rows)
            )
            if found.scale > 0.0 or found.support * CELLS_PER_ITEM <= rows * width:
                break
            width = max(2, int(0.9 * width))
        return width

    @property
    def _fits_items(self) -> bool:
        return kind_of(self.recovery).fits_items

    def _plan(self, distribution: Frequencies, rows: int) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "num_rounds": self.num_rounds,
            "num_clients": self.num_clients,
            "recovery": self.recovery,
            "noise": self._noise(rows),
            "numbers": distribution.numbers,
            "candidates": distribution.domain_size,
            "heterogeneity": distribution.heterogeneity,
            "max_items": distribution.max_items,
            "round_sizes": self.round_sizes,
        }

    def _noise(self, rows: int) -> float:
        return self.noise(rows) if callable(self.noise) else self.noise

    def _rows(self, rows: Iterable[int] | int | None) -> list[int]:
        """Return the rows to search, from the middle outwards."""
        if rows is None:
            rows = kind_of(self.recovery).planned_rows
        searched = sorted(
            {
                _validate.integer(1, MAX_ROWS, rows=one)
                for one in ([rows] if isinstance(rows, int) else rows)
            }
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
    tau: float,
    *,
    num_clients: int,
    domain_size: int,
    p: float = 0.1,
    rows: int | None = None,
    constant: float = 2.0,
) -> Size:
    """Return the paper's size for the worst frequencies (`theory.width_minimax`); arguments as for `oracle`.

    >>> minimax(0.01, num_clients=17_500, domain_size=175_000).width
    400
    """
    return Size(
        "minimax",
        _paper_rows(rows, domain_size, p),
        theory.width_minimax(tau, num_clients, constant),
    )


def linear(
    *,
    num_clients: int,
    domain_size: int,
    p: float = 0.1,
    rows: int | None = None,
    constant: float = 2.0,
) -> Size:
    """Return a size linear in the number of clients (`theory.width_linear`); arguments as for `oracle`.

    >>> linear(num_clients=17_500, domain_size=175_000).width
    35000
    """
    return Size(
        "linear", _paper_rows(rows, domain_size, p), theory.width_linear(num_clients, constant)
    )


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

    Section 2, "A two-phase method for hyperparameter setup": the estimates are the medians, the fit
    is by least squares, the distribution ends where its mass is 1, the width is
    `theory.width_oracle`. As we read it: step 4 cites the
    equation of the bits for that of the width, and writes beta i^alpha for beta i^-alpha. A
    distribution whose first frequency is above 1 is taken to be that item alone.

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
        largest = (
            np.sort(both)[::-1][:top]
            if len(both) <= 4 * top
            else np.sort(np.partition(both, -top)[-top:])[::-1]
        )
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

    alpha = float(
        minimize_scalar(
            squares, bounds=(0.0, _STEEPEST), method="bounded", options={"xatol": 1e-6}
        ).x
    )
    distribution = (
        max(beta(alpha), 0.0) * np.arange(1.0, min(domain_size, _MOST_RANKS) + 1) ** -alpha
    )
    kept = distribution[: max(1, int(np.searchsorted(np.cumsum(distribution), 1.0, side="right")))]
    return np.minimum(kept, 1.0)


def size_by_model(
    distribution: Frequencies,
    tau: float,
    campaign: Campaign,
    *,
    p: float = 0.1,
    rows: Iterable[int] | int | None = None,
    margin: float = MARGIN,
    risk: float = RISK,
    with_linf: bool = True,
) -> Size:
    """Return the smallest rows x width that are predicted to keep the largest error below tau, and a margin.

    Args:
        distribution: of the frequencies.
        tau: the largest error that is asked for, in (0, 1).
        campaign: clients, rounds, recovery and noise.
        p: probability, in (0, 1), with which the largest error may exceed tau.
        rows: those to search; 3..31 for the median, 7..16 for joint recovery if None.
        margin: by which the width exceeds the predicted one, at least 1.
        risk: the share of p that is planned for, above 0, at most 1.
        with_linf: whether to say the size's largest error, which takes as long as the search; None
            if not.

    Raises:
        InvalidInputError: a value is out of its range.
        UnreachableError: no size reaches tau, since noise alone exceeds it.

    >>> distribution = Frequencies.from_frequencies(np.arange(1, 10_001.0) ** -1.5 / 2.6)
    >>> size_by_model(distribution, 0.01, Campaign(10_000, recovery="median"), rows=15, margin=1.0, risk=1.0).width
    66
    """
    tau, p = _validate.inside(tau=tau), _validate.inside(p=p)
    margin, planned = _validate.real(1.0, margin=margin), p * _validate.real(1e-6, 1.0, risk=risk)
    searched = campaign._rows(rows)
    uncertainty = distribution.uncertainty(tau)
    if uncertainty > TOO_UNCERTAIN:
        size = minimax(
            tau,
            num_clients=campaign.num_clients,
            domain_size=distribution.domain_size,
            p=p,
            rows=searched[0] if len(searched) == 1 else None,
        )
        said = (
            "its sketch is too small"
            if math.isinf(uncertainty)
            else f"it is known to {uncertainty:.0%} at best"
        )
        if _noise_exceeds(campaign, tau, size.rows, distribution.domain_size) > p:
            raise UnreachableError(
                f"tau {tau:g} is below what noise alone leaves, whatever the width"
            )
        message = (
            f"the pilot does not tell the width for tau {tau:g} ({said}): the worst case is"
            " assumed; take more clients"
        )
        return replace(size, message=message)

    def fails(rows: int, width: int) -> bool:
        return any(one > planned for one in campaign._failures(distribution, tau, rows, width))

    found = _smallest(fails, searched)
    if found is None:
        raise UnreachableError(
            f"tau {tau:g} is not reached with a width of up to {MAX_WIDTH}: take a larger tau, more"
            " clients or less noise"
        )
    width = _tried(campaign, distribution, tau, planned, *found, margin)
    if width is None:
        width, most = min(math.ceil(found[1] * margin), MAX_WIDTH), min(2 * found[1] + 9, MAX_WIDTH)
        # Where a small width is predicted to do, one counter more may be predicted to fail: joint
        # recovery fits other items.
        while fails(found[0], width) and width < most:
            width += max(1, width // 50)
    linf = campaign.linf(distribution, planned, found[0], width) if with_linf else None
    return Size("model", found[0], width, linf, _guessed(distribution, tau, campaign))


def _tried(
    campaign: Campaign,
    distribution: Frequencies,
    tau: float,
    p: float,
    rows: int,
    width: int,
    margin: float,
) -> int | None:
    """Return the least width that keeps tau in trials, and a margin; None where the error model is relied on.

    Args:
        campaign: what is given.
        distribution: of the frequencies.
        tau: the largest error.
        p: probability with which it may be exceeded.
        rows: of the sketch.
        width: predicted to suffice.
        margin: as in `size_by_model`.
    """
    tried: list[Trials] = []

    def fails(width: int) -> bool:
        trials = campaign.trials(distribution, rows, width)
        assert trials is not None
        like = min(tried, key=lambda one: abs(one.width - width), default=None)
        tried.append(trials)
        return trials.exceeds(tau, max(p, _TELLING / campaign.repeats), campaign.repeats, like)

    most = MOST_CELLS // rows
    if (
        width > _FACTOR * most
        or campaign.trials(distribution, rows, 2) is None
        or (width > most and fails(most))
    ):
        return None
    high = min(width, most)
    if width <= most and fails(width):
        high += max(1, high // 8)
        while high <= most and fails(high):
            high += max(1, high // 8)
    else:  # mostly it is little below what is predicted
        low, step = max(high - 1, 1), 2
        while low > 1 and not fails(low):
            low, high, step = max(low - step, 1), low, 2 * step
        while high - low > 1:
            middle = max(math.isqrt(low * high), low + 1)
            low, high = (middle, high) if fails(middle) else (low, middle)
    # One counter more a row is often more than the margin. What is wider than was tried is
    # predicted, perhaps to be worse.
    found = max(high, min(round(high * margin), most)) if high <= most else most + 1
    # Where failures are too rare to show, no smaller width than predicted.
    return found if p * campaign.repeats >= _TELLING else max(found, math.ceil(width * margin))


def _rounded_up(noise: float) -> float:
    """Return noise with three digits, no less: that of a plan and that which it was sized with share their trials.

    >>> _rounded_up(15.8047), _rounded_up(28.0), _rounded_up(0.0)
    (15.9, 28.0, 0.0)
    """
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(noise * (1 - 1e-9))))


@lru_cache(maxsize=64)
def _alike_below(distribution: Frequencies, frequency: float) -> Frequencies:
    return distribution.alike_below(frequency)


def _noise_exceeds(campaign: Campaign, tau: float, rows: int, domain_size: int) -> float:
    """Return the probability that the mean over rows of noise alone exceeds tau for any item."""
    scale = campaign._noise(rows) * math.sqrt(campaign.num_rounds / rows) / campaign.num_clients
    return (
        0.0
        if scale == 0.0
        else -math.expm1(domain_size * math.log1p(-min(2 * float(ndtr(-tau / scale)), 0.999)))
    )


def _guessed(distribution: Frequencies, tau: float, campaign: Campaign) -> str:
    """Say so where the shape of the tail, which is a guess, decides."""
    if distribution.fit is None:
        return ""
    if tau * distribution.fit.clients < FEW:
        return (
            f"tau {tau:g} is {tau * distribution.fit.clients:.2g} of the pilot's"
            f" {distribution.fit.clients:,} clients: how many items are about as frequent hardly"
            " shows, and the width may be too small; take a larger pilot"
        )
    if kind_of(campaign.recovery).fits_items:
        if tau >= distribution.fit.resolved:
            return ""
        return (
            f"the pilot tells items below {distribution.fit.resolved:.2g} by their sum alone: "
            f"those below {min(tau, distribution.fit.resolved / 2):.2g} are taken to be alike, the "
            "hardest case for joint recovery; after a larger pilot fewer bytes may do"
        )
    if distribution.hardest(tau) <= SHAPE * distribution.hardness(tau):
        return ""
    return (
        f"the pilot does not show all items above tau {tau:g} one by one: were the tail no power"
        " law, the width could have to be up to"
        f" {distribution.hardest(tau) / distribution.hardness(tau):.1f} times larger; take more"
        " clients or a larger pilot"
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
        step = max(high // 16, 1)
        while best is not None and high - step > low:  # mostly it is little below what others need
            if fails(one, high - step):
                low = high - step
                break
            high, step = high - step, 2 * step
        while high - low > 1:
            middle = max(math.isqrt(low * high), low + 1)
            low, high = (middle, high) if fails(one, middle) else (low, middle)
        best = one, high
    return best


def within(
    distribution: Frequencies,
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
        distribution: of the frequencies.
        max_bytes: the budget.
        bytes_of: what rows and width cost; it must not fall with the width.
        campaign: clients, rounds, recovery and noise.
        p: probability, in (0, 1), with which linf may be exceeded.
        rows: those to search; as for `size_by_model`.
        risk: the share of p that is planned for.

    Raises:
        InvalidInputError: a value is out of its range.
        UnreachableError: the budget buys no sketch.
    """
    planned = _validate.inside(p=p) * _validate.real(1e-6, 1.0, risk=risk)
    max_bytes = _validate.integer(1, max_bytes=max_bytes)
    sizes = []
    for one in campaign._rows(rows):
        most = bisect_right(
            range(1, MAX_WIDTH + 1), max_bytes, key=lambda width: bytes_of(one, width)
        )
        if most >= 2:
            sizes.append(
                (campaign.modelled_linf(distribution, planned, one, most), one * most, one, most)
            )
    if not sizes:
        least = min(bytes_of(one, 2) for one in campaign._rows(rows))
        raise UnreachableError(
            f"max_bytes {max_bytes} buys no sketch of width 2: give at least {least}"
        )
    _, _, one, width = min(sizes)
    linf = campaign.linf(distribution, planned, one, width)
    # Where recovery is predicted to be exact, one client more or less is in question.
    unknown = (
        distribution.uncertainty(min(max(linf, 1 / campaign.num_clients), 0.5)) > TOO_UNCERTAIN
    )
    message = (
        "the pilot is too small to predict so small an error: take more clients" if unknown else ""
    )
    return Size("budget", one, width, linf, message)


# ---- checks ----


def _paper_rows(rows: int | None, domain_size: int, p: float) -> int:
    return (
        theory.rows_for(domain_size, p)
        if rows is None
        else _validate.integer(1, MAX_ROWS, rows=rows)
    )
