"""How long a silo of many people takes to make its vector, beside the encoding of their items."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import numpy as np

from fedtally.campaign.client import FrequencyClient
from fedtally.domain import Dictionary, IntegerRange
from fedtally.plan import Plan
from fedtally.privacy.config import propose
from fedtally.sketch import CountSketch, Schedule

_GOAL = 3.0  # the most, relative to making counters of the items themselves
_CANDIDATES = 100_000
_RUNS = 3


@click.command("silos")
@click.option("--people", type=int, default=1_000_000, help="People of the silo.")
@click.option("--items", type=int, default=3, help="Items of each, which is max_items, too.")
def command(people: int, items: int) -> None:
    """Time FrequencyClient.of_people and its contribution, 5 rows of 1,000 counters."""
    rng = np.random.default_rng(22)
    words = [f"item-{i}" for i in range(_CANDIDATES)]
    dictionary, numbers = Dictionary(words), IntegerRange(1, _CANDIDATES)
    places = rng.zipf(1.3, people * items) % _CANDIDATES
    texts = [words[place] for place in places.tolist()]
    ids, owners = numbers.encode(places + 1), rng.permutation(np.arange(people * items) % people)
    terms = propose(
        epsilon=1.0,
        delta=1e-9,
        rows=5,
        width=1000,
        relation="add-remove",
        trust="distributed",
        max_items=items,
        honest_survivors=4,
        most_clients=6,
    )
    plan = Plan(
        rows=5,
        width=1000,
        schedule=Schedule.parse("shared"),
        num_rounds=1,
        num_clients=6,
        max_round_clients=6,
        domain=numbers.describe(),
        max_items=items,
        seed=bytes(32),
        privacy=terms,
        people=people,
    )
    counted = _seconds(lambda: CountSketch(plan.spec, 0).add(ids))
    encoded = _seconds(lambda: CountSketch(plan.spec, 0).add(dictionary.encode(texts)))
    made = _seconds(lambda: FrequencyClient.of_people(plan, ids, owners).contribution(0, rng.bytes))
    click.echo(f"{people:,} people of {items} items: {made:.3f} s from ids to a noised vector")
    click.echo(f"  text to ids to counters {encoded:.3f} s: {made / encoded:.1f} times")
    click.echo(f"  ids to counters alone   {counted:.3f} s: {made / counted:.1f} times")
    met = "met" if made <= _GOAL * encoded else "not met"
    click.echo(f"goal, {_GOAL:g} times the encoding of the items from text: {met}")


def _seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_RUNS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
