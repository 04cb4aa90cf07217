"""The state of a running campaign: its missing rounds, its next round, and its sums so far."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from fedtally.campaign.books import Books
from fedtally.campaign.periods import Periods, periods_of
from fedtally.campaign.screening import Screening
from fedtally.campaign.server import FrequencyServer
from fedtally.sketch import CountSketch
from fedtally.store import Ledger

if TYPE_CHECKING:
    from fedtally.campaign.folder import CampaignFolder


def periods_in(folder: CampaignFolder) -> Periods:
    """Return the periods of a campaign's rounds: when each round is open."""
    return periods_of(folder.plan, folder.deadlines.session)


def next_round(folder: CampaignFolder, now: float) -> int | None:
    """Return the first round that may have another session, now or later; else None.

    Sessions that run, the releases that were made, and the stopping rule are not considered.

    Args:
        folder: the folder of the campaign.
        now: the time, Unix seconds.
    """
    landed = folder.status().landed if folder.has_begun else {}
    most = folder.plan.max_round_clients - folder.plan.summing.least_clients
    rounds = periods_in(folder).left_at(now)
    return next((round for round in rounds if landed.get(round, 0) <= most), None)


def is_full(folder: CampaignFolder, now: float) -> bool:
    """Return whether no session runs, and every round is full or over.

    The result is False if the campaign has not begun. The stopping rule of the plan, the releases
    that were made and a cancellation are not considered. The process that runs the campaign uses
    `Driver.is_complete` instead.

    Args:
        folder: the folder of the campaign.
        now: the time, Unix seconds.
    """
    return folder.has_begun and not folder.status().open and next_round(folder, now) is None


def missing_rounds(folder: CampaignFolder, now: float) -> list[int]:
    """Return the rounds that are closed by the calendar and have no sum, in order.

    Args:
        folder: the folder of the campaign.
        now: the time, Unix seconds.
    """
    closed = range(periods_in(folder).num_closed(now))
    landed = folder.status().landed if closed and folder.has_begun else {}
    return [round for round in closed if not landed.get(round)]


def sums_so_far(folder: CampaignFolder) -> tuple[list[CountSketch], Screening]:
    """Return the sums that may be seen now, and what screening says of the sums of cohorts.

    Screening looks for sums that lying clients changed. This function only reads, so another
    process may run the campaign at the same time. If a trusted aggregator adds the noise, only sums
    with noise are returned. With a calendar, these are the releases that the campaign's process has
    made so far, see `Driver`. Without a calendar, the campaign's process makes all releases at the
    end, so no sum is returned before the end.

    Raises:
        PoisonedError: screening refused every round that has a sum, and no release was made.
        UnreadableFileError: the campaign has never run, or the database or ledger cannot be read.
    """
    ledger = None if folder.ledger is None else Ledger.open(folder.ledger)
    reader = folder.state().read(folder.plan, ledger)
    server = FrequencyServer(folder.plan, cast("Books", reader), screen=folder.screen)
    server.screening.rejected = Counter(reader.impossible(folder.plan))
    return server.so_far(), server.screening
