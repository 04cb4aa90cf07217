"""Details of recovery, each against a direct computation of what it claims."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.optimize
from populations import campaign
from scipy import optimize, stats

import fedtally
from fedtally import kernels
from fedtally.answer import amounts, documents, screen, sections
from fedtally.domain import IntegerRange
from fedtally.recovery import error_model, shrinkage
from fedtally.recovery.decoders.joint import joint, joint_error, joint_intervals
from fedtally.recovery.decoders.joint.joint import Fit, JointDecoder
from fedtally.recovery.decoders.joint.joint_intervals import (
    JointIntervals,
    Kappa,
    kappa_of,
    selective_limits,
)
from fedtally.recovery.decoders.median import median as medians
from fedtally.recovery.decoders.median import median_intervals
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.intervals import make_intervals
from fedtally.recovery.linear_system import Candidates, Landed
from fedtally.recovery.phantoms import generator
from fedtally.recovery.sums import Sums
from fedtally.sketch import CountSketch, Schedule, SketchSpec

SCHEDULES = ["shared", "fresh", "hybrid", "batched:2"]


ROUNDS = (3000, 200, 900, 50, 1200, 10, 7, 4000, 60, 500)


def unequal(schedule, rows=3, width=20, size=400, clients=ROUNDS, skip=(1, 8)):
    """Return landed sums of unequal rounds, two of them missing, and the counts of the items
    1..size there."""
    rng = np.random.default_rng(3)
    distribution = np.arange(1, size + 1.0) ** -1.2
    spec = SketchSpec(rows, width, Schedule.parse(schedule), len(clients), rng.bytes(32))
    sketches, held = [], []
    for m, number in enumerate(clients):
        if m not in skip:
            held.append(rng.multinomial(number, distribution / distribution.sum()))
            sketches.append(CountSketch(spec, m))
            sketches[-1].add_range(1, held[-1])
    return sketches, np.array(held)


# ---- the landed sums ----


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_unequal_rounds_are_weighed_by_their_clients(backend, schedule):
    """The paper's decoder of all sums is `MedianDecoder`, which adds counts and has no weights.
    Single precision: of 10 rounds at most, so 10 additions of 2^-24 each of at most all clients.
    """
    sketches, held = unequal(schedule)
    landed, median = Landed(sketches[0].spec, sketches), MedianDecoder(sketches)
    ids = kernels.range_ids(1, 500)
    expected = median.at(ids) / held.sum()
    found = landed.decoder(landed.frequencies, "median", 500)
    np.testing.assert_allclose(found.at(ids), expected, atol=20 * 2.0**-24)
    np.testing.assert_allclose(found.range(1, 500), expected, atol=20 * 2.0**-24)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_mean_over_cells_weighs_rounds(backend, schedule):
    """Against the places, one by one; single precision: an absolute error of 2^-24 per round of
    numbers below 1."""
    sketches, _ = unequal(schedule)
    landed = Landed(sketches[0].spec, sketches)
    values = np.random.default_rng(1).random(
        landed.frequencies.shape if landed.fresh else landed.frequencies.shape[:2]
    )
    ids = kernels.range_ids(1, 300)
    cells, _ = landed.places(ids)
    if landed.fresh:
        expected = values.reshape(-1)[cells].mean(axis=1) @ landed.weights
    else:
        expected = values.reshape(-1)[cells[..., 0] // len(landed.weights)].mean(axis=1)
    np.testing.assert_allclose(landed.cell_mean(values).at(ids), expected, atol=20 * 2.0**-24)


# ---- ids that nobody holds ----


def test_phantoms_are_no_candidates():
    """Half of all ids are candidates, so that one draw in two would be; then those drawn next are
    listed, or extra."""
    half = Candidates(IntegerRange(0, 2**63 - 1))
    assert (half.fresh_ids(np.random.default_rng(0), 1000) >= np.uint64(2**63)).all()
    drawn = np.random.default_rng(0).integers(0, 2**64, 50, dtype=np.uint64)
    none = Candidates(IntegerRange(1, 5))
    assert np.isin(none.fresh_ids(np.random.default_rng(0), 50), drawn).all()
    for taken in (none.with_extra(drawn), none.with_extra(drawn[:0], only=drawn)):
        found = taken.fresh_ids(np.random.default_rng(0), 50)
        assert not np.isin(found, drawn).any()
        assert len(np.unique(found)) == 50


# ---- limits, by their definition ----


@pytest.fixture(scope="module")
def fit():
    """Give a fit whose noise is about three clients, far above the floor of one, with shares b from
    .5 to 1."""
    sketches, _ = campaign("shared", 5, 300)
    found = JointDecoder(sketches, IntegerRange(1, 5000)).fit
    assert found.scale * found.landed.num_clients > 2
    return found


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_far_from_the_threshold_limits_are_normal_with_kappa(fit, confidence):
    """docs/recovery.md: e -+ g z s / sqrt(b) where nothing was selected; s is kappa sigma for heavy
    items, sigma for
    light ones; g as in the band. Nine standard deviations above the threshold, and beyond,
    truncation changes a limit by under 1e-9.
    """
    ids = range(1, 5001)
    items = fit.leave_one_out(ids)
    tail = (1 - confidence) / 2
    sd, half = (
        fit.scale / np.sqrt(items.share),
        stats.norm.isf(tail) * joint_intervals.PhantomLaw(fit.landed, fit.residual).excess(tail),
    )
    assert half * sd.min() > 1 / fit.landed.num_clients
    low, high = JointIntervals(fit, confidence, 5000, kappa=Kappa(1.2, "given")).at(ids)
    heavy = items.values > (1.2 * fit.threshold + 1.2 * 9) * sd
    assert heavy.sum() > 20
    np.testing.assert_allclose(low[heavy], (items.values - 1.2 * half * sd)[heavy], rtol=1e-6)
    np.testing.assert_allclose(high[heavy], (items.values + 1.2 * half * sd)[heavy], rtol=1e-6)
    light = ~items.fitted & (items.values < sd)
    assert light.sum() > 1000
    np.testing.assert_allclose(low[light], (items.values - half * sd)[light], atol=1e-9)
    below = light & (items.values < (fit.threshold - 9) * sd)
    np.testing.assert_allclose(high[below], (items.values + half * sd)[below], atol=1e-9)


def test_the_band_is_made_as_documented(fit):
    """docs/recovery.md: e -+ 1.06 z g kappa sigma / sqrt(b), z at (1 - P) / 2 d; g: see `excess`
    below."""
    ids = range(1, 5001)
    items = fit.leave_one_out(ids)
    tail = 0.05 / (2 * 5000)
    excess = joint_intervals.PhantomLaw(fit.landed, fit.residual).excess(tail)
    assert excess > 1
    low, high = JointIntervals(fit, 0.95, 5000, kappa=Kappa(1.2, "given"), kind="simultaneous").at(
        ids
    )
    half = 1.06 * stats.norm.isf(tail) * excess * 1.2 * np.std(fit.null) / np.sqrt(items.share)
    np.testing.assert_allclose(low, items.values - half, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(high, items.values + half, rtol=1e-9, atol=1e-12)


def test_the_excess_of_a_tail_over_the_normal(fit):
    """It is what `beyond`, which is checked against phantoms, says of the same tail.
    Five rows are far from normal.
    """
    distribution = joint_intervals.PhantomLaw(fit.landed, fit.residual)
    for tail in (1e-3, 1e-5):
        value = distribution.excess(tail) * stats.norm.isf(tail) * distribution.sd
        assert distribution.beyond(value) == pytest.approx(2 * tail, rel=1e-6)
        assert distribution.excess(tail) > 1.01
    assert distribution.excess(0.1) == 1.0


@pytest.mark.parametrize("kind", ["pointwise", "simultaneous"])
def test_below_one_client_nothing_is_claimed(kind):
    """Nothing is left in any cell: the limits are one client on either side, whatever the kind."""
    sketches, _ = campaign("hybrid", 7, 4096, size=20, clients=1000)
    domain = IntegerRange(1, 20)
    decoder = JointDecoder(sketches, domain)
    low, high = make_intervals(decoder, sketches, domain, 0.95, kind).at(range(1, 21))
    values = decoder.range(1, 20) / 1000
    np.testing.assert_allclose(values - low, 1 / 1000, rtol=1e-6)
    np.testing.assert_allclose(high - values, 1 / 1000, rtol=1e-6)


def test_selection_reaches_to_zero_and_no_further_than_3_5_deviations():
    """intervals.md, D: at the threshold the lower limit falls to 0, not below; the upper one by 3.5
    at most, or by 1.54
    past the symmetric limit where that is more.
    """
    for alpha, reach in ((0.05, 3.5), (0.001, stats.norm.isf(0.0005) + 1.54)):
        low, _ = selective_limits(np.array([4.001]), np.array([True]), 4.0, 1.0, alpha)
        assert low[0] == pytest.approx(0.0, abs=1e-12)
        _, high = selective_limits(np.array([3.999]), np.array([False]), 4.0, 1.0, alpha)
        assert high[0] == pytest.approx(3.999 + reach)


def test_kappa_moves_the_threshold_too():
    """With kappa all is in units kappa times larger: the limits are those of kappa = 1 at z / kappa
    and c / kappa."""
    z, fitted = np.array([4.2, 5.0, 7.0]), np.array([True, True, True])
    low, high = selective_limits(z, fitted, 4.0, 1.3, 0.05)
    plain_low, plain_high = selective_limits(z / 1.3, fitted, 4.0 / 1.3, 1.0, 0.05)
    np.testing.assert_allclose(low, 1.3 * plain_low, atol=1e-9)
    np.testing.assert_allclose(high, 1.3 * plain_high, atol=1e-9)
    low, _ = selective_limits(np.array([0.9, -1.0]), np.array([False, False]), 4.0, 1.3, 0.05)
    np.testing.assert_allclose(low, np.array([0.9, -1.0]) - stats.norm.isf(0.025), atol=1e-9)


def test_limits_near_the_threshold_in_force(fit):
    """Where the bound on the support decided, the threshold is higher than 4, and the limits must
    know it."""
    full = Fit(fit.landed, fit.candidates, 40, generator(bytes(32), b"test"))
    assert full.threshold > 5
    items = full.leave_one_out(range(1, 5001))
    z = items.values * np.sqrt(items.share) / full.scale
    assert z[items.fitted].min() > z[~items.fitted].max() - 1.0
    low, high = JointIntervals(full, 0.95, 5000, kappa=Kappa(1.0, "given")).at(range(1, 5001))
    expected = selective_limits(z, items.fitted, full.threshold, 1.0, 0.05)
    unit = (
        full.scale
        / np.sqrt(items.share)
        * joint_intervals.PhantomLaw(full.landed, full.residual).excess(0.025)
    )
    np.testing.assert_allclose(
        low, np.minimum((expected[0] - z) * unit, -1e-5) + items.values, atol=1e-9
    )
    np.testing.assert_allclose(
        high, np.maximum((expected[1] - z) * unit, 1e-5) + items.values, atol=1e-9
    )


def test_kappa_is_what_heavy_items_see_over_what_phantoms_see():
    """One batch, six campaigns: mean measured kappa against the truth.
    Heavy items' errors are 6 x 100, rms known to 3 %; measured kappa has a standard deviation of
    .03 to .07 each (intervals.md, C), .03 in the mean: 2 sd of both.
    """
    measured, errors, nulls = [], [], []
    for seed in range(6):
        sketches, truth = campaign("shared", 5, 700, exponent=1.1, seed=seed, clients=400_000)
        fit = JointDecoder(sketches, IntegerRange(1, 5000)).fit
        measured.append(kappa_of(fit).value)
        items = fit.leave_one_out(range(1, 5001))
        heavy = items.values * np.sqrt(items.share) / fit.scale > fit.threshold + 3
        errors.append(np.mean((items.values - truth)[heavy] ** 2 * items.share[heavy]))
        nulls.append(np.mean(fit.null**2))
    assert np.mean(measured) == pytest.approx(np.sqrt(np.mean(errors) / np.mean(nulls)), abs=0.08)


# ---- the fit ----


@pytest.mark.parametrize("kind", ["together", "apart"])
def test_a_spread_counts_when_it_is_three_standard_deviations_too_large(backend, kind):
    """One item alone in two equal batches, z = a -+ d.
    The spread is clearly larger than Poisson's when it exceeds expectation by 3 sqrt(2 / (2 - 1))
    of it and the noise: 1 % below that, k is Poisson's, 1 % above, the spread's.
    """
    a, n, width = 0.1, 1000.0, 1000

    def refitted(d):
        residual = np.zeros((1, width, 2))
        residual[0, 7] = a + d, a - d
        noise = (residual**2).mean(axis=1)[0]
        shrinkage, cells = (
            np.zeros((1, 2)),
            np.array([[[14]]] if kind == "together" else [[[14, 15]]]),
        )
        one = np.ones((1, 1, 2), np.int8)
        kernels.refit(cells, one, np.array([n, n]), residual, np.zeros((1, 2)), shrinkage, 1)
        spread = 2 * d**2 - noise.mean()
        return (
            shrinkage[0],
            noise,
            spread,
            spread / (a / n + 3 * np.sqrt(2.0) * (noise.mean() + a / n)),
        )

    low, high = 0.0, a
    for _ in range(60):
        low, high = (
            ((low + high) / 2, high)
            if refitted((low + high) / 2)[3] < 1
            else (low, (low + high) / 2)
        )
    for d, wide in ((low * 0.99, False), (low * 1.01, True)):
        found, noise, spread, _ = refitted(d)
        variance = spread if wide else a / n
        np.testing.assert_allclose(found, variance / (variance + noise), rtol=1e-9)


def test_single_precision_stays_single(backend):
    """Sums given in single precision are tabulated in it: half the memory of the ladder."""
    if backend == "numpy":
        pytest.skip("the reference tabulates nothing")
    tables = np.random.default_rng(1).integers(0, 2**32, (1, 3, 8, 256), dtype=np.uint32)
    assert kernels.Decoder(np.ones((2, 3, 16), np.float32), tables)._values.dtype == np.float32
    assert kernels.Decoder(np.ones((2, 3, 16)), tables)._values.dtype == np.float64


@pytest.mark.parametrize("there", [[0], [12], [3, 4, 19]])
def test_batches_of_zeros_need_no_table_and_change_no_bit(backend, there):
    """The other decoder has numbers in all batches, in a last cell that no tested id has."""
    if backend == "numpy":
        pytest.skip("the reference tabulates nothing")
    rng = np.random.default_rng(2)
    tables = rng.integers(0, 2**32, (3, 3, 8, 256), dtype=np.uint32)
    sums = np.zeros((21, 3, 40), np.float32)
    sums[there, :, :-1] = rng.normal(0, 100, (len(there), 3, 39))
    full = sums.copy()
    full[..., -1] = 1.0
    last = kernels.Decoder(
        (full[:1] == 1.0).astype(np.float32), tables[:1], fold="mean", signed=False
    )
    ids = np.arange(2000, dtype=np.uint64)
    ids = ids[last.at(ids) == 0.0]
    few, all_ = kernels.Decoder(sums, tables, 0), kernels.Decoder(full, tables, 0)
    assert np.array_equal(few.at(ids), all_.at(ids)) and few.at(ids).any()
    assert few._values.nbytes < all_._values.nbytes / 2


@pytest.mark.parametrize("schedule", ["hybrid", "fresh"])
def test_a_window_of_one_batch_has_no_tables_of_the_others(backend, schedule):
    if backend == "numpy":
        pytest.skip("the reference tabulates nothing")
    decoder = JointDecoder(unequal(schedule, clients=(500,) * 64, skip=())[0], IntegerRange(1, 400))
    window = decoder.window(np.arange(64) == 17, learned=False)

    def held(means):
        return sum(part._values.nbytes for part in getattr(means, "_parts", [means]))

    assert held(window.fit._means) <= held(decoder.fit._means) / 4


# ---- results ----


def zipf_items(size=3000, number=20_000):
    return np.random.default_rng(13).zipf(1.4, number) % size


OPTIONS = {
    "domain": "range:0..2999",
    "num_rounds": 4,
    "rows": 7,
    "width": 100,
    "seed": 1,
}


def test_what_is_not_named_stays_as_it_is():
    """Each way of decoding differs from its default here, so that what is dropped shows."""
    items = ["tea"] * 70 + ["milk"] * 30 + [None]
    settings = {
        "recovery": "median",
        "objective": "l2",
        "confidence": 0.8,
        "intervals": "simultaneous",
    }
    result = fedtally.estimate(
        items, rows=7, width=64, num_rounds=2, seed=1, evaluate=True, **settings
    )

    def of(other):
        found = (other.recovery, other.objective, other.confidence, other.interval_kind)
        return dict(zip(settings, found, strict=True))

    assert any("rows skipped" in note for note in result.warnings)
    for change in (
        {},
        {"recovery": "joint"},
        {"objective": "linf"},
        {"confidence": 0},
        {"intervals": "pointwise"},
    ):
        other = result.decoded(**change)
        assert of(other) == settings | change
        assert (other.plan, other.domain, other.missing) == (
            result.plan,
            result.domain,
            1,
        )
        assert other.evaluate().k == 2
        kept = [note for note in other.warnings if "finds rare items" not in note]
        assert kept == list(result.warnings)


def test_files_remember_how_to_decode(tmp_path):
    settings = {
        "recovery": "median",
        "objective": "l2",
        "confidence": 0.8,
        "intervals": "simultaneous",
    }
    result = fedtally.estimate(zipf_items(), **OPTIONS, **settings)
    result.save(tmp_path / "run.fed")
    again = fedtally.Result.load(tmp_path / "run.fed")
    assert (again.objective, again.confidence, again.interval_kind) == (
        "l2",
        0.8,
        "simultaneous",
    )
    assert again.top(20) == result.top(20)


def test_a_prepared_result_has_nothing_left_to_fit(tmp_path):
    """The time of the fit is in `timings`, not in the first question."""
    result = fedtally.estimate(zipf_items(), **OPTIONS)
    assert {"decoder", "intervals"} <= vars(result).keys()
    seen = []
    result.save(tmp_path / "r")
    fresh = fedtally.Result.load(tmp_path / "r")  # of few candidates no fit is saved
    fresh.prepare(lambda stage, done, total: seen.append((stage, done, total)))
    assert seen[-1] == ("recover", seen[-1][2], seen[-1][2])
    assert {"decoder", "intervals"} <= vars(fresh).keys()
    assert fresh.progress is None


def test_columns_of_a_table_belong_together(monkeypatch):
    """Every row of the table is the item's own estimate, over blocks; `limits` and the coverage are
    of the same."""
    result = fedtally.estimate(zipf_items(), confidence=0.9, evaluate=True, **OPTIONS)
    named = {e.item: e for e in result.estimates(list(range(3000)))}
    coverage = result.evaluate().coverage
    monkeypatch.setattr("fedtally.answer.part.BLOCK", 700)
    limits = result.limits()
    held = []
    for row in result.to_arrow().to_pylist():
        e = named[row["item"]]
        assert [
            row[field.name] for field in dataclasses.fields(e) if field.name != "item"
        ] == pytest.approx(dataclasses.astuple(e)[1:], abs=1e-12)
        assert (e.low, e.high) == pytest.approx(
            (limits.low[e.item], limits.high[e.item]), abs=1e-12
        )
        assert 0 <= e.low <= e.high <= 1
        [truth] = result.true_frequencies([e.item])
        held.append(e.low <= truth <= e.high)
    assert result.evaluate().coverage == pytest.approx(coverage) == pytest.approx(np.mean(held))
    assert 0.5 < coverage < 1  # neither is empty


def test_limits_of_a_table_that_does_not_fit():
    result = fedtally.estimate(zipf_items(), **OPTIONS)
    with pytest.raises(fedtally.errors.MemoryLimitError, match="raise the limit"):
        result.limits(memory=1000)


def test_intervals_of_shrunk_estimates_are_those_of_the_fit():
    """Shrinkage changes what is released, not what is known: intervals stay around e."""
    result = fedtally.estimate(zipf_items(), recovery="joint", **OPTIONS)
    plain, shrunk = (r.estimates(list(range(50))) for r in (result, result.decoded(objective="l2")))
    assert [(e.low, e.high) for e in plain] == [(e.low, e.high) for e in shrunk]
    assert [e.frequency for e in plain] != [e.frequency for e in shrunk]


def test_large_domains_say_that_the_paper_s_decoder_answers():
    wide = fedtally.estimate([1, 2, 2], domain="range:1..1000000000", rows=3, width=64, seed=1)
    assert wide.recovery == "median"
    assert any("by default the paper's decoder is used" in note for note in wide.warnings)
    too_wide = fedtally.estimate(
        [1, 2, 2], domain="range:1..1000000000000", rows=3, width=64, seed=1
    )
    assert not any("--recovery joint" in note for note in too_wide.warnings)
    small = fedtally.estimate(
        [1, 2, 2], domain="range:1..1000", rows=3, width=64, seed=1, recovery="median"
    )
    assert not any("paper's decoder" in note for note in small.warnings)


# ---- what is shown ----


def shown(result, queried=()):
    answer = screen.answer(result, result.top(3), queried, details=True)
    return " ".join(screen.plain(answer, 300).split())


def test_the_answer_says_how_certain_it_is():
    """Level, kind, sampling, expected error: each of the result's own, and none where there are no
    intervals."""
    result = fedtally.estimate(
        zipf_items(), confidence=0.8, intervals="simultaneous", evaluate=True, **OPTIONS
    )
    said = shown(result, result.estimates([2999]))
    assert "80 %, for frequencies among those that took part; of all candidates at once" in said
    assert said.count("± these ± more") == 2  # of the top, and of the items asked for
    expected = result.intervals.predicted_linf
    assert (
        f"about ± {amounts.points(expected, amounts.decimals([expected]))}, predicted from the sums"
        in said
    )
    largest = max(e.sampling_error for e in result.top(3))
    assert f"up to ± {amounts.points(largest, amounts.decimals([largest]))} here" in said
    assert f"{result.evaluation.coverage:.1%} of the intervals hold the truth" in said
    assert "Note this decoder finds rare items too" in said
    first = result.top(1)[0]
    halves = [(e.high - e.low) / 2 for e in result.top(3)]
    digits = amounts.decimals([*(e.frequency for e in result.top(3)), *halves])
    off = result.uncertainty([first.item])
    wider = amounts.points(float(off.population[0]), digits).removesuffix(" points")
    sides = [first.frequency - first.low, first.high - first.frequency]
    assert f" {amounts.points(max(sides), digits).removesuffix(' points')} {wider} " in said
    assert "80 % each, for frequencies" in shown(result.decoded(intervals="pointwise"))
    bare = shown(result.decoded(confidence=0, objective="l2"))
    assert "estimates shrunk for a small squared error" in bare
    assert "estimates shrunk" not in said
    for word in ("Intervals", "Sampling", "Expected", "interval"):
        assert word not in bare


def test_narrow_intervals_have_the_digits_they_need():
    """An interval of +- 0.000,2 % is not shown as of no width."""
    line = screen.plain(
        sections.listed.table(
            [fedtally.answer.estimates.Estimate("tea", 0.5, 0.499998, 0.500002, 5e5, 1e-2)]
        )
    )
    assert "50.00000 %" in line and " 0.00020  1.00000 " in line


def test_the_document_says_how_it_was_decoded():
    result = fedtally.estimate(
        zipf_items(), objective="l2", confidence=0.8, recovery="joint", **OPTIONS
    )
    fields = documents.of_result(result, result.top(1))
    assert fields["objective"] == "l2"
    assert fields["intervals"] == {
        "confidence": 0.8,
        "kind": "auto",
        "list": {"kind": "selective", "covers": sections.error.covers("selective")},
        "named": {"kind": "pointwise", "covers": sections.error.covers("pointwise")},
        "about": result.intervals.about,
        "predicted_linf": result.intervals.predicted_linf,
        "predicted_linf_range": None,
    }
    assert fields["intervals"]["about"]
    assert fields["estimates"][0]["sampling_error"] == result.top(1)[0].sampling_error > 0


def test_intervals_are_drawn_beside_their_own_bars():
    """Line and ends of every interval lie on the row of its item; the band of a curve has its own
    ends."""
    pytest.importorskip("matplotlib")
    from fedtally.answer import charts

    estimates = [
        fedtally.answer.estimates.Estimate(name, f, low, high, 1.0)
        for name, f, low, high in (
            ("a", 0.5, 0.4, 0.7),
            ("b", 0.3, None, None),
            ("c", 0.2, 0.15, 0.3),
        )
    ]
    figure = charts.top_items(estimates, 100)
    axes = figure.axes[0]
    segments = [path.tolist() for path in axes.collections[0].get_segments()]
    assert np.allclose(segments, [[[40, 0], [70, 0]], [[15, 2], [30, 2]]])
    ends = np.transpose(axes.lines[0].get_data())
    assert np.allclose(ends, [[40, 0], [70, 0], [15, 2], [30, 2]])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "estimated",
        "limits: among these clients",
    ]
    curve = charts.error_against_bytes(
        {"hybrid": [charts.Point(1000, 0.01, 0.008, 0.015)]}, {}
    ).axes[0]
    [band] = curve.collections[0].get_segments()
    assert np.allclose(band[:, 1], [0.8, 1.5])


def test_the_plot_of_a_result_names_its_confidence():
    pytest.importorskip("matplotlib")
    result = fedtally.estimate(["tea"] * 3 + ["milk"], width=99, seed=1, confidence=0.8)
    assert "80 %: among these clients" in [
        text.get_text() for text in result.plot().legends[0].get_texts()
    ]


# ---- shrinkage and the error model ----


def test_the_tail_of_the_median_s_noise_is_learned(monkeypatch):
    """Behind the median, taking its noise as normal costs 10 to 40 % of the squared error (nine
    campaigns): over three,
    the learned distribution must be 10 % better.
    """
    with_distribution, without = 0.0, 0.0
    for seed in (1, 2, 3):
        sketches, truth = campaign("fresh", 5, 100, exponent=1.1, clients=50_000, seed=seed)
        median, domain = MedianDecoder(sketches), IntegerRange(1, 5000)
        for learn in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                if not learn:
                    patch.setattr(medians, "noise_distribution", lambda _: shrinkage.NORMAL)
                found = shrinkage.ShrunkDecoder(median, domain).range(1, 5000)
            error = float(np.sum((found - truth * median.num_clients) ** 2))
            with_distribution, without = (
                (with_distribution + error, without)
                if learn
                else (with_distribution, without + error)
            )
    assert with_distribution < 0.9 * without


def test_the_threshold_grows_with_the_domain(monkeypatch):
    """So that four candidates that nobody holds are fitted: d P(Z > c) = 4 where that c exceeds 4,
    here for another
    number than four, since 126,000 candidates would be needed. The error model takes the same
    threshold.
    """
    sketches, _ = campaign("shared", 5, 200)
    landed = Landed(sketches[0].spec, sketches)
    for expected, false_items in ((stats.norm.isf(0.01 / 5000), 0.01), (4.0, 4)):
        monkeypatch.setattr(joint, "FALSE_ITEMS", false_items)
        monkeypatch.setattr(joint_error, "FALSE_ITEMS", false_items)
        fit = Fit(
            landed,
            Candidates(IntegerRange(1, 5000)),
            300,
            generator(bytes(32), b"test"),
        )
        assert fit.threshold == pytest.approx(expected)
        plan = Sums(5, 200, np.ones(1), False, 100_000, 0.0, 5000, 1.0)
        assert joint_error._Ladder(np.ones(1), np.ones(1), plan, 0.3).selected == pytest.approx(
            expected
        )


def equation(f, number, plan, largest, s):
    """Return the right side of (1) in error_model's words: (scale, threshold, b', support).

    An item's mean error is an integral over its normal error: that error itself where it is fitted,
    else all of it.
    """
    batches, cells = plan.batches, plan.rows * plan.width
    tau, v = batches * s * s, f * batches / plan.clients
    z = np.linspace(-12, 12, 24_001)
    density = stats.norm.pdf(z) * (z[1] - z[0])

    def support(at):
        return float(number @ stats.norm.sf((at - f) / s))

    threshold = max(max(4.0, stats.norm.isf(min(0.5, 4 / plan.candidates))) * s, 0.5 / plan.clients)
    if support(threshold) > max(1, int(largest * cells)):
        threshold = optimize.brentq(
            lambda at: support(at) - max(1, int(largest * cells)),
            threshold,
            f[-1] + 40 * s,
        )
    near = threshold / s * stats.norm.pdf((threshold - f) / s)
    left = 1.0
    for _ in range(300):
        kept = v / (v + left**2 * tau)
        used = number @ (stats.norm.sf((threshold - f) / s) * (1 + (batches - 1) * kept) + near)
        left = max(1 - used / (cells * batches), 0.02)
    fitted = f[:, None] + s * z > threshold
    means = np.where(fitted, (s * z) ** 2, f[:, None] ** 2) @ density
    spreads = np.where(fitted, (kept**2 * tau + (1 - kept) ** 2 * v)[:, None], v[:, None]) @ density
    errors = number @ (means + (1 - 1 / batches) * spreads)
    noise = plan.noise * batches / plan.clients**2
    return (
        np.sqrt((noise + errors / plan.width) / plan.rows / batches),
        threshold,
        left,
        support(threshold),
    )


@pytest.mark.parametrize(
    ("batches", "candidates", "largest", "s"),
    [
        (1, 5000, 0.3, 3e-4),
        (4, 5000, 0.6, 1e-4),
        (4, 10_000_000, 0.6, 1e-4),  # more than 4 s
        (4, 5000, 0.01, 1e-4),  # the bound on the support decides
        (4, 5000, 0.6, 1e-6),  # half a client does
    ],
)
def test_the_fixed_point_is_that_of_the_equation(batches, candidates, largest, s):
    """The integral's step, 1e-3, is its error at the jump of each item; b' is iterated to 1e-6
    there."""
    f = 0.1 * np.arange(60, 0, -1.0) ** -1.3
    number = np.linspace(9.0, 1.0, 60)
    plan = Sums(5, 200, np.ones(batches), False, 100_000, 50.0, candidates, 1.0)
    found = joint_error._Ladder(f, number, plan, largest).at(np.array([s]))
    expected = equation(f, number, plan, largest, s)
    got = [float(values[0]) for values in found]
    assert got == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("wide", [1, 2])
def test_ln_2_items_exceed_the_predicted_largest_error(monkeypatch, wide):
    """Under normal noise, and one twice as wide (real tails have their own test): an item is
    released as its value if
    that exceeds the threshold, else as b' of it; integrated over its error.
    """
    monkeypatch.setattr(joint_error, "normal_equivalent", lambda *_: lambda x: x / wide)
    distribution = np.arange(1, 2001.0) ** -1.1
    plan = Sums(5, 300, np.ones(4), False, 50_000, 0.0, 2000, 1.0)
    found = joint_error.predict(np.sort(distribution / distribution.sum()), plan)
    f, number = joint_error.drawn(np.sort(distribution / distribution.sum()), plan)
    state = joint_error._Ladder(f, number, plan, 0.6).at(np.array([found.scale]))
    assert state.left[0] > 0.5
    z = np.linspace(-24, 24, 24_001)
    value = f[:, None] + found.scale * z
    error = np.where(value > state.threshold[0], value, state.left[0] * value) - f[:, None]
    beyond = (
        number @ ((np.abs(error) > found.linf) @ stats.norm.pdf(z / wide)) * (z[1] - z[0]) / wide
    )
    assert beyond == pytest.approx(np.log(2), rel=0.02)


@pytest.mark.parametrize("fresh", [True, False])
def test_the_tail_of_a_few_large_items(fresh):
    """Ten items in 40 cells, 3 rows, 2 batches, that are not fitted: their sum, drawn 10^6 times.
    The approximation of Barndorff-Nielsen is smooth, the sum is not: half to twice the tail, where
    a normal one would be several times less.
    """
    rows, width, batches, items = 3, 40, 2, 10
    plan = Sums(rows, width, np.ones(batches), fresh, 1000, 0.0, 1000, 1.0)
    size = np.array([np.sqrt(rows * width * batches / items)])  # variance 1
    normal = joint_error.normal_equivalent(size, np.array([float(items)]), plan)
    rng, total = np.random.default_rng(1), np.zeros(1_000_000)
    for _ in range(rows):
        if fresh:
            for _ in range(batches):
                there = rng.binomial(items, 1 / width, len(total))
                total += 2 * rng.binomial(there, 0.5) - there
        else:
            there = rng.binomial(items, 1 / width, len(total))
            for _ in range(batches):
                total += 2 * rng.binomial(there, 0.5) - there
    total *= size[0] / (rows * batches)
    assert np.std(total) == pytest.approx(1, rel=0.02)
    steps = size[0] / (rows * batches)
    for places in (4.5, 5.5) if fresh else (5, 7):  # between two values that the sum can take
        x = places * steps
        seen = np.mean(total > x)
        expected = stats.norm.sf(normal(np.array([x]))[0])
        assert 0.5 < expected / seen < 2, (x, seen, expected)


def test_joint_recovery_s_bound_is_the_model_s():
    """More may be fitted of several batches: 0.6 of the cells instead of 0.3; the model says so
    where enough items are
    frequent.
    """
    distribution = np.arange(1, 5001.0) ** -1.5
    plan = {"rows": 5, "width": 100, "num_rounds": 4, "num_clients": 10_000_000}
    shared, hybrid = (
        error_model.predict(distribution / distribution.sum(), schedule=name, **plan)
        for name in ("shared", "hybrid")
    )
    assert shared.support <= 0.3 * 500
    assert 0.35 * 500 < hybrid.support <= 0.6 * 500


# ---- the joint fit, by its definition ----


def kept_by_all_others(fit, id_):
    """Return the share of an item's own mass that the fit of all others leaves, by fitting nothing
    but that item."""
    landed, support = fit.landed, fit.support
    others = support.ids != id_
    cells, signs = landed.places(support.ids[others])
    mass, ids = np.zeros_like(landed.frequencies), np.array([id_], np.uint64)
    landed.add(mass, *landed.places(ids), (landed.clients > 0)[None].astype(float))
    values, shrinkage = (
        np.zeros_like(support.values[others]),
        np.ascontiguousarray(support.shrinkage[others]),
    )
    kernels.refit(cells, signs, landed.clients, mass, values, shrinkage, 60, frozen=True)
    return float(landed.decoder(mass, "mean", 1).at(ids)[0])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shares_are_what_the_fit_leaves_of_an_item(schedule):
    """Rounds of 7 to 40,000 clients, 5 x 200.
    The design study measured rms errors of .004 to .010 at 5 x 1000; ten groups of a fifth of the
    cells tell less: .025 (measured here: .006 to .015, and correlations from .955).
    """
    clients = (3000, 20_000, 9000, 500, 12_000, 100, 7, 40_000, 60, 5000)
    sketches, _ = unequal(schedule, rows=5, width=200, size=2000, clients=clients)
    fit = Fit(
        Landed(sketches[0].spec, sketches),
        Candidates(IntegerRange(1, 2000)),
        300,
        generator(bytes(32), b"test"),
    )
    off = np.setdiff1d(np.arange(1, 2001, dtype=np.uint64), fit.support.ids)[:40]
    on = fit.support.ids[:: max(1, len(fit.support.ids) // 40)]
    for ids in (off, on):
        exact = np.array([kept_by_all_others(fit, id_) for id_ in ids])
        found = fit.leave_one_out(ids).share
        assert np.sqrt(np.mean((found - exact) ** 2)) < 0.025
        assert abs(np.mean(found - exact)) < 0.012
        assert np.corrcoef(found, exact)[0, 1] > 0.9


def test_all_that_stand_out_are_found():
    """Against the z of every candidate: none may be missed for want of a decode of its own."""
    sketches, _ = campaign("hybrid", 5, 200)
    fit = JointDecoder(sketches, IntegerRange(1, 5000)).fit
    items = fit.leave_one_out(range(1, 5001))
    z = items.values * np.sqrt(items.share) / fit.scale
    for least in (1.5, 4.0):
        positions, some, some_z = fit.standing_out(least)
        stands = (z > least) & (items.values > 0.5 / fit.landed.num_clients)
        assert np.isin(np.flatnonzero(stands | items.fitted), positions).all()
        assert len(positions) < 3 * (stands | items.fitted).sum()
        np.testing.assert_allclose(some.values, items.values[positions], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(some_z, z[positions], rtol=1e-6, atol=1e-6)


def test_what_a_fit_says_of_itself(fit):
    """Scale: the .95 quantile of what ids held by nobody are given, over the normal's, in units of
    their own deviation;
    error: what one in a thousand is given; worst: the deviation of the fitted item that keeps
    least.
    """
    nobody = fit.leave_one_out(fit.phantoms)
    assert fit.scale == pytest.approx(
        np.quantile(np.abs(nobody.values * np.sqrt(nobody.share)), 0.95) / 1.959964
    )
    assert fit.error == pytest.approx(np.quantile(np.abs(nobody.estimate), 0.999))
    fitted = fit.leave_one_out(fit.support.ids)
    assert fitted.fitted.all()
    assert fit.worst == pytest.approx(fit.scale / np.sqrt(fitted.share.min()))
    anyone = fit.leave_one_out(range(1, 5001))
    off = ~anyone.fitted
    np.testing.assert_allclose(
        anyone.estimate[off], (anyone.values * anyone.share)[off], rtol=1e-6, atol=1e-12
    )
    np.testing.assert_allclose(
        anyone.estimate, fit.estimates(range(1, 5001)), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_where_nothing_is_left_only_items_that_somebody_holds_are_fitted(schedule):
    """The noise is then rounding, out of which anything would stand: half a client is the bound.
    Counts are exact.
    """
    sketches, truth = campaign(schedule, 7, 4096, size=200, clients=1000)
    decoder = JointDecoder(sketches, IntegerRange(1, 5000))
    held = np.rint(truth * 1000)
    assert np.array_equal(np.sort(decoder.fit.support.ids), np.flatnonzero(held) + 1)
    assert np.array_equal(decoder.range(1, 5000), np.append(held, np.zeros(4800)))


@pytest.mark.parametrize(("times", "falls_back"), [(0.99, False), (1.01, True)])
@pytest.mark.parametrize("width", [100, 4096])
def test_the_safety_net_answers_exactly_where_phantoms_say_so(
    monkeypatch, width, times, falls_back
):
    """One phantom in a thousand is the measure, of both, and half a client."""
    sketches, _ = campaign("hybrid", 5, width, size=300 if width == 100 else 20, clients=1000)
    good = joint._best_fit

    def bad(*arguments):
        found = good(*arguments)
        paper = np.quantile(np.abs(MedianDecoder(sketches).at(found.phantoms)), 0.999) / 1000
        assert (paper > 0.5 / 1000) == (width == 100)
        found.error = times * (paper + 0.5 / 1000)
        return found

    monkeypatch.setattr(joint, "_best_fit", bad)
    assert (JointDecoder(sketches, IntegerRange(1, 300)).fallback is not None) == falls_back


@pytest.mark.parametrize(("exponent", "least", "most"), [(1.1, 3, 3), (2.0, 5, 12)])
def test_polishing_goes_on_while_it_helps(monkeypatch, exponent, least, most):
    """Three times, then as long as the noise falls by a tenth, twelve times at most: near exact
    recovery alone.
    Recorded is the noise before each (i^-2, 5 x 250, seeds 1 and 2: 11 and 12 times).
    """
    seen, polish = [], Fit._polish
    monkeypatch.setattr(Fit, "_polish", lambda self: (seen.append(self.scale), polish(self))[1])
    sketches, _ = campaign("hybrid", 5, 250, exponent=exponent, size=3000)
    fit = Fit(
        Landed(sketches[0].spec, sketches),
        Candidates(IntegerRange(1, 3000)),
        750,
        generator(bytes(32), b"test"),
    )
    assert least <= len(seen) <= most
    assert all(after <= 0.9 * before for before, after in itertools.pairwise(seen[2:]))
    assert len(seen) == 12 or fit.scale > 0.85 * seen[-1]  # it stopped because it no longer helped


def test_half_of_all_largest_errors_of_the_median_exceed_what_is_predicted():
    """Of 1,000 sets of 1,000 ids that nobody holds, given the sums: half, with a binomial's error
    of .016; five of
    those are allowed.
    """
    sketches, _ = campaign("hybrid", 7, 300, size=1000)
    median = MedianDecoder(sketches)
    found = make_intervals(median, sketches, IntegerRange(1, 1000), 0.9)
    ids = np.random.default_rng(5).integers(2**63, 2**64, 1_000_000, dtype=np.uint64)
    largest = np.abs(median.at(ids)).reshape(1000, 1000).max(axis=1) / median.num_clients
    assert np.mean(largest > found.predicted_linf) == pytest.approx(0.5, abs=0.08)


def test_posterior_means_keep_the_mean():
    """Pooling neighbours that fall, by how often each is seen, changes no mean over what is seen;
    here many fall, since
    the distribution of the noise is wider than what was seen.
    """
    rng = np.random.default_rng(4)
    values = shrinkage.both_sides(shrinkage._axis(30.0, 0.5, 0.1))
    grid = shrinkage._axis(30.0, 0.3, 0.3)
    noise = shrinkage.Noise(np.array([0.3, 6.0]), np.array([0.7, 0.3]))
    seen = rng.integers(1, 30, len(values)).astype(float)
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        isotonic = scipy.optimize.isotonic_regression
        patch.setattr(
            scipy.optimize,
            "isotonic_regression",
            lambda y, **k: (calls.append((y, k)), isotonic(y, **k))[1],
        )
        means = shrinkage.posterior_means(seen, values, noise, grid)
    [(before, options)] = calls
    assert (np.diff(before) < -1e-6).any()
    assert options["weights"] @ means == pytest.approx(options["weights"] @ before)
    assert np.ptp(options["weights"]) > 0


def test_the_constants_of_kappa_go_by_how_many_rounds_there_are_in_effect(monkeypatch):
    """One batch of rounds absorbs more than several; rounds that did not land, or are tiny, are no
    further batches."""
    monkeypatch.setattr(joint_intervals, "_MOST_CANDIDATES", 0)
    domain, (one, many) = IntegerRange(1, 5000), joint.KAPPA
    assert one > many > 1
    for schedule, skipped, expected in (
        ("shared", 0, one),
        ("hybrid", 0, many + (one - many) / 4),
        ("fresh", 2, many + (one - many) * 3 / 4),
        ("hybrid", 3, one),
        ("batched:2", 0, many + (one - many) * 3 / 4),
    ):
        sketches, _ = campaign(schedule, 5, 300)
        landed = sketches[skipped:]
        found = make_intervals(JointDecoder(landed, domain), landed, domain)
        assert found.kappa == pytest.approx(expected, abs=1e-3)  # the rounds' sizes are equal
        assert "a constant, not measured here" in found.about


def test_added_items_that_spoil_the_fit_are_not_believed(monkeypatch):
    sketches, _ = campaign("hybrid", 5, 300)
    fit = JointDecoder(sketches, IntegerRange(1, 5000)).fit
    monkeypatch.setattr(joint_intervals, "_TIPPED", 0.0)
    spoilt = kappa_of(fit)
    assert spoilt.value == pytest.approx(1.2 * (1.06 + 0.19 / 4))
    assert "added items spoil the fit" in spoilt.source


def test_nothing_is_decoded_again_once_kappa_is_a_constant_anyway(monkeypatch):
    """45 items tip the fit over, then 22; two turns with 11 could not add 60 any more."""
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "1")
    sketches, _ = campaign("hybrid", 5, 300)
    fit = JointDecoder(sketches, IntegerRange(1, 5000)).fit
    monkeypatch.setattr(joint_intervals, "_TIPPED", 0.0)
    added, again = [], joint_intervals._decoded_again

    def counted(fit, only, pool, number, turns):
        added.append(number)
        return again(fit, only, pool, number, turns)

    monkeypatch.setattr(joint_intervals, "_decoded_again", counted)
    assert "added items spoil the fit" in kappa_of(fit).source
    assert added == [45, 22]


@pytest.mark.parametrize("sums", [1 << 20, 1 << 14])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_law_of_the_median_of_unequal_rounds(monkeypatch, schedule, sums):
    """What 200,000 phantoms exceed, as for equal rounds: exact for odd rows, up to atoms, for fresh
    rounded outwards.
    2^14 sums under random signs stand for a row of hybrid just as well: 5 % of the tail is their
    own error, 3 sd taken.
    """
    monkeypatch.setattr(median_intervals, "_SIGNED_SUMS", sums)
    sketches, _ = unequal(schedule, rows=5, width=150, size=2000)
    landed = Landed(sketches[0].spec, sketches)
    distribution = median_intervals._MedianLaw([landed])
    ids = np.random.default_rng(2).integers(2**63, 2**64, 200_000, dtype=np.uint64)
    values = np.abs(MedianDecoder(sketches).at(ids)) / landed.num_clients
    for probability in (0.1, 0.02):
        seen = np.mean(values > distribution.exceeded_with(probability) + 1e-12)
        slack = (
            5 * np.sqrt(probability / 200_000) + (0.15 if sums < 1 << 20 else 0.02) * probability
        )
        assert 0.75 * probability - slack <= seen <= probability + slack


def test_the_law_of_the_median_of_more_than_a_hundred_noised_rounds():
    """Two rounds have one law here, and one of them stands for both.

    Of 20,000 phantoms as many exceed a size as said, within five binomial deviations: the rounds
    differ by the chance of their 120 cells, which 101 of them even out. The transform of noise's
    law is negative in places.
    """
    rng = np.random.default_rng(0)
    spec = SketchSpec(3, 40, Schedule.parse("fresh"), 101, bytes(32))
    sketches = [CountSketch(spec, m) for m in range(101)]
    for sketch in sketches:
        sketch.num_clients = 30
        sketch.counters += np.rint(rng.normal(0, 20, sketch.counters.shape)).astype(np.int64)
    distribution = median_intervals._MedianLaw([Landed(spec, sketches)])
    ids = rng.integers(2**63, 2**64, 20_000, dtype=np.uint64)
    values = np.abs(MedianDecoder(sketches).at(ids)) / (101 * 30)
    for probability in (0.1, 0.02):
        seen = np.mean(values > distribution.exceeded_with(probability))
        assert abs(seen - probability) <= 5 * (probability / 20_000) ** 0.5


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_law_of_a_phantom_of_unequal_rounds(schedule):
    """As for equal rounds: deviation to 2 %, tail to 5 binomial errors and 5 % for the
    approximation."""
    sketches, _ = unequal(schedule, rows=5, width=200, size=2000)
    fit = Fit(
        Landed(sketches[0].spec, sketches),
        Candidates(IntegerRange(1, 2000)),
        300,
        generator(bytes(32), b"test"),
    )
    distribution = joint_intervals.PhantomLaw(fit.landed, fit.residual)
    drawn = fit.leave_one_out(
        np.random.default_rng(1).integers(2**63, 2**64, 200_000, dtype=np.uint64)
    ).estimate
    assert drawn.std() == pytest.approx(distribution.sd, rel=0.02)
    expected = distribution.beyond(2.5 * distribution.sd)
    assert np.mean(np.abs(drawn) > 2.5 * distribution.sd) == pytest.approx(
        expected, abs=5 * (expected / 2e5) ** 0.5 + 0.05 * expected
    )


def test_kappa_by_its_definition(monkeypatch):
    """intervals.md, C: known items, Poisson in every round, in sums that are decoded again as
    candidates with room for
    them; rms of e less truth, over rms of what the same ids were given before, both cut at four
    deviations.
    """
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "1")  # the repeats one after the other, in order
    sketches, _ = campaign("hybrid", 5, 300, exponent=1.1)
    fit = JointDecoder(sketches, IntegerRange(1, 5000)).fit
    added, fits, plain = [], [], Landed.with_items

    def with_items(self, ids, values):
        added.append((ids, values))
        return plain(self, ids, values)

    class Again(Fit):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            fits.append(self)

    monkeypatch.setattr(Landed, "with_items", with_items)
    monkeypatch.setattr(joint_intervals, "Fit", Again)
    kappa = kappa_of(fit)
    pool = fit.fitted[fit.fitted * np.sqrt(fit.own_shares) / fit.scale > fit.threshold + 3]
    errors, nulls = [], []
    for (ids, values), again in zip(added, fits, strict=True):
        assert len(ids) == 45
        assert again.most == fit.most + 45
        assert np.array_equal(again.candidates.ids(np.arange(5000, 5045)), ids)
        counts = values * fit.landed.clients
        np.testing.assert_allclose(counts, np.rint(counts), atol=1e-6)
        assert np.ptp(counts, axis=1).max() > 0
        truth = values @ fit.landed.weights
        assert pool.min() - 6 * (pool.min() / 1e5) ** 0.5 < truth.min()
        assert truth.max() < pool.max() + 6 * (pool.max() / 1e5) ** 0.5
        found, before = again.leave_one_out(ids), fit.leave_one_out(ids)
        errors.append((found.values - truth) * np.sqrt(found.share))
        nulls.append(before.values * np.sqrt(before.share))
    assert len(fits) == 4  # 150 items and more, by 45
    assert len(np.unique(np.concatenate([ids for ids, _ in added]))) == 180
    assert "180 known items were added" in kappa.source
    cut = [
        np.clip(np.concatenate(values), -4 * fit.scale, 4 * fit.scale) for values in (errors, nulls)
    ]
    assert kappa.value == pytest.approx(
        max(1.0, np.sqrt(np.mean(cut[0] ** 2) / np.mean(cut[1] ** 2)))
    )


def test_kappa_does_not_depend_on_how_many_repeats_decode_at_a_time(monkeypatch):
    """Also where some of them are left out, and those after them have fewer items."""
    monkeypatch.setattr(joint_intervals, "_TIPPED", 1.0)
    monkeypatch.setattr(joint_intervals, "_LEAST_SPIKES", 1)
    sketches, _ = campaign("hybrid", 5, 300, exponent=1.1, size=1000)
    fit = JointDecoder(sketches, IntegerRange(1, 1000)).fit
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("FEDTALLY_NUM_THREADS", threads)
        found.append(kappa_of(fit))
    assert "known items were added" in found[0].source
    assert "180 known" not in found[0].source
    assert found[1] == found[0]


def test_known_items_where_few_stand_out(monkeypatch):
    """Three heavy items among 5,000 of twenty clients: values from 4 to 20 deviations above the
    threshold help out."""
    spec = SketchSpec(5, 700, Schedule.parse("shared"), 1, bytes(32))
    sketch, added, plain = CountSketch(spec, 0), [], Landed.with_items
    sketch.add_range(1, np.append([50_000] * 3, np.full(4997, 20)))
    fit = JointDecoder([sketch], IntegerRange(1, 5000)).fit
    assert len(fit.support.ids) < 20
    monkeypatch.setattr(
        Landed, "with_items", lambda self, *a: (added.append(a), plain(self, *a))[1]
    )
    assert 1 <= kappa_of(fit).value < 1.5
    values = np.concatenate([values[:, 0] for _, values in added]) / fit.scale - fit.threshold
    assert np.mean((values > 2) & (values < 26)) > 0.7
    assert np.ptp(values[values < 26]) > 10


@pytest.mark.parametrize("kappa", [1.0, 1.3])
def test_ln_2_errors_exceed_the_largest_that_joint_intervals_predict(fit, kappa):
    """Of items that nobody holds: those that stood out and were fitted, on the high side, have lost
    no mass, and see
    kappa; the others are given what phantoms are. Fitted items are normal, both sides. Items that
    nearly stood out, from 2.5 deviations, lack (1 - b) e.
    """
    found = JointIntervals(fit, 0.95, 5000, Kappa(kappa, "given"))
    distribution, x = joint_intervals.PhantomLaw(fit.landed, fit.residual), found.predicted_linf
    others = 5000 - len(fit.support.ids)
    light = (
        others * distribution.beyond(x) / 2,
        others * distribution.beyond(x * fit.share.mean() / kappa) / 2,
    )
    heavy = 2 * stats.norm.sf(x * np.sqrt(fit.own_shares) / (kappa * fit.scale)).sum()
    _, items, z = fit.standing_out(2.5)
    nearly = ~items.fitted & (z > 2.5)
    lacking, sd = (
        ((1 - items.share) * items.values)[nearly],
        (fit.scale / np.sqrt(items.share))[nearly],
    )
    unfitted = stats.norm.sf((x - lacking) / sd).sum()
    assert sum(light) + heavy + unfitted == pytest.approx(np.log(2), rel=1e-6)
    assert min(*light, heavy) > 1e-4


@pytest.mark.parametrize("many", [1e8, 300.0, 0.8])
@pytest.mark.parametrize("wanted", [0.1, 0.7, 5.0])
def test_secants_leave_the_root_of_a_bisection_as_it_is(many: float, wanted: float) -> None:
    asked = []

    def falling(x: float) -> float:
        asked.append(x)
        return many * float(stats.norm.sf(x)) + np.exp(-3 * x) - wanted

    alone, most = joint_intervals._solve(falling, 100.0), len(asked)
    asked.clear()
    assert joint_intervals._solve(falling, 100.0, wanted) == alone
    assert len(asked) < 0.75 * most or alone < 1e-12  # no root above 0


def test_secants_pass_over_a_jump() -> None:
    def falling(x: float) -> float:
        return 1.0 if x < 0.3 else -0.5

    assert joint_intervals._solve(falling, 2.0, 0.5) == joint_intervals._solve(falling, 2.0)


@pytest.mark.parametrize("root", [0.0, 1e-9, 0.3, 0.7, 1.0 - 1e-12])
def test_a_bisection_ends_where_a_hundred_steps_would_and_sooner(root: float) -> None:
    def falling(x: float) -> float:
        asked.append(x)
        return root - x

    asked: list[float] = []
    found = joint_intervals._solve(falling, 1.0)
    steps, low, high = len(asked), 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    assert found == (low + high) / 2
    assert steps < 60 or root < 1e-6  # near 0 numbers are dense
