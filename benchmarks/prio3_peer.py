"""The peer of reports with proofs: Prio3 of the DAP clients in JavaScript, @divviup/prio3.

A report is its nonce, public share and input shares, encoded; the encryption of the shares and
DAP's own fields are left out, in the peer's favour. Times are CPU of JavaScript without compiled
kernels: they say what a client in a browser pays, and nothing about Prio3 in other languages.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click

PACKAGE = "@divviup/prio3"
INSTALL = f"npm install {PACKAGE}@0.8.0"
SCRIPT = Path(__file__).with_suffix(".mjs")


@dataclass(frozen=True)
class PeerReport:
    """A report of the peer: its bytes, and CPU microseconds of a client and of a server."""

    bytes: int
    client: float
    server: float


@cache  # the histogram stands beside sketches of all sizes
def measure_peer(folder: Path, kind: str, length: int, turns: int) -> PeerReport:
    """Make reports of Prio3 with `length` entries: `kind` is sumvec, of two bits, or histogram.

    Raises:
        click.ClickException: Node.js or the package is not there, or fails.
    """
    command = ["node", str(SCRIPT), kind, str(length), str(turns)]
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except OSError as error:
        raise click.ClickException(f"cannot run Node.js in {folder}: {error}") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()
        why = next((line for line in said if line.startswith("Error")), "it says nothing")
        raise click.ClickException(
            f"{PACKAGE} does not run in {folder}: {why}; there, run: {INSTALL}"
        ) from None
    return PeerReport(**json.loads(ran.stdout))
