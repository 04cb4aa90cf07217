"""The channel between two servers is TLS 1.3, and each believes one certificate: the other's.

The helper listens on a port of its own, and ends TLS itself. A stranger does not get through the
handshake, so no proxy stands between the servers, and no header says who speaks.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from fedtally.campaign.transports.https.listen import BACKLOG
from fedtally.errors import InvalidInputError, UnreadableFileError

_MOST_PORT = 65_535
_HOST = re.compile(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+")


@dataclass(frozen=True)
class Certificates:
    """The files of one server.

    Args:
        own: the path of the certificate that it shows.
        key: the path of the private key of that.
        other: the path of the certificate that it believes.
    """

    own: Path
    key: Path
    other: Path

    def of_listener(self) -> ssl.SSLContext:
        """Return how the helper meets whoever connects.

        Raises:
            UnreadableFileError: a file cannot be read, or the key is another certificate's.
        """
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def of_caller(self) -> ssl.SSLContext:
        """Return how the leader meets the helper.

        Raises:
            UnreadableFileError: a file cannot be read, or the key is another certificate's.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the certificate is the name: no other one is believed
        return self._loaded(context)

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        # The certificate itself is the anchor, whoever signed it, and nobody else's is one.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        place = self.other
        try:
            context.load_verify_locations(cafile=os.fspath(place))
            place = self.own
            context.load_cert_chain(os.fspath(self.own), os.fspath(self.key), password=_no_password)
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            with_key = f" with {self.key}" if place == self.own else ""
            raise UnreadableFileError(
                f"cannot use {place}{with_key} ({why}): give a certificate, and its key, in PEM"
            ) from None
        return context


def _no_password() -> str:
    raise ValueError("the key has a password: give one without")


def checked_helper(url: str) -> str:
    """Return the address of a helper.

    Raises:
        InvalidInputError: it is none.

    >>> checked_helper("https://helper.example:8443/")
    'https://helper.example:8443'
    """
    try:
        parts = urlsplit(url)
        is_whole = parts.hostname and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        is_whole = False
    if not is_whole or parts.scheme != "https" or parts.query or parts.username is not None:
        raise InvalidInputError(f"{url!r} is no address of a helper: give https://HOST:PORT")
    return url.rstrip("/")


@dataclass(frozen=True)
class PeerAddress:
    """Where the helper listens for the leader.

    Args:
        host: an address of this machine.
        port: the port; 0: any that is free.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address in an option.

        Raises:
            InvalidInputError: it is none.

        >>> PeerAddress.parse("0.0.0.0:8443").port
        8443
        """
        host, _, port = text.rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) < 6 and int(port) <= _MOST_PORT
        if not _HOST.fullmatch(host) or not is_port:
            raise InvalidInputError(
                f"cannot listen on {text!r} for the leader: give ADDRESS:PORT of this machine, as"
                " 0.0.0.0:8443"
            )
        return cls(host.strip("[]"), int(port))

    @contextmanager
    def bound(self) -> Iterator[socket.socket]:
        """Give a socket that listens; it is closed at the end.

        Raises:
            InvalidInputError: the address cannot be had.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.closing(made):
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind((self.host, self.port))
                made.listen(BACKLOG)
            except OSError as error:
                raise InvalidInputError(
                    f"cannot listen on {self.host}:{self.port} ({error.strerror or error}): name"
                    " another address, or end what listens there"
                ) from None
            yield made
