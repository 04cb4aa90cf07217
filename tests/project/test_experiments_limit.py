"""The experiment `limit`: its bounds are those of theory, and its verdicts those of its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import limit, sizes, unlike

from fedtally.plan.paper import Size

SMALL = limit.Task("1.1", "alike", "shared", 5, 80, "off", 1000, 30_000, 0, 0)


def test_state_evolution_of_normal_counts_is_that_of_the_formula() -> None:
    """Where all counts are alike but for a little, the channel's error is that of Bayes' rule.

    Counts of two values, a apart, are far below the noise T at which the evolution stands still. So
    the error of the posterior mean is next to their variance, (a / 2)^2, and
    T^2 = d / (L W) (a / 2)^2 + noise.
    """
    counts = np.repeat([10, 12], 500)
    stddev = limit.evolve(counts, 500, 100, 1, 90.0, informed=True)
    assert stddev**2 == pytest.approx(1000 / 500 * 1.0 + 90.0 * 100 / 500, rel=0.06)


def test_evolution_from_the_truth_is_no_worse_than_from_nothing() -> None:
    """A plateau in one round has two places where the evolution stands still."""
    counts = np.repeat([400, 4], [200, 1800])
    told, not_told = (
        limit.evolve(counts, 500, 100, 1, 0.0, informed=informed) for informed in (True, False)
    )
    assert told <= not_told * 1.01


@pytest.mark.parametrize("heard", [1.0, 0.8])
def test_of_few_rows_a_message_hears_one_less(heard: float) -> None:
    """Items far above the noise say their count themselves, with the noise of the rows that are
    heard: T^2 = noise + d / (L W) T^2 / heard."""
    counts = np.full(100, 10_000)
    stddev = limit.evolve(counts, 500, 100, 1, 450.0, informed=True, heard=heard)
    assert stddev**2 == pytest.approx(90.0 / (1.0 - 0.2 / heard), rel=0.01)


def test_differences_between_batches_are_shrunk_by_counts_that_are_only_believed() -> None:
    """The place where the evolution stands still leaves the noise that it has, drawn one by one."""
    counts = np.floor(600_000.0 * np.arange(1, 10_001.0) ** -2).astype(np.int64)
    stddev = limit.evolve(counts, 1000, 200, 10, 0.0, informed=False, heard=0.8)
    heard = stddev / 0.8**0.5
    rng = np.random.default_rng(0)
    square = 0.0
    for _ in range(20):
        believed = counts + heard * rng.normal(size=counts.size)
        believed = limit.means(believed, heard, *limit.groups(counts))
        kept = np.maximum(believed, 0.0) / (np.maximum(believed, 0.0) + heard**2)
        apart = np.sqrt(counts) * rng.normal(size=counts.size)
        wrong = kept * (apart + heard * rng.normal(size=counts.size)) - apart
        square += (0.1 * (believed - counts) ** 2 + 0.9 * wrong**2).sum() / 1000 / 20
    assert stddev**2 == pytest.approx(square, rel=0.05)


def test_a_scalar_channel_without_noise_has_no_error() -> None:
    largest, l2 = limit.channel(np.arange(40), 1e-3, np.random.default_rng(0))
    assert largest < 0.01 and l2 < 0.02


def test_a_campaign_is_that_of_its_task() -> None:
    first, again = (limit.measure(SMALL)[0] for _ in range(2))
    assert first == again
    other = limit.measure(SMALL._replace(repeat=1, bounded=False))[0]
    assert other["plan"] != first["plan"] and other["limit_l2"] is None
    assert first["items_0"] == 20 and first["limit_l2"] > 0
    assert first["planned_linf"] == other["planned_linf"] > 0
    assert limit._noise(SMALL._replace(noise="on", schedule="fresh")) == 10 * limit._noise(
        SMALL._replace(noise="on")
    )


def test_verdicts_are_those_of_the_rows() -> None:
    row = limit.measure(SMALL)[0]
    bands = {f"{what}_{first}": 40 for first, _ in limit.BANDS for what in ("held", "items")}
    good = row | bands | {"belief_linf": row["joint_linf"], "belief_shrunk_l2": 1.0}
    bad = good | {"cell": "worse", "belief_linf": 1.03 * row["joint_linf"]}
    gaps = good | {"cell": "gaps", "held_20": 33}
    table, [single] = limit.summarise([good, bad, gaps]).values()
    assert (single["campaigns"], single["larger"], single["by 10 %"]) == (3, 1, 0)
    assert single["most"] == 1.03
    answered = bad | {"fallback": "joint recovery answered", "belief_linf": 2 * row["joint_linf"]}
    assert limit._single([good, answered])["campaigns"] == 1
    assert limit._single([good | {"belief_linf": 1.2 * row["joint_linf"]}])["by 10 %"] == 1
    assert [line["verdict"] for line in table] == ["PASS", "MISS", "MISS"]
    assert table[2]["lowest coverage"] == 33 / 40
    assert table[0]["l2 over rows"] == 1.0 / row["rows_l2"] and table[0]["one end"] is True
    two_ends = good | {"rows_l2": 1.06 * row["informed_l2"]}
    not_told = two_ends | {"genie_linf": None, "joint_linf": 3.0 * row["joint_linf"]}
    [line], _ = limit.summarise([two_ends, not_told]).values()
    assert line["one end"] is False
    assert line["genie linf"] == row["genie_linf"] / row["joint_linf"]
    assert line["genie l2 over rows"] == row["genie_l2"] / two_ends["rows_l2"]
    assert len(limit.draw([good, bad]).axes) == 2


def test_few_cells_send_messages_in_their_experiment_alone() -> None:
    [task, *_] = unlike.tasks(1, None, 0, "few")
    found = unlike.measure(task)[0]
    assert found["fallback"] == "" and found["belief_linf"] != found["joint_linf"]
    assert unlike.measure(task._replace(few=False))[0]["fallback"].startswith("100 cells")
    [line], _ = limit.summarise([found]).values()
    assert line["joint held, 0-20"] == found["joint_held_0"] / 20


@pytest.mark.parametrize("task", unlike.tasks(1, None, 0), ids=lambda task: task.cell)
def test_clients_of_cells_unlike_the_grid_are_drawn(task: unlike.Task) -> None:
    """Clients of several items are counted once, and all others have one item each."""
    small = task._replace(size=min(task.size, 2000))
    held, people = unlike._held(small, np.random.default_rng(0))
    assert held.shape == (task.num_rounds, small.size) and (held >= 0).all()
    several = task.kind == "several"
    assert (held.sum(axis=1) > people).all() if several else (held.sum(axis=1) == people).all()
    assert task.clients - 10 <= people.sum() <= task.clients or task.kind == "silos"


class Step(sizes.Task):
    """A decoder that keeps the target from a width of 37 on, and in three of four below 40."""

    def keeps(self, rows: int, width: int, number: int) -> bool:
        return width >= 40 or (width >= 37 and number % 4 > 0)


@pytest.mark.parametrize("guess", [20, 39, 60])
def test_the_least_width_is_found_from_any_guess(guess: int) -> None:
    """One in ten campaigns may fail, and of four none."""
    task = Step("1.1", "hybrid", 0.004, 100, 20_000, 4, 4, 0)
    assert 40 <= task.least_width(5, guess) <= 41


def test_sizes_are_judged_by_the_least_that_does_and_by_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = Size("model", 8, 3, None)
    monkeypatch.setattr(sizes, "size_by_model", lambda *args, **options: chosen)
    task = sizes.Task("1.1", "hybrid", 0.004, 100, 20_000, 0, 2, 0)
    [row] = sizes.measure(task)
    assert (row["joint"], row["belief"]) == ("8x3", "8x3")
    assert row["over least"] is None and row["fewer bytes"] == 1.0
    assert row["kept"] == sum(task.keeps(8, 3, number) for number in (10_000, 10_001))
    good = row | {"over least": 1.1, "kept": 180, "trials": 200}
    others = [{"kept": 160}, {"over least": 1.4}, {"over least": 0.9}]
    [table] = sizes.summarise([good, *(good | other for other in others)]).values()
    assert [line["verdict"] for line in table] == ["PASS", "MISS", "MISS", "MISS"]


def test_the_command_leaves_a_table_and_a_picture(tmp_path: Path) -> None:
    options = ["--quick", "--domain-size", 300, "--clients", 20_000, "--size", "5x30"]
    options += ["--repeats", 1, "--schedule", "shared", "--output", tmp_path]
    run = CliRunner().invoke(limit.command, [str(one) for one in options], catch_exceptions=False)
    assert run.exit_code == 0 and "1.1, shared 5x30" in run.output
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"limit.parquet", "limit.md", "limit.png", "limit.svg"}
