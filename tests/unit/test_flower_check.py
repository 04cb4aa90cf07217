"""`fedtally flower`: what would keep a node from working is found before it starts."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedtally.cli import flower_check
from fedtally.cli.app import run
from fedtally.cli.flower_check import check_node


def certificate(folder: Path, name: str) -> Path:
    """Write a certificate of this machine, signed by itself, and its key; return the former."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
            ),
            False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.crt"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    path.with_suffix(".key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.with_suffix(".key").chmod(0o600)
    return path


@contextmanager
def superlink(
    version: str, trusted: Path | None = None, status: int = 200, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Serve what a SuperLink says of itself; yield its address."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            said = json.dumps({"info": {"version": version}} if status == 200 else {})
            self.wfile.write(said.encode())

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(HTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def handle_error(self, *_: object) -> None:  # a handshake that the client gave up
            pass

    server = Quiet((host, 0), Pages)
    if trusted is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(trusted, trusted.with_suffix(".key"))
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{f'[{host}]' if ':' in host else host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def problems(address: str, **given: str) -> dict[str, str]:
    found = check_node(address, **given)
    return {one.about: one.says for one in found if not one.is_good}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_check.metadata, "version", lambda name: "1.41.0")


def test_a_node_that_can_work_has_no_problems(tmp_path: Path) -> None:
    trusted, agent = certificate(tmp_path, "ours"), tmp_path / "agent.sock"
    with superlink("1.41.7", trusted) as address, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(agent))
        listening.listen()
        key = str(trusted.with_suffix(".key"))
        given = {"root_certificates": str(trusted), "key": key, "agent": str(agent)}
        assert problems(address, **given) == {}
        options = ["--root-certificates", str(trusted), "--key", key, "--agent", str(agent)]
        assert run(["flower", "check", "--superlink", address, *options]) == 0


def test_what_keeps_a_node_from_working_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, other = certificate(tmp_path, "ours"), certificate(tmp_path, "other")
    key = str(ours.with_suffix(".key"))
    with superlink("1.40.0", ours) as address:
        found = problems(address, key=key)
        assert "speaks TLS: give --root-certificates" in found.pop("SuperLink")
        assert found == {}
        found = problems(address, root_certificates=str(other), key=key)
        assert "does not vouch for" in found["SuperLink"]
        found = problems(address, root_certificates=str(ours), key=key)
        assert "has flwr 1.40.0, and the node 1.41.0: install flwr==1.40.0" in found["version"]
        found = problems(address, root_certificates=str(tmp_path / "none"), key=key)
        assert "No such file" in found["SuperLink"]
        found = problems(address, root_certificates=str(ours))
        assert "--enable-supernode-auth refuses" in found["key"]
        assert run(["flower", "check", "--superlink", address, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "fedtally-flower-check/1"
    assert {"about": "flwr", "says": "1.41.0", "is_good": True} in document["findings"]
    with superlink("1.41.0") as address:
        assert "speaks no TLS" in problems(address, root_certificates=str(ours))["SuperLink"]
    assert "does not answer" in problems(address)["SuperLink"]
    with superlink("1.41.0", status=502) as address:
        assert "answers 502" in problems(address, key=key)["SuperLink"]
    with superlink("a page that a proxy hides", status=404) as address:
        assert problems(address, key=key) == {}


def test_a_superlink_may_have_an_ipv6_address_in_brackets(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    ours = certificate(tmp_path, "ours")
    key = str(ours.with_suffix(".key"))
    with superlink("1.41.0", host="::1") as address:
        assert address.startswith("[::1]:") and problems(address, key=key) == {}
    with superlink("1.41.0", ours, host="::1") as address:
        assert problems(address, root_certificates=str(ours), key=key) == {}
        assert "speaks TLS: give --root" in problems(address, key=key)["SuperLink"]
    assert "Connection refused" in problems(address)["SuperLink"]  # once nobody listens there


def test_a_key_and_an_agent_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    key = certificate(tmp_path, "ours").with_suffix(".key")
    public, agent = tmp_path / "ours.crt", str(tmp_path / "agent.sock")
    assert "holds no private key" in problems("127.0.0.1:1", key=str(public))["key"]
    assert "cannot read" in problems("127.0.0.1:1", key=str(tmp_path / "none"))["key"]
    assert "nobody listens" in problems("127.0.0.1:1", key=str(key), agent=agent)["agent"]
    key.chmod(0o644)
    assert "chmod 600" in problems("127.0.0.1:1", key=str(key))["key"]


def test_a_version_that_is_not_tested_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, is_good in (("1.40.0", True), ("1.42.3", True), ("1.43.0", False), ("0.9", False)):
        monkeypatch.setattr(flower_check.metadata, "version", lambda name, found=version: found)
        assert ("flwr" not in problems("127.0.0.1:1")) is is_good, version

    def missing(name: str) -> str:
        raise flower_check.metadata.PackageNotFoundError

    monkeypatch.setattr(flower_check.metadata, "version", missing)
    assert "pip install 'fedtally[flower]'" in problems("127.0.0.1:1")["flwr"]


def test_the_app_that_nodes_get_is_one_small_file(tmp_path: Path) -> None:
    place = tmp_path / "app"
    assert run(["flower", "app", str(place)]) == 0
    (only,) = place.iterdir()
    assert only.name == "pyproject.toml" and only.stat().st_size < 1000
    assert "dependencies = []" in only.read_text()
    assert run(["flower", "app", str(place)]) == 2
