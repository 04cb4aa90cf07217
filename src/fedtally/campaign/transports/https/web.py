"""What servers over HTTPS share: refusals, bodies and the room for them, and pages that ask."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedtally.campaign.transports.https.resource import PROBLEM_TYPE

BODY_SECONDS = 30.0  # for a whole body
MOST_BODIES = 256 << 20  # bytes of bodies in memory at once
PREFLIGHT_SECONDS = 86_400  # for which a browser may keep the answer to a preflight
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


def route_of_pages(
    path: str,
    method: str,
    answer: Callable[[Request], Awaitable[Response]],
    origins: Sequence[str],
) -> Route:
    """Return a route that clients ask, also from web pages of some origins.

    A browser asks before such a page sends. It hears yes for the method and `content-type` alone,
    and no page sends credentials. A page reads of the head what tells it when to ask again, and
    the time.

    Args:
        path: the path.
        method: its one method.
        answer: what answers it.
        origins: the origins; none: no browser lets a page of another site in.
    """
    if not origins:
        return Route(path, answer, methods=[method])
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=[method],
        allow_headers=["content-type"],
        expose_headers=["date", "retry-after"],
        max_age=PREFLIGHT_SECONDS,
    )

    async def answered(request: Request) -> Response:
        if request.method == "OPTIONS":  # a preflight never comes here
            return Refused(405, "no such method").response(draw)
        return await answer(request)

    return Route(path, answered, methods=[method, "OPTIONS"], middleware=[cors])
