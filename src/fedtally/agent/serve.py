"""Agents on Unix sockets of this machine: who may connect, how long, and how much.

A socket has mode 0660, in a folder that nobody but its owner may write. A peer is known by its user
(`SO_PEERCRED`), which the kernel vouches for. Each connection is read and written by itself: a slow
or silent peer keeps nobody waiting. One process may serve many agents.

An agent answers between two steps of the event loop, which waits for it some milliseconds. A thread
for all of it would cost much more CPU where one process serves many agents: it and the loop would
take the interpreter's lock from each other at each write of a record. Only the items are read and
encoded in a thread: an answer that needs them waits for that, on its own connection alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedtally.agent.agent import Agent, Note
from fedtally.agent.permissions import check_system, others_may_write, way_to
from fedtally.agent.reading import Reading
from fedtally.campaign.transports.pipe import PipeClosedError, PipeError, read_frame, write_frame
from fedtally.errors import InvalidInputError

SOCKET_MODE, FOLDER_MODE = 0o660, 0o750
MOST_CONNECTIONS = 16  # of one agent; beyond it the one that was silent for longest is closed
FRAME_SECONDS = 30  # for the rest of a frame that has begun, and for an answer to be taken
SWEEP_SECONDS = 60  # how often secrets of sessions whose time is over are wiped
_LONGEST_PATH = 107  # bytes of a name in struct sockaddr_un on Linux
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(eq=False)
class _Connection:
    """A connection, and when it last began to be silent."""

    task: asyncio.Task[None]
    since: float = field(default_factory=time.monotonic)
    is_busy: bool = False  # an answer is there that it has not taken yet


class Served:
    """An agent on its socket; made by `serve`."""

    def __init__(
        self,
        agent: Agent,
        path: Path,
        peers: Collection[int],
        log: Callable[[Note], None],
        clock: Callable[[], float],
    ) -> None:
        self._agent, self._path, self._log, self._clock = agent, path, log, clock
        # root can do all that the agent's own user can: to refuse it would protect from nothing
        self._peers = frozenset({0, os.getuid(), *peers})
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._lock = -1

    async def start(self) -> None:
        """Listen."""
        _check_folder(self._path)
        self._lock = _locked(self._path)
        try:
            listening = _bound(self._path)
            # asyncio accepts so many at a time before it looks at those that it has. More would
            # take the open files that the record needs.
            self._server = await asyncio.start_unix_server(
                self._connected, sock=listening, backlog=MOST_CONNECTIONS
            )
        except BaseException:
            os.close(self._lock)
            raise
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Close socket and connections, and wipe the agent's secrets."""
        if self._server is None:
            return
        self._server.close()
        tasks = [connection.task for connection in self._connections]
        if self._sweeper is not None:
            tasks.append(self._sweeper)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._agent.close()
        with suppress(OSError):
            os.unlink(self._path)
        os.close(self._lock)  # last: nobody else may bind the name before
        self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(task)
        try:
            uid = _user_of(writer)
            if uid not in self._peers:
                self._log(Note(f"refused a connection of user {uid}, who is not among the peers"))
                return
            self._connections.add(connection)
            self._close_silent()
            while True:
                connection.since, connection.is_busy = time.monotonic(), False
                frame = await read_frame(reader, self._agent.most_bytes, FRAME_SECONDS)
                # Who waits for items may be closed to make room, after those who send nothing.
                connection.since = time.monotonic()
                while isinstance(answer := self._agent.answer(frame, self._clock()), Reading):
                    await _over(answer)
                connection.is_busy = True
                async with asyncio.timeout(FRAME_SECONDS):
                    await write_frame(writer, answer or b"")
        except PipeClosedError:
            pass  # the ordinary end
        except (PipeError, TimeoutError) as error:
            self._log(Note(f"closed a connection: {error or 'its peer takes no answer'}"))
        except asyncio.CancelledError:
            pass  # closed to make room, or at the end: the task is the connection's own
        finally:
            self._connections.discard(connection)
            writer.close()

    def _close_silent(self) -> None:
        """Close the connections that were silent for longest, if there are too many."""
        waiting = (one for one in self._connections if not one.is_busy)
        spare = max(0, len(self._connections) - MOST_CONNECTIONS)
        for connection in sorted(waiting, key=lambda one: one.since)[:spare]:
            # At once: its task ends later, and many that connect together would all choose it.
            self._connections.discard(connection)
            connection.task.cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._agent.expire(self._clock())


async def _over(reading: Reading) -> None:
    """Wait until a reading is over, while the loop goes on."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(over.set)

    reading.when_over(tell)
    with suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), reading.left)
    await asyncio.sleep(reading.left)


async def serve(
    agent: Agent,
    path: str | os.PathLike[str],
    *,
    peers: Collection[int] = (),
    log: Callable[[Note], None] = lambda note: None,
    clock: Callable[[], float] = time.time,
) -> Served:
    """Serve an agent on a Unix socket, until `stop` of what this returns.

    Args:
        agent: the agent, of which nobody else makes use meanwhile.
        path: the path of the socket. Its folder is made, with mode 0750, if it is not there.
        peers: the users who may connect, by number, besides the own one and root.
        log: takes what the owner should know.
        clock: returns the time, Unix seconds.

    Raises:
        InvalidInputError: the folder may be written by others, another agent runs on the socket,
            something else has its name, or the system does not say who connects.
    """
    served = Served(agent, Path(path), peers, log, clock)
    await served.start()
    return served


def _check_folder(path: Path) -> None:
    """Refuse a folder in which others could put a socket of their own in the place of this one."""
    check_system()
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise InvalidInputError(
            f"the path of a socket may have {_LONGEST_PATH} bytes, got {len(os.fsencode(path))} in"
            f" {path}: name a shorter one, such as /run/fedtally/agent.sock"
        )
    try:
        if not path.parent.exists():
            path.parent.mkdir()
            path.parent.chmod(FOLDER_MODE)  # whatever the umask, so that its group may enter
        with way_to(path.parent) as way:
            found = way.end
    except OSError as error:
        raise InvalidInputError(
            f"cannot make the folder of the socket {path} ({error.strerror}): make it, and give it"
            " to the agent's user"
        ) from None
    if found.uid not in (0, os.geteuid()):
        raise InvalidInputError(
            f"{found} belongs to user {found.uid}, who could put a socket of their own there: run"
            " the agent as that user, or name a socket in a folder of its own user"
        )
    if others_may_write(found, os.geteuid()):
        raise InvalidInputError(
            f"{found} of user {found.uid} may be written by others, who could put a socket of their"
            f" own there: chmod {FOLDER_MODE:o} it, as the agent's user"
        )


def _locked(path: Path) -> int:
    """Take the lock of a socket's name; return its file, open for as long as the agent runs."""
    # A socket file says nothing of whether somebody listens: it stays when its agent dies. The
    # kernel gives up a lock with its process.
    name = f"{path}.lock"
    try:
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidInputError(
            f"cannot open the lock {name} ({error.strerror}): it is a file of the agent's user; if"
            " something else has its name, remove that while no agent runs"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InvalidInputError(
            f"an agent runs on {path} already: stop it first, or name another socket"
        ) from None
    return handle


def _bound(path: Path) -> socket.socket:
    """Return a socket of that name that listens, in the place of one that a dead agent left."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInputError(f"{path} is there, and is no socket: name another path")
        path.unlink()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        made.bind(os.fspath(path))
        path.chmod(SOCKET_MODE)  # before anybody can connect: it does not listen yet
        made.listen(MOST_CONNECTIONS)
    except OSError as error:
        made.close()
        raise InvalidInputError(
            f"cannot make the socket {path} ({error.strerror}): name a folder that the agent's user"
            " may write"
        ) from None
    return made


def _user_of(writer: asyncio.StreamWriter) -> int:
    """Return the user on the other side, as the kernel noted it when they connected."""
    peer = writer.get_extra_info("socket")
    _, uid, _ = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(uid)
