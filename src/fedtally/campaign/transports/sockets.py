"""The engine for agents that listen on Unix sockets of this machine.

An agent is the process that takes part for a client (`fedtally.agent`). Each agent listens on a
socket ``NAME.sock`` in one folder, where NAME is the client's name in the driver. The engine keeps
one connection to each agent, and carries frames (messages) between the agents and the driver. If an
agent cannot be reached, the engine tries again later. An agent that sends wrong bytes, or nothing,
cannot stop the campaign.
"""

from __future__ import annotations

import asyncio
import os
import resource
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedtally.campaign.driver import Driver, Receipt
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.transports.engine import Ran, Watch, hold
from fedtally.campaign.transports.event_loop import drain_at_sigterm, set_within, signals_given_back
from fedtally.campaign.transports.pace import LONGEST_PAUSE, Ending, Pace, longest_answer
from fedtally.campaign.transports.pipe import PipeError, read_frame, write_frame
from fedtally.errors import InvalidInputError, OvertakenError, opt
from fedtally.store import StoreError

SUFFIX = ".sock"
# the seconds between two listings of the folder, and between two attempts to reach an agent
LOOK_SECONDS = 2.0
# after at most this many seconds, the driver is asked again for a frame for an idle agent
POLL_SECONDS = 5.0
# after the end of the run, the longest wait until agents have their last frame
FAREWELL_SECONDS = 5.0
# How many open files are left for the store: a write opens its database, a journal and the mark
# (`store.marks`).
KEPT_FILES = 32


@dataclass(frozen=True)
class Sockets:
    """The engine for agents on Unix sockets of this machine; it runs in this process.

    Args:
        folder: the folder of the agents' sockets.
    """

    folder: Path

    def run(
        self,
        campaign: CampaignFolder,
        *,
        wait: int,
        take_over: bool,
        watch: Callable[[Driver | None], AbstractContextManager[Watch]],
    ) -> Ran:
        """Run a campaign until it ends for one of the reasons in `Ending`, as `Engine.run` says."""
        # The folder is checked before the campaign is claimed. Otherwise a wrong folder would begin
        # the campaign, or stop another process that runs it.
        check_folder(self.folder)
        _allow_many_files()
        with hold(campaign, take_over) as driver, watch(driver) as watcher:
            loop = SocketLoop(
                driver,
                self.folder,
                clock=time.time,
                patience=campaign.deadlines.phase,
                wait=wait,
                report=lambda: watcher.show(len(loop.present)),
                warn=watcher.warn,
            )
            try:
                with signals_given_back():
                    ending = asyncio.run(_run_until_told(loop, watcher))
            except OvertakenError:
                campaign.check_open()  # raises a clearer error if the campaign was cancelled
                raise
        return Ran(ending, loop.num_reached, driver.refusals, driver.unanswered)


async def _run_until_told(loop: SocketLoop, watch: Watch) -> Ending:
    """Run a loop until it ends, or until SIGTERM has drained it; return why it ended.

    A second SIGTERM ends the process at once. The command `resume` then goes on with the campaign.
    """
    drain_at_sigterm(loop.stop, watch.note)
    return await loop.run()


def _allow_many_files() -> None:
    """Raise the limit of open files as far as allowed, since each agent needs one open file."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # some systems allow less than the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@dataclass
class SocketLoop:
    """Carry the frames of a campaign between its driver and the agents with a socket in a folder.

    Args:
        driver: the driver of the campaign.
        folder: the folder of the agents' sockets.
        clock: returns the time, Unix seconds.
        patience: how long the engine waits for an agent's answer before it closes the connection,
            in seconds.
        wait: after how many seconds `run` ends if no session could be opened, or no client
            answered, see `Pace`.
        report: called after each step of the driver, at least about once a second.
        warn: called with a text about a problem after which the engine goes on.
        steady: returns the seconds of a monotonic clock, for the waits of the engine.

    Attributes:
        present: the names of the agents that are connected now.
        num_reached: how many agents were connected when the run ended.

    Raises:
        InvalidInputError: the folder is missing or unreadable, or everybody may write to it.
    """

    driver: Driver
    folder: Path
    clock: Callable[[], float]
    patience: float
    wait: float
    report: Callable[[], None] = lambda: None
    warn: Callable[[str], None] = lambda _: None
    steady: Callable[[], float] = time.monotonic
    present: set[str] = field(default_factory=set, init=False)
    num_reached: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_folder(self.folder)
        self._most = longest_answer(self.driver.plan)
        self._agents: dict[str, asyncio.Task[None]] = {}
        self._pace = Pace(self.driver, self.clock, self.wait, self.warn, self.steady)
        self._most_open, self._open, self._is_full = _most_connections(), 0, False
        self._is_forbidden = False
        self._wake, self._news = asyncio.Event(), asyncio.Event()

    async def run(self) -> Ending:
        """Carry frames until the run ends for one of the reasons in `Ending`; return the reason.

        Raises:
            OvertakenError: another process runs the campaign, or the campaign was cancelled.
            OverspentError: the population has too little privacy budget left. No client was
                invited.
            FedtallyError: another error of the driver, see `Pace.step`.
        """
        looking = asyncio.create_task(self._look())
        try:
            ending = await self._tick()
            self.num_reached = len(self.present)  # before the tasks close their connections
            await self._say_farewell()
            return ending
        finally:
            for task in (looking, *self._agents.values()):
                task.cancel()
            await asyncio.gather(looking, *self._agents.values(), return_exceptions=True)

    def stop(self) -> None:
        """Open no more sessions; `run` returns when the last open session is over."""
        if not self._pace.drains:
            self._pace.stop()
            self._wake.set()

    async def _tick(self) -> Ending:
        """Call the driver whenever it is due, until the run ends; return why it ended."""
        while True:
            self._wake.clear()
            ending = self._pace.step()
            self.report()
            if self._pace.has_news:
                self._tell()
            if ending is not None:
                return ending
            await set_within(self._wake, max(0.0, self._pace.due - self.steady()))

    def _tell(self) -> None:
        """Wake the tasks of all agents, so that they ask the driver for a frame."""
        self._news.set()
        self._news = asyncio.Event()

    async def _say_farewell(self) -> None:
        """Wait at most a few seconds for agents to get the farewell, their session's last frame."""
        self._tell()
        end = self.steady() + FAREWELL_SECONDS
        while self.driver.owes_farewells and self.present and self.steady() < end:
            await asyncio.sleep(0.05)

    async def _look(self) -> None:
        """Look for new sockets in the folder again and again, and start a task for each."""
        while True:
            # An error may pass, for instance that too many files are open. If it ended this task,
            # no new agent could join.
            with suppress(OSError):
                for place in sorted(self.folder.glob(f"*{SUFFIX}")):
                    if place.stem not in self._agents:
                        task = asyncio.create_task(self._serve(place))
                        self._agents[place.stem] = task
            await asyncio.sleep(LOOK_SECONDS)

    async def _serve(self, place: Path) -> None:
        """Connect to one agent again and again, until its socket is removed; carry frames."""
        while os.path.lexists(place):
            if self._open < self._most_open:
                self._open += 1
                try:
                    await self._connect(place)
                finally:
                    self._open -= 1
            else:
                self._warn_full()
            await asyncio.sleep(LOOK_SECONDS)
        # Without this line, the names of agents whose sockets are removed would fill the memory.
        del self._agents[place.stem]

    async def _connect(self, place: Path) -> None:
        """Connect to one agent, and carry its frames until the connection ends.

        If the agent cannot be reached, its connection breaks, or the store does not answer, no
        error is raised.
        """
        with suppress(OSError, PipeError, StoreError):
            try:
                reader, writer = await asyncio.open_unix_connection(os.fspath(place))
            except PermissionError as error:
                self._warn_forbidden(place, error)
                raise
            self.present.add(place.stem)
            try:
                await self._carry(place.stem, reader, writer)
            finally:
                self.present.discard(place.stem)
                writer.close()

    def _warn_forbidden(self, place: Path, error: OSError) -> None:
        """Warn, but only once, that this user may not connect to an agent's socket."""
        if self._is_forbidden:
            return
        self._is_forbidden = True
        self.warn(
            f"cannot reach the agent at {place} ({error.strerror}), nor others like it, which are"
            " not named: be in the group of each agent's user, and log in anew after a change"
        )

    def _warn_full(self) -> None:
        """Warn, but only once, that agents must wait because of the limit of open files."""
        if self._is_full:
            return
        self._is_full = True
        self.warn(
            f"{self._most_open:,} agents are connected, and {len(self._agents):,} are there: more"
            f" would take open files from the store, of which this process may have"
            f" {_most_files():,}; the others wait. Raise the limit (ulimit -Hn, LimitNOFILE= of a"
            " service), drain and resume"
        )

    async def _carry(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry frames to and from one agent until its connection ends.

        Raises:
            PipeError: the connection broke while a frame was sent or an answer awaited.
        """
        while True:
            news = self._news  # read before `driver.next`: a later `_tell` then ends the wait below
            frame = self.driver.next(name, self.clock())
            if frame is None:
                if self.driver.check_in(name, self.clock()):
                    self._wake.set()
                await set_within(news, POLL_SECONDS)
                # While no frame is sent, nothing else shows that the agent has disconnected.
                if reader.at_eof():
                    return
                continue
            with _hung_up_after(self.patience, writer):
                await write_frame(writer, frame)
                answer = await read_frame(reader, self._most)
            if answer and self.driver.receive(name, answer, self.clock()) is Receipt.TAKEN:
                self._wake.set()


def check_folder(folder: Path) -> None:
    """Refuse a folder of sockets that cannot be read, or to which everybody may write.

    Whoever can make a socket in the folder can take part in the name of a client.

    Raises:
        InvalidInputError: the path is no folder or cannot be read, or everybody may write to it.
    """
    try:
        mode = folder.stat().st_mode
    except OSError as error:
        raise InvalidInputError(
            f"cannot read the folder of sockets {folder}: {error.strerror}; name the folder in"
            f" which the agents make their sockets ({opt.agents('DIR')})"
        ) from None
    if not stat.S_ISDIR(mode):
        raise InvalidInputError(f"{folder} is no folder: name the folder of the sockets")
    if mode & stat.S_IWOTH:
        raise InvalidInputError(
            f"everybody may write {folder}, so that anybody could take a client's name:"
            f" chmod o-w {folder}"
        )


def _most_files() -> int:
    """Return how many files this process may have open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def _most_connections() -> int:
    """Return how many agents may be connected at once, since each of them needs one open file."""
    return max(0, _most_files() - len(os.listdir("/dev/fd")) - KEPT_FILES)


@contextmanager
def _hung_up_after(seconds: float, writer: asyncio.StreamWriter) -> Iterator[None]:
    """Close the connection if the `with` block takes longer than `seconds`.

    The reads and writes of the block then raise a `PipeError`. If this process was suspended when
    the time ended, an answer may have come in time but not be read yet. So the block then gets its
    whole time again. (`asyncio.timeout` would end the block.)

    Args:
        seconds: the longest time of the block.
        writer: the connection.
    """
    loop = asyncio.get_running_loop()
    watching: asyncio.TimerHandle

    def watch() -> None:
        nonlocal watching
        due = loop.time() + seconds
        watching = loop.call_at(due, end, due)

    def end(due: float) -> None:
        # after a suspension, the loop still has to read the answer
        if loop.time() - due > LONGEST_PAUSE:
            watch()
        else:
            writer.transport.abort()

    watch()
    try:
        yield
    finally:
        watching.cancel()
