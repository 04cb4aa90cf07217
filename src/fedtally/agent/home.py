"""The folder of an agent: create its files with their modes, all or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedtally.agent.permissions import Permissions
from fedtally.agent.serve import FOLDER_MODE
from fedtally.agent.settings import FILE, TEMPLATE
from fedtally.campaign.key_files import Role, create_key_files
from fedtally.errors import InvalidInputError


def create(folder: Path, random: Callable[[int], bytes]) -> bytes:
    """Make the folder of a new agent: key, empty record, agent.toml; return its public key.

    A process that carries bytes is in the folder's group. It may enter this folder and the
    subfolder of the socket. Only the agent's own user may enter the other subfolders. The subfolder
    `items` is empty, for the owner's files.

    Args:
        folder: the path of a new or an empty folder.
        random: a function that returns the requested number of uniform bytes from a cryptographic
            source.

    Raises:
        InvalidInputError: the folder is not empty or cannot be made, or other users than this
            process's may write a folder around it.
    """
    from fedtally.store import ClientRecord  # imported here because it loads slowly

    # checked first, because the agent would refuse to start in such a folder
    around = Permissions(os.geteuid(), frozenset(), folder / "run" / "agent.sock")
    if problems := around.kept(others=[folder.absolute().parent]):
        raise InvalidInputError(f"{'; '.join(problems)}; or name a folder in a place of your own")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidInputError(
                f"{folder} is not empty, and an agent's files are never overwritten: name a new"
                " folder"
            )
        made = Path(tempfile.mkdtemp(prefix=".fedtally-agent-", dir=folder.absolute().parent))
        try:
            for name in ("key", "record", "campaigns", "items"):
                (made / name).mkdir(mode=0o700)
            (made / "run").mkdir()
            (made / "run").chmod(FOLDER_MODE)
            public = create_key_files(made / "key" / "agent.key", Role.CLIENT, random).value
            ClientRecord.open(
                made / "record" / "record.db", create=True, mark=made / "key" / "record.mark"
            )
            (made / FILE).write_text(TEMPLATE, encoding="utf-8")
            (made / FILE).chmod(0o600)
            made.chmod(FOLDER_MODE)
            os.replace(made, folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise InvalidInputError(
            f"cannot make {folder} ({error.strerror}): name a folder whose parent is there and"
            " writable"
        ) from None
    return public
