"""`fedtally agent` as its owner uses it: the commands, and the process itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agents import said, session_of
from campaign_world import PEOPLE, SERVER_KEY, N, plan_of
from secagg_cohort import stream

from fedtally.agent.serve import MOST_CONNECTIONS
from fedtally.agent.settings import FILE
from fedtally.campaign.enrolment import Authority, save_allow_list, save_signature, sign_plan
from fedtally.campaign.key_files import load_client_key
from fedtally.cli.agent_view import _state
from fedtally.cli.app import run
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Dictionary
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.calendar import Calendar
from fedtally.privacy.budget import Cap
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import AbortCode, Kind
from fedtally.store import ClientRecord

REGISTRAR = SigningKey(Secret(stream("registrar")(32)))
MAIN = "import sys; from fedtally.cli import main; sys.exit(main())"
if "light" in sys.modules:  # pytest -p light: then also where the agent is a process
    MAIN = f"import light; {MAIN}"


class Owner:
    """The owner of an agent, its folder, and the files that the registrar gave out."""

    def __init__(self, place: Path, capsys: Any) -> None:
        self.place, self.capsys = place, capsys
        self.folder, self.number = place / "agent", 0
        assert self.run("init", str(self.folder)) == 0
        identity = load_client_key(self.folder / "key" / "agent.key").public
        self.listed = AllowList(sorted([identity, *(one.public for one in PEOPLE[: N - 1])]))
        self.plan = self.publish("plan", plan_of("active", "distributed", rounds=3))
        self.write()

    def write(self, **changed: str) -> None:
        given = {
            "registrar": f'"{REGISTRAR.public.hex()}"',
            "epsilon": "9.0",
            "delta": "1e-6",
            "min_honest": "4",
        } | changed
        (self.folder / "items.txt").write_text("7\n")
        (self.folder / FILE).write_text(
            "\n".join(
                [
                    f"registrar = {given.pop('registrar')}",
                    '[items]\nfile = "items.txt"',
                    "[policy]",
                    *(f"{name} = {value}" for name, value in given.items()),
                ]
            )
        )

    def publish(self, name: str, plan: Plan) -> Plan:
        plan = plan.without_keys().with_keys(
            server_key=SERVER_KEY.public, allow_list=self.listed.digest
        )
        plan.save(self.place / f"{name}.toml")
        save_allow_list(self.place / "list", self.listed)
        self.number += 1
        authority = Authority("a study", self.number, date(2100, 1, 31))
        save_signature(self.place / f"{name}.sig", sign_plan(REGISTRAR, plan, authority))
        return plan

    def files(self, name: str = "plan") -> list[str]:
        allow_list, signature = self.place / "list", self.place / f"{name}.sig"
        return ["--allow-list", str(allow_list), "--signature", str(signature)]

    def run(self, command: str, *arguments: str) -> int:
        where = [] if command == "init" else ["--agent", str(self.folder)]
        code = run(["agent", command, *arguments, *where])
        captured = self.capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return code

    def accept(self, name: str = "plan") -> int:
        return self.run("accept", str(self.place / f"{name}.toml"), "--yes", *self.files(name))

    def invite(self, label: object = 0, round: int = 0) -> bytes:
        now = int(time.time())
        return session_of(
            self.plan,
            (label, time.time_ns()),
            round=round,
            not_before=now - 10,
            not_after=now + 600,
            allow_list=self.listed,
        ).invite


@pytest.fixture
def owner(tmp_path: Path, capsys: Any) -> Owner:
    return Owner(tmp_path, capsys)


# ---- init, check, accept, show ----


def test_from_an_empty_folder_to_an_accepted_plan(owner: Owner) -> None:
    identity = load_client_key(owner.folder / "key" / "agent.key").public
    assert owner.run("check") == 0
    assert "plans that are taken: none yet" in owner.err
    assert owner.run("check", "--plan", str(owner.place / "plan.toml"), *owner.files()) == 0
    assert owner.accept() == 0
    for words in (
        f"Plan {owner.plan.fingerprint[:16]}",
        f"Fingerprint  {owner.plan.fingerprint}",
        f"by the registrar, with the key\n             {REGISTRAR.public.hex()}",
        f"Server key   {SERVER_KEY.public.hex()}",
        "may lie, with up to 1 of all 8 listed clients",
        "up to 1 item out of 50 candidates (range), in 1 of 3 rounds",
        "Candidates   range:1..50\n",
        "over 5 to 8 clients, 4 honest ones at least",
        "epsilon 8, delta 1e-06",
        "8 are listed, 0 of them known to you",
    ):
        assert words in owner.out
    assert f"accepted {owner.plan.fingerprint}" in owner.err
    assert owner.run("check") == 0 and owner.plan.fingerprint[:16] in owner.err
    assert owner.run("show") == 0
    assert identity.hex() in owner.out and "epsilon 9 at delta 1e-06" in owner.out
    assert owner.run("show", "--json") == 0
    shown = json.loads(owner.out)
    assert shown["accepted"] == [owner.plan.fingerprint]
    assert shown["identity"] == identity.hex() and shown["parts"] == []


def test_before_it_asks_it_says_which_list_a_plan_is_about(owner: Owner) -> None:
    words = ["tea", "a\x1b[2Jb", *(f"word {number:02}" for number in range(10)), "milk"]
    domain = Dictionary(words)
    plan = dataclasses.replace(plan_of("active", "distributed", rounds=3), domain=domain.describe())
    owner.publish("list", plan)
    asked = ["accept", str(owner.place / "list.toml"), *owner.files("list")]
    assert owner.run(*asked) == 2  # the agent has no list
    digest = domain.describe()["sha256"][:16]
    said = " ".join(owner.out.split())
    assert f"Candidates dictionary of 13, digest {digest}: no list of this agent is it" in said
    (owner.folder / "words.txt").write_text("\n".join(words) + "\n")
    settings = owner.folder / FILE
    named = 'file = "items.txt"\ncandidates = ["words.txt"]'
    settings.write_text(settings.read_text().replace('file = "items.txt"', named))
    assert owner.run(*asked) == 2 and "nobody is there to be asked" in owner.err
    first = "'tea', 'a\\x1b[2Jb', 'word 00', and 10 more"
    assert f"Candidates dictionary of 13: {first}" in " ".join(owner.out.split())


def test_who_looks_writes_nothing(owner: Owner) -> None:
    def content() -> dict[Path, bytes]:
        files = (each for each in owner.folder.rglob("*") if each.is_file())
        return {each: each.read_bytes() for each in files}

    assert owner.accept() == 0
    before = content()
    plan = str(owner.place / "plan.toml")
    for looked in (["check"], ["check", "--plan", plan, *owner.files()], ["show"]):
        assert owner.run(*looked) == 0
    assert content() == before
    # An epsilon that was written down and is in no record yet is demanded all the same.
    owner.write(epsilon="0.001")
    before = content()
    assert owner.run("check", "--plan", plan, *owner.files()) == 2
    assert content() == before


@pytest.mark.promise
def test_the_epsilon_of_the_settings_counts_over_what_was_taken(owner: Owner) -> None:
    assert owner.accept() == 0
    with running(owner) as process:
        process.wait()
    record = ClientRecord.open(owner.folder / "record" / "record.db")
    event = owner.plan.privacy.event  # type: ignore[union-attr]
    event = dataclasses.replace(event, variance=100 * event.variance)
    record.take_part("others", "another plan", 0, event, int(time.time()))
    owner.write(epsilon="24.0")
    assert owner.run("check") == 0, (
        owner.err
    )  # in the record it is 9 still, which leaves too little
    owner.write(epsilon="22.0")
    assert owner.run("check") == 2
    assert "its cap is epsilon 22" in owner.err
    assert record.capped() == Cap(9.0, 1e-6)


def days_of(plan: Plan, start: datetime) -> Plan:
    """Return a plan of 28 days, whose clients take part in at most one of any seven."""
    assert plan.privacy is not None
    event = dataclasses.replace(plan.privacy.event, per_rounds=7, num_rounds=28)
    return dataclasses.replace(
        plan,
        num_rounds=28,
        num_clients=28 * plan.max_round_clients,
        schedule="hybrid",
        calendar=Calendar(start, timedelta(days=1), 28),
        privacy=dataclasses.replace(plan.privacy, event=event),
    )


@pytest.mark.promise
def test_an_epsilon_in_days_renews_and_both_promises_are_shown(owner: Owner) -> None:
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    owner.plan = owner.publish("days", days_of(owner.plan, today - timedelta(days=9)))
    assert owner.accept("days") == 2 and "demands epsilon 9 at most" in owner.err
    owner.write(per_days="7")
    assert owner.accept("days") == 0, owner.err
    assert owner.run("check") == 0
    assert re.search(
        r"epsilon 8 in any 7 days in a row, and epsilon \d+\.?\d* in all 28", owner.err
    )
    with running(owner) as process:
        process.wait()
    record = ClientRecord.open(owner.folder / "record" / "record.db")
    event = owner.plan.privacy.event  # type: ignore[union-attr]
    for day in (8, 1):
        part = ("clients", owner.plan.fingerprint, 9 - day, event)
        record.take_part(*part, int((today - timedelta(days=day)).timestamp()))
    assert owner.run("check") == 0, owner.err  # what the week has spent renews
    assert owner.run("show") == 0
    renews = today + timedelta(days=6)
    for words in (
        "epsilon 9 at delta 1e-06, in any 7 days; no bound on all of them together",
        f"epsilon 8 in the last 7 days; some renews at {renews:%Y-%m-%d %H:%M} (UTC)",
        f"round 9 is open {today:%Y-%m-%dT%H:%MZ} to",
    ):
        assert words in " ".join(owner.out.split())
    assert owner.run("show", "--json") == 0
    shown = json.loads(owner.out)
    assert (shown["per_days"], shown["renews"]) == (7, renews.timestamp())
    assert shown["spent"] <= 8 < 16 < shown["spent_in_all"]
    opens = int(today.timestamp())
    period = {"round": 9, "opens": opens, "closes": opens + 86_400, "has_room": False}
    assert shown["plans"][0]["period"] == period  # round 8 is within seven rounds of it


def test_a_record_beyond_its_delta_is_shown_and_renews(owner: Owner) -> None:
    """Secure sums use up what is reserved of a small delta: 2^-40 each, of 1e-10 in all."""
    now = datetime.now(UTC)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    owner.plan = owner.publish("days", days_of(owner.plan, today - timedelta(days=9)))
    owner.write(epsilon="20.0", delta="1e-9", per_days="7")
    assert owner.accept("days") == 0, owner.err
    record = ClientRecord.open(owner.folder / "record" / "record.db", create=True)
    event = dataclasses.replace(
        owner.plan.privacy.event,  # type: ignore[union-attr]
        participations=1, per_rounds=None, num_rounds=None,
    )  # fmt: skip
    for number in range(120):
        time = int((today - timedelta(days=8 * (130 - number))).timestamp())
        record.take_part("clients", f"plan {number}", 0, event, time)
    with pytest.raises(InvalidInputError, match="is set aside for secure sums"):
        record.spent(Cap(20.0, 1e-9))
    for new in (False, True):
        if new:  # the cap of seven days has room, and the record takes the part
            asked = ("clients", owner.plan.fingerprint, 8, owner.plan.privacy.event)  # type: ignore[union-attr]
            record.take_part(*asked, int((today - timedelta(days=1)).timestamp()))
        assert owner.run("check") == 0, owner.err
        assert owner.accept("days") == 0, owner.err
        assert owner.run("show") == 0, owner.err
        shown = " ".join(owner.out.split())
        assert "more than delta 1e-09 can cover in all" in shown
        assert ("Spent nothing in the last 7 days" in shown) is not new
        assert owner.run("show", "--json") == 0
        found = json.loads(owner.out)
        assert found["spent_in_all"] is None and len(found["parts"]) == 120 + new
        assert (found["spent"] is None) is not new
    # The owner changes the settings, and asks for less than was spent.
    for delta in ("1e-9", "0.0"):
        owner.write(epsilon="20.0", delta=delta)
        assert owner.run("show") == 0, owner.err
        words = f"Spent more than delta {float(delta):g} can cover Accepted"
        assert words in " ".join(owner.out.split())
        assert owner.run("show", "--json") == 0
        assert json.loads(owner.out)["spent"] is None


def test_a_period_of_seconds_is_shown_to_the_second() -> None:
    period = {"round": 3, "opens": 30, "closes": 40, "has_room": True}
    shown = _state({"plan": "ab" * 32, "over": None, "last_day": "2030-01-01", "period": period})
    assert "round 3 is open 1970-01-01T00:00:30Z to 1970-01-01T00:00:40Z (UTC)" in shown


def test_a_calendar_that_is_over_is_shown_so(owner: Owner) -> None:
    owner.write(per_days="7")
    owner.plan = owner.publish("days", days_of(owner.plan, datetime(2001, 1, 1, tzinfo=UTC)))
    assert owner.accept("days") == 2 and "no round is left" in owner.err


def test_a_record_that_no_epsilon_covers_is_refused_by_who_looks(owner: Owner) -> None:
    record = ClientRecord.open(owner.folder / "record" / "record.db")
    record.take_part("others", "another plan", 0, None, int(time.time()))
    assert owner.run("check") == 2
    assert "without differential privacy" in owner.err


def test_what_changed_since_the_plan_before_is_shown(owner: Owner) -> None:
    owner.accept()
    before, owner.plan = owner.plan, dataclasses.replace(owner.plan, seed=bytes([1]) * 32)
    owner.publish("other", owner.plan)
    assert owner.accept("other") == 0
    assert f"Changes since plan {before.fingerprint[:16]}" in owner.out
    assert re.search(r"seed +0000000000000000\.\.\. -> 0101010101010101", owner.out)
    assert "rows" not in owner.out.split("Changes")[1]


def test_every_reason_to_refuse_is_printed(owner: Owner) -> None:
    owner.write(min_honest="7", epsilon="0.5", max_length="10", corrupt="2")
    plan = str(owner.place / "plan.toml")
    for command in (["check", "--plan", plan], ["accept", plan, "--yes"]):
        assert owner.run(*command, *owner.files()) == 2  # type: ignore[misc]
        for words in (
            "at least 7",
            "epsilon 0.5 at most",
            "at most 10",
            "corrupt must be at least",
        ):
            assert f"{words}" in owner.err
        assert owner.err.count("refused: ") >= 4
        assert "refused for" in owner.err
    assert os.listdir(owner.folder / "campaigns") == []
    # without the list and the signature the policy is heard as well
    assert owner.run("check", "--plan", plan) == 2
    assert "comes without a signature" in owner.err and "at least 7" in owner.err
    assert "refused for" in owner.err


def test_a_file_that_was_not_named_is_no_reason_to_ask_for_another_plan(owner: Owner) -> None:
    named = {"--allow-list": "get the list", "--signature": "get the signature"}
    files = dict(zip(*[iter(owner.files())] * 2, strict=True))
    for left_out, advice in named.items():
        rest = [word for name in files if name != left_out for word in (name, files[name])]
        assert owner.run("check", "--plan", str(owner.place / "plan.toml"), *rest) == 2
        assert advice in owner.err and "another plan" not in owner.err


def test_nobody_is_asked_where_nobody_is_there(owner: Owner) -> None:
    assert owner.run("accept", str(owner.place / "plan.toml"), *owner.files()) == 2
    assert "accept with --yes" in owner.err
    assert os.listdir(owner.folder / "campaigns") == []


def test_without_a_registrar_the_owner_is_told_so(owner: Owner) -> None:
    text = (owner.folder / FILE).read_text()
    (owner.folder / FILE).write_text(text.split("\n", 1)[1])
    assert owner.run("check") == 0
    assert "the owner's own act alone" in owner.err
    assert owner.accept() == 0
    assert "by nobody: agent.toml names no registrar" in owner.out


def test_options_that_do_not_fit(owner: Owner) -> None:
    assert owner.run("check", *owner.files()) == 2
    assert "go with a --plan" in owner.err
    assert run(["agent", "show", "--agent", str(owner.place)]) == 2
    assert "fedtally agent init" in owner.capsys.readouterr().err
    assert owner.run("init", str(owner.folder)) == 2
    assert "never overwritten" in owner.err


# ---- run ----


class Process:
    """`fedtally agent run` as a process of its own."""

    def __init__(self, owner: Owner, *arguments: str) -> None:
        self.socket = owner.folder / "run" / "agent.sock"
        self.log = owner.place / "log"
        with open(self.log, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MAIN, "agent", "run", *arguments],
                cwd=owner.folder,
                stderr=file,
            )

    def wait(self) -> Process:
        end = time.monotonic() + 60
        while "listening" not in self.log.read_text() or not self.socket.exists():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)
        return self

    def ask(self, frame: bytes) -> Kind | AbortCode | None:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(60)
            end = time.monotonic() + 60
            while True:  # after a kill -9 the old file is there until the new process replaces it
                try:
                    line.connect(os.fspath(self.socket))
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < end
                    time.sleep(0.02)
            line.sendall(len(frame).to_bytes(4, "little") + frame)
            size = int.from_bytes(line.recv(4, socket.MSG_WAITALL), "little")
            return said(line.recv(size, socket.MSG_WAITALL) if size else None)

    def stop(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(60)


@contextlib.contextmanager
def running(owner: Owner, *arguments: str) -> Iterator[Process]:
    one = Process(owner, *arguments)
    try:
        yield one.wait()
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_a_process_answers_ends_cleanly_and_comes_back(owner: Owner) -> None:
    owner.accept()
    first = owner.invite()
    with running(owner) as one:
        assert one.ask(first) is Kind.ADVERTISE
        assert one.ask(b"garbage") is None
        memory = Path(f"/proc/{one.process.pid}")
        assert (
            "Max core file size        0                    0 " in (memory / "limits").read_text()
        )
        # where root does not run the tests, this shows that the process is not dumpable
        assert (memory / "mem").stat().st_uid == 0
        assert owner.run("run") == 2  # a second one on the same socket
        assert "runs on" in owner.err
        shutil.copy(owner.folder / "record" / "record.db", owner.place / "copy.db")
        assert one.ask(first) is Kind.ADVERTISE
        assert one.stop(signal.SIGKILL) == -signal.SIGKILL
    log = one.log.read_text()
    for words in ("joined", "dropped bytes", f"plan {owner.plan.fingerprint[:8]}, round 0"):
        assert words in log
    with running(owner, "--json") as one:
        assert one.ask(first) is AbortCode.SESSION_SEEN
        assert one.ask(owner.invite("second")) is Kind.ADVERTISE
        assert one.stop() == 0
    assert not one.socket.exists()
    lines = [json.loads(line) for line in one.log.read_text().splitlines() if line[0] == "{"]
    assert [line["what"].split(" ")[0] for line in lines] == [
        "listening",
        "ended",
        "joined",
        "stopped",
    ]
    # an old record is not taken up again
    shutil.copy(owner.place / "copy.db", owner.folder / "record" / "record.db")
    for command in ("run", "show", "check"):
        assert owner.run(command) == 2 and "an old copy of it was put back" in owner.err


@pytest.mark.parametrize(("entry", "kept"), [("record", "record"), ("mark", "key")])
def test_an_agent_that_may_not_write_down_what_it_sends_does_not_start(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, entry: str, kept: str
) -> None:
    """As in a sandbox: it would refuse every session, and its owner would hear of it then."""
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path).name != kept and access(path, mode)
    )
    assert owner.run("run") == 2
    assert f"{FILE}: {entry}: the agent may not write the folder" in owner.err


@pytest.mark.promise
def test_open_files_that_run_out_fill_no_log(owner: Owner) -> None:
    """asyncio takes all connections that wait, and writes a traceback for each without a file."""
    owner.accept()
    with running(owner) as one:
        soft, hard = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{one.process.pid}/fd"))

        def connect(number: int, spare: int) -> None:
            """Connect so often, while the process may open so many files more."""
            resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (used + spare, hard))
            lines = [socket.socket(socket.AF_UNIX) for _ in range(number)]
            for line in lines:
                line.connect(os.fspath(one.socket))  # waits while too many wait to be taken
            time.sleep(0.2)
            for line in lines:
                line.close()

        connect(300, 8 * MOST_CONNECTIONS)  # asyncio closes one some turns after it took it
        assert one.ask(b"garbage") is None
        assert "accept" not in one.log.read_text()
        connect(MOST_CONNECTIONS // 2, 2)
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert one.ask(owner.invite()) is Kind.ADVERTISE
        assert one.stop() == 0
    log = one.log.read_text()
    assert "socket.accept() out of system resource" in log and "Traceback" not in log
