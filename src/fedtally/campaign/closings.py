"""When the releases of a leader close: a file that its process and `close` write.

A release *closes* when its time is there, or it has a number of reports, or its operator says so;
and never before it has the fewest reports of a sum. From then on nobody begins a report. A grace
later it stops, and takes none. The moment is in the file, so that a release that was closing is not
open again after a restart.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedtally.base import archive, validate
from fedtally.errors import InvalidInputError, UnreadableFileError

CLOSINGS = "closings.json"  # in the folder of a leader
SCHEMA = "fedtally-closings/1"
GRACE = 300  # seconds between closing and the stop
_KEPT = ("at", "since", "lost", "told")


@dataclass(frozen=True)
class Closing:
    """When a release closes.

    Args:
        at: the time at which it shall close, Unix seconds; None: nobody said a time.
        since: the time at which it began to close; None: it is open.
        lost: why there will be no sum of it, in words; None: there may be.
        told: whether the helper has heard that the release is over, and may destroy its key.
    """

    at: int | None = None
    since: int | None = None
    lost: str | None = None
    told: bool = False


@dataclass(frozen=True)
class Schedule:
    """When all releases of a leader close.

    Args:
        releases: a closing for each release, in their order.
        size: the number of reports at which a release closes; None: any number.
        grace: the seconds between closing and the stop.
    """

    releases: tuple[Closing, ...]
    size: int | None = None
    grace: int = GRACE

    def __post_init__(self) -> None:
        if self.size is not None:
            validate.integer(2, size=self.size)
        validate.integer(0, 86_400, grace=self.grace)


class Closings:
    """The file in the folder of a leader.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._place = folder, folder / CLOSINGS
        self._seen: tuple[tuple[int, int], Schedule] | None = None

    def read(self) -> Schedule:
        """Return what the file says now.

        Raises:
            UnreadableFileError: it cannot be read.
        """
        try:
            found = self._place.stat()
            stamp = found.st_ino, found.st_mtime_ns
            if self._seen is None or self._seen[0] != stamp:
                self._seen = stamp, _parsed(json.loads(self._place.read_text()))
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise UnreadableFileError(f"cannot read {self._place} ({why}): put it back") from None
        return self._seen[1]

    def write(self, schedule: Schedule) -> None:
        """Write the file: it is on the disk, whole, before this returns."""
        document = {"schema": SCHEMA, "size": schedule.size, "grace": schedule.grace}
        releases = [asdict(each) for each in schedule.releases]
        with archive.replacing(self._place) as temporary:
            Path(temporary).write_text(json.dumps(document | {"releases": releases}, indent=1))

    def change(self, number: int, **values: Any) -> Closing:
        """Change what is known of a release, and return it; another process waits meanwhile.

        Args:
            number: the number of the release.
            values: fields of `Closing`.

        Raises:
            InvalidInputError: there is no such release, or the folder cannot be written.
        """
        with self._locked():
            schedule = self.read()
            if not 0 <= number < len(schedule.releases):
                raise InvalidInputError(
                    f"{self._folder} has releases 0 to {len(schedule.releases) - 1}, got {number}"
                )
            changed = replace(schedule.releases[number], **values)
            releases = list(schedule.releases)
            releases[number] = changed
            self.write(replace(schedule, releases=tuple(releases)))
        return changed

    @contextmanager
    def _locked(self) -> Iterator[None]:
        file = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _parsed(values: Any) -> Schedule:
    if values["schema"] != SCHEMA:
        raise ValueError(f"its schema is {values['schema']!r}, and this version reads {SCHEMA}")
    releases = tuple(Closing(**{name: one[name] for name in _KEPT}) for one in values["releases"])
    return Schedule(releases, values["size"], values["grace"])
