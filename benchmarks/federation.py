"""A Flower federation of processes on this machine, for the benchmark and for tests.

A SuperLink with TLS on loopback, and SuperNodes with registered keys. All processes are in groups
of their own and end with the context manager.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # seconds between two looks of a node for work
CONNECTION = "here"  # the SuperLink's name in Flower's config.toml
_CA = (
    "basicConstraints=critical,CA:TRUE",
    "keyUsage=critical,keyCertSign,cRLSign",
)
_SERVER = "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n"


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on."""
    found = [socket.socket() for _ in range(number)]
    for each in found:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports


@dataclass
class Federation:
    """The processes of a federation; made by `federation`.

    Attributes:
        folder: of its files and logs.
        environment: what a process of Flower needs, to belong to it.
        ports: of the SuperLink and of each SuperNode.
        processes: by name: `superlink`, `node0` and so on.
    """

    folder: Path
    ports: list[int]
    environment: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Of the SuperLink."""
        return f"127.0.0.1:{self.ports[0]}"

    def agent(self, node: int | str) -> Path:
        """Return the path of the socket that a node's agent listens on."""
        return self.folder / f"agent{node}.sock"

    def call(self, *command: str) -> str:
        """Run a command to its end and return what it prints."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
        return done.stdout

    def start(self, name: str, *command: str) -> None:
        """Start a process in a group of its own."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a process, and all that it started."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with suppress(ProcessLookupError):  # a group outlives its leader
            os.killpg(process.pid, signal.SIGKILL)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        self.start(
            "superlink",
            *("flower-superlink", "--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem"),
            *("--ssl-keyfile", "server.key", "--enable-supernode-auth", "--database", "state.db"),
            *("--host", "127.0.0.1", "--port", str(self.ports[0])),
        )
        trusted = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        for _ in range(600):
            with suppress(OSError):
                url = f"https://{self.address}/health"
                with urllib.request.urlopen(url, timeout=2, context=trusted):
                    return
            time.sleep(0.1)
        raise TimeoutError((self.folder / "superlink.log").read_text(errors="replace")[-2000:])

    def start_node(self, node: int | str, port: int) -> None:
        """Start a SuperNode with the key of its name."""
        self.start(
            f"node{node}",
            *("flower-supernode", "--root-certificates", "ca.crt", "--superlink", self.address),
            *("--port", str(port), "--auth-supernode-private-key", f"node{node}"),
            *("--node-config", f'agent="{self.agent(node)}"'),
        )

    def new_key(self, node: int | str) -> None:
        """Make the key of a node."""
        self.call(*("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"node{node}"))

    def online(self) -> int:
        """Return how many nodes the SuperLink lists as online."""
        said = self.call("flwr", "supernode", "ls", CONNECTION, "--format", "json")
        listed: list[dict[str, Any]] = json.loads(said[said.index("{") :])["nodes"]
        return sum(one["status"] == "online" for one in listed)


@contextmanager
def federation(folder: Path, nodes: int) -> Iterator[Federation]:
    """Start a SuperLink and SuperNodes; end them all at the end.

    Args:
        folder: empty, for their files.
        nodes: how many SuperNodes to start. Their agents listen at `Federation.agent`.
    """
    environment = os.environ | {
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        _POLL: os.environ.get(_POLL, "0.1"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    here = Federation(folder, free_ports(nodes + 1), environment)
    try:
        _make_certificates(here)
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n[superlink.{CONNECTION}]\n'
            f'address = "{here.address}"\nroot-certificates = "{folder / "ca.crt"}"\n'
        )
        here.start_superlink()
        for node in range(nodes):
            here.new_key(node)
            here.call("flwr", "supernode", "register", f"node{node}.pub", CONNECTION)
            here.start_node(node, here.ports[node + 1])
        end = time.monotonic() + 600  # a busy machine is slow
        while here.online() < nodes:
            if time.monotonic() > end:
                raise TimeoutError("the nodes are not online")
            time.sleep(1)
        yield here
    finally:
        for name in reversed(list(here.processes)):
            here.stop(name)


def _make_certificates(here: Federation) -> None:
    """Make a certificate authority, and the SuperLink's certificate."""
    (here.folder / "ext.cnf").write_text(_SERVER)
    extensions = [word for each in _CA for word in ("-addext", each)]
    here.call("openssl", "genrsa", "-out", "ca.key", "2048")
    here.call(
        *("openssl", "req", "-x509", "-new", "-key", "ca.key", "-sha256", "-days", "30"),
        *("-subj", "/CN=federation", "-out", "ca.crt", *extensions),
    )
    here.call("openssl", "genrsa", "-out", "server.key", "2048")
    here.call(
        *("openssl", "req", "-new", "-key", "server.key", "-subj", "/CN=localhost"),
        *("-out", "server.csr"),
    )
    here.call(
        *("openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
        *("-CAcreateserial", "-days", "30", "-sha256", "-extfile", "ext.cnf"),
        *("-out", "server.pem"),
    )
