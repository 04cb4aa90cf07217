"""The interface of engines, which carry the frames (messages) of a campaign.

An engine runs a campaign from its start, or from where it was stopped.
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
        present: how many clients were connected at the end, if `ending` is `Ending.STALLED`.
        refusals: for each code of a reason, how many frames were refused for this reason, plus how
            many clients left a session for it (by the message Abort).
        unanswered: how many invitations clients did not answer.
        say_over: a function to call when the campaign has its result. It tells clients that ask
            later that the campaign is over, and returns after the time that the operator chose, or
            at SIGTERM. Its argument is a function that shows a message to the operator. If clients
            are told nothing, it returns at once.
    """

    ending: Ending
    present: int
    refusals: Counter[AbortCode]
    unanswered: int
    say_over: Callable[[Callable[[str], None]], None] = lambda note: None


class Watch(Protocol):
    """The display of a running engine, which shows progress and messages to the operator."""

    def note(self, message: str) -> None:
        """Show a message to the operator."""

    def warn(self, message: str) -> None:
        """Show a problem after which the engine goes on.

        The problem is shown even if messages are switched off. Only a display whose output must be
        JSON alone may leave it out.
        """

    def show(self, present: int | None = None) -> None:
        """Show the progress of the campaign again.

        Args:
            present: how many clients are connected; None: this is not known.
        """


class Engine(Protocol):
    """What carries the frames of a campaign between its driver and its clients.

    An engine makes no decision about the campaign. It calls the driver at the times that the driver
    asks for, and passes frames between the driver and the clients.
    """

    def run(
        self,
        campaign: CampaignFolder,
        *,
        wait: int,
        take_over: bool,
        watch: Callable[[Driver | None], AbstractContextManager[Watch]],
    ) -> Ran:
        """Run a campaign until it ends for one of the reasons in `Ending`.

        When this method returns, no process runs the campaign. Its result is not written yet.

        Args:
            campaign: the folder of the campaign.
            wait: after how many seconds the engine ends the run if no session could be opened, or
                no client answered. If the plan has a calendar, or `EngineRow.gives_up` is False for
                this engine, `wait` has no effect.
            take_over: whether to run the campaign even if another process runs it. The other
                process then ends.
            watch: returns the display of this run, as a context manager. Its argument is the
                driver, or None if the driver is in another process.

        Raises:
            InvalidInputError: the clients cannot be reached with these options, or the campaign
                cannot be run, for instance because another process runs it and `take_over` is
                False. In these cases the campaign was not changed. Or the campaign was cancelled,
                before the run or during it.
            OvertakenError: during the run, another process took over the campaign.
            OverspentError: the population has too little privacy budget left; no client was
                invited.
            FedtallyError: another error of the driver. If the driver is in another process, the
                engine raises its own error instead of any of these errors.
        """


def hold(campaign: CampaignFolder, take_over: bool = False) -> AbstractContextManager[Driver]:
    """Lock and claim a campaign for this process, as a context manager that gives its driver.

    The lock ends with the `with` block. The driver gets the system's clock and source of
    randomness. Errors are as for `CampaignFolder.run`.

    Args:
        campaign: the folder of the campaign.
        take_over: whether to claim the campaign even if another process runs it. The other process
            then cannot write any more.
    """
    return campaign.run(
        os.getpid(),
        clock=lambda: int(time.time()),
        random=secrets.token_bytes,
        take_over=take_over,
    )
