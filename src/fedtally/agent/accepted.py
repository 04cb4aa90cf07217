"""The campaigns that the owner of a client accepted, each kept in a folder of its own.

Only the owner adds a campaign, by hand or by standing consent (`consent`). A server must not: it
could send a plan with less noise, or an allow-list with public keys of clients that it made up. The
name of a campaign's folder is the fingerprint of its plan, in hexadecimal. The folder holds these
files:

- `plan.toml`, the plan;
- `allow-list`, the public keys of the clients that may take part, if the plan names an allow-list;
- `signature`, the registrar's signature of the plan, if the agent has a registrar;
- `until`, the last day that the owner allows, if the owner named one;
- `by-consent`, the day of acceptance, if the plan was accepted by the owner's standing consent and
  not by hand.

An owner leaves a campaign by deleting its folder.
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
_MOST_BYTES = 64  # bytes; a file that holds a day is not read further


@dataclass(frozen=True)
class Campaign:
    """A plan, with the allow-list and the signature that an agent needs to take part in it.

    Args:
        plan: the plan, with the public keys of its servers.
        allow_list: the public keys of the clients that may take part; None: the plan names no list.
        signature: the registrar's signature of the plan, already verified by `CampaignFiles.load`.
            None: the agent has no registrar.
        until: the last day that the owner allows; None: the owner named none.
        by_consent: the day on which the plan was accepted by the owner's standing consent. None:
            the plan was accepted by hand, or is not accepted yet.

    Raises:
        InvalidInputError: a trusted server sums the plan, or the plan lacks a server's key. Or the
            allow-list is missing, differs from the list that the plan names, or has too few clients
            for the plan.
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
        """The public key that verifies the server's Invites; None: two servers sum, without
        Invites.

        An Invite is the message by which a server calls a client to a session.
        """
        cohorts = self.plan.summing.cohorts
        return None if cohorts is None else cohorts.server_key

    @property
    def last_day(self) -> date | None:
        """The last day in UTC on which the plan may be run; None: there is no limit.

        It is the owner's last day (`until`) or the last day in the registrar's signature, whichever
        is earlier.
        """
        signed = None if self.signature is None else self.signature.authority.last_day
        return min((day for day in (signed, self.until) if day is not None), default=None)

    def why_over(self, record: ClientRecord, now: float) -> str | None:
        """Return, in words, why an accepted plan must not be run any more; None: it may be run.

        Args:
            record: the client's record. It holds the plans that the registrar ended, and for each
                accepted plan the numbers in the registrar's signatures. If the largest number that
                was accepted for this plan is not the number in `signature`, the plan is over, too.
            now: the time, Unix seconds.
        """
        if (late := self._why_late(now)) or self.signature is None:
            return late
        said = self.signature.authority
        return record.why_over(
            self.signature.registrar, said.purpose, said.number, self.plan.fingerprint
        )

    def why_unacceptable(self, record: ClientRecord, now: float) -> str | None:
        """Return, in words, why the plan cannot be accepted now; None: its last day and the record
        allow it.

        Args:
            record: the client's record. It holds the plans that the registrar ended, and for each
                accepted plan the number in the registrar's signature. This plan is refused if the
                registrar ended it. It is also refused if, for the same registrar and purpose, the
                owner accepted a plan with a higher number, or another plan with the same number.
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
        """The length in bytes of the longest message of a session; 0: the plan has no sessions."""
        cohorts = self.plan.summing.cohorts
        if cohorts is None:
            return 0
        listed = 0 if self.allow_list is None else len(self.allow_list)
        parameters = cohorts.parameters
        return max(wire.message_bytes(parameters, parameters.n_max, identities=listed).values())


@dataclass(frozen=True)
class CampaignFiles:
    """The files of a campaign that its owner received, not yet accepted.

    Args:
        plan: the path of the plan.
        allow_list: the path of the allow-list; None: the owner received none.
        signature: the path of the registrar's signature; None: the owner received none.
        until: the last day that the owner allows; None: the owner named none.
    """

    plan: Path
    allow_list: Path | None = None
    signature: Path | None = None
    until: date | None = None

    def load(self, registrar: bytes | None) -> Campaign:
        """Read each file once, verify the signature, and return the campaign.

        Args:
            registrar: the registrar's public key, 32 bytes. None: no signature is needed, and the
                file of the signature is not read.

        Raises:
            InvalidInputError: as for `Campaign`. Or a file cannot be read. Or the registrar's
                signature is missing or wrong.
        """
        return self._complete(Plan.load(self.plan), registrar)

    def load_or_problems(
        self, registrar: bytes | None, policy: AgentPolicy
    ) -> tuple[list[Campaign], list[str]]:
        """Return a list with the campaign and an empty list; or an empty list and a list of
        problems.

        The problems are in words: first why the files give no campaign, then the reasons of the
        policy against the plan.

        Args:
            registrar: the registrar's public key, 32 bytes; None: no signature is needed or read.
            policy: what the owner demands of every plan.

        Raises:
            InvalidInputError: the plan cannot be read. Or the files give no campaign, for example
                because one is missing, and the policy has no reason against the plan.
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
        """Read the files besides the plan, verify the signature, and return the campaign."""
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
    """The campaigns that are accepted now, as a mapping from the plan's fingerprint, 32 bytes.

    Each access checks the campaign's folder on the disk. A campaign is read when it is first used,
    and again after files in its folder were added, replaced or removed. A campaign is not in the
    mapping if its folder was deleted. It is not in the mapping either if a file is damaged, the
    signature is wrong, no last day is known, or the folder has the name of another plan: `problems`
    lists such folders. A plan whose last day is over stays in the mapping, see
    `Campaign.why_over`.

    Args:
        folder: the folder that holds the folders of the campaigns.
        registrar: the registrar's public key, 32 bytes; None: no signature is needed or read.
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
        """Yield a message for each folder of a campaign that cannot be in the mapping."""
        for place in self._places():
            try:
                self._load(place)
            except InvalidInputError as error:
                yield f"{place}: {error.in_shell}"

    def latest(self) -> Campaign | None:
        """Return the campaign that was accepted last, by the times of the folders; None: there is
        none.
        """
        places = sorted(self._places(), key=os.path.getmtime)
        found = [self.get(bytes.fromhex(place.name)) for place in places]
        return next((campaign for campaign in reversed(found) if campaign is not None), None)

    def accept(self, campaign: Campaign, record: ClientRecord, now: float) -> None:
        """Accept a campaign: record what the registrar's signature states, then write the files
        (`add`).

        The signature may state that this plan replaces other plans, which are then over for this
        client. The record is written first. If the process crashes between the two steps, the
        replaced plans are over and this plan must be accepted again. The other order could leave a
        replaced plan active.

        Args:
            campaign: the campaign, exactly as it was shown to the owner.
            record: the client's record.
            now: the time, Unix seconds.

        Raises:
            InvalidInputError: the last day of the plan is over, the record refuses the plan, or as
                for `add`; in the last case the record is written already.
        """
        if why := campaign.why_unacceptable(record, now):
            raise InvalidInputError(why)
        if (signature := campaign.signature) is not None:
            said, registrar, plan = signature.authority, signature.registrar, signature.fingerprint
            record.end(registrar, said.replaces, int(now))
            record.accept(registrar, said.purpose, said.number, plan, int(now))
        self.add(campaign)

    def add(self, campaign: Campaign) -> None:
        """Write a campaign into its folder.

        Only the object in memory is used. The files that it was read from may have changed since
        the owner saw the campaign.

        A crash does not lose a campaign that was accepted before. A new folder appears in one step.
        If the folder already holds a readable campaign, only the files `signature`, `until` and
        `by-consent` are replaced or deleted, each in one step. A damaged folder is replaced as a
        whole.

        Raises:
            InvalidInputError: the registrar did not sign the plan, the campaign has no last day, or
                the folder cannot be written.
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
                self._load(made)  # raises an error if the agent could not read the folder
                if self._is_whole(place):
                    _replace(made, place, _SIGNATURE, _UNTIL, _CONSENT)
                    os.utime(place)  # otherwise `latest` would not see the change
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
        """Return whether a folder holds a campaign that can be read."""
        try:
            self._load(place)
        except InvalidInputError:
            return False
        return True

    def _load(self, place: Path) -> Campaign:
        listed, signature = place / _LIST, place / _SIGNATURE
        campaign = CampaignFiles(
            place / _PLAN,
            # os.path.exists returns False if permission is denied, where Path.exists would raise
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
        if campaign.last_day is None:  # as earlier versions of fedtally wrote it
            raise InvalidInputError(
                f"the plan in {place} was accepted without a last day: accept the plan anew"
            )
        return campaign


def _read_day(place: Path) -> date | None:
    """Return the date in a file; None: there is no such file.

    Raises:
        InvalidInputError: the file cannot be read, or holds no date.
    """
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
    """Move the files with the given names from the folder `made` to the folder `place`.

    A file that is not in `made` is deleted in `place`.
    """
    for name in names:
        if (made / name).exists():
            os.replace(made / name, place / name)
        else:
            with suppress(FileNotFoundError):
                os.unlink(place / name)


def _version(place: Path) -> object:
    """Return a value that changes when a file in a folder is added, replaced or removed.

    It is the inode number and the modification time of the folder. Writing into an existing file
    does not change it. None: there is no such folder.
    """
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _is_fingerprint(name: str) -> bool:
    return len(name) == 64 and set(name) <= set("0123456789abcdef")
