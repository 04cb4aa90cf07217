"""The HTTPS requests that a leader, a collector or a client sends to a DAP server.

A DAP server creates a resource for a request. If the content of the resource is not ready (it is
deferred), the sender asks for the resource again, until the content is there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx

from fedtally.base.text import escaped, shortened
from fedtally.campaign.transports.https.carry import safe_parts
from fedtally.campaign.transports.https.join import MOST_PROBLEM, words_of
from fedtally.campaign.transports.https.resource import PROBLEM_TYPE
from fedtally.dap import ProblemType
from fedtally.dap.draft18 import (
    HpkeConfigList,
    UploadErrors,
    UploadRequest,
    is_media_type,
    media_type,
)
from fedtally.dap.presentation import Message
from fedtally.dap.problems import URN
from fedtally.errors import FedtallyError, InvalidInputError

MOST_ANSWER = 64 << 20  # the most bytes of an answer
_MOST_POLLS = 60  # the most requests for one deferred content
_LONGEST_POLL = 60.0  # the longest wait between two requests for one deferred content, in seconds
_TIMEOUT = httpx.Timeout(120, connect=15)
# The types of problems that are not final: the sender tries again, since the operator of the server
# can correct its settings.
_MENDED = {ProblemType.UNRECOGNIZED_TASK}


class UnansweredError(FedtallyError):
    """Say that a server cannot be reached, or that its answer is not usable.

    An answer is not usable, for example, if it is too long or of another type than expected, or if
    its status is neither a success nor a final refusal (`DeniedError`). The sender may send the
    same request again later.
    """


class DeniedError(FedtallyError):
    """Say that a server refuses a request for good: sending it again would not help.

    Args:
        type: the type of the problem, as the draft of DAP names it.
        detail: ": " and the server's text about the problem; "" if the server gives no text.
    """

    def __init__(self, type: ProblemType, detail: str) -> None:
        super().__init__(f"it is refused ({type}{detail})")
        self.type = type


class _Heard(NamedTuple):
    """A response: its status, headers and body."""

    status: int
    headers: httpx.Headers
    body: bytes


def check_address(address: str) -> None:
    """Refuse the URL of a server if a token must not be sent there.

    Raises:
        InvalidInputError: the URL is not safe; see `carry.safe_parts`.
    """
    if not safe_parts(address).hostname:
        raise InvalidInputError(
            f"{address} is not of https://HOST/, where nobody on the way reads the token: make a"
            " task with such addresses"
        )


@dataclass(frozen=True)
class DapAsking:
    """The sender of requests to one server of a DAP task.

    Args:
        http: the HTTP client, which trusts the server's certificate.
        url: the base URL of the server, from the task.
        task: the id of the task, as text.
        token: the bearer token; empty: no token is sent. Clients need no token.
        sleep: waits for a number of seconds.
        polls: the most requests for a deferred content; then `make` raises `UnansweredError`.

    Raises:
        InvalidInputError: the URL is not safe; see `carry.safe_parts`.
    """

    http: httpx.AsyncClient
    url: str
    task: str
    token: str = field(default="", repr=False)
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    polls: int = _MOST_POLLS

    def __post_init__(self) -> None:
        check_address(self.url)

    async def make(
        self, kind: str, body: bytes, message: type[Message], answer: type[Message]
    ) -> tuple[bytes, str]:
        """Create a resource at the server, and wait until it has content.

        Args:
            kind: the kind of the resource, as the URL names it, such as `aggregation_jobs`.
            body: the bytes of the request.
            message: the class of the message that `body` encodes.
            answer: the class of the message that the content must encode.

        Returns:
            The content, an encoded message, and the URL of the resource.

        Raises:
            UnansweredError: the server cannot be reached, its answer is not usable, or the resource
                has no content after `polls` requests.
            DeniedError: the server refuses the request for good.
        """
        place = f"{self.url.rstrip('/')}/tasks/{self.task}/{kind}"
        heard = await self._sent("POST", place, body, media_type(message))
        place = self._located(place, heard)
        left = self.polls
        while not heard.body:  # the server defers the content
            if left == 0:
                raise UnansweredError(f"{_host(place)} has no answer yet")
            left -= 1
            await self.sleep(_seconds(heard))
            heard = await self._sent("GET", place)
        self._check_type(heard, place, answer)
        return heard.body, place

    async def forget(self, place: str) -> None:
        """Tell the server to delete a resource.

        Args:
            place: the URL of the resource, from `make`.

        Raises:
            UnansweredError: the server cannot be reached, or its answer is not usable.
            DeniedError: the server refuses the request for good. Either error may also mean that
                the server has no such resource.
        """
        await self._sent("DELETE", place)

    async def configs(self) -> HpkeConfigList:
        """Fetch the server's public keys, to which clients seal reports.

        Raises:
            UnansweredError: the server cannot be reached, or its answer is not usable.
            DeniedError: the server refuses the request for good.
            InvalidInputError: the body of the answer is malformed.
        """
        place = f"{self.url.rstrip('/')}/hpke_config"
        heard = await self._sent("GET", place)
        self._check_type(heard, place, HpkeConfigList)
        return HpkeConfigList.decode(heard.body)

    async def upload(self, reports: bytes) -> UploadErrors:
        """Send reports to the leader; return the list of the reports that the leader refuses.

        Args:
            reports: an encoded UploadRequest. Draft 09 has no such message, so the task must be of
                draft 18.

        Raises:
            UnansweredError: the leader cannot be reached, or its answer is not usable.
            DeniedError: the leader refuses the whole request for good.
            InvalidInputError: the body of the answer is malformed.
        """
        place = f"{self.url.rstrip('/')}/tasks/{self.task}/reports"
        heard = await self._sent("POST", place, reports, media_type(UploadRequest))
        if heard.body:
            self._check_type(heard, place, UploadErrors)
        return UploadErrors.decode(heard.body)

    def _check_type(self, heard: _Heard, place: str, message: type[Message]) -> None:
        if not is_media_type(heard.headers.get("content-type", ""), message):
            raise UnansweredError(f"{place} answers with something else: check the address")

    def _located(self, place: str, heard: _Heard) -> str:
        """Return the URL of the resource that a response names in its header `location`.

        Args:
            place: the URL of the request. A relative URL in the header is relative to it.
            heard: the response.

        Raises:
            UnansweredError: the header is no URL, or is a URL of another server, which must not get
                the token.
        """
        asked = httpx.URL(place)
        try:
            made = asked.join(heard.headers.get("location", ""))
        except httpx.InvalidURL:
            raise UnansweredError(f"{asked.host} names a resource of no address") from None
        if (made.scheme, made.host, made.port) != (asked.scheme, asked.host, asked.port):
            raise UnansweredError(f"{asked.host} names a resource of another server")
        return str(made)

    async def _sent(self, method: str, place: str, body: bytes = b"", type: str = "") -> _Heard:
        """Send a request, and return the response, whose status is 200 .. 299.

        Args:
            method: the HTTP method.
            place: the URL.
            body: the body of the request.
            type: the Content-Type of `body`; empty: the request has no Content-Type.

        Raises:
            DeniedError: the status is 400 .. 499, and the response is a problem document with a
                type of the draft that is final (not in `_MENDED`).
            UnansweredError: the server cannot be reached, its answer is too long, or the status is
                not 200 .. 299 and `DeniedError` does not apply.
        """
        headers = {"accept-encoding": "identity"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        if type:
            headers["content-type"] = type
        request = self.http.build_request(
            method, place, content=body, headers=headers, timeout=_TIMEOUT
        )
        try:
            heard = await self._heard(request)
        except (httpx.RequestError, httpx.InvalidURL, OSError, ValueError) as error:
            raise UnansweredError(f"cannot reach {_host(place)} ({words_of(error)})") from None
        if 200 <= heard.status < 300:
            return heard
        kind, detail = _problem(heard)
        if 400 <= heard.status < 500 and kind is not None and kind not in _MENDED:
            raise DeniedError(kind, detail)
        said = kind or f"HTTP {heard.status}"
        raise UnansweredError(f"{_host(place)} answers {said}{detail}")

    async def _heard(self, request: httpx.Request) -> _Heard:
        response = await self.http.send(request, stream=True, follow_redirects=False)
        try:
            most = MOST_ANSWER if response.is_success else MOST_PROBLEM
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > most:
                    raise ValueError("its answer is too long")
            return _Heard(response.status_code, response.headers, bytes(body))
        finally:
            await response.aclose()


def _problem(heard: _Heard) -> tuple[ProblemType | None, str]:
    """Read a response that may be a problem document.

    Returns:
        The type of the problem, or None if the draft of DAP has no such type; and ": " with the
        text of the problem, or "" without a text. If the response is no problem document: None and
        "".
    """
    kind = heard.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != PROBLEM_TYPE:
        return None, ""
    try:
        document = json.loads(heard.body)
        type, detail = document.get("type"), document.get("detail", document.get("title"))
    except (ValueError, RecursionError, AttributeError):
        return None, ""
    known = {f"{URN}{each}": each for each in ProblemType}
    said = f": {shortened(escaped(detail), 200)}" if isinstance(detail, str) else ""
    return known.get(type) if isinstance(type, str) else None, said


def _seconds(heard: _Heard) -> float:
    """Return the wait before a deferred content is asked for again: 1 .. 60 seconds.

    The header `retry-after` has the wait. If the header has no number, the wait is 1 second.
    """
    text = heard.headers.get("retry-after", "")[:10]
    number = int(text) if text.isascii() and text.isdigit() else 1
    return float(min(max(number, 1), _LONGEST_POLL))


def _host(place: str) -> str:
    return httpx.URL(place).host
