"""The size of a plan with an open domain, for which there is no list of candidates.

A client's vector has two parts here: the *finder*, a sketch that shows the hashes of frequent
strings, and the *spelling*, sketches from which the names of these strings are read. A target has
two parts, too: no frequency may have an error above tau, and names of up to `Wanted.length` bytes
must be read if their strings are above 2 tau (`fedtally.plan.readable_names` predicts which names
are read).

First many sizes are estimated by formulas (`fedtally.plan.open_guesses`). An estimated size is
called a guess; its risk is how much the sums show about single clients. Then exact widths are
computed for a few guesses: those with the lowest risk, and of guesses with equal risk those with
the fewest bytes. If the request has no tau, the least tau whose guesses fit the budget of bytes is
found first.

The searches `smallest`, `best` and `least_epsilon` have the names of the searches for a list of
candidates in `fedtally.plan.search`. If the request states neither a number of rounds nor a
schedule, the searches here choose the number of rounds. With more rounds, each client spells fewer
positions of a name, so that its vector is shorter; but each position is spelled by fewer clients,
so that beyond some number of rounds the vector is longer again. The sum of each round then has
fewer clients, and shows more of each client. With noise, each opened sum holds noise of its own,
but shorter vectors need less noise, so either number of rounds may give the smaller error.
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

_REFINED = 3  # exact widths are computed for this number of guesses, the first in `Guesses.ranked`
_TURNS = 20  # the most times that a size is widened to meet its target, or narrowed to fit
_WIDER = 1.05  # the factor by which a part of a size is widened each time
_WIDEST = 64  # the largest width that is tried, as a multiple of the guessed width
_PRECISION = 1.02  # the relative precision of searches for a value
_MORE, _ENOUGH = 4, 1.15  # up to _MORE suggested values are tested, each _ENOUGH times the last one
_CLOSE = 1.005  # the relative precision of the least tau within a budget, and of widths
_NARROWER = 0.99  # the largest factor by which a size is narrowed each time
_MOST_CLIENTS = 1000  # the most clients that are tried, as a multiple of the given number
_WORTH = 1.5  # tau may be this many times the least tau, if sums then show less of single clients
_LEAST_TAU, LARGEST_TAU = 1e-7, 0.5


class Bought(NamedTuple):
    """The best size within a budget of bytes, with its predictions.

    Attributes:
        design: the design, with its size.
        linf: the predicted largest error, for a finder (the sketch that shows hashes) without the
            additional width `Wanted.spare`.
        names: the names that are predicted to be read, if names should be read from a frequency of
            twice `linf` on.
    """

    design: Design
    linf: float
    names: Names

    @property
    def tau(self) -> float:
        """The least target tau that this size meets."""
        return max(self.linf, self.names.least / 2)


def smallest(design: Design, law: Frequencies, wanted: Wanted) -> Design:
    """Return the design with the size that meets the target with the lowest risk.

    The risk is how much the sums show about single clients (`Guess.risk`). Among sizes of equal
    risk, the one with the fewest bytes is returned.

    Args:
        design: the design, whose request has a tau.
        law: the frequencies of the strings.
        wanted: what the user asks for about names.

    Raises:
        InvalidInputError: no size meets the target within the requested bytes; the message names
            changes that help, if there are any.
    """
    guesses = Guesses(design, law, wanted)
    sized = _smallest(guesses)
    if sized is None:
        raise _unreachable(guesses)
    return sized


def best(design: Design, law: Frequencies, wanted: Wanted) -> Bought:
    """Return the size with about the least tau within a budget of bytes, and its predictions.

    The budget is the requested `max_bytes`, or else the default. The least tau balances the two
    parts of a target: the error, and the names that are read. With a somewhat larger tau, the sums
    may show less about single clients. If at most `_WORTH` times the least tau is enough for this,
    the size for this larger tau is returned instead.

    Args:
        design: the design, whose request has no tau.
        law: the frequencies of the strings.
        wanted: what the user asks for about names.

    Raises:
        InvalidInputError: no name can be read, or the sums would show the items of single clients;
            the message names changes that help.
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
    """Return the design with about the least epsilon that meets the target, without a new size.

    The epsilon is rounded up to two digits.

    Args:
        design: the design, whose request has a tau, a budget of bytes and any epsilon.
        law: the frequencies of the strings.
        wanted: what the user asks for about names.

    Raises:
        InvalidInputError: not even the largest epsilon is enough.
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
    """Return the names that are predicted to be read with a design.

    Names should be read from a frequency of 2 tau on. The design must have a size, and its request
    a tau.
    """
    tau = design.spec.tau
    assert tau is not None
    return predict(design.plan(), law, 2 * tau, wanted.length, design.expected)


def checked(design: Design, *, allow_rare: bool) -> RareNames | None:
    """Check and return the smallest sum of a design; return None if sums have noise.

    Args:
        design: the design, with a size.
        allow_rare: whether a sum may have fewer clients than counters. Such a sum may show the
            items of single clients.

    Raises:
        InvalidInputError: the smallest sum has fewer clients than counters, and `allow_rare` is
            False.
    """
    rare = of_plan(design.plan(), design.sizes, design.people)
    if rare is not None and not allow_rare:
        rare.check()
    return rare


def _shown(design: Design) -> int:
    """Return the exact risk of a design with a size, 0 to 2 (see `Guess`)."""
    rare = of_plan(design.plan(), design.sizes, design.people)
    return 0 if rare is None else rare.is_warned + rare.is_refused


# ---- what a target needs ----


def _smallest(guesses: Guesses, tries: int = _REFINED) -> Design | None:
    """Return what `smallest` returns, but None if no size meets the target.

    Args:
        guesses: the guesses of sizes.
        tries: the number of guesses whose exact widths are computed. Exact widths of a further
            guess are computed only in two cases: no guess has met the target yet; or the further
            guess has a lower risk than the best size so far.
    """
    best: tuple[int, int, Design] | None = None
    for number, guess in enumerate(guesses.ranked):
        if number >= tries and (best is None or best[0] <= guess.risk):
            break  # otherwise go on: this guess may have a lower risk than the best size so far
        refined = _refined(guesses, guess)
        if refined is not None and (best is None or refined[:2] < best[:2]):
            best = refined
    if best is None:
        return None
    budget = guesses.spec.size.max_bytes
    return None if budget is not None and best[1] > budget else best[2]


def _refined(guesses: Guesses, guess: Guess) -> tuple[int, int, Design] | None:
    """Return a guess with exact widths that meet the target: its risk, its bytes and its design.

    Returns None if no width meets the target, or if the risk is not allowed (see `Guess`).
    """
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
    """Return the width with which the finder meets tau by the error model, with its margins.

    The finder is the sketch that shows hashes. Returns None if no width up to `_WIDEST` times the
    guess meets tau.

    Args:
        guesses: the guesses of sizes.
        predictor: the predictor of errors.
        rows: the number of rows of the finder.
        guess: the estimated width, near which the search begins.
        tau: the largest error that the finder may have.
    """
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
    """Return the highest accepted risk, and the least tau of guesses within the bytes.

    The risk is how much the sums show about single clients (see `Guess`). A lower risk is preferred
    if it is possible with a tau of at most `_WORTH` times the least tau. With privacy, or if the
    user allows every risk, only tau counts.

    Raises:
        InvalidInputError: no guess fits the bytes.
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
    """Return whether some guess for the target `tau` has at most this risk and fits the budget.

    The risk is how much the sums show about single clients (see `Guess`). The budget is compared
    with an estimate of the bytes that a client uploads. The result is False, too, if the rounds
    cannot be summed as requested.
    """
    return guesses.of(guesses.design.with_tau(tau)).affords(risk)


def _bought(guesses: Guesses, guess: Guess, risk: int) -> Bought | None:
    """Return the size of a guess, made as wide as the budget and the risk allow.

    The risk is how much the sums show about single clients (see `Guess`). Returns None if the size
    of the guess does not fit, and somewhat narrower sizes do not fit either.
    """
    design = guess.design

    def fits(design: Design) -> bool:
        return design.bytes_per_client <= guesses.budget and _shown(design) <= risk

    # The estimated bytes of a guess may be a few bytes too low. They may even be half of the bytes:
    # the bits of a secure sum are mostly a multiple of 8.
    for _ in range(_TURNS):
        if fits(design):
            break
        factor = min(_NARROWER, guesses.budget / design.bytes_per_client)
        design = design.with_size(*_scaled(design.chosen, factor, factor))
    else:
        return None
    for finder, spelling in ((_CLOSE, _CLOSE), (_CLOSE, 1.0)):  # widen both, then only the finder
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
    """Return the error for a budget of bytes with which no name at all can be read.

    Raises:
        InvalidInputError: no secure sum is possible, or the sums would show too much about single
            clients. The raised error then tells the user more than the returned error would.
    """
    free = guesses.of(guesses.design.with_tau(LARGEST_TAU))
    design = free.designs[0]
    design.bytes_of(1, 1, design.example)  # raises a clearer error if no secure sum is possible
    sizes = [guess.size for guess in free.ranked if guess.risk <= guesses.most_risk]
    length = guesses.length
    nothing = f"no name of up to {length} bytes can be read, however many clients hold it"
    if sizes:
        enough = math.ceil(_ENOUGH * min(sizes))
        return InvalidInputError(
            f"with {guesses.budget:,} bytes {nothing}: give at least {enough:,} bytes"
        )
    for guess in sorted(free.ranked, key=lambda guess: guess.design.num_rounds):
        # raises a clearer error if the sums would show too much
        checked(guess.design, allow_rare=guesses.wanted.allow_rare)
    way = "have more clients" + " or a larger epsilon" * guesses.spec.is_private
    return InvalidInputError(f"{nothing}, whatever the bytes: {way}")


def _scaled(chosen: Chosen, finder: float, spelling: float) -> Chosen:
    """Return a size with the width of the finder and the width of the spelling multiplied.

    The finder is the sketch that shows hashes; the spelling consists of sketches from which names
    are read. A width is rounded up if its factor is above 1, and otherwise down; it stays within 1
    .. 2^24.

    Args:
        chosen: the size.
        finder: the factor for the width of the finder.
        spelling: the factor for the width of the spelling.

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
    """Return the error for a target that no size meets.

    The error names the smallest changes that help, if there are any.
    """
    out = ways_out(list(_ways(guesses)))
    design = guesses.designs[0]
    reads = f"names of strings that more than {2 * guesses.tau:g} of the clients hold"
    return InvalidInputError(f"tau {guesses.tau:g}, and {reads}, {why_unreachable(design)}; {out}")


def _ways(guesses: Guesses) -> Iterator[str]:
    """Yield texts of the smallest changes; each of them alone is enough to meet the target."""
    spec, design = guesses.spec, guesses.design
    number = design.fleet
    tau = _least(guesses, design.with_tau, guesses.tau, LARGEST_TAU)
    if tau is not None:
        yield f"tau {tau:g}"
    if spec.privacy is not None:
        epsilon = _least(guesses, design.with_epsilon, spec.privacy.epsilon, MAX_EPSILON)
        if epsilon is not None:
            yield f"epsilon {epsilon:g}"
    most = min(MAX_CLIENTS // spec.lifetime, _MOST_CLIENTS * number)
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
    """Return the smallest size of cohorts that is enough to meet the target; None if no size is.

    The sum of each cohort is opened, and each opened sum holds the noise that the whole sum needs.
    So fewer and larger cohorts mean less noise in total. Returns None, too, if all clients fit one
    cohort or secagg is not used, if the request has no privacy, or if the request has a smallest
    cohort (`min_cohort`).
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
    """Return the largest maximum length of strings, in bytes, that is enough to meet the target.

    It is below the present maximum length. Returns None if not even the length of the names that
    must be read is enough, or if it is not shorter.
    """
    longest, length = guesses.domain.max_length, guesses.length

    def suffices(bound: int) -> bool:
        if bound >= longest:
            return False
        return _smallest(guesses.of(guesses.design.with_length(bound))) is not None

    if not suffices(length):
        return None
    for step in (128, 64, 32, 16, 8, 4, 2, 1):  # together above the most bytes of a name, 192
        if suffices(length + step):
            length += step
    return length


def _least(
    guesses: Guesses, changed: Callable[[float], Design], low: float, high: float
) -> float | None:
    """Return the least value that meets the target, to two digits; None if none is found.

    Args:
        guesses: the guesses for the design whose target is not met.
        changed: a function that returns the design after a change to this value.
        low: the smallest value that is tried.
        high: the largest value that is tried.
    """
    found = least(lambda x: guesses.of(changed(x)).reaches(), low, high, _PRECISION)
    for _ in range(_MORE):  # a value that is enough by estimates may be too small in truth
        if found is None or found > high:
            return None
        value = float(rounded_up(found))
        with suppress(InvalidInputError):  # for example, delta is too large for more clients
            if _smallest(guesses.of(changed(value)), tries=1) is not None:
                return value
        found = value * _ENOUGH
    return None
