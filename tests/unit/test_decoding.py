"""The decoders: each has one entry of the registry, and what chooses between them reads it
there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from kinds import DECODER_NAMES

import fedtally
from fedtally.cli.app import cli
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError, MemoryLimitError
from fedtally.plan.predictor import Predictor
from fedtally.plan.rounds import possible_schedules
from fedtally.recovery import decoding
from fedtally.recovery.decoders import Recovery, median
from fedtally.recovery.decoders.joint.joint_intervals import JointIntervals
from fedtally.recovery.decoders.median.median_intervals import MedianIntervals
from fedtally.recovery.decoding import AUTO, Decoding, kind_of, recovery_of
from fedtally.recovery.intervals import make_intervals
from fedtally.recovery.shrinkage import ShrunkDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec


def commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from commands(one)


def test_every_decoder_has_an_entry() -> None:
    for name in Recovery:
        assert name.kind.decoder.recovery is name and kind_of(name) is name.kind
    # in files they are texts
    assert json.dumps(list(Recovery)) == '["joint", "median", "belief", "direct"]'


def test_a_plan_waits_for_no_decoder() -> None:
    """Whoever reads a plan, as each client does, loads no decoder, nor what decoders import."""
    code = (
        "import sys, fedtally.plan; from fedtally.recovery.decoders import Recovery;"
        " Recovery.parse('belief').check_rows(3);"
        " print(*(m for m in sys.modules if m.startswith(('fedtally.recovery', 'scipy'))))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == ["fedtally.recovery", "fedtally.recovery.decoders"]


def test_the_command_line_offers_every_decoder() -> None:
    choices = [
        set(option.type.choices)
        for command in commands(cli)
        for option in command.params
        if "--recovery" in option.opts and isinstance(option.type, click.Choice)
    ]
    assert len(choices) >= 4 and all(offered - {AUTO} == set(Recovery) for offered in choices)


@pytest.mark.parametrize("recovery", list(Recovery))
def test_a_decoder_is_made_from_its_entry_with_the_fewest_rows(recovery: Recovery) -> None:
    domain = IntegerRange(1, 50)
    first_id = 1 if recovery is Recovery.DIRECT else None
    spec = SketchSpec(
        recovery.fewest_rows, 400, Schedule.parse("shared"), 1, bytes(32), first_id=first_id
    )
    sketch = CountSketch(spec, 0)
    sketch.add(np.array([7], np.uint64), np.array([90]))
    sketch.num_clients = 90
    found = recovery.kind.make([sketch], domain).range(1, 50)
    assert found.argmax() == 6 and found[6] == pytest.approx(90, abs=1)
    with pytest.raises(
        InvalidInputError, match=f"{recovery} recovery needs at least {recovery.fewest_rows} rows"
    ):
        recovery.check_rows(recovery.fewest_rows - 1)


def test_limits_come_from_the_entry_of_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the registry does not know gets no limits."""
    domain = IntegerRange(1, 50)
    spec = SketchSpec(3, 400, Schedule.parse("shared"), 1, bytes(32))
    sketch = CountSketch(spec, 0)
    sketch.add(np.array([7], np.uint64), np.array([90]))
    sketch.num_clients = 90
    made = {
        name: name.kind.make([sketch], domain)
        for name in Recovery
        if name is not Recovery.DIRECT  # of histograms: tests/unit/test_histogram.py
    }
    expected = {
        Recovery.JOINT: JointIntervals,
        Recovery.MEDIAN: MedianIntervals,
        Recovery.BELIEF: JointIntervals,  # nothing is left to gain on these sums
    }
    for name, decoder in made.items():
        assert decoding.kind_of_decoder(decoder) is name.kind
        found = make_intervals(decoder, [sketch], domain)
        assert type(found) is expected[name]
    shrunk: Any = ShrunkDecoder(made[Recovery.MEDIAN], domain)
    for kind in ("auto", "pointwise", "simultaneous"):
        with pytest.raises(
            InvalidInputError, match="decoder must be a JointDecoder or .*, got ShrunkDecoder"
        ):
            make_intervals(shrunk, [sketch], domain, 0.5, kind)
    sentinel = make_intervals(made[Recovery.JOINT], [sketch], domain)
    other = replace(median.KIND, limits=lambda *_: sentinel)
    monkeypatch.setattr(median, "KIND", other)
    assert make_intervals(made[Recovery.MEDIAN], [sketch], domain) is sentinel


def test_auto_sends_messages_only_where_all_candidates_can() -> None:
    within, beyond = 2**24 // 160, 2**24 // 160 + 1
    for size, expected in ((within, "belief"), (beyond, "joint")):
        assert recovery_of("auto", size, 16, batches=10) == expected
    assert recovery_of("belief", beyond, 16, batches=10) == "belief"


@pytest.mark.parametrize(
    ("size", "rows", "expected"),
    [
        (10, 5, "belief"),
        (2**17, 16, "belief"),
        (10, 4, "joint"),
        (10, 3, "joint"),
        (2**17 + 1, 5, "joint"),
        (2**28, 5, "joint"),
        (2**28 + 1, 5, "median"),
        (10, 2, "median"),
        (2**64, 1, "median"),
    ],
)
def test_auto_is_the_first_that_will_do(size: int, rows: int, expected: str) -> None:
    assert recovery_of("auto", size, rows) == expected
    # plans and open domains know nothing that belief propagation could rest on
    planned = "joint" if expected == "belief" else expected
    assert recovery_of("auto", size, rows, planned=True) == planned
    assert recovery_of("belief", size, max(rows, 3), planned=True) == "belief"


def test_what_was_asked_for_is_checked_against_the_rows() -> None:
    assert recovery_of("joint", 2**30, 3) == "joint"
    for check in (lambda: recovery_of("joint", 10, 2), lambda: Decoding("joint").check_rows(2)):
        with pytest.raises(InvalidInputError, match="joint recovery needs at least 3 rows, got 2"):
            check()
    Decoding().check_rows(2)


def test_a_planner_searches_the_rows_of_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another entry other rows are searched, and other schedules tried."""
    other = replace(kind_of("median"), planned_rows=range(4, 6), schedules=("fresh",))
    monkeypatch.setattr(median, "KIND", other)
    assert sorted(Predictor(1000, recovery="median").searched_rows(None)) == [4, 5]
    assert [
        str(one) for one in possible_schedules("auto", 10, "median", noised_by_release=False)
    ] == ["fresh"]


def test_a_domain_that_a_decoder_must_enumerate_is_refused_if_it_is_too_large() -> None:
    huge = IntegerRange(1, 2**37)
    Decoding("median").check_domain(huge)
    Decoding("auto").check_domain(huge)
    Decoding("joint").check_domain(None)
    for asked in (Decoding("joint"), Decoding("median", objective="l2")):
        with pytest.raises(MemoryLimitError, match="is too large to enumerate"):
            asked.check_domain(huge)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"recovery": "oracle"},
            f"recovery must be auto, {DECODER_NAMES}, got 'oracle'",
        ),
        ({"objective": "l1"}, "objective must be linf or l2, got 'l1'"),
        (
            {"intervals": "wide"},
            "intervals must be auto, pointwise or simultaneous, got 'wide'",
        ),
        ({"confidence": 1.0}, "confidence must be at least 0 .no intervals. and below 1, got 1.0"),
    ],
)
def test_decodings_that_are_none(values: dict[str, str | float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Decoding(**values)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=f"recovery must be {DECODER_NAMES}, got 'oracle'"):
        kind_of("oracle")


# Public names, and what reads the fit itself: a pilot's statistics are those of its residuals.
MAY_NAME_A_DECODER = {"__init__.py", "plan/frequencies/pilot.py"}


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the places that name a decoder: its class, its module, its member, or its text.

    The texts "median" and "joint" have other uses (the fold of a kernel, a figure of a table), so
    that they count only where they are a `recovery`.
    """
    classes = {name.kind.decoder.__name__ for name in Recovery}
    modules = tuple(f"fedtally.recovery.decoders.{name}" for name in Recovery)
    texts = set(map(str, Recovery)) - {"median", "joint"}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in classes:
                yield name
            case ast.ImportFrom(module=str(module)) if module.startswith(modules):
                yield module
            case ast.Attribute(value=ast.Name(id="Recovery"), attr=name) if name.isupper():
                yield name
            case ast.Constant(value=str(text)) if text in texts:
                yield text
            case ast.keyword(arg="recovery", value=ast.Constant(value=str(text))):
                yield text


def test_nobody_else_names_a_decoder() -> None:
    """So a further one is a file and its row: recovery/ and options.py alone know names."""
    package = Path(fedtally.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(named(ast.parse(path.read_text())))
    }
    outside = {place for place in found if not place.startswith("recovery/")} - {"options.py"}
    assert outside == MAY_NAME_A_DECODER
    assert list(named(ast.parse("f(recovery='joint'); x = 'median'; Recovery.JOINT"))) == [
        "JOINT",
        "joint",
    ]
