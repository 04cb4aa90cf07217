"""A grid in memory, for tests: messages reach real handlers, and some are lost, late or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

Handler = Callable[[Message], Message]
LATE_SECONDS = 25.0
_FAILED = 2  # an error code of Flower: the handler raised


class Fate(Enum):
    """What becomes of a message."""

    ANSWERED = "answered"
    LOST = "lost"  # nobody answers, as where a node was killed
    LATE = "late"  # the answer comes after `LATE_SECONDS`
    FAILED = "failed"  # the handler raises
    DOUBLED = "doubled"  # the node handles it twice, and both answers come


@dataclass
class _Sent:
    replies: list[Message]
    ready: float
    expires: float


@dataclass
class FakeGrid:
    """What the engine uses of a Grid: `get_node_ids`, `push_messages` and `pull_messages`.

    Args:
        handlers: the handler of each node that is online.
        clock: returns the time, Unix seconds.
        fate: says what becomes of a message to a node; by default it is answered.
        delay: the seconds that every answer takes.

    Attributes:
        pushed: how many messages each node got.
        most_in_flight: the most messages that one node had at a time.
    """

    handlers: Mapping[int, Handler]
    clock: Callable[[], float]
    fate: Callable[[int, Message], Fate] = lambda node, message: Fate.ANSWERED
    delay: float = 0.0
    pushed: Counter[int] = field(default_factory=Counter)
    most_in_flight: int = 0

    def __post_init__(self) -> None:
        # A message takes its run and its sender from the process, which is of no run in a test.
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self._sent: dict[str, _Sent] = {}
        self._open: dict[str, int] = {}

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are online."""
        return list(self.handlers)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let each message meet its fate; return the names of the messages."""
        names = []
        for message in messages:
            node, now = message.metadata.dst_node_id, self.clock()
            name = f"message {len(self._sent)}"
            message.metadata.__dict__["_message_id"] = name  # as Flower's own grid does
            fate = self.fate(node, message)
            replies = []
            if fate is Fate.FAILED:
                replies = [Message(Error(_FAILED, "ValueError: secret"), reply_to=message)]
            elif fate is not Fate.LOST:
                times = 2 if fate is Fate.DOUBLED else 1
                replies = [self.handlers[node](message) for _ in range(times)]
            ready = now + (LATE_SECONDS if fate is Fate.LATE else self.delay)
            self._sent[name] = _Sent(replies, ready, now + message.metadata.ttl)
            self.pushed[node] += 1
            self._open[name] = node
            self.most_in_flight = max(self.most_in_flight, *Counter(self._open.values()).values())
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to these messages that are there by now."""
        found = []
        for name in message_ids:
            sent = self._sent[name]
            if self.clock() >= min(sent.ready, sent.expires):
                self._open.pop(name, None)
            if sent.ready <= self.clock() < sent.expires:
                found += sent.replies
                sent.replies = []
        return found
