"""What `fedtally agent join` runs: `join` between a server and the socket of an agent."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import ssl
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from fedtally.campaign.transports.https.join import MOST_BYTES, TIMEOUT, TOKEN, Over, join
from fedtally.campaign.transports.pipe import read_frame, write_frame
from fedtally.errors import InvalidInputError, UnreadableFileError

ANSWER_SECONDS = 300.0  # for an answer of the agent, which may read its items first
_CAMPAIGN = re.compile(r"(/.*)?/v1/campaigns/[0-9a-f]{64}/?")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def checked_url(url: str) -> str:
    """Return the address of a campaign.

    Raises:
        InvalidInputError: it is none, or leads over a network without TLS.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    if not host or not is_safe or not _CAMPAIGN.fullmatch(parts.path):
        raise InvalidInputError(
            f"{url!r} is no address of a campaign: give https://HOST/v1/campaigns/FINGERPRINT, with"
            " the 64 hexadecimal digits of the plan (http on this machine alone)"
        )
    return url.rstrip("/")


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
        UnreadableFileError: the file cannot be read, or holds no certificate.
    """
    if ca is None:
        return httpx.create_ssl_context()
    try:
        return ssl.create_default_context(cafile=os.fspath(ca))
    except (OSError, ssl.SSLError) as error:
        raise UnreadableFileError(
            f"cannot read {os.fspath(ca)} ({error.strerror or error}): give certificates in PEM"
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
    async with httpx.AsyncClient(verify=verify, timeout=TIMEOUT) as http:
        joining = asyncio.ensure_future(
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
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, joining.cancel)
        await asyncio.wait({joining})
        return None if joining.cancelled() else joining.result()
