"""DAP over HTTP: what each resource answers, and how the leader gets its answers of the helper."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from dap_web import COLLECTOR_TOKEN, Web
from dap_world import HELPER_KEYS, LEADER_KEYS, SEED

from fedtally.campaign.dap_noise import DapNoise, LedgerNoise
from fedtally.campaign.transports.https.dap_asking import DeniedError, UnansweredError
from fedtally.campaign.transports.https.dap_driving import FIRST_WAIT, LONGEST_WAIT
from fedtally.campaign.transports.https.dap_server import DapServer
from fedtally.campaign.transports.https.resource import MOST_UPLOAD
from fedtally.campaign.transports.https.web import Refused
from fedtally.crypto.keys import hkdf
from fedtally.dap.draft18 import (
    AggregateShare,
    AggregateShareReq,
    AggregationJobContinueReq,
    AggregationJobInitReq,
    AggregationJobResp,
    CollectionJobReq,
    HpkeConfigList,
    ReportError,
    Role,
    UploadErrors,
    UploadRequest,
    VerifyContinue,
    media_type,
)
from fedtally.dap.problems import URN
from fedtally.dap.state import MemoryStore
from fedtally.dap.task import TaskSecret, to_text, token_digest
from fedtally.errors import OvertakenError
from fedtally.privacy.budget import OverspentError
from fedtally.store import Ledger, StoreError

PAGE = "https://page.example"
PREFLIGHT = {"origin": PAGE, "access-control-request-method": "POST"}


def problem(response: Any) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    return dict(response.json())


# ---- the whole of it ----


@pytest.mark.parametrize(
    ("vdaf", "measurements", "result"),
    [
        ("count", [1, 0, 1], 2),
        ("sumvec", [[1, 2, 3], [5, 0, 1], [0, 0, 0]], [6, 2, 4]),
        ("histogram", [0, 2, 2, 3], [1, 0, 2, 1]),
    ],
)
def test_the_result_is_exact(vdaf: str, measurements: list[Any], result: Any) -> None:
    web = Web(vdaf)
    said = web.bring(*(web.report(each) for each in measurements))
    assert (said.status_code, said.content) == (200, b"")
    found = web.collected()
    assert (found.count, found.result) == (len(measurements), result)
    assert web.slept == [] and web.served_leader.collections == set()
    again = web.post_collection(web.query())  # it is answered at once, by the same bytes
    assert (again.status_code, again.content) == (
        200,
        web.ask("leader", "GET", "https://leader.example" + again.headers["location"],
                headers=web.headers(CollectionJobReq, Role.COLLECTOR)).content,
    )  # fmt: skip


def test_an_address_may_have_a_path() -> None:
    web = Web(leader="https://a.example/dap/x/", helper="https://a.example/dap/y")
    web.bring(*(web.report(each) for each in (0, 1, 1)))
    assert web.collected().result == [1, 2, 0, 0]
    assert web.ask("leader", "GET", "https://a.example/hpke_config").status_code == 404
    assert {path.split("/tasks/")[0] for _, path in web.asked} == {"/dap/y"}


# ---- what clients ask ----


@pytest.mark.parametrize(("side", "keys"), [("leader", LEADER_KEYS), ("helper", HELPER_KEYS)])
def test_keys_may_be_kept_for_a_day(side: str, keys: Any) -> None:
    web = Web()
    said = web.ask(side, "GET", f"https://{side}.example/hpke_config")
    assert said.headers["content-type"] == media_type(HpkeConfigList)
    assert said.headers["cache-control"] == "max-age=86400"
    assert HpkeConfigList.decode(said.content) == keys.configs


def test_reports_that_are_not_taken_are_named() -> None:
    web = Web()
    early = web.report(1, hours=2)
    said = web.bring(web.report(0), early)
    assert said.headers["content-type"] == media_type(UploadErrors)
    assert said.headers["cache-control"] == "no-store"
    (status,) = UploadErrors.decode(said.content).status
    assert (status.id, status.error) == (early.metadata.id, ReportError.REPORT_TOO_EARLY)


def test_uploads_that_are_refused() -> None:
    web = Web()
    body = UploadRequest((web.report(0),)).encode()
    right = web.headers(UploadRequest)

    def status(path: str = "reports", content: Any = body, **headers: str) -> int:
        return int(
            web.ask("leader", "POST", path, content=content, headers=right | headers).status_code
        )

    async def stream() -> Any:
        yield body

    other = f"https://leader.example/tasks/{to_text(bytes(32))}/reports"
    assert problem(web.ask("leader", "POST", other, content=body, headers=right)) == {
        "type": f"{URN}unrecognizedTask",
        "status": 404,
        "detail": "this server has another task",
        "taskid": to_text(web.task.id),
    }
    assert problem(web.ask("leader", "POST", "reports", content=body[:-1], headers=right))[
        "type"
    ] == (f"{URN}invalidMessage")
    assert status(**{"content-type": media_type(UploadErrors)}) == 415
    assert status(**{"content-type": media_type(UploadRequest) + ";version=18"}) == 200
    assert status(**{"content-length": str(MOST_UPLOAD + 1)}) == 413
    assert status(content=stream()) == 411
    web.has_room = False
    full = web.ask("leader", "POST", "reports", content=body, headers=right)
    assert full.status_code == 503 and 60 <= int(full.headers["retry-after"]) <= 300
    assert web.ask("leader", "PUT", "reports", content=body, headers=right).status_code == 405


def test_no_page_may_ask_unless_the_settings_list_it() -> None:
    web = Web()
    for path in ("https://leader.example/hpke_config", "reports"):
        said = web.ask("leader", "OPTIONS", path, headers=PREFLIGHT)
        assert said.status_code == 405
    said = web.ask("leader", "GET", "https://leader.example/hpke_config", headers=PREFLIGHT)
    assert "access-control-allow-origin" not in said.headers


def test_a_listed_page_may_report_and_do_nothing_else() -> None:
    web = Web()
    web.origins = (PAGE,)
    web.restart()
    asked = PREFLIGHT | {"access-control-request-headers": "content-type"}
    said = web.ask("leader", "OPTIONS", "reports", headers=asked)
    assert said.status_code == 200
    assert said.headers["access-control-allow-origin"] == PAGE
    assert "POST" in said.headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in said.headers
    place = "https://leader.example/hpke_config"
    assert web.ask("leader", "GET", place, headers={"origin": PAGE}).headers[
        "access-control-allow-origin"
    ] == (PAGE)
    report = web.ask(
        "leader", "POST", "reports", content=UploadRequest((web.report(0),)).encode(),
        headers=web.headers(UploadRequest) | {"origin": PAGE},
    )  # fmt: skip
    assert report.headers["access-control-allow-origin"] == PAGE
    stranger = web.ask("leader", "OPTIONS", "reports", headers=asked | {"origin": "https://b.c"})
    assert stranger.status_code == 400
    assert "access-control-allow-origin" not in stranger.headers
    assert web.ask("leader", "OPTIONS", "reports", headers={"origin": PAGE}).status_code == 405
    for more in ("authorization", "x-other"):
        wide = asked | {"access-control-request-headers": more}
        assert web.ask("leader", "OPTIONS", "reports", headers=wide).status_code == 400
    assert web.ask("leader", "OPTIONS", "collection_jobs", headers=asked).status_code == 405


# ---- who has a token ----


def test_jobs_need_the_token_of_the_task() -> None:
    web = Web()
    id = to_text(bytes(16))
    for side, kind in (
        ("leader", "collection_jobs"),
        ("helper", "aggregation_jobs"),
        ("helper", "aggregate_shares"),
    ):
        wrong = Role.LEADER if side == "leader" else Role.COLLECTOR
        for method, path in (("POST", kind), ("GET", f"{kind}/{id}"), ("DELETE", f"{kind}/{id}")):
            for given in ({}, {"authorization": f"Bearer {web.tokens[wrong]}"},
                          {"authorization": f"Basic {web.tokens[Role.LEADER]}"}):  # fmt: skip
                said = web.ask(side, method, path, headers=given)
                assert said.status_code == 401
                assert said.headers["www-authenticate"] == "Bearer"
    assert web.ask("helper", "POST", "reports").status_code == 404
    assert web.ask("leader", "POST", "aggregation_jobs").status_code == 404
    assert len(set(web.tokens.values())) == 2


def test_the_helper_cannot_ask_the_leader_for_sums() -> None:
    """Its secret has the seed, and of the collector's token the digest alone."""
    web = Web()
    web.measure(0, 1, 1)
    secret = TaskSecret(web.task.id, SEED, token_digest(COLLECTOR_TOKEN))
    body, headers = web.query().encode(), web.headers(CollectionJobReq, Role.COLLECTOR)
    derived = to_text(bytes(hkdf(SEED, b"collector token", web.task.id).reveal()))
    for token in (secret.leader_token, to_text(secret.collector), secret.collector.hex(), derived):
        shown = headers | {"authorization": f"Bearer {token}"}
        said = web.ask("leader", "POST", "collection_jobs", content=body, headers=shown)
        assert said.status_code == 401
    assert web.ask("leader", "POST", "collection_jobs", content=body, headers=headers).is_success


def test_a_request_says_what_message_it_is() -> None:
    web = Web()
    for side, kind in (("leader", "collection_jobs"), ("helper", "aggregation_jobs")):
        role = Role.COLLECTOR if side == "leader" else Role.LEADER
        headers = web.headers(UploadRequest, role)
        assert web.ask(side, "POST", kind, content=b"any", headers=headers).status_code == 415


def test_the_tokens_never_print() -> None:
    web = Web()
    for each in (web.served_leader, web.served_helper, web.asking("helper")):
        assert not any(token in repr(each) for token in web.tokens.values())


def test_resources_of_the_helper() -> None:
    web = Web()
    web.measure(0, 1, 1)
    job = web.leader.make_job()
    assert job is not None
    known = web.headers(AggregationJobInitReq, Role.LEADER)
    made = web.ask("helper", "POST", "aggregation_jobs", content=job.request, headers=known)
    assert made.headers["content-type"] == media_type(AggregationJobResp)
    place = "https://helper.example" + made.headers["location"]
    again = web.ask("helper", "POST", "aggregation_jobs", content=job.request, headers=known)
    assert (again.content, again.headers["location"]) == (made.content, made.headers["location"])
    for query in ("", "?step=0"):
        assert web.ask("helper", "GET", place + query, headers=known).content == made.content
    assert problem(web.ask("helper", "GET", f"{place}?step=1", headers=known))["type"] == (
        f"{URN}stepMismatch"
    )
    more = AggregationJobContinueReq(1, (VerifyContinue(bytes(16), b"x"),)).encode()
    kind = web.headers(AggregationJobContinueReq, Role.LEADER)
    assert problem(web.ask("helper", "POST", place, content=more, headers=kind))["type"] == (
        f"{URN}stepMismatch"
    )
    web.leader.finish_job(job.id, made.content)
    assert web.ask("helper", "DELETE", place, headers=known).status_code == 200
    for method in ("GET", "DELETE"):
        said = problem(web.ask("helper", method, place, headers=known))
        assert (said["type"], said["status"]) == (f"{URN}unrecognizedAggregationJob", 404)
    odd = web.ask("helper", "GET", "aggregation_jobs/odd", headers=known)
    assert problem(odd)["type"] == f"{URN}unrecognizedAggregationJob"

    state = web.leader.collect(web.query().encode())
    known = web.headers(AggregateShareReq, Role.LEADER)
    made = web.ask("helper", "POST", "aggregate_shares", content=state.ask, headers=known)
    assert made.headers["content-type"] == media_type(AggregateShare)
    place = "https://helper.example" + made.headers["location"]
    assert web.ask("helper", "GET", place, headers=known).content == made.content
    assert web.ask("helper", "DELETE", place, headers=known).status_code == 200
    for path in (place, "aggregate_shares/odd"):
        assert web.ask("helper", "GET", path, headers=known).status_code == 404


def test_resources_of_the_collector() -> None:
    web = Web()
    known = web.headers(CollectionJobReq, Role.COLLECTOR)
    early = web.post_collection(web.query())
    assert problem(early)["type"] == f"{URN}invalidBatchSize"
    web.bring(*(web.report(each) for each in (0, 1, 1)))
    made = web.post_collection(web.query())
    assert (made.status_code, made.content) == (202, b"")
    assert 1 <= int(made.headers["retry-after"]) <= 2
    place = "https://leader.example" + made.headers["location"]
    assert web.ask("leader", "GET", place, headers=known).status_code == 202
    web.drive()
    assert web.ask("leader", "GET", place, headers=known).status_code == 200
    assert web.ask("leader", "DELETE", place, headers=known).status_code == 200
    for path in (place, "collection_jobs/odd"):
        assert web.ask("leader", "GET", path, headers=known).status_code == 404
    again = web.post_collection(web.query())  # what is forgotten stays closed
    assert problem(again)["type"] == f"{URN}batchOverlap"


# ---- the store and the end ----


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web()

    def fails(*_: Any) -> Any:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(web.leader, "upload", fails)
        for _ in range(2):
            assert web.bring(web.report(0)).status_code == 503
        assert not web.served_leader.is_ready
    assert web.notes == ["a request was not served: the disk is full"]  # said once
    assert web.bring(web.report(0)).status_code == 200
    assert web.served_leader.is_ready


@pytest.mark.parametrize("side", ["leader", "helper"])
def test_a_batch_whose_noise_is_not_paid_waits(side: str) -> None:
    web = Web(noise=True)
    noise = getattr(web, f"{side}_noise")
    web.measure(0, 1, 1)
    web.run_jobs()
    noise.limit = 0
    made = web.post_collection(web.query())
    if side == "helper":
        assert made.status_code == 202
        with pytest.raises(UnansweredError, match="HTTP 503"):
            web.drive()
    else:
        assert made.status_code == 503 and 60 <= int(made.headers["retry-after"]) <= 300
    assert web.notes == ["a batch waits, whose noise is not paid: the budget is spent"]
    noise.limit = 1
    assert web.collected().result == [3, -16, -38, -58]


@pytest.mark.parametrize("side", ["leader", "helper"])
def test_a_batch_that_waits_is_noted_once_for_each_reason(side: str) -> None:
    """The collector and the leader ask again every few minutes, for as long as it is not paid."""
    web, why = Web(noise=True), "a batch waits, whose noise is not paid: "
    noise = getattr(web, f"{side}_noise")
    charge = noise.charge
    reason = "spent"

    def charged(_: int) -> None:
        raise OverspentError(reason)

    web.measure(0, 1, 1)
    web.measure(2, 2, 3, hours=-1)
    web.run_jobs()
    queries = web.query(), web.query(-1)

    def tried(query: CollectionJobReq) -> None:
        for _ in range(3):
            web.post_collection(query)
            with contextlib.suppress(UnansweredError, Refused):
                web.drive()
            assert web.bring(web.report(0, hours=-2)).status_code == 200  # what else is asked

    noise.charge = charged
    tried(queries[0])
    assert web.notes == [why + "spent"]
    tried(queries[1])
    assert web.notes == [why + "spent"] * 2  # another batch
    reason = "gone"
    tried(queries[0])
    assert web.notes[2:] == [why + "gone"] * (1 if side == "leader" else 2)
    noise.charge = charge
    web.collected(), web.collected(-1)
    assert len(web.notes) == (3 if side == "leader" else 4)


@pytest.mark.parametrize("side", ["leader", "helper"])
def test_a_ledger_that_lost_its_grant_is_named_to_the_operator(tmp_path: Path, side: str) -> None:
    """It had the grant when the server started, and was replaced since."""
    web, place = Web(), tmp_path / "books.db"
    Ledger.open(place, create=True).grant("clients", 1.0, 1e-6, 0)
    noise = DapNoise.propose(web.task, epsilon=1.0, delta=1e-6, ledger=str(place))
    store = MemoryStore()
    made = LedgerNoise(noise, web.task, store, clock=lambda: 7, random=bytes)
    setattr(web, f"{side}_noise", made)
    setattr(web, f"{side}_store", store)
    web.restart()
    web.measure(0, 1, 1)
    web.run_jobs()
    Ledger.open(tmp_path / "other.db", create=True).grant("others", 1.0, 1e-6, 0)
    granted = place.rename(tmp_path / "granted.db")
    (tmp_path / "other.db").rename(place)
    answer = web.post_collection(web.query())
    if side == "helper":
        assert answer.status_code == 202
        with pytest.raises(UnansweredError, match="HTTP 503"):
            web.drive()
    else:
        assert answer.status_code == 503 and 60 <= int(answer.headers["retry-after"]) <= 300
        assert problem(answer)["title"] == "the budget of this server does not pay for it"
    [note] = web.notes
    assert note.startswith("a batch waits, whose noise is not paid: the ledger")
    assert f"{place} covered" in note and "nothing was granted to population 'clients'" in note
    granted.rename(place)
    assert web.collected().count == 3


def test_another_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web()

    def overtaken(*_: Any) -> Any:
        raise OvertakenError("another process")

    monkeypatch.setattr(web.leader, "upload", overtaken)
    assert web.bring(web.report(0)).status_code == 503
    assert web.served_leader.overtaken.is_set()
    assert web.ask("leader", "GET", "https://leader.example/hpke_config").status_code == 503
    web.served_helper.is_leaving = True
    assert web.ask("helper", "GET", "https://helper.example/hpke_config").status_code == 503
    assert not web.served_helper.is_ready
    with pytest.raises(NotImplementedError):
        DapServer._routes(web.served_leader)


# ---- the leader and the helper ----


def waiting(web: Web, *measurements: int) -> None:
    web.bring(*(web.report(each) for each in measurements))


def test_what_failed_is_asked_again_with_the_same_bytes() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    bodies: list[bytes] = []

    def away(request: Any) -> Any:
        bodies.append(request.content)
        if len(bodies) == 1:
            raise httpx.ConnectError("nobody is there")
        # the second one is a redirect to what httpx cannot read as an address
        odd = httpx.Response(302, headers={"location": "https:foo"})
        return {2: odd, 3: httpx.Response(502)}.get(len(bodies))

    web.meddle = away
    for said in ("cannot reach helper.example", "cannot reach helper.example", "HTTP 502"):
        with pytest.raises(UnansweredError, match=said):
            web.drive()
    web.restart()
    web.drive()
    assert len(set(bodies[:4])) == 1 and bodies[4] == b""
    assert [method for method, _ in web.asked] == ["POST"] * 4 + ["DELETE"]
    assert web.collected().count == 3


@pytest.mark.parametrize("type", ["invalidMessage", "unsupportedExtension"])
def test_a_job_that_the_helper_refuses_is_ended(type: str) -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    refused = {"type": URN + type, "detail": "no\x1b"}
    kind = {"content-type": "application/problem+json"}
    web.meddle = lambda _: httpx.Response(400, content=json.dumps(refused), headers=kind)
    web.drive()
    assert web.notes == [f"the reports of a job are left out: it is refused ({type}: no\\x1b)"]
    assert not web.leader.jobs()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b"{}", "HTTP 401"),
        (404, json.dumps({"type": f"{URN}unrecognizedTask"}).encode(), "unrecognizedTask"),
        (500, json.dumps({"type": f"{URN}invalidMessage"}).encode(), "invalidMessage"),
        (400, b"no JSON", "HTTP 400"),
        (400, b"[]", "HTTP 400"),
        (400, json.dumps({"type": 7, "title": 8}).encode(), "HTTP 400"),
        (400, b" " * 5000, "too long"),
    ],
)
def test_what_an_operator_can_mend_ends_no_job(status: int, body: bytes, said: str) -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    kind = {"content-type": "application/problem+json"}
    web.meddle = lambda _: httpx.Response(status, content=body, headers=kind)
    with pytest.raises(UnansweredError, match=said):
        web.drive()
    web.meddle = lambda _: None
    assert web.collected().count == 3


def test_reports_that_do_not_open_are_in_no_job() -> None:
    web = Web()
    good = web.report(1)
    web.bring(replace(good, public_share=b"another"))
    web.drive()
    assert web.asked == [] and web.leader.is_idle


def test_an_answer_that_does_not_fit_ends_its_job() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    kind = {"content-type": media_type(AggregationJobResp)}
    web.meddle = lambda each: (
        httpx.Response(200, content=b"odd", headers=kind) if each.method == "POST" else None
    )
    web.drive()  # and the helper knows no such job, which is no fault
    assert "does not fit" in web.notes[0] and not web.leader.jobs()


def test_a_helper_may_answer_later() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    ready: list[Any] = []

    def later(request: Any) -> Any:
        if request.method == "POST" and "aggregation_jobs" in request.url.path:
            made = web.helper.aggregate(request.content, web.now)
            ready.append(made)
            place = f"aggregation_jobs/{to_text(made.id)}?step=0"
            return httpx.Response(200, headers={"location": place, "retry-after": "7"})
        if request.method == "GET" and len(ready) == 1:
            ready.append(None)
            return httpx.Response(200, headers={"retry-after": "soon"})
        return None

    web.meddle = later
    web.drive()
    assert web.slept == [7.0, 1.0]
    assert web.collected().count == 3


def test_an_answer_of_another_kind_or_place_is_none() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    web.meddle = lambda _: httpx.Response(200, content=b"<html>")
    with pytest.raises(UnansweredError, match="something else"):
        web.drive()
    for place, said in (("https://evil.example/x", "another server"), ("//a:b:c/", "no address")):
        web.meddle = lambda _, place=place: httpx.Response(200, headers={"location": place})
        with pytest.raises(UnansweredError, match=said):
            web.drive()
    assert [method for method, _ in web.asked] == ["POST"] * 3  # no token went there
    web.meddle = lambda _: httpx.Response(200)
    with pytest.raises(UnansweredError, match="no answer yet"):
        web.drive()
    assert len(web.slept) == 60


def test_a_collection_whose_share_the_helper_refuses_has_failed() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    web.drive()
    mismatch = json.dumps({"type": f"{URN}batchMismatch", "detail": "other reports"})
    kind = {"content-type": "application/problem+json"}
    web.meddle = lambda _: httpx.Response(400, content=mismatch, headers=kind)
    made = web.post_collection(web.query())
    assert made.status_code == 202
    web.drive()
    assert web.notes == ["a batch is lost: it is refused (batchMismatch: other reports)"]
    assert problem(web.post_collection(web.query()))["type"] == f"{URN}batchMismatch"
    assert web.served_leader.collections == set()


def test_a_share_that_does_not_fit_ends_its_collection() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    web.drive()
    kind = {"content-type": media_type(AggregateShare)}
    web.meddle = lambda _: httpx.Response(200, content=b"odd", headers=kind)
    web.post_collection(web.query())
    web.drive()
    assert "a batch is lost" in web.notes[0]
    assert web.served_leader.collections == set()


def test_collections_that_wait_or_are_gone() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    job = web.leader.make_job()
    assert job is not None
    web.leader.collect(web.query().encode())  # it waits for the job
    web.restart()  # and is found again
    (id,) = web.served_leader.collections
    asyncio.run(web.driving._collect(id))
    assert web.served_leader.collections == {id}
    web.leader.abandon_job(job.id)
    asyncio.run(web.driving._collect(id))  # it lacks reports, which may still come
    assert web.served_leader.collections == {id}
    web.leader.forget_collection(id)
    asyncio.run(web.driving._collect(id))
    assert web.served_leader.collections == set()


def test_a_collection_of_a_closed_time_is_given_up() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    job = web.leader.make_job()
    assert job is not None
    first = web.leader.collect(web.query().encode())
    web.served_leader.collections.add(first.id)
    web.leader.finish_job(job.id, web.helper.aggregate(job.request, web.now).answer)
    assert web.leader.collect(web.query(0, 2).encode()).ask
    asyncio.run(web.driving._collect(first.id))
    assert web.served_leader.collections == set()


def test_an_answered_collection_is_asked_for_no_more() -> None:
    web = Web()
    waiting(web, 0, 1, 1)
    web.collected()
    id = web.leader.collect(web.query().encode()).id
    web.served_leader.collections.add(id)
    web.asked.clear()
    asyncio.run(web.driving._collect(id))
    assert web.served_leader.collections == set() and not web.asked


@pytest.mark.parametrize("side", ["leader", "helper"])
def test_a_batch_that_is_not_paid_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """The job of the unpaid batch is tried first, and is still open after the other has its sum."""
    web = Web(noise=True)
    web.measure(0, 1, 1)
    web.measure(2, 2, 3, hours=-1)
    assert web.leader.make_job() is not None  # both collections wait for it
    ids = {web.leader.collect(web.query(start).encode()).id: start for start in (0, -1)}
    web.restart()
    assert web.served_leader.collections == set(ids)
    unpaid, paid = sorted(ids)
    noise = getattr(web, f"{side}_noise")
    charge = noise.charge

    def charged(batch: int) -> None:
        if batch == web.batch + ids[unpaid]:
            raise OverspentError("the budget is spent")
        charge(batch)

    monkeypatch.setattr(noise, "charge", charged)
    with pytest.raises(UnansweredError if side == "helper" else Refused):
        web.drive()
    assert web.leader.collection(paid).answer
    assert web.served_leader.collections == {unpaid}
    assert web.notes == ["a batch waits, whose noise is not paid: the budget is spent"]
    monkeypatch.setattr(noise, "charge", charge)
    web.drive()
    assert web.leader.collection(unpaid).answer and web.served_leader.collections == set()


def test_a_refusal_of_the_budget_hides_no_error_of_the_helper() -> None:
    web = Web()
    web.served_leader.collections |= {b"1", b"2", b"3"}
    tried: list[bytes] = []

    async def collect(id: bytes) -> None:
        tried.append(id)
        if id != b"2":
            raise Refused(503, "the budget of this server does not pay for it")
        raise UnansweredError("cannot reach the helper")

    web.driving._collect = collect  # type: ignore[method-assign]
    with pytest.raises(UnansweredError):
        web.drive()
    assert tried == [b"1", b"2", b"3"]
    web.served_leader.overtaken.set()  # another process goes on: this one has nothing more to try
    with pytest.raises(Refused):
        web.drive()
    assert tried == [b"1", b"2", b"3", b"1"]


def test_the_leader_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web()
    waits: list[float] = []
    faults: list[Exception] = [UnansweredError("away")] * 8 + [Refused(503, "busy")]

    async def step() -> None:
        if faults:
            raise faults.pop(0)
        if waits[-1] != 1.0:
            return
        web.served_leader.overtaken.set()

    async def rest(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(web.driving, "step", step)
    monkeypatch.setattr(web.driving, "_rest", rest)
    asyncio.run(web.driving.run())
    doubled = [FIRST_WAIT * 2**n for n in range(6)]
    assert waits == [*doubled, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT, 1.0, 1.0]
    assert web.notes == ["jobs wait: away", "jobs wait: busy"]


def test_a_collector_that_asks_wakes_the_leader() -> None:
    web = Web()

    async def rests() -> float:
        began = asyncio.get_running_loop().time()
        web.served_leader.wake.set()
        await web.driving._rest(600)
        assert not web.served_leader.wake.is_set()
        await web.driving._rest(0.01)
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(rests()) < 60


# ---- what a client asks ----


def test_a_client_gets_the_keys_and_brings_reports() -> None:
    web = Web()

    async def asked() -> tuple[Any, Any, Any]:
        leader = web.asking("leader")
        configs = await leader.configs()
        late = UploadRequest((web.report(1, hours=2),)).encode()
        good = UploadRequest((web.report(0),)).encode()
        with pytest.raises(DeniedError) as refused:
            await leader.upload(good[:-1])
        assert refused.value.type == "invalidMessage"
        return configs, await leader.upload(good), await leader.upload(late)

    configs, good, late = asyncio.run(asked())
    assert configs == LEADER_KEYS.configs and good.status == ()
    assert [each.error for each in late.status] == [ReportError.REPORT_TOO_EARLY]
