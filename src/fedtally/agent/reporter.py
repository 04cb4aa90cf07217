"""A client's report to two servers: whether its owner's agent makes one, of what, and once.

A `Reporter` opens no connection. What it makes is in the outbox of the client's record before
anything is sent, and whoever has a network sends it from there
(`campaign/transports/https/reporting.py`). The frames that servers send back say how a release
stands, and nothing else: they can bring in no plan, and read no item.
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
    """Return the accepted campaign of two servers that is meant.

    Args:
        accepted: what the owner accepted.
        record: what became of the registrar's plans.
        fingerprint: the plan's, all digits; None: there is one plan that is not over.
        now: the time, Unix seconds.

    Raises:
        InvalidInputError: there is none, or it is not clear which one is meant.
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
    """Return the number of the release that is meant.

    Args:
        plan: the plan.
        release: the number; None: the plan has one release.

    Raises:
        InvalidInputError: there is no such release, or it is not clear which one is meant.
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
        record: what the client took part in, opened with its mark. The owner's cap goes into it.
        identity: the client's key.
        random: returns as many uniform bytes as it is asked for, from a cryptographic source.
        now: the time, Unix seconds.
        tell: takes what the owner should know, in words.
        once: a label of the items. The record takes each label once, whatever the plan.

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
        """The report of this release, if it is made and not yet with both servers."""
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
        """What became of the report of this release; None: nothing yet, or there is none."""
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
        # its rounds are in one sum; with a calendar it is of one round
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
        """Read the items; under a plan with epsilon zeros stand for those that cannot be read.

        It is done before a server hears of this client: how long it takes tells nobody anything.

        Raises:
            InvalidInputError: they cannot be read, and the plan has no epsilon.
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
        """Make the report, which spends the items; return it as the outbox has it.

        Args:
            now: the time, Unix seconds.

        Raises:
            InvalidInputError: a reason of `refusals` came up meanwhile; nothing was spent.
            LocalProtocolError: the record refuses, since the items were spent meanwhile.
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
        """Return the rounds of this release that the record has a part in."""
        taken = self.record.participations(self.plan.fingerprint)
        return [round for round in self.plan.releases[self.release] if round in taken]

    def _drawn_round(self) -> int:
        """Return one round of the release; all of them are in one sum."""
        rounds = self.plan.releases[self.release]
        return rounds[int.from_bytes(self.random(16), "little") % len(rounds)]


def _first(fates: Iterable[Fate | None]) -> Fate | None:
    return next((fate for fate in fates if fate is not None), None)
