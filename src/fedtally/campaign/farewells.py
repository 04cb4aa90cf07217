"""The last frames of sessions that have ended: which client still has to hear how one ended."""

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
    """The sessions that have ended and are not forgotten yet, and who must hear of it.

    Args:
        repeat: the seconds after which a client that asks again gets the same farewell again.
    """

    def __init__(self, repeat: float) -> None:
        self._repeat = repeat
        self._over: dict[bytes, _Over] = {}
        # The sessions of `_over` whose end each client may not know yet, and when it last got their
        # farewell: -inf if it has not got it, or has sent a frame of the session since.
        self._owed: dict[ClientId, dict[bytes, float]] = {}

    def __contains__(self, session: bytes) -> bool:
        return session in self._over

    def bid(
        self, session: bytes, farewell: bytes, clients: Collection[ClientId], until: float
    ) -> None:
        """Keep the farewell of a session that has ended: it is owed to all its clients.

        Args:
            session: its 32 bytes.
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
            client: its name.
            now: the time, Unix seconds.
            handled: the digest that `Driver.next` takes. A farewell that it names is heard. The
                others are owed until they are named.
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
        """Note a frame of a client for a session: if that has ended, the client does not know how.

        Args:
            client: its name.
            session: any 32 bytes.
        """
        over = self._over.get(session)
        if over is not None and client in over.clients:
            self._owed.setdefault(client, {})[session] = -math.inf

    def note_heard(self, client: ClientId) -> None:
        """Note that a client goes on, so that it has heard the farewells that it got."""
        if client not in self._owed:  # as of most, at each of their check-ins
            return
        for session, at in list(self._owed[client].items()):
            if at > -math.inf:
                self._heard(client, session)

    def ended_before(self, now: float) -> Iterator[bytes]:
        """Yield the sessions whose last second is over, and forget each once it was taken."""
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
        """Whether a client has not got a farewell yet."""
        return any(-math.inf in times.values() for times in self._owed.values())

    @property
    def next_end(self) -> float:
        """The time at which a session is next forgotten, Unix seconds; inf: there is none."""
        return min((over.until + 1 for over in self._over.values()), default=math.inf)

    def _heard(self, client: ClientId, session: bytes) -> None:
        """Note that a client need not get the farewell of a session any more."""
        owed = self._owed.get(client, {})
        owed.pop(session, None)
        if not owed:
            self._owed.pop(client, None)
