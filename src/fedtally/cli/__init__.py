"""The command line: `fedtally`, with its commands in `app`.

Nothing is imported here before an interruption can be reported.
"""

from __future__ import annotations

import sys
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
    try:
        from fedtally.cli.app import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)  # noqa: T201 - before anything better is imported
        code = 130
    sys.exit(code)
