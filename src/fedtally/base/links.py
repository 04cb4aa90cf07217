"""Resolve paths without following a symbolic link that another user may have planted.

Linux refuses to follow such links in folders like /tmp (`fs.protected_symlinks`). But a program
that replaces a file in one step must resolve the links of its path itself. Then it must check them
itself, too.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from fedtally.errors import InvalidInputError

_MOST_LINKS = 40  # the most links that Linux follows in one path
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path without symbolic links. The file need not exist.

    A link is followed if it belongs to this user or root. It is also followed if its folder belongs
    to this user or root and nobody else may write to the folder.

    Raises:
        InvalidInputError: a link is not followed, or the path has more than 40 links.

    >>> real_path("/./").parts
    ('/',)
    """
    left = list(reversed(Path(path).absolute().parts))
    place, links = left.pop(), 0
    while left:
        part = left.pop()
        if part == os.pardir:
            place = os.path.dirname(place)
            continue
        folder, place = place, os.path.join(place, part)
        try:
            found = os.lstat(place)
        except OSError:  # nothing is there; any other error is reported when the file is written
            continue
        if not stat.S_ISLNK(found.st_mode):
            continue
        links += 1
        if links > _MOST_LINKS:
            raise InvalidInputError(f"cannot use {path}: {os.strerror(errno.ELOOP)}")
        _check_followed(place, found, os.stat(folder))
        target = Path(os.readlink(place))
        left += reversed(target.parts)
        # An absolute target has the root as its first part. A relative one starts in the folder.
        place = left.pop() if target.is_absolute() else folder
    return Path(place)


def _check_followed(link: str, found: os.stat_result, folder: os.stat_result) -> None:
    # Windows has no user ids: there every file is user 0's.
    trusted = {0, os.geteuid() if hasattr(os, "geteuid") else 0}
    if found.st_uid in trusted:
        return
    if folder.st_uid in trusted and not folder.st_mode & _OTHERS_WRITE:
        return
    raise InvalidInputError(
        f"{link} is a link of user {found.st_uid} to {os.readlink(link)!r}, in a folder that others"
        " may write, and is not followed: name the file that it leads to"
    )
