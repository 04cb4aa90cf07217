"""The clip: cut simulated clients' items, so that each sketch keeps the plan's norm."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fedtally.domain import Names
from fedtally.plan import Plan
from fedtally.simulation.round_tally import U64, Members, RoundTally, tally_members, tally_silos
from fedtally.sketch.clip import Clip, bound_items_of_each, draw_words


def clip_rounds(
    plan: Plan, rounds: Sequence[RoundTally], key: bytes, names: Names | None = None
) -> list[RoundTally]:
    """Return the rounds, in which clients have dropped the items that the plan's clip forbids.

    A clip bounds the norm of one client's sketch. If the plan has no clip, the rounds are returned
    unchanged.

    Args:
        plan: the plan of the campaign.
        rounds: the clients of each round. If the plan has a clip, each round needs `members` or, if
            clients are silos, each silo needs them.
        key: 32 uniform bytes. The items that a client drops depend only on this key, on the number
            of the round, on the client's place in the round (or its silo's place, and its place in
            the silo), and on the client's own items.
        names: the strings of the ids if the domain is open; else None.
    """

    def spell(ids: U64) -> U64:
        return ids if names is None else names.spell(ids, plan.spec.num_positions)

    clips = [plan.clip(number, spell) for number in range(len(rounds))]
    return [
        tally if clip is None else _clip_round(tally, plan.max_items, clip, key)
        for tally, clip in zip(rounds, clips, strict=True)
    ]


def _clip_silos(tally: RoundTally, max_items: int, clip: Clip, key: bytes) -> RoundTally:
    """Return the round, in which each person has dropped the items that the clip forbids.

    A person who is in two silos drops items in each silo separately.
    """
    return tally_silos(
        [
            _clip_round(silo, max_items, clip, key + place.to_bytes(8, "little"))
            for place, silo in enumerate(tally.silos)
        ]
    )


def _clip_round(tally: RoundTally, max_items: int, clip: Clip, key: bytes) -> RoundTally:
    if tally.silos:
        return _clip_silos(tally, max_items, clip, key)
    assert tally.members is not None
    ids, starts = tally.members
    prefix = key + clip.round.to_bytes(8, "little")

    def words(clients: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        streams = [
            (_stream(prefix + client.to_bytes(8, "little")), client) for client in clients.tolist()
        ]
        return np.concatenate(
            [draw_words(starts[c + 1] - starts[c], stream) for stream, c in streams]
        )

    kept = bound_items_of_each(ids, starts, max_items, words, clip)
    if kept.all():
        return tally
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return tally_members(Members(ids[kept], before[starts]))


def _stream(key: bytes) -> Callable[[int], bytes]:
    """Return a function that returns a given number of bytes, with each call new ones.

    `key` determines the bytes of all calls.
    """
    calls = itertools.count()
    return lambda size: hashlib.shake_256(key + next(calls).to_bytes(8, "little")).digest(size)
