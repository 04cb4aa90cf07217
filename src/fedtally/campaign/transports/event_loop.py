"""Functions for engines on an asyncio loop: a wait that can be cancelled, and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, or until a time is over.

    A cancellation always ends this wait. `asyncio.timeout` does not ensure that: if its time is
    over at once, it can mistake an earlier cancellation for its own. On a busy machine, Ctrl-C was
    lost in this way.

    Args:
        event: the event.
        seconds: the longest time of the wait, in seconds.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()


def drain_at_sigterm(stop: Callable[[], None], note: Callable[[str], None]) -> None:
    """Make SIGTERM drain the run on this event loop, and a second SIGTERM end the process.

    Args:
        stop: a function after whose call the run opens no further session.
        note: a function that shows a message to the operator.
    """
    events = asyncio.get_running_loop()

    def drain() -> None:
        stop()
        events.remove_signal_handler(signal.SIGTERM)
        note("drains: no session is opened any more; the open ones go on to their end")

    events.add_signal_handler(signal.SIGTERM, drain)
