"""The reference lists every metric, and no other one; alarms of operators name some of them."""

from __future__ import annotations

import inspect
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

from fedtally.campaign.transports.https import operate
from fedtally.campaign.transports.https.operate import (
    Counts,
    Instruments,
    Responses,
    operated,
    probed,
)
from fedtally.secagg.messages import AbortCode
from fedtally.secagg.server import Server
from fedtally.secagg.two_server import Outcome
from fedtally.secagg.unmasking import Unmasking

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def registries() -> list[Any]:
    """Return what Prometheus reads of each kind of server."""
    driver: Any = SimpleNamespace(
        refusals=Counter(),
        invited=0,
        unanswered=0,
        num_present=0,
        is_overtaken=False,
        running=list,
    )
    log = logging.getLogger("unheard")
    campaign = Instruments(driver, list, lambda: 0.0, log)
    loop: Any = SimpleNamespace(num_waiting=0, driver=driver, is_ready=True, ask_store=lambda: None)
    operated(loop, campaign)  # it adds a metric of the loop
    others = [Counts(list, lambda: 0.0, log).registry, Responses().registry]
    for registry in others:
        probed(lambda: True, lambda: True, registry)  # it adds what every server has
    return [campaign.registry, *others]


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
    alarms = "".join(
        (DOCS / page).read_text("utf-8") for page in ("operations.md", "two-servers.md")
    )
    prose = re.sub(r"^```.*?^```", "", alarms, flags=re.M | re.S)  # a conf has names of its own
    for name in re.findall(r"\bfedtally_\w+", prose):
        assert name.removesuffix("_bucket") in served, name


def alarms_of(rules: str, page: str, *jobs: str) -> list[str]:
    """Return the expressions of some rules, after a look that they are the alarms of a page."""
    rung = re.findall(r"^ +expr: (.+?)(?:  #.*)?$", rules, re.M)
    waits = re.findall(r"^ +for: (\d+)m$", rules, re.M)
    text = (DOCS / page).read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+ (?:==|<|>) [\d.]+)`([^|]*)\|", text, re.M)
    of_job = rf'job="(?:{"|".join(jobs)})"'  # a page leaves it out
    assert sorted(alarm for alarm, _ in rows) == sorted(
        re.sub(rf"{{{of_job}}}|{of_job},", "", alarm) for alarm in rung
    )
    assert waits == [found for _, more in rows for found in re.findall(r"for (\d+) minutes", more)]
    assert set(re.findall(r'job="([^"]+)"', rules)) == set(jobs)
    return rung


def test_the_rules_of_the_example_are_the_alarms_of_the_pages() -> None:
    """Each rule reads metrics of its kind of server, with labels that they have."""
    rules = (ROOT / "examples" / "https" / "alerts.yml").read_text("utf-8")
    one, _, two = rules.partition("  - name: fedtally-two-servers")
    campaign, servers, _ = registries()
    both = "fedtally-aggregate", "fedtally-other-server"
    for part, page, jobs, registry, number in (
        (one, "operations.md", ("fedtally",), campaign, 10),
        (two, "two-servers.md", both, servers, 5),
    ):
        rung = "\n".join(alarms_of(part, page, *jobs))
        served = set(re.findall(r"^# TYPE (\w+) ", generate_latest(registry).decode(), re.M))
        named = set(re.findall(r"\bfedtally_\w+", rung))
        assert len(named) == number and {name.removesuffix("_bucket") for name in named} <= served
        assert set(re.findall(r'code="(\w+)"', rung)) <= AbortCode.__members__.keys()
        # counts are there before the first, else increase() would miss a burst before a scrape
        counts = re.findall(r'(fedtally_\w+)\{.*?(status|code|outcome)="([^"]+)"', rung)
        assert counts and all(registry.get_sample_value(n, {k: v}) == 0 for n, k, v in counts)
        known = {f'"{outcome}"' for outcome in Outcome}
        for outcome in re.findall(r'outcome=("[^"]+")', rung):
            assert outcome in (known if registry is servers else inspect.getsource(operate))


def test_the_rules_of_the_example_are_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    groups = yaml.safe_load((ROOT / "examples" / "https" / "alerts.yml").read_text("utf-8"))
    rules = [rule for group in groups["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 17
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description"}
    # the page that tells Prometheus where to ask has the jobs that rules name
    output = (DOCS / "output.md").read_text("utf-8")
    texts = re.findall(r"^```yaml\n(.*?)^```", output, re.M | re.S)
    blocks = [yaml.safe_load(text) for text in texts]
    (asks,) = (block["scrape_configs"] for block in blocks if "scrape_configs" in block)
    named = {job for rule in rules for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert {one["job_name"] for one in asks} == named


def test_the_page_of_trouble_has_each_code_that_ends_a_session() -> None:
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)` \((\d+)\) \|", page, re.M)
    ends = inspect.getsource(Server._verdict) + inspect.getsource(Server.close_phase)
    ends += inspect.getsource(Unmasking)  # what it raises, the server ends with
    named = set(re.findall(r"AbortCode\.([A-Z_]+)", ends)) - {"INTERNAL"}  # goes on after a crash
    assert len(named) > 7 and {name for name, _ in rows} == named
    assert all(AbortCode[name] == int(number) for name, number in rows)
    # and those that clients say, each by name or as "any other"
    table = page.partition("Clients that refuse say a code")[2].partition("\n## ")[0]
    said = set(re.findall(r"`([A-Z_]+)`", table))
    assert {"POLICY", "EXPIRED", "ITEM_SPENT"} <= said <= AbortCode.__members__.keys()
