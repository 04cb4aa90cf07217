"""The engine for clients that ask over HTTPS: one process a campaign, behind nginx."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedtally.campaign.driver import Driver
from fedtally.campaign.folder import CANCELLED, CampaignFolder
from fedtally.campaign.transports.engine import Ran, Watch, hold
from fedtally.campaign.transports.event_loop import drain_at_sigterm
from fedtally.campaign.transports.https.listen import Address, Listening, new_event_loop, served
from fedtally.campaign.transports.https.loop import HttpsLoop, Names, ended, serving
from fedtally.campaign.transports.https.operate import (
    Instruments,
    json_log,
    lingering,
    operated,
    warned,
)
from fedtally.campaign.transports.https.web import draw
from fedtally.campaign.transports.pace import Ending
from fedtally.errors import OvertakenError

_T = TypeVar("_T")


@dataclass(frozen=True)
class Https:
    """The engine for clients that ask over HTTPS: it runs in this process.

    Args:
        listen: where it listens.
        linger: the seconds for which it says that a campaign is over, once it is.
        load_names: reads from the folder of a campaign whose tokens count. It also takes a
            function, which is told why they could not be read again.
        operate: where probes and Prometheus ask how the process does; None: nowhere.
        log: the level of the lines on stderr, a name of `operate.LEVELS`.
    """

    listen: Address
    linger: float
    load_names: Callable[[Path, Callable[[str], None]], Names]
    operate: Address | None = None
    log: str = "off"

    def run(
        self,
        campaign: CampaignFolder,
        *,
        wait: int,
        take_over: bool,
        watch: Callable[[Driver | None], AbstractContextManager[Watch]],
    ) -> Ran:
        """Run a campaign until it is complete or drained, as `Engine.run` says.

        It waits for clients for as long as it takes, whatever `wait` is. If the campaign is
        cancelled meanwhile, its clients hear so before this raises.
        """
        _ignore_reload()
        # Before the campaign is claimed: a mistyped address, or no token, must begin nothing.
        names = self.load_names(campaign.path, lambda why: warn(why))
        with (
            self._bound(take_over) as listening,
            hold(campaign, take_over) as driver,
            watch(driver) as watcher,
        ):
            log = json_log(self.log)
            # A log of JSON holds problems too: whoever reads its lines looks nowhere else.
            warn: Callable[[str], None] = (
                watcher.warn if self.log == "off" else partial(warned, log)
            )
            instruments = Instruments(driver, lambda: campaign.status().ended, time.time, log)
            loop = HttpsLoop(
                driver,
                names,
                campaign.deadlines.phase,
                report=lambda: watcher.show(driver.num_present),
                warn=warn,
                observer=instruments,
            )
            apps = serving(loop), operated(loop, instruments)
            try:
                ending = run_loop(_serve(loop, zip(apps, listening, strict=False), watcher))
            except OvertakenError:
                if (campaign.path / CANCELLED).exists():
                    watcher.note("the campaign was cancelled")
                    self.say_over(campaign, watcher.note, instruments)
                campaign.check_open()
                raise
        ran = Ran(ending, loop.num_waiting, driver.refusals, driver.unanswered)
        # Who was told to go has only the result to save: the next process says that it is over.
        over = partial(self.say_over, campaign, counted=instruments)
        return ran if loop.drains else ran._replace(say_over=over)

    def say_over(
        self,
        campaign: CampaignFolder,
        note: Callable[[str], None],
        counted: Instruments | None = None,
    ) -> None:
        """Tell clients for `linger` seconds, or until SIGTERM, that a campaign is over.

        Args:
            campaign: the campaign.
            note: takes what people should know, in words.
            counted: what counted while this process ran the campaign.
        """
        if not self.linger:
            return
        note(f"clients hear for {self.linger:,} seconds that it is over; SIGTERM ends that")
        apps = ended(campaign.plan.fingerprint, draw), lingering(counted)
        with self._bound() as listening:
            run_loop(_serve_end(zip(apps, listening, strict=False), self.linger))

    @contextmanager
    def _bound(self, take_over: bool = False) -> Iterator[list[Listening]]:
        """Give what is bound: first for clients, then for operators if they have an address."""
        places = [self.listen] if self.operate is None else [self.listen, self.operate]
        with ExitStack() as bound:
            yield [bound.enter_context(one.bound(take_over)) for one in places]


Served = Iterable[tuple[Any, Listening]]  # applications, and where


def run_loop(running: Coroutine[Any, Any, _T]) -> _T:
    """Run on the loop that uvicorn is fast on; a connection takes a fifth of the memory there."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(running)
    finally:
        _ignore_reload()  # a loop that closes takes its handlers away


def _ignore_reload() -> None:
    """Let SIGHUP end nothing, while no loop runs that reads the tokens again."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@asynccontextmanager
async def all_served(apps: Served) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Serve applications while the block runs; give their tasks, which end only if one fails."""
    async with AsyncExitStack() as stack:
        tasks = []
        for app, listening in apps:
            listening.show()
            tasks.append(await stack.enter_async_context(served(app, listening.socket)))
        yield tasks


async def _serve(loop: HttpsLoop, apps: Served, watch: Watch) -> Ending:
    """Serve a campaign; SIGTERM drains it, and a second one ends the process."""
    drain_at_sigterm(loop.stop, watch.note)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, loop.names.reload)
    loop.names.reload()  # a SIGHUP before this was not heard
    async with all_served(apps) as serves:
        running = asyncio.create_task(loop.run())
        await asyncio.wait({running, *serves}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()  # nobody can reach it
    return await running


async def _serve_end(apps: Served, seconds: float) -> None:
    """Say for some seconds that a campaign is over; SIGTERM ends it."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with all_served(apps) as serves:
        over_soon = asyncio.create_task(over.wait())
        await asyncio.wait(
            {over_soon, *serves}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        over_soon.cancel()
