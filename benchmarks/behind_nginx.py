"""nginx before a campaign over HTTPS on this machine, for the benchmark and for tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fedtally.campaign.transports.https.proxy import Backend, Front, conf

NGINX = shutil.which("nginx") or ("/usr/sbin/nginx" if Path("/usr/sbin/nginx").exists() else None)
_KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # of nginx's temporary files


def certificate(folder: Path) -> Path:
    """Make a key and a certificate of this machine; return the certificate."""
    words = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        " -keyout tls.key -out tls.crt -subj /CN=localhost"
        " -addext subjectAltName=IP:127.0.0.1,DNS:localhost"
    )
    subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    return folder / "tls.crt"


def front(folder: Path, port: int) -> Front:
    """Return how an nginx with this certificate listens on a port of this machine."""
    files = [str(folder / name) for name in ("tls.crt", "tls.key", "errors.log")]
    return Front((f"127.0.0.1:{port}",), "localhost", *files)


def whole(folder: Path, text: str) -> Path:
    """Write a configuration around the documented conf, which writes into one folder alone."""
    paths = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in _KINDS)
    user = "user root; " if os.geteuid() == 0 else ""  # else its worker may not enter the folder
    place = folder / "nginx.conf"
    place.write_text(
        f"{user}pid {folder}/pid; error_log {folder}/main.log warn; worker_processes 1;\n"
        "worker_rlimit_nofile 65536; events { worker_connections 20000; }\n"
        f"http {{ {paths}\n{text} }}\n"
    )
    return place


def nginx(
    folder: Path, backend: Backend, port: int
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Let nginx end TLS before a campaign; the folder has the files of `certificate`."""
    return running(folder, conf([backend], front(folder, port)))


@contextmanager
def running(folder: Path, text: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run nginx with a conf as it is documented, which names files of this folder."""
    assert NGINX is not None
    place = whole(folder, text)
    command = [NGINX, "-c", str(place), "-e", str(folder / "main.log")]
    with subprocess.Popen([*command, "-g", "daemon off; master_process off;"]) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
