"""What servers over HTTPS share: requests that are refused, bodies, and the room for them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from fedtally.campaign.transports.https.resource import PROBLEM_TYPE

BODY_SECONDS = 30.0  # for a whole body
MOST_BODIES = 256 << 20  # bytes of bodies in memory at once
BUSY = 2, 10  # bounds of the seconds until a client asks again, where the server cannot serve it


def draw(least: int, most: int) -> int:
    """Return a whole number between two bounds, both included, at random."""
    return least + secrets.randbelow(most - least + 1)


class Refused(Exception):
    """A request that is refused: with a status, and words that name no client.

    Args:
        status: the status.
        title: the words.
        after: the bounds of the seconds after which to ask again; None: it is not said.
    """

    def __init__(self, status: int, title: str, after: tuple[int, int] | None = None) -> None:
        super().__init__(title)
        self.status, self.title, self.after = status, title, after

    def response(self, draw: Callable[[int, int], int]) -> Response:
        """Return the response that says it.

        Args:
            draw: returns a whole number between two bounds, both included, at random.
        """
        headers = {"retry-after": str(draw(*self.after))} if self.after else {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        problem = {"type": "about:blank", "title": self.title, "status": self.status}
        return JSONResponse(problem, self.status, headers, media_type=PROBLEM_TYPE)


class Room:
    """Bytes of bodies that are in memory at once.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Keep room for a body; refuse one that has none."""
        if size > self._left:
            raise Refused(503, "busy: send the same again", BUSY)
        self._left -= size
        try:
            yield
        finally:
            self._left += size


def length_of(request: Request, most: int, too_long: str) -> int:
    """Return the length of a body, as its head says.

    Args:
        request: the request.
        most: the most bytes that it may have.
        too_long: the words for a body that has more.

    Raises:
        Refused: it is not said, or is too large.
    """
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise Refused(411, "say the length of the body")
    if len(length) > 12 or int(length) > most:
        raise Refused(413, too_long)
    return int(length)


async def body_of(request: Request) -> bytes:
    """Return a whole body, whose length is checked, and for which there is room.

    Raises:
        Refused: it did not come in time.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.body()
    except (TimeoutError, ClientDisconnect):
        raise Refused(408, "the body did not come in time") from None
