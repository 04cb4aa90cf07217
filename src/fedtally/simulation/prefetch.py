"""Read and prepare the next batches in threads, while the current batch is counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from fedtally import kernels

Item = TypeVar("Item")
Made = TypeVar("Made")
_END = object()
_MOST_THREADS = 3  # the most threads that prepare items; each holds one item in memory


def read_ahead(items: Iterator[Item], prepare: Callable[[Item], Made]) -> Iterator[Made]:
    """Yield `prepare(item)` for each item, in order, and prepare the next items meanwhile.

    Reading, preparing and the caller's own work share the cores, since Arrow, the kernels and
    NumPy's sorts release Python's lock. An error in reading or preparing an item is raised when
    this item is due. A caller that stops early waits for the items that were begun. So do not use
    this function if reading may block, as from standard input.

    >>> list(read_ahead(iter(range(3)), str))
    ['0', '1', '2']
    """
    threads = max(1, min(kernels.num_threads() - 1, _MOST_THREADS))
    error = None

    def take() -> object:
        return next(items, _END)

    with (
        ThreadPoolExecutor(threads, thread_name_prefix="fedtally-prepare") as preparing,
        ThreadPoolExecutor(1, thread_name_prefix="fedtally-read") as reading,
    ):
        begun: deque[Future[Made]] = deque()
        taken = reading.submit(take)
        while True:
            try:
                item = taken.result()
            except Exception as raised:  # raised below: earlier items come first
                error = raised
                break
            if item is _END:
                break
            taken = reading.submit(take)
            begun.append(preparing.submit(prepare, item))  # type: ignore[arg-type]  # no _END
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    if error is not None:
        raise error
