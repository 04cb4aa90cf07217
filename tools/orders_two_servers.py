"""Let two servers take reports with proofs, and talk to each other, in any order, at random.

    python tools/orders_two_servers.py --runs 500

Each side has two processes with one journal, and in every second run with one disk of reports;
processes restart, frames come late, twice or not at all, and liars tell the servers different
things. Whatever the order, a report has one check, a range of rounds one Query, one Answer and one
sum, which is that of the reports in the batch, and only liars are refused
(tests/protocol/test_proven_orders.py). The exit code is 1 if not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "protocol")]

from test_proven_orders import run  # noqa: E402


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500, help="how many (500)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first run (0)")
    chosen = parser.parse_args()
    closed = opened = 0
    for number in range(chosen.first, chosen.first + chosen.runs):
        try:
            found = run(range(number, number + 1))
        except Exception as error:
            print(f"FAILED: run {number}: {error!r}")
            return 1
        closed, opened = closed + found[0], opened + found[1]
    print(f"{chosen.runs:,} runs: {closed:,} batches closed, {opened:,} opened; all promises held")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
