"""One answer from the results of several plans, between which widths may have changed.

A campaign may look at what it has released, and choose a better width for the rounds that follow: these have a plan of
their own, with hashes of their own, and clients of their own. What all of them say together is the sum of what each
says. With differential privacy only results that are private may choose (`fedtally plan --like` sees to it), and each
plan is charged by itself. Their clients are others; what it costs a client that is in all of them after all,
`Merged.together` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtally import _validate
from fedtally.errors import InvalidInputError
from fedtally.privacy.statement import Together, together
from fedtally.recovery.intervals import Limits
from fedtally.result import Estimate, Result, possible


class Merged:
    """Results over the same candidates, of different clients.

    Frequencies are shares of the contributions of all clients together. Errors of different results are independent,
    since their hashes and noises are: half-widths of intervals add up in squares.

    Args:
        results: two or more, of different plans, over one domain; with intervals of one confidence, or without.

    Raises:
        InvalidInputError: they do not belong together.

    >>> import fedtally
    >>> from fedtally.domain import IntegerRange
    >>> first, second = (fedtally.estimate([1] * n + [2] * 60, domain=IntegerRange(1, 9), seed=n) for n in (40, 140))
    >>> merged = Merged([first, second])
    >>> merged.num_clients, [(e.item, e.frequency) for e in merged.top(2)]
    (300, [(1, 0.6), (2, 0.4)])
    """

    def __init__(self, results: Sequence[Result]) -> None:
        if len(results) < 2:
            raise InvalidInputError(f"merge takes two results or more, got {len(results)}")
        first = results[0]
        for other in results[1:]:
            if not other.domain.public or other.domain.describe() != first.domain.describe():
                raise InvalidInputError(
                    "the results are over different candidates: only those over one declared domain can be merged"
                )
            if other.confidence != first.confidence:
                raise InvalidInputError(
                    f"the results have intervals of {first.confidence:g} and {other.confidence:g}: query them with one "
                    "--confidence, or run them alike"
                )
        prints = [result.plan.fingerprint for result in results]
        if len(set(prints)) < len(prints):
            raise InvalidInputError("two of the results are of one plan: their errors are not independent")
        self.results = list(results)
        self.domain = first.domain
        self.confidence = first.confidence
        self.num_clients = sum(result.num_clients for result in results)
        self.num_contributions = sum(result.num_contributions for result in results)

    @property
    def together(self) -> Together:
        """What the results cost a client that is in all of them.

        The openings of the results alone: a ledger knows what else a population was charged with, pilots included.
        """
        return together([result.plan.privacy for result in self.results])

    def estimates(self, items: Sequence[str | int]) -> list[Estimate]:
        """Return the estimates of named items, in their order.

        Raises:
            OutsideDomainError: an item is not in the domain.
        """
        if not len(items):
            return []
        ids = self.domain.encode([items] if isinstance(items, str) else list(items))
        return self._merged(items, [None if r.intervals is None else r.intervals.at(ids) for r in self.results])

    def top(self, k: int = 20) -> list[Estimate]:
        """Return the k largest estimates, largest first, ties by position in the domain.

        Estimates below half a client are left out. Limits are valid for the list as those of each result are.

        Raises:
            MemoryLimitError: the domain is too large to enumerate.
        """
        _validate.integer(0, k=k)
        places, counts = np.empty(0, np.int64), np.empty(0)
        for blocks in zip(*(result.blocks() for result in self.results), strict=True):
            start, block = blocks[0][0], np.sum([block for _, _, block in blocks], axis=0)
            places = np.concatenate([places, np.arange(start, start + len(block))])
            counts = np.concatenate([counts, block])
            kept = np.lexsort((places, -counts))[:k]
            kept = kept[counts[kept] >= 0.5]
            places, counts = places[kept], counts[kept]
        if not len(places):
            return []
        labels = self.domain.labels(places)
        ids = self.domain.encode(labels)
        # What an estimate had to reach is known of the sum, not of its parts.
        listed = [None if r.intervals is None else r.intervals.listed(ids, None) for r in self.results]
        return self._merged(labels, listed)

    def _merged(self, items: Sequence[str | int], limits: Sequence[Limits | None]) -> list[Estimate]:
        """Return the estimates of items, float64 limits [n] of each result's frequencies given, not cut to 0 .. 1."""
        parts = [result.estimates(items) for result in self.results]
        shares = np.array([result.num_contributions / self.num_contributions for result in self.results])[:, None]
        counts = np.sum([[e.count for e in part] for part in parts], axis=0)
        frequencies = counts / self.num_contributions
        columns = (frequencies.tolist(), counts.tolist())
        if not self.confidence:
            return [Estimate(e.item, f, None, None, n) for e, f, n in zip(parts[0], *columns, strict=True)]
        own = np.array([[e.frequency for e in part] for part in parts])
        below = shares * (own - np.array([limit.low for limit in limits if limit is not None]))
        above = shares * (np.array([limit.high for limit in limits if limit is not None]) - own)
        low, high = possible(Limits(frequencies - np.hypot.reduce(below), frequencies + np.hypot.reduce(above)))
        drawn = np.hypot.reduce(shares * np.array([[e.sampling_error or 0.0 for e in part] for part in parts]))
        rows = zip(parts[0], columns[0], low.tolist(), high.tolist(), columns[1], drawn.tolist(), strict=True)
        return [Estimate(part.item, *row) for part, *row in rows]
