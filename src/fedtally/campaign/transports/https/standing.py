"""The state of one of two servers, in numbers, for the command `status` and for Prometheus."""

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
WRITE_SECONDS = 1.0  # seconds between two calls of `Standing.write`


@dataclass
class Standing:
    """The state of a server's process and its releases, which it can show and write to a file.

    Args:
        folder: the folder of the server.
        releases: for each release, in order, the object that receives its reports.
        tendings: at a leader, for each release, in order, the object that closes it; empty at a
            helper.
        clock: returns the time, Unix seconds.
    """

    folder: AggregateFolder
    releases: Sequence[Collecting]
    tendings: Sequence[Tending]
    clock: Callable[[], float] = time.time
    _written: str = field(default="", init=False)

    def of_release(self, number: int) -> dict[str, Any]:
        """Return the state of a release as a dict, which the caller writes as JSON.

        To judge a report means to verify its proof; only a leader judges reports. The entries are:

        - `release`: the number of the release.
        - `state`: at a leader "open", "closing" (no client should begin a report any more),
          "stopped" (no report is accepted, and the sum has not landed yet), "landed" or "lost"; at
          a helper "open" or "answered".
        - `reports`: before the release is summed, the number of reports that are stored; then the
          number of reports in the sum.
        - `refused`: the number of reports whose proof was refused; 0 at a helper.
        - `waiting`: the number of reports that are not judged yet; 0 at a helper and in a plan
          without proofs.
        - `judged`: `reports` minus `waiting`; 0 at a helper.
        - `oldest`: a time in Unix seconds. All reports that this process received before this time
          have been judged. None if `waiting` is 0.

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
            # `reports - waiting` may be negative: reports may come between the two reads.
            "judged": max(0, reports - waiting) if is_leader else 0,
            "oldest": int(self.tendings[number].oldest) if waiting else None,
        }

    def metrics(self) -> list[dict[str, Any]]:
        """Return for each release the dict of `of_release`, with an entry more: `closes_at`.

        `closes_at` is `Tending.closes_at`; None at a helper, which does not know this time.
        """
        closes = [one.closes_at for one in self.tendings] or [None] * len(self.releases)
        return [self.of_release(n) | {"closes_at": at} for n, at in enumerate(closes)]

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
        """Return the state of the process as a dict, which the caller writes as JSON.

        The dict has the states of all releases, the size of the file with the reports in bytes, and
        the free space on the disk in bytes.
        """
        place = self.folder.path / REPORTS
        return {
            "schema": SCHEMA,
            "releases": [self.of_release(number) for number in range(len(self.releases))],
            "disk_bytes": place.stat().st_size,
            "free_bytes": shutil.disk_usage(self.folder.path).free,
        }

    def write(self) -> None:
        """Write the state to the file `STATE` in the server's folder, if the state has changed.

        Free space counts as changed in steps of 64 MiB. If the file cannot be written, for example
        because the disk is full or gone, nothing happens, and the next call tries again.
        """
        try:
            document = self.document()
            text = json.dumps(document | {"free_bytes": document["free_bytes"] >> 26})
            if text == self._written:
                return
            with archive.replacing(self.folder.path / STATE) as temporary:
                Path(temporary).write_text(json.dumps(document | {"time": int(self.clock())}))
        except (FedtallyError, OSError):
            return
        self._written = text
