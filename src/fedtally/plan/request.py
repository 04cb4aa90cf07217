"""The request for a campaign: its options, checked and with defaults, before there are clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.domain import Domain, OpenStrings
from fedtally.errors import InvalidInputError, opt
from fedtally.options import MAX_CORRUPT
from fedtally.plan import Clients, Plan, Summing
from fedtally.plan.calendar import Recurring
from fedtally.plan.parts.summation import Summation, unmet_by
from fedtally.plan.privacy import Privacy, resolve_privacy
from fedtally.plan.rules import COHORTS, PRIVACY, SIZES, Need, check, given, unmet
from fedtally.plan.secure_sum import cohort_sizes
from fedtally.plan.silos import Silos
from fedtally.privacy.budget import checked_name
from fedtally.privacy.config import POPULATION, PrivacyConfig, default_delta
from fedtally.privacy.events import Mechanism, NoiseBy, Relation
from fedtally.recovery.decoders import USUAL, Recovery
from fedtally.recovery.decoding import Decoding, recovery_of
from fedtally.secagg.config import SecureSum
from fedtally.secagg.params import Adversary
from fedtally.sketch import Schedule
from fedtally.sketch.count_sketch import MAX_ROUNDS
from fedtally.sketch.schedule import AUTO, BATCHED_AUTO, OWN_HASHES

_POSITIVE = partial(validate.integer, 1)


@dataclass(frozen=True)
class Request:
    """The options of a campaign, as the user gives them; each has a default.

    `resolve` checks them. The fields are keywords of `fedtally.estimate`, whose documentation
    explains them. Keywords that only a simulation has are missing here.
    """

    # keywords: written by tools/keywords.py
    domain: Domain | str | os.PathLike[str] | Sequence[str | int] | None = None
    recovery: str = "auto"
    objective: str = "linf"
    confidence: float = 0.95
    intervals: str = "auto"
    max_bytes: int | str | None = None
    tau: float | None = None
    failure_probability: float = 0.1
    width: int | None = None
    rows: int | None = None
    encoding: Encoding | str = "auto"
    num_rounds: int | None = None
    max_items: int | None = None
    schedule: Schedule | str = "auto"
    epsilon: float | None = None
    delta: float | None = None
    population: str | None = None
    trust: str | None = None
    mechanism: str | None = None
    neighbours: str | None = None
    max_rounds: int | None = None
    max_clients: int | None = None
    certify: bool = False
    secure_sum: str | None = None
    adversary: str | None = None
    max_dropout: float | None = None
    max_corrupt: float | None = None
    max_cohort: int | None = None
    validity: str | None = None
    cohort: int | None = None
    cohort_min: int | None = None
    plan: Plan | None = None
    # end of keywords

    def resolve(
        self,
        *,
        dropout: float = 0.0,
        not_private: bool = False,
        silos: Silos | None = None,
        recurring: Recurring | None = None,
    ) -> CampaignSpec:
        """Return the checked request, with defaults filled in; other code uses only this result.

        Args:
            dropout: the share of each cohort that drops out in a simulation, 0 <= dropout < 1.
            not_private: whether a run with privacy may use options that break privacy, such as a
                seed, the true frequencies, or the input's own items as candidates.
            silos: the options of silos; None: the input has no silos. For silos the relation is
                add-remove of a person, and the schedule is shared. With a given plan of silos,
                `silos` must be given, too; `silos.people` must be None and `silos.silos_per_person`
                1, because the plan states both numbers. With a given plan of persons, `silos` must
                be None.
            recurring: the options of a calendar; None: there is no calendar. With a calendar the
                schedule is hybrid or fresh.

        Raises:
            InvalidInputError: an option is out of bounds, or two options contradict each other.

        >>> spec = Request(epsilon=1.0, secure_sum="two-server").resolve()
        >>> spec.max_items, spec.accounting.population, str(spec.noise_by)
        (1, 'clients', 'servers')
        >>> spec.summation.max_dropout, Request(secure_sum="secagg").resolve().summation.max_corrupt
        (0.05, 0.05)
        """
        summation = self._summation(dropout)
        self._check_options(not_private)
        if recurring is not None:
            self._check_recurring(recurring, silos)
        silos = self._silos(silos)
        return CampaignSpec(
            domain=self._domain(),
            plan=self.plan,
            decoding=self._decoding(),  # checks the decoder's name, on which the size relies
            size=self._size(silos, recurring),
            max_items=self._max_items(),
            failure_probability=validate.inside(failure_probability=self.failure_probability),
            tau=None if self.tau is None else validate.inside(tau=self.tau),
            summation=summation,
            privacy=self._privacy(SecureSum.parse(summation.method), silos),
            accounting=self._accounting(not_private),
            silos=silos,
            recurring=recurring,
        )

    def _silos(self, asked: Silos | None) -> Silos | None:
        """Return the options of silos, of the given plan or else the user; None for persons."""
        if self.plan is not None:
            return _silos_of(self.plan, asked)
        if asked is not None:
            self._check_silos(asked)
        return asked

    def _privacy(self, method: SecureSum, silos: Silos | None) -> Privacy | None:
        """Return the requested privacy; None if no epsilon is requested.

        With a given plan there is no requested privacy: the plan states its privacy, if any.
        """
        if self.epsilon is None:
            return None
        return resolve_privacy(
            method,
            epsilon=self.epsilon,
            delta=None if self._needs_no_delta else self.delta,
            mechanism=self._mechanism(),
            trust=self.trust,
            neighbours=self.neighbours,
            silos=silos,
            max_clients=self.max_clients,
            certify=self.certify,
        )

    @property
    def _planned(self) -> PrivacyConfig | None:
        """The privacy of the given plan; None if the plan has no privacy, or no plan is given."""
        return None if self.plan is None else self.plan.privacy

    @property
    def _rows(self) -> int | None:
        """The number of rows, from the given plan or else from the user; None: not chosen yet."""
        return _checked(_POSITIVE, rows=self.rows) if self.plan is None else self.plan.rows

    def _accounting(self, not_private: bool) -> Accounting:
        """Return the options of privacy accounting.

        They come from the given plan if it has privacy, or else from the user.
        """
        planned = self._planned
        if planned is not None:
            return Accounting(
                population=planned.population,
                max_rounds=planned.event.participations,
                per_rounds=planned.event.per_rounds,
                is_not_private=not_private or planned.not_private,
            )
        population = POPULATION if self.population is None else self.population
        return Accounting(
            population=checked_name(population=population),
            max_rounds=_checked(_POSITIVE, max_rounds=self.max_rounds),
            is_not_private=not_private,
        )

    def _size(self, silos: Silos | None, recurring: Recurring | None) -> AskedSize:
        """Return the requested size; if a plan is given, rows and encoding come from it."""
        return AskedSize(
            rows=self._rows,
            width=_checked(_POSITIVE, width=self.width),
            max_bytes=_checked(validate.size, max_bytes=self.max_bytes),
            num_rounds=_checked(partial(_POSITIVE, MAX_ROUNDS), num_rounds=self.num_rounds),
            encoding=self._encoding(recurring),
            schedule=self._schedule(silos, recurring),
        )

    def _max_items(self) -> int:
        """Return the most items of one client in a round, of the given plan or else the user."""
        asked = _checked(_POSITIVE, max_items=self.max_items)
        return (asked or 1) if self.plan is None else self.plan.max_items

    def _decoding(self) -> Decoding:
        """Return the options for decoding the sums.

        Raises:
            InvalidInputError: an option is not valid, or the decoder needs more rows than the plan
                or the request has.
        """
        decoding = Decoding(self.recovery, self.objective, self.confidence, self.intervals)
        if self._rows is not None:
            decoding.check_rows(self._rows)
        return decoding

    def _schedule(self, silos: Silos | None, recurring: Recurring | None) -> Schedule | str:
        if recurring is not None and self.schedule == AUTO:
            return Schedule.parse("hybrid")
        if silos is not None and self.plan is None:
            return Schedule.parse("shared")
        is_chosen = self.schedule in (AUTO, BATCHED_AUTO)
        return self.schedule if is_chosen else Schedule.parse(self.schedule)

    def _summation(self, dropout: float) -> Summation:
        """Return how rounds are summed: as the plan says, if one is given that has a secure sum.

        Otherwise they are summed as the user asks.

        Args:
            dropout: the share of each cohort that drops out in a simulation, 0 <= dropout < 1.
        """
        if self.plan is None or self.plan.secure_sum is None:
            return self._asked_sum(dropout)
        return self._planned_sum(self.plan.summing, dropout)

    def _asked_sum(self, dropout: float) -> Summation:
        method, most, least = self.secure_sum or SecureSum.IDEAL, self.max_cohort, None
        adversary = self.adversary or Adversary.SEMI_HONEST
        if sizes := given(cohort=self.cohort, cohort_min=self.cohort_min):
            lacking = unmet_by(SecureSum.parse(method))
            check(sizes, lacking | unmet(no_max_cohort=most is not None))
            least, most = cohort_sizes(self.cohort, self.cohort_min, Adversary.parse(adversary))
        return Summation(
            method,
            adversary,
            dropout,
            MAX_CORRUPT if self.max_corrupt is None else self.max_corrupt,
            most,
            self.max_dropout,
            least,
            None if self.validity == AUTO else self.validity,
        )

    def _planned_sum(self, agreed: Summing, dropout: float) -> Summation:
        """Return the given plan's way to sum rounds.

        Raises:
            InvalidInputError: the user requests another way to sum, or options of cohorts.
        """
        planned, most, said = Adversary.SEMI_HONEST, None, ""
        if (cohorts := agreed.cohorts) is not None:
            planned, most = cohorts.parameters.adversary, cohorts.most_clients
            said = f" ({planned})"
        is_other = self.secure_sum not in (None, agreed.kind)
        if is_other or self.adversary not in (None, planned):
            asked = opt.secure_sum(self.secure_sum) if is_other else opt.adversary(self.adversary)
            raise InvalidInputError(
                f"the plan is summed by {agreed.kind}{said}, got {asked}: leave that out, or the"
                " plan"
            )
        check(given(**{name: getattr(self, name) for name in COHORTS}), unmet(no_plan=True))
        return Summation(agreed.kind, planned, dropout, max_cohort=most)

    @property
    def _needs_no_delta(self) -> bool:
        return self.delta == 0 and not isinstance(self.delta, bool)

    def _mechanism(self) -> Mechanism | None:
        """Return the requested distribution of noise; None if the user leaves it open.

        With a delta of 0 it is geometric noise.
        """
        asked = None if self.mechanism in (None, AUTO) else Mechanism.parse(self.mechanism)
        return Mechanism.GEOMETRIC if self._needs_no_delta else asked

    def _encoding(self, recurring: Recurring | None) -> Encoding | None:
        """Return the only encoding that the options allow; None if both encodings are possible.

        Raises:
            InvalidInputError: an option that only sketches have is given, and a histogram is
                requested; or the decoder or the noise does not suit the requested encoding.
        """
        planned = None if self.plan is None else self.plan.encoding
        named = planned if self.encoding == AUTO else Encoding.parse(self.encoding)
        decoder = given(recovery=self.recovery)
        decoded = Recovery.parse(self.recovery).encoding if decoder else None
        mechanism = self._mechanism()
        noised = tuple(Encoding) if mechanism is None else mechanism.encodings
        is_decided = len(noised) == 1
        of_sketches = given(
            rows=self.rows,
            width=self.width,
            schedule=None if str(self.schedule) in (AUTO, "shared") else self.schedule,
            certify=self.certify,
            domain=OpenStrings.kind if self._is_open else None,
            start=recurring,
        )
        check(
            {**of_sketches, **given(encoding=self.encoding), **decoder},
            unmet(
                gaussian=is_decided,
                sketch=Encoding.HISTOGRAM in (named, decoded),
                histogram=named not in (None, decoded),
            ),
        )
        if is_decided:
            return noised[0]
        return Encoding.SKETCH if of_sketches else named or decoded

    @property
    def _is_open(self) -> bool:
        return isinstance(self.domain, OpenStrings) or (
            isinstance(self.domain, str) and self.domain == OpenStrings.kind
        )

    def _domain(self) -> Domain | str | None:
        """Return the requested candidates; None if the user names none.

        If the given plan has an open domain, None and "open" mean this domain.
        """
        is_open = self.domain is None or (
            isinstance(self.domain, str) and self.domain == OpenStrings.kind
        )
        if self.plan is not None and self.plan.is_open and is_open:
            return OpenStrings.rebuild(self.plan.domain, {})
        if self.domain is None or isinstance(self.domain, Domain):
            return self.domain
        from fedtally.sources import domain_of  # imported late, because it loads readers of tables

        return domain_of(self.domain)

    def _check_silos(self, silos: Silos) -> None:
        # Silos need the schedule shared, in which rounds are added up before decoding. With other
        # schedules, the predicted error assumes similar rounds, whose clients are drawn at random.
        # Silos differ too much for that.
        check(
            given(
                secure_sum=self.secure_sum,
                silos_per_person=silos.beyond_column().get("silos_per_person"),
                max_rounds=self.max_rounds,
                epsilon=self.epsilon,
                schedule=None if str(self.schedule) == "shared" else self.schedule,
            ),
            unmet(
                persons=True,
                epsilon=self.epsilon is None,
                people=silos.people is None,
                one_round_of_silos=self.num_rounds != 1 and str(self.schedule),
            ),
        )

    def _check_recurring(self, recurring: Recurring, silos: Silos | None) -> None:
        """Refuse options that a campaign with a calendar cannot have."""
        several = None if recurring.participations == 1 else recurring.participations
        is_own = str(self.schedule) in (AUTO, *(kind.value for kind in OWN_HASHES))
        check(
            given(
                start=recurring,
                participations=several,
                per_rounds=recurring.per_rounds,
                schedule=None if is_own else self.schedule,
                neighbours=self.neighbours,
            ),
            unmet(
                persons=silos is not None,
                epsilon=self.epsilon is None,
                own_hashes=str(self.schedule),
                counted=True,
            ),
        )

    def _check_options(self, not_private: bool) -> None:
        """Refuse options that contradict each other, or that a given plan already decides."""
        validate.flag(certify=self.certify, not_private=not_private)
        plan, planned = self.plan, self._planned
        names = (
            *SIZES,
            *PRIVACY,
            "epsilon",
            "population",
            "schedule",
            "encoding",
            "recovery",
            "tau",
        )
        check(
            given(**{name: getattr(self, name) for name in names}, not_private=not_private),
            unmet(
                no_plan=plan is not None,
                private_plan=plan is not None and planned is None,
                epsilon=planned is None and self.epsilon is None,
                list=self._is_open or (plan is not None and plan.is_open),
                no_width=self.width is not None,
                delta=self._needs_no_delta,
                plan_population=planned is not None
                and self.population != planned.population
                and self.population,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class AskedSize:
    """The requested size of a sketch or histogram; None stands for a value that is chosen later.

    Attributes:
        encoding: whether items are counted in a sketch or in a histogram, or None.
        rows: the number of rows, from the given plan or else from the user, or None.
        width: the number of counters in a row, or None.
        max_bytes: the most bytes that a client may upload in a round. None: no limit if there is a
            tau, otherwise `DEFAULT_MAX_BYTES`, which a histogram may exceed (`plan.encodings`).
        num_rounds: the number of rounds among which clients are drawn at random. None: the rounds
            that a column of the input names, or the rounds of the given plan, or one round; for an
            open domain the planner may choose the number.
        schedule: a `Schedule`, or "auto" or "batched:auto", which leave the choice to the planner.
    """

    encoding: Encoding | None
    rows: int | None
    width: int | None
    max_bytes: int | None
    num_rounds: int | None
    schedule: Schedule | str

    def allows(self, encoding: Encoding) -> bool:
        """Return whether the request names this encoding, or names no encoding."""
        return self.encoding in (None, encoding)


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """The options of privacy accounting: whose budget is charged, and for how many rounds.

    Attributes:
        population: the name of the population whose privacy budget is charged.
        max_rounds: the most rounds of one client that count, if the input names the rounds; None:
            all rounds. If the input names no rounds, each client takes part in one round.
        is_not_private: whether the run may use options that break privacy; then nothing is
            guaranteed.
        per_rounds: the number of rounds in a row that `max_rounds` is about; None: it is about all
            rounds.
    """

    population: str
    max_rounds: int | None
    is_not_private: bool
    per_rounds: int | None = None


@dataclass(frozen=True, kw_only=True)
class CampaignSpec:
    """A checked request for a campaign, with all defaults that do not depend on the clients.

    Attributes:
        domain: the candidates, "input" or None, as in `Request`. What "input" and None mean depends
            on the source of the items.
        plan: the given plan, or None. A given plan decides size, schedule, rounds and privacy.
        size: the requested size.
        max_items: the most items of one client in a round.
        decoding: the options for decoding. Its decoder may be "auto"; `recovery_of` returns the
            decoder for whose errors the plan is made.
        summation: the way to sum rounds.
        privacy: the requested privacy; None: none is requested, or the given plan has it.
        accounting: the options of privacy accounting, from the given plan or else from the user.
        tau: the largest error that any frequency may have; None: there is no target.
        failure_probability: the probability with which tau may be exceeded, above 0 and below 1.
        silos: the options of silos; None: clients are persons.
        recurring: the options of a calendar; None: there is no calendar.
    """

    domain: Domain | str | None
    plan: Plan | None
    size: AskedSize
    max_items: int
    decoding: Decoding
    summation: Summation
    privacy: Privacy | None
    accounting: Accounting
    tau: float | None
    failure_probability: float
    silos: Silos | None
    recurring: Recurring | None = None

    @cached_property
    def clients(self) -> Clients:
        """The kind of clients: persons or silos."""
        return Clients(self.people, self.max_items)

    @property
    def people(self) -> int:
        """The most people whose items one client holds; 1 for persons."""
        return 1 if self.silos is None else self.silos.most

    def with_people(self, largest: int) -> CampaignSpec:
        """Return the spec for silos of at most `largest` people each.

        The spec is returned unchanged if clients are persons, or if the user requests a number of
        people.
        """
        if self.silos is None or self.silos.people is not None:
            return self
        # at least 2, even if no silo has more than one person: 1 would mean clients without silos
        return replace(self, silos=replace(self.silos, people=max(2, largest)))

    @property
    def relation(self) -> Relation | None:
        """The relation between two inputs that must look alike; None if there is no privacy.

        It comes from the given plan, or else from the user.
        """
        if self.plan is not None and self.plan.privacy is not None:
            return self.plan.privacy.event.relation
        return None if self.privacy is None else Relation.parse(self.privacy.relation)

    @property
    def hides_clients(self) -> bool:
        """Whether the privacy guarantee hides the number of clients; False for silos."""
        return self.relation is not None and self.clients.are_hidden(self.relation)

    @property
    def is_private(self) -> bool:
        """Whether the campaign has differential privacy, even if it is marked `not_private`."""
        return self.relation is not None

    def with_delta(self, num_clients: int) -> CampaignSpec:
        """Return the spec with the default delta (`default_delta`) for `num_clients` clients.

        It is returned unchanged if it has no privacy, or if the user requests a delta or
        `max_clients`.
        """
        asked = self.privacy
        if asked is None or asked.delta is not None or asked.max_clients is not None:
            return self
        return replace(self, privacy=replace(asked, delta=default_delta(max(1, num_clients))))

    @property
    def lifetime(self) -> int:
        """The most rounds of the calendar that one client may be in; 1 without a calendar."""
        return 1 if self.recurring is None else self.recurring.lifetime

    def with_epsilon(self, epsilon: float) -> CampaignSpec:
        """Return the spec with another epsilon; call it only if the spec has `privacy`."""
        assert self.privacy is not None
        return replace(self, privacy=replace(self.privacy, epsilon=epsilon))

    def with_bytes(self, max_bytes: int | None) -> CampaignSpec:
        """Return the spec with another limit of upload bytes.

        Args:
            max_bytes: the most bytes that a client may upload in a round. None: no limit if there
                is a tau, otherwise `DEFAULT_MAX_BYTES`.
        """
        return replace(self, size=replace(self.size, max_bytes=max_bytes))

    def with_rounds(self, num_rounds: int | None) -> CampaignSpec:
        """Return the spec with another number of rounds; None: the rounds that the input names."""
        return replace(self, size=replace(self.size, num_rounds=num_rounds))

    def with_encoding(self, encoding: Encoding) -> CampaignSpec:
        """Return the spec that allows only this encoding."""
        return replace(self, size=replace(self.size, encoding=encoding))

    def with_cohorts(self, most: int) -> CampaignSpec:
        """Return the spec with cohorts of at most `most` clients."""
        return replace(self, summation=replace(self.summation, max_cohort=most))

    def for_clients(self, number: int, before: int) -> CampaignSpec:
        """Return the spec for another number of clients.

        For silos, the expected number of people is changed in proportion. A requested `max_clients`
        becomes the new number.

        Args:
            number: the new number of clients.
            before: the number of clients that the spec was made for.
        """
        spec = self
        if spec.silos is not None and spec.silos.expected is not None:
            expected = -(-spec.silos.expected * number // before)
            spec = replace(spec, silos=replace(spec.silos, expected=expected))
        if spec.privacy is not None and spec.privacy.max_clients is not None:
            spec = replace(spec, privacy=replace(spec.privacy, max_clients=number))
        return spec

    def for_ledger(self) -> CampaignSpec:
        """Return the spec for a campaign that shares the privacy budget of a ledger.

        The spec gets the usual distribution of noise, unless the user requests a distribution. In a
        single campaign with a histogram, geometric noise may have the smaller error. But the
        epsilons of several campaigns with geometric noise add up. With Gaussian noise the total
        epsilon grows only like the square root of the number of campaigns. Beside campaigns with
        Gaussian noise, one with geometric noise costs even more than its epsilon. A pilot never has
        geometric noise, because it is a sketch.
        """
        asked = self.privacy
        if asked is None or asked.mechanism is not None:
            return self
        return replace(self, privacy=replace(asked, mechanism=asked.noise_by.mechanisms[0]))

    def for_pilot(
        self, *, rows: int, width: int | None, max_bytes: int | None, num_rounds: int | None
    ) -> CampaignSpec:
        """Return the spec of a pilot: a sketch of the given size, with the noise of this request.

        A pilot has no target and no certificate. With privacy, each of its clients takes part in
        one round.

        Args:
            rows: the number of rows of the pilot's sketch.
            width: the number of counters in a row; None: the largest that `max_bytes` allows.
            max_bytes: the most bytes that a client may upload, if no width is given.
            num_rounds: the number of rounds of the pilot; None: the rounds that the input names.
        """
        return replace(
            self,
            size=AskedSize(
                encoding=Encoding.SKETCH,
                rows=rows,
                width=width,
                max_bytes=max_bytes,
                num_rounds=num_rounds,
                schedule=Schedule.parse("shared"),
            ),
            tau=None,
            accounting=replace(self.accounting, max_rounds=None),
            privacy=None if self.privacy is None else replace(self.privacy, certify=False),
        )

    @property
    def noise_by(self) -> NoiseBy | None:
        """The party that adds the requested noise; None if the spec has no `privacy`."""
        return None if self.privacy is None else self.privacy.noise_by

    @property
    def hides_sums(self) -> bool:
        """Whether nobody may see the sum of a single round.

        Everybody may see it without privacy. Everybody may see it, too, if it is summed in cohorts
        and the clients add the noise: the sum then holds the noise from the beginning. Only the
        request is looked at: with a given plan the result is False.
        """
        seen = {None: True, NoiseBy.CLIENTS: self.summation.has_cohorts}
        return not seen.get(self.noise_by, False)

    def cannot_end(self) -> dict[Need, str]:
        """Return the needs of the option `until_known` that this request does not meet.

        The values are texts about what is given instead, as in `plan.rules.unmet`. These needs can
        be checked before there is a plan. `plan.stopping.check_stopping` checks all needs of the
        option once the plan is made.
        """
        return unmet(
            sketch=not self.size.allows(Encoding.SKETCH),
            persons=self.silos is not None,
            not_two_server=not self.summation.opens_rounds,
            noise_of_clients=self.hides_sums,
        )

    def recovery_of(
        self, domain_size: int, rows: int | None = None, encoding: Encoding = Encoding.SKETCH
    ) -> str:
        """Return the name of the decoder whose error is predicted for the plan.

        If the user requests "auto", another decoder may decode the answer: see
        `plan.chosen_decoder`.

        Args:
            domain_size: the number of candidates.
            rows: the number of rows of the sketch; None: the requested number, or else enough rows
                for any decoder.
            encoding: whether items are counted in a sketch or in a histogram, if the request leaves
                it open.
        """
        enough = rows or self.size.rows or USUAL.fewest_rows
        # the argument `encoding` counts only if the request names no encoding
        asked, chosen = self.decoding.recovery, self.size.encoding or encoding
        return recovery_of(asked, domain_size, enough, chosen, planned=True)


def _silos_of(plan: Plan, asked: Silos | None) -> Silos | None:
    """Return the options of silos that a given plan has; None if its clients are persons.

    Args:
        plan: the given plan.
        asked: the options of silos from the user; None: the input has no silos.

    Raises:
        InvalidInputError: only one of the plan and the input has silos; or the user gives options
            of silos, which the plan decides.
    """
    are_silos = plan.is_of_silos
    check(
        {"plan": plan} if asked is None else {"silo": True, **asked.beyond_column()},
        unmet(no_plan=are_silos, silo_plan=not are_silos, silo_column=are_silos),
    )
    if asked is None:
        return None
    each = 1 if plan.privacy is None else plan.privacy.event.silos_per_person
    return Silos(plan.people, each)


def _checked(check: Callable[..., int], **asked: Any) -> int | None:
    """Return an option's value as `check` returns it; None if the option is not given.

    Args:
        check: a function that checks the value, which gets it as a keyword.
        asked: one keyword: the name of the option, and its value or None.
    """
    [value] = asked.values()
    return None if value is None else check(**asked)
