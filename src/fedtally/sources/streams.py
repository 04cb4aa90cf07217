"""`ByteStream`, which reads a file or standard input as UTF-8; and the errors of reading a file.

`arrow_file` gives such a stream to Arrow, whose threads read it.
"""

from __future__ import annotations

import atexit
import codecs
import csv
import gc
import io
import os
import re
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, cast
from weakref import ref

from fedtally.base import arrow
from fedtally.errors import InvalidInputError, UnreadableFileError, opt
from fedtally.sources import compression
from fedtally.sources.compression import Compression, DamagedError

# how many bytes of a table are read at once, unless a `Layout` says otherwise
BLOCK = 4 << 20
_BOM = codecs.BOM_UTF8
_CHUNK = 1 << 20
# Arrow's message about a row with a wrong number of fields.
_BROKEN_ROW = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")
_FIRST_END = re.compile(rb"[^\r\n](\r*+\n|\r)")
_LINE_END = re.compile(rb"\r?\r\n|\r")


@contextmanager
def reading(name: str, encoding: str) -> Iterator[None]:
    """Turn each error of Arrow, a compression, a codec or the system into `UnreadableFileError`.

    The message says what is wrong with the file, and what to do.

    Args:
        name: the name of the file in the message.
        encoding: the encoding with which the file is read.

    >>> with reading("x.csv.gz", "utf8"):
    ...     raise DamagedError("gzip", "it starts with b'no'")
    Traceback (most recent call last):
    ...
    fedtally.errors.UnreadableFileError: x.csv.gz is no intact gzip file: it starts with b'no'
    """
    try:
        yield
    except DamagedError as error:
        raise UnreadableFileError(f"{name} {error}") from error
    except arrow.errors(OSError, UnicodeError, csv.Error) as error:
        raise UnreadableFileError(f"{name} {_explain(error, encoding)}") from error


def _explain(error: Exception, encoding: str) -> str:
    """Return, in words, what an error says about a file, and mostly what to do.

    Arrow's own messages are about its internals. Its errors have no codes, so most are told apart
    by these messages.
    """
    text = str(error)
    if isinstance(error, UnicodeError) or "UTF8" in text:
        byte = ""
        if isinstance(error, UnicodeDecodeError):
            byte = f" (byte {error.object[error.start]:#04x})"
        return (
            f"is no {encoding} text{byte}; say which encoding it is, such as"
            f" {opt.text_encoding('latin-1')}"
        )
    if "straddl" in text:
        return (
            f"has a row that is longer than a block ({BLOCK >> 20} MiB): is the delimiter right,"
            " is a quote left open, is it a table at all?"
        )
    if broken := _BROKEN_ROW.search(text):
        row, expected, found = broken.groups()
        named = f" (row {row}: {found}, not {expected})" if row else f" ({found}, not {expected})"
        return (
            f"has a row with another number of fields than its first one{named}; mend it, or check"
            f" the quotes and the delimiter ({opt.delimiter(';')} for semicolons)"
        )
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    if isinstance(error, NotImplementedError) or "storage type" in text:
        return (
            "has a column of a type that is not read here, such as integers of 128 bits or"
            " categories of UUIDs: write that column as text"
        )
    return "cannot be read: it is damaged, cut short or not in the format that is expected"


class ByteStream(io.RawIOBase):
    """A stream that reads a file, or standard input, as UTF-8 bytes.

    The bytes are decompressed, converted to UTF-8, and a byte order mark at the start is left out.

    Args:
        path: the path of a file; ``-``: standard input, which is never closed.
        encoding: the encoding of the file. None: the decompressed bytes are left as they are.
        of_lines: whether to replace all line ends by a line feed. These are CR LF, CR CR LF (made
            from CR LF by some programs on Windows) and a single CR (from old Macs).
        recognise: whether a file whose suffix names no compression is decompressed if its first
            bytes are those of a compressed file.

    Attributes:
        watch: a function that is called with the bytes of every `read`, in order; None: no function
            is called.
        is_reading: whether a thread is in `read_unless_stopped`.
    """

    is_reading = False  # of the class, for `close` after a file that cannot be opened

    def __init__(
        self, path: str, encoding: str | None, *, of_lines: bool = False, recognise: bool = True
    ) -> None:
        self._owned = path != "-"
        self._file: IO[bytes] = (
            open(path, "rb") if self._owned else _standard_input()  # noqa: SIM115
        )
        head = cast("Any", self._file).peek(compression.PEEK)[: compression.PEEK]
        found: Compression | None = compression.named(path)
        if found is not None:
            found.check(head)
        elif recognise:
            found = compression.recognised(head)
        self._bytes = self._file if found is None else found.stream(self._file)
        # `read1` returns what a slow pipe has, so that `stop` need not wait for a whole block
        plain = found is None and hasattr(self._file, "read1")
        self._read = cast("Any", self._bytes).read1 if plain else self._bytes.read
        utf8 = encoding is None or codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
        self._decoder = None if utf8 else codecs.getincrementaldecoder(str(encoding))()
        self._of_lines = of_lines
        self._ready = b""
        # Carriage returns at the end of a block: the next byte decides whether they and a line feed
        # are one line end.
        self._held = b""
        self._ended = False
        self._total = 0
        self._stopped = False
        self.watch: Callable[[bytes], None] | None = None
        # After the conversion a byte order mark has the form that it has in UTF-8.
        if encoding is not None and self.peek(len(_BOM)) == _BOM:
            self.read(len(_BOM))

    @property
    def position(self) -> int:
        """The number of bytes of the file that were read so far, for progress.

        In a file on disk these are bytes as they are stored, perhaps compressed. Of standard input
        and of a pipe, only decompressed bytes can be counted.
        """
        return self._file.tell() if self._owned and self._file.seekable() else self._total

    def readable(self) -> bool:
        """Return True. Arrow calls this."""
        return True

    def peek(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer only at the end, without moving on."""
        self._fill(size)
        return self._ready[:size]

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer only at the end; all bytes if `size` is negative."""
        size = sys.maxsize if size < 0 else size
        self._fill(size)
        taken, self._ready = self._ready[:size], self._ready[size:]
        if self.watch is not None:
            self.watch(taken)
        return taken

    def read_unless_stopped(self, size: int) -> bytes:
        """Return the next `size` bytes as `read` does; after `stop` fewer, or none."""
        self.is_reading = True
        try:
            return b"" if self._stopped else self.read(size)
        finally:
            self.is_reading = False
            if self.closed:
                self._close_file()

    def stop(self) -> None:
        """Let another thread, which reads, return soon; what it reads is of no use any more."""
        self._stopped = True

    def line_end(self) -> bytes:
        r"""Return the byte that ends lines, by the first line that is not blank: ``\r`` or ``\n``.

        It is ``\r`` only if this line ends with a single carriage return, within the first MiB.
        """
        found = _FIRST_END.search(self.peek(_CHUNK))
        return b"\r" if found and found[1] == b"\r" else b"\n"

    def skip_blank_lines(self) -> None:
        """Move on to the first line that is not blank, or to the end."""
        while (head := self.peek(_CHUNK)) and head[:1] in b"\r\n":
            self.read(len(head) - len(head.lstrip(b"\r\n")))

    def take_line(self, line_end: bytes) -> bytes:
        """Read the next line, and return it with its line end.

        If no line end follows, it is all remaining bytes; at the end of the file b"".

        Args:
            line_end: the byte that ends a line.
        """
        size = _CHUNK
        while True:
            head = self.peek(size)
            if end := head.find(line_end) + 1:
                return self.read(end)
            if len(head) < size:
                return self.read(len(head))
            # Doubled, because each turn searches from the start: the total time stays linear.
            size *= 2

    def _fill(self, size: int) -> None:
        parts, have = [self._ready], len(self._ready)
        while have < size and not self._ended and not self._stopped:
            # A pipe or a decompressor may return fewer bytes than requested. Only an empty block
            # means the end.
            block = self._read(min(size - have, _CHUNK))
            self._total += len(block)
            self._ended = not block
            if self._decoder is not None:
                block = self._decoder.decode(block, final=self._ended).encode()
            if self._of_lines:
                block = self._with_line_feeds(block)
            parts.append(block)
            have += len(block)
        self._ready = b"".join(parts)

    def _with_line_feeds(self, block: bytes) -> bytes:
        block = self._held + block
        end = len(block) if self._ended else len(block[:-2]) + len(block[-2:].rstrip(b"\r"))
        block, self._held = block[:end], block[end:]
        if (number := block.count(b"\r")) and number == block.count(b"\r\n"):
            # In most files each CR is before an LF. This way is several times faster than a regex.
            return block.replace(b"\r\n", b"\n")
        return _LINE_END.sub(b"\n", block) if number else block

    def close(self) -> None:
        """Close the file, unless it is standard input."""
        super().close()
        # To close the file would wait for a thread that reads, perhaps from a silent pipe. Then the
        # thread closes it.
        if not self.is_reading:
            self._close_file()

    def _close_file(self) -> None:
        if self._owned and hasattr(self, "_file"):
            self._file.close()


# How long the end of the process waits for Arrow's threads, and for objects that nobody frees.
_LET_GO, _KEPT = 2.0, 0.2  # seconds
# Weak references, by their ids, to what Arrow holds: files and blocks of bytes.
_held: dict[int, ref[Any]] = {}


def _hold(given: Any) -> Any:
    """Return what is given to Arrow, and note it in `_held` until Arrow lets go of it."""
    held = ref(given, lambda gone: _held.pop(id(gone), None))
    _held[id(held)] = held
    return given


class _ReadAhead(io.RawIOBase):
    """The bytes of a stream for Arrow's threads; after an error there are none.

    Args:
        stream: the stream that is read.

    Attributes:
        error: the error of the stream. Arrow gets the end of the file in its place: it would keep
            the error, and free it at any time.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.error: Exception | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        # a view, because bytes have no weak references
        return _hold(memoryview(self._block(size)))

    def _block(self, size: int) -> bytes:
        if self.error is not None:
            return b""
        try:
            return self._stream.read_unless_stopped(size)
        except Exception as error:
            self.error = error
            return b""


@contextmanager
def arrow_file(stream: ByteStream) -> Iterator[Any]:
    """Yield the stream as a file of Arrow; after the `with` block Arrow reads no more of it.

    A thread of Arrow reads many blocks ahead. It goes on after an error, such as one about the
    first rows of a large table. It calls Python to read a block, and later to free it; if the
    interpreter ends at that time, the process aborts or hangs. So after the `with` block the
    thread finds the end of the file, and the interpreter waits until Arrow holds nothing.

    Args:
        stream: the stream to read; nothing else may read it afterwards.

    Raises:
        Exception: the error of the stream, also if Arrow fails at the end that it found instead.
    """
    import pyarrow as pa

    ahead = _ReadAhead(stream)
    try:
        yield pa.PythonFile(_hold(ahead), mode="r")
    except Exception:
        if ahead.error is not None:
            raise ahead.error from None
        raise
    finally:
        stream.stop()
    if ahead.error is not None:
        raise ahead.error


@atexit.register
def _wait_for_arrow() -> None:
    """Wait until Arrow holds nothing of any stream, but not longer than `_LET_GO`.

    A thread may be in a read of standard input that takes longer. And what is left may never be
    freed, as by a program that keeps an error with its traceback: then `_KEPT` is enough.
    """
    if not _held:
        return
    stopped = _stop_all()
    gc.collect()  # the traceback of an error may hold a reader, in a cycle of references
    now = time.monotonic()
    until, changed, left = now + _LET_GO, now, len(_held)
    while _held and now < until and now < changed + _KEPT:
        time.sleep(0.01)  # Arrow's threads call Python meanwhile
        now = time.monotonic()
        if left != len(_held) or any(stream.is_reading for stream in stopped):
            left, changed = len(_held), now
    time.sleep(0.01)  # the thread that let go last may not have left Python yet


def _stop_all() -> list[ByteStream]:
    """Return the streams that Arrow holds, after stopping each."""
    given = [held() for held in list(_held.values())]
    streams = [each._stream for each in given if isinstance(each, _ReadAhead)]
    for stream in streams:
        stream.stop()
    return streams


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_held.clear)  # the child has none of the threads


class _Waiting(io.RawIOBase):
    """Standard input that another program has made non-blocking, read as if it were not.

    Python's own reader returns no bytes where none are there yet, as it does at the end. So here
    a read waits for the next bytes. The flag itself is left: it belongs to the other program too.

    Args:
        raw: the unbuffered stream.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while (number := self._raw.readinto(buffer)) is None:  # no bytes are there yet
            with selectors.DefaultSelector() as ready:
                ready.register(self._raw, selectors.EVENT_READ)
                ready.select()
        return int(number)


def _standard_input() -> IO[bytes]:
    stream: Any = sys.stdin.buffer
    if not hasattr(stream, "peek"):
        # Tests and programs that embed Python may replace standard input by such a stream.
        return io.BufferedReader(stream)
    raw = getattr(stream, "raw", None)
    if isinstance(raw, io.FileIO) and sys.platform != "win32":  # which has no such flag of pipes
        if not os.get_blocking(raw.fileno()):
            return io.BufferedReader(cast("Any", _Waiting(raw)))
    return cast("IO[bytes]", stream)


def check_encoding(encoding: str) -> None:
    """Raise InvalidInputError if a name is not the name of a text encoding of Python.

    >>> check_encoding("utf9")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: unknown encoding 'utf9'; use utf8, latin-1, cp1252, ...
    """
    try:
        "a".encode(encoding)
    except (LookupError, ValueError) as error:  # also a NUL in the name
        raise InvalidInputError(
            f"unknown encoding {encoding!r}; use utf8, latin-1, cp1252, utf-16 or another of"
            " Python's"
        ) from error
