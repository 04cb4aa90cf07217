"""The next batch is read in a thread of its own while this one is counted."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the same, and take the next one meanwhile.

    Arrow, the kernels and NumPy's sorts release Python's lock, so that reading and counting share
    two cores. What taking raises is raised here, in its turn. If the caller stops early, it waits
    for the one that is being taken: do not use this on what may block, such as standard input.

    >>> list(read_ahead(iter(range(3))))
    [0, 1, 2]
    """

    def take() -> object:
        return next(items, _END)

    with ThreadPoolExecutor(1, thread_name_prefix="fedtally-read") as pool:
        taken = pool.submit(take)
        while (item := taken.result()) is not _END:
            taken = pool.submit(take)
            yield item  # type: ignore[misc]  # it is no _END
