"""Which users of the machine may read, search or write the files of an agent.

A separate process carries bytes between server and agent. It handles input of strangers, so an
attacker may take it over. Its user is a peer: a user who may connect to the agent's socket. A peer
must not reach the agent's files.

`way_to` reads the status of a file, and of the folders on its path, from open descriptors. `may`
and `others_may_write` decide only from this status. `Permissions` refuses files that others may
write, and files of items that peers may read.
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

# Extended attributes that hold an ACL (access control list).
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_MOST_LINKS = 40  # the most symbolic links that Linux follows in one path


class Right(IntEnum):
    """A right to a file or a folder; the value is the bit for it in the file's mode.

    SEARCH of a folder is the right to open the entries in it.
    """

    SEARCH = 1
    WRITE = 2
    READ = 4


class User(NamedTuple):
    """A user of the machine, by number, and the numbers of all groups that the user may be in."""

    uid: int
    groups: frozenset[int]


class Seen(NamedTuple):
    """The status of a file, a folder or a symbolic link, as the system reported it.

    Attributes:
        path: the path at which it was found.
        uid: the number of its owner.
        gid: the number of its group.
        mode: its type and permissions, as `st_mode`.
        has_acl: whether it has an ACL, a list of rights of further users. False for a link.
        number: its device number and inode number, which tell files apart.
        links: the number of its hard links.
    """

    path: str
    uid: int
    gid: int
    mode: int
    has_acl: bool
    number: tuple[int, int]
    links: int = 1

    def __str__(self) -> str:
        return f"{self.path} (mode {stat.S_IMODE(self.mode):04o})"


def may(user: User, seen: Seen, right: Right) -> bool:
    """Return whether a user may have a right to a file or a folder; True also if it is uncertain.

    Two things are uncertain. A group in `user.groups` is one that the user may be in, so the user
    gets the rights of the group and the rights of others. An ACL (a list of rights of further
    users) may give any user the rights that the mode shows for the group.

    Root and the owner have every right, because they may change the mode.

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
    """Return whether anybody besides root and one user may write a file or a folder.

    A symbolic link can be changed only by its owner, so only its owner is compared.

    Args:
        seen: the status of the file, the folder or the link.
        owner: the number of the user who may write.
        private: the numbers of groups that have no member other than `owner`.
        is_passed: whether to return False for a sticky folder that others may write, like /tmp. In
            a sticky folder nobody can remove the files of others, but anybody can add files. True
            for folders that are only passed on the path to a file.
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
    """What the system visits on the path to a file or a folder. Each status is from an open
    descriptor.

    Attributes:
        passed: the status of every folder, symbolic link and file that is visited, in order; `end`
            is one of them.
        folders: the folders of the end's real path, from the root down, without the end.
        end: the status of the file or folder itself.
    """

    passed: list[Seen]
    folders: list[Seen]
    end: Seen


def check_system() -> None:
    """Raise an InvalidInputError if the system is not Linux."""
    if not sys.platform.startswith("linux"):
        raise InvalidInputError(
            "an agent runs on Linux: elsewhere the system does not say who connects (SO_PEERCRED)"
        )


@contextmanager
def way_to(path: Path) -> Iterator[Way]:
    """Yield the `Way` to a file or a folder.

    Within the context all that was visited stays open. So its inode numbers cannot be reused for
    other files.

    Raises:
        OSError: there is no such file, or a folder on the path may not be searched.
        InvalidInputError: the system does not say whether there is an ACL, or is not Linux.
    """
    check_system()
    passed: list[Seen] = []
    with ExitStack() as opened:

        def look(name: str, path: str, at: int | None) -> tuple[int, Seen]:
            # O_PATH needs no permission to read. Closing any other descriptor of a file would
            # release the locks that SQLite has on it in this process.
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
            # getxattr refuses a descriptor of O_PATH, but accepts its path in /proc.
            os.getxattr(f"/proc/self/fd/{handle}", name)
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
    """Checks of what other users of the machine may do with the files of an agent.

    Args:
        owner: the number of the agent's user. Files of root are accepted, too.
        peers: the numbers of the users who may connect to the agent, without `owner` and root.
        socket: the path of the agent's socket.
    """

    owner: int
    peers: frozenset[int]
    socket: Path

    @classmethod
    def of(cls, folder: Path, peers: Collection[int], socket: Path) -> Permissions:
        """Return the permissions of the agent in a folder.

        The owner is the user of this process. But if root runs this process, the owner is the user
        to whom the folder belongs. If the folder then belongs to a peer, the owner is root.

        Args:
            folder: the folder of the agent.
            peers: the numbers of the users who may connect to the agent.
            socket: the path of the agent's socket.

        Raises:
            OSError: there is no such folder.
        """
        holder = folder.stat().st_uid
        # If the folder belongs to a peer, root is the owner, and the peer's files are refused.
        owner = os.geteuid() or (0 if holder in peers else holder)
        return cls(owner, frozenset(peers) - {0, owner}, socket)

    def kept(self, own: Collection[Path] = (), others: Collection[Path] = ()) -> list[str]:
        """Return a message for each file, folder or link that other users may write; [] if they may
        write none.

        All folders and symbolic links on the paths are checked, too. A message includes the command
        that mends the fault. A file that is missing or cannot be reached is skipped: using it will
        raise an error. If the system gives any other error for a path, the message for this path is
        only the text of the error.

        Args:
            own: files and folders that the agent writes, or that must not disappear. The folder of
                such a file must not be writable by other users, even if the folder is sticky:
                anybody could add files there.
            others: files that the agent only reads.

        Raises:
            InvalidInputError: the system does not say whether there is an ACL, or is not Linux.
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
        """Return a message for each of these files that a peer may read.

        The list is empty if no peer may read any of the files, or if there are no peers. A message
        includes the command that mends the fault. A file that is missing, or that this process
        cannot reach, is skipped.

        Raises:
            InvalidInputError: the system does not say whether there is an ACL, or is not Linux.
        """
        found = []
        for path in paths if self.peers else ():
            with suppress(OSError):
                with way_to(path) as way:
                    readers = [user for user in self._users() if _may_reach(user, way, Right.READ)]
                if readers:
                    found.append(
                        f"user {readers[0].uid}, one of the peers, may read {way.end}, which may"
                        f" tell what is held: {self._own(way.end)}chmod 600"
                        f" {shlex.quote(way.end.path)}"
                    )
        return found

    def check_kept(self, path: Path) -> None:
        """Check that no other user may write a file that the agent reads, nor replace it.

        Raises:
            InvalidInputError: other users may write the file, or a folder or link on its path. The
                message names each of them, its mode, and a command that mends the fault. Or the
                system does not say whether there is an ACL, or is not Linux.
        """
        if problems := self.kept(others=[path]):
            raise InvalidInputError("; ".join(problems))

    def check_closed(self, path: Path) -> None:
        """Check that no peer may read a file of items, nor search the folder of the file.

        A peer who may search the folder sees the size of the file, and so the length of an item.
        The folder also protects the files that SQLite writes beside a database. Without peers
        nothing is checked, and no error is raised.

        Raises:
            InvalidInputError: a peer may read the file or search its folder. The message names the
                peer, the file or folder, its mode, and the way out. Or this cannot be told: the
                file has hard links, the file or its folder has an ACL, the path is no regular file,
                or there is nothing at the path.
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
        """Check a file of items before and after it is read in the `with` block.

        Both times the file is checked as by `check_closed`. The file after the block must also be
        the file from before the block. Without peers nothing is checked.

        Raises:
            InvalidInputError: a peer may read the file or search its folder, or this cannot be told
                (see `check_closed`).
            UnreadableFileError: the file is missing, or was replaced within the block. Or the block
                raised an OSError.
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
            file = error.filename or path  # the block may read files other than `path`
            raise UnreadableFileError(f"cannot read {file}: {error.strerror}") from None

    def _check_closed(self, way: Way) -> None:
        if not stat.S_ISREG(way.end.mode):
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
        """Return the advice in an error: how a user is kept from a file of items.

        The text begins with a command for a shell, which may need root.
        """
        if user.uid in (folder.uid, file.uid):
            taken = [shlex.quote(seen.path) for seen in (folder, file) if seen.uid == user.uid]
            return f"chown {self.owner} {' '.join(taken)}"
        socket, around = Path(os.path.realpath(self.socket)), Path(folder.path)
        # Closing a folder above the socket would shut out the peers, and closing /tmp or /srv would
        # shut out everybody.
        is_own = folder.uid == self.owner and not folder.mode & stat.S_ISVTX
        if is_own and len(around.parts) > 2 and not socket.is_relative_to(around):
            return f"chmod 700 {shlex.quote(folder.path)}"
        closed = os.path.join(folder.path, "items")
        make = "" if os.path.isdir(closed) else f"mkdir -m 700 {shlex.quote(closed)} && "
        return f"{make}mv {shlex.quote(file.path)} {shlex.quote(closed)}/, and name that file"

    def _users(self) -> list[User]:
        """Return the peers, in the order of the peers' numbers.

        Each peer has all groups that the peer may be in.
        """
        shared = self._groups_of_the_socket()
        return [User(uid, shared | _groups_of(uid)) for uid in sorted(self.peers)]

    def _groups_of_the_socket(self) -> frozenset[int]:
        """Return the numbers of the groups that a peer may need to reach the socket.

        A peer may be in them even if the system's list of groups does not say so. For example,
        systemd (SupplementaryGroups) or a container can add groups to a process.
        """
        found = {os.getegid()}  # the group of a socket that does not exist yet
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
        # With peers, even a group without other listed members may let a peer in, see
        # `_groups_of_the_socket`.
        private = [seen.gid] if not self.peers and _is_alone(self.owner, seen.gid) else []
        return others_may_write(seen, self.owner, private=private, is_passed=is_passed)

    def _own(self, seen: Seen) -> str:
        """Return how a file of another user is given to the agent's user; "" if it is that user's.

        A command in a message sets the mode 600, by which only the owner of the file may read it.
        So the agent's user must own the file first.
        """
        if seen.uid == self.owner:
            return ""
        chown = f"chown {self.owner} {shlex.quote(seen.path)}"
        return f"it belongs to user {seen.uid}, so as root {chown} && "

    def _unkept(self, seen: Seen) -> str:
        path = shlex.quote(seen.path)
        if seen.uid not in (0, self.owner):
            return (
                f"{seen} belongs to user {seen.uid}, who may write it, and is neither the agent's"
                f" user nor root: chown {self.owner} {path}"
            )
        return f"{seen} may be written by others than the agent's user: chmod go-w {path}"


def _may_reach(user: User, way: Way, right: Right | None = None) -> bool:
    """Return whether a user may search all folders of a way, and has a right to the file at its
    end.

    If `right` is None, only the folders count.
    """
    return all(may(user, each, Right.SEARCH) for each in way.folders) and (
        right is None or may(user, way.end, right)
    )


_ONE_FILE = (
    "is no file: where agent.toml names peers, name one file, so that the agent can see who may"
    " read it"
)


def _groups_of(uid: int) -> frozenset[int]:
    """Return the numbers of a user's groups; an empty set if the system does not know the user."""
    import pwd

    try:
        known = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    return frozenset(os.getgrouplist(known.pw_name, known.pw_gid))


def _is_alone(uid: int, gid: int) -> bool:
    """Return whether a user is the only member of a group, by the system's lists.

    Many systems give each user such a group.
    """
    import grp
    import pwd

    try:
        name, members = pwd.getpwuid(uid).pw_name, set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        return False
    members |= {user.pw_name for user in pwd.getpwall() if user.pw_gid == gid}
    return members == {name}
