"""TLS 1.3 between two servers; each server trusts only the other server's certificate.

The helper listens for the leader on a port of its own, and ends TLS itself: the handshake fails for
everybody but the leader. So no proxy may stand between the servers, and the helper need not trust a
proxy to say who sends a request.
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
    """One side of a TLS connection, which accepts only the certificate `_PinnedContext.other`."""

    def do_handshake(self) -> None:
        """Do the TLS handshake, and refuse any certificate but the other server's own.

        OpenSSL alone is not strict enough. An operator may give the certificate of an authority by
        mistake: then OpenSSL accepts every certificate that the authority has signed.

        Raises:
            SSLCertVerificationError: the other side has another certificate.
        """
        super().do_handshake()
        context = self.context
        assert isinstance(context, _PinnedContext)
        if self.getpeercert(binary_form=True) != context.other:
            raise ssl.SSLCertVerificationError("it is not the certificate of the other server")


class _PinnedContext(ssl.SSLContext):
    """A TLS context for connections between the two servers.

    Attributes:
        other: the only certificate that is accepted, in DER.
    """

    sslobject_class = _PinnedObject
    other = b""


@dataclass(frozen=True)
class Certificates:
    """The paths of one server's certificate files, all in PEM.

    Args:
        own: the certificate of this server.
        key: the private key of the certificate `own`, without a password.
        other: the certificate of the other server, the only one that is accepted.
    """

    own: Path
    key: Path
    other: Path

    def of_listener(self) -> ssl.SSLContext:
        """Return the TLS context with which the helper accepts connections.

        Raises:
            UnreadableFileError: a file cannot be read or used, or the key has a password or belongs
                to another certificate.
            InvalidInputError: the file `other` has not exactly one certificate, or has this
                server's own.
        """
        return self._loaded(_PinnedContext(ssl.PROTOCOL_TLS_SERVER))

    def of_caller(self) -> ssl.SSLContext:
        """Return the TLS context with which the leader connects to the helper.

        Raises:
            UnreadableFileError: a file cannot be read or used, or the key has a password or belongs
                to another certificate.
            InvalidInputError: the file `other` has not exactly one certificate, or has this
                server's own.
        """
        context = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the one trusted certificate may have any name
        return self._loaded(context)

    def _loaded(self, context: _PinnedContext) -> _PinnedContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        # Only the other server's certificate is trusted, whoever signed it. Without this flag
        # OpenSSL would demand the certificates of its signers.
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
        """Read the other server's certificate from its file, and return it in DER.

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
    """Return all certificates in a PEM file, each in DER, in the order of the file."""
    found = _PEM.findall(place.read_text(encoding="ascii", errors="replace"))
    return [ssl.PEM_cert_to_DER_cert(one) for one in found]


def _no_password() -> str:
    raise ValueError("the key has a password: give one without")


def checked_helper(url: str) -> str:
    """Check the URL of a helper, `https://HOST:PORT`; return it without a slash at its end.

    The port may be missing; it is then 443.

    Raises:
        InvalidInputError: the text has another form.

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
        host: an IP address or a host name of this machine.
        port: the port; 0: any free port.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an address from a text, `ADDRESS:PORT`; an IPv6 address is in brackets.

        Raises:
            InvalidInputError: the text has another form.

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
        """Listen on the address while the `with` block runs, and yield the socket.

        Raises:
            InvalidInputError: the process cannot listen on the address, for example because another
                process does.
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
