"""The sockets of processes that serve HTTP: a Unix socket behind nginx, or a port of this machine.

The web server uvicorn must not be reachable from the network, because it never closes connections
that stay silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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

SOCKET_MODE = 0o660  # nginx must be in the socket's group
BACKLOG = 2048
KEEP_SECONDS = 75  # nginx closes idle connections to this process after 60 seconds
CLOSE_SECONDS = 5  # at the end, the time for responses that are not sent yet
LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.1  # at the end, the time between two searches for idle connections
_MOST_PORT = 65_535

new_event_loop = uvloop.new_event_loop


@dataclass(frozen=True)
class Address:
    """The address on which a process listens.

    Args:
        path: the path of a Unix socket; None: the process listens on a port.
        port: the port on 127.0.0.1, if there is no path.
    """

    path: Path | None
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address in the text of an option, `unix:PATH` or `127.0.0.1:PORT`.

        Raises:
            InvalidInputError: the text is no such address.
        """
        kind, _, rest = text.partition(":")
        if kind == "unix" and rest:
            return cls(Path(rest))
        if kind == LOOPBACK and rest.isascii() and rest.isdigit() and int(rest) <= _MOST_PORT:
            return cls(None, int(rest))
        raise InvalidInputError(
            f"cannot listen on {text!r}: give unix:PATH, which nginx reaches, or {LOOPBACK}:PORT"
            " for a try on this machine; no other address, since only nginx ends TLS"
        )

    def __str__(self) -> str:
        return f"{LOOPBACK}:{self.port}" if self.path is None else f"unix:{self.path}"

    @contextmanager
    def bound(self, take_over: bool = False) -> Iterator[Listening]:
        """Listen on the address while the `with` block runs; the context yields the socket.

        Args:
            take_over: whether an earlier process of the campaign may still listen on the address.

        Raises:
            InvalidInputError: another process listens on the address, or it cannot be bound.
        """
        with contextlib.closing(self._bind(take_over)) as listening:
            yield listening

    def _bind(self, take_over: bool) -> Listening:
        try:
            if self.path is None:
                return Listening(_port_socket(self.port), self)
            _check_folder(self.path.parent)
            if not take_over and _is_served(self.path):
                raise InvalidInputError(
                    f"another process listens on {self.path}: name a socket of this campaign alone"
                )
            # The temporary name is random, since another process may start at the same moment.
            hidden = self.path.with_name(f"{self.path.name}.{secrets.token_hex(3)}")
            return Listening(_path_socket(hidden), self, hidden)
        except OSError as error:
            raise InvalidInputError(
                f"cannot listen on {self} ({error.strerror or error}): name another address, or"
                f" {'make its folder' if _lacks_folder(error) else 'end what listens there'}"
            ) from None


@dataclass
class Listening:
    """A socket that listens. A Unix socket has a temporary path until `show` is called.

    Args:
        socket: the socket.
        address: the address that clients, or nginx, connect to.
        hidden: the temporary path of a Unix socket; None: the socket listens on a port.
    """

    socket: socket.socket
    address: Address
    hidden: Path | None = None

    def show(self) -> None:
        """Move a Unix socket to the path of its address, over the socket of an earlier process."""
        if self.hidden is not None and self.address.path is not None:
            os.replace(self.hidden, self.address.path)

    def close(self) -> None:
        """Close the socket. The path of its address stays, since a later process may use it."""
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
        path.chmod(SOCKET_MODE)  # before `listen`, so that nobody can connect earlier
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _is_served(path: Path) -> bool:
    """Tell whether a process listens on a Unix socket; False if there is no file.

    Raises:
        InvalidInputError: the file is no socket.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInputError(f"{path} is there, and is no socket: name another path")
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as tried:
            try:
                tried.connect(os.fspath(path))
            except ConnectionRefusedError:
                return False  # the socket's process has died
            return True
    return False


def _lacks_folder(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, NotADirectoryError))


def _check_folder(folder: Path) -> None:
    """Refuse a folder to which everybody may write.

    Anybody could put another socket in the place of this one, and read the clients' tokens.
    """
    if folder.stat().st_mode & stat.S_IWOTH:
        raise InvalidInputError(
            f"everybody may write {folder}, so that anybody could take the place of the socket, and"
            f" read tokens: chmod o-w {folder}, or name a socket elsewhere"
        )


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its process, and closes idle TLS connections."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server. With TLS, connections are aborted as soon as they are idle.

        An orderly end of TLS would wait for the other side, and an idle client does not answer.
        """
        closing = asyncio.create_task(self._close_idle()) if self.config.ssl else None
        try:
            await super().shutdown(sockets)
        finally:
            if closing is not None:
                closing.cancel()

    async def _close_idle(self) -> None:
        while True:
            found: Iterable[Any] = self.server_state.connections  # all are of uvicorn's httptools
            for one in list(found):
                is_idle = one.cycle is None or one.cycle.response_complete
                # a connection is kept until its last response is sent completely
                if is_idle and not one.transport.get_write_buffer_size():
                    one.transport.abort()
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def served(
    app: Any, listening: socket.socket, tls: ssl.SSLContext | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve an application while the `with` block runs.

    The context yields the task that serves. During the block, the task ends only if it fails.

    Args:
        app: an ASGI application.
        listening: the socket that listens.
        tls: the TLS context of the server; None: no TLS, behind nginx.
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
    server = _Server(config)
    task = asyncio.create_task(server.serve([listening]))
    while not (server.started or task.done()):
        await asyncio.sleep(0)  # only a few turns of the event loop, as the socket listens already
    try:
        yield task
    finally:
        server.should_exit = True
        await task
