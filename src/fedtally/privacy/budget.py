"""The rule of the privacy budget: may a campaign be charged, given the grant and earlier charges?

The rule is a pure function, without a database or a clock. What is charged is a campaign, to a
named population. The campaign's `Event` says what one client is exposed to in at most
`event.participations` of its rounds together. A campaign is charged in full with its first release,
and not again for later ones. Each client's own record makes sure that the client takes part no more
often (`check_participation`). Populations that overlap are one population, with one total delta.

A *release* is what a campaign makes public at once: one of the releases of its plan, however many
cohorts are summed for it. A reservation counts as spent, whether or not anything was opened
afterwards: nobody can prove that a sum was not read.

Campaigns may be planned in view of what earlier ones showed. Several such campaigns compose as
Gaussians (Smith and Thakurta 2022, Fully adaptive composition for Gaussian differential privacy).
In a ledger they also compose by Renyi divergences of an order that is fixed with the first campaign
(docs/privacy-proofs/renyi.md). A client's record has no such order, since its owner may change a
cap at any time, in view of what was seen. For such campaigns, composing loss distributions does not
hold in general (Tran, Koskela, Raisa and Honkela 2026, f-Differential privacy filters, arXiv
2602.06756).

What is guaranteed is then the grant. The spend so far is information only, since the moment at
which somebody reads it may depend on what was seen.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.privacy.accounting import MOST_ADAPTIVE, Composition, Guarantee
from fedtally.privacy.events import Event, Relation, countable, under_demand

DAY = 86_400  # seconds
MAX_DAYS = 3_660  # the longest period of a cap in days: ten years
NAME = "1 to 200 printable characters, no blanks at the ends"
MAX_RELEASE = 2**31 - 1  # the largest integer that a column holds in every database
MIN_DELTA = 1e-15  # each secure sum takes 2^-40 of it, and floating point errs by as much
# Hangul fillers and the empty Braille pattern: they are blank, but Unicode counts them as letters
_WITHOUT_INK = "\u115f\u1160\u3164\uffa0\u2800"
_SEPARATORS = re.compile(r"[\s\-_\u2010-\u2015\u2212\u00b7\u2022\u30fb.]+")
_LOOK_ALIKES = str.maketrans(  # Cyrillic, Armenian, Greek, digits and bars -> the Latin look-alike
    "АВЕЅІЈКМНОРСТУХасеһіјѕорхуԁԛԝкмтнвօոսհΑΒΕΖΗΙΚΜΝΟΡΤΥΧαορνικυτχγηωıɑɡ01|Ӏӏǀ",  # noqa: RUF001
    "ABESIJKMHOPCTYXacehijsopxydqwkmthbonuhABEZHIKMNOPTYXaopvikutxynwiagolllll",
)


class AlreadySpentError(InvalidInputError):
    """A release of a plan, a participation in a round, or an item would be spent twice."""


class OverspentError(InvalidInputError):
    """A spend exceeds the grant or cap, or the participations that a client guaranteed."""


@dataclass(frozen=True)
class Grant:
    """The budget of a population: the largest epsilon of all its campaigns, at one total delta.

    Raises:
        InvalidInputError: the name is empty or unprintable; epsilon is outside (0, 1000]; or delta
            is neither in [1e-15, 1) nor 0, which allows geometric noise alone.

    >>> Grant("phones", 4.0, 1e-6)
    Grant(population='phones', epsilon=4.0, delta=1e-06)
    """

    population: str
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        checked_name(population=self.population)
        object.__setattr__(self, "epsilon", validate.real(0.0, 1000.0, epsilon=self.epsilon))
        object.__setattr__(self, "delta", validate.real(0.0, 1.0, delta=self.delta))
        if self.epsilon == 0 or not (self.delta == 0 or MIN_DELTA <= self.delta < 1):
            raise InvalidInputError(
                f"a grant needs epsilon above 0 and delta from {MIN_DELTA:g} to below 1, or 0 for"
                " geometric noise alone,"
                f" got epsilon {self.epsilon:g} and delta {self.delta:g}"
            )


@dataclass(frozen=True)
class Cap:
    """The most that all campaigns of one client may cost together.

    Populations and plans do not matter: a server chooses their names.

    Args:
        epsilon: the largest total epsilon, above 0 and at most 1000.
        delta: the delta of the total, 1e-15 to below 1; or 0, which allows geometric noise alone.
        relation: the neighbouring relation of the total, zero-out or replace-one, or its name. The
            relations of the plans do not matter, with one exception: if this is zero-out and a plan
            hides the number of people (silos), the total is for add-remove.
        per_days: the length of the period that the cap is for, 1 to 3660 days in a row. Over a
            longer time the cost may be larger. None: the cap is for all time.

    Raises:
        InvalidInputError: a value is out of bounds.
    """

    epsilon: float
    delta: float
    relation: Relation = Relation.ZERO_OUT
    per_days: int | None = None

    def __post_init__(self) -> None:
        bounds = Grant("everything", self.epsilon, self.delta)  # epsilon and delta have its bounds
        object.__setattr__(self, "epsilon", bounds.epsilon)
        object.__setattr__(self, "delta", bounds.delta)
        object.__setattr__(self, "relation", countable(self.relation))
        if self.per_days is not None:
            days = validate.integer(1, MAX_DAYS, per_days=self.per_days)
            object.__setattr__(self, "per_days", days)

    def since(self, time: int) -> int:
        """Return the start of the period of the cap, Unix seconds; only later parts count.

        A part is a round that the client took part in. Without `per_days` all parts count: -1.

        Args:
            time: the end of the period, by the record's time, Unix seconds.

        >>> Cap(1.0, 1e-8, per_days=7).since(700_000), Cap(1.0, 1e-8).since(700_000)
        (95200, -1)
        """
        return -1 if self.per_days is None else time - self.per_days * DAY

    def total(self, charges: Sequence[Charge]) -> Composition:
        """Return what a client's parts cost together, as this cap counts them.

        Without `per_days`, each campaign counts in full, once. With it, a campaign counts only with
        its parts in `charges`. Their number may depend on what was seen, so that several parts
        compose as Gaussians, even if they are of one campaign.

        Args:
            charges: the parts in the period of the cap (see `since`), at least one.

        Raises:
            InvalidInputError: as `Composition.of`.
        """
        # by plan, whatever the population: a server could name a new population in each plan
        campaigns = {charge.plan: charge.event for charge in charges}
        if self.per_days is None:
            counted = list(campaigns.values())
        else:
            parts = Counter(charge.plan for charge in charges)
            counted = [event.of_parts(parts[plan]) for plan, event in campaigns.items()]
        total = Composition.of(under_demand(counted, self.relation), self.delta)
        return total if self.per_days is None or len(charges) == 1 else replace(total, alone=None)

    @property
    def unit(self) -> str:
        """The period of the cap, in words.

        >>> Cap(1.0, 1e-8, per_days=7).unit, Cap(1.0, 1e-8).unit
        ('any 7 days', 'everything in this record')
        """
        if self.per_days is None:
            return "everything in this record"
        return "any day" if self.per_days == 1 else f"any {self.per_days} days"


@dataclass(frozen=True)
class Charge:
    """One release of a plan, charged to a population; the release may be opened already or later.

    Args:
        population: the population whose budget is charged.
        plan: the fingerprint of the plan.
        release: the number of the plan's release, from 0. In a client's own record it is the round
            that the client takes part in.
        event: the event of the whole campaign, the same for each of its releases, with its
            variance.

    Raises:
        InvalidInputError: a name that `checked_name` refuses, a release out of bounds, or an event
            without variance.
    """

    population: str
    plan: str
    release: int
    event: Event

    def __post_init__(self) -> None:
        checked_name(population=self.population)
        checked_name(plan=self.plan)
        object.__setattr__(self, "release", validate.integer(0, MAX_RELEASE, release=self.release))
        if not isinstance(self.event, Event):
            raise InvalidInputError(f"event must be an Event of the accountant, got {self.event!r}")
        _ = self.event.noise_variance


def checked_name(**named: str) -> str:
    """Return a name of 1 to 200 printable characters without blanks at its ends.

    Errors call the name by its keyword. The name must be in Unicode form NFC, in which a text has
    one encoding. Otherwise two names that look the same would be two budgets. Another form is
    refused and not converted, since the name is part of the fingerprint of plans.

    >>> checked_name(population="phones")
    'phones'
    """
    ((what, name),) = named.items()
    if not is_name(name):
        raise InvalidInputError(f"{what} must be {NAME}, got {name!r}")
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise InvalidInputError(
            f"{what} must be in Unicode form NFC, {composed!r} ({composed!a}), got {name!a}: type"
            " it anew"
        )
    return name


def is_name(name: object) -> bool:
    """Return whether a value is a name as `checked_name` demands, but in any Unicode form.

    >>> is_name("phones"), is_name(" phones"), is_name(b"phones")
    (True, False, False)
    """
    return (
        isinstance(name, str)
        and 0 < len(name) <= 200
        and name.isprintable()
        and name == name.strip()
    )


def appearance(name: str) -> str:
    """Return a key that is equal for names which are easily confused.

    The key ignores letter case, accents, compatibility forms (NFKD) and characters without ink.
    Blanks, hyphens and underscores become one hyphen. Common look-alikes of Latin letters, such as
    Cyrillic and Greek letters and digits, become that letter. Use it for warnings only: it misses
    some look-alikes (Unicode TR 39 lists thousands), and may match names that differ clearly.

    >>> appearance("phones-2")
    'phones-2'
    >>> appearance("Phones-1") == appearance("\N{CYRILLIC SMALL LETTER ER}hones l")
    True
    """
    parts = unicodedata.normalize("NFKD", name)
    inked = (
        one
        for one in parts
        if unicodedata.category(one) not in ("Mn", "Me") and one not in _WITHOUT_INK
    )
    letters = "".join(inked).translate(_LOOK_ALIKES).casefold()
    return _SEPARATORS.sub("-", letters).strip("-")


def check_spend(grant: Grant, charges: Sequence[Charge], new: Charge) -> Guarantee | None:
    """Return what a population has spent once the new charge is reserved, or refuse the charge.

    Args:
        grant: the grant of the population of `new`.
        charges: all earlier charges, reserved or spent, of that population and of the new plan.
        new: the charge to reserve.

    Returns:
        The cost of all campaigns together, at most the grant. None if the campaign was charged
        before, with an earlier release.

    Raises:
        AlreadySpentError: the release was reserved before.
        OverspentError: the campaign would cost more than is left.
        InvalidInputError: the plan was charged to another population or with another event; the
            events do not compose, since their neighbouring relations differ; or the grant is of
            another population.

    >>> event = Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)
    >>> grant, first = Grant("phones", 1.4, 1e-6), Charge("phones", "plan-a", 0, event)
    >>> print(check_spend(grant, [], first))
    epsilon 0.9999 at delta 1e-06 (zero-out, central trust, privacy-loss-distribution)
    >>> check_spend(grant, [first], Charge("phones", "plan-b", 0, event))
    Traceback (most recent call last):
    ...
    fedtally.privacy.budget.OverspentError: plan plan-b would take population 'phones' to ...
    """
    if grant.population != new.population:
        raise InvalidInputError(
            f"the grant is of population {grant.population!r}, not of {new.population!r}"
        )
    # A campaign is charged in full with its first release, since its event covers all releases.
    if _campaign(charges, new):
        return None
    campaigns = {
        charge.plan: charge.event for charge in charges if charge.population == new.population
    }
    return check_total(
        grant, Composition.of([*campaigns.values(), new.event], grant.delta), new.plan
    )


def check_total(grant: Grant, total: Composition, plan: str) -> Guarantee:
    """Return what all campaigns of a population cost together, or refuse the new one.

    Args:
        grant: the grant of the population.
        total: the composition of the population's campaigns, with the new one.
        plan: the fingerprint of the new campaign's plan.

    Raises:
        OverspentError: the campaigns cost more than was granted; or several campaigns together cost
            more than epsilon 25 (`accounting.MOST_ADAPTIVE`).
        InvalidInputError: as `Composition.guarantee`.
    """
    cost, most = total.guarantee, _spendable(grant.epsilon, total)
    if cost.epsilon > most:
        limit = "" if most == grant.epsilon else f", of which several campaigns may spend {most:g}"
        raise OverspentError(
            f"plan {plan} would take population {grant.population!r} to {cost}, and epsilon"
            f" {grant.epsilon:g} was granted{limit}; a plan with more noise or fewer participations"
            " costs less"
        )
    return cost


def check_campaign(known: Charge, new: Charge) -> None:
    """Refuse a charge of a plan that was charged to another population, or with another event.

    Args:
        known: an earlier charge of the plan.
        new: the charge to check.

    Raises:
        InvalidInputError: the two charges differ in their population or their event.
    """
    # A plan that could be charged to a second population would be charged there in place of the
    # first, whose clients took part.
    if known.population != new.population:
        raise InvalidInputError(
            f"plan {new.plan} was charged to population {known.population!r}: a plan has one"
            " population"
        )
    if known.event != new.event:
        raise InvalidInputError(
            f"plan {new.plan} was charged with another event: a plan has one event"
        )


def check_cap(cap: Cap, charges: Sequence[Charge], new: Charge) -> None:
    """Refuse a client's part in a round if its parts would then cost more than the cap.

    Args:
        cap: the cap of the client.
        charges: the rounds that the client took part in before, after the time `cap.since`.
        new: the round that the client is asked to take part in.

    Raises:
        OverspentError: these rounds together would cost more than the cap.
        InvalidInputError: as `accounting.epsilon`.

    >>> event = Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)
    >>> first = Charge("phones", "plan-a", 0, event)
    >>> check_cap(Cap(1.4, 1e-6), [], first)
    >>> check_cap(Cap(1.4, 1e-6), [first], Charge("anybody else", "plan-b", 0, event))
    Traceback (most recent call last):
    ...
    fedtally.privacy.budget.OverspentError: plan plan-b would take everything in this record to ...
    """
    total = cap.total((*charges, new))
    most = _spendable(cap.epsilon, total)
    if total.guarantee.epsilon > most:
        part = f", of which several campaigns may spend {most:g}" if most < cap.epsilon else ""
        raise OverspentError(
            f"plan {new.plan} would take {cap.unit} to {total.guarantee}, and its cap is epsilon"
            f" {cap.epsilon:g}{part}"
        )


def _spendable(epsilon: float, total: Composition) -> float:
    """Return how much of a granted epsilon the campaigns of a total may spend.

    Several campaigns may spend at most epsilon 25 (`accounting.MOST_ADAPTIVE`).
    """
    return epsilon if total.alone is not None else min(epsilon, MOST_ADAPTIVE)


def check_participation(charges: Sequence[Charge], new: Charge) -> None:
    """Refuse a client's part in a round if it took part in that round before, or too often.

    A client takes part in at most `event.participations` rounds of a plan. With `event.per_rounds`,
    this is the limit for any such number of rounds in a row. Rounds may come in any order.

    Args:
        charges: the rounds that this client took part in before; those of this plan must be there.
        new: the round that the client is asked to take part in.

    Raises:
        AlreadySpentError: the client took part in that round.
        OverspentError: the client took part in as many rounds as it guaranteed.
        InvalidInputError: the plan came with another population or another event before.

    >>> event = Event(
    ...     "skellam", 5, "zero-out", variance=500.0, honest_survivors=90, participations=2)
    >>> first, second, third = (Charge("phones", "plan-a", round, event) for round in range(3))
    >>> check_participation([first], second)
    >>> check_participation([first, second], third)
    Traceback (most recent call last):
    ...
    fedtally.privacy.budget.OverspentError: the client took part in 2 rounds of plan plan-a, of ...
    """
    taken = [charge.release for charge in _campaign(charges, new)]
    if not new.event.allows(taken, new.release):
        most, in_a_row = new.event.participations, new.event.per_rounds
        which = "" if in_a_row is None else f" of any {in_a_row} in a row"
        raise OverspentError(
            f"the client took part in {len(taken)} rounds of plan {new.plan}, of {most}{which} that"
            " it may take part in: it sits this one out"
        )


def _campaign(charges: Sequence[Charge], new: Charge) -> list[Charge]:
    """Return the earlier charges of the plan of `new`.

    Raises:
        AlreadySpentError: one of them is of the same release.
        InvalidInputError: one of them is of another population or event.
    """
    campaign = [charge for charge in charges if charge.plan == new.plan]
    for charge in campaign:
        check_campaign(charge, new)
        if charge.release == new.release:
            raise AlreadySpentError(
                f"release {new.release} of plan {new.plan} was reserved before and counts as spent"
            )
    return campaign
