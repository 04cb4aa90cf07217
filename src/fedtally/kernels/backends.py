"""The choice between the kernels' two implementations, and the number of their threads.

This module is the only place that chooses. The environment variable FEDTALLY_KERNELS forces one of
``numpy``, ``baseline``, ``v3``, ``v4``; FEDTALLY_NUM_THREADS bounds the threads (default: the cores
that this process may use).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from fedtally.base import validate
from fedtally.errors import InvalidInputError

native: Any  # the compiled module, which has no types; None: built without a compiler
try:
    from fedtally.kernels import _native  # type: ignore[attr-defined,unused-ignore]

    native = _native
except ImportError:
    native = None

__all__ = [
    "PARALLEL_FROM",
    "available_backends",
    "backend",
    "blocks",
    "in_threads",
    "native",
    "num_threads",
    "one_thread",
]

_AVAILABLE: tuple[str, ...] = ("numpy",) if native is None else ("numpy", *native.levels())
# Ids times rows for each thread: with fewer, a second thread costs more time than it saves.
PARALLEL_FROM = 1 << 16
_alone: ContextVar[bool] = ContextVar("one_thread", default=False)


def available_backends() -> tuple[str, ...]:
    """Return the implementations that this installation and this processor can run, slowest first.

    >>> available_backends()[0]
    'numpy'
    """
    return _AVAILABLE


def backend() -> str:
    """Return the implementation to use: FEDTALLY_KERNELS, or else the fastest that runs here.

    Raises:
        InvalidInputError: FEDTALLY_KERNELS names an implementation that does not run here.
    """
    asked = os.environ.get("FEDTALLY_KERNELS", "")
    names = available_backends()
    if asked and asked not in names:
        raise InvalidInputError(
            f"FEDTALLY_KERNELS={asked} does not run here; choose one of {', '.join(names)} or"
            " unset it"
        )
    return asked or names[-1]


@contextmanager
def one_thread() -> Iterator[None]:
    """Make the kernels that are called in this context use one thread.

    Many small pieces of work gain nothing from more threads, which only cost CPU time.
    """
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def num_threads() -> int:
    """Return the largest number of threads that a kernel may use.

    The number is 1 within `one_thread`. Otherwise it is FEDTALLY_NUM_THREADS or, if this is not
    set, the number of cores that this process may use.
    """
    if _alone.get():
        return 1
    asked = os.environ.get("FEDTALLY_NUM_THREADS", "")
    if not asked:
        # Use the CPU affinity, not the number of cores: a container may often use only a few.
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    try:
        return validate.integer(1, 1024, FEDTALLY_NUM_THREADS=int(asked))
    except ValueError:
        raise InvalidInputError(
            f"FEDTALLY_NUM_THREADS must be an integer from 1 to 1024, got {asked!r}"
        ) from None


def blocks(count: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover 0 .. count."""
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))


def in_threads(work: Callable[[Any], None], jobs: Iterable[Any], threads: int) -> None:
    """Call `work` on every job, in `threads` threads.

    The threads run at the same time, because kernels release Python's global lock.
    """
    if threads == 1:
        for job in jobs:
            work(job)
    else:
        list(_pool(threads).map(work, jobs))  # list() raises the exceptions of the threads


@cache
def _pool(threads: int) -> Any:
    # Imported late: most processes never need it, and it makes `import fedtally` slower.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads, thread_name_prefix="fedtally")


# A fork copies a pool without its threads: the child would wait for them for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
