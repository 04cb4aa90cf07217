"""A file as a pipe, as the `<(cat FILE)` of a shell gives it to a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def piped(file: Path) -> Iterator[str]:
    """Yield the path of a pipe from which a small file can be read once."""
    out, into = os.pipe()
    try:
        os.write(into, file.read_bytes())
        os.close(into)
        yield f"/dev/fd/{out}"
    finally:
        os.close(out)
