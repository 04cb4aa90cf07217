"""`fedtally agent report` as an owner uses it, against two small servers on this machine."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

from agents import session_of
from campaign_world import PEOPLE, plan_of
from report_servers import KEYS, POLICY, Says, Stub, serving
from secagg_cohort import stream

import fedtally
from fedtally.agent.agent import Agent
from fedtally.agent.reporter import Reporter, release_to_report
from fedtally.agent.settings import FILE, Settings
from fedtally.campaign import transports
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.key_files import load_client_key
from fedtally.campaign.transports.https.resource import PROBLEM_TYPE, STATE_TYPE, Release
from fedtally.cli.app import run
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.calendar import Calendar
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.two_server import Side
from fedtally.store import ClientRecord, Fate, StoreError

pytestmark = pytest.mark.usefixtures("no_sync")
DOMAIN, WIDTH = IntegerRange(1, 50), 16
SIDES: tuple[Side, Side] = ("helper", "leader")  # in the order of the protocol
OTHERS = PEOPLE[:3]
DAY = 86_400


def two_server_plan(rounds: int = 1, epsilon: float | None = None, **changed: Any) -> Plan:
    """Return a plan without keys that two servers sum, of 3 to 8 clients."""
    if epsilon is not None:
        held = [1 + i % 50 for i in range(8)]
        options: dict[str, Any] = {"secure_sum": "two-server", "domain": "range:1..50"}
        made = fedtally.estimate(held, epsilon=epsilon, delta=1e-6, **options).plan
        terms = dataclasses.replace(made.secure_sum, min_batch=4, corrupt=1)  # type: ignore[type-var]
        return dataclasses.replace(made, secure_sum=terms).without_keys()
    given: dict[str, Any] = {"length": 2 * WIDTH, "bits": 16, "n_max": 8, "min_batch": 4}
    terms = TwoServerConfig(corrupt=1, validity="proofs", **given)
    values: dict[str, Any] = {
        "rows": 2,
        "width": WIDTH,
        "schedule": "shared",
        "num_rounds": rounds,
        "num_clients": 8 * rounds,
        "max_round_clients": 8,
        "max_items": 1,
        "domain": DOMAIN.describe(),
        "seed": bytes(32),
        "secure_sum": terms,
    }
    return Plan(**(values | changed))


class Owner:
    """An owner, who runs commands, and the others of the list, who report at once.

    Attributes:
        err: what the last command said, on one line.
    """

    def __init__(self, place: Path, capsys: Any) -> None:
        self.place, self.capsys, self.folder = place, capsys, place / "agent"
        assert self.run("init", str(self.folder)) == 0
        identity = load_client_key(self.folder / "key" / "agent.key").public
        self.listed = AllowList(sorted([identity, *(one.public for one in OTHERS)]))
        save_allow_list(place / "list", self.listed)
        self.settle()

    def settle(self, epsilon: str = '"none"', item: str = "7", **changed: str) -> None:
        """Fill in agent.toml."""
        (self.folder / "items" / "items.txt").write_text(f"{item}\n")
        given = {"epsilon": epsilon, "min_honest": "3"} | changed
        if epsilon != '"none"':
            given["delta"] = "1e-5"
        (self.folder / FILE).write_text(
            '[items]\nfile = "items/items.txt"\nonce = "2026-11"\n[policy]\n'
            + "\n".join(f"{name} = {value}" for name, value in given.items())
        )
        (self.folder / FILE).chmod(0o600)

    def run(self, *words: str) -> int:
        code = run(["agent", *words])
        self.out, err = self.capsys.readouterr()
        self.err = " ".join(err.split())
        return code

    def publish(self, plan: Plan, listed: AllowList | None = None) -> Plan:
        keys = {f"{side}_key": key.public for side, key in KEYS.items()}
        plan = plan.with_keys(**keys, allow_list=(listed or self.listed).digest)
        plan.save(self.place / f"{plan.fingerprint}.toml")
        return plan

    def on_plan(self, command: str, plan: Plan, *more: str) -> int:
        """Accept a plan, or check it."""
        file = str(self.place / f"{plan.fingerprint}.toml")
        words = ["--plan", file] if command == "check" else [file, "--yes"]
        given = ["--allow-list", str(self.place / "list"), "--agent", str(self.folder)]
        return self.run(command, *words, *given, *more)

    def accept(self, plan: Plan) -> Plan:
        plan = self.publish(plan)
        assert self.on_plan("accept", plan) == 0, self.err
        return plan

    def report(self, *more: str, stubs: dict[Side, Stub] | None = None) -> int:
        urls = {side: f"http://127.0.0.1:9/{side}" for side in SIDES}
        if stubs is not None:
            urls = {side: stub.url for side, stub in stubs.items()}
        where = ["--leader", urls["leader"], "--helper", urls["helper"]]
        return self.run("report", *where, "--agent", str(self.folder), *more)

    @property
    def record(self) -> ClientRecord:
        return ClientRecord.open(self.folder / "record" / "record.db")

    def left(self) -> list[list[str]]:
        """Return the servers that each report is still to be sent to."""
        return [sorted(one.frames) for one in self.record.outbox()]

    def is_untouched(self) -> bool:
        """Tell whether nothing was spent."""
        return self.record.parts() == [] and self.left() == []


@pytest.fixture
def owner(tmp_path: Path, capsys: Any) -> Owner:
    return Owner(tmp_path, capsys)


@pytest.fixture
def plan(owner: Owner) -> Plan:
    return owner.accept(two_server_plan())


@pytest.fixture
def stubs(owner: Owner, plan: Plan) -> Iterator[dict[Side, Stub]]:
    with serving(plan, owner.listed) as stubs:
        yield stubs


def total_with_others(plan: Plan, stubs: dict[Side, Stub]) -> Any:
    """Let the others report their items 1, 2, 3, and open the batch; return counters."""
    now = int(time.time())
    helper, leader = stubs["helper"].server, stubs["leader"].server
    for i, identity in enumerate(OTHERS):
        report = FrequencyClient(plan, DOMAIN, [1 + i]).report(
            0, POLICY, now=now, journal=MemoryJournal(), identity=identity, random=stream(i)
        )
        helper.receive(report.helper, now), leader.receive(report.leader, now)
    for frame in helper.checks():
        leader.judge(frame)
    leader.stop()
    return leader.finish(helper.answer(leader.query(helper.offer())))


# ---- a report ----


def test_an_owner_reports_and_the_sum_is_the_plain_one(
    owner: Owner, plan: Plan, stubs: dict[Side, Stub]
) -> None:
    assert owner.report(stubs=stubs) == 0
    assert owner.err == (
        "the report is made, and its items are spent the helper has the report the leader has the"
        " report release 0: both servers accepted the report"
    )
    assert [one.asked for one in stubs.values()] == [["GET", "PUT"]] * 2
    plain = sum(FrequencyClient(plan, DOMAIN, [item]).contribution(0) for item in (1, 2, 3, 7))
    assert (total_with_others(plan, stubs) == plain).all()
    # again: the record knows it, and asks nobody
    assert owner.report() == 0
    assert owner.err == "release 0: both servers accepted the report"
    assert [part.round for part in owner.record.parts()] == [0]


def test_accepting_shows_what_two_servers_are_and_show_lists_the_part(
    owner: Owner, plan: Plan, stubs: dict[Side, Stub]
) -> None:
    assert owner.on_plan("accept", plan) == 0
    shown = " ".join(owner.out.split())
    assert (
        "two, which must not work together; each may lie, with up to 1 of all 4 listed clients"
        in shown
    )
    assert "Leader key" in shown and "by two servers, over 4 to 8 clients" in shown
    assert "strangers" not in shown
    assert owner.report(stubs=stubs) == 0
    assert owner.run("show", "--agent", str(owner.folder)) == 0
    assert plan.fingerprint[:16] in owner.out.split("took part")[1]


@pytest.mark.parametrize("away", SIDES)
def test_what_one_server_does_not_take_is_sent_on_and_never_made_again(
    owner: Owner, stubs: dict[Side, Stub], away: Side
) -> None:
    stubs[away].says["PUT"] = Says(503)
    assert owner.report("--once", stubs=stubs) == 1
    left = SIDES[SIDES.index(away) :]
    words = " and ".join(f"the {side}" for side in sorted(left))
    assert f"still to be sent to {words}: run the same command again" in owner.err
    assert "asks again" not in owner.err
    assert owner.left() == [sorted(left)]
    del stubs[away].says["PUT"]
    assert owner.report(stubs=stubs) == 0
    assert f"goes on: the report is still to be sent to {words}" in owner.err
    for stub in stubs.values():
        assert len(stub.came) == 1 and len(stub.server) == 1
    assert stubs["leader"].asked.count("GET") == 1  # a report that is made asks for no state
    assert owner.left() == [] and owner.record.fate(*_part(owner)) is Fate.ACCEPTED


def _part(owner: Owner) -> tuple[str, int]:
    [part] = owner.record.parts()
    return part.plan, part.round


def test_days_later_the_same_report_is_sent_whatever_the_items_are(
    owner: Owner, stubs: dict[Side, Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs["helper"].says["PUT"] = Says(502, "text/html")
    assert owner.report("--once", stubs=stubs) == 1
    stubs["helper"].says.clear()
    (owner.folder / "items" / "items.txt").write_text("8\n")
    later = time.time() + 6 * DAY
    monkeypatch.setattr(time, "time", lambda: later)
    assert owner.report(stubs=stubs) == 0, owner.err


# ---- nothing is spent before both servers take reports ----


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("state", [Release.CLOSING, Release.CLOSED])
def test_nobody_begins_in_a_release_that_closes(
    owner: Owner, stubs: dict[Side, Stub], side: Side, state: Release
) -> None:
    stubs[side].state = state
    assert owner.report(stubs=stubs) == 2
    assert f"the release is {state} at the {side}" in owner.err
    assert "nothing was spent" in owner.err and owner.is_untouched()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("ahead", [-4000, 4000])
def test_a_clock_that_is_off_spends_nothing(
    owner: Owner, stubs: dict[Side, Stub], side: Side, ahead: int
) -> None:
    stubs[side].ahead = ahead
    assert owner.report(stubs=stubs) == 2
    assert re.search(rf"this clock is [34],\d+ seconds .* the {side}'s: set it", owner.err)
    assert "nothing was spent" in owner.err and owner.is_untouched()


def test_addresses_that_are_exchanged_are_named(owner: Owner, stubs: dict[Side, Stub]) -> None:
    other: dict[Side, Stub] = {"leader": stubs["helper"], "helper": stubs["leader"]}
    assert owner.report(stubs=other) == 2
    assert "at the address of the helper is the other server: exchange the two" in owner.err
    assert owner.is_untouched()


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (Says(404), "the helper knows no such release"),
        (Says(503), "the helper gives no answer but HTTP 503"),
        (Says(200, "text/html", b"a portal"), "no answer but HTTP 200, text/html"),
        (Says(200, STATE_TYPE, b"{}"), "no answer but HTTP 200"),
    ],
)
def test_once_is_one_try(owner: Owner, stubs: dict[Side, Stub], says: Says, words: str) -> None:
    stubs["helper"].says["GET"] = says
    assert owner.report("--once", stubs=stubs) == 1
    assert words in owner.err and "hourly" not in owner.err and "asks again" not in owner.err
    assert "nothing was spent: run the same command again" in owner.err
    assert stubs["helper"].asked == ["GET"] and owner.is_untouched()


def test_a_server_that_is_away_is_asked_until_it_is_there(
    owner: Owner, stubs: dict[Side, Stub]
) -> None:
    stubs["leader"].says["GET"] = Says(502, "text/html")
    threading.Timer(0.7, stubs["leader"].says.clear).start()
    assert owner.report("--wait", stubs=stubs) == 0
    assert "the leader gives no answer but HTTP 502, text/html; asks again" in owner.err


# ---- refusals of the servers ----


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("status", [400, 403, 409, 410])
def test_a_refusal_is_said_and_kept(
    owner: Owner, stubs: dict[Side, Stub], side: Side, status: int
) -> None:
    stubs[side].says["PUT"] = Says(status, PROBLEM_TYPE)
    assert owner.report(stubs=stubs) == 2
    end = f"release 0: {Fate.NOT_COUNTED.value}"
    assert f"the {side} " in owner.err and end in owner.err
    assert owner.left() == []
    stubs[side].says.clear()
    before = {one.side: list(one.asked) for one in stubs.values()}
    assert owner.report(stubs=stubs) == 2  # and never again
    assert end in owner.err and before == {one.side: one.asked for one in stubs.values()}


def test_after_a_week_nobody_is_asked_any_more(
    owner: Owner, stubs: dict[Side, Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    stubs["leader"].says["PUT"] = Says(503)
    assert owner.report("--once", stubs=stubs) == 1
    later = time.time() + 7 * DAY
    monkeypatch.setattr(time, "time", lambda: later)
    assert owner.report(stubs=stubs) == 2
    assert "the leader did not answer for 7 days" in owner.err and Fate.UNKNOWN.value in owner.err


# ---- what is meant ----


@pytest.mark.parametrize(
    "url",
    [
        "http://leader.example.org",
        "ftp://leader.example.org",
        "leader.example.org",
        "https://",
        "https://[::1",
        "https://host:port",
        "https://user:secret@leader.example.org",
        "https://leader.example.org/v1/plans/ab/releases/0",
        "https://leader.example.org/?release=0",
        "https://leader.example.org/#0",
        "https://leader.example.org//",
    ],
)
@pytest.mark.parametrize("side", SIDES)
def test_an_address_that_is_none(owner: Owner, plan: Plan, side: Side, url: str) -> None:
    given = {one: f"https://{one}.example.org" for one in SIDES} | {side: url}
    words = ["--leader", given["leader"], "--helper", given["helper"]]
    assert owner.run("report", *words, "--agent", str(owner.folder)) == 2
    assert f"is no address of a {side}" in owner.err and owner.is_untouched()


def test_two_servers_have_two_addresses_and_certificates_that_can_be_read(
    owner: Owner, plan: Plan
) -> None:
    words = ["--leader", "https://a.example/", "--helper", "https://a.example"]
    assert owner.run("report", *words, "--agent", str(owner.folder)) == 2
    assert "is given for both servers" in owner.err
    assert owner.report("--ca", str(owner.place / "none.pem")) == 2
    assert "none.pem" in owner.err and owner.is_untouched()


def test_which_plan_and_which_release_are_meant(owner: Owner) -> None:
    assert owner.report() == 2
    assert "no plan of two servers was accepted" in owner.err
    one = owner.accept(two_server_plan(rounds=3))
    for words, says in (
        ([], "the plan has 3 releases: name the one of this report with --release, 0 to 2"),
        (["--release", "3"], "--release must be at most 2, got 3"),
        (["--release", "-1"], "--release must be at least 0, got -1"),
        (["--fingerprint", 64 * "a"], "no accepted plan of two servers has the fingerprint aaa"),
    ):
        assert owner.report(*words) == 2
        assert says in owner.err
    other = owner.accept(two_server_plan())
    assert owner.report() == 2
    for plan in (one, other):
        assert plan.fingerprint in owner.err
    assert owner.is_untouched()
    with serving(one, owner.listed, release=1) as stubs:
        words = ["--fingerprint", one.fingerprint, "--release", "1"]
        assert owner.report(*words, stubs=stubs) == 0, owner.err
    assert [part.round for part in owner.record.parts()] == [1]
    # the label of the items was let out once, whatever the plan
    assert owner.report("--fingerprint", other.fingerprint) == 2
    assert "2026-11" not in owner.err and len(owner.record.parts()) == 1


def test_a_plan_of_sessions_is_no_plan_of_reports(owner: Owner) -> None:
    plan = plan_of("semi-honest")
    plan.save(owner.place / "cohorts.toml")
    owner.settle(adversary='"semi-honest"')
    file = str(owner.place / "cohorts.toml")
    assert owner.run("accept", file, "--yes", "--agent", str(owner.folder)) == 0, owner.err
    assert owner.report() == 2
    assert "no plan of two servers was accepted" in owner.err


# ---- what the owner demands ----


@pytest.mark.parametrize(
    ("demands", "says"),
    [
        ({"min_honest": "4"}, "min_batch - corrupt must be at least 4 .* (min_honest), got 3"),
        ({"corrupt": "2"}, "corrupt must be at least 2 .* (corrupt), got 1"),
        ({"min_clients": "5"}, "min_batch must be at least 5 .* (min_clients), got 4"),
        ({"max_length": "31"}, "length must be at most 31 .* (max_length), got 32"),
        (
            {"known": f'["{OTHERS[0].public.hex()}"]', "least_known": "1"},
            "(least_known), and two servers show nobody who is",
        ),
        ({"epsilon": "1.0"}, "(epsilon) demands differential privacy"),
        ({"domains": '["grid"]'}, "(domains), got range:1..50"),
    ],
)
def test_a_demand_that_the_plan_does_not_meet(
    owner: Owner, stubs: dict[Side, Stub], plan: Plan, demands: dict[str, str], says: str
) -> None:
    owner.settle(**demands)
    assert owner.on_plan("check", plan) == 2
    for part in says.split(" .* "):
        assert part in owner.err
    assert owner.on_plan("accept", plan) == 2
    assert owner.report(stubs=stubs) == 2  # it was accepted under other demands
    for part in says.split(" .* "):
        assert part in owner.err
    assert owner.is_untouched()
    assert [one.asked for one in stubs.values()] == [[], []]


def test_larger_batches_than_cohorts_are_taken(owner: Owner, plan: Plan) -> None:
    owner.settle(max_clients="3")
    assert owner.on_plan("check", plan) == 0, owner.err


def test_a_client_that_is_not_listed_a_plan_that_is_over(
    owner: Owner, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.time() + 91 * DAY
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: later)
        assert owner.report() == 2
        assert "the plan is over: its last day was" in owner.err
    listed = AllowList(sorted(one.public for one in PEOPLE[:4]))
    other = owner.publish(two_server_plan(), listed)
    save_allow_list(owner.place / "list", listed)
    assert owner.on_plan("check", other) == 2
    assert "this client's key is not in the allow-list" in owner.err
    assert owner.is_untouched()


@pytest.mark.parametrize("item", [None, "none such"])
def test_without_epsilon_a_client_without_items_stays_away(
    owner: Owner, stubs: dict[Side, Stub], item: str | None
) -> None:
    if item is None:
        (owner.folder / "items" / "items.txt").unlink()
    else:
        owner.settle(item=item)
    assert owner.report(stubs=stubs) == 2
    assert "items" in owner.err and owner.is_untouched()
    assert [one.asked for one in stubs.values()] == [[], []]


def test_with_epsilon_zeros_stand_for_items_that_cannot_be_read(owner: Owner) -> None:
    owner.settle(epsilon="100.0")
    plan = owner.accept(two_server_plan(epsilon=8.0))
    settings = (owner.folder / FILE).read_text()
    (owner.folder / FILE).write_text(
        settings.replace("file =", 'query = "SELECT item FROM visits"\nsqlite =')
    )
    with serving(plan, owner.listed) as stubs:
        assert owner.report(stubs=stubs) == 0, owner.err
        assert "reports zeros, as if it held no item" in owner.err
        assert [len(one.server) for one in stubs.values()] == [1, 1]
    assert owner.record.capped() is not None  # the owner's cap counts over everything


# ---- whatever breaks ----


def test_a_record_that_fails_ends_the_command_and_the_next_one_goes_on(
    owner: Owner, stubs: dict[Side, Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    marked, calls = ClientRecord._marked, 0

    def full(self: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:  # the report is made, and then the disk is full
            raise StoreError("the disk is full")
        return marked(self)

    with monkeypatch.context() as patch:
        patch.setattr(ClientRecord, "_marked", full)
        assert owner.report(stubs=stubs) == 1
    assert "the disk is full" in owner.err
    assert stubs["leader"].came == [] and owner.left() == [["helper", "leader"]]
    assert owner.report(stubs=stubs) == 0
    assert len(set(stubs["helper"].came)) == 1 and len(stubs["leader"].came) == 1


@pytest.mark.parametrize(("method", "left"), [("GET", []), ("PUT", [["helper", "leader"]])])
def test_a_client_that_is_told_to_end_says_what_is_left(
    owner: Owner, stubs: dict[Side, Stub], method: str, left: list[list[str]]
) -> None:
    stubs["helper"].says[method] = Says(503)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert owner.report(stubs=stubs) == 0
    words = "the report is in the record, still" if left else "nothing was spent"
    assert f"stopped: {words}" in owner.err
    assert owner.left() == left
    stubs["helper"].says.clear()
    assert owner.report(stubs=stubs) == 0


def test_of_two_commands_at_once_one_makes_the_report(owner: Owner, plan: Plan) -> None:
    made = [reporter(owner, plan) for _ in range(2)]
    now = time.time()
    for one in made:
        assert list(one.refusals(now)) == []
        one.read()
    report = made[0].make(now)
    with pytest.raises(InvalidInputError, match="took part in release 0 of the plan; nothing was"):
        made[1].make(now)
    assert made[1].unsent == report and "frame" not in repr(made[1].unsent)


def reporter(owner: Owner, plan: Plan, **changed: Any) -> Reporter:
    settings = Settings.load(owner.folder)
    [campaign] = settings.accepted().values()
    given: dict[str, Any] = {
        "policy": settings.policy,
        "items": settings.items,
        "campaign": campaign,
        "release": 0,
        "record": settings.open_record(),
        "identity": settings.identity(),
        "random": secrets.token_bytes,
        "now": time.time(),
        "tell": print,
        "once": settings.once,
    }
    return Reporter(**(given | changed))


def test_another_cap_in_the_record_stops_a_report(owner: Owner) -> None:
    owner.settle(epsilon="100.0")
    plan = owner.accept(two_server_plan(epsilon=8.0))
    one = reporter(owner, plan)
    one.read()
    owner.record.cap(50.0, 1e-5, int(time.time()))
    with pytest.raises(InvalidInputError, match="the record has a cap of epsilon 50 by now"):
        one.make(time.time())
    assert owner.is_untouched()


def test_a_release_of_several_rounds_takes_one_report(owner: Owner) -> None:
    """Under noise of the servers the rounds of one schedule are one release."""
    owner.settle(epsilon="100.0")
    plan = two_server_plan(epsilon=8.0)
    plan = owner.accept(dataclasses.replace(plan, num_rounds=4, num_clients=32))
    assert [list(rounds) for rounds in plan.releases] == [[0, 1, 2, 3]]
    one = reporter(owner, plan, random=stream("rounds"))
    assert {one._drawn_round() for _ in range(40)} == {0, 1, 2, 3}
    one.read()
    assert one.make(time.time()).round in plan.releases[0]
    assert next(one.refusals(time.time())) == "this client took part in release 0 of the plan"


def test_no_session_of_a_plan_of_two_servers_is_joined(owner: Owner, plan: Plan) -> None:
    settings, notes = Settings.load(owner.folder), list[Any]()
    guard: Agent = settings.agent(random=secrets.token_bytes, now=time.time(), log=notes.append)
    invite = session_of(plan_of("semi-honest"), fingerprint=bytes.fromhex(plan.fingerprint)).invite
    assert guard.answer(invite, time.time()) is None
    assert "or has no sessions" in str(notes[-1])
    assert guard.most_bytes == 4096


def test_without_httpx_the_extra_is_named(
    owner: Owner, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    # also of its package, which would keep the modules that are imported anew
    monkeypatch.setattr(transports, "https", transports.https)
    for name in [
        one for one in sys.modules if one.startswith("fedtally.campaign.transports.https")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert owner.report() == 2
    assert "agent report needs httpx: pip install httpx" in owner.err


def test_a_release_of_a_calendar_is_reported_to_in_its_period_alone(owner: Owner) -> None:
    """A part of another day would count for a day that its items are not of."""
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    calendar = Calendar(start - timedelta(days=1), timedelta(days=1), 3)
    plan = two_server_plan(3, schedule="hybrid", calendar=calendar)
    plan = owner.accept(plan)
    for release, day in ((0, -1), (2, 1)):
        [why] = reporter(owner, plan, release=release).refusals(start.timestamp() + 43_200)
        assert why.startswith(
            f"round {release} is open from {start + timedelta(days=day):%Y-%m-%d}"
        )
    assert list(reporter(owner, plan, release=1).refusals(start.timestamp() + 43_200)) == []


def test_without_a_number_a_calendar_chooses_the_release_that_is_open(owner: Owner) -> None:
    """A timer that runs each day names no release."""
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [Calendar(start + timedelta(days=day), timedelta(days=1), 3) for day in (-1, 1)]
    today, later = (two_server_plan(3, schedule="hybrid", calendar=each) for each in days)
    noon = start.timestamp() + 43_200
    assert [release_to_report(today, None, noon + day * DAY) for day in (-1, 0, 1)] == [0, 1, 2]
    assert release_to_report(today, 2, noon) == 2
    for plan, when in ((later, noon), (today, noon + 2 * DAY)):
        with pytest.raises(InvalidInputError, match="none of the plan's 3 releases is open now"):
            release_to_report(plan, None, when)
    today = owner.accept(today)
    with serving(today, owner.listed, release=1) as stubs:
        assert owner.report(stubs=stubs) == 0, owner.err
    assert [part.round for part in owner.record.parts()] == [1]


def test_a_report_of_another_plan_that_is_still_to_be_sent_is_named(
    owner: Owner, plan: Plan, stubs: dict[Side, Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a plan is over, a command without --fingerprint means the plan that replaced it."""
    assert owner.on_plan("accept", plan, "--until", f"{datetime.now(UTC):%Y-%m-%d}") == 0
    owner.accept(two_server_plan(seed=bytes([1] * 32)))
    named = ["--fingerprint", plan.fingerprint, "--release", "0"]
    stubs["leader"].says["PUT"] = Says(503)
    assert owner.report("--once", *named, stubs=stubs) == 1
    assert "note: " not in owner.err and owner.left() == [["leader"]]
    later = time.time() + 2 * DAY
    monkeypatch.setattr(time, "time", lambda: later)
    note = f"note: a report is still to be sent to the leader: {' '.join(named)} sends it on"
    assert owner.report() == 2  # its items are spent: they have a label
    assert note in owner.err and "goes on" not in owner.err
    del stubs["leader"].says["PUT"]
    assert owner.report(*named, stubs=stubs) == 0, owner.err
    assert "note: " not in owner.err and owner.left() == []
    assert owner.report() == 2 and "note: " not in owner.err


def test_a_report_of_a_plan_that_was_deleted_is_not_named(
    owner: Owner, plan: Plan, stubs: dict[Side, Stub]
) -> None:
    """It cannot be sent: no command would do it."""
    owner.accept(two_server_plan(seed=bytes([1] * 32)))
    stubs["leader"].says["PUT"] = Says(503)
    assert owner.report("--once", "--fingerprint", plan.fingerprint, stubs=stubs) == 1
    shutil.rmtree(owner.folder / "campaigns" / plan.fingerprint)
    assert owner.report() == 2 and "still to be sent" not in owner.err
