"""The ServerApp of Flower: a loop that carries frames (messages) between a driver and nodes.

The entry `campaign` in the run's config is the path of the campaign's folder.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtally.campaign.driver import Driver, Receipt
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.transports.engine import hold
from fedtally.campaign.transports.flower.exchange import Exchange, Letter
from fedtally.campaign.transports.flower.launch import RunReport
from fedtally.campaign.transports.pace import Ending, Pace
from fedtally.errors import FedtallyError
from fedtally.secagg import wire

LOOK_SECONDS = 2.0  # the seconds between two requests for the list of online nodes
POLL_SECONDS = 0.3  # the seconds between two requests for answers
# how long the engine tries to bring nodes the last frame of a session that has ended
FAREWELL_SECONDS = 30.0


@dataclass
class FlowerLoop:
    """Carry the frames of a campaign between its driver and the nodes of a federation.

    Args:
        driver: the driver of the campaign.
        grid: the object of Flower with which a ServerApp sends messages to the nodes of its run.
        clock: returns the time, Unix seconds.
        sleep: waits for a number of seconds.
        wait: after how many seconds `run` ends if no session could be opened, or no client
            answered, see `Pace`.
        warn: called with a text about a problem after which the engine goes on.
        steady: returns the seconds of a monotonic clock, for the waits of the engine.

    Attributes:
        online: the numbers of the nodes that were online when Flower was last asked.
    """

    driver: Driver
    grid: Grid
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    wait: float
    warn: Callable[[str], None] = lambda _: None
    steady: Callable[[], float] = time.monotonic
    online: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._exchange = Exchange(self.grid, self.steady, self.warn)
        self._pace = Pace(self.driver, self.clock, self.wait, self.warn, self.steady)
        self._look_at = self._step_at = self.steady()

    def stop(self) -> None:
        """Open no more sessions; `run` returns when the last open session is over."""
        self._pace.stop()
        self._step_at = self.steady()

    def run(self) -> Ending:
        """Carry frames until the run ends for one of the reasons in `Ending`; return the reason.

        Raises:
            OvertakenError: another process runs the campaign, or the campaign was cancelled.
            OverspentError: the population has too little privacy budget left. No client was
                invited.
            FedtallyError: another error of the driver, see `Pace.step`.
        """
        while True:
            took = self._pull()
            checked_in = self._push()
            if took or checked_in or self.steady() >= self._step_at:
                ending = self._pace.step()
                self._step_at = self._pace.due
                if ending is not None:
                    self._say_farewell()
                    return ending
                if self._pace.has_news:
                    continue  # there may be frames for nodes
            self.sleep(POLL_SECONDS)

    def _pull(self) -> bool:
        """Give the answers of nodes to the driver; return whether the driver used any of them."""
        receipts = set()
        for node, answer in self._exchange.pull():
            if answer:
                receipts.add(self.driver.receive(str(node), answer, self.clock()))
            if answer is not None:
                # This tells the driver that the node has handled its frame. Otherwise the driver
                # would send a farewell again if the node's answer takes long.
                self.driver.check_in(str(node), self.clock())
        return Receipt.TAKEN in receipts

    def _push(self) -> bool:
        """Send frames to nodes that are not busy.

        About every `LOOK_SECONDS`, each online node that is not busy and gets no frame is reported
        to the driver as present. Returns whether the driver has a use for any of these nodes (see
        `Driver.check_in`).
        """
        if self.steady() < self._look_at:
            is_new = False
        else:
            self._look_at, is_new = self.steady() + LOOK_SECONDS, True
            self.online = tuple(self.grid.get_node_ids())
        closes = {one.session: one.closes[1] for one in self.driver.running()}
        letters, checked_in, busy = [], False, self._exchange.busy
        for node in self.online:
            if node in busy:
                continue
            frame = self.driver.next(str(node), self.clock())
            if frame is not None:
                message = wire.parse(frame)
                assert message is not None  # the driver made this frame
                now = self.clock()
                until = closes.get(message.session, now + FAREWELL_SECONDS)
                letters.append(Letter(node, frame, until - now))
            elif is_new:
                # Flower says that the node is online, but not whether the node got its last frame.
                checked_in |= self.driver.check_in(str(node), self.clock(), has_heard=False)
        self._exchange.push(letters)
        return checked_in

    def _say_farewell(self) -> None:
        """Send nodes the farewell, which says how their session ended, and wait for answers.

        The wait takes at most `FAREWELL_SECONDS`.
        """
        end, lost = self.steady() + FAREWELL_SECONDS, self._exchange.busy
        while self.steady() < end:
            self._pull()
            self._push()
            # Nodes that were busy before may be gone, so they are not waited for.
            if not self._exchange.busy - lost:
                return
            self.sleep(POLL_SECONDS)


def main(grid: Grid, context: Context) -> None:
    """Run the campaign that the run's config names, and write a report into its folder.

    If the campaign ends with an error of fedtally, the report has the text of the error, and the
    error is raised. If the folder is no campaign, there is no report.
    """
    config = context.run_config
    folder = CampaignFolder.open(str(config["campaign"]))
    try:
        folder.check_open()
        with hold(folder, take_over=bool(config["take-over"])) as driver:
            report = _run(driver, grid, float(config["wait"]), context.run_id)
    except FedtallyError as error:
        RunReport(context.run_id, error=str(error)).save(folder)
        raise
    report.save(folder)


app = ServerApp()
app.main()(main)


def _run(driver: Driver, grid: Grid, wait: float, run: int) -> RunReport:
    # Flower keeps what an app prints. This is no leak, since a warning names no client.
    engine = FlowerLoop(driver, grid, time.time, time.sleep, wait, warn=print)

    def drain(*_: object) -> None:
        engine.stop()
        signal.signal(signal.SIGTERM, before)  # a second signal ends the process at once

    before = signal.signal(signal.SIGTERM, drain)
    try:
        ending = engine.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    refusals = {code.name: number for code, number in driver.refusals.most_common()}
    online = len(engine.online)
    return RunReport(run, ending.value, online, refusals, unanswered=driver.unanswered)
