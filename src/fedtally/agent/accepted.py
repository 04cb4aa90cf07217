"""The campaigns that the owner of a client accepted, kept in one folder each.

Only the owner of the client adds a campaign. The server that sums must not: it could send a plan
with less noise, or an allow-list of identities that it made up. The name of a campaign's folder is
the fingerprint of its plan, in hexadecimal. The folder holds these files:

- `plan.toml`;
- `allow-list`, if the plan names one;
- `signature`, the registrar's, if the agent has a registrar;
- `until`, the last day that the owner allows, if the owner named one;
- `by-consent`, the day of acceptance, if the owner's standing consent accepted the plan.

An owner who deletes the folder leaves the campaign.
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
_MOST_BYTES = 64  # the longest file that holds a day


@dataclass(frozen=True)
class Campaign:
    """A plan that can be run, and the identities that may take part in it.

    Args:
        plan: the plan, with the public keys of its servers.
        allow_list: the allow-list that the plan names; None: it names none.
        signature: the registrar's signature, already checked by `CampaignFiles.load`; None: the
            agent has no registrar.
        until: the last day that the owner allows; None: only the last day in the signature counts.
        by_consent: the day on which the owner's standing consent accepted the plan; None: the
            owner accepted it by hand.

    Raises:
        InvalidInputError: a trusted server sums the plan, or the plan lacks a key, or its
            allow-list is missing or is not the one that it names.
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
        """The server's public key, which verifies Invites; None: two servers sum, without Invites.

        An Invite is the message by which a server calls a client to a session.
        """
        cohorts = self.plan.summing.cohorts
        return None if cohorts is None else cohorts.server_key

    @property
    def last_day(self) -> date | None:
        """The last day in UTC on which the plan may be run; None: there is no limit.

        It is the earlier one of the owner's day and the day in the signature.
        """
        signed = None if self.signature is None else self.signature.authority.last_day
        return min((day for day in (signed, self.until) if day is not None), default=None)

    def why_over(self, record: ClientRecord, now: float) -> str | None:
        """Return in words why an accepted plan may not be run any more; None: it may.

        Args:
            record: the client's record, which also says which plans the registrar ended.
            now: the time, Unix seconds.
        """
        if (late := self._why_late(now)) or self.signature is None:
            return late
        said = self.signature.authority
        return record.why_over(
            self.signature.registrar, said.purpose, said.number, self.plan.fingerprint
        )

    def why_unacceptable(self, record: ClientRecord, now: float) -> str | None:
        """Return in words why a plan cannot be accepted now; None: date and record allow it.

        Args:
            record: the client's record, which also says which plans the registrar ended.
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
        """The length in bytes of the longest frame in a session; 0: the plan has no sessions."""
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
        plan: the path of the plan.
        allow_list: the path of the allow-list; None: the owner got none.
        signature: the path of the registrar's signature; None: the owner got none.
        until: the last day that the owner allows; None: only the last day in the signature counts.
    """

    plan: Path
    allow_list: Path | None = None
    signature: Path | None = None
    until: date | None = None

    def load(self, registrar: bytes | None) -> Campaign:
        """Read each file once and return the campaign, whose signature is checked.

        Args:
            registrar: the registrar's public key, 32 bytes; None: no signature is read or needed.

        Raises:
            InvalidInputError: as for `Campaign`, or the signature is missing or is not the
                registrar's.
        """
        return self._complete(Plan.load(self.plan), registrar)

    def load_or_problems(
        self, registrar: bytes | None, policy: AgentPolicy
    ) -> tuple[list[Campaign], list[str]]:
        """Return the campaign in a list and no problems, or an empty list and the problems.

        If the files make no campaign, the reasons of the policy against the plan are added.

        Args:
            registrar: the registrar's public key, 32 bytes; None: no signature is read.
            policy: what the owner demands.

        Raises:
            InvalidInputError: the files make no campaign, for example since one is missing, and the
                policy has no reason against the plan.
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
        """Read the other files, and return the campaign of this plan."""
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
    """A mapping from fingerprints (32 bytes) to the accepted campaigns that are now on the disk.

    A campaign is read on first access, and read again if its folder has changed. A campaign whose
    folder was deleted is no longer in the mapping. A damaged or wrongly signed campaign is left out
    as well, and `problems` says why. A plan whose last day is over stays in the mapping, see
    `Campaign.why_over`.

    Args:
        folder: the folder of the campaigns.
        registrar: the registrar's public key, 32 bytes; None: signatures are not read.
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
        """Yield a message for each campaign in the folder that cannot be read."""
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
        """Accept a campaign: write the registrar's statements into the record, then `add` it.

        The signature may say that this plan replaces others. The record is written first. So a
        crash in between leaves a plan that must be accepted again, but no replaced plan stays
        active.

        Args:
            campaign: the campaign, exactly as it was shown to the owner.
            record: the client's record.
            now: the time, Unix seconds.

        Raises:
            InvalidInputError: the last day is over, the record refuses the plan, or as for `add`.
        """
        if why := campaign.why_unacceptable(record, now):
            raise InvalidInputError(why)
        if (signature := campaign.signature) is not None:
            said, registrar, plan = signature.authority, signature.registrar, signature.fingerprint
            record.end(registrar, said.replaces, int(now))
            record.accept(registrar, said.purpose, said.number, plan, int(now))
        self.add(campaign)

    def add(self, campaign: Campaign) -> None:
        """Write a campaign from memory into its folder.

        The files that it was read from are not read again: they may have changed since the owner
        saw the campaign. A new folder appears in one step. If the folder exists and is readable as
        a campaign, only `signature`, `until` and `by-consent` are replaced, each in one step. So no
        crash loses an accepted campaign.

        Raises:
            InvalidInputError: the registrar did not sign the plan, or the campaign has no last day,
                or the folder cannot be written.
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
                self._load(made)  # raises an error if the new folder is not readable
                if self._is_whole(place):
                    _replace(made, place, _SIGNATURE, _UNTIL, _CONSENT)
                    os.utime(place)  # for `latest`, which compares the times of the folders
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
            # os.path.exists returns False also if permission is denied; Path.exists may raise
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
        if campaign.last_day is None:  # written by an earlier version of fedtally
            raise InvalidInputError(
                f"the plan in {place} was accepted without a last day: accept the plan anew"
            )
        return campaign


def _read_day(place: Path) -> date | None:
    """Return the date that a file holds; None: there is no such file."""
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
    """Move the named files from the folder `made` to the folder `place`.

    A file that `made` does not have is deleted in `place`.
    """
    for name in names:
        if (made / name).exists():
            os.replace(made / name, place / name)
        else:
            with suppress(FileNotFoundError):
                os.unlink(place / name)


def _version(place: Path) -> object:
    """Return a value that changes with a folder's files; None: there is no such folder.

    It is the inode number and the modification time of the folder.
    """
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _is_fingerprint(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")
