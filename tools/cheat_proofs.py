"""Let clients cheat with their proofs of valid vectors, at random, in every way that tests know.

    python tools/cheat_proofs.py --runs 1000000 --seed 7
    python tools/cheat_proofs.py --draft08 --runs 100000   # over the circuits of clients of DAP 09

Nobody may pass: each cheat does with less than 2^-130, and over the circuits of draft 08 with less
than 2^-60. About a fifth of the runs are honest vectors with proofs that were changed, and every
batch has an honest report, which must pass. The exit code is 1 if one of this fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from proof_cheats import (  # noqa: E402
    HONEST,
    HOW,
    cheats,
    measured_cheats,
    one_hot,
    valid_words,
    verdicts,
    verdicts08,
)

from fedtally.flp import FIELD16, FIELD24, OneHot  # noqa: E402
from fedtally.flp.prio3_draft08 import Prio3Draft08  # noqa: E402

REPEATS = 24  # of each kind in a batch


class Statement(NamedTuple):
    """What is proven, and how clients lie about it.

    Attributes:
        cheats: returns words of each kind that no honest client has.
        honest: returns the words of an honest client.
        verdicts: returns which of these words pass, with a cheat besides.
        words: returns words as an array of the field.
        joint: whether there is joint randomness.
    """

    cheats: Callable[[np.random.Generator], dict[str, Any]]
    honest: Callable[[np.random.Generator], Any]
    verdicts: Callable[[np.random.Generator, Any, str], Any]
    words: Callable[[Any], Any]
    joint: bool


def native(circuit: OneHot) -> Statement:
    """Return the statement of reports with proofs."""
    return Statement(
        partial(cheats, circuit=circuit),
        lambda rng: circuit.encode(one_hot(rng, circuit)),
        lambda rng, words, how: verdicts(rng, circuit, words, how),
        circuit.field.words,
        True,
    )


def of_draft08(prio3: Prio3Draft08) -> Statement:
    """Return the statement of reports of draft 08."""
    return Statement(
        partial(measured_cheats, circuit=prio3.circuit),
        partial(valid_words, circuit=prio3.circuit),
        lambda rng, words, how: verdicts08(rng, prio3, words, how),
        prio3.circuit.field.words,
        prio3.circuit.joint_length > 0,
    )


NATIVE = [
    native(OneHot((8, 8), FIELD16, abstain=True, checksum=1)),
    native(OneHot((20, 20, 20, 9), FIELD16, abstain=True, checksum=4)),
    native(OneHot((12, 12, 30), FIELD24, checksum=3)),
    native(OneHot((8, 8, 8, 8, 8, 8, 8, 8), FIELD24, abstain=True)),
    native(OneHot((16, 16), FIELD16, abstain=True, checksum=4, signed=False)),
]
DRAFT08 = [
    of_draft08(Prio3Draft08.count()),
    of_draft08(Prio3Draft08.histogram(5, 2)),
    of_draft08(Prio3Draft08.histogram(30, 5)),
    of_draft08(Prio3Draft08.sum_vec(2, 3, 3)),
    of_draft08(Prio3Draft08.sum_vec(4, 255, 6)),
]


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100_000, metavar="N", help="cheats (100000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the choices (1)")
    parser.add_argument("--draft08", action="store_true", help="over the circuits of draft 08")
    options = parser.parse_args()
    statements = DRAFT08 if options.draft08 else NATIVE
    rng, start = np.random.default_rng(options.seed), time.process_time()
    tried: Counter[tuple[str, str]] = Counter()
    passed: Counter[tuple[str, str]] = Counter()
    refused = batch = 0
    while tried.total() < options.runs:
        statement = statements[batch % len(statements)]
        how = (HONEST, *HOW)[batch // len(statements) % (1 + len(HOW))]
        batch += 1
        made = [each for _ in range(REPEATS) for each in statement.cheats(rng).items()]
        # to set outputs to 0 changes nothing of a valid vector, nor does randomness that none uses
        changes_nothing = (HONEST, HOW[0]) if statement.joint else (HONEST, HOW[0], HOW[-1])
        if how not in changes_nothing:
            words = [statement.honest(rng) for _ in range(len(made) // 3)]
            made += [("valid vector", each) for each in words]
        found = statement.verdicts(rng, statement.words([each for _, each in made]), how)
        for (kind, _), one in zip(made, found.tolist(), strict=True):
            tried[kind, how] += 1
            passed[kind, how] += one
        honest = statement.words([statement.honest(rng)])
        refused += int(not statement.verdicts(rng, honest, HONEST).all())
    print(
        f"{tried.total():,} cheats of {len(tried)} kinds over {len(statements)} circuits:"
        f" {passed.total()} passed; {batch:,} honest reports: {refused} refused"
        f" ({time.process_time() - start:.0f} s of CPU)"
    )
    for (kind, how), count in passed.items():
        if count:
            print(f"  {kind}, {how}: {count} of {tried[kind, how]}")
    return int(passed.total() + refused > 0)


if __name__ == "__main__":
    sys.exit(main())
