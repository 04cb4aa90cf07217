"""A client that reports to two servers: when it begins, what it sends to whom, how it ends."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

httpx = pytest.importorskip("httpx")

from fedtally.campaign.transports.https.join import Heard, Pause
from fedtally.campaign.transports.https.reporting import (
    FRESH_SECONDS,
    PATIENCE,
    Begin,
    Beginning,
    Never,
    Request,
    Sending,
    carried,
)
from fedtally.campaign.transports.https.resource import (
    FRAME_TYPE,
    PROBLEM_TYPE,
    STATE_TYPE,
    Release,
    release_path,
    state_of,
)
from fedtally.secagg.two_server import Report, Side
from fedtally.store import ClientRecord, Fate, StoreError

pytestmark = pytest.mark.usefixtures("no_sync")
NOW, HOUR = 1_800_000_000, 3600
SIDES: tuple[Side, Side] = ("helper", "leader")  # in the order of the protocol
REPORT = Report(leader=b"the leader's frame", helper=b"the helper's frame")
HELPER, LEADER = Request("helper", REPORT.helper), Request("leader", REPORT.leader)
ACCEPTED = Heard(201, STATE_TYPE)
URLS: dict[Side, str] = {side: f"https://{side}.example{release_path('ab', 3)}" for side in SIDES}


def state(server: Side, state: Release = Release.OPEN, ahead: float = 0.0) -> Heard:
    """Return how a server says that a release stands, whose clock is behind by `ahead`."""
    date = formatdate(NOW - ahead, usegmt=True)
    return Heard(200, STATE_TYPE, date=date, content=state_of(server, state))


def refusal(status: int) -> Heard:
    return Heard(status, PROBLEM_TYPE)


def beginning(told: list[str] | None = None, random: float = 0.0) -> Beginning:
    return Beginning(lambda: random, (told if told is not None else []).append)


@pytest.fixture
def record(tmp_path: Path) -> ClientRecord:
    return ClientRecord.open(tmp_path / "record.db", create=True)


def sending(record: ClientRecord, told: list[str] | None = None, random: float = 0.0) -> Sending:
    if not record.participations("plan-0"):
        record.take_part("clients", "plan-0", 0, None, NOW, report=REPORT)
    (report,) = record.outbox()
    return Sending(report, lambda: random, (told if told is not None else []).append)


# ---- before anything is spent ----


def test_a_client_begins_when_both_servers_are_open_and_their_clocks_fit() -> None:
    talk = beginning()
    for server in SIDES:
        assert talk.next(NOW) == Request(server)
        talk.heard(server, state(server), NOW)
    assert talk.next(NOW) == Begin()
    assert talk.next(NOW + FRESH_SECONDS) == Begin()
    assert talk.next(NOW + FRESH_SECONDS + 1) == Request("helper")  # it may have closed
    assert talk.next(NOW - 1) == Request("helper")  # a clock that was set says nothing


@pytest.mark.parametrize("server", SIDES)
@pytest.mark.parametrize("found", [Release.CLOSING, Release.CLOSED, None])
def test_nobody_begins_in_a_release_that_is_closing(server: Side, found: Release | None) -> None:
    talk = beginning()
    for one in SIDES:
        talk.heard(one, state(one), NOW)
    talk.heard(server, refusal(410) if found is None else state(server, found), NOW)
    end = talk.next(NOW)
    how = found or Release.CLOSED
    says = f"the release is {how} at the {server}: nobody begins a report; nothing was spent"
    assert end == Never(says)


@pytest.mark.parametrize("server", SIDES)
@pytest.mark.parametrize(
    ("ahead", "says"),
    [
        (HOUR, None),
        (-HOUR, None),
        (HOUR + 1, "3,601 seconds ahead of"),
        (-HOUR - 1, "3,601 seconds behind"),
    ],
)
def test_a_clock_that_servers_would_refuse_spends_nothing(
    server: Side, ahead: float, says: str | None
) -> None:
    talk = beginning()
    for one in SIDES:
        talk.heard(one, state(one, ahead=ahead if one == server else 0), NOW)
    end = talk.next(NOW)
    if says is None:
        assert end == Begin()
    else:
        assert isinstance(end, Never)
        assert end.why == (
            f"this clock is {says} the {server}'s: set it, and begin again; nothing was spent"
        )


NO_STATES = [
    Heard(200, "text/html", content=state_of("helper", Release.OPEN)),  # a portal
    Heard(200, STATE_TYPE, content=b'{"server": "helper", "state": "new"}'),
    Heard(200, STATE_TYPE, content=b"[" * 4096),
    Heard(200, STATE_TYPE, content=b"\xff"),
    Heard(200, STATE_TYPE),
    Heard(201, STATE_TYPE, content=state_of("helper", Release.OPEN)),
    Heard(410, "text/html"),
    *(Heard(status, PROBLEM_TYPE) for status in (302, 400, 403, 408, 409, 429, 500, 502, 503)),
]


@pytest.mark.parametrize("server", SIDES)
def test_the_other_server_at_an_address_ends_it(server: Side) -> None:
    """Nobody would come back to right addresses by waiting."""
    talk, other = beginning(), SIDES[server == "helper"]
    talk.heard(server, state(other), NOW)
    says = f"at the address of the {server} is the other server: exchange the two"
    assert talk.next(NOW) == Never(f"{says}; nothing was spent")


@pytest.mark.parametrize("found", NO_STATES)
def test_what_is_no_state_is_asked_again(found: Heard) -> None:
    talk = beginning()
    talk.heard("helper", found, NOW)
    assert talk.next(NOW) == Pause(0.5)
    assert talk.next(NOW) == Request("helper")


def test_a_server_that_does_not_say_the_time_is_asked_again() -> None:
    told: list[str] = []
    talk = beginning(told)
    for date in ("", "yesterday"):
        talk.heard("helper", state("helper")._replace(date=date), NOW)
        assert isinstance(talk.next(NOW), Pause)
        assert talk.next(NOW) == Request("helper")
    assert told == ["the helper does not say what time it is; asks again"]


def test_waits_double_up_to_ten_minutes_and_begin_anew_when_something_goes_right() -> None:
    told: list[str] = []
    for random, whole in ((0.0, 0.5), (1.0, 1.0)):
        talk, waits = beginning(told, random), []
        for _ in range(12):
            talk.failed("no network")
            waits.append(talk.next(NOW).seconds)  # type: ignore[union-attr]
        assert waits == [min(2**n, 600) * whole for n in range(12)]
        talk.heard("helper", state("helper"), NOW)
        assert talk.next(NOW) == Request("leader")
        talk.failed("no network")
        assert talk.next(NOW) == Pause(whole)
    assert told == ["no network; asks again"] * 4  # once until something goes right


def test_a_server_that_is_busy_says_when_to_come_back_and_nobody_comes_at_once() -> None:
    for random, seconds in ((0.0, 30.0), (1.0, 45.0)):
        talk = beginning(random=random)
        talk.heard("helper", Heard(503, PROBLEM_TYPE, retry_after="30"), NOW)
        assert talk.next(NOW) == Pause(seconds)


def test_a_server_that_knows_no_such_release_is_asked_hourly() -> None:
    told: list[str] = []
    talk = beginning(told, 1.0)
    for _ in range(3):
        talk.heard("helper", Heard(404, PROBLEM_TYPE), NOW)
        assert talk.next(NOW) == Pause(HOUR)
    assert told == ["the helper knows no such release, and is asked hourly"]


# ---- a report that is made ----


def test_the_leader_hears_of_a_report_when_the_helper_has_it(record: ClientRecord) -> None:
    talk = sending(record)
    assert talk.next(NOW) == HELPER
    talk.heard("helper", ACCEPTED, NOW)
    assert talk.next(NOW) == LEADER
    assert list(record.outbox()[0].frames) == ["leader"]
    assert sending(record).next(NOW) == LEADER  # a process that begins anew goes on from there
    talk.heard("leader", ACCEPTED, NOW)
    assert talk.next(NOW) is Fate.ACCEPTED is record.fate("plan-0", 0)


@pytest.mark.parametrize("server", SIDES)
@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "cannot read the report"),
        (403, "does not know this client"),
        (409, "has another report of this client"),
        (410, "takes no more reports"),
    ],
)
def test_a_refusal_ends_a_report_with_a_sentence(
    record: ClientRecord, server: Side, status: int, says: str
) -> None:
    told: list[str] = []
    talk = sending(record, told)
    if server == "leader":
        talk.heard("helper", ACCEPTED, NOW)
    talk.heard(server, refusal(status), NOW)
    assert talk.next(NOW) is Fate.NOT_COUNTED is record.fate("plan-0", 0)
    *before, sentence = told
    assert before == ["the helper has the report"] * (server == "leader")
    assert sentence.startswith(f"the {server} {says}")
    assert record.outbox() == []


def test_nothing_but_an_answer_of_its_type_ends_a_report(record: ClientRecord) -> None:
    """A proxy or a portal has statuses of its own, and pages with them."""
    told: list[str] = []
    talk = sending(record, told)
    for status in range(200, 600):
        for type in ("", "text/html", PROBLEM_TYPE, STATE_TYPE):
            ends = {STATE_TYPE: (201, 410), PROBLEM_TYPE: (400, 403, 409, 410)}
            if status in ends.get(type, ()):
                continue
            talk.heard("helper", Heard(status, type), NOW)
            pause = talk.next(NOW)
            assert isinstance(pause, Pause)
            assert pause.seconds == HOUR / 2 or status != 404
            assert talk.next(NOW) == HELPER
    assert "the helper gives no answer but HTTP 200, text/html; asks again" in told
    assert "the helper gives no answer but HTTP 502; asks again" in told
    assert sending(record).next(NOW) == HELPER


def test_after_a_week_no_server_takes_a_report_and_it_is_given_up(record: ClientRecord) -> None:
    told: list[str] = []
    talk = sending(record, told)
    talk.heard("helper", Heard(404), NOW)
    assert talk.next(NOW + PATIENCE - 60) == Pause(60)  # and no longer
    assert talk.next(NOW + PATIENCE - 1) == HELPER
    assert talk.next(NOW + PATIENCE) == HELPER  # once more
    talk.heard("helper", Heard(404), NOW + PATIENCE)
    assert talk.next(NOW + PATIENCE) is Fate.NOT_COUNTED
    assert told[1:] == ["the helper did not answer for 7 days"]


def test_a_leader_that_never_answers_leaves_it_open_whether_the_report_counts(
    record: ClientRecord,
) -> None:
    talk = sending(record)
    talk.heard("helper", ACCEPTED, NOW)
    talk.failed("no network")
    assert isinstance(talk.next(NOW + PATIENCE), Request)
    talk.failed("no network")
    assert talk.next(NOW + PATIENCE) is Fate.UNKNOWN is record.fate("plan-0", 0)


def test_a_clock_that_jumps_over_the_last_day_loses_no_report(record: ClientRecord) -> None:
    """To the servers it is not late. The leader has its last try too."""
    talk = sending(record)
    assert talk.next(NOW + 2 * PATIENCE) == HELPER
    talk.heard("helper", ACCEPTED, NOW)
    leader = talk.next(NOW + 2 * PATIENCE)
    assert isinstance(leader, Request) and leader.server == "leader"
    talk.heard("leader", ACCEPTED, NOW)
    assert talk.next(NOW + 2 * PATIENCE) is Fate.ACCEPTED is record.fate("plan-0", 0)


def test_without_its_record_a_client_sends_the_same_again(
    record: ClientRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's frame must not leave before it is on disk that the helper has its own."""
    talk = sending(record)
    marked = ClientRecord._marked

    def full(self: Any) -> Any:
        raise StoreError("the disk is full")

    monkeypatch.setattr(ClientRecord, "_marked", full)
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full"):
            talk.heard("helper", ACCEPTED, NOW)
        assert talk.next(NOW) == HELPER
    monkeypatch.setattr(ClientRecord, "_marked", marked)
    talk.heard("helper", ACCEPTED, NOW)
    assert talk.next(NOW) == LEADER


def test_a_late_answer_changes_nothing(record: ClientRecord) -> None:
    talk = sending(record)
    talk.heard("helper", ACCEPTED, NOW)
    for late in (ACCEPTED, refusal(410)):
        talk.heard("helper", late, NOW)
        assert talk.next(NOW) == LEADER
    talk.heard("leader", ACCEPTED, NOW)
    for server in SIDES:
        talk.heard(server, refusal(409), NOW)
    assert talk.next(NOW) is Fate.ACCEPTED


def test_frames_are_not_printed(record: ClientRecord) -> None:
    assert "frame" not in repr(sending(record))


# ---- whatever is lost, repeated or late ----


class Server:
    """A server of two: what it holds, and the requests that are still on their way to it."""

    def __init__(self, side: Side) -> None:
        self.side: Side = side
        self.state = Release.OPEN
        self.held: set[bytes] = set()
        self.came: set[bytes] = set()
        self.late: list[bytes | None] = []

    def take(self, frame: bytes | None, now: float) -> Heard:
        date = formatdate(now, usegmt=True)
        if frame is None:
            return Heard(200, STATE_TYPE, date=date, content=state_of(self.side, self.state))
        self.came.add(frame)
        if self.state is Release.CLOSED and frame not in self.held:
            return Heard(410, PROBLEM_TYPE, date=date)
        self.held.add(frame)
        return Heard(201, STATE_TYPE, date=date)


class Day:
    """A client, which may die, two servers and a network, which may do anything."""

    def __init__(self, place: Path) -> None:
        self.place, self.now = place, float(NOW)
        self.servers = {side: Server(side) for side in SIDES}
        self.made: list[Report] = []
        self.talk: Beginning | Sending | None = None
        self.record = ClientRecord.open(place, create=True)

    def carry(self, request: Request, way: str, answer: str) -> None:
        """Bring a request to its server, or not, and an answer back, or not."""
        server, talk, found = self.servers[request.server], self.talk, None
        assert talk is not None
        if way == "late":
            server.late.append(request.frame)
        for _ in range({"once": 1, "twice": 2}.get(way, 0)):
            found = server.take(request.frame, self.now)
        if answer.isdigit():  # of a proxy
            talk.heard(request.server, Heard(int(answer), "text/html"), self.now)
        elif answer == "its own" and found is not None:
            talk.heard(request.server, found, self.now)
        else:
            talk.failed("no network")

    def happen(self, what: str) -> None:
        """Let something happen besides."""
        if what == "die":
            self.talk, self.record = None, ClientRecord.open(self.place)
        elif what == "close":
            later = {Release.OPEN: Release.CLOSING}
            for side in ("leader", "helper"):  # the helper closes when it has answered
                server = self.servers[side]  # type: ignore[index]
                if server.state is not Release.CLOSED:
                    server.state = later.get(server.state, Release.CLOSED)
                    break
        elif what == "arrive":
            for server in self.servers.values():
                while server.late:
                    server.take(server.late.pop(), self.now)

    def make(self) -> None:
        """Make a report; the record refuses a second one."""
        number = len(self.made)
        self.made.append(Report(leader=b"leader %d" % number, helper=b"helper %d" % number))
        self.record.take_part("c", "plan-0", 0, None, int(self.now), report=self.made[-1])
        self.talk = None

    def step(self, way: str, answer: str) -> Never | Fate | None:
        """Take a step of the client; return how it ends, if it does."""
        if self.talk is None:
            unsent, fate = self.record.outbox(), self.record.fate("plan-0", 0)
            if fate is not None:
                return fate
            more = (lambda: 0.5), (lambda _: None)
            self.talk = Sending(unsent[0], *more) if unsent else Beginning(*more)
        step = self.talk.next(self.now)
        if isinstance(step, Pause):
            self.now += step.seconds
        elif isinstance(step, Request):
            self.carry(step, way, answer)
        elif isinstance(step, Begin):
            assert Release.OPEN in {server.state for server in self.servers.values()}
            self.make()
        else:
            return step
        return None


WAYS = ("lost", "once", "twice", "late", "lost", "once")
ANSWERS = ("201", "403", "none", "503", "404", "its own", "its own")
EVENTS = ("", "", "", "", "", "", "die", "arrive", "close")


@pytest.mark.promise
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_report_counts_once_at_most_and_the_record_says_what_became_of_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    day = Day(tmp_path_factory.mktemp("day") / "record.db")
    if data.draw(st.booleans()):
        day.make()
    event = st.tuples(*map(st.sampled_from, (WAYS, ANSWERS, EVENTS)))
    faults, end = data.draw(st.lists(event, min_size=6, max_size=24)), None
    for way, answer, what in [*faults, *[("once", "its own", "")] * 60]:
        end = day.step(way, answer)
        # the helper has it first
        assert len(day.servers["leader"].came) <= len(day.servers["helper"].held)
        if end is not None:
            break
        day.happen(what)
    day.happen("arrive")
    assert end is not None
    assert len(day.made) == (0 if isinstance(end, Never) else 1)
    for side, server in day.servers.items():
        assert server.came <= {getattr(report, side) for report in day.made}
    in_both = all(server.held for server in day.servers.values())
    if end is Fate.ACCEPTED:
        assert in_both
    elif end is Fate.NOT_COUNTED:
        assert not in_both
    else:
        assert isinstance(end, Never) and day.record.participations("plan-0") == []
    assert day.record.outbox() == []


# ---- the loop ----


def response(status: int, headers: dict[str, str], content: bytes = b"") -> Any:
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))


def run(
    talk: Beginning | Sending, answer: Callable[[Any], Any]
) -> tuple[Any, list[Any], list[float]]:
    """Carry what a client says to servers that a function answers for."""
    asked, slept = [], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    def heard(request: Any) -> Any:
        asked.append((request.method, str(request.url), request.content))
        found = answer(request)
        if isinstance(found, Exception):
            raise found
        return found

    async def carry() -> Any:
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(heard), follow_redirects=True
        ) as http:
            return await carried(http, URLS, talk, clock=lambda: float(NOW), sleep=sleep)

    return asyncio.run(carry()), asked, slept


def test_states_are_asked_of_both_servers() -> None:
    date = {"date": formatdate(NOW, usegmt=True), "content-type": f"{STATE_TYPE}; charset=utf-8"}

    def answer(request: Any) -> Any:
        side = request.url.host.partition(".")[0]
        return response(200, date, state_of(side, Release.OPEN))

    end, asked, slept = run(beginning(), answer)
    assert (end, slept) == (Begin(), [])
    assert asked == [
        ("GET", f"https://{side}.example/v1/plans/ab/releases/3", b"") for side in SIDES
    ]


def test_frames_are_put_to_their_servers_and_redirects_lead_nowhere(record: ClientRecord) -> None:
    accepted = {"content-type": STATE_TYPE}
    answers = iter(
        [
            httpx.ConnectError("no route"),
            response(307, {"location": "https://elsewhere.example/reports"}),
            response(201, {"content-type": "text/html"}, b"a page"),
            response(200, accepted, bytes(1 << 20)),  # longer than a state
            response(201, accepted),
            response(201, accepted),
        ]
    )
    told: list[str] = []

    def answer(request: Any) -> Any:
        assert request.headers["content-type"] == FRAME_TYPE
        return next(answers)

    end, asked, slept = run(sending(record, told), answer)
    assert end is Fate.ACCEPTED
    to_helper = ("PUT", "https://helper.example/v1/plans/ab/releases/3/reports", REPORT.helper)
    to_leader = ("PUT", "https://leader.example/v1/plans/ab/releases/3/reports", REPORT.leader)
    assert asked == [to_helper] * 5 + [to_leader]
    assert slept == [0.5, 1, 2, 4]
    assert told[0] == "the helper cannot be reached (no route); asks again"
