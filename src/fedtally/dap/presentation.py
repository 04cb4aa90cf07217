"""The encoding of DAP's messages: the presentation language of TLS (RFC 8446, section 3).

A message is a frozen dataclass, and the annotation of each field says how the field is encoded.
Each message has exactly one encoding. `Message.decode` refuses missing bytes, extra bytes, and
fields that are too short or out of range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, Self, get_args, get_origin, get_type_hints

from fedtally.errors import InvalidInputError


class MalformedError(InvalidInputError):
    """Say that bytes are not the encoding of a message, or not of the message that is expected."""


class Reader:
    """A reader of bytes. It remembers its position: the number of bytes that were read.

    >>> reader = Reader(b"abc")
    >>> reader.take(2), reader.is_empty
    (b'ab', False)
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        """Read and return the next `count` bytes.

        Raises:
            MalformedError: fewer than `count` bytes are left.
        """
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise MalformedError(
                f"a message is cut off: it needs {count} more bytes, got {len(part)}"
            )
        self._at += count
        return part

    def number(self, size: int) -> int:
        """Read the next `size` bytes, and return them as a big-endian integer, 0 or more.

        Raises:
            MalformedError: fewer than `size` bytes are left.
        """
        return int.from_bytes(self.take(size), "big")

    @property
    def is_empty(self) -> bool:
        """Whether all bytes have been read."""
        return self._at == len(self._data)

    @property
    def next(self) -> int:
        """The next byte as an integer; the position stays, so the byte can be read again.

        Raises:
            MalformedError: no byte is left.
        """
        byte = self.number(1)
        self._at -= 1
        return byte

    def end(self) -> None:
        """Check that all bytes have been read.

        Raises:
            MalformedError: bytes are left.
        """
        if not self.is_empty:
            raise MalformedError(f"{len(self._data) - self._at} bytes follow a message")


class Codec(Protocol):
    """The interface of an encoding, which a field of a message names in its annotation."""

    def write(self, value: Any, /) -> bytes:
        """Encode a value, and return its bytes."""

    def read(self, reader: Reader, /) -> Any:
        """Read the bytes of one value from the reader, and return the value."""


@dataclass(frozen=True)
class Number:
    """The encoding of an integer: `size` bytes, big-endian."""

    size: int

    def write(self, value: int) -> bytes:
        """Return the bytes of an integer.

        Raises:
            InvalidInputError: the value is not in 0 .. 2^(8 size) - 1.
        """
        try:
            return value.to_bytes(self.size, "big")
        except OverflowError:
            raise InvalidInputError(
                f"a number of a message must be in 0 .. 2^{8 * self.size} - 1, got {value}"
            ) from None

    def read(self, reader: Reader) -> int:
        """Read an integer, and return it."""
        return reader.number(self.size)


@dataclass(frozen=True)
class Choice:
    """The encoding of a member of the enumeration `of`: its number, in one byte."""

    of: type[IntEnum]

    def write(self, value: IntEnum) -> bytes:
        """Return the byte of a member."""
        return bytes([self.of(value)])

    def read(self, reader: Reader) -> IntEnum:
        """Read one byte, and return the member with this number.

        Raises:
            MalformedError: no member has this number, or no byte is left.
        """
        number = reader.number(1)
        try:
            return self.of(number)
        except ValueError:
            raise MalformedError(f"{self.of.__name__} has no member {number}") from None


@dataclass(frozen=True)
class Fixed:
    """The encoding of a byte string of exactly `length` bytes: the bytes themselves."""

    length: int

    def write(self, value: bytes) -> bytes:
        """Return the value unchanged.

        Raises:
            InvalidInputError: the value has another length.
        """
        if len(value) != self.length:
            raise InvalidInputError(
                f"a field of a message has {self.length} bytes, got {len(value)}"
            )
        return value

    def read(self, reader: Reader) -> bytes:
        """Read `length` bytes, and return them."""
        return reader.take(self.length)


@dataclass(frozen=True)
class Opaque:
    """The encoding of a byte string of variable length: first the length, then the bytes.

    Args:
        size: the number of bytes that encode the length. So a string has at most 2^(8 size) - 1
            bytes.
        least: the least length of the string, in bytes.
    """

    size: int
    least: int = 0

    def write(self, value: bytes) -> bytes:
        """Return the length and the bytes of a value.

        Raises:
            InvalidInputError: the value has fewer than `least` or more than 2^(8 size) - 1 bytes.
        """
        if len(value) < self.least:
            raise InvalidInputError(
                f"a field of a message has {self.least} bytes or more, got {len(value)}"
            )
        return Number(self.size).write(len(value)) + value

    def read(self, reader: Reader) -> bytes:
        """Read the length and the bytes; return the bytes.

        Raises:
            MalformedError: the string has fewer than `least` bytes, or is cut off.
        """
        value = reader.take(reader.number(self.size))
        if len(value) < self.least:
            raise MalformedError(f"a field has {self.least} bytes or more, got {len(value)}")
        return value


@dataclass(frozen=True)
class Rest:
    """The encoding of a list of messages without a length: one message after another.

    The list must be the last field of a message: it is read until no byte is left.

    Args:
        of: the class of the messages.
        least: the least number of messages.
    """

    of: type[Message]
    least: int = 0

    def write(self, values: Iterable[Message]) -> bytes:
        """Return the bytes of the messages, in order.

        Raises:
            InvalidInputError: there are fewer than `least` messages.
        """
        encoded = [value.encode() for value in values]
        if len(encoded) < self.least:
            raise InvalidInputError(f"a list must have {self.least} entries, got {len(encoded)}")
        return b"".join(encoded)

    def read(self, reader: Reader) -> tuple[Message, ...]:
        """Read all bytes that are left, and return the messages in them, in order.

        Raises:
            MalformedError: there are fewer than `least` messages, or a message is malformed.
        """
        values = []
        while not reader.is_empty:
            values.append(self.of.read(reader))
        if len(values) < self.least:
            raise MalformedError(f"a list must have {self.least} entries, got {len(values)}")
        return tuple(values)


@dataclass(frozen=True)
class Vector:
    """The encoding of a list of messages: two bytes with their total length, then the messages.

    Args:
        of: the class of the messages.
        least: the least number of messages.
    """

    of: type[Message]
    least: int = 0

    def write(self, values: Iterable[Message]) -> bytes:
        """Return the bytes of the list.

        Raises:
            InvalidInputError: there are fewer than `least` messages, or all messages together have
                2^16 bytes or more.
        """
        return Opaque(2).write(Rest(self.of, self.least).write(values))

    def read(self, reader: Reader) -> tuple[Message, ...]:
        """Read the list, and return its messages, in order.

        Raises:
            MalformedError: there are fewer than `least` messages, a message is malformed, or the
                list is cut off.
        """
        return Rest(self.of, self.least).read(Reader(Opaque(2).read(reader)))


@dataclass(frozen=True)
class Nested:
    """The encoding of a message that is a field of another message: the bytes of the message.

    The message is of one of the classes `kinds`. If `kinds` has several classes, the first byte of
    the message is the tag of its class (see `Message`).
    """

    kinds: tuple[type[Message], ...]

    def write(self, value: Message) -> bytes:
        """Return the bytes of a message."""
        return value.encode()

    def read(self, reader: Reader) -> Message:
        """Read a message, and return it.

        Raises:
            MalformedError: the message is malformed, or is of no class in `kinds`.
        """
        for kind in self.kinds:
            if len(self.kinds) == 1 or kind.tag == bytes([reader.next]):
                return kind.read(reader)
        raise MalformedError(f"no message begins with the byte {reader.next} here")


@dataclass(frozen=True)
class Message:
    """The base class of all messages. A subclass is a frozen dataclass with annotated fields.

    Attributes:
        tag: bytes that stand before the fields. They are empty for most classes. Where a field may
            have several classes, the tag says which class it has (see `Nested`).

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
        """Return the bytes of the message: its tag, then its fields in order.

        Raises:
            InvalidInputError: the value or the length of a field is out of range.
        """
        kind: Any = type(self)  # otherwise mypy says that `_codecs`, which caches, cannot hash it
        fields = [codec.write(getattr(self, name)) for name, codec in _codecs(kind)]
        return self.tag + b"".join(fields)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the message of this class that `data` encodes.

        Raises:
            MalformedError: `data` is not the encoding of one message of this class, or has extra
                bytes at its end.
        """
        reader = Reader(data)
        message = cls.read(reader)
        reader.end()
        return message

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read a message of this class from a reader, and return it; more bytes may follow.

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
