"""Start a campaign's run on a SuperLink of Flower, and find out how it ended.

This module does not import `flwr`. The command `flwr run` exits with 0 even if the run fails, so
its exit code is ignored. Instead, the ServerApp of the run writes a report into the campaign's
folder, which says why the run ended.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Self

from fedtally.base import archive, toml
from fedtally.base.text import word
from fedtally.campaign.driver import Driver
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.transports.engine import Ran, Watch
from fedtally.campaign.transports.pace import Ending
from fedtally.errors import FedtallyError, InvalidInputError, MissingExtraError, UnreadableFileError
from fedtally.secagg.messages import AbortCode

REPORT = "flower.json"  # the name of the report, in the folder of the campaign
APP = "pyproject.toml"
# the seconds between two requests to the SuperLink; each request starts a process
ASK_SECONDS = 10.0
LOOK_SECONDS = 1.0  # the seconds between two looks into the campaign's folder
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


class FlowerError(FedtallyError):
    """Flower did not start a run or does not answer, or a run failed or wrote no report."""


@dataclass(frozen=True)
class RunReport:
    """What the ServerApp reports about the end of a run.

    After an error, only `run` and `error` are set.

    Args:
        run: the number of the run in Flower.
        ending: why the run ended, a value of `campaign.transports.pace.Ending`.
        num_online: how many nodes were online at the end.
        refusals: `Ran.refusals`, by the name of the code of the reason.
        error: the text of the error that stopped the run; None if there was no error.
        unanswered: how many invitations clients did not answer.
    """

    run: int
    ending: str | None = None
    num_online: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    unanswered: int = 0

    def save(self, folder: CampaignFolder) -> None:
        """Write the report into the campaign's folder; the file is replaced atomically."""
        with archive.replacing(folder.path / REPORT) as draft:
            Path(draft).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, folder: CampaignFolder) -> Self | None:
        """Return the report that the last run wrote into the campaign's folder.

        Returns None if there is no report, or if the report is damaged or has unknown entries. The
        ServerApp of the next run replaces such a report.
        """
        try:
            return cls(**json.loads((folder.path / REPORT).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None


@dataclass(frozen=True)
class Flower:
    """The engine for the nodes of a Flower federation; its driver runs in a ServerApp of Flower.

    The ServerApp is another process. It may run on another machine that can open the campaign's
    folder.

    Args:
        connection: the name of the SuperLink in Flower's config.toml.
    """

    connection: str

    def run(
        self,
        campaign: CampaignFolder,
        *,
        wait: int,
        take_over: bool,
        watch: Callable[[Driver | None], AbstractContextManager[Watch]],
    ) -> Ran:
        """Start a run on the SuperLink, and wait until it has ended, as `Engine.run` says.

        Raises:
            FlowerError: Flower did not start the run or does not answer, or the run failed or wrote
                no report.
            MissingExtraError: there is no command `flwr`.
        """
        with watch(None) as watcher:
            run = start(campaign, self.connection, wait, take_over=take_over)
            watcher.note(
                f"run {run} of Flower carries {campaign.path}; it goes on if you interrupt this"
                f" command, and fedtally campaign drain {word(campaign.path)} ends it"
            )
            report = follow(campaign, self.connection, run, watcher.show)
        refusals = Counter({AbortCode[name]: number for name, number in report.refusals.items()})
        return Ran(Ending(report.ending), report.num_online, refusals, report.unanswered)


def write_app(place: Path) -> None:
    """Write the Flower app, which a SuperLink sends to its nodes, into a new folder.

    Raises:
        InvalidInputError: the folder exists, or cannot be made.
    """
    source = resources.files("fedtally.campaign.transports.flower") / "app" / APP
    try:
        place.mkdir(parents=True)
        (place / APP).write_bytes(source.read_bytes())
    except FileExistsError:
        raise InvalidInputError(f"{place} exists already: name another folder") from None
    except OSError as error:
        raise InvalidInputError(f"cannot make {place}: {error.strerror or error}") from error


def start(folder: CampaignFolder, connection: str, wait: int, *, take_over: bool = False) -> int:
    """Start a run of a campaign on a SuperLink, and return Flower's number of the run.

    Args:
        folder: the folder of the campaign. The ServerApp opens it under the same path on the
            SuperLink's host.
        connection: the name of the SuperLink in Flower's config.toml.
        wait: after how many seconds the run ends if no session could be opened, or no client
            answered, see `Pace`.
        take_over: whether to run the campaign even if another process runs it. The other process
            then ends.

    Raises:
        FlowerError: the SuperLink did not start the run.
        MissingExtraError: there is no command `flwr`.
    """
    config = {"campaign": str(folder.path.absolute()), "wait": wait, "take-over": take_over}
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        write_app(place / "app")
        # outside of the app's folder, since Flower sends that folder to all nodes
        (place / "run.toml").write_text(toml.document(config), encoding="utf-8")
        said = _flwr("run", str(place / "app"), connection, "-c", str(place / "run.toml"))
    return int(said["run-id"])


def run_status(connection: str, run: int) -> str:
    """Return the status of a run on a SuperLink, such as ``running`` or ``finished:failed``.

    Raises:
        FlowerError: the SuperLink does not answer.
    """
    return str(_flwr("ls", connection, "--run-id", str(run))["runs"][0]["status"])


def follow(
    folder: CampaignFolder, connection: str, run: int, report: Callable[[], None]
) -> RunReport:
    """Wait until a run has ended, and return the report that its ServerApp wrote.

    Args:
        folder: the folder of the campaign.
        connection: the name of the SuperLink in Flower's config.toml.
        run: the number of the run.
        report: called about once a second.

    Raises:
        FlowerError: the ServerApp never began, died, or reported an error, or the SuperLink does
            not answer.
    """
    begun, gone, ask_at = False, 0, time.monotonic() + ASK_SECONDS
    while True:
        runs, found = folder.runner() is not None, RunReport.load(folder)
        if found is not None and found.run == run:
            if found.ending is None:
                raise FlowerError(found.error or "")
            return found
        begun |= runs
        gone = gone + 1 if begun and not runs else 0
        # a ServerApp releases its lock a little before it writes its report, so look again
        if gone > 2:
            raise FlowerError(
                f"the ServerApp of run {run} died: fedtally campaign resume {word(folder.path)}"
                f" --engine flower --connection {connection} goes on"
            )
        if not begun and time.monotonic() >= ask_at:
            status = run_status(connection, run)
            if status.startswith("finished"):
                raise FlowerError(
                    f"run {run} is {status}, and its ServerApp never began: flwr log {run}"
                    f" {connection} says why"
                )
            ask_at = time.monotonic() + ASK_SECONDS
        # `report` reads the database, which fails while the ServerApp is still making it.
        with suppress(UnreadableFileError):
            report()
        time.sleep(LOOK_SECONDS)


def _flwr(*arguments: str) -> dict[str, Any]:
    """Run the command `flwr` with some arguments, and return the JSON object that it prints.

    Raises:
        MissingExtraError: there is no command `flwr`.
        FlowerError: the command failed.
    """
    beside = Path(sys.executable).parent  # the `flwr` of this environment is preferred
    found = shutil.which("flwr", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise MissingExtraError("there is no command flwr: pip install 'fedtally[flower]'")
    done = subprocess.run(  # noqa: S603 - no shell, and a program that was found by its name
        [found, *arguments, "--format", "json"],
        capture_output=True,
        text=True,
        env=_QUIET | os.environ,
        check=False,
    )
    try:
        said: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        said = {}
    if not said.get("success"):
        why = said.get("error-message") or done.stderr.strip() or done.stdout.strip()
        raise FlowerError(f"flwr {arguments[0]} failed: {why}")
    return said
