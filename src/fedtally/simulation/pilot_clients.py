"""Draw the clients of a pilot: none of them takes part in the campaign that the pilot prepares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedtally.base.shares import whole_share
from fedtally.errors import InvalidInputError, opt
from fedtally.simulation.round_tally import Members, RoundTally, tally_members

MOST_PILOT = 0.1  # the largest share of clients that a pilot has by default
# By default a pilot has so many clients that about this number hold an item of frequency tau. With
# a larger number, the campaign's sketch was no smaller, and a client of the pilot sends more than a
# client of the campaign: docs/accuracy.md, "Pilots".
_HOLDERS = 20
# With privacy, (this number) / epsilon is added to _HOLDERS, so that items of frequency tau stand
# out from the noise. With a smaller number, a table whose items are all a little above tau got a
# sketch that was too small. With this number, that can still happen.
_HOLDERS_BY_NOISE = 30
MIN_CLIENTS = 30  # the fewest clients of a pilot: among fewer clients, frequencies are chance
# By default a pilot has at least this number of clients, but at most a tenth of all clients.
_ENOUGH = 1000


def usual_share(num_clients: int, tau: float, epsilon: float | None = None) -> float:
    """Return the default share of the clients that are drawn for a pilot, at most 0.1.

    Args:
        num_clients: the number of all clients.
        tau: the largest error that the campaign may have, as a frequency.
        epsilon: the epsilon of the campaign and of the pilot; None: neither has noise.

    >>> usual_share(1_000_000, 0.001), usual_share(20_000, 0.001), usual_share(10_000_000, 0.1)
    (0.02, 0.1, 0.0001)
    >>> usual_share(1_000_000, 0.001, epsilon=1.0)
    0.05
    """
    holders = _HOLDERS if epsilon is None else _HOLDERS + _HOLDERS_BY_NOISE / epsilon
    enough = max(holders / tau, _ENOUGH)
    return min(MOST_PILOT, enough / max(1, num_clients))


def draw_pilot(
    rounds: Sequence[RoundTally], share: float, rng: np.random.Generator
) -> tuple[list[RoundTally], list[RoundTally]]:
    """Draw a pilot: return its rounds, and the rounds without the pilot's clients.

    From each round, `share` of its clients are drawn uniformly, rounded down to whole clients.

    >>> everybody = RoundTally(100, np.array([3, 5], np.uint64), np.array([40, 50]))
    >>> [pilot], [rest] = draw_pilot([everybody], 0.2, np.random.default_rng(0))
    >>> pilot.num_clients, rest.num_clients, sorted((pilot.counts + rest.counts).tolist())
    (20, 80, [40, 50])
    """
    parts = [_parted(tally, whole_share(share, tally.num_clients), rng) for tally in rounds]
    return [part for part, _ in parts], [rest for _, rest in parts]


def merge_rounds(rounds: Sequence[RoundTally]) -> list[RoundTally]:
    """Return a list of one round, which has the clients of all the given rounds.

    A client counts once for each round that it is in. The numbers that tell clients apart
    (`RoundTally.names`) are dropped.
    """
    members = [part.members for part in rounds]
    if all(each is not None for each in members):
        return [tally_members(_together([each for each in members if each is not None]))]
    return [_added(rounds)]


def _parted(
    tally: RoundTally, number: int, rng: np.random.Generator
) -> tuple[RoundTally, RoundTally]:
    if tally.members is not None:
        order = rng.permutation(tally.num_clients)
        return _some(tally, np.sort(order[:number])), _some(tally, np.sort(order[number:]))
    held = np.append(tally.counts, tally.num_clients - tally.counts.sum())
    # Clients with the same single item are alike. So it is enough to draw how many of the pilot's
    # clients hold each item.
    taken = rng.multivariate_hypergeometric(held, number, method="marginals")
    pilot, rest = _of_counts(tally, taken), _of_counts(tally, held - taken)
    if tally.names is not None:  # counts have no names, so any names may be the pilot's
        names = tally.names[rng.permutation(tally.num_clients)]
        return pilot._replace(names=names[:number]), rest._replace(names=names[number:])
    return pilot, rest


def _of_counts(tally: RoundTally, counts: Any) -> RoundTally:
    held = counts[:-1] > 0
    return RoundTally(int(counts.sum()), tally.ids[held], counts[:-1][held])


def _some(tally: RoundTally, clients: Any) -> RoundTally:
    assert tally.members is not None
    parts = [tally.members.of(client) for client in clients.tolist()]
    ids = np.concatenate([tally.members.ids[:0], *parts])
    names = None if tally.names is None else tally.names[clients]
    return tally_members(Members(ids, np.cumsum([0, *map(len, parts)], dtype=np.int64)))._replace(
        names=names
    )


def _together(parts: Sequence[Members]) -> Members:
    """Return the members of several rounds as members of one round."""
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    return Members(
        np.concatenate([part.ids for part in parts]),
        np.cumsum([0, *sizes.tolist()], dtype=np.int64),
    )


def _added(parts: Sequence[RoundTally]) -> RoundTally:
    ids, place = np.unique(np.concatenate([part.ids for part in parts]), return_inverse=True)
    counts = np.zeros(len(ids), np.int64)
    np.add.at(counts, place, np.concatenate([part.counts for part in parts]))
    return RoundTally(sum(part.num_clients for part in parts), ids, counts)


def check_enough(rounds: Sequence[RoundTally]) -> None:
    """Refuse a pilot with fewer than 30 clients in all its rounds together: it would tell nothing.

    Raises:
        InvalidInputError: the pilot has fewer than 30 clients.
    """
    clients = sum(part.num_clients for part in rounds)
    if clients < MIN_CLIENTS:
        raise InvalidInputError(
            f"a pilot needs at least {MIN_CLIENTS} clients, got {clients}: use a larger"
            f" {opt.pilot_share}, or size the sketch without a pilot ({opt.sizing('minimax')}, or"
            f" {opt.max_bytes} without {opt.tau})"
        )
