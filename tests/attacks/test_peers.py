"""Attacks by peers: what the user who carries an agent's bytes gets without the agent.

The peer here is a number that no user of this machine has, as that of a container is. Where the
tests run as root, a process of that user tries what the agent is to prevent.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
import subprocess
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from campaign_world import plan_of
from cases import each_case
from other_users import as_user, open_folder  # noqa: F401
from secagg_cohort import stream

from fedtally.agent.home import create
from fedtally.agent.settings import FILE, Settings
from fedtally.cli.app import run
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan

PEER, OTHERS = 54_321, 54_322  # the latter a group
AGENT = """
{peers}
[items]
{items}
[policy]
min_honest = 5
epsilon = 1.0
delta = 1e-8
"""


@cache  # and not at import: each process that collects tests would look for the noise
def plan() -> Plan:
    return plan_of("active", "central")


@pytest.fixture
def agent(place: Path) -> Path:
    """The folder of an agent whose socket the peer reaches by the group of its owner."""
    folder = place / "agent"
    create(folder, stream("agent"))
    fill(folder)
    held(folder / "items" / "items.csv")
    return folder


def fill(folder: Path, items: str = 'file = "items/items.csv"', peers: str = str(PEER)) -> None:
    (folder / FILE).write_text(AGENT.format(peers=f"peers = [{peers}]", items=items))


def held(path: Path, item: str = "7", mode: int = 0o600) -> None:
    path.write_text(f"item\n{item}\n")
    path.chmod(mode)


def refused(folder: Path, says: str) -> None:
    """The agent does not start, and its owner hears why from `agent check`."""
    with pytest.raises(InvalidInputError, match=says):
        Settings.load(folder)
    assert run(["agent", "check", "--agent", str(folder)]) == 2


def as_peer(folder: Path, ask: Callable[[], bool]) -> bool:
    """Return what a process of the peer finds, which is in the group that the socket has."""
    if os.geteuid() != 0:
        pytest.skip("only root can be the peer")
    return as_user(PEER, [(folder / "run").stat().st_gid], ask)


def sees(path: Path) -> bool:
    """Whether this process sees the size of a file."""
    try:
        return path.stat().st_size > 0
    except PermissionError:
        return False


# ---- modes are looked at again at each reading ----


def test_items_that_an_export_opened_are_not_read(agent: Path) -> None:
    """Attack 4: the agent looked at the mode when it started, and read on whatever came later."""
    items = Settings.load(agent).items
    assert items.client(plan())
    path = agent / "items" / "items.csv"
    (agent / "items").chmod(0o755)
    held(agent / "items" / "new.csv", "11", 0o644)
    os.replace(agent / "items" / "new.csv", path)  # a nightly export
    with pytest.raises(InvalidInputError, match=rf"user {PEER}.* may read .*\(mode 0644\)"):
        items.client(plan())
    path.chmod(0o600)
    with pytest.raises(InvalidInputError, match=rf"user {PEER}.* may search .*\(mode 0755\)"):
        items.client(plan())
    (agent / "items").chmod(0o700)
    assert items.client(plan())  # the agent that runs goes on once it is mended


def test_a_database_that_was_opened_is_not_read(agent: Path) -> None:
    """Attack 4, of items in a database, and of what lies beside one."""
    path = agent / "items" / "items.db"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE held (item)")
        base.execute("INSERT INTO held VALUES (7)")
        base.commit()
    path.chmod(0o600)
    fill(agent, 'sqlite = "items/items.db"\nquery = "SELECT item FROM held"')
    items = Settings.load(agent).items
    assert items.client(plan())
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO held VALUES (8)")
        writer.commit()
        assert path.with_name("items.db-wal").exists()  # it holds items, too, and a size
        assert items.client(plan())
        (agent / "items").chmod(0o711)
        with pytest.raises(InvalidInputError, match="may search"):
            items.client(plan())
        (agent / "items").chmod(0o700)
        assert items.client(plan())
    path.chmod(0o644)
    (agent / "items").chmod(0o750)
    with pytest.raises(InvalidInputError, match=r"may read .*items\.db \(mode 0644\)"):
        items.client(plan())


def test_a_file_that_came_while_another_was_looked_at_is_not_read(
    agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 4, between the look at the file and the reading."""
    from fedtally import sources

    items, path, real = (
        Settings.load(agent).items,
        agent / "items" / "items.csv",
        sources.open_source,
    )

    def swapped(*given: object, **more: object) -> object:
        held(agent / "items" / "new.csv", "11")
        os.replace(agent / "items" / "new.csv", path)
        return real(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(sources, "open_source", swapped)
    with pytest.raises(UnreadableFileError, match="was replaced while it was read"):
        items.client(plan())


# ---- what a peer sees of a file that it cannot read ----


@each_case("text", ["item\ninfluenza\n", "item\nHIV\n", "item\n"])
def test_the_size_of_the_items_is_not_seen(agent: Path, text: str) -> None:
    """Attack 6: the items lay in a folder that peers may search, and the size tells the item."""
    outside, inside = agent / "items.csv", agent / "items" / "items.csv"
    for path in (outside, inside):
        path.write_text(text)
        path.chmod(0o600)
    fill(agent, 'file = "items.csv"')
    refused(agent, rf"user {PEER}.* may search .*agent \(mode 0750\).* size of .*: mv ")
    fill(agent)
    Settings.load(agent)
    assert as_peer(agent, lambda: sees(outside))
    assert not as_peer(agent, lambda: sees(inside))


def test_a_new_agent_points_to_a_folder_that_is_closed(agent: Path) -> None:
    """Attack 6: whoever follows the file that `agent init` writes is not seen through."""
    from fedtally.agent.settings import TEMPLATE

    assert stat.S_IMODE((agent / "items").stat().st_mode) == 0o700
    named = [line for line in TEMPLATE.splitlines() if line.startswith(("# > file", "# > sqlite"))]
    assert len(named) == 2 and all('= "items/' in line for line in named)


def test_without_peers_the_items_may_lie_where_they_lay(agent: Path) -> None:
    held(agent / "items.csv", mode=0o644)
    fill(agent, 'file = "items.csv"', peers="")
    assert Settings.load(agent).items.client(plan())
    fill(agent, 'file = "items.csv"', peers=f"0, {os.getuid()}")  # they can do all that it can
    assert Settings.load(agent).items.client(plan())


@pytest.mark.parametrize("mask", [0o002, 0o000])
def test_a_lax_umask_opens_nothing_that_the_agent_makes(place: Path, mask: int) -> None:
    """Where each user has a group of its own, 002 is the usual umask."""
    folder, before = place / "agent", os.umask(mask)
    try:
        create(folder, stream("agent"))
    finally:
        os.umask(before)
    held(folder / "items" / "items.csv")
    fill(folder)
    assert Settings.load(folder).peers == {PEER}


def test_another_name_of_the_items_does_not_show_their_size(agent: Path, place: Path) -> None:
    """Attack 6, by a second name of the file in a folder that everybody may search."""
    path = agent / "items" / "items.csv"
    os.link(path, place / "export.csv")
    refused(agent, r"items\.csv \(mode 0600\) has 2 names")
    assert as_peer(agent, lambda: sees(place / "export.csv"))
    with pytest.raises(InvalidInputError) as caught:
        Settings.load(agent)
    subprocess.run(str(caught.value).rpartition(": ")[2], shell=True, check=True)
    Settings.load(agent)


@each_case(("name", "mode"), [(FILE, 0o640), (FILE, 0o644), ("record/record.db", 0o644)])
def test_labels_and_queries_are_not_read(agent: Path, name: str, mode: int) -> None:
    """Attack 6, of what the owner writes beside the items: a label may tell what is held."""
    path = agent / name
    path.chmod(mode)
    path.parent.chmod(0o750)
    refused(agent, rf"user {PEER}.* may read {path} \(mode {mode:04o}\).*chmod 600 {path}")
    assert as_peer(agent, lambda: os.access(path, os.R_OK))
    path.chmod(0o600)
    Settings.load(agent)


# ---- groups that no list names, and ACLs ----


@pytest.mark.parametrize("mode", [0o640, 0o644, 0o660])
def test_the_group_of_the_socket_is_one_of_every_peer(agent: Path, mode: int) -> None:
    """Attack 9: a peer given by number was taken to be in no group, and is in the socket's."""
    held(agent / "items.csv", mode=mode)
    fill(agent, 'file = "items.csv"')
    refused(agent, rf"user {PEER}.* may read .*\(mode {mode:04o}\).*: mv .*items\.csv ")
    path = agent / "items.csv"
    assert as_peer(agent, lambda: os.access(path, os.R_OK) and os.access(agent / "run", os.X_OK))


@pytest.mark.parametrize("name", ["items.csv", "items"])
def test_what_has_an_acl_is_refused(agent: Path, name: str) -> None:
    """Attack 9: an ACL gives a peer what the mode and its groups do not."""
    items, everybody = agent / "items", 2**32 - 1
    path = items if name == "items" else items / name
    rights = 5 if path == items else 4
    entries = ((1, 7, everybody), (2, rights, PEER), (4, 0, everybody), (16, rights, everybody))
    packed = b"".join(struct.pack("<HHI", *one) for one in (*entries, (32, 0, everybody)))
    for kind in ("access", "default") if path == items else ("access",):
        try:
            os.setxattr(path, f"system.posix_acl_{kind}", struct.pack("<I", 2) + packed)
        except OSError as error:
            pytest.skip(f"the folder for temporary files has no ACLs ({error.strerror})")
        if kind == "access" and path == items:
            assert as_peer(agent, lambda: sees(items / "items.csv"))
        refused(agent, rf"{name} \(mode \d+\) has an ACL.*setfacl -b ")
        os.removexattr(path, f"system.posix_acl_{kind}")
        path.chmod(0o700)
        Settings.load(agent)


# ---- what others may write ----


def mended(problem: str) -> None:
    """Do what an error says."""
    for command in problem.split("; "):
        subprocess.run(command.rpartition(": ")[2], shell=True, check=True)


@each_case(
    ("name", "mode"),
    [
        (".", 0o770),
        (".", 0o1777),
        (FILE, 0o664),
        ("campaigns", 0o770),
        ("campaigns", 0o1777),
        ("record", 0o770),
        ("record/record.db", 0o660),
        ("key", 0o770),
        ("key/record.mark", 0o666),
        ("key/agent.key", 0o620),
        ("run", 0o770),
        ("..", 0o777),
    ],
)
def test_what_a_peer_may_write_is_refused_by_name(agent: Path, name: str, mode: int) -> None:
    """Attack 14: a peer that wrote agent.toml set the epsilon of the next start to 900."""
    path = Path(os.path.realpath(agent / name))
    before = stat.S_IMODE(path.stat().st_mode)
    Settings.load(agent)
    path.chmod(mode)
    says = rf"{path} \(mode {mode:04o}\) may be written by others.*chmod go-w {path}"
    refused(agent, says)
    with pytest.raises(InvalidInputError) as caught:
        Settings.load(agent)
    mended(str(caught.value).partition(": ")[2])
    Settings.load(agent).check_writable()
    path.chmod(before)


def test_a_peer_cannot_weaken_the_policy(agent: Path) -> None:
    """Attack 14, as the peer: what it can write is what the agent refuses to start with."""
    path = agent / FILE
    os.chmod(path, 0o660)

    def write() -> bool:
        try:
            path.write_text(path.read_text().replace("epsilon = 1.0", "epsilon = 900.0"))
        except OSError:
            return False
        return True

    assert as_peer(agent, write)
    refused(agent, r"agent\.toml \(mode 0660\) may be written by others")
    os.chmod(path, 0o600)
    assert not as_peer(agent, write)


def test_files_of_somebody_else_are_refused_by_name(agent: Path) -> None:
    """Attack 14, of an owner who is neither the agent's user nor root."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    for name in ("campaigns", "record/record.db", FILE):
        os.chown(agent / name, PEER, -1)
        refused(agent, rf"{name} .* belongs to user {PEER}.*chown 0 ")
        os.chown(agent / name, 0, -1)
    Settings.load(agent)


def test_root_does_not_guard_a_folder_of_the_peer(agent: Path) -> None:
    """Attack 14, of a peer that the agent's whole folder belongs to, where root runs the agent."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(agent, PEER, -1)
    refused(agent, rf"agent \(mode 0750\) belongs to user {PEER}.*chown 0 ")


def test_code_that_others_may_write_does_not_run(
    agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 14, by the module that reads the items: not even its package is imported."""
    package = agent / "owners_package"
    package.mkdir()
    for name in ("__init__.py", "reads.py"):
        (package / name).write_text("import os\nos.environ['RAN'] = 'yes'\nread = lambda: [7]\n")
        (package / name).chmod(0o600)
    monkeypatch.syspath_prepend(agent)
    monkeypatch.setenv("RAN", "no")
    fill(agent, 'python = "owners_package.reads:read"')
    for path, mode in (
        (package / "__init__.py", 0o660),
        (package / "reads.py", 0o606),
        (package, 0o777),
        (agent / FILE, 0o666),  # it says which code runs
    ):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        refused(agent, rf"{path} \(mode {mode:04o}\) may be written by others")
        path.chmod(before)
        assert os.environ["RAN"] == ("yes" if path.name == "reads.py" else "no")
        if path.name == "reads.py":  # its package, which is closed, ran to find it
            monkeypatch.setenv("RAN", "no")
    assert Settings.load(agent).items.client(plan()) and os.environ["RAN"] == "yes"


@each_case(
    ("old", "new"),
    [
        ("[items]", 'registrar = "public.key"\n[items]'),
        ("[policy]", '[policy]\nknown = ["public.key"]'),
        ("[policy]", 'candidates = ["public.key"]\n[policy]'),
    ],
)
def test_a_public_file_that_others_may_write_is_not_read(agent: Path, old: str, new: str) -> None:
    """Attack 14, by a key or candidates that everybody may know and nobody may change."""
    fill(agent)
    (agent / FILE).write_text((agent / FILE).read_text().replace(old, new, 1))
    role = "client" if "known" in new else "registrar"
    text = "7\n" if "candidates" in new else f"fedtally-public-key/1 {role} {'09' * 32}\n"
    path = agent / "public.key"
    path.write_text(text)
    path.chmod(0o644)
    Settings.load(agent)
    path.chmod(0o646)
    refused(agent, rf"{path} \(mode 0646\) may be written by others")
