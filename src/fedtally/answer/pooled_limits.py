"""Limits of frequencies over all parts of an answer together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedtally.answer.estimates import clip_limits
from fedtally.answer.part import Part
from fedtally.recovery.intervals import Intervals, Limits, merged_intervals
from fedtally.recovery.limits import ROUNDING
from fedtally.recovery.linear_system import F64, U64, Ids

_NOBODY = np.empty(0, np.uint64)


class PooledLimits:
    """The limits of frequencies over all parts of an answer together.

    A part is the sums of one plan, with their decoder. `at` and `listed` do not clip the limits to
    0 and 1; `all` does.

    With one part, its own limits are used. The errors of different parts are independent, since
    their hashes and noise are. So the limits of several parts are combined, in one of three ways:

    - All parts by joint recovery, by belief propagation or from histograms: errors are taken as
      normal, so the squares of half-widths are added. The half-widths are measured from the values
      before shrinkage: shrinkage moves values the same way in all parts, so its errors are not
      independent.
    - All parts by the median: errors are not normal. The distribution of their sum is measured at
      ids that nobody holds in any part, or computed exactly.
    - Otherwise (such as a median beside joint recovery): each of K parts has limits of the
      confidence 1 - (1 - P) / K, and the limits are added. Then the sum has at least the confidence
      P (union bound).

    Args:
        parts: the parts, all with intervals of the same confidence P.
        shares: each part's share of all contributions, float64 [parts].
        kind: the kind of limits (see `make_intervals`).

    Attributes:
        about: how the limits were made, in words.
    """

    def __init__(self, parts: Sequence[Part], shares: F64, kind: str) -> None:
        self._shares = shares[:, None]
        confidence = parts[0].confidence
        self._made = [part.intervals_of(kind) for part in parts]  # the intervals of each part
        self._are_normal = all(one.centres(_NOBODY) is not None for one in self._made)
        pooled = _pooled(self._made, shares, parts, kind)
        if pooled is not None:
            self._made, self.about = [pooled], pooled.about
        elif self._are_normal:
            self.about = "the errors of the results are independent: half-widths add up in squares"
        else:  # a union bound: each part gets its share of the probability to fail
            fails = (1.0 - confidence) / len(parts)
            self._made = [part.intervals_of(kind, 1.0 - fails) for part in parts]
            self.about = (
                f"sums of limits of 1 - {1.0 - confidence:.3g} / {len(parts)} in each result"
                " (union bound)"
            )

    def at(self, ids: Sequence[Ids]) -> Limits:
        """Return the limits of items that somebody named before the estimates were known.

        The limits are shares of all contributions, float64 [items] each, and are not clipped.

        Args:
            ids: for each part of the answer, the ids of the items in this part: uint64 [items].
        """
        return self._together(ids, [one.at(own) for one, own in zip(self._made, ids, strict=False)])

    def all(self, blocks: Iterable[Sequence[Ids]]) -> Limits:
        """Return the limits of all items, float64 [items] each, clipped to 0 and 1.

        They do not allow for selection: an item's limits hold if somebody named the item before the
        estimates were known.

        Args:
            blocks: the items in blocks. For each block, a list with the ids of its items in each
                part of the answer, as `Rows.id_blocks` yields it.
        """
        limits = [self.at(ids) for ids in blocks]
        return clip_limits(Limits(*(np.concatenate(ends) for ends in zip(*limits, strict=True))))

    def listed(self, ids: Sequence[U64], threshold: float | None) -> Limits:
        """Return the limits of items that are on a list because their estimates are large.

        The limits are shares of all contributions, float64 [items] each, and are not clipped. If
        the kind of the limits is "auto", they allow for the choice of the items.

        Args:
            ids: for each part of the answer, the ids of the items in this part: uint64 [items].
            threshold: the frequency that an estimate had to reach to be listed; None: it is
                unknown.
        """
        chosen = [one.listed(own, threshold) for one, own in zip(self._made, ids, strict=False)]
        return self._together(ids, chosen)

    def _together(self, ids: Sequence[Ids], limits: Sequence[Limits]) -> Limits:
        if len(limits) == 1:
            return limits[0]
        low, high = (self._shares * np.array(ends) for ends in zip(*limits, strict=True))
        if not self._are_normal:
            return Limits(low.sum(axis=0), high.sum(axis=0))
        centres = [one.centres(own) for one, own in zip(self._made, ids, strict=True)]
        own = self._shares * np.array(centres)
        middle = own.sum(axis=0)  # the errors of parts are independent, so their squares add up
        return Limits(middle - np.hypot.reduce(own - low), middle + np.hypot.reduce(high - own))


def _pooled(
    made: Sequence[Intervals], shares: F64, parts: Sequence[Part], kind: str
) -> Intervals | None:
    """Return intervals for the frequencies in all parts together, or None.

    For one part they are its own intervals. For several parts, the intervals are merged if the
    decoders allow it (see `merged_intervals`). Otherwise the result is None, and the caller must
    combine the limits of the parts.

    Args:
        made: the intervals of each part, at the same confidence.
        shares: each part's share of all contributions, float64 [parts].
        parts: the parts.
        kind: the kind of limits (see `make_intervals`).
    """
    if len(made) == 1:
        return made[0]
    first = parts[0]
    return merged_intervals(made, shares.tolist(), first.domain, first.confidence, kind)


def rounded(limits: Limits, frequencies: F64) -> Limits:
    """Return the limits, but make a limit equal to its estimate if they differ only by rounding.

    An exact count has both limits at the estimate. Without this step, rounding in floating point
    could leave the estimate outside its limits.

    >>> rounded(Limits(np.array([0.3 - 1e-16]), np.array([0.5])), np.array([0.3]))
    Limits(low=array([0.3]), high=array([0.5]))
    """
    return Limits(
        *(np.where(abs(end - frequencies) <= ROUNDING, frequencies, end) for end in limits)
    )
