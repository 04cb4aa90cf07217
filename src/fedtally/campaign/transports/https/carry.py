"""The network part of a client's commands `join` and `report`.

An agent is the program that guards the client's items and answers a server's frames. `carry` passes
frames between a server and the Unix socket of an agent. `report` sends a report to two servers.
SIGTERM and Ctrl-C end both functions.
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

ANSWER_SECONDS = 300.0  # how long to wait for the agent's answer: it may have to read its items
_CAMPAIGN = re.compile(r"(/.*)?/v1/campaigns/[0-9a-f]{64}/?")
_SERVER = re.compile(r"(/(?!v1(/|$))[^/]+)*/?")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_T = TypeVar("_T")


class Left(Enum):
    """The reason why a report is not delivered yet. If it is made, it stays in the outbox."""

    TOLD = "stopped"
    LATER = "a server did not take the report yet"


class _LaterError(Exception):
    """Say that `report` would have to wait for a server, but was called with `waits=False`."""


def checked_url(url: str) -> str:
    """Check the URL of a campaign, and return it without a slash at its end.

    Raises:
        InvalidInputError: the path of the URL is not the path of a campaign, or the URL is not safe
            (see `safe_parts`) or has a query or a fragment.
    """
    if {"?", "#"} & set(url) or not _CAMPAIGN.fullmatch(safe_parts(url).path):
        raise InvalidInputError(
            f"{url!r} is no address of a campaign: give https://HOST/v1/campaigns/FINGERPRINT, with"
            " the 64 hexadecimal digits of the plan (http on this machine alone)"
        )
    return url.rstrip("/")


def checked_servers(leader: str, helper: str) -> dict[Side, str]:
    """Check the URLs of two servers; return a dict from "leader" and "helper" to these URLs.

    The returned URLs have no slash at their ends.

    Raises:
        InvalidInputError: a URL is not safe (see `safe_parts`), has a query or a fragment, or has
            the path of a plan; or both URLs are the same.
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
    """Return the parts of a URL to which a token may be sent; for any other text, empty parts.

    Such a URL is called safe. It has a host and no user name. Its scheme is https; if its host is
    this machine, http is safe, too.
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
    """Read the client's token from a file.

    Raises:
        UnreadableFileError: the file cannot be read, or its text is no token.
        InvalidInputError: users other than the file's owner and group may read, write or run it.
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
    """Return a TLS context that checks the certificates of servers.

    Args:
        ca: a PEM file; only certificates that a CA in it has signed are trusted. None: the CAs that
            httpx trusts by default.

    Raises:
        UnreadableFileError: a file of CA certificates cannot be read, or has no certificate.
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
    """Return an HTTP client, which sends https requests through the proxy of the environment.

    The variable HTTPS_PROXY names the proxy, or else ALL_PROXY. Without both variables, and for the
    hosts in NO_PROXY, the client uses no proxy.

    Args:
        verify: the TLS context that checks servers' certificates, from `tls`.

    Raises:
        MissingExtraError: one of HTTPS_PROXY, ALL_PROXY and HTTP_PROXY names a SOCKS proxy, and the
            package `socksio` is not installed.
        InvalidInputError: httpx cannot use one of these variables, or NO_PROXY.
    """
    # Requests to http URLs never use a proxy: it could read the token. All such URLs are on this
    # machine.
    direct: dict[str, httpx.AsyncBaseTransport | None] = {"http://": None}
    try:
        return httpx.AsyncClient(verify=verify, timeout=TIMEOUT, limits=LIMITS, mounts=direct)
    except ImportError:
        raise MissingExtraError(
            "ALL_PROXY, HTTPS_PROXY or HTTP_PROXY names a proxy of SOCKS: pip install socksio"
        ) from None
    # The text of this error is not shown: it may contain the proxy's password.
    except (ValueError, httpx.InvalidURL):
        raise InvalidInputError(
            "ALL_PROXY, HTTPS_PROXY or HTTP_PROXY is no address of a proxy: give http://HOST:PORT"
        ) from None


def pipe(socket: str | os.PathLike[str]) -> Callable[[bytes], Awaitable[bytes]]:
    """Return a function that sends one frame to an agent, and returns the agent's answer.

    The function connects anew for each frame. If the agent does not answer, the function raises
    OSError or `PipeError`, as `join.join` expects.

    Args:
        socket: the path of the agent's Unix socket.
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
    """Pass frames between a server and an agent until the campaign is over.

    Args:
        url: the URL of the campaign.
        token: the client's token.
        socket: the path of the agent's Unix socket.
        verify: the TLS context that checks the server's certificate.
        tell: shows a message to the client's operator.

    Returns:
        Why the client sends no more requests; None: SIGTERM or Ctrl-C ended the call.

    Raises:
        InvalidInputError: the token has a wrong form (see `join.join`), or a variable is no address
            of a proxy (see `client`).
        MissingExtraError: the proxy needs the package `socksio`.
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
    """Make a client's report, unless it is made already, and send it to two servers.

    To make a report spends the client's items: they must not be reported again, even if no server
    then accepts the report. So a report is made only after both servers have said that they accept
    reports.

    Args:
        urls: the URL of the release at each server.
        verify: the TLS context that checks the servers' certificates.
        unsent: the report from the outbox, if it is made already; None: it must be made.
        make: makes the report, and writes it to the disk before it returns. Its argument is the
            time in Unix seconds.
        tell: shows a message to the client's owner.
        waits: True: wait and try again while a server does not take the report. False: return
            `Left.LATER` instead of waiting.

    Returns:
        A `Fate`: how the report ended. A `Never`: why this call made no report, and stopped
            trying. A `Left`: why the report is not delivered yet, or not even made yet. After
            SIGTERM or Ctrl-C it is `Left.TOLD`.

    Raises:
        StoreError: the client's record could not be read or written.
        InvalidInputError, MissingExtraError: as for `client`.
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
    """Run a coroutine, and return its result; None: SIGTERM or Ctrl-C cancelled it."""
    working = asyncio.ensure_future(work)
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, working.cancel)
    await asyncio.wait({working})
    return None if working.cancelled() else working.result()
