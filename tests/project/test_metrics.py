"""The reference lists every metric, and no other one; alarms of operators name some of them."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from prometheus_client import generate_latest

from fedtally.campaign.transports.https.operate import (
    Counts,
    Instruments,
    Responses,
    operated,
)

DOCS = Path(__file__).parents[2] / "docs"


def registries() -> list[Any]:
    """Return what Prometheus reads of each kind of server."""
    driver: Any = SimpleNamespace(
        refusals=Counter(), unanswered=0, num_present=0, is_overtaken=False, running=list
    )
    log = logging.getLogger("unheard")
    campaign = Instruments(driver, list, lambda: 0.0, log)
    loop: Any = SimpleNamespace(num_waiting=0, driver=driver, is_ready=True)
    operated(loop, campaign)  # it adds a metric of the loop
    return [campaign.registry, Counts(list, lambda: 0.0, log).registry, Responses().registry]


def test_every_metric_is_in_the_reference() -> None:
    served: set[str] = set()
    for registry in registries():
        found = generate_latest(registry).decode()
        served |= set(re.findall(r"^# TYPE (\w+) ", found, re.M))
    served = {name for name in served if not name.endswith("_created")}
    assert len(served) > 20  # else nothing was read
    text = (DOCS / "output.md").read_text("utf-8")
    rows = set(re.findall(r"^\| `(fedtally_\w+)` \|", text, re.M))
    assert rows == served
    # alarms name metrics that are there, or a part of a histogram
    alarms = (DOCS / "operations.md").read_text("utf-8")
    for name in re.findall(r"\bfedtally_\w+", alarms):
        assert name.removesuffix("_bucket") in served, name
