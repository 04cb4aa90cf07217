"""The command line: `fedtally`, with its commands in `app`.

Nothing is imported at the top of this file, so that `main` can report Ctrl-C during imports.
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
    # Imports create half a million objects that stay alive. By default Python searches them for
    # garbage after every 700 new objects and once at the end. That takes a tenth of the CPU time of
    # a short command.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    try:
        from fedtally.cli.app import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except (KeyboardInterrupt, ImportError) as error:
        # A compiled module that is interrupted while it loads raises ImportError, with the
        # KeyboardInterrupt as its cause.
        if not any(isinstance(each, KeyboardInterrupt) for each in (error, error.__cause__)):
            raise
        # Plain `print`, since the module for output may not be imported yet.
        print("error: interrupted", file=sys.stderr)  # noqa: T201
        code = 130
    sys.exit(code)
