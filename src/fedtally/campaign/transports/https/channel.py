"""The protocol between two servers: the leader sends requests, and the helper answers them.

The helper listens for the leader on an address of its own. Below the path of each release it serves
these resources:

- `POST checks`: the body has up to 4,096 ids of reports, 16 bytes each. The response is a frame
  with the helper's checks, its half of the verification of those of these reports that it has. The
  response is 204 if the helper has none of the reports.
- `GET offer`: the response is a frame with the ids of all reports that the helper has.
- `POST query`: the body is the leader's query, which closes the release. The response is a frame
  with the helper's answer. The response is 202 while the helper still computes the answer: then the
  leader sends the same query again.
- `POST landed`: the leader says that the release is over: its sum has landed (it is in the result)
  or was lost. When all releases are over, the helper's operator may destroy the key that decrypts
  the reports.

No response may be cached. Otherwise the leader could get an old offer, and reports that came since
this offer would be missing in the sum.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedtally.base.text import escaped, shortened
from fedtally.campaign.aggregate_folder import landed_name
from fedtally.campaign.transports.https.collecting import UNCACHED, Collecting
from fedtally.campaign.transports.https.join import Heard, sent, words_of
from fedtally.campaign.transports.https.resource import FRAME_TYPE, PROBLEM_TYPE, release_path
from fedtally.campaign.transports.https.web import BUSY, Refused, body_of, draw, length_of
from fedtally.errors import FedtallyError, OvertakenError
from fedtally.plan import Plan
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server import BatchRefusedError, BatchState
from fedtally.secagg.two_server.reports import ID_BYTES
from fedtally.secagg.two_server.servers import CHECKS_OF_A_FRAME as MOST_IDS
from fedtally.store import BatchStore, StoreError

ANSWER_SECONDS = 20.0  # a query that is not answered after this time gets the response 202
_FRAME_BYTES = 128  # a bound on the bytes of a frame besides its ids, checks or numbers
_AGAIN = 1, 2  # bounds, in seconds, of the wait that a 202 asks for
_TIMEOUT = httpx.Timeout(ANSWER_SECONDS + 40, connect=15)
_T = TypeVar("_T")


class ChannelError(FedtallyError):
    """Say that the helper cannot be reached, or does not answer as the protocol demands."""


# ---- the helper ----


@dataclass
class _Answering:
    """An answer to a query that the helper computes at the moment.

    Attributes:
        digest: the SHA-256 of the query.
        task: the future with the answer.
    """

    digest: bytes
    task: asyncio.Future[bytes]


@dataclass
class Channel:
    """The helper's side of the protocol: the resources that it serves to the leader.

    Args:
        fingerprint: the fingerprint of the plan.
        releases: the releases of the plan, in order.
        store: the helper's database, in which it writes that a release is over.
        note: shows a message to the helper's operator.
        draw: returns a random whole number between two bounds, both included.
        patience: the seconds after which a query that is not answered gets the response 202.
    """

    fingerprint: str
    releases: Sequence[Collecting]
    store: BatchStore
    note: Callable[[str], None]
    draw: Callable[[int, int], int] = draw
    patience: float = ANSWER_SECONDS
    _answers: dict[int, _Answering] = field(default_factory=dict, init=False)

    def application(self) -> Starlette:
        """Return the ASGI application that serves the leader.

        It checks no token, so it must run behind TLS that admits only the leader's certificate.
        """
        path = release_path("{plan}", 0).removesuffix("0") + "{release}"
        rows = {
            ("POST", "checks"): self._checks,
            ("GET", "offer"): self._offer,
            ("POST", "query"): self._query,
            ("POST", "landed"): self._landed,
        }
        return Starlette(
            routes=[
                Route(f"{path}/{name}", self._answering(answer), methods=[method])
                for (method, name), answer in rows.items()
            ]
        )

    def _answering(
        self, answer: Callable[[Request, int], Awaitable[Response]]
    ) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Response:
            try:
                response = await answer(request, self._number(request))
            except Refused as error:
                response = error.response(self.draw)
            response.headers.update(UNCACHED)
            return response

        return answered

    def _number(self, request: Request) -> int:
        number, plan = request.path_params["release"], request.path_params["plan"]
        if plan != self.fingerprint or number not in map(str, range(len(self.releases))):
            raise Refused(404, "no such release")
        return int(number)

    async def _checks(self, request: Request, number: int) -> Response:
        size = length_of(request, MOST_IDS * ID_BYTES, f"at most {MOST_IDS} ids at once")
        if size % ID_BYTES:
            raise Refused(400, "an id has 16 bytes")
        body = await body_of(request)
        ids = [body[start : start + ID_BYTES] for start in range(0, len(body), ID_BYTES)]
        frames = await self._of(number, lambda helper: helper.checks(ids))
        return Response(frames[0], media_type=FRAME_TYPE) if frames else Response(status_code=204)

    async def _offer(self, _: Request, number: int) -> Response:
        frame = await self._of(number, lambda helper: helper.offer())
        return Response(frame, media_type=FRAME_TYPE)

    async def _query(self, request: Request, number: int) -> Response:
        """Answer a query.

        The answer may take minutes to compute. If the request ends before, the work continues, and
        a later request with the same query gets the answer. During the work, a request with another
        query gets a 202, or a 503 if the work ends while the request waits. If the answer is ready
        and nobody has fetched it, the helper refuses another query. The answer stays.
        """
        most = _FRAME_BYTES + ID_BYTES * self.releases[number].server.parameters.n_max
        length_of(request, most, f"no query of this plan has more than {most} bytes")
        query = await body_of(request)
        this, found = hashlib.sha256(query).digest(), self._answers.get(number)
        if found is not None and found.digest != this and found.task.done():
            if found.task.exception() is None:
                frame = await self._of(number, lambda helper: helper.answer(query))
                return Response(frame, media_type=FRAME_TYPE)
            found = None  # an error is no answer: the new query takes its place
        if found is None:
            task = asyncio.ensure_future(self._of(number, lambda helper: helper.answer(query)))
            found = self._answers[number] = _Answering(this, task)
        await asyncio.wait({found.task}, timeout=self.patience)
        if not found.task.done():
            headers = {"retry-after": str(self.draw(*_AGAIN))}
            return Response(status_code=202, headers=headers)
        if found.digest != this:  # the answer is to an earlier query, which was computed meanwhile
            raise Refused(503, "another query was answered: send the same again", BUSY)
        # Several requests may wait for one answer. The first of these requests removes the entry.
        # When a later one comes here, the entry may be of the next query.
        if self._answers.get(number) is found:
            del self._answers[number]
        return Response(found.task.result(), media_type=FRAME_TYPE)

    async def _landed(self, _: Request, number: int) -> Response:
        server = self.releases[number].server
        if server.state is not BatchState.DONE:
            raise Refused(409, "this release was not answered")
        name = landed_name(server.rounds)
        await self._of(number, lambda _: self.store.keep(name, b"landed"))
        return Response(status_code=204)

    async def _of(self, number: int, ask: Callable[[Any], _T]) -> _T:
        """Call the helper of a release in the thread of `Collecting.ask`; return the result.

        Args:
            number: the number of the release.
            ask: the call; its argument is the helper.

        Raises:
            Refused: the call failed, or another process uses the store.
        """
        one = self.releases[number]

        def asked(helper: Any) -> _T:
            # Another process may have taken over, and have accepted reports that this process does
            # not know. If this process still answered, these reports would be missing in the sum.
            self.store.check_claim()
            return ask(helper)

        try:
            return await one.ask(asked)
        except (BatchRefusedError, LocalProtocolError) as error:
            raise Refused(409, str(error)) from None
        except OvertakenError:
            one.overtaken.set()
            raise Refused(503, "another process goes on: send the same again", BUSY) from None
        except StoreError as error:
            self.note(f"the leader was not answered: {error}")
            raise Refused(503, "the store does not answer: send the same again", BUSY) from None
        except FedtallyError as error:
            self.note(f"the leader was not answered: {error}")
            raise Refused(500, "the helper's operator must look at it") from None


# ---- the leader ----


@dataclass(frozen=True)
class Asking:
    """The leader's side of the protocol, for one release: it sends requests to the helper.

    Args:
        http: the HTTP client, which trusts only the helper's certificate.
        url: the URL of the helper, `https://HOST:PORT`.
        plan: the plan.
        number: the number of the release.
        clock: returns the time, Unix seconds.
        sleep: waits for a number of seconds.
    """

    http: httpx.AsyncClient
    url: str
    plan: Plan
    number: int
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]

    async def checks(self, ids: Sequence[bytes]) -> bytes | None:
        """Ask for the helper's checks, its half of the verification of reports.

        Args:
            ids: the ids of the reports, at most 4,096.

        Returns:
            A frame with the checks of the reports that the helper has; None: the helper has none of
            these reports.

        Raises:
            ChannelError: the helper cannot be reached, or refuses.
        """
        proof = self.plan.report_proof
        each = ID_BYTES + (0 if proof is None else proof.check_bytes)
        status, frame = await self._sent("POST", "checks", b"".join(ids), len(ids) * each)
        return None if status == 204 else frame

    async def offer(self) -> bytes:
        """Ask for the helper's offer: a frame with the ids of all reports that the helper has.

        Raises:
            ChannelError: the helper cannot be reached, or refuses.
        """
        return (await self._sent("GET", "offer", b"", self._ids))[1]

    async def answer(self, query: bytes) -> bytes:
        """Send a query until the helper has computed its answer; return the answer, a frame.

        While the helper computes the answer, the query is sent again a second after each response,
        without a limit.

        Raises:
            ChannelError: the helper cannot be reached, or refuses, for example because it is busy.
                The caller may send the same query again.
        """
        most = 2 * ID_BYTES + self.plan.summing.of_servers().sizing.packed_bytes
        while True:
            status, answer = await self._sent("POST", "query", query, most)
            if status == 200:
                return answer
            await self.sleep(1.0)

    async def landed(self) -> None:
        """Tell the helper that the release is over: its sum has landed, or was lost.

        Raises:
            ChannelError: the helper cannot be reached, or refuses.
        """
        await self._sent("POST", "landed", b"", 0)

    @property
    def _ids(self) -> int:
        return ID_BYTES * self.plan.summing.most_clients

    async def _sent(self, method: str, name: str, body: bytes, most: int) -> tuple[int, bytes]:
        """Send a request to the helper.

        Args:
            method: the HTTP method.
            name: the resource below the path of the release.
            body: the body of the request.
            most: the most bytes of the ids, checks or numbers in the response. The frame around
                them may have `_FRAME_BYTES` more.

        Returns:
            The status of the response, 200, 202 or 204, and the body. If the status is 200, the
            body is a frame.

        Raises:
            ChannelError: the helper cannot be reached, or the response has another status, another
                type or too many bytes.
        """
        place = f"{self.url}{release_path(self.plan.fingerprint, self.number)}/{name}"
        request = self.http.build_request(method, place, content=body, timeout=_TIMEOUT)
        try:
            head, found, _ = await sent(
                self.http, request, FRAME_TYPE, most + _FRAME_BYTES, self.clock
            )
        except (httpx.RequestError, httpx.InvalidURL, OSError, ValueError) as error:
            raise ChannelError(f"the helper cannot be reached ({words_of(error)})") from None
        if found is not None and (head.is_frame or head.status in (202, 204)):
            return head.status, found
        raise ChannelError(f"the helper answers {name} with HTTP {head.status}{_why(head, found)}")


def _why(head: Heard, content: bytes | None) -> str:
    """Return " (TITLE)" with the title of a problem document; "" if the response has no title."""
    if head.type != PROBLEM_TYPE:
        return ""
    try:
        title = json.loads(content or b"")["title"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return ""
    return f" ({shortened(escaped(title), 200)})" if isinstance(title, str) else ""
