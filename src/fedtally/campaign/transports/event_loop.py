"""What engines that run on an event loop share: a wait that hears a cancellation, and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, or a time is over.

    A cancellation always ends it. `asyncio.timeout` takes one that was asked for before it began
    for its own, if its time is over at once: so Ctrl-C went unheard on a busy machine.

    Args:
        event: the event.
        seconds: the longest wait.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()


def drain_at_sigterm(stop: Callable[[], None], note: Callable[[str], None]) -> None:
    """Let SIGTERM drain the run on this event loop; a second one ends the process.

    Args:
        stop: the function that lets the run open no further session.
        note: the function that takes a message for the operator, in words.
    """
    events = asyncio.get_running_loop()

    def drain() -> None:
        stop()
        events.remove_signal_handler(signal.SIGTERM)
        note("drains: no session is opened any more; the open ones go on to their end")

    events.add_signal_handler(signal.SIGTERM, drain)
