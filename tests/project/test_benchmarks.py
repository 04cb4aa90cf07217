"""The benchmarks run and state their goals; how fast they find things is not tested here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("benchmarks", reason="run from the root of the repository: python -m pytest")

from benchmarks import measure, open_domain, peers, prio3_peer, proofs, secagg, secagg_peer, tables
from benchmarks.__main__ import main

from fedtally import kernels
from fedtally.kernels import reference
from fedtally.secagg.params import Adversary


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def document(*arguments: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return loaded


def test_kernels_measure_every_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "2")
    measured = document("kernels", "--quick")
    assert {rate["backend"] for rate in measured["rates"]} >= set(kernels.available_backends())
    assert all(rate["best"] >= rate["median"] > 0 for rate in measured["rates"])
    missing = {name for name in peers.LIBRARIES if name not in peers.installed()}
    assert {note.split()[0] for note in measured["notes"] if "fedtally[bench]" in note} == missing
    assert measured["machine"]["caches"]
    if "v3" in kernels.available_backends():
        assert any(goal["name"] == "v3: decode M=1 / gather limit" for goal in measured["goals"])


def test_campaign_states_time_and_memory() -> None:
    goals = document("campaign", "--quick")["goals"]
    *each, one, of_one, text, of_text = [goal["unit"] for goal in goals]
    assert each == [" s", " GB"] * 4
    # seconds and CPU time over the paper's decoder, of integers and of text
    assert one == of_one == text == of_text == "x"


def test_names_of_an_open_domain_state_time_and_memory() -> None:
    measured = document("open-domain", "--quick")
    assert [goal["unit"] for goal in measured["goals"]] == [" s", " GB"]
    assert all(goal["value"] > 0 for goal in measured["goals"])
    assert "are named" in measured["notes"][0]


def test_an_open_domain_is_estimated_beside_a_checkout(tmp_path: Path) -> None:
    """Here beside itself: the answers are the same, and the words those of an earlier sample."""
    goals = document("open-domain", "--quick", "--beside", ".")["goals"]
    assert [goal["bound"] for goal in goals] == [1 / 4, 1, 1 / 2, 1, 1, 1]
    assert [goal["value"] for goal in goals[1::2]] == [1, 1, 1]
    words = open_domain.words_of(3000)
    assert len(words) == 3000
    assert words[:4] == ["babi", "bahi", "baba", "bade"]
    (tmp_path / "src").mkdir()
    failed = CliRunner().invoke(main, ["open-domain", "--quick", "--beside", str(tmp_path)])
    assert failed.exit_code == 1
    assert "ran, and not the code in" in failed.output


def test_footprint_measures_the_chosen_parts() -> None:
    printed = run("footprint", "--quick", "--part", "import", "--part", "help", "--part", "start")
    assert "import fedtally, above bare Python:" in printed
    assert "fedtally --version / import click, numpy:" in printed
    assert "a missing file / import click, numpy:" in printed
    assert "fedtally plan of README:" in printed
    assert "fedtally --help, CPU:" in printed
    assert "wheel" not in printed


def test_a_plan_is_compared_with_that_of_a_checkout() -> None:
    printed = run("footprint", "--quick", "--beside", ".")
    assert "fedtally plan of README, by that beside: " in printed
    assert "to import click, NumPy and dp-accounting takes" in printed


def test_the_import_of_a_light_agent_is_compared() -> None:
    measured = document("light-agent", "--quick", "--against", "HEAD")
    assert [round(goal["bound"], 3) for goal in measured["goals"]] == [0.667, 0.667]
    # one version, so each share is about 1, and an agent with its record takes more than without
    assert 0.8 < measured["goals"][1]["value"] < 1.25
    memory = [float(note.split()[-2]) for note in measured["notes"]]
    assert len(memory) == 5 and memory[0] < memory[2]


@pytest.mark.parametrize(
    ("value", "at_most", "met"), [(2.0, False, True), (0.5, False, False), (0.5, True, True)]
)
def test_goal_says_on_which_side_it_is(value: float, at_most: bool, met: bool) -> None:
    goal = measure.Goal("speed", value, 1.0, "x", at_most)
    assert goal.met == met
    assert str(goal).endswith("): met" if met else "): NOT MET")


def test_independent_numpy_agrees_with_the_reference() -> None:
    rng = np.random.default_rng(0)
    tables = rng.integers(2**32, size=(2, 5, 8, 256), dtype=np.uint32)
    ids = np.frombuffer(rng.bytes(8 * 10_000), np.uint64)
    ours, theirs = np.zeros((2, 5, 100), np.int64)
    reference.accumulate(ours, tables[0], tables[0], 0, ids, None)
    peers.numpy_accumulate(theirs, tables[0], ids)
    assert np.array_equal(ours, theirs)
    sums = rng.integers(-50, 50, (10, 5, 100))
    expected = reference.decode(sums, tables, kernels.range_ids(7, 9000))
    assert np.array_equal(expected, peers.numpy_decode(sums, tables, 7, 9000))


def test_proofs_are_measured() -> None:
    measured = document("proofs", "--quick")
    goals = {goal["name"]: goal for goal in measured["goals"]}
    assert len(goals) == 15
    for name, goal in goals.items():
        assert goal["value"] > 0  # with `--quick`, times are of single turns
        assert goal["met"] or "upload" not in name  # bytes are the same on every machine


def test_reports_of_dap_are_measured() -> None:
    """That each report is verified once is looked at by the benchmark itself."""
    measured = document("dap", "--quick")
    (goal,) = measured["goals"]
    assert goal["value"] > 0.5
    assert "DAP and native: 2,728 and 1,008 (2.7 times)" in measured["notes"][0]  # as in docs
    assert len(measured["notes"]) == 3


def test_two_servers_on_disk_are_measured() -> None:
    measured = document("batches", "--quick")
    goals = {goal["name"]: goal for goal in measured["goals"]}
    assert len(goals) == 6
    for name, goal in goals.items():
        assert goal["value"] > 0  # with `--quick`, times are of single turns
        assert goal["met"] or "peak" not in name
    assert any("bytes of disk for each of 5 reports" in note for note in measured["notes"])


def test_windows_and_long_plans_are_measured() -> None:
    measured = document("windows", "--quick")
    assert [rate["unit"] for rate in measured["rates"]] == ["s"] * 10
    names = [goal["name"] for goal in measured["goals"]]
    assert sum("last:" in name for name in names) == 6 and "2^20" in names[-1]
    assert all(goal["value"] > 0 and goal["met"] is None for goal in measured["goals"])


def test_two_servers_over_http_are_measured() -> None:
    """The sum of each release is looked at by the benchmark itself."""
    pytest.importorskip("uvicorn")
    measured = document("two-servers", "--quick")
    assert len(measured["goals"]) == 8
    assert all(goal["met"] is None for goal in measured["goals"])  # a few reports judge no goal
    assert [note.partition(":")[0] for note in measured["notes"]] == ["helper", "leader"]


def test_reports_of_prio3_stand_beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def peer(folder: Path, kind: str, length: int, turns: int) -> prio3_peer.PeerReport:
        assert folder == tmp_path
        return prio3_peer.PeerReport(40 * length if kind == "sumvec" else length, 5e3, 1e3)

    monkeypatch.setattr(proofs, "measure_peer", peer)
    measured = document("proofs", "--quick", "--prio3", str(tmp_path))
    ours = {"5 x 400": 4952, "7 x 571": 9018, "16 x 1000": 33_132}  # as in docs/evidence.md
    goals = {g["name"]: g for g in measured["goals"] if "Prio3" in g["name"]}
    assert len(goals) == 6
    for name, goal in goals.items():
        rows, _, width, *_ = name.replace(":", "").split()
        length = int(rows) * int(width) * 40 if "sumvec" in name else 100_000
        assert goal["value"] == pytest.approx(length / ours[name.partition(":")[0]])


def test_a_folder_without_prio3_says_how_to_get_it(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["proofs", "--quick", "--prio3", str(tmp_path)])
    assert result.exit_code == 1
    assert "Node.js" in result.output or prio3_peer.INSTALL in result.output


def test_secure_sums_are_measured_without_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secagg_peer, "importlib", SimpleNamespace(import_module=no_flower))
    measured = document("secagg", "--quick")
    rows = {
        (row["parameters"]["adversary"], row["parameters"]["n_max"], row["dropout"])
        for row in measured["rows"]
    }
    assert rows >= {("semi-honest", n, dropout) for n in (10, 20, 40) for dropout in (0, 0.05, 0.3)}
    assert rows >= {("active", 10, 0.3), ("active", 20, 0.05)}
    for row in measured["rows"]:
        assert row["peer"] is None
        assert min(row["ours"][name] for name in ("client", "server", "up", "down")) > 0
    assert measured["notes"] == ["Flower is not installed: pip install flwr==1.41.0"]
    assert {goal["unit"] for goal in measured["goals"]} == {"x", " %", " s", " GB"}
    whole = [goal["name"] for goal in measured["goals"] if goal["name"].startswith("cohort of")]
    assert [name.split(",")[1] for name in whole] == [
        " semi-honest",
        " semi-honest",
        " active",
        " active",
    ]
    upload = next(goal for goal in measured["goals"] if "upload" in goal["name"])
    assert upload["met"] and upload["value"] > 10


def no_flower(name: str) -> Any:
    raise ImportError(name)


def test_flower_that_is_missing_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secagg_peer, "importlib", SimpleNamespace(import_module=no_flower))
    with pytest.raises(click.ClickException, match=r"pip install flwr==1\.41\.0"):
        secagg_peer.run_round([np.ones(3, np.int64)] * 5, 4, 3, 0, 1)


def test_a_round_that_ends_early_or_with_another_sum_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parameters, vectors = secagg.planned(10, 20, 0.0), [np.ones(20, np.int64)] * 10
    with pytest.raises(click.ClickException, match="fewer clients survived"):
        secagg.run_round(parameters, vectors, 2)
    true = secagg.Cohort.run
    monkeypatch.setattr(secagg.Cohort, "run", lambda cohort: plus_one(true(cohort)))
    with pytest.raises(click.ClickException, match=r"wrong by up to 1\.0"):
        secagg.run_round(parameters, vectors, 0)


def plus_one(server: Any) -> Any:
    server.outcome.total[3] += 1
    return server


def test_helped_clients_change_neither_the_sum_nor_the_bytes() -> None:
    parameters = secagg.planned(10, 20, 0.3, Adversary.ACTIVE)
    vectors = [np.full(20, i) for i in range(10)]
    alone, helped = (
        secagg.run_round(parameters, vectors, 1),
        secagg.run_round(parameters, vectors, 1, 2),
    )
    assert (helped.up, helped.down, helped.error) == (alone.up, alone.down, 0)


@pytest.mark.filterwarnings("ignore")
def test_the_peer_is_a_round_of_flower() -> None:
    pytest.importorskip("flwr", reason=secagg_peer.INSTALL)
    vectors = [np.array([i % 3 - 1, 1, 0, -1]) for i in range(12)]
    for neighbours, dropouts in ((6, 2), (11, 3)):  # a ring, and all others
        whole = secagg_peer.run_round(vectors, neighbours, 3, dropouts, 1)
        assert whole.error is not None and whole.error < 0.05
        assert not whole.scaled
        part = secagg_peer.run_round(vectors, neighbours, 3, dropouts, 1, 2)
        assert part.scaled and part.error is None
        assert part.up == pytest.approx(whole.up, rel=0.1) and part.down == pytest.approx(
            whole.down, rel=0.01
        )
        assert whole.server > whole.client > 0 and part.server > part.client > 0
    compared = document("secagg", "--quick", "--part", "compare", "--part", "ratios")
    assert {row["peer"]["scaled"] for row in compared["rows"]} == {True, False}
    upload, *ratios = (goal["name"] for goal in compared["goals"])
    assert upload.startswith("largest upload / ")
    assert [name.split()[-3:] for name in ratios[:2]] == [
        ["client", "/", "ours"],
        ["server", "/", "ours"],
    ]


def test_tables_are_counted_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tables, "FORMATS", ("parquet",))
    folder = ("--rows", "20000", "--turns", "1", "--folder", str(tmp_path))
    measured = document("tables", "--job", "count", *folder)
    runs = [json.loads(note) for note in measured["notes"] if note.startswith("{")]
    assert runs[0]["engine"] == "fedtally"
    assert {run["total"] for run in runs} == {20_000}
    assert all(run["memory"] > 0 and run["cpu"] > 0 for run in runs)
    alone = document("tables", "--job", "private", *folder)
    assert [json.loads(note)["total"] for note in alone["notes"] if "{" in note] == [1_000]
    assert not alone["goals"]


def test_a_large_table_is_counted_in_a_process_of_its_own() -> None:
    measured = document("large", "--rows", "2000", "--engine", "here")
    assert re.fullmatch(r"here: \d+ s, [\d,]+ MB at most in a process", measured["notes"][0])


@pytest.mark.parametrize("engine", tables.ENGINES)
def test_every_engine_does_the_same_job(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    tables.write_tables(tmp_path, 2_000)
    for kind in tables.FORMATS:
        path = str(tmp_path / f"table.{kind}")
        jobs = [job for job in tables.JOBS if job != "private" or engine == "fedtally"]
        totals = {job: tables.measure_here(engine, path, job).total for job in jobs}
        assert totals.get("private", 100) == 100
        assert (totals["count"], totals["one"], totals["any"]) == (2_000, 100, 100)
        assert 100 < totals["twenty"] < 2_000  # some clients hold an item twice


@pytest.mark.parametrize("engine", tables.ENGINES)
def test_every_engine_draws_one_of_a_client_s_distinct_items(engine: str, tmp_path: Path) -> None:
    """4,000 clients have two rows of tea, then one of rice: each counts binomial(4000, 1/2), sd
    31.6; 5 sd."""
    pytest.importorskip(engine)
    path = tmp_path / "table.csv"
    rows = [f"{item},user-{i:04d}" for i in range(4_000) for item in ("tea", "tea", "rice")]
    path.write_text("\n".join(["item,client", *rows, ""]))
    counts = tables._ENGINES[engine](str(path), "one").astype(np.int64)
    assert len(counts) == 2 and np.all(np.abs(counts - 2_000) < 5 * 31.6)


def test_engines_that_disagree_are_no_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    totals = iter([7, 8])
    monkeypatch.setattr(tables, "measured", lambda *_: tables.Run(1, 1, 1, next(totals)))
    with pytest.raises(click.ClickException, match="disagree on count"):
        tables.compare(tmp_path, ["count"], ["fedtally", "duckdb"], 1)
