"""A site with the example page, both servers as processes, and people beside a browser."""

from __future__ import annotations

import ssl
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from aggregate_processes import Servers
from aggregate_world import PEOPLE, SIDES, plan_of
from benchmarks import behind_nginx
from secagg_cohort import stream

from fedtally.answer.result import Result
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.enrolment import Proof, allow_list_of, make_proof
from fedtally.campaign.transports.https.resource import release_path
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Dictionary
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.two_server import BatchPolicy
from fedtally.sketch import CountSketch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples" / "web"))

from make import make  # noqa: E402

FRUITS = ("apple", "pear", "plum", "<i>quince</i>")
DOMAIN = Dictionary(FRUITS)
REGISTRAR = SigningKey(Secret(stream("registrar")(32))).public
PURPOSE = "fruit 2026"


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that a browser must ask each time, and that writes no log."""

    def log_message(self, *_: object) -> None:
        pass

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()


@contextmanager
def site(folder: Path, *, is_secure: bool = False, port: int = 0) -> Iterator[str]:
    """Serve the files of a folder on localhost; give the origin."""
    server = ThreadingHTTPServer(("127.0.0.1", port), partial(Quiet, directory=str(folder)))
    server.daemon_threads = True
    if is_secure:
        place = folder.with_name(f"{folder.name}-tls")
        place.mkdir()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(behind_nginx.certificate(place), place / "tls.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        scheme = "https" if is_secure else "http"
        yield f"{scheme}://localhost:{server.server_address[1]}"
        server.shutdown()


def listed(lines: Sequence[str]) -> AllowList:
    """Return the list of the people of Python, and of the keys of browsers that proved them."""
    mine = [make_proof(person, REGISTRAR, PURPOSE) for person in PEOPLE]
    proofs = [*mine, *(Proof.from_line(line) for line in lines)]
    return allow_list_of(proofs, REGISTRAR, PURPOSE)


class Survey:
    """A page or an extension, whose plan is made once the browser has enrolled.

    Args:
        folder: an empty folder.
        is_secure: whether the servers speak TLS, behind nginx.
        extension: the id of an extension; None: a page.
    """

    def __init__(
        self, folder: Path, *, is_secure: bool = False, extension: str | None = None
    ) -> None:
        self.path, self.is_secure, self.extension = folder, is_secure, extension
        self.site = folder / "site"
        self.plan: Plan | None = None
        self.write(helper="https://helper.invalid", leader="https://leader.invalid")

    def write(self, **more: Any) -> None:
        """Write the files of the page."""
        given = {"title": "Fruit & <more>", "registrar": REGISTRAR.hex(), "purpose": PURPOSE}
        make(self.site, **given, extension=self.extension, **more)

    @contextmanager
    def open(self, lines: Sequence[str], size: int, origins: tuple[str, ...]) -> Iterator[Servers]:
        """Publish a plan for those who enrolled, run both servers, and let the page report.

        Args:
            lines: the proofs of the browser's keys.
            size: the reports at which the release closes.
            origins: the origins that may report.
        """
        allowed = listed(lines)
        self.plan = plan_of(
            self.path, n_max=len(PEOPLE) + len(lines), domain=DOMAIN, allowed=allowed
        )
        proxied = SIDES if self.is_secure else ()
        place = self.path / "fruits.txt"
        place.write_text("".join(f"{fruit}\n" for fruit in FRUITS))
        servers = Servers(self.path, self.plan, size, proxied, origins, place)
        urls = {side: servers.url(side) for side in SIDES}
        self.write(plan=self.plan, candidates=list(FRUITS), **urls)
        with servers.running():
            path = release_path(self.plan.fingerprint, 0)
            for side in SIDES:
                assert servers.ask(side, "GET", path).status_code == 200
            yield servers

    def send(self, servers: Servers, items: dict[int, str]) -> None:
        """Let people of Python report."""
        assert self.plan is not None
        for i, item in items.items():
            made = FrequencyClient(self.plan, DOMAIN, [item]).report(
                0,
                BatchPolicy(min_honest=2),
                journal=MemoryJournal(),
                identity=PEOPLE[i],
                random=stream(f"report {i}"),
                now=int(time.time()),
            )
            for side in SIDES:
                path = f"{release_path(self.plan.fingerprint, 0)}/reports"
                assert servers.ask(side, "PUT", path, getattr(made, side)).status_code == 201

    def check_sum(self, servers: Servers, items: Sequence[str]) -> None:
        """Wait until the release has landed, and compare its sum with the plain sum of items."""
        assert self.plan is not None
        place = self.path / "leader" / "result.fed"
        servers.wait_for(place)
        plain = CountSketch(self.plan.spec, 0)
        for item in items:
            plain.add(DOMAIN.encode([item]), num_clients=1)
        [found] = Result.load(place).sketches
        assert found.num_clients == len(items)
        assert np.array_equal(found.vector, plain.vector)
