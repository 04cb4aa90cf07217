"""The true counts of a simulated campaign, which no real one knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.answer.evaluation import Truth
from fedtally.domain import Domain, OpenStrings
from fedtally.simulation.round_tally import RoundTally


def true_counts(domain: Domain, rounds: Sequence[RoundTally]) -> Truth:
    """Return the true counts over all rounds, by position in the domain.

    For an open domain they are by hash, and also by id.
    """
    ids = np.concatenate([r.ids for r in rounds])
    counts = np.concatenate([r.counts for r in rounds])
    if isinstance(domain, OpenStrings):
        hashes = domain.hashes(ids).astype(np.int64)
        return Truth(*_totals(hashes, counts), *_totals(ids, counts))
    if domain.first_id is not None:
        positions = (ids - np.uint64(domain.first_id)).astype(np.int64)
    else:
        # ids of text are fingerprints, in no order: they are sorted to be searched
        all_ids = domain.ids(0, domain.size)
        order = np.argsort(all_ids)
        found = np.minimum(np.searchsorted(all_ids, ids, sorter=order), domain.size - 1)
        positions = order[found]
        candidates = all_ids[positions] == ids  # an id outside the domain got a neighbour's place
        positions, counts = positions[candidates], counts[candidates]
    return Truth(*_totals(positions, counts))


def _totals(keys: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """Return the distinct keys, rising, and the sum of the counts of each."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    totals = np.zeros(len(distinct), np.int64)
    np.add.at(totals, inverse, counts)
    return distinct, totals
