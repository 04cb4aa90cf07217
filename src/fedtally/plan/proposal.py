"""Propose a plan for a target error, a fleet of clients and frequencies, before the campaign."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from fedtally.base.encoding import Encoding
from fedtally.domain import Domain, OpenStrings
from fedtally.errors import InvalidInputError, Note, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import Plan, Target, open_domain
from fedtally.plan.chosen_decoder import decoder_of
from fedtally.plan.design import DEFAULT_MAX_BYTES, Design
from fedtally.plan.encodings import histogram
from fedtally.plan.frequencies import hardest
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.open_guesses import Wanted, of_rounds
from fedtally.plan.paper import Size, minimax
from fedtally.plan.predictor import Predictor, predict_linf
from fedtally.plan.rare_names import RareNames
from fedtally.plan.readable_names import Names, assumed, predict
from fedtally.plan.request import CampaignSpec
from fedtally.plan.search import (
    Made,
    OutOfReachError,
    check_learns,
    for_any,
    for_frequencies,
    hardest_for,
    is_made,
    least_epsilon,
    make_target,
)
from fedtally.plan.seeds import even_seed
from fedtally.plan.ways import smallest_or_ways, unreachable
from fedtally.recovery.decoders import SIMPLEST, USUAL, Recovery
from fedtally.recovery.decoding import AUTO, kind_of
from fedtally.sketch import Schedule

if TYPE_CHECKING:
    from fedtally.plan.bill import Bill
    from fedtally.plan.costs import Host

_NEIGHBOURS = (0.5, 2.0, 4.0)  # widths of compared sketches, as multiples of the plan's width
_SKETCHES = (0.5, 1.0, 2.0)  # counters of compared sketches, as multiples of a histogram's
_USED = 0.9  # if a plan uses less than this share of the bytes, a message says why
NAMES = Wanted()
_FEW = 20  # the number of trial campaigns that predict the error of another small sketch


class Shapes(NamedTuple):
    """The largest errors of a plan for other frequencies than it was made for.

    Attributes:
        hardest: the hardest frequencies for the plan, and its largest error for them.
        named: the plan's largest error for each shape of frequencies in `hardest.NAMED`, by name.
    """

    hardest: hardest.Hardest
    named: Mapping[str, float]


@dataclass(frozen=True)
class Proposal:
    """A proposed plan, with its predicted error and other predictions.

    Attributes:
        plan: the plan with its target.
        size: the way in which rows and width were chosen, with a message for the user.
        linf: the predicted largest error, exceeded with `failure_probability`.
        distribution: the frequencies for which the error is predicted; the hardest ones if the
            target holds for any frequencies.
        found: the quantity that was searched for: "bytes", "error" or "epsilon".
        minimax: the paper's size for the worst frequencies, and its upload bytes per client; None
            if the domain is open.
        expected: the number that frequencies are shares of: the clients, or the people expected in
            silos.
        design: the design from which the plan was made, with its seed.
        rare: the size of the smallest sum, which shows rare names; None if the sums have noise or
            the domain is not open.
        names: the names that are predicted to be read; None if the domain is not open.
        one_release: the upload bytes per client and the predicted names, if all rounds were added
            up and noised only once; None if the plan has only one release.
    """

    plan: Plan
    size: Size
    linf: float
    distribution: Frequencies
    found: str
    minimax: tuple[Size, int] | None
    expected: int
    design: Design
    rare: RareNames | None = None
    names: Names | None = None
    one_release: tuple[int, Names] | None = None

    @property
    def target(self) -> Target:
        """The target error of the plan."""
        assert self.plan.target is not None
        return self.plan.target

    @cached_property
    def histogram_linf(self) -> float | None:
        """The predicted largest error of a histogram that is as private as the plan's sketch.

        It is None if the plan is already a histogram, has no privacy, or cannot be a histogram.
        """
        if not self.plan.vector.shares_counters or self.plan.privacy is None:
            return None
        size = replace(self.design.spec.size, encoding=Encoding.HISTOGRAM, rows=None)
        spec = replace(self.design.spec, size=size)  # even if the request names the sketch
        try:
            whole = histogram(replace(self.design, spec=spec))
        except InvalidInputError:
            return None
        return None if whole is None or whole.origin is None else whole.origin.linf

    def bill(self, host: Host | None = None, plan: Plan | None = None) -> Bill:
        """Return the predicted cost of the plan, or of another given plan, on a host."""
        from fedtally.plan.bill import bill

        chosen = plan or self.plan
        return bill(chosen, host, recovery=self._decoder(chosen), people=self.expected)

    def _decoder(self, plan: Plan) -> Recovery:
        """Return the decoder of the answer; the plan may be made for the errors of another one."""
        asked, batches = self.design.spec.decoding, plan.schedule.num_batches(plan.num_rounds)
        return decoder_of(plan, asked.recovery, batches)

    @property
    def is_for_any(self) -> bool:
        """Whether the target holds for any frequencies."""
        return self.target.frequencies == hardest.ANY

    @property
    def has_shapes(self) -> bool:
        """Whether the error depends on the frequencies of listed candidates."""
        return self.names is None and self.plan.vector.shares_counters

    @cached_property
    def neighbours(self) -> tuple[tuple[Plan, float], ...]:
        """Plans of other widths, each with its predicted largest error.

        They are computed on first use, because this takes as long as finding the plan.
        """
        is_for_any = self.is_for_any and self.names is None
        return tuple(
            neighbours_of(self.design, self.plan, self.distribution, is_for_any=is_for_any)
        )

    def shapes(self) -> Shapes | None:
        """Return the errors of the plan for other frequencies.

        None if the error does not depend on frequencies, or if the domain is open.
        """
        if not self.has_shapes:
            return None
        probability = self.target.failure_probability
        recovery, expected = self.target.recovery, self.expected
        worst = (
            hardest.Hardest(self.distribution, self.linf)
            if self.is_for_any
            else hardest_for(self.design, self.plan, probability)
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
        """Return the plan for the same target and for assumed frequencies: i^-1.1 at rank i.

        None if the plan's target is not for any frequencies, if its error does not depend on them,
        or if no tau was requested. None also if clients hold several items: `--like` has names only
        for populations with one item per client.
        """
        design = self.design
        if not self.has_shapes or not self.is_for_any:
            return None
        if design.spec.tau is None or self.plan.max_items > 1:
            return None
        assumed = Frequencies.assumed(self.plan.domain_size, max_items=self.plan.max_items)
        return smallest_or_ways(design, assumed, with_linf=False).plan()

    def relying_on(self, recovery: Recovery) -> Plan | None:
        """Return a smaller plan for the same target, made for the errors of the decoder `recovery`.

        None if no such plan is smaller, if the request names a decoder or has no tau, or if the
        shape of the frequencies is not known. None also if `recovery` would not be the default
        decoder of the smaller plan.

        Args:
            recovery: a decoder of `recovery.decoding.resting`: by default, plans are made for the
                errors of another decoder instead.
        """
        design, decoding = self.design, self.design.spec.decoding
        if design.spec.tau is None or decoding.recovery != AUTO or not self.has_shapes:
            return None
        if not self.distribution.has_known_shape:
            return None
        spec = replace(design.spec, decoding=replace(decoding, recovery=str(recovery)))
        try:
            plan = for_frequencies(replace(design, spec=spec), self.distribution).plan
        except InvalidInputError:  # no plan meets the target
            return None
        is_smaller = plan.bytes_per_client < self.plan.bytes_per_client
        return plan if is_smaller and self._decoder(plan) is recovery else None

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Return curves of the predicted largest error, as points (upload bytes per client, error).

        The first curve is for the plan's decoder and number of rows, the second for the paper's
        decoder. If the plan has a histogram, the first curve is for sketches with the usual decoder
        and number of rows. The keys name decoder and rows.
        """
        recovery, own = self.target.recovery, self.plan.rows
        if not self.plan.vector.shares_counters:
            recovery, own = USUAL, USUAL.kind.usual_rows
        paper = SIMPLEST[Encoding.SKETCH]
        rows = {recovery: own, paper: paper.kind.usual_rows}
        return {
            f"{recovery}, {number} rows": self._curve(recovery, number)
            for recovery, number in rows.items()
        }

    def _curve(self, recovery: str, rows: int) -> list[tuple[float, float]]:
        planned = Predictor.from_plan(self.plan, recovery)
        # an item that changes more counters needs more noise in each
        noise = planned.noise_of(rows) * math.sqrt(rows / self.plan.spec.touched)
        predictor = replace(planned, noise=noise, num_clients=self.expected).with_repeats(_FEW)
        cells = self.plan.rows * self.plan.width
        points = []
        for step in range(-4, 11):
            width = max(2, round(cells / rows * 2 ** (step / 2)))
            size = self.plan.bytes_per_client + (rows * width - cells) * self.plan.modulus_bits / 8
            points.append((size, self._linf(predictor, rows, width)))
        return [(size, error) for size, error in points if error > 0]

    def _linf(self, predictor: Predictor, rows: int, width: int) -> float:
        """Return the error of a sketch of another size, for the same frequencies or the hardest."""
        p = self.target.failure_probability
        if not self.is_for_any:
            return predictor.linf(self.distribution, p, rows, width)
        return hardest.find_hardest(
            lambda distribution: predictor.modelled_linf(distribution, p, rows, width),
            self.plan.domain_size,
            self.expected,
            max_items=self.plan.max_items,
        ).linf


def propose(
    spec: CampaignSpec,
    domain: Domain,
    num_clients: int,
    frequencies: Frequencies | None = None,
    *,
    seed: bytes,
    is_drawn: bool = False,
    find_epsilon: bool = False,
    like: str | None = None,
    wanted: Wanted = NAMES,
) -> Proposal:
    """Return a plan for a fleet of clients.

    The arguments in the spec decide what the plan minimises:

    - tau: the bytes;
    - max_bytes: the error;
    - tau and max_bytes, with `find_epsilon`: the epsilon;
    - neither tau nor max_bytes: the error for the default bytes.

    Args:
        spec: the resolved request.
        domain: the candidates.
        num_clients: the number of clients of all rounds together, each in one round drawn at
            random; or the number of silos.
        frequencies: the known frequencies. None: nothing is known; then the plan is made for the
            hardest frequencies, and its target holds for any. For an open domain it is then made
            for assumed frequencies.
        seed: the 32 bytes from which the hashes are derived.
        is_drawn: whether the seed was drawn at random: then a small plan may take another, more
            even seed (`plan.seeds`).
        like: a few words that name the frequencies, which the plan keeps beside its target.
        find_epsilon: whether to search for the least epsilon. Then tau, max_bytes and some epsilon,
            which is replaced, must be given.
        wanted: the names that are to be read, if the domain is open.

    Raises:
        InvalidInputError: no plan does what is requested; the message names the smallest changes
            that help.
    """
    design = Design.for_fleet(spec, domain, num_clients, seed)
    if isinstance(domain, OpenStrings):
        law, spare = frequencies, 1.0
        if law is None:
            law, spare = assumed(domain, spec.max_items), wanted.spare
        wanted = replace(wanted, spare=spare)
        return for_strings(design, law, wanted, find_epsilon=find_epsilon, like=like)
    try:
        return attempt(design, frequencies, is_drawn=is_drawn, find_epsilon=find_epsilon, like=like)
    except OutOfReachError as error:
        failed, known = error.design, error.frequencies

    def keeps(other: Design) -> bool:
        # if the tried change is another epsilon, this epsilon must suffice: do not search for one
        is_found = find_epsilon and _epsilon(other) == _epsilon(failed)
        return is_made(lambda: _make(other, frequencies, find_epsilon=is_found))

    raise unreachable(failed, known, keeps)


def attempt(
    design: Design,
    frequencies: Frequencies | None = None,
    *,
    is_drawn: bool = False,
    find_epsilon: bool = False,
    like: str | None = None,
) -> Proposal:
    """Return the plan that `propose` returns, from a design instead of a spec.

    Raises:
        OutOfReachError: no plan meets the target. Changes that would help are not searched for,
            because this takes long.
        InvalidInputError: no plan does what is requested.
    """
    design.check_even_rounds()
    spec, made = design.spec, _make(design, frequencies, find_epsilon=find_epsilon)
    like = hardest.ANY if frequencies is None else like
    design, plan, frequencies = made.design, made.plan, made.frequencies
    assert plan.target is not None
    if not plan.vector.shares_counters:  # the error is only noise, whatever the frequencies are
        like = hardest.ANY
    if is_drawn:
        design = design.with_seed(even_seed(design.plan(), design.domain))
    plan = replace(plan, target=replace(plan.target, frequencies=like), seed=design.seed)
    return Proposal(
        plan,
        design.sizing,
        made.linf,
        frequencies,
        "error" if spec.tau is None else "epsilon" if find_epsilon else "bytes",
        _minimax(design, plan.schedule, max(spec.tau or made.linf, 1e-9)),
        design.expected,
        design,
    )


def for_strings(
    design: Design,
    law: Frequencies,
    wanted: Wanted,
    *,
    find_epsilon: bool = False,
    like: str | None = None,
) -> Proposal:
    """Return a plan for a fleet with an open domain: nobody has the list of strings.

    With a tau the plan has the fewest bytes (`open_domain.smallest`). With tau, max_bytes and
    `find_epsilon` it has the least epsilon. Without a tau it has about the smallest error within
    the bytes (`open_domain.best`).

    Args:
        design: the design; it has one round if the number of rounds is to be chosen.
        law: the frequencies of the strings.
        wanted: the names that are to be read.
        find_epsilon: whether to search for the least epsilon, as for `propose`.
        like: a few words that name the frequencies, which the plan keeps beside its target.

    Raises:
        InvalidInputError: no plan does what is requested, and the message names changes that help;
            or the sums would show the items of single clients.
    """
    spec, p = design.spec, design.spec.failure_probability
    if find_epsilon:
        design = open_domain.least_epsilon(design, law, wanted)
    design, target, size, rare = _size_for_strings(design, law, wanted)
    target = replace(target, frequencies=like)
    plan, expected = replace(design.plan(), target=target), design.expected
    return Proposal(
        plan,
        size,
        predict_linf(plan, law, design.recovery, p, expected=expected),
        law,
        "error" if spec.tau is None else "epsilon" if find_epsilon else "bytes",
        None,
        expected,
        design,
        rare,
        predict(plan, law, 2 * target.linf, wanted.length, expected),
        _in_one_release(design, plan, law, wanted),
    )


def _size_for_strings(
    design: Design, law: Frequencies, wanted: Wanted
) -> tuple[Design, Target, Size, RareNames | None]:
    """Return the design with a size, its target, the origin of the size, and the smallest sum."""
    p = design.spec.failure_probability
    if design.spec.tau is not None:
        design = open_domain.smallest(design, law, wanted)
        rare, plan = open_domain.checked(design, allow_rare=wanted.allow_rare), design.plan()
        assert plan.target is not None
        return design, plan.target, Size("model", plan.rows, plan.width), rare
    design, linf, names = open_domain.best(design, law, wanted)
    rare, plan = open_domain.checked(design, allow_rare=wanted.allow_rare), design.plan()
    check_learns(linf)
    tau = max(linf, min(open_domain.LARGEST_TAU, names.least / 2))
    size = Size("budget", plan.rows, plan.width, None, _left_over(design, plan, wanted))
    return design, make_target(tau, p, design.recovery), size, rare


def _left_over(design: Design, plan: Plan, wanted: Wanted) -> str:
    """Return a note if bytes are left unused, as more counters would show more of single clients.

    Otherwise return "".
    """
    budget, used = design.spec.size.max_bytes or DEFAULT_MAX_BYTES, plan.bytes_per_client
    if plan.privacy is not None or wanted.allow_rare or used >= _USED * budget:
        return ""
    return Note(
        f"{used:,} of {budget:,} bytes are used: of more counters the sums would show more of what"
        f" single clients hold (with {opt.allow_rare_names(True)} they may)"
    )


def _in_one_release(
    design: Design, plan: Plan, law: Frequencies, wanted: Wanted
) -> tuple[int, Names] | None:
    """Return the upload bytes and predicted names if all rounds of a private plan were one release.

    None if the plan is not private or has one release already, or if no secure sum is so large.
    """
    if plan.privacy is None or len(plan.releases) == 1:
        return None
    assert plan.target is not None
    with suppress(InvalidInputError):  # no secure sum is as large as all rounds
        alone = of_rounds(design, 1)
        # collisions cancel over several batches: one batch needs a wider sketch for the same effect
        width = min(MAX_WIDTH, plan.schedule.num_batches(plan.num_rounds) * plan.width)
        shared = Schedule.parse("shared")
        one = alone.with_size(shared, plan.rows, width, plan.spelling).plan()
        names = predict(one, law, 2 * plan.target.linf, wanted.length, design.expected)
        return one.bytes_per_client, names
    return None


def _make(design: Design, frequencies: Frequencies | None, *, find_epsilon: bool) -> Made:
    """Return the plan for given frequencies; None: for any frequencies."""
    if frequencies is None:
        return for_any(design, find_epsilon=find_epsilon)
    if find_epsilon:
        design = least_epsilon(design, frequencies)
    return for_frequencies(design, frequencies)


def _epsilon(design: Design) -> float | None:
    return None if design.spec.privacy is None else design.spec.privacy.epsilon


def neighbours_of(
    design: Design, plan: Plan, frequencies: Frequencies, *, is_for_any: bool = False
) -> Iterator[tuple[Plan, float]]:
    """Yield plans with sketches of other widths, each with its predicted largest error.

    If the plan has a histogram, the sketches have 0.5 to 2 times its counters. If the plan is for
    any frequencies, the error of each sketch is for the frequencies that are hardest for it.
    """
    rows, schedule, own, factors = plan.rows, plan.schedule, plan.spelling, _NEIGHBOURS
    if not plan.vector.shares_counters:
        design = _of_sketches(design)
        rows, schedule, factors = kind_of(design.recovery).usual_rows, design.example, _SKETCHES
    sizes = {
        (
            max(1, round(factor * plan.width * plan.rows / rows)),
            None if own is None else replace(own, width=max(1, round(factor * own.width))),
        ): None
        for factor in factors
    }
    for width, spelling in sizes:  # each size once: for a small histogram some are equal
        with suppress(InvalidInputError):  # the width exceeds the limit
            other = design.with_size(schedule, rows, width, spelling).plan()
            yield (
                other,
                hardest_for(design, other, design.spec.failure_probability, near=frequencies).linf
                if is_for_any
                else predict_linf(
                    other,
                    frequencies,
                    design.recovery,
                    design.spec.failure_probability,
                    _FEW,
                    expected=design.expected,
                ),
            )


def _of_sketches(design: Design) -> Design:
    """Return the design for sketches, even if the request names another encoding and decoder."""
    decoding = replace(design.spec.decoding, recovery=AUTO)
    spec = replace(design.spec.with_encoding(Encoding.SKETCH), decoding=decoding)
    return replace(design, spec=spec)


def _minimax(design: Design, schedule: Schedule, tau: float) -> tuple[Size, int]:
    size = minimax(
        tau,
        num_clients=design.expected,
        domain_size=design.domain.size,
        p=design.spec.failure_probability,
    )
    return size, design.bytes_of(size.rows, size.width, schedule)
