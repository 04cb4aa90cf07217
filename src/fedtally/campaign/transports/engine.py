"""What every engine is: it carries the frames of a campaign, from its begin or its last stop."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from fedtally.campaign.driver import Driver
    from fedtally.campaign.folder import CampaignFolder
    from fedtally.campaign.transports.pace import Ending
    from fedtally.secagg.messages import AbortCode


class Ran(NamedTuple):
    """How a run ended.

    Attributes:
        ending: why.
        present: the number of clients that were connected then.
        refusals: how often frames were refused or clients aborted, by code.
        unanswered: how many invitations no client answered.
        say_over: tells clients that ask later that the campaign is over, for as long as the
            operator wants. Call it once the campaign has its result. It takes a function, which is
            told in words what the process still does.
    """

    ending: Ending
    present: int
    refusals: Counter[AbortCode]
    unanswered: int
    say_over: Callable[[Callable[[str], None]], None] = lambda note: None


class Watch(Protocol):
    """Whoever looks on while an engine runs."""

    def note(self, message: str) -> None:
        """Take a message for the operator, in words."""

    def warn(self, message: str) -> None:
        """Take a problem that the engine goes on after, in words; whoever is quiet hears it."""

    def show(self, present: int | None = None) -> None:
        """Look at the campaign again; `present` clients are connected (None: nobody knows)."""


class Engine(Protocol):
    """What carries the frames of campaigns between their driver and their clients.

    An engine decides nothing: it calls the driver when it is due, and hands frames over.
    """

    def run(
        self,
        campaign: CampaignFolder,
        *,
        wait: int,
        take_over: bool,
        watch: Callable[[Driver | None], AbstractContextManager[Watch]],
    ) -> Ran:
        """Run a campaign until it is complete, drained or stalled; return how it ended.

        When it returns, no process holds the campaign, and what landed is not released yet.

        Args:
            campaign: the folder of the campaign.
            wait: the seconds after which it gives up, if no session could be opened, or nobody
                answered. An engine that serves clients does not (`EngineRow.gives_up`).
            take_over: whether to take the campaign from a process that runs it.
            watch: opens the watch of this run; it takes the driver, or None where another process
                has it.

        Raises:
            InvalidInputError: the clients cannot be reached so; the campaign was not touched.
            OvertakenError: another process runs the campaign.
            OverspentError: the population has too little left; nobody was invited.
        """


def hold(campaign: CampaignFolder, take_over: bool = False) -> AbstractContextManager[Driver]:
    """Hold a campaign for this process, and give its driver the clock and randomness of it.

    Args:
        campaign: the folder of the campaign.
        take_over: whether to take it from a process that runs it.
    """
    return campaign.run(
        os.getpid(),
        clock=lambda: int(time.time()),
        random=secrets.token_bytes,
        take_over=take_over,
    )
