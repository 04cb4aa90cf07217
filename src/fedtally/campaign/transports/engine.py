"""The interface of engines, which carry the frames (messages) of a campaign.

An engine starts a campaign, or resumes it where it was stopped.
"""

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
    """How a run of an engine ended.

    Attributes:
        ending: the reason why the run ended.
        present: the number of clients that were connected at the end.
        refusals: the number of refused frames and of clients that aborted, by code.
        unanswered: the number of invitations that clients did not answer.
        say_over: a function to call when the campaign has its result. It tells clients that send
            requests later that the campaign is over, and returns after the time that the operator
            set. Its argument is a function that shows messages to the operator.
    """

    ending: Ending
    present: int
    refusals: Counter[AbortCode]
    unanswered: int
    say_over: Callable[[Callable[[str], None]], None] = lambda note: None


class Watch(Protocol):
    """The display of a running engine: it shows the progress and messages to the operator."""

    def note(self, message: str) -> None:
        """Show a message to the operator."""

    def warn(self, message: str) -> None:
        """Show a problem after which the engine goes on, also if the operator chose quiet."""

    def show(self, present: int | None = None) -> None:
        """Show the progress of the campaign anew.

        Args:
            present: the number of clients that are connected; None: it is not known.
        """


class Engine(Protocol):
    """A carrier of frames between the driver of a campaign and its clients.

    An engine makes no decision about the campaign. It calls the driver when the driver is due, and
    passes frames between it and the clients.
    """

    def run(
        self,
        campaign: CampaignFolder,
        *,
        wait: int,
        take_over: bool,
        watch: Callable[[Driver | None], AbstractContextManager[Watch]],
    ) -> Ran:
        """Run a campaign until it is complete, drained or stalled (see `Ending`).

        When this returns, no process runs the campaign, and the sums that landed are not released
        yet.

        Args:
            campaign: the folder of the campaign.
            wait: the seconds after which the engine gives up if no session could be opened, or no
                client answered. Some engines never give up (`EngineRow.gives_up`).
            take_over: whether to take the campaign over from a process that runs it.
            watch: opens the display of this run. Its argument is the driver, or None if the driver
                is in another process.

        Raises:
            InvalidInputError: the clients cannot be reached by these options; the campaign was not
                changed.
            OvertakenError: another process runs the campaign.
            OverspentError: the population has too little privacy budget left; no client was
                invited.
        """


def hold(campaign: CampaignFolder, take_over: bool = False) -> AbstractContextManager[Driver]:
    """Return a context in which this process runs a campaign; it gives the campaign's driver.

    The driver gets the system's clock and source of randomness.

    Args:
        campaign: the folder of the campaign.
        take_over: whether to take the campaign over from a process that runs it.
    """
    return campaign.run(
        os.getpid(),
        clock=lambda: int(time.time()),
        random=secrets.token_bytes,
        take_over=take_over,
    )
