"""A headless Firefox that tests and tools drive by its own protocol (Marionette)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any


class Marionette:
    """A real Firefox without a window; its protocol is JSON behind its length.

    Args:
        program: the path or name of Firefox.
        prefs: the preferences.
        folder: an empty folder for its profile.
    """

    def __init__(self, program: str, prefs: dict[str, Any], folder: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        prefs = {
            "marionette.port": port,
            "app.update.enabled": False,
            "browser.shell.checkDefaultBrowser": False,
            "datareporting.healthreport.uploadEnabled": False,
            "network.captive-portal-service.enabled": False,
            "network.connectivity-service.enabled": False,
            "network.proxy.type": 0,
            "services.settings.server": "data:,",
            "toolkit.telemetry.server": "",
        } | prefs
        lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});\n" for k, v in prefs.items())
        Path(folder, "user.js").write_text("".join(lines))
        self.process = subprocess.Popen(
            [program, "--headless", "--marionette", "--remote-allow-system-access",
             "--no-remote", "--profile", folder],
            env=os.environ | {"MOZ_HEADLESS": "1", "HOME": folder},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._socket = self._connected(port)
        self._stream = self._socket.makefile("rwb")
        self._asked = 0
        self._read()
        self.ask("WebDriver:NewSession", {"acceptInsecureCerts": True})

    def __enter__(self) -> Marionette:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the browser, as it is."""
        self.process.kill()
        self.process.wait(30)
        self._stream.close()
        self._socket.close()

    def _connected(self, port: int) -> socket.socket:
        end = time.monotonic() + 60
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port))
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise SystemExit("Firefox does not start: run it by hand") from None
                time.sleep(0.1)

    def _read(self) -> Any:
        size = b""
        while not size.endswith(b":"):
            size += self._stream.read(1)
        return json.loads(self._stream.read(int(size[:-1])))

    def ask(self, name: str, values: dict[str, Any]) -> Any:
        """Return the answer to a command."""
        self._asked += 1
        text = json.dumps([0, self._asked, name, values]).encode()
        self._stream.write(b"%d:" % len(text) + text)
        self._stream.flush()
        _, _, error, result = self._read()
        if error:
            raise SystemExit(f"Firefox: {error}")
        return result

    def run(self, script: str, *values: Any) -> Any:
        """Return what a script of Firefox's own calls back with."""
        asked = {"script": script, "args": list(values), "scriptTimeout": 60_000}
        return self.ask("WebDriver:ExecuteAsyncScript", asked)["value"]
