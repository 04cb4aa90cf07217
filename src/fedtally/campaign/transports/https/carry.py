"""What a client's commands run: `join` between a server and the socket of an agent, and `report`.

Both end when they are told to, between two steps, so that nothing is left half done.
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

ANSWER_SECONDS = 300.0  # for an answer of the agent, which may read its items first
_CAMPAIGN = re.compile(r"(/.*)?/v1/campaigns/[0-9a-f]{64}/?")
_SERVER = re.compile(r"(/(?!v1(/|$))[^/]+)*/?")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_T = TypeVar("_T")


class Left(Enum):
    """Why a report is left in the outbox."""

    TOLD = "stopped"
    LATER = "a server did not take the report yet"


class _LaterError(Exception):
    """Something is to be waited for, and nobody waits."""


def checked_url(url: str) -> str:
    """Return the address of a campaign.

    Raises:
        InvalidInputError: it is none, or leads over a network without TLS.
    """
    if not _CAMPAIGN.fullmatch(safe_parts(url).path):
        raise InvalidInputError(
            f"{url!r} is no address of a campaign: give https://HOST/v1/campaigns/FINGERPRINT, with"
            " the 64 hexadecimal digits of the plan (http on this machine alone)"
        )
    return url.rstrip("/")


def checked_servers(leader: str, helper: str) -> dict[Side, str]:
    """Return the addresses of two servers, without a slash at their ends.

    Raises:
        InvalidInputError: one is none, or leads over a network without TLS, or both are one.
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
    """Return the parts of an address; empty ones if it leads over a network without TLS."""
    none = urlsplit("")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return none
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    return parts if host and is_safe and parts.username is None else none


def read_token(path: str | os.PathLike[str]) -> str:
    """Return the token in a file.

    Raises:
        UnreadableFileError: it cannot be read, or holds something else.
        InvalidInputError: everybody may read it.
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
    """Return how a server's certificate is checked.

    Args:
        ca: a file of certificates that alone are believed; None: those of httpx.

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
    """Return what asks a server, over the proxy of the environment if the address is of HTTPS.

    Args:
        verify: how the server's certificate is checked.

    Raises:
        MissingExtraError: the proxy is of SOCKS, and httpx cannot use it here.
        InvalidInputError: the address of the proxy is none.
    """
    # Without TLS a proxy would read the token, and such an address is on this machine.
    direct: dict[str, httpx.AsyncBaseTransport | None] = {"http://": None}
    try:
        return httpx.AsyncClient(verify=verify, timeout=TIMEOUT, limits=LIMITS, mounts=direct)
    except ImportError:
        raise MissingExtraError(
            "ALL_PROXY or HTTPS_PROXY names a proxy of SOCKS: pip install socksio"
        ) from None
    except (ValueError, httpx.InvalidURL):  # its words may hold the password of the proxy
        raise InvalidInputError(
            "ALL_PROXY, HTTPS_PROXY or HTTP_PROXY is no address of a proxy: give http://HOST:PORT"
        ) from None


def pipe(socket: str | os.PathLike[str]) -> Callable[[bytes], Awaitable[bytes]]:
    """Return what asks the agent on a socket; it raises as `join` wants it."""

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

    Return why it ended; None: it was told to.

    Args:
        url: the campaign's address.
        token: the client's token.
        socket: the agent's socket.
        verify: how the server's certificate is checked.
        tell: takes what the operator should know.
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
    """Carry a client's report to two servers; return what became of it, or why it is left.

    Both servers are asked whether they take reports before one is made.

    Args:
        urls: the address of the release at each server.
        verify: how the servers' certificates are checked.
        unsent: the report, if it is made already.
        make: makes it, at a time in Unix seconds; the report is on disk when it returns.
        tell: takes what the owner should know.
        waits: whether a server that does not answer is asked again.

    Raises:
        StoreError: the client's record failed.
        Exception: what `make` raised, as it was.
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
    """Return what a coroutine returns; None: SIGTERM or Ctrl-C came first, and it was cancelled."""
    working = asyncio.ensure_future(work)
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, working.cancel)
    await asyncio.wait({working})
    return None if working.cancelled() else working.result()
