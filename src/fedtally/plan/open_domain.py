"""A plan for strings nobody has listed: what names need, or what bytes buy.

The target is that no frequency is off by more than tau, and that the names of strings above 2 tau
are read (`fedtally.plan.names` says from which frequency they are). Sizes are first guessed in
closed form, for many numbers of rounds, rows of the finder and rows of the spelling. Of those that
look cheapest the widths are then computed. Where bytes are given and no tau, the least tau whose
guesses fit into the bytes is looked for first.

Without noise, rounds cost nothing: each client spells fewer positions, and no round waits for
another one. But the sum of a round has fewer clients, and shows more of each. Under noise every
release costs noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

from fedtally.domain import OpenStrings
from fedtally.errors import InvalidInputError, Note, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import MAX_CLIENTS, Plan
from fedtally.plan.design import DEFAULT_MAX_BYTES, Chosen, Design
from fedtally.plan.fleet import check_even_rounds, for_fleet
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.names import NAME_LENGTH, SPARE, Names, Speller, predict
from fedtally.plan.paper import Size
from fedtally.plan.predictor import Predictor, predict_linf
from fedtally.plan.proposal import Proposal
from fedtally.plan.rare_names import WARNED, RareNames, of_plan
from fedtally.plan.request import CampaignSpec
from fedtally.plan.rounds import numbers_of_batches
from fedtally.plan.search import check_learns, least, make_target, rounded_up
from fedtally.plan.sizes import MARGIN, RISK, UnreachableError
from fedtally.plan.ways import ways_out, why_unreachable
from fedtally.privacy.config import MAX_EPSILON, MIN_EPSILON
from fedtally.recovery.decoders import OPEN
from fedtally.sketch import Schedule, Spelling
from fedtally.sketch.schedule import AUTO

# Times the finder's width that a law asks which is only assumed. Words and names have about twice
# the energy below tau that i^-1.1 has, which no other exponent over a million strings has. It is a
# margin and no theorem: `python -m experiments open-tau` measures it.
FINDER_SPARE = 1.6
_FINDER_ROWS = (4, 5, 6, 8, 10, 12, 16, 20)
_SPELLING_ROWS = (3, 4, 5)
_LINF = 6.2  # standard errors of the largest error of all hashes, about; then it is computed
_REFINED = 3  # sizes whose widths are computed, of those that look cheapest
_TURNS = 20  # of widening a size until it keeps its target
_WIDER = 1.05
_WIDEST = 64  # times the width that is guessed
_PRECISION = 1.02  # of what is said to do instead
_MORE, _ENOUGH = 4, 1.15  # looks for what does, and by how much more at each
_CLOSE = 1.005  # precision of the least tau that bytes buy, and of widths
_NARROWER = 0.99
_WORTH = 1.5  # times the least tau, for sums that show less of single clients
_LEAST_TAU, _LARGEST_TAU = 1e-7, 0.5
_USED = 0.9  # of the bytes; where less is used, why is said


class _Guess(NamedTuple):
    """A size, about: its widths are not computed yet.

    Attributes:
        risk: 0 where single clients hardly show, 1 where they do, 2 where that must be allowed.
        size: bytes of a client.
        design: the plan to be, with its number of rounds and its size.
    """

    risk: int
    size: int
    design: Design


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


@dataclass(frozen=True)
class Search:
    """What is asked of a plan for an open domain, and the search for it.

    Args:
        spec: what is asked: a tau, or bytes, or both. Without a number of rounds, the number is
            chosen.
        domain: the open domain.
        num_clients: the clients of all rounds together; or silos.
        law: the known frequencies.
        seed: 32 bytes, of the hashes.
        name_length: bytes that 9 of 10 frequent names do not exceed.
        allow_rare_names: plan even if whoever opens a sum can read what single clients hold.
        spare: times the finder's width that the law asks; 1 where the law is known.
    """

    spec: CampaignSpec
    domain: OpenStrings
    num_clients: int
    law: Frequencies
    seed: bytes
    name_length: int = NAME_LENGTH
    allow_rare_names: bool = False
    spare: float = FINDER_SPARE

    def smallest(self) -> Design:
        """Return the plan to be, with the size that meets the target with the fewest bytes.

        Raises:
            InvalidInputError: nothing does, within the bytes that are given if there are; what
                would is named.
        """
        found = self._found()
        if found is None:
            raise self._unreachable()
        return found

    def for_bytes(self) -> Bought:
        """Return the size that names the rarest strings within the bytes, and what it can do.

        Error and names are balanced as a target balances them: the least tau is looked for.

        Raises:
            InvalidInputError: no name can be read, or the sums would show what single clients
                hold; what would do is named.
        """
        if self.spec.max_bytes is None:
            spec = replace(self.spec, max_bytes=DEFAULT_MAX_BYTES)
            return replace(self, spec=spec).for_bytes()
        risk, tau = self._least_tau()
        best: Bought | None = None
        for guess in self._with("tau", tau)._affordable(risk)[:_REFINED]:
            bought = self._bought(guess, risk)
            if bought is not None and (best is None or bought.tau < best.tau):
                best = bought
        if best is None:
            raise self._buys_nothing()
        return best

    def least_private(self) -> Search:
        """Return the search with the least epsilon, of two digits, that meets the target.

        Raises:
            InvalidInputError: none does.
        """
        epsilon = self._least("epsilon", MIN_EPSILON, MAX_EPSILON)
        if epsilon is None:
            raise InvalidInputError(
                f"tau {self._tau:g}, and the names above {2 * self._tau:g}, cannot be had within"
                f" {self.spec.max_bytes:,} bytes at any epsilon up to {MAX_EPSILON:g}: give more"
                " bytes, a larger tau or more clients"
            )
        return self._with("epsilon", epsilon)

    def _found(self, tries: int = _REFINED) -> Design | None:
        """Return what `smallest` does, of at most `tries` guesses; None: nothing does."""
        best: tuple[int, int, Design] | None = None
        for number, guess in enumerate(self._guesses):
            if number >= tries and (best is None or best[0] <= guess.risk):
                break  # a size may show more than its guess, and another one less
            refined = self._refined(guess)
            if refined is not None and (best is None or refined[:2] < best[:2]):
                best = refined
        if best is None:
            return None
        budget = self.spec.max_bytes
        return None if budget is not None and best[1] > budget else best[2]

    # ---- what bytes buy ----

    @property
    def _budget(self) -> float:
        return self.spec.max_bytes or math.inf

    @property
    def _is_private(self) -> bool:
        return self.spec.privacy is not None

    @property
    def _most_risk(self) -> int:
        return 2 if self.allow_rare_names else 1

    def _least_tau(self) -> tuple[int, float]:
        """Return the least tau whose guesses fit into the bytes, and the most risk among them.

        Of sums that show less of single clients the least tau may be larger, unless they may show
        everything.
        """
        found: dict[int, float] = {}
        for risk in (self._most_risk,) if self.allow_rare_names or self._is_private else (0, 1):
            suffices = partial(self._affords, risk)
            tau = least(suffices, _LEAST_TAU, _LARGEST_TAU, _CLOSE)
            if tau is not None:
                found[risk] = tau
        if not found:
            raise self._buys_nothing()
        enough = _WORTH * min(found.values())
        return next((risk, tau) for risk, tau in found.items() if tau <= enough)

    def _affords(self, risk: int, tau: float) -> bool:
        return bool(self._with("tau", tau)._affordable(risk))

    def _affordable(self, risk: int) -> list[_Guess]:
        """Return the guesses that fit into the bytes, of at most `risk`."""
        with suppress(InvalidInputError):  # fewer clients than a secure sum needs
            return [
                guess
                for guess in self._guesses
                if guess.risk <= risk and guess.size <= self._budget
            ]
        return []

    def _bought(self, guess: _Guess, risk: int) -> Bought | None:
        """Return the size of a guess, as wide as fits; None: it does not fit."""
        design = guess.design

        def fits(design: Design) -> bool:
            plan = design.plan()
            rare = of_plan(plan, design.sizes, design.people)
            shown = 0 if rare is None else rare.is_warned + rare.is_refused
            return plan.bytes_per_client <= self._budget and shown <= risk

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
        planned = self.spec.failure_probability * RISK
        needed = design.with_size(*_scaled(design.chosen, 1.0 / self.spare, 1.0)).plan()
        linf = predict_linf(needed, self.law, design.recovery, planned, expected=design.expected)
        names = predict(plan, self.law, 2 * linf, self.name_length, design.expected)
        return Bought(design, linf, names)

    def _buys_nothing(self) -> InvalidInputError:
        """Return the error for bytes that buy no name, not even one that all clients hold."""
        free = self._with("tau", _LARGEST_TAU)
        design = free._designs[0]
        design.bytes_of(1, 1, design.example)  # that no sum is safe says its own error
        sizes = [guess.size for guess in free._guesses if guess.risk <= self._most_risk]
        length = min(self.name_length, self.domain.max_length)
        nothing = f"no name of up to {length} bytes can be read, however many clients hold it"
        if sizes:
            enough = math.ceil(_ENOUGH * min(sizes))
            return InvalidInputError(
                f"with {self._budget:,} bytes {nothing}: give at least {enough:,} bytes"
            )
        for guess in sorted(free._guesses, key=lambda guess: guess.design.num_rounds):
            _checked(free, guess.design.plan(), guess.design)  # it shows too much
        way = "have more clients" + " or a larger epsilon" * self._is_private
        return InvalidInputError(f"{nothing}, whatever the bytes: {way}")

    # ---- guesses ----

    @cached_property
    def _guesses(self) -> list[_Guess]:
        """Sizes that may meet the target, the best first: with little risk, and few bytes."""
        found = [guess for design in self._designs for guess in self._guesses_of(design)]
        # a size is tried with one number of rows of the spelling: that of the fewest bytes
        best: dict[tuple[int, str, int], _Guess] = {}
        for guess in sorted(found, key=lambda guess: (guess.risk, guess.size)):
            size = guess.design.chosen
            key = (guess.design.num_rounds, str(size.schedule), size.rows)
            best.setdefault(key, guess)
        return list(best.values())

    @cached_property
    def _designs(self) -> list[Design]:
        designs, refused = [], None
        for number in self._numbers_of_rounds():
            try:
                designs.append(self.design(number))
            except InvalidInputError as error:  # so many rounds are not summed safely
                refused = refused or error
        if refused is not None and not designs:
            raise refused
        return designs

    def design(self, num_rounds: int) -> Design:
        """Return the design for a number of rounds, without a size.

        Raises:
            InvalidInputError: cohorts that were asked for do not fit the rounds.
        """
        spec = replace(self.spec, num_rounds=num_rounds)
        made = for_fleet(spec, self.domain, self.num_clients, self.seed)
        check_even_rounds(made)
        return made

    def _numbers_of_rounds(self) -> list[int]:
        """Return the numbers of rounds to choose from: for each number of blocks the least."""
        if self.spec.num_rounds is not None:
            return [self.spec.num_rounds]
        if self.spec.schedule != AUTO:
            return [1]
        positions = self.domain.max_length + 1
        blocks = {-(-positions // rounds) for rounds in range(1, positions + 1)}
        return sorted({-(-positions // number) for number in blocks if number} | {1})

    def _guesses_of(self, design: Design) -> Iterator[_Guess]:
        try:
            tau = design.tau_of_sketch(self.law)
        except UnreachableError:
            return
        _ = design.honest_clients  # that no noise is sure says its own error
        clients = design.expected
        length, longest = min(self.name_length, self.domain.max_length), self.domain.max_length
        rows_of_finder = _FINDER_ROWS if self.spec.rows is None else (self.spec.rows,)
        for schedule in self._schedules(design):
            batches, shape = schedule.num_batches(design.num_rounds), Spelling(1, 1, longest)
            with suppress(InvalidInputError):  # too many positions for the code of long names
                shape.check_batches(batches)
                blocks, positions = shape.blocks(batches), shape.positions(batches)
                # in proportion to the rows
                each = design.noise(1, schedule) ** 2 * design.num_rounds
                for rows in rows_of_finder:
                    for spelled in _SPELLING_ROWS:
                        touched = rows + blocks * spelled
                        total = each * touched
                        width = self._finder_width(clients, batches, total, rows, tau)
                        own = clients / batches
                        speller = Speller(self.law, spelled, positions, own, total / batches)
                        columns = speller.width(2 * self._tau, length)
                        if width is None or columns is None:
                            continue
                        counters = rows * width + blocks * spelled * columns
                        yield _Guess(
                            self._risk(design, counters),
                            design.bytes_of_counters(touched, counters, schedule),
                            design.with_size(
                                schedule, rows, width, Spelling(spelled, columns, longest)
                            ),
                        )

    @property
    def _tau(self) -> float:
        assert self.spec.tau is not None
        return self.spec.tau

    def _schedules(self, design: Design) -> list[Schedule]:
        name, rounds = design.spec.schedule, design.num_rounds
        if name != AUTO:
            return [Schedule.parse(name)]
        if rounds == 1:
            return [Schedule.parse("shared")]
        if self.spec.num_rounds is None or not design.is_noised_once:
            return [Schedule.parse("hybrid")]
        few = sorted(numbers_of_batches(rounds) - {1, rounds})
        names = ("shared", *(f"batched:{number}" for number in few), "hybrid")
        return [Schedule.parse(one) for one in names]

    def _finder_width(
        self, clients: int, batches: int, noise: float, rows: int, tau: float
    ) -> int | None:
        """Return about the width with which the errors of all hashes are at most tau, and spare."""
        f, number = self.law.frequencies, self.law.numbers
        rare = f < tau
        spread = float(number[rare] @ (f[rare] ** 2 / batches + f[rare] / clients))
        left = rows * (tau / _LINF) ** 2 - noise / clients**2
        if left <= 0:
            return None
        most = OPEN.kind.largest_support[batches > 1] / SPARE
        frequent = float(number[f >= 2 * tau].sum())
        found = max(self.spare * max(spread / left, 2.0), frequent / (most * rows))
        return math.ceil(found) if found < MAX_WIDTH else None

    def _risk(self, design: Design, counters: int) -> int:
        """Return about how much the sums show of single clients, as in `_Guess`."""
        if self._is_private:
            return 0
        clients = self.spec.summation.clients_of_sum(float(min(design.people)))
        return 0 if counters * WARNED <= clients else 1 if counters <= clients else 2

    # ---- the widths of a guess ----

    def _refined(self, guess: _Guess) -> tuple[int, int, Design] | None:
        """Return risk and bytes, and the size with widths that keep the target; None: none do."""
        design, (schedule, rows, width, spelling, _) = guess.design, guess.design.chosen
        assert spelling is not None
        if guess.risk == 2 and not self.allow_rare_names:
            return None
        plan, tau = design.plan(), self._tau
        predictor = replace(Predictor.from_plan(plan, OPEN), num_clients=design.expected)
        found = self._exact_width(predictor, rows, width, design.tau_of_sketch(self.law))
        speller = Speller.of(plan, self.law, design.expected)
        columns = speller.width(2 * tau, min(self.name_length, self.domain.max_length))
        if found is None or columns is None:
            return None
        design = design.with_size(schedule, rows, found, replace(spelling, width=columns))
        for _ in range(_TURNS):
            plan = design.plan()
            names = self.predicted(plan, design)
            if names.least <= 2 * tau:
                break
            finder = _WIDER if names.theta_find > 2 * tau else 1.0
            spelled = _WIDER if names.theta_name > 2 * tau else 1.0
            design = design.with_size(*_scaled(design.chosen, finder, spelled))
        else:
            return None
        rare = of_plan(plan, design.sizes, design.people)
        if rare is not None and rare.is_refused and not self.allow_rare_names:
            return None
        risk = 0 if rare is None else rare.is_warned + rare.is_refused
        return risk, plan.bytes_per_client, design

    def predicted(self, plan: Plan, design: Design) -> Names:
        """Return the names that a plan of this target is predicted to read."""
        return predict(plan, self.law, 2 * self._tau, self.name_length, design.expected)

    def _exact_width(self, predictor: Predictor, rows: int, guess: int, tau: float) -> int | None:
        """Return the width with which the finder keeps tau by the error model, and spare."""
        planned = self.spec.failure_probability * RISK

        def keeps(width: int) -> bool:
            return all(one <= planned for one in predictor.failures(self.law, tau, rows, width))

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
        return None if found is None else min(MAX_WIDTH, math.ceil(found * MARGIN * self.spare))

    # ---- what is out of reach ----

    def _unreachable(self) -> InvalidInputError:
        """Return the error for a target out of reach, with the smallest changes that help."""
        out = ways_out(list(self._ways()))
        design = self._designs[0]
        reads = f"names of strings that more than {2 * self._tau:g} of the clients hold"
        return InvalidInputError(
            f"tau {self._tau:g}, and {reads}, {why_unreachable(design)}; {out}"
        )

    def _ways(self) -> Iterator[str]:
        """Yield the smallest changes, one at a time, with which the target is met."""
        tau = self._least("tau", self._tau, 0.5)
        if tau is not None:
            yield f"tau {tau:g}"
        if self.spec.privacy is not None:
            epsilon = self._least("epsilon", self.spec.privacy.epsilon, MAX_EPSILON)
            if epsilon is not None:
                yield f"epsilon {epsilon:g}"
        clients = self._least(
            "clients", self.num_clients, min(MAX_CLIENTS, 1000 * self.num_clients)
        )
        if clients is not None:
            unit = "clients" if self.spec.silos is None else "silos of as many people each"
            yield f"{int(clients):,} {unit}"
        summation = self.spec.summation
        is_split = summation.is_split(self.num_clients)
        # each cohort is opened, with the noise of a whole: fewer and larger ones have less
        if is_split and self.spec.is_private and summation.min_cohort is None:
            cohort = self._least("max_cohort", summation.most_clients, self.num_clients)
            if cohort is not None:
                yield f"cohorts of up to {int(cohort):,} ({opt.max_cohort})"
        shortest = min(self.name_length, self.domain.max_length)
        if shortest < self.domain.max_length and self._with("max_length", shortest)._found():
            length = shortest
            for step in (64, 32, 16, 8, 4, 2, 1):  # the longest that does
                longer = length + step
                if longer < self.domain.max_length and self._with("max_length", longer)._found():
                    length = longer
            yield opt.max_length(length)
        if self.spec.max_bytes is not None:
            free = replace(self, spec=replace(self.spec, max_bytes=None))._found()
            if free is not None:
                yield f"{free.bytes_per_client:,} bytes"

    def _least(self, name: str, low: float, high: float) -> float | None:
        """Return the least value of two digits that meets the target; None: none up to `high`."""
        found = least(lambda x: self._with(name, x)._may_reach(), low, high, _PRECISION)
        for _ in range(_MORE):  # what looks enough may not be
            if found is None or found > high:
                return None
            value = float(rounded_up(found))
            with suppress(InvalidInputError):  # such as a delta that is too large for more clients
                if self._with(name, value)._found(tries=1) is not None:
                    return value
            found = value * _ENOUGH
        return None

    def _may_reach(self) -> bool:
        """Whether a guess says that some size meets the target, within the bytes if there are."""
        return bool(self._affordable(self._most_risk))

    def _with(self, name: str, value: float) -> Search:
        """Return the search with another tau, epsilon, max_cohort, max_length, or clients."""
        if name == "tau":
            return replace(self, spec=replace(self.spec, tau=value))
        if name == "epsilon":
            return replace(self, spec=self.spec.with_epsilon(value))
        if name == "max_cohort":
            return replace(self, spec=self.spec.with_cohorts(math.ceil(value)))
        if name == "max_length":
            domain = OpenStrings(int(value), self.domain.bits, None, self.domain.normalise)
            return replace(self, domain=domain)
        number = math.ceil(value)
        spec = self.spec.for_clients(number, self.num_clients)
        return replace(self, spec=spec, num_clients=number)


def _scaled(chosen: Chosen, finder: float, spelling: float) -> Chosen:
    """Return a size whose widths of finder and spelling are multiplied by two factors.

    >>> _scaled(Chosen(Schedule.parse("shared"), 5, 100, Spelling(4, 30, 64)), 1.05, 0.99)[2:4]
    (105, Spelling(rows=4, width=29, max_length=64))
    """
    assert chosen.spelling is not None

    def scaled(width: int, factor: float) -> int:
        exact = round(width * factor, 6)
        return max(1, min(MAX_WIDTH, math.ceil(exact) if factor > 1 else math.floor(exact)))

    own = replace(chosen.spelling, width=scaled(chosen.spelling.width, spelling))
    return chosen._replace(width=scaled(chosen.width, finder), spelling=own)


# ---- a plan ----


def propose(search: Search, *, find_epsilon: bool = False, like: str | None = None) -> Proposal:
    """Return a plan for a fleet whose strings nobody has the list of.

    With a tau: that of the fewest bytes; with bytes and `find_epsilon` besides: that of the least
    epsilon. Without: what the bytes buy.

    Args:
        search: what is asked.
        find_epsilon: the same as for `fedtally.plan.proposal.propose`.
        like: the same as for `fedtally.plan.proposal.propose`.

    Raises:
        InvalidInputError: what is asked for cannot be had; what would do is named. Or the sums
            show what single clients hold.
    """
    spec, law, p = search.spec, search.law, search.spec.failure_probability
    if spec.tau is None:
        bought = search.for_bytes()
        design, plan = bought.design, bought.design.plan()
        rare = _checked(search, plan, design)
        check_learns(bought.linf)
        tau = max(bought.linf, min(_LARGEST_TAU, bought.names.least / 2))
        plan = replace(plan, target=make_target(tau, p, design.recovery))
        size = Size("budget", plan.rows, plan.width, None, _left_over(search, plan))
    else:
        search = search.least_private() if find_epsilon else search
        design = search.smallest()
        plan = design.plan()
        rare = _checked(search, plan, design)
        size = Size("model", plan.rows, plan.width)
    assert plan.target is not None
    target = replace(plan.target, frequencies=like)
    plan, length, threshold = replace(plan, target=target), search.name_length, 2 * target.linf
    alone = _in_one_release(search, plan)
    one = None
    if alone is not None:
        named = predict(alone, law, threshold, length, design.expected)
        one = (alone.bytes_per_client, named)
    return Proposal(
        plan,
        size,
        predict_linf(plan, law, design.recovery, p, expected=design.expected),
        law,
        "error" if spec.tau is None else "epsilon" if find_epsilon else "bytes",
        None,
        design.expected,
        design,
        rare,
        predict(plan, law, threshold, length, design.expected),
        one,
    )


def _in_one_release(search: Search, plan: Plan) -> Plan | None:
    """Return the plan of the same sketches with one release of noise.

    None where the plan has but one, or where no secure sum is as large as all rounds.
    """
    if plan.privacy is None or len(plan.releases) == 1:
        return None
    batches = plan.schedule.num_batches(plan.num_rounds)
    # collisions of hashes cancel over batches: a wider sketch has as few of them
    width = min(MAX_WIDTH, batches * plan.width)
    with suppress(InvalidInputError):
        shared = Schedule.parse("shared")
        return search.design(1).with_size(shared, plan.rows, width, plan.spelling).plan()
    return None


def _left_over(search: Search, plan: Plan) -> str:
    """Say so where more bytes would show more of single clients, and so are not used."""
    budget, used = search.spec.max_bytes or DEFAULT_MAX_BYTES, plan.bytes_per_client
    if plan.privacy is not None or search.allow_rare_names or used >= _USED * budget:
        return ""
    return Note(
        f"{used:,} of {budget:,} bytes are used: of more counters the sums would show more of what"
        f" single clients hold (with {opt.allow_rare_names(True)} they may)"
    )


def _checked(search: Search, plan: Plan, design: Design) -> RareNames | None:
    """Return what the smallest sum shows, refused if that is too much."""
    rare = of_plan(plan, design.sizes, design.people)
    if rare is not None and not search.allow_rare_names:
        rare.check()
    return rare
