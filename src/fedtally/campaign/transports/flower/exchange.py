"""Messages between the ServerApp and its nodes: one in flight a node, and none after its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

ACTION = "step"
_TYPE = f"query.{ACTION}"
_RECORD, _ENTRY = "frame", "bytes"
# Flower sends an array in pieces, and a config record in one: below this size that is faster.
_LARGE = 1 << 20


def pack(frame: bytes) -> RecordDict:
    """Return the content of a message that carries a frame; empty bytes are no frame."""
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
        frame: its bytes.
        seconds: for so long somebody needs the answer.
    """

    node: int
    frame: bytes
    seconds: float


class Exchange:
    """Push frames to nodes, and pull their answers.

    Args:
        grid: the grid of the run.
        steady: returns seconds that nobody sets.
        warn: called with a problem that the engine goes on after, in words; once a message.
    """

    def __init__(
        self, grid: Grid, steady: Callable[[], float], warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._grid, self._steady, self._warn = grid, steady, warn
        self._asked: dict[str, tuple[int, float]] = {}  # by message: the node, until when
        self._unread: set[str] = set()  # messages whose answer could not be read, as was told

    @property
    def busy(self) -> set[int]:
        """The nodes that have a message."""
        return {node for node, _ in self._asked.values()}

    def push(self, letters: Sequence[Letter]) -> None:
        """Send a message to each node; none of them may be busy."""
        if not letters:
            return
        now = self._steady()
        letters = [one._replace(seconds=max(1.0, one.seconds)) for one in letters]
        messages = [
            # Flower gives a message up once its time is over, and its answer too: a node that was
            # away does not work on it then.
            Message(pack(one.frame), one.node, _TYPE, ttl=one.seconds)
            for one in letters
        ]
        # Flower returns None for a message that it does not take: that node is asked again later.
        for name, one in zip(self._grid.push_messages(messages), letters, strict=False):
            if name:
                self._asked[name] = one.node, now + one.seconds

    def pull(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the answers that are there, each with its node.

        An empty answer says that the node handled the frame and has none: there is nothing to say,
        or its agent is away. None is an error of Flower: nobody knows whether the node got it.
        """
        # One at a time: no more than one masked vector is in memory, and an answer that Flower
        # cannot read takes no other one with it.
        for name, (node, until) in list(self._asked.items()):
            try:
                replies = list(self._grid.pull_messages([name]))
            except Exception as error:  # of any kind: a node chose these bytes
                if name not in self._unread:  # it is asked for until its time is over
                    self._warn(f"an answer could not be read: {type(error).__name__}")
                self._unread.add(name)
                replies = []
            # Only this tells the node: the sender of an error is the SuperLink.
            replies = [one for one in replies if one.metadata.reply_to_message_id == name]
            if replies:
                del self._asked[name]
                yield node, unpack(replies[0].content) if replies[0].has_content() else None
            elif self._steady() > until:
                del self._asked[name]
        self._unread &= self._asked.keys()
