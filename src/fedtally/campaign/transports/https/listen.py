"""Where a campaign over HTTPS listens: a Unix socket behind nginx, or a port of this machine alone.

uvicorn is never on the open network: it waits for silent connections for ever.
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

SOCKET_MODE = 0o660  # nginx is in the group
BACKLOG = 2048
KEEP_SECONDS = 75  # nginx closes idle connections to this process after 60 seconds
CLOSE_SECONDS = 5  # at the end, for responses that are on their way
LOOPBACK = "127.0.0.1"
_LOOK_SECONDS = 0.1  # between looks for connections that idle, at the end
_MOST_PORT = 65_535

new_event_loop = uvloop.new_event_loop


@dataclass(frozen=True)
class Address:
    """Where to listen.

    Args:
        path: the Unix socket; None: a port.
        port: the port on this machine.
    """

    path: Path | None
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address in an option.

        Raises:
            InvalidInputError: it is another one, as of the open network.
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
        """Give what is bound to the address; it is closed at the end.

        Args:
            take_over: whether another process of the campaign may listen there.

        Raises:
            InvalidInputError: another process listens there, or the address cannot be had.
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
            # Another process may start at the same moment: no two have the same name.
            hidden = self.path.with_name(f"{self.path.name}.{secrets.token_hex(3)}")
            return Listening(_path_socket(hidden), self, hidden)
        except OSError as error:
            raise InvalidInputError(
                f"cannot listen on {self} ({error.strerror or error}): name another address, or"
                f" {'make its folder' if _lacks_folder(error) else 'end what listens there'}"
            ) from None


@dataclass
class Listening:
    """A socket that listens, and has its name once it was shown.

    Args:
        socket: the socket.
        address: its address.
        hidden: the name of a Unix socket until it is shown.
    """

    socket: socket.socket
    address: Address
    hidden: Path | None = None

    def show(self) -> None:
        """Give a Unix socket its name, in the place of that of an earlier process."""
        if self.hidden is not None and self.address.path is not None:
            os.replace(self.hidden, self.address.path)

    def close(self) -> None:
        """Close the socket; a name that a later process has taken stays."""
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
        path.chmod(SOCKET_MODE)  # before anybody can connect: it does not listen yet
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _is_served(path: Path) -> bool:
    """Tell whether a process listens on a Unix socket; refuse what is none."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInputError(f"{path} is there, and is no socket: name another path")
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as tried:
            try:
                tried.connect(os.fspath(path))
            except ConnectionRefusedError:
                return False  # a process that died left it
            return True
    return False


def _lacks_folder(error: OSError) -> bool:
    return isinstance(error, (FileNotFoundError, NotADirectoryError))


def _check_folder(folder: Path) -> None:
    """Refuse a folder in which anybody could put a socket of theirs, which then gets the tokens."""
    if folder.stat().st_mode & stat.S_IWOTH:
        raise InvalidInputError(
            f"everybody may write {folder}, so that anybody could take the place of the socket, and"
            f" read tokens: chmod o-w {folder}, or name a socket elsewhere"
        )


class _Server(uvicorn.Server):
    """A server whose process hears signals by itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; a connection that idles is closed at once, also one that idles from now on.

        Whoever closes TLS waits for the word of the other end, and a client that asks nothing just
        then does not listen for it.
        """
        closing = asyncio.create_task(self._close_idle()) if self.config.ssl else None
        try:
            await super().shutdown(sockets)
        finally:
            if closing is not None:
                closing.cancel()

    async def _close_idle(self) -> None:
        while True:
            found: Iterable[Any] = self.server_state.connections  # all of httptools
            for one in list(found):
                is_idle = one.cycle is None or one.cycle.response_complete
                # of a response that was just written nothing may be lost
                if is_idle and not one.transport.get_write_buffer_size():
                    one.transport.abort()
            await asyncio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def served(
    app: Any, listening: socket.socket, tls: ssl.SSLContext | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve an application while the block runs; give the task, which ends only if it fails.

    Args:
        app: an ASGI application.
        listening: the socket that it listens on.
        tls: how it meets who connects; None: without TLS, behind nginx.
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
        await asyncio.sleep(0)  # a few turns: the socket listens already
    try:
        yield task
    finally:
        server.should_exit = True
        await task
