"""Serve agents on Unix sockets of this machine, with limits on users, time and connections.

The kernel reports the user of the process at the other end of a connection (`SO_PEERCRED`). The
owner and the group of a socket may connect to it (mode 0660). Only the owner may write the socket's
folder. Connections are independent: a slow or silent connection does not delay the others. One
process may serve many agents, each on its own socket.

An agent computes its answers in the event loop, which each answer blocks for some milliseconds.
Threads would use much more CPU in a process with many agents: at each write of a record, they would
compete with the loop for the interpreter's lock. Only the items are read and encoded in a thread.
An answer that needs the items delays only its own connection.
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
MOST_CONNECTIONS = 16  # for one agent; one more closes the connection that was silent for longest
FRAME_SECONDS = 30  # time limit for receiving the rest of a frame, and for sending an answer
SWEEP_SECONDS = 60  # seconds between two searches for expired sessions, whose secrets are wiped
_LONGEST_PATH = 107  # the most bytes of a socket's path on Linux (struct sockaddr_un)
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(eq=False)
class _Connection:
    """A connection to an agent.

    Attributes:
        task: the task that serves the connection.
        since: when the connection was made, or when a frame was received or an answer sent,
            whichever was last. In seconds of a monotonic clock.
    """

    task: asyncio.Task[None]
    since: float = field(default_factory=time.monotonic)
    is_busy: bool = False  # whether an answer is being sent


class Served:
    """An agent that is being served on a socket, until `stop` is called; `serve` returns it."""

    def __init__(
        self,
        agent: Agent,
        path: Path,
        peers: Collection[int],
        log: Callable[[Note], None],
        clock: Callable[[], float],
    ) -> None:
        self._agent, self._path, self._log, self._clock = agent, path, log, clock
        # Root has all rights of the agent's user anyway, so refusing root would protect nothing.
        self._peers = frozenset({0, os.getuid(), *peers})
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._lock = -1
        self._is_stopping = False

    async def start(self) -> None:
        """Start to listen on the socket, and to wipe expired sessions every `SWEEP_SECONDS`."""
        _check_folder(self._path)
        self._lock = _locked(self._path)
        try:
            listening = _bound(self._path)
            # asyncio accepts up to `backlog` connections in a row before it runs their tasks. If
            # they were many, they would use up the process's limit of open files, and the record
            # could not be opened.
            self._server = await asyncio.start_unix_server(
                self._connected, sock=listening, backlog=MOST_CONNECTIONS
            )
        except BaseException:
            os.close(self._lock)
            raise
        self._sweeper = asyncio.create_task(self._sweep())

    async def stop(self) -> None:
        """Close the socket and its connections, wipe the agent's secrets, and remove the socket
        file.

        A second call does nothing, and does not wait for the first. The lock file stays.
        """
        if self._server is None:
            return
        server, self._server, self._is_stopping = self._server, None, True
        server.close()
        tasks = [connection.task for connection in self._connections]
        if self._sweeper is not None:
            tasks.append(self._sweeper)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._agent.close()
        with suppress(OSError):
            os.unlink(self._path)
        os.close(self._lock)  # last: otherwise `unlink` could remove another agent's new socket

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
            while not self._is_stopping:  # a task of a connection may begin after `stop` did
                connection.since, connection.is_busy = time.monotonic(), False
                frame = await read_frame(reader, self._agent.most_bytes, FRAME_SECONDS)
                # The silence of the connection begins anew here. While it waits for items, it may
                # be closed to make room for another one, but only after the connections that were
                # silent for longer.
                connection.since = time.monotonic()
                while isinstance(answer := self._agent.answer(frame, self._clock()), Reading):
                    await _over(answer)
                connection.is_busy = True
                async with asyncio.timeout(FRAME_SECONDS):
                    await write_frame(writer, answer or b"")
        except PipeClosedError:
            pass  # the peer closed the connection, the normal end
        except (PipeError, TimeoutError) as error:
            self._log(Note(f"closed a connection: {error or 'its peer takes no answer'}"))
        except asyncio.CancelledError:
            pass  # cancelled by `_close_silent` or `stop`; nothing else awaits this task
        finally:
            self._connections.discard(connection)
            writer.close()

    def _close_silent(self) -> None:
        """Close connections until `MOST_CONNECTIONS` are left, those that were silent for longest
        first.

        A connection on which an answer is being sent is not closed.
        """
        waiting = (one for one in self._connections if not one.is_busy)
        spare = max(0, len(self._connections) - MOST_CONNECTIONS)
        for connection in sorted(waiting, key=lambda one: one.since)[:spare]:
            # Removed now, because its task ends later. Otherwise several new connections at the
            # same time would all choose this connection.
            self._connections.discard(connection)
            connection.task.cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._agent.expire(self._clock())


async def _over(reading: Reading) -> None:
    """Wait until a reading of items is over, without blocking the event loop."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # raised if the loop is closed already
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
    """Start to serve an agent on a Unix socket. Call `stop` of the returned object to end it.

    Args:
        agent: the agent; nothing else may use it at the same time.
        path: the path of the socket. If its folder does not exist, it is created with mode 0750.
        peers: the numbers of the users who may connect. Root and the user of this process always
            may.
        log: called with a note, for the owner, about each connection that is refused or fails.
        clock: returns the time, Unix seconds.

    Raises:
        InvalidInputError: other users may write the folder. Or the folder or the socket cannot be
            created, for example because the path is longer than 107 bytes. Or another agent uses
            the socket. Or the path exists and is no socket. Or the system is not Linux.
    """
    served = Served(agent, Path(path), peers, log, clock)
    await served.start()
    return served


def _check_folder(path: Path) -> None:
    """Create the folder of the socket if it is missing, and check that only its owner may write it.

    Whoever may write the folder could replace the socket by another one.

    Raises:
        InvalidInputError: other users may write the folder, the folder cannot be created, the path
            of the socket is too long, or the system is not Linux.
    """
    check_system()
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise InvalidInputError(
            f"the path of a socket may have {_LONGEST_PATH} bytes, got {len(os.fsencode(path))} in"
            f" {path}: name a shorter one, such as /run/fedtally/agent.sock"
        )
    try:
        if not path.parent.exists():
            path.parent.mkdir()
            path.parent.chmod(FOLDER_MODE)  # mkdir applies the umask; the group must have access
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
    """Lock the file `{path}.lock`, and return its file descriptor.

    The lock lasts until the descriptor is closed or the process ends.

    Raises:
        InvalidInputError: another agent has the lock, or the file cannot be opened.
    """
    # A lock is needed, because a socket file stays when its agent dies, so the file does not show
    # that an agent listens. The kernel releases a lock when the process ends.
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
    """Return a new listening socket on a path.

    If the path has a socket file already, its agent is dead, because the caller has the lock. The
    file is replaced.

    Raises:
        InvalidInputError: the path exists and is no socket, or the socket cannot be created.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInputError(f"{path} is there, and is no socket: name another path")
        path.unlink()
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        made.bind(os.fspath(path))
        path.chmod(SOCKET_MODE)  # before `listen`: until then nobody can connect
        made.listen(MOST_CONNECTIONS)
    except OSError as error:
        made.close()
        raise InvalidInputError(
            f"cannot make the socket {path} ({error.strerror}): name a folder that the agent's user"
            " may write"
        ) from None
    return made


def _user_of(writer: asyncio.StreamWriter) -> int:
    """Return the number of the user who connected.

    The kernel recorded it when the connection was made.
    """
    peer = writer.get_extra_info("socket")
    _, uid, _ = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(uid)
