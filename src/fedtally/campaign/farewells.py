"""Farewells: the last frames of ended sessions, and which clients must still get them.

A farewell is the message that tells a client how its session ended. It is *owed* to a client until
the client has shown that it handled the farewell, or until the session is forgotten.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fedtally.secagg.server import ClientId


@dataclass
class _Over:
    """A session that has ended, with its farewell (the last frame for its clients).

    Attributes:
        farewell: the last frame, the same for all clients.
        clients: the clients that may get the farewell.
        until: the last second, Unix time, in which the session is kept.
    """

    farewell: bytes
    clients: frozenset[ClientId]
    until: float


class Farewells:
    """The ended sessions that are still kept, each with its farewell and the clients that need it.

    Args:
        repeat: a client that asks again gets the same farewell again only after this many seconds,
            or after `note_late`. This bound is not for a client that sends the digest of the last
            frame that it handled, see `next`.
    """

    def __init__(self, repeat: float) -> None:
        self._repeat = repeat
        self._over: dict[bytes, _Over] = {}
        # For each client: the sessions with a farewell that is owed to it, and when the client last
        # got the farewell. The time is -inf if the client never got it, if it has sent a frame of
        # the session since, or if it sends digests.
        self._owed: dict[ClientId, dict[bytes, float]] = {}

    def __contains__(self, session: bytes) -> bool:
        return session in self._over

    def bid(
        self, session: bytes, farewell: bytes, clients: Collection[ClientId], until: float
    ) -> None:
        """Keep the farewell of a session that has ended; from now on all `clients` must get it.

        Args:
            session: the 32 bytes that name the session.
            farewell: the last frame, the same for all clients.
            clients: the clients that must get the farewell. No other client gets it.
            until: the last second, Unix time, in which the session is kept.
        """
        self._over[session] = _Over(farewell, frozenset(clients), until)
        for client in clients:
            self._owed.setdefault(client, {})[session] = -math.inf

    def next(self, client: ClientId, now: float, handled: bytes | None = None) -> bytes | None:
        """Return a farewell that a client should get now, or None if no farewell is due.

        Args:
            client: the name of the client.
            now: the time, Unix seconds.
            handled: the SHA-256 of the last frame that the client has handled, see `Driver.next`.
                The farewell with this digest is not returned any more. If others are owed, the
                first of them is returned at each call, until a call brings its digest. None: the
                client sends no digests.
        """
        for session, at in list(self._owed.get(client, {}).items()):
            farewell = self._over[session].farewell
            if handled is None:
                if abs(now - at) >= self._repeat:
                    self._owed[client][session] = now
                    return farewell
            elif handled == hashlib.sha256(farewell).digest():
                self._heard(client, session)
            else:
                return farewell
        return None

    def note_late(self, client: ClientId, session: bytes) -> None:
        """Record that a client sent a frame for a session that does not run here.

        If the session has ended and is still kept, the client does not know this, and must get the
        farewell again. Nothing changes for other sessions, or if the session's farewell is not for
        this client.

        Args:
            client: the name of the client.
            session: the 32 bytes that the client sent as the session's name. They may be any bytes.
        """
        over = self._over.get(session)
        if over is not None and client in over.clients:
            self._owed.setdefault(client, {})[session] = -math.inf

    def note_heard(self, client: ClientId) -> None:
        """Record that a client has handled all farewells that it got so far.

        Farewells that `note_late` made due again are not among them. Nothing changes for a client
        that sends digests: `next` records what it has handled.
        """
        if client not in self._owed:  # most clients: nothing is owed to them
            return
        for session, at in list(self._owed[client].items()):
            if at > -math.inf:
                self._heard(client, session)

    def ended_before(self, now: float) -> Iterator[bytes]:
        """Yield the names of the sessions whose `until` is before `now`.

        When the caller asks for the next name, the session that was yielded last is forgotten.
        """
        for session, over in list(self._over.items()):
            if now > over.until:
                yield session
                del self._over[session]
                for client in over.clients:
                    self._heard(client, session)

    def clear(self) -> None:
        """Forget all sessions and farewells."""
        self._over.clear()
        self._owed.clear()

    @property
    def are_owed(self) -> bool:
        """Whether some client must still get a farewell.

        The client has not got the farewell yet, or has sent a frame of the session since. A client
        that sends digests must get a farewell until it sends the digest of the farewell.
        """
        return any(-math.inf in times.values() for times in self._owed.values())

    @property
    def next_end(self) -> float:
        """The Unix time from which `ended_before` yields a session; inf if no session is kept."""
        return min((over.until + 1 for over in self._over.values()), default=math.inf)

    def _heard(self, client: ClientId, session: bytes) -> None:
        """Record that a client need not get the farewell of a session any more."""
        owed = self._owed.get(client, {})
        owed.pop(session, None)
        if not owed:
            self._owed.pop(client, None)
