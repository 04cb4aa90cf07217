"""Before a campaign: how large its sketch is to be, from a target, by what a pilot of other clients shows.

The clients of the pilot are drawn uniformly; none of them is in the campaign that follows. Under differential privacy
the pilot is a release of its own: noised, and charged, like the campaign. A client is in one of the two, so that both
together cost it what one of them costs; a ledger, which does not know who was where, adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedtally.domain import Domain
from fedtally.engines.local.tally import Members, RoundTally, tallied
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.planner.draft import DEFAULT_MAX_BYTES, Chosen, Draft
from fedtally.planner.request import Request
from fedtally.privacy.events import Event
from fedtally.recovery.decoding import kind_of
from fedtally.sketch import CountSketch

if TYPE_CHECKING:
    from fedtally.planner import Law, Size

PILOT_SHARE = 0.1
_USUAL_WIDTH = 200
MIN_CLIENTS = 30  # of a pilot: fewer tell nothing
Fit = Callable[[Request, Sequence[int]], tuple[Plan, Any]]
Land = Callable[[Plan, Any, list[RoundTally]], list[CountSketch]]


def drawn(
    rounds: Sequence[RoundTally], share: float, rng: np.random.Generator
) -> tuple[list[RoundTally], list[RoundTally]]:
    """Return a pilot's rounds, so large a share of every round's clients, drawn uniformly, and what is left of them.

    >>> everybody = RoundTally(100, np.array([3, 5], np.uint64), np.array([40, 50]))
    >>> [pilot], [rest] = drawn([everybody], 0.2, np.random.default_rng(0))
    >>> pilot.num_clients, rest.num_clients, sorted((pilot.counts + rest.counts).tolist())
    (20, 80, [40, 50])
    """
    parts = [_parted(tally, int(share * tally.num_clients), rng) for tally in rounds]
    return [part for part, _ in parts], [rest for _, rest in parts]


def together(rounds: Sequence[RoundTally]) -> list[RoundTally]:
    """Return all clients of some rounds as one round."""
    members = [part.members for part in rounds]
    if all(each is not None for each in members):
        return [tallied(_joined([each for each in members if each is not None]))]
    return [_added(rounds)]


def _parted(tally: RoundTally, number: int, rng: np.random.Generator) -> tuple[RoundTally, RoundTally]:
    if tally.members is not None:
        order = rng.permutation(tally.num_clients)
        return _some(tally, np.sort(order[:number])), _some(tally, np.sort(order[number:]))
    held = np.append(tally.counts, tally.num_clients - tally.counts.sum())
    taken = rng.multivariate_hypergeometric(held, number, method="marginals")
    pilot, rest = _of_counts(tally, taken), _of_counts(tally, held - taken)
    if tally.names is not None:  # whose the counts are is not kept: any so many of the clients
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
    return tallied(Members(ids, np.cumsum([0, *map(len, parts)], dtype=np.int64)))._replace(names=names)


def _joined(parts: Sequence[Members]) -> Members:
    sizes = np.concatenate([np.diff(part.starts) for part in parts])
    return Members(np.concatenate([part.ids for part in parts]), np.cumsum([0, *sizes.tolist()], dtype=np.int64))


def _added(parts: Sequence[RoundTally]) -> RoundTally:
    ids, place = np.unique(np.concatenate([part.ids for part in parts]), return_inverse=True)
    counts = np.zeros(len(ids), np.int64)
    np.add.at(counts, place, np.concatenate([part.counts for part in parts]))
    return RoundTally(sum(part.num_clients for part in parts), ids, counts)


@dataclass
class Sizing:
    """How a campaign's sketch was chosen for its target: what chooses it, and then what can be said of it.

    Args:
        request: what is asked; it has a target.
        domain: the candidates.
        pilot: the pilot's rounds: one, or the natural ones, which may differ; none where the method needs no pilot.
        fit: returns a plan and keys for a request and rounds of so many clients.
        land: returns the sums of the pilot's rounds, with their noise.
        check: refuses a pilot that would leave too little budget for what may follow.
        frequencies: returns the true ones, for the method that knows them.
    """

    request: Request
    domain: Domain
    pilot: list[RoundTally]
    fit: Fit
    land: Land
    check: Callable[[Plan, Sequence[Event]], None]
    frequencies: Callable[[], Any]
    _said: dict[str, Any] | None = None

    def choose(self, draft: Draft) -> Chosen:
        """Return schedule, rows and columns.

        Raises:
            InvalidInputError: the target is out of reach; how it would come within reach is said.
        """
        from fedtally import planner
        from fedtally.planner.proposal import chosen_for

        request, tau = self.request, self.request.tau
        assert tau is not None
        given: dict[str, Any] = {
            "num_clients": draft.clients[0],
            "domain_size": self.domain.size,
            "p": request.failure_probability,
            "rows": request.rows,
        }
        about = None
        if request.sizing_method == "calculus":
            law, about = self._law(draft)
            try:
                chosen, size = chosen_for(draft, law)
            except InvalidInputError as error:
                spent = "" if request.ledger is None else "; the pilot is charged: what it released stays released"
                raise InvalidInputError(f"{error}{spent}") from None
        else:
            if request.sizing_method == "minimax":
                size = planner.minimax(tau, **given)
            elif request.sizing_method == "linear":
                size = planner.linear(**given)
            elif request.sizing_method == "oracle":
                size = planner.oracle(self.frequencies(), tau, **given)
            else:
                self.pilot = together(self.pilot)
                [sketch], about = self._sketches(draft, planner.Pilot.rows, planner.Pilot.width)
                del given["domain_size"]
                size = planner.two_phase(sketch, self.domain, tau, **given)
            chosen = Chosen(draft.usual_schedule, size.rows, size.width)
            _check_budget(draft, chosen)
        self._said = self._document(size, about)
        return chosen

    @property
    def said(self) -> dict[str, Any] | None:
        """What to say of it, JSON-able; None before anything was chosen."""
        return self._said

    def _document(self, size: Size, pilot: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "sizing": size.method,
            "tau": self.request.tau,
            "failure_probability": self.request.failure_probability,
            "predicted_linf": size.linf,
            "pilot": pilot,
            "message": size.message,
        }

    def _law(self, draft: Draft) -> tuple[Law, dict[str, Any]]:
        from fedtally import planner

        sketches, about = self._sketches(draft, planner.Pilot.rows, None)
        variance, terms = 0.0, self._plan.privacy
        if terms is not None:
            variance = terms.largest_deviation(max(sketch.num_clients for sketch in sketches)) ** 2
        return planner.Law.from_pilot(sketches, self.domain, variance, max_items=self.request.items_bound), about

    def _sketches(self, draft: Draft, rows: int, width: int | None) -> tuple[list[CountSketch], dict[str, Any]]:
        """Run the pilot, of so many columns, or of as many as the usual bytes buy."""
        request, sizes = self.request, [part.num_clients for part in self.pilot]
        if sum(sizes) < MIN_CLIENTS:
            raise InvalidInputError(
                f"a pilot needs at least {MIN_CLIENTS} clients, got {sum(sizes)}: use a larger pilot_share, or size "
                "the sketch without a pilot (sizing minimax, or max_bytes)"
            )
        asked = replace(
            request,
            rows=rows,
            width=width,
            max_bytes=None if width else min(DEFAULT_MAX_BYTES, request.max_bytes or DEFAULT_MAX_BYTES),
            num_rounds=None if len(sizes) > 1 else 1,
            schedule="shared",
            tau=None,
            sizing=None,
            pilot_share=None,
            certify=False,
            max_rounds=None,
        )
        self._plan, keys = self.fit(asked, sizes)
        if request.ledger is not None:
            self.check(self._plan, self._events(draft))
        sketches = self.land(self._plan, keys, self.pilot)
        about = {
            "num_clients": sum(sketch.num_clients for sketch in sketches),
            "rows": self._plan.rows,
            "width": self._plan.width,
            "bytes_per_client": self._plan.bytes_per_client,
            "fingerprint": self._plan.fingerprint,
            "epsilon": None if self._plan.privacy is None else self._plan.privacy.epsilon,
        }
        return sketches, about

    def _events(self, draft: Draft) -> list[Event]:
        """Return what the campaign may cost: with the fewest and the most rows that may be chosen."""
        from fedtally import theory

        paper = theory.rows_for(self.domain.size, self.request.failure_probability)
        rows = {self.request.rows} if self.request.rows else {paper, *kind_of(draft.recovery).planned_rows}
        plans = [draft.plan(draft.example, each, _USUAL_WIDTH) for each in sorted({min(rows), max(rows)})]
        return [plan.privacy.event for plan in plans if plan.privacy is not None]


def _check_budget(draft: Draft, chosen: Chosen) -> None:
    """Refuse a sketch that is larger than it may be."""
    request, needed = draft.request, draft.plan(*chosen).bytes_per_client
    if request.max_bytes is not None and needed > request.max_bytes:
        raise InvalidInputError(
            f"sizing {request.sizing_method} takes {needed:,} bytes of a client for tau {request.tau:g}, and max_bytes "
            f"is {request.max_bytes:,}: give more bytes, a larger tau, or the sizing calculus"
        )
