"""Windows of landed rounds: read from one fit, chosen by the sums, with limits of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.kernels.propagation import OWN_SHARE
from fedtally.recovery import windows
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.belief import BeliefDecoder
from fedtally.recovery.decoders.joint import joint
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.kind import FittedDecoder
from fedtally.recovery.intervals import make_intervals
from fedtally.recovery.windows import WindowedDecoder, decode
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
SIZE, ROUNDS, CLIENTS = 2000, 12, 1000
DOMAIN = IntegerRange(1, SIZE)
LAW = (np.arange(1, SIZE + 1) + 2.7) ** -1.1
LAW /= LAW.sum()
Z = 1.959964


def land(
    counts: I64, seed: int, schedule: str = "hybrid", noise: float = 0.0, width: int = 100
) -> list[CountSketch]:
    """Return the sums of rounds of the items 1..d, int64 [rounds, d], with rounded noise."""
    rng = np.random.default_rng(seed)
    spec = SketchSpec(5, width, Schedule.parse(schedule), len(counts), rng.bytes(32))
    sketches = [CountSketch(spec, number) for number in range(len(counts))]
    for sketch, held in zip(sketches, counts, strict=True):
        sketch.add_range(1, held)
        if noise:
            drawn = rng.normal(0, noise, sketch.counters.shape)
            sketch.counters += np.rint(drawn).astype(np.int64)
    return sketches


def quiet(seed: int, rounds: int = ROUNDS) -> I64:
    """Return rounds of one law: int64 [rounds, d]."""
    return np.random.default_rng(seed).multinomial(CLIENTS, LAW, size=rounds)


def spiky(seed: int) -> I64:
    """Return rounds in which a tenth of the items is ten times as frequent, others a tenth."""
    rng = np.random.default_rng(seed)
    law = LAW * np.where(rng.random((ROUNDS, SIZE)) < 0.1, 10.0, 0.1)
    return np.stack([rng.multinomial(CLIENTS, one / one.sum()) for one in law])


def l2(found: F64, counts: I64) -> float:
    return float(np.linalg.norm(found - counts))


@pytest.mark.parametrize("recovery", [Recovery.BELIEF, Recovery.JOINT, Recovery.MEDIAN])
def test_all_rounds_and_no_history_are_the_usual_decoders_to_the_bit(recovery: Recovery) -> None:
    sketches = land(quiet(0), 1)
    for rounds, history in ((range(ROUNDS), 64), (range(ROUNDS), 0), ([3, 9, 10], 0), ([4], 1)):
        usual = recovery.kind.make([sketches[number] for number in rounds], DOMAIN)
        found = decode(sketches, DOMAIN, rounds, recovery, history)
        assert found.decoder is found.limits and not found.prior
        assert found.rounds == found.history == list(rounds)
        assert np.array_equal(found.decoder.range(1, SIZE), usual.range(1, SIZE))


def test_the_paper_s_decoder_has_no_history() -> None:
    sketches = land(quiet(0), 1)
    found = decode(sketches, DOMAIN, [11], Recovery.MEDIAN)
    alone = Recovery.MEDIAN.kind.make(sketches[11:], DOMAIN)
    assert np.array_equal(found.decoder.range(1, SIZE), alone.range(1, SIZE))


def reference(decoder: BeliefDecoder, chosen: npt.NDArray[np.bool_]) -> tuple[F64, F64]:
    """Return what cells say of all candidates in some batches, before phantoms are asked.

    In the words of the module: residuals and messages of the other batches are left out.
    """
    messages = decoder.messages
    assert messages is not None and messages.whole
    landed = messages.landed
    rows, _, batches = messages.residual.shape
    cells, signs = landed.places(messages.candidates.ids(messages.positions))
    if not landed.fresh:
        cells = cells + np.arange(batches)
    mine = np.moveaxis(messages.sent.beliefs, 3, 1).reshape(-1, rows, batches)[: len(cells)]
    heard = (signs * messages.residual.reshape(-1)[cells] + mine) * chosen
    unsure = np.moveaxis(messages.sent.unsure, 3, 1)
    unsure = unsure.reshape(-1, rows, unsure.shape[-1])[: len(cells)]
    kinds = messages.variance.shape[2]
    owned = messages.variance.reshape(-1)[cells if landed.fresh else cells[..., :1] // batches]
    square = np.maximum(owned - unsure, OWN_SHARE * owned)
    if not landed.fresh:
        heard, square = heard.sum(axis=2, keepdims=True), square * float(messages._shares @ chosen)
    precision = 1.0 / square
    total = precision.sum(axis=1)
    value, variance = (precision * heard).sum(axis=1) / total, 1.0 / total
    keep = chosen if kinds == batches > 1 else np.ones(1, bool)
    return value[:, keep].sum(axis=1), variance[:, keep].sum(axis=1) ** 0.5


@pytest.mark.parametrize("schedule", ["hybrid", "batched:4", "fresh"])
def test_a_window_of_messages_is_what_the_reference_reads(schedule: str, backend: str) -> None:
    decoder = BeliefDecoder(land(quiet(2), 3, schedule), DOMAIN)
    assert not decoder.fallback
    chosen = np.zeros(len(decoder.clients), bool)
    chosen[[1, -1]] = True
    value, stddev = decoder.window(chosen).measured(range(1, SIZE + 1))
    expected, uncalibrated = reference(decoder, chosen)
    np.testing.assert_allclose(value, expected, atol=2e-3)
    # Phantoms give all deviations one factor.
    factor = stddev / uncalibrated
    np.testing.assert_allclose(factor, factor[0], rtol=1e-3)


@pytest.mark.parametrize("noise", [0.0, 5.0])
@pytest.mark.parametrize("kind", [BeliefDecoder, JointDecoder])
def test_errors_of_windows_are_those_that_are_stated(
    kind: type[FittedDecoder], noise: float
) -> None:
    """4 campaigns of 2,000 items and 3 windows: .95 of the errors are within the stated ones.

    An interval of no more than a client's width is one client wide, so that it may hold oftener.
    With 24,000 errors of which hundreds are independent in each window, .93 to .97 is within four
    standard deviations.
    """
    held: dict[bool, list[npt.NDArray[np.bool_]]] = {True: [], False: []}
    for seed in range(4):
        counts = quiet(10 + seed)
        decoder: Any = kind(land(counts, 20 + seed, noise=noise), DOMAIN)  # type: ignore[call-arg]
        assert decoder.has_fit
        for rounds in ([11], [0, 5], range(8)):
            chosen = np.isin(np.arange(ROUNDS), rounds)
            for learned, found in held.items():
                value, stddev = decoder.window(chosen, learned).measured(range(1, SIZE + 1))
                found.append(np.abs(value - counts[chosen].sum(axis=0)) <= Z * stddev)
    assert 0.93 < np.mean(held[True]) < 0.97
    assert 0.93 < np.mean(held[False]) < 0.97


def test_a_window_of_a_joint_fit_that_is_only_measured_fits_nothing_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the shares of its cells from the probes of the fit, as a window of all does."""
    decoder = JointDecoder(land(quiet(2), 3), DOMAIN)
    ids = range(1, SIZE + 1)
    monkeypatch.setattr(joint.kernels, "refit", lambda *_, **__: pytest.fail("a fit"))
    one = decoder.window(np.arange(ROUNDS) == 11, learned=False).measured(ids)
    assert 0 < np.median(one.stddev) < np.median(decoder.measured(ids).stddev)
    whole = decoder.window(np.ones(ROUNDS, bool), learned=False).measured(ids)
    assert all(map(np.array_equal, whole, decoder.measured(ids)))


@pytest.mark.parametrize("recovery", [Recovery.BELIEF, Recovery.JOINT])
def test_limits_do_not_depend_on_the_prior(
    recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    sketches = land(quiet(4), 5)
    found = decode(sketches, DOMAIN, [10, 11], recovery)
    assert isinstance(found.decoder, WindowedDecoder) and found.prior == list(range(10))

    def limits(decoder: windows.Decoded) -> list[F64]:
        both = make_intervals(decoder.limits, sketches[10:], DOMAIN, 0.9).at(range(1, SIZE + 1))
        return list(both)

    before = limits(found)
    monkeypatch.setattr(windows.History, "__init__", lambda self, *_: setattr(self, "gain", -1.0))
    without = decode(sketches, DOMAIN, [10, 11], recovery)
    assert without.decoder is without.limits and not without.prior
    assert all(map(np.array_equal, before, limits(without)))


@pytest.mark.parametrize("kind", [BeliefDecoder, JointDecoder])
def test_limits_of_windows_hold(kind: type[FittedDecoder]) -> None:
    """6 windows of 2,000 items: nine in ten limits hold the counts, at least .88 of them."""
    held, wide = [], []
    for seed in range(3):
        counts = quiet(30 + seed)
        sketches = land(counts, 40 + seed)
        decoder: Any = kind(sketches, DOMAIN)  # type: ignore[call-arg]
        for rounds in ([11], range(6, 12)):
            chosen = np.isin(np.arange(ROUNDS), rounds)
            window = decoder.window(chosen)
            some = [sketches[number] for number in rounds]
            low, high = make_intervals(window, some, DOMAIN, 0.9).at(range(1, SIZE + 1))
            truth = counts[chosen].sum(axis=0) / counts[chosen].sum()
            held.append((low <= truth) & (truth <= high))
            wide.append(np.median(high - low) * window.num_clients)
    assert np.mean(held) > 0.88
    assert min(wide) > 2.0  # no limit is closer than a client on either side


def test_the_history_helps_where_nothing_changes() -> None:
    """Of 2 campaigns the mean l2 error of the last round falls below .9 of that without history.

    With noise of the rounds' sums, joint recovery answers, and it falls to less than a half.
    """
    for noise, most in ((0.0, 0.9), (5.0, 0.5)):
        errors = []
        for seed in range(2):
            counts = quiet(50 + seed)
            sketches = land(counts, 60 + seed, noise=noise)
            both = [
                decode(sketches, DOMAIN, [11], Recovery.BELIEF, history).decoder.range(1, SIZE)
                for history in (64, 0)
            ]
            errors.append([l2(one, counts[11]) for one in both])
        helped, alone = np.mean(errors, axis=0)
        assert helped < most * alone


def test_the_sums_refuse_a_history_that_harms() -> None:
    """Items that jump by factors of a hundred tell nothing of each other: 2 campaigns."""
    errors = []
    for seed in range(2):
        counts = spiky(70 + seed)
        sketches = land(counts, 80 + seed)
        both = [
            decode(sketches, DOMAIN, [11], Recovery.BELIEF, history).decoder.range(1, SIZE)
            for history in (64, 0)
        ]
        errors.append([l2(one, counts[11]) for one in both])
    helped, alone = np.mean(errors, axis=0)
    assert helped < 1.1 * alone


def test_a_window_in_the_middle_rests_on_the_rounds_about_it() -> None:
    sketches = land(quiet(6, 20), 7)
    found = decode([*sketches[:6], *sketches[8:]], DOMAIN, [9, 10], Recovery.BELIEF, 6)
    assert found.rounds == [9, 10]
    assert set(found.history) | set(found.prior) == {8, 9, 10, 11, 12, 13}


def test_estimates_by_range_and_by_ids_agree() -> None:
    sketches = land(quiet(8), 9)
    decoder = decode(sketches, DOMAIN, [11], Recovery.BELIEF).decoder
    assert isinstance(decoder, WindowedDecoder) and decoder.num_clients == CLIENTS
    ids = np.arange(1, SIZE + 1, dtype=np.uint64)
    np.testing.assert_allclose(decoder.range(1, SIZE), decoder.at(ids), atol=1e-3)
    assert decoder.range(1, SIZE).min() >= 0.0


def test_rounds_of_one_set_of_signs_are_decoded_alone() -> None:
    sketches = land(quiet(8), 9, "shared")
    found = decode(sketches, DOMAIN, [11], Recovery.JOINT)
    alone = JointDecoder(sketches[11:], DOMAIN)
    assert np.array_equal(found.decoder.range(1, SIZE), alone.range(1, SIZE))


def test_the_last_rounds_are_landed_ones() -> None:
    sketches = [land(quiet(0), 1)[number] for number in (9, 2, 5)]
    assert windows.last(sketches, 2) == [5, 9] and windows.last(sketches, 9) == [2, 5, 9]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: decode(s, DOMAIN, [], Recovery.BELIEF), "at least one round"),
        (lambda s: decode(s, DOMAIN, [3, 12], Recovery.BELIEF), "round 12 did not"),
        (lambda s: decode(s, DOMAIN, [1], Recovery.BELIEF, -1), "history must be at least 0"),
        (lambda s: decode([], DOMAIN, [1], Recovery.BELIEF), "no round has landed"),
        (lambda s: windows.last(s, 0), "last must be at least 1"),
        (lambda s: windows.last([], 1), "no round has landed"),
    ],
)
def test_windows_that_are_none(call: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call(land(quiet(0), 1))


def test_batches_are_not_cut_through() -> None:
    sketches = land(quiet(0), 1, "batched:4")
    with pytest.raises(InvalidInputError, match="round 9 has the signs of a round in it"):
        decode(sketches, DOMAIN, [10, 11], Recovery.BELIEF)
    # A round of the batch that did not land cannot be in the window.
    found = decode([*sketches[:9], *sketches[10:]], DOMAIN, [10, 11], Recovery.BELIEF)
    assert found.rounds == [10, 11]


def test_the_window_for_now_is_long_where_nothing_changes_and_short_after_a_change() -> None:
    counts = quiet(90)
    still = BeliefDecoder(land(counts, 91), DOMAIN)
    assert windows.shortest_enough(still, DOMAIN) == ROUNDS
    counts[9:] = counts[9:, ::-1]  # the last items are the most frequent now
    moved = BeliefDecoder(land(counts, 92), DOMAIN)
    assert moved.has_fit and windows.shortest_enough(moved, DOMAIN) <= 3


def _steady(rng: np.random.Generator, law: F64) -> F64:
    """Each item grows or falls by a factor of 4 over 48 rounds."""
    side = rng.choice([-1.0, 1.0], len(law))
    return law * 4.0 ** (side * (np.linspace(0.0, 1.0, 48)[:, None] - 0.5))


def _swinging(rng: np.random.Generator, law: F64) -> F64:
    """Each item swings by .8 of itself in 12 rounds."""
    phase = rng.uniform(0.0, 2 * np.pi, len(law))
    return law * (1 + 0.8 * np.sin(2 * np.pi * np.arange(48)[:, None] / 12 + phase))


@pytest.mark.parametrize("change", [_steady, _swinging, lambda rng, law: np.tile(law, (48, 1))])
def test_the_window_for_now_is_hardly_worse_than_the_best_in_hindsight(change: Any) -> None:
    """40 draws of 48 rounds, without a sketch: its largest error is at most half again as large."""
    lengths, law = [*windows.LENGTHS], LAW[:500] / LAW[:500].sum()
    ratios = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        laws = change(rng, law)
        laws /= laws.sum(axis=1, keepdims=True)
        counts = rng.poisson(5000 * laws)
        people = 5000.0 * np.array(lengths)[:, None]
        frequency = np.stack([counts[-k:].sum(axis=0) for k in lengths]) / people
        error = np.sqrt(np.maximum(frequency, 1 / people) / people)
        seen = (frequency / error).max(axis=0) > 5.0
        chosen = windows._least_off(lengths, frequency[:, seen], error[:, seen])
        largest = np.abs(frequency - laws[-1])[:, seen].max(axis=1)
        ratios.append(largest[chosen] / largest.min())
    assert np.mean(ratios) < 1.5


def test_the_window_for_now_is_the_longest_where_nothing_stands_out() -> None:
    rare = np.random.default_rng(0).multinomial(20, np.full(SIZE, 1 / SIZE), size=ROUNDS)
    decoder = JointDecoder(land(rare, 1, noise=30.0), DOMAIN)
    decoder.fallback = None  # the fit of noise alone
    assert windows.shortest_enough(decoder, DOMAIN) == ROUNDS
