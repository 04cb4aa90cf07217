"""The server of a campaign that ends before or after a call of its store.

``python -m benchmarks.dying STEP LOG KIND campaign run NAME ...`` runs the command. It sends itself
a signal at one of the moments before and after calls of the store: STEP is its number, 0 is never.
KIND is the signal, KILL or TERM. LOG gets the name of each moment. Checks of the claim, of which
there is one a second, count once.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtally.cli import main
from fedtally.store import CampaignStore


class Moments:
    """Count the moments before and after calls, and end the process at one of them."""

    def __init__(self, stop: int, log: Path, kind: signal.Signals) -> None:
        self._stop, self._log, self._kind = stop, log, kind
        self._count, self._has_checked = 0, False

    def watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that notes when it begins and ends."""

        @functools.wraps(call)
        def watch(*args: Any, **more: Any) -> Any:
            if name == "check_claim":
                if self._has_checked:
                    return call(*args, **more)
                self._has_checked = True
            self._note(f"before {name}")
            found = call(*args, **more)
            self._note(f"after {name}")
            return found

        return watch

    def _note(self, moment: str) -> None:
        with open(self._log, "a") as file:
            file.write(f"{moment}\n")
        self._count += 1
        if self._count == self._stop:
            os.kill(os.getpid(), self._kind)


if __name__ == "__main__":
    stop, log, kind, *words = sys.argv[1:]
    moments = Moments(int(stop), Path(log), signal.Signals[f"SIG{kind}"])
    for name, call in list(vars(CampaignStore).items()):
        if not name.startswith("_") and callable(call):
            setattr(CampaignStore, name, moments.watched(name, call))
    sys.exit(main(words))
