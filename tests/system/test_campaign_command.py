"""`fedtally campaign`, with agents in another thread and servers that are killed."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from campaign_world import ALLOWED, STRINGS, N, open_plan, plan_of
from secagg_cohort import stream
from socket_agents import Person, listening_in_a_thread

from fedtally.answer.result import Result
from fedtally.base.text import utc
from fedtally.campaign import runner
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.periods import last_day
from fedtally.campaign.transports.engine import Ran, hold
from fedtally.campaign.transports.pace import Ending
from fedtally.campaign.transports.sockets import Sockets
from fedtally.cli import campaign_view as view
from fedtally.cli.app import run
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.plan import Plan
from fedtally.plan.calendar import Calendar
from fedtally.privacy.config import propose
from fedtally.secagg import checkpoints, wire
from fedtally.secagg.messages import Kind
from fedtally.secagg.params import modulus_bits
from fedtally.store import Ledger

QUICK = ["--gather", "2", "--phase", "8", "--session", "120", "--bench", "60"]


@pytest.fixture
def world(tmp_path: Path) -> SimpleNamespace:
    """The files of an operator, in the working directory."""
    create_key_files(tmp_path / "server.key", "server", stream("server"))
    save_allow_list(tmp_path / "clients.allow", ALLOWED)
    (tmp_path / "sockets").mkdir()
    return SimpleNamespace(folder=tmp_path, sockets=tmp_path / "sockets")


def init(world: SimpleNamespace, plan: Plan, *more: str, delta: float = 1e-6) -> Path:
    """Make a campaign by the command, with a grant at this delta; return its folder."""
    place, active = world.folder / "survey", plan.secure_sum.allow_list is not None  # type: ignore[union-attr]
    plan.save(world.folder / "plan.toml")
    names = {"--plan": "plan.toml", "--server-key": "server.key", "--mark": "survey.mark"}
    if active:
        names["--allow-list"] = "clients.allow"
    if plan.privacy is not None:
        names["--ledger"] = "books.db"
        books = Ledger.open(world.folder / "books.db", create=True)
        books.grant(plan.privacy.population, 100.0, delta, int(time.time()))
    given = [text for name, file in names.items() for text in (name, str(world.folder / file))]
    assert run(["campaign", "init", str(place), *given, *QUICK, *more]) == 0
    return place


def agents(world: SimpleNamespace, plan: Plan, number: int) -> AbstractContextManager[list[Person]]:
    """Let so many clients listen."""
    return listening_in_a_thread(world.sockets, [Person(plan, i) for i in range(number)])


def carried(verb: str, world: SimpleNamespace, place: Path) -> int:
    """Run or resume a campaign in this process; return the exit code."""
    return run(["campaign", verb, str(place), "--agents", str(world.sockets), "--wait", "30"])


def landed(place: Path) -> dict[int, int]:
    return CampaignFolder.open(place).status().landed


def test_who_makes_a_campaign_is_told_that_all_must_come(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    init(world, plan_of(rounds=2))
    said = " ".join(capsys.readouterr().err.split())
    assert f"note: all {2 * N} clients must come: a sum begins with {N}, and if one" in said
    assert f"its other {N - 1} are not counted" in said


@pytest.mark.parametrize("delta", [1e-6, 0.5])
def test_who_makes_a_campaign_is_told_that_its_grant_guarantees_little(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str], delta: float
) -> None:
    init(world, plan_of(trust="distributed"), delta=delta)
    said = " ".join(capsys.readouterr().err.split())
    assert (f"its delta 0.5 is not below 1 / {N} clients" in said) == (delta == 0.5)
    assert ("note: the grant of population" in said) == (delta == 0.5)


@pytest.mark.parametrize(("adversary", "trust"), [("semi-honest", None), ("active", "distributed")])
def test_from_the_folder_to_the_result(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str], adversary: str, trust: str | None
) -> None:
    plan = plan_of(adversary, trust, rounds=2)
    place = init(world, plan)
    view.Progress(CampaignFolder.open(place), None, False).show()
    assert "waits for clients" in capsys.readouterr().err
    with agents(world, plan, 2 * N) as persons:
        assert carried("run", world, place) == 0
    out, err = capsys.readouterr()
    assert "round 1, session" in err
    assert "landed, the sum of 8 clients" in err
    said = " ".join(out.split())
    assert "an agent answered for each" in said
    # run has no --details of its own: what is advised is a command that runs, not cut, on any line
    letters = "".join(out.split())
    advised = f"fedtallycampaignresult{place}--details"
    assert advised in letters and "--details" not in letters.replace(advised, "")
    assert run(["campaign", "result", str(place), "--details"]) == 0
    details = capsys.readouterr().out
    assert "Plan" in details
    assert ("fedtally ledger show --ledger LEDGER" in " ".join(details.split())) == bool(trust)
    assert landed(place) == {0: N, 1: N}
    # Whoever looks on at another process's campaign is not told that it waits.
    view.Progress(CampaignFolder.open(place), None, False).show()
    assert "waits" not in capsys.readouterr().err
    result = Result.load(place / "result.fed")
    rounds = {one.session: one.round for one in CampaignFolder.open(place).status().ended}
    for sketch in result.sketches:
        sent = [
            v for one in persons for name, v in one.sent.items() if rounds[name] == sketch.round
        ]
        assert (sketch.counters.ravel() == sum(sent)).all()
    # the answer is over, and is shown as often as it is asked for
    assert carried("run", world, place) == 2
    saved = world.folder / "r.fed"
    assert run(["campaign", "result", str(place), "--json", "-o", str(saved)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert Result.load(saved).command == result.command != ""
    assert document["secure_sum"]["engine"] == "agents"
    assert document["secure_sum"]["survivors"] == 2 * N
    assert run(["inspect", str(saved)]) == 0
    table = world.folder / "r.csv"
    assert run(["campaign", "result", str(place), "-o", str(table)]) == 0
    result.export(world.folder / "same.csv")
    assert table.read_bytes() == (world.folder / "same.csv").read_bytes()  # a table, as elsewhere
    asked = ["campaign", "result", str(place), "--window"]
    capsys.readouterr()
    assert run([*asked, "last:1", "--json"]) == 0
    window = json.loads(capsys.readouterr().out)["window"]
    assert (window["rounds"], window["clients"]) == ([1], N)
    assert run([*asked, "1..7", "-o", str(world.folder / "window.fed")]) == 2
    assert "--window must be of rounds 0..1" in capsys.readouterr().err
    assert not (world.folder / "window.fed").exists()


def test_a_run_that_nobody_answers_says_what_owners_should_run(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of()
    place = init(world, plan)
    persons = [Person(plan, i) for i in range(N)]
    for person in persons:
        person.answer = lambda frame: None  # type: ignore[method-assign]
    asked = ["campaign", "run", str(place), "--agents", str(world.sockets), "--wait", "2"]
    capsys.readouterr()
    with listening_in_a_thread(world.sockets, persons):
        assert run([*asked, "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert (document["ending"], document["unanswered"]) == ("stalled", N)
        assert run(["campaign", "resume", *asked[2:]]) == 1
    said = capsys.readouterr().err
    assert f"{N} of {N} invited clients did not answer" in said
    assert f"nobody answered {N} invitations" in said and "fedtally agent check" in said
    assert CampaignFolder.open(place).status().open == ()


def test_an_operator_is_told_what_owners_must_allow(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of()
    honest = plan.secure_sum.parameters.honest_survivors  # type: ignore[union-attr]
    init(world, plan, "--json")
    assert json.loads(capsys.readouterr().out)["min_honest"] == honest
    shutil.rmtree(world.folder / "survey")
    (world.folder / "survey.mark").unlink()
    init(world, plan)
    assert f"min_honest = {honest} or less in agent.toml" in capsys.readouterr().err


def test_what_is_waited_for_is_told_once_until_it_changes(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    progress = view.Progress(CampaignFolder.open(init(world, plan_of())), None, False)
    capsys.readouterr()
    for present in (0, 0, 0, 3, 3):
        progress.show(present)
        now[0] += 31
    said = capsys.readouterr().err.splitlines()
    assert said == [f"waits for clients: {present} are connected" for present in (0, 3)]


def test_a_run_says_how_long_the_rest_takes_at_its_own_pace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, ended = [0.0], [SimpleNamespace(session=b"before", why=None, num_clients=N, round=0)]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    folder = SimpleNamespace(
        plan=plan_of(rounds=6),
        has_begun=True,
        deadlines=SimpleNamespace(session=60),
        status=lambda: SimpleNamespace(ended=list(ended), open=[], landed=landed()),
    )
    landed = lambda: {one.round: N for one in ended if one.why is None}  # noqa: E731
    progress = view.Progress(folder, None, False)  # type: ignore[arg-type]

    def end(session: bytes, why: str | None) -> str:
        ended.append(SimpleNamespace(session=session, why=why, num_clients=N, round=len(ended)))
        progress._phases = {session: "unmask"}  # it ran when somebody looked last
        progress.show()
        return capsys.readouterr().err

    now[0] = 60.0
    said = end(b"first", None)
    assert "landed, the sum of 8 clients" in said
    # one landed in a minute, and four are to come; that of the run before counts for no pace
    assert "16 of 48 clients are in sums; about 4 min left" in said
    now[0] = 100.0
    assert "left" not in end(b"second", "given up")  # nothing landed that was not told
    for session in (b"third", b"fourth", b"fifth"):
        end(session, None)
    assert "left" not in end(b"sixth", None)  # nothing is to come


def test_strings_of_which_nobody_has_the_list(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A campaign folder, agents on sockets, and the names in the result."""
    plan = open_plan("active", "distributed", rounds=2)
    place = init(world, plan)
    assert CampaignFolder.open(place).domain == STRINGS
    with agents(world, plan, 2 * N) as persons:
        assert carried("run", world, place) == 0
    capsys.readouterr()
    result = Result.load(place / "result.fed")
    rounds = {one.session: one.round for one in CampaignFolder.open(place).status().ended}
    for sketch in result.sketches:
        sent = [
            v for one in persons for name, v in one.sent.items() if rounds[name] == sketch.round
        ]
        assert (sketch.vector == sum(sent)).all()
    assert run(["campaign", "result", str(place), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["open"]["max_length"] == 8 and document["open"]["bits"] == 12
    assert document["open"]["named"] == len(result.names)


def test_too_few_clients_end_a_run_with_the_reason(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(rounds=2)
    place = init(world, plan)
    command = ["campaign", "run", str(place), "--agents", str(world.sockets), "--wait", "2"]
    with agents(world, plan, N):
        assert run(command) == 3  # the first round has all clients that there are
    err = capsys.readouterr().err
    assert "1 of 2 rounds landed" in err
    view.Progress(CampaignFolder.open(place), None, False).show()
    assert "waits for clients" in capsys.readouterr().err  # for the second round's
    assert f"a session needs {N} clients that were not asked before, and {N} are connected" in err
    assert run(["campaign", "result", str(place)]) == 2
    assert "--end ends it" in capsys.readouterr().err
    assert run(["campaign", "result", str(place), "--end", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["num_contributions"] == N
    assert answer["ended"] == {"rounds": 1, "num_rounds": 2, "by": "operator"}
    assert any("an operator ended the campaign after one round" in a for a in answer["warnings"])
    assert run(["campaign", "resume", str(place), *command[3:]]) == 2


def server(
    place: Path, sockets: Path, verb: str, *more: str, start: str = "", before: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start the server in a process of its own, in the folder of the operator."""
    start += "import sys; from fedtally.cli import main; sys.exit(main())"
    command = [*before, sys.executable, "-c", start, "campaign", verb, str(place)]
    return subprocess.Popen(
        [*command, "--agents", str(sockets), "--wait", "30", *more],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=place.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A shell lets what it starts in the background ignore this signal, and so would the server.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def killed(place: Path, sockets: Path, verb: str, phase: str) -> None:
    """Start the server in a process of its own, and kill it when it asks for this."""
    process = server(place, sockets, verb)
    assert process.stderr is not None
    for line in process.stderr:
        if phase in line:
            process.kill()
            break
    process.wait()
    process.stderr.close()


@pytest.mark.promise
def test_a_server_that_is_killed_in_every_phase_goes_on(world: SimpleNamespace) -> None:
    plan = plan_of("active", "distributed")
    place = init(world, plan)
    asked = ["their keys", "their shares", "their items", "whom they saw", "the opening"]
    with agents(world, plan, N):
        for number, phase in enumerate(asked):
            killed(place, world.sockets, "resume" if number else "run", phase)
            # The check before an upgrade finds that this version can go on.
            assert run(["campaign", "status", str(place)]) == 0
        assert carried("resume", world, place) == 0
    assert landed(place) == {0: N}
    spent = Ledger.open(world.folder / "books.db").export(plan.privacy.population)  # type: ignore[union-attr]
    assert len(spent["populations"][0]["campaigns"]) == 1


def test_a_server_that_is_suspended_for_longer_than_a_phase_loses_nothing(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes beyond the last deadline of the phase, and all its waits for agents are over."""
    plan = plan_of("active")
    # The last of the same options counts. A file sets the clock on while the process is stopped.
    place = init(world, plan, "--session", "600")
    ahead = world.folder / "ahead"
    ahead.write_text("0")
    clock = (
        "import time, pathlib; real = time.time; ahead = pathlib.Path('ahead');"
        " time.time = lambda: real() + float(ahead.read_text() or 0);"
    )
    running: list[subprocess.Popen[str]] = []
    answer = Person.answer

    def stopping(person: Person, frame: bytes) -> bytes | None:
        message = wire.parse(frame)
        if running and message is not None and message.kind is Kind.INBOX:
            stopped = running.pop()
            stopped.send_signal(signal.SIGSTOP)
            # Longer than a phase; agents that are asked anew then take two seconds to be reached.
            Timer(9, lambda: (ahead.write_text("60"), stopped.send_signal(signal.SIGCONT))).start()
        return answer(person, frame)

    monkeypatch.setattr(Person, "answer", stopping)
    with agents(world, plan, N) as persons:
        process = server(place, world.sockets, "run", start=clock)
        running.append(process)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait() == 0, said
        process.stderr.close()
    assert not running and ahead.read_text() == "60"
    assert [one.num_clients for one in CampaignFolder.open(place).status().ended] == [N]
    [sketch] = Result.load(place / "result.fed").sketches
    assert (sketch.counters.ravel() == sum(v for one in persons for v in one.sent.values())).all()
    assert [len(one.sent) for one in persons] == [1] * N


def test_a_server_whose_disk_is_full_goes_on_when_it_has_room(world: SimpleNamespace) -> None:
    plan = plan_of("active", "distributed")
    place = init(world, plan)
    phases = iter(["their keys", "their items", "the opening"])
    phase, refused = next(phases), 0
    with agents(world, plan, N) as persons, server(place, world.sockets, "run") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if phase in line:  # no file of the process takes a byte from here on
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
                phase = next(phases, "nothing further")
            if "the store does not answer" in line:
                refused += 1
                assert landed(place) == {}
                unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
        assert process.wait() == 0
    assert refused >= 3
    assert landed(place) == {0: N}
    [sketch] = Result.load(place / "result.fed").sketches
    assert (sketch.counters.ravel() == sum(v for one in persons for v in one.sent.values())).all()
    assert [len(one.sent) for one in persons] == [1] * N  # nobody gave its items twice
    spent = Ledger.open(world.folder / "books.db").export(plan.privacy.population)  # type: ignore[union-attr]
    assert len(spent["populations"][0]["campaigns"]) == 1


def test_drain_and_take_over(world: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of()
    place = init(world, plan)
    with server(place, world.sockets, "run") as first:
        assert first.stderr is not None
        assert "waits for clients" in first.stderr.readline()
        assert carried("resume", world, place) == 2
        assert f"process {first.pid} runs" in capsys.readouterr().err
        with server(place, world.sockets, "resume", "--take-over") as second:
            assert second.stderr is not None
            assert "waits for clients" in second.stderr.readline()
            assert CampaignFolder.open(place).runner().number == second.pid
            with agents(world, plan, N):
                # Both see all clients. The first one finds out that it must not speak.
                assert second.wait() == 0
                assert first.wait() == 1
            assert "another process runs the campaign" in first.stderr.read()
    assert landed(place) == {0: N}


def test_a_mistyped_folder_of_agents_begins_nothing(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = init(world, plan_of())
    assert run(["campaign", "run", str(place), "--agents", str(world.folder / "none")]) == 2
    assert "cannot read the folder of sockets" in capsys.readouterr().err
    assert CampaignFolder.open(place).stage() == "new"


def test_a_run_may_open_as_many_files_as_the_system_lets_it(world: SimpleNamespace) -> None:
    place = init(world, plan_of())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 200), hard))  # a child has it, too
    try:
        with server(place, world.sockets, "run") as process:
            assert process.stderr is not None
            process.stderr.readline()
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            process.kill()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
    assert line.split()[3] == line.split()[4]


def test_agents_take_no_open_file_from_the_store(world: SimpleNamespace) -> None:
    place = init(world, plan_of())
    more = 40
    with agents(world, plan_of(), N + more):
        command = ["campaign", "run", str(place), "--agents", str(world.sockets), "--wait", "5"]
        child = "import resource, sys; from fedtally.cli import main;"
        child += " resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); sys.exit(main())"
        found = subprocess.run(
            [sys.executable, "-c", child, *command], capture_output=True, text=True, check=False
        )
    assert found.returncode == 0, found.stderr
    assert landed(place) == {0: N}
    assert "the store does not answer" not in found.stderr
    [line] = [line for line in found.stderr.splitlines() if "agents are connected" in line]
    assert f"{N + more:,} are there" in line and "may have 64" in line


def test_drain_ends_the_process(world: SimpleNamespace) -> None:
    place = init(world, plan_of())
    assert run(["campaign", "drain", str(place)]) == 2  # nobody runs it
    with server(place, world.sockets, "run") as process:
        assert process.stderr is not None
        process.stderr.readline()
        assert run(["campaign", "drain", str(place)]) == 0
        assert process.wait() == 3
        assert "was drained" in process.stderr.read()


def test_drain_in_another_container_signals_nobody_and_says_so(world: SimpleNamespace) -> None:
    """Both are the first process of their container, so that the lock has the PID of `drain`."""
    apart = ["unshare", "-rpf", "--mount-proc", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("needs unshare, and user and PID namespaces")
    place = init(world, plan_of())
    with server(place, world.sockets, "run", before=apart) as process:
        assert process.stderr is not None
        assert "waits for clients" in process.stderr.readline()
        main = "import sys; from fedtally.cli import main; sys.exit(main())"
        drain = [*apart, sys.executable, "-c", main, "campaign", "drain", str(place)]
        found = subprocess.run(drain, capture_output=True, text=True, check=False)
        assert found.returncode == 2, found
        said = " ".join(found.stderr.split())
        assert f"process 1 of another container runs {place}" in said
        assert "type this where it runs" in said
        assert CampaignFolder.open(place).stage() == "running"
        process.kill()


def test_status_says_that_a_number_is_of_another_container(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = init(world, plan_of())
    with CampaignFolder.open(place).lock(4321):
        for said in ("", " of another container"):
            if said:
                monkeypatch.setattr(runner, "_namespace", lambda: "pid:[2]")
            capsys.readouterr()
            assert run(["campaign", "status", str(place)]) == 0
            line = capsys.readouterr().out.splitlines()
            assert f"by process 4321{said}" in " ".join(" ".join(line).split())
            assert run(["campaign", "status", str(place), "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert (found["process"], found["in_another_container"]) == (4321, bool(said))


def looked_at(world: SimpleNamespace, place: Path, act: Callable[[], object]) -> tuple[Ran, str]:
    """Run a campaign in this process, and do something at the first look; return what was noted."""
    notes, todo = list[str](), [act]
    watch = SimpleNamespace(
        note=notes.append, warn=notes.append, show=lambda _: todo.pop()() if todo else None
    )
    ran = Sockets(world.sockets).run(
        CampaignFolder.open(place), wait=30, take_over=False, watch=lambda _: nullcontext(watch)
    )
    return ran, " ".join(notes)


def test_a_signal_drains_a_run(world: SimpleNamespace) -> None:
    """The signal then does again what it did before, as for a program that has a use of its own."""
    place, own = init(world, plan_of()), lambda *_: None
    before = signal.signal(signal.SIGTERM, own)
    try:
        ran, notes = looked_at(world, place, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert ran[:4] == (Ending.DRAINED, 0, {}, 0) and "no session is opened any more" in notes
        assert signal.getsignal(signal.SIGTERM) == own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert CampaignFolder.open(place).runner() is None  # it holds nothing any more


def test_a_run_whose_campaign_is_taken_away_says_why(world: SimpleNamespace) -> None:
    place = init(world, plan_of())

    def take_over() -> None:
        with hold(CampaignFolder.open(place), take_over=True):
            pass

    with pytest.raises(OvertakenError):
        looked_at(world, place, take_over)
    with pytest.raises(InvalidInputError, match="was cancelled"):
        looked_at(world, place, CampaignFolder.open(place).cancel)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("old-copy", "is an older copy"),
        ("no-mark", "there is no mark at"),
        ("no-mark", "survey.mark is empty, and"),
    ],
)
def test_status_says_that_a_start_would_be_refused(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str], what: str, why: str
) -> None:
    place = init(world, plan_of())
    state, mark = place / "campaign.db", world.folder / "survey.mark"

    def said() -> tuple[str, str, str]:
        capsys.readouterr()
        assert run(["campaign", "status", str(place), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert run(["campaign", "status", str(place)]) == 0
        out, err = capsys.readouterr()
        return document["state"], " ".join(out.split()), " ".join(err.split())

    with hold(CampaignFolder.open(place)) as driver:
        copy = state.read_bytes()
        driver.check_writes()
        assert said()[0] == "running"  # also while it writes: the mark is never ahead of the file
    assert said()[0] == "stopped" and said()[2] == ""
    if what == "old-copy":
        state.write_bytes(copy)
    elif "empty" in why:
        mark.write_bytes(b"")
    else:
        mark.unlink()
    found, out, err = said()
    assert found == what and what in out
    assert why in err and f"campaign restore {place} gives its open sessions up" in err
    assert carried("resume", world, place) == 2
    if what == "no-mark":
        assert why in " ".join(capsys.readouterr().err.split())
    assert run(["campaign", "list", str(world.folder)]) == 0
    assert what in capsys.readouterr().out
    assert run(["campaign", "restore", str(place)]) == 0
    assert said()[0] == "stopped"


def test_status_says_that_this_version_cannot_read_the_ledger(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check before an upgrade: what the next start would say of its ledger."""
    place = init(world, plan_of(trust="distributed"))
    books, asked = world.folder / "books.db", ["campaign", "status", str(place)]

    def said(code: int, *more: str) -> tuple[str, str]:
        capsys.readouterr()
        assert run([*asked, *more]) == code
        out, err = capsys.readouterr()
        return out, " ".join(err.split())

    shown, err = said(0)
    assert err == ""
    with closing(sqlite3.connect(books)) as connection, connection:
        number = connection.execute("SELECT version FROM fedtally_schema").fetchone()[0]
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f'DROP TRIGGER "{name}"')
        connection.execute("UPDATE fedtally_schema SET version = version + 1")
    changed = books.read_bytes()
    out, err = said(2)
    assert out == shown  # how far the campaign is is shown all the same
    assert "resume would be refused" in err
    assert f"written by a newer fedtally (schema {number + 1};" in err
    assert json.loads(said(2, "--json")[0])["state"] == "new"
    assert carried("run", world, place) == 2  # so it is
    assert books.read_bytes() == changed
    books.unlink()
    assert "there is no ledger" in said(2)[1] and not books.exists()
    # what is over charges nothing any more
    (place / "cancelled").touch()
    assert said(0)[1] == ""


def test_status_says_that_this_version_cannot_go_on_with_an_open_session(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before an upgrade: the clients of such a session may have spent their items."""
    plan = plan_of(trust="distributed")
    place = init(world, plan)

    def said(code: int, *more: str) -> str:
        capsys.readouterr()
        assert run(["campaign", "status", str(place), *more]) == code
        return " ".join(capsys.readouterr().err.split())

    def listed(code: int) -> tuple[str, bool]:
        """Return the notes of `list`, and whether it says that the session can go on."""
        capsys.readouterr()
        assert run(["campaign", "list", str(world.folder)]) == code
        out, err = capsys.readouterr()
        assert run(["campaign", "list", str(world.folder), "--json"]) == code
        [found] = json.loads(capsys.readouterr().out)["campaigns"]
        [is_restorable] = [one["restorable"] for one in found["open"]]
        assert ("1 (1 cannot go on)" in out) is not is_restorable
        return " ".join(err.split()), is_restorable

    with agents(world, plan, N):
        killed(place, world.sockets, "run", "their items")
        [session] = CampaignFolder.open(place).status().open
        before = (place / "campaign.db").read_bytes()
        assert said(0) == "" and listed(0) == ("", True)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "SCHEMA", "fedtally-secagg-checkpoint/99")
            err = said(2)
            assert f"resume would set aside round 0, session {session.session.hex()[:8]}," in err
            assert "and this version reads fedtally-secagg-checkpoint/99" in err
            assert f"is over, at {utc(session.not_after)} at the latest: its" in err
            assert f"fedtally campaign drain {place} ends the process then" in err
            assert said(2, "--json") == err
            assert listed(2) == (err, False)
            # No version can go on with a session whose time is over.
            with monkeypatch.context() as later:
                later.setattr(time, "time", lambda: session.not_after + 1.0)
                assert said(0) == ""
        with monkeypatch.context() as patch:
            # A ledger that is away takes nothing from the exit code.
            patch.setattr(checkpoints, "SCHEMA", "fedtally-secagg-checkpoint/99")
            patch.setattr("fedtally.cli.campaign.check_ledger", lambda *_: 1)
            said(2)
        assert (place / "campaign.db").read_bytes() == before
        assert carried("resume", world, place) == 0
    assert landed(place) == {0: N}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "SCHEMA", "fedtally-secagg-checkpoint/99")
        assert said(0) == ""


def test_a_copy_that_was_put_back_is_refused_until_restore(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(rounds=2)
    place = init(world, plan)
    command = [str(place), "--agents", str(world.sockets), "--wait", "2"]
    assert run(["campaign", "restore", str(place)]) == 2
    assert "has not begun" in capsys.readouterr().err
    assert run(["campaign", "run", *command]) == 1  # nobody is there
    resumed = f"fedtally campaign resume {place} --agents {world.sockets} goes on"
    assert resumed in " ".join(capsys.readouterr().err.split())  # it can be typed as it stands
    shutil.copyfile(place / "campaign.db", world.folder / "copy")
    with agents(world, plan, N):
        assert run(["campaign", "resume", *command]) == 3
        capsys.readouterr()
        assert run(["campaign", "restore", str(place)]) == 2  # nothing was put back yet
        assert "fedtally campaign resume" in capsys.readouterr().err
        shutil.copyfile(world.folder / "copy", place / "campaign.db")
        with CampaignFolder.open(place).lock(7):
            assert run(["campaign", "restore", str(place)]) == 2
        assert "process 7 runs" in capsys.readouterr().err
        assert run(["campaign", "resume", *command]) == 2
        assert "fedtally campaign restore" in capsys.readouterr().err
        assert run(["campaign", "restore", str(place)]) == 0
        assert run(["campaign", "resume", *command]) == 1
    assert landed(place) == {}  # and the clients' own records let nothing out twice


def test_status_says_how_many_clients_came_lately(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = init(world, plan_of())
    folder = CampaignFolder.open(place)
    progress = view.Progress(folder, None, True)
    with folder.lock(os.getpid()):
        progress.show(3)
        progress.show(5)  # too soon to be written
        assert run(["campaign", "status", str(place)]) == 0
        assert "3 clients came lately" in capsys.readouterr().out
    # nobody runs it now, and what an earlier process said counts no more
    assert run(["campaign", "status", str(place)]) == 0
    assert "came lately" not in capsys.readouterr().out


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_campaign_without_its_file_says_what_to_do(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str], is_marked: bool
) -> None:
    place = init(world, plan_of())
    with hold(CampaignFolder.open(place)):
        pass
    (place / "campaign.db").unlink()
    if not is_marked:
        CampaignFolder.open(place).mark.unlink()
    ways = f"fedtally campaign restore {place}; without a copy, fedtally campaign cancel {place}"
    for more in (["restore"], ["result"], ["result", "--so-far"], ["result", "--end"]):
        assert run(["campaign", more[0], str(place), *more[1:]]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert ways in said
    for verb in ("run", "resume"):
        assert carried(verb, world, place) == 2
        assert ways in " ".join(capsys.readouterr().err.split())
    assert run(["campaign", "status", str(place)]) == 0
    said = capsys.readouterr()
    assert f"{place}:lost" in "".join(said.out.split())  # a long path is broken, where lines end
    assert ways in " ".join(said.err.split())
    assert not (place / "campaign.db").exists()


def test_an_early_end_while_a_process_runs_says_what_to_type(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = init(world, plan_of())
    with hold(CampaignFolder.open(place)):
        assert run(["campaign", "result", str(place), "--end"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"fedtally campaign drain {place} ends it after its open sessions" in said
    assert "once it has ended, type --end again" in said


def commands_of_a_copy() -> list[str]:
    """Return the lines of the page that copy campaign.db and put it back, without sudo."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    lines = [line.removeprefix("sudo -u fedtally ") for line in page.splitlines()]
    found = [line for line in lines if line.startswith(("sh -c", "install ")) and "copy" in line]
    assert len(found) == 2
    return found


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="needs the shell of SQLite")
def test_the_copy_of_the_page_is_made_beside_a_process_and_can_be_restored(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(rounds=2)
    place = init(world, plan)
    (world.folder / "copies").mkdir()
    made, put_back = (
        one.replace("/mnt/copies", str(world.folder / "copies"))
        .replace("/var/lib/fedtally/survey", str(place))
        .replace("-o fedtally -g fedtally ", "")
        for one in commands_of_a_copy()
    )
    with hold(CampaignFolder.open(place)) as driver:
        for _ in range(2):  # the second one replaces the first
            subprocess.run(["sh", "-c", made], check=True, timeout=60)
            driver.check_writes()
    [copy] = (world.folder / "copies").iterdir()
    assert (copy.name, copy.stat().st_mode & 0o777) == ("survey.copy", 0o600)
    (place / "campaign.db").unlink()
    subprocess.run(["sh", "-c", put_back], check=True, timeout=60)
    assert CampaignFolder.open(place).stage() == "old-copy"
    assert run(["campaign", "restore", str(place)]) == 0
    with agents(world, plan, N):
        command = [str(place), "--agents", str(world.sockets), "--wait", "2"]
        assert run(["campaign", "resume", *command]) == 3
    assert landed(place)


def test_a_file_that_is_lost_under_a_process_is_told_and_the_process_ends_first(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = init(world, plan_of())
    state = place / "campaign.db"

    def said(*words: str) -> str:
        run(["campaign", words[0], str(place), *words[1:]])
        return " ".join(capsys.readouterr().err.split())

    with hold(CampaignFolder.open(place)):
        number = CampaignFolder.open(place).runner().number
        capsys.readouterr()
        assert said("status") == ""
        copy = state.read_bytes()
        state.unlink()
        lost = f"{place} has lost its campaign.db while process {number} runs it: end that process"
        assert lost in said("status")
        # what `drain` waits for is what `restore` gives up
        assert f"kill {number}" in said("restore") and "drain" not in said("restore")
        state.write_bytes(copy)
        assert f"kill {number}" in said("restore")
    assert said("status") == ""


def test_a_mark_that_is_lost_under_a_process_is_told_until_the_process_writes(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = init(world, plan_of())
    mark = world.folder / "survey.mark"

    def said() -> str:
        capsys.readouterr()
        assert run(["campaign", "status", str(place)]) == 0
        return " ".join(capsys.readouterr().err.split())

    for ends_first in (False, True):
        with hold(CampaignFolder.open(place)) as driver:
            number = CampaignFolder.open(place).runner().number
            assert said() == ""
            mark.unlink()
            lost = f"{place} has lost its mark {mark} while process {number} runs it: mount its"
            assert lost in said()
            assert "let the process run" in said() and "campaign restore" in said()
            if not ends_first:
                driver.check_writes()
                assert mark.exists() and said() == ""
        assert CampaignFolder.open(place).stage() == ("no-mark" if ends_first else "stopped")
    assert run(["campaign", "restore", str(place)]) == 0
    assert said() == ""


def test_a_mark_that_is_emptied_under_a_process_is_told_until_the_process_writes(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = init(world, plan_of())
    mark = world.folder / "survey.mark"

    def said() -> str:
        capsys.readouterr()
        assert run(["campaign", "status", str(place)]) == 0
        return " ".join(capsys.readouterr().err.split())

    assert mark.read_bytes() == b"" and said() == ""  # nothing was written yet
    for ends_first in (False, True):
        with hold(CampaignFolder.open(place)) as driver:
            number = CampaignFolder.open(place).runner().number
            assert said() == ""
            mark.write_bytes(b"")
            empty = f"the mark {mark} is empty while process {number} runs {place}: let the process"
            assert empty in said()
            if not ends_first:
                driver.check_writes()
                assert mark.read_bytes() and said() == ""
        assert CampaignFolder.open(place).stage() == ("no-mark" if ends_first else "stopped")
    assert run(["campaign", "restore", str(place)]) == 0
    assert said() == ""


def test_a_mark_that_is_read_only_is_refused_before_anything_is_made(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = init(world, plan_of())
    mark = world.folder / "survey.mark"
    access = os.access

    def as_owner(path: Any, mode: int) -> bool:
        """Return what a user other than root may do, who has made the file."""
        denied = bool(mode & os.W_OK) and not os.stat(path).st_mode & stat.S_IWUSR
        return not denied and access(path, mode)

    monkeypatch.setattr(os, "access", as_owner)
    mark.chmod(0o444)
    link = world.folder / "link.mark"
    link.symlink_to(mark)  # the mark on another disk, to which the settings may name a link
    for named in (mark, link):
        folder = dataclasses.replace(CampaignFolder.open(place), mark=named)
        refused = pytest.raises(InvalidInputError, match=f"the mark {named}: {mark} does not allow")
        with refused, hold(folder):
            pass
    assert carried("run", world, place) == 2
    assert "does not allow it" in " ".join(capsys.readouterr().err.split())
    assert not (place / "campaign.db").exists()
    mark.chmod(0o644)
    with hold(CampaignFolder.open(place)):
        pass
    mark.write_bytes(b"")
    mark.chmod(0o444)
    assert run(["campaign", "restore", str(place)]) == 2
    assert "does not allow it" in " ".join(capsys.readouterr().err.split())
    assert mark.read_bytes() == b""
    mark.chmod(0o644)
    assert run(["campaign", "restore", str(place)]) == 0


def test_a_cancelled_campaign_stays_cancelled(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = init(world, plan_of())
    assert run(["campaign", "cancel", str(place)]) == 0
    for verb in ("run", "resume"):
        assert carried(verb, world, place) == 2
    for more in ([], ["--end"]):
        assert run(["campaign", "result", str(place), *more]) == 2
        assert "was cancelled" in capsys.readouterr().err.splitlines()[-1]
    assert run(["campaign", "list", str(world.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["campaigns"][0]["state"] == "cancelled"


@pytest.mark.promise
def test_a_server_whose_campaign_is_cancelled_says_so(world: SimpleNamespace) -> None:
    plan = plan_of()
    place = init(world, plan)
    with server(place, world.sockets, "run") as process:
        assert process.stderr is not None
        process.stderr.readline()
        assert run(["campaign", "cancel", str(place)]) == 0
        with agents(world, plan, N):
            assert process.wait() == 2
        assert "was cancelled" in process.stderr.read()


def test_a_name_that_is_no_text_is_escaped(tmp_path: Path) -> None:
    code = "from fedtally.cli.console import show_json; show_json({'client': '\\udcff'})"
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    out = subprocess.run([sys.executable, "-c", code], env=strict, capture_output=True).stdout
    assert json.loads(out) == {"client": "\udcff"}


@pytest.mark.promise
def test_an_interrupted_run_is_resumed(world: SimpleNamespace) -> None:
    plan = plan_of()
    place = init(world, plan)
    with server(place, world.sockets, "run") as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    with agents(world, plan, N):
        assert carried("resume", world, place) == 0
    assert landed(place) == {0: N}


def by_days(start: float, rounds: int, trust: str | None = None) -> Plan:
    """Return a plan whose rounds are open for a day each."""
    plan = plan_of(trust=None, rounds=rounds)
    assert plan.secure_sum is not None
    calendar = Calendar(datetime.fromtimestamp(int(start), UTC), timedelta(days=1), rounds)
    plan = dataclasses.replace(plan, schedule="hybrid", calendar=calendar, secure_sum=None)
    before = plan_of(rounds=rounds).secure_sum
    assert before is not None
    if trust is not None:
        more = {"rows": plan.spec.touched, "width": plan.spec.mean_width, "trust": trust}
        terms = propose(
            epsilon=8.0,
            delta=1e-6,
            counters=plan.spec.vector_length,
            num_rounds=rounds,
            per_rounds=rounds,
            **more,
        )
        plan = dataclasses.replace(plan, privacy=terms)
    bits = modulus_bits(before.parameters.n_max, plan.largest_entry, plan.noise_bound)
    parameters = dataclasses.replace(before.parameters, length=plan.vector_length, bits=bits)
    return dataclasses.replace(plan, secure_sum=dataclasses.replace(before, parameters=parameters))


@pytest.mark.parametrize("trust", [None, "central"])
def test_what_landed_so_far_is_shown_and_the_campaign_goes_on(
    world: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    trust: str | None,
) -> None:
    """Three days: the first lands, the second is missing, and the third is not there yet."""
    now = [time.time() + 1000.0]
    plan = by_days(now[0] + 50, 3, trust)
    place = init(world, plan)
    assert plan.calendar is not None
    days = [plan.calendar.opens(round).timestamp() for round in range(3)]
    asked = ["campaign", "result", str(place), "--so-far"]
    assert run(asked) == 2
    assert "has not begun" in capsys.readouterr().err
    assert run([*asked, "--end"]) == 2
    assert "give one of them" in capsys.readouterr().err
    people = {i: Person(plan, i) for i in range(N)}
    monkeypatch.setattr(time, "time", lambda: now[0])
    now[0] = days[0] + 5
    with hold(CampaignFolder.open(place)) as driver:
        for _ in range(40):
            for number, person in people.items():
                driver.check_in(str(number), now[0])
                frame = driver.next(str(number), now[0])
                answer = None if frame is None else person.answer(frame)
                if answer:
                    driver.receive(str(number), answer, now[0])
            driver.tick(now[0])
            now[0] += 1
        assert landed(place) == {0: N}
        # the process that runs the campaign goes on meanwhile
        capsys.readouterr()
        code = run([*asked, "--json", "-o", str(world.folder / "first.fed")])
        if trust is None:
            assert code == 0 and not (place / "result.fed").exists()
        else:
            assert code == 2 and "no sum to show so far" in capsys.readouterr().err
            now[0] = days[1] + plan_seconds(place) + 2
            driver.tick(now[0])
    now[0] = days[2] - 1
    saved = world.folder / "so.fed"
    capsys.readouterr()
    assert run([*asked, "-o", str(saved)]) == 0
    shown, said = capsys.readouterr()
    told = f"so far: 1 of 3 rounds, up to {last_day(plan.calendar, 0)} (UTC)"
    assert told in said and told in Result.load(saved).notes
    assert run(asked) == 0
    assert capsys.readouterr().out == shown
    assert run(["query", str(saved), "3"]) == 0
    # the second day is missing
    now[0] = days[2] + plan_seconds(place) + 2
    capsys.readouterr()
    progress = view.Progress(CampaignFolder.open(place), None, False)
    progress.show()
    progress.show()
    assert capsys.readouterr().err.count("round 1 is missing: nothing landed while open") == 1
    now[0] = days[1] - 10
    progress._tell_at = 0
    progress.show()
    assert "sleeps until" in capsys.readouterr().err
    assert run(["campaign", "result", str(place)]) == 2
    assert "--so-far shows what landed" in capsys.readouterr().err
    # the end is that of the days that landed
    before = Result.load(saved).sketches
    if trust is None:
        now[0] = plan.calendar.end.timestamp() + 5  # sessions could run on, and none does
        assert run(["campaign", "resume", str(place), "--agents", str(world.sockets)]) == 3
        said = " ".join(capsys.readouterr().err.split())
        assert "1 of 3 rounds landed; 2 rounds are missing: 1-2" in said
    else:
        now[0] = days[2] + 2 * 86_400
        assert run(["campaign", "result", str(place), "--end"]) == 0
    [sketch] = Result.load(place / "result.fed").sketches
    assert [sketch.vector.tolist()] == [one.vector.tolist() for one in before]


def plan_seconds(place: Path) -> int:
    """Return the longest life of a session of a campaign."""
    return CampaignFolder.open(place).deadlines.session


def test_a_trusted_aggregator_without_a_calendar_has_no_days_to_show(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(trust="central")
    place = init(world, plan)
    with hold(CampaignFolder.open(place)) as driver:
        driver.tick(time.time())
    assert run(["campaign", "result", str(place), "--so-far"]) == 2
    assert "needs a plan with a calendar" in " ".join(capsys.readouterr().err.split())


def test_a_calendar_ends_a_run_and_no_seconds_do(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    place = init(world, by_days(time.time() + 86_400, 2))
    assert carried("run", world, place) == 2
    assert "leave --wait out" in " ".join(capsys.readouterr().err.split())
    assert not CampaignFolder.open(place).has_begun
    # nobody is asked today: it sleeps, says until when, and hears SIGTERM
    Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    assert run(["campaign", "run", str(place), "--agents", str(world.sockets)]) == 3
    said = capsys.readouterr().err
    assert "sleeps until" in said and "(UTC), when round 0 opens" in said
    assert "was drained" in " ".join(said.split())
