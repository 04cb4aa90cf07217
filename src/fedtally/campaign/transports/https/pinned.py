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

from fedtally.campaign.transports.https.listen import BACKLOG
from fedtally.errors import InvalidInputError, UnreadableFileError

_MOST_PORT = 65_535
_HOST = re.compile(r"\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+")
_HELPER = re.compile(r"https://(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?/?")
_PEM = re.compile(f"{ssl.PEM_HEADER}.*?{ssl.PEM_FOOTER}", re.DOTALL)


class _PinnedObject(ssl.SSLObject):
    """An end of a connection, which believes the certificate of its context alone."""

    def do_handshake(self) -> None:
        """Refuse what an anchor has signed: an operator may have given that of an authority."""
        super().do_handshake()
        context = self.context
        assert isinstance(context, _PinnedContext)
        if self.getpeercert(binary_form=True) != context.other:
            raise ssl.SSLCertVerificationError("it is not the certificate of the other server")


class _PinnedContext(ssl.SSLContext):
    """How one server meets the other.

    Attributes:
        other: the certificate that it believes, DER.
    """

    sslobject_class = _PinnedObject
    other = b""


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
            InvalidInputError: the other server's certificate is not one, or is the own.
        """
        return self._loaded(_PinnedContext(ssl.PROTOCOL_TLS_SERVER))

    def of_caller(self) -> ssl.SSLContext:
        """Return how the leader meets the helper.

        Raises:
            UnreadableFileError: a file cannot be read, or the key is another certificate's.
            InvalidInputError: the other server's certificate is not one, or is the own.
        """
        context = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the certificate is the name: no other one is believed
        return self._loaded(context)

    def _loaded(self, context: _PinnedContext) -> _PinnedContext:
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
        context.other = self._believed()
        return context

    def _believed(self) -> bytes:
        """Return the certificate that is believed, DER.

        Raises:
            InvalidInputError: the file holds others beside it, or it is the own one.
        """
        found, own = _certificates(self.other), _certificates(self.own)
        if len(found) != 1:
            raise InvalidInputError(
                f"{self.other} holds {len(found)} certificates, and the other server has 1: give"
                " that one alone, without those that signed it"
            )
        if found == own[:1]:
            raise InvalidInputError(
                f"{self.other} is the certificate of this server: give the one that the other"
                " server's operator handed over"
            )
        return found[0]


def _certificates(place: Path) -> list[bytes]:
    """Return the certificates in a file, DER."""
    found = _PEM.findall(place.read_text(encoding="ascii", errors="replace"))
    return [ssl.PEM_cert_to_DER_cert(one) for one in found]


def _no_password() -> str:
    raise ValueError("the key has a password: give one without")


def checked_helper(url: str) -> str:
    """Return the address of a helper.

    Raises:
        InvalidInputError: it is none.

    >>> checked_helper("https://helper.example:8443/")
    'https://helper.example:8443'
    """
    found = _HELPER.fullmatch(url)
    if found is None or not 0 < int(found[1] or 443) <= _MOST_PORT:
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
