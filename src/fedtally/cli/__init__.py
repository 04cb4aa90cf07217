"""The entry point of the command line `fedtally`; its commands are in `app`.

Nothing large is imported at the top of this file, but in `main`. Otherwise Ctrl-C during imports
would print a traceback, since `main` would not run yet.
"""

from __future__ import annotations

import atexit
import gc
import sys

# Not from `typing`: its import takes milliseconds, in which Ctrl-C would print a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and end the process with an exit code.

    0 means success, 1 a run that failed, 2 bad input, and 130 Ctrl-C. A command may have further
    codes.

    Args:
        arguments: the arguments after the name of the program; None: the arguments of this process.

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
        # If Ctrl-C comes while a compiled module loads, Python raises ImportError, and the
        # KeyboardInterrupt is its cause.
        if not any(isinstance(each, KeyboardInterrupt) for each in (error, error.__cause__)):
            raise
        # `console.complain` cannot be used, since its module may not be imported yet.
        print("error: interrupted", file=sys.stderr)  # noqa: T201
        code = 130
    sys.exit(code)
