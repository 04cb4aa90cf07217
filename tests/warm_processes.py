"""Processes of the command line that are forked from one which has loaded what an agent needs.

Each is a process of its own, which a signal may kill at any moment; but to start it takes no second
of the processor. For tests of many processes that are not about how one starts.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    [
        "cryptography.hazmat.backends.openssl.backend",
        "dp_accounting",
        "fedtally.agent.serve",
        "fedtally.agent.settings",
        "fedtally.cli.agent",
        "fedtally.store.client_record",
        "pandas",  # PyArrow loads it, where it is installed
    ]
)


def start(arguments: list[str], log: Path) -> BaseProcess:
    """Start `fedtally` with these arguments; what it says is added to the log."""
    process = FORKING.Process(target=_main, args=(arguments, log, dict(os.environ)))
    process.start()
    return process


def _main(arguments: list[str], log: Path, environment: dict[str, str]) -> None:
    from fedtally.cli import main

    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = ["fedtally", *arguments]
    sys.exit(main())
