"""A source of data that is on every machine: the words in the source code of Python's library.

Each line of code with at least one word is a client. Its item is one of the line's words, drawn
uniformly. Nothing is downloaded. The words and their number depend on the version of Python.
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

# Folders that are left out, because they hold tests, packages of others, or tables.
_LEFT_OUT = {"test", "tests", "site-packages", "dist-packages", "_bundled", "encodings"}
_MAX_BYTES = 1 << 24  # files are read until this many bytes were read
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"


def library_source(rng: np.random.Generator, folder: Path | None = None) -> Source:
    """Return the source whose clients are the lines of Python's standard library.

    Files are read until they have 16 MiB together.

    Args:
        rng: the random generator that draws the word of each line.
        folder: a folder whose ``.py`` files are read instead; None: the standard library.

    Raises:
        UnreadableFileError: the folder has no Python file, as in some installations. It is raised
            when the source is read, not here.

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
    """Yield the paths of the ``.py`` files in a folder and its subfolders, in a fixed order.

    Subfolders whose names are in `_LEFT_OUT` are skipped.
    """
    for folder, folders, names in os.walk(root):
        # The list is changed in place: `os.walk` then visits only these folders, in this order.
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _one_word_a_line(data: bytes, rng: np.random.Generator) -> Any:
    """Return a word of each line that has one, drawn uniformly: an Arrow string array.

    A word is a sequence of ASCII letters, digits and underscores that is as long as possible. It
    has at least two characters, and does not begin with a digit.
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
    # `edges` has the places where a sequence of word characters begins (even indices) or ends (odd
    # ones).
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
