"""The file that says when the releases of a leader close: clients then begin no new reports.

The leader is one of two servers. A release is one sum that the two servers compute together. The
leader's process and the command `close` change the file.

A release *closes* at a set time, at a set number of reports, or when its operator says so. But it
never closes before it has the smallest number of reports that a sum may have. Once it closes, it
still accepts reports that were begun before, for a grace period. Then it *stops*. Only reports that
both servers have can be in the sum. If these are too few, the release is open again. The file keeps
the time at which the release began to close. Otherwise the release would be open again after a
restart.
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
from fedtally.plan import Plan

CLOSINGS = "closings.json"  # in the folder of a leader
SCHEMA = "fedtally-closings/1"
# The seconds between closing and the stop. A client that cannot reach a server tries again after at
# most 600 s (`join.LONGEST_WAIT`). So its report comes in time if that next try reaches the server.
GRACE = 900
_KEPT = ("at", "since", "lost", "told")


@dataclass(frozen=True)
class Closing:
    """When one release closes, and whether it has begun to close.

    Clients begin no new report for a release that closes.

    Args:
        at: the time at which the release shall close, Unix seconds; None if no time is set.
        since: the time at which the release began to close, Unix seconds; None if it is open.
        lost: why the release will have no sum, in words; None if it has or may have a sum.
        told: whether the helper, the other server, was told that the release is over. The helper
            destroys its key only when it was told this of every release, or if its operator gives
            the releases up.
    """

    at: int | None = None
    since: int | None = None
    lost: str | None = None
    told: bool = False


@dataclass(frozen=True)
class Schedule:
    """When the releases of a leader close: clients then begin no new reports for them.

    Args:
        releases: one `Closing` for each release, in the order of releases.
        size: the number of reports at which a release closes, at least 2; None: it closes when it
            is full, with the most reports that the plan allows.
        grace: for how many seconds a release that closes still accepts reports that were begun
            before, 0 .. 86,400.

    Raises:
        InvalidInputError: `size` or `grace` is out of its range.
    """

    releases: tuple[Closing, ...]
    size: int | None = None
    grace: int = GRACE

    def __post_init__(self) -> None:
        if self.size is not None:
            validate.integer(2, size=self.size)
        validate.integer(0, 86_400, grace=self.grace)


def of_calendar(plan: Plan) -> tuple[Closing, ...]:
    """Return a `Closing` for each release of a plan: it closes at the end of its last round.

    Without a calendar no time is set.

    Args:
        plan: the plan.
    """
    calendar = plan.calendar
    if calendar is None:
        return (Closing(),) * len(plan.releases)
    return tuple(Closing(int(calendar.closes(one[-1]).timestamp())) for one in plan.releases)


class Closings:
    """The file `closings.json` in the folder of a leader.

    Args:
        folder: the folder of the leader.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._place = folder, folder / CLOSINGS
        self._seen: tuple[tuple[int, int], Schedule] | None = None

    def read(self) -> Schedule:
        """Return the schedule that is in the file now.

        The file is parsed only if it has changed since the last call.

        Raises:
            UnreadableFileError: the file cannot be read, is damaged or is of another version.
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
        """Replace the file by one with this schedule. It is on the disk when this returns.

        If other processes may write the file at the same time, call `change` instead.
        """
        document = {"schema": SCHEMA, "size": schedule.size, "grace": schedule.grace}
        releases = [asdict(each) for each in schedule.releases]
        with archive.replacing(self._place) as temporary:
            Path(temporary).write_text(json.dumps(document | {"releases": releases}, indent=1))

    def change(self, number: int, **values: Any) -> Closing:
        """Change fields of one release's `Closing` in the file, and return that `Closing`.

        Other processes that call this method wait until this call is over.

        Args:
            number: the number of the release, from 0.
            values: the new value of each field of `Closing` that changes, by the name of the field.

        Raises:
            InvalidInputError: there is no such release, or the folder cannot be written.
            UnreadableFileError: the file cannot be read.
            OSError: the folder cannot be opened or locked.
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
