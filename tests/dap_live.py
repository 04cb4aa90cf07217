"""Both servers of DAP on a port of this machine, for clients that others wrote."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import uvicorn
from dap_web import Web
from starlette.applications import Starlette

from fedtally.dap.task import to_text

PACKAGE = Path(__file__).with_name("npm")
NODE = shutil.which("node")
# names of npm's client: of the measurement, and of the sizes of a task
NPM = {
    "count": ("count", {}),
    "histogram": ("histogram", {"buckets": "length", "chunk": "chunkLength"}),
    "sumvec": ("sumVec", {"entries": "length", "chunk": "chunkLength"}),
}


# A VDAF, its sizes, what clients report, and the result. The chunks are those that libprio finds
# best: Firefox says none, and takes them.
CASES: list[tuple[str, dict[str, int], list[Any], Any]] = [
    ("count", {}, [True, False, True], 2),
    ("histogram", {"buckets": 9, "chunk": 3}, [3, 3, 8, 7], [0, 0, 0, 2, 0, 0, 0, 1, 1]),
    (
        "sumvec",
        {"entries": 20, "maximum": 255, "chunk": 11},
        [list(range(20)), [1] * 20, [200] + [0] * 19],
        [201, *range(2, 21)],
    ),
]


@contextmanager
def serving(
    app: Any, place: socket.socket, lifespan: Literal["on", "off"] = "off"
) -> Iterator[None]:
    """Serve an application on a socket in a thread."""
    # The support of websockets is left out: some versions of the library warn when it is loaded.
    config = uvicorn.Config(app, log_level="warning", lifespan=lifespan, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([place],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        thread.join()


class Live(Web):
    """A task of draft 09 whose servers are asked over HTTP, while `served` lasts."""

    def __init__(self, vdaf: str, **changes: Any) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        addresses = {"leader": f"{address}/leader/", "helper": f"{address}/helper/"}
        super().__init__(vdaf, **({"draft": 9} | addresses | changes))

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve both servers in a thread."""
        apps = self.served_leader.application(), self.served_helper.application()
        app = Starlette(routes=[route for each in apps for route in each.routes])
        with self.socket, serving(app, self.socket):
            yield


def npm_is_here() -> bool:
    """Return whether npm's client can run; where it is required, it must."""
    is_here = NODE is not None and (PACKAGE / "node_modules" / "@divviup" / "dap").exists()
    assert is_here or not os.environ.get("FEDTALLY_REQUIRE_NPM"), "run npm ci in tests/npm"
    return is_here


def report_by_npm(
    task: Any, measurements: list[Any], now: float, environment: dict[str, str] | None = None
) -> list[bytes]:
    """Let npm's client report measurements to the servers of a task; return its reports."""
    kind, names = NPM[task.vdaf]
    sizes = {names[name]: size for name, size in task.sizes.items() if name in names}
    if task.vdaf == "sumvec":
        sizes["bits"] = task.sizes["maximum"].bit_length()
    asked = sizes | {
        "type": kind,
        "id": to_text(task.id),
        "leader": task.configuration.leader.decode(),
        "helper": task.configuration.helper.decode(),
        "timePrecisionSeconds": task.configuration.precision,
        "measurements": measurements,
        "now": now,
    }
    assert NODE is not None
    ran = subprocess.run(
        [NODE, "report.mjs"],
        cwd=PACKAGE,
        input=json.dumps(asked),
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return [bytes.fromhex(line) for line in ran.stdout.split()]
