"""A calibration is measured, fitted, kept and read again; how fast a machine is is not tested
here."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from fedtally import kernels
from fedtally.errors import InvalidInputError
from fedtally.planner.bill import OPERATIONS, REFERENCE, Bill, Host, lines_of_sum
from fedtally.planner.bill import bill as true_bill
from fedtally.planner.costs import decoding_work
from fedtally.planner.secure_sum import Summation
from fedtally.studies import calibration
from fedtally.studies.calibration import Seen, default_path, fit, load, save

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


def test_a_calibration_is_kept_and_read(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load() is None
    assert save(host) == default_path() == tmp_path / "cache" / "fedtally" / "host.json"
    assert load() == host
    assert load(save(host, tmp_path / "mine.json")) == host
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".cache" / "fedtally" / "host.json"


def test_no_test_reads_what_the_user_of_this_machine_keeps(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert default_path().is_relative_to(tmp_path_factory.getbasetemp())
    assert load() is None


@pytest.mark.parametrize("changed", [{"kernels": "other"}, {"version": "0.0.1", "seconds": {}}])
def test_a_calibration_of_another_machine_is_not_used(
    tmp_path: Path, host: Host, changed: dict[str, object]
) -> None:
    """With other kernels, or another version, which may know other operations."""
    path = tmp_path / "host.json"
    path.write_text(json.dumps(host.to_dict() | changed))
    assert load(path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"host"', "[" * 100_000, b"\xff\xfe"])
def test_a_damaged_calibration_says_what_to_do(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "host.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(
        InvalidInputError, match=r"host\.json is damaged .*: calibrate again, or remove the file"
    ):
        load(path)


def test_a_calibration_without_an_operation_is_damaged(tmp_path: Path, host: Host) -> None:
    values = host.to_dict()
    del values["seconds"]["message"]
    path = tmp_path / "host.json"
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidInputError, match="calibrate again"):
        load(path)


def test_what_cannot_be_written_is_said(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InvalidInputError, match="cannot make the folder"):
        save(host)
    with pytest.raises(InvalidInputError, match="choose a folder that exists"):
        save(host, tmp_path / "nowhere" / "host.json")


def test_the_benchmark_compares_bytes_and_cpu(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    pytest.importorskip(
        "benchmarks", reason="run from the root of the repository: python -m pytest"
    )
    from benchmarks import bill

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
