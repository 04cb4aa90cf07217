"""The engine for clients that send requests over HTTPS: one process for each campaign."""

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
    """The engine for clients that send requests over HTTPS; it runs in this process.

    Args:
        listen: the address for clients, usually a Unix socket behind nginx.
        linger: the seconds for which clients are told that a finished campaign is over.
        load_names: loads the clients' names and tokens. Its arguments are the folder of the
            campaign, and a function that is called with a text if they cannot be read again.
        operate: the address for probes and Prometheus; None: there is none.
        log: the level of the log lines on stderr, a name of `operate.LEVELS`.
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

        This engine never gives up, so `wait` has no effect. If the campaign is cancelled during the
        run, clients are first told for `linger` seconds that it is over; then this raises.
        """
        _ignore_reload()
        # Before the campaign is claimed: missing tokens or a mistyped address must not begin it.
        names = self.load_names(campaign.path, lambda why: warn(why))
        with (
            self._bound(take_over) as listening,
            hold(campaign, take_over) as driver,
            watch(driver) as watcher,
        ):
            log = json_log(self.log)
            # With a JSON log, warnings go only there: whoever reads the log may see no display.
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
        # A drained run does not linger: the next process tells clients that all is over.
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
            campaign: the folder of the campaign.
            note: shows a message to the operator.
            counted: the counters of this process's run, which stay visible; None: there was no run.
        """
        if not self.linger:
            return
        note(f"clients hear for {self.linger:,} seconds that it is over; SIGTERM ends that")
        apps = ended(campaign.plan.fingerprint, draw), lingering(counted)
        with self._bound() as listening:
            run_loop(_serve_end(zip(apps, listening, strict=False), self.linger))

    @contextmanager
    def _bound(self, take_over: bool = False) -> Iterator[list[Listening]]:
        """Listen on the engine's addresses while the `with` block runs.

        The context yields the socket for clients, and then the one for operators, if there is one.
        """
        places = [self.listen] if self.operate is None else [self.listen, self.operate]
        with ExitStack() as bound:
            yield [bound.enter_context(one.bound(take_over)) for one in places]


Served = Iterable[tuple[Any, Listening]]  # ASGI applications, each with the socket that it serves


def run_loop(running: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on an event loop of uvloop, and return its result.

    Uvicorn is faster on this loop than on asyncio's own, and a connection needs a fifth of the
    memory.
    """
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(running)
    finally:
        _ignore_reload()  # closing the loop removed its signal handlers


def _ignore_reload() -> None:
    """Ignore SIGHUP until a loop handles it: SIGHUP would otherwise end this process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@asynccontextmanager
async def all_served(apps: Served) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Serve applications while the `with` block runs.

    The context yields one task for each application. During the block, a task ends only if it
    fails.

    Args:
        apps: the applications, each with the socket that it serves.
    """
    async with AsyncExitStack() as stack:
        tasks = []
        for app, listening in apps:
            listening.show()
            tasks.append(await stack.enter_async_context(served(app, listening.socket)))
        yield tasks


async def _serve(loop: HttpsLoop, apps: Served, watch: Watch) -> Ending:
    """Serve a campaign until its run ends, and return why it ended.

    SIGTERM drains the run, and a second SIGTERM ends the process. SIGHUP reads the tokens again.
    """
    drain_at_sigterm(loop.stop, watch.note)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, loop.names.reload)
    loop.names.reload()  # a SIGHUP that came before this handler was ignored
    async with all_served(apps) as serves:
        running = asyncio.create_task(loop.run())
        await asyncio.wait({running, *serves}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()  # if a server failed, no client can reach the run any more
    return await running


async def _serve_end(apps: Served, seconds: float) -> None:
    """Serve the applications of a campaign that is over for some seconds, or until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with all_served(apps) as serves:
        over_soon = asyncio.create_task(over.wait())
        await asyncio.wait(
            {over_soon, *serves}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        over_soon.cancel()
