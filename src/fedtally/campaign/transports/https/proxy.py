"""Configuration files of nginx, the web server that stands before fedtally's own processes.

nginx ends TLS, limits the resources that clients may use, and passes requests on to a process on a
Unix socket. The configuration is computed from the plans, so that its limit on the size of requests
allows every request that a plan needs. It contains no address, token or name of a client, and makes
nginx write no access log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.transports.https.resource import (
    WAIT_SECONDS,
    release_path,
    step_path,
)
from fedtally.campaign.transports.pace import longest_answer
from fedtally.errors import InvalidInputError
from fedtally.secagg.two_server import Side

SLOW_SECONDS = 10  # nginx closes a connection that is silent for this time within a request
# The most requests with one token: RATE a second on average, and BURST in one burst.
RATE, BURST = 2, 20
# The next three values are in seconds. nginx waits so long for a response of the process, and then
# answers with an error. In a campaign nginx waits `WAIT_SECONDS`, plus the longer of a phase and
# `_STEP_SECONDS`: the process sends no response while it closes a phase.
_STEP_SECONDS = 40
_GROUP_SECONDS = 60  # for two servers, whose reports may wait while a sum is opened
_JOB_SECONDS = 120  # for DAP, where verifying the reports of a job may take a minute
# Bytes of nginx's memory for each client: 256 for its token, and as much for a made-up one. The 128
# bytes of nginx's documentation are for keys of up to 48 letters, and a token has 52.
_ZONE_BYTES = 512
_LEAST_ZONE = 10  # MiB: without room for made-up tokens, nginx would refuse some clients with 429
_MIB = 1 << 20
_MOST_SOCKET_BYTES = 100  # the longest path of a Unix socket; the system allows a few bytes more
_PLAIN = re.compile(r"[A-Za-z0-9._/:@+\[\]-]+")  # characters without a special meaning for nginx


@dataclass(frozen=True)
class Backend:
    """The facts about one campaign that its configuration of nginx needs.

    Args:
        title: the name of the campaign, for a comment in the configuration.
        fingerprint: the fingerprint of the campaign's plan.
        socket: the path of the Unix socket on which the campaign's process listens; None: the
            campaign is over, and nginx itself answers each request with 410.
        num_clients: the number of clients in the plan.
        most_bytes: the most bytes that a client's answer may have.
        phase: the seconds that a phase of a session lasts.
    """

    title: str
    fingerprint: str
    socket: Path | None
    num_clients: int
    most_bytes: int
    phase: int

    @classmethod
    def of(cls, folder: CampaignFolder, socket: Path | None) -> Self:
        """Describe the campaign in a folder.

        Args:
            folder: the folder of the campaign.
            socket: the path of the Unix socket of its process; None: the campaign is over.
        """
        return cls(
            folder.path.absolute().name,
            folder.plan.fingerprint,
            socket,
            folder.plan.num_clients,
            longest_answer(folder.plan),
            folder.deadlines.phase,
        )


@dataclass(frozen=True)
class Front:
    """The settings of nginx that do not depend on a campaign: addresses, certificate, log.

    Args:
        listen: the addresses on which nginx listens; each is PORT or ADDRESS:PORT.
        host: the host name of the server; `_`: any name.
        certificate: the path of a file with the server's certificate, followed by the certificates
            of its signers.
        certificate_key: the path of the private key of the certificate.
        errors: the path of nginx's error log. Only root should be able to read it, since its
            messages may contain addresses of clients.
    """

    listen: Sequence[str] = ("443",)
    host: str = "_"
    certificate: str = "/etc/nginx/fedtally.pem"
    certificate_key: str = "/etc/nginx/fedtally.key"
    errors: str = "/var/log/nginx/fedtally.log"


def conf(backends: Sequence[Backend], front: Front) -> str:
    """Return the text of a configuration file of nginx for campaigns.

    The operator puts the file into `/etc/nginx/conf.d/`: it belongs into nginx's `http` block.

    Args:
        backends: the campaigns, which must have different plans.
        front: the settings that do not depend on a campaign.

    Raises:
        InvalidInputError: a path, an address or a name has a character with a special meaning for
            nginx, the path of a socket is too long, or two campaigns have the same plan.
    """
    _check(backends, front)
    running = [one for one in backends if one.socket is not None]
    titles = ", ".join(_plain(one.title, "campaign") for one in backends)
    parts = [_HEAD.format(what="Campaigns", titles=titles, command="campaign nginx")]
    if running:
        clients = sum(one.num_clients for one in running)
        parts.append(
            _LIMIT.format(zone=max(_LEAST_ZONE, -(-clients * _ZONE_BYTES // _MIB)), rate=RATE)
        )
    parts += [_UPSTREAM.format(name=_upstream(one), socket=one.socket) for one in running]
    parts.append(_server(front))
    parts += [_ended(one) if one.socket is None else _location(one) for one in backends]
    return "\n".join([*parts, _TAIL])


@dataclass(frozen=True)
class Reports:
    """The facts about one of two servers for reports that its configuration of nginx needs.

    Args:
        title: the name of the server, for a comment in the configuration.
        side: the role of the server: "leader" or "helper".
        fingerprint: the fingerprint of the plan.
        socket: the path of the Unix socket on which the server's process listens.
        most_bytes: the most bytes that a report may have.
    """

    title: str
    side: Side
    fingerprint: str
    socket: Path
    most_bytes: int

    def conf(self, front: Front) -> str:
        """Return the text of a configuration file of nginx for this server.

        The file does not limit the rate of requests. Clients have no tokens, since reports are
        signed. A limit for each network address would be wrong: many clients may share an address.

        Args:
            front: the settings that do not depend on the server.

        Raises:
            InvalidInputError: a path, an address or a name has a character with a special meaning
                for nginx, or the path of the socket is too long.
        """
        _check_places([self.socket], front)
        name = f"fedtally_{self.side}_{self.fingerprint[:16]}"
        found = (_REPORTS + _ONWARD).format(
            path=release_path(self.fingerprint, 0).removesuffix("0"),
            title=_plain(self.title, "server"),
            most=self.most_bytes,
            buffer=min(self.most_bytes, 64 << 10),
            upstream=name,
            slow=SLOW_SECONDS,
            read=_GROUP_SECONDS,
            whose="server's",
        )
        command = f"aggregate {self.side} nginx"
        head = _HEAD.format(what="Reports", titles=self.title, command=command)
        upstream = _UPSTREAM.format(name=name, socket=self.socket)
        return "\n".join([head, upstream, _server(front), found, _TAIL])


@dataclass(frozen=True)
class DapBackend:
    """The facts about one server of a DAP task that its configuration of nginx needs.

    Args:
        title: the name of the server, for a comment in the configuration.
        side: the role of the server: "leader" or "helper".
        task: the id of the task, as text (see `dap.task.to_text`).
        base: the path of the server's URL in the task, without a slash at its end; empty: the URL
            has no path.
        socket: the path of the Unix socket on which the server's process listens.
        most_bytes: the most bytes that a request may have.
    """

    title: str
    side: Side
    task: str
    base: str
    socket: Path
    most_bytes: int

    def conf(self, front: Front) -> str:
        """Return the text of a configuration file of nginx for this server, without a rate limit.

        Args:
            front: the settings that do not depend on the server.

        Raises:
            InvalidInputError: a path, an address or a name has a character with a special meaning
                for nginx, or the path of the socket is too long.
        """
        _check_places([self.socket], front)
        name = f"fedtally_dap_{self.side}_{self.task[:16]}"
        onward: dict[str, Any] = {
            "base": _plain(self.base, "path") if self.base else "",
            "task": self.task,
            "title": _plain(self.title, "server"),
            "most": self.most_bytes,
            "upstream": name,
            "slow": SLOW_SECONDS,
            "read": _JOB_SECONDS,
            "whose": "server's",
        }
        found = [(place + _ONWARD).format(**onward) for place in (_DAP_KEYS, _DAP_TASK)]
        head = _HEAD.format(what="A DAP task", titles=self.title, command=f"dap {self.side} nginx")
        upstream = _UPSTREAM.format(name=name, socket=self.socket)
        return "\n".join([head, upstream, _server(front), *found, _TAIL])


_HEAD = """\
# {what} over HTTPS: {titles}. Printed by `fedtally {command}`: change nothing here.
# Put it into /etc/nginx/conf.d/, then: nginx -t && systemctl reload nginx"""

_LIMIT = """
# How often a client may ask, by its token, however its header is written: many clients may share
# one address. Requests without a token share one share. nginx keeps the tokens in memory alone,
# 4,000 in a MB: here is room for those of all clients, and for as many that somebody made up.
map $http_authorization $fedtally_client {{
  default none;
  "~*^Bearer +(?<fedtally_token>[^ ]+)$" $fedtally_token;
}}
limit_req_zone $fedtally_client zone=fedtally:{zone}m rate={rate}r/s;"""

_UPSTREAM = """
upstream {name} {{ server unix:{socket} max_fails=0; keepalive 64; }}"""

_SERVER = """
server {{
{listen}
  server_name {front.host};
  ssl_certificate {front.certificate};
  ssl_certificate_key {front.certificate_key};
  ssl_protocols TLSv1.2 TLSv1.3;
  ssl_ciphers ECDHE+AESGCM:ECDHE+CHACHA20;  # of TLS 1.2
  ssl_session_cache shared:fedtally_tls:10m;
  ssl_session_tickets off;
  ssl_buffer_size 4k;
  server_tokens off;

  # No address is written down but in alerts: there is no access log, and "crit" would name who
  # asks while the campaign's process is away.
  access_log off;
  error_log {front.errors} alert;

  # Connections that are silent, or that stop in a request, are closed.
  client_header_timeout {slow}s;
  client_body_timeout {slow}s;
  send_timeout {slow}s;
  reset_timedout_connection on;  # the system, too, forgets them at once
  keepalive_timeout 65s;
  large_client_header_buffers 2 4k;

  # What a bound refuses: nginx's own status, 503, would look as if a process were away.
  limit_req_status 429;
  limit_conn_status 429;

  location / {{ return 404; }}"""

_LOCATION = """
  location = {path} {{  # {title}
    client_max_body_size {most};  # no answer under the plan is longer
    client_body_buffer_size {buffer};
    limit_req zone=fedtally burst={burst} nodelay;"""

_REPORTS = """
  location ~ ^{path}[0-9]+(/reports)?$ {{  # {title}
    client_max_body_size {most};  # no report under the plan is longer
    client_body_buffer_size {buffer};"""

_DAP_KEYS = """
  location = {base}/hpke_config {{  # {title}"""

_DAP_TASK = """
  location {base}/tasks/{task}/ {{  # {title}
    client_max_body_size {most};  # no request of the task is longer
    client_body_buffer_size 64k;"""

# The end of each `location` block that passes requests on to a process.
_ONWARD = """
    proxy_pass http://{upstream};
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host $host;
    proxy_request_buffering on;  # a slow body never reaches the {whose} process
    proxy_next_upstream off;  # the client sends again, and nobody else does
    proxy_connect_timeout 5s;
    proxy_send_timeout {slow}s;
    proxy_read_timeout {read}s;
    include fedtally-limits/*.conf;  # bounds of your own, such as by address; none is needed
  }}"""

_ENDED = """
  location = {path} {{ return 410; }}  # {title} is over: its clients end"""

_TAIL = "}\n"


def _server(front: Front) -> str:
    listen = "\n".join(f"  listen {one} ssl;" for one in front.listen)
    return _SERVER.format(listen=listen, slow=SLOW_SECONDS, front=front)


def _location(one: Backend) -> str:
    return (_LOCATION + _ONWARD).format(
        whose="campaign's",
        path=step_path(one.fingerprint),
        title=one.title,
        most=one.most_bytes,
        buffer=min(one.most_bytes, 64 << 10),
        burst=BURST,
        upstream=_upstream(one),
        slow=SLOW_SECONDS,
        read=int(WAIT_SECONDS) + max(_STEP_SECONDS, one.phase),
    )


def _ended(one: Backend) -> str:
    return _ENDED.format(path=step_path(one.fingerprint), title=one.title)


def _upstream(one: Backend) -> str:
    return f"fedtally_{one.fingerprint[:16]}"


def _check(backends: Sequence[Backend], front: Front) -> None:
    seen: dict[str, str] = {}
    for one in backends:
        if one.fingerprint in seen:
            raise InvalidInputError(
                f"{one.title} and {seen[one.fingerprint]} have the same plan, and so the same"
                " address: name one of them"
            )
        seen[one.fingerprint] = one.title
    _check_places([one.socket for one in backends if one.socket is not None], front)


def _check_places(sockets: Sequence[Path], front: Front) -> None:
    """Refuse values that nginx would misread.

    Args:
        sockets: the paths of the Unix sockets.
        front: the settings that do not depend on a server.

    Raises:
        InvalidInputError: a text has a character with a special meaning for nginx, or the path of a
            socket is too long.
    """
    for socket in sockets:
        path = _plain(os.fspath(socket), "socket")
        if len(path) > _MOST_SOCKET_BYTES:
            raise InvalidInputError(
                f"the path of the socket {path} has {len(path)} letters, and at most"
                f" {_MOST_SOCKET_BYTES} are possible: choose a shorter --sockets DIR"
            )
    for what, texts in (
        ("address", front.listen),
        ("host", [front.host]),
        ("path", [front.certificate, front.certificate_key, front.errors]),
    ):
        for text in texts:
            _plain(text, what)


def _plain(text: str, what: str) -> str:
    """Return a text unchanged if nginx reads it as one plain word.

    Args:
        text: the text.
        what: what the text is, for the message of the error.

    Raises:
        InvalidInputError: the text is empty, or has a character other than letters, digits and
            `. _ / : @ + - [ ]`.
    """
    if not _PLAIN.fullmatch(text):
        raise InvalidInputError(
            f"the {what} {text!r} would mean something else to nginx: use letters, digits and"
            " . _ / : @ + - alone"
        )
    return text
