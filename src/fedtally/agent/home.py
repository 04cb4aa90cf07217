"""Create the folder of a new agent with all its files; after an error nothing of it is left."""

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
    """Create the folder of a new agent, and return the agent's public key, 32 bytes.

    The folder gets a new private key, an empty record, and an agent.toml that the owner must
    complete. The empty subfolder `items` is for files of the owner.

    Another process carries bytes between the agent and a server. Its user must be in the group of
    the folder: the group may enter this folder and the subfolder `run`, where the agent's socket
    will be. Only the agent's own user may enter the other subfolders.

    Args:
        folder: the path of the folder, which does not exist yet or is empty.
        random: a function that returns the requested number of uniform bytes from a cryptographic
            source.

    Raises:
        InvalidInputError: the folder is not empty or cannot be created. Or a folder on its path may
            be written by a user who is neither root nor the user of this process. But a sticky
            folder such as /tmp is allowed: nobody can remove the files of others there.
    """
    from fedtally.store import ClientRecord  # imported here because it loads slowly

    # Without this check, a folder could be made in which the agent refuses to start.
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
