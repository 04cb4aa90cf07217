"""Each command of the benchmarks that no other file runs still runs, as small as it can be."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("benchmarks", reason="run from the root of the repository: python -m pytest")

from benchmarks import bill, planning
from benchmarks.__main__ import main
from benchmarks.measure import Goal, Report

from fedtally.campaign.driver import Deadlines
from fedtally.plan.bill import REFERENCE

_NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
needs_nginx = pytest.mark.skipif(
    not (_NGINX and shutil.which("openssl")), reason="needs nginx and openssl"
)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("histograms --quick", "OpenDP|opendp"),
        ("noise --quick", "Skellam"),
        ("joint --quick --part fallback", "NumPy kernels"),
        ("deploy --quick --part driver", r"driver / bare: [\d.]+x"),
        ("deploy --quick --part room", r"at least 8: 39 neighbours, campaign.db [\d.]+ MB"),
        ("silos --people 500", r"500 people of 3 items: [\d.]+ s"),
    ],
)
def test_a_command_runs(command: str, says: str) -> None:
    assert re.search(says, run(*command.split()))


def test_plans_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    question = "--clients 5000 --domain-size 100 --tau 0.1"
    monkeypatch.setattr(planning, "QUESTIONS", {"small": question})
    assert re.fullmatch(
        rf"small +[\d.]+ s   fedtally plan {question}\n", run("plan", "--repeats", "1")
    )


def test_bills_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bill.calibration, "calibrate", lambda: REFERENCE)
    assert "CPU of decoding, worst prediction off" in run("bill", "--quick")


# ---- over HTTPS ----


@needs_nginx
def test_a_campaign_over_https_is_measured_and_a_small_one_judges_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("uvicorn")
    from benchmarks import serve

    # where phases are short, clients ask often
    monkeypatch.setattr(serve, "DEADLINES", Deadlines(gather=1, phase=8, session=600))
    measured: dict[str, Any] = json.loads(run("serve", "--quick", "--json"))
    assert [goal["bound"] for goal in measured["goals"]] == [4, 150, 1 / 8]
    assert {goal["met"] for goal in measured["goals"]} == {None}


@needs_nginx
def test_crowds_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    from benchmarks import serve_crowds

    monkeypatch.setattr(serve_crowds, "silent", lambda report, count: None)  # it takes 10 seconds
    found = run("serve", "--crowds", "--quick")
    assert re.search(r"50 clients that are not drawn: .*: 0\.[12]\d* GB \(goal", found)
    assert "small run judges no goal" in found


@needs_nginx
def test_crashes_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whole campaign, in which nothing dies; `test_https_processes` has servers that do."""
    pytest.importorskip("uvicorn")
    from benchmarks import serve_crashes

    monkeypatch.setattr(serve_crashes, "SHORT", Deadlines(gather=1, phase=8, session=240))
    monkeypatch.setattr(serve_crashes, "cases", lambda moments, quick: [(0, "KILL")][: moments < 9])
    found = run("serve", "--crashes", "--kind", "semi-honest")
    assert re.fullmatch(r"semi-honest: \d\d moments; in 0 of 0 cases nobody is lost\n", found)


def test_a_case_that_breaks_something_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    from benchmarks import serve_crashes

    def ran(adversary: str, trust: str | None, stop: int, way: str) -> int:
        assert (adversary, trust) == ("active", "distributed")
        assert stop != 3, "a client stopped asking"
        return 6

    monkeypatch.setattr(serve_crashes, "_ran", ran)
    asked = ["serve", "--crashes", "--kind", "active, distributed"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 1
    assert "moment 3, KILL: a client stopped asking" in result.output
    assert "moment 3, TERM: a client stopped asking" in result.output
    assert "6 moments; in 7 of 9 cases nobody is lost" in result.output
    assert "2 cases broke something" in result.output


def test_a_report_that_judges_nothing_shows_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    for judges, verdict in ((True, ": met"), (False, "")):
        Report({}, goals=[Goal("speed", 2.0, 1.0, "x")], judges=judges).emit(as_json=False)
        lines = capsys.readouterr().out.splitlines()
        assert f"speed: 2x (goal: at least 1x){verdict}" in lines
        assert ("note: a small run judges no goal" in lines) == (not judges)
