"""A server that ends before or after a write: of a campaign, or one of two that sum.

``python -m benchmarks.dying STEP LOG KIND campaign run NAME ...`` runs the command. It sends itself
a signal at one of the moments before and after calls of the store: STEP is its number, 0 is never.
KIND is the signal, KILL or TERM. LOG gets the name of each moment. Checks of the claim, of which
there is one a second, count once. ``... aggregate leader run NAME ...`` has a moment before and
after each commit, each mark, each other file, the end of a batch and its landing.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from fedtally.cli import main
from fedtally.store import CampaignStore, claims, database


class Moments:
    """Count the moments before and after calls, and end the process at one of them."""

    def __init__(self, stop: int, log: Path, kind: signal.Signals) -> None:
        self._stop, self._log, self._kind = stop, log, kind
        self._count, self._has_checked, self._lock = 0, False, RLock()

    def watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that notes when it begins and ends."""

        @functools.wraps(call)
        def watch(*args: Any, **more: Any) -> Any:
            if name == "check_claim":
                if self._has_checked:
                    return call(*args, **more)
                self._has_checked = True
            self.note(f"before {name}")
            found = call(*args, **more)
            self.note(f"after {name}")
            return found

        return watch

    def watched_commits(self, begun: Callable[..., Any]) -> Callable[..., Any]:
        """Return `Database._sqlite`, which notes when a transaction is about to end, and has."""

        @contextmanager
        def watch(file: Any, *, write: bool) -> Iterator[Any]:
            with begun(file, write=write) as connection:
                yield connection
                if write:
                    self.note("before a commit")
            if write:
                self.note("after a commit")

        return watch

    def note(self, moment: str) -> None:
        """Note a moment; the process may end here."""
        with self._lock:
            with open(self._log, "a") as file:
                file.write(f"{moment}\n")
            self._count += 1
            if self._count == self._stop:
                os.kill(os.getpid(), self._kind)


def watch_campaign(moments: Moments) -> None:
    """Watch the calls of the store of a campaign."""
    for name, call in list(vars(CampaignStore).items()):
        if not name.startswith("_") and callable(call):
            setattr(CampaignStore, name, moments.watched(name, call))


def watch_aggregate(moments: Moments) -> None:
    """Watch what one of two servers writes."""
    from fedtally.campaign.aggregate_folder import AggregateFolder
    from fedtally.campaign.closings import Closings
    from fedtally.campaign.server import FrequencyServer
    from fedtally.secagg.two_server import Leader

    places: list[tuple[Any, str]] = [
        (claims, "write_mark"),
        (Closings, "write"),
        (AggregateFolder, "save_result"),
        (Leader, "finish"),
        (FrequencyServer, "land_batch"),
    ]
    for owner, name in places:
        setattr(owner, name, moments.watched(name, getattr(owner, name)))
    begun = database.Database._sqlite
    database.Database._sqlite = moments.watched_commits(begun)  # type: ignore[method-assign]


if __name__ == "__main__":
    stop, log, kind, *words = sys.argv[1:]
    watch = {"campaign": watch_campaign, "aggregate": watch_aggregate}[words[0]]
    watch(Moments(int(stop), Path(log), signal.Signals[f"SIG{kind}"]))
    sys.exit(main(words))
