"""Decoders and schedules of one's own: a study takes them, checks them, and nothing else does."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from kinds import DECODER_NAMES
from tests.cases import each_case

from fedtally.cli.app import run as command
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoding import Decoding
from fedtally.sources import from_items
from fedtally.studies.schedules import Study, run

MODULE = """
import numpy as np
from fedtally import JointDecoder, MedianDecoder
from fedtally.sketch import Schedule

class Same(MedianDecoder):
    def __init__(self, sketches, domain):
        super().__init__(sketches)

class Joint(JointDecoder):
    pass

class Zero(Same):
    def at(self, ids):
        return np.zeros(len(ids), int)

class Short(Same):
    def at(self, ids):
        return super().at(ids)[:-1]

class Text(Same):
    def at(self, ids):
        return ["1"] * len(ids)

class Complex(Same):
    def at(self, ids):
        return super().at(ids) * 1j

class Nan(Same):
    def at(self, ids):
        return super().at(ids) * np.nan

def function(sketches, domain): ...

class Shared:
    def hashes(self, num_rounds):
        return [(7, 9)] * num_rounds

class Hybrid:
    def hashes(self, num_rounds):
        return [(3, 10 * round) for round in range(num_rounds)]

class Fresh:
    def hashes(self, num_rounds):
        return [(round, 5) for round in range(num_rounds)]

class Batched:
    def hashes(self, num_rounds):
        return [(0, Schedule.parse("batched:2").batch_of(m, num_rounds)) for m in range(num_rounds)]

class Long:
    def hashes(self, num_rounds):
        return [(0, 0)] * (num_rounds + 1)

class Large:
    def hashes(self, num_rounds):
        return [(0, 2**20)] * num_rounds

class Infinite(Same):
    def at(self, ids):
        return super().at(ids) + np.inf

class Single:
    def hashes(self, num_rounds):
        return range(num_rounds)

class Triple:
    def hashes(self, num_rounds):
        return [(0, 0, 0)] * num_rounds

class Negative:
    def hashes(self, num_rounds):
        return [(0, -1)] * num_rounds

class Nothing:
    def hashes(self, num_rounds): ...
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_code.py").write_text(MODULE)
    (tmp_path / "own_broken.py").write_text("raise OSError('no such luck')")
    (tmp_path / "own_lacking.py").write_text("import a_package_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)


def errors(**settings: object) -> dict[str, list[tuple[float, float]]]:
    counts = (4000 / np.arange(1, 301)).astype(int)
    source = from_items(np.arange(300), counts=counts)
    study = Study(widths=(32,), rows=5, num_rounds=5, repeats=1, seed=4, **settings)
    found: dict[str, list[tuple[float, float]]] = {}
    for m in run(source, study).measurements:
        found.setdefault(m.method, []).append((m.linf, m.l2))
    return found


@pytest.mark.parametrize("recovery", ["median", "joint"])
def test_a_schedule_of_ones_own_has_the_hashes_of_the_same_one_here(recovery):
    """To the bit: whatever differs in cells, signs, seeds or sums changes every error.

    The joint recovery of `fresh` fits all rounds together, which one's own cannot say: left out.
    """
    known = ["shared", "hybrid", "batched:2"] + ["fresh"] * (recovery == "median")
    own = [f"own_code:{name.partition(':')[0].capitalize()}" for name in known]
    found = errors(methods=(*known, *own), recovery=recovery)
    for name, mine in zip(known, own, strict=True):
        assert found[name] == found[mine], name
    assert len({found[name][0] for name in known}) == len(known)


def test_a_decoder_of_ones_own_answers():
    for name, mine in (("median", "own_code:Same"), ("joint", "own_code:Joint")):
        assert errors(methods=("fresh", "hybrid"), recovery=name) == errors(
            methods=("fresh", "hybrid"), recovery=mine
        )
    largest = 4000 / sum(int(4000 / rank) for rank in range(1, 301))
    assert errors(methods=("hybrid",), recovery="own_code:Zero")["hybrid"][0][0] == largest


@each_case(
    ("option", "name", "message"),
    [
        ("recovery", "own_code:Missing", "the module own_code has no Missing"),
        ("recovery", "own_code:npp", "the module own_code has no npp$"),  # np is no class
        ("recovery", "own_absent:X", "there is no module own_absent; .* current folder"),
        ("recovery", "own_lacking:X", "there is no module a_package_that_is_not_there"),
        ("recovery", "own_broken:X", "importing own_broken raised OSError: no such luck"),
        ("recovery", "own_code:function", "must be a class with a method at"),
        ("recovery", "own_code:Hybrid", "must be a class with a method at"),
        ("recovery", "own_code:Short", r"must return float64 \[300\], .* got float64 \[299\]"),
        ("recovery", "own_code:Text", r"must return float64 \[300\]"),
        ("recovery", "own_code:Complex", r"must return float64 \[300\]"),
        ("recovery", "own_code:Nan", "must return finite numbers, got nan"),
        ("methods", "own_code:Same", "must be a class with a method hashes"),
        ("methods", "own_code:Long", "a pair for each of 5 rounds, got 6"),
        ("methods", "own_code:Single", "must return two integers"),
        ("methods", "own_code:Triple", "must return two integers"),
        ("methods", "own_code:Negative", "must return two integers"),
        ("recovery", "own_code:Infinite", "must return finite numbers, got inf"),
        ("methods", "own_code:Large", "must return two integers"),
        ("methods", "own_code:Nothing", "must return two integers"),
    ],
)
def test_what_does_not_fit_is_refused(option, name, message):
    value = name if option == "recovery" else (name,)
    with pytest.raises(InvalidInputError, match=message):
        errors(**{option: value})


def test_a_schedule_of_ones_own_has_no_proven_noise():
    with pytest.raises(InvalidInputError, match="leave it or epsilon= out"):
        Study(methods=("own_code:Hybrid",), epsilon=1.0)


def test_nothing_but_a_study_imports_a_name():
    with pytest.raises(InvalidInputError, match=f"recovery must be auto, {DECODER_NAMES}"):
        Decoding("own_code:Same")


def test_the_command_looks_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "own_here.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.path", list(sys.path))
    common = ["simulate", "zipf:d=50,n=500", "--repeats", "1", "--width", "9", "--rounds", "2"]
    own = ["--recovery", "own_here:Same", "--methods", "own_here:Hybrid"]
    assert command([*common, *own, "--json", "--seed", "1"]) == 0
    assert '"own_here:Same"' in capsys.readouterr().out
    assert command([*common, "--recovery", "own_here:Nothing"]) == 2
    assert command([*common, "--recovery", "jointt"]) == 2
    assert command(["simulate", "--plan", "p.toml", "zipf:", "--recovery", "own_here:Same"]) == 2
    assert "with --recovery joint or median" in capsys.readouterr().err
