"""Who may read, search or write the files of an agent.

A process that carries bytes runs what somebody else sends. `may` and `others_may_write` decide, by
facts alone; `way_to` gathers the facts, on open descriptors, and `Permissions` refuses.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from fedtally.errors import InvalidInputError, UnreadableFileError

_ACLS = ("system.posix_acl_access", "system.posix_acl_default")  # extended attributes of Linux
_MOST_LINKS = 40  # that Linux follows on one way


class Right(IntEnum):
    """What somebody may do, as a bit of the modes. To search a folder is to reach what is in it."""

    SEARCH = 1
    WRITE = 2
    READ = 4


class User(NamedTuple):
    """A user of the machine, and the groups that it may be in, by number."""

    uid: int
    groups: frozenset[int]


class Seen(NamedTuple):
    """What the system says of a file, a folder or a link."""

    path: str
    uid: int
    gid: int
    mode: int  # its type and its permissions
    has_acl: bool
    number: tuple[int, int]  # of its device and of itself there
    links: int = 1  # how many names it has

    def __str__(self) -> str:
        return f"{self.path} (mode {stat.S_IMODE(self.mode):04o})"


def may(user: User, seen: Seen, right: Right) -> bool:
    """Return whether a user may have a right: True where this cannot be excluded.

    Who is in the group has the rights of the others as well, since it may be in it only perhaps. An
    ACL may give anybody what its mask allows, which stands in the place of the group's bits. An
    owner may change the mode, and so has every right.

    >>> nobody = User(65534, frozenset({7}))
    >>> may(nobody, Seen("items.csv", 0, 7, 0o640, False, (0, 0)), Right.READ)
    True
    >>> may(nobody, Seen("items.csv", 0, 8, 0o640, False, (0, 0)), Right.READ)
    False
    """
    if user.uid in (0, seen.uid):
        return True
    in_group = seen.gid in user.groups or seen.has_acl
    return bool((seen.mode | (seen.mode >> 3 if in_group else 0)) & right)


def others_may_write(
    seen: Seen, owner: int, *, private: Collection[int] = (), is_passed: bool = False
) -> bool:
    """Return whether others than an owner and root may write a file or a folder.

    Args:
        seen: the file, the folder, or a link, of which the owner alone counts.
        owner: the user, by number.
        private: groups of which nobody else is a member.
        is_passed: a folder on the way to what is used. A sticky one, as /tmp is, may be written by
            all: nobody can take away there what is somebody else's.
    """
    if seen.uid not in (0, owner):
        return True
    if stat.S_ISLNK(seen.mode) or (
        is_passed and stat.S_ISDIR(seen.mode) and seen.mode & stat.S_ISVTX
    ):
        return False
    nobody_in_particular = User(-1, frozenset({seen.gid}).difference(private))
    return may(nobody_in_particular, seen, Right.WRITE)


class Way(NamedTuple):
    """The way to a file or a folder, looked at on open descriptors."""

    passed: list[Seen]  # every folder and link that the system passes
    folders: list[Seen]  # those around the end, from the root down
    end: Seen


def check_system() -> None:
    """Refuse a system on which no agent runs."""
    if not sys.platform.startswith("linux"):
        raise InvalidInputError(
            "an agent runs on Linux: elsewhere the system does not say who connects (SO_PEERCRED)"
        )


@contextmanager
def way_to(path: Path) -> Iterator[Way]:
    """Yield the way to a path. Meanwhile nothing else can have the number of its end.

    Raises:
        OSError: there is no such file, or the way to it is closed.
        InvalidInputError: the system does not say whether there is an ACL.
    """
    check_system()
    passed: list[Seen] = []
    with ExitStack() as opened:

        def look(name: str, path: str, at: int | None) -> tuple[int, Seen]:
            # O_PATH needs no right to read, and its close gives up no lock that SQLite holds
            handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            opened.callback(os.close, handle)
            found = os.fstat(handle)
            is_link = stat.S_ISLNK(found.st_mode)
            has_acl = not is_link and _has_acl(handle, path)
            by = (found.st_uid, found.st_gid, found.st_mode)
            number = (found.st_dev, found.st_ino)
            passed.append(Seen(path, *by, has_acl, number, found.st_nlink))
            return handle, passed[-1]

        stack, links = [look("/", "/", None)], 0
        left = [*reversed((Path.cwd() / path).parts[1:])]
        while left:
            if (name := left.pop()) == "..":
                del stack[max(1, len(stack) - 1) :]
                continue
            handle, seen = look(name, os.path.join(stack[-1][1].path, name), stack[-1][0])
            if not stat.S_ISLNK(seen.mode):
                stack.append((handle, seen))
                continue
            if (links := links + 1) > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = Path(os.readlink("", dir_fd=handle))
            if target.is_absolute():
                del stack[1:]
            left += reversed(target.parts[target.is_absolute() :])
        *around, (_, end) = stack
        yield Way(passed, [folder for _, folder in around], end)


def _has_acl(handle: int, path: str) -> bool:
    for name in _ACLS:
        try:
            os.getxattr(f"/proc/self/fd/{handle}", name)  # O_PATH takes no other way
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise InvalidInputError(
                    f"the system does not say whether {path} has an ACL ({error.strerror}): an"
                    " agent needs /proc, so mount it"
                ) from None
        else:
            return True
    return False


@dataclass(frozen=True)
class Permissions:
    """What others on the machine of an agent may do with its files.

    Args:
        owner: the agent's user, by number. Whatever is root's is as safe.
        peers: the users who may connect, besides the agent's own and root.
        socket: where they connect.
    """

    owner: int
    peers: frozenset[int]
    socket: Path

    @classmethod
    def of(cls, folder: Path, peers: Collection[int], socket: Path) -> Permissions:
        """Return those of the agent in a folder: root looks for the one whom the folder belongs to.

        Raises:
            OSError: there is no such folder.
        """
        holder = folder.stat().st_uid
        # a peer that has the folder is no owner: what it may write is then refused
        owner = os.geteuid() or (0 if holder in peers else holder)
        return cls(owner, frozenset(peers) - {0, owner}, socket)

    def kept(self, own: Collection[Path] = (), others: Collection[Path] = ()) -> list[str]:
        """Return what others may write of files and of the ways to them, each with the way out.

        What is not there, or cannot be reached, is passed over: whoever uses it says so.

        Args:
            own: files and folders that the agent writes, or whose names it believes: the folder of
                such a file belongs to nobody else, either.
            others: files that the agent reads.
        """
        found: dict[str, str] = {}
        for path in (*own, *others):
            try:
                with way_to(path) as way:
                    is_folder = stat.S_ISDIR(way.end.mode)
                    around = way.end if is_folder else way.folders[-1]
                    for seen in way.passed:
                        is_passed = path not in own or seen != around
                        if self._others_may_write(seen, is_passed=is_passed):
                            found.setdefault(seen.path, self._unkept(seen))
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            except OSError as error:
                found.setdefault(str(path), f"cannot look at {path}: {error.strerror}")
        return list(found.values())

    def unread(self, *paths: Path) -> list[str]:
        """Return which files of the agent a peer may read, each with the way out.

        What cannot be looked at is passed over: `kept` names it.
        """
        found = []
        for path in paths if self.peers else ():
            with suppress(OSError):
                with way_to(path) as way:
                    readers = [user for user in self._users() if _may_reach(user, way, Right.READ)]
                if readers:
                    found.append(
                        f"user {readers[0].uid}, one of the peers, may read {way.end}, which may"
                        f" tell what is held: chmod 600 {shlex.quote(way.end.path)}"
                    )
        return found

    def check_kept(self, path: Path) -> None:
        """Refuse a file that the agent reads, if others may write it or could put another there.

        Raises:
            InvalidInputError: names each file or folder, its mode, and the way out.
        """
        if problems := self.kept(others=[path]):
            raise InvalidInputError("; ".join(problems))

    def check_closed(self, path: Path) -> None:
        """Refuse a file of items that a peer may read, or whose folder it may search.

        In that folder a peer would see the file's size, which tells the length of an item. What
        SQLite writes beside a database lies there, too, and is closed to whoever may not search it.

        Raises:
            InvalidInputError: names the peer, the file or folder, its mode, and the way out; or
                says that what is named is no file.
        """
        if not self.peers:
            return
        try:
            with way_to(path) as way:
                self._check_closed(way)
        except OSError as error:
            raise InvalidInputError(f"{path} {_ONE_FILE} ({error.strerror})") from None

    @contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Watch over a file of items while it is read.

        It is looked at before and after, and must be the same file and closed to every peer both
        times. Without peers nothing is asked of it.

        Raises:
            InvalidInputError: as for `check_closed`.
            UnreadableFileError: the file is gone, or another one came into its place meanwhile.
        """
        if not self.peers:
            yield
            return
        try:
            with way_to(path) as before:
                self._check_closed(before)
                yield
                with way_to(path) as after:
                    self._check_closed(after)
                if after.end.number != before.end.number:
                    raise UnreadableFileError(
                        f"{path} was replaced while it was read: the next session reads it anew"
                    )
        except OSError as error:
            raise UnreadableFileError(f"cannot read {path}: {error.strerror}") from None

    def _check_closed(self, way: Way) -> None:
        if stat.S_ISDIR(way.end.mode):
            raise InvalidInputError(f"{way.end.path} {_ONE_FILE}")
        folder, file = way.folders[-1], way.end
        if file.links > 1:
            path = shlex.quote(file.path)
            raise InvalidInputError(
                f"{file} has {file.links} names (hard links), and agent.toml names peers, who may"
                f" see it by another one: cp {path} {path}.copy && mv {path}.copy {path}"
            )
        for seen in (folder, file):
            if seen.has_acl:
                raise InvalidInputError(
                    f"{seen} has an ACL, and agent.toml names peers, to whom it may give more than"
                    f" the mode says: setfacl -b {shlex.quote(seen.path)}"
                )
        for user in self._users():
            if not _may_reach(user, way):
                continue
            who = f"user {user.uid}, one of the peers, may"
            way_out = self._way_out(user, folder, file)
            if may(user, file, Right.READ):
                raise InvalidInputError(f"{who} read {file} without this agent: {way_out}")
            raise InvalidInputError(
                f"{who} search {folder}, and so see the size of {file.path}, which tells what it"
                f" holds: {way_out}"
            )

    def _way_out(self, user: User, folder: Seen, file: Seen) -> str:
        """Return how items come into a folder that is closed to a user."""
        if user.uid in (folder.uid, file.uid):
            taken = [shlex.quote(seen.path) for seen in (folder, file) if seen.uid == user.uid]
            return f"chown {self.owner} {' '.join(taken)}"
        socket, around = Path(os.path.realpath(self.socket)), Path(folder.path)
        # the way to the socket must stay open to the peers, and /tmp and /srv to everybody
        is_own = folder.uid == self.owner and not folder.mode & stat.S_ISVTX
        if is_own and len(around.parts) > 2 and not socket.is_relative_to(around):
            return f"chmod 700 {shlex.quote(folder.path)}"
        closed = os.path.join(folder.path, "items")
        make = "" if os.path.isdir(closed) else f"mkdir -m 700 {shlex.quote(closed)} && "
        return f"{make}mv {shlex.quote(file.path)} {shlex.quote(closed)}/, and name that file"

    def _users(self) -> list[User]:
        """Return the peers as they may be now."""
        shared = self._groups_of_the_socket()
        return [User(uid, shared | _groups_of(uid)) for uid in sorted(self.peers)]

    def _groups_of_the_socket(self) -> frozenset[int]:
        """Return the groups that a user may need to reach the socket.

        The system may give them to a peer that no list of groups has in them, as systemd does
        (SupplementaryGroups) and whoever starts a container.
        """
        found = {os.getegid()}  # the socket will have it
        socket = Path(os.path.realpath(self.socket))
        for place in (socket, *socket.parents):
            try:
                seen = place.stat()
            except OSError:
                continue
            if place in (socket, socket.parent) or not seen.st_mode & stat.S_IXOTH:
                found.add(seen.st_gid)
        return frozenset(found)

    def _others_may_write(self, seen: Seen, *, is_passed: bool) -> bool:
        if not others_may_write(seen, self.owner, is_passed=is_passed):
            return False
        # a group that looks like the owner's alone may still be one that lets peers in
        private = [seen.gid] if not self.peers and _is_alone(self.owner, seen.gid) else []
        return others_may_write(seen, self.owner, private=private, is_passed=is_passed)

    def _unkept(self, seen: Seen) -> str:
        path = shlex.quote(seen.path)
        if seen.uid not in (0, self.owner):
            return (
                f"{seen} belongs to user {seen.uid}, who may write it, and is neither the agent's"
                f" user nor root: chown {self.owner} {path}"
            )
        return f"{seen} may be written by others than the agent's user: chmod go-w {path}"


def _may_reach(user: User, way: Way, right: Right | None = None) -> bool:
    """Return whether a user may search all folders of a way, and has a right at its end."""
    return all(may(user, each, Right.SEARCH) for each in way.folders) and (
        right is None or may(user, way.end, right)
    )


_ONE_FILE = (
    "is no file: where agent.toml names peers, name one file, so that the agent can see who may"
    " read it"
)


def _groups_of(uid: int) -> frozenset[int]:
    """Return the groups that the system lists for a user; none where it has no name."""
    import pwd

    try:
        known = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    return frozenset(os.getgrouplist(known.pw_name, known.pw_gid))


def _is_alone(uid: int, gid: int) -> bool:
    """Return whether a user is all that a group has, as where each user has a group of its own."""
    import grp
    import pwd

    try:
        name, members = pwd.getpwuid(uid).pw_name, set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return False
    members |= {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid}
    return members == {name}
