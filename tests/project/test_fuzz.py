"""What fuzzing found, again: each input of tests/corpus/ is refused or taken, within its bounds."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedtally.dap.presentation import Reader
from fedtally.secagg import wire

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus"
SECONDS, MEMORY = 2.0, 100 << 20  # of one input: CPU, and bytes (an allow-list may have 68 MB)


@pytest.fixture(scope="module")
def table() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        import fuzz_targets

        yield fuzz_targets
        for name in ("fuzz_targets", "fuzz_secagg"):
            sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give back the level of the kernels that a target sets."""
    monkeypatch.setenv("FEDTALLY_KERNELS", "numpy")


def inputs(table: Any, name: str) -> list[bytes]:
    stored = [file.read_bytes() for file in sorted((CORPUS / name).glob("*"))]
    return [*table.TARGETS[name].valid(), *stored]


@pytest.mark.filterwarnings("ignore")  # of zipfile and NumPy, about damaged files
def test_every_input_is_taken_or_refused_within_its_bounds(table: Any) -> None:
    for name in table.TARGETS:
        taken = 0
        tracemalloc.start()
        try:
            for data in inputs(table, name):
                tracemalloc.reset_peak()
                before, begun = tracemalloc.get_traced_memory()[0], time.process_time()
                taken += table.check(name, data)
                assert time.process_time() - begun < SECONDS, (name, data.hex())
                peak = tracemalloc.get_traced_memory()[1] - before
                assert peak < MEMORY, (name, peak, data.hex())
        finally:
            tracemalloc.stop()
        assert taken, f"{name}: a parser that refuses everything is not tested"


def test_every_folder_of_the_corpus_has_a_target(table: Any) -> None:
    assert {folder.name for folder in CORPUS.iterdir()} <= table.TARGETS.keys()


def test_a_length_that_is_not_checked_is_found(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tools/fuzz.py --plant` does, with the inputs that are stored."""
    for owner, name, target, broken in (
        (Reader, "end", "dap", lambda self: None),
        (wire, "_sized", "frames", lambda body, length: body),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            assert any(fails(table, target, data) for data in inputs(table, target))


def fails(table: Any, target: str, data: bytes) -> bool:
    try:
        for changed in (data, data + b"\0", data[:-1]):
            table.check(target, changed)
    except table.Failure:
        return True
    return False


def test_each_planted_error_has_a_place() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import fuzz
    finally:
        sys.path.remove(str(ROOT / "tools"))
        sys.modules.pop("fuzz", None)
    for plant in fuzz.PLANTS:
        text = (ROOT / "src" / "fedtally" / plant.file).read_text(encoding="utf-8")
        assert text.count(plant.old) == 1, plant
