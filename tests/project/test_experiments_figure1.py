"""Figure 1: widths are those of the paper's formulas, errors those of campaigns drawn again;
verdicts follow."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import figure1, output, populations, rounds
from experiments import figure1_rounds as several
from experiments import figure1_single as single
from experiments.study import Row
from pyarrow import parquet

from fedtally.domain import IntegerRange
from fedtally.plan import paper
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import Size
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

LAW = "zipf:a=1.5,d=5000"  # 500 clients
SMALL = (
    f"--population {LAW} --points 1 --pilots 2 --repeats 2 --width 50 --round-repeats 3"
    " --joint-repeats 2 --no-plot"
)


def run(*arguments: object, command: click.Command = figure1.command) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def pilot_task(tau: float = 0.05, repeats: int = 2) -> single.Task:
    one = several.load(LAW, None)
    return single.Task(
        LAW,
        one.title,
        None,
        populations.digest(one.law),
        one.num_clients,
        one.rows,
        tau,
        0,
        repeats,
        0,
    )


def row(
    method: str, pilot: int, repeat: int, linf: float, width: int = 10, tau: float = 0.1
) -> Row:
    found = {
        "part": single.PART,
        "population": "p",
        "clients": 100,
        "tau": tau,
        "method": method,
        "pilot": pilot,
    }
    found |= {
        "repeat": repeat,
        "rows": 5,
        "width": width,
        "linf": linf,
        "kept": linf <= tau,
        "warned": False,
    }
    return found | {"decoder": "median"}


def rounds_row(
    method: str, repeat: int, linf: float, width: int = 50, decoder: str = "median"
) -> Row:
    found = {
        "part": several.PART,
        "population": "p",
        "clients": 1000,
        "method": method,
        "decoder": decoder,
    }
    return found | {"repeat": repeat, "width": width, "linf": linf}


# ---- one round ----


def test_targets_are_even_and_above_20_clients() -> None:
    assert single.taus(9, "log", 17_500)[::4] == pytest.approx([10**-2.8, 0.01, 10**-1.2])
    assert single.taus(9, "log", 1000)[0] > 0.02
    assert np.ptp(np.diff(single.taus(9, "linear", 17_500))) < 1e-9


def test_sizes_are_the_papers_formulas() -> None:
    """With n = 500 and tau = 0.05, each by its own arithmetic: 2 min(2 / tau, n), and 2 sum min(1,
    f / tau)^2."""
    found = figure1.measure(pilot_task())
    assert [one["method"] for one in found[:5]] == [
        m for m in single.METHODS if m != single.INSTANCE
    ] + [single.INSTANCE]
    law = several.load(LAW, None).law
    for one in found:
        rng = np.random.default_rng(one["seed"])
        held = rounds.draw(rng.permutation(law), 500, 1, rng)[0]
        if one["method"] == single.MINIMAX:
            assert one["width"] == 80
        if one["method"] == single.INSTANCE:
            assert one["width"] == math.ceil(
                2 * np.minimum(held / 500 / 0.05, 1) @ np.minimum(held / 500 / 0.05, 1)
            )
        assert one["rows"] == 12 or one["method"] == single.JOINT
        assert one["kept"] == (one["linf"] <= 0.05)


def test_errors_are_those_of_the_seed_and_the_plan() -> None:
    """A campaign drawn again from its row, counter by counter, has the row's error."""
    law = several.load(LAW, None).law
    for one in figure1.measure(pilot_task(repeats=1))[:3]:
        rng = np.random.default_rng(one["seed"])
        held = rounds.draw(rng.permutation(law), one["clients"], 1, rng)[0]
        plan = json.loads(one["plan"])
        assert bytes.fromhex(plan["hash_seed"]) == rng.bytes(32)
        spec = SketchSpec(
            plan["rows"],
            plan["width"],
            Schedule.parse("shared"),
            1,
            bytes.fromhex(plan["hash_seed"]),
        )
        sketch = CountSketch(spec, 0)
        sketch.add(np.repeat(np.arange(1, 5001, dtype=np.uint64), held))
        decoded = MedianDecoder([sketch]).range(1, 5000)
        assert one["linf"] == pytest.approx(np.abs(decoded - held).max() / 500)


def test_a_row_says_what_draws_its_pilot_again() -> None:
    """From nothing but a row: the law's name and digest, the experiment's seed, tau and the pilot's
    number."""
    found = figure1.measure(pilot_task(repeats=1))
    row = next(one for one in found if one["method"] == single.TWO_PHASE)
    law = several.load(row["population"], None).law
    assert (row["title"], row["law"]) == (f"{LAW} (synthetic)", populations.digest(law))
    assert row["domain_size"] == len(law) == 5000
    seed = several.whole(
        row["experiment_seed"], int(row["law"], 16), round(row["tau"] * 1e12), row["pilot"]
    )
    assert seed != row["seed"]
    sizes = single.choose(pilot_task(), law, np.random.default_rng(seed))
    assert (sizes[single.TWO_PHASE].rows, sizes[single.TWO_PHASE].width) == (
        row["rows"],
        row["width"],
    )
    [task, *_] = several.tasks(several.load(LAW, None), None, [50], {"median": 2}, 3)
    other = several.measure(task)[0]
    assert list(other) == list(row)
    assert [other[name] for name in ("title", "law", "domain_size")] == [
        row["title"],
        row["law"],
        5000,
    ]
    assert other["experiment_seed"] == 3


def test_two_phase_and_planner_see_the_same_pilot_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[CountSketch] = []
    known, two_phase = Frequencies.from_pilot, paper.two_phase

    def from_pilot(sums: list[CountSketch], domain: IntegerRange) -> Frequencies:
        seen.extend(sums)
        return known(sums, domain)

    def sized(sums: CountSketch, *given: object, **more: object) -> Size:
        seen.append(sums)
        return two_phase(sums, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Frequencies, "from_pilot", from_pilot)
    monkeypatch.setattr(paper, "two_phase", sized)
    task = pilot_task()
    sizes = single.choose(task, several.load(LAW, None).law, np.random.default_rng(0))
    assert seen[0] is seen[1]
    assert seen[0].num_clients == 50 and (seen[0].spec.rows, seen[0].spec.width) == (8, 200)
    expected = two_phase(seen[0], IntegerRange(1, 5000), 0.05, num_clients=500, rows=12)
    assert sizes[single.TWO_PHASE] == expected


def test_shares_have_the_error_of_their_pilots() -> None:
    rows = [
        row("m", pilot, repeat, 0.05 if pilot < 2 else 0.2)
        for pilot in range(4)
        for repeat in range(50)
    ]
    [cell] = single.cells(rows, "m", 5).values()
    assert cell.share == 0.5 and cell.error == pytest.approx(np.std([1, 1, 0, 0], ddof=1) / 2)
    # four pilots tell little; as many campaigns of their own pilots would tell it:
    assert not cell.missed
    own = [one | {"pilot": 50 * one["pilot"] + one["repeat"]} for one in rows]
    [cell] = single.cells(own, "m", 5).values()
    assert cell.missed and cell.error == pytest.approx(0.5 / math.sqrt(199))


def test_one_pilot_or_campaign_has_no_standard_error() -> None:
    alone = several.ratio(np.array([1.0]), np.array([1.02]))
    assert not alone.below(1.0) and not alone.above(0.5)
    found = single.cells([row("m", 0, repeat, 0.2) for repeat in range(50)], "m", 5)
    other = single.cells([row("o", 0, repeat, 0.2, width=20) for repeat in range(50)], "o", 5)
    assert not found[0.1].missed
    assert not single.narrower(found, other).below(1.0)


@pytest.mark.parametrize("option", ["--pilots", "--round-repeats", "--joint-repeats"])
def test_one_pilot_or_campaign_is_refused(option: str, tmp_path: Path) -> None:
    result = run("--quick", option, 1, "--output", tmp_path)
    assert result.exit_code == 2 and "x>=2" in result.output


def test_the_words_of_figure_1_i_are_the_papers() -> None:
    rows = [rounds_row(name, r, 0.1) for name in ("shared", "fresh", "hybrid") for r in (0, 1)]
    assert "consistent with our prior understandings" in str(
        several.claim(rows, "sentiment140", "")["place"]
    )
    assert "consistent" not in str(several.claim(rows, "gowalla", "")["place"])


def test_the_claim_on_widths_needs_narrower_sketches_that_keep_tau() -> None:
    one = populations.Population("p", "p", np.array([1.0]), 100, 5, False)

    def verdict(instance: tuple[int, float], two_phase: tuple[int, float]) -> object:
        ways = {single.MINIMAX: (40, 0.01), single.INSTANCE: instance, single.TWO_PHASE: two_phase}
        return single.claim(
            [
                row(way, p, r, linf, width)
                for way, (width, linf) in ways.items()
                for p in range(5)
                for r in range(5)
            ]
            + [row(way, 0, 0, 0.01) for way in (single.MEDIAN, single.JOINT)],
            one,
        )["verdict"]

    assert verdict((10, 0.09), (12, 0.09)) == "reproduced"
    assert verdict((10, 0.09), (12, 0.11)) == "reproduced with a caveat"
    assert verdict((10, 0.11), (12, 0.09)) == "reproduced with a caveat"
    assert verdict((10, 0.09), (40, 0.09)) == "not reproduced"


# ---- ten rounds ----


def test_both_decoders_see_the_same_campaigns() -> None:
    one = several.load(LAW, None)
    found = {
        task.decoder: several.measure(task)
        for task in several.tasks(one, None, [50], {"median": 2, "joint": 2}, 3)
    }
    median, joint = found["median"], found["joint"]
    assert [one["plan"] for one in median] == [one["plan"] for one in joint]
    assert [one["seed"] for one in median] == [one["seed"] for one in joint]
    assert [one["method"] for one in median] == ["shared", "fresh", "hybrid"] * 2
    rng = np.random.default_rng(median[0]["seed"])
    held = rounds.draw(rng.permutation(one.law), 5000, 10, rng)
    hashes = rng.bytes(32)
    for again in median[:3]:
        decoded = rounds.estimate(held, one.rows, 50, again["method"], hashes)
        assert again["linf"] == pytest.approx(np.abs(decoded - held.sum(axis=0)).max() / 5000)
    assert sum(one["linf"] for one in joint) < sum(one["linf"] for one in median)


def test_tasks_are_chunks_of_all_campaigns() -> None:
    made = list(
        several.tasks(several.load(LAW, None), None, [50, 100], {"median": 25, "joint": 3}, 0)
    )
    chunks = [(task.width, task.decoder, task.first, task.last) for task in made]
    assert chunks[:4] == [
        (50, "median", 0, 10),
        (50, "median", 10, 20),
        (50, "median", 20, 25),
        (50, "joint", 0, 3),
    ]
    assert len(set(map(repr, made))) == 8


def test_ratios_have_the_error_that_repetition_shows() -> None:
    """The standard error of 400 ratios of means is the mean of what each says, within 15 %."""
    rng = np.random.default_rng(0)
    pairs = rng.gamma(4.0, size=(400, 2, 50))
    found = [several.ratio(*pair) for pair in pairs]
    spread = np.std([one.value for one in found])
    # 4 of its standard errors
    assert np.mean([one.error for one in found]) == pytest.approx(spread, rel=0.15)
    both = several.overall(found[:4])
    assert both.error == pytest.approx(spread / 2, rel=0.3)


@pytest.mark.parametrize(
    ("hybrid", "fresh", "similar", "advantage"),
    [
        (0.40, 0.38, "reproduced", "not reproduced"),
        (0.45, 0.30, "reproduced with a caveat", "not reproduced"),
        (0.90, 0.30, "not reproduced", "not reproduced"),
        (0.20, 0.38, "reproduced with a caveat", "reproduced"),
        (1.20, 1.20, "not reproduced", "not reproduced"),
    ],
)
def test_verdicts_follow_the_errors(
    hybrid: float, fresh: float, similar: str, advantage: str
) -> None:
    errors = {"shared": 1.0, "fresh": fresh, "hybrid": hybrid}
    rows = [
        rounds_row(name, r, 0.1 * e * (1 + 0.01 * (r % 3)))
        for name, e in errors.items()
        for r in range(9)
    ]
    assert several.claim(rows, "gowalla", "")["verdict"] == similar
    assert several.claim(rows, "c4", "")["verdict"] == advantage


def test_an_advantage_at_some_widths_is_a_caveat() -> None:
    at = {
        50: {"shared": 1.0, "fresh": 0.3, "hybrid": 0.6},
        100: {"shared": 1.0, "fresh": 0.5, "hybrid": 0.4},
    }
    rows = [
        rounds_row(name, r, 0.1 * e, width)
        for width, errors in at.items()
        for name, e in errors.items()
        for r in (0, 1)
    ]
    found = several.claim(rows, "c4", "")
    assert found["verdict"] == "reproduced with a caveat"
    assert "below 1 at 1, above at 1 of 2 widths" in str(found["ours"])


def test_exact_recovery_counts_as_half_a_client() -> None:
    rows = [
        rounds_row("hybrid", 0, 0.0, decoder="joint"),
        rounds_row("hybrid", 1, 0.01, decoder="joint"),
    ]
    assert several.errors(rows, "hybrid", "joint")[50].tolist() == [0.0005, 0.01]


# ---- the command ----


def test_the_command_leaves_tables_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, measure, calls = tmp_path / "whole", figure1.measure, []
    monkeypatch.setattr(single, "taus", lambda *_: [0.05])  # n = 500: it must be above 0.04
    result = run(*SMALL.split(), "--output", whole)
    assert result.exit_code == 0, result.output
    rows = parquet.read_table(whole / "figure1.parquet").to_pylist()
    assert len(rows) == 2 * 2 * 5 + 3 * 3 + 2 * 3
    text = (whole / "figure1.md").read_text()
    assert "no claim of the paper" in text and "targets missed" in text and "synthetic" in text

    def stopped(task: object) -> list[Row]:
        calls.append(task)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(task)  # type: ignore[arg-type]

    monkeypatch.setattr(figure1, "measure", stopped)
    assert run(*SMALL.split(), "--output", tmp_path).exit_code != 0
    assert run(*SMALL.split(), "--output", tmp_path).exit_code == 0
    # two pilots, of which the second was stopped and done again, and both decoders
    assert len(calls) == 5
    assert parquet.read_table(tmp_path / "figure1.parquet").to_pylist() == rows


def test_the_picture_has_a_line_of_three_for_each_population() -> None:
    pytest.importorskip("matplotlib")
    one = several.load(LAW, None)
    rows = figure1.measure(pilot_task())
    for task in several.tasks(one, None, [50, 100], {"median": 1, "joint": 1}, 0):
        rows += several.measure(task)
    figure = figure1.draw(rows, [one, one])
    figure.canvas.draw()
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "target tau",
        "target tau",
        "width W",
    ] * 2
    assert len(figure.legends) == 2


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    missing = run("--population", "c4", "--data", tmp_path, "--output", tmp_path)
    assert isinstance(missing.exception, output.MissingDataError)
    assert "c4_count_surrogate.npz" in str(missing.exception) and "--data" in str(missing.exception)
    for name, said in (
        ("zipf:d=100", "at least 500 items"),
        ("moon", "must be one of"),
        ("zipf:d=900", "than 200 clients"),
    ):
        refused = run("--population", name, "--output", tmp_path)
        assert refused.exit_code != 0 and said in str(refused.exception)
    # the only one is 0.01
    few = run("--population", "zipf:d=3000", "--points", 1, "--output", tmp_path)
    assert "no tau is above 20 / 300: take more --points" in str(few.exception)
