"""Prove to several servers that a vector is valid, though each server sees only a share of it.

The proof is the *fully linear proof* of Boneh, Boyle, Corrigan-Gibbs, Gilboa and Ishai (CRYPTO
2019), in the form of draft-irtf-cfrg-vdaf. `Prio3` is the protocol that this draft builds on the
proof. It reproduces the official test vectors of Prio3Count, Prio3SumVec, Prio3Histogram and
Prio3SumVecWithMultiproof.

A round whose plan has validity "proofs" uses the proof alone, without `Prio3`: see
`secagg.two_server.proofs`. `Prio3` is for the package `dap`, and for researchers.

- `words`: integers mod p, in arrays and as bytes
- `fields`: arithmetic in GF(p^K), on arrays
- `proof`: what a circuit is, and the steps prove, query and decide
- `circuits`: the circuits of Prio3
- `one_hot`: the circuit of a client's count sketch, and the small fields for it
- `prio3`: shard, verify, aggregate, unshard; needs `pip install 'fedtally[prio3]'`
- `prio3_draft08`: Prio3 as in VDAF draft 08, for servers whose clients use DAP draft 09

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
