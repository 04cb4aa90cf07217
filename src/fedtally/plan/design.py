"""The design of a plan: everything from which the planner makes the plan.

`Setting` holds what is known before the size of the sketch is chosen. `Design` adds the size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple, Self, cast

from fedtally.base.encoding import Encoding
from fedtally.domain import Domain, OpenStrings
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import MAX_CLIENTS, Plan, Protection, Sums, Target, Vector
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import Size
from fedtally.plan.predictor import Predictor
from fedtally.plan.privacy import noise_of_release, worst_pair
from fedtally.plan.request import CampaignSpec
from fedtally.plan.rounds import possible_schedules, round_size_bounds, sizes_with_extremes
from fedtally.plan.secure_sum import (
    Keys,
    check_rounds,
    make_keys,
    replace_keys,
    terms,
    with_noise,
    with_validity,
)
from fedtally.plan.silos import error_of_number, fitting_numbers, in_ranges
from fedtally.plan.sizes import RISK, UnreachableError
from fedtally.privacy.config import PrivacyConfig, default_delta
from fedtally.privacy.events import Event, Mechanism, NoiseBy, Relation, default_clip_norm
from fedtally.secagg import params
from fedtally.secagg.config import Terms
from fedtally.secagg.params import Adversary, corrupt_clients
from fedtally.sketch import Schedule, SketchSpec, Spelling
from fedtally.sketch.schedule import AUTO, BATCHED_AUTO

if TYPE_CHECKING:
    from fedtally.plan.parts.protection import By

DEFAULT_ROWS = 7  # with the same bytes, more rows hardly change the error of joint recovery
DEFAULT_MAX_BYTES = 32_000
# The width that is assumed before the real width is chosen. It serves to estimate the clip norm,
# the bits of a counter and the bytes of a proof, which hardly depend on the width.
_USUAL_WIDTH = 1000
# If a number of silos cannot be summed safely, the error names numbers of silos that can be. These
# are at most the larger of the given number and _TRIED_SILOS, and never above _MOST_TRIED.
_TRIED_SILOS, _MOST_TRIED = 12, 40


class Chosen(NamedTuple):
    """The chosen size of a sketch or histogram.

    Attributes:
        schedule: which rounds share their hashes.
        rows: the number of rows of the sketch; 1 for a histogram.
        width: the number of counters in a row.
        spelling: the size of the sketches from which names are read, for an open domain; None for a
            list of candidates.
        encoding: whether items are counted in a sketch or in a histogram.
    """

    schedule: Schedule
    rows: int
    width: int
    spelling: Spelling | None = None
    encoding: Encoding = Encoding.SKETCH


@dataclass(frozen=True)
class Setting:
    """The values that a plan is made from, before its size is chosen.

    The predicted bytes and the predicted noise are approximate: they are computed for rows of 1000
    counters. The bits of a counter are computed for 7 such rows.

    Args:
        spec: the user's request, with all defaults filled in.
        domain: the candidates.
        sizes: the number of clients of each round.
        seed: the 32 bytes from which the hashes are derived.
        clients: two public numbers: the clients of all rounds together, and the most clients of one
            round.
        participations: the most rounds of one client that the privacy guarantee counts; 1 without
            privacy. With a calendar, only any `per_rounds` rounds in a row are counted together
            (`Recurring`).
        has_room: whether the rounds of the campaign may have other sizes than `sizes`, because
            clients are drawn for rounds at random when the campaign runs.
    """

    spec: CampaignSpec
    domain: Domain
    sizes: Sequence[int]
    seed: bytes
    clients: tuple[int, int]
    participations: int = 1
    has_room: bool = False

    @classmethod
    def fit(
        cls,
        spec: CampaignSpec,
        domain: Domain,
        sizes: Sequence[int],
        *,
        seed: bytes,
        by_client: bool = False,
    ) -> Self:
        """Return the setting for rounds whose clients are already known, as in a simulation.

        Args:
            spec: the user's request, with all defaults filled in.
            domain: the candidates.
            sizes: the number of clients of each round.
            seed: the 32 bytes from which the hashes are derived.
            by_client: whether a client may be in several rounds. It matters only with privacy, and
                only if the input names the rounds.

        Raises:
            InvalidInputError: the rounds cannot be summed as requested.
        """
        check_rounds(spec.summation, sizes)
        asked, natural = spec.privacy, spec.size.num_rounds is None
        participations, clients = 1, (sum(sizes), max(sizes))
        if isinstance(domain, OpenStrings):  # rounds are drawn again when the plan is used
            clients = _public_sizes(sizes, natural)
        if asked is not None:
            # a private number of clients must not be in the plan: the public bound replaces it
            bound = asked.max_clients
            clients = _public_sizes(sizes, natural) if bound is None else (bound, bound)
            if by_client and natural:
                participations = min(len(sizes), spec.accounting.max_rounds or len(sizes))
        return cls(spec, domain, sizes, seed, clients, participations)

    @property
    def num_rounds(self) -> int:
        """The number of rounds of the campaign."""
        return len(self.sizes)

    @cached_property
    def recovery(self) -> str:
        """The name of the decoder for which errors are predicted."""
        return self.spec.recovery_of(self.domain.size)

    @property
    def fleet(self) -> int:
        """The number of clients that may take part. Each client counts once.

        Without a calendar it is `clients[0]`. With a calendar `clients[0]` counts a client once for
        each round that the client may take part in, so that it is divided by this number of rounds.
        """
        return self.clients[0] // self.spec.lifetime

    @property
    def expected(self) -> int:
        """The number by which counts are divided to get frequencies.

        It is the number of clients of all rounds, or the public bound if this number is private. If
        clients are silos, it is the number of people that are expected in all silos together.
        """
        silos = self.spec.silos
        return self.clients[0] if silos is None else silos.expected_of(self.clients[0])

    @property
    def people(self) -> list[int]:
        """The number of people whose items are in each round, rounded down.

        The number `expected` is divided among the rounds in proportion to their clients.
        """
        return [self.expected * clients // self.clients[0] for clients in self.sizes]

    @property
    def _are_told(self) -> bool:
        """Whether the number of people in each round is public, and no round is empty.

        If so, errors are predicted for the real sizes of the rounds, otherwise for equal rounds.
        The number of people in a round is private in two cases: clients are silos, or the privacy
        guarantee hides the number of clients.
        """
        is_public = self.spec.silos is None and not self.spec.hides_clients
        return is_public and min(self.sizes) > 0

    def protection(self, schedule: Schedule) -> Protection:
        """Return who adds the noise under this schedule, and what follows from it.

        The terms of privacy are still missing in the returned `Protection`: they depend on the
        size.
        """
        by = "nobody" if self.spec.noise_by is None else str(self.spec.noise_by)
        has_protocol = not self.spec.summation.is_ideal
        return Protection(
            None, schedule, self.num_rounds, has_secure_sum=has_protocol, by=cast("By", by)
        )

    @property
    def is_noised_once(self) -> bool:
        """Whether noise is added once to each opened sum, and not in shares by the clients."""
        return self.protection(self.example).is_once

    def sums(self, schedule: Schedule) -> list[int]:
        """Return the number of clients of each secure sum, before rounds are split into cohorts.

        With two servers a sum is of all rounds that are opened together under this schedule;
        otherwise it is of one round. If `has_room`, the sizes of the rounds are not known. The
        result then has, in rising order, possible numbers of clients that make the smallest and the
        largest cohorts.
        """
        summation, together = self.spec.summation, self.protection(schedule).releases
        if not self.has_room:
            return summation.sums(self.sizes, together)
        shares = summation.rounds_of_sum(together)
        return sorted(
            {size for share in shares for size in summation.extremes(*self._between(share))}
        )

    def _between(self, share: int) -> tuple[int, int]:
        """Return the fewest and the most clients that `share` rounds (a number) have together.

        Clients are drawn for rounds at random: the true number is rarely outside
        (`round_size_bounds`). For all rounds both numbers are exact.
        """
        total = self.clients[0]
        if share == self.num_rounds:
            return total, total
        expected = total * share / self.num_rounds
        least, most = round_size_bounds(expected)
        return max(1, least), min(total, most)

    @cached_property
    def schedules(self) -> list[Schedule]:
        """The schedules from which the planner chooses, the preferred one first.

        With two servers, one run of the protocol sums all rounds that are opened together, and a
        run has a limit of clients. Schedules that exceed this limit are left out. If all schedules
        exceed the limit, none is left out.
        """
        listed = possible_schedules(
            self.spec.size.schedule,
            self.num_rounds,
            self.recovery,
            noised_by_release=self.is_noised_once,
        )
        summation = self.spec.summation
        return [one for one in listed if summation.fits(self.sums(one))] or listed

    @property
    def example(self) -> Schedule:
        """The schedule that the request names; hybrid if the request names no schedule."""
        name = self.spec.size.schedule
        return Schedule.parse("hybrid" if name in (AUTO, BATCHED_AUTO) else name)

    @property
    def only_schedule(self) -> Schedule | None:
        """The schedule, if it is requested or usual; None if several must be compared."""
        name = self.spec.size.schedule
        if name not in (AUTO, BATCHED_AUTO):
            return Schedule.parse(name)
        if self.num_rounds == 1:
            return Schedule.parse("shared")
        return Schedule.parse("hybrid") if name == AUTO and not self.is_noised_once else None

    # ---- errors ----

    def predictor(self, schedule: Schedule) -> Predictor:
        """Return the predictor of errors for a schedule; it works for sketches of any size."""
        return Predictor(
            self.expected,
            schedule,
            self.num_rounds,
            self.recovery,
            lambda rows: self.noise(rows, schedule),
            None if self.has_room or not self._are_told else tuple(self.sizes),
        )

    def tau_of_sketch(self, frequencies: Frequencies) -> float:
        """Return the error that the sketch itself may have, so that the total error is at most tau.

        It is tau itself unless clients are silos. For silos, noise on the number of people also
        causes an error. The squares of the two errors add up to the square of tau.

        Args:
            frequencies: the known frequencies of the items.

        Raises:
            UnreachableError: the noise on the number of people alone causes an error of tau or
                more.
        """
        tau = self.spec.tau
        assert tau is not None
        if self.spec.silos is None:
            return tau
        stddev = self.largest_noise(self.example) * math.sqrt(self.num_rounds)
        taken = error_of_number(
            frequencies, stddev / self.expected, self.spec.failure_probability * RISK
        )
        if taken >= tau:
            raise UnreachableError(
                f"tau {tau:g} is below what noise on the number of people leaves"
            )
        return math.sqrt(tau**2 - taken**2)

    # ---- bytes ----

    def bytes_of(self, rows: int, width: int, schedule: Schedule) -> int:
        """Return the bytes that a client uploads in its round, for a sketch of this size.

        The result is approximate, see `bytes_of_counters`.
        """
        return self.bytes_of_counters(rows, rows * width, schedule)

    def bytes_of_counters(self, rows: int, counters: int, schedule: Schedule) -> int:
        """Return the bytes that a client uploads in its round, for rows that may differ in width.

        The result is approximate: the bits of a counter, and the bytes that are not counters, are
        estimated for rows of 1000 counters. Usually only a few bytes are wrong. In a secure sum the
        bits, mostly a multiple of 8, may be 8 too few or too many.

        Args:
            rows: the number of rows.
            counters: the number of counters of all rows together.
            schedule: which rounds share their hashes.
        """
        _, bits = self._terms_and_bits(schedule)
        return self._bytes_besides(rows, schedule) + -(-counters * bits // 8)

    @cached_property
    def _terms_and_bits(self) -> Callable[[Schedule], tuple[Terms | None, int]]:
        """A function from a schedule to the terms of the secure sum and the bits of a counter.

        Both are estimated for a sketch of 7 rows and 1000 counters a row. The terms are None if a
        trusted server sums.
        """

        @cache
        def terms_and_bits(schedule: Schedule) -> tuple[Terms | None, int]:
            counters, protection = DEFAULT_ROWS * _USUAL_WIDTH, self.protection(schedule)
            largest, noise = self._largest_entry, 0
            if protection.is_in_sums:
                noise = params.noise_bound(self.largest_noise(schedule), counters)
            sums = self.sums(schedule)
            agreed = terms(self.spec.summation, sums, largest, counters, signed=True)
            if agreed is None:
                return None, params.modulus_bits(self.clients[1], largest, noise, multiple=1)
            agreed = self._with_room(agreed, protection, noise, Encoding.SKETCH)
            return agreed, agreed.bits

        return terms_and_bits

    @cached_property
    def _bytes_besides(self) -> Callable[[int, Schedule], int]:
        """A function from rows and a schedule to the upload bytes that are not counters.

        These bytes depend on the rows if a report has a proof of validity. They are 0 if a trusted
        server sums.
        """

        @cache
        def bytes_besides(rows: int, schedule: Schedule) -> int:
            agreed, _ = self._terms_and_bits(schedule)
            if agreed is None:
                return 0
            is_charged = self.protection(schedule).is_charged
            return agreed.bytes_besides([_USUAL_WIDTH] * rows, abstain=is_charged)

        return bytes_besides

    def _with_room(
        self, agreed: Terms, protection: Protection, noise: int, encoding: Encoding
    ) -> Terms:
        """Return the terms `agreed` with room for noise in every counter, and perhaps with proofs.

        Proofs are added as `with_validity` decides.

        Args:
            agreed: the terms of the secure sum, without room for noise.
            protection: the party that adds the noise, and what follows from it.
            noise: the largest absolute value of the noise in a counter.
            encoding: whether items are counted in a sketch or in a histogram.
        """
        clients, signed = self.spec.clients, encoding.is_signed
        folds = protection.sums is Sums.SECRET
        largest = clients.largest_entry(encoding)
        agreed = with_noise(agreed, largest, noise, folds=folds, signed=signed)
        summation, items = self.spec.summation, clients.most_items
        return with_validity(agreed, summation, items, folds=folds, signed=signed)

    @property
    def _largest_entry(self) -> int:
        """The most (absolute value) that one client adds to an entry of a sketch, without noise."""
        return self.spec.clients.largest_entry(Encoding.SKETCH)

    # ---- noise ----

    def noise(self, rows: int, schedule: Schedule) -> float:
        """Return the standard deviation of the noise in a counter of one round's sum, in counts.

        It is approximate, because it is computed by Gaussian accounting. If the rounds of a batch
        (rounds that share all hashes and signs) are added up before noise is added to their total,
        each round gets an equal part of the variance. If clients add the noise, it is assumed that
        none of them drops out. The result is 0 without privacy.

        Args:
            rows: the number of rows of the sketch.
            schedule: which rounds share their hashes.
        """
        asked = self.spec.privacy
        if asked is None:
            return 0.0
        (total, _), rounds, honest = self.clients, self.num_rounds, self.honest_clients
        max_items = self.spec.max_items
        releases = len(self.protection(schedule).releases)
        event = Event(
            Mechanism.ROUNDED_GAUSSIAN if honest is None else Mechanism.SKELLAM,
            rows=rows,
            relation=Relation.parse(asked.relation),
            max_items=max_items,
            clip_norm=default_clip_norm(rows, _USUAL_WIDTH, max_items) if max_items > 1 else None,
            participations=self.participations,
            per_release=min(self.participations, -(-rounds // releases)),
            honest_survivors=honest,
            trust=asked.trust,
            silos_per_person=1 if self.spec.silos is None else self.spec.silos.silos_per_person,
        )
        delta = default_delta(total * self.spec.people) if asked.delta is None else asked.delta
        provision = 1.0 if honest is None else max(1.0, total / rounds / honest)
        of_release = noise_of_release(event, asked.epsilon, delta, provision)
        return of_release * math.sqrt(releases / rounds)

    def largest_noise(self, schedule: Schedule) -> float:
        """Return about the standard deviation of the noise in an opened sum's counter, in counts.

        An opened sum may be of several rounds. The number of rows is assumed to be `DEFAULT_ROWS`.
        """
        releases = self.protection(schedule).releases
        return self.noise(DEFAULT_ROWS, schedule) * math.sqrt(self.num_rounds / len(releases))

    @cached_property
    def honest_clients(self) -> int | None:
        """The fewest honest clients that are sure to be in a sum and to add noise.

        It is None if the clients add no noise. It does not depend on the size of the sketch.
        """
        summation = self.spec.summation
        if self.spec.noise_by is not NoiseBy.CLIENTS:
            return None
        sums, largest = self.sums(self.example), self._largest_entry
        agreed = terms(summation, sums, largest, DEFAULT_ROWS, signed=True)
        return summation.sharers(self.spec.noise_by, self.sizes, agreed)


@dataclass(frozen=True)
class Design(Setting):
    """The design of a plan, without keys: a `Setting`, and the size once it is chosen.

    Args:
        size: the chosen size; None: no size is chosen yet.
        origin: how rows and width were chosen, and the error that was predicted for them. None: no
            size is chosen yet, or the size comes from `with_size`, which records no origin.
        has_pilot: whether the frequencies come from a pilot, whose clients were drawn from the same
            population as the clients of the campaign.
    """

    size: Chosen | None = None
    origin: Size | None = None
    has_pilot: bool = False

    # ---- the size ----

    def with_size(
        self,
        schedule: Schedule,
        rows: int,
        width: int,
        spelling: Spelling | None = None,
        encoding: Encoding = Encoding.SKETCH,
    ) -> Design:
        """Return this design with another size, and without an origin.

        The arguments are the attributes of `Chosen`.
        """
        return replace(self, size=Chosen(schedule, rows, width, spelling, encoding), origin=None)

    def sized_by(self, origin: Size) -> Design:
        """Return this design with another `origin`: how its rows and width were chosen."""
        return replace(self, origin=origin)

    def with_seed(self, seed: bytes) -> Design:
        """Return this design with the seed `seed`; `self` if it has this seed already."""
        return self if seed == self.seed else replace(self, seed=seed)

    def like(self, plan: Plan) -> Design:
        """Return this design with the size of `plan`, and with `origin` None."""
        return self.with_size(plan.schedule, plan.rows, plan.width, plan.spelling, plan.encoding)

    @property
    def chosen(self) -> Chosen:
        """The chosen size; call it only after a size is chosen."""
        assert self.size is not None
        return self.size

    def widest(self, schedule: Schedule, rows: int, max_bytes: int) -> Design:
        """Return this design with the widest sketch whose uploads fit a budget of bytes.

        The width is at most 2^24.

        Args:
            schedule: which rounds share their hashes.
            rows: the number of rows of the sketch.
            max_bytes: the most bytes that a client uploads in a round, in all messages together.

        Raises:
            InvalidInputError: not even one counter per row fits, or the rounds cannot be summed as
                requested.
        """
        least = self.with_size(schedule, rows, 1).plan()
        if least.bytes_per_client > max_bytes:
            protocol = "" if least.secure_sum is None else "this secure sum and "
            raise InvalidInputError(
                f"{arg.max_bytes} must be at least {least.bytes_per_client} for {protocol}one"
                f" counter of {least.modulus_bits} bits in each of {least.rows} rows, got"
                f" {max_bytes}; give more bytes, fewer rows or smaller cohorts"
            )
        counters = least.spec.vector_length  # at width 1: the counters that a wider row costs
        left = 8 * (max_bytes - least.bytes_per_client + 1)
        width = min(MAX_WIDTH, 2 + left // (counters * least.modulus_bits))
        design = self.with_size(schedule, rows, width)
        while (bytes_per_client := design.bytes_per_client) > max_bytes:
            excess = 8 * (bytes_per_client - max_bytes - 1)
            width -= max(1, excess // (counters * design.plan().modulus_bits))
            design = self.with_size(schedule, rows, width)
        return design

    # ---- for a fleet ----

    @classmethod
    def for_fleet(cls, spec: CampaignSpec, domain: Domain, num_clients: int, seed: bytes) -> Design:
        """Return a design without a size, for clients that will be drawn for rounds at random.

        Args:
            spec: the user's request, with all defaults filled in.
            domain: the candidates.
            num_clients: the number of clients (persons or silos) that may take part. Without a
                calendar each takes part in one round. With a calendar each takes part in as many
                rounds as it may, and the plan counts a client once for each of its rounds.
            seed: the 32 bytes from which the hashes are derived.

        Raises:
            InvalidInputError: there are fewer clients than rounds, or too many clients; the options
                of silos do not fit this number of silos (`Silos.check`); or no secure sum protects
                this number of silos.
        """
        rounds, participations = spec.size.num_rounds or 1, 1
        if spec.recurring is not None:
            participations = spec.recurring.participations
            num_clients *= spec.lifetime
        if num_clients < rounds:
            raise InvalidInputError(
                f"{arg.num_rounds} must be at most the number of clients, {num_clients:,}, got"
                f" {rounds:,}"
            )
        if num_clients > MAX_CLIENTS:
            raise InvalidInputError(
                f"num_clients must be at most {MAX_CLIENTS:,}, got {num_clients:,}"
            )
        sizes = sizes_with_extremes(num_clients, rounds)
        if spec.silos is not None:
            spec.silos.check(num_clients)
        largest = num_clients
        if not spec.hides_clients:  # otherwise the number of clients in a round is private
            largest = min(num_clients, max(sizes[-1], round_size_bounds(num_clients / rounds)[1]))
        clients = (num_clients, largest)
        design = cls(spec, domain, sizes, seed, clients, participations, has_room=rounds > 1)
        if spec.silos is not None:
            design._check_number_of_silos()
        return design

    def check_even_rounds(self) -> None:
        """Refuse requested sizes of cohorts that do not suit rounds of equal size (`check_rounds`).

        When a campaign runs, the driver fills its rounds evenly. In a simulation clients are drawn
        for rounds at random, so that `sizes` differ more.

        Raises:
            InvalidInputError: the sizes of cohorts do not suit rounds of equal size.
        """
        clients, rounds = self.clients[0], self.num_rounds
        check_rounds(self.spec.summation, [clients // rounds, -(-clients // rounds)])

    def _check_number_of_silos(self) -> None:
        """Refuse a number of silos that no secure sum protects; the error names better numbers."""
        summation = self.spec.summation
        try:  # a vector of one entry will do: whether terms exist does not depend on the vector
            terms(summation, self.sums(self.example), 1, 1, signed=True)
        except InvalidInputError as error:
            number, rounds = self.clients[0], self.num_rounds
            what = f"{number:,} silos{f' in {rounds} rounds' * (rounds > 1)}"
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
                what = f"sums that begin with {summation.min_cohort:,} silos ({opt.cohort_min})"
            fitting = in_ranges(fitting_numbers(borne, adversary, corrupt, most))
            raise InvalidInputError(
                f"{what} cannot be summed safely"
                f" against the adversary {adversary} with {opt.max_dropout(format(borne, 'g'))} and"
                f" {corrupt} corrupt: of up to {most} silos in a sum, {fitting} can;"
                f" {', or '.join(ways)}"
            ) from error

    # ---- copies with one request changed ----

    def with_tau(self, tau: float) -> Design:
        """Return this design with another `tau`, the largest error that it aims at."""
        return replace(self, spec=replace(self.spec, tau=tau))

    def with_epsilon(self, epsilon: float) -> Design:
        """Return this design with another epsilon; call it only if the request has privacy."""
        return replace(self, spec=self.spec.with_epsilon(epsilon))

    def with_bytes(self, max_bytes: int) -> Design:
        """Return this design with another budget of bytes that a client may upload in its round."""
        return replace(self, spec=self.spec.with_bytes(max_bytes))

    def with_clients(self, num_clients: int) -> Design:
        """Return the design for another number of clients, without a size.

        The request is adapted to the new number (`CampaignSpec.for_clients`). Silos keep the number
        of people per silo.

        Args:
            num_clients: the new number of clients that may take part; each client counts once.
        """
        spec = self.spec.for_clients(num_clients, self.fleet)
        return Design.for_fleet(spec, self.domain, num_clients, self.seed)

    def with_rounds(self, num_rounds: int) -> Design:
        """Return the design with another number of rounds, without a size."""
        spec = self.spec.with_rounds(num_rounds)
        return Design.for_fleet(spec, self.domain, self.fleet, self.seed)

    def with_cohorts(self, most: int) -> Design:
        """Return the design with cohorts of at most `most` clients, without a size."""
        spec = self.spec.with_cohorts(most)
        return Design.for_fleet(spec, self.domain, self.fleet, self.seed)

    def with_length(self, max_length: int) -> Design:
        """Return this design of an open domain with another bound on the names that can be read.

        The design keeps its size, if it has one, so the size must be chosen anew afterwards.

        Args:
            max_length: the most bytes of a string whose name can be read, 1 to 192. Longer strings
                are counted, too.

        Raises:
            InvalidInputError: the domain is not open, or `max_length` is out of range.
        """
        domain = OpenStrings.of(self.domain)
        shorter = OpenStrings(max_length, domain.bits, None, domain.normalise)
        return replace(self, domain=shorter)

    # ---- the plan ----

    @property
    def sizing(self) -> Size:
        """How rows and width were chosen; call it only if `origin` is not None."""
        assert self.origin is not None
        return self.origin

    @property
    def linf(self) -> float:
        """The predicted largest error of any frequency; 0 if `origin` has no predicted error.

        Call it only if `origin` is not None.
        """
        return self.sizing.linf or 0.0

    @property
    def bytes_per_client(self) -> int:
        """The most bytes that a client uploads in its round, in all messages together."""
        return self.plan().bytes_per_client

    def finish(
        self, random: Callable[[int], bytes], report: Callable[..., None]
    ) -> tuple[Plan, Keys | None]:
        """Return the finished plan with its public keys, and all keys.

        The keys are None if a trusted server sums. If the request wants a certificate, the hashes
        are certified for the guarantee, so that less noise is enough.

        Args:
            random: a function that returns as many random bytes as its argument says; the keys are
                made from these bytes.
            report: a function that is called with the progress of the search for the certificate.

        Raises:
            InvalidInputError: no noise or no secure sum protects as requested, or the request wants
                a certificate that the plan cannot have.
        """
        plan, keys = self.plan(), None
        if plan.secure_sum is not None:
            keys = make_keys(self.spec.summation, self.sums(plan.schedule), random)
            plan = replace(plan, secure_sum=replace_keys(plan.secure_sum, keys))
        asked = self.spec.privacy
        if asked is None or not asked.certify:
            return plan, keys
        if plan.max_items > 1 or (plan.privacy is not None and plan.privacy.event.per_release > 1):
            raise InvalidInputError(
                "certify is for clients of one item whose rounds are opened one by one: leave it"
                f" out, or use {opt.max_items(1)} and a schedule that adds up no two rounds of a"
                " client (hybrid, fresh)"
            )
        assert plan.privacy is not None
        return (
            replace(
                plan, privacy=plan.privacy.certified(worst_pair(plan.spec, self.domain, report))
            ),
            keys,
        )

    def plan(self) -> Plan:
        """Return the plan of this design, without keys; the design must have a size.

        The plan is made at the first call, and returned again at later calls. Its bytes are right,
        since they do not depend on keys.
        """
        return self._plan

    @cached_property
    def _plan(self) -> Plan:
        schedule, rows, width, spelling, encoding = self.chosen
        first_id = Vector(encoding).first_id(self.domain)
        sketch = SketchSpec(rows, width, schedule, self.num_rounds, self.seed, spelling, first_id)
        agreed = self._agreed(schedule, sketch.vector_length, encoding)
        privacy = self._guaranteed(sketch, agreed, encoding)
        if agreed is not None:
            entries = agreed.length
            added = Protection(privacy, schedule, self.num_rounds, has_secure_sum=True)
            noise = added.bound(entries, agreed.most_clients)
            agreed = self._with_room(agreed, added, noise, encoding)
        return Plan(
            rows,
            width,
            schedule,
            self.num_rounds,
            *self.clients,
            self.domain.describe(),
            self.spec.max_items,
            self.seed,
            secure_sum=agreed,
            privacy=privacy,
            target=self._target(rows, encoding),
            people=self.spec.people,
            spelling=spelling,
            encoding=encoding,
            calendar=None if self.spec.recurring is None else self.spec.recurring.calendar,
        )

    def _agreed(self, schedule: Schedule, counters: int, encoding: Encoding) -> Terms | None:
        """Return the terms of the secure sum, without room for noise; None for a trusted server."""
        clients = self.spec.clients
        largest, entries = clients.largest_entry(encoding), counters + clients.entries
        signed = encoding.is_signed
        return terms(self.spec.summation, self.sums(schedule), largest, entries, signed=signed)

    def _guaranteed(
        self, sketch: SketchSpec, agreed: Terms | None, encoding: Encoding
    ) -> PrivacyConfig | None:
        """Return the terms of privacy of the plan; None if the request has no privacy."""
        spec, asked = self.spec, self.spec.privacy
        if asked is None:
            return None
        return asked.make_terms(
            rows=sketch.touched,
            width=sketch.mean_width,
            counters=sketch.vector_length,
            schedule=sketch.schedule,
            max_items=spec.max_items,
            participations=self.participations,
            num_clients=self.sizes,
            most_clients=self.clients[1] if agreed is None else agreed.most_clients,
            honest_survivors=spec.summation.sharers(spec.noise_by, self.sizes, agreed),
            encoding=encoding,
            probability=spec.failure_probability * RISK,
            silos=spec.silos,
            per_rounds=None if spec.recurring is None else spec.recurring.per_rounds,
            lifetime=spec.lifetime,
            population=spec.accounting.population,
            not_private=spec.accounting.is_not_private,
        )

    def _target(self, rows: int, encoding: Encoding) -> Target | None:
        """Return the target of the plan: the requested `tau`; None if the request has no `tau`."""
        if self.spec.tau is None:
            return None
        named = "" if self.origin is None else self.origin.recovery
        recovery = named or self.spec.recovery_of(self.domain.size, rows, encoding)
        return Target(self.spec.tau, self.spec.failure_probability, recovery)


def _public_sizes(sizes: Sequence[int], natural: bool) -> tuple[int, int]:
    """Return two public numbers: the clients of all rounds, and the most clients of one round.

    If the rounds were drawn at random, the second number has room for another random split of the
    same clients, so that the plan can be used again.

    Args:
        sizes: the number of clients of each round.
        natural: whether the input names the rounds, so that they are not drawn at random.
    """
    total, largest = sum(sizes), max(sizes)
    if not natural and len(sizes) > 1:
        largest = min(total, max(largest, round_size_bounds(total / len(sizes))[1]))
    return total, largest
