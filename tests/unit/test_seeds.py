"""The seed of a small plan: of eight draws, the most even one, if nobody chose a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedtally
from fedtally.cli.app import run
from fedtally.domain import Dictionary, IntegerRange
from fedtally.plan import Plan
from fedtally.plan.design import Design
from fedtally.plan.request import Request
from fedtally.plan.search import for_bytes
from fedtally.plan.seeds import DRAWS, draws, even_seed, unevenness
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.simulation.randomness import campaign_seed
from fedtally.sketch import CountSketch, SketchSpec

FIRST = bytes(range(32))
DOMAIN = IntegerRange(1, 1000)


def even(domain=DOMAIN, seed=FIRST, clients=(4000,), **asked):
    """Return the seed of a design of 60 counters, unless other ones are asked."""
    asked = {"rows": 5, "width": 12, "schedule": "shared"} | asked
    design = Design.fit(Request(**asked).resolve(), domain, list(clients), seed=seed)
    return even_seed(for_bytes(design).plan(), domain)


def spec(seed, rows=5, width=12, rounds=1):
    return SketchSpec(rows, width, "hybrid", rounds, seed)


def test_the_most_even_of_eight_draws_is_taken():
    found = [unevenness(spec(seed), DOMAIN) for seed in draws(FIRST)]
    assert len(set(found)) == DRAWS == 8 and draws(FIRST)[0] == FIRST
    assert even() == draws(FIRST)[int(np.argmin(found))] != FIRST
    assert even() == even()  # the first draw decides


def test_unevenness_is_the_mean_square_of_what_all_candidates_leave():
    one = CountSketch(spec(FIRST), 0)
    one.add(DOMAIN.ids(0, 1000), np.ones(1000, np.int64))
    assert unevenness(spec(FIRST), DOMAIN) == np.mean(one.counters.astype(float) ** 2)
    # of rounds whose hashes differ it is the mean, and for hashes at random about d / W
    assert 0.5 < unevenness(spec(FIRST, rounds=3), DOMAIN) / (1000 / 12) < 2


@pytest.mark.parametrize(
    "asked",
    [
        {"width": 31},  # 155 counters
        {"schedule": "hybrid", "num_rounds": 3, "clients": (2000, 2000, 2000)},  # 180
        {"rows": None, "width": None, "encoding": "histogram", "domain": IntegerRange(1, 40)},
        {"domain": Dictionary([f"tea {n}" for n in range(40)], public=False)},  # items of clients
        {"domain": IntegerRange(1, (1 << 17) + 1)},
    ],
    ids=["counters", "batches", "histogram", "private", "candidates"],
)
def test_other_plans_keep_their_draw(asked):
    assert even(**asked) == FIRST


def test_two_rounds_that_differ_are_looked_at_together():
    found = [unevenness(spec(seed, rounds=2), DOMAIN) for seed in draws(FIRST)]
    chosen = even(schedule="hybrid", num_rounds=2, clients=(2000, 2000))
    assert chosen == draws(FIRST)[int(np.argmin(found))]


def test_an_even_seed_has_smaller_errors_than_an_uneven_one():
    """By chance it would in all eight groups with a probability of 2^-8."""
    law = np.append(0.6, np.full(999, 0.4 / 999))  # one frequent item, and a thousand alike
    sizes, clients, better = (8, 4), 20_000, []
    for group in range(8):
        rng = np.random.default_rng(group)
        by = sorted(draws(rng.bytes(32)), key=lambda s: unevenness(spec(s, *sizes), DOMAIN))
        errors = np.empty((6, 2))
        for campaign in range(6):
            counts = rng.permutation(rng.multinomial(clients, law))
            noise = np.rint(rng.normal(0.0, 12.0, sizes)).astype(np.int64)
            for place, seed in enumerate((by[0], by[-1])):
                sketch = CountSketch(spec(seed, *sizes), 0)
                sketch.add(DOMAIN.ids(0, 1000), counts)
                sketch.counters += noise
                sketch.num_clients = clients
                found = JointDecoder([sketch], DOMAIN).range(1, 1000)
                errors[campaign, place] = np.abs(found - counts).max()
        better.append(errors[:, 0].mean() < errors[:, 1].mean())
    assert all(better)


# ---- who asks for it ----


def least_uneven(of, domain):
    return min(draws(FIRST), key=lambda seed: unevenness(replace(of, seed=seed), domain))


@pytest.fixture
def drawn(monkeypatch):
    """The operating system draws `FIRST` as the seed of hashes."""
    monkeypatch.setattr("fedtally.simulation.randomness.secrets.token_bytes", lambda size: FIRST)


def planned(path, *more):
    """Return a plan of `fedtally plan`, of few counters."""
    asked = ["--clients", "20000", "--domain-size", "100", "--rounds", "2", "--max-bytes", "60"]
    asked += ["--like", "zipf:a=1.1,d=100", "--encoding", "sketch", "--quiet"]
    assert run(["plan", *asked, *more, "--output", str(path)]) == 0
    return Plan.load(path)


@pytest.mark.usefixtures("drawn")
def test_plan_draws_it_unless_a_seed_is_given(tmp_path):
    plan = planned(tmp_path / "drawn.toml")
    assert plan.seed == least_uneven(plan.spec, IntegerRange(1, 100)) != FIRST
    given = planned(tmp_path / "given.toml", "--seed", "mine")
    assert given.seed == campaign_seed("mine")
    assert replace(given, seed=plan.seed) == plan


@pytest.mark.usefixtures("drawn")
def test_estimate_draws_it_whatever_clients_hold():
    asked = {"domain": "range:1..1000", "rows": 5, "width": 12, "encoding": "sketch"}
    one, other = (fedtally.estimate(items, **asked).plan for items in ([3] * 50, [7, 8] * 25))
    assert one.seed == other.seed == even() != FIRST
    assert fedtally.estimate([3] * 50, **asked, seed=1).plan.seed == campaign_seed(1)
    # where the candidates are what clients hold, the draw stays
    asked["domain"] = "input"
    assert fedtally.estimate(range(500), **asked).plan.seed == FIRST
