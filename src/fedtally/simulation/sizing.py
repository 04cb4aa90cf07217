"""The size of a campaign's sketch for a target, from a pilot of other clients.

The clients of the pilot are drawn uniformly; none of them is in the campaign that follows. Under
differential privacy the pilot is a release of its own: noised, and charged, like the campaign. A
client is in one of the two, so both together cost it no more than one of them. A ledger adds them
up nonetheless: it does not know which client was where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base.encoding import Encoding
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan, Target, encodings
from fedtally.plan.design import DEFAULT_MAX_BYTES, Chosen, Design
from fedtally.plan.names import Names
from fedtally.privacy.events import Event
from fedtally.recovery.decoding import kind_of
from fedtally.simulation.rows import Members, RoundTally, tally_members
from fedtally.simulation.simulation import Sizing
from fedtally.sketch import CountSketch

if TYPE_CHECKING:
    from fedtally.plan.frequencies.distribution import Frequencies
    from fedtally.plan.paper import Size

MOST_PILOT = 0.1  # the largest share of the clients that is taken if no share is asked for
# Clients of a pilot that hold an item as frequent as tau. More of them make the campaign's sketch
# no smaller, and each sends more than a client of the campaign: docs/planning.md, "Pilots".
_HOLDERS = 20
# As many more at epsilon 1: items as frequent as tau must stand out from noise. With fewer a table
# of items that are all a little above tau got a sketch that was too small; it may even so.
_HOLDERS_BY_NOISE = 30
# Bytes of a pilot's sketch for a tau of 0.001. A smaller tau may have more items above it, and
# needs more counters to tell them apart.
_USUAL_BYTES, _USUAL_TAU = 8000, 0.001
# A pilot costs at most this number / tau bytes, as a mean over all clients, which is less than most
# campaigns. With 8 kB a pilot of a tenth of the clients cost 12 times the campaign: `python -m
# experiments pilots`. With twice as much, campaigns were hardly smaller and missed tau as often.
_MEAN_BYTES = 0.4
_LEAST_BYTES = 400  # 8 x 25 counters of two bytes
# of plans whose cost is looked at before the width is known: an event does not depend on the width
_USUAL_WIDTH = 200
MIN_CLIENTS = 30  # of a pilot: the frequencies of fewer are chance
_ENOUGH = 1000  # clients of a pilot for the largest targets
F64 = npt.NDArray[np.float64]


def usual_share(num_clients: int, tau: float, epsilon: float | None = None) -> float:
    """Return the share of the clients that are a pilot, if none is asked for.

    Args:
        num_clients: all clients.
        tau: the target of the campaign.
        epsilon: of the campaign, and so of the pilot; None: neither has noise.

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
    """Return the rounds of a pilot, and the rounds without its clients.

    The pilot is a share of every round's clients, drawn uniformly.

    >>> everybody = RoundTally(100, np.array([3, 5], np.uint64), np.array([40, 50]))
    >>> [pilot], [rest] = draw_pilot([everybody], 0.2, np.random.default_rng(0))
    >>> pilot.num_clients, rest.num_clients, sorted((pilot.counts + rest.counts).tolist())
    (20, 80, [40, 50])
    """
    parts = [_parted(tally, int(share * tally.num_clients), rng) for tally in rounds]
    return [part for part, _ in parts], [rest for _, rest in parts]


def merge_rounds(rounds: Sequence[RoundTally]) -> list[RoundTally]:
    """Return all clients of some rounds as one round."""
    members = [part.members for part in rounds]
    if all(each is not None for each in members):
        return [tally_members(_joined([each for each in members if each is not None]))]
    return [_added(rounds)]


def _parted(
    tally: RoundTally, number: int, rng: np.random.Generator
) -> tuple[RoundTally, RoundTally]:
    if tally.members is not None:
        order = rng.permutation(tally.num_clients)
        return _some(tally, np.sort(order[:number])), _some(tally, np.sort(order[number:]))
    held = np.append(tally.counts, tally.num_clients - tally.counts.sum())
    # Clients of one item each are drawn without replacement by drawing how many hold each item.
    taken = rng.multivariate_hypergeometric(held, number, method="marginals")
    pilot, rest = _of_counts(tally, taken), _of_counts(tally, held - taken)
    if tally.names is not None:  # counts do not say whose they are: any clients will do
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


def _joined(parts: Sequence[Members]) -> Members:
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
    """Refuse a pilot of so few clients that it tells nothing."""
    clients = sum(part.num_clients for part in rounds)
    if clients < MIN_CLIENTS:
        raise InvalidInputError(
            f"a pilot needs at least {MIN_CLIENTS} clients, got {clients}: use a larger"
            f" {opt.pilot_share}, or size the sketch without a pilot ({opt.sizing('minimax')}, or"
            f" {opt.max_bytes} without {opt.tau})"
        )


def pilot_size(
    sizing: Sizing, max_bytes: int | None, tau: float, share: float = 0.0, protocol: int = 0
) -> dict[str, Any]:
    """Return rows, width and bytes of the pilot's sketch.

    It is as wide as the paper's, or as wide as 8 kB allow. Below a tau of 0.001 it has more bytes,
    up to 32 kB. A pilot of a large share of the clients has fewer, at least 400 bytes.

    Args:
        sizing: the way to find the campaign's sketch.
        max_bytes: the upload per client that the campaign was asked for.
        tau: the target of the campaign.
        share: the pilot's share of all clients; 0: its cost is not looked at.
        protocol: the bytes that a secure sum sends beside the counters. They come on top of the
            pilot's own limits, but not of `max_bytes`.

    >>> [pilot_size(Sizing.MODEL, None, 0.01, share)["max_bytes"] for share in (0.01, 0.02, 0.1)]
    [4000, 2000, 400]
    """
    from fedtally.plan.frequencies.pilot import Pilot

    if sizing is Sizing.TWO_PHASE:
        return {"rows": Pilot.rows, "width": Pilot.width, "max_bytes": None}
    most = min(DEFAULT_MAX_BYTES, int(_USUAL_BYTES * max(1.0, _USUAL_TAU / tau)))
    if share:
        most = min(most, max(_LEAST_BYTES, round(_MEAN_BYTES / (tau * share))))
    most += protocol
    return {
        "rows": Pilot.rows,
        "width": None,
        "max_bytes": min(most, max_bytes or most),
    }


def without_pilot(draft: Design, max_bytes: int | None) -> Sized | None:
    """Return the histogram that meets the target, if it costs a client no more than a small pilot.

    Its error needs no frequencies, and so no pilot.

    Args:
        draft: the draft of the campaign's plan, for all clients, with a target.
        max_bytes: the upload per client that the campaign was asked for.

    Raises:
        InvalidInputError: a histogram is asked for by name, and does not meet the target.
    """
    from fedtally.plan.frequencies.distribution import Frequencies
    from fedtally.plan.ways import unreachable

    tau = draft.spec.tau
    assert tau is not None
    budget = pilot_size(Sizing.MODEL, max_bytes, tau)["max_bytes"]
    found = encodings.meets_target(draft, budget)
    if found is None and draft.spec.encoding is Encoding.HISTOGRAM:
        found = encodings.meets_target(draft)
        if found is None:
            raise unreachable(draft, Frequencies.assumed(draft.domain.size))
    return None if found is None else Sized(found.chosen, found.sizing, None, [])


def possible_events(draft: Design) -> list[Event]:
    """Return the events that the campaign after a pilot may have, with the fewest and most rows.

    A ledger looks at them before the pilot: a campaign that cannot be paid for needs no pilot.
    """
    from fedtally.plan.paper import rows_for

    spec = draft.spec
    paper = rows_for(draft.domain.size, spec.failure_probability)
    rows = {spec.rows} if spec.rows else {paper, *kind_of(draft.recovery).planned_rows}
    plans = [
        draft.with_size(draft.example, each, _USUAL_WIDTH).plan()
        for each in sorted({min(rows), max(rows)})
    ]
    if (whole := encodings.meets_target(draft)) is not None:
        plans.append(whole.plan())
    return [plan.privacy.event for plan in plans if plan.privacy is not None]


def frequencies_of(plan: Plan, sketches: Sequence[CountSketch], domain: Domain) -> Frequencies:
    """Return the frequencies that a pilot shows.

    Args:
        plan: the plan of the pilot.
        sketches: the sums of the pilot, with their noise.
        domain: the candidates.
    """
    from fedtally.plan.frequencies.distribution import Frequencies

    variance = 0.0
    if plan.privacy is not None:
        variance = plan.privacy.largest_stddev(max(sketch.num_clients for sketch in sketches)) ** 2
    return Frequencies.from_pilot(sketches, domain, variance, max_items=plan.max_items)


def paper_size(
    draft: Design, sizing: Sizing, sketches: Sequence[CountSketch], frequencies: Callable[[], F64]
) -> Design:
    """Return the design with the size of the sketch by one of the paper's ways.

    Args:
        draft: the draft of the campaign's plan, with a target.
        sizing: the way.
        sketches: the sums of the pilot: one, where the way needs it.
        frequencies: returns the true frequencies, for the way that knows them.

    Raises:
        InvalidInputError: the sketch takes more bytes than are given.
    """
    from fedtally.plan.paper import linear, minimax, oracle, two_phase
    from fedtally.plan.search import usual_schedule

    spec, tau = draft.spec, draft.spec.tau
    assert tau is not None
    domain = draft.domain
    given: dict[str, Any] = {
        "num_clients": draft.clients[0],
        "p": spec.failure_probability,
        "rows": spec.rows,
    }
    if sizing is Sizing.TWO_PHASE:
        [sketch] = sketches
        size = two_phase(sketch, domain, tau, **given)
    elif sizing is Sizing.ORACLE:
        size = oracle(frequencies(), tau, domain_size=domain.size, **given)
    elif sizing is Sizing.MINIMAX:
        size = minimax(tau, domain_size=domain.size, **given)
    else:
        size = linear(domain_size=domain.size, **given)
    design = draft.with_size(usual_schedule(draft), size.rows, size.width).sized_by(size)
    needed = design.bytes_per_client
    if spec.max_bytes is not None and needed > spec.max_bytes:
        raise InvalidInputError(
            f"sizing {sizing} takes {needed:,} bytes of a client for tau {tau:g}, and"
            f" {opt.max_bytes} is {spec.max_bytes:,}: give more bytes, a larger tau, or the sizing"
            " model"
        )
    return design


class Sized(NamedTuple):
    """The sketch that was chosen for a target.

    Attributes:
        chosen: schedule, rows and width.
        size: the way to them, with its prediction.
        pilot: the plan of the pilot; None: there was none.
        sketches: the sums of the pilot, with their noise.
        names: that are predicted to be read, where the domain is open; None elsewhere.
    """

    chosen: Chosen
    size: Size
    pilot: Plan | None
    sketches: Sequence[CountSketch]
    names: Names | None = None

    def document(self, target: Target) -> dict[str, Any]:
        """Return the field `sizing` of a result, JSON-able.

        Args:
            target: the target of the campaign's plan.
        """
        pilot, about = self.pilot, None
        if pilot is not None:
            about = {
                "num_clients": sum(sketch.num_clients for sketch in self.sketches),
                "rows": pilot.rows,
                "width": pilot.width,
                "bytes_per_client": pilot.bytes_per_client,
                "fingerprint": pilot.fingerprint,
                "epsilon": None if pilot.privacy is None else pilot.privacy.epsilon,
            }
        return {
            "sizing": self.size.method,
            "tau": target.linf,
            "failure_probability": target.failure_probability,
            "predicted_linf": self.size.linf,
            "pilot": about,
            "message": self.size.message,
            "names": None if self.names is None else self.names.to_dict(),
        }
