"""A headless Chromium that tests drive by its own protocol (DevTools), over two pipes."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run"
    " --disable-component-update --disable-sync --hide-scrollbars --ignore-certificate-errors"
    " --enable-unsafe-extension-debugging"  # lets a test load one; there is no other
)
_PATIENCE = 120  # seconds, on a busy machine


def find() -> str | None:
    """Return the path of a Chromium, or None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A page of a browser of its own, and all that it complained of and asked for.

    Args:
        folder: where the browser keeps its profile.
        width: columns of pixels.
        height: rows of pixels.

    The browser believes each certificate. To leave the context kills it, as it is; another page
    of the same folder finds what it had on disk.

    Attributes:
        first: the name of the first tab.
        complaints: errors and messages of the console, and broken rules of the page's policy.
        requests: the addresses that the page asked for.
    """

    def __init__(self, folder: Path, width: int = 1000, height: int = 900) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number, self._buffer = 0, b""
        down, self._out = os.pipe()
        self._in, up = os.pipe()
        command = f"exec {find()} {_FLAGS} --user-data-dir={folder}/profile"
        # the browser reads descriptor 3 and writes descriptor 4
        self._process = subprocess.Popen(
            ["bash", "-c", f"{command} --remote-debugging-pipe 3<&{down} 4>&{up}"],
            pass_fds=(down, up),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down)
        os.close(up)
        self._session: str | None = None
        try:
            self._attach(width, height)
        except BaseException:
            self.__exit__()
            raise

    def tab(self) -> str:
        """Open a tab and turn to it; return its name for `turn`."""
        self._session = None  # what opens tabs is the browser
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.turn(attached["sessionId"])
        for room in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{room}.enable")
        return str(attached["sessionId"])

    def turn(self, tab: str) -> None:
        """Let later calls go to a tab."""
        self._session = tab

    def extend(self, folder: Path) -> str:
        """Load an extension, and return its id."""
        here, self._session = self._session, None
        loaded = self.call("Extensions.loadUnpacked", path=str(folder))
        self._session = here
        return str(loaded["id"])

    def _attach(self, width: int, height: int) -> None:
        self.first = self.tab()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._hear(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def open(self, path: Path) -> None:
        """Open a file, and wait until it is loaded."""
        self.go(path.as_uri())

    def go(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        said = self.call("Page.navigate", url=url)
        assert "errorText" not in said, said
        while self.value("document.readyState") != "complete":
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page, or what it promises."""
        given = {"returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", expression=expression, **given)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> bytes:
        """Write a picture of the whole page, and return it."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(b64decode(data))
        return path.read_bytes()

    def pdf(self, path: Path) -> bytes:
        """Write the page as it is printed, and return it."""
        path.write_bytes(b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))
        return path.read_bytes()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], _PATIENCE)
            if not ready or not (more := os.read(self._in, 1 << 16)):
                raise RuntimeError("the browser is gone or does not answer")
            self._buffer += more
        one, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(one))

    def _hear(self, event: dict[str, Any]) -> None:
        what, about = event.get("method"), event.get("params", {})
        if what == "Runtime.consoleAPICalled":
            self.complaints.append(str(about["args"]))
        elif what == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif what == "Log.entryAdded":
            self.complaints.append(about["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
