"""The presentation language of TLS (RFC 8446, section 3), in which DAP encodes its messages.

A message is a frozen dataclass. The annotation of a field says how the field is encoded. Each value
has exactly one encoding, and `decode` refuses any other: with missing or extra bytes, or with a
field that is too short or out of range.
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
    """A reader of bytes from first to last, which remembers its position.

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
        """Return the next `size` bytes as a big-endian integer.

        Raises:
            MalformedError: fewer bytes are left.
        """
        return int.from_bytes(self.take(size), "big")

    @property
    def is_empty(self) -> bool:
        """Whether no byte is left."""
        return self._at == len(self._data)

    @property
    def next(self) -> int:
        """The next byte as an integer, without reading past it.

        Raises:
            MalformedError: no byte is left.
        """
        byte = self.number(1)
        self._at -= 1
        return byte

    def end(self) -> None:
        """Refuse extra bytes.

        Raises:
            MalformedError: there are bytes left.
        """
        if not self.is_empty:
            raise MalformedError(f"{len(self._data) - self._at} bytes follow a message")


class Codec(Protocol):
    """The encoding of a field."""

    def write(self, value: Any, /) -> bytes:
        """Return the encoding of a value."""

    def read(self, reader: Reader, /) -> Any:
        """Return the value that the next bytes encode."""


@dataclass(frozen=True)
class Number:
    """The encoding of an integer: `size` bytes, big-endian."""

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
    """The encoding of a member of an enumeration: its number, in one byte."""

    of: type[IntEnum]

    def write(self, value: IntEnum) -> bytes:
        """Return the encoding."""
        return bytes([self.of(value)])

    def read(self, reader: Reader) -> IntEnum:
        """Return the member.

        Raises:
            MalformedError: no member has this number.
        """
        number = reader.number(1)
        try:
            return self.of(number)
        except ValueError:
            raise MalformedError(f"{self.of.__name__} has no member {number}") from None


@dataclass(frozen=True)
class Fixed:
    """The encoding of a byte string of fixed length: the bytes themselves."""

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
    """The encoding of a byte string of any length: its length, then the bytes.

    Args:
        size: the number of bytes in which the length is written.
        least: the least length that is allowed, in bytes.
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
            MalformedError: the value is too short, or bytes are missing.
        """
        value = reader.take(reader.number(self.size))
        if len(value) < self.least:
            raise MalformedError(f"a field has {self.least} bytes or more, got {len(value)}")
        return value


@dataclass(frozen=True)
class Rest:
    """The encoding of messages of one class: one after another, up to the last byte.

    Args:
        of: the class of the messages.
        least: the least number of messages that is allowed.
    """

    of: type[Message]
    least: int = 0

    def write(self, values: Iterable[Message]) -> bytes:
        """Return the encoding.

        Raises:
            InvalidInputError: there are too few messages.
        """
        encoded = [value.encode() for value in values]
        if len(encoded) < self.least:
            raise InvalidInputError(f"a list must have {self.least} entries, got {len(encoded)}")
        return b"".join(encoded)

    def read(self, reader: Reader) -> tuple[Message, ...]:
        """Return the messages.

        Raises:
            MalformedError: there are too few messages, or one is malformed.
        """
        values = []
        while not reader.is_empty:
            values.append(self.of.read(reader))
        if len(values) < self.least:
            raise MalformedError(f"a list must have {self.least} entries, got {len(values)}")
        return tuple(values)


@dataclass(frozen=True)
class Vector:
    """The encoding of messages of one class: their total size in two bytes, then the messages.

    Args:
        of: the class of the messages.
        least: the least number of messages that is allowed.
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
    """The encoding of a message inside another message.

    If there are several classes, the first byte of the message, its tag, says which one it is.
    """

    kinds: tuple[type[Message], ...]

    def write(self, value: Message) -> bytes:
        """Return the encoding."""
        return value.encode()

    def read(self, reader: Reader) -> Message:
        """Return the message.

        Raises:
            MalformedError: no class has this byte as its tag, or the message is malformed.
        """
        for kind in self.kinds:
            if len(self.kinds) == 1 or kind.tag == bytes([reader.next]):
                return kind.read(reader)
        raise MalformedError(f"no message begins with the byte {reader.next} here")


@dataclass(frozen=True)
class Message:
    """The base of all messages, which are frozen dataclasses.

    Attributes:
        tag: the bytes before the fields, by which a class is recognized; often empty.

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
        """Return the encoding of the message.

        Raises:
            InvalidInputError: a field is out of range.
        """
        kind: Any = type(self)  # mypy takes the class of a dataclass for unhashable
        fields = [codec.write(getattr(self, name)) for name, codec in _codecs(kind)]
        return self.tag + b"".join(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the message that these bytes encode; they may have no extra bytes.

        Raises:
            MalformedError: the bytes are not the encoding of a message of this class.
        """
        reader = Reader(data)
        message = cls.read(reader)
        reader.end()
        return message

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Return the message that the next bytes encode.

        Raises:
            MalformedError: the next bytes are not the encoding of a message of this class.
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
