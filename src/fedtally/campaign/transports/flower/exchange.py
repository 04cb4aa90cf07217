"""The exchange of messages between the ServerApp and its nodes.

Each node has at most one message in flight, and each message has a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

ACTION = "step"
_TYPE = f"query.{ACTION}"
_RECORD, _ENTRY = "frame", "bytes"
# Flower sends an array in pieces, and a config record in one piece. Up to this size, in bytes, a
# config record is faster.
_LARGE = 1 << 20


def pack(frame: bytes) -> RecordDict:
    """Return the content of a message that carries a frame; empty bytes mean no frame."""
    if len(frame) <= _LARGE:
        return RecordDict({_RECORD: ConfigRecord({_ENTRY: frame})})
    array = Array(dtype="uint8", shape=(len(frame),), stype="raw-le", data=frame)
    return RecordDict({_RECORD: ArrayRecord({_ENTRY: array})})


def unpack(content: RecordDict) -> bytes:
    """Return the frame in the content of a message; empty bytes if there is none."""
    try:
        value = content[_RECORD][_ENTRY]
    except KeyError:  # the other side may send any records
        return b""
    value = value.data if isinstance(value, Array) else value
    return value if isinstance(value, bytes) else b""


class Letter(NamedTuple):
    """A frame on its way to a node.

    Attributes:
        node: the number of the node.
        frame: the bytes of the frame.
        seconds: the seconds after which the answer is not needed any more.
    """

    node: int
    frame: bytes
    seconds: float


class Exchange:
    """Push frames to nodes, and pull their answers.

    Args:
        grid: Flower's grid of the run, by which the ServerApp reaches the nodes.
        steady: returns the seconds of a monotonic clock.
        warn: called with a text about an answer that cannot be read; once for each message.
    """

    def __init__(
        self, grid: Grid, steady: Callable[[], float], warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._grid, self._steady, self._warn = grid, steady, warn
        self._asked: dict[str, tuple[int, float]] = {}  # by message id: the node and the deadline
        self._unread: set[str] = set()  # ids of messages with a warning of an unreadable answer

    @property
    def busy(self) -> set[int]:
        """The numbers of the nodes that have a message in flight."""
        return {node for node, _ in self._asked.values()}

    def push(self, letters: Sequence[Letter]) -> None:
        """Send a message for each letter; no node of a letter may be busy."""
        if not letters:
            return
        now = self._steady()
        letters = [one._replace(seconds=max(1.0, one.seconds)) for one in letters]
        messages = [
            # Flower drops a message and its answer when their time (`ttl`) is over. So a node that
            # comes back later does not work on an old message.
            Message(pack(one.frame), one.node, _TYPE, ttl=one.seconds)
            for one in letters
        ]
        # Flower returns None for a message that it refuses; the node will get the frame later.
        for name, one in zip(self._grid.push_messages(messages), letters, strict=False):
            if name:
                self._asked[name] = one.node, now + one.seconds

    def pull(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the answers that have arrived, each after the number of its node.

        An empty answer means that the node handled the frame, but has no answer or cannot reach its
        agent. None means an error of Flower: it is not known whether the node got the frame.
        """
        # Answers are pulled one by one, so that only one masked vector is in memory. Also, if
        # Flower cannot read an answer, the other answers are not lost.
        for name, (node, until) in list(self._asked.items()):
            try:
                replies = list(self._grid.pull_messages([name]))
            except Exception as error:  # any error is possible, since a node chose these bytes
                if name not in self._unread:  # warn once, but try again until the deadline
                    self._warn(f"an answer could not be read: {type(error).__name__}")
                self._unread.add(name)
                replies = []
            # Only this id shows which node an answer belongs to: errors come from the SuperLink.
            replies = [one for one in replies if one.metadata.reply_to_message_id == name]
            if replies:
                del self._asked[name]
                yield node, unpack(replies[0].content) if replies[0].has_content() else None
            elif self._steady() > until:
                del self._asked[name]
        self._unread &= self._asked.keys()
