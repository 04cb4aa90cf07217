"""What another user of this machine may do with a file, tried by a process of theirs."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(name="place")
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own are closed."""
    with tempfile.TemporaryDirectory() as made:
        found = Path(made).resolve()
        found.chmod(0o755)
        if not all(folder.stat().st_mode & stat.S_IXOTH for folder in found.parents):
            pytest.skip("others may not enter the folder for temporary files")
        yield found


def as_user(uid: int, groups: list[int], ask: Callable[[], bool]) -> bool:
    """Return what a process of another user finds; only root can be one."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            os._exit(int(ask()))
        finally:
            os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return bool(code)
