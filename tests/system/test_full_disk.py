"""A disk that is full: what starts there is started again, and what runs there says so."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from campaign_world import DEADLINES, Person, World, plan_of
from secagg_cohort import stream

from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.cli.app import run
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind
from fedtally.store import CampaignStore, StoreError
from fedtally.store.claims import Claim

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


# ---- while it runs ----


class Disk:
    """The disk of a campaign's file, for which no write succeeds while it is full.

    Attributes:
        is_full: whether it is.
        has_little: whether it takes small writes all the same.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_little: bool) -> None:
        self.is_full, self.has_little = False, has_little
        write, save, file = Claim.write, CampaignStore.save, tempfile.TemporaryFile

        @contextmanager
        def small(claim: Claim) -> Iterator[Any]:
            if self.is_full and not self.has_little:
                raise StoreError("campaign.db failed: database or disk is full")
            with write(claim) as connection:
                yield connection

        def large(*given: Any) -> None:
            if self.is_full:
                raise StoreError("campaign.db failed: database or disk is full")
            save(*given)

        def made(*given: Any, **named: Any) -> Any:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return file(*given, **named)

        monkeypatch.setattr(Claim, "write", small)
        monkeypatch.setattr(CampaignStore, "save", large)
        monkeypatch.setattr(tempfile, "TemporaryFile", made)


@pytest.mark.promise
@pytest.mark.parametrize("has_little", [False, True])
def test_a_probe_hears_of_a_full_disk_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_little: bool
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("prometheus_client")
    httpx = pytest.importorskip("httpx")
    from https_world import HttpsWorld
    from https_world import run as at_once

    from fedtally.campaign.transports.https.operate import Instruments, json_log, operated

    disk = Disk(monkeypatch, has_little=has_little)
    world = World(tmp_path, plan_of(n_min=7))
    cloud = HttpsWorld(world)
    answer = cloud.answer

    def silent(person: Person, frame: bytes, now: int) -> bytes:
        """The phase ends by its time, since one client never answers: so seldom is a write due."""
        found = wire.parse(frame)
        is_silent = person.number == 0 and found is not None and found.kind is Kind.ROSTER
        return b"" if is_silent else answer(person, frame, now)

    cloud.answer = silent
    watched = Instruments(world.driver, list, lambda: world.now, json_log("off"))
    cloud.options["observer"] = watched
    ready: list[tuple[float, bool, int]] = []

    async def probe() -> None:
        began = None
        while cloud.loop is None:
            await asyncio.sleep(0.1)
        app = operated(cloud.loop, watched)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
            for second in range(1_000):
                if began is None and any(one.phase == "share" for one in world.driver.running()):
                    began, disk.is_full = second, True
                disk.is_full &= began is None or second < began + 300
                status = (await http.get("http://operator/readyz")).status_code
                alive = (await http.get("http://operator/healthz")).status_code
                assert alive == 200  # it asks the store again: no reason to end it
                ready.append((second, disk.is_full, status))
                if began is not None and second > began + 310:
                    return
                await asyncio.sleep(1)

    async def both() -> None:
        probing = asyncio.create_task(probe())
        await asyncio.gather(cloud.run(), probing)

    at_once(both())
    failed = [second for second, is_full, status in ready if status != 200]
    filled = [second for second, is_full, status in ready if is_full]
    # It fails at the first write, at the end of a phase, and then for as long as the disk is full.
    first = next(second for second in failed if second >= filled[0])
    assert first - filled[0] <= DEADLINES.phase * 4 + 2
    since = [status for second, is_full, status in ready if is_full and second >= first]
    assert len(since) > 100 and set(since) == {503}
    # A few seconds after there is room it is well, long before another phase has ended.
    after = [status for second, is_full, status in ready if second > filled[-1] + 8]
    assert after and set(after) == {200}
    said = [text for text in cloud.warned if "the store" in text]
    assert [text.split(",")[0] for text in said] == [
        "the store does not answer", "the store answers again",
    ]  # fmt: skip
    world.check(everybody=False)


@pytest.mark.promise
def test_a_real_disk_that_is_full_takes_no_writes(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this user may mount nothing")
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", ON_A_DISK, str(tmp_path)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == said[-1] == "takes writes", said
    assert all("full" in line or "No space left" in line for line in said[1:-1]), said


ON_A_DISK = """\
import os, subprocess, sys
from pathlib import Path
from campaign_world import World, plan_of
from fedtally.store import StoreError

place = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", place], check=True)
store = World(place, plan_of()).driver

def look():
    try:
        store.check_writes()
    except StoreError as error:
        print(error)
    else:
        print("takes writes")

look()
for left in 500_000, 20_000, 0:  # bytes: less than a session may need, or none at all
    with open(place / "filler", "ab") as file:
        found = os.statvfs(place)
        try:
            file.write(bytes(max(0, found.f_bavail * found.f_frsize - left)))
        except OSError:
            pass
    look()
(place / "filler").unlink()
look()
"""
