"""The engine that runs a campaign in this process for clients that send requests over HTTPS."""

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
from fedtally.campaign.transports.event_loop import drain_at_sigterm, signals_given_back
from fedtally.campaign.transports.https.listen import Address, Listening, new_event_loop, served
from fedtally.campaign.transports.https.loop import HttpsLoop, Names, ended, serving
from fedtally.campaign.transports.https.operate import (
    Instruments,
    json_log,
    lingering,
    operated,
    started,
    warned,
)
from fedtally.campaign.transports.https.web import draw
from fedtally.campaign.transports.pace import Ending
from fedtally.errors import OvertakenError

_T = TypeVar("_T")


@dataclass(frozen=True)
class Https:
    """The engine that runs a campaign for clients that send requests over HTTPS.

    Args:
        listen: the address for clients, usually a Unix socket behind nginx.
        linger: the seconds for which clients are told, after the end of the campaign, that it is
            over; 0: they are not told.
        load_names: loads the clients' names and tokens. Its first argument is the folder of the
            campaign. Its second argument is a function that is called with a warning if a later
            `Names.reload` fails.
        operate: the address for health probes and Prometheus; None: nothing listens for them.
        log: the least level of log lines on stderr: info or debug; off: only critical lines.
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
        """Run a campaign until it is complete or drained, or the clock jumps past its calendar.

        See `Engine.run` for the arguments and the errors.

        `wait` has no effect: this engine never ends for lack of clients. If the campaign is
        cancelled during the run, clients are first told for `linger` seconds that it is over, and
        then `InvalidInputError` is raised.
        """
        _ignore_reload()
        # The tokens are read before `hold` claims the campaign. Otherwise missing tokens would end
        # the run after the campaign has begun.
        names = self.load_names(campaign.path, lambda why: warn(why))
        with (
            self._bound(take_over) as listening,
            hold(campaign, take_over) as driver,
            watch(driver) as watcher,
        ):
            log = json_log(self.log)
            started(log, str(campaign.path))
            # With a JSON log, warnings are log lines: who reads the log may not see the display.
            warn = watcher.warn if self.log == "off" else partial(warned, log)
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
        # After `stop` another process continues, and tells clients when the campaign is over.
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
            counted: the metrics of the run in this process, which are still shown; None: there was
                no run.

        Raises:
            InvalidInputError: the engine cannot listen on one of its addresses.
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

        Yields:
            A list: the socket for clients, and then the socket for probes and Prometheus, if there
            is an address for them.
        """
        places = [self.listen] if self.operate is None else [self.listen, self.operate]
        with ExitStack() as bound:
            yield [bound.enter_context(one.bound(take_over)) for one in places]


Served = Iterable[tuple[Any, Listening]]  # ASGI applications, each with the socket that it serves


def run_loop(running: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on an event loop of uvloop, and return its result.

    On this loop uvicorn is faster than on asyncio's loop, and each connection needs a fifth of the
    memory. At its end SIGTERM and SIGINT do again what they did before, and SIGHUP is ignored.
    """
    try:
        with (
            signals_given_back(),
            asyncio.Runner(loop_factory=new_event_loop) as runner,
        ):
            return runner.run(running)
    finally:
        _ignore_reload()  # the loop has ended, and handles SIGHUP no more


def _ignore_reload() -> None:
    """Ignore the signal SIGHUP until a loop handles it; otherwise it would end this process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@asynccontextmanager
async def all_served(apps: Served) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Serve ASGI applications while the `with` block runs.

    Args:
        apps: the applications, each with the socket on which it is served.

    Yields:
        One task for each application. During the block, a task ends only if it fails.
    """
    async with AsyncExitStack() as stack:
        tasks = []
        for app, listening in apps:
            listening.show()
            tasks.append(await stack.enter_async_context(served(app, listening.socket)))
        yield tasks


async def _serve(loop: HttpsLoop, apps: Served, watch: Watch) -> Ending:
    """Serve a campaign until its run ends; return why the run ended.

    At SIGTERM the run opens no further session, and ends when the last one has ended. A second
    SIGTERM ends the process at once. At SIGHUP the tokens are read again.

    Args:
        loop: the loop that serves clients.
        apps: the ASGI applications, each with the socket on which it is served.
        watch: shows messages to the operator.
    """
    drain_at_sigterm(loop.stop, watch.note)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, loop.names.reload)
    loop.names.reload()  # a SIGHUP before this moment was ignored
    async with all_served(apps) as serves:
        running = asyncio.create_task(loop.run())
        await asyncio.wait({running, *serves}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()  # if a server failed, no client can reach the run any more
    return await running


async def _serve_end(apps: Served, seconds: float) -> None:
    """Serve ASGI applications for a number of seconds, or until SIGTERM.

    Args:
        apps: the applications, each with the socket on which it is served.
        seconds: the number of seconds.
    """
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    async with all_served(apps) as serves:
        over_soon = asyncio.create_task(over.wait())
        await asyncio.wait(
            {over_soon, *serves}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        over_soon.cancel()
