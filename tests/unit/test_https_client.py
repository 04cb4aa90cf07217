"""The client of a campaign over HTTPS, and where its server listens: each by itself."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from campaign_world import plan_of

httpx = pytest.importorskip("httpx")
certifi = pytest.importorskip("certifi")  # httpx has its certificates from it
pytest.importorskip("uvicorn")

from https_world import run

from fedtally.campaign.transports.https import carry, listen, proxy
from fedtally.campaign.transports.https import join as joining
from fedtally.campaign.transports.https.join import Heard, Over, Pause, Talk, join
from fedtally.campaign.transports.https.loop import IDLE
from fedtally.campaign.transports.https.resource import FRAME_TYPE, HANDLED, digest
from fedtally.campaign.transports.pipe import PipeError, read_frame, write_frame
from fedtally.errors import InvalidInputError, MissingExtraError, UnreadableFileError
from fedtally.secagg import wire
from fedtally.secagg.messages import AbortCode, Invite, Kind

NOW = 1_800_000_000.0
HOUR = 3600.0
END = "-----END CERTIFICATE-----\n"
URL = "https://sums.example/v1/campaigns/" + 64 * "a"


def abort(session: int) -> bytes:
    """Return a frame of a session."""
    return wire.frame(Kind.ABORT, bytes([session]) * 32, wire.SERVER, bytes([AbortCode.POLICY]))


def frame_of(content: bytes) -> Heard:
    return Heard(200, FRAME_TYPE, content=content)


def talk_of(told: list[str] | None = None, random: Callable[[], float] = lambda: 1.0) -> Talk:
    return Talk("secret", random, (told if told is not None else []).append, NOW)


# ---- what a client does next ----


def test_a_token_is_not_printed() -> None:
    assert "secret" not in repr(talk_of())


@pytest.mark.parametrize("token", ["", "hush\n", "hush hush", "\u00e9"])
def test_a_token_that_no_header_may_hold_is_refused_and_not_printed(token: str) -> None:
    with pytest.raises(InvalidInputError, match="is no token") as error:
        Talk(token, lambda: 0.5, lambda text: None, NOW)
    assert "hush" not in str(error.value)


def test_an_answer_is_said_until_it_has_arrived_and_names_its_frame() -> None:
    talk = talk_of()
    assert (talk.said, talk.headers[HANDLED]) == (b"", "")
    assert talk.headers["authorization"] == "Bearer secret"
    assert talk.heard(frame_of(abort(1)), NOW) == abort(1)
    # it counts as handled only when the agent has answered
    assert talk.headers[HANDLED] == ""
    assert talk.answered(abort(1), b"answer") == Pause(0)
    named = digest(abort(1)).hex()
    for status in (408, 429, 500, 502, 503, 504, 511, 302, 407, 200, 400, 404):
        assert isinstance(talk.heard(Heard(status, "text/html", content=b"page"), NOW), Pause)
        assert (talk.said, talk.headers[HANDLED]) == (b"answer", named), status
    assert isinstance(talk.failed("a broken connection", NOW), Pause)
    assert talk.said == b"answer"
    talk.heard(Heard(204, retry_after="3"), NOW)
    assert (talk.said, talk.headers[HANDLED]) == (b"", named)


def test_only_401_and_410_end_a_client() -> None:
    for status in range(200, 600):
        found = talk_of().heard(Heard(status, "text/html"), NOW)
        assert isinstance(found, Over) == (status in (401, 410)), status
    assert talk_of().heard(Heard(410), NOW) is Over.CAMPAIGN
    assert talk_of().heard(Heard(401), NOW) is Over.TOKEN


def test_a_page_is_never_read_as_a_frame() -> None:
    """As of a captive portal, which answers everything with 200 and a page of its own."""
    told: list[str] = []
    talk = talk_of(told)
    found = talk.heard(Heard(200, "text/html", content=abort(1)), NOW)
    assert isinstance(found, Pause) and found.seconds <= 30
    assert told == ["got no answer but HTTP 200, text/html; asks again"]


def test_while_a_session_may_run_a_client_asks_every_half_minute_and_else_every_ten() -> None:
    told: list[str] = []
    for random, most in ((lambda: 0.0, 15.0), (lambda: 1.0, 30.0)):
        talk = talk_of(told, random)
        waits = [talk.failed("no network", NOW).seconds for _ in range(9)]
        assert waits == sorted(waits) and waits[-1] == most
        assert waits[0] == most / 30
        assert talk.failed("no network", NOW + HOUR - 1).seconds == most
        later = [talk.failed("no network", NOW + HOUR).seconds for _ in range(9)]
        assert later == sorted(later) and later[-1] == 20 * most
        talk.heard(Heard(204), NOW)
        assert talk.failed("no network", NOW).seconds == most / 30  # from the beginning
    # once until something goes right
    assert told == ["no network; asks again", "the server answers again", told[0]] * 2


def test_a_frame_says_for_how_long_a_session_may_run() -> None:
    talk = talk_of()
    for content, end in (
        (abort(1), NOW + 5000 + HOUR),
        (invite(NOW + 50_000), NOW + 50_000),
        # garbled terms say nothing
        (wire.frame(Kind.INVITE, bytes(32), wire.SERVER, b"short"), NOW + 50_000),
    ):
        talk.heard(frame_of(content), NOW + 5000)
        for _ in range(9):
            talk.failed("no network", end - 1)
        assert talk.failed("no network", end - 1).seconds == 30
        for _ in range(9):
            talk.failed("no network", end)
        assert talk.failed("no network", end).seconds == joining.LONGEST_WAIT


def invite(not_after: float) -> bytes:
    """Return the Invite of a session that ends then."""
    parameters = plan_of().secure_sum.parameters
    terms = wire.encode_terms(Invite(parameters, 0, int(not_after), 0, bytes(32), bytes(32)))
    return wire.frame(Kind.INVITE, bytes(32), wire.SERVER, terms + bytes(64))


def test_what_the_server_asks_for_is_waited_and_never_for_more_than_an_hour() -> None:
    for after, waits in (("5", 6.0), ("0", 2.0), ("", 2.0), ("Fri, 31 Dec 1999", 2.0)):
        assert talk_of().heard(Heard(204, retry_after=after), NOW) == Pause(waits), after
    assert talk_of().heard(Heard(204, retry_after=5000 * "9"), NOW) == Pause(HOUR + 1)
    assert talk_of().heard(Heard(503, retry_after="10"), NOW) == Pause(15)
    assert talk_of().heard(Heard(503, retry_after="9999"), NOW) == Pause(30)
    assert talk_of(random=lambda: 0.0).heard(Heard(503, retry_after="10"), NOW) == Pause(10)


def test_an_unknown_campaign_is_asked_for_hourly_and_named_once() -> None:
    told: list[str] = []
    talk = talk_of(told)
    for _ in range(3):
        assert talk.heard(Heard(404), NOW) == Pause(HOUR)
    assert told == ["the server knows no such campaign, and is asked hourly"]


def test_in_a_session_a_campaign_that_is_unknown_for_a_moment_is_asked_for_soon() -> None:
    """A front server that lost its conf says 404, and a phase is a minute long."""
    told: list[str] = []
    talk = talk_of(told)
    talk.heard(frame_of(invite(NOW + 2 * HOUR)), NOW)
    for _ in range(9):
        pause = talk.heard(Heard(404), NOW + HOUR)
        assert isinstance(pause, Pause) and pause.seconds <= joining.SESSION_WAIT
    assert told == ["got no answer but HTTP 404; asks again"]
    assert talk.heard(Heard(404), NOW + 2 * HOUR) == Pause(HOUR)


@pytest.mark.parametrize("minutes", [1, 30, 240])
def test_idle_clients_are_all_back_ten_minutes_after_the_server_is(minutes: int) -> None:
    """A server that fails does not say for how long: whoever waits on for it is missing."""
    late: list[float] = []
    for number in range(200):
        draws = np.random.default_rng(number)
        talk = talk_of(random=draws.random)
        died = NOW + 2 * HOUR  # no session runs, so that nobody hurries
        now, back = died + draws.uniform(0, 45), died + 60 * minutes
        while now < back:
            pause = talk.heard(Heard(502), now)
            assert isinstance(pause, Pause)
            now += pause.seconds
        late.append(now - back)
    # a wait is at most as long as all before it took, and a second
    assert 0 < max(late) <= min(joining.LONGEST_WAIT, 2 * 60 * minutes + 1)


def test_a_failure_that_was_told_is_told_to_be_over() -> None:
    """Else the last line of a log may be hours old, and says that the server is away."""
    told: list[str] = []
    talk = talk_of(told)
    over = "the server answers again"
    for answer in (Heard(204), frame_of(abort(1))):
        for _ in range(2):
            talk.heard(Heard(502), NOW)
            talk.failed("no network", NOW)
        for _ in range(2):  # once, and nothing where nothing had failed
            talk.heard(answer, NOW)
        assert told[-2:] == ["no network; asks again", over]
        told.clear()
    talk.failed("no agent", NOW, who="agent")
    talk.heard(frame_of(abort(1)), NOW)  # the server did not fail
    assert told == ["no agent; asks again"]
    talk.answered(abort(1), b"")
    assert told[1:] == ["the agent answers again"]
    talk.failed("no agent", NOW, who="agent")
    talk.heard(Heard(204), NOW)  # nothing more is asked of the agent, which may still be away
    talk.answered(abort(2), b"")
    assert told[2:] == ["no agent; asks again"]


def test_a_session_whose_answer_is_too_long_is_left_alone() -> None:
    told: list[str] = []
    talk = talk_of(told)
    talk.heard(frame_of(abort(1)), NOW)
    talk.answered(abort(1), bytes(5000))
    assert talk.heard(Heard(413), NOW) == Pause(1.0)
    assert talk.said == b"" and "no answer of 5,000 bytes" in told[0] and len(told) == 1
    # its frames are handled without an answer, and the next session is as any other
    later = wire.frame(Kind.ABORT, bytes([1]) * 32, wire.SERVER, b"\x02")
    assert talk.heard(frame_of(later), NOW) == Pause(0.0)
    assert (talk.said, talk.headers[HANDLED]) == (b"", digest(later).hex())
    assert talk.heard(frame_of(abort(2)), NOW) == abort(2)
    # nothing was said: this 413 is not about an answer
    assert talk.heard(Heard(413), NOW).seconds == 1.0
    assert told[1] == "got no answer but HTTP 413; asks again"


def test_a_frame_that_comes_again_and_again_does_not_make_a_client_hurry() -> None:
    talk = talk_of()
    assert talk.answered(abort(1), b"") == Pause(0)
    assert talk.answered(abort(1), b"") == Pause(1)


@pytest.mark.parametrize(
    ("off", "said"), [(61, "61 seconds behind"), (-90, "90 seconds ahead of"), (59, None)]
)
def test_clocks_that_differ_by_more_than_a_minute_are_named(off: int, said: str | None) -> None:
    told: list[str] = []
    talk = talk_of(told)
    for _ in range(2):  # once
        talk.heard(Heard(204, date=formatdate(NOW + off, usegmt=True)), NOW)
    assert [text for text in told if said and said in text] == told and len(told) == bool(said)
    talk.heard(Heard(204, date=formatdate(NOW, usegmt=True)), NOW)
    talk.heard(Heard(204, date="yesterday"), NOW)
    talk.heard(Heard(204, date=formatdate(NOW + off, usegmt=True)), NOW)
    assert len(told) == 2 * bool(said)


# ---- the loop ----


class Scripted(httpx.AsyncBaseTransport):
    """A server that gives these responses, or raises these errors, one after the other."""

    def __init__(self, *script: Any) -> None:
        self.script, self.asked = list(script), []

    async def handle_async_request(self, request: Any) -> Any:
        self.asked.append((request.content, dict(request.headers), str(request.url)))
        found = self.script.pop(0)
        if isinstance(found, Exception):
            raise found
        status, kind, content, *more = found
        stream = (
            content if isinstance(content, httpx.AsyncByteStream) else httpx.ByteStream(content)
        )
        return httpx.Response(status, headers=[("content-type", kind), *more], stream=stream)


def joined(server: Scripted, answer: Any) -> tuple[Over, list[float], list[str]]:
    """Return how a client ended, what it waited each time, and what it told."""
    waits: list[float] = []
    told: list[str] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def go() -> Over:
        async with httpx.AsyncClient(transport=server) as http:
            return await join(
                http,
                f"{URL}/",
                "secret",
                answer,
                clock=lambda: NOW,
                sleep=sleep,
                random=lambda: 1.0,
                tell=told.append,
            )

    return run(go()), waits, told


async def echo(frame: bytes) -> bytes:
    return b"answer to " + frame[-1:]


def test_a_client_goes_on_whatever_happens_on_the_way() -> None:
    server = Scripted(
        httpx.ConnectError("no route"),
        (200, FRAME_TYPE, abort(1)),
        httpx.ReadTimeout(""),
        (302, "text/html", b""),  # not followed
        (200, "text/html", b"<p>log in"),
        (407, "text/html", b""),
        (511, "text/html", b""),
        OSError("a broken pipe"),
        (200, f"{FRAME_TYPE}; x=y", abort(2)),
        (204, "", b""),
        (410, "", b""),
    )
    over, waits, told = joined(server, echo)
    assert over is Over.CAMPAIGN and not server.script
    bodies = [body for body, _, _ in server.asked]
    first, second = (b"answer to " + abort(number)[-1:] for number in (1, 2))
    assert bodies == [b"", b"", *[first] * 7, second, b""]
    assert {url for _, _, url in server.asked} == {f"{URL}/step"}
    assert "cannot be reached (no route)" in told[0] and "(ReadTimeout)" in told[2]
    assert told[1] == told[-1] == "the server answers again"
    assert waits[:3] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("place", ["javascript:1", "http://xn--a/", "http://[::1", "//:99999"])
def test_a_redirect_to_what_is_no_address_is_asked_again(place: str) -> None:
    server = Scripted((302, "text/html", b"", ("location", place)), (410, "", b""))
    over, waits, told = joined(server, echo)
    assert over is Over.CAMPAIGN and len(waits) == len(told) == 1


def test_an_agent_that_is_away_gets_the_frame_again_later() -> None:
    times: list[bytes] = []

    async def away(frame: bytes) -> bytes:
        times.append(frame)
        if len(times) < 4:
            raise (OSError("no such file"), PipeError("broke"), TimeoutError)[len(times) - 1]
        return b"answer"

    server = Scripted(*[(200, FRAME_TYPE, abort(1))] * 4, (401, "", b""))
    over, waits, told = joined(server, away)
    assert over is Over.TOKEN and times == [abort(1)] * 4
    assert [headers[HANDLED] for _, headers, _ in server.asked] == [
        *4 * [""],
        digest(abort(1)).hex(),
    ]
    assert waits == [1.0, 2.0, 4.0, 0.0]  # ever more, as where the server is away
    whys = ("no such file", "broke", "TimeoutError")
    failures = [f"the agent does not answer ({why}); asks again" for why in whys]
    assert told == [*failures, "the agent answers again"]


def test_a_body_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MOST_BYTES", 10_000)

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            while True:
                yield bytes(1000)

    server = Scripted(
        (200, FRAME_TYPE, Endless()), (200, "text/html", Endless()), (410, "", Endless())
    )
    over, _, told = joined(server, echo)
    assert over is Over.CAMPAIGN
    assert told[0] == "the server sent a frame that is too long; asks again"


# ---- what is around the loop ----


@pytest.mark.parametrize(
    "url",
    [
        "http://sums.example/v1/campaigns/" + 64 * "a",  # without TLS
        "https://sums.example/v1/campaigns/",
        "https://sums.example/v1/campaigns/" + 64 * "g",
        "https:///v1/campaigns/" + 64 * "a",
        "https://sums.example/v1/campaigns/" + 64 * "a" + "?key=value",
        "https://sums.example/v1/campaigns/" + 64 * "a" + "#",
        "https://[/v1/campaigns/" + 64 * "a",
        "sums.example",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="no address of a campaign"):
        carry.checked_url(url)


def test_an_address_may_be_below_a_path_and_on_this_machine_without_tls() -> None:
    for url in (URL, URL.replace("sums.example", "sums.example:8443/here")):
        assert carry.checked_url(url) == carry.checked_url(f"{url}/") == url
    here = URL.replace("https://sums.example", "http://127.0.0.1:8000")
    assert carry.checked_url(here) == here


def test_a_token_is_read_from_a_file_that_not_everybody_reads(tmp_path: Path) -> None:
    place = tmp_path / "token"
    with pytest.raises(UnreadableFileError, match="No such file"):
        carry.read_token(place)
    place.write_text("abc\n")
    place.chmod(0o640)
    assert carry.read_token(place) == "abc"
    place.chmod(0o644)
    with pytest.raises(InvalidInputError, match="chmod 600"):
        carry.read_token(place)
    place.chmod(0o600)
    for text in ("", "two words", "a" * 2000):
        place.write_text(text)
        with pytest.raises(UnreadableFileError, match="holds no token"):
            carry.read_token(place)
    place.write_bytes(b"\xff")
    with pytest.raises(UnreadableFileError, match="no ASCII text"):
        carry.read_token(place)


def test_certificates_of_ones_own_are_believed_alone(tmp_path: Path) -> None:
    assert carry.tls(None).verify_mode is ssl.CERT_REQUIRED
    for content in (None, "no certificate"):
        if content is not None:
            (tmp_path / "ca").write_text(content)
        with pytest.raises(UnreadableFileError, match="give certificates in PEM"):
            carry.tls(tmp_path / "ca")
    browsers = Path(certifi.where()).read_text()
    (tmp_path / "ca").write_text(browsers[: browsers.index(END) + len(END)])
    assert len(carry.tls(tmp_path / "ca").get_ca_certs()) == 1


def test_certificates_of_the_environment_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
    with pytest.raises(UnreadableFileError, match="SSL_CERT_FILE"):
        carry.tls(None)
    assert carry.tls(certifi.where())


PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def only_proxy(patch: pytest.MonkeyPatch, name: str, url: str) -> None:
    """Set a variable of the environment, and none of the others, however it is written."""
    for one in PROXIES:
        patch.delenv(one, raising=False)
        patch.delenv(one.lower(), raising=False)
    patch.setenv(name, url)


@pytest.mark.parametrize(
    ("name", "url", "error", "words"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9", MissingExtraError, "pip install socksio"),
        ("HTTPS_PROXY", "ftp://u:hush@proxy.example", InvalidInputError, "http://HOST:PORT"),
        ("HTTP_PROXY", "http://u:hush@[::1:9", InvalidInputError, "http://HOST:PORT"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_said(
    name: str, url: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    only_proxy(monkeypatch, name, url)
    with pytest.raises(error, match=words) as found:
        carry.client(carry.tls(None))
    assert "hush" not in str(found.value)


class Polled:
    """A server on this machine that says 204 with these seconds, then 410, and counts."""

    def __init__(self, *seconds: int) -> None:
        self.seconds, self.connections, self.tokens = list(seconds), 0, 0

    async def serve(self, reader: Any, writer: Any) -> None:
        self.connections += 1
        with closing(writer), suppress(asyncio.IncompleteReadError):
            while True:
                self.tokens += b"Bearer secret" in await reader.readuntil(b"\r\n\r\n")
                head = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"
                if self.seconds:
                    after = self.seconds.pop(0)
                    head = b"HTTP/1.1 204 No Content\r\nretry-after: %d\r\n\r\n" % after
                writer.write(head)
                await writer.drain()

    async def joined(self, sleep: Any) -> Over:
        """Return how a client ends that asks this server."""
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            url = carry.checked_url(f"http://127.0.0.1:{port}/v1/campaigns/{64 * 'a'}")
            async with carry.client(carry.tls(None)) as http:
                given: dict[str, Any] = {"clock": lambda: NOW, "random": lambda: 1.0}
                return await join(
                    http, url, "secret", echo, sleep=sleep, tell=lambda text: None, **given
                )


def test_a_client_that_waits_keeps_its_connection_until_the_server_may_hang_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the clock of the test: a wait moves that of the connections."""
    clock = pytest.importorskip("httpcore._async.http11")
    ahead = [0.0]
    monkeypatch.setattr(
        clock, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
    )
    server, seen = Polled(*3 * [IDLE[1]], 64), []

    async def sleep(seconds: float) -> None:
        seen.append(server.connections)
        ahead[0] += seconds

    assert asyncio.run(server.joined(sleep)) is Over.CAMPAIGN
    assert (seen, server.connections) == ([1, 1, 1, 1], 2)
    # nginx, and the process behind it, hang up later than the client gives its connection up
    [hangs_up] = re.findall(r"keepalive_timeout (\d+)s", proxy._SERVER)
    assert joining.LIMITS.keepalive_expiry + 1 < int(hangs_up) < listen.KEEP_SECONDS


def test_a_token_without_tls_goes_to_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even to one for everything: the address is on this machine."""
    server, listener = Polled(), Polled()

    async def check() -> Over:
        async with await asyncio.start_server(listener.serve, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            for name in ("HTTP_PROXY", "ALL_PROXY"):
                only_proxy(monkeypatch, name, f"http://127.0.0.1:{port}")
                await server.joined(asyncio.sleep)
            return await server.joined(asyncio.sleep)

    assert asyncio.run(check()) is Over.CAMPAIGN
    assert (server.tokens, listener.connections) == (3, 0)


def test_a_frame_goes_to_the_agent_and_its_answer_back(tmp_path: Path) -> None:
    async def agent(reader: Any, writer: Any) -> None:
        frame = await read_frame(reader, 100)
        if frame != b"hang up":
            await write_frame(writer, frame[::-1])
        writer.close()

    async def check() -> None:
        ask = carry.pipe(tmp_path / "agent.sock")
        with pytest.raises(OSError, match="No such file"):
            await ask(b"abc")
        async with await asyncio.start_unix_server(agent, tmp_path / "agent.sock"):
            assert await ask(b"abc") == b"cba"
            with pytest.raises(PipeError):
                await ask(b"hang up")

    asyncio.run(check())


# ---- where a server listens ----


def test_a_server_listens_on_this_machine_alone() -> None:
    assert str(listen.Address.parse("unix:/run/x.sock")) == "unix:/run/x.sock"
    assert str(listen.Address.parse("127.0.0.1:80")) == "127.0.0.1:80"
    ports = ("0.0.0.0:80", "[::]:80", "localhost:80", "127.0.0.1:x", "127.0.0.1:70000")
    long = f"127.0.0.1:{'1' * 5000}"  # Python would not read this integer
    for text in (*ports, long, "unix:", ""):
        with pytest.raises(InvalidInputError, match="only nginx ends TLS"):
            listen.Address.parse(text)


def test_a_socket_takes_the_place_of_a_dead_process_and_of_no_other(tmp_path: Path) -> None:
    place = tmp_path / "c.sock"
    address = listen.Address(place)
    with address.bound() as first:
        assert not place.exists()  # it has its name when the campaign is claimed
        first.show()
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        with pytest.raises(InvalidInputError, match="another process listens"), address.bound():
            pass
        with address.bound(take_over=True) as second:
            second.show()
            first.close()
            with socket.socket(socket.AF_UNIX) as tried:
                tried.connect(os.fspath(place))  # the name is that of the later process
    assert place.exists()
    with address.bound():  # nobody listens there any more
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["c.sock"]


def test_of_two_processes_that_start_at_once_the_one_that_is_shown_is_reached(
    tmp_path: Path,
) -> None:
    address = listen.Address(tmp_path / "c.sock")
    with address.bound() as first:
        with address.bound():  # it finds the campaign claimed, and ends
            first.show()
        with socket.socket(socket.AF_UNIX) as tried:
            tried.connect(os.fspath(tmp_path / "c.sock"))


def test_what_cannot_be_listened_on_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InvalidInputError, match="is no socket"),
        listen.Address(tmp_path / "file").bound(),
    ):
        pass
    with (  # the file would be replaced
        pytest.raises(InvalidInputError, match="is no socket"),
        listen.Address(tmp_path / "file").bound(take_over=True),
    ):
        pass
    with (
        pytest.raises(InvalidInputError, match="No such file.*, or make its folder"),
        listen.Address(tmp_path / "none" / "c.sock").bound(),
    ):
        pass
    with (
        pytest.raises(InvalidInputError, match="cannot listen"),
        listen.Address(tmp_path / ("x" * 200)).bound(),
    ):
        pass
    with listen.Address(None, 0).bound() as one:
        port = one.socket.getsockname()[1]
        one.show()
        with (
            pytest.raises(InvalidInputError, match="name another address"),
            listen.Address(None, port).bound(take_over=True),
        ):
            pass
    tmp_path.chmod(0o777)
    with (
        pytest.raises(InvalidInputError, match="everybody may write"),
        listen.Address(tmp_path / "c.sock").bound(),
    ):
        pass
