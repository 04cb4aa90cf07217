"""Compressed files: which compression a file has, and a stream of its decompressed bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable
from typing import IO, Any, NamedTuple, cast

from fedtally.base import arrow

PEEK = 16  # how many first bytes of a file are enough to recognise its compression
_CHUNK = 1 << 14  # the bytes of a compressed file that are read at once


class DamagedError(Exception):
    """A compressed file is damaged, or is not compressed as its name says.

    `streams.reading` turns this into an UnreadableFileError.
    """

    def __init__(self, compression: str, why: object) -> None:
        super().__init__(f"is no intact {compression} file: {why}")


class Compression(NamedTuple):
    """A compression format.

    Attributes:
        name: the name of the format in messages.
        suffix: the file name suffix, in lower case, with its dot.
        start: a pattern that matches the first bytes of a file in this format.
        open: takes an open file, and returns an object whose `read` returns decompressed bytes.
    """

    name: str
    suffix: str
    start: re.Pattern[bytes]
    open: Callable[[IO[bytes]], Any]

    def check(self, head: bytes) -> None:
        """Raise DamagedError if `head`, the first bytes of a file, does not fit this format."""
        if not self.start.match(head):
            raise DamagedError(self.name, f"it starts with {head[:2]!r}" if head else "it is empty")

    def stream(self, file: IO[bytes]) -> IO[bytes]:
        """Return a stream of the decompressed bytes of an open file; its `read` may raise
        DamagedError.
        """
        return cast("IO[bytes]", _Decompressed(self, file))


class _Decompressed:
    def __init__(self, compression: Compression, file: IO[bytes]) -> None:
        self._name, self._bytes = compression.name, compression.open(file)

    def read(self, size: int) -> bytes:
        try:
            return cast("bytes", self._bytes.read(size))
        except arrow.errors(EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            # An error of the system, such as a broken disk, and not of the content.
            if isinstance(error, OSError) and error.errno:
                raise
            why = "it is damaged or cut short, or something else follows it"
            raise DamagedError(self._name, why) from error


class _Streams:
    """The decompressed bytes of a file that consists of one or more compressed streams.

    If anything else follows a stream, `read` raises an error. Python's own readers of bzip2 and xz
    would end there without an error.

    Args:
        file: the open file, at the start of a stream.
        begin: returns a new decompressor for one stream, of `bz2` or `lzma`.
        padding: zero bytes may follow a stream if their number is a multiple of `padding`; 0: no
            zero bytes are allowed.
    """

    def __init__(self, file: IO[bytes], begin: Callable[[], Any], padding: int) -> None:
        self._file, self._begin, self._padding = file, begin, padding
        self._stream, self._rest, self._ended = begin(), b"", False

    def read(self, size: int) -> bytes:
        """Return 1 to `size` decompressed bytes; b"" at the end of the file.

        Raises:
            EOFError: the file ends within a stream, or has a wrong number of zero bytes after a
                stream.
            OSError: other bytes of a bzip2 file are wrong, or the file cannot be read.
            lzma.LZMAError: other bytes of an xz file are wrong.
        """
        block = b""
        while not block and not self._ended:
            if self._stream.eof:
                self._next()
            else:
                block = self._stream.decompress(self._more(), size)
        return block

    def _more(self) -> bytes:
        if not self._stream.needs_input:
            return b""
        more, self._rest = self._rest or self._file.read(_CHUNK), b""
        if not more:
            raise EOFError("it ends before its last stream does")
        return more

    def _next(self) -> None:
        """Prepare to read the next stream; at the end of the file, set `_ended`."""
        rest, skipped = self._stream.unused_data, 0
        while rest := rest or self._file.read(_CHUNK):
            size = len(rest)
            if self._padding:
                rest = rest.lstrip(b"\0")
            skipped += size - len(rest)
            if rest:
                break
        if skipped and skipped % self._padding:
            raise EOFError(f"{skipped} zero bytes are no multiple of {self._padding}")
        self._rest, self._stream, self._ended = rest, self._begin(), not rest


def _open_zstd(file: IO[bytes]) -> Any:
    arrow.check("a file in .zst")  # Python itself can read zstd only from 3.14 on.
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")


_ALL = (
    Compression("gzip", ".gz", re.compile(rb"\x1f\x8b"), lambda file: gzip.GzipFile(fileobj=file)),
    # bzip2: "BZh" and the block size; then the start of the first block or, if the content is
    # empty, the end mark. These bytes are compared, too, because "BZh" alone could begin a word.
    Compression(
        "bzip2",
        ".bz2",
        re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        lambda file: _Streams(file, bz2.BZ2Decompressor, 0),
    ),
    Compression(
        "xz",
        ".xz",
        re.compile(rb"\xfd7zXZ\x00"),
        lambda file: _Streams(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), 4),
    ),
    # zstd: the start of a frame, or of a skippable frame, which has no content.
    Compression(
        "zstd", ".zst", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _open_zstd
    ),
)


def named(path: str) -> Compression | None:
    """Return the compression that the suffix of a path names; None: the suffix names none.

    >>> named("Clicks.CSV.GZ").name, named("words.csv")
    ('gzip', None)
    """
    return next((one for one in _ALL if path.lower().endswith(one.suffix)), None)


def recognised(head: bytes) -> Compression | None:
    """Return the compression of a file by its first bytes; None: no known compression fits.

    Args:
        head: the first `PEEK` bytes of the file, or all bytes of a shorter file.

    >>> recognised(bz2.compress(b"tea"))[:2], recognised(b"BZh is a word of this text")
    (('bzip2', '.bz2'), None)
    """
    return next((one for one in _ALL if one.start.match(head)), None)


def without_suffix(path: str) -> str:
    """Return a path without the suffix of its compression, if it has one.

    >>> without_suffix("words.csv.zst"), without_suffix("words.csv")
    ('words.csv', 'words.csv')
    """
    found = named(path)
    return path if found is None else path[: -len(found.suffix)]
