"""What all HTTPS servers of fedtally share: refusals, limits on bodies, requests of web pages."""

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

BODY_SECONDS = 30.0  # the time in which the whole body of a request must come
MOST_BODIES = 256 << 20  # the most bytes of request bodies in memory at once
PREFLIGHT_SECONDS = 86_400  # the time for which a browser may cache a preflight (`route_of_pages`)
BUSY = 2, 10  # bounds, in seconds, of the wait before a client tries a busy server again


def draw(least: int, most: int) -> int:
    """Return a random whole number between two bounds, both included."""
    return least + secrets.randbelow(most - least + 1)


class Refused(Exception):
    """Say that a server refuses a request.

    Args:
        status: the HTTP status of the response.
        title: the text of the response, which must not name a client.
        after: bounds, in seconds, of the random wait that the response asks for in `retry-after`;
            None: the response has no such header.
    """

    def __init__(self, status: int, title: str, after: tuple[int, int] | None = None) -> None:
        super().__init__(title)
        self.status, self.title, self.after = status, title, after

    def response(self, draw: Callable[[int, int], int]) -> Response:
        """Return the response to the refused request: a problem document (RFC 9457).

        Args:
            draw: returns a random whole number between two bounds, both included.
        """
        headers = {"retry-after": str(draw(*self.after))} if self.after else {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        problem = {"type": "about:blank", "title": self.title, "status": self.status}
        return JSONResponse(problem, self.status, headers, media_type=PROBLEM_TYPE)


class Room:
    """A limit on the bytes of request bodies that are in memory at once.

    Args:
        most: the largest number of bytes.
    """

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Reserve room for a body of `size` bytes while the `with` block runs.

        Raises:
            Refused: with this body, the bodies in memory would have more than `most` bytes.
        """
        if size > self._left:
            raise Refused(503, "busy: send the same again", BUSY)
        self._left -= size
        try:
            yield
        finally:
            self._left += size


def length_of(request: Request, most: int, too_long: str) -> int:
    """Return the length of a request's body, in bytes, from the header `content-length`.

    Args:
        request: the request.
        most: the most bytes that the body may have.
        too_long: the text of the response if the body is longer.

    Raises:
        Refused: the header is missing or no number, or the length is more than `most`.
    """
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise Refused(411, "say the length of the body")
    if len(length) > 12 or int(length) > most:
        raise Refused(413, too_long)
    return int(length)


async def body_of(request: Request) -> bytes:
    """Receive the whole body of a request, and return it.

    Before this call, the caller must check the length (`length_of`), and reserve room (`Room`) if
    strangers may send requests. Otherwise the bodies could fill the memory.

    Raises:
        Refused: the body did not come within `BODY_SECONDS`, or the client disconnected.
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
    """Return a route for clients that web pages of some origins may also use (CORS).

    Before such a page sends a request, the browser asks whether it may: the preflight request. The
    answer allows only this method and the header `content-type`, and no cookies or passwords. Of
    the headers of a response, the page can also read `retry-after` and `date`.

    Args:
        path: the path of the route.
        method: the HTTP method of the route.
        answer: the function that answers a request.
        origins: the origins (scheme, host and port) of the web pages. If empty, no pages of other
            origins can use the route. Programs that are no browsers always can.
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
        if request.method == "OPTIONS":  # not a preflight: the middleware answers preflights itself
            return Refused(405, "no such method").response(draw)
        return await answer(request)

    return Route(path, answered, methods=[method, "OPTIONS"], middleware=[cors])
