"""The folder of a server of DAP: made whole, opened as it was, and refused where it is weak."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pipes import piped
from typing import Any

import pytest
from dap_world import SEED, make_task
from secagg_cohort import stream

from fedtally.base import archive
from fedtally.campaign.dap_files import key_number, load_secret
from fedtally.campaign.dap_folder import DapFolder, DapPolicy, DapSettings, keyring_of
from fedtally.campaign.dap_noise import DapNoise
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.places import held_by, holder
from fedtally.campaign.runner import Runner
from fedtally.cli.app import run
from fedtally.dap import Helper, Leader, TaskSecret
from fedtally.dap.draft18 import Role
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.store import DapFile, Ledger

pytestmark = pytest.mark.usefixtures("no_sync")
POLICY = DapPolicy(3)
ROLES = pytest.mark.parametrize("role", [Role.LEADER, Role.HELPER], ids=["leader", "helper"])


def settings_in(folder: Path, **changes: Any) -> DapSettings:
    """Write what a server needs beside a task; return the settings that name it."""
    task = make_task("histogram")
    (folder / "task.toml").write_text(task.to_toml())
    (folder / "task.secret").write_text(TaskSecret(task.id, SEED).to_toml())
    (folder / "task.secret").chmod(0o600)
    if not (folder / "server.key").exists():
        create_key_files(folder / "server.key", "aggregator", stream("server"))
    values: dict[str, Any] = {
        "keys": (folder / "server.key",),
        "secret": folder / "task.secret",
        "mark": folder / "mark",
        "policy": POLICY,
    }
    return DapSettings(**values | changes)


def made(folder: Path, role: Role = Role.LEADER, **changes: Any) -> DapFolder:
    settings = settings_in(folder, **changes)
    return DapFolder.create(folder / "made", role, task=folder / "task.toml", settings=settings)


def claimed(folder: DapFolder) -> Any:
    return folder.claim(clock=lambda: 7, random=secrets.token_bytes)


@pytest.mark.parametrize(
    ("role", "kind"), [(Role.LEADER, Leader), (Role.HELPER, Helper)], ids=["leader", "helper"]
)
def test_a_folder_is_opened_as_it_was_made(tmp_path: Path, role: Role, kind: type) -> None:
    first = made(tmp_path, role, origins=("https://a.example",), ca=tmp_path / "ca.pem")
    assert DapFolder.open(tmp_path / "made", role) == first
    assert isinstance(claimed(first), kind)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700
    assert holder(first.path) is None
    with held_by(first.path, os.getpid()):
        assert holder(first.path).number == os.getpid()
        with pytest.raises(InvalidInputError, match="end it first"), held_by(first.path, 1):
            pass


@ROLES
def test_a_server_keeps_to_the_noise_of_its_settings(tmp_path: Path, role: Role) -> None:
    books = str(tmp_path / "books.db")
    noise = DapNoise.propose(make_task("histogram"), epsilon=1.0, delta=1e-6, ledger=books)
    with pytest.raises(UnreadableFileError):
        made(tmp_path, role, noise=noise)
    Ledger.open(books, create=True).grant("clients", 1.0, 1e-6, 0)
    folder = made(tmp_path, role, noise=noise)
    assert DapFolder.open(tmp_path / "made", role).settings.noise == noise
    server = claimed(folder)
    assert server._noise is not None and server._noise.terms == noise.agreed
    exact = replace(folder, settings=replace(folder.settings, noise=None))
    with pytest.raises(InvalidInputError, match="begun with other noise"):
        claimed(exact)


@ROLES
def test_a_task_that_another_server_charged_makes_no_folder(tmp_path: Path, role: Role) -> None:
    """Clients would report to it, and no sum would ever be given away."""
    books = str(tmp_path / "books.db")
    noise = DapNoise.propose(make_task("histogram"), epsilon=1.0, delta=1e-6, ledger=books)
    Ledger.open(books, create=True).grant("clients", 1.0, 1e-6, 0)
    folder = made(tmp_path, role, noise=noise)
    server = claimed(folder)
    assert server._noise is not None
    server._noise.charge(0)
    claimed(folder)  # the same server, after a restart
    folder.path.rename(tmp_path / "before")
    folder.settings.mark.unlink()
    with pytest.raises(InvalidInputError, match="go on with the folder of that server, or begin a"):
        made(tmp_path, role, noise=noise)
    assert not folder.path.exists() and not folder.settings.mark.exists()


@ROLES
def test_what_the_settings_keep_holds_no_password_and_can_be_read_again(
    tmp_path: Path, role: Role
) -> None:
    url = "postgresql://me:hunter2@host/books"
    noise = DapNoise.propose(make_task("histogram"), epsilon=1.0, delta=1e-6, ledger=url)
    with pytest.raises(
        InvalidInputError, match=r"me:\*\*\*@host.* holds a password.*dap.toml"
    ) as e:
        made(tmp_path, role, noise=noise)
    assert "hunter2" not in str(e.value)
    key = tmp_path / "server.key"
    for name, file in (("key", key), ("secret", tmp_path / "task.secret"), ("ca", key)):
        with piped(file) as pipe:
            given: Any = {"keys": (key, Path(pipe))} if name == "key" else {name: Path(pipe)}
            with pytest.raises(InvalidInputError, match=f"{name}=.*{pipe}.* is no plain file"):
                made(tmp_path, role, **given)
    assert not (tmp_path / "made").exists() and not (tmp_path / "mark").exists()


def test_relative_paths_hold_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = settings_in(tmp_path, keys=(Path("server.key"),), secret=Path("task.secret"))
    DapFolder.create(Path("made"), Role.HELPER, task="task.toml", settings=given)
    monkeypatch.chdir("/")
    assert DapFolder.open(tmp_path / "made", Role.HELPER).settings.keys[0].is_absolute()


def test_clients_seal_to_the_first_key(tmp_path: Path) -> None:
    keys = [tmp_path / f"{name}.key" for name in ("new", "old")]
    publics = [create_key_files(each, "aggregator", stream(each.name)).value for each in keys]
    configs = keyring_of(keys).configs.configs
    assert [(each.id, each.key) for each in configs] == [(key_number(p), p) for p in publics]
    with pytest.raises(InvalidInputError, match="the same number"):
        keyring_of([keys[0], keys[0]])


# ---- what is refused ----

NOISE_OF_LEDGER_7 = """
[noise]
epsilon = 1.0
delta = 1e-6
variance = 36.0
population = "clients"
ledger = 7
[policy]
"""


def weak_task(folder: Path) -> dict[str, Any]:
    return {"policy": DapPolicy(4)}


def known_mark(folder: Path) -> dict[str, Any]:
    (folder / "mark").touch()
    return {}


def other_secret(folder: Path) -> dict[str, Any]:
    other = folder / "other.secret"
    other.write_text(TaskSecret(bytes(32), SEED).to_toml())
    other.chmod(0o600)
    return {"secret": other}


def key_of_a_leader(folder: Path) -> dict[str, Any]:
    create_key_files(folder / "leader.key", "leader", stream("leader"))
    return {"keys": (folder / "leader.key",)}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (weak_task, "may have 3 reports, and this policy demands 4"),
        (known_mark, "exists already"),
        (other_secret, "the secret file is of the task"),
        (key_of_a_leader, "that of the aggregator is needed"),
        (lambda folder: {"mark": folder / "made" / "mark"}, "lies in"),
        (lambda folder: {"mark": folder / "no" / "mark"}, "cannot make"),
        (lambda folder: {"secret": folder / "no.secret"}, "cannot read"),
        (lambda folder: {"keys": ()}, "must have a key"),
    ],
)
def test_what_does_not_fit_makes_no_folder(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]], match: str
) -> None:
    settings_in(tmp_path)
    with pytest.raises(InvalidInputError, match=match):
        made(tmp_path, **make(tmp_path))
    assert not (tmp_path / "made").exists() and not (tmp_path / ".made.new").exists()


def test_a_folder_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(archive, "replacing", dies)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path)
    assert not (tmp_path / "made").exists() and not (tmp_path / "mark").exists()
    made(tmp_path)
    with pytest.raises(InvalidInputError, match="exists already"):
        made(tmp_path)


def test_a_secret_is_for_its_owner(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    settings.secret.chmod(0o640)
    with pytest.raises(InvalidInputError, match=r"mode 0640\): chmod 600"):
        load_secret(settings.secret)
    settings.secret.write_bytes(b"\xff")
    with pytest.raises(UnreadableFileError, match="it is no text"):
        load_secret(settings.secret)


@pytest.mark.parametrize("number", [1, 0, "3", True])
def test_a_batch_of_one_is_a_report(number: Any) -> None:
    with pytest.raises(InvalidInputError, match="min_batch"):
        DapPolicy(number)


@pytest.mark.parametrize("origin", ["*", "page.example", "https://a.example/x", "https://A.b"])
def test_an_origin_is_one_of_a_page(tmp_path: Path, origin: str) -> None:
    with pytest.raises(InvalidInputError, match="is no origin of a page"):
        settings_in(tmp_path, origins=(origin,))


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('role = "leader"', 'role = "helper"', "is the folder of the helper"),
        ('role = "leader"', "role = 3", "must be leader or helper, got 3"),
        ("[policy]", NOISE_OF_LEDGER_7, "ledger of noise must be a text, got 7"),
        ("fedtally-dap-server/1", "fedtally-dap-server/9", "has the schema"),
        ('secret = "', 'secret = 7 # "', "needs the entry secret"),
        ("origins = []", "origins = 7", "needs the entry origins"),
        ("origins = []", "origins = [7]", "needs the entry origins"),
        ("origins = []", "other = []", "lacks origins"),
        ("min_batch = 3", "min_batch = 4", "this policy demands 4"),
        ("min_batch = 3", "least = 4", "lacks min_batch"),
        ("schema", "= schema", "cannot read"),
    ],
)
def test_settings_that_are_wrong(tmp_path: Path, old: str, new: str, match: str) -> None:
    place = made(tmp_path).path / "dap.toml"
    text = place.read_text()
    assert old in text
    place.write_text(text.replace(old, new))
    with pytest.raises(InvalidInputError, match=match):
        DapFolder.open(place.parent, Role.LEADER)


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="fedtally dap leader init makes one"):
        DapFolder.open(tmp_path, Role.LEADER)


def test_a_file_is_of_one_server(tmp_path: Path) -> None:
    folder = made(tmp_path)
    claimed(folder)
    with pytest.raises(InvalidInputError, match="is the file of the leader"):
        claimed(replace(folder, role=Role.HELPER))


@ROLES
@pytest.mark.parametrize("with_mark", [True, False])
@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_server_that_lost_its_disk_does_not_begin_again(
    tmp_path: Path, role: Role, with_mark: bool, is_made_anew: bool
) -> None:
    """A server that began again would add the same reports to a second sum.

    A database without a write, as a process that died may leave it, hides nothing.
    """
    folder = made(tmp_path, role)
    claimed(folder)
    place = folder.path / "reports.db"
    place.unlink()
    if is_made_anew:
        DapFile.open(place, create=True)
    if not with_mark:
        folder.settings.mark.unlink()
    files = sorted(os.listdir(folder.path))
    what = "has lost its reports.db, and its mark" if with_mark else "neither its reports.db nor"
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=what) as refused:
            claimed(folder)
        assert "put no copy back, and begin a new task" in str(refused.value)
    assert sorted(os.listdir(folder.path)) == files  # no database that looks like a new one


def test_the_process_of_a_server_that_lost_its_disk_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn")
    from fedtally.campaign.transports.https import dap_process

    def served(*_: Any) -> Any:
        raise AssertionError("the server began again")

    monkeypatch.setattr(dap_process, "all_served", served)
    folder = made(tmp_path)
    claimed(folder)
    (folder.path / "reports.db").unlink()
    folder.settings.mark.unlink()
    assert run(["dap", "leader", "run", str(folder.path), "--listen", f"unix:{tmp_path}/s"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "has neither its reports.db nor its mark" in said and "begin a new task" in said
    assert not (folder.path / "reports.db").exists()


@ROLES
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_process_that_died_while_it_made_the_database_began_nothing(
    tmp_path: Path, role: Role, is_empty: bool
) -> None:
    folder = made(tmp_path, role)
    if is_empty:
        (folder.path / "reports.db").touch()
    else:
        DapFile.open(folder.path / "reports.db", create=True)
    claimed(folder)
    claimed(folder)


def test_who_looks_at_a_server_finds_no_earlier_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed left its number, which may be that of another program by now."""
    (tmp_path / "lock").write_text("4321\n")
    seen: list[Runner | None] = []

    def looking(call: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*args: Any) -> Any:
            seen.append(holder(tmp_path))
            found = call(*args)
            seen.append(holder(tmp_path))
            return found

        return looked

    flock = fcntl.flock

    def locked(file: int, how: int) -> None:
        flock(file, how)
        if how & fcntl.LOCK_EX:
            seen.append(holder(tmp_path))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", locked)
        for name in ("ftruncate", "pwrite", "replace"):
            patched.setattr(os, name, looking(getattr(os, name)))
        with held_by(tmp_path, 2):
            assert holder(tmp_path).number == 2
    assert seen == [None] * 6 + [Runner.this(2)]
    assert holder(tmp_path) is None and os.listdir(tmp_path) == ["lock"]


def test_of_two_servers_that_begin_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = os.pwrite, []

    def second(*args: Any) -> int:
        with pytest.raises(InvalidInputError, match="about to run") as found, held_by(tmp_path, 2):
            pass
        refused.append(found)
        return write(*args)

    monkeypatch.setattr(os, "pwrite", second)
    with held_by(tmp_path, 1):
        assert holder(tmp_path).number == 1
        with pytest.raises(InvalidInputError, match="process 1 runs"), held_by(tmp_path, 3):
            pass
        assert holder(tmp_path).number == 1
    assert refused and os.listdir(tmp_path) == ["lock"]
