"""The true counts of a simulated campaign; in a real campaign nobody knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.answer.evaluation import Truth
from fedtally.domain import Domain, OpenStrings
from fedtally.simulation.round_tally import RoundTally


def true_counts(domain: Domain, rounds: Sequence[RoundTally]) -> Truth:
    """Return the true counts of all rounds together, by the candidates' positions in the domain.

    Ids outside the domain are left out. But if the domain's ids are consecutive, no id may be
    outside. A client counts once for each round that it is in.

    In an open domain (nobody has listed its candidates), items have no positions. The counts are
    then given twice: by the domain's hash of each string (`Truth.positions` and `counts`), and by
    the id of each string (`Truth.fingerprints` and `held`).
    """
    ids = np.concatenate([r.ids for r in rounds])
    counts = np.concatenate([r.counts for r in rounds])
    if isinstance(domain, OpenStrings):
        hashes = domain.hashes(ids).astype(np.int64)
        return Truth(*_totals(hashes, counts), *_totals(ids, counts))
    if domain.first_id is not None:
        positions = (ids - np.uint64(domain.first_id)).astype(np.int64)
    else:
        # ids of text are fingerprints, in no order, and must be sorted for a search
        all_ids = domain.ids(0, domain.size)
        order = np.argsort(all_ids)
        found = np.minimum(np.searchsorted(all_ids, ids, sorter=order), domain.size - 1)
        positions = order[found]
        candidates = all_ids[positions] == ids  # an id outside got the position of another id
        positions, counts = positions[candidates], counts[candidates]
    return Truth(*_totals(positions, counts))


def _totals(keys: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """Return the distinct keys in rising order, and the sum of each key's counts."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    totals = np.zeros(len(distinct), np.int64)
    np.add.at(totals, inverse, counts)
    return distinct, totals
