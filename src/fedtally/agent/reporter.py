"""Decide about, and make, a client's report to two servers, once for each release.

A report is the client's contribution to a plan that two servers sum. A `Reporter` opens no network
connection. It first puts the report into the outbox, a table of the client's record.
`campaign/transports/https/reporting.py` sends it from there. The servers' answers only tell the
state of a release. They cannot add a plan or cause a read of the items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

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
    """Return the accepted campaign, summed by two servers, that a user wants to report to.

    Args:
        accepted: the campaigns that the owner accepted.
        record: the client's record, with the registrar's plans that ended.
        fingerprint: all 64 hexadecimal digits of the plan's fingerprint. None: choose the only plan
            that is not over, or if all are over, the only plan.
        now: the time, Unix seconds.

    Raises:
        InvalidInputError: there is no such campaign, or there are several and none was named.
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


def release_to_report(plan: Plan, release: int | None) -> int:
    """Return the number of the release that a user wants to report to, from 0.

    Args:
        plan: the plan.
        release: the number that the user gave; None: choose the only release.

    Raises:
        InvalidInputError: there is no such release, or there are several and none was named.
    """
    last = len(plan.releases) - 1
    if release is None and last:
        raise InvalidInputError(
            f"the plan has {last + 1} releases: name the one of this report with --release, 0 to"
            f" {last}"
        )
    return validate.integer(0, last, release=0 if release is None else release)


@dataclass
class Reporter:
    """Make the report of one client for one release.

    Args:
        policy: what the owner demands.
        items: what the client holds.
        campaign: an accepted campaign that two servers sum.
        release: the number of the plan's release.
        record: the client's record of its participation, opened with its mark (a second file that
            detects an old copy of the record). The policy's cap is written into it.
        identity: the client's signing key.
        random: a function that returns the requested number of uniform bytes from a cryptographic
            source.
        now: the time, Unix seconds.
        tell: called with each message for the owner.
        once: a label of the items. The record accepts each label once, over all plans.

    Raises:
        InvalidInputError: as for `Agent`.
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
        """The report of this release that at least one server lacks; None: there is none."""
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
        """The fate of this release's report at the servers; None: not known yet, or no report."""
        return _first(
            self.record.fate(self.plan.fingerprint, round) for round in self._rounds_taken()
        )

    def refusals(self, now: float) -> Iterator[str]:
        """Yield every reason, in words, why this client makes no report now.

        Nothing is recorded, and the items are not read.

        Args:
            now: the time, Unix seconds.
        """
        if why := self.campaign.why_over(self.record, now):
            yield f"the plan is over: {why}"
        yield from demands(self.campaign, self.policy, self.items, self.identity)
        if self._rounds_taken():
            yield f"this client took part in release {self.release} of the plan"
        # All rounds of a release are in one sum. With a calendar, a release has one round.
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
        """Read the items into memory.

        If they cannot be read and the plan has privacy, the report will hold no item. No server is
        contacted before that, so the duration of the read reveals nothing.

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
        """Make the report, and return it as it is in the outbox. The items are spent by this.

        `read` must be called before.

        Args:
            now: the time, Unix seconds.

        Raises:
            InvalidInputError: `refusals` has a reason now; nothing was spent.
            LocalProtocolError: the record refuses the report, since the items were spent meanwhile.
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
        """Return the rounds of this release in which the client took part, by its record."""
        taken = self.record.participations(self.plan.fingerprint)
        return [round for round in self.plan.releases[self.release] if round in taken]

    def _drawn_round(self) -> int:
        """Return a round of the release, drawn at random; all its rounds are in one sum."""
        rounds = self.plan.releases[self.release]
        return rounds[int.from_bytes(self.random(16), "little") % len(rounds)]


def _first(fates: Iterable[Fate | None]) -> Fate | None:
    return next((fate for fate in fates if fate is not None), None)
