"""Let clients cheat with their proofs of valid vectors, at random, in every way that tests know.

    python tools/cheat_proofs.py --runs 1000000 --seed 7

Nobody may pass: each cheat does with less than 2^-130. About a fifth of the runs are honest vectors
with proofs that were changed, and every batch has an honest report, which must pass. The exit code
is 1 if one of this fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from proof_cheats import HONEST, HOW, cheats, one_hot, verdicts  # noqa: E402

from fedtally.flp import FIELD16, FIELD24, OneHot  # noqa: E402

CIRCUITS = (
    OneHot((8, 8), FIELD16, abstain=True, checksum=1),
    OneHot((20, 20, 20, 9), FIELD16, abstain=True, checksum=4),
    OneHot((12, 12, 30), FIELD24, checksum=3),
    OneHot((8, 8, 8, 8, 8, 8, 8, 8), FIELD24, abstain=True),
    OneHot((16, 16), FIELD16, abstain=True, checksum=4, signed=False),
)
REPEATS = 24  # of each kind in a batch


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100_000, metavar="N", help="cheats (100000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the choices (1)")
    options = parser.parse_args()
    rng, start = np.random.default_rng(options.seed), time.process_time()
    tried: Counter[tuple[str, str]] = Counter()
    passed: Counter[tuple[str, str]] = Counter()
    refused = batch = 0
    while tried.total() < options.runs:
        circuit = CIRCUITS[batch % len(CIRCUITS)]
        how = (HONEST, *HOW)[batch // len(CIRCUITS) % (1 + len(HOW))]
        batch += 1
        made = [each for _ in range(REPEATS) for each in cheats(rng, circuit).items()]
        if how not in (HONEST, HOW[0]):  # to set outputs to 0 changes nothing of a valid vector
            words = [circuit.encode(one_hot(rng, circuit)) for _ in range(len(made) // 3)]
            made += [("valid vector", each) for each in words]
        found = verdicts(rng, circuit, circuit.field.words([each for _, each in made]), how)
        for (kind, _), one in zip(made, found.tolist(), strict=True):
            tried[kind, how] += 1
            passed[kind, how] += one
        honest = circuit.encode(one_hot(rng, circuit))[None]
        refused += int(not verdicts(rng, circuit, honest, HONEST).all())
    print(
        f"{tried.total():,} cheats of {len(tried)} kinds over {len(CIRCUITS)} circuits:"
        f" {passed.total()} passed; {batch:,} honest reports: {refused} refused"
        f" ({time.process_time() - start:.0f} s of CPU)"
    )
    for (kind, how), count in passed.items():
        if count:
            print(f"  {kind}, {how}: {count} of {tried[kind, how]}")
    return int(passed.total() + refused > 0)


if __name__ == "__main__":
    sys.exit(main())
