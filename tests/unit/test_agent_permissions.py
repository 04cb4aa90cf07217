"""Who may do what with a file, by what the system says of it and of the way to it."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
from itertools import product
from pathlib import Path

import pytest
from cases import each_case
from other_users import as_user, open_folder  # noqa: F401

from fedtally.agent import permissions as module
from fedtally.agent.permissions import (
    Permissions,
    Right,
    Seen,
    User,
    may,
    others_may_write,
    way_to,
)
from fedtally.errors import InvalidInputError, UnreadableFileError

OWNER, PEER, GROUP = 1000, 54_321, 54_322  # the latter two are no user and no group of this machine
FILE, FOLDER, LINK = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK


def seen(mode: int, uid: int = OWNER, gid: int = GROUP, *, acl: bool = False) -> Seen:
    return Seen("it", uid, gid, mode, acl, (0, 0))


# ---- the rules ----


@each_case(
    ("mode", "uid", "gid", "acl", "rights"),
    [
        (0o600, OWNER, GROUP, False, ""),
        (0o640, OWNER, GROUP, False, "r"),
        (0o640, OWNER, GROUP + 1, False, ""),
        (0o604, OWNER, GROUP + 1, False, "r"),
        (0o604, OWNER, GROUP, False, "r"),  # it may be in the group only perhaps
        (0o062, OWNER, GROUP, False, "rw"),
        (0o010, OWNER, GROUP, False, "x"),
        (0o001, OWNER, GROUP + 1, False, "x"),
        (0o777, OWNER, GROUP + 1, False, "rwx"),
        (0o000, PEER, GROUP + 1, False, "rwx"),  # an owner may change the mode
        (0o750, OWNER, GROUP + 1, True, "rx"),  # the mask of an ACL
        (0o700, OWNER, GROUP + 1, True, ""),
        (0o702, OWNER, GROUP + 1, True, "w"),
    ],
)
def test_the_rights_of_a_user(mode: int, uid: int, gid: int, acl: bool, rights: str) -> None:
    user, found = User(PEER, frozenset({GROUP})), seen(mode, uid, gid, acl=acl)
    names = {"r": Right.READ, "w": Right.WRITE, "x": Right.SEARCH}
    assert "".join(name for name in names if may(user, found, names[name])) == rights
    assert all(may(User(0, frozenset()), found, right) for right in Right)


@each_case(
    ("mode", "uid", "acl", "private", "is_passed", "writable"),
    [
        (FILE | 0o600, OWNER, False, (), False, False),
        (FILE | 0o644, 0, False, (), False, False),
        (FILE | 0o644, PEER, False, (), False, True),
        (FILE | 0o620, OWNER, False, (), False, True),
        (FILE | 0o602, 0, False, (), False, True),
        (FOLDER | 0o770, OWNER, False, (), True, True),
        (FOLDER | 0o1777, 0, False, (), True, False),
        (FOLDER | 0o1777, 0, False, (), False, True),  # others may put files into it
        (FOLDER | 0o1777, PEER, False, (), True, True),
        (FILE | 0o1666, 0, False, (), True, True),
        (FOLDER | 0o775, OWNER, False, (GROUP,), True, False),
        (FOLDER | 0o775, OWNER, False, (GROUP + 1,), True, True),
        (FOLDER | 0o777, OWNER, False, (GROUP,), True, True),
        (FOLDER | 0o775, OWNER, True, (GROUP,), True, True),  # whose the mask is nobody says
        (LINK | 0o777, OWNER, False, (), True, False),
        (LINK | 0o777, PEER, False, (), True, True),
    ],
)
def test_what_others_may_write(
    mode: int, uid: int, acl: bool, private: tuple[int, ...], is_passed: bool, writable: bool
) -> None:
    found = seen(mode, uid, acl=acl)
    assert others_may_write(found, OWNER, private=private, is_passed=is_passed) is writable


# ---- the way to a file ----


def test_every_folder_and_link_on_the_way_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "relative").symlink_to("../a/b")
    (tmp_path / "c" / "absolute").symlink_to(tmp_path / "c" / "relative" / "file")
    base = os.path.realpath(tmp_path)
    for path, links in (
        ("a/b/file", []),
        ("a/../c/../a/b/file", []),
        ("c/relative/file", ["c/relative"]),
        ("c/relative/../b/file", ["c/relative"]),  # the parent of what a link names
        ("c/absolute", ["c/absolute", "c/relative"]),
    ):
        with way_to(tmp_path / path) as way:
            assert way.end.path == f"{base}/a/b/file"
            assert way.end.number[1] == os.stat(tmp_path / path).st_ino
            inner = [one.path for one in way.folders if one.path.startswith(f"{base}/")]
            assert inner == [f"{base}/a", f"{base}/a/b"] and way.folders[0].path == "/"
            found = [one.path for one in way.passed if stat.S_ISLNK(one.mode)]
            assert [one for one in found if one.startswith(f"{base}/")] == [
                f"{base}/{one}" for one in links
            ]
    with way_to(Path("/")) as way:
        assert (way.folders, way.end.path) == ([], "/")


def test_a_way_without_an_end_is_an_error_and_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x")
    opened = set(os.listdir("/proc/self/fd"))
    for path in ("loop", "none", "file/none"):
        with pytest.raises(OSError), way_to(tmp_path / path):
            raise AssertionError
    # Meanwhile the garbage collector may close what another test left open.
    assert set(os.listdir("/proc/self/fd")) <= opened


def test_a_way_is_looked_at_from_the_folder_where_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    with way_to(Path("file")) as way:
        assert way.end.path == os.path.realpath("file")


def test_an_acl_that_nobody_can_see_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(*_: object) -> bytes:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getxattr", hidden)
    with pytest.raises(InvalidInputError, match="needs /proc"), way_to(tmp_path):
        raise AssertionError


def test_elsewhere_than_on_linux_there_is_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(InvalidInputError, match="runs on Linux"), way_to(Path("/")):
        raise AssertionError


# ---- what the kernel says ----


def acl_of(user: int, rights: int) -> bytes:
    """Return an ACL that gives a user rights, as Linux stores it."""
    anybody = 2**32 - 1
    entries = ((1, 6, anybody), (2, rights, user), (4, 0, anybody), (16, 7, anybody))
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *one) for one in (*entries, (32, 0, anybody))
    )


def give_acl(path: Path, user: int, rights: int, kind: str = "access") -> None:
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", acl_of(user, rights))
    except OSError as error:
        pytest.skip(f"the folder for temporary files has no ACLs ({error.strerror})")


def test_nobody_can_do_more_than_is_said(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can ask the kernel as another user")
    user, asked = User(PEER, frozenset({GROUP})), ((Right.READ, os.R_OK), (Right.WRITE, os.W_OK))
    files = []
    for owner, group, bits in product((OWNER, PEER), (GROUP, GROUP + 1), range(0, 0o700, 7)):
        file = place / f"{owner}-{group}-{bits:o}"
        file.write_text("x")
        os.chown(file, owner, group)
        file.chmod(bits)
        with way_to(file) as way:
            # exactly, but for an owner, and a member of a group who has less than the others
            is_exact = owner != PEER and not (group == GROUP and bits & 7 & ~(bits >> 3))
            said = {
                how: may(user, way.end, right) for right, how in (*asked, (Right.SEARCH, os.X_OK))
            }
            files.append((file, said, is_exact))

    def compare() -> bool:
        for file, said, is_exact in files:
            truly = {how: os.access(file, how) for how in said}
            if (is_exact and said != truly) or any(truly[how] > said[how] for how in said):
                return False
        return True

    assert sum(is_exact for *_, is_exact in files) > 50
    assert as_user(PEER, [GROUP], compare)


def test_what_an_acl_gives_is_never_overlooked(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can ask the kernel as another user")
    file = place / "file"
    file.write_text("x")
    file.chmod(0o600)
    give_acl(file, PEER, 4)
    assert as_user(PEER, [], lambda: os.access(file, os.R_OK))
    with way_to(file) as way:
        assert way.end.has_acl and not way.folders[-1].has_acl
        assert may(User(PEER, frozenset()), way.end, Right.READ)
    folder = place / "folder"
    folder.mkdir()
    give_acl(folder, PEER, 1, "default")
    with way_to(folder) as way:
        assert way.end.has_acl


# ---- the files of an agent ----


def of(folder: Path, peers: set[int]) -> Permissions:
    return Permissions.of(folder, peers, folder / "run" / "agent.sock")


def test_root_looks_for_the_one_whom_the_folder_belongs_to(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of(place, {PEER}).owner == place.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: OWNER)
    found = of(place, {PEER, OWNER, 0})
    assert (found.owner, found.peers) == (OWNER, {PEER})


def test_a_sticky_folder_is_passed_and_is_no_place_of_the_agent(place: Path) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for name in ("public.key", "agent.toml"):
        (shared / name).write_text("x")
        (shared / name).chmod(0o644)
    permissions = of(place, {PEER})
    permissions.check_kept(shared / "public.key")
    [problem] = permissions.kept(own=[shared / "agent.toml"])
    assert problem == (
        f"{shared} (mode 1777) may be written by others than the agent's user: chmod go-w {shared}"
    )
    assert permissions.kept(own=[shared]) == [problem]


def test_a_link_of_somebody_else_is_not_believed(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a link of another user")
    (place / "key").write_text("x")
    (place / "link").symlink_to("key")
    os.lchown(place / "link", PEER, PEER)
    with pytest.raises(InvalidInputError, match=rf"link .* belongs to user {PEER}.*chown 0 "):
        of(place, set()).check_kept(place / "link")


def test_a_group_of_one_is_the_owners_where_nobody_else_is_let_in(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_alone", lambda uid, gid: True)
    (place / "file").write_text("x")
    (place / "file").chmod(0o664)
    of(place, set()).check_kept(place / "file")
    with pytest.raises(InvalidInputError, match=r"file \(mode 0664\) .* chmod go-w"):
        of(place, {PEER}).check_kept(place / "file")
    monkeypatch.setattr(module, "_is_alone", lambda uid, gid: False)
    with pytest.raises(InvalidInputError, match="chmod go-w"):
        of(place, set()).check_kept(place / "file")


def test_who_is_alone_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    def user(name: str, uid: int, gid: int) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))

    users = {1: user("ada", 1, 1), 2: user("ben", 2, 20)}
    groups = {1: [], 20: [], 30: ["ada"], 40: ["ada", "ben"], 50: []}
    monkeypatch.setattr(pwd, "getpwuid", users.__getitem__)
    monkeypatch.setattr(pwd, "getpwall", lambda: list(users.values()))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("g", "x", gid, groups[gid])))
    alone = {(uid, gid) for uid in (1, 2, 3) for gid in (*groups, 60) if module._is_alone(uid, gid)}
    assert alone == {(1, 1), (2, 20), (1, 30)}


def test_the_groups_that_a_peer_needs_are_those_of_every_peer(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to a group that it is not in")
    outer, run = place / "agent", place / "agent" / "run"
    run.mkdir(parents=True)
    outer.chmod(0o750)
    os.chown(outer, -1, GROUP)
    os.chown(run, -1, GROUP + 1)
    (run / "agent.sock").write_text("")
    os.chown(run / "agent.sock", -1, GROUP + 2)
    permissions = of(outer, {PEER})
    [user] = permissions._users()
    assert user.groups >= {GROUP, GROUP + 1, GROUP + 2, os.getegid()}
    outer.chmod(0o755)  # everybody may pass: its group lets nobody in
    os.chown(run, -1, 0)
    [user] = permissions._users()
    assert GROUP not in user.groups


def test_the_groups_that_the_system_lists_are_those_of_a_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pwd

    monkeypatch.setattr(os, "getgrouplist", lambda *_: [7, GROUP])

    user = pwd.getpwuid(0)  # it is everywhere
    assert module._groups_of(user.pw_uid) == {7, GROUP}
    assert module._groups_of(PEER) == frozenset()
    peers = Permissions(PEER, frozenset({user.pw_uid}), Path("/none/agent.sock"))
    [found] = peers._users()
    assert found.groups >= module._groups_of(user.pw_uid)


def test_what_cannot_be_looked_at_is_a_problem_unless_nobody_can_use_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "loop").symlink_to("loop")
    for name, problems in (("none", 0), ("loop", 1)):
        assert len(of(place, {PEER}).kept(others=[place / name])) == problems
    assert of(place, {PEER}).unread(place / "none") == []

    def full(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", full)
    [problem] = of(place, {PEER}).kept(own=[place])
    assert "Too many open files" in problem
    with pytest.raises(InvalidInputError, match="Too many open files"):
        of(place, {PEER}).check_closed(place / "none")


@pytest.mark.parametrize("holder", [0, OWNER, OWNER + 1, PEER])
def test_what_peers_may_read_has_a_command_that_its_owner_or_root_can_run(
    place: Path, holder: int
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to others")
    path = place / "it's agent.toml"
    path.write_text("once = 'a label'")
    path.chmod(0o644)
    os.chown(path, holder, -1)
    permissions = Permissions(OWNER, frozenset({PEER}), place / "socket")
    [problem] = permissions.unread(path)
    who, _, command = problem.rpartition("tell what is held: ")[2].rpartition("as root ")
    assert who == ("" if holder == OWNER else f"it belongs to user {holder}, so ")
    subprocess.run(command, shell=True, check=True)
    assert permissions.unread(path) == []
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (OWNER, 0o600)


def test_where_peers_are_named_items_are_one_file(place: Path) -> None:
    (place / "items").mkdir(mode=0o700)
    (place / "items" / "a.csv").write_text("item\n7\n")
    os.mkfifo(place / "items" / "pipe.csv", 0o600)
    for name in ("items", "items/*.csv", "items/none", "items/pipe.csv"):
        of(place, set()).check_closed(place / name)
        with pytest.raises(InvalidInputError, match="name one file"):
            of(place, {PEER}).check_closed(place / name)
    of(place, {PEER}).check_closed(place / "items" / "a.csv")


def open_items(place: Path, mode: int, *, inside: bool) -> Path:
    """Return items in a folder that every user may search: that of the agent, or another."""
    for folder in (place / "agent" / "run", place / "outside"):
        folder.mkdir(parents=True)
    path = place / ("agent" if inside else "outside") / "it's items.csv"
    path.write_text("item\n7\n")
    path.chmod(mode)
    for folder in (place / "agent", place / "outside"):
        folder.chmod(0o755)
    return path


def named_command(permissions: Permissions, path: Path) -> str:
    with pytest.raises(InvalidInputError, match=f"user {PEER}, one of the peers, may") as caught:
        permissions.check_closed(path)
    return str(caught.value).rpartition(": ")[2].removesuffix(", and name that file")


@pytest.mark.parametrize("mode", [0o644, 0o600])
@pytest.mark.parametrize("inside", [True, False])
def test_the_command_that_is_named_mends_it(place: Path, mode: int, inside: bool) -> None:
    path, agent = open_items(place, mode, inside=inside), place / "agent"
    permissions = of(agent, {PEER})
    subprocess.run(named_command(permissions, path), shell=True, check=True)
    permissions.check_closed(agent / "items" / path.name if inside else path)
    assert stat.S_IMODE(agent.stat().st_mode) == 0o755  # peers still reach the socket


def test_nobody_is_told_to_close_a_folder_of_all(place: Path) -> None:
    path = open_items(place, 0o600, inside=False)
    path.parent.chmod(0o1777)
    permissions = of(place / "agent", {PEER})
    assert named_command(permissions, path).startswith("mkdir -m 700 ")
    root = Seen("/srv", permissions.owner, 0, stat.S_IFDIR | 0o755, False, (0, 0))
    file = Seen("/srv/items.csv", permissions.owner, 0, stat.S_IFREG | 0o600, False, (0, 0))
    said = permissions._way_out(User(PEER, frozenset()), root, file)
    assert said == "mkdir -m 700 /srv/items && mv /srv/items.csv /srv/items/, and name that file"


def test_what_belongs_to_a_peer_is_taken_from_it(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to a peer")
    path = open_items(place, 0o600, inside=False)
    path.parent.chmod(0o700)
    for each in (path, path.parent):
        os.chown(each, PEER, -1)
    permissions = of(place / "agent", {PEER})
    assert named_command(permissions, path).startswith("chown 0 ")
    subprocess.run(named_command(permissions, path), shell=True, check=True)
    permissions.check_closed(path)


def test_a_file_that_is_replaced_while_it_is_read_is_not_believed(place: Path) -> None:
    (place / "items").mkdir(mode=0o700)
    path = place / "items" / "items.csv"
    path.write_text("item\n7\n")
    path.chmod(0o600)
    permissions = of(place, {PEER})
    with permissions.reading(path):
        pass
    new = path.with_name("new.csv")
    new.write_text("item\n8\n")
    new.chmod(0o600)
    with pytest.raises(UnreadableFileError, match="was replaced while"), permissions.reading(path):
        new.replace(path)
    with pytest.raises(InvalidInputError, match="may search"), permissions.reading(path):
        path.parent.chmod(0o755)
    path.unlink()
    with pytest.raises(UnreadableFileError, match="cannot read"), permissions.reading(path):
        raise AssertionError
    with of(place, set()).reading(path):  # without peers nothing is asked
        pass
