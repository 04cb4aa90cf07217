"""The study: its errors against theory, its pairing, its tables; and the population of `demo`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest

from fedtally.domain import IntegerRange
from fedtally.engines.simulate import Study, run, split
from fedtally.engines.tally import RoundTally
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.privacy.accounting import calibrate
from fedtally.privacy.events import Event
from fedtally.sources import Source, from_items, open_source
from fedtally.sources.stdlib import library_source


def uniform(items: int, each: int) -> Source:
    return from_items(np.arange(items), counts=np.full(items, each))


@pytest.mark.parametrize(("method", "batches"), [("shared", 1), ("batched:2", 2), ("hybrid", 6), ("fresh", 6)])
def test_squared_error_is_what_theory_says(method: str, batches: int) -> None:
    """One row, d items of c clients, B independent batches of signs of Binomial(c, 1/B) clients each.

    The squared error of an item is the sum over the d - 1 others, each in its cell with probability 1/W, of the sum
    over batches of the square of its count there: E = (d - 1)/W * d * (c^2/B + c (1 - 1/B)) / N^2 for the sum over
    items. Pairwise independent hashes suffice. The bound is five standard errors of the mean over repeats; another B is
    off by more.
    """
    items, each, width, repeats = 300, 120, 64, 60
    study = Study(methods=(method,), widths=(width,), rows=1, num_rounds=6, repeats=repeats, seed=7)
    squares = np.array([m.l2**2 for m in run(uniform(items, each), study).measurements if m.method == method])

    def expected(parts: int) -> float:
        second_moment = each**2 / parts + each * (1 - 1 / parts)
        return float((items - 1) / width * items * second_moment / (items * each) ** 2)

    error = squares.std(ddof=1) / repeats**0.5
    assert abs(squares.mean() - expected(batches)) < 5 * error
    assert abs(squares.mean() - expected(batches + 1)) > 5 * error


@pytest.mark.parametrize(
    ("trust", "method", "openings"),
    [("central", "shared", 1), ("central", "batched:2", 2), ("central", "hybrid", 4), ("distributed", "shared", 4)],
)
def test_noise_adds_the_squared_error_of_its_openings(trust: str, method: str, openings: int) -> None:
    """Nobody holds any of the candidates but one, in so wide a sketch that it is rarely met: in 1 of 300 repeats.

    One row: the error of a candidate is the noise of its cell, so the squares of d candidates add up to d times the
    variance of all openings. A repeat varies by sqrt(2 / d), 10 %, and the median of 12 by 3.6 %: 18 % are
    five standard errors. One opening more or less is 25 % or more.
    """
    size, repeats, clients = 200, 12, 4000
    source = from_items(np.zeros(1, np.int64), counts=np.array([clients]))
    study = Study(
        methods=(method,), widths=(1 << 16,), rows=1, num_rounds=4, repeats=repeats, epsilon=1.0, trust=trust, seed=2
    )
    found = run(source, study, domain=IntegerRange(0, size - 1))
    if trust == "distributed":  # shares of all clients of a round, made for the fewest
        event = Event("skellam", 1, "zero-out", honest_survivors=900)
        one_hot = noise = calibrate(event, 1.0, 1e-6) * openings * 1000 / (950 - 50)
    else:
        each = calibrate(Event("rounded-gaussian", 1, "zero-out"), 1.0, 1e-6) + 1 / 12
        one_hot, noise = each, each * openings
    for name, expected in ((method, noise), ("one-hot", one_hot)):
        squares = np.array([m.l2**2 for m in found.measurements if m.method == name]) * clients**2 / size
        assert abs(np.median(squares) / expected - 1) < 0.18


def test_every_repeat_draws_rounds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def spied(everybody: RoundTally, num_rounds: int, rng: np.random.Generator) -> list[RoundTally]:
        drawn.append(split(everybody, num_rounds, rng))
        return drawn[-1]

    monkeypatch.setattr("fedtally.engines.simulate.split", spied)
    run(uniform(50, 40), Study(methods=("hybrid",), widths=(16,), num_rounds=3, repeats=3, seed=1))
    firsts = {tuple(rounds[0].counts.tolist()) for rounds in drawn}  # equal by chance with probability below 1e-30
    assert len(firsts) == 3


def test_one_round_of_hybrid_is_shared() -> None:
    study = Study(methods=("hybrid", "shared"), widths=(32,), num_rounds=1, repeats=3, seed=1)
    found = run(uniform(200, 5), study).measurements
    errors = {m: [(x.linf, x.l2) for x in found if x.method == m] for m in ("hybrid", "shared")}
    assert errors["hybrid"] == errors["shared"]
    assert errors["hybrid"][0] != errors["hybrid"][1]


def test_a_seed_repeats_a_study_and_methods_do_not_disturb_each_other() -> None:
    def measured(methods: tuple[str, ...], seed: int) -> list[float]:
        source = open_source("zipf:d=500,n=3000", rng=np.random.default_rng(5))
        study = Study(methods=methods, widths=(64,), num_rounds=3, repeats=3, seed=seed)
        return [m.linf for m in run(source, study).measurements if m.method == "hybrid"]

    assert measured(("hybrid",), 1) == measured(("fresh", "hybrid"), 1) != measured(("hybrid",), 2)


def test_exact_methods_have_costs_and_no_error() -> None:
    found = run(uniform(1000, 20), Study(methods=("shared",), widths=(50,), rows=3, num_rounds=4, repeats=2, seed=1))
    by_method = {c.method: c for c in found.comparisons()}
    bits = by_method["shared"].bytes_per_client * 8 // (3 * 50)
    assert bits == 14  # a round of about 5,000 clients: sums from -5,000 to 5,000
    assert by_method["one-hot"].bytes_per_client == 1000 * bits // 8
    assert by_method["binary"].bytes_per_client == 2
    assert (by_method["one-hot"].linf.mean, by_method["binary"].l2.q90) == (0.0, 0.0)
    assert [c.method for c in found.comparisons() if not c.secure_sum] == ["binary"]
    assert found.num_clients == 20_000


def test_comparisons_summarise_the_measurements() -> None:
    found = run(uniform(300, 3), Study(methods=("hybrid",), widths=(20, 40), repeats=5, num_rounds=2, seed=2))
    narrow, wide, *_ = found.comparisons()
    errors = [m.linf for m in found.measurements if (m.method, m.width) == ("hybrid", 20)]
    assert len(errors) == 5
    expected = [np.mean(errors), np.median(errors), np.quantile(errors, 0.9)]
    assert list(narrow.linf) == expected
    assert wide.l2.mean < narrow.l2.mean


def test_split_keeps_every_client_and_is_uniform() -> None:
    everybody = RoundTally(40_000, np.array([1, 2], np.uint64), np.array([30_000, 10_000]))
    rounds = split(everybody, 4, np.random.default_rng(0))
    assert sum(part.num_clients for part in rounds) == 40_000
    assert sum(int(part.counts[part.ids == 1].sum()) for part in rounds) == 30_000
    for part in rounds:  # Binomial(40,000, 1/4): five standard deviations
        assert abs(part.num_clients - 10_000) < 5 * (40_000 * 0.25 * 0.75) ** 0.5


def test_tidy_tables(tmp_path: Path) -> None:
    found = run(uniform(30, 3), Study(methods=("fresh",), widths=(8,), repeats=2, num_rounds=2, seed=2))
    found.export(tmp_path / "s.csv")
    table = pyarrow.csv.read_csv(tmp_path / "s.csv")
    assert table.column("method").to_pylist() == ["fresh", "one-hot", "binary"] * 2
    assert table.column("repeat").to_pylist() == [0, 0, 0, 1, 1, 1]
    assert table.column("width").null_count == 4
    with pytest.raises(InvalidInputError, match="\\.csv or \\.parquet"):
        found.export(tmp_path / "s.txt")


def test_progress_counts_campaigns() -> None:
    seen: list[tuple[str, int, int | None]] = []
    study = Study(methods=("fresh",), widths=(8,), repeats=2, num_rounds=2, seed=2)
    run(uniform(30, 3), study, progress=lambda *step: seen.append(step))
    assert [step for step in seen if step[0] == "simulate"] == [("simulate", n, 6) for n in range(1, 7)]


@pytest.mark.parametrize(
    "bad",
    [
        {"methods": ()},
        {"methods": ("magic",)},
        {"widths": (0,)},
        {"widths": (5, 5)},
        {"repeats": 0},
        {"rows": 0},
        {"num_rounds": 0},
    ],
)
def test_bad_studies_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        Study(**bad)  # type: ignore[arg-type]


def test_no_client_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="no client"):
        run(uniform(3, 0), Study())


def test_library_draws_one_word_of_each_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("alpha beta = 9x + y\n\n# 12 34 _\n" + "gamma delta\n" * 4000)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "b.py").write_text("left_out\n")
    (tmp_path / "c.py").write_bytes(b"last\xff\x00_one2")
    [batch] = library_source(np.random.default_rng(0), tmp_path).batches()
    words = batch.items.to_pylist()
    assert words[0] in ("alpha", "beta")
    assert words[-1] in ("last", "_one2")
    assert len(words) == 4002
    gammas = words.count("gamma")  # Binomial(4,000, 1/2): five standard deviations
    assert gammas + words.count("delta") == 4000
    assert abs(gammas - 2000) < 5 * 1000**0.5


def test_library_without_sources_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="zipf:"):
        list(library_source(np.random.default_rng(0), tmp_path).batches())
