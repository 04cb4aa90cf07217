"""Section 4: campaigns, the theorem and verdicts equal what is computed otherwise; sensitivities by
brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import epsilon, released, rounds, study, theory
from experiments.epsilon import Cell

from fedtally import kernels
from fedtally.errors import InvalidInputError
from fedtally.privacy.accounting import noise_multiplier
from fedtally.sketch import CountSketch, SketchSpec

SMALL = Cell("1.1", 300, 8, 40, 8, 1600, (0.5, 2.0), 1, 0)
SEED = bytes(range(32))


def invoke(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(
        command, [str(argument) for argument in arguments], catch_exceptions=False
    )


# ---- campaigns ----


def test_errors_without_noise_are_those_of_the_schedules() -> None:
    """Sums of batches, decoded as hybrid, are the batched schedule; one batch is shared."""
    rows = epsilon.campaign(
        SMALL, dict.fromkeys([(e, d) for e in SMALL.epsilons for d in epsilon.DECODERS], 3), 0
    )
    _, public, held = SMALL.draw(0)
    found = {row["schedule"]: row["estimation"] for row in rows if row["decoder"] == "median"}
    assert set(found) == {"shared", "batched:3", "batched:4", "hybrid", "fresh"}
    for schedule, error in found.items():
        estimates = rounds.estimate(held, SMALL.rows, SMALL.width, schedule, public)
        assert error == np.abs(estimates - held.sum(axis=0)).max() / 1600
    assert {row["releases"] for row in rows if row["chosen"]} == {3}
    assert all(row["both"] > 0 for row in rows)


def test_noise_alone_grows_with_openings_and_shrinks_with_epsilon() -> None:
    """Three rows: root 3 times the largest of 300 medians of three normals is between 2 and 6
    standard deviations.

    But with probability below 1e-3: two of three beyond 6 / root 3 on one side have 1.3e-4 in all,
    none beyond 2 / root 3 has (1 - .084)^300.
    """
    cell = SMALL._replace(rows=3, width=1 << 12)
    best = dict.fromkeys([(e, d) for e in cell.epsilons for d in epsilon.DECODERS], 1)
    rows = [row for row in epsilon.campaign(cell, best, 0) if row["decoder"] == "median"]
    assert {row["releases"] for row in rows} == {1, 4, 8}
    for row in rows:
        stddev = noise_multiplier(row["epsilon"], 1e-6) * math.sqrt(row["releases"]) / cell.clients
        assert 2 < row["privacy"] / stddev < 6


def test_measure_repeats_with_its_seed() -> None:
    cell = SMALL._replace(num_rounds=2, epsilons=(1.0,), repeats=2)
    rows = epsilon.measure(cell)
    assert rows == epsilon.measure(cell)
    first, second = ([row["both"] for row in rows if row["repeat"] == repeat] for repeat in (0, 1))
    assert first != second
    assert all(row["seed"] == 0 and '"num_rounds": 2' in row["plan"] for row in rows)


def test_a_row_does_not_depend_on_what_else_is_measured() -> None:
    alone, both = SMALL._replace(epsilons=(2.0,)), SMALL
    rows = {}
    for cell in (alone, both):
        best = dict.fromkeys([(e, d) for e in cell.epsilons for d in epsilon.DECODERS], 3)
        rows[cell] = [row for row in epsilon.campaign(cell, best, 0) if row["epsilon"] == 2.0]
    assert rows[alone] == rows[both]
    assert {row["size"] for row in rows[alone]} == {300}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--law", "foo"), "an exponent such as 1.1, or zm, got 'foo'"),
        (("--law", "-400"), "exponent must be 0 to 100"),
        (("--rounds", 4, "--rounds", 7, "--clients", 32), "all of them divisors of 32"),
        (("--domain-size", 20), "must exceed the columns of every --size"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        invoke(epsilon.command, "--quick", "--no-plot", *arguments, "--output", tmp_path)


def test_the_theorem_by_hand() -> None:
    """Two rounds of equal size; 8 rows are enough for 300 items at p = 1/2, and count in neither
    term."""
    sums = np.zeros((2, 300), np.int64)
    sums[:, :50] = np.array([[10], [16]])
    sums[1, :50] -= 6
    estimation, privacy = epsilon.bounds(SMALL._replace(clients=1000), sums, 0.5)
    vector = np.full(50, 10 / 500 / math.sqrt(2))
    assert estimation == pytest.approx(math.sqrt((vector[40:] ** 2).sum() / 40))
    stated = math.sqrt(math.log(600) * math.log(1e6)) / (500 * math.sqrt(2) * 0.5)
    assert privacy == pytest.approx(stated)
    noise = theory.noise_stddev(8, 0.5, 1e-6, constant=1.0)
    sizes = {"num_clients": 1000, "num_rounds": 2, "items": 300}
    assert privacy == pytest.approx(
        theory.private_bound(np.zeros(300), 8, 40, 0.5, 1.0, noise=noise, **sizes)
    )


# ---- verdicts ----


def made(
    error: Callable[[int, int, np.random.Generator], float], decoder: str = "median"
) -> list[study.Row]:
    """Rows of a campaign whose errors are a function of rounds and clients, with 1 % of scatter."""
    rng, rows = np.random.default_rng(0), []
    for m in (1, 4, 16):
        for clients in {1600, 100 * m}:
            for name, releases in {"shared": 1, "batched:4": 4, "hybrid": m}.items():
                if releases > m or name != epsilon.named(releases, m):
                    continue
                for repeat in range(5):
                    value = error(releases, clients, rng) * math.exp(rng.normal(0, 0.01))
                    row: study.Row = {
                        "law": "2",
                        "rows": 8,
                        "width": 40,
                        "num_rounds": m,
                        "clients": clients,
                    }
                    row |= {
                        "epsilon": 1.0,
                        "schedule": name,
                        "releases": releases,
                        "decoder": decoder,
                    }
                    row |= {
                        "chosen": releases == min(m, 4),
                        "estimation": value,
                        "privacy": value,
                        "both": value,
                    }
                    row |= {"theorem estimation": 0.1 / releases, "theorem privacy": 0.1 / releases}
                    rows.append(row | {"repeat": repeat})
    return rows


def test_remarks_are_judged_by_the_sign_of_the_slope() -> None:
    table = epsilon.remarks(made(lambda m, clients, rng: 0.1 / m**0.5))
    assert [row["verdict"] for row in table] == ["reproduced"] * 4 + ["not", "-"]
    assert all(row["slope"] == pytest.approx(-0.5, abs=0.05) and row["SE"] < 0.02 for row in table)
    assert table[0]["M=16 (1e-5)"] == pytest.approx(0.025e5, rel=0.05)
    flat = epsilon.remarks(made(lambda m, clients, rng: 0.1))
    assert {row["verdict"] for row in flat} <= {"not", "reproduced with a caveat", "-"}


def test_rates_are_judged_by_their_spread() -> None:
    exact = epsilon.rates(made(lambda m, clients, rng: 0.3 / m))
    assert [row["verdict"] for row in exact] == ["reproduced", "reproduced", "-"]
    assert exact[0]["largest = C"] == pytest.approx(3, rel=0.03)
    assert exact[2]["largest = C"] == pytest.approx(1.5, rel=0.03)
    # 16^0.6 = 5.3
    assert epsilon.rates(made(lambda m, clients, rng: 0.3 / m**0.4))[0]["verdict"] == "not"


@pytest.mark.parametrize(("power", "verdict"), [(0.0, "as good"), (1.0, "better"), (-1.0, "worse")])
def test_batches_are_judged_against_the_better_end(power: float, verdict: str) -> None:
    """Errors of both ends are 0.1, of 4 batches 0.1 / 2^power."""
    [row] = epsilon.batches(made(lambda m, clients, rng: 0.1 / (2**power if m == 4 else 1)))
    assert (row["predicted best m"], row["batches are"]) == (4, verdict)
    assert row["better end over it"] == pytest.approx(2**power, rel=0.05)


# ---- what one client changes ----


def sums_of(spec: SketchSpec, held: rounds.I64) -> list[CountSketch]:
    sketches = [CountSketch(spec, m) for m in range(len(held))]
    for sketch, counts in zip(sketches, held, strict=True):
        sketch.add_range(rounds.FIRST_ID, counts)
    return sketches


@pytest.mark.parametrize(("rows", "width"), [(3, 4), (4, 5), (1, 2)])
def test_what_one_client_changes_by_brute_force(rows: int, width: int) -> None:
    """Every item in every round: means change by what is computed, and by less than the bound; so
    do medians."""
    size, num_rounds = 12, 9
    spec = SketchSpec(rows, width, "hybrid", num_rounds, SEED)  # type: ignore[arg-type]
    cells, bounds = (
        released.places(SEED, size, rows, width),
        released.sensitivities(SEED, size, rows, width),
    )
    held = np.random.default_rng(0).integers(1, 4, (num_rounds, size))
    before = {fold: released.decode(sums_of(spec, held), fold, size) for fold in released.FOLDS}
    largest = 0.0
    for m in range(num_rounds):
        own = spec.round_hash(m)
        ids = kernels.range_ids(rounds.FIRST_ID, size)
        signs = kernels.signs(kernels.hash_words(own.sign, ids), own.sign_bit)
        effects = released.squared_effects(cells, signs)
        for item in range(size):
            fewer = held.copy()
            fewer[m, item] -= 1
            after = {
                fold: released.decode(sums_of(spec, fewer), fold, size) for fold in released.FOLDS
            }
            changed = {
                fold: float(np.linalg.norm(before[fold] - after[fold])) for fold in released.FOLDS
            }
            assert changed["mean"] ** 2 * rows**2 == pytest.approx(effects[item])
            assert all(changed[fold] <= bounds[fold] * (1 + 1e-9) for fold in released.FOLDS)
            largest = max(largest, changed["mean"])
    assert largest > 0.7 * bounds["mean"]


def test_noise_on_estimates_has_the_deviation_that_the_bound_needs() -> None:
    """10,000 draws: their deviation is known to 0.7 %, and is within 5 of that; draws are multiples
    of the unit."""
    cell = Cell("2", 10_000, 4, 200, 8, 8000, (1.0,), 1, 0)
    bounds = released.sensitivities(SEED, cell.size, cell.rows, cell.width)
    for fold, unit in (("mean", 4), ("median", 2)):
        noise = released.noise_on_estimates(cell, fold, SEED, np.random.default_rng(1))
        assert noise.std() == pytest.approx(4.2247 * bounds[fold], rel=0.036)
        assert (noise * unit == np.rint(noise * unit)).all()


def test_no_factorisation_is_below_the_bound() -> None:
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (30, 10))
    least = released.least_share(signs) * math.sqrt(10)
    for strength in (0.0, 0.3, 1.0, 3.0):
        right = np.eye(10) + strength * rng.normal(size=(10, 10))
        left = signs @ np.linalg.inv(right)
        noise = np.linalg.norm(left) / math.sqrt(30) * np.linalg.norm(right, axis=0).max()
        assert least <= noise
    # noise on sums: t = 1
    assert np.linalg.norm(signs) / math.sqrt(30) == pytest.approx(math.sqrt(10))


def test_released_campaigns_agree_with_the_others() -> None:
    """Estimation alone of the same campaign; the noise on estimates does not depend on M, that on
    sums does."""
    cell = SMALL._replace(epsilons=(1.0,))
    [whole] = [
        r
        for r in released.campaign(cell, 0)
        if (r["decoder"], r["noise on"], r["releases"]) == ("median", "sums", 8)
    ]
    other = [
        r
        for r in epsilon.campaign(cell, {(1.0, "median"): 1, (1.0, "joint"): 1}, 0)
        if r["schedule"] == "hybrid"
    ]
    assert whole["estimation"] == other[0]["estimation"]


@pytest.mark.parametrize(
    ("slopes", "gain", "verdict"),
    [
        ((0.1, 0.2, -0.05, 0.15), 1.0, "reproduced"),  # .1 +- .05: no contradiction to 0
        ((0.1, 0.2), 1.0, "reproduced"),  # two campaigns contradict nothing
        ((0.01, -0.01, 0.0, 0.01), -0.1, "reproduced with a caveat"),
        ((0.5, 0.51, 0.49, 0.5), 1.0, "not"),
        ((-0.5, -0.51, -0.49, -0.5), 1.0, "not"),
    ],
)
def test_the_conjecture_is_judged_with_its_standard_error(
    slopes: tuple[float, ...], gain: float, verdict: str
) -> None:
    """Errors are m^slope with noise on estimates, and e^gain times as large with noise on sums."""
    same = {"law": "2", "rows": 8, "width": 40, "decoder": "mean", "clients": 1000}
    rows: list[study.Row] = []
    for m in (1, 4, 16):
        for repeat, slope in enumerate(slopes):
            own = {"num_rounds": m, "releases": m, "repeat": repeat}
            rows.append(same | own | {"noise on": "estimates", "privacy": m**slope})
            rows.append(same | own | {"noise on": "sums", "privacy": m**slope * math.exp(gain)})
    [row] = released.conjecture(rows)
    assert row["slope, estimates"] == pytest.approx(np.mean(slopes))
    assert row["verdict"] == verdict


def test_all_tasks_have_rows_of_one_shape() -> None:
    tasks = (
        released.Matrices(5, 4, 2, 0),
        released.Effects(50, 3, 8, 4, 1, 0),
        SMALL._replace(epsilons=(1.0,)),
    )
    for task in tasks:
        rows = released.measure(task)
        assert rows
        assert all(set(row) == set(released.KEYS) and row["plan"] for row in rows)


# ---- commands ----

TINY = (
    "--domain-size",
    200,
    "--clients",
    800,
    "--law",
    "1.1",
    "--size",
    "8x30",
    "--rounds",
    1,
    "--rounds",
    4,
)


def test_epsilon_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*TINY, "--epsilon", 1, "--repeats", 2, "--no-plot", "--output", tmp_path)
    measure, calls = epsilon.measure, []

    def stopping(cell: Cell) -> list[study.Row]:
        calls.append(cell)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(cell)

    monkeypatch.setattr(epsilon, "measure", stopping)
    assert invoke(epsilon.command, *arguments).exit_code == 1
    result = invoke(epsilon.command, *arguments)
    assert result.exit_code == 0
    # cells: M = 1 twice, M = 4 once; the third was begun twice
    assert len(calls) == len(set(calls)) + 1 == 4
    assert "Section 4, the remarks" in result.output
    assert (tmp_path / "epsilon.parquet").exists()


def test_released_writes_its_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = invoke(released.command, *TINY, "--bucket", 25, "--repeats", 2, "--output", tmp_path)
    assert result.exit_code == 0, result.output
    assert "The conjecture" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        f"released.{suffix}" for suffix in ("parquet", "md", "png", "svg")
    }


def test_epsilon_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = invoke(
        epsilon.command, *TINY, "--epsilon", 1, "--epsilon", 4, "--repeats", 1, "--output", tmp_path
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "epsilon.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("option", "value"),
    [("seed", -1), ("domain-size", 0), ("clients", -32), ("epsilon", 0), ("repeats", 1)],
)
def test_released_refuses_bad_options(tmp_path: Path, option: str, value: object) -> None:
    refused = invoke(released.command, f"--{option}", value, "--output", tmp_path)
    assert refused.exit_code == 2 and f"Invalid value for '--{option}'" in refused.output


@pytest.mark.parametrize("command", [epsilon.command, released.command])
def test_sizes_that_do_not_fit_are_refused(command: click.Command, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--rounds needs two numbers"):
        invoke(command, "--rounds", 4, "--output", tmp_path)
    with pytest.raises(InvalidInputError, match="divisor"):
        invoke(command, "--rounds", 1, "--rounds", 7, "--output", tmp_path)
    with pytest.raises(InvalidInputError, match="rows x width"):
        invoke(command, "--size", "16by500", "--output", tmp_path)
