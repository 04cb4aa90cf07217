"""The experiment that counts the campaigns of default plans whose error exceeds their target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedtally.plan.frequencies import hardest
from fedtally.recovery.decoding import kind_of

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import promises

SMALL = ("--law", "plateaus", "--domain-size", "1100", "--clients", "20000", "--tau", "0.01")


def run(folder: Path, *more: str) -> tuple[int, str]:
    arguments = [*SMALL, "--repeats", "2", "--output", str(folder), *more]
    result = CliRunner().invoke(promises.command, arguments)
    return result.exit_code, result.output


def test_plans_for_any_frequencies_are_judged_and_others_are_shown(tmp_path: Path) -> None:
    code, said = run(tmp_path)
    assert code == 0, said
    rows = [line.split() for line in said.splitlines() if line.strip().startswith("plateaus")]
    assert [(row[1], row[-1]) for row in rows] == [("any", "PASS"), (hardest.USUAL, "-")]
    assert (tmp_path / "promises.parquet").is_file()


def test_too_many_failures_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever decodes."""
    decoders: list[str] = []
    monkeypatch.setattr(promises, "propose", _for_an_easy_shape)
    monkeypatch.setattr(promises, "kind_of", lambda name: decoders.append(name) or kind_of(name))
    code, said = run(tmp_path, "--repeats", "3", "--recovery", "belief")
    assert code == 1 and "MISS" in said and set(decoders) == {"belief"}


def _for_an_easy_shape(spec, domain, clients, known, **seed):  # type: ignore[no-untyped-def]
    from fedtally.plan.frequencies.distribution import Frequencies
    from fedtally.plan.proposal import propose

    return propose(spec, domain, clients, known or Frequencies.assumed(domain.size, 3.0), **seed)


@pytest.mark.parametrize("name", [*promises.LAWS, "alike:700"])
def test_laws_fall_and_sum_to_one(name: str) -> None:
    law = promises.law(name, 2000, Path())
    assert law.sum() == pytest.approx(1.0) and (np.diff(law) <= 0).all()


def test_rounds_may_differ() -> None:
    """Each item's share of a round varies as much as was asked for, about the law."""
    law = promises.law("alike:500", 500, Path())
    cell = promises.Cell("alike:500", hardest.ANY, 500, 2_000_000, 200, 0.01, 1, "", spread=1.5)
    counts = promises.draw(law, cell, np.random.default_rng(0))
    assert (counts.sum(axis=1) == 10_000).all()
    assert counts.std() / counts.mean() == pytest.approx(1.5, rel=0.1)
    assert counts.mean(axis=0).std() / counts.mean() < 0.15
