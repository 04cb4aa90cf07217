"""Decide whether a client sends a report to two servers, and make the report, once for each
release.

A report is the client's contribution to a plan that two servers sum. A `Reporter` makes no network
connection. It puts the report into the outbox, a table of the client's record.
`campaign/transports/https/reporting.py` sends it from there.

The servers' answers only tell the state of a release. They cannot add a plan, and cannot make the
client read its items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fedtally.agent.accepted import AcceptedCampaigns, Campaign
from fedtally.agent.agent import bind, demands, in_words, other_cap, why_closed
from fedtally.agent.demands import AgentPolicy
from fedtally.agent.items import Items
from fedtally.base import validate
from fedtally.campaign.client import FrequencyClient
from fedtally.crypto.keys import SigningKey
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.store import ClientRecord, Fate, Journal, Unsent


def campaign_to_report(
    accepted: AcceptedCampaigns, record: ClientRecord, fingerprint: str | None, now: float
) -> Campaign:
    """Return the accepted campaign that a user wants to report to. Two servers must sum it.

    Args:
        accepted: the campaigns that the owner accepted.
        record: the client's record, which says which plans are over.
        fingerprint: the plan's fingerprint, 64 hexadecimal digits. None: the only plan that is not
            over is chosen; if all plans are over, the only plan.
        now: the time, Unix seconds.

    Raises:
        InvalidInputError: the owner accepted no campaign of two servers, or none with this
            fingerprint. Or `fingerprint` is None, and there are several plans to choose from.
    """
    known = {
        one.plan.fingerprint: one
        for one in accepted.values()
        if one.plan.summing.servers is not None
    }
    if fingerprint is not None:
        if fingerprint not in known:
            raise InvalidInputError(
                f"no accepted plan of two servers has the fingerprint {fingerprint}: see what was"
                " accepted (fedtally agent show)"
            )
        return known[fingerprint]
    is_open = [one for one in known.values() if one.why_over(record, now) is None]
    found = is_open or list(known.values())
    if len(found) > 1:
        raise InvalidInputError(
            f"{len(found)} plans of two servers were accepted: name one of them with --fingerprint"
            f" ({', '.join(one.plan.fingerprint for one in found)})"
        )
    if not found:
        raise InvalidInputError(
            "no plan of two servers was accepted: accept one first (fedtally agent accept)"
        )
    return found[0]


def release_to_report(plan: Plan, release: int | None, now: float) -> int:
    """Return the number of the release that a user wants to report to, counted from 0.

    Args:
        plan: the plan.
        release: the number that the user gave; None: the only release is chosen, or the one that
            the plan's calendar has open now.
        now: the time, Unix seconds.

    Raises:
        InvalidInputError: the plan has no release of this number. Or `release` is None, and the
            plan has several releases; its calendar has none of them open now, or it has no
            calendar.
    """
    last = len(plan.releases) - 1
    if release is None and last:
        calendar = plan.calendar
        if calendar is None:
            raise InvalidInputError(
                f"the plan has {last + 1} releases: name the one of this report with --release, 0"
                f" to {last}"
            )
        # Under a calendar each round is a release.
        release = calendar.round_at(datetime.fromtimestamp(now, UTC))
        if release is None:
            raise InvalidInputError(
                f"by this client's clock none of the plan's {last + 1} releases is open now"
                f" ({calendar}): report then, or send a report on with --release, 0 to {last}"
            )
    return validate.integer(0, last, release=0 if release is None else release)


def left_over(
    accepted: AcceptedCampaigns, record: ClientRecord, plan: Plan, release: int
) -> Iterator[str]:
    """Yield a note, in words, for each report of another release or plan that is still to be sent.

    A plan that was accepted later, or another day of a calendar, would else hide such a report. A
    plan that the owner deleted takes no report, so nothing is said of it.

    Args:
        accepted: the campaigns that the owner accepted.
        record: the client's record, with the outbox.
        plan: the plan whose report the user sends now.
        release: the number of the release of this report, from 0.
    """
    for unsent in record.outbox():
        campaign = accepted.get(bytes.fromhex(unsent.plan))
        if campaign is None:
            continue
        number = next(n for n, of in enumerate(campaign.plan.releases) if unsent.round in of)
        if (unsent.plan, number) != (plan.fingerprint, release):
            yield (
                f"note: a report is still to be sent to {in_servers(unsent)}: --fingerprint"
                f" {unsent.plan} --release {number} sends it on"
            )


def in_servers(unsent: Unsent) -> str:
    """Return, in words, the servers that a report is still to be sent to."""
    return " and ".join(f"the {server}" for server in sorted(unsent.frames))


@dataclass
class Reporter:
    """Make the report of one client for one release of a plan.

    Call `read`, then `make`. `refusals` says beforehand whether `make` would refuse.

    Args:
        policy: what the owner demands of every plan.
        items: the client's items.
        campaign: an accepted campaign that two servers sum.
        release: the number of the release, counted from 0.
        record: the client's record of its participation. It must have been opened with its mark, a
            second file that detects an old copy of the record. The policy's cap is written into it.
        identity: the client's signing key.
        random: a function that returns the requested number of uniform bytes from a cryptographic
            source.
        now: the time at which this object is made, Unix seconds. The record keeps it with the cap.
        tell: called with each message for the owner.
        once: a label of the items, a new one for new items. The record allows each label only once,
            over all plans. None: there is no label.

    Raises:
        InvalidInputError: the record cannot enforce the policy, see `agent.check_binds`.
    """

    policy: AgentPolicy
    items: Items
    campaign: Campaign
    release: int
    record: ClientRecord
    identity: SigningKey = field(repr=False)
    random: Callable[[int], bytes] = field(repr=False)
    now: float
    tell: Callable[[str], None] = field(repr=False)
    once: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        bind(self.record, self.policy, self.once, self.now)
        self._held: FrequencyClient | None = None

    @property
    def plan(self) -> Plan:
        """The plan of the campaign."""
        return self.campaign.plan

    @property
    def unsent(self) -> Unsent | None:
        """The report for this release in the outbox; None: the outbox has no report for it.

        The outbox holds a report while a frame of it still must be sent to a server.
        """
        rounds = self.plan.releases[self.release]
        return next(
            (
                one
                for one in self.record.outbox()
                if one.plan == self.plan.fingerprint and one.round in rounds
            ),
            None,
        )

    @property
    def fate(self) -> Fate | None:
        """The final state of the report for this release, such as accepted by both servers.

        None: the state is not known yet, or there is no report.
        """
        return _first(
            self.record.fate(self.plan.fingerprint, round) for round in self._rounds_taken()
        )

    def refusals(self, now: float) -> Iterator[str]:
        """Yield the reasons, in words, why this client must not make the report now; none if it
        may.

        Nothing is recorded, and the content of the items is not read.

        Args:
            now: the time, Unix seconds.
        """
        if why := self.campaign.why_over(self.record, now):
            yield f"the plan is over: {why}"
        yield from demands(self.campaign, self.policy, self.items, self.identity)
        if self._rounds_taken():
            yield f"this client took part in release {self.release} of the plan"
        # The first round stands for all: only plans without a calendar have releases of several
        # rounds, and their rounds are always open.
        if why := why_closed(self.plan, self.plan.releases[self.release][0], int(now), now):
            yield why
        standing = self._journal(self.plan.releases[self.release][0], now).standing(int(now))
        if why := other_cap(standing.cap, self.policy) or standing.refusal or "":
            yield why
        try:
            self.items.check_there()
        except InvalidInputError as error:
            yield f"the items: {error.in_shell}"

    def read(self) -> None:
        """Read the items into memory, for `make`.

        If they cannot be read and the plan has privacy, the report will be the report of a client
        without items. No server has been contacted at this point, so no server learns how long the
        read takes.

        Raises:
            InvalidInputError: the items cannot be read, and the plan has no privacy.
        """
        reading = self.items.read(self.plan)
        reading.wait()
        try:
            self._held = reading.client()
        except Exception as error:
            if self.plan.privacy is None:
                raise InvalidInputError(f"the items: {in_words(error)}") from None
            self.tell(f"reports zeros, as if it held no item: {in_words(error)}")
            self._held = self.items.without(self.plan)
        finally:
            reading.drop()

    def make(self, now: float) -> Unsent:
        """Make the report, record that the items are used, and return the report from the outbox.

        Call `read` before each call of this method.

        Args:
            now: the time, Unix seconds.

        Raises:
            InvalidInputError: `refusals` has a reason now. Nothing was recorded.
            LocalProtocolError: the record refuses the report, because another process recorded a
                participation in between.
        """
        for reason in self.refusals(now):
            raise InvalidInputError(f"{reason}; nothing was spent")
        assert self._held is not None, "the items are read first"
        round = self._drawn_round()
        self._held.report(
            round,
            self.policy.reports,
            now=int(now),
            journal=self._journal(round, now),
            identity=self.identity,
            random=self.random,
            privacy=self.policy.privacy,
        )
        self._held = None
        report = self.unsent
        assert report is not None
        return report

    def _journal(self, round: int, now: float) -> Journal:
        return Journal(self.record, self.plan, round, int(now), self.once)

    def _rounds_taken(self) -> list[int]:
        """Return the rounds of this release in which the client took part already."""
        taken = self.record.participations(self.plan.fingerprint)
        return [round for round in self.plan.releases[self.release] if round in taken]

    def _drawn_round(self) -> int:
        """Return a random round of the release. All rounds of a release are in the same sum."""
        rounds = self.plan.releases[self.release]
        return rounds[int.from_bytes(self.random(16), "little") % len(rounds)]


def _first(fates: Iterable[Fate | None]) -> Fate | None:
    return next((fate for fate in fates if fate is not None), None)
