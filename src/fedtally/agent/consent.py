"""Standing consent: which plans of a registrar are accepted without the owner's act.

The consent does not widen what a plan may do. Policy and record are checked for such a plan as for
every other, and it ends as every other. Only the owner gives the consent, in agent.toml.
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
    """The bounds within which a plan is accepted without the owner's act.

    Only plans with a calendar can be within them.

    Args:
        registrar: the public key that must have signed the plan, 32 bytes.
        purpose: the purpose that the signature must name.
        candidates: the allowed domains; the plan's domain must be equal to one of them.
        epsilon: the largest epsilon that one period of the plan's calendar may cost, above 0.
        until: the latest day that the signature may name as the plan's last day.

    Raises:
        InvalidInputError: a value is out of bounds, or there are no candidates.
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
        """Yield every reason why a plan is outside of the bounds.

        Args:
            campaign: the campaign of the plan; its signature was checked before.
            policy: what the owner demands of every plan, with a cap.
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
    """Return why a known plan is not accepted by consent; None: it may be.

    Two cases need the owner. The owner deleted the plan's folder to leave it, so it must not come
    back by itself. Or the owner accepted the plan by hand, perhaps with an earlier last day.

    Args:
        campaign: the campaign of the plan.
        accepted: the campaigns that are accepted now.
        record: the client's record, with the plans that were accepted before.
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
