"""Standing consent: the rule by which the agent accepts some plans without asking the owner.

Only the owner gives the consent, in agent.toml, and only for plans that one registrar signed. The
consent allows nothing that the owner's policy forbids: the agent checks policy and record for such
a plan as for every other plan. Such a plan also ends as every other plan does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING

from fedtally.agent.accepted import AcceptedCampaigns, Campaign
from fedtally.agent.demands import AgentPolicy
from fedtally.base import validate
from fedtally.campaign.enrolment import checked_purpose
from fedtally.crypto.keys import KEY_BYTES
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from fedtally.store import ClientRecord


@dataclass(frozen=True, kw_only=True)
class Consent:
    """The bounds within which the agent accepts a plan without asking the owner.

    A plan without a calendar is never within the bounds.

    Args:
        registrar: the public key that must have signed the plan, 32 bytes.
        purpose: the purpose that the registrar's signature must state.
        candidates: the allowed domains, at least one; the plan's domain must be equal to one of
            them.
        epsilon: the largest epsilon that taking part in one period of the plan's calendar may cost,
            above 0.
        until: the latest day that the signature may state as the last day of the plan.

    Raises:
        InvalidInputError: a value is out of bounds, `until` is no date, or there are no candidates.
    """

    registrar: bytes
    purpose: str
    candidates: tuple[Domain, ...]
    epsilon: float
    until: date

    def __post_init__(self) -> None:
        if len(self.registrar) != KEY_BYTES:
            raise InvalidInputError(f"registrar must be a public key of {KEY_BYTES} bytes")
        object.__setattr__(self, "purpose", checked_purpose(self.purpose))
        epsilon = validate.real(0.0, 1000.0, epsilon=self.epsilon)
        object.__setattr__(self, "epsilon", epsilon)
        if epsilon == 0:
            raise InvalidInputError("epsilon must be above 0, got 0: nothing is that private")
        if not self.candidates:
            raise InvalidInputError("candidates must name at least one domain, got none")
        if type(self.until) is not date:
            raise InvalidInputError(f"until must be a day, such as 2027-01-31, got {self.until!r}")

    def refusals(self, campaign: Campaign, policy: AgentPolicy) -> Iterator[str]:
        """Yield, in words, every reason why a plan is outside the bounds; none if it is within
        them.

        If the consent's registrar did not sign the plan, this is the only reason.

        Args:
            campaign: the campaign of the plan, whose signature must have been verified.
            policy: what the owner demands of every plan. It must have a cap, a bound on the total
                privacy cost.
        """
        plan, signature = campaign.plan, campaign.signature
        if signature is None or signature.registrar != self.registrar:
            yield "the consent is for plans that its registrar signed, and this one did not"
            return
        said = signature.authority
        if said.purpose != self.purpose:
            yield f"the consent is for the purpose {self.purpose!r}, got {said.purpose!r}"
        if plan.calendar is None:
            yield "the consent is for plans with a calendar, and this plan has none"
        if not any(plan.has_domain(one.describe()) for one in self.candidates):
            yield "the consent is for other candidates than those of the plan"
        if said.last_day > self.until:
            yield f"the consent ends on {self.until}, and the signature names {said.last_day}"
        assert policy.privacy is not None
        demands = replace(policy.privacy, epsilon=self.epsilon, per_part=True)
        for reason in demands.refusals(plan.privacy):
            yield f"the consent: {reason}"


def why_known(campaign: Campaign, accepted: AcceptedCampaigns, record: ClientRecord) -> str | None:
    """Return, in words, why a plan that the client knows needs the owner; None: consent is enough.

    A plan needs the owner in two cases:

    - It was accepted before, and its folder is gone or damaged. The owner deletes a folder to leave
      a campaign, so consent must not bring the campaign back.
    - The owner accepted the plan by hand, perhaps with an earlier last day, which consent must not
      extend.

    The result is also None for a plan that the client does not know, and for a plan without a
    signature. `Consent.refusals` refuses a plan without a signature.

    Args:
        campaign: the campaign of the plan.
        accepted: the campaigns that are accepted now.
        record: the client's record, with the plans that were ever accepted.
    """
    signature, fingerprint = campaign.signature, campaign.plan.fingerprint
    if signature is None:
        return None
    held = accepted.get(bytes.fromhex(fingerprint))
    if held is not None:
        by_hand = "its owner accepted it by hand: accept the newer signature by hand, too"
        return by_hand if held.by_consent is None else None
    if record.has_accepted(signature.registrar, fingerprint):
        return "it was accepted before, and its folder is gone: accept it by hand"
    return None
