"""The experiment on open domains: populations, other methods, judgement, command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import (
    open_domain,
    open_peers,
    open_planner,
    open_populations,
    open_tau,
    study,
)

import fedtally.answer.part
from fedtally.domain import OpenStrings
from fedtally.errors import InvalidInputError
from fedtally.recovery.names import read_names
from fedtally.sketch import CountSketch

SMALL = open_domain.Case(
    "small", "words", 200, 2000, 0.01, None, 4, "5x40", "4x24", bits=14, data="/nowhere"
)
GOOD = {"bytes": 1000, "recall": 1.0, "precision": 1.0, "rms": 0.1, "hashes": 1.0, "wrong": 0}
GOOD |= {"rare": 0}
GOOD |= {"seconds": 20.5, "found": 100, "memory": 500, "intervals": 100, "held": 93}
GOOD |= {"named": 0, "largest": 0.2, "sequence": 1, "calibration": 1.0, "needed": None}


def strings(items: list[str], law: list[float]) -> open_populations.Strings:
    return open_populations.Strings("a few", pa.array(items, pa.large_string()), np.array(law))


def asked(max_bytes: int, epsilon: float | None = None) -> open_peers.Asked:
    few = strings(["tea", "coffee", "milk", "water"], [0.4, 0.3, 0.2, 0.1])
    return open_peers.Asked("words", few, 4000, 0.02, epsilon, 1e-6, max_bytes)


def test_words_are_those_of_the_table_or_a_stand_in(tmp_path: Path) -> None:
    table = pa.table({"word": ["rare", "a" * 65, "often"], "count": [1, 9, 3]})
    parquet.write_table(table, tmp_path / "sentiment140_words.parquet")
    real = open_populations.words(10, tmp_path)
    assert real.items.to_pylist() == ["often", "rare"] and real.law.tolist() == [0.75, 0.25]
    stand_in = open_populations.words(5000, tmp_path / "nowhere")
    assert "stand-in" in stand_in.title
    assert len(set(stand_in.items.to_pylist())) == len(stand_in.law) == 5000


def test_urls_are_different_and_short() -> None:
    found = open_populations.urls(3000)
    items = found.items.to_pylist()
    assert len(set(items)) == 3000 and max(map(len, items)) <= open_populations.LONGEST
    hosts = {item.split("/")[2] for item in items}
    assert len(hosts) < 2000  # pages share hosts
    assert found.law.sum() == pytest.approx(1) and (np.diff(found.law) <= 0).all()


@pytest.mark.parametrize("method", list(open_peers.METHODS))
def test_every_other_method_reads_names_where_it_has_bytes(method: str) -> None:
    """Else the comparison would be with a broken one."""
    found = open_peers.METHODS[method](asked(200_000), np.random.default_rng(0))
    assert sorted(found.frequencies) == ["coffee", "milk", "tea", "water"]
    for name, share in zip(["tea", "coffee", "milk", "water"], found.truth, strict=True):
        # prefix extension counts the clients of one round of eight
        assert found.frequencies[name] == pytest.approx(share, abs=0.08)


def test_other_methods_fail_without_bytes_and_noise_moves_them() -> None:
    for method in open_peers.METHODS.values():
        assert len(method(asked(20), np.random.default_rng(0)).frequencies) < 4
    exact, noised = (
        open_peers.extend_prefixes(asked(2000, epsilon), np.random.default_rng(0)).frequencies
        for epsilon in (None, 4.0)
    )
    assert exact["tea"] != noised["tea"]


def test_a_campaign_is_scored() -> None:
    [row] = open_domain.measure(SMALL)
    assert row == open_domain.measure(SMALL)[0] | {
        name: row[name] for name in ("seconds", "calibration", "memory")
    }
    assert row["recall"] > 0.8 and row["hashes"] == 1.0 and row["named"] <= row["found"]
    assert row["bytes"] == open_domain.plan_of(SMALL, bytes(32)).bytes_per_client


def test_scores_are_those_of_the_names() -> None:
    """Of two frequent strings one is named; another name is of a string that nobody holds."""
    truth = np.zeros(200)
    truth[:2] = 0.5, 0.4
    first, second = SMALL.strings.items.take([0, 1]).to_pylist()
    row = open_domain._score(SMALL, {first: 0.52, "nobody's": 0.2}, truth)
    assert row["frequent"] == 2 and row["recall"] == 0.5
    assert row["precision"] == 0.5 and row["wrong"] == 1
    assert row["largest"] == pytest.approx(20)  # 0.2 of a string without holders, in units of tau
    few = open_domain._score(SMALL, {first: 0.5, second: 0.014}, truth)
    assert few["recall"] == 0.5  # an estimate below 1.5 tau is not shown


def test_a_name_is_wrong_if_most_clients_of_its_hash_hold_another_string() -> None:
    """However rare it is: and a rare string that most of them do hold is no wrong name."""
    truth = np.zeros(200)
    truth[:4] = 0.9, 0.052, 0.046, 0.002
    items = SMALL.strings.items.take([0, 1, 2, 3]).to_pylist()
    estimates = dict.fromkeys(items, 0.1) | {items[3]: 0.0026}
    alone = dict(zip(items, truth[:4].tolist(), strict=True))
    right = open_domain._score(SMALL, estimates, truth, alone)
    assert right["wrong"] == 0 and right["rare"] == 1
    assert open_domain._score(SMALL, estimates, truth)["wrong"] == 0
    for place, share, wrong in ((2, 0.098, 1), (1, 0.098, 0), (3, 0.0041, 1), (3, 0.0039, 0)):
        shared = alone | {items[place]: share}
        assert open_domain._score(SMALL, estimates, truth, shared)["wrong"] == wrong
    nobodys = {"nobody's": 0.0026}
    for of_hashes in (None, {"nobody's": 0.0}, {"nobody's": 0.4}):
        row = open_domain._score(SMALL, nobodys, truth, of_hashes)
        assert row["wrong"] == row["rare"] == 1


def test_a_wrong_name_that_is_read_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rarest name that is listed gives way to a made word of the same hash."""
    planted = []

    def read(
        sketches: list[CountSketch], domain: OpenStrings, frequencies: dict[int, float], *_: object
    ) -> dict[int, str]:
        found = read_names(sketches, domain, frequencies)
        listed = [h for h in found if frequencies[h] >= 0.25 * SMALL.tau]
        rarest = min(listed, key=lambda h: frequencies[h])
        made = [f"made {number}" for number in range(300_000)]
        [place, *_] = np.flatnonzero(domain.encode(made) == rarest).tolist()
        planted.append(found[rarest])
        return found | {rarest: made[place]}

    [before] = open_domain.measure(SMALL)
    monkeypatch.setattr(fedtally.answer.part, "read_names", read)
    [after] = open_domain.measure(SMALL)
    assert planted[0] in SMALL.strings.items.to_pylist()[6:]  # none of the six frequent ones
    assert before["wrong"] == 0 and after["wrong"] == 1
    assert after["named"] == before["named"] and after["recall"] == before["recall"]


def test_a_campaign_apart_has_the_memory_of_its_own() -> None:
    """Not that of the process before, which here holds much more."""
    held = np.ones(60_000_000)  # 480 MB
    [apart], [here] = open_domain.measure_apart(SMALL), open_domain.measure(SMALL)
    assert here["memory"] > held.nbytes / 2**20 and apart["memory"] < held.nbytes / 2**20
    measured = ("seconds", "calibration", "memory")
    assert apart == here | {name: apart[name] for name in measured}


def test_lost_rounds_noise_and_garbage_are_in_the_sums() -> None:
    case = SMALL._replace(lost=1, garbage=40, epsilon=1.0)
    rng = case.rng()
    plan = open_domain.plan_of(case, bytes(32))
    result = open_domain.land(case, plan, open_domain.draw(case, rng), rng)
    assert [sketch.round for sketch in result.sketches] == [1, 2, 3]
    assert result.num_contributions == 3 * (500 + 10)
    assert plan.privacy is not None and plan.privacy.event.rows == plan.spec.touched


def test_promises_are_judged_by_the_rows() -> None:
    cases = open_domain.promised(200, 14, "", 1, 0)
    assert {case.name for case in cases} >= set(open_domain._RECALL)
    rows = [GOOD | {"case": case.name, "method": case.method} for case in cases]
    assert all(promise.holds for promise in open_domain.judge(rows))
    rows[-1] |= {"named": 1}
    assert [p.name for p in open_domain.judge(rows) if not p.holds] == ["names in random sums"]
    rows[-1] |= {"named": 0}
    for change in (
        *({"bytes": 200_000}, {"recall": 0.5}, {"precision": 0.9}, {"rms": 0.21}, {"hashes": 0.98}),
        *({"wrong": 1}, {"seconds": 21.5}, {"memory": 2000}, {"held": 92}),
    ):
        assert not all(promise.holds for promise in open_domain.judge([r | change for r in rows]))
    names = [case.name for case in cases]
    for name in ("words, 8 rounds, one lost", "URLs, 8 rounds, one lost"):
        rows[names.index(name)] |= {"recall": 0.94}
        assert any("is lost" in p.name and not p.holds for p in open_domain.judge(rows))


def test_the_comparison_has_all_methods_at_the_same_bytes() -> None:
    cases = open_domain.compared(200, (100_000, 1_000_000), 26, "", 2, 0)
    assert len(cases) == 2 * 2 * (2 * 4 + 4 * 3)  # no IBLT under noise
    assert len({repr(case) for case in cases}) == len(cases)


def test_the_command_leaves_a_table_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--quick", "--size", 300, "--clients", 2000, "--data", tmp_path, "--output"]
    run = CliRunner().invoke(
        open_domain.command, [str(one) for one in (*options, tmp_path)], catch_exceptions=False
    )
    assert run.exit_code == 0 and "prefix extension" in run.output
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"open.parquet", "open.md", "open.png", "open.svg"}


def test_random_sums_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        case
        for case in open_domain.promised(200, 26, "", 10, 0)
        if case.method == open_domain.RANDOM
    ]
    assert len({repr(case) for case in cases}) == 100
    [row] = open_domain.measure(cases[0])
    [campaign] = open_domain.measure(SMALL)
    assert row["named"] == row["wrong"] == 0 and list(row) == list(campaign)
    seen = []

    def read(sketches: object, domain: object, frequencies: dict[int, float]) -> dict[int, str]:
        seen.append(len(frequencies))
        return {1: "a name"}

    monkeypatch.setattr(open_domain, "read_names", read)
    assert open_domain.measure(cases[0])[0]["named"] == 1 and min(seen) > 1


def test_acceptance_ends_with_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--acceptance", "--repeats", "1", "--no-plot", "--output", str(tmp_path)]
    for recall, code in ((1.0, 0), (0.2, 1)):

        def measured(case: open_domain.Case, recall: float = recall) -> list[study.Row]:
            told = {"case": case.name, "method": case.method, "seed": 0, "plan": ""}
            return [GOOD | told | {"recall": recall}]

        monkeypatch.setattr(open_domain, "measure_apart", measured)
        run = CliRunner().invoke(open_domain.command, options, catch_exceptions=False)
        assert run.exit_code == code and ("MISS" in run.output) == bool(code)


def test_plans_are_compared_with_what_is_named(tmp_path: Path) -> None:
    options = ["--quick", "--no-plot", "--data", tmp_path, "--output", tmp_path / "made"]
    result = CliRunner().invoke(open_planner.command, list(map(str, options)))
    assert result.exit_code == 0, result.output
    [row] = open_planner.summarise(
        parquet.read_table(tmp_path / "made" / "open-planner.parquet").to_pylist()
    ).popitem()[1]
    assert row["predicted / tau"] <= 2 and row["ratio"] >= 1 and row["recall above 2 tau"] == 1


def test_a_plan_that_promises_too_much_is_found_out(tmp_path: Path, monkeypatch) -> None:
    rows = [
        {"case": name, "rounds": 1, "finder": "4x9", "spelling": "3x9", "bytes": 99, "length": 5}
        | {"theta_name": theta, "tau": 0.01, "recall": None}
        | {"strings": json.dumps([np.linspace(0.1, 0.001, 100).tolist(), [1] * 50 + [0] * 50])}
        for name, theta in (("honest", 0.06), ("too few", 0.03), ("too many", 0.2))
    ]
    [table] = open_planner.summarise(rows).values()
    assert [line["verdict"] for line in table] == ["PASS", "MISS", "MISS"]
    few = [rows[0] | {"strings": json.dumps([[0.5], [1]])}]
    [[line]] = open_planner.summarise(few).values()
    assert line["verdict"] == "-"
    monkeypatch.setattr(open_planner.study, "run", lambda *_: rows)
    asked = ["--size", "500", "--bits", "14", "--repeats", "1", "--data", str(tmp_path)]
    cell = ["--cell", "words,20000,0.01,none", "--output", str(tmp_path)]
    assert CliRunner().invoke(open_planner.command, [*asked, *cell]).exit_code == 1


@pytest.mark.parametrize("text", ["words,9", "emoji,9,0.1,none", "words,9,0.1,much"])
def test_a_cell_says_what_it_needs(text: str) -> None:
    with pytest.raises(InvalidInputError, match="such as words,100000,0.001,none; got"):
        open_planner._cell(text)


def test_a_tau_that_no_string_exceeds_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="tau must be smaller"):
        open_planner.name_length(strings(["tea", "milk"], [0.6, 0.4]), 0.7)


# ---- tau ----


def test_tables_have_the_flatness_that_their_energy_says() -> None:
    domain = OpenStrings(bits=26)
    assert open_tau.flatness(open_tau.law_of("zipf"), 0.001, domain) == pytest.approx(
        2.13, abs=0.01
    )
    steep = np.arange(1.0, 1_000_001) ** -1.1
    assert open_tau.flatness(steep / steep.sum(), 0.001, domain) == pytest.approx(1.0, abs=0.01)
    for table in ("code", "files"):  # of this Python's own library
        law = open_tau.law_of(table)
        assert law.sum() == pytest.approx(1.0) and (np.diff(law) <= 0).all() and len(law) > 10_000
    assert open_tau.law_of("files")[0] < open_tau.law_of("code")[0]


def test_campaigns_above_tau_are_counted_where_the_table_is_not_too_flat(tmp_path: Path) -> None:
    case = open_tau.Case("zipf", 20_000, 0.02, 4.0, bits=12)
    [row], [again] = open_tau.measure(case), open_tau.measure(case)
    assert row["error"] == again["error"] and 0 < row["error"] < 2 and row["bytes"] > 10
    narrow = open_tau.plan_of(case._replace(spare=1.0))
    assert narrow.bytes_per_client < row["bytes"]
    rows = [row | {"error": 0.9}] * 9 + [row | {"error": 1.1}]
    [table] = open_tau.summarise(rows).values()
    assert [line["verdict"] for line in table] == [None, "PASS"] and table[1]["above tau"] == 1
    [table] = open_tau.summarise(rows + rows[-1:]).values()
    assert table[-1]["verdict"] == "MISS" and table[-1]["seeds"] == 11
    [table] = open_tau.summarise([row | {"flatness": 2.5}]).values()  # shown alone
    assert [line["verdict"] for line in table] == [None]
    result = CliRunner().invoke(open_tau.command, ["--quick", "--output", str(tmp_path)])
    assert result.exit_code == 0 and "above tau" in result.output
    assert CliRunner().invoke(open_tau.command, ["--epsilon", "much"]).exit_code != 0
