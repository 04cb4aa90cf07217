"""Screening: a test that finds sums of cohorts which honest clients would hardly make.

The server never sees a client's vector, so it cannot check one. But it opens the sum of each cohort
(a group of clients), and all cohorts of a round have the same hashes. If clients are assigned to
cohorts at random, the variance of a counter between cohorts shows the mean square of the value that
a client adds to it. An honest client adds +1 or -1 to one counter of each row. Then the mean
squares of a row add up to 1, whatever items the clients hold. If some clients add more, the mean
squares add up to more.

Screening uses only sums that the server may read: see `why_unscreened`. docs/threat-model.md says
which attacks screening finds and which it does not. `python -m experiments poisoning` measures it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base.named import Named
from fedtally.errors import FedtallyError, InvalidInputError, opt
from fedtally.plan import Plan, Sums
from fedtally.sketch import CountSketch

# A round with fewer cohorts is not screened: the variance between so few cohorts is too uncertain.
FEWEST = 8
ALPHA = 1e-4  # how often an honest round shall give a false alarm, for all its tests together
_ONE_IN = 4  # at most 1 / _ONE_IN of the cohorts are left out
# A counter is heavy if the share of clients that add to it is above _HEAVY / width. This is six
# times the share that it would have if all counters were equal. Its sum then shows the share well.
# With much noise the limit is higher, and a counter with a large mean square is heavy, too: see
# `cut` and `heavy` in `consistency`.
_HEAVY = 6.0
# A number of standard deviations that chance hardly reaches. `consistency` uses it for the smallest
# mean and the smallest mean square of a heavy counter, and for the part of the noise in
# `Consistency.votes_limit`.
_SDS = 6.0
_NORMAL = 1 / math.sqrt(2 * math.pi)  # E[max(0, Z)] for a standard normal Z

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


class PoisonedError(FedtallyError):
    """All rounds that have a sum were refused by screening, so that there is no sum to release."""


class Screen(Named, option="screen"):
    """What the server does with cohorts whose sums look as if clients lied.

    `REFUSE` leaves their sums out. `WARN` uses their sums, with a warning. `OFF` does not screen.
    """

    REFUSE = "refuse"
    WARN = "warn"
    OFF = "off"


def why_unscreened(plan: Plan) -> str | None:
    """Return why the cohorts of a plan cannot be screened, in words, or None if they can.

    Screening needs sums of cohorts, which only a server of secagg opens. It also needs clients that
    add at most one item each, so neither silos nor a `max_items` above 1. A sketch with signs needs
    at least two rows.

    The sums must not be secret either. If a trusted aggregator adds the noise, the sums of cohorts
    are exact. Nobody may see more than the noised sum of a release, but a verdict of screening
    would show something of the exact sums. If clients add the noise, the sum of each cohort has all
    its noise, and is charged, before it is opened. Such sums may be screened.

    Proof: docs/privacy-proofs/screening.md.
    """
    if plan.summing.cohorts is None:
        return "only one server that sums by secagg opens the sums of cohorts"
    if plan.protection.sums is Sums.SECRET:
        return (
            "a trusted aggregator releases one noised sum, and nothing may depend on the exact sums"
            " of cohorts"
        )
    if plan.is_of_silos:
        return "a silo adds as many items as it has people, so that its sum has no expected spread"
    if plan.max_items > 1:
        return "clients of several items have no expected spread"
    if plan.rows == 1 and plan.encoding.is_signed:
        return "in a sketch of one row frequent items may cancel, so that it hides their spread"
    return None


def checked_screen(plan: Plan, screen: Screen | str | None) -> Screen:
    """Return `screen`, or the default of the plan, after checking that the plan can have it.

    Args:
        plan: the plan.
        screen: what the user chose; None: `WARN` if the cohorts can be screened, else `OFF`.

    Raises:
        InvalidInputError: `screen` is `REFUSE` or `WARN`, and the plan's cohorts cannot be
            screened.
    """
    asked = None if screen is None else Screen.parse(screen)
    why = why_unscreened(plan)
    if why is None:
        return asked or Screen.WARN
    if asked in (Screen.REFUSE, Screen.WARN):
        raise InvalidInputError(
            f"{opt.screen(asked)} is not possible: {why}; leave {opt.screen} out, or give off"
        )
    return Screen.OFF


@dataclass(frozen=True)
class Consistency:
    """The test statistics of a round's cohorts, each with a limit that honest rounds rarely exceed.

    For each counter, take the mean and the mean square of the value that a client adds, over all
    clients. A counter is heavy if its mean or mean square is large, see `_HEAVY`.

    Attributes:
        votes: an estimate of how much a client adds to a row. In each row, |mean| is added up over
            the heavy counters, and the mean square over the other counters. `votes` is the median
            of the rows. For honest clients it is above 1 only by chance.
        votes_limit: the largest value that `votes` may have.
        squares: in each row, the mean squares of all counters are added up; `squares` is the median
            of the rows. For honest clients it is about 1, or less if some of them add nothing.
        squares_limit: the largest value that `squares` may have.
        energies: float64 [cohorts, rows], the squared distance between the sum of a cohort and the
            cohort's part of the total, divided by the cohort's number of clients. What the noise is
            expected to add to this value is subtracted, so an energy may be below 0.
        energy_limit: the largest value that an energy may have.
        has_least: whether `squares` also has a lower limit, 2 - `squares_limit`. It has one if
            every honest client adds something.
    """

    votes: float
    votes_limit: float
    squares: float
    squares_limit: float
    energies: F64
    energy_limit: float
    has_least: bool = True

    @property
    def is_consistent(self) -> bool:
        """Whether `votes` and `squares` are within their limits."""
        excess = abs(self.squares - 1) if self.has_least else self.squares - 1
        return self.votes <= self.votes_limit and excess <= self.squares_limit - 1

    @property
    def outliers(self) -> npt.NDArray[np.intp]:
        """The indices of cohorts with an energy above its limit in more than half of the rows."""
        return np.flatnonzero((self.energies > self.energy_limit).mean(axis=1) > 0.5)


def consistency(
    sums: I64,
    sizes: I64,
    alpha: float = ALPHA,
    noise: float = 0.0,
    *,
    may_be_empty: bool = False,
) -> Consistency:
    """Return the test statistics of a round's cohorts, with their limits.

    Let q be the vector of the shares of clients that add to each counter of a row. Take the squared
    deviations of the row and add them up over cohorts and counters. This is a sum of chi squares
    with weights q. By Laurent and Massart (2000, lemma 1), for every x > 0, this sum exceeds its
    mean by more than 2 |q| sqrt x + 2 max(q) x with a probability of at most exp(-x). But q is
    estimated from the sums, and counts are treated as normal variables. So the rate of false alarms
    is measured, not proven.

    Args:
        sums: int64 [cohorts, rows, width], the sum of each cohort, all with the same hashes.
        sizes: int64 [cohorts], the number of clients in each cohort, at least 1.
        alpha: the probability at which an honest round shall exceed at least one of the limits,
            above 0 and below 1.
        noise: the variance of the noise in a counter of a cohort, divided by the cohort's number of
            clients.
        may_be_empty: whether honest clients may add nothing.

    >>> rng = np.random.default_rng(1)
    >>> held = rng.integers(0, 50, (20, 1000))  # 20 cohorts of 1,000 clients, of 50 items
    >>> sums = np.stack([np.bincount(cohort, minlength=50) for cohort in held])[:, None]
    >>> consistency(sums, np.full(20, 1000)).is_consistent
    True
    >>> sums[:, 0, 7] += rng.integers(0, 1000, 20)  # a few clients of each cohort add many votes
    >>> consistency(sums, np.full(20, 1000)).is_consistent
    False
    """
    cohorts, _, width = sums.shape
    clients = int(sizes.sum())
    mean = sums.sum(axis=0) / clients
    part, smallest = sizes / clients, int(sizes.min())
    deviations = sums - sizes[:, None, None] * mean
    # The noise of a cohort has the variance `noise` times the cohort's number of clients. The
    # factor 1 - part is needed because the same noise is also in the mean.
    own = noise * (1 - part)
    spread = deviations**2 / sizes[:, None, None] - own[:, None, None]
    # The mean square of a client's value in a counter is the variance between clients plus the
    # squared mean. The squared mean contains noise, whose variance is subtracted.
    square = spread.sum(axis=0) / (cohorts - 1) + mean**2 - noise / clients
    share = np.abs(mean)
    # The cut is high enough that the noise of a mean does not make a counter heavy.
    noise_of_mean = math.sqrt(noise / clients)
    cut = max(_HEAVY / width, _SDS * noise_of_mean)
    # Frequent items of opposite signs may cancel in a counter's mean, but not in its mean square.
    # `unsure` is the standard deviation of `square` in a counter with the share `cut`; it follows
    # from a chi square with cohorts - 1 degrees of freedom.
    unsure = math.sqrt(2 / (cohorts - 1)) * (cut + noise)
    heavy = (share > cut) | (square > cut + _SDS * unsure)
    # An honest client adds -1, 0 or +1 to a counter. So |mean| is at most the mean square, and the
    # mean squares of a row add up to at most 1. Therefore honest votes are above 1 only by chance,
    # even if items share a counter or cancel.
    votes = (share * heavy).sum(axis=1) + (square * ~heavy).sum(axis=1)
    # A counter that is heavy only by chance adds its chance error to the votes: on average at most
    # E[max(0, Z)] standard deviations, for a normal Z. `near` counts the counters to which this may
    # happen: those within 3 standard deviations of the cut. A row has room for at most 1 / cut
    # counters with the share `cut`, so a smaller counter counts as a fraction, share / cut.
    sd = math.sqrt((cut + noise) / clients)
    near = (np.minimum(share / cut, 1) * (np.abs(share - cut) < 3 * sd)).sum(axis=1)
    chance = _SDS * noise_of_mean * math.sqrt(heavy.sum(axis=1).max())
    chance += _NORMAL * sd * float(near.max())
    # Each pair is |q|^2 and max q (see the docstring): `whole` for all counters, `rest` for the
    # counters that are not heavy. Each value is from the row where it is largest, since frequent
    # items may cancel in the other rows. A part may still be hidden by items that cancel in every
    # row. So `limit` adds 1 / width to |q|^2, and 3 / width to max q.
    whole = float((mean**2).sum(axis=1).max()), float(share.max())
    rest = float((mean**2 * ~heavy).sum(axis=1).max()), cut

    def limit(freedom: int, x: float, second: float, largest: float) -> float:
        norm_squared: float = min(1.0, second + 1 / width)
        # the kurtosis of counts is larger than the kurtosis of normal values
        norm_squared += 1 / (2 * smallest)
        # This is for the products of clients' values with noise, and of noise with noise.
        norm_squared += 2 * noise + width * noise**2
        peak: float = min(1.0, largest + 3 / width) + noise
        return 1 + (2 * math.sqrt(freedom * x * norm_squared) + 2 * peak * x) / freedom

    # Each of four tests gets a quarter of alpha: votes, squares above the limit, squares below the
    # lower limit, and all energies together.
    x = math.log(4 / alpha)
    return Consistency(
        votes=float(np.median(votes)),
        votes_limit=limit(cohorts - 1, x, *rest) + chance,
        squares=float(np.median(square.sum(axis=1))),
        squares_limit=limit(cohorts - 1, x, *whole),
        energies=spread.sum(axis=2),
        energy_limit=limit(1, math.log(4 * cohorts / alpha), *whole),
        has_least=not may_be_empty,
    )


def most_lost(cohorts: int) -> int:
    """Return how many bad cohorts a round may have and still be used: a quarter, rounded down."""
    return cohorts // _ONE_IN


def keep_cohorts(
    sums: I64, sizes: I64, noise: float = 0.0, *, may_be_empty: bool = False, rejected: int = 0
) -> tuple[list[int], Consistency]:
    """Return the indices of the cohorts that can be used, and their test statistics.

    Cohorts are left out one by one until the others are consistent (see `Consistency`). There are
    two bounds, since a test that may leave out cohorts until it passes would be no test. First, at
    most a quarter of all cohorts may be left out or rejected. Second, all cohorts that are left out
    must be outliers, except for one. If the other cohorts are still not consistent, the whole round
    is bad.

    Args:
        sums: int64 [cohorts, rows, width], the sum of each cohort, all with the same hashes.
        sizes: int64 [cohorts], the number of clients in each cohort.
        noise: the variance of the noise in a counter of a cohort, divided by the cohort's number of
            clients.
        may_be_empty: whether honest clients may add nothing.
        rejected: how many more cohorts the round had, whose sums were rejected: no honest vectors
            could add up to them.

    Returns:
        The indices of the cohorts that can be used, in order, and the statistics of these cohorts.
        If the whole round is bad: all indices, and the statistics of all cohorts.
    """
    kept = np.arange(len(sizes))
    fewest = len(sizes) + rejected - most_lost(len(sizes) + rejected)
    may_go = 1  # how many more cohorts may be left out that are no outliers
    of_all = found = consistency(sums, sizes, noise=noise, may_be_empty=may_be_empty)
    while not found.is_consistent:
        worst = int(np.argmax(np.median(found.energies, axis=1)))
        if worst not in found.outliers:
            may_go -= 1
        if may_go < 0 or len(kept) <= fewest:
            return list(range(len(sizes))), of_all
        kept = np.delete(kept, worst)
        found = consistency(sums[kept], sizes[kept], noise=noise, may_be_empty=may_be_empty)
    return kept.tolist(), found


@dataclass(frozen=True)
class RoundScreening:
    """What screening says of the cohorts of one round.

    Attributes:
        round: the number of the round, from 0.
        found: the test statistics of the cohorts that are not in `left_out`; None if the round was
            not screened.
        left_out: the indices of the cohorts that are left out, as `Books.cohorts` orders them. At
            most one of them is no outlier.
        num_rejected: how many more cohorts the round had, whose sums were rejected: no honest
            vectors could add up to them.
        why: the reason why the round was not screened; "" if it was.
        sizes: the number of clients in each cohort whose sum is in the books.
    """

    round: int
    found: Consistency | None = None
    left_out: tuple[int, ...] = ()
    num_rejected: int = 0
    why: str = ""
    sizes: tuple[int, ...] = ()

    @property
    def num_cohorts(self) -> int:
        """The number of cohorts whose sum is in the books; rejected cohorts are not among them."""
        return len(self.sizes)

    @property
    def is_poisoned(self) -> bool:
        """Whether the whole round is bad, and not only some of its cohorts."""
        if self.found is not None and not self.found.is_consistent:
            return True
        cohorts, lost = self.num_cohorts + self.num_rejected, len(self.left_out) + self.num_rejected
        # With too many cohorts left out or rejected, the rest is no fair sample of the round.
        return cohorts >= FEWEST and lost > most_lost(cohorts)

    @property
    def unusable(self) -> range | tuple[int, ...]:
        """The indices of the cohorts that `Screen.REFUSE` leaves out of the sum of the round."""
        return range(self.num_cohorts) if self.is_poisoned else self.left_out

    def to_dict(self) -> dict[str, Any]:
        """Return what screening says of the round, as a JSON object."""
        found = self.found
        said: dict[str, Any] = {
            "round": self.round,
            "cohorts": self.num_cohorts,
            "rejected": self.num_rejected,
        }
        verdict = ""
        if self.is_poisoned:
            verdict = "poisoned"
        elif self.left_out:
            verdict = "cohorts stand out"
        if self.is_poisoned and (found is None or found.is_consistent):
            lost = f"{self.num_rejected} more had sums that no clients can have"
            said["why"] = f"{lost}, so that these are no fair sample of the round"
        if found is None:  # a "why" in `said` replaces `self.why`
            return {"why": self.why} | said | {"verdict": verdict or "not screened"}
        return said | {
            "verdict": verdict or "consistent",
            "stand_out": len(self.left_out),
            "votes": found.votes,
            "votes_limit": found.votes_limit,
            "mean_square": found.squares,
            "mean_square_limit": found.squares_limit,
        }


@dataclass
class Screening:
    """What screening says of all rounds of a campaign.

    Attributes:
        screen: what the server does with cohorts whose sums look as if clients lied.
        why: why the cohorts of the plan cannot be screened; "" if they can.
        rounds: what screening says of each round whose sums were read, by the number of the round.
            A round that an earlier run released is also in `rounds`, as not screened.
        rejected: for each round, by its number: how many cohorts had a sum that was rejected, since
            no honest vectors could add up to it.
    """

    screen: Screen
    why: str = ""
    rounds: dict[int, RoundScreening] = field(default_factory=dict)
    rejected: Counter[int] = field(default_factory=Counter)

    def look(self, plan: Plan, cohorts: Sequence[CountSketch]) -> list[CountSketch]:
        """Screen the cohorts of one round, and return the sums of the cohorts that may be used.

        `rounds` gets what screening says of the round. If `screen` is not `REFUSE`, all sums are
        returned. If `screen` is `REFUSE` and the whole round is bad, the list is empty.

        Args:
            plan: a plan whose cohorts can be screened.
            cohorts: the sums of the cohorts of one round, at least one, in the order of the books.

        Raises:
            InvalidInputError: the plan's cohorts cannot be screened, or a sum lacks its noise.
        """
        number, round = len(cohorts), cohorts[0].round
        sizes = tuple(cohort.num_clients for cohort in cohorts)
        # Sums that nobody may see without noise are not read, even if a caller passes them.
        why_not = why_unscreened(plan)
        if why_not is not None:
            raise InvalidInputError(f"the cohorts of round {round} cannot be screened: {why_not}")
        if any(cohort.noise != plan.noise_mark for cohort in cohorts):
            raise InvalidInputError(
                f"the cohorts of round {round} cannot be screened: their sums lack the plan's noise"
            )
        if number < FEWEST:
            why = (
                f"{number} cohort{'s' * (number > 1)} of the round landed, and screening needs"
                f" {FEWEST}"
            )
            self.rounds[round] = RoundScreening(
                round, num_rejected=self.rejected[round], why=why, sizes=sizes
            )
        else:
            private = plan.privacy
            kept, found = keep_cohorts(
                np.stack([cohort.counters for cohort in cohorts]),
                np.array(sizes),
                0.0 if private is None else private.share(1).variance,
                # With privacy, a client without items takes part, too, and adds nothing.
                may_be_empty=private is not None,
                rejected=self.rejected[round],
            )
            left_out = tuple(place for place in range(number) if place not in kept)
            self.rounds[round] = RoundScreening(
                round, found, left_out, self.rejected[round], sizes=sizes
            )
        return self.used(round, cohorts)

    def note_released(self, rounds: range) -> None:
        """Record that an earlier run released some rounds, unless this object has screened them.

        Such a round cannot be screened any more, since the sums of its cohorts are erased.
        """
        for round in rounds:
            why = "an earlier run released its sum, and the sums of its cohorts are erased"
            self.rounds.setdefault(round, RoundScreening(round, why=why))

    def used(self, round: int, cohorts: Sequence[Any]) -> list[Any]:
        """Return the entries of the cohorts that are added up to the sum of a round.

        All entries are returned if `screen` is not `REFUSE`, or if `rounds` does not have the
        round. Otherwise the `unusable` cohorts of the round are left out.

        Args:
            round: the number of the round.
            cohorts: one entry for each cohort, in the order of the books. An entry may be the
                cohort's sum, or any other value.
        """
        known = self.rounds.get(round)
        if self.screen is not Screen.REFUSE or known is None:
            return list(cohorts)
        return [one for place, one in enumerate(cohorts) if place not in known.unusable]

    def to_dict(self) -> dict[str, Any]:
        """Return what screening says of all rounds, as a JSON object."""
        refused = self.rounds.values() if self.screen is Screen.REFUSE else ()
        gone = sum(one.sizes[place] for one in refused for place in one.unusable)
        return {
            "screen": str(self.screen),
            "why": self.why,
            "clients_left_out": gone,
            "rounds": [self.rounds[number].to_dict() for number in sorted(self.rounds)],
        }
