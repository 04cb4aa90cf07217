"""Reports of draft 09 over HTTP: recorded ones, so that no client of others need be here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from dap_web import Web
from dap_world import LEADER_KEYS, make_task

from fedtally.campaign.dap_files import domain_of_task
from fedtally.campaign.dap_result import NOTE_ON_NOISE, result_of
from fedtally.dap import Collected
from fedtally.dap.draft18 import (
    CollectionJobReq,
    HpkeConfigList,
    Role,
    UploadRequest,
    media_type,
)
from fedtally.dap.problems import URN

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "dap09.json").read_text())
REPORT = {"content-type": "application/dap-report"}
PAGE = "https://page.example"


def test_recorded_reports_over_http() -> None:
    """As their clients ask: PUT of one report, 200, and the media types of draft 09."""
    web = Web()
    uploads = web.take_recorded(VECTORS[3])
    leader = web.task.configuration.leader.decode()
    keys = web.ask("leader", "GET", f"{leader}hpke_config?task_id=x")
    assert keys.headers["content-type"] == "application/dap-hpke-config-list"
    assert HpkeConfigList.decode(keys.content) == LEADER_KEYS.configs
    for upload in uploads:
        said = web.ask("leader", "PUT", "reports", content=upload, headers=REPORT)
        assert (said.status_code, said.content) == (200, b"")
    assert web.collected().result == VECTORS[3]["result"]
    late = web.ask("leader", "PUT", "reports", content=uploads[0][:-1], headers=REPORT)
    assert late.json()["type"] == f"{URN}invalidMessage"


def test_a_task_has_the_resources_of_its_draft() -> None:
    web = Web()
    (upload, *_) = web.take_recorded(VECTORS[1])
    assert web.ask("leader", "POST", "reports", content=upload, headers=REPORT).status_code == 405
    new = {"content-type": media_type(UploadRequest)}
    assert web.ask("leader", "PUT", "reports", content=upload, headers=new).status_code == 415
    other = Web().ask("leader", "PUT", "reports", content=upload, headers=REPORT)
    assert other.status_code == 405
    body = web.query().encode()
    for message, status in ((UploadRequest, 415), (CollectionJobReq, 400)):
        known = web.headers(message, Role.COLLECTOR)
        said = web.ask("leader", "POST", "collection_jobs", content=body, headers=known)
        assert said.status_code == status


def test_a_listed_page_may_put_a_report() -> None:
    web = Web(draft=9)
    web.origins = (PAGE,)
    web.restart()
    asked = {"origin": PAGE, "access-control-request-method": "PUT"}
    asked |= {"access-control-request-headers": "content-type"}
    said = web.ask("leader", "OPTIONS", "reports", headers=asked)
    assert (said.status_code, said.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "PUT" in said.headers["access-control-allow-methods"]


@pytest.mark.parametrize(("vdaf", "sums"), [("count", 2), ("histogram", [1, 0, 2, 0])])
def test_exact_sums_become_an_exact_result(vdaf: str, sums: list[int] | int) -> None:
    task = make_task(vdaf)
    result = result_of(task, Collected(3, 0, 3600, sums), domain_of_task(task))
    assert [each.count for each in result.top(1)] == [2]
    assert result.plan.privacy is None and NOTE_ON_NOISE not in result.warnings
