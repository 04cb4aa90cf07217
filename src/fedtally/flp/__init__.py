"""Proofs that a vector is valid, for servers that each hold a share of it.

A client proves a statement about its vector to servers none of which sees the vector. The proof is
the *fully linear proof* of Boneh, Boyle, Corrigan-Gibbs, Gilboa and Ishai (CRYPTO 2019), in the
form that draft-irtf-cfrg-vdaf gives it. `Prio3` is that draft's protocol around the proof: it
replays the official vectors of Prio3Count, Prio3SumVec, Prio3Histogram and
Prio3SumVecWithMultiproof.

This is a library for researchers: campaigns do not use it.

- `fields`: GF(p^K), as arrays
- `proof`: circuits, and prove, query and decide
- `circuits`: the circuits of Prio3
- `prio3`: shard, verify, aggregate, unshard; needs `pip install 'fedtally[prio3]'`

The modules have no input, output, clock or randomness.
"""

from fedtally.flp.circuits import Count, Histogram, SumVec
from fedtally.flp.fields import FIELD64, FIELD128, Field
from fedtally.flp.prio3 import Prio3, VerifyState
from fedtally.flp.proof import Circuit, FullyLinearProof, ReportRefusedError, TestPointError

__all__ = [
    "FIELD64",
    "FIELD128",
    "Circuit",
    "Count",
    "Field",
    "FullyLinearProof",
    "Histogram",
    "Prio3",
    "ReportRefusedError",
    "SumVec",
    "TestPointError",
    "VerifyState",
]
