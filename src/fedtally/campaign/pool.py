"""The clients that the sessions of a campaign draw from: who is there, and who may be asked where.

Each call takes the same time however many clients there are, but for `ready`, which lists them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping

from fedtally.secagg.server import ClientId

MISSES = 2  # a client that leaves so many frames unanswered, or aborts, is not drawn for a while
_NOWHERE: frozenset[int] = frozenset()


class Pool:
    """The clients that are there, those in sessions, and the rounds that each was asked in.

    A client is free if it is there and in no session.

    Args:
        allows: tells whether a client that was asked for its items in some rounds may be asked in
            another one. It asks for the number of the rounds alone, unless at most one round is
            open at a time.
        presence: the seconds for which a client is there after it has checked in.
        bench: the seconds for which no client is there that has left two frames unanswered, or
            answered them with an Abort.

    Attributes:
        session_of: the session that each client is in, if it is in one.
        num_arrivals: how often a client became free.
    """

    def __init__(
        self, allows: Callable[[Collection[int], int], bool], presence: int, bench: int
    ) -> None:
        self._allows, self._presence, self._bench = allows, presence, bench
        self.session_of: dict[ClientId, bytes] = {}
        self.num_arrivals = 0
        self._asked: dict[ClientId, frozenset[int]] = {}  # the rounds of each client
        self._histories: dict[frozenset[int], frozenset[int]] = {}  # one object for equal ones
        # Free clients by the rounds that they were asked in: all clients of a group may join the
        # same rounds. There are few groups, so that nobody need look at each client.
        self._free: dict[frozenset[int], dict[ClientId, None]] = {}
        # Both have the order in which their times pass: what is over is at the front.
        self._seen: dict[ClientId, float] = {}  # the time of the last check-in
        self._benched: dict[ClientId, float] = {}  # the time until which a client is benched
        self._misses: Counter[ClientId] = Counter()

    def check_in(self, client: ClientId, now: float, rounds: Collection[int]) -> bool:
        """Note that a client is there; return whether it is in a session, or may join one.

        Args:
            client: its name.
            now: the time, Unix seconds.
            rounds: the rounds that may have another session.
        """
        is_busy = client in self.session_of
        if self._benched.get(client, -math.inf) > now:
            return is_busy  # not noted: it would be free as soon as its session ends
        if not is_busy:
            history = self._asked.get(client, _NOWHERE)
            # One round stands for all: see `allows`. A client that is used up asks again and again.
            new = next((round for round in rounds if round not in history), None)
            if new is None or not self._allows(history, new):
                return False
        is_new = self._seen.pop(client, None) is None
        self._seen[client] = now  # at the end
        if is_new and not is_busy:
            self._settle(client)
        return True

    @property
    def num_present(self) -> int:
        """The number of clients that are there: in a session, or free for one."""
        return len(self._seen)

    def expire(self, now: float) -> None:
        """Forget who has not checked in for too long, and who was benched long enough."""
        while self._seen and self._seen[first := next(iter(self._seen))] < now - self._presence:
            self._leave(first)
        while self._benched and self._benched[first := next(iter(self._benched))] <= now:
            del self._benched[first]

    def put_back(self, seconds: float) -> None:
        """Move all times back by the seconds that the clock was put back."""
        self._seen = {client: at - seconds for client, at in self._seen.items()}
        self._benched = {client: until - seconds for client, until in self._benched.items()}

    def note_miss(self, client: ClientId, now: float) -> None:
        """Note that a client has not answered, or aborted: it is there again when it checks in."""
        self._leave(client)
        self._misses[client] += 1
        if self._misses[client] >= MISSES:
            del self._misses[client]
            self._benched.pop(client, None)
            self._benched[client] = now + self._bench

    def begin(self, session: bytes, clients: Iterable[ClientId]) -> None:
        """Put clients into a session, so that they cannot be drawn for another one."""
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
        """Take clients out of all sessions but these."""
        for client, session in list(self.session_of.items()):
            if session not in sessions:
                self.end(session, [client])

    def note_asked(self, round: int, clients: Iterable[ClientId]) -> None:
        """Note that clients are asked for their items of a round."""
        for client in clients:
            self._ungroup(client)  # it was in the group of its rounds so far
            history = self._asked.get(client, _NOWHERE) | {round}
            self._asked[client] = self._histories.setdefault(history, history)
            self._settle(client)

    def read_asked(self, asked: Mapping[int, Collection[ClientId]]) -> None:
        """Replace what is known of who was asked, by round."""
        self._free.clear()
        self._asked.clear()
        for round, clients in asked.items():
            self.note_asked(round, clients)
        for client in self._seen:
            self._settle(client)

    def count(self, round: int) -> int:
        """Return the number of free clients that may join a session of a round."""
        return sum(
            len(group) for history, group in self._free.items() if self._may_join(history, round)
        )

    def ready(self, round: int) -> list[ClientId]:
        """Return the free clients that may join a session of a round."""
        return [
            client
            for history, group in self._free.items()
            if self._may_join(history, round)
            for client in group
        ]

    def _may_join(self, history: frozenset[int], round: int) -> bool:
        """Tell whether who was asked in these rounds may be asked in another one."""
        return round not in history and self._allows(history, round)

    def _settle(self, client: ClientId) -> None:
        """Put a client among the free ones if it is free, and else out of them."""
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
