"""A host is measured, fitted and written; how fast a machine is is not tested here."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("benchmarks", reason="run from the root of the repository: python -m pytest")

from benchmarks import bill
from benchmarks import host as calibration
from benchmarks.__main__ import main
from benchmarks.host import Seen, fit

from fedtally import kernels
from fedtally.plan.bill import OPERATIONS, REFERENCE, Bill, Host, lines_of_sum
from fedtally.plan.bill import bill as true_bill
from fedtally.plan.costs import decoding_work
from fedtally.plan.parts.summation import Summation

SECAGG, TWO_SERVERS = Summation("secagg"), Summation("two-server")


@pytest.fixture
def host() -> Host:
    import fedtally

    return replace(REFERENCE, kernels=kernels.backend(), version=fedtally.__version__)


def test_a_host_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On few and small rounds; the whole is the benchmark's."""
    monkeypatch.setattr(calibration, "TURNS", 1)
    dropping = Summation("secagg", dropout=0.2)
    rounds = [
        (one, 10, 20, 1)
        for one in (SECAGG, dropping, Summation("secagg", adversary="active"), TWO_SERVERS)
    ]
    monkeypatch.setattr(
        calibration, "ROUNDS", (*rounds, (Summation("two-server", dropout=0.2), 20, 20, 1))
    )
    monkeypatch.setattr(
        calibration,
        "DECODERS",
        tuple((name, 500, 20, "shared", 1, 1.2) for name in ("median", "joint")),
    )
    found = calibration.calibrate()
    assert found.kernels == kernels.backend()
    assert found.seconds["exchange"] > 0 or found.seconds["verification"] > 0


@pytest.mark.skipif(
    kernels.available_backends() == ("numpy",),
    reason="NumPy takes no operations of the compiled kernels",
)
def test_every_operation_is_in_what_is_measured() -> None:
    """Else nothing would be known of it."""
    works = [one.work for one in calibration._single_operations()]
    for summation, clients, width, max_items in calibration.ROUNDS:
        plan, _ = calibration.campaign(
            summation, clients, rows=5, width=min(width, 40), max_items=max_items
        )
        for line in lines_of_sum(plan, clients, summation.dropout, clients):
            works += [line.client, line.server]
    for recovery in ("median", "joint", "belief"):
        sums = calibration.landed(
            500, rows=5, width=40, schedule="hybrid", num_rounds=2, exponent=1.2
        )
        works.append(calibration.decode(sums, recovery).work)
    assert {
        name for work in works for name, count in work.items() if count > 0
    } == OPERATIONS.keys()


def test_messages_are_half_of_what_a_decoder_takes() -> None:
    """Of at least one: what is little in every decoder was fitted as nothing."""
    shares = []
    for recovery, size, width, schedule, rounds, exponent in calibration.DECODERS:
        if recovery == "belief":
            plan = calibration.landed(
                size, rows=5, width=width, schedule=schedule, num_rounds=rounds, exponent=exponent
            ).plan
            work = decoding_work(plan, "v4", recovery)
            shares.append(REFERENCE.price({"belief": work["belief"]}) / REFERENCE.price(work))
    assert max(shares) > 0.5


def test_known_times_are_found_again() -> None:
    """Rows of made-up operations, of which each occurs alone or with another."""
    names, rng = list(OPERATIONS), np.random.default_rng(1)
    true = dict(zip(names, rng.uniform(1e-6, 1e-3, len(names)), strict=True))
    works = [{name: 2000} for name in names] + [
        {one: 1000, other: 3000} for one, other in pairwise(names)
    ]
    seen = [Seen(work, sum(count * true[name] for name, count in work.items())) for work in works]
    assert fit(seen) == pytest.approx(true, rel=1e-6)


def test_relative_errors_count() -> None:
    """One long look and two short ones that contradict it: the short ones are two of three."""
    seen = [Seen({"message": 1e6}, 100.0), Seen({"message": 1e3}, 0.2), Seen({"message": 1e3}, 0.2)]
    assert 1.3e-4 < fit(seen)["message"] < 2e-4
    assert fit(seen)["exchange"] == 0


def test_the_file_of_a_host_is_read_as_it_was_measured(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {name: 7 * value for name, value in host.seconds.items()}
    mine = replace(host, seconds=seconds)
    monkeypatch.setattr(calibration, "calibrate", lambda: mine)
    path = tmp_path / "host.toml"
    done = CliRunner().invoke(main, ["host", "-o", str(path)])
    assert done.exit_code == 0
    assert re.search(r"what CPU \d+ operations .* take here, 7 times .* \(7 to 7\)", done.output)
    assert Host.load(path, host.version) == mine


def test_what_was_not_told_apart_takes_next_to_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit finds 0 for it, which no file of a host may say."""
    monkeypatch.setattr(calibration, "measure", lambda: iter([Seen({"message": 1e3}, 0.2)]))
    found = calibration.calibrate().seconds
    assert found["message"] == pytest.approx(2e-4)
    assert 0 < found["exchange"] <= 1e-12


@pytest.mark.parametrize("name", ["host.json", "nowhere/host.toml"])
def test_where_a_host_cannot_be_written_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(calibration, "calibrate", lambda: pytest.fail("measured"))
    done = CliRunner().invoke(main, ["host", "-o", str(tmp_path / name)])
    assert done.exit_code == 2
    assert "must end in .toml, in a folder that exists" in done.output


def test_the_benchmark_compares_bytes_and_cpu(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setattr(calibration, "calibrate", lambda: host)
    report = bill.measure(bill.QUICK_CAMPAIGNS, bill.QUICK_DECODINGS, 1)
    assert [goal.bound for goal in report.goals] == [2.0] * 3
    assert (
        sum("times as much" in note for note in report.notes) == 2 * len(bill.QUICK_CAMPAIGNS) + 2
    )
    monkeypatch.setattr(bill, "bill", too_long)
    with pytest.raises(click.ClickException, match="the bill says"):
        bill.measure(bill.QUICK_CAMPAIGNS, (), 1)


def too_long(*arguments: Any, **options: Any) -> Bill:
    """A bill with one byte too many in every message."""
    found = true_bill(*arguments, **options)
    return replace(
        found, stages=tuple(s._replace(upload_bytes=s.upload_bytes + 1) for s in found.stages)
    )
