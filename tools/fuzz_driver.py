"""Run the driver and its store on random schedules, in which everything goes wrong that may.

    python tools/fuzz_driver.py --seeds 500 --jobs 2
    python tools/fuzz_driver.py --first 1234 --seeds 1     # one schedule again

A seed chooses a plan (adversary, privacy, rounds, cohorts, smallest session), its people, and what
happens at which call of the store or the ledger and at which frame: the process dies; the store
fails; a second process takes over while the first one sleeps, and the first one wakes again; the
only process is suspended for minutes; a copy of the file is put back; the server's clock jumps to
and fro by seconds. Clients stay away, and frames come late, twice, cut, or from somebody else.

Whatever happens: the sums that landed are those of the vectors of their clients, bit for bit; no
client is in two sums of a round or asked too often; no session shows two sets of survivors; nothing
is opened before it is reserved, and the campaign is charged once. Without lost clients and copies,
everybody's items land. The exit status is 1 on a failure, which names the seed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from campaign_world import DEADLINES, Crash, N, World, plan_of  # noqa: E402

from fedtally.campaign.driver import JITTER, Receipt  # noqa: E402
from fedtally.errors import OvertakenError  # noqa: E402
from fedtally.secagg.messages import Kind  # noqa: E402
from fedtally.store import StoreError  # noqa: E402

SECONDS = 4000  # of simulated time that a campaign gets


class Schedule:
    """What goes wrong in one campaign."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder = np.random.default_rng(seed), folder
        rng = self.rng
        rounds, cohorts = int(rng.integers(1, 3)), int(rng.integers(1, 3))
        trust: Any = rng.choice(np.array([None, "central", "distributed"], object))
        self.plan = plan_of(
            str(rng.choice(["semi-honest", "active"])),
            trust,
            rounds=rounds,
            cohorts=cohorts,
            n_min=int(rng.integers(7, N + 1)),
        )
        # Each kind of trouble is in some schedules alone: all at once, hardly anything lands.
        self.rate = {
            what: float(rng.choice([0, 0, rate]))
            for what, rate in (
                ("die", 0.01),
                ("fail", 0.01),
                ("sleep", 0.01),
                ("suspend", 0.005),
                ("copy", 0.01),
                ("put back", 0.005),
                ("absent", 0.02),
                ("frame", 0.1),
                ("jump", 0.7),
            )
        }
        self.happened: Counter[str] = Counter()
        self.sleepers: list[Any] = []
        self.frames: list[bytes] = []
        self.is_nested = False
        self.suspended = 0  # seconds
        self.world = World(
            folder,
            self.plan,
            people=rounds * cohorts * N,
            error=StoreError,
            # In a short presence a driver that counted each jump would see nobody.
            deadlines=replace(DEADLINES, presence=int(rng.choice([20, DEADLINES.presence]))),
            absent=self.absent,
            jump=self.jump,
        )

    def happens(self, what: str) -> bool:
        """Draw whether something goes wrong now."""
        if self.rng.random() >= self.rate[what]:
            return False
        self.happened[what] += 1
        return True

    def absent(self, number: int, kind: Kind) -> bool:
        """Tell whether a frame is lost on its way to a client."""
        return self.happens("absent")

    def jump(self) -> int:
        """Return by how many seconds the clock is off now: it never jumps back by more than 10."""
        return int(self.rng.integers(-JITTER // 2, JITTER // 2 + 1)) if self.happens("jump") else 0

    def step(self, what: str) -> None:
        """Let something go wrong at a step."""
        world, kept = self.world, self.folder / "copy.db"
        if what.startswith(("before", "after")):
            if self.happens("fail"):
                raise StoreError(what)
        elif self.happens("frame"):
            self.send()
        if self.happens("die"):
            raise Crash(what)
        if self.happens("suspend"):
            seconds = int(self.rng.integers(1, 300))
            self.suspended += seconds
            world.now += seconds
        if self.happens("copy"):
            shutil.copy(self.folder / "campaign.db", kept)
        # A process that starts holds the mark, which who puts a file back needs.
        if kept.exists() and not world.is_starting and self.happens("put back"):
            world.on_step = None
            world.put_back(kept)
            world.on_step = self.step
            raise Crash(what)
        # One that sleeps while it starts would count as the newest when it wakes.
        if not self.is_nested and not world.is_starting and self.happens("sleep"):
            self.is_nested = True
            self.sleepers.append(world.driver)
            try:
                world.driver = world.start()
                world.run(passes=int(self.rng.integers(1, 6)))
            finally:
                self.is_nested = False

    def send(self) -> None:
        """Send a process a frame that it should not take."""
        world, rng = self.world, self.rng
        people = [person for person in world.persons if person.answers]
        if not people:
            return
        person = people[rng.integers(len(people))]
        frame = person.answers[rng.integers(len(person.answers))]
        number = person.number
        match rng.integers(3):
            case 0:
                number = int(rng.integers(world.people))
            case 1:
                changed = bytearray(frame)
                changed[rng.integers(len(frame))] ^= 1 << rng.integers(8)
                frame = bytes(changed[: rng.integers(len(frame) + 1)])
        driver = world.driver
        if self.sleepers and rng.integers(2):
            driver = self.sleepers[rng.integers(len(self.sleepers))]
        if driver.receive(number, frame, world.now) is Receipt.TAKEN:
            self.happened["taken"] += 1

    def wake(self) -> None:
        """Let the processes that slept speak once more, and do what is due."""
        for old in self.sleepers:
            try:
                old.tick(self.world.now + DEADLINES.session)
            except (OvertakenError, StoreError, Crash):
                continue

    def run(self) -> Counter[str]:
        """Run the campaign and check it; return what happened."""
        world = self.world
        world.on_step = self.step
        end = world.now + SECONDS
        while world.now < end + self.suspended and not world.driver.is_complete:
            world.run(passes=20)
            self.wake()
        world.on_step = None
        for _ in range(20):  # what was left in the store ends without further trouble
            world.run(passes=20)
        copies = bool(self.happened["put back"])
        harmed = copies or self.happened["absent"] or self.happened["taken"] or world.aborted()
        world.check(everybody=not harmed, copies=copies)
        self.happened["landed"] = sum(world.campaigns().status(self.plan).landed.values())
        return self.happened


def one(seed: int) -> tuple[int, Counter[str] | str]:
    """Return what happened in the schedule of a seed, or how it failed."""
    os.fsync = lambda file: None  # type: ignore[assignment]  # processes end here, not power
    with tempfile.TemporaryDirectory() as folder:
        try:
            return seed, Schedule(seed, Path(folder)).run()
        except Exception:
            return seed, traceback.format_exc()


def main() -> int:
    """Return the exit code: 1 if a schedule breaks a promise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many (100)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many run at once (1)")
    options = parser.parse_args()
    failed, total = 0, Counter[str]()
    seeds = range(options.first, options.first + options.seeds)
    with ProcessPoolExecutor(max(1, options.jobs)) as pool:
        for seed, found in pool.map(one, seeds):
            if isinstance(found, str):
                failed += 1
                print(f"seed {seed} fails:\n{found}", flush=True)
            else:
                total += found
    happened = ", ".join(f"{what} {number:,}" for what, number in sorted(total.items()))
    print(f"{len(seeds)} schedules, {failed} fail; {happened}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
