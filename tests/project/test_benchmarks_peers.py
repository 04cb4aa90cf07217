"""The comparison with other ways to count: tables, errors, and what local protocols must reach if
they are there."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("benchmarks", reason="run from the root of the repository: python -m pytest")

from benchmarks import histograms, local_dp, peers, streams
from benchmarks.local_dp import CENTRAL, DISTRIBUTED, PROTOCOLS, Cell, Errors, Row

from fedtally.plan.bill import REFERENCE

SMALL = Cell(400, 30, (), 16)


def oracles() -> Any:
    found = local_dp.installed()
    return found or pytest.skip("pure-ldp is not there, or does not work")


def row(protocol: str, *errors: float) -> Row:
    return Row(1.0, protocol, Errors(*errors), 1234, 0.5, 2.0)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (12345.6, 3, "12,300"),
        (0.012345, 3, "0.0123"),
        (0.0, 3, "0"),
        (9.996, 3, "10.0"),
        (17.4, 2, "17"),
    ],
)
def test_short_numbers(value: float, digits: int, text: str) -> None:
    assert local_dp.short(value, digits) == text


def test_errors_are_of_all_candidates_and_of_the_most_frequent() -> None:
    truth = np.full(40, 0.025)
    estimated = truth.copy()
    estimated[30] += 0.5
    estimated[3] -= 0.1
    assert local_dp.errors(estimated, truth) == pytest.approx((0.5, math.sqrt(0.26 / 40), 0.1 / 20))


def test_the_table_compares_the_best_local_protocol_of_each_kind_with_ours() -> None:
    rows = [row("A", 0.4, 0.02, 0.3), row("B", 0.5, 0.03, 0.1), row(CENTRAL, 0.1, 0.01, 0.1)]
    lines = local_dp.table([*rows, row(DISTRIBUTED, 0.2, 0.02, 0.2)])
    assert [line["protocol"] for line in lines[4:]] == [
        f"best local / {CENTRAL}",
        f"best local / {DISTRIBUTED}",
    ]
    assert [line["epsilon 1"] for line in lines[4:]] == [
        "4.0x / 2.0x / 1.0x",
        "2.0x / 1.0x / 0.50x",
    ]
    assert lines[0] == {
        "protocol": "A",
        "epsilon 1": "40,000 / 2,000 / 30,000",
        "client bytes": "1,234",
        "client ms": "500",
        "server s": "2.00",
    }


def test_ours_is_measured_without_the_library() -> None:
    rows = list(local_dp.measure(None, SMALL, REFERENCE, epsilons=(1.0, 4.0)))
    assert [(row.epsilon, row.protocol) for row in rows] == [
        (epsilon, protocol) for epsilon in (1.0, 4.0) for protocol in (CENTRAL, DISTRIBUTED)
    ]
    loud, quiet = rows[:2], rows[2:]
    assert all(
        a.errors.typical > 2 * b.errors.typical > 0 for a, b in zip(loud, quiet, strict=True)
    )
    assert all(
        row.client_bytes > local_dp.ROWS * local_dp.WIDTH / 2 and row.client_seconds > 0
        for row in rows
    )
    assert loud[1].client_bytes > loud[0].client_bytes  # keys and shares
    assert [line["protocol"] for line in local_dp.table(rows)] == [CENTRAL, DISTRIBUTED]


def test_a_library_that_newer_ones_broke_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TypeError("Use () not None as shape arguments")

    found = SimpleNamespace(CMSServer=broken)
    monkeypatch.setattr(local_dp, "importlib", SimpleNamespace(import_module=lambda _: found))
    assert local_dp.installed() is None
    report = peers.measure([], REFERENCE, (), SMALL)
    assert any("bench-ldp" in note for note in report.notes)


def test_the_sum_of_unary_reports_has_their_mean_and_variance() -> None:
    n, p, q = 1000, 0.5, 0.2
    held = np.repeat([0.0, 400.0], 5000)
    sums = local_dp.summed_bits(held, n, p, q, seed=1)
    for part, k in ((sums[:5000], 0), (sums[5000:], 400)):
        mean, variance = k * p + (n - k) * q, k * p * (1 - p) + (n - k) * q * (1 - q)
        assert abs(part.mean() - mean) < 5 * math.sqrt(variance / 5000)
        assert abs(part.var() / variance - 1) < 5 * math.sqrt(2 / 5000)


def test_a_sketch_that_holds_everything_is_exact_and_a_smaller_one_is_not() -> None:
    items, truth = local_dp.population(SMALL, 1)
    for width, exact in ((500, True), (5, False)):
        counts = streams.ours("joint", width, items, SMALL.candidates, seed=1)()
        assert (local_dp.errors(counts / SMALL.clients, truth).largest < 1e-9) == exact


def test_streams_are_compared_with_datasketches() -> None:
    module = pytest.importorskip("datasketches")
    rows = streams.measure(module, SMALL, levels=(10,), turns=1)
    by = {row.sketch: row for row in rows}
    assert by["frequent items"].errors == Errors(0.0, 0.0, 0.0)  # it has room for all of them
    assert {row.size for row in rows} == {
        len(full_of_items(module).serialize(module.PyLongsSerDe())) - 32
    }
    assert streams.table(rows)[0]["CPU / ours, joint"] == "1.0x"


def full_of_items(module: Any) -> Any:
    sketch = module.frequent_items_sketch(10)
    for item in range(768):
        sketch.update(item)
    return sketch


def test_the_report_is_markdown_or_json() -> None:
    report = peers.measure([], REFERENCE, (10,), SMALL)
    (lines,) = report.tables.values()
    printed = peers.markdown(lines).splitlines()
    assert printed[0].startswith("| bytes | sketch | largest |")
    assert printed[1] == "|---|---|---|---|---|---|"
    assert len(printed) == 2 + len(lines) and len(lines) >= 2
    result = CliRunner().invoke(peers.command, ["--help"])
    assert "--quick" in result.output
    assert json.loads(json.dumps({"tables": report.tables}))["tables"] == report.tables


# ---- where pure-ldp is there ----

WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy, of the library


@WARNS
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_local_protocols_have_about_the_published_error(protocol: str) -> None:
    """HR and CMS are the worst, with at most twice the variance of OUE at this epsilon (besides
    collisions of CMS)."""
    library, cell, epsilon = oracles(), Cell(4_000, 100, PROTOCOLS, 64), 1.0
    items, truth = local_dp.population(cell, 1)
    found = local_dp.local(library, protocol, epsilon, cell, items, truth, seed=1)
    grown = math.exp(epsilon)
    # Wang et al. 2017, OUE and OLH
    standard = math.sqrt(4 * grown / (grown - 1) ** 2 / cell.clients)
    assert 0.05 < found.errors.typical / standard < 1.5
    assert found.errors.largest < 6 * standard
    bits = {"OUE": 100, "FLH": 6 + 2, "HR": 7, "CMS": 6 + 1024, "HCMS": 6 + 11}
    assert found.client_bytes == math.ceil(bits[protocol] / 8)


@WARNS
def test_sums_drawn_at_once_have_the_errors_of_single_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library, cell = oracles(), Cell(4_000, 400, PROTOCOLS, 64)
    items, truth = local_dp.population(cell, 1)
    one_by_one = local_dp.local(library, "OUE", 4.0, cell, items, truth, seed=1)
    monkeypatch.setattr(local_dp, "MOST_BITS", 1)
    at_once = local_dp.local(library, "OUE", 4.0, cell, items, truth, seed=2)
    assert at_once.errors.typical == pytest.approx(one_by_one.errors.typical, rel=0.25)


def test_plain_histograms_are_compared_with_opendp(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that errs by 5 clients in each of its releases, and none where OpenDP is missing."""
    monkeypatch.setattr(histograms, "load", lambda: object())
    of_five = {"Gaussian": lambda dp, size, epsilon: lambda exact: [5] * size}
    monkeypatch.setattr(histograms, "MECHANISMS", of_five)
    cell = histograms.Cell(14, 1.0, 400)
    report = histograms.measure([cell])
    [goal] = report.goals
    # by the tails of geometric noise of rate 1: the mean of the largest of 14 is the sum over k of
    # the probability that one exceeds k; within 5 standard errors, of about 1.3 / sqrt(400) each
    beyond = 2 * np.exp(-np.arange(1.0, 60)) / (1 + math.exp(-1))
    expected = float(np.sum(1 - (1 - beyond) ** 14))
    assert goal.value * 5 == pytest.approx(expected, abs=5 * 1.3 / 20)
    assert goal.met and [rate.median for rate in report.rates] == [pytest.approx(0.003), 0.005]
    assert "ours is a histogram with geometric noise" in report.notes[0]
    monkeypatch.setattr(histograms, "load", lambda: None)
    report = histograms.measure([cell._replace(repeats=2)])
    assert not report.goals and "bench-dp" in report.notes[-1]
