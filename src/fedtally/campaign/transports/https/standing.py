"""How one of two servers does, in numbers: for `status`, for probes and for Prometheus."""

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
WRITE_SECONDS = 1.0  # between two looks


@dataclass
class Standing:
    """How the releases of a process stand.

    Args:
        folder: the folder of the server.
        releases: its releases, in their order.
        tendings: what closes them at a leader, in their order; none at a helper.
        clock: returns the time, Unix seconds.
    """

    folder: AggregateFolder
    releases: Sequence[Collecting]
    tendings: Sequence[Tending]
    clock: Callable[[], float] = time.time
    _written: str = field(default="", init=False)

    def of_release(self, number: int) -> dict[str, Any]:
        """Return how a release stands, JSON-able.

        `waiting` is the number of reports that are not judged, and `oldest` a time before which
        none of them came. A helper judges nothing, and where reports have no proofs none waits.
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
            # a group, or a page, may have come in between
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
        """Return how the process does, JSON-able."""
        place = self.folder.path / REPORTS
        return {
            "schema": SCHEMA,
            "releases": [self.of_release(number) for number in range(len(self.releases))],
            "disk_bytes": place.stat().st_size,
            "free_bytes": shutil.disk_usage(self.folder.path).free,
        }

    def write(self) -> None:
        """Write the document for `status`, if it has changed; a full disk keeps the older one."""
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
