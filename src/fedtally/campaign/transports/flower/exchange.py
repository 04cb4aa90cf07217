"""How the ServerApp of Flower sends frames (messages of the protocol) to nodes, and gets answers.

At most one answer of each node is awaited, and each message has a time limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

ACTION = "step"
_TYPE = f"query.{ACTION}"
_RECORD, _ENTRY = "frame", "bytes"
# A config record with at most this many bytes is faster than an array: Flower sends an array in
# pieces, and a config record in one piece.
_LARGE = 1 << 20


def pack(frame: bytes) -> RecordDict:
    """Return the content of a Flower message with a frame; empty bytes mean no frame."""
    if len(frame) <= _LARGE:
        return RecordDict({_RECORD: ConfigRecord({_ENTRY: frame})})
    array = Array(dtype="uint8", shape=(len(frame),), stype="raw-le", data=frame)
    return RecordDict({_RECORD: ArrayRecord({_ENTRY: array})})


def unpack(content: RecordDict) -> bytes:
    """Return the frame in the content of a Flower message; empty bytes if it has no frame."""
    try:
        value = content[_RECORD][_ENTRY]
    except KeyError:  # the other side may send other records
        return b""
    value = value.data if isinstance(value, Array) else value
    return value if isinstance(value, bytes) else b""


class Letter(NamedTuple):
    """A frame to send to a node.

    Attributes:
        node: the number of the node.
        frame: the bytes of the frame.
        seconds: after how many seconds nobody needs the answer any more.
    """

    node: int
    frame: bytes
    seconds: float


class Exchange:
    """Send frames to nodes, and get their answers.

    Args:
        grid: the object of Flower with which a ServerApp sends messages to the nodes of its run.
        steady: returns the seconds of a monotonic clock.
        warn: called with a text about an answer that cannot be read, once for each message.
    """

    def __init__(
        self, grid: Grid, steady: Callable[[], float], warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._grid, self._steady, self._warn = grid, steady, warn
        # the id of a message -> the node that must answer, and when the time for the answer is over
        self._asked: dict[str, tuple[int, float]] = {}
        self._unread: set[str] = set()  # the ids of the messages for which `warn` was called

    @property
    def busy(self) -> set[int]:
        """The numbers of the nodes whose answer is awaited."""
        return {node for node, _ in self._asked.values()}

    def push(self, letters: Sequence[Letter]) -> None:
        """Send a message for each letter.

        Args:
            letters: the letters. The node of a letter must not be in `busy`. A time for the answer
                of less than one second counts as one second.
        """
        if not letters:
            return
        now = self._steady()
        letters = [one._replace(seconds=max(1.0, one.seconds)) for one in letters]
        messages = [
            # After the time in `ttl`, Flower drops the message and its answer. So a node that comes
            # back later does not work on an old message.
            Message(pack(one.frame), one.node, _TYPE, ttl=one.seconds)
            for one in letters
        ]
        # Flower returns None for a message that it refuses; the driver then sends the frame again
        # later.
        for name, one in zip(self._grid.push_messages(messages), letters, strict=False):
            if name:
                self._asked[name] = one.node, now + one.seconds

    def pull(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the number of each node whose answer has come, with the answer.

        Empty bytes mean that the node got the frame, but sent no answer of its agent. None means an
        error of Flower: the node may have got the frame, or not. The answer of a node is awaited
        until `Letter.seconds` are over.
        """
        # Answers are pulled one by one, so that only one masked vector is in memory at a time, and
        # an answer that Flower cannot read does not lose the other answers.
        for name, (node, until) in list(self._asked.items()):
            try:
                replies = list(self._grid.pull_messages([name]))
            except Exception as error:  # a node chose these bytes, so any error is possible
                if name not in self._unread:  # one warning, but another try until the time is over
                    self._warn(f"an answer could not be read: {type(error).__name__}")
                self._unread.add(name)
                replies = []
            # An answer is recognised by the id of its message, and not by its node: an error comes
            # from the SuperLink and names no node.
            replies = [one for one in replies if one.metadata.reply_to_message_id == name]
            if replies:
                del self._asked[name]
                yield node, unpack(replies[0].content) if replies[0].has_content() else None
            elif self._steady() > until:
                del self._asked[name]
        self._unread &= self._asked.keys()
