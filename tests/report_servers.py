"""Two small servers of reports on this machine, which do as the protocol says, or as a test says.

Each is a thread with a helper or a leader in memory: what `fedtally agent report` speaks to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from secagg_cohort import stream

from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.server import FrequencyServer
from fedtally.campaign.transports.https.resource import (
    FRAME_TYPE,
    PROBLEM_TYPE,
    STATE_TYPE,
    Release,
    release_path,
    state_of,
)
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.two_server import BatchPolicy, MemoryJournal, Outcome, Side

KEYS = {side: PrivateKey(Secret(stream(side)(32))) for side in ("leader", "helper")}
POLICY = BatchPolicy(min_honest=2)
_STATUS = {
    Outcome.ACCEPTED: 201,
    Outcome.MALFORMED: 400,
    Outcome.UNREADABLE: 400,
    Outcome.UNKNOWN_IDENTITY: 403,
    Outcome.FORGED: 403,
    Outcome.CLOSED: 410,
    Outcome.FULL: 503,
}


class Says(NamedTuple):
    """A response in place of the server's own."""

    status: int
    type: str = PROBLEM_TYPE
    content: bytes = b"{}"


class Stub(ThreadingHTTPServer):
    """One of two servers.

    Attributes:
        state: how its release stands.
        ahead: the seconds that its clock is ahead of this machine's.
        says: in place of its own answers, by method.
        asked: the methods of the requests that came.
        came: the frames that came.
    """

    daemon_threads = True

    def __init__(self, side: Side, plan: Plan, listed: AllowList, release: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.side, self.path = side, release_path(plan.fingerprint, release)
        self.campaign = FrequencyServer(plan, MemoryBooks())
        more: Any = {"random": stream(("noise", side))} if plan.privacy else {}
        made = getattr(self.campaign, side)
        self.server = made(release, POLICY, listed, MemoryJournal(), KEYS[side], **more)
        self.state, self.ahead = Release.OPEN, 0.0
        self.says: dict[str, Says] = {}
        self.asked: list[str] = []
        self.came: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, path: str, type: str, frame: bytes) -> Says:
        self.asked.append(method)
        if method in self.says:
            return self.says[method]
        if (method, path) == ("GET", self.path):
            return Says(200, STATE_TYPE, state_of(self.side, self.state))
        if (method, path, type) != ("PUT", f"{self.path}/reports", FRAME_TYPE):
            return Says(404)
        self.came.append(frame)
        status = _STATUS.get(self.server.receive(frame, int(time.time() + self.ahead)), 409)
        return Says(status, STATE_TYPE if status == 201 else PROBLEM_TYPE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_GET(self) -> None:
        self._answer(b"")

    def do_PUT(self) -> None:
        self._answer(self.rfile.read(int(self.headers["content-length"])))

    def _answer(self, frame: bytes) -> None:
        type = self.headers.get("content-type", "")
        said = self.server.answer(self.command, self.path, type, frame)
        self.send_response_only(said.status)
        self.send_header("Date", formatdate(time.time() + self.server.ahead, usegmt=True))
        self.send_header("Content-Type", said.type)
        self.send_header("Content-Length", str(len(said.content)))
        self.end_headers()
        self.wfile.write(said.content)


@contextmanager
def serving(plan: Plan, listed: AllowList, release: int = 0) -> Iterator[dict[Side, Stub]]:
    """Let both servers listen."""
    sides: tuple[Side, Side] = ("leader", "helper")
    stubs = {side: Stub(side, plan, listed, release) for side in sides}
    threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in stubs.values()]
    for thread in threads:
        thread.start()
    try:
        yield stubs
    finally:
        for one in stubs.values():
            one.shutdown()
            one.server_close()
        for thread in threads:
            thread.join()
