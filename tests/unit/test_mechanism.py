"""Integer noise: tables against decimal arithmetic, draws against big integers, samples against
their distribution."""

from __future__ import annotations

import ast
import math
from bisect import bisect_right
from decimal import Decimal, localcontext
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

import fedtally
from fedtally import kernels
from fedtally.crypto.keys import Secret
from fedtally.crypto.prg import MAX_STREAM_BYTES, expand
from fedtally.errors import InvalidInputError
from fedtally.privacy import mechanism
from fedtally.privacy.mechanism import MAX_DRAWS, Noise, rounded_gaussian, skellam

VARIANCES = [0.03, 0.289, 17.0**2, 150.0**2]
MAKERS = [rounded_gaussian, skellam]
NOISES = [
    pytest.param(make, variance, id=f"{make.__name__}-{variance:g}")
    for make in MAKERS
    for variance in VARIANCES
]
KEYS = st.binary(min_size=32, max_size=32)
WORD = 2**64
P_VALUE = 1e-6


def entries(noise: Noise) -> list[int]:
    """Return the cumulative table without its last entry, 2^128."""
    return list(accumulate(noise.masses))[:-1]


def by_big_integers(noise: Noise, key: bytes, size: int) -> list[int]:
    """Draw as the docstring of `draw` says, always with both words."""
    stream = expand(Secret(key), 16 * size)
    words = [int.from_bytes(stream[at : at + 8], "little") for at in range(0, 16 * size, 8)]
    table = entries(noise)
    return [
        bisect_right(table, WORD * words[i] + words[size + i]) - noise.largest for i in range(size)
    ]


# ---- tables ----


def decimal_gaussian(variance: float, reach: int) -> list[Decimal]:
    """Return P(X = k), k = -reach ..
    0, from the series of the error function, and P(X < -reach) before them.
    """
    scale = (2 * Decimal(variance)).sqrt()
    machin = (
        (weight * (-1) ** n, (2 * n + 1) * x ** (2 * n + 1))
        for weight, x in ((16, 5), (-4, 239))
        for n in range(120)
    )
    root = sum((Decimal(a) / b for a, b in machin), Decimal(0)).sqrt()  # of pi

    def upper(y: Decimal) -> Decimal:
        """Return P(Z > y) = 1/2 - x e^(-x^2) / sqrt(pi) sum (2 x^2)^n / (2n + 1)!!, x = y /
        scale."""
        x = y / scale
        term, total, n = Decimal(1), Decimal(0), 0
        while term > Decimal(10) ** -100:
            total += term
            n += 1
            term *= 2 * x * x / (2 * n + 1)
        return Decimal(1) / 2 - x * (-x * x).exp() * total / root

    # P(X < -reach), ..., P(X < 0)
    tails = [upper(k + Decimal(1) / 2) for k in range(reach, -1, -1)]
    return [tails[0], *(b - a for a, b in pairwise(tails)), 1 - 2 * tails[-1]]


def decimal_skellam(variance: float, reach: int) -> list[Decimal]:
    """Return P(X = k), k = -reach ..
    0, from the power series of I_k, and P(X < -reach) before them.
    """
    half = Decimal(variance) / 2

    def mass(k: int) -> Decimal:
        term, total, m = half**k / math.factorial(k), Decimal(0), 0
        while term > total * Decimal(10) ** -80:
            total += term
            m += 1
            term *= half * half / (m * (m + k))
        return total * (-2 * half).exp()

    masses = [mass(k) for k in range(reach + 1)]
    return [(1 - 2 * sum(masses[1:]) - masses[0]) / 2, *reversed(masses)]


@pytest.mark.parametrize("variance", [0.03, 0.289, 1.0, 17.0**2])
@pytest.mark.parametrize(
    ("make", "exact"), [(rounded_gaussian, decimal_gaussian), (skellam, decimal_skellam)]
)
def test_total_variation_is_below_the_bound(make: Any, exact: Any, variance: float) -> None:
    """And not far above it: two entries differ in rounding by a third on average, where the bound
    says 2."""
    noise = make(variance)
    with localcontext() as context:
        context.prec = 160
        masses = exact(variance, noise.largest)
        unit = Decimal(2) ** -128
        assert 0 < masses[0] < unit * (1 + Decimal(2) ** -32)
        here = [unit * mass for mass in noise.masses[: noise.largest + 1]]
        difference = [masses[0], *(abs(a - b) for a, b in zip(masses[1:], here, strict=True))]
        total_variation = sum(difference[:-1]) + difference[-1] / 2
        assert total_variation <= Decimal(noise.total_variation)
        assert noise.largest < 100 or Decimal(noise.total_variation) <= 8 * total_variation
        for floor, tail in zip(
            accumulate(noise.masses[: noise.largest]), accumulate(masses[1:-1]), strict=True
        ):
            assert -(Decimal(2) ** -32) < (masses[0] + tail) / unit - floor < 1 + Decimal(2) ** -32


@pytest.mark.parametrize("variance", [2.0**-6, *VARIANCES, 1e6, 2.0**20 + 0.3])
@pytest.mark.parametrize("make", MAKERS)
def test_tables_are_whole_and_symmetric(make: Any, variance: float) -> None:
    noise = make(variance)
    assert sum(noise.masses) == 2**128 and noise.masses == noise.masses[::-1]
    assert (
        min(noise.masses) >= 0
        and noise.masses[0] > 0
        and len(noise.masses) == 2 * noise.largest + 1 >= 3
    )
    assert noise.total_variation == (len(noise.masses) + 1) * 2.0**-128
    assert (
        noise.name == {rounded_gaussian: "rounded Gaussian", skellam: "Skellam"}[make]
        and noise.variance == variance
    )


@pytest.mark.parametrize("variance", [2.0**-40, 1e-6])
def test_skellam_of_a_share_of_many(variance: float) -> None:
    assert skellam(variance).pmf()[1] == pytest.approx(variance / 2, rel=2 * variance)


@pytest.mark.promise
@pytest.mark.parametrize("variance", [*VARIANCES, 1e6, 2.0**24])
def test_masses_are_those_of_scipy(variance: float) -> None:
    s = math.sqrt(variance)
    k = np.arange(int(6 * s) + 2)
    for noise, expected in (
        (rounded_gaussian(variance), special.ndtr((0.5 - k) / s) - special.ndtr((-0.5 - k) / s)),
        (skellam(variance), special.ive(k, variance)),
    ):
        pmf = noise.pmf()
        own = np.array([pmf.get(int(i), 0.0) for i in k])
        assert np.allclose(own, expected, rtol=1e-9, atol=1e-25)


@pytest.mark.parametrize("variance", [0.289, 17.0**2, 1e6])
@pytest.mark.parametrize("make", MAKERS)
def test_pmf_is_the_table(make: Any, variance: float) -> None:
    noise = make(variance)
    pmf = noise.pmf()
    assert pmf == {
        k: m / 2**128
        for k, m in zip(range(-noise.largest, noise.largest + 1), noise.masses, strict=True)
        if m
    }
    assert sum(pmf.values()) == pytest.approx(1, abs=1e-12) and min(pmf.values()) >= 2.0**-128
    own = sum(k * k * p for k, p in pmf.items())
    assert own == pytest.approx(
        variance if make is skellam else variance + 1 / 12, rel=1e-9, abs=0.01
    )


def test_shares_add_up_to_skellam() -> None:
    """The n-fold convolution of the table for v/n is the table for v."""
    n, v = 10, 2.89
    share, total = (
        np.array([x.pmf()[k] for k in range(-x.largest, x.largest + 1)])
        for x in (skellam(v / n), skellam(v))
    )
    convolved = np.ones(1)
    for _ in range(n):
        convolved = np.convolve(convolved, share)
    excess = (len(convolved) - len(total)) // 2
    assert excess > 0 and np.allclose(convolved[excess:-excess], total, rtol=0, atol=1e-14)


def test_tables_are_kept() -> None:
    assert skellam(0.289) is skellam(np.float64(0.289)) and rounded_gaussian(1) is rounded_gaussian(
        1.0
    )


@pytest.mark.parametrize(
    "value", [0.0, -1.0, 2.0**-7, 2.0**31, math.nan, math.inf, True, "1", None]
)
def test_variances_that_have_no_table(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="variance must be"):
        rounded_gaussian(value)
    if value != 2.0**-7:
        with pytest.raises(InvalidInputError, match="variance must be"):
            skellam(value)


# ---- draws ----


@given(
    KEYS, st.sampled_from(VARIANCES), st.sampled_from(MAKERS), st.integers(1, 400), st.booleans()
)
def test_draws_are_those_of_big_integers(
    backend: str, key: bytes, variance: float, make: Any, size: int, constant_time: bool
) -> None:
    noise = make(variance)
    draws = noise.draw(Secret(key), size, constant_time)
    assert draws.dtype == np.int64 and draws.tolist() == by_big_integers(noise, key, size)


@pytest.mark.parametrize("constant_time", [False, True])
def test_long_draws_are_those_of_big_integers(backend: str, constant_time: bool) -> None:
    """Across chunks of the stream, and not in whole blocks of the scan."""
    key = bytes(range(32))
    draws = skellam(0.289).draw(Secret(key), 40_001, constant_time)
    assert draws.tolist() == by_big_integers(skellam(0.289), key, 40_001)


def crafted(table: list[int]) -> list[tuple[int, int]]:
    """Return words and low words at, just below and just above every entry, and at the ends."""
    near = [entry + d for entry in table for d in (-1, 0, 1, -WORD, WORD)]
    return [
        divmod(u, WORD)
        for u in [0, 1, WORD - 1, 2**128 - 1, 2**128 - WORD, *near]
        if 0 <= u < 2**128
    ]


@pytest.mark.promise
@each_case("scan", [False, True])
@each_case(("make", "variance"), [noise.values for noise in NOISES])
def test_ties_are_settled_by_the_low_words(
    backend: str, make: Any, variance: float, scan: bool
) -> None:
    noise = make(variance)
    table = entries(noise)
    pairs = crafted(table[:: 1 + len(table) // 400])
    expected = [bisect_right(table, WORD * a + b) - noise.largest for a, b in pairs]
    words, low = np.array(pairs, np.uint64).T.copy()
    inversion = kernels.Inversion(table, -noise.largest)
    settled = inversion.draw(words.copy(), low, scan)
    assert settled is not None and settled.tolist() == expected
    uppers = {entry // WORD for entry in table} | {0, WORD - 1}
    for (a, _), k in list(zip(pairs, expected, strict=True))[:: 1 + len(pairs) // 60]:
        alone = inversion.draw(np.array([a], np.uint64), scan=scan)
        assert (alone is None or alone.tolist() == [k]) and (alone is not None or a in uppers)
        if a in uppers - {0, WORD - 1}:
            assert alone is None
    free = np.array([a for a, _ in pairs if a not in uppers], np.uint64)
    assert len(free) and inversion.draw(free, scan=scan) is not None
    one_tied = np.insert(np.full(100, 2**62 + 12345, np.uint64), 70, table[noise.largest] // WORD)
    assert inversion.draw(one_tied, scan=scan) is None


@pytest.mark.parametrize("constant_time", [False, True])
def test_a_tie_in_the_stream(
    backend: str, constant_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole path: words n + i are asked for, and i keeps its own."""
    noise = skellam(17.0**2)
    table = entries(noise)
    pairs = crafted(table)
    words, asked = np.array(pairs, np.uint64).T.reshape(-1), []

    def stream(_: Secret, count: int) -> npt.NDArray[np.uint64]:
        asked.append(count)
        return words[:count].copy()

    monkeypatch.setattr(mechanism, "stream", stream)
    draws = noise.draw(Secret(bytes(32)), len(pairs), constant_time)
    assert draws.tolist() == [bisect_right(table, WORD * a + b) - noise.largest for a, b in pairs]
    assert asked == [len(pairs), 2 * len(pairs)]


@given(
    st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=60),
    st.integers(-(2**62), 2**62),
    st.booleans(),
    st.data(),
)
@settings(max_examples=60)
def test_any_table_is_inverted(
    backend: str, table: list[int], first: int, scan: bool, data: st.DataObject
) -> None:
    table = sorted(table)
    pairs = [*crafted(data.draw(st.lists(st.sampled_from(table), max_size=8))), (2**63, 0)]
    words, low = np.array(pairs, np.uint64).T.copy()
    inversion = kernels.Inversion(table, first)
    expected = [first + bisect_right(table, WORD * a + b) for a, b in pairs]
    settled = inversion.draw(words.copy(), low, scan)
    assert settled is not None and settled.tolist() == expected
    uppers = {entry // WORD for entry in table} | {0, WORD - 1}
    free = [i for i, (a, _) in enumerate(pairs) if a not in uppers]
    alone = inversion.draw(words[free], scan=scan)
    assert alone is not None and alone.tolist() == [expected[i] for i in free]


def test_the_door_of_inversion() -> None:
    for table in ([], [2**128], [-1], [2, 1]):
        with pytest.raises(
            InvalidInputError,
            match=r"entries must be|cumulative must be integers 0 \.\. 2\^128 - 1",
        ):
            kernels.Inversion(table, 0)
    with pytest.raises(InvalidInputError, match="first must be"):
        kernels.Inversion([1], 2**62 + 1)
    for words in (np.zeros(3, np.int64), np.zeros((2, 2), np.uint64)):
        with pytest.raises(InvalidInputError, match="one-dimensional uint64"):
            kernels.Inversion([1], 0).draw(words)  # type: ignore[arg-type]


def test_a_key_serves_one_stream() -> None:
    """It is wiped, so that neither other noise nor a mask can come from it again."""
    key = Secret(bytes(32))
    first = skellam(0.289).draw(key, 100)
    with pytest.raises(InvalidInputError, match="was wiped"):
        skellam(0.289).draw(key, 100)
    with pytest.raises(InvalidInputError, match="was wiped"):
        rounded_gaussian(289.0).draw(key, 100)
    # another copy: the caller's care
    assert np.array_equal(first, skellam(0.289).draw(Secret(bytes(32)), 100))


def test_no_word_serves_twice() -> None:
    """Different keys, and different places of one stream, give draws that do not follow each
    other."""
    noise = rounded_gaussian(1e6)
    draws = [noise.draw(Secret(bytes([k]) * 32), 40_000) for k in range(4)]
    for i, one in enumerate(draws):
        for other in [*draws[:i], np.roll(one, 16_384), np.roll(one, 1), one[::-1]]:
            # Equal in a place with probability sum p^2 = 1 / (2 sqrt(pi) 1000): 11.3 of 40,000
            # expected, 5.6 in pairs.
            assert np.count_nonzero(one == other) <= 60


def test_shorter_draws_begin_alike() -> None:
    long = skellam(17.0**2).draw(Secret(bytes(32)), 50_000)
    assert np.array_equal(long[:123], skellam(17.0**2).draw(Secret(bytes(32)), 123))


@pytest.mark.parametrize("size", [0, -1, MAX_DRAWS + 1, 1.0, True])
def test_sizes_that_cannot_be_drawn(size: Any) -> None:
    key = Secret(bytes(32))
    with pytest.raises(InvalidInputError, match="size must be"):
        skellam(0.5).draw(key, size)
    assert len(skellam(0.5).draw(key, 1)) == 1  # the key was not used
    assert 2 * 8 * MAX_DRAWS <= MAX_STREAM_BYTES  # room for every low word


@pytest.mark.parametrize("length", [16, 31, 33])
def test_keys_of_another_length(length: int) -> None:
    with pytest.raises(InvalidInputError, match=f"must be of 32 bytes, got {length}"):
        skellam(0.5).draw(Secret(bytes(length)), 4)


# ---- samples ----


def p_value(draws: npt.NDArray[np.int64], pmf: dict[int, float]) -> float:
    """Return the p-value of Pearson's chi-square; cells of fewer than 20 expected draws are joined
    at each end."""
    largest = max(pmf)
    expected = len(draws) * np.array([pmf.get(k, 0.0) for k in range(-largest, largest + 1)])
    found = np.bincount(draws + largest, minlength=len(expected)).astype(float)
    large = np.flatnonzero(expected >= 20)
    first, last = large[0], large[-1]

    def joined(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.concatenate([[x[:first].sum() + x[last + 1 :].sum()], x[first : last + 1]])

    expected, found = joined(expected), joined(found)
    return float(
        stats.chi2.sf(((found - expected) ** 2 / np.maximum(expected, 1e-9)).sum(), len(found) - 1)
    )


def sample(noise: Noise, seed: int, size: int) -> npt.NDArray[np.int64]:
    return noise.draw(Secret(seed.to_bytes(32, "little")), size)


@pytest.mark.parametrize(("make", "variance"), NOISES)
def test_a_million_draws_have_the_distribution(make: Any, variance: float) -> None:
    """Right at p > 1e-6; with a variance 5 % larger, the same draws have p < 1e-6."""
    draws = sample(make(variance), 1, 1_000_000)
    assert p_value(draws, make(variance).pmf()) > P_VALUE
    assert p_value(draws, make(1.05 * variance).pmf()) < P_VALUE


@pytest.mark.promise
@pytest.mark.parametrize(("make", "variance"), NOISES)
def test_ten_million_draws_have_the_distribution(make: Any, variance: float) -> None:
    draws = sample(make(variance), 2, 10_000_000)
    assert p_value(draws, make(variance).pmf()) > P_VALUE
    assert p_value(draws, make(1.02 * variance).pmf()) < P_VALUE


@pytest.mark.parametrize(("make", "variance"), NOISES)
def test_moments(make: Any, variance: float) -> None:
    """Mean, variance and fourth moment within 5 standard errors, which the table gives; kurtosis of
    Skellam 3 + 1/v."""
    noise, size = make(variance), 1_000_000
    pmf = noise.pmf()
    moment = {r: sum(k**r * p for k, p in pmf.items()) for r in (1, 2, 4, 8)}
    draws = sample(noise, 3, size).astype(np.float64)
    for r in (1, 2, 4):
        error = math.sqrt((moment[2 * r] - moment[r] ** 2) / size)
        assert abs((draws**r).mean() - moment[r]) <= 5 * error
    if make is skellam:
        assert moment[2] == pytest.approx(variance) and moment[4] / variance**2 == pytest.approx(
            3 + 1 / variance
        )


def test_sums_of_shares_are_skellam() -> None:
    """10 shares of a tenth of the variance; of an eleventh, the test says no."""
    n, v, size = 10, 2.89, 200_000
    shares = [sample(skellam(v / n), 100 + i, size) for i in range(n)]
    short = [sample(skellam(v / (n + 1)), 200 + i, size) for i in range(n)]
    assert p_value(np.sum(shares, axis=0), skellam(v).pmf()) > P_VALUE
    assert p_value(np.sum(short, axis=0), skellam(v).pmf()) < P_VALUE


# ---- the package ----

FORBIDDEN = ("random", "secrets", "time", "os", "numpy.random")


def randomness(source: str) -> list[str]:
    """Return what a module imports or names of the sources of randomness and time that are not
    arguments."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("np", "numpy")
        ):
            found.append(f"numpy.{node.attr}")
    return [name for name in found if name in FORBIDDEN or name.startswith("numpy.random.")]


def test_noise_comes_from_the_key_alone() -> None:
    folder = Path(fedtally.__file__).parent / "privacy"
    modules = [*folder.glob("*.py"), folder.parent / "crypto" / "prg.py"]
    assert {module.name for module in modules} >= {"mechanism.py", "prg.py"}
    for module in modules:
        assert not randomness(module.read_text(encoding="utf-8")), module.name


@pytest.mark.parametrize(
    "source",
    [
        "import numpy.random",
        "import numpy.random as r",
        "from numpy import random",
        "from numpy.random import default_rng",
        "import numpy as np\nnp.random.normal()",
        "def f():\n    import random",
        "from secrets import token_bytes",
        "from os import urandom",
    ],
)
def test_other_randomness_is_found(source: str) -> None:
    assert randomness(source)


def test_the_benchmark_runs() -> None:
    noise = pytest.importorskip(
        "benchmarks.noise", reason="run from the root of the repository: python -m pytest"
    )
    report = noise.measure(256, 1)
    assert {rate.backend for rate in report.rates} == {
        *kernels.available_backends(),
        "searchsorted",
        "exact",
        "prg",
        "AES-CTR",
    }
    compiled = len(kernels.available_backends()) - 1
    assert len(report.goals) == 2 * len(noise.FACTORS) * compiled and bool(report.notes) == (
        not compiled
    )
