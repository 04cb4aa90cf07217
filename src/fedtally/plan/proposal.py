"""A plan for a target, a fleet and frequencies, before any client is touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

from fedtally.base.encoding import Encoding
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.plan import MAX_CLIENTS, Plan, Target, encodings
from fedtally.plan.campaign import Campaign
from fedtally.plan.choice import best, descend, least, reach, smallest
from fedtally.plan.design import DEFAULT_MAX_BYTES, Chosen, Design, find_widest, round_size_bounds
from fedtally.plan.frequencies import hardest
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.names import Names
from fedtally.plan.paper import Size, minimax
from fedtally.plan.rare_names import RareNames
from fedtally.plan.request import CampaignSpec
from fedtally.plan.secure_sum import check_rounds, terms
from fedtally.plan.seeds import with_even_seed
from fedtally.plan.silos import error_of_number, fitting_numbers, in_ranges
from fedtally.plan.sizes import RISK, TOO_UNCERTAIN, UnreachableError
from fedtally.privacy.config import MAX_EPSILON, MIN_EPSILON
from fedtally.recovery.decoders import SIMPLEST, USUAL, Recovery
from fedtally.recovery.decoding import AUTO, kind_of, recovery_of
from fedtally.secagg.config import SecureSum
from fedtally.secagg.params import Adversary, corrupt_clients
from fedtally.sketch import Schedule

if TYPE_CHECKING:
    from fedtally.plan.bill import Bill
    from fedtally.plan.choice import Question
    from fedtally.plan.costs import Host

_NEIGHBOURS = (0.5, 2.0, 4.0)  # times the width
_SKETCHES = (0.5, 1.0, 2.0)  # times the counters of a histogram, for comparison
_WIDER = 1.1  # what is added where exact noise is larger than that of Gaussian accounting
_FEW = 20  # campaigns that say what other small sketches would do
_TRIED_SILOS, _MOST_TRIED = 12, 40  # numbers of silos that are tried where theirs does not fit
_NOTHING = 0.5  # an error of a frequency that tells nothing
_FIRST_TAU = 0.01  # for which the hardest frequencies are first taken, where bytes are given
_STEPS = 8  # of `_WIDER`, at the most
_TURNS = 3  # plan and hardest frequencies, found in turn
_PRECISION = 1.02  # of what is said to do instead
_MORE_CLIENTS = (100, 10, 3)  # times as many, that may do
_TRIES, _ENOUGH = 5, 1.1  # how often a value that falls short is raised, and how far first


class Way(NamedTuple):
    """One change with which a target is met.

    Attributes:
        what: "tau", "epsilon", "clients", "cohort" or "bytes".
        value: what it would have to be, rounded up to two digits.
        text: the same in words.
    """

    what: str
    value: float
    text: str


class OutOfReachError(UnreachableError):
    """No plan meets a draft's target; `unreachable` says what would.

    Attributes:
        draft: the plan that was to be.
        distribution: the frequencies for which it cannot be.
    """

    def __init__(self, draft: Design, distribution: Frequencies) -> None:
        super().__init__(f"tau {draft.spec.tau:g} {why_unreachable(draft)}")
        self.draft = draft
        self.distribution = distribution


class Shapes(NamedTuple):
    """What a plan does where the frequencies are others than those it is for.

    Attributes:
        hardest: the hardest frequencies for the plan, and the largest error for them.
        named: the largest error for those of `hardest.NAMED`.
    """

    hardest: hardest.Hardest
    named: Mapping[str, float]


@dataclass(frozen=True)
class Proposal:
    """A plan, and what is to be known of it.

    Attributes:
        plan: with its target.
        size: how rows and width came about; its message.
        linf: the predicted largest error, exceeded with `failure_probability`.
        distribution: of the frequencies for which that is predicted; where the target holds for any
            frequencies, the hardest ones.
        found: what was looked for: "bytes", "error" or "epsilon".
        minimax: the paper's size for the worst frequencies: rows, width, and bytes of a client;
            None where the domain is open.
        expected: how many frequencies are shares of: the clients, or the people expected in silos.
        draft: the design that the plan was searched for, with the seed of the plan.
        rare: what the sums show of rare names; None where noise bounds it, or no domain is open.
        names: those that are predicted to be read; None where no domain is open.
        one_release: of a plan with several releases of noise, what one release with the same
            sketches would read, and the bytes of a client; None where there is but one.
    """

    plan: Plan
    size: Size
    linf: float
    distribution: Frequencies
    found: str
    minimax: tuple[Size, int] | None
    expected: int
    draft: Design
    rare: RareNames | None = None
    names: Names | None = None
    one_release: tuple[int, Names] | None = None

    @property
    def target(self) -> Target:
        """What the plan is for."""
        assert self.plan.target is not None
        return self.plan.target

    def bill(self, host: Host | None = None, plan: Plan | None = None) -> Bill:
        """Return what the plan costs, or one of its neighbours, on a host."""
        from fedtally.plan.bill import bill

        people, chosen = self.expected if self.plan.is_of_silos else None, plan or self.plan
        return bill(chosen, host, recovery=self._decoder(chosen), people=people)

    def _decoder(self, plan: Plan) -> Recovery:
        """Return the decoder that answers; the plan may rest on another one."""
        return recovery_of(
            self.draft.spec.decoding.recovery,
            plan.domain_size,
            plan.rows,
            plan.encoding,
            batches=plan.schedule.num_batches(plan.num_rounds),
            planned=plan.is_open,
        )

    @property
    def is_for_any(self) -> bool:
        """Whether the target holds whatever the frequencies are."""
        return self.target.frequencies == hardest.ANY

    @cached_property
    def neighbours(self) -> tuple[tuple[Plan, float], ...]:
        """Plans of other widths, each with its predicted error.

        To predict them takes as long as to find the plan, so they wait until somebody asks.
        """
        is_for_any = self.is_for_any and not self.plan.is_open
        return tuple(neighbours_of(self.draft, self.plan, self.distribution, is_for_any=is_for_any))

    def shapes(self) -> Shapes | None:
        """Return what the same plan does where the frequencies are others.

        None where they do not matter, or where the domain is open.
        """
        if self.plan.is_open or self.plan.is_histogram:
            return None
        probability = self.target.failure_probability
        recovery, expected = self.target.recovery, self.expected
        worst = (
            hardest.Hardest(self.distribution, self.linf)
            if self.is_for_any
            else _hardest(self.draft, self.plan, probability)
        )
        others = {
            name: predict_linf(
                self.plan, distribution, recovery, probability, _FEW, expected=expected
            )
            for name, distribution in hardest.named(
                self.plan.domain_size, max_items=self.plan.max_items
            ).items()
        }
        return Shapes(worst, others)

    def usual(self) -> Plan | None:
        """Return the plan for the same target, if frequencies fell like i^-1.1.

        None if the target is not for any frequencies, if it was not given, or if clients hold
        several items: `--like` has names only for populations of one item a client.
        """
        draft = self.draft
        if self.plan.is_open or not self.is_for_any or self.plan.is_histogram:
            return None
        if draft.spec.tau is None or self.plan.max_items > 1:
            return None
        assumed = Frequencies.assumed(self.plan.domain_size, max_items=self.plan.max_items)
        return chosen_for(draft, assumed, with_linf=False)[0].plan()

    def relying_on(self, recovery: Recovery) -> Plan | None:
        """Return the plan for the same target that rests on this decoder, if it is smaller.

        None if a decoder is asked for or no target, if the shape of the frequencies is not known,
        or if this one would not decode the plan by default.

        Args:
            recovery: one of `recovery.decoding.resting`, in whose place plans rest on another one.
        """
        draft, decoding = self.draft, self.draft.spec.decoding
        if draft.spec.tau is None or decoding.recovery != AUTO or self.plan.is_histogram:
            return None
        if self.plan.is_open or not self.distribution.has_known_shape:
            return None
        spec = replace(draft.spec, decoding=replace(decoding, recovery=str(recovery)))
        try:
            plan = _made_for(replace(draft, spec=spec), self.distribution)[0]
        except InvalidInputError:  # the target is out of reach
            return None
        is_smaller = plan.bytes_per_client < self.plan.bytes_per_client
        return plan if is_smaller and self._decoder(plan) is recovery else None

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Return predicted errors against the bytes of a client.

        There is a curve of the plan's rows, and one of the paper's decoder. Beside a histogram it
        is that of the usual rows.
        """
        recovery, own = self.target.recovery, self.plan.rows
        if self.plan.is_histogram:
            recovery, own = USUAL, USUAL.kind.usual_rows
        paper = SIMPLEST[Encoding.SKETCH]
        rows = {recovery: own, paper: paper.kind.usual_rows}
        return {
            f"{recovery}, {number} rows": self._curve(recovery, number)
            for recovery, number in rows.items()
        }

    def _curve(self, recovery: str, rows: int) -> list[tuple[float, float]]:
        planned = Campaign.from_plan(self.plan, recovery)
        # an item that changes more counters needs more noise in each
        noise = planned.noise_of(rows) * math.sqrt(rows / self.plan.spec.touched)
        campaign = replace(planned, noise=noise, num_clients=self.expected, repeats=_FEW)
        cells = self.plan.rows * self.plan.width
        points = []
        for step in range(-4, 11):
            width = max(2, round(cells / rows * 2 ** (step / 2)))
            size = self.plan.bytes_per_client + (rows * width - cells) * self.plan.modulus_bits / 8
            points.append((size, self._linf(campaign, rows, width)))
        return [(size, error) for size, error in points if error > 0]

    def _linf(self, campaign: Campaign, rows: int, width: int) -> float:
        """Return the error of another size, for the same frequencies, or for the hardest."""
        p = self.target.failure_probability
        if not self.is_for_any:
            return campaign.linf(self.distribution, p, rows, width)
        return hardest.find_hardest(
            lambda distribution: campaign.modelled_linf(distribution, p, rows, width),
            self.plan.domain_size,
            self.expected,
            max_items=self.plan.max_items,
        ).linf


def propose(
    spec: CampaignSpec,
    domain: Domain,
    num_clients: int,
    distribution: Frequencies | None = None,
    *,
    seed: bytes,
    is_drawn: bool = False,
    find_epsilon: bool = False,
    like: str | None = None,
) -> Proposal:
    """Return a plan for a fleet; for an open domain `fedtally.plan.open_domain` does.

    Of tau, max_bytes and epsilon the spec says what is given. tau: the fewest bytes are found;
    max_bytes: the smallest error; both, and `find_epsilon`: the least epsilon. Without tau and
    max_bytes: the smallest error for the usual bytes.

    Args:
        spec: what is asked.
        domain: the candidates.
        num_clients: of all rounds together, each in one of them, drawn at random; or silos.
        distribution: what is known of the frequencies; None: nothing, so that the plan is for the
            hardest ones, and its target holds for any.
        seed: 32 bytes, of the hashes.
        is_drawn: whether nobody chose the seed: a small plan may then take a more even one.
        like: what is known, in a few words that the plan keeps beside its target.
        find_epsilon: whether the least epsilon is looked for; tau, max_bytes and some epsilon must
            be given, which is not taken.

    Raises:
        InvalidInputError: what is asked for cannot be had; the smallest changes with which it can
            are named.
    """
    draft = make_draft(spec, domain, num_clients, seed)
    try:
        return attempt(draft, distribution, is_drawn=is_drawn, find_epsilon=find_epsilon, like=like)
    except OutOfReachError as error:
        failed, law = error.draft, error.distribution

    def keeps(other: Design) -> bool:
        is_found = find_epsilon and _epsilon(other) == _epsilon(failed)  # else it is the change
        return _is_made(lambda: _make(other, distribution, find_epsilon=is_found))

    raise unreachable(failed, law, keeps)


def attempt(
    draft: Design,
    distribution: Frequencies | None = None,
    *,
    is_drawn: bool = False,
    find_epsilon: bool = False,
    like: str | None = None,
) -> Proposal:
    """Return the plan that `propose` returns, of a draft.

    Raises:
        OutOfReachError: no plan meets the target. What would is not looked for, which takes long.
        InvalidInputError: what is asked for cannot be had.
    """
    check_even_rounds(draft)
    spec, made = draft.spec, _make(draft, distribution, find_epsilon=find_epsilon)
    like = hardest.ANY if distribution is None else like
    draft, plan, distribution = made.draft, made.plan, made.distribution
    assert plan.target is not None
    if plan.is_histogram:  # its error is that of the noise, whatever the frequencies
        like = hardest.ANY
    if is_drawn:
        draft = with_even_seed(draft.like(plan))
    plan = replace(plan, target=replace(plan.target, frequencies=like), seed=draft.seed)
    return Proposal(
        plan,
        made.size,
        made.linf,
        distribution,
        "error" if spec.tau is None else "epsilon" if find_epsilon else "bytes",
        _minimax(draft, plan.schedule, max(spec.tau or made.linf, 1e-9)),
        draft.expected,
        draft,
    )


class _Made(NamedTuple):
    """A plan with its target, the draft it is of, and the frequencies with its error for them."""

    draft: Design
    plan: Plan
    size: Size
    linf: float
    distribution: Frequencies


def _make(draft: Design, distribution: Frequencies | None, *, find_epsilon: bool) -> _Made:
    """Return the plan for some frequencies, or (None) for any."""
    if distribution is None:
        return _for_any(draft, find_epsilon=find_epsilon)
    if find_epsilon:
        draft = _least_private(draft, distribution)
    return _Made(draft, *_made_for(draft, distribution), distribution)


def _epsilon(draft: Design) -> float | None:
    return None if draft.spec.privacy is None else draft.spec.privacy.epsilon


def _is_made(make: Callable[[], object]) -> bool:
    """Whether a plan can be made."""
    with suppress(InvalidInputError):
        make()
        return True
    return False


def _made_for(draft: Design, distribution: Frequencies) -> tuple[Plan, Size, float]:
    """Return the plan for some frequencies with its target, its size, and its error for them."""
    if draft.spec.tau is not None:
        # The error of the plan is predicted with its own noise.
        design, size = _chosen_for(draft, distribution, with_linf=False)
        plan, linf = _with_exact_noise(draft, design.plan(), distribution)
        return plan, size, linf
    design, size = _for_bytes(draft, distribution)
    plan, linf = _promising(draft, design.plan(), distribution)
    return plan, size, linf


def _promising(draft: Design, plan: Plan, distribution: Frequencies) -> tuple[Plan, float]:
    """Return a plan of given bytes with the target that it keeps, and its error."""
    p, recovery = draft.spec.failure_probability, recovery_with(draft, plan)
    linf = predict_linf(plan, distribution, recovery, p, expected=draft.expected)
    careful = predict_linf(plan, distribution, recovery, p * RISK, expected=draft.expected)
    check_learns(careful)
    return replace(plan, target=make_target(careful, p, recovery)), linf


def _for_any(draft: Design, *, find_epsilon: bool) -> _Made:
    """Return the plan whose target holds whatever the frequencies are: that for the hardest ones.

    The hardest frequencies depend on the plan, and the plan on them: both are found in turn.
    """
    spec = draft.spec
    careful = spec.failure_probability * RISK
    known = hardest.usual_plateau(
        spec.tau or _FIRST_TAU, draft.domain.size, max_items=spec.max_items
    )
    if spec.tau is None:
        return _for_any_of_bytes(draft, known)
    for _ in range(_TURNS):
        if find_epsilon:
            draft = _least_private(draft, known)
        plan, size, linf = _made_for(draft, known)
        if plan.is_histogram:
            return _Made(draft, plan, size, linf, known)
        worst = _hardest(draft, plan, careful)
        if worst.linf <= spec.tau:
            break
        known = worst.distribution
    # What is left is little where items are fitted. Near the place where that begins the error is
    # rough, so that one step may not lower it. The median's error falls as the width grows.
    steps = 0
    while worst.linf > spec.tau:
        is_smooth = not kind_of(draft.recovery).fits_items
        wider = max(_WIDER, worst.linf / spec.tau) if is_smooth else _WIDER
        plan = draft.with_size(plan.schedule, plan.rows, math.ceil(wider * plan.width)).plan()
        steps += 1
        is_dear = spec.max_bytes is not None and plan.bytes_per_client > spec.max_bytes
        if is_dear or steps > _STEPS:
            raise OutOfReachError(draft, worst.distribution)
        worst = _hardest(draft, plan, careful)
    return _Made(
        draft, plan, size, _linf_for_any(draft, plan, worst.distribution), worst.distribution
    )


def _linf_for_any(draft: Design, plan: Plan, worst: Frequencies) -> float:
    """Return the error of a plan whose hardest frequencies are known.

    Campaigns that are tried may fit the very items that the model takes for too rare to be seen. A
    few more of these are then hard, so that a trial of them alone would promise too much.
    """
    asked = (plan, worst, recovery_with(draft, plan), draft.spec.failure_probability)
    return max(
        predict_linf(*asked, 0, expected=draft.expected),
        predict_linf(*asked, tau=draft.spec.tau, expected=draft.expected),
    )


class _Tried(NamedTuple):
    """A plan that was looked at, and the hardest frequencies for it."""

    plan: Plan
    size: Size
    worst: hardest.Hardest


def _for_any_of_bytes(draft: Design, known: Frequencies) -> _Made:
    """Return the plan of given bytes with the smallest error for its hardest frequencies."""
    p, careful = draft.spec.failure_probability, draft.spec.failure_probability * RISK
    tried: dict[Chosen, _Tried] = {}
    for _ in range(_TURNS):
        design, size = _for_bytes(draft, known, compared=False)
        if design.chosen in tried:  # the hardest for it are known
            break
        plan = design.plan()
        if plan.is_histogram:
            plan, linf = _promising(draft, plan, known)
            return _Made(draft, plan, size, linf, known)
        tried[design.chosen] = _Tried(plan, size, _hardest(draft, plan, careful))
        known = tried[design.chosen].worst.distribution
    plan, size, worst = _nearby_for_any(draft, min(tried.values(), key=lambda one: one.worst.linf))
    # what it promises is predicted once the hardest are found
    recovery = recovery_with(draft, plan)
    tries = predict_linf(plan, worst.distribution, recovery, careful, expected=draft.expected)
    linf = max(worst.linf, tries)
    check_learns(linf)
    plan = replace(plan, target=make_target(linf, p, recovery))
    return _Made(
        draft, plan, size, _linf_for_any(draft, plan, worst.distribution), worst.distribution
    )


def _nearby_for_any(draft: Design, found: _Tried) -> _Tried:
    """Return the plan with the smallest error, of the schedules on the way down from one.

    The hardest frequencies for one schedule are not those for another. A schedule that is best for
    the former may be bad for its own.
    """
    question = draft.question(found.worst.distribution, draft.spec.rows)
    careful = draft.spec.failure_probability * RISK
    listed = list(question.schedules)

    @cache
    def tried(place: int) -> _Tried | None:
        if listed[place] == found.plan.schedule:
            return found
        only = replace(question, schedules=listed[place : place + 1])
        try:
            design, size = _best_sketch(draft, only)
        except InvalidInputError:  # the bytes buy none
            return None
        plan = design.plan()
        return _Tried(plan, size, _hardest(draft, plan, careful))

    def price(place: int) -> float:
        one = tried(place)
        return math.inf if one is None else one.worst.linf

    return tried(descend(price, listed.index(found.plan.schedule), len(listed))) or found


def _hardest(draft: Design, plan: Plan, probability: float) -> hardest.Hardest:
    """Return the hardest frequencies for a plan, and its error for them with a probability."""
    recovery = recovery_with(draft, plan)

    def linf(distribution: Frequencies) -> float:
        return predict_linf(plan, distribution, recovery, probability, 0, expected=draft.expected)

    return hardest.find_hardest(linf, plan.domain_size, draft.expected, max_items=plan.max_items)


def _with_exact_noise(draft: Design, plan: Plan, distribution: Frequencies) -> tuple[Plan, float]:
    """Return the plan, and its error.

    The plan is made wider where exact accounting asks for more noise than was planned with.
    """
    tau, budget, p = draft.spec.tau, draft.spec.max_bytes, draft.spec.failure_probability
    assert tau is not None
    recovery = recovery_with(draft, plan)
    linf = predict_linf(plan, distribution, recovery, p, tau=tau, expected=draft.expected)
    while linf > tau and not plan.is_histogram:  # the noise of a histogram is that of its plan
        before, wider = linf, math.ceil(_WIDER * plan.width)
        plan = draft.with_size(plan.schedule, plan.rows, wider).plan()
        linf = predict_linf(plan, distribution, recovery, p, tau=tau, expected=draft.expected)
        if linf > 0.999 * before or (budget is not None and plan.bytes_per_client > budget):
            raise OutOfReachError(draft, distribution)
    return plan, linf


def recovery_with(draft: Design, plan: Plan) -> str:
    """Return how the sums of a draft's plan are decoded."""
    return draft.spec.recovery_of(draft.domain.size, plan.rows, plan.encoding)


def make_draft(spec: CampaignSpec, domain: Domain, num_clients: int, seed: bytes) -> Design:
    """Return what is known of a plan for so many clients, over rounds drawn at random."""
    rounds = spec.num_rounds or 1
    if num_clients < rounds:
        raise InvalidInputError(
            f"{arg.num_rounds} must be at most the number of clients, {num_clients:,}, got"
            f" {rounds:,}"
        )
    if num_clients > MAX_CLIENTS:
        raise InvalidInputError(f"num_clients must be at most {MAX_CLIENTS:,}, got {num_clients:,}")
    sizes = _sizes(num_clients, rounds)
    if spec.silos is not None:
        spec.silos.check(num_clients)
    largest = num_clients
    if not spec.hides_clients:  # else how many there are in a round is hidden
        largest = min(num_clients, max(sizes[-1], round_size_bounds(num_clients / rounds)[1]))
    draft = Design(spec, domain, sizes, seed, (num_clients, largest), has_room=rounds > 1)
    if spec.silos is not None:
        _check_number_of_silos(draft)
    return draft


def check_even_rounds(draft: Design) -> None:
    """Refuse cohorts that were asked for, where they do not fit the rounds.

    A driver fills its rounds evenly: rounds of the usual size count, not those drawn at random.
    """
    clients, rounds = draft.clients[0], draft.num_rounds
    check_rounds(draft.spec.summation, [clients // rounds, -(-clients // rounds)])


def _check_number_of_silos(draft: Design) -> None:
    """Refuse a number of silos that no secure sum protects, and say which numbers fit."""
    summation = draft.spec.summation
    if summation.is_ideal:
        return
    try:  # neither length nor bits decide
        terms(summation, draft.sums(draft.example), 1, 1, signed=True)
    except InvalidInputError as error:
        number, rounds = draft.clients[0], draft.num_rounds
        adversary, borne = summation.adversary, summation.borne
        corrupt = corrupt_clients(summation.max_corrupt, number)
        most = min(max(_TRIED_SILOS, number), _MOST_TRIED)
        ways = ["have another number of them", f"lower {opt.max_dropout}"]
        if adversary is Adversary.ACTIVE:
            ways.append("choose the adversary semi-honest")
        if rounds > 1:
            ways = ["use one round", *ways]
        if summation.min_cohort is not None:
            ways = [f"raise {opt.cohort_min}", *ways]
        fitting = in_ranges(fitting_numbers(borne, adversary, corrupt, most))
        raise InvalidInputError(
            f"{number:,} silos{f' in {rounds} rounds' * (rounds > 1)} cannot be summed safely"
            f" against the adversary {adversary} with {opt.max_dropout(format(borne, 'g'))} and"
            f" {corrupt} corrupt: of up to {most} silos in a sum, {fitting} can;"
            f" {', or '.join(ways)}"
        ) from error


def _sizes(num_clients: int, rounds: int) -> list[int]:
    """Return sizes of rounds with the extreme ones among them, together all clients.

    >>> _sizes(40_000, 4)
    [9400, 10600, 10000, 10000]
    """
    if rounds == 1:
        return [num_clients]
    least = max(1, round_size_bounds(num_clients / rounds)[0])
    most = min(2 * num_clients // rounds - least, num_clients - least - (rounds - 2))
    others = num_clients - least - most
    if rounds == 2:
        return [least, num_clients - least]
    small, larger = divmod(others, rounds - 2)
    return [least, most] + [small + 1] * larger + [small] * (rounds - 2 - larger)


def predict_linf(
    plan: Plan,
    distribution: Frequencies,
    recovery: str,
    probability: float,
    repeats: int = Campaign.repeats,
    tau: float | None = None,
    expected: int | None = None,
) -> float:
    """Return the largest error that a plan is predicted to exceed with a probability.

    Args:
        plan: the campaign's.
        distribution: what is known of the frequencies.
        recovery: the name of a decoder.
        probability: in (0, 1).
        repeats: as in `Campaign`.
        tau: as in `Campaign.linf`.
        expected: how many frequencies are shares of; None: the clients of the plan.
    """
    campaign = replace(
        Campaign.from_plan(plan, recovery),
        num_clients=expected or plan.num_clients,
        repeats=repeats,
    )
    if plan.is_open:  # a campaign that is tried would look at all hashes, a hundred times
        linf = campaign.modelled_linf(distribution, probability, plan.rows, plan.width)
    else:
        linf = campaign.linf(distribution, probability, plan.rows, plan.width, tau)
    if not plan.is_of_silos:
        return linf
    stddev = campaign.noise_of(plan.rows) * math.sqrt(plan.num_rounds)
    return math.hypot(
        linf, error_of_number(distribution, stddev / campaign.num_clients, probability)
    )


def chosen_for(
    draft: Design, distribution: Frequencies, *, with_linf: bool = True
) -> tuple[Design, Size]:
    """Return what meets the draft's tau with the fewest bytes, and within max_bytes, if there are.

    Args:
        draft: the plan to be; it has a tau.
        distribution: what is known of the frequencies.
        with_linf: whether the size is to say its largest error.

    Raises:
        InvalidInputError: nothing does; what would is named.
    """

    def keeps(other: Design) -> bool:
        return _is_made(lambda: _chosen_for(other, distribution, with_linf=False))

    try:
        return _chosen_for(draft, distribution, with_linf=with_linf)
    except OutOfReachError as error:
        raise unreachable(error.draft, error.distribution, keeps) from None


def _chosen_for(
    draft: Design, distribution: Frequencies, *, with_linf: bool
) -> tuple[Design, Size]:
    """Return what `chosen_for` returns, or raise OutOfReachError."""
    spec = draft.spec
    assert spec.tau is not None
    if kind_of(draft.recovery).fits_items and distribution.uncertainty(spec.tau) > TOO_UNCERTAIN:
        with suppress(InvalidInputError):
            return _chosen_for_any(draft)
    exact = encodings.meets_target(draft)
    if spec.encoding is Encoding.HISTOGRAM:
        if exact is None:
            raise OutOfReachError(draft, distribution)
        return exact.design, exact.size
    if exact is None:
        return _sketch_for(draft, distribution, with_linf=with_linf)
    found = exact.design, exact.size
    try:
        design, size = _sketch_for(draft, distribution, with_linf=with_linf)
    except InvalidInputError:
        return found
    return found if exact.plan.bytes_per_client <= design.bytes_per_client else (design, size)


def _chosen_for_any(draft: Design) -> tuple[Design, Size]:
    """Return what meets the draft's tau whatever the frequencies, where a pilot tells too little.

    The worst case of the median decoder is much larger: joint recovery finds frequent items.
    """
    made = _for_any(draft, find_epsilon=False)
    plan = made.plan
    if plan.is_histogram:
        return draft.like(plan), made.size
    message = (
        f"the pilot does not tell the width for tau {draft.spec.tau:g}: the hardest frequencies are"
        " assumed, as without a pilot; take more clients"
    )
    size = Size(made.size.method, plan.rows, plan.width, made.linf, message)
    return draft.like(plan), size


def _sketch_for(
    draft: Design, distribution: Frequencies, *, with_linf: bool
) -> tuple[Design, Size]:
    """Return the sketch that meets the draft's tau, as `chosen_for` does."""
    spec = draft.spec
    assert spec.tau is not None
    question = draft.question(distribution, spec.rows)
    try:
        tau = draft.tau_of_sketch(distribution)
        schedule, size = smallest(question, tau, with_linf=with_linf)
        design = draft.with_size(schedule, size.rows, size.width)
        if spec.max_bytes is None or design.bytes_per_client <= spec.max_bytes:
            return design, size
        design, size = _sketch_for_bytes(draft, distribution)  # its margin is smaller
    except UnreachableError:
        raise OutOfReachError(draft, distribution) from None
    if (size.linf or 0.0) > spec.tau:
        raise OutOfReachError(draft, distribution)
    return design, size


def _for_bytes(
    draft: Design, distribution: Frequencies, *, compared: bool = True
) -> tuple[Design, Size]:
    """Return what has the smallest error within max_bytes, or the usual bytes.

    Args:
        draft: the plan to be.
        distribution: what is known of the frequencies.
        compared: whether neighbouring schedules are compared (`fedtally.plan.choice.best`).
    """
    return encodings.for_bytes(
        draft,
        DEFAULT_MAX_BYTES,
        lambda: _sketch_for_bytes(draft, distribution, compared=compared),
        lambda: distribution,
    )


def _sketch_for_bytes(
    draft: Design, distribution: Frequencies, *, compared: bool = True
) -> tuple[Design, Size]:
    """Return the sketch with the smallest error within max_bytes, or the usual bytes."""
    return _best_sketch(draft, draft.question(distribution, draft.spec.rows), compared=compared)


def _best_sketch(
    draft: Design, question: Question, *, compared: bool = False
) -> tuple[Design, Size]:
    budget = draft.spec.max_bytes or DEFAULT_MAX_BYTES
    schedule, size = best(question, budget, compared=compared)
    widest = find_widest(lambda width: draft.with_size(schedule, size.rows, width).plan(), budget)
    return draft.like(widest), replace(size, width=widest.width)


def check_learns(linf: float) -> None:
    """Refuse a plan whose frequencies may be off by so much that nothing is learnt."""
    if linf >= _NOTHING:
        raise InvalidInputError(
            f"with these bytes the error of a frequency may be {linf:.2g}: nothing could be"
            " learnt; give more bytes, more clients or a larger epsilon"
        )


def make_target(linf: float, probability: float, recovery: str) -> Target:
    """Return the target that a predicted error makes.

    It is rounded up to two digits, and at least 1e-9.
    """
    digits = 10.0 ** (math.floor(math.log10(max(linf, 1e-9))) - 1)
    return Target(
        float(f"{digits * math.ceil(max(linf, 1e-9) / digits):.3g}"), probability, recovery
    )


def neighbours_of(
    draft: Design, plan: Plan, distribution: Frequencies, *, is_for_any: bool = False
) -> Iterator[tuple[Plan, float]]:
    """Yield sketches of other widths, each with its predicted error.

    Beside a histogram they are sketches of about as many counters. Where the plan is for any
    frequencies, the error is that for those that are the hardest for the other sketch.
    """
    rows, schedule, own, factors = plan.rows, plan.schedule, plan.spelling, _NEIGHBOURS
    if plan.is_histogram:
        draft = _of_sketches(draft)
        rows, schedule, factors = kind_of(draft.recovery).usual_rows, draft.example, _SKETCHES
    sizes = {
        (
            max(1, round(factor * plan.width * plan.rows / rows)),
            None if own is None else replace(own, width=max(1, round(factor * own.width))),
        ): None
        for factor in factors
    }
    for width, spelling in sizes:  # a histogram of a few counters has equal ones
        with suppress(InvalidInputError):  # wider than a sketch may be
            other = draft.with_size(schedule, rows, width, spelling).plan()
            yield (
                other,
                _hardest(draft, other, draft.spec.failure_probability).linf
                if is_for_any
                else predict_linf(
                    other,
                    distribution,
                    draft.recovery,
                    draft.spec.failure_probability,
                    _FEW,
                    expected=draft.expected,
                ),
            )


def _of_sketches(draft: Design) -> Design:
    """Return the draft for sketches, whatever encoding and decoder are asked for."""
    decoding = replace(draft.spec.decoding, recovery=AUTO)
    return replace(draft, spec=replace(draft.spec, encoding=Encoding.SKETCH, decoding=decoding))


def _minimax(draft: Design, schedule: Schedule, tau: float) -> tuple[Size, int]:
    size = minimax(
        tau,
        num_clients=draft.expected,
        domain_size=draft.domain.size,
        p=draft.spec.failure_probability,
    )
    return size, draft.bytes_of()(size.rows, size.width, schedule)


# ---- what is out of reach ----


def _least_private(draft: Design, distribution: Frequencies) -> Design:
    """Return the draft with the least epsilon, of two digits, that meets its tau.

    Its sketch keeps max_bytes.
    """
    if draft.spec.privacy is None:
        raise InvalidInputError(
            "where epsilon is to be found, ask for privacy with any epsilon: it is replaced"
        )
    found = least(
        lambda x: reaches(asking(draft, epsilon=x), distribution),
        MIN_EPSILON,
        MAX_EPSILON,
        _PRECISION,
    )
    if found is None:
        draft = asking(draft, epsilon=MAX_EPSILON)
        raise OutOfReachError(draft, distribution)
    return asking(draft, epsilon=float(rounded_up(found)))


def reaches(draft: Design, distribution: Frequencies) -> bool:
    """Whether some sketch meets the draft's tau, within max_bytes if there are.

    Only the usual rows are tried, to be quick. A histogram needs no such search.
    """
    return _sketch_reaches(draft, distribution) or encodings.meets_target(draft) is not None


def _sketch_reaches(draft: Design, distribution: Frequencies) -> bool:
    """Whether some sketch does what `reaches` asks."""
    if draft.spec.encoding is Encoding.HISTOGRAM:
        return False
    rows = draft.spec.rows or kind_of(draft.recovery).usual_rows
    try:
        tau = draft.tau_of_sketch(distribution)
    except UnreachableError:
        return False
    return reach(draft.question(distribution, rows), rows, draft.spec.max_bytes) <= tau


def unreachable(
    draft: Design, distribution: Frequencies, keeps: Callable[[Design], bool] = lambda _: True
) -> InvalidInputError:
    """Return the error for a target out of reach, with the smallest changes that help.

    Args:
        draft: the plan that was to be.
        distribution: the frequencies for which it cannot be.
        keeps: whether a plan can be made of another draft; without it, what looks enough is named.
    """
    ways = ways_out([way.text for way in ways_to_meet(draft, distribution, keeps)])
    return InvalidInputError(f"tau {draft.spec.tau:g} {why_unreachable(draft)}; {ways}")


def ways_out(ways: Sequence[str]) -> str:
    """Return which changes would do, each by itself, in words.

    >>> ways_out(["tau 0.1"]), ways_out(["tau 0.1", "900 bytes"])
    ('this would do: tau 0.1', 'any of these would do: tau 0.1; 900 bytes')
    """
    if not ways:
        return "no single change of it would do"
    return f"{'any of these' if len(ways) > 1 else 'this'} would do: {'; '.join(ways)}"


def why_unreachable(draft: Design) -> str:
    """Return with what a target cannot be met, in words."""
    spec, clients = draft.spec, f"{draft.clients[0]:,} clients"
    if spec.silos is not None:
        clients = f"{draft.clients[0]:,} silos and {draft.expected:,} people"
    within = "" if spec.max_bytes is None else f" within {spec.max_bytes:,} bytes"
    if spec.privacy is None:
        return f"cannot be met with {clients}{within}"
    epsilon = spec.privacy.epsilon
    at = f"any epsilon up to {MAX_EPSILON:g}" if epsilon == MAX_EPSILON else f"epsilon {epsilon:g}"
    return f"cannot be met at {at} with {clients}{within}"


def ways_to_meet(
    draft: Design, distribution: Frequencies, keeps: Callable[[Design], bool] = lambda _: True
) -> Iterator[Way]:
    """Yield the smallest changes, one at a time, with which a draft's target is met.

    Only the usual rows are tried, as by `reaches`, and what looks enough is then asked for.

    Args:
        draft: the plan that was to be.
        distribution: the frequencies for which it cannot be.
        keeps: whether a plan can be made of another draft; by default what looks enough is one.
    """
    spec, tau = draft.spec, draft.spec.tau
    assert tau is not None

    def law(error: float) -> Frequencies:  # of another error, other frequencies are the hardest
        if not distribution.is_hardest:
            return distribution
        return hardest.usual_plateau(error, draft.domain.size, max_items=spec.max_items)

    def least_with(
        changed: Callable[[float], Design],
        low: float,
        high: float,
        law: Callable[[float], Frequencies] = lambda _: distribution,
    ) -> float | None:
        def suffices(value: float) -> bool:
            try:
                other = changed(value)
            except InvalidInputError:  # more clients than one sum may have
                return False
            return reaches(other, law(value))

        found = least(suffices, low, high, _PRECISION)
        return None if found is None else _enough(lambda x: keeps(changed(x)), found, high)

    best = least_with(lambda x: asking(draft, tau=x), tau, 0.5, law)
    if best is not None:
        yield _way("tau", best, "tau {}")
    if spec.privacy is not None:
        now = spec.privacy.epsilon
        epsilon = least_with(lambda x: asking(draft, epsilon=x), now, MAX_EPSILON)
        if epsilon is not None:
            yield _way("epsilon", epsilon, "epsilon {}")
    few = draft.clients[0]
    for times in _MORE_CLIENTS:
        most = min(MAX_CLIENTS, times * few)
        clients = least_with(lambda x: of_clients(draft, math.ceil(x)), few, most)
        if clients is not None:
            unit = "clients" if spec.silos is None else "silos of as many people each"
            yield _way("clients", clients, f"{{:,}} {unit}")
            break
    most, whole = spec.summation.most_clients, draft.clients[1]
    # Of secagg each cohort is opened, and each with the noise of a whole: fewer and larger ones
    # have less.
    is_split = spec.summation.method is SecureSum.SECAGG and whole > most
    if is_split and spec.is_private and spec.summation.min_cohort is None:
        cohort = least_with(lambda x: of_cohort(draft, math.ceil(x)), most, whole)
        if cohort is not None:
            yield _way("cohort", cohort, f"cohorts of up to {{:,}} ({opt.max_cohort})")
    if spec.max_bytes is not None and spec.encoding is not Encoding.HISTOGRAM:
        with suppress(UnreachableError):
            question = draft.question(distribution, spec.rows)
            left = draft.tau_of_sketch(distribution)
            schedule, size = smallest(question, left, with_linf=False)
            cost = _enough(
                lambda x: keeps(of_bytes(draft, math.ceil(x))), question.cost(schedule, size)
            )
            if cost is not None:
                yield _way("bytes", cost, "{:,} bytes")


def _enough(keeps: Callable[[float], bool], value: float, most: float = math.inf) -> float | None:
    """Return about the least value of two digits that does, from one on that looks enough.

    None where none is found. Few are asked for, since each takes as long as a plan.

    >>> _enough(lambda value: value > 131, 120.4), _enough(lambda value: value > 131, 120.4, 125)
    (140.0, None)
    """
    few, factor = 0.0, _ENOUGH
    for _ in range(_TRIES):
        value = float(rounded_up(value))
        if value > most:
            return None
        if keeps(value):
            middle = float(rounded_up(math.sqrt(few * value or value**2)))
            return middle if middle < value and keeps(middle) else value
        few, value, factor = value, value * factor, factor**2  # twice as far each time
    return None


def _way(what: str, value: float, text: str) -> Way:
    """Return a way whose value is rounded up, and written where the text has braces."""
    rounded = rounded_up(value)
    is_whole = "," in text
    return Way(what, float(rounded), text.format(int(float(rounded)) if is_whole else rounded))


def asking(draft: Design, *, tau: float | None = None, epsilon: float | None = None) -> Design:
    """Return the draft with another target, or another epsilon."""
    spec = draft.spec if tau is None else replace(draft.spec, tau=tau)
    if epsilon is not None:
        assert spec.privacy is not None
        spec = replace(spec, privacy=replace(spec.privacy, epsilon=epsilon))
    return replace(draft, spec=spec)


def of_clients(draft: Design, num_clients: int) -> Design:
    """Return the draft for so many clients, or silos of as many people each."""
    spec = draft.spec
    if spec.silos is not None and spec.silos.expected is not None:
        expected = -(-spec.silos.expected * num_clients // draft.clients[0])
        spec = replace(spec, silos=replace(spec.silos, expected=expected))
    if spec.privacy is not None and spec.privacy.max_clients is not None:
        spec = replace(spec, privacy=replace(spec.privacy, max_clients=num_clients))
    return make_draft(spec, draft.domain, num_clients, draft.seed)


def of_bytes(draft: Design, max_bytes: int) -> Design:
    """Return the draft with other bytes."""
    return replace(draft, spec=replace(draft.spec, max_bytes=max_bytes))


def of_cohort(draft: Design, most: int) -> Design:
    """Return the draft with cohorts of up to so many clients."""
    spec = replace(draft.spec, summation=replace(draft.spec.summation, max_cohort=most))
    return make_draft(spec, draft.domain, draft.clients[0], draft.seed)


def rounded_up(number: float) -> str:
    """Return a number rounded up to two digits."""
    digits = 10.0 ** (math.floor(math.log10(number)) - 1)
    return f"{digits * math.ceil(number / digits * (1 - 1e-12)):.12g}"
