"""The folder of one of two servers, its commands, and when a leader's releases close."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from pipes import piped

from aggregate_world import NOW, SIDES, World, certificate, made, plan_of, settings

import fedtally
import fedtally.sources
from fedtally.campaign import aggregate_folder, runner
from fedtally.campaign.aggregate_folder import RESULT, AggregateFolder
from fedtally.campaign.closings import GRACE, Closing, Closings, Schedule
from fedtally.campaign.places import held_by
from fedtally.campaign.transports.https.join import LONGEST_WAIT
from fedtally.campaign.transports.https.pinned import Certificates, PeerAddress, checked_helper
from fedtally.campaign.transports.https.reporting import FRESH_SECONDS
from fedtally.campaign.transports.https.standing import Standing
from fedtally.cli import aggregate as commands
from fedtally.cli.app import run
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan.calendar import Calendar
from fedtally.privacy.budget import Charge, OverspentError
from fedtally.store import AggregateBooks, Batches, Ledger

pytestmark = [
    pytest.mark.usefixtures("no_sync"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what both operators have before `init`."""
    place = tmp_path_factory.mktemp("files")
    plan_of(place)
    for side in SIDES:
        certificate(side, place)
    return place


@pytest.fixture
def place(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    target = tmp_path / "operator"
    shutil.copytree(files, target)
    monkeypatch.chdir(target)
    return target


def words(side: str, **changed: str | None) -> list[str]:
    """Return an `init`; an option that is None is left out."""
    other = "helper" if side == "leader" else "leader"
    given: dict[str, str | None] = {
        "plan": "plan.toml",
        "key": f"{side}.key",
        "allow-list": "clients.allow",
        "mark": f"{side}.mark",
        "certificate": f"{side}.crt",
        "certificate-key": f"{side}-tls.key",
        "other-certificate": f"{other}.crt",
    }
    given |= {"helper": "https://127.0.0.1:8443"} if side == "leader" else {}
    said = ["aggregate", side, "init", "at"]
    for name, value in (given | changed).items():
        said += [] if value is None else [f"--{name}", value]
    return said


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Return the one line that says why a command is refused."""
    capsys.readouterr()
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("side", SIDES)
def test_init_makes_a_folder_that_opens(
    place: Path, side: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words(side), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    folder = AggregateFolder.open(Path("at"), side)
    assert found == {
        "schema": "fedtally-aggregate-made/1",
        "folder": "at",
        "side": side,
        "fingerprint": folder.plan.fingerprint,
    }
    assert folder.settings.key.is_absolute() and folder.settings.policy.min_honest == 2
    assert {"at", f"{side}.mark", f"{side}.mark.books"} <= {each.name for each in place.iterdir()}
    assert "exists already" in refused(capsys, words(side))


@pytest.mark.parametrize("side", SIDES)
def test_a_key_is_of_one_folder(place: Path, side: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever retires another one would destroy it; and only one journal knows what was opened."""
    assert "exists already" in refused(capsys, words(side, mark="plan.toml"))
    assert not Path(f"{side}.key.folder").exists()  # nothing was made
    assert run(words(side)) == 0
    again = words(side, mark="elsewhere")
    again[again.index("at")] = "other"
    assert f"{side}.key is the key of {place / 'at'}" in refused(capsys, again)
    gone = f"{bytes(32).hex()} /gone\n"  # of a key that is gone
    Path(f"{side}.key.folder").write_text(gone)
    bad = [*again]
    bad[bad.index("elsewhere")] = "plan.toml"
    assert "exists already" in refused(capsys, bad)
    assert Path(f"{side}.key.folder").read_text() == gone  # as before
    assert run(again) == 0


def _plan_without_keys(place: Path) -> None:
    plan = fedtally.Plan.load(place / "plan.toml")
    plan.without_keys().save(place / "bare.toml")


def _secagg(place: Path) -> None:
    fedtally.estimate([1, 2] * 5, domain="range:1..2").plan.save(place / "plain.toml")


def _other_list(place: Path) -> None:
    other = place / "other"
    other.mkdir()
    lines = (place / "clients.allow").read_text().splitlines(keepends=True)
    (other / "clients.allow").write_text("".join(lines[:-1]))


def _broken(place: Path) -> None:
    (place / "broken.crt").write_text("no certificate")
    (place / "empty.crt").write_text("")


WRONG: list[tuple[str, dict[str, str | None], Callable[[Path], None] | None, str]] = [
    ("leader", {"plan": "none.toml"}, None, "none.toml"),
    ("leader", {"plan": "bare.toml"}, _plan_without_keys, "key"),
    ("leader", {"plan": "plain.toml"}, _secagg, "is not summed by two servers"),
    ("leader", {"key": "helper.key"}, None, "holds the key of the helper"),
    ("helper", {"key": "none.key"}, None, "none.key"),
    ("leader", {"allow-list": "other/clients.allow"}, _other_list, "allow-list"),
    ("leader", {"mark": "at/mark"}, None, "would be put back with it"),
    ("leader", {"mark": "plan.toml"}, None, "exists already"),
    ("leader", {"mark": "nowhere/mark"}, None, "mark (No such file or directory): make its"),
    ("leader", {"ledger": "books.db"}, None, "leave it out"),
    ("leader", {"min-honest": "9"}, None, "min_batch - corrupt must be at least 9"),
    ("leader", {"corrupt": "3"}, None, "corrupt must be at least 3"),
    ("leader", {"helper": "http://127.0.0.1:8443"}, None, "no address of a helper"),
    ("leader", {"closes": "2027-01-31"}, None, "no time with its zone"),
    ("leader", {"closes": "soon"}, None, "no time with its zone"),
    ("leader", {"size": "2"}, None, "--size must be at least 3, got 2"),
    ("leader", {"size": "9"}, None, "--size must be at most 8, got 9"),
    ("leader", {"grace": "-1"}, None, "grace must be at least 0"),
    ("leader", {"certificate": "none.crt"}, None, "cannot use none.crt"),
    ("leader", {"certificate-key": "helper-tls.key"}, None, "cannot use leader.crt with"),
    ("leader", {"other-certificate": "broken.crt"}, _broken, "cannot use broken.crt"),
    ("leader", {"other-certificate": "empty.crt"}, _broken, "cannot use empty.crt"),
]


@pytest.mark.parametrize(("side", "changed", "prepare", "says"), WRONG)
def test_init_refuses_what_is_wrong_in_a_line_and_makes_nothing(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    side: str,
    changed: dict[str, str | None],
    prepare: Callable[[Path], None] | None,
    says: str,
) -> None:
    if prepare is not None:
        prepare(place)
    before = {each.name for each in place.iterdir()}
    assert says in refused(capsys, words(side, **changed))
    assert {each.name for each in place.iterdir()} == before


@pytest.mark.parametrize("side", SIDES)
def test_what_the_settings_keep_holds_no_password_and_can_be_read_again(
    place: Path, side: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {each.name for each in place.iterdir()}
    said = refused(capsys, words(side, ledger="postgresql://me:hunter2@host/books"))
    assert "--ledger 'postgresql://me:***@host/books' holds a password" in said
    assert "aggregate.toml" in said and ".pgpass" in said and "hunter2" not in said
    assert {each.name for each in place.iterdir()} == before
    with piped(place / f"{side}.key") as pipe:
        said = refused(capsys, words(side, key=pipe))
    assert f"--key {pipe} is no plain file" in said and "name the file itself" in said
    with piped(place / "helper.crt") as pipe, pytest.raises(InvalidInputError, match=pipe):
        made(place, side, other_certificate=Path(pipe))
    assert {each.name for each in place.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "given"),
    [("candidates", "words.txt"), ("schedule", Schedule((Closing(),), 5, 0))],
)
def test_a_helper_is_given_nothing_that_a_leader_alone_uses(
    place: Path, name: str, given: Any
) -> None:
    before = {each.name for each in place.iterdir()}
    with pytest.raises(InvalidInputError, match=f"{name} is for the leader's folder"):
        AggregateFolder.create(
            place / "at-helper",
            "helper",
            plan=place / "plan.toml",
            allow_list=place / "clients.allow",
            settings=settings(place, "helper"),
            **{name: given},
        )
    assert {each.name for each in place.iterdir()} == before


@pytest.mark.parametrize(
    ("side", "helper"),
    [("helper", "https://127.0.0.1:8443"), ("helper", ""), ("leader", None), ("leader", "")],
)
def test_a_leader_alone_has_the_address_of_a_helper(
    place: Path, side: Any, helper: str | None
) -> None:
    before = {each.name for each in place.iterdir()}
    says = f"at-{side} is of a {side}, and has {helper!r} as the address of its helper: a leader's"
    with pytest.raises(InvalidInputError, match=says):
        made(place, side, helper=helper)
    assert {each.name for each in place.iterdir()} == before


def test_a_plan_with_privacy_needs_a_ledger_that_covers_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of(tmp_path, epsilon=2.0)
    assert plan.privacy is not None
    for side in SIDES:
        certificate(side, tmp_path)
    assert "name it (fedtally ledger grant" in refused(capsys, words("leader"))
    small = Ledger.open("small.db", create=True)
    small.grant(plan.privacy.population, 0.1, plan.privacy.delta, 0)
    said = refused(capsys, words("leader", ledger="small.db"))
    assert "the ledger" in said and "does not cover this plan" in said
    large = Ledger.open("large.db", create=True)
    large.grant(plan.privacy.population, 5.0, plan.privacy.delta, 0)
    assert run(words("leader", ledger="large.db")) == 0
    folder = AggregateFolder.open(Path("at"), "leader")
    assert folder.settings.ledger == str(tmp_path / "large.db")
    assert "the grant of" not in capsys.readouterr().err
    loose = Ledger.open("loose.db", create=True)
    loose.grant(plan.privacy.population, 5.0, 0.5, 0)
    other = ["second" if word == "at" else word for word in words("helper", ledger="loose.db")]
    assert run(other) == 0
    assert "note: the grant of population" in (said := " ".join(capsys.readouterr().err.split()))
    assert f"its delta 0.5 is not below 1 / {plan.num_clients} clients" in said
    url = "postgresql://user@host/books"
    assert settings(tmp_path, "leader", ledger=url).absolute().ledger == url


def test_a_ledger_that_has_too_little_left_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, without a plan that takes seconds to size."""
    folder = made(place, "leader")
    privacy = SimpleNamespace(population="phones", event=None)
    plan: Any = SimpleNamespace(privacy=privacy, fingerprint="plan-0")
    charged = replace(folder, plan=plan, settings=replace(folder.settings, ledger="books.db"))

    class Books:
        name = "books.db"

        def check_charge(self, charge: Any) -> None:
            raise OverspentError(f"{charge} is too much")

    monkeypatch.setattr(aggregate_folder, "Charge", lambda *parts: parts[0])
    monkeypatch.setattr(AggregateFolder, "_ledger", lambda _: Books())
    with pytest.raises(InvalidInputError, match="books.db does not cover this plan: phones is too"):
        charged._check_budget()


@pytest.mark.parametrize("side", SIDES)
def test_a_plan_that_another_run_charged_makes_no_folder(tmp_path: Path, side: Any) -> None:
    """Clients would report to it, and no sum could ever be opened."""
    plan = plan_of(tmp_path, epsilon=2.0)
    assert plan.privacy is not None
    books = Ledger.open(tmp_path / "books.db", create=True)
    books.grant(plan.privacy.population, 5.0, plan.privacy.delta, 0)
    charge = Charge(plan.privacy.population, plan.fingerprint, 0, plan.privacy.event)
    books.reserve(charge, "another run", 1)
    before = {each.name for each in tmp_path.iterdir()}
    with pytest.raises(InvalidInputError, match="another run charged this plan"):
        made(tmp_path, side, ledger=str(tmp_path / "books.db"))
    assert {each.name for each in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("no_sync")
def test_settings_that_were_edited_are_checked_before_anything_is_opened(tmp_path: Path) -> None:
    """A mark in the folder would be put back together with it, and show nothing."""
    world = World(tmp_path, epsilon=4.0, trust="central")
    folder, process = world.folders["leader"], world.processes["leader"]
    words = (folder.path / "aggregate.toml").read_text(encoding="utf-8")
    ledger = next(line for line in words.splitlines() if line.startswith("ledger"))
    inside = words.replace(f'"{folder.settings.mark}"', f'"{folder.path}/leader.mark"')
    for changed, error in (
        (words.replace(ledger, ""), "charged to a ledger"),
        (inside, "the mark"),
    ):
        assert changed != words
        (folder.path / "aggregate.toml").write_text(changed, encoding="utf-8")
        process.folder = AggregateFolder.open(folder.path, "leader")
        with pytest.raises(InvalidInputError, match=error):
            process.folder.claim(clock=lambda: NOW, random=bytes)


def test_there_is_no_result_before_a_sum_has_landed(tmp_path: Path) -> None:
    world = World(tmp_path)
    leader = world.processes["leader"]
    leader.folder.save_result(leader.claimed, lambda size: bytes(size))
    assert not (leader.folder.path / RESULT).exists()


def test_the_answer_of_a_leader_takes_windows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words("leader")) == 0
    days = [day for day in range(4) for _ in range(50)]
    found = fedtally.estimate(["tea"] * 100 + ["milk"] * 100, rounds=days, seed=1)
    found.save(Path("at") / RESULT)
    capsys.readouterr()
    asked = ["aggregate", "leader", "result", "at", "--json", "--window"]
    assert run([*asked, "last:2", "-o", "saved.fed"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["window"]["rounds"] == [2, 3] and told["window"]["clients"] == 100
    assert [(one["item"], one["frequency"]) for one in told["estimates"]] == [("milk", 1.0)]
    assert Path("saved.fed").read_bytes() == (Path("at") / RESULT).read_bytes()  # of all rounds
    assert run([*asked, "7..9", "-o", "other.fed"]) == 2
    assert not Path("other.fed").exists()


def test_a_damaged_folder_is_refused_in_a_line(place: Path) -> None:
    assert run(words("leader")) == 0
    written = Path("at/aggregate.toml")
    text = written.read_text()
    for changed, why in (
        ("not toml", "cannot read"),
        (text.replace("aggregate/1", "aggregate/0"), "run it with the fedtally that made it"),
        (text.replace('side = "leader"', 'side = "helper"'), "and a helper's settings do not"),
        (f"kez = 1\n{text}", "unknown entries kez"),
        (text.replace('side = "leader"', "side = 3"), "needs the entry side, a text, got 3"),
        (text.replace("min_honest = 2", "min_honest = 1"), "min_honest must be at least 2"),
    ):
        written.write_text(changed)
        with pytest.raises(InvalidInputError, match=why):
            AggregateFolder.open(Path("at"), "leader")
    written.unlink()
    with pytest.raises(UnreadableFileError, match="is no folder of a server"):
        AggregateFolder.open(Path("at"), "leader")


def test_candidates_that_the_plan_has_a_digest_of_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("tea\ncoffee\nmilk\n")
    plan_of(tmp_path, domain=fedtally.sources.read_candidates(str(tmp_path / "words.txt")))
    for side in SIDES:
        certificate(side, tmp_path)
    assert run(words("leader", candidates="words.txt")) == 0
    folder = AggregateFolder.open(Path("at"), "leader")
    assert folder.domain is not None and folder.domain.labels(range(3)) == ["tea", "coffee", "milk"]


def test_nginx_gets_its_conf_from_the_plan(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side in SIDES:
        assert run([word if word != "at" else f"at-{side}" for word in words(side)]) == 0
    capsys.readouterr()
    confs = []
    for side in SIDES:
        folder = AggregateFolder.open(Path(f"at-{side}"), side)
        asked = ["aggregate", side, "nginx", str(folder.path), "--socket", f"{side}.sock"]
        assert run([*asked, "--host", "sums.example.org"]) == 0
        found = capsys.readouterr().out
        assert f"client_max_body_size {folder.report_bytes};" in found
        assert f"server unix:{place}/{side}.sock" in found
        assert f"/v1/plans/{folder.plan.fingerprint}/releases/[0-9]+(/reports)?$ {{" in found
        assert "limit_req " not in found and "access_log off" in found
        # bounds of the operator's own, in the files that the conf includes, answer with 429
        assert all(f"\n  limit_{what}_status 429;" in found for what in ("req", "conn"))
        assert run([*asked, "--host", "sums.example.org", "--output", f"{side}.conf"]) == 0
        assert capsys.readouterr().out == "" and (place / f"{side}.conf").read_text() == found
        confs.append(found)
    assert confs[0] != confs[1]
    assert "would mean something else to nginx" in refused(capsys, [*asked, "--host", "a b"])
    long = "x" * 120
    said = refused(capsys, ["aggregate", "helper", "nginx", "at-helper", "--socket", long])
    assert "choose a shorter" in said


def test_a_lock_that_cannot_be_had_is_refused(place: Path) -> None:
    assert run(words("leader")) == 0
    folder = AggregateFolder.open(Path("at"), "leader")
    (place / "at" / "lock").mkdir()
    with pytest.raises(InvalidInputError, match="cannot open the lock"), held_by(folder.path, 1):
        pass
    assert folder.runner() is None


# ---- when releases close ----


def test_a_file_of_closings_keeps_what_it_is_told(tmp_path: Path) -> None:
    first, second = Closings(tmp_path), Closings(tmp_path)
    first.write(Schedule((Closing(), Closing(at=NOW)), size=7, grace=60))
    assert second.read() == Schedule((Closing(), Closing(at=NOW)), 7, 60)
    assert second.change(0, since=5) == Closing(since=5)
    assert first.read().releases == (Closing(since=5), Closing(at=NOW))
    assert first.read() is first.read()  # read once, while it does not change
    first.change(0, lost="why")
    with pytest.raises(InvalidInputError, match="has releases 0 to 1, got 2"):
        first.change(2, at=1)
    for text in ("", "{}", '{"schema": "fedtally-closings/0"}', "[]"):
        (tmp_path / "closings.json").write_text(text)
        with pytest.raises(UnreadableFileError, match="cannot read .*closings.json"):
            first.read()
    (tmp_path / "closings.json").unlink()
    with pytest.raises(UnreadableFileError, match="No such file"):
        first.read()


def test_close_says_when(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words("leader", closes="2130-01-31T18:00+01:00", size="6", grace="9")) == 0
    closings = Closings(Path("at"))
    assert closings.read() == Schedule((Closing(at=5_051_782_800),), 6, 9)
    close = ["aggregate", "leader", "close", "at"]
    assert "releases 0 to 0, got 1" in refused(capsys, [*close, "--release", "1"])
    assert "2025-01-01T00:00Z' is over" in refused(capsys, [*close, "--at", "2025-01-01T00:00Z"])
    assert run([*close, "--at", "2129-01-01T00:00Z", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"schema": "fedtally-closing/1", "releases": [0], "at": 5_017_593_600}
    before = int(time.time())
    assert run([*close, "--release", "0"]) == 0
    assert (
        "will close now, or once there are 3 reports; next: fedtally aggregate leader run at"
        in (capsys.readouterr().err)
    )
    at = closings.read().releases[0].at
    assert at is not None and at >= before
    closings.change(0, since=at)
    assert "at is closing already" in refused(capsys, close)
    assert "at has no answer yet" in refused(capsys, ["aggregate", "leader", "result", "at"])


def test_close_asks_which_of_several_open_releases(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time of a release that is closing cannot be put off, so none closes unnamed."""
    for key in place.glob("*er.key*"):
        key.unlink()
    plan_of(place, rounds=3, schedule="fresh")
    assert run(words("leader")) == 0
    closings, close = Closings(Path("at")), ["aggregate", "leader", "close", "at"]
    for more in ([], ["--at", "2129-01-01T00:00Z"]):
        said = refused(capsys, [*close, *more])
        assert "at has 3 open releases (0 to 2)" in said
        assert "--release N" in said and "--release all" in said
    assert "or all, got 'every'" in refused(capsys, [*close, "--release", "every"])
    assert closings.read().releases == (Closing(),) * 3
    assert run([*close, "--at", "2129-01-01T00:00Z", "--release", "1"]) == 0
    assert [each.at for each in closings.read().releases] == [None, 5_017_593_600, None]
    assert run([*close, "--at", "2128-01-01T00:00Z", "--release", "all"]) == 0
    assert [each.at for each in closings.read().releases] == [4_985_971_200] * 3
    # of one open release it is clear which one closes
    for number in (0, 2):
        closings.change(number, since=NOW)
    assert run([*close, "--at", "2129-01-01T00:00Z"]) == 0
    assert closings.read().releases[1].at == 5_017_593_600


def test_a_calendar_closes_each_release_at_the_end_of_its_round(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has to type a close each day; what an operator says goes first."""
    for key in place.glob("*er.key*"):
        key.unlink()
    start = datetime(2129, 1, 1, tzinfo=UTC)
    calendar = Calendar(start, timedelta(days=1), 3)
    plan_of(place, rounds=3, schedule="fresh", calendar=calendar)
    ends = [int((start + timedelta(days=day)).timestamp()) for day in (1, 2, 3)]
    assert run([*words("leader"), "--size", "6"]) == 0
    closings = Closings(Path("at"))
    assert closings.read() == Schedule(tuple(Closing(at=end) for end in ends), 6)
    close = ["aggregate", "leader", "close", "at", "--release", "1"]
    assert run([*close, "--at", "2129-01-02T18:00Z"]) == 0
    assert [each.at for each in closings.read().releases] == [ends[0], ends[0] + 64_800, ends[2]]
    capsys.readouterr()
    assert (
        "release 0: new; closes on 2129-01-02 00:00 UTC" in shown(capsys, "leader", Path("at"))[1]
    )
    # a folder that is made without a schedule, and one time for all
    plan_of(tmp_path, rounds=3, schedule="fresh", calendar=calendar)
    folder = made(tmp_path, "leader")
    assert [each.at for each in Closings(folder.path).read().releases] == ends
    (tmp_path / "leader.key.folder").unlink()
    shutil.rmtree(folder.path)
    for mark in tmp_path.glob("leader.mark*"):
        mark.unlink()
    settled = {"plan": tmp_path / "plan.toml", "key": tmp_path / "leader.key"}
    once = {name: str(file) for name, file in settled.items()} | {"mark": "once.mark"}
    asked = words("leader", **once, closes="2130-01-31T18:00+01:00")
    asked[asked.index("at")] = "once"
    assert run(asked) == 0
    assert {each.at for each in Closings(Path("once")).read().releases} == {5_051_782_800}


# ---- what operators see ----


def shown(capsys: pytest.CaptureFixture[str], side: str, place: Path) -> tuple[Any, str]:
    assert run(["aggregate", side, "status", str(place), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run(["aggregate", side, "status", str(place)]) == 0
    return found, capsys.readouterr().out


def test_status_says_what_waits_and_what_closes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    world = World(tmp_path)
    leader, place = world.processes["leader"], world.folders["leader"].path
    (new, text) = shown(capsys, "leader", place)
    assert new["releases"][0]["state"] == "new" and new["disk_bytes"] is None
    assert "release 0: new; closes when it is full, or by fedtally aggregate leader close" in text
    tending = world.tending()
    standing = Standing(world.folders["leader"], leader.releases, [tending], lambda: NOW)
    helper = Standing(world.folders["helper"], world.processes["helper"].releases, [], lambda: NOW)

    def look(state: str, *said: str) -> dict[str, Any]:
        standing.write()
        helper.write()
        found, text = shown(capsys, "leader", place)
        assert found["releases"][0]["state"] == state
        one_line = " ".join(text.split())
        assert all(each in one_line for each in said), (one_line, said)
        return found["releases"][0]  # type: ignore[no-any-return]

    async def life() -> None:
        await world.send(0, 1, 2)
        tending.oldest = time.time() - 90
        found = look("open", "3 reports; 3 not judged, the oldest since at most about 2 min")
        assert (found["waiting"], found["judged"]) == (3, 0)
        await tending.step()
        found = look("open", "release 0: open; 3 reports; closes when it is full")
        assert (found["waiting"], found["judged"], found["oldest"]) == (0, 3, None)
        closings = Closings(place)
        closings.change(0, at=int(time.time()) + 86_400)
        look("open", "closes on 20", "UTC, or when it is full")
        closings.change(0, at=int(time.time()) - 5)
        look("open", "closes once there are 3 reports")
        world.close()
        tending._look(closings.read())
        closings.change(0, since=int(time.time()))
        look("closing", "stops in about")
        world.now = time.time() + 1000
        await tending.step()
        look("stopped", "release 0: stopped; 3 reports")
        await tending.step()
        await tending.step()
        look("landed", "release 0: landed; 3 reports")
        found, text = shown(capsys, "helper", world.folders["helper"].path)
        assert found["releases"][0]["state"] == "landed" and "closes" not in text
        written = (place / "state.json").read_text()
        standing.write()  # nothing has changed
        assert (place / "state.json").read_text() == written

    asyncio.run(life())
    assert run(["aggregate", "leader", "result", str(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"].startswith("fedtally")
    out, settings = tmp_path / "saved.fed", world.folders["leader"].settings
    settings.mark.unlink(missing_ok=True)  # as while its disk is away
    for taken in (*settings.files(), place / "plan.toml", place / "new.csv"):
        before = Path(taken).read_bytes() if os.path.exists(taken) else None
        assert run(["aggregate", "leader", "result", str(place), "-o", str(taken)]) == 2, taken
        assert "name another file" in " ".join(capsys.readouterr().err.split())
        assert (Path(taken).read_bytes() if os.path.exists(taken) else None) == before
    assert run(["aggregate", "leader", "result", str(place), "-o", str(out)]) == 0
    assert "3 of 3 clients in the sums" in " ".join(capsys.readouterr().out.split())
    assert out.read_bytes() == (place / RESULT).read_bytes()
    leader.releases[0].is_lost = True
    assert standing.of_release(0)["state"] == "lost"
    Closings(place).change(0, lost="the sum was wrong")
    _, text = shown(capsys, "leader", place)
    assert "release 0: lost; 3 reports; the sum was wrong" in text


def test_status_says_whether_the_process_is_in_another_container(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = World(tmp_path).folders["leader"].path
    assert "no process runs it" in " ".join(shown(capsys, "leader", place)[1].split())
    with held_by(place, 4321):
        for said in ("", " of another container"):
            if said:
                monkeypatch.setattr(runner, "_namespace", lambda: "pid:[2]")
            found, text = shown(capsys, "leader", place)
            assert f"process 4321{said} runs it" in " ".join(text.split())
            assert (found["process"], found["in_another_container"]) == (4321, bool(said))


def made_newer(database: Path) -> int:
    """Make a database one that a newer fedtally wrote, and return its version."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f'DROP TRIGGER "{name}"')
        connection.execute("UPDATE fedtally_schema SET version = version + 1")
        return int(connection.execute("SELECT max(version) FROM fedtally_schema").fetchone()[0])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["reports.db", "books.db", "ledger"])
def test_status_says_that_this_version_cannot_read_a_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: Any, name: str
) -> None:
    """The check before an upgrade: `run` would refuse the folder, so `status` says so."""
    place = World(tmp_path, epsilon=4.0, trust="central").folders[side].path
    asked = ["aggregate", side, "status", str(place)]
    found, _ = shown(capsys, side, place)
    database = tmp_path / f"{side}-ledger.db" if name == "ledger" else place / name
    number = made_newer(database)
    changed = database.read_bytes()
    newer = f"written by a newer fedtally (schema {number};"
    for more in ([], ["--json"]):
        capsys.readouterr()
        assert run([*asked, *more]) == 2
        out, err = capsys.readouterr()
        said = " ".join(err.split())
        assert newer in said and database.name in said
        assert ("run would be refused" in said) == bool(out) == (name == "ledger")
    with pytest.raises(UnreadableFileError, match=r"written by a newer fedtally"):
        AggregateFolder.open(place, side).claim(clock=lambda: NOW, random=bytes)
    assert database.read_bytes() == changed
    (place / "retired").touch()  # nothing is charged any more
    if name == "ledger":
        assert shown(capsys, side, place)[0] == found | {"retired": True}


def test_a_state_that_cannot_be_written_keeps_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    folder = world.folders["helper"]
    standing = Standing(folder, world.processes["helper"].releases, [])
    standing.write()
    (folder.path / "state.json").unlink()
    (folder.path / "state.json").mkdir()
    standing._written = ""
    standing.write()
    assert (folder.path / "state.json").is_dir()
    # neither does a disk that is gone end the process
    folder.path.rename(tmp_path / "gone")
    standing.write()


@pytest.mark.parametrize("side", SIDES)
def test_a_key_is_destroyed_at_the_end_or_when_releases_are_given_up(
    tmp_path: Path, side: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_of(tmp_path)
    folder = made(tmp_path, side)
    retire = ["aggregate", side, "retire", str(folder.path)]
    assert "release 0 of" in refused(capsys, retire) and folder.landed() == set()
    assert run([*retire, "--give-up", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    made_of = {"schema": "fedtally-aggregate-retired/1", "folder": str(folder.path)}
    assert found == made_of | {"unread": []}
    assert not folder.settings.key.exists() and folder.is_retired
    found, text = shown(capsys, side, folder.path)
    assert found["retired"] and "its key was destroyed" in text
    # a process that died in between had marked it, and the key goes the next time
    shutil.copy(tmp_path / f"{side}.key.pub", tmp_path / "other.pub")
    assert "was destroyed before" in refused(capsys, [*retire, "--give-up"])


def begun(place: Path, side: Any) -> AggregateFolder:
    """Return a folder that a process has run: its databases have writes, and its marks say so."""
    plan_of(place)
    folder = made(place, side)
    folder.claim(clock=lambda: NOW, random=bytes)
    assert (folder.path / "books.db").exists() and (folder.path / "reports.db").exists()
    return folder


def names(folder: AggregateFolder) -> set[str]:
    return {each.name for each in folder.path.iterdir()}


def retired(
    capsys: pytest.CaptureFixture[str], folder: AggregateFolder, side: str, *unread: str
) -> None:
    """Check that only `--give-up` destroys the key, and says which files it could not read."""
    retire = ["aggregate", side, "retire", str(folder.path)]
    refused(capsys, retire)
    assert folder.settings.key.exists() and not folder.is_retired
    assert run([*retire, "--give-up", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unread"] == list(unread)
    assert folder.is_retired and not folder.settings.key.exists()


LOST = [["books.db"], ["reports.db"], ["books.db", "reports.db"]]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("lost", LOST)
def test_a_server_that_lost_its_disk_does_not_begin_again_and_its_key_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: Any, lost: list[str]
) -> None:
    check_lost(tmp_path, capsys, side, lost, with_marks=True)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("lost", LOST)
def test_a_server_that_lost_its_marks_as_well_does_not_begin_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: Any, lost: list[str]
) -> None:
    """The files of the folder may come from a backup that is older than its reports."""
    check_lost(tmp_path, capsys, side, lost, with_marks=False)


def check_lost(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    side: Any,
    lost: list[str],
    *,
    with_marks: bool,
) -> None:
    """Check that a server without its databases is refused: it could open a second sum."""
    folder = begun(place, side)
    mark = folder.settings.mark
    for name in lost:
        (folder.path / name).unlink()
        if not with_marks:
            (mark if name == "reports.db" else mark.with_name(f"{mark.name}.books")).unlink()
    before = names(folder)
    asked = ["aggregate", side, "run", str(folder.path), "--listen", f"unix:{place}/s"]
    said = refused(capsys, asked + (["--leader-listen", "127.0.0.1:0"] * (side == "helper")))
    what = f"has lost its {lost[0]}, and its mark" if with_marks else f"neither its {lost[0]} nor"
    assert what in said and f"aggregate {side} retire {folder.path} --give-up" in said
    assert names(folder) - before == {"lock"}  # no database that looks like a new one
    assert run(["aggregate", side, "status", str(folder.path)]) == 2
    out, err = capsys.readouterr()
    assert "release 0: new" in out and err.startswith("run would be refused: ") and what in err
    read = "reports.db" if side == "helper" else "books.db"
    retired(capsys, folder, side, *([read] if read in lost else []))
    assert run(["aggregate", side, "status", str(folder.path)]) == 0


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("with_mark", [True, False])
def test_a_database_without_a_write_does_not_hide_that_the_old_one_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: Any, with_mark: bool
) -> None:
    folder = begun(tmp_path, side)
    (folder.path / "books.db").unlink()
    AggregateBooks.open(folder.path / "books.db", create=True)
    if not with_mark:
        mark = folder.settings.mark
        mark.with_name(f"{mark.name}.books").unlink()
    with pytest.raises(InvalidInputError, match=r"its books\.db") as error:
        folder.claim(clock=lambda: NOW, random=bytes)
    assert "--give-up" in str(error.value)
    retired(capsys, folder, side, *(["books.db"] if side == "leader" else []))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_process_that_died_while_it_made_a_database_began_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: Any, is_empty: bool
) -> None:
    plan_of(tmp_path)
    folder = made(tmp_path, side)
    for name, kind in (("books.db", AggregateBooks), ("reports.db", Batches)):
        if is_empty:
            (folder.path / name).touch()
        else:
            kind.open(folder.path / name, create=True)
    found, _ = shown(capsys, side, folder.path)
    assert found["releases"][0]["state"] == "new" and folder.landed() == set()
    folder.claim(clock=lambda: NOW, random=bytes)
    folder.claim(clock=lambda: NOW, random=bytes)


@pytest.mark.parametrize(
    ("side", "name", "is_gone"),
    [
        ("leader", "books.db", False),
        ("leader", "closings.json", False),
        ("leader", "closings.json", True),
        ("helper", "reports.db", False),
    ],
)
def test_giving_up_needs_no_file_that_says_what_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], side: Any, name: str, is_gone: bool
) -> None:
    folder = begun(tmp_path, side)
    (folder.path / name).write_bytes(b"{damaged" * 1024)
    if is_gone:
        (folder.path / name).unlink()
    said = refused(capsys, ["aggregate", side, "retire", str(folder.path)])
    assert name in said
    retired(capsys, folder, side, name)


def test_giving_up_says_in_words_what_it_could_not_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(tmp_path, "leader")
    for name in ("books.db", "closings.json"):
        (folder.path / name).unlink()
    assert run(["aggregate", "leader", "retire", str(folder.path), "--give-up"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"destroyed {folder.settings.key}" in said
    assert (
        f"not looked at, being lost or damaged: closings.json and books.db of {folder.path}" in said
    )
    assert not folder.settings.key.exists()


def test_what_is_lost_counts_as_over(tmp_path: Path) -> None:
    plan_of(tmp_path)
    folder = made(tmp_path, "leader")
    Closings(folder.path).change(0, lost="why")
    assert folder.landed() == {0}
    with pytest.raises(InvalidInputError, match="the helper has not heard that release 0 is over"):
        folder.retire(os.getpid())
    Closings(folder.path).change(0, told=True)
    folder.retire(os.getpid())


# ---- addresses and certificates ----


@pytest.mark.parametrize(
    "text", ["8443", ":8443", "host:", "host:65536", "host:1e3", "a b:1", "host:-1"]
)
def test_an_address_for_the_leader_is_one_of_this_machine(text: str) -> None:
    with pytest.raises(InvalidInputError, match="for the leader: give ADDRESS:PORT"):
        PeerAddress.parse(text)


def test_an_address_that_cannot_be_had_is_refused() -> None:
    assert PeerAddress.parse("[::1]:0") == PeerAddress("::1", 0)
    with PeerAddress.parse("127.0.0.1:0").bound() as taken:
        port = taken.getsockname()[1]
        again = PeerAddress("127.0.0.1", port)
        with pytest.raises(InvalidInputError, match="name another address"), again.bound():
            pass


@pytest.mark.parametrize(
    "url",
    [
        "http://host:1",
        "https://",
        "https://host:0",
        "https://host:x",
        "https://host/path",
        "https://host?a=b",
        "https://me@host",
        "https://[",
        "https://host:65536",
        "https://host#part",
        "https://host?",
        "https://ho st:1",
        "https://host:1\n",
        "https://host//",
    ],
)
def test_an_address_of_a_helper_is_a_host_and_a_port(url: str) -> None:
    with pytest.raises(InvalidInputError, match="no address of a helper"):
        checked_helper(url)


def test_a_key_with_a_password_is_refused(files: Path, tmp_path: Path) -> None:
    import subprocess

    locked = tmp_path / "locked.key"
    words = f"openssl pkcs8 -topk8 -in {files}/leader-tls.key -out {locked} -passout pass:secret"
    subprocess.run(words.split(), check=True, capture_output=True)
    pins = Certificates(files / "leader.crt", locked, files / "helper.crt")
    with pytest.raises(UnreadableFileError, match="has a password: give one without"):
        pins.of_caller()


def test_the_help_and_the_folder_have_one_grace() -> None:
    assert commands.GRACE == GRACE


def test_a_report_that_waits_for_a_server_comes_within_the_grace() -> None:
    """A client may begin on an answer that is a minute old, and then wait its longest once."""
    assert GRACE > FRESH_SECONDS + LONGEST_WAIT


@pytest.mark.parametrize("side", SIDES)
def test_init_lists_the_pages_that_may_report(
    place: Path, side: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*words(side), "--origin", "https://a.example", "--origin", "http://localhost:8000"]
    wrong = [*words(side), "--origin", "https://a.example/x"]
    assert "'https://a.example/x' is no origin of a page" in refused(capsys, wrong)
    assert not Path("at").exists()
    assert run(given) == 0
    listed = AggregateFolder.open(Path("at"), side).settings.origins
    assert listed == ("https://a.example", "http://localhost:8000")


@pytest.mark.parametrize(
    ("entry", "why"), [('"https://a.example"', "a list of texts"), ('["*"]', "is no origin")]
)
def test_a_folder_whose_pages_are_misspelt_is_refused(place: Path, entry: str, why: str) -> None:
    folder = made(place, "helper").path
    file = folder / aggregate_folder.SETTINGS
    assert AggregateFolder.open(folder, "helper").settings.origins == ()
    file.write_text(file.read_text().replace("origins = []", f"origins = {entry}"))
    with pytest.raises(InvalidInputError, match=why):
        AggregateFolder.open(folder, "helper")
