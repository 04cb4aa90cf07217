"""A plan for strings nobody has listed: what names need, or what bytes buy.

The target is that no frequency is off by more than tau, and that the names of strings above 2 tau
are read (`fedtally.plan.readable_names` says from which frequency they are). Sizes are first
guessed in closed form (`fedtally.plan.open_guesses`). Of those that look cheapest the widths are
then computed. Where bytes are given and no tau, the least tau whose guesses fit into the bytes is
looked for first.

Three searches are those of `fedtally.plan.search`, for a vector of two sketches: `smallest`, `best`
and `least_epsilon`. Each takes a `Design`, without a number of rounds in its request if the number
is to be chosen, and the names that are asked for.

Without noise, rounds cost nothing: each client spells fewer positions, and no round waits for
another one. But the sum of a round has fewer clients, and shows more of each. Under noise every
release costs noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fedtally.errors import InvalidInputError, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import MAX_CLIENTS
from fedtally.plan.design import DEFAULT_MAX_BYTES, Chosen, Design
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.open_guesses import Guess, Guesses, Wanted
from fedtally.plan.predictor import Predictor, predict_linf
from fedtally.plan.rare_names import RareNames, of_plan
from fedtally.plan.readable_names import Names, Speller, predict
from fedtally.plan.search import least, rounded_up
from fedtally.plan.sizes import MARGIN, RISK
from fedtally.plan.ways import ways_out, why_unreachable
from fedtally.privacy.config import MAX_EPSILON, MIN_EPSILON
from fedtally.recovery.decoders import OPEN

_REFINED = 3  # sizes whose widths are computed, of those that look cheapest
_TURNS = 20  # of widening a size until it keeps its target
_WIDER = 1.05
_WIDEST = 64  # times the width that is guessed
_PRECISION = 1.02  # of what is said to do instead
_MORE, _ENOUGH = 4, 1.15  # looks for what does, and by how much more at each
_CLOSE = 1.005  # precision of the least tau that bytes buy, and of widths
_NARROWER = 0.99
_MOST_CLIENTS = 1000  # times as many, that are tried
_WORTH = 1.5  # times the least tau, for sums that show less of single clients
_LEAST_TAU, LARGEST_TAU = 1e-7, 0.5


class Bought(NamedTuple):
    """What bytes buy.

    Attributes:
        design: the plan to be, with its size.
        linf: the predicted largest error, with a margin and without the finder's spare width.
        names: the names that are predicted to be read, where the threshold is twice that error.
    """

    design: Design
    linf: float
    names: Names

    @property
    def tau(self) -> float:
        """The least target that the size meets."""
        return max(self.linf, self.names.least / 2)


def smallest(design: Design, law: Frequencies, wanted: Wanted) -> Design:
    """Return the size that meets the design's target with the fewest bytes.

    Raises:
        InvalidInputError: nothing does, within the bytes that are given if there are; what would is
            named.
    """
    guesses = Guesses(design, law, wanted)
    sized = _smallest(guesses)
    if sized is None:
        raise _unreachable(guesses)
    return sized


def best(design: Design, law: Frequencies, wanted: Wanted) -> Bought:
    """Return the size that names the rarest strings within the bytes, and what it can do.

    Error and names are balanced as a target balances them: the least tau is looked for.

    Raises:
        InvalidInputError: no name can be read, or the sums would show what single clients hold;
            what would do is named.
    """
    if design.spec.size.max_bytes is None:
        design = design.with_bytes(DEFAULT_MAX_BYTES)
    guesses = Guesses(design, law, wanted)
    risk, tau = _least_tau(guesses)
    most: Bought | None = None
    for guess in guesses.of(design.with_tau(tau)).affordable(risk)[:_REFINED]:
        bought = _bought(guesses, guess, risk)
        if bought is not None and (most is None or bought.tau < most.tau):
            most = bought
    if most is None:
        raise _buys_nothing(guesses)
    return most


def least_epsilon(design: Design, law: Frequencies, wanted: Wanted) -> Design:
    """Return the design with the least epsilon, of two digits, that meets its target.

    It has no size yet.

    Raises:
        InvalidInputError: none does.
    """
    guesses = Guesses(design, law, wanted)
    epsilon = _least(guesses, design.with_epsilon, MIN_EPSILON, MAX_EPSILON)
    if epsilon is None:
        raise InvalidInputError(
            f"tau {guesses.tau:g}, and the names above {2 * guesses.tau:g}, cannot be had within"
            f" {guesses.spec.size.max_bytes:,} bytes at any epsilon up to {MAX_EPSILON:g}: give"
            " more bytes, a larger tau or more clients"
        )
    return design.with_epsilon(epsilon)


def predicted(design: Design, law: Frequencies, wanted: Wanted) -> Names:
    """Return the names that a design of a size is predicted to read, for its target."""
    tau = design.spec.tau
    assert tau is not None
    return predict(design.plan(), law, 2 * tau, wanted.length, design.expected)


def checked(design: Design, *, allow_rare: bool) -> RareNames | None:
    """Return what the smallest sum of a design of a size shows, refused if that is too much."""
    rare = of_plan(design.plan(), design.sizes, design.people)
    if rare is not None and not allow_rare:
        rare.check()
    return rare


def _shown(design: Design) -> int:
    """Return how much the smallest sum shows of single clients, as `Guess.risk`."""
    rare = of_plan(design.plan(), design.sizes, design.people)
    return 0 if rare is None else rare.is_warned + rare.is_refused


# ---- what a target needs ----


def _smallest(guesses: Guesses, tries: int = _REFINED) -> Design | None:
    """Return what `smallest` does, of a number of guesses; None: nothing meets the target."""
    best: tuple[int, int, Design] | None = None
    for number, guess in enumerate(guesses.ranked):
        if number >= tries and (best is None or best[0] <= guess.risk):
            break  # a size may show more than its guess, and another one less
        refined = _refined(guesses, guess)
        if refined is not None and (best is None or refined[:2] < best[:2]):
            best = refined
    if best is None:
        return None
    budget = guesses.spec.size.max_bytes
    return None if budget is not None and best[1] > budget else best[2]


def _refined(guesses: Guesses, guess: Guess) -> tuple[int, int, Design] | None:
    """Return risk and bytes, and the size with widths that keep the target; None: none do."""
    design = guess.design
    schedule, rows, width, spelling, _ = design.chosen
    assert spelling is not None
    if guess.risk == 2 and not guesses.wanted.allow_rare:
        return None
    plan, tau = design.plan(), guesses.tau
    predictor = replace(Predictor.from_plan(plan, OPEN), num_clients=design.expected)
    found = _exact_width(guesses, predictor, rows, width, design.tau_of_sketch(guesses.law))
    speller = Speller.of(plan, guesses.law, design.expected)
    columns = speller.width(2 * tau, guesses.length)
    if found is None or columns is None:
        return None
    design = design.with_size(schedule, rows, found, replace(spelling, width=columns))
    for _ in range(_TURNS):
        plan = design.plan()
        names = predicted(design, guesses.law, guesses.wanted)
        if names.least <= 2 * tau:
            break
        finder = _WIDER if names.theta_find > 2 * tau else 1.0
        spelled = _WIDER if names.theta_name > 2 * tau else 1.0
        design = design.with_size(*_scaled(design.chosen, finder, spelled))
    else:
        return None
    risk = _shown(design)
    return None if risk > guesses.most_risk else (risk, plan.bytes_per_client, design)


def _exact_width(
    guesses: Guesses, predictor: Predictor, rows: int, guess: int, tau: float
) -> int | None:
    """Return the width with which the finder keeps tau by the error model, and spare."""
    planned = guesses.spec.failure_probability * RISK

    def keeps(width: int) -> bool:
        return all(one <= planned for one in predictor.failures(guesses.law, tau, rows, width))

    found = least(
        lambda width: keeps(math.ceil(width)),
        max(2.0, guess / 4),
        min(float(MAX_WIDTH), guess * 2.0),
        _PRECISION,
    ) or least(
        lambda width: keeps(math.ceil(width)),
        guess * 2.0,
        min(float(MAX_WIDTH), guess * float(_WIDEST)),
        _PRECISION,
    )
    return (
        None if found is None else min(MAX_WIDTH, math.ceil(found * MARGIN * guesses.wanted.spare))
    )


# ---- what bytes buy ----


def _least_tau(guesses: Guesses) -> tuple[int, float]:
    """Return the least tau whose guesses fit into the bytes, and the most risk among them.

    Of sums that show less of single clients the least tau may be larger, unless they may show
    everything.
    """
    found: dict[int, float] = {}
    any_risk = guesses.wanted.allow_rare or guesses.spec.is_private
    for risk in (guesses.most_risk,) if any_risk else (0, 1):
        suffices = partial(_affords, guesses, risk)
        tau = least(suffices, _LEAST_TAU, LARGEST_TAU, _CLOSE)
        if tau is not None:
            found[risk] = tau
    if not found:
        raise _buys_nothing(guesses)
    enough = _WORTH * min(found.values())
    return next((risk, tau) for risk, tau in found.items() if tau <= enough)


def _affords(guesses: Guesses, risk: int, tau: float) -> bool:
    """Return whether a guess for another tau fits into the bytes."""
    return guesses.of(guesses.design.with_tau(tau)).affords(risk)


def _bought(guesses: Guesses, guess: Guess, risk: int) -> Bought | None:
    """Return the size of a guess, as wide as fits; None: it does not fit."""
    design = guess.design

    def fits(design: Design) -> bool:
        return design.bytes_per_client <= guesses.budget and _shown(design) <= risk

    for _ in range(_TURNS):  # guesses are right to a few bytes
        if fits(design):
            break
        design = design.with_size(*_scaled(design.chosen, _NARROWER, _NARROWER))
    else:
        return None
    for finder, spelling in ((_CLOSE, _CLOSE), (_CLOSE, 1.0)):  # both, and then what is left
        while True:
            wider = design.with_size(*_scaled(design.chosen, finder, spelling))
            if not fits(wider) or wider.size == design.size:
                break
            design = wider
    plan = design.plan()
    planned = guesses.spec.failure_probability * RISK
    needed = design.with_size(*_scaled(design.chosen, 1.0 / guesses.wanted.spare, 1.0)).plan()
    linf = predict_linf(needed, guesses.law, design.recovery, planned, expected=design.expected)
    names = predict(plan, guesses.law, 2 * linf, guesses.wanted.length, design.expected)
    return Bought(design, linf, names)


def _buys_nothing(guesses: Guesses) -> InvalidInputError:
    """Return the error for bytes that buy no name, not even one that all clients hold."""
    free = guesses.of(guesses.design.with_tau(LARGEST_TAU))
    design = free.designs[0]
    design.bytes_of(1, 1, design.example)  # that no sum is safe says its own error
    sizes = [guess.size for guess in free.ranked if guess.risk <= guesses.most_risk]
    length = guesses.length
    nothing = f"no name of up to {length} bytes can be read, however many clients hold it"
    if sizes:
        enough = math.ceil(_ENOUGH * min(sizes))
        return InvalidInputError(
            f"with {guesses.budget:,} bytes {nothing}: give at least {enough:,} bytes"
        )
    for guess in sorted(free.ranked, key=lambda guess: guess.design.num_rounds):
        checked(guess.design, allow_rare=guesses.wanted.allow_rare)  # it shows too much
    way = "have more clients" + " or a larger epsilon" * guesses.spec.is_private
    return InvalidInputError(f"{nothing}, whatever the bytes: {way}")


def _scaled(chosen: Chosen, finder: float, spelling: float) -> Chosen:
    """Return a size whose widths of finder and spelling are multiplied by two factors.

    >>> from fedtally.sketch import Schedule, Spelling
    >>> _scaled(Chosen(Schedule.parse("shared"), 5, 100, Spelling(4, 30, 64)), 1.05, 0.99)[2:4]
    (105, Spelling(rows=4, width=29, max_length=64))
    """
    assert chosen.spelling is not None

    def scaled(width: int, factor: float) -> int:
        exact = round(width * factor, 6)
        return max(1, min(MAX_WIDTH, math.ceil(exact) if factor > 1 else math.floor(exact)))

    own = replace(chosen.spelling, width=scaled(chosen.spelling.width, spelling))
    return chosen._replace(width=scaled(chosen.width, finder), spelling=own)


# ---- what is out of reach ----


def _unreachable(guesses: Guesses) -> InvalidInputError:
    """Return the error for a target out of reach, with the smallest changes that help."""
    out = ways_out(list(_ways(guesses)))
    design = guesses.designs[0]
    reads = f"names of strings that more than {2 * guesses.tau:g} of the clients hold"
    return InvalidInputError(f"tau {guesses.tau:g}, and {reads}, {why_unreachable(design)}; {out}")


def _ways(guesses: Guesses) -> Iterator[str]:
    """Yield the smallest changes, one at a time, with which the target is met."""
    spec, design = guesses.spec, guesses.design
    number = design.clients[0]
    tau = _least(guesses, design.with_tau, guesses.tau, LARGEST_TAU)
    if tau is not None:
        yield f"tau {tau:g}"
    if spec.privacy is not None:
        epsilon = _least(guesses, design.with_epsilon, spec.privacy.epsilon, MAX_EPSILON)
        if epsilon is not None:
            yield f"epsilon {epsilon:g}"
    most = min(MAX_CLIENTS, _MOST_CLIENTS * number)
    clients = _least(guesses, lambda x: design.with_clients(math.ceil(x)), number, most)
    if clients is not None:
        unit = "clients" if spec.silos is None else "silos of as many people each"
        yield f"{int(clients):,} {unit}"
    cohort = _least_cohort(guesses)
    if cohort is not None:
        yield f"cohorts of up to {int(cohort):,} ({opt.max_cohort})"
    length = _longest(guesses)
    if length is not None:
        yield opt.max_length(length)
    if spec.size.max_bytes is not None:
        free = _smallest(guesses.of(replace(design, spec=spec.with_bytes(None))))
        if free is not None:
            yield f"{free.bytes_per_client:,} bytes"


def _least_cohort(guesses: Guesses) -> float | None:
    """Return the smallest cohorts of secagg that do; None: there are none.

    Each cohort is opened, with the noise of a whole: fewer and larger ones have less.
    """
    spec = guesses.spec
    number = guesses.design.clients[0]
    is_free = spec.is_private and spec.summation.min_cohort is None
    if not is_free or not spec.summation.is_split(number):
        return None
    return _least(
        guesses,
        lambda x: guesses.design.with_cohorts(math.ceil(x)),
        spec.summation.most_clients,
        number,
    )


def _longest(guesses: Guesses) -> int | None:
    """Return the longest strings that do, of fewer bytes than they may have; None: none do."""
    longest, length = guesses.domain.max_length, guesses.length

    def suffices(bound: int) -> bool:
        shorter = guesses.of(guesses.design.with_length(bound))
        return bound < longest and _smallest(shorter) is not None

    if not suffices(length):
        return None
    for step in (64, 32, 16, 8, 4, 2, 1):
        if suffices(length + step):
            length += step
    return length


def _least(
    guesses: Guesses, changed: Callable[[float], Design], low: float, high: float
) -> float | None:
    """Return the least value of two digits that meets the target; None: none up to `high`.

    Args:
        guesses: the target out of reach.
        changed: returns the design with a value.
        low: the least value that is tried.
        high: the largest value that is tried.
    """
    found = least(lambda x: guesses.of(changed(x)).reaches(), low, high, _PRECISION)
    for _ in range(_MORE):  # what looks enough may not be
        if found is None or found > high:
            return None
        value = float(rounded_up(found))
        with suppress(InvalidInputError):  # such as a delta that is too large for more clients
            if _smallest(guesses.of(changed(value)), tries=1) is not None:
                return value
        found = value * _ENOUGH
    return None
