"""A client's demands on the privacy of a plan, checked against what can be proven for the plan.

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
    """A plan is not proven to protect this client as its policy demands."""


@dataclass(frozen=True, kw_only=True)
class PrivacyPolicy:
    """The demands of a client on the privacy of a plan, before it takes part.

    `check` proves a bound on epsilon for the plan's event, at the delta and for the relation given
    here, and compares this bound with `epsilon`. The epsilon and the delta that the plan states do
    not count.

    Args:
        epsilon: the largest epsilon, above 0, of one plan's whole campaign; with `per_part`, of one
            part. `store.ClientRecord.cap` bounds all campaigns together.
        delta: the largest delta, from 0 to below 1; choose it below 1 / clients. At 0, only
            geometric noise passes.
        relation: the neighbouring relation, or its name. `add-remove` is proven only for plans
            whose number of people is secret and has noise, such as plans of silos. For these plans,
            zero-out here means add-remove.
        trust: the trust that the client accepts, or its name. `distributed` accepts no party that
            sees exact sums; `central` accepts an aggregator too.
        not_private: whether the client accepts a plan that is marked as not private, which
            guarantees nothing.
        per_part: whether the epsilon is for the client's part in one round, and not for a whole
            campaign. A cap in days then bounds the number of parts.

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
        # Names become enum values. The class is frozen, hence `object.__setattr__`.
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
            WeakPrivacyError: the plan protects less; the message names the demand and the plan's
                value.
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
        # A client that accepts an aggregator accepts distributed noise too: it needs less trust.
        if terms.event.trust is Trust.CENTRAL and self.trust is not Trust.CENTRAL:
            yield (
                f"this client's policy (trust) demands {self.trust} trust, and under the plan's"
                " central trust the server sees exact sums"
            )
        # Epsilon is computed from the event: the epsilon that the plan states is only a claim.
        try:
            parts = 1 if self.per_part else None
            found = terms.proven(self._relation_for(terms), self.delta, parts)
        # secure sums and samplers use up delta; or add-remove, and the number of clients is public
        except InvalidInputError as error:
            yield f"nothing is proven for this client's policy: {error}"
            return
        if found.epsilon > self.epsilon:
            which = "one part in the plan" if self.per_part else "the plan"
            yield (
                f"this client's policy demands epsilon {self.epsilon:g} at most, and {which} is"
                f" proven to have {found}"
            )
