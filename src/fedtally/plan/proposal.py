"""The proposal of a plan that meets a target error, or stays within a budget of bytes.

It is made before the campaign, from the number of clients and from frequencies, if any are known.
"""

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

_NEIGHBOURS = (0.5, 2.0, 4.0)  # `neighbours_of`: widths, as multiples of the plan's width
_SKETCHES = (0.5, 1.0, 2.0)  # `neighbours_of`: counters, as multiples of a histogram's counters
_USED = 0.9  # if a plan uses less than this share of the bytes, a message says why
NAMES = Wanted()
_FEW = 20  # the number of simulated campaigns for comparisons: few, because there are many of them


class Shapes(NamedTuple):
    """The predicted largest errors of a plan for several frequencies.

    Attributes:
        hardest: the hardest frequencies for the plan, with the plan's largest error for them.
        named: the plan's largest error for each distribution in `hardest.NAMED`, by name.
    """

    hardest: hardest.Hardest
    named: Mapping[str, float]


@dataclass(frozen=True)
class Proposal:
    """A proposed plan, with the predicted error and other predictions.

    Attributes:
        plan: the plan, with its target.
        size: how rows and width were chosen, with a message for the user. Its rows and width are
            the plan's; its error may be None, and `linf` is the plan's.
        linf: the predicted largest error; it is exceeded with the plan's `failure_probability`.
        distribution: the frequencies for which the error is predicted. If the target holds for any
            frequencies, these are the hardest frequencies. For a histogram of persons they mean
            nothing, because its error does not depend on the frequencies.
        found: the quantity that was made as small as possible: "bytes", "error" or "epsilon".
        minimax: the paper's size for the worst frequencies, and the bytes that a client then
            uploads; None if the domain is open.
        expected: the number by which counts are divided to get frequencies: the number of clients,
            or of the people expected in all silos.
        design: the design from which the plan was made, with its seed.
        rare: the smallest sum, which shows rare strings; None if sums have noise, or if the domain
            is not open.
        names: the names that are predicted to be read; None if the domain is not open.
        one_release: the bytes that a client would upload, and the names that would probably be
            read, if all rounds were added up and noised only once. None if the plan has no privacy,
            if the plan already opens a single sum, or if no plan with a single sum is possible.
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
        """The target of the plan: the largest error that it was made for."""
        assert self.plan.target is not None
        return self.plan.target

    @cached_property
    def histogram_linf(self) -> float | None:
        """The predicted largest error of a histogram with the same privacy guarantee as the plan.

        It is None if the plan itself has a histogram, has no privacy, or cannot have a histogram.
        """
        if not self.plan.vector.shares_counters or self.plan.privacy is None:
            return None
        size = replace(self.design.spec.size, encoding=Encoding.HISTOGRAM, rows=None)
        spec = replace(self.design.spec, size=size)  # a request for a sketch is ignored here
        try:
            whole = histogram(replace(self.design, spec=spec))
        except InvalidInputError:
            return None
        return None if whole is None or whole.origin is None else whole.origin.linf

    def bill(self, host: Host | None = None, plan: Plan | None = None) -> Bill:
        """Return the predicted bytes and CPU seconds of the plan.

        Args:
            host: the machine whose CPU seconds are predicted; None: the reference machine.
            plan: another plan whose cost is wanted; None: the proposed plan.
        """
        from fedtally.plan.bill import bill

        chosen = plan or self.plan
        return bill(chosen, host, recovery=self._decoder(chosen), people=self.expected)

    def _decoder(self, plan: Plan) -> Recovery:
        """Return the decoder that reads the answer from the sums of `plan`.

        The plan may have been made for the errors of another decoder.
        """
        asked, batches = self.design.spec.decoding, plan.schedule.num_batches(plan.num_rounds)
        return decoder_of(plan, asked.recovery, batches)

    @property
    def is_for_any(self) -> bool:
        """Whether the target holds for any frequencies, and not only for given ones."""
        return self.target.frequencies == hardest.ANY

    @property
    def has_shapes(self) -> bool:
        """Whether the error depends on the frequencies, and the domain is not open."""
        return self.names is None and self.plan.vector.shares_counters

    @cached_property
    def neighbours(self) -> tuple[tuple[Plan, float], ...]:
        """Pairs of a plan with another width and its predicted largest error (`neighbours_of`).

        They are computed at the first use, because this takes as long as finding the plan.
        """
        is_for_any = self.is_for_any and self.names is None
        return tuple(
            neighbours_of(self.design, self.plan, self.distribution, is_for_any=is_for_any)
        )

    def shapes(self) -> Shapes | None:
        """Return the plan's predicted largest errors for the hardest and the named frequencies.

        Returns None if the error does not depend on the frequencies, or if the domain is open.
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
        """Return the plan for the same target, made for assumed frequencies: i^-1.1 for rank i.

        Returns None if the target does not hold for any frequencies, if no tau was requested, or if
        the error does not depend on the frequencies. Returns None, too, if clients may hold several
        items: users can name assumed frequencies (`--like`) only for clients with one item.

        Raises:
            InvalidInputError: no plan meets the target for these frequencies.
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

        A plan made without a pilot does not rely on such a decoder unless the user requests the
        decoder. This method tells how small the plan would be if it did.

        Returns None if there is no smaller plan, if the request names a decoder or has no tau, if
        the error does not depend on the frequencies, or if the frequencies of rare items are not
        known. Returns None, too, if `recovery` would not be the smaller plan's default decoder.

        Args:
            recovery: a decoder from `recovery.decoding.resting`.
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
        """Return curves of the predicted largest error over a client's upload bytes.

        A point is (bytes, error); points with an error of 0 are left out. There are two curves. The
        first is for the plan's decoder and number of rows; if the plan has a histogram, the first
        is for sketches with the usual decoder and number of rows. The second is for the paper's
        (median) decoder and its usual number of rows; if the plan is made for the median decoder,
        there is only the second curve. The keys name the decoder and the number of rows.
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
        # noise grows with the square root of the rows: an item changes a counter in each row
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
        """Return the largest error of a sketch of another size, for the plan's frequencies.

        If the target holds for any frequencies, the error is for the hardest frequencies for this
        size, and no campaigns are simulated.
        """
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
    """Return the proposal of a plan for clients that are drawn for rounds at random.

    The request decides what is made as small as possible:

    - tau: the bytes;
    - max_bytes: the error;
    - tau and max_bytes, with `find_epsilon`: the epsilon;
    - neither tau nor max_bytes: the error for the default bytes.

    Args:
        spec: the user's request, with all defaults filled in.
        domain: the candidates.
        num_clients: the number of clients (persons or silos) that may take part, see
            `Design.for_fleet`.
        frequencies: the known frequencies. None: nothing is known. The plan is then made for the
            hardest frequencies, so that its target holds for any frequencies. For an open domain it
            is then made for assumed frequencies.
        seed: the 32 bytes from which the hashes are derived.
        is_drawn: whether the seed was drawn at random, so that a small plan may get another seed,
            which spreads the candidates more evenly (`plan.seeds`).
        like: a few words that describe the frequencies, for `Target.frequencies`. None: the target
            does not describe the frequencies. If the target holds for any frequencies, `like` is
            ignored.
        find_epsilon: whether to search for the least epsilon. The request must then have tau,
            max_bytes, and an epsilon, which is replaced.
        wanted: what the user asks for about names, if the domain is open.

    Raises:
        InvalidInputError: no plan meets the request. If only the target is out of reach, the
            message names the smallest changes that help, if there are any.
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
        # A change to another epsilon is tested with this epsilon: a search would replace it.
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
    """Return the proposal that `propose` returns, from a design instead of a request.

    Args:
        design: the design, without a size; its domain must not be open.
        frequencies: the known frequencies; None: the plan is made for any frequencies.
        is_drawn: whether the seed was drawn at random, see `propose`.
        find_epsilon: whether to search for the least epsilon, see `propose`.
        like: a few words that describe the frequencies, see `propose`.

    Raises:
        OutOfReachError: no plan meets the target. The message names no changes that help, because a
            search for them takes long.
        InvalidInputError: no plan meets the request for another reason.
    """
    design.check_even_rounds()
    spec, made = design.spec, _make(design, frequencies, find_epsilon=find_epsilon)
    like = hardest.ANY if frequencies is None else like
    design, plan, frequencies = made.design, made.plan, made.frequencies
    assert plan.target is not None
    if not plan.vector.shares_counters:  # a histogram's error is noise, for any frequencies
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
    """Return the proposal of a plan with an open domain, for which there is no list of candidates.

    With a tau the plan's sums show the least about single clients, and among such plans it has the
    fewest bytes (`open_domain.smallest`). With tau, max_bytes and `find_epsilon` it has the least
    epsilon. Without a tau it has about the smallest error within the bytes (`open_domain.best`).

    Args:
        design: the design, without a size. It has one round if the number of rounds is to be
            chosen.
        law: the frequencies of the strings.
        wanted: what the user asks for about names.
        find_epsilon: whether to search for the least epsilon, see `propose`.
        like: a few words that describe the frequencies, for `Target.frequencies`; None: the target
            does not describe the frequencies.

    Raises:
        InvalidInputError: no plan meets the request, and the message names changes that help, if
            there are any; or the sums would show the items of single clients, and
            `wanted.allow_rare` is False.
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
    """Return four things: the design with a size, its target, how the size was chosen, and a sum.

    The sum is the smallest one of the plan, which shows rare strings; None if sums have noise.
    """
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
    """Return a note for the user if many bytes are left unused, otherwise "".

    More counters would use these bytes, but the sums would then show more about single clients.
    Returns "" in three cases: the plan has privacy; rare names are allowed; or the plan uses 90 %
    of the bytes or more.
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
    """Return the upload bytes and the predicted names if all rounds were added up and noised once.

    Returns None if the plan has no privacy, if the plan already opens a single sum, or if no plan
    with a single sum is possible.
    """
    if plan.privacy is None or len(plan.releases) == 1:
        return None
    assert plan.target is not None
    with suppress(InvalidInputError):  # a secure sum of all clients may be impossible
        alone = of_rounds(design, 1)
        # Collisions partly cancel over several batches. A single batch needs a wider sketch.
        width = min(MAX_WIDTH, plan.schedule.num_batches(plan.num_rounds) * plan.width)
        shared = Schedule.parse("shared")
        one = alone.with_size(shared, plan.rows, width, plan.spelling).plan()
        names = predict(one, law, 2 * plan.target.linf, wanted.length, design.expected)
        return one.bytes_per_client, names
    return None


def _make(design: Design, frequencies: Frequencies | None, *, find_epsilon: bool) -> Made:
    """Return the plan for given frequencies; if `frequencies` is None, for any frequencies."""
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

    The sketches have 0.5, 2 and 4 times the width of the plan's sketch. If the plan has a
    histogram, they have 0.5, 1 and 2 times as many counters as the histogram. Sizes that are not
    possible are left out.

    Args:
        design: the design of the plan.
        plan: the plan.
        frequencies: the frequencies for which errors are predicted.
        is_for_any: whether the error of each sketch is predicted for the frequencies that are
            hardest for it instead; `frequencies` is then only where the search begins.
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
    for width, spelling in sizes:  # the keys of a dict, since small plans give equal sizes
        with suppress(InvalidInputError):  # for example, the width exceeds its limit
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
    """Return the design for sketches; a requested encoding and a requested decoder are dropped."""
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
