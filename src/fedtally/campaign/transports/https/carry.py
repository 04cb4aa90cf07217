"""The network part of a client's commands `join` and `report`.

`carry` passes frames between a server and the socket of an agent. `report` sends a report to two
servers. SIGTERM or Ctrl-C cancels each of them.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import ssl
import stat
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import closing
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import httpx

from fedtally.campaign.transports.https.join import (
    LIMITS,
    MOST_BYTES,
    TIMEOUT,
    TOKEN,
    Over,
    join,
)
from fedtally.campaign.transports.https.reporting import (
    AGAIN,
    HOURLY,
    Beginning,
    Never,
    Sending,
    carried,
)
from fedtally.campaign.transports.pipe import read_frame, write_frame
from fedtally.errors import InvalidInputError, MissingExtraError, UnreadableFileError
from fedtally.secagg.two_server import Side
from fedtally.store import Fate, Unsent

ANSWER_SECONDS = 300.0  # the time for an answer of the agent, which may have to read its items
_CAMPAIGN = re.compile(r"(/.*)?/v1/campaigns/[0-9a-f]{64}/?")
_SERVER = re.compile(r"(/(?!v1(/|$))[^/]+)*/?")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_T = TypeVar("_T")


class Left(Enum):
    """The reason why a report stays in the outbox of the client's record."""

    TOLD = "stopped"
    LATER = "a server did not take the report yet"


class _LaterError(Exception):
    """Say that a wait is needed, but `report` was called without `waits`."""


def checked_url(url: str) -> str:
    """Return the URL of a campaign, without a slash at its end.

    Raises:
        InvalidInputError: the text is no URL of a campaign, or is http and not of this machine.
    """
    if not _CAMPAIGN.fullmatch(safe_parts(url).path):
        raise InvalidInputError(
            f"{url!r} is no address of a campaign: give https://HOST/v1/campaigns/FINGERPRINT, with"
            " the 64 hexadecimal digits of the plan (http on this machine alone)"
        )
    return url.rstrip("/")


def checked_servers(leader: str, helper: str) -> dict[Side, str]:
    """Return the URLs of two servers, without a slash at their ends.

    Raises:
        InvalidInputError: a text is no URL of a server, or is http and not of this machine; or both
            URLs are the same.
    """
    given: dict[Side, str] = {"leader": leader, "helper": helper}
    for side, url in given.items():
        parts = safe_parts(url)
        if not parts.hostname or parts.query or parts.fragment or not _SERVER.fullmatch(parts.path):
            raise InvalidInputError(
                f"{url!r} is no address of a {side}: give https://HOST, without the path of a plan"
                " (http on this machine alone)"
            )
        given[side] = url.rstrip("/")
    if given["leader"] == given["helper"]:
        raise InvalidInputError(
            f"{leader!r} is given for both servers: a leader and a helper have operators, and"
            " addresses, of their own"
        )
    return given


def safe_parts(url: str) -> SplitResult:
    """Return the parts of a URL, or those of an empty URL if it is not safe.

    A URL is safe if it is https, or http on this machine, and has a host and no user name.
    """
    none = urlsplit("")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return none
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    return parts if host and is_safe and parts.username is None else none


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the client's token in a file.

    Raises:
        UnreadableFileError: the file cannot be read, or holds no token.
        InvalidInputError: everybody may read or write the file.
    """
    try:
        with open(path, encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(1024).strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no ASCII text"
        raise UnreadableFileError(
            f"cannot read {os.fspath(path)} ({why}): give the file of the token"
        ) from None
    if mode & 0o007:
        raise InvalidInputError(
            f"{os.fspath(path)} is open to everybody (mode {mode:04o}): chmod 600"
            f" {os.fspath(path)}, and ask for a new token if anybody may have read it"
        )
    if not TOKEN.fullmatch(text):
        raise UnreadableFileError(
            f"{os.fspath(path)} holds no token: it is one line, which the server's operator gave"
        )
    return text


def tls(ca: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Return a TLS context by which a server's certificate is checked.

    Args:
        ca: a file with the only CA certificates that are trusted; None: the default ones of httpx.

    Raises:
        UnreadableFileError: a file cannot be read, or holds no certificate.
    """
    try:
        if ca is None:
            return httpx.create_ssl_context()
        return ssl.create_default_context(cafile=os.fspath(ca))
    except (OSError, ssl.SSLError) as error:
        place = "what SSL_CERT_FILE or SSL_CERT_DIR names" if ca is None else os.fspath(ca)
        raise UnreadableFileError(
            f"cannot read {place} ({error.strerror or error}): give certificates in PEM"
        ) from None


def client(verify: ssl.SSLContext) -> httpx.AsyncClient:
    """Return an HTTP client. For https URLs it uses the proxy of the environment, if there is one.

    Args:
        verify: the TLS context by which a server's certificate is checked.

    Raises:
        MissingExtraError: the proxy is a SOCKS proxy, and the package that httpx needs is missing.
        InvalidInputError: the environment has no valid address of a proxy.
    """
    # For http URLs no proxy is used: they are on this machine, and a proxy could read the token.
    direct: dict[str, httpx.AsyncBaseTransport | None] = {"http://": None}
    try:
        return httpx.AsyncClient(verify=verify, timeout=TIMEOUT, limits=LIMITS, mounts=direct)
    except ImportError:
        raise MissingExtraError(
            "ALL_PROXY or HTTPS_PROXY names a proxy of SOCKS: pip install socksio"
        ) from None
    except (ValueError, httpx.InvalidURL):  # the error's text may contain the proxy's password
        raise InvalidInputError(
            "ALL_PROXY, HTTPS_PROXY or HTTP_PROXY is no address of a proxy: give http://HOST:PORT"
        ) from None


def pipe(socket: str | os.PathLike[str]) -> Callable[[bytes], Awaitable[bytes]]:
    """Return a function that sends a frame to the agent on a socket, and returns its answer.

    It raises an OSError or a `PipeError` if the agent is away, as `join.join` demands.
    """

    async def ask(frame: bytes) -> bytes:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(os.fspath(socket))
            with closing(writer):
                await write_frame(writer, frame)
                return await read_frame(reader, MOST_BYTES)

    return ask


async def carry(
    url: str,
    token: str,
    socket: Path,
    verify: ssl.SSLContext,
    tell: Callable[[str], None],
) -> Over | None:
    """Carry frames between a server and an agent until the campaign is over, or until SIGTERM.

    Return why the client's part is over; None: SIGTERM or Ctrl-C ended it.

    Args:
        url: the URL of the campaign.
        token: the client's token.
        socket: the path of the agent's socket.
        verify: the TLS context by which the server's certificate is checked.
        tell: shows a message to the operator.
    """
    draws = secrets.SystemRandom()
    async with client(verify) as http:
        return await _until_told(
            join(
                http,
                url,
                token,
                pipe(socket),
                clock=time.time,
                sleep=asyncio.sleep,
                random=draws.random,
                tell=tell,
            )
        )


async def report(
    urls: Mapping[Side, str],
    verify: ssl.SSLContext,
    unsent: Unsent | None,
    make: Callable[[float], Unsent],
    tell: Callable[[str], None],
    *,
    waits: bool,
) -> Fate | Never | Left:
    """Carry a client's report to two servers; return its fate, or why it was not delivered.

    Before a report is made, both servers are asked whether they accept reports.

    Args:
        urls: the URL of the release at each server.
        verify: the TLS context by which the servers' certificates are checked.
        unsent: the report from the outbox, if it is made already; None: it must be made.
        make: makes the report. Its argument is the time in Unix seconds. When it returns, the
            report is on disk.
        tell: shows a message to the client's owner.
        waits: whether a server that does not answer is asked again.

    Raises:
        StoreError: the client's record failed.
        Exception: an error that `make` raised, unchanged.
    """
    random = secrets.SystemRandom().random

    async def sleep(seconds: float) -> None:
        if not waits:
            raise _LaterError
        await asyncio.sleep(seconds)

    def say(text: str) -> None:
        tell(text if waits else text.removesuffix(AGAIN).removesuffix(HOURLY))

    async def work() -> Fate | Never | Left:
        carry, report = partial(carried, http, urls, clock=time.time, sleep=sleep), unsent
        try:
            if report is None:
                begun = await carry(Beginning(random, say))
                if isinstance(begun, Never):
                    return begun
                report = make(time.time())
                tell("the report is made, and its items are spent")
            fate = await carry(Sending(report, random, say))
            assert isinstance(fate, Fate)
            return fate
        except _LaterError:
            return Left.LATER

    async with client(verify) as http:
        return await _until_told(work()) or Left.TOLD


async def _until_told(work: Coroutine[Any, Any, _T]) -> _T | None:
    """Return the result of a coroutine; None: SIGTERM or Ctrl-C cancelled it."""
    working = asyncio.ensure_future(work)
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, working.cancel)
    await asyncio.wait({working})
    return None if working.cancelled() else working.result()
