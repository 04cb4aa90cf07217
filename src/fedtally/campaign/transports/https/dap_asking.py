"""The HTTPS requests that a leader, a collector or a client sends to a DAP server."""

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

MOST_ANSWER = 64 << 20  # bytes of an answer
_MOST_POLLS = 60
_LONGEST_POLL = 60.0  # seconds until a deferred answer is asked for again
_TIMEOUT = httpx.Timeout(120, connect=15)
# Problems that an operator can solve by another setting, so that the request is sent again.
_MENDED = {ProblemType.UNRECOGNIZED_TASK}


class UnansweredError(FedtallyError):
    """Say that a server cannot be reached or that its answer is wrong: send the request again."""


class DeniedError(FedtallyError):
    """Say that a server refuses a request for good.

    Attributes:
        type: the type of the problem, as the draft of DAP names it.
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
    """Refuse the URL of a server if it is not safe to send a token there.

    Raises:
        InvalidInputError: the URL is neither https nor http on this machine, or has no host.
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
        url: the URL of the server, from the task.
        task: the id of the task, as text.
        token: the bearer token; empty for a client, who has no token.
        sleep: waits for a number of seconds.
        polls: the number of requests for a deferred answer before `make` gives up.
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
        """Create a resource at the server, wait for its content, and return content and URL.

        Args:
            kind: the kind of the resource, such as `aggregation_jobs`.
            body: the bytes of the request.
            message: the type of the message in the request.
            answer: the type of the message that is expected in the response.

        Raises:
            UnansweredError: the server cannot be reached, its answer is wrong, or there is no
                answer after `polls` requests.
            DeniedError: the server refuses the request.
        """
        place = f"{self.url.rstrip('/')}/tasks/{self.task}/{kind}"
        heard = await self._sent("POST", place, body, media_type(message))
        place = self._located(place, heard)
        for _ in range(self.polls):
            if heard.body:
                self._check_type(heard, place, answer)
                return heard.body, place
            await self.sleep(_seconds(heard))  # the answer is deferred: request the resource again
            heard = await self._sent("GET", place)
        raise UnansweredError(f"{_host(place)} has no answer yet")

    async def forget(self, place: str) -> None:
        """Tell the server to delete a resource.

        Args:
            place: the URL of the resource, from `make`.

        Raises:
            UnansweredError: the server cannot be reached, or its answer is wrong.
            DeniedError: the server refuses, for instance because it has no such resource.
        """
        await self._sent("DELETE", place)

    async def configs(self) -> HpkeConfigList:
        """Return the server's public keys, to which clients seal reports.

        Raises:
            UnansweredError: the server cannot be reached, or its answer is wrong.
            InvalidInputError: the keys cannot be read.
        """
        place = f"{self.url.rstrip('/')}/hpke_config"
        heard = await self._sent("GET", place)
        self._check_type(heard, place, HpkeConfigList)
        return HpkeConfigList.decode(heard.body)

    async def upload(self, reports: bytes) -> UploadErrors:
        """Send reports to the leader; return which of them the leader refuses.

        Args:
            reports: the bytes of an UploadRequest.

        Raises:
            UnansweredError: the leader cannot be reached, or its answer is wrong.
            DeniedError: the leader refuses the request.
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
        """Return the URL of a resource that a response names.

        Raises:
            UnansweredError: it is no URL, or is at another server, which must not get the token.
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
        """Send a request, and return a response with a status of success.

        Raises:
            UnansweredError: the server cannot be reached, or its answer is wrong.
            DeniedError: the server refuses the request.
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
        except (httpx.RequestError, OSError, ValueError) as error:
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
    """Return the type of a problem document, and its detail with ": " before it.

    The type is None if the draft of DAP has no such type. Both are empty, None and "", if the
    response is no problem document.
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
    """Return the seconds to wait before a deferred answer is requested again."""
    text = heard.headers.get("retry-after", "")[:10]
    number = int(text) if text.isascii() and text.isdigit() else 1
    return float(min(max(number, 1), _LONGEST_POLL))


def _host(place: str) -> str:
    return httpx.URL(place).host
