"""The page on constant time says what tools/constant_time.py measures, and its test sees times."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence.md"
DRIVER = ROOT / "tools" / "constant_time.cpp"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("constant_time", ROOT / "tools/constant_time.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_steps_of_the_tool(tool: ModuleType) -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| (no|\*\*yes\*\*) \| (memory|time) \| (.+) \|$", PAGE.read_text(), re.M
    )
    said = {name: (depends != "no", how, tells) for name, depends, how, tells in rows}
    assert {name: row[:2] for name, row in said.items()} == {
        step.name: (step.depends, "time" if step.make else "memory") for step in tool.STEPS
    }
    for depends, _, tells in said.values():  # what is not constant is said with what it tells
        assert (tells != "-") == depends


def test_the_driver_has_the_steps_by_memory(tool: ModuleType) -> None:
    named = re.findall(r'^\s*\{"([^"]+)", \w+\}|\{"([^"]+)", \w+\}', DRIVER.read_text(), re.M)
    assert [one or other for one, other in named] == [
        step.name for step in tool.STEPS if step.make is None
    ]


def test_a_difference_of_times_is_found_and_noise_is_none(tool: ModuleType) -> None:
    rng = np.random.default_rng(5)  # any seed: the bound is 10 standard deviations
    times, fixed = rng.exponential(1000, 20_000), rng.integers(2, size=20_000).astype(bool)
    assert tool.welch(times, fixed) < tool.FOUND
    assert tool.welch(times + 300 * fixed, fixed) > tool.FOUND
    assert tool.welch(np.where(fixed, 1.0, 2.0), fixed) == np.inf
    assert tool.welch(np.ones(20_000), fixed) == 0
    for far in (1e6 * fixed, 1e6 * ~fixed):  # the lowest crop of one has no call of the other kind
        assert tool.welch(times + far, fixed) > tool.FOUND


def test_a_planted_early_exit_is_found(tool: ModuleType) -> None:
    (step,) = (step for step in tool.STEPS if step.name == "planted: an early exit")
    t, _ = tool.timed(step, 2000)
    assert t > tool.FOUND


@pytest.mark.parametrize(
    ("each", "verdict", "turns"),
    [
        ((4.4,), False, 1),
        ((10.1,), True, 1),
        ((6.0, 12.0), True, 2),  # a difference: more calls show it
        ((6.0, 2.0), False, 2),  # chance: more calls do not
        ((6.0, 6.0, 6.0), None, 3),
    ],
)
def test_a_step_in_doubt_is_measured_again_with_more_calls(
    tool: ModuleType,
    each: tuple[float, ...],
    verdict: bool | None,
    turns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (step,) = (step for step in tool.STEPS if step.name == "secrets compared")
    left, asked = list(each), []

    def timed(_: object, calls: int) -> tuple[float, float]:
        asked.append(calls)
        return left.pop(0), 0.0

    monkeypatch.setattr(tool, "STEPS", [step])
    monkeypatch.setattr(tool, "timed", timed)
    ((_, _, found),) = tool.by_time(1.0)
    assert found is verdict and not left
    assert asked == [step.calls * 4**turn for turn in range(turns)]


def test_the_public_answer_is_the_same_for_both_kinds_of_secret(tool: ModuleType) -> None:
    rng = np.random.default_rng(5)  # any seed
    for name in ("secrets compared", "planted: an early exit"):
        (step,) = (step for step in tool.STEPS if step.name == name)
        draw, place = step.make()
        given = [draw(is_fixed, rng) for is_fixed in (True, False)]
        assert [place(one)() for one in given] == [False, False]
        same = [next(i for i, byte in enumerate(one) if byte) for one in given]
        assert same == [31, 0]  # how many bytes are equal before the first other one
        assert place(bytes(32))() is True


def test_arrays_lie_in_one_memory_and_only_their_values_differ(tool: ModuleType) -> None:
    seen: list[tuple[np.ndarray, int]] = []
    draw, place = tool._arrays(
        lambda array: seen.append((array.copy(), array.__array_interface__["data"][0])),
        lambda is_fixed, rng: (tool._elements(is_fixed, rng, 100),),
    )
    rng = np.random.default_rng(5)  # any seed
    for is_fixed in (True, False):
        place(draw(is_fixed, rng))()
    (fixed, at), (fresh, then) = seen
    assert at == then and not fixed.any() and fresh.any()
