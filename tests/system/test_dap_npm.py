"""npm's @divviup/dap, which speaks draft 09, reports to both servers over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

from dap_live import Live, npm_is_here, report_by_npm
from dap_world import NOW

from fedtally.dap import draft09

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(not npm_is_here(), reason="npm's client of DAP is not here: npm ci"),
]


@pytest.mark.parametrize(
    ("vdaf", "sizes", "measurements", "result"),
    [
        ("count", {}, [True, False, True], 2),
        ("histogram", {"buckets": 30, "chunk": 5}, [3, 3, 29, 7], {3: 2, 29: 1, 7: 1}),
        (
            "sumvec",
            {"entries": 20, "maximum": 255, "chunk": 12},
            [list(range(20)), [1] * 20, [200] + [0] * 19],
            {0: 201} | {place: 1 + place for place in range(1, 20)},
        ),
    ],
)
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
    assert found.count == len(measurements)
    if isinstance(result, dict):
        size = sizes.get("buckets", sizes.get("entries", 0))
        result = [result.get(place, 0) for place in range(size)]
    assert found.result == result


def test_what_npm_is_told_of_a_report_that_is_not_taken() -> None:
    live = Live("count", sizes={})
    with live.served(), pytest.raises(AssertionError, match="reportTooEarly"):
        report_by_npm(live.task, [True], NOW + 7200)
    assert live.leader.is_idle
