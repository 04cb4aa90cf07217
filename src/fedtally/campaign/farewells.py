"""Farewells: the last frames of ended sessions, and the clients that must still get them.

A farewell tells a client how its session ended. It is *owed* to a client that may not have it yet.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fedtally.secagg.server import ClientId


@dataclass
class _Over:
    """A session that has ended, and the last frame that its clients still have to get.

    Attributes:
        farewell: the last frame, the same for all clients.
        clients: the clients that may get it.
        until: the time after which the session is forgotten, Unix seconds.
    """

    farewell: bytes
    clients: frozenset[ClientId]
    until: float


class Farewells:
    """The ended sessions that are still kept, and the clients that may not know of their end.

    Args:
        repeat: the seconds after which a client that asks again gets the same farewell again.
    """

    def __init__(self, repeat: float) -> None:
        self._repeat = repeat
        self._over: dict[bytes, _Over] = {}
        # For each client, the sessions whose farewell is owed to it, with the time at which it last
        # got the farewell. The time is -inf if the client has not got the farewell, or has sent a
        # frame of the session since then.
        self._owed: dict[ClientId, dict[bytes, float]] = {}

    def __contains__(self, session: bytes) -> bool:
        return session in self._over

    def bid(
        self, session: bytes, farewell: bytes, clients: Collection[ClientId], until: float
    ) -> None:
        """Keep the farewell of a session that has ended; from now on it is owed to all clients.

        Args:
            session: the 32 bytes that name the session.
            farewell: the last frame, the same for all clients.
            clients: the clients that may get it.
            until: the time after which the session is forgotten, Unix seconds.
        """
        self._over[session] = _Over(farewell, frozenset(clients), until)
        for client in clients:
            self._owed.setdefault(client, {})[session] = -math.inf

    def next(self, client: ClientId, now: float, handled: bytes | None = None) -> bytes | None:
        """Return a farewell that a client should get now; None: there is none.

        Args:
            client: the name of the client.
            now: the time, Unix seconds.
            handled: the SHA-256 of the last frame that the client has handled; see `Driver.next`.
                The farewell with this digest is not owed any more. Other farewells stay owed until
                their digest comes. None: the client sends no digests.
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
        """Note that a client sent a frame for a session that does not run here.

        If the session has ended, the client does not know that. Then the farewell is owed to it
        again.

        Args:
            client: the name of the client.
            session: any 32 bytes.
        """
        over = self._over.get(session)
        if over is not None and client in over.clients:
            self._owed.setdefault(client, {})[session] = -math.inf

    def note_heard(self, client: ClientId) -> None:
        """Note that a client has handled the farewells that it got, since it checked in again."""
        if client not in self._owed:  # the usual case
            return
        for session, at in list(self._owed[client].items()):
            if at > -math.inf:
                self._heard(client, session)

    def ended_before(self, now: float) -> Iterator[bytes]:
        """Yield the sessions whose time to be kept is over.

        Each session is forgotten when the caller asks for the next one.
        """
        for session, over in list(self._over.items()):
            if now > over.until:
                yield session
                del self._over[session]
                for client in over.clients:
                    self._heard(client, session)

    def clear(self) -> None:
        """Forget all sessions."""
        self._over.clear()
        self._owed.clear()

    @property
    def are_owed(self) -> bool:
        """Whether a farewell must still be sent to some client."""
        return any(-math.inf in times.values() for times in self._owed.values())

    @property
    def next_end(self) -> float:
        """The time at which the next session may be forgotten, Unix seconds; inf: there is none."""
        return min((over.until + 1 for over in self._over.values()), default=math.inf)

    def _heard(self, client: ClientId, session: bytes) -> None:
        """Note that the farewell of a session is not owed to a client any more."""
        owed = self._owed.get(client, {})
        owed.pop(session, None)
        if not owed:
            self._owed.pop(client, None)
