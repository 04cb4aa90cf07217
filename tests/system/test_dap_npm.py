"""npm's @divviup/dap, which speaks draft 09, reports to both servers over HTTP."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from benchmarks.behind_nginx import NGINX
from dap_live import CASES, Live, npm_is_here, report_by_npm
from dap_world import NOW
from test_dap_processes import running

from fedtally.dap import Task, draft09

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(not npm_is_here(), reason="npm's client of DAP is not here: npm ci"),
]
EVERY_VDAF = pytest.mark.parametrize(("vdaf", "sizes", "measurements", "result"), CASES)


@pytest.mark.promise
@EVERY_VDAF
def test_npm_s_reports_are_counted(
    vdaf: str, sizes: dict[str, int], measurements: list[Any], result: Any
) -> None:
    live = Live(vdaf, sizes=sizes)
    with live.served():
        reports = report_by_npm(live.task, measurements, live.now)
    assert [draft09.Report.decode(each).metadata.time for each in reports] == [NOW - 17] * len(
        measurements
    )
    found = live.collected()
    assert (found.count, found.result) == (len(measurements), result)


@pytest.mark.promise
@EVERY_VDAF
@pytest.mark.skipif(NGINX is None or not shutil.which("openssl"), reason="needs nginx and openssl")
def test_npm_s_reports_are_counted_by_both_processes(
    tmp_path: Path, vdaf: str, sizes: dict[str, int], measurements: list[Any], result: Any
) -> None:
    """Over TLS, behind nginx; and none is counted whose task its client does not know."""
    with running(tmp_path, vdaf, sizes=sizes, draft=9) as servers:
        servers.wait()
        trusted = {"NODE_EXTRA_CA_CERTS": str(tmp_path / "tls.crt")}
        report_by_npm(servers.task, measurements, time.time(), trusted)
        other = Task(servers.task.configuration, servers.task.collector)
        with pytest.raises(AssertionError, match="failed|fetch"):
            report_by_npm(other, measurements[:1], time.time(), trusted)
        found = servers.collect()
    assert (found.count, found.result) == (len(measurements), result)


def test_what_npm_is_told_of_a_report_that_is_not_taken() -> None:
    live = Live("count", sizes={})
    with live.served(), pytest.raises(AssertionError, match="reportTooEarly"):
        report_by_npm(live.task, [True], NOW + 7200)
    assert live.leader.is_idle
