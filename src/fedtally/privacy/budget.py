"""The rule of the privacy budget: may a campaign be charged, given the grant and earlier charges?

The rule is a pure function, without a database or a clock. A campaign is charged to the named
population whose clients take part in it. Its charge is its `Event`: what one client is exposed to
if it takes part in as many rounds as the event allows. A campaign is charged in full with its first
release, and not again with later releases. Each client's own record refuses further rounds
(`check_participation`). Populations that share clients must have one name, and so one total delta.

A *release* is what a campaign makes public at once: the sum of one round or of several rounds, as
the plan says. A release is *reserved* in the ledger before its sum is opened. Every reserved
release counts as spent, even if its sum was never opened: nobody can prove that a sum was not read.

A campaign may be planned in view of what earlier campaigns showed. The costs of such campaigns are
added up as if each were Gaussian (Smith and Thakurta 2022, Fully adaptive composition for Gaussian
differential privacy). If all have geometric noise, their epsilons may be added up instead. A ledger
may also add up Renyi divergences. Their order is fixed with the first campaign
(docs/privacy-proofs/renyi.md). A client's record has no such order, since the client's owner may
change a cap at any time, in view of what was seen. Composing privacy-loss distributions would give
smaller totals, but is not proven for such campaigns (Tran, Koskela, Raisa and Honkela 2026,
f-Differential privacy filters, arXiv 2602.06756).

What is guaranteed is only the grant, the limit of the total. The spend so far is information: the
moment at which somebody reads it may depend on what was seen.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg
from fedtally.privacy.accounting import MOST_ADAPTIVE, Composition, Guarantee
from fedtally.privacy.events import Event, Relation, countable, under_demand

DAY = 86_400  # seconds
MAX_DAYS = 3_660  # the longest period of a cap in days: ten years
NAME = "1 to 200 printable characters, no blanks at the ends"
MAX_RELEASE = 2**31 - 1  # the largest integer that a column holds in every database
MIN_DELTA = 1e-15  # the least delta above 0 of a grant: a smaller one is below rounding errors
# Hangul fillers and the empty Braille pattern: blank, but letters or symbols in Unicode
_WITHOUT_INK = "\u115f\u1160\u3164\uffa0\u2800"
_SEPARATORS = re.compile(r"[\s\-_\u2010-\u2015\u2212\u00b7\u2022\u30fb.]+")
_LOOK_ALIKES = str.maketrans(  # Cyrillic, Armenian, Greek, digits and bars -> the Latin look-alike
    "АВЕЅІЈКМНОРСТУХасеһіјѕорхуԁԛԝкмтнвօոսհΑΒΕΖΗΙΚΜΝΟΡΤΥΧαορνικυτχγηωıɑɡ01|Ӏӏǀ",  # noqa: RUF001
    "ABESIJKMHOPCTYXacehijsopxydqwkmthbonuhABEZHIKMNOPTYXaopvikutxynwiagolllll",
)


class AlreadySpentError(InvalidInputError):
    """Refuse to spend the same thing twice: a release of a plan, a client's round, or an item."""


class OverspentError(InvalidInputError):
    """Refuse a charge above a grant or a client's cap, or a round above the plan's limit."""


@dataclass(frozen=True)
class Grant:
    """A population's privacy budget: the most that all its campaigns may cost, as epsilon at delta.

    Raises:
        InvalidInputError: `checked_name` refuses the population's name; epsilon is outside (0,
            1000]; or delta is neither 0 nor in [1e-15, 1). With a delta of 0, all campaigns must
            have geometric noise.

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
    """The largest total cost that one client accepts for all campaigns together.

    The total does not depend on the names of populations and plans, since a server chooses these
    names.

    Args:
        epsilon: the largest total epsilon, above 0 and at most 1000.
        delta: the delta of the total, 1e-15 to below 1; or 0, with which all campaigns must have
            geometric noise.
        relation: the neighbouring relation of the total, zero-out or replace-one, or its name. It
            replaces the relations of the plans. One exception: if it is zero-out, and a plan hides
            the number of people in silos, the total is computed for add-remove
            (`events.under_demand`).
        per_days: the number of days, 1 to 3660, of the period that the cap is for. Each such
            period, whenever it begins, costs at most the cap; a longer time may cost more. None:
            the cap is for all time.

    Raises:
        InvalidInputError: a value is out of bounds.
    """

    epsilon: float
    delta: float
    relation: Relation = Relation.ZERO_OUT
    per_days: int | None = None

    def __post_init__(self) -> None:
        bounds = Grant("everything", self.epsilon, self.delta)  # a cap has the bounds of a grant
        object.__setattr__(self, "epsilon", bounds.epsilon)
        object.__setattr__(self, "delta", bounds.delta)
        object.__setattr__(self, "relation", countable(self.relation))
        if self.per_days is not None:
            days = validate.integer(1, MAX_DAYS, per_days=self.per_days)
            object.__setattr__(self, "per_days", days)

    def since(self, time: int) -> int:
        """Return the time after which a client's parts count for the cap, in Unix seconds.

        A part is one round that the client took part in. Without `per_days`, all parts count, and
        the result is -1.

        Args:
            time: the end of the cap's period, usually now, Unix seconds.

        >>> Cap(1.0, 1e-8, per_days=7).since(700_000), Cap(1.0, 1e-8).since(700_000)
        (95200, -1)
        """
        return -1 if self.per_days is None else time - self.per_days * DAY

    def total(self, charges: Sequence[Charge]) -> Composition:
        """Return the total cost of a client's parts, to compare with this cap.

        A part is one round that the client took part in. Without `per_days`, each campaign in
        `charges` costs its whole event, once. With `per_days`, a campaign costs only its parts in
        `charges`. The number of these parts may depend on what was seen. So, if there are several
        parts, they compose as several campaigns do (see `Composition`), even within one campaign.

        Args:
            charges: the client's parts after the time `since(...)`, a charge for each, at least
                one.

        Raises:
            InvalidInputError: see `Composition.of`.
        """
        # The populations of the charges are ignored. Otherwise a server could name a new population
        # in each plan, and so evade the cap.
        campaigns = {charge.plan: charge.event for charge in charges}
        if self.per_days is None:
            counted = list(campaigns.values())
        else:
            parts = Counter(charge.plan for charge in charges)
            counted = [event.of_parts(parts[plan]) for plan, event in campaigns.items()]
        total = Composition.of(under_demand(counted, self.relation), self.delta)
        # `under_demand` may compute the cost of two servers as the cost of one trusted server. The
        # guarantee still has the trust that the events themselves have.
        total = replace(total, trust=" and ".join(sorted({str(one.trust) for one in counted})))
        return total if self.per_days is None or len(charges) == 1 else replace(total, alone=None)

    @property
    def unit(self) -> str:
        """The words for what the cap limits, as they stand in error messages.

        >>> Cap(1.0, 1e-8, per_days=7).unit, Cap(1.0, 1e-8).unit
        ('any 7 days', 'everything in this record')
        """
        if self.per_days is None:
            return "everything in this record"
        return "any day" if self.per_days == 1 else f"any {self.per_days} days"


@dataclass(frozen=True)
class Charge:
    """One release of a plan that is charged, or shall be charged, to a population.

    Args:
        population: the population whose budget is charged.
        plan: the fingerprint of the plan.
        release: the number of the plan's release, from 0. In a client's own record it is the round
            that the client takes part in.
        event: what the whole campaign exposes of one client, with the variance of the noise. It is
            the same for each release of the plan.

    Raises:
        InvalidInputError: `checked_name` refuses `population` or `plan`, the release is out of
            bounds, or `event` is no Event or has no variance.
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
    """Return the given name, if it has 1 to 200 printable characters and no blanks at its ends.

    The name must also be in Unicode form NFC, in which each text has one encoding. Otherwise two
    names that look the same would have two budgets. A name in another form is refused, not
    converted, since it is part of a plan's fingerprint.

    Args:
        named: one keyword argument, whose value is the name. Errors name the keyword.

    Raises:
        InvalidInputError: the name does not meet these conditions.

    >>> checked_name(population="phones")
    'phones'
    """
    ((what, name),) = named.items()
    if not is_name(name):
        raise InvalidInputError(f"{arg[what]} must be {NAME}, got {name!r}")
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise InvalidInputError(
            f"{arg[what]} must be in Unicode form NFC, {composed!r} ({composed!a}), got {name!a}:"
            " type it anew"
        )
    return name


def is_name(name: object) -> bool:
    """Return whether a value is a name: 1 to 200 printable characters, no blanks at its ends.

    Any Unicode form will do; `checked_name` also demands the form NFC.

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
    """Return a string for comparing names: two names that look alike usually get the same string.

    Letter case, accents, compatibility forms (NFKD) and characters without ink make no difference.
    A run of blanks, hyphens, underscores or dots becomes one hyphen, or nothing at an end of the
    name. Look-alikes of Latin letters, such as Cyrillic letters, Greek letters and the digits 0 and
    1, become the Latin letter. Use the string for warnings only: it misses some look-alikes
    (Unicode TR 39 lists thousands), and can be equal for names that differ clearly.

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
    """Refuse a charge that a population's grant does not cover; return the total cost with it.

    Args:
        grant: the budget of the population `new.population`.
        charges: all earlier charges of this population, and all earlier charges of the plan
            `new.plan`, even to another population.
        new: the charge to reserve.

    Returns:
        The cost of all campaigns of the population together, at most the grant. None if the
        campaign of `new` was charged before, with another release: then `new` costs nothing more.

    Raises:
        AlreadySpentError: this release of the plan was charged before.
        OverspentError: the campaigns of the population, the new campaign included, would cost more
            than the grant; or they are several, and would cost more than epsilon 25.
        InvalidInputError: the plan was charged to another population or with another event; the
            neighbouring relations of the events differ, so that their costs cannot be added; the
            grant is for another population; or `Composition.of` or `Composition.guarantee` refuses
            the campaigns.

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
    """Check the total cost of a population's campaigns against its grant, and return this cost.

    Args:
        grant: the budget of the population.
        total: the composition (the running total) of all campaigns of the population, the new
            campaign included.
        plan: the fingerprint of the new campaign's plan, for the error message.

    Raises:
        OverspentError: the campaigns cost more than was granted; or several campaigns together cost
            more than epsilon 25 (`accounting.MOST_ADAPTIVE`).
        InvalidInputError: see `Composition.guarantee`.
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
    """Refuse a new charge of a plan that was charged to another population or with another event.

    Args:
        known: an earlier charge of the plan.
        new: the charge to check.

    Raises:
        InvalidInputError: the two charges differ in their population or their event.
    """
    # Otherwise a server could charge a plan to a second population, and spare the first, whose
    # clients took part.
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
    """Refuse a round if, with it, the client's rounds would cost more than the client's cap.

    Args:
        cap: the client's cap.
        charges: one charge for each round that the client took part in after the time
            `cap.since(...)`.
        new: the charge of the round that the client is asked to take part in.

    Raises:
        OverspentError: the rounds of `charges` and `new` would cost more than the cap; or they are
            of several campaigns, and would cost more than epsilon 25. With `per_days`, this limit
            is also for several rounds of one campaign.
        InvalidInputError: see `Composition.of` and `Composition.guarantee`.

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
    """Return the part of a granted epsilon that a total may reach: all of it for a single event.

    Several campaigns, or several parts of one (see `Cap.total`), may together reach at most epsilon
    25 (`accounting.MOST_ADAPTIVE`).
    """
    return epsilon if total.alone is not None else min(epsilon, MOST_ADAPTIVE)


def check_participation(charges: Sequence[Charge], new: Charge) -> None:
    """Refuse a round in which the client took part before, or a round above the plan's limit.

    The limit: a client may take part in at most `event.participations` rounds of a plan. With
    `event.per_rounds` = R, it may take part in at most `event.participations` of any R rounds in a
    row. Clients may take part in rounds in any order.

    Args:
        charges: one charge for each round that the client took part in before. They must include
            all such rounds of the plan `new.plan`; charges of other plans are ignored.
        new: the charge of the round that the client is asked to take part in.

    Raises:
        AlreadySpentError: the client took part in this round before.
        OverspentError: with this round, the client would exceed the plan's limit.
        InvalidInputError: an earlier charge of the plan has another population or event.

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
    """Return the earlier charges of the plan `new.plan`, in their order.

    Raises:
        AlreadySpentError: the release of `new` was charged before.
        InvalidInputError: an earlier charge of the plan has another population or event.
    """
    campaign = [charge for charge in charges if charge.plan == new.plan]
    for charge in campaign:
        check_campaign(charge, new)
        if charge.release == new.release:
            raise AlreadySpentError(
                f"release {new.release} of plan {new.plan} was reserved before and counts as spent"
            )
    return campaign
