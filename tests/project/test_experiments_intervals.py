"""The experiments on intervals: what they draw, what they count, what they judge, and that they
run."""

from __future__ import annotations

import functools
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import csv, parquet
from scipy import stats

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import band, changed, coverage, foreseen, lists
from experiments.coverage import Case, Scale, Tally

import fedtally
from fedtally.answer import estimates
from fedtally.answer.estimates import clip_limits, uncertainty
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.privacy.events import Mechanism
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.intervals import Limits, sampling_error
from fedtally.recovery.noise_law import NoiseLaw

CASE = Case("1.1", "hybrid", 5, 1000, "off")


def run(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(
        command, [str(argument) for argument in arguments], catch_exceptions=False
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    grid = np.random.default_rng(0).integers(0, 50, (6, 7))
    np.savez(tmp_path / "brightkite_us_grid.npz", counts=grid, lon_edges=np.arange(7))
    np.savez(
        tmp_path / "brightkite_us_hourly.npz",
        hour=np.array([0, 0, 1, 3], np.uint8),
        hour_cell=np.array([7, 9, 9, 2], np.int32),
        hour_count=np.array([5, 1, 30, 4], np.int32),
    )
    names = {
        "name": ["Ann", "Bob", "Ann"],
        "year": pa.array([1880, 1885, 1899], pa.int16()),
        "count": [3, 4, 5],
    }
    parquet.write_table(pa.table(names), tmp_path / "us_baby_names.parquet")
    parquet.write_table(
        pa.table({"word": ["a", "b"], "count": [1, 6]}), tmp_path / "sentiment140_words.parquet"
    )
    return tmp_path


def test_real_tables_are_ranked_and_their_rounds_kept(data):
    scale = Scale(clients=1000, data=data)
    grid, clients = coverage.population("brightkite", scale)
    assert (grid.shape, clients) == ((1, 42), 175_000)
    assert np.all(np.diff(grid[0]) <= 0)
    assert coverage.population("sentiment140", scale)[0].tolist() == [[6, 1]]
    assert coverage.population("hours", scale)[0].tolist() == [
        [1, 5, 0],
        [30, 0, 0],
        [0, 0, 0],
        [0, 0, 4],
    ]
    assert coverage.population("decades", scale)[0].tolist() == [[3, 4], [5, 0]]
    with pytest.raises(InvalidInputError, match="gowalla_us_grid.npz: name it with --data"):
        coverage.population("gowalla", scale)


def test_rounds_differ_as_they_are_named():
    law, rng = np.full((1, 2000), 1 / 2000), np.random.default_rng(0)
    equal, one, unequal = (
        coverage.draw(law, 10**6, kind, rng) for kind in ("equal", "one round", "1..100")
    )
    assert equal.sum(axis=1).tolist() == [10**5] * 10
    assert np.all(np.count_nonzero(one, axis=0) <= 1) and np.all(one.sum(axis=1) == 10**5)
    sizes = unequal.sum(axis=1)
    assert sizes.max() / sizes.min() == pytest.approx(100, rel=0.01)
    assert not np.all(np.diff(sizes) > 0)
    spread = coverage.draw(law, 10**7, "gamma 0.5", rng) / 500
    # 5 sd of the sd of 20,000 values
    assert spread.std() == pytest.approx(np.sqrt(0.25 + 1 / 500), rel=0.03)
    real = coverage.draw(np.array([[3.0, 1.0], [0.0, 4.0]]), 800, "equal", rng)
    assert real.sum(axis=1).tolist() == [400, 400] and real[1, 0] == 0


def test_rounds_differ_in_two_ways_at_once():
    rng = np.random.default_rng(0)
    drawn = coverage.draw(np.full((1, 2000), 1 / 2000), 10**6, "one round, 1..100", rng)
    sizes = drawn.sum(axis=1)
    assert np.all(np.count_nonzero(drawn, axis=0) <= 1)
    assert sizes.max() / sizes.min() == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize(("schedule", "batches"), [("shared", 1), ("batched:2", 2), ("fresh", 10)])
def test_a_plateau_stands_out_as_far_as_it_says(schedule, batches):
    """The error that others cause, from counts drawn for every batch: 5 sd of a mean of squares."""
    case, scale = Case("plateau:0.1:9", schedule, 5, 500, "off"), Scale(20_000, 200_000)
    counts = 200_000 * coverage.plateau(case, scale)[0]
    assert case.raised == 250 and counts.sum() == pytest.approx(200_000)
    assert len(np.unique(counts[:250])) == len(np.unique(counts[250:])) == 1
    drawn = np.random.default_rng(0).poisson(counts[250:] / batches, (batches, 19_750))
    assert counts[0] / np.sqrt((drawn**2.0).sum() / 2500) == pytest.approx(9, rel=0.04)


@pytest.mark.parametrize(("noise", "times"), [("on", 2), ("skellam", 10 * 0.9954**2)])
def test_a_plateau_stands_out_of_the_noise_too(noise, times):
    """Two batches of five rounds; noise of variance 4.2247^2 x 5 in each counter of a batch."""
    case, scale = Case("plateau:0.1:9", "batched:2", 5, 500, noise), Scale(20_000, 40_000)
    counts = 40_000 * coverage.plateau(case, scale)[0]
    others = 19_750 * (counts[-1] + counts[-1] ** 2 / 2) / 2500
    assert counts[0] == pytest.approx(9 * np.sqrt(others + times * 4.2247**2), rel=0.01)


def test_errors_are_those_of_campaigns(monkeypatch):
    """Ten items, of which 4, 8 and 9 hold: the variance of a sum of three, 3 x 7."""
    held = iter([4.0, 8.0, 9.0, 5.0])
    monkeypatch.setattr(coverage, "measure", lambda *_: {"0-20": Tally(items=10, held=next(held))})
    [three] = coverage.repeated(CASE, Scale(), 3).values()
    assert three.error("all") == pytest.approx(np.sqrt(21) / 30)
    assert coverage.pool([three, three]).error("all") == pytest.approx(np.sqrt(42) / 60)
    [one] = coverage.repeated(CASE, Scale(), 1).values()
    assert one.error("all") == np.inf
    assert one._replace(fitted=100).error("on") == pytest.approx(np.sqrt(0.95 * 0.05 / 100))


@pytest.mark.parametrize(("schedule", "batches"), [("hybrid", 10), ("shared", 1), ("batched:4", 4)])
def test_noise_is_as_private_as_it_says(schedule, batches):
    """Central: one draw for what a batch adds up to. Distributed: one in every round.

    50,000 counters of a round or batch: the sample variance is within 7 standard errors of 0.63 %.
    (Rounding adds 0.1 % to the Gaussian's.)
    """
    counts, ids = np.zeros((10, 3), np.int64), np.arange(3, dtype=np.uint64)

    def summed(noise: str) -> tuple[list[np.ndarray], np.ndarray]:
        sketches = coverage.sums(counts, ids, schedule, 5, 10_000, np.random.default_rng(1))
        coverage.protect(sketches, noise, np.random.default_rng(2))
        merged = np.zeros((batches, 5, 10_000))
        for sketch in sketches:
            merged[sketch.spec.schedule.batch_of(sketch.round, 10)] += sketch.counters
        return [sketch.counters for sketch in sketches], merged

    assert not summed("off")[1].any()
    once = summed("on")[1]
    np.testing.assert_allclose(once.var(axis=(1, 2)), 4.2247**2 * 5, rtol=0.045)
    each = summed("skellam")[0]
    np.testing.assert_allclose([own.var() for own in each], (0.9954 * 4.2247) ** 2 * 5, rtol=0.045)
    means = [own.mean() for own in (*once, *each)]
    assert np.all(np.abs(means) < 6 * 4.2247 * np.sqrt(5 / 50_000))
    assert all(
        np.abs(np.corrcoef(each[0].ravel(), own.ravel())[0, 1]) < 6 / np.sqrt(50_000)
        for own in each[1:]
    )


def test_rounds_that_are_missing_take_no_noise_with_them():
    case = Case("1.1", "batched:2", 5, 10_000, "on", "missing")
    counts, _, sketches = coverage.campaign(case, Scale(items=50, clients=1000), 0)
    merged = np.zeros((2, 5, 10_000))
    for sketch in sketches:
        merged[sketch.spec.schedule.batch_of(sketch.round, 10)] += sketch.counters
    assert len(sketches) == len(counts) == 8
    # 15 standard errors; the items add to it
    assert np.all(merged.var(axis=(1, 2)) > 0.9 * 4.2247**2 * 5)


def test_campaigns_repeat_and_their_sums_are_of_the_counts():
    scale = Scale(items=50, clients=1000)
    (counts, ids, sketches), (again, *_) = (coverage.campaign(CASE, scale, 3) for _ in range(2))
    assert np.array_equal(counts, again)
    assert not np.array_equal(counts, coverage.campaign(CASE, scale, 4)[0])
    np.testing.assert_allclose(MedianDecoder(sketches).at(ids), counts.sum(axis=0), atol=1e-9)
    counts, _, sketches = coverage.campaign(CASE._replace(rounds="missing"), scale, 3)
    assert [sketch.num_clients for sketch in sketches] == counts.sum(axis=1).tolist() == [100] * 8


def test_intervals_are_counted_apart(monkeypatch):
    """Four items; the third is fitted; intervals of known ends."""

    class Decoder:
        def __init__(self, *_: object) -> None:
            self.fit = self
            self.fitted = np.array([False, False, True, False])
            self.values = np.array([0.4, 0.2, 0.4, 0.1])

        def leave_one_out(self, ids: np.ndarray) -> Decoder:
            return self

        def at(self, ids: np.ndarray) -> np.ndarray:
            return np.array([4.0, 4.0, 4.0, 0.0])

    class Ends:
        def at(self, ids: np.ndarray) -> Limits:
            return Limits(np.array([0.0, 0.1, 0.3, 0.1]), np.array([0.4, 0.3, 0.5, 0.5]))

    counts = np.array([[4, 4, 1, 1]])
    monkeypatch.setattr(
        coverage, "campaign", lambda *_: (counts, np.arange(4, dtype=np.uint64), [])
    )
    monkeypatch.setattr(coverage, "JointDecoder", Decoder)
    monkeypatch.setattr(coverage, "make_intervals", lambda *_: Ends())
    [(name, tally)] = coverage.measure(CASE, Scale(), 0).items()
    assert name == "0-20"
    expected = Tally(
        items=4, held=2, fitted=1, fitted_held=0, half=6, squares=10, own=13, floor=2, zeros=2
    )
    assert tally == pytest.approx(expected)
    assert [tally.coverage(which) for which in ("all", "on", "off")] == [
        (0.5, 4),
        (0.0, 1),
        (2 / 3, 3),
    ]


def cells(**tallies: Tally) -> dict[Case, dict[str, Tally]]:
    return {
        CASE._replace(population=name): {"0-20": tally, "20000-": tally}
        for name, tally in tallies.items()
    }


GOOD = Tally(items=1000, held=950, fitted=500, fitted_held=475, half=1.96e4, squares=1e5, own=1e5)


def verdicts(found) -> dict[str, bool | None]:
    return {check.what: check.holds for check in coverage.checks(found)}


JUDGED = {
    *("coverage, all", "coverage, on", "coverage, off", "coverage, on, rank 20,000 and beyond"),
    *("coverage, light, of one population", "width"),
}


def test_what_is_good_passes():
    found = verdicts(cells(a=GOOD, b=GOOD))
    assert {what for what, held in found.items() if held} == JUDGED
    assert {what for what, held in found.items() if held is None} == set(found) - JUDGED


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"held": 920}, {"coverage, all", "coverage, off"}),
        ({"fitted_held": 464}, {"coverage, on"}),
        ({"fitted_held": 435}, {"coverage, on", "coverage, on, rank 20,000 and beyond"}),
        ({"held": 980, "fitted_held": 490}, {"coverage, light, of one population"}),
        ({"held": 980, "fitted_held": 490, "zeros": 901}, set()),
        ({"held": 980, "fitted_held": 490, "floor": 500}, set()),
        ({"half": 2.8e4}, {"width"}),
        ({"squares": 0, "own": 0}, {"width"}),
        ({"half": 2.8e4, "floor": 500}, set()),
    ],
)
def test_bounds_are_judged(change, missed):
    found = verdicts(cells(a=GOOD._replace(**change)))
    assert {what for what, held in found.items() if held is False} == missed


def test_bounds_are_on_pools_and_single_populations_are_told():
    wide, narrow = GOOD._replace(half=2.8e4, own=4e5), GOOD._replace(half=1.4e4)
    found = {check.what: check for check in coverage.checks(cells(a=wide, b=narrow, c=narrow))}
    assert found["width"].holds and found["width"].figure == pytest.approx(4 / 3 * 1.4 / 1.96)
    single = found["width, of one population"]
    assert (single.figure, single.where) == (pytest.approx(2.8 / 1.96), "a noise off rank 20000-")
    assert found["the same, to the errors of its own middle"].figure == pytest.approx(1.4 / 1.96)
    few = GOOD._replace(fitted=39, fitted_held=0)
    assert verdicts(cells(a=few))["coverage, on"] is None
    assert verdicts(cells(a=few, b=few))["coverage, on"] is False


def test_coverage_prints_bounds_and_fails_on_a_miss(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    few = (
        "--schedule",
        "hybrid",
        "--size",
        "5x200",
        "--law",
        "1.1",
        "--domain-size",
        3000,
        "--clients",
        30_000,
    )
    small = (*few, "--noise", "off", "--repeats", 2)
    result = run(coverage.command, *small, "--output", path)
    assert "hybrid 5x200  coverage, all: 0.9" in result.output
    assert result.exit_code == ("MISS" in result.output)
    assert (
        path.read_text()
        .splitlines()[0]
        .startswith('"population","schedule","rows","width","noise","rounds","rank"')
    )
    monkeypatch.setattr(coverage, "LEAST", 1.1)
    result = run(coverage.command, *small)
    assert result.exit_code == 1
    assert "MISS  hybrid 5x200  coverage, all: 0.9" in result.output


def test_robustness_prints_a_line_for_every_kind():
    result = run(
        *(
            coverage.command,
            "--robustness",
            "--schedule",
            "hybrid",
            "--schedule",
            "batched:2",
            "--size",
            "5x100",
        ),
        *(
            "--law",
            "1.5",
            "--noise",
            "off",
            "--domain-size",
            300,
            "--clients",
            3000,
            "--repeats",
            1,
            "--jobs",
            2,
        ),
    )
    assert result.exit_code == 0
    kinds = [line.split()[0] for line in result.output.splitlines()]
    assert {"gamma", "one", "1..10", "missing", "equal"} <= set(kinds)
    assert all(word in result.output for word in ("batched:2", "skellam", "3x1600"))
    assert "one round, 1..10" in result.output


def test_plateaus_print_a_line_for_each_and_fail_on_a_miss(monkeypatch):
    small = ("--plateaus", "--quick", "--law", "plateau:0.1:9", "--law", "plateau:0.2:12")
    given = (*small, "--schedule", "shared", "--size", "3x1600")
    result = run(coverage.command, *given)
    lines = [line.split()[:2] for line in result.output.splitlines()]
    assert [line[0] for line in lines][2:5] == ["population", "plateau:0.1:9", "plateau:0.2:12"]
    assert "plateau  others  lowest" in result.output and "means nothing" not in result.output
    monkeypatch.setattr(coverage, "LEAST", 1.1)
    assert "what a quick run misses" in run(coverage.command, *given).output


def test_rounds_that_are_named_are_judged(monkeypatch):
    monkeypatch.setattr(coverage, "LEAST", 1.1)
    given = ("--quick", "--law", "lognormal", "--schedule", "hybrid", "--size", "5x200")
    result = run(coverage.command, *given, "--rounds", "gamma 2, 1..10", "--rounds", "equal")
    lines = result.output.splitlines()
    assert [line.split("hybrid")[0].strip() for line in lines[3:5]] == ["gamma 2, 1..10", "equal"]
    assert "what a quick run misses" in result.output
    with pytest.raises(InvalidInputError, match=r"equal or one of gamma 0\.5; .* got 'gamma'"):
        run(coverage.command, *given, "--rounds", "gamma")


def test_sizes_are_checked():
    with pytest.raises(InvalidInputError, match="rows x width"):
        coverage.parse_size("5*1000")


def test_band_prints_bounds_and_fails_on_a_miss(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    few = (
        "--schedule",
        "hybrid",
        "--size",
        "5x40",
        "--law",
        "1.1",
        "--noise",
        "off",
        "--domain-size",
        300,
    )
    small = (*few, "--clients", 10_000, "--repeats", 2, "--median-repeats", 1)
    result = run(band.command, *small, "--output", path)
    assert "hybrid 5x40 1.1 noise off  holds in" in result.output
    assert result.exit_code == ("MISS" in result.output)
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == [
        '"decoder"',
        '"joint"',
        '"median"',
    ]
    monkeypatch.setattr(band, "LEAST", 1.1)
    result = run(band.command, *small, "--decoder", "joint")
    assert result.exit_code == 1
    assert "MISS  hybrid 5x40 1.1 noise off  holds in" in result.output


# ---- lists ----


def test_a_line_is_the_mean_over_lists_that_have_items():
    """Shares are means over lists; widths of all together, over those that have both, and where
    there is an error."""
    nan = np.nan
    one = lists.List(
        20, np.array([0.5, nan, 1, 0.9]), np.array([2.0, nan, 4, 3]), np.array([1, nan, 0, 0.5])
    )
    two = lists.List(
        10, np.array([0.7, 1, 1, 1]), np.array([4.0, 2, 6, 6]), np.array([1, 0, 0, 0.7])
    )
    exact = lists.List(20, np.ones(4), np.array([0.0, 2, 2, 2]), np.ones(4))
    none = lists.List(0, *np.full((3, 4), nan))
    row = lists.line({"table": "x"}, [one, two, none])
    assert (row["items"], row["pointwise"], row["list"]) == (
        30,
        pytest.approx(0.6),
        pytest.approx(0.95),
    )
    assert (row["by width"], row["simultaneous width"], row["list width"]) == pytest.approx(
        (10 / 6, 0.5, 1.5)
    )
    assert row["distinct"] == pytest.approx(0.6)
    assert lists.line({}, [exact])["list width"] == lists.line({}, [none])["list"] == "-"


def test_what_a_list_holds_is_counted():
    limits = Limits(np.array([0.0, 0.2, 0.3]), np.array([0.1, 0.4, 0.5]))
    held, width, distinct = lists._of(limits, np.array([0.1 + 1e-9, 0.15, 0.31]), clients=100)
    assert (held, width, distinct) == pytest.approx((2 / 3, 50 / 3, 2 / 3))


def test_a_table_of_counts(tmp_path):
    path = tmp_path / "counts.txt"
    path.write_text("3\n1\n0\n")
    assert lists.read_counts(path).tolist() == [0.75, 0.25, 0]
    for text in ("", "0\n", "-1\n2\n", "nan\n"):
        path.write_text(text)
        with pytest.raises(InvalidInputError, match="must hold counts"):
            lists.read_counts(path)
    for bad in (tmp_path / "no.txt", tmp_path):
        with pytest.raises(UnreadableFileError, match="cannot read the counts"):
            lists.read_counts(bad)
    path.write_text("tea\n")
    with pytest.raises(UnreadableFileError, match="holds no counts"):
        lists.read_counts(path)


def test_a_folder_that_is_not_there_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(fedtally, "estimate", None)
    with pytest.raises(InvalidInputError, match="there is no folder .*; create it first"):
        run(lists.command, "--quick", "--output", tmp_path / "no" / "lists.csv")


def test_lists_are_measured(tmp_path, monkeypatch):
    """README's private example: pointwise limits do not hold, and those of the list do; and a miss
    is a failure."""
    out = run(lists.command, "--quick", "--output", tmp_path / "lists.csv")
    assert out.exit_code == 0, out.output
    assert "PASS  readme" in out.output
    assert (tmp_path / "lists.csv").read_text().count("\n") == 2
    monkeypatch.setattr(
        fedtally, "estimate", functools.partial(fedtally.estimate, intervals="pointwise")
    )
    counts = tmp_path / "counts.txt"
    counts.write_text("1\n" * 500)
    given = (
        "--counts",
        counts,
        "--clients",
        500,
        "--recovery",
        "joint",
        "--rounds",
        4,
        "--epsilon",
        1,
        "--repeats",
        2,
    )
    wrong = run(lists.command, *given)
    assert wrong.exit_code == 1
    assert "MISS  counts.txt" in wrong.output
    with pytest.raises(InvalidInputError, match="--table must be one of readme"):
        run(lists.command, "--table", "brightkite")


def test_foreseen_counts_where_belief_propagation_answers() -> None:
    small = foreseen.Task("i^-0.3", "5x80", 1, 0, 0)
    [row], [again] = foreseen.measure(small), foreseen.measure(small)
    assert row == again and row["cells"] == 400
    assert row["ratio"] == row["linf"] / row["foreseen"] > 0
    [fallen] = foreseen.measure(small._replace(size="5x60"))  # 300 cells: joint recovery answers
    assert fallen["ratio"] is None
    rows = [row | {"ratio": ratio} for ratio in (0.5, 1.0, 1.5, None)]
    by_cells, by_law = foreseen.summarise(rows).values()
    assert [line["campaigns"] for line in by_cells] == ["400 to 700 cells"]
    assert (by_law[0]["answered"], by_law[0]["of"], by_law[0]["median"]) == (3, 4, 1.0)


# ---- changed ----


def test_the_limits_of_one_item_miss_as_often_as_an_enumeration_says():
    """Of 40 clients, with noise that is seldom far: every count and every noise, one by one."""
    noise, clients, level = NoiseLaw.of_draws(Mechanism.GEOMETRIC, 0.5, 1), 40, 0.02
    half = noise.half(level)
    drawn = np.arange(-30, 31)
    weight = noise.at_least(drawn.astype(float)) - noise.at_least(drawn + 1.0)
    assert weight.sum() == pytest.approx(1)
    worst = 0.0
    for held in np.geomspace(0.01, clients / 2, changed.SHARES):
        found = 0.0
        for count in range(clients + 1):
            seen = (count + drawn) / clients
            limits = clip_limits(Limits(seen - half / clients, seen + half / clients))
            low, high = uncertainty(seen, limits, sampling_error(seen, clients, 1 - level)).limits
            outside = (held / clients < low) | (held / clients > high)
            found += stats.binom.pmf(count, clients, held / clients) * weight[outside].sum()
        worst = max(worst, found)
    assert changed.missed(noise, clients, level)[0] == pytest.approx(worst / level)


def test_population_limits_keep_their_level_far_out(monkeypatch):
    """A rare item's limits under wide Gaussian noise have the sampling error at the limit.

    With that at the estimate they miss six times as often as they say.
    """
    assert changed.exact_row("rounded-gaussian", 100_000)["times the level"] < changed.MOST
    assert changed.exact_row("none", 100_000)["times the level"] < 1.1
    monkeypatch.setattr(estimates, "_shares_at_the_limit", lambda centre, *_: (centre, centre))
    assert changed.exact_row("rounded-gaussian", 100_000)["times the level"] > 3


def test_limits_of_whole_lists_miss_as_seldom_as_the_rule_promises():
    """Two tables of d items have 2 d limits; docs/tables.md says 1 - 0.02 / d."""
    for candidates in (1, 500, 40_000):
        level = 1.0 - changed.confidence(candidates)
        assert 2 * candidates * level * changed.MOST == pytest.approx(changed.CHANCE)
        assert level == pytest.approx(0.02 / candidates)


def test_a_rise_is_seen_as_often_as_its_limits_say(monkeypatch):
    """A rise as large as both limits are wide is seen in half of cases; docs/tables.md has it."""
    monkeypatch.setattr(changed, "DRAWS", 4000)
    clients, share = changed.RISEN
    for name, noise in changed.NOISES.items():
        for candidates, level in ((None, 0.025), (40_000, 0.02 / 40_000)):
            row = changed.rise_row(name, clients, share, candidates)
            half, nearly = row["a rise seen in half"] / 100, row["in 95%"] / 100
            assert row["seen without a change"] < (0.01 if candidates is None else 1e-9)
            z = stats.norm.isf(level / 2)
            drawn = [f * (1 - f) / clients for f in (share, share + half)]
            wilson = [z * np.sqrt(d + (z / clients / 2) ** 2) + z**2 / 2 / clients for d in drawn]
            wide = [np.hypot(noise.half(level) / clients, sampled) for sampled in wilson]
            assert half == pytest.approx(sum(wide), abs=1.5e-4)
            # what is seen of a rise is about normal
            deviation = np.sqrt(sum(drawn) + 2 * (noise.stddev / clients) ** 2)
            assert nearly == pytest.approx(half + stats.norm.isf(0.05) * deviation, abs=3e-4)


def test_tables_that_did_not_change_are_compared(tmp_path, monkeypatch):
    """Limits among the clients flag chance, those of the population do not; a miss is a failure."""
    monkeypatch.setattr(changed, "STDDEVS", (10,))
    monkeypatch.setattr(changed, "DRAWS", 500)
    small = ("--repeats", 4, "--size", 500, "--clients", 2000, "--domain-size", 100)
    path = tmp_path / "changed.csv"
    out = run(changed.command, *small, "--output", path)
    assert out.exit_code == 0, out.output
    rows = csv.read_csv(path).to_pylist()
    assert len(rows) == 16
    assert sum(row["low and high flag"] for row in rows) > 8
    assert sum(row["population limits flag"] for row in rows) == 0
    monkeypatch.setattr(changed, "confidence", lambda candidates: 0.95)
    assert run(changed.command, *small).exit_code == 1
