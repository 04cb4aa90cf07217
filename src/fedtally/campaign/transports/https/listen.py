"""The sockets on which a process serves HTTP: a Unix socket behind nginx, or a port of 127.0.0.1.

No other address is possible here, because the web server, uvicorn, must not be reachable by anybody
from the network: it never closes a connection that is silent before or within a request. The
helper's address for the leader is in `pinned`; its TLS admits only the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import uvicorn
import uvloop

from fedtally.errors import InvalidInputError

SOCKET_MODE = 0o660  # nginx must be in the group of the socket
BACKLOG = 2048  # the most connections that wait to be accepted
# After a response, the time after which this process closes an idle connection. It is longer than
# nginx's own 60 seconds: otherwise nginx could send a request to a connection that has just been
# closed.
KEEP_SECONDS = 75
CLOSE_SECONDS = 5  # when the server ends, the time for responses that are not sent yet
LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.1  # when the server ends, the time between two searches for idle connections
_MOST_PORT = 65_535

new_event_loop = uvloop.new_event_loop


@dataclass(frozen=True)
class Address:
    """The address on which a process listens: a Unix socket or a port of this machine.

    Args:
        path: the path of a Unix socket; None: the process listens on a port.
        port: the port on 127.0.0.1, used only without a path; 0: any free port.
    """

    path: Path | None
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address from a text: `unix:PATH` or `127.0.0.1:PORT`.

        Raises:
            InvalidInputError: the text has another form.
        """
        kind, _, rest = text.partition(":")
        if kind == "unix" and rest:
            return cls(Path(rest))
        if kind == LOOPBACK and re.fullmatch("[0-9]{1,5}", rest) and int(rest) <= _MOST_PORT:
            return cls(None, int(rest))
        raise InvalidInputError(
            f"cannot listen on {text!r}: give unix:PATH, which nginx reaches, or {LOOPBACK}:PORT"
            " for a try on this machine; no other address, since only nginx ends TLS"
        )

    def __str__(self) -> str:
        return f"{LOOPBACK}:{self.port}" if self.path is None else f"unix:{self.path}"

    @contextmanager
    def bound(self, take_over: bool = False) -> Iterator[Listening]:
        """Listen on the address while the `with` block runs.

        A Unix socket has a temporary path until `Listening.show` is called.

        Args:
            take_over: True: another process, which runs the same campaign, may still listen on the
                Unix socket. False: no other process may listen there.

        Yields:
            The socket.

        Raises:
            InvalidInputError: another process listens on the port; or on the Unix socket, and
                `take_over` is False; or the socket cannot be bound; or a file that is no socket has
                its path; or everybody may write to the folder of a Unix socket.
        """
        with contextlib.closing(self._bind(take_over)) as listening:
            yield listening

    def _bind(self, take_over: bool) -> Listening:
        try:
            if self.path is None:
                return Listening(_port_socket(self.port), self)
            _check_folder(self.path.parent)
            if _is_served(self.path) and not take_over:
                raise InvalidInputError(
                    f"another process listens on {self.path}: name a socket of this campaign alone"
                )
            # The temporary name is random. Otherwise two processes that start at the same moment
            # would bind the same path.
            hidden = self.path.with_name(f"{self.path.name}.{secrets.token_hex(3)}")
            return Listening(_path_socket(hidden), self, hidden)
        except OSError as error:
            raise InvalidInputError(
                f"cannot listen on {self} ({error.strerror or error}): name another address, or"
                f" {'make its folder' if _lacks_folder(error) else 'end what listens there'}"
            ) from None


@dataclass
class Listening:
    """A socket that listens.

    A Unix socket has a temporary path until `show` is called, so that an earlier process can serve
    clients until then.

    Args:
        socket: the socket.
        address: the address as it was given. If its port is 0, only `socket` knows the real one.
        hidden: the temporary path of a Unix socket; None: the socket listens on a port.
    """

    socket: socket.socket
    address: Address
    hidden: Path | None = None

    def show(self) -> None:
        """Move a Unix socket from its temporary path to the path of its address.

        The socket of an earlier process at this path is replaced. A port needs nothing.
        """
        if self.hidden is not None and self.address.path is not None:
            os.replace(self.hidden, self.address.path)

    def close(self) -> None:
        """Close the socket, and remove its temporary path.

        The path of the address is not removed: a later process may listen there already.
        """
        if self.hidden is not None:
            self.hidden.unlink(missing_ok=True)
        self.socket.close()


def _port_socket(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((LOOPBACK, port))
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _path_socket(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(os.fspath(path))
        path.chmod(SOCKET_MODE)  # before `listen`: otherwise others could connect for a moment
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _is_served(path: Path) -> bool:
    """Tell whether a process listens on a Unix socket.

    The result is False if there is no file at the path, or if the process of the socket has died.

    Raises:
        InvalidInputError: the file at the path is no socket.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInputError(f"{path} is there, and is no socket: name another path")
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as tried:
            try:
                tried.connect(os.fspath(path))
            except ConnectionRefusedError:
                return False
            return True
    return False


def _lacks_folder(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, NotADirectoryError))


def _check_folder(folder: Path) -> None:
    """Refuse to make a Unix socket in a folder to which everybody may write.

    In such a folder anybody could replace the socket by another one, and read the clients' tokens.
    A sticky folder is refused, too. The group's rights and the folders above are not checked.

    Raises:
        InvalidInputError: everybody may write to the folder.
        OSError: the folder is missing, or its status cannot be read.
    """
    if folder.stat().st_mode & stat.S_IWOTH:
        raise InvalidInputError(
            f"everybody may write {folder}, so that anybody could take the place of the socket, and"
            f" read tokens: chmod o-w {folder}, or name a socket elsewhere"
        )


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers; at its end it aborts idle TLS connections."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server. With TLS, abort each connection as soon as it is idle.

        To close a TLS connection, uvicorn waits until the other side ends TLS, too. An idle client
        does not do that.
        """
        closing = asyncio.create_task(self._close_idle()) if self.config.ssl else None
        try:
            await super().shutdown(sockets)
        finally:
            if closing is not None:
                closing.cancel()

    async def _close_idle(self) -> None:
        while True:
            # All are connections of uvicorn's class for httptools, which has these attributes.
            found: Iterable[Any] = self.server_state.connections
            for one in list(found):
                is_idle = one.cycle is None or one.cycle.response_complete
                # Without the second condition, the end of the last response could be lost.
                if is_idle and not one.transport.get_write_buffer_size():
                    one.transport.abort()
            await asyncio.sleep(_LOOK_SECONDS)


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's traceback of a request that was cut at the end of the server.

    uvicorn says in a line of its own how many requests it cut.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


@asynccontextmanager
async def served(
    app: Any, listening: socket.socket, tls: ssl.SSLContext | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve an ASGI application while the `with` block runs.

    Args:
        app: the application.
        listening: the socket that listens.
        tls: the TLS context of the server; None: without TLS, behind nginx.

    Yields:
        The task that serves. During the block, the task ends only if it fails. The end of the block
            then raises the error of the task.
    """
    config = uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    config.load()
    config.ssl = tls
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
    server = _Server(config)
    task = asyncio.create_task(server.serve([listening]))
    while not (server.started or task.done()):
        await asyncio.sleep(0)  # this loop is short, since the socket listens already
    try:
        yield task
    finally:
        server.should_exit = True
        await task
