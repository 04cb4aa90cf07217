"""What servers of DAP are asked over HTTPS: by the leader, by the collector, and by clients."""

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
# What another setting of an operator would mend: what was asked is asked again.
_MENDED = {ProblemType.UNRECOGNIZED_TASK}


class UnansweredError(FedtallyError):
    """A server cannot be reached, or did not answer as it should: ask it again."""


class DeniedError(FedtallyError):
    """A server refuses a request for good.

    Attributes:
        type: why, in the draft's words.
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
    """Refuse the address of a server that a token may not be shown to.

    Raises:
        InvalidInputError: it is neither of https nor of this machine, or names no host and port.
    """
    if not safe_parts(address).hostname:
        raise InvalidInputError(
            f"{address} is not of https://HOST/, where nobody on the way reads the token: make a"
            " task with such addresses"
        )


@dataclass(frozen=True)
class DapAsking:
    """What a server of a task is asked.

    Args:
        http: the client, which believes the server's certificate.
        url: the address of the server, as the task has it.
        task: the text of the id of the task.
        token: the bearer token; empty for a client, who has none.
        sleep: waits for a number of seconds.
        polls: how often a deferred answer is asked for, before others have their turn.
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
        """Make a resource; return its bytes and its address, however long it takes.

        Args:
            kind: the kind of the resource, as `aggregation_jobs`.
            body: the request.
            message: the message that it is.
            answer: the message that is expected.

        Raises:
            UnansweredError: the server did not answer as it should.
            DeniedError: it refuses the request.
        """
        place = f"{self.url.rstrip('/')}/tasks/{self.task}/{kind}"
        heard = await self._sent("POST", place, body, media_type(message))
        place = self._located(place, heard)
        for _ in range(self.polls):
            if heard.body:
                self._check_type(heard, place, answer)
                return heard.body, place
            await self.sleep(_seconds(heard))  # deferred: it is asked for where it will be
            heard = await self._sent("GET", place)
        raise UnansweredError(f"{_host(place)} has no answer yet")

    async def forget(self, place: str) -> None:
        """Say that a resource is needed no more.

        Args:
            place: its address, of `make`.

        Raises:
            UnansweredError: the server did not hear it.
            DeniedError: it refuses, as one that knows no such resource.
        """
        await self._sent("DELETE", place)

    async def configs(self) -> HpkeConfigList:
        """Return the keys that clients seal to.

        Raises:
            UnansweredError: the server did not answer as it should.
            InvalidInputError: they cannot be read.
        """
        place = f"{self.url.rstrip('/')}/hpke_config"
        heard = await self._sent("GET", place)
        self._check_type(heard, place, HpkeConfigList)
        return HpkeConfigList.decode(heard.body)

    async def upload(self, reports: bytes) -> UploadErrors:
        """Bring an UploadRequest to the leader; return the reports that it does not take.

        Raises:
            UnansweredError: the leader did not answer as it should.
            DeniedError: it cannot read the request.
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
        """Return where a resource is: at this server, since the token goes there."""
        asked = httpx.URL(place)
        try:
            made = asked.join(heard.headers.get("location", ""))
        except httpx.InvalidURL:
            raise UnansweredError(f"{asked.host} names a resource of no address") from None
        if (made.scheme, made.host, made.port) != (asked.scheme, asked.host, asked.port):
            raise UnansweredError(f"{asked.host} names a resource of another server")
        return str(made)

    async def _sent(self, method: str, place: str, body: bytes = b"", type: str = "") -> _Heard:
        """Return a response of success."""
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
    """Return the draft's type of a problem document, None for another one, and what it says."""
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
    """Return the seconds after which a deferred answer is asked for again."""
    text = heard.headers.get("retry-after", "")[:10]
    number = int(text) if text.isascii() and text.isdigit() else 1
    return float(min(max(number, 1), _LONGEST_POLL))


def _host(place: str) -> str:
    return httpx.URL(place).host
