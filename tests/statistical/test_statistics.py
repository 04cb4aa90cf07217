"""The probabilities the design rests on, from fixed seeds.

Every check is a z-test: the mean of independent values (one per seed or row) against its
expectation, in units of its standard error (sample standard deviation / sqrt(n)). LIMIT = 5 is
exceeded by chance with probability 6e-7; there are below 1,000 checks. Beside the checks stand
wrong variants, which the same check must reject.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedtally.kernels import range_ids, reference
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec, hashing

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
LIMIT = 5.0
ROWS = 10_000  # independent tables for the checks of hashes


def seed_of(label: str, number: int) -> bytes:
    return hashlib.sha256(f"{label} {number}".encode()).digest()


def z_score(values: Any, expected: float) -> float:
    values = np.asarray(values, np.float64)
    return float((values.mean() - expected) / (values.std(ddof=1) / np.sqrt(len(values))))


# ---- hashes ----


@pytest.fixture(scope="module")
def tables() -> Iterator[npt.NDArray[np.uint32]]:
    yield np.concatenate(
        [hashing.tabulation_tables(seed_of("tables", i), 500) for i in range(ROWS // 500)]
    )
    hashing.tabulation_tables.cache_clear()


def mixed_ids() -> npt.NDArray[np.uint64]:
    """Small consecutive ids, ids that differ in one byte, and ids of 64 bits."""
    wide = np.random.default_rng(1).integers(2**64 - 1, size=10, dtype=np.uint64)
    return np.concatenate(
        [np.arange(12), 256 * np.arange(1, 5), 1 << np.arange(17, 60, 8), wide]
    ).astype(np.uint64)


def pair_collisions(cells: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    first, second = np.triu_indices(cells.shape[1], 1)
    return cells[:, first] == cells[:, second]


@pytest.mark.parametrize("width", [2, 16, 50, 200])
def test_two_ids_collide_with_probability_one_over_width(tables: Any, width: int) -> None:
    """Pairwise independence: each pair collides with probability 1/W (+ 4e-6 relative).
    Red if the cells are uneven.
    """
    cells = reference.locations(reference.hash_words(tables, mixed_ids()), width)
    shares = pair_collisions(cells).mean(axis=1)
    assert abs(z_score(shares, 1 / width)) < LIMIT
    assert abs(z_score(shares, 1 / (width + 1 + width // 8))) > LIMIT


@pytest.mark.parametrize("same", [False, True])
def test_rows_are_independent(tables: Any, same: bool) -> None:
    """A pair collides in two rows with probability 1/W^2; with 1/W if both have one hash, which
    must be rejected."""
    width = 8
    collide = pair_collisions(reference.locations(reference.hash_words(tables, mixed_ids()), width))
    other = collide[::2] if same else collide[1::2]
    rejected = abs(z_score((collide[::2] & other).mean(axis=1), width**-2)) > LIMIT
    assert rejected == same


@pytest.mark.parametrize("bit", range(8))
def test_signs_are_balanced_and_independent(tables: Any, bit: int) -> None:
    """E s(x) = 0, E s(x) s(y) = 0, E s(x) 1[h(x) = k] = 0: red if a sign is constant, shared, or a
    location's bit."""
    words = reference.hash_words(tables, mixed_ids())
    signs = reference.signs(words, bit)
    first, second = np.triu_indices(signs.shape[1], 1)
    cells = reference.locations(words, 4)
    assert abs(z_score(signs.mean(axis=1), 0)) < LIMIT
    assert abs(z_score((signs[:, first] * signs[:, second]).mean(axis=1), 0)) < LIMIT
    for cell in range(4):
        assert abs(z_score((signs * (cells == cell)).mean(axis=1), 0)) < LIMIT
    leaked = reference.signs(words, 31)  # the top bit of the location
    assert abs(z_score((leaked * (cells == 0)).mean(axis=1), 0)) > LIMIT


def test_signs_of_two_bits_are_independent(tables: Any) -> None:
    """Why the rounds of hybrid average out: E s_a(x) s_b(x) s_a(y) s_b(y) = 0 for bits a != b; it
    is 1 for a = b."""
    words = reference.hash_words(tables, mixed_ids())
    first, second = np.triu_indices(words.shape[1], 1)
    products = [
        reference.signs(words, bit)[:, first] * reference.signs(words, bit)[:, second]
        for bit in range(8)
    ]
    for a in range(8):
        for b in range(a):
            assert abs(z_score((products[a] * products[b]).mean(axis=1), 0)) < LIMIT
    assert (products[3] * products[3] == 1).all()


def multiply_add_shift(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    a, b = np.random.default_rng(2).integers(2**64 - 1, size=(2, ROWS, 1), dtype=np.uint64)
    return ((a * ids + b) >> np.uint64(32)).astype(np.uint32)


@pytest.mark.parametrize("family", ["tabulation", "multiply-add-shift"])
def test_three_ids_of_a_progression(tables: Any, family: str) -> None:
    """3-wise independence: x, x + t, x + 2t all collide with probability 1/W^2; the product of
    signs has mean 0.

    Multiply-add-shift, which is only 2-wise independent, makes triple collisions far more likely:
    to be rejected.
    """
    width, steps = 32, np.array([1, 3, 5, 100, 257, 65_536], np.uint64)
    starts = np.array([0, 10, 2**32], np.uint64)
    triples = (
        starts[:, None, None] + steps[None, :, None] * np.arange(3, dtype=np.uint64)
    ).reshape(-1)
    words = (
        reference.hash_words(tables, triples)
        if family == "tabulation"
        else multiply_add_shift(triples)
    )
    cells = reference.locations(words, width).reshape(ROWS, -1, 3)
    together = (cells[..., 0] == cells[..., 1]) & (cells[..., 1] == cells[..., 2])
    rejected = abs(z_score(together.mean(axis=1), width**-2)) > LIMIT
    assert rejected == (family == "multiply-add-shift")
    if family == "tabulation":
        signs = reference.signs(words, 0).reshape(ROWS, -1, 3)
        assert abs(z_score(signs.prod(axis=2).mean(axis=1), 0)) < LIMIT
        assert abs(z_score((together * signs[..., 0] * signs[..., 1]).mean(axis=1), 0)) < LIMIT


def test_four_ids_of_a_square_are_dependent(tables: Any) -> None:
    """The known limit: the product of the signs of (0, 1, 256, 257) is always 1; within one byte it
    has mean 0."""
    square = reference.signs(reference.hash_words(tables, np.array([0, 1, 256, 257], np.uint64)), 0)
    assert (square.prod(axis=1) == 1).all()
    line = reference.signs(reference.hash_words(tables, np.array([0, 1, 2, 3], np.uint64)), 0)
    assert abs(z_score(line.prod(axis=1), 0)) < LIMIT


# ---- the estimate of one row ----

NUM_SEEDS = 2500
WIDTH = 8
FIRST_ID = 250  # crosses from one byte to two
COUNTS = np.random.default_rng(3).integers(0, 20, size=(3, 40))  # unequal rounds
BATCHES = {
    "shared": [[0, 1, 2]],
    "fresh": [[0], [1], [2]],
    "hybrid": [[0], [1], [2]],
    "batched:2": [[0, 1], [2]],
}


def landed(
    schedule: str, counts: I64, seed: bytes, rows: int = 1, width: int = WIDTH
) -> list[CountSketch]:
    spec = SketchSpec(rows, width, Schedule.parse(schedule), len(counts), seed)
    sketches = [CountSketch(spec, m) for m in range(len(counts))]
    for sketch, of_round in zip(sketches, counts, strict=True):
        sketch.add_range(FIRST_ID, of_round)
    return sketches


def estimates_of(schedule: str, counts: I64, as_schedule: str | None = None) -> F64:
    """Return float64 [seeds, items] from one row; `as_schedule` decodes as if another schedule had
    encoded."""
    found = []
    for i in range(NUM_SEEDS):
        sketches = landed(schedule, counts, seed_of("row", i))
        if as_schedule:
            others = landed(as_schedule, 0 * counts, seed_of("row", i))
            for other, sketch in zip(others, sketches, strict=True):
                other.counters += sketch.counters
            sketches = others
        found.append(MedianDecoder(sketches, expected=1).range(FIRST_ID, counts.shape[1]))
    return np.array(found)


@pytest.fixture(scope="module")
def row_estimates() -> dict[str, F64]:
    return {schedule: estimates_of(schedule, COUNTS) for schedule in BATCHES}


def worst_bias(estimates: F64) -> float:
    """Return the largest |z| over the items: 40 checks."""
    return max(
        abs(z_score(estimates[:, j], float(COUNTS[:, j].sum()))) for j in range(COUNTS.shape[1])
    )


@pytest.mark.parametrize("schedule", BATCHES)
def test_row_estimates_are_unbiased(row_estimates: dict[str, F64], schedule: str) -> None:
    """E = f_j, since signs are pairwise independent.
    Decoding with the other sign convention must be rejected.
    """
    assert worst_bias(row_estimates[schedule]) < LIMIT
    assert worst_bias(-row_estimates[schedule]) > LIMIT


@pytest.mark.parametrize(
    ("schedule", "as_schedule"),
    [("hybrid", "shared"), ("hybrid", "batched:2"), ("fresh", "hybrid"), ("shared", "hybrid")],
)
def test_decoding_with_the_signs_of_another_schedule_is_biased(
    schedule: str, as_schedule: str
) -> None:
    """So the check sees, for example, a decoder that takes the signs of round 0 in every round."""
    assert worst_bias(estimates_of(schedule, COUNTS, as_schedule)) > LIMIT


def excess_of_variance(estimates: F64, batches: list[list[int]]) -> float:
    """Compare with V_j = sum over batches b and items i != j of (f_i^b)^2 / W, which needs a 3-wise
    independent word.

    Fresh and hybrid: the errors of two rounds are uncorrelated, for their signs are independent:
    variances add up.
    """
    squares = np.array([COUNTS[batch].sum(axis=0) ** 2 for batch in batches]).sum(axis=0)
    variances = (squares.sum() - squares) / WIDTH
    errors = estimates - COUNTS.sum(axis=0)
    return z_score((errors**2 - variances).mean(axis=1), 0)


@pytest.mark.parametrize("schedule", BATCHES)
def test_variance_of_a_row_estimate(row_estimates: dict[str, F64], schedule: str) -> None:
    """A schedule fails the formula of others: hybrid with the signs of round 0 in every round is
    shared."""
    for name, batches in BATCHES.items():
        rejected = abs(excess_of_variance(row_estimates[schedule], batches)) > LIMIT
        assert rejected == (batches != BATCHES[schedule]), name


@pytest.mark.parametrize("schedule", ["fresh", "hybrid"])
def test_only_fresh_rounds_have_independent_errors(schedule: str) -> None:
    """E e_0^2 e_1^2 = V_0 V_1, V_m = (d - 1) c^2 / W, if locations are independent; hybrid rounds
    share collisions."""
    counts = np.full((2, 10), 5)
    products = []
    for i in range(NUM_SEEDS):
        errors = [
            MedianDecoder([sketch], expected=1).range(FIRST_ID, 10) - 5
            for sketch in landed(schedule, counts, seed_of("rounds", i))
        ]
        products.append((errors[0] ** 2 * errors[1] ** 2).mean())
    rejected = abs(z_score(products, (9 * 25 / WIDTH) ** 2)) > LIMIT
    assert rejected == (schedule == "hybrid")


def test_fresh_decoding_sums_the_medians_of_its_rounds() -> None:
    """With five rows, that is not the median of the sums, which is what hybrid decoding gives."""
    sketches = landed("fresh", COUNTS, seed_of("sum", 0), rows=5)
    by_round = sum(MedianDecoder([sketch]).range(FIRST_ID, 40) for sketch in sketches)
    assert np.array_equal(MedianDecoder(sketches).range(FIRST_ID, 40), by_round)


# ---- the distribution of the largest error, against fully random hashes ----

DOMAIN, KS_ROWS, KS_WIDTH, ROUNDS, REPEATS = 700, 5, 50, 10, 200
EXPONENTS = (1.1, 2.0, 3.0)
KS_SCHEDULES = {"shared": [10], "fresh": [1] * 10, "hybrid": [1] * 10, "batched:3": [4, 3, 3]}
REJECT_BELOW = 1e-4


def zipf_counts(exponent: float) -> I64:
    """Return 10^10 clients' counts of items 1..d, f_i proportional to i^-a; all are above 20:
    rounding is harmless."""
    weights = np.arange(1, DOMAIN + 1) ** -exponent
    return np.rint(1e10 * weights / weights.sum()).astype(np.int64)


def library_errors(schedule: str, exponent: float, repeats: int = REPEATS) -> F64:
    """Return the largest errors over items with ids 1..d in homogeneous rounds, one for each of
    `repeats` seeds."""
    counts, errors = zipf_counts(exponent), []
    for i in range(repeats):
        spec = SketchSpec(KS_ROWS, KS_WIDTH, Schedule.parse(schedule), ROUNDS, seed_of("linf", i))
        sketches = [CountSketch(spec, m) for m in range(ROUNDS)]
        for sketch in sketches:
            sketch.add_range(1, counts)
        errors.append(
            np.abs(MedianDecoder(sketches, DOMAIN).range(1, DOMAIN) - ROUNDS * counts).max()
        )
    return np.array(errors)


def simulated_errors(schedule: str, exponent: float) -> F64:
    """Return the same with hashes drawn for every (row, item), by the schedules' definitions and
    NumPy alone."""
    rng, counts = np.random.default_rng(4), zipf_counts(exponent).astype(np.float64)
    shape, errors = (KS_ROWS, DOMAIN), []
    offsets = KS_WIDTH * np.arange(KS_ROWS)[:, None]
    for _ in range(REPEATS):
        cells = rng.integers(KS_WIDTH, size=shape) + offsets
        by_row, medians = np.zeros(shape), np.zeros(DOMAIN)
        for size in KS_SCHEDULES[schedule]:
            if schedule == "fresh":
                cells = rng.integers(KS_WIDTH, size=shape) + offsets
            signs = 2.0 * rng.integers(2, size=shape) - 1
            sums = np.bincount(cells.ravel(), (size * signs * counts).ravel(), KS_ROWS * KS_WIDTH)
            by_row += signs * sums[cells]
            medians += np.sort(signs * sums[cells], axis=0)[KS_ROWS // 2]
        estimates = medians if schedule == "fresh" else np.sort(by_row, axis=0)[KS_ROWS // 2]
        errors.append(np.abs(estimates - ROUNDS * counts).max())
    return np.array(errors)


def ks_p_value(first: F64, second: F64) -> float:
    """Return P(D >= observed) of the two-sample Kolmogorov-Smirnov statistic for equal sizes n,
    exactly.

    Gnedenko and Korolyuk 1951: with D = k/n, p = 2 sum over j >= 1 of (-1)^(j+1) C(2n, n - jk) /
    C(2n, n). Ties only make D smaller.
    """
    n, points = len(first), np.concatenate([first, second])
    below = [np.searchsorted(np.sort(sample), points, side="right") for sample in (first, second)]
    k = int(np.abs(below[0] - below[1]).max())
    if k == 0:
        return 1.0
    total = sum((-1) ** (j + 1) * comb(2 * n, n - j * k) for j in range(1, n // k + 1))
    return float(2 * total / comb(2 * n, n))


def test_p_value_against_all_interleavings() -> None:
    from itertools import combinations

    n = 4
    samples = [
        (np.array(c, float), np.array([v for v in range(2 * n) if v not in c], float))
        for c in combinations(range(2 * n), n)
    ]
    gaps = [
        max(abs(int((a <= v).sum()) - int((b <= v).sum())) for v in range(2 * n))
        for a, b in samples
    ]
    for (a, b), gap in zip(samples, gaps, strict=True):
        assert ks_p_value(a, b) == pytest.approx(np.mean(np.array(gaps) >= gap))


@pytest.fixture(scope="module")
def simulated() -> Callable[[str, float], F64]:
    known: dict[tuple[str, float], F64] = {}

    def of(schedule: str, exponent: float) -> F64:
        if (schedule, exponent) not in known:
            known[schedule, exponent] = simulated_errors(schedule, exponent)
        return known[schedule, exponent]

    return of


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("schedule", KS_SCHEDULES)
def test_largest_error_is_that_of_random_hashes(
    simulated: Callable[[str, float], F64], schedule: str, exponent: float
) -> None:
    """Tabulation acts like full randomness on ids 1..d; with other seeds one of 800 runs of these
    12 would be red."""
    assert (
        ks_p_value(library_errors(schedule, exponent), simulated(schedule, exponent)) > REJECT_BELOW
    )


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize(
    ("schedule", "as_schedule"),
    [("shared", "hybrid"), ("hybrid", "shared"), ("batched:3", "hybrid"), ("fresh", "hybrid")],
)
def test_other_schedules_are_told_apart(
    simulated: Callable[[str, float], F64], schedule: str, as_schedule: str, exponent: float
) -> None:
    """The power of the test: hybrid with the same signs in all rounds, which is shared, is rejected
    as hybrid."""
    if (schedule, exponent) == ("fresh", 1.1):
        pytest.skip("nearly the same distribution, as the paper's figure 2 says")
    assert (
        ks_p_value(library_errors(schedule, exponent), simulated(as_schedule, exponent))
        < REJECT_BELOW
    )


def test_one_hash_for_all_rows_is_told_apart(
    simulated: Callable[[str, float], F64], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five equal rows are one row: the median no longer helps."""
    real = hashing.tabulation_tables

    def one_row(seed: bytes, rows: int, group: int = 0, purpose: int = 0) -> Any:
        return np.repeat(real(seed, 1, group, purpose), rows, axis=0)

    monkeypatch.setattr(hashing, "tabulation_tables", one_row)
    assert ks_p_value(library_errors("hybrid", 2.0), simulated("hybrid", 2.0)) < REJECT_BELOW


def test_ids_of_the_checks_are_what_they_say() -> None:
    assert zipf_counts(3.0).min() > 20
    assert range_ids(FIRST_ID, COUNTS.shape[1])[-1] > 255
