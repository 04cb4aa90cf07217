"""Choose the size of a campaign's sketch: as the caller gave it, for bytes, or for a target error.

For a target error there is usually a pilot: a small first campaign with some of the clients, drawn
uniformly. Under differential privacy the pilot is a release of its own, with noise, and is charged.
Each client is in the pilot or in the campaign, so both together spend no more of a client's privacy
budget than one of them. A ledger adds both up nevertheless: it does not know in which of the two a
client was.

An open domain has no pilot: a pilot would have to look at all hashes, and would not show the
lengths of names. Frequencies are assumed instead; `fedtally plan` can be given other frequencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base.encoding import Encoding
from fedtally.domain import Domain, OpenStrings
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan, Target, encodings, open_domain
from fedtally.plan import readable_names as open_names
from fedtally.plan.design import DEFAULT_MAX_BYTES, Chosen, Design
from fedtally.plan.open_guesses import Wanted
from fedtally.plan.paper import Size
from fedtally.plan.predictor import predict_linf
from fedtally.plan.readable_names import Names
from fedtally.plan.search import for_bytes, usual_schedule
from fedtally.plan.secure_sum import Keys
from fedtally.plan.seeds import even_seed
from fedtally.plan.sizes import RISK
from fedtally.plan.ways import smallest_or_ways, unreachable
from fedtally.privacy.events import Event
from fedtally.recovery.decoding import kind_of
from fedtally.simulation.census import Census
from fedtally.simulation.given_plan import fit_given
from fedtally.simulation.pilot_clients import (
    MIN_CLIENTS,
    MOST_PILOT,
    check_enough,
    draw_pilot,
    merge_rounds,
    usual_share,
)
from fedtally.simulation.round_sums import Site
from fedtally.simulation.round_tally import RoundTally, split_clients
from fedtally.simulation.simulation import Simulation, Sizing
from fedtally.simulation.truth import true_counts
from fedtally.sketch import CountSketch

if TYPE_CHECKING:
    from fedtally.plan.frequencies.distribution import Frequencies

# The most bytes of a pilot's sketch for a tau of 0.001 or more. With a smaller tau, more items may
# be above tau, and more counters are needed to tell them apart.
_USUAL_BYTES, _USUAL_TAU = 8000, 0.001
# A pilot's counters cost at most (this number) / tau bytes, as a mean over all clients: less than
# the counters of most campaigns. But each client of the pilot may always send _LEAST_BYTES. Without
# this bound, a pilot can cost much more: with 8 kB, a pilot of a tenth of the clients cost 12 times
# the campaign (`python -m experiments pilots`). With twice this number, campaigns were hardly
# smaller, and missed tau as often.
_MEAN_BYTES = 0.4
_LEAST_BYTES = 400  # 8 x 25 counters of 2 bytes
# An arbitrary width, for plans of which only the cost of the privacy event is needed. This cost
# hardly depends on the width.
_USUAL_WIDTH = 200
F64 = npt.NDArray[np.float64]


class Sized(NamedTuple):
    """The sketch or histogram that was chosen for a target error, or for an open domain.

    Attributes:
        chosen: the schedule, rows, width and encoding of the sketch.
        size: the same rows and width, with the method that found them and the predicted error.
        pilot: the plan of the pilot; None if there was no pilot.
        sketches: the released sums of the pilot, with noise if it has privacy; [] without a pilot.
        names: the predicted number of names that can be read, if the domain is open and there is a
            target error; else None.
    """

    chosen: Chosen
    size: Size
    pilot: Plan | None
    sketches: Sequence[CountSketch]
    names: Names | None = None

    def document(self, target: Target) -> dict[str, Any]:
        """Return the field `sizing` of a result as a JSON-able dict.

        Args:
            target: the target of the campaign's plan.
        """
        pilot, about = self.pilot, None
        if pilot is not None:
            about = {
                "num_clients": sum(sketch.num_clients for sketch in self.sketches),
                "rows": pilot.rows,
                "width": pilot.width,
                "bytes_per_client": pilot.bytes_per_client,
                "fingerprint": pilot.fingerprint,
                "epsilon": None if pilot.privacy is None else pilot.privacy.epsilon,
            }
        return {
            "sizing": self.size.method,
            "tau": target.linf,
            "failure_probability": target.failure_probability,
            "predicted_linf": self.size.linf,
            "pilot": about,
            "message": self.size.message,
            "names": None if self.names is None else self.names.to_dict(),
        }


class SizeChoice:
    """Chooses the size of a campaign's sketch, with a pilot if needed.

    Args:
        simulation: the campaign that the caller asked for.
        seed: the seed from which the hashes follow.
        site: the place where a pilot is summed.

    Attributes:
        sized: the sketch that was chosen for a target, or for an open domain. None before the
            choice, and for campaigns with neither a target nor an open domain.
    """

    def __init__(self, simulation: Simulation, seed: bytes, site: Site) -> None:
        self._simulation, self._seed, self._site = simulation, seed, site
        self._pilot: list[RoundTally] = []
        self.sized: Sized | None = None

    def set_pilot_apart(self, census: Census) -> Census:
        """Draw the clients of a pilot if one is needed; return the census without these clients.

        With a target, the returned census also has the default delta if the caller gave no delta.

        Raises:
            InvalidInputError: a pilot is needed, and cannot be drawn (see `_draw_pilot`). Or the
                caller asked for a histogram, and no histogram meets the target.
        """
        if census.spec.tau is None:
            return census
        # A default delta depends on the number of clients. It is fixed before the pilot's clients
        # are taken out, so that pilot and campaign have the same delta.
        census = replace(census, spec=census.spec.with_delta(census.num_clients))
        if not self._simulation.pilots:
            return census
        if any(census.sizes):
            everybody = census.design(self._seed)
            self.sized = without_pilot(everybody, census.spec.size.max_bytes)
        if self.sized is not None:
            return census
        # The noise of a pilot's sketch needs a delta. The pilot's clients come from the campaign's
        # population, so the campaign must have a delta, too.
        spec = census.spec.for_ledger()
        self._pilot, rest = _draw_pilot(self._simulation, census, self._site.rng)
        return replace(census, spec=spec, rounds=rest)

    def split_for_open(self, census: Census, rng: np.random.Generator) -> Census:
        """Choose size and rounds for an open domain; return the census with these rounds.

        The size is stored in `sized`. If the caller gave a number of rounds, it stays.

        Args:
            census: the clients; all in one round if the number of rounds is to be chosen.
            rng: the generator that draws the round of each client.

        Raises:
            InvalidInputError: with a target: no sketch within the allowed bytes meets it. Without a
                target: no name can be read from a sketch within the allowed bytes, or the sums
                would show the items of single clients. The error says what would work.
        """
        design = _open_design(self._simulation, census, self._seed)
        domain, asked = OpenStrings.of(census.domain), self._simulation
        law = open_names.assumed(domain, census.spec.max_items)
        length = min(asked.name_length or open_names.NAME_LENGTH, domain.max_length)
        wanted = Wanted(length, asked.allow_rare_names)
        if census.spec.tau is None:
            design, linf, _ = open_domain.best(design, law, wanted)
            size = Size("budget", design.chosen.rows, design.chosen.width, linf)
            names = None
        else:
            design = open_domain.smallest(design, law, wanted)
            plan, planned = design.plan(), census.spec.failure_probability * RISK
            linf = predict_linf(plan, law, design.recovery, planned, expected=design.expected)
            size = Size("model", plan.rows, plan.width, linf)
            names = open_domain.predicted(design, law, wanted)
        self.sized = Sized(design.chosen, size, None, [], names)
        if design.num_rounds == len(census.rounds):
            return census
        return replace(
            census,
            spec=census.spec.with_rounds(design.num_rounds),  # the caller gave no number of rounds
            rounds=split_clients(census.rounds[0], design.num_rounds, rng),
        )

    def plan(self, census: Census, site: Site) -> tuple[Plan, Keys | None]:
        """Return the plan of the campaign and its private keys; None for keys if no protocol sums.

        If there is a pilot, it is run first. A given plan is used with new keys (`fit_given`).

        Args:
            census: the clients of the campaign.
            site: the place where the campaign is summed.

        Raises:
            InvalidInputError: no plan meets the target (the error names the smallest changes that
                would help), or a given plan does not fit the clients.
        """
        spec = census.spec
        if spec.plan is not None:
            return fit_given(
                spec.plan, spec, census.domain, census.sizes, random=site.keys, report=site.report
            )
        design = census.design(self._seed)
        if spec.tau is not None and self.sized is None:
            self.sized = self._for_target(design, census.rounds)
        if self.sized is None:
            design = for_bytes(design)
        else:
            design = design.with_size(*self.sized.chosen).sized_by(self.sized.size)
        if self._simulation.seed is None:
            design = design.with_seed(even_seed(design.plan(), design.domain))
        return design.finish(site.keys, site.report)

    def _for_target(self, design: Design, rounds: Sequence[RoundTally]) -> Sized:
        """Return the sketch for a target error; run the pilot if the sizing method has one.

        Args:
            design: the design of the campaign.
            rounds: the clients of each round of the campaign.
        """
        sizing = self._simulation.sizing_method
        plan: Plan | None = None
        sketches: list[CountSketch] = []
        if sizing.has_pilot:
            plan, sketches = self._run_pilot(design)
        if plan is not None and sizing is Sizing.MODEL:
            sized = self._for_frequencies(design, frequencies_of(plan, sketches, design.domain))
        else:
            sized = paper_size(
                design, sizing, sketches, lambda: _frequencies(design.domain, rounds)
            )
        return Sized(sized.chosen, sized.sizing, plan, sketches)

    def _for_frequencies(self, design: Design, frequencies: Frequencies) -> Design:
        try:
            return smallest_or_ways(replace(design, has_pilot=True), frequencies)
        except InvalidInputError as error:
            # Without the words in `spent`, the reader would not know that the budget is smaller
            # now, although there is no campaign.
            spent = (
                ""
                if self._simulation.ledger is None
                else "; the pilot is charged: what it released stays released"
            )
            raise InvalidInputError(f"{error.marked}{spent}") from None

    def _run_pilot(self, design: Design) -> tuple[Plan, list[CountSketch]]:
        """Plan and run the pilot; return its plan, and its released sums.

        With a ledger, the pilot is charged. Before the charge, the pilot is refused if the budget
        is too small for the pilot and the campaign after it.
        """
        check_enough(self._pilot)
        site = self._site
        plan, keys = for_bytes(self._pilot_design(design)).finish(site.keys, site.report)
        if self._simulation.ledger is not None:  # before the pilot is released
            site.books.check_pilot(plan, possible_events(design))
        return plan, site.land(plan, keys, self._pilot, {}).sketches

    def _pilot_design(self, design: Design) -> Design:
        tau, clients = design.spec.tau, [part.num_clients for part in self._pilot]
        assert tau is not None
        share = sum(clients) / (sum(clients) + design.clients[0])

        def planned(protocol: int) -> Design:
            method, most = self._simulation.sizing_method, design.spec.size.max_bytes
            size = pilot_size(method, most, tau, share, protocol)
            spec = design.spec.for_pilot(**size, num_rounds=None if len(clients) > 1 else 1)
            return Design.fit(spec, design.domain, clients, seed=self._site.seed)

        pilot = planned(0)
        if design.spec.summation.is_ideal:
            return pilot
        rows = pilot.spec.size.rows
        assert rows is not None
        # The pilot is planned again, now with room for the bytes that the protocol sends beside
        # the counters: as many bytes as an upload of this pilot with 0 counters has.
        return planned(pilot.bytes_of_counters(rows, 0, pilot.example))


def _draw_pilot(
    simulation: Simulation, census: Census, rng: np.random.Generator
) -> tuple[list[RoundTally], list[RoundTally]]:
    """Draw the clients of a pilot; return its rounds, and the rounds without the pilot's clients.

    Raises:
        InvalidInputError: the campaign hides who takes part. Or it is private, and a client may be
            in several rounds that rows name, so it could be in the pilot and in the campaign.
    """
    spec = census.spec
    if spec.hides_clients:
        raise InvalidInputError(
            "a pilot's size would tell the number of clients, which add-remove hides: use"
            f" {opt.sizing('minimax')}, or a plan of fedtally plan"
        )
    are_natural = spec.size.num_rounds is None and len(census.rounds) > 1
    if spec.is_private and census.tally.is_bounded_by_client and are_natural:
        raise InvalidInputError(
            "a pilot's clients must not be in the campaign, and here a client may be in several"
            f" natural rounds: split the clients over {opt.num_rounds}, use"
            f" {opt.sizing('minimax')}, or a plan of fedtally plan"
        )
    is_two_phase = simulation.sizing_method is Sizing.TWO_PHASE
    share = simulation.pilot_share
    if share is None and (are_natural or is_two_phase):
        # These pilots need many clients. If rows name rounds, each round needs enough clients to
        # show how rounds differ. The paper's method has a small sketch.
        share = MOST_PILOT
    elif share is None:
        assert spec.tau is not None
        epsilon = None if spec.privacy is None else spec.privacy.epsilon
        share = usual_share(census.num_clients, spec.tau, epsilon)
    # `spawn`: otherwise the campaign's draws would depend on the size of the pilot.
    pilot, rest = draw_pilot(census.rounds, share, rng.spawn(1)[0])
    # Rounds that rows name may differ. If each round has enough clients, the pilot keeps the rounds
    # apart, and shows how much they differ. A private pilot is one round, because noise is added to
    # each release.
    tells_rounds = are_natural and not (spec.is_private or is_two_phase)
    if tells_rounds and min(part.num_clients for part in pilot) >= MIN_CLIENTS:
        return pilot, rest
    return merge_rounds(pilot), rest


def _open_design(simulation: Simulation, census: Census, seed: bytes) -> Design:
    """Return the design of a campaign with an open domain, without a size of the sketch."""
    spec, asked = census.spec, simulation.spec
    number, silos = sum(census.sizes), spec.silos
    if silos is not None and not spec.is_private:  # the number of people is known
        silos = replace(silos, expected=census.num_clients)
    if spec.privacy is not None and spec.privacy.max_clients is not None:
        number = spec.privacy.max_clients  # the true number is private
    is_natural = census.tally.is_natural
    # `asked` has no default delta yet, as the census's spec may have. The design itself sets the
    # default for its number of clients, and a search may raise this number.
    if is_natural:
        asked = asked.with_rounds(len(census.rounds))
    asked = replace(asked, silos=silos)
    return Design.for_fleet(asked, census.domain, number, seed)


def _frequencies(domain: Domain, rounds: Sequence[RoundTally]) -> F64:
    """Return the true frequencies of the items that clients hold: float64.

    Items that nobody holds have no entry.
    """
    return true_counts(domain, rounds).counts / sum(tally.num_clients for tally in rounds)


def pilot_size(
    sizing: Sizing, max_bytes: int | None, tau: float, share: float = 0.0, protocol: int = 0
) -> dict[str, Any]:
    """Return options of the pilot's campaign: `rows`, `width` and `max_bytes` (its largest upload).

    For `Sizing.TWO_PHASE` the width is the paper's, and `max_bytes` is None. Otherwise the width is
    None: the sketch is as wide as the bytes allow. The bytes are the least of three limits:

    - 8 kB or, for a tau below 0.001, 8 kB * 0.001 / tau, but at most the default of 32 kB;
    - with a `share`: 0.4 / (tau * share) bytes, but at least 400;
    - the argument `max_bytes`.

    Args:
        sizing: the method that finds the size of the campaign's sketch.
        max_bytes: the largest upload of a client that the caller allowed for the campaign; None: no
            limit.
        tau: the target error of the campaign, as a frequency.
        share: the pilot's share of all clients; 0: the second limit does not apply.
        protocol: the bytes that a secure sum sends beside the counters. They are added to the first
            two limits.

    >>> [pilot_size(Sizing.MODEL, None, 0.01, share)["max_bytes"] for share in (0.01, 0.02, 0.1)]
    [4000, 2000, 400]
    """
    from fedtally.plan.frequencies.pilot import Pilot

    if sizing is Sizing.TWO_PHASE:
        return {"rows": Pilot.rows, "width": Pilot.width, "max_bytes": None}
    most = min(DEFAULT_MAX_BYTES, int(_USUAL_BYTES * max(1.0, _USUAL_TAU / tau)))
    if share:
        most = min(most, max(_LEAST_BYTES, round(_MEAN_BYTES / (tau * share))))
    most += protocol
    return {
        "rows": Pilot.rows,
        "width": None,
        "max_bytes": min(most, max_bytes or most),
    }


def without_pilot(design: Design, max_bytes: int | None) -> Sized | None:
    """Return a histogram that meets the target, so that no pilot is needed; else None.

    The error of a histogram does not depend on frequencies. A histogram is chosen if it takes no
    more bytes than the sketch of a pilot with few clients may have. If the caller asked for a
    histogram, it may take more bytes.

    Args:
        design: the design of the campaign for all clients, with a target.
        max_bytes: the largest upload of a client that the caller allowed; None: no limit.

    Raises:
        InvalidInputError: the caller asked for a histogram, and no histogram meets the target.
    """
    from fedtally.plan.frequencies.distribution import Frequencies

    tau = design.spec.tau
    assert tau is not None
    budget = pilot_size(Sizing.MODEL, max_bytes, tau)["max_bytes"]
    found = encodings.meets_target(design, budget)
    if found is None and design.spec.size.encoding is Encoding.HISTOGRAM:
        found = encodings.meets_target(design)
        if found is None:
            raise unreachable(design, Frequencies.assumed(design.domain.size))
    return None if found is None else Sized(found.chosen, found.sizing, None, [])


def possible_events(design: Design) -> list[Event]:
    """Return the privacy events (what a ledger charges) of the campaigns that may follow a pilot.

    The campaigns are those with the fewest and with the most rows, and with a histogram if it meets
    the target. A ledger checks the events before the pilot. Otherwise a pilot could be charged
    although the budget is too small for the campaign after it.
    """
    from fedtally.plan.paper import rows_for

    spec = design.spec
    paper = rows_for(design.domain.size, spec.failure_probability)
    rows = {spec.size.rows} if spec.size.rows else {paper, *kind_of(design.recovery).planned_rows}
    plans = [
        design.with_size(design.example, each, _USUAL_WIDTH).plan()
        for each in sorted({min(rows), max(rows)})
    ]
    if (whole := encodings.meets_target(design)) is not None:
        plans.append(whole.plan())
    return [plan.privacy.event for plan in plans if plan.privacy is not None]


def frequencies_of(plan: Plan, sketches: Sequence[CountSketch], domain: Domain) -> Frequencies:
    """Return the frequencies that the sums of a pilot show.

    Args:
        plan: the plan of the pilot.
        sketches: the released sums of the pilot, at least one.
        domain: the candidates.
    """
    from fedtally.plan.frequencies.distribution import Frequencies

    variance = 0.0
    if plan.privacy is not None:
        variance = plan.privacy.largest_stddev(max(sketch.num_clients for sketch in sketches)) ** 2
    return Frequencies.from_pilot(sketches, domain, variance, max_items=plan.max_items)


def paper_size(
    design: Design, sizing: Sizing, sketches: Sequence[CountSketch], frequencies: Callable[[], F64]
) -> Design:
    """Return the design with the size of the sketch that one of the paper's methods finds.

    Args:
        design: the design of the campaign, with a target.
        sizing: the method that finds the size; not `Sizing.MODEL`.
        sketches: the released sums of the pilot: one sum for `Sizing.TWO_PHASE`; other methods
            ignore them.
        frequencies: a function that returns the true frequencies; only `Sizing.ORACLE` calls it.

    Raises:
        InvalidInputError: the sketch takes more bytes than the caller allowed.
    """
    from fedtally.plan.paper import linear, minimax, oracle, two_phase

    spec, tau = design.spec, design.spec.tau
    assert tau is not None
    domain = design.domain
    given: dict[str, Any] = {
        "num_clients": design.clients[0],
        "p": spec.failure_probability,
        "rows": spec.size.rows,
    }
    if sizing is Sizing.TWO_PHASE:
        [sketch] = sketches
        size = two_phase(sketch, domain, tau, **given)
    elif sizing is Sizing.ORACLE:
        size = oracle(frequencies(), tau, domain_size=domain.size, **given)
    elif sizing is Sizing.MINIMAX:
        size = minimax(tau, domain_size=domain.size, **given)
    else:
        size = linear(domain_size=domain.size, **given)
    sized = design.with_size(usual_schedule(design), size.rows, size.width).sized_by(size)
    needed = sized.bytes_per_client
    if spec.size.max_bytes is not None and needed > spec.size.max_bytes:
        raise InvalidInputError(
            f"sizing {sizing} takes {needed:,} bytes of a client for tau {tau:g}, and"
            f" {opt.max_bytes} is {spec.size.max_bytes:,}: give more bytes, a larger tau, or the"
            " sizing model"
        )
    return sized
