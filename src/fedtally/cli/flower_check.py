"""Check the settings of a SuperNode, a node of a Flower federation, before it starts.

With wrong settings a SuperNode may try for ever to connect, without a message: to the node it looks
as if the SuperLink, the Flower server, were not running.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

_SECONDS = 10.0
_OLDEST, _NEWEST = (1, 40), (1, 42)  # the oldest and the newest version of flwr that was tested


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        about: what was checked, in a word or two.
        says: the result in words.
        is_good: False if a node cannot work with this setting.
    """

    about: str
    says: str
    is_good: bool = True


def check_node(
    superlink: str,
    *,
    root_certificates: str | None = None,
    key: str | None = None,
    agent: str | None = None,
) -> Iterator[Finding]:
    """Check the settings of a SuperNode, and yield a result for each of them.

    Args:
        superlink: the address of the SuperLink, HOST:PORT; an IPv6 address is in brackets.
        root_certificates: the path of the certificates that the node trusts; None: the node
            connects without TLS.
        key: the path of the node's private key; None: the node has no key.
        agent: the path of the Unix socket of the node's agent; None: the agent is not checked.
    """
    installed = _installed()
    yield installed
    yield from _check_superlink(
        superlink, root_certificates, installed.says if installed.is_good else ""
    )
    if key is None:
        says = "none: a SuperLink with --enable-supernode-auth refuses the node"
        yield Finding("key", says, False)
    else:
        yield _check_key(Path(key))
    if agent is not None:
        yield _check_agent(agent)


def _installed() -> Finding:
    """Check which version of flwr, the package of Flower, is installed; return the result."""
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        return Finding("flwr", "not installed: pip install 'fedtally[flower]'", False)
    is_good = _OLDEST <= tuple(map(int, version.split(".")[:2])) <= _NEWEST
    tested = " to ".join(".".join(map(str, each)) for each in (_OLDEST, _NEWEST))
    says = (
        version
        if is_good
        else f"{version}, and {tested} are tested: pip install 'fedtally[flower]'"
    )
    return Finding("flwr", says, is_good)


def _check_superlink(address: str, trusted: str | None, version: str) -> Iterator[Finding]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")  # an IPv6 address is in brackets
    # TLS is checked first. Some TLS servers answer plain HTTP with an error page, which would
    # otherwise be taken for the answer of a server without TLS.
    if trusted is None and _speaks_tls(host, port):
        why = (
            f"{address} speaks TLS: give --root-certificates. An insecure node would try for ever,"
            " and say nothing"
        )
        yield Finding("SuperLink", why, False)
        return
    try:
        if trusted is None:
            link = http.client.HTTPConnection(host, int(port), timeout=_SECONDS)
        else:
            context = ssl.create_default_context(cafile=trusted)
            link = http.client.HTTPSConnection(host, int(port), timeout=_SECONDS, context=context)
        with closing(link):
            link.request("GET", "/openapi.json")
            answer = link.getresponse()
            said = answer.read()
    except ssl.SSLCertVerificationError as error:
        why = f"{trusted} does not vouch for {address}: {error.verify_message}"
        yield Finding("SuperLink", why, False)
    except ssl.SSLError as error:
        why = f"{address} speaks no TLS, or {trusted} holds no certificate: {error.reason}"
        yield Finding("SuperLink", why, False)
    except (OSError, ValueError, http.client.HTTPException) as error:
        yield Finding("SuperLink", f"{address} does not answer: {error}", False)
    else:
        if answer.status not in (200, 404):  # 404: a proxy before the SuperLink may hide this page
            why = f"{address} answers {answer.status} {answer.reason}: is it a SuperLink?"
            yield Finding("SuperLink", why, False)
            return
        secure = "with TLS" if trusted else "INSECURE: anybody on the way can read and change it"
        yield Finding("SuperLink", f"{address} answers, {secure}")
        theirs = None
        with suppress(ValueError, KeyError, TypeError):
            theirs = str(json.loads(said)["info"]["version"])
        if theirs is None:
            yield Finding("version", "the SuperLink does not tell its version: ask its operator")
        elif version and theirs.split(".")[:2] != version.split(".")[:2]:
            why = f"the SuperLink has flwr {theirs}, and the node {version}: install flwr=={theirs}"
            yield Finding("version", why, False)
        else:
            yield Finding("version", f"the SuperLink has flwr {theirs}")


def _speaks_tls(host: str, port: str) -> bool:
    context = ssl.create_default_context()
    # Certificates are not verified, since nothing is sent over this connection.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, int(port)), _SECONDS) as link,
            context.wrap_socket(link),
        ):
            return True
    except (OSError, ValueError):
        return False


def _check_key(key: Path) -> Finding:
    try:
        text, mode = key.read_text(errors="replace"), key.stat().st_mode & 0o777
    except OSError as error:
        return Finding("key", f"cannot read {key}: {error.strerror}", False)
    if "PRIVATE KEY-----" not in text.partition("\n")[0]:
        return Finding("key", f"{key} holds no private key: ssh-keygen -t ecdsa -b 384", False)
    if mode & 0o077:
        return Finding("key", f"{key} is open to others (mode {mode:04o}): chmod 600", False)
    return Finding("key", f"{key}; the operator must have registered {key}.pub")


def _check_agent(agent: str) -> Finding:
    with socket.socket(socket.AF_UNIX) as pipe:
        try:
            pipe.connect(os.fspath(agent))
        except OSError as error:
            why = error.strerror or str(error)
            return Finding("agent", f"nobody listens at {agent} ({why}): fedtally agent run", False)
    return Finding("agent", f"listens at {agent}")
