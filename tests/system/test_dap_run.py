"""What `fedtally dap` does in its process: it serves, hears SIGTERM, makes tasks, and collects."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from benchmarks.federation import free_ports
from dap_web import Web
from dap_world import HOUR, LEADER_KEYS, NOW, SEED, SIZES, FixedNoise, make_task
from secagg_cohort import stream

from fedtally.answer.result import Result
from fedtally.answer.sections.privacy import protects
from fedtally.campaign.dap_files import domain_of_task, key_number, load_task
from fedtally.campaign.dap_folder import LEAST_BATCH, DapFolder, DapPolicy, DapSettings
from fedtally.campaign.dap_noise import DapNoise
from fedtally.campaign.dap_result import report_bytes, result_of
from fedtally.campaign.key_files import create_key_files, read_public_key
from fedtally.campaign.transports.https import carry, dap_client
from fedtally.campaign.transports.https.dap_asking import DapAsking, UnansweredError
from fedtally.campaign.transports.https.dap_process import DapProcess
from fedtally.campaign.transports.https.listen import Address
from fedtally.campaign.transports.https.proxy import DapBackend, Front
from fedtally.cli import dap as command
from fedtally.cli.app import run
from fedtally.dap import Collected, MemoryStore, TaskSecret
from fedtally.dap.draft18 import (
    AggregationJobInitReq,
    AggregationJobResp,
    Role,
    UploadRequest,
    media_type,
)
from fedtally.dap.sealing import config
from fedtally.dap.task import to_text, token_digest
from fedtally.domain import Dictionary
from fedtally.errors import InvalidInputError, MissingExtraError, OvertakenError

pytestmark = pytest.mark.usefixtures("no_sync")


class Operator:
    """A server of a task at a port of this machine, whose helper is away."""

    def __init__(self, folder: Path, side: str) -> None:
        self.port, self.metrics, self.away = free_ports(3)
        self.role, self.notes = Role[side.upper()], list[str]()
        now = int(time.time()) // HOUR * HOUR
        self.task = make_task(
            "histogram",
            leader=f"http://127.0.0.1:{self.port if side == 'leader' else self.away}/dap",
            helper=f"http://127.0.0.1:{self.away if side == 'leader' else self.port}/dap",
            start=now, end=now + 24 * HOUR,
        )  # fmt: skip
        (folder / "task.toml").write_text(self.task.to_toml())
        (folder / "task.secret").write_text(TaskSecret(self.task.id, SEED).to_toml())
        (folder / "task.secret").chmod(0o600)
        create_key_files(folder / "server.key", "aggregator", stream(side))
        settings = DapSettings(
            (folder / "server.key",), folder / "task.secret", folder / "mark", DapPolicy(3)
        )
        self.folder = DapFolder.create(
            folder / "made", self.role, task=folder / "task.toml", settings=settings
        )

    def process(self) -> DapProcess:
        operate = Address(None, self.metrics)
        return DapProcess(self.folder, Address(None, self.port), operate, self.notes.append)

    def ask(self, method: str, path: str, port: int | None = None, **more: Any) -> Any:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(httpx.TransportError):
                url = f"http://127.0.0.1:{port or self.port}{path}"
                return httpx.request(method, url, **more)
            assert time.monotonic() < end
            time.sleep(0.02)


@contextmanager
def meanwhile(do: Callable[[], None], *, ends: bool = True) -> Iterator[None]:
    """Do something in a thread while this one runs a process, then end that by SIGTERM."""
    errors: list[BaseException] = []

    def done() -> None:
        try:
            do()
        except BaseException as error:
            errors.append(error)
        if ends or errors:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # until the process hears it
    thread = threading.Thread(target=done)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)
    if errors:
        raise errors[0]


def test_a_leader_serves_until_sigterm_though_the_helper_is_away(tmp_path: Path) -> None:
    world = Operator(tmp_path, "leader")

    def looks() -> None:
        keys = world.ask("GET", "/dap/hpke_config")
        assert keys.status_code == 200
        http = httpx.AsyncClient(transport=_OneServer(world))

        async def reports() -> None:
            async with http:
                await dap_client.report(
                    http, world.task, 2, now=time.time(), random=secrets.token_bytes
                )

        asyncio.run(reports())
        end = time.monotonic() + 60
        while len(world.notes) < 2:
            assert time.monotonic() < end
            time.sleep(0.02)
        for path in ("/healthz", "/readyz"):
            assert world.ask("GET", path, world.metrics).json() == {"status": "pass"}
        text = world.ask("GET", "/metrics", world.metrics).text
        assert 'fedtally_responses_total{status="200"}' in text

    with meanwhile(looks):
        world.process().run()
    assert world.notes[0] == f"the leader serves on 127.0.0.1:{world.port}"
    assert world.notes[1].startswith("jobs wait: cannot reach 127.0.0.1")
    assert (
        len(world.folder.claim(clock=lambda: 7, random=secrets.token_bytes).jobs()) == 1
    )  # it is sent again


class _OneServer(httpx.AsyncBaseTransport):
    """Ask the leader for the keys of the helper, who is away."""

    def __init__(self, world: Operator) -> None:
        self.world = world

    async def handle_async_request(self, request: Any) -> Any:
        body = await request.aread()
        path = request.url.path
        found = await asyncio.to_thread(
            self.world.ask, request.method, path, content=body, headers=dict(request.headers)
        )
        stream = httpx.ByteStream(found.content)
        return httpx.Response(found.status_code, headers=found.headers, stream=stream)


def test_a_helper_serves_until_sigterm(tmp_path: Path) -> None:
    world = Operator(tmp_path, "helper")

    def looks() -> None:
        assert world.ask("GET", "/dap/hpke_config").status_code == 200

    with meanwhile(looks):
        world.process().run()
    assert world.notes == [f"the helper serves on 127.0.0.1:{world.port}"]


def test_a_process_that_is_overtaken_ends_and_says_so(tmp_path: Path) -> None:
    world = Operator(tmp_path, "leader")

    def overtakes() -> None:
        world.ask("GET", "/dap/hpke_config")
        world.folder.claim(clock=lambda: 7, random=secrets.token_bytes)
        report = b"any"
        kind = {"content-type": media_type(UploadRequest)}
        path = f"/dap/tasks/{to_text(world.task.id)}/reports"
        assert world.ask("POST", path, content=report, headers=kind).status_code == 400
        with contextlib.suppress(Exception):
            good = Web("histogram").report(0)
            body = UploadRequest((good,)).encode()
            httpx.post(f"http://127.0.0.1:{world.port}{path}", content=body, headers=kind)

    with meanwhile(overtakes, ends=False), pytest.raises(OvertakenError, match="this one ended"):
        world.process().run()


# ---- commands ----


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Web:
    """Both servers without a socket, which the commands find; and the files of the task."""
    create_key_files(tmp_path / "collector.key", "collector", stream("collector"))
    made = Web("histogram", collector=_collector(tmp_path))
    (tmp_path / "task.toml").write_text(made.task.to_toml())
    (tmp_path / "token").write_text(made.tokens[Role.COLLECTOR])
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "fruits.txt").write_text("apple\npear\nplum\nquince\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(carry, "client", lambda _: httpx.AsyncClient(transport=_Both(made)))
    monkeypatch.setattr(time, "time", lambda: NOW)
    return made


def _collector(folder: Path) -> Any:
    key = read_public_key(folder / "collector.key.pub", "collector")
    return config(key_number(key), key)


class _Both(httpx.AsyncBaseTransport):
    """Go to either server by its name, and let the leader work before it is asked again."""

    def __init__(self, web: Web) -> None:
        self.web = web

    async def handle_async_request(self, request: Any) -> Any:
        side = request.url.host.partition(".")[0]
        if request.method == "GET" and "collection_jobs" in request.url.path:
            await self.web.driving.step()
        app = getattr(self.web, f"served_{side}").application()
        return await httpx.ASGITransport(app=app).handle_async_request(request)


COLLECT = ["dap", "collect", "task.toml", "--key", "collector.key", "--token", "token"]


def interval(web: Web, hours: int = 1) -> list[str]:
    times = [web.hour * HOUR, (web.hour + hours) * HOUR]
    start, end = (datetime.fromtimestamp(each, UTC).isoformat() for each in times)
    return ["--from", start, "--to", end]


def test_reports_become_a_result_that_other_commands_read(
    web: Web, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for fruit in ("apple", "apple", "plum"):
        assert run(["dap", "report", "task.toml", fruit, "--candidates", "fruits.txt"]) == 0
    assert run(["dap", "report", "task.toml", "1", "--json"]) == 0
    words = [*COLLECT, *interval(web), "--candidates", "fruits.txt", "-o"]
    capsys.readouterr()
    for taken in ("task.toml", "fruits.txt", "token", "collector.key"):  # what the command reads
        before = Path(taken).read_bytes()
        assert run([*words, taken]) == 2
        assert "it is read by this run" in " ".join(capsys.readouterr().err.split())
        assert Path(taken).read_bytes() == before
    words.append("r.fed")
    monkeypatch.setattr(sys, "argv", ["fedtally", *words])
    assert run(words) == 0
    shown = capsys.readouterr()
    assert "The sums of 4 reports" in shown.out and "wrote r.fed" in shown.err
    result = Result.load("r.fed")
    assert [(each.item, each.count) for each in result.top(2)] == [("apple", 2), ("pear", 1)]
    assert result.command.startswith("fedtally dap collect")
    for query in (["query", "r.fed", "apple"], ["inspect", "r.fed"]):
        assert run(query) == 0
    said = capsys.readouterr().out
    assert "only the collector sees these sums" in said.replace("\n         ", " ")
    assert "552 B per report" in said
    facts = dict(re.findall(r"^([a-z ]+?)  +(.*)$", said, re.MULTILINE))
    assert (facts["secure sum"], facts["bytes per client"]) == ("dap", "552 B")
    assert run([*COLLECT, *interval(web), "--json"]) == 0  # the same again
    again = json.loads(capsys.readouterr().out)
    assert (again["reports"], again["sums"]) == (4, [2, 1, 1, 0])
    assert run([*COLLECT, *interval(web, 2), "--json"]) == 2
    assert "batchOverlap" in capsys.readouterr().err


def noised(web: Web, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let both servers add noise to three reports; return the words that collect them."""
    web.leader_store, web.helper_store = MemoryStore(), MemoryStore()
    web.leader_noise, web.helper_noise = FixedNoise(), FixedNoise()
    web.restart()
    web.measure(0, 0, 2)
    words = [*COLLECT, *interval(web), "--candidates", "fruits.txt", "-o", "r.fed"]
    monkeypatch.setattr(sys, "argv", ["fedtally", *words])
    return words


def test_a_result_says_which_noise_is_in_it(
    web: Web, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = noised(web, monkeypatch)
    assert run(words) == 2
    assert "have noise: say which (--epsilon)" in " ".join(capsys.readouterr().err.split())
    assert run([*words, "--epsilon", "1"]) == 0
    result = Result.load("r.fed")
    assert result.plan.privacy is not None
    assert result.plan.privacy.event.relation == "replace-one"
    assert [each.count for each in result.top(1)] == [2 + 2]
    assert "the unit of privacy is a report" in " ".join(result.warnings)
    assert run(["query", "r.fed", "pear", "--details"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "each of two servers adds rounded Gaussian noise of standard deviation 5.97" in said
    assert "unit of privacy: one report, and not all of a person's; period: all batches" in said
    assert "one client of the population" not in said and "one client's items" not in said
    assert "a report is in one batch" in said
    assert run(["query", "r.fed", "pear"]) == 0
    assert "which of two values does a report hold?" in " ".join(capsys.readouterr().out.split())
    assert "each report has a proof of its form" in said and "no proofs" not in said


@pytest.mark.extras
def test_a_page_on_noised_sums_speaks_of_reports(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    assert run([*noised(web, monkeypatch), "--epsilon", "1"]) == 0
    assert run(["report", "r.fed", "-o", "r.html"]) == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "This protects one report" in page
    assert "does a report hold?" in page and "does a client have?" not in page


def test_sums_without_a_file_have_numbers(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    web.measure(0, 1, 1)
    assert run([*COLLECT, *interval(web)]) == 0
    assert "0       1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "invalidBatchSize"),
        (["--from", "2027-01-31"], "no time with its zone"),
        (["--from", "soon"], "no time with its zone"),
        (["--to", "2020-01-31T00:00Z"], "end must be after start"),
        (["--candidates", "three.txt"], "the task has 4 candidates, and the list has 3"),
        (["--key", "other.key"], "is of another collector"),
        (["--token", "other"], "HTTP 401"),
        (["--wait", "-1"], "wait must be at least 0"),
        (["--ca", "three.txt"], "give certificates in PEM"),
    ],
)
def test_collections_that_cannot_be(
    web: Web, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("three.txt").write_text("a\nb\nc\n")
    Path("other").write_text("another")
    Path("other").chmod(0o600)
    create_key_files("other.key", "collector", stream("other"))
    code = run([*COLLECT, *interval(web), *words])
    error = capsys.readouterr().err
    assert said in error
    assert code == (1 if "401" in said else 2)


def test_a_collector_does_not_wait_for_ever(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    web.bring(*(web.report(each) for each in (0, 1, 1)))

    async def away() -> None:
        return

    web.driving.step = away  # type: ignore[method-assign]
    assert run([*COLLECT, *interval(web), "--wait", "0.05"]) == 2
    assert "no answer after 0.05 seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["4"], "measurement must be at most 3"),
        (["tea"], "is no number"),
        (["1" * 5000], "is no number of up to 30 digits"),
        (["tea", "--candidates", "fruits.txt"], "tea"),
    ],
)
def test_reports_that_cannot_be(
    web: Web, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dap", "report", "task.toml", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_leader_may_refuse_a_report(
    web: Web, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    web.now = NOW - 2 * HOUR  # the leader's clock is behind
    assert run(["dap", "report", "task.toml", "1"]) == 2
    assert "report too early" in capsys.readouterr().err
    monkeypatch.setattr(UploadRequest, "encode", lambda _: b"odd")
    assert run(["dap", "report", "task.toml", "1"]) == 2
    assert "invalidMessage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("vdaf", "text", "given", "value"),
    [
        ("count", "1", None, 1),
        ("count", "yes", ["yes"], 1),
        ("sumvec", "1, 0,2", None, [1, 0, 2]),
        ("sumvec", "tea,milk", ["tea", "cake", "milk"], [1, 0, 1]),
        ("histogram", "3", None, 3),
        ("histogram", "d", ["a", "b", "c", "d"], 3),
    ],
)
def test_what_a_text_measures(
    vdaf: str, text: str, given: list[str] | None, value: Any, tmp_path: Path
) -> None:
    task = make_task(vdaf) if vdaf != "sumvec" else _small_sumvec()
    domain = None if given is None else Dictionary(given, public=True)
    assert command._measurement(task, text, domain) == value


def _small_sumvec() -> Any:
    return make_task("sumvec", sizes=SIZES["sumvec"] | {"maximum": 1})


def test_sums_of_numbers_are_no_shares() -> None:
    with pytest.raises(InvalidInputError, match="numbers up to 5, and no shares"):
        domain_of_task(make_task("sumvec"))
    assert domain_of_task(_small_sumvec()).size == 3
    assert domain_of_task(make_task("count")).labels(range(1)) == [1]


def test_a_count_is_a_result_of_one_candidate() -> None:
    task = make_task("count")
    result = result_of(task, Collected(4, 0, HOUR, 3), domain_of_task(task))
    (only,) = result.top(9)
    assert (only.item, only.count, only.frequency) == (1, 3, 0.75)
    (said,) = protects(result.plan, result.secure_sum)
    assert said.startswith("Nothing hides what one report holds from somebody")


def test_sums_with_noise_are_not_taken_for_exact_ones() -> None:
    """Each sum may well be within the count: in a histogram the total tells."""
    task = make_task("histogram")
    for sums in ([3, 1, 0, 1], [2, 1, 0, 0], [5, 0, 0, -1]):
        with pytest.raises(InvalidInputError, match="and so have noise: say which"):
            result_of(task, Collected(4, 0, HOUR, sums), domain_of_task(task))


def test_sums_that_the_noise_does_not_explain_are_refused() -> None:
    """A server that lies can add any number mod p."""
    task = make_task("histogram")
    noise = DapNoise.propose(task, epsilon=1.0, delta=1e-6)
    for wrong in (2**126, -(2**126), 2**62, 200):
        collected = Collected(4, 0, HOUR, [wrong, 1, 0, 0])
        with pytest.raises(InvalidInputError, match="a server spoiled the sums"):
            result_of(task, collected, domain_of_task(task), noise=noise)


@pytest.mark.parametrize("vdaf", ["count", "sumvec", "histogram"])
def test_the_bytes_of_a_report(vdaf: str) -> None:
    web = Web(vdaf)
    value = {"count": 1, "sumvec": [1, 2, 3], "histogram": 2}[vdaf]
    assert report_bytes(web.task) == len(web.report(value).encode())


# ---- fedtally dap task, and servers ----

PARTIES = ["--leader", "https://l.example/", "--helper", "https://h.example/"]


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    create_key_files(tmp_path / "c.key", "collector", stream("collector"))
    create_key_files(tmp_path / "s.key", "aggregator", stream("server"))
    (tmp_path / "fruits.txt").write_text("apple\npear\nplum\nquince\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def makes(*words: str) -> int:
    return run(["dap", "task", "made", *PARTIES, "--collector", "c.key.pub", *words])


@pytest.mark.parametrize(
    ("words", "kind", "sizes"),
    [
        (["--vdaf", "count"], "count", {}),
        (["--vdaf", "histogram", "--size", "100"], "histogram", {"buckets": 100, "chunk": 10}),
        (
            ["--vdaf", "histogram", "--candidates", "fruits.txt", "--chunk", "1"],
            "histogram",
            {"buckets": 4, "chunk": 1},
        ),
        (
            ["--vdaf", "sumvec", "--size", "100", "--maximum", "255"],
            "sumvec",
            {"entries": 100, "maximum": 255, "chunk": 28},
        ),
        (["--vdaf", "sumvec", "--size", "9"], "sumvec", {"entries": 9, "maximum": 1, "chunk": 3}),
    ],
)
def test_a_task_is_made_in_three_files(
    keys: Path, words: list[str], kind: str, sizes: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert makes(*words, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    task = load_task("made/task.toml")
    assert (task.vdaf, task.sizes) == (kind, sizes)
    assert shown["vdaf"] == {"kind": kind} | sizes
    assert shown["upload"] == f"https://l.example/tasks/{shown['id']}/reports"
    modes = {each.name: each.stat().st_mode & 0o777 for each in Path("made").iterdir()}
    assert modes["servers.secret"] == modes["collector.token"] == 0o600
    secret = TaskSecret.from_toml(Path("made/servers.secret").read_text())
    token = Path("made/collector.token").read_text().strip()
    assert secret.collector == token_digest(token)  # the helper learns no more than this
    assert token not in secret.leader_token + Path("made/servers.secret").read_text()
    for text in ("collector.token", "task.toml"):
        assert bytes(secret.seed.reveal()).hex() not in Path("made", text).read_text()
    assert makes(*words) == 2 and "exists already" in capsys.readouterr().err


def test_a_task_names_its_draft(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--vdaf", "count", "--collector", "c.key.pub"]
    for name, more, shown in (("a", [], "18"), ("b", ["--draft", "9"], "09 (reports)")):
        assert run(["dap", "task", name, *PARTIES, *words, *more]) == 0
        lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
        assert ["Draft", shown] in [[each.strip() for each in line] for line in lines]


@pytest.mark.parametrize("days", ["0", "1000001", "9" * 4300])
def test_the_days_of_a_task_are_bounded(
    keys: Path, days: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the product of a number that Python reads is too long for it to write."""
    assert makes("--vdaf", "count", "--days", days) == 2
    assert "--days must be at " in capsys.readouterr().err and not Path("made").exists()


def test_two_tasks_of_the_same_words_are_two(keys: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        words = ["--vdaf", "count", "--collector", "c.key.pub"]
        assert run(["dap", "task", name, *PARTIES, *words]) == 0
        ids.add(load_task(f"{name}/task.toml").id)
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vdaf", "count", "--size", "3"], "a count has one size"),
        (["--vdaf", "count", "--maximum", "3"], "--maximum is of sumvec alone"),
        (["--vdaf", "histogram"], "needs --size N or --candidates FILE"),
        (["--vdaf", "histogram", "--size", "3", "--candidates", "fruits.txt"], "one of them"),
        (["--vdaf", "histogram", "--size", "0"], "size must be at least 1"),
        (["--vdaf", "count", "--min-batch", "1"], "must be at least 2"),
        (["--vdaf", "count", "--precision", "0"], "precision must be at least 1"),
        (["--vdaf", "count", "--days", "0"], "days must be at least 1"),
        (["--vdaf", "count", "--leader", "l.example"], "leader must be an address"),
        (["--vdaf", "count", "--leader", "http://l.example/"], "is not of https"),
        (["--vdaf", "count", "--leader", "https://l:e:x/"], "is not of https"),
        (["--vdaf", "count", "--leader", "https://:443/"], "is not of https"),
        (["--vdaf", "count", "--helper", "https://l.example"], "must have two addresses"),
        (["--vdaf", "histogram", "--size", "4000000"], "a leader takes 16,777,216"),
        (["--vdaf", "histogram", "--size", "4000000000"], "a leader takes 16,777,216"),
        (["--vdaf", "count", "--collector", "s.key.pub"], "that of the collector is needed"),
    ],
)
def test_tasks_that_cannot_be(
    keys: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert makes(*words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not Path("made").exists()


def test_a_task_whose_folder_cannot_be_made(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("made").symlink_to("nowhere/at/all")
    Path(".made.new").write_text("in the way")
    assert makes("--vdaf", "count") == 2
    assert "name another place" in capsys.readouterr().err


def test_an_operator_can_compare_the_key_that_sums_go_to(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another key makes no other id: so the file alone does not show it."""
    makes("--vdaf", "count")
    place, task = Path("made/task.toml"), load_task("made/task.toml")
    other = replace(task, collector=LEADER_KEYS.configs.configs[0])
    place.write_text(other.to_toml())
    assert load_task(place).id == task.id
    capsys.readouterr()
    assert init("helper") == 0
    assert other.collector.key.hex() in "".join(capsys.readouterr().err.split())


def init(side: str, *words: str) -> int:
    files = ["--task", "made/task.toml", "--secret", "made/servers.secret", "--key", "s.key"]
    return run(["dap", side, "init", side, *files, "--mark", f"{side}.mark", *words])


def test_servers_are_made_and_print_their_conf(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert makes("--vdaf", "count") == 0
    assert init("leader", "--origin", "https://a.example", "--json") == 0
    capsys.readouterr()
    assert init("helper") == 0
    assert "fedtally dap helper run helper" in capsys.readouterr().err
    leader = DapFolder.open(Path("leader"), Role.LEADER)
    assert leader.settings.origins == ("https://a.example",)
    assert leader.settings.policy == DapPolicy(command.LEAST_BATCH) == DapPolicy(LEAST_BATCH)
    for side, most in (("leader", 16 << 20), ("helper", 64 << 20)):
        assert run(["dap", side, "nginx", side, "--socket", "s.sock"]) == 0
        conf = capsys.readouterr().out
        assert f"client_max_body_size {most};" in conf and "location = /hpke_config" in conf
        assert run(["dap", side, "nginx", side, "--socket", "s.sock", "-o", f"{side}.conf"]) == 0
        assert capsys.readouterr().out == "" and Path(f"{side}.conf").read_text() == conf
    assert run(["dap", "helper", "run", "leader", "--listen", "127.0.0.1:0"]) == 2
    assert "is the folder of the leader" in capsys.readouterr().err
    assert run(["dap", "leader", "run", "leader", "--listen", "0.0.0.0:80"]) == 2


def test_an_operator_adds_noise_that_a_ledger_pays(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        assert init("leader", *words) == 2
        return " ".join(capsys.readouterr().err.split())

    assert makes("--vdaf", "histogram", "--size", "4") == 0
    noise = ["--epsilon", "1", "--ledger", "books.db"]
    assert "--epsilon and --ledger go together" in said("--epsilon", "1")
    assert "--epsilon and --ledger go together" in said("--ledger", "books.db")
    assert "books.db" in said(*noise)  # there is none
    grant = ["ledger", "grant", "--ledger", "books.db", "--population", "visitors"]
    assert run([*grant, "--epsilon", "0.9", "--delta", "1e-6"]) == 0
    assert "population 'clients'" in said(*noise)
    noise += ["--population", "visitors"]
    assert "epsilon 0.9 was granted" in said(*noise)
    assert not Path("leader").exists()
    assert run([*grant, "--epsilon", "1", "--delta", "1e-6"]) == 0
    assert init("leader", *noise) == 0
    folder = DapFolder.open(Path("leader"), Role.LEADER)
    assert folder.settings.noise is not None
    assert folder.settings.noise.ledger == str(Path("books.db").absolute())
    server = folder.claim(clock=lambda: 7, random=secrets.token_bytes)
    assert server._noise is not None and server._noise.terms == folder.settings.noise.agreed
    settings = Path("leader/dap.toml")
    exact = settings.read_text().partition("[noise]")[0]
    settings.write_text(exact)
    with pytest.raises(InvalidInputError, match="begun with other noise"):
        DapFolder.open(Path("leader"), Role.LEADER).claim(
            clock=lambda: 7, random=secrets.token_bytes
        )


def test_noise_is_not_for_vectors(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert makes("--vdaf", "sumvec", "--size", "4") == 0
    assert init("helper", "--epsilon", "1", "--ledger", "books.db") == 2
    assert "noise is for a count and a histogram" in " ".join(capsys.readouterr().err.split())


def test_an_operator_refuses_small_batches(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert makes("--vdaf", "count", "--min-batch", "9") == 0
    assert init("leader") == 2
    assert "demands 10 or more" in " ".join(capsys.readouterr().err.split())
    assert init("leader", "--min-batch", "9") == 0


def test_a_path_before_the_resources(keys: Path) -> None:
    made = DapBackend("x", "leader", "abc", "/dap/x", Path("/s"), 9)
    assert "location = /dap/x/hpke_config {" in made.conf(Front())
    assert "location /dap/x/tasks/abc/ {" in made.conf(Front())


def test_what_lacks_is_named(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_NEEDS", ("no_such_library",))
    assert makes("--vdaf", "count") == MissingExtraError.exit_code


def test_no_token_goes_over_plain_http() -> None:
    with pytest.raises(InvalidInputError, match="is not of https"):
        DapAsking(httpx.AsyncClient(), "http://leader.example/", "task", "token")


def test_the_last_request_for_a_deferred_content_counts() -> None:
    """With one request allowed, the content that this request brings is returned."""
    place, kind = "https://helper.example/made", media_type(AggregationJobResp)
    asked: list[str] = []

    def answer(request: Any) -> Any:
        asked.append(request.method)
        if request.method == "POST":
            return httpx.Response(201, stream=httpx.ByteStream(b""), headers={"location": place})
        sent = httpx.ByteStream(b"content")
        return httpx.Response(200, stream=sent, headers={"content-type": kind})

    async def made(polls: int) -> tuple[bytes, str]:
        async def sleep(_: float) -> None: ...

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            asking = DapAsking(http, "https://helper.example/", "task", sleep=sleep, polls=polls)
            return await asking.make(
                "aggregation_jobs", b"", AggregationJobInitReq, AggregationJobResp
            )

    assert asyncio.run(made(1)) == (b"content", place)
    with pytest.raises(UnansweredError, match="no answer yet"):
        asyncio.run(made(0))
    assert asked == ["POST", "GET", "POST"]
