"""The study of proofs for several items: its circuit is sound and complete, and it runs."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import several

SMALL = several.Clipped(rows=2, width=12, most=3, chunk=4)


def test_honest_reports_pass_and_cheats_do_not() -> None:
    rng = np.random.default_rng(0)
    assert several.run(SMALL, 5, rng) == (5, 0, 30)
    for sketch in (np.zeros((2, 12), np.int64), np.eye(2, 12, dtype=np.int64)):  # fewer items
        assert several.passes(SMALL, SMALL.encode(sketch), rng)


def test_a_circuit_that_leaves_something_out_lets_cheats_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the cheats would be seen: without the weights r^j the errors of a call may cancel."""
    rng = np.random.default_rng(1)
    sketch = np.zeros((2, 12), np.int64)
    sketch[:, 0] = 1
    sketch[0, 1:3] = 2, -2  # their x^3 - x are 6 and -6; their squares are counted right
    words = several.Clipped(2, 12, 9, 4).encode(sketch)
    assert not several.passes(several.Clipped(2, 12, 9, 4), words, rng)
    one = several.FIELD16.constant(1)
    true = several.Field.powers
    monkeypatch.setattr(
        several.Field,
        "powers",
        lambda field, base, count: (
            0 * true(field, base, count) + one
            if count == SMALL.chunk + 1
            else true(field, base, count)
        ),
    )
    assert several.passes(several.Clipped(2, 12, 9, 4), words, rng)


def test_the_clip_keeps_what_a_client_of_one_item_says() -> None:
    rng = np.random.default_rng(2)
    found = several.effect(3, 50, 1, 1_000, 1, rng)
    assert found["largest error, points"] == found["with the clip"] >= 0


def test_the_page_has_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (several.output.ROOT / "docs" / "protocol.md").read_text()
    for size, goal in several.SIZES.items():
        for most in several.ITEMS:
            for found in several.row(*size, most, 1_000, goal):
                cells = ("sketch", "items", "circuit", "constraints", "proof, elements")
                shown = [str(found[name]) for name in cells]
                shown += [f"{found['report, bytes']:,}", f"{found['times']:.2f} ({goal})"]
                assert f"| {' | '.join(shown)} |" in page
    monkeypatch.setattr(several, "SIZES", {(2, 20): 9})
    monkeypatch.setattr(several, "effect", lambda *_: {"sketch": "2 x 20"})
    monkeypatch.setattr(several, "client_times", lambda *_: 1.0)
    done = CliRunner().invoke(several.command, ["--quick"])
    assert done.exit_code == 0 and "1 of 1 honest reports and 0 of 6 cheats" in done.output
