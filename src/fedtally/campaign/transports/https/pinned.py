"""TLS 1.3 between two servers; each server trusts only the other server's certificate.

The helper listens on its own port and terminates TLS itself. The handshake fails for everybody but
the leader. So there is no proxy between the servers, and no header that names the sender.
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
    """One side of a TLS connection, which trusts only the certificate of its context."""

    def do_handshake(self) -> None:
        """Do the handshake, and refuse any certificate but the other server's own.

        OpenSSL alone would also accept certificates that the trusted certificate has signed, if an
        operator gave the certificate of an authority.

        Raises:
            SSLCertVerificationError: the other side has another certificate.
        """
        super().do_handshake()
        context = self.context
        assert isinstance(context, _PinnedContext)
        if self.getpeercert(binary_form=True) != context.other:
            raise ssl.SSLCertVerificationError("it is not the certificate of the other server")


class _PinnedContext(ssl.SSLContext):
    """The TLS context for connections to the other server.

    Attributes:
        other: the only certificate that is trusted, DER.
    """

    sslobject_class = _PinnedObject
    other = b""


@dataclass(frozen=True)
class Certificates:
    """The certificate files of one server, all in PEM.

    Args:
        own: the path of the server's own certificate.
        key: the path of the private key of the server's own certificate.
        other: the path of the other server's certificate, the only one that is trusted.
    """

    own: Path
    key: Path
    other: Path

    def of_listener(self) -> ssl.SSLContext:
        """Return the TLS context with which the helper accepts connections.

        Raises:
            UnreadableFileError: a file cannot be read, or the key belongs to another certificate.
            InvalidInputError: the file `other` has not exactly one certificate, or has this
                server's own.
        """
        return self._loaded(_PinnedContext(ssl.PROTOCOL_TLS_SERVER))

    def of_caller(self) -> ssl.SSLContext:
        """Return the TLS context with which the leader connects to the helper.

        Raises:
            UnreadableFileError: a file cannot be read, or the key belongs to another certificate.
            InvalidInputError: the file `other` has not exactly one certificate, or has this
                server's own.
        """
        context = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # not needed, since only one certificate is trusted
        return self._loaded(context)

    def _loaded(self, context: _PinnedContext) -> _PinnedContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        # The other server's certificate itself is the trust anchor, whoever signed it. There is no
        # other trust anchor.
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
        """Return the other server's certificate, the only one that is trusted, as DER.

        Raises:
            InvalidInputError: the file `other` does not hold exactly one certificate, or it holds
                the certificate of this server.
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
    """Return all certificates in a PEM file, each as DER."""
    found = _PEM.findall(place.read_text(encoding="ascii", errors="replace"))
    return [ssl.PEM_cert_to_DER_cert(one) for one in found]


def _no_password() -> str:
    raise ValueError("the key has a password: give one without")


def checked_helper(url: str) -> str:
    """Return the URL of a helper, `https://HOST:PORT`, without a slash at its end.

    Raises:
        InvalidInputError: the text is no such URL.

    >>> checked_helper("https://helper.example:8443/")
    'https://helper.example:8443'
    """
    found = _HELPER.fullmatch(url)
    if found is None or not 0 < int(found[1] or 443) <= _MOST_PORT:
        raise InvalidInputError(f"{url!r} is no address of a helper: give https://HOST:PORT")
    return url.rstrip("/")


@dataclass(frozen=True)
class PeerAddress:
    """The address on which the helper listens for the leader.

    Args:
        host: an address of this machine.
        port: the port; 0: any free port.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address in the text of an option, `ADDRESS:PORT`.

        Raises:
            InvalidInputError: the text is no such address.

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
        """Listen on the address while the `with` block runs; the context yields the socket.

        Raises:
            InvalidInputError: the address cannot be bound.
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
