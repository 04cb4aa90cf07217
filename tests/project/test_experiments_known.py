"""The experiment that compares plans of both decoders for frequencies that are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import known

from fedtally.plan import Plan, Target

CELL = known.Cell("0.6", "0.6", "hybrid", 500, 20_000, "off", 1, 300, 3, 0, "")
PLAN = Plan(
    rows=10,
    width=7,
    schedule="hybrid",  # type: ignore[arg-type]
    num_rounds=10,
    num_clients=20_000,
    max_round_clients=2_300,
    domain={"kind": "range", "size": 500, "public": True},
    max_items=1,
    seed=bytes(32),
    target=Target(0.0037, 0.1, "joint"),
)


def test_cells_are_drawn_by_the_seed_alone_and_laws_in_turn() -> None:
    cells = known.drawn(14, 3, 7)
    assert [cell.law for cell in cells] == [*known.LAWS] * 2
    assert cells == known.drawn(14, 3, 7) != known.drawn(14, 3, 8)
    many = known.drawn(140, 3, 7)
    assert len(set(many)) == 140 and all(cell.bytes <= cell.size for cell in many)


def test_the_plans_are_those_of_the_planner_for_the_cell() -> None:
    asked = CELL._replace(noise="central", items=5)
    plan = known.plan_of(asked, "belief", 0.02)
    assert plan.privacy is not None and plan.max_items == 5
    assert plan.target is not None and str(plan.target.recovery) == "belief"
    assert known.measure(CELL._replace(bytes=1)) == []  # which no plan has


@pytest.mark.parametrize(("width", "exceeded", "verdict"), [(7, 0, "PASS"), (3, 3, "MISS")])
def test_campaigns_above_tau_are_counted(
    width: int, exceeded: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 x 7 counters are the plan of belief propagation; joint recovery decodes them worse."""
    plans = {"joint": replace(PLAN, width=17), "belief": replace(PLAN, width=width)}
    monkeypatch.setattr(known, "plan_of", lambda cell, recovery, tau: plans[recovery])
    [row] = known.measure(CELL)
    assert row["times fewer"] == pytest.approx(17 / width)
    assert row["belief by auto, above tau"] == exceeded and row["belief by joint, above tau"] == 3
    same = CELL._replace(law="2", actual="2")
    monkeypatch.setattr(known, "plan_of", lambda cell, recovery, tau: PLAN)
    cells, laws = known.summarise([row, *known.measure(same)]).values()
    assert len({tuple(line) for line in cells}) == 1 and cells[1]["verdict"] == "-"
    assert cells[0]["verdict"] == verdict
    assert [line["misses"] for line in laws] == [verdict == "MISS", 0, verdict == "MISS"]


def test_clients_may_be_of_another_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "PAIRS", [("0.6", "1.1/2")])
    monkeypatch.setattr(known, "UNLIKE", {"hybrid": (20_000, 300)})
    monkeypatch.setattr(known, "plan_of", lambda cell, recovery, tau: PLAN)
    monkeypatch.setattr(known.output, "data_folder", lambda data: tmp_path)
    asked = ["--unlike", "--repeats", "2", "--output", str(tmp_path)]
    run = CliRunner().invoke(known.command, asked, catch_exceptions=False)
    assert run.exit_code == 0, run.output
    [line] = [line.split() for line in run.output.splitlines() if "1.1/2" in line]
    assert line[:7] == ["hybrid", "0.6", "1.1/2", "10x7", "10x7", "1", "2"]
