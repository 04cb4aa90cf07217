"""The bound on a client's items, in the simulation of many."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedtally.engines.local.tally import Members, RoundTally, tallied
from fedtally.plan import Plan
from fedtally.sketch.clip import clipped, exceeding

if TYPE_CHECKING:
    pass

Random = Callable[[int], bytes]


def bounded(plan: Plan, rounds: Sequence[RoundTally], key: bytes) -> list[RoundTally]:
    """Return the rounds without the items by which clients exceed the plan's clip; all of them, if it has none.

    Args:
        plan: of the campaign.
        rounds: with members, if the plan has a clip.
        key: 32 uniform bytes; what a client drops depends on them, its place and its own items alone.
    """
    clip = None if plan.privacy is None else plan.privacy.event.clip_norm
    if clip is None:
        return list(rounds)
    return [_bounded(plan, number, tally, clip, key) for number, tally in enumerate(rounds)]


def _bounded(plan: Plan, number: int, tally: RoundTally, clip: float, key: bytes) -> RoundTally:
    assert tally.members is not None
    ids, starts = tally.members
    kept = np.ones(len(ids), np.bool_)
    for client in exceeding(plan.spec, number, ids, starts, clip).tolist():
        own = slice(starts[client], starts[client + 1])
        random = _stream(key + number.to_bytes(8, "little") + client.to_bytes(8, "little"))
        kept[own] = np.isin(ids[own], clipped(plan.spec, number, ids[own], clip, random))
    if kept.all():
        return tally
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return tallied(Members(ids[kept], before[starts]))


def _stream(key: bytes) -> Random:
    """Return a source of bytes that a key determines, other ones at each call."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(key + next(calls).to_bytes(8, "little")).digest(size)
