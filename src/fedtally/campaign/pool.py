"""The pool of clients from which the driver draws the clients of a session.

The pool knows which clients are present, which are in a session, and in which rounds each client
was asked for its items. The time of `check_in` and `count`, which are called often, does not grow
with the number of clients in the pool.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping

from fedtally.secagg.server import ClientId

# A miss is a frame that a client does not answer, or answers with an Abort. After this many misses,
# even with answers in between, the client is benched: it is not drawn for some time.
MISSES = 2
_NOWHERE: frozenset[int] = frozenset()


class Pool:
    """The clients that are present or in sessions, and the rounds in which each client was asked.

    A client is free if it is present and in no session.

    Args:
        allows: returns whether a client that was asked for its items in some rounds, the first
            argument, may be asked in another round, the second. If several rounds may be open at a
            time, the answer must depend only on the number of rounds in the first argument.
        presence: how long a client counts as present after it has checked in, in seconds.
        bench: how long a client is benched, in seconds. A benched client does not count as present.
            A client is benched after every second frame that it did not answer, or answered with an
            Abort.

    Attributes:
        session_of: for each client in a session, by its name: the name of the session.
        num_arrivals: how many times a client has become free, or a free client was asked in another
            round. `read_asked` counts all free clients again.
    """

    def __init__(
        self, allows: Callable[[Collection[int], int], bool], presence: int, bench: int
    ) -> None:
        self._allows, self._presence, self._bench = allows, presence, bench
        self.session_of: dict[ClientId, bytes] = {}
        self.num_arrivals = 0
        # for each client, the rounds in which it was asked
        self._asked: dict[ClientId, frozenset[int]] = {}
        # Maps each set of rounds in `_asked` to itself, so that clients with equal sets share one
        # object.
        self._histories: dict[frozenset[int], frozenset[int]] = {}
        # The free clients, grouped by the rounds in which they were asked. Clients of a group may
        # join the same rounds. Without the groups, `count` would have to look at each client.
        self._free: dict[frozenset[int], dict[ClientId, None]] = {}
        # `_seen` and `_benched` are in the order of their times, so that `expire` finds old entries
        # at the front.
        self._seen: dict[ClientId, float] = {}  # when each client last checked in
        self._benched: dict[ClientId, float] = {}  # for each benched client, until when
        self._misses: Counter[ClientId] = Counter()

    def check_in(self, client: ClientId, now: float, rounds: Collection[int]) -> bool:
        """Record that a client is present; return whether it is in a session, or may join one.

        Two kinds of clients are not recorded as present: a benched client, and a client that is in
        no session and may not join another round.

        Args:
            client: the name of the client.
            now: the time, Unix seconds.
            rounds: the numbers of the rounds that may have another session.
        """
        is_busy = client in self.session_of
        if self._benched.get(client, -math.inf) > now:
            # A benched client is not recorded as present, even if it has a session. Otherwise it
            # could be drawn again after the session.
            return is_busy
        if not is_busy:
            history = self._asked.get(client, _NOWHERE)
            # One round in which the client was not asked is enough for the test: either no other
            # round is open, or the answer of `allows` depends only on the number of rounds. The
            # test must be fast, because clients that may join no more rounds still check in again
            # and again.
            new = next((round for round in rounds if round not in history), None)
            if new is None or not self._allows(history, new):
                return False
        is_new = self._seen.pop(client, None) is None
        self._seen[client] = now  # so the last check-in is at the end of the dict
        if is_new and not is_busy:
            self._settle(client)
        return True

    @property
    def num_present(self) -> int:
        """How many clients are present, free or in a session.

        A client that checked in too long ago is not present, even if it is in a session.
        """
        return len(self._seen)

    def expire(self, now: float) -> None:
        """Remove clients that checked in too long ago, and end benches whose time is over."""
        while self._seen and self._seen[first := next(iter(self._seen))] < now - self._presence:
            self._leave(first)
        while self._benched and self._benched[first := next(iter(self._benched))] <= now:
            del self._benched[first]

    def put_back(self, seconds: float) -> None:
        """Subtract `seconds` from the last check-ins and the ends of benches.

        The caller does this after the clock was put back by `seconds`.
        """
        self._seen = {client: at - seconds for client, at in self._seen.items()}
        self._benched = {client: until - seconds for client, until in self._benched.items()}

    def note_miss(self, client: ClientId, now: float) -> None:
        """Record that a client has not answered a frame, or has answered with an Abort.

        The client is not present until it checks in again. After every second miss it is benched,
        even if it answered frames in between.
        """
        self._leave(client)
        self._misses[client] += 1
        if self._misses[client] >= MISSES:
            del self._misses[client]
            self._benched.pop(client, None)
            self._benched[client] = now + self._bench

    def begin(self, session: bytes, clients: Iterable[ClientId]) -> None:
        """Put clients into a session, so that they are not drawn for another session."""
        for client in clients:
            self.session_of[client] = session
            self._settle(client)

    def end(self, session: bytes, clients: Iterable[ClientId]) -> None:
        """Take clients out of a session, so that they may be drawn again."""
        for client in clients:
            if self.session_of.get(client) == session:
                del self.session_of[client]
                self._settle(client)

    def keep(self, sessions: Container[bytes]) -> None:
        """Take clients out of all sessions that are not in `sessions`."""
        for client, session in list(self.session_of.items()):
            if session not in sessions:
                self.end(session, [client])

    def note_asked(self, round: int, clients: Iterable[ClientId]) -> None:
        """Record that clients are asked for their items in a round."""
        for client in clients:
            self._ungroup(client)  # before `_asked` changes, because it gives the client's group
            history = self._asked.get(client, _NOWHERE) | {round}
            self._asked[client] = self._histories.setdefault(history, history)
            self._settle(client)

    def read_asked(self, asked: Mapping[int, Collection[ClientId]]) -> None:
        """Replace the record of the clients that were asked in each round."""
        self._free.clear()
        self._asked.clear()
        for round, clients in asked.items():
            self.note_asked(round, clients)
        for client in self._seen:
            self._settle(client)

    def count(self, round: int) -> int:
        """Return how many free clients may join a session of a round."""
        return sum(
            len(group) for history, group in self._free.items() if self._may_join(history, round)
        )

    def ready(self, round: int) -> list[ClientId]:
        """Return the names of the free clients that may join a session of a round, in any order."""
        return [
            client
            for history, group in self._free.items()
            if self._may_join(history, round)
            for client in group
        ]

    def _may_join(self, history: frozenset[int], round: int) -> bool:
        """Return whether clients that were asked in the rounds `history` may join `round`."""
        return round not in history and self._allows(history, round)

    def _settle(self, client: ClientId) -> None:
        """Add a client to the free clients if it is free; remove it from them if it is not."""
        if client in self._seen and client not in self.session_of:
            group = self._free.setdefault(self._asked.get(client, _NOWHERE), {})
            self.num_arrivals += client not in group
            group[client] = None
        else:
            self._ungroup(client)

    def _ungroup(self, client: ClientId) -> None:
        history = self._asked.get(client, _NOWHERE)
        group = self._free.get(history)
        if group is not None and client in group:
            del group[client]
            if not group:
                del self._free[history]

    def _leave(self, client: ClientId) -> None:
        self._seen.pop(client, None)
        self._ungroup(client)
