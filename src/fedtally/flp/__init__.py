"""Proofs that a vector is valid, for servers that each hold a share of it.

A client proves a statement about its vector to servers none of which sees the vector. The proof is
the *fully linear proof* of Boneh, Boyle, Corrigan-Gibbs, Gilboa and Ishai (CRYPTO 2019), in the
form that draft-irtf-cfrg-vdaf gives it. `Prio3` is that draft's protocol around the proof: it
replays the official vectors of Prio3Count, Prio3SumVec, Prio3Histogram and
Prio3SumVecWithMultiproof.

Plans with validity "proofs" use it, through `secagg.two_server.proofs`; `Prio3` is for researchers.

- `fields`: GF(p^K), as arrays
- `proof`: circuits, and prove, query and decide
- `circuits`: the circuits of Prio3
- `one_hot`: the circuit of a client's count sketch, and the small fields that it is for
- `prio3`: shard, verify, aggregate, unshard; needs `pip install 'fedtally[prio3]'`
- `prio3_draft08`: its servers in draft 08, which clients of DAP draft 09 speak

The modules have no input, output, clock or randomness.
"""

from fedtally.flp.circuits import Count, Histogram, SumVec
from fedtally.flp.fields import FIELD64, FIELD128, Field
from fedtally.flp.one_hot import FIELD16, FIELD24, FIELD32, OneHot, field_for_sums
from fedtally.flp.prio3 import Prio3, VerifyState
from fedtally.flp.proof import Circuit, FullyLinearProof, ReportRefusedError, TestPointError

__all__ = [
    "FIELD16",
    "FIELD24",
    "FIELD32",
    "FIELD64",
    "FIELD128",
    "Circuit",
    "Count",
    "Field",
    "FullyLinearProof",
    "Histogram",
    "OneHot",
    "Prio3",
    "ReportRefusedError",
    "SumVec",
    "TestPointError",
    "VerifyState",
    "field_for_sums",
]
