"""What `fedtally campaign` does where files are damaged, gone, or about to be overwritten."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from aggregate_world import ALLOWED
from campaign_world import N, plan_of
from secagg_cohort import stream
from test_campaign_command import agents, carried, init, world  # noqa: F401

from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.folder import CampaignFolder, files_of
from fedtally.campaign.transports.https import tokens
from fedtally.cli.app import run

SERVED = ["--host", "a.example", "--certificate", "a.pem", "--certificate-key", "a.key"]


def ended(world: SimpleNamespace) -> Path:  # noqa: F811
    """Return the folder of a campaign that has its result."""
    plan = plan_of()
    place = init(world, plan)
    with agents(world, plan, N):
        assert carried("run", world, place) == 0
    return place


def test_a_finished_campaign_needs_no_private_key(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = ended(world)
    monkeypatch.chdir(world.folder)
    (world.folder / "server.key").unlink()
    for asked in (["status"], ["result"], ["result", "-o", "r.fed"], ["nginx", "--ended", *SERVED]):
        assert run(["campaign", asked[0], str(place), *asked[1:]]) == 0, asked
    (place / "result.fed").unlink()
    assert carried("resume", world, place) == 2  # and a server that goes on needs it
    assert "server.key" in capsys.readouterr().err
    assert run(["campaign", "cancel", str(place)]) == 0


def test_a_result_overwrites_no_file_of_its_campaign_and_no_key(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = ended(world)
    tokens.mint(place, 1, stream("tokens"))
    shutil.copy(world.folder / "server.key", world.folder / "other.key")
    found = files_of(CampaignFolder.open(place))
    assert {Path(file).name for file in found} == {"survey.mark", "server.key"}
    inside = [*place.iterdir(), place / "cancelled", place / "new" / ".." / "t.csv"]
    (place / "new").mkdir()
    (world.folder / "link.csv").symlink_to(place / "linked.csv")
    (world.folder / "survey.mark").unlink()  # as while its disk is away
    more = [world.folder / name for name in ("other.key", "link.csv")]
    for file in map(Path, [*found, *inside, *more]):
        before = file.read_bytes() if file.is_file() else None
        capsys.readouterr()
        assert run(["campaign", "result", str(place), "-o", str(file)]) == 2, file
        assert "name another file" in " ".join(capsys.readouterr().err.split())
        assert (file.read_bytes() if file.exists() else None) == before
    for _ in range(2):  # an answer of before is written anew
        assert run(["campaign", "result", str(place), "-o", str(world.folder / "t.csv")]) == 0


def test_a_list_of_clients_that_is_not_the_plan_s_is_refused_by_each_command(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = init(world, plan_of())
    save_allow_list(place / "clients.allow", ALLOWED)
    for asked in (["status"], ["tokens", "list"], ["nginx", *SERVED], ["cancel"]):
        at = 2 if asked[0] == "tokens" else 1
        assert run(["campaign", *asked[:at], str(place), *asked[at:]]) == 2, asked
        assert "this allow-list is not the one that the plan names" in capsys.readouterr().err
    (place / "clients.allow").unlink()
    assert run(["campaign", "status", str(place)]) == 0


def test_a_cancelled_campaign_says_so_although_its_database_is_damaged(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = init(world, plan_of())
    (place / "campaign.db").write_text("junk")
    assert run(["campaign", "cancel", str(place)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is cancelled, for good, but not its sessions" in said and "is no database" in said
    assert (place / "cancelled").exists()


def test_a_folder_that_takes_no_file_is_not_cancelled(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = init(world, plan_of())

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    assert run(["campaign", "cancel", str(place)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "(Permission denied), so nothing is cancelled: run this as the user" in said

    def lose(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "touch", lose)
    assert run(["campaign", "cancel", str(place)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "(Read-only file system), so nothing is cancelled: mend that" in said
    (place / "cancelled").write_bytes(b"")  # by a cancel that could not end the sessions
    assert run(["campaign", "cancel", str(place)]) == 0


def test_a_damaged_campaign_hides_no_other_one(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = init(world, plan_of())
    bad = world.folder / "bad"
    shutil.copytree(place, bad)
    (bad / "plan.toml").unlink()
    assert run(["campaign", "list", str(world.folder)]) == 2
    out, err = capsys.readouterr()
    assert re.search(r"survey +new +0 of 1", out)
    assert f"{bad} is not listed:" in " ".join(err.split()) and "plan.toml" in err
    assert run(["campaign", "list", str(world.folder), "--json"]) == 2


def test_commands_in_messages_take_names_with_blanks(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = init(world, plan_of())
    moved = world.folder / "my survey"
    place.rename(moved)
    assert run(["campaign", "result", str(moved)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"fedtally campaign status '{moved}' says" in said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_tokens_that_nobody_saw_do_not_count(
    world: SimpleNamespace,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
) -> None:
    place = init(world, plan_of())
    tokens.add(place, ["ada"], stream("tokens"))
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = run(["campaign", "tokens", "mint", str(place), "--count", "5", *more])
        monkeypatch.undo()
        full.buffer.raw.close()  # type: ignore[attr-defined]
    assert code == 1
    said = " ".join(capfd.readouterr().err.split())
    assert "stdout took not all 5 tokens, so they were taken back" in said
    assert list(tokens.read(place)) == ["ada"]


@pytest.mark.parametrize("stops", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_tokens_are_taken_back_by_what_they_are(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stops: BaseException,
) -> None:
    place = init(world, plan_of())

    def say(_: str) -> None:  # meanwhile somebody else changes two of the clients
        tokens.revoke(place, ["bob", "eve"])
        tokens.add(place, ["bob"], stream("another"))
        raise stops

    monkeypatch.setattr("fedtally.cli.console.say", say)
    assert run(["campaign", "tokens", "add", str(place), "ada", "bob", "eve"]) in (1, 130)
    assert list(tokens.read(place)) == ["bob"]
    assert "so they were taken back" in " ".join(capsys.readouterr().err.split())


def test_tokens_that_cannot_be_taken_back_are_named(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = init(world, plan_of())

    def say(_: str) -> None:
        (place / "tokens").chmod(0o644)  # so that it is refused
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedtally.cli.console.say", say)
    assert run(["campaign", "tokens", "add", str(place), "ada", "bob"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "stdout took not all 2 tokens, and ada bob stay valid: revoke them" in said


def test_tokens_of_another_user_are_not_to_be_put_back(
    world: SimpleNamespace,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = init(world, plan_of())
    tokens.add(place, ["ada"], stream("tokens"))

    def refuse(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(Exception, match=r"\(Permission denied\): run this as the user that owns"):
        tokens.read(place)
    monkeypatch.undo()
    (place / "tokens").unlink()
    (place / "tokens").mkdir()
    with pytest.raises(Exception, match=r"\(Is a directory\): put the file back"):
        tokens.read(place)


def test_a_conf_that_goes_to_a_device_is_refused(
    world: SimpleNamespace,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = init(world, plan_of())
    read, write = os.pipe()
    assert run(["campaign", "nginx", str(place), *SERVED, "-o", f"/dev/fd/{write}"]) == 2
    assert "it is a device or a pipe" in " ".join(capsys.readouterr().err.split())
    os.close(read)
    os.close(write)
