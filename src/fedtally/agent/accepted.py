"""The campaigns that the owner of a client accepted: a folder of them, one folder a campaign.

A campaign comes by an act of its owner, and never from the server that sums: that server could name
a plan with less noise, and identities of its own. Each folder has the plan's fingerprint as its
name, and holds `plan.toml`, the `allow-list` if the plan names one, the registrar's `signature` if
the agent has a registrar, `until`, the owner's last day, if the owner named one, and `by-consent`,
the day on which a standing consent took the plan, if it did. Deleting the folder ends the part in
that campaign.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedtally.agent.demands import AgentPolicy
from fedtally.base.archive import replacing
from fedtally.campaign.enrolment import (
    PlanSignature,
    check_allow_list,
    check_signature,
    end_of,
    load_allow_list,
    load_signature,
    save_allow_list,
    save_signature,
)
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList

if TYPE_CHECKING:
    from fedtally.store import ClientRecord

_PLAN, _LIST, _SIGNATURE, _UNTIL = "plan.toml", "allow-list", "signature", "until"
_CONSENT = "by-consent"
_MOST_BYTES = 64  # of a day


@dataclass(frozen=True)
class Campaign:
    """A plan that can be run, and the identities that may take part in it.

    Args:
        plan: with its keys.
        allow_list: the list that the plan names; None: it names none.
        signature: the registrar's, which `CampaignFiles.load` has checked; None: nobody was asked
            for one.
        until: the last day that the owner allows; None: that of the signature counts alone.
        by_consent: the day on which the owner's standing consent took it; None: the owner did.

    Raises:
        InvalidInputError: a trusted server sums the plan, or it lacks a key, or the list is missing
            or another one.
    """

    plan: Plan
    allow_list: AllowList | None = None
    signature: PlanSignature | None = None
    until: date | None = None
    by_consent: date | None = None

    def __post_init__(self) -> None:
        terms = self.plan.secure_sum
        if terms is None:
            raise InvalidInputError(
                "an agent takes part in no sum of a trusted server: ask for a plan with"
                f" {opt.secure_sum('secagg')} or {opt.secure_sum('two-server')}"
            )
        self.plan.check_published()
        if self.allow_list is not None:
            check_allow_list(self.plan, self.allow_list)
        elif terms.allow_list is not None:
            raise InvalidInputError(
                f"the plan names the allow-list {terms.allow_list.hex()[:16]}...: get the list from"
                f" the registrar, and name it ({opt.allow_list})"
            )

    @property
    def server_key(self) -> bytes | None:
        """The key that signs Invites; None: two servers sum, and there are no Invites."""
        cohorts = self.plan.summing.cohorts
        return None if cohorts is None else cohorts.server_key

    @property
    def last_day(self) -> date | None:
        """The last day in UTC on which the plan may be run; None: nobody named one."""
        signed = None if self.signature is None else self.signature.authority.last_day
        return min((day for day in (signed, self.until) if day is not None), default=None)

    def why_over(self, record: ClientRecord, now: float) -> str | None:
        """Return in words why an accepted plan may not be run any more; None: it may.

        Args:
            record: what became of the registrar's plans.
            now: the time, Unix seconds.
        """
        if (late := self._why_late(now)) or self.signature is None:
            return late
        said = self.signature.authority
        return record.why_over(
            self.signature.registrar, said.purpose, said.number, self.plan.fingerprint
        )

    def why_unacceptable(self, record: ClientRecord, now: float) -> str | None:
        """Return in words why a plan cannot be accepted now; None: nothing of this forbids it.

        Args:
            record: what became of the registrar's plans.
            now: the time, Unix seconds.
        """
        if (late := self._why_late(now)) or self.signature is None:
            return late
        said = self.signature.authority
        try:
            record.check_accept(
                self.signature.registrar, said.purpose, said.number, self.plan.fingerprint
            )
        except InvalidInputError as error:
            return error.in_shell
        return None

    def _why_late(self, now: float) -> str | None:
        last = self.last_day
        if last is None or now < end_of(last):
            return None
        return f"its last day was {last} (UTC): ask for a newer signature, or a newer plan"

    @cached_property
    def most_bytes(self) -> int:
        """The bytes of the longest message of a session, frame and all; 0: there is none."""
        cohorts = self.plan.summing.cohorts
        if cohorts is None:
            return 0
        listed = 0 if self.allow_list is None else len(self.allow_list)
        parameters = cohorts.parameters
        return max(wire.message_bytes(parameters, parameters.n_max, identities=listed).values())


@dataclass(frozen=True)
class CampaignFiles:
    """The files that an owner got for a campaign.

    Args:
        plan: the plan.
        allow_list: the list that it names, if it names one.
        signature: the registrar's, if the agent has a registrar.
        until: the last day that the owner allows; None: the signature's last day counts alone.
    """

    plan: Path
    allow_list: Path | None = None
    signature: Path | None = None
    until: date | None = None

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
            registrar: the pinned public key; None: no signature is looked at.
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
            return [], [error.in_shell, *refused]

    def _complete(self, plan: Plan, registrar: bytes | None) -> Campaign:
        """Return the campaign of a plan that was read."""
        signature = None
        if registrar is not None:
            if self.signature is None:
                raise InvalidInputError(
                    f"{self.plan} comes without a signature, and agent.toml names a registrar, who"
                    f" must have signed it: get the signature, and name it ({opt.signature})"
                )
            signature = load_signature(self.signature)
            check_signature(signature, plan, registrar)
        listed = None if self.allow_list is None else load_allow_list(self.allow_list)
        return Campaign(plan, listed, signature, self.until)


class AcceptedCampaigns(Mapping[bytes, Campaign]):
    """The folder of accepted campaigns, by fingerprint (32 bytes), as it is on the disk now.

    A campaign is read when it is first asked for, and again after it was accepted again; one that
    was deleted meanwhile is gone. What lies there and is damaged, or not signed as it must be, is
    as if it were not there: `problems` says why. Whether a plan is over is not looked at:
    `Campaign.why_over` says so.

    Args:
        folder: the folder of the campaigns.
        registrar: the pinned public key, as for `CampaignFiles.load`; None: no signature is looked
            at.
    """

    def __init__(self, folder: Path, registrar: bytes | None) -> None:
        self._folder, self._registrar = folder, registrar
        self._known: dict[bytes, tuple[object, Campaign]] = {}

    def __getitem__(self, fingerprint: bytes) -> Campaign:
        place = self._folder / fingerprint.hex()
        version, known = _version(place), self._known.get(fingerprint)
        if known is None or version is None or known[0] != version:
            self._known.pop(fingerprint, None)
            try:
                known = version, self._load(place)
            except InvalidInputError:
                raise KeyError(fingerprint) from None
            self._known[fingerprint] = known
        return known[1]

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
                yield f"{place}: {error.in_shell}"

    def latest(self) -> Campaign | None:
        """Return the campaign that was accepted last; None: there is none."""
        places = sorted(self._places(), key=os.path.getmtime)
        found = [self.get(bytes.fromhex(place.name)) for place in places]
        return next((campaign for campaign in reversed(found) if campaign is not None), None)

    def accept(self, campaign: Campaign, record: ClientRecord, now: float) -> None:
        """Accept a campaign: what its registrar says goes into the record, and then it is added.

        Args:
            campaign: the campaign, exactly as it was shown to the owner.
            record: the client's. A crash after it was written leaves a plan that must be accepted
                once more, and never one that was replaced and goes on.
            now: the time, Unix seconds.

        Raises:
            InvalidInputError: the last day is over, the record refuses the plan, or as `add`.
        """
        if why := campaign.why_unacceptable(record, now):
            raise InvalidInputError(why)
        if (signature := campaign.signature) is not None:
            said, registrar, plan = signature.authority, signature.registrar, signature.fingerprint
            record.end(registrar, said.replaces, int(now))
            record.accept(registrar, said.purpose, said.number, plan, int(now))
        self.add(campaign)

    def add(self, campaign: Campaign) -> None:
        """Write a campaign, all or nothing, as it is in memory.

        So what an owner was shown is what is kept, whatever became of the files meanwhile. Of a
        campaign that is there and whole, the signature and the owner's last day alone are replaced,
        each in one step. So no crash loses one that was accepted.

        Raises:
            InvalidInputError: the registrar did not sign it, or there is no last day, or the folder
                cannot be written.
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
                for name, day in ((_UNTIL, campaign.until), (_CONSENT, campaign.by_consent)):
                    if day is not None:
                        with replacing(made / name) as file:
                            Path(file).write_text(f"{day}\n", encoding="ascii")
                self._load(made)  # as it will be read
                if self._is_whole(place):
                    _replace(made, place, _SIGNATURE, _UNTIL, _CONSENT)
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
            _read_day(place / _UNTIL),
        ).load(self._registrar)
        campaign = replace(campaign, by_consent=_read_day(place / _CONSENT))
        if campaign.plan.fingerprint != place.name:
            raise InvalidInputError(
                f"the plan in {place} is {campaign.plan.fingerprint[:16]}..., another one than the"
                " folder's name says: accept the plan anew"
            )
        if campaign.last_day is None:  # of an earlier version
            raise InvalidInputError(
                f"the plan in {place} was accepted without a last day: accept the plan anew"
            )
        return campaign


def _read_day(place: Path) -> date | None:
    """Return the day in a file; None: there is no such file."""
    try:
        with open(place, "rb") as file:
            return date.fromisoformat(file.read(_MOST_BYTES).decode("ascii").strip())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInputError(
            f"cannot read {place} ({error.strerror}): give it to the agent's user, or delete its"
            " folder and accept the plan anew as that user"
        ) from None
    except ValueError:
        raise InvalidInputError(f"{place} holds no day: accept the plan anew") from None


def _replace(made: Path, place: Path, *names: str) -> None:
    """Let a folder have files of another one, or lack them as that one does."""
    for name in names:
        if (made / name).exists():
            os.replace(made / name, place / name)
        else:
            with suppress(FileNotFoundError):
                os.unlink(place / name)


def _version(place: Path) -> object:
    """Return what changes when a folder gets other files; None: there is no such folder."""
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _is_fingerprint(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")
