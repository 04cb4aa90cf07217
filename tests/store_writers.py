"""Eight processes that write to one ledger and die at random statements; run by test_store.py.

    python store_writers.py LOCATION FOLDER SEED

Each writer lives several times, each life a fork. It appends to FOLDER/<writer>.log, in one system
call a line: `drew` when it drew noise for a sum, `landed` when a landing was acknowledged, `died`
when it ends without any cleaning up.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import event as hooks

from fedtally.privacy.budget import AlreadySpentError, Charge, OverspentError
from fedtally.privacy.events import Event
from fedtally.store import Ledger
from fedtally.store import ledger as ledgers

EVENT = Event("rounded-gaussian", 16, "zero-out", variance=1e5, participations=3)
WRITERS, LIVES, PLANS, RELEASES = 8, 3, 5, 3


def die_at(ledger: Ledger, step: int, log: int) -> None:
    """End the process at the step-th statement or commit, before it or after it."""
    left = step
    if ledger._engine.dialect.name == "sqlite":  # engines of files share it
        ledger._engine.dialect = copy.copy(ledger._engine.dialect)
    commit = ledger._engine.dialect.do_commit

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.write(log, b"died\n")
            os._exit(0)

    def counted_commit(connection: object) -> None:
        count()
        commit(connection)
        count()

    hooks.listen(ledger._engine, "before_cursor_execute", count)
    hooks.listen(ledger._engine, "after_cursor_execute", count)
    ledger._engine.dialect.do_commit = counted_commit


def hesitate() -> None:
    """Leave time between looking at what was spent and adding to it: there writers who do not wait
    would meet."""
    rule = ledgers.check_total

    def slowly(*given: Any) -> Any:
        total = rule(*given)
        time.sleep(0.05)
        return total

    ledgers.check_total = slowly


def live(location: str, writer: int, life: int, rng: np.random.Generator, log: int) -> None:
    """Try to reserve and to land every release of every plan, in an order of its own.

    What an earlier life reserved and did not land is given up: its noise may have been drawn.
    """
    ledger = Ledger.open(location)
    if life < LIVES - 1:
        die_at(ledger, int(rng.integers(1, 150)), log)
    todo = [(plan, release) for plan in range(PLANS) for release in range(RELEASES)]
    rng.shuffle(todo)
    before = {plan: ledger.reserved(f"plan-{plan}") for plan in range(PLANS)}
    for plan, release in todo:
        if release in before[plan]:
            continue
        try:
            charge = Charge("phones", f"plan-{plan}", release, EVENT)
            reservation = ledger.reserve(charge, f"writer {writer}", time=1)
        except (AlreadySpentError, OverspentError):
            continue
        sketch = f"noise of writer {writer} in life {life}: {rng.integers(2**62)}".encode()
        what = f"plan-{plan} {release} {hashlib.sha256(sketch).hexdigest()}\n"
        os.write(log, f"drew {what}".encode())
        ledger.land(reservation, sketch, f"writer {writer}", time=2)
        os.write(log, f"landed {what}".encode())


def write(location: str, folder: Path, writer: int, seed: int) -> None:
    """Live, die and live again; the last life ends well."""
    log = os.open(folder / f"{writer}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for life in range(LIVES):
        process = os.fork()
        if process == 0:
            try:
                live(location, writer, life, np.random.default_rng([seed, writer, life]), log)
            except BaseException as error:
                os.write(log, f"failed {error!r}\n".encode())
            os._exit(0)
        os.waitpid(process, 0)


def main(location: str, folder: str, seed: str) -> None:
    """Run the writers at once."""
    from dp_accounting import get_epsilon_gaussian  # loaded once, before the forks

    get_epsilon_gaussian(1.0, 1e-6)
    hesitate()
    processes = []
    for writer in range(WRITERS):
        processes.append(os.fork())
        if processes[-1] == 0:
            write(location, Path(folder), writer, int(seed))
            os._exit(0)
    for process in processes:
        os.waitpid(process, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
