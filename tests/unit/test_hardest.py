"""Plans for any frequencies: the hardest ones are found, and the target holds for others, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedtally.domain import IntegerRange
from fedtally.plan.frequencies import hardest
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.predictor import Predictor, predict_linf
from fedtally.plan.proposal import Proposal, propose
from fedtally.plan.request import Request
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.sketch import CountSketch, SketchSpec

pytestmark = pytest.mark.usefixtures("errors_once")

SEED, SIZE, CLIENTS, TAU = bytes(32), 2000, 20_000, 0.01


def proposal(distribution: Frequencies | None = None, **asked: Any) -> Proposal:
    rounds = asked.pop("num_rounds", 4)
    spec = Request(num_rounds=rounds, **{"encoding": "sketch", "rows": 8} | asked).resolve()
    return propose(spec, IntegerRange(1, SIZE), CLIENTS, distribution, seed=SEED)


@pytest.fixture(scope="module")
def for_any() -> Proposal:
    return proposal(tau=TAU)


@pytest.mark.parametrize("noise", [0.0, 60.0])
@pytest.mark.parametrize("recovery", ["joint", "median"])
def test_no_plateau_is_much_harder_than_the_one_that_is_found(recovery: str, noise: float) -> None:
    predictor = Predictor(CLIENTS, "hybrid", 4, recovery, noise)

    def linf(known: Frequencies) -> float:
        return predictor.modelled_linf(known, 0.1, 8, 30)

    found = hardest.find_hardest(linf, SIZE, CLIENTS)
    tried = np.unique(np.geomspace(1, SIZE, 60).astype(int))
    others = {int(items): linf(hardest.plateau(int(items), SIZE)) for items in tried}
    # the last step of the search is 1.05; where items begin to be fitted, the error is rough
    assert max(others.values()) <= 1.1 * found.linf
    assert found.linf == linf(found.distribution)


def test_a_target_without_assumption_holds_for_every_shape(for_any: Proposal) -> None:
    plan, target = for_any.plan, for_any.target
    assert target.linf == TAU and target.frequencies == "any"
    assert for_any.linf <= TAU
    shapes = {str(items): hardest.plateau(items, SIZE) for items in (20, 50, 80, 120, 180, 400)}
    shapes |= hardest.named(SIZE)
    for name, known in shapes.items():
        error = predict_linf(plan, known, "joint", 0.1, expected=CLIENTS)
        assert error <= TAU, name


def test_more_bytes_never_predict_a_larger_error() -> None:
    """Rounds whose noise is added once may be summed first: each schedule has its own hardest."""
    errors = []
    for max_bytes in (3300, 6600):
        asked = {"num_rounds": 10, "encoding": "sketch", "rows": 10, "epsilon": 4.0}
        spec = Request(**asked, max_bytes=max_bytes).resolve()  # type: ignore[arg-type]
        found = propose(spec, IntegerRange(1, 5000), 200_000, seed=SEED)
        assert found.plan.bytes_per_client <= max_bytes
        errors.append(found.target.linf)
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 0.7 * errors[0]


def test_a_plan_for_the_median_holds_for_every_shape() -> None:
    """The first plans are for plateaus that they read without an error, and are far too small."""
    found = proposal(tau=TAU, recovery="median")
    for items in (20, 50, 80, 120, 180, 400):
        known = hardest.plateau(items, SIZE)
        assert predict_linf(found.plan, known, "median", 0.1, expected=CLIENTS) <= TAU


def test_a_plan_for_an_easy_shape_breaks_its_target_on_the_hardest(for_any: Proposal) -> None:
    easy = Frequencies.assumed(SIZE)
    found = proposal(easy, tau=TAU)
    shapes, own = found.shapes(), for_any.shapes()
    assert shapes is not None and own is not None
    assert found.plan.bytes_per_client < for_any.plan.bytes_per_client / 2
    assert shapes.hardest.linf > 2 * TAU
    assert own.hardest.linf == for_any.linf >= max(own.named.values())
    assert found.target.frequencies is None and found.usual() is None
    usual = for_any.usual()
    assert usual is not None and usual.bytes_per_client == found.plan.bytes_per_client


def test_campaigns_of_plateaus_keep_the_target(for_any: Proposal) -> None:
    """10 % of campaigns may fail: of 40, more than 9 with a probability below 0.6 %."""
    shapes = for_any.shapes()
    assert shapes is not None
    items, rng = shapes.hardest.items, np.random.default_rng(1)
    assert _failures(for_any, items, 20, rng) + _failures(for_any, items // 2, 20, rng) <= 9
    # what was planned for an easy shape fails always: the plateau is hard
    easy = proposal(Frequencies.assumed(SIZE), tau=TAU)
    assert _failures(easy, items, 5, rng) == 5


def _failures(found: Proposal, items: int, campaigns: int, rng: np.random.Generator) -> int:
    """Return how many campaigns of so many items, held equally often, exceed the target."""
    plan, failed = found.plan, 0
    for _ in range(campaigns):
        spec = SketchSpec(plan.rows, plan.width, plan.schedule, plan.num_rounds, rng.bytes(32))
        counts = rng.multinomial(CLIENTS // plan.num_rounds, [1 / items] * items, plan.num_rounds)
        sketches = [CountSketch(spec, number) for number in range(plan.num_rounds)]
        for sketch, held in zip(sketches, counts, strict=True):
            sketch.add_range(1, held)
        found_counts = JointDecoder(sketches, IntegerRange(1, SIZE)).range(1, SIZE)
        error = np.abs(found_counts - np.pad(counts.sum(axis=0), (0, SIZE - items))).max()
        failed += bool(error > TAU * CLIENTS)
    return failed


def test_bytes_without_a_target_promise_what_the_hardest_allow() -> None:
    found, easy = proposal(max_bytes=600), proposal(Frequencies.assumed(SIZE), max_bytes=600)
    shapes = found.shapes()
    assert shapes is not None and found.usual() is None
    assert found.target.frequencies == "any" and found.linf <= found.target.linf
    assert found.target.linf > max(*shapes.named.values(), easy.target.linf)


@pytest.mark.parametrize(("clients", "candidates", "most"), [(3000, 225, 150), (2000, 60, 60)])
def test_a_sketch_of_a_few_counters_promises_what_plateaus_allow(
    clients: int, candidates: int, most: int
) -> None:
    """At the very plateau that the model finds, decoding may be exact: a few more items are hard.
    What is promised holds in campaigns of these, which are tried here, and for named shapes."""
    spec = Request(max_bytes=most).resolve()
    found = propose(spec, IntegerRange(1, candidates), clients, seed=SEED)
    assert found.plan.rows * found.plan.width <= 150 and not found.plan.is_histogram
    shapes = found.shapes()
    assert shapes is not None
    worst, p = shapes.hardest, found.target.failure_probability
    for factor in (1, 1.4, 2):
        known = hardest.plateau(round(factor * worst.items), candidates)
        tried = predict_linf(found.plan, known, found.target.recovery, p, 40)
        assert tried <= found.target.linf, factor
    assert max(shapes.named.values()) < found.linf <= found.target.linf


def test_several_items_of_a_client_and_noise_are_planned_for() -> None:
    found = proposal(tau=0.05, max_items=3, epsilon=2.0)
    assert found.plan.max_items == 3 and found.linf <= 0.05
    # clients hold three items each, none of them twice
    assert float(found.distribution.frequencies @ found.distribution.numbers) == pytest.approx(3.0)
    for name, known in hardest.named(SIZE, max_items=3).items():
        assert float(known.frequencies @ known.numbers) == pytest.approx(3.0), name


def test_the_least_epsilon_is_for_any_frequencies() -> None:
    spec = Request(
        num_rounds=4, encoding="sketch", rows=8, tau=0.02, max_bytes=2000, epsilon=1.0
    ).resolve()
    asked = (spec, IntegerRange(1, SIZE), CLIENTS)
    found = propose(*asked, seed=SEED, find_epsilon=True)
    assert found.target.frequencies == "any" and found.linf <= 0.02
    assert found.plan.privacy is not None
    easy = propose(*asked, Frequencies.assumed(SIZE), seed=SEED, find_epsilon=True)
    assert easy.plan.privacy is not None
    assert easy.plan.privacy.epsilon <= found.plan.privacy.epsilon


def test_a_histogram_holds_for_any_frequencies() -> None:
    asked = {"encoding": "histogram", "rows": None, "num_rounds": 1, "tau": TAU, "epsilon": 4.0}
    for known in (None, Frequencies.assumed(SIZE)):
        found = proposal(known, **asked)
        assert found.plan.is_histogram and found.target.frequencies == "any"
        assert found.shapes() is None and found.usual() is None


@pytest.mark.parametrize("near", [1, 40, 150, 10_000])
def test_the_hardest_is_found_from_near_another_in_fewer_looks(near: int) -> None:
    """From wherever the search begins it comes to the same plateau."""
    predictor = Predictor(CLIENTS, "hybrid", 4, "joint", 60.0)
    looks: list[float] = []

    def linf(known: Frequencies) -> float:
        looks.append(float(known.numbers[0]))
        return predictor.modelled_linf(known, 0.1, 8, 30)

    everywhere = hardest.find_hardest(linf, SIZE, CLIENTS)
    of_all = len(looks)
    found = hardest.find_hardest(linf, SIZE, CLIENTS, near=near)
    assert (found.items, found.linf) == (everywhere.items, everywhere.linf)
    assert near not in (40, 150) or len(looks) - of_all < of_all
    assert len(set(looks[:of_all])) == of_all  # nothing is predicted twice


def test_a_guess_without_any_error_leads_nowhere_and_all_are_tried() -> None:
    def linf(known: Frequencies) -> float:  # an error at many items alone
        items = float(known.numbers[0])
        return max(0.0, 1 - abs(np.log(items / 1500)))

    found = hardest.find_hardest(linf, SIZE, CLIENTS, near=20)
    assert found.items == hardest.find_hardest(linf, SIZE, CLIENTS).items > 1400
