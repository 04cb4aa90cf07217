"""The demands of a client on a plan's privacy, whatever the plan says of itself.

>>> from fedtally.privacy.config import propose
>>> policy = PrivacyPolicy(epsilon=1.0, delta=1e-6, trust="central")
>>> policy.check(propose(epsilon=1.0, delta=1e-6, rows=5, width=1000))
>>> policy.check(propose(epsilon=1.1, delta=1e-6, rows=5, width=1000))
Traceback (most recent call last):
...
fedtally.privacy.policy.WeakPrivacyError: this client's policy demands epsilon 1 at most, and ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg
from fedtally.privacy.accounting import demanded_delta
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.events import Relation, Trust, under_demand


class WeakPrivacyError(InvalidInputError):
    """Refuse a plan that is not proven to protect this client as its policy demands."""


@dataclass(frozen=True, kw_only=True)
class PrivacyPolicy:
    """The demands of a client on the privacy of a plan, before it takes part.

    They are compared with what is proven for the plan's event, at this delta and for this relation.
    The epsilon and the delta that the plan states are its maker's words, and do not count.

    Args:
        epsilon: the largest epsilon, above 0, for the whole campaign of one plan.
            `store.ClientRecord.cap` bounds all campaigns together. With `per_part` for one part.
        delta: the largest delta, from 0 to below 1; choose one below 1 / clients. At 0 only
            geometric noise is proven to be enough.
        relation: the data sets that shall look alike, or the name. `add-remove` is proven for
            plans that charge the noise of their number of people, such as those of silos; for
            these zero-out is read as add-remove.
        trust: the parties that the client trusts with the noise, or the name: `distributed`, or
            also `central`.
        not_private: whether the client accepts a plan that is marked as not private, which
            guarantees nothing.
        per_part: whether the epsilon is for one part in a round, and not for a whole campaign. A
            cap in days then bounds how many parts there are.

    Raises:
        InvalidInputError: a value is out of bounds.
    """

    epsilon: float
    delta: float
    relation: Relation = Relation.ZERO_OUT
    trust: Trust = Trust.DISTRIBUTED
    not_private: bool = False
    per_part: bool = False

    def __post_init__(self) -> None:
        epsilon = validate.real(0.0, epsilon=self.epsilon)
        if epsilon == 0:
            raise InvalidInputError(
                f"{arg.epsilon} must be above 0, got 0: no sum of data is that private"
            )
        # names become the values that `check` compares; the class is frozen, hence the detour
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", demanded_delta(self.delta))
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        object.__setattr__(self, "trust", Trust.parse(self.trust))
        validate.flag(not_private=self.not_private)
        validate.flag(per_part=self.per_part)

    def check(self, terms: PrivacyConfig | None) -> None:
        """Refuse a plan that protects less than this policy demands.

        Args:
            terms: the privacy terms of the plan, or None if it has no privacy.

        Raises:
            WeakPrivacyError: names the demand and what the plan has.
        """
        for reason in self.refusals(terms):
            raise WeakPrivacyError(reason)

    def _relation_for(self, terms: PrivacyConfig) -> Relation:
        [event] = under_demand([terms.event], Relation.ZERO_OUT)
        return event.relation if self.relation is Relation.ZERO_OUT else self.relation

    def refusals(self, terms: PrivacyConfig | None) -> Iterator[str]:
        """Yield every reason why `check` refuses a plan, the first one first."""
        if terms is None:
            yield (
                "this client's policy (epsilon) demands differential privacy, and the plan has"
                " none: take part in a plan with an epsilon"
            )
            return
        if terms.not_private and not self.not_private:
            yield (
                "this client's policy demands a private plan, and the plan is marked as not"
                " private, which guarantees nothing"
            )
        # Who accepts an aggregator accepts the clients' own noise too, which trusts nobody more.
        if terms.event.trust is Trust.CENTRAL and self.trust is not Trust.CENTRAL:
            yield (
                f"this client's policy (trust) demands {self.trust} trust, and under the plan's"
                " central trust the server sees exact sums"
            )
        # computed anew from the event: the epsilon that the plan states is a claim of its maker
        try:
            parts = 1 if self.per_part else None
            found = terms.proven(self._relation_for(terms), self.delta, parts)
        # a delta that secure sums and samplers use up, or add-remove of clients that are counted
        except InvalidInputError as error:
            yield f"nothing is proven for this client's policy: {error}"
            return
        if found.epsilon > self.epsilon:
            which = "one part in the plan" if self.per_part else "the plan"
            yield (
                f"this client's policy demands epsilon {self.epsilon:g} at most, and {which} is"
                f" proven to have {found}"
            )
