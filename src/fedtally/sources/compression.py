"""Compressed files: which compression a file has, and its bytes without it."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Callable
from typing import IO, Any, NamedTuple, cast

from fedtally.base import arrow

PEEK = 16  # the first bytes of a file, which tell its compression
_CHUNK = 1 << 14  # bytes of a compressed file that are taken at once


class DamagedError(Exception):
    """A file is not intact, or is not compressed as its name says."""

    def __init__(self, compression: str, why: object) -> None:
        super().__init__(f"is no intact {compression} file: {why}")


class Compression(NamedTuple):
    """A way to compress a file.

    Attributes:
        name: in messages.
        suffix: the end of the names of such files, in small letters.
        start: matches the first bytes of such a file.
        open: returns the bytes of such a file.
    """

    name: str
    suffix: str
    start: re.Pattern[bytes]
    open: Callable[[IO[bytes]], Any]

    def check(self, head: bytes) -> None:
        """Raise DamagedError if a file with these first bytes is not compressed so."""
        if not self.start.match(head):
            raise DamagedError(self.name, f"it starts with {head[:2]!r}" if head else "it is empty")

    def stream(self, file: IO[bytes]) -> IO[bytes]:
        """Return the bytes of a compressed file; its `read` may raise DamagedError."""
        return cast("IO[bytes]", _Decompressed(self, file))


class _Decompressed:
    def __init__(self, compression: Compression, file: IO[bytes]) -> None:
        self._name, self._bytes = compression.name, compression.open(file)

    def read(self, size: int) -> bytes:
        try:
            return cast("bytes", self._bytes.read(size))
        except arrow.errors(EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno:  # the disk's, not of the content
                raise
            why = "it is damaged or cut short, or something else follows it"
            raise DamagedError(self._name, why) from error


class _Streams:
    """The bytes of compressed streams behind one another, to the end of their file.

    Python's own readers of bzip2 and xz end without a word where anything else follows a stream.

    Args:
        file: begins with a stream.
        begin: returns the decompressor of one stream, as `bz2` and `lzma` have it.
        padding: behind a stream may stand as many zero bytes as this number divides; 0: none may.
    """

    def __init__(self, file: IO[bytes], begin: Callable[[], Any], padding: int) -> None:
        self._file, self._begin, self._padding = file, begin, padding
        self._stream, self._rest, self._ended = begin(), b"", False

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, and none at the end alone."""
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
        """Go to the next stream, or to the end of the file."""
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
    arrow.check("a file in .zst")  # Python has zstd from 3.14 on
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")


_ALL = (
    Compression("gzip", ".gz", re.compile(rb"\x1f\x8b"), lambda file: gzip.GzipFile(fileobj=file)),
    # The size of a block, and the start of the first one or, of an empty file, of its end. The
    # first three letters alone could be a word.
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
    # A frame, or one that is skipped since it holds no content.
    Compression(
        "zstd", ".zst", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _open_zstd
    ),
)


def named(path: str) -> Compression | None:
    """Return the compression that a path ends with; None: it names none.

    >>> named("Clicks.CSV.GZ").name, named("words.csv")
    ('gzip', None)
    """
    return next((one for one in _ALL if path.lower().endswith(one.suffix)), None)


def recognised(head: bytes) -> Compression | None:
    """Return the compression of a file with these first bytes, `PEEK` of them; None: it has none.

    >>> recognised(bz2.compress(b"tea"))[:2], recognised(b"BZh is a word of this text")
    (('bzip2', '.bz2'), None)
    """
    return next((one for one in _ALL if one.start.match(head)), None)


def without_suffix(path: str) -> str:
    """Return a path without the end that names its compression.

    >>> without_suffix("words.csv.zst"), without_suffix("words.csv")
    ('words.csv', 'words.csv')
    """
    found = named(path)
    return path if found is None else path[: -len(found.suffix)]
