"""Sum the rounds of a simulated campaign: clip, sum with the plan's protocol, add noise, release.

Under privacy, `Site.land` returns sums only with their noise. `encode` yields exact sums, as a
trusted server makes them: under privacy exact sums must not be released.
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
    """The released sums of a campaign, and which clients are in them.

    Attributes:
        sketches: the released sums, with noise if the plan has privacy.
        rounds: for each round that took place, the clients in its sum, with the items that they
            held before the clip.
        traffic: counts of the secure sum's messages (`cohorts.Traffic.to_dict`); None: a trusted
            server summed.
    """

    sketches: list[CountSketch]
    rounds: list[RoundTally]
    traffic: dict[str, Any] | None


class Site:
    """The place where the rounds of a campaign, or of its pilot, are summed.

    A pilot is a small first campaign, from which the size of the sketch follows. A campaign and its
    pilot have different places, with independent draws and keys. Otherwise the noise of the pilot
    could tell something about the noise of the campaign.

    Args:
        simulation: the campaign that the caller asked for.
        domain: the candidates.
        seed: the seed from which the hashes follow.
        purpose: the name of this place's random bytes; places with different names have independent
            keys and noise. It is empty for the campaign itself. A place with a name is for a pilot,
            and does not screen the sums of cohorts.
        books: the record of what was released, which also charges the ledger, if there is one.
        report: called with the progress (see `progress` of `run.run`).
        names: the strings of the items' ids if the domain is open; else None.

    Attributes:
        seed: the seed from which the hashes follow.
        keys: a function that returns a given number of random bytes, for keys.
        rng: the generator of all draws except random bytes, such as cohorts and dropouts
            (`simulation_rng`).
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
        # A pilot is not screened: its sums only decide the size of the sketch, and its cohorts are
        # few.
        self._screen = Screen.OFF if purpose else simulation.screen
        self.keys = key_bytes(simulation.seed, purpose + b"keys")
        self._random = key_bytes(simulation.seed, purpose + b"run")
        self.rng = simulation_rng(
            seed, simulation.seed, is_private=spec.is_private, has_plan=spec.plan is not None
        ).spawn(1)[0]

    def land(
        self, plan: Plan, keys: Keys | None, rounds: list[RoundTally], timings: dict[str, float]
    ) -> Landed:
        """Clip the clients' items, sum the rounds, add the noise, and release the sums.

        Rounds are summed with the protocol of the plan, or by a trusted server.

        Args:
            plan: the plan of the campaign, or of its pilot.
            keys: the private keys that belong to the public keys in the plan; None: a trusted
                server sums.
            rounds: the clients of each round.
            timings: a dict from stages to seconds. Two entries are stored in it: "encode" (a
                trusted server sums) or "sum" (a protocol sums), and "noise".

        Raises:
            AbortedRoundError: the protocol aborted the secure sum of a cohort.
            PoisonedError: screening refused every round that has a sum.
            OverspentError: the population has too little privacy budget left.
        """
        # The server is made first: it refuses a plan that cannot be screened, and nothing has been
        # drawn or charged by then.
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
        # The true counts are made from `rounds`, so only clients that are in the sums are kept:
        # clients that dropped out, and cohorts that screening left out, are in no sum.
        rounds = [
            tally.of(joined(server.screening.used(number, places)))
            for number, (tally, places) in enumerate(zip(rounds, summed.survivors, strict=False))
        ]
        if plan.summing.cohorts is not None:
            summed.traffic["screening"] = server.screening.to_dict()
        return Landed(sketches, rounds, summed.traffic)

    def _end(self, server: FrequencyServer) -> Callable[[], bool]:
        """Return a function to call after each round: it returns whether this round is the last.

        The campaign ends if the sums so far meet the plan's stopping rule (`ending.is_known`).
        Without a stopping rule the function always returns False.
        """
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
        """Give the server the exact sums of the rounds, in order; return how many took place.

        If `is_known` returns True after a round, this round is the last.
        """
        for sketch in encode(server.plan, self.domain, rounds, self.report, self.names):
            # the server gets no sum of a round without clients
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
    """Yield the exact sum of each round as a sketch, as a trusted server would make it.

    A round without clients is yielded, too.

    Args:
        plan: the plan of the campaign.
        domain: the candidates.
        rounds: the clients of each round.
        report: called with ("encode", rounds done, all rounds).
        names: the strings of the ids if the domain is open; else None.
    """
    for number, tally in enumerate(rounds):
        sketch = CountSketch(plan.spec, number)
        # If clients hold nearly all items of a range, compiled kernels add the counts of the whole
        # range in order faster than counts by id.
        if names is None and domain.first_id is not None and len(tally.ids) * 4 > 3 * domain.size:
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
    """Store in `timings[stage]` how many seconds the `with` block takes."""
    start = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - start
