"""Functions for engines on an asyncio loop: a wait with a time limit, and what SIGTERM does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, or until a time is over; return in both cases.

    A cancellation always ends this wait. `asyncio.timeout` does not ensure this: if its time is
    over at once, it can take an earlier cancellation for its own end. On a busy machine, Ctrl-C had
    no effect because of this.

    Args:
        event: the event.
        seconds: the longest time to wait, in seconds.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()


@contextmanager
def signals_given_back() -> Iterator[None]:
    """After the `with` block, let SIGTERM and SIGINT do again what they did before it.

    Run an event loop in the block. At its end, asyncio's loop sets the system's default. A loop of
    uvloop leaves its own functions in place, and these ignore every later signal.
    """
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    # A handler that is None was set by other code than Python's, and cannot be given back.
    before = {name: handler for name, handler in before.items() if handler is not None}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def drain_at_sigterm(stop: Callable[[], None], note: Callable[[str], None]) -> None:
    """Let SIGTERM drain the run on this event loop, and let a second SIGTERM end the process.

    Args:
        stop: called at the first SIGTERM. The run must then open no more sessions, and end with the
            last open session.
        note: called once, after `stop`, with a message for the operator.
    """
    events = asyncio.get_running_loop()

    def drain() -> None:
        stop()
        events.remove_signal_handler(signal.SIGTERM)
        note("drains: no session is opened any more; the open ones go on to their end")

    events.add_signal_handler(signal.SIGTERM, drain)
