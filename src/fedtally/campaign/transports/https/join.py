"""The program that passes messages between a campaign's HTTPS server and a client's agent.

A message of the protocol is called a frame. The agent, which has the client's keys and items,
answers frames on a Unix socket. This program has only the client's token. `Talk` decides what is
sent and when; it opens no connection and reads no clock. `join` is the loop around it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Literal, NamedTuple

import httpx

from fedtally.campaign.transports.https.resource import FRAME_TYPE, HANDLED, WAIT_SECONDS, digest
from fedtally.campaign.transports.pipe import PipeError
from fedtally.errors import InvalidInputError
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind, RemoteProtocolError

# The wait after a failed request, in seconds. It is at first FIRST_WAIT, and each further failure
# doubles it. It is at most SESSION_WAIT while a session may still run, and at most LONGEST_WAIT
# otherwise. If LONGEST_WAIT were an hour, half of the idle clients would stay away for twenty
# minutes after an outage of half an hour.
FIRST_WAIT = 1.0
SESSION_WAIT = 30.0
LONGEST_WAIT = 600.0
# The longest wait, in seconds, if the server has no such campaign. If a server asks for a longer
# wait than this, it counts as this.
HOUR_WAIT = 3600.0
# For so many seconds after a frame, or after the start of the program, a session may still run. The
# server chooses when a session really ends, but only the first frame of a session, the Invite, says
# when.
SESSION_SECONDS = 3600.0
TOKEN = re.compile(r"[!-~]{1,512}")
CLOCKS_APART = 60.0  # if two clocks differ by more than these seconds, the operator is warned
MOST_BYTES = 1 << 30  # the most bytes of a frame; the agent itself refuses frames that are too long
MOST_PROBLEM = 1 << 12  # the most bytes that are read of a response without a frame
TIMEOUT = httpx.Timeout(WAIT_SECONDS + 25, connect=15)
# A client that is in no session sends a request every 15 to 45 s. By default httpx would close an
# idle connection after 5 s, and each request would need a new TLS handshake. nginx closes an idle
# connection after 65 s.
LIMITS = httpx.Limits(keepalive_expiry=60.0)
_MOST_SESSIONS = 64  # how many sessions without this client are remembered (`_leave_alone`)
Party = Literal["server", "agent"]  # the two parties that may fail to answer


class Over(Enum):
    """Why a client sends no more requests; the value is a text for the client's operator."""

    CAMPAIGN = "the campaign is over"
    TOKEN = (
        "the server takes this token no more, never did,"  # noqa: S105 - no token
        " or has not read it yet"
    )


_OVER = {401: Over.TOKEN, 410: Over.CAMPAIGN}  # HTTP status -> why the client stops


class Pause(NamedTuple):
    """The instruction to wait for some seconds, and then to send the next request."""

    seconds: float


class Heard(NamedTuple):
    """A response of a server.

    Args:
        status: the HTTP status.
        type: the content type, without its parameters.
        retry_after: the value of the header `retry-after`.
        date: the value of the header `date`.
        content: the body of the response, such as a frame.
    """

    status: int
    type: str = ""
    retry_after: str = ""
    date: str = ""
    content: bytes = b""

    @property
    def is_frame(self) -> bool:
        """Whether the response is a frame: its status is 200, and its content type is a frame's.

        The status alone does not suffice: the login page of a public network also has the status
        200.
        """
        return self.status == 200 and self.type == FRAME_TYPE

    @property
    def seconds(self) -> float:
        """The wait that the server asks for, in seconds, at most an hour; 0: it asks for no wait.

        A header that is no whole number counts as 0.
        """
        text = self.retry_after[:10]  # a number with more digits is more than an hour anyway
        return float(min(int(text), HOUR_WAIT)) if text.isascii() and text.isdigit() else 0.0

    def apart(self, now: float) -> float | None:
        """Return by how many seconds `now` is ahead of the server's clock.

        Returns None if the response has no valid date.

        Args:
            now: the time at which the response came, Unix seconds.
        """
        try:
            return now - parsedate_to_datetime(self.date).timestamp()
        except (ValueError, OverflowError):
            return None


@dataclass
class Talk:
    """The state of a client's exchange with a server; it decides which request comes next.

    Args:
        token: the client's token for this campaign.
        random: returns a uniform number, at least 0 and below 1.
        tell: shows a message to the operator.
        now: the time, Unix seconds.

    Attributes:
        said: the body of the next request: the agent's last answer; empty once the server has
            received it.

    Raises:
        InvalidInputError: the token is empty, longer than 512 characters, or has other characters
            than visible ASCII.
    """

    token: str = field(repr=False)
    random: Callable[[], float]
    tell: Callable[[str], None]
    now: float
    said: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        # With another token, httpx would refuse the header with an error that shows the token.
        if not TOKEN.fullmatch(self.token):
            raise InvalidInputError(
                "this is no token: it has at most 512 letters of ASCII, and no space or end of line"
            )
        self._handled, self._wait, self._until = b"", FIRST_WAIT, self.now + SESSION_SECONDS
        self._session: bytes | None = None  # the session of the last frame
        self._left_alone: deque[bytes | None] = deque(maxlen=_MOST_SESSIONS)
        # `_why`: the failure that lasts, as the operator was told; "": no failure lasts.
        # `_failing`: who failed. `_is_apart`: whether the clocks differed at the last response.
        self._why, self._failing, self._is_apart = "", "", False

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the next request: the token, and the digest of the last handled frame."""
        return {
            "authorization": f"Bearer {self.token}",
            HANDLED: self._handled.hex(),
            "accept-encoding": "identity",
        }

    def heard(self, found: Heard, now: float) -> Pause | Over | bytes:
        """Decide what to do after a response.

        Args:
            found: the response.
            now: the time, Unix seconds.

        Returns:
            A `Pause`: wait, then send the next request. An `Over`: stop for good. Bytes: a frame
            that the agent must answer; then call `answered`.
        """
        self._compare_clocks(found.apart(now))
        if found.status in _OVER:
            return _OVER[found.status]
        # In a session a 404 is a failure like all others: nginx may have lost its configuration.
        if found.status == 404 and not (self._session and now < self._until):
            self._tell_once("the server knows no such campaign, and is asked hourly")
            return Pause(self._spread(HOUR_WAIT))
        if found.status == 413 and self.said:
            return self._leave_alone()
        if found.is_frame:
            self._answers("server")
            self.said = b""
            return self._taken(found.content, now)
        if found.status == 204:
            self._answers("server")
            self._goes_on()
            return Pause(max(found.seconds, FIRST_WAIT) + self.random())
        what = f", {found.type}" if found.status == 200 else ""
        return self.failed(f"got no answer but HTTP {found.status}{what}", now, found.seconds)

    def failed(self, why: str, now: float, least: float = 0.0, who: Party = "server") -> Pause:
        """Note a failure, and return the wait before the same request is sent again.

        The wait is random and doubles with each failure. It is at most `SESSION_WAIT` while a
        session may run, else `LONGEST_WAIT`. This bound also holds if the server asked for a longer
        wait.

        Args:
            why: the text about the failure, for the operator.
            now: the time, Unix seconds.
            least: the seconds of the wait that the server asked for; 0: it asked for no wait.
            who: the party that failed to answer.
        """
        self._tell_once(f"{why}; asks again", who)
        longest = SESSION_WAIT if now < self._until else LONGEST_WAIT
        seconds = max(self._spread(self._wait), least * (1 + self.random() / 2))
        self._wait = min(longest, 2 * self._wait)
        return Pause(min(longest, seconds))

    def answered(self, frame: bytes, answer: bytes) -> Pause:
        """Store the agent's answer to a frame; return the wait before the request that carries it.

        From now on the frame counts as handled.

        Args:
            frame: the frame.
            answer: the agent's answer; empty: the agent gives no answer.
        """
        name = digest(frame)
        # A server may send a handled frame again, after ten seconds or after its restart. With the
        # pause such repeats cannot come fast.
        pause = self._spread(FIRST_WAIT) if name == self._handled else 0.0
        self._answers("agent")
        self._goes_on()
        self._handled, self.said = name, answer
        return Pause(pause)

    def _goes_on(self) -> None:
        """Note that the last request succeeded: forget its body, the failures and the long wait."""
        self.said, self._wait, self._why, self._failing = b"", FIRST_WAIT, "", ""

    def _answers(self, who: Party) -> None:
        """Tell the operator that a party answers again, if its failure was the last one told.

        Args:
            who: the party that has answered.
        """
        if self._failing == who:
            self.tell(f"the {who} answers again")
            self._why = self._failing = ""

    def _taken(self, frame: bytes, now: float) -> Pause | bytes:
        self._until = max(self._until, now + SESSION_SECONDS)
        message = wire.parse(frame)
        self._session = None if message is None else message.session
        if message is not None and message.kind is Kind.INVITE:
            self._until = max(self._until, _not_after(message.body))
        if self._session in self._left_alone:
            return self.answered(frame, b"")
        return frame

    def _leave_alone(self) -> Pause:
        """Take no further part in the session, since the server refuses the answer as too long.

        Later frames of the session are answered with empty bytes, and do not reach the agent.
        Returns the wait before the next request.
        """
        self._left_alone.append(self._session)
        self.tell(
            f"the server takes no answer of {len(self.said):,} bytes: this session is left alone;"
            " tell the operator of the server, whose limit on bodies may be too low"
        )
        self._goes_on()
        return Pause(self._spread(FIRST_WAIT))

    def _compare_clocks(self, apart: float | None) -> None:
        if apart is None:
            return
        was_apart, self._is_apart = self._is_apart, abs(apart) > CLOCKS_APART
        if self._is_apart and not was_apart:
            self.tell(
                f"{clock_words(apart, 'server')}: set it, or sessions seem to be over, or not to"
                " have begun"
            )

    def _tell_once(self, why: str, who: Party = "server") -> None:
        """Tell the operator about a failure if it differs from the failure that was told last.

        After a success, any failure is told.

        Args:
            why: the text about the failure.
            who: the party that failed to answer.
        """
        if why != self._why:
            self.tell(why)
        self._why, self._failing = why, who

    def _spread(self, seconds: float) -> float:
        return spread(seconds, self.random)


def _not_after(body: bytes) -> float:
    """Return when the session of an Invite ends, Unix seconds; 0: the Invite cannot be read.

    Args:
        body: the body of the Invite, the first frame of a session.
    """
    try:
        return wire.decode_terms(wire.split_invite(body)[0]).not_after
    except RemoteProtocolError:
        return 0.0


async def join(
    http: httpx.AsyncClient,
    url: str,
    token: str,
    answer: Callable[[bytes], Awaitable[bytes]],
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[object]],
    random: Callable[[], float],
    tell: Callable[[str], None],
) -> Over:
    """Pass frames between a server and an agent until the client must stop; return the reason.

    Args:
        http: the HTTP client; redirects are not followed.
        url: the URL of the campaign, `https://HOST/v1/campaigns/FINGERPRINT`.
        token: the token of this client.
        answer: returns the agent's answer to a frame; empty bytes: the agent gives no answer. If it
            raises an OSError or a `PipeError`, the agent is away, and gets the frame again later.
        clock: returns the time, Unix seconds.
        sleep: waits for a number of seconds.
        random: returns a uniform number, at least 0 and below 1.
        tell: shows a message to the operator.

    Raises:
        InvalidInputError: the token is empty or too long, or has other characters than visible
            ASCII.
    """
    talk, step = Talk(token, random, tell, clock()), f"{url.rstrip('/')}/step"
    while True:
        done = await _asked(http, step, talk, clock)
        if isinstance(done, Over):
            return done
        if isinstance(done, bytes):
            try:
                done = talk.answered(done, await answer(done))
            except (OSError, PipeError) as error:
                why = f"the agent does not answer ({words_of(error)})"
                done = talk.failed(why, clock(), who="agent")
        await sleep(done.seconds)


async def _asked(
    http: httpx.AsyncClient, step: str, talk: Talk, clock: Callable[[], float]
) -> Pause | Over | bytes:
    """Send one request to the server; return what to do next, see `Talk.heard`.

    Args:
        http: the HTTP client.
        step: the URL of the request.
        talk: the state of the exchange, which has the contents of the request.
        clock: returns the time, Unix seconds.
    """
    request = http.build_request("POST", step, content=talk.said, headers=talk.headers)
    try:
        head, content, now = await sent(http, request, FRAME_TYPE, MOST_BYTES, clock)
    # InvalidURL: httpx reads the address in a redirect, although it does not follow it. The login
    # page of a public network may send anything there.
    except (httpx.RequestError, httpx.InvalidURL, OSError, ValueError) as error:
        return talk.failed(f"the server cannot be reached ({words_of(error)})", clock())
    if head.is_frame and content is None:
        return talk.failed("the server sent a frame that is too long", now)
    return talk.heard(head._replace(content=content or b""), now)


async def sent(
    http: httpx.AsyncClient,
    request: httpx.Request,
    type: str,
    most: int,
    clock: Callable[[], float],
) -> tuple[Heard, bytes | None, float]:
    """Send a request once, without following redirects, and read the response.

    Args:
        http: the HTTP client.
        request: the request.
        type: the expected content type.
        most: the most bytes of a body of this type; another body may have `MOST_PROBLEM` bytes.
        clock: returns the time, Unix seconds.

    Returns:
        The response without its body; the body, or None if the body is longer than allowed; and the
        time at which the head of the response came, Unix seconds.

    Raises:
        httpx.RequestError: the server cannot be reached, or the connection broke.
        httpx.InvalidURL, ValueError: the response is a redirect to an address that httpx cannot
            read.
    """
    response = await http.send(request, stream=True, follow_redirects=False)
    try:
        head = Heard(
            response.status_code,
            response.headers.get("content-type", "").partition(";")[0].strip().lower(),
            response.headers.get("retry-after", ""),
            response.headers.get("date", ""),
        )
        now = clock()
        return head, await _read(response, most if head.type == type else MOST_PROBLEM), now
    finally:
        await response.aclose()


async def _read(response: httpx.Response, most: int) -> bytes | None:
    """Read the body of a response, and return it; None: it is longer than `most` bytes."""
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


def spread(seconds: float, random: Callable[[], float]) -> float:
    """Return a random wait between `seconds` / 2 and `seconds`.

    With equal waits, clients that failed at the same time would all come back at the same time.
    """
    return seconds * (1 + random()) / 2


def clock_words(apart: float, server: str) -> str:
    """Return in words by how many seconds this clock differs from a server's clock.

    Args:
        apart: the seconds by which this clock is ahead; negative: behind.
        server: the noun for the server.
    """
    how = "ahead of" if apart > 0 else "behind"
    return f"this clock is {abs(apart):,.0f} seconds {how} the {server}'s"


def words_of(error: Exception) -> str:
    """Return the text of an error, or the name of its type if it has no text."""
    return str(error) or type(error).__name__
