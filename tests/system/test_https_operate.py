"""What an operator sees of a process that serves: probes, metrics and a log, without any client."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from campaign_world import DEADLINES, N, World, plan_of
from secagg_cohort import NOW

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
httpx = pytest.importorskip("httpx")

from https_world import Book, Client, HttpsWorld, run  # noqa: E402

from fedtally import __version__  # noqa: E402
from fedtally.campaign.driver import Receipt, RunningSession  # noqa: E402
from fedtally.campaign.transports.https.loop import HttpsLoop  # noqa: E402
from fedtally.campaign.transports.https.operate import (  # noqa: E402
    Counts,
    Instruments,
    json_log,
    lingering,
    operated,
    started,
    warned,
)
from fedtally.secagg.two_server import Outcome  # noqa: E402
from fedtally.store import EndedSession, StoreError  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_sync")


async def asked(app: Any, path: str) -> Any:
    """Return the answer of an application."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        return await http.get(f"http://operator{path}")


def values(text: str) -> dict[str, float]:
    """Return metrics by their name and labels."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


class Campaign:
    """A campaign with eight clients, whose process is watched."""

    def __init__(self, folder: Path, level: str) -> None:
        self.world, self.lines = World(folder, plan_of()), io.StringIO()
        self.cloud = HttpsWorld(self.world)
        self.instruments = Instruments(
            self.world.driver,
            lambda: self.world.campaigns().status(self.world.plan).ended,
            lambda: self.world.now,
            json_log(level, self.lines),
        )
        self.cloud.options["observer"] = self.instruments
        self.seen: list[dict[str, float]] = []
        self.cloud.on_frame = lambda *_: self.seen.append(values(self.text()))

    def text(self) -> str:
        from prometheus_client import generate_latest

        return generate_latest(self.instruments.registry).decode()

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]


def test_metrics_and_log_say_how_a_campaign_went(tmp_path: Path) -> None:
    one = Campaign(tmp_path, "info")
    run(one.cloud.run())
    found = values(one.text())
    sent = one.cloud.network.sent
    assert found['fedtally_responses_total{status="200"}'] == sent[200] == 5 * N
    assert found['fedtally_answers_total{verdict="taken"}'] == 4 * N
    assert found['fedtally_sessions_total{outcome="landed"}'] == 1
    assert found['fedtally_cohort_clients_bucket{le="10.0"}'] == 1
    assert found["fedtally_cohort_clients_sum"] == N
    assert found["fedtally_step_seconds_count"] > 4
    assert found["fedtally_invitations_total"] == N
    assert found["fedtally_unanswered_invitations_total"] == 0
    assert 'fedtally_running_sessions{phase="advertise"}' not in found
    # all are there while they are asked; nobody is any more once each was asked as often as may be
    assert {each["fedtally_present_clients"] for each in one.seen} == {N}
    # while it ran, each phase was there, with its clients and its time
    phases = [name for each in one.seen for name in each if name.startswith("fedtally_running_cl")]
    assert len(set(phases)) == 4 and {each[phases[0]] for each in one.seen[:1]} == {N}
    (left,) = (v for k, v in one.seen[0].items() if k.startswith("fedtally_running_seconds_left"))
    assert 0 < left <= DEADLINES.session
    answered = [v for each in one.seen for k, v in each.items() if "running_answered" in k]
    assert 0 < max(answered) < N
    log = one.log()
    assert Counter(line["event"] for line in log) == {"phase": 4, "session": 1}
    assert len({line["session"] for line in log}) == 1 and len(log[0]["session"]) == 8
    assert {line["clients"] for line in log} == {N} and log[-1]["outcome"] == "landed"
    assert "seconds" not in log[0] and all(line["seconds"] >= 0 for line in log[1:4])
    assert all(line["level"] == "info" and line["time"].endswith("Z") for line in log)


def test_clients_are_named_at_debug_alone_and_never_in_a_metric(tmp_path: Path) -> None:
    for level in ("off", "info", "debug"):
        (tmp_path / level).mkdir()
        one = Campaign(tmp_path / level, level)
        # clients of the world are numbers: the observer is told names
        for number in range(N):
            one.instruments.received(f"client-{number}", Receipt.REFUSED, 1)
        run(one.cloud.run())
        assert "client-" not in one.text()
        assert ("client-" in one.lines.getvalue()) == (level == "debug")
        assert bool(one.log()) == (level != "off")


class Told:
    """A driver that runs what it is told."""

    refusals: Counter[Any] = Counter()
    invited, unanswered, num_present = 9, 3, 2
    is_overtaken = False

    def __init__(self) -> None:
        self.sessions = [RunningSession(b"a" * 32, 2, "advertise", 9, 4, (NOW, NOW), NOW + 50)]

    def running(self) -> list[RunningSession]:
        return self.sessions


def test_the_end_of_a_session_is_told_once_the_store_answers() -> None:
    driver, lines, ended = Told(), io.StringIO(), list[EndedSession]()
    is_away, now = True, NOW

    def read() -> list[EndedSession]:
        if is_away:
            raise StoreError("disk")
        return ended

    log = json_log("info", lines)
    watched = Instruments(driver, read, lambda: now, log)  # type: ignore[arg-type]
    watched.stepped(0.5)
    watched.stepped(0.5)  # nothing new
    driver.sessions = [replace(driver.sessions[0], phase="collect", clients=8)]
    now += 20
    watched.stepped(0.5)
    driver.sessions = []
    watched.stepped(0.5)
    is_away = False
    watched.stepped(0.5)  # the store does not know of it yet
    ended += [EndedSession(b"b" * 32, 1, 9), EndedSession(b"a" * 32, 2, 0, "aborted: TIMEOUT (3)")]
    watched.stepped(0.5)
    watched.stepped(0.5)
    known = {"level": "info", "session": "61616161", "round": 2}
    assert [json.loads(line) | {"time": ""} for line in lines.getvalue().splitlines()] == [
        known | {"time": "", "event": "phase", "phase": "advertise", "clients": 9},
        known | {"time": "", "event": "phase", "phase": "collect", "clients": 8, "seconds": 20},
        known | {"time": "", "event": "session", "outcome": "aborted", "clients": 0},
    ]


def test_a_problem_is_a_line_of_its_own_level() -> None:
    lines = io.StringIO()
    warned(json_log("info", lines), "the store does not answer")
    said = json.loads(lines.getvalue())
    assert said.pop("time")
    assert said == {
        "level": "warning", "event": "warning", "message": "the store does not answer"
    }  # fmt: skip
    warned(json_log("off", lines), "nobody reads this")
    assert "nobody" not in lines.getvalue()


def test_the_first_line_says_which_version_runs() -> None:
    lines = io.StringIO()
    started(json_log("info", lines), "/var/lib/fedtally/survey")
    said = json.loads(lines.getvalue())
    assert (said["level"], said["event"], said["version"]) == ("info", "start", __version__)
    assert said["message"] == f"fedtally {__version__} runs /var/lib/fedtally/survey"


def test_a_sum_that_lands_is_counted_with_its_clients() -> None:
    driver = Told()
    ended = [EndedSession(b"a" * 32, 2, 9)]
    watched = Instruments(driver, lambda: ended, lambda: NOW, json_log("off"))  # type: ignore[arg-type]
    watched.stepped(0.5)
    driver.sessions = []
    watched.stepped(0.5)
    registry = watched.registry
    assert registry.get_sample_value("fedtally_sessions_total", {"outcome": "landed"}) == 1
    assert registry.get_sample_value("fedtally_cohort_clients_sum") == 9
    assert registry.get_sample_value("fedtally_invitations_total") == 9
    assert registry.get_sample_value("fedtally_unanswered_invitations_total") == 3


def test_refusals_are_counted_by_code(tmp_path: Path) -> None:
    one = Campaign(tmp_path, "off")

    async def check() -> None:
        one.cloud.clock()
        serving = asyncio.create_task(one.cloud.serve())
        await asyncio.sleep(1)
        clients = [Client(one.cloud, number) for number in range(N)]
        for client in clients:
            await client.post()
        await asyncio.sleep(30)
        found = await clients[0].post()
        assert found.status_code == 200
        await clients[0].post(b"garbage")
        serving.cancel()

    run(check())
    found = values(one.text())
    assert found['fedtally_answers_total{verdict="refused"}'] == 1
    assert sum(v for k, v in found.items() if k.startswith("fedtally_refusals_total")) == 1


def test_probes_follow_the_process(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    watched = Instruments(world.driver, list, time.time, json_log("off"))
    loop = HttpsLoop(world.driver, Book(1), 60, observer=watched)
    app = operated(loop, watched)

    async def statuses() -> tuple[int, int]:
        return tuple([(await asked(app, path)).status_code for path in ("/healthz", "/readyz")])  # type: ignore[return-value]

    async def ready() -> float:
        return values((await asked(app, "/metrics")).text)["fedtally_ready"]

    async def check() -> None:
        assert not loop._pace.is_asked
        assert await statuses() == (200, 503)  # the store was not read yet
        assert loop._pace.is_asked  # an idle store is tried, since somebody asks
        assert await ready() == 0
        running = asyncio.create_task(loop.run())
        await asyncio.sleep(0.05)
        assert await statuses() == (200, 200)
        assert await ready() == 1
        world.driver.is_overtaken = True
        assert (await statuses())[0] == 503
        running.cancel()
        got = await asked(app, "/metrics")
        assert got.headers["content-type"].startswith("text/plain; version=")
        assert values(got.text)["fedtally_waiting_requests"] == 0
        assert (await asked(app, "/v1/campaigns/x/step")).status_code == 404
        for path in ("/healthz", "/readyz", "/metrics"):
            for over in (lingering(), lingering(watched)):
                assert (await asked(over, path)).status_code == 200

    asyncio.run(check())


def test_counters_stay_after_the_end_and_gauges_that_would_ring_do_not(tmp_path: Path) -> None:
    one = Campaign(tmp_path, "off")
    loop: Any = SimpleNamespace(
        num_waiting=7, driver=one.world.driver, is_ready=True, ask_store=lambda: None
    )
    running = operated(loop, one.instruments)
    run(one.cloud.run())

    async def check() -> None:
        before = values((await asked(running, "/metrics")).text)
        after = values((await asked(lingering(one.instruments), "/metrics")).text)
        assert before["fedtally_over"] == 0 and after["fedtally_over"] == 1
        assert before["fedtally_ready"] == after["fedtally_ready"] == 1
        assert after['fedtally_sessions_total{outcome="landed"}'] == 1
        gone = {"fedtally_present_clients", "fedtally_waiting_requests"}
        assert gone == before.keys() - after.keys()
        build = f'fedtally_build_info{{version="{__version__}"}}'
        assert before[build] == after[build] == 1
        kept = after.keys() - {"fedtally_over", "fedtally_ready"}
        assert len(kept) > 20 and {name: before[name] for name in kept} == {
            name: after[name] for name in kept
        }
        # a process that was started after the end has counted nothing
        alone = values((await asked(lingering(), "/metrics")).text)
        assert alone == {"fedtally_over": 1, "fedtally_ready": 1, build: 1}

    asyncio.run(check())


def test_a_server_of_two_counts_and_says_what_it_takes_and_judges() -> None:
    lines = io.StringIO()
    counts = Counts(list, lambda: 0.0, json_log("info", lines))
    counts.took([Outcome.ACCEPTED, Outcome.ACCEPTED, StoreError("full")], 0.25)
    counts.judged(2, 0.5)
    counts.answered(201, 7)
    found = counts.registry.get_sample_value
    assert found("fedtally_reports_total", {"outcome": "accepted"}) == 2
    assert found("fedtally_reports_total", {"outcome": "failed"}) == 1
    assert found("fedtally_judged_reports_total") == 2
    assert found("fedtally_group_seconds_sum") == 0.25
    assert found("fedtally_responses_total", {"status": "201"}) == 1
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [one["event"] for one in said] == ["group", "judged"]
    assert said[1]["reports"] == 2
