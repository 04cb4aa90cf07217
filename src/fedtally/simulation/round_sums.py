"""The sums of a campaign's rounds: bounded, summed by its protocol, and released with their noise.

`Site.land` returns no sum without its noise. `encode` makes the exact sums of an ideal secure sum:
under privacy they must not be released.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from fedtally.campaign import ending
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.screening import Screen
from fedtally.campaign.server import FrequencyServer
from fedtally.domain import Domain, Names
from fedtally.plan import Plan
from fedtally.plan.secure_sum import Keys
from fedtally.simulation.clipping import clip_rounds
from fedtally.simulation.cohorts import Summed, joined, sum_rounds
from fedtally.simulation.item_ids import add_items
from fedtally.simulation.randomness import key_bytes, simulation_rng
from fedtally.simulation.round_tally import RoundTally
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch


class Landed(NamedTuple):
    """The sums of a campaign with their noise, the clients in them, and how they were made.

    Attributes:
        sketches: the released sums.
        rounds: the clients in the sum of each round, up to the last one that took place.
        traffic: the traffic of a secure sum, JSON-able; None: a trusted server sums.
    """

    sketches: list[CountSketch]
    rounds: list[RoundTally]
    traffic: dict[str, Any] | None


class Site:
    """The place where a campaign's rounds, or those of its pilot, are summed.

    Each place has draws and keys of its own: the noise of the pilot must tell nothing of the
    campaign's.

    Args:
        simulation: the campaign that is asked for.
        domain: the candidates.
        seed: the seed of the hashes.
        purpose: a name that keeps draws and keys apart: two names have nothing in common. It is
            empty for the campaign itself.
        books: the books that are charged.
        report: called as in `run`.
        names: the strings of the items' ids, where the domain is open.

    Attributes:
        seed: the seed of the hashes.
        keys: the source of the bytes of the keys.
        rng: the generator of other draws, such as cohorts and dropouts; see `simulation_rng`.
    """

    def __init__(
        self,
        simulation: Simulation,
        domain: Domain,
        seed: bytes,
        purpose: bytes,
        books: MemoryBooks,
        report: Callable[..., None],
        names: Names | None = None,
    ) -> None:
        self.domain, self.seed, self.books, self.report = domain, seed, books, report
        self.names = names
        spec = simulation.spec
        self._summation = spec.summation
        # A pilot is not screened: its sums only decide on sizes, and it has few cohorts.
        self._screen = Screen.OFF if purpose else simulation.screen
        self.keys = key_bytes(simulation.seed, purpose + b"keys")
        self._random = key_bytes(simulation.seed, purpose + b"run")
        self.rng = simulation_rng(
            seed, simulation.seed, is_private=spec.is_private, has_plan=spec.plan is not None
        ).spawn(1)[0]

    def land(
        self, plan: Plan, keys: Keys | None, rounds: list[RoundTally], timings: dict[str, float]
    ) -> Landed:
        """Sum the rounds by the protocol of the plan, and release the sums with their noise.

        Args:
            plan: the plan of the campaign, or of its pilot.
            keys: the private keys whose public ones the plan names; None: a trusted server sums.
            rounds: the clients of each round.
            timings: the seconds by stage; the stages of this method are stored in it.
        """
        # The server refuses a plan that cannot be screened, before anything is drawn or charged.
        server = FrequencyServer(plan, self.books, screen=self._screen)
        contributed = clip_rounds(plan, rounds, self._random(32), self.names)
        is_known = self._end(server)
        summed: Summed | None = None
        if keys is None:
            with timed(timings, "encode"):
                rounds = rounds[: self._sum_in_the_clear(server, contributed, is_known)]
        else:
            with timed(timings, "sum"):
                summed = self._sum_by_protocol(server, contributed, keys, is_known)
        with timed(timings, "noise"):
            sketches = server.release(self._random)
        if summed is None:
            return Landed(sketches, rounds, None)
        # Keep only the clients that are in the sums, since the truth is counted from them: no
        # dropouts, and no cohorts that screening left out.
        rounds = [
            tally.of(joined(server.screening.used(number, places)))
            for number, (tally, places) in enumerate(zip(rounds, summed.survivors, strict=False))
        ]
        if plan.summing.cohorts is not None:
            summed.traffic["screening"] = server.screening.to_dict()
        return Landed(sketches, rounds, summed.traffic)

    def _end(self, server: FrequencyServer) -> Callable[[], bool]:
        """Return a function that says after each round whether the campaign ends."""
        plan = server.plan
        return lambda: ending.is_known(plan, self.domain, server.so_far())

    def _sum_by_protocol(
        self,
        server: FrequencyServer,
        rounds: Sequence[RoundTally],
        keys: Keys,
        is_known: Callable[[], bool],
    ) -> Summed:
        return sum_rounds(
            server,
            rounds,
            self._summation,
            keys,
            self.rng,
            self._random,
            self.report,
            self.names,
            is_known,
        )

    def _sum_in_the_clear(
        self, server: FrequencyServer, rounds: Sequence[RoundTally], is_known: Callable[[], bool]
    ) -> int:
        """Land the rounds in their order; return how many rounds took place.

        The campaign may end before the last one.
        """
        for sketch in encode(server.plan, self.domain, rounds, self.report, self.names):
            # a round in which nobody takes part does not land
            if sketch.num_vectors:
                server.land_plain(sketch)
                if is_known():
                    return sketch.round + 1
        return len(rounds)


def encode(
    plan: Plan,
    domain: Domain,
    rounds: Sequence[RoundTally],
    report: Callable[..., None],
    names: Names | None = None,
) -> Iterator[CountSketch]:
    """Yield the sketch that lands in each round, as an ideal secure sum would make it."""
    for number, tally in enumerate(rounds):
        sketch = CountSketch(plan.spec, number)
        # If clients hold many of a range's items, it is faster to add the counts of all items in
        # order than those of some items by id.
        if names is None and domain.first_id is not None and len(tally.ids) * 4 > domain.size:
            dense = np.zeros(domain.size, np.int64)
            dense[(tally.ids - np.uint64(domain.first_id)).astype(np.int64)] = tally.counts
            sketch.add_range(domain.first_id, dense, tally.num_clients)
        else:
            add_items(sketch, tally.ids, tally.counts, tally.num_clients, names)
        sketch.num_silos = len(tally.silos)
        report("encode", number + 1, len(rounds))
        yield sketch


@contextmanager
def timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    """Store the seconds that the `with` block takes, by stage."""
    start = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - start
