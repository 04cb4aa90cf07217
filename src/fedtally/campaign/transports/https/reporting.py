"""The client's part in reporting to two servers over HTTPS.

To make a report spends the client's items: they must not be reported again. So `Beginning` first
asks both servers for the state of the release. `Sending` sends a report that is made. It ends when
both servers have accepted the report, when one server has refused it, or when one server cannot say
whether it has the report or gave no final answer until the report was too old. Neither class opens
a connection or reads a clock; `carried` is the loop around them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx

from fedtally.campaign.transports.https.join import (
    FIRST_WAIT,
    HOUR_WAIT,
    LONGEST_WAIT,
    MOST_PROBLEM,
    Heard,
    Pause,
    clock_words,
    sent,
    spread,
    words_of,
)
from fedtally.campaign.transports.https.resource import (
    FRAME_TYPE,
    PROBLEM_TYPE,
    STATE_TYPE,
    Release,
    read_state,
)
from fedtally.secagg.two_server import BatchPolicy, Side
from fedtally.store import Fate, Said, Unsent

# The order of requests. The helper is first, so that it has every report that the leader has.
ORDER: tuple[Side, Side] = ("helper", "leader")
FRESH_SECONDS = 60.0  # how long a client relies on a server's answer that the release is open
# In seconds. A server refuses a new report whose time is more than CLOCKS_APART ahead of the
# server's clock, or more than PATIENCE behind this clock.
CLOCKS_APART = 3600.0
AGAIN, HOURLY = "; asks again", ", and is asked hourly"  # the ends of messages to the owner
PATIENCE = BatchPolicy.max_age
_REFUSALS = {
    400: "cannot read the report: its plan or its version is another one",
    403: "does not know this client, or the report was changed on its way",
    409: "has another report of this client, or takes none of this round or time",
    410: "takes no more reports of this release",
}


class Request(NamedTuple):
    """The next request to a server.

    Args:
        server: the server that gets the request, leader or helper.
        frame: the frame to send; None: the request is for the state of the release.
    """

    server: Side
    frame: bytes | None = None


class Begin(NamedTuple):
    """The result that both servers accept reports: the client should now make its report."""


class Never(NamedTuple):
    """The result that the client cannot report; no report was made, and no item is spent.

    Args:
        why: the reason, as a text for the client's owner.
    """

    why: str


@dataclass
class _Waits:
    """The waits of a client after failed requests, and the messages about the failures.

    If a failure is the same as the failure before, the owner is not told again.

    Args:
        random: returns a uniform number, at least 0 and below 1.
        tell: shows a message to the client's owner.
    """

    random: Callable[[], float]
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self.goes_on()

    def goes_on(self) -> None:
        """Note that a request has succeeded.

        A wait that is pending is dropped. The next failure is told to the owner. The waits after
        failures begin at `FIRST_WAIT` again, but a server may ask for a longer one.
        """
        self._pause, self._wait, self._why = 0.0, FIRST_WAIT, ""

    def taken(self) -> float:
        """Return the seconds to wait before the next request; the next call returns 0.

        The result is a duration. If it were a time, setting the clock back would make the wait
        longer.
        """
        seconds, self._pause = self._pause, 0.0
        return seconds

    def heard(self, server: Side, found: Heard) -> None:
        """Note a response that is not one of the expected answers, and set the wait.

        After a 404 the wait is half an hour to an hour. After other responses it is as in `failed`.

        Args:
            server: the server that was asked.
            found: the response.
        """
        if found.status == 404:
            self._tell_once(f"the {server} knows no such release{HOURLY}")
            self._pause = self._spread(HOUR_WAIT)
            return
        what = f", {found.type}" if found.type else ""
        self.failed(f"the {server} gives no answer but HTTP {found.status}{what}", found)

    def failed(self, why: str, found: Heard | None = None) -> None:
        """Note a failure, and set the wait.

        Args:
            why: the text about the failure, for the owner.
            found: the response, which may say how long to wait; None: there was no response.
        """
        self._tell_once(f"{why}{AGAIN}")
        least = 0.0 if found is None else found.seconds * (1 + self.random() / 2)
        self._pause = max(self._spread(self._wait), least)
        self._wait = min(LONGEST_WAIT, 2 * self._wait)

    def _tell_once(self, why: str) -> None:
        if why != self._why:
            self.tell(why)
        self._why = why

    def _spread(self, seconds: float) -> float:
        return spread(seconds, self.random)


@dataclass
class Beginning:
    """The exchange by which a client finds out whether it can report now; no item is spent.

    Args:
        random: returns a uniform number, at least 0 and below 1.
        tell: shows a message to the client's owner.
    """

    random: Callable[[], float]
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self._waits, self._open = _Waits(self.random, self.tell), dict[Side, float]()
        self._never: Never | None = None

    def next(self, now: float) -> Request | Pause | Begin | Never:
        """Return what to do next.

        Args:
            now: the time, Unix seconds.

        Returns:
            A `Request` to send; a `Pause`; or the result: `Begin` or `Never`.
        """
        if self._never is not None:
            return self._never
        if pause := self._waits.taken():
            return Pause(pause)
        for server in ORDER:
            if not now - FRESH_SECONDS <= self._open.get(server, -1.0) <= now:
                return Request(server)
        return Begin()

    def heard(self, server: Side, found: Heard, now: float) -> None:
        """Process a response to a request for the state of the release.

        The exchange ends with `Never` if the response says that the release is not open, if the
        clocks differ by more than `CLOCKS_APART`, or if the other of the two servers answers. If
        the response does not tell the state of the release, or not the time, the server is asked
        again.

        Args:
            server: the server that was asked.
            found: the response.
            now: the time, Unix seconds.
        """
        state = _state(server, found)
        if state is None and _is_other(server, found):
            self._end(f"at the address of the {server} is the other server: exchange the two")
        elif state is None:
            self._waits.heard(server, found)
        elif state is not Release.OPEN:
            self._end(f"the release is {state} at the {server}: nobody begins a report")
        elif (apart := found.apart(now)) is None:
            self._waits.failed(f"the {server} does not say what time it is")
        elif abs(apart) > CLOCKS_APART:
            self._end(f"{clock_words(apart, server)}: set it, and begin again")
        else:
            self._open[server] = now
            self._waits.goes_on()

    def failed(self, why: str) -> None:
        """Note that a request got no response.

        Args:
            why: the text about the failure, for the owner.
        """
        self._waits.failed(why)

    def _end(self, why: str) -> None:
        self._never = Never(f"{why}; nothing was spent")


@dataclass
class Sending:
    """The exchange that sends a report, first to the helper and then to the leader.

    It ends when the fate of the report is known: it is accepted, not counted, or unknown.

    Args:
        report: the report, which is stored in the client's record.
        random: returns a uniform number, at least 0 and below 1.
        tell: shows a message to the client's owner.
    """

    report: Unsent
    random: Callable[[], float] = field(repr=False)
    tell: Callable[[str], None] = field(repr=False)

    def __post_init__(self) -> None:
        self._waits, self._left = _Waits(self.random, self.tell), dict(self.report.frames)
        self._fate: Fate | None = None
        # server -> whether a request went to this server after the report had become too old
        self._was_last = dict.fromkeys(ORDER, False)

    def next(self, now: float) -> Request | Pause | Fate:
        """Return what to do next.

        When the report has become too old, the server whose turn it is still gets one more request:
        the clock of this client may be wrong, and a server that already has the report will say so.

        Args:
            now: the time, Unix seconds.

        Returns:
            A `Request` to send; a `Pause`; or the result, the fate of the report.

        Raises:
            StoreError: the client's record could not be written. The caller may call again.
        """
        if self._fate is not None:
            return self._fate
        server = next(one for one in ORDER if one in self._left)
        over = self.report.time + PATIENCE
        if self._was_last[server]:
            self.tell(f"the {server} did not answer for {PATIENCE // 86_400} days")
            self._says(server, Said.NOTHING)
            return self.next(now)
        if pause := min(self._waits.taken(), max(over - now, 0)):
            return Pause(pause)
        self._was_last[server] = now >= over
        return Request(server, self._left[server])

    def heard(self, server: Side, found: Heard, _now: float) -> None:
        """Process a response to a frame that was sent.

        The module `collecting` lists the responses that are final. After another response, the
        server gets the frame again.

        Args:
            server: the server that got the frame.
            found: the response.

        Raises:
            StoreError: the client's record could not be written. The frame will be sent again.
        """
        if found.status == 201 and found.type == STATE_TYPE:
            is_news = server in self._left
            self._says(server, Said.ACCEPTED)
            self._waits.goes_on()
            if is_news:
                self.tell(f"the {server} has the report")
        elif found.status in _REFUSALS and found.type == PROBLEM_TYPE:
            self.tell(f"the {server} {_REFUSALS[found.status]}")
            self._says(server, Said.REFUSED)
        elif found.status == 410 and found.type == STATE_TYPE:
            self.tell(f"the {server} has destroyed its key, and cannot say what it took")
            self._says(server, Said.NOTHING)
        else:
            self._waits.heard(server, found)

    def failed(self, why: str) -> None:
        """Note that a request got no response; the server gets the frame again.

        Args:
            why: the text about the failure, for the owner.
        """
        self._waits.failed(why)

    def _says(self, server: Side, what: Said) -> None:
        # The record is written first. Otherwise, after a crash, the leader could have its frame
        # although the client does not know that the helper has the other one.
        self._fate = self.report.said(server, what)
        self._left.pop(server, None)


async def carried(
    http: httpx.AsyncClient,
    urls: Mapping[Side, str],
    talk: Beginning | Sending,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[object]],
) -> Begin | Never | Fate:
    """Send the requests of an exchange until it has its result; return the result.

    Args:
        http: the HTTP client; redirects are not followed.
        urls: the URL of the release at each server,
            `https://HOST/v1/plans/FINGERPRINT/releases/NUMBER`.
        talk: the exchange.
        clock: returns the time, Unix seconds.
        sleep: waits for a number of seconds.

    Returns:
        `Begin` or `Never` for a `Beginning`, a `Fate` for a `Sending`.
    """
    while True:
        step = talk.next(clock())
        if isinstance(step, Pause):
            await sleep(step.seconds)
        elif isinstance(step, Request):
            await _exchange(http, urls[step.server], step, talk, clock)
        else:
            return step


async def _exchange(
    http: httpx.AsyncClient,
    url: str,
    step: Request,
    talk: Beginning | Sending,
    clock: Callable[[], float],
) -> None:
    """Send one request of an exchange, and tell the exchange its response or failure.

    Args:
        http: the HTTP client.
        url: the URL of the release at the server.
        step: the request.
        talk: the exchange.
        clock: returns the time, Unix seconds.
    """
    headers = {"accept-encoding": "identity"}
    if step.frame is None:
        request = http.build_request("GET", url, headers=headers)
    else:
        headers["content-type"] = FRAME_TYPE
        place = f"{url.rstrip('/')}/reports"
        request = http.build_request("PUT", place, content=step.frame, headers=headers)
    try:
        head, content, now = await sent(http, request, STATE_TYPE, MOST_PROBLEM, clock)
    except (httpx.RequestError, httpx.InvalidURL, OSError, ValueError) as error:
        talk.failed(f"the {step.server} cannot be reached ({words_of(error)})")
        return
    talk.heard(step.server, head._replace(content=content or b""), now)


def _is_other(server: Side, found: Heard) -> bool:
    """Tell whether a response to a request for `server` comes from the other of the two servers."""
    other = next(one for one in ORDER if one != server)
    return found.type == STATE_TYPE and _state(other, found) is not None


def _state(server: Side, found: Heard) -> Release | None:
    """Return the state of the release that a response tells; None if the response tells no state.

    Args:
        server: the server that was asked. If the response names the other server, it tells no
            state.
        found: the response.
    """
    if found.status == 410 and found.type == PROBLEM_TYPE:
        return Release.CLOSED
    if found.status == 200 and found.type == STATE_TYPE:
        return read_state(found.content, server)
    return None
