"""Histograms: a counter for each candidate, beside sketches. Counts, noise, intervals, choice."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import fedtally
from fedtally.answer import screen, sections
from fedtally.answer.answer import Answer
from fedtally.answer.result import Result
from fedtally.base.encoding import Encoding
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.server import FrequencyServer, RejectedSumError, check_plausible
from fedtally.cli import app
from fedtally.crypto.keys import Secret
from fedtally.domain import Dictionary, Domain, Grid, IntegerRange, OpenStrings
from fedtally.errors import IncompatibleError, InvalidInputError
from fedtally.plan import Plan, Target, encodings
from fedtally.plan.design import DEFAULT_MAX_BYTES, Design
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.proposal import Proposal, neighbours_of, propose
from fedtally.plan.request import Request
from fedtally.plan.search import for_bytes, reaches
from fedtally.plan.silos import Silos
from fedtally.plan.ways import smallest_or_ways
from fedtally.privacy import accounting, guarantee_text
from fedtally.privacy.config import propose as propose_privacy
from fedtally.privacy.events import Event, NoiseBy
from fedtally.privacy.geometric import Geometric, variance_of
from fedtally.recovery.decoders.direct import DirectDecoder, DirectIntervals
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.decoding import Decoding
from fedtally.recovery.intervals import make_intervals
from fedtally.recovery.noise_law import NoiseLaw
from fedtally.secagg.config import TwoServerConfig, check_terms, with_proofs
from fedtally.secagg.params import modulus_bits
from fedtally.sketch import CountSketch, SketchSpec
from fedtally.store import Ledger
from fedtally.studies import audit

SEED = bytes(range(32))
# all kinds of domains whose candidates follow each other, one of them across 0
DOMAINS = [
    IntegerRange(-3, 5),
    IntegerRange(7, 7),
    Dictionary(["tea", "milk", "juice"]),
    Grid(0.0, 2.0, 0.0, 3.0, 1.0),
]


def plan_of(domain: Any = DOMAINS[0], **changed: Any) -> Plan:
    given: dict[str, Any] = {
        "rows": 1,
        "width": domain.size if isinstance(domain, Domain) else domain["size"],
        "schedule": "shared",
        "num_rounds": 1,
        "num_clients": 200,
        "max_round_clients": 200,
        "domain": domain.describe() if isinstance(domain, Domain) else domain,
        "max_items": 1,
        "seed": SEED,
        "encoding": "histogram",
    }
    return Plan(**(given | changed))


def sum_of(plan: Plan, domain: Any, counts: Any, round: int = 0) -> CountSketch:
    sketch = CountSketch(plan.spec, round)
    ids = domain.ids(0, domain.size)
    sketch.add(ids, np.asarray(counts, np.int64))
    return sketch


# ---- what items become ----


@pytest.mark.parametrize("domain", DOMAINS, ids=str)
def test_item_i_is_counter_i(domain: Any) -> None:
    plan, counts = plan_of(domain), np.arange(1, domain.size + 1)
    sketch = sum_of(plan, domain, counts)
    assert sketch.counters.tolist() == [counts.tolist()]
    whole = CountSketch(plan.spec, 0)
    whole.add_range(plan.spec.first_id or 0, counts)
    assert np.array_equal(whole.vector, sketch.vector)
    result = Result(plan, domain, [sketch])
    assert result.recovery == "direct"
    labels = domain.labels(np.arange(domain.size))
    total = counts.sum()
    for label, count in zip(labels, counts.tolist(), strict=True):
        [found] = result.estimates([label])
        assert found.count == count
        # exact: no width but the slack for rounding
        assert found.low == pytest.approx(count / total, abs=2e-12)
        assert found.high == pytest.approx(count / total, abs=2e-12)


@settings(max_examples=30)
@given(st.lists(st.integers(-3, 5), max_size=30), st.integers(0, 3))
def test_sums_of_clients_are_counts(items: list[int], more: int) -> None:
    domain = DOMAINS[0]
    plan, total = plan_of(num_rounds=2, num_clients=400), CountSketch(plan_of().spec, 0)
    total = CountSketch(plan.spec, more % 2)
    for item in items:
        one = CountSketch(plan.spec, more % 2)
        one.vector = FrequencyClient(plan, domain, [item]).contribution(more % 2)
        one.num_clients = 1
        total.merge(one)
    assert total.vector.tolist() == [items.count(item) for item in range(-3, 6)]


def test_an_id_of_no_candidate_is_refused_and_changes_nothing() -> None:
    sketch = CountSketch(plan_of().spec, 0)
    for wrong in (6, 2**64 - 4):  # one beyond the last, one before the first
        with pytest.raises(InvalidInputError, match="belong to none"):
            sketch.add(np.array([0, wrong], np.uint64))
    assert not sketch.vector.any() and not sketch.num_clients


@pytest.mark.parametrize("counts", [[5], [1, 2], [[1, 2, 3]]])
def test_a_histogram_takes_one_count_for_each_id_and_changes_nothing_otherwise(
    counts: list[Any],
) -> None:
    sketch = CountSketch(plan_of().spec, 0)
    with pytest.raises(InvalidInputError, match=r"counts must be .*int64"):
        sketch.add(np.arange(3, dtype=np.uint64), np.array(counts, np.int64))
    assert not sketch.vector.any() and not sketch.num_clients


def test_a_saved_histogram_reads_back(tmp_path: Any) -> None:
    sketch = sum_of(plan_of(), DOMAINS[0], range(9))
    sketch.save(tmp_path / "sum")
    found = CountSketch.load(tmp_path / "sum")
    assert found.spec == sketch.spec and np.array_equal(found.vector, sketch.vector)
    other = CountSketch(replace(sketch.spec, first_id=0), 0)
    with pytest.raises(IncompatibleError, match="first_id"):
        sketch.merge(other)


def test_sketches_decode_no_histogram_and_the_other_way_round() -> None:
    sketch = sum_of(plan_of(), DOMAINS[0], range(9))
    with pytest.raises(InvalidInputError, match="recovery='median' is for a sketch"):
        MedianDecoder([sketch])
    with pytest.raises(InvalidInputError, match="at least 3 rows"):
        JointDecoder([sketch], DOMAINS[0])
    own = CountSketch(SketchSpec(1, 9, "shared", 1, SEED), 0)
    with pytest.raises(InvalidInputError, match="reads histograms"):
        DirectDecoder([own])
    with pytest.raises(InvalidInputError, match="recovery='joint' is for a sketch"):
        Result(plan_of(), DOMAINS[0], [sketch], decoding=Decoding("joint"))


# ---- the plan ----


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rows": 2}, "rows must be 1"),
        ({"width": 8}, "width must be the number of candidates"),
        ({"schedule": "hybrid"}, "schedule must be shared"),
        ({"domain": {"kind": "strings", "size": 9, "public": False}}, "kind strings"),
        ({"domain": {"kind": "range", "size": 9, "public": True}}, "domain.first"),
        (
            {"domain": {"kind": "grid", "size": 9, "public": True, "first": 0}},
            "domain.first is for a range, got the kind 'grid'",
        ),
        (
            {"domain": {"kind": "range", "size": 2**24 + 1, "first": 0, "public": True}},
            "a counter for each candidate, at most 16,777,216",
        ),
        ({"target": Target(0.1, 0.1, "joint")}, "recovery='joint' is for a sketch"),
    ],
)
def test_plans_that_are_no_histograms_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        plan_of(changed.pop("domain", DOMAINS[0]), **changed)


def test_a_plan_says_its_encoding_in_one_form() -> None:
    plan = plan_of()
    assert Plan.from_toml(plan.to_toml()) == plan and plan.to_dict()["encoding"] == "histogram"
    sketch = plan_of(encoding="sketch", rows=3)
    assert "encoding" not in sketch.to_dict()  # plans from before keep their fingerprints
    with pytest.raises(InvalidInputError, match="leave the entry out for a sketch"):
        Plan.from_dict(sketch.to_dict() | {"encoding": "sketch"})


def test_an_open_domain_has_no_histogram() -> None:
    with pytest.raises(InvalidInputError, match="domain='open' is not for a histogram"):
        Request(domain="open", encoding="histogram").resolve()
    assert Request(domain=OpenStrings()).resolve().size.encoding is Encoding.SKETCH


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", 5), ("width", 9), ("schedule", "hybrid")],
)
def test_what_belongs_to_sketches_rules_a_histogram_out(name: str, value: Any) -> None:
    given: dict[str, Any] = {name: value}
    assert Request(**given).resolve().size.encoding is Encoding.SKETCH
    with pytest.raises(InvalidInputError, match="is not for a histogram") as caught:
        Request(**given, encoding="histogram").resolve()
    assert caught.value.option == name


def test_a_decoder_names_its_encoding() -> None:
    assert Request(recovery="median").resolve().size.encoding is Encoding.SKETCH
    assert Request(recovery="direct").resolve().size.encoding is Encoding.HISTOGRAM
    assert Request().resolve().size.encoding is None
    with pytest.raises(InvalidInputError, match="recovery='direct' goes with a histogram: leave"):
        Request(recovery="direct", encoding="sketch").resolve()
    with pytest.raises(InvalidInputError, match="a plan already says encoding="):
        Request(plan=plan_of(), encoding="histogram").resolve()


# ---- privacy ----


def farthest(relation: str, candidates: int, items: int, rounds: int) -> tuple[float, list[int]]:
    """Return the largest squared distance of neighbours' sums of some rounds, and its shifts.

    All contributions of a client are tried.
    """
    sets = [np.array(bits) for bits in product((0, 1), repeat=candidates) if sum(bits) <= items]
    one = [sum(chosen) for chosen in product(sets, repeat=rounds)]
    others = one if relation == "replace-one" else [np.zeros(candidates, np.int64)]
    best = max((a - b for a in one for b in others), key=lambda d: int(d @ d))
    more = rounds**2 if relation == "add-remove" else 0  # the number of clients
    shifts = sorted(np.abs(best[best != 0]).tolist())
    return float(best @ best) + more, shifts + [rounds] * (more > 0)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one", "add-remove"])
@pytest.mark.parametrize("items", [1, 2])
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_distance_is_that_of_the_worst_client(relation: str, items: int, rounds: int) -> None:
    square, shifts = farthest(relation, 4, items, rounds)
    event = Event(
        "rounded-gaussian",
        rows=1,
        relation=relation,
        max_items=items,
        participations=rounds,
        per_release=rounds,
        encoding="histogram",
    )
    assert event.l2_sensitivity**2 == pytest.approx(square)
    assert sorted(event.shifts.elements()) == sorted(shifts)


def test_an_event_of_a_histogram_is_no_event_of_a_sketch() -> None:
    event = Event("rounded-gaussian", 1, "replace-one", max_items=3, encoding="histogram")
    assert Event.from_dict(event.to_dict()) == event
    assert "encoding" not in replace(event, encoding="sketch").to_dict()
    for wrong in ({"rows": 2}, {"clip_norm": 3.0}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            replace(event, **wrong)
    with pytest.raises(InvalidInputError, match="leave the entry out for a sketch"):
        Event.from_dict(event.to_dict() | {"encoding": "sketch"})


def terms_of(**changed: Any) -> Any:
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "rows": 1, "width": 9}
    return propose_privacy(**(given | {"encoding": Encoding.HISTOGRAM} | changed))


def test_a_plan_refuses_an_event_of_the_other_encoding() -> None:
    terms = terms_of(relation="replace-one", max_items=4)
    assert plan_of(privacy=terms, max_items=4).privacy == terms
    # as noisy as a sketch must be: 16 counters of 1 against 8
    sketch = terms_of(relation="replace-one", max_items=4, encoding=Encoding.SKETCH)
    assert sketch.event.noise_variance > 1.9 * terms.event.noise_variance
    with pytest.raises(InvalidInputError, match=r"privacy\.event\.encoding must be that"):
        plan_of(privacy=sketch, max_items=4)


def pure(**changed: Any) -> Any:
    return terms_of(mechanism="geometric", **changed)


def test_noise_of_one_item_is_that_of_its_sensitivity() -> None:
    # the analytic Gaussian mechanism: 4.2247 at epsilon 1 and delta 1e-6 (Balle and Wang 2018)
    terms = terms_of(delta=1e-6)
    assert terms.stddev == pytest.approx(4.2247, rel=2e-3)
    assert terms.guarantee.epsilon <= 1.0
    assert accounting.epsilon(terms.event, 1e-6).epsilon == pytest.approx(1.0, rel=1e-3)
    several = terms_of(max_items=9)
    assert several.stddev / terms.stddev == pytest.approx(3.0, rel=2e-3)


@pytest.mark.parametrize(
    ("mechanism", "rounding", "kurtosis"),
    [("rounded-gaussian", 1 / 12, 3.0), ("geometric", 0, 6.6)],
)
def test_released_sums_have_the_noise_of_the_plan(
    mechanism: str, rounding: float, kurtosis: float
) -> None:
    """Twenty thousand counters: their variance is within 5 standard errors of its estimate.

    These are sqrt((kurtosis - 1) / n) of it: 3 for a normal distribution. For geometric noise of
    rate 1 it is 6 + 1 / variance.
    """
    domain = IntegerRange(1, 20_000)
    terms = terms_of(width=domain.size, mechanism=mechanism)
    plan = plan_of(domain, privacy=terms)
    server, sketch = FrequencyServer(plan, MemoryBooks()), CountSketch(plan.spec, 0)
    sketch.add(domain.encode([5] * 100))
    server.land_plain(sketch)
    draws = np.random.default_rng(7)
    [found] = server.release(draws.bytes)
    noise = found.counters[0].copy()
    noise[4] -= 100
    expected = terms.event.noise_variance + rounding
    error = math.sqrt((kurtosis - 1) / len(noise))
    assert float(np.mean(noise**2)) == pytest.approx(expected, rel=5 * error)
    assert plan.privacy == Plan.from_toml(plan.to_toml()).privacy


# ---- the modulus of a sum ----


@settings(max_examples=50)
@given(st.integers(6, 300), st.integers(0, 400), st.sampled_from(["none", "proofs"]))
@example(7, 0, "none")
@example(8, 0, "none")
@example(255, 0, "none")
@example(6, 2**16 // 3, "proofs")
def test_a_sum_is_read_right_at_both_bounds(clients: int, noise: int, validity: str) -> None:
    """With the fewest bits that a plan may have, of which a sketch needs more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "noise_bound", noise)
        bits = modulus_bits(clients, 1, noise, multiple=1, signed=False)
        terms = TwoServerConfig(
            length=9, bits=bits, n_max=clients, min_batch=6, corrupt=1, noise=noise
        )
        if validity == "proofs":
            terms = with_proofs(terms, signed=False)
        given: dict[str, Any] = {"num_clients": clients, "max_round_clients": clients}
        plan = plan_of(secure_sum=terms, **given)
        modulus = terms.modulus
        ends = np.array([-noise, 0, clients, clients + noise])
        around_0 = (ends + modulus // 2) % modulus - modulus // 2
        assert plan.read_sum(around_0).tolist() == ends.tolist()
        assert plan.read_sum(ends).tolist() == ends.tolist()  # of a server that has read them
        if validity == "none":
            with pytest.raises(InvalidInputError, match=f"bits must be at least {bits}"):
                replace(plan, secure_sum=replace(terms, bits=bits - 1))
        # a sketch of as many counters needs a bit more, or where noise is most of it no bit more
        sketch: dict[str, Any] = {"encoding": "sketch", "width": 3, "rows": 3}
        if modulus <= 2 * (clients + noise):
            with pytest.raises(InvalidInputError, match="bits must be"):
                replace(plan, **sketch)


def test_terms_leave_room_to_fold_exact_sums_and_for_sums_of_their_sign() -> None:
    bare = TwoServerConfig(length=9, bits=4, n_max=9, min_batch=6, corrupt=1)
    fits: dict[str, Any] = {"counters": 9, "largest_entry": 1, "most": 9, "noise": 0, "items": 1}
    check_terms(bare, **fits, folds=False, signed=False)
    check_terms(replace(bare, n_max=8), **fits, folds=True, signed=False)
    with pytest.raises(InvalidInputError, match="be at least 18, 2 times the largest honest"):
        check_terms(bare, **fits, folds=True, signed=False)
    # these sums of sketches fit 16 bits, and not the field of 16 bits
    proven = with_proofs(replace(bare, n_max=32_257, bits=17), signed=False)
    most = {"most": 32_257}
    check_terms(proven, **(fits | most), folds=False, signed=False)
    with pytest.raises(InvalidInputError, match="bits must be 24 or 32 for proofs"):
        check_terms(proven, **(fits | most), folds=False, signed=True)


def test_a_histogram_of_one_client_has_a_bit_a_counter() -> None:
    found = encodings.histogram(design_of(80, 1), 10)
    assert found is not None and found.bytes_per_client == 10
    assert encodings.histogram(design_of(81, 1), 10) is None


def test_a_lie_below_0_is_no_count() -> None:
    """Where the modulus is full, -1 is read as the largest count.

    No clients of one item each have such a row.
    """
    terms = TwoServerConfig(length=9, bits=3, n_max=7, min_batch=6, corrupt=1)
    plan = plan_of(num_clients=7, max_round_clients=7, secure_sum=terms)
    server, counts = FrequencyServer(plan), np.array([4, 3, 0, 0, 0, 0, 0, 0, 0])
    assert server._sketch(0, counts, 7).vector.tolist() == counts.tolist()
    with pytest.raises(RejectedSumError, match="add up to 14"):
        server._sketch(0, counts - np.eye(9, dtype=np.int64)[2], 7)


@pytest.mark.parametrize("clients", [128, 255, 256])
def test_a_secure_sum_of_histograms_takes_no_byte_for_a_sign(clients: int) -> None:
    def bits_of(**asked: Any) -> int:
        spec = Request(secure_sum="secagg", **asked).resolve()
        design = Design.for_fleet(spec, IntegerRange(1, 14), clients, SEED)
        return for_bytes(design).plan().modulus_bits

    # a cohort of secagg: no round is larger
    assert bits_of(encoding="sketch") == 16
    assert bits_of(encoding="histogram") == (8 if clients < 256 else 16)


# ---- what a server takes ----


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        ([3, 0, 0, 0, 0, 0, 0, 0, 0], "a counter of the sum is 3"),
        ([1, 1, 1, 0, 0, 0, 0, 0, 0], "add up to 3"),
        ([1, -1, 0, 0, 0, 0, 0, 0, 0], "below 0"),
    ],
)
def test_sums_that_no_clients_have_are_refused(counters: list[int], said: str) -> None:
    sketch = CountSketch(plan_of().spec, 0)
    sketch.vector, sketch.num_clients = np.array(counters, np.int64), 2
    with pytest.raises(RejectedSumError, match=said):
        check_plausible(sketch, plan_of())


def test_only_noise_takes_a_count_below_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Honest noise goes beyond its bound with 2^-40 (Plan.noise_bound): what does so is a lie."""
    monkeypatch.setattr(Plan, "noise_bound", 5)
    monkeypatch.setattr(Plan, "row_noise_bound", lambda *_: 100)
    sketch = CountSketch(plan_of().spec, 0)
    sketch.vector, sketch.num_clients = np.array([2, -5, 0, 0, 0, 0, 0, 0, 0]), 2
    check_plausible(sketch, plan_of())
    sketch.vector[1] = -6
    with pytest.raises(RejectedSumError, match="is -6, below -5, .* a histogram but their noise"):
        check_plausible(sketch, plan_of())


def test_a_sum_with_clients_of_no_item_is_taken() -> None:
    plan = plan_of(max_items=2)
    sketch = CountSketch(plan.spec, 0)
    sketch.vector, sketch.num_clients = np.array([2, 1, 0, 0, 0, 0, 0, 0, 0]), 2
    check_plausible(sketch, plan)
    sketch.vector[0] = 3  # two clients of two items each have no item three times
    with pytest.raises(RejectedSumError, match="a counter of the sum is 3"):
        check_plausible(sketch, plan)


# ---- intervals ----


@cache
def laws() -> dict[str, tuple[NoiseLaw, Any]]:
    """Return distributions of noise, and functions that draw from them."""
    sums = [CountSketch(plan_of().spec, 0) for _ in range(3)]
    for sketch in sums:
        sketch.num_clients = 100
    gaussian, two_sided = terms_of(), pure()
    shares = terms_of(trust="distributed", honest_survivors=60, most_clients=100)
    servers = terms_of(trust="distributed")

    def draws(noise: Any, number: int, rng: np.random.Generator, size: int) -> Any:
        from fedtally.crypto.keys import Secret

        return sum(noise.draw(Secret(rng.bytes(32)), size) for _ in range(number))

    return {
        "aggregator": (NoiseLaw.of(gaussian, sums), lambda r, n: draws(gaussian.noise(), 3, r, n)),
        "geometric": (NoiseLaw.of(two_sided, sums), lambda r, n: draws(two_sided.noise(), 3, r, n)),
        "one": (NoiseLaw.of(two_sided, sums[:1]), lambda r, n: draws(two_sided.noise(), 1, r, n)),
        "clients": (NoiseLaw.of(shares, sums), lambda r, n: draws(shares.share(100), 3, r, n)),
        "servers": (NoiseLaw.of(servers, sums), lambda r, n: draws(servers.noise(), 6, r, n)),
    }


@pytest.mark.parametrize("name", ["aggregator", "geometric", "one", "clients", "servers"])
def test_the_law_is_that_of_what_is_drawn(name: str) -> None:
    """Frequencies of 100,000 draws: each within 5 standard errors of the law's probability."""
    (law, draw), number = laws()[name], 100_000
    sizes = np.abs(draw(np.random.default_rng(3), number))
    for size in (0, 3, 10, 25, round(2.5 * law.stddev)):
        expected = float(law.exceeded(size))
        error = 5 * math.sqrt(expected * (1 - expected) / number) + 5 / number
        assert abs(float(np.mean(sizes > size)) - expected) < error, size
    for confidence in (0.5, 0.95, 0.999):
        half = law.half(1 - confidence)
        # the least size that suffices
        assert float(law.exceeded(half)) <= 1 - confidence < float(law.exceeded(half - 1))


def test_a_wide_law_is_the_normal_one_that_tables_tend_to() -> None:
    sketch = CountSketch(plan_of().spec, 0)
    sketch.num_clients = 10
    many = replace(terms_of(), event=replace(terms_of().event, variance=2.0**28))
    wide = NoiseLaw.of(many, [sketch] * 64)
    assert wide.beyond is None
    assert wide.half(0.05) == pytest.approx(1.959964 * wide.stddev, rel=1e-4)
    many = replace(pure(), event=replace(pure().event, variance=2.0**28))
    assert NoiseLaw.of(many, [sketch] * 64).half(0.05) == wide.half(0.05)
    assert NoiseLaw.of(pure(), []).half(0.05) == 0
    shares = NoiseLaw.of(None, [])
    assert (shares.half(0.01), float(shares.exceeded(0))) == (0, 0.0)


@pytest.mark.parametrize("mechanism", ["rounded-gaussian", "geometric"])
@pytest.mark.parametrize("kind", ["pointwise", "simultaneous", "auto"])
def test_intervals_cover_as_often_as_they_say(kind: str, mechanism: str) -> None:
    """In 400 repeats of 9 counters; bounds are 5 standard errors of a share of so many."""
    domain, terms = DOMAINS[0], terms_of(mechanism=mechanism)
    plan = plan_of(privacy=terms)
    counts, rng = np.array([40, 30, 20, 10, 0, 0, 0, 0, 100]), np.random.default_rng(11)
    hits = []
    for _ in range(400):
        server, exact = FrequencyServer(plan, MemoryBooks()), sum_of(plan, domain, counts)
        server.land_plain(exact)
        [noised] = server.release(rng.bytes)
        decoder = DirectDecoder([noised], NoiseLaw.of(terms, [noised]))
        made = make_intervals(decoder, [noised], domain, 0.9, kind)
        ids = domain.ids(0, 9)
        low, high = made.at(ids)
        truth = counts / 200
        inside = (low <= truth) & (truth <= high)
        if kind == "auto":  # the three largest, chosen by their estimates
            values = decoder.at(ids)
            best = np.argsort(-values)[:3]
            low, high = made.listed(ids[best], float(np.sort(values)[-4]) / 200)
            assert (low <= made.at(ids[best]).low + 1e-9).all()
            inside = (low <= truth[best]) & (truth[best] <= high)
        hits.append(inside.all() if kind == "simultaneous" else inside.mean())
    found = float(np.mean(hits))
    error = 5 * math.sqrt(0.9 * 0.1 / (400 * (1 if kind == "simultaneous" else 3)))
    assert found > 0.9 - error
    if kind == "pointwise":  # integers: at most one step of the noise more than is asked for
        half = NoiseLaw.of(terms, [exact]).half(0.1)
        assert found < 1 - float(NoiseLaw.of(terms, [exact]).exceeded(half)) + error


def test_exact_counts_have_nothing_to_explain() -> None:
    sketch = sum_of(plan_of(), DOMAINS[0], range(9))
    made = DirectIntervals(DirectDecoder([sketch]), 9, 0.95, "simultaneous")
    assert (made.about, made.half, made.predicted_linf) == ("", 0.0, 0.0)


def test_counts_of_nobody_have_no_intervals() -> None:
    domain = IntegerRange(7, 9)
    empty = CountSketch(SketchSpec(1, 3, "shared", 1, SEED, first_id=domain.first_id), 0)
    decoder = DirectDecoder([empty])
    assert decoder.range(domain.first_id, 3).tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(InvalidInputError, match="num_clients must be at least 1, got 0"):
        make_intervals(decoder, [empty], domain)


def test_shrinkage_knows_the_noise_of_the_plan() -> None:
    domain = IntegerRange(1, 2000)
    terms = propose_privacy(
        epsilon=1.0, delta=1e-6, rows=1, width=2000, encoding=Encoding.HISTOGRAM
    )
    plan = plan_of(domain, privacy=terms)
    counts = np.zeros(2000, np.int64)
    counts[:2] = 100
    server = FrequencyServer(plan, MemoryBooks())
    server.land_plain(sum_of(plan, domain, counts))
    result = Result(plan, domain, server.release(np.random.default_rng(1).bytes))
    plain, shrunk = (
        float(np.sum((found.decoder.range(1, 2000) - counts) ** 2))
        for found in (result, result.decoded(objective="l2"))
    )
    assert shrunk < plain / 4


# ---- what a request gets ----


def proposal_of(size: int, clients: int = 100_000, **asked: Any) -> Proposal:
    spec = Request(num_rounds=1, **asked).resolve()
    return propose(spec, IntegerRange(1, size), clients, Frequencies.assumed(size), seed=SEED)


def test_few_candidates_get_a_histogram_of_few_bytes() -> None:
    found = proposal_of(14)
    assert found.plan.is_histogram and found.plan.bytes_per_client == 30  # 17 bits a counter
    assert (found.linf, found.target.recovery) == (0.0, "direct")
    # sketches stand beside it for comparison
    assert found.neighbours and not any(other.is_histogram for other, _ in found.neighbours)


def test_sketches_beside_a_histogram_are_for_any_frequencies_as_it_is() -> None:
    """Its target holds for any, so one picture shows the errors of sketches for any, too."""
    found = proposal_of(200)
    assert found.target.frequencies == "any"
    hardest = propose(Request(num_rounds=1).resolve(), IntegerRange(1, 200), 100_000, seed=SEED)
    assert [error for _, error in found.neighbours] == [error for _, error in hardest.neighbours]
    # frequencies that are easier would say less
    easier = neighbours_of(found.design, found.plan, Frequencies.assumed(200))
    assert all(ours[1] > theirs[1] for ours, theirs in zip(found.neighbours, easier, strict=True))


def test_a_histogram_that_is_larger_and_no_better_is_not_taken() -> None:
    assert not proposal_of(10_000, max_bytes=2000).plan.is_histogram
    assert not proposal_of(200_000).plan.is_histogram
    # noise hides collisions: the histogram costs a tenth more, and its error is 2 % smaller
    asked = {"epsilon": 0.5, "mechanism": "rounded-gaussian"}
    assert not proposal_of(20_000, 10_000, **asked).plan.is_histogram
    # geometric noise hides less
    assert proposal_of(20_000, 10_000, epsilon=0.5).plan.is_histogram


def test_a_histogram_that_is_worth_its_bytes_is_taken() -> None:
    """At epsilon 1 a histogram of 20,000 is a third larger than 32 kB, and more accurate."""
    found = proposal_of(20_000, epsilon=1.0)
    assert found.plan.is_histogram
    assert DEFAULT_MAX_BYTES < found.plan.bytes_per_client < 1.5 * DEFAULT_MAX_BYTES
    sketch = proposal_of(20_000, epsilon=1.0, encoding="sketch")
    assert not sketch.plan.is_histogram
    gain = sketch.linf / found.linf
    assert gain**2 > found.plan.bytes_per_client / sketch.plan.bytes_per_client
    # with a budget of one's own nothing larger comes
    assert not proposal_of(20_000, epsilon=1.0, max_bytes=32_000).plan.is_histogram


def design_of(size: int, clients: int = 100_000, **asked: Any) -> Design:
    return Design.for_fleet(
        Request(num_rounds=1, **asked).resolve(), IntegerRange(1, size), clients, SEED
    )


def test_a_target_gets_the_cheaper_of_the_two() -> None:
    found = {}
    for size in (14, 3000):
        design = design_of(size, tau=0.05)
        sized = smallest_or_ways(design, Frequencies.assumed(size), with_linf=False)
        found[size] = sized.chosen.encoding
    assert found == {14: "histogram", 3000: "sketch"}


def test_a_histogram_by_name_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="max_bytes must be at least"):
        proposal_of(3000, encoding="histogram", max_bytes=100)
    design = design_of(14, 1000, encoding="histogram", tau=1e-3, max_bytes=10)
    with pytest.raises(InvalidInputError, match="cannot be met with 1,000 clients within"):
        smallest_or_ways(design, Frequencies.assumed(14))
    with pytest.raises(InvalidInputError, match="candidates of kind strings"):
        fedtally.estimate(["tea", "milk"], encoding="histogram")


@pytest.mark.parametrize("encoding", ["auto", "histogram"])
def test_an_epsilon_at_which_a_histogram_meets_a_target_is_enough(encoding: str) -> None:
    """The largest of 14 counters errs by 2.7 standard deviations in a twentieth of campaigns."""
    asked = {"tau": 0.001, "max_bytes": 1000, "encoding": encoding}
    found = {
        epsilon: reaches(design_of(14, 10_000, epsilon=epsilon, **asked), Frequencies.assumed(14))
        for epsilon in (0.5, 4.0)
    }
    assert found == {0.5: False, 4.0: True}


def test_two_servers_take_a_histogram_where_they_can() -> None:
    spec = Request(num_rounds=2, secure_sum="two-server", epsilon=1.0).resolve()
    design = Design.for_fleet(spec, IntegerRange(1, 14), 2000, SEED)
    plan = for_bytes(design).plan()
    assert plan.is_histogram and len(plan.releases) == 1


# ---- campaigns ----

ITEMS = np.random.default_rng(5).choice(14, 400, p=np.arange(14, 0, -1.0) / 105) + 1


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"num_rounds": 3},
        {"secure_sum": "secagg", "num_rounds": 2, "dropout": 0.05, "max_cohort": 100},
        {"secure_sum": "secagg", "adversary": "active"},
        {"secure_sum": "two-server"},
    ],
    ids=str,
)
def test_a_campaign_without_privacy_is_exact(asked: dict[str, Any]) -> None:
    items = ITEMS[:60] if asked.get("adversary") == "active" else ITEMS
    result = fedtally.estimate(items, domain="range:1..14", evaluate=True, seed=2, **asked)
    assert result.plan.is_histogram and result.evaluation is not None
    assert result.evaluation.linf == pytest.approx(0.0, abs=1e-12)
    [first, *_] = result.top(14)
    assert first.low == pytest.approx(first.high, abs=1e-11)


def test_a_modulus_holds_the_sum_of_each_cohort_and_not_of_all() -> None:
    result = fedtally.estimate(
        [14] * 256, domain="range:1..14", secure_sum="secagg", max_cohort=128, seed=1
    )
    assert result.plan.is_histogram and result.plan.modulus_bits == 8
    assert result.secure_sum["equals_plain_sum"] is True
    assert result.top(1)[0].count == 256


@pytest.mark.parametrize(
    "asked",
    [
        {"num_rounds": 3},
        {"neighbours": "replace-one"},
        {"neighbours": "add-remove", "max_clients": 2000},
        {"secure_sum": "secagg", "num_rounds": 2, "dropout": 0.05, "max_cohort": 200},
        {"secure_sum": "two-server", "num_rounds": 2},
    ],
    ids=str,
)
def test_a_private_campaign_errs_as_is_predicted(asked: dict[str, Any]) -> None:
    """Half of campaigns exceed the predicted largest error, and none three times that."""
    result = fedtally.estimate(
        ITEMS, domain="range:1..14", evaluate=True, seed=2, epsilon=1.0, not_private=True, **asked
    )
    assert result.plan.is_histogram and result.evaluation is not None
    assert result.intervals is not None
    assert 0 < result.evaluation.linf < 3 * result.intervals.predicted_linf
    # what is drawn: at most as many noises as releases, of the right kind
    assert result.plan.privacy is not None
    assert result.plan.privacy.event.encoding is Encoding.HISTOGRAM


def test_clients_of_several_items_and_people_of_silos_are_counted() -> None:
    rng = np.random.default_rng(4)
    clients = np.repeat(np.arange(300), 3)
    items = rng.integers(1, 15, len(clients))
    several = fedtally.estimate(
        items, clients=clients, domain="range:1..14", max_items=3, evaluate=True, seed=1
    )
    assert several.plan.is_histogram and several.plan.largest_entry == 1
    assert several.evaluation is not None
    assert several.evaluation.linf == pytest.approx(0.0, abs=1e-12)
    silos = fedtally.estimate(
        items, clients=clients, silos=clients % 5, domain="range:1..14", evaluate=True, seed=1
    )
    assert silos.plan.is_histogram and silos.plan.is_of_silos
    assert silos.evaluation is not None
    assert silos.evaluation.linf == pytest.approx(0.0, abs=1e-12)


def test_a_target_that_a_histogram_meets_needs_no_pilot() -> None:
    result = fedtally.estimate(ITEMS, domain="range:1..14", tau=0.01, seed=1)
    assert result.plan.is_histogram and result.num_clients == len(ITEMS)
    assert result.sizing is not None and result.sizing["pilot"] is None
    assert result.sizing["sizing"] == "histogram"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "geometric"),
        ({"delta": 4e-4}, "geometric"),
        ({"delta": 0}, "geometric"),
        ({"neighbours": "replace-one"}, "geometric"),
        ({"neighbours": "add-remove", "max_clients": 200_000}, "geometric"),
        ({"mechanism": "rounded-gaussian"}, "rounded-gaussian"),
        ({"mechanism": "auto", "epsilon": 4.0}, "geometric"),
        # one per cent of the campaigns may tell everything: little noise does
        ({"delta": 0.009, "neighbours": "replace-one", "epsilon": 0.1}, "rounded-gaussian"),
        # in proportion to their number, and to its root
        ({"max_items": 10}, "rounded-gaussian"),
        ({"max_items": 10, "mechanism": "geometric"}, "geometric"),
        ({"secure_sum": "two-server"}, "rounded-gaussian"),
        ({"secure_sum": "secagg"}, "skellam"),
        ({"secure_sum": "secagg", "trust": "central"}, "geometric"),
    ],
    ids=str,
)
def test_the_noise_with_the_smaller_error_is_taken(asked: dict[str, Any], expected: str) -> None:
    clients = 100 if asked.get("delta") == 0.009 else 2000

    def histogram(**changed: Any) -> Design:
        given: dict[str, Any] = {"epsilon": 1.0, "encoding": "histogram"}
        found = encodings.histogram(design_of(50, clients, **(given | asked | changed)))
        assert found is not None
        return found

    found = histogram()
    terms = found.plan().privacy
    assert terms is not None and str(terms.event.mechanism) == expected
    assert (terms.delta == 0) == (expected == "geometric")
    if terms.noised_by is NoiseBy.AGGREGATOR and asked.get("mechanism", "auto") == "auto":
        delta = asked.get("delta") or None
        both = [
            histogram(mechanism=name, delta=delta).linf for name in NoiseBy.AGGREGATOR.mechanisms
        ]
        assert found.linf == min(both) and both[0] != both[1]


def test_the_predicted_error_is_that_of_the_tails() -> None:
    """Exceeded as often as is said: in 2,000 campaigns of 50 counters, 5 standard errors."""
    found = encodings.histogram(design_of(50, 2000, epsilon=1.0))
    assert found is not None
    terms = found.plan().privacy
    assert terms is not None
    noise = terms.noise().draw(Secret(bytes(range(32))), 2000 * 50)
    largest = np.abs(noise).reshape(2000, 50).max(axis=1)
    size, chance = round(found.linf * 2000), 0.05
    error = 5 * math.sqrt(chance * (1 - chance) / 2000)
    assert np.mean(largest > size) < chance + error
    assert np.mean(largest > size - 1) > chance - error


@pytest.mark.parametrize(
    ("clients", "size", "asked"),
    [
        (1000, 200, {"epsilon": 4.0, "trust": "distributed", "secure_sum": "secagg"}),
        (1000, 200, {"epsilon": 2.0, "trust": "distributed", "secure_sum": "secagg"}),
        (100, 60, {"epsilon": 4.0, "mechanism": "rounded-gaussian"}),
    ],
)
def test_small_noise_is_predicted_as_integers(
    clients: int, size: int, asked: dict[str, Any]
) -> None:
    """Its tails are longer than normal ones, by which two of three campaigns missed the target of
    the first case. The bound is the .9999 quantile of Binomial(2000, p).
    """
    request = Request(num_rounds=1, **asked).resolve()
    plan = propose(request, IntegerRange(1, size), clients, seed=SEED).plan
    assert plan.is_histogram and plan.target is not None and plan.privacy is not None
    terms = plan.privacy
    noise = terms.share(clients) if terms.by_clients else terms.noise()
    drawn = noise.draw(Secret(bytes(range(32))), 2000 * size).reshape(2000, size)
    missed = np.abs(drawn).max(axis=1) > plan.target.linf * clients * (1 + 1e-9)
    assert missed.sum() <= binom.ppf(0.9999, 2000, plan.target.failure_probability)


@pytest.mark.parametrize(
    ("mechanism", "expected"), [(None, "rounded-gaussian"), ("geometric", "geometric")]
)
def test_a_ledger_gets_the_noise_that_composes(
    tmp_path: Any, mechanism: str | None, expected: str
) -> None:
    books = tmp_path / "books.db"
    Ledger.open(books, create=True).grant("clients", 1.0, 1e-6, 0)
    result = fedtally.estimate(
        ITEMS, domain="range:1..14", epsilon=1.0, ledger=books, mechanism=mechanism
    )
    assert result.plan.privacy is not None
    assert str(result.plan.privacy.event.mechanism) == expected
    spent = Ledger.open(books).spent("clients")
    assert spent is not None and 0.999 < spent.epsilon <= 1.0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"mechanism": "geometric", "rows": 5}, "rows= is not for geometric noise"),
        ({"delta": 0, "schedule": "hybrid"}, "schedule= is not for geometric noise"),
        ({"delta": 0, "encoding": "sketch"}, "encoding='sketch' is not for geometric noise"),
        ({"delta": 0, "recovery": "joint"}, "recovery='joint' is not for geometric noise"),
        (
            {"delta": 0, "mechanism": "rounded-gaussian"},
            "mechanism='rounded-gaussian' goes with a delta above 0",
        ),
        ({"delta": -1.0}, "delta must be"),
        ({"delta": 0, "secure_sum": "secagg"}, "must be skellam where clients add the noise"),
        ({"delta": 0, "secure_sum": "two-server"}, "rounded-gaussian where two servers add"),
        ({"mechanism": "skellam"}, "rounded-gaussian or geometric where an aggregator adds"),
        ({"mechanism": "laplace"}, "mechanism must be rounded-gaussian, "),
        ({"mechanism": "geometric", "epsilon": None}, "mechanism= goes with epsilon="),
        ({"delta": 0, "domain": "open"}, "domain='open' is not for geometric noise"),
    ],
    ids=str,
)
def test_geometric_noise_is_refused_where_it_cannot_be(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        proposal_of(50, **({"epsilon": 1.0} | asked))


def test_silos_have_other_noise() -> None:
    silos = Silos(100)
    asked = Request(epsilon=1.0, encoding="histogram").resolve(silos=silos).privacy
    assert asked is not None and [str(one) for one in asked._mechanisms(Encoding.HISTOGRAM)] == [
        "rounded-gaussian"
    ]
    with pytest.raises(InvalidInputError, match="rounded-gaussian where clients are silos"):
        Request(epsilon=1.0, mechanism="geometric").resolve(silos=silos)


def test_what_is_said_of_geometric_noise_names_no_delta() -> None:
    plan = plan_of(privacy=pure())
    assert "(pure epsilon 1)" in sections.privacy.line(plan)
    [guarantee, noise, proof, _] = guarantee_text.sentences(plan.privacy, num_releases=1)
    assert guarantee.startswith("pure epsilon 1 if one client's items are taken away")
    assert "geometric noise (discrete Laplace) of standard deviation 1.357" in noise
    assert proof.endswith("what each counter shows at most, without a delta")
    fields = guarantee_text.fields(plan.privacy)
    assert (fields["delta"], fields["rho_delta"], fields["mechanism"]) == (0.0, 0.0, "geometric")
    assert "pure epsilon 1 (zero-out, central trust, geometric" in sections.privacy.guarantee(
        fields
    )


def test_an_audit_of_geometric_noise_sees_half_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sensitivity of one half is noise of twice the rate."""
    plan = plan_of(IntegerRange(1, 40), privacy=pure(width=40))
    assert audit.run(audit.Audit(plan, campaigns=20)).passed
    drawn = Geometric(variance_of(2.0))
    monkeypatch.setattr("fedtally.privacy.config.PrivacyConfig.noise", lambda self: drawn)
    assert not audit.run(audit.Audit(plan, campaigns=20)).passed


def test_an_audit_passes_and_sees_noise_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(
        IntegerRange(1, 40),
        privacy=propose_privacy(
            epsilon=1.0, delta=1e-6, rows=1, width=40, encoding=Encoding.HISTOGRAM
        ),
    )
    assert audit.run(audit.Audit(plan, campaigns=20)).passed
    none = SimpleNamespace(draw=lambda key, size: np.zeros(size, np.int64))
    monkeypatch.setattr("fedtally.privacy.config.PrivacyConfig.noise", lambda self: none)
    assert not audit.run(audit.Audit(plan, campaigns=2)).passed


def test_saved_results_and_merges_are_those_of_a_sketch(tmp_path: Any) -> None:
    parts = [
        fedtally.estimate(ITEMS[part::2], domain="range:1..14", seed=part, encoding="histogram")
        for part in (0, 1)
    ]
    parts[0].save(tmp_path / "part")
    loaded = Result.load(tmp_path / "part")
    assert loaded.plan == parts[0].plan and loaded.top(3) == parts[0].top(3)
    merged = Answer(parts)
    whole = fedtally.estimate(ITEMS, domain="range:1..14", seed=9)
    for mine, theirs in zip(merged.top(14), whole.top(14), strict=True):
        assert mine.count == theirs.count and mine.low == pytest.approx(theirs.low, abs=1e-11)


def test_counts_without_noise_are_whole_and_are_their_own_limits() -> None:
    assert 7 / 3000 * 3000 != 7  # so a count must not be made of its share
    held = ["Paris"] * 419 + ["Rome"] * 2574 + ["Oslo"] * 7
    result = fedtally.estimate(held, domain=["Rome", "Paris", "Lima", "Oslo"], seed=1)
    table = result.to_arrow().to_pylist()
    assert [row["count"] for row in table] == [2574.0, 419.0, 7.0, 0.0]
    for row in table:
        assert row["low"] == row["frequency"] == row["high"] == row["count"] / 3000
    other = fedtally.estimate(held[:1001], domain=["Rome", "Paris", "Lima", "Oslo"], seed=2)
    for row in Answer([result, other]).to_arrow().to_pylist():
        assert row["low"] == row["frequency"] == row["high"] == row["count"] / 4001
    for many, few in ((777, 333), (49, 13)):  # the shares of these do not add up to the counts
        parts = [
            fedtally.estimate([1] * a + [2] * b + [3] * 5, domain="range:1..3", seed=a)
            for a, b in ((many, few), (few, many // 3))
        ]
        for each in Answer(parts).estimates([1, 2, 3]):
            assert each.low == each.frequency == each.high
    top = result.top(20)
    shown = " ".join(screen.plain(screen.answer(result, top, result.estimates(["Lima"]))).split())
    assert "1 more candidate has an estimate below half a client" in shown
    assert "Error exact among these 3,000 clients; ± 1.2" in shown
    assert "± more" in shown and "± these" not in shown and "told from 0" not in shown
    details = screen.plain(screen.answer(result, top, details=True))
    assert "Intervals each count is exact" in " ".join(details.split())
    assert "more candidate" not in screen.plain(screen.answer(result, result.top(2)))
    # a count with noise is none of this
    noised = fedtally.estimate(held, domain=["Rome", "Paris", "Lima", "Oslo"], epsilon=1)
    assert not noised.is_exact and "±" in screen.plain(screen.answer(noised, noised.top(3)))


@pytest.mark.parametrize("more", [["--tau", "0.01"], ["--epsilon", "1"], []])
def test_a_plan_of_too_long_a_histogram_is_refused(more, capsys):
    sizes = ["--clients", "100000", "--domain-size", "16777217", "--encoding", "histogram"]
    assert app.run(["plan", *sizes, *more]) == 2
    said = capsys.readouterr().err
    assert re.search(r"at most 16,777,216.*, got 16,777,217: take the encoding", said)
