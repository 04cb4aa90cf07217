"""The presentation language of TLS (RFC 8446, section 3), which DAP writes its messages in.

A message is a frozen dataclass whose annotations say how each field is written. One value has one
encoding, and `decode` takes that one alone: what is missing, left over, too short or out of range
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, Self, get_args, get_origin, get_type_hints

from fedtally.errors import InvalidInputError


class MalformedError(InvalidInputError):
    """Refuse bytes that are not the encoding of a message."""


class Reader:
    """A reader of bytes from the front, which knows how far it has read.

    >>> reader = Reader(b"abc")
    >>> reader.take(2), reader.is_empty
    (b'ab', False)
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes.

        Raises:
            MalformedError: fewer bytes are left.
        """
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise MalformedError(
                f"a message is cut off: it needs {count} more bytes, got {len(part)}"
            )
        self._at += count
        return part

    def number(self, size: int) -> int:
        """Return the next bytes as an integer."""
        return int.from_bytes(self.take(size), "big")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._data)

    @property
    def next(self) -> int:
        """The next byte, which stays.

        Raises:
            MalformedError: nothing is left.
        """
        byte = self.number(1)
        self._at -= 1
        return byte

    def end(self) -> None:
        """Refuse what is left.

        Raises:
            MalformedError: something is.
        """
        if not self.is_empty:
            raise MalformedError(f"{len(self._data) - self._at} bytes follow a message")


class Codec(Protocol):
    """How a field is written."""

    def write(self, value: Any, /) -> bytes:
        """Return the encoding."""

    def read(self, reader: Reader, /) -> Any:
        """Return the value, from the next bytes."""


@dataclass(frozen=True)
class Number:
    """An integer of `size` bytes."""

    size: int

    def write(self, value: int) -> bytes:
        """Return the encoding.

        Raises:
            InvalidInputError: the value is out of range.
        """
        try:
            return value.to_bytes(self.size, "big")
        except OverflowError:
            raise InvalidInputError(
                f"a number of a message must be in 0 .. 2^{8 * self.size} - 1, got {value}"
            ) from None

    def read(self, reader: Reader) -> int:
        """Return the value."""
        return reader.number(self.size)


@dataclass(frozen=True)
class Choice:
    """A member of an enumeration, in a byte."""

    of: type[IntEnum]

    def write(self, value: IntEnum) -> bytes:
        """Return the encoding."""
        return bytes([self.of(value)])

    def read(self, reader: Reader) -> IntEnum:
        """Return the member.

        Raises:
            MalformedError: there is none of this number.
        """
        number = reader.number(1)
        try:
            return self.of(number)
        except ValueError:
            raise MalformedError(f"{self.of.__name__} has no member {number}") from None


@dataclass(frozen=True)
class Fixed:
    """Bytes of one length."""

    length: int

    def write(self, value: bytes) -> bytes:
        """Return the encoding.

        Raises:
            InvalidInputError: the value has another length.
        """
        if len(value) != self.length:
            raise InvalidInputError(
                f"a field of a message has {self.length} bytes, got {len(value)}"
            )
        return value

    def read(self, reader: Reader) -> bytes:
        """Return the value."""
        return reader.take(self.length)


@dataclass(frozen=True)
class Opaque:
    """Bytes behind their length, which is a number of `size` bytes.

    Args:
        size: the bytes of the length.
        least: the fewest bytes.
    """

    size: int
    least: int = 0

    def write(self, value: bytes) -> bytes:
        """Return the encoding.

        Raises:
            InvalidInputError: the value is too short or too long.
        """
        if len(value) < self.least:
            raise InvalidInputError(
                f"a field of a message has {self.least} bytes or more, got {len(value)}"
            )
        return Number(self.size).write(len(value)) + value

    def read(self, reader: Reader) -> bytes:
        """Return the value.

        Raises:
            MalformedError: it is too short, or cut off.
        """
        value = reader.take(reader.number(self.size))
        if len(value) < self.least:
            raise MalformedError(f"a field has {self.least} bytes or more, got {len(value)}")
        return value


@dataclass(frozen=True)
class Rest:
    """Messages of one kind, one after another to the end.

    Args:
        of: the kind.
        least: the fewest messages.
    """

    of: type[Message]
    least: int = 0

    def write(self, values: Iterable[Message]) -> bytes:
        """Return the encoding.

        Raises:
            InvalidInputError: there are too few.
        """
        encoded = [value.encode() for value in values]
        if len(encoded) < self.least:
            raise InvalidInputError(f"a list must have {self.least} entries, got {len(encoded)}")
        return b"".join(encoded)

    def read(self, reader: Reader) -> tuple[Message, ...]:
        """Return the messages.

        Raises:
            MalformedError: there are too few, or the last one is cut off.
        """
        values = []
        while not reader.is_empty:
            values.append(self.of.read(reader))
        if len(values) < self.least:
            raise MalformedError(f"a list must have {self.least} entries, got {len(values)}")
        return tuple(values)


@dataclass(frozen=True)
class Vector:
    """Messages of one kind behind the length of all, which is a number of two bytes.

    Args:
        of: the kind.
        least: the fewest messages.
    """

    of: type[Message]
    least: int = 0

    def write(self, values: Iterable[Message]) -> bytes:
        """Return the encoding."""
        return Opaque(2).write(Rest(self.of, self.least).write(values))

    def read(self, reader: Reader) -> tuple[Message, ...]:
        """Return the messages."""
        return Rest(self.of, self.least).read(Reader(Opaque(2).read(reader)))


@dataclass(frozen=True)
class Nested:
    """A message within another; of several kinds, the first byte says which."""

    kinds: tuple[type[Message], ...]

    def write(self, value: Message) -> bytes:
        """Return the encoding."""
        return value.encode()

    def read(self, reader: Reader) -> Message:
        """Return the message.

        Raises:
            MalformedError: no kind begins with this byte.
        """
        for kind in self.kinds:
            if len(self.kinds) == 1 or kind.tag == bytes([reader.next]):
                return kind.read(reader)
        raise MalformedError(f"no message begins with the byte {reader.next} here")


@dataclass(frozen=True)
class Message:
    """The base of messages, all of them frozen dataclasses.

    Attributes:
        tag: the bytes in front of the fields, where a kind has any.

    >>> @dataclass(frozen=True)
    ... class Interval(Message):
    ...     start: Annotated[int, Number(8)]
    ...     duration: Annotated[int, Number(8)]
    >>> Interval(3, 5).encode().hex()
    '00000000000000030000000000000005'
    >>> Interval.decode(bytes(15))
    Traceback (most recent call last):
    ...
    fedtally.dap.presentation.MalformedError: a message is cut off: it needs 8 more bytes, got 7
    """

    tag: ClassVar[bytes] = b""

    def encode(self) -> bytes:
        """Return the encoding.

        Raises:
            InvalidInputError: a field is out of range.
        """
        kind: Any = type(self)  # mypy takes the class of a dataclass for unhashable
        fields = [codec.write(getattr(self, name)) for name, codec in _codecs(kind)]
        return self.tag + b"".join(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the message that all of these bytes encode.

        Raises:
            MalformedError: they encode none.
        """
        reader = Reader(data)
        message = cls.read(reader)
        reader.end()
        return message

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Return the message that the next bytes encode.

        Raises:
            MalformedError: they encode none.
        """
        if reader.take(len(cls.tag)) != cls.tag:
            raise MalformedError(f"a {cls.__name__} must begin with {cls.tag.hex()}")
        kind: Any = cls
        return cls(**{name: codec.read(reader) for name, codec in _codecs(kind)})


@cache
def _codecs(message: Any) -> list[tuple[str, Codec]]:
    hints = get_type_hints(message, include_extras=True)
    return [(name, _codec(hint)) for name, hint in hints.items() if get_origin(hint) != ClassVar]


def _codec(hint: Any) -> Codec:
    if get_origin(hint) is Annotated:
        codec: Codec = hint.__metadata__[0]
        return codec
    kinds = get_args(hint) or (hint,)
    return Choice(hint) if issubclass(kinds[0], IntEnum) else Nested(kinds)
