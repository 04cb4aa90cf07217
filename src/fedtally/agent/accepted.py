"""The campaigns that the owner of a client accepted: a folder of them, one folder a campaign.

A campaign comes by an act of its owner, and never from the server that sums: that server could name
a plan with less noise, and identities of its own. Each folder has the plan's fingerprint as its
name, and holds `plan.toml`, the `allow-list` if the plan names one, and the registrar's `signature`
if the agent has a registrar. Deleting the folder ends the part in that campaign.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedtally.agent.policy import AgentPolicy
from fedtally.campaign.enrolment import (
    PlanSignature,
    check_allow_list,
    check_signature,
    load_allow_list,
    load_signature,
    save_allow_list,
    save_signature,
)
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import SecAggConfig

_PLAN, _LIST, _SIGNATURE = "plan.toml", "allow-list", "signature"


@dataclass(frozen=True)
class Campaign:
    """A plan that can be run, and the identities that may take part in it.

    Args:
        plan: with its keys.
        allow_list: the list that the plan names; None: it names none.
        signature: the registrar's, which `CampaignFiles.load` has checked; None: nobody was asked
            for one.

    Raises:
        InvalidInputError: the plan is not summed by `secagg`, or lacks a key, or the list is
            missing or another one.
    """

    plan: Plan
    allow_list: AllowList | None = None
    signature: PlanSignature | None = None

    def __post_init__(self) -> None:
        terms = self.plan.secure_sum
        if not isinstance(terms, SecAggConfig):
            raise InvalidInputError(
                "an agent takes part in secagg alone: ask for a plan with --secure-sum secagg"
            )
        self.plan.check_published()
        if self.allow_list is not None:
            check_allow_list(self.plan, self.allow_list)
        elif terms.allow_list is not None:
            raise InvalidInputError(
                f"the plan names the allow-list {terms.allow_list.hex()[:16]}...: get the list from"
                " the registrar, and name it (--allow-list)"
            )

    @property
    def terms(self) -> SecAggConfig:
        """The secure sum of the plan."""
        assert isinstance(self.plan.secure_sum, SecAggConfig)
        return self.plan.secure_sum

    @property
    def server_key(self) -> bytes:
        """The key that signs Invites."""
        assert self.terms.server_key is not None
        return self.terms.server_key

    @cached_property
    def most_bytes(self) -> int:
        """The bytes of the longest message of a session, frame and all."""
        listed = 0 if self.allow_list is None else len(self.allow_list)
        parameters = self.terms.parameters
        return max(wire.message_bytes(parameters, parameters.n_max, identities=listed).values())


@dataclass(frozen=True)
class CampaignFiles:
    """The files that an owner got for a campaign.

    Args:
        plan: the plan.
        allow_list: the list that it names, if it names one.
        signature: the registrar's, if the agent has a registrar.
    """

    plan: Path
    allow_list: Path | None = None
    signature: Path | None = None

    def load(self, registrar: bytes | None) -> Campaign:
        """Return the campaign, checked against the registrar's signature; each file is read once.

        Args:
            registrar: the pinned public key; None: the owner's own act is all that is asked for,
                and no signature is looked at.

        Raises:
            InvalidInputError: as for `Campaign`, or the signature is missing or not the
                registrar's.
        """
        return self._complete(Plan.load(self.plan), registrar)

    def load_or_problems(
        self, registrar: bytes | None, policy: AgentPolicy
    ) -> tuple[list[Campaign], list[str]]:
        """Return the campaign, or every reason why the files are none that an owner would take.

        Args:
            registrar: as for `load`.
            policy: what the owner demands. It may refuse a plan that cannot be accepted anyway.

        Raises:
            InvalidInputError: the files are no campaign, as where one was not named, and the policy
                takes the plan.
        """
        plan = Plan.load(self.plan)
        try:
            return [self._complete(plan, registrar)], []
        except InvalidInputError as error:
            refused = list(policy.refusals(plan, None, None))
            if not refused:
                raise
            return [], [str(error), *refused]

    def _complete(self, plan: Plan, registrar: bytes | None) -> Campaign:
        """Return the campaign of a plan that was read."""
        signature = None
        if registrar is not None:
            if self.signature is None:
                raise InvalidInputError(
                    f"{self.plan} comes without a signature, and agent.toml names a registrar, who"
                    " must have signed it: get the signature, and name it (--signature)"
                )
            signature = load_signature(self.signature)
            check_signature(signature, plan, registrar)
        listed = None if self.allow_list is None else load_allow_list(self.allow_list)
        return Campaign(plan, listed, signature)


class AcceptedCampaigns(Mapping[bytes, Campaign]):
    """The folder of accepted campaigns, by fingerprint (32 bytes), as it is on the disk now.

    A campaign is read when it is first asked for; one that was deleted meanwhile is gone. What
    lies there and is damaged, or not signed as it must be, is as if it were not there: `problems`
    says why.

    Args:
        folder: of the campaigns.
        registrar: as for `CampaignFiles.load`.
    """

    def __init__(self, folder: Path, registrar: bytes | None) -> None:
        self._folder, self._registrar = folder, registrar
        self._known: dict[bytes, Campaign] = {}

    def __getitem__(self, fingerprint: bytes) -> Campaign:
        place = self._folder / fingerprint.hex()
        if not os.path.isdir(place):
            self._known.pop(fingerprint, None)
            raise KeyError(fingerprint)
        if fingerprint not in self._known:
            try:
                self._known[fingerprint] = self._load(place)
            except InvalidInputError:
                raise KeyError(fingerprint) from None
        return self._known[fingerprint]

    def __iter__(self) -> Iterator[bytes]:
        for place in self._places():
            fingerprint = bytes.fromhex(place.name)
            if fingerprint in self:
                yield fingerprint

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with campaigns of the folder that cannot be read."""
        for place in self._places():
            try:
                self._load(place)
            except InvalidInputError as error:
                yield f"{place}: {error}"

    def latest(self) -> Campaign | None:
        """Return the campaign that was accepted last; None: there is none."""
        places = sorted(self._places(), key=os.path.getmtime)
        found = [self.get(bytes.fromhex(place.name)) for place in places]
        return next((campaign for campaign in reversed(found) if campaign is not None), None)

    def add(self, campaign: Campaign) -> None:
        """Accept a campaign: write it, all or nothing, as it is in memory.

        So what an owner was shown is what is kept, whatever became of the files meanwhile. A
        campaign that is there and whole stays as it is, since its name says what it holds. So no
        crash loses one that was accepted.

        Raises:
            InvalidInputError: the registrar did not sign it, or the folder cannot be written.
        """
        place = self._folder / campaign.plan.fingerprint
        try:
            temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
            try:
                made = temporary / campaign.plan.fingerprint
                made.mkdir(mode=0o700)
                campaign.plan.save(made / _PLAN)
                if campaign.allow_list is not None:
                    save_allow_list(made / _LIST, campaign.allow_list)
                if campaign.signature is not None:
                    save_signature(made / _SIGNATURE, campaign.signature)
                self._load(made)  # as it will be read
                if self._is_whole(place):
                    os.utime(place)  # it is the latest now
                else:
                    with suppress(FileNotFoundError):
                        os.rename(place, temporary / "damaged")
                    os.rename(made, place)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except OSError as error:
            raise InvalidInputError(
                f"cannot write into {self._folder} ({error.strerror}): accept campaigns as the user"
                " that the agent runs as"
            ) from None
        self._known.pop(bytes.fromhex(campaign.plan.fingerprint), None)

    def _places(self) -> list[Path]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return [self._folder / name for name in sorted(names) if _is_fingerprint(name)]

    def _is_whole(self, place: Path) -> bool:
        """Tell whether a folder holds a campaign that counts as accepted."""
        try:
            self._load(place)
        except InvalidInputError:
            return False
        return True

    def _load(self, place: Path) -> Campaign:
        listed, signature = place / _LIST, place / _SIGNATURE
        campaign = CampaignFiles(
            place / _PLAN,
            # unlike a Path, these also say no where the folder belongs to somebody else
            listed if os.path.exists(listed) else None,
            signature if os.path.exists(signature) else None,
        ).load(self._registrar)
        if campaign.plan.fingerprint != place.name:
            raise InvalidInputError(
                f"the plan in {place} is {campaign.plan.fingerprint[:16]}..., another one than the"
                " folder's name says: accept the plan anew"
            )
        return campaign


def _is_fingerprint(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")
