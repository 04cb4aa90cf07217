"""A disk that is full: what starts there ends so that a service starts it again."""

# ruff: noqa: E402

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign_world import plan_of
from secagg_cohort import stream

from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.cli.app import run

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int], None]:
    """Return what fills the disk of a folder: no file can be made there any more."""

    def fill(folder: Path, number: int) -> None:
        opened = os.open

        def refused(path: Any, flags: int, *more: Any, **named: Any) -> int:
            place = Path(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else None
            is_new = place is not None and not place.exists() and flags & os.O_CREAT
            if is_new and folder in place.parents:  # type: ignore[union-attr]
                raise OSError(number, os.strerror(number), os.fspath(path))
            return opened(path, flags, *more, **named)

        monkeypatch.setattr(os, "open", refused)

    return fill


def campaign(folder: Path) -> CampaignFolder:
    plan_of().save(folder / "plan.toml")
    create_key_files(folder / "server.key", "server", stream("server"))
    return CampaignFolder.create(
        folder / "survey",
        folder / "plan.toml",
        server_key=folder / "server.key",
        mark=folder / "survey.mark",
    )


def check_said(err: str, kind: str = "") -> None:
    """Check what is said of a full disk: what to do first, and then what failed."""
    said = json.loads(err)["error"]["message"] if kind == "json" else err.removeprefix("error: ")
    assert said.startswith("the disk is full: make room, and start this again ("), err
    assert os.strerror(errno.ENOSPC) in said or os.strerror(errno.EDQUOT) in said


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("verb", ["run", "resume"])
def test_a_campaign_that_starts_on_a_full_disk_is_started_again_by_its_service(
    tmp_path: Path,
    fill: Callable[[Path, int], None],
    capsys: pytest.CaptureFixture[str],
    verb: str,
    number: int,
) -> None:
    made = campaign(tmp_path)
    if verb == "resume":
        with made.run(1, clock=lambda: 1, random=stream("x")):
            pass
        (made.path / "lock").unlink()  # of a machine that died, whose folder was put on a new disk
    fill(made.path, number)
    command = ["campaign", verb, str(made.path), "--agents", str(tmp_path)]
    assert run(command) == 1
    check_said(capsys.readouterr().err)
    assert run([*command, "--json"]) == 1
    check_said(capsys.readouterr().err, "json")


def test_what_is_no_full_disk_still_needs_a_person(
    tmp_path: Path, fill: Callable[[Path, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    made = campaign(tmp_path)
    fill(made.path, errno.EACCES)
    assert run(["campaign", "run", str(made.path), "--agents", str(tmp_path)]) == 2
    assert "disk is full" not in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
@pytest.mark.parametrize("side", ["leader", "helper"])
def test_one_of_two_servers_that_starts_on_a_full_disk_is_started_again(
    tmp_path: Path,
    fill: Callable[[Path, int], None],
    capsys: pytest.CaptureFixture[str],
    side: str,
) -> None:
    pytest.importorskip("uvicorn")
    from aggregate_world import World, certificate
    from benchmarks.federation import free_ports

    for name in ("leader", "helper"):
        certificate(name, tmp_path)
    world = World(tmp_path)
    place = world.folders[side].path
    port, peer = free_ports(2)
    more = ["--leader-listen", f"127.0.0.1:{peer}"] if side == "helper" else []
    capsys.readouterr()
    fill(place, errno.ENOSPC)
    assert run(["aggregate", side, "run", str(place), "--listen", f"127.0.0.1:{port}", *more]) == 1
    check_said(capsys.readouterr().err)


def test_a_server_of_dap_that_starts_on_a_full_disk_is_started_again(
    tmp_path: Path, fill: Callable[[Path, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn")
    from test_dap_run import Operator

    one = Operator(tmp_path, "helper")
    fill(one.folder.path, errno.ENOSPC)
    listen = f"127.0.0.1:{one.port}"
    assert run(["dap", "helper", "run", str(one.folder.path), "--listen", listen]) == 1
    check_said(capsys.readouterr().err)
