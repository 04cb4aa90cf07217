"""Chooses one of the two implementations of the kernels, and the number of their threads.

No other module makes these choices. The environment variable FEDTALLY_KERNELS forces ``numpy`` or
an instruction set of the compiled kernels: ``baseline``, ``v3`` or ``v4``. FEDTALLY_NUM_THREADS
limits the number of threads; the default is the number of cores that this process may use.
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

native: Any  # the compiled module; None: it was not compiled
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
# The least product of ids and rows for each thread. With less work for each, a second thread costs
# more time than it saves.
PARALLEL_FROM = 1 << 16
_alone: ContextVar[bool] = ContextVar("one_thread", default=False)


def available_backends() -> tuple[str, ...]:
    """Return the names of the implementations that run on this machine, slowest first.

    >>> available_backends()[0]
    'numpy'
    """
    return _AVAILABLE


def backend() -> str:
    """Return the name of the implementation to use: the value of FEDTALLY_KERNELS, or the fastest.

    It is "numpy", or an instruction set of the compiled kernels: "baseline", "v3" or "v4".

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
    """Limit all kernels that this thread calls within this `with` block to one thread.

    For many small arrays, more threads use more CPU time without saving time.
    """
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def num_threads() -> int:
    """Return how many threads a kernel may use: 1 within this thread's `with one_thread()` block.

    Elsewhere it is FEDTALLY_NUM_THREADS or, if this is not set, the number of cores that this
    process may use.

    Raises:
        InvalidInputError: FEDTALLY_NUM_THREADS is not an integer from 1 to 1024.
    """
    if _alone.get():
        return 1
    asked = os.environ.get("FEDTALLY_NUM_THREADS", "")
    if not asked:
        # Not `os.cpu_count`: a container often may use only a few of the machine's cores.
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
    """Yield consecutive slices of at most `size` that cover 0 .. count - 1."""
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))


def in_threads(work: Callable[[Any], None], jobs: Iterable[Any], threads: int) -> None:
    """Call `work` on every job, in `threads` threads, and wait for all of them.

    The threads run in parallel, because kernels release Python's global lock. An exception of a job
    is raised again; then other jobs may not have run, or may still be running.
    """
    if threads == 1:
        for job in jobs:
            work(job)
    else:
        list(_pool(threads).map(work, jobs))  # without list(), exceptions would be lost


@cache
def _pool(threads: int) -> Any:
    # Imported only here: most processes never need it, and it would slow down `import fedtally`.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads, thread_name_prefix="fedtally")


# A fork copies the pool but not its threads. The child process would wait for them forever. So it
# forgets the pool, and makes its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
