"""Key files: made once, whole, for their owner's eyes, and read only so; and `fedtally keys`."""

from __future__ import annotations

import itertools
import json
import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from secagg_cohort import stream

from fedtally.campaign import key_files
from fedtally.campaign.key_files import (
    PublicKey,
    Role,
    create_key_files,
    load_aggregator_key,
    load_client_key,
    load_collector_key,
    load_helper_key,
    load_leader_key,
    load_public_key,
    load_registrar_key,
    load_server_key,
    public_key_of,
    public_path,
    read_public_key,
    retire_key,
)
from fedtally.cli.app import run
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.hpke_aad import RecipientKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.proposal import propose

SECRET = bytes(range(32))
LOADERS: dict[str, Callable[[Any], SigningKey | PrivateKey | RecipientKey]] = {
    "server": load_server_key,
    "leader": load_leader_key,
    "helper": load_helper_key,
    "registrar": load_registrar_key,
    "client": load_client_key,
    "aggregator": load_aggregator_key,
    "collector": load_collector_key,
}
KINDS: dict[str, type[SigningKey] | type[PrivateKey] | type[RecipientKey]] = {
    "server": SigningKey,
    "leader": PrivateKey,
    "helper": PrivateKey,
    "registrar": SigningKey,
    "client": SigningKey,
    "aggregator": RecipientKey,
    "collector": RecipientKey,
}
PUBLIC = {role: kind(Secret(SECRET)).public for role, kind in KINDS.items()}


def known(size: int) -> bytes:
    return SECRET[:size]


def made(folder: Path, role: str = "server") -> Path:
    create_key_files(folder / f"{role}.key", role, known)
    return folder / f"{role}.key"


def shows_a_secret(error: BaseException) -> bool:
    """Return whether a tool that logs the variables of each frame would write the secret."""
    frames = [
        frame.f_locals
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename != __file__  # the tests know it
    ]
    text = "".join(traceback.format_exception(error)) + repr(frames)
    return SECRET.hex() in text or repr(SECRET)[2:-1] in text


# ---- files ----


@pytest.mark.parametrize("role", KINDS)
def test_the_files_are_as_the_module_says(role: str, tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    assert create_key_files(path, role, known) == PublicKey(Role(role), PUBLIC[role])
    text = f"fedtally-private-key/1 {role}\npublic {PUBLIC[role].hex()}\nsecret {SECRET.hex()}\n"
    assert path.read_bytes() == text.encode()
    assert (
        public_path(path).read_bytes()
        == f"fedtally-public-key/1 {role} {PUBLIC[role].hex()}\n".encode()
    )
    assert sorted(os.listdir(tmp_path)) == ["a.key", "a.key.pub"]  # nothing else is left behind


@pytest.mark.parametrize("role", KINDS)
def test_a_key_is_read_back(role: str, tmp_path: Path) -> None:
    path, expected = made(tmp_path, role), PublicKey(Role(role), PUBLIC[role])
    key = LOADERS[role](path)
    assert isinstance(key, KINDS[role])
    assert key.public == expected.value
    assert public_key_of(path) == load_public_key(public_path(path)) == expected
    assert (
        read_public_key(public_path(path), role)
        == read_public_key(expected.value.hex(), role)
        == expected.value
    )


def test_a_server_key_signs_what_its_public_key_verifies(tmp_path: Path) -> None:
    from fedtally.crypto.keys import Label, verify

    key = load_server_key(made(tmp_path))
    verify(PUBLIC["server"], key.sign(Label.INVITE, b"hello"), Label.INVITE, b"hello")


def test_every_key_is_another(tmp_path: Path) -> None:
    random = stream("keys")
    keys = {
        create_key_files(tmp_path / f"{i}{role}", role, random).value
        for i in range(3)
        for role in Role
    }
    assert len(keys) == 3 * len(Role)


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_private_file_is_its_owners_whatever_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        path = made(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(public_path(path).stat().st_mode) == 0o644


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o602, 0o610, 0o644, 0o777])
def test_a_private_file_that_others_may_touch_is_refused(mode: int, tmp_path: Path) -> None:
    path = made(tmp_path)
    path.chmod(mode)
    for read in (load_server_key, public_key_of):
        with pytest.raises(
            InvalidInputError,
            match=rf"open to others than its owner \(mode {mode:04o}\): chmod 600",
        ) as e:
            read(path)
        assert not shows_a_secret(e.value)
    path.chmod(0o400)
    assert load_server_key(path).public == PUBLIC["server"]


@pytest.mark.parametrize("taken", ["server.key", "server.key.pub"])
@pytest.mark.parametrize("is_link", [False, True])
def test_no_file_is_overwritten(taken: str, is_link: bool, tmp_path: Path) -> None:
    if is_link:
        (tmp_path / taken).symlink_to(tmp_path / "nowhere")  # what it points to is not made either
    else:
        (tmp_path / taken).write_bytes(b"mine")
    with pytest.raises(
        InvalidInputError, match=rf"{taken} exists, and keys are never overwritten: name another"
    ) as e:
        create_key_files(tmp_path / "server.key", "server", known)
    assert os.listdir(tmp_path) == [taken]
    assert is_link or (tmp_path / taken).read_bytes() == b"mine"
    assert not shows_a_secret(e.value)


@pytest.mark.parametrize("taken", ["server.key", "server.key.pub"])
def test_of_two_who_make_a_key_at_once_one_gets_it(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other wrote between the look and the writing: what it wrote stays, and no half of a pair
    does."""

    def written(size: int) -> bytes:
        (tmp_path / taken).write_bytes(b"theirs")
        return known(size)

    with pytest.raises(InvalidInputError, match=f"{taken} exists") as e:
        create_key_files(tmp_path / "server.key", "server", written)
    assert os.listdir(tmp_path) == [taken]
    assert (tmp_path / taken).read_bytes() == b"theirs"
    assert not shows_a_secret(e.value)


def test_a_file_that_cannot_be_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(key_files.os, "fsync", full)
    with pytest.raises(
        InvalidInputError, match=r"cannot write .*server.key \(No space left on device\)"
    ) as e:
        create_key_files(tmp_path / "server.key", "server", known)
    assert os.listdir(tmp_path) == []
    assert not shows_a_secret(e.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError,
        match=r"cannot write .*nowhere.a\.key \(.*\): choose a folder that exists",
    ):
        create_key_files(tmp_path / "nowhere" / "a.key", "server", known)


def test_the_key_of_the_other_role_is_refused(tmp_path: Path) -> None:
    paths = {role: made(tmp_path, role) for role in KINDS}
    # of one algorithm, too: a client that signs Invites is a mistake
    for role, other in itertools.permutations(KINDS, 2):
        wrong = f"holds the key of the {other}, and that of the {role} is needed"
        with pytest.raises(InvalidInputError, match=wrong) as e:
            LOADERS[role](paths[other])
        assert not shows_a_secret(e.value)
        with pytest.raises(
            InvalidInputError,
            match=f"holds the public key of the {other}, and that of the {role} is",
        ):
            read_public_key(public_path(paths[other]), role)


@pytest.mark.parametrize("role", ["", "Server", "owner", None, b"server"])
def test_there_are_seven_roles(role: Any, tmp_path: Path) -> None:
    for call in (
        lambda: create_key_files(tmp_path / "a", role, known),
        lambda: read_public_key("00" * 32, role),
    ):
        with pytest.raises(
            InvalidInputError,
            match="must be server, leader, helper, registrar, client, aggregator or collector, got",
        ):
            call()
    assert os.listdir(tmp_path) == []


TEXT = f"fedtally-private-key/1 server\npublic {PUBLIC['server'].hex()}\nsecret {SECRET.hex()}\n"
PUBLIC_TEXT = f"fedtally-public-key/1 server {PUBLIC['server'].hex()}\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fedtally-private-key/1 server\n",
        TEXT[:-1],
        TEXT[:-2] + "\n",
        TEXT + "\n",
        TEXT + "0" * 10_000,
        " " + TEXT,
        TEXT.replace("\n", "\r\n"),
        TEXT.upper(),
        TEXT.replace("key/1", "key/2"),
        TEXT.replace("server", "owner"),
        TEXT.replace(SECRET.hex(), SECRET.hex().upper()),
        TEXT.replace(SECRET.hex(), "g" * 64),
    ],
)
def test_a_damaged_private_file_is_refused(text: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    path.write_bytes(text.encode())
    with pytest.raises(
        UnreadableFileError, match="is no private key of this version, or damaged: give the file"
    ) as e:
        load_server_key(path)
    assert not shows_a_secret(e.value)


@pytest.mark.parametrize("changed", [PUBLIC["server"], SECRET])
def test_a_secret_that_is_not_that_of_its_public_key_is_refused(
    changed: bytes, tmp_path: Path
) -> None:
    path = made(tmp_path)
    path.write_text(TEXT.replace(changed.hex(), bytes(31 * [7] + [1]).hex()))
    with pytest.raises(
        UnreadableFileError, match="is damaged: its secret is not that of its public key"
    ) as e:
        load_server_key(path)
    assert not shows_a_secret(e.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        PUBLIC_TEXT * 2,
        PUBLIC_TEXT[:-3],
        PUBLIC_TEXT.upper(),
        PUBLIC_TEXT.replace("server", "owner"),
        "00" * 32,
    ],
)
def test_a_damaged_public_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pub"
    path.write_text(text)
    for read in (load_public_key, lambda file: read_public_key(file, "server")):
        with pytest.raises(
            UnreadableFileError, match=r"is no public key of this version: give the \.pub file"
        ):
            read(path)


@pytest.mark.parametrize("role", Role)
def test_a_retired_key_is_gone_from_its_file(role: Role, tmp_path: Path) -> None:
    """Also from another name of the same file, so it was not removed alone."""
    path = made(tmp_path, role)
    os.link(path, tmp_path / "another name")
    assert retire_key(path) == PublicKey(role, PUBLIC[role])
    assert set(os.listdir(tmp_path)) == {"another name", f"{role}.key.pub"}
    assert set((tmp_path / "another name").read_bytes()) == {0}
    with pytest.raises(UnreadableFileError):
        LOADERS[role](path)


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_a_key_that_others_could_read_is_retired_with_a_warning(tmp_path: Path) -> None:
    """Nobody may use it any more, and it must not stay there for that."""
    path, said = made(tmp_path), []
    path.chmod(0o644)
    with pytest.raises(InvalidInputError, match="is open to others than its owner"):
        load_server_key(path)
    assert retire_key(path, said.append) == PublicKey(Role.SERVER, PUBLIC["server"])
    assert not path.exists() and [text.partition(": ")[2] for text in said] == [
        "who copied it still has the key"
    ]
    retire_key(made(tmp_path, Role.HELPER), said.append)
    assert len(said) == 1


def test_no_other_file_is_retired(tmp_path: Path) -> None:
    path = made(tmp_path)
    (tmp_path / "plan.toml").write_text("precious")
    for other in (public_path(path), tmp_path / "plan.toml", tmp_path / "nowhere"):
        with pytest.raises(UnreadableFileError):
            retire_key(other)
    assert (tmp_path / "plan.toml").read_text() == "precious" and public_path(path).exists()
    assert load_server_key(path).public == PUBLIC["server"]


def test_a_key_that_cannot_be_retired_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    path = made(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(InvalidInputError, match=r"cannot destroy .* \(Read-only file system\)"):
            retire_key(path)


def test_a_public_file_may_lose_its_last_line_feed(tmp_path: Path) -> None:
    (tmp_path / "a.pub").write_text(PUBLIC_TEXT[:-1])
    assert read_public_key(tmp_path / "a.pub", "server") == PUBLIC["server"]


def test_a_public_key_is_no_private_one(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=r"holds a public key.*the file without \.pub"):
        load_server_key(public_path(made(tmp_path)))


def test_a_private_key_is_no_public_one(tmp_path: Path) -> None:
    path = made(tmp_path)
    with pytest.raises(
        InvalidInputError, match=r"holds a private key, which nobody else may get: name its \.pub"
    ) as e:
        read_public_key(path, "server")
    assert not shows_a_secret(e.value)


@pytest.mark.parametrize("given", ["00" * 31, "00" * 33, "AB" * 32, "a\0b", "no/such/file", "."])
def test_what_is_neither_digits_nor_a_file_is_refused(given: str, tmp_path: Path) -> None:
    with pytest.raises(
        UnreadableFileError, match="give the 64 hexadecimal digits of a public key, or its file"
    ):
        read_public_key(given, "server")
    with pytest.raises(UnreadableFileError, match="give a private key file"):
        load_helper_key(given)


# ---- fedtally keys ----

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run_and_read(*arguments: str) -> tuple[int, str, str]:
        code = run(["keys", *arguments])
        return code, *capsys.readouterr()

    return run_and_read


def sized(method: str = "secagg", adversary: str = "semi-honest") -> Plan:
    terms: Any = TwoServerConfig(length=48, bits=8, n_max=12, min_batch=6, corrupt=1)
    if method == "secagg":
        parameters = propose(12, length=48, bits=8, corrupt=1, max_dropout=0.1, adversary=adversary)
        terms = SecAggConfig(parameters=parameters)
    domain = {"kind": "range", "size": 9, "public": True, "first": 1, "last": 9}
    return Plan(3, 16, "shared", 1, 12, 12, domain, 1, bytes(32), secure_sum=terms)  # type: ignore[arg-type]


def test_a_key_is_made_and_its_secret_shown_to_nobody(call: Call) -> None:
    code, out, err = call("new", "server", "--output", "server.key")
    key = load_server_key("server.key")
    assert (code, out) == (0, f"{key.public.hex()}\n")
    assert "wrote server.key (private) and server.key.pub (public)" in err
    secret = Path("server.key").read_text().split()[-1]
    assert secret not in out + err + Path("server.key.pub").read_text()
    assert load_public_key("server.key.pub").value == key.public
    for file in ("server.key", "server.key.pub"):
        assert call("show", file) == (0, f"{key.public.hex()}\n", "")
        code, out, _ = call("show", file, "--json")
        shown = {"schema": "fedtally-key/1", "role": "server", "public": key.public.hex()}
        assert (code, json.loads(out)) == (0, shown)
    for role in Role:  # the command repeats their names
        code, out, err = call("new", str(role), "-o", f"another {role}.key", "--json")
        assert (code, err, json.loads(out)["role"]) == (0, "", role)
    assert call("new", "owner", "-o", "a.key")[0] == 2


@pytest.mark.parametrize("file", ["server.key", "server.key.pub"])
def test_a_second_key_does_not_take_the_place_of_the_first(call: Call, file: str) -> None:
    Path(file).write_text("mine")
    code, out, err = call("new", "server", "--output", "server.key")
    assert (code, out) == (2, "")
    assert err == f"error: {file} exists, and keys are never overwritten: name another file\n"
    assert Path(file).read_text() == "mine"


def test_keys_make_the_plan_that_is_run(call: Call, tmp_path: Path) -> None:
    sized().save("plan.toml")
    made(tmp_path)
    code, out, err = call(
        "add", "plan.toml", "--server-key", "server.key.pub", "--output", "run.json"
    )
    plan = Plan.load("run.json")
    assert plan == sized().with_keys(server_key=PUBLIC["server"])
    assert (code, out, err) == (
        0,
        f"{plan.fingerprint}\n",
        "wrote run.json: published\non stdout: the fingerprint of the plan\n",
    )
    assert Plan.load("plan.toml") == sized()
    assert (
        call("add", "run.json", "--server-key", PUBLIC["server"].hex(), "-o", "again.toml")[1]
        == out
    )


@pytest.mark.parametrize(
    ("method", "adversary", "role"),
    [("two-server", "semi-honest", "helper"), ("secagg", "active", "server")],
)
def test_what_is_still_missing_is_said(
    call: Call, tmp_path: Path, method: str, adversary: str, role: str
) -> None:
    plan = sized(method, adversary)
    if method == "two-server":  # the leader's key was added before
        plan = plan.with_keys(leader_key=PrivateKey(Secret(bytes(32))).public, may_lack=True)
    plan.save("plan.toml")
    made(tmp_path, role)
    arguments = ("add", "plan.toml", f"--{role}-key", f"{role}.key.pub", "--output")
    code, out, err = call(*arguments, "half.toml")
    assert (code, err.startswith("wrote half.toml: not published: ")) == (0, True)
    assert (
        "nobody may run it without allow_list, who may take part (fedtally keys add --allow-list)"
        in err
    )
    plan = Plan.load("half.toml")
    assert (plan.missing_keys, out) == (("allow_list",), f"{plan.fingerprint}\n")
    code, out, err = call(*arguments, "other.toml", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["is_published"], found["missing_keys"]) == (False, ["allow_list"])
    assert found["fingerprint"] == plan.fingerprint
    assert plan.with_keys(allow_list=bytes(32)).is_published


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan.toml"], "no key is given: name --server-key, --leader-key or --helper-key"),
        (
            ["plan.toml", "--helper-key", "helper.key.pub"],
            "secagg (semi-honest) has no --helper-key",
        ),
        (
            ["plan.toml", "--server-key", "helper.key.pub"],
            "holds the public key of the helper, and that of the server",
        ),
        (["plan.toml", "--server-key", "server.key"], "holds a private key"),
        (["plan.toml", "--server-key", "00" * 32], "secure_sum.server_key is no valid key: "),
        (
            ["plan.toml", "--server-key", "00" * 31],
            "give the 64 hexadecimal digits of a public key",
        ),
        (["run.toml", "--server-key", "77" * 32], "the plan has another --server-key"),
        (
            ["ideal.toml", "--server-key", "server.key.pub"],
            "the secure sum ideal has no --server-key",
        ),
        (["nowhere.toml", "--server-key", "server.key.pub"], "cannot read the plan nowhere.toml"),
        (
            ["plan.toml", "--server-key", "server.key.pub", "-o", "x.txt"],
            "--output x.txt must end in .toml or .json",
        ),
        (
            ["plan.toml", "--server-key", "server.key.pub", "-o", "plan.toml"],
            "it is read by this run",
        ),
    ],
)
def test_what_cannot_be_published_is_one_line(
    call: Call, tmp_path: Path, arguments: list[str], message: str
) -> None:
    from dataclasses import replace

    sized().save("plan.toml")
    sized().with_keys(server_key=PUBLIC["server"]).save("run.toml")
    replace(sized(), secure_sum=None).save("ideal.toml")
    made(tmp_path), made(tmp_path, "helper")
    before = set(os.listdir())
    code, out, err = call("add", *arguments, *([] if "-o" in arguments else ["-o", "new.toml"]))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert set(os.listdir()) == before


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_who_retires_a_key_that_others_could_read_is_warned(call: Call, tmp_path: Path) -> None:
    made(tmp_path).chmod(0o640)
    code, out, err = call("retire", "server.key")
    assert (code, out) == (0, f"{PUBLIC['server'].hex()}\n") and not Path("server.key").exists()
    assert err == (
        "warning: server.key was open to others than its owner (mode 0640): who copied it still has"
        " the key\ndestroyed server.key\n"
    )
