"""A client's demands on the privacy of a plan, checked against what is proven for the plan.

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
    """What a client demands of a plan's privacy before it takes part.

    `check` proves an epsilon for the plan's event, at the delta and for the relation of this
    policy, and compares the proven epsilon with `epsilon`. The epsilon and the delta that the plan
    states are ignored.

    Args:
        epsilon: the largest epsilon, above 0, of a whole campaign; with `per_part`, of one round of
            it. `store.ClientRecord.cap` limits all campaigns together.
        delta: the delta at which `epsilon` must hold, from 0 to below 1. Choose it below 1 /
            (number of clients). With 0, only geometric noise is accepted.
        relation: the neighbouring relation for which `epsilon` must hold, or its name. `add-remove`
            accepts only plans that add noise to the number of people, such as plans of silos. With
            these plans, `zero-out` is checked as add-remove.
        trust: `distributed` refuses plans in which an aggregator sees exact sums; `central` accepts
            them, too.
        not_private: whether the client accepts a plan that is marked as not private, and so
            guarantees nothing.
        per_part: whether `epsilon` is for one round that the client takes part in, not for a whole
            campaign. A cap with `per_days` (`budget.Cap`) can then limit the number of rounds.

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
        # Names become enum values. An attribute of a frozen class can be set only in this way.
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", demanded_delta(self.delta))
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        object.__setattr__(self, "trust", Trust.parse(self.trust))
        validate.flag(not_private=self.not_private)
        validate.flag(per_part=self.per_part)

    def check(self, terms: PrivacyConfig | None) -> None:
        """Refuse a plan whose proven privacy is less than this policy demands.

        Args:
            terms: the privacy terms of the plan; None: the plan has no privacy.

        Raises:
            WeakPrivacyError: the plan does not meet a demand; the message names the demand and the
                plan's value.
        """
        for reason in self.refusals(terms):
            raise WeakPrivacyError(reason)

    def _relation_for(self, terms: PrivacyConfig) -> Relation:
        [event] = under_demand([terms.event], Relation.ZERO_OUT)
        return event.relation if self.relation is Relation.ZERO_OUT else self.relation

    def refusals(self, terms: PrivacyConfig | None) -> Iterator[str]:
        """Yield a sentence for each unmet demand of the policy; no sentence if `check` passes.

        Args:
            terms: the privacy terms of the plan; None: the plan has no privacy.
        """
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
        # Distributed trust is accepted by every client: it trusts fewer parties than central trust.
        if terms.event.trust is Trust.CENTRAL and self.trust is not Trust.CENTRAL:
            yield (
                f"this client's policy (trust) demands {self.trust} trust, and under the plan's"
                " central trust the server sees exact sums"
            )
        # Epsilon is computed from the event: the epsilon that the plan states is only a claim.
        try:
            parts = 1 if self.per_part else None
            found = terms.proven(self._relation_for(terms), self.delta, parts)
        # For example, secure sums use up delta, or only the policy has the relation add-remove.
        except InvalidInputError as error:
            yield f"nothing is proven for this client's policy: {error}"
            return
        if found.epsilon > self.epsilon:
            which = "one part in the plan" if self.per_part else "the plan"
            yield (
                f"this client's policy demands epsilon {self.epsilon:g} at most, and {which} is"
                f" proven to have {found}"
            )
