"""The command line: `fedtally`, with its commands in `app`.

Nothing is imported here before an interruption can be reported.
"""

from __future__ import annotations

import atexit
import gc
import sys

TYPE_CHECKING = False  # not typing's, whose import takes milliseconds in which Ctrl-C would be loud
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 1 for a run that failed, 2 for bad input, 130 for Ctrl-C.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    SystemExit: 0
    """
    # Imports make half a million objects, which stay. To look for garbage among them every 700
    # objects, as Python does, and once more at the end, takes a tenth of the CPU of a short
    # command.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    try:
        from fedtally.cli.app import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except (KeyboardInterrupt, ImportError) as error:
        # A compiled module that is interrupted while it loads raises ImportError because of it.
        if not any(isinstance(each, KeyboardInterrupt) for each in (error, error.__cause__)):
            raise
        # Plain `print`: nothing better may be imported yet.
        print("error: interrupted", file=sys.stderr)  # noqa: T201
        code = 130
    sys.exit(code)
