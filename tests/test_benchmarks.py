"""The benchmarks run and state their goals; how fast they find things is not tested here."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("benchmarks", reason="run from the root of the repository: python -m pytest")

from benchmarks import measure, peers
from benchmarks.__main__ import main

from fedtally import kernels
from fedtally.kernels import reference


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
    assert [goal["unit"] for goal in goals] == [" s", " GB"] * 4


def test_footprint_measures_the_chosen_parts() -> None:
    printed = run("footprint", "--quick", "--part", "import", "--part", "help")
    assert "import fedtally, above bare Python:" in printed
    assert "fedtally --help, CPU:" in printed
    assert "wheel" not in printed


@pytest.mark.parametrize(("value", "at_most", "met"), [(2.0, False, True), (0.5, False, False), (0.5, True, True)])
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
