"""The state of one of two servers in numbers, for the command `status` and for Prometheus."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtally.base import archive
from fedtally.campaign.aggregate_folder import REPORTS, STATE, AggregateFolder
from fedtally.campaign.transports.https.closing import Tending
from fedtally.campaign.transports.https.collecting import Collecting
from fedtally.errors import FedtallyError
from fedtally.secagg.two_server import BatchState

SCHEMA = "fedtally-aggregate-state/1"
WRITE_SECONDS = 1.0  # seconds between two writes of the state


@dataclass
class Standing:
    """The state of a server's process and its releases.

    Args:
        folder: the folder of the server.
        releases: the objects that receive the reports of each release, in order.
        tendings: at a leader, the objects that close each release, in order; empty at a helper.
        clock: returns the time, Unix seconds.
    """

    folder: AggregateFolder
    releases: Sequence[Collecting]
    tendings: Sequence[Tending]
    clock: Callable[[], float] = time.time
    _written: str = field(default="", init=False)

    def of_release(self, number: int) -> dict[str, Any]:
        """Return the state of a release as a JSON object.

        The entry `waiting` is the number of reports whose proof is not judged yet. It is 0 at a
        helper, which judges no report, and in a plan without proofs. `oldest` is a time in Unix
        seconds, before which all reports have been judged; it is None if no report waits.

        Args:
            number: the number of the release.
        """
        server, is_leader = self.releases[number].server, bool(self.tendings)
        reports, refused, waiting = len(server), 0, 0
        if is_leader:
            refused, waiting = len(server.refused), server.unjudged
        if server.num_counted:
            reports = server.num_counted
        return {
            "release": number,
            "state": self._word(number),
            "reports": reports,
            "refused": refused,
            "waiting": waiting,
            # not below 0: the numbers above may change between two reads
            "judged": max(0, reports - waiting) if is_leader else 0,
            "oldest": int(self.tendings[number].oldest) if waiting else None,
        }

    def _word(self, number: int) -> str:
        one = self.releases[number]
        if one.is_lost:
            return "lost"
        if self.tendings and self.tendings[number].is_over:
            return "landed"
        if one.server.state is BatchState.COLLECTING:
            return "closing" if one.is_closing else "open"
        return "stopped" if self.tendings else "answered"

    def document(self) -> dict[str, Any]:
        """Return the state of the process as a JSON object."""
        place = self.folder.path / REPORTS
        return {
            "schema": SCHEMA,
            "releases": [self.of_release(number) for number in range(len(self.releases))],
            "disk_bytes": place.stat().st_size,
            "free_bytes": shutil.disk_usage(self.folder.path).free,
        }

    def write(self) -> None:
        """Write the state into the server's folder if it has changed; ignore a full disk."""
        document = self.document()
        text = json.dumps(document | {"free_bytes": document["free_bytes"] >> 26})
        if text == self._written:
            return
        try:
            with archive.replacing(self.folder.path / STATE) as temporary:
                Path(temporary).write_text(json.dumps(document | {"time": int(self.clock())}))
        except FedtallyError:
            return
        self._written = text
