"""A source of data that every machine has: the words in the code of Python's standard library.

Each line of its source files is a client, whose item is one of the line's words, drawn uniformly.
Nothing is downloaded. The words and their number depend on the version of Python.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.errors import UnreadableFileError
from fedtally.sources.batches import Batch, Source

# Folders that are left out: they hold tests, packages of others, or tables.
_LEFT_OUT = {"test", "tests", "site-packages", "dist-packages", "_bundled", "encodings"}
_MAX_BYTES = 1 << 24  # the library's code is read until this many bytes
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"


def library_source(rng: np.random.Generator, folder: Path | None = None) -> Source:
    """Return the source whose clients are the lines of the standard library.

    At most 16 MiB of it are read.

    Args:
        rng: the generator that draws the word of each line.
        folder: a folder whose ``.py`` files are read instead of the standard library's; None: the
            standard library.

    Raises:
        UnreadableFileError: when the source is read, if the folder has no Python file (as in some
            installations).

    >>> source = library_source(np.random.default_rng(0))
    >>> next(source.batches()).items.type
    DataType(string)
    """
    root = folder or Path(sysconfig.get_path("stdlib"))

    def read(_private: bool) -> Iterator[Batch]:
        data = _text(root)
        yield Batch(_one_word_a_line(data, rng), bytes_read=len(data))

    return Source("the Python standard library", read, repeatable=False, rows_are_clients=True)


def _text(root: Path) -> bytes:
    parts, total = [], 0
    for path in _files(root):
        if total < _MAX_BYTES:
            parts.append(path.read_bytes())
            total += len(parts[-1])
    if not parts:
        raise UnreadableFileError(
            f"{root} has no Python files; try `fedtally estimate zipf:` instead"
        )
    return b"\n".join(parts)


def _files(root: Path) -> Iterator[Path]:
    """Yield the library's source files, in an order that does not depend on the file system."""
    for folder, folders, names in os.walk(root):
        # In place: os.walk then leaves these folders out, and visits the others in this order.
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _one_word_a_line(data: bytes, rng: np.random.Generator) -> Any:
    """Return an Arrow string array: a uniformly drawn word of each line that has one.

    A word is a run of ASCII letters, digits and underscores, two or more, that starts with no
    digit.
    """
    letters = np.frombuffer(data, np.uint8)
    starts, ends = _words(letters)
    lines = np.cumsum(letters == ord("\n"), dtype=np.int32)[starts]
    firsts = np.flatnonzero(np.diff(lines, prepend=-1))
    words_in_line = np.diff(firsts, append=len(lines))
    chosen = firsts + (rng.random(len(firsts)) * words_in_line).astype(np.int64)
    return _cut(letters, starts[chosen], ends[chosen])


def _words(letters: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    is_start, is_part = np.zeros(256, np.bool_), np.zeros(256, np.bool_)
    is_start[list(_LETTERS)] = is_part[list(_LETTERS + b"0123456789")] = True
    # Runs begin and end where "is part of a word" changes: even places are starts, odd ones ends.
    edges = np.flatnonzero(np.diff(is_part[letters], prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    kept = is_start[letters[starts]] & (ends - starts > 1)
    return starts[kept], ends[kept]


def _cut(
    letters: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Any:
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(ends - starts)])
    places = np.repeat(starts - offsets[:-1], ends - starts) + np.arange(offsets[-1])
    buffers = pa.py_buffer(offsets.astype(np.int32).data), pa.py_buffer(letters[places].data)
    return pa.StringArray.from_buffers(len(starts), *buffers)
